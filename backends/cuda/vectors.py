"""Level 2 of whole matrices by cuBLAS: products of a matrix with a vector, and updates of a matrix by vectors.

A matrix in C-order is the transpose of one in Fortran order: that flips trans flags and triangles. Of a complex one
cuBLAS lacks conjugates without a transposition, so those operations do not come here.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from nvmath.bindings import cublas

if TYPE_CHECKING:
    from pblas.backends.device import Uplo
    from pblas.backends.dtypes import Array, GpuArray

_LETTERS = {"f": "s", "d": "d", "F": "c", "D": "z"}
_FLAGS = {"N": cublas.Operation.N, "T": cublas.Operation.T, "C": cublas.Operation.C}
_REAL_NAMES = {"hemv": "symv", "geru": "ger", "gerc": "ger", "her": "syr", "her2": "syr2"}


def multiply(
    handle: int,
    kind: str,
    alpha: complex,
    a: Array,
    x: Array,
    beta: complex,
    y: Array,
    *,
    uplo: Uplo,
    trans: str,
    unit: bool,
) -> None:
    """Y := alpha op(A) x + beta y for columns x and y; for kind "trmv" in place, y := op(A) y."""
    (matrix, lda), is_turned = _stored(a), not _by_columns(a)
    side = _fill(uplo, is_turned)
    if is_turned:
        trans = "T" if trans == "N" else "N"
    if kind == "trmv":
        diagonal = cublas.DiagType.UNIT if unit else cublas.DiagType.NON_UNIT
        _routine(kind, a.dtype.char)(handle, side, _FLAGS[trans], diagonal, len(a), matrix, lda, *_vector(y))
        return
    scalars = np.array([alpha, beta], a.dtype)
    first = scalars.ctypes.data
    leading: tuple[int, ...] = side, len(a)
    if kind == "gemv":
        leading = _FLAGS[trans], *(a.shape[::-1] if is_turned else a.shape)
    _routine(kind, a.dtype.char)(handle, *leading, first, matrix, lda, *_vector(x), first + a.itemsize, *_vector(y))


def update(handle: int, name: str, alpha: complex, x: Array, y: Array, a: Array, *, uplo: Uplo) -> None:
    """A := alpha x y^T + A, or another update by columns x and y, in place."""
    (matrix, lda), is_turned = _stored(a), not _by_columns(a)
    factor = np.array([alpha], a.dtype).real if name == "her" else np.array([alpha], a.dtype)
    vectors = [*_vector(x)] if name in ("syr", "her") else [*_vector(x), *_vector(y)]
    leading: tuple[int, ...] = _fill(uplo, is_turned), len(a)
    if name.startswith("ge"):
        leading = a.shape[::-1] if is_turned else a.shape
        if is_turned:  # A^T += alpha y x^T
            vectors = [*_vector(y), *_vector(x)]
    _routine(name, a.dtype.char)(handle, *leading, factor.ctypes.data, *vectors, matrix, lda)


@cache
def _routine(name: str, letter: str) -> Any:
    """The routine for a dtype, by NumPy's letter."""
    return getattr(cublas, f"{_LETTERS[letter]}{name if letter in 'FD' else _REAL_NAMES.get(name, name)}_64")


def _by_columns(a: GpuArray) -> bool:
    """Whether cuBLAS reads A without a transposition."""
    return len(a) <= 1 or a.strides[0] == a.itemsize


def _stored(a: GpuArray) -> tuple[int, int]:
    """Address and leading dimension of A, or of A^T."""
    m, n = a.shape if _by_columns(a) else a.shape[::-1]
    pitch = a.strides[1] if _by_columns(a) else a.strides[0]
    return int(a.data.ptr), max(pitch // a.itemsize if n > 1 else m, 1)


def _fill(uplo: Uplo, is_turned: bool) -> int:
    return int(cublas.FillMode.UPPER if (uplo == "U") != is_turned else cublas.FillMode.LOWER)


def _vector(x: GpuArray) -> tuple[int, int]:
    """Address and distance of the elements of a column."""
    return int(x.data.ptr), x.strides[0] // x.itemsize if len(x) > 1 else 1
