"""Runs the schedule of a plan of the push transport on an engine: streams of a GPU, or a shared window.

An engine (`pblas.backends.engine`) owns the workspace and the flags, and offers the verbs that are called below; what
is here is which bytes they touch.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from pblas import errors
from pblas.backends.engine import COPY_RATE, COPY_US, Portion, Sending
from pblas.backends.gemm import accumulator_dtype
from pblas.execute.push_local import engine_gemm
from pblas.execute.runs import Runs, gemm_runs
from pblas.execute.stack import Stack
from pblas.one_dimensional import AllGatherGemm, GemmAllReduce
from pblas.pieces import flat_share, padded
from pblas.schedule import handshake, road_of, schedule, starts
from pblas.steps import (
    MAX_PHASES,
    AllReduce,
    Arrival,
    Await,
    Block,
    Burst,
    CopyOut,
    Get,
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np

    from pblas.backends.engine import Engine, Finish, Lane
    from pblas.backends.gemm import Array
    from pblas.execute.operands import Operands, Orders
    from pblas.one_dimensional import GemmReduceScatter

    Order = Literal["F", "C"]


class RunPush:
    """Runs an AllGatherGemm, GemmReduceScatter or GemmAllReduce by pushing, on one rank.

    **Collective**, since the workspace may have to grow.

    Args:
        plan: what to run, with a road (global).
        backend: ranks, memory and the engine (global).
        dtype: of the matrices (global).
        wire: dtype in which partial products travel (global).
        orders: storage orders in the plan's orientation (global).
        tf32: multiply float32 in TF32 where the hardware has it (global).
    """

    def __init__(
        self,
        plan: AllGatherGemm | GemmReduceScatter,
        backend: Any,
        dtype: np.dtype[Any],
        wire: np.dtype[Any],
        orders: Orders,
        *,
        tf32: bool = False,
    ) -> None:
        self._plan, self._product, self._rank, self._dtype, self._wire = plan, plan.oriented, backend.rank, dtype, wire
        self._total, self._tf32 = accumulator_dtype(dtype), tf32
        self._engine: Engine = backend.engine(plan.queue)
        self._ops = schedule(plan, self._rank)
        self._bound: Any = None  # D whose place the peers know, and that place on every rank
        self._idle = handshake(self._rank, plan.product.nprocs)
        self._own_nbytes = 0  # of memory of this rank alone, which executions use one after the other
        self._known_lines: dict[tuple[int, int], Runs] = {}
        error = None
        try:
            if isinstance(plan, AllGatherGemm):
                self._prepare_gather(plan, orders)
            else:
                self._prepare_reduction(plan, orders)
            self._engine.scratch(self._own_nbytes)
        except (MemoryError, errors.WorkspaceError) as caught:
            error = errors.WorkspaceError(
                f"plan_matmul: rank {self._rank} has no memory for partial products: {caught}"
            )
        backend.agree("plan_matmul: take memory", error)
        self._workspace = self._engine.reserve(self._nbytes, MAX_PHASES)

    def _prepare_gather(self, plan: AllGatherGemm, orders: Orders) -> None:
        product, counts = self._product, [plan.shards.count(r) for r in range(plan.product.nprocs)]
        self._along_k = plan.along_k
        across, axis = (product.n, 0) if self._along_k else (product.k, 1)
        self._gathered = Stack(counts, across, orders.right, axis, self._dtype.itemsize)  # type: ignore[arg-type]
        self._nbytes = self._gathered.nbytes
        rows = product.d.split
        assert rows is not None, "AllGatherGemm splits D"
        self._m = (
            Runs.global_to_local(rows.ranges(self._rank))
            if product.a.axis == "all"
            else Runs.whole(rows.count(self._rank))
        )
        self._sums: tuple[tuple[int, int], Order] | None = None  # what is added up in 32 bits, before D
        if self._along_k and self._total != self._dtype:
            self._sums = (rows.count(self._rank), product.n), orders.result
            self._own_nbytes = rows.count(self._rank) * product.n * self._total.itemsize

    def _prepare_reduction(self, plan: GemmReduceScatter, orders: Orders) -> None:
        product, nprocs = self._product, plan.product.nprocs
        self._order, itemsize = orders.result, self._wire.itemsize
        if isinstance(plan, GemmAllReduce):
            assert orders.result == "F", "the planner takes the orientation in which pieces of D are contiguous"
            counts = [product.n]
            self._results = Stack([product.n], product.m, "F", 1, self._dtype.itemsize)
        else:
            counts = [stop - start for inner in plan.borders for start, stop in pairwise(inner)]
        self._partial = Stack(counts, product.m, orders.result, 1, itemsize)
        self._slot_nbytes = padded(plan.slot_elements * itemsize)
        self._contributing = [r for r in range(nprocs) if plan.contributes(r)]
        # The workspace: the part of the partial product that is pulled, a slot for every rank, results. The other part
        # of the partial product is this rank's alone.
        self._pulled = self._slots_at = results = 0
        own = self._partial.nbytes
        if isinstance(plan, GemmAllReduce):
            self._pulled, end = plan.pulled_lines
            own, results = padded(self._partial.at(self._pulled)), self._results.nbytes
            self._slots_at = padded(self._partial.at(end - self._pulled))
            count = product.m * (end - self._pulled)
            self._first = [flat_share(count, r, nprocs)[0] for r in range(nprocs)] + [count]
        self._results_at = self._slots_at + nprocs * self._slot_nbytes
        self._nbytes = self._results_at + results
        inner = plan.inner.ranges(self._rank)
        if product.a.axis == "all":
            self._k = Runs.global_to_local(inner)
        elif product.b.axis == "all":
            self._k = Runs.global_to_local(inner).flipped()
        else:
            self._k = Runs.whole(plan.inner.count(self._rank))
        # Several GEMMs add into one partial product where K lies in several runs: in 32 bits, rounded once.
        self._wide: int | None = None  # where those sums begin
        self._own_nbytes = own
        if len(self._k.runs) > 1 and self._wire != self._total:
            self._wide = padded(own)
            self._own_nbytes = self._wide + self._partial.nbytes // itemsize * self._total.itemsize

    @property
    def _finishes_last(self) -> bool:
        """Whether what follows comes behind the whole product: where several GEMMs add to D, or one kernel makes it."""
        several = isinstance(self._plan, AllGatherGemm) and self._along_k
        return several or road_of(self._plan).is_one_kernel

    @property
    def workspace_nbytes(self) -> int:
        """Bytes that this plan needs: of the context's workspace in both parities, and of its own."""
        return 2 * self._nbytes + self._own_nbytes

    def run(self, x: Operands) -> None:
        """D = alpha op(A) op(B) + beta C on the engine's lanes."""
        with self._engine.call(self._workspace):
            product = self._plan.product
            if x.alpha == 0 or 0 in (product.m, product.n, product.k):
                self._walk(self._idle, x)
                self._engine.scale("main", x.beta, x.result if x.old is None else x.old, x.result)
                self._engine.finish("main", x.finish, x.result)
                return
            self._beta, self._d, self._own = x.beta, x.result, self._engine.scratch(self._own_nbytes)
            wide = self._sums if isinstance(self._plan, AllGatherGemm) else None
            if wide is not None:
                self._beta, self._d = 0.0, self._engine.part(self._own, 0, wide[0], self._total, wide[1])
            elif isinstance(self._plan, AllGatherGemm) and x.old is not None and x.old is not x.result:
                self._engine.copy("main", x.old, x.result)
            finish, last = x.finish, self._finishes_last
            self._walk(self._ops, replace(x, finish=None) if last and finish is not None else x)
            if wide is not None and x.result.size:
                self._engine.sum("main", [self._d], x.beta, x.old, x.result, finish)
            elif last and finish is not None:
                self._engine.join()  # other lanes may store parts of D
                self._engine.finish("main", finish, x.result)

    def _walk(self, ops: tuple[Op, ...], x: Operands) -> None:  # noqa: PLR0912 - a branch for each operation
        engine = self._engine
        awaited = {index for op in ops for index in op.after}
        for index, op in enumerate(ops):
            engine.follow(op.lane, op.after)
            match op:
                case Put(lane, _, peer, source, target):
                    engine.put(lane, self._source(source, x), peer, *self._target_at(peer, target, x))
                case Signal(lane, _, peers, phase):
                    engine.signal(lane, peers, phase)
                case Burst(lane, _, puts, phase, peers, awaits):
                    self._burst(lane, puts, phase, peers, awaits, x)
                case Await(lane, _, phase, sources):
                    engine.wait(lane, phase, sources, self._step(phase))
                case Multiply(lane, _, operand, None) if operand is not None:
                    self._multiply_gathered(lane, operand, x)
                case MultiplyArrivals(lane, _, arrivals):
                    self._multiply_arrivals(lane, arrivals, x)
                case MultiplySending():
                    self._multiply_sending(op, x)
                case MultiplyReduce():
                    self._multiply_reduce(index, op, x)
                case Multiply(lane, _, None, target) if target is not None:
                    self._multiply_partial(lane, target, x)
                case Sum(lane, _, parts, mine, target):
                    arrays = [self._slot(part) for part in parts]
                    if mine is not None:
                        arrays.append(self._partial_block(mine))
                    old, d, finish = self._lines_of(target, x)
                    engine.sum(lane, arrays, x.beta, old, d, finish)
                case AllReduce(lane, _, shots, source, target, phase):
                    (old, d, finish), ranks = self._lines_of(target, x), self._contributing
                    if shots == 1:
                        partial = self._partial_block(source)
                        engine.one_shot(lane, partial, self._slot_nbytes, x.beta, old, d, ranks, finish)
                    else:
                        at, homes = self._result_at(target), self._homes(x, target)
                        first = self._first
                        engine.two_shot(lane, self._wire, first, at, homes, x.beta, old, d, ranks, phase, finish)
                case ReduceScatter(lane, _, _, _):
                    blocks = [Block("partial", a, b) for a, b in pairwise(self._partial.first)]
                    own = [self._partial_block(block) for block in blocks]
                    layout = (self._partial.order, self._slot_nbytes)
                    engine.reduce_scatter(lane, own, *layout, x.beta, x.old, x.result, self._contributing, x.finish)
                case CopyOut():
                    self._copy_out(op, x)
                case Get(lane, _, peer, source, target):
                    engine.get(lane, peer, self._result_at(source), self._source(target, x))
                case _:
                    raise AssertionError(op)
            if index in awaited:
                engine.mark(op.lane, index)

    def bind(self, d: Array | None) -> None:
        """**Collective.** Put results into this D at once, on every rank, if it lies in symmetric memory.

        Args:
            d: in the plan's orientation; None to bind nothing (global).
        """
        homes = self._engine.homes(d) if isinstance(self._plan, GemmAllReduce) else None
        self._bound = None if d is None or homes is None else (self._place(d), homes)

    @property
    def bound(self) -> bool:
        """Whether there is a D whose place the peers know."""
        return self._bound is not None

    def _place(self, d: Array) -> Any:
        return d.shape, d.strides, self._engine.address(d)

    def _homes(self, x: Operands, block: Block) -> list[int] | None:
        """Where a block of D lies on every rank, if it is the one that was bound."""
        if self._bound is None or self._bound[0] != self._place(x.result):
            return None
        return [home + self._results.at(block.start) for home in self._bound[1]]

    @staticmethod
    def _lines_of(block: Block, x: Operands) -> tuple[Array | None, Array, Finish | None]:
        """Lines of C and D, and what follows them."""
        lines = slice(None), slice(block.start, block.stop)
        return None if x.old is None else x.old[lines], x.result[lines], x.finish_of(itemgetter(lines))

    def _step(self, phase: int) -> str:
        return f"{self._plan.name}: {_WHAT[phase % 2]}"

    # Blocks

    def _source(self, block: Block, x: Operands) -> Array:
        """The lines of this rank that a put reads."""
        if block.buffer == "shard":
            return x.right[block.start : block.stop] if self._along_k else x.right[:, block.start : block.stop]
        return x.result[:, block.start : block.stop] if block.buffer == "result" else self._partial_block(block)

    def _target_at(self, peer: int, block: Block, x: Operands) -> tuple[int, Order]:
        """As `_target`, but for sums, which go to D itself if the peers may write there.

        They may when they have sent what was added here.
        """
        homes = self._homes(x, block) if block.buffer == "results" else None
        return self._target(block) if homes is None else (self._engine.offset(peer, homes[peer]), "F")

    def _target(self, block: Block) -> tuple[int, Order]:
        """Bytes from the start of the workspace, and the storage order, of what a put writes at the peer."""
        if block.buffer == "gathered":
            return self._gathered.at(block.start), self._gathered.order
        if block.buffer == "results":
            return self._result_at(block), "F"
        return self._slot_at(block), self._order

    def _slot_at(self, block: Block) -> int:
        before = block.start * self._product.m * self._wire.itemsize
        return self._slots_at + block.slot * self._slot_nbytes + before

    def _slot(self, block: Block) -> Array:
        shape = (self._product.m, len(block))
        return self._engine.array(self._slot_at(block), shape, self._wire, self._order)

    def _result_at(self, block: Block) -> int:
        return self._results_at + self._results.at(block.start)

    def _result_block(self, block: Block) -> Array:
        return self._engine.array(self._result_at(block), self._results.shape(len(block)), self._dtype, "F")

    def _partial_block(self, block: Block) -> Array:
        """Partial products of this rank, in its workspace where they are pulled."""
        stack, shape = self._partial, self._partial.shape(len(block))
        if block.buffer == "pulled":
            return self._engine.array(stack.at(block.start - self._pulled), shape, self._wire, stack.order)
        return self._engine.part(self._own, stack.at(block.start), shape, self._wire, stack.order)

    # Products

    def _multiply_gathered(self, lane: Lane, operand: Block, x: Operands) -> None:
        """D[:, j] += alpha op(A)[:, k] op(B)[k, j] for gathered lines: columns j, or rows k, of op(B)."""
        assert isinstance(self._plan, AllGatherGemm), "no other plan gathers"
        stack = self._gathered
        gemm = engine_gemm(self._engine, lane, tf32=self._tf32)
        if operand.buffer == "shard":
            base = stack.first[self._rank]
            parts = [(operand.start + base, operand.stop + base, 1)]
        else:
            parts = list(stack.parts(operand.start, operand.stop))
        for start, stop, blocks in parts:
            lines = self._lines(start, stop)
            if blocks > 1 and not self._along_k and _is_one_run(lines, self._m) and not any(x.conj):
                # D[:, j] of all blocks at once: in each of them the lines are fast
                (m_x, m_d, rows), (first, _, _) = self._m.runs[0], lines.runs[0]
                tall = self._engine.array(
                    stack.at(start), (blocks * self._product.k, (stop - start) // blocks), self._dtype, "C"
                )
                right = tall.reshape(blocks, self._product.k, -1)
                block = slice(m_d, m_d + rows), slice(first, first + stop - start)
                d = self._engine.columns(self._d[block], blocks)
                gemm(x.alpha, x.left[m_x : m_x + rows], right, self._beta, d, conj_x=False, conj_y=False)
                self._engine.finish(lane, x.finish_of(itemgetter(block)), self._d[block])
                continue
            width = (stop - start) // blocks
            for begin in range(start, stop, width):
                end = begin + width
                lines = self._lines(begin, end)
                n, k = lines.flipped(), Runs.whole(self._product.k)
                if self._along_k:
                    n, k = Runs.whole(self._product.n), lines
                right = x.right
                if operand.buffer != "shard":
                    right = self._engine.array(stack.at(begin), stack.shape(width), self._dtype, stack.order)
                finish = None if self._along_k else x.finish
                gemm_runs(x.alpha, x.left, right, self._beta, self._d, self._m, n, k, x.conj, gemm, finish=finish)
                if self._along_k:
                    self._beta = 1.0

    def _multiply_arrivals(self, lane: Lane, arrivals: tuple[Arrival, ...], x: Operands) -> None:
        """D[:, j] += alpha op(A) op(B)[:, j] for columns j that arrive, by one kernel if there is one for them."""
        parts, portions, ready = list[tuple[Arrival, Any]](), list[Portion](), 0.0
        for arrival in arrivals:
            flag = (arrival.source, arrival.phase) if arrival.source >= 0 else None
            if flag is not None:
                ready += COPY_US + self._gathered.at(len(arrival.operand)) / COPY_RATE
            products = list(self._products(arrival.operand, x))
            parts.append((arrival, products))
            portions += [Portion(*product, awaits=flag, ready=ready) for product in products]
        if self._engine.multiply_portions(lane, x.alpha, portions, self._beta):
            return
        gemm = engine_gemm(self._engine, lane, tf32=self._tf32)
        for arrival, products in parts:
            if arrival.source >= 0:
                self._engine.wait(lane, arrival.phase, (arrival.source,), self._step(arrival.phase))
            for left, right, d in products:
                gemm(x.alpha, left, right, self._beta, d, conj_x=x.conj[0], conj_y=x.conj[1])

    def _multiply_sending(self, op: MultiplySending, x: Operands) -> None:
        """D[:, j] = alpha op(A) op(B)[:, j] for the columns j of all ranks, in slices of K that arrive and leave."""
        engine, (first, *later), lane, nprocs = self._engine, op.phases, op.lane, self._plan.product.nprocs
        others = [put for put in op.puts if put.peer != self._rank]
        if len(op.arrivals) == nprocs and len(others) == len(op.peers):
            shard, portions = self._source(others[0].source, x), list[Portion]()
            for arrival in op.arrivals:
                flag = (arrival.source, arrival.phase) if arrival.source >= 0 else None
                portions += [Portion(*product, awaits=flag) for product in self._products(arrival.operand, x)]
            targets = tuple((put.peer, self._place_at(put, x, shard.shape)) for put in others)
            sending = Sending(shard, targets, op.phases, op.length)
            if engine.multiply_portions(lane, x.alpha, portions, self._beta, sending):
                return
        self._burst(lane, op.puts, first, op.peers, (), x)
        for phase in later:
            engine.signal(lane, op.peers, phase)
        for phase in op.phases:
            engine.wait(lane, phase, op.sources, self._step(phase))
        if op.arrivals:
            self._multiply_gathered(lane, Block("gathered", 0, self._gathered.first[-1]), x)

    def _products(self, operand: Block, x: Operands) -> Iterator[tuple[Array, Array, Array]]:
        """op(A), op(B) and D of the GEMMs that some gathered lines, each a column of op(B), take part in."""
        stack, right, start, stop = self._gathered, x.right, operand.start, operand.stop
        if operand.buffer == "shard":
            start, stop = (line + stack.first[self._rank] for line in (start, stop))
        else:
            right = self._engine.array(stack.at(start), stack.shape(stop - start), self._dtype, stack.order)
        for n_d, n_right, columns in self._lines(start, stop).runs:
            for m_x, m_d, rows in self._m.runs:
                yield (
                    x.left[m_x : m_x + rows],
                    right[:, n_right : n_right + columns],
                    self._d[m_d : m_d + rows, n_d : n_d + columns],
                )

    def _multiply_partial(self, lane: Lane, target: Block, x: Operands) -> None:
        """Partial D[:, j] = alpha op(A)[:, k] op(B)[k, j] for the columns j of some owners, k of this rank."""
        plan, stack = self._plan, self._partial
        assert not isinstance(plan, AllGatherGemm), "it has no partial products"
        m, gemm = self._product.m, engine_gemm(self._engine, lane, tf32=self._tf32)
        for start, stop, blocks in stack.parts(target.start, target.stop):
            lines = self._lines(start, stop)
            if blocks > 1 and _is_one_run(lines, self._k) and not any(x.conj):
                (k_x, k_y, inner), (first, _, _) = self._k.runs[0], lines.runs[0]
                shape = (blocks * m, (stop - start) // blocks)
                tall = self._engine.part(self._own, stack.at(start), shape, self._wire, "C")
                right = self._engine.columns(x.right[k_y : k_y + inner, first : first + stop - start], blocks)
                left = x.left[:, k_x : k_x + inner]
                gemm(x.alpha, left, right, 0.0, tall.reshape(blocks, m, -1), conj_x=False, conj_y=False)
                continue
            width = (stop - start) // blocks
            for begin in range(start, stop, width):
                block = sums = self._partial_block(Block(target.buffer, begin, begin + width))
                if self._wide is not None:
                    at = self._wide + stack.at(begin) // self._wire.itemsize * self._total.itemsize
                    sums = self._engine.part(self._own, at, block.shape, self._total, stack.order)
                n = self._lines(begin, begin + width)
                gemm_runs(x.alpha, x.left, x.right, 0.0, sums, Runs.whole(m), n, self._k, x.conj, gemm)
                if sums is not block:
                    self._engine.sum(lane, [sums], 0.0, None, block)

    def _multiply_reduce(self, index: int, op: MultiplyReduce, x: Operands) -> None:
        """Partial D[:, j] = alpha op(A)[:, k] op(B)[k, j] for the owners of columns j; own columns of D are sums."""
        engine, lane = self._engine, op.lane
        if self._multiply_at_once(op, x):
            for number, strip in enumerate(op.strips):
                if _is_awaited(strip):
                    engine.await_mark("copy", number)
                    self._send(strip)
            return
        for number, strip in enumerate(op.strips):
            self._multiply_partial(lane, strip.lines, x)
            if strip.target is not None:
                engine.wait(lane, strip.awaits, [part.slot for part in strip.parts], self._step(strip.awaits))
                parts, (old, sums, _) = [self._slot(part) for part in strip.parts], self._lines_of(strip.target, x)
                engine.sum(lane, [*parts, self._partial_block(strip.lines)], x.beta, old, sums)
                if strip.offered is not None:
                    engine.copy(lane, sums, self._result_block(strip.offered))
            if _is_awaited(strip):
                engine.mark(lane, (index, number))
                engine.follow("copy", [(index, number)])
                self._send(strip)
            elif strip.puts:
                self._burst(lane, strip.puts, strip.phase, strip.peers, (), x)

    def _burst(
        self, lane: Lane, puts: Iterable[Put], phase: int, peers: Iterable[int], awaits: Iterable[int], x: Operands
    ) -> None:
        moved = [(put.peer, self._source(put.source, x), *self._target_at(put.peer, put.target, x)) for put in puts]
        self._engine.burst(lane, moved, phase, peers, awaits, self._step(phase))

    def _place_at(self, put: Put, x: Operands, shape: tuple[int, int]) -> Array:
        """Where a put writes at the peer."""
        offset, order = self._target_at(put.peer, put.target, x)
        return self._engine.place(put.peer, offset, shape, self._dtype, order)

    def _send(self, strip: Strip) -> None:
        """Lines to where they go, and the flags behind them."""
        engine = self._engine
        for put in strip.puts:
            engine.put("copy", self._partial_block(put.source), put.peer, *self._target(put.target))
        engine.signal("copy", strip.peers, strip.phase)

    def _copy_out(self, copy: CopyOut, x: Operands) -> None:
        """Finished lines to D, unless peers have put them there, or from there to where peers get them."""
        if copy.target.buffer == "results":
            self._engine.copy(copy.lane, self._source(copy.source, x), self._result_block(copy.target))
        elif self._homes(x, copy.target) is None:
            self._engine.copy(copy.lane, self._result_block(copy.source), self._source(copy.target, x))

    def _multiply_at_once(self, op: MultiplyReduce, x: Operands) -> bool:
        """One kernel for all of it but the copies, if there is one for it; else nothing is done."""
        made = [self._lines(strip.lines.start, strip.lines.stop) for strip in op.strips]
        if self._wide is not None or self._wire != self._dtype or not _is_one_run(self._k, *made):
            return False
        portions = list[Portion]()
        for number, strip in enumerate(op.strips):
            mark, factors = number if _is_awaited(strip) else -1, self._factors(strip.lines, x)
            if strip.target is None:
                portions.append(self._partial_portion(strip, mark, x))
                continue
            old, d, _ = self._lines_of(strip.target, x)
            terms = tuple((self._slot(part), (part.slot, strip.awaits)) for part in strip.parts)
            places = () if strip.offered is None else (self._result_block(strip.offered),)
            late = road_of(self._plan).by == "stores"
            portions.append(Portion(*factors, d, mark=mark, terms=terms, late=late, old=old, places=places))
        return self._engine.multiply_portions(op.lane, x.alpha, portions, 0.0 if x.old is None else x.beta)

    def _partial_portion(self, strip: Strip, mark: int, x: Operands) -> Portion:
        """Lines of another rank, in memory from which they are copied, or where that rank adds them."""
        factors, block = self._factors(strip.lines, x), self._partial_block(strip.lines)
        if mark >= 0:
            return Portion(*factors, block, mark=mark, partial=True)
        (put,) = strip.puts
        return Portion(*factors, self._place_at(put, x, block.shape), tells=(put.peer, strip.phase), partial=True)

    def _factors(self, block: Block, x: Operands) -> tuple[Array, Array]:
        """op(A) and op(B) of the GEMM that forms a block of the partial product."""
        (k_x, k_y, inner), *_ = self._k.runs
        (first, _, columns), *_ = self._lines(block.start, block.stop).runs
        return x.left[:, k_x : k_x + inner], x.right[k_y : k_y + inner, first : first + columns]

    def _lines(self, start: int, stop: int) -> Runs:
        """Which global lines those of a stack are; known from the first time on, which is at planning."""
        if (start, stop) not in self._known_lines:
            self._known_lines[start, stop] = self._find_lines(start, stop)
        return self._known_lines[start, stop]

    def _find_lines(self, start: int, stop: int) -> Runs:
        plan = self._plan
        if isinstance(plan, GemmAllReduce):
            return Runs([(start, 0, stop - start)])
        shards = plan.shards
        firsts = starts([shards.count(rank) for rank in range(plan.product.nprocs)])
        ranges = [
            (g0 + a, g0 + b)
            for rank, first in enumerate(firsts[:-1])
            for g0, a, b in _cut(shards.ranges(rank), start - first, stop - first)
        ]
        return Runs.global_to_local(ranges)


def _is_awaited(strip: Strip) -> bool:
    """Whether the lane of copies waits for it: to copy it, or to tell that peers may get it."""
    return strip.offered is not None or any(put.lane == "copy" for put in strip.puts)


def _is_one_run(*dimensions: Runs) -> bool:
    return all(len(runs.runs) == 1 for runs in dimensions)


_WHAT = ("shards or partial products of", "results of")


def _cut(ranges: list[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """(global start, from, to) of the parts of ranges that are lines start..stop of a local array of them."""
    local = 0
    for g0, g1 in ranges:
        a, b = max(start, local), min(stop, local + g1 - g0)
        if a < b:
            yield g0, a - local, b - local
        local += g1 - g0
