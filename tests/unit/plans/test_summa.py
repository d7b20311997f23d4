"""Laws of general plans: every multiplication happens once, and a rank receives the bytes that it lacks."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace
from typing import Any, Literal

import pytest

import pblas
from pblas.errors import PlanError
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.layouts.messages import receives
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.layouts.strided import strided_runs
from pblas.matmul.choose import choose, choose_layouts, general_product, one_dimensional
from pblas.matmul.choose_granularity import PlanningContext, needed_nbytes
from pblas.matmul.choose_grid import misfits, natural_cuboids, natural_layouts, on_grids, over_all_ranks, triples
from pblas.matmul.product_plan import Distribution, Product
from pblas.matmul.summa_plan import Summa, SummaA, SummaC, column_of, cut, cut_count, placed, row_of, same_place
from pblas.simulation.hardware import CORE, FAT_TREE, NVLINK, Link, Topology

RANKS = (1, 2, 3, 4, 6)


def some_descriptor(rng: random.Random, m: int, n: int, nprocs: int) -> MatrixDescriptor:
    """Any grid with or without idle ranks, any blocks, any source, or copies."""
    grids = [(p, q) for p in range(1, nprocs + 1) for q in range(1, nprocs + 1) if p * q <= nprocs]
    p, q = rng.choice(grids)
    order = rng.choice("CR")
    rsrc, csrc = (rng.choice([-1, *range(extent), *range(extent)]) for extent in (p, q))
    mb, nb = rng.choice([1, 2, 3, 5, 40]), rng.choice([1, 2, 3, 5, 40])
    whole = MatrixDescriptor(m + 4, n + 3, mb, nb, Grid(p, q, "C" if order == "C" else "R"), rsrc, csrc)
    i, j = rng.randrange(5), rng.randrange(4)
    return whole.submatrix(i, i + m, j, j + n)


def some_product(rng: random.Random) -> tuple[Product, tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor]]:
    nprocs = rng.choice(RANKS)
    m, n, k = (rng.choice([1, 2, 5, 8, 9, 13]) for _ in range(3))
    descs = (some_descriptor(rng, m, k, nprocs), some_descriptor(rng, k, n, nprocs), some_descriptor(rng, m, n, nprocs))
    spreads = [Distribution("grid", None, Placement.of(desc)) for desc in descs]
    return Product(m, n, k, "float64", nprocs, *spreads), descs


def some_plans(count: int) -> list[Summa]:
    """Every candidate of random products."""
    rng = random.Random(4)
    plans: list[Summa] = []
    for _ in range(count):
        product, descs = some_product(rng)
        plans += on_grids(product)
        every = over_all_ranks(product, misfits(*descs), CORE, lambda _: True)
        plans += itertools.islice(itertools.chain.from_iterable(every), 6)
    return plans


PLANS = some_plans(60)


def elements(place: Placement, rank: int) -> set[tuple[int, int]]:
    """The elements that a rank holds."""
    position = place.coordinates(rank)
    if position is None:
        return set()
    rows, columns = place.rows.ranges(position[0]), place.columns.ranges(position[1])
    return {(i, j) for i0, i1 in rows for j0, j1 in columns for i in range(i0, i1) for j in range(j0, j1)}


def test_the_plans_are_of_all_kinds() -> None:
    names = Counter(plan.name for plan in PLANS)
    assert set(names) == {"SummaA", "SummaB", "SummaC"}
    assert min(names.values()) > 20
    assert {plan.in_place for plan in PLANS} == {True, False}
    assert any(plan.sum_placement for plan in PLANS)
    assert any(isinstance(plan, SummaA) and plan.stays for plan in PLANS)
    assert any(isinstance(plan, SummaC) and plan.cuboids.k.nprocs > 1 for plan in PLANS)


def test_every_multiplication_happens_once() -> None:
    for plan in PLANS:
        cuboids, product = plan.cuboids, plan.oriented
        done = Counter(
            (i, j, k)
            for rank in range(product.nprocs)
            for (i, k) in elements(cuboids.a, rank)
            for j in {j for _, j in elements(cuboids.d, rank)}
        )
        everything = set(itertools.product(range(product.m), range(product.n), range(product.k)))
        assert done == Counter(everything), plan


def test_a_rank_receives_what_it_needs_and_does_not_have() -> None:
    """The bytes by enumeration: elements of A and B, partial products of each layer, sums that other ranks add."""
    for plan in PLANS:
        cuboids, product = plan.cuboids, plan.oriented
        d = placed(product.d)
        received = []
        for rank in range(product.nprocs):
            count = len(elements(cuboids.a, rank) - elements(placed(product.a), rank))
            count += len(elements(cuboids.b, rank) - elements(placed(product.b), rank))
            if not plan.in_place:
                for layer in range(cuboids.k.nprocs):
                    if cuboids.k.count(layer):
                        count += len(elements(plan.sums, rank) - elements(cuboids.d.layer(layer), rank))
            if plan.sum_placement is not None:
                count += len(elements(d, rank) - elements(plan.sum_placement, rank))
            assert plan.received_nbytes(rank) == 8 * count, (plan, rank)
            received.append(count)
        assert plan.max_received_nbytes == 8 * max(received)
        assert f"{plan.max_received_nbytes:,} bytes" in plan.explain()
        assert plan.explain().startswith(f"{plan.name}: ")


def test_panels_of_a_layer_are_its_part_of_k() -> None:
    for plan in PLANS:
        if not isinstance(plan, SummaC):
            continue
        for width in (1, 2, 3, 512):
            wide = SummaC(plan.product, plan.why, cuboids=plan.cuboids, width=width)
            inner = placed(plan.oriented.a).columns
            for layer in range(plan.cuboids.k.nprocs):
                indices: list[int] = []
                for panel in wide.panels(layer):
                    assert 0 < panel.stop - panel.start <= max(width, 1)
                    local = range(panel.start, panel.stop)
                    indices += [l if panel.owner is None else inner.global_from_local(l, panel.owner) for l in local]
                k = plan.cuboids.k
                assert sorted(indices) == [g for g0, g1 in k.ranges(layer) for g in range(g0, g1)]


def test_panels_of_n_are_all_of_n() -> None:
    for plan in PLANS:
        if isinstance(plan, SummaA):
            for width in (1, 3, 512):
                wide = SummaA(plan.product, plan.why, plan.transposed, cuboids=plan.cuboids, width=width)
                indices = [g for panel in wide.panels() for g in range(panel.start, panel.stop)]
                assert indices == list(range(plan.oriented.n))


def test_panels_end_where_blocks_do() -> None:
    """Blocks that are deep enough are multiplied one by one, or several whole ones, or equal parts of one."""
    assert list(cut(Split(1000, 256, 2), 0, 1000, 512)) == [(0, 512), (512, 1000)]
    assert list(cut(Split(1000, 200, 2, 0, 150), 0, 1000, 256)) == [
        (0, 150),
        *((150 + 200 * i, min(350 + 200 * i, 1000)) for i in range(5)),
    ]
    assert list(cut(Split(2000, 1000, 2), 500, 1500, 300)) == [(500, 750), (750, 1000), (1000, 1250), (1250, 1500)]
    assert list(cut(Split(100, 1, 2), 10, 100, 64)) == [(10, 74), (74, 100)]


def test_pieces_are_counted_without_making_them() -> None:
    rng = random.Random(5)
    for _ in range(3000):
        n, nb = rng.randrange(2000), rng.choice([1, 7, 128, 130, 300, 5000])
        split = Split(n, nb, rng.choice([1, 2, 3]), 0, rng.choice([None, rng.randrange(1, nb + 1)]))
        g0, g1 = sorted(rng.randrange(n + 1) for _ in range(2))
        width = rng.choice([1, 64, 128, 200, 512])
        pieces = list(cut(split, g0, g1, width))
        assert cut_count(split, g0, g1, width) == len(pieces)
        assert [g for piece in pieces for g in range(*piece)] == list(range(g0, g1))


def test_columns_and_rows_of_a_placement_are_its_local_arrays() -> None:
    place = Placement(Split(9, 2, 2), Split(13, 3, 3), (3, 1, 6), copies=2)
    for c in range(3):
        alone = column_of(place, c)
        for rank in range(12):
            position = place.coordinates(rank)
            assert alone.local_shape(rank) == (place.local_shape(rank) if position and position[1] == c else (0, 0))
    assert row_of(place, 1) == column_of(place.T, 1).T


def test_same_place_is_the_same_elements_on_every_rank() -> None:
    rng = random.Random(9)
    outcomes: Counter[bool] = Counter()
    for _ in range(2000):
        m, n, nprocs = rng.randrange(1, 5), rng.randrange(1, 5), rng.choice((1, 2, 4))
        first, second = (Placement.of(some_descriptor(rng, m, n, nprocs)) for _ in range(2))
        same = same_place(first, second)
        if same:  # the converse may fail: a plan is then only dearer
            assert all(elements(first, rank) == elements(second, rank) for rank in range(nprocs))
        outcomes[same] += 1
    assert min(outcomes.values()) > 20


SHAPES = [
    (8192, 8192, 8192, 2),
    (8192, 8192, 8192, 4),
    (8192, 8192, 8192, 8),
    (32768, 4096, 4096, 8),
    (4096, 4096, 65536, 8),
    (8192, 28672, 8192, 2),
    (8192, 28672, 8192, 8),
    (16384, 16384, 1024, 4),
    (4096, 4096, 65536, 64),
    (32768, 4096, 4096, 16),
    (16384, 16384, 1024, 16),
    (8192, 8192, 8192, 64),
    (1000, 999, 50000, 6),
]


@pytest.mark.parametrize(("m", "n", "k", "nprocs"), SHAPES)
def test_free_layouts_receive_hardly_more_than_the_lower_bound(m: int, n: int, k: int, nprocs: int) -> None:
    """Where the network is slow, so that the bytes take all the time."""
    slow = replace(FAT_TREE, ranks_per_node=1, shared=False, far=Link(0.0, 1e6), memory_nbytes=1 << 40)
    planned = pblas.plan_matmul(m, n, k, nprocs=nprocs, dtype="float64", hardware=slow)
    plan = planned.plan
    assert plan.max_received_nbytes <= 1.35 * 8 * plan.product.lower_bound
    again = pblas.plan_matmul(*planned.descriptors, out=planned.out, nprocs=nprocs, dtype="float64", hardware=slow)
    assert again.plan == plan


@pytest.mark.parametrize("trans", ["N", "T", "C"])
def test_free_layouts_are_those_of_stored_matrices(trans: Literal["N", "T", "C"]) -> None:
    planned = pblas.plan_matmul(7, 5, 90, nprocs=4, dtype="float32", transa=trans, transb=trans)
    a, b = planned.descriptors
    assert (a.shape, b.shape) == (((7, 90), (90, 5)) if trans == "N" else ((90, 7), (5, 90)))
    assert planned.out.shape == (7, 5)


def test_memory_limits_layers() -> None:
    """With little memory a product is arranged with fewer layers, whose partial products take it."""
    sizes, slow = (4096, 4096, 4096), replace(FAT_TREE, ranks_per_node=1, shared=False, far=Link(0.0, 1e7))
    options: dict[str, Any] = {"nprocs": 8, "dtype": "float64", "hardware": slow}
    free = pblas.plan_matmul(*sizes, **options).plan
    tight = pblas.plan_matmul(*sizes, **options, memory_nbytes=104 << 20).plan
    assert needed_nbytes(tight) <= 104 << 20 < needed_nbytes(free)
    assert isinstance(free, Summa)
    assert free.cuboids.k.nprocs == 2
    assert free.max_received_nbytes < tight.max_received_nbytes


@pytest.mark.parametrize("grid", [Grid(4, 4), Grid(16, 1)])
def test_given_layouts_are_planned_for_the_memory_there_is(grid: Grid) -> None:
    """With less memory the product has other plans that fit, down to the plan that needs least memory."""
    desc = MatrixDescriptor(8192, 8192, -(-8192 // grid.nprow), -(-8192 // grid.npcol), grid)
    limit, sizes = None, []
    while True:
        hardware = replace(FAT_TREE, shared=False, memory_nbytes=limit or 1 << 40)
        plan = pblas.plan_matmul(desc, desc, out=desc, dtype="float64", hardware=hardware).plan
        hardware = replace(hardware, memory_nbytes=1)
        smallest = pblas.plan_matmul(
            desc, desc, out=desc, dtype="float64", hardware=hardware, memory_nbytes=limit or 1 << 40
        )
        assert smallest.plan == plan
        needed = needed_nbytes(plan)
        if limit is not None and needed > limit:
            assert needed <= min(sizes)
            break
        sizes.append(needed)
        limit = needed - 1
    assert len(sizes) > 1
    assert sizes == sorted(sizes, reverse=True)


def test_a_plan_that_fits_is_taken_though_it_takes_long() -> None:
    """A million ranks share a tall product over a square grid: each has four million rows of D, and little of K."""
    m, p = 4096 * 1024**2, 1024
    shapes = ((m, 4096, m // p // 32, 8), (4096, 4096, 9, 8), (m, 4096, m // p // 32, 8))
    a, b, d = (MatrixDescriptor(*shape, Grid(p, p)) for shape in shapes)
    limits = FAT_TREE.memory_nbytes, 1 << 50
    contexts = [PlanningContext(FAT_TREE.topology, p * p, hardware=FAT_TREE, memory_nbytes=n) for n in limits]
    tight, free = (choose("float64", a, b, d, context=context).simulate(FAT_TREE) for context in contexts)
    assert (tight.fits, free.fits) == (True, False)
    assert tight.seconds > 2 * free.seconds


@pytest.mark.parametrize("nprocs", [128, 256])
@pytest.mark.parametrize(("m", "k", "by_k"), [(1 << 20, 4096, False), (4096, 1 << 13, True)])
def test_thin_gemms_are_avoided_where_that_takes_less_time(nprocs: int, m: int, k: int, by_k: bool) -> None:
    """The plan moves as many bytes in panels of N, with all of a rank's K, as in shards of a few rows."""
    row, column = MatrixDescriptor.row_wise, MatrixDescriptor.column_wise
    a, d = (column(m, k, nprocs), column(m, 4096, nprocs)) if by_k else (row(m, k, nprocs), row(m, 4096, nprocs))
    b = row(k, 4096, nprocs)
    plan = choose("float64", a, b, d, context=PlanningContext(FAT_TREE.topology, nprocs, hardware=FAT_TREE))
    thin = next(one_dimensional("float64", a, b, d, nprocs))
    assert isinstance(plan, Summa)
    assert plan.max_received_nbytes <= 1.05 * thin.max_received_nbytes
    assert plan.simulate(FAT_TREE).seconds < 0.9 * replace(thin, transport=plan.transport).simulate(FAT_TREE).seconds
    few = choose(
        "float64",
        *(x(m_, n_, 4) for x, m_, n_ in ((row, m, k), (row, k, 4096), (row, m, 4096))),
        context=PlanningContext(Topology(), 4),
    )
    assert few.name == "AllGatherGemm"


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("nprocs", [3, 4, 8])
def test_small_products_with_thin_gemms_keep_their_plan(nprocs: int, *, shared: bool) -> None:
    """Panels over grids took up to 2.2 times as long: cpu_thin_4_ranks.json, cpu_thin_8_ranks.json."""
    row, column = MatrixDescriptor.row_wise, MatrixDescriptor.column_wise
    for m, n, k in ((16, 64, 256), (32, 256, 256), (64, 256, 256)):
        descs = column(m, k, nprocs), row(k, n, nprocs), row(m, n, nprocs)
        plan = choose(
            "float64", *descs, context=PlanningContext(Topology(nprocs if shared else 1, shared=shared), nprocs)
        )
        assert plan.name == "GemmReduceScatter"


@pytest.mark.parametrize("nprocs", [1, 2, 4, 6, 8, 12, 30])
def test_layers_have_the_same_k_in_natural_layouts(nprocs: int) -> None:
    """Each rank holds a part of the data that it multiplies: the layouts of op(A), op(B) and D follow the cuboids."""
    for sizes in triples(nprocs):
        m, n, k = 17, 19, 23
        cuboids = natural_cuboids(m, n, k, sizes)
        for desc, needed in zip(natural_layouts(m, n, k, sizes), (cuboids.a, cuboids.b, cuboids.d), strict=True):
            place = Placement.of(desc)
            for rank in range(nprocs):
                assert elements(place, rank) <= elements(needed, rank)


def test_layouts_that_do_not_conform_are_named_and_refused_when_strict() -> None:
    grid = MatrixDescriptor(12, 12, 2, 3, Grid(2, 2))
    square = MatrixDescriptor(12, 12, 3, 3, Grid(2, 2))
    cases = {
        (square, square, square): None,
        (grid, square, grid): None,
        (square, square, MatrixDescriptor(12, 12, 2, 3, Grid(2, 2))): "rows: op(A) has blocks of 3",
        (square, square, MatrixDescriptor(12, 12, 3, 2, Grid(2, 2))): "columns: op(B) has blocks of 3",
        (square, grid, square): "k: op(A) has blocks of 3",
        (square, square, MatrixDescriptor(12, 12, 3, 3, Grid(4, 1))): "op(A) is on a 2 x 2 grid",
        (square, square, MatrixDescriptor(12, 12, 3, 3, Grid(2, 2), rsrc=1)): "rows: op(A)",
    }
    for descs, expected in cases.items():
        plan = choose("float64", *descs, context=PlanningContext(Topology(), 4))
        assert isinstance(plan, Summa)
        if expected is None:
            assert plan.misfits == ()
            assert choose("float64", *descs, context=PlanningContext(Topology(), 4), strict=True) == plan
            continue
        assert expected in plan.explain()
        with pytest.raises(PlanError, match="strict=True") as caught:
            choose("float64", *descs, context=PlanningContext(Topology(), 4), strict=True)
        assert expected in str(caught.value)


def test_a_misfit_says_that_transposing_swaps_the_order_of_a_grid() -> None:
    desc = MatrixDescriptor(12, 12, 3, 3, Grid(2, 2))
    text = choose("float64", desc, desc.T, desc, context=PlanningContext(Topology(), 4)).explain()
    numbered = "with ranks numbered along the rows for op(B), down the columns for D"
    assert f"op(B) and D are on 2 x 2 grids, {numbered} (transposing a matrix swaps this order)" in text
    assert "such layouts are allowed; the bytes that they cost are part of 'received'" in text


def test_the_order_of_a_single_row_of_ranks_is_no_misfit() -> None:
    first, second = (MatrixDescriptor(12, 12, 12, 3, Grid(1, 4, order)) for order in ("C", "R"))
    assert misfits(first, first, second) == misfits(first, first, first)


def test_conforming_grids_keep_d_and_read_panels_in_place() -> None:
    desc = MatrixDescriptor(512, 512, 32, 32, Grid(2, 2))
    plan = choose("float64", desc, desc, desc, context=PlanningContext(Topology(4, shared=True), 4))
    assert isinstance(plan, SummaC)
    assert plan.in_place
    assert plan.is_read_in_place
    assert [(p.owner, p.start, p.stop) for p in plan.panels(0)] == [(0, 0, 256), (1, 0, 256)]
    # A rank reads one run of rows and one run of columns of a panel, from one rank, with any block size.
    for panel in plan.panels(0):
        assert panel.owner is not None
        source = column_of(placed(plan.product.a), panel.owner).part(0, 512, panel.start, panel.stop)
        target = Placement(plan.cuboids.m, Split(256, 256, 1), (1, 1, 2), 2)
        for rank in range(4):
            [move] = receives(source, target, rank)
            for runs in (move.rows, move.columns):
                assert [strided_run.count for strided_run in strided_runs(runs)] == [1]
    assert "in the node's shared memory" in plan.explain()
    near = choose("float64", desc, desc, desc, context=PlanningContext(Topology(4, shared=True, gpus=True), 4))
    assert "copied from the node's other GPUs while the GEMM runs" in near.explain()
    far = choose("float64", desc, desc, desc, context=PlanningContext(Topology(), 4))
    assert isinstance(far, SummaC)
    assert far.width == 128


@pytest.mark.parametrize("order", ["C", "R"])
@pytest.mark.parametrize("p", [2, 3, 4])
def test_no_owner_serves_two_ranks_with_the_same_operand_at_a_time(p: int, order: Literal["C", "R"]) -> None:
    """At each step every rank multiplies another part of op(A) than the other ranks, and so with op(B) for p > 2."""
    desc = MatrixDescriptor(24 * p, 24 * p, 5, 5, Grid(p, p, order), rsrc=1, csrc=1)
    plan = next(on_grids(general_product("float64", desc, desc, desc, p * p)))
    assert isinstance(plan, SummaC)
    assert plan.is_skewed
    for step in range(p):
        asked: list[set[tuple[int, int]]] = [set(), set()]
        for rank in range(p * p):
            panels = plan.panels(0, plan.first(rank))
            owners = list(dict.fromkeys(panel.owner for panel in panels if panel.owner is not None))
            assert sorted(owners) == list(range(p))
            position = plan.cuboids.d.coordinates(rank)
            assert position is not None
            i, j, _ = position
            asked[0].add((i, owners[step]))
            asked[1].add((owners[step], j))
        assert len(asked[0]) == p * p
        assert len(asked[1]) == (p * p if p > 2 else 2)


def test_panels_are_not_thinner_than_many_owners_have() -> None:
    """With 64 process columns each has 16 of K, and panels go across them; with 4 columns panels are even cuts."""
    for p, k, width in ((64, 1024, 256), (4, 2400, 300)):
        n, mb = 1024 * p, 64
        a, b = MatrixDescriptor(n, k, mb, 4, Grid(p, p)), MatrixDescriptor(k, n, 4, mb, Grid(p, p))
        d = MatrixDescriptor(n, n, mb, mb, Grid(p, p))
        plan = choose("float64", a, b, d, context=PlanningContext(Topology(), p * p))
        assert isinstance(plan, SummaC)
        assert plan.in_place
        assert plan.by_owner == (p == 4)
        assert {panel.stop - panel.start for panel in plan.panels(0)} == {width}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_panels_on_gpus_are_as_deep_as_additions_to_d_want(dtype: str) -> None:
    """Panels start on whole vectors and are nearly equal; D is read and written in a small part of a GEMM's time."""
    n, topology = 16384, Topology(4, shared=True, push=True, gpus=True)
    desc = MatrixDescriptor(n, n, 256, 256, Grid(2, 2))
    for rsrc in (0, 1):  # blocks of a peer, and packed panels
        other = MatrixDescriptor(n, n, 256, 256, Grid(2, 2), rsrc=rsrc)
        plan = choose(dtype, desc, other, desc, context=PlanningContext(topology, 4))
        assert isinstance(plan, SummaC)
        assert plan.is_skewed == (rsrc == 0)
        sizes = [panel.stop - panel.start for panel in plan.panels(0)]
        assert all(panel.start % 64 == 0 for panel in plan.panels(0))
        assert all(size >= plan.width - 64 * len(sizes) for size in sizes[:-1])
        adding = 2 * (n // 2) ** 2 * max(4, plan.product.itemsize) / NVLINK.memory_bandwidth
        part = 8 if plan.is_skewed else 3  # ranks wait for packed panels, so narrower ones pay
        assert len(sizes) * adding < NVLINK.gemm_seconds(n / 2, n / 2, n, dtype) / part


def test_a_rank_that_idles_has_its_price() -> None:
    """D on one rank of four: a large product is multiplied by all of them and D is sent there."""
    even, one = MatrixDescriptor(2048, 2048, 64, 64, Grid(2, 2)), MatrixDescriptor(2048, 2048, 64, 64, Grid(1, 1))
    plan = choose("float64", even, even, one, context=PlanningContext(Topology(), 4))
    assert isinstance(plan, Summa)
    assert plan.cuboids.flops == 2 * 2048**3 // 4


def test_planning_for_many_ranks_looks_at_few(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[int] = Counter()
    original = Summa.received_elements

    def counted(self: Summa, rank: int) -> int:
        calls[self.product.nprocs] += 1
        return original(self, rank)

    monkeypatch.setattr(Summa, "received_elements", counted)
    n, nprocs = 10**6, 10**6
    rows = MatrixDescriptor.row_wise(n, n, nprocs)
    for a, b, d in (
        choose_layouts(n, n, n, "float64", context=PlanningContext(Topology(), nprocs)),
        (rows, rows, rows),
    ):
        choose("float64", a, b, d, context=PlanningContext(Topology(64), nprocs))
    assert calls[10**6] < 5000
