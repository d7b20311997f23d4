"""Plan of solves with a factor that is in square blocks over a P x Q grid, as a value of integers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from pblas.factor.grid_plan import beside, in_messages
from pblas.factor.with_factor_plan import FactorStep, Triangle, WithFactorPlan, triangle_steps
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.simulation.hardware import CORE, Topology
from pblas.simulation.phase import Phase, View, solve_rows
from pblas.simulation.simulate import predict
from pblas.triangular.choose import choose_trsm
from pblas.triangular.trsm_plan import PANEL, TriangularOperands, TrsmPlan

_LAYOUTS = 256  # size of the cache of plans
_QUICKER = 0.9  # part of the time of a plan in which one with more elements that move replaces it


@dataclass(frozen=True, slots=True)
class GridSubstitutionPlan(WithFactorPlan):
    """X = op(A)^-1 B with triangles that stay on their grid: X has their rows, and columns of its own.

    Panels of a triangle travel along process rows. With T, blocks of X travel down process columns; with T^T and T^H,
    sums of T[i, k]^H X[i] travel to the process row of block k.

    >>> from pblas.layouts.grid import Grid
    >>> w = MatrixDescriptor(8, 8, 2, 2, Grid(2, 2))
    >>> triangles = Triangle("L"), Triangle("L", "C")
    >>> plan = GridSubstitutionPlan(w, w, "float64", 4, "message", triangles=triangles)
    >>> [plan.exchanged_elements(rank) for rank in range(4)]
    [32, 48, 48, 48]
    """

    name: ClassVar[str] = "GridSubstitutionPlan"
    why: ClassVar[str] = "the factor stays on its grid: panels travel along rows, blocks of X or sums along columns"

    triangles: tuple[Triangle, ...] = ()  # the triangular solves, in order (global)

    @property
    def x(self) -> MatrixDescriptor:
        """The rows of W, on its grid."""
        return beside(self.w, self.right)

    @property
    def steps(self) -> list[FactorStep]:
        """The panels of each triangle, in order."""
        return triangle_steps(self.w, self.triangles)

    def members(self, step: FactorStep) -> int:
        """Ranks of a process column that have rows of a step."""
        others = step.i1 - step.i0 - step.panel.width
        return min(self.w.grid.nprow, 1 - (-others // self.w.nb))

    def arriving(self, step: FactorStep, rank: int) -> tuple[int, int]:
        """Elements that a rank receives in a step: of the panel, and of X or of sums."""
        (r, c), w, width = self.w.grid.coordinates(rank), self.w, step.panel.width
        rows = 0 if r < 0 else w.rows.local_start(step.i1, r) - w.rows.local_start(step.i0, r)
        columns = self.x.columns.count(c) if rows else 0
        row, column = w.grid.coordinates(step.panel.owner)
        assert step.triangle is not None, "of a solve"
        parts = (r != row) if step.triangle.trans == "N" else (r == row) * (self.members(step) - 1)
        return (c != column) * (columns > 0) * rows * width, columns * width * parts

    def exchanged_elements(self, rank: int) -> int:
        return sum(sum(self.arriving(step, rank)) for step in self.steps)

    def lent_elements(self, rank: int) -> int:
        """Elements of this rank's panels, once for each reader, and of X or of sums."""
        (r, c), grid, x = self.w.grid.coordinates(rank), self.w.grid, self.x
        if r < 0:
            return 0
        readers = sum(other != c and x.columns.count(other) > 0 for other in range(grid.npcol))
        total = 0
        for step in self.steps:
            rows = self.w.rows.local_start(step.i1, r) - self.w.rows.local_start(step.i0, r)
            row, column = grid.coordinates(step.panel.owner)
            total += readers * rows * step.panel.width * (column == c)
            is_top = row == r
            assert step.triangle is not None, "of a solve"
            others = self.members(step) - 1 if is_top else 0
            messages = others if step.triangle.trans == "N" else (rows > 0 and not is_top)
            total += x.columns.count(c) * step.panel.width * messages
        return total

    def changes(self, view: View) -> Iterator[Phase]:
        """Each step multiplies this rank's part of X with a panel, after a block of X or sums have arrived.

        They follow the step before it; the panel arrives meanwhile.
        """
        (r, c), w = self.w.grid.coordinates(view.rank), self.w
        for step in self.steps if r >= 0 else ():
            rows = w.rows.local_start(step.i1, r) - w.rows.local_start(step.i0, r)
            columns, width = self.x.columns.count(c), step.panel.width
            if rows and columns:
                left, other = (self.itemsize * x for x in self.arriving(step, view.rank))
                row, column = w.grid.coordinates(step.panel.owner)
                peer = w.grid.rank((r + 1) % w.grid.nprow if r == row else row, c)
                before, after = in_messages(view, peer, other, 1), view.traffic(w.grid.rank(r, column), left)
                solve = columns * width * solve_rows(width)
                yield Phase(
                    # X[i] -= T[i, k] X[k], X[k] = T[k, k]^-1 X[k]
                    *(1, (rows, columns, width), before, after),
                    ahead=False,
                    panel=solve * (r == row),
                    factored=solve * (r != row),
                )

    def typical_ranks(self, ranks_per_node: int) -> Sequence[int]:
        """Of the process column with the first column of X, the owners of the last and of the first rows."""
        split, column = self.w.rows, self.x.columns.owner(0) if self.x.n else 0
        ends = (split.owner(split.n - 1), split.owner(0)) if split.n else (0,)
        return list(dict.fromkeys(self.w.grid.rank(r, column) for r in ends))

    @property
    def panel_nbytes(self) -> int:
        """Two panels, a block of X, and sums."""
        rows, columns, width = self.w.rows.max_count, self.x.columns.max_count, min(self.w.nb, self.w.n)
        return self.itemsize * width * (2 * rows + (2 + self.w.grid.nprow) * columns)

    @property
    def flops(self) -> int:
        multiplications = len(self.triangles) * self.w.m**2 * self.b.n // 2
        return multiplications * (8 if self.dtype.startswith("complex") else 2)

    def title(self) -> str:
        return f"X = op(A)^-1 B, {self.b.m} equations, {self.b.n} right-hand sides"

    @property
    def _exchange(self) -> str:
        return "panels of the factor along process rows, blocks of X or sums along process columns"


@lru_cache(_LAYOUTS)
def stays_on_grid(
    w: MatrixDescriptor, b: MatrixDescriptor, dtype: str, nprocs: int, triangles: tuple[Triangle, ...]
) -> bool:
    """Whether the plan over the grid of W solves for B, or one `trsm` for each triangle, which is then faster.

    >>> from pblas.layouts.grid import Grid
    >>> w = MatrixDescriptor(32768, 32768, 128, 128, Grid(8, 8))
    >>> b = (MatrixDescriptor(32768, n, 128, 128, Grid(8, 8)) for n in (1, 32768))
    >>> [stays_on_grid(w, x, "float64", 64, (Triangle("L"),)) for x in b]
    [False, True]
    """
    if 0 in b.shape:
        return False
    neutral = Topology().transport(nprocs)
    plan = GridSubstitutionPlan(w, b, dtype, nprocs, neutral, triangles=triangles)
    seconds = 0.0
    for uplo, trans, unit in triangles:
        operands = TriangularOperands(w, b, b, "L", uplo, trans, unit)
        trsm = choose_trsm(operands, dtype, nprocs, reads=True, width=PANEL, topology=Topology())
        moves_triangle = isinstance(trsm, TrsmPlan)  # then more elements move than over the grid, else fewer
        seconds += predict(trsm.over(neutral), CORE) * (1 / _QUICKER if moves_triangle else _QUICKER)
    return predict(plan, CORE, seconds) < seconds
