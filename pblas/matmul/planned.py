"""Planned products of ranks that read each other's memory or send messages, and agree in every execution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pblas import errors
from pblas.core.operation import Bound
from pblas.core.planned import Planned
from pblas.matmul.epilogue_arguments import CheckedOperands
from pblas.matmul.product import Extras, Product, numbers
from pblas.matmul.scales import SCALE_D, Scales
from pblas.matrices.matrix import DistMatrix

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.matmul.product_plan import ProductPlan
    from pblas.runtime.runtime import Runtime
    from pblas.simulation.hardware import Topology


class Execution(NamedTuple):
    """The arguments of one execution of a product; see `PlannedMatmul.execute`.

    Args:
        call: the name of the call that this execution is part of, and a function that returns the arguments of that
            call on which the ranks agree, `spelled`; None for `execute` itself (global).
        scales: checked `Scales`, or those that replace the planned ones, as (scale_a, scale_b, scale_d, amax); None for
            the planned ones.
    """

    a: DistMatrix
    b: DistMatrix
    c: DistMatrix | None
    out: DistMatrix | None
    operands: Mapping[str, Any] | None = None
    stream: Any = None
    call: tuple[str, Callable[[], str]] | None = None
    scales: Any = None


class PlannedMatmul(Planned[DistMatrix]):
    """A planned product: the plan, its workspace, and one call that runs it. Made by `plan_matmul`.

    Usable as a `with` block; `close` drops the workspace, as does dropping the object.
    """

    operation: Product
    plan: ProductPlan

    def __init__(
        self, operation: Product, runtime: Runtime | None, nprocs: int, topology: Topology, bound: Bound[DistMatrix]
    ) -> None:
        extras: Extras = bound.local
        self._epilogue, self._scales = extras.epilogue, extras.scales
        self.descriptors: tuple[MatrixDescriptor, MatrixDescriptor] = operation.spec.a, operation.spec.b
        """Descriptors of A and B (global)."""
        self._alpha, self._beta = bound.scalars["alpha"], bound.scalars["beta"]
        super().__init__(operation, runtime, nprocs, topology, bound)

    def explain(self) -> str:
        """The plan in about ten lines: the reason for it, and the bytes that it moves."""
        text = super().explain()
        if self._epilogue is not None:
            text += f"\n  epilogue   {self._epilogue.epilogue.expression}, {self._epilogue.where(self.plan)}"
        return text

    def forget_operands(self) -> None:
        """Drop the epilogue's operands and the scales: from now on every execution brings its own (local)."""
        if self._epilogue is not None:
            self._epilogue = self._epilogue.without_operands
        self._scales = None

    def execute(
        self,
        a: DistMatrix,
        b: DistMatrix,
        c: DistMatrix | None = None,
        *,
        out: DistMatrix | None = None,
        operands: Mapping[str, Any] | None = None,
        scale_a: Any = None,
        scale_b: Any = None,
        scale_d: Any = None,
        amax: Any = None,
        stream: Any = None,
    ) -> DistMatrix:
        """**Collective.** D = epilogue(alpha op(A) op(B) + beta C) with matrices like the planned ones.

        Args:
            a: A, with the descriptor and the dtype that were planned (global).
            b: B, with the descriptor and the dtype that were planned (global).
            c: C, with the planned descriptor and dtype; needed if beta is not 0 (global).
            out: matrix that receives D; may be `c`; None for a new matrix (global).
            operands: operands of the epilogue, by name: numbers, the same on every rank, and arrays of this rank; None
                for the operands that were planned (global).
            scale_a: scale of A, of the planned kind, number or array; None for the planned one (global).
            scale_b: scale of B, as scale_a (global).
            scale_d: scale of D, as scale_a (global).
            amax: receives the largest modulus in this rank's part of D; None for the planned array (local).
            stream: on GPUs, the CUDA stream on which to run: an object with `__cuda_stream__`; None for CuPy's current
                stream. The call returns at once, and later work on the stream sees D (local).

        Returns:
            D, with the planned descriptor. The caller may overwrite a, b and c when the call has returned (on GPUs, by
            later work on `stream`).

        Raises:
            ArgumentError: a plan made from descriptors only; matrices that overlap; a stream on CPUs.
            DescriptorError, DTypeError: a matrix with another descriptor or dtype than the planned one, on any rank.
            MismatchError: ranks that passed different numbers, or C or out on some ranks only. On GPUs that push data,
                only `Context(debug=True)` compares these arguments.
            WorkspaceError: a rank without memory for a new D.
            ContextError: the context or the plan is closed.
            PeerTimeout: a rank does not arrive; the context is broken then.
        """
        given = scale_a, scale_b, scale_d, amax
        scales = None if all(value is None for value in given) else given
        return self.launch(Execution(a, b, c, out, operands, stream, scales=scales))

    def launch(self, execution: Execution) -> DistMatrix:
        """**Collective.** `execute`, perhaps inside another call: see `Execution`."""
        runtime = self._runtime
        if runtime is None:
            raise self._no_context_error("execute")
        verb = self._call if execution.call is None else execution.call[0]
        with runtime.call("execute"):
            return self.perform(verb, runtime, lambda: self._bound(runtime, execution))

    def _bound(self, runtime: Runtime, execution: Execution) -> Bound[DistMatrix]:
        """The arguments of an execution, compared with the planned ones on this rank."""
        a, b, c, out, given, stream, call, _ = execution
        self.operation.spec.check_execution(runtime, a, b, c, out, self.out, self._beta)
        scales = self._checked_scales(runtime, execution)
        if scales is not None and out is not None:
            scales.check_apart("execute", runtime, out.stored("execute"))
        operands = self._extra(runtime, self._with_scale(given, scales), out)
        planned = self.bound
        scalars: Mapping[str, Any]
        if operands is None and scales is None and planned.scalars["c is given"] == (c is not None):
            scalars = planned.scalars
        else:
            scalars = {**planned.scalars, "c is given": c is not None, **numbers(operands)}
            scalars |= {} if scales is None else scales.arguments()
        extras = Extras(self._epilogue, operands, scales, stream)
        agrees = None if call is None else call[1]()
        return planned._replace(scalars=scalars, reads={"A": a, "B": b}, old=c, out=out, local=extras, agrees=agrees)

    # Also for the push transport

    def _extra(self, runtime: Runtime, operands: Mapping[str, Any] | None, out: DistMatrix | None) -> Any:
        """The epilogue's operands on this rank, checked; None without an epilogue (local)."""
        if self._epilogue is not None:
            return self._epilogue.operands("execute", runtime, operands, None if out is None else out.stored("execute"))
        if operands is not None:
            raise errors.ArgumentError("execute: operands belong to an epilogue, and none was planned; leave them out")
        return None

    def _checked_scales(self, runtime: Runtime, execution: Execution) -> Scales | None:
        """The scales of an execution, checked; None if there are none (local)."""
        scales = execution.scales
        if isinstance(scales, tuple):
            if self._scales is None:
                raise errors.ArgumentError(
                    "execute: scales belong to matrices of 8 bits, and none were planned; pass them to plan_matmul too"
                )
            return self._scales.replaced("execute", runtime, *scales)
        return self._scales if scales is None else scales

    def _with_scale(self, operands: Mapping[str, Any] | None, scales: Scales | None) -> Any:
        """The operands of an execution's epilogue, with the scale of D, by which the epilogue ends (local)."""
        if scales is None or scales.d is None or isinstance(operands, CheckedOperands):
            return operands
        assert self._epilogue is not None, "a scale of D is an operand"
        own: Any = self._epilogue.epilogue.operands if operands is None else operands
        return {**own, SCALE_D: scales.d} if isinstance(own, Mapping) else own
