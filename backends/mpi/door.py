"""The door of a context: every rank is there and wants the same, before anything that cannot time out."""

from __future__ import annotations

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
        BackendError: a launcher that does not belong to the MPI library.
        PeerTimeout: a rank of `comm` does not arrive.
        MismatchError: settings that differ.
    """
    check_launcher()
    end_job_on_uncaught_exception()
    door = Exchange(MPI.COMM_WORLD if comm is None else comm, timeout, crowded=False)
    try:
        return door.agree(call, error, maxima=maxima)
    finally:
        door.close()
