"""Copies and sums by kernels: of local arrays, and of all ranks' partial products, for which the kernels wait."""

from __future__ import annotations

import functools
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import cupy

from pblas.backends.cuda import streams
from pblas.backends.cuda.strided_copy import StridedCopy
from pblas.backends.cuda.transfer import new_array
from pblas.backends.nvshmem.kernels import Reduction, Strided, compiled_epilogue, compiling
from pblas.backends.nvshmem.kernels.arguments import Block, EpilogueTerms, Slots
from pblas.backends.nvshmem.kernels.sources import file_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.cuda.kernels import Stream
    from pblas.backends.dtypes import Array, Dtype, GpuArray, Order
    from pblas.backends.nvshmem.graph_launch import Executions
    from pblas.backends.nvshmem.memory import PrivateMemory
    from pblas.backends.nvshmem.shared import EngineResources
    from pblas.backends.push_engine import Output


class Copies:
    """Local copies of an execution: the plan's copies, and reordered operands for kernels."""

    def __init__(self, common: EngineResources, executions: Executions, private: PrivateMemory) -> None:
        self._kernels, self._executions, self._private = common.kernels, executions, private

    def copy(self, lane: str, source: GpuArray, target: GpuArray) -> None:
        """Target := source, of the same dtype, with a kernel. On a side lane it runs concurrently with GEMMs."""
        if not target.size:
            return
        common = orders(target) & orders(source)
        if not common:
            self._assign(lane, source, target)
        elif lane != "main" and (block := block_of(source, target, max(common))).is_in_packets:
            self._executions.sink.launch(lane, lambda stream: self._kernels.copy(stream, block))
        else:
            self.scale(lane, 1.0, source, target)

    def scale(self, lane: str, beta: complex, source: GpuArray, target: GpuArray) -> None:
        """Target := beta source; with beta = 0 the source is not read."""

        def start(stream: Stream) -> None:
            shared_orders = orders(target) & orders(source)
            x = source if shared_orders else self.reordered(lane, source, min(orders(target)))
            self._kernels.scale(stream, target.dtype, beta, block_of(x, target, common_order(target, x)))

        if target.size:
            self._executions.sink.launch(lane, start)

    def packed(self, key: tuple[Any, ...], like: GpuArray, order: Order) -> GpuArray:
        """A tight array of the same shape. Each set of operands has its own array for the lifetime of its graphs."""

        def make() -> GpuArray:
            return new_array(like.shape, like.dtype, self._private.new(like.nbytes).data, order=order)

        return self._executions.sink.packed((*key, like.shape, like.dtype, order, like.data.ptr), make)

    def tight(self, lane: str, x: Array, order: Order) -> GpuArray:
        """The array, or a copy of it that is tight and in the given order."""
        if is_tight(x, order):
            return x
        if order not in orders(x):
            return self.reordered(lane, x, order)
        target = self.packed(("tight",), x, order)
        self.copy(lane, x, target)
        return target

    def reordered(self, lane: str, x: GpuArray, order: Order) -> GpuArray:
        """A copy of an array in the other storage order."""
        target = self.packed(("order",), x, order)
        self._assign(lane, x, target)
        return target

    def padded(self, lane: str, x: GpuArray, number: int, shape: tuple[int, int], order: Order) -> GpuArray:
        """A copy of operand `number` of a product at the start of a larger array, with zeros after it."""
        kernels, count = self._strided_copy, shape[0] * shape[1]
        key = "padded", number, shape, x.dtype, order, x.data.ptr, x.shape, x.strides

        def make() -> GpuArray:
            return new_array(shape, x.dtype, self._private.new(count * x.dtype.itemsize).data, order=order)

        whole = self._executions.sink.packed(key, make)
        self._executions.sink.launch(lane, lambda stream: kernels.pad(int(stream), x, whole))
        return whole

    def unpadded(self, lane: str, whole: GpuArray, x: GpuArray) -> None:
        """X := the elements at the start of a larger array of the same storage order."""
        self.copy(lane, whole[: x.shape[0], : x.shape[1]], x)

    @cached_property
    def _strided_copy(self) -> StridedCopy:
        return StridedCopy()

    def conjugated(self, lane: str, x: GpuArray, number: int) -> GpuArray:
        """A copy of conj(X), operand `number` of a product."""
        order: Order = "F" if x.strides[0] <= x.strides[1] else "C"
        target = self.packed(("conj", number), x, order)
        block = block_of(x, target, order)
        self._executions.sink.launch(lane, lambda stream: self._kernels.conjugate(stream, x.dtype, block))
        return target

    def _assign(self, lane: str, source: GpuArray, target: GpuArray) -> None:
        """Target := source; the two have different storage orders."""

        def start(stream: Stream) -> None:
            with cupy.cuda.Stream.from_external(streams.Handle(int(stream))):
                cupy.copyto(target, source)

        self._executions.sink.launch(lane, start)


def orders(x: GpuArray) -> set[Order]:
    """The storage orders in which an array can be read: both for contiguous vectors."""
    by_columns: set[Order] = {"F"} if x.shape[0] <= 1 or x.strides[0] == x.itemsize else set()
    by_rows: set[Order] = {"C"} if x.shape[1] <= 1 or x.strides[1] == x.itemsize else set()
    return by_columns | by_rows


def common_order(x: GpuArray, y: GpuArray) -> Order:
    """The storage order that two arrays share."""
    common = orders(x) & orders(y)
    assert common, "blocks of one matrix have the same storage order"
    return max(common)


def is_tight(x: GpuArray, order: str) -> bool:
    """Whether an array fills its memory, in this order."""
    return order in orders(x) and leading(x, order) == max(1, x.shape[0 if order == "F" else 1])


def lines_of(x: GpuArray, order: str) -> tuple[int, int, int]:
    """Of a matrix, stored in this order: bytes of a line, their number, bytes from one to the next."""
    fast, slow = (0, 1) if order == "F" else (1, 0)
    width, lines = x.shape[fast] * x.itemsize, x.shape[slow]
    return width, lines, x.strides[slow] if lines > 1 else width


def extents(x: Array, order: str) -> tuple[int, int]:
    """Elements of a line, and the number of lines, of a matrix that is stored in this order."""
    rows, columns = x.shape
    return (rows, columns) if order == "F" else (columns, rows)


def leading(x: GpuArray, order: str) -> int:
    """The leading dimension of a matrix that is stored in this order, elements."""
    return max(1, lines_of(x, order)[2] // x.itemsize)


def block_of(source: GpuArray, target: GpuArray, order: str) -> Block:
    """The copy from one array to another, both stored in this order."""
    (width, lines, source_pitch), (_, _, target_pitch) = lines_of(source, order), lines_of(target, order)
    return Block(source.data.ptr, target.data.ptr, width, -1, lines, source_pitch, target_pitch).flat()


class Sums:
    """The reduction kernels on operands of plans; the arguments are those of the engine's methods."""

    def __init__(self, common: EngineResources, executions: Executions, copies: Copies) -> None:
        self._kernels, self._rank, self._watch = common.kernels, common.rank, common.watch
        self._executions, self._copies = executions, copies

    def add(self, lane: str, parts: list[Any], output: Output) -> None:
        """Store the sum of the parts, added in their order, in an output that is not empty."""
        out, old, wire = output.out, output.old, parts[0].dtype
        order = common_order(out, parts[0])
        epilogue = self._epilogue_terms(lane, output, order, wire=wire, scaled=False, family="sum")

        def start(stream: Stream) -> None:
            c: GpuArray | None = (
                old if old is None or order in orders(old) else self._copies.reordered(lane, old, order)
            )
            blocks = [Strided(x.data.ptr, leading(x, order)) for x in (*parts, out)]
            addend = None if c is None else Strided(c.data.ptr, leading(c, order))
            options: dict[str, Any] = {"old": addend, "beta": output.beta, "wire": wire, "epilogue": epilogue}
            self._kernels.sum(stream, out.dtype, extents(out, order), blocks[:-1], blocks[-1], **options)

        self._executions.sink.launch(lane, start)

    def reduce_scatter(
        self, lane: str, parts: list[Any], order: Order, slots: Slots, contributing: list[int], output: Output
    ) -> None:
        """Reduce-scatter with one kernel, which sends shards to their owners and adds the received shards."""
        bounds = list(accumulate((part.size for part in parts), initial=0))
        kernel = functools.partial(self._kernels.reduce, kind="reduce_scatter", source=parts[0].data.ptr, slots=slots)
        self._reduce(lane, kernel, order, parts[self._rank].dtype, bounds, contributing, output)

    def one_shot(self, lane: str, partial: GpuArray, slots: Slots, contributing: list[int], output: Output) -> None:
        """All-reduce with one kernel, which sends the whole partial product to all ranks."""
        kernel = functools.partial(self._kernels.reduce, kind="one_shot", source=partial.data.ptr, slots=slots)
        self._reduce(lane, kernel, "F", partial.dtype, [0, partial.size], contributing, output)

    def two_shot(
        self,
        lane: str,
        wire: Dtype,
        first: list[int],
        source: int,
        slots: Slots,
        contributing: list[int],
        output: Output,
    ) -> None:
        """All-reduce with one kernel, which sends shards of the partial product at `source`, then its sums."""
        kernel = functools.partial(self._kernels.reduce, kind="two_shot", source=source, slots=slots)
        self._reduce(lane, kernel, "F", wire, first, contributing, output)

    def pulled(
        self, lane: str, wire: Dtype, first: list[int], places: dict[str, Any], contributing: list[int], output: Output
    ) -> None:
        """All-reduce with one kernel, which reads the peers' partial products and stores sums there, at `places`."""
        kernel = functools.partial(self._kernels.two_shot_pull, **places)
        self._reduce(lane, kernel, "F", wire, first, contributing, output)

    def _reduce(
        self,
        lane: str,
        kernel: Callable[..., None],
        order: Order,
        wire: Dtype,
        bounds: list[int],
        contributing: list[int],
        output: Output,
    ) -> None:
        """Launch kernel(stream, call=reduction), which takes C and D tight and in this order."""
        out, old = output.out, output.old
        epilogue = self._epilogue_terms(lane, output, order, wire=wire, scaled=old is not None, family="all_reduce")

        def start(stream: Stream) -> None:
            c, beta = (0, 0.0) if old is None else (self._copies.tight(lane, old, order).data.ptr, output.beta)
            result: GpuArray = out if is_tight(out, order) else self._copies.packed(("result",), out, order)
            places = bounds, result.data.ptr, self._rank, self._watch, c
            kernel(stream, call=Reduction(out.dtype, wire, *places, beta, contributing, epilogue))
            if result is not out:
                self._copies.copy(lane, result, out)

        self._executions.sink.launch(lane, start)

    def _epilogue_terms(
        self, lane: str, output: Output, order: str, *, wire: Dtype, scaled: bool, family: str
    ) -> EpilogueTerms | None:
        """The epilogue as an argument of kernels; rehearsals of products compile the kernels."""
        stream, out = self._executions.sink.stream(lane), output.out
        if output.finish is None:
            with compiling():
                self._kernels.require(stream, file_of(family, out.dtype, wire))
            return None
        return compiled_epilogue(
            self._kernels, stream, output.finish, out, order, wire=wire, scaled=scaled, family=family
        )
