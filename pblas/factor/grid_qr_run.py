"""Executors of QR on a P x Q grid: A = Q R, and products with Q. H[k] = I - V T V^H is a block of reflectors.

Step k of the factorization, on rank (r, c), with one panel of lookahead:

    W[k:, k+1] := H[k]^H W[k:, k+1]                  (on the process column of panel k + 1: `QrPanels.multiply`)
    W[k+1:, k+1] = H[k+1] [R[k+1, k+1]; 0]           (there: `PanelReflectors`; then V and T leave)
    W[k:, j] := H[k]^H W[k:, j], for j > k + 1       (trailing update; meanwhile panel k + 1 arrives)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas.factor.grid_qr_panel import PanelReflectors
from pblas.factor.grid_qr_panels import QrPanels, Reflector
from pblas.factor.grid_reflectors_plan import GridReflectorsPlan
from pblas.factor.grid_run import RunOnGrid
from pblas.factor.with_factor_run import ReflectorsOperands, RunReflectors

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.grid_qr_plan import GridQrPlan


class RunGridQr(RunOnGrid):
    """Runs a GridQrPlan on one rank."""

    plan: GridQrPlan
    panels: QrPanels
    peers_read = True  # peers read this rank's panels until the closing agreement (global)

    def __init__(self, plan: GridQrPlan, backend: HostRanks, dtype: Dtype) -> None:
        super().__init__(plan, backend, dtype)
        self.panels = QrPanels(plan, self._source, plan.columns_after)
        self._reflectors = PanelReflectors(self.panels, backend)

    def publish(self, w: Array) -> bool:
        """Allocate memory for T, which becomes a part of the factor."""
        self.panels.t = self.panels.new_triangles()
        return super().publish(w)

    def run(self, w: Array) -> None:
        """Factor W."""
        self._factor_panels()
        self._arrays.synchronize()

    def update(self, k: int) -> None:
        panels, i = self.panels, self.panels.first_row(k)
        columns = self.w[i:, self.panels.first_column(k, self._column) :]
        h, ahead = Reflector(k), self._width_ahead(k)
        v = panels.reflectors(k) if columns.size else []
        if ahead:
            # W[k:, k+1] := H[k]^H W[k:, k+1]
            panels.multiply(h, v, columns[:, :ahead])
            self.factor(k + 1)
        # W[k:, j] := H[k]^H W[k:, j]
        panels.multiply(h, v, columns[:, ahead:])

    def factor(self, k: int) -> None:
        """W[k:, k] = H[k] [R[k, k]; 0]; V and T then leave."""
        panel = self._steps[k]
        columns = self.w[self.panels.first_row(k) :, panel.j_loc : panel.j_loc + panel.width]
        if len(columns):
            self._reflectors.factor(k, columns)
            self.panels.send(k)

    def taken_t(self) -> Array:
        """T of the panels of this process column, which the executor forgets (local)."""
        t = self.panels.t
        del self.panels.t
        return t

    @property
    def workspace_nbytes(self) -> int:
        return self.panels.workspace_nbytes


class RunGridReflectors(RunReflectors):
    """Runs a GridReflectorsPlan on one rank."""

    def __init__(self, plan: GridReflectorsPlan, backend: HostRanks, dtype: Dtype) -> None:
        self.plan: GridReflectorsPlan = plan
        super().__init__(plan, backend, dtype)
        self.peers_read = plan.stays  # peers read V until the closing agreement, or until X leaves
        self._factorization = plan.factorization
        self._steps = self._factorization.steps
        self._grid_panels = QrPanels(self._factorization, self._source, plan.columns)

    @property
    def workspace_nbytes(self) -> int:
        return super().workspace_nbytes + self._grid_panels.workspace_nbytes

    def apply(self, x: ReflectorsOperands, columns: Array) -> None:
        """X := H[0] H[1] ... X, or X := ... H[1]^H H[0]^H X."""
        plan, panels, (_, c) = self.plan, self._grid_panels, self.plan.w.grid.coordinates(self._rank)
        if c < 0 or not self._steps:
            return
        if x.tau is not None:
            panels.triangles(x.tau)
        else:
            assert x.t is not None, "the factor is on a grid"
            panels.t = x.t
        order = range(len(self._steps))[:: 1 if plan.adjoint else -1]
        panels.begin(order[0])
        self._send(order[0])
        for done, k in enumerate(order, 1):
            if done < len(order):
                panels.begin(order[done])
            part = columns[panels.first_row(k) :, columns.shape[1] - plan.columns(self._steps[k], c) :]
            v = panels.reflectors(k) if part.size else []
            if done < len(order):  # lookahead: it travels while this one is used, after this one has been passed on
                self._send(order[done])
            # X[k:] := H[k] X[k:], or H[k]^H X[k:]
            panels.multiply(Reflector(k, plan.adjoint, plan.conj), v, part)
            if x.progress is not None and done < len(order):
                x.progress(done / len(order))
        panels.end()
        del panels.t  # a part of the factor

    def _send(self, k: int) -> None:
        """Start to send panel k, if this rank has rows of it."""
        panel, (r, c) = self._steps[k], self.plan.w.grid.coordinates(self._rank)
        if self._factorization.position(panel)[1] == c and self._grid_panels.rows_from(k, r):
            self._grid_panels.send(k)
