"""Ranks that sleep, stall, reject arguments or leave: their peers soon name them, and the next context works."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from typing import Any

import cupy
import pytest

import pblas
from pblas.plans.algorithm import Algorithm
from tests.common.ranks import COMM, check_product, outcome_of
from tests.gpu.products.products import note, sync, take
from tests.gpu.sharing import SHARED
from tests.model.push import ALONG_N, EVERY_LAYOUT, descriptor

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.gpu]

TIMEOUT = 2.0 if SHARED else 0.5
PATIENT = 30.0
LATE = 2 * TIMEOUT
LONG = 3 * TIMEOUT  # seconds; by then no stream should still wait
SLACK = 3.0  # seconds in which a rank that knows of a fault has notified the others and drained its stream
N = 64


class Scene:
    """A context with a short timeout, a plan, and its matrices."""

    def __init__(self, name: str) -> None:
        load_kernels(name)
        self.name = name
        self.ctx = ctx = pblas.Context(backend="nvshmem", timeout=TIMEOUT)
        self.a, self.b, self.d, self.planned = plan(ctx, name)
        self.dtype = self.d.dtype.name
        self.wrong = ctx.random(self.a.desc, "float64")
        for _ in range(3):  # eager, captured, captured
            self.execute()
        sync()
        COMM.Barrier()

    def execute(self) -> None:
        self.planned.execute(self.a, self.b, out=self.d)

    def end(self) -> None:
        """Leave the broken context, and check that a new one works."""
        start = time.monotonic()
        self.planned.close()
        del self.a, self.b, self.d, self.wrong, self.planned
        with suppress(pblas.PblasError):
            self.ctx.close()
        assert time.monotonic() - start < SLACK
        COMM.Barrier()
        with pblas.Context(backend="nvshmem", timeout=PATIENT) as after:
            check_product(after)


def plan(
    ctx: pblas.Context, name: str
) -> tuple[pblas.DistMatrix, pblas.DistMatrix, pblas.DistMatrix, pblas.PlannedMatmul]:
    """**Collective.** A, B, D and the plan of a name of PLANS."""
    kind, options = PLANS[name]
    dtype = "float16" if name in ALGORITHMS else "float32"
    descs = [descriptor(kind, N, N, ctx.nprocs) for kind in EVERY_LAYOUT[kind]]
    a, b = (ctx.random(desc, dtype, seed=i) for i, desc in enumerate(descs[:2]))
    d = ctx.zeros(descs[2], dtype)
    return a, b, d, pblas.plan_matmul(a, b, out=d, **{"wire_dtype": dtype} | options)


@cache
def load_kernels(name: str) -> None:
    """**Collective.** Compile the kernels of a plan, for which ranks may wait longer than TIMEOUT."""
    with pblas.Context(backend="nvshmem", timeout=PATIENT) as ctx:
        plan(ctx, name)[-1].close()


PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "gather by copies": ("AllGatherGemm", {"chunks": 2}),
    "gather beside other queues": ("AllGatherGemm", {"chunks": 2, "queue": 1}),
    "gather by a kernel": ("AllGatherGemm", {"overlap": False}),
    "gather by a kernel beside other queues": ("AllGatherGemm", {"queue": 1}),
    "gather for tiles": (ALONG_N, {}),
    "reduce-scatter from tiles": ("GemmReduceScatter", {}),
    "reduce-scatter by stores": ("GemmReduceScatter", {}),
    "reduce-scatter by copies": ("GemmReduceScatter", {"chunks": 2}),
    "all-reduce from tiles in pieces": ("GemmAllReduce", {}),
    "all-reduce by stores in pieces": ("GemmAllReduce", {}),
    "all-reduce by pieces": ("GemmAllReduce", {"chunks": 2}),
    "all-reduce by a kernel": ("GemmAllReduce", {"overlap": False}),
}
ALGORITHMS = {
    "gather for tiles": Algorithm("tile_signals"),
    "reduce-scatter from tiles": Algorithm("tile_signals"),
    "reduce-scatter by stores": Algorithm("fused_stores"),
    "all-reduce from tiles in pieces": Algorithm("tile_signals", (1, 1)),
    "all-reduce by stores in pieces": Algorithm("fused_stores", (1, 1)),
}
"""Of those that one kernel multiplies, which waits meanwhile."""


@pytest.fixture(params=PLANS)
def scene(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    if request.param in ALGORITHMS:
        take(ALGORITHMS[request.param], monkeypatch)
    result = Scene(request.param)
    monkeypatch.undo()
    yield result
    result.end()


def until_error(call: Callable[[], object]) -> tuple[str, str, float]:
    """(class, text, seconds) of the error of a call that is repeated each time that the GPU is done."""
    start = time.monotonic()

    def once() -> None:
        call()
        sync()

    for _ in range(5):
        name, text = outcome_of(once)
        if name != "no exception":
            break
    return name, text, time.monotonic() - start


def check_broken(scene: Scene, text: str) -> None:
    """Assert that every call now raises at once, with the reason."""
    start = time.monotonic()
    for call in (scene.execute, partial(scene.ctx.zeros, scene.d.desc), partial(scene.d.to_global, None)):
        name, again = outcome_of(call)
        assert name == "ContextError", again
        assert text in again
    assert time.monotonic() - start < 0.5


def check_late(scene: Scene, late: int, outcome: tuple[str, str, float], step: str) -> None:
    """Assert that every rank has raised PeerTimeout, and punctual ranks within the limit."""
    text = outcome[1]
    everywhere = COMM.allgather(outcome)
    assert {entry[0] for entry in everywhere} == {"PeerTimeout"}, everywhere
    assert f"execute: rank {late} of {COMM.size} did not send what the others wait for within {TIMEOUT:g} s" in text
    slowest = max(entry[2] for rank, entry in enumerate(everywhere) if rank != late)
    assert slowest < TIMEOUT + SLACK, everywhere
    check_broken(scene, text)
    note(f"{COMM.size} ranks: {step}: PeerTimeout after {slowest:.1f} s, limit {TIMEOUT:g} s ({scene.name})")


def test_a_rank_that_sleeps_is_named(scene: Scene) -> None:
    late = COMM.size - 1
    if COMM.rank == late:
        time.sleep(LATE)
    check_late(scene, late, until_error(scene.execute), "a rank sleeps")


def test_a_rank_reports_its_own_timeout() -> None:
    """The report is a note of its own error; the text of the error is equal on all ranks."""
    scene, late = Scene("reduce-scatter by copies"), COMM.size - 1
    if COMM.rank == late:
        time.sleep(LATE)

    def executions() -> None:
        for _ in range(5):
            scene.execute()
            sync()

    try:
        with pytest.raises(pblas.PeerTimeout) as caught:
            executions()
        notes = COMM.allgather(getattr(caught.value, "__notes__", []))
        assert f"rank {notes.index(max(notes))} waited for shards or partial products of piece 0" in max(notes)
    finally:
        scene.end()


def test_a_rank_whose_gpu_is_busy_is_named(scene: Scene) -> None:
    if COMM.rank == 0:
        engine: Any = scene.ctx.runtime.backend.engine(scene.planned.plan.queue)
        for _ in range(4):
            engine._kernels.delay(cupy.cuda.get_current_stream().ptr, int(LATE / 4 * 1e9))
    check_late(scene, 0, until_error(scene.execute), "a GPU is busy")


def test_arguments_rejected_on_one_rank_are_an_error_on_every_rank(scene: Scene) -> None:
    wrong = COMM.size // 2
    left = scene.wrong if COMM.rank == wrong else scene.a
    outcome = until_error(lambda: scene.planned.execute(left, scene.b, out=scene.d))
    everywhere = COMM.allgather(outcome)
    assert {entry[:2] for entry in everywhere} == {outcome[:2]}, everywhere
    name, text, _ = outcome
    assert name == "DTypeError"
    assert f"A is float64, planned was {scene.dtype}; plan anew; found on rank {wrong} of {COMM.size}" in text
    slowest = max(entry[2] for entry in everywhere)
    assert slowest < TIMEOUT + SLACK, everywhere
    check_broken(scene, text)
    note(f"{COMM.size} ranks: a rank refuses its arguments: {name} on all after {slowest:.1f} s")


def test_a_plan_closed_on_one_rank_is_an_error_on_every_rank(scene: Scene) -> None:
    if COMM.rank == 0:
        scene.planned.close()
    outcome = until_error(scene.execute)
    everywhere = COMM.allgather(outcome)
    assert {entry[:2] for entry in everywhere} == {outcome[:2]}, everywhere
    assert outcome[0] == "ContextError"
    assert "the planned product is closed" in outcome[1]


def test_a_rank_that_leaves_by_an_exception_is_named(scene: Scene) -> None:
    late = 0
    if COMM.rank == late:
        start = time.monotonic()
        with pytest.raises(ZeroDivisionError), scene.ctx:
            raise ZeroDivisionError
        assert time.monotonic() - start < 1.0 + SLACK
        outcome = ("PeerTimeout", "", 0.0)
    else:
        outcome = until_error(scene.execute)
        assert f"rank {late}" in outcome[1]
    everywhere = COMM.allgather(outcome)
    assert {entry[0] for entry in everywhere} == {"PeerTimeout"}, everywhere
    assert max(entry[2] for entry in everywhere) < TIMEOUT + SLACK


def test_an_execution_is_aborted_when_a_rank_leaves(scene: Scene) -> None:
    """Only that rank makes the error. The others are notified: they would read data that was not computed."""
    late = 0
    if COMM.rank == late:
        start = time.monotonic()
        scene.execute()
        with pytest.raises(ZeroDivisionError), scene.ctx:
            raise ZeroDivisionError
        assert time.monotonic() - start < 1.0 + SLACK
        sync()
    COMM.Barrier()
    if COMM.rank != late:
        outcome = until_error(scene.execute)
        assert outcome[0] == "PeerTimeout"
        assert f"rank {late}" in outcome[1]
        assert outcome[2] < SLACK


def test_a_callers_graph_ends_however_late_it_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller launches the graph and is not notified of the fault. Its streams wait for flags that no peer sets."""
    name = "all-reduce from tiles in pieces"
    take(ALGORITHMS[name], monkeypatch)
    scene, stream = Scene(name), cupy.cuda.Stream(non_blocking=True)
    monkeypatch.undo()
    with stream:
        stream.begin_capture()
        scene.execute()
        graph = stream.end_capture()
    graph.launch(stream)
    stream.synchronize()
    COMM.Barrier()
    for pause in (LATE * (COMM.rank == 0), LONG, 0.0, 0.0):
        time.sleep(pause)
        graph.launch(stream)
        start = time.monotonic()
        while not stream.done and time.monotonic() < start + TIMEOUT + SLACK:
            time.sleep(1e-3)
        assert stream.done
    assert until_error(scene.execute)[0] == "PeerTimeout"
    del graph
    scene.end()


def test_a_context_survives_the_break_of_another_one() -> None:
    with pblas.Context(backend="nvshmem", timeout=PATIENT) as ctx:
        descs = [descriptor(kind, N, N, ctx.nprocs) for kind in EVERY_LAYOUT["AllGatherGemm"]]
        a, b, d = (ctx.random(desc, "float32", seed=i) for i, desc in enumerate(descs))
        with pblas.plan_matmul(a, b, out=d) as planned:
            planned.execute(a, b, out=d)
            before = d.to_global(None)
            scene = Scene("gather by copies")
            if COMM.rank == 0:
                time.sleep(LATE)
            assert until_error(scene.execute)[0] == "PeerTimeout"
            for _ in range(5):
                planned.execute(a, b, out=d)
            after = d.to_global(None)
            assert before is not None
            assert after is not None
            assert before.tobytes() == after.tobytes()
            scene.end()
        check_product(ctx)
        del a, b, d
