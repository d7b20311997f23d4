"""Symmetric memory: the same blocks at the same offsets on every rank, in MPI-3 shared windows of each node.

The ranks create a window collectively when the others are full, and free it collectively at the end.
`pblas.backends.allocator` assigns the memory in the windows.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from pblas import errors
from pblas.backends import allocator as blocks
from pblas.backends.agreement import BITS
from pblas.backends.allocator import Blocks, Window

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.backends.agreement import Agreement

_MIN_WINDOW_NBYTES = 4 << 20
_MAX_GROWTH_NBYTES = 1 << 30
_SHM = "/dev/shm"  # noqa: S108 - where Linux MPIs back shared windows; not a file of ours


class Block(blocks.Block):
    """A block in a shared window: `np.asarray(block)` is an array of bytes that keeps the block alive."""

    __slots__ = ()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}


class _SharedWindow(Window):
    """One shared window: this node's memory."""

    def __init__(self, node: MPI.Intracomm, nbytes: int) -> None:
        super().__init__(nbytes)
        self.mpi: MPI.Win | None = MPI.Win.Allocate_shared(nbytes, 1, comm=node)
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
        self._exchange, self.node = agreement, node
        self._node_ranks = {rank: place for place, rank in enumerate(near)}

    def node_rank(self, peer: int) -> int:
        """The number of a near rank, or of this rank, in every window (local)."""
        return self._node_ranks[peer]

    def _grow(self, nbytes: int) -> _SharedWindow:
        """Create a window of at least `nbytes`, as large as all others together, so that few are needed."""
        total = sum(window.nbytes for window in self._windows)
        size = max(nbytes, _MIN_WINDOW_NBYTES, min(total, _MAX_GROWTH_NBYTES))
        size += -size % 4096
        self._exchange.agree(f"make a window\nbytes={size}", self._shortage(size))
        window = _SharedWindow(self.node, size)
        self._windows.append(window)
        return window

    def _shortage(self, nbytes: int) -> errors.WorkspaceError | None:
        """The error if /dev/shm is too small for `nbytes` per rank: writing past its end kills the process."""
        if self.node.Get_rank() or not Path(_SHM).is_dir():  # only Linux backs windows with a file system of its own
            return None
        ranks = self.node.Get_size()
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
