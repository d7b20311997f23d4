"""Executor of Cholesky: L L^H = W, for the lower triangle of W. `RunFactorization` has the loop over the panels.

    L[k, k] L[k, k]^H = W[k, k]                           (factor panel k)
    L[i, k] = W[i, k] L[k, k]^-H     for i > k
    W[i, j] -= L[i, k] L[j, k]^H     for i >= j > k       (update of the columns j with panel k)

On CPUs lookahead goes by pieces: the next panel is updated and factored as the rows of the panel before it arrive, and
each piece leaves at once. So two panels travel at the same time, although the second depends on the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from pblas.factor.factorization_run import RunFactorization

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pblas.backends.dtypes import Array


class _Block(NamedTuple):
    """A block column of the trailing matrix: its first row and column there, and its width (local)."""

    row: int
    column: int
    width: int


class RunCholesky(RunFactorization):
    """Runs a CholeskyPlan on one rank. The block columns above their diagonal blocks are not touched."""

    takes_pieces: ClassVar[bool] = True

    def start(self) -> None:
        """Set the imaginary parts on the diagonal to 0: a NaN there would spread in the updates."""
        for k, panel in enumerate(self._steps):
            if panel.owner == self._rank and self.w.dtype.kind == "c":
                self._arrays.lower(self.columns_of(k)[panel.start : panel.stop])

    def factor(self, k: int) -> None:
        """Factor the diagonal block, and solve with it for the rows below."""
        panel = self._steps[k]
        columns = self.columns_of(k)
        diagonal = columns[panel.start : panel.stop]
        # L[k, k] L[k, k]^H = W[k, k]
        self._arrays.cholesky(diagonal, self.panel_info(k))
        if not self.has_failed(k):
            # L[i, k] = W[i, k] L[k, k]^-H, as L[i, k]^T = conj(L[k, k])^-1 W[i, k]^T
            self._arrays.solve_factored(diagonal, columns[panel.stop :].T, conj=True)

    def update(self, k: int, panel: Array, j0: int, j1: int, pieces: Iterable[tuple[int, int]]) -> None:
        """Update the lower triangle of the local columns j0..j1-1."""
        del pieces  # all have arrived
        start = self._steps[k].stop
        blocks = [
            _Block(step.start - start, step.j_loc - j0, step.width)
            for step in self._steps[k + 1 :]
            if step.owner == self._rank and j0 <= step.j_loc < j1
        ]
        c = self.w[start:, j0:j1]
        # W[i, j] -= L[i, k] L[j, k]^H
        for together in [blocks] if _is_triangle(blocks) else [[block] for block in blocks]:
            self._update_triangle(c, panel, together, len(panel))

    def look_ahead(self, k: int, panel: Array | None, j0: int, j1: int, updated: object) -> None:
        """Update and factor panel k + 1; on CPUs by pieces, after each arrival."""
        if not self._by_pieces:
            super().look_ahead(k, panel, j0, j1, updated)
            return
        assert panel is not None, "the rank has columns after panel k"
        following, start = self._steps[k + 1], self._steps[k].stop
        columns, width = self.w[:, j0:j1], following.width
        diagonal, right = columns[following.start : following.stop], panel[:width].T  # L[k+1, k]^T
        for i0, i1 in self.panels.received(k):
            if i0 == start:  # the first piece has all rows of the diagonal block
                # W[k+1, k+1] -= L[k+1, k] L[k+1, k]^H
                self._update_triangle(columns[start:], panel, [_Block(0, 0, width)], i1 - start)
                # L[k+1, k+1] L[k+1, k+1]^H = W[k+1, k+1]
                self._arrays.cholesky(diagonal, self.panel_info(k + 1))
                self.send_header(k + 1, near=False)
            else:
                # W[i, k+1] -= L[i, k] L[k+1, k]^H
                left = panel[i0 - start : i1 - start]
                self._arrays.gemm(-1, left, right, 1, columns[i0:i1], conj=(False, True))
            if not self.has_failed(k + 1):
                # L[i, k+1] = W[i, k+1] L[k+1, k+1]^-H
                self._arrays.solve_factored(diagonal, columns[max(i0, following.stop) : i1].T, conj=True)
            self.panels.send(k + 1, i0, i1)
        self.send_header(k + 1, near=True)

    def has_failed(self, k: int) -> bool:
        """Whether the host knows already that the panel is not positive definite."""
        return self._arrays.traits.blocking and bool(self.panel_info(k)[0])

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
        # C[i, j] -= L[i, k] L[j, k]^H   (i below the first half of the columns j)
        right = panel[top : top + end - left].T
        self._arrays.gemm(-1, panel[row:stop], right, 1, c[row:stop, left:end], conj=(False, True))


def _is_triangle(blocks: list[_Block]) -> bool:
    """Whether the rows of these block columns are neighbours too.

    >>> _is_triangle([_Block(4, 0, 2), _Block(6, 2, 3)]), _is_triangle([_Block(4, 0, 2), _Block(8, 2, 2)])
    (True, False)
    """
    row, column, _ = blocks[0]
    return all(block.row - row == block.column - column for block in blocks)
