"""Laws of algorithms: every product has one, the same on all ranks, chosen by its estimate."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pytest

from pblas.execute import pushed
from pblas.execute.operands import Orders
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.planner.algorithms import candidates, choose_algorithm, doubling, shortlist
from pblas.planner.choose import choose
from pblas.planner.cost_model import estimate
from pblas.plans.one_dimensional import AllGatherGemm, GemmAllReduce, GemmReduceScatter, LocalGemm
from pblas.plans.partition import MAX_PIECES
from pblas.plans.plan import Algorithm, ProductPlan, Topology
from pblas.schedules.operations import (
    MAX_PHASES,
    AllGather,
    AllReduce,
    Burst,
    GemmReduce,
    Get,
    Gets,
    Multiply,
    Op,
    Put,
    ReduceScatter,
    Strip,
)
from pblas.schedules.schedule import schedule
from tests.common.gauge import NAMES, dtype_of

Kind = TypeVar("Kind", bound=Op)
KINDS = {
    "row": MatrixDescriptor.row_wise,
    "col": MatrixDescriptor.column_wise,
    "all": MatrixDescriptor.replicated,
}
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
    topology = options.pop("machine", Topology(nprocs, shared=True, push=True))
    return choose(dtype, a, b, d, nprocs=nprocs, topology=topology, **options)


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


def test_every_pushed_plan_has_a_road_and_no_other() -> None:
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
        assert choose("float64", *descs, nprocs=4, topology=topology).algorithm is None


@pytest.mark.parametrize("order", ["F", "C"])
def test_pieces_of_an_all_reduce_are_contiguous_in_d(order: str) -> None:
    """Its orientation follows D's storage order, so that a piece moves in one copy and may land in D itself."""
    plan = planned("AR", 64, 100, 40, 4, order=order)
    assert plan.transposed == (order == "C")


def test_roads_do_not_depend_on_who_asks() -> None:
    """Nothing but the plan goes in: the same integers give the same algorithm, and a plan keeps it as a value."""
    for first, second in zip(every_plan(), every_plan(), strict=True):
        assert first == second
        assert eval(repr(first.algorithm), {"Algorithm": Algorithm}) == first.algorithm


def test_estimates_are_times_and_grow_with_the_product() -> None:
    for plan in every_plan():
        assert plan.algorithm is not None
        time = estimate(plan, plan.algorithm)
        assert math.isfinite(time)
        assert time > 0
    for layout, nprocs in itertools.product(LAYOUTS, RANKS):
        times = []
        for m in (128, 1024, 8192, 65536):
            plan = planned(layout, m, 4096, 8192, nprocs)
            assert plan.algorithm is not None
            times.append(estimate(plan, plan.algorithm))
        assert times == sorted(times)


def test_the_road_is_the_one_that_is_estimated_to_end_first() -> None:
    for plan in every_plan():
        assert plan.algorithm is not None
        if isinstance(plan, GemmAllReduce):
            others = [
                Algorithm("one-shot"),
                Algorithm("two-shot"),
                Algorithm("copy_engine"),
                Algorithm("copy_engine", (3, 2, 1)),
            ]
        else:
            others = [Algorithm("sm_push"), Algorithm("copy_engine", doubling(plan.product.nprocs, 3))]
        assert all(estimate(plan, plan.algorithm) <= estimate(plan, algorithm) for algorithm in others)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 100])
def test_a_number_of_gemms_that_was_asked_for_is_made(count: int) -> None:
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
            assert plan.algorithm.kind in ("sm_push", "one-shot", "two-shot")
            for rank in range(nprocs):
                assert sum(isinstance(op, Multiply) for op in schedule(plan, rank)) <= 1


@pytest.mark.parametrize("model", LLAMA)
def test_copies_pay_for_large_products_and_kernels_for_small_ones(model: str) -> None:
    """At the sizes of the benchmark; which algorithm is best between them is for measurements to say."""
    (n_up, k_up), (n_down, k_down) = LLAMA[model]
    for nprocs in (4, 8):
        for layout, n, k in (("AG of A along m", n_up, k_up), ("RS to rows", n_down, k_down)):
            small, large = (planned(layout, m, n, k, nprocs) for m in (16, 16384))
            assert small.algorithm == Algorithm("sm_push")
            assert large.algorithm is not None
            assert large.algorithm.kind == "copy_engine"
        small, large = (planned("AR", m, n_down, k_down, nprocs) for m in (1, 16384))
        assert small.algorithm == Algorithm("one-shot")
        assert large.algorithm is not None
        assert len(large.algorithm.groups) > 1 or model == "8B", "pieces travel under the GEMMs of the next"


@pytest.mark.parametrize("nprocs", [4, 8])
def test_tiles_wait_where_gpus_have_such_a_kernel_and_it_can_address_all_matrices(nprocs: int) -> None:
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
        assert ("one GEMM of one kernel, which stores" in text) == expected
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
def test_lines_along_what_is_contiguous_have_whole_packs(nprocs: int, orders: str, m: int, n: int, odd: int) -> None:
    topology, k = Topology(nprocs, shared=True, push=True, gpus=True, tiles=True), 1024 * nprocs
    for layout, columns in (("AG of A along m", n * nprocs), ("RS to rows", n), ("AR", n)):
        descs = [
            KINDS[kind](*shape, nprocs, order="F" if order == "F" else "C")
            for kind, shape, order in zip(LAYOUTS[layout], ((m, k), (k, columns), (m, columns)), orders, strict=True)
        ]
        text = choose("bfloat16", *descs, nprocs=nprocs, topology=topology).unfit_for_tiles
        assert bool(text) == bool(odd), text
        assert not odd or text.startswith("takes lines of whole 16 bytes, here are some of ")


def test_what_one_kernel_cannot_make_goes_by_others() -> None:
    """Partial products that travel in another dtype, lines in several blocks, a shard that cannot be addressed."""
    m, n, k = 4096, 4096, 7168
    row, column, whole = MatrixDescriptor.row_wise, MatrixDescriptor.column_wise, MatrixDescriptor.replicated
    a, b, d = column(m, k, 4, order="C"), row(k, n, 4, order="C"), row(m, n, 4, order="C")
    blocks = row(m, n, 4, mb=64, order="C")
    replicated = whole(k, n, 4, order="C")
    odd = row(k, 4084, 4, order="C"), column(m, 4084, 4, nb=1024, order="C")
    for operands, wire, why in (
        ((a, b, d), "", ""),
        ((a, b, d), "float32", "these travel as float32"),
        ((a, b, whole(m, n, 4, order="C")), "float32", "these travel as float32"),
        ((a, b, blocks), "", "ranks with several blocks"),
        ((column(m, k, 4, nb=64, order="C"), replicated, d), "", "ranks with several blocks"),
        ((a, *odd), "", "some of 1012 elements"),
    ):
        plan = choose("bfloat16", *operands, nprocs=4, topology=replace(TILED, gpus=True), wire=wire)
        assert plan.algorithm is not None
        assert plan.algorithm.is_one_kernel == (not why)
        assert why in plan.explain()


@pytest.mark.parametrize(
    ("m", "n", "k", "scattered", "reduced"),
    [
        (4096, 4096, 7168, "fused_stores", "fused_stores"),
        (8192, 4096, 7168, "fused_stores", "fused_stores"),
        (16384, 4096, 7168, "fused_stores", "fused_stores"),
        (2048, 8192, 14336, "fused_stores", "fused_stores"),
        (4096, 8192, 14336, "tile_signals", "fused_stores"),
        (8192, 8192, 14336, "tile_signals", "fused_stores"),
        (4096, 16384, 26624, "tile_signals", "tile_signals"),
        (16384, 16384, 26624, "tile_signals", "tile_signals"),
    ],
)
def test_large_reductions_go_by_our_kernel_unmeasured(m: int, n: int, k: int, scattered: str, reduced: str) -> None:
    """As was the fastest on 4 H200, or of 4 ranks that 2 played, or within 6 % of it; to a deep K nobody stores."""
    for layout, expected in (("RS to rows", scattered), ("AR", reduced)):
        plan = planned(layout, m, n, k, 4, order="C", topology=TILED)
        assert plan.algorithm is not None
        assert plan.algorithm.kind == expected


# Ranks, m, n and k, and us by tiles in pieces of these sizes on as many H200
@pytest.mark.parametrize(
    ("layout", "nprocs", "m", "n", "k", "measured"),
    [
        ("RS to rows", 4, 4096, 4096, 7168, {(1,): 138}),
        ("RS to rows", 4, 8192, 4096, 7168, {(4, 4): 228, (7, 1): 251}),
        ("RS to rows", 4, 16384, 4096, 7168, {(8, 7, 1): 408, (8, 8): 412}),
        ("RS to rows", 4, 4096, 8192, 14336, {(3, 1): 337, (2, 2): 343}),
        ("RS to rows", 4, 8192, 8192, 14336, {(4, 4): 658, (4, 3, 1): 667, (3, 3, 2): 675}),
        ("RS to rows", 4, 16384, 8192, 14336, {(8, 8): 1301, (8, 7, 1): 1311, (6, 5, 5): 1313}),
        ("AR", 4, 4096, 4096, 7168, {(1,): 232, (3, 1): 260}),
        ("AR", 4, 8192, 4096, 7168, {(4, 4): 397, (1,): 420, (3, 3, 2): 440, (2, 2, 2, 2): 495}),
        ("AR", 4, 16384, 4096, 7168, {(8, 8): 692, (8, 7, 1): 730, (6, 5, 5): 736}),
        ("AR", 4, 2048, 8192, 14336, {(1,): 283, (1, 1): 285}),
        ("AR", 4, 4096, 8192, 14336, {(2, 2): 486, (3, 1): 506}),
        ("AR", 4, 8192, 8192, 14336, {(2, 2, 2, 2): 859, (3, 3, 2): 936, (2, 2, 2, 1, 1): 944}),
        ("AR", 4, 16384, 8192, 14336, {(4, 4, 4, 4): 1598, (3, 3, 3, 3, 3, 1): 1641}),
        ("AR", 4, 2048, 16384, 26624, {(1, 1): 751, (1,): 783}),
        ("AR", 4, 4096, 16384, 26624, {(2, 1, 1): 1385, (1, 1, 1, 1): 1418}),
        ("AR", 4, 8192, 16384, 26624, {(2, 2, 2, 1, 1): 2667, (2, 2, 1, 1, 1, 1): 2705}),
        ("AR", 4, 16384, 16384, 26624, {(3, 3, 3, 3, 2, 2): 5155, (3, 3, 2, 2, 2, 2, 2): 5189}),
    ],
)
def test_reductions_by_tiles_are_estimated(
    layout: str, nprocs: int, m: int, n: int, k: int, measured: dict[tuple[int, ...], float]
) -> None:
    topology = Topology(nprocs, shared=True, push=True, tiles=True)
    plan = planned(layout, m, n, k, nprocs, order="C", topology=topology)
    for pieces, us in measured.items():
        assert estimate(plan, Algorithm("tile_signals", pieces)) == pytest.approx(us, rel=0.06)
    cut = [algorithm for algorithm in candidates(plan, topology=topology) if algorithm.kind == "tile_signals"]
    height = 256 if m // nprocs >= 1024 else 128
    assert all(
        m // nprocs * weight // sum(algorithm.groups) % height == 0 for algorithm in cut for weight in algorithm.groups
    )
    if layout == "AR":
        best = min(cut, key=lambda algorithm: estimate(plan, algorithm))
        assert measured.get(best.groups, 0) < 1.03 * min(measured.values())


@pytest.mark.parametrize(
    ("m", "n", "k", "us"),
    [(4096, 4096, 3584, 162.6), (16384, 4096, 3584, 500.8), (4096, 8192, 7168, 374.0), (16384, 8192, 7168, 1386)],
)
def test_the_best_all_reduces_of_two_ranks_by_tiles_are_estimated(m: int, n: int, k: int, us: float) -> None:
    """Measured on 2 H200."""
    plan = planned("AR", m, n, k, 2, order="C", topology=TILED)
    by_tiles = [
        estimate(plan, algorithm) for algorithm in candidates(plan, topology=TILED) if algorithm.kind == "tile_signals"
    ]
    assert min(by_tiles) == pytest.approx(us, rel=0.05)


@pytest.mark.parametrize(
    ("layout", "nprocs", "m", "n", "k", "measured"),
    [
        ("RS to rows", 8, 4096, 4096, 14336, {(1,): 122, (1, 1): 127}),
        ("RS to rows", 8, 8192, 4096, 14336, {(1,): 215, (1, 1): 217}),
        ("RS to rows", 8, 16384, 4096, 14336, {(1,): 428, (1, 1): 417}),
        ("RS to rows", 8, 4096, 8192, 28672, {(1,): 351, (1, 1): 353}),
        ("RS to rows", 8, 16384, 8192, 28672, {(1,): 1451, (1, 1): 1409}),
        ("RS to rows", 4, 4096, 4096, 7168, {(1,): 115}),
        ("RS to rows", 4, 8192, 8192, 14336, {(1,): 726}),
        ("AR", 8, 4096, 4096, 14336, {(1, 1): 222, (2, 1, 1): 233, (1, 1, 1, 1): 240}),
        ("AR", 8, 16384, 4096, 14336, {(2, 1, 1): 757, (1, 1, 1, 1): 785}),
        ("AR", 8, 4096, 8192, 28672, {(1, 1): 521, (2, 1, 1): 514, (1, 1, 1, 1): 500}),
        ("AR", 8, 16384, 8192, 28672, {(1, 1): 1921, (2, 1, 1): 1819, (1, 1, 1, 1): 1807}),
        ("AR", 8, 8192, 16384, 53248, {(1, 1): 3102, (2, 1, 1): 2972, (1, 1, 1, 1): 2987}),
        ("AR", 4, 4096, 4096, 7168, {(1,): 201, (1, 1, 1, 1): 203}),
        ("AR", 4, 4096, 8192, 14336, {(1, 1): 446, (1, 1, 1, 1): 442}),
        ("AR", 4, 8192, 8192, 14336, {(1, 1): 843, (1, 1, 1, 1): 830, (1,) * 8: 838}),
        ("AR", 2, 4096, 4096, 3584, {(1,): 149, (1, 1): 136, (1, 1, 1, 1): 144, (1,) * 8: 169}),
        ("AR", 2, 16384, 4096, 3584, {(1,): 472, (1, 1): 444, (1, 1, 1, 1): 442}),
        ("AR", 2, 4096, 8192, 7168, {(1,): 370, (1, 1): 354, (1, 1, 1, 1): 354}),
        ("AR", 2, 16384, 8192, 7168, {(1,): 1492, (1, 1): 1412, (1, 1, 1, 1): 1415}),
    ],
)
def test_reductions_by_stores_are_estimated(
    layout: str, nprocs: int, m: int, n: int, k: int, measured: dict[tuple[int, ...], float]
) -> None:
    """8 and 4 ranks played by 2 H200, and 2: docs/performance/gpu_played.json, gpu_roads.json."""
    topology = Topology(nprocs, shared=True, push=True, tiles=True)
    plan = planned(layout, m, n, k, nprocs, order="C", topology=topology)
    for pieces, us in measured.items():
        assert estimate(plan, Algorithm("fused_stores", pieces)) == pytest.approx(us, rel=0.15)
    assert {(1,), (1, 1, 1, 1)} <= {
        tuple(weight // algorithm.groups[-1] for weight in algorithm.groups)
        for algorithm in candidates(plan, topology=topology)
        if algorithm.kind == "fused_stores"
    }
    assert plan.algorithm is not None
    if layout == "AR" and k <= 4096 * nprocs:
        assert plan.algorithm.kind == "fused_stores"
        weights = tuple(weight // math.gcd(*plan.algorithm.groups) for weight in plan.algorithm.groups)
        assert measured.get(weights, 0) < 1.06 * min(measured.values())
    assert "fused_stores" in {algorithm.kind for algorithm in shortlist(plan, topology=topology)}


@pytest.mark.parametrize("nprocs", [2, 8])
def test_flat_products_are_reduced_by_stores(nprocs: int) -> None:
    """8B: 66 us on 2 H200, where copies took 87, and 85 of 8 ranks that were played, where one kernel took 101."""
    topology = replace(TILED, ranks_per_node=nprocs)
    assert planned(
        "RS to rows", 2048, 4096, 1792 * nprocs, nprocs, order="C", topology=topology
    ).algorithm == Algorithm("fused_stores")
    for m in (8192, 16384):  # 2 H200: 194 and 365 us, by tiles 202 and 384
        many = planned("RS to rows", m, 4096, 1792 * nprocs, nprocs, order="C", topology=topology)
        assert many.algorithm is not None
        assert many.algorithm.kind == "fused_stores"
    deep = planned("RS to rows", 1024, 8192, 3584 * nprocs, nprocs, order="C", topology=topology)
    assert deep.algorithm is not None
    assert deep.algorithm.kind != "fused_stores"


# m, n and k, and us on 2 H200 of n/8 or k/8 for each rank: docs/decisions/0016-few-tiles.md
@pytest.mark.parametrize(
    ("layout", "m", "n", "k", "us"),
    [
        ("RS to rows", 256, 4096, 3584, 21.7),
        ("RS to rows", 256, 8192, 7168, 43.0),
        ("RS to rows", 512, 4096, 3584, 29.0),
        ("RS to rows", 512, 8192, 7168, 68.0),
        ("RS to rows", 512, 16384, 13312, 197),
        ("RS to rows", 1024, 4096, 3584, 47.0),
        ("RS to rows", 1024, 8192, 7168, 116),
    ],
)
def test_reduce_scatters_by_stores_are_estimated_and_taken_if_measured(
    layout: str, m: int, n: int, k: int, us: float
) -> None:
    plan = planned(layout, m, n, k, 2, order="C", topology=TILED)
    assert estimate(plan, Algorithm("fused_stores")) == pytest.approx(us, rel=0.12)
    assert Algorithm("fused_stores") in candidates(plan, topology=TILED)
    assert plan.algorithm != Algorithm("fused_stores")
    measured = replace(plan, measured=((Algorithm("fused_stores"), 1e-6 * us),))
    assert choose_algorithm(measured, None, TILED) == Algorithm("fused_stores")
    assert Algorithm("fused_stores") in candidates(
        planned(layout, m, n, k, 8, order="C", topology=TILED), topology=TILED
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_road_of_an_empty_product_is_estimated(layout: str) -> None:
    for m, n, k in itertools.product((0, 2048), repeat=3):
        plan = planned(layout, m, n, k, 4, "bfloat16", order="C", topology=TILED)
        if plan.algorithm is not None:
            assert all(estimate(plan, algorithm) >= 0 for algorithm in candidates(plan, topology=TILED))


def test_tiles_of_few_rows_are_not_offered_to_reductions() -> None:
    """Two of a cluster side by side were slower than copies and kernels in all products that were measured."""
    for layout, m in itertools.product(("RS to rows", "AR"), (128, 512, 768, 1024, 2048)):
        plan = planned(layout, m, 8192, 14336, 4, order="C", topology=TILED)
        assert ({algorithm.kind for algorithm in shortlist(plan, topology=TILED)} >= {"tile_signals"}) == (m >= 1024), (
            layout,
            m,
        )


# m, n and k, and us by pieces, copied and the last in two shots: docs/performance/gpu_roads.json
MEASURED = {
    (4096, 4096, 7168): {(1,): 252, (1, 1): 288, (1, 1, 1, 1): 321},
    (4096, 8192, 14336): {(1,): 632, (1, 1, 1, 1): 618, (2, 2, 2, 1): 632, (4, 4, 3, 2, 1): 646},
    (4096, 16384, 26624): {(1,): 1795, (1, 1): 1811, (2, 2, 2, 1): 1635, (4, 4, 3, 2, 1): 1535},
    (16384, 4096, 7168): {(1,): 935, (1, 1): 913, (1, 1, 1): 904, (4, 4, 3, 2, 1): 959},
    (16384, 8192, 14336): {(1,): 2452, (1, 1): 2443, (2, 2, 2, 1): 2235, (4, 4, 3, 2, 1): 2253},
}


@pytest.mark.parametrize("shape", MEASURED)
def test_all_reduces_take_a_road_that_was_measured_to_be_short(shape: tuple[int, int, int]) -> None:
    plan, measured = planned("AR", *shape, 4), MEASURED[shape]
    assert all(abs(estimate(plan, Algorithm("two-shot", groups)) / us - 1) < 0.1 for groups, us in measured.items())
    assert plan.algorithm is not None
    assert plan.algorithm.groups not in measured or measured[plan.algorithm.groups] < 1.05 * min(measured.values())


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
            (by, groups) for by in ("copy_engine", "tile_signals", "fused_stores", "two-shot") for groups in pieces
        ]
        return [Algorithm("one-shot"), *(Algorithm(by, groups) for by, groups in algorithms)]  # type: ignore[arg-type]
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
def test_the_workspace_is_what_was_announced(layout: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the busiest rank, but for what 16-bit partial products in 32 bits would take, and the padding of blocks."""
    dtype = dtype_of(name)
    widths = (dtype, np.dtype(np.float32)) if dtype.itemsize == 2 else (dtype,)
    for shape, nprocs, order in itertools.product(SHAPES[:3], (2, 3, 8), ("F", "C")):
        plan = planned(layout, *shape, nprocs, name, order)
        for algorithm in algorithms(plan):
            monkeypatch.setattr("pblas.planner.granularity.choose_algorithm", lambda *_, algorithm=algorithm: algorithm)
            plan = planned(layout, *shape, nprocs, name, order)
            assert isinstance(plan, AllGatherGemm | GemmReduceScatter)
            oriented = "F" if isinstance(plan, GemmAllReduce) else "C" if plan.transposed and order == "F" else order
            for wire in widths:
                used = []
                for rank in range(nprocs):
                    memory = Memory()
                    backend = SimpleNamespace(rank=rank, engine=lambda _, memory=memory: memory, agree=lambda *_: None)
                    run = pushed(plan, backend, dtype, wire, Orders(oriented, oriented), tf32=False)  # type: ignore[arg-type]
                    assert run.workspace_nbytes == memory.nbytes
                    used.append(memory.nbytes)
                slack = 2 * 256 * (nprocs + 2)
                assert max(used) <= plan.workspace_nbytes + slack, (plan, wire)
                if wire == widths[-1]:
                    result = plan.product.itemsize * plan.product.m * plan.product.n  # of pieces that land in D
                    assert plan.workspace_nbytes <= max(used) + slack + result, (plan, wire)
        monkeypatch.undo()


def strips_of(ops: tuple[Op, ...]) -> list[Strip]:
    return [strip for op in ops if isinstance(op, GemmReduce) for strip in op.strips]


def beside(ops: tuple[Op, ...]) -> list[Op]:
    """All operations, those that go on beside a kernel too."""
    return [*ops, *(each for op in ops if isinstance(op, GemmReduce) for each in op.beside)]


def puts_of(ops: tuple[Op, ...]) -> list[Put]:
    found = [put for strip in strips_of(ops) for put in strip.puts]
    return [*found, *(put for op in ops if isinstance(op, Burst) for put in op.puts), *only(Put, ops)]


def gets_of(ops: tuple[Op, ...]) -> list[Get]:
    return [*only(Get, ops), *(get for each in only(Gets, ops) for get in each.gets)]


def only(kind: type[Kind], ops: tuple[Op, ...]) -> list[Kind]:
    return [op for op in beside(ops) if isinstance(op, kind)]


def test_what_is_received_is_what_the_schedules_put(monkeypatch: pytest.MonkeyPatch) -> None:
    """In lines and elements; kernels that reduce put what the equations say, one share or all to each."""
    for layout, shape, nprocs in itertools.product(LAYOUTS, SHAPES[:4], (2, 3, 4, 8)):
        plan = planned(layout, *shape, nprocs)
        m, n, k = shape
        for algorithm in algorithms(plan):
            monkeypatch.setattr("pblas.planner.granularity.choose_algorithm", lambda *_, algorithm=algorithm: algorithm)
            plan = planned(layout, *shape, nprocs)
            monkeypatch.undo()
            programs = [schedule(plan, rank) for rank in range(nprocs)]
            received = [
                (put.peer, len(put.source))
                for rank, ops in enumerate(programs)
                for put in puts_of(ops)
                if put.peer != rank
            ]
            received += [(rank, len(get.source)) for rank, ops in enumerate(programs) for get in gets_of(ops)]
            kernels = AllGather | AllReduce | ReduceScatter
            if any(isinstance(op, kernels) for ops in programs for op in ops) or 0 in (m, n, k):
                assert not received or len(algorithm.groups) > 1 or 0 in (m, n, k)
                continue
            across = plan.oriented.m if isinstance(plan, GemmReduceScatter) else 0
            if isinstance(plan, AllGatherGemm):
                across = plan.oriented.n if plan.along_k else plan.oriented.k
            for rank in range(nprocs):
                lines = sum(count for peer, count in received if peer == rank)
                assert lines * across == plan.received_elements(rank), (plan, algorithm)


def test_all_reduces_receive_twice_their_share_or_all_in_one_shot(monkeypatch: pytest.MonkeyPatch) -> None:
    for nprocs in (2, 4, 8):
        m, n = 3, 64 * nprocs
        for algorithm, expected in (
            (Algorithm("one-shot"), (nprocs - 1) * m * n),
            (Algorithm("two-shot"), 2 * (nprocs - 1) * m * n // nprocs),
            (Algorithm("copy_engine"), 2 * (nprocs - 1) * m * n // nprocs),
        ):
            monkeypatch.setattr("pblas.planner.granularity.choose_algorithm", lambda *_, algorithm=algorithm: algorithm)
            plan = planned("AR", m, n, 16 * nprocs, nprocs)
            assert plan.algorithm == algorithm
            assert all(plan.received_elements(rank) == expected for rank in range(nprocs)), algorithm
            assert plan.max_received_nbytes == 2 * expected
