"""Laws of overlaps, the common elements of two coordinates of two splits, against an enumeration of elements."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pblas.layouts.overlap import overlap_count, overlaps
from pblas.layouts.split import Split


@st.composite
def splits(draw: st.DrawFn, n: int) -> Split:
    nprocs = draw(st.integers(1, 5))
    return Split(
        n, draw(st.integers(1, 9)), nprocs, draw(st.integers(0, nprocs - 1)), draw(st.none() | st.integers(1, 12))
    )


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Split, Split]:
    n = draw(st.integers(0, 60))
    return draw(splits(n)), draw(splits(n))


def elements(split: Split, p: int) -> list[int]:
    return [g for g0, g1 in split.ranges(p) for g in range(g0, g1)]


@given(pairs())
def test_runs_name_every_shared_element_once_in_both_orders(pair: tuple[Split, Split]) -> None:
    split, other = pair
    for p in range(split.nprocs):
        runs_of = overlaps(split, p, other)
        own = elements(split, p)
        assert sum(length for runs in runs_of.values() for _, _, length in runs) == len(own)
        for q, runs in runs_of.items():
            theirs = elements(other, q)
            shared = [(own[a + i], theirs[b + i]) for a, b, length in runs for i in range(length)]
            assert [g for g, _ in shared] == [g for _, g in shared] == sorted(set(own) & set(theirs))
            assert all(length > 0 for _, _, length in runs)
            assert overlap_count(split, p, other, q) == overlap_count(other, q, split, p) == len(shared)
        assert all(overlap_count(split, p, other, q) == 0 for q in set(range(other.nprocs)) - set(runs_of))


def test_coordinates_that_share_nothing_cost_nothing() -> None:
    """A million coordinates on both sides: only p's own block and the three that meet it are seen."""
    p = 500_000
    assert set(overlaps(Split(10**7, 10, 10**6), p, Split(10**7, 5, 2 * 10**6))) == {2 * p, 2 * p + 1}
    assert overlap_count(Split(10**7, 10, 10**6), p, Split(10**7, 10**7, 1), 0) == 10


@given(pairs(), st.integers(1, 4))
def test_shared_elements_are_counted_by_periods(pair: tuple[Split, Split], times: int) -> None:
    """Where many periods are counted at once, the count is that of the elements."""
    first, second = (replace(split, n=split.n + 40 * times, nb=1 + split.nb % 3) for split in pair)
    for p in range(first.nprocs):
        own = set(elements(first, p))
        for q in range(second.nprocs):
            assert overlap_count(first, p, second, q) == len(own.intersection(elements(second, q)))


def test_long_dimensions_are_counted_at_once() -> None:
    """There are more blocks than a loop could visit."""
    n = 10**15
    first, second = Split(n, 1, 3), Split(n, 5, 7, 2, 4)
    counts = [[overlap_count(first, p, second, q) for q in range(7)] for p in range(3)]
    assert [sum(row) for row in counts] == [first.count(p) for p in range(3)]
    assert [sum(column) for column in zip(*counts, strict=True)] == [second.count(q) for q in range(7)]
