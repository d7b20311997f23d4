"""The push protocol: what one rank does in one execution of a plan, in order, on lanes.

A lane is a stream: its operations run one after the other, lanes run beside each other, and `after` names operations of
other lanes that must have finished. Data is pushed: `Put` copies a block into a peer's workspace, and the `Signal`
behind it on the same lane says so; the peer's `Await` waits for the flag and resets it. Only all-reduces pull: in two
shots a kernel reads partial products in the workspaces of the peers, and by tiles a `Get` copies finished lines from
there. Reading the operations in issue order, one at a time, is a valid execution too, which is how CPUs run them.

The workspace has two parities that alternate from call to call, so that no call starts with a barrier: a rank writes
into parity e % 2 of a peer in call e, which the peer has left behind when it finished call e - 2, and the flag that the
peer sent in call e - 1 proves that. Hence every rank sends and awaits a flag of every peer in every call, also when
there is nothing to send. Its own half a rank may write when it has itself finished call e - 2: it has awaited all that
was put there; and what peers pull in that call they have read when they send their flag of call e - 1.

Blocks are intervals of *lines*: indices along the dimension in which the plan cuts, in the plan's orientation.

Where the number of ranks is a power of two, rank q meets q^1, q^2, ..., q^(P-1): every step is a permutation of the
ranks, and the first 1, 2, 4, ... of them with q itself hold consecutive shards. Other numbers of ranks rotate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, zip_longest

from pblas.backends.engine import Lane, sliced
from pblas.one_dimensional import AllGatherGemm, GemmAllReduce, GemmReduceScatter
from pblas.pieces import backwards, cuts, rotated, share
from pblas.plan import Plan, Road
from pblas.steps import (
    PARTS,
    RESULTS,
    AllReduce,
    Arrival,
    Await,
    Block,
    Buffer,
    Burst,
    CopyOut,
    Get,
    Made,
    Multiply,
    MultiplyArrivals,
    MultiplyReduce,
    MultiplySending,
    Op,
    Put,
    ReduceScatter,
    Signal,
    Strip,
    Sum,
)


def meets(rank: int, nprocs: int) -> Iterator[int]:
    """The others, in the order in which `rank` sends to them.

    >>> list(meets(5, 8)), list(meets(1, 3))
    ([4, 7, 6, 1, 0, 3, 2], [0, 2])
    """
    return (rank ^ i for i in range(1, nprocs)) if is_power_of_two(nprocs) else backwards(rank, nprocs)


def hears(rank: int, nprocs: int) -> Iterator[int]:
    """The others, in the order in which their shards reach `rank`.

    >>> list(hears(5, 8)), list(hears(1, 3))
    ([4, 7, 6, 1, 0, 3, 2], [2, 0])
    """
    return meets(rank, nprocs) if is_power_of_two(nprocs) else rotated(rank, nprocs)


def is_power_of_two(nprocs: int) -> bool:
    """Whether ranks meet by exclusive or."""
    return nprocs & (nprocs - 1) == 0


class _Program:
    """Operations in issue order."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def add(self, op: Op) -> int:
        """Append an operation; its index."""
        self.ops.append(op)
        return len(self.ops) - 1

    def send(self, lane: Lane, after: tuple[int, ...], puts: list[tuple[int, Block, Block]], phase: int) -> None:
        """Copies, and the signals of all of them behind the last; empty ones are left out, their signals are not.

        Every step of the copies is a permutation of the ranks, so that what is awaited together arrives together.
        """
        for peer, source, target in puts:
            if len(source):
                self.add(Put(lane, after, peer, source, target))
                after = ()
        if puts:
            self.add(Signal(lane, after, tuple(peer for peer, *_ in puts), phase))

    def burst(
        self,
        lane: Lane,
        puts: list[tuple[int, Block, Block]],
        phase: int,
        rank: int,
        awaits: tuple[int, ...] = (),
    ) -> None:
        """The same by one kernel; puts to `rank` itself carry no signal."""
        made = tuple(Put(lane, (), *put) for put in puts if len(put[1]))
        self.add(Burst(lane, (), made, phase, tuple(peer for peer, *_ in puts if peer != rank), awaits))


def schedule(plan: Plan, rank: int) -> tuple[Op, ...]:
    """What `rank` does in one execution of a plan.

    Args:
        plan: an AllGatherGemm, GemmReduceScatter or GemmAllReduce with a road (global).
        rank: of 0..nprocs-1 (local).
    """
    program = _Program()
    if isinstance(plan, AllGatherGemm):
        _all_gather_gemm(program, plan, rank)
    elif isinstance(plan, GemmAllReduce):
        _gemm_all_reduce(program, plan, rank)
    elif isinstance(plan, GemmReduceScatter):
        _gemm_reduce_scatter(program, plan, rank)
    return tuple(program.ops)


def road_of(plan: Plan) -> Road:
    """The road of a plan of the push transport."""
    assert plan.road is not None, "the planner gives every plan of the push transport a road"
    return plan.road


def handshake(rank: int, nprocs: int) -> tuple[Op, ...]:
    """A call in which nothing moves (alpha or K is 0): the flags that keep the parities apart are sent all the same."""
    program = _Program()
    program.add(Signal("main", (), tuple(meets(rank, nprocs)), PARTS))
    program.add(Await("main", (), PARTS, tuple(hears(rank, nprocs))))
    return tuple(program.ops)


def starts(counts: list[int]) -> list[int]:
    """First line of each of some blocks that lie one after the other, and the end of the last.

    >>> starts([3, 0, 2])
    [0, 3, 3, 5]
    """
    return list(accumulate(counts, initial=0))


def _groups(order: list[int], sizes: tuple[int, ...]) -> list[list[int]]:
    """An order of ranks cut into groups of these sizes."""
    return [order[a:b] for a, b in pairwise(accumulate(sizes, initial=0))]


def _all_gather_gemm(program: _Program, plan: AllGatherGemm, rank: int) -> None:
    nprocs, road = plan.product.nprocs, road_of(plan)
    first = starts([plan.shards.count(r) for r in range(nprocs)])
    own = Block("gathered", first[rank], first[rank + 1])
    shard, everybody = Block("shard", 0, len(own)), list(hears(rank, nprocs))
    if road.by == "tiles":
        _gather_for_tiles(program, plan, rank)
        return
    nothing = Block("shard", 0, 0)  # to ranks without rows of D goes the flag alone

    def puts(peers: Iterable[int]) -> list[tuple[int, Block, Block]]:
        return [(peer, shard if plan.takes_part(peer) else nothing, own) for peer in peers]

    if road.by == "stores":
        _gather_by_stores(program, plan, rank, puts((*meets(rank, nprocs), rank)))
        return
    if road.by == "kernel":
        # The shards go to all ranks, the own one to this rank's own workspace too, and one GEMM takes all of them.
        program.burst("main", puts((*meets(rank, nprocs), rank)), PARTS, rank, tuple(everybody))
        if plan.takes_part(rank) and first[-1]:
            program.add(Multiply("main", (), operand=Block("gathered", 0, first[-1])))
        return
    for group in _groups([rank, *meets(rank, nprocs)], road.groups):
        program.send("copy", (), puts(peer for peer in group if peer != rank), PARTS)
    for group in _groups([rank, *everybody], road.groups):
        others = tuple(source for source in group if source != rank)
        if rank in group and plan.takes_part(rank) and len(shard):
            program.add(Multiply("main", (), operand=shard))
        if others:
            program.add(Await("main", (), PARTS, others))
            for start, stop in _merged([(first[s], first[s + 1]) for s in others]) if plan.takes_part(rank) else ():
                program.add(Multiply("main", (), operand=Block("gathered", start, stop)))


def _gather_for_tiles(program: _Program, plan: AllGatherGemm, rank: int) -> None:
    """Copies of pieces of shards, with a flag each; one GEMM of all of them, in the order in which they arrive."""
    assert not plan.along_k, "tiles of D wait for lines along N"
    nprocs, road = plan.product.nprocs, road_of(plan)
    counts = [plan.shards.count(r) for r in range(nprocs)]
    first, takes_part = starts(counts), plan.takes_part(rank)

    def pieces(step: int, owner: int) -> list[tuple[int, int, int]]:
        """Phase and lines of the pieces of a shard that arrives `step` steps after the first."""
        parts = road.groups[step] if step < len(road.groups) else 1
        return [(2 * i + PARTS, *lines) for i, lines in enumerate(pairwise(cuts(counts[owner], (1,) * parts)))]

    for step, peer in enumerate(meets(rank, nprocs)):
        for phase, start, stop in pieces(step, rank):
            lines = Block("shard", start, stop if plan.takes_part(peer) else start)
            program.send("copy", (), [(peer, lines, Block("gathered", first[rank] + start, first[rank] + stop))], phase)
    arrivals = [Arrival(Block("shard", 0, counts[rank]))]
    for step, source in enumerate(hears(rank, nprocs)):
        at = first[source]
        arrivals += [Arrival(Block("gathered", at + a, at + b), source, phase) for phase, a, b in pieces(step, source)]
    full = tuple(arrival for arrival in arrivals if takes_part and len(arrival.operand))
    if full:
        program.add(MultiplyArrivals("main", (), full))
    empty = [arrival for arrival in arrivals[1:] if arrival not in full]
    for phase in sorted({arrival.phase for arrival in empty}):
        program.add(Await("main", (), phase, tuple(arrival.source for arrival in empty if arrival.phase == phase)))


def _gather_by_stores(program: _Program, plan: AllGatherGemm, rank: int, puts: list[tuple[int, Block, Block]]) -> None:
    """One GEMM that sends the own shard in slices along K, and awaits those of the others."""
    assert not plan.along_k, "a slice holds a part of K of all lines"
    nprocs = plan.product.nprocs
    first, sources = starts([plan.shards.count(r) for r in range(nprocs)]), tuple(hears(rank, nprocs))
    count, length = sliced(plan.oriented.k, nprocs)
    phases = tuple(2 * i + PARTS for i in range(max(count, 1)))
    arrivals = [Arrival(Block("shard", 0, first[rank + 1] - first[rank]))]
    arrivals += [Arrival(Block("gathered", first[source], first[source + 1]), source) for source in sources]
    full = tuple(arrival for arrival in arrivals if plan.takes_part(rank) and len(arrival.operand))
    made = tuple(Put("main", (), *put) for put in puts if len(put[1]))
    program.add(MultiplySending("main", (), made, tuple(meets(rank, nprocs)), phases, length, sources, full))


def _merged(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Intervals in ascending order, adjacent ones joined, empty ones left out."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(intervals):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        elif start < stop:
            joined.append((start, stop))
    return joined


def _gemm_reduce_scatter(program: _Program, plan: GemmReduceScatter, rank: int) -> None:
    nprocs, road = plan.product.nprocs, road_of(plan)
    first = starts([plan.shards.count(r) for r in range(nprocs)])
    lines, count = {r: Block("partial", first[r], first[r + 1]) for r in range(nprocs)}, plan.shards.count(rank)
    contributes = plan.contributes(rank)
    sent = {r: (r, lines[r] if contributes else Block("partial", 0, 0), Block("slots", 0, len(lines[r]), rank))
            for r in range(nprocs)}  # fmt: skip
    order = [*reversed(list(meets(rank, nprocs))), rank]
    if road.by == "kernel":
        whole = Block("partial", 0, first[-1])
        if len(whole) and contributes:
            program.add(Multiply("main", (), target=whole))
        program.add(ReduceScatter("main", (), whole, Block("result", 0, count)))
        return
    if road.is_one_kernel:
        _multiply_reduce(program, plan, rank, list(_pieces_of_parts(plan, rank)))
        return
    for group in _groups(order, tuple(reversed(road.groups))):
        after: tuple[int, ...] = ()
        if contributes:
            for start, stop in _merged([(first[r], first[r + 1]) for r in group]):
                after = (program.add(Multiply("main", (), target=Block("partial", start, stop))),)
        program.send("copy", after, [sent[peer] for peer in group if peer != rank], PARTS)
    program.add(Await("main", (), PARTS, tuple(hears(rank, nprocs))))
    if count:
        slots = [Block("slots", 0, count, source) for source in adds(plan, rank)]
        program.add(Sum("main", (), tuple(slots), lines[rank] if contributes else None, Block("result", 0, count)))


def _pieces_of_parts(plan: GemmReduceScatter, rank: int) -> Iterator[_Piece]:
    """The pieces into which each owner's part of D is cut, so that less is left to send when the last is formed."""
    borders, sources = plan.borders, list(adds(plan, rank))
    first, contributes = starts([inner[-1] for inner in borders]), plan.contributes(rank)
    for i in range(len(road_of(plan).groups)):
        sent = [
            (r, Block("partial", first[r] + a, first[r] + (b if contributes else a)), Block("slots", a, b, rank))
            for r, (a, b) in enumerate(inner[i : i + 2] for inner in borders)
        ]
        lines = borders[rank][i], borders[rank][i + 1]
        parts = [Block("slots", *lines, source) for source in sources]
        yield _Piece(2 * i + PARTS, sent, parts, Block("result", *lines))


def adds(plan: GemmReduceScatter, owner: int) -> Iterator[int]:
    """The other ranks whose partial products `owner` adds, in the order in which it adds them.

    The plan's; where tiles wait for them, that in which they arrive.
    """
    if not road_of(plan).is_one_kernel:
        return plan.sources(owner)
    return (source for source in hears(owner, plan.product.nprocs) if plan.contributes(source))


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of D that the ranks share, as one of them sees it.

    Args:
        phase: of the flags of partial products; those of sums are of the next.
        sent: for every rank, this one too, the lines of the partial product and the slot that they go to.
        parts: slots that are added to the own lines, in this order.
        target: the own lines of D.
        offered: where peers get their sums, if they do.
        gets: how this rank gets those of the peers.
    """

    phase: int
    sent: list[tuple[int, Block, Block]]
    parts: list[Block]
    target: Block
    offered: Block | None = None
    gets: tuple[Op, ...] = ()


def _multiply_reduce(program: _Program, plan: GemmReduceScatter, rank: int, pieces: list[_Piece]) -> None:
    """One GEMM of some pieces of D, and the sums of the own lines of each.

    Own lines come behind what the next piece sends: meanwhile the parts that are added to them arrive.
    """
    nprocs, contributes = plan.product.nprocs, plan.contributes(rank)
    peers, sources = tuple(meets(rank, nprocs)), tuple(hears(rank, nprocs))
    made = _Strips(program, rank, peers, stores=road_of(plan).by == "stores")
    made.send(pieces[0])
    for piece, following in zip_longest(pieces, pieces[1:]):
        if following is not None:
            made.send(following)
        made.add(piece)
    for piece in pieces:
        awaited = {part.slot for part in piece.parts} if contributes and len(piece.target) else set[int]()
        unheard = tuple(source for source in sources if source not in awaited)
        if unheard:
            program.add(Await("main", (), piece.phase, unheard))
        if not contributes and len(piece.target):
            _add_alone(program, piece, peers)
    if made.strips:
        program.add(MultiplyReduce("main", (), tuple(made.strips), tuple(made.beside)))
    else:
        program.ops += made.beside


class _Strips:
    """What a MultiplyReduce makes, in order, and what goes on beside it."""

    def __init__(self, program: _Program, rank: int, peers: tuple[int, ...], *, stores: bool) -> None:
        self._program, self._rank, self._peers, self._stores = program, rank, peers, stores
        self.strips: list[Strip] = []
        self.beside: list[Op] = []

    def send(self, piece: _Piece) -> None:
        """What a piece has for the peers."""
        lines = {to[0]: to for to in piece.sent if len(to[1])}
        silent = tuple(peer for peer in self._peers if peer not in lines)
        if silent:
            self._program.add(Signal("main", (), silent, piece.phase))
        for peer, source, slot in (lines[peer] for peer in self._peers if peer in lines):
            if self._stores:
                self.strips.append(Strip(source, piece.phase, Put("main", (), peer, source, slot)))
            else:
                put = Put("copy", (), peer, source, slot)
                self.beside += [self._made(), put, Signal("copy", (), (peer,), piece.phase)]
                self.strips.append(Strip(source, piece.phase))

    def add(self, piece: _Piece) -> None:
        """The own lines of a piece, and those that peers have formed."""
        own = next((source for peer, source, _ in piece.sent if peer == self._rank and len(source)), None)
        if own is not None:
            if piece.offered is not None:
                self.beside += [self._made(), Signal("copy", (), self._peers, piece.phase + 1)]
            self.strips.append(Strip(own, piece.phase, None, piece.target, tuple(piece.parts), piece.offered))
        self.beside += piece.gets

    def _made(self) -> Made:
        """Waits for the strip that comes next."""
        return Made("copy", (), len(self.strips))


def _add_alone(program: _Program, piece: _Piece, peers: tuple[int, ...]) -> None:
    """The own lines of a piece to which this rank contributes nothing."""
    program.add(Sum("main", (), tuple(piece.parts), None, piece.target))
    if piece.offered is not None:
        program.add(CopyOut("main", (), piece.target, piece.offered))
        program.add(Signal("main", (), peers, piece.phase + 1))


def _gemm_all_reduce(program: _Program, plan: GemmAllReduce, rank: int) -> None:
    road, n = road_of(plan), plan.oriented.n
    if road.by == "one-shot":
        assert len(road.groups) == 1, "one shot takes all of D"
        whole = Block("partial", 0, n)
        if n and plan.contributes(rank):
            program.add(Multiply("main", (), target=whole))
        program.add(AllReduce("main", (), 1, whole, Block("result", 0, n)))
        return
    # All but copies is on the main lane, between GEMMs: beside them sums took five times as long, and waits held
    # multiprocessors that GEMMs want (docs/decisions/0008-all-reduces-by-pieces.md).
    pieces, copied = _Pieces(program, plan, rank), len(plan.copied_pieces)
    if road.by == "tiles":
        pieces.reduce_by_tiles(copied)
        return
    for piece in range(copied):
        pieces.send_parts(piece, pieces.multiply(piece, "partial"))
        if piece:
            pieces.add(piece - 1)
        if piece > 1:
            pieces.collect(piece - 2)
    if road.by == "two-shot":
        pieces.multiply(copied, "pulled")
    if copied:
        pieces.add(copied - 1)
    if road.by == "two-shot":
        pieces.all_reduce(copied)
    for piece in range(max(copied - 2, 0), copied):
        pieces.collect(piece)


class _Pieces:
    """The pieces of a GemmAllReduce: every rank computes all of each and owns a share of each."""

    def __init__(self, program: _Program, plan: GemmAllReduce, rank: int) -> None:
        self._program, self._plan, self._rank = program, plan, rank
        self._nprocs, self._contributes = plan.product.nprocs, plan.contributes(rank)
        self._borders = cuts(plan.oriented.n, road_of(plan).groups)
        self._everybody = tuple(hears(rank, self._nprocs))

    def _share(self, piece: int, owner: int) -> tuple[int, int]:
        return share(self._borders[piece], self._borders[piece + 1], owner, self._nprocs)

    def _seat(self, piece: int, owner: int, source: int) -> Block:
        """Where the lines of a piece that `owner` sums lie in its slot for `source`: behind those of earlier pieces."""
        before = sum(stop - start for start, stop in (self._share(i, owner) for i in range(piece)))
        start, stop = self._share(piece, owner)
        return Block("slots", before, before + stop - start, source)

    def multiply(self, piece: int, buffer: Buffer) -> tuple[int, ...]:
        """The GEMM of a piece; its index, if there is one."""
        start, stop = self._borders[piece], self._borders[piece + 1]
        if not self._contributes or start == stop:
            return ()
        return (self._program.add(Multiply("main", (), target=Block(buffer, start, stop))),)

    def _parts(self, piece: int, peers: Iterable[int]) -> list[tuple[int, Block, Block]]:
        found = []
        for peer in peers:
            start, stop = self._share(piece, peer)
            source = Block("partial", start, stop if self._contributes else start)
            found.append((peer, source, self._seat(piece, peer, self._rank)))
        return found

    def _sums(self, piece: int) -> list[tuple[int, Block, Block]]:
        block = self._share(piece, self._rank)
        return [(peer, Block("result", *block), Block("results", *block)) for peer in meets(self._rank, self._nprocs)]

    def _slots(self, piece: int) -> list[Block]:
        """What the own share of a piece is the sum of, beside the own partial product."""
        return [self._seat(piece, self._rank, source) for source in adds(self._plan, self._rank)]

    def _sum(self, piece: int) -> int:
        """Await the partial products of a piece and add them; the index of the last operation."""
        index = self._program.add(Await("main", (), 2 * piece + PARTS, self._everybody))
        start, stop = self._share(piece, self._rank)
        if start == stop:
            return index
        parts = tuple(self._slots(piece))
        own = Block("partial", start, stop) if self._contributes else None
        return self._program.add(Sum("main", (), parts, own, Block("result", start, stop)))

    def send_parts(self, piece: int, multiplied: tuple[int, ...]) -> None:
        """Send the partial products of a piece to their owners, beside the next GEMM."""
        self._program.send("copy", multiplied, self._parts(piece, meets(self._rank, self._nprocs)), 2 * piece + PARTS)

    def add(self, piece: int) -> None:
        """Add the own share of a piece, and send the sums to all."""
        self._program.send("copy", (self._sum(piece),), self._sums(piece), 2 * piece + RESULTS)

    def reduce_by_tiles(self, count: int) -> None:
        """Form all pieces by one kernel, which adds the own shares; copies beside it bring those of the others.

        Those of the last piece another kernel pushes: no GEMM is left that the multiprocessors would be taken from.
        """
        last = count - 1
        pieces = [self._piece(piece, last=piece == last) for piece in range(count)]
        _multiply_reduce(self._program, self._plan, self._rank, pieces)
        self._program.burst("main", self._sums(last), 2 * last + RESULTS, self._rank)
        self.collect(last)

    def _piece(self, piece: int, *, last: bool) -> _Piece:
        phase, target = 2 * piece + PARTS, Block("result", *self._share(piece, self._rank))
        made = _Piece(phase, self._parts(piece, range(self._nprocs)), self._slots(piece), target)
        if last:
            return made
        made = replace(made, gets=tuple(self._gets(piece)))
        if not len(target):
            self._program.add(Signal("main", (), tuple(meets(self._rank, self._nprocs)), phase + 1))
            return made
        return replace(made, offered=Block("results", target.start, target.stop))

    def _gets(self, piece: int) -> Iterator[Op]:
        """Await the finished lines of the others, and copy them to D from where they were made."""
        yield Await("copy", (), 2 * piece + RESULTS, self._everybody)
        for peer in self._everybody:
            block = self._share(piece, peer)
            if block[0] < block[1]:
                yield Get("copy", (), peer, Block("results", *block), Block("result", *block))

    def all_reduce(self, piece: int) -> None:
        """The last piece, by a kernel: no GEMM is left that the multiprocessors would be taken from."""
        lines = self._borders[piece], self._borders[piece + 1]
        phase = 2 * piece + PARTS
        self._program.add(AllReduce("main", (), 2, Block("pulled", *lines), Block("result", *lines), phase))

    def collect(self, piece: int) -> None:
        """Await the finished lines of the others, and copy them out of the workspace."""
        self._program.add(Await("main", (), 2 * piece + RESULTS, self._everybody))
        start, stop = self._borders[piece], self._borders[piece + 1]
        own = self._share(piece, self._rank)
        for block in ((start, own[0]), (own[1], stop)):
            if block[0] < block[1]:
                self._program.add(CopyOut("main", (), Block("results", *block), Block("result", *block)))
