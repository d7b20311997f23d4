"""The plan of a triangular solve: right-hand sides are split over the ranks, and only the triangle travels.

The columns of X in T X = alpha B are independent of each other. Each rank solves for some of them, with panels of T
that arrive along the diagonal while the panel before is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from pblas.layouts.messages import received_count, sends
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.matmul.summa_plan import cut, cut_count, same_place
from pblas.simulation.phase import Phase, View, even
from pblas.triangular.base_plan import TriangularSolve, spread

_UNEVEN = 1.25
"""Largest share of the right-hand sides, over an even share, with which X stays where it is."""
_SPARE = 2
"""Message memory per byte that travels; see `pblas.matmul.summa_plan`."""


@dataclass(frozen=True, slots=True)
class TrsmStep:
    """One step: the diagonal block T[k0:k1, k0:k1], and a rectangle of T next to it.

    A right-looking step solves X[k0:k1] with the block and then subtracts T[rows, columns] X[columns] from the rows of
    X that come later, where `columns` is k0:k1. A left-looking step first subtracts it from `rows`, which is k0:k1.
    """

    k0: int
    k1: int
    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def is_alone(self) -> bool:
        """Whether the rectangle is empty."""
        return 0 in (self.rows[1] - self.rows[0], self.columns[1] - self.columns[0])


@dataclass(frozen=True, slots=True)
class TrsmPlan(TriangularSolve):
    """X := alpha op(A)^-1 B or alpha B op(A)^-1: each rank solves for some right-hand sides, to which A is sent.

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> from pblas.triangular.base_plan import TriangularOperands
    >>> columns = MatrixDescriptor.column_wise(8, 8, 4)
    >>> plan = TrsmPlan(TriangularOperands(columns, columns, columns), "float64", 4, width=4)
    >>> plan.stays, plan.received_nbytes(1)
    (True, 200)
    >>> for step in plan.steps(): print(step)
    TrsmStep(k0=0, k1=4, rows=(4, 8), columns=(0, 4))
    TrsmStep(k0=4, k1=8, rows=(8, 8), columns=(4, 8))
    """

    name: ClassVar[str] = "TrsmPlan"
    why: ClassVar[str] = "right-hand sides are independent: each rank solves for its own, and only the triangle travels"

    home: Placement = field(init=False)
    """The placement in which X is computed: its columns are split over the ranks, from coordinate 0 on (global)."""

    def __post_init__(self) -> None:
        """Choose the placement of X: its own if every rank has whole columns and a fair share, else an even split."""
        result = self.operands.result
        (n, nrhs), columns = result.shape, result.columns
        even = max(1, -(-nrhs // self.nprocs))
        home = Placement(Split(n, max(n, 1), 1), Split(nrhs, even, self.nprocs), (1, 1, 1))
        is_fair = columns.max_count <= _UNEVEN * even and (columns.src == 0 or columns.nblocks >= columns.nprocs)
        if result.rows.canonical.nprocs == 1 and result.copies == 1 and is_fair:
            home = Placement(home.rows, columns, result.strides, 1, result.start, result.ranks)
        object.__setattr__(self, "home", home)

    # The work of the ranks

    @property
    def stays(self) -> bool:
        """Whether X is computed in its own memory; else in workspace, and then redistributed."""
        return same_place(self.home, self.operands.result)

    @property
    def nsolvers(self) -> int:
        """Number of ranks that have right-hand sides: those at the first coordinates of `home`."""
        return min(self.home.columns.nprocs, self.home.columns.nblocks)

    @property
    def looks_left(self) -> bool:
        """Whether panels are rows of T, so that a panel of a T that is split by rows is one block in memory."""
        rows, columns = self.operands.triangle.rows.canonical, self.operands.triangle.columns.canonical
        return rows.nprocs > 1 and columns.nprocs == 1

    def steps(self) -> Iterator[TrsmStep]:
        """The steps, in the order in which X is computed: from the first row if T is lower, else from the last."""
        n, triangle, lower = self.order, self.operands.triangle, self.operands.lower
        pieces = list(cut(triangle.rows if self.looks_left else triangle.columns, 0, n, self.width))
        for k0, k1 in pieces if lower else reversed(pieces):
            if self.looks_left:
                yield TrsmStep(k0, k1, (k0, k1), (0, k0) if lower else (k1, n))
            else:
                yield TrsmStep(k0, k1, (k1, n) if lower else (0, k0), (k0, k1))

    def at_solvers(self, rows: int, columns: int) -> Placement:
        """A part of T, with these numbers of rows and columns, on every rank that has right-hand sides."""
        down, across = (Split(size, max(size, 1), 1) for size in (rows, columns))
        home = self.home
        return Placement(down, across, (1, 1, home.strides[1]), max(1, self.nsolvers), home.start, home.ranks)

    # Elements that move

    def is_solver(self, rank: int) -> bool:
        """Whether a rank has right-hand sides."""
        return self.home.local_shape(rank)[1] > 0

    def received_elements(self, rank: int) -> int:
        """Elements of the triangle, of B and of X that `rank` receives from other ranks, or reads in their memory."""
        if not self.reads:
            return 0
        count = received_count(self.operands.right, self.home, rank)
        count += 0 if self.stays else received_count(self.home, self.operands.result, rank)
        if self.is_solver(rank):
            count += self.order * (self.order + 1) // 2 - self.own_elements(rank)
        return count

    def sent_elements(self, rank: int) -> int:
        """Elements that `rank` sends, or that other ranks read in its memory; of copies of A each sends its share."""
        if not self.reads:
            return 0
        pairs = [(self.operands.right, self.home)]
        if not self.stays:
            pairs.append((self.home, self.operands.result))
        count = sum(prod(move.shape) for pair in pairs for move in sends(*pair, rank))
        readers = self.nsolvers - self.is_solver(rank)
        return count + self.own_elements(rank) * readers // self.operands.triangle.copies

    def phases(self, view: View) -> Iterator[Phase]:
        """Panels are taken as equal: each is multiplied with half of T's rows, and arrives with an equal share of T.

        T comes from the ranks that hold it in proportion to their shares of the rows and columns.
        """
        operands, itemsize = self.operands, self.itemsize
        if not self.reads:
            yield Phase(1, copied=itemsize * prod(operands.result.local_shape(view.rank)))
            return
        yield self._redistribution(view, operands.right, self.home)
        triangle, n = operands.triangle, self.order
        if self.is_solver(view.rank):
            arrives = itemsize * (n * (n + 1) // 2 - self.own_elements(view.rank))
            split = triangle.rows if self.looks_left else triangle.columns
            steps, columns = max(1, cut_count(split, 0, n, self.width)), self.home.local_shape(view.rank)[1]
            peers = [rank for rank in self.extreme_ranks() if rank != view.rank and self.own_elements(rank)]
            for many, depth, nbytes in even(steps, n, arrives):
                traffic = spread(view, peers, nbytes)
                copied = 0 if view.transport == "shared" else 2 * nbytes
                # X[i] -= T[i, k] X[k]   (panel k of T, this rank's columns of X)
                yield Phase(many, (n // 2, columns, depth), traffic, copied=copied)
        if not self.stays:
            yield self._redistribution(view, self.home, operands.result)

    @property
    def workspace_nbytes(self) -> int:
        """X if it is computed in workspace, two panels of T, and copies and messages of all three matrices."""
        if not self.reads:
            return 0
        operands, n, ranks = self.operands, self.order, self.extreme_ranks()
        triangle, width = operands.triangle, min(self.width, n)
        count = 0 if self.stays else n * self.home.columns.max_count
        count += 2 * width * (n + width)
        if self.transport == "mixed":  # a host receives once what its ranks need
            count += 3 * width * (n + width)
        if self.transport != "message":
            for place in (triangle, operands.right):
                count += place.rows.max_count * place.columns.max_count
        if self.transport != "shared" and self.nprocs > 1:
            count += _SPARE * 2 * width * (n + width) * (1 + self.nsolvers)
            pairs = (operands.right, self.home), (self.home, operands.result)
            for source, target in pairs:
                count += max(
                    received_count(source, target, rank) + sum(prod(move.shape) for move in sends(source, target, rank))
                    for rank in ranks
                )
        return self.itemsize * count

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Those of the operands, and that in which X is computed."""
        return self.home, self.operands.triangle, self.operands.right, self.operands.result

    # Text

    def moves(self) -> str:
        """The data that moves, as text."""
        if not self.reads:
            return "nothing: X is 0" if prod(self.home.shape) else "nothing: X is empty"
        panels = f"panels of A's triangle to the {self.nsolvers} ranks that have right-hand sides"
        if self.nsolvers == self.nprocs:
            panels = "panels of A's triangle to all ranks"
        if self.stays:
            same = same_place(self.operands.right, self.home)
            return panels if same else f"B to the layout of X, then {panels}"
        return f"B to an even split of its right-hand sides, then {panels}, then X to its layout"

    def detail_lines(self) -> Iterator[tuple[str, str]]:
        """The panels."""
        looking = "rows (left-looking)" if self.looks_left else "columns (right-looking)"
        if self.reads:
            yield "panels", f"{self.width} {looking}, {'forwards' if self.operands.lower else 'backwards'}"
