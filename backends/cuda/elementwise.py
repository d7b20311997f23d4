"""Elementwise operations and reductions on this rank's GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import cupy
import numpy as np

from pblas.backends.cuda import reductions, streams, transfer
from pblas.backends.cuda.lanes import DeviceLanes
from pblas.backends.cuda.pointwise import FACTOR, NOT_ZERO
from pblas.backends.cuda.strided_copy import StridedRegion, copied
from pblas.backends.device import Axis
from pblas.backends.dtypes import FLOAT32, Array, Dtype, GpuArray, accumulator_dtype
from pblas.epilogues import Epilogue, Node, parse

if TYPE_CHECKING:
    from collections.abc import Mapping


_PRODUCTS = {False: parse("x * y"), True: parse("conj(x) * y", parts=True)}
"""The terms of an inner product, by whether the left ones are conjugated."""
_FLOAT64 = np.dtype(np.float64)
_QUOTIENT, _PRODUCT = parse("x / s"), parse("x * f * f")


class DeviceElementwise(DeviceLanes):
    """Expressions and sums of elements; `pblas.backends.device` documents the methods."""

    def assign(self, x: GpuArray, z: GpuArray) -> None:
        if not z.size or (copied if x.dtype == z.dtype else self._converted)(self.stream, x, z):
            return
        if x.dtype == z.dtype:
            shape: Any = z.shape
            self.strided_copy.copy(self.stream, z.dtype, shape, StridedRegion.of(x), StridedRegion.of(z))
        else:
            self.add_scaled(1, x, 0, z)

    def _converted(self, stream: int, x: GpuArray, z: GpuArray) -> bool:
        """Z := X between 32 and 16 bits, if both are stored in the same order."""
        for order in "FC":
            source, target = transfer.lines_of(x, order), transfer.lines_of(z, order)
            if source is not None and target is not None:
                x_lines, z_lines = (x.data.ptr, source[2] // x.itemsize), (z.data.ptr, target[2] // z.itemsize)
                self.strided_copy.convert(
                    stream, (x.dtype, z.dtype), x_lines, z_lines, target[0] // z.itemsize, target[1]
                )
                return True
        return False

    def scale(self, beta: complex, z: Array) -> None:
        if beta != 1:
            self.add_scaled(0, z, beta, z)

    def add_scaled(self, alpha: complex, x: GpuArray, beta: complex, z: GpuArray) -> None:
        shape: Any = z.shape
        self.strided_copy.combine(
            self.stream, (x.dtype, z.dtype), shape, StridedRegion.of(x), StridedRegion.of(z), alpha, beta
        )

    def _copied(self, x: Array) -> Array:
        """A copy of X."""
        z = self.like(x, x.dtype)
        self.assign(x, z)
        return z

    def _conjugated(self, x: Array) -> Array:
        """A copy of conj(X)."""
        z = self.like(x, x.dtype)
        shape: Any = x.shape
        self.strided_copy.combine(
            self.stream, (x.dtype, x.dtype), shape, StridedRegion.of(x), StridedRegion.of(z), 1, 0, conj=True
        )
        return z

    def finish(
        self, epilogue: Epilogue, x: GpuArray, operands: Mapping[str, Any], out: GpuArray, stream: object = None
    ) -> None:
        if not out.size:
            return
        caller_stream = streams.current_handle(stream)
        if epilogue.tree is not None:
            self.pointwise.evaluate(caller_stream, epilogue.tree, x, operands, out)
        else:
            self.pointwise.normalise(caller_stream, x, out, **operands)

    def evaluate(self, tree: Node, operands: Mapping[str, object], compute: Dtype, out: Array) -> None:
        if out.size:
            self.pointwise.combine(self.stream, tree, operands, compute, out)

    def normalize(self, x: Array, z: Array) -> None:
        """Squares are added in 64 bits, in which those of 32 neither overflow nor vanish; the host waits for nothing.

        Half of the factor, its root, is in the range of 32 bits, and so is half of the product.
        """
        if not z.size:
            return
        total = accumulator_dtype(x.dtype)
        with cupy.cuda.Stream.from_external(streams.Handle(self.stream)):
            if x.dtype.char in "dD":
                largest = reductions.reduce("abs_max", x, None, _FLOAT64).reshape(1, 1)
                self.evaluate(NOT_ZERO, {"s": largest}, _FLOAT64, largest)
                self.evaluate(_QUOTIENT, {"x": x, "s": largest}, total, z)
                x = z
            squares = reductions.reduce("squares", x, None, _FLOAT64).reshape(1, 1)
            factor: Any = cupy.empty((1, 1), np.empty(0, total).real.dtype)
            self.evaluate(FACTOR, {"s": squares}, _FLOAT64, factor)
            self.evaluate(_PRODUCT, {"x": x, "f": factor}, total, z)

    def combining(self, tree: Node, operands: Mapping[str, object], name: str, compute: Dtype, out: Array) -> None:
        """None: an operand arrives first, and one kernel evaluates the expression then."""

    def add_rows(self, x: Array, out: Array, stream: object = None) -> None:
        caller_stream = cupy.cuda.get_current_stream() if stream is None else cupy.cuda.Stream.from_external(stream)
        with caller_stream:
            if not x.size:
                out[...] = 0
                return
            out[...] = reductions.reduce("sum", x, 0, accumulator_dtype(x.dtype)).astype(out.dtype, copy=False)

    def largest(self, x: Array, out: Array, stream: object = None) -> None:
        handle = streams.current_handle(stream)
        with cupy.cuda.Stream.from_external(streams.Handle(handle)):
            if not x.size:
                out[...] = 0
                return
            out[...] = reductions.reduce("abs_max", x, None, FLOAT32)[0]

    # Reductions, to arrays in host memory, on the current stream

    def reduce(
        self, kind: str, x: Array, axis: Axis, order: str, dtype: Dtype, scale: object = None, *, waits: bool = True
    ) -> Array:
        results = reductions.reduce(kind, x, axis, dtype, scale, to_host=waits)
        return transfer.on_host(results) if waits else results

    def exact_sums(self, kind: Any, x: Array, axis: Axis, other: Array | None = None, *, conj: bool = False) -> Array:
        from pblas.backends.cuda.exact_sums import binned

        return binned(kind, x, axis, other, conj=conj)

    def arg_reduce(self, kind: Literal["max", "min"], x: Array, axis: Axis, order: str) -> tuple[Array, Array]:
        return reductions.extreme(kind, x) if axis is None else reductions.extremes(kind, x, axis)

    def dot(self, x: Array, y: Array, order: str, dtype: Dtype, *, conj: bool) -> Array:
        is_complex = x.dtype.kind == "c"
        total: Dtype = np.result_type(dtype, np.complex64) if is_complex else dtype
        if not x.size:
            return np.zeros(1, total)
        products, stream = self.like(x, total), cupy.cuda.get_current_stream()
        self.pointwise.combine(stream.ptr, _PRODUCTS[conj and is_complex], {"x": x, "y": y}, total, products)
        return self.reduce("sum", products, None, order, dtype)
