"""Laws of contexts without more shared memory, in any call: the results are right, or all ranks raise an error."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import Grid, MatrixDescriptor
from pblas.backends.mpi import shared_windows as arena
from pblas.execute.redistribution.transfer import Movement
from pblas.matrices.scatter_gather import part_of
from tests.common.gauge import Array
from tests.common.ranks import COMM, check_product, few, outcome_of
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
}


@pytest.mark.parametrize("scene", SCENES)
def test_ranks_fall_back_to_messages_when_memory_runs_out(scene: str, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = Windows(monkeypatch)
    for _ in windows.counts():
        with pblas.Context(timeout=20) as ctx:
            SCENES[scene](Shelf(ctx))
            assert ctx.runtime.backend.shared != windows.refused
    assert windows.most > 3


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
@pytest.mark.parametrize("poor", sorted({0, P - 1}))
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


@pytest.mark.parametrize("transport", ["auto", "shared"])
def test_a_window_that_mpi_refuses_is_an_error_of_workspace(transport: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("MPI_ERR_NO_MEM")

    with pblas.Context(timeout=20, transport=transport) as ctx, monkeypatch.context() as patch:
        patch.setattr(arena._SharedWindow, "make", fails)
        kind, text = outcome_of(lambda: ctx.empty(ROWS))
        assert kind == ("no exception" if transport == "auto" else "WorkspaceError"), text
        patch.undo()
        check_product(ctx)


@pytest.mark.parametrize("poor", sorted({0, P - 1}))
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
