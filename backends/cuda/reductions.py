"""Reductions of a CuPy array, with the functions of `pblas.backends.cpu.reductions`; results are in host memory.

CuPy reads memory once for each step and has temporaries of the size of x where elements are converted or squared.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import cupy
import numpy as np

from pblas.backends.cuda import transfer
from pblas.backends.dtypes import FLOAT32

if TYPE_CHECKING:
    from pblas.backends.device import Axis
    from pblas.backends.dtypes import Array, Dtype


def reduce(kind: str, x: Array, axis: Axis, order: str, dtype: Dtype, scale: Any = None) -> Array:
    """Reduce the elements of x, divided by `scale`, along an axis; see `pblas.backends.cpu.reductions.reduce`."""
    del order
    y = _converted(x, dtype)
    if kind in ("abs_sum", "abs_max"):
        y = cupy.abs(y)
    elif kind == "squares":
        factor = 1.0 if scale is None else cupy.asarray(scale)
        if axis is not None and np.ndim(factor):
            factor = cupy.expand_dims(factor, axis)
        # By parts: CuPy divides infinity + 0j by a number as complex numbers, which gives NaN.
        parts = (y.real / factor, y.imag / factor) if y.dtype.kind == "c" else (y / factor,)
        y = sum(part * part for part in parts)
    function = {"max": cupy.max, "abs_max": cupy.max, "min": cupy.min}.get(kind, cupy.sum)
    return np.atleast_1d(function(y, axis=axis).get())


def arg_reduce(kind: Literal["max", "min"], x: Any, axis: Axis, order: str) -> tuple[Array, Array]:
    """Extremes and their first places; see `pblas.backends.cpu.reductions.arg_reduce`."""
    del order
    y = _converted(x, FLOAT32) if x.dtype.itemsize == FLOAT32.itemsize // 2 else x
    first = cupy.argmax if kind == "max" else cupy.argmin
    if axis is None:
        flat = int(first(cupy.ascontiguousarray(y).reshape(-1)))
        row, column = divmod(flat, x.shape[1])
        return y[row : row + 1, column].get(), np.array([row, column])
    places = first(y, axis=axis)
    values = cupy.take_along_axis(y, cupy.expand_dims(places, axis), axis).squeeze(axis)
    return values.get(), places.get().astype(np.intp)


def dot(x: Array, y: Array, order: str, dtype: Dtype, *, conj: bool) -> Array:
    """The sum of op(x) y over all elements; see `pblas.backends.cpu.reductions.dot`."""
    del order
    left, right = _converted(x, dtype), _converted(y, dtype)
    return np.atleast_1d(cupy.sum((left.conj() if conj else left) * right).get())


def take(x: Array, rows: Array, columns: Array) -> Array:
    """The elements x[rows[i], columns[i]], in host memory and one dimension."""
    words = transfer.words(x)[cupy.asarray(rows), cupy.asarray(columns)]
    elements: Array = words.get().view(x.dtype)
    return elements


def _converted(x: Array, dtype: Dtype) -> Any:
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
    """Float32 to float64. CuPy compiles with subnormal numbers flushed to zero, which assembly is not subject to."""
    return cupy.ElementwiseKernel("float32 x", "float64 y", 'asm("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x));', "widen")
