"""NVSHMEM's life on several ranks, with a fake library: an error on one rank is raised by all; it stops once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from mpi4py import MPI

import pblas
from pblas import BackendError, WorkspaceError
from pblas.backends.agreement import Agreement
from pblas.backends.cuda import device as gpu
from pblas.backends.gpu_info import Gpu, Platform
from pblas.backends.mpi import world
from pblas.backends.mpi.transport import MpiTransport
from pblas.backends.nvshmem import settings, startup
from pblas.backends.nvshmem.heap import Heap
from pblas.backends.nvshmem.startup import Nvshmem, join, running
from pblas.backends.nvshmem.startup import start as start_over
from tests.common.ranks import (
    COMM,
    outcome_of,
    outcome_with_late_rank,
    raises_on_all_ranks,
    same_on_all_ranks,
    some_wrong,
    waits,
)

pytestmark = pytest.mark.mpi

SLAB = 64 << 20
SHORT = 1.0
GPU = Gpu(0, "a GPU", "", (9, 0), 1 << 40, 132, 13000, 13000, True, True, True)


@dataclass
class Library:
    """NVSHMEM as it would be on this rank."""

    pes: list[int] = field(default_factory=list)  # ranks of the job that have a PE, in order
    status: int = 0
    full: bool = False
    unreachable: frozenset[int] = frozenset()
    allocated: int = 0
    ended: int = 0

    def my_pe(self) -> int:
        return self.pes.index(COMM.rank)

    def n_pes(self) -> int:
        return len(self.pes)

    def init_status(self) -> int:
        return self.status

    def malloc(self, nbytes: int) -> int:
        self.allocated += 1
        return 0 if self.full else (COMM.rank + 1 << 40) + (self.allocated << 36) + nbytes * 0

    def ptr(self, address: int, pe: int) -> int:
        return 0 if pe in self.unreachable else address + (self.pes[pe] - COMM.rank << 40)

    def start(self, agreement: Agreement, _device: Gpu) -> None:
        self.pes, self.status = agreement.gather(COMM.rank, "start"), 2

    def end(self) -> None:
        self.ended, self.status = self.ended + 1, 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """A library and a GPU of its own for every rank."""
    fake = Library()
    device = replace(GPU, uuid=f"GPU-{COMM.rank:08x}-0000")
    replacements: list[tuple[Any, str, Any]] = [
        (startup, "_bindings", lambda: fake),
        (startup, "_is_initialised", lambda: fake.status >= 2),
        (startup, "_initialise", fake.start),
        (startup, "_finalize", fake.end),
        (startup, "_version", lambda: "3.4.5"),
        (startup, "_current_device", lambda: 0),
        (world, "before_finalize", lambda _: None),
        (gpu, "probe", lambda: Platform("14.2.0", driver=13000, runtime=13000, count=1)),
        (gpu, "query", lambda _: device),
        (gpu, "activate", lambda _: None),
        (gpu, "free_nbytes", lambda: 1 << 40),
    ]
    for module, name, value in replacements:
        monkeypatch.setattr(module, name, value)
    for name in ("PBLAS_SYMMETRIC_SIZE", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", *settings.environment(1, one_node=True)):
        monkeypatch.delenv(name, raising=False)
    yield fake
    library = running()
    if library is not None:
        library.stop()
    for name in settings.environment(1, one_node=True):  # the variables that a start has set
        os.environ.pop(name, None)


def start(
    comm: MPI.Intracomm = MPI.COMM_WORLD, nbytes: int | None = None, device: int | None = None, timeout: float = 120.0
) -> Nvshmem:
    return start_over(MpiTransport(comm), nbytes, device, timeout=timeout)


def exchange_over(color: int, timeout: float = 20.0) -> Agreement:
    part = COMM.Split(color, COMM.rank)
    assert isinstance(part, MPI.Intracomm)
    return Agreement(MpiTransport(part), timeout)


def give_back(agreement: Agreement) -> None:
    agreement.close()
    agreement.peers.close()


def test_library_starts_once_and_stops_once(library: Library) -> None:
    pblas.init_nvshmem(nbytes=SLAB)
    started = running()
    assert started is not None
    assert (started.pe, started.npes, started.nbytes, started.version) == (COMM.rank, COMM.size, SLAB, "3.4.5")
    assert start() is started
    assert start(nbytes=SLAB, device=0) is started
    raises_on_all_ranks(BackendError, f"with {SLAB} bytes", partial(start, nbytes=2 * SLAB))
    raises_on_all_ranks(BackendError, "device=1 was requested", partial(start, device=1))
    started.stop()
    started.stop()
    assert library.ended == 1
    assert running() is None
    assert os.environ["NVSHMEM_DISABLE_NVLS"] == "1"
    assert start(nbytes=SLAB) is not started


@pytest.mark.mpi(min_size=2)
def test_settings_that_a_running_library_refuses_on_one_rank_are_refused_by_all(library: Library) -> None:
    started = start(nbytes=SLAB)
    wishes: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (BackendError, f"but {2 * SLAB} were requested", {"nbytes": 2 * SLAB}),
        (BackendError, "device=1 was requested", {"device": 1}),
        (pblas.ArgumentError, "nbytes must be", {"nbytes": 0}),
    ]
    for kind, text, wish in wishes:
        for wrong in some_wrong():
            raises_on_all_ranks(kind, text, partial(pblas.init_nvshmem, **(wish if COMM.rank in wrong else {})))
    assert running() is started
    assert library.allocated == 1


def test_heap_size_is_that_of_the_variable(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PBLAS_SYMMETRIC_SIZE", "96M")
    assert start().nbytes == 96 << 20
    assert library.allocated == 1


def fail(_: Gpu) -> None:
    raise OSError("libcuda.so.1: not today")


NO_SIGNALS = replace(GPU, uuid=str(COMM.rank), stream_memops=False)
# Hardware and libraries of a rank, the exception, and a part of its text.
LACKS: dict[str, tuple[Callable[[Library, pytest.MonkeyPatch], None], type[Exception], str]] = {
    "no CuPy": (
        lambda _, patch: patch.setattr(gpu, "probe", lambda: Platform(lack="No module named 'cupy'")),
        *(BackendError, "backend 'nvshmem' is not available: No module named 'cupy'. pip install"),
    ),
    "no memory": (lambda _, p: p.setattr(gpu, "free_nbytes", lambda: 1 << 20), WorkspaceError, "1048576 are free"),
    "a full heap": (lambda x, p: p.setattr(x, "full", True), WorkspaceError, f"PBLAS_SYMMETRIC_SIZE={1 << 30}"),
    "no signals": (
        *(lambda _, p: p.setattr(gpu, "query", lambda _: NO_SIGNALS), BackendError, "no stream memory operations"),
    ),
    "another size": (
        *(lambda _, p: p.setenv("PBLAS_SYMMETRIC_SIZE", "32M"), pblas.MismatchError, "nbytes differs between ranks"),
    ),
    "no size": (lambda _, p: p.setenv("PBLAS_SYMMETRIC_SIZE", "x"), BackendError, "must be a number of bytes"),
    "a broken driver": (lambda _, p: p.setattr(gpu, "activate", fail), BackendError, "not today"),
}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", LACKS)
def test_an_error_of_one_rank_is_raised_by_all_and_the_library_can_start_later(name: str, library: Library) -> None:
    lack, kind, text = LACKS[name]
    for wrong in some_wrong():
        with pytest.MonkeyPatch.context() as patch:
            if COMM.rank in wrong:
                lack(library, patch)
            raises_on_all_ranks(kind, text, start)
        assert running() is None
        assert library.status == 0, "what was started is ended"
        assert "NVSHMEM_SYMMETRIC_SIZE" not in os.environ, "a second start may ask for more"
    assert start().npes == COMM.size


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("name", "value"), [("nbytes", 1e9), ("nbytes", 0), ("device", "0"), ("timeout", "soon")])
def test_invalid_arguments_are_refused_on_every_rank_before_anything_starts(
    library: Library, name: str, value: Any
) -> None:
    for wrong in some_wrong():
        call = partial(pblas.init_nvshmem, **({name: value} if COMM.rank in wrong else {}))
        raises_on_all_ranks(pblas.ArgumentError, f"init_nvshmem: {name} must be", call)
    nothing: Any = 3
    raises_on_all_ranks(pblas.ArgumentError, "init_nvshmem: comm must be None or", partial(pblas.init_nvshmem, nothing))
    assert library.status == 0
    pblas.init_nvshmem()
    raises_on_all_ranks(
        pblas.ArgumentError, f"init_nvshmem: {name} must be", partial(pblas.init_nvshmem, **{name: value})
    )


@pytest.mark.mpi(min_size=2)
def test_two_ranks_on_one_gpu_are_reported(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "query", lambda _: replace(GPU, uuid=f"GPU-{COMM.rank // 2:08x}-0000"))
    raises_on_all_ranks(BackendError, "ranks 0 and 1 both use GPU GPU-00000000", start)
    assert library.allocated == 0


def test_a_library_started_by_the_program_is_used_and_left_running(library: Library) -> None:
    library.pes, library.status = list(range(COMM.size)), 2
    started = start(nbytes=SLAB)
    assert not started.ours
    started.stop()
    assert (library.ended, library.status) == (0, 2)


@pytest.mark.mpi(min_size=2)
def test_a_communicator_without_all_pes_is_refused(library: Library) -> None:
    library.pes, library.status = list(range(COMM.size)), 2
    part = COMM.Split(COMM.rank)
    assert isinstance(part, MPI.Intracomm)
    name, text = outcome_of(partial(start, part))
    assert name == "BackendError"
    assert f"with {COMM.size} PEs before, the communicator has 1 rank" in text
    part.Free()


@waits
def test_a_missing_rank_is_named(library: Library) -> None:
    late = COMM.size - 1
    own = COMM.Dup()
    everywhere = COMM.allgather(outcome_with_late_rank(late, lambda: start(own, timeout=SHORT)))
    assert len(set(everywhere)) == 1, everywhere
    name, text = everywhere[0]
    assert name == "PeerTimeout"
    assert f"rank {late} of {COMM.size} did not arrive" in text
    assert "pblas.init_nvshmem(comm)" in text
    assert library.allocated == 0


# Contexts


def test_contexts_over_parts_of_the_job_start_it_over_all_of_it(library: Library) -> None:
    agreement = exchange_over(COMM.rank % 2)
    nvshmem, pes = join(agreement)
    assert nvshmem.npes == COMM.size
    assert pes == tuple(range(COMM.rank % 2, COMM.size, 2))
    heap = Heap(agreement, nvshmem, pes)
    block = heap.allocate(1000)
    addresses = agreement.gather(block.address, "addresses")
    assert [heap.peer_address(block, rank) for rank in range(agreement.size)] == addresses
    everyone = exchange_over(0)
    whole = Heap(everyone, *join(everyone))
    large = whole.allocate(2 << 30)  # more than the slab: a context over all ranks adds memory
    assert same_on_all_ranks(nvshmem.nbytes) >= 3 << 30
    assert library.allocated == 2
    assert (large.window, large.offset) == same_on_all_ranks((large.window, large.offset))
    whole.close()
    heap.close()
    give_back(everyone)
    give_back(agreement)


@pytest.mark.mpi(min_size=2)
def test_a_context_needs_nvshmem_on_every_rank(library: Library) -> None:
    part = COMM.Split(COMM.rank % 2)
    assert isinstance(part, MPI.Intracomm)
    if COMM.rank % 2:
        start(part, SLAB)
    agreement = exchange_over(0)
    raises_on_all_ranks(BackendError, "runs on some ranks of the context only", lambda: join(agreement))
    raises_on_all_ranks(BackendError, "runs on some ranks of the communicator only", start)
    assert library.allocated == COMM.rank % 2
    give_back(agreement)
    started = running()
    if started is not None:
        started.stop()
    part.Free()


@pytest.mark.mpi(min_size=2)
def test_gpus_without_peer_access_are_reported(library: Library) -> None:
    start(nbytes=SLAB)
    for wrong in some_wrong():
        library.unreachable = frozenset({(COMM.rank + 1) % COMM.size}) if COMM.rank in wrong else frozenset()
        agreement = exchange_over(0)
        first = (min(wrong) + 1) % COMM.size
        raises_on_all_ranks(BackendError, f"does not reach the memory of rank {first}'s GPU", lambda: join(agreement))  # noqa: B023
        give_back(agreement)


@pytest.mark.mpi(min_size=2)
def test_another_gpu_than_the_one_it_runs_on_is_refused_on_all(library: Library) -> None:
    start(nbytes=SLAB)
    for wrong in some_wrong():
        agreement = exchange_over(0)
        device = 1 if COMM.rank in wrong else None
        raises_on_all_ranks(BackendError, "device=1 was requested", lambda: join(agreement, device))  # noqa: B023
        give_back(agreement)
    assert library.allocated == 1


def test_memory_that_a_gpu_has_not_is_refused_on_all(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    agreement = exchange_over(0)
    heap = Heap(agreement, *join(agreement))
    if COMM.rank == COMM.size - 1:
        monkeypatch.setattr(gpu, "free_nbytes", lambda: 1 << 30)
    raises_on_all_ranks(WorkspaceError, "1073741824 are free", partial(heap.allocate, 4 << 30))
    assert library.allocated == 1
    block = heap.allocate(1 << 20)
    assert heap.locate(block.address) == same_on_all_ranks((0, block.offset))
    give_back(agreement)


@pytest.mark.mpi(min_size=2)
def test_a_failed_gpu_is_left_alone(library: Library) -> None:
    started = start(nbytes=SLAB)
    if COMM.rank == 0:
        started.abandon("a kernel trapped")
    started.stop()
    assert library.ended == 0
    assert running() is None
    library.status = 0
