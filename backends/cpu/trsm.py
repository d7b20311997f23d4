"""The local solve Z := T^-1 Z with a triangle, on NumPy arrays of any storage order, in place, GIL released.

As in `pblas.backends.cpu.gemm`, whose BLAS it calls: only this module handles storage orders. A Z in C-order is solved
as Z^T := Z^T T^-T, and a T in C-order flips its triangle and its trans flag.

A triangle is halved until it is small, and the square between two halves multiplied: OpenBLAS solves at a third to a
half of the rate of its products (Intel Xeon with AVX-512, 64 to 192 rows, float64).
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Literal

import numpy as np

from pblas.backends.cpu.gemm import (
    _C,
    _INTS,
    _LARGEST,
    _LETTERS,
    _N,
    _SCALARS,
    _SCALARS_SINGLE,
    _SINGLE,
    _T,
    _by_columns,
    _leading_dimension,
    _pointer,
    gemm,
)
from pblas.backends.dtypes import address_of

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array

_PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 11)
_TRSM = {dtype: _PROTOTYPE(_pointer(f"{letter}trsm")) for dtype, letter in _LETTERS.items()}
_LETTER = ctypes.create_string_buffer(b"LRUN")
_LEFT, _RIGHT, _UPPER, _NOT_UNIT = (ctypes.addressof(_LETTER) + i for i in range(4))
_LOWER, _UNIT = _LEFT, _UPPER  # the same letters
_COLUMNS = 4096
"""Columns solved at a time if Z exceeds the integers of BLAS."""
_WHOLE, _FEW = 64, 32
"""Rows of a triangle that BLAS solves as a whole, and columns of Z for which it solves any triangle as a whole."""


def trsm(t: Array, z: Array, *, uplo: Literal["L", "U"], unit: bool = False, conj: bool = False) -> None:
    """Z := T^-1 Z, in place; T may be marked as conjugated.

    >>> z = np.array([[2.0], [5.0]]); trsm(np.array([[2.0, np.nan], [1.0, 4.0]]), z, uplo="L"); z.tolist()
    [[1.0], [1.0]]
    """
    if not z.size:
        return
    (m, n), by_columns = z.shape, _by_columns(z)
    if m > _WHOLE and n > _FEW:
        _by_halves(t, z, uplo=uplo, unit=unit, conj=conj)
        return
    ldz = _leading_dimension(z if by_columns else z.T)
    if max(n, ldz, *(abs(stride) // t.itemsize for stride in t.strides)) > _LARGEST:
        block = t.copy(order="F")
        for j in range(0, n, _COLUMNS):
            piece = z[:, j : j + _COLUMNS].copy(order="F")
            trsm(block, piece, uplo=uplo, unit=unit, conj=conj)
            z[:, j : j + _COLUMNS] = piece
        return
    # On the left T, on the right T^T, as Fortran reads it: as it is stored, or transposed with a flag.
    matrix, upper = (t, uplo == "U") if by_columns else (t.T, uplo == "L")
    flag = _N
    if not _by_columns(matrix):
        matrix, upper, flag = matrix.T, not upper, _C if conj else _T
    elif conj:  # BLAS has no flag for a conjugate that is not transposed
        matrix = np.conj(matrix)
    ints = _INTS(*((m, n) if by_columns else (n, m)), _leading_dimension(matrix), ldz, 0, 0)
    scalars = (_SCALARS_SINGLE if z.dtype in _SINGLE else _SCALARS)(1.0, 0.0, 0.0, 0.0)
    i = ctypes.addressof(ints)
    _TRSM[z.dtype](
        *(_LEFT if by_columns else _RIGHT, _UPPER if upper else _LOWER, flag, _UNIT if unit else _NOT_UNIT),
        *(i, i + 4, ctypes.addressof(scalars), address_of(matrix), i + 8, address_of(z), i + 12),
    )


def _by_halves(t: Array, z: Array, *, uplo: Literal["L", "U"], unit: bool, conj: bool) -> None:
    """Z := T^-1 Z: one half of the rows, the other ones less their product with it, the other half.

    Source: Elmroth, Gustavson, Jonsson, Kagstrom, Recursive blocked algorithms and hybrid data structures for dense
        matrix library software, 2004.
    """
    middle = -(-len(t) // _WHOLE) * (_WHOLE // 2)
    first, then = slice(0, middle), slice(middle, None)
    if uplo == "U":
        first, then = then, first
    trsm(t[first, first], z[first], uplo=uplo, unit=unit, conj=conj)
    gemm(-1, t[then, first], z[first], 1, z[then], conj=(conj, False))
    trsm(t[then, then], z[then], uplo=uplo, unit=unit, conj=conj)
