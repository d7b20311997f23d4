"""Copies within a GPU, and the memory layout of matrices: lines of contiguous bytes, a pitch apart."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import cupy

from pblas.backends.cuda import streams
from pblas.backends.cuda.strided_copy import StridedCopy
from pblas.backends.cuda.transfer import new_array
from pblas.backends.nvshmem.kernels import Block

if TYPE_CHECKING:
    from pblas.backends.cuda.recordable import Stream
    from pblas.backends.nvshmem.graph_launch import Executions
    from pblas.backends.nvshmem.memory import PrivateMemory
    from pblas.backends.nvshmem.shared import EngineResources


class Copies:
    """Local copies of an execution: the plan's copies, and reordered operands for kernels.

    Args:
        common: resources of the context's engines (local).
        executions: executions of the queue, whose sink takes the copies (local).
        private: private memory of this rank (local).
    """

    def __init__(self, common: EngineResources, executions: Executions, private: PrivateMemory) -> None:
        self._kernels, self._executions, self._private = common.kernels, executions, private

    def copy(self, lane: str, source: Any, target: Any) -> None:
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

    def scale(self, lane: str, beta: complex, source: Any, target: Any) -> None:
        """Target := beta source; with beta = 0 the source is not read."""

        def start(stream: Stream) -> None:
            shared_orders = orders(target) & orders(source)
            x = source if shared_orders else self.reordered(lane, source, min(orders(target)))
            self._kernels.scale(stream, target.dtype, beta, block_of(x, target, common_order(target, x)))

        if target.size:
            self._executions.sink.launch(lane, start)

    def packed(self, key: tuple[Any, ...], like: Any, order: Any) -> Any:
        """A tight array of the same shape. Each set of operands has its own array for the lifetime of its graphs."""

        def make() -> Any:
            return new_array(like.shape, like.dtype, self._private.new(like.nbytes).data, order=order)

        return self._executions.sink.packed((*key, like.shape, like.dtype, order, like.data.ptr), make)

    def tight(self, lane: str, x: Any, order: Any) -> Any:
        """The array, or a copy of it that is tight and in the given order."""
        if is_tight(x, order):
            return x
        if order not in orders(x):
            return self.reordered(lane, x, order)
        target = self.packed(("tight",), x, order)
        self.copy(lane, x, target)
        return target

    def reordered(self, lane: str, x: Any, order: Any) -> Any:
        """A copy of an array in the other storage order."""
        target = self.packed(("order",), x, order)
        self._assign(lane, x, target)
        return target

    def padded(self, lane: str, x: Any, number: int, shape: tuple[int, int], order: Any) -> Any:
        """A copy of operand `number` of a product at the start of a larger array, with zeros after it."""
        kernels, count = self._strided_copy, shape[0] * shape[1]
        key = "padded", number, shape, x.dtype, order, x.data.ptr, x.shape, x.strides

        def make() -> Any:
            return new_array(shape, x.dtype, self._private.new(count * x.dtype.itemsize).data, order=order)

        whole = self._executions.sink.packed(key, make)
        self._executions.sink.launch(lane, lambda stream: kernels.pad(int(stream), x, whole))
        return whole

    def unpadded(self, lane: str, whole: Any, x: Any) -> None:
        """X := the elements at the start of a larger array of the same storage order."""
        self.copy(lane, whole[: x.shape[0], : x.shape[1]], x)

    @cached_property
    def _strided_copy(self) -> StridedCopy:
        return StridedCopy()

    def conjugated(self, lane: str, x: Any, number: int) -> Any:
        """A copy of conj(X), operand `number` of a product."""
        order = "F" if x.strides[0] <= x.strides[1] else "C"
        target = self.packed(("conj", number), x, order)
        block = block_of(x, target, order)
        self._executions.sink.launch(lane, lambda stream: self._kernels.conjugate(stream, x.dtype, block))
        return target

    def _assign(self, lane: str, source: Any, target: Any) -> None:
        """Target := source; the two have different storage orders."""

        def start(stream: Stream) -> None:
            with cupy.cuda.Stream.from_external(streams.Handle(int(stream))):
                cupy.copyto(target, source)

        self._executions.sink.launch(lane, start)


def orders(x: Any) -> set[str]:
    """The storage orders in which an array can be read: both for contiguous vectors."""
    result = {"F"} if x.shape[0] <= 1 or x.strides[0] == x.itemsize else set()
    return result | ({"C"} if x.shape[1] <= 1 or x.strides[1] == x.itemsize else set())


def common_order(x: Any, y: Any) -> str:
    """The storage order that two arrays share."""
    common = orders(x) & orders(y)
    assert common, "blocks of one matrix have the same storage order"
    return max(common)


def is_tight(x: Any, order: str) -> bool:
    """Whether an array fills its memory, in this order."""
    return order in orders(x) and leading(x, order) == max(1, x.shape[0 if order == "F" else 1])


def lines_of(x: Any, order: str) -> tuple[int, int, int]:
    """Of a matrix, stored in this order: bytes of a line, their number, bytes from one to the next."""
    fast, slow = (0, 1) if order == "F" else (1, 0)
    width, lines = x.shape[fast] * x.itemsize, x.shape[slow]
    return width, lines, x.strides[slow] if lines > 1 else width


def extents(x: Any, order: str) -> tuple[int, int]:
    """Elements of a line, and the number of lines, of a matrix that is stored in this order."""
    rows, columns = x.shape
    return (rows, columns) if order == "F" else (columns, rows)


def leading(x: Any, order: str) -> int:
    """The leading dimension of a matrix that is stored in this order, elements."""
    return max(1, lines_of(x, order)[2] // x.itemsize)


def block_of(source: Any, target: Any, order: str) -> Block:
    """The copy from one array to another, both stored in this order."""
    (width, lines, source_pitch), (_, _, target_pitch) = lines_of(source, order), lines_of(target, order)
    return Block(source.data.ptr, target.data.ptr, width, -1, lines, source_pitch, target_pitch).flat()
