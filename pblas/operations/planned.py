"""The base class of planned operations: workspace, and executions that begin and end with an agreement of the ranks.

A new operation subclasses `PlannedOperation`. It has a plan, a public `execute` that passes its arguments to
`run`, and these hooks:

    _build        builds the executor of the plan, with its workspace
    _checked      checks the matrices of an execution on this rank
    _operands     the local arrays, as the executor takes them

and, if the defaults do not fit, `_verb`, `_call_args`, `_new_result`, `_lends` and `_finish`.
"""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from pblas import errors
from pblas.backends import log
from pblas.matrices.matrix import DistMatrix
from pblas.plans.html import html_of
from pblas.trace import Tracing

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from pblas.execute import Executor
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.runtime.runtime import Runtime
    from pblas.trace import Paths, Trace


class Execution(Protocol):
    """The arguments of one call of `execute`."""

    @property
    def out(self) -> Any:
        """The matrix or array that receives the result; None for a new matrix (global)."""


_INTERNAL = frozenset(
    (
        *("detach", "noun", "run", "execute_once", "execute_with", "forget_operands"),
        *("operation", "rehearse", "trial"),
    )
)
"""Attributes that other modules of the package use, and TAB does not show."""

ExecutionT = TypeVar("ExecutionT", bound=Execution)


class PlannedOperation(Generic[ExecutionT]):
    """A planned operation: its plan, its workspace, and executions with matrices like the planned ones.

    Usable as a `with` block; `close` drops the workspace, as does dropping the object.

    Args:
        plan: plan of the operation (global).
        out: descriptor of the result; None if every execution brings the memory of its result (global).
        dtype: dtype of the result (global).
        runtime: runtime of the context; None for an operation planned from descriptors, which cannot run (global).
        nelements: the largest `Runtime.nelements(out)` of all ranks; None if no rank has a leading dimension (global).
    """

    noun: ClassVar[str]
    """Name of the operation, for messages."""
    plan: Any
    """The plan (global)."""
    out: MatrixDescriptor
    """Descriptor of the result (global)."""

    execute: Any
    """The public call that runs the plan."""
    _executor: Any = None
    _shared = False
    """Whether the executor uses shared memory. The context may give that up later."""

    def __init__(
        self,
        plan: Any,
        out: MatrixDescriptor | None,
        dtype: np.dtype[Any],
        runtime: Runtime | None,
        nelements: int | None = None,
    ) -> None:
        self.plan, self._dtype, self._runtime = plan, dtype, runtime
        if out is not None:
            self.out = out
        if runtime is not None:
            self._call = f"execute of planned {self.noun} {runtime.next_number()}"
            if out is not None:
                self._place = runtime.place(out, dtype, nelements)
            self._prepare(runtime)
            runtime.matrices.add(self)

    # Hooks

    def _build(self, runtime: Runtime) -> Any:
        """**Collective.** The executor of the plan; WorkspaceError on all ranks if shared memory does not suffice."""
        raise AssertionError(f"each operation builds its own in {runtime!r}")

    def _checked(self, runtime: Runtime, execution: ExecutionT) -> ExecutionT:
        """Check the arguments of an execution on this rank; return them as the other hooks need them (local)."""
        raise AssertionError(f"each operation checks its own in {runtime!r}: {execution}")

    def _operands(self, execution: ExecutionT, result: Any) -> Any:
        """The local arrays of an execution, as the executor takes them (local)."""
        raise AssertionError(f"each operation has its own: {execution}, {result}")

    def _verb(self, execution: ExecutionT) -> str:
        """Name of the call on which the ranks agree (global)."""
        return self._call

    def _call_args(self, execution: ExecutionT) -> Mapping[str, Any]:
        """Arguments of a checked execution that must be equal on all ranks (global)."""
        return {"out is given": execution.out is not None}

    def _new_result(self, runtime: Runtime, execution: ExecutionT) -> DistMatrix:
        """**Collective.** A new matrix for the result of an execution."""
        return DistMatrix(self.out, runtime.empty(self._place), runtime)

    def _lends(self) -> bool:
        """Whether peers may still read memory that this rank overwrites before its next agreement (local).

        `_run_once` asks after the executor has published the arrays, and only where the executor lends memory.
        """
        return True

    def _finish(self, runtime: Runtime, execution: ExecutionT, result: DistMatrix) -> None:
        """Complete the result, as the last step of an execution; no other rank reads the result meanwhile (local)."""

    # Public methods

    def explain(self) -> str:
        """The plan in about ten lines: the reason for it, and the bytes that it moves."""
        text: str = self.plan.explain()
        return text

    def trace(self, *arguments: Any, paths: Paths = (), title: str | None = None, **options: Any) -> Trace:
        """**Collective.** One `execute`, and a timeline of every rank; see `Context.trace`.

        The first execution is slower than later ones, because it touches the plan's memory for the first time. Trace
        the second.

        Args:
            arguments: arguments of `execute`; the result is lost unless `out` is among the options.
            paths: path of a file that rank 0 writes, or several (global).
            title: title of pictures; None for the plan's label (global).
            options: keyword arguments of `execute`.

        Returns:
            The trace of all ranks, on rank 0; a trace without events elsewhere.

        Raises:
            as `execute` and `Context.trace`.
        """
        if self._runtime is None:
            raise self._no_context_error("trace")
        inspect.signature(self.execute).bind(*arguments, **options)  # a TypeError belongs to this rank alone
        with self._runtime.call("trace"), Tracing(self._runtime, paths, title or self.plan.label) as trace:
            self.execute(*arguments, **options)
        return trace

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of workspace that this rank holds now (local)."""
        return self._executor.workspace_nbytes if self._executor else 0

    def close(self) -> None:
        """Drop the workspace; its memory is reused once all ranks have dropped theirs (local)."""
        self._executor = None

    def detach(self) -> None:
        """Called by a closing context on its matrices and plans (local)."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<planned {self.noun}: {self.plan.label}>"

    def __str__(self) -> str:
        return self.explain()

    def _repr_html_(self) -> str:
        """The text of `explain` and bars of bytes, for notebooks (local)."""
        return html_of(self.explain(), self.plan.max_received_nbytes, self.plan.lower_bound_nbytes)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]

    # For subclasses

    def _no_context_error(self, verb: str) -> errors.ArgumentError:
        """The error of an operation that was planned without a context."""
        return errors.ArgumentError(
            f"{verb}: planned from descriptors, without a context; plan with matrices to {verb}"
        )

    def run(self, execution: ExecutionT) -> Any:
        """**Collective.** Check the arguments of an execution, and run it; the result is `out` or a new matrix.

        If shared memory does not suffice, the execution starts again with messages.
        """
        runtime = self._runtime
        if runtime is None:
            raise self._no_context_error("execute")
        with runtime.call("execute", self._begin):
            return self._run(runtime, execution)

    def _begin(self, verb: str) -> None:
        """Raise ContextError if the context cannot be used (local)."""
        assert self._runtime is not None, "it has a context"
        self._runtime.check_open(verb)

    def _run(self, runtime: Runtime, execution: ExecutionT) -> Any:
        """**Collective.** `run`, inside a collective call."""
        try:
            switched = self._shared != runtime.backend.shared  # to messages, since the executor was built
            if self._executor is not None and switched:
                self._prepare(runtime)
            return self._run_once(runtime, execution)
        except errors.WorkspaceError as caught:
            if not (caught.shared and runtime.give_up_shared_memory()):
                raise
        # Not in the handler: its exception keeps the frames of the first attempt, and with them its memory.
        self._prepare(runtime)
        return self._run_once(runtime, execution)

    def _prepare(self, runtime: Runtime) -> None:
        """**Collective.** Build the executor, for messages if shared memory does not suffice."""
        self._executor = None
        try:
            self._executor = self._build(runtime)
        except errors.WorkspaceError as caught:
            if not (caught.shared and runtime.give_up_shared_memory()):
                raise
        if self._executor is None:  # not in the handler, as in `_run`
            self._executor = self._build(runtime)
        self._shared = runtime.backend.shared
        log.planned(runtime.rank, self.noun, self.plan)

    def _run_once(self, runtime: Runtime, execution: ExecutionT) -> Any:
        """**Collective.** One execution; WorkspaceError on all ranks if shared memory does not suffice.

        The first agreement also raises an error that any rank found in its matrices. The closing agreement guarantees
        that no peer still reads this rank's operands, result or workspace.
        """
        backend, verb = runtime.backend, self._verb(execution)
        with backend.provisional():  # a rank that found an error allocates nothing, and so must all
            with runtime.local_step(verb):
                if self._executor is None:
                    raise errors.ContextError(f"execute: the planned {self.noun} is closed")
                execution = self._checked(runtime, execution)
                result = execution.out
                if result is None:
                    result = self._new_result(runtime, execution)
                    if self._shared != backend.shared:  # it made the context switch to messages
                        self._prepare(runtime)
                executor: Executor = self._executor
                x = self._operands(execution, result)
                alone = executor.publish(x)
                maxima, call_args = (int(alone), int(self._lends())), self._call_args(execution)
            scratch, lends = runtime.agree(verb, call_args, None, maxima)
        if executor.prepare(scratch=bool(scratch)):
            runtime.agree(f"{verb}: staged", {})
        progress = backend.progressing() if self.plan.overlaps_messages else nullcontext()
        with runtime.collective_section(verb, expected=(errors.WorkspaceError, KeyboardInterrupt)), progress:
            executor.run(x)
            backend.arrays.settle()
        if backend.shared and runtime.nprocs > 1 and lends and executor.lends:
            runtime.agree(f"end of {verb}", {})
        self._finish(runtime, execution, result)
        return result
