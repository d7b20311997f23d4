"""Plans of factorizations over P x Q grids of ranks, as values of integers.

The matrix is factored in square blocks, dealt out over process rows and columns, so that a panel, one block column, is
in a process column. Each rank receives the rows of a panel that it has itself, and what its own columns are updated
with: about n^2 / 2 (1/P + 1/Q) elements, n^2 / sqrt(nprocs) on a square grid, where block columns take n^2 / 2.

Source: Choi, Dongarra, Ostrouchov, Petitet, Walker, Whaley, Design and implementation of the ScaLAPACK LU, QR, and
Cholesky factorization routines, 1996.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import ClassVar, NamedTuple

from pblas.factor.factorization_plan import FactorizationPlan, Panel, panel_at
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.split import Split
from pblas.plans.base import ranks_text
from pblas.simulation.phase import Phase, Traffic, View

PIECE = 512
"""Rows, at least, of a piece of a panel on its way along a process row: ranks pass pieces on while they compute."""
_PIECES = 16  # pieces of a panel at most: with more, messages take longer than they save
_LAYOUTS = 256  # size of the cache of layouts: plans look at that of X in each step
_GROUPS = 16  # groups of steps in a prediction at most; one step stands for the others of its group


def pieces(rows: int) -> list[tuple[int, int]]:
    """Rows (start, stop) of the pieces in which some rows of a panel travel.

    >>> pieces(1100), pieces(0), len(pieces(10**6))
    ([(0, 512), (512, 1024), (1024, 1100)], [], 16)
    """
    height = max(PIECE, -(-rows // _PIECES))
    return [(i, min(i + height, rows)) for i in range(0, rows, height)]


@dataclass(frozen=True, slots=True)
class GridPlan(FactorizationPlan):
    """A factorization in square blocks over a P x Q grid."""

    moved: ClassVar[str]
    """What travels, for `explain`."""

    lookahead: int = 1  # panels that are factored before the updates with the panel before them end (global)

    def position(self, panel: Panel) -> tuple[int, int]:
        """Process row and process column of the diagonal block of a panel."""
        return self.w.grid.coordinates(panel.owner)

    @property
    def shape(self) -> tuple[int, int]:
        """Process rows and process columns (global)."""
        return self.w.grid.nprow, self.w.grid.npcol

    @property
    def npanels(self) -> int:
        """Number of panels (global)."""
        return min(self.w.columns.nblocks, self.w.rows.nblocks)

    @property
    def panels_text(self) -> str:
        """How a panel is factored, for `explain` (global)."""
        return f"each is factored by {self.library} on the {ranks_text(self.w.grid.nprow)} of a process column"

    @property
    def share(self) -> Share:
        """About what arrives at a rank, for `explain`."""
        (nprow, npcol), half = self.shape, self.a.n**2 / 2
        return Share(half * (1 / nprow + 1 / npcol), "n^2 / 2 (1/P + 1/Q)", half)

    @abstractmethod
    def arriving(self, rank: int) -> tuple[int, ...]:
        """Elements that a rank receives of all panels, by their kinds."""

    def panel_elements(self, rank: int) -> int:
        return sum(self.arriving(rank))

    @abstractmethod
    def panel_phases(self, view: View) -> Iterator[Phase]:
        """The steps of a rank of the grid, in groups of equal ones."""

    def phases(self, view: View) -> Iterator[Phase]:
        """As in block columns: each step multiplies, while the next panel is updated, factored and on its way."""
        yield from self.starting()
        yield from self.copy.phases(view)
        if view.rank < self.w.nprocs and self.npanels:
            yield from self.panel_phases(view)
        if self.back is not None:
            yield from self.back.phases(view)

    def groups(self, rank: int) -> Iterator[Step]:
        """The steps of a rank; if they are many, some of them, each for its neighbours too."""
        w, (r, c), (nprow, npcol), count = self.w, self.w.grid.coordinates(rank), self.shape, self.npanels
        size = max(1, -(-count // _GROUPS))
        for start in range(0, count, size):
            many = min(size, count - start)
            panel = panel_at(w, start + many // 2)
            row, column = self.position(panel)
            own, above = (float(column == c), float(row == r)) if many == 1 else (1 / npcol, 1 / nprow)
            rows = w.rows.count(r) - w.rows.local_start(min(panel.stop, w.m), r)
            columns = w.columns.count(c) - w.columns.local_start(panel.stop, c)
            yield Step(panel, many, rows, columns, own, above)

    def left_traffic(self, view: View, step: Step, nbytes: int) -> Traffic:
        """Traffic of a left part: a rank reads that of a near owner in place, or gets it from the rank before."""
        grid, (r, c), npcol = self.w.grid, self.w.grid.coordinates(view.rank), self.w.grid.npcol
        owner = grid.rank(r, (c + npcol // 2) % npcol if step.many > 1 else self.position(step.panel)[1])
        before = grid.rank(r, (c - 1) % npcol)
        if view.is_near(owner) or not view.is_near(before):
            return view.traffic(owner if view.is_near(owner) else before, nbytes)
        return Traffic(near=nbytes, near_messages=len(pieces(step.rows)) if nbytes else 0)

    def hops(self, rows: int) -> float:
        """The time of a left part on its way over that of one transfer: half of the process row, in pieces."""
        return max(0, self.w.grid.npcol // 2 - 1) / max(1, len(pieces(rows)))

    def rounds(self, view: View) -> tuple[int, int]:
        """Levels of the tree of a process column whose messages stay on a host, and the others."""
        p, c = self.w.grid.nprow, self.w.grid.coordinates(view.rank)[1]
        near = sum(view.is_near(self.w.grid.rank(r2, c)) for r2 in range(p))
        local = levels(near)
        return local, levels(p) - local

    def typical_ranks(self, ranks_per_node: int) -> Sequence[int]:
        """The owner of the last diagonal block, and that of the first one."""
        ends = (self.npanels - 1, 0) if self.npanels else ()
        return list(dict.fromkeys(panel_at(self.w, k).owner for k in ends)) or [0]

    def extreme_ranks(self) -> set[int]:
        ranks = FactorizationPlan.extreme_ranks(self)
        return ranks if len(ranks) == self.nprocs else ranks | {self.w.grid.nprow - 1, self.w.grid.npcol - 1}

    def moves(self) -> str:
        parts = ["A to W"] if self.copy.lower_bound else []
        parts.append(self.moved)
        parts.append("the factor stays in W" if self.back is None else "the factor back to the distribution of A")
        return ", ".join(parts)

    def detail_lines(self) -> Iterator[tuple[str, str]]:
        nprow, npcol = self.shape
        yield (
            "algorithm",
            f"grid: right-looking, {self.npanels} panels of {self.w.nb} columns, on {nprow} x {npcol} ranks",
        )
        yield "panels", self.panels_text
        yield "lookahead", f"{self.lookahead}: the next panel is factored during an update"
        share = self.share
        yield (
            "elements",
            f"about {share.elements:,.0f} arrive at a rank, {share.formula}; {share.columns:,.0f} in block columns",
        )


class Share(NamedTuple):
    """About the elements of panels that a rank receives, the formula of a square matrix, and those in block columns."""

    elements: float
    formula: str
    columns: float


class Step(NamedTuple):
    """A step of a rank that stands for `many` steps (local)."""

    panel: Panel
    many: int
    rows: int  # local rows and columns after the panel
    columns: int
    own: float  # 1 if the panel is in the rank's process column; of several steps the part of them
    above: float  # 1 if the diagonal block is in the rank's process row; of several steps the part of them


def dealt(total: int, weights: Sequence[float]) -> list[int]:
    """Cut a number into integers in proportion to weights, which may all be 0.

    >>> dealt(10, [1.0, 2.0, 1.0]), dealt(7, [3, 0, 4]), dealt(4, [0, 0])
    ([2, 6, 2], [3, 0, 4], [2, 2])
    """
    weights = weights if any(weights) else [1] * len(weights)
    edges, whole = [0, *accumulate(weights)], sum(weights)
    return [int(b - a) for a, b in pairwise(round(total * edge / whole) for edge in edges)]


@lru_cache(_LAYOUTS)
def beside(w: MatrixDescriptor, right: MatrixDescriptor) -> MatrixDescriptor:
    """A layout of right-hand sides with the rows of W, on its grid: their own, if it is one, else even columns."""
    if right.order == "F" and right.csrc >= 0 and right.grid == w.grid and right.rows == w.rows:
        return right.without_lld
    return MatrixDescriptor(w.m, right.n, w.mb, max(1, -(-right.n // w.grid.npcol)), w.grid, w.rsrc, 0, imb=w.imb)


def in_messages(view: View, peer: int, nbytes: int, messages: int) -> Traffic:
    """Traffic of a peer that comes in messages on a host too."""
    if not nbytes:
        return Traffic()
    if view.is_near(peer):
        return Traffic(near=nbytes, near_messages=max(1, messages))
    return Traffic(far=nbytes, far_messages=max(1, messages))


def levels(p: int) -> int:
    """Levels of a tree of p ranks."""
    return max(p - 1, 0).bit_length()


def blocks_of(split: Split, p: int) -> Iterator[tuple[int, int]]:
    """The blocks (start, stop) of a process coordinate (global)."""
    first = (p - split.src) % split.nprocs
    return (split.block(b) for b in range(first, split.nblocks, split.nprocs))
