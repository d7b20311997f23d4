"""Symmetric memory: the same blocks at the same offsets on every rank, in MPI-3 shared windows of each node.

The ranks create a window collectively when the others are full, and free it collectively at the end.
`pblas.backends.allocator` assigns the memory in the windows.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from pblas import errors
from pblas.backends import allocator as blocks
from pblas.backends.agreement import BITS
from pblas.backends.allocator import Blocks, Window
from pblas.backends.local_step import LocalStep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.backends.agreement import Agreement

_MIN_WINDOW_NBYTES = 4 << 20
_MAX_GROWTH_NBYTES = 1 << 30
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.13 has the name; addresses only, no memory
_SHM = "/dev/shm"  # noqa: S108 - where Linux MPIs back shared windows; not a file of ours


class Block(blocks.Block):
    """A block in a shared window: `np.asarray(block)` is an array of bytes that keeps the block alive."""

    __slots__ = ()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}


class _SharedWindow(Window):
    """One shared window: this node's memory."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.mpi: MPI.Win | None = None

    def make(self, node: MPI.Intracomm) -> None:
        """**Collective** over the node. Allocate the memory."""
        self.mpi = MPI.Win.Allocate_shared(self.nbytes, 1, comm=node)
        self.mpi.Lock_all(MPI.MODE_NOCHECK)
        memories = [self.mpi.Shared_query(rank)[0] for rank in range(node.Get_size())]
        self.bytes = [np.asarray(memory, np.uint8) for memory in memories]
        self.address = int(self.bytes[node.Get_rank()].__array_interface__["data"][0])


class Arena(Blocks[_SharedWindow, Block]):
    """Windows of one context and the blocks in them.

    Args:
        agreement: agreement of the context's ranks (global).
        node: communicator of the ranks that share memory, freed with the windows (local to the node).
        near: numbers of the same ranks in the context, in order (local to the node).
    """

    def __init__(self, agreement: Agreement, node: MPI.Intracomm, near: Sequence[int]) -> None:
        super().__init__(Block, BITS)
        self._exchange = agreement
        self.node: MPI.Intracomm = node
        self._node_ranks = {rank: place for place, rank in enumerate(near)}

    def node_rank(self, peer: int) -> int:
        """The number of a near rank, or of this rank, in every window (local)."""
        return self._node_ranks[peer]

    def _grow(self, nbytes: int) -> _SharedWindow:
        """Create a window of at least `nbytes`, as large as all others together, so that few are needed."""
        total = sum(window.nbytes for window in self._windows)
        size = max(nbytes, _MIN_WINDOW_NBYTES, min(total, _MAX_GROWTH_NBYTES))
        size += -size % 4096
        window = _SharedWindow(size)
        with LocalStep(self._refuse, "make a window"):
            shortage = self._shortage(size)
            if shortage is not None:
                raise shortage
        self._exchange.agree(f"make a window\nbytes={size}")
        with LocalStep(self._refuse, "make a window", errors.WorkspaceError):
            window.make(self.node)
        self._exchange.agree("make a window: done")
        self._windows.append(window)
        return window

    def _refuse(self, verb: str, error: errors.PblasError) -> None:
        """**Collective.** Raise this rank's error on all ranks; a WorkspaceError then is one of shared memory."""
        if isinstance(error, errors.WorkspaceError):
            error.shared = True
        self._exchange.agree(verb, error)

    def _shortage(self, nbytes: int) -> errors.WorkspaceError | None:
        """The error if there is no room for `nbytes` per rank, in this rank's address space or in /dev/shm (local).

        Writing past the end of /dev/shm kills the process. A rank without the addresses might let the others wait.
        """
        ranks = self.node.Get_size()
        try:
            mmap.mmap(-1, ranks * nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE, mmap.PROT_READ).close()
        except (OSError, OverflowError, ValueError) as caught:
            return errors.WorkspaceError(
                f"shared memory: a rank has no addresses for {ranks * nbytes} bytes of this node: {caught}; raise its "
                f"limit (ulimit -v), or use Context(transport='message')"
            )
        if self.node.Get_rank() or not Path(_SHM).is_dir():  # only Linux backs windows with a file system of its own
            return None
        status = os.statvfs(_SHM)
        untouched = sum(window.nbytes - window.touched for window in self._windows)
        free, needed = status.f_bavail * status.f_frsize, ranks * (nbytes + untouched)
        if needed <= free:
            return None
        return errors.WorkspaceError(
            f"shared memory: {needed} bytes are needed in {_SHM} for {ranks} ranks of this node, {free} are free; "
            f"enlarge it (docker run --shm-size=..., mount -o remount,size=... {_SHM}) "
            f"or use Context(transport='message')"
        )

    def view(
        self,
        peer: int,
        window: int,
        offset: int,
        shape: tuple[int, int],
        strides: tuple[int, int],
        dtype: np.dtype[Any],
    ) -> Any:
        """Array in the memory of a near rank, at an offset that it published (local)."""
        return np.ndarray(shape, dtype, self._windows[window].bytes[self._node_ranks[peer]], offset, strides)

    def mpi_window(self, index: int) -> MPI.Win:
        """A window, for MPI's atomics on it (local)."""
        window = self._windows[index].mpi
        assert window is not None, "used after close"
        return window

    def sync(self) -> None:
        """Make this rank's writes visible to the node, and the node's to this rank; messages order them."""
        for window in self._windows:
            assert window.mpi is not None, "used after close"
            window.mpi.Sync()

    def close(self) -> None:
        """**Collective.** Free all windows, and the communicator."""
        for window in self._windows:
            if window.mpi is not None:
                window.bytes = []
                window.mpi.Unlock_all()
                window.mpi.Free()
                window.mpi = None
        super().close()
        self.node.Free()
