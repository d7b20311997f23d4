"""Levels 1 and 2, norms and assignments by ScaLAPACK's names; `make conformance` runs the whole tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pblas import PblasArgumentError, scalapack
from pblas.layouts.grid import Grid
from tests.common.gauge import entries
from tests.common.ranks import COMM, each_wrong, few, grids, raises_on_all_ranks, same_on_all_ranks
from tests.conformance import errors, vectors
from tests.conformance.problems import DTYPES, Matrix, Operand
from tests.conformance.tables import ERROR_EXITS, error_exits

pytestmark = [pytest.mark.mpi, few]
SHAPE = max(grids(COMM.size), key=min)
GRID = Grid(*SHAPE, "R")


@pytest.fixture(scope="module")
def ictxt() -> Iterator[int]:
    handle = scalapack.gridinit(COMM, "R", *SHAPE, timeout=30.0)
    yield handle
    scalapack.gridexit(handle)


@pytest.mark.parametrize("routine", vectors.ROUTINES)
def test_the_first_columns_of_the_tables_and_random_problems(ictxt: int, routine: str) -> None:
    for letter in vectors.LETTERS[routine]:
        cases = vectors.table(routine, letter)[:2] + vectors.holes(routine, letter, 3, GRID)
        for case in cases:
            assert vectors.run(case, ictxt, GRID, COMM.rank).text == "", case


@pytest.mark.parametrize(
    "routine", ["swap", "scal", "dot", "nrm2", "amax", "gemv", "symv", "trmv", "ger", "syr", "syr2"]
)
def test_error_numbers_are_those_of_pblas(routine: str) -> None:
    letter = vectors.LETTERS[routine][1]
    row = scalapack.gridinit(COMM, "R", 1, COMM.size, timeout=30.0)
    arguments, codes = errors.right(routine, letter, row), error_exits(routine)
    assert len(codes) == ERROR_EXITS[routine]
    for position, entry, value, expected in codes[:: 1 if COMM.size == 2 else 7]:
        info = errors.info(f"p{letter}{routine}", errors.broken(arguments, position, entry, value, row))
        assert info == expected, (position, entry, value)
    scalapack.gridexit(row)


@each_wrong
def test_one_wrong_rank_raises_on_all(ictxt: int, wrong: frozenset[int]) -> None:
    x = Operand(Matrix(8, 8, 2, 2), np.ones((8, 8)), GRID, COMM.rank)
    is_wrong = COMM.rank in wrong
    at = x.arguments(ictxt)

    def nrm2(increment: int) -> Any:
        return scalapack.pdnrm2(8, *at, increment)

    text = raises_on_all_ranks(
        PblasArgumentError, "INCX must be 1 (a column) or M_X = 8", lambda: nrm2(2 if is_wrong else 1)
    )
    assert "pdnrm2" in text
    assert nrm2(8) in (0.0, np.sqrt(8.0))


@pytest.mark.parametrize("letter", list(DTYPES))
@pytest.mark.parametrize("uplo", ["L", "U"])
def test_norms_are_those_of_the_whole_matrix(ictxt: int, letter: str, uplo: str) -> None:
    dtype = np.dtype(DTYPES[letter])
    eps = 30 * float(np.finfo(dtype).eps)
    for m, n in ((7, 7), (5, 9), (9, 4), (0, 3)):
        whole = entries((m + 2, n + 3), dtype, 7)
        sub = whole[1 : m + 1, 2 : n + 2]
        keep = np.tril(np.ones((m, n))) if uplo == "L" else np.triu(np.ones((m, n)))
        poisoned = whole.copy()
        poisoned[1 : m + 1, 2 : n + 2][keep == 0] = np.nan
        general, part = (
            Operand(Matrix(m + 2, n + 3, 2, 3, 2, 3), x, GRID, COMM.rank).arguments(ictxt) for x in (whole, poisoned)
        )
        triangle, unit = np.where(keep, sub, 0), np.where(keep, sub, 0)
        unit[np.diag_indices(min(m, n))] = 1
        for norm, reference in NORMS.items():
            value = same_on_all_ranks(getattr(scalapack, f"p{letter}lange")(norm, m, n, *general))
            assert value == pytest.approx(reference(sub), rel=eps)
            for diag, matrix in (("N", triangle), ("U", unit)):
                value = getattr(scalapack, f"p{letter}lantr")(norm, uplo, diag, m, n, *part)
                assert value == pytest.approx(reference(matrix), rel=eps)
            if m == n:
                strict = triangle - np.diag(triangle.diagonal())
                value = getattr(scalapack, f"p{letter}lansy")(norm, uplo, n, *part)
                assert value == pytest.approx(reference(triangle + strict.T), rel=eps)
                if letter in "cz":
                    hermitian = strict + strict.conj().T + np.diag(triangle.diagonal().real)
                    value = getattr(scalapack, f"p{letter}lanhe")(norm, uplo, n, *part)
                    assert value == pytest.approx(reference(hermitian), rel=eps)


NORMS: dict[str, Any] = {
    "M": lambda x: np.abs(x).max(initial=0.0),
    "1": lambda x: np.abs(x).sum(0).max(initial=0.0),
    "i": lambda x: np.abs(x).sum(1).max(initial=0.0),
    "F": lambda x: np.sqrt((np.abs(x) ** 2).sum()),
}


@pytest.mark.parametrize("uplo", ["L", "upper", "All"])
@pytest.mark.parametrize("letter", list(DTYPES))
def test_laset_and_lacpy_write_their_part_only(ictxt: int, letter: str, uplo: str) -> None:
    dtype, (m, n) = np.dtype(DTYPES[letter]), (7, 9)
    choose: dict[str, Any] = {"L": np.tril, "u": np.triu, "A": np.copy}
    keep = choose[uplo[0]](np.ones((m, n))) != 0
    a, b = (
        Operand(Matrix(10, 12, *blocks, 3, 2), entries((10, 12), dtype, seed), GRID, COMM.rank)
        for blocks, seed in (((2, 3), 1), ((3, 1), 2))
    )
    getattr(scalapack, f"p{letter}lacpy")(uplo, m, n, *a.arguments(ictxt), *b.arguments(ictxt))
    assert a.is_untouched()
    assert b.is_untouched_outside((m, n))
    i, j, place = b.inside((m, n))
    expected = np.where(keep, a.whole[2:9, 1:10], b.whole[2:9, 1:10])
    assert np.array_equal(b.part()[place], expected[np.ix_(i, j)])
    getattr(scalapack, f"p{letter}laset")(uplo, m, n, 2.0, 3.0, *a.arguments(ictxt))
    assert a.is_untouched_outside((m, n))
    i, j, place = a.inside((m, n))
    constant = np.where(np.eye(m, n) == 1, 3.0, 2.0)
    expected = np.where(keep, constant, a.whole[2:9, 1:10])
    assert np.array_equal(a.part()[place], expected[np.ix_(i, j)])


@pytest.mark.parametrize("scope", ["All", "R", "column"])
@pytest.mark.parametrize("letter", ["i", "s", "d", "c", "z"])
def test_blacs_combines_and_broadcasts_within_a_scope(ictxt: int, letter: str, scope: str) -> None:
    nprow, npcol, myrow, mycol = scalapack.gridinfo(ictxt)
    dtype = np.dtype("int64" if letter == "i" else DTYPES[letter])
    members = [(p, q) for q in range(npcol) for p in range(nprow)]
    members = [(p, q) for p, q in members if scope == "All" or (p == myrow if scope == "R" else q == mycol)]

    def elements(p: int, q: int) -> Any:
        return np.array([[1 + p, 2 * q - 3, 5], [-4 * p, 7 - q, 9]]).astype(dtype)

    group = scalapack.comm(ictxt, scope)
    assert group.size == len(members)
    assert group.rank == {"All": GRID.rank(myrow, mycol), "R": mycol, "column": myrow}[scope]
    scalapack.barrier(ictxt, scope)
    everywhere = [elements(p, q)[:, :2] for p, q in members]
    a = elements(myrow, mycol)
    getattr(scalapack, f"{letter}gsum2d")(ictxt, scope, " ", 2, 2, a, 2, -1, -1)
    assert np.array_equal(a[:, :2], sum(everywhere))
    assert np.array_equal(a[:, 2], [5, 9])
    for name, pick in (("gamx2d", np.argmax), ("gamn2d", np.argmin)):
        a, ra, ca = elements(myrow, mycol), np.zeros((2, 2), int), np.zeros((2, 2), int)
        dest = members[-1]
        getattr(scalapack, f"{letter}{name}")(ictxt, scope, " ", 2, 2, a, 2, ra, ca, 2, *dest)
        expected = elements(myrow, mycol)
        if dest == (myrow, mycol):
            for index in np.ndindex(2, 2):
                p, q = int(ra[index]), int(ca[index])
                sizes = [abs(x[index]) for x in everywhere]
                assert (p, q) in members
                assert abs(elements(p, q)[index]) == sizes[int(pick(sizes))]
                expected[index] = elements(p, q)[index]
        assert np.array_equal(a, expected)
    p, q = members[0]
    b = elements(myrow, mycol)
    if (p, q) == (myrow, mycol):
        getattr(scalapack, f"{letter}gebs2d")(ictxt, scope, " ", 2, 1, b, 2)
    else:
        getattr(scalapack, f"{letter}gebr2d")(ictxt, scope, " ", 2, 1, b, 2, p, q)
    assert np.array_equal(b[:, 0], elements(p, q)[:, 0])
    assert np.array_equal(b[:, 1:], elements(myrow, mycol)[:, 1:])


def test_blacs_takes_vectors(ictxt: int) -> None:
    """One dimension, columns LDA apart; coordinates too."""
    x, (ra, ca) = np.array([1.0, -2.0, 0.0, 3.0, 5.0]), np.full((2, 4), -7)
    scalapack.dgsum2d(ictxt, "A", " ", 2, 1, x, 5)
    assert x.tolist() == [COMM.size, -2.0 * COMM.size, 0, 3, 5]
    scalapack.dgamx2d(ictxt, "A", " ", 1, 2, x, 2, ra, ca, 2)
    assert [ra.tolist(), ca.tolist()] == [[0, -7, 0, -7]] * 2


def test_blacs_refuses_wrong_arguments(ictxt: int) -> None:
    a = np.zeros((2, 2))
    calls: list[tuple[int, Any]] = [
        (-1, lambda: scalapack.barrier(-1)),
        (-2, lambda: scalapack.barrier(ictxt, "X")),
        (-4, lambda: scalapack.dgsum2d(ictxt, "A", " ", -1, 2, a, 2)),
        (-6, lambda: scalapack.sgsum2d(ictxt, "A", " ", 2, 2, a, 2)),
        (-6, lambda: scalapack.dgsum2d(ictxt, "A", " ", 2, 3, a, 2)),
        (-7, lambda: scalapack.dgsum2d(ictxt, "A", " ", 2, 2, a, 1)),
        (-6, lambda: scalapack.dgsum2d(ictxt, "A", " ", 2, 2, a[0], 2)),
        (-9, lambda: scalapack.dgamx2d(ictxt, "A", " ", 2, 2, a, 2, a.astype(int), a, 2)),
        (-8, lambda: scalapack.dgebr2d(ictxt, "A", " ", 2, 2, a, 2, 99, 0)),
    ]
    for info, call in calls:
        with pytest.raises(PblasArgumentError) as caught:
            call()
        assert caught.value.info == info
