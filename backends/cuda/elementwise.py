"""Elementwise operations and reductions on this rank's GPU."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import cupy
import numpy as np

from pblas.backends.cuda import reductions, streams, transfer
from pblas.backends.cuda.lanes import DeviceLanes
from pblas.backends.cuda.pointwise import type_name
from pblas.backends.cuda.strided_copy import StridedRegion, copied
from pblas.backends.device import Axis
from pblas.backends.dtypes import BFLOAT16, FLOAT8, FLOAT16, FLOAT32, Array, Dtype, GpuArray, accumulator_dtype

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pblas.epilogues import Epilogue, Node


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

    def combining(self, tree: Node, operands: Mapping[str, object], name: str, compute: Dtype, out: Array) -> None:
        """None: an operand arrives first, and one kernel evaluates the expression then."""

    def add_rows(self, x: Array, out: Array, stream: object = None) -> None:
        caller_stream = cupy.cuda.get_current_stream() if stream is None else cupy.cuda.Stream.from_external(stream)
        with caller_stream:
            out[...] = x.astype(accumulator_dtype(x.dtype), copy=False).sum(0).astype(out.dtype, copy=False)

    def largest(self, x: Array, out: Array, stream: object = None) -> None:
        """Without their signs, the bits of floating-point numbers have the order of the numbers, NaN last."""
        handle = streams.current_handle(stream)
        with cupy.cuda.Stream.from_external(streams.Handle(handle)):
            if not x.size:
                out[...] = 0
                return
            bits = _largest_bits()(x.view(f"u{x.dtype.itemsize}"))
            if x.dtype == FLOAT16:
                out[...] = bits.view(FLOAT16)
            else:
                out[...] = (bits.astype(np.uint32) << (32 - 8 * x.dtype.itemsize)).view(FLOAT32)

    # Reductions, to arrays in host memory, on the default stream. Elements of 16 bits are converted first, by a copy.

    def reduce(self, kind: str, x: Array, axis: Axis, order: str, dtype: Dtype, scale: object = None) -> Array:
        if axis is not None and scale is None and reductions.is_across(x, axis) and x.dtype not in FLOAT8:
            return reductions.across(kind, x, axis, dtype)
        is_mapped = kind in _MAPS and scale is None
        if order == "F" and (axis is None or is_mapped):  # CuPy is slow by columns, but for sums of each
            x, axis = x.T, _OTHER_AXIS[axis]
        if is_mapped:
            y = transfer.words(x) if x.dtype == BFLOAT16 else x
            return transfer.on_host(_reduction(kind, np.empty(0, dtype).real.dtype)(y, axis=axis).reshape(-1))
        y = _in_precision(x, dtype)
        if axis is not None and x.shape[axis] == 1 and scale is None:
            return transfer.on_host(cupy.ascontiguousarray(y.reshape(-1)))
        function = {"max": cupy.max, "min": cupy.min}.get(kind, cupy.sum)
        y = y if scale is None else _divided(y, axis, scale)
        return transfer.on_host(function(y, axis=axis).reshape(-1))

    def arg_reduce(self, kind: Literal["max", "min"], x: Array, axis: Axis, order: str) -> tuple[Array, Array]:
        if axis is None:
            return reductions.extreme(kind, x)
        y: GpuArray = _in_precision(x, FLOAT32) if x.dtype.itemsize == FLOAT32.itemsize // 2 else x
        first = cupy.argmax if kind == "max" else cupy.argmin
        places = first(y, axis=axis)
        values = cupy.take_along_axis(y, cupy.expand_dims(places, axis), axis).squeeze(axis)
        return values.get(), places.get().astype(np.intp)

    def dot(self, x: Array, y: Array, order: str, dtype: Dtype, *, conj: bool) -> Array:
        if order == "F":
            x, y = x.T, y.T
        left, right = _in_precision(x, dtype), _in_precision(y, dtype)
        return transfer.on_host(cupy.sum((left.conj() if conj else left) * right).reshape(-1))


@cache
def _largest_bits() -> Any:
    """The kernel that finds the largest of the elements' bits, without their signs."""
    return cupy.ReductionKernel("T x", "T y", "(T)(x & ((T)-1 >> 1))", "max(a, b)", "y = a", "0", "largest_bits")


_OTHER_AXIS: dict[Axis, Axis] = {None: None, 0: 1, 1: 0}
_MAPS = {"abs_sum": "magnitude", "abs_max": "magnitude", "squares": "square"}
_MAPPED = """
template <class R, class T> __device__ R widened(T x) { return R(x); }
template <> __device__ float widened<float, unsigned short>(unsigned short x) { return __uint_as_float(x << 16); }
// CuPy compiles with subnormal numbers flushed to zero, which assembly is not subject to.
template <> __device__ double widened<double, float>(float x) {
    double y;
    asm("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x));
    return y;
}
template <> __device__ double widened<double, unsigned short>(unsigned short x) {
    return widened<double>(__uint_as_float(x << 16));
}
template <class R, class T> __device__ R square(T x) { return widened<R>(x) * widened<R>(x); }
template <class R, class T> __device__ R square(complex<T> x) { return square<R>(x.real()) + square<R>(x.imag()); }
template <class R, class T> __device__ R magnitude(T x) { return fabs(widened<R>(x)); }
template <class R, class T> __device__ R magnitude(complex<T> x) {
    return abs(complex<R>(widened<R>(x.real()), widened<R>(x.imag())));
}
template <class R> __device__ R larger(R a, R b) { return a > b || a != a ? a : b; }
"""


@cache
def _reduction(kind: str, dtype: Dtype) -> Any:
    """The kernel that adds or compares functions of elements of 32 bits at least, in a real dtype."""
    combine = "larger(a, b)" if kind == "abs_max" else "a + b"
    arguments = f"{_MAPS[kind]}<{type_name(dtype)}>(x)", combine, "y = a", "0", f"pblas_{kind}"
    return cupy.ReductionKernel("T x", f"{dtype.name} y", *arguments, preamble=_MAPPED)


def _divided(y: Any, axis: Axis, scale: object) -> Array:
    """The squares of elements divided by scales, which are one number or one for each result."""
    factor: Any = cupy.asarray(scale)
    if axis is not None and factor.ndim:
        factor = cupy.expand_dims(factor, axis)
    # By parts: CuPy divides infinity + 0j by a number as complex numbers, which gives NaN.
    parts = (y.real / factor, y.imag / factor) if y.dtype.kind == "c" else (y / factor,)
    squares: Array = sum(part * part for part in parts)
    return squares


def _in_precision(x: Array, dtype: Dtype) -> Any:
    """X in the precision of `dtype`; complex if x is."""
    if x.dtype.kind == "c":
        dtype = np.result_type(dtype, np.complex64)
    if x.dtype.char not in "fF" or dtype.char not in "dD":
        return x.astype(dtype, copy=False)
    y = cupy.empty(x.shape, dtype)
    for source, target in [(x.real, y.real), (x.imag, y.imag)] if x.dtype.kind == "c" else [(x, y)]:
        _widen()(source, target)
    return y


@cache
def _widen() -> Any:
    """Float32 to float64."""
    return cupy.ElementwiseKernel("float32 x", "float64 y", "y = widened<double>(x)", "widen", preamble=_MAPPED)
