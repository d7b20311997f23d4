"""Allocator of symmetric memory: which part of which window is in use, equal on every rank.

Every rank makes the same allocations and frees in the same order, so the allocator needs no messages. The garbage
collector frees nothing: a block that Python drops is only marked. It is reused once all ranks report it marked
(`marked_bits` is part of every agreement). The backend provides the windows: MPI-3 shared windows, or regions of
NVSHMEM's heap.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from bisect import bisect
from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

ALIGNMENT = 256
_FOLDER = __file__.removesuffix("backends/allocator.py")


class Block:
    """Symmetric memory of one allocation on this rank; reports itself as unused when its last array is dropped."""

    __slots__ = ("__weakref__", "_marked", "address", "nbytes", "offset", "site", "slot", "window")

    def __init__(self, nbytes: int, marked: deque[int], site: str) -> None:
        self.slot: int = -1  # until it has memory
        self.window: int
        self.offset: int
        self.address: int
        self.nbytes: int = nbytes
        self.site: str = site
        self._marked = marked

    def __del__(self) -> None:
        if self.slot >= 0:
            self._marked.append(self.slot)


class Extent:
    """Free list of the bytes 0..nbytes-1."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.free: list[tuple[int, int]] = [(0, nbytes)]  # (offset, size), ascending, never adjacent
        self.touched: int = 0  # bytes below this were allocated once: the operating system may have committed them

    def take(self, nbytes: int) -> int | None:
        """Allocate the first free interval that is large enough; its offset, or None when there is none."""
        for i, (offset, size) in enumerate(self.free):
            if nbytes <= size:
                self._cut(i, offset, nbytes)
                return offset
        return None

    def lowest(self, start: int, nbytes: int) -> int | None:
        """The lowest offset >= start at which `nbytes` bytes are free; None when there is none."""
        for offset, size in self.free:
            place = max(offset, start)
            if place + nbytes <= offset + size:
                return place
        return None

    def reserve(self, offset: int, nbytes: int) -> None:
        """Take the free bytes offset..offset+nbytes-1."""
        for i, (start, size) in enumerate(self.free):
            if start <= offset and offset + nbytes <= start + size:
                self._cut(i, offset, nbytes)
                return
        raise AssertionError(f"bytes {offset}..{offset + nbytes - 1} are not free")

    def _cut(self, i: int, offset: int, nbytes: int) -> None:
        """Take bytes of the i-th free interval."""
        (start, size), stop = self.free[i], offset + nbytes
        rest = [(stop, start + size - stop)] if stop < start + size else []
        self.free[i : i + 1] = [(start, offset - start), *rest] if start < offset else rest
        self.touched = max(self.touched, stop)

    def give_back(self, offset: int, nbytes: int) -> None:
        """Free allocated bytes."""
        i = bisect(self.free, (offset, nbytes))
        first, last, start, stop = i, i, offset, offset + nbytes
        if i and sum(self.free[i - 1]) == offset:
            first, start = i - 1, self.free[i - 1][0]
        if i < len(self.free) and self.free[i][0] == stop:
            last, stop = i + 1, sum(self.free[i])
        self.free[first:last] = [(start, stop - start)]


class Window(Extent):
    """Memory that every rank has at the same offsets; `address` is the start of this rank's part."""

    address: int


W = TypeVar("W", bound=Window)
B = TypeVar("B", bound=Block)


class Blocks(ABC, Generic[W, B]):
    """Windows of one context and the blocks in them.

    One agreement can report `nbits` slots.
    """

    def __init__(self, block: type[B], nbits: int) -> None:
        self._block, self._nbits = block, nbits
        self._windows: list[W] = []
        self._blocks: dict[int, tuple[int, int, int, str]] = {}  # slot -> window, offset, size, site
        self._marked: deque[int] = deque()
        self._dropped: set[int] = set()
        self._free_slots: list[int] = []  # free numbers below the largest in use, a heap
        self.noted: list[B] | None = None
        """The blocks that were allocated in a `provisional` block; None outside (local)."""
        self.provisional: Provisional = Provisional(self)
        """A with block whose allocations are undone if it raises, since ranks that raised earlier made none."""
        self.frozen: str | None = None
        """The last local step, until the next agreement: before it nothing is allocated, because a rank that failed in
        the step allocates nothing (local; for an assertion)."""
        self.live_nbytes: int = 0
        self.peak_nbytes: int = 0

    @abstractmethod
    def _grow(self, nbytes: int) -> W:
        """**Collective.** Append a window of at least `nbytes` bytes, or raise the same error on every rank."""

    def allocate(self, nbytes: int, site: str | Callable[[], str] = "") -> B:
        """**Collective.** A block of at least `nbytes` bytes (global), the same on every rank."""
        assert self.frozen is None or self.noted is not None, (
            f"ranks agree after the local step of {self.frozen} before they allocate"
        )
        size = max(nbytes + -nbytes % ALIGNMENT, ALIGNMENT)
        block = self._block(nbytes, self._marked, site if isinstance(site, str) else site())
        index, offset = self._take(size)
        # Nothing below calls a function that may fail: the memory is taken and noted, or neither.
        slot = heappop(self._free_slots) if self._free_slots else len(self._blocks)
        self._blocks[slot] = (index, offset, size, block.site)
        if self.noted is not None:
            self.noted.append(block)
        block.slot, block.window, block.offset = slot, index, offset
        block.address = self._windows[index].address + offset
        self.live_nbytes += size
        self.peak_nbytes = max(self.peak_nbytes, self.live_nbytes)
        return block

    def has_room(self, nbytes: int) -> bool:
        """Whether a block fits into the windows that there are (global)."""
        size = max(nbytes + -nbytes % ALIGNMENT, ALIGNMENT)
        for window in self._windows:
            for _, free in window.free:
                if size <= free:
                    return True
        return False

    def undo(self) -> None:
        """Free the noted blocks, which are no one's any more (local)."""
        for block in self.noted or ():
            self._free(block.slot)
            block.slot = -1
        self.noted = []

    def _take(self, size: int) -> tuple[int, int]:
        """(window, offset) of a free interval, in a new window if no window has one."""
        for index, window in enumerate(self._windows):
            offset = window.take(size)
            if offset is not None:
                return index, offset
        offset = self._grow(size).take(size)
        assert offset is not None, "a new window is at least as large as the allocation"
        return len(self._windows) - 1, offset

    def locate(self, address: int) -> tuple[int, int]:
        """(window, offset) of an address in this rank's own part of a window, or (-1, 0) outside (local)."""
        for index, window in enumerate(self._windows):
            if 0 <= address - window.address < window.nbytes:
                return index, address - window.address
        return -1, 0

    def marked_bits(self, turn: int) -> int:
        """This rank's marked slots, as bits. If there are too many slots, each turn reports another range (local)."""
        while self._marked:
            self._dropped.add(self._marked.popleft())
        if not self._dropped:
            return 0
        first, bits = self._first_slot(turn), 0
        for slot in self._dropped:
            if 0 <= slot - first < self._nbits:
                bits |= 1 << (slot - first)
        return bits

    def reclaim(self, turn: int, common: int) -> None:
        """Free the slots that all ranks reported as marked (global)."""
        first = self._first_slot(turn)
        while common:
            lowest = common & -common
            self._free(first + lowest.bit_length() - 1)
            common ^= lowest

    def reclaim_marked(self) -> None:
        """Free the marked slots of the only rank (local)."""
        while self._marked:
            self._free(self._marked.popleft())

    def _first_slot(self, turn: int) -> int:
        nslots = len(self._blocks) + len(self._free_slots)
        return 0 if nslots <= self._nbits else self._nbits * (turn % -(-nslots // self._nbits))

    def _free(self, slot: int) -> None:
        """Free the memory of a block that all ranks have dropped (global)."""
        index, offset, size, _ = self._blocks.pop(slot)
        self._windows[index].give_back(offset, size)
        self._dropped.discard(slot)
        self.live_nbytes -= size
        heappush(self._free_slots, slot)

    def leaks(self) -> list[str]:
        """The source lines that allocated the blocks to which Python objects of this rank still refer."""
        dropped = self._dropped.union(self._marked)
        return [site for slot, (*_, site) in self._blocks.items() if slot not in dropped]

    def close(self) -> None:
        """**Collective.** Free the windows; no rank uses them any more."""
        self._windows = []


class Provisional:
    """See `Blocks.provisional`."""

    __slots__ = ("_blocks",)

    def __init__(self, blocks: Blocks[Any, Any]) -> None:
        self._blocks = blocks

    def __enter__(self) -> Self:
        self._blocks.noted = []
        return self

    def undo(self) -> None:
        """Undo the allocations of the block so far (local)."""
        self._blocks.undo()

    def __exit__(self, kind: object, caught: BaseException | None, traceback: object) -> None:
        if caught is not None:  # also KeyboardInterrupt, which ranks agree on
            self._blocks.undo()
        self._blocks.noted = None


class NoBlocks(Blocks[Window, Block]):
    """Allocator of ranks that share no memory."""

    def __init__(self) -> None:
        super().__init__(Block, 1)

    def _grow(self, nbytes: int) -> Window:
        raise AssertionError(nbytes)


_depths = [1]
"""The depth at which the last caller outside pblas was found: Python makes an object of each frame on a walk."""


def call_site() -> str:
    """file:line of the innermost caller outside pblas."""
    depth, frame_at = _depths[0], sys._getframe  # noqa: SLF001 - inspect.stack() reads source files: milliseconds
    try:
        frame = frame_at(depth)
        is_known = not _is_ours(frame) and _is_ours(frame_at(depth - 1))
    except ValueError:
        is_known = False
    if not is_known:
        depth, frame = 1, frame_at(1)
        while frame.f_back is not None and _is_ours(frame):
            depth, frame = depth + 1, frame.f_back
        _depths[0] = depth
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_FOLDER)
