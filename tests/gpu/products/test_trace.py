"""Events on GPUs, of pushed and of general plans: their laws, and unchanged executions before and after a trace."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import cupy
import pytest

import pblas
from pblas import Event, Grid, MatrixDescriptor
from pblas.backends.push_engine import Engine
from pblas.backends.traced import marks
from pblas.matmul import choose_granularity as portions
from pblas.matmul.pushed import PushedMatmul
from pblas.plans.algorithm import Algorithm
from tests.common.ranks import COMM
from tests.gpu.products.general import SECONDS, context

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]

P, RANK = COMM.size, COMM.rank
M, N, K = 512, 1024, 2048
ROWS, COLUMNS, WHOLE = MatrixDescriptor.row_wise, MatrixDescriptor.column_wise, MatrixDescriptor.replicated
ONE_DIMENSIONAL = {
    "AllGatherGemm": (ROWS(M, K, P), ROWS(K, N, P), ROWS(M, N, P)),
    "GemmReduceScatter": (COLUMNS(M, K, P), ROWS(K, N, P), ROWS(M, N, P)),
    "GemmAllReduce": (COLUMNS(M, K, P), ROWS(K, N, P), WHOLE(M, N, P)),
}
ALGORITHMS = {
    "AllGatherGemm": (Algorithm("sm_push"), Algorithm("copy_engine", (1,) * P)),
    "GemmReduceScatter": (Algorithm("sm_push"), Algorithm("copy_engine", (1,) * P)),
    "GemmAllReduce": (Algorithm("one_shot"), Algorithm("two_shot", (2, 1)), Algorithm("copy_engine", (1, 1))),
}


def check(events: tuple[Event, ...], flops: int) -> None:
    """Assert that a lane has one event at a time, and that the GEMMs cover the product."""
    assert (events == ()) == (RANK > 0)
    lanes: dict[tuple[int, str], list[Event]] = {}
    for event in events:
        lanes.setdefault((event.rank, event.lane), []).append(event)
    for lane_events in lanes.values():
        # Two events of one time may differ by rounding.
        assert all(a.stop <= b.start + 1e-6 for a, b in pairwise(lane_events)), lane_events
    if RANK == 0:
        assert sum(event.details.get("flops", 0) for event in events) == flops
        assert {rank for rank, lane in lanes if lane == "main"} == set(range(P))
        last = max(event.stop for event in events)
        assert 0 < last < SECONDS


def check_traced(
    mm: pblas.PlannedMatmul, execute: Callable[[], Any], d: pblas.DistMatrix, a: Any, b: Any
) -> pblas.Trace:
    """A trace between executions; all have the same bits."""
    lanes = []
    for _ in range(3):
        execute()
        lanes.append(cupy.asnumpy(d.local))
    trace = mm.trace(a, b, out=d)
    lanes.append(cupy.asnumpy(d.local))
    for _ in range(2):
        d.local[...] = 0
        execute()
        lanes.append(cupy.asnumpy(d.local))
    assert all(x.tobytes() == lanes[0].tobytes() for x in lanes)
    return trace


@pytest.mark.mpi(min_size=2)
def test_events_of_pushed_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    with context("nvshmem") as ctx:
        for name, algorithms in ALGORITHMS.items():
            desc_a, desc_b, desc_d = ONE_DIMENSIONAL[name]
            a, b = (ctx.random(desc, "float32", seed=seed) for desc, seed in ((desc_a, 1), (desc_b, 2)))
            d = ctx.empty(desc_d, "float32")
            for algorithm in algorithms:
                monkeypatch.setattr(portions, "choose_algorithm", lambda *_, algorithm=algorithm, **__: algorithm)
                mm = pblas.plan_matmul(a, b, out=d)
                assert mm.plan.algorithm == algorithm
                trace = check_traced(mm, lambda mm=mm, a=a, b=b, d=d: mm.execute(a, b, out=d), d, a, b)  # type: ignore[misc]
                check(trace.events, 2 * M * N * K)
                if RANK == 0:
                    beside = any(event.lane == "copy" for event in trace.events)
                    assert beside == (algorithm.kind == "copy_engine" or len(algorithm.groups) > 1), algorithm
                    assert any(event.kind == "wait" for event in trace.events) or algorithm.kind in (
                        "one_shot",
                        "sm_push",
                    )
        engine = ctx.runtime.backend.engine()
        assert not {*marks(Engine), "run"} & set(vars(engine))
        del engine


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", ["nvshmem", "cuda"])
def test_events_of_general_plans(name: str) -> None:
    grid = Grid(2, P // 2) if P % 2 == 0 else Grid(1, P)

    def block(m: int, n: int) -> MatrixDescriptor:
        return MatrixDescriptor(m, n, -(-m // grid.nprow), -(-n // grid.npcol), grid)

    with context(name) as ctx:
        for n in (N, 64):  # SummaC and SummaA
            a, b = ctx.random(block(M, K), "float32", seed=1), ctx.random(block(K, n), "float32", seed=2)
            d = ctx.empty(block(M, n), "float32")
            mm = pblas.plan_matmul(a, b, out=d)
            trace = check_traced(mm, lambda mm=mm, a=a, b=b, d=d: mm.execute(a, b, out=d), d, a, b)  # type: ignore[misc]
            check(trace.events, 2 * M * n * K)
            if RANK == 0 and not isinstance(mm, PushedMatmul):  # on two ranks with NVSHMEM the plan is pushed
                assert any(event.lane == "side" for event in trace.events) or mm.plan.max_received_nbytes == 0
                assert any(event.lane == "host" for event in trace.events)


def test_launches_captured_by_the_caller_are_not_recorded() -> None:
    with context("nvshmem") as ctx:
        a = ctx.random(ROWS(M, M, P), "float32", seed=1)
        d = ctx.empty(ROWS(M, M, P), "float32")
        mm = pblas.plan_matmul(a, a, out=d)
        mm.execute(a, a, out=d)
        expected = cupy.asnumpy(d.local)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream, ctx.trace() as trace:
            mm.execute(a, a, out=d)
            stream.begin_capture()
            mm.execute(a, a, out=d)
            graph = stream.end_capture()
            d.local[...] = 0
            COMM.Barrier()
            graph.launch(stream)
            stream.synchronize()
        assert (cupy.asnumpy(d.local) == expected).all()
        check(trace.events, 2 * M * M * M)


def test_a_collective_is_one_event() -> None:
    with context("nvshmem") as ctx:
        x = cupy.ones(1000, "float32")
        ctx.allreduce(x)
        with ctx.trace() as trace:
            total = ctx.allreduce(x)
        assert (cupy.asnumpy(total) == P).all()
        check(trace.events, 0)
        for rank in range(P) if RANK == 0 else ():
            assert [event.name for event in trace.events if (event.rank, event.lane) == (rank, "main")] == [
                "collective"
            ]
