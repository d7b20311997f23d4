"""The programs xdllt, xdlu and xdinv: factorizations, solves and inverses, in guarded memory.

Each case is one factorization or inverse; those of xdllt and xdlu solve for several right-hand sides with the factor.
The matrices are random ones: diagonally dominant in xdllt and xdinv, whose residuals assume that, as upstream's are.

Source: ScaLAPACK, TESTING/traditional: LLT.dat, LU.dat, INV.dat; TESTING/LIN: PDLLTDRIVER, PDLUDRIVER, PDINVDRIVER.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from pblas import scalapack
from pblas.factor import choose as choose_factorization
from pblas.layouts.grid import Grid
from tests.common.factors import forget_plans
from tests.common.gauge import Array, applied, entries
from tests.conformance.problems import DTYPES, SEEDS, Matrix, Operand, Outcome
from tests.conformance.tables import INV, LLT, LU, NBRHS, NRHS

PROGRAMS = ("llt", "lu", "inv")
THRESHOLDS = {"llt": 3.0, "lu": 1.0, "inv": 1.0, "qr": 5.0, "lq": 5.0, "qp": 5.0, "ls": 4.0, "sep": 20.0, "gsep": 100.0}
_EPS = {"s": 2.0**-24, "d": 2.0**-53, "c": 2.0**-24, "z": 2.0**-53}
"""Upstream's eps, which is half of NumPy's."""
_LEAST = 4
"""The least size that residuals are divided by, the smallest one in most tables: a threshold of 1 assumes several
roundings."""
_NOTHING = -7
"""Pivots that must not be touched."""


@dataclass(frozen=True, slots=True)
class Case:
    """One factorization or inverse.

    Args:
        program: one of `THRESHOLDS`.
        letter: letter of the type, s, d, c or z.
        m: rows of A.
        n: columns of A.
        a: memory layout of A.
        right: right-hand sides: their number, their memory layout, and op.
        kind: for "llt" and "inv" the matrix, as upstream: GEN, UTR, LTR, UPD or LPD; for "sep" and "gsep" UPLO and the
            type of matrix, 1 to 22.
    """

    program: str
    letter: str
    m: int
    n: int
    a: Matrix
    right: tuple[tuple[int, Matrix, str], ...] = ()
    kind: str = "GEN"

    @property
    def routine_name(self) -> str:
        """The name of the first call."""
        names = {"llt": "potrf", "lu": "getrf", "qr": "geqrf", "lq": "gelqf", "qp": "geqpf", "ls": "gels"}
        names |= {"sep": "syevd", "gsep": "sygvx"} if self.letter in "sd" else {"sep": "heevd", "gsep": "hegvx"}
        name = (
            names.get(self.program)
            or {"G": "getri", "P": "potri", "T": "trtri"}[self.kind[0] if self.kind == "GEN" else self.kind[1]]
        )
        return f"p{self.letter}{name}"

    @property
    def uplo(self) -> str:
        """The triangle that is used."""
        return self.kind[0]


def table(program: str, letter: str, *, every: bool = True) -> list[Case]:
    """The sizes and blocks of a program's table; the right-hand sides take turns with the blocks of B.

    Args:
        program: "llt", "lu" or "inv".
        letter: letter of the type, s, d, c or z.
        every: all values of the table; otherwise the first ones, which upstream runs.
    """
    cases = []
    if program == "inv":
        kinds, orders, widths = INV
        for kind, n, nb in product(kinds, orders[: None if every else 4], widths[: None if every else 4]):
            cases.append(Case(program, letter, n, n, Matrix(n, n, nb, nb), kind=kind))
        return cases
    sizes, blocks = LU if program == "lu" else LLT
    for number, ((m, n), nb) in enumerate(product(sizes[: None if every else 4], blocks[: None if every else 3])):
        right = [
            (nrhs, Matrix(n, nrhs, nb, NBRHS[(i + number) % len(NBRHS)]), "NTC"[(i + number) % 3])
            for i, nrhs in enumerate(NRHS[: None if every else 3])
        ]
        case = Case(program, letter, m, n, Matrix(m, n, nb, nb), tuple(right if m == n else ()))
        cases += [case] if program == "lu" else [replace(case, kind=kind) for kind in ("UPD", "LPD")]
    return cases


def holes(program: str, letter: str, count: int, grid: Grid) -> list[Case]:
    """Random cases that ScaLAPACK's restrictions forbid: other blocks in B, MB other than NB, offsets, sources."""
    rng = random.Random(f"{program} {letter} {grid.nprow} {grid.npcol}")
    cases = []
    for _ in range(count):
        n = rng.choice([0, 2, 7, 8, 9, 13, 21] if program == "inv" else [0, 1, 2, 7, 8, 9, 13, 21])
        m = rng.choice([0, 1, 8, 13]) if program == "lu" and rng.random() < 0.3 else n
        right = tuple(
            (nrhs, anywhere(rng, n, nrhs, grid), rng.choice("NTC")) for nrhs in (0, 1, 5) if m == n and program != "inv"
        )
        kinds = {"lu": ["GEN"], "llt": ["UPD", "LPD"], "inv": ["GEN", "UTR", "LTR", "UPD", "LPD"]}
        cases.append(Case(program, letter, m, n, anywhere(rng, m, n, grid), right, rng.choice(kinds[program])))
    return cases


def anywhere(rng: random.Random, rows: int, columns: int, grid: Grid) -> Matrix:
    """A memory layout of a matrix that contains a submatrix of this shape."""
    i, j, replicated, first = rng.randint(1, 6), rng.randint(1, 6), rng.random() < 0.1, rng.random() < 0.3
    return Matrix(
        *(rows + i - 1 + rng.randint(0, 3), columns + j - 1 + rng.randint(0, 3)),
        *(rng.choice([1, 2, 3, 5, 50]), rng.choice([1, 2, 4, 7, 50]), i, j),
        *((-1, -1) if replicated else (rng.randrange(grid.nprow), rng.randrange(grid.npcol))),
        imb=rng.randint(1, 4) if first else None,
        inb=rng.randint(1, 4) if first else None,
        order=rng.choice(["F", "C"]),
        gap=rng.choice([0, 1, 10]),
    )


@dataclass(frozen=True, slots=True)
class FactorOutcome(Outcome):
    """The outcome of a case, equal on all ranks of the grid, and the pivots of a factorization, from 0."""

    pivots: tuple[int, ...] = ()


@contextmanager
def narrow_panels(*, grids: bool = False) -> Iterator[None]:
    """A with block in which all ranks factor small matrices too, in panels of five columns; `grids`: over grids."""
    values = {"_NARROWEST": 5, "_WIDEST": 5, "_WIDEST_IN_COLUMNS": 5, "_LEAST": 3}
    if grids:
        values |= {"_LEAST_OF_A_GRID": 1, "_QUICKER": 10**9}
    before = {name: getattr(choose_factorization, name) for name in values}
    for name, value in values.items():
        setattr(choose_factorization, name, value)
    forget_plans()
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(choose_factorization, name, value)
        forget_plans()


class Run:
    """One case on one grid.

    Args:
        case: the case (global).
        ictxt: handle of the grid, for each library (local).
        grid: grid of the processes (global).
        comm: communicator of exactly these processes (global).
        libraries: the library that factors, and the one that solves (global).
    """

    def __init__(
        self, case: Case, ictxt: tuple[int, int], grid: Grid, comm: Any, libraries: tuple[Any, Any] = (scalapack,) * 2
    ) -> None:
        self.case, self.ictxt, self.grid, self.comm, self.libraries = case, ictxt, grid, comm, libraries
        self.dtype = np.dtype(DTYPES[case.letter])
        self.sub = self._entries()
        matrix = case.a
        whole = entries((matrix.m, matrix.n), self.dtype, SEEDS["C"])
        inner = self._inner(whole, matrix, self.sub.shape)
        inner[...] = self.sub
        if case.kind != "GEN":
            inner[~self.inside] = np.nan
        if case.kind[1:] == "PD" and self.dtype.kind == "c":
            np.einsum("ii->i", inner).imag = np.nan if libraries[0] is scalapack else 0
        self.a = Operand(matrix, whole, grid, comm.rank)
        rows = self.a.part().shape[0]
        self.ipiv = np.full(rows + matrix.mb, _NOTHING, np.intc)
        self.texts: list[str] = []
        self.error, self.pivots = 0.0, tuple[int, ...]()

    @property
    def eps(self) -> float:
        """Upstream's eps."""
        return _EPS[self.case.letter]

    @property
    def inside(self) -> Array:
        """The elements that the routine uses and writes."""
        m, n = self.sub.shape
        i, j = np.arange(m)[:, None], np.arange(n)
        return (i >= j if self.case.uplo == "L" else i <= j) if self.case.kind != "GEN" else np.ones((m, n), bool)

    def _entries(self) -> Array:
        """Sub(A): what the elements inside the triangle stand for."""
        case = self.case
        m, n = case.m, case.n
        x = entries((m, n), self.dtype, SEEDS["A"] + n)
        if case.kind[1:] == "PD":
            x = (x + x.conj().T) / 2
        if case.program != "lu":
            np.einsum("ii->i", x)[...] = np.abs(np.einsum("ii->i", x)) + max(m, n)
        if case.kind[1:] == "TR":
            x = np.tril(x) if case.uplo == "L" else np.triu(x)
        return x.astype(self.dtype)

    @staticmethod
    def _inner(whole: Array, matrix: Matrix, shape: tuple[int, int]) -> Array:
        return whole[matrix.i - 1 : matrix.i - 1 + shape[0], matrix.j - 1 : matrix.j - 1 + shape[1]]

    def outcome(self) -> FactorOutcome:
        """**Collective** over the grid. Run the case."""
        with np.errstate(all="ignore"):
            self._run()
        text = next((text for text in self.comm.allgather("; ".join(self.texts)) if text), "")
        return FactorOutcome(text, self.error, pivots=self.pivots)

    def _run(self) -> None:
        {"llt": self._llt, "lu": self._lu, "inv": self._inv}[self.case.program]()

    def _llt(self) -> None:
        case, n = self.case, self.case.n
        self._expect("INFO", self._call(0, "potrf", case.uplo, n, *self._at(0)), 0)
        factor = self._whole(self.a, (n, n))
        self._check_factored(factor)
        factor = np.where(self.inside, factor, 0)
        wide = self._wide(factor)
        product = wide @ wide.conj().T if case.uplo == "L" else wide.conj().T @ wide
        self._check("A - L L^H", self._ratio(self.sub - product, self.sub, n))
        for nrhs, matrix, _ in case.right:
            self._solve(nrhs, matrix, "N", "potrs", case.uplo, n, nrhs)
        if self.libraries[0] is self.libraries[1]:
            self._again("posv", case.uplo, n)

    def _lu(self) -> None:
        case, (m, n), k = self.case, (self.case.m, self.case.n), min(self.case.m, self.case.n)
        self._expect("INFO", self._call(0, "getrf", m, n, *self._at(0), self.ipiv), 0)
        factor = self._whole(self.a, (m, n))
        self._check_factored(factor)
        wide = self._wide(factor)
        lower, upper = (np.tril(wide, -1) + np.eye(m, n))[:, :k], np.triu(wide)[:k]
        product = lower @ upper
        self.pivots = self._pivots(k)
        for row, pivot in list(enumerate(self.pivots))[::-1]:
            product[[row, pivot]] = product[[pivot, row]]
        self._check("A - P L U", self._ratio(self.sub - product, self.sub, max(m, n)))
        for nrhs, matrix, trans in case.right:
            self._solve(nrhs, matrix, trans, "getrs", trans, n, nrhs, ipiv=True)
        if m == n and self.libraries[0] is self.libraries[1]:
            self._again("gesv", n, ipiv=True)

    def _inv(self) -> None:
        case, n = self.case, self.case.n
        if case.kind == "GEN":
            self._expect("INFO", self._call(0, "getrf", n, n, *self._at(0), self.ipiv), 0)
            self._expect("INFO of getri", self._call(0, "getri", n, *self._at(0), self.ipiv), 0)
        elif case.kind[1:] == "PD":
            self._expect("INFO", self._call(0, "potrf", case.uplo, n, *self._at(0)), 0)
            self._expect("INFO of potri", self._call(0, "potri", case.uplo, n, *self._at(0)), 0)
        else:
            self._expect("INFO", self._call(0, "trtri", case.uplo, "N", n, *self._at(0)), 0)
        inverse = self._whole(self.a, (n, n))
        self._check_factored(inverse)
        inverse = np.where(self.inside, inverse, 0)
        if case.kind[1:] == "PD":
            other = np.tril(inverse, -1) if case.uplo == "L" else np.triu(inverse, 1)
            inverse = inverse + other.conj().T
        self._check("A inv(A) - I", self._ratio(self._wide(self.sub) @ inverse - np.eye(n), self.sub, n))

    # Steps of the cases

    def _call(self, which: int, name: str, *arguments: Any) -> int:
        """INFO of a call of the library that factors, 0, or of the one that solves, 1."""
        library = self.libraries[which]
        call = getattr(library, f"p{self.case.letter}{name}")
        if library is scalapack:
            return int(call(*arguments) or 0)
        info = np.zeros(1, np.intc)
        call(*arguments, info)
        return int(info[0])

    def _at(self, which: int) -> tuple[Any, ...]:
        """A, IA, JA, DESCA for a library."""
        return self.a.arguments(self.ictxt[which])

    def _solve(self, nrhs: int, matrix: Matrix, trans: str, name: str, *options: Any, ipiv: bool = False) -> None:
        """Solve with the factor, which must not change."""
        self.a.before = self.a.memory.tobytes()
        # ScaLAPACK uses the last MB elements of IPIV as a workspace.
        pivots = self.ipiv if self.libraries[1] is scalapack else self.ipiv[: -self.case.a.mb]
        before = pivots.copy()
        b, whole = self._right(nrhs, matrix)
        at = b.arguments(self.ictxt[1])
        self._call(1, name, *options, *self._at(1), *([self.ipiv] if ipiv else []), *at)
        if not (self.a.is_untouched() and np.array_equal(pivots, before)):
            self.texts.append(f"{name} has changed A or IPIV")
        self._check_solution(name, b, whole, applied(trans, self.sub))

    def _again(self, name: str, *options: Any, ipiv: bool = False) -> None:
        """Factor and solve in one call."""
        for nrhs, matrix, _ in self.case.right[:1]:
            self.a = Operand(self.case.a, self.a.whole, self.grid, self.comm.rank)
            b, whole = self._right(nrhs, matrix)
            at = b.arguments(self.ictxt[1])
            info = self._call(1, name, *options, nrhs, *self._at(1), *([self.ipiv] if ipiv else []), *at)
            self._expect(f"INFO of {name}", info, 0)
            self._check_solution(name, b, whole, self.sub)

    def _right(self, nrhs: int, matrix: Matrix) -> tuple[Operand, Array]:
        """Right-hand sides, in guarded memory."""
        whole = entries((matrix.m, matrix.n), self.dtype, SEEDS["B"])
        return Operand(matrix, whole, self.grid, self.comm.rank), self._inner(whole, matrix, (self.case.n, nrhs))

    def _check_solution(self, name: str, operand: Operand, b: Array, a: Array) -> None:
        if not operand.is_untouched_outside(b.shape):
            self.texts.append(f"{name} has changed memory around sub(B)")
        x = self._whole(operand, b.shape)
        size = norm(x) * max(len(a), 1)
        self._check(f"A X - B of {name}", self._ratio(self._wide(a) @ x - b, a, size))

    def _check_factored(self, result: Array) -> None:
        """Check that nothing has changed that must not, in A and in IPIV."""
        if not self.a.is_untouched_outside(self.sub.shape):
            self.texts.append("memory around sub(A) has changed")
        if self.case.kind != "GEN" and not np.isnan(result[~self.inside]).all():
            self.texts.append("the other triangle has changed")

    def _pivots(self, k: int) -> tuple[int, ...]:
        """The pivots of the first k rows, from 0, equal in all process columns; nothing else may be in IPIV."""
        rows, _ = self.a.indices()
        offset = self.case.a.i - 1
        inner = (rows >= offset) & (rows < offset + k)
        mine = {
            int(row) - offset: int(p) - 1 - offset
            for row, p in zip(rows[inner], self.ipiv[: len(rows)][inner], strict=True)
        }
        outside = np.concatenate([self.ipiv[: len(rows)][~inner], self.ipiv[len(rows) :]])
        if self.libraries[0] is scalapack and (outside != _NOTHING).any():
            self.texts.append("IPIV has changed outside the rows of sub(A)")
        everywhere: dict[int, int] = {}
        for theirs in self.comm.allgather(mine):
            for row, pivot in theirs.items():
                if everywhere.setdefault(row, pivot) != pivot:
                    self.texts.append(f"process columns have different pivots of row {row}")
        return tuple(everywhere[row] for row in range(k))

    def _whole(self, operand: Operand, shape: tuple[int, int]) -> Array:
        """**Collective** over the grid. The submatrix, on all processes."""
        i, j, place = operand.inside(shape)
        result = np.full(shape, np.nan, self.dtype)
        for rows, columns, part in self.comm.allgather((i, j, operand.part()[place].copy())):
            result[np.ix_(rows, columns)] = part
        return result

    def _wide(self, x: Array) -> Array:
        """The elements with more bits, for residuals."""
        return x.astype(np.clongdouble if self.dtype.kind == "c" else np.longdouble)

    def _ratio(self, residual: Array, a: Array, size: float) -> float:
        """Norm(residual) / (norm(A) size eps), in the inf-norm, where size has the size of A as a factor."""
        length, least = norm(residual), _LEAST / max(len(self.sub), 1)
        return 0.0 if length == 0 else length / (norm(a) * size * max(least, 1) * self.eps)

    def _expect(self, what: str, value: int, expected: int) -> None:
        if value != expected:
            self.texts.append(f"{what} is {value}, expected {expected}")

    def _check(self, what: str, ratio: float) -> None:
        self.error = max(self.error, ratio)
        if not ratio <= THRESHOLDS[self.case.program]:
            self.texts.append(f"{what}: {ratio:.2f}")


def norm(x: Array) -> float:
    """The inf-norm; NaN if there is one."""
    return float(np.abs(x).sum(1).max(initial=0.0)) if x.size else 0.0
