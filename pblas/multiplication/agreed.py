"""Products that begin and end with an agreement of all ranks, as those of NumPy arrays do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas import errors
from pblas.execute import executor
from pblas.matrix import DistMatrix
from pblas.multiplication.base import Multiplication
from pblas.one_dimensional import AllGatherGemm, GemmReduceScatter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pblas.execute import Executor
    from pblas.runtime import Runtime

_NOTHING: dict[str, Any] = {}


class AgreedMultiplication(Multiplication):
    """What `plan_matmul` returns for transports by which ranks read their peers' memory, or send messages.

    The agreement with which an execution starts also carries the verdict on its arrays; the one at its end, where peers
    read this rank's operands, D or workspace, says that nobody does any more.
    """

    _executor: Executor | None = None
    _shared = False

    @property
    def _finishes_itself(self) -> bool:
        return super()._finishes_itself and isinstance(self.plan, AllGatherGemm | GemmReduceScatter)

    def _prepare(self, runtime: Runtime) -> None:
        spec, backend = self._spec, runtime.backend
        self._executor = None
        if runtime.machine.transport(runtime.nprocs) not in (self.plan.transport, "push"):
            self.plan = spec.choose(self.out, runtime.nprocs, runtime.machine)
        try:
            self._executor = executor(self.plan, backend, spec.dtype, spec.wire, spec.orders(self.plan, self.out))
            self._shared = backend.shared
        except errors.WorkspaceError:
            if not runtime.give_up_shared_memory():
                raise
            self._prepare(runtime)

    def _execute(
        self,
        runtime: Runtime,
        a: DistMatrix,
        b: DistMatrix,
        c: DistMatrix | None,
        out: DistMatrix | None,
        operands: Mapping[str, Any] | None,
        stream: Any,
        behind: tuple[str, Mapping[str, Any]] | None = None,
    ) -> DistMatrix:
        runtime.check_open("execute")
        if self._executor is None:
            closed = errors.ContextError("execute: the planned product is closed")
            runtime.fail(f"execute of planned product {self._number}", closed)
        try:
            if self._shared != runtime.backend.shared:  # the context has given up shared memory since
                self._prepare(runtime)
            return self._run(runtime, self._executor, a, b, c, out, operands, stream, behind)
        except errors.WorkspaceError:
            if not runtime.give_up_shared_memory():
                raise
            self._prepare(runtime)
            return self._run(runtime, self._executor, a, b, c, out, operands, stream, behind)

    def execute_behind(
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
        assert self._runtime is not None, "planned with matrices"
        verb, said = call
        return self._execute(self._runtime, a, b, c, out, operands, stream, (verb, said()))

    def _run(
        self,
        runtime: Runtime,
        executor_: Executor,
        a: DistMatrix,
        b: DistMatrix,
        c: DistMatrix | None,
        out: DistMatrix | None,
        operands: Mapping[str, Any] | None,
        stream: Any,
        behind: tuple[str, Mapping[str, Any]] | None,
    ) -> DistMatrix:
        """**Collective.** One execution; WorkspaceError on all ranks if shared memory does not suffice."""
        spec, arrays = self._spec, runtime.backend.arrays
        verb, said = behind or (f"execute of planned product {self._number}", _NOTHING)
        with runtime.local_step(verb):
            spec.check_execution(runtime, a, b, c, out, self.out)
            extra = self._extra(runtime, operands, out)
            arrays.begin(stream, tf32=spec.tf32, autotune=spec.autotune)
        if behind is None:
            said = {"C is given": c is not None, "out is given": out is not None, **self._numbers(extra)}
        with runtime.backend.provisional():  # a rank that found an error allocates nothing, and so must all
            result = out
            if result is None:
                result = DistMatrix(self.out, runtime.empty(self._place), runtime)
                if self._shared != runtime.backend.shared:  # given up for D
                    self._prepare(runtime)
                    assert self._executor is not None, "just made"
                    executor_ = self._executor
            x = self._operands(a, b, c, result, extra if self._finishes_itself else None)
            alone = executor_.publish(x)
            scratch = bool(runtime.agree(verb, said, None, (int(alone),))[0])
        nothing = spec.alpha == 0 or self.plan.product.k == 0
        if not nothing and executor_.prepare(scratch=scratch):
            runtime.agree(f"{verb}: staged", _NOTHING)
        with runtime.middle_of(verb, spared=(errors.WorkspaceError,)):
            if nothing:
                arrays.add_scaled(spec.beta, x.result if x.old is None else x.old, 0.0, x.result)
            else:
                executor_.run(x)
        with runtime.middle_of(verb):
            arrays.settle()
        if runtime.backend.shared and runtime.nprocs > 1 and not nothing and executor_.lends:
            runtime.agree(f"end of {verb}", _NOTHING)  # nobody reads this rank's memory any more
        if not self._finishes_itself or nothing:
            self._finish(runtime, result, extra, stream)
        return result
