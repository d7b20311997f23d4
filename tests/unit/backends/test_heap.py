"""Allocation of symmetric memory without a GPU: ranks are threads, and addresses are made up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pblas import WorkspaceError
from pblas.backends.allocator import ALIGNMENT, Extent
from pblas.backends.nvshmem import heap as heap_module
from pblas.backends.nvshmem.heap import Heap
from pblas.backends.nvshmem.settings import GRANULE, NOWHERE, Pool, rounded

MIB = 1 << 20


class Agreement:
    """`Agreement` between threads; one for all ranks of a context."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=20)
        self.call_args: dict[int, tuple[str, tuple[int, ...], Exception | None]] = {}
        self.calls = 0

    def agree(self, rank: int, call: str, error: Exception | None, maxima: Sequence[int]) -> Any:
        self.call_args[rank] = call, tuple(maxima), error
        self.barrier.wait()
        call_args = list(self.call_args.values())
        if self.barrier.wait() == 0:
            self.calls += 1
        self.barrier.wait()
        assert len({call for call, *_ in call_args}) == 1, call_args
        for *_, raised in call_args:
            if raised is not None:
                raise raised
        return SimpleNamespace(maxima=tuple(map(max, zip(*(maxima for _, maxima, _ in call_args), strict=True))))


class Process:
    """One rank's `Nvshmem`, with memory that does not exist: PE p's begins at p * 2**40."""

    def __init__(self, pe: int, npes: int, nbytes: int, everyone: Agreement) -> None:
        self.pe, self.npes, self.pool, self.everyone = pe, npes, Pool(), everyone
        self.device = SimpleNamespace(index=0)
        self.pool.add(nbytes, (pe + 1) << 40)

    @property
    def nbytes(self) -> int:
        return self.pool.nbytes

    def peer(self, address: int, pe: int) -> int:
        return address + (pe - self.pe << 40)

    def add_segment(self, nbytes: int) -> None:
        size = rounded(nbytes)
        self.everyone.agree(self.pe, f"segment {size}", None, (0, 0, 0, 0))
        self.pool.add(size, (self.pe + 1 << 40) + (1 << 36) * len(self.pool.segments))


class Job:
    """A job of some PEs, whose ranks run as threads."""

    def __init__(self, npes: int, nbytes: int) -> None:
        everyone = Agreement(npes)
        self.processes = [Process(pe, npes, nbytes, everyone) for pe in range(npes)]
        self.agreements: list[Agreement] = []

    def heaps(self, pes: Sequence[int]) -> list[Heap]:
        """The heap of a context over some PEs, on each of them."""
        agreement = Agreement(len(pes))
        self.agreements.append(agreement)

        def of_rank(rank: int) -> Any:
            return SimpleNamespace(
                agree=lambda call, error=None, maxima=(0, 0, 0, 0): agreement.agree(rank, call, error, maxima),
                print_order=lambda _: rank,
            )

        nvshmem: Any = self.processes
        return [Heap(of_rank(rank), nvshmem[pe], tuple(pes)) for rank, pe in enumerate(pes)]


def together(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results or exceptions of calls that run at the same time, one per rank."""

    def outcome(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except WorkspaceError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as ranks:
        return list(ranks.map(outcome, calls))


def allocate(heaps: Sequence[Heap], nbytes: int, site: str = "here") -> list[Any]:
    return together([lambda heap=heap: heap.allocate(nbytes, site) for heap in heaps])  # type: ignore[misc]


def check_alike(job: Job, heaps: Sequence[Heap], pes: Sequence[int], blocks: Sequence[Any]) -> None:
    """Assert that a block has the same offset on all ranks, and that its peer addresses are right."""
    assert len({(block.window, block.offset, block.slot) for block in blocks}) == 1
    for heap, pe, block in zip(heaps, pes, blocks, strict=True):
        assert block.address % ALIGNMENT == 0
        assert heap.locate(block.address) == (block.window, block.offset)
        for rank, (peer, theirs) in enumerate(zip(pes, blocks, strict=True)):
            assert heap.peer_address(block, rank) == theirs.address
            assert job.processes[pe].peer(block.address, peer) == theirs.address
    assert heaps[0].locate(1) == (-1, 0)


CONTEXTS = [(0, 1, 2, 3), (0, 1), (2, 3), (1, 3), (3, 0, 2), (2,)]


def test_contexts_over_overlapping_ranks_share_the_memory_of_a_process() -> None:
    job = Job(4, 512 * MIB)
    heaps = [job.heaps(pes) for pes in CONTEXTS]
    living: list[tuple[int, list[Any]]] = []
    for turn, nbytes in enumerate([1, 300, 5 * MIB, 20 * MIB, 255, 40 * MIB, 0]):
        for number, pes in enumerate(CONTEXTS):
            blocks = allocate(heaps[number], nbytes + turn * number)
            check_alike(job, heaps[number], pes, blocks)
            living.append((number, blocks))
    for pe in range(4):  # no two blocks of a process overlap
        spans = sorted(
            (block.address, block.address + block.nbytes)
            for number, blocks in living
            for block, owner in zip(blocks, CONTEXTS[number], strict=True)
            if owner == pe
        )
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    del living, blocks
    for number in (3, 0, 5, 1, 4, 2):
        for heap in heaps[number]:
            assert heap.leaks() == []
            heap.close()
    assert all(process.pool.segments[0].extent.free == [(0, 512 * MIB)] for process in job.processes)


def test_ranks_with_the_same_free_memory_agree_at_once() -> None:
    job = Job(4, 512 * MIB)
    heaps = job.heaps(range(4))
    allocate(heaps, 100)
    assert job.agreements[0].calls == 1
    allocate(heaps, 100)
    assert job.agreements[0].calls == 1, "a block in a region costs no message"


def taken(nbytes: int, places: Sequence[tuple[int, int]]) -> Pool:
    pool = Pool()
    pool.add(nbytes, 1 << 40)
    for place, size in places:
        if pool.lowest(place, size) == place:
            pool.take(place, size)
    return pool


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 31), st.integers(1, 6)), max_size=12), min_size=1, max_size=4),
    st.integers(1, 12),
)
def test_ranks_agree_on_an_offset_that_is_free_on_all(places: list[list[tuple[int, int]]], size: int) -> None:
    granules, job = 32, Job(len(places), 32 * GRANULE)
    for process, free in zip(job.processes, places, strict=True):
        process.pool = taken(granules * GRANULE, [(a * GRANULE, n * GRANULE) for a, n in free])
    common = [
        place
        for place in range(granules)
        if all(process.pool.lowest(place * GRANULE, size * GRANULE) == place * GRANULE for process in job.processes)
    ]
    heaps = job.heaps(range(len(places)))
    agreed = together([lambda heap=heap: heap._agree_place(size * GRANULE) for heap in heaps])  # type: ignore[misc]
    assert len(set(agreed)) == 1
    if agreed[0] is None:
        assert not common or job.agreements[0].calls == heap_module._MAX_ATTEMPTS
    else:
        assert agreed[0] // GRANULE in common
        assert agreed[0] // GRANULE == common[0] or job.agreements[0].calls == heap_module._MAX_ATTEMPTS


def test_ranks_with_fragmented_memory_take_the_end() -> None:
    job = Job(2, 400 * GRANULE)
    for odd, process in enumerate(job.processes):  # free places of one granule, never at the same place
        for place in range(odd, 100, 2):
            process.pool.take(place * GRANULE, GRANULE)
    heaps = job.heaps((0, 1))
    agreed = together([lambda heap=heap: heap._agree_place(GRANULE) for heap in heaps])  # type: ignore[misc]
    assert agreed == [100 * GRANULE] * 2
    assert job.agreements[0].calls == heap_module._MAX_ATTEMPTS


def test_a_context_over_some_ranks_that_runs_out_of_memory_names_the_size_to_set() -> None:
    heaps = Job(4, 64 * MIB).heaps((1, 2))
    blocks = [allocate(heaps, 20 * MIB), allocate(heaps, 30 * MIB)]
    errors = allocate(heaps, 40 * MIB)
    assert {type(error) for error in errors} == {WorkspaceError}
    assert len({str(error) for error in errors}) == 1
    text = str(errors[0])
    assert "init_nvshmem(nbytes=" in text
    enough = int(text.partition("PBLAS_SYMMETRIC_SIZE=")[2].partition(",")[0])
    heaps = Job(4, enough).heaps((1, 2))
    for nbytes in (20 * MIB, 30 * MIB, 40 * MIB):
        blocks.append(allocate(heaps, nbytes))
        assert not any(isinstance(block, WorkspaceError) for block in blocks[-1])


def test_a_region_is_no_larger_than_the_free_memory() -> None:
    heaps = Job(2, 10 * MIB).heaps((0,))  # less than the least that a region has where there is room
    (block,) = allocate(heaps, 3 * MIB)
    assert block.nbytes == 3 * MIB


def test_a_context_over_all_ranks_adds_memory_that_stays() -> None:
    job = Job(3, 64 * MIB)
    everyone, pair = job.heaps((2, 0, 1)), job.heaps((0, 2))
    held = allocate(pair, 60 * MIB)
    blocks = allocate(everyone, 300 * MIB)
    check_alike(job, everyone, (2, 0, 1), blocks)
    assert {process.nbytes for process in job.processes} == {364 * MIB}
    del blocks
    for heap in everyone:
        heap.close()
    more = allocate(pair, 290 * MIB)  # which a context over fewer ranks then finds
    check_alike(job, pair, (0, 2), more)
    check_alike(job, pair, (0, 2), held)


def test_memory_is_used_again_once_all_ranks_report_it() -> None:
    heaps = Job(2, 256 * MIB).heaps((0, 1))
    first, second = allocate(heaps, 1000), allocate(heaps, 1000)
    place = first[0].offset
    del second
    last_block = first.pop()
    first.clear()

    def reports(turn: int) -> None:
        common = heaps[0].marked_bits(turn) & heaps[1].marked_bits(turn)
        for heap in heaps:
            heap.reclaim(turn, common)

    reports(0)
    assert [heap.live_nbytes for heap in heaps] == [1024, 1024]
    assert heaps[0].leaks() == []
    assert heaps[1].leaks() == ["here"]
    del last_block
    reports(1)
    assert [heap.live_nbytes for heap in heaps] == [0, 0]
    assert {block.offset for block in allocate(heaps, 1000)} == {place}


def test_ranks_allocate_alike_after_an_error_before_which_only_one_has_allocated() -> None:
    heaps = Job(2, 256 * MIB).heaps((0, 1))
    for nbytes in (1000, 3000):
        allocate(heaps, nbytes).clear()
    for heap in heaps:
        heap.reclaim(0, heap.marked_bits(0))
    kept = []
    for rank, heap in enumerate(heaps):
        with suppress(WorkspaceError), heap.provisional:
            if rank == 0:
                kept.append(heap.allocate(1000))
            raise WorkspaceError("as on every rank")
    for nbytes in (5000, 3000, 1000):
        assert len({block.offset for block in allocate(heaps, nbytes)}) == 1


def test_an_allocation_of_one_rank_before_a_common_error_is_undone() -> None:
    heaps = Job(2, 256 * MIB).heaps((0, 1))
    allocate(heaps, 100)
    before = heaps[0].live_nbytes
    kept = []

    def refused() -> None:
        with heaps[0].provisional:
            kept.append(heaps[0].allocate(100))
            raise WorkspaceError("as on every rank")

    with pytest.raises(WorkspaceError, match="as on every rank"):
        refused()
    assert heaps[0].live_nbytes == before
    kept.clear()
    assert heaps[0].marked_bits(0) == heaps[1].marked_bits(0)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=30))
def test_an_extent_tracks_free_memory(wishes: list[tuple[int, int]]) -> None:
    extent, free, held = Extent(40), set(range(40)), []
    for start, size in wishes:
        expected = [a for a in range(start, 41 - size) if set(range(a, a + size)) <= free]
        offset = extent.lowest(start, size)
        assert offset == (expected[0] if expected else None)
        if offset is not None:
            extent.reserve(offset, size)
            free -= set(range(offset, offset + size))
            held.append((offset, size))
        elif held:
            place, nbytes = held.pop(start % len(held))
            extent.give_back(place, nbytes)
            free |= set(range(place, place + nbytes))
        assert {a for offset, size in extent.free for a in range(offset, offset + size)} == free
        assert all(a + n < b for (a, n), (b, _) in pairwise(extent.free))


def test_offsets_are_unique_over_all_segments() -> None:
    pool = Pool()
    assert (pool.lowest(0, 1), pool.tail(1)) == (NOWHERE, NOWHERE)
    pool.add(10, 1000)
    pool.add(20, 5000)
    assert pool.nbytes == 30
    assert pool.take(2, 3) == 1002
    assert pool.lowest(0, 5) == 5
    assert pool.lowest(0, 6) == 10, "no place reaches over the end of a segment"
    assert pool.tail(20) == 10
    assert pool.take(10, 4) == 5000
    assert pool.tail(16) == 14
    assert pool.tail(17) == NOWHERE
    assert pool.take(29, 1) == 5019
    assert pool.tail(1) == NOWHERE, "the end is taken"
    pool.give_back(29, 1)
    assert pool.tail(16) == 14
