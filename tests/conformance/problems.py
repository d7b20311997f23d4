"""One problem of the conformance tests: operands in guarded memory, the call, and the checks after it.

Each rank checks its own part of the result, and returns a text if it is wrong.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

import numpy as np

from pblas import scalapack
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from tests.common.gauge import Array, applied, entries, gauge
from tests.conformance import structured
from tests.conformance.tables import GAP, GUARD, LEVEL3, SCALARS, SIZES, THRESHOLD, Column

DTYPES = {"s": "float32", "d": "float64", "c": "complex64", "z": "complex128"}
SEEDS = {"A": 100, "B": 200, "C": 300}
_MARGIN = 7  # elements of guard before and after a local array


@dataclass(frozen=True, slots=True)
class Matrix:
    """The memory layout of one operand of a problem.

    Args:
        m: rows.
        n: columns.
        mb: rows per block.
        nb: columns per block.
        i: first row of the submatrix, from 1.
        j: first column of the submatrix, from 1.
        rsrc: process row of the first block, or -1.
        csrc: process column of the first block, or -1.
        imb: rows of the first block; None for mb, and a descriptor of nine entries.
        inb: columns of the first block; None for nb.
        order: storage order of the local arrays.
        gap: number of rows by which LLD exceeds its minimum.
    """

    m: int
    n: int
    mb: int
    nb: int
    i: int = 1
    j: int = 1
    rsrc: int = 0
    csrc: int = 0
    imb: int | None = None
    inb: int | None = None
    order: Literal["F", "C"] = "F"
    gap: int = GAP

    def desc(self, grid: Grid) -> MatrixDescriptor:
        """The descriptor of the matrix."""
        return MatrixDescriptor(
            self.m, self.n, self.mb, self.nb, grid, self.rsrc, self.csrc, imb=self.imb, inb=self.inb
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """One call of a routine.

    Args:
        routine: "gemm", "geadd", "tradd", "tran", "trsm", or one of `structured.ROUTINES`.
        letter: letter of the type, s, d, c or z.
        m: rows of sub(C), or of sub(B) for trsm.
        n: columns of it.
        k: columns of op(sub(A)), for gemm, syrk and its relatives.
        matrices: memory layouts of the operands, by name.
        trans: TRANSA and TRANSB, or TRANS.
        uplo: UPLO.
        alpha: scalar.
        beta: scalar.
        side: SIDE.
        diag: DIAG.
    """

    routine: str
    letter: str
    m: int
    n: int
    k: int
    matrices: dict[str, Matrix]
    trans: tuple[str, ...] = ("N", "N")
    uplo: str = "U"
    alpha: complex = 1.0
    beta: complex = 0.0
    side: str = "L"
    diag: str = "N"

    @property
    def routine_name(self) -> str:
        """The name of the call."""
        if self.routine == "tran" and self.letter in "cz":
            return f"p{self.letter}tran{'c' if self.trans[0] == 'C' else 'u'}"
        return f"p{self.letter}{self.routine}"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the operands, in order; the routine writes the last one."""
        if self.routine in structured.ROUTINES:
            return structured.names(self.routine)
        return {"gemm": ("A", "B", "C"), "trsm": ("A", "B")}.get(self.routine, ("A", "C"))

    def extents(self, name: str) -> tuple[int, int]:
        """Rows and columns of a submatrix as it is stored."""
        if self.routine in structured.ROUTINES:
            return structured.extents(self, name)
        if self.routine == "trsm":
            order = self.m if self.side == "L" else self.n
            return (order, order) if name == "A" else (self.m, self.n)
        shapes = {"A": (self.m, self.k), "B": (self.k, self.n), "C": (self.m, self.n)}
        if self.routine != "gemm":
            shapes["A"] = (self.m, self.n)
        rows, columns = shapes[name]
        flipped = name != "C" and self.trans["AB".index(name)] != "N"
        return (columns, rows) if flipped else (rows, columns)


@dataclass(slots=True)
class Operand:
    """An operand of a problem on this rank: a local array with guards around it.

    Args:
        matrix: memory layout of the matrix that contains the operand (global).
        whole: elements of that matrix (global).
        grid: grid of the processes (global).
        rank: rank of this process (local).
    """

    matrix: Matrix
    whole: Array
    grid: Grid
    rank: int
    memory: Array = field(init=False)
    local: Array = field(init=False)
    before: bytes = field(init=False)

    def __post_init__(self) -> None:
        """Copy this rank's part into memory full of guard values."""
        desc = self.matrix.desc(self.grid)
        rows, columns = desc.local_shape(self.rank)
        lld, size = max(1, rows) + self.matrix.gap, self.whole.itemsize
        self.memory = np.full(2 * _MARGIN + lld * columns, GUARD, self.whole.dtype)
        inner = self.memory[_MARGIN : _MARGIN + lld * columns]
        if self.matrix.order == "F":
            self.local = np.lib.stride_tricks.as_strided(inner, (lld, columns), (size, lld * size))
        else:
            self.local = np.lib.stride_tricks.as_strided(inner, (lld, columns), (columns * size, size))
        self.part()[...] = self.whole[np.ix_(*self.indices())]
        self.before = self.memory.tobytes()

    def indices(self) -> tuple[Any, Any]:
        """Global rows and columns of this rank's part."""
        rows, columns = (
            np.concatenate([np.arange(0), *(np.arange(*bounds) for bounds in ranges)]).astype(int)
            for ranges in self.matrix.desc(self.grid).global_ranges(self.rank)
        )
        return rows, columns

    def part(self) -> Array:
        """This rank's part, without the gap."""
        return self.local[: self.matrix.desc(self.grid).local_shape(self.rank)[0]]

    def arguments(self, ictxt: int) -> tuple[Any, int, int, list[int]]:
        """X, IX, JX, DESCX."""
        x = self.matrix
        lld = self.local.shape[0]
        desc = [1, ictxt, x.m, x.n, x.mb, x.nb, x.rsrc, x.csrc, lld]
        if x.imb is not None or x.inb is not None:
            desc = [2, ictxt, x.m, x.n, x.imb or x.mb, x.inb or x.nb, x.mb, x.nb, x.rsrc, x.csrc, lld]
        return self.local, x.i, x.j, desc

    def inside(self, extents: tuple[int, int]) -> tuple[Array, Array, Any]:
        """Rows and columns of the submatrix that this rank has, from 0, and their index in this rank's part."""
        picked = []
        for g, first, extent in zip(self.indices(), (self.matrix.i, self.matrix.j), extents, strict=True):
            start = first - 1
            picked.append((np.flatnonzero((g >= start) & (g < start + extent)), start, g))
        (r, i, rows), (c, j, columns) = picked
        return rows[r] - i, columns[c] - j, np.ix_(r, c)

    def is_untouched(self) -> bool:
        """Whether no element of the part and of the memory around it has changed."""
        return self.memory.tobytes() == self.before

    def is_untouched_outside(self, extents: tuple[int, int]) -> bool:
        """Whether no element outside the submatrix has changed."""
        _, _, place = self.inside(extents)
        kept = self.part()[place].copy()
        self.part()[place] = self.whole[np.ix_(*self.indices())][place]
        same = self.is_untouched()
        self.part()[place] = kept
        return same


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a call on this rank.

    Args:
        text: description of what is wrong; "" for a correct result.
        error: the largest error, in units of eps times the sum of the absolute values of the terms.
        seconds: duration of the call.
    """

    text: str
    error: float = 0.0
    seconds: float = 0.0


def run(problem: Problem, ictxt: int, grid: Grid, rank: int, library: Any = scalapack) -> Outcome:
    """**Collective** over the grid. Make the call of a problem and check all memory that it may have changed.

    Args:
        problem: the call (global).
        ictxt: handle of the grid (local).
        grid: grid of the processes (global).
        rank: rank of this process in the grid (local).
        library: the library that is called (global).
    """
    dtype = np.dtype(DTYPES[problem.letter])
    names = problem.names
    wholes = {name: _whole(problem, name, dtype) for name in names}
    operands = {name: Operand(problem.matrices[name], wholes[name], grid, rank) for name in names}
    arguments = _arguments(problem, {name: x.arguments(ictxt) for name, x in operands.items()})
    call: Callable[..., None] = getattr(library, problem.routine_name)
    start = time.perf_counter()
    call(*arguments)
    seconds = time.perf_counter() - start
    for name in names[:-1]:
        if not operands[name].is_untouched():
            return Outcome(f"{name} or memory around it has changed")
    written = names[-1]
    if not operands[written].is_untouched_outside(problem.extents(written)):
        return Outcome(f"memory around sub({written}) has changed")
    i, j, place = operands[written].inside(problem.extents(written))
    result = operands[written].part()[place]
    subs = {name: _sub(problem, name, whole) for name, whole in wholes.items()}
    errors = {"gemm": _gemm_error, "trsm": _trsm_error, **dict.fromkeys(structured.ROUTINES, structured.error)}
    text, error = errors.get(problem.routine, _sum_error)(problem, subs, i, j, result)
    return Outcome(text, error, seconds)


def _whole(problem: Problem, name: str, dtype: np.dtype[Any]) -> Array:
    """The elements of a matrix, with NaN where they must not be read."""
    matrix = problem.matrices[name]
    whole = entries((matrix.m, matrix.n), dtype, SEEDS[name])
    if problem.routine in structured.ROUTINES:
        structured.poison(problem, name, _sub(problem, name, whole))
        return whole
    if problem.routine == "trsm":
        sub = _sub(problem, name, whole)
        if problem.alpha == 0:
            sub[...] = np.nan
        elif name == "A":
            make_triangle(problem, sub)
        return whole
    unread = problem.beta == 0 if name == "C" else problem.alpha == 0 or (problem.routine == "gemm" and not problem.k)
    if unread:
        _sub(problem, name, whole)[...] = np.nan
    return whole


def make_triangle(problem: Any, sub: Array) -> None:
    """A well conditioned triangle by UPLO and DIAG, with NaN in the other triangle and in a unit diagonal."""
    n = len(sub)
    sub /= max(1, n)
    diagonal = np.diagonal(sub) + 2
    np.fill_diagonal(sub, np.nan if problem.diag == "U" else diagonal)
    inside = np.tri(n, dtype=bool)
    sub[~(inside if problem.uplo == "L" else inside.T)] = np.nan


def _sub(problem: Problem, name: str, whole: Array) -> Array:
    (rows, columns), x = problem.extents(name), problem.matrices[name]
    return whole[x.i - 1 : x.i - 1 + rows, x.j - 1 : x.j - 1 + columns]


def _arguments(problem: Problem, operands: dict[str, tuple[Any, ...]]) -> tuple[Any, ...]:
    m, n, k, alpha, beta = problem.m, problem.n, problem.k, problem.alpha, problem.beta
    if problem.routine == "gemm":
        return (*problem.trans, m, n, k, alpha, *operands["A"], *operands["B"], beta, *operands["C"])
    if problem.routine == "trsm":
        letters = problem.side, problem.uplo, problem.trans[0], problem.diag
        return (*letters, m, n, alpha, *operands["A"], *operands["B"])
    if problem.routine in structured.ROUTINES:
        return structured.arguments(problem, operands)
    options = {"geadd": problem.trans[:1], "tradd": (problem.uplo, problem.trans[0]), "tran": ()}[problem.routine]
    return (*options, m, n, alpha, *operands["A"], beta, *operands["C"])


def _gemm_error(problem: Problem, subs: dict[str, Array], i: Array, j: Array, result: Array) -> tuple[str, float]:
    a, b = applied(problem.trans[0], subs["A"])[i], applied(problem.trans[1], subs["B"])[:, j]
    alpha = problem.alpha
    if alpha == 0 or problem.k == 0:  # neither is read, and both are NaN
        a, b, alpha = np.zeros((len(i), 0)), np.zeros((0, len(j))), 0
    if np.isnan(result).any():
        return "NaN in the result", np.inf
    # Upstream's eps is half of NumPy's.
    error = 2 * gauge(result, a, b, subs["C"][np.ix_(i, j)], alpha=alpha, beta=problem.beta)
    return "" if error <= THRESHOLD else f"gauge {error:.1f}", error


def _trsm_error(problem: Problem, subs: dict[str, Array], i: Array, j: Array, result: Array) -> tuple[str, float]:
    """Error of a solution, in units of eps times |T^-1| |T| |X|.

    Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, theorem 8.5.
    """
    if problem.alpha == 0:
        return ("X must be 0" if np.any(result) or np.isnan(result).any() else ""), 0.0
    wide = np.dtype("complex128" if problem.letter in "cz" else "float64")
    triangle = subs["A"].astype(wide)
    if problem.diag == "U":
        np.fill_diagonal(triangle, 1)
    triangle = np.tril(triangle) if problem.uplo == "L" else np.triu(triangle)
    t, b = applied(problem.trans[0], triangle), problem.alpha * subs["B"].astype(wide)
    inverse = np.linalg.inv(t)
    x = inverse @ b if problem.side == "L" else b @ inverse
    size = np.abs(inverse) @ np.abs(t) @ np.abs(x) if problem.side == "L" else np.abs(x) @ np.abs(t) @ np.abs(inverse)
    if np.isnan(result).any():
        return "NaN in the result", np.inf
    unit = np.finfo(result.dtype).eps / 2 * size[np.ix_(i, j)]
    error = float((np.abs(result - x[np.ix_(i, j)]) / unit).max(initial=0.0))
    return "" if error <= THRESHOLD else f"{error:.1f} units", error


def _sum_error(problem: Problem, subs: dict[str, Array], i: Array, j: Array, result: Array) -> tuple[str, float]:
    """Error of a sum; at most 8 eps times the larger of the sums of its positive and of its negative terms is allowed.

    Outside the triangle of p?tradd no change is allowed.

    Source: ScaLAPACK PBLAS/TESTING, P?ERRAXPBY.
    """
    x, old = applied(problem.trans[0], subs["A"])[np.ix_(i, j)], subs["C"][np.ix_(i, j)]
    terms = np.zeros((2, 2, 2, *result.shape), np.longdouble)  # of alpha op(A) and beta C; two products; re and im
    for term, (scalar, values) in zip(terms, ((problem.alpha, x), (problem.beta, old)), strict=True):
        if scalar != 0:
            term[...] = _products(scalar, values)
    exact = terms.sum(axis=(0, 1))
    sizes = np.maximum(np.maximum(terms, 0).sum(axis=(0, 1)), np.maximum(-terms, 0).sum(axis=(0, 1))).max(axis=0)
    error = np.hypot(result.real - exact[0], result.imag - exact[1])
    if problem.routine == "tradd":
        inside = j[None, :] >= i[:, None] if problem.uplo == "U" else j[None, :] <= i[:, None]
        if not np.array_equal(result[~inside], old[~inside], equal_nan=True):
            return "the other triangle has changed", np.inf
        error, sizes = error[inside], sizes[inside]
    eps = np.finfo(result.dtype).eps / 2
    unit = eps * (1 + 2 * eps) * sizes
    if not (error <= 8 * unit).all():
        return "an error exceeds 8 eps times the terms, or is NaN", np.inf
    return "", float((error[unit > 0] / unit[unit > 0]).max(initial=0.0))


def _products(scalar: complex, x: Array) -> Array:
    """The two real products in the real part, and in the imaginary part, of a scalar times a matrix."""
    z, real, imag = complex(scalar), x.real.astype(np.longdouble), x.imag.astype(np.longdouble)
    return np.stack([np.stack([z.real * real, z.real * imag]), np.stack([-z.imag * imag, z.imag * real])])


def from_column(
    column: Column, routine: str, letter: str, trans: tuple[str, ...], uplo: str = "U", side: str = "L", diag: str = "N"
) -> Problem:
    """The problem of a column of the level 3 table, with these options."""
    matrices = {
        name: Matrix(size, size, column.block, column.block, column.offset, column.offset)
        for name, size in SIZES.items()
    }
    alpha, beta = _scalars(routine, *SCALARS[letter])
    return Problem(routine, letter, column.m, column.n, column.k, matrices, trans, uplo, alpha, beta, side, diag)


def _scalars(routine: str, alpha: complex, beta: complex) -> tuple[complex, complex]:
    """The scalars, real where Hermitian updates need it."""
    if routine not in ("herk", "her2k"):
        return alpha, beta
    return (complex(alpha).real if routine == "herk" else alpha), complex(beta).real


def _options(routine: str, letter: str) -> list[tuple[str, str, str, str]]:
    """All (TRANS, UPLO, SIDE, DIAG) of a routine of `structured.ROUTINES`."""
    sides, diags = "L" if routine in structured.UPDATES else "LR", "NU" if routine == "trmm" else "N"
    return list(itertools.product(structured.letters(routine, letter), "UL", sides, diags))


def table(routine: str, letter: str) -> list[Problem]:
    """All columns of the level 3 table with all options of a routine."""
    pairs = [(a, b) for a in "NTC" for b in "NTC"]
    problems = []
    for column in LEVEL3:
        if routine in structured.ROUTINES:
            problems += [from_column(column, routine, letter, (t,), *rest) for t, *rest in _options(routine, letter)]
        elif routine == "gemm":
            problems += [from_column(column, routine, letter, pair) for pair in pairs]
        elif routine == "trsm":
            problems += [
                replace(from_column(column, routine, letter, (trans,), uplo), side=side, diag=diag)
                for side, uplo, trans, diag in product("LR", "UL", "NTC", "NU")
            ]
        elif routine == "geadd":
            problems += [from_column(column, routine, letter, (trans,)) for trans in "NTC"]
        elif routine == "tradd":
            problems += [from_column(column, routine, letter, (trans,), uplo) for trans in "NTC" for uplo in "UL"]
        else:
            problems += [from_column(column, routine, letter, (trans,)) for trans in ("TC" if letter in "cz" else "T")]
    return problems


def holes(routine: str, letter: str, count: int, grid: Grid) -> list[Problem]:
    """Random problems of kinds that ScaLAPACK's tables leave out.

    They have sources other than 0, IA other than JA, MB other than NB, blocks that differ between operands or exceed
    the matrix, first blocks of another size (11 entries), replicated operands, the smallest LLD, both storage orders,
    sizes of 0 and below the number of processes, and alpha and beta of 0, 1, -1 and others.

    Args:
        routine: as `Problem.routine`.
        letter: letter of the type, s, d, c or z.
        count: number of problems.
        grid: grid of the processes, which limits the sources.
    """
    rng = random.Random(f"{routine} {letter} {grid.nprow} {grid.npcol}")
    scalars = [0.0, 1.0, -1.0, *SCALARS[letter]]
    problems = []
    for _ in range(count):
        m, n, k = (rng.choice([0, 1, 2, 3, 7, 8, 9, 13, 17]) for _ in range(3))
        trans = tuple(rng.choice("NTC") for _ in range(2))
        if routine == "tran":
            trans = (rng.choice("TC") if letter in "cz" else "T",)
        uplo, alpha, beta, side, diag = rng.choice("UL"), rng.choice(scalars), rng.choice(scalars), "L", "N"
        if routine in structured.ROUTINES:
            *trans, uplo, side, diag = rng.choice(_options(routine, letter))  # type: ignore[assignment]
            alpha, beta = _scalars(routine, alpha, beta)
        elif routine == "trsm":
            side, diag = rng.choice("LR"), rng.choice("NU")
        bare = Problem(routine, letter, m, n, k, {}, tuple(trans), uplo, alpha, beta, side, diag)
        problems.append(replace(bare, matrices={x: anywhere(rng, bare.extents(x), grid) for x in bare.names}))
    return problems


def anywhere(rng: random.Random, extents: tuple[int, int], grid: Grid) -> Matrix:
    """A random memory layout of a matrix that contains a submatrix of this shape."""
    (rows, columns), (i, j) = extents, (rng.randint(1, 6), rng.randint(1, 6))
    first = rng.random() < 0.3
    replicated = rng.random() < 0.15
    return Matrix(
        rows + i - 1 + rng.randint(0, 3),
        columns + j - 1 + rng.randint(0, 3),
        rng.choice([1, 2, 3, 5, 50]),
        rng.choice([1, 2, 4, 7, 50]),
        i,
        j,
        -1 if replicated else rng.randrange(grid.nprow),
        -1 if replicated else rng.randrange(grid.npcol),
        imb=rng.randint(1, 4) if first else None,
        inb=rng.randint(1, 4) if first else None,
        order=rng.choice(["F", "C"]),
        gap=rng.choice([0, 1, GAP]),
    )
