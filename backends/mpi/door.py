"""The door of a context: every rank is there and wants the same, before anything that cannot time out."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from pblas import errors
from pblas.backends.mpi.exchange import MAXIMA, Agreed, Exchange
from pblas.backends.mpi.launch import check_launcher, end_job_on_uncaught_exception


def arrive(
    comm: MPI.Intracomm | None,
    call: str,
    timeout: float,
    error: errors.PblasError | None = None,
    maxima: tuple[int, ...] = (0,) * MAXIMA,
) -> Agreed:
    """**Collective.** Return when every rank of `comm` makes the same call, or raise the same exception on all.

    Args:
        comm: an mpi4py intracommunicator; None for COMM_WORLD (global).
        call: the verb, then one line "name=value" for each setting that must be equal (global).
        timeout: seconds that a rank waits for another (global).
        error: what this rank found wrong (local).
        maxima: integers of which the largest over all ranks is returned (local).

    Raises:
        ArgumentError: `comm` is no intracommunicator (local).
        BackendError: a launcher that does not belong to the MPI library.
        PeerTimeout: a rank of `comm` does not arrive.
        MismatchError: settings that differ.
    """
    given: Any = comm
    if given is not None and (not isinstance(given, MPI.Intracomm) or given == MPI.COMM_NULL):
        verb = call.partition("\n")[0]
        name = "COMM_NULL" if isinstance(given, MPI.Comm) and given == MPI.COMM_NULL else type(given).__name__
        raise errors.ArgumentError(
            f"{verb}: comm must be None or an intracommunicator of mpi4py that this rank is in, got {name}"
        )
    check_launcher()
    end_job_on_uncaught_exception()
    door = Exchange(MPI.COMM_WORLD if comm is None else comm, timeout, crowded=False)
    try:
        return door.agree(call, error, maxima=maxima)
    finally:
        door.close()
