"""A context frees its resources, dropped memory is reused, and no rank hangs if another is late or leaves."""

from __future__ import annotations

import gc
import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any, Literal

import numpy as np
import pytest
from mpi4py import MPI
from threadpoolctl import threadpool_info

import pblas
from pblas import Context, ContextError, MatrixDescriptor, MismatchError, PeerTimeout, pmatmul
from pblas.backends.agreement import Agreement
from pblas.backends.mpi.transport import MpiTransport
from pblas.errors import PblasWarning
from pblas.factor.lu_run import RunLu
from pblas.matmul import allgather_gemm_run as allgather_gemm
from tests.common.ranks import (
    COMM,
    check_product,
    culprits,
    entries,
    few,
    grids,
    no_memory,
    one_host,
    outcome_of,
    outcome_with_late_rank,
    raises_on_all_ranks,
    release,
    same_on_all_ranks,
    some_wrong,
    wait_as_if_stopped,
    waits,
    waits_long,
)

pytestmark = pytest.mark.mpi

TIMEOUT = 20.0
SHORT = 1.0  # seconds, for the tests in which a rank is late on purpose
Transport = Literal["auto", "message"]


def rows(m: int, n: int, size: int | None = None) -> MatrixDescriptor:
    return MatrixDescriptor.row_wise(m, n, COMM.size if size is None else size)


def backend(ctx: Context) -> Any:
    return ctx.runtime.backend


def split(color: int) -> MPI.Intracomm:
    part = COMM.Split(color)
    assert isinstance(part, MPI.Intracomm)
    return part


def shift(ctx: Context, n: int) -> pblas.DistMatrix:
    """The matrix that moves every row down by one."""
    return ctx.from_global(lambda i, j: ((i - j) % n == 1) * 1.0, rows(n, n, ctx.nprocs))


@pytest.fixture
def quiet() -> Iterator[None]:
    """No warning at all, and no rubbish that only the garbage collector would find."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# Contexts


def test_rows_columns_and_all_ranks_multiply_in_contexts_of_their_own_at_once(quiet: None) -> None:
    for p, q in grids(COMM.size):
        in_row, in_column = split(COMM.rank % p), split(COMM.rank // p)
        assert (in_row.size, in_column.size) == (q, p)
        with (
            Context(in_row, timeout=TIMEOUT) as tensor,
            Context(in_column, timeout=TIMEOUT) as data,
            Context(COMM, timeout=TIMEOUT) as every,
        ):
            for turn in range(2):  # products of different contexts take turns
                for ctx in (every, tensor, data, tensor):
                    check_product(ctx)
                with Context(in_row if turn else in_column, timeout=TIMEOUT) as more:
                    check_product(more)
            planned = [(ctx, shift(ctx, 6)) for ctx in (tensor, data, every)]
            executions = [(a, pblas.plan_matmul(a, a)) for _, a in planned]
            for a, plan in executions * 2:
                plan.execute(a, a)
        in_row.Free()  # the other contexts left it alone
        in_column.Free()


def test_contexts_over_disjoint_ranks_do_not_wait_for_each_other(quiet: None) -> None:
    half = split(COMM.rank % 2)
    with Context(half, timeout=TIMEOUT) as ctx:
        for _ in range(5 if COMM.rank % 2 else 2):
            check_product(ctx)
    half.Free()


def test_a_matrix_too_large_for_memory_is_an_error_and_costs_no_shared_memory(ctx: Context) -> None:
    shared = ctx.runtime.backend.shared
    for n in (1 << 27, 1 << 40):  # beyond any memory, and beyond what can be counted
        raises_on_all_ranks(pblas.WorkspaceError, "no memory for", partial(ctx.zeros, rows(n, n, ctx.nprocs)))
    assert ctx.runtime.backend.shared == shared
    check_product(ctx)


@pytest.mark.parametrize("root", [0, None])
def test_a_rank_without_memory_for_the_whole_matrix_is_an_error_on_every_rank(
    ctx: Context, root: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = ctx.random(rows(8, 8, ctx.nprocs))
    for poor in {0, ctx.nprocs - 1} if root is None else {0}:
        with monkeypatch.context() as patch:
            if ctx.rank == poor:
                patch.setattr("pblas.matrices.scatter_gather.np.empty", no_memory)
            raises_on_all_ranks(pblas.WorkspaceError, "no memory for a matrix of 8 x 8", partial(a.to_global, root))
    assert (a.to_global(root) is None) == (ctx.rank != 0 and root is not None)


@few
@pytest.mark.parametrize("transport", ["auto", "message"])
def test_closing_frees_windows_and_communicators(transport: Transport, quiet: None) -> None:
    for _ in range(20):
        with Context(COMM, timeout=TIMEOUT, transport=transport) as ctx:
            a = shift(ctx, 7)
            plan = pblas.plan_matmul(a, a)
            plan.execute(a, a)
        library = backend(ctx)
        assert library.peers.comm == MPI.COMM_NULL
        assert library.arena.memory.node == MPI.COMM_NULL
        assert not library.arena._windows
        assert not library.agreement._rounds
    assert COMM.allreduce(1) == COMM.size


def test_contexts_are_closed_in_any_order(quiet: None) -> None:
    first, second, third = (Context(timeout=TIMEOUT) for _ in range(3))
    kept = [shift(ctx, 6) for ctx in (first, second, third)]
    second.close()
    check_product(first)
    first.close()
    check_product(third)
    third.close()
    for matrix in kept:
        with pytest.raises(ContextError, match="closed"):
            _ = matrix.local


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


_SETTINGS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "OMP_NUM_THREADS")


def test_blas_threads_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _SETTINGS:
        monkeypatch.delenv(name, raising=False)
    for name, value, expected in (("OMP_NUM_THREADS", "3,2", 3), ("OPENBLAS_NUM_THREADS", "1", 1)):  # its own counts
        monkeypatch.setenv(name, value)
        with Context(timeout=TIMEOUT) as ctx:
            assert blas_threads() == {expected}
            assert ctx.describe()["BLAS threads per rank"] == str(expected)
    with Context(timeout=TIMEOUT, threads=2):
        assert blas_threads() == {2}


def test_blas_threads_are_the_ranks_share_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _SETTINGS:
        monkeypatch.delenv(name, raising=False)
    before = blas_threads()
    with Context(timeout=TIMEOUT) as ctx:
        share = max(1, backend(ctx).cores // COMM.size)
        assert blas_threads() == {share}
        assert ctx.describe()["BLAS threads per rank"] == str(share)
    assert blas_threads() == before
    with Context(timeout=TIMEOUT, threads=np.int64(2)):  # type: ignore[arg-type]
        assert blas_threads() == {2}
        with Context(timeout=TIMEOUT, threads=3):
            assert blas_threads() == {3}
        assert blas_threads() == {2}
    assert blas_threads() == before


def test_blas_threads_are_restored_in_whatever_order_contexts_end() -> None:
    before = blas_threads()
    first, second, third = (Context(timeout=TIMEOUT, threads=threads) for threads in (2, 3, 4))
    second.close()
    assert blas_threads() == {4}  # the newest that lives
    first.close()
    assert blas_threads() == {4}
    third.close()
    assert blas_threads() == before


# Memory

TURNS = {1: 10_000, 2: 10_000, 3: 1_000, 4: 500}


@few
@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("transport", ["auto", "message"])
def test_a_chain_of_products_runs_in_constant_memory(transport: Transport, planned: bool, quiet: None) -> None:
    """References may live longer on some ranks, and the garbage collector may run or not."""
    n = 6
    cost = (1 if planned or COMM.size > 2 else 5) * (10 if transport == "message" else 1)
    turns = max(100, TURNS[COMM.size] // cost)
    with Context(timeout=TIMEOUT, transport=transport) as ctx:
        a, arena = shift(ctx, n), backend(ctx).arena
        whole = entries(n, 2, np.float64)
        x = ctx.from_global(whole, rows(n, 2), None)
        plan = pblas.plan_matmul(a, x, out=rows(n, 2)) if planned else None
        kept: deque[Any] = deque(maxlen=1 + COMM.rank % 3)
        if COMM.rank % 2:
            gc.disable()
        try:
            for turn in range(turns):
                kept.append(x)
                x = plan.execute(a, x) if plan else a @ x
                if turn == 50:
                    peak, live, windows = arena.peak_nbytes, arena.live_nbytes, len(arena._windows)
                if turn > 50:
                    assert arena.live_nbytes <= live + 4096
        finally:
            gc.enable()
        assert same_on_all_ranks((arena.peak_nbytes, len(arena._windows))) == (peak, windows)
        assert windows <= 1
        assert np.array_equal(x.to_global(None), np.roll(whole, turns, axis=0))


@few
def test_memory_is_used_again_only_when_all_ranks_have_dropped_it(ctx: Context, quiet: None) -> None:
    arena = backend(ctx).arena
    ctx.zeros(rows(60, 60))
    ctx.zeros(rows(1, 1))
    for keepers in culprits():
        before = same_on_all_ranks(arena.live_nbytes)
        x: pblas.DistMatrix | None = ctx.empty(rows(60, 60))
        assert x is not None
        x.local[...] = COMM.rank + 1.0
        view = x.local[:, 1:] if COMM.rank in keepers else None
        x = None
        for _ in range(30):
            y = ctx.empty(rows(60, 60))
            y.local[...] = -99.0
            del y
        assert view is None or np.all(view == COMM.rank + 1.0)
        if backend(ctx).shared:
            assert same_on_all_ranks(arena.live_nbytes) > before
        view = None
        for _ in range(3):
            ctx.zeros(rows(1, 1))
        assert same_on_all_ranks(arena.live_nbytes) <= before + 3 * 256


@few
def test_many_matrices_may_live_at_once_and_all_their_memory_comes_back(ctx: Context, quiet: None) -> None:
    """They are more than one agreement can report."""
    arena = backend(ctx).arena
    ctx.zeros(rows(1, 1))
    before = same_on_all_ranks(arena.live_nbytes)
    many = [ctx.zeros(rows(COMM.size, 1)) for _ in range(2200)]
    for number, x in enumerate(many):
        x.local[...] = number
    assert all(np.all(x.local == number) for number, x in enumerate(many))
    order = np.random.default_rng(COMM.rank).permutation(len(many))
    holder: list[Any] = list(many)
    del many, x
    for place in order:  # every rank drops them in an order of its own
        holder[place] = None
    for _ in range(4):
        ctx.zeros(rows(1, 1))
    assert same_on_all_ranks(arena.live_nbytes) <= before + 1024


def test_a_refused_call_keeps_no_memory(quiet: None) -> None:
    gc.disable()
    try:
        with Context(timeout=TIMEOUT) as ctx:
            arena = backend(ctx).arena
            ctx.zeros(rows(1, 1))
            before = same_on_all_ranks(arena.live_nbytes)
            for _ in range(20):
                a, b = ctx.zeros(rows(12, 12)), ctx.zeros(rows(7, 12))
                raises_on_all_ranks(pblas.DescriptorError, "disagree on K", partial(pmatmul, a, b))
                raises_on_all_ranks(pblas.ArgumentError, "root must be", partial(a.to_global, -7))
                del a, b
            for _ in range(3):
                ctx.zeros(rows(1, 1))
            assert same_on_all_ranks(arena.live_nbytes) <= before + 1024
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["array", "view", "matrix"])
def test_an_array_held_past_the_context_warns_on_its_rank_and_can_still_be_used(kind: str) -> None:
    gc.collect()
    for keepers in culprits():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with Context(timeout=TIMEOUT) as ctx:
                shared = backend(ctx).shared
                x = ctx.zeros(rows(COMM.size, 3))
                site = f"{__file__}:{sys._getframe().f_lineno - 1}"
                choices: dict[str, Any] = {"array": x.local, "view": x.local.T[1:], "matrix": x}
                held = choices[kind] if COMM.rank in keepers else None
                del choices
                del x
        expected = shared and COMM.rank in keepers and kind != "matrix"  # a matrix lets go of its memory
        assert [entry.category for entry in caught] == [PblasWarning] * expected
        if expected:
            assert site in str(caught[0].message)
            assert f"rank {COMM.rank}" in str(caught[0].message)
        if held is not None and kind != "matrix":
            held[...] = 5.0
            assert np.all(held == 5.0)


def test_an_array_that_only_a_cycle_of_references_holds_is_not_held() -> None:
    """An exception that a library keeps in a cycle, as that of its first import, has the frames of its callers."""
    gc.disable()
    try:
        with Context(timeout=TIMEOUT) as ctx:
            cycle: list[Any] = [ctx.zeros(rows(COMM.size, 3)).local]
            cycle.append(cycle)
            del cycle
    finally:
        gc.enable()


def test_a_context_that_was_never_closed_warns_and_nothing_else_does() -> None:
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ctx = Context(timeout=TIMEOUT)
        check_product(ctx)
        parts = backend(ctx)
        del ctx
        gc.collect()
    assert [entry.category for entry in caught] == [PblasWarning]
    assert "never closed" in str(caught[0].message)
    COMM.Barrier()
    parts.close(free=True)


# Ranks that are late, and ranks that leave


def check_broken(ctx: Context, everywhere: list[tuple[str, str]], late: int, step: str) -> None:
    """Assert that all ranks know who was late, and that nothing collective is tried afterwards."""
    for name, text in everywhere:
        assert name == "PeerTimeout", everywhere
        assert step in text
    assert len({text for _, text in everywhere}) == 1, everywhere
    assert f"rank {late} of {COMM.size}" in everywhere[0][1]
    a = everywhere[0][1]
    start = time.monotonic()
    for _ in range(3):
        name, text = outcome_of(lambda: ctx.zeros(rows(3, 3)))
        assert name == "ContextError"
        assert a in text
    assert time.monotonic() - start < SHORT  # at once: no deadline was waited for


@waits
@pytest.mark.parametrize("transport", ["auto", "message"])
def test_a_rank_that_sleeps_breaks_the_context_for_all_and_hangs_none(transport: Transport, quiet: None) -> None:
    late = 0 if transport == "auto" else COMM.size - 1
    left = False
    try:
        with Context(timeout=SHORT, transport=transport) as ctx:
            a = shift(ctx, 6)
            everywhere = COMM.allgather(outcome_with_late_rank(late, partial(pmatmul, a, a)))
            check_broken(ctx, everywhere, late, "pmatmul")
            raise ZeroDivisionError
    except ZeroDivisionError:
        left = True
    assert left
    with Context(timeout=TIMEOUT) as after:
        check_product(after)


@one_host
@waits
@pytest.mark.parametrize("transport", ["auto", "message"])
def test_a_rank_that_falls_behind_in_the_middle_of_a_product_is_named(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = COMM.size - 1
    with Context(timeout=SHORT, transport=transport) as ctx:
        a = shift(ctx, 2 * COMM.size)
        if COMM.rank == late:
            usual: Any = vars(allgather_gemm)["gemm_runs"]

            def slow(*arguments: Any) -> None:
                monkeypatch.undo()
                wait_as_if_stopped(ctx)
                usual(*arguments)

            monkeypatch.setattr(allgather_gemm, "gemm_runs", slow)
        outcome = outcome_of(lambda: pmatmul(a, a))
        release(late)
        everywhere = COMM.allgather(outcome)
        names = {name for name, _ in everywhere}
        assert "PeerTimeout" in names or names == {"no exception"}, everywhere
        if transport == "auto":  # all wait for the end signal
            check_broken(ctx, everywhere, late, "end of pmatmul")


@one_host
@waits
def test_a_rank_that_falls_behind_in_the_middle_of_a_factorization_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rank factors its first panel, and then nothing any more."""
    late = COMM.size - 1
    monkeypatch.setattr("pblas.factor.choose._LEAST", 3)
    with Context(timeout=SHORT) as ctx:
        a = ctx.eye(64 * 2 * COMM.size)  # two panels for each rank
        if COMM.rank == late:
            usual, calls = RunLu.factor, count()

            def slow(*arguments: Any) -> Any:
                if next(calls) == 1:
                    wait_as_if_stopped(ctx)
                return usual(*arguments)

            monkeypatch.setattr(RunLu, "factor", slow)
        outcome = outcome_of(lambda: pblas.linalg.lu_factor(a))
        release(late)
        everywhere = COMM.allgather(outcome)
        others = [outcome for rank, outcome in enumerate(everywhere) if rank != late]
        assert all(name == "PeerTimeout" for name, _ in others), everywhere
        assert all(f"of a factorization, of rank {late}: rank {late} of" in text for _, text in others), everywhere


@waits_long
def test_a_context_that_is_broken_is_left_without_an_exception_too(quiet: None) -> None:
    with Context(timeout=SHORT) as ctx:
        everywhere = COMM.allgather(outcome_with_late_rank(0, partial(ctx.zeros, rows(3, 3))))
        check_broken(ctx, everywhere, 0, "zeros")
    with pytest.raises(ContextError, match="closed"):
        ctx.zeros(rows(3, 3))


@waits_long
@pytest.mark.parametrize(("kind", "leaver"), [(SystemExit, 0), (ZeroDivisionError, 1), (KeyboardInterrupt, -1)])
def test_a_rank_that_leaves_by_an_exception_breaks_the_context_of_all(
    kind: type[BaseException], leaver: int, quiet: None
) -> None:
    for leaving in [some_wrong()[leaver % len(some_wrong())]]:
        raised = None
        try:
            with Context(timeout=TIMEOUT) as ctx:
                a = shift(ctx, 6)
                if COMM.rank in leaving:
                    raise kind
                a @ a
        except BaseException as error:  # noqa: BLE001 - each rank has its own
            raised = type(error)
        assert raised is (kind if COMM.rank in leaving else MismatchError)
        del a
    with Context(timeout=TIMEOUT) as after:
        check_product(after)


def test_ranks_that_leave_by_an_exception_free_everything_and_restore_blas_threads(quiet: None) -> None:
    """All ranks raise, or some ranks raise while the others leave normally."""
    before = blas_threads()
    for leaving in culprits():
        try:
            with Context(timeout=TIMEOUT, threads=2) as ctx:
                shift(ctx, 6)
                if COMM.rank in leaving:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            assert COMM.rank in leaving
        assert backend(ctx).peers.comm == MPI.COMM_NULL
        assert not backend(ctx).arena._windows or len(leaving) < COMM.size
        assert blas_threads() == before


@waits
def test_a_rank_missing_from_context_creation_is_named(quiet: None) -> None:
    late = COMM.size - 1
    comm = COMM.Dup()
    everywhere = COMM.allgather(outcome_with_late_rank(late, partial(Context, comm, timeout=SHORT)))
    assert all(name == "PeerTimeout" for name, _ in everywhere), everywhere
    assert f"rank {late}" in everywhere[0][1]
    with Context(timeout=TIMEOUT) as after:
        check_product(after)


@waits
def test_the_timeout_counts_waiting_not_work(quiet: None) -> None:
    """A context may live longer than its timeout, and all ranks may be slow together."""
    with Context(timeout=SHORT) as ctx:
        for _ in range(2):
            COMM.Barrier()
            time.sleep(0.7 * SHORT)
            check_product(ctx)
    assert isinstance(PeerTimeout("x"), TimeoutError)


def test_a_waiting_rank_yields_no_longer_than_it_would_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another thread spins on the same core, each yield takes milliseconds."""
    yields = list[int]()

    def give_way() -> None:
        yields.append(1)
        time.sleep(5e-3)

    agreement = Agreement(MpiTransport(COMM), TIMEOUT)
    answers = iter([False] * 500)
    monkeypatch.setattr(os, "sched_yield", give_way)
    agreement.wait(lambda: next(answers, True), "nothing")
    assert len(yields) <= 1
    agreement.close()
