"""Plan of a QR factorization of a tall matrix by Cholesky factorizations of Gram matrices, as a value of integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pblas.plans.qr import QrPlan
from pblas.plans.without_panels import FactorizationWithoutPanels

PASSES = 3
"""Gram matrices at most."""


@dataclass(frozen=True, slots=True)
class CholeskyQrPlan(FactorizationWithoutPanels):
    """A = Q R of a tall matrix in rows: R^H R = Q^H Q and Q := Q R^-1, two or three times, from Q = A on.

    If A is ill-conditioned, the first Gram matrix is shifted by a multiple of the identity, so that its Cholesky
    factorization succeeds, and there are three passes. The condition is checked: the last Gram matrix is near the
    identity, or else A is factored by the plan `fallback`.

    Args:
        fallback: the plan for a matrix that is too ill-conditioned, singular, or out of range (global).

    Source: Fukaya, Kannan, Nakatsukasa, Yamamoto, Yanagisawa, Shifted Cholesky QR for computing the QR factorization of
        ill-conditioned matrices, 2020.

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> rows = MatrixDescriptor.row_wise(40, 2, 4)
    >>> plan = CholeskyQrPlan(rows, rows, "tall", "float64", 4)
    >>> [plan.received_elements(rank) for rank in range(4)]
    [36, 36, 36, 36]
    """

    name: ClassVar[str] = "CholeskyQrPlan"

    fallback: QrPlan | None = None

    def received_elements(self, rank: int) -> int:
        """The Gram matrices of the other ranks, and those of the redistribution."""
        return PASSES * self.w.n**2 * (self.nprocs - 1) + self.copy.received_elements(rank)

    def sent_elements(self, rank: int) -> int:
        """The Gram matrices, to each other rank, and those of the redistribution."""
        return PASSES * self.w.n**2 * (self.nprocs - 1) + self.copy.sent_elements(rank)

    @property
    def lower_bound(self) -> float:
        """0: ranks may hold rows that are 0, and no bound holds for all layouts."""
        return 0.0

    @property
    def workspace_nbytes(self) -> int:
        """Q, and R."""
        return self.itemsize * (self.w.max_local_nelements + self.w.n**2) + self.copy.workspace_nbytes

    @property
    def multiplications(self) -> float:
        """m n^2 for a Gram matrix, and half of that for Q R^-1."""
        m, n = self.a.shape
        return 1.5 * PASSES * m * n**2

    def extreme_ranks(self) -> set[int]:
        """The first and the last ranks, which have the largest and the smallest parts."""
        return {0, 1 % self.nprocs, self.w.nprocs - 1, self.a.nprocs - 1, self.nprocs - 1}

    def moves(self) -> str:
        """The data that moves, as text."""
        parts = ["A to W"] if self.copy.lower_bound else []
        if self.nprocs > 1:
            parts.append(f"Gram matrices, {self.w.n} x {self.w.n}, of all ranks to all")
        return ", ".join(parts) or "nothing"

    def detail_lines(self) -> Iterator[tuple[str, str]]:
        """The algorithm, and what is done if it fails."""
        yield (
            "algorithm",
            "CholeskyQR: the Cholesky factors of two Gram matrices, or of three with a shift, each rank its rows",
        )
        yield "fallback", "blocked Householder, if the last Gram matrix shows that A is too ill-conditioned"
