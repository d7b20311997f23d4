"""Executor of solves with a factor that stays on its P x Q grid: X := op(T)^-1 X for one triangle T after the other.

Step k with T, on rank (r, c):

    X[k] = T[k, k]^-1 X[k]                           (on the process row of T[k, k]; then down the process column)
    X[i] -= T[i, k] X[k]                             (for the rows i after k, in the order of the solve)

Step k with op(T) = T^T or T^H, for the rows i before k in the order of the solve:

    Y = op(T[i, k]) X[i]                             (of the rows of this rank; then to the process row of T[k, k])
    X[k] = op(T[k, k])^-1 (X[k] - sum of Y)

Panels T[:, k] travel along process rows, one panel ahead of the solve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pblas.factor.grid_blocks import TAG_PARTS, TAG_RIGHT, Chain
from pblas.factor.grid_cholesky_plan import GridCholeskyPlan
from pblas.factor.grid_left_panels import LeftPanels
from pblas.factor.with_factor_run import RunWithFactor, SubstitutionOperands

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.grid_substitution_plan import GridSubstitutionPlan
    from pblas.redistribution.transfer import SourceMatrix


class TrianglePanels(LeftPanels):
    """Brings panels of triangles, which do not change, to this rank; k counts the panels of all triangles."""

    def __init__(self, plan: GridSubstitutionPlan, source: SourceMatrix) -> None:
        why = "the same panels"
        super().__init__(GridCholeskyPlan(plan.w, plan.w, why, plan.dtype, plan.nprocs, plan.transport), source)
        self.steps = plan.steps
        self._steps = [step.panel for step in self.steps]
        self._columns = plan.x.columns
        self.row, self.column = self._row, self._column

    def header(self, k: int) -> Array | None:
        return None  # all panels are there

    def is_reader(self, k: int, c: int) -> bool:
        """Whether the process column has columns of X, if this process row has rows of the panel."""
        return self.rows_from(k, self._row) > 0 and self._columns.count(c) > 0

    def rows_of(self, k: int, r: int) -> tuple[int, int]:
        """Local rows (start, stop) of a process row that are in the triangle."""
        start, stop = (self._w.rows.local_start(i, r) for i in self.steps[k][1:3])
        return start, stop

    def _is_read(self, k: int) -> bool:
        return True  # by all ranks of the ring

    def column_of(self, k: int) -> list[int]:
        """The ranks of this process column that have rows of panel k, from that of the diagonal block on."""
        (row, _), nprow = self._plan.position(self._steps[k]), self._w.grid.nprow
        rows = [(row + x) % nprow for x in range(nprow)]
        return [self.at(r, self._column) for r in rows if self.rows_from(k, r)]

    def is_mine(self, k: int) -> bool:
        """Whether this rank has rows of panel k."""
        return self._plan.position(self._steps[k])[1] == self._column and self.rows_from(k, self._row) > 0

    def pass_down(self, k: int, block: Array) -> None:
        """Send X[k] down the process column from its first rank, or receive it there, and pass it on."""
        ring, travel, channel = self.column_of(k), self._travels[k], self._backend.channel
        i = ring.index(self._rank)
        before, after = ring[i - 1] if i else None, ring[i + 1] if i + 1 < len(ring) else None
        chain = travel.on_right = Chain(channel, block.T, before, after, TAG_RIGHT)
        if before is None:
            chain.done()  # it leaves after the solve
        self.wait(chain.done, k)

    def sum_up(self, k: int, y: Array | None, x_k: Array) -> None:
        """X[k] -= Y of all ranks of the process column, on that of the diagonal block."""
        top, *others = self.column_of(k)
        travel, channel = self._travels[k], self._backend.channel
        if top != self._rank:
            assert y is not None, "this rank has rows of the panel"
            travel.sending.append(channel.send(y, top, TAG_PARTS))
            return
        parts = [self.buffer(f"part {i}", k, *x_k.shape) for i in range(len(others))]
        arriving = [channel.receive(part, rank, TAG_PARTS) for part, rank in zip(parts, others, strict=True)]
        if y is not None:
            self._arrays.add_scaled(-1, y, 1, x_k)
        for part, transfer in zip(parts, arriving, strict=True):
            self.wait(transfer.done, k)
            self._arrays.add_scaled(-1, part, 1, x_k)


class RunGridSubstitution(RunWithFactor[SubstitutionOperands]):
    """Runs a GridSubstitutionPlan on one rank."""

    def __init__(self, plan: GridSubstitutionPlan, backend: HostRanks, dtype: Dtype) -> None:
        super().__init__(plan, backend, dtype)
        self.peers_read = plan.stays  # peers read T until the closing agreement, or until X leaves
        self._triangles = TrianglePanels(plan, self._source)

    @property
    def workspace_nbytes(self) -> int:
        return super().workspace_nbytes + self._triangles.workspace_nbytes

    def fill(self, x: SubstitutionOperands, columns: Array) -> None:
        raise AssertionError("there is a B")

    def apply(self, x: SubstitutionOperands, columns: Array) -> None:
        """X := op(A)^-1 X."""
        panels = self._triangles
        if panels.row < 0 or not panels.steps:
            return
        panels.begin(0)
        self._send(0)
        for k in range(len(panels.steps)):
            if k + 1 < len(panels.steps):
                panels.begin(k + 1)
            t = panels.left(k) if columns.shape[1] and panels.rows_from(k, panels.row) else None
            if k + 1 < len(panels.steps):  # lookahead: it travels while this one is used
                self._send(k + 1)
            if t is not None:
                self._solve(k, t, columns)
            if x.progress is not None and k + 1 < len(panels.steps):
                x.progress((k + 1) / len(panels.steps))
        panels.end()

    def _send(self, k: int) -> None:
        if self._triangles.is_mine(k):
            self._triangles.send(k)

    def _solve(self, k: int, t: Array, columns: Array) -> None:
        """Step k, with this rank's rows of panel k."""
        panels, arrays = self._triangles, self._arrays
        (panel, *_, triangle), (start, stop) = panels.steps[k], panels.rows_of(k, panels.row)
        assert triangle is not None, "of a solve"
        uplo, trans, unit = triangle
        x, width = columns[start:stop], panel.width
        is_top = panels.column_of(k)[0] == self._rank
        # the rows of the diagonal block, which come first in a lower triangle and last in an upper one
        diagonal = slice(0, width) if uplo == "L" else slice(len(t) - width, len(t))
        rest = slice(0, len(t))
        if is_top:
            rest = slice(width, len(t)) if uplo == "L" else slice(0, len(t) - width)
        t_ik, x_i = t[rest], x[rest]
        if trans == "N":
            x_k = x[diagonal] if is_top else panels.buffer("X", k, width, x.shape[1])
            if is_top:
                # X[k] = T[k, k]^-1 X[k]
                arrays.trsm(t[diagonal], x_k, uplo=uplo, unit=unit)
            panels.pass_down(k, x_k)
            if x_i.size:
                # X[i] -= T[i, k] X[k]
                arrays.gemm(-1, t_ik, x_k, 1, x_i)
        else:
            conj, y = trans == "C", None
            if x_i.size:
                # Y = op(T[i, k]) X[i]
                y = panels.buffer("Y", k, width, x.shape[1])
                arrays.gemm(1, t_ik.T, x_i, 0, y, conj=(conj, False))
            panels.sum_up(k, y, x[diagonal])
            if is_top:
                # X[k] = op(T[k, k])^-1 X[k]
                other: Literal["L", "U"] = "U" if uplo == "L" else "L"
                arrays.trsm(t[diagonal].T, x[diagonal], uplo=other, unit=unit, conj=conj)
