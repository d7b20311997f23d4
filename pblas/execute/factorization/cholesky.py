"""Executor of Cholesky: L L^H = W, for the lower triangle of W."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pblas.execute.factorization.factorization import RunFactorization
from pblas.execute.redistribution.transfer import own_memory

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array


class _Block(NamedTuple):
    """A block column: its first row and column, of the columns that are updated, and its width (local)."""

    row: int
    column: int
    width: int


class RunCholesky(RunFactorization):
    """Runs a CholeskyPlan on one rank. The block columns above their diagonal blocks are not touched."""

    _packed: Any = None

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's workspace."""
        return super().workspace_nbytes + (0 if self._packed is None else int(self._packed.nbytes))

    def start(self) -> None:
        """The imaginary parts on the diagonal are not used: a NaN there would spread in the updates."""
        for panel in self._steps:
            if panel.owner == self._rank and self.w.dtype.kind == "c":
                self._arrays.lower(self.w[panel.start : panel.stop, panel.j_loc : panel.j_loc + panel.width])

    def factor(self, s: int) -> None:
        """L[k, k] by LAPACK, then L[i, k]^T = conj(L[k, k])^-1 W[i, k]^T."""
        panel = self._steps[s]
        columns = self.w[:, panel.j_loc : panel.j_loc + panel.width]
        diagonal, below = columns[panel.start : panel.stop], columns[panel.stop :]
        self._arrays.cholesky(diagonal, self.panel_info(s))
        if not self.stops(s):
            self._arrays.solve_factored(diagonal, below.T, conj=True)

    def stops(self, s: int) -> bool:
        """Where the host knows INFO already: after a panel that is not positive definite."""
        return self._arrays.at_once and bool(self.panel_info(s)[0])

    def update(self, s: int, panel: Array, first: int, last: int) -> None:
        """W[i, j] -= L[i, k] L[j, k]^H for the block columns j, from their diagonal blocks on."""
        start = self._steps[s].stop
        blocks = [
            _Block(step.start - start, step.j_loc - first, step.width)
            for step in self._steps[s + 1 :]
            if step.owner == self._rank and first <= step.j_loc < last
        ]
        own = panel[blocks[0].row :][: last - first] if _is_triangle(blocks) else self._own_rows(panel, blocks)
        self._update_blocks(self.w[start:, first:last], panel, own.T, blocks, panel.shape[0])

    def _update_blocks(self, c: Array, left: Array, right: Array, blocks: list[_Block], stop: int) -> None:
        """C -= L R^H from the diagonal blocks down to row `stop`, in few wide GEMMs.

        One GEMM updates the rectangle below the first half of the columns. Two triangles of half as many block columns
        remain: above the rectangle, and to its right. If the plan says so, the library updates small triangles at once.

        Args:
            c: rows after panel k, and the columns of `blocks` (local).
            left: L[i, k] (local).
            right: L[j, k]^T for the columns of `blocks` (local).
            blocks: block columns, of c (local).
            stop: one past the last row (local).
        """
        middle, column = len(blocks) // 2, blocks[-1].column + blocks[-1].width
        width = column - blocks[0].column
        if self.plan.w.nb < width <= self.plan.triangle and _is_triangle(blocks):
            rows = slice(blocks[0].row, stop)
            self._arrays.subtract_square(left[rows], c[rows, blocks[0].column : column])
            return
        if middle:
            row, column, _ = blocks[middle]
            self._update_blocks(c, left, right, blocks[:middle], row)
            self._update_blocks(c, left, right, blocks[middle:], stop)
        else:
            row = blocks[0].row
        columns, rows = slice(blocks[0].column, column), slice(row, stop)
        self._arrays.gemm(-1, left[rows], right[:, columns], 1, c[rows, columns], conj=(False, True))

    def _own_rows(self, panel: Array, blocks: list[_Block]) -> Array:
        """L[j, k] of several block columns j, one below the other."""
        if self._packed is None:  # such updates are in order, on the main lane
            widest = max(step.width for step in self._steps)
            self._packed = own_memory(self._backend, panel.itemsize * self._end * widest)
        end = blocks[-1].column + blocks[-1].width
        own: Array = self._arrays.array(self._packed, (end, panel.shape[1]), panel.dtype)
        for row, column, width in blocks:
            self._arrays.assign(panel[row : row + width], own[column : column + width])
        return own


def _is_triangle(blocks: list[_Block]) -> bool:
    """Whether the rows of these block columns are neighbours too.

    >>> _is_triangle([_Block(4, 0, 2), _Block(6, 2, 3)]), _is_triangle([_Block(4, 0, 2), _Block(8, 2, 2)])
    (True, False)
    """
    row, column, _ = blocks[0]
    return all(block.row - row == block.column - column for block in blocks)
