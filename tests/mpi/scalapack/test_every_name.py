"""Every public name of pblas.scalapack is called on two ranks, and its result is checked.

The names come from the package. A routine without a check here, and without problems in tests/conformance, fails.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from pblas import scalapack
from pblas.layouts.grid import Grid
from tests.common.factors import general, narrow_panels, positive  # noqa: F401
from tests.common.ranks import COMM, few, grids, same_on_all_ranks
from tests.conformance import programs, redist
from tests.conformance.problems import DTYPES, Matrix
from tests.conformance.suites import SUITES, Suite
from tests.mpi.scalapack.test_factorizations import Placed
from tests.mpi.scalapack.test_scalapack import PRINTED, Distribution

pytestmark = [pytest.mark.mpi(min_size=2), few, pytest.mark.usefixtures("narrow_panels")]
SHAPE = max(grids(COMM.size), key=min)
GRID = Grid(*SHAPE, "R")
N = 7
NAMES = sorted(name for name in scalapack.__all__ if not isinstance(getattr(scalapack, name), type))
Check = Callable[[int], None]


@pytest.fixture(scope="module")
def handles() -> Iterator[list[int]]:
    """The handle of the grid of all tests but those that end it."""
    opened: list[int] = []
    yield opened
    for handle in filter(is_open, opened):
        scalapack.gridexit(handle)


@pytest.fixture
def ictxt(handles: list[int]) -> int:
    if not any(map(is_open, handles)):
        handles[:] = [scalapack.gridinit(COMM, "R", *SHAPE, timeout=30.0)]
    return handles[0]


def is_open(handle: int) -> bool:
    return scalapack.gridinfo(handle) != (-1, -1, -1, -1)


@pytest.mark.parametrize("name", NAMES)
def test_a_routine_is_called_and_its_result_is_right(ictxt: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    routine, calls = getattr(scalapack, name), 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return routine(*arguments, **options)

    monkeypatch.setattr(scalapack, name, counted)
    check_of(name)(ictxt)
    assert sum(COMM.allgather(calls)) > 0


def check_of(name: str) -> Check:
    """The check of a routine.

    Raises:
        AssertionError: there is none.
    """
    if name in CHECKS:
        return CHECKS[name]
    matched = re.fullmatch("p?([isdcz])(.+)", name)
    assert matched, f"no check of {name}"
    letter, rest = matched.groups()
    if name in _problems() or rest == "gebr2d":
        return lambda ictxt: check_problems(name.replace("gebr2d", "gebs2d"), ictxt)
    if rest in PROGRAM_OF:
        return lambda ictxt: check_program(*PROGRAM_OF[rest], letter, ictxt)
    assert rest in CHECKS_BY_TYPE, f"no check of {name}"
    return lambda ictxt: CHECKS_BY_TYPE[rest](letter, ictxt)


# Problems of tests/conformance


@cache
def _problems() -> dict[str, tuple[Suite, list[Any]]]:
    """Problems by the name of the routine: some of the table, and random ones."""
    found: dict[str, tuple[Suite, list[Any]]] = {}
    for suite in SUITES:
        for routine, letter in suite.types([], "isdcz"):
            for case in suite.table(routine, letter) + suite.holes(routine, letter, 8, GRID):
                found.setdefault(case.routine_name, (suite, []))[1].append(case)
    return found


def check_problems(name: str, ictxt: int) -> None:
    suite, cases = _problems()[name]
    cases = cases[:: 1 + len(cases) // 4] + cases[-1:]
    for case, outcome in zip(cases, suite.outcomes(cases, ictxt), strict=True):
        assert not outcome.text, f"{case}: {outcome.text}"


PROGRAM_OF = {
    **dict.fromkeys(("potrf", "potrs", "posv"), ("llt", "")),
    **dict.fromkeys(("getrf", "getrs", "gesv"), ("lu", "")),
    "getri": ("inv", "GEN"),
    "potri": ("inv", "PD"),
    "trtri": ("inv", "TR"),
    **dict.fromkeys(("geqrf", "orgqr", "ungqr", "ormqr", "unmqr"), ("qr", "")),
    **dict.fromkeys(("gelqf", "ormlq", "unmlq"), ("lq", "")),
    "geqpf": ("qp", ""),
    "gels": ("ls", ""),
}
"""The testing program that calls a routine, and the end of the kind of its matrices."""


def check_program(program: str, kind: str, letter: str, ictxt: int) -> None:
    """A case of the table that all processes share, and a random one."""
    for cases in (programs.table(program, letter, every=False), programs.holes(program, letter, 60, GRID)):
        large = [x for x in cases if min(x.m, x.n) >= N and (program != "lu" or x.m == x.n)]
        case = next(x for x in large if x.kind.endswith(kind))
        some = replace(case, right=case.right[-2:])
        assert programs.run(some, (ictxt, ictxt), GRID, scalapack.comm(ictxt, "A")).text == "", some


# Routines without problems, by type


def check_elements(letter: str, ictxt: int) -> None:
    """p?elset sets one element, and p?elget reads it."""
    dtype = np.dtype(DTYPES[letter])
    a = Distribution(ictxt, 5, 7, 2, 3)
    local, value = np.asfortranarray(a.local.astype(dtype)), dtype.type(-3 - 2j if dtype.kind == "c" else -3)
    expected = np.where((a.rows == 4) & (a.columns == 6), value, local)
    getattr(scalapack, f"p{letter}elset")(local, 4, 6, a.desc, value)
    assert np.array_equal(local, expected)
    elget = getattr(scalapack, f"p{letter}elget")
    assert (elget("A", " ", local, 4, 6, a.desc), elget("A", " ", local, 5, 1, a.desc)) == (value, 501)


def check_printed(letter: str, ictxt: int) -> None:
    a, out = Distribution(ictxt, 5, 7, 2, 3), io.StringIO()
    local = np.asfortranarray((a.local + (-0.5j if letter in "cz" else 0)).astype(DTYPES[letter]))
    getattr(scalapack, f"p{letter}laprnt")(2, 2, local, 4, 6, a.desc, 0, 0, "X", out)
    assert out.getvalue().splitlines() == (PRINTED[letter] if COMM.rank == 0 else [])


def check_exchanges(letter: str, ictxt: int) -> None:
    """p?lapiv exchanges rows as IPIV says, of which each process column has a copy."""
    whole = general(N, N - 1, np.dtype(DTYPES[letter]))
    a, pivots, expected = Placed(ictxt, whole), [3, 4, 2, 6, 4, 5, 6], whole.copy()
    for k, p in enumerate(pivots):
        expected[[k, p]] = expected[[p, k]]
    nprow, _, myrow, _ = scalapack.gridinfo(ictxt)
    places = [k for k in range(N) if k // 2 % nprow == myrow]
    ipiv, desc = np.array(pivots)[places] + 1, [1, ictxt, N, 1, 2, 1, 0, -1, max(1, len(places))]
    lapiv = getattr(scalapack, f"p{letter}lapiv")
    lapiv("F", "R", "C", N, N - 1, *a.at, ipiv, 1, 1, desc)
    assert np.array_equal(a.collected(), expected)
    lapiv("B", "R", "C", N, N - 1, *a.at, ipiv, 1, 1, desc)
    assert a.operand.is_untouched()


def check_condition(routine: str, letter: str, ictxt: int) -> None:
    """RCOND is not below the true value, and at most 10 times as large."""
    dtype = np.dtype(DTYPES[letter])
    call = {name: getattr(scalapack, f"p{letter}{name}") for name in (routine, "getrf", "potrf")}
    x = positive(N, dtype) if routine == "pocon" else general(N, N, dtype) + 3 * np.eye(N, dtype=dtype)
    if routine == "trcon":
        x = np.triu(x) + 5 * np.eye(N, dtype=dtype)
    a, anorm = Placed(ictxt, x), float(np.linalg.norm(x, 1))
    if routine == "gecon":
        assert call["getrf"](N, N, *a.at, a.ipiv) == 0
        rcond = call[routine]("1", N, *a.at, anorm)
    elif routine == "pocon":
        assert call["potrf"]("L", N, *a.at) == 0
        rcond = call[routine]("L", N, *a.at, anorm)
    else:
        rcond = call[routine]("1", "U", "N", N, *a.at)
    exact = 1 / np.linalg.cond(x.astype("c16"), 1)
    slack = 1 + (300 + 1 / exact) * float(np.finfo(dtype).eps)
    assert exact <= same_on_all_ranks(rcond) * slack <= 10 * slack * exact


def check_triangular_solve(letter: str, ictxt: int) -> None:
    dtype = np.dtype(DTYPES[letter])
    upper, right = np.triu(general(N, N, dtype)) + 5 * np.eye(N, dtype=dtype), general(N, 3, dtype, 1)
    for trans, op in (("N", upper), ("T", upper.T), ("C", upper.conj().T)):
        a, b = Placed(ictxt, np.where(np.tri(N, k=-1), np.nan, upper).astype(dtype)), Placed(ictxt, right)
        assert getattr(scalapack, f"p{letter}trtrs")("U", trans, "N", N, 3, *a.at, *b.at) == 0
        assert a.operand.is_untouched()
        residual = np.abs(op @ b.collected() - right).max()
        assert residual <= 30 * N * float(np.finfo(dtype).eps) * np.abs(op).max() * np.abs(right).max()


def check_eigenvalues(routine: str, letter: str, ictxt: int) -> None:
    """The whole spectrum or parts of it: W on all processes, eigenvectors in the first columns of sub(Z)."""
    dtype = np.dtype(DTYPES[letter])
    x = general(N, N, dtype)
    x = x + x.conj().T
    right, eps = np.linalg.eigvalsh(x.astype("c16")), float(np.finfo(dtype).eps) * N * np.abs(x).sum(0).max()
    call = getattr(scalapack, f"p{letter}{routine}")
    bounds: tuple[tuple[str, tuple[Any, ...], slice], ...] = (
        ("A", (0, 0, 0, 0), slice(None)),
        ("I", (0, 0, 2, 4), slice(1, 4)),
        ("V", ((right[0] + right[1]) / 2, (right[3] + right[4]) / 2, -1, -1), slice(1, 4)),
    )
    has_range, tolerances = routine[-1] in "rx", routine.endswith("x")
    for jobz in "NV":
        for kind, bound, wanted in bounds if has_range else bounds[:1]:
            a, z = Placed(ictxt, np.tril(x)), Placed(ictxt, np.zeros((N, N), dtype))
            w = np.full(N, -7, x.real.dtype)
            middle: tuple[Any, ...] = (*bound, *((0.0,) if tolerances else ())) if has_range else ()
            first = (jobz, kind, "L", N) if has_range else (jobz, "L", N)
            info = call(*first, *a.at, *middle, w, *((1e-3,) if tolerances else ()), *z.at)
            expected, k = right[wanted], len(right[wanted])
            assert info == ((k, k if jobz == "V" else 0, 0) if has_range else 0)
            assert np.abs(same_on_all_ranks(w.tolist())[:k] - expected).max() <= 3 * eps
            assert (w[k:] == -7).all()
            assert a.operand.is_untouched()
            v = z.collected()
            if jobz == "V":
                assert np.abs(x @ v[:, :k] - v[:, :k] * w[:k]).max() <= 10 * eps
                assert np.abs(v[:, :k].conj().T @ v[:, :k] - np.eye(k)).max() <= 30 * N * float(np.finfo(dtype).eps)
            assert not v[:, k if jobz == "V" else 0 :].any()


def check_pencil(routine: str, letter: str, ictxt: int) -> None:
    """Eigenvalues of sub(A) become those of the generalized problem."""
    dtype = np.dtype(DTYPES[letter])
    x, y = general(N, N, dtype), positive(N, dtype)
    x, wide = x + x.conj().T, np.dtype("c16")
    for kind in (1, 2, 3):
        for uplo, triangle in (("L", np.tril), ("U", np.triu)):
            a, b = Placed(ictxt, triangle(x)), Placed(ictxt, triangle(y))
            assert getattr(scalapack, f"p{letter}potrf")(uplo, N, *b.at) == 0
            assert getattr(scalapack, f"p{letter}{routine}")(kind, uplo, N, *a.at, *b.at) == 1
            c = a.collected().astype(wide)
            c = triangle(c) + triangle(c, -1 if uplo == "L" else 1).conj().T
            exact = np.linalg.eigvals(np.linalg.solve(y.astype(wide), x) if kind == 1 else x.astype(wide) @ y)
            error = np.abs(np.linalg.eigvalsh(c) - np.sort(exact.real)).max()
            assert error <= 100 * N * np.linalg.cond(y) * float(np.finfo(dtype).eps) * np.abs(exact).max()


def check_generalized(routine: str, letter: str, ictxt: int) -> None:
    """Parts of the spectrum of two matrices; eigenvectors are orthonormal with B, which becomes its factor."""
    dtype = np.dtype(DTYPES[letter])
    x, y = general(N, N, dtype), positive(N, dtype)
    x, wide, call = x + x.conj().T, np.dtype("c16"), getattr(scalapack, f"p{letter}{routine}")
    eps = 100 * N * np.linalg.cond(y) * float(np.finfo(dtype).eps)
    for kind, jobz, triangle in ((1, "V", np.tril), (2, "V", np.triu), (3, "V", np.tril), (1, "N", np.triu)):
        uplo = "L" if triangle is np.tril else "U"
        a, b, z = Placed(ictxt, triangle(x)), Placed(ictxt, triangle(y)), Placed(ictxt, np.zeros((N, N), dtype))
        w = np.full(N, -7, x.real.dtype)
        result = call(kind, jobz, "I", uplo, N, *a.at, *b.at, 0, 0, 2, 4, 0.0, w, 1e-3, *z.at)
        assert result == (3, 3 if jobz == "V" else 0, 0)
        exact = np.linalg.eigvals(np.linalg.solve(y.astype(wide), x) if kind == 1 else x.astype(wide) @ y)
        size = np.abs(exact).max()
        assert np.abs(same_on_all_ranks(w.tolist())[:3] - np.sort(exact.real)[1:4]).max() <= eps * size
        assert a.operand.is_untouched()
        factor = b.collected()
        left = factor if uplo == "L" else factor.conj().T
        assert np.abs(np.tril(left) @ np.tril(left).conj().T - y).max() <= eps * np.abs(y).max()
        v = z.collected().astype(wide)
        assert not v[:, 3 if jobz == "V" else 0 :].any()
        if jobz == "V":
            v = v[:, :3]
            left, right = (x @ v, y @ v) if kind == 1 else (x @ y @ v, v) if kind == 2 else (y @ x @ v, v)
            assert np.abs(left - right * w[:3]).max() <= eps * size * np.abs(right).max()
            metric = y if kind < 3 else np.linalg.inv(y.astype(wide))
            assert np.abs(v.conj().T @ metric @ v - np.eye(3)).max() <= eps


def check_tridiagonal(kind: str, letter: str, ictxt: int) -> None:
    """Q^H A Q = T by p?ormtr on both sides; D and E are in A too, in the order of ScaLAPACK."""
    dtype = np.dtype(DTYPES[letter])
    x = general(N, N, dtype)
    x, reduce = x + x.conj().T, getattr(scalapack, f"p{letter}{kind}trd")
    multiply = getattr(scalapack, f"p{letter}{'or' if kind == 'sy' else 'un'}mtr")
    adjoint, eps = "C" if kind == "he" else "T", 30 * N * float(np.finfo(dtype).eps)
    for uplo, triangle in (("L", np.tril), ("U", np.triu)):
        a, c = Placed(ictxt, triangle(x)), Placed(ictxt, x)
        n_loc = a.operand.part().shape[1] + a.matrix.nb
        d, e, tau = np.full(n_loc, -7, x.real.dtype), np.full(n_loc, -7, x.real.dtype), np.full(n_loc, -7, dtype)
        assert reduce(uplo, N, *a.at, d, e, tau) is None
        multiply("L", uplo, adjoint, N, N, *a.at, tau, *c.at)
        multiply("R", uplo, "N", N, N, *a.at, tau, *c.at)
        t, v = c.collected(), a.collected()
        assert a.operand.is_untouched_outside((N, N))
        shift = -1 if uplo == "L" else 1
        beside = np.diagonal(v, shift).real
        expected = np.diag(np.diagonal(v)) + np.diag(beside, 1) + np.diag(beside, -1)
        assert np.abs(t - expected).max() <= eps * np.abs(x).sum(0).max()
        assert not np.where(triangle(np.ones((N, N))), 0, v).any()
        # D and E have those of the columns of A that this process has
        _, columns, (_, places) = a.operand.inside((N, N))
        assert np.array_equal(d[places.ravel()], np.diagonal(v).real[columns])
        has_e = (columns < N - 1) if uplo == "L" else (columns > 0)
        assert np.array_equal(e[places.ravel()[has_e]], beside[columns[has_e] - (uplo == "U")])
        assert (d != -7).sum() == len(columns)
        assert (e != -7).sum() == (tau != -7).sum() == has_e.sum()


def check_singular_values(letter: str, ictxt: int) -> None:
    """Values as NumPy's, and vectors that give the matrix, for more rows and for more columns; one side alone."""
    dtype = np.dtype(DTYPES[letter])
    routine, eps = getattr(scalapack, f"p{letter}gesvd"), 60 * float(np.finfo(dtype).eps)
    for m, n in ((N, N - 3), (N - 3, N)):
        x = general(m, n, dtype)
        k, right = min(m, n), np.linalg.svd(x.astype("c16"))[1]
        a, u, vt = Placed(ictxt, x), Placed(ictxt, np.zeros((m, k), dtype)), Placed(ictxt, np.zeros((k, n), dtype))
        s = np.zeros(k, dtype).real.copy()
        assert routine("V", "V", m, n, *a.at, s, *u.at, *vt.at) == 0
        assert np.abs(s - right).max() <= eps * right[0]
        left, rows = u.collected(), vt.collected()
        assert np.abs(left * s @ rows - x).max() <= eps * right[0]
        assert np.abs(left.conj().T @ left - np.eye(k)).max() <= eps
        assert np.abs(rows @ rows.conj().T - np.eye(k)).max() <= eps
        assert a.operand.is_untouched()
        alone = Placed(ictxt, np.zeros((k, n), dtype))
        assert routine("N", "V", m, n, *a.at, s, None, 0, 0, None, *alone.at) == 0
        assert np.array_equal(alone.collected(), rows)
        assert routine("N", "N", m, n, *a.at, s, None, 0, 0, None, None, 0, 0, None) == 0
        assert np.abs(s - right).max() <= eps * right[0]


def tied(a: Placed, axis: int, dtype: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """An array for the elements of a vector that is tied to rows or columns, the places in it, and their numbers."""
    rows, columns, places = a.operand.inside(a.shape)
    numbers, place = (rows, columns)[axis], places[axis].ravel()
    return np.full(a.operand.part().shape[axis], -7, dtype), place, numbers


def check_bidiagonal(letter: str, ictxt: int) -> None:
    """Q^H A P = B by p?ormbr from both sides; D and E are in A too, in the order of ScaLAPACK; Q and P are unitary."""
    dtype = np.dtype(DTYPES[letter])
    reduce, adjoint = getattr(scalapack, f"p{letter}gebrd"), "C" if dtype.kind == "c" else "T"
    multiply = getattr(scalapack, f"p{letter}{'un' if dtype.kind == 'c' else 'or'}mbr")
    for m, n in ((N, N - 3), (N - 3, N), (N, N)):
        x, k, eps = general(m, n, dtype), min(m, n), 30 * N * float(np.finfo(dtype).eps)
        a, c = Placed(ictxt, x), Placed(ictxt, x)
        axis = int(m >= n)
        tied_to = (
            tied(a, i, kind) for i, kind in ((axis, x.real.dtype), (1 - axis, x.real.dtype), (1, dtype), (0, dtype))
        )
        (d, *of_d), (e, *of_e), (tauq, *_), (taup, *_) = tied_to
        assert reduce(m, n, *a.at, d, e, tauq, taup) is None
        assert a.operand.is_untouched_outside((m, n))
        multiply("Q", "L", adjoint, m, n, n, *a.at, tauq, *c.at)
        multiply("P", "R", "N", m, n, m, *a.at, taup, *c.at)
        v = a.collected()
        right_d, right_e = np.diagonal(v).real, np.diagonal(v, 1 if axis else -1).real[: k - 1]
        b = np.zeros((m, n))
        b[range(k), range(k)] = right_d
        above = range(k - 1), range(1, k)
        b[above if axis else above[::-1]] = right_e
        assert np.abs(c.collected() - b).max() <= eps * np.abs(x).sum(0).max()
        for vector, (places, numbers), right in ((d, of_d, right_d), (e, of_e, right_e)):
            mine = numbers < len(right)
            assert np.array_equal(vector[places[mine]], right[numbers[mine]])
            assert (vector != -7).sum() == mine.sum()
        for vect, order, other, tau in (("Q", m, n, tauq), ("P", n, m, taup)):
            one = Placed(ictxt, np.eye(order, dtype=dtype))
            multiply(vect, "R", "N", order, order, other, *a.at, tau, *one.at)
            q = one.collected()
            assert np.abs(q.conj().T @ q - np.eye(order)).max() <= eps
            multiply(vect, "L", adjoint, order, order, other, *a.at, tau, *one.at)
            assert np.abs(one.collected() - np.eye(order)).max() <= eps


def check_scales(routine: str, letter: str, ictxt: int) -> None:
    """As LAPACK's: the largest elements of the scaled rows and columns are 1; a row or a column of zeros is INFO."""
    dtype = np.dtype(DTYPES[letter])
    x = positive(N, dtype) if routine == "poequ" else general(N, N - 1, dtype)
    x *= 10.0 ** np.arange(len(x))[:, None]
    if routine == "poequ":
        x *= 10.0 ** np.arange(len(x))
    a, real = Placed(ictxt, x), x.real.dtype
    (r, in_r, rows), (c, in_c, columns) = tied(a, 0, real), tied(a, 1, real)
    call, eps = getattr(scalapack, f"p{letter}{routine}"), 8 * float(np.finfo(dtype).eps)
    if routine == "poequ":
        right = 1 / np.sqrt(np.diag(x).real)
        scond, amax, info = call(N, *a.at, r, c)
        assert np.isclose(scond, right.min() / right.max(), rtol=eps)
        scales = right, right
    else:
        of_rows = np.abs(x).max(axis=1)
        of_columns = np.abs(x / of_rows[:, None]).max(axis=0)
        rowcnd, colcnd, amax, info = call(N, N - 1, *a.at, r, c)
        assert np.allclose((rowcnd, colcnd), [y.min() / y.max() for y in (of_rows, of_columns)], rtol=eps)
        scales = 1 / of_rows, 1 / of_columns
    assert info == 0
    assert np.isclose(amax, np.abs(x).max() if routine == "geequ" else np.diag(x).real.max(), rtol=eps)
    assert np.allclose(r[in_r], scales[0][rows], rtol=eps)
    assert np.allclose(c[in_c], scales[1][columns], rtol=eps)
    assert (r != -7).sum() == len(rows)
    assert (c != -7).sum() == len(columns)
    x[2] = 0
    if routine == "geequ":
        assert call(N, N - 1, *Placed(ictxt, x).at, r, c)[-1] == 3
        x[2], x[:, 1] = 1, 0
        assert call(N, N - 1, *Placed(ictxt, x).at, r, c)[-1] == N + 2
    else:
        assert call(N, *Placed(ictxt, x).at, r, c)[-1] == 3


def check_refinement(routine: str, letter: str, ictxt: int) -> None:
    """A rough solution becomes exact for nearby elements; FERR bounds its error."""
    dtype = np.dtype(DTYPES[letter])
    eps, call = float(np.finfo(dtype).eps), partial(getattr, scalapack)
    x = positive(N, dtype) if routine == "porfs" else general(N, N, dtype) + 3 * np.eye(N, dtype=dtype)
    exact = general(N, 3, dtype, seed=2)
    for option in "LU" if routine == "porfs" else "NTC":
        op: Any = {"T": np.transpose, "C": lambda y: y.conj().T}.get(option, lambda y: y)
        b = (op(x).astype("c16") @ exact).astype(dtype) if dtype.kind == "c" else op(x) @ exact
        true = np.linalg.solve(op(x).astype("c16"), b.astype("c16"))
        a, factor, of_b = Placed(ictxt, x), Placed(ictxt, x), Placed(ictxt, b)
        of_x = Placed(ictxt, (exact * (1 + 1e-3)).astype(dtype))
        (ferr, places, columns), (berr, *_) = (tied(of_x, 1, x.real.dtype) for _ in range(2))
        if routine == "porfs":
            assert call(f"p{letter}potrf")(option, N, *factor.at) == 0
            pivots = []
        else:
            assert call(f"p{letter}getrf")(N, N, *factor.at, factor.ipiv) == 0
            pivots = [factor.ipiv]
        call(f"p{letter}{routine}")(option, N, 3, *a.at, *factor.at, *pivots, *of_b.at, *of_x.at, ferr, berr)
        found = of_x.collected()
        errors = np.abs(found - true).max(axis=0) / np.abs(found).max(axis=0)
        sizes = np.abs(op(x)) @ np.abs(found) + np.abs(b)
        backward = (np.abs(b - op(x).astype("c16") @ found) / sizes).max(axis=0)
        assert (backward <= (N + 1) * eps).all()
        assert (berr[places] <= (N + 1) * eps).all()
        assert (errors[columns] <= ferr[places]).all()
        assert (ferr[places] <= 1000 * eps * np.linalg.cond(x.astype("c16"), np.inf)).all()
        assert (ferr != -7).sum() == (berr != -7).sum() == len(columns)
        assert a.operand.is_untouched()
        assert of_b.operand.is_untouched()


def check_expert(routine: str, letter: str, ictxt: int) -> None:
    """Badly scaled equations are solved; scaled ones and their factors are taken again; a singular matrix is INFO."""
    dtype, is_pos = np.dtype(DTYPES[letter]), routine == "posvx"
    real, call = np.dtype(dtype.type(0).real.dtype), getattr(scalapack, f"p{letter}{routine}")
    well = positive(N, dtype) if is_pos else general(N, N, dtype) + 3 * np.eye(N, dtype=dtype)
    bad = 10.0 ** np.arange(N)
    inexact = 4 * np.finfo("f8").eps  # of the solution by NumPy, times the condition number
    x = (well * bad[:, None] * (bad if is_pos else 1)).astype(dtype)
    inexact *= np.linalg.cond(x.astype("c16"))
    for option in "UL" if is_pos else "NTC":
        op: Any = {"T": np.transpose, "C": lambda y: y.conj().T}.get(option, lambda y: y)
        b = (op(x) @ general(N, 2, dtype, seed=3)).astype(dtype)
        right = np.linalg.solve(op(x).astype("c16"), b.astype("c16"))
        kept, nrhs, given = np.triu(x) + np.tril(np.full_like(x, np.nan), -1) if option == "U" else x, b.shape[1], None
        a, af, of_b = Placed(ictxt, kept.astype(dtype)), Placed(ictxt, np.zeros_like(x)), Placed(ictxt, b)
        of_x = Placed(ictxt, np.zeros_like(b))
        (r, *_), (c, *_) = tied(a, 0, real), tied(a, 1, real)
        (ferr, places, columns), (berr, *_) = (tied(of_x, 1, real) for _ in range(2))
        pivots = [] if is_pos else [af.ipiv]
        for fact in ("N", "E", "F"):
            rhs = of_b if fact != "F" else Placed(ictxt, b)
            equed, rcond, info = call(
                *(fact, option, N, nrhs, *a.at, *af.at, *pivots, given, r, c, *rhs.at, *of_x.at, ferr, berr)
            )
            found = of_x.collected()
            error = np.abs(found - right).max(axis=0) / np.abs(found).max(axis=0)
            assert info in (0, N + 1), (fact, info)
            assert (error[columns] <= ferr[places] + inexact).all(), fact
            assert (berr[places] <= (N + 1) * np.finfo(dtype).eps).all(), fact
            given = equed
            if fact == "N":
                assert equed == "N"
                assert rcond < 1e-3
            else:
                assert equed == ("Y" if is_pos else "R")
                assert rcond > 1e-3
                assert info == 0
    singular = Placed(ictxt, np.zeros_like(x))
    assert call(*("N", option, N, 2, *singular.at, *af.at, *pivots, "N", r, c, *of_b.at, *of_x.at, ferr, berr))[1:] == (
        0,
        1,
    )


def check_redistribution(routine: str, letter: str, ictxt: int) -> None:
    """Between grids of a row and of a column, with submatrices; the other triangle and all around stay as they are."""
    del ictxt
    whole = scalapack.gridinit(COMM, "R", 1, COMM.size, timeout=30.0)
    source, target = Matrix(13, 12, 2, 3, 2, 3), Matrix(14, 11, 5, 1, 4, 2)
    for uplo, diag in (("", ""),) if routine == "gemr2d" else (("U", "N"), ("L", "U")):
        row: redist.Row = (9, 8, source, (1, COMM.size), target, (COMM.size, 1), uplo, diag)
        assert redist.run(row, letter, whole, COMM) == ""
    scalapack.gridexit(whole)


CHECKS_BY_TYPE: dict[str, Callable[[str, int], None]] = {
    "elset": check_elements,
    "elget": check_elements,
    "laprnt": check_printed,
    "lapiv": check_exchanges,
    "trtrs": check_triangular_solve,
    **{name: partial(check_condition, name) for name in ("gecon", "pocon", "trcon")},
    **{
        f"{kind}{name}": partial(check_eigenvalues, f"{kind}{name}")
        for kind in ("sy", "he")
        for name in ("ev", "evd", "evr", "evx")
    },
    **{name: partial(check_pencil, name) for name in ("sygst", "hegst")},
    **{name: partial(check_generalized, name) for name in ("sygvx", "hegvx")},
    "gesvd": check_singular_values,
    **dict.fromkeys(("gebrd", "ormbr", "unmbr"), check_bidiagonal),
    **{name: partial(check_scales, name) for name in ("geequ", "poequ")},
    **{name: partial(check_refinement, name) for name in ("gerfs", "porfs")},
    **{name: partial(check_expert, name) for name in ("gesvx", "posvx")},
    **{name: partial(check_tridiagonal, "sy") for name in ("sytrd", "ormtr")},
    **{name: partial(check_tridiagonal, "he") for name in ("hetrd", "unmtr")},
    **{name: partial(check_redistribution, name) for name in ("gemr2d", "trmr2d")},
}


# Grids and indices


def check_grid(ictxt: int) -> None:
    """gridinit, gridinfo, pnum, pcoord: processes are numbered along the rows; gridexit ends the grid."""
    assert scalapack.gridinfo(ictxt) == (*SHAPE, *GRID.coordinates(COMM.rank))
    for rank in range(COMM.size):
        assert scalapack.pcoord(ictxt, rank) == GRID.coordinates(rank)
        assert scalapack.pnum(ictxt, *GRID.coordinates(rank)) == rank
    column = scalapack.gridinit(COMM, "C", COMM.size, 1, timeout=30.0)
    assert scalapack.gridinfo(column) == (COMM.size, 1, COMM.rank, 0)
    scalapack.gridexit(column)
    assert scalapack.gridinfo(column) == (-1, -1, -1, -1)


def check_map(ictxt: int) -> None:
    del ictxt
    handle = scalapack.gridmap(COMM, [list(range(COMM.size))[::-1]], 1, 1, COMM.size, timeout=30.0)
    assert scalapack.gridinfo(handle) == (1, COMM.size, 0, COMM.size - 1 - COMM.rank)
    scalapack.gridexit(handle)


def check_end(ictxt: int) -> None:
    other = scalapack.gridinit(COMM, "R", 1, 1, timeout=30.0)
    scalapack.exit(1)
    assert scalapack.gridinfo(ictxt) == scalapack.gridinfo(other) == (-1, -1, -1, -1)


def check_world(ictxt: int) -> None:
    del ictxt
    assert (scalapack.pinfo(), scalapack.get(-1, 0)) == ((COMM.rank, COMM.size), 0)


def check_scopes(ictxt: int) -> None:
    """The processes of a scope have a communicator, in which they have their place; all of them pass a barrier."""
    (_, _, myrow, mycol), sizes = scalapack.gridinfo(ictxt), {"A": COMM.size, "R": SHAPE[1], "C": SHAPE[0]}
    for scope, size in sizes.items():
        comm = scalapack.comm(ictxt, scope)
        assert (comm.size, comm.rank) == (size, {"A": COMM.rank, "R": mycol, "C": myrow}[scope])
        entered = COMM.allgather(None)
        scalapack.barrier(ictxt, scope)
        assert len(entered) == COMM.size


def check_descriptor(ictxt: int) -> None:
    assert scalapack.descinit(7, 5, 2, 3, 0, 0, ictxt, 9) == [1, ictxt, 7, 5, 2, 3, 0, 0, 9]


def check_indices(ictxt: int) -> None:
    """The functions of indices, from 1, against an enumeration of blocks that are dealt out from the source on."""
    nb, source, nprocs, size = 3, 1, 4, 29
    places: dict[int, list[int]] = {p: [] for p in range(nprocs)}
    for g in range(1, size + 1):
        places[(source + (g - 1) // nb) % nprocs].append(g)
    for p, mine in places.items():
        assert scalapack.numroc(size, nb, p, source, nprocs) == len(mine)
        for l, g in enumerate(mine, 1):
            assert scalapack.indxg2p(g, nb, 0, source, nprocs) == p
            assert scalapack.indxg2l(g, nb, 0, source, nprocs) == l
            assert scalapack.indxl2g(l, nb, p, source, nprocs) == g
    a, (nprow, npcol, myrow, mycol) = Distribution(ictxt, 9, 11, 2, 3), scalapack.gridinfo(ictxt)
    for i, j in ((1, 1), (4, 7), (9, 11)):
        here = scalapack.infog2l(i, j, a.desc, nprow, npcol, myrow, mycol)
        row, column = int((a.rows < i).sum()) + 1, int((a.columns < j).sum()) + 1
        assert here == (row, column, (i - 1) // 2 % nprow, (j - 1) // 3 % npcol)


CHECKS: dict[str, Check] = {
    **dict.fromkeys(("gridinit", "gridinfo", "gridexit", "pnum", "pcoord"), check_grid),
    **dict.fromkeys(("pinfo", "get"), check_world),
    **dict.fromkeys(("comm", "barrier"), check_scopes),
    **dict.fromkeys(("numroc", "indxg2p", "indxg2l", "indxl2g", "infog2l"), check_indices),
    "gridmap": check_map,
    "exit": check_end,
    "descinit": check_descriptor,
}
