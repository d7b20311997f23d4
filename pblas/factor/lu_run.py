"""Executor of LU with partial pivoting: P W = L U."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pblas.factor.factorization_run import RunFactorization

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.factorization_plan import FactorizationPlan, Panel


class RunLu(RunFactorization):
    """Runs a LuPlan on one rank. Rows of factored panels are exchanged at the end, when no rank reads them any more.

    One rank alone exchanges them in each step.
    """

    takes_pieces: ClassVar[bool] = True

    def __init__(self, plan: FactorizationPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        super().__init__(plan, backend, dtype)
        self.pivots: Array = np.empty(min(plan.w.shape), np.intc)
        """Row i was exchanged with row pivots[i], counted from 1, after `finish`; equal on all ranks (global)."""

    def factor(self, k: int) -> None:
        """Factor the panel from its diagonal on, with partial pivoting."""
        panel = self._steps[k]
        # P [A11; A21] = [L11; L21] U11
        self._arrays.lu(self.columns_of(panel)[panel.start :], self.panel_pivots(k), self.panel_info(k))

    def update(self, k: int, panel: Array, j0: int, j1: int, pieces: Iterable[tuple[int, int]]) -> None:
        """Exchange rows, solve for U12 and update A22, in the local columns j0..j1-1."""
        start, pivots, arrays = self._steps[k].start, self.panel_pivots(k), self._arrays
        c, height = self.w[start:, j0:j1], len(pivots)
        # [A12; A22] = P [A12; A22]
        arrays.swap_rows(c, pivots)
        for i0, i1 in pieces:
            if i0 == start:  # the first piece has all rows of the diagonal block
                # U12 = L11^-1 A12
                arrays.solve_factored(panel[:height, :height], c[:height], unit=True)
            # A22 -= L21 U12
            rows = slice(max(i0 - start, height), i1 - start)
            arrays.gemm(-1, panel[rows, :height], c[:height], 1, c[rows])

    def complete(self, k: int) -> None:
        """Exchange the rows of the panels before panel k, if no other rank reads them."""
        if self.plan.w.nprocs == 1:
            # [L10; L20] = P [L10; L20]
            panel = self._steps[k]
            self._arrays.swap_rows(self.w[panel.start :, : panel.j_loc], self.panel_pivots(k))

    def npivots(self, panel: Panel) -> int:
        """The rows of a panel's diagonal block."""
        return min(panel.stop, self.plan.w.m) - panel.start

    def finish(self) -> None:
        """Collect the pivots, and exchange the rows of each panel as later panels did."""
        headers = self._backend.reading(self._headers)
        for k, panel in enumerate(self._steps):
            height = self.npivots(panel)
            self.pivots[panel.start : panel.start + height] = headers[1 : 1 + height, k] + panel.start
        if self.plan.w.nprocs > 1:
            for panel in self._steps:
                if panel.owner == self._rank:
                    # L[i, k] = P[later panels] L[i, k]
                    self._arrays.swap_rows(self.columns_of(panel), self.pivots, panel.stop)
            self._arrays.synchronize()
        super().finish()
