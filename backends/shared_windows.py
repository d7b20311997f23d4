"""Symmetric memory: the same blocks at the same offsets on every rank, in windows that the ranks of a node share.

The ranks create a window collectively when the others are full, and free it collectively at the end.
`pblas.backends.allocator` assigns the memory in the windows.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.backends import allocator as blocks
from pblas.backends.agreement import BITS, Agreement
from pblas.backends.allocator import Blocks, Window
from pblas.backends.local_step import AgreedError, LocalStep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pblas.backends.dtypes import Dtype
    from pblas.backends.transport import NodeMemory

_MIN_WINDOW_NBYTES = 4 << 20
_MAX_GROWTH_NBYTES = 1 << 30
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.13 has the name; addresses only, no memory
_SHM = "/dev/shm"  # noqa: S108 - what Linux backs memory with that processes share; not a file of ours


class Block(blocks.Block):
    """A block in a shared window: `np.asarray(block)` is an array of bytes that keeps it and its window alive."""

    __slots__ = ("memory",)

    memory: object

    @property
    def __array_interface__(self) -> dict[str, object]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}


class _SharedWindow(Window):
    """One shared window: `bytes` of each rank of this node, in their order."""

    bytes: list[Any]


class Arena(Blocks[_SharedWindow, Block]):
    """Windows of one context and the blocks in them; `near` are the ranks of this node, which share the memory."""

    def __init__(self, agreement: Agreement, memory: NodeMemory, near: Sequence[int]) -> None:
        super().__init__(Block, BITS)
        self._exchange = agreement
        self.memory: NodeMemory = memory
        self._node_ranks = {rank: place for place, rank in enumerate(near)}

    def node_rank(self, peer: int) -> int:
        """The number of a near rank, or of this rank, in every window (local)."""
        return self._node_ranks[peer]

    def allocate(self, nbytes: int, site: str | Callable[[], str] = "") -> Block:
        """As `Blocks.allocate`; the block keeps the memory of its window alive."""
        block = super().allocate(nbytes, site)
        block.memory = self._windows[block.window].bytes
        return block

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
            window.bytes = self.memory.allocate(size)
            window.address = int(window.bytes[self.node_rank(self._exchange.rank)].__array_interface__["data"][0])
        self._exchange.agree("make a window: done")
        self._windows.append(window)
        return window

    def _refuse(self, opname: str, error: AgreedError) -> None:
        """**Collective.** Raise this rank's error on all ranks; a WorkspaceError then is one of shared memory."""
        if isinstance(error, errors.WorkspaceError):
            error.shared = True
        self._exchange.agree(opname, error)

    def _shortage(self, nbytes: int) -> errors.WorkspaceError | None:
        """The error if there is no room for `nbytes` per rank, in this rank's address space or in /dev/shm (local).

        Writing past the end of /dev/shm kills the process. A rank without the addresses might let the others wait.
        """
        ranks = len(self._node_ranks)
        try:
            mmap.mmap(-1, ranks * nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE, mmap.PROT_READ).close()
        except (OSError, OverflowError, ValueError) as caught:
            return errors.WorkspaceError(
                f"shared memory: a rank has no addresses for {ranks * nbytes} bytes of this node: {caught}; raise its "
                f"limit (ulimit -v), or use Context(transport='message')"
            )
        if (
            self.node_rank(self._exchange.rank) or not Path(_SHM).is_dir()
        ):  # only Linux backs windows with a file system of its own
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
        self, peer: int, window: int, offset: int, shape: tuple[int, int], strides: tuple[int, int], dtype: Dtype
    ) -> Any:
        """Array in the memory of a near rank, at an offset that it published (local)."""
        return np.ndarray(shape, dtype, self._windows[window].bytes[self._node_ranks[peer]], offset, strides)

    def close(self) -> None:
        """**Collective.** Free all windows."""
        for window in self._windows:
            window.bytes = []
        super().close()
        self.memory.close()
