"""The base class of all planned products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas import errors
from pblas.backends.push_engine import is_array
from pblas.execute.epilogue import finish
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
    from pblas.trace import Paths, Trace


class PlannedMatmul(PlannedOperation[Any]):
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
        self.descriptors = spec.desc_a, spec.desc_b
        """Descriptors of A and B (global)."""
        self._spec, self._epilogue = spec, epilogue
        super().__init__(plan, desc_d, spec.dtype, runtime, nelements)

    def explain(self) -> str:
        """Ten lines: the plan, the reason for it, and the bytes that it moves."""
        text = super().explain()
        if self._epilogue is not None:
            text += f"\n  epilogue   {self._epilogue.epilogue.expression}, {self._epilogue.where(self.plan)}"
        return text

    def forget_operands(self) -> None:
        """Drop the epilogue's operands: every execution brings its own (local)."""
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
            a: like the A that was planned: same descriptor and dtype (global).
            b: like B (global).
            c: like C; needed if beta is not 0 (global).
            out: where D goes; may be `c`; None for a new matrix (global).
            operands: of the epilogue, by name: numbers, the same on every rank, and this rank's arrays; None for the
                operands that it was planned with (global).
            stream: on GPUs, the CUDA stream on which to run: anything with `__cuda_stream__`; None for CuPy's current
                stream. The call returns at once, and later work on the stream sees D (local).

        Returns:
            D, under the planned descriptor. When the call returns, a, b and c may be overwritten (on GPUs, by
            later work on `stream`).

        Raises:
            ArgumentError: a plan made from descriptors only; matrices that overlap; a stream on CPUs.
            DescriptorError, DTypeError: a matrix that is not like the planned one, on any rank.
            MismatchError: ranks that passed different numbers, or that have C or out where others have none, where the
                ranks' hosts agree on an execution: on CPUs, or with debug=True.
            WorkspaceError: a rank without memory for a new D.
            ContextError: the context or the plan is closed.
            PeerTimeout: a rank does not arrive; the context is broken then.
        """
        if self._runtime is None:
            raise self._no_context_error("execute")
        return self._execute(self._runtime, a, b, c, out, operands, stream)

    def execute_within(
        self,
        call: tuple[str, Callable[[], Mapping[str, Any]]],  # noqa: ARG002 - for subclasses whose ranks agree on an execution
        a: DistMatrix,
        b: DistMatrix,
        c: DistMatrix | None,
        out: DistMatrix,
        operands: Mapping[str, Any] | None,
        stream: Any,
    ) -> DistMatrix:
        """**Collective.** `execute` as a part of another call, whose name and arguments the ranks agree on, if they do.

        Args:
            call: the other call's name, and a function that returns its arguments to agree on (global).
            a: as in `execute` (global).
            b: as in `execute` (global).
            c: as in `execute` (global).
            out: as in `execute` (global).
            operands: as in `execute` (global).
            stream: as in `execute` (local).

        Raises:
            as `execute`.
        """
        return self.execute(a, b, c, out=out, operands=operands, stream=stream)

    def trace(
        self,
        a: DistMatrix,
        b: DistMatrix,
        c: DistMatrix | None = None,
        *,
        out: DistMatrix | None = None,
        operands: Mapping[str, Any] | None = None,
        stream: Any = None,
        paths: Paths = (),
        title: str | None = None,
    ) -> Trace:
        """**Collective.** One `execute`, and a timeline of every rank; see `Context.trace`.

        The first execution of a plan touches its memory for the first time: trace the second.

        Args:
            a: as in `execute` (global).
            b: as in `execute` (global).
            c: as in `execute` (global).
            out: as in `execute`; without it D is dropped (global).
            operands: as in `execute` (global).
            stream: as in `execute` (local).
            paths: files that rank 0 writes, or one (global).
            title: of pictures; None for the plan (global).

        Returns:
            The trace of all ranks, on rank 0; a trace without events elsewhere.

        Raises:
            as `execute` and `Context.trace`.
        """
        with self._traced(paths, title) as trace:
            self.execute(a, b, c, out=out, operands=operands, stream=stream)
        return trace

    def _execute(self, runtime: Runtime, *args: Any, **kwargs: Any) -> DistMatrix:
        """**Collective.** `execute` with matrices that are not checked yet."""
        raise AssertionError(f"each kind executes its own in {runtime!r}, with {args}, {kwargs}")

    @property
    def _finishes_itself(self) -> bool:
        """Whether the executor applies the epilogue itself, not a pass over D after it."""
        return self._epilogue is not None and not self._epilogue.epilogue.is_rmsnorm

    def _extra(self, runtime: Runtime, operands: Mapping[str, Any] | None, out: DistMatrix | None) -> Any:
        """The epilogue's operands on this rank."""
        if self._epilogue is not None:
            return self._epilogue.operands("execute", runtime, operands, None if out is None else out.stored("execute"))
        if operands is not None:
            raise errors.ArgumentError("execute: operands belong to an epilogue, and none was planned; leave them out")
        return None

    @staticmethod
    def _numbers(extra: Mapping[str, Any] | None) -> dict[str, Any]:
        """The epilogue's operands that are numbers, by their names where ranks agree on them (global)."""
        return {f"epilogue's {name}": z for name, z in sorted((extra or {}).items()) if not is_array(z)}

    def _apply_epilogue(self, runtime: Runtime, d: DistMatrix, extra: Any, stream: Any) -> None:
        """Apply the epilogue to D; no other rank reads D any more."""
        if self._epilogue is not None:
            local = d.stored("execute")
            finish(runtime.backend, self._epilogue.epilogue, local, extra, local, stream)

    def _local(
        self, a: DistMatrix, b: DistMatrix, c: DistMatrix | None, d: DistMatrix, extra: Mapping[str, Any] | None = None
    ) -> Operands:
        """The local arrays of an execution in the plan's orientation, with the epilogue that the executor applies."""
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
        finish = None
        if extra is not None:
            assert self._epilogue is not None, "it has operands"
            finish = self._epilogue.finish(extra, result)
        if self.plan.transposed:
            finish = None if finish is None else finish.of(lambda z: z.T)
            in_place = old is result
            left, right, result, conj_a, conj_b = right.T, left.T, result.T, conj_b, conj_a
            old = result if in_place else None if old is None else old.T
        return Operands(left, right, result, old, (conj_a, conj_b), spec.alpha, spec.beta, finish)
