"""redistribute and plan_redistribution: copy a matrix to another distribution, with scaling and addition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pblas import errors
from pblas.core.checks import check_overlap, enough_ranks, matrix_remedy
from pblas.core.options import Trans, Uplo
from pblas.execute.redistribution.redistribution import RedistributionOperands, RunRedistribution
from pblas.execute.redistribution.scaling import Scaling
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.operations.arguments.redistribution import RedistributionArguments, RedistributionRequest
from pblas.operations.planned import PlannedOperation
from pblas.plans.plan import Topology
from pblas.plans.redistribution import RedistributionPlan
from pblas.runtime.open_contexts import fail_without_context

if TYPE_CHECKING:
    from pblas.backends.dtypes import Scalar
    from pblas.runtime.runtime import Place, Runtime


class _Execution(NamedTuple):
    """The arguments of one execution: its matrices, and scalars that may differ from the planned ones.

    Args:
        spec: checked arguments, with the scalars and the leading dimension of B of this execution (global).
        a: A (global).
        out: B; None for a new matrix (global).
        place: memory of this rank's part of a new B; None for the planned one (local).
    """

    spec: RedistributionArguments
    a: DistMatrix
    out: DistMatrix | None
    place: Place | None = None


class PlannedRedistribution(PlannedOperation[_Execution]):
    """A planned redistribution: the plan, its buffers, and one call that runs it. Made by `plan_redistribution`.

    Usable as a `with` block; `close` drops the buffers, as does dropping the object.
    """

    noun = "redistribution"
    plan: RedistributionPlan
    _executor: RunRedistribution | None = None

    def __init__(
        self,
        spec: RedistributionArguments,
        plan: RedistributionPlan,
        runtime: Runtime | None,
        nelements: int | None = None,
    ) -> None:
        self._spec = spec
        super().__init__(plan, plan.b, spec.dtype, runtime, nelements)

    def execute(self, a: DistMatrix, *, out: DistMatrix | None = None) -> DistMatrix:
        """**Collective.** B = alpha op(A) + beta B with matrices like the planned ones.

        Args:
            a: A, with the descriptor and the dtype that were planned (global).
            out: B, needed if beta is not 0; None for a new matrix, which is 0 outside the trapezoid (global).

        Returns:
            B. The caller may overwrite a when the call has returned.

        Raises:
            ArgumentError: a plan made from descriptors only; matrices that overlap.
            DescriptorError, DTypeError: a matrix with another descriptor or dtype than the planned one, on any rank.
            ContextError: the context or the plan is closed.
        """
        result: DistMatrix = self.run(_Execution(self._spec, a, out))
        return result

    def execute_with(
        self, spec: RedistributionArguments, nelements: int, a: DistMatrix, out: DistMatrix | None
    ) -> DistMatrix:
        """**Collective.** `execute` with scalars and an LLD that may differ from the planned ones.

        Afterwards it frees the memory for messages and copies, or all memory if the call fails.
        """
        runtime = self._runtime
        assert runtime is not None, "`redistribute` has matrices"
        try:
            with runtime.building("redistribute"):
                if self._executor is None:
                    self._prepare(runtime)
                place = None if out is not None else runtime.place(spec.desc_b, spec.dtype, nelements)
            result: DistMatrix = self.run(_Execution(spec, a, out, place))
        except BaseException:
            self.close()
            raise
        if self._executor is not None:
            self._executor.free_buffers()
        return result

    def _build(self, runtime: Runtime) -> RunRedistribution:
        plan, dtype = self.plan, self._spec.dtype
        desc = plan.b if not plan.reads_a else plan.a if plan.trans == "N" else plan.a.T
        return RunRedistribution(
            runtime.backend, plan.source, plan.target, dtype, desc.order, plan.trapezoid, reads_a=plan.reads_a
        )

    def _checked(self, runtime: Runtime, execution: _Execution) -> _Execution:
        execution.spec.check_execution(runtime, execution.a, execution.out)
        runtime.backend.arrays.begin()
        return execution

    def _new_result(self, runtime: Runtime, execution: _Execution) -> DistMatrix:
        result = DistMatrix(execution.spec.desc_b, runtime.empty(execution.place or self._place), runtime)
        if self.plan.trapezoid is not None:
            runtime.backend.clear(result.stored("execute"))
        return result

    def _operands(self, execution: _Execution, result: DistMatrix) -> RedistributionOperands:
        spec = execution.spec
        a = execution.a.stored("execute")
        a = a if spec.trans == "N" else a.T
        return RedistributionOperands(a, result.stored("execute"), Scaling(spec.alpha, spec.beta, spec.conj))


def plan_redistribution(
    a: DistMatrix | MatrixDescriptor,
    desc: MatrixDescriptor | None = None,
    *,
    out: DistMatrix | None = None,
    trans: Trans = "N",
    alpha: Scalar = 1.0,
    beta: Scalar = 0.0,
    uplo: Uplo | None = None,
    diagonal: int = 0,
    dtype: Any = None,
    nprocs: int | None = None,
) -> PlannedRedistribution:
    """Plan B = alpha op(A) + beta B. **Collective** with matrices; with descriptors it needs no MPI.

    Planning checks the arguments and allocates the buffers, so that `execute` has none of that to do.

    Args:
        a: the matrix, or its descriptor (global).
        desc: distribution of a new B (global).
        out: B, instead of `desc` (global).
        trans: as in `redistribute` (global).
        alpha: scalar (global).
        beta: scalar (global).
        uplo: the triangle or trapezoid of B that is written, as in `redistribute`; None for all of B (global).
        diagonal: the diagonal that bounds the trapezoid, as in `redistribute` (global).
        dtype: dtype of the matrices, needed with descriptors (global).
        nprocs: number of ranks, when planning from descriptors; None for the larger grid (global).

    Returns:
        The planned redistribution: `print(r.explain())`, `r.execute(a)`.

    Raises:
        as `redistribute`.

    >>> rows, columns = MatrixDescriptor.row_wise(8, 8, 4), MatrixDescriptor.column_wise(8, 8, 4)
    >>> plan_redistribution(rows, columns, dtype="float64").plan.max_received_nbytes
    96
    """
    call = RedistributionRequest(verb="plan_redistribution", **locals())  # the arguments, and nothing else yet
    if isinstance(a, MatrixDescriptor) and out is None:
        spec = RedistributionArguments.checked(call)
        ranks = enough_ranks(call.verb, nprocs, (spec.desc_a, spec.desc_b))
        return PlannedRedistribution(spec, spec.plan(ranks, Topology(ranks, shared=True)), None)
    runtime = _runtime(call)
    with runtime.call(call.verb):
        return _planned(call, runtime, *_agreed(call, runtime))


def redistribute(
    a: DistMatrix,
    desc: MatrixDescriptor | None = None,
    *,
    out: DistMatrix | None = None,
    trans: Trans = "N",
    alpha: Scalar = 1.0,
    beta: Scalar = 0.0,
    uplo: Uplo | None = None,
    diagonal: int = 0,
) -> DistMatrix:
    """**Collective.** B = alpha op(A) + beta B for any two layouts, grids and submatrices.

    Every rank receives each element that it needs and lacks once, from a rank that has it. If `out` is a view, elements
    of its matrix outside the view are not touched, and neither are elements outside the triangle.

    Args:
        a: m x n matrix, or n x m with trans other than "N"; it may be a view, as A[i0:i1, j0:j1] or A.H (global).
        desc: distribution of B as a new m x n matrix; None if `out` is given (global).
        out: B, an m x n matrix that shares no memory with a; None for a new matrix (global).
        trans: "N", "T" or "C" (conjugate transposed; the same as "T" for real matrices) (global).
        alpha: scalar; with alpha = 0 A is not read (global).
        beta: scalar; with beta = 0 B is not read (global).
        uplo: None for all elements of B; "U": those with j - i >= diagonal; "L": those with j - i <= diagonal
            (global).
        diagonal: the diagonal that bounds the trapezoid, as k of numpy.triu: 0 for the main one (global).

    Returns:
        B: `out` itself, or a new matrix, which is 0 outside the trapezoid. When the call returns, a may be
        overwritten.

    Raises:
        ArgumentError, DescriptorError, DTypeError, LayoutError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.

    Source: PBLAS p?geadd, p?tradd, p?tran; ScaLAPACK REDIST p?gemr2d, p?trmr2d.
    """
    call = RedistributionRequest(verb="redistribute", **locals())  # the arguments, and nothing else yet
    runtime = _runtime(call)
    with runtime.call(call.verb):
        spec, plan, nelements = _agreed(call, runtime)
        planned = runtime.plans.get(plan, lambda: _planned(call, runtime, spec, plan, nelements))
        return planned.execute_with(spec, nelements, a, out)


def _planned(
    call: RedistributionRequest,
    runtime: Runtime,
    spec: RedistributionArguments,
    plan: RedistributionPlan,
    nelements: int,
) -> PlannedRedistribution:
    """**Collective.** The planned redistribution of an agreed call."""
    with runtime.building(call.verb):
        planned = PlannedRedistribution(spec, plan, runtime, nelements)
    runtime.agree(f"{call.verb}: workspace", {})
    return planned


def _runtime(call: RedistributionRequest) -> Runtime:
    """The runtime of the matrices of a call; without any, an error as `fail_without_context` raises it (local)."""
    if not call.matrices:
        got = type(call.a).__name__
        error = errors.ArgumentError(f"{call.verb}: a must be a DistMatrix, got {got}; {matrix_remedy(call.a)}")
        fail_without_context(call.verb, error)
    return call.matrices[0].runtime


def _agreed(call: RedistributionRequest, runtime: Runtime) -> tuple[RedistributionArguments, RedistributionPlan, int]:
    """**Collective.** The checked and agreed arguments of a call, its plan, and the elements of B."""
    verb, matrices = call.verb, call.matrices
    with runtime.local_step(verb):
        if any(x.runtime is not runtime for x in matrices):
            raise errors.ArgumentError(f"{verb}: matrices of different contexts; make both with one context")
        spec = RedistributionArguments.checked(call)
        prepared = _prepared(spec, verb, runtime)
        if call.out is not None:
            check_overlap(verb, call.a, None, None, call.out)
        arguments = spec.arguments()
    nelements = runtime.agree(verb, arguments, None, (prepared.nelements,))[0]
    return spec, prepared.plan, nelements


class _Prepared:
    """The plan of a redistribution, and the elements of this rank's part of B. It serves any number of calls.

    Args:
        plan: of the redistribution (global).
        nelements: `Runtime.nelements` of B (local).
    """

    def __init__(self, plan: RedistributionPlan, nelements: int) -> None:
        self.plan: RedistributionPlan = plan
        self.nelements: int = nelements

    def close(self) -> None:
        """Nothing: it has no memory (local)."""


def _prepared(spec: RedistributionArguments, verb: str, runtime: Runtime) -> _Prepared:
    """The redistribution of calls like this one (local).

    Raises:
        LayoutError: B needs too many ranks, or its leading dimension is too small.
    """

    def make() -> _Prepared:
        runtime.check_place(verb, spec.desc_b, "B")
        return _Prepared(spec.plan(runtime.nprocs, runtime.topology), runtime.nelements(spec.desc_b))

    descs = spec.desc_a, spec.desc_a.lld, spec.desc_b, spec.desc_b.lld
    options = spec.dtype, spec.trans, spec.trapezoid, spec.alpha != 0, runtime.transport
    return runtime.prepared.get(("redistribute", *descs, *options), make)
