"""Symmetric memory: the same blocks at the same offsets on every rank, in MPI-3 shared windows of each node.

Every rank makes the same allocations and frees in the same order, so that the bookkeeping below, which is plain
integers, comes out alike everywhere without a message. A window is made collectively when the others are full, and
freed collectively at the end. The garbage collector frees nothing: a block that Python drops is only marked, and is
reused once all ranks report it marked (`marked_bits` travels in every agreement).
"""

from __future__ import annotations

import os
import sys
from collections import deque
from contextlib import contextmanager
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from pblas import errors
from pblas.backends.mpi.exchange import BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pblas.backends.mpi.exchange import Exchange

ALIGNMENT = 256
_MIN_WINDOW_NBYTES = 4 << 20
_MAX_GROWTH_NBYTES = 1 << 30
_SHM = "/dev/shm"  # noqa: S108 - where Linux MPIs back shared windows; not a file of ours


class Block:
    """Symmetric memory of one allocation on this rank; marks itself when the last array on it is dropped.

    `np.asarray(block)` is an array of bytes that keeps the block alive.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_marked", "nbytes", "offset", "site", "slot", "window")

    def __init__(
        self, slot: int, window: int, offset: int, nbytes: int, address: int, marked: deque[int], site: str
    ) -> None:
        self.slot, self.window, self.offset, self.nbytes, self.site = slot, window, offset, nbytes, site
        self._marked = marked
        self.__array_interface__ = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}

    def __del__(self) -> None:
        if self.slot >= 0:
            self._marked.append(self.slot)


class _Window:
    """One shared window: this node's memory, and what of it is free."""

    def __init__(self, node: MPI.Intracomm, nbytes: int) -> None:
        self.nbytes = nbytes
        self.free = [(0, nbytes)]  # (offset, size), ascending, never adjacent
        self.touched = 0  # bytes below this were handed out once: the operating system may have committed them
        self.mpi: MPI.Win | None = MPI.Win.Allocate_shared(nbytes, 1, comm=node)
        self.mpi.Lock_all(MPI.MODE_NOCHECK)
        memories = [self.mpi.Shared_query(rank)[0] for rank in range(node.Get_size())]
        self.bytes = [np.asarray(memory, np.uint8) for memory in memories]
        self.address = int(self.bytes[node.Get_rank()].__array_interface__["data"][0])

    def take(self, nbytes: int) -> int | None:
        """Offset of the first free place that is large enough, now taken; None when there is none."""
        for i, (offset, size) in enumerate(self.free):
            if size >= nbytes:
                self.free[i : i + 1] = [(offset + nbytes, size - nbytes)] if size > nbytes else []
                self.touched = max(self.touched, offset + nbytes)
                return offset
        return None

    def give_back(self, offset: int, nbytes: int) -> None:
        merged: list[tuple[int, int]] = []
        for start, size in sorted([*self.free, (offset, nbytes)]):
            if merged and merged[-1][0] + merged[-1][1] == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((start, size))
        self.free = merged


class Arena:
    """Windows of one context and the blocks in them.

    Args:
        exchange: agreement of the context's ranks (global).
        node: communicator of the ranks that share memory (local to the node).
    """

    def __init__(self, exchange: Exchange, node: MPI.Intracomm) -> None:
        self._exchange, self._node = exchange, node
        self._windows: list[_Window] = []
        self._blocks: dict[int, tuple[int, int, int, str]] = {}  # slot -> window, offset, size, site
        self._marked: deque[int] = deque()
        self._dropped: set[int] = set()
        self._free_slots: list[int] = []  # numbers below the largest in use that are free, a heap
        self._provisional: list[Block] | None = None
        self.peak_nbytes = self.live_nbytes = 0

    def allocate(self, nbytes: int, site: str | Callable[[], str] = "") -> Block:
        """**Collective.** A block of at least `nbytes` bytes (global), the same on every rank.

        Raises:
            WorkspaceError: the shared memory of a node does not suffice.
        """
        size = max(nbytes + -nbytes % ALIGNMENT, ALIGNMENT)
        index, offset = self._take(size)
        window = self._windows[index]
        slot = heappop(self._free_slots) if self._free_slots else len(self._blocks)
        text = site if isinstance(site, str) else site()
        self._blocks[slot] = (index, offset, size, text)
        self.live_nbytes += size
        self.peak_nbytes = max(self.peak_nbytes, self.live_nbytes)
        block = Block(slot, index, offset, nbytes, window.address + offset, self._marked, text)
        if self._provisional is not None:
            self._provisional.append(block)
        return block

    @contextmanager
    def provisional(self) -> Iterator[None]:
        """Undo this rank's allocations if the block is left by an error, as ranks that found it made none."""
        self._provisional = []
        try:
            yield
        except errors.PblasError:
            for block in self._provisional:
                self._free(block.slot)
                block.slot = -1
            raise
        finally:
            self._provisional = None

    def _take(self, size: int) -> tuple[int, int]:
        """(window, offset) of a free place, in a new window if there is none."""
        for index, window in enumerate(self._windows):
            offset = window.take(size)
            if offset is not None:
                return index, offset
        offset = self._grow(size).take(size)
        assert offset is not None, "a window is made large enough for what it is made for"
        return len(self._windows) - 1, offset

    def _grow(self, nbytes: int) -> _Window:
        """Make a window: at least `nbytes`, and as much again as there is, so that few are ever made."""
        total = sum(window.nbytes for window in self._windows)
        size = max(nbytes, _MIN_WINDOW_NBYTES, min(total, _MAX_GROWTH_NBYTES))
        size += -size % 4096
        self._exchange.agree(f"make a window\nbytes={size}", self._shortage(size))
        window = _Window(self._node, size)
        self._windows.append(window)
        return window

    def _shortage(self, nbytes: int) -> errors.WorkspaceError | None:
        """What stands against a window of `nbytes` per rank: writing past the end of /dev/shm kills the process."""
        if self._node.Get_rank() or not Path(_SHM).is_dir():  # only Linux backs windows with a file system of its own
            return None
        ranks = self._node.Get_size()
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

    def locate(self, address: int) -> tuple[int, int]:
        """(window, offset) of an address in this rank's own part of a window, or (-1, 0) outside (local)."""
        for index, window in enumerate(self._windows):
            if 0 <= address - window.address < window.nbytes:
                return index, address - window.address
        return -1, 0

    def view(
        self,
        peer: int,
        window: int,
        offset: int,
        shape: tuple[int, int],
        strides: tuple[int, int],
        dtype: np.dtype[Any],
    ) -> Any:
        """Array in the memory of rank `peer` of this node, at an offset that the peer published (local)."""
        return np.ndarray(shape, dtype, self._windows[window].bytes[peer], offset, strides)

    def sync(self) -> None:
        """Make this rank's writes visible to the node, and theirs to this rank; messages order the rest."""
        for window in self._windows:
            assert window.mpi is not None, "used after close"
            window.mpi.Sync()

    def marked_bits(self, turn: int) -> int:
        """Set of this rank's marked slots, as bits; of many slots another part every turn (local)."""
        while self._marked:
            self._dropped.add(self._marked.popleft())
        if not self._dropped:
            return 0
        first = self._first_slot(turn)
        return sum(1 << (slot - first) for slot in self._dropped if 0 <= slot - first < BITS)

    def reclaim(self, turn: int, common: int) -> None:
        """Free the slots that all ranks reported as marked (global)."""
        first = self._first_slot(turn) if common else 0
        while common:
            lowest = common & -common
            self._free(first + lowest.bit_length() - 1)
            common ^= lowest

    def _first_slot(self, turn: int) -> int:
        return BITS * (turn % (max(self._blocks, default=0) // BITS + 1))

    def _free(self, slot: int) -> None:
        """Make the place of a block, which all ranks have dropped, free for others (global)."""
        index, offset, size, _ = self._blocks.pop(slot)
        self._windows[index].give_back(offset, size)
        self._dropped.discard(slot)
        self.live_nbytes -= size
        heappush(self._free_slots, slot)

    def leaks(self) -> list[str]:
        """Allocation sites of the blocks that this rank still uses."""
        self.marked_bits(0)
        return [site for slot, (*_, site) in self._blocks.items() if slot not in self._dropped]

    def close(self) -> None:
        """**Collective.** Free all windows."""
        for window in self._windows:
            if window.mpi is not None:
                window.bytes = []
                window.mpi.Unlock_all()
                window.mpi.Free()
                window.mpi = None
        self._windows = []


def call_site() -> str:
    """file:line of the innermost caller outside pblas."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect.stack() reads source files and costs milliseconds
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "pblas":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
