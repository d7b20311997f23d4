"""Products whose sums are exact: their bits are the same with any BLAS, on any processor, and on GPUs.

Each row of X and each column of Y is scaled by a power of two and rounded to integers of 61 bits (40 bits for float32),
which are cut into slices of 21 bits. All sums of products of slices are integers of at most 53 bits, so that a GEMM in
64 bits makes no rounding, whatever its order. Karatsuba's identities form the products of three slices by three with
six GEMMs, and those of two by two with three. The sum of all is rounded once, to the nearest element.

Rows and columns lose nothing to the integers if their elements are within a factor of 2^8 of each other (2^16 for
float32). Otherwise elements of a row are rounded to 2^-61 of the largest one (2^-40).

Source: Ozaki, Ogita, Oishi, Rump, Error-free transformations of matrix multiplication (2012); Karatsuba, Ofman (1962);
Boldo, Melquiond, Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd (2008).
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pblas.backends.cpu.blas import gemm
from pblas.backends.cpu.reproducible import Kernel, PieceGemm
from pblas.backends.engine_limits import SLICE_BITS, SLICE_DEPTH, SLICE_TILE, slices_of

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array

_BASE = 2.0**SLICE_BITS
_TOP = SLICE_BITS - 2  # integers of the first slice are at most 2^_TOP
_CHUNK = 1 << 15  # elements that are cut at a time, so that they stay in a cache


class Scaling(NamedTuple):
    """The scaling of the rows of a matrix."""

    exponents: Array  # of each row the least e with abs(x) < 2^e for its finite elements; 0 for a row of zeros
    is_finite: Array  # whether all elements of a row are finite

    @staticmethod
    def of(x: Array) -> Scaling:
        """The scaling of the rows of X.

        >>> Scaling.of(np.array([[0.75, -3.0], [0.0, 0.0], [np.inf, 4.0]]))
        Scaling(exponents=array([2, 0, 3], dtype=int32), is_finite=array([ True,  True, False]))
        """
        largest = np.maximum(x.max(axis=1, initial=0), -x.min(axis=1, initial=0))
        is_finite = np.isfinite(largest)
        if not is_finite.all():
            largest[~is_finite] = abs(np.where(np.isfinite(x), x, 0)).max(axis=1)[~is_finite]
        return Scaling(np.frexp(largest)[1], is_finite)


def cut(x: Array, scaling: Scaling, slices: Array) -> None:
    """Slices[s, i, k]: integers with x[i, k] = 2^(e[i] - 19) (slice 0 + slice 1 / 2^21 + slice 2 / 2^42), rounded.

    Elements that are not finite are read as zeros.
    """
    shift = _TOP - scaling.exponents.astype(np.int64)
    factors = np.ldexp(1.0, np.minimum(shift, 1000))[:, None], np.ldexp(1.0, np.maximum(shift - 1000, 0))[:, None]
    is_tiny, is_finite = bool((shift > 1000).any()), bool(scaling.is_finite.all())
    rows = max(1, _CHUNK // max(1, x.shape[1]))
    for start in range(0, len(x), rows):
        part = slice(start, start + rows)
        rest = np.multiply(x[part], factors[0][part], order="C")
        if is_tiny:
            rest *= factors[1][part]
        if not is_finite:
            rest[~np.isfinite(rest)] = 0
        for number, out in enumerate(slices[:, part], 1):
            np.rint(rest, out=out)
            if number < len(slices):
                rest -= out
                rest *= _BASE


def add_products(x: Array, y: Array, digits: Array, product: Array) -> None:
    """Digits[g] += the sum of X[s] Y[t]^T over s + t = g, exactly; x and y have one slice more, for sums of two slices.

    Karatsuba: X[s] Y[t] + X[t] Y[s] = (X[s] + X[t]) (Y[s] + Y[t]) - X[s] Y[s] - X[t] Y[t].
    """
    slices = range(len(x) - 1)
    for s in slices:
        gemm(1, x[s], y[s].T, 0, product)
        digits[2 * s] += product
        for t in slices:
            if t != s:
                digits[s + t] -= product
    for s, t in combinations(slices, 2):
        np.add(x[s], x[t], out=x[-1])
        np.add(y[s], y[t], out=y[-1])
        gemm(1, x[-1], y[-1].T, 0, product)
        digits[s + t] += product


def carry(digits: Array, high: Array) -> None:
    """Reduce all digits but the first to at most 2^20, in place; the first one has the rest."""
    for g in range(len(digits) - 1, 0, -1):
        # digit[g] = high 2^21 + the new digit[g]
        np.multiply(digits[g], 1 / _BASE, out=high)
        np.rint(high, out=high)
        digits[g - 1] += high
        high *= _BASE
        digits[g] -= high


def rounded(digits: Array) -> Array:
    """The sum of digits[g] 2^(-21 g): of five digits the nearest float64; of three, a float64 rounded to odd.

    The digits are those of `carry`. A number that was rounded to odd has the nearest float32 of the exact one.
    """
    # of 42 bits, and no two of them overlap
    first, middle = digits[0], digits[1] / _BASE + digits[2] / _BASE**2
    if len(digits) == 3:
        return odd_sum(first, middle)
    total, error = _two_sum(first, middle)
    return total + odd_sum(error, digits[3] / _BASE**3 + digits[4] / _BASE**4)


def odd_sum(x: Array, y: Array) -> Array:
    """X + Y, rounded to odd: of the two neighbours of a sum that is no float64, the one whose last bit is 1.

    >>> odd_sum(np.array([1.0, 1.0, -1.0]), np.array([2.0**-60, -(2.0**-60), 1.0])).tolist()
    [1.0000000000000002, 0.9999999999999999, 0.0]
    """
    total, error = _two_sum(x, y)
    bits = total.view(np.int64)
    inexact = (error != 0) & (bits & 1 == 0)
    bits += np.where(inexact, np.where((error > 0) == (total > 0), 1, -1), 0)
    return total


def _two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """The rounded sum and its error, exactly. Source: Knuth, The Art of Computer Programming 2 (1969), 4.2.2."""
    total = x + y
    back = total - x
    return total, (x - (total - back)) + (y - back)


class ExactGemm(PieceGemm):
    """Products whose K consists of pieces: the product of a piece is exact and rounded once, and added as there."""

    _given = Kernel(np.dtype(np.float64), 1, least=1, most=SLICE_TILE)

    def _operand_lengths(self, rows: int, columns: int, width: int) -> list[int]:
        slices, depth, size = slices_of(self._total.itemsize), min(width, SLICE_DEPTH), rows * columns
        return [(slices + 1) * depth * rows + 2 * slices * size, (slices + 1) * depth * columns]

    def _multiply(self, x: Array, y: Array, conj: tuple[bool, bool], out: Array) -> None:
        """Out := X Y, rounded once to the dtype of the sums."""
        (m, k), n, slices = x.shape, y.shape[1], slices_of(self._total.itemsize)
        depth, size = min(k, SLICE_DEPTH), 8 * m * n
        digits = np.ndarray((2 * slices - 1, n, m), np.float64, self._left.data).transpose(0, 2, 1)
        product = _block(self._left, digits.nbytes, (n, m)).T
        left = _block(self._left, digits.nbytes + size, (slices + 1, m, depth))
        right = _block(self._right, 0, (slices + 1, n, depth))
        rows, columns = Scaling.of(x), Scaling.of(y.T)
        digits[...] = 0
        for start in range(0, k, SLICE_DEPTH):
            inner = slice(start, min(start + SLICE_DEPTH, k))
            xs, ys = left[:, :, : inner.stop - start], right[:, :, : inner.stop - start]
            cut(x[:, inner], rows, xs[:-1])
            cut(y[inner].T, columns, ys[:-1])
            add_products(xs, ys, digits, product)
            carry(digits, product)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for j in range(0, n, step := max(1, _CHUNK // m)):
                part = slice(j, j + step)
                exponents = columns.exponents[part, None] + (rows.exponents - 2 * _TOP)
                out[:, part] = np.ldexp(rounded(digits[:, :, part]).T, exponents).astype(self._total, copy=False).T
            if not (rows.is_finite.all() and columns.is_finite.all()):
                gemm(1, _signs(x), _signs(y), 0, product)
                at = ~rows.is_finite[:, None] | ~columns.is_finite
                out[at] = product[at]


def _block(memory: Array, start: int, shape: tuple[int, ...]) -> Array:
    return np.ndarray(shape, np.float64, memory[start:].data)


def _signs(x: Array) -> Array:
    """X with the signs of its finite elements: products with elements that are not finite are as those of X."""
    is_finite = np.isfinite(x)
    return np.where(is_finite, np.sign(np.where(is_finite, x, 0)), x).astype(np.float64)
