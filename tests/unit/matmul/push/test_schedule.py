"""Laws of schedules: no order of the streams deadlocks, races or gives a wrong D; broken schedules are caught."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pblas.layouts.split import Split
from pblas.matmul.one_dimensional_plan import AllGatherGemm, GemmAllReduce, GemmReduceScatter
from pblas.matmul.product_plan import Distribution, Product, ProductPlan
from pblas.matmul.push.schedules.operations import (
    MAX_PHASES,
    PARTS,
    RESULTS,
    AllGather,
    Block,
    Burst,
    CopyOut,
    GemmReduce,
    Multiply,
    Op,
    Put,
    Signal,
    Sum,
    Wait,
    receive_order,
    send_order,
)
from pblas.matmul.push.schedules.schedule import schedule
from pblas.plans.algorithm import Algorithm
from tests.model.streams import (
    PACKS,
    SENT,
    SUMS,
    Call,
    Fetch,
    Finding,
    Hasty,
    Keeping,
    Peek,
    Program,
    Pull,
    World,
    call_of,
    explore,
    handshake_of,
    prove,
)


def even(n: int, nprocs: int) -> Split:
    return Split(n, max(1, -(-n // nprocs)), nprocs)


def gather(
    rows: Split, shards: Split, other: int, nprocs: int, algorithm: Algorithm, *, along_k: bool = False
) -> AllGatherGemm:
    """Shards of op(B) along N, or along K, gathered; `other` is its other dimension."""
    n, k = (other, shards.n) if along_k else (shards.n, other)
    spreads = (
        Distribution("rows", rows),
        Distribution("rows" if along_k else "columns", shards),
        Distribution("rows", rows),
    )
    return AllGatherGemm(Product(rows.n, n, k, "float64", nprocs, *spreads), "", transport="push", algorithm=algorithm)


def scatter(m: int, inner: Split, columns: Split, nprocs: int, algorithm: Algorithm) -> GemmReduceScatter:
    spreads = Distribution("columns", inner), Distribution("rows", inner), Distribution("columns", columns)
    product = Product(m, columns.n, inner.n, "float32", nprocs, *spreads)
    return GemmReduceScatter(product, "", transport="push", algorithm=algorithm)


def reduce(m: int, inner: Split, n: int, nprocs: int, algorithm: Algorithm) -> GemmAllReduce:
    spreads = Distribution("columns", inner), Distribution("rows", inner), Distribution("all")
    return GemmAllReduce(
        Product(m, n, inner.n, "bfloat16", nprocs, *spreads), "", transport="push", algorithm=algorithm
    )


@st.composite
def splits(draw: st.DrawFn, nprocs: int, least: int = 0) -> Split:
    """Even, cyclic, with a source, with another first block, on fewer ranks; fewer elements than ranks, or none."""
    n, ranks = draw(st.sampled_from([i for i in (0, 1, 2, 5, 9, 17) if i >= least])), nprocs - draw(st.booleans())
    ranks = max(1, ranks)
    if draw(st.booleans()):
        return even(n, ranks)
    inb = draw(st.sampled_from((None, 1, 3)))
    return Split(n, draw(st.sampled_from((1, 2, 3, 18))), ranks, draw(st.integers(0, ranks - 1)), inb)


@st.composite
def groups(draw: st.DrawFn, nprocs: int) -> tuple[int, ...]:
    """Sizes of groups of shards, the first a rank's own."""
    borders = draw(st.sets(st.integers(2, nprocs - 1))) if nprocs > 2 else set()
    return tuple(b - a for a, b in pairwise(sorted({0, 1, nprocs, *borders})))


@dataclass(frozen=True)
class Drawn:
    """A call, or None for one in which nothing moves. Kernels that wait for peers send packets or set flags."""

    nprocs: int
    plan: ProductPlan | None
    packs: bool = False
    direct: bool = False

    @property
    def call(self) -> Call:
        if self.plan is None:
            return handshake_of(self.nprocs)
        return call_of(self.plan, direct=self.direct, packs=self.packs)


@st.composite
def drawn_calls(draw: st.DrawFn, nprocs: int) -> Drawn:
    kind, m = draw(st.sampled_from(("gather", "scatter", "reduce", "handshake"))), draw(st.sampled_from((0, 1, 3)))
    if kind == "handshake":
        return Drawn(nprocs, None)
    algorithm = Algorithm("copy_engine", draw(groups(nprocs))) if draw(st.booleans()) else Algorithm("sm_push")
    packs = draw(st.booleans())
    if kind == "gather":
        rows, shards, other = draw(splits(nprocs)), draw(splits(nprocs)), draw(st.sampled_from((1, 4)))
        along_k = draw(st.booleans())
        if not along_k and draw(st.booleans()):
            shards = draw(st.sampled_from((shards, even(17 * nprocs, nprocs), Split(40, 20, nprocs))))
            pieces = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
            algorithm = Algorithm("tile_signals", pieces)
        return Drawn(nprocs, gather(rows, shards, other, nprocs, algorithm, along_k=along_k), packs)
    inner = draw(splits(nprocs, 1))
    if kind == "scatter":
        if draw(st.booleans()):
            weights = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
            algorithm = draw(st.sampled_from((Algorithm("tile_signals", weights), Algorithm("fused_stores", weights))))
        columns = draw(st.one_of(splits(nprocs), st.just(even(40 * nprocs, nprocs))))
        return Drawn(nprocs, scatter(m, inner, columns, nprocs, algorithm), packs)
    inner = draw(st.sampled_from((inner, even(4096 * nprocs, nprocs))))  # if it is long, sums may leave earlier
    n = draw(st.sampled_from((0, 5, 8 * nprocs, 61, 8 * nprocs * 3, 230)))
    if draw(st.booleans()):
        return Drawn(nprocs, reduce(1, inner, n, nprocs, Algorithm("one_shot")), packs)
    weights = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    algorithm = Algorithm(draw(st.sampled_from(("copy_engine", "tile_signals", "fused_stores", "two_shot"))), weights)
    m = 1 if algorithm.kind == "two_shot" else m  # two shots deal out elements
    return Drawn(nprocs, reduce(m, inner, n, nprocs, algorithm), packs, draw(st.booleans()))


@st.composite
def sequences(draw: st.DrawFn) -> list[Drawn]:
    """Four calls on one workspace, of two to four different plans."""
    nprocs = draw(st.integers(1, 8))
    calls = draw(st.lists(drawn_calls(nprocs), min_size=2, max_size=4))
    return [*calls, *calls][:4]


@settings(max_examples=80)
@given(sequences())
def test_every_order_of_the_streams_gives_the_right_result(sequence: list[Drawn]) -> None:
    assert prove(World([drawn.call for drawn in sequence])) == []


@settings(max_examples=40)
@given(sequences())
def test_operations_one_at_a_time_in_issue_order_finish(sequence: list[Drawn]) -> None:
    assert prove(World([drawn.call for drawn in sequence], hardware=lambda *_: 0)) == []


def blocks_of(value: object) -> Iterator[Block]:
    """All blocks in an operation, except the shard of an all-gather, which may be empty."""
    if isinstance(value, Block):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from blocks_of(item)
    elif is_dataclass(value):
        for each in fields(value):
            if not (isinstance(value, AllGather) and each.name == "source"):
                yield from blocks_of(getattr(value, each.name))


def awaited_by(op: Op) -> tuple[int, ...]:
    return op.sources if isinstance(op, Wait) else op.awaits if isinstance(op, Burst) else ()


def puts_of(op: Op) -> tuple[Put, ...]:
    return op.puts if isinstance(op, Burst) else (op,) if isinstance(op, Put) else ()


@settings(max_examples=40)
@given(sequences())
def test_operations_are_well_formed_and_every_flag_is_sent_and_awaited(sequence: list[Drawn]) -> None:
    for drawn in sequence:
        signals, awaited = Counter[tuple[int, int, int]](), Counter[tuple[int, int, int]]()
        for rank, program in enumerate(drawn.call.programs):
            for index, op in enumerate(program):
                assert all(i < index and program[i].lane != op.lane for i in op.after), (rank, op)
                assert all(len(block) for block in blocks_of(op)), (rank, op)
                for put in puts_of(op):
                    assert len(put.source) == len(put.target) > 0
                    assert put.peer != rank or isinstance(op, Burst)
                    assert put.target.slot in (-1, rank, SENT + rank, SUMS + rank) or put.target.buffer == "gathered"
                if isinstance(op, Signal | Burst):
                    signals.update((rank, peer, op.phase) for peer in op.peers)
                if isinstance(op, Wait | Burst):
                    awaited.update((source, rank, op.phase) for source in awaited_by(op))
        phases, ranks = {phase for *_, phase in signals}, range(drawn.nprocs)
        assert phases <= {*range(MAX_PHASES), PACKS, PACKS + 1}
        assert drawn.nprocs == 1 or phases & {PARTS, PACKS}
        assert signals == awaited
        pairs = {(a, b) for a in ranks for b in ranks if a != b}
        assert {(a, b) for a, b, phase in signals if phase in (PARTS, PACKS)} == pairs
        if (
            drawn.plan is None or drawn.plan.algorithm is None or drawn.plan.algorithm.kind != "tile_signals"
        ):  # a few of them have pieces
            assert set(signals) == {(*pair, phase) for pair in pairs for phase in phases}
        assert set(signals.values()) <= {1}


def elements(plan: ProductPlan | None, block: Block) -> int:
    """Elements of lines that move."""
    assert plan is not None
    product = plan.oriented
    if not isinstance(plan, AllGatherGemm):
        return len(block) * product.m
    return len(block) * (product.n if plan.along_k else product.k)


@settings(max_examples=100)
@given(sequences())
def test_a_plan_receives_what_its_schedules_put_and_pull(sequence: list[Drawn]) -> None:
    for drawn in sequence:
        plan, arrived = drawn.plan, Counter[int]()
        for rank, program in enumerate(drawn.call.programs):
            for put in (put for op in program for put in puts_of(op) if put.peer != rank):
                arrived[put.peer] += elements(plan, put.target)
            for op in program:
                if isinstance(op, Fetch):
                    parts = zip(op.parts, op.ranks, strict=True)
                    arrived[rank] += sum(elements(plan, part) for part, r in parts if r != rank)
                if isinstance(op, Pull):
                    arrived[rank] += elements(plan, op.source)
        for rank in range(drawn.nprocs):
            received = 0 if plan is None else plan.received_nbytes(rank) // plan.product.itemsize
            assert arrived[rank] == received, (plan, rank)


@pytest.mark.parametrize("nprocs", range(1, 17))
def test_every_step_is_a_permutation_and_arrives_when_it_is_expected(nprocs: int) -> None:
    orders = [list(send_order(rank, nprocs)) for rank in range(nprocs)]
    for rank, order in enumerate(orders):
        assert sorted([*order, rank]) == list(range(nprocs))
        assert [orders[source].index(rank) for source in receive_order(rank, nprocs)] == list(range(nprocs - 1))
    for step in range(nprocs - 1):
        assert {order[step] for order in orders} == set(range(nprocs))


@pytest.mark.parametrize("nprocs", [2, 4, 8, 16])
def test_groups_that_double_are_contiguous_and_reversed_where_products_are_sent(nprocs: int) -> None:
    sizes = (1, *(2**i for i in range(nprocs.bit_length() - 1)))
    rows, n = even(nprocs, nprocs), 2 * nprocs
    for rank in range(nprocs):
        order = [rank, *receive_order(rank, nprocs)]
        parts = [sorted(order[a:b]) for a, b in pairwise(accumulate(sizes, initial=0))]
        assert all(part == list(range(part[0], part[0] + len(part))) for part in parts)
        assert all(part[0] % len(part) == 0 for part in parts)
        gathered = schedule(gather(rows, even(n, nprocs), 4, nprocs, Algorithm("copy_engine", sizes)), rank)
        multiplied = [op.operand for op in gathered if isinstance(op, Multiply) and op.operand]
        assert [(block.buffer, len(block)) for block in multiplied] == [
            ("shard" if i == 0 else "gathered", 2 * size) for i, size in enumerate(sizes)
        ]
        assert [block.start for block in multiplied[1:]] == [2 * part[0] for part in parts[1:]]
        scattered = schedule(scatter(3, rows, even(n, nprocs), nprocs, Algorithm("copy_engine", sizes)), rank)
        targets = [op.target for op in scattered if isinstance(op, Multiply) and op.target]
        assert [(t.start, t.stop) for t in targets] == [(2 * p[0], 2 * p[-1] + 2) for p in reversed(parts)]


@pytest.mark.parametrize(("nprocs", "k", "soon"), [(4, 4096, 3), (8, 4096, 2), (8, 2048, 7), (16, 4096, 4)])
def test_own_lines_come_after_some_parts_of_the_next_piece(nprocs: int, k: int, soon: int) -> None:
    """They are issued when their terms may have arrived, unless the links are the bottleneck."""
    count, n = 4, 4 * 256 * nprocs
    for rank in range(nprocs):
        ops = schedule(reduce(1, even(k * nprocs, nprocs), n, nprocs, Algorithm("tile_signals", (1,) * count)), rank)
        strips = next(op for op in ops if isinstance(op, GemmReduce)).strips
        own = [i for i, strip in enumerate(strips) if strip.target is not None]
        assert len(strips) == nprocs * count
        assert own == [nprocs - 1 + i * nprocs + soon for i in range(count - 1)] + [len(strips) - 1]


@pytest.mark.parametrize("nprocs", [2, 3, 8])
def test_stored_sums_come_after_two_pieces(nprocs: int) -> None:
    """Only the data of the pieces up to the second next one is sent before them; they go to every peer."""
    count, peers = 4, nprocs - 1
    for rank in range(nprocs):
        algorithm, lines = Algorithm("fused_stores", (1,) * count), count * 8 * nprocs
        ops = schedule(reduce(1, even(16 * nprocs, nprocs), lines, nprocs, algorithm), rank)
        strips = next(op for op in ops if isinstance(op, GemmReduce)).strips
        sent = [strip.phase // 2 for strip in strips if strip.target is None]
        assert sent == [i for i in range(count) for _ in range(peers)]
        before = [sum(other.target is None for other in strips[:i]) for i, own in enumerate(strips) if own.target]
        assert before == [3 * peers, 4 * peers, 4 * peers, 4 * peers]
        for strip in strips:
            signalled = {put.peer for put in strip.puts}
            assert len(signalled) == len(strip.puts) == (peers if strip.target else 1)
            assert rank not in signalled
            assert strip.signal_phase == strip.phase + (strip.target is not None)


# Schedules that are broken on purpose.


def examples(nprocs: int) -> dict[str, Call]:
    """Each kind of plan on each algorithm, with something to move between all ranks."""
    rows, shards, n = even(nprocs, nprocs), even(2 * nprocs, nprocs), 16 * nprocs
    one_each, some = Algorithm("copy_engine", (1,) * nprocs), Algorithm("copy_engine", (1, nprocs - 1))

    def all_reduce(algorithm: Algorithm, *, pieces: int = 1, direct: bool = False, packs: bool = False) -> Call:
        return call_of(reduce(1, rows, pieces * n, nprocs, algorithm), direct=direct, packs=packs)

    return {
        "gather": call_of(gather(rows, shards, 4, nprocs, one_each)),
        "gather along k": call_of(gather(rows, shards, 4, nprocs, some, along_k=True)),
        "gather by a kernel": call_of(gather(rows, shards, 4, nprocs, Algorithm("sm_push"))),
        "gather for tiles": call_of(gather(rows, even(n, nprocs), 4, nprocs, Algorithm("tile_signals", (2,)))),
        "scatter": call_of(scatter(2, rows, shards, nprocs, one_each)),
        "scatter in two groups": call_of(scatter(2, rows, shards, nprocs, some)),
        "scatter from tiles": call_of(scatter(2, rows, shards, nprocs, Algorithm("tile_signals"))),
        "scatter from tiles in pieces": call_of(
            scatter(2, rows, even(n, nprocs), nprocs, Algorithm("tile_signals", (1, 1)))
        ),
        "scatter by stores": call_of(scatter(2, rows, shards, nprocs, Algorithm("fused_stores"))),
        "scatter by a kernel": call_of(scatter(2, rows, shards, nprocs, Algorithm("sm_push"))),
        "reduce": all_reduce(Algorithm("copy_engine", (1, 1)), pieces=2),
        "reduce from tiles": all_reduce(Algorithm("tile_signals")),
        "reduce from tiles in pieces": all_reduce(Algorithm("tile_signals", (1, 1)), pieces=2),
        "reduce by stores": all_reduce(Algorithm("fused_stores")),
        "reduce by stores in pieces": all_reduce(Algorithm("fused_stores", (1, 1)), pieces=2),
        "reduce by stores, direct": all_reduce(Algorithm("fused_stores"), direct=True),
        "reduce and two-shot": all_reduce(Algorithm("two_shot", (1, 1)), pieces=2),
        "reduce and two-shot, direct": all_reduce(Algorithm("two_shot", (1, 1)), pieces=2, direct=True),
        "two-shot, direct": all_reduce(Algorithm("two_shot"), direct=True),
        "one_shot": all_reduce(Algorithm("one_shot")),
        "two_shot": all_reduce(Algorithm("two_shot")),
        "gather by packs": call_of(gather(rows, shards, 4, nprocs, Algorithm("sm_push")), packs=True),
        "scatter by packs": call_of(scatter(2, rows, shards, nprocs, Algorithm("sm_push")), packs=True),
        "one-shot by packs": all_reduce(Algorithm("one_shot"), packs=True),
        "two-shot by packs": all_reduce(Algorithm("two_shot"), packs=True),
    }


def swapped(program: Program, i: int) -> Program:
    """Operations i and i + 1 of one lane in the other order."""
    place = {i: i + 1, i + 1: i}
    ops = [replace(op, after=tuple(place.get(a, a) for a in op.after)) for op in program]
    first, second = ops[i + 1], ops[i]
    if isinstance(second, Put):  # the pair still waits for the same operations
        first, second = replace(first, after=second.after), replace(second, after=())
    ops[i : i + 2] = [first, second]
    return tuple(ops)


def with_op(program: Program, i: int, op: Op) -> Program:
    """The schedule with operation i replaced."""
    return (*program[:i], op, *program[i + 1 :])


def nothing(op: Op) -> Op:
    """An operation that replaces `op` and does nothing."""
    return Wait(op.lane, 0, (), after=op.after)


def flag_before_data(program: Program) -> Iterator[Program]:
    for i, op in enumerate(program):
        following = program[i + 1] if i + 1 < len(program) else op
        if isinstance(op, Put) and isinstance(following, Signal) and op.peer in following.peers:
            yield swapped(program, i)
        if isinstance(op, Burst) and any(put.peer in op.peers for put in op.puts):
            yield with_op(program, i, Hasty(op.lane, op.puts, op.phase, op.peers, op.awaits, after=op.after))


def awaiting(op: Op, sources: tuple[int, ...]) -> Op:
    """An operation that awaits other flags."""
    if isinstance(op, Burst):
        return replace(op, awaits=sources)
    assert isinstance(op, Wait)
    return Wait(op.lane, op.phase, sources, after=op.after)


def one_wait_dropped(program: Program) -> Iterator[Program]:
    for i, op in enumerate(program):
        for source in awaited_by(op):
            yield with_op(program, i, awaiting(op, tuple(s for s in awaited_by(op) if s != source)))


def all_waits_of_a_step_dropped(program: Program) -> Iterator[Program]:
    for i, op in enumerate(program):
        if awaited_by(op):
            yield with_op(program, i, awaiting(op, ()))


def reset_dropped(program: Program) -> Iterator[Program]:
    for i, op in enumerate(program):
        if isinstance(op, Wait) and op.sources:
            yield with_op(program, i, Peek(op.lane, op.phase, op.sources, after=op.after))
        if isinstance(op, Burst) and op.awaits:
            yield with_op(program, i, Keeping(op.lane, op.puts, op.phase, op.peers, op.awaits, after=op.after))


def signal_dropped(program: Program) -> Iterator[Program]:
    for i, op in enumerate(program):
        if isinstance(op, Signal | Burst) and op.peers:
            yield with_op(program, i, replace(op, peers=op.peers[1:]))


def edge_dropped(program: Program) -> Iterator[Program]:
    for i, op in enumerate(program):
        if isinstance(op, Put | Sum | Burst) and op.after:
            yield with_op(program, i, replace(op, after=()))


def used_before_awaited(program: Program) -> Iterator[Program]:
    for i, (op, following) in enumerate(pairwise(program)):
        uses = isinstance(following, Sum | CopyOut) or (isinstance(following, Multiply) and following.operand)
        if awaited_by(op) and uses and op.lane == following.lane:
            yield swapped(program, i)


def sent_before_made(program: Program) -> Iterator[Program]:
    for i, (op, following) in enumerate(pairwise(program)):
        sent = isinstance(following, Burst | Put) or (
            isinstance(following, CopyOut) and following.target.buffer == "results"
        )
        if isinstance(op, Sum | Multiply | CopyOut) and sent and op.lane == following.lane:
            yield swapped(program, i)


Mutation = Callable[[Program], Iterator[Program]]
UNREADY = {"race", "read before write"}
GATHERS = {name for name in examples(2) if name.startswith("gather")}
BY_STORES = {name for name in examples(2) if "by stores" in name}
ALONE_ON_A_LANE = {"scatter by a kernel", "scatter by packs"} | BY_STORES
BURSTS = {name for name in examples(2) if "shot" in name}
FROM_TILES = {name for name in examples(2) if name.startswith("reduce from tiles")}
TWO_LANES = {"reduce and two-shot", "reduce and two-shot, direct"}
PULLS = {"two_shot"}
ALONE = {
    "two-shot, direct"
}  # the workspace has its partial product only, and all ranks have read it when the call ends
MEETS_TWICE = {
    "two-shot by packs"
}  # a rank with all sums of a call knows that all ranks have read the data sent to them
MUTATIONS: list[tuple[Mutation, set[str], set[str]]] = [
    # A defect, the ways in which it shows (at least one of them), and the examples in which it cannot be made.
    (flag_before_data, UNREADY, PULLS),
    (one_wait_dropped, UNREADY, set()),
    (all_waits_of_a_step_dropped, UNREADY, set()),
    (reset_dropped, {"flag left up"}, set()),
    (signal_dropped, {"deadlock"}, set()),
    (edge_dropped, UNREADY, GATHERS | BURSTS - TWO_LANES | ALONE_ON_A_LANE),
    (used_before_awaited, UNREADY, set()),
    (sent_before_made, UNREADY, set(examples(2)) - BURSTS - ALONE_ON_A_LANE - FROM_TILES),
]  # fmt: skip


def kinds(findings: list[Finding]) -> set[str]:
    return {finding.kind for finding in findings}


@pytest.mark.parametrize(("mutation", "shows", "without"), MUTATIONS, ids=[m.__name__ for m, *_ in MUTATIONS])
@pytest.mark.parametrize("nprocs", [2, 3])
def test_broken_schedules_are_caught(mutation: Mutation, shows: set[str], without: set[str], nprocs: int) -> None:
    for name, call in examples(nprocs).items():
        seen = set[str]()
        for rank in {0, nprocs - 1}:
            for program in mutation(call.programs[rank]):
                world = World([handshake_of(nprocs), call.mutated(rank, program), handshake_of(nprocs), call])
                findings = prove(world)
                assert findings, (name, rank, program)
                if nprocs == 2:
                    assert bool(explore(world)[0]) == bool(findings), (name, rank, program)
                seen |= kinds(findings)
        assert bool(seen & shows) == (name not in without), (name, seen)


@pytest.mark.parametrize("nprocs", [2, 3, 4])
def test_one_copy_of_the_workspace_is_too_few(nprocs: int) -> None:
    by_name = examples(nprocs)
    for name in by_name.keys() - ALONE - (PULLS if nprocs == 2 else set()):  # of two, one writes there when it has read
        calls = again(name, by_name[name], by_name["gather"])
        for parity, kind in ((one_buffer, "race"), (one_flag, "lost flag"))[: 1 if name in MEETS_TWICE else 2]:
            world = World(calls, parity=parity)
            assert kind in kinds(prove(world)), name
            if nprocs == 2:
                assert kinds(explore(world)[0]) == {kind}, name


def again(name: str, call: Call, other: Call) -> list[Call]:
    """Four calls. Those between two that send packs tell that the first is over, whatever copies there are of these."""
    return [call] * 4 if name.endswith("by packs") else [call, other] * 2


def one_buffer(call: int) -> tuple[int, int]:
    return 0, call & 1


def one_flag(call: int) -> tuple[int, int]:
    return call & 1, 0


@pytest.mark.parametrize("nprocs", [2, 3])
def test_sound_schedules_pass_state_by_state(nprocs: int) -> None:
    """The search visits states only: it assumes neither the pairing of flags nor a partial order."""
    for name, call in examples(nprocs).items():
        if nprocs == 3 and len(call.programs[0]) > 12:
            continue  # two pieces on three ranks have millions of states
        for sequence in ([call] * 3, [handshake_of(nprocs), call, handshake_of(nprocs), call]):
            world = World(sequence)
            assert prove(world) == [], name
            for eager in (True, False) if nprocs == 2 else (True,):
                findings, states = explore(world, eager=eager)
                assert findings == [], name
                assert states > 2 * len(world.tasks), name


def test_plans_that_alternate_pass_state_by_state() -> None:
    calls = list(examples(2).values())
    for first, second in zip(calls, [*calls[3:], *calls[:3]], strict=True):
        assert explore(World([first, second, first, second]), eager=True)[0] == []


def one_of_each(call: int) -> tuple[int, int]:
    """One copy of the workspace and one set of flags."""
    return 0 * call, 0


def pulled_too_late(findings: list[Finding]) -> list[Finding]:
    """Partial products that are overwritten, by the GEMM of the next call, while a peer still reads them."""
    return [f for f in findings if f.kind == "race" and "Fetch(" in f.text and "Multiply(" in f.text]


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("nprocs", [2, 3, 4])
def test_partial_products_are_not_overwritten_while_peers_read_them(nprocs: int, direct: bool) -> None:
    """The second meeting alone sees to it, and the two copies of the workspace alone do; without both it is wrong.

    Sums that peers read, after that meeting, are kept by the two copies alone.
    """
    call = examples(nprocs)["two-shot, direct" if direct else "two_shot"]
    assert kinds(prove(World([call] * 4, parity=one_of_each))) == (set() if direct else {"race"})
    assert not pulled_too_late(prove(World([call] * 4, parity=one_of_each)))
    assert prove(World([call, examples(nprocs)["gather"]] * 2, parity=one_of_each))
    careless = call.mutated(0, tuple(awaiting(op, ()) if is_second_meeting(op) else op for op in call.programs[0]))
    for parity in (one_of_each, one_buffer):
        assert pulled_too_late(prove(World([careless] * 4, parity=parity)))
    apart = prove(World([careless] * 4))
    assert kinds(apart) & ({"race"} if direct else {"read before write"}), "of sums that are not there yet"
    assert not pulled_too_late(apart)
    if nprocs == 2:
        assert bool(explore(World([call] * 3, parity=one_of_each), eager=True)[0]) == (not direct)
        assert explore(World([careless] * 3, parity=one_of_each), eager=True)[0]


def is_second_meeting(op: Op) -> bool:
    return isinstance(op, Burst) and op.phase == RESULTS


@pytest.mark.parametrize("nprocs", [2, 3, 4])
def test_partial_products_are_read_when_they_are_there(nprocs: int) -> None:
    """The first meeting prevents it: without that meeting, or with a kernel beside the GEMM, a peer reads too early."""
    call = examples(nprocs)["two_shot"]
    hasty = [
        tuple(awaiting(op, ()) if isinstance(op, Burst) and op.phase == PARTS else op for op in call.programs[0]),
        tuple(replace(op, lane="copy", after=()) if not isinstance(op, Multiply) else op for op in call.programs[0]),
    ]
    for program in hasty:
        findings = prove(World([call.mutated(0, program)] * 2))
        assert any(f.kind == "read before write" and "Fetch(" in f.text for f in findings)


@pytest.mark.parametrize("along_k", [False, True])
@pytest.mark.parametrize("nprocs", [2, 3, 5])
def test_flags_of_empty_shards_cannot_be_saved(nprocs: int, along_k: bool) -> None:
    """Rank 0 has all sums, so no peer would tell it that its data of two calls ago may be overwritten."""
    algorithm = Algorithm("copy_engine", (1,) * nprocs)
    call = call_of(gather(even(nprocs, nprocs), Split(4, 4, nprocs), 3, nprocs, algorithm, along_k=along_k))
    unsent = call
    for rank in range(1, nprocs):
        silent = tuple(nothing(op) if isinstance(op, Signal) else op for op in call.programs[rank])
        unsent = unsent.mutated(rank, silent)
    assert "deadlock" in kinds(prove(World([call, unsent, call])))
    assert kinds(explore(World([call, unsent, call]), eager=True)[0]) == {"deadlock"}
    unheard = unsent
    for rank, program in enumerate(unsent.programs):
        saved = (replace(op, sources=tuple({0} & {*op.sources})) if isinstance(op, Wait) else op for op in program)
        unheard = unheard.mutated(rank, tuple(saved))
    assert prove(World([unheard, call, unheard])) == []
    assert kinds(prove(World([unheard] * 3))) == {"race", "lost flag"}
    if nprocs == 2:
        assert explore(World([unheard] * 3))[0]
