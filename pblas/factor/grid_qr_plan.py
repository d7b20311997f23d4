"""Plan of QR over a P x Q grid of ranks, as values of integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from pblas.factor.factorization_plan import Panel
from pblas.factor.grid_plan import GridPlan, Share, Step, blocks_of, dealt, in_messages, levels
from pblas.factor.qr_plan import multiplications
from pblas.layouts.split import Split
from pblas.simulation.phase import Phase, Traffic, View, even

INNER = 32  # columns of a block of reflectors in the tree of a panel: its T has this many rows
_PANEL = 2.2
"""Work of a panel of one rank over that of GEMMs of as many multiplications: its rows become Q and R, then columns of Q
(one core of an AMD EPYC, float64, 64 to 128 columns)."""
_UPDATE, _TREE = 2.0, 2.0
"""Time of an executor for an update, and for a panel, over `Hardware.step`: 100 us of 50 us each (the same core)."""
_MERGE = 6.0  # work of a merge of two triangles, and of its columns of Q, over nb^3 multiplications (the same core)


class Arriving(NamedTuple):
    """Elements that a rank receives: V, T beside it, sums over the process column, and triangles of panels (local)."""

    left: int
    header: int
    sums: int
    triangles: int


@dataclass(frozen=True, slots=True)
class GridQrPlan(GridPlan):
    """A = Q R in square blocks over a P x Q grid, by blocks of Householder reflectors, as in a `QrPlan`.

    T of a panel is on the ranks that have the panel, beside W.

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> from pblas.layouts.grid import Grid
    >>> w = MatrixDescriptor(8, 8, 2, 2, Grid(2, 2))
    >>> plan = GridQrPlan(w, w, "the layout of A", "float64", 4)
    >>> [tuple(plan.arriving(rank)) for rank in range(4)]
    [(4, 4, 8, 12), (8, 4, 8, 12), (12, 8, 16, 6), (12, 8, 16, 12)]
    """

    name: ClassVar[str] = "GridQrPlan"
    operation: ClassVar[str] = "qr_factor"
    equation: ClassVar[str] = "A = Q R"
    projection: ClassVar[float] = 0.0  # no bound holds for all layouts: ranks may hold rows that are 0
    moved: ClassVar[str] = "panels along process rows, sums of V^H C along process columns"

    @property
    def multiplications(self) -> float:
        """m n^2 - n^3 / 3 if m >= n."""
        return multiplications(*self.a.shape)

    def rows(self, panel: Panel) -> tuple[int, int]:
        """The rows from the diagonal on."""
        return panel.start, self.w.m

    @property
    def panels_text(self) -> str:
        """How a panel is factored, for `explain` (global)."""
        ranks, p = super(GridQrPlan, self).panels_text, self.w.grid.nprow
        tree = f", by a tree of {2 * levels(p)} messages one after the other, which gives its reflectors"
        return ranks + tree * (p > 1)

    @property
    def share(self) -> Share:
        (m, n), (p, q) = self.a.shape, self.shape
        k = min(m, n)
        rows, columns = (m - k / 2) * k, (n - k / 2) * k
        return Share(rows / p + 2 * columns / q, "n^2 (1/(2 P) + 1/Q)", rows)

    def columns_after(self, panel: Panel, c: int) -> int:
        """Number of the columns of a process column that are updated with a panel."""
        return self.w.columns.count(c) - self.w.columns.local_start(panel.stop, c)

    def members(self, panel: Panel) -> int:
        """Ranks of a process column that have rows of a panel from its diagonal block on."""
        below = max(0, self.w.m - panel.stop)
        return min(self.w.grid.nprow, 1 - (-below // self.w.nb))

    # Elements that move

    def arriving(self, rank: int) -> Arriving:
        """What a rank receives of all panels; of the last ones, which fewer ranks have, about so much."""
        (r, c), w, p = self.w.grid.coordinates(rank), self.w, self.w.grid.nprow
        rows, columns = list(blocks_of(w.rows, r)), list(blocks_of(w.columns, c))
        if r < 0 or not rows or not columns:
            return Arriving(0, 0, 0, 0)
        # panels before the last columns of this rank, and up to its last rows, update columns of this rank
        end = min(columns[-1][0], rows[-1][1])
        left = 0
        for start, stop in rows:
            j = min(stop, end)
            left += (stop - start) * (j - w.columns.local_start(j, c))
        own = [(start, stop) for start, stop in columns if start <= rows[-1][0]]
        header = squares(w.columns, end) - sum((min(stop, end) - start) ** 2 for start, stop in own if start < end)
        sums = sum((stop - start) * min(start, rows[-1][1]) for start, stop in columns) * 2 * (p - 1) // p
        triangles = sum((stop - start) ** 2 for start, stop in own) * 3 * (p - 1) // p
        return Arriving(left, header, sums, triangles)

    def sent_panel_elements(self, rank: int) -> int:
        """Elements that a rank passes on in its process row, and those that it sends in its process column."""
        (r, c), npcol, grid = self.w.grid.coordinates(rank), self.w.grid.npcol, self.w.grid
        if r < 0:
            return 0
        following, mine = self.arriving(grid.rank(r, (c + 1) % npcol)), self.arriving(rank)
        return following.left + following.header + mine.sums + mine.triangles

    # Predictions

    def panel_phases(self, view: View) -> Iterator[Phase]:
        """The steps of a rank, in groups of equal ones."""
        steps, itemsize = list(self.groups(view.rank)), self.itemsize
        weights = zip(*map(self._weights, steps), strict=True)
        parts = zip(self.arriving(view.rank), weights, strict=True)
        dealt_out = zip(*(dealt(itemsize * total, of_steps) for total, of_steps in parts), strict=True)
        near, far = self.rounds(view)
        if steps[0].own:
            own = steps[0].own
            yield Phase(1, panel=self._work(steps[0]) * own, rounds=(2 * own * near, 2 * own * far, _TREE * own))
        before = (0, 0, 0)
        for step, following, nbytes in zip(steps, [*steps[1:], None], dealt_out, strict=True):
            rows, width = step.rows + round(step.above * step.panel.width), step.panel.width
            ahead = step if step.many > 1 else following
            own = ahead.own if ahead else 0.0
            work = own * self._work(ahead) if ahead else 0.0
            awaited = 1 - step.own
            for many, left, header, sums, triangles in even(step.many, *nbytes):
                yield Phase(
                    # C -= V T^H (V^H C)
                    many,
                    (2 * rows, step.columns, width),
                    self.left_traffic(view, step, left + header),
                    self._sums_traffic(view, sums, triangles),
                    copied=2 * sums,
                    waits="sent",
                    slow=1 + self.hops(rows),
                    panel=work,
                    rounds=(2 * own * near, 2 * own * far, _UPDATE + _TREE * own),
                    factored=awaited * self._work(step),
                    factored_rounds=(2 * awaited * near, 2 * awaited * far, awaited * (_UPDATE + _TREE)),
                    updated=before,
                )
            before = 2 * rows, self.w.nb, width

    def _weights(self, step: Step) -> tuple[float, ...]:
        """Elements that arrive in the steps for which one stands, as `Arriving`."""
        width = step.panel.width
        rows = step.rows + step.above * width
        is_used = float(step.columns > 0 and rows > 0)
        others = is_used * (1 - step.own)
        left, header = rows * others, width * others
        return tuple(step.many * width * x for x in (left, header, step.columns * is_used, width * step.own))

    def _work(self, step: Step) -> float:
        """Multiplications of a rank's rows of a panel, weighted as in `panel_multiplications`."""
        width = step.panel.width
        rows = step.rows + step.above * width
        return _PANEL * 2 * rows * width**2 + _MERGE * levels(self.w.grid.nprow) * width**3

    def _sums_traffic(self, view: View, sums: int, triangles: int) -> Traffic:
        """Traffic of the process column, which are messages on a host too."""
        (r, c), nprow = self.w.grid.coordinates(view.rank), self.w.grid.nprow
        return in_messages(view, self.w.grid.rank((r + 1) % nprow, c), sums + triangles, 2 * (nprow - 1))

    @property
    def buffer_nbytes(self) -> int:
        """V and T of the panels that are in use, a panel's columns of Q, and products of it with C; T of all panels."""
        (rows, columns), width = (self.w.rows.max_count, self.w.columns.max_count), min(self.w.nb, max(self.w.n, 1))
        return self.itemsize * width * ((1 + self.lookahead) * (rows + 2 * width) + rows + 4 * columns)


def squares(split: Split, stop: int) -> int:
    """The sum of the squares of the sizes of the blocks before an index, which may cut the last one.

    >>> squares(Split(9, 2, 2), 4), squares(Split(9, 2, 2, inb=1), 4), squares(Split(9, 2, 2), 0)
    (8, 6, 0)
    """
    first = min(stop, split.nb if split.inb is None else split.inb)
    whole, rest = divmod(stop - first, split.nb)
    return first**2 + whole * split.nb**2 + rest**2
