"""Executions of several queues run concurrently and never deadlock."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import cupy
import pytest

import pblas
from tests.common.ranks import COMM
from tests.gpu.products.products import note, sync
from tests.gpu.products.test_graphs import SECONDS, Scaled, delay, three
from tests.gpu.sharing import repeats

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.gpu]

BUSY = 200_000_000  # nanoseconds


@pytest.fixture(scope="module")
def ctx() -> Iterator[pblas.Context]:
    with pblas.Context(backend="nvshmem", timeout=SECONDS) as context:
        yield context


def later() -> Any:
    """An event recorded on the current stream."""
    event = cupy.cuda.Event(disable_timing=True)
    event.record()
    return event


def test_queues_in_any_order_with_delays_that_differ_between_ranks(ctx: pblas.Context) -> None:
    """Three queues and plans without a queue, each on its own stream, with alternating graphs and eager executions."""
    queues = (0, 1, 7, None)
    plans = {queue: three(ctx, chunks=2, queue=queue) for queue in queues}
    plans[7] += three(ctx, 160, queue=7)
    streams = {queue: cupy.cuda.Stream(non_blocking=True) for queue in queues}
    order, delays = random.Random(21), random.Random(ctx.rank)
    for turn in range(repeats(3000)):
        queue = order.choice(queues) if turn % 10 == 0 else order.choice(queues[:3])
        with streams[queue]:
            if delays.random() < 0.1:
                delay(ctx, int(delays.expovariate(1 / 50_000)))
            order.choice(plans[queue]).turn()
    for several in plans.values():
        for planned in several:
            planned.check()


def test_a_queue_does_not_wait_for_another(ctx: pblas.Context) -> None:
    """A rank is delayed in one queue; the other queue continues. An execution without a queue waits for both."""
    first, second, alone = (Scaled(ctx, "AllGatherGemm", 64, 1, queue=queue) for queue in (0, 1, None))
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    warm = Scaled(ctx, "AllGatherGemm", 64, 1)
    for _ in range(2):  # the test's kernels are compiled; graphs of earlier tests are freed before one is captured
        warm.turn()
        sync()
    for mode in ("eager", "captured", "captured", "known"):
        sync()
        COMM.Barrier()
        with streams[0]:
            if ctx.rank == 0:
                delay(ctx, BUSY)
            first.turn()
            held = later()
        with streams[1]:
            second.turn()
            later().synchronize()
        assert not held.done, mode
        with streams[2]:
            alone.turn()
            later().synchronize()
        assert held.done, mode
    for planned in (first, second, alone):
        planned.check()
    note(f"{ctx.nprocs} ranks: one queue goes on while another is held up")


def test_queues_in_graphs_of_the_callers(ctx: pblas.Context) -> None:
    """Branches of one graph run one after the other, whatever their queues; graphs on two streams run concurrently."""
    plans = [Scaled(ctx, name, 64, 5, queue=queue) for queue, name in enumerate(("AllGatherGemm", "GemmAllReduce"))]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    delays = random.Random(ctx.rank)
    for planned in plans:
        planned.turn()
    sync()
    graphs = []
    for planned, stream in zip(plans, streams, strict=True):
        with stream:
            stream.begin_capture()
            planned.execute()
            graphs.append(stream.end_capture())
    with streams[0]:
        streams[0].begin_capture()
        streams[1].wait_event(later())
        plans[0].execute()
        with streams[1]:
            plans[1].execute()
            streams[0].wait_event(later())
        both = streams[0].end_capture()
    for _ in range(repeats(500)):
        for planned, stream, graph in zip(plans, streams, graphs, strict=True):
            with stream:
                if delays.random() < 0.2:
                    delay(ctx, int(delays.expovariate(1 / 50_000)))
                scale = planned.load()
                graph.launch(stream)
                planned.look(scale)
    sync()
    with streams[0]:
        for _ in range(repeats(500)):
            if delays.random() < 0.2:
                delay(ctx, int(delays.expovariate(1 / 50_000)))
            scales = [planned.load() for planned in plans]
            both.launch(streams[0])
            for planned, scale in zip(plans, scales, strict=True):
                planned.look(scale)
    for planned in plans:
        planned.check()
