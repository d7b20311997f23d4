"""Laws of contexts without more shared memory, in any call: the results are right, or all ranks raise an error.

Memory is freed without the garbage collector, also after an attempt that has failed. Otherwise the closing context
warns that an array is still in use, and warnings are errors.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import Grid, MatrixDescriptor, blas, linalg
from pblas.backends import shared_windows as arena
from pblas.backends.mpi.transport import WindowMemory
from pblas.collectives.staging_run import Staging
from pblas.core.planned import Planned
from pblas.matrices import creation
from pblas.matrices.scatter_gather import part_of
from pblas.redistribution.transfer import Movement
from tests.common.gauge import Array
from tests.common.ranks import (
    COMM,
    check_memory,
    check_product,
    few,
    first_and_last,
    one_host,
    outcome_of,
    raises_on_all_ranks,
)
from tests.common.shortage import Windows

pytestmark = [pytest.mark.mpi(min_size=2), few]

P, N = COMM.size, 40
ROWS, COLUMNS, WHOLE = (
    make(N, N, P) for make in (MatrixDescriptor.row_wise, MatrixDescriptor.column_wise, MatrixDescriptor.replicated)
)
GRID = MatrixDescriptor(N, N, 3, 3, Grid(max(1, P // 2), min(2, P)))
X = np.random.default_rng(0).integers(-3, 4, (2, N, N)).astype(float)  # integers, whose products are exact


class Shelf:
    """Matrices of a context that are all kept, so that its memory runs out."""

    def __init__(self, ctx: pblas.Context) -> None:
        self.ctx, self._kept = ctx, list[pblas.DistMatrix]()

    def new(self, x: Array, desc: MatrixDescriptor) -> pblas.DistMatrix:
        return self.keep(self.ctx.from_global(x, desc, None), x)

    def result(self, desc: MatrixDescriptor) -> pblas.DistMatrix:
        """A matrix for `out=`, whose memory is not the context's."""
        return self.own(np.full((N, N), np.nan), desc)

    def own(self, x: Array, desc: MatrixDescriptor) -> pblas.DistMatrix:
        """In memory that is not the context's."""
        return self.ctx.from_local(np.array(part_of(x, desc, COMM.rank), order="F"), desc)

    def keep(self, result: pblas.DistMatrix, expected: Array) -> pblas.DistMatrix:
        assert np.array_equal(result.local, part_of(expected, result.desc, COMM.rank))
        self._kept.append(result)
        return result


def products(shelf: Shelf, a: MatrixDescriptor, b: MatrixDescriptor, d: MatrixDescriptor) -> None:
    A, B = shelf.new(X[0], a), shelf.new(X[1], b)
    for left, right in ((A, B), (shelf.own(X[0], a), shelf.own(X[1], b))):
        shelf.keep(pblas.pmatmul(left, right, out=d), X[0] @ X[1])
        with pblas.plan_matmul(left, right, out=d) as planned:
            for _ in range(2):
                shelf.keep(planned.execute(left, right), X[0] @ X[1])


def redistributions(shelf: Shelf) -> None:
    A, own = shelf.new(X[0], ROWS), shelf.own(X[0], ROWS)
    for x in (A, own):
        shelf.keep(pblas.redistribute(x, GRID, uplo="U"), np.triu(X[0]))
        with pblas.plan_redistribution(x, COLUMNS) as planned:
            for _ in range(2):
                shelf.keep(planned.execute(x), X[0])


def products_into(shelf: Shelf, a: MatrixDescriptor, b: MatrixDescriptor, d: MatrixDescriptor) -> None:
    """With `out=`: an execution allocates nothing but workspace."""
    A, B, D = shelf.own(X[0], a), shelf.own(X[1], b), shelf.result(d)
    with pblas.plan_matmul(A, B, out=D) as planned:
        for _ in range(2):
            shelf.keep(planned.execute(A, B, out=D), X[0] @ X[1])
    shelf.keep(pblas.pmatmul(A, B, out=shelf.result(d)), X[0] @ X[1])


def redistributions_into(shelf: Shelf) -> None:
    A, B = shelf.own(X[0], ROWS), shelf.result(COLUMNS)
    shelf.keep(pblas.redistribute(A, out=B), X[0])
    with pblas.plan_redistribution(A, out=B) as planned:
        for _ in range(2):
            shelf.keep(planned.execute(A, out=B), X[0])


def sums(shelf: Shelf) -> None:
    A, B = shelf.own(X[0], ROWS), shelf.own(X[1], COLUMNS)
    shelf.keep(A + B, X[0] + X[1])
    shelf.keep(pblas.elementwise("x + y", x=A, y=B, out=shelf.result(GRID)), X[0] + X[1])


def structured(shelf: Shelf) -> None:
    L, S = np.tril(np.ones((N, N))), X[0] + X[0].T
    A, B = shelf.own(L, ROWS), shelf.own(X[1], COLUMNS)
    shelf.keep(blas.trmm(A, B, out=shelf.result(GRID)), L @ X[1])
    shelf.keep(blas.symm(shelf.own(S, GRID), B, out=shelf.result(COLUMNS)), S @ X[1])
    shelf.keep(blas.trsm(A, shelf.own(L @ X[1], COLUMNS), out=shelf.result(ROWS)), X[1])


def factorizations(shelf: Shelf) -> None:
    shelf.keep(linalg.cholesky(shelf.own(4 * np.eye(N), GRID)), 2 * np.eye(N))
    shelf.keep(linalg.solve(shelf.own(2 * np.eye(N), ROWS), shelf.own(2 * X[0], GRID)), X[0])


def collectives(shelf: Shelf) -> None:
    for algorithm in ("one_shot", "two_shot"):
        out = np.full((N, N), np.nan)
        shelf.ctx.allreduce(X[0], out, algorithm=algorithm)
        assert np.array_equal(out, P * X[0])
        shelf.new(X[1], WHOLE)
    assert np.array_equal(shelf.ctx.allgather(X[0]), np.concatenate(P * [X[0]]))


SCENES: dict[str, Callable[[Shelf], None]] = {
    "gathered": lambda shelf: products(shelf, ROWS, ROWS, ROWS),
    "reduced": lambda shelf: products(shelf, COLUMNS, ROWS, ROWS),
    "reduced for all": lambda shelf: products(shelf, COLUMNS, ROWS, WHOLE),
    "on a grid": lambda shelf: products(shelf, GRID, GRID, GRID),
    "redistributed": redistributions,
    "collectives": collectives,
    "gathered into": lambda shelf: products_into(shelf, ROWS, ROWS, ROWS),
    "reduced into": lambda shelf: products_into(shelf, COLUMNS, ROWS, ROWS),
    "reduced for all, into": lambda shelf: products_into(shelf, COLUMNS, ROWS, WHOLE),
    "on a grid, into": lambda shelf: products_into(shelf, GRID, GRID, GRID),
    "redistributed into": redistributions_into,
    "elementwise": sums,
    "structured": structured,
    "factorizations": factorizations,
}
LEAST = dict.fromkeys(SCENES, 4) | {name: 2 for name in SCENES if "into" in name}
"""Least limits of windows that each scene has to try; it has as many allocations, or one fewer."""


@pytest.fixture(autouse=True)
def _no_garbage_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("scene", SCENES)
def test_ranks_fall_back_to_messages_when_memory_runs_out(scene: str, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = Windows(monkeypatch)
    for _ in windows.counts():
        with pblas.Context(timeout=20) as ctx:
            SCENES[scene](Shelf(ctx))
            assert ctx.runtime.backend.shared != windows.refused
    assert windows.most >= LEAST[scene]


@pytest.mark.parametrize("scene", SCENES)
def test_a_fatal_shortage_is_an_error_on_every_rank_and_the_context_goes_on(
    scene: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = Windows(monkeypatch)
    for _ in windows.counts():
        with pblas.Context(timeout=20, transport="shared") as ctx:
            everywhere: Any = COMM.allgather(outcome_of(lambda ctx=ctx: SCENES[scene](Shelf(ctx))))  # type: ignore[misc]
            assert len(set(everywhere)) == 1
            refused = windows.refused
            assert everywhere[0][0] == ("WorkspaceError" if refused else "no exception")
            windows.open(1000)
            check_product(ctx)
            SCENES[scene](Shelf(ctx))
            windows.refused = refused


def test_an_array_may_be_overwritten_though_memory_ran_out_for_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while another rank has not read it yet."""
    windows, finish = Windows(monkeypatch), Movement.finish

    def late(*arguments: Any) -> None:
        time.sleep(0.1 if COMM.rank else 0.0)
        finish(*arguments)

    monkeypatch.setattr(Movement, "finish", late)
    for _ in windows.counts():
        with pblas.Context(timeout=20) as ctx:
            shelf = Shelf(ctx)
            A = shelf.new(X[0], ROWS)
            result = pblas.redistribute(A, COLUMNS)
            A.local[...] = np.nan
            shelf.keep(result, X[0])


@pytest.mark.parametrize("transport", ["auto", "shared"])
@first_and_last("poor")
def test_a_rank_without_addresses_for_a_window_is_as_one_without_memory(transport: Any, poor: int) -> None:
    """A limit of the address space, on one rank; MPI_Win_allocate_shared would fail there."""
    n = 3000
    desc, before = MatrixDescriptor.row_wise(n, n, P), resource.getrlimit(resource.RLIMIT_AS)
    with pblas.Context(timeout=20, transport=transport) as ctx:
        check_product(ctx)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        if COMM.rank == poor:  # room for this rank's part, and not for those of all ranks
            resource.setrlimit(
                resource.RLIMIT_AS, (pages * resource.getpagesize() + n * n * 8 // P * 3 // 2, before[1])
            )
        try:
            kind, text = outcome_of(lambda: ctx.empty(desc))
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
        if transport == "auto":
            assert kind == "no exception", text
            assert not ctx.runtime.backend.shared
        else:
            assert kind == "WorkspaceError", text
            assert "has no addresses for" in text
            assert f"found on rank {poor} of {P}" in text
        check_product(ctx)


@first_and_last("poor")
def test_a_context_that_is_short_of_private_memory_too_keeps_its_shared_memory(
    poor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def private(nbytes: int) -> Array:
        if COMM.rank == poor:
            raise pblas.WorkspaceError("no memory at all")
        return np.empty(nbytes, np.uint8)

    windows = Windows(monkeypatch)
    windows.open(1000)
    with pblas.Context(timeout=20) as ctx:
        check_product(ctx)
        with monkeypatch.context() as patch:
            patch.setattr(ctx.runtime.backend, "private", private)
            windows.open(0)
            kind, text = outcome_of(lambda: ctx.empty(ROWS))
        assert (kind, text) == ("WorkspaceError", f"no memory at all; found on rank {poor} of {P}")
        assert ctx.runtime.backend.shared
        windows.open(1000)
        check_product(ctx)


@first_and_last("poor")
@pytest.mark.parametrize("transport", ["auto", "shared", "message"])
def test_a_matrix_for_which_a_host_has_too_little_memory(
    transport: Any, poor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused on all ranks before a system allocates what it does not have; one that fits is made."""
    monkeypatch.setattr(creation, "_LARGE_NBYTES", 8 * 8 * P * 4)
    rows = MatrixDescriptor.row_wise(8 * P, 5, P)
    with pblas.Context(timeout=20, transport=transport) as ctx:
        needed = 8 * 5 * 8 * len(ctx.runtime.backend.peers.node)
        for name in ("empty", "zeros", "random", "ones"):
            for missing in (1, 0):
                free = needed - missing if ctx.rank == poor else 10**12
                monkeypatch.setattr(creation, "free_nbytes", lambda: free)  # noqa: B023
                kind, text = outcome_of(lambda: getattr(ctx, name)(rows))  # noqa: B023
                assert kind == ("WorkspaceError" if missing else "no exception"), text
                if missing:
                    assert f"{name}: no memory for {needed:,} bytes" in text
                    assert f"found on rank {poor} of {P}" in text
        check_product(ctx)


@one_host
def test_memory_that_is_promised_and_not_yet_touched_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system counts pages as used when they are written first: what windows may still write is not free."""
    size = 1 << 20  # of each rank's part of a window
    needed, free = P * (size + size // 2), P * (size + size // 2) - 1
    monkeypatch.setattr(arena, "_MIN_WINDOW_NBYTES", size)
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=1))
    with pblas.Context(timeout=20, transport="shared") as ctx:
        block = ctx.runtime.allocate(size // 2)  # it makes a window, of which the other half is promised
        kind, text = outcome_of(lambda: ctx.runtime.allocate(size * 3 // 4))
        assert kind == "WorkspaceError", text
        assert f"{needed} bytes are needed in /dev/shm for {P} ranks of this node, {free} are free" in text
        other = ctx.runtime.allocate(size // 2)
        third = ctx.runtime.allocate(size)  # now no window has memory that is promised only
        del block, other, third


@pytest.mark.parametrize("transport", ["auto", "shared"])
def test_a_window_that_mpi_refuses_is_an_error_of_workspace(transport: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("MPI_ERR_NO_MEM")

    with pblas.Context(timeout=20, transport=transport) as ctx, monkeypatch.context() as patch:
        patch.setattr(WindowMemory, "allocate", fails)
        kind, text = outcome_of(lambda: ctx.empty(ROWS))
        assert kind == ("no exception" if transport == "auto" else "WorkspaceError"), text
        patch.undo()
        check_product(ctx)


@first_and_last("poor")
def test_a_context_keeps_its_shared_memory_if_a_rank_has_no_private_memory(
    poor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the call is an error on all ranks, and later ones that need less are made in shared memory."""
    windows = Windows(monkeypatch)
    with pblas.Context(timeout=20) as ctx:
        backend = ctx.runtime.backend

        def private(nbytes: int) -> Any:
            raise pblas.WorkspaceError(f"no {nbytes} bytes")

        windows.open(0)
        with monkeypatch.context() as patch:
            if COMM.rank == poor:
                patch.setattr(type(backend), "private", lambda _, nbytes: private(nbytes))
            outcome = COMM.allgather(outcome_of(lambda: ctx.zeros(ROWS)))
        assert len(set(outcome)) == 1
        assert outcome[0][0] == "WorkspaceError"
        assert backend.shared
        windows.open(1000)
        check_product(ctx)
        assert backend.shared


def test_collectives_keep_no_memory_that_the_context_gave_up(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = Windows(monkeypatch)
    windows.open(1000)
    with pblas.Context(timeout=20) as ctx:
        arena_of = ctx.runtime.backend.arena
        assert np.array_equal(ctx.allreduce(X[0]), P * X[0])
        held = arena_of.live_nbytes
        windows.open(0)
        ctx.zeros((64 * P, 64))
        assert np.array_equal(ctx.allreduce(X[0]), P * X[0])
        ctx.zeros((P, 1))  # its agreement frees what all ranks have dropped
        assert held > 0
        assert arena_of.live_nbytes == 0


def test_a_kept_plan_that_fails_holds_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two operands outside windows are copied; there is memory for the first copy only."""
    windows = Windows(monkeypatch, alone=True)
    windows.open(1000)
    with pblas.Context(timeout=20, transport="shared") as ctx:
        own = [ctx.from_local(np.ones(desc.local_shape(ctx.rank), order="F"), desc) for desc in (COLUMNS, COLUMNS)]
        out = ctx.empty(ROWS)

        def add() -> None:
            pblas.elementwise("x + y", x=own[0], y=own[1], out=out)

        add()
        ctx.runtime.agree("what all ranks have dropped is free", {})
        before = ctx.runtime.backend.arena.live_nbytes
        windows.open(1)
        raises_on_all_ranks(pblas.WorkspaceError, "there is no more", add)
        windows.open(1000)
        ctx.runtime.agree("what all ranks have dropped is free", {})
        assert ctx.runtime.backend.arena.live_nbytes <= before
        add()
        assert (out.local == 2).all()


@first_and_last("wrong")
@pytest.mark.parametrize("late", [False, True])
def test_a_rank_without_memory_for_a_plan_gives_back_what_the_others_have_taken(
    late: bool, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it has made its executor, or after that. Layers share memory, collectives have memory of their own."""

    def failing(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any) -> Any:
            result = make(*arguments) if late or COMM.rank != wrong else None
            if COMM.rank == wrong:
                raise MemoryError("none left")
            return result

        return made

    with pblas.Context(timeout=20) as ctx:
        A, b, w = ctx.from_global(X[0], GRID, None), np.arange(1.0, N + 1), np.ones((N, N))
        layer = pblas.tp.Linear(w, "reduce_scatter", ctx=ctx)

        def use(tokens: int) -> None:
            assert np.array_equal(layer(np.ones((P * tokens, N))), np.full((tokens, N), float(P * N)))

        calls: dict[str, Callable[[], Any]] = {
            "layer": lambda: use(640),  # the first that takes memory of the layers
            "product": lambda: np.testing.assert_array_equal((A @ A).to_global(None), X[0] @ X[0]),
            "sum": lambda: np.testing.assert_array_equal(ctx.allreduce(b), P * b),
            "gather": lambda: np.testing.assert_array_equal(A @ b, X[0] @ b),
        }
        for call in calls.values():
            ctx.runtime.kept.close()
            ctx.runtime.staging = None
            with monkeypatch.context() as patch:
                patch.setattr(Planned, "_new_executor", failing(Planned._new_executor))
                patch.setattr("pblas.collectives.api.Staging", failing(Staging))
                raises_on_all_ranks(pblas.WorkspaceError, "none left", call)
            assert all(getattr(memory, "slot", 0) >= 0 for memory in ctx.runtime.workspace_pool.held.values())
            for again in calls.values():
                again()
            check_memory(ctx)
