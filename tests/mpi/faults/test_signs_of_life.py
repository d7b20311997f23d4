"""A rank that computes in a call is waited for, however long; one that gives no signs of life is named in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import ArgumentError, Context, ContextError, MatrixDescriptor, PeerTimeout, linalg
from tests.common.ranks import (
    COMM,
    check_product,
    first_and_last,
    open_context,
    outcome_of,
    raises_on_all_ranks,
    release,
    wait_as_if_stopped,
    waits,
    waits_long,
)

pytestmark = pytest.mark.mpi(min_size=2)
P = COMM.size
SHORT = 0.8  # seconds: the timeout of the contexts
ROWS = MatrixDescriptor.row_wise(2 * P, 3, P)


def slow_function(slow: int, seconds: float) -> Callable[[Any, Any], Any]:
    """A function of the indices that computes for a while on one rank."""

    def entries(i: Any, j: Any) -> Any:
        if COMM.rank == slow:
            time.sleep(seconds)
        return i + 10.0 * j

    return entries


@waits
@first_and_last("slow")
@pytest.mark.parametrize("transport", ["auto", "message"])
def test_a_rank_that_computes_for_several_timeouts_is_waited_for(transport: str, slow: int) -> None:
    with open_context(transport, timeout=SHORT) as ctx:
        a = ctx.from_function(slow_function(slow, 3.4 * SHORT), ROWS)
        expected = np.arange(2.0 * P)[:, None] + 10.0 * np.arange(3)
        assert np.array_equal(a.to_global(root=None), expected)
        check_product(ctx)


@waits
def test_a_rank_that_multiplies_alone_for_several_timeouts_is_waited_for() -> None:
    """Rank 0 has both matrices; the time of one product says how many rows take long enough."""
    with Context(timeout=60.0, threads=1) as ctx:
        small = ctx.random(MatrixDescriptor.row_wise(600, 600, P, mb=600), seed=1)
        start = time.monotonic()
        _ = small @ small
        seconds = COMM.bcast(time.monotonic() - start)
    timeout = 0.2
    n = int(min(6000, 600 * (4 * timeout / seconds) ** (1 / 3)))
    with Context(timeout=timeout, threads=1) as ctx:
        a = ctx.full(MatrixDescriptor.row_wise(n, n, P, mb=n), 2.0)
        assert float((a @ a).max()) == 4.0 * n


@waits_long
def test_a_rank_without_signs_of_life_is_named_though_another_one_computes() -> None:
    """Rank 0 computes for several timeouts; the last rank is as if stopped; only the last rank is named."""
    stopped = P - 1
    with Context(timeout=SHORT) as ctx:
        usual = slow_function(0, 4 * SHORT)

        def entries(i: Any, j: Any) -> Any:
            if COMM.rank == stopped:
                wait_as_if_stopped(ctx)
            return usual(i, j)

        start = time.monotonic()
        outcome = outcome_of(lambda: ctx.from_function(entries, ROWS))
        seconds = time.monotonic() - start
        release(stopped)
        everywhere = COMM.allgather(outcome)[:stopped]
        assert all(
            name == "PeerTimeout" and f"rank {stopped} of {P} did not arrive" in text for name, text in everywhere
        )
        assert COMM.rank in (0, stopped) or seconds < 2 * SHORT + 2.0, "the timeout, and what a busy machine takes"


@waits_long
def test_a_rank_outside_a_call_is_named() -> None:
    """Signs of life of a rank that is not in a call make nobody wait for it."""
    with Context(timeout=SHORT) as ctx:
        if COMM.rank == 0:
            time.sleep(3 * SHORT)
        with pytest.raises(PeerTimeout, match=f"rank 0 of {P} did not arrive"):
            ctx.zeros(ROWS)


@pytest.mark.parametrize(
    ("call", "kind"), [("progress", ContextError), ("from_function", ArgumentError), ("epilogue", ArgumentError)]
)
def test_a_collective_call_in_a_function_of_the_user_is_refused(call: str, kind: type[Exception]) -> None:
    with Context(timeout=30.0) as ctx:
        a, eye = ctx.ones((4, 4)), ctx.eye(4)

        def report(stage: str, done: float) -> None:
            a.sum()

        def entries(i: Any, j: Any) -> Any:
            return i + 0 * j + (a.sum() if COMM.rank == 0 else 0.0)

        calls: dict[str, Callable[[], object]] = {
            "progress": lambda: linalg.solve(eye, a, progress=report),
            "from_function": lambda: ctx.from_function(entries, (4, 4)),
            "epilogue": lambda: ctx.allreduce(np.ones(5), epilogue=lambda x: entries(x, 0), algorithm="two_shot"),
        }
        raises_on_all_ranks(kind, "which makes this collective call", calls[call])
        assert pblas.elementwise("x + 0", x=a).sum() == 16
        check_product(ctx)
