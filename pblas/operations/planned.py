"""What all planned operations share: a number, memory, and executions that begin and end with an agreement.

A new operation subclasses `PlannedOperation`. It has a plan, a public `execute` that passes what it was given to
`_run`, and these hooks:

    _build        builds the executor of the plan, with its workspace
    _checked      raises what is wrong with the matrices of an execution on this rank
    _operands     the local arrays, as the executor takes them

and, where the defaults do not serve, `_verb`, `_call_args`, `_new_result` and `_finish`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from pblas import errors
from pblas.matrices.matrix import DistMatrix
from pblas.trace import Tracing

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from pblas.execute import Executor
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.runtime.runtime import Runtime
    from pblas.trace import Paths


class Execution(Protocol):
    """What one call of `execute` was given."""

    @property
    def out(self) -> DistMatrix | None:
        """Where the result goes; None for a new matrix (global)."""


Given = TypeVar("Given", bound=Execution)


class PlannedOperation(Generic[Given]):
    """A planned operation: its plan, its workspace, and executions with matrices like the planned ones.

    Usable as a `with` block; `close` drops the workspace, as does dropping the object.

    Args:
        plan: what is run (global).
        out: descriptor of the result (global).
        dtype: of the result (global).
        runtime: of the context; None for an operation that was planned from descriptors, and cannot run (global).
        nelements: the largest `Runtime.nelements(out)` of all ranks; None if no rank has a leading dimension (global).
    """

    noun: ClassVar[str]
    """What is planned, in messages."""
    plan: Any
    """What will be run (global)."""
    out: MatrixDescriptor
    """Descriptor of the result (global)."""

    _executor: Any = None
    _shared = False
    """Whether the executor uses shared memory, which the context may have given up since."""

    def __init__(
        self,
        plan: Any,
        out: MatrixDescriptor,
        dtype: np.dtype[Any],
        runtime: Runtime | None,
        nelements: int | None = None,
    ) -> None:
        self.plan, self.out, self._runtime = plan, out, runtime
        if runtime is not None:
            self._call = f"execute of planned {self.noun} {runtime.next_number()}"
            self._place = runtime.place(out, dtype, nelements)
            self._prepare(runtime)
            runtime.matrices.add(self)

    # Hooks

    def _build(self, runtime: Runtime) -> Any:
        """**Collective.** The executor of the plan; WorkspaceError on all ranks if shared memory does not suffice."""
        raise AssertionError(f"each operation builds its own in {runtime!r}")

    def _checked(self, runtime: Runtime, given: Given) -> Given:
        """Raise what is wrong with an execution on this rank; what the other hooks need of it (local)."""
        raise AssertionError(f"each operation checks its own in {runtime!r}: {given}")

    def _operands(self, given: Given, result: DistMatrix) -> Any:
        """The local arrays of an execution, as the executor takes them (local)."""
        raise AssertionError(f"each operation has its own: {given}, {result}")

    def _verb(self, given: Given) -> str:  # noqa: ARG002 - others look at it
        """The call that ranks agree on, by its name (global)."""
        return self._call

    def _call_args(self, given: Given) -> Mapping[str, Any]:
        """What must be equal on all ranks in an execution that was checked (global)."""
        return {"out is given": given.out is not None}

    def _new_result(self, runtime: Runtime, given: Given) -> DistMatrix:  # noqa: ARG002 - others look at it
        """**Collective.** A new matrix for the result of an execution."""
        return DistMatrix(self.out, runtime.empty(self._place), runtime)

    def _finish(self, runtime: Runtime, given: Given, result: DistMatrix) -> None:
        """What is left to do with a result that no other rank reads any more (local)."""

    # What users call

    def explain(self) -> str:
        """The plan, why it was chosen, and what it will move: ten lines."""
        text: str = self.plan.explain()
        return text

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of workspace that this rank holds now (local)."""
        return self._executor.workspace_nbytes if self._executor else 0

    def close(self) -> None:
        """Drop the workspace; its memory is reused once all ranks have dropped theirs (local)."""
        self._executor = None

    def detach(self) -> None:
        """What a context that ends asks of its matrices and plans alike (local)."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<planned {self.noun}: {self.plan.label}>"

    # What subclasses call

    def _unplaced(self, verb: str) -> errors.ArgumentError:
        """The error of an operation that was planned without a context."""
        return errors.ArgumentError(
            f"{verb}: planned from descriptors, without a context; plan with matrices to {verb}"
        )

    def _traced(self, paths: Paths, title: str | None) -> Tracing:
        """**Collective.** A with block in which executions are recorded; see `Context.trace`."""
        if self._runtime is None:
            raise self._unplaced("trace")
        return Tracing(self._runtime, paths, title or self.plan.label)

    def _run(self, given: Given) -> DistMatrix:
        """**Collective.** One execution; again, with messages, if shared memory does not suffice."""
        runtime = self._runtime
        if runtime is None:
            raise self._unplaced("execute")
        runtime.check_open("execute")
        try:
            if self._executor is not None and self._shared != runtime.backend.shared:  # given up since
                self._prepare(runtime)
            return self._run_once(runtime, given)
        except errors.WorkspaceError:
            if not runtime.give_up_shared_memory():
                raise
            self._prepare(runtime)
            return self._run_once(runtime, given)

    def _prepare(self, runtime: Runtime) -> None:
        """**Collective.** Build the executor, for messages if shared memory does not suffice."""
        self._executor = None
        try:
            self._executor = self._build(runtime)
        except errors.WorkspaceError:
            if not runtime.give_up_shared_memory():
                raise
            self._executor = self._build(runtime)
        self._shared = runtime.backend.shared

    def _run_once(self, runtime: Runtime, given: Given) -> DistMatrix:
        """**Collective.** One execution; WorkspaceError on all ranks if shared memory does not suffice.

        The first agreement also carries the verdict on the matrices. The last one, where peers read this rank's
        operands, result or workspace, guarantees that no peer reads them any more.
        """
        backend, verb = runtime.backend, self._verb(given)
        with runtime.local_step(verb):
            if self._executor is None:
                raise errors.ContextError(f"execute: the planned {self.noun} is closed")
            given = self._checked(runtime, given)
        with backend.provisional():  # a rank that found an error allocates nothing, and so must all
            result = given.out
            if result is None:
                result = self._new_result(runtime, given)
                if self._shared != backend.shared:  # given up for it
                    self._prepare(runtime)
            executor: Executor = self._executor
            x = self._operands(given, result)
            alone = executor.publish(x)
            scratch = runtime.agree(verb, self._call_args(given), None, (int(alone),))[0]
        if executor.prepare(scratch=bool(scratch)):
            runtime.agree(f"{verb}: staged", {})
        with runtime.collective_section(verb, expected=(errors.WorkspaceError,)):
            executor.run(x)
            backend.arrays.settle()
        if backend.shared and runtime.nprocs > 1 and executor.lends:
            runtime.agree(f"end of {verb}", {})
        self._finish(runtime, given, result)
        return result
