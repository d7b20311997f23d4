"""Executor of LU on a P x Q grid: P W = L U.

Step k, on rank (r, c), with one panel of lookahead:

    W[k:, j] = P W[k:, j], for j > k                 (exchange of rows on each process column)
    U[k, j] = L[k, k]^-1 W[k, j]                     (on the process row of W[k, k], then to the process columns)
    W[i, k+1] -= L[i, k] U[k, k+1], P W[k+1:, k+1] = L[k+1:, k+1] U[k+1, k+1]
                                                     (on the process column of panel k + 1; then L[i, k+1] leaves)
    W[i, j] -= L[i, k] U[k, j], for i > k, j > k + 1 (trailing update; meanwhile panel k + 1 arrives)

Rows of factored panels are exchanged at the end, when no rank reads them any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pblas.factor.factorization_run import FACTOR, first_info
from pblas.factor.grid_lu_panels import LuPanels
from pblas.factor.grid_pivots import PanelPivots, moved_rows
from pblas.factor.grid_run import SLAB, RunOnGrid
from pblas.redistribution.transfer import own_memory

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.grid_lu_plan import GridLuPlan

_TAG_HEADERS = 1050


class RunGridLu(RunOnGrid):
    """Runs a GridLuPlan on one rank."""

    plan: GridLuPlan
    panels: LuPanels
    peers_read = False  # an agreement comes after all reads, before rows of factored panels are exchanged

    def __init__(self, plan: GridLuPlan, backend: HostRanks, dtype: Dtype) -> None:
        super().__init__(plan, backend, dtype)
        integer = backend.arrays.traits.pivot_dtype
        shape = 1 + max((panel.width for panel in self._steps), default=0), len(self._steps)
        memory = own_memory(backend, shape[0] * shape[1] * integer.itemsize)
        self._headers: Array = backend.arrays.array(memory, shape, integer, "F")
        """Of each panel, in a column: INFO of the panel, and its pivots (global)."""
        self.panels = LuPanels(plan, self._source, self._headers)
        self._pivots = PanelPivots(plan, backend, dtype, self.panels)
        self.pivots: Array = np.empty(min(plan.w.shape), np.intc)
        """Row i was exchanged with row pivots[i], counted from 1, after `finish`; equal on all ranks (global)."""

    def run(self, w: Array) -> None:
        """Factor W."""
        self._backend.fill(self._headers)
        self._factor_panels()
        self._arrays.synchronize()
        if self.plan.nprocs > 1:
            self._backend.agree("LU: exchange of rows")  # no rank reads panels any more
        self._spread_headers()
        if self._row >= 0:
            self._exchange_factored()

    def update(self, k: int) -> None:
        panel, npivots, panels = self._steps[k], self.panels.npivots(k), self.panels
        left = panels.left(k)
        j, i = self._first_column(k), self.plan.w.rows.local_start(panel.start, self._row)
        columns = self.w[:, j:]
        if columns.shape[1]:
            # W[k:, j] = P W[k:, j]
            panels.exchange(k, columns, *moved_rows(panel.start, panels.pivots(k)), most=npivots)
            below, u = columns[i:], columns[:0]
            if self.plan.position(panel)[0] == self._row:
                # U[k, j] = L[k, k]^-1 W[k, j]
                u, below = below[:npivots], below[npivots:]
                self._arrays.solve_factored(left[:npivots, :npivots], u, unit=True)
                panels.lend(k, u)
                left = left[npivots:]
            elif len(below):
                u = panels.right(k)
            # W[i, j] -= L[i, k] U[k, j]
            ahead, ready, blocking = self._width_ahead(k), self._arrays.mark(), self._arrays.traits.blocking

            def subtract(start: int, stop: int) -> None:
                if below.size:
                    self._arrays.gemm(-1, left[:, :npivots], u[:, start:stop], 1, below[:, start:stop])

            def look_ahead() -> None:
                with self._arrays.on_side_lane(FACTOR, "factor"):
                    self._arrays.follow(ready)
                    subtract(0, ahead)
                    self.factor(k + 1)

            if ahead and blocking:
                look_ahead()
            for j in range(ahead, columns.shape[1], SLAB):
                subtract(j, min(j + SLAB, columns.shape[1]))
                panels.progress()
            if ahead and not blocking:  # a GPU works on both at once
                look_ahead()

    def factor(self, k: int) -> None:
        """P W[k:, k] = L[k:, k] U[k, k], which then leaves."""
        panel = self._steps[k]
        with self._arrays.on_side_lane(FACTOR, "factor"):
            self._pivots.factor(k, self.w[:, panel.j_loc : panel.j_loc + panel.width])
            self.panels.send(k)

    def _first_column(self, k: int) -> int:
        return self.panels.first_column(k, self._column)

    def _spread_headers(self) -> None:
        """Send the headers to ranks outside of the grid."""
        size, channel = self.plan.w.grid.size, self._backend.channel
        if not self._steps:
            return
        if self._row < 0:
            transfers = [channel.receive(self._headers, self._rank % size, _TAG_HEADERS)]
        else:
            outside = range(self._rank + size, self.plan.nprocs, size)
            transfers = [channel.send(self._headers, peer, _TAG_HEADERS) for peer in outside]
        for transfer in transfers:
            self._backend.wait(transfer.done, "pivots of a factorization")

    def _exchange_factored(self) -> None:
        """L[i, k] = P L[i, k], with the P of all later panels, for the panels of this rank, from the last one on."""
        rows = np.arange(self.plan.w.m)
        for k in range(len(self._steps) - 1, -1, -1):
            panel = self._steps[k]
            if self._owns(k):
                to = np.flatnonzero(rows != np.arange(len(rows)))
                columns = self.w[:, panel.j_loc : panel.j_loc + panel.width]
                self.panels.exchange(k, columns, to, rows[to], most=len(self.w))
            # rows that come, with the exchanges of panel k before the later ones
            to, source = moved_rows(panel.start, self.panels.pivots(k))
            first = np.arange(len(rows))
            first[to] = source
            rows = first[rows]

    def finish(self) -> None:
        """Collect the pivots."""
        headers = self._backend.reading(self._headers)
        for k, panel in enumerate(self._steps):
            npivots = self.panels.npivots(k)
            self.pivots[panel.start : panel.start + npivots] = headers[1 : 1 + npivots, k] + panel.start
        super().finish()

    @property
    def info(self) -> int:
        """LAPACK's INFO of the last execution, equal on all ranks (global)."""
        return first_info(self._backend, self._steps, self._headers)

    @property
    def workspace_nbytes(self) -> int:
        return self.panels.workspace_nbytes + self._pivots.workspace_nbytes + int(self._headers.nbytes)
