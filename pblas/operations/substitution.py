"""Solves with a factor in block columns: B is redistributed by columns, solved in place, and redistributed back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pblas.execute.factorization.substitution import RunSubstitution, SubstitutionOperands
from pblas.matrices.matrix import DistMatrix
from pblas.operations.planned import PlannedOperation
from pblas.operations.progress import StageReport
from pblas.operations.redistribution import redistribute
from pblas.plans.substitution import SubstitutionPlan

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.plans.substitution import Sweep
    from pblas.runtime.runtime import Runtime


class _Execution(NamedTuple):
    """The arguments of one execution.

    Args:
        verb: name of the call (global).
        w: the factor (global).
        out: the right-hand sides, which become the solution (global).
        pivots: see `SubstitutionOperands` (global).
        backward: see `SubstitutionOperands` (global).
        progress: called with the done part of the work (local).
        starts: see `SubstitutionOperands` (local).
    """

    verb: str
    w: DistMatrix
    out: DistMatrix
    pivots: Array | None
    backward: bool
    progress: StageReport
    starts: Array | None = None


class PlannedSubstitution(PlannedOperation[_Execution]):
    """Planned triangular solves with one factor's layout, kept by the context; arguments are checked before."""

    noun = "solve"
    plan: SubstitutionPlan
    _executor: RunSubstitution | None = None

    def __init__(self, plan: SubstitutionPlan, dtype: np.dtype[Any], runtime: Runtime) -> None:
        super().__init__(plan, None, dtype, runtime)

    def _build(self, runtime: Runtime) -> RunSubstitution:
        return RunSubstitution(self.plan, runtime.backend, self._dtype)

    def _checked(self, runtime: Runtime, execution: _Execution) -> _Execution:
        runtime.backend.arrays.begin()  # the callers have checked the arguments
        return execution

    def _operands(self, execution: _Execution, result: DistMatrix) -> SubstitutionOperands:
        assert self._executor is not None, "it is prepared"
        self._executor.progress = execution.progress
        w, x = execution.w.stored(execution.verb), result.stored(execution.verb)
        return SubstitutionOperands(w, x, execution.pivots, execution.backward, execution.starts)


def substituted(
    verb: str,
    w: DistMatrix,
    b: DistMatrix,
    sweeps: tuple[Sweep, ...],
    pivots: Array | None,
    *,
    backward: bool = False,
    progress: StageReport = None,
) -> DistMatrix:
    """**Collective.** The solution for all columns of B, in columns over all ranks; arguments are checked.

    Args:
        verb: name of the call (global).
        w: the factor (global).
        b: the right-hand sides (global).
        sweeps: the triangular solves, in order (global).
        pivots: exchanges of rows, from 1; None for none (global).
        backward: undo the exchanges after the solves, instead of making them before (global).
        progress: called with the done part of the work (local).
    """
    plan = _plan(w, b.desc, sweeps)
    planned = _planned(verb, plan, w)
    x = redistribute(b, plan.x)
    _run(planned, _Execution(verb, w, x, pivots, backward, progress))
    return x


def inverted(
    verb: str,
    w: DistMatrix,
    desc: MatrixDescriptor,
    sweeps: tuple[Sweep, ...],
    pivots: Array | None,
    *,
    progress: StageReport = None,
) -> DistMatrix:
    """**Collective.** A^-1, in columns over all ranks, from a factor of A, whose first sweep is that with L.

    The columns of the identity, whose rows have been exchanged, begin with zeros, as does their solution with L. On
    CPUs each rank sorts its columns by the number of these zeros, so that it computes with the others only: 1/3 of the
    operations of this sweep, as LAPACK's xGETRI needs.

    Args:
        verb: name of the call (global).
        w: the factor (global).
        desc: distribution of A (global).
        sweeps: the triangular solves, in order (global).
        pivots: exchanges of rows, from 1; None for none (global).
        progress: called with the done part of the work (local).
    """
    runtime = w.runtime
    plan = _plan(w, desc, sweeps, sorts=not runtime.backend.gpus)
    planned = _planned(verb, plan, w)
    if not plan.sorts:
        x = identity(verb, plan.x, w)
        _run(planned, _Execution(verb, w, x, pivots, False, progress))
        return x
    starts = first_rows(w.shape[0], pivots)[_columns(plan.x, runtime.rank)]
    order = np.argsort(starts)
    x = identity(verb, plan.x, w, starts[order])
    _run(planned, _Execution(verb, w, x, None, False, progress, starts[order]))
    with runtime.local_step(verb):
        _move_columns(runtime.backend.arrays, x.stored(verb), np.argsort(order))
    return x


def first_rows(n: int, pivots: Array | None) -> Array:
    """Of each column of the identity, the row of its 1 after exchanges of rows.

    Args:
        n: order of the identity (global).
        pivots: row i is exchanged with row pivots[i], from 1; None for no exchanges (global).

    >>> first_rows(3, np.array([3, 3, 3])).tolist()  # the rows are e_2, e_0, e_1
    [1, 2, 0]
    """
    rows = list(range(n))
    for i, pivot in enumerate(() if pivots is None else pivots.tolist()):
        rows[i], rows[pivot - 1] = rows[pivot - 1], rows[i]
    return np.argsort(rows)


def identity(verb: str, desc: MatrixDescriptor, like: DistMatrix, rows: Array | None = None) -> DistMatrix:
    """**Collective.** The identity, with whole columns on each rank, of the dtype of another matrix.

    Args:
        verb: name of the call (global).
        desc: layout of n x n elements by columns (global).
        like: the other matrix (global).
        rows: instead of those of the identity, the rows of the ones of this rank's columns (local).
    """
    runtime = like.runtime
    nelements = None if desc.lld is None else desc.lld * desc.columns.max_count
    x = DistMatrix(desc, runtime.empty(runtime.place(desc, like.dtype, nelements)), runtime)
    with runtime.local_step(verb):
        local, rows = x.stored(verb), _columns(desc, runtime.rank) if rows is None else rows
        runtime.backend.clear(local)
        runtime.backend.arrays.fill(local, rows, np.arange(len(rows)), 1)
    return x


def _plan(w: DistMatrix, desc: MatrixDescriptor, sweeps: tuple[Sweep, ...], *, sorts: bool = False) -> SubstitutionPlan:
    """The plan for right-hand sides, or an inverse, in the layout `desc`."""
    runtime = w.runtime
    options = (w.desc, desc.without_lld, sweeps, w.dtype.name, runtime.nprocs)
    return SubstitutionPlan(*options, runtime.topology.transport(runtime.nprocs), sorts)


def _planned(verb: str, plan: SubstitutionPlan, w: DistMatrix) -> PlannedSubstitution:
    """**Collective.** The planned solve, which the context keeps."""
    runtime = w.runtime

    def make() -> PlannedSubstitution:
        with runtime.building(verb):
            planned = PlannedSubstitution(plan, w.dtype, runtime)
        runtime.agree(f"{verb}: workspace", {})
        return planned

    planned: PlannedSubstitution = runtime.plans.get(plan, make)
    return planned


def _run(planned: PlannedSubstitution, execution: _Execution) -> None:
    """**Collective.** Solve, and report the end."""
    planned.run(execution)
    if execution.progress is not None:
        execution.progress(1.0)


def _columns(desc: MatrixDescriptor, rank: int) -> Array:
    """The global columns of a rank, in the order of its local ones."""
    return np.array([j for ends in desc.global_ranges(rank)[1] for j in range(*ends)], np.intp)


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
    arrays.settle()
