"""Laws of Split, by brute force over small values and by hypothesis over larger ones."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from types import GeneratorType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pblas.errors import LayoutError
from pblas.layouts.split import Split


def all_splits(sizes: range, nbs: tuple[int, ...] = (1, 2, 3, 9), nprocs: range = range(1, 5)) -> list[Split]:
    """Every split of these sizes, replicated ones included."""
    return [
        Split(n, nb, count, src, inb)
        for n, nb, count, inb in itertools.product(sizes, nbs, nprocs, (None, 1, 2, 4, 12))
        for src in range(-1, count)
    ]


def owned(split: Split) -> list[list[int]]:
    """The elements of every process, from the definition."""
    if split.src == -1:
        return [list(range(split.n)) for _ in range(split.nprocs)]
    first = split.nb if split.inb is None else split.inb
    blocks = [0 if g < first else 1 + (g - first) // split.nb for g in range(split.n)]
    return [[g for g in range(split.n) if (split.src + blocks[g]) % split.nprocs == p] for p in range(split.nprocs)]


def ownership(split: Split) -> tuple[tuple[int, ...], ...]:
    """`owned` without the last processes that own nothing: equal for equivalent splits."""
    lists = [tuple(elements) for elements in owned(split)]
    while lists and not lists[-1]:
        lists.pop()
    return tuple(lists)


@st.composite
def splits(draw: st.DrawFn, max_n: int = 300) -> Split:
    n, nb = draw(st.integers(0, max_n)), draw(st.integers(1, 40))
    nprocs = draw(st.integers(1, 12))
    return Split(n, nb, nprocs, draw(st.integers(-1, nprocs - 1)), draw(st.none() | st.integers(1, 60)))


def check_maps(split: Split) -> None:
    """Every member agrees with the definition."""
    lists = owned(split)
    for p, elements in enumerate(lists):
        assert split.count(p) == len(elements)
        assert [split.global_from_local(l, p) for l in range(len(elements))] == elements
        assert [g for g0, g1 in split.ranges(p) for g in range(g0, g1)] == elements
        if p == 0 or split.src != -1:
            assert [split.owner(g) for g in elements] == [p] * len(elements)
        assert [split.local_from_global(g) for g in elements] == list(range(len(elements)))
        before = 0
        for g in range(split.n + 1):
            assert split.local_start(g, p) == before
            before += g < split.n and g in elements[before : before + 1]
    assert split.max_count == max(len(elements) for elements in lists)
    blocks = [split.block(b) for b in range(split.nblocks)]
    assert [g for g0, g1 in blocks for g in range(g0, g1)] == list(range(split.n))
    assert all(g0 < g1 and split.owner(g0) == split.owner(g1 - 1) for g0, g1 in blocks)


def test_members_agree_with_the_definition() -> None:
    for split in all_splits(range(11)):
        check_maps(split)


@given(splits())
def test_members_agree_with_the_definition_at_larger_sizes(split: Split) -> None:
    check_maps(split)


def test_ranges_are_ascending_merged_and_clipped() -> None:
    for split in all_splits(range(8), nbs=(1, 2, 3)):
        for p, (g0, g1) in itertools.product(
            range(split.nprocs), itertools.combinations_with_replacement(range(split.n + 1), 2)
        ):
            ranges = split.ranges(p, g0, g1)
            assert [g for lo, hi in ranges for g in range(lo, hi)] == [g for g in owned(split)[p] if g0 <= g < g1]
            assert all(lo < hi for lo, hi in ranges)
            assert all(left[1] < right[0] for left, right in itertools.pairwise(ranges))


@given(splits(), st.data())
def test_part_keeps_every_owner(split: Split, data: st.DataObject) -> None:
    g0 = data.draw(st.integers(0, split.n))
    g1 = data.draw(st.integers(g0, split.n))
    part = split.part(g0, g1)
    assert part.n == g1 - g0
    assert part.is_replicated == split.is_replicated
    for p in range(split.nprocs):
        assert [g + g0 for g in owned(part)[p]] == [g for g in owned(split)[p] if g0 <= g < g1]
    h0 = data.draw(st.integers(0, part.n))
    assert part.part(h0, part.n) == split.part(g0 + h0, g1)


def test_the_whole_part_is_the_split_itself() -> None:
    for split in all_splits(range(8)):
        whole = split.part(0, split.n)
        assert whole.equivalent(split)
        if not split.is_replicated:
            assert whole == split


def test_canonical_forms_are_equal_exactly_where_ownership_is() -> None:
    canonical_from_ownership: dict[tuple[int, tuple[tuple[int, ...], ...]], Split] = {}
    for split in all_splits(range(9)):
        canonical = split.canonical
        assert canonical.canonical == canonical
        assert ownership(canonical) == ownership(split)
        key = (split.n, ownership(split))
        assert canonical_from_ownership.setdefault(key, canonical) == canonical
    assert len(set(canonical_from_ownership.values())) == len(canonical_from_ownership)


@given(splits(max_n=30), splits(max_n=30))
def test_equivalent_splits_have_the_same_ownership(first: Split, second: Split) -> None:
    assert first.equivalent(second) == (first.n == second.n and ownership(first) == ownership(second))


def test_first_block_of_the_usual_size_is_not_spoken_of() -> None:
    assert Split(9, 2, 2, inb=2) == Split(9, 2, 2)
    assert hash(Split(9, 2, 2, inb=2)) == hash(Split(9, 2, 2))
    assert Split(9, 2, 2, inb=2).inb is None


def test_repr_and_pickle_give_the_split_back() -> None:
    for split in all_splits(range(3)):
        assert eval(repr(split)) == split
        assert pickle.loads(pickle.dumps(split)) == split


def test_coordinates_outside_the_grid_own_nothing() -> None:
    for split in (Split(9, 2, 2), Split(9, 2, 2, -1)):
        for p in (-1, 2, 7):
            assert split.count(p) == 0
            assert split.ranges(p) == []
            assert split.local_start(5, p) == 0


def test_arrays_give_what_their_elements_give() -> None:
    for split in all_splits(range(9, 10), nbs=(2, 3)):
        g = np.arange(split.n)
        assert split.owner(g).tolist() == [split.owner(int(x)) for x in g]
        assert split.local_from_global(g).tolist() == [split.local_from_global(int(x)) for x in g]
        for p in range(split.nprocs):
            l = np.arange(split.count(p))
            assert split.global_from_local(l, p).tolist() == owned(split)[p]
            assert split.local_start(g, p).tolist() == [split.local_start(int(x), p) for x in g]


def test_numpy_integers_are_written_as_int() -> None:
    nine: Any = np.int32(9)
    split = Split(nine, nine, nine, nine - 1, nine)
    assert split == Split(9, 9, 9, 8)
    assert all(type(value) is int for value in (split.n, split.nb, split.nprocs, split.src))
    assert split.part(nine - 2, nine) == Split(9, 9, 9, 8).part(7, 9)


def test_a_million_processes_cost_what_one_does() -> None:
    split = Split(10**15, 7, 10**6, src=999_999, inb=3)
    assert split.max_count == split.count(0)
    g = split.global_from_local(10**8, 123_456)
    assert split.owner(g) == 123_456
    assert split.local_from_global(g) == 10**8
    assert split.canonical.nprocs == 10**6
    runs = split.runs(5, g)
    assert isinstance(runs, GeneratorType)
    lo, hi = next(runs)
    assert split.owner(lo) == split.owner(hi - 1) == 5
    assert split.ranges(5, lo, hi + 7) == [(lo, hi)]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Split(-1, 2, 2), "Split: n is -1; expected an integer >= 0."),
        (lambda: Split(9, 0, 2), "Split: nb is 0; expected an integer >= 1."),
        (lambda: Split(9, 2, 0), "Split: nprocs is 0; expected an integer >= 1."),
        (lambda: Split(9, 2, 2, 2), "Split: src is 2; expected an integer in -1..1 (nprocs - 1; -1 is replicated)."),
        (lambda: Split(9, 2, 2, inb=0), "Split: inb is 0; expected an integer >= 1."),
        (lambda: Split(9.0, 2, 2), "Split: n is 9.0, a float; expected an integer >= 0."),  # type: ignore[arg-type]
        (lambda: Split(9, "2", 2), "Split: nb is '2', a str; expected an integer >= 1."),  # type: ignore[arg-type]
        (lambda: Split(9, 2, 2).owner(9), "owner: g is 9; expected an integer in 0..8."),
        (lambda: Split(0, 2, 2).owner(0), "owner: g is 0; expected an integer in an empty range."),
        (lambda: Split(9, 2, 2).global_from_local(4, 1), "global_from_local: l is 4; expected an integer in 0..3."),
        (lambda: Split(9, 2, 2).local_start(10, 1), "local_start: g is 10; expected an integer in 0..9."),
        (lambda: Split(9, 2, 2).block(5), "block: b is 5; expected an integer in 0..4."),
        (lambda: Split(9, 2, 2).part(3, 10), "part: the range is 3:10; expected 0 <= start <= stop <= n = 9."),
        (lambda: Split(9, 2, 2).part(3, 2), "part: the range is 3:2; expected 0 <= start <= stop <= n = 9."),
        (lambda: Split(9, 2, 2).part(1.0, 2), "part: g0 is 1.0, a float; expected an integer >= 0."),  # type: ignore[arg-type]
    ],
)
def test_a_bad_argument_is_named_with_its_value(call: Callable[[], object], text: str) -> None:
    with pytest.raises(LayoutError) as caught:
        call()
    assert str(caught.value) == text
