"""A host receives once the elements that several of its ranks need: fewer bytes between hosts, the same bits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import Grid, MatrixDescriptor, linalg
from pblas.matmul.summa_plan import Summa
from pblas.triangular import choose as choice
from pblas.triangular import trsm as trsm_operation
from tests.common.factors import forget_plans, positive
from tests.common.ranks import broken_later, one_host, open_context, outcome_of
from tests.mpi.faults.test_nodes import count_far_bytes

pytestmark = pytest.mark.mpi(min_size=3)
N, LONG = 40, 1700  # LONG: several panels of a triangular product
OPERATIONS = (
    *("redistribute", "redistribute a triangle", "elementwise", "trsm", "trsm by rows", "SummaC", "SummaA", "layers"),
    *("syrk", "syr2k", "symm", "trmm"),
)
"""Operations whose ranks need the same elements of other hosts."""


@pytest.fixture(params=[2, 3])
def ctx(request: pytest.FixtureRequest) -> Iterator[pblas.Context]:
    """A context with this many ranks on each node."""
    with open_context(ranks_per_node=request.param, timeout=30) as context:
        yield context


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Narrow panels, so that there are many; trsm uses TrsmPlan."""
    monkeypatch.setattr("pblas.matmul.summa_plan.PANEL", 4)
    monkeypatch.setattr(trsm_operation, "PANEL", 4)
    monkeypatch.setattr(choice, "predict", lambda plan, _: float(plan.name != "TrsmPlan"))
    choice.choose_trsm.cache_clear()
    yield
    monkeypatch.undo()
    choice.choose_trsm.cache_clear()


def planned(ctx: pblas.Context, name: str) -> tuple[Any, Callable[[], pblas.DistMatrix]]:
    """The plan of an operation, and the call that executes it."""
    p = ctx.nprocs
    grid, rows = Grid(p // 2, 2), Grid(p, 1)
    columns, tall = MatrixDescriptor(N, N, 3, 3, Grid(1, p)), MatrixDescriptor(N, N, 3, 4, rows)
    A, B = ctx.random(columns, seed=1), ctx.random(tall, seed=2)
    if name in ("redistribute", "redistribute a triangle"):
        uplo: Any = "L" if name.endswith("triangle") else None
        plan: Any = pblas.plan_redistribution(A, MatrixDescriptor.replicated(N, N, p), uplo=uplo)
        return plan, lambda: plan.execute(A)
    if name == "elementwise":
        R = ctx.zeros(MatrixDescriptor.replicated(N, N, p))
        S = ctx.zeros(MatrixDescriptor.replicated(N, N, p))
        return None, lambda: pblas.elementwise("x + r", x=A, r=R, out=S)
    if name in ("trsm", "trsm by rows"):
        T = A if name == "trsm" else B
        plan = pblas.blas.plan_trsm(T, B, diag="U", uplo="L")
        return plan, lambda: plan.execute(T, B)
    if name in ("SummaC", "SummaA", "layers"):
        m, n, k = (N, N, N) if name == "SummaC" else (N, 5, 2 * N)
        X = ctx.random(MatrixDescriptor(m, k, 3, 2, grid if name == "layers" else rows), seed=3)
        Y = ctx.random(MatrixDescriptor(k, n, 2, 3, rows), seed=4)
        Z = ctx.empty(MatrixDescriptor(m, n, 4, 3, rows))
        plan = pblas.plan_matmul(X, Y, out=Z, chunks=4)
        return plan, lambda: plan.execute(X, Y, out=Z)
    routine: Any = getattr(pblas.blas, name)
    X, Y, D = (ctx.random(MatrixDescriptor(N, N, 3, 2, rows), seed=seed) for seed in (5, 6, 7))
    if name == "symm":
        return None, lambda: routine(A, Y, out=D, beta=0.0)
    if name == "trmm":
        T, thin = (ctx.random(MatrixDescriptor(LONG, n, 3, 2, rows), seed=8) for n in (LONG, 5))
        E = ctx.zeros(thin.desc)
        return None, lambda: routine(T, thin, out=E)
    return None, lambda: routine(*((X, Y) if name == "syr2k" else (X,)), out=D, beta=0.0)


def measured(
    ctx: pblas.Context, name: str, monkeypatch: pytest.MonkeyPatch, *, relays: bool
) -> tuple[set[bytes], int, int, Any]:
    """Bits of this rank's results, bytes from other hosts to this one, bytes to this rank, and the plan."""
    backend, rng = ctx.runtime.backend, np.random.default_rng(ctx.rank)
    with monkeypatch.context() as patch:
        if not relays:
            patch.setattr("pblas.redistribution.transfer.relay_of", lambda *_: None)
        ctx.runtime.close_plans()
        plan, call = planned(ctx, name)
        call()
        far, before = count_far_bytes(patch, backend), backend.channel.received_nbytes + backend.read_nbytes
        results = {call().local.tobytes()}
        received, over_network = (
            backend.channel.received_nbytes + backend.read_nbytes - before,
            backend.gather(sum(far)),
        )
        for method in ("gemm", "trsm", "syrk", "scale"):  # ranks that are early or late
            patch.setattr(backend.arrays, method, slow(getattr(backend.arrays, method), rng))
        results |= {call().local.tobytes() for _ in range(3)}
        if plan is not None:
            assert plan.workspace_nbytes <= plan.plan.workspace_nbytes
            plan.close()
        group = next(group for group in backend.groups if ctx.rank in group)
    return results, sum(over_network[rank] for rank in group), received, plan and plan.plan


@pytest.mark.parametrize("kind", ["cholesky", "lu", "qr"])
def test_a_host_receives_a_panel_once(ctx: pblas.Context, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels of block columns, whose first reader on a host passes them on; headers come in addition."""
    monkeypatch.setattr("pblas.factor.choose._NARROWEST", 4)
    forget_plans()
    backend, rank = ctx.runtime.backend, ctx.rank
    A = ctx.from_global(positive(N, np.dtype(np.float64)), root=None)
    with getattr(linalg, f"plan_{kind}")(A, algorithm="blocked") as planned:
        plan: Any = planned.plan
        W = A.redistribute(plan.target)
        (group,) = (group for group in backend.groups if rank in group)
    with getattr(linalg, f"plan_{kind}")(W, algorithm="blocked") as planned, monkeypatch.context() as patch:
        far = count_far_bytes(patch, backend)
        planned.execute(W)
        of_ranks = backend.gather(sum(far))
        plan = planned.plan
    received, once = sum(of_ranks[peer] for peer in group), 0
    for panel in plan.steps:
        i0, i1 = plan.rows(panel)
        if panel.owner not in group and any(plan.needs(panel, peer) for peer in group):
            once += (i1 - i0) * panel.width * 8
    assert once <= received <= 1.2 * once + 200
    forget_plans()


@pytest.mark.parametrize("columns", [1, 2])
def test_a_host_receives_rows_of_a_panel_on_a_grid_once(
    ctx: pblas.Context, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cholesky: rows that ranks of a host need as rows or as columns; diagonal blocks come in addition."""
    size, nb, backend = ctx.nprocs // columns * columns, 4, ctx.runtime.backend
    w = MatrixDescriptor(48, 48, nb, nb, Grid(size // columns, columns, "R"))
    monkeypatch.setattr("pblas.factor.choose.square_blocks", lambda *_, **__: iter([(w, "a test")]))
    forget_plans()
    A, (group,) = (
        ctx.from_global(positive(48, np.dtype(np.float64)), w, None),
        (g for g in backend.groups if ctx.rank in g),
    )
    with linalg.plan_cholesky(A, algorithm="grid") as planned, monkeypatch.context() as patch:
        far = count_far_bytes(patch, backend)
        planned.execute(A)
        of_ranks = backend.gather(sum(far))
        received = sum(of_ranks[peer] for peer in group)
    once, places = 0, [w.grid.coordinates(rank) for rank in group if rank < size]
    for k in range(12):
        column = w.columns.owner(k * nb)
        after = range(k + 1, 12)
        needed = {
            b
            for r, c in places
            if any(w.rows.owner(i * nb) == r for i in after) and any(w.columns.owner(j * nb) == c for j in after)
            for b in after
            if w.rows.owner(b * nb) == r or w.columns.owner(b * nb) == c
        }
        once += sum(w.grid.rank(w.rows.owner(b * nb), column) not in group for b in needed) * nb * nb * 8
    assert received <= once + 12 * nb * nb * 8
    assert once == 0 or received >= once
    forget_plans()


def slow(call: Callable[..., Any], rng: np.random.Generator) -> Callable[..., Any]:
    """The call after a random delay."""

    def delayed(*args: Any, **kwargs: Any) -> Any:
        time.sleep(rng.choice([0, 0, 0.001, 0.003]))
        return call(*args, **kwargs)

    return delayed


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_host_receives_fewer_bytes_and_the_bits_are_the_same(
    ctx: pblas.Context, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank gets the same bytes as without relays, some of them in the memory of its host."""
    alone, once = (measured(ctx, name, monkeypatch, relays=relays) for relays in (False, True))
    assert len(alone[0] | once[0]) == 1
    assert alone[2] == once[2]
    saved = ctx.runtime.gathered(alone[1] - once[1])
    several = 1 < len(ctx.runtime.backend.groups) < ctx.nprocs
    assert min(saved) >= 0
    if name not in ("layers", "symm"):  # some numbers of ranks have plans that do not gather
        assert (max(saved) > 0) == several
    if isinstance(once[3], Summa) and once[3].nodes:
        group = next(group for group in ctx.runtime.backend.groups if ctx.rank in group)
        assert once[1] == once[3].network_nbytes(group), once[3]


@one_host
@pytest.mark.filterwarnings("ignore:.*still in use after the context was closed")
def test_a_message_that_its_receiver_does_not_announce_is_missed_in_time() -> None:
    with broken_later(ranks_per_node=2, timeout=1.0) as ctx:
        backend, columns = ctx.runtime.backend, MatrixDescriptor.column_wise(12, 12, ctx.nprocs)
        A = ctx.ones(columns)
        with pblas.plan_redistribution(A, MatrixDescriptor.replicated(12, 12, ctx.nprocs)) as plan:
            if ctx.rank == 0:
                backend.channel.signal = lambda dest, tag: backend.channel.send(np.empty((0, 0)), dest, tag + 1000)  # type: ignore[method-assign]
            name, text = outcome_of(lambda: plan.execute(A))
        assert name == "PeerTimeout", text
