"""Rendezvous before context creation: checks of the communicator and the launcher, and arrival of all ranks."""

from __future__ import annotations

from mpi4py import MPI

from pblas import errors
from pblas.backends import agreement
from pblas.backends.local_step import AgreedError
from pblas.backends.mpi.launch import check_launcher, end_job_on_uncaught_exception
from pblas.backends.mpi.transport import MpiTransport
from pblas.backends.mpi.world import world


def peers_of(comm: MPI.Intracomm | None, operation: str) -> MpiTransport:
    """The ranks of a communicator; sends no message (local)."""
    candidate: object = comm
    if candidate is not None and (not isinstance(candidate, MPI.Intracomm) or candidate == MPI.COMM_NULL):
        name = (
            "COMM_NULL" if isinstance(candidate, MPI.Comm) and candidate == MPI.COMM_NULL else type(candidate).__name__
        )
        raise errors.ArgumentError(
            f"{operation}: comm must be None or an intracommunicator of mpi4py that this rank is in, got {name}"
        )
    running = world(comm)
    check_launcher()
    end_job_on_uncaught_exception()
    return MpiTransport(running)


def rendezvous(
    comm: MPI.Intracomm | None, call: str, timeout: float, error: AgreedError | None = None
) -> agreement.Agreed:
    """**Collective.** Return when all ranks of a communicator make the same call, or raise one exception on all.

    The ranks need no context. Like `pblas.backends.agreement.rendezvous`, which it calls, it waits with a deadline.
    """
    return agreement.rendezvous(peers_of(comm, call.partition("\n")[0]), call, timeout, error)
