"""elementwise and plan_elementwise: an expression of matrices of any layouts, arrays and numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pblas import errors
from pblas.backends import log
from pblas.core.checks import enough_ranks
from pblas.execute.elementwise import ElementwiseOperands, RunElementwise
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.operations.arguments.elementwise import ElementwiseArguments, ElementwiseRequest
from pblas.operations.planned import PlannedOperation
from pblas.plans.elementwise import ElementwisePlan
from pblas.plans.plan import Topology
from pblas.runtime.open_contexts import fail_without_context

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from pblas.runtime.runtime import Runtime


class _Execution(NamedTuple):
    """The arguments of an execution.

    Args:
        operands: by name, not checked (global).
        out: the result's matrix; None for a new one (global).
        spec: the checked arguments; None before the check (global).
        values: numbers, and parts of operands that are not redistributed, by name (local).
    """

    operands: Mapping[str, Any]
    out: DistMatrix | None
    spec: ElementwiseArguments | None = None
    values: Mapping[str, Any] = {}


class PlannedElementwise(PlannedOperation[_Execution]):
    """A planned elementwise operation: the plan, its buffers, and one call. Made by `plan_elementwise`.

    Usable as a `with` block; `close` drops the buffers, as does dropping the object.
    """

    noun = "elementwise operation"
    plan: ElementwisePlan

    def __init__(self, spec: ElementwiseArguments, runtime: Runtime | None) -> None:
        dtypes = {name: z.dtype for name, z in spec.operands.items() if isinstance(z, DistMatrix)}
        self._expression, self._compute = spec.plan.expression, spec.compute
        self._planned = spec.descriptions
        self._moved_dtypes: list[np.dtype[Any]] = []
        if runtime is not None:
            self._moved_dtypes = [dtypes[operand.name] for operand in spec.moved]
        super().__init__(spec.plan, spec.plan.out, spec.dtype, runtime)

    def execute(self, *, out: DistMatrix | None = None, **operands: Any) -> DistMatrix:
        """**Collective.** The expression of operands like the planned ones.

        Args:
            out: the result's matrix, with the planned layout and dtype; None for a new matrix (global).
            operands: by name: matrices with the planned layouts and dtypes, arrays of the planned shapes and dtypes,
                and any numbers of the planned kinds (global).

        Returns:
            The result. The caller may overwrite the operands when the call has returned.

        Raises:
            ArgumentError, DescriptorError, DTypeError: operands that are not like the planned ones, on any rank.
            ContextError: the context or the plan is closed.
        """
        result: DistMatrix = self.run(_Execution(operands, out))
        return result

    def execute_once(self, spec: ElementwiseArguments) -> DistMatrix:
        """**Collective.** Execute with arguments that were checked; afterwards free the buffers."""
        runtime = self._runtime
        assert runtime is not None, "`elementwise` has matrices"
        try:
            with runtime.building(spec.verb):
                if self._executor is None:
                    self._prepare(runtime)
            result: DistMatrix = self.run(_Execution(spec.operands, spec.out, spec))
        except BaseException:
            self.close()
            raise
        self._executor.free_buffers()
        return result

    def _build(self, runtime: Runtime) -> RunElementwise:
        return RunElementwise(runtime.backend, self.plan, self._moved_dtypes, self._compute)

    def _checked(self, runtime: Runtime, execution: _Execution) -> _Execution:
        spec = execution.spec
        if spec is None:
            names = [name for name in self._planned if name in execution.operands]
            operands = {name: execution.operands[name] for name in (*names, *execution.operands)}
            call = ElementwiseRequest("execute", self._expression, operands, execution.out, self._asked(execution))
            spec = ElementwiseArguments.checked(call, runtime, runtime.nprocs, runtime.topology)
            self._check_like_planned(runtime, spec)
        values = spec.values(runtime)
        self._executor.reserve(spec.tree, values, None if spec.out is None else spec.out.stored("execute"))
        runtime.backend.arrays.begin()
        return execution._replace(spec=spec, values=values)

    def _asked(self, execution: _Execution) -> Any:
        """The dtype of a new result: the planned one."""
        return self._dtype if execution.out is None else None

    def _check_like_planned(self, runtime: Runtime, spec: ElementwiseArguments) -> None:
        """Raise an error if the operands of an execution do not fit the plan, on this rank."""
        for name, now in spec.descriptions.items():
            planned = self._planned[name]
            if now != planned:
                raise errors.DescriptorError(f"execute: {name} is {now}, planned was {planned}; plan anew")
        if spec.overlaps(runtime) and not self.plan.overlaps:
            raise errors.ArgumentError(
                "execute: out overlaps an operand that is redistributed, unlike planned; plan anew with this out="
            )

    def _call_args(self, execution: _Execution) -> Mapping[str, Any]:
        spec = execution.spec
        assert spec is not None, "the arguments are checked"
        return {"out is given": execution.out is not None} | spec.scalars()

    def _operands(self, execution: _Execution, result: DistMatrix) -> ElementwiseOperands:
        spec = execution.spec
        assert spec is not None, "the arguments are checked"
        return ElementwiseOperands(spec.tree, execution.values, spec.sources(), result.stored("execute"))


def plan_elementwise(
    expression: str,
    /,
    *,
    out: DistMatrix | None = None,
    dtype: Any = None,
    nprocs: int | None = None,
    **operands: Any,
) -> PlannedElementwise:
    """Plan an elementwise operation. **Collective** with matrices; with descriptors it needs no MPI.

    Planning checks the expression, chooses the transfers and allocates buffers once, for any number of executions.

    Args:
        expression: see `elementwise` (global).
        out: the result's matrix; None for new matrices (global).
        dtype: of all matrices, needed with descriptors (global).
        nprocs: ranks, when planning from descriptors; None for the largest grid (global).
        operands: as for `elementwise`; or descriptors, and numbers (global).

    Returns:
        The planned operation: `print(p.explain())`, `p.execute(x=A, y=B)`.

    Raises:
        as `elementwise`.

    >>> rows, columns = MatrixDescriptor.row_wise(8, 8, 4), MatrixDescriptor.column_wise(8, 8, 4)
    >>> print(plan_elementwise("x * s + y", x=rows, y=columns, s=2.0, dtype="float64").explain())
    ElementwisePlan: x * s + y, 8 x 8, float64, on 4 ranks
      x          8 x 8 in blocks of 2 x 8 on a 4 x 1 grid, float64
      y          8 x 8 in blocks of 8 x 2 on a 1 x 4 grid, float64; redistributed to
                 8 x 8 in blocks of 2 x 8 on a 4 x 1 grid
      s          a number, real
      result     8 x 8 in blocks of 2 x 8 on a 4 x 1 grid, float64
      why        operands with another layout than the result are redistributed to it
      moves      y: read in place in the node's shared memory
                 y: 96 bytes per rank at most
      received   96 bytes per rank at most, 1.00 x the lower bound of any plan, 96
      workspace  256 bytes per rank at most (shared transport)
    """
    verb = "plan_elementwise"
    descs = [z for z in operands.values() if isinstance(z, MatrixDescriptor)]
    call = ElementwiseRequest(verb, expression, operands, out, dtype)
    if descs and not call.matrices:
        ranks = enough_ranks(verb, nprocs, descs)
        spec = ElementwiseArguments.checked(call, None, ranks, Topology(ranks, shared=True))
        return PlannedElementwise(spec, None)
    runtime = _runtime(call)
    with runtime.call(verb):
        with runtime.local_step(verb):
            for name, option in (("dtype", dtype), ("nprocs", nprocs)):
                if option is not None:
                    raise errors.ArgumentError(f"{verb}: {name} is for planning from descriptors; leave it out")
        return _planned(_agreed(call, runtime), runtime)


def elementwise(expression: str, /, *, out: DistMatrix | None = None, **operands: Any) -> DistMatrix:
    """**Collective.** An expression of matrices of any layouts, arrays and numbers, element by element.

    Where all matrices have one layout nothing moves, and each rank makes one pass over its elements. Otherwise the
    others are redistributed first to the layout of the result: that of `out`, or of the first matrix that is neither
    replicated nor broadcast; `plan_elementwise(...).explain()` says which, and how many bytes move.

    Args:
        expression: in the language of `Epilogue`, in which any operand may have any name; in addition there are
            conj(x), real(x) and imag(x), and abs(x) of complex x (global).
        out: a matrix of the result's shape, of any layout; it may be one of the operands, or overlap them: the result
            is as if they were copied first. Elements outside a submatrix are not touched. None for a new matrix
            (global).
        operands: by name, at least one of them a matrix: matrices; numbers; arrays of one or two dimensions that are
            equal on all ranks. Shapes broadcast as in NumPy (global).

    Returns:
        `out` itself, or a new matrix. Its dtype is that of NumPy's promotion rules: Python's numbers do not widen a
        matrix, NumPy's do. It is computed in at least 32 bits, and rounded once.

    Raises:
        ArgumentError, DescriptorError, DTypeError: arguments that do not fit, the same on every rank.
        MismatchError: ranks that passed different arguments.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     A = ctx.from_global(np.eye(2), MatrixDescriptor.row_wise(2, 2, ctx.nprocs), root=None)
    ...     pblas.elementwise("x * s + y", x=A, s=2.0, y=np.array([1.0, 3.0])).to_global(root=None).tolist()
    [[3.0, 3.0], [1.0, 5.0]]
    """
    return _run(ElementwiseRequest("elementwise", expression, operands, out))


def combined(expression: str, operands: Mapping[str, Any], out: Any = None, dtype: Any = None) -> DistMatrix:
    """**Collective.** `elementwise`, with a dtype for the new result; None for that of the promotion rules (global)."""
    verb = "elementwise" if dtype is None else "astype"
    return _run(ElementwiseRequest(verb, expression, operands, out, dtype))


def _run(call: ElementwiseRequest) -> DistMatrix:
    """**Collective.** The operation of a call."""
    runtime, values = _runtime(call), dict[str, Any]()
    with runtime.call(call.verb):
        spec = _agreed(call, runtime, values)
        plan, backend = spec.plan, runtime.backend
        if spec.moved:
            planned = runtime.plans.get((plan, spec.compute), lambda: _planned(spec, runtime))
            return planned.execute_once(spec)
        log.planned(runtime.rank, PlannedElementwise.noun, plan)
        result = spec.out
        if result is None:
            result = DistMatrix(plan.out, runtime.empty(runtime.place(plan.out, spec.dtype)), runtime)
            if not backend.shared:  # private memory: another rank may have none
                runtime.agree(f"{call.verb}: allocate", {})
        with runtime.collective_section(call.verb):
            backend.arrays.begin()
            backend.arrays.evaluate(spec.tree, values, spec.compute, result.stored(call.verb))
            backend.arrays.settle()
        return result


def _planned(spec: ElementwiseArguments, runtime: Runtime) -> PlannedElementwise:
    """**Collective.** The planned operation of agreed arguments."""
    with runtime.building(spec.verb):
        planned = PlannedElementwise(spec, runtime)
    runtime.agree(f"{spec.verb}: workspace", {})
    return planned


def _runtime(call: ElementwiseRequest) -> Runtime:
    """The runtime of the matrices of a call; without any, an error as `fail_without_context` raises it (local)."""
    if not call.matrices:
        text = f"{call.verb}: no operand is a DistMatrix; ctx.from_global(array, desc, root=None) makes one of an array"
        fail_without_context(call.verb, errors.ArgumentError(text))
    return call.matrices[0].runtime


def _agreed(call: ElementwiseRequest, runtime: Runtime, values: dict[str, Any] | None = None) -> ElementwiseArguments:
    """**Collective.** The checked and agreed arguments of a call.

    Args:
        call: the call (global).
        runtime: of the context (global).
        values: filled with `spec.values` if nothing is redistributed (local).
    """
    verb = call.verb
    with runtime.local_step(verb):
        spec = ElementwiseArguments.checked(call, runtime, runtime.nprocs, runtime.topology)
        overlaps, call_args = spec.overlaps(runtime), spec.arguments()
        if values is not None and not spec.moved:
            values.update(spec.values(runtime))
    if runtime.agree(verb, call_args, None, (int(overlaps),))[0]:
        spec = spec._replace(plan=replace(spec.plan, overlaps=True))
    return spec
