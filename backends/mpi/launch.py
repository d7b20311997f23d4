"""The launcher of this process: match with the MPI library, ranks per node, end of the job after an error."""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path
from types import TracebackType

from mpi4py import MPI

from pblas.backends.local_step import is_agreed, turn_of
from pblas.errors import BackendError

# Launchers' variables with the number of ranks that they started, and of those on this node.
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_LOCAL_SIZES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "SLURM_TASKS_PER_NODE")

_FORWARDING_SECONDS = 0.2
"""Time for the launcher to forward a traceback: without it, MPICH's launcher loses the last line."""
_LINES_SECONDS = 0.5  # the same after an error of all ranks, when every rank prints a line
_PATIENCE_SECONDS, _TURN_SECONDS, _MAX_TURNS = 2.0, 1.0, 8
"""Time in which a rank expects another one to print the traceback of an error of all ranks, and to end the job."""


def check_launcher() -> None:
    """Reject a job whose launcher started several processes that MPI sees as jobs of one rank each."""
    processes = os.environ.get("WORLD_SIZE", "1")
    of_torch = "RANK" in os.environ and "LOCAL_RANK" in os.environ  # other programs set WORLD_SIZE too
    if of_torch and processes.isdigit() and int(processes) > 1 and MPI.COMM_WORLD.Get_size() == 1:
        raise BackendError(
            f"the launcher started {processes} processes (WORLD_SIZE={processes}), but MPI sees {processes} jobs of "
            f"one rank each: torchrun and launchers like it start no ranks of MPI. Start with "
            f"mpiexec -n {processes} python -m mpi4py script.py; or call "
            f"torch.distributed.init_process_group('gloo'), with GPUs 'cpu:gloo,cuda:nccl', and pass "
            f"Context(process_group=torch.distributed.group.WORLD)"
        )
    for name in _SIZES:
        size = os.environ.get(name, "1")
        if size.isdigit() and int(size) > 1 and MPI.COMM_WORLD.Get_size() == 1:
            library = MPI.Get_library_version().partition("\n")[0].strip("\0 ")
            own = Path(sys.executable).parent / "mpiexec"
            remedy = f"Start with {own}" if own.exists() else "Start with the mpiexec of that library"
            if name.startswith("SLURM"):
                remedy += ", or with srun --mpi=pmi2 for MPICH, srun --mpi=pmix for Open MPI"
            raise BackendError(
                f"the launcher started {size} ranks ({name}={size}), but MPI sees {size} jobs of one rank each: "
                f"mpiexec and the MPI library of mpi4py ({library}) do not belong together. {remedy}"
            )


def local_size(default: int) -> int:
    """Ranks of the whole job on this node according to the launcher, at least `default`."""
    for name in _LOCAL_SIZES:
        size = os.environ.get(name, "").partition("(")[0].partition(",")[0]
        if size.isdigit():
            return max(int(size), default)
    return default


def end_job_on_uncaught_exception() -> None:
    """Make an uncaught exception on one rank end the whole job, also without `-m mpi4py`.

    An exception that the ranks have agreed on prints one traceback: that of the rank that found the error, or of the
    lowest rank. The other ranks print a line and wait for the end of the job. If it does not come, because that rank
    has caught the exception, the next one prints its traceback. Nothing is left out if the program has installed an
    `excepthook` of its own, which gets every exception.
    """
    previous = sys.excepthook
    if getattr(previous, "ends_job", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if (
            isinstance(sys.stderr, io.StringIO) and sys.__stderr__ is not None
        ):  # of torch's hook, which would print it after the end of the job
            sys.stderr = sys.__stderr__
        is_everywhere = is_agreed(error) and previous is sys.__excepthook__ and MPI.COMM_WORLD.Get_size() > 1
        if is_everywhere and turn_of(error) > 0:
            print(f"rank {MPI.COMM_WORLD.Get_rank()}: {kind.__name__}, as on all ranks", file=sys.stderr, flush=True)
            time.sleep(_PATIENCE_SECONDS + _TURN_SECONDS * min(turn_of(error), _MAX_TURNS))
        previous(kind, error, trace)
        sys.stdout.flush()
        sys.stderr.flush()
        if MPI.Is_initialized() and not MPI.Is_finalized() and MPI.COMM_WORLD.Get_size() > 1:
            time.sleep(_LINES_SECONDS if is_everywhere else _FORWARDING_SECONDS)
            MPI.COMM_WORLD.Abort(1)

    hook.ends_job = True  # type: ignore[attr-defined]
    sys.excepthook = hook
