"""The local rank-k update Z := alpha X X^T + beta Z of one triangle, on NumPy arrays, GIL released.

As in `pblas.backends.cpu.gemm`, whose BLAS it calls: only this module handles storage orders. A Z in C-order is updated
as Z^T, which flips its triangle and conjugates a Hermitian one.
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
    _address,
    _by_columns,
    _leading_dimension,
    _pointer,
    gemm,
)

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array

_PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 10)
_SYRK = {dtype: _PROTOTYPE(_pointer(f"{letter}syrk")) for dtype, letter in _LETTERS.items()}
_HERK = {dtype: _PROTOTYPE(_pointer(f"{letter}herk")) for dtype, letter in _LETTERS.items() if letter in "cz"}
_TRIANGLES = ctypes.create_string_buffer(b"LU")
_LOWER, _UPPER = (ctypes.addressof(_TRIANGLES) + i for i in range(2))


def syrk(
    alpha: complex,
    x: Array,
    beta: complex,
    z: Array,
    *,
    uplo: Literal["L", "U"],
    conj: bool = False,
    hermitian: bool = False,
) -> None:
    """One triangle of Z := alpha X X^T + beta Z, or alpha X X^H + beta Z, in place; X may be marked as conjugated.

    Args:
        alpha: scalar; real if `hermitian` (local).
        x: m x k, one of its two strides is one element, float32, float64, complex64 or complex128 (local).
        beta: scalar; real if `hermitian`. Z is not read when it is 0 (local).
        z: m x m, one of its two strides is one element, of X's dtype; its other triangle is not touched (local).
        uplo: the triangle of Z.
        conj: multiply with the conjugate of X.
        hermitian: X X^H; imaginary parts of the diagonal of Z become 0.

    Source: BLAS, xSYRK and xHERK.

    >>> z = np.full((2, 2), np.nan); syrk(2.0, np.array([[1.0], [3.0]]), 0.0, z, uplo="L"); z.tolist()
    [[2.0, nan], [6.0, 18.0]]
    """
    if not z.size:
        return
    hermitian = hermitian and z.dtype.kind == "c"
    if not _by_columns(z):
        z, uplo, conj = z.T, "U" if uplo == "L" else "L", conj != hermitian
    by_columns = _by_columns(x)
    if z.dtype.kind == "c" and conj != (hermitian and not by_columns):  # BLAS reads X, or in C-order X^T
        x = np.conj(x)
    matrix, flag = (x, _N) if by_columns else (x.T, _C if hermitian else _T)
    (m, k), lda, ldz = x.shape, _leading_dimension(matrix), _leading_dimension(z)
    if max(m, k, lda, ldz) > _LARGEST:
        _by_halves(alpha, x, beta, z, uplo=uplo, conj=hermitian and not by_columns, hermitian=hermitian)
        return
    ints, (a, b) = _INTS(m, k, lda, ldz, 0, 0), (complex(alpha), complex(beta))
    values = (a.real, b.real, 0.0, 0.0) if hermitian else (a.real, a.imag, b.real, b.imag)
    scalars = (_SCALARS_SINGLE if z.dtype in _SINGLE else _SCALARS)(*values)
    i, s, size = ctypes.addressof(ints), ctypes.addressof(scalars), ctypes.sizeof(scalars) // 4
    (_HERK if hermitian else _SYRK)[z.dtype](
        *(_UPPER if uplo == "U" else _LOWER, flag, i, i + 4, s, _address(matrix), i + 8),
        *(s + (size if hermitian else 2 * size), _address(z), i + 12),
    )


def _by_halves(
    alpha: complex, x: Array, beta: complex, z: Array, *, uplo: Literal["L", "U"], conj: bool, hermitian: bool
) -> None:
    """The update in halves, for sizes or leading dimensions that exceed the integers of BLAS."""
    m = len(x)
    half = m // 2
    if not half:  # one element, of a long row: the product of two vectors
        gemm(alpha, x, x.T, beta, z, conj=(conj, conj != hermitian))
        return
    for part in (slice(half), slice(half, m)):
        syrk(alpha, x[part], beta, z[part, part], uplo=uplo, conj=conj, hermitian=hermitian)
    rows, columns = (slice(half, m), slice(half)) if uplo == "L" else (slice(half), slice(half, m))
    gemm(alpha, x[rows], x[columns].T, beta, z[rows, columns], conj=(conj, conj != hermitian))
