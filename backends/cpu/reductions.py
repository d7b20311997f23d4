"""Reductions of a NumPy array: sums, extremes, sums of squares. Memory is read once, in blocks that stay in cache.

The order of additions depends on the shape and the storage order alone, and neither on the leading dimension nor on
BLAS threads. Elements are converted block by block, so temporaries stay small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from pblas.backends.dtypes import FLOAT32, Array, Dtype

if TYPE_CHECKING:
    from pblas.backends.device import Axis

_BLOCK = 1 << 16  # elements of a block: half a megabyte of float64, for the second-level cache
_PIECE = 1 << 13
"""Longest piece of a line: OpenBLAS divides longer dot products among its threads, which changes their bits."""
_SHORT = 256  # lines of fewer elements are packed, since a call for each line would take longer than its additions


class Kind(NamedTuple):
    """A reduction: `reduce` of the elements after `prepare`; `combine` adds two partial results."""

    prepare: Callable[[Array], Array]
    reduce: Callable[..., Any]
    combine: np.ufunc


def _same(x: Array) -> Array:
    """X itself."""
    return x


def _squares(x: Array) -> Array:
    """|X|^2 elementwise."""
    return x.real**2 + x.imag**2 if x.dtype.kind == "c" else np.square(x)


KINDS = {
    "sum": Kind(_same, np.add.reduce, np.add),
    "max": Kind(_same, np.maximum.reduce, np.maximum),
    "min": Kind(_same, np.minimum.reduce, np.minimum),
    "abs_sum": Kind(np.abs, np.add.reduce, np.add),
    "abs_max": Kind(np.abs, np.maximum.reduce, np.maximum),
    "squares": Kind(_squares, np.add.reduce, np.add),
}


def reduce(kind: str, x: Array, axis: Axis, order: str, dtype: Dtype, scale: Any = None) -> Array:
    """Reduce the elements of x, converted to `dtype` and divided by `scale`, along an axis or all together.

    >>> reduce("sum", np.arange(6.0).reshape(2, 3), 0, "C", np.dtype("float64"))
    array([3., 5., 7.])
    """
    if order == "F":
        x, axis = x.T, None if axis is None else 1 - axis  # type: ignore[assignment]  # 0 or 1
    lines, length = x.shape
    prepare, reduce_, combine = KINDS[kind]
    if axis is None:
        is_read_in_place = (
            scale is None and x.dtype.char.lower() == dtype.char and (prepare is _same or kind == "squares")
        )
        pieces = (_converted(x, dtype, scale) for x in _pieces(x, 16 * _BLOCK if is_read_in_place else _BLOCK))
        if kind == "squares":
            return np.atleast_1d(np.add.reduce(np.array([_sum_of_squares(piece) for piece in pieces])))
        return np.atleast_1d(reduce_(np.array([reduce_(reduce_(prepare(piece), axis=1)) for piece in pieces])))
    results: Any = [None] * (lines if axis == 1 else length)
    out: Array | None = None
    for i, j in _blocks(lines, length):
        place = j if axis == 0 else i
        divisor = scale if scale is None or np.ndim(scale) == 0 else np.expand_dims(scale[place], axis)
        partial = reduce_(prepare(_converted(x[i, j], dtype, divisor)), axis=axis)
        if out is None:
            out = np.empty(len(results), partial.dtype)
        is_first = (i if axis == 0 else j).start == 0
        out[place] = partial if is_first else combine(out[place], partial)
    assert out is not None, "x has an element"
    return out


def arg_reduce(kind: Literal["max", "min"], x: Array, axis: Axis, order: str) -> tuple[Array, Array]:
    """The extremes of x along an axis or of all elements, and the places where each occurs first. NaN is the extreme.

    >>> arg_reduce("max", np.array([[1.0, 5.0], [5.0, 2.0]]), None, "F")
    (array([5.]), array([0, 1]))
    """
    first = np.argmax if kind == "max" else np.argmin
    if axis is None:
        lines: Axis = 1 if order == "C" else 0
        values, places = arg_reduce(kind, x, lines, order)
        extreme = values[first(values)]
        candidates = np.flatnonzero(np.isnan(values) if np.isnan(extreme) else values == extreme)
        along, across = places[candidates], candidates
        rows, columns = (across, along) if order == "C" else (along, across)
        best = np.lexsort((columns, rows))[0]
        return np.atleast_1d(extreme), np.array([rows[best], columns[best]])
    count = x.shape[1 - axis]
    dtype = FLOAT32 if x.itemsize == 2 else x.dtype
    values, places = np.empty(count, dtype), np.empty(count, np.intp)
    if order == "F":
        x, axis = x.T, 1 - axis  # type: ignore[assignment]  # 0 or 1
    for i, j in _blocks(*x.shape):
        block, place, start = x[i, j].astype(dtype, copy=False), (j if axis == 0 else i), (i if axis == 0 else j).start
        index = first(block, axis=axis)
        value = np.take_along_axis(block, np.expand_dims(index, axis), axis).squeeze(axis)
        better = slice(None) if start == 0 else precedes(kind, value, values[place])
        values[place][better], places[place][better] = value[better], (index + start)[better]
    return values, places


def precedes(kind: str, x: Array, y: Array) -> Array:
    """Whether elements of x are greater (kind "max") or less ("min") than those of y; NaN exceeds all numbers."""
    beyond = x > y if kind == "max" else x < y
    result: Array = beyond | (np.isnan(x) & ~np.isnan(y))
    return result


def dot(x: Array, y: Array, order: str, dtype: Dtype, *, conj: bool) -> Array:
    """The sum of op(x) y over all elements, in one-element form; op is the conjugate if `conj`.

    >>> dot(np.eye(2), np.eye(2), "F", np.dtype("float64"), conj=False)
    array([2.])
    """
    if order == "F":
        x, y = x.T, y.T
    parts = []
    for i, j in _blocks(*x.shape):
        left, right = (_converted(part[i, j], dtype, None) for part in (x, y))
        parts.append(np.add.reduce(np.add.reduce((np.conj(left) if conj else left) * right, axis=1)))
    return np.atleast_1d(np.add.reduce(np.array(parts)))


def _converted(x: Array, dtype: Dtype, scale: Any) -> Array:
    """X / scale in the precision of `dtype`; complex if x is."""
    if x.dtype.kind == "c":
        dtype = np.result_type(dtype, np.complex64)
    y = x.astype(dtype, copy=False)
    if scale is None:
        return y
    if y.dtype.kind == "c":  # a complex division makes NaN of infinity
        divided = np.empty_like(y)
        np.divide(y.real, scale, out=divided.real)
        np.divide(y.imag, scale, out=divided.imag)
        return divided
    return y / scale


def _blocks(lines: int, length: int) -> Iterator[tuple[slice, slice]]:
    """Blocks of at most `_BLOCK` elements: some lines, or a piece of one line."""
    width = min(length, _BLOCK)
    step = max(1, _BLOCK // max(width, 1))
    for start in range(0, lines, step):
        for left in range(0, length, width):
            yield slice(start, min(start + step, lines)), slice(left, min(left + width, length))


def _pieces(x: Array, most: int = _BLOCK) -> Iterator[Array]:
    """All elements of x in blocks of two dimensions whose rows are contiguous and at most `_PIECE` long.

    Blocks have `most` elements at most: more than fit the cache, for fewer calls, if a reduction makes no temporaries.
    """
    lines, length = x.shape
    if length >= _SHORT:
        width = min(length, _PIECE)
        step = most // width
        for start in range(0, lines, step):
            for left in range(0, length, width):
                yield x[start : start + step, left : left + width]
        return
    step = most // length
    for start in range(0, lines, step):
        packed = np.ascontiguousarray(x[start : start + step]).reshape(-1)
        whole = packed.size // _PIECE * _PIECE
        if whole:
            yield packed[:whole].reshape(-1, _PIECE)
        if whole < packed.size:
            yield packed[None, whole:]


def _sum_of_squares(x: Array) -> Any:
    """The sum of |x|^2, of an array with contiguous rows."""
    if x.dtype.kind == "c":
        x = x.view(x.real.dtype)
    return np.add.reduce(np.vecdot(x, x))
