"""Plan of Cholesky over a P x Q grid of ranks, as values of integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import lcm
from typing import ClassVar, NamedTuple

from pblas.factor.factorization_plan import CholeskyPlan
from pblas.factor.grid_plan import GridPlan, Step, blocks_of, dealt, pieces
from pblas.layouts.split import Split
from pblas.simulation.phase import Phase, Traffic, View, even


class Arriving(NamedTuple):
    """Elements of panels that a rank receives: its own rows, those for its columns, and diagonal blocks (local)."""

    left: int
    right: int
    diagonal: int


@dataclass(frozen=True, slots=True)
class GridCholeskyPlan(GridPlan, CholeskyPlan):
    """A = L L^H or U^H U in square blocks over a P x Q grid.

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> from pblas.layouts.grid import Grid
    >>> w = MatrixDescriptor(8, 8, 2, 2, Grid(2, 2))
    >>> plan = GridCholeskyPlan(w, w, "the layout of A", "float64", 4)
    >>> [tuple(plan.arriving(rank)) for rank in range(4)]
    [(4, 0, 0), (4, 8, 8), (4, 12, 4), (12, 0, 0)]
    """

    name: ClassVar[str] = "GridCholeskyPlan"
    moved: ClassVar[str] = "panels along process rows, and as columns to the other process rows"

    def arriving(self, rank: int) -> Arriving:
        """What a rank receives of all panels. It needs none after its last row."""
        (r, c), w = self.w.grid.coordinates(rank), self.w
        rows, columns = list(blocks_of(w.rows, r)), list(blocks_of(w.columns, c))
        if r < 0 or not rows:
            return Arriving(0, 0, 0)
        last = rows[-1][0]
        others = [(start, stop) for start, stop in columns if w.rows.owner(start) != r]
        return Arriving(
            sum((stop - start) * (start - w.columns.local_start(start, c)) for start, stop in rows),
            sum((stop - start) * min(start, last) for start, stop in others),
            sum((stop - start) ** 2 for start, stop in others if start < last),
        )

    def sent_panel_elements(self, rank: int) -> int:
        """Elements that a rank passes on in its process row and column, and those that it sends to other rows."""
        (r, c), (nprow, npcol), grid = self.w.grid.coordinates(rank), self.shape, self.w.grid
        if r < 0:
            return 0
        passed = self.arriving(grid.rank(r, (c + 1) % npcol)).left
        passed += self.arriving(grid.rank((r + 1) % nprow, c)).diagonal
        served = len(range(c, nprow, npcol)) - (r % npcol == c)
        return passed + served * sum((stop - start) * start for start, stop in blocks_of(self.w.rows, r))

    # Predictions

    def panel_phases(self, view: View) -> Iterator[Phase]:
        """The steps of a rank, in groups of equal ones; all bytes are in them."""
        steps = list(self.groups(view.rank))
        weights = zip(*map(self._weights(view.rank), steps), strict=True)
        parts = zip(self.arriving(view.rank), weights, strict=True)
        arriving = zip(*(dealt(self.itemsize * total, of_steps) for total, of_steps in parts), strict=True)
        if steps[0].own:
            yield Phase(1, panel=self.rows_multiplications(steps[0].panel, steps[0].rows) * steps[0].own)
        before = (0, 0, 0)
        for step, following, nbytes in zip(steps, [*steps[1:], None], arriving, strict=True):
            panel, rows, width = step.panel, step.rows, step.panel.width
            ahead = step if step.many > 1 else following
            work = ahead.own * self.rows_multiplications(ahead.panel, ahead.rows) if ahead else 0.0
            factored = (1 - step.own) * self.rows_multiplications(panel, rows)
            for many, left, right, diagonal in even(step.many, *nbytes):
                traffic = self._traffic(view, step, left, right + diagonal)
                slow = self._slow(rows, width, left, left + right + diagonal)
                # A22 -= L21 L21^H   (of its rows and columns of A22 a rank updates about one half)
                gemm = -(-rows // 2), step.columns, width
                yield Phase(many, gemm, traffic, slow=slow, panel=work, factored=factored, updated=before)
            before = rows, self.w.nb, width

    def _weights(self, rank: int) -> Callable[[Step], tuple[float, ...]]:
        """A function that gives the elements that arrive in the steps for which one stands, as `Arriving`."""
        w, (r, c), (nprow, npcol) = self.w, self.w.grid.coordinates(rank), self.shape
        # The diagonal blocks of a rank, if it has any, are `period` blocks apart
        period = lcm(nprow, npcol)
        mine = [b for b in range((r - w.rows.src) % nprow, period, nprow) if (b + w.columns.src) % npcol == c]
        diagonal = Split(w.n, w.nb, period, 0, inb=w.inb)

        def weights(step: Step) -> tuple[float, ...]:
            both = sum(diagonal.count(b) - diagonal.local_start(step.panel.stop, b) for b in mine)
            block = step.own * (1 - step.above) * step.panel.width
            right, block = (step.columns - both, block) if step.rows else (0, 0.0)
            return tuple(step.many * step.panel.width * x for x in (step.rows * (1 - step.own), right, block))

        return weights

    def _traffic(self, view: View, step: Step, left: int, others: int) -> Traffic:
        """Traffic of a step: the left part, and the right part of ranks in other process rows."""
        grid, (r, c), (nprow, npcol) = self.w.grid, self.w.grid.coordinates(view.rank), self.shape
        r2 = c % nprow if c % nprow != r else (r + 1) % nprow
        source = grid.rank(r2, r % npcol)
        if source == view.rank:  # of a grid with one process column
            source = grid.rank((r + 1) % nprow, c)
        return self.left_traffic(view, step, left) + view.traffic(source, others)

    def _slow(self, rows: int, width: int, left: int, total: int) -> float:
        """`Phase.slow`: pieces travel half of the process row on average, after the diagonal block its column."""
        if not left:
            return 1.0
        nprow = self.w.grid.nprow
        column = self.itemsize * width**2 * (1 + max(0, nprow - 2) / len(pieces(width))) if nprow > 1 else 0
        return 1 + (left * self.hops(rows) + column) / total

    @property
    def buffer_nbytes(self) -> int:
        """Rows and columns of the panels that are in use, and messages."""
        (rows, columns), width = (self.w.rows.max_count, self.w.columns.max_count), min(self.w.nb, max(self.w.n, 1))
        return self.itemsize * (1 + self.lookahead) * width * (rows + 3 * columns + width)
