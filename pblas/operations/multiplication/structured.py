"""Planned products in which one matrix has a triangle: rank-k updates, and triangular and symmetric matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pblas import errors
from pblas.core.checks import check_context, enough_ranks
from pblas.execute import executor
from pblas.execute.one_dimensional.local_gemm import RunScaling
from pblas.execute.summa.completion import Completion, RunCompleted
from pblas.execute.summa.structured import RunRankUpdate, RunTriangleScaling, RunTriangularProduct
from pblas.matrices.matrix import DistMatrix
from pblas.operations.arguments.structured import StructuredArguments, StructuredRequest
from pblas.operations.multiplication.base import Execution, PlannedMatmul
from pblas.plans.plan import Topology
from pblas.plans.structured import RankUpdate, SymmetricProduct, TriangularProduct
from pblas.runtime.open_contexts import fail_without_context
from pblas.runtime.runtime import spelled
from pblas.simulation.hardware import find_hardware

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.operations.arguments.structured import StructuredPlan
    from pblas.runtime.runtime import Runtime


class PlannedStructured(PlannedMatmul):
    """A planned product with a triangle: the plan, its workspace, and one call that runs it.

    Usable as a `with` block; `close` drops the workspace, as does dropping the object.
    """

    def __init__(
        self,
        arguments: StructuredArguments,
        plan: StructuredPlan,
        desc_d: MatrixDescriptor,
        runtime: Runtime | None,
        nelements: int | None = None,
    ) -> None:
        self._arguments = arguments
        super().__init__(arguments.product, cast("Any", plan), desc_d, runtime, None, nelements)

    def _build(self, runtime: Runtime) -> Any:
        arguments, spec, backend = self._arguments, self._spec, runtime.backend
        if runtime.topology.transport(runtime.nprocs) not in (self.plan.transport, "push"):
            self.plan = cast("Any", arguments.choose(self.out, runtime.nprocs, runtime.topology))
        plan: Any = self.plan
        orders = spec.orders(plan, self.out)
        if isinstance(plan, RankUpdate):
            if not self._multiplies:
                return RunTriangleScaling(plan, backend, spec.dtype, orders)
            return RunRankUpdate(plan, backend, spec.dtypes, orders)
        if not self._multiplies:
            return RunScaling(backend)
        if isinstance(plan, TriangularProduct):
            return RunTriangularProduct(plan, backend, spec.dtypes, orders)
        assert isinstance(plan, SymmetricProduct), "there are three kinds of plans"
        flips = plan.inner.transposed
        structure, place = (plan.structure.T, plan.matrix.T) if flips else (plan.structure, plan.matrix)
        order = orders.left if plan.is_left else orders.right
        inner: Any = executor(plan.inner, backend, spec.dtypes, orders)
        return RunCompleted(Completion(backend, place, structure, spec.dtype, order), inner, is_left=plan.is_left)

    def _checked(self, runtime: Runtime, execution: Execution) -> Execution:
        a, b = (execution.a, execution.b) if self._arguments.side == "L" else (execution.b, execution.a)
        self._arguments.check_execution(runtime, a, b, execution.c, execution.out, self.out)
        runtime.backend.arrays.begin(execution.stream)
        return execution

    def _new_result(self, runtime: Runtime, execution: Execution) -> DistMatrix:
        result = super()._new_result(runtime, execution)
        if isinstance(self.plan, RankUpdate):
            runtime.backend.clear(result.stored("execute"))
        return result

    def _execute(self, a: Any, b: Any, c: Any, out: Any) -> DistMatrix:
        """**Collective.** Run with A and B in the order of the product."""
        left, right = (a, b) if self._arguments.side == "L" else (b, a)
        result: DistMatrix = self.run(Execution(left, right, c, out))
        return result


class PlannedRankUpdate(PlannedStructured):
    """A planned syrk or herk. Made by `plan_syrk` and `plan_herk`."""

    noun = "rank-k update"

    def execute(  # type: ignore[override]  # other operands
        self, a: DistMatrix, c: DistMatrix | None = None, *, out: DistMatrix | None = None
    ) -> DistMatrix:
        """**Collective.** The triangle of D with matrices like the planned ones.

        Args:
            a: A, with the planned descriptor and dtype (global).
            c: C, with the planned descriptor and dtype; needed if beta is not 0 (global).
            out: matrix whose triangle receives D; may be `c`; None for a new matrix (global).

        Returns:
            D; a new one is 0 outside the triangle. The caller may overwrite a and c when the call has returned.

        Raises:
            as `PlannedMatmul.execute`.
        """
        return self._execute(a, a, c, out)


class PlannedRank2Update(PlannedStructured):
    """A planned syr2k or her2k. Made by `plan_syr2k` and `plan_her2k`."""

    noun = "rank-2k update"

    def execute(  # type: ignore[override]  # other operands
        self, a: DistMatrix, b: DistMatrix, c: DistMatrix | None = None, *, out: DistMatrix | None = None
    ) -> DistMatrix:
        """**Collective.** The triangle of D with matrices like the planned ones.

        Args:
            a: A, with the planned descriptor and dtype (global).
            b: B, with the planned descriptor and dtype (global).
            c: C, with the planned descriptor and dtype; needed if beta is not 0 (global).
            out: matrix whose triangle receives D; may be `c`; None for a new matrix (global).

        Returns:
            D; a new one is 0 outside the triangle. The caller may overwrite a, b and c when the call has returned.

        Raises:
            as `PlannedMatmul.execute`.
        """
        return self._execute(a, b, c, out)


class PlannedSymmetricProduct(PlannedStructured):
    """A planned symm or hemm. Made by `plan_symm` and `plan_hemm`."""

    noun = "symmetric product"

    def execute(  # type: ignore[override]  # other operands
        self, a: DistMatrix, b: DistMatrix, c: DistMatrix | None = None, *, out: DistMatrix | None = None
    ) -> DistMatrix:
        """**Collective.** D = alpha A B + beta C, or alpha B A + beta C, with matrices like the planned ones.

        Args:
            a: A, with the planned descriptor and dtype (global).
            b: B, with the planned descriptor and dtype (global).
            c: C, with the planned descriptor and dtype; needed if beta is not 0 (global).
            out: matrix that receives D; may be `c`; None for a new matrix (global).

        Returns:
            D. The caller may overwrite a, b and c when the call has returned.

        Raises:
            as `PlannedMatmul.execute`.
        """
        return self._execute(a, b, c, out)


class PlannedTriangularProduct(PlannedStructured):
    """A planned trmm. Made by `plan_trmm`."""

    noun = "triangular product"

    def execute(  # type: ignore[override]  # other operands
        self, a: DistMatrix, b: DistMatrix, *, out: DistMatrix | None = None
    ) -> DistMatrix:
        """**Collective.** D = alpha op(A) B, or alpha B op(A), with matrices like the planned ones.

        Args:
            a: A, with the planned descriptor and dtype (global).
            b: B, with the planned descriptor and dtype (global).
            out: matrix that receives D; `b` itself only if that was planned; None for a new matrix (global).

        Returns:
            D. The caller may overwrite a and b when the call has returned.

        Raises:
            as `PlannedMatmul.execute`.
        """
        return self._execute(a, b, None, out)


_PLANNED: dict[str, Callable[..., PlannedStructured]] = {
    "syrk": PlannedRankUpdate,
    "herk": PlannedRankUpdate,
    "syr2k": PlannedRank2Update,
    "her2k": PlannedRank2Update,
    "symm": PlannedSymmetricProduct,
    "hemm": PlannedSymmetricProduct,
    "trmm": PlannedTriangularProduct,
}


def planned_structured(call: StructuredRequest) -> Any:
    """The planned product of a call of a plan_ function. **Collective** with matrices."""
    if call.matrices:
        runtime = call.matrices[0].runtime
        with runtime.call(call.verb):
            return _planned(call, runtime, _agreed(call, runtime))
    arguments = StructuredArguments.checked(call)
    desc_d = arguments.output()
    spec = arguments.product
    ranks = enough_ranks(call.verb, call.nprocs, (spec.op_a, spec.op_b, desc_d))
    hardware = None if call.hardware is None else find_hardware(call.hardware)
    topology = Topology(ranks, shared=True) if hardware is None else hardware.topology
    return _PLANNED[call.routine](arguments, arguments.choose(desc_d, ranks, topology), desc_d, None)


def run_structured(call: StructuredRequest) -> DistMatrix:
    """**Collective.** Plan and execute a call in one."""
    if not call.matrices:
        got = type(call.a).__name__
        error = errors.ArgumentError(f"{call.verb}: a must be a DistMatrix, got {got}; plan_{call.routine} plans")
        fail_without_context(call.verb, error)
    runtime, out = call.matrices[0].runtime, call.out if isinstance(call.out, DistMatrix) else None
    with runtime.call(call.verb):
        agreed = _agreed(call, runtime)
        with runtime.plans.using(agreed.key, lambda: _planned(call, runtime, agreed)) as planned:
            second = call.a if call.routine in ("syrk", "herk") else call.b
            return planned._execute(call.a, second, call.c, out)  # noqa: SLF001 - of this module


class _Agreed(NamedTuple):
    """The checked and agreed arguments of a call with matrices.

    Args:
        arguments: the arguments (global).
        plan: of the product (global).
        desc_d: descriptor of D (global).
        nelements: elements of memory of a new D (global).
        key: equal for calls that can use one planned product (global).
    """

    arguments: StructuredArguments
    plan: StructuredPlan
    desc_d: MatrixDescriptor
    nelements: int
    key: Any


def _agreed(call: StructuredRequest, runtime: Runtime) -> _Agreed:
    """**Collective.** The checked and agreed arguments of a call with matrices, and its plan."""
    verb = call.verb
    out = call.out if isinstance(call.out, DistMatrix) else None
    with runtime.local_step(verb):
        for x in call.matrices:
            check_context(verb, x, runtime)
        for name, value in (("nprocs", call.nprocs), ("hardware", call.hardware)):
            if value is not None:
                raise errors.ArgumentError(f"{verb}: {name} is for planning from descriptors; leave it out")
        arguments = StructuredArguments.checked(call)
        desc_d = arguments.output()
        runtime.check_place(verb, desc_d, "out")
        plan = arguments.choose(desc_d, runtime.nprocs, runtime.topology)
        if out is not None:
            arguments.check_overlap(verb, call.a, call.b, call.c, out)
        shared, needed = arguments.arguments(), runtime.nelements(desc_d)
    nelements = runtime.agree(verb, shared, None, (needed,))[0]
    return _Agreed(arguments, plan, desc_d, nelements, (plan, nelements, spelled(shared)))


def _planned(call: StructuredRequest, runtime: Runtime, agreed: _Agreed) -> PlannedStructured:
    """**Collective.** The planned product of a call, which all ranks have, or none."""
    with runtime.building(call.verb):
        planned = _PLANNED[call.routine](*agreed[:3], runtime, agreed.nelements)
    runtime.agree(f"{call.verb}: workspace", {})
    return planned
