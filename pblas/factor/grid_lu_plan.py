"""Plan of LU over a P x Q grid of ranks, as values of integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from pblas.factor.factorization_plan import LuPlan, Panel, pivoted_on_gpus
from pblas.factor.grid_plan import GridPlan, Step, blocks_of, dealt, in_messages, levels
from pblas.simulation.phase import Phase, Traffic, View, even, solve_rows

Pivoting = Literal["partial", "tournament"]

INNER = 16
"""Columns of a panel that are eliminated one by one, before the columns to their right are updated by a GEMM."""
_COLUMNS, _OTHERS = 16.0, 1.5
"""Work of columns that are eliminated one by one, and of the other updates in a panel, over that of a GEMM of as many
multiplications (one core of an AMD EPYC, float64)."""
_COLUMN, _ROUND = 0.45, 0.2
"""Time of an executor for a column that is eliminated, and a message about it, over `Hardware.step`: 22 us and 10 us
of 50 us (one core of an AMD EPYC)."""


class Arriving(NamedTuple):
    """Elements that a rank receives: panels, blocks of U, and rows that are exchanged, before and after (local)."""

    left: int
    right: int
    exchanged: int
    returned: int


@dataclass(frozen=True, slots=True)
class GridLuPlan(GridPlan, LuPlan):
    """P A = L U in square blocks over a P x Q grid.

    Rows that are exchanged are those of pivots that are equally likely on all process rows.

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> from pblas.layouts.grid import Grid
    >>> w = MatrixDescriptor(8, 8, 2, 2, Grid(2, 2))
    >>> plan = GridLuPlan(w, w, "the layout of A", "float64", 4)
    >>> [tuple(plan.arriving(rank)) for rank in range(4)]
    [(4, 4, 4, 2), (8, 4, 4, 6), (12, 4, 8, 2), (12, 12, 8, 2)]
    """

    name: ClassVar[str] = "GridLuPlan"
    moved: ClassVar[str] = "panels along process rows, blocks of U and exchanged rows along process columns"

    # how rows are chosen in a panel: the largest element of each column, or by a tournament of rows (global)
    pivoting: Pivoting = "partial"

    @property
    def panels_text(self) -> str:
        """How a panel is factored, for `explain` (global)."""
        ranks, p = super(GridLuPlan, self).panels_text, self.w.grid.nprow
        if p == 1:
            return ranks
        each, messages = "column" if self.pivoting == "partial" else "panel", 2 * levels(p)
        chosen = "the pivot" if self.pivoting == "partial" else "rows by a tournament"
        return f"{ranks}, which choose {chosen} of each {each} by {messages} messages one after the other"

    # Elements that move

    def arriving(self, rank: int) -> Arriving:
        """What a rank receives of all panels."""
        (r, c), w, p = self.w.grid.coordinates(rank), self.w, self.w.grid.nprow
        rows, columns = list(blocks_of(w.rows, r)), list(blocks_of(w.columns, c))
        if r < 0 or not rows:
            return Arriving(0, 0, 0, 0)
        end = self._end

        def before(start: int) -> tuple[int, int]:
            """Rows of pivots of the panels before a column: on this process row, and on the others."""
            start = min(start, w.m)
            mine = w.rows.local_start(start, r)
            return mine, start - mine

        left = right = exchanged = returned = 0
        for start, stop in rows:
            j = min(stop if start < end else end, end)
            left += (stop - start) * (j - w.columns.local_start(j, c))
        for start, stop in columns:
            mine, others = before(start)
            exchanged += (stop - start) * (mine * (p - 1) // p + others // p)
            right += (stop - start) * before(min(start, rows[-1][0]))[1]
            if stop < w.m:
                below = w.rows.count(r) - w.rows.local_start(stop, r)
                returned += (stop - start) * below * (p - 1) // p
        return Arriving(left, right, exchanged, returned)

    @property
    def _end(self) -> int:
        """One past the last column of a panel that updates columns after it."""
        count = self.w.columns.nblocks
        panels = min(self.npanels, count - 1)
        return self.w.columns.block(panels)[0] if count else 0

    def sent_panel_elements(self, rank: int) -> int:
        """Elements that a rank passes on in its process row and column, and those of rows that it exchanges."""
        (r, c), (nprow, npcol), grid = self.w.grid.coordinates(rank), self.shape, self.w.grid
        if r < 0:
            return 0
        mine = self.arriving(rank)
        passed = self.arriving(grid.rank(r, (c + 1) % npcol)).left + self.arriving(grid.rank((r + 1) % nprow, c)).right
        return passed + mine.exchanged + mine.returned

    # Predictions

    def panel_phases(self, view: View) -> Iterator[Phase]:
        """The steps of a rank, in groups of equal ones; rows of factored panels are exchanged at the end."""
        steps, arriving = list(self.groups(view.rank)), self.arriving(view.rank)
        weights = zip(*map(self._weights, steps), strict=True)
        parts = zip(arriving, weights, strict=False)
        dealt_out = zip(*(dealt(self.itemsize * total, of_steps) for total, of_steps in parts), strict=True)
        near, far = self.rounds(view)
        if steps[0].own:
            panel, own = steps[0].panel, steps[0].own
            yield Phase(1, panel=self._work(steps[0]) * own, rounds=self._messages(panel, own, near, far))
        before = (0, 0, 0)
        for step, following, nbytes in zip(steps, [*steps[1:], None], dealt_out, strict=True):
            panel, rows, width = step.panel, step.rows, step.panel.width
            ahead = step if step.many > 1 else following
            own = ahead.own if ahead else 0.0
            work = own * self._work(ahead) if ahead else 0.0
            rounds = self._messages(ahead.panel, own, near, far) if ahead else (0.0, 0.0, 0.0)
            factored = (1 - step.own) * self._work(step)
            awaited = self._messages(panel, 1 - step.own, near, far)
            for many, left, right, exchanged in even(step.many, *nbytes):
                traffic = self.left_traffic(view, step, left)
                yield Phase(
                    # U12 = L11^-1 A12, for which the process column waits, A22 -= L21 U12
                    *(
                        many,
                        (rows + solve_rows(width), step.columns, width),
                        traffic,
                        self._after(view, right, exchanged),
                    ),
                    # packed and unpacked
                    copied=4 * exchanged,
                    waits="sent",
                    slow=1 + self.hops(rows),
                    panel=work,
                    rounds=rounds,
                    factored=factored,
                    factored_rounds=awaited,
                    updated=before,
                )
            before = rows, self.w.nb, width
        returned = self.itemsize * arriving.returned
        traffic = self._rows_traffic(view, returned, self.w.grid.nprow - 1)
        yield Phase(1, before=traffic, copied=4 * returned, ahead=False)

    def _weights(self, step: Step) -> tuple[float, ...]:
        """Elements that arrive in the steps for which one stands: left, right and exchanged."""
        p, elements = self.w.grid.nprow, step.many * step.panel.width
        right = (1 - step.above) * step.columns if step.rows else 0.0
        exchanged = step.columns * (step.above * (p - 1) + 1 - step.above) / p
        left = (step.rows + step.above * step.panel.width) * (1 - step.own)
        return elements * left, elements * right, elements * exchanged

    def _work(self, step: Step) -> float:
        """Multiplications of a rank's rows of a panel, weighted as in `panel_multiplications`."""
        width = step.panel.width
        rows = step.rows + step.above * width
        if self.pivoting == "partial":
            if self.library == "cuSOLVER":
                return pivoted_on_gpus(rows * width**2 / 2, width)
            inner = min(INNER, width) / width
            return rows * width**2 / 2 * (_OTHERS + (_COLUMNS - _OTHERS) * inner)
        # candidates, their merges, and L21 = A21 U11^-1
        merges = levels(self.w.grid.nprow) * self.rows_multiplications(2 * width, width)
        return self.rows_multiplications(rows, width) + merges + rows * width * solve_rows(width)

    def _messages(self, panel: Panel, part: float, near: int, far: int) -> tuple[float, float, float]:
        """`Phase.rounds` of a panel: messages, near and far, by which a process column chooses rows, and steps."""
        columns = part * (panel.width if self.pivoting == "partial" else 1)
        return 2 * columns * near, 2 * columns * far, columns * (_COLUMN + 2 * _ROUND * (near + far))

    def _after(self, view: View, right: int, exchanged: int) -> Traffic:
        """Traffic before an update: rows that are exchanged, then a block of U."""
        (r, c), (nprow, _), grid = self.w.grid.coordinates(view.rank), self.shape, self.w.grid
        traffic = view.traffic(grid.rank((r - 1) % nprow, c), right)
        return traffic + self._rows_traffic(view, exchanged, 2 * (nprow - 1) // nprow)

    def _rows_traffic(self, view: View, nbytes: int, messages: int) -> Traffic:
        """Traffic of exchanged rows, which are messages on a host too."""
        (r, c), nprow = self.w.grid.coordinates(view.rank), self.w.grid.nprow
        return in_messages(view, self.w.grid.rank((r + 1) % nprow, c), nbytes, messages)

    @property
    def buffer_nbytes(self) -> int:
        """Panels and blocks of U that are in use, and rows that are exchanged."""
        (rows, columns), width = (self.w.rows.max_count, self.w.columns.max_count), min(self.w.nb, max(self.w.n, 1))
        return self.itemsize * (1 + self.lookahead) * width * (rows + 3 * columns)
