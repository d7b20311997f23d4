"""Push plans that gather: a rank multiplies shards of op(B) as they arrive."""

from __future__ import annotations

from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

from pblas.backends.engine_limits import COPY_RATE, COPY_US, Flag, Lane
from pblas.backends.push_engine import Output, Portion
from pblas.matmul.local_gemm_run import IndexRuns, Operands, Orders, gemm_runs
from pblas.matmul.push.base_run import RunPush, Stack, column_blocks, is_one_run
from pblas.matmul.push.schedules.operations import AllGather, Arrival, Block, GemmAsArriving, Multiply, Op
from pblas.plans.partition import padded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pblas.backends.dtypes import Array, Order
    from pblas.matmul.one_dimensional_plan import AllGatherGemm


class RunPushGather(RunPush):
    """Runs an AllGatherGemm."""

    _plan: AllGatherGemm

    def _prepare(self, orders: Orders) -> None:
        plan = self._plan
        product, counts = self._product, [plan.shards.count(r) for r in range(plan.product.nprocs)]
        self._along_k = plan.along_k
        across, axis = (product.n, 0) if self._along_k else (product.k, 1)
        self._gathered = Stack(counts, across, orders.right, axis, self._dtypes.b.itemsize)  # type: ignore[arg-type]
        self._nbytes = self._gathered.nbytes
        self._m = IndexRuns.of_rows(product, self._rank)
        self._sums: tuple[tuple[int, int], Order] | None = None  # 32-bit sums, before they are rounded to D
        if self._along_k and self._total != self._dtype:
            rows = product.d.split
            assert rows is not None, "AllGatherGemm splits D"
            self._sums = (rows.count(self._rank), product.n), orders.result
            self._own_nbytes = padded(rows.count(self._rank) * product.n * self._total.itemsize)
        self._packed_at, self._left_order = self._own_nbytes, orders.left
        if plan.packs_left:
            lengths = (len(op.operand) for op in self._ops if isinstance(op, Multiply) and op.operand is not None)
            height = sum(length for *_, length in self._m.runs)
            self._own_nbytes += height * max(lengths, default=0) * self._dtypes.a.itemsize

    def _take(self) -> None:
        super()._take()
        self._slots: object = None  # slots of the all-gather kernel
        if any(isinstance(op, AllGather) for op in self._ops):
            self._shares = [self._gathered.offset(line) // self._dtypes.b.itemsize for line in self._gathered.first]
            largest = max(stop - start for start, stop in pairwise(self._shares))
            self._slots = self._engine.slots(len(self._shares) - 1, padded(largest * self._dtypes.b.itemsize))

    def _run(self, x: Operands) -> None:
        self._beta, self._d = x.beta, x.result
        if self._sums is not None:
            shape, order = self._sums
            self._beta, self._d = 0.0, self._own_array(0, shape, self._total, order)
        elif x.old is not None and x.old is not x.result:
            self._engine.copy("main", x.old, x.result)
        self._walk(self._ops, x.unfinished if self._along_k else x)
        if self._sums is not None and x.result.size:  # D = epilogue(sums + beta C), rounded
            self._engine.sum("main", [self._d], Output(x.result, x.beta, x.old, x.finish))
        elif self._along_k:  # several GEMMs add to D
            self._engine.finish("main", x.finish, x.result)

    def _operate(self, index: int, op: Op, x: Operands) -> None:
        match op:
            case Multiply(lane, operand, None) if operand is not None:
                self._multiply(lane, operand, x)
            case AllGather(lane, source, target):
                shard, offset = self._source(source, x), self._gathered.offset(target.start)
                self._engine.all_gather(lane, shard, self._gathered.order, self._slots, self._shares, offset)
            case GemmAsArriving():
                self._multiply_arrivals(op, x)
            case _:
                raise AssertionError(op)

    def _source(self, block: Block, x: Operands) -> Array:
        return x.right[block.start : block.stop] if self._along_k else x.right[:, block.start : block.stop]

    def _target_at(self, peer: int, block: Block, x: Operands) -> tuple[int, Order]:
        return self._gathered.offset(block.start), self._gathered.order

    def _multiply(self, lane: Lane, operand: Block, x: Operands) -> None:
        """D[:, j] += alpha op(A)[:, k] op(B)[k, j] for gathered lines: columns j, or rows k, of op(B)."""
        stack = self._gathered
        gemm = self._gemm(lane, x)
        if operand.buffer == "shard":
            base = stack.first[self._rank]
            parts = [(operand.start + base, operand.stop + base, 1)]
        else:
            parts = list(stack.parts(operand.start, operand.stop))
        for start, stop, blocks in parts:
            lines = self._lines(start, stop)
            if blocks > 1 and not self._along_k and is_one_run(lines, self._m) and not any(x.conj):
                (m_x, m_d, rows), (first, _, _) = self._m.runs[0], lines.runs[0]
                tall = self._engine.array(
                    stack.offset(start), (blocks * self._product.k, (stop - start) // blocks), self._dtypes.b, "C"
                )
                right = tall.reshape(blocks, self._product.k, -1)
                block = slice(m_d, m_d + rows), slice(first, first + stop - start)
                d = column_blocks(self._d[block], blocks)
                # D[i, j] = alpha op(A)[i, :] op(B)[:, j] + beta C[i, j], a batch of the columns j of several shards
                gemm(x.alpha, x.left[m_x : m_x + rows], right, self._beta, d)
                self._engine.finish(lane, x.finish_of(itemgetter(block)), self._d[block])
                continue
            width = (stop - start) // blocks
            for begin in range(start, stop, width):
                end = begin + width
                lines = self._lines(begin, end)
                n, k, left = lines.flipped(), IndexRuns.whole(self._product.k), x.left
                if self._along_k:
                    n, k = IndexRuns.whole(self._product.n), lines
                if self._plan.packs_left and len(k.runs) > 1:
                    left, k = self._packed(lane, x.left, k), IndexRuns.whole(end - begin)
                right = x.right
                if operand.buffer != "shard":
                    right = self._engine.array(stack.offset(begin), stack.shape(width), self._dtypes.b, stack.order)
                finish = None if self._along_k else x.finish
                # D[i, j] = alpha op(A)[i, k] op(B)[k, j] + beta C[i, j]   (or += along k, from the second shard on)
                gemm_runs(x.alpha, left, right, self._beta, self._d, self._m, n, k, x.conj, gemm, finish=finish)
                if self._along_k:
                    self._beta = 1.0

    def _packed(self, lane: Lane, left: Array, k: IndexRuns) -> Array:
        """Columns of op(A) side by side, in memory that the next product overwrites."""
        shape = len(left), sum(length for *_, length in k.runs)
        packed = self._own_array(self._packed_at, shape, left.dtype, self._left_order)
        for source, target, length in k.runs:
            self._engine.copy(lane, left[:, source : source + length], packed[:, target : target + length])
        return packed

    def _multiply_arrivals(self, op: GemmAsArriving, x: Operands) -> None:
        """D[:, j] += alpha op(A) op(B)[:, j] for columns j that arrive, by one kernel if there is one."""
        lane, arrivals = op.lane, op.arrivals
        parts, ready = list[tuple[Arrival, list[Portion]]](), 0.0
        for arrival in arrivals:
            flag = (arrival.source, arrival.phase) if arrival.source >= 0 else None
            if flag is not None:
                ready += COPY_US + self._gathered.offset(len(arrival.operand)) / COPY_RATE
            parts.append((arrival, list(self._portions(arrival.operand, x, flag, ready))))
        portions = [portion for _, group in parts for portion in group]
        if self._engine.multiply_portions(lane, x.alpha, portions, self._beta, finish=x.finish):
            return
        gemm = self._gemm(lane, x)
        for arrival, group in parts:
            if arrival.source >= 0:
                self._engine.wait(lane, arrival.phase, (arrival.source,), self._step(arrival.phase))
            for portion in group:
                finish = x.finish_of(itemgetter(portion.index))
                gemm(x.alpha, portion.x, portion.y, self._beta, portion.z, conj=x.conj, finish=finish)

    def _portions(self, operand: Block, x: Operands, awaits: Flag | None, ready: float) -> Iterator[Portion]:
        """The portions of D that depend on some gathered lines, each a column of op(B)."""
        stack, right, start, stop = self._gathered, x.right, operand.start, operand.stop
        if operand.buffer == "shard":
            start, stop = (line + stack.first[self._rank] for line in (start, stop))
        else:
            right = self._engine.array(stack.offset(start), stack.shape(stop - start), self._dtypes.b, stack.order)
        for n_d, n_right, columns in self._lines(start, stop).runs:
            for m_x, m_d, rows in self._m.runs:
                yield Portion(
                    x.left[m_x : m_x + rows],
                    right[:, n_right : n_right + columns],
                    self._d[m_d : m_d + rows, n_d : n_d + columns],
                    awaits=awaits,
                    ready=ready,
                    origin=(m_d, n_d),
                )
