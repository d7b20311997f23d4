"""Executor of push plans that reduce: ranks send partial products as they form them; the owners of D add them."""

from __future__ import annotations

from itertools import islice, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from pblas.backends.push_engine import Output, Portion
from pblas.matmul.local_gemm_run import IndexRuns, Operands, Orders, gemm_runs
from pblas.matmul.one_dimensional_plan import GemmAllReduce, GemmReduceScatter
from pblas.matmul.push.base_run import RunPush, Stack, column_blocks, is_one_run
from pblas.matmul.push.schedules.operations import (
    AllReduce,
    Block,
    CopyOut,
    GemmReduce,
    Get,
    Gets,
    Multiply,
    Op,
    Put,
    ReduceScatter,
    Strip,
    Sum,
    WaitTile,
)
from pblas.plans.partition import flat_share, padded

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Order
    from pblas.backends.engine_limits import Flag, Lane

_MOST_SENT_NBYTES = 16 << 20  # to one rank; larger partial products are pulled, or pushed and added by two kernels


class RunPushReduce(RunPush):
    """Runs a GemmReduceScatter or a GemmAllReduce."""

    _plan: GemmReduceScatter
    _bound: Any = None  # shape, strides and address of the bound D, and its addresses on all ranks

    def _prepare(self, orders: Orders) -> None:
        plan, product, nprocs = self._plan, self._product, self._product.nprocs
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
        # The workspace holds the pulled lines of the partial product, a slot for every rank, and results. The other
        # lines of the partial product are in private memory.
        self._pulled = self._slots_at = results = 0
        own = self._partial.nbytes
        if isinstance(plan, GemmAllReduce):
            self._pulled, end = plan.pulled_lines
            own, results = padded(self._partial.offset(self._pulled)), self._results.nbytes
            self._slots_at = padded(self._partial.offset(end - self._pulled))
            count = product.m * (end - self._pulled)
            self._first = [flat_share(count, r, nprocs)[0] for r in range(nprocs)] + [count]
        self._results_at = self._slots_at + nprocs * self._slot_nbytes
        self._nbytes = self._results_at + results
        self._k = IndexRuns.of_inner(plan, self._rank)
        # If K consists of several runs, several GEMMs add to one partial product: in 32 bits, rounded once.
        self._wide: int | None = None  # offset of the 32-bit sums in private memory
        self._own_nbytes = own
        if len(self._k.runs) > 1 and self._wire != self._total:
            self._wide = padded(own)
            self._own_nbytes = self._wide + self._partial.nbytes // itemsize * self._total.itemsize

    def _take(self) -> None:
        super()._take()
        nprocs = self._product.nprocs
        self._slots: object = None  # slots of the reduction kernel
        for op in self._ops:
            match op:
                case AllReduce(shots=2):
                    largest = padded(max(stop - start for start, stop in pairwise(self._first)) * self._wire.itemsize)
                    if 2 * nprocs * largest <= _MOST_SENT_NBYTES:
                        self._slots = self._engine.slots(2 * nprocs, largest)
                case AllReduce():
                    self._slots = self._engine.slots(nprocs, self._slot_nbytes)
                case ReduceScatter():
                    few = nprocs * self._slot_nbytes <= _MOST_SENT_NBYTES
                    self._slots = self._engine.slots(nprocs, self._slot_nbytes) if few else self._slot_nbytes
                case _:
                    pass

    def _run(self, x: Operands) -> None:
        self._walk(self._ops, x)

    def _operate(self, index: int, op: Op, x: Operands) -> None:
        engine = self._engine
        match op:
            case Multiply(lane, None, target) if target is not None:
                self._multiply(lane, target, x)
            case GemmReduce():
                self._multiply_reduce(index, op, x)
            case Sum(lane, parts, own_block, target):
                arrays = [self._slot(part) for part in parts]
                if own_block is not None:
                    arrays.append(self._partial_block(own_block))
                # D[:, j] = partial D[:, j] of the other ranks + the own one + beta C[:, j], then the epilogue
                engine.sum(lane, arrays, self._lines_of(target, x))
            case AllReduce(lane, shots, source, target, phase):
                # D[:, j] = sum of all ranks' partial D[:, j] + beta C[:, j], on every rank
                output, ranks = self._lines_of(target, x), self._contributing
                if shots == 1:
                    engine.one_shot(lane, self._partial_block(source), self._slots, ranks, output)
                else:
                    memory = self._first, self._slots, self._result_at(target), self._peer_addresses(x, target)
                    engine.two_shot(lane, self._wire, *memory, phase, ranks, output)
            case ReduceScatter(lane):
                blocks = [Block("partial", a, b) for a, b in pairwise(self._partial.first)]
                own = [self._partial_block(block) for block in blocks]
                output = Output(x.result, x.beta, x.old, x.finish)
                # D[:, j] = sum of all ranks' partial D[:, j] + beta C[:, j], on the owner of columns j
                engine.reduce_scatter(lane, own, self._partial.order, self._slots, self._contributing, output)
            case CopyOut():
                self._copy_out(op, x)
            case Get(lane):
                engine.get(lane, *self._get_of(op, x))
            case Gets(lane, gets):
                engine.gets(lane, [self._get_of(get, x) for get in gets])
            case _:
                raise AssertionError(op)

    @property
    def bound(self) -> bool:
        return self._bound is not None

    def bind(self, d: Array | None) -> None:
        puts = isinstance(self._plan, GemmAllReduce) and self._plan.push_algorithm.kind != "tile_signals"
        peer_addresses = self._engine.peer_addresses(d) if puts else None
        self._bound = None if d is None or peer_addresses is None else (self._memory(d), peer_addresses)

    def _memory(self, d: Array) -> Any:
        """Shape, strides and address: two equal arrays are the same memory."""
        return d.shape, d.strides, self._address(d)

    def _peer_addresses(self, x: Operands, block: Block) -> list[int] | None:
        """Address of a block of D on every rank, if D is the bound one."""
        if self._bound is None or self._bound[0] != self._memory(x.result):
            return None
        return [address + self._results.offset(block.start) for address in self._bound[1]]

    @staticmethod
    def _lines_of(block: Block, x: Operands) -> Output:
        """Lines of D as the destination of a sum, with the lines of C and the epilogue."""
        lines = slice(None), slice(block.start, block.stop)
        return Output(x.result[lines], x.beta, None if x.old is None else x.old[lines], x.finish_of(itemgetter(lines)))

    # Blocks

    def _source(self, block: Block, x: Operands) -> Array:
        return x.result[:, block.start : block.stop] if block.buffer == "result" else self._partial_block(block)

    def _target_at(self, peer: int, block: Block, x: Operands) -> tuple[int, Order]:
        """Destination of a put: `_target`, or the peer's D itself for sums if D is bound.

        The put into a peer's D is safe: the peer has begun this call, since its partial products are in the sums.
        """
        peer_addresses = self._peer_addresses(x, block) if block.buffer == "results" else None
        return self._target(block) if peer_addresses is None else (self._engine.offset(peer, peer_addresses[peer]), "F")

    def _target(self, block: Block) -> tuple[int, Order]:
        """Destination of a put in the peer's workspace: bytes from its start, and storage order."""
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
        return self._results_at + self._results.offset(block.start)

    def _result_block(self, block: Block) -> Array:
        return self._engine.array(self._result_at(block), self._results.shape(len(block)), self._dtype, "F")

    def _partial_block(self, block: Block) -> Array:
        """A block of this rank's partial products, in its workspace if peers pull it."""
        stack, shape = self._partial, self._partial.shape(len(block))
        if block.buffer == "pulled":
            return self._engine.array(stack.offset(block.start - self._pulled), shape, self._wire, stack.order)
        return self._own_array(stack.offset(block.start), shape, self._wire, stack.order)

    # Products

    def _multiply(self, lane: Lane, target: Block, x: Operands) -> None:
        """Partial D[:, j] = alpha op(A)[:, k] op(B)[k, j] for the columns j of some owners, k of this rank."""
        stack, m = self._partial, self._product.m
        gemm = self._gemm(lane, x)
        for start, stop, blocks in stack.parts(target.start, target.stop):
            lines = self._lines(start, stop)
            if blocks > 1 and is_one_run(lines, self._k) and not any(x.conj):
                (k_x, k_y, inner), (first, _, _) = self._k.runs[0], lines.runs[0]
                shape = (blocks * m, (stop - start) // blocks)
                tall = self._own_array(stack.offset(start), shape, self._wire, "C")
                right = column_blocks(x.right[k_y : k_y + inner, first : first + stop - start], blocks)
                left = x.left[:, k_x : k_x + inner]
                gemm(x.alpha, left, right, 0.0, tall.reshape(blocks, m, -1))
                continue
            width = (stop - start) // blocks
            for begin in range(start, stop, width):
                block = sums = self._partial_block(Block(target.buffer, begin, begin + width))
                if self._wide is not None:
                    offset = self._wide + stack.offset(begin) // self._wire.itemsize * self._total.itemsize
                    sums = self._own_array(offset, block.shape, self._total, stack.order)
                n = self._lines(begin, begin + width)
                gemm_runs(x.alpha, x.left, x.right, 0.0, sums, IndexRuns.whole(m), n, self._k, x.conj, gemm)
                if sums is not block:
                    self._engine.sum(lane, [sums], Output(block))

    def _multiply_reduce(self, index: int, op: GemmReduce, x: Operands) -> None:
        """Partial D[:, j] = alpha op(A)[:, k] op(B)[k, j] for the owners of columns j; own columns of D := sums."""
        engine, lane, strips, made = self._engine, op.lane, iter(op.strips), 0
        one_kernel = self._multiply_by_one_kernel(op, x)
        for other in op.concurrent:
            if not isinstance(other, WaitTile):
                self._walk((other,), x)
            elif one_kernel:
                engine.await_tile_flag(other.lane, other.number)
            else:
                for strip in islice(strips, other.number + 1 - made):
                    self._make(lane, strip, x)
                made = other.number + 1
                engine.mark(lane, (index, other.number))
                engine.follow(other.lane, [(index, other.number)])
        for strip in () if one_kernel else strips:
            self._make(lane, strip, x)

    def _make(self, lane: Lane, strip: Strip, x: Operands) -> None:
        """Compute one strip by separate kernels."""
        engine = self._engine
        # partial D[:, j] = alpha op(A)[:, k] op(B)[k, j]
        self._multiply(lane, strip.lines, x)
        if strip.target is not None:
            engine.wait(lane, strip.phase, [part.slot for part in strip.parts], self._step(strip.phase))
            parts, output = [self._slot(part) for part in strip.parts], self._lines_of(strip.target, x)
            # D[:, j] = partial D[:, j] of the other ranks + the own one + beta C[:, j]
            engine.sum(lane, [*parts, self._partial_block(strip.lines)], output)
            if strip.published is not None:
                engine.copy(lane, output.out, self._result_block(strip.published))
        if strip.puts:  # partial D[:, j] to the owner of columns j, or D[:, j] to all ranks
            self._burst(lane, strip.puts, strip.signal_phase, [put.peer for put in strip.puts], (), x)

    def _copy_out(self, copy: CopyOut, x: Operands) -> None:
        """Copy finished lines to D, unless peers have put them there, or from D to the workspace for peers to read."""
        if copy.target.buffer == "results":
            self._engine.copy(copy.lane, self._source(copy.source, x), self._result_block(copy.target))
        elif self._peer_addresses(x, copy.target) is None:
            self._engine.copy(copy.lane, self._result_block(copy.source), self._source(copy.target, x))

    def _get_of(self, get: Get, x: Operands) -> tuple[int, int, Array]:
        return get.peer, self._result_at(get.source), self._source(get.target, x)

    def _multiply_by_one_kernel(self, op: GemmReduce, x: Operands) -> bool:
        """Compute all strips by one kernel; false, without an effect, if no kernel supports them."""
        lines = [self._lines(strip.lines.start, strip.lines.stop) for strip in op.strips]
        if self._wide is not None or self._wire != self._dtype or not is_one_run(self._k, *lines):
            return False
        portions, awaited = list[Portion](), {wait.number for wait in op.concurrent if isinstance(wait, WaitTile)}
        for number, strip in enumerate(op.strips):
            tile_flag, factors = number if number in awaited else -1, self._factors(strip.lines, x)
            if strip.target is None:
                portions.append(self._partial_portion(strip, tile_flag, x))
                continue
            output = self._lines_of(strip.target, x)
            d, old = output.out, output.old
            places = self._destinations(strip, d.shape, x)
            if strip.published is not None:
                places = (*places, (self._result_block(strip.published), None))
            # Own lines whose parts were stored two pieces before are interleaved with the last piece.
            interleaved = sum(earlier.phase > strip.phase + 2 for earlier in op.strips[:number]) if strip.puts else 0
            portions.append(
                Portion(
                    *(*factors, d),
                    tile_flag=tile_flag,
                    terms=tuple((self._slot(part), (part.slot, strip.phase)) for part in strip.parts),
                    terms_late=self._plan.push_algorithm.kind == "fused_stores",
                    old=old,
                    places=places,
                    interleaved=interleaved,
                    origin=(0, strip.target.start),
                )
            )
        beta = 0.0 if x.old is None else x.beta
        return self._engine.multiply_portions(op.lane, x.alpha, portions, beta, finish=x.finish)

    def _partial_portion(self, strip: Strip, tile_flag: int, x: Operands) -> Portion:
        """Lines of another rank, stored in private memory for a copy, or directly in that rank's slot."""
        factors, block = self._factors(strip.lines, x), self._partial_block(strip.lines)
        if not strip.puts:
            return Portion(*factors, block, tile_flag=tile_flag, partial=True)
        ((place, flag),) = self._destinations(strip, block.shape, x)
        return Portion(*factors, place, signal=flag, partial=True)

    def _destinations(self, strip: Strip, shape: tuple[int, int], x: Operands) -> tuple[tuple[Array, Flag | None], ...]:
        """A strip's destinations at peers, each with the flag to set after the store."""
        return tuple((self._destination(put, shape, x), (put.peer, strip.signal_phase)) for put in strip.puts)

    def _destination(self, put: Put, shape: tuple[int, int], x: Operands) -> Array:
        """The destination of a put, as an array in the peer's memory."""
        offset, order = self._target_at(put.peer, put.target, x)
        return self._engine.place(put.peer, offset, shape, self._dtype, order)

    def _factors(self, block: Block, x: Operands) -> tuple[Array, Array]:
        """op(A) and op(B) of the GEMM that forms a block of the partial product."""
        (k_x, k_y, inner), *_ = self._k.runs
        (first, _, columns), *_ = self._lines(block.start, block.stop).runs
        return x.left[:, k_x : k_x + inner], x.right[k_y : k_y + inner, first : first + columns]
