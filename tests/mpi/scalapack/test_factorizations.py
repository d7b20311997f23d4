"""Factorizations, solves, inverses and condition numbers by ScaLAPACK's names; `make conformance` has whole tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from pblas import MismatchError, PblasArgumentError, scalapack
from pblas.layouts.grid import Grid
from pblas.scalapack.descriptors import CTXT
from tests.common.factors import MOST, general, narrow_panels, positive, qr_ratios  # noqa: F401
from tests.common.gauge import Array
from tests.common.ranks import COMM, each_wrong, few, grids, raises_on_all_ranks, same_on_all_ranks, some_wrong
from tests.conformance import errors, orthogonal, programs
from tests.conformance.problems import DTYPES, Matrix, Operand
from tests.conformance.tables import ARGUMENTS, ERROR_EXITS, FACTORS, error_exits, letters_of

pytestmark = [pytest.mark.mpi, few, pytest.mark.usefixtures("narrow_panels")]
SHAPE = max(grids(COMM.size), key=min)
GRID = Grid(*SHAPE, "R")
SIBLINGS = ("gelqf", "ormlq", "ungqr", "unmqr", "unmlq")
"""Routines that have their checks in common with others."""
MULTIPLIED: tuple[Any, ...] = scalapack.pdormqr, scalapack.pdormlq
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
        cases, few_cases = programs.table(program, letter), 1 if program in orthogonal.PROGRAMS else 2
        cases = cases[number * 3 + 1 :: len(cases) // few_cases] + programs.holes(program, letter, few_cases, GRID)
        for case in cases:
            some = replace(case, right=case.right[number % 2 :: 2])
            assert programs.run(some, (ictxt, ictxt), GRID, comm).text == "", some


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
        for position, entry, value, expected in tried[:: 1 if COMM.size == 2 and routine not in SIBLINGS else 5]:
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
            slack = 1 + (300 + 1 / exact) * float(np.finfo(dtype).eps)  # a solve is as wrong as the condition is large
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


def test_column_pivoting_of_hard_matrices(ictxt: int) -> None:
    """R shows the rank, as LAPACK's does: the norms of columns are computed anew where updates would spoil them."""
    n = 9 + 3 * COMM.size
    i = np.arange(n)
    kahan = (np.sin(1.2) ** i)[:, None] * (np.eye(n) - np.cos(1.2) * np.triu(np.ones((n, n)), 1))
    x, tiny = general(n, n, np.dtype(np.float64)), 1e-9
    rank = x[:, : n // 2] @ general(n // 2, n, np.dtype(np.float64), 2)
    near = np.hstack([x[:, :1] + tiny * x[:, 1 : n // 2], x[:, n // 2 :]])
    zeros = np.where(i % 3 == 0, 0, x)
    for sub in (kahan * (1 + 1e-7 * i), rank, near, zeros, x * 10.0**-i, 1e300 * x, np.zeros((n, n)), x[:4], x[:, :4]):
        a = Placed(ictxt, sub)
        (rows, width), places = sub.shape, a.operand.indices()[1]
        k = min(rows, width)
        tau, order = np.zeros(len(places)), np.zeros(len(places), np.int64)
        scalapack.pdgeqpf(rows, width, *a.at, order, tau)
        q = Placed(ictxt, a.collected()[:, :k])
        scalapack.pdorgqr(len(sub), k, k, *q.at, tau)
        found = np.full(sub.shape[1], -1)
        for columns, mine in COMM.allgather((places, order)):
            inside = columns >= OFFSET
            found[columns[inside] - OFFSET] = mine[inside] - 1 - OFFSET
        assert sorted(found) == list(range(sub.shape[1]))
        r, expected = np.triu(a.collected()), scipy.linalg.qr(sub, mode="r", pivoting=True)[0]
        assert max(qr_ratios(sub[:, found], q.collected(), r[:k])) <= MOST
        sizes, most = np.abs(np.diagonal(r)), np.abs(sub).max(initial=1e-300)
        assert (sizes[1:] <= sizes[:-1] * (1 + 1e-12) + 1e-14 * most).all()
        assert np.allclose(sizes, np.abs(np.diagonal(expected)), rtol=1e-6, atol=1e-13 * n * most)
    x[2, 3] = np.nan
    a = Placed(ictxt, x)
    order = np.zeros(len(a.operand.indices()[1]), np.intc)
    scalapack.pdgeqpf(n, n, *a.at, order, np.zeros(len(order)))
    first = [order[l] for l, j in enumerate(a.operand.indices()[1]) if j == OFFSET]
    assert set(first) <= {OFFSET + 4}  # a NaN comes first, and is seen


def test_least_squares_without_full_rank(ictxt: int) -> None:
    """INFO > 0 is the first zero on the diagonal of R or L, and B is as it was; in ScaLAPACK it is infinite."""
    for (m, n), trans in itertools.product(((N, 5), (5, N)), "NT"):
        sub = general(m, n, np.dtype(np.float64))
        sub[(slice(None), 0) if m == N else 0] = 0
        a, b = Placed(ictxt, sub), Placed(ictxt, general(N, 2, np.dtype(np.float64)))
        assert same_on_all_ranks(scalapack.pdgels(trans, m, n, 2, *a.at, *b.at)) == 1
        assert b.operand.is_untouched()


def test_limits_of_reflectors_and_arrays(ictxt: int) -> None:
    """Numbers of arguments: more columns than rows of Q, more reflectors than that, a TAU that does not fit."""
    a, c = Placed(ictxt, np.eye(N)), Placed(ictxt, np.eye(N))
    tau = np.zeros(len(a.operand.indices()[1]))
    cases: list[tuple[str, list[Any], int]] = [
        ("pdorgqr", [N - 2, N - 1, 2, *a.at, tau], -2),
        ("pdorgqr", [N, 2, 3, *a.at, tau], -3),
        ("pdormqr", ["L", "T", 3, 4, 4, *a.at, tau, *c.at], -5),
        ("pdormlq", ["R", "N", 4, 3, 4, *a.at, tau, *c.at], -5),
        ("pdormqr", ["L", "C", 4, 4, 4, *a.at, tau, *c.at], -2),
        ("pdgels", ["C", 4, 4, 1, *a.at, *c.at], -1),
        ("pdgels", ["N", 4, N, 1, *a.at, *c.at[:1], OFFSET + 3, *c.at[2:]], -10),
    ]
    full = np.zeros(0) if tau.size else tau
    wrong_tau = [tau.astype("f4"), tau.tolist(), *([full] if COMM.size == 1 else [])]
    cases += [("pdgeqrf", [N, N, *a.at, wrong], -7) for wrong in wrong_tau]
    cases += [("pdgeqpf", [N, N, *a.at, tau, tau], -7), ("pdgeqpf", [N, N, *a.at, tau.astype(int), [0]], -8)]
    for name, arguments, expected in cases:
        assert same_on_all_ranks(errors.info(name, arguments)) == expected, (name, arguments[:5])
    assert a.operand.is_untouched()


def test_queries_are_answered(ictxt: int) -> None:
    a, work, iwork = Placed(ictxt, np.eye(N)), np.full(3, -1.0), np.full(3, -1, np.intc)
    assert scalapack.pdgetri(N, *a.at, a.ipiv, work, -1, iwork, 9) == 0
    assert (work[0], iwork[0]) == (1, 1)
    work[0] = iwork[0] = -1
    assert scalapack.pdgecon("1", N, *a.at, 1.0, work, 3, iwork, -1) == 0
    assert (work[0], iwork[0]) == (1, 1)
    tau = np.zeros(2 * N)
    calls: list[Any] = [
        *(partial(call, N, N, *a.at, tau) for call in (scalapack.pdgeqrf, scalapack.pdgelqf)),
        partial(scalapack.pdgeqpf, N, N, *a.at, tau.astype(int), tau),
        partial(scalapack.pdorgqr, N, N, N, *a.at, tau),
        *(partial(f, "L", "T", N, 1, 1, *a.at, tau, *Placed(ictxt, np.eye(N)).at) for f in MULTIPLIED),
        partial(scalapack.pdgels, "N", N, N, 1, *a.at, *Placed(ictxt, np.eye(N)).at),
    ]
    for call in calls:
        work[0] = -1
        assert not call(work, -1)
        assert work[0] == 1
    assert a.operand.is_untouched()
    assert scalapack.pdpocon("U", N, *a.at, 1.0, work, 0, iwork, 0) == 1
    assert same_on_all_ranks(errors.info("pdpocon", ["U", N, *a.at, 1.0, work, -2])) == -10


@each_wrong
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
