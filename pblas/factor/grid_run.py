"""The loop over panels of LU and QR on a P x Q grid, with one panel of lookahead."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from pblas.factor.factorization_run import FactorsInPlace
from pblas.layouts.placement import Placement
from pblas.redistribution.transfer import SourceMatrix

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.grid_left_panels import LeftPanels
    from pblas.factor.grid_plan import GridPlan

SLAB = 512  # columns of an update, after which blocks are passed on


class RunOnGrid(FactorsInPlace, ABC):
    """Factors panels of W, each on a process column, and updates the columns after them."""

    plan: GridPlan
    panels: LeftPanels

    def __init__(self, plan: GridPlan, backend: HostRanks, dtype: Dtype) -> None:
        self._backend, self._arrays, self._rank, self._steps = backend, backend.arrays, backend.rank, plan.steps
        self.plan = plan
        self._source = SourceMatrix(backend, Placement.of(plan.w), dtype, "F")
        self._row, self._column = plan.w.grid.coordinates(backend.rank)
        self.progress: Callable[[float], None] | None = None
        """Called with the done part of the work after each panel but the last; None for no calls (local)."""

    def _factor_panels(self) -> None:
        """Factor W, panel after panel."""
        last = len(self._steps) - 1
        if self._row < 0 or last < 0:
            return
        self.panels.begin(0)
        if self._owns(0):
            self.factor(0)
        for k in range(last + 1):
            if k < last:
                self.panels.begin(k + 1)
            self.update(k)
            if self.progress is not None and k < last:
                self.progress(1 - (1 - self._steps[k].stop / self._steps[last].stop) ** 3)  # n^3 is left of n
        self.panels.end()

    @abstractmethod
    def factor(self, k: int) -> None:
        """Factor panel k on its process column, which then leaves."""

    @abstractmethod
    def update(self, k: int) -> None:
        """Update the columns after panel k with it, and factor panel k + 1, if this rank has a part of it."""

    def _width_ahead(self, k: int) -> int:
        """Columns of panel k + 1, if it is in this rank's process column, else 0."""
        return self._steps[k + 1].width if self._owns(k + 1) else 0

    def _owns(self, k: int) -> bool:
        """Whether there is a panel k, in this rank's process column."""
        return k < len(self._steps) and self.plan.position(self._steps[k])[1] == self._column
