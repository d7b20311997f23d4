"""A model of the streams: what the schedules of all ranks do to memory and flags, in every order that streams allow.

Calls of one queue run one after the other on one workspace; calls of other queues run concurrently on others. In each
call, a rank's lanes fork from its user's stream and join it again; before a call the user writes the operands and D,
after it the user reads D, and C is D itself. Operations become *tasks*, which take time: a task reads and writes
during all of it. Between two calls every block of a workspace may be anywhere in it, so that tasks of different
calls conflict wherever in one copy of the workspace they reach.

Kernels that wait for peers may send LL packets, which carry their own flags. Packets have slots of their own. The two
copies of the slots alternate from one call that sends packets to the next such call. In this model a flag of a separate
phase stands for the flags in the packets, and the reader of the packets clears it.

Two checkers examine the same tasks:

* `prove`: happens-before. Each flag is set once and awaited once per use, so that all orders synchronise the same way.
  One partial order stands for them all: conflicting tasks must be ordered in it, and reads must follow the writes of
  their call.
* `explore`: every order, state by state, for few tasks. It knows nothing of happens-before.

`prove` then computes D with symbols in place of numbers.
"""

from __future__ import annotations

from bisect import bisect_left as bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Generic, Literal, TypeVar

from pblas.backends.engine_limits import LANES, Lane
from pblas.matmul.one_dimensional_plan import AllGatherGemm, GemmAllReduce, GemmReduceScatter
from pblas.matmul.product_plan import ProductPlan
from pblas.matmul.push.schedules.operations import (
    MAX_PHASES,
    PARTS,
    AllGather,
    AllReduce,
    Block,
    Burst,
    CopyOut,
    GemmAsArriving,
    GemmReduce,
    Get,
    Gets,
    Multiply,
    Op,
    Put,
    ReduceScatter,
    Signal,
    Strip,
    Sum,
    Wait,
    WaitTile,
    receive_order,
    send_order,
    starts,
)
from pblas.matmul.push.schedules.schedule import handshake, schedule
from pblas.plans.partition import flat_share

Kind = Literal["deadlock", "race", "read before write", "lost flag", "flag left up", "wrong result"]
Program = tuple[Op, ...]
Memory = tuple[int, str, int, int]
"""Rank, buffer, copy of the workspace or number of the user's memory, slot."""
Cell = tuple[Memory, int]
"""A part of a memory, by its number."""
Flag = tuple[int, int, int, int]
"""Rank that waits, set of flags, phase, rank that sets it."""
Term = tuple[str, int, int, int]
"""The symbol of a number: kind, call, rank, line."""
Value = tuple[Term, ...]
"""A sum, in the order of its terms."""
Place = TypeVar("Place")
WORKSPACE = ("gathered", "pulled", "slots", "results")
PACKS = MAX_PHASES
"""The first phase of LL packets: shards, then their sums. All phases of flags in workspaces are lower."""
SENT, SUMS = 64, 128
"""The slots for LL packets: SENT + r for the data of rank r, SUMS + r for its sums."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An error in some schedules."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """One call: the programs of all ranks, and the plan that they carry out; None is a call that moves nothing."""

    plan: ProductPlan | None
    programs: tuple[Program, ...]

    def mutated(self, rank: int, program: Program) -> Call:
        """The same with another program on one rank."""
        return replace(self, programs=(*self.programs[:rank], program, *self.programs[rank + 1 :]))


@dataclass(frozen=True, slots=True)
class Peek(Wait):
    """An Await that forgets to reset."""


@dataclass(frozen=True, slots=True)
class Keeping(Burst):
    """A Burst that forgets to reset."""


@dataclass(frozen=True, slots=True)
class Hasty(Burst):
    """A Burst whose flags come before its data."""


@dataclass(frozen=True, slots=True)
class Fetch(Sum):
    """A Sum with each part in the workspace of one of these ranks."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pull(CopyOut):
    """A CopyOut from the workspace of another rank."""

    rank: int


@dataclass(frozen=True, slots=True)
class Span:
    """Lines of a memory."""

    memory: Memory
    start: int
    stop: int


class Contents:
    """The symbols in all memories."""

    def __init__(self) -> None:
        self._lines: defaultdict[Memory, dict[int, Value]] = defaultdict(dict)
        self.findings: list[Finding] = []

    def read(self, span: Span) -> list[Value]:
        """The values of some lines; nothing where none was ever written."""
        lines = self._lines[span.memory]
        return [lines.get(i, ()) for i in range(span.start, span.stop)]

    def write(self, span: Span, values: Iterable[Value]) -> None:
        """Overwrite some lines."""
        self._lines[span.memory].update(zip(range(span.start, span.stop), values, strict=True))


@dataclass(slots=True)
class Task:
    """A part of an operation, or of the user's stream around a call.

    Args:
        name: for findings, in parts: few are ever read.
        call: number of the call.
        before: tasks that must have ended.
        reads: lines that it reads as long as it runs, which this call must have written.
        writes: lines that it writes, or updates, as long as it runs.
        flags_set: flags that it sets; it takes no time then.
        flags_awaited: flags without which it does not start; it takes no time then.
        resets: it resets those flags.
        effect: its effect on the contents.
    """

    name: tuple[object, ...]
    call: int
    before: list[int]
    reads: tuple[Span, ...] = ()
    writes: tuple[Span, ...] = ()
    flags_set: tuple[Flag, ...] = ()
    flags_awaited: tuple[Flag, ...] = ()
    resets: bool = True
    effect: Callable[[Contents], None] | None = None

    def __str__(self) -> str:
        return "".join(map(str, self.name))


def call_of(plan: ProductPlan, *, direct: bool = False, packs: bool = False) -> Call:
    """The call of a plan, with kernels that wait for peers taken apart into their steps.

    Args:
        plan: with an algorithm.
        direct: D is symmetric memory.
        packs: such kernels send LL packets, as on GPUs; otherwise they put into workspaces and set flags, or pull.
    """
    ranks = range(plan.product.nprocs)
    return Call(plan, tuple(_unfolded(plan, rank, schedule(plan, rank), direct, packs) for rank in ranks))


def handshake_of(nprocs: int) -> Call:
    """A call in which nothing moves."""
    return Call(None, tuple(handshake(rank, nprocs) for rank in range(nprocs)))


def _unfolded(plan: ProductPlan, rank: int, program: Program, direct: bool, packs: bool) -> Program:
    """A program in which bursts, waits and sums stand for the steps of kernels that wait for peers."""
    done, last = list[Op](), list[int]()
    for op in program:
        after, steps = tuple(last[i] for i in op.after), [_into_d(op) if direct else op]
        if isinstance(op, AllReduce | ReduceScatter):
            assert isinstance(plan, GemmReduceScatter)
            steps = list(_steps(plan, rank, op, direct, packs))
        if isinstance(op, AllGather):
            assert isinstance(plan, AllGatherGemm)
            steps = list(_shards_to_all(plan, rank, op, packs))
        if isinstance(op, Get):
            steps = [_pull(op)]
        if isinstance(op, Gets):
            steps = [_pull(get) for get in op.gets]
        if isinstance(op, GemmAsArriving):
            steps = list(_arrivals(op))
        if isinstance(op, GemmReduce):
            steps = [_into_d(step) if direct else step for step in _reduction(op, len(done))]
        done += [replace(steps[0], after=after), *steps[1:]]
        last.append(len(done) - 1)
    return tuple(done)


def _into_d(op: Op) -> Op:
    """Sums go straight to D of the peers, from where nothing has to be copied."""
    if isinstance(op, Burst):
        return replace(op, puts=tuple(_lands_in_d(put) for put in op.puts))
    if isinstance(op, Put):
        return _lands_in_d(op)
    lands = isinstance(op, CopyOut) and not isinstance(op, Pull) and op.source.buffer == "results"
    return Wait(op.lane, 0, (), after=op.after) if lands else op


def _lands_in_d(put: Put) -> Put:
    return replace(put, target=replace(put.target, buffer="result")) if put.target.buffer == "results" else put


def _shards_to_all(plan: AllGatherGemm, rank: int, kernel: AllGather, packs: bool) -> Iterator[Op]:
    """Each rank puts its shard where it belongs, on this one too; or sends it, and takes all to where they belong."""
    nprocs, lane, shard = plan.product.nprocs, kernel.lane, kernel.source
    peers, others = tuple(send_order(rank, nprocs)), tuple(receive_order(rank, nprocs))
    places = [Block("gathered", *lines) for lines in pairwise(starts([plan.shards.count(r) for r in range(nprocs)]))]
    if not packs:
        puts = [Put(lane, peer, shard, places[rank]) for peer in (*peers, rank) if len(shard)]
        yield Burst(lane, tuple(puts), PARTS, peers, others)
        return
    yield _sending(lane, peers, others, [shard] * nprocs, SENT + rank)
    sources = [shard if r == rank else Block("slots", 0, len(place), SENT + r) for r, place in enumerate(places)]
    for r in (*others, rank):
        if len(sources[r]):
            yield CopyOut(lane, sources[r], places[r])


def _sending(lane: Lane, peers: tuple[int, ...], others: tuple[int, ...], blocks: Sequence[Block], slot: int) -> Burst:
    """Send each peer its block in LL packets (the first one always), and wait for the packets of the others."""
    puts = [Put(lane, p, blocks[p], Block("slots", 0, len(blocks[p]), slot)) for p in peers if len(blocks[p])]
    return Burst(lane, tuple(puts), PACKS + (slot >= SUMS), peers, others)


def _arrivals(kernel: GemmAsArriving) -> Iterator[Op]:
    """A wait, if there is something to wait for, and a GEMM for each part."""
    for arrival in kernel.arrivals:
        if arrival.source >= 0:
            yield Wait(kernel.lane, arrival.phase, (arrival.source,))
        yield Multiply(kernel.lane, operand=arrival.operand)


def _reduction(kernel: GemmReduce, index: int) -> Iterator[Op]:
    """From operation `index` on: for each strip its GEMM, the sum of own lines, and later operations of other lanes."""
    steps, made, after = list[Op](), 0, tuple[int, ...]()
    for op in (*kernel.concurrent, WaitTile(kernel.lane, len(kernel.strips) - 1)):
        if isinstance(op, WaitTile):
            steps += [step for strip in kernel.strips[made : op.number + 1] for step in _strip(kernel.lane, strip)]
            made, after = max(made, op.number + 1), (index + len(steps) - 1,)
        else:
            steps.append(replace(_pull(op) if isinstance(op, Get) else op, after=after))
            after = ()
    yield from steps


def _pull(get: Get) -> Op:
    return Pull(get.lane, get.source, get.target, get.peer)


def _strip(lane: Lane, strip: Strip) -> Iterator[Op]:
    yield Multiply(lane, target=strip.lines)
    if strip.target is not None:
        if strip.parts:
            yield Wait(lane, strip.phase, tuple(part.slot for part in strip.parts))
        yield Sum(lane, strip.parts, strip.lines, strip.target)
        if strip.published is not None:
            yield CopyOut(lane, strip.target, strip.published)
    for put in strip.puts:
        yield put
        yield Signal(lane, (put.peer,), strip.signal_phase)


def _steps(
    plan: GemmReduceScatter, rank: int, kernel: AllReduce | ReduceScatter, direct: bool, packs: bool
) -> Iterator[Op]:
    """The steps of a reduction kernel in order; `rank` sends if it has a part of K."""
    nprocs, lane = plan.product.nprocs, kernel.lane
    peers, others = tuple(send_order(rank, nprocs)), tuple(receive_order(rank, nprocs))
    shares = [_flat(kernel.target, r, nprocs) for r in range(nprocs)]
    if isinstance(kernel, ReduceScatter):
        first = starts([plan.shards.count(r) for r in range(nprocs)])
        parts, target, owner = [Block("partial", *lines) for lines in pairwise(first)], kernel.target, rank
    elif kernel.shots == 1:  # every rank adds for itself, in the order of owner 0, so that all come to the same bits
        parts, target, owner = [kernel.source] * nprocs, kernel.target, 0
    elif packs:
        parts = [Block(kernel.source.buffer, *share) for share in shares]
        target, owner = Block("result", *shares[rank]), rank
    else:
        yield from _two_shots(plan, rank, kernel, direct)
        return
    burst, first_slot = _sending(lane, peers, others, parts, SENT + rank), SENT
    if not packs:
        puts = tuple(replace(put, target=replace(put.target, slot=rank)) for put in burst.puts)
        burst, first_slot = replace(burst, puts=puts, phase=PARTS), 0
    yield burst if plan.contributes(rank) else replace(burst, puts=())
    if len(target):
        slots = [Block("slots", 0, len(target), first_slot + r) for r in range(nprocs)]
        terms = (parts[rank] if r == rank else slots[r] for r in _order(plan, owner))
        yield Sum(lane, tuple(terms), None, target)
    if isinstance(kernel, AllReduce) and kernel.shots == 2:
        yield _sending(lane, peers, others, [target] * nprocs, SUMS + rank)
        for r in others:
            share = Block("result", *shares[r])
            if len(share):
                yield CopyOut(lane, Block("slots", 0, len(share), SUMS + r), share)


def _two_shots(plan: GemmReduceScatter, rank: int, kernel: AllReduce, direct: bool) -> Iterator[Op]:
    """All meet, each adds its share of all partial products; all meet again when the sums are there.

    They are in D of all ranks, if peers can write there; otherwise each rank reads those of the others.
    """
    nprocs, lane = plan.product.nprocs, kernel.lane
    peers, others = tuple(send_order(rank, nprocs)), tuple(receive_order(rank, nprocs))
    shares, ranks = [_flat(kernel.target, owner, nprocs) for owner in range(nprocs)], tuple(_order(plan, rank))
    part, own = Block(kernel.source.buffer, *shares[rank]), Block("result", *shares[rank])
    yield Burst(lane, (), kernel.phase, peers, others)
    if len(own):
        yield Fetch(lane, (part,) * len(ranks), None, own, ranks)
    if direct:
        puts = [Put(lane, peer, own, own) for peer in peers if len(own)]
        yield Burst(lane, tuple(puts), kernel.phase + 1, peers, others)
        return
    if len(own):
        yield CopyOut(lane, own, Block("results", own.start, own.stop))
    yield Burst(lane, (), kernel.phase + 1, peers, others)
    for owner in others:
        start, stop = shares[owner]
        if start < stop:
            yield Pull(lane, Block("results", start, stop), Block("result", start, stop), owner)


def _order(plan: GemmReduceScatter, owner: int) -> Iterator[int]:
    """The ranks whose partial products make the part of an owner, in the order of the additions."""
    if plan.algorithm is not None and plan.algorithm.is_one_kernel:  # as they arrive
        yield from (source for source in receive_order(owner, plan.product.nprocs) if plan.contributes(source))
    else:
        yield from plan.sources(owner)
    if plan.contributes(owner):
        yield owner


def _flat(lines: Block, owner: int, nprocs: int) -> tuple[int, int]:
    """The lines that `owner` sums in two shots, where owners part elements: a line is one."""
    start, stop = flat_share(len(lines), owner, nprocs)
    return lines.start + start, lines.start + stop


@lru_cache(1024)  # worlds of mutants have the same calls
def expected(plan: ProductPlan | None, call: int, rank: int) -> list[Value]:
    """D on a rank, in the plan's own words and not in those of its schedule; C is the last term."""
    if isinstance(plan, AllGatherGemm):
        nprocs, shards = plan.product.nprocs, plan.shards
        terms: list[Term] = [("shard", call, r, i) for r in range(nprocs) for i in range(shards.count(r))]
        parts = [tuple(terms)] if plan.along_k else [(term,) for term in terms]
        return [(*(part if plan.takes_part(rank) else ()), ("old", call, rank, i)) for i, part in enumerate(parts)]
    if isinstance(plan, GemmAllReduce):
        return _expected_everywhere(plan, call, rank)
    if isinstance(plan, GemmReduceScatter):
        first, count = starts([plan.shards.count(r) for r in range(rank)])[-1], plan.shards.count(rank)
        order = list(_order(plan, rank))
        return [(*(_part(call, r, first + i) for r in order), ("old", call, rank, i)) for i in range(count)]
    return [(("old", call, rank, 0),)]


def _part(call: int, rank: int, line: int) -> Term:
    return ("partial", call, rank, line)


def _expected_everywhere(plan: GemmAllReduce, call: int, rank: int) -> list[Value]:
    """D of a GemmAllReduce, on every rank the same: C too, which only in one shot each rank adds for itself."""
    nprocs, algorithm, n, values = plan.product.nprocs, plan.algorithm, plan.oriented.n, list[Value]()
    assert algorithm is not None
    orders = [list(_order(plan, owner)) for owner in range(nprocs)]
    if algorithm.kind == "one_shot":
        return [(*(_part(call, r, i) for r in orders[0]), ("old", call, rank, i)) for i in range(n)]
    for piece, (start, stop) in enumerate(plan.pieces):
        pulled = algorithm.kind == "two_shot" and piece == len(plan.pieces) - 1
        for owner, order in enumerate(orders):
            own = plan.shares_of_pieces[piece][owner]
            of = _flat(Block("result", start, stop), owner, nprocs) if pulled else own
            lines = range(*of)
            values += [(*(_part(call, r, i) for r in order), ("old", call, owner, i)) for i in lines]
    return values


class World:
    """The tasks of some consecutive calls on all ranks.

    Args:
        calls: the calls.
        parity: of a call's number in its queue: which copy of the workspace it uses, which set of flags.
        queues: of the calls; one for all of them if none are given.
        orders: the order in which each rank issues the calls; as they are given, if none are.
        hardware: of rank, queue and lane: which hardware queue the lane has on that rank; operations in one of them run
            one at a time, in issue order. If it is not given, each lane has its own; if all share one, all operations
            run one at a time, as on CPUs.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        *,
        parity: Callable[[int], tuple[int, int]] = lambda call: (call & 1, call & 1),
        queues: Sequence[int] = (),
        orders: Sequence[Sequence[int]] = (),
        hardware: Callable[[int, int, str], object] = lambda *lane: lane,
    ) -> None:
        self.nprocs, self._parity, self.tasks = len(calls[0].programs), parity, list[Task]()
        self._queues = queues or [0] * len(calls)
        self._sends = [any(_sends_packs(op) for program in call.programs for op in program) for call in calls]
        self._hardware, self._held = hardware, dict[object, int]()  # the last task in each hardware queue of a rank
        self._first: dict[tuple[int, int], list[int]] = {}
        last = defaultdict[tuple[int, int], list[int]](list)
        self.users = 0  # the tasks of the users, as bits
        for place in range(len(calls)):
            for rank in range(self.nprocs):
                e = orders[rank][place] if orders else place
                chain, program = last[rank, self._queues[e]], calls[e].programs[rank]
                chain[:] = [self._run(calls[e].plan, e, rank, program, chain)]
        self._conflicts()

    def _halves(self, call: int, *, packs: bool = False) -> tuple[int, int]:
        """Numbers of the copy of the workspace, or of the slots for LL packets, and of the set of flags of a call."""
        queue = self._queues[call]
        before = [e for e in range(call) if self._queues[e] == queue and (self._sends[e] or not packs)]
        copy, flags = self._parity(len(before))
        return 2 * queue + copy, 2 * queue + flags

    def _issue(self, call: int, rank: int, lane: str, before: Iterable[int]) -> list[int]:
        """What the next operation of a lane comes after: beside others, what its hardware queue holds."""
        place = rank, self._hardware(rank, self._queues[call], lane)
        return [*before, *([self._held[place]] if place in self._held else [])]

    def _issued(self, call: int, rank: int, lane: str, task: int) -> int:
        """The same task, the last of an operation."""
        self._held[rank, self._hardware(rank, self._queues[call], lane)] = task
        return task

    def _add(self, task: Task) -> int:
        task.before = sorted(set(task.before))
        self.tasks.append(task)
        return len(self.tasks) - 1

    def _run(self, plan: ProductPlan | None, e: int, rank: int, program: Program, before: list[int]) -> int:
        """A call of one rank; its last task."""
        lines, shard = expected(plan, e, rank), 0
        if isinstance(plan, AllGatherGemm):
            shard = plan.shards.count(rank)
        memory = self._queues[e]
        result = Span((rank, "result", memory, -1), 0, len(lines))
        operand = Span((rank, "shard", memory, -1), 0, shard)

        def begin(contents: Contents) -> None:
            contents.write(operand, [(("shard", e, rank, i),) for i in range(shard)])
            contents.write(result, [(("old", e, rank, i),) for i in range(len(lines))])

        def end(contents: Contents) -> None:
            for i, (value, wanted) in enumerate(zip(contents.read(result), lines, strict=True)):
                if not _same(plan, value, wanted):
                    text = f"line {i} of D on rank {rank} after call {e} is {value}, expected {wanted}"
                    contents.findings.append(Finding("wrong result", text))
                    break

        operands = Span((rank, "operands", memory, -1), 0, 1)
        before = self._issue(e, rank, "main", before)
        user = self._add(
            Task((f"user of rank {rank} writes, call {e}",), e, before, (), (operand, result, operands), effect=begin)
        )
        self._issued(e, rank, "main", user)
        lane, ended = dict.fromkeys(LANES, user), list[int]()
        for op in program:
            after = self._issue(e, rank, op.lane, [lane[op.lane], *(ended[i] for i in op.after)])
            ended.append(self._issued(e, rank, op.lane, self._operation(plan, e, rank, op, after)))
            lane[op.lane] = ended[-1]
        before = self._issue(e, rank, "main", lane.values())
        last = self._add(Task((f"user of rank {rank} reads, call {e}",), e, before, (result,), effect=end))
        self._issued(e, rank, "main", last)
        self.users |= 1 << user | 1 << last
        return last

    def _span(self, e: int, rank: int, block: Block) -> Span:
        if block.buffer not in WORKSPACE:
            return Span((rank, block.buffer, self._queues[e], block.slot), block.start, block.stop)
        packs = _is_of_packs(block)
        copy = self._halves(e, packs=packs)[0]
        return Span((rank, "packs" if packs else block.buffer, copy, block.slot), block.start, block.stop)

    def _operation(self, plan: ProductPlan | None, e: int, rank: int, op: Op, before: list[int]) -> int:
        """One operation; its last task."""
        name = op, f" of rank {rank}, call {e}"

        def local(block: Block) -> Span:
            return self._span(e, rank, block)

        def flag(waiting: int, phase: int, source: int) -> Flag:
            return (waiting, self._halves(e, packs=phase >= PACKS)[1], phase, source)

        match op:
            case Put():
                source, target = local(op.source), self._span(e, op.peer, op.target)
                return self._add(Task(name, e, before, (source,), (target,), effect=_copying(source, target)))
            case Signal():
                follows = self._add(Task(name, e, before))
                for peer in op.peers:  # one after the other
                    follows = self._add(Task(name, e, [follows], flags_set=(flag(peer, op.phase, rank),)))
                return follows
            case Burst():
                start, ends = self._add(Task(("start of ", *name), e, before)), list[int]()
                of = {put.peer: put for put in op.puts}
                assert len(of) == len(op.puts), "one put for each peer"
                for peer in dict.fromkeys((*of, *op.peers)):
                    parts: list[Op] = [of[peer]] if peer in of else []
                    parts += [Signal(op.lane, (peer,), op.phase)] if peer in op.peers else []
                    follows = start
                    for part in reversed(parts) if isinstance(op, Hasty) else parts:
                        follows = self._operation(plan, e, rank, part, [follows])
                    ends.append(follows)
                if op.awaits:
                    kind = Peek if isinstance(op, Keeping) else Wait
                    ends.append(self._operation(plan, e, rank, kind(op.lane, op.phase, op.awaits), [start]))
                return self._add(Task(("end of ", *name), e, [start, *ends]))
            case Wait():
                flags = tuple(flag(rank, op.phase, source) for source in op.sources)
                return self._add(Task(name, e, before, flags_awaited=flags, resets=not isinstance(op, Peek)))
            case Multiply():
                return self._add(self._multiply(plan, e, rank, op, Task(name, e, before)))
            case Sum():
                terms = (*op.parts, op.own) if op.own is not None else op.parts
                ranks = op.ranks if isinstance(op, Fetch) else (rank,) * len(terms)
                read = tuple(self._span(e, r, block) for r, block in zip(ranks, terms, strict=True))
                target = local(op.target)
                return self._add(Task(name, e, before, read, (target, *_cleared(*read)), effect=_adding(read, target)))
            case CopyOut():
                source = self._span(e, op.rank if isinstance(op, Pull) else rank, op.source)
                target = local(op.target)
                written = (target, *_cleared(source))
                return self._add(Task(name, e, before, (source,), written, effect=_copying(source, target)))
        raise AssertionError(f"the model does not know {op}")

    def _multiply(self, plan: ProductPlan | None, e: int, rank: int, op: Multiply, task: Task) -> Task:
        memory = self._queues[e]
        operands = Span((rank, "operands", memory, -1), 0, 1)
        if op.target is not None:
            target, lines = self._span(e, rank, op.target), range(op.target.start, op.target.stop)
            effect = _writing(target, [(_part(e, rank, line),) for line in lines])
            return replace(task, reads=(operands,), writes=(target,), effect=effect)
        assert isinstance(plan, AllGatherGemm)
        assert op.operand is not None
        operand, along_k = self._span(e, rank, op.operand), plan.along_k
        shift = starts([plan.shards.count(r) for r in range(rank)])[-1] if op.operand.buffer == "shard" else 0
        lines = range(1) if along_k else range(op.operand.start + shift, op.operand.stop + shift)
        target = Span((rank, "result", memory, -1), lines.start, lines.stop)

        def effect_on(contents: Contents) -> None:
            values, old = contents.read(operand), contents.read(target)
            if along_k:
                values = [tuple(term for value in values for term in value)]
            contents.write(target, [value + before for value, before in zip(values, old, strict=True)])

        return replace(task, reads=(operands, operand), writes=(target,), effect=effect_on)

    def _conflicts(self) -> None:
        """Which tasks must not run beside a task, and which ones write what it reads; sets of tasks as bits."""
        borders: defaultdict[Memory, set[int]] = defaultdict(set)
        for task in self.tasks:
            for span in (*task.reads, *task.writes):
                borders[span.memory] |= {span.start, span.stop} if span.start < span.stop else set()
        ordered = {memory: sorted(edges) for memory, edges in borders.items()}

        def cells(spans: Iterable[Span]) -> list[Cell]:
            """Parts of memories that no span starts or stops inside."""
            overlapping: list[Cell] = []
            for span in spans:
                if span.start < span.stop:
                    starts = ordered[span.memory]
                    overlapping += (
                        (span.memory, i) for i in range(bisect(starts, span.start), bisect(starts, span.stop))
                    )
            return overlapping

        read, written = [cells(task.reads) for task in self.tasks], [cells(task.writes) for task in self.tasks]
        calls: defaultdict[int, int] = defaultdict(int)
        for t, task in enumerate(self.tasks):
            calls[task.call] |= 1 << t
        copies = [_copies(spans) for spans in read], [_copies(spans) for spans in written]
        within, across = _Users(read, written), _Users(*copies)
        self.conflicts, self.sources = list[int](), list[set[int]]()
        for t, task in enumerate(self.tasks):
            call = calls[task.call]
            conflicts = within.conflicts(read[t], written[t])
            conflicts |= across.conflicts(copies[0][t], copies[1][t]) & ~call
            self.conflicts.append(conflicts & ~(1 << t))
            # D as the user left it is nothing that could be sent.
            users = 0 if self.users >> t & 1 else self.users
            self.sources.append({
                within.writers[cell] & call & ~(users if cell[0][1] == "result" else 0) for cell in read[t]
            })  # fmt: skip


class _Users(Generic[Place]):
    """Which tasks read and write each place."""

    def __init__(self, read: Iterable[Iterable[Place]], written: Iterable[Iterable[Place]]) -> None:
        self.readers: defaultdict[Place, int] = defaultdict(int)
        self.writers: defaultdict[Place, int] = defaultdict(int)
        for among, tasks in ((self.readers, read), (self.writers, written)):
            for t, places in enumerate(tasks):
                for place in places:
                    among[place] |= 1 << t

    def conflicts(self, read: Iterable[Place], written: Iterable[Place]) -> int:
        """All tasks that write what is read, or read or write what is written."""
        mask = 0
        for place in read:
            mask |= self.writers[place]
        for place in written:
            mask |= self.writers[place] | self.readers[place]
        return mask


def _copies(cells: Iterable[Cell]) -> set[tuple[int, bool, int]]:
    """The copies of workspaces, or of the slots for LL packets, that contain cells: rank, which of the two, copy."""
    known = (*WORKSPACE, "packs")
    return {(memory[0], memory[1] == "packs", memory[2]) for memory, _ in cells if memory[1] in known}


def _is_of_packs(block: Block) -> bool:
    return block.buffer == "slots" and block.slot >= SENT


def _sends_packs(op: Op) -> bool:
    return isinstance(op, Burst) and op.phase >= PACKS


def _cleared(*read: Span) -> list[Span]:
    """The LL packets among the spans that are read."""
    return [span for span in read if span.memory[1] == "packs"]


def _same(plan: ProductPlan | None, value: Value, wanted: Value) -> bool:
    """Whether sums agree in their order; products over a gathered K are added as they arrive, in any order."""
    return sorted(value) == sorted(wanted) if isinstance(plan, AllGatherGemm) else value == wanted


def _copying(source: Span, target: Span) -> Callable[[Contents], None]:
    return lambda contents: contents.write(target, contents.read(source))


def _writing(target: Span, values: list[Value]) -> Callable[[Contents], None]:
    return lambda contents: contents.write(target, values)


def _adding(parts: Sequence[Span], target: Span) -> Callable[[Contents], None]:
    def effect(contents: Contents) -> None:
        columns = [contents.read(part) for part in (*parts, target)]  # C last
        contents.write(target, [tuple(t for value in line for t in value) for line in zip(*columns, strict=True)])

    return effect


def bits(mask: int) -> Iterator[int]:
    """Indices of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def evaluate(world: World, order: Iterable[int]) -> list[Finding]:
    """The error in D if the tasks run in this order."""
    contents = Contents()
    for t in order:
        effect = world.tasks[t].effect
        if effect:
            effect(contents)
    return contents.findings


def prove(world: World) -> list[Finding]:
    """The error of some order, derived from the partial order that all orders share. No error is a proof."""
    tasks, uses = world.tasks, _Uses(world.tasks)
    order = _sorted(uses.before)
    stuck = set(range(len(tasks))) - set(order)
    if stuck:
        names = "; ".join(str(tasks[t]) for t in sorted(stuck)[:5])
        return [*uses.findings, Finding("deadlock", f"{len(stuck)} tasks wait for each other, among them {names}")]
    findings, seen = uses.findings, 0
    earlier = [0] * len(tasks)  # all tasks that precede one, as bits
    for t in order:
        for b in uses.before[t]:
            earlier[t] |= earlier[b] | 1 << b
        for u in bits(world.conflicts[t] & seen & ~earlier[t]):
            findings.append(Finding("race", f"{tasks[u]} and {tasks[t]}"))
        if not all(source & earlier[t] for source in world.sources[t]):
            findings.append(Finding("read before write", str(tasks[t])))
        seen |= 1 << t
    return findings + uses.lost(earlier) + evaluate(world, order)


class _Uses:
    """How the sets and the waits of each flag pair up: the first wait takes the first set, and so on."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks, self.findings = tasks, list[Finding]()
        self.before = [list(task.before) for task in tasks]
        self._sets: defaultdict[Flag, list[int]] = defaultdict(list)
        self._resets: defaultdict[Flag, list[int]] = defaultdict(list)
        for t, task in enumerate(tasks):
            for flag in task.flags_set:
                self._sets[flag].append(t)
        for t, task in enumerate(tasks):
            for flag in task.flags_awaited:
                self._pair(flag, t)
        for flag, setters in self._sets.items():
            if len(self._resets[flag]) < len(setters):
                self.findings.append(Finding("flag left up", f"{flag}, set by {tasks[setters[-1]]}"))

    def _pair(self, flag: Flag, waiting: int) -> None:
        use, task = len(self._resets[flag]), self._tasks[waiting]
        if use < len(self._sets[flag]):
            self.before[waiting].append(self._sets[flag][use])
        else:
            self.findings.append(Finding("deadlock", f"{task}: nobody sets {flag} for it"))
        if task.resets:
            self._resets[flag].append(waiting)

    def lost(self, earlier: Sequence[int]) -> list[Finding]:
        """Flags that may be set again before they were reset."""
        findings = []
        for flag, setters in self._sets.items():
            resets = self._resets[flag]
            for use, t in enumerate(setters[1:]):
                if use >= len(resets) or not earlier[t] >> resets[use] & 1:
                    findings.append(Finding("lost flag", f"{self._tasks[t]}: {flag} may still be up"))
        return findings


def _sorted(before: Sequence[Sequence[int]]) -> list[int]:
    """A topological order; tasks on a cycle or after it are left out."""
    missing, after = [len(b) for b in before], defaultdict[int, list[int]](list)
    for t, predecessors in enumerate(before):
        for b in predecessors:
            after[b].append(t)
    order = [t for t, count in enumerate(missing) if not count]
    for t in order:
        for a in after[t]:
            missing[a] -= 1
            if not missing[a]:
                order.append(a)
    return order


class _Machine:
    """The tasks of a world as a transition system; a state says what has ended, what runs, and which flags are up."""

    def __init__(self, world: World) -> None:
        self.world, self.tasks = world, world.tasks
        self.before = [sum(1 << b for b in task.before) for task in self.tasks]
        self.after: defaultdict[int, list[int]] = defaultdict(list)
        names = {flag: i for i, flag in enumerate({f for t in self.tasks for f in (*t.flags_set, *t.flags_awaited)})}
        self.sets = [sum(1 << names[f] for f in task.flags_set) for task in self.tasks]
        self.awaits = [sum(1 << names[f] for f in task.flags_awaited) for task in self.tasks]
        self.instant = [not (task.reads or task.writes) for task in self.tasks]
        for t, task in enumerate(self.tasks):
            for b in task.before:
                self.after[b].append(t)
        self.all = (1 << len(self.tasks)) - 1
        self.first = sum(1 << t for t, b in enumerate(self.before) if not b)

    def starting(self, t: int, ended: int, running: int, up: int) -> Finding | None:
        """The error if a task starts now."""
        task = self.tasks[t]
        for u in bits(self.world.conflicts[t] & running):
            return Finding("race", f"{task} starts while {self.tasks[u]} runs")
        if not all(source & ended for source in self.world.sources[t]):
            return Finding("read before write", str(task))
        if self.sets[t] & up:
            return Finding("lost flag", f"{task}: it is still up")
        return None

    def ending(self, t: int, ended: int, ready: int, up: int) -> tuple[int, int, int]:
        """(ended, ready, up) after the end of a task."""
        ended |= 1 << t
        for a in self.after[t]:
            if not self.before[a] & ~ended:
                ready |= 1 << a
        up |= self.sets[t]
        return ended, ready, up & ~self.awaits[t] if self.tasks[t].resets else up

    def stuck(self, ended: int) -> Finding:
        """Nothing can go on."""
        if ended == self.all:
            return Finding("flag left up", "after the last call")
        waiting = next(bits(self.all & ~ended))
        return Finding("deadlock", f"after {ended.bit_count()} of {len(self.tasks)} tasks: {self.tasks[waiting]}")


def explore(world: World, *, eager: bool = False, limit: int = 1_000_000) -> tuple[list[Finding], int]:
    """The first thing found wrong in any order of starts and ends, and how many states were looked at.

    A start enables nothing, and to start earlier means to run beside more tasks and to read after fewer writes. To set
    a flag disables nothing. With `eager` both happen as soon as they can, which leaves the order of ends and waits.
    """
    topology = _Machine(world)
    stack = [(0, 0, topology.first, 0)]  # ended, running, ready, up
    known = {(0, 0)}
    while stack:
        assert len(known) <= limit, f"more than {limit} states"
        ended, running, ready, up = stack.pop()
        following: list[tuple[int, int, int, int]] = []
        for t in bits(running):
            now, then, flags = topology.ending(t, ended, ready, up)
            following.append((now, running & ~(1 << t), then, flags))
        for t in bits(ready):
            if topology.awaits[t] & ~up:
                continue
            finding = topology.starting(t, ended, running, up)
            if finding:
                return [finding], len(known)
            if topology.instant[t]:
                now, then, flags = topology.ending(t, ended, ready & ~(1 << t), up)
                state = (now, running, then, flags)
            else:
                state = (ended, running | 1 << t, ready & ~(1 << t), up)
            if eager and not topology.awaits[t]:
                following = [state]
                break
            following.append(state)
        if not following and (ended != topology.all or up):
            return [topology.stuck(ended)], len(known)
        for state in following:
            if state[:2] not in known:
                known.add(state[:2])
                stack.append(state)
    return [], len(known)
