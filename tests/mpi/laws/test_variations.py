"""The law of kept plans: calls in one context that differ in one argument all give the right result, in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pblas.core import call
from pblas.core.operation import Bound
from pblas.runtime.runtime import Runtime
from tests.common.operations.catalogue import OPERATIONS
from tests.common.operations.operation import N, Values, made, outcome, wrong_result
from tests.common.ranks import COMM, Contexts

SETTINGS = ("shared", "message")
pytestmark = pytest.mark.mpi
FORMS: dict[tuple[object, str], object] = {}
"""The form of each text that the ranks compare."""


@pytest.fixture
def ambiguous(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts that the ranks have compared in a test, and that another form has too, in any test."""
    perform, found = call._perform, list[str]()

    def performed(
        opname: str, runtime: Runtime, bind: Callable[[], Bound[Any]], *, step_text: str | None = None
    ) -> object:
        def recorded() -> Bound[Any]:
            bound = bind()
            operation = bound.operation.made(opname, bound.form, runtime.nprocs, runtime.topology)
            text = bound.text + operation.text if step_text is None else step_text
            # Without a text the form of a step follows from earlier agreements.
            if text and FORMS.setdefault((bound.operation, opname + text), bound.form) != bound.form:
                found.append(f"two forms have one text: {opname}{text}")
            return bound

        return perform(opname, runtime, recorded, step_text=step_text)

    monkeypatch.setattr(call, "_perform", performed)
    return found


class Calls:
    """Calls of one operation in one context, and all that went wrong with them on this rank."""

    def __init__(self, contexts: Contexts, setting: str, name: str) -> None:
        self.ctx, self.operation, self.failures = contexts[setting], OPERATIONS[name], list[str]()

    def run(self, text: str, values: Values, n: int) -> None:
        """**Collective.** One call; every rank goes on after a wrong result, so that none waits for it."""
        matrices, arrays = made(self.ctx, values, n)
        kind, said, result = outcome(lambda: self.operation.call(self.ctx, **matrices))
        said = said if kind else wrong_result(self.operation, result, arrays)
        if said:
            self.failures.append(f"{text}: {kind} {said}")

    def check(self) -> None:
        """**Collective.** Assert that no rank has seen a failure."""
        everywhere = COMM.allgather(self.failures)
        texts = dict.fromkeys(text for failures in everywhere for text in failures[:8])
        if texts:
            pytest.fail("\n".join(texts))


@pytest.mark.parametrize("name", OPERATIONS)
def test_calls_that_differ_in_one_argument(contexts: Contexts, name: str, ambiguous: list[str]) -> None:
    """The base call again before and after each variation: the context keeps its plan all the time.

    Two forms have two texts.
    """
    calls = Calls(contexts, "shared", name)
    base = calls.operation.values
    calls.run("the first call", base, N)
    for text, values in calls.operation.variations():
        calls.run(text, values, N)
        calls.run(f"the base call after {text}", base, N)
    calls.failures += ambiguous
    calls.check()


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_base_call_comes_after_its_variation(contexts: Contexts, name: str) -> None:
    """Each pair has a size of its own, so that the context has no plan of the base call yet."""
    calls = Calls(contexts, "message", name)
    for which, (text, values) in enumerate(calls.operation.variations()):
        n = 5 + which % 9  # a context keeps the plans of eight calls
        calls.run(f"{text}, n={n}", values, n)
        calls.run(f"the base call after {text}, n={n}", calls.operation.values, n)
        calls.run(f"{text} again, n={n}", values, n)
    calls.check()
