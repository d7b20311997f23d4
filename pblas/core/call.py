"""The steps of every collective call: check, agree, find or make the plan, execute, agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from pblas import errors
from pblas.core.checks import check_matrices, enough_ranks, not_a_matrix
from pblas.core.operation import Bound, Operation, ResultT
from pblas.core.planned import Begun, Planned
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.kept_plans import MOST_NBYTES
from pblas.runtime.runtime import Runtime, fail_without_context
from pblas.simulation.hardware import Topology

P = ParamSpec("P")
CheckedT = TypeVar("CheckedT")
Bind = Callable[Concatenate[str, Runtime, P], "Bound[ResultT]"]
"""Checks the arguments of a public call on this rank: bind(opname, runtime, *arguments)."""


def runtime_of(opname: str, matrices: Mapping[str, object]) -> Runtime:
    """The runtime of the first matrix; without any, an error that all ranks of the open context raise."""
    for x in matrices.values():
        if isinstance(x, DistMatrix):
            return x.runtime
    name, x = next(iter(matrices.items()))
    return fail_without_context(opname, not_a_matrix(opname, name.lower(), x))


def call(
    opname: str, bind: Bind[P, ResultT], matrices: Mapping[str, object], *args: P.args, **kwargs: P.kwargs
) -> ResultT:
    """**Collective.** The public call of an operation."""
    runtime = runtime_of(opname, matrices)
    with runtime.call(opname):
        return _perform(opname, runtime, partial(bind, opname, runtime, *args, **kwargs))


@contextmanager
def checked_call(
    opname: str,
    check: Callable[Concatenate[str, Runtime, P], CheckedT],
    matrices: Mapping[str, object],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Iterator[tuple[Runtime, CheckedT]]:
    """**Collective.** A with block around a public call of several steps; `check` is to them what `bind` is to `call`.

    The agreement of the first step raises the error of a rank whose arguments are wrong.
    """
    runtime = runtime_of(opname, matrices)
    with runtime.call(opname):
        with runtime.local_step(opname):
            checked = check(opname, runtime, *args, **kwargs)
        yield runtime, checked


def step(opname: str, runtime: Runtime, bind: Callable[[], Bound[ResultT]], *, agrees: str = "") -> ResultT:
    """**Collective.** A step of a call whose arguments are agreed on, or stand in `agrees` if this is its first step.

    One agreement starts it. None ends it: peers may read its operands until the next agreement, which is that of the
    next step, or the one at the end of the public call (`Runtime.end_reading`). A caller that writes to the operands by
    itself ends the reading before.
    """
    return _perform(opname, runtime, bind, step_text=agrees)


def _perform(
    opname: str, runtime: Runtime, bind: Callable[[], Bound[ResultT]], *, step_text: str | None = None
) -> ResultT:
    """**Collective.** One call or step. If all ranks have kept its plan, one agreement compares and starts it."""
    is_step, backend = step_text is not None, runtime.backend
    with runtime.local_step(opname):
        bound = bind()
        check_matrices(opname, runtime, bound)
        operation, planned = _kept(opname, runtime, bound)
        bound = operation.parts(opname, runtime, bound)
    begun: Begun | None = None
    if planned is not None and planned.is_alone(runtime, bound):
        backend.agree(opname)
        begun = planned.begin(opname, runtime, bound)
        scratch = int(begun.alone)
    else:
        with backend.provisional as allocated:
            with runtime.local_step(opname):
                if is_step and bound.new is not None and bound.new.lld is not None:  # of a plan: equal on all ranks
                    bound = bound._replace(nelements=bound.new.max_stored_nelements)
                is_known = is_step or not bound.nelements  # otherwise the largest of all ranks is not known yet
                if is_known and planned is not None and planned.is_ready(runtime, bound):
                    begun = planned.begin(opname, runtime, bound)
                text = step_text if is_step else bound.text + (planned.text if planned else operation.text)
            waits = 0 if begun is not None else 2 if planned is None else 1
            maxima = waits, int(begun is not None and begun.alone), bound.nelements, bound.fact
            waits, scratch, nelements, fact = backend.agree(f"{opname}{text}", maxima=maxima).maxima
            if waits:
                allocated.undo()
        if planned is None or begun is None or waits:
            bound = bound._replace(nelements=nelements, fact=fact)
            return _late(opname, runtime, bound, None if waits == 2 else planned, closes=not is_step)
    short = False
    try:
        value = planned.complete(opname, runtime, bound, begun, scratch=bool(scratch), closes=not is_step)
    except BaseException as caught:
        runtime.kept.drop(bound.key)
        short = isinstance(caught, errors.WorkspaceError) and caught.shared and runtime.give_up_shared_memory()
        if not short:
            raise
    if short:  # here, where no traceback holds the memory
        return _late(opname, runtime, bound, None, closes=not is_step)
    if not planned.in_order:  # which has no buffers
        planned.free_buffers()
    runtime.kept.keep(bound.key, planned)
    return value


def _late(
    opname: str, runtime: Runtime, bound: Bound[ResultT], planned: Planned[ResultT] | None, *, closes: bool
) -> ResultT:
    """**Collective.** A call that could not begin before its agreement; None: some rank lacks the plan."""
    form = bound.operation.agreed(bound.form, bound.fact)
    if form != bound.form:
        bound = bound._replace(form=form)
        _, planned = _kept(opname, runtime, bound)
        if runtime.agree(f"{opname}: plan", {}, None, (int(planned is None),))[0]:
            planned = None
    if planned is None:
        planned = made(opname, runtime, bound)
    try:
        if planned.operation.is_local and not planned.operation.needs_agreement:
            value = planned.run_locally(opname, runtime, bound)
        else:
            value = planned.perform(opname, runtime, lambda: bound, closes=closes)
    except BaseException:
        runtime.kept.drop(bound.key)
        planned.close()
        raise
    planned.free_buffers()
    if planned.kept_nbytes <= MOST_NBYTES:
        runtime.kept.keep(bound.key, planned)
    else:
        planned.close()
    return value


def _kept(opname: str, runtime: Runtime, bound: Bound[ResultT]) -> tuple[Operation[ResultT], Planned[ResultT] | None]:
    """The operation of a call and its kept plan; makes a plan that has no shared memory (local)."""
    planned: Planned[ResultT] | None = runtime.kept.get(bound.key, Planned)
    if planned is not None and (planned.in_order or planned.topology is runtime.topology):
        return planned.operation, planned
    operation = bound.operation.made(opname, bound.form, runtime.nprocs, runtime.topology)
    if not operation.is_local:
        return operation, None
    return operation, Planned(operation, runtime, runtime.nprocs, runtime.topology, bound)


PlannedT = TypeVar("PlannedT", bound=Planned[Any])


def made(opname: str, runtime: Runtime, bound: Bound[Any], kind: type[PlannedT] = Planned) -> PlannedT:  # type: ignore[assignment]
    """**Collective.** The planned operation of agreed arguments."""
    with runtime.building(opname):
        operation = bound.operation.made(opname, bound.form, runtime.nprocs, runtime.topology)
        return kind(operation, runtime, runtime.nprocs, runtime.topology, bound)


def planned(
    opname: str,
    kind: type[PlannedT],
    bind: Bind[P, Any],
    matrices: Mapping[str, object],
    *args: P.args,
    **kwargs: P.kwargs,
) -> PlannedT:
    """**Collective.** A new planned operation of matrices, for the public `plan_...` functions."""
    runtime = runtime_of(opname, matrices)
    with runtime.call(opname):
        bound, _ = agreed(opname, runtime, partial(bind, opname, runtime, *args, **kwargs))
        return made(opname, runtime, bound, kind)


def agreed(
    opname: str, runtime: Runtime, bind: Callable[[], Bound[ResultT]]
) -> tuple[Bound[ResultT], Operation[ResultT]]:
    """**Collective.** The arguments of a call that plans, on which all ranks agree, and its operation."""
    with runtime.local_step(opname):
        bound = bind()
        check_matrices(opname, runtime, bound)
        operation = bound.operation.made(opname, bound.form, runtime.nprocs, runtime.topology)
        bound = operation.parts(opname, runtime, bound)
    maxima = bound.nelements, bound.fact
    nelements, fact = runtime.backend.agree(f"{opname}{bound.text}{operation.text}", maxima=maxima).maxima
    form = bound.operation.agreed(bound.form, fact)
    return bound._replace(form=form, nelements=nelements, fact=fact), operation


def is_of_descriptors(matrices: Mapping[str, object]) -> bool:
    """Whether a call plans from descriptors, for which it needs no other rank. Without any it may mean matrices."""
    values = matrices.values()
    return any(isinstance(x, MatrixDescriptor) for x in values) and not any(isinstance(x, DistMatrix) for x in values)


def planned_without_context(
    opname: str,
    bound: Bound[Any],
    kind: type[PlannedT],
    nprocs: int | None,
    descs: Iterable[MatrixDescriptor],
    topology: Topology | None = None,
) -> PlannedT:
    """A planned operation of descriptors, which explains and simulates itself, and cannot run (local)."""
    ranks = enough_ranks(opname, nprocs, descs)
    topology = topology or Topology(ranks, shared=True)
    return kind(bound.operation.made(opname, bound.form, ranks, topology), None, ranks, topology, bound)
