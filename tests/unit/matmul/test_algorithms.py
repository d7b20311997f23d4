"""Laws of algorithms: every product has one, the same on all ranks, chosen by its estimate."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pblas.backends.dtypes import ProductDtypes
from pblas.backends.push_engine import EXACT
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matmul.choose import choose
from pblas.matmul.choose_granularity import PlanningContext, candidates, doubling, shortlist
from pblas.matmul.local_gemm_run import Orders
from pblas.matmul.one_dimensional_plan import AllGatherGemm, GemmAllReduce, GemmReduceScatter, LocalGemm
from pblas.matmul.product import pushed
from pblas.matmul.product_plan import ProductPlan
from pblas.matmul.push.schedules.operations import MAX_PHASES, Multiply
from pblas.matmul.push.schedules.schedule import schedule
from pblas.plans.algorithm import Algorithm
from pblas.plans.partition import MAX_PIECES
from pblas.simulation.hardware import NVLINK, Topology
from pblas.simulation.simulate import agreeing, predict
from tests.common.gauge import NAMES, dtype_of

KINDS = {"row": MatrixDescriptor.row_wise, "col": MatrixDescriptor.column_wise, "all": MatrixDescriptor.replicated}
LAYOUTS = {
    "AG along k": ("row", "row", "row"),
    "AG along n": ("row", "col", "row"),
    "AG of A along m": ("row", "col", "col"),
    "AG of A along k": ("col", "col", "col"),
    "RS to rows": ("col", "row", "row"),
    "RS to columns": ("col", "row", "col"),
    "AR": ("col", "row", "all"),
}
TILED = Topology(4, shared=True, push=True, tiles=True)
RANKS = (2, 3, 4, 6, 8)
SHAPES: tuple[tuple[int, int, int], ...] = (
    (7, 8, 9),
    (1, 1, 1),
    (64, 100, 40),
    (5, 0, 9),
    (16, 4096, 4096),
    (4096, 14336, 4096),
)
LLAMA = {  # n and k of the products that are gathered and reduced, of the models' layers, before they are split
    "8B": ((28672, 4096), (4096, 14336)),
    "70B": ((57344, 8192), (8192, 28672)),
    "405B": ((106496, 16384), (16384, 53248)),
}


def planned(
    layout: str, m: int, n: int, k: int, nprocs: int, dtype: str = "bfloat16", order: Any = "F", **options: Any
) -> ProductPlan:
    """The plan on GPUs that all reach each other, if nothing else is said of them."""
    a, b, d = (
        KINDS[kind](*shape, nprocs, order=order)
        for kind, shape in zip(LAYOUTS[layout], ((m, k), (k, n), (m, n)), strict=True)
    )
    topology = options.pop("topology", Topology(nprocs, shared=True, push=True))
    return choose(dtype, a, b, d, context=PlanningContext(topology, nprocs, **options))


def estimate(plan: ProductPlan, algorithm: Algorithm) -> float:
    """Predicted microseconds of the kernels, which are measured without the hosts that start a call."""
    return 1e6 * (predict(replace(plan, algorithm=algorithm), NVLINK) - agreeing(plan.nprocs, plan.transport, NVLINK))


def every_plan(**options: Any) -> list[ProductPlan]:
    return [
        planned(layout, *shape, nprocs, **options)
        for layout, shape, nprocs in itertools.product(LAYOUTS, SHAPES, RANKS)
    ]


@pytest.mark.parametrize("nprocs", range(1, 17))
def test_groups_take_every_shard_once_and_grow(nprocs: int) -> None:
    for count in range(1, nprocs + 3):
        groups = doubling(nprocs, count)
        assert sum(groups) == nprocs
        assert min(groups) >= 1
        assert groups[0] == 1, "a rank's own shard is there already"
        assert len(groups) == min(max(count, min(2, nprocs)), nprocs)


def test_every_pushed_plan_has_an_algorithm_and_other_plans_have_none() -> None:
    for plan in every_plan():
        assert plan.transport == "push"
        assert plan.algorithm is not None
        text = plan.explain()
        assert 8 <= len(text.splitlines()) <= 12
        assert f"through the workspaces of the peers, {plan.algorithm}" in text
        assert f"{plan.max_received_nbytes:,} bytes" in text
        assert f"{plan.workspace_nbytes:,} bytes per rank at most (push transport)" in text
    alone = planned("AR", 8, 8, 8, 1)
    assert isinstance(alone, LocalGemm)
    assert alone.algorithm is None
    descs = [KINDS[kind](8, 8, 4) for kind in LAYOUTS["AR"]]
    for topology in (Topology(), Topology(4, shared=True)):
        assert choose("float64", *descs, context=PlanningContext(topology, 4)).algorithm is None


@pytest.mark.parametrize("order", ["F", "C"])
def test_pieces_of_an_all_reduce_are_contiguous_in_d(order: str) -> None:
    """Its orientation follows D's storage order, so that a piece moves in one copy and may land in D itself."""
    plan = planned("AR", 64, 100, 40, 4, order=order)
    assert plan.transposed == (order == "C")


def test_the_same_integers_give_the_same_algorithm() -> None:
    """The choice depends on the plan only: the same integers give the same algorithm, a value in the plan."""
    for first, second in zip(every_plan(), every_plan(), strict=True):
        assert first == second
        assert eval(repr(first.algorithm), {"Algorithm": Algorithm}) == first.algorithm


def test_estimates_are_times_and_grow_with_the_product() -> None:
    for plan in every_plan():
        assert plan.algorithm is not None
        time = estimate(plan, plan.algorithm)
        assert math.isfinite(time)
        assert time > 0 or not plan.flops
    for layout, nprocs in itertools.product(LAYOUTS, RANKS):
        times = []
        for m in (128, 1024, 8192, 65536):
            plan = planned(layout, m, 4096, 8192, nprocs)
            assert plan.algorithm is not None
            times.append(estimate(plan, plan.algorithm))
        assert times == sorted(times)


def test_the_algorithm_has_the_shortest_estimate() -> None:
    for plan in every_plan():
        assert plan.algorithm is not None
        if isinstance(plan, GemmAllReduce):
            others = [
                Algorithm("one_shot"),
                Algorithm("two_shot"),
                Algorithm("copy_engine"),
                Algorithm("copy_engine", (3, 2, 1)),
            ]
        else:
            others = [Algorithm("sm_push"), Algorithm("copy_engine", doubling(plan.product.nprocs, 3))]
        assert all(estimate(plan, plan.algorithm) <= estimate(plan, algorithm) for algorithm in others)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 100])
def test_chunks_is_the_number_of_gemms(count: int) -> None:
    for layout, nprocs in itertools.product(LAYOUTS, RANKS):
        plan = planned(layout, 1024, 1024, 512, nprocs, chunks=count)
        assert plan.algorithm is not None
        if isinstance(plan, GemmAllReduce):
            assert len(plan.algorithm.groups) == min(count, MAX_PIECES)
            assert 2 * len(plan.algorithm.groups) <= MAX_PHASES
        else:
            assert plan.algorithm == Algorithm("copy_engine", doubling(nprocs, count))


def test_without_overlap_there_is_one_gemm() -> None:
    for layout, nprocs, chunks in itertools.product(LAYOUTS, RANKS, (None, 1, 3)):
        for shape in SHAPES:
            plan = planned(layout, *shape, nprocs, overlap=False, chunks=chunks)
            assert plan.algorithm is not None
            assert plan.algorithm.kind in ("sm_push", "one_shot", "two_shot")
            for rank in range(nprocs):
                assert sum(isinstance(op, Multiply) for op in schedule(plan, rank)) <= 1


@pytest.mark.parametrize("model", LLAMA)
def test_large_products_take_copy_engines_and_small_ones_kernels(model: str) -> None:
    """At the sizes of the benchmark; between them only measurements tell which algorithm is best."""
    (n_up, k_up), (n_down, k_down) = LLAMA[model]
    for nprocs in (4, 8):
        for layout, n, k in (("AG of A along m", n_up, k_up), ("RS to rows", n_down, k_down)):
            small, large = (planned(layout, m, n, k, nprocs) for m in (16, 16384))
            assert small.algorithm == Algorithm("sm_push")
            assert large.algorithm is not None
            assert large.algorithm.kind == "copy_engine"
        small, large = (planned("AR", m, n_down, k_down, nprocs) for m in (1, 16384))
        assert small.algorithm == Algorithm("one_shot")
        assert large.algorithm is not None
        assert len(large.algorithm.groups) > 1 or model == "8B", "pieces travel under the GEMMs of the next"


@pytest.mark.parametrize("nprocs", [4, 8])
def test_the_hopper_kernel_is_taken_where_it_can_address_all_matrices(nprocs: int) -> None:
    """It multiplies 16-bit lines of whole 16 bytes, and does not add up products over parts of K that are gathered."""
    waits, does_not = (Topology(nprocs, shared=True, push=True, gpus=True, tiles=tiles) for tiles in (True, False))
    for layout, dtype, m, topology, expected, why in (
        ("AR", "bfloat16", 16384, waits, True, ""),
        ("AR", "float16", 16384, waits, True, ""),
        (
            "AR",
            "float32",
            16384,
            waits,
            False,
            "gemm       cuBLASLt (the pblas kernel needs 16-bit matrices, not float32)",
        ),
        ("AR", "bfloat16", 16389, waits, True, ""),
        ("AR", "bfloat16", 16384, does_not, False, "gemm       cuBLASLt (the pblas kernel needs Hopper on every GPU)"),
        ("AR", "bfloat16", 64, waits, False, ""),
        ("AG along k", "bfloat16", 16384, waits, False, "cannot add over shards of k"),
        ("AG of A along k", "bfloat16", 16384, waits, False, "cannot add over shards of k"),
    ):
        plan = planned(layout, m, 8192, 3584 * nprocs, nprocs, dtype, order="C", topology=topology)
        assert plan.algorithm is not None
        assert (plan.algorithm.kind == "fused_stores") == expected, (layout, dtype, m, topology)
        text = plan.explain()
        assert ("one GEMM kernel, which stores" in text) == expected
        assert why in text
        assert ("cuBLASLt" in text) == bool(why)
    on_cpus = planned("AR", 64, 64, 64, nprocs, topology=Topology(nprocs, shared=True, push=True))
    assert "cuBLASLt" not in on_cpus.explain()


@pytest.mark.parametrize("nprocs", [3, 8])
@pytest.mark.parametrize(
    ("orders", "m", "n", "odd"),
    [
        ("CFC", 16387, 8192, 0),  # any number of tokens
        ("CCC", 16387, 8192, 0),
        ("CFC", 16387, 8190, 8190),
        ("FFC", 16387, 8192, 16387),
        ("CFF", 16387, 8192, 16387),
    ],
)
def test_contiguous_lines_are_multiples_of_16_bytes(nprocs: int, orders: str, m: int, n: int, odd: int) -> None:
    topology, k = Topology(nprocs, shared=True, push=True, gpus=True, tiles=True), 1024 * nprocs
    for layout, columns in (("AG of A along m", n * nprocs), ("RS to rows", n), ("AR", n)):
        descs = [
            KINDS[kind](*shape, nprocs, order="F" if order == "F" else "C")
            for kind, shape, order in zip(LAYOUTS[layout], ((m, k), (k, columns), (m, columns)), orders, strict=True)
        ]
        text = choose("bfloat16", *descs, context=PlanningContext(topology, nprocs)).unfit_for_tiles
        assert bool(text) == bool(odd), text
        assert not odd or text.startswith("needs lines of a multiple of 16 bytes, some have ")


def test_products_that_the_hopper_kernel_cannot_make_take_other_algorithms() -> None:
    """Reasons: partial products travel in another dtype, lines are in several blocks, a shard cannot be addressed."""
    m, n, k = 4096, 4096, 7168
    row, column, whole = MatrixDescriptor.row_wise, MatrixDescriptor.column_wise, MatrixDescriptor.replicated
    a, b, d = column(m, k, 4, order="C"), row(k, n, 4, order="C"), row(m, n, 4, order="C")
    blocks = row(m, n, 4, mb=64, order="C")
    replicated = whole(k, n, 4, order="C")
    odd = row(k, 4084, 4, order="C"), column(m, 4084, 4, nb=1024, order="C")
    for operands, wire, why in (
        ((a, b, d), "", ""),
        ((a, b, d), "float32", "dtype of D, not in float32"),
        ((a, b, whole(m, n, 4, order="C")), "float32", "dtype of D, not in float32"),
        ((a, b, blocks), "", "one block of lines per rank"),
        ((column(m, k, 4, nb=64, order="C"), replicated, d), "", "one block of lines per rank"),
        ((a, *odd), "", "some have 1012 elements"),
    ):
        plan = choose("bfloat16", *operands, context=PlanningContext(replace(TILED, gpus=True), 4, wire=wire))
        assert plan.algorithm is not None
        assert plan.algorithm.is_one_kernel == (not why)
        assert why in plan.explain()


CHOICE = "pblas.matmul.choose_granularity.choose_algorithm"
MEASURED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("measured_reductions.json").read_text("utf-8"))
"""Microseconds of reductions by several algorithms, medians: H200 of one host, bfloat16, D by rows.

Those of 8 ranks, and some of 4, were emulated by 2 GPUs: benchmarks/results/gpu_emulated.json.
"""


def measured_plan(row: dict[str, Any]) -> tuple[ProductPlan, Topology]:
    topology = replace(TILED, ranks_per_node=row["ranks"])
    sizes = row["m"], row["n"], row["k"], row["ranks"]
    return planned(row["layout"], *sizes, order="C", topology=topology), topology


def test_predictions_are_close_to_measured_times() -> None:
    errors = []
    for row in MEASURED:
        plan, _ = measured_plan(row)
        errors += [abs(estimate(plan, Algorithm.read(name)) / us - 1) for name, us in row["us"].items()]
    assert max(errors) < 0.33
    assert median(errors) < 0.11


def test_the_shortest_prediction_is_within_11_percent_of_the_shortest_time() -> None:
    for row in MEASURED:
        plan, _ = measured_plan(row)
        first = min(row["us"], key=lambda name: estimate(plan, Algorithm.read(name)))
        assert row["us"][first] < 1.11 * min(row["us"].values()), row


def test_reductions_that_were_never_measured_take_a_short_algorithm() -> None:
    """Without tuning, the time of the planner's algorithm is within 11 % of the best, if it was measured."""
    seen = 0
    for row in MEASURED:
        plan, _ = measured_plan(row)
        assert plan.algorithm is not None
        taken = row["us"].get(plan.algorithm.short)
        if taken is not None:
            seen += 1
            assert taken < 1.11 * min(row["us"].values()), (row, plan.algorithm)
    assert seen > len(MEASURED) // 4


def test_pieces_are_whole_tiles() -> None:
    for row in MEASURED:
        plan, topology = measured_plan(row)
        rows = row["m"] // row["ranks"]
        height = 256 if rows >= 1024 else 128
        for algorithm in candidates(plan, topology=topology):
            if algorithm.kind == "tile_signals":
                assert all(rows * weight // sum(algorithm.groups) % height == 0 for weight in algorithm.groups)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_algorithm_of_an_empty_product_has_an_estimate(layout: str) -> None:
    for m, n, k in itertools.product((0, 2048), repeat=3):
        plan = planned(layout, m, n, k, 4, "bfloat16", order="C", topology=TILED)
        if plan.algorithm is not None:
            assert all(estimate(plan, algorithm) >= 0 for algorithm in candidates(plan, topology=TILED))


def test_reductions_of_few_rows_are_not_offered_tile_signals() -> None:
    """Two tiles of a cluster side by side were slower than copies and kernels in all measured products."""
    for layout, m in itertools.product(("RS to rows", "AR"), (128, 512, 768, 1024, 2048)):
        plan = planned(layout, m, 8192, 14336, 4, order="C", topology=TILED)
        assert ({algorithm.kind for algorithm in shortlist(plan, topology=TILED)} >= {"tile_signals"}) == (m >= 1024), (
            layout,
            m,
        )


# What plans announce


class Memory:
    """An engine that only counts what a plan asks for."""

    def __init__(self) -> None:
        self.nbytes = 0

    def reserve(self, nbytes: int, phases: int) -> None:
        assert phases == MAX_PHASES
        self.nbytes += 2 * nbytes

    def slots(self, count: int, nbytes: int) -> None:
        """Those of the collectives, which all plans share."""

    def scratch(self, nbytes: int) -> None:
        self.nbytes += nbytes

    def part(self, *_: object) -> None:
        """No array."""


def algorithms(plan: ProductPlan) -> list[Algorithm]:
    if isinstance(plan, GemmAllReduce):
        pieces = ((1,), (2, 1), (3, 2, 1))
        algorithms = [
            (by, groups) for by in ("copy_engine", "tile_signals", "fused_stores", "two_shot") for groups in pieces
        ]
        return [Algorithm("one_shot"), *(Algorithm(by, groups) for by, groups in algorithms)]  # type: ignore[arg-type]
    tiles = [Algorithm("tile_signals"), Algorithm("tile_signals", (2, 3))]
    if isinstance(plan, GemmReduceScatter):
        tiles += [Algorithm("fused_stores"), Algorithm("fused_stores", (2, 3))]
    if isinstance(plan, AllGatherGemm) and plan.along_k:
        tiles = []
    return [
        Algorithm("sm_push"),
        *tiles,
        *(Algorithm("copy_engine", doubling(plan.product.nprocs, count)) for count in (2, 3)),
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_workspace_has_the_announced_size(layout: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the busiest rank, without 16-bit partial products in 32 bits, and without the padding of blocks."""
    dtype = dtype_of(name)
    widths = (dtype, np.dtype(np.float32)) if dtype.itemsize == 2 else (dtype,)
    cases = zip(itertools.product(SHAPES[:3], (2, 3, 8)), itertools.cycle("FC"), strict=False)
    for (shape, nprocs), order in cases:
        plan = planned(layout, *shape, nprocs, name, order)
        for algorithm in algorithms(plan):
            monkeypatch.setattr(CHOICE, lambda *_, algorithm=algorithm: algorithm)
            plan = planned(layout, *shape, nprocs, name, order)
            assert isinstance(plan, AllGatherGemm | GemmReduceScatter)
            oriented = "F" if isinstance(plan, GemmAllReduce) else "C" if plan.transposed and order == "F" else order
            for wire in widths:
                used = []
                for rank in range(nprocs):
                    memory = Memory()
                    backend = SimpleNamespace(rank=rank, engine=lambda _, memory=memory: memory, agree=lambda *_: None)
                    backend.address = backend.arrays = None
                    run = pushed(plan, backend, ProductDtypes.of(dtype, wire), Orders(oriented, oriented), EXACT)  # type: ignore[arg-type]
                    assert run.workspace_nbytes == memory.nbytes
                    used.append(memory.nbytes)
                slack = 2 * 256 * (nprocs + 2)
                assert max(used) <= plan.workspace_nbytes + slack, (plan, wire)
                if wire == widths[-1]:
                    result = plan.product.itemsize * plan.product.m * plan.product.n  # of pieces that land in D
                    assert plan.workspace_nbytes <= max(used) + slack + result, (plan, wire)
        monkeypatch.undo()


def test_all_reduces_receive_twice_their_share_or_all_in_one_shot(monkeypatch: pytest.MonkeyPatch) -> None:
    for nprocs in (2, 4, 8):
        m, n = 3, 64 * nprocs
        for algorithm, expected in (
            (Algorithm("one_shot"), (nprocs - 1) * m * n),
            (Algorithm("two_shot"), 2 * (nprocs - 1) * m * n // nprocs),
            (Algorithm("copy_engine"), 2 * (nprocs - 1) * m * n // nprocs),
        ):
            monkeypatch.setattr(CHOICE, lambda *_, algorithm=algorithm: algorithm)
            plan = planned("AR", m, n, 16 * nprocs, nprocs)
            assert plan.algorithm == algorithm
            assert all(plan.received_elements(rank) == expected for rank in range(nprocs)), algorithm
            assert plan.max_received_nbytes == 2 * expected
