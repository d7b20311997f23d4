"""Plan of QR with column pivoting, one column at a time, as a value of integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pblas.plans.base import ranks_text
from pblas.plans.qr import multiplications
from pblas.plans.without_panels import FactorizationWithoutPanels


@dataclass(frozen=True, slots=True)
class PivotedQrPlan(FactorizationWithoutPanels):
    """A P = Q R: in step i the longest column from i on changes places with column i, and becomes a reflector.

    All ranks get both columns, and multiply their own columns after i with the reflector.

    Args:
        on_copies: whether W is in GPU memory, and a copy of it in host memory is factored (global).

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> w = MatrixDescriptor.column_wise(8, 3, 2, nb=1)
    >>> PivotedQrPlan(w, w, "by columns already", "float64", 2).panel_elements(0)
    45
    """

    name: ClassVar[str] = "PivotedQrPlan"
    operation: ClassVar[str] = "pivoted_qr"

    on_copies: bool = False

    @property
    def count(self) -> int:
        """Number of reflectors (global)."""
        return min(self.a.shape)

    def panel_elements(self, rank: int) -> int:  # noqa: ARG002 - all ranks get the same
        """In step i the m elements of column i, and the m - i of the reflector, at most."""
        m, k = self.w.m, self.count
        return (2 * m * k - k * (k - 1) // 2) * (self.w.nprocs > 1)

    def sent_elements(self, rank: int) -> int:
        """As many as it receives, and those of both redistributions."""
        return self.panel_elements(rank) + sum(plan.sent_elements(rank) for plan in self.redistributions)

    @property
    def multiplications(self) -> float:
        """m n^2 - n^3 / 3 if m >= n."""
        return multiplications(*self.a.shape)

    @property
    def _equation(self) -> str:
        return "A P = Q R"

    def detail_lines(self) -> Iterator[tuple[str, str]]:
        """The algorithm."""
        yield "algorithm", f"column by column, each the longest that remains, on {ranks_text(self.w.nprocs)}"
        if self.on_copies:
            yield "memory", "each rank's CPU factors a copy of W in host memory, and brings it back to the GPU"
