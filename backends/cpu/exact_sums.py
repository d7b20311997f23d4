"""Sums of numbers without a rounding until the end: their bits depend neither on the order nor on who adds what.

Each number is cut at fixed powers of two, 2^(26 b), and each bin b adds its integers. Sums of bins are exact, so ranks
can add theirs in any order. The total is rounded once.

Source: Demmel, Nguyen, Fast reproducible floating-point summation (2013); Neal, Fast exact summation using small and
large superaccumulators (2015).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from pblas.backends.engine_limits import BIN_BITS, BIN_RANGES, OTHER_BINS, bins_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pblas.backends.dtypes import Array, Dtype

_CHUNK = 1 << 15  # elements that are cut at a time, so that they stay in a cache
_SCALE = 23 * BIN_BITS  # of elements whose squares are no normal numbers: 2^598
_BIG, _SMALL = 2.0**500, 2.0**-450
_MOST_BITS, _LEAST_EXPONENT = 1000, -1021  # of numbers that are rounded as float64 before they are scaled

Kind = Literal["sum", "trace", "abs_sum", "squares", "dot"]


def is_squared(kind: str) -> bool:
    """Whether the terms of sums of this kind are products of two elements."""
    return kind in ("squares", "dot")


class Bins:
    """The bins of `count` sums, one after the other in rows: real ones."""

    def __init__(self, kind: str, itemsize: int, count: int) -> None:
        self._first, _ = BIN_RANGES[max(itemsize, 4), is_squared(kind)]
        self._bins = np.zeros((bins_of(itemsize, squares=is_squared(kind)), count), np.int64)

    def add(self, terms: Array, axis: int | None, place: slice, shift: int = 0) -> None:
        """Add terms 2^(26 shift), a float64 block that is lost, along an axis to the sums at a place."""
        others = self._bins[-OTHER_BINS:, place]
        finite = np.isfinite(terms)
        if not finite.all():
            for number, found in enumerate((terms == np.inf, terms == -np.inf, np.isnan(terms))):
                others[number] += found.sum(axis=axis)
            terms[~finite] = 0
        largest = max(terms.max(initial=0.0), -terms.min(initial=0.0))
        if largest == 0:
            return
        b = (int(np.frexp(largest)[1]) - 1) // BIN_BITS  # the last bin
        for exponent in _halves(-BIN_BITS * b):
            terms *= 2.0**exponent
        while terms.any():
            # term = 2^(26 b) (integer + rest), and the rest is cut at the next bin
            integers = np.rint(terms)
            self._bins[b + shift - self._first, place] += integers.sum(axis=axis).astype(np.int64)
            terms -= integers
            terms *= 2.0**BIN_BITS
            b -= 1

    @property
    def numbers(self) -> Array:
        """The bins as float64, each of 26 bits but the last: those of the first sum stand in the first column."""
        return numbers_of(self._bins)


def numbers_of(bins: Array) -> Array:
    """Bins of 64-bit integers as float64, each of 26 bits but the last; their memory is lost."""
    own = bins[:-OTHER_BINS]
    for b in range(len(own) - 1):
        carried = (own[b] + (1 << BIN_BITS - 1)) >> BIN_BITS
        own[b] -= carried << BIN_BITS
        own[b + 1] += carried
    return bins.astype(np.float64)


def _halves(exponent: int) -> tuple[int, ...]:
    """Exponents of factors that are normal numbers, whose product is 2^exponent."""
    return (exponent,) if abs(exponent) < 1000 else (exponent // 2, exponent - exponent // 2)


def value(kind: str, itemsize: int, numbers: Array) -> float:
    """The sum that a column of added `Bins.numbers` is, rounded once; of squares, the root of that.

    >>> bins = Bins("sum", 8, 1)
    >>> bins.add(np.array([[1e300, 1.0, -1e300, 2.0**-1074]]), None, slice(None))
    >>> value("sum", 8, bins.numbers[:, 0])
    1.0
    """
    infinities, negative, nans = numbers[-OTHER_BINS:]
    if nans or (infinities and negative):
        return math.nan
    if infinities or negative:
        return math.inf if infinities else -math.inf
    first, _ = BIN_RANGES[max(itemsize, 4), is_squared(kind)]
    own = numbers[:-OTHER_BINS]
    places = np.flatnonzero(own)
    if not places.size:
        return 0.0
    total, lowest = 0, int(places[0])
    for number in own[places[-1] : lowest - 1 if lowest else None : -1].tolist():
        total = (total << BIN_BITS) + int(number)
    exponent, bits = BIN_BITS * (first + lowest), abs(total).bit_length()
    half = (bits + exponent) // 2
    try:
        if kind == "squares":
            return math.ldexp(math.sqrt(_rounded(total, exponent - 2 * half)), half)
        return _rounded(total, exponent)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _rounded(total: int, exponent: int) -> float:
    """Total 2^exponent, rounded once."""
    bits = abs(total).bit_length()
    if bits <= _MOST_BITS and bits + exponent > _LEAST_EXPONENT:
        return math.ldexp(float(total), exponent)  # a normal number, or too large
    return float(Fraction(total) * Fraction(2) ** exponent)


def binned(
    kind: Kind, x: Array, axis: Literal[0, 1] | None, other: Array | None = None, *, conj: bool = False
) -> Array:
    """The numbers of this rank's sums, one sum after the other in columns; complex sums have those of both parts.

    Args:
        kind: sums of x, of abs(x), of abs(x)^2, or of products of elements of x and `other`.
        x: two-dimensional, of any dtype; it is not empty.
        axis: 0 adds down the columns, 1 along the rows; None adds all.
        other: like x; for "dot".
        conj: multiply with conjugates of x.
    """
    if x.strides[0] < x.strides[1]:
        x, axis = x.T, None if axis is None else 1 - axis  # type: ignore[assignment]  # 0 or 1
        other = None if other is None else other.T
    (m, n), itemsize = x.shape, x.dtype.itemsize // (1 + (x.dtype.kind == "c"))
    count = 1 if axis is None else (n, m)[axis]
    parts = [Bins(kind, itemsize, count) for _ in range(parts_of(kind, x.dtype))]
    width = min(n, _CHUNK)
    for j in range(0, n, width):
        columns = slice(j, min(j + width, n))
        for i in range(0, m, step := max(1, _CHUNK // width)):
            rows = slice(i, min(i + step, m))
            place = slice(None) if axis is None else (columns, rows)[axis]
            block = x[rows, columns]
            for part, terms, shift in _terms(kind, block, None if other is None else other[rows, columns], conj=conj):
                parts[part].add(terms, axis, place, shift)
    return np.concatenate([bins.numbers for bins in parts])


def parts_of(kind: str, dtype: Dtype) -> int:
    """How many real sums a sum is: two if it is complex."""
    return 1 + (dtype.kind == "c" and kind not in ("abs_sum", "squares"))


def _terms(kind: Kind, x: Array, y: Array | None, *, conj: bool) -> Iterator[tuple[int, Array, int]]:
    """Real terms in float64, each with the part that it belongs to and a power of 2^26 by which it is multiplied."""
    parts = _parts(x)
    if kind == "abs_sum":
        if len(parts) == 1:
            yield 0, abs(parts[0]), 0
        else:  # in float64, where hypot rounds alike at all places
            with np.errstate(over="ignore", under="ignore"):
                yield 0, np.hypot(*parts).astype(x.real.dtype).astype(np.float64), 0
    elif kind == "squares":
        for z in parts:
            yield from _squares(z)
    elif y is None:
        for part, z in enumerate(parts):
            yield part, z, 0
    else:
        others = _parts(y)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            yield 0, parts[0] * others[0], 0
            if len(parts) > 1:
                im = -parts[1] if conj else parts[1]
                yield 0, -im * others[1], 0
                yield 1, parts[0] * others[1], 0
                yield 1, im * others[0], 0


def _squares(x: Array) -> Iterator[tuple[int, Array, int]]:
    """Squares, of huge and of tiny elements too."""
    size = abs(x)
    is_big, is_small = size > _BIG, size < _SMALL
    for chosen, exponent in ((~is_big & ~is_small, 0), (is_big, _SCALE), (is_small & (x != 0), -_SCALE)):
        if chosen.any():
            yield 0, np.square(np.where(chosen, x, 0) * 2.0**-exponent), 2 * exponent // BIN_BITS


def _parts(x: Array) -> list[Array]:
    """Copies of the real and the imaginary part in float64, or of X if it is real."""
    return [z.astype(np.float64) for z in ((x.real, x.imag) if x.dtype.kind == "c" else (x,))]
