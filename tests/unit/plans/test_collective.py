"""Laws of the rounds of collectives: every element moves once, in contiguous memory or any other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pblas.collectives.collective_plan import SLOT_NBYTES, Rounds, aligned, choose, shares, width_of
from pblas.collectives.staging_run import Flat, spans

COUNTS = st.integers(0, 200)


@given(COUNTS, st.integers(1, 9), st.integers(1, 40))
def test_shares_are_whole_units_and_even(n: int, nparts: int, unit: int) -> None:
    bounds = shares(n, nparts, unit)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, n, nparts + 1)
    assert all(a % unit == 0 or a == n for a in bounds)
    units = [-(-(b - a) // unit) for a, b in pairwise(bounds)]
    assert units == [len(part) for part in np.array_split(np.empty(-(-n // unit)), nparts)]


@given(st.lists(COUNTS, min_size=1, max_size=6), st.integers(1, 50), st.booleans())
def test_rounds_move_every_element_once(counts: list[int], width: int, whole: bool) -> None:
    """Pieces for different ranks are adjacent in a slot."""
    bounds = (0, sum(counts)) if whole else tuple(np.cumsum([0, *counts]).tolist())
    rounds, nprocs = Rounds(bounds, width, whole), len(counts)
    for rank in range(nprocs):
        pieces = [rounds.piece(rank, number) for number in range(len(rounds))]
        start, stop = rounds.part(rank)
        assert [i for a, b in pieces for i in range(a, b)] == list(range(start, stop))
        assert all(b - a <= width for a, b in pieces)
        assert rounds.place(rank) + width <= (width if whole else nprocs * width)
    if not whole:
        assert rounds.slot_nelements == nprocs * width


@pytest.mark.parametrize("itemsize", [2, 4, 8, 16])
@pytest.mark.parametrize("unit", [1, 64, 10**7])
def test_widths_fit_in_a_slot_as_whole_units(itemsize: int, unit: int) -> None:
    for nparts in (1, 3, 8):
        width = width_of(nparts, itemsize, unit)
        assert width % unit == 0
        assert width == unit or nparts * width * itemsize <= SLOT_NBYTES
    assert aligned(itemsize) * itemsize == 64


def test_small_arrays_and_few_rows_take_one_shot() -> None:
    for transport in ("shared", "mixed", "message", "push"):
        assert choose(64, 4, transport, 8) == "one_shot"
        assert choose(1 << 24, 4, transport, 1 << 20) == "two_shot"
        assert choose(1 << 24, 4, transport, 3) == "one_shot"
    for nprocs, largest, whole in ((2, 1 << 20, 1 << 20), (4, 256 << 10, 512 << 10), (8, 128 << 10, 256 << 10)):
        for nbytes in (1 << i for i in range(10, 25)):
            assert (choose(nbytes, nprocs, "gpus", 1 << 20) == "one_shot") == (nbytes <= largest)
            assert (choose(nbytes, nprocs, "gpus", 1 << 20, whole=True) == "one_shot") == (nbytes <= whole)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Arrays of any strides with elements that are all different."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=0, max_size=4)))
    steps = [draw(st.sampled_from([1, 2, -1])) for _ in shape]
    axes = draw(st.permutations(range(len(shape))))
    whole = np.arange(np.prod([2 * n for n in shape], dtype=int)).reshape([2 * n for n in shape]).transpose(axes)
    index: Any = (*(slice(None, None, step) for step in steps), ...)
    return whole[index]


@given(arrays(), st.data())
def test_flat_arrays_read_and_write_c_order(x: Any, data: st.DataObject) -> None:
    line, base = x.flatten(), data.draw(st.integers(0, 9))
    a = data.draw(st.integers(0, line.size))
    b = data.draw(st.integers(a, line.size))
    assert [i for view in spans(x, a, b) for i in view.flatten()] == line[a:b].tolist()
    flat = Flat(x, base)
    assert flat.get(base + a, base + b).tolist() == line[a:b].tolist()
    target = np.full(b - a, -1)
    flat.read(base + a, base + b, target)
    assert target.tolist() == line[a:b].tolist()
    flat.write(base + a, base + b, -target - 7)
    line[a:b] = -line[a:b] - 7
    assert x.flatten().tolist() == line.tolist()
