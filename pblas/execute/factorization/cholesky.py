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
        start, columns = self._steps[s].stop, self.plan.w.columns
        p = self.plan.w.grid.coordinates(self._rank)[1]
        blocks, j_loc = [], first
        for j0, j1 in columns.runs(p, columns.global_from_local(first, p)):
            if j_loc < last:
                blocks.append(_Block(j0 - start, j_loc - first, j1 - j0))
            j_loc += j1 - j0
        is_triangle = all(block.row - blocks[0].row == block.column for block in blocks)
        own = panel[blocks[0].row :][: last - first] if is_triangle else self._own_rows(panel, blocks)
        c = self.w[start:, first:last]
        if is_triangle and len(blocks) > 1:
            blocks = [half for block in blocks for half in _halves(block)]
        # One level after the other: C[i, j] of single block columns, then of 1, 2, 4, ... beside as many
        for rows, columns_ in _levels(blocks, panel.shape[0]):
            self._arrays.gemm_blocks(
                *(-1, [panel[i] for i in rows], [own[j].T for j in columns_]),
                [c[i, j] for i, j in zip(rows, columns_, strict=True)],
                conj=(False, True),
            )

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


def _halves(block: _Block) -> list[_Block]:
    """A block column as two: half of the elements above the diagonal are left out.

    >>> _halves(_Block(8, 4, 3))
    [_Block(row=8, column=4, width=2), _Block(row=10, column=6, width=1)]
    """
    row, column, width = block
    half = -(-width // 2)
    halves = [_Block(row, column, half)]
    return halves if half == width else [*halves, _Block(row + half, column + half, width - half)]


def _levels(blocks: list[_Block], stop: int) -> list[tuple[list[slice], list[slice]]]:
    """Rectangles that cover the columns of a triangle, from the first row of each block column down to row `stop`.

    Level 0 has the rows of each block column, down to the first row of the next one. Level n joins pairs of 2^(n - 1)
    block columns: it has the rows of the second ones, in the columns of the first ones. So few wide products are made,
    and those of one level are of one size.

    Args:
        blocks: the block columns, in order (local).
        stop: one past the last row (local).

    >>> _levels([_Block(0, 0, 2), _Block(4, 2, 2), _Block(8, 4, 2)], 10)  # doctest: +NORMALIZE_WHITESPACE
    [([slice(0, 4, None), slice(4, 8, None), slice(8, 10, None)],
      [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]),
     ([slice(4, 8, None)], [slice(0, 2, None)]),
     ([slice(8, 10, None)], [slice(0, 4, None)])]
    """
    rows = [block.row for block in blocks] + [stop] * len(blocks)
    columns = [block.column for block in blocks]
    end = blocks[-1].column + blocks[-1].width
    columns += [end] * len(blocks)
    count, size = len(blocks), 1
    levels = [
        ([slice(rows[t], rows[t + 1]) for t in range(count)], [slice(columns[t], columns[t + 1]) for t in range(count)])
    ]
    while size < count:
        firsts = range(0, count - size, 2 * size)
        levels.append(
            (
                [slice(rows[t + size], rows[t + 2 * size]) for t in firsts],
                [slice(columns[t], columns[t + size]) for t in firsts],
            )
        )
        size *= 2
    return levels
