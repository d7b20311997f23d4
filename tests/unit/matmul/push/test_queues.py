"""Executions of different queues run at once: none waits for ever, for any sharing of hardware queues by lanes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pblas
from pblas.backends.engine_limits import LANES
from pblas.matmul.choose_granularity import shortlist
from pblas.plans.algorithm import Algorithm
from pblas.simulation.hardware import Topology
from tests.model.streams import World, explore, prove
from tests.unit.matmul.push.test_schedule import Drawn, even, examples, gather, kinds, sequences
from tests.unit.matmul.test_algorithms import LAYOUTS, RANKS, TILED, planned


@settings(max_examples=60)
@given(sequences(), st.lists(st.integers(0, 2), min_size=4, max_size=4), st.integers(0, 10**6))
def test_calls_of_queues_in_any_hardware_queues(sequence: list[Drawn], queues: list[int], seed: int) -> None:
    """The lanes that share a hardware queue are drawn for each rank; calls are issued in the same order."""
    draw, calls = random.Random(seed), [drawn.call for drawn in sequence]
    drawn = {(r, q, lane): draw.randrange(3) for r in range(8) for q in range(3) for lane in LANES}
    assert prove(World(calls, queues=queues, hardware=lambda *lane: drawn[lane])) == []


@pytest.mark.parametrize("nprocs", [2, 3])
def test_calls_in_different_order_on_two_ranks_may_wait_for_each_other(nprocs: int) -> None:
    """With hardware queues of their own they do not. The search visits all orders of the streams, state by state."""
    call = examples(nprocs)["gather"]
    orders = [(0, 1), *((1, 0) for _ in range(nprocs - 1))]
    assert prove(World([call, call], queues=(0, 1), orders=orders)) == []
    assert "deadlock" in kinds(prove(World([call, call], queues=(0, 1), orders=orders, hardware=lambda *_: 0)))
    assert "deadlock" in kinds(prove(World([call, call], orders=orders)))
    if nprocs == 2:
        small = Drawn(2, gather(even(2, 2), even(2, 2), 1, 2, Algorithm("copy_engine", (1, 1)))).call
        for swapped in (False, True):
            shared = World(
                [small, small], queues=(0, 1), orders=orders if swapped else (), hardware=lambda *lane: lane[2]
            )
            assert {f.kind for f in explore(shared, eager=True)[0]} == ({"deadlock"} if swapped else set())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("chunks", [None, 2])
def test_plans_with_a_queue_take_algorithms_that_leave_room(layout: str, chunks: int | None) -> None:
    """Kernels that wait have one CTA; of the all-gather a kernel only sends. `autotune` measures no other algorithm."""
    for nprocs in RANKS:
        for sizes in ((7, 8, 9), (512, 4096, 4096), (8192, 28672, 8192)):
            for topology in (Topology(nprocs, shared=True, push=True, gpus=True), replace(TILED, gpus=True)):
                alone, beside = (
                    planned(layout, *sizes, nprocs, topology=topology, chunks=chunks, queue=queue)
                    for queue in (None, 3)
                )
                allowed = {"copy_engine", "sm_push"} if beside.name == "AllGatherGemm" else {"copy_engine"}
                assert beside.algorithm in shortlist(beside, chunks, topology)
                assert {algorithm.kind for algorithm in shortlist(beside, chunks, topology)} <= allowed
                assert replace(alone, queue=3, algorithm=beside.algorithm) == beside
                assert "queue      3: executions run concurrently with other queues" in beside.explain()


@pytest.mark.parametrize("queue", [True, -1, 8, 1.0, "0"])
def test_a_queue_is_a_small_number(queue: object) -> None:
    rows = pblas.MatrixDescriptor.row_wise(8, 8, 4)
    with pytest.raises(pblas.ArgumentError, match=r"queue must be None or an integer of 0\.\.7"):
        pblas.plan_matmul(rows, rows, dtype="float64", queue=queue)  # type: ignore[arg-type]
    with pytest.raises(pblas.ArgumentError, match="overlap=True"):
        pblas.plan_matmul(rows, rows, dtype="float64", queue=0, overlap=False)
