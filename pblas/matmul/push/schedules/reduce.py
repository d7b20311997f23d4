"""The schedules of a GemmReduceScatter and a GemmAllReduce: partial products go to the ranks that add them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

from pblas.backends.engine_limits import Lane
from pblas.matmul.one_dimensional_plan import GemmAllReduce, GemmReduceScatter
from pblas.matmul.push.schedules.operations import (
    PARTS,
    RESULTS,
    AllReduce,
    Block,
    Buffer,
    Burst,
    CopyOut,
    GemmReduce,
    Get,
    Gets,
    Multiply,
    Op,
    Program,
    Put,
    ReduceScatter,
    Signal,
    Strip,
    Sum,
    Wait,
    WaitTile,
    groups_of,
    merged,
    receive_order,
    send_order,
    shard_starts,
    starts,
)
from pblas.plans.algorithm import Algorithm
from pblas.plans.partition import ahead


def gemm_reduce_scatter(program: Program, plan: GemmReduceScatter, rank: int) -> None:
    """Send partial products to the owners of their lines, and add those of the own lines."""
    nprocs, algorithm = plan.product.nprocs, plan.push_algorithm
    first = shard_starts(plan)
    lines, count = {r: Block("partial", first[r], first[r + 1]) for r in range(nprocs)}, plan.shards.count(rank)
    contributes = plan.contributes(rank)
    sent = {r: (r, lines[r] if contributes else Block("partial", 0, 0), Block("slots", 0, len(lines[r]), rank))
            for r in range(nprocs)}  # fmt: skip
    order = [*reversed(list(send_order(rank, nprocs))), rank]
    if algorithm.kind == "sm_push":
        whole = Block("partial", 0, first[-1])
        if len(whole) and contributes:
            program.add(Multiply("main", target=whole))
        program.add(ReduceScatter("main", whole, Block("result", 0, count)))
        return
    if algorithm.is_one_kernel:
        _multiply_reduce(program, plan, rank, list(_pieces_of_parts(plan, rank)))
        return
    for group in groups_of(order, tuple(reversed(algorithm.groups))):
        after: tuple[int, ...] = ()
        if contributes:
            for start, stop in merged([(first[r], first[r + 1]) for r in group]):
                after = (program.add(Multiply("main", target=Block("partial", start, stop))),)
        program.send("copy", [sent[peer] for peer in group if peer != rank], PARTS, after)
    program.add(Wait("main", PARTS, tuple(receive_order(rank, nprocs))))
    if count:
        slots = [Block("slots", 0, count, source) for source in adds(plan, rank)]
        program.add(Sum("main", tuple(slots), lines[rank] if contributes else None, Block("result", 0, count)))


def _pieces_of_parts(plan: GemmReduceScatter, rank: int) -> Iterator[_Piece]:
    """The pieces of each owner's shard of D: with pieces, less is left to send after the last GEMM step."""
    borders, sources = plan.borders, list(adds(plan, rank))
    first, contributes = starts([inner[-1] for inner in borders]), plan.contributes(rank)
    for i in range(len(plan.push_algorithm.groups)):
        sent = [
            (r, Block("partial", first[r] + a, first[r] + (b if contributes else a)), Block("slots", a, b, rank))
            for r, (a, b) in enumerate(inner[i : i + 2] for inner in borders)
        ]
        lines = borders[rank][i], borders[rank][i + 1]
        parts = [Block("slots", *lines, source) for source in sources]
        yield _Piece(2 * i + PARTS, sent, parts, Block("result", *lines))


def adds(plan: GemmReduceScatter, owner: int) -> Iterator[int]:
    """The other ranks whose partial products `owner` adds, in the order in which it adds them.

    It is the plan's order; in one kernel with tile signals it is the order of arrival.
    """
    if not plan.push_algorithm.is_one_kernel:
        return plan.sources(owner)
    return (source for source in receive_order(owner, plan.product.nprocs) if plan.contributes(source))


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of D on one rank. Each rank owns some lines of the piece and adds the partial products of these."""

    phase: int  # phase of the flags of partial products; flags of sums have the next phase
    # for every rank, including this one: the rank, its lines of the partial product, and its slot for them
    sent: list[tuple[int, Block, Block]]
    parts: list[Block]  # slots to add to the own lines, in this order
    target: Block  # the own lines of D
    published: Block | None = None  # block of the workspace where peers read the own sums; None if they do not
    puts: tuple[Put, ...] = ()  # copies of the own sums to the peers, if this rank sends them
    collects: tuple[Op, ...] = ()  # concurrent operations that copy the peers' sums to D


def _multiply_reduce(program: Program, plan: GemmReduceScatter, rank: int, pieces: list[_Piece]) -> None:
    """One GEMM of some pieces of D, which also adds the own lines of each piece.

    It forms the own lines of a piece after all or some of the lines that the next piece sends, while the peers' partial
    products arrive. With fused stores the signals come a round later. It then forms the own lines after those of the
    next two pieces, and may interleave them with the second of these.
    """
    nprocs, contributes = plan.product.nprocs, plan.contributes(rank)
    peers, sources = tuple(send_order(rank, nprocs)), tuple(receive_order(rank, nprocs))
    algorithm, soon = plan.push_algorithm, len(peers)
    if isinstance(plan, GemmAllReduce):
        soon = ahead(nprocs, len(pieces), plan.inner.max_count) if algorithm.kind == "tile_signals" else 2 * len(peers)
    made, sent = _Strips(program, rank, peers, algorithm), [(piece, peer) for piece in pieces for peer in peers]
    begin = 0
    for number, piece in enumerate(pieces, 1):
        end = number * len(peers) + soon
        for lines, entries in groupby(sent[begin:end], itemgetter(0)):
            made.send(lines, tuple(peer for _, peer in entries))
        made.add(piece)
        begin = end
    afterwards = list[Wait]()
    for piece in pieces:
        awaited = {part.slot for part in piece.parts} if contributes and len(piece.target) else set[int]()
        unheard = tuple(source for source in sources if source not in awaited)
        if unheard and not len(piece.target):  # a rank without sums sends first what others wait for
            afterwards.append(Wait("main", piece.phase, unheard))
        elif unheard:  # sums may go to the D of these peers, so they must have begun this call
            program.add(Wait("main", piece.phase, unheard))
        if not contributes and len(piece.target):
            _add_alone(program, piece, peers)
    if made.strips:
        program.add(GemmReduce("main", tuple(made.strips), tuple(made.concurrent)))
    else:
        program.ops += made.concurrent
    for wait in afterwards:
        program.add(wait)


class _Strips:
    """Builds the strips of a GemmReduce in order, and its concurrent operations."""

    def __init__(self, program: Program, rank: int, peers: tuple[int, ...], algorithm: Algorithm) -> None:
        self._program, self._rank, self._peers, self._algorithm = program, rank, peers, algorithm
        self.strips: list[Strip] = []
        self.concurrent: list[Op] = []

    def send(self, piece: _Piece, peers: tuple[int, ...]) -> None:
        """Add the lines of a piece for some peers."""
        lines = {to[0]: to for to in piece.sent if len(to[1])}
        silent = tuple(peer for peer in peers if peer not in lines)
        if silent:
            self._program.add(Signal("main", silent, piece.phase))
        for peer, source, slot in (lines[peer] for peer in peers if peer in lines):
            if self._algorithm.kind == "fused_stores":
                self.strips.append(Strip(source, piece.phase, (Put("main", peer, source, slot),)))
            else:
                put = Put("copy", peer, source, slot)
                self.concurrent += [WaitTile("copy", len(self.strips)), put, Signal("copy", (peer,), piece.phase)]
                self.strips.append(Strip(source, piece.phase))

    def add(self, piece: _Piece) -> None:
        """Add the own lines of a piece, and the operations that collect the peers' sums."""
        own = next((source for peer, source, _ in piece.sent if peer == self._rank and len(source)), None)
        if own is not None:
            if piece.collects:
                self.concurrent.append(WaitTile("copy", len(self.strips)))
                if not piece.puts:
                    self.concurrent.append(Signal("copy", self._peers, piece.phase + 1))
            self.strips.append(Strip(own, piece.phase, piece.puts, piece.target, tuple(piece.parts), piece.published))
        self.concurrent += piece.collects


def _add_alone(program: Program, piece: _Piece, peers: tuple[int, ...]) -> None:
    """Add the own lines of a piece without a GEMM, since this rank contributes nothing to it."""
    program.add(Sum("main", tuple(piece.parts), None, piece.target))
    if piece.published is not None:
        program.add(CopyOut("main", piece.target, piece.published))
    if piece.puts:
        program.add(Burst("main", piece.puts, piece.phase + 1, peers))
    elif piece.collects:
        program.add(Signal("main", peers, piece.phase + 1))


def gemm_all_reduce(program: Program, plan: GemmAllReduce, rank: int) -> None:
    """Send partial products to the ranks that add them, and sums to all ranks; arguments as `gemm_reduce_scatter`."""
    algorithm, n = plan.push_algorithm, plan.oriented.n
    if algorithm.kind == "one_shot":
        assert len(algorithm.groups) == 1, "one shot takes all of D"
        whole = Block("partial", 0, n)
        if n and plan.contributes(rank):
            program.add(Multiply("main", target=whole))
        program.add(AllReduce("main", 1, whole, Block("result", 0, n)))
        return
    # All operations but copies are on the main lane, between GEMMs: concurrent with a GEMM, sums take five times as
    # long, and waits hold multiprocessors (docs/decisions/0008-all-reduces-by-pieces.md).
    pieces, copied = _Pieces(program, plan, rank), len(plan.copied_pieces)
    if algorithm.kind == "fused_stores":
        pieces.reduce_by_stores(copied)
        return
    if algorithm.kind == "tile_signals":
        pieces.reduce_by_tiles(copied)
        return
    for piece in range(copied):
        pieces.send_parts(piece, pieces.multiply(piece, "partial"))
        if piece:
            pieces.add(piece - 1)
        if piece > 1:
            pieces.collect(piece - 2)
    if algorithm.kind == "two_shot":
        pieces.multiply(copied, "pulled")
    if copied:
        pieces.add(copied - 1)
    if algorithm.kind == "two_shot":
        pieces.all_reduce(copied)
    for piece in range(max(copied - 2, 0), copied):
        pieces.collect(piece)


class _Pieces:
    """The pieces of a GemmAllReduce: every rank computes all of each and owns a share of each."""

    def __init__(self, program: Program, plan: GemmAllReduce, rank: int) -> None:
        self._program, self._plan, self._rank = program, plan, rank
        self._nprocs, self._contributes = plan.product.nprocs, plan.contributes(rank)
        self._cut, self._shares = plan.pieces, plan.shares_of_pieces
        self._peers, self._sources = tuple(send_order(rank, self._nprocs)), tuple(receive_order(rank, self._nprocs))

    def _slot_of(self, piece: int, owner: int, source: int) -> Block:
        """The owner's lines of a piece in its slot for `source`, after the lines of earlier pieces."""
        before = sum(stop - start for start, stop in (self._shares[i][owner] for i in range(piece)))
        start, stop = self._shares[piece][owner]
        return Block("slots", before, before + stop - start, source)

    def multiply(self, piece: int, buffer: Buffer) -> tuple[int, ...]:
        """The GEMM of a piece; its index, if there is one."""
        start, stop = self._cut[piece]
        if not self._contributes or start == stop:
            return ()
        return (self._program.add(Multiply("main", target=Block(buffer, start, stop))),)

    def _parts(self, piece: int, peers: Iterable[int]) -> list[tuple[int, Block, Block]]:
        """The copies of a piece's partial products to some ranks; empty ones if this rank contributes nothing."""
        shares = [(peer, *self._shares[piece][peer]) for peer in peers]
        return [
            (peer, Block("partial", a, b if self._contributes else a), self._slot_of(piece, peer, self._rank))
            for peer, a, b in shares
        ]

    def _sums(self, piece: int) -> list[tuple[int, Block, Block]]:
        """The copies of this rank's sums of a piece to all peers."""
        share = self._shares[piece][self._rank]
        return [(peer, Block("result", *share), Block("results", *share)) for peer in self._peers]

    def _slots(self, piece: int) -> list[Block]:
        """The slots with the peers' partial products of the own share of a piece."""
        return [self._slot_of(piece, self._rank, source) for source in adds(self._plan, self._rank)]

    def _sum(self, piece: int) -> int:
        """Await the partial products of a piece and add them; the index of the last operation."""
        index = self._program.add(Wait("main", 2 * piece + PARTS, self._sources))
        start, stop = self._shares[piece][self._rank]
        if start == stop:
            return index
        parts = tuple(self._slots(piece))
        own = Block("partial", start, stop) if self._contributes else None
        return self._program.add(Sum("main", parts, own, Block("result", start, stop)))

    def send_parts(self, piece: int, multiplied: tuple[int, ...]) -> None:
        """Send the partial products of a piece to their owners, during the next GEMM."""
        self._program.send("copy", self._parts(piece, self._peers), 2 * piece + PARTS, multiplied)

    def add(self, piece: int) -> None:
        """Add the own share of a piece, and send the sums to all."""
        self._program.send("copy", self._sums(piece), 2 * piece + RESULTS, (self._sum(piece),))

    def reduce_by_tiles(self, count: int) -> None:
        """Form all pieces by one kernel, which adds the own shares; concurrent copies bring the peers' shares.

        A second kernel gets the peers' shares of the last piece: no GEMM is left that needs the multiprocessors.
        """
        last = count - 1
        pieces = [self._publishing(piece, last=piece == last) for piece in range(count)]
        _multiply_reduce(self._program, self._plan, self._rank, pieces)
        self._program.add(Burst("main", (), 2 * last + RESULTS, self._peers, self._sources))
        gets = tuple(self._gets(last, "main"))
        if gets:
            self._program.add(Gets("main", gets))

    def reduce_by_stores(self, count: int) -> None:
        """Form all pieces by one kernel, which stores partial products at their owners, and own sums at all ranks."""
        pieces, collected_last = list[_Piece](), list[int]()
        for number in range(count):
            piece = self._piece(number)
            if len(piece.target):
                piece = replace(piece, puts=tuple(Put("main", *sums) for sums in self._sums(number)))
            else:
                self._have_no_sums(piece)
            if piece.puts and number < count - 1:
                piece = replace(piece, collects=tuple(self._collects(number, "copy")))
            else:
                collected_last.append(number)
            pieces.append(piece)
        _multiply_reduce(self._program, self._plan, self._rank, pieces)
        for number in collected_last:
            self.collect(number)

    def _publishing(self, number: int, *, last: bool) -> _Piece:
        piece = self._piece(number)
        if len(piece.target):
            piece = replace(piece, published=Block("results", piece.target.start, piece.target.stop))
        if last:
            return piece
        if not len(piece.target):
            self._have_no_sums(piece)
        awaits = Wait("copy", piece.phase + 1, self._sources)
        return replace(piece, collects=(awaits, *self._gets(number, "copy")))

    def _piece(self, piece: int) -> _Piece:
        phase, target = 2 * piece + PARTS, Block("result", *self._shares[piece][self._rank])
        return _Piece(phase, self._parts(piece, range(self._nprocs)), self._slots(piece), target)

    def _have_no_sums(self, piece: _Piece) -> None:
        """Signal that this rank has no sums of a piece to send."""
        self._program.add(Signal("main", self._peers, piece.phase + 1))

    def _gets(self, piece: int, lane: Lane) -> Iterator[Get]:
        """Copies of the peers' finished lines from their workspaces to D."""
        for peer in self._sources:
            block = self._shares[piece][peer]
            if block[0] < block[1]:
                yield Get(lane, peer, Block("results", *block), Block("result", *block))

    def all_reduce(self, piece: int) -> None:
        """Reduce the last piece by a kernel: no GEMM is left that needs the multiprocessors."""
        lines = self._cut[piece]
        target = Block("result", *lines)
        self._program.add(AllReduce("main", 2, Block("pulled", *lines), target, 2 * piece + PARTS))

    def collect(self, piece: int) -> None:
        """Await the peers' finished lines, and copy them out of the workspace."""
        self._program.ops += self._collects(piece, "main")

    def _collects(self, piece: int, lane: Lane) -> Iterator[Op]:
        yield Wait(lane, 2 * piece + RESULTS, self._sources)
        start, stop = self._cut[piece]
        own = self._shares[piece][self._rank]
        for block in ((start, own[0]), (own[1], stop)):
            if block[0] < block[1]:
                yield CopyOut(lane, Block("results", *block), Block("result", *block))
