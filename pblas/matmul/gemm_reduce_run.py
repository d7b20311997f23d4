"""GemmReduceScatter and GemmAllReduce on one rank: partial products of others' columns first, the own columns last.

    partial D[:, j] = alpha op(A)[:, k] op(B)[k, j]     for this rank's k and each other rank's columns j; it goes there
    D[:, j] = beta C[:, j] + partial D[:, j] of all ranks                                  for this rank's own columns j

On one node the first contributor forms its partial product in the owner's accumulator itself, which is D's memory if
possible. The other contributors use slots of their own windows. An empty message then signals the partial product.
Between nodes a partial product is sent in pieces. A rank has buffers for as many outgoing pieces as a shard has: they
leave while it multiplies its own columns. Two more receive the pieces that it adds. Finished columns are sent to one
rank of each other node, which sends them on to its node: the ranks of the node take turns.

The owner always adds in the plan's order, so that the bits are the same with every transport.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.backends.cpu.pointwise import evaluate_into
from pblas.matmul.local_gemm_run import IndexRuns, Operands, Orders, gemm_runs
from pblas.matmul.one_dimensional_plan import GemmReduceScatter, ReduceStep
from pblas.plans.partition import receiver

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array, Dtype, Order, ProductDtypes
    from pblas.backends.host_ranks import HostRanks
    from pblas.backends.transport import Transfer

    Columns = Callable[[int, int, int, int], Array]


TAG_PART, TAG_DONE, TAG_RELAYED = 1001, 1002, 1005


class RunGemmReduce:
    """Runs a GemmReduceScatter or GemmAllReduce plan on one rank."""

    def __init__(self, plan: GemmReduceScatter, backend: HostRanks, dtypes: ProductDtypes, orders: Orders) -> None:
        self._plan, self._rank, self._total = plan, backend.rank, dtypes.total
        self._arrays = backend.arrays
        self._reduction = Reduction(backend, plan, dtypes, orders.result)
        self._contributes = plan.contributes(backend.rank)
        self._m, self._k = IndexRuns.whole(plan.oriented.m), IndexRuns.of_inner(plan, backend.rank)
        self._steps = [
            (step, IndexRuns.global_to_local(plan.shards.ranges(step.owner), step.c0, step.c1))
            for step in plan.steps(backend.rank)
        ]

    def run(self, x: Operands) -> None:
        """D[:, j] = alpha op(A) op(B)[:, j] + beta C[:, j] for this rank's columns j, and a share of the others'."""
        self._reduction.begin(x.result, scratch=self._in_scratch)
        for step, n in self._steps:
            if step.owner != self._rank:
                part = self._reduction.outgoing(step)
                # partial D[:, j] = alpha op(A)[:, k] op(B)[k, j]   (for rank step.owner, which has D[:, j])
                self._multiply_part(x, part, n)
                self._reduction.send(step, part)
            else:
                # D[:, j] = beta C[:, j] + partial D[:, j] of the other ranks + alpha op(A)[:, k] op(B)[k, j]
                self._add_own(x, step, n)
                if self._plan.replicates:  # D[:, j] to all ranks
                    self._reduction.broadcast(step)
        self._reduction.end()

    def _multiply_part(self, x: Operands, part: Array, n: IndexRuns) -> None:
        """Part := this rank's partial product, rounded to the precision in which it travels."""
        total = part if part.dtype == self._total else np.empty(part.shape, self._total)
        self._multiply(x, 0.0, total, n)
        if total is not part:
            self._arrays.assign(total, part)

    def _add_own(self, x: Operands, step: ReduceStep, n: IndexRuns) -> None:
        """Complete this rank's columns of a step."""
        arrays, beta, own = self._arrays, x.beta, self._reduction.columns(x.result, step)
        # sum of partial D[:, j] of the other ranks
        others = self._reduction.collect(step)
        total = own if own.dtype == self._total else np.empty(own.shape, self._total)
        if x.old is not None and (x.old is not x.result or total is not own):
            arrays.assign(self._reduction.columns(x.old, step), total)
        if others:  # D[:, j] = beta C[:, j] + partial D[:, j] of the other ranks
            parts = self._reduction.accumulator(step)
            if x.old is not None:
                arrays.add_scaled(1.0, parts, beta, total)
            elif parts is not total:
                arrays.assign(parts, total)
            beta = 1.0
        if self._contributes:  # D[:, j] += alpha op(A)[:, k] op(B)[k, j]
            self._multiply(x, beta, total, n)
        else:
            arrays.scale(beta, total)
        finish = x.finish_of(lambda z: self._reduction.columns(z, step))
        if finish is not None:  # D[:, j] = epilogue(D[:, j])
            evaluate_into(finish.tree, total, finish.operands, own)
        elif total is not own:
            arrays.assign(total, own)

    def _multiply(self, x: Operands, beta: complex, z: Array, n: IndexRuns) -> None:
        """Z := alpha op(A)[:, k] op(B)[k, n] + beta Z over this rank's k."""
        arrays = self._arrays
        gemm_runs(
            x.alpha, x.left, x.right, beta, z, self._m, n, self._k, x.conj, arrays.gemm, arrays.traits.packs_blocks
        )

    @property
    def workspace_nbytes(self) -> int:
        return self._reduction.workspace_nbytes

    @property
    def peers_read(self) -> bool:
        """See `Executor`: peers read sums that all ranks get, and workspace that other plans use too (global).

        A rank has all partial products when it returns. Its own workspace is overwritten only after an agreement.
        """
        return self._reduction.peers_read

    def publish(self, operands: Operands) -> bool:
        """Publish the location of the own shard of D; true if other ranks cannot add there."""
        self._needs_scratch = self._total != operands.result.dtype or operands.beta != 0
        return self._reduction.publish(operands.result, needs_scratch=self._needs_scratch)

    def prepare(self, *, scratch: bool) -> bool:
        """Note whether sums are formed in scratch memory, not in D. No agreement is needed."""
        self._in_scratch = scratch or self._needs_scratch
        return False


class Reduction:
    """Transfers of one GemmReduceScatter or GemmAllReduce plan; the buffers live as long as the plan."""

    def __init__(self, backend: HostRanks, plan: GemmReduceScatter, dtypes: ProductDtypes, order: Order) -> None:
        self._backend, self._plan, self._order = backend, plan, order
        self._wire, self._total, self._dtype = wire, total, dtype = dtypes.wire, dtypes.total, dtypes.d
        rank, m = backend.rank, plan.oriented.m
        self._m, self._largest, self._nb = m, plan.shards.max_count, plan.shards.nb
        self._others = [peer for peer in range(plan.product.nprocs) if peer != rank]
        self._near = [peer for peer in self._others if backend.is_near(peer)]
        self._group = next(group for group in backend.groups if rank in group)
        self._far_groups = [
            group for group in backend.groups if rank not in group and not any(map(backend.is_near, group))
        ]
        ranks = range(plan.product.nprocs)
        self._first = {owner: next(plan.sources(owner), -1) for owner in ranks}
        self._shapes = {owner: (m, plan.shards.count(owner)) for owner in ranks}
        self._own = [ReduceStep(rank, *piece) for piece in plan.owned(rank)]
        self._expectations = self._expected_parts(list(plan.sources(rank)))
        of_others = [ReduceStep(p, *piece) for p in self._others for piece in plan.owned(p)] if plan.replicates else []
        self._results_in_order = sorted(of_others, key=lambda step: (step.piece, step.owner))  # equal on a node's ranks
        self._location = backend.location_table() if backend.shared else None
        nslots = plan.product.nprocs - 1 - (wire == total)
        self._slot_nbytes = m * self._largest * wire.itemsize
        self._slots = backend.allocate_scratch(nslots * self._slot_nbytes) if backend.shared and nslots > 0 else None
        self._workspace_slot, self._scratch = backend.workspace_slot, None
        # The scratch memory holds the sums and, after them, the finished columns if these are narrower: in the memory
        # of the sums they would overwrite the sums of later pieces.
        narrower = total != dtype and backend.shared and plan.replicates
        self._finished_offset = m * self._largest * total.itemsize if narrower else 0
        self._finished_nbytes = m * self._largest * (dtype if narrower else total).itemsize
        far = len(self._near) < len(self._others)
        nbytes = m * plan.piece_width * wire.itemsize
        self._outgoing = [backend.buffer(nbytes) for _ in range(plan.in_flight)] if far else []
        self._incoming = [backend.buffer(nbytes) for _ in range(2)] if far else []
        self._sum: Array

    def _expected_parts(self, sources: list[int]) -> list[tuple[int, ReduceStep]]:
        """Sources and columns of the partial products that this rank adds, in the order in which it adds them."""
        if self._plan.replicates:
            return [(source, step) for step in self._own for source in sources]
        return [(source, step) for source in sources for step in self._own]

    @property
    def workspace_nbytes(self) -> int:
        blocks = [block for block in (self._slots, self._scratch) if block is not None]
        return sum(buffer.nbytes for buffer in (*self._outgoing, *self._incoming, *blocks))

    @property
    def peers_read(self) -> bool:
        """Whether peers read memory of this rank that may be overwritten before the next agreement (global)."""
        is_shared, replicates = self._workspace_slot is not None, self._plan.replicates
        return (replicates and (is_shared or not self._in_scratch)) or (is_shared and self._slots is not None)

    def publish(self, d: Array, *, needs_scratch: bool) -> bool:
        """Publish the location of this rank's shard of D; true if it is in no window, so that ranks use scratch.

        `needs_scratch`: the sums are formed in scratch memory anyway.
        """
        if self._location is None:
            if needs_scratch:  # private memory: the next agreement tells all ranks if one has none
                self._allocate_scratch()
            return False
        return not self._backend.publish(self._location, d) and bool(self._near)

    def _allocate_scratch(self) -> None:
        """**Collective** if it is shared memory. Allocate the scratch memory, unless it is there."""
        if self._scratch is None:
            nbytes = self._finished_offset + self._finished_nbytes
            self._scratch = self._backend.allocate_scratch(nbytes, window=self._backend.shared)

    def begin(self, d: Array, *, scratch: bool) -> None:
        """**Collective** at first. Prepare the accumulator, and start to receive partial products."""
        rank, plan = self._backend.rank, self._plan
        if scratch:
            self._allocate_scratch()
            self._sum = self._array(self._scratch, rank, rank, self._total)
        # After the allocation, which may fail: D is kept until `end`.
        self._d, self._in_scratch = d, scratch
        self._expected = deque(self._expectations)
        self._missing = dict.fromkeys((step.piece for step in self._own), 0)
        for _, step in self._expectations:
            self._missing[step.piece] += 1
        self._arriving: deque[tuple[Transfer, int, ReduceStep, Any]] = deque()
        self._sending: deque[tuple[Transfer, Any]] = deque()
        self._free_in, self._free_out = deque(self._incoming), deque(self._outgoing)
        self._signals: list[Transfer] = []
        self._results: list[tuple[Transfer, ReduceStep]] = []
        self._relays: deque[tuple[Transfer, Array]] = deque()  # arriving columns that this rank sends on
        if plan.replicates:
            self._await_results()
        self._post()

    def columns(self, d: Array, step: ReduceStep) -> Array:
        """Columns of D, or of an array like it: those of any owner in a replicated D, otherwise of a rank's shard."""
        if not self._plan.replicates:
            return d[:, step.c0 : step.c1]
        first = (step.piece * self._plan.product.nprocs + step.owner) * self._nb
        return d[:, first : first + step.c1 - step.c0]

    def accumulator(self, step: ReduceStep) -> Array:
        """The owner's accumulator of the columns of a step: in D, or in scratch memory."""
        if self._in_scratch:
            return self._sum[:, step.c0 : step.c1]
        return self.columns(self._d, step)

    def outgoing(self, step: ReduceStep) -> Array:
        """Memory for this rank's partial product of the columns of a step."""
        rank = self._backend.rank
        if not self._backend.is_near(step.owner):
            self._wait(lambda: bool(self._free_out), self._text("sending to", step))
            return self._piece(self._free_out[0], step.c1 - step.c0)
        if not self._in_place(rank, step.owner):
            return self._slot(rank, step.owner)[:, step.c0 : step.c1]
        if self._in_scratch:
            return self._array(self._scratch, step.owner, step.owner, self._total)[:, step.c0 : step.c1]
        return self._owners_columns(step)

    def send(self, step: ReduceStep, part: Array) -> None:
        """Start to send this rank's partial product of a step to the owner of its columns: near owners get a signal."""
        if self._backend.is_near(step.owner):
            self._backend.sync()
            self._signals.append(self._backend.channel.signal(step.owner, TAG_PART))
        else:
            self._sending.append((self._backend.channel.send(part, step.owner, TAG_PART), self._free_out.popleft()))
        if not self._plan.overlap:
            self._wait(lambda: not self._sending, self._text("sending to", step))
        self.progress()

    def collect(self, step: ReduceStep) -> bool:
        """Return when the other ranks' partial products are in the accumulator; false if there are none."""
        if not self._expectations:
            return False
        if self._missing[step.piece]:
            self._wait(lambda: not self._missing[step.piece], self._text("partial products of", step))
        return True

    def broadcast(self, step: ReduceStep) -> None:
        """GemmAllReduce: start to send a step's finished columns to this node's ranks, and one rank per other node."""
        done, channel = self.columns(self._d, step), self._backend.channel
        if self._near and self._in_scratch:
            self._backend.arrays.assign(done, self._finished(step.owner)[:, step.c0 : step.c1])
        self._backend.sync()
        self._signals += [channel.signal(peer, TAG_DONE) for peer in self._near]
        for group in self._far_groups:
            self._signals.append(channel.send(done, receiver(group, step.owner, step.piece), TAG_DONE))
        self.progress()

    def progress(self) -> None:
        """Add the partial products that have arrived, and free the buffers of partial products that have left.

        Also send on, to the ranks of this node, the finished columns that another node has sent to this rank.
        """
        while self._arriving and self._arriving[0][0].done():
            _, source, step, buffer = self._arriving.popleft()
            self._add(source, step, buffer)
            self._post()
        while self._sending and self._sending[0][0].done():
            self._free_out.append(self._sending.popleft()[1])
        while self._relays and self._relays[0][0].done():
            _, done = self._relays.popleft()
            for peer in self._group:
                if peer != self._backend.rank:
                    self._signals.append(self._backend.channel.send(done, peer, TAG_RELAYED))

    def end(self) -> None:
        """Return when all messages have arrived and this rank's messages have left."""
        for transfer, step in self._results:
            self._wait(transfer.done, self._text("result of", step))
            if self._backend.is_near(step.owner):
                self._backend.sync()
                source = self._finished(step.owner)[:, step.c0 : step.c1] if self._in_scratch else None
                result = self._owners_columns(step) if source is None else source
                self._backend.arrays.assign(result, self.columns(self._d, step))
                self._backend.read_nbytes += result.nbytes
        self.progress()
        assert not self._relays, "all results have arrived and are sent on"
        self._wait(lambda: not self._sending, f"{self._plan.name}: sending the last pieces")
        for transfer in self._signals:
            self._backend.wait(transfer.done, f"{self._plan.name}: sending the last pieces")
        del self._d, self._results, self._signals  # a finished execution keeps no matrix alive

    def _in_place(self, source: int, owner: int) -> bool:
        """Whether `source` forms its partial product in the owner's accumulator: the first, if nothing is rounded."""
        return self._wire == self._total and self._first[owner] == source

    def _array(self, block: object, peer: int, owner: int, dtype: Dtype, offset: int = 0) -> Array:
        """A block of rank `peer` as the shard of D that `owner` owns."""
        return self._backend.peer_block(block, peer, offset, self._shapes[owner], dtype, self._order)

    def _finished(self, owner: int) -> Array:
        """The finished columns of `owner`, in its scratch memory."""
        return self._array(self._scratch, owner, owner, self._dtype, self._finished_offset)

    def _slot(self, source: int, owner: int) -> Array:
        """The partial product for `owner` in the workspace of `source`."""
        distance = (source - owner) % self._plan.product.nprocs
        number = distance - 1 - (self._wire == self._total)
        return self._array(self._slots, source, owner, self._wire, number * self._slot_nbytes)

    def _owners_columns(self, step: ReduceStep) -> Array:
        """Columns of D in the memory of their owner."""
        assert self._location is not None, "near peers have published"
        shape = (self._m, self._plan.oriented.n) if self._plan.replicates else self._shapes[step.owner]
        d = self._backend.peer_array(self._location, step.owner, shape, self._dtype, self._order)
        return self.columns(d, step)

    def _piece(self, buffer: Array, columns: int) -> Array:
        return np.ndarray((self._m, columns), self._wire, buffer.data, order=self._order)

    def _await_results(self) -> None:
        """Start to receive finished columns, all ranks of a node in the same order."""
        channel, rank = self._backend.channel, self._backend.rank
        for step in self._results_in_order:
            columns, via = self.columns(self._d, step), receiver(self._group, step.owner, step.piece)
            if self._backend.is_near(step.owner):
                transfer = channel.await_signal(step.owner, TAG_DONE)
            elif via == rank:
                transfer = channel.receive(columns, step.owner, TAG_DONE)
                self._relays.append((transfer, columns))
            else:
                transfer = channel.receive(columns, via, TAG_RELAYED)
            self._results.append((transfer, step))

    def _post(self) -> None:
        """Start to receive the next partial products, in the order in which this rank adds them; returns at once.

        From a near rank it awaits a signal, and needs no buffer. It stops when a far rank's partial product needs a
        buffer and none is free.
        """
        channel = self._backend.channel
        while self._expected:
            source, step = self._expected[0]
            buffer = None
            if self._backend.is_near(source):
                transfer = channel.await_signal(source, TAG_PART)
            elif self._in_place(source, self._backend.rank):
                transfer = channel.receive(self.accumulator(step), source, TAG_PART)
            elif self._free_in:
                buffer = self._free_in.popleft()
                transfer = channel.receive(self._piece(buffer, step.c1 - step.c0), source, TAG_PART)
            else:
                return
            self._expected.popleft()
            self._arriving.append((transfer, source, step, buffer))

    def _add(self, source: int, step: ReduceStep, buffer: Any) -> None:
        """Add a partial product that has arrived to this rank's columns of D, or to their sums."""
        rank, (c0, c1) = self._backend.rank, (step.c0, step.c1)
        self._missing[step.piece] -= 1
        if self._backend.is_near(source):
            self._backend.sync()
            self._backend.read_nbytes += self._m * (c1 - c0) * self._wire.itemsize
        if self._in_place(source, rank):
            return
        part = self._piece(buffer, c1 - c0) if buffer is not None else self._slot(source, rank)[:, c0:c1]
        total = self.accumulator(step)
        # sum = partial D[:, j] of the first rank; sum += partial D[:, j] of the next   (in the plan's order)
        if self._first[rank] == source:
            self._backend.arrays.assign(part, total)
        else:
            self._backend.arrays.add_scaled(1.0, part, 1.0, total)
        if buffer is not None:
            self._free_in.append(buffer)

    def _wait(self, is_done: Callable[[], bool], text: str) -> None:
        """Return when `is_done`; partial products are added meanwhile."""

        def progressed() -> bool:
            self.progress()
            return is_done()

        self._backend.wait(progressed, text)

    def _text(self, what: str, step: ReduceStep) -> str:
        return f"{self._plan.name}: {what} rank {step.owner}, piece {step.piece}"
