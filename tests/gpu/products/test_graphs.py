"""Sequences of executions: thousands of replays, the caller's own graphs, streams, contexts, mutants."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import cupy
import numpy as np
import pytest

import pblas
from pblas.backends.nvshmem.hopper import compile as hopper_kernels
from pblas.backends.nvshmem.stream_engine import StreamEngine
from pblas.backends.nvshmem.workspace import Workspace
from pblas.backends.push_engine import Portion
from pblas.matmul.push.base_run import RunLocal, RunPush
from pblas.matrices.scatter_gather import part_of
from pblas.plans.algorithm import Algorithm, AlgorithmKind
from tests.common.ranks import COMM
from tests.gpu.products.products import note, sync, take
from tests.gpu.sharing import SHARED, repeats
from tests.model.hopper_mutants import mutated
from tests.model.push import (
    ALONG_N,
    DELAYS,
    EVERY_LAYOUT,
    LAYOUTS,
    MUTANTS,
    Calls,
    applied,
    delay_puts,
    delay_readers,
    descriptor,
    outcome,
)

pytestmark = [pytest.mark.mpi, pytest.mark.gpu]

SECONDS = 30.0
REPLAYS = repeats(10_000)
FACTORS = (1, 2, 3, 4, 5)

# a := s a0, on the device, whatever the strides.
SCALE = cupy.ElementwiseKernel("T source, float32 s", "T target", "target = (T)((float)source * s)", "pblas_test_scale")
# Record the largest error of D against s d0, where NaN counts as the largest, and poison D.
CHECK = cupy.ElementwiseKernel(
    "T right, float32 s",
    "T d, float32 worst",
    """
    float error = fabsf((float)d - s * (float)right);
    worst = error <= worst ? worst : (error == error ? error : 1e30f);
    d = (T)__int_as_float(0x7fc00000);
    """,
    "pblas_test_check",
)


@pytest.fixture(scope="module")
def ctx() -> Iterator[pblas.Context]:
    with pblas.Context(backend="nvshmem", timeout=SECONDS) as context:
        yield context


def delay(ctx: pblas.Context, nanoseconds: int) -> None:
    """Keep this rank's current stream busy."""
    engine: Any = ctx.runtime.backend.engine()
    engine._kernels.delay(cupy.cuda.get_current_stream().ptr, nanoseconds)


class Scaled:
    """A plan whose data changes on the device: A := s A0, so that D must be s D0, exactly.

    The matrices hold small integers, which float16 and float32 multiply without rounding.

    Args:
        ctx: in which it is multiplied (global).
        name: a plan of EVERY_LAYOUT (global).
        n: rows and columns (global).
        seed: of A0 and B (global).
        dtype: of the matrices (global).
        symmetric: D is in the context's memory, where peers can write it (global).
        alone: all of A and B is on rank 0 (global).
        options: of plan_matmul (global).
    """

    def __init__(
        self,
        ctx: pblas.Context,
        name: str,
        n: int,
        seed: int,
        dtype: str = "float32",
        *,
        symmetric: bool = False,
        alone: bool = False,
        **options: Any,
    ) -> None:
        draws = np.random.default_rng(seed)
        a, b = (draws.integers(-1, 2, (n, n)).astype(dtype) for _ in range(2))
        descs = [descriptor(kind, n, n, ctx.nprocs) for kind in EVERY_LAYOUT[name]]
        if alone:
            descs[0] = pblas.MatrixDescriptor.column_wise(n, n, ctx.nprocs, nb=n)
            descs[1] = pblas.MatrixDescriptor.row_wise(n, n, ctx.nprocs, mb=n)
        d = (a.astype(np.float32) @ b.astype(np.float32)).astype(dtype)
        parts = [part_of(x, desc, ctx.rank) for x, desc in zip((a, b, d), descs, strict=True)]
        self._a0, b_loc, self._d0 = (cupy.asfortranarray(cupy.asarray(x)) for x in parts)
        a_loc, d_loc = cupy.zeros_like(self._a0, order="F"), cupy.full_like(self._d0, np.nan, order="F")
        self.a, self.b, self.d = (ctx.from_local(x, desc) for x, desc in zip((a_loc, b_loc, d_loc), descs, strict=True))
        if symmetric:
            self.d = ctx.empty(descs[2], dtype)
            self.d.local[...] = np.nan
        self._worst = cupy.zeros(self._d0.shape, np.float32, order="F")
        self._scales = random.Random(seed)
        self._last: tuple[int, ...] = (0, 0)
        # Kernels with tiles add partial products of 16 bits that travel as they are.
        self.planned = pblas.plan_matmul(self.a, self.b, out=self.d, **{"wire_dtype": dtype} | options)

    def load(self) -> int:
        """Set data unlike that of the last two calls, on the current stream."""
        scale = self._scales.choice([s for s in FACTORS if s not in self._last])
        self._last = (self._last[1], scale)
        SCALE(self._a0, np.float32(scale), self.a.local)
        return scale

    def execute(self, **options: Any) -> None:
        """Execute once, on the current stream by default."""
        self.planned.execute(self.a, self.b, out=self.d, **options)

    def look(self, scale: int) -> None:
        """Compare D on the device, on the current stream, and poison it."""
        CHECK(self._d0, np.float32(scale), self.d.local, self._worst)

    def turn(self) -> None:
        """Set data, execute once, and compare."""
        scale = self.load()
        self.execute()
        self.look(scale)

    def check(self) -> None:
        """Assert that no comparison has found an error."""
        sync()
        worst = float(self._worst.max()) if self._worst.size else 0.0
        assert worst == 0.0, f"{self.planned.plan.name}, {self.planned.plan.algorithm}: off by {worst}"


def three(ctx: pblas.Context, n: int = 64, **options: Any) -> list[Scaled]:
    """A plan of each kind, on the workspace of the context."""
    return [Scaled(ctx, name, n, seed, **options) for seed, name in enumerate(LAYOUTS)]


def take_turns(
    ctx: pblas.Context, streams: list[Any], plans: list[list[Scaled]], turns: int, order: random.Random
) -> None:
    """Three plans on each of two streams, in any order, with delays that differ between ranks."""
    delays = random.Random(ctx.rank)
    for _ in range(turns):
        index = order.randrange(2)
        with streams[index]:
            if delays.random() < 0.1:
                delay(ctx, int(delays.expovariate(1 / 50_000)))
            plans[index][order.randrange(3)].turn()
    for planned in plans[0] + plans[1]:
        planned.check()


def endure(ctx: pblas.Context, plans: list[Scaled], text: str) -> None:
    """Plans alternate on one workspace, REPLAYS times; no rank waits for its GPU or for another rank."""
    delays = random.Random(ctx.rank)
    stream = cupy.cuda.Stream(non_blocking=True)
    start = time.monotonic()
    with stream:
        for turn in range(REPLAYS):
            for planned in plans:
                if delays.random() < 0.1:
                    delay(ctx, int(delays.expovariate(1 / 30_000)))
                planned.turn()
            if turn % 2500 == 0 and delays.random() < 0.5:
                time.sleep(0.02)
    for planned in plans:
        planned.check()
    seconds = time.monotonic() - start
    note(
        f"{ctx.nprocs} ranks: {REPLAYS} executions of each of three plans {text} in turn, all right, in {seconds:.1f} s"
    )


def test_ten_thousand_replays_with_changing_data_and_random_delays(ctx: pblas.Context) -> None:
    endure(ctx, three(ctx, chunks=2), "by copies")


@pytest.mark.parametrize("by", ["tile_signals", "fused_stores"])
def test_ten_thousand_replays_by_the_hopper_kernel(
    ctx: pblas.Context, by: AlgorithmKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, with a few tiles in each product."""
    if ctx.nprocs == 1 or not ctx.runtime.topology.tiles:
        pytest.skip("one rank moves nothing, and other GPUs have no such kernel")
    plans = []
    gathers = ((ALONG_N, (1,)),) if by == "tile_signals" else ()
    for name, pieces in (*gathers, ("GemmReduceScatter", (1,)), ("GemmAllReduce", (2, 1))):
        take(Algorithm(by, pieces), monkeypatch)
        plans.append(Scaled(ctx, name, 256 * ctx.nprocs, 9, "float16"))
    endure(ctx, plans, f"by {by}")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_every_algorithm_replayed(ctx: pblas.Context, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels and copies alternate on one workspace, with randomly late ranks."""
    if ctx.nprocs == 1:
        pytest.skip("one rank moves nothing")
    plans = []
    for algorithm in (
        Algorithm("sm_push"),
        Algorithm("copy_engine", (1, ctx.nprocs - 1)),
        Algorithm("copy_engine", (1,) * ctx.nprocs),
    ):
        take(algorithm, monkeypatch)
        plans += [Scaled(ctx, name, 64, 1, dtype) for name in ("AllGatherGemm", "GemmReduceScatter")]
    take(Algorithm("tile_signals"), monkeypatch)
    plans.append(Scaled(ctx, ALONG_N, 64, 1, dtype))
    for algorithm in (Algorithm("tile_signals"), Algorithm("tile_signals", (1, 1)), Algorithm("fused_stores")):
        take(algorithm, monkeypatch)
        plans.append(Scaled(ctx, "GemmReduceScatter", 64, 1, dtype))
    for algorithm in (
        Algorithm("one_shot"),
        Algorithm("two_shot"),
        Algorithm("copy_engine", (2, 1)),
        Algorithm("copy_engine", (3, 2, 1)),
        Algorithm("tile_signals"),
        Algorithm("tile_signals", (2, 1)),
        Algorithm("fused_stores"),
        Algorithm("fused_stores", (2, 1)),
        Algorithm("two_shot", (2, 1, 1)),
    ):
        take(algorithm, monkeypatch)
        plans.append(Scaled(ctx, "GemmAllReduce", 64, 2, dtype))
    delays, order = random.Random(100 + ctx.rank), random.Random(7)
    for _ in range(repeats(1000)):
        for planned in order.sample(plans, len(plans)):
            if delays.random() < 0.05:
                delay(ctx, int(delays.expovariate(1 / 50_000)))
            planned.turn()
    for planned in plans:
        planned.check()


@pytest.mark.parametrize("alone", [False, True])
def test_results_stored_in_d_wait_for_its_readers(
    ctx: pblas.Context, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peers store the next call's D while this rank may still read the last D; also if it adds nothing itself."""
    if ctx.nprocs == 1:
        pytest.skip("one rank moves nothing")
    plans = []
    for algorithm in (
        Algorithm("one_shot"),
        Algorithm("two_shot"),
        Algorithm("two_shot", (2, 1)),
        Algorithm("copy_engine", (2, 1)),
    ):
        take(algorithm, monkeypatch)
        plans.append(Scaled(ctx, "GemmAllReduce", 64, 3, symmetric=True, alone=alone))
    for pieces in ((1,), (2, 1, 1)):
        take(Algorithm("fused_stores", pieces), monkeypatch)
        plans.append(Scaled(ctx, "GemmAllReduce", 256 * ctx.nprocs, 3, "float16", symmetric=True, alone=alone))
    order, delays = random.Random(8), random.Random(200 + ctx.rank)
    for turn in range(repeats(1500)):
        planned = plans[turn // 5 % len(plans)] if turn < 200 else order.choice(plans)
        scale = planned.load()
        planned.execute()
        if delays.random() < 0.2:
            delay(ctx, int(delays.expovariate(1 / 100_000)))
        planned.look(scale)
    for planned in plans:
        planned.check()
    del planned
    plans.clear()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_executions_in_a_graph_of_the_callers(ctx: pblas.Context, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 replays, each with new data, and eager executions in between, on the same workspace and others."""
    plans = three(ctx)[:count]
    if count == 2:
        with monkeypatch.context() as patch:
            take(Algorithm("tile_signals"), patch)
            plans = [Scaled(ctx, name, 64, 5, "float16") for name in (ALONG_N, "GemmReduceScatter")]
    between = three(ctx)
    stream = cupy.cuda.Stream(non_blocking=True)
    delays = random.Random(ctx.rank)
    with stream:
        for planned in plans:  # captures need a first execution
            planned.turn()
        stream.synchronize()
        stream.begin_capture()
        for number, planned in enumerate(plans):
            if ctx.rank == number % ctx.nprocs:  # late, so that its peers are an execution ahead
                delay(ctx, 100_000)
            planned.execute()
        graph = stream.end_capture()
        for turn in range(repeats(1000)):
            if delays.random() < 0.1:
                delay(ctx, int(delays.expovariate(1 / 30_000)))
            scales = [planned.load() for planned in plans]
            graph.launch(stream)
            for planned, scale in zip(plans, scales, strict=True):
                planned.look(scale)
            if turn % 7 == 0:
                between[turn % 3].turn()
            if turn % 10 == 0:
                plans[turn % count].turn()
    for planned in plans + between:
        planned.check()


def test_the_same_execution_three_times_in_a_graph_of_the_callers(ctx: pblas.Context) -> None:
    """Each execution reads the result of the last one: X := A X."""
    n = 8 * ctx.nprocs
    rows = descriptor("rows", n, n, ctx.nprocs)
    a = ctx.from_global(lambda i, j: (j - i) % n == 1, rows, dtype="float32")  # shifts the rows
    x = ctx.from_global(lambda i, j: i * n + j, rows, dtype="float32")
    y = ctx.zeros(rows, "float32")
    planned = pblas.plan_matmul(a, x, out=y)
    stream = cupy.cuda.Stream(non_blocking=True)
    steps = 0

    def step() -> None:
        planned.execute(a, x, out=y)
        cupy.copyto(x.local, y.local)

    with stream:
        step()
        stream.synchronize()
        stream.begin_capture()
        for _ in range(3):
            step()
        graph = stream.end_capture()
        steps += 1
        for turn in range(repeats(200)):
            graph.launch(stream)
            steps += 3
            if turn % 20 == 0:
                step()
                steps += 1
    sync()
    expected = np.roll(np.arange(n * n, dtype=np.float32).reshape(n, n), -steps, axis=0)
    assert np.array_equal(x.runtime.backend.reading(x.local), part_of(expected, rows, ctx.rank))


def test_two_graphs_of_the_callers_alternate(ctx: pblas.Context) -> None:
    plans = three(ctx)[:2]
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        graphs = []
        for planned in plans:
            planned.turn()
            stream.synchronize()
            stream.begin_capture()
            planned.execute()
            graphs.append(stream.end_capture())
        order = random.Random(5)
        for _ in range(repeats(300)):
            i = order.randrange(2)
            scale = plans[i].load()
            graphs[i].launch(stream)
            plans[i].look(scale)
    for planned in plans:
        planned.check()


def test_executions_from_two_streams_are_chained(ctx: pblas.Context) -> None:
    """Each stream has its own plans; the workspace is one."""
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    take_turns(ctx, streams, [three(ctx), three(ctx)], repeats(1000), random.Random(3))


@pytest.mark.parametrize("apart", [False, True])
def test_two_contexts_alternate(ctx: pblas.Context, apart: bool) -> None:
    """Also on streams of their own, and with graphs and eager executions in any order."""
    stream = cupy.cuda.Stream(non_blocking=True)
    streams = [stream, cupy.cuda.Stream(non_blocking=True) if apart else stream]
    with pblas.Context(backend="nvshmem", timeout=SECONDS) as other:
        take_turns(ctx, streams, [three(ctx), three(other)], repeats(500), random.Random(11))


def test_a_context_over_half_of_the_ranks_beside_that_of_all(ctx: pblas.Context) -> None:
    if ctx.nprocs < 4:
        pytest.skip("half of the ranks are one")
    half: Any = COMM.Split(ctx.rank % 2, ctx.rank)
    order = random.Random(12)
    with pblas.Context(half, backend="nvshmem", timeout=SECONDS) as other:
        plans = [three(ctx), three(other)]
        for _ in range(repeats(300)):
            plans[order.randrange(2)][order.randrange(3)].turn()
        for planned in plans[0] + plans[1]:
            planned.check()
        plans.clear()
    half.Free()


def test_a_workspace_grows_while_older_plans_live(ctx: pblas.Context) -> None:
    with pblas.Context(backend="nvshmem", timeout=SECONDS) as other:
        plans: list[Scaled] = []
        order = random.Random(13)
        for n in (16, 64, 160):
            plans += three(other, n, dtype="float16" if n == 64 else "float32")
            for _ in range(60):
                plans[order.randrange(len(plans))].turn()
        for planned in plans:
            planned.check()
        plans.clear()


def test_graphs_are_kept_for_a_bounded_number_of_outputs(ctx: pblas.Context) -> None:
    from pblas.matmul.pushed import _MAX_KNOWN, PushedMatmul

    products = Scaled(ctx, "AllGatherGemm", 64, 1)
    desc = products.d.desc
    outputs = [
        ctx.from_local(cupy.full_like(products.d.local, np.nan, order="F"), desc) for _ in range(_MAX_KNOWN + 10)
    ]
    for few in (outputs, outputs[:20]):
        for d in 4 * few:
            products.d = d
            products.turn()
    products.check()
    assert isinstance(products.planned, PushedMatmul)
    assert len(products.planned._known) == _MAX_KNOWN


def test_recorded_executions_replay_on_other_arrays(ctx: pblas.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are launched and captured without executing the schedule again."""
    options: tuple[dict[str, Any], ...] = ({"chunks": 2}, {"overlap": False})
    plans = [Scaled(ctx, name, 64, 6, **each) for name in LAYOUTS for each in options]
    if ctx.runtime.topology.tiles:
        for algorithm, names in (
            (Algorithm("tile_signals", (1, 1)), (ALONG_N, "GemmReduceScatter", "GemmAllReduce")),
            (Algorithm("fused_stores"), ("GemmReduceScatter", "GemmAllReduce")),
        ):
            take(algorithm, monkeypatch)
            plans += [Scaled(ctx, name, 64, 6, "float16") for name in names]
    for kind in (RunPush, RunLocal):
        monkeypatch.setattr(kind, "run", lambda *_: pytest.fail("it was walked"))
    keep = []
    for _ in range(4):
        for planned in plans:
            for name in "abd":
                x = getattr(planned, name)
                keep.append(x)
                setattr(planned, name, ctx.from_local(x.local.copy(order="F"), x.desc))
            for _ in range(4):  # eager, captured, captured, known
                planned.turn()
    for planned in plans:
        planned.check()


@pytest.mark.parametrize(("name", "chunks"), [("AllGatherGemm", None), ("GemmAllReduce", 3)])
def test_cpu_cost_of_an_execution(ctx: pblas.Context, name: str, chunks: int | None) -> None:
    """Measure the CPU time of an execution on known arrays and on new ones, and note it in the report."""
    planned = Scaled(ctx, name, 64, 1, chunks=chunks)
    desc = planned.d.desc
    outputs = [ctx.from_local(cupy.full_like(planned.d.local, np.nan, order="F"), desc) for _ in range(repeats(40))]
    kinds = ("new", "captured", "captured", *(30 * ("known",)))
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for d in outputs:
        planned.d = d
        for kind in kinds:
            start = time.perf_counter()
            planned.execute()
            times[kind].append(time.perf_counter() - start)
        planned.turn()
        sync()  # the queue of launches is never full
    planned.check()
    us = {kind: max(COMM.allgather(median(seconds) * 1e6)) for kind, seconds in times.items()}
    note(
        f"{ctx.nprocs} ranks: execute takes {us['known']:.1f} us of CPU time on known arrays, {us['new']:.0f} on new "
        f"ones, {us['captured']:.0f} to capture a graph (medians, slowest rank; {name}, "
        f"{planned.planned.plan.algorithm})"
    )


# Delays and mutants


LATE_NS = (20 if SHARED else 2) * 1_000_000
"""Nanoseconds by which something is late: longer than the time slices of all ranks, where they share a GPU."""


def held(engine: Any, lane: str, nanoseconds: int) -> None:
    """Keep a lane busy."""
    engine._executions.sink.launch(lane, lambda stream: engine._kernels.delay(stream, nanoseconds))


def pause_first(engine: Any, lane: str) -> None:
    """On rank 0."""
    if engine._rank == 0:
        held(engine, lane, LATE_NS)


def pause_at_random(engine: Any, lane: str) -> None:
    """A random delay on any rank."""
    if RANDOM.random() < 0.3:
        held(engine, lane, int(RANDOM.expovariate(1 / 100_000)))


RANDOM = random.Random(COMM.rank)
PLANS: list[tuple[str, dict[str, Any]]] = [
    ("AllGatherGemm", {"chunks": 2}),
    ("GemmReduceScatter", {"chunks": 2}),
    ("GemmAllReduce", {"chunks": 2}),
]
"""A round is 3 turns, 9 calls, an odd number: the next round has the other parity."""


def fix_parity(patch: pytest.MonkeyPatch) -> None:
    """All calls use the same half of the workspace."""
    patch.setattr(Workspace, "parity", property(lambda self: 0 * self.calls))


def parity_fixed(patch: pytest.MonkeyPatch, engine: type[Any], pause: Any) -> None:
    """The same half in all calls, and late readers."""
    delay_readers(patch, engine, pause)
    fix_parity(patch)


ALL_MUTANTS = {**MUTANTS, "parity fixed": parity_fixed}


def no_tile_waits_for_rank_0(patch: pytest.MonkeyPatch, engine: type[Any], pause: Any) -> None:
    """Kernels do not wait for rank 0's flags."""
    delay_puts(patch, engine, pause)
    multiply = engine.multiply_portions

    def heedless(self: Any, lane: str, alpha: complex, portions: list[Portion], *rest: Any, **more: Any) -> bool:
        pause(self, lane)

        def left(flag: Any) -> Any:
            return None if flag is None or flag[0] == 0 else flag

        careless = [
            replace(portion, awaits=left(portion.awaits), terms=tuple((z, left(flag)) for z, flag in portion.terms))
            for portion in portions
        ]
        return bool(multiply(self, lane, alpha, careless, *rest, **more))

    patch.setattr(engine, "multiply_portions", heedless)


def parity_of_tiles_fixed(patch: pytest.MonkeyPatch, engine: type[Any], pause: Any) -> None:
    """The same half in all calls; rank 2 is late at rank 0, whose tiles read the data of rank 3's next call."""
    del pause
    put = engine.put

    def late(self: Any, lane: str, source: Any, peer: int, *rest: Any) -> None:
        if (self._rank, peer) == (2, 0):
            held(self, lane, LATE_NS)
        put(self, lane, source, peer, *rest)

    patch.setattr(engine, "put", late)
    fix_parity(patch)


def sums_got_late(patch: pytest.MonkeyPatch, engine: type[Any], pause: Any) -> None:
    """Pause before every get."""

    def late(get: Any) -> Any:
        def got_late(self: Any, lane: str, *rest: Any) -> None:
            pause(self, lane)
            get(self, lane, *rest)

        return got_late

    for name in ("get", "gets"):
        patch.setattr(engine, name, late(getattr(engine, name)))


MUTANTS_OF_TILES = {
    "flag before data": MUTANTS["flag before data"],
    "a wait dropped": no_tile_waits_for_rank_0,
    "parity fixed": parity_of_tiles_fixed,
}


@pytest.mark.parametrize("delayed", DELAYS)
@pytest.mark.parametrize("pause", [pause_first, pause_at_random])
def test_delays_change_nothing(delayed: Any, pause: Any) -> None:
    """On rank 0, and at random on any rank, captured in the graphs."""
    with pblas.Context(backend="nvshmem", timeout=SECONDS) as ctx, applied(delayed, StreamEngine, pause):
        calls = Calls(ctx, 3, PLANS, 16 * ctx.nprocs)
        for seed in range(6):
            calls.round(seed)
        calls.close()
        del calls


def test_kernel_algorithms_tolerate_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[tuple[str, dict[str, Any]]] = [(name, {"overlap": False}) for name, _ in PLANS]
    with pblas.Context(backend="nvshmem", timeout=SECONDS) as ctx:
        delays = random.Random(ctx.rank)
        for delayed in DELAYS:
            with applied(delayed, StreamEngine, pause_at_random):
                calls = Calls(ctx, 3, plans, 16 * ctx.nprocs)
                calls.round(1)
                calls.close()
        calls = Calls(ctx, 3, plans, 16 * ctx.nprocs)
        for seed in range(20):
            calls.round(seed, lambda: delay(ctx, int(delays.expovariate(1 / 100_000))))
        calls.close()
        del calls


@contextmanager
def doomed(seconds: float = 3.0) -> Iterator[pblas.Context]:
    """A context whose protocol a test breaks."""
    ctx = pblas.Context(backend="nvshmem", timeout=seconds)
    try:
        yield ctx
        gc.collect()  # an exception keeps the arguments of the call that raised it in a cycle
    finally:
        ctx.runtime.mark_broken("a test has broken the protocol")
        ctx.close()


def check_mutant(change: Any, plans: list[tuple[str, dict[str, Any]]], dtype: str) -> None:
    """Assert that calls that are right without the mutant are wrong with it, or end in an error."""
    with pblas.Context(backend="nvshmem", timeout=SECONDS) as patient, applied(change, StreamEngine, pause_first):
        Calls(patient, 1, plans, 16 * patient.nprocs, dtype).close()  # kernels are compiled
    with doomed() as ctx:
        with applied(change, StreamEngine, pause_first):
            calls = Calls(ctx, 3, plans, 16 * ctx.nprocs, dtype)
            outcomes = [outcome(partial(calls.round, seed)) for seed in range(2)]
        everywhere = COMM.allgather(outcomes)
        for turn, kind in enumerate(("eager", "captured")):
            assert any(ranks[turn] != "right" for ranks in everywhere), f"{plans}, {kind}: not caught"
        sync()
        calls.close()
        del calls


@pytest.mark.parametrize("name", ALL_MUTANTS)
def test_mutants_are_caught(name: str) -> None:
    """Each mutant breaks the protocol in one place."""
    if COMM.size == 1:
        pytest.skip("one rank moves nothing")
    check_mutant(ALL_MUTANTS[name], PLANS, "float32")


# Successive calls of one all-reduce in which each rank sums a shard of every piece need only one half of the workspace.
# A rank's call ends when it has all sums; then all ranks have read their terms. It gets sums of the next call only
# after all ranks have sent terms of that call, which they do after the last call.
BROKEN_BY_TILES = [
    (name, plan)
    for name in MUTANTS_OF_TILES
    for plan in (ALONG_N, "GemmReduceScatter", "GemmAllReduce")
    if (name, plan) != ("parity fixed", "GemmAllReduce")
]


@pytest.mark.parametrize(("name", "plan"), BROKEN_BY_TILES)
def test_mutants_of_tile_signals_are_caught(name: str, plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each kind of product in which one kernel multiplies and waits."""
    if COMM.size < (4 if name == "parity fixed" else 2):
        pytest.skip("needs a late rank and its reader; with a fixed parity, a third rank that is ahead of both")
    take(Algorithm("tile_signals", (1, 1)), monkeypatch)
    check_mutant(MUTANTS_OF_TILES[name], [(plan, {})], "float16")


@pytest.mark.parametrize("fixed", [False, True])
def test_sums_stay_until_a_late_rank_has_read_them(fixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its peers are a call ahead and send shards to the workspace's other half, or, if it is fixed, over the sums."""
    if COMM.size < 4:
        pytest.skip("needs a third rank that overwrites the sums that one rank gets from another")
    take(Algorithm("tile_signals", (1, 1)), monkeypatch)
    n = 16 * COMM.size
    if fixed:
        fix_parity(monkeypatch)
    with doomed() as ctx, applied(sums_got_late, StreamEngine, pause_first):
        # The first plan's workspace serves both plans. Its shards are so large that they overlap the sums.
        plans = [Scaled(ctx, name, size, 1, "float16") for name, size in ((ALONG_N, 2 * n), ("GemmAllReduce", n))]

        def turns() -> None:
            for planned in 6 * plans:
                planned.turn()
            for planned in plans:
                planned.check()

        outcomes = COMM.allgather(outcome(turns))
        assert any(text != "right" for text in outcomes) == fixed, outcomes
        sync()
        plans.clear()


@pytest.mark.parametrize("plan", ["GemmReduceScatter", "GemmAllReduce"])
def test_a_mutant_of_fused_stores_is_caught(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if COMM.size == 1:
        pytest.skip("one rank moves nothing")
    take(Algorithm("fused_stores"), monkeypatch)
    check_mutant(no_tile_waits_for_rank_0, [(plan, {})], "float16")


@pytest.mark.parametrize(
    ("name", "by", "plan"),
    [
        ("signals before the stores complete", "tile_signals", "GemmReduceScatter"),
        ("signals before the stores complete", "tile_signals", "GemmAllReduce"),
        ("signals before the stores complete", "fused_stores", "GemmReduceScatter"),
        ("signals before the stores complete", "fused_stores", "GemmAllReduce"),
    ],
)
def test_mutants_of_the_hopper_kernel_are_caught(
    name: str, by: AlgorithmKind, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0's kernel signals data that are not stored yet."""
    if COMM.size == 1:
        pytest.skip("one rank moves nothing")
    take(Algorithm(by), monkeypatch)
    if COMM.rank == 0:
        monkeypatch.setattr(hopper_kernels, "source", lambda: mutated(name))
    check_mutant(lambda *_: None, [(plan, {})], "float16")
