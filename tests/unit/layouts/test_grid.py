"""Laws of Grid over all small grids."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from pblas.errors import LayoutError
from pblas.layouts.grid import Grid


def all_grids() -> Iterator[Grid]:
    """Every small grid in both orders."""
    for nprow, npcol in itertools.product(range(1, 5), repeat=2):
        yield Grid(nprow, npcol)
        yield Grid(nprow, npcol, "R")


def places(grid: Grid) -> list[tuple[int, int]]:
    """Coordinates of ranks 0, 1, ... as BLACS numbers them."""
    if grid.order == "C":
        return [(r, c) for c in range(grid.npcol) for r in range(grid.nprow)]
    return [(r, c) for r in range(grid.nprow) for c in range(grid.npcol)]


def test_numbering_is_that_of_blacs() -> None:
    for grid in all_grids():
        assert grid.size == grid.nprow * grid.npcol
        assert [grid.coordinates(rank) for rank in range(grid.size)] == places(grid)
        assert [grid.rank(*place) for place in places(grid)] == list(range(grid.size))


def test_ranks_beyond_the_grid_are_outside() -> None:
    for grid in all_grids():
        assert [grid.coordinates(grid.size + k) for k in range(3)] == [(-1, -1)] * 3


def test_the_transposed_grid_has_every_rank_at_the_mirrored_place() -> None:
    for grid in all_grids():
        assert grid == grid.T.T
        for rank in range(grid.size):
            assert grid.T.coordinates(rank) == grid.coordinates(rank)[::-1]
    assert Grid.column(5) == Grid.row(5).T


def test_equivalent_grids_have_the_same_place_for_every_rank() -> None:
    for first, second in itertools.product(all_grids(), repeat=2):
        same_shape = (first.nprow, first.npcol) == (second.nprow, second.npcol)
        assert first.equivalent(second) == (same_shape and places(first) == places(second))


def test_arrays_of_coordinates_give_arrays_of_ranks() -> None:
    for grid in all_grids():
        ranks = grid.rank(np.arange(grid.nprow)[:, None], np.arange(grid.npcol)[None, :])
        assert ranks.tolist() == [[grid.rank(r, c) for c in range(grid.npcol)] for r in range(grid.nprow)]


def test_repr_and_pickle_give_the_grid_back() -> None:
    for grid in all_grids():
        assert eval(repr(grid)) == grid
        assert pickle.loads(pickle.dumps(grid)) == grid


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Grid(0, 2), "Grid: nprow is 0; expected an integer >= 1."),
        (lambda: Grid(2, True), "Grid: npcol is True, a bool; expected an integer >= 1."),
        (lambda: Grid(2, 2.0), "Grid: npcol is 2.0, a float; expected an integer >= 1."),  # type: ignore[arg-type]
        (lambda: Grid(2, 2, "F"), "Grid: order is 'F'; expected 'C' (column-major) or 'R' (row-major)."),  # type: ignore[arg-type]
        (lambda: Grid(2, 2).rank(2, 0), "Grid.rank: myrow is 2; expected an integer in 0..1."),
        (lambda: Grid(2, 2).rank(0, -1), "Grid.rank: mycol is -1; expected an integer in 0..1."),
        (lambda: Grid(2, 2).coordinates(-1), "Grid.coordinates: rank is -1; expected an integer >= 0."),
    ],
)
def test_a_bad_argument_is_named_with_its_value(call: Callable[[], object], text: str) -> None:
    with pytest.raises(LayoutError) as caught:
        call()
    assert str(caught.value) == text
