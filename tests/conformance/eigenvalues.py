"""The programs xdsep and xdgsep: eigenvalues and eigenvectors of Hermitian matrices, in guarded memory.

Each case is one matrix, of which all eigenvalues and eigenvectors are computed by p?syevd of both libraries, or by
p?sygvx; eigenvalues and subspaces of the two are compared. Then parts of the spectrum are asked for.

Source: ScaLAPACK, TESTING: SEP.dat, SEPR.dat; TESTING/EIG: PDSEPTST, PDSEPCHK, PDSEPQTQ, PDGSEPTST, PDGSEPCHK.
"""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np

from pblas import scalapack
from pblas.layouts.grid import Grid
from tests.common.factors import general, norm1
from tests.common.gauge import Array
from tests.common.spectra import TYPES, sample
from tests.conformance import orthogonal
from tests.conformance.factors import Case, anywhere
from tests.conformance.problems import Matrix, Operand
from tests.conformance.tables import SEP

PROGRAMS = ("sep", "gsep")
ALL = "A", 0.0, 0.0, 0, 0  # RANGE, VL, VU, IL and IU of the whole spectrum


def table(program: str, letter: str, *, every: bool = True) -> list[Case]:
    """The sizes, blocks and types of the table; upstream runs all of them.

    Args:
        program: "sep" or "gsep".
        letter: letter of the type, s, d, c or z.
        every: also the largest matrix.
    """
    return [
        Case(program, letter, n, n, Matrix(n, n, nb, nb), kind=f"{uplo}{kind}")
        for orders, uplos, widths, kinds in SEP[: None if every else -1]
        for n, uplo, nb, kind in product(orders, uplos, widths, kinds)
    ]


def holes(program: str, letter: str, count: int, grid: Grid) -> list[Case]:
    """Random cases that ScaLAPACK's restrictions forbid."""
    rng, cases = random.Random(f"{program} {letter} {grid.nprow} {grid.npcol}"), []
    for _ in range(count):
        n = rng.choice([0, 1, 2, 7, 8, 9, 13, 21])
        cases.append(
            Case(program, letter, n, n, anywhere(rng, n, n, grid), kind=f"{rng.choice('LU')}{rng.choice(TYPES)}")
        )
    return cases


class Run(orthogonal.Run):
    """One case on one grid; see `factors.Run`."""

    def _entries(self) -> Array:
        return sample(int(self.case.kind[1:]), self.case.n, self.dtype).a

    def _run(self) -> None:
        n, is_alone = self.case.n, self.libraries[0] is self.libraries[1]
        w, v = self._eigensystem(0)
        self._check_system(w, v)
        if not is_alone:
            others, vectors = self._eigensystem(1)
            self._check_system(others, vectors)
            self._check("W of both libraries", self._over_a(np.abs(w - others).max(initial=0.0)))
        if n == 0:
            return
        # The two sides of the widest gap
        k = int(np.diff(w).argmax()) + 1 if n > 1 else 1
        gap = float(w[k] - w[k - 1]) if n > 1 else 0.0
        if not is_alone:
            angle = float(np.linalg.norm((v[:, :k].conj().T @ vectors[:, k:]).astype(complex)))
            self._check("subspaces of both libraries", self._over_a(angle * gap))
        elif self.libraries[0] is scalapack:
            size = max(float(np.abs(w).max()), float(np.finfo(self.dtype).tiny))
            is_clear = gap > 1e-3 * size
            below = "V", float(w[0]) - size, float(w[k - 1]) + (gap / 2 if is_clear else size), 0, 0
            inner = "I", 0.0, 0.0, n // 3 + 1, n // 2 + 1
            for jobz, part, wanted in (
                ("N", ALL, slice(0, n)),
                ("N", inner, slice(n // 3, n // 2 + 1)),
                ("V", inner, slice(n // 3, n // 2 + 1)),
                ("N", below, slice(0, k if is_clear else n)),
                ("V", below, slice(0, k if is_clear else n)),
            ):
                some, vectors = self._eigensystem(0, jobz, part)
                self._expect(f"the number of eigenvalues with {jobz} {part}", len(some), wanted.stop - wanted.start)
                if not self.texts:
                    self._check(f"W with {jobz} {part}", self._over_a(np.abs(some - w[wanted]).max(initial=0.0)))
                if jobz == "V":
                    self._check_system(some, vectors)

    @property
    def _problem(self) -> int:
        """IBTYPE, which takes turns with the types of matrices; 0 without a B."""
        return 1 + int(self.case.kind[1:]) % 3 if self.case.program == "gsep" else 0

    @property
    def _b(self) -> Array:
        """A positive definite matrix, with a condition of 10."""
        n = self.case.n
        q = np.linalg.qr(general(n, n, np.dtype("c16" if self.dtype.kind == "c" else "f8"), 4))[0]
        return (q * np.geomspace(0.1, 1, n)) @ q.conj().T

    def _eigensystem(self, which: int, jobz: str = "V", part: tuple[Any, ...] = ALL) -> tuple[Array, Array]:
        """W and V of a library; sub(A) must not change in ours."""
        case, n = self.case, self.case.n
        self.a = Operand(case.a, self.a.whole, self.grid, self.comm.rank)
        z = Operand(case.a, np.full((case.a.m, case.a.n), 9, self.dtype), self.grid, self.comm.rank)
        w, (kind, *bounds) = np.zeros(n, self.dtype).real.copy(), part
        prefix, at, on = "sy" if self.dtype.kind == "f" else "he", self._at(which), z.arguments(self.ictxt[which])
        first, limits = (jobz, kind, case.uplo, n, *at), (*bounds, 0.0, w, 0.0, *on)
        if self._problem:
            whole = self.a.whole.copy()
            triangle = np.where(self.inside, self._b, np.nan).astype(self.dtype)
            self._inner(whole, case.a, (n, n))[...] = triangle
            b = Operand(case.a, whole, self.grid, self.comm.rank).arguments(self.ictxt[which])
            result = getattr(scalapack, f"p{case.letter}{prefix}gvx")(self._problem, *first, *b, *limits)
        elif part is ALL and jobz == "V":
            result = (n, n, self._worked(which, f"{prefix}evd", jobz, case.uplo, n, *at, w, *on))
        else:
            result = getattr(scalapack, f"p{case.letter}{prefix}evx")(*first, *limits)
        count, vectors, info = result
        self._expect("INFO", info, 0)
        self._expect("NZ", vectors, count if jobz == "V" else 0)
        if self.libraries[which] is scalapack and not self.a.is_untouched():
            self.texts.append("sub(A), or memory around it, has changed")
        if not z.is_untouched_outside((n, n)):
            self.texts.append("memory around sub(Z) has changed")
        values: Array = w[:count].astype(np.longdouble)
        return values, self._wide(self._whole(z, (n, n)))[:, :count]

    def _check_system(self, w: Array, v: Array) -> None:
        """Norms of A V - V diag(w), or of the same with B, and of V^H V - I, or with B V^H B V - I."""
        n, a, kind = self.case.n, self._wide(self.sub), self._problem
        b = self._b if kind else np.eye(n)
        left = b @ (a @ v) if kind == 3 else a @ (b @ v if kind == 2 else v)
        residual = left - (b @ v if kind == 1 else v) * w
        self._check("A V - V diag(w)", self._over_a(norm1(residual) / max(norm1(v), 1.0) / max(n, 1)))
        metric = np.linalg.inv(b) if kind == 3 else b
        self._check("V^H V - I", norm1(v.conj().T @ metric @ v - np.eye(v.shape[1])) / (max(n, 1) * 2 * self.eps))

    def _over_a(self, error: float) -> float:
        """An error over the norm of A, in units of the distance of numbers; of one that is 0, 0."""
        lost = 2 * self.eps * norm1(self._wide(self.sub)) + float(np.finfo(self.dtype).smallest_subnormal)
        return float(error) / lost
