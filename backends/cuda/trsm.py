"""The local solve Z := T^-1 Z with a triangle on a GPU, by cuBLAS; see `pblas.backends.cpu.trsm`.

As there, a Z in C-order is solved as Z^T := Z^T T^-T, and a T in C-order flips its triangle and its trans flag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import cupy
import numpy as np
from cupy.cuda import cublas, device

from pblas.backends.cuda import streams

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array

_ROUTINES = {"f": "strsm", "d": "dtrsm", "F": "ctrsm", "D": "ztrsm"}


def trsm(
    stream: int, t: Any, z: Any, *, uplo: Literal["L", "U"], unit: bool = False, conj: bool = False
) -> Array | None:
    """Z := T^-1 Z, in place, on a stream; T may be marked as conjugated.

    Args:
        stream: handle of the CUDA stream (local).
        t: m x m, one of its two strides is one element; its other triangle is not read (local).
        z: m x n, one of its two strides is one element, of T's dtype (local).
        uplo: the triangle of T.
        unit: take the diagonal of T as ones, and do not read it.
        conj: solve with the conjugate of T.

    Returns:
        Memory that the solve reads until it is done, if it needs any.
    """
    if not z.size:
        return None
    (m, n), by_columns = z.shape, _by_columns(z)
    # On the left T, on the right T^T, as cuBLAS reads it: as it is stored, or transposed with a flag.
    matrix, upper = (t, uplo == "U") if by_columns else (t.T, uplo == "L")
    conj = conj and t.dtype.kind == "c"
    flag, copy = cublas.CUBLAS_OP_N, None
    with cupy.cuda.Stream.from_external(streams.Handle(stream)):
        if not _by_columns(matrix):
            matrix, upper, flag = matrix.T, not upper, cublas.CUBLAS_OP_C if conj else cublas.CUBLAS_OP_T
        elif conj:  # cuBLAS has no flag for a conjugate that is not transposed
            matrix = copy = cupy.asfortranarray(matrix.conj())
        one = np.ones(1, t.dtype)
        getattr(cublas, _ROUTINES[t.dtype.char])(
            *(device.get_cublas_handle(), cublas.CUBLAS_SIDE_LEFT if by_columns else cublas.CUBLAS_SIDE_RIGHT),
            *(cublas.CUBLAS_FILL_MODE_UPPER if upper else cublas.CUBLAS_FILL_MODE_LOWER, flag),
            cublas.CUBLAS_DIAG_UNIT if unit else cublas.CUBLAS_DIAG_NON_UNIT,
            *((m, n) if by_columns else (n, m)),
            *(one.ctypes.data, matrix.data.ptr, _leading_dimension(matrix)),
            *(z.data.ptr, _leading_dimension(z if by_columns else z.T)),
        )
    return copy


def _by_columns(x: Any) -> bool:
    """Whether cuBLAS reads X without a transposition; for a single row or column by its shape, as on CPUs."""
    m, n = x.shape
    return m <= 1 or (n > 1 and x.strides[0] == x.itemsize)


def _leading_dimension(x: Any) -> int:
    """Distance in elements between the columns of an X that is stored by columns."""
    m, n = x.shape
    return int(x.strides[1]) // int(x.itemsize) if n > 1 else max(m, 1)
