"""Plans of factorizations over P x Q grids of ranks, as values of integers.

The matrix is factored in square blocks, dealt out over process rows and columns, so that a panel, one block column, is
in a process column. Each rank receives the rows of a panel that it has itself, and those for its own columns: in total
about n^2 / 2 (1/P + 1/Q) elements, n^2 / sqrt(nprocs) on a square grid, where block columns take n^2 / 2.

Source: Choi, Dongarra, Ostrouchov, Petitet, Walker, Whaley, Design and implementation of the ScaLAPACK LU, QR, and
Cholesky factorization routines, 1996.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import lcm
from typing import ClassVar, NamedTuple

from pblas.factor.factorization_plan import CholeskyPlan, Panel, panel_at
from pblas.layouts.split import Split
from pblas.plans.base import ranks_text
from pblas.simulation.phase import Phase, Traffic, View, even

PIECE = 512
"""Rows, at least, of a piece of a panel on its way along a process row: ranks pass pieces on while they compute."""
_PIECES = 16  # pieces of a panel at most: with more, messages take longer than they save
_GROUPS = 16  # groups of steps in a prediction at most; one step stands for the others of its group


class Arriving(NamedTuple):
    """Elements of panels that a rank receives: its own rows, those for its columns, and diagonal blocks (local)."""

    left: int
    right: int
    diagonal: int


def pieces(rows: int) -> list[tuple[int, int]]:
    """Rows (start, stop) of the pieces in which some rows of a panel travel.

    >>> pieces(1100), pieces(0), len(pieces(10**6))
    ([(0, 512), (512, 1024), (1024, 1100)], [], 16)
    """
    height = max(PIECE, -(-rows // _PIECES))
    return [(i, min(i + height, rows)) for i in range(0, rows, height)]


@dataclass(frozen=True, slots=True)
class GridCholeskyPlan(CholeskyPlan):
    """A = L L^H or U^H U in square blocks over a P x Q grid.

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> from pblas.layouts.grid import Grid
    >>> w = MatrixDescriptor(8, 8, 2, 2, Grid(2, 2))
    >>> plan = GridCholeskyPlan(w, w, "the layout of A", "float64", 4)
    >>> [tuple(plan.arriving(rank)) for rank in range(4)]
    [(4, 0, 0), (4, 8, 8), (4, 12, 4), (12, 0, 0)]
    """

    name: ClassVar[str] = "GridCholeskyPlan"

    lookahead: int = 1  # panels that are factored before the updates with the panel before them end (global)

    def position(self, panel: Panel) -> tuple[int, int]:
        """Process row and process column of the diagonal block of a panel."""
        return self.w.grid.coordinates(panel.owner)

    @property
    def _shape(self) -> tuple[int, int]:
        return self.w.grid.nprow, self.w.grid.npcol

    # Elements that move

    def arriving(self, rank: int) -> Arriving:
        """What a rank receives of all panels. It needs none after its last row."""
        (r, c), w = self.w.grid.coordinates(rank), self.w
        rows, columns = list(_blocks(w.rows, r)), list(_blocks(w.columns, c))
        if r < 0 or not rows:
            return Arriving(0, 0, 0)
        last = rows[-1][0]
        others = [(start, stop) for start, stop in columns if w.rows.owner(start) != r]
        return Arriving(
            sum((stop - start) * (start - w.columns.local_start(start, c)) for start, stop in rows),
            sum((stop - start) * min(start, last) for start, stop in others),
            sum((stop - start) ** 2 for start, stop in others if start < last),
        )

    def panel_elements(self, rank: int) -> int:
        return sum(self.arriving(rank))

    def sent_panel_elements(self, rank: int) -> int:
        """Elements that a rank passes on in its process row and column, and those that it sends to other rows."""
        (r, c), (nprow, npcol), grid = self.w.grid.coordinates(rank), self._shape, self.w.grid
        if r < 0:
            return 0
        passed = self.arriving(grid.rank(r, (c + 1) % npcol)).left
        passed += self.arriving(grid.rank((r + 1) % nprow, c)).diagonal
        served = len(range(c, nprow, npcol)) - (r % npcol == c)
        return passed + served * sum((stop - start) * start for start, stop in _blocks(self.w.rows, r))

    # Predictions

    def phases(self, view: View) -> Iterator[Phase]:
        """As in block columns: each step multiplies, while the next panel is updated, factored and on its way."""
        yield from self.copy.phases(view)
        if view.rank < self.w.nprocs and self.w.n:
            yield from self._panel_phases(view)
        if self.back is not None:
            yield from self.back.phases(view)

    def _panel_phases(self, view: View) -> Iterator[Phase]:
        """The steps of a rank, in groups of equal ones; all bytes are in them."""
        steps = list(self._steps_of(view.rank))
        parts = zip(self.arriving(view.rank), zip(*(step.weights for step in steps), strict=True), strict=True)
        arriving = zip(*(dealt(self.itemsize * total, weights) for total, weights in parts), strict=True)
        if steps[0].own:
            yield Phase(1, panel=self.rows_multiplications(steps[0].panel, steps[0].rows) * steps[0].own)
        before, last = (0, 0, 0), _Step(Panel(0, 0, 0, 0), 0, 0, 0, 0.0, (0, 0, 0))
        for step, following, nbytes in zip(steps, [*steps[1:], last], arriving, strict=True):
            panel, rows, width = step.panel, step.rows, step.panel.width
            ahead = step if step.many > 1 else following
            work = ahead.own * self.rows_multiplications(ahead.panel, ahead.rows)
            factored = (1 - step.own) * self.rows_multiplications(panel, rows)
            for many, left, right, diagonal in even(step.many, *nbytes):
                traffic = self._traffic(view, step, left, right + diagonal)
                slow = self._slow(rows, width, left, left + right + diagonal)
                # A22 -= L21 L21^H   (of its rows and columns of A22 a rank updates about one half)
                gemm = -(-rows // 2), step.columns, width
                yield Phase(many, gemm, traffic, slow=slow, panel=work, factored=factored, updated=before)
            before = rows, self.w.nb, width

    def _steps_of(self, rank: int) -> Iterator[_Step]:
        """The steps of a rank; if they are many, some of them, each for its neighbours too."""
        w, (r, c), (nprow, npcol), count = self.w, self.w.grid.coordinates(rank), self._shape, self.w.columns.nblocks
        size, period = max(1, -(-count // _GROUPS)), lcm(nprow, npcol)
        # The diagonal blocks of a rank, if it has any, are `period` blocks apart
        mine = [b for b in range((r - w.rows.src) % nprow, period, nprow) if (b + w.columns.src) % npcol == c]
        diagonal = Split(w.n, w.nb, period, 0, inb=w.inb)
        for start in range(0, count, size):
            many = min(size, count - start)
            panel = panel_at(w, start + many // 2)
            row, column = self.position(panel)
            own, above = (float(column == c), float(row == r)) if many == 1 else (1 / npcol, 1 / nprow)
            rows = w.rows.count(r) - w.rows.local_start(panel.stop, r)
            columns = w.columns.count(c) - w.columns.local_start(panel.stop, c)
            both = sum(diagonal.count(b) - diagonal.local_start(panel.stop, b) for b in mine)
            right, block = (columns - both, own * (1 - above) * panel.width) if rows else (0, 0.0)
            weights = tuple(many * panel.width * x for x in (rows * (1 - own), right, block))
            yield _Step(panel, many, rows, columns, own, weights)

    def _traffic(self, view: View, step: _Step, left: int, others: int) -> Traffic:
        """Traffic of a step: a rank reads the left part of a near owner in place, or gets it from the rank before."""
        grid, (r, c), (nprow, npcol) = self.w.grid, self.w.grid.coordinates(view.rank), self._shape
        owner = grid.rank(r, (c + npcol // 2) % npcol if step.many > 1 else self.position(step.panel)[1])
        before, r2 = grid.rank(r, (c - 1) % npcol), c % nprow if c % nprow != r else (r + 1) % nprow
        source = grid.rank(r2, r % npcol)
        if view.is_near(owner) or not view.is_near(before):
            traffic = view.traffic(owner if view.is_near(owner) else before, left)
        else:
            traffic = Traffic(near=left, near_messages=len(pieces(step.rows)) if left else 0)
        if source == view.rank:  # of a grid with one process column
            source = grid.rank((r + 1) % nprow, c)
        return traffic + view.traffic(source, others)

    def _slow(self, rows: int, width: int, left: int, total: int) -> float:
        """`Phase.slow`: pieces travel half of the process row on average, after the diagonal block its column."""
        if not left:
            return 1.0
        nprow, npcol = self._shape
        hops = max(0, npcol // 2 - 1) / max(1, len(pieces(rows)))
        column = self.itemsize * width**2 * (1 + max(0, nprow - 2) / len(pieces(width))) if nprow > 1 else 0
        return 1 + (left * hops + column) / total

    def typical_ranks(self, ranks_per_node: int) -> Sequence[int]:
        """The owner of the last diagonal block, and that of the first one."""
        blocks = self.w.columns.nblocks
        return list(dict.fromkeys(panel_at(self.w, k).owner for k in (blocks - 1, 0))) if blocks else [0]

    # Memory and text

    @property
    def buffer_nbytes(self) -> int:
        """Rows and columns of the panels that are in use, and messages."""
        (rows, columns), width = (self.w.rows.max_count, self.w.columns.max_count), min(self.w.nb, max(self.w.n, 1))
        return self.itemsize * (1 + self.lookahead) * width * (rows + 3 * columns + width)

    def extreme_ranks(self) -> set[int]:
        ranks = CholeskyPlan.extreme_ranks(self)
        return ranks if len(ranks) == self.nprocs else ranks | {self.w.grid.nprow - 1, self.w.grid.npcol - 1}

    def moves(self) -> str:
        parts = ["A to W"] if self.copy.lower_bound else []
        parts.append("panels along process rows, and as columns to the other process rows")
        parts.append("the factor stays in W" if self.back is None else "the factor back to the distribution of A")
        return ", ".join(parts)

    def detail_lines(self) -> Iterator[tuple[str, str]]:
        (nprow, npcol), count, half = self._shape, self.w.columns.nblocks, self.a.n**2 / 2
        yield "algorithm", f"grid: right-looking, {count} panels of {self.w.nb} columns, on {nprow} x {npcol} ranks"
        yield "panels", f"each is factored by {self.library} on the {ranks_text(nprow)} of a process column"
        yield "lookahead", f"{self.lookahead}: the next panel is factored during an update"
        share = half * (1 / nprow + 1 / npcol)
        yield (
            "elements",
            f"about {share:,.0f} of panels arrive at a rank, n^2 / 2 (1/P + 1/Q); {half:,.0f} in block columns",
        )


class _Step(NamedTuple):
    """A step of a rank that stands for `many` steps (local)."""

    panel: Panel
    many: int
    rows: int  # local rows and columns after the panel
    columns: int
    own: float  # 1 if the panel is in the rank's process column; of several steps the part of them
    weights: tuple[float, ...]  # elements of all these steps, as `Arriving`


def dealt(total: int, weights: Sequence[float]) -> list[int]:
    """Cut a number into integers in proportion to weights.

    >>> dealt(10, [1.0, 2.0, 1.0]), dealt(7, [3, 0, 4]), dealt(0, [0])
    ([2, 6, 2], [3, 0, 4], [0])
    """
    edges, whole = [0, *accumulate(weights)], sum(weights) or 1
    return [int(b - a) for a, b in pairwise(round(total * edge / whole) for edge in edges)]


def _blocks(split: Split, p: int) -> Iterator[tuple[int, int]]:
    """The blocks (start, stop) of a process coordinate (global)."""
    first = (p - split.src) % split.nprocs
    return (split.block(b) for b in range(first, split.nblocks, split.nprocs))
