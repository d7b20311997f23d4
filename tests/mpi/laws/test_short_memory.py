"""The law of shortages: where shared memory runs out, in any allocation of any call, messages give the right result.

With a fixed transport all ranks raise WorkspaceError instead, and the context goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import pblas
from pblas.core.planned import Planned
from tests.common.operations.catalogue import OPERATIONS
from tests.common.operations.operation import Operand, Operation, Values, made, outcome, result_given, wrong_result
from tests.common.ranks import COMM, few
from tests.common.shortage import Windows

MANY = 1000
SAME = re.compile(
    r"plan_(?!matmul)|__(?!matmul|add|iadd|setitem)|_factor: (det|logdet|slogdet|rcond|lu|r|apply_q)|: with C|Context"
    r"|: generalized|linalg.(cond|det|slogdet|orth|lstsq|inv|cg)$"
)
ALLOCATING = [*(name for name in OPERATIONS if not SAME.search(name)), "blas.syrk: with C", "Context.allreduce"]
"""Calls that allocate memory in ways of their own; the others are made of these."""
GROUP = 5  # a context keeps the plans of eight calls
pytestmark = [pytest.mark.mpi(min_size=2), few]


class Calls:
    """Calls with limited memory, and all that went wrong with them on this rank."""

    def __init__(self, windows: Windows | PrivateMemory, operation: Operation) -> None:
        self.windows, self.operation, self.failures = windows, operation, list[str]()

    def run(self, ctx: pblas.Context, values: Values, limit: int) -> str:
        """**Collective.** One call that may allocate `limit` windows: the class of its exception."""
        self.windows.open(MANY)
        matrices, arrays = made(ctx, values)
        self.windows.open(limit)
        kind, said, result = outcome(lambda: self.operation.call(ctx, **matrices))
        refused = self.windows.refused
        self.windows.open(MANY)
        everywhere = COMM.allgather((kind, said))
        if len(set(everywhere)) > 1:
            self.failures.append(f"{limit} windows: the ranks saw different outcomes: {everywhere}")
        elif kind not in ("", "WorkspaceError"):
            self.failures.append(f"{limit} windows: {kind} {said}")
        elif not kind:
            wrong = wrong_result(self.operation, result, arrays)
            self.failures += [f"{limit} windows: {wrong}"] if wrong else []
        self.windows.refused = refused
        return kind

    def check(self) -> None:
        """**Collective.** Assert that no rank has seen a failure."""
        texts = dict.fromkeys(text for failures in COMM.allgather(self.failures) for text in failures[:8])
        if texts:
            pytest.fail("\n".join(texts))


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Windows:
    return Windows(monkeypatch, alone=True)


def homes(operation: Operation) -> Iterator[Values]:
    """The arguments of the base call outside windows, where calls allocate most, without and with `out`."""
    for values in result_given(operation):
        yield {x: replace(value, own=True) if isinstance(value, Operand) else value for x, value in values.items()}


def described(values: Values) -> str:
    return "with out" if "out" in values else "without out"


@pytest.mark.parametrize("name", ALLOCATING)
def test_messages_give_the_result_where_memory_runs_out(windows: Windows, name: str) -> None:
    """Each allocation of the first call is refused once, each time in a new context."""
    calls = Calls(windows, OPERATIONS[name])
    for values in homes(calls.operation):
        limit, refused = 0, True
        while refused:
            with pblas.Context(timeout=20) as ctx:
                kind = calls.run(ctx, values, limit)
                refused = windows.refused
                text = f"{limit} windows, {described(values)}"
                if kind:
                    calls.failures.append(f"{text}: {kind}")
                if ctx.runtime.backend.shared == refused:
                    calls.failures.append(f"{text}: {'still' if refused else 'no longer'} in shared memory")
                if refused:
                    calls.run(ctx, values, 0)
            limit += 1
    calls.check()


@pytest.mark.parametrize("name", ALLOCATING)
def test_a_fixed_transport_raises_on_all_ranks(windows: Windows, name: str) -> None:
    """The call is repeated, each time with one window more, until no allocation is refused."""
    calls = Calls(windows, OPERATIONS[name])
    with pblas.Context(timeout=20, transport="shared") as ctx:
        for values in homes(calls.operation):
            limit, refused = 0, True
            while refused:
                kind, refused = calls.run(ctx, values, limit), windows.refused
                if (kind == "WorkspaceError") != refused:
                    calls.failures.append(f"{limit} windows, {described(values)}: {kind}")
                limit += 1
    calls.check()


@pytest.mark.parametrize("first", range(0, len(OPERATIONS), GROUP))
def test_the_same_calls_before_and_after_the_context_gives_up_shared_memory(windows: Windows, first: int) -> None:
    """What a context has kept of calls in shared memory does not serve calls by messages."""
    group = [Calls(windows, operation) for operation in list(OPERATIONS.values())[first : first + GROUP]]
    with pblas.Context(timeout=20) as ctx:
        for calls in group:
            calls.run(ctx, calls.operation.values, MANY)
        windows.open(0)
        ctx.zeros((64 * ctx.nprocs, 64))
        assert not ctx.runtime.backend.shared
        for calls in group:
            calls.run(ctx, calls.operation.values, MANY)
    for calls in group:
        calls.check()


@pytest.mark.parametrize("name", [name for name in OPERATIONS if "plan_" in name])
def test_a_planned_operation_follows_its_context_to_messages(
    windows: Windows, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """It was planned before the context gave up shared memory, and is executed after."""
    calls, perform, transports = Calls(windows, OPERATIONS[name]), Planned.perform, set[str]()

    def later(planned: Any, opname: str, runtime: Any, *arguments: Any, **options: Any) -> Any:
        runtime.give_up_shared_memory()
        value = perform(planned, opname, runtime, *arguments, **options)
        transports.add(planned.plan.transport)
        return value

    monkeypatch.setattr(Planned, "perform", later)
    with pblas.Context(timeout=20) as ctx:
        kind = calls.run(ctx, calls.operation.values, MANY)
        assert not ctx.runtime.backend.shared
    calls.check()
    assert not kind
    assert transports == {"message"}


class PrivateMemory:
    """Private memory of which one rank can allocate only a limited number of blocks (global)."""

    def __init__(self, patch: pytest.MonkeyPatch, ctx: pblas.Context, poor: int) -> None:
        self.refused, self._left, self._poor = False, MANY, poor
        self._private = ctx.runtime.backend.private
        patch.setattr(ctx.runtime.backend, "private", self.allocate)

    def open(self, count: int) -> None:
        """Allow `count` more blocks."""
        self._left, self.refused = count, False

    def allocate(self, nbytes: int) -> Any:
        self._left -= COMM.rank == self._poor
        if self._left >= 0:
            return self._private(nbytes)
        self.refused = True
        raise pblas.WorkspaceError("there is no more")


@pytest.mark.parametrize("early", [0, 1 << 20])
@pytest.mark.parametrize("name", ALLOCATING)
def test_all_ranks_know_that_one_has_no_private_memory(monkeypatch: pytest.MonkeyPatch, name: str, early: int) -> None:
    """Each allocation of a call by messages is refused on one rank; then the ranks agree on an error.

    Small results are allocated before the agreement of their call.
    """
    monkeypatch.setattr("pblas.core.planned._EARLY_NBYTES", early)
    with pblas.Context(timeout=20, transport="message") as ctx:
        for poor in sorted({0, COMM.size - 1}):
            calls = Calls(PrivateMemory(monkeypatch, ctx, poor), OPERATIONS[name])
            for values in homes(calls.operation):
                limit, refused = 0, True
                while refused:
                    kind = calls.run(ctx, values, limit)
                    refused = COMM.bcast(calls.windows.refused, poor)
                    if (kind == "WorkspaceError") != refused:
                        calls.failures.append(f"{limit} blocks on rank {poor}, {described(values)}: {kind}")
                    limit += 1
            calls.check()
