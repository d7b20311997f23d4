"""Planned products of ranks that read each other's memory or send messages, and agree in every execution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pblas import errors
from pblas.backends.push_engine import is_array
from pblas.execute import executor
from pblas.execute.epilogue import finish
from pblas.execute.one_dimensional.local_gemm import RunScaling
from pblas.execute.operands import Operands
from pblas.operations.planned import PlannedOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    """

    a: DistMatrix
    b: DistMatrix
    c: DistMatrix | None
    out: DistMatrix | None
    operands: Mapping[str, Any] | None = None
    stream: Any = None
    call: tuple[str, Callable[[], Mapping[str, Any]]] | None = None


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
    ) -> None:
        self.descriptors: tuple[MatrixDescriptor, MatrixDescriptor] = spec.desc_a, spec.desc_b
        """Descriptors of A and B (global)."""
        self._spec, self._epilogue = spec, epilogue
        super().__init__(plan, desc_d, spec.dtype, runtime, nelements)

    def explain(self) -> str:
        """The plan in about ten lines: the reason for it, and the bytes that it moves."""
        text = super().explain()
        if self._epilogue is not None:
            text += f"\n  epilogue   {self._epilogue.epilogue.expression}, {self._epilogue.where(self.plan)}"
        return text

    def forget_operands(self) -> None:
        """Drop the epilogue's operands: from now on every execution brings its own (local)."""
        if self._epilogue is not None:
            self._epilogue = self._epilogue.without_operands

    def execute(
        self,
        a: DistMatrix,
        b: DistMatrix,
        c: DistMatrix | None = None,
        *,
        out: DistMatrix | None = None,
        operands: Mapping[str, Any] | None = None,
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
        return self.run(Execution(a, b, c, out, operands, stream))

    # Hooks of `PlannedOperation`

    def _build(self, runtime: Runtime) -> Any:
        spec, backend = self._spec, runtime.backend
        if runtime.topology.transport(runtime.nprocs) not in (self.plan.transport, "push"):
            self.plan = spec.choose(self.out, runtime.nprocs, runtime.topology)
        if not self._multiplies:
            return RunScaling(backend)
        return executor(self.plan, backend, spec.dtype, spec.wire, spec.orders(self.plan, self.out))

    def _checked(self, runtime: Runtime, execution: Execution) -> Execution:
        spec = self._spec
        spec.check_execution(runtime, *execution[:4], self.out)
        extra = self._extra(runtime, execution.operands, execution.out)
        runtime.backend.arrays.begin(execution.stream, tf32=spec.tf32, autotune=spec.autotune)
        return execution if extra is execution.operands else execution._replace(operands=extra)

    def _verb(self, execution: Execution) -> str:
        return self._call if execution.call is None else execution.call[0]

    def _call_args(self, execution: Execution) -> Mapping[str, Any]:
        if execution.call is not None:
            return execution.call[1]()
        return {
            "C is given": execution.c is not None,
            "out is given": execution.out is not None,
            **self._numbers(execution.operands),
        }

    def _operands(self, execution: Execution, result: DistMatrix) -> Operands:
        return self._local(*execution[:3], result, execution.operands)

    def _finish(self, runtime: Runtime, execution: Execution, result: DistMatrix) -> None:
        """Apply the epilogue to D = alpha op(A) op(B) + beta C, unless the executor has done so (local)."""
        if self._epilogue is not None and not self._is_fused:
            local, operands = result.stored("execute"), execution.operands or {}
            finish(runtime.backend, self._epilogue.epilogue, local, operands, local, execution.stream)

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

    @staticmethod
    def _numbers(extra: Mapping[str, Any] | None) -> dict[str, Any]:
        """The epilogue's operands that are numbers, by the names under which the ranks compare them (global)."""
        return {f"epilogue's {name}": z for name, z in sorted((extra or {}).items()) if not is_array(z)}

    def _local(
        self, a: DistMatrix, b: DistMatrix, c: DistMatrix | None, d: DistMatrix, extra: Mapping[str, Any] | None = None
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
        fused = None
        if extra is not None and self._is_fused:
            assert self._epilogue is not None, "it has operands"
            fused = self._epilogue.finish(extra, result)
        if self.plan.transposed:
            fused = None if fused is None else fused.of(lambda z: z.T)
            in_place = old is result
            left, right, result, conj_a, conj_b = right.T, left.T, result.T, conj_b, conj_a
            old = result if in_place else None if old is None else old.T
        return Operands(left, right, result, old, (conj_a, conj_b), spec.alpha, spec.beta, fused)
