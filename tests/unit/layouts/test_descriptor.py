"""Laws of MatrixDescriptor, against an enumeration of the elements of every rank."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pblas.errors import LayoutError
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from tests.common.descriptors import descriptors

Elements = list[tuple[int, int]]


def owners(n: int, nb: int, nprocs: int, src: int, first: int | None) -> list[set[int]]:
    """The coordinates that own each element of one dimension, from the definition."""
    if src == -1:
        return [set(range(nprocs))] * n
    blocks = [[src] * (first or nb), *([(src + b) % nprocs] * nb for b in range(1, n + 1))]
    return [{p} for p in itertools.chain.from_iterable(blocks)][:n]


def elements(desc: MatrixDescriptor, rank: int) -> Elements:
    """The elements that a rank owns, row by row, from the definition."""
    myrow, mycol = desc.grid.coordinates(rank)
    rows = owners(desc.m, desc.mb, desc.grid.nprow, desc.rsrc, desc.imb)
    columns = owners(desc.n, desc.nb, desc.grid.npcol, desc.csrc, desc.inb)
    return [(i, j) for i in range(desc.m) for j in range(desc.n) if myrow in rows[i] and mycol in columns[j]]


def holdings(desc: MatrixDescriptor) -> list[Elements]:
    """`elements` of all ranks, without the ranks at the end that own nothing."""
    lists = [elements(desc, rank) for rank in range(desc.nprocs)]
    while lists and not lists[-1]:
        lists.pop()
    return lists


@given(descriptors())
def test_local_shapes_and_ranges_enumerate_the_elements(desc: MatrixDescriptor) -> None:
    largest = 0
    for rank in range(desc.nprocs + 2):
        m_loc, n_loc = desc.local_shape(rank)
        rows, columns = desc.global_ranges(rank)
        i = [k for i0, i1 in rows for k in range(i0, i1)]
        j = [k for j0, j1 in columns for k in range(j0, j1)]
        assert (m_loc, n_loc) == (len(i), len(j))
        assert list(itertools.product(i, j)) == elements(desc, rank)
        largest = max(largest, m_loc * n_loc)
    assert desc.max_local_nelements == largest


@given(descriptors())
def test_global_and_local_indices_are_inverse(desc: MatrixDescriptor) -> None:
    for rank in range(desc.nprocs):
        m_loc, n_loc = desc.local_shape(rank)
        for local in itertools.product(range(m_loc), range(n_loc)):
            i, j = desc.global_index(rank, *local)
            assert desc.local_index(i, j) == local
    for i, j in itertools.product(range(desc.m), range(desc.n)):
        owner = desc.owner(i, j)
        assert owner == desc.grid.rank(*min(desc.grid.coordinates(rank) for rank in holders(desc, i, j)))
        assert desc.global_index(owner, *desc.local_index(i, j)) == (i, j)


def holders(desc: MatrixDescriptor, i: int, j: int) -> list[int]:
    """All ranks that own element (i, j)."""
    return [rank for rank in range(desc.nprocs) if (i, j) in elements(desc, rank)]


@given(descriptors())
def test_index_maps_take_arrays(desc: MatrixDescriptor) -> None:
    i, j = np.arange(desc.m)[:, None], np.arange(desc.n)[None, :]
    table = [[desc.owner(a, b) for b in range(desc.n)] for a in range(desc.m)]
    assert desc.owner(i, j).tolist() == table
    i_loc, j_loc = desc.local_index(i, j)
    assert i_loc.shape == (desc.m, 1)
    assert j_loc.shape == (1, desc.n)
    for rank in range(desc.nprocs):
        m_loc, n_loc = desc.local_shape(rank)
        rows, columns = desc.global_index(rank, np.arange(m_loc), np.arange(n_loc))
        assert list(itertools.product(rows.tolist(), columns.tolist())) == elements(desc, rank)


@given(descriptors())
def test_transposing_moves_nothing(desc: MatrixDescriptor) -> None:
    assert desc == desc.T.T
    assert desc.T.order != desc.order
    for rank in range(desc.nprocs + 1):
        assert desc.T.local_shape(rank) == desc.local_shape(rank)[::-1]
        assert desc.T.local_lld(rank) == desc.local_lld(rank)
        assert sorted((i, j) for j, i in elements(desc.T, rank)) == elements(desc, rank)
    assert (desc.T.is_row_wise, desc.T.is_column_wise) == (desc.is_column_wise, desc.is_row_wise)
    assert desc.T.is_replicated == desc.is_replicated


@given(descriptors(), st.data())
def test_a_submatrix_keeps_every_owner_and_begins_at_its_local_offset(
    desc: MatrixDescriptor, data: st.DataObject
) -> None:
    i0, j0 = data.draw(st.integers(0, desc.m)), data.draw(st.integers(0, desc.n))
    i1, j1 = data.draw(st.integers(i0, desc.m)), data.draw(st.integers(j0, desc.n))
    view = desc.submatrix(i0, i1, j0, j1)
    assert view.shape == (i1 - i0, j1 - j0)
    assert view.order == desc.order
    for rank in range(desc.nprocs):
        inside = [(i, j) for i, j in elements(desc, rank) if i0 <= i < i1 and j0 <= j < j1]
        assert [(i + i0, j + j0) for i, j in elements(view, rank)] == inside
        row0, column0 = desc.local_offset(i0, j0, rank)
        for i_loc, j_loc in itertools.product(*map(range, view.local_shape(rank))):
            i, j = view.global_index(rank, i_loc, j_loc)
            assert desc.global_index(rank, row0 + i_loc, column0 + j_loc) == (i + i0, j + j0)


def small_descriptors() -> Iterator[MatrixDescriptor]:
    """Descriptors of one shape that differ in everything else."""
    for nprow, npcol, order in itertools.product((1, 2, 4), (1, 2), ("C", "R")):
        grid = Grid(nprow, npcol, "C" if order == "C" else "R")
        for mb, nb, rsrc, csrc in itertools.product((1, 2, 4), (1, 3), range(-1, nprow), range(-1, npcol)):
            yield MatrixDescriptor(4, 3, mb, nb, grid, rsrc, csrc)


def test_same_distribution_over_all_pairs_of_small_descriptors() -> None:
    described = [(desc, holdings(desc)) for desc in small_descriptors()]
    for (first, first_holds), (second, second_holds) in itertools.combinations(described, 2):
        assert first.same_distribution(second) == (first_holds == second_holds), (first, second)


def test_classes_of_distributions() -> None:
    for desc in small_descriptors():
        everywhere = all(desc.local_shape(rank) == desc.shape for rank in range(desc.nprocs))
        if desc.is_replicated:
            assert everywhere
        if desc.is_row_wise:
            assert all(desc.local_shape(rank)[1] == desc.n for rank in range(desc.nprocs))
        if desc.is_column_wise:
            assert all(desc.local_shape(rank)[0] == desc.m for rank in range(desc.nprocs))
        kinds = [desc.is_row_wise, desc.is_column_wise, desc.is_replicated]
        assert sum(kinds) == 3 if desc.nprocs == 1 else sum(kinds) <= 1


def test_named_constructors() -> None:
    rows = MatrixDescriptor.row_wise(10, 3, 4, order="C")
    assert rows == MatrixDescriptor(10, 3, 3, 3, Grid(4, 1), order="C")
    assert rows.is_row_wise
    assert MatrixDescriptor.column_wise(3, 10, 4) == rows.T
    assert MatrixDescriptor.column_wise(3, 10, 4, nb=2, csrc=1).local_shape(0) == (3, 2)
    assert MatrixDescriptor.replicated(3, 5, 4).is_replicated
    assert MatrixDescriptor.row_wise(8, 8, 2, rsrc=-1).is_replicated
    grid = Grid(2, 2)
    assert MatrixDescriptor.block_cyclic(7, 9, 2, 3, grid, rsrc=1) == MatrixDescriptor(7, 9, 2, 3, grid, 1)
    for m, n in ((0, 0), (0, 3), (3, 0), (1, 1)):
        for desc in (
            MatrixDescriptor.row_wise(m, n, 3),
            MatrixDescriptor.column_wise(m, n, 3),
            MatrixDescriptor.replicated(m, n, 3),
        ):
            assert desc.shape == (m, n)
            assert desc.mb >= 1 <= desc.nb


def test_lld_is_local() -> None:
    tight = MatrixDescriptor(5, 8, 2, 3, Grid(2, 2))
    padded = dataclasses.replace(tight, lld=9)
    assert tight == padded
    assert hash(tight) == hash(padded)
    assert tight.same_distribution(padded)
    assert padded.T.lld == padded.submatrix(1, 3, 1, 3).lld == 9
    assert [tight.local_lld(rank) for rank in range(5)] == [3, 2, 3, 2, 1]
    assert [dataclasses.replace(tight, order="C").local_lld(rank) for rank in range(5)] == [5, 5, 3, 3, 1]
    assert padded.local_lld(0) == 9


def test_lld_that_is_too_small_is_named_with_the_rule() -> None:
    desc = MatrixDescriptor(50, 8, 8, 8, Grid(2, 1), lld=25)
    desc.check_lld(1, "C")
    desc.check_lld(7, "C")
    with pytest.raises(LayoutError) as caught:
        desc.check_lld(0, "C")
    assert str(caught.value) == (
        "lld of C on process (0, 0) is 25; it must be at least numroc(50, 8, 0, 0, 2) = 26. lld=None takes the least."
    )
    row_major = MatrixDescriptor(4, 9, 2, 2, Grid(1, 2), order="C", lld=3, inb=1)
    with pytest.raises(LayoutError, match=r"numroc\(9, 2, 1, 0, 2, inb=1\) = 4"):
        row_major.check_lld(1)


@given(descriptors())
def test_repr_and_pickle_give_the_descriptor_back(desc: MatrixDescriptor) -> None:
    padded = dataclasses.replace(desc, lld=11)
    for copy in (eval(repr(padded)), pickle.loads(pickle.dumps(padded))):
        assert copy == desc
        assert copy.lld == 11
        assert (copy.rows, copy.columns) == (desc.rows, desc.columns)


def test_first_blocks_of_the_usual_size_are_not_spoken_of() -> None:
    grid = Grid(2, 2)
    assert MatrixDescriptor(9, 9, 2, 3, grid, imb=2, inb=3) == MatrixDescriptor(9, 9, 2, 3, grid)


def test_a_million_ranks_cost_what_one_does() -> None:
    """No member may enumerate ranks: with 10**6 ranks and 10**18 elements a loop would take too long."""
    square = MatrixDescriptor(10**9, 10**9, 64, 32, Grid(1000, 1000), rsrc=3, csrc=999)
    tall = MatrixDescriptor.row_wise(10**9, 3, 10**6)
    for desc in (square, tall, square.T, tall.T, MatrixDescriptor.replicated(10**9, 5, 10**6)):
        assert desc.nprocs == 10**6
        assert desc.same_distribution(desc.submatrix(0, desc.m, 0, desc.n))
        assert desc.max_local_nelements >= desc.local_shape(0)[0] * desc.local_shape(0)[1]
        for rank in (0, 1, 123_456, 999_999):
            m_loc, n_loc = desc.local_shape(rank)
            i, j = desc.global_index(rank, m_loc - 1, n_loc - 1)
            assert desc.is_replicated or desc.owner(i, j) == rank
            assert desc.local_index(i, j) == (m_loc - 1, n_loc - 1)
            assert desc.submatrix(i, i + 1, j, j + 1).local_shape(rank) == (1, 1)
            assert desc.T.local_shape(rank) == (n_loc, m_loc)
    rows, columns = square.global_ranges(123_456)
    assert len(rows) == 10**9 // (64 * 1000)
    assert len(columns) == 10**9 // (32 * 1000)
    assert tall.global_ranges(999) == ([(999 * 1000, 1000 * 1000)], [(0, 3)])
    assert tall.local_shape(10**6) == (0, 0)


GRID = Grid(2, 3)


def described(**changes: Any) -> MatrixDescriptor:
    """A good descriptor with one thing changed."""
    arguments: dict[str, Any] = {"m": 9, "n": 8, "mb": 2, "nb": 3, "grid": GRID}
    return MatrixDescriptor(**(arguments | changes))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"m": -1}, "m is -1; expected an integer >= 0."),
        ({"n": 8.0}, "n is 8.0, a float; expected an integer >= 0."),
        ({"mb": 0}, "mb is 0; expected an integer >= 1."),
        ({"nb": "3"}, "nb is '3', a str; expected an integer >= 1."),
        ({"nb": True}, "nb is True, a bool; expected an integer >= 1."),
        ({"grid": (2, 3)}, "grid is (2, 3), a tuple; expected a Grid, for example Grid(2, 3)."),
        ({"rsrc": 2}, "rsrc is 2; expected an integer in -1..1 (nprow - 1; -1 is replicated)."),
        ({"csrc": -2}, "csrc is -2; expected an integer in -1..2 (npcol - 1; -1 is replicated)."),
        ({"order": "R"}, "order is 'R'; expected 'F' (column-major) or 'C' (row-major)."),
        ({"lld": 0}, "lld is 0; expected an integer >= 1."),
        ({"imb": 0}, "imb is 0; expected an integer >= 1."),
        ({"inb": 1.5}, "inb is 1.5, a float; expected an integer >= 1."),
    ],
)
def test_a_bad_argument_is_named_with_its_value(changes: dict[str, Any], text: str) -> None:
    assert described().shape == (9, 8)
    with pytest.raises(LayoutError) as caught:
        described(**changes)
    assert str(caught.value) == f"MatrixDescriptor: {text}"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda d: d.owner(9, 0), "owner in a 9 x 8 matrix: i is 9; expected an integer in 0..8."),
        (lambda d: d.owner(0, -1), "owner in a 9 x 8 matrix: j is -1; expected an integer in 0..7."),
        (lambda d: d.local_index(0, 8), "local_index in a 9 x 8 matrix: j is 8; expected an integer in 0..7."),
        (
            lambda d: d.global_index(1, 4, 0),
            "global_index on rank 1, which holds 4 x 3: i_loc is 4; expected an integer in 0..3.",
        ),
        (lambda d: d.global_index(6, 0, 0), "global_index: rank is 6; expected a rank of the grid, in 0..5."),
        (lambda d: d.local_shape(-1), "Grid.coordinates: rank is -1; expected an integer >= 0."),
        (lambda d: d.submatrix(0, 9, 4, 9), "part: the range is 4:9; expected 0 <= start <= stop <= n = 8."),
        (lambda d: d.row_wise(4, 4, 0), "row_wise: nprocs is 0; expected an integer >= 1."),
        (lambda d: d.column_wise(4, "4", 2), "column_wise: n is '4', a str; expected an integer >= 0."),
    ],
)
def test_a_bad_index_is_named_with_its_value(call: Callable[[Any], object], text: str) -> None:
    with pytest.raises(LayoutError) as caught:
        call(described())
    assert str(caught.value) == text
