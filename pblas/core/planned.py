"""A planned operation: its plan, its executor, and executions. One class for all operations."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self

from pblas import errors
from pblas.backends import log
from pblas.backends.local_step import LocalStep
from pblas.core.operation import Bound, Executor, Operation, ResultT
from pblas.matrices.matrix import DistMatrix
from pblas.plans.base import Plan
from pblas.runtime.kept_plans import Kept
from pblas.runtime.runtime import Runtime, spelled

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from pblas.backends.device import Device
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.simulation.hardware import Topology
    from pblas.trace import Paths, Trace

_EARLY_NBYTES = 1 << 20
"""Most bytes of a new result that is allocated before the agreement of its call. That agreement frees the memory that
was dropped before, so a loop holds one early result more; and only small calls feel a second agreement."""

_INTERNAL = frozenset(
    (
        *("begin", "bound", "bound_launch", "complete", "detach", "executing", "factoring", "forget_operands"),
        *("free_buffers", "in_order", "is_alone", "is_ready", "kept_nbytes", "kind", "last_use", "launch", "made"),
        *("new_result", "noun", "operation", "perform", "prepare", "rehearse", "run", "run_locally", "text"),
        *("topology", "trial"),
    )
)
"""Attributes that other modules of the package use, and TAB does not show."""


class PlanHandle:
    """What users do with any planned operation, besides executing it.

    Usable as a `with` block; `close` drops the workspace, as does dropping the object.
    """

    noun: str  # name of the operation, for messages
    plan: Any  # the plan (global)
    execute: Any  # the public call that runs the plan
    _runtime: Runtime | None = None
    _executor: Any = None

    def explain(self) -> str:
        """The plan in about ten lines: the reason for it, and the bytes that it moves."""
        text: str = self.plan.explain()
        return text

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the bytes that each rank receives and holds into a file; see `Plan.plot` (local)."""
        self.plan.plot(path)

    def trace(self, *arguments: object, paths: Paths = (), title: str | None = None, **options: object) -> Trace:
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
        from pblas.trace import Tracing

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
        from pblas.layouts.drawing.svg import html_of

        return html_of(self.explain(), self.plan.max_received_nbytes, self.plan.lower_bound_nbytes)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def _no_context_error(self, opname: str) -> errors.ArgumentError:
        """The error of an operation that was planned without a context."""
        return errors.ArgumentError(
            f"{opname}: planned from descriptors, without a context; plan with matrices to {opname}"
        )


class Begun(NamedTuple):
    """An execution whose arrays are published: an agreement of all ranks starts it (local)."""

    result: DistMatrix | None
    x: Any
    alone: bool


class DryExecutor:
    """Stands for an executor in a dry run: it holds the memory of one, and says when that would run."""

    peers_read = False

    def __init__(self, operation: Operation[Any], plan: Any, backend: Any) -> None:
        self._operation, self._plan, self._backend = operation, plan, backend
        self._executor: Any = None
        self._reserve()

    def _reserve(self) -> None:
        """Make the executor, unless it has no memory of its own (local)."""
        if self._executor is None and not self._operation.is_local:
            self._executor = self._operation.executor(self._plan, self._backend)

    @property
    def workspace_nbytes(self) -> int:
        """As of the executor (local)."""
        return 0 if self._executor is None else self._executor.workspace_nbytes

    def free_buffers(self) -> None:
        """Free the executor's memory (local)."""
        self._executor = None

    def publish(self, _: object) -> bool:
        return False

    def prepare(self, *, scratch: bool) -> bool:
        return False

    def run(self, runtime: Runtime) -> Any:
        """Report the plan, and return what stands for the value of the operation (local)."""
        self._reserve()
        plan = self._plan if isinstance(self._plan, Plan) else None
        transient = self._backend.counted(plan.transient_nbytes) if plan else None
        value = self._operation.unknown(runtime)
        self._backend.executed(runtime.called, plan)
        del transient
        return value if value is None else self._backend.known(runtime.called, value)


class Planned(PlanHandle, Kept, Generic[ResultT]):
    """The plan and the executor of an operation."""

    # Whether the executor uses shared memory, which the context may give up later; None: it must be made anew (global)
    _shared: bool | None = False
    _overlaps = False  # whether the executor computes while messages are under way (global)
    in_order = False  # whether an execution is work on the caller's stream alone (global)
    _read_since = -1  # the agreement after which peers began to read what this plan published last (global)

    def __init__(
        self,
        operation: Operation[ResultT],  # what is computed (global)
        # of the context; None for an operation planned from descriptors, which cannot run (global)
        runtime: Runtime | None,
        nprocs: int,  # ranks (global)
        topology: Topology,  # the machine (global)
        bound: Bound[ResultT],  # the arguments with which it was planned (global)
    ) -> None:
        self.operation, self.noun, self.text, self.topology = operation, operation.noun, operation.text, topology
        self._runtime = runtime
        self.bound = bound._replace(reads={}, out=None, old=None, local=None)
        """The planned arguments without their matrices, for `execute`."""
        self._scalars = spelled(bound.scalars)
        self.plan: Plan = operation.plan(nprocs, topology)
        self.kept_nbytes = self.plan.buffer_nbytes if operation.keeps_workspace else 0
        result = operation.result
        self._has_result = result is not None
        if result is not None:
            self._desc, self._dtype = result
        if runtime is not None:
            self._call = f"execute of planned {self.noun} {runtime.next_number()}"
            if result is not None:
                self._place = runtime.local_memory(self._desc, self._dtype)
            self.prepare(runtime)
            runtime.matrices.add(self)

    @property
    def out(self) -> MatrixDescriptor:
        """Descriptor of the result (global)."""
        return self._desc

    def prepare(self, runtime: Runtime) -> None:
        """**Collective**, unless it is local. Make the executor, for messages if shared memory does not suffice."""
        self._executor, short = None, False
        try:
            self._executor = self._new_executor(runtime)
        except errors.WorkspaceError as caught:
            short = caught.shared and runtime.give_up_shared_memory()
            if not short:
                raise
        if short:  # here, where no traceback holds the memory
            self._executor = self._new_executor(runtime)
        self._shared, self._overlaps = runtime.backend.shared, self.plan.overlaps_messages
        self.in_order = runtime.backend.dry is None and self.operation.in_order(self._executor)
        log.planned(runtime.rank, self.noun, self.plan)

    def _new_executor(self, runtime: Runtime) -> Executor:
        """**Collective**, unless it is local. The executor; of a new plan if the context has changed its transport."""
        transport = runtime.topology.transport(runtime.nprocs)
        if transport not in (self.topology.transport(runtime.nprocs), "push"):
            machine = runtime.nprocs, runtime.topology
            self.operation = self.operation.made(self.noun, self.bound.form, *machine)
            self.plan, self.topology = self.operation.plan(*machine), runtime.topology
        if runtime.backend.dry is not None:
            return DryExecutor(self.operation, self.plan, runtime.backend)
        return self.operation.executor(self.plan, runtime.backend)

    def free_buffers(self) -> None:
        """Free the memory that an idle plan does not need (local)."""
        if self._executor is not None and not (self.in_order or self.operation.keeps_workspace):
            self._executor.free_buffers()

    # One execution

    def is_alone(self, runtime: Runtime, bound: Bound[ResultT]) -> bool:
        """Whether the arguments start the execution: there is no other rank to agree with (local)."""
        if runtime.backend.size > 1 or bound.nelements or bound.fact:
            return False
        return self._executor is not None and self._shared == runtime.backend.shared

    def is_ready(self, runtime: Runtime, bound: Bound[ResultT]) -> bool:
        """Whether one agreement may both compare the arguments and start the execution (local).

        A new result must be small, and fit into the windows that there are: ranks make a new one together.
        """
        if self._executor is None or self._shared != runtime.backend.shared:
            return False
        if bound.fact or self._read_since == runtime.backend.agreement.ncalls:
            return False  # the largest fact of all ranks is not known yet, or peers may still look up arrays
        if bound.out is not None or not self._has_result:
            return True
        nbytes = max(self._place.nbytes, bound.nelements * self._dtype.itemsize)
        return nbytes <= _EARLY_NBYTES and runtime.backend.has_room(nbytes)

    def new_result(self, runtime: Runtime, bound: Bound[ResultT]) -> DistMatrix:
        """**Collective.** A new matrix for the result."""
        desc, place = self._desc, self._place
        if bound.nelements:  # some rank gave a leading dimension: all allocate as much
            desc = bound.new or desc
            place = runtime.local_memory(desc, self._dtype, max(bound.nelements, desc.max_local_nelements))
        result = DistMatrix(desc, runtime.empty(place), runtime)
        self.operation.fresh(runtime.backend, result)
        return result

    def begin(self, opname: str, runtime: Runtime, bound: Bound[ResultT]) -> Begun:
        """Make a new result if there is no `out`, and publish the arrays (local; provisional)."""
        if self.in_order or not self.operation.uses_lanes:
            runtime.backend.arrays.begin(in_order=True)
        elif runtime.backend.dry is None:
            self.operation.begin(runtime.backend.arrays, bound)
        result: Any = bound.out
        if result is None and self._has_result:
            result = self.new_result(runtime, bound)
            if self._shared != runtime.backend.shared:  # it made the context switch to messages
                self.prepare(runtime)
        if runtime.backend.dry is not None:
            return Begun(result, runtime, alone=False)
        x = self.operation.arrays(opname, runtime, self._executor, bound, result)
        return Begun(result, x, alone=not self.in_order and self._executor.publish(x))

    def complete(
        self, opname: str, runtime: Runtime, bound: Bound[ResultT], begun: Begun, *, scratch: bool, closes: bool
    ) -> ResultT:
        """**Collective.** Run an execution that all ranks have begun.

        `scratch`: any rank must stage an array. `closes`: an agreement follows if peers read this rank's memory;
        otherwise that of a later step serves, before this rank writes there.
        """
        backend, executor = runtime.backend, self._executor
        if self.in_order:
            assert begun.result is not None, "the value is a matrix"
            executor.run(begun.x)
            backend.arrays.hand_over()
            return self.operation.finish(opname, runtime, executor, bound, begun.result)
        if scratch:
            self._stage(opname, runtime)
        elif executor.prepare(scratch=False):
            backend.agree(f"{opname}: staged")
        if self._overlaps:
            with backend.progressing():
                value = self._run_on_device(backend.arrays, begun.x)
        else:
            value = self._run_on_device(backend.arrays, begun.x)
        if executor.peers_read and backend.shared and runtime.nprocs > 1:
            self._read_since = runtime.next_number()
            if not bound.is_temporary:
                runtime.begin_reading()
        if closes or self.operation.closes:
            runtime.end_reading(opname)
        return self.operation.finish(opname, runtime, executor, bound, value if begun.result is None else begun.result)

    def _run_on_device(self, arrays: Device, x: Any) -> Any:
        """**Collective.** Run the executor, and end its work on the device."""
        value = self._executor.run(x)
        if self.operation.uses_lanes:
            arrays.synchronize()
        else:
            arrays.hand_over()
        return value

    def _stage(self, opname: str, runtime: Runtime) -> None:
        """**Collective.** Copy arrays to memory that peers reach; an exception of any rank is raised on all ranks."""
        shared, self._shared = self._shared, None  # stays so after an exception: all ranks give back what they staged
        with runtime.backend.provisional:
            with LocalStep(runtime.fail, opname):  # without an agreement nothing is staged, and nothing fails
                agrees = self._executor.prepare(scratch=True)
            if agrees:
                runtime.backend.agree(f"{opname}: staged")
        self._shared = shared

    def perform(
        self, opname: str, runtime: Runtime, bind: Callable[[], Bound[ResultT]], *, closes: bool = True
    ) -> ResultT:
        """**Collective.** An execution with an opening agreement of its own; by messages if shared memory is short."""
        if self._executor is not None and self._shared != runtime.backend.shared:
            self.prepare(runtime)
        try:
            return self._perform_once(opname, runtime, bind, closes=closes)
        except errors.WorkspaceError as caught:
            if not (caught.shared and runtime.give_up_shared_memory()):
                raise
        self.prepare(runtime)  # here, where no traceback holds the memory
        return self._perform_once(opname, runtime, bind, closes=closes)

    def _perform_once(
        self, opname: str, runtime: Runtime, bind: Callable[[], Bound[ResultT]], *, closes: bool
    ) -> ResultT:
        """**Collective.** `perform`; WorkspaceError on all ranks if shared memory does not suffice.

        The agreement also raises an error that any rank found in its matrices.
        """
        if self._is_read(runtime):
            runtime.end_reading(opname)
        with runtime.backend.provisional:  # a rank that found an error allocates nothing, and so must all
            with runtime.local_step(opname):
                if self._executor is None:
                    raise errors.ContextError(f"execute: the planned {self.noun} is closed")
                bound = bind()
                begun = self.begin(opname, runtime, bound)
                text = self._agreement_text(bound)
            (scratch,) = runtime.backend.agree(f"{opname}{text}", maxima=(int(begun.alone),)).maxima
        return self.complete(opname, runtime, bound, begun, scratch=bool(scratch), closes=closes)

    def _agreement_text(self, bound: Bound[ResultT]) -> str:
        """The arguments of an execution as text; the planned scalars were spelled before (global)."""
        if bound.agrees is not None:
            return bound.agrees
        scalars = self._scalars if bound.scalars is self.bound.scalars else spelled(bound.scalars)
        return f"{scalars}\nout is given={bound.out is not None}"

    def _is_read(self, runtime: Runtime) -> bool:
        """Whether peers may still look up the arrays of the last execution, so that none is published yet (global)."""
        return self._read_since == runtime.next_number()

    def run_locally(self, opname: str, runtime: Runtime, bound: Bound[ResultT]) -> ResultT:
        """**Collective.** An execution that reads no peer's memory, after an agreement on its arguments."""
        if bound.out is None and self._has_result:
            bound = bound._replace(out=self.new_result(runtime, bound))
            if not runtime.backend.shared:  # private memory: another rank may have none
                runtime.backend.agree(f"{opname}: allocate")
        return self.complete(opname, runtime, bound, self.begin(opname, runtime, bound), scratch=False, closes=False)

    def run(self, bind: Callable[[], Bound[ResultT]]) -> ResultT:
        """**Collective.** The public `execute`: `bind` compares its arguments with the planned ones."""
        runtime = self._runtime
        if runtime is None:
            raise self._no_context_error("execute")
        with runtime.call("execute"):
            return self.perform(self._call, runtime, bind)
