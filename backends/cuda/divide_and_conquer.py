"""Eigenvalues and vectors of a real symmetric tridiagonal matrix on a GPU, by divide and conquer.

All merges of a level run at the same time. Their products do not use zeros of U, so that no size depends on what is
left out, and the host waits for nothing: 4/3 n^3 operations in all, three quarters of them in the last merge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from cupy.cuda import runtime

from pblas.backends.cuda.lapack import THREADS, DtypeKernels, place

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array, Dtype, GpuArray

_LEAF = 32  # rows of a leaf at most: `LEAF` of merge.cu
_WARPS = THREADS // 32


def levels_of(n: int) -> tuple[int, int]:
    """Number of levels of merges, and rows of a leaf, for n rows, or a few more.

    >>> levels_of(9), levels_of(100), levels_of(8192)
    ((0, 9), (2, 25), (8, 32))
    """
    levels = max(0, (-(-n // _LEAF) - 1).bit_length())
    return levels, -(-n // (1 << levels))


def rows_of(n: int) -> int:
    """Rows of S for n rows of T.

    >>> rows_of(9), rows_of(8193)
    (9, 8704)
    """
    levels, size = levels_of(n)
    return size << levels


class DivideAndConquer:
    """Divide and conquer on the current device.

    Args:
        array: a new array of a shape and dtype in Fortran order, until the lanes are idle.
        multiply: `multiply(x, y, z, count=, strides=)` computes Z = X Y for `count` matrices, which follow those at x,
            y and z at these distances in elements.
    """

    def __init__(self, array: Callable[[tuple[int, int], Dtype], Any], multiply: Callable[..., None]) -> None:
        self._array, self._multiply = array, multiply
        self.kernels = DtypeKernels("merge")

    def run(
        self, stream: int, d: GpuArray, e: GpuArray, s: Array, u: Array, spare: Array, wanted: tuple[int, int]
    ) -> tuple[Any, Array, Any]:
        """The eigenvalues of T, ascending, S with the wanted vectors (start, stop) in their columns, and INFO.

        S is one of the three arrays of `rows_of` rows and columns, all of which are lost. Values and rows from n on are
        of no interest.
        """
        n, letter, ld = len(d), d.dtype.char, place(s)[1]
        levels, size = levels_of(n)
        total = size << levels
        values, sorted_values, z, shifts, reals = (
            self._array((total, count), d.dtype)[:, 0] for count in (1, 1, 1, 1, 4)
        )
        order, origins, integers, info = (
            self._array((count, 1), np.dtype(np.int32))[:, 0] for count in (total, total, 5 * total, 1)
        )
        off, length, end = address(e), np.int32(n), np.int64(total)
        runtime.memsetAsync(int(address(info)), 0, info.nbytes, stream)
        leaves = (
            address(d),
            off,
            length,
            np.int32(size),
            np.int32(1 << levels),
            address(values),
            *place(s),
            address(info),
        )
        self._launch(stream, "solve_leaves", letter, -(-(1 << levels) // 4), leaves, 128)
        deflated = address(reals), address(integers), end
        for level in range(levels):
            half, count = np.int32(size << level), 1 << (levels - level - 1)
            roots = address(origins), address(shifts)
            halves = address(values), *place(s), off, length, half, end
            lists = address(sorted_values), address(z), address(order)
            self._launch(stream, "sort_halves", letter, -(-total // THREADS), (*halves, *lists))
            self._launch(stream, "deflate", letter, count, (*lists, off, length, half, *deflated))
            self._launch(stream, "find_roots", letter, -(-total // _WARPS), (*deflated, off, length, half, *roots))
            self._launch(stream, "correct", letter, -(-total // _WARPS), (*deflated, half, *roots, address(z)))
            vectors = *deflated, half, *roots, address(z), address(values), *place(u)
            self._launch(stream, "make_vectors", letter, total, vectors)
            self._launch(stream, "rotate", letter, -(-total // THREADS), (*deflated, half, *place(u)))
            # [S1 0; 0 S2] U
            m, distance = int(half), 2 * int(half) * (int(ld) + 1)
            columns = slice(*wanted) if count == 1 else slice(2 * m)
            for first in (0, m):
                part = slice(first, first + m)
                left, right, product = s[part, part], u[part, columns], spare[part, columns]
                self._multiply(left, right, product, count=count, strides=(distance,) * 3)
            s, spare = spare, s
        return values, s, info

    def _launch(
        self, stream: int, name: str, letter: str, ctas: int, arguments: tuple[object, ...], threads: int = THREADS
    ) -> None:
        self.kernels.launch(stream, name, letter, ctas, arguments, threads=threads)


def address(x: GpuArray) -> np.int64:
    """Address of an array, as kernels take it."""
    return np.int64(x.data.ptr)
