"""Solves with a factor in block columns: B is redistributed by columns, solved in place, and redistributed back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pblas.execute.factorization.substitution import RunSubstitution, SubstitutionOperands
from pblas.matrices.matrix import DistMatrix
from pblas.operations.planned import PlannedOperation
from pblas.operations.progress import StageReport
from pblas.operations.redistribution import redistribute
from pblas.operations.stacking import without_lld
from pblas.plans.substitution import SubstitutionPlan, Sweep

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.layouts.descriptor import MatrixDescriptor
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
    """

    verb: str
    w: DistMatrix
    out: DistMatrix
    pivots: Array | None
    backward: bool
    progress: StageReport


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
        return SubstitutionOperands(w, x, execution.pivots, execution.backward)


def substituted(
    verb: str,
    w: DistMatrix,
    b: DistMatrix | MatrixDescriptor,
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
        b: the right-hand sides; a descriptor of n x n for the columns of the identity (global).
        sweeps: the triangular solves, in order (global).
        pivots: exchanges of rows, from 1; None for none (global).
        backward: undo the exchanges after the solves, instead of making them before (global).
        progress: called with the done part of the work (local).
    """
    runtime = w.runtime
    desc = b.desc if isinstance(b, DistMatrix) else b
    plan = SubstitutionPlan(
        *(w.desc, without_lld(desc), sweeps, w.dtype.name, runtime.nprocs),
        transport=runtime.topology.transport(runtime.nprocs),
    )

    def make() -> PlannedSubstitution:
        with runtime.building(verb):
            planned = PlannedSubstitution(plan, w.dtype, runtime)
        runtime.agree(f"{verb}: workspace", {})
        return planned

    planned = runtime.plans.get(plan, make)
    x = redistribute(b, plan.x) if isinstance(b, DistMatrix) else identity(verb, plan.x, w)
    planned.run(_Execution(verb, w, x, pivots, backward, progress))
    if progress is not None:
        progress(1.0)
    return x


def identity(verb: str, desc: MatrixDescriptor, like: DistMatrix) -> DistMatrix:
    """**Collective.** The identity, with whole columns on each rank, of the dtype of another matrix.

    Args:
        verb: name of the call (global).
        desc: layout of n x n elements by columns (global).
        like: the other matrix (global).
    """
    runtime = like.runtime
    x = DistMatrix(desc, runtime.empty(runtime.place(desc, like.dtype)), runtime)
    with runtime.local_step(verb):
        local, columns = x.stored(verb), [j for ends in desc.global_ranges(runtime.rank)[1] for j in range(*ends)]
        runtime.backend.clear(local)
        runtime.backend.arrays.fill(local, np.array(columns, np.intp), np.arange(len(columns)), 1)
    return x
