"""Laws of Placement, by brute force over small grids."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pblas.errors import LayoutError
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split


@st.composite
def descriptors(draw: st.DrawFn, shape: tuple[int, int] | None = None) -> MatrixDescriptor:
    m, n = shape or (draw(st.integers(0, 20)), draw(st.integers(0, 20)))
    grid = Grid(draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.sampled_from("CR")))
    return MatrixDescriptor(
        *(m, n, draw(st.integers(1, 7)), draw(st.integers(1, 7)), grid),
        *(draw(st.integers(-1, grid.nprow - 1)), draw(st.integers(-1, grid.npcol - 1))),
        imb=draw(st.none() | st.integers(1, 9)),
        inb=draw(st.none() | st.integers(1, 9)),
    )


@st.composite
def placements(draw: st.DrawFn, shape: tuple[int, int] | None = None) -> Placement:
    """Up to 2 x 3 x 2 ranks in any nesting, with gaps between them and before them."""
    m, n = shape or (draw(st.integers(0, 20)), draw(st.integers(0, 20)))
    extents = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    strides, reach = [0, 0, 0], 1
    for i in draw(st.permutations(range(3))):
        reach *= draw(st.sampled_from((1, 1, 1, 2)))
        strides[i] = reach
        reach *= extents[i]
    rows, columns = (
        Split(
            length,
            draw(st.integers(1, 7)),
            extent,
            draw(st.integers(0, extent - 1)),
            draw(st.none() | st.integers(1, 9)),
        )
        for length, extent in zip((m, n), extents, strict=False)
    )
    return Placement(rows, columns, (strides[0], strides[1], strides[2]), extents[2], draw(st.sampled_from((0, 0, 3))))


def held(place: Placement, rank: int) -> list[tuple[int, int]]:
    """The elements of a rank, row by row."""
    position = place.coordinates(rank)
    if position is None:
        return []
    rows, columns = (
        [g for r in split.ranges(p) for g in range(*r)]
        for split, p in ((place.rows, position[0]), (place.columns, position[1]))
    )
    return [(i, j) for i in rows for j in columns]


@given(descriptors())
def test_every_rank_holds_what_the_descriptor_says(desc: MatrixDescriptor) -> None:
    place = Placement.of(desc)
    for rank in range(desc.nprocs + 3):
        assert place.local_shape(rank) == desc.local_shape(rank)
        rows, columns = desc.global_ranges(rank)
        assert held(place, rank) == [(i, j) for r in rows for i in range(*r) for c in columns for j in range(*c)]
    assert place.span == desc.nprocs


@given(placements())
def test_ranks_and_coordinates_are_inverse(place: Placement) -> None:
    coordinates = {place.rank(*position): position for position in itertools.product(*map(range, place.extents))}
    assert len(coordinates) == place.extents[0] * place.extents[1] * place.extents[2]
    assert {rank: place.coordinates(rank) for rank in coordinates} == coordinates
    assert all(place.coordinates(rank) is None for rank in set(range(place.span + 5)) - set(coordinates))
    assert place.span == max(coordinates) + 1


@given(placements(), st.data())
def test_parts_and_transposes_stay_where_they_are(place: Placement, data: st.DataObject) -> None:
    (m, n), draw = place.shape, data.draw
    i0, j0 = draw(st.integers(0, m)), draw(st.integers(0, n))
    i1, j1 = draw(st.integers(i0, m)), draw(st.integers(j0, n))
    part = place.part(i0, i1, j0, j1)
    for rank in range(place.span + 1):
        inside = [(i - i0, j - j0) for i, j in held(place, rank) if i0 <= i < i1 and j0 <= j < j1]
        assert held(part, rank) == inside
        assert sorted((j, i) for i, j in held(place.T, rank)) == sorted(held(place, rank))
        position = place.coordinates(rank)
        if position is not None:
            r0, c0 = place.local_offset(i0, j0, rank)
            assert r0 == len([i for i in range(i0) if place.rows.owner(i) == position[0]])
            assert c0 == len([j for j in range(j0) if place.columns.owner(j) == position[1]])
    assert place == place.T.T


@given(placements())
def test_layers_are_the_copies_one_by_one(place: Placement) -> None:
    layers = [place.layer(z) for z in range(place.copies)]
    for rank in range(place.span + 1):
        position = place.coordinates(rank)
        for z, layer in enumerate(layers):
            assert held(layer, rank) == (held(place, rank) if position is not None and position[2] == z else [])


def test_coordinates_that_share_a_rank_are_refused() -> None:
    with pytest.raises(LayoutError, match="collide"):
        Placement(Split(4, 2, 2), Split(4, 2, 2), (1, 1, 4))
    with pytest.raises(LayoutError, match="collide"):
        Placement(Split(4, 2, 2), Split(4, 2, 2), (1, 3, 4))
    with pytest.raises(LayoutError, match="copies"):
        Placement(Split(4, 2, 2, -1), Split(4, 2, 1), (1, 2, 4))
