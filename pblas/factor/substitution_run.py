"""Executor of a solve with a factor in block columns: X := op(T)^-1 X for one triangle T after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pblas.factor.block_columns import Part
from pblas.factor.with_factor_run import FactorOperands, RunWithFactor, global_indices

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.factorization_plan import Panel
    from pblas.factor.substitution_plan import SubstitutionPlan, Sweep


@dataclass(frozen=True, slots=True)
class SubstitutionOperands(FactorOperands):
    """Local arrays of one execution.

    Args:
        array: B, if all ranks have its elements (global).
        pivots: exchanges of rows, in LU, as `RunLu.pivots` (global).
        backward: undo the exchanges after the solves, instead of making them before (global).
    """

    array: Array | None
    pivots: Array | None
    backward: bool


class RunSubstitution(RunWithFactor[SubstitutionOperands]):
    """Runs a SubstitutionPlan on one rank.

    The columns of the identity, whose rows have been exchanged, begin with zeros, as does their solution with L. On
    CPUs each rank sorts its columns by the number of these zeros, so that it computes with the others only: 1/3 of the
    operations of this sweep, as LAPACK's xGETRI needs.
    """

    def __init__(self, plan: SubstitutionPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        n, readers = plan.w.m, [rank for rank in range(plan.nprocs) if plan.needs(rank)]
        self._steps, self._solves, self._sorts = list(plan.parts()), plan.needs(backend.rank), plan.begins == "sorted"
        parts = [
            Part(panel, *sweep.rows(panel, n), [rank for rank in readers if rank != panel.owner])
            for sweep, panel in self._steps
        ]
        super().__init__(plan, backend, dtype, parts)
        self._mine = global_indices(plan.x, backend.rank)[1]
        """The global columns of X that this rank has (local)."""
        self._order = self._starts = np.arange(0)
        """The order of sorted columns, and the rows of their first elements that are not 0, ascending (local)."""

    def begin(self, x: SubstitutionOperands, columns: Array) -> None:
        """X := B, or the identity, if it is sorted with its rows exchanged."""
        if x.array is not None:
            self._backend.copy(x.array[:, self._mine], columns)
            return
        rows = self._mine
        if self._sorts:
            starts = first_rows(len(columns), x.pivots)[rows]
            self._order = np.argsort(starts)
            rows = self._starts = starts[self._order]
        self._backend.clear(columns)
        self._arrays.fill(columns, rows, np.arange(len(rows)), 1)

    def change(self, x: SubstitutionOperands, columns: Array) -> None:
        """X := op(A)^-1 X."""
        pivots = None if self._sorts else x.pivots  # P B, unless the identity's columns begin as those of P
        if pivots is not None and not x.backward:
            self._arrays.swap_rows(columns, pivots)
        self._backend.sync()
        for s, (_, panel) in enumerate(self._steps):
            if panel.owner == self._rank:
                self._columns.offer(s)
        if self._solves:
            self._columns.request(0)
            for s, (sweep, panel) in enumerate(self._steps):
                part, count = self.fetch(s), columns.shape[1]
                if self._sorts and sweep is self._steps[0][0]:
                    count = int(np.searchsorted(self._starts, panel.stop))  # the others are 0 down to this panel
                self._solve(sweep, panel, part, columns[:, :count])
                if x.progress is not None and s + 1 < len(self._steps):
                    x.progress((s + 1) / len(self._steps))
        if pivots is not None and x.backward:
            self._arrays.swap_rows(columns, pivots, backward=True)
        if self._sorts:
            _move_columns(self._arrays, columns, np.argsort(self._order))

    def _solve(self, sweep: Sweep, panel: Panel, part: Array, x: Array) -> None:
        """The rows of X that belong to a panel are solved; with trans = "N" the rows after them are updated."""
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


def first_rows(n: int, pivots: Array | None) -> Array:
    """Of each column of the identity, the row of its 1 after exchanges of rows.

    >>> first_rows(3, np.array([3, 3, 3])).tolist()  # the rows are e_2, e_0, e_1
    [1, 2, 0]
    """
    rows = list(range(n))
    for i, pivot in enumerate(() if pivots is None else pivots.tolist()):
        rows[i], rows[pivot - 1] = rows[pivot - 1], rows[i]
    return np.argsort(rows)


def _move_columns(arrays: Any, x: Array, sources: Array) -> None:
    """Column sources[j] of X becomes column j, in place and by the memory of one column (local)."""
    arrays.begin()
    kept, left = arrays.like(x[:, :1], x.dtype), dict(enumerate(sources.tolist()))
    while left:
        start, source = left.popitem()
        if source != start:
            place = start
            arrays.assign(x[:, place : place + 1], kept)
            while source != start:  # along a cycle
                arrays.assign(x[:, source : source + 1], x[:, place : place + 1])
                place, source = source, left.pop(source)
            arrays.assign(kept, x[:, place : place + 1])
    arrays.synchronize()
