"""Problems of levels 1 and 2: the columns of the tables, and random ones; vectors are rows or columns of matrices.

All arrays are in guarded memory, and the parts that a routine must not read are NaN.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pblas import scalapack
from pblas.layouts.grid import Grid
from tests.common.gauge import Array, applied, entries
from tests.conformance.problems import DTYPES, SEEDS, Matrix, Operand, Outcome, make_triangle
from tests.conformance.tables import GAP, LEVEL1, LEVEL2, SCALARS, THRESHOLD, VECTOR_ARGUMENTS

REAL = ("s", "d")
COMPLEX = ("c", "z")
LETTERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("swap", "copy", "axpy", "amax"), (*REAL, *COMPLEX)),
    "scal": (*REAL, *COMPLEX, "cs", "zd"),
    **dict.fromkeys(("nrm2", "asum"), (*REAL, "sc", "dz")),
    **dict.fromkeys(("dot", "symv", "asymv", "ger", "syr", "syr2"), REAL),
    **dict.fromkeys(("dotu", "dotc", "hemv", "ahemv", "geru", "gerc", "her", "her2"), COMPLEX),
    **dict.fromkeys(("gemv", "agemv", "trmv", "trsv", "atrmv"), (*REAL, *COMPLEX)),
}
"""Letters of the types of each routine."""
ROUTINES = tuple(LETTERS)
_WRITTEN = {"swap": "XY", "scal": "X", "trmv": "X", "trsv": "X", "copy": "Y", "axpy": "Y"}
_SCALAR = ("dot", "dotu", "dotc", "nrm2", "asum", "amax")


@dataclass(frozen=True, slots=True)
class Case:
    """One call of a routine.

    Args:
        routine: a key of `LETTERS`.
        letter: letters of the type.
        m: M, or N again.
        n: N.
        matrices: memory layouts of A, X and Y.
        rows: names of the vectors that are rows of their matrices.
        uplo: UPLO.
        trans: TRANS.
        diag: DIAG.
        alpha: scalar.
        beta: scalar.
    """

    routine: str
    letter: str
    m: int
    n: int
    matrices: dict[str, Matrix]
    rows: str
    uplo: str = "L"
    trans: str = "N"
    diag: str = "N"
    alpha: complex = 1.0
    beta: complex = 0.0

    @property
    def routine_name(self) -> str:
        """The name of the call."""
        return f"p{self.letter}{self.routine}"

    @property
    def names(self) -> list[str]:
        """The arrays, in order."""
        return [name for name in VECTOR_ARGUMENTS[self.routine].split() if name in ("A", "X", "Y")]

    @property
    def written(self) -> str:
        """The arrays that are written."""
        if self.routine in _SCALAR:
            return ""
        return (
            _WRITTEN.get(self.routine) or self.names[-1]
            if self.routine[:2] not in ("ge", "sy", "he")
            else ("Y" if self.routine.endswith("mv") else "A")
        )

    @property
    def is_real(self) -> bool:
        """Whether Y and the scalars are real for complex types too."""
        return self.routine in ("agemv", "asymv", "ahemv", "atrmv")

    def dtype(self, name: str) -> np.dtype[Any]:
        """The dtype of an array."""
        dtype = np.dtype(DTYPES[self.letter.strip("sd") or self.letter])
        return np.dtype(dtype.type(0).real.dtype) if self.is_real and name == "Y" else dtype

    def extents(self, name: str) -> tuple[int, int]:
        """Rows and columns of a submatrix as it is stored."""
        if name == "A":
            return self.m, self.n
        size = self.n
        if self.routine.startswith("ger"):
            size = self.m if name == "X" else self.n
        elif self.routine.endswith("gemv"):
            size = self.m if (name == "Y") == (self.trans == "N") else self.n
        return (1, size) if name in self.rows else (size, 1)


@dataclass(slots=True)
class Values:
    """The arrays of a case, in the widest precision: A, and X and Y in one dimension."""

    case: Case
    A: Array = field(default_factory=lambda: np.zeros((0, 0)))
    X: Array = field(default_factory=lambda: np.zeros(0))
    Y: Array = field(default_factory=lambda: np.zeros(0))


def _triangle(case: Case, x: Array, k: int = 0) -> Array:
    return np.tril(x, -k) if case.uplo == "L" else np.triu(x, k)


def _matrix(v: Values) -> Array:
    """The matrix that multiplies X."""
    case, kind = v.case, v.case.routine[-4:]
    if kind == "gemv":
        return applied(case.trans, v.A)
    if kind in ("trmv", "trsv"):
        part = _triangle(case, v.A, int(case.diag == "U"))
        return applied(case.trans, part + np.eye(case.n) if case.diag == "U" else part)
    strict, diagonal = _triangle(case, v.A, 1), v.A.diagonal()
    is_hermitian = kind == "hemv"
    return strict + np.diag(diagonal.real if is_hermitian else diagonal) + applied("C" if is_hermitian else "T", strict)


def _sizes(x: Any) -> Any:
    return np.abs(np.real(x)) + np.abs(np.imag(x))


def expected(v: Values) -> tuple[dict[str, Array], dict[str, Array]]:
    """The arrays that the routine writes, and the sums of the absolute values of their terms."""
    case, routine = v.case, v.case.routine
    alpha, beta = case.alpha, case.beta
    if routine == "swap":
        return {"X": v.Y, "Y": v.X}, {"X": 0 * _sizes(v.X), "Y": 0 * _sizes(v.X)}
    if routine == "copy":
        return {"Y": v.X}, {"Y": 0 * _sizes(v.X)}
    if routine == "scal":
        return {"X": alpha * v.X}, {"X": _sizes(alpha) * _sizes(v.X)}
    if routine == "axpy":
        new = v.X if alpha != 0 else 0 * v.Y
        return {"Y": alpha * new + v.Y}, {"Y": _sizes(alpha) * _sizes(new) + _sizes(v.Y)}
    if routine == "trsv":  # the bound is Higham's, theorem 8.5, as for trsm
        matrix = _matrix(v).astype("complex128" if np.iscomplexobj(v.A) else "float64")
        inverse = np.linalg.inv(matrix)
        x = inverse @ v.X.astype(matrix.dtype)
        return {"X": x}, {"X": np.abs(inverse) @ (np.abs(matrix) @ np.abs(x))}
    if routine.endswith("mv"):
        matrix, old = _matrix(v), v.Y if beta != 0 else np.zeros(len(v.Y))
        if routine == "trmv":
            return {"X": matrix @ v.X}, {"X": _sizes(matrix) @ _sizes(v.X)}
        product = np.zeros(len(matrix)) if alpha == 0 else matrix @ v.X
        terms = np.zeros(len(matrix)) if alpha == 0 else _sizes(matrix) @ _sizes(v.X)
        bound = _sizes(alpha) * terms + _sizes(beta) * _sizes(old)
        return {"Y": bound if case.is_real else alpha * product + beta * old}, {"Y": bound}
    left, right = v.X, v.X if routine in ("syr", "her") else v.Y
    if alpha == 0:
        left, right = np.zeros(len(left)), np.zeros(len(right))
    conj: Callable[[Array], Array] = np.conj if routine in ("gerc", "her", "her2") else np.asarray
    new, terms = alpha * np.outer(left, conj(right)), _sizes(alpha) * np.outer(_sizes(left), _sizes(right))
    if routine.endswith("2"):
        other = np.conj(alpha) if routine == "her2" else alpha
        new, terms = new + other * np.outer(right, conj(left)), 2 * np.maximum(terms, terms.T) + terms + terms.T
    return {"A": v.A + new}, {"A": _sizes(v.A) + terms}


def scalar(v: Values) -> tuple[complex, float]:
    """The result of a reduction, and the sum of the absolute values of its terms."""
    routine, sizes = v.case.routine, _sizes(v.X)
    if routine.startswith("dot"):
        return ((np.conj(v.X) if routine == "dotc" else v.X) * v.Y).sum(), (sizes * _sizes(v.Y)).sum()
    if routine == "nrm2":
        root = np.sqrt((np.abs(v.X) ** 2).sum())
        return root, root
    if routine == "asum":
        return sizes.sum(), sizes.sum()
    return (v.X[int(sizes.argmax())] if len(sizes) else 0.0), 0.0


def run(case: Case, ictxt: int, grid: Grid, rank: int, library: Any = scalapack) -> Outcome:
    """**Collective** over the grid. Make the call of a case and check all memory that it may have changed."""
    wholes = {name: _whole(case, name) for name in case.names}
    operands = {name: Operand(case.matrices[name], wholes[name], grid, rank) for name in case.names}
    call = getattr(library, case.routine_name)
    start = time.perf_counter()
    returned = call(*_arguments(case, operands, ictxt))
    seconds = time.perf_counter() - start
    for name, operand in operands.items():
        if name not in case.written and not operand.is_untouched():
            return Outcome(f"{name} or memory around it has changed")
        if name in case.written and not operand.is_untouched_outside(case.extents(name)):
            return Outcome(f"memory around sub({name}) has changed")
    values = Values(case)
    for name, whole in wholes.items():
        sub = _sub(case, name, whole)
        wide: Any = np.clongdouble if sub.dtype.kind == "c" else np.longdouble
        setattr(values, name, (sub if name == "A" else sub.ravel()).astype(wide))
    with np.errstate(invalid="ignore"):
        if case.routine in _SCALAR:
            return Outcome(*_scalar_error(values, returned, grid, rank), seconds)
        return Outcome(*_error(values, operands), seconds)


def _error(v: Values, operands: dict[str, Operand]) -> tuple[str, float]:
    """A text if a result is wrong on this rank, and the largest error in units of eps."""
    case, largest = v.case, 0.0
    if not case.n or not case.m:
        return "" if all(operand.is_untouched() for operand in operands.values()) else "an empty call wrote", 0.0
    results, bounds = expected(v)
    for name, whole in results.items():
        exact, bound = whole, bounds[name]
        i, j, place = operands[name].inside(case.extents(name))
        result = operands[name].part()[place]
        if name != "A":
            exact, bound = (x.reshape(case.extents(name)) for x in (exact, bound))
        exact, bound = exact[np.ix_(i, j)], bound[np.ix_(i, j)]
        if case.routine[:2] in ("sy", "he") and name == "A":
            distance = i[:, None] - j[None, :] if case.uplo == "L" else j[None, :] - i[:, None]
            if not np.isnan(result[distance < 0]).all():
                return "the other triangle has changed", np.inf
            if case.routine[:2] == "he":
                if case.alpha != 0 and result.imag[distance == 0].any():
                    return "the diagonal is not real", np.inf
                keep = (distance == 0) & (case.alpha == 0)
                exact, bound, result = (np.where(keep, 0, x) for x in (exact, bound, result))
                exact = np.where(distance == 0, exact.real, exact)
                bound = np.where(distance == 0, np.abs(exact.real) + 10, bound)
            exact, bound, result = (x[distance >= 0] for x in (exact, bound, result))
        error, unit = np.abs(result - exact), np.finfo(result.dtype).eps / 2 * bound
        if not (error <= THRESHOLD * unit).all():
            return f"sub({name}) is wrong", np.inf
        largest = max(largest, float((error[unit > 0] / unit[unit > 0]).max(initial=0.0)))
    return "", largest


def _scalar_error(v: Values, returned: Any, grid: Grid, rank: int) -> tuple[str, float]:
    """As `_error`, for a reduction."""
    case = v.case
    value, bound = scalar(v)
    place = 0
    if case.routine == "amax":
        returned, place = returned
    if not case.n:
        return "" if returned == 0 == place else "the result of no elements is not 0", 0.0
    if not _in_scope(case, grid, rank):
        return "" if returned == 0 == place else "a process outside the scope has a result", 0.0
    if case.routine == "amax":
        x = case.matrices["X"]
        start = x.j if "X" in case.rows else x.i
        if place != start + int(_sizes(v.X).argmax()):
            return f"the index is {place}", np.inf
    error, unit = float(abs(returned - value)), float(np.finfo(returned.dtype).eps / 2 * bound)
    if not error <= 2 * (case.n + 2) * unit:
        return f"the result is {returned}, expected {value}", np.inf
    return "", error / unit if unit else 0.0


def _in_scope(case: Case, grid: Grid, rank: int) -> bool:
    myrow, mycol = grid.coordinates(rank)
    for name in case.names:
        x = case.matrices[name]
        desc = x.desc(grid)
        row = desc.rsrc < 0 or scalapack.indxg2p(x.i, x.mb, 0, x.rsrc, grid.nprow) == myrow
        column = desc.csrc < 0 or scalapack.indxg2p(x.j, x.nb, 0, x.csrc, grid.npcol) == mycol
        degenerate = name in case.rows and x.m == 1 and case.n == 1
        if (row and column) if degenerate else (row if name in case.rows else column):
            return True
    return False


def _whole(case: Case, name: str) -> Array:
    """The elements of a matrix, with NaN where they must not be read."""
    matrix = case.matrices[name]
    whole = entries((matrix.m, matrix.n), case.dtype(name), SEEDS.get(name, 300 + ord(name)))
    sub, routine = _sub(case, name, whole), case.routine
    old = name in case.written and routine not in ("swap", "axpy", "scal", "trmv") and name == "Y"
    unread = case.alpha == 0 and not old and routine not in ("swap", "copy", "trmv", "trsv", *_SCALAR)
    if routine == "axpy" and name == "Y":
        unread = False
    if (old and (case.beta == 0 or routine == "copy")) or (unread and name not in case.written):
        sub[...] = np.nan
    if name == "A" and routine == "trsv":
        make_triangle(case, sub)
    elif name == "A" and not routine.endswith("gemv") and not routine.startswith("ger"):
        k = int(case.diag == "U" and routine.endswith("trmv"))
        sub[_triangle(case, np.ones(sub.shape), k) == 0] = np.nan
        if routine.startswith(("he", "ahe")):
            sub.imag[np.diag_indices(len(sub))] = np.nan if routine.endswith("mv") or case.alpha else 0
    return whole


def _sub(case: Case, name: str, whole: Array) -> Array:
    (rows, columns), x = case.extents(name), case.matrices[name]
    return whole[x.i - 1 : x.i - 1 + rows, x.j - 1 : x.j - 1 + columns]


def _arguments(case: Case, operands: dict[str, Operand], ictxt: int) -> list[Any]:
    scalars = {"UPLO": case.uplo, "TRANS": case.trans, "DIAG": case.diag, "M": case.m, "N": case.n}
    named: dict[str, Any] = {**scalars, "ALPHA": case.alpha, "BETA": case.beta}
    for name, operand in operands.items():
        named |= dict(zip((name, f"I{name}", f"J{name}", f"DESC{name}"), operand.arguments(ictxt), strict=True))
        named[f"INC{name}"] = case.matrices[name].m if name in case.rows else 1
    return [named[name] for name in VECTOR_ARGUMENTS[case.routine].split() if name not in ("VALUE", "INDX")]


def table(routine: str, letter: str) -> list[Case]:
    """All columns of the tables."""
    alpha, beta = SCALARS[letter.strip("sd") or letter]
    if len(letter) > 1 or routine in ("her", "agemv", "asymv", "ahemv", "atrmv"):
        alpha, beta = 2.0, 3.0
    cases = []
    if "A" not in VECTOR_ARGUMENTS[routine].split():
        for n, x, y in LEVEL1:
            matrices = {name: Matrix(p.m, p.n, p.block, p.block, p.i, p.j) for name, p in (("X", x), ("Y", y))}
            rows = "".join(name for name, p in (("X", x), ("Y", y)) if p.increment == p.m)
            cases.append(Case(routine, letter, n, n, matrices, rows, alpha=alpha))
        return cases
    for uplo, trans, diag, m, n, size, block, offset, are_rows in LEVEL2:
        sizes = {"A": size, "X": 30, "Y": 40}
        matrices = {name: Matrix(s, s, block, block, offset, offset) for name, s in sizes.items()}
        general = routine.endswith("gemv") or routine.startswith("ger")
        rows = "XY" if are_rows else ""
        cases.append(Case(routine, letter, m if general else n, n, matrices, rows, uplo, trans, diag, alpha, beta))
    return cases


def holes(routine: str, letter: str, count: int, grid: Grid) -> list[Case]:
    """Random cases of kinds that the tables leave out; see `problems.holes`."""
    rng = random.Random(f"{routine} {letter} {grid.nprow} {grid.npcol}")
    scalars: list[complex] = [0.0, 1.0, -1.0, 2.5]
    cases = []
    for _ in range(count):
        m, n = (rng.choice([0, 1, 2, 3, 7, 8, 17]) for _ in range(2))
        if not (routine.endswith("gemv") or routine.startswith("ger")):
            m = n
        rows = "".join(name for name in "XY" if rng.random() < 0.5)
        options = rng.choice("LU"), rng.choice("NTC"), rng.choice("NU"), rng.choice(scalars), rng.choice(scalars)
        bare = Case(routine, letter, m, n, {}, rows, *options)
        matrices = {name: _anywhere(rng, bare.extents(name), grid, name in "XY" and name not in rows) for name in "AXY"}
        cases.append(Case(routine, letter, m, n, matrices, rows, *options))
    return cases


def _anywhere(rng: random.Random, extents: tuple[int, int], grid: Grid, is_column: bool) -> Matrix:
    """A random memory layout of a matrix that contains a submatrix of this shape; a column is in one of two rows."""
    (rows, columns), (i, j) = extents, (rng.randint(1, 6), rng.randint(1, 6))
    m = max(rows + i - 1 + rng.randint(0, 3), 2 if is_column else 1)
    n = columns + j - 1 + rng.randint(0, 3)
    replicated = rng.random() < 0.15
    return Matrix(
        *(m, max(n, 1), rng.choice([1, 2, 3, 50]), rng.choice([1, 2, 4, 50]), i, j),
        *(-1 if replicated else rng.randrange(grid.nprow), -1 if replicated else rng.randrange(grid.npcol)),
        order=rng.choice(["F", "C"]),
        gap=rng.choice([0, 1, GAP]),
    )
