"""Symmetric memory of one context on GPUs: the same blocks at the same offsets on every rank, in NVSHMEM's heap.

`pblas.backends.allocator` keeps track of the blocks. A window is here a *region* of the process's symmetric memory, at
a place that is free on all ranks of the context. The ranks agree on the place: each proposes its lowest free place at
or above the last agreed one, and the highest proposal is agreed, until all propose the same.

`Tables` are in host memory that the ranks of a node share: ranks publish there where their arrays are. Peers read the
words of a rank after the next message between them, which orders the write and the reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.backends.agreement import BITS, Agreement
from pblas.backends.allocator import Block, Blocks, Window
from pblas.backends.local_step import LocalStep, agreed
from pblas.backends.nvshmem.settings import GRANULE, NOWHERE, rounded
from pblas.backends.shared_files import shared_memory

if TYPE_CHECKING:
    from pblas.backends.dtypes import Dtype
    from pblas.backends.nvshmem.startup import Nvshmem


_MIN_REGION_NBYTES = 16 << 20
_MAX_GROWTH_NBYTES = 256 << 20
_MIN_SEGMENT_NBYTES = 256 << 20
_MAX_ATTEMPTS = 8
"""Agreements after which ranks with fragmented memory take a region at the end, which is free on all ranks."""


class Region(Window):
    """A region of symmetric memory."""

    def __init__(self, nbytes: int, place: int, address: int, peers: tuple[int, ...]) -> None:
        super().__init__(nbytes)
        self.place: int = place
        self.address = address
        self.peers: tuple[int, ...] = peers


class Heap(Blocks[Region, Block]):
    """Regions of one context and the blocks in them."""

    def __init__(self, agreement: Agreement, nvshmem: Nvshmem, pes: tuple[int, ...]) -> None:
        super().__init__(Block, BITS)
        self._exchange, self._nvshmem, self._pes = agreement, nvshmem, pes

    def _grow(self, nbytes: int) -> Region:
        """Take a region of at least `nbytes` bytes. The memory doubles if possible, so that there are few regions."""
        total = sum(region.nbytes for region in self._windows)
        needed = rounded(nbytes)
        wanted = rounded(max(needed, _MIN_REGION_NBYTES, min(total, _MAX_GROWTH_NBYTES)))
        for size in dict.fromkeys((wanted, needed)):
            place = self._agree_place(size)
            if place is not None:
                return self._append(place, size)
        if len(self._pes) < self._nvshmem.npes:
            raise agreed(exhausted(nbytes, total, self._nvshmem.nbytes), self._exchange.print_order(0))
        self._nvshmem.add_segment(max(wanted, _MIN_SEGMENT_NBYTES))
        place = self._agree_place(wanted)
        assert place is not None, "a new segment holds the region that it is made for"
        return self._append(place, wanted)

    def _agree_place(self, size: int) -> int | None:
        """**Collective.** A place that is free on every rank; None if there is none."""
        pool, start = self._nvshmem.pool, 0
        for attempt in range(_MAX_ATTEMPTS):
            first = pool.lowest(start, size)
            maxima = (first, -first, pool.tail(size), 0)
            high, low, tail, _ = self._exchange.agree(
                f"take a region\nbytes={size}\nattempt={attempt}", maxima=maxima
            ).maxima
            if high == NOWHERE:  # a rank has no place at or above `start`, and below it there is no common one
                return None
            if high == -low:
                return high
            start = high
        return tail if tail < NOWHERE else None

    def _append(self, place: int, size: int) -> Region:
        address = self._nvshmem.pool.take(place, size)
        peers = tuple(self._nvshmem.peer(address, pe) for pe in self._pes)
        region = Region(size, place, address, peers)
        self._windows.append(region)
        return region

    # Addresses

    def peer_address(self, block: Block, rank: int) -> int:
        """Address of a block on a rank of the context, as mapped here (local)."""
        return self.place_address(block.window, block.offset, rank)

    def addresses(self, block: Block) -> list[int]:
        """Addresses of a block on all ranks, as mapped here (local)."""
        rank = self._exchange.rank
        return [block.address if r == rank else self.peer_address(block, r) for r in range(len(self._pes))]

    def place_address(self, window: int, offset: int, rank: int) -> int:
        """Address on a rank of the place that `locate` returned, as mapped here (local)."""
        return self._windows[window].peers[rank] + offset

    def view(
        self, peer: int, window: int, offset: int, shape: tuple[int, int], strides: tuple[int, int], dtype: Dtype
    ) -> Any:
        """A CuPy array in the memory of a rank, at an offset that it published; it keeps no block alive (local)."""
        import cupy

        from pblas.backends.cuda.transfer import new_array

        address = self.place_address(window, offset, peer)
        nbytes = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + dtype.itemsize
        memory = cupy.cuda.UnownedMemory(address, max(nbytes, dtype.itemsize), self, self._nvshmem.device.index)
        return new_array(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), strides)

    def array(
        self, block: Block, offset: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: Dtype
    ) -> Any:
        """A CuPy array `offset` bytes into a block; the array keeps the block alive (local)."""
        import cupy

        from pblas.backends.cuda.transfer import new_array

        memory = cupy.cuda.UnownedMemory(block.address, block.nbytes, block, self._nvshmem.device.index)
        return new_array(shape, dtype, cupy.cuda.MemoryPointer(memory, offset), strides)

    # The end

    def close(self) -> None:
        """Give the regions back for other contexts, after an agreement that no GPU uses them any more (local).

        A broken context keeps them, because a late peer may still write there.
        """
        for region in self._windows:
            self._nvshmem.pool.give_back(region.place, region.nbytes)
        super().close()


def exhausted(nbytes: int, used: int, pool: int) -> errors.WorkspaceError:
    """The error of a context over some of the ranks that has no place for a block."""
    total = pool + rounded(nbytes) + GRANULE
    return errors.WorkspaceError(
        f"symmetric memory: no {nbytes} bytes are free on all ranks of the context, beside the {used} that it has, in "
        f"the {pool} of each rank; set PBLAS_SYMMETRIC_SIZE={total}, or call init_nvshmem(nbytes={total}) before the "
        f"first context. A context over all ranks adds memory by itself"
    )


def shared_by_hosts(agreement: Agreement, nbytes: int, step: str) -> Any:
    """**Collective.** Zeros in host memory that the ranks of a node share: `nbytes` bytes of each rank."""
    agreement.agree(step)
    with LocalStep(agreement.agree, step):
        memory = shared_memory(agreement, range(agreement.size), agreement.size * nbytes, step, reserve=True)
    return np.frombuffer(memory, np.uint8).reshape(agreement.size, nbytes)


_LINES, _WORDS = 4096, 4  # lines of a page; words of a line


class Tables:
    """Lines by their numbers, created on demand."""

    def __init__(self, agreement: Agreement) -> None:
        self._exchange = agreement
        self._pages: list[Any] = []

    def lines(self, number: int) -> list[Any]:
        """**Collective**. Four 64-bit integers of each rank; this rank writes its own."""
        page, line = divmod(number, _LINES)
        while len(self._pages) <= page:
            self._pages.append(self._page())
        return list(self._pages[page][:, line])

    def _page(self) -> Any:
        """**Collective.** Zeros, ranks x lines x words."""
        memory = shared_by_hosts(self._exchange, 8 * _LINES * _WORDS, "make a table of the hosts")
        return memory.view(np.int64).reshape(-1, _LINES, _WORDS)

    def close(self) -> None:
        """Drop the tables (local)."""
        self._pages = []
