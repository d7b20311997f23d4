"""Laws of Trapezoid, against numpy.triu and numpy.tril."""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.layouts.messages import receives
from pblas.layouts.placement import Placement
from pblas.layouts.trapezoid import Trapezoid
from tests.unit.layouts.test_placement import descriptors

uplos: st.SearchStrategy[Literal["U", "L"]] = st.sampled_from(["U", "L"])
trapezoids = st.builds(Trapezoid, uplos, st.integers(-12, 12))


def mask(trapezoid: Trapezoid, m: int, n: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    ones = np.ones((m, n), np.bool_)
    return (np.triu if trapezoid.uplo == "U" else np.tril)(ones, trapezoid.diagonal)


@given(trapezoids, st.integers(0, 9), st.integers(0, 9), st.data())
def test_elements_are_those_of_numpy(trapezoid: Trapezoid, m: int, n: int, data: st.DataObject) -> None:
    i0, j0 = data.draw(st.integers(0, m)), data.draw(st.integers(0, n))
    inside = mask(trapezoid, m, n)
    assert trapezoid.count(i0, m, j0, n) == inside[i0:, j0:].sum()
    assert np.array_equal(mask(trapezoid.T, n, m), inside.T)
    assert np.array_equal(mask(trapezoid.shifted(i0, j0), m - i0, n - j0), inside[i0:, j0:])


@given(trapezoids, descriptors((13, 11)), descriptors((13, 11)))
def test_cut_moves_are_the_elements_inside_each_once(
    trapezoid: Trapezoid, a: MatrixDescriptor, b: MatrixDescriptor
) -> None:
    check_cut(trapezoid, a, b)


@pytest.mark.parametrize("longest", [64, 1 << 62])
@pytest.mark.parametrize("trapezoid", [Trapezoid("U", -3), Trapezoid("L", 70)])
def test_runs_longer_than_the_blocks_of_a_cut(trapezoid: Trapezoid, longest: int) -> None:
    whole = MatrixDescriptor(200, 150, 200, 150, Grid(1, 1))
    cyclic = MatrixDescriptor(200, 150, 90, 70, Grid(2, 1), imb=33)
    for a, b in itertools.product((whole, cyclic), repeat=2):
        check_cut(trapezoid, a, b, longest)


def check_cut(trapezoid: Trapezoid, a: MatrixDescriptor, b: MatrixDescriptor, longest: int = 64) -> None:
    source, target = Placement.of(a), Placement.of(b)
    inside = mask(trapezoid, *target.shape)
    for rank in range(target.span):
        position, received, seen = target.coordinates(rank), 0, np.zeros(target.shape, int)
        assert position is not None
        for move in receives(source, target, rank):
            for part, left in trapezoid.cut(move, target, rank, 1, longest):
                assert part.peer == move.peer
                belongs = np.ones(part.shape, np.bool_) if left is None else mask(left, *part.shape)
                i = [target.rows.global_from_local(run[1] + l, position[0]) for run in part.rows for l in range(run[2])]
                j = [
                    target.columns.global_from_local(run[1] + l, position[1])
                    for run in part.columns
                    for l in range(run[2])
                ]
                seen[np.ix_(i, j)] += belongs
                received += int(belongs.sum()) * (move.peer != rank)
        own_rows, own_columns = (
            [g for r in split.ranges(p) for g in range(*r)]
            for split, p in ((target.rows, position[0]), (target.columns, position[1]))
        )
        expected = np.zeros(target.shape, int)
        expected[np.ix_(own_rows, own_columns)] = inside[np.ix_(own_rows, own_columns)]
        assert np.array_equal(seen, expected)
        assert received == trapezoid.received_count(source, target, rank)
