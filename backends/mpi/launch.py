"""The launcher of this process: match with the MPI library, ranks per node, end of the job after an error."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import TracebackType

from mpi4py import MPI

from pblas.errors import BackendError

# Launchers' variables with the number of ranks that they started, and of those on this node.
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_LOCAL_SIZES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "SLURM_TASKS_PER_NODE")

_FORWARDING_SECONDS = 0.2
"""Time for the launcher to forward a traceback: without it, MPICH's launcher loses the last line."""


def check_launcher() -> None:
    """Reject a job whose launcher started several processes that MPI sees as jobs of one rank each.

    Raises:
        BackendError: the launcher belongs to another MPI, or starts no ranks of MPI, as torchrun.
    """
    processes = os.environ.get("WORLD_SIZE", "1")
    of_torch = "RANK" in os.environ and "LOCAL_RANK" in os.environ  # WORLD_SIZE alone may be anybody's
    if of_torch and processes.isdigit() and int(processes) > 1 and MPI.COMM_WORLD.Get_size() == 1:
        raise BackendError(
            f"the launcher started {processes} processes (WORLD_SIZE={processes}), but MPI sees {processes} jobs of "
            f"one rank each: torchrun and launchers like it start no ranks of MPI. Start with "
            f"mpiexec -n {processes} python -m mpi4py script.py"
        )
    for name in _SIZES:
        size = os.environ.get(name, "1")
        if size.isdigit() and int(size) > 1 and MPI.COMM_WORLD.Get_size() == 1:
            library = MPI.Get_library_version().partition("\n")[0].strip("\0 ")
            raise BackendError(
                f"the launcher started {size} ranks ({name}={size}), but MPI sees {size} jobs of one rank each: "
                f"mpiexec and the MPI library of mpi4py ({library}) do not belong together. Start with the mpiexec of "
                f"that library: {Path(sys.executable).parent / 'mpiexec'} if it came with pip"
            )


def local_size(default: int) -> int:
    """Ranks of the whole job on this node according to the launcher, at least `default`."""
    for name in _LOCAL_SIZES:
        size = os.environ.get(name, "").partition("(")[0].partition(",")[0]
        if size.isdigit():
            return max(int(size), default)
    return default


def end_job_on_uncaught_exception() -> None:
    """Make an uncaught exception on one rank end the whole job, also without `-m mpi4py`."""
    previous = sys.excepthook
    if getattr(previous, "ends_job", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        previous(kind, error, trace)
        sys.stdout.flush()
        sys.stderr.flush()
        if MPI.Is_initialized() and not MPI.Is_finalized() and MPI.COMM_WORLD.Get_size() > 1:
            time.sleep(_FORWARDING_SECONDS)
            MPI.COMM_WORLD.Abort(1)

    hook.ends_job = True  # type: ignore[attr-defined]
    sys.excepthook = hook
