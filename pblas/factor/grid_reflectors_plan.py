"""Plan of products with the Q of a QR factorization over a P x Q grid, as a value of integers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pblas.factor.factorization_plan import Panel
from pblas.factor.grid_plan import beside, in_messages
from pblas.factor.grid_qr_plan import GridQrPlan
from pblas.factor.with_factor_plan import ReflectorsPlan
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.simulation.phase import Phase, View


@dataclass(frozen=True, slots=True)
class GridReflectorsPlan(ReflectorsPlan):
    """X := op(Q) X with the factor of a `GridQrPlan`: X has the rows of W, on the same grid.

    >>> from pblas.layouts.grid import Grid
    >>> w = MatrixDescriptor(8, 8, 2, 2, Grid(2, 2))
    >>> plan = GridReflectorsPlan(w, MatrixDescriptor.row_wise(8, 6, 4), "float64", 4, "message")
    >>> plan.x.local_shape(0), [plan.exchanged_elements(rank) for rank in range(4)]
    ((4, 3), [26, 38, 38, 38])
    """

    name: ClassVar[str] = "GridReflectorsPlan"
    why: ClassVar[str] = "the factor stays on its grid: panels travel along rows, sums of V^H X along columns"

    @property
    def factorization(self) -> GridQrPlan:
        """The plan of a factorization with this factor."""
        return GridQrPlan(self.w, self.w, "the same panels", self.dtype, self.nprocs, self.transport)

    @property
    def x(self) -> MatrixDescriptor:
        """The rows of W; columns as in B if these are its rows, as in W where Q is made, or else even blocks."""
        w, right = self.w, self.right
        if self.reads:
            return beside(w, right)
        return MatrixDescriptor(w.m, right.n, w.mb, w.nb, w.grid, w.rsrc, w.csrc, imb=w.imb, inb=w.inb)

    def columns(self, panel: Panel, c: int) -> int:
        """Number of the last columns of a process column that a panel changes: of an identity those from it on."""
        split = self.x.columns
        return split.count(c) - split.local_start(self._first(panel), c)

    def _first(self, panel: Panel) -> int:
        """The first column that a panel changes (global)."""
        return 0 if self.reads else min(panel.start, self.x.n)

    def exchanged_elements(self, rank: int) -> int:
        """V and T of the panels of other process columns, and sums of the process column."""
        return sum(sum(self._arriving(panel, rank)) for panel in self.factorization.steps)

    def lent_elements(self, rank: int) -> int:
        """V and T of this rank's panels, once for each rank that reads them, and sums."""
        r, c = self.w.grid.coordinates(rank)
        if r < 0:
            return 0
        total, plan, split, w = 0, self.factorization, self.x.columns, self.w
        others = (p for p in range(split.nprocs) if p != c and split.count(p))
        stops = sorted(split.global_from_local(split.count(p) - 1, p) + 1 for p in others)
        for panel in plan.steps:
            total += self._arriving(panel, rank)[1]
            rows = w.rows.count(r) - w.rows.local_start(panel.start, r)
            if plan.position(panel)[1] == c and rows:
                readers = len(stops) - bisect_right(stops, self._first(panel))
                total += readers * (rows * panel.width + (min(panel.stop, w.m) - panel.start) ** 2)
        return total

    def _arriving(self, panel: Panel, rank: int) -> tuple[int, int]:
        """Elements of V and T, and of sums, of a panel that arrive at a rank."""
        (r, c), w, plan = self.w.grid.coordinates(rank), self.w, self.factorization
        rows = 0 if r < 0 else w.rows.count(r) - w.rows.local_start(panel.start, r)
        columns = self.columns(panel, c) if rows else 0
        if not columns:
            return 0, 0
        count, members = min(panel.stop, w.m) - panel.start, plan.members(panel)
        travels = plan.position(panel)[1] != c
        return travels * (rows * panel.width + count**2), 2 * columns * count * (members - 1) // members

    def changes(self, view: View) -> Iterator[Phase]:
        """Each step multiplies this rank's part of X with a panel, twice."""
        (r, c), w, plan = self.w.grid.coordinates(view.rank), self.w, self.factorization
        if r < 0:
            return
        for panel in plan.steps:
            rows, columns = w.rows.count(r) - w.rows.local_start(panel.start, r), self.columns(panel, c)
            if rows and columns:
                left, sums = (self.itemsize * x for x in self._arriving(panel, view.rank))
                owner = self.w.grid.rank(r, plan.position(panel)[1])
                below = self.w.grid.rank((r + 1) % w.grid.nprow, c)
                column = in_messages(view, below, sums, 2 * (plan.members(panel) - 1))
                yield Phase(1, (2 * rows, columns, panel.width), view.traffic(owner, left), column, waits="sent")

    @property
    def panel_nbytes(self) -> int:
        """V and T of two panels, and products of V with X."""
        rows, columns, width = self.w.rows.max_count, self.x.columns.max_count, min(self.w.nb, self.w.n)
        return self.itemsize * width * (2 * (rows + 2 * width) + 3 * columns)

    @property
    def _exchange(self) -> str:
        return "panels of the factor along process rows, sums of V^H X along process columns"
