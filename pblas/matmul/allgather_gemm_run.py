"""AllGatherGemm on one rank: the shards of the right operand are multiplied one after the other, the own shard first.

    D[i, :] += op(A)[i, k] op(B)[k, :]     if the shards are rows k of op(B)
    D[i, j] = op(A)[i, :] op(B)[:, j]      if the shards are columns j of op(B)

Ranks of one node read a shard in place, in the owner's window. Between nodes shards are sent in pieces, each to one
rank of a node: the ranks take turns. The receiver signals that a piece has arrived, and its node reads the piece in
place. A rank has memory for the pieces of one shard, which arrive while the GEMM multiplies the own shard or another
one. Before a later piece takes the memory of an earlier one, the ranks that read the earlier one signal so.

All ranks of a node read the shards of other nodes in the same order, since the numbers of a node's ranks are
consecutive. So the rank that has read least always finds its next piece, or memory for it.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pblas.backends.cpu.pointwise import evaluate_into
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.matmul.local_gemm_run import IndexRuns, Operands, Orders, gemm_runs, side_by_side, widened
from pblas.plans.partition import backwards, pieces, receiver
from pblas.redistribution.transfer import SourceMatrix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pblas.backends.dtypes import Array, Dtype, ProductDtypes
    from pblas.backends.host_ranks import HostRanks
    from pblas.backends.transport import Transfer
    from pblas.matmul.one_dimensional_plan import AllGatherGemm, GatherStep


TAG, TAG_ARRIVED, TAG_READ = 1000, 1003, 1004


class RunAllGatherGemm:
    """Runs an AllGatherGemm plan on one rank."""

    peers_read = True  # see `Executor`: peers read an operand, or a copy of it made before an agreement (global)

    def __init__(self, plan: AllGatherGemm, backend: HostRanks, dtypes: ProductDtypes, orders: Orders) -> None:
        self._along_k, self._total = plan.along_k, dtypes.total
        self._arrays = backend.arrays
        self._gather = Gather(backend, plan, dtypes.b, orders.right)
        self._m = IndexRuns.of_rows(plan.oriented, backend.rank)
        self._steps = []
        for step in plan.steps(backend.rank):
            shard = plan.shards.ranges(step.source)
            if plan.along_k:
                n, k = IndexRuns([(0, step.c0, step.c1 - step.c0)]), IndexRuns.global_to_local(shard)
            else:
                n, k = IndexRuns.global_to_local(shard, step.c0, step.c1).flipped(), IndexRuns.whole(plan.oriented.k)
            self._steps.append((step, n, k))
        self._pieces = Counter(step.source for step, *_ in self._steps)

    def run(self, x: Operands) -> None:
        """D[i, :] = alpha op(A)[i, :] op(B) + beta C[i, :] for the rows i of this rank."""
        self._gather.begin()
        arrays, beta = self._arrays, x.beta
        packs_blocks, total = arrays.traits.packs_blocks, self._sums_of(x)
        left, k_left, source = x.left, IndexRuns.whole(0), -1
        for step, n, k in self._steps:
            # op(B)[k, j], a piece of the shard of rank step.source   (the next pieces travel meanwhile)
            right = self._gather.fetch(step)
            if step.source != source:  # the first piece of a shard
                beta = 1.0 if self._along_k and source >= 0 else beta
                left, k_left = self._columns_of_a(x, step, k)
                source = step.source
            # D[i, j] = alpha op(A)[i, k] op(B)[k, j] + beta C[i, j]   (or += alpha op(A)[i, k] op(B)[k, j])
            gemm_runs(x.alpha, left, right, beta, total, self._m, n, k_left, x.conj, self._gemm, packs_blocks)
        if x.finish is not None:  # D = epilogue(sums)
            evaluate_into(x.finish.tree, total, x.finish.operands, x.result)
        elif total is not x.result:  # D = sums, rounded
            arrays.assign(total, x.result)
        self._gather.end()

    def _sums_of(self, x: Operands) -> Array:
        """The array in which the products of all shards are added."""
        return widened(x, self._total, self._arrays)

    def _columns_of_a(self, x: Operands, step: GatherStep, k: IndexRuns) -> tuple[Array, IndexRuns]:
        """Op(A)[:, k] and its runs: packed once for all pieces of a shard, if a product over each run is slow."""
        packs = self._along_k and self._arrays.traits.packs_blocks and self._pieces[step.source] > 1
        packs = packs and self._m.runs == IndexRuns.whole(len(x.left)).runs
        return side_by_side(x.left, k) if packs else (x.left, k)

    @property
    def workspace_nbytes(self) -> int:
        return self._gather.workspace_nbytes

    def publish(self, operands: Operands) -> bool:
        return self._gather.source_matrix.publish(operands.right)

    @property
    def _gemm(self) -> Callable[..., None]:
        """The product of two blocks; looked up at each run, since traces replace it."""
        return self._arrays.gemm

    def prepare(self, *, scratch: bool) -> bool:
        """**Collective.** Stage the shards if any rank must; true if the ranks must then agree once more."""
        if scratch:
            self._gather.source_matrix.stage()
        return scratch


@dataclass(frozen=True, slots=True)
class _FarPiece:
    """A piece from another node, in the memory of the rank that receives it."""

    index: int  # number in the order in which the ranks of the node read such pieces (global to the node)
    number: int  # number among the pieces that the same rank receives (global to the node)
    step: GatherStep  # source and columns (global to the node)
    receiver: int  # the rank that receives it (global to the node)
    offset: int  # first byte in the receiver's memory for pieces (global to the node)
    is_reused: bool  # a later piece takes the same memory (global to the node)


class Gather:
    """Transfers of one AllGatherGemm plan; the memory for pieces lives as long as the plan."""

    def __init__(self, backend: HostRanks, plan: AllGatherGemm, dtype: Dtype, order: Literal["F", "C"]) -> None:
        self._backend, self._plan, self._dtype, self._order = backend, plan, dtype, order
        rank = backend.rank
        rows = plan.oriented.d.split
        assert rows is not None, "AllGatherGemm splits D"
        readers = [list(filter(rows.count, group)) for group in backend.groups]
        group_of = {reader: group for group in readers for reader in group}
        self._group = group_of.get(rank, [])  # ranks of this node that read what arrives on it
        others: dict[int, list[int]] = {}
        for peer in backwards(rank, plan.product.nprocs):
            group = group_of.get(peer, self._group)
            if group is not self._group and not backend.is_near(peer):
                others.setdefault(group[0], group)
        self._sends_to = list(others.values())  # such ranks of other nodes, in the order in which they read this shard
        self.source_matrix: SourceMatrix = SourceMatrix(backend, _placement(plan), dtype, order)
        self._far = list(self._far_pieces())
        self._received_here = [piece for piece in self._far if piece.receiver == rank]
        nbytes = max((piece.offset + self._nbytes(piece.step) for piece in self._received_here), default=0)
        is_read = backend.shared and len(backend.groups) > 1
        self._memory = backend.allocate_scratch(plan.held_nbytes) if is_read else backend.buffer(nbytes)

    def _far_pieces(self) -> Iterator[_FarPiece]:
        """The pieces that come from other nodes, in the order in which this rank reads them."""
        plan, backend = self._plan, self._backend
        steps = [s for s in plan.steps(backend.rank) if s.source != backend.rank and not backend.is_near(s.source)]
        receivers = [receiver(self._group, step.source, step.piece) for step in steps]
        totals, counts, nbytes = Counter(receivers), Counter[int](), Counter[int]()
        for index, (step, rank) in enumerate(zip(steps, receivers, strict=True)):
            number, offset, is_reused = counts[rank], nbytes[rank], False
            if plan.overlap:
                offset = number % plan.in_flight * (plan.held_nbytes // plan.in_flight)
                is_reused = number + plan.in_flight < totals[rank]
            counts[rank] += 1
            nbytes[rank] += self._nbytes(step)
            yield _FarPiece(index, number, step, rank, offset, is_reused)

    @property
    def workspace_nbytes(self) -> int:
        return int(self._memory.nbytes) + self.source_matrix.workspace_nbytes

    def begin(self) -> None:
        """Start to send the own shard to other nodes and to receive the pieces that this rank receives for its node."""
        channel, shard, rank = self._backend.channel, self.source_matrix.local, self._backend.rank
        is_sent = shard.size and self._sends_to
        cuts = pieces(shard.shape[1], self._plan.chunks) if is_sent else ()
        parts = [(piece, self._tight(shard[:, c0:c1])) for piece, c0, c1 in cuts]
        self._leaving = [
            channel.send(part, receiver(group, rank, piece), TAG) for group in self._sends_to for piece, part in parts
        ]
        self._read = 0  # far pieces that this rank has read
        self._arrived = 0  # pieces that have arrived here
        self._waiting = deque(self._received_here)
        self._posted: deque[Transfer] = deque()
        self._held: deque[tuple[_FarPiece, list[Transfer]]] = deque()  # pieces in memory here, and signals of readers
        self._in_use: _FarPiece | None = None
        self._progress()
        if not self._plan.overlap:
            self._wait(lambda: self._arrived == len(self._received_here), "AllGatherGemm: gathering before the GEMM")

    def fetch(self, step: GatherStep) -> Array:
        """The columns that a step multiplies, once they have arrived; valid until the next fetch."""
        backend = self._backend
        if self._far:
            self._release()
            self._progress()
        is_near = backend.is_near(step.source)
        if is_near or step.source == backend.rank:
            columns = self.source_matrix.array(step.source)[:, step.c0 : step.c1]
            backend.read_nbytes += columns.nbytes if is_near else 0
            return columns
        piece = self._in_use = self._far[self._read]
        text = f"AllGatherGemm: shard of rank {step.source}, piece {step.piece}"
        if piece.receiver == backend.rank:
            self._wait(lambda: self._arrived > piece.number, text)
            return self._columns(piece)
        signal = backend.channel.await_signal(piece.receiver, TAG_ARRIVED)
        self._wait(signal.done, f"{text}, which rank {piece.receiver} receives")
        backend.sync()
        columns = self._columns(piece)
        backend.read_nbytes += columns.nbytes
        return columns

    def end(self) -> None:
        """Return when no message reads the own shard any more; the node may still read pieces that arrived here."""
        self._release()
        for transfer in self._leaving:
            self._backend.wait(transfer.done, "AllGatherGemm: sending the own shard")
        self._leaving = []
        self.source_matrix.release()

    def _tight(self, part: Array) -> Array:
        """A piece without gaps: MPI packs strided memory in many small steps, one for each poll of a TCP connection."""
        if not self._backend.arrays.traits.packs_blocks or part.flags.forc:
            return part
        tight: Array = part.copy(order="K")
        return tight

    def _release(self) -> None:
        """Note that the piece of the last fetch is read, and signal it to its receiver if that needs the memory."""
        piece, self._in_use = self._in_use, None
        if piece is not None:
            self._read += 1
            if piece.is_reused and piece.receiver != self._backend.rank:
                self._backend.sync()
                self._leaving.append(self._backend.channel.signal(piece.receiver, TAG_READ))

    def _progress(self) -> None:
        """Signal the pieces that have arrived, and receive further ones in memory that all readers have released."""
        backend, channel = self._backend, self._backend.channel
        readers = [reader for reader in self._group if reader != backend.rank]
        while self._posted and self._posted[0].done():
            self._posted.popleft()
            self._arrived += 1
            backend.sync()
            self._leaving += [channel.signal(reader, TAG_ARRIVED) for reader in readers]
        while self._held and self._held[0][0].index < self._read and all(read.done() for read in self._held[0][1]):
            self._held.popleft()
        while self._waiting and (len(self._held) < self._plan.in_flight or not self._plan.overlap):
            piece = self._waiting.popleft()
            self._posted.append(channel.receive(self._columns(piece), piece.step.source, TAG))
            signals = [channel.await_signal(reader, TAG_READ) for reader in readers if piece.is_reused]
            self._held.append((piece, signals))

    def _wait(self, is_done: Callable[[], bool], text: str) -> None:
        """Return when `is_done`; further pieces are received meanwhile."""

        def progressed() -> bool:
            self._progress()
            return is_done()

        self._backend.wait(progressed, text)

    def _nbytes(self, step: GatherStep) -> int:
        return self._plan.shard_shape(step.source)[0] * (step.c1 - step.c0) * self._dtype.itemsize

    def _columns(self, piece: _FarPiece) -> Array:
        """A piece in the memory of its receiver."""
        shape = self._plan.shard_shape(piece.step.source)[0], piece.step.c1 - piece.step.c0
        return self._backend.peer_block(self._memory, piece.receiver, piece.offset, shape, self._dtype, self._order)


def _placement(plan: AllGatherGemm) -> Placement:
    """Placement of the gathered operand, in the plan's orientation."""
    product, shards = plan.oriented, plan.shards
    across = product.n if plan.along_k else product.k
    whole = Split(across, max(1, across), 1)
    rows, columns = (shards, whole) if plan.along_k else (whole, shards)
    return Placement(rows, columns, (1, 1, 1))
