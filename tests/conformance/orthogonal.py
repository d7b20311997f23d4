"""The programs xdqr and xdls: QR, LQ and pivoted QR with products of their Q, and least squares, in guarded memory.

Of xdqr's programs "qr", "lq" and "qp" are here. A is rebuilt from R or L by p?ormqr or p?ormlq, and from Q of p?orgqr.
The right-hand sides of xdls are consistent, as upstream's are, and then random; the elements of A are of size 1, near
underflow and near overflow in turns.

Source: ScaLAPACK, TESTING/traditional: QR.dat, LS.dat; TESTING/LIN: PDQRDRIVER, PDLSDRIVER; LAPACK, xQRT14, xQRT16,
xQRT17.
"""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np

from pblas import scalapack
from pblas.layouts.grid import Grid
from pblas.scalapack import routines
from tests.common.gauge import Array, applied, entries
from tests.conformance import factors
from tests.conformance.factors import Case, anywhere, norm
from tests.conformance.problems import SEEDS, Matrix, Operand
from tests.conformance.tables import LS, QR

PROGRAMS = ("qr", "lq", "qp", "ls")
_NOTHING = -7
"""Elements of IPIV and TAU that must not be touched."""


def table(program: str, letter: str, *, every: bool = True) -> list[Case]:
    """The sizes and blocks of a program's table.

    Args:
        program: "qr", "lq", "qp" or "ls".
        letter: letter of the type, s, d, c or z.
        every: all values of the table; otherwise the first ones, which upstream runs.
    """
    if program != "ls":
        sizes, blocks = QR
        pairs = product(sizes[: None if every else 4], blocks[: None if every else 4])
        return [Case(program, letter, m, n, Matrix(m, n, mb, nb)) for (m, n), (mb, nb) in pairs]
    sizes, widths, counts, of_b = LS
    limit = None if every else 2
    return [
        Case(
            *(program, letter, m, n, Matrix(m, n, nb, nb)),
            tuple(
                (nrhs, Matrix(max(m, n), nrhs, nb, of_b[i % len(of_b)]), trans)
                for i, (nrhs, trans) in enumerate(product(counts[:limit], "NT"))
            ),
            kind="GEN",
        )
        for (m, n), nb in product(sizes, widths[:limit])
    ]


def holes(program: str, letter: str, count: int, grid: Grid) -> list[Case]:
    """Random cases that ScaLAPACK's restrictions forbid, and sizes that its tables leave out."""
    rng = random.Random(f"{program} {letter} {grid.nprow} {grid.npcol}")
    cases = []
    for _ in range(count):
        m, n = (rng.choice([0, 1, 2, 7, 8, 9, 13, 21]) for _ in range(2))
        right = tuple(
            (nrhs, anywhere(rng, max(m, n), nrhs, grid), rng.choice("NT")) for nrhs in (0, 1, 5) if program == "ls"
        )
        cases.append(Case(program, letter, m, n, anywhere(rng, m, n, grid), right))
    return cases


class Run(factors.Run):
    """One case on one grid; the first library factors, and the second multiplies. See `factors.Run`."""

    def _entries(self) -> Array:
        return entries((self.case.m, self.case.n), self.dtype, SEEDS["A"] + self.case.n)

    def _run(self) -> None:
        if self.case.program == "ls":
            self._ls()
        else:
            self._factor()

    def _factor(self) -> None:
        """Factor, check where IPIV and TAU were written, and rebuild A."""
        case, (m, n), k = self.case, self.sub.shape, min(self.sub.shape)
        axis = 0 if case.program == "lq" else 1
        tau = np.full(self.a.part().shape[axis] + case.a.mb + case.a.nb, _NOTHING, self.dtype)
        order = np.full(self.a.part().shape[1] + case.a.nb, _NOTHING, np.intc)
        name = {"qr": "geqrf", "lq": "gelqf", "qp": "geqpf"}[case.program]
        self._worked(0, name, m, n, *self._at(0), *((order,) if case.program == "qp" else ()), tau)
        factor = self._whole(self.a, (m, n))
        self._check_factored(factor)
        self._elements("TAU", tau, axis, k)
        columns = list(range(n))
        if case.program == "qp":
            columns = [int(j) - case.a.j for j in self._elements("IPIV", order, 1, n if m else 0)] if m else columns
            if sorted(columns) != list(range(n)):
                self.texts.append(f"IPIV is no permutation: {columns}")
                return
            self._check_order(np.abs(np.diagonal(factor)))
            self.pivots = tuple(columns)
        if k == 0:
            return
        tall = self.sub[:, columns] if axis else self.sub.conj().T
        upper = np.triu(factor) if axis else np.tril(factor).conj().T
        self._check("A - Q R", self._backward(tall - self._multiplied("L", "N", upper, tau)))
        self._check("R - Q^H A", self._backward(upper - self._multiplied("L", "C", tall, tau)))
        if axis:
            product = self._multiplied("R", "N", tall.conj().T, tau)
            self._check("R^H - A^H Q", self._backward(upper - product.conj().T))  # in the norm of A, not of A^H
            self._check_q(tall, upper, tau)

    def _check_order(self, diagonal: Array) -> None:
        """The diagonal of R decreases, but for rounding."""
        slack = 1 + 100 * float(np.finfo(self.dtype).eps)
        if (diagonal[1:] > slack * diagonal[:-1]).any():
            self.texts.append(f"the diagonal of R increases: {diagonal}")

    def _check_q(self, tall: Array, upper: Array, tau: Array) -> None:
        """The first columns of Q, by p?orgqr or p?ungqr: they are orthonormal, and Q R is A."""
        (m, n), k = self.sub.shape, min(self.sub.shape)
        name = "orgqr" if self.dtype.kind == "f" else "ungqr"
        self._worked(1, name, m, k, k, *self._at(1), tau)
        q = self._wide(self._whole(self.a, (m, n))[:, :k])
        self._check("A - Q R of p?orgqr", self._backward(tall - q @ upper[:k]))
        residual = norm(np.eye(k) - q.conj().T @ q)
        self._check("I - Q^H Q", residual / (max(m, 4) * self.eps))

    def _multiplied(self, side: str, trans: str, c: Array, tau: Array) -> Array:
        """Op(Q) C or C op(Q) for the Q of the tall matrix, by the second library."""
        case, is_lq = self.case, self.case.program == "lq"
        blocks = case.a.nb if is_lq else case.a.mb
        (m, n), (mb, nb) = c.shape, (blocks, 3) if side == "L" else (3, blocks)
        matrix = Matrix(m, n, mb, nb)
        if self.libraries[1] is scalapack and self.libraries[0] is scalapack:
            matrix = Matrix(m + 2, n + 1, mb=4, nb=3, i=3, j=2)  # in any place, with any blocks
        whole = np.full((matrix.m, matrix.n), 9, self.dtype)
        self._inner(whole, matrix, c.shape)[...] = c
        operand = Operand(matrix, whole, self.grid, self.comm.rank)
        name = ("or" if self.dtype.kind == "f" else "un") + ("mlq" if is_lq else "mqr")
        letter = "N" if (trans == "N") != is_lq else "T" if self.dtype.kind == "f" else "C"
        a_before, tau_before = self.a.memory.tobytes(), tau.copy()
        at = operand.arguments(self.ictxt[1])
        self._worked(1, name, side, letter, *c.shape, min(self.sub.shape), *self._at(1), tau, *at)
        if self.libraries[1] is scalapack and not (
            self.a.memory.tobytes() == a_before and np.array_equal(tau, tau_before)
        ):
            self.texts.append(f"{name} has changed A or TAU")
        if not operand.is_untouched_outside(c.shape):
            self.texts.append(f"{name} has changed memory around sub(C)")
        return self._wide(self._whole(operand, c.shape))

    def _ls(self) -> None:
        """Solve with consistent right-hand sides, then with random ones."""
        tiny = float(np.finfo(self.dtype).tiny) / float(np.finfo(self.dtype).eps)
        for number, (nrhs, matrix, trans) in enumerate(self.case.right):
            scale = (1.0, 4 * tiny, 0.25 / tiny)[number % 3]
            sub = (self.sub * self.dtype.type(scale)).astype(self.dtype)
            letter = trans if trans == "N" or self.dtype.kind == "f" else "C"
            a = self._wide(applied(letter, sub)) / scale
            w = entries((a.shape[1], nrhs), self.dtype, SEEDS["B"])
            w = w / np.maximum(np.linalg.norm(w, axis=0), 1e-30)
            for b in (a @ w, entries((a.shape[0], nrhs), self.dtype, SEEDS["B"] + 1)):
                given = (b * scale).astype(self.dtype)
                self._check_least_squares(
                    a, self._wide(given) / scale, *self._solved(sub, letter, given, matrix), scale
                )

    def _check_least_squares(self, a: Array, b: Array, x: Array, below: Array, scale: float) -> None:
        """Check X, and what p?gels leaves below it: residuals for more rows than columns."""
        m, n = a.shape
        size, rest = max(m, n), b - a @ x
        if not a.size:  # as in LAPACK
            self._expect("elements of X and below", int(np.count_nonzero(x) + np.count_nonzero(below)), 0)
        elif m > n:
            gradient = norm(rest.conj().T @ a)
            self._check("(B - A X)^H A", self._over(gradient, max(size, b.shape[1]), norm(a), norm(b)))
            squares, found = (np.linalg.norm(y.astype(complex), axis=0) for y in (rest, below / scale))
            self._check("residuals", self._over(norm((squares - found)[:, None]), size, 1, max(1, norm(b))))
        else:
            self._check("B - A X", self._over(norm(rest), size, norm(a), norm(x)))
            basis = np.linalg.qr(a.conj().T.astype(complex))[0]
            self._check("X, shortest", self._over(norm(x - basis @ (basis.conj().T @ x)), size, 1, norm(x)))

    def _solved(self, sub: Array, letter: str, b: Array, matrix: Matrix) -> tuple[Array, Array]:
        """X, and what p?gels leaves below it."""
        case, (m, n), nrhs = self.case, sub.shape, b.shape[1]
        whole_a, whole_b = self.a.whole.copy(), entries((matrix.m, matrix.n), self.dtype, SEEDS["C"])
        self._inner(whole_a, case.a, (m, n))[...] = sub
        self._inner(whole_b, matrix, b.shape)[...] = b
        operands = [Operand(x, y, self.grid, self.comm.rank) for x, y in ((case.a, whole_a), (matrix, whole_b))]
        at = [x for operand in operands for x in operand.arguments(self.ictxt[0])]
        self._expect("INFO", self._worked(0, "gels", letter, m, n, nrhs, *at), 0)
        shape = max(m, n), nrhs
        if not (operands[0].is_untouched_outside((m, n)) and operands[1].is_untouched_outside(shape)):
            self.texts.append("gels has changed memory around sub(A) or sub(B)")
        result = self._wide(self._whole(operands[1], shape))
        rows = n if letter == "N" else m
        return result[:rows], result[rows:]

    def _over(self, residual: float, *sizes: float) -> float:
        """A residual over sizes, in units of eps."""
        scale = float(np.prod([max(size, 4.0) if i == 0 else size for i, size in enumerate(sizes)])) * self.eps
        return 0.0 if residual == 0 else residual / scale if scale else np.inf

    def _backward(self, residual: Array) -> float:
        """Norm(residual) / (norm(A) max(M, N) eps)."""
        return self._ratio(residual, self.sub, max(self.sub.shape))

    def _worked(self, which: int, name: str, *arguments: Any) -> int:
        """INFO of a call, with the workspaces that ScaLAPACK asks for."""
        if self.libraries[which] is scalapack:
            return self._call(which, name, *arguments)
        kinds = {"WORK": self.dtype, "RWORK": np.zeros(0, self.dtype).real.dtype, "IWORK": np.dtype(np.intc)}
        tables = vars(routines)
        of_complex = tables.get(f"{name.upper()}_COMPLEX") if self.dtype.kind == "c" else None
        names = (of_complex or tables[name.upper()]).arguments
        asked = [np.zeros(4, kinds[x]) for x in names if x in kinds]
        self._call(which, name, *arguments, *(x for work in asked for x in (work, -1)))
        # ScaLAPACK's answer is too small for some blocks with MB other than NB, and for p?syevd.
        works = [np.zeros(2 * max(1, int(work[0].real)) + 4096, work.dtype) for work in asked]
        return self._call(which, name, *arguments, *(x for work in works for x in (work, len(work))))

    def _elements(self, what: str, vector: Array, axis: int, count: int) -> list[Any]:
        """**Collective.** The elements of TAU or IPIV that belong to sub(A), equal on all processes that have them."""
        places = self.a.indices()[axis]
        start = (self.case.a.i, self.case.a.j)[axis] - 1
        inner = (places >= start) & (places < start + count)
        mine = vector[: len(places)]
        outside = np.concatenate([mine[~inner], vector[len(places) :]])
        if self.libraries[0] is scalapack and (outside != _NOTHING).any():
            self.texts.append(f"{what} has changed outside sub(A)")
        everywhere: dict[int, Any] = {}
        for theirs in self.comm.allgather(
            dict(zip((places[inner] - start).tolist(), mine[inner].tolist(), strict=True))
        ):
            for place, value in theirs.items():
                if everywhere.setdefault(place, value) != value:
                    self.texts.append(f"processes have different elements {place} of {what}")
        return [everywhere[place] for place in range(count)]
