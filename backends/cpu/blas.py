"""Local products, rank-k updates and triangular solves on NumPy arrays of any storage order, in place, GIL released.

The BLAS is the one that SciPy ships: `scipy.linalg.cython_blas` exports plain function pointers, and a call through
ctypes takes any leading dimension and releases the GIL. (`scipy.linalg.blas` copies arrays that are not tight and holds
the GIL.)

Only this module handles storage orders: a Z in C-order is computed as Z^T = Y^T X^T, and an operand of the other order
flips its trans flag. BLAS has no flag for a conjugated operand that is not transposed: such an operand is conjugated
into a copy.

Rank-k and rank-2k updates: a Z in C-order is updated as Z^T, which flips its triangle and conjugates a Hermitian one.
Solves: a Z in C-order is solved as Z^T := Z^T T^-T, and a T in C-order flips its triangle and its trans flag. A
triangle is halved until it is small, and the square between two halves multiplied: OpenBLAS solves at a third to a half
of the rate of its products (Intel Xeon with AVX-512, 64 to 192 rows, float64).
"""

from __future__ import annotations

import ctypes
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import cython_blas

from pblas.backends.dtypes import FLOAT32, Array, accumulator_dtype, address_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.device import Uplo

_LETTERS = {FLOAT32: "s", np.dtype(np.float64): "d", np.dtype(np.complex64): "c", np.dtype(np.complex128): "z"}
# 16-bit operands are widened this many rows of K at a time, so that the widened panels stay in cache beside the result.
_WIDEN_K = 512


def gemm(
    alpha: complex, x: Array, y: Array, beta: complex, z: Array, *, conj: tuple[bool, bool] = (False, False)
) -> None:
    """Z := alpha X Y + beta Z, in place; X and Y may be marked as conjugated.

    >>> z = np.zeros((2, 2)); gemm(2.0, np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]]), 0.0, z); z.tolist()
    [[2.0, 4.0], [6.0, 8.0]]
    """
    if not z.size:
        return
    if not x.shape[1] or alpha == 0:
        scale(beta, z)
    elif x.dtype in _LETTERS:
        _blas_gemm(alpha, x, y, beta, z, conj)
    else:
        for k in range(0, x.shape[1], _WIDEN_K):
            x32, y32 = (
                x[:, k : k + _WIDEN_K].astype(np.float32, order="K"),
                y[k : k + _WIDEN_K].astype(np.float32, order="K"),
            )
            _blas_gemm(alpha, x32, y32, beta if k == 0 else 1.0, z, (False, False))


def scale(beta: complex, z: Array) -> None:
    """Z := beta Z, multiplied in 32 bits at least; with beta = 0 Z is not read."""
    if beta == 0:
        z[...] = 0
    elif beta != 1:
        np.multiply(z, _factor(beta, z), out=z, casting="unsafe")


def add_scaled(alpha: complex, x: Array, beta: complex, z: Array) -> None:
    """Z := alpha X + beta Z elementwise; X is not read when alpha is 0, Z not when beta is 0.

    Multiplied in 32 bits at least, added in Z's precision.
    """
    if alpha == 0:
        scale(beta, z)
    elif beta == 0:
        np.multiply(x, _factor(alpha, z), out=z, casting="unsafe") if alpha != 1 else np.copyto(z, x, casting="unsafe")
    else:
        scale(beta, z)
        np.add(z, x if alpha == 1 else x.astype(z.dtype) * _factor(alpha, z), out=z, casting="unsafe")


def _factor(scalar: complex, z: Array) -> Any:
    """A scalar in the accumulator dtype of Z: many scalars are no 16-bit numbers."""
    return accumulator_dtype(z.dtype).type(scalar)


def _pointer(name: str, module: object = cython_blas) -> int:
    """Address of a routine in the library that SciPy loaded."""
    capsule = vars(module)["__pyx_capi__"][name]
    get_name, get_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get_pointer(capsule, get_name(capsule)))


_GEMM_PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 13)
_GEMM = {dtype: _GEMM_PROTOTYPE(_pointer(f"{letter}gemm")) for dtype, letter in _LETTERS.items()}
_FLAGS = ctypes.create_string_buffer(b"NTC")
_N, _T, _C = (ctypes.addressof(_FLAGS) + i for i in range(3))
_INTS = lru_cache(1024)(ctypes.c_int * 6)  # BLAS only reads them
_LARGEST = 2**31 - 1
_SCALARS = ctypes.c_double * 4
_SCALARS_SINGLE = ctypes.c_float * 4
_SINGLE = (np.dtype(np.float32), np.dtype(np.complex64))


def _blas_gemm(alpha: complex, x: Array, y: Array, beta: complex, z: Array, conj: tuple[bool, bool]) -> None:
    operands = x, y, z, conj
    if not _by_columns(z):  # Z^T = Y^T X^T
        x, y, z, conj = y.T, x.T, z.T, conj[::-1]
    x, ldx, flag_x = _operand(x, conj[0])
    y, ldy, flag_y = _operand(y, conj[1])
    (m, n), k, ldz = z.shape, x.shape[1], _leading_dimension(z)
    if max(m, n, k, ldx, ldy, ldz) > _LARGEST:
        _gemm_by_halves(alpha, beta, *operands)
        return
    ints = _INTS(m, n, k, ldx, ldy, ldz)
    alpha, beta = complex(alpha), complex(beta)
    scalars = (_SCALARS_SINGLE if z.dtype in _SINGLE else _SCALARS)(alpha.real, alpha.imag, beta.real, beta.imag)
    i, s = ctypes.addressof(ints), ctypes.addressof(scalars)
    _GEMM[z.dtype](
        *(flag_x, flag_y, i, i + 4, i + 8, s, address_of(x), i + 12, address_of(y), i + 16),
        *(s + ctypes.sizeof(scalars) // 2, address_of(z), i + 20),
    )


_GEMV_PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 11)
_GEMV = {dtype: _GEMV_PROTOTYPE(_pointer(f"{letter}gemv")) for dtype, letter in _LETTERS.items()}


def prepared_gemv(x: Array, v: Array, y: Array, *, adjoint: bool = False) -> Callable[[], None]:
    """A function that does Y := X V + Y, or X^H V + Y, with the vectors' elements of that moment.

    X is in Fortran order, the vectors are tight. The caller keeps the arrays alive. A call takes a microsecond, a third
    of the time that the conversion of its arguments takes.

    >>> v, y = np.array([1.0, 2.0]), np.zeros(2); multiply = prepared_gemv(np.asfortranarray(np.eye(2)), v, y)
    >>> v[0] = 5; multiply(); multiply(); y.tolist()
    [10.0, 4.0]
    """
    (m, n), one = x.shape, (ctypes.c_float if x.dtype in _SINGLE else ctypes.c_double) * 2
    lda = x.strides[1] // x.itemsize if n > 1 else max(m, 1)
    ints, alpha = (ctypes.c_int * 4)(m, n, lda, 1), one(1, 0)
    m_, n_, lda_, inc = (ctypes.byref(ints, 4 * i) for i in range(4))
    addresses = address_of(x), lda_, address_of(v), inc, ctypes.byref(alpha), address_of(y), inc
    return partial(_GEMV[x.dtype], _C if adjoint else _N, m_, n_, ctypes.byref(alpha), *addresses)


def _gemm_by_halves(alpha: complex, beta: complex, x: Array, y: Array, z: Array, conj: tuple[bool, bool]) -> None:
    """The product in halves, for sizes or leading dimensions that exceed the integers of BLAS."""

    def is_long(a: Array, axis: int) -> bool:
        return a.shape[axis] > 1 and max(a.shape[axis], a.strides[axis] // a.itemsize) > _LARGEST

    (m, n), k = z.shape, x.shape[1]
    if is_long(z, 0) or is_long(x, 0):
        for rows in (slice(m // 2), slice(m // 2, m)):
            _blas_gemm(alpha, x[rows], y, beta, z[rows], conj)
    elif is_long(z, 1) or is_long(y, 1):
        for columns in (slice(n // 2), slice(n // 2, n)):
            _blas_gemm(alpha, x, y[:, columns], beta, z[:, columns], conj)
    else:
        for inner, factor in ((slice(k // 2), beta), (slice(k // 2, k), 1.0)):
            _blas_gemm(alpha, x[:, inner], y[inner], factor, z, conj)


def _by_columns(x: Array) -> bool:
    """Whether Fortran reads X without a transposition.

    The answer for a single row or column depends on its shape only. Both readings fit any stride, and a flag that
    depended on the stride would give a piece in a buffer other bits than the same piece inside a matrix.
    """
    m, n = x.shape
    return m <= 1 or (n > 1 and x.strides[0] == x.itemsize)


def _leading_dimension(x: Array) -> int:
    """Distance in elements between the columns of an X that is stored by columns."""
    m, n = x.shape
    return x.strides[1] // x.itemsize if n > 1 else max(m, 1)


def _operand(x: Array, conj: bool) -> tuple[Array, int, int]:
    """(array, leading dimension, address of the trans flag) with which a Fortran BLAS reads X."""
    if not _by_columns(x):
        return x, _leading_dimension(x.T), _C if conj else _T
    if conj and x.dtype.kind == "c":  # BLAS has no flag for conj(X) without a transposition: copy
        return _operand(np.conj(x), False)
    return x, _leading_dimension(x), _N


_SYRK_PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 10)
_SYRK = {dtype: _SYRK_PROTOTYPE(_pointer(f"{letter}syrk")) for dtype, letter in _LETTERS.items()}
_HERK = {dtype: _SYRK_PROTOTYPE(_pointer(f"{letter}herk")) for dtype, letter in _LETTERS.items() if letter in "cz"}
_SYR2K_PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 12)
_SYR2K = {dtype: _SYR2K_PROTOTYPE(_pointer(f"{letter}syr2k")) for dtype, letter in _LETTERS.items()}
_HER2K = {dtype: _SYR2K_PROTOTYPE(_pointer(f"{letter}her2k")) for dtype, letter in _LETTERS.items() if letter in "cz"}
_LETTER = ctypes.create_string_buffer(b"LRUN")
_LEFT, _RIGHT, _UPPER, _NOT_UNIT = (ctypes.addressof(_LETTER) + i for i in range(4))
_LOWER, _UNIT = _LEFT, _UPPER  # the same letters


def syrk(
    alpha: complex, x: Array, beta: complex, z: Array, *, uplo: Uplo, conj: bool = False, hermitian: bool = False
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
        _syrk_by_halves(alpha, x, beta, z, uplo=uplo, conj=hermitian and not by_columns, hermitian=hermitian)
        return
    ints, (a, b) = _INTS(m, k, lda, ldz, 0, 0), (complex(alpha), complex(beta))
    values = (a.real, b.real, 0.0, 0.0) if hermitian else (a.real, a.imag, b.real, b.imag)
    scalars = (_SCALARS_SINGLE if z.dtype in _SINGLE else _SCALARS)(*values)
    i, s, size = ctypes.addressof(ints), ctypes.addressof(scalars), ctypes.sizeof(scalars) // 4
    (_HERK if hermitian else _SYRK)[z.dtype](
        *(_UPPER if uplo == "U" else _LOWER, flag, i, i + 4, s, address_of(matrix), i + 8),
        *(s + (size if hermitian else 2 * size), address_of(z), i + 12),
    )


def _syrk_by_halves(
    alpha: complex, x: Array, beta: complex, z: Array, *, uplo: Uplo, conj: bool, hermitian: bool
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
    uplo: Uplo,
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
        _syr2k_by_halves(alpha, x, y, beta, z, uplo=uplo, conj=conj, hermitian=hermitian)
        return
    ints, (a, b) = _INTS(m, k, *sizes, 0), (complex(alpha), complex(beta))
    values = (a.real, a.imag, b.real, b.imag) if z.dtype.kind == "c" else (a.real, 0.0, b.real, 0.0)
    scalars = (_SCALARS_SINGLE if z.dtype in _SINGLE else _SCALARS)(*values)
    i, s, size = ctypes.addressof(ints), ctypes.addressof(scalars), ctypes.sizeof(scalars) // 4
    (_HER2K if hermitian else _SYR2K)[z.dtype](
        *(_UPPER if uplo == "U" else _LOWER, flag, i, i + 4, s, address_of(left), i + 8),
        *(address_of(right), i + 12, s + 2 * size, address_of(z), i + 16),
    )


def _syr2k_by_halves(
    alpha: complex, x: Array, y: Array, beta: complex, z: Array, *, uplo: Uplo, conj: tuple[bool, bool], hermitian: bool
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


_TRSM_PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 11)
_TRSM = {dtype: _TRSM_PROTOTYPE(_pointer(f"{letter}trsm")) for dtype, letter in _LETTERS.items()}
_COLUMNS = 4096  # columns solved at a time if Z exceeds the integers of BLAS
_WHOLE, _FEW = 64, 32
"""Rows of a triangle that BLAS solves as a whole, and columns of Z for which it solves any triangle as a whole."""


def trsm(t: Array, z: Array, *, uplo: Uplo, unit: bool = False, conj: bool = False) -> None:
    """Z := T^-1 Z, in place; T may be marked as conjugated.

    >>> z = np.array([[2.0], [5.0]]); trsm(np.array([[2.0, np.nan], [1.0, 4.0]]), z, uplo="L"); z.tolist()
    [[1.0], [1.0]]
    """
    if not z.size:
        return
    (m, n), by_columns = z.shape, _by_columns(z)
    if m > _WHOLE and n > _FEW:
        _trsm_by_halves(t, z, uplo=uplo, unit=unit, conj=conj)
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


def _trsm_by_halves(t: Array, z: Array, *, uplo: Uplo, unit: bool, conj: bool) -> None:
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
