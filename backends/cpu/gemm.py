"""The local product Z := alpha X Y + beta Z on NumPy arrays of any storage order, in place, GIL released.

The BLAS is the one that SciPy ships: `scipy.linalg.cython_blas` exports plain function pointers, and a call through
ctypes takes any leading dimension and releases the GIL. (`scipy.linalg.blas` copies arrays that are not tight and holds
the GIL.)

Only this module handles storage orders: a Z in C-order is computed as Z^T = Y^T X^T, and an operand of the other order
flips its trans flag. BLAS has no flag for a conjugated operand that is not transposed: such an operand is conjugated
into a copy.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import cython_blas

from pblas.backends.dtypes import FLOAT32, accumulator_dtype, address_of

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array

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


def _pointer(name: str, module: Any = cython_blas) -> int:
    """Address of a routine in the library that SciPy loaded."""
    capsule = vars(module)["__pyx_capi__"][name]
    get_name, get_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get_pointer(capsule, get_name(capsule)))


_PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 13)
_GEMM = {dtype: _PROTOTYPE(_pointer(f"{letter}gemm")) for dtype, letter in _LETTERS.items()}
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
        _by_halves(alpha, beta, *operands)
        return
    ints = _INTS(m, n, k, ldx, ldy, ldz)
    alpha, beta = complex(alpha), complex(beta)
    scalars = (_SCALARS_SINGLE if z.dtype in _SINGLE else _SCALARS)(alpha.real, alpha.imag, beta.real, beta.imag)
    i, s = ctypes.addressof(ints), ctypes.addressof(scalars)
    _GEMM[z.dtype](
        *(flag_x, flag_y, i, i + 4, i + 8, s, address_of(x), i + 12, address_of(y), i + 16),
        *(s + ctypes.sizeof(scalars) // 2, address_of(z), i + 20),
    )


def _by_halves(alpha: complex, beta: complex, x: Array, y: Array, z: Array, conj: tuple[bool, bool]) -> None:
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
