"""Solves with a factor in block columns: B is redistributed by columns, solved in place, and redistributed back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pblas.core.call import step
from pblas.core.operation import Bound, Operation
from pblas.execute.factorization.substitution import RunSubstitution, SubstitutionOperands
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.operations.progress import StageReport
from pblas.operations.redistribution import redistributed
from pblas.plans.substitution import SubstitutionPlan

if TYPE_CHECKING:
    from pblas.backends.device import Device
    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.plans.plan import Topology
    from pblas.plans.substitution import Sweep
    from pblas.runtime.runtime import Runtime


@dataclass(frozen=True, eq=False)
class Substitution(Operation[DistMatrix]):
    """X := the solution of triangular systems with a factor, in place; the arguments are checked before.

    Args:
        chosen: the plan (global).
        dtype: of the matrices (global).
    """

    noun: ClassVar[str] = "solve"
    keeps_workspace: ClassVar[bool] = True

    chosen: SubstitutionPlan
    dtype: np.dtype[Any]

    @property
    def result(self) -> tuple[MatrixDescriptor, np.dtype[Any]]:
        return self.chosen.x, self.dtype

    def plan(self, nprocs: int, topology: Topology) -> SubstitutionPlan:
        return self.chosen

    def executor(self, plan: SubstitutionPlan, backend: HostRanks) -> RunSubstitution:
        return RunSubstitution(plan, backend, self.dtype)

    def arrays(
        self, verb: str, runtime: Runtime, executor: RunSubstitution, bound: Bound[DistMatrix], result: DistMatrix
    ) -> SubstitutionOperands:
        pivots, backward, starts, executor.progress = bound.local
        w, x = bound.reads["W"].stored(verb), result.stored(verb)
        return SubstitutionOperands(w, x, pivots, backward, starts)


def substituted(
    verb: str,
    w: DistMatrix,
    b: DistMatrix | Array,
    sweeps: tuple[Sweep, ...],
    pivots: Array | None,
    *,
    backward: bool = False,
    progress: StageReport = None,
    agrees: str = "",
) -> DistMatrix:
    """**Collective.** The solution for all columns of B, in columns over all ranks; arguments are checked.

    Args:
        verb: name of the call (global).
        w: the factor (global).
        b: the right-hand sides: a matrix, or an array that is equal on all ranks (global).
        sweeps: the triangular solves, in order (global).
        pivots: exchanges of rows, from 1; None for none (global).
        backward: undo the exchanges after the solves, instead of making them before (global).
        progress: called with the done part of the work (local).
        agrees: see `core.call.step` (global).
    """
    if isinstance(b, DistMatrix):
        plan = _plan(w, b.desc, sweeps)
        x = redistributed(verb, b, plan.x, agrees=agrees)
    else:
        assert not agrees, "the ranks allocate X together"
        n, count = b.shape
        plan = _plan(w, MatrixDescriptor.replicated(n, count, w.runtime.nprocs), sweeps)
        x = _new(plan.x, w)
        with w.runtime.local_step(verb):
            w.runtime.backend.copy(b[:, _columns(plan.x, w.runtime.rank)], x.stored(verb))
    _run(verb, plan, w, x, pivots, progress, backward=backward)
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
    if not plan.sorts:
        x = identity(verb, plan.x, w)
        _run(verb, plan, w, x, pivots, progress)
        return x
    starts = first_rows(w.shape[0], pivots)[_columns(plan.x, runtime.rank)]
    order = np.argsort(starts)
    x = identity(verb, plan.x, w, starts[order])
    _run(verb, plan, w, x, None, progress, starts=starts[order])
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
    x = _new(desc, like)
    with runtime.local_step(verb):
        local, rows = x.stored(verb), _columns(desc, runtime.rank) if rows is None else rows
        runtime.backend.clear(local)
        runtime.backend.arrays.fill(local, rows, np.arange(len(rows)), 1)
    return x


def _new(desc: MatrixDescriptor, like: DistMatrix) -> DistMatrix:
    """**Collective.** A matrix of the dtype of another one, not initialized."""
    runtime = like.runtime
    return DistMatrix(desc, runtime.empty(runtime.place(desc, like.dtype, desc.max_stored_nelements)), runtime)


def _plan(w: DistMatrix, desc: MatrixDescriptor, sweeps: tuple[Sweep, ...], *, sorts: bool = False) -> SubstitutionPlan:
    """The plan for right-hand sides, or an inverse, in the layout `desc`."""
    runtime = w.runtime
    options = (w.desc, desc.without_lld, sweeps, w.dtype.name, runtime.nprocs)
    return SubstitutionPlan(*options, runtime.topology.transport(runtime.nprocs), sorts)


def _run(
    verb: str,
    plan: SubstitutionPlan,
    w: DistMatrix,
    x: DistMatrix,
    pivots: Array | None,
    progress: StageReport,
    *,
    backward: bool = False,
    starts: Array | None = None,
) -> None:
    """**Collective.** Solve, and report the end."""
    local = pivots, backward, starts, progress
    form = plan, w.dtype
    step(verb, w.runtime, lambda: Bound(Substitution, form, {}, {"W": w}, x, local=local))
    if progress is not None:
        progress(1.0)


def _columns(desc: MatrixDescriptor, rank: int) -> Array:
    """The global columns of a rank, in the order of its local ones."""
    return np.array([j for ends in desc.global_ranges(rank)[1] for j in range(*ends)], np.intp)


def _move_columns(arrays: Device, x: Array, sources: Array) -> None:
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
