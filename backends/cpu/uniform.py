"""BLAS and LAPACK of a context with `reproducible`: an element has the same bits whatever other elements a rank has.

Products have the kernel of `pblas.backends.cpu.reproducible`, which forms all elements alike. K is cut at multiples of
`_DEPTH`, triangles at multiples of `_ORDER`. So the bits of a solve depend on the triangle and on one right-hand side.
Small triangles are solved, and blocks factored, by calls of one shape.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext
from functools import lru_cache
from zlib import crc32

import numpy as np

from pblas.backends.cpu import blas, lapack
from pblas.backends.cpu.arrays import HostArrays
from pblas.backends.cpu.reproducible import PieceGemm, fingerprint, finish, kernel
from pblas.backends.cpu.threads import BlasThreads
from pblas.backends.device import Uplo
from pblas.backends.dtypes import Array, Dtype, accumulator_dtype
from pblas.backends.pieces import PieceSizes

_DEPTH = 256  # elements of K that are added at a time
_UNIT = 64  # multiples of K: few depths, so that few kernels are tested
_ORDER, _COLUMNS = 64, 64  # of the triangles that are solved by one call, and its right-hand sides


class UniformArrays(HostArrays):
    """NumPy arrays; products, triangular solves and factorizations of blocks form all elements alike."""

    def __init__(self, threads: int) -> None:
        """`threads`: BLAS threads of this rank (local)."""
        self._limits_threads = threads > 1
        self._memory = np.empty(0, np.uint8)  # of products, kept (local)

    def tested(self) -> str:
        """A checksum of the bits of products, and of the kernels that all dtypes take: equal on ranks that agree.

        Raises:
            BackendError: this BLAS forms elements otherwise at some places.
        """
        dtypes = [np.dtype(letter) for letter in "fdFD"]
        kernels = [kernel(dtype, depth) for dtype in dtypes for depth in range(_UNIT, _DEPTH + 1, _UNIT)]
        found = kernels, [(fingerprint(dtype), _together(dtype)) for dtype in dtypes]
        return f"{crc32(repr(found).encode()):08x}"

    def scale(self, beta: complex, z: Array) -> None:
        if beta != 1:
            self.add_scaled(beta, z, 0, z)

    def add_scaled(self, alpha: complex, x: Array, beta: complex, z: Array) -> None:
        if alpha == 0:
            blas.scale(0, z) if beta == 0 else finish(beta, z, 0, z)
        else:
            finish(alpha, x, beta, z)

    def gemm(
        self, alpha: complex, x: Array, y: Array, beta: complex, z: Array, *, conj: tuple[bool, bool] = (False, False)
    ) -> None:
        total, k = accumulator_dtype(z.dtype), x.shape[1]
        if not z.size:
            return
        if not k or alpha == 0:
            self.scale(beta, z)
            return
        sums = z if total == z.dtype else np.empty_like(z, total)  # rounded once
        by_rows = abs(z.strides[1]) < abs(z.strides[0])
        for start in range(0, k, _DEPTH):
            left, right = _padded(x[:, start : start + _DEPTH]), _padded(y[start : start + _DEPTH].T).T
            depth = left.shape[1]
            products = PieceGemm(PieceSizes(depth, z.shape, 1, total, by_rows), (depth,), self._allocate)
            # Z[m, n] = alpha X[m, k] Y[k, n] + beta Z[m, n], then += with the other k
            products.gemm(alpha, left, right, 1 if start else beta if sums is z else 0, sums, conj=conj)
        if sums is not z:
            finish(1, sums, beta, z)

    def subtract_square(self, x: Array, z: Array) -> None:
        self.gemm(-1, x, x[: z.shape[1]].T, 1, z, conj=(False, True))

    def trsm(
        self, t: Array, z: Array, *, uplo: Uplo, unit: bool = False, conj: bool = False, inverts: bool = True
    ) -> None:
        n = len(t)
        if n <= _ORDER:
            _solve_block(t, z, uplo=uplo, unit=unit, conj=conj)
            return
        middle = _half(n)
        first, last = slice(middle), slice(middle, n)
        if uplo == "U":
            first, last = last, first
        # X[k] = T[k, k]^-1 X[k], then X[i] -= T[i, k] X[k] for the other half
        self.trsm(t[first, first], z[first], uplo=uplo, unit=unit, conj=conj)
        self.gemm(-1, t[last, first], z[first], 1, z[last], conj=(conj, False))
        self.trsm(t[last, last], z[last], uplo=uplo, unit=unit, conj=conj)

    def solve_factored(self, t: Array, z: Array, *, unit: bool = False, conj: bool = False) -> None:
        self.trsm(t, z, uplo="L", unit=unit, conj=conj)

    def cholesky(self, x: Array, info: Array) -> None:
        n = len(x)
        if n <= _ORDER:
            with self._one_thread():
                info[0] = lapack.potrf(x)
            return
        middle = _half(n)
        self.cholesky(x[:middle, :middle], info)
        if not info[0]:
            below, rest = x[middle:, :middle], x[middle:, middle:]
            # L[i, k] = X[i, k] L[k, k]^-H, then X[i, j] -= L[i, k] L[j, k]^H
            self.trsm(x[:middle, :middle], below.T, uplo="L", conj=True)
            self.subtract_square(below, rest)
            self.cholesky(rest, info)
            info[0] += middle if info[0] else 0

    def lu(self, x: Array, pivots: Array, info: Array) -> None:
        with self._one_thread():
            super().lu(x, pivots, info)

    def _one_thread(self) -> AbstractContextManager[object]:
        """A with block with one BLAS thread: more of them cut a panel elsewhere."""
        return closing(BlasThreads(1)) if self._limits_threads else nullcontext()

    def _allocate(self, nbytes: int) -> Array:
        if self._memory.nbytes < nbytes:
            self._memory = np.empty(nbytes, np.uint8)
        return self._memory[:nbytes]


def _half(n: int) -> int:
    """About half of n, a multiple of `_ORDER`.

    >>> _half(65), _half(128), _half(200)
    (64, 64, 128)
    """
    return -(-n // (2 * _ORDER)) * _ORDER


def _padded(x: Array) -> Array:
    """X with columns of zeros up to a multiple of `_UNIT`: X itself if it has as many."""
    m, k = x.shape
    if k % _UNIT == 0:
        return x
    padded = np.zeros((m, k + -k % _UNIT), x.dtype, "F" if x.strides[0] < x.strides[1] else "C")
    padded[:, :k] = x
    return padded


def _solve_block(t: Array, z: Array, *, uplo: Uplo, unit: bool, conj: bool) -> None:
    """Z := T^-1 Z for a small T, by calls of one shape."""
    block = np.array(t, order="F")
    if conj and block.dtype.kind == "c":
        np.conjugate(block, out=block)
    columns = _together(block.dtype)
    right = np.empty((len(t), columns), z.dtype, "F")
    for start in range(0, z.shape[1], columns):
        part = z[:, start : start + columns]
        count = part.shape[1]
        right[:, :count] = part
        right[:, count:] = 0
        blas.trsm(block, right, uplo=uplo, unit=unit)
        part[...] = right[:, :count]


@lru_cache(8)
def _together(dtype: Dtype) -> int:
    """Right-hand sides of a call: many, if this BLAS solves for all of them alike, else one."""
    generator = np.random.default_rng(1)
    elements = generator.standard_normal((2, _ORDER, _ORDER))
    t = (elements[0] + 1j * elements[1] if dtype.kind == "c" else elements[0]).astype(dtype) + _ORDER * np.eye(
        _ORDER, dtype=dtype
    )
    few = generator.standard_normal((_ORDER, 5)).astype(dtype)
    places = np.arange(_COLUMNS) % few.shape[1]
    for order in (_ORDER, _ORDER - 1, 17):
        for uplo in ("L", "U"):
            x = np.asfortranarray(few[:order, places])
            blas.trsm(np.asfortranarray(t[:order, :order]), x, uplo=uplo)
            if not (x == x[:, places]).all():
                return 1
    return _COLUMNS
