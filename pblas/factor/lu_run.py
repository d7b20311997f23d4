"""Executor of LU with partial pivoting: P W = L U."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pblas.factor.factorization_run import RunFactorization

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.factorization_plan import FactorizationPlan, Panel


class RunLu(RunFactorization):
    """Runs a LuPlan on one rank. Rows of factored panels are exchanged at the end, when no rank reads them any more.

    One rank alone exchanges them in each step.
    """

    def __init__(self, plan: FactorizationPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        super().__init__(plan, backend, dtype)
        self.pivots: Array = np.empty(min(plan.w.shape), np.intc)
        """Row i was exchanged with row pivots[i], counted from 1, after `finish`; equal on all ranks (global)."""

    def factor(self, s: int) -> None:
        """P[k] W[k:, k] = L[k:, k] U[k, k] by LAPACK."""
        panel = self._steps[s]
        columns = self.w[panel.start :, panel.j_loc : panel.j_loc + panel.width]
        self._arrays.lu(columns, self.panel_pivots(s), self.panel_info(s))

    @property
    def looks_ahead_by_rows(self) -> bool:  # type: ignore[override]  # an attribute in the base
        """Whether the next panel is updated piece by piece, as the rows of the panel before arrive (global)."""
        return self._arrays.traits.blocking

    def update(self, s: int, panel: Array, first: int, last: int, pieces: Iterable[tuple[int, int]]) -> None:
        """C = P[k] C, then C[k] = L[k, k]^-1 C[k], and C[i] -= L[i, k] C[k] for the rows i after panel k."""
        start, pivots, arrays = self._steps[s].start, self.panel_pivots(s), self._arrays
        c, height = self.w[start:, first:last], len(pivots)
        arrays.swap_rows(c, pivots)
        for i0, i1 in pieces:
            if i0 == start:  # the first piece has all rows of the diagonal block
                arrays.solve_factored(panel[:height, :height], c[:height], unit=True)
            rows = slice(max(i0 - start, height), i1 - start)
            arrays.gemm(-1, panel[rows, :height], c[:height], 1, c[rows])

    def complete(self, s: int) -> None:
        """L[i, j] = P[k] L[i, j] for the panels j before panel k, if no other rank reads them."""
        if self.plan.w.nprocs == 1:
            panel = self._steps[s]
            self._arrays.swap_rows(self.w[panel.start :, : panel.j_loc], self.panel_pivots(s))

    def npivots(self, panel: Panel) -> int:
        """The rows of a panel's diagonal block."""
        return min(panel.stop, self.plan.w.m) - panel.start

    def finish(self) -> None:
        """L[i, k] = P[later panels] L[i, k]: the exchanges of later panels in each panel."""
        headers = self._backend.reading(self._headers)
        for s, panel in enumerate(self._steps):
            height = self.npivots(panel)
            self.pivots[panel.start : panel.start + height] = headers[1 : 1 + height, s] + panel.start
        if self.plan.w.nprocs > 1:
            for panel in self._steps:
                if panel.owner == self._rank:
                    columns = self.w[:, panel.j_loc : panel.j_loc + panel.width]
                    self._arrays.swap_rows(columns, self.pivots, panel.stop)
            self._arrays.synchronize()
        super().finish()
