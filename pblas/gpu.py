"""GPUs of a job: how NVSHMEM starts. A context over GPUs starts it by itself; call this to choose its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas.backends.select import start_nvshmem

if TYPE_CHECKING:
    from mpi4py import MPI


def init_nvshmem(
    comm: MPI.Intracomm | None = None,
    nbytes: int | None = None,
    device: int | None = None,
    *,
    timeout: float = 120.0,
) -> None:
    """**Collective.** Start NVSHMEM, once per process and before the first context; it ends with the process.

    An error of one rank is raised on all ranks of `comm`. If it runs already, as large as it has to be and on the
    same GPU, nothing is done.

    Without this call the first context over GPUs starts it over COMM_WORLD: all ranks have to make one then. If the
    program has started NVSHMEM itself, that one is used, and left for the program to end.

    Args:
        comm: ranks that get a GPU and may multiply together, the same for all of them; None for COMM_WORLD (global).
        nbytes: symmetric memory of every rank, which contexts share; None for PBLAS_SYMMETRIC_SIZE, or 1 GiB (global).
        device: this rank's GPU; None for its number on the node modulo the visible GPUs (local).
        timeout: seconds that a rank waits for another before all raise PeerTimeout (global).

    Raises:
        ArgumentError: an invalid communicator, size, GPU or number of seconds.
        BackendError: GPUs, drivers or libraries that are missing or unfit, with the remedy; NVSHMEM runs already, and
            is smaller, on another GPU, or on some ranks only.
        MismatchError: sizes that differ between ranks.
        WorkspaceError: a GPU without so much memory.
        PeerTimeout: a rank of `comm` does not arrive.
    """
    start_nvshmem(comm, nbytes, device, timeout=timeout)
