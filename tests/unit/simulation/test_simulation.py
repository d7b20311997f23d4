"""Laws of the simulation: no plan takes less time than its parts, and phases move the bytes of the plan."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from pblas import ArgumentError, Hardware, Link, MatrixDescriptor, Simulation, plan_matmul
from pblas.cli import main
from pblas.layouts.grid import Grid
from pblas.layouts.split import Split
from pblas.matmul.choose import choose, general_product, one_dimensional
from pblas.matmul.choose_granularity import PlanningContext
from pblas.matmul.choose_grid import on_grids
from pblas.matmul.one_dimensional_plan import AllGatherGemm, GatherStep, GemmReduceScatter
from pblas.matmul.product_plan import ProductPlan
from pblas.matmul.summa_plan import SummaC
from pblas.simulation.hardware import FAT_TREE, LAPTOP, NVLINK, PRESETS, Topology, Transport
from pblas.simulation.hardware_file import find_hardware
from pblas.simulation.phase import Phase, Traffic, View, even
from pblas.simulation.simulate import Clocks, _Rank, agreeing, power, simulate

MACHINES = (LAPTOP, FAT_TREE, NVLINK, replace(FAT_TREE, name="small nodes", ranks_per_node=3))
TRANSPORTS: tuple[Transport, ...] = ("shared", "message", "mixed")
SIZES = ((7, 8, 9), (2, 13, 5), (17, 16, 3), (64, 40, 96), (0, 8, 9), (7, 8, 0))


def descriptor(rng: random.Random, m: int, n: int, nprocs: int) -> MatrixDescriptor:
    kind = rng.choice(("row", "column", "replicated", "grid"))
    block = rng.choice((None, 1, 2, 3, 50))
    if kind == "row":
        return MatrixDescriptor.row_wise(m, n, nprocs, mb=block, rsrc=rng.randrange(nprocs))
    if kind == "column":
        return MatrixDescriptor.column_wise(m, n, nprocs, nb=block, csrc=rng.randrange(nprocs))
    if kind == "replicated":
        return MatrixDescriptor.replicated(m, n, nprocs)
    nprow = rng.choice([p for p in range(1, nprocs + 1) if nprocs % p == 0])
    grid = Grid(nprow, nprocs // nprow)
    source = rng.randrange(grid.nprow), rng.randrange(grid.npcol)
    return MatrixDescriptor(m, n, rng.choice((1, 2, 5)), rng.choice((1, 3, 4)), grid, *source)


def random_plans() -> Iterator[ProductPlan]:
    """Plans of all kinds, for all transports."""
    rng = random.Random(4)
    for (m, n, k), nprocs in itertools.product(SIZES, (1, 2, 3, 4, 6, 8)):
        for _ in range(12):
            a, b, d = (descriptor(rng, *shape, nprocs) for shape in ((m, k), (k, n), (m, n)))
            topology = Topology(rng.choice((1, 2, 3, nprocs)), rng.random() < 0.7)
            if rng.random() < 0.3:
                topology = Topology(nprocs, push=True)
            overlap, chunks = rng.random() < 0.7, rng.choice((None, 1, 2, 5))
            dtype = rng.choice(("float64", "bfloat16", "complex64"))
            yield choose(dtype, a, b, d, context=PlanningContext(topology, nprocs, overlap=overlap, chunks=chunks))


PLANS = list(random_plans())


def big(
    nprocs: int, kinds: tuple[str, str, str] = ("row", "row", "row"), n: int = 4096, chunks: int = 1
) -> ProductPlan:
    """The one-dimensional plan of a square product in float64, in even layouts over all ranks, for windows."""
    make = {
        "row": MatrixDescriptor.row_wise,
        "column": MatrixDescriptor.column_wise,
        "all": MatrixDescriptor.replicated,
    }
    a, b, d = (make[kind](n, n, nprocs) for kind in kinds)
    plan = next(iter(one_dimensional("float64", a, b, d, nprocs)))
    return replace(plan, chunks=chunks, transport="shared")


def test_the_random_plans_are_of_all_kinds() -> None:
    names = {plan.name for plan in PLANS}
    assert names >= {"LocalGemm", "AllGatherGemm", "GemmReduceScatter", "GemmAllReduce", "SummaC", "SummaA", "SummaB"}
    assert {plan.transport for plan in PLANS} == {*TRANSPORTS, "push"}
    assert {plan.algorithm.kind for plan in PLANS if plan.algorithm} >= {"copy_engine", "sm_push", "one_shot"}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_phases_move_the_bytes_that_the_plan_announces(transport: Transport) -> None:
    for plan in PLANS:
        plan = plan if plan.transport == "push" else replace(plan, transport=transport)  # noqa: PLW2901
        nprocs = plan.product.nprocs
        for rank, ranks_per_node in itertools.product(range(nprocs), (1, 2, nprocs)):
            phases = list(plan.phases(View(rank, nprocs, ranks_per_node, transport)))
            assert sum(phase.nbytes for phase in phases) == plan.received_nbytes(rank), (plan, rank)
            for phase in phases:
                traffic = phase.before + phase.after
                if transport == "shared":
                    assert not traffic.messages
                elif transport == "message":
                    assert not traffic.read
                if ranks_per_node == 1 and transport != "shared":
                    assert traffic.nbytes == traffic.far
                assert bool(traffic.near) <= bool(traffic.near_messages)
                assert bool(traffic.far) <= bool(traffic.far_messages)


def test_shards_reach_a_node_once() -> None:
    """In the phases each rank of a node receives a share of each shard from other nodes, rounded up to a byte."""
    counted = 0
    for plan, ranks_per_node in itertools.product(PLANS, (2, 3)):
        if type(plan) is not AllGatherGemm or plan.algorithm or plan.product.d.split is None:
            continue
        nprocs = plan.product.nprocs
        for first in range(0, nprocs, ranks_per_node):
            node, far, messages = range(first, min(first + ranks_per_node, nprocs)), 0, 0
            if not all(map(plan.takes_part, node)):
                continue
            for rank in node:
                for phase in plan.phases(View(rank, nprocs, ranks_per_node, "mixed")):
                    far += phase.steps * phase.before.far
                    messages += phase.steps * phase.before.far_messages
            assert plan.network_nbytes(node) <= far <= plan.network_nbytes(node) + messages
            counted += 1
    assert counted > 20


def test_phases_multiply_everything() -> None:
    """Over all ranks the GEMMs of the phases are the product, for plans in which no rank repeats another's work."""
    counted = 0
    for plan in PLANS:
        product = plan.product
        if plan.name == "LocalGemm" and product.nprocs > 1 and product.d.axis == "all":
            continue
        nprocs = product.nprocs
        done = 0
        for rank in range(nprocs):
            for phase in plan.phases(View(rank, nprocs, 2, plan.transport)):
                m, n, k = phase.gemm
                done += phase.steps * m * n * k
        if isinstance(plan, AllGatherGemm | GemmReduceScatter) or plan.name.startswith("Summa"):
            assert done == product.m * product.n * product.k, plan
            counted += 1
    assert counted > 100


def test_steps_of_phases_are_steps_of_the_plan() -> None:
    """As many of each width; of the shard that a rank gathers from itself, all in one."""
    for plan in PLANS:
        if type(plan) in (AllGatherGemm, GemmReduceScatter) and not plan.algorithm and plan.overlap and plan.product.k:
            assert isinstance(plan, AllGatherGemm | GemmReduceScatter)
            nprocs = plan.product.nprocs
            for rank in range(nprocs):
                if isinstance(plan, GemmReduceScatter) and not plan.contributes(rank):
                    continue
                own, others = Counter[int](), Counter[int]()
                for step in plan.steps(rank):
                    peer = step.source if isinstance(step, GatherStep) else step.owner
                    (own if peer == rank else others)[step.c1 - step.c0] += 1
                if isinstance(plan, AllGatherGemm) and own:
                    own = Counter({sum(own.elements()): 1})
                phases = Counter[int]()
                for phase in plan.phases(View(rank, nprocs, 2, "message")):
                    phases[phase.gemm[1]] += phase.steps
                del phases[0]
                assert phases == own + others, plan


@pytest.mark.parametrize("hardware", MACHINES, ids=lambda hardware: hardware.name)
def test_nothing_takes_less_time_than_its_parts(hardware: Hardware) -> None:
    for plan in PLANS:
        simulation = plan.simulate(hardware)
        assert simulation.seconds >= simulation.compute_seconds
        assert simulation.exposed_seconds == simulation.seconds - simulation.compute_seconds
        fastest = max(hardware.near.bandwidth, hardware.far.bandwidth)
        assert simulation.received_nbytes == plan.max_received_nbytes
        assert simulation.seconds * (1 + 1e-12) >= simulation.received_nbytes / fastest
        assert simulation.seconds * (1 + 1e-12) >= simulation.communication_seconds
        assert 0 <= simulation.efficiency <= 1
        assert simulation.memory_nbytes >= plan.workspace_nbytes * (plan.transport == "message")


@pytest.mark.parametrize("name", ["near.bandwidth", "far.bandwidth", "memory_bandwidth", "float64", "near.core"])
def test_more_is_never_slower(name: str) -> None:
    field, _, part = name.partition(".")
    for plan, hardware in itertools.product(PLANS[::3], MACHINES):
        before = plan.simulate(hardware).seconds
        better = getattr(hardware, field)
        better = replace(better, **{part: 2 * getattr(better, part)}) if part else 2 * better
        assert plan.simulate(replace(hardware, **{field: better})).seconds <= before * (1 + 1e-12)


@pytest.mark.parametrize("name", ["latency", "overhead"])
def test_slower_messages_never_help(name: str) -> None:
    for plan, hardware in itertools.product(PLANS[::3], MACHINES):
        slow = replace(hardware, far=replace(hardware.far, **{name: 1e-3}))
        assert plan.simulate(slow).seconds >= plan.simulate(hardware).seconds * (1 - 1e-12)


@pytest.mark.parametrize("hardware", MACHINES, ids=lambda hardware: hardware.name)
def test_one_rank_takes_the_time_of_its_gemm(hardware: Hardware) -> None:
    for plan in PLANS:
        product = plan.product
        if product.nprocs == 1:
            simulation = plan.simulate(hardware)
            gemm = hardware.gemm_seconds(product.m, product.n, product.k, product.dtype)
            assert simulation.compute_seconds == gemm
            starts = hardware.step if plan.transport == "push" else 0.0  # by the host of a GPU
            assert simulation.seconds == pytest.approx(gemm + hardware.step + starts)
            assert simulation.received_nbytes == simulation.messages == 0


@pytest.mark.parametrize("nprocs", [1, 2, 3, 4, 5, 8, 9])
@pytest.mark.parametrize(("transport", "agreements"), [("push", 0), ("message", 1), ("shared", 2), ("mixed", 2)])
def test_a_plan_that_does_nothing_takes_the_time_of_its_agreements(
    nprocs: int, transport: Transport, agreements: int
) -> None:
    """Before and, where ranks read each other's memory, after it; each in ceil(log2(ranks)) rounds of messages."""
    a, d = (MatrixDescriptor.row_wise(8, columns, nprocs) for columns in (0, 8))
    b = MatrixDescriptor.replicated(0, 8, nprocs)
    plan = replace(choose("float64", a, b, d, context=PlanningContext(Topology(), nprocs)), transport=transport)
    near, far = Link(latency=3e-6, bandwidth=1e9, overhead=5e-7), Link(latency=7e-5, bandwidth=1e9, overhead=2e-5)
    for ranks_per_node, link in ((nprocs, near), (max(1, nprocs - 1), far if nprocs > 1 else near)):
        hardware = Hardware("two links", ranks_per_node, near, far, 1e11, 2e11, 2e11, 1e12, 1 << 40)
        simulation = simulate(plan, hardware, range(nprocs))
        assert simulation.received_nbytes == simulation.messages == simulation.compute_seconds == 0
        rounds = math.ceil(math.log2(nprocs))
        assert simulation.seconds == pytest.approx(agreements * rounds * (link.latency + link.overhead), rel=1e-12)


def test_hosts_of_gpus_take_time_to_start_a_call() -> None:
    assert [agreeing(p, "push", NVLINK) for p in (1, 2, 8)] == [NVLINK.step, 4 * NVLINK.step, 4 * NVLINK.step]


def test_the_sender_of_a_panel_first_receives_the_one_before() -> None:
    """A rank that has the panel before already sends it to that sender; then the next one is prepared and sent."""
    link, nbytes = Link(latency=1e-3, bandwidth=1e6, overhead=2e-3), 5000
    hardware = Hardware("slow network", 1, link, link, 1e9, 2e9, 2e9, 1e12, 1 << 40)
    traffic, transfer = Traffic(far=nbytes, far_messages=1), link.latency + link.seconds(nbytes, 1)
    prepared = hardware.panel_seconds(1000, "float64")
    for awaited, delay in ((None, 0.0), (Traffic(), 0.0), (traffic, transfer)):
        assert _end(hardware, Phase(1), Phase(1, before=traffic, factored=1000, awaited=awaited)) == pytest.approx(
            delay + prepared + transfer
        )
    # The sender waits for the operand of a step as this rank does, unless it is requested in the step before.
    steps = Phase(1, before=traffic), Phase(1, before=traffic, factored=1000)
    chained = steps[0], replace(steps[1], awaited=Traffic())
    assert _end(hardware, *chained) == pytest.approx(2 * transfer + prepared)
    assert _end(hardware, *steps) < _end(hardware, *chained)


@pytest.mark.parametrize(("size", "stalled"), [(50, 0.25e-3), (200, 2e-3)])
def test_messages_that_the_core_moves_wait_for_its_gemm(size: int, stalled: float) -> None:
    """Until it ends, or until the next poll."""
    link, traffic = Link(latency=0.0, bandwidth=1e9), Traffic(far=10**6, far_messages=1)
    steps = Phase(1, (size, size, size)), Phase(1, before=traffic, factored=1e7, awaited=Traffic())
    hardware = Hardware("cpu", 1, link, link, 1e9, 2e9, 2e9, 1e12, 1 << 40)
    moving = replace(hardware, far=replace(link, core=1e15))
    assert _end(moving, *steps) - _end(hardware, *steps) == pytest.approx(stalled, rel=1e-5)


def test_waiting_ranks_of_a_node_leave_their_cores() -> None:
    alone = Phase(1, (100, 100, 100), copied=10**6, launch="graph")
    assert _end(LAPTOP, replace(alone, cores=4)) == pytest.approx(_end(LAPTOP, alone) / 4)


def _end(hardware: Hardware, *phases: Phase) -> float:
    """Seconds after which a rank has executed phases."""
    rank = _Rank(hardware, "float64")
    rank.run(phases, 1.0)
    return rank.end


def test_overlap_hides_what_the_gemm_leaves_time_for() -> None:
    link = Link(latency=1e-5, bandwidth=1e9)
    hardware = Hardware("even", 1, link, link, 1e11, 2e11, 2e11, 1e12, 1 << 40)
    kinds = (("row", "row", "row"), ("column", "row", "column"), ("column", "row", "all"))
    for nprocs, layouts in itertools.product((2, 4, 8), kinds):
        plan = replace(big(nprocs, layouts, chunks=4), transport="message")
        together, apart = (replace(plan, overlap=overlap).simulate(hardware) for overlap in (True, False))
        assert together.seconds < apart.seconds
        longer = max(together.compute_seconds, together.communication_seconds)
        parts = together.compute_seconds + together.communication_seconds
        # One piece travels before anything can be multiplied, or after everything has been; that of an all-reduce is a
        # block of every rank's columns.
        pieces = 4 if layouts[2] == "all" else 2 * nprocs
        assert longer <= together.seconds <= longer + parts / pieces + together.copy_seconds + 1e-3
        if layouts[2] != "all":  # finished columns of an all-reduce travel beside GEMMs in both
            assert apart.seconds >= parts * (1 - 1e-12)


def test_a_rank_that_sends_to_all_holds_them_up() -> None:
    n, nprocs = 1024, 8
    spread, lump = (MatrixDescriptor.row_wise(n, n, nprocs, mb=block) for block in (n // nprocs, n))
    plans = [next(one_dimensional("float64", spread, b, spread, nprocs)) for b in (spread, lump)]
    assert all(isinstance(plan, AllGatherGemm) for plan in plans)
    even_, uneven = (replace(plan, transport="message").simulate(FAT_TREE) for plan in plans)
    sent = 8 * n * n * (nprocs - 1)
    assert uneven.seconds >= sent / FAT_TREE.near.bandwidth > 5 * even_.communication_seconds
    assert uneven.communication_seconds >= sent / FAT_TREE.near.bandwidth


def test_panels_of_one_column_wait_for_the_links_of_that_column() -> None:
    """A panel that one process column holds is sent to each of the others, unless these begin with different panels."""
    n, grid, hardware = 4096, Grid(8, 8), replace(FAT_TREE, ranks_per_node=1)
    simulations = {}
    for name, of_a, of_b, rsrc in (("in turn", n // 8, n // 8, 0), ("wait", n // 8, n // 8, 1), ("small", 8, 16, 0)):
        a, b = MatrixDescriptor(n, n, n // 8, of_a, grid), MatrixDescriptor(n, n, of_b, n // 8, grid, rsrc)
        d = MatrixDescriptor(n, n, n // 8, n // 8, grid)
        context = PlanningContext(Topology(), 64, chunks=32)
        plan = context.complete(next(on_grids(general_product("float64", a, b, d, 64))))
        assert isinstance(plan, SummaC)
        assert (plan.transport, plan.is_skewed) == ("message", name == "in turn")
        simulations[name] = plan.simulate(hardware)
    assert len({simulation.received_nbytes for simulation in simulations.values()}) == 1
    assert simulations["wait"].communication_seconds > 6 * simulations["small"].communication_seconds
    assert simulations["in turn"].communication_seconds <= simulations["small"].communication_seconds


@pytest.mark.parametrize("hardware", PRESETS)
@pytest.mark.parametrize("kinds", [("row", "row", "row"), ("column", "row", "column"), ("column", "row", "all")])
def test_a_million_ranks_cost_no_more_than_a_thousand(
    hardware: str, kinds: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many ranks are looked at, and as many steps are taken; the others are powers."""
    counted: Counter[int] = Counter()
    original = _Rank._step

    def counting(self: _Rank, phase: Phase, following: Phase, stretch: float) -> Callable[[Clocks], Clocks]:
        step = original(self, phase, following, stretch)

        def one(clocks: Clocks) -> Clocks:
            counted[nprocs] += 1
            return step(clocks)

        return one

    monkeypatch.setattr(_Rank, "_step", counting)
    evaluated = set()
    for nprocs in (2**10, 2**20):
        plan = big(nprocs, kinds, n=2**22, chunks=4)
        simulation = plan.simulate(hardware)
        evaluated.add(simulation.evaluated)
        assert simulation.received_nbytes == plan.max_received_nbytes
    assert len(evaluated) == 1
    assert max(evaluated) <= 12
    assert 0 < counted[2**20] <= 2 * counted[2**10] < 10_000


def test_powers_are_repetitions() -> None:
    rng = random.Random(1)
    for times in (1, 41, 57, 300):
        weights = [[rng.choice((float("-inf"), rng.random())) for _ in range(4)] for _ in range(4)]
        for i in range(4):
            weights[i][i] = rng.random()

        def step(x: tuple[float, ...], rows: list[list[float]] = weights) -> tuple[float, ...]:
            return tuple(max(w + t for w, t in zip(row, x, strict=True)) for row in rows)

        clocks = tuple(rng.random() for _ in range(4))
        expected = clocks
        for _ in range(times):
            expected = step(expected)
        assert power(step, times, clocks) == pytest.approx(expected, rel=1e-12)


def test_pieces_side_by_side_add_up() -> None:
    for parts, first, second in itertools.product((1, 2, 3, 7), range(12), range(12)):
        pieces = list(even(parts, first, second))
        assert sum(many for many, *_ in pieces) == parts
        assert sum(many * a for many, a, _ in pieces) == first
        assert sum(many * b for many, _, b in pieces) == second


def test_stretches_cover_the_other_ranks_and_hide_no_difference() -> None:
    splits = [Split(9, 2, 8), Split(40, 3, 7, 6, 1), Split(5, 9, 8, 3), Split(0, 1, 8), Split(16, 2, 8, 4)]
    for rank, ranks_per_node, ahead, before in itertools.product(range(8), (1, 3, 8), splits, splits):
        view = View(rank, 8, ranks_per_node, "mixed")
        stretches = list(view.stretches([ahead], [before]))
        distances = [d for start, count in stretches for d in range(start, start + count)]
        assert distances == list(range(1, 8))
        for start, count in stretches:
            alike = {
                (ahead.count((rank + d) % 8), before.count((rank - d) % 8), view.is_near((rank + d) % 8))
                for d in range(start, start + count)
            }
            assert len(alike) == 1


def test_machines_are_known_by_name() -> None:
    assert find_hardware("laptop") is LAPTOP
    with pytest.raises(ArgumentError, match=r"hardware is 'moon'; expected .* one of laptop, fat-tree"):
        big(2).simulate("moon")
    others: tuple[object, ...] = ([], {}, None, 2)  # some of them cannot be looked up
    for other in others:
        with pytest.raises(ArgumentError, match=r"hardware is .*; expected a pblas\.Hardware, one of laptop"):
            find_hardware(other)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "memory_bandwidth", "memory_nbytes"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, "1"])
def test_rates_of_machines_are_positive(name: str, value: object) -> None:
    with pytest.raises(ArgumentError, match=rf"Hardware: {name} is .*; expected a (finite )?number above 0"):
        replace(LAPTOP, **{name: value})  # type: ignore[arg-type]


def test_impossible_hardware_is_refused_when_it_is_made() -> None:
    for count in (0, -2, 1.5, "2"):
        with pytest.raises(ArgumentError, match=r"ranks_per_node is .*; expected an integer from 1 on"):
            replace(LAPTOP, ranks_per_node=count)  # type: ignore[arg-type]
    for name, value in itertools.product(("bandwidth", "core"), (0, -1.0, math.nan)):
        with pytest.raises(ArgumentError, match=rf"Link: {name} is .*; expected a number above 0"):
            replace(LAPTOP.far, **{name: value})
    for name, value in itertools.product(("latency", "overhead"), (-1e-9, math.nan, math.inf)):
        with pytest.raises(ArgumentError, match=rf"Link: {name} is .*; expected a finite number from 0 on"):
            replace(LAPTOP.far, **{name: value})
    with pytest.raises(ArgumentError, match="Hardware: call is -1; expected"):
        replace(LAPTOP, call=-1)
    with pytest.raises(ArgumentError, match=r"Hardware: near is 1000000000\.0; expected a pblas\.Link"):
        replace(LAPTOP, near=1e9)  # type: ignore[arg-type]
    assert replace(LAPTOP.far, latency=0, core=math.inf).latency == 0


def test_results_can_be_pasted_and_read() -> None:
    simulation = big(8).simulate("nvlink")
    assert eval(repr(simulation), {"Simulation": Simulation}) == simulation
    text = str(simulation)
    assert "8 ranks of nvlink" in text
    assert f"{simulation.received_nbytes:,} bytes" in text
    assert "DOES NOT FIT" not in text
    assert "DOES NOT FIT" in str(replace(simulation, memory_limit=1))
    inf = float("inf")
    assert eval(repr(LAPTOP), {"Hardware": Hardware, "Link": Link, "inf": inf}) == LAPTOP


def test_a_plan_for_windows_uses_them_where_they_are() -> None:
    plan = big(8)
    assert plan.simulate(FAT_TREE).messages == 0
    assert plan.simulate(LAPTOP).messages == 6  # three nodes of two other ranks
    assert plan.simulate(NVLINK).messages == 7
    view = View(0, 8, 8, "message")
    assert simulate(replace(plan, transport="message"), FAT_TREE, [0]).messages == sum(
        phase.messages for phase in replace(plan, transport="message").phases(view)
    )


def test_the_command_line_simulates_the_plan_that_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["plan", "--m", "4096", "--n", "4096", "--k", "4096", "--ranks", "16"]
    assert main([*sizes, "--simulate", "fat-tree"]) == 0
    text = capsys.readouterr().out
    planned = plan_matmul(4096, 4096, 4096, nprocs=16, hardware="fat-tree")
    assert text == f"{planned.explain()}\n{planned.plan.simulate('fat-tree')}\n"
    with pytest.raises(SystemExit):
        main([*sizes, "--simulate", "moon"])
    assert "expected a pblas.Hardware, one of laptop, " in capsys.readouterr().err


@pytest.mark.parametrize("seed", range(40))
def test_partial_products_of_a_wider_dtype_count_in_bytes(seed: int) -> None:
    """In plans and in phases; operands and finished sums travel in their own dtype."""
    rng = random.Random(seed)
    nprocs, (m, n, k) = rng.randint(2, 6), rng.choice(SIZES)
    descs = [descriptor(rng, *shape, nprocs) for shape in ((m, k), (k, n), (m, n))]
    for transport, nodes in (("shared", 6), ("message", 1), ("mixed", 2)):
        topology = Topology(nodes, shared=transport != "message")
        narrow, wide = (
            choose("bfloat16", *descs, context=PlanningContext(topology, nprocs, wire=wire)) for wire in ("", "float32")
        )
        for rank in range(nprocs):
            phases = wide.phases(View(rank, nprocs, nodes, wide.transport))
            assert sum(phase.nbytes for phase in phases) == wide.received_nbytes(rank)
            assert narrow.received_nbytes(rank) <= wide.received_nbytes(rank) <= 2 * narrow.received_nbytes(rank)
        if type(wide) is GemmReduceScatter:
            assert wide.max_received_nbytes == 2 * narrow.max_received_nbytes
        assert wide.received_elements(0) == narrow.received_elements(0)
