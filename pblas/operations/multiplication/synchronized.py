"""Products that begin and end with an agreement of all ranks, as those of NumPy arrays do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pblas.execute import executor
from pblas.execute.one_dimensional.local_gemm import RunScaling
from pblas.operations.multiplication.base import PlannedMatmul

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pblas.execute import Executor
    from pblas.execute.operands import Operands
    from pblas.matrices.matrix import DistMatrix
    from pblas.runtime.runtime import Runtime


class _Execution(NamedTuple):
    """The arguments of an execution: see `PlannedMatmul.execute`.

    Args:
        call: name of the enclosing call, and its arguments to agree on; None: `execute` itself (global).
    """

    a: DistMatrix
    b: DistMatrix
    c: DistMatrix | None
    out: DistMatrix | None
    operands: Mapping[str, Any] | None
    stream: Any
    call: tuple[str, Mapping[str, Any]] | None


class SynchronizedMatmul(PlannedMatmul):
    """The planned product of the transports in which ranks read their peers' memory, or send messages."""

    _executor: Executor | None = None

    def execute_within(
        self,
        call: tuple[str, Callable[[], Mapping[str, Any]]],
        a: DistMatrix,
        b: DistMatrix,
        c: DistMatrix | None,
        out: DistMatrix,
        operands: Mapping[str, Any] | None,
        stream: Any,
    ) -> DistMatrix:
        """**Collective.** As in the base class: ranks agree on that call."""
        verb, call_args = call
        return self._run(_Execution(a, b, c, out, operands, stream, (verb, call_args())))

    def _execute(
        self,
        runtime: Runtime,  # noqa: ARG002 - `_run` has it
        a: DistMatrix,
        b: DistMatrix,
        c: DistMatrix | None,
        out: DistMatrix | None,
        operands: Mapping[str, Any] | None,
        stream: Any,
    ) -> DistMatrix:
        return self._run(_Execution(a, b, c, out, operands, stream, None))

    @property
    def _multiplies(self) -> bool:
        """Whether D is more than beta C."""
        return self._spec.alpha != 0 and self.plan.product.k > 0

    @property
    def _finishes_itself(self) -> bool:
        return super()._finishes_itself and bool(self.plan.finishes) and self._multiplies

    def _build(self, runtime: Runtime) -> Executor:
        spec, backend = self._spec, runtime.backend
        if runtime.topology.transport(runtime.nprocs) not in (self.plan.transport, "push"):
            self.plan = spec.choose(self.out, runtime.nprocs, runtime.topology)
        if not self._multiplies:
            return RunScaling(backend)
        return executor(self.plan, backend, spec.dtype, spec.wire, spec.orders(self.plan, self.out))

    def _checked(self, runtime: Runtime, execution: _Execution) -> _Execution:
        spec = self._spec
        spec.check_execution(runtime, execution.a, execution.b, execution.c, execution.out, self.out)
        extra = self._extra(runtime, execution.operands, execution.out)
        runtime.backend.arrays.begin(execution.stream, tf32=spec.tf32, autotune=spec.autotune)
        return execution if extra is execution.operands else execution._replace(operands=extra)

    def _verb(self, execution: _Execution) -> str:
        return self._call if execution.call is None else execution.call[0]

    def _call_args(self, execution: _Execution) -> Mapping[str, Any]:
        if execution.call is not None:
            return execution.call[1]
        return {
            "C is given": execution.c is not None,
            "out is given": execution.out is not None,
            **self._numbers(execution.operands),
        }

    def _operands(self, execution: _Execution, result: DistMatrix) -> Operands:
        return self._local(
            execution.a, execution.b, execution.c, result, execution.operands if self._finishes_itself else None
        )

    def _finish(self, runtime: Runtime, execution: _Execution, result: DistMatrix) -> None:
        if not self._finishes_itself:
            self._apply_epilogue(runtime, result, execution.operands, execution.stream)
