"""The start of NVSHMEM with settings of the user; without it, the first context over GPUs starts NVSHMEM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas.backends.select import start_nvshmem
from pblas.backends.settings import TIMEOUT

if TYPE_CHECKING:
    from mpi4py import MPI
    from torch.distributed import ProcessGroup


def init_nvshmem(
    comm: MPI.Intracomm | None = None,
    nbytes: int | None = None,
    device: int | None = None,
    *,
    timeout: float = TIMEOUT,
    process_group: ProcessGroup | None = None,
) -> None:
    """**Collective.** Start NVSHMEM, once per process and before the first context; it ends with the process.

    An error of one rank is raised on all ranks. The call does nothing if NVSHMEM already runs on the same GPU
    with at least as much symmetric memory.

    Without this call the first context over GPUs starts NVSHMEM over COMM_WORLD, or over the default group of
    torch.distributed, so all ranks have to create that context. If the program has started NVSHMEM itself, pblas uses
    it, and the program has to end it.

    Args:
        comm: the ranks that get a GPU and may multiply together; None for COMM_WORLD (global).
        nbytes: symmetric memory per rank, bytes, shared by all contexts; None for the environment variable
            PBLAS_SYMMETRIC_SIZE, or 1 GiB (global).
        device: this rank's GPU; None for its rank on the node modulo the number of visible GPUs (local).
        timeout: seconds that a rank waits for another before all raise PeerTimeout (global).
        process_group: in place of `comm`, a torch.distributed group, as for `Context` (global).

    Raises:
        ArgumentError: an invalid communicator, group, size, GPU or number of seconds.
        BackendError: GPUs, drivers or libraries that are missing or cannot be used, with the remedy; or NVSHMEM already
            runs with less memory, on another GPU, or on some ranks only.
        MismatchError: sizes that differ between ranks.
        WorkspaceError: a GPU has too little memory.
        PeerTimeout: a rank does not arrive in time.

    Example::

        pblas.init_nvshmem(nbytes=8 << 30)  # 8 GiB on each GPU
        with pblas.Context(backend="nvshmem") as ctx:
            ...
    """
    start_nvshmem(comm, process_group, nbytes, device, timeout=timeout)
