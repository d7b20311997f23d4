"""The law of local conditions: what holds of one rank's memory only is decided by all ranks alike.

All ranks return the right result, or all raise the same error, and the context is usable afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import DistMatrix
from tests.common.gauge import Array
from tests.common.operations.catalogue import OPERATIONS
from tests.common.operations.conditions import CONDITIONS, Placed
from tests.common.operations.operation import (
    Layout,
    Operand,
    Operation,
    Values,
    descriptor,
    made,
    outcome,
    part,
    placed,
    result_given,
    wrong_result,
)
from tests.common.ranks import COMM, Contexts, check_memory, delay_exchanges

SETTINGS = ("shared",)
WITH_MATRICES = [name for name, operation in OPERATIONS.items() if operation.operands]
pytestmark = pytest.mark.mpi(min_size=2)


LAWFUL = ("overlap", "out is", "distributed differently")
"""Reasons for which memory of a result is refused, on all ranks."""


class Calls:
    """Calls of an operation whose outcome must be the same on all ranks."""

    def __init__(self, ctx: pblas.Context, operation: Operation) -> None:
        self.ctx, self.operation, self.failures = ctx, operation, list[str]()

    def run(self, text: str, values: Values, place: Callable[..., DistMatrix] = placed, n: int = 8) -> tuple[str, str]:
        """**Collective.** One call: the class and the text of its exception."""
        matrices, arrays = made(self.ctx, values, n, place)
        kind, said, result = outcome(lambda: self.operation.call(self.ctx, **matrices))
        everywhere = COMM.allgather((kind, said))
        if len(set(everywhere)) > 1:
            self.failures.append(f"{text}: the ranks saw different outcomes: {everywhere}")
        elif not kind:
            wrong = wrong_result(self.operation, result, arrays)
            self.failures += [f"{text}: {wrong}"] if wrong else []
        return kind, said

    def forget(self, rank: int) -> None:
        """Drop the kept plans of one rank (local)."""
        if self.ctx.rank == rank:
            self.ctx.runtime.kept.close()

    def check(self) -> None:
        """**Collective.** Assert that no rank has seen a failure, and that all have the same blocks of memory."""
        check_memory(self.ctx)
        texts = dict.fromkeys(text for failures in COMM.allgather(self.failures) for text in failures[:8])
        if texts:
            pytest.fail("\n".join(texts))


def calls_that_write(operation: Operation) -> Iterator[Values]:
    """The arguments of the base call, with memory for the result, and of one that may overwrite A."""
    yield from result_given(operation)
    if "overwrite_a" in operation.options:
        for conj in {False, "a" in operation.views}:
            yield {**operation.values, "overwrite_a": True, "a": replace(operation.operands["a"], conj=conj)}


@pytest.mark.parametrize("name", WITH_MATRICES)
def test_memory_of_one_rank(contexts: Contexts, name: str) -> None:
    """Memory that peers cannot read, another leading dimension, and memory that may not be written."""
    calls, wrong = Calls(contexts["shared"], OPERATIONS[name]), 0
    for values in calls_that_write(calls.operation):
        for which in (x for x, value in values.items() if isinstance(value, Operand)):
            for condition in CONDITIONS:
                wrong = (wrong + 1) % COMM.size
                place = Placed(which, wrong, condition)
                text = f"{which} {condition} on rank {wrong}, {', '.join(values.keys() - {'dtype'})}"
                kind, said = calls.run(text, values, place)
                if place.written():
                    calls.failures.append(f"{text}: it was written")
                if kind and not (condition == "read-only" and condition in said):
                    calls.failures.append(f"{text}: {kind} {said}")
                if kind:
                    calls.run(f"the base call after {text}", values)
    calls.check()


def overlapping(which: str, wrong: int, shift: int) -> Callable[..., DistMatrix]:
    """As `placed`, but on one rank `out` is in the memory of another operand, a few elements behind its beginning.

    It is memory that peers read in place.
    """
    memory = np.empty(0)

    def place(ctx: pblas.Context, name: str, x: Array, operand: Operand) -> DistMatrix:
        """**Collective.**"""
        nonlocal memory
        if name not in (which, "out"):
            return placed(ctx, name, x, operand)
        size = x.size + shift
        fresh = ctx.empty(descriptor("rows", (size * COMM.size, 1)), x.dtype).local[:, 0]
        desc = descriptor(operand.layout, x.shape)
        local, begin = part(x, desc), shift if name == "out" and ctx.rank == wrong else 0
        if name == which or ctx.rank != wrong:
            memory = fresh
        view = memory[begin : begin + local.size].reshape(local.shape, order="F")
        if name == which:
            memory[...] = np.nan
            view[...] = local
        matrix = ctx.from_local(view, desc)
        return matrix.conj() if operand.conj else matrix

    return place


@pytest.mark.parametrize("name", [name for name in WITH_MATRICES if len(list(result_given(OPERATIONS[name]))) > 1])
def test_out_overlaps_an_operand_on_one_rank(contexts: Contexts, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operand has the layout of `out`, or another one, and may be a conjugated view; a rank reads it late."""
    delay_exchanges(monkeypatch, COMM.size - 1)
    calls, wrong = Calls(contexts["shared"], OPERATIONS[name]), 0
    _, values = result_given(calls.operation)
    for which, operand in calls.operation.operands.items():
        for layout, conj in product(("rows", "columns"), {False, which in calls.operation.views}):
            odd: Any = {**values, which: replace(operand, layout=layout, conj=conj)}
            for shift in (0, 1):
                calls.run(f"out is apart, {which}, {layout}, {conj}", odd)  # now all ranks keep a plan for that
                wrong = (wrong + 1) % COMM.size
                text = f"out overlaps {which} on rank {wrong}, {layout}, {conj}, {shift}"
                kind, said = calls.run(text, odd, overlapping(which, wrong, shift))
                if kind and not any(reason in said for reason in LAWFUL):
                    calls.failures.append(f"{text}: {kind} {said}")
                calls.forget(wrong)
                calls.run(f"{text}, which has no plan", odd, overlapping(which, wrong, shift))
    calls.run("the base call afterwards", calls.operation.values)
    calls.check()


@pytest.mark.parametrize("name", WITH_MATRICES)
def test_one_rank_has_no_elements_or_all(contexts: Contexts, name: str) -> None:
    """Matrices of fewer rows than there are ranks, and matrices that rank 0 has."""
    calls = Calls(contexts["shared"], OPERATIONS[name])
    for values in result_given(calls.operation):
        for n in {1, COMM.size - 1} if calls.operation.least == 1 else ():
            kind, said = calls.run(f"{n} rows", values, n=n)
            calls.failures += [f"{n} rows: {kind} {said}"] if kind else []
        first = {
            x: replace(value, layout="first") if isinstance(value, Operand) else value for x, value in values.items()
        }
        kind, said = calls.run("all on rank 0", first)
        calls.failures += [f"all on rank 0: {kind} {said}"] if kind else []
        for which, value in values.items():
            if isinstance(value, Operand):
                kind, said = calls.run(f"{which} on rank 0", {**values, which: replace(value, layout="first")})
                calls.failures += [f"{which} on rank 0: {kind} {said}"] if kind and LAWFUL[-1] not in said else []
    calls.check()


@pytest.mark.parametrize("name", OPERATIONS)
def test_one_rank_has_no_plan(contexts: Contexts, name: str) -> None:
    """It has dropped the plans that the others keep, as after an error of its own."""
    calls = Calls(contexts["shared"], OPERATIONS[name])
    for values in result_given(calls.operation):
        calls.run("the first call", values)
        for wrong in (0, COMM.size - 1):
            calls.forget(wrong)
            for text in ("no plan", "a plan again"):
                kind, said = calls.run(f"rank {wrong} has {text}", values)
                calls.failures += [f"rank {wrong} has {text}: {kind} {said}"] if kind else []
    calls.check()


NEW_RESULTS = [
    (name, argument, value) for name, operation in OPERATIONS.items() for argument, value in operation.new_results()
]


@pytest.mark.parametrize(("name", "argument", "value"), NEW_RESULTS)
def test_one_rank_gives_a_leading_dimension(contexts: Contexts, name: str, argument: str, value: Layout) -> None:
    """Of a new matrix, whose plan all ranks keep."""
    calls = Calls(contexts["shared"], OPERATIONS[name])
    plain = {**calls.operation.values, argument: value}
    for wrong in (None, *range(COMM.size)):
        own = replace(value, gap=3) if wrong == calls.ctx.rank else value
        kind, said = calls.run(f"rank {wrong} gives one", {**plain, argument: own})
        calls.failures += [f"rank {wrong} gives one: {kind} {said}"] if kind else []
    calls.check()
