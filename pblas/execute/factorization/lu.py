"""Executor of LU with partial pivoting: P W = L U."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.execute.factorization.factorization import RunFactorization

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.plans.factorization import FactorizationPlan, Panel


class RunLu(RunFactorization):
    """Runs a LuPlan on one rank. Rows of a factored panel are exchanged at the end, when no rank reads it any more."""

    def __init__(self, plan: FactorizationPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        super().__init__(plan, backend, dtype)
        self.pivots: Array = np.empty(min(plan.w.shape), np.intc)
        """Row i was exchanged with row pivots[i], counted from 1; equal on all ranks (global)."""

    def factor(self, panel: Panel) -> int:
        """P[k] W[k:, k] = L[k:, k] U[k, k] by LAPACK."""
        columns, pivots = self.w[panel.start :, panel.j_loc : panel.j_loc + panel.width], self.header(panel)
        info: int = self._arrays.lu(columns, pivots)
        pivots += panel.start
        return info and panel.start + info

    def update(self, s: int, panel: Array, first: int, last: int) -> None:
        """C = P[k] C, then C[k] = L[k, k]^-1 C[k], and C[i] -= L[i, k] C[k] for the rows i after panel k."""
        start, pivots, arrays = self._steps[s].start, self.header(self._steps[s]), self._arrays
        height, c = len(pivots), self.w[start:, first:last]
        arrays.swap_rows(c, pivots - start)
        arrays.trsm(panel[:height, :height], c[:height], uplo="L", unit=True)
        arrays.gemm(-1, panel[height:, :height], c[:height], 1, c[height:])

    def header(self, panel: Panel) -> Array:
        """The pivots of a panel."""
        return self.pivots[panel.start : panel.stop]

    def stops(self, info: int) -> bool:
        """Never: a singular matrix is factored to its end, as in LAPACK."""
        return False

    def finish(self) -> None:
        """L[i, k] = P[later panels] L[i, k]: the exchanges of later panels in each panel."""
        for panel in self._steps:
            if panel.owner == self._rank:
                columns = self.w[:, panel.j_loc : panel.j_loc + panel.width]
                self._arrays.swap_rows(columns, self.pivots, panel.stop)
        super().finish()
