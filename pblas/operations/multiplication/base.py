"""Planned products of ranks that read each other's memory or send messages, and agree in every execution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pblas import errors
from pblas.backends.push_engine import is_array
from pblas.execute import executor
from pblas.execute.epilogue import finish
from pblas.execute.one_dimensional.local_gemm import RunScaling
from pblas.execute.operands import Operands
from pblas.operations.arguments.epilogue import CheckedOperands
from pblas.operations.arguments.scales import SCALE_D, Scales
from pblas.operations.planned import PlannedOperation

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.matrices.matrix import DistMatrix
    from pblas.operations.arguments.epilogue import ProductEpilogue
    from pblas.operations.arguments.product import ProductArguments
    from pblas.plans.plan import ProductPlan
    from pblas.runtime.runtime import Runtime


class Execution(NamedTuple):
    """The arguments of one execution of a product; see `PlannedMatmul.execute`.

    Args:
        call: the name of the call that this execution is part of, and a function that returns the arguments of that
            call on which the ranks agree; None for `execute` itself (global).
        scales: checked `Scales`, or those that replace the planned ones, as (scale_a, scale_b, scale_d, amax); None for
            the planned ones.
    """

    a: DistMatrix
    b: DistMatrix
    c: DistMatrix | None
    out: DistMatrix | None
    operands: Mapping[str, Any] | None = None
    stream: Any = None
    call: tuple[str, Callable[[], Mapping[str, Any]]] | None = None
    scales: Any = None


class PlannedMatmul(PlannedOperation[Execution]):
    """A planned product: the plan, its workspace, and one call that runs it. Made by `plan_matmul`.

    Usable as a `with` block; `close` drops the workspace, as does dropping the object.
    """

    noun = "product"
    plan: ProductPlan

    def __init__(
        self,
        spec: ProductArguments,
        plan: ProductPlan,
        desc_d: MatrixDescriptor,
        runtime: Runtime | None,
        epilogue: ProductEpilogue | None = None,
        nelements: int | None = None,
        scales: Scales | None = None,
    ) -> None:
        self.descriptors: tuple[MatrixDescriptor, MatrixDescriptor] = spec.desc_a, spec.desc_b
        """Descriptors of A and B (global)."""
        self._spec, self._epilogue, self._scales = spec, epilogue, scales
        super().__init__(plan, desc_d, spec.dtype, runtime, nelements)

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
        return self.run(Execution(a, b, c, out, operands, stream, scales=scales))

    # Hooks of `PlannedOperation`

    def _build(self, runtime: Runtime) -> Any:
        spec, backend = self._spec, runtime.backend
        if runtime.topology.transport(runtime.nprocs) not in (self.plan.transport, "push"):
            self.plan = spec.choose(self.out, runtime.nprocs, runtime.topology)
        if not self._multiplies:
            return RunScaling(backend)
        dtypes = spec.dtypes.T if self.plan.transposed else spec.dtypes
        return executor(self.plan, backend, dtypes, spec.orders(self.plan, self.out))

    def _checked(self, runtime: Runtime, execution: Execution) -> Execution:
        spec = self._spec
        spec.check_execution(runtime, *execution[:4], self.out)
        scales = self._checked_scales(runtime, execution)
        if scales is not None and execution.out is not None:
            scales.check_apart("execute", runtime, execution.out.stored("execute"))
        extra = self._extra(runtime, self._with_scale(execution.operands, scales), execution.out)
        options = {"tf32": spec.tf32, "fast_accumulate": spec.fast_accumulate, "autotune": spec.autotune}
        runtime.backend.arrays.begin(execution.stream, **options)
        if extra is execution.operands and scales is execution.scales:
            return execution
        return execution._replace(operands=extra, scales=scales)

    def _verb(self, execution: Execution) -> str:
        return self._call if execution.call is None else execution.call[0]

    def _call_args(self, execution: Execution) -> Mapping[str, Any]:
        if execution.call is not None:
            return execution.call[1]()
        return {
            "C is given": execution.c is not None,
            "out is given": execution.out is not None,
            **self._numbers(execution.operands),
            **(execution.scales.arguments() if isinstance(execution.scales, Scales) else {}),
        }

    def _operands(self, execution: Execution, result: DistMatrix) -> Operands:
        return self._local(*execution[:3], result, execution.operands, execution.scales)

    def _finish(self, runtime: Runtime, execution: Execution, result: DistMatrix) -> None:
        """Apply the epilogue to D, unless the executor has done so, and find D's largest element (local)."""
        local, scales = result.stored("execute"), execution.scales
        if self._epilogue is not None and not self._is_fused:
            finish(runtime.backend, self._epilogue.epilogue, local, execution.operands or {}, local, execution.stream)
        if isinstance(scales, Scales) and scales.amax is not None:
            runtime.backend.arrays.largest(local, scales.amax, execution.stream)

    # Also for the push transport

    @property
    def _multiplies(self) -> bool:
        """Whether anything is multiplied; otherwise D = beta C."""
        return self._spec.alpha != 0 and self.plan.product.k > 0

    @property
    def _is_fused(self) -> bool:
        """Whether the executor applies the epilogue; otherwise `_finish` does, in one more pass over D."""
        epilogue = self._epilogue
        fusible = epilogue is not None and not epilogue.epilogue.is_rmsnorm
        return fusible and bool(self.plan.finishes) and self._multiplies

    def _extra(self, runtime: Runtime, operands: Mapping[str, Any] | None, out: DistMatrix | None) -> Any:
        """The epilogue's operands on this rank, checked; None without an epilogue (local)."""
        if self._epilogue is not None:
            return self._epilogue.operands("execute", runtime, operands, None if out is None else out.stored("execute"))
        if operands is not None:
            raise errors.ArgumentError("execute: operands belong to an epilogue, and none was planned; leave them out")
        return None

    def _checked_scales(self, runtime: Runtime, execution: Execution) -> Any:
        """The scales of an execution, checked; None if there are none (local)."""
        scales = execution.scales
        if isinstance(scales, tuple):
            if self._scales is None:
                raise errors.ArgumentError(
                    "execute: scales belong to matrices of 8 bits, and none were planned; pass them to plan_matmul too"
                )
            scales = self._scales.replaced("execute", runtime, *scales)
        return self._scales if scales is None else scales

    def _with_scale(self, operands: Mapping[str, Any] | None, scales: Any) -> Any:
        """The operands of an execution's epilogue, with the scale of D, by which the epilogue ends (local)."""
        if scales is None or scales.d is None or isinstance(operands, CheckedOperands):
            return operands
        assert self._epilogue is not None, "a scale of D is an operand"
        own: Any = self._epilogue.epilogue.operands if operands is None else operands
        return {**own, SCALE_D: scales.d} if isinstance(own, Mapping) else own

    def _factors(self, scales: Scales) -> tuple[complex, tuple[Any, Any]]:
        """Alpha with the scales of A and B in it, and those that the executor applies, None for 1 (local)."""
        values = [x if not is_array(x) else self._value(x) for x in (scales.a, scales.b)]
        return self._spec.alpha * values[0] * values[1], (None, None)

    def _value(self, x: Array) -> float:
        """The element of an array of one element (local)."""
        assert self._runtime is not None, "planned with matrices"
        return float(self._runtime.backend.reading(x.reshape(1, 1))[0, 0])

    @staticmethod
    def _numbers(extra: Mapping[str, Any] | None) -> dict[str, Any]:
        """The epilogue's operands that are numbers, by the names under which the ranks compare them (global)."""
        return {f"epilogue's {name}": z for name, z in sorted((extra or {}).items()) if not is_array(z)}

    def _local(
        self,
        a: DistMatrix,
        b: DistMatrix,
        c: DistMatrix | None,
        d: DistMatrix,
        extra: Mapping[str, Any] | None = None,
        scales: Any = None,
    ) -> Operands:
        """The local arrays of an execution as the executor takes them, transposed if the plan is for D^T (local)."""
        spec = self._spec
        left, right, result = a.stored("execute"), b.stored("execute"), d.stored("execute")
        if spec.transa != "N":
            left = left.T
        if spec.transb != "N":
            right = right.T
        old = None
        if c is not None and spec.beta != 0:
            old = result if c is d else c.stored("execute")
            if old is not result and (c.key == d.key or not old.size):  # empty parts may differ in shape
                old = result
        conj_a, conj_b = spec.conj
        alpha, factors = (spec.alpha, (None, None)) if scales is None else self._factors(scales)
        fused = None
        if extra is not None and self._is_fused:
            assert self._epilogue is not None, "it has operands"
            fused = self._epilogue.finish(extra, result)
        if self.plan.transposed:
            fused = None if fused is None else fused.of(lambda z: z.T)
            in_place = old is result
            left, right, result, conj_a, conj_b = right.T, left.T, result.T, conj_b, conj_a
            old = result if in_place else None if old is None else old.T
            factors = factors[::-1]
        return Operands(left, right, result, old, (conj_a, conj_b), alpha, spec.beta, fused, factors)
