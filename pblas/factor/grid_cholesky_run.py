"""Executor of Cholesky on a P x Q grid: L L^H = W, for the lower triangle of W.

Step k, on rank (r, c), with one panel of lookahead:

    W[i, k+1] -= L[i, k] L[k+1, k]^H                 (on the process column of panel k + 1)
    L[k+1, k+1] L[k+1, k+1]^H = W[k+1, k+1]          (on the owner of this block, which sends it to the process column)
    L[i, k+1] = W[i, k+1] L[k+1, k+1]^-H             (then L[i, k+1] leaves for the process rows and columns)
    W[i, j] -= L[i, k] L[j, k]^H, for i >= j > k + 1 (trailing update; meanwhile panel k + 1 arrives)

A block that is not positive definite ends nothing: later blocks are then undefined, and INFO is agreed on at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas.factor.factorization_run import FACTOR, FactorsInPlace
from pblas.factor.grid_cholesky_panels import Block, CholeskyPanels
from pblas.layouts.placement import Placement
from pblas.redistribution.transfer import SourceMatrix, own_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array, Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.grid_cholesky_plan import GridCholeskyPlan

_NEVER = -(1 << 60)  # minus the place of a bad pivot, where there is none


class RunGridCholesky(FactorsInPlace):
    """Runs a GridCholeskyPlan on one rank. Blocks above the diagonal are not touched."""

    peers_read = False  # the agreement on INFO comes after all reads

    def __init__(self, plan: GridCholeskyPlan, backend: HostRanks, dtype: Dtype) -> None:
        self.plan: GridCholeskyPlan = plan
        self._backend, self._arrays, self._rank, self._steps = backend, backend.arrays, backend.rank, plan.steps
        self._source = SourceMatrix(backend, Placement.of(plan.w), dtype, "F")
        self._panels = CholeskyPanels(plan, self._source)
        self._row, self._column = plan.w.grid.coordinates(backend.rank)
        # this rank's block columns: panel, first local row at or below the diagonal, local columns
        self._blocks = [
            Block(k, plan.w.rows.local_start(panel.start, self._row), panel.j_loc, panel.width)
            for k, panel in enumerate(self._steps)
            if plan.position(panel)[1] == self._column
        ]
        integer = backend.arrays.traits.pivot_dtype
        memory = own_memory(backend, len(self._steps) * integer.itemsize)
        self._infos: Array = backend.arrays.array(memory, (1, len(self._steps)), integer, "F")
        self.progress: Callable[[float], None] | None = None
        """Called with the done part of the work after each panel but the last; None for no calls (local)."""
        self.info = 0
        """LAPACK's INFO of the last execution, equal on all ranks (global)."""

    def run(self, w: Array) -> None:
        """Factor W."""
        steps, ahead = self._steps, self.plan.lookahead
        self._backend.fill(self._infos)
        self._start()
        for j in range(len(steps) + ahead if self._row >= 0 else 0):
            k, is_mine = j - ahead, j < len(steps) and self.plan.position(steps[j])[1] == self._column
            if j < len(steps):
                self._panels.begin(j)
            if is_mine and self._arrays.traits.blocking:
                self._factor(j, range(max(k, 0), j))
            if k >= 0:
                # W[i, j] -= L[i, k] L[j, k]^H   (i >= j, for the columns j that no lookahead has updated)
                self._update(k, [block for block in self._blocks if block.k > j])
                if self.progress is not None and k < len(steps) - 1:
                    self.progress(1 - (1 - steps[k].stop / steps[-1].stop) ** 3)  # n^3 is left of n columns
            if is_mine and not self._arrays.traits.blocking:  # a GPU works on both at once
                with self._arrays.on_side_lane(FACTOR, "factor"):
                    self._factor(j, range(max(k, 0), j))
        self._panels.end()
        self._arrays.synchronize()
        self._agree_on_info()

    def _start(self) -> None:
        """Set the imaginary parts on the diagonal to 0: a NaN there would spread in the updates."""
        for block in self._blocks if self.w.dtype.kind == "c" else ():
            if self._steps[block.k].owner == self._rank:
                self._arrays.lower(self.w[block.i : block.i + block.width, block.j : block.j + block.width])

    def _factor(self, j: int, before: range) -> None:
        """Update panel j with the panels of a range, factor it, and send it."""
        panel, (block,) = self._steps[j], [block for block in self._blocks if block.k == j]
        for k in before:
            # W[i, j] -= L[i, k] L[j, k]^H
            self._update(k, [block])
        columns = self.w[block.i :, block.j : block.j + block.width]
        diagonal, below = columns[:0], columns
        if panel.owner == self._rank:
            diagonal, below = columns[: block.width], columns[block.width :]
            # L[j, j] L[j, j]^H = W[j, j]
            self._arrays.cholesky(diagonal, self._infos[:, j])
        elif not len(below):
            return
        diagonal = self._panels.diagonal(j, diagonal)
        # L[i, j] = W[i, j] L[j, j]^-H, as L[i, j]^T = conj(L[j, j])^-1 W[i, j]^T
        self._arrays.solve_factored(diagonal, below.T, conj=True)
        self._panels.send(j)

    def _update(self, k: int, blocks: list[Block]) -> None:
        """Update block columns of this rank, from their diagonal blocks down, with panel k."""
        parts = self._panels.fetch(k) if blocks else None
        if parts is not None:
            i, j = len(self.w) - len(parts[0]), self.w.shape[1] - len(parts[1])
            after = [block._replace(i=block.i - i, j=block.j - j) for block in blocks]
            self._update_staircase(self.w[i:, j:], *parts, after, len(parts[0]))

    def _update_staircase(self, c: Array, left: Array, right: Array, blocks: list[Block], stop: int) -> None:
        """C -= left right^H in block columns, from their diagonals down to row `stop`.

        One GEMM updates the rectangle below the first half of them. Two smaller staircases remain: above it, and to its
        right.
        """
        middle = len(blocks) // 2
        i, first = blocks[middle].i, blocks[:middle] or blocks
        if middle:
            self._update_staircase(c, left, right, first, i)
            self._update_staircase(c, left, right, blocks[middle:], stop)
        j = slice(first[0].j, first[-1].j + first[-1].width)
        if not middle and self._steps[first[0].k].owner == self._rank:
            self._arrays.subtract_square(left[i:stop], c[i:stop, j])
        else:
            self._arrays.gemm(-1, left[i:stop], right[j].T, 1, c[i:stop, j], conj=(False, True))
        self._panels.progress()

    def _agree_on_info(self) -> None:
        """**Collective.** The first leading block of all ranks that is not positive definite."""
        infos = self._backend.reading(self._infos)[0]
        mine = [-(panel.start + int(info)) for panel, info in zip(self._steps, infos, strict=True) if info]
        (first,) = self._backend.agree("Cholesky: INFO", maxima=(max(mine, default=_NEVER),)).maxima
        self.info = 0 if first == _NEVER else -first

    def deferred_info(self) -> Callable[[], int]:
        """A function that gives INFO of the last execution, whatever is executed before it is called (local)."""
        info = self.info
        return lambda: info

    @property
    def workspace_nbytes(self) -> int:
        return self._panels.workspace_nbytes + int(self._infos.nbytes)
