"""Local rank-k and rank-2k updates of one triangle, as Z := alpha X X^T + beta Z, on NumPy arrays, GIL released.

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
    _by_columns,
    _leading_dimension,
    _pointer,
    gemm,
)
from pblas.backends.dtypes import address_of

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array

_PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 10)
_SYRK = {dtype: _PROTOTYPE(_pointer(f"{letter}syrk")) for dtype, letter in _LETTERS.items()}
_HERK = {dtype: _PROTOTYPE(_pointer(f"{letter}herk")) for dtype, letter in _LETTERS.items() if letter in "cz"}
_PROTOTYPE_2K = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 12)
_SYR2K = {dtype: _PROTOTYPE_2K(_pointer(f"{letter}syr2k")) for dtype, letter in _LETTERS.items()}
_HER2K = {dtype: _PROTOTYPE_2K(_pointer(f"{letter}her2k")) for dtype, letter in _LETTERS.items() if letter in "cz"}
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
        *(_UPPER if uplo == "U" else _LOWER, flag, i, i + 4, s, address_of(matrix), i + 8),
        *(s + (size if hermitian else 2 * size), address_of(z), i + 12),
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


def syr2k(
    alpha: complex,
    x: Array,
    y: Array,
    beta: complex,
    z: Array,
    *,
    uplo: Literal["L", "U"],
    conj: tuple[bool, bool] = (False, False),
    hermitian: bool = False,
) -> None:
    """One triangle of Z := alpha X Y^T + alpha Y X^T + beta Z, or alpha X Y^H + conj(alpha) Y X^H + beta Z, in place.

    >>> z, x, y = np.full((2, 2), np.nan), np.array([[1.0], [3.0]]), np.array([[2.0], [1.0]])
    >>> syr2k(1.0, x, y, 0.0, z, uplo="L"); z.tolist()
    [[4.0, nan], [7.0, 6.0]]
    """
    if not z.size:
        return
    hermitian = hermitian and z.dtype.kind == "c"
    if not _by_columns(z):  # the transposed update of a Hermitian Z is its conjugate
        z, uplo, alpha = z.T, "U" if uplo == "L" else "L", complex(alpha).conjugate() if hermitian else alpha
        conj = conj[0] != hermitian, conj[1] != hermitian
    by_columns = _by_columns(x)
    flips = hermitian and not by_columns  # BLAS reads X and Y, or in C-order X^T and Y^T
    x, y = (np.conj(v) if c != flips and z.dtype.kind == "c" else v for v, c in zip((x, y), conj, strict=True))
    if _by_columns(y) != by_columns:
        y = y.copy(order="F" if by_columns else "C")
    (left, right), flag = ((x, y), _N) if by_columns else ((x.T, y.T), _C if hermitian else _T)
    (m, k), sizes = x.shape, [_leading_dimension(v) for v in (left, right, z)]
    if max(m, k, *sizes) > _LARGEST:
        conj = (flips, flips)
        _by_halves_2k(alpha, x, y, beta, z, uplo=uplo, conj=conj, hermitian=hermitian)
        return
    ints, (a, b) = _INTS(m, k, *sizes, 0), (complex(alpha), complex(beta))
    values = (a.real, a.imag, b.real, b.imag) if z.dtype.kind == "c" else (a.real, 0.0, b.real, 0.0)
    scalars = (_SCALARS_SINGLE if z.dtype in _SINGLE else _SCALARS)(*values)
    i, s, size = ctypes.addressof(ints), ctypes.addressof(scalars), ctypes.sizeof(scalars) // 4
    (_HER2K if hermitian else _SYR2K)[z.dtype](
        *(_UPPER if uplo == "U" else _LOWER, flag, i, i + 4, s, address_of(left), i + 8),
        *(address_of(right), i + 12, s + 2 * size, address_of(z), i + 16),
    )


def _by_halves_2k(
    alpha: complex,
    x: Array,
    y: Array,
    beta: complex,
    z: Array,
    *,
    uplo: Literal["L", "U"],
    conj: tuple[bool, bool],
    hermitian: bool,
) -> None:
    """The rank-2k update in halves, for sizes or leading dimensions that exceed the integers of BLAS."""
    m = len(x)
    half = m // 2
    rows, columns = (slice(half, m), slice(half)) if uplo == "L" else (slice(half), slice(half, m))
    if half:
        for part in (slice(half), slice(half, m)):
            syr2k(alpha, x[part], y[part], beta, z[part, part], uplo=uplo, conj=conj, hermitian=hermitian)
    else:  # one element, of long rows
        rows = columns = slice(m)
    (cx, cy), second = conj, complex(alpha).conjugate() if hermitian else alpha
    gemm(alpha, x[rows], y[columns].T, beta, z[rows, columns], conj=(cx, cy != hermitian))
    gemm(second, y[rows], x[columns].T, 1.0, z[rows, columns], conj=(cy, cx != hermitian))
