"""Factorizations, solves, inverses and condition numbers by ScaLAPACK's names; `make conformance` has whole tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from pblas import MismatchError, PblasArgumentError, scalapack
from pblas.layouts.grid import Grid
from pblas.scalapack.descriptors import CTXT
from tests.common.factors import general, narrow_panels, positive  # noqa: F401
from tests.common.gauge import Array
from tests.common.ranks import COMM, few, grids, raises_on_all_ranks, same_on_all_ranks, some_wrong
from tests.conformance import errors, programs
from tests.conformance.problems import DTYPES, Matrix, Operand
from tests.conformance.tables import ARGUMENTS, ERROR_EXITS, FACTORS, error_exits, letters_of

pytestmark = [pytest.mark.mpi, few, pytest.mark.usefixtures("narrow_panels")]
SHAPE = max(grids(COMM.size), key=min)
GRID = Grid(*SHAPE, "R")
N, OFFSET = 9 * COMM.size, 2
"""Rows of most matrices, of which every process has some; rows and columns before the submatrix."""


@pytest.fixture(scope="module")
def ictxt() -> Iterator[int]:
    handle = scalapack.gridinit(COMM, "R", *SHAPE, timeout=30.0)
    yield handle
    scalapack.gridexit(handle)


class Placed:
    """A submatrix in blocks of 3 x 2, in guarded memory, and the calls on it."""

    def __init__(self, ictxt: int, sub: Array) -> None:
        self.ictxt, self.shape, self.sub = ictxt, sub.shape, sub
        self.matrix = Matrix(sub.shape[0] + OFFSET + 1, sub.shape[1] + OFFSET, 3, 2, OFFSET + 1, OFFSET + 1)
        self.whole = np.full((self.matrix.m, self.matrix.n), -99.0, sub.dtype)
        self.whole[OFFSET : OFFSET + sub.shape[0], OFFSET:] = sub
        self.operand = Operand(self.matrix, self.whole, GRID, COMM.rank)
        self.ipiv = np.full(self.operand.part().shape[0] + self.matrix.mb, -7, np.intc)

    @property
    def at(self) -> tuple[Any, int, int, list[int]]:
        """A, IA, JA, DESCA."""
        return self.operand.arguments(self.ictxt)

    def collected(self) -> Array:
        """**Collective.** The submatrix on all processes; nothing around it has changed."""
        assert self.operand.is_untouched_outside(self.shape)
        i, j, place = self.operand.inside(self.shape)
        result = np.full(self.shape, np.nan, self.whole.dtype)
        for rows, columns, part in COMM.allgather((i, j, self.operand.part()[place].copy())):
            result[np.ix_(rows, columns)] = part
        return result


@pytest.mark.parametrize("program", programs.PROGRAMS)
def test_some_rows_of_the_tables_and_random_cases(ictxt: int, program: str) -> None:
    comm = scalapack.comm(ictxt, "A")
    for number, letter in enumerate("sdcz"):
        cases = programs.table(program, letter)
        cases = cases[number * 3 + 1 :: len(cases) // 2] + programs.holes(program, letter, 3, GRID)
        for case in cases:
            assert programs.run(case, (ictxt, ictxt), GRID, comm).text == "", case


@pytest.mark.parametrize("routine", FACTORS)
def test_error_numbers_are_those_of_scalapack_on_every_rank(routine: str) -> None:
    """With the wrong argument on all ranks, and on one of them.

    A rank with a wrong handle in the only descriptor cannot reach the others.
    """
    row = scalapack.gridinit(COMM, "R", 1, COMM.size, timeout=30.0)
    letter = letters_of(routine)[1]
    arguments, codes = errors.right(routine, letter, row), error_exits(routine)
    assert len(codes) == ERROR_EXITS[routine]
    alone = [code for code in codes if code[1] != CTXT or ARGUMENTS[routine].count("DESC") > 1]
    for wrong, tried in [(frozenset(range(COMM.size)), codes), *((wrong, alone) for wrong in some_wrong()[-1:])]:
        for position, entry, value, expected in tried[:: 1 if COMM.size == 2 else 5]:
            called = errors.broken(arguments, position, entry, value, row) if COMM.rank in wrong else arguments
            assert same_on_all_ranks(errors.info(f"p{letter}{routine}", called)) == expected, (position, entry, value)
    assert errors.info(f"p{letter}{routine}", arguments) == 0
    scalapack.gridexit(row)


def test_info_of_cholesky_is_the_first_leading_block_that_fails(ictxt: int) -> None:
    """On all processes; A and B are then as they were. NaN is found."""
    for k, value, uplo in itertools.product((1, 5, 6, N), (-1.0, np.nan), "LU"):
        whole = positive(N, np.dtype(np.float64))
        whole[k - 1, k - 1] = value
        a, b = Placed(ictxt, whole), Placed(ictxt, general(N, 2, np.dtype(np.float64)))
        assert same_on_all_ranks(scalapack.pdpotrf(uplo, N, *a.at)) == k
        assert same_on_all_ranks(scalapack.pdposv(uplo, N, 2, *a.at, *b.at)) == k
        assert a.operand.is_untouched()
        assert b.operand.is_untouched()


def test_info_of_lu_and_of_inverses_is_the_first_zero_of_the_diagonal(ictxt: int) -> None:
    """A singular matrix is factored to its end; solves and inverses leave their operands as they were."""
    for k in (1, 5, N):
        upper = np.triu(general(N, N, np.dtype(np.float64))) + 9 * np.eye(N)
        upper[k - 1, k - 1] = upper[-1, -1] = 0
        a, b = Placed(ictxt, upper), Placed(ictxt, general(N, 2, np.dtype(np.float64)))
        assert same_on_all_ranks(scalapack.pdgesv(N, 2, *a.at, a.ipiv, *b.at)) == k
        assert b.operand.is_untouched()
        assert np.array_equal(a.collected(), upper)  # no row is exchanged
        before = a.operand.memory.tobytes()
        calls = {
            "getri": partial(scalapack.pdgetri, N, *a.at, a.ipiv),
            "potri": partial(scalapack.pdpotri, "U", N, *a.at),
            "trtri": partial(scalapack.pdtrtri, "U", "N", N, *a.at),
            "trtrs": partial(scalapack.pdtrtrs, "U", "T", "N", N, 2, *a.at, *b.at),
        }
        for name, call in calls.items():
            assert same_on_all_ranks(call()) == k, name
            assert a.operand.memory.tobytes() == before, name
        assert scalapack.pdgecon("1", N, *a.at, 1.0) == scalapack.pdtrcon("I", "U", "N", N, *a.at) == 0
        assert scalapack.pdtrtri("U", "U", N, *a.at) == 0  # the diagonal is taken as ones
        ones = np.triu(upper, 1) + np.eye(N)
        inverse = np.triu(a.collected(), 1) + np.eye(N)
        assert np.abs(ones @ inverse - np.eye(N)).max() <= 30 * 2**-53 * np.abs(ones).max() * np.abs(inverse).max() * N
        assert np.array_equal(np.diag(a.collected()), np.diag(upper))


@pytest.mark.parametrize("letter", ["c", "d"])
def test_estimated_condition_numbers(ictxt: int, letter: str) -> None:
    """RCOND is not below the true value, and seldom far above it; exactly 1 for the identity, 0 for a norm of 0."""
    dtype = np.dtype(DTYPES[letter])
    slack = 1 + 300 * float(np.finfo(dtype).eps)
    call = {name: getattr(scalapack, f"p{letter}{name}") for name in ("potrf", "pocon", "getrf", "gecon", "trcon")}
    for seed in range(2):
        spd, square = positive(N, dtype, seed), general(N, N, dtype, seed) + dtype.type(3)
        results = []
        for p, norm in ((1, "1O"[seed % 2]), (np.inf, "I")):
            a = Placed(ictxt, square)
            anorm = float(np.linalg.norm(square, p))
            assert call["getrf"](N, N, *a.at, a.ipiv) == 0
            results.append((call["gecon"](norm, N, *a.at, anorm), 1 / np.linalg.cond(square.astype("c16"), p)))
            triangle = np.triu(square) + 5 * np.eye(N, dtype=dtype)
            a = Placed(ictxt, np.where(np.tri(N, k=-1), np.nan, triangle).astype(dtype))
            rcond = call["trcon"](norm, "U", "N", N, *a.at, None, None)
            results.append((rcond, 1 / np.linalg.cond(triangle.astype("c16"), p)))
        for uplo in "LU":
            a = Placed(ictxt, spd)
            assert call["potrf"](uplo, N, *a.at) == 0
            rcond = call["pocon"](uplo, N, *a.at, float(np.linalg.norm(spd, 1)))
            results.append((rcond, 1 / np.linalg.cond(spd.astype("c16"), 1)))
            assert call["pocon"](uplo, N, *a.at, 0.0) == 0
        for rcond, exact in same_on_all_ranks(results):
            assert rcond.dtype == np.dtype(dtype.char.lower())
            assert exact <= rcond * slack <= 10 * slack * exact
    eye = Placed(ictxt, np.eye(N, dtype=dtype))
    assert call["trcon"]("1", "L", "U", N, *eye.at) == call["pocon"]("L", N, *eye.at, 1.0) == 1


@pytest.mark.parametrize(("rowcol", "pivroc"), list(itertools.product("RC", repeat=2)))
def test_lapiv_exchanges_rows_and_columns(ictxt: int, rowcol: str, pivroc: str) -> None:
    """IPIV in any layout; backwards undoes forwards. Each process column (or row) may be the source of its own copy."""
    m, n = N, N - 2
    whole = np.arange(float(m * n)).reshape(m, n)
    count = m if rowcol == "R" else n
    pivots = [int(p) for p in np.random.default_rng(3).integers(np.arange(count), count)]
    expected = whole.copy() if rowcol == "R" else whole.T.copy()
    for k, p in enumerate(pivots):
        expected[[k, p]] = expected[[p, k]]
    expected = expected if rowcol == "R" else expected.T
    nprow, npcol, myrow, mycol = scalapack.gridinfo(ictxt)
    axis = 0 if pivroc == "C" else 1
    size, block, start = count + 4, 2, 3
    for source in (0, -1, "own"):
        copy = (mycol, myrow)[axis] if source == "own" else source
        shape = (size, 1) if axis == 0 else (1, size)
        blocks = (block, 1) if axis == 0 else (1, block)
        sources = (0, copy) if axis == 0 else (copy, 0)
        me, nprocs = ((myrow, nprow), (mycol, npcol))[axis]
        places = [g for g in range(size) if (g // block) % nprocs == me]
        values = np.full(size, -5, np.int64)
        values[start - 1 : start - 1 + count] = np.array(pivots) + start
        ipiv = values[places] if source in (-1, "own") or (mycol, myrow)[axis] == source else np.full(len(places), -7)
        desc = [1, ictxt, *shape, *blocks, *sources, max(1, len(places) if axis == 0 else 1)]
        at = (start, 1) if axis == 0 else (1, start)
        a = Placed(ictxt, whole)
        scalapack.pdlapiv("F", rowcol, pivroc, m, n, *a.at, ipiv, *at, desc)
        assert np.array_equal(a.collected(), expected)
        scalapack.pdlapiv("b", rowcol, pivroc, m, n, *a.at, ipiv, *at, desc, None)
        assert a.operand.is_untouched()


def test_queries_are_answered(ictxt: int) -> None:
    a, work, iwork = Placed(ictxt, np.eye(N)), np.full(3, -1.0), np.full(3, -1, np.intc)
    assert scalapack.pdgetri(N, *a.at, a.ipiv, work, -1, iwork, 9) == 0
    assert (work[0], iwork[0]) == (1, 1)
    work[0] = iwork[0] = -1
    assert scalapack.pdgecon("1", N, *a.at, 1.0, work, 3, iwork, -1) == 0
    assert (work[0], iwork[0]) == (1, 1)
    assert a.operand.is_untouched()
    assert scalapack.pdpocon("U", N, *a.at, 1.0, work, 0, iwork, 0) == 1
    assert same_on_all_ranks(errors.info("pdpocon", ["U", N, *a.at, 1.0, work, -2])) == -10


@pytest.mark.parametrize("wrong", some_wrong() or [frozenset({0})], ids=str)
def test_one_wrong_rank_raises_on_all(ictxt: int, wrong: frozenset[int]) -> None:
    """IPIV, ANORM, LWORK and DESCIP; afterwards the grid is usable."""
    is_wrong, f8 = COMM.rank in wrong, np.dtype(np.float64)
    a, b = Placed(ictxt, general(N, N, f8) + 9 * np.eye(N)), Placed(ictxt, general(N, 3, f8))
    fixed = a.ipiv.copy()
    fixed.flags.writeable = False
    for bad in (a.ipiv.tolist(), a.ipiv.astype("f8"), a.ipiv[:, None], a.ipiv[:1], fixed):
        call: partial[Any] = partial(scalapack.pdgetrf, N, N, *a.at, bad if is_wrong else a.ipiv)
        raises_on_all_ranks(PblasArgumentError, "IPIV", call)
    assert a.operand.is_untouched()
    assert scalapack.pdgetrf(N, N, *a.at, a.ipiv) == 0
    if wrong == frozenset({0}):  # process (0, 0) has rows of A
        for value, least in ((OFFSET, OFFSET + 1), (OFFSET + N + 1, OFFSET + 1)):
            bad = a.ipiv.copy()
            bad[[OFFSET] if is_wrong else []] = value
            text = f"IPIV holds {value} for row {OFFSET + 1}; it must be in {least}..{OFFSET + N}"
            raises_on_all_ranks(PblasArgumentError, text, partial(scalapack.pdgetrs, "N", N, 3, *a.at, bad, *b.at))
        assert b.operand.is_untouched()
    gecon: Any = scalapack.pdgecon
    norm = partial(gecon, "1", N, *a.at)
    for bad in (-1.0, np.nan, "x"):
        raises_on_all_ranks(PblasArgumentError, "ANORM must", lambda: norm(bad if is_wrong else 1.0))  # noqa: B023
    raises_on_all_ranks(
        PblasArgumentError, "NORM must be one of '1', 'O', 'I'", partial(gecon, "F", *norm.args[1:], 1.0)
    )
    if COMM.size > 1:
        raises_on_all_ranks(MismatchError, "pdgecon", lambda: norm(1.0, None, -1 if is_wrong else 5))
    desc = [1, ictxt, N + OFFSET, 1, 3, 1, 0, 0, 99]
    for entry, value, name in (
        (0, 3, "DTYPE_"),
        (1, -1, "CTXT_"),
        (2, N, "M_"),
        (4, 0, "IMB_"),
        (6, SHAPE[0], "RSRC_"),
    ):
        broken = [value if k == entry and is_wrong else x for k, x in enumerate(desc)]
        call = partial(scalapack.pdlapiv, "F", "R", "C", N, N, *a.at, a.ipiv, OFFSET + 1, 1, broken)
        raises_on_all_ranks(PblasArgumentError, f"DESCIP({name})", call)
    scalapack.pdgetrs("N", N, 3, *a.at, a.ipiv, *b.at)
    assert np.abs(a.sub @ b.collected() - b.sub).max() <= 1e-9
