"""Whole jobs that fail: they end with an error within seconds, and leave no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MPIEXEC = os.environ.get("MPIEXEC") or str(Path(sys.executable).parent / "mpiexec")
SECONDS = 60  # far more than a job takes, far less than waiting for ever
# Uncaught exceptions and sys.exit end a job in ways of their own in each form; all else is tested in one of the two.
FORMS = {"plain": [], "mpi4py": ["-m", "mpi4py"]}
RANKS = 3

PREAMBLE = """
import os, pathlib, re, signal, sys, time
import numpy as np
import pblas
from pblas import MatrixDescriptor

def product(ctx):
    a = ctx.random(MatrixDescriptor.row_wise(12, 12, ctx.nprocs))
    product, whole = (a @ a).to_global(None), a.to_global(None)
    assert np.allclose(product, whole @ whole)
    return a

ctx = pblas.Context(timeout=TIMEOUT)
pathlib.Path(f"pid.{ctx.rank}").write_text(str(os.getpid()))
mapped = pathlib.Path("/proc/self/maps").read_text()
pathlib.Path(f"memory.{ctx.rank}").write_text("\\n".join(re.findall(r"/dev/shm/\\S+", mapped)))
product(ctx)
"""


@dataclass(frozen=True)
class Ended:
    status: int
    output: str
    left: list[int]
    """Ranks' processes that are still running."""


def environment(**more: str) -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths), **more}


def run(command: list[str], folder: Path, **more: str) -> Ended:
    """Run a job to its end; a job that hangs fails the test."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, _ = process.communicate(timeout=10)
        pytest.fail(f"the job hangs; its output:\n{output}")
    pids = [int(path.read_text()) for path in folder.glob("pid.*")]
    end = time.monotonic() + 5
    while any(map(runs, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    left = [pid for pid in pids if runs(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    used = {name for path in folder.glob("memory.*") for name in path.read_text().split()}
    assert [name for name in used if Path(name).exists()] == [], "shared memory stays"
    return Ended(process.returncode, output, left)


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def job(folder: Path, body: str, form: str, *, timeout: float = 30.0) -> Ended:
    script = folder / "script.py"
    script.write_text(PREAMBLE.replace("TIMEOUT", str(timeout)) + body)
    return run([MPIEXEC, "-n", str(RANKS), sys.executable, *FORMS[form], str(script)], folder)


@pytest.mark.parametrize("form", FORMS)
def test_a_successful_job_ends_with_status_zero_and_no_output(tmp_path: Path, form: str) -> None:
    ended = job(tmp_path, "ctx.close()\n", form)
    assert (ended.status, ended.output, ended.left) == (0, "", [])
    assert len(list(tmp_path.glob("pid.*"))) == RANKS


RAISE = "raise KeyError('on purpose')"
WITH = "with ctx:\n    "
EXIT = WITH + "if ctx.rank == 1: sys.exit(3)\n    product(ctx)"
HELD = "is still in use after the context was closed"
SOME = -1
# How it is started, its program, whether its status is 0, and how often it prints some texts.
JOBS: dict[str, tuple[str, str, bool, dict[str, int]]] = {
    "exception on the first rank": ("mpi4py", f"if ctx.rank == 0: {RAISE}\nproduct(ctx)", False, {"on purpose": SOME}),
    "exception on the last rank": ("plain", f"if ctx.rank == 2: {RAISE}\nproduct(ctx)", False, {"on purpose": SOME}),
    "exception in the with block": (
        "plain",
        WITH + f"if ctx.rank == 1: {RAISE}\n    product(ctx)",
        False,
        {"on purpose": SOME},
    ),
    "exception on its way out with an array": (
        "plain",
        WITH + f"x = product(ctx).local\n    {RAISE}",
        False,
        {"on purpose": SOME, "Warning": 0},
    ),
    "sys.exit": ("plain", EXIT, False, {}),
    "sys.exit under mpi4py": ("mpi4py", EXIT, False, {}),
    "killed rank": ("plain", "if ctx.rank == 1: os.kill(os.getpid(), signal.SIGKILL)\nproduct(ctx)", False, {}),
    "context that was never closed": ("mpi4py", "", True, {"was never closed": RANKS}),
    "array that outlives the job": (
        "plain",
        WITH + "x = product(ctx).local\nx[...] = 1",
        True,
        {HELD: RANKS, "script.py:": SOME},
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_failing_job_ends_and_names_the_reason(tmp_path: Path, name: str) -> None:
    form, body, goes_well, texts = JOBS[name]
    ended = job(tmp_path, body, form)
    assert (ended.status == 0) == goes_well
    for text, count in texts.items():
        assert ended.output.count(text) == count or (count == SOME and text in ended.output)
    assert ended.left == []


def test_a_hanging_rank_ends_the_job_at_the_timeout(tmp_path: Path) -> None:
    ended = job(tmp_path, "if ctx.rank == 1: time.sleep(1000)\nproduct(ctx)", "mpi4py", timeout=1.0)
    assert ended.status != 0
    assert "PeerTimeout" in ended.output
    assert "rank 1 of 3 did not arrive within 1 s" in ended.output
    assert ended.left == []


@pytest.mark.parametrize("variable", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"])
def test_the_launcher_of_another_mpi_is_rejected_with_the_remedy(tmp_path: Path, variable: str) -> None:
    script = tmp_path / "script.py"
    # Set after MPI has started: MPI itself would read some of them.
    script.write_text(
        "import os\nfrom mpi4py import MPI\nimport pblas\n"
        f"os.environ['{variable}'] = '4'\n"
        "try:\n    pblas.Context()\nexcept pblas.BackendError as error:\n    print(error)\n"
    )
    ended = run([sys.executable, str(script)], tmp_path)
    assert ended.status == 0, ended.output
    for part in (f"{variable}=4", "4 jobs of one rank each", "do not belong together", "mpiexec"):
        assert part in ended.output


def test_torchrun_is_rejected_with_the_remedy(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nimport pblas\n"
        "os.environ['WORLD_SIZE'] = '4'\n"
        "pblas.Context().close()  # anybody's variable\n"
        "os.environ |= {'RANK': '1', 'LOCAL_RANK': '1'}\n"
        "try:\n    pblas.Context()\nexcept pblas.BackendError as error:\n    print(error)\n"
    )
    ended = run([sys.executable, str(script)], tmp_path)
    assert ended.status == 0, ended.output
    for part in ("WORLD_SIZE=4", "4 jobs of one rank each", "torchrun", "mpiexec -n 4 python"):
        assert part in ended.output


SMALL = """
import os, pathlib, sys
from mpi4py import MPI
import numpy as np
import pblas
from pblas import MatrixDescriptor

comm = MPI.COMM_WORLD
def tell(text):
    lines = comm.allgather(text)
    if comm.rank == 0:
        print(*lines, sep="\\n", flush=True)

free = os.statvfs("/dev/shm")
n = int((2 * free.f_bavail * free.f_frsize / 8 / 3) ** 0.5) + 600
desc = MatrixDescriptor.row_wise(n, n, comm.size)
try:
    with pblas.Context(timeout=30, transport="shared") as ctx:
        ctx.zeros(desc)
        ctx.zeros(desc)
        ctx.zeros(desc)
        tell("nothing was refused")
except pblas.WorkspaceError as error:
    tell(f"WorkspaceError: {error}")
with pblas.Context(timeout=30) as ctx:
    a = ctx.random(desc)
    b = ctx.random(MatrixDescriptor.row_wise(n, 2, comm.size), seed=1)
    whole = a.to_global()
    d, right = (a @ b).to_global(), b.to_global()
    kept = [ctx.zeros(desc) for _ in range(3)]
    assert all(not x.local.any() for x in kept)
    tell("right" if ctx.rank or np.allclose(d, whole @ right) else "wrong")
    del kept
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps shared windows in a file system")
def test_too_little_shared_memory_is_the_same_error_on_all_ranks_or_none(tmp_path: Path) -> None:
    mount = "mount -t tmpfs -o size=48m tmpfs /dev/shm"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("mounting a small /dev/shm is not permitted here (needs root)")
    script = tmp_path / "script.py"
    script.write_text(SMALL)
    inner = f"{mount} && exec {MPIEXEC} -n {RANKS} {sys.executable} -m mpi4py {script}"
    ended = run(["unshare", "-m", "sh", "-c", inner], tmp_path)
    assert ended.status == 0, ended.output
    lines = ended.output.splitlines()
    assert len(lines) == 2 * RANKS, ended.output
    refusals, verdicts = lines[:RANKS], lines[RANKS:]
    assert len(set(refusals)) == 1, "every rank says the same"
    for part in ("WorkspaceError: ", "/dev/shm", "--shm-size", "transport='message'", "found on rank"):
        assert part in refusals[0]
    assert verdicts == ["right"] * RANKS


ERRORS = {
    "wrong on all ranks": ("pblas.pmatmul(a, ctx.zeros((5, 5)))", "DescriptorError: ", 0),
    "wrong on the last rank": ("pblas.pmatmul(a, a, alpha=1.0 if ctx.rank < 2 else 'x')", "ArgumentError: ", 2),
    "different on one rank": ("pblas.pmatmul(a, a, alpha=1.0 + (ctx.rank == 1))", "MismatchError: ", 0),
    "in a class of the user": ("a.save(Broken())", "PblasError: save: ZeroDivisionError", 1),
}
BROKEN = """
class Broken:
    def __fspath__(self):
        return f"{1 / (ctx.rank - 1)}.npy"

a = ctx.random(MatrixDescriptor.row_wise(12, 12, ctx.nprocs))
"""
TRACEBACK = "Traceback (most recent call last):"


@pytest.mark.parametrize(("name", "form"), [(name, list(FORMS)[i % 2]) for i, name in enumerate(ERRORS)])
def test_an_error_of_all_ranks_prints_one_traceback(tmp_path: Path, form: str, name: str) -> None:
    call, text, printer = ERRORS[name]
    ended = job(tmp_path, f"{BROKEN}print(f'I am {{ctx.rank}}', flush=True)\nwith ctx:\n    {call}\n", form)
    assert ended.status != 0
    assert ended.left == []
    chained = text.startswith("PblasError")  # the traceback of its cause comes first
    assert ended.output.count(TRACEBACK) == 1 + chained
    assert ended.output.count(text) == 1
    assert ended.output.count("in __fspath__") == chained
    lines = [f"rank {rank}: {text.partition(':')[0]}, as on all ranks" for rank in range(RANKS)]
    assert lines[printer] not in ended.output
    assert all(ended.output.count(line) == 1 for rank, line in enumerate(lines) if rank != printer)


@pytest.mark.parametrize("form", FORMS)
def test_the_traceback_is_not_lost_if_some_ranks_catch_the_error(tmp_path: Path, form: str) -> None:
    call = "pblas.pmatmul(a, ctx.zeros((5, 5)))"
    body = f"{BROKEN}try:\n    {call}\nexcept ValueError:\n    if ctx.rank != 1: product(ctx)\n    else: raise"
    ended = job(tmp_path, body, form)
    assert ended.status != 0
    assert ended.output.count(TRACEBACK) == 1
    assert ended.output.count("DescriptorError: ") == 1
    assert ended.output.count("rank 1: DescriptorError, as on all ranks") == 1


def test_a_hook_of_the_program_gets_every_error(tmp_path: Path) -> None:
    own = "def hook(kind, error, trace): print(f'MINE {kind.__name__} {trace is not None}', flush=True)\n"
    script = tmp_path / "script.py"
    before = f"import sys\n{own}sys.excepthook = hook\n"
    script.write_text(before + PREAMBLE.replace("TIMEOUT", "30") + BROKEN + "pblas.pmatmul(a, ctx.zeros((5, 5)))\n")
    ended = run([MPIEXEC, "-n", str(RANKS), sys.executable, str(script)], tmp_path)
    assert ended.status != 0
    assert 1 <= ended.output.count("MINE DescriptorError True") <= RANKS
    assert "as on all ranks" not in ended.output
    collects = (  # as torch.distributed
        "import io, sys\nfirst, real = sys.excepthook, sys.stderr\n"
        "def hook(*error): sys.stderr = io.StringIO(); first(*error); real.write(sys.stderr.getvalue())\n"
    )
    ended = job(tmp_path, f"{BROKEN}{collects}sys.excepthook = hook\npblas.pmatmul(a, ctx.zeros((5, 5)))\n", "plain")
    assert "DescriptorError: " in ended.output
    after = job(tmp_path, f"{BROKEN}{own}sys.excepthook = hook\npblas.pmatmul(a, ctx.zeros((5, 5)))\n", "plain")
    assert after.output.count("MINE DescriptorError True") == RANKS
    assert "Traceback" not in after.output


WITHOUT_MPI = """
import mpi4py
mpi4py.rc.initialize = False
import pblas
for call in (pblas.Context, lambda: pblas.scalapack.gridinit(None, "R", 1, 1), pblas.scalapack.pinfo):
    try:
        call()
    except pblas.BackendError as error:
        assert "MPI is not initialized" in str(error)
        print("refused")
"""
AFTER_MPI = """
from mpi4py import MPI
a, planned, factor = ctx.eye(4), pblas.plan_matmul(ctx.eye(4), ctx.eye(4)), pblas.linalg.lu_factor(ctx.eye(4))
MPI.Finalize()
calls = (
    lambda: a @ a,
    a.sum,
    lambda: planned.execute(a, a),
    lambda: factor.solve(np.ones(4)),
    lambda: ctx.allreduce(np.ones(3)),
    ctx.close,
    pblas.Context,
)
for call in calls:
    try:
        call()
    except (pblas.ContextError, pblas.BackendError) as error:
        assert "MPI has been finalized" in str(error)
        print("refused")
ctx.close()
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_calls_before_and_after_mpi_are_refused(tmp_path: Path, ranks: int) -> None:
    for program, count in ((WITHOUT_MPI, 3), (PREAMBLE.replace("TIMEOUT", "30") + AFTER_MPI, 7)):
        (tmp_path / "script.py").write_text(program)
        ended = run([MPIEXEC, "-n", str(ranks), sys.executable, str(tmp_path / "script.py")], tmp_path)
        # Lines of two ranks may meet.
        assert (ended.status, "".join(ended.output.split())) == (0, "refused" * count * ranks)
