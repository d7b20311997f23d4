"""NVSHMEM itself: it starts, GPUs access each other's memory at the computed addresses, and it ends before MPI."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from mpi4py import MPI

import pblas
from pblas import BackendError, WorkspaceError
from pblas.backends.agreement import Agreement
from pblas.backends.cuda import device as gpu
from pblas.backends.mpi.transport import MpiTransport
from pblas.backends.nvshmem.diagnostics import find
from pblas.backends.nvshmem.heap import Heap
from pblas.backends.nvshmem.settings import SIZE_VARIABLE
from pblas.backends.nvshmem.startup import join, running
from pblas.cli import main
from tests.common.ranks import COMM, raises_on_all_ranks, same_on_all_ranks
from tests.gpu.sharing import SHARED
from tests.harness.run import ROOT

cupy = pytest.importorskip("cupy")
pytestmark = [pytest.mark.mpi, pytest.mark.gpu]

LAUNCHERS = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_LOCAL", "MPIR_", "HYDRA_", "ORTE_")
AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "PBLAS_SHARE_GPU": "1",
}
"""Environment of jobs of several ranks."""
SECONDS = 20.0


class Part:
    """A context's memory over some ranks, without the context."""

    def __init__(self, color: int) -> None:
        comm = COMM.Split(color, COMM.rank)
        assert isinstance(comm, MPI.Intracomm)
        self.comm, self.agreement = comm, Agreement(MpiTransport(comm), SECONDS)
        self.nvshmem, self.pes = join(self.agreement)
        self.heap = Heap(self.agreement, self.nvshmem, self.pes)

    def close(self) -> None:
        settle(self.comm)
        self.heap.close()
        self.agreement.close()
        self.comm.Free()


@pytest.fixture
def whole() -> Iterator[Part]:
    part = Part(0)
    yield part
    part.close()


def settle(comm: MPI.Intracomm) -> None:
    """**Collective.** Return when the GPUs of all ranks are idle."""
    cupy.cuda.runtime.deviceSynchronize()
    comm.Barrier()


def put(address: int, values: Any) -> None:
    """Copy a CuPy array to an address on any GPU."""
    runtime = cupy.cuda.runtime
    runtime.memcpyAsync(address, values.data.ptr, values.nbytes, runtime.memcpyDefault, cupy.cuda.Stream.null.ptr)


def exchange_numbers(part: Part, nelements: int, salt: int) -> Any:
    """**Collective.** Every rank pushes its number to every rank; returns the block and its expected content."""
    size, rank = part.comm.size, part.comm.rank
    dtype, nbytes = np.dtype(np.int32), 4 * nelements
    block = part.heap.allocate(size * nbytes)
    received = part.heap.array(block, 0, (size, nelements), None, dtype)
    received[...] = -99
    settle(part.comm)
    sent = cupy.arange(nelements, dtype=dtype) + (salt + 1000 * rank)
    for peer in range(size):
        put(part.heap.peer_address(block, peer) + rank * nbytes, sent)
    settle(part.comm)
    return block, received


def check_numbers(received: Any, nelements: int, salt: int) -> None:
    expected = np.arange(nelements)[None, :] + salt + 1000 * np.arange(received.shape[0])[:, None]
    assert np.array_equal(cupy.asnumpy(received), expected)


def test_every_rank_has_a_gpu_of_its_own() -> None:
    pblas.init_nvshmem()
    library = running()
    assert library is not None
    assert library.device.stream_memops
    assert library.device.index == cupy.cuda.runtime.getDevice()
    assert library.nbytes == same_on_all_ranks(library.nbytes)
    assert SHARED or len(set(COMM.allgather(library.device.uuid))) == COMM.size
    assert sorted(COMM.allgather(library.pe)) == list(range(library.npes))
    assert os.environ["NVSHMEM_DISABLE_NVLS"] == "1"
    assert gpu.free_nbytes() > 0
    print(library.device, library.version)


def test_library_starts_once_per_process() -> None:
    pblas.init_nvshmem()
    library = running()
    assert library is not None
    pblas.init_nvshmem()
    assert running() is library
    with pytest.raises(BackendError, match="NVSHMEM already runs"):
        pblas.init_nvshmem(nbytes=library.nbytes + (1 << 40))
    with pytest.raises(BackendError, match="NVSHMEM already runs"):
        pblas.init_nvshmem(device=library.device.index + 1)


def test_pushed_data_arrives_at_its_address(whole: Part) -> None:
    kept = []
    for turn, nelements in enumerate((1, 77, 1 << 20)):
        kept.append((exchange_numbers(whole, nelements, turn), nelements, turn))
    for (_, received), nelements, turn in kept:  # none has been overwritten by a later one
        check_numbers(received, nelements, turn)


@pytest.mark.mpi(min_size=2)
def test_contexts_over_overlapping_ranks_do_not_interfere(whole: Part) -> None:
    parts = [whole, Part(COMM.rank % 2), Part(COMM.rank // 2), Part(COMM.rank)]
    kept = []
    for turn in range(3):
        for number, part in enumerate(parts):
            salt = 10**6 * (4 * turn + number)
            kept.append((exchange_numbers(part, 1000 + turn, salt), 1000 + turn, salt))
    for (block, received), nelements, salt in kept:
        assert block.nbytes >= received.nbytes
        check_numbers(received, nelements, salt)
    del kept, block, received
    for part in parts[1:]:
        assert part.heap.leaks() == []
        part.close()


def test_memory_is_free_again_when_contexts_end() -> None:
    before = None
    for _ in range(5):
        part = Part(0)
        exchange_numbers(part, 10_000, 3)
        part.close()
        pool = part.nvshmem.pool
        free = [list(segment.extent.free) for segment in pool.segments]
        assert before in (None, free)
        before = free


def test_an_array_keeps_its_block(whole: Part) -> None:
    x = whole.heap.array(whole.heap.allocate(800), 80, (3, 5), (8, 24), np.dtype(np.float64))
    assert whole.heap.leaks() == [""]
    assert x.strides == (8, 24)
    x[...] = 7
    assert float(x.sum()) == 7 * 15
    del x
    assert whole.heap.leaks() == []


def test_a_stream_writes_a_flag_on_a_peer(whole: Part) -> None:
    """The signal of the push protocol: a word that the stream writes after the data."""
    from cuda.bindings import driver

    comm = whole.comm
    block = whole.heap.allocate(256)
    flags = whole.heap.array(block, 0, (64,), None, np.dtype(np.uint32))
    flags[...] = 0
    settle(comm)
    peer = (comm.rank + 1) % comm.size
    stream = cupy.cuda.Stream(non_blocking=True)
    (status,) = driver.cuStreamWriteValue32(stream.ptr, whole.heap.peer_address(block, peer) + 4, 1, 0)
    assert int(status) == 0, status
    end = time.monotonic() + SECONDS
    while int(flags[1]) != 1 and time.monotonic() < end:
        time.sleep(1e-3)
    assert int(flags[1]) == 1
    settle(comm)


def test_too_large_a_block_is_rejected_on_all_ranks_and_others_work(whole: Part) -> None:
    raises_on_all_ranks(WorkspaceError, "bytes", partial(whole.heap.allocate, 1 << 42))
    _, received = exchange_numbers(whole, 100, 5)
    check_numbers(received, 100, 5)


@pytest.mark.mpi(min_size=2)
def test_a_context_over_some_ranks_does_not_grow() -> None:
    part = Part(COMM.rank % 2)
    if part.comm.size < COMM.size:
        raises_on_all_ranks(WorkspaceError, SIZE_VARIABLE, partial(part.heap.allocate, 2 * part.nvshmem.nbytes))
    part.close()


def test_a_context_over_all_ranks_grows_or_names_the_setting(whole: Part) -> None:
    """The driver decides whether NVSHMEM's heap grows; the outcome is the same on every rank."""
    before = same_on_all_ranks(whole.nvshmem.nbytes)
    nbytes, outcome = before + 1, ""
    try:
        block = whole.heap.allocate(nbytes)
    except WorkspaceError as error:
        outcome = str(error)
    same_on_all_ranks(outcome.partition("; found on rank")[0])
    if outcome:
        assert SIZE_VARIABLE in outcome
        assert whole.nvshmem.nbytes == before
    else:
        assert whole.nvshmem.nbytes > before
        assert whole.heap.place_address(block.window, block.offset, COMM.rank) == block.address
    print(outcome or "the heap grows")


def test_info_shows_the_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    facts = find(COMM.rank)
    assert facts.problem == ""
    names = dict(facts.versions)
    assert {"CuPy", "NVSHMEM", "NCCL"} <= names.keys()
    assert main(["info"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    if COMM.rank == 0:
        for fact in ("GPU peers", "driver for", "symmetric memory", "compute capability", names["NVSHMEM"]):
            assert fact in out
        print(out)


# Jobs of their own, which rank 0 runs beside each other: processes that are the only rank, and several ranks of which
# the last one does not start NVSHMEM as the others do

BESIDE = 3  # jobs at a time: many starts on one GPU at a time fail now and then in NVSHMEM
LATE = 12.0  # seconds for the start, in which a rank loads the library first
OWN = "import pblas; pblas.init_nvshmem(nbytes=8 << 20)\n"
USERS = """
import cupy
from cuda.core import Device
from nvshmem import core
device = Device(0)
device.set_current()
core.init(device=device, uid=core.get_unique_id(), rank=0, nranks=1, initializer_method="uid")
import pblas
from pblas.backends.nvshmem.startup import running
pblas.init_nvshmem(nbytes=8 << 20)
library = running()
assert (library.ours, library.pe, library.npes) == (False, 0, 1)
library.stop()
from nvshmem import bindings
assert bindings.init_status() >= 2, "it is the program's to end"
core.finalize()
"""
SCRIPTS = {
    "left to the exit": OWN,
    "after MPI.Finalize": OWN + "from mpi4py import MPI; MPI.Finalize()",
    "with a context": OWN + "with pblas.Context(backend='nvshmem') as ctx: ctx.describe()",
    "by an exception": OWN + "import sys; sys.exit(3)",
    "by the program, which started it": USERS,
}
SEVERAL = """
import os, signal, sys, time
from dataclasses import replace
from mpi4py import MPI
import pblas
from pblas.backends.nvshmem import startup

rank, pids = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.allgather(os.getpid())
startup.TIMEOUT, startup._LEAST_DEADLINE = {late}, {deadline}
core_device, prepare = startup._core_device, startup._prepare

def fail(*_):
    raise RuntimeError("no such device")

def other_gpu(*arguments):
    prepared = prepare(*arguments)
    return replace(prepared, device=replace(prepared.device, uuid="GPU-34"))

if rank == len(pids) - 1:
    startup.{name} = {replacement}
start = time.monotonic()
try:
    pblas.Context(backend="nvshmem", timeout={late})
except pblas.PblasError as error:
    print("rank", rank, "after", time.monotonic() - start, "s says", type(error).__name__, error, flush=True)
    if "did not arrive" in str(error):
        os.kill(pids[-1], signal.SIGKILL)
os._exit(0)
"""


class Job(NamedTuple):
    """A program in Python, and on how many ranks it runs; 0: one process without the launcher."""

    code: str
    ranks: int = 0


def several(ranks: int, name: str, replacement: str, *, deadline: float = 600) -> Job:
    return Job(SEVERAL.format(late=LATE, deadline=deadline, name=name, replacement=replacement), ranks)


JOBS = {
    "a rank stops": several(2, "_core_device", "lambda index: os.kill(os.getpid(), signal.SIGSTOP)", deadline=LATE),
    "a rank dies": several(2, "_core_device", "lambda index: os.kill(os.getpid(), signal.SIGKILL)"),
    "a rank fails": several(2, "_core_device", "fail"),
    "uneven sharing": several(3, "_prepare", "other_gpu"),
    **{name: Job(code + "\nprint('the end')\n") for name, code in SCRIPTS.items()},
}


class Ended(NamedTuple):
    """Status and output of a job, and its seconds."""

    status: int
    out: str
    err: str
    seconds: float


def run(job: Job) -> Ended:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHERS)}
    environment |= {"NVSHMEM_REMOTE_TRANSPORT": "none", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "lo"}
    environment |= {"NVSHMEM_DISABLE_NVLS": "1", "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{ROOT}"}
    environment |= {"OMPI_MCA_plm": "isolated"}  # on one host neither ssh nor rsh is needed to start processes
    command = [sys.executable, "-c", job.code]
    if job.ranks:
        launcher = os.environ.get("MPIEXEC") or str(Path(sys.executable).parent / "mpiexec")
        command, environment = [launcher, "-n", str(job.ranks), *command], environment | AS_ROOT
    start = time.monotonic()
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=5 * LATE, check=False)
    return Ended(ended.returncode, ended.stdout, ended.stderr, time.monotonic() - start)


@pytest.fixture(scope="module")
def jobs() -> Iterator[dict[str, Future[Ended]]]:
    """All jobs on rank 0, of which some run while tests wait for others."""
    with ThreadPoolExecutor(BESIDE) as pool:
        yield {name: pool.submit(run, job) for name, job in JOBS.items()} if COMM.rank == 0 else {}


@pytest.fixture
def ended(request: pytest.FixtureRequest, jobs: dict[str, Future[Ended]]) -> Ended:
    """The job of the name that the test is parametrized with."""
    result: Ended = COMM.bcast(jobs[request.param].result() if COMM.rank == 0 else None)
    return result


def job(*names: str) -> pytest.MarkDecorator:
    """Mark for tests of the outcomes of jobs."""
    return pytest.mark.parametrize("ended", names, indirect=True)


@job(*(name for name in SCRIPTS if name != "by an exception"))
def test_library_shuts_down_in_order(ended: Ended) -> None:
    assert ended.status == 0, ended
    assert "the end" in ended.out
    assert "Error" not in ended.err


@job("by an exception")
def test_library_shuts_down_after_an_exception(ended: Ended) -> None:
    assert ended.status == 3, ended
    assert "the end" not in ended.out
    assert "Error" not in ended.err


@job("a rank stops")
def test_a_rank_that_stops_in_the_start_is_named(ended: Ended) -> None:
    """NVSHMEM itself waits for it for ever."""
    expected = f"PeerTimeout init_nvshmem: start NVSHMEM: rank 1 of 2 did not arrive within {LATE:g} s"
    assert expected in ended.out, ended
    assert ended.seconds > LATE


@job("a rank dies")
def test_a_rank_that_dies_in_the_start_ends_the_job(ended: Ended) -> None:
    """The launcher ends the others, long before the deadline."""
    assert ended.status, ended
    assert ended.seconds < 4 * LATE


@job("a rank fails")
def test_an_error_of_one_rank_in_the_start_is_that_of_all(ended: Ended) -> None:
    """NVSHMEM keeps the others waiting, but pblas does not."""
    for rank in range(2):
        assert f"rank {rank} after" in ended.out, ended
    assert ended.out.count("BackendError NVSHMEM: it did not start: no such device") == 2, ended
    assert ended.seconds < 4 * LATE


@job("uneven sharing")
def test_uneven_sharing_is_refused_before_the_start(ended: Ended) -> None:
    """NVSHMEM itself would wait for ever."""
    assert ended.out.count("BackendError ranks share GPUs unevenly") == 3, ended
    assert ended.seconds < 4 * LATE
