"""Ctrl-C in collective calls, and threads: the ranks stay together, or say that they have not."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
from mpi4py import MPI

from pblas import Context, ContextError, MatrixDescriptor
from pblas.backends.agreement import Agreement
from pblas.backends.mpi.transport import MpiTransport
from pblas.collectives.collective_plan import CollectiveAlgorithm
from pblas.matrices import scatter_gather as transfer
from tests.common.ranks import (
    COMM,
    check_product,
    culprits,
    few,
    first_and_last,
    raises_on_all_ranks,
    same_on_all_ranks,
)

pytestmark = [pytest.mark.mpi, few]

P = COMM.size
N = 2 * P  # each rank has two rows
ROWS = MatrixDescriptor.row_wise(N, N, P)
TIMEOUT = 30.0
PROMPT = 10.0  # seconds
Transport = Literal["auto", "message"]


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupted(call: Callable[[], object]) -> str:
    """The text of the KeyboardInterrupt that a call raises."""
    try:
        call()
    except KeyboardInterrupt as error:  # pytest.raises would keep the arrays of its frames
        return str(error)
    raise AssertionError("no KeyboardInterrupt")


def alone() -> MPI.Intracomm:
    """A communicator of this rank only."""
    comm = COMM.Split(COMM.rank)
    assert isinstance(comm, MPI.Intracomm)
    return comm


def interrupting(wrong: frozenset[int], times: int = 1) -> Callable[[Any, Any], Any]:
    """A function of the indices that interrupts its rank."""

    def entries(i: Any, j: Any) -> Any:
        for _ in range(times if COMM.rank in wrong else 0):
            interrupt()
        return i + 0.0 * j

    return entries


def test_an_interrupt_in_a_call_is_raised_on_every_rank_by_the_next_agreement() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Context(timeout=TIMEOUT) as ctx:
        for wrong in culprits():
            text = same_on_all_ranks(interrupted(partial(ctx.from_global, interrupting(wrong), ROWS)))
            assert f"interrupted; found on rank {min(wrong)} of {P}" in text
            check_product(ctx)
        assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.mpi(min_size=2)
@first_and_last("wrong")
def test_an_interrupt_while_a_rank_waits_is_raised_when_the_others_have_arrived(wrong: int) -> None:
    def calls() -> None:
        for _ in range(2):
            ctx.zeros(ROWS)

    with Context(timeout=TIMEOUT) as ctx:
        timer = threading.Timer(0.1, interrupt)
        if COMM.rank == wrong:
            timer.start()
        else:
            time.sleep(0.5)
        assert f"interrupted; found on rank {wrong}" in same_on_all_ranks(interrupted(calls))
        if COMM.rank == wrong:
            timer.join()
        check_product(ctx)


@pytest.mark.parametrize("algorithm", ["naive", "one_shot", "two_shot"])
@pytest.mark.parametrize("transport", ["auto", "message"])
def test_an_interrupt_between_steps_of_a_collective_leaves_the_context_usable(
    transport: Transport, algorithm: CollectiveAlgorithm
) -> None:
    with Context(timeout=TIMEOUT, transport=transport) as ctx:
        for wrong in culprits():

            def epilogue(x: Any, wrong: frozenset[int] = wrong) -> Any:
                if COMM.rank in wrong:
                    interrupt()
                return x

            call = partial(ctx.allreduce, np.ones(64 * P), epilogue=epilogue, algorithm=algorithm)
            assert f"interrupted; found on rank {min(wrong)} of {P}" in same_on_all_ranks(interrupted(call))
            check_product(ctx)


@pytest.mark.mpi(min_size=2)
@first_and_last("wrong")
def test_a_second_interrupt_breaks_the_context_which_says_so_on_every_rank(wrong: int) -> None:
    with Context(timeout=TIMEOUT) as ctx:
        start = time.monotonic()
        text = same_on_all_ranks(interrupted(partial(ctx.from_global, interrupting(frozenset({wrong}), 2), ROWS)))
        assert "KeyboardInterrupt in the middle of it" in text
        raises_on_all_ranks(ContextError, "KeyboardInterrupt in the middle of it", partial(ctx.zeros, ROWS))
        assert time.monotonic() - start < PROMPT


@pytest.mark.parametrize("place", ["before", "amid"])
def test_a_context_of_one_rank_survives_interrupts(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Context(alone(), timeout=TIMEOUT) as ctx:
        a = ctx.random(MatrixDescriptor.row_wise(N, N, 1))
        original = transfer.gather

        def gather(*arguments: Any) -> None:
            for _ in range(1 if place == "before" else 2):
                interrupt()
            original(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(transfer, "gather", gather)
            interrupted(a.to_global)
        check_product(ctx)


def test_an_interrupt_outside_of_calls_is_as_ever() -> None:
    with Context(timeout=TIMEOUT) as ctx:
        ctx.zeros(ROWS)
        interrupted(interrupt)
        check_product(ctx)


def test_a_handler_of_the_program_is_called_at_once_and_a_signal_that_is_ignored_stays_so() -> None:
    seen: list[int] = []
    with Context(timeout=TIMEOUT) as ctx:
        for handler in (lambda number, _: seen.append(number), signal.SIG_IGN):
            before = signal.signal(signal.SIGINT, handler)
            try:
                ctx.from_global(interrupting(frozenset(range(P))), ROWS)
                assert signal.getsignal(signal.SIGINT) is handler
            finally:
                signal.signal(signal.SIGINT, before)
        assert seen == [signal.SIGINT]
        check_product(ctx)


def test_an_interrupt_that_came_late_in_the_call_before_is_not_the_first_of_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted_once(_: str) -> None:
        monkeypatch.undo()
        interrupt()

    with Context(timeout=TIMEOUT) as ctx:
        if COMM.rank == 0:
            ctx.runtime.backend.agreement.interrupted = True  # after the last agreement
            monkeypatch.setattr(ctx.runtime, "check_open", interrupted_once)
        interrupted(lambda: ctx.zeros(ROWS))
        check_product(ctx)


def test_closing_frees_the_memory_before_an_interrupt_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = Context(COMM, timeout=TIMEOUT)
    ctx.zeros(ROWS)
    if COMM.rank == 0:
        monkeypatch.setattr(ctx.runtime.backend, "synchronize", lambda _: interrupt())
    interrupted(ctx.close)
    assert ctx.runtime.closed
    assert not ctx.runtime.backend.agreement._rounds


def test_two_threads_that_use_one_context_at_once_are_told_so_and_disturb_nothing() -> None:
    inside, told = threading.Event(), threading.Event()
    outcomes: list[str] = []

    def slowly(i: Any, j: Any) -> Any:
        inside.set()
        assert told.wait(TIMEOUT)
        return i + 0.0 * j

    with Context(timeout=TIMEOUT) as ctx:
        a = ctx.random(ROWS)

        def other() -> None:
            assert inside.wait(TIMEOUT)
            for call in (lambda: ctx.zeros(ROWS), lambda: a @ a, ctx.close, lambda: ctx.allreduce(np.ones(2))):
                try:
                    call()
                except ContextError as error:
                    outcomes.append(str(error))
            told.set()

        thread = threading.Thread(target=other)
        thread.start()
        ctx.from_global(slowly, ROWS)
        thread.join()
        assert len(outcomes) == 4
        assert all("used by two threads" in text for text in outcomes)
        check_product(ctx)
        thread = threading.Thread(target=check_product, args=(ctx,))  # one after the other is fine
        thread.start()
        thread.join()
        check_product(ctx)


def test_the_door_of_a_call_costs_microseconds() -> None:
    with Context(timeout=TIMEOUT) as ctx:
        call, best = ctx.runtime.call, float("inf")
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(500):
                with call("nothing"):
                    pass
            best = min(best, (time.perf_counter() - start) / 500)
        assert best < 20e-6  # 2 us on a machine of its own


def test_an_agreement_of_one_rank_raises_its_interrupt() -> None:
    peers = MpiTransport(alone())
    agreement = Agreement(peers, TIMEOUT)
    agreement.interrupted = True
    interrupted(partial(agreement.agree, "nothing"))
    assert not agreement.interrupted
    agreement.agree("nothing")
