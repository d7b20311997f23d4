"""Executor of Cholesky: L L^H = W, for the lower triangle of W."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pblas.factor.factorization_run import RunFactorization

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pblas.backends.dtypes import Array


class _Block(NamedTuple):
    """A block column: its first row and column, of the elements that are updated, and its width (local)."""

    row: int
    column: int
    width: int


class RunCholesky(RunFactorization):
    """Runs a CholeskyPlan on one rank. The block columns above their diagonal blocks are not touched.

    On CPUs the next panel is updated and factored piece by piece, as the rows of the panel before arrive, and each
    piece leaves at once. So panels travel in both directions at the same time, although each depends on the one before.
    """

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

    @property
    def looks_ahead_by_rows(self) -> bool:  # type: ignore[override]  # an attribute in the base
        """Whether the next panel is factored piece by piece (global)."""
        return self._arrays.traits.blocking

    def look_ahead(self, s: int, panel: Array | None, first: int, after: int, updated: Any) -> None:
        """Update and factor the next panel; on CPUs by pieces, after each arrival."""
        if not self.looks_ahead_by_rows:
            super().look_ahead(s, panel, first, after, updated)
            return
        assert panel is not None, "the rank has columns after panel s"
        following, start = self._steps[s + 1], self._steps[s].stop
        columns, width = self.w[:, first:after], following.width
        diagonal, across = columns[following.start : following.stop], panel[:width].T  # L[k + 1, k]^T
        for i0, i1 in self.columns.arriving(s):
            if i0 == start:  # the first piece has all rows of the diagonal block
                self._update_triangle(columns[start:], panel, [_Block(0, 0, width)], i1 - start)
                self._arrays.cholesky(diagonal, self.panel_info(s + 1))
                self.send_header(s + 1, near=False)
            else:
                rows = panel[i0 - start : i1 - start]
                self._arrays.gemm(-1, rows, across, 1, columns[i0:i1], conj=(False, True))
            if not self.stops(s + 1):
                below = columns[max(i0, following.stop) : i1]
                self._arrays.solve_factored(diagonal, below.T, conj=True)
            self.columns.offer(s + 1, i0, i1)
        self.send_header(s + 1, near=True)

    def stops(self, s: int) -> bool:
        """Where the host knows INFO already: after a panel that is not positive definite."""
        return self._arrays.traits.blocking and bool(self.panel_info(s)[0])

    def update(self, s: int, panel: Array, first: int, last: int, pieces: Iterable[tuple[int, int]]) -> None:
        """W[i, j] -= L[i, k] L[j, k]^H for the block columns j, from their diagonal blocks on."""
        del pieces  # all have arrived
        start = self._steps[s].stop
        blocks = [
            _Block(step.start - start, step.j_loc - first, step.width)
            for step in self._steps[s + 1 :]
            if step.owner == self._rank and first <= step.j_loc < last
        ]
        c = self.w[start:, first:last]
        for together in [blocks] if _is_triangle(blocks) else [[block] for block in blocks]:
            self._update_triangle(c, panel, together, len(panel))

    def _update_triangle(self, c: Array, panel: Array, blocks: list[_Block], stop: int) -> None:
        """C -= L L^H from the diagonal blocks down to row `stop`, for block columns whose rows are neighbours.

        The library's symmetric product updates what the plan says. Otherwise one GEMM updates the rectangle below the
        first half of the columns, and two triangles of half as many block columns remain: above it, and to its right.
        """
        top, left, _ = blocks[0]
        width = blocks[-1].column + blocks[-1].width - left
        if width in self.plan.triangles:
            self._arrays.subtract_square(panel[top:stop], c[top:stop, left : left + width])
            return
        middle = len(blocks) // 2
        row, end = (blocks[middle].row, blocks[middle].column) if middle else (top, left + width)
        if middle:
            self._update_triangle(c, panel, blocks[:middle], row)
            self._update_triangle(c, panel, blocks[middle:], stop)
        right = panel[top : top + end - left].T  # L[j, k]^T of these columns
        self._arrays.gemm(-1, panel[row:stop], right, 1, c[row:stop, left:end], conj=(False, True))


def _is_triangle(blocks: list[_Block]) -> bool:
    """Whether the rows of these block columns are neighbours too.

    >>> _is_triangle([_Block(4, 0, 2), _Block(6, 2, 3)]), _is_triangle([_Block(4, 0, 2), _Block(8, 2, 2)])
    (True, False)
    """
    row, column, _ = blocks[0]
    return all(block.row - row == block.column - column for block in blocks)
