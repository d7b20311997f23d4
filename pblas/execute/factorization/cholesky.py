"""Executor of Cholesky: L L^H = W, for the lower triangle of W."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas.execute.factorization.factorization import RunFactorization

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.plans.factorization import Panel


class RunCholesky(RunFactorization):
    """Runs a CholeskyPlan on one rank. The block columns above their diagonal blocks are not touched."""

    def factor(self, panel: Panel) -> int:
        """L[k, k] by LAPACK, then L[i, k]^T = conj(L[k, k])^-1 W[i, k]^T."""
        columns = self.w[:, panel.j_loc : panel.j_loc + panel.width]
        diagonal, below = columns[panel.start : panel.stop], columns[panel.stop :]
        info = self._arrays.cholesky(diagonal)
        if info:
            return panel.start + info
        self._arrays.trsm(diagonal, below.T, uplo="L", conj=True)
        return 0

    def update(self, s: int, panel: Array, first: int, last: int) -> None:
        """W[i, j] -= L[i, k] L[j, k]^H for the block columns j, from their diagonal blocks on."""
        start, columns = self._steps[s].stop, self.plan.w.columns
        p = self.plan.w.grid.coordinates(self._rank)[1]
        blocks, j_loc = [], first
        for j0, j1 in columns.runs(p, columns.global_from_local(first, p)):
            if j_loc < last:
                blocks.append((j0 - start, j_loc - first, j1 - j0))
            j_loc += j1 - j0
        # L[j, k] of all these j, one below the other
        packed = self._arrays.empty(panel.itemsize * (last - first) * panel.shape[1])
        own = self._arrays.array(packed, (last - first, panel.shape[1]), panel.dtype)
        for i, j, width in blocks:
            self._arrays.assign(panel[i : i + width], own[j : j + width])
        self._update_blocks(self.w[start:, first:last], panel, own.T, blocks, panel.shape[0])

    def _update_blocks(
        self, c: Array, left: Array, right: Array, blocks: list[tuple[int, int, int]], stop: int
    ) -> None:
        """C -= L R^H from the diagonal blocks down to row `stop`, in few wide GEMMs.

        One GEMM updates the rectangle below the first half of the columns. Two triangles of half as many block columns
        remain: above the rectangle, and to its right.

        Args:
            c: rows after panel k, and the columns of `blocks` (local).
            left: L[i, k] (local).
            right: L[j, k]^T for the columns of `blocks` (local).
            blocks: (first row, first column, width) of block columns, of c (local).
            stop: one past the last row (local).
        """
        middle = len(blocks) // 2
        if middle:
            row, column, _ = blocks[middle]
            self._update_blocks(c, left, right, blocks[:middle], row)
            self._update_blocks(c, left, right, blocks[middle:], stop)
        else:
            row, column = blocks[0][0], blocks[0][1] + blocks[0][2]
        columns, rows = slice(blocks[0][1], column), slice(row, stop)
        self._arrays.gemm(-1, left[rows], right[:, columns], 1, c[rows, columns], conj=(False, True))
