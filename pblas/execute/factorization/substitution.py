"""Executor of a solve with a factor in block columns: X := op(T)^-1 X for one triangle T after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from pblas.execute.factorization.block_columns import BlockColumns, Part
from pblas.execute.redistribution.transfer import SourceMatrix
from pblas.layouts.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.plans.factorization import Panel
    from pblas.plans.substitution import SubstitutionPlan, Sweep


class SubstitutionOperands(NamedTuple):
    """Local arrays of one execution.

    Args:
        w: the factor (local).
        x: B, and then X; only this rank uses it (local).
        pivots: exchanges of rows, in LU, as `RunLu.pivots` (global).
        backward: undo the exchanges after the solves, instead of making them before (global).
        starts: if the plan sorts, the rows of the first elements of the columns of X that are not 0, ascending (local).
    """

    w: Array
    x: Array
    pivots: Array | None
    backward: bool
    starts: Array | None = None


class RunSubstitution:
    """Runs a SubstitutionPlan on one rank.

    Args:
        plan: what to run (global).
        backend: ranks, memory and messages (global).
        dtype: of the matrices (global).
    """

    lends = True
    """Peers read this rank's panels until the closing agreement (global)."""

    def __init__(self, plan: SubstitutionPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        self._arrays, self._home = backend.arrays, SourceMatrix(backend, Placement.of(plan.w), dtype, "F")
        self._rank, n = backend.rank, plan.w.m
        readers = [rank for rank in range(plan.nprocs) if plan.needs(rank)]
        self._steps = list(plan.parts())
        self._columns = BlockColumns(
            self._home,
            [
                Part(panel, *sweep.rows(panel, n), [rank for rank in readers if rank != panel.owner])
                for sweep, panel in self._steps
            ],
        )
        self._solves = plan.needs(self._rank)
        self.progress: Callable[[float], None] | None = None
        """Called with the done part of the work after each panel but the last; None for no calls (local)."""

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's workspace."""
        return self._columns.workspace_nbytes

    def publish(self, x: SubstitutionOperands) -> bool:
        """Publish the location of the factor, which is in a window if ranks share memory: false."""
        return self._home.publish(x.w)

    def prepare(self, *, scratch: bool) -> bool:
        """Nothing is staged: the factor was made by the context."""
        assert not scratch, "the factor is in a window"
        return False

    def run(self, x: SubstitutionOperands) -> None:
        """X := op(A)^-1 X."""
        if x.pivots is not None and not x.backward:
            self._arrays.swap_rows(x.x, x.pivots)
        self._home.backend.sync()
        for s, (_, panel) in enumerate(self._steps):
            if panel.owner == self._rank:
                self._columns.offer(s)
        if self._solves:
            self._columns.request(0)
            for s, (sweep, panel) in enumerate(self._steps):
                part = self._columns.fetch(s)
                with self._arrays.on_side_lane():
                    arrived = self._arrays.mark()
                self._arrays.follow(arrived)
                self._columns.request(s + 1)
                is_first = sweep is self._steps[0][0]
                count = x.x.shape[1] if x.starts is None or not is_first else int(np.searchsorted(x.starts, panel.stop))
                self._solve(sweep, panel, part, x.x[:, :count])  # the other columns are 0 down to this panel
                if self.progress is not None and s + 1 < len(self._steps):
                    self.progress((s + 1) / len(self._steps))
        self._columns.sent()
        self._home.release()
        if x.pivots is not None and x.backward:
            self._arrays.swap_rows(x.x, x.pivots, backward=True)

    def _solve(self, sweep: Sweep, panel: Panel, part: Array, x: Array) -> None:
        """The rows of X that belong to a panel are solved; with trans = "N" the rows after them are updated.

        Args:
            sweep: the triangle and op (global).
            panel: k (global).
            part: the rows of panel k in the triangle (local).
            x: this rank's columns of X (local).
        """
        block = x[panel.start : panel.stop]
        if sweep.uplo == "L":
            diagonal, beside, rest = part[: panel.width], part[panel.width :], x[panel.stop :]
        else:
            diagonal, beside, rest = part[panel.start :], part[: panel.start], x[: panel.start]
        if sweep.trans != "N":  # X[k] -= op(T[i, k]) X[i]
            self._arrays.gemm(-1, beside.T, rest, 1, block, conj=(sweep.trans == "C", False))
        # X[k] = op(T[k, k])^-1 X[k]
        if sweep.trans == "N":
            self._arrays.trsm(diagonal, block, uplo=sweep.uplo, unit=sweep.unit)
        else:
            uplo: Literal["L", "U"] = "U" if sweep.uplo == "L" else "L"
            self._arrays.trsm(diagonal.T, block, uplo=uplo, unit=sweep.unit, conj=sweep.trans == "C")
        if sweep.trans == "N":  # X[i] -= T[i, k] X[k]
            self._arrays.gemm(-1, beside, block, 1, rest)
