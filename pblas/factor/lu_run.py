"""Executor of LU with partial pivoting: P W = L U. `RunFactorization` has the loop over the panels.

P W[k:, k] = L[k:, k] U[k, k]                     (factor panel k)
W[k:, j] = P W[k:, j]            for j > k        (update of the columns j with panel k)
U[k, j] = L[k, k]^-1 W[k, j]
W[i, j] -= L[i, k] U[k, j]       for i > k
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from pblas.factor.factorization_run import RunFactorization

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pblas.backends.dtypes import Array, Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.factorization_plan import FactorizationPlan, Panel


class RunLu(RunFactorization):
    """Runs a LuPlan on one rank. Rows of factored panels are exchanged at the end, when no rank reads them any more.

    One rank alone exchanges them in each step.
    """

    takes_pieces: ClassVar[bool] = True

    def __init__(self, plan: FactorizationPlan, backend: HostRanks, dtype: Dtype) -> None:
        super().__init__(plan, backend, dtype)
        self.pivots: Array = np.empty(min(plan.w.shape), np.intc)
        """Row i was exchanged with row pivots[i], counted from 1, after `finish`; equal on all ranks (global)."""

    def factor(self, k: int) -> None:
        """Factor the panel from its diagonal on, with partial pivoting."""
        panel = self._steps[k]
        # P W[k:, k] = L[k:, k] U[k, k]
        self._arrays.lu(self.columns_of(k)[panel.start :], self.panel_pivots(k), self.panel_info(k))

    def update(self, k: int, panel: Array, j0: int, j1: int, pieces: Iterable[tuple[int, int]]) -> None:
        """Exchange rows, solve for U12 and update A22, in the local columns j0..j1-1."""
        start, pivots, arrays = self._steps[k].start, self.panel_pivots(k), self._arrays
        c, nb = self.w[start:, j0:j1], len(pivots)
        # W[k:, j] = P W[k:, j]
        arrays.swap_rows(c, pivots)
        for i0, i1 in pieces:
            if i0 == start:  # the first piece has all rows of the diagonal block
                # U[k, j] = L[k, k]^-1 W[k, j]
                arrays.solve_factored(panel[:nb, :nb], c[:nb], unit=True)
            # W[i, j] -= L[i, k] U[k, j]
            i = slice(max(i0 - start, nb), i1 - start)
            arrays.gemm(-1, panel[i, :nb], c[:nb], 1, c[i])

    def end_step(self, k: int) -> None:
        """Exchange the rows of the panels before panel k, if no other rank reads them."""
        if self.plan.w.nprocs == 1:
            # L[k:, j] = P L[k:, j] for j < k
            panel = self._steps[k]
            self._arrays.swap_rows(self.w[panel.start :, : panel.j_loc], self.panel_pivots(k))

    def npivots(self, panel: Panel) -> int:
        """The rows of a panel's diagonal block."""
        return min(panel.stop, self.plan.w.m) - panel.start

    def finish(self) -> None:
        """Collect the pivots, and exchange the rows of each panel as later panels did."""
        headers = self._backend.reading(self._headers)
        for k, panel in enumerate(self._steps):
            nb = self.npivots(panel)
            self.pivots[panel.start : panel.start + nb] = headers[1 : 1 + nb, k] + panel.start
        if self.plan.w.nprocs > 1:
            for k, panel in enumerate(self._steps):
                # L[i, k] = P L[i, k], with the P of all later panels
                self._arrays.swap_rows(self.own_columns(k), self.pivots, panel.stop)
            self._arrays.synchronize()
        super().finish()
