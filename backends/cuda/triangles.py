"""Triangles on a GPU, by cuBLAS: the solve Z := T^-1 Z, the product T X, the update Z := alpha X X^T + beta Z.

See `pblas.backends.cpu.blas` and `pblas.backends.cpu.blas`. As there, a Z in C-order is solved as Z^T := Z^T T^-T, and
a T in C-order flips its triangle and its trans flag; a Z in C-order is updated as Z^T, which flips its triangle and
conjugates a Hermitian one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import cupy
import numpy as np
from nvmath.bindings import cublas

from pblas.backends.cuda import streams

if TYPE_CHECKING:
    from pblas.backends.device import Uplo
    from pblas.backends.dtypes import Array, GpuArray


_SOLVES = {"f": cublas.strsm_64, "d": cublas.dtrsm_64, "F": cublas.ctrsm_64, "D": cublas.ztrsm_64}
_VECTOR_SOLVES = {"f": cublas.strsv_64, "d": cublas.dtrsv_64, "F": cublas.ctrsv_64, "D": cublas.ztrsv_64}
_PRODUCTS = {"f": cublas.strmm_64, "d": cublas.dtrmm_64, "F": cublas.ctrmm_64, "D": cublas.ztrmm_64}
_GEMMS = {"f": cublas.sgemm_64, "d": cublas.dgemm_64, "F": cublas.cgemm_64, "D": cublas.zgemm_64}
_BATCHES = {
    "f": cublas.sgemm_strided_batched_64,
    "d": cublas.dgemm_strided_batched_64,
    "F": cublas.cgemm_strided_batched_64,
    "D": cublas.zgemm_strided_batched_64,
}


def gram_blocks(handle: int, x: GpuArray, rows: int, count: int, parts: GpuArray) -> None:
    """Parts[b] := X[b]^H X[b] for blocks of rows, one after the other."""
    n, scalars = x.shape[1], np.array([1, 0], x.dtype)
    one, zero = (scalars.ctypes.data + i * x.itemsize for i in (0, 1))
    ld = leading_dimension(x)
    _BATCHES[x.dtype.char](
        *(handle, cublas.Operation.C if x.dtype.kind == "c" else cublas.Operation.T, cublas.Operation.N, n, n, rows),
        *(one, x.data.ptr, ld, rows, x.data.ptr, ld, rows, zero, parts.data.ptr, n, n * n, count),
    )


def multiply(
    handle: int,
    alpha: float,
    x: GpuArray,
    y: GpuArray,
    beta: float,
    z: GpuArray,
    *,
    adjoint: tuple[bool, bool] = (False, False),
    count: int = 1,
    strides: tuple[int, int, int] = (0, 0, 0),
) -> None:
    """Z := alpha op(X) op(Y) + beta Z for op(X) = X or X^H, of `count` matrices by columns, `strides` elements apart.

    cuBLAS takes a few microseconds to choose how to multiply matrices of a new size, cuBLASLt a hundred.
    """
    scalars = np.array([alpha, beta], z.dtype)
    first, second = (scalars.ctypes.data + i * z.itemsize for i in (0, 1))
    sizes = *z.shape, x.shape[0 if adjoint[0] else 1]
    flip = cublas.Operation.C if z.dtype.kind == "c" else cublas.Operation.T
    flags = (flip if is_adjoint else cublas.Operation.N for is_adjoint in adjoint)
    places = [(w.data.ptr, leading_dimension(w)) for w in (x, y, z)]
    if count == 1:
        _GEMMS[z.dtype.char](handle, *flags, *sizes, first, *places[0], *places[1], second, *places[2])
        return
    left, right, result = ((*place, stride) for place, stride in zip(places, strides, strict=True))
    _BATCHES[z.dtype.char](handle, *flags, *sizes, first, *left, *right, second, *result, count)


def trsm(
    handle: int, stream: int, t: Array, z: Array, *, uplo: Uplo, unit: bool = False, conj: bool = False
) -> Array | None:
    """Z := T^-1 Z, in place, on a stream; T may be marked as conjugated."""
    if not z.size:
        return None
    is_vector = z.shape[1] == 1
    options, copy = _options(stream, t, z, uplo, unit=unit, conj=conj, straight=is_vector or by_columns(z))
    if is_vector:
        vector = _place(z)[0], z.strides[0] // z.itemsize
        _VECTOR_SOLVES[t.dtype.char](handle, *options.leading[1:-1], *options.triangle, *vector)
        return copy
    one = np.ones(1, t.dtype)
    _SOLVES[t.dtype.char](handle, *options.leading, one.ctypes.data, *options.triangle, *_place(z))
    return copy


def trmm(
    handle: int,
    stream: int,
    alpha: complex,
    t: Array,
    x: Array,
    z: Array,
    *,
    uplo: Uplo,
    unit: bool = False,
    conj: bool = False,
) -> Array | None:
    """Z := alpha T X, on a stream, for an X in the storage order of Z; otherwise as `trsm`."""
    if not z.size:
        return None
    options, copy = _options(stream, t, z, uplo, unit=unit, conj=conj, straight=by_columns(z))
    factor = np.array([alpha], t.dtype)
    places = *options.triangle, *_place(x, straight=by_columns(z)), *_place(z)
    _PRODUCTS[t.dtype.char](handle, *options.leading, factor.ctypes.data, *places)
    return copy


class _Options(NamedTuple):
    """Arguments of cuBLAS for a triangle and a matrix."""

    leading: tuple[int, ...]
    triangle: tuple[int, int]


def _options(
    stream: int, t: GpuArray, z: GpuArray, uplo: Uplo, *, unit: bool, conj: bool, straight: bool
) -> tuple[_Options, Array | None]:
    """The arguments for T and Z, read as they are or transposed, and a conjugate copy of T if there is one."""
    m, n = z.shape
    # On the left T, on the right T^T, as cuBLAS reads it: as it is stored, or transposed with a flag.
    matrix, upper = (t, uplo == "U") if straight else (t.T, uplo == "L")
    conj = conj and t.dtype.kind == "c"
    flag, copy = cublas.Operation.N, None
    if not by_columns(matrix):
        matrix, upper, flag = matrix.T, not upper, cublas.Operation.C if conj else cublas.Operation.T
    elif conj:  # cuBLAS has no flag for a conjugate that is not transposed
        with cupy.cuda.Stream.from_external(streams.Handle(stream)):
            matrix = copy = cupy.asfortranarray(matrix.conj())
    leading = (
        *(cublas.SideMode.LEFT if straight else cublas.SideMode.RIGHT,),
        *(cublas.FillMode.UPPER if upper else cublas.FillMode.LOWER, flag),
        cublas.DiagType.UNIT if unit else cublas.DiagType.NON_UNIT,
        *((m, n) if straight else (n, m)),
    )
    return _Options(leading, (int(matrix.data.ptr), leading_dimension(matrix))), copy


def _place(z: GpuArray, *, straight: bool | None = None) -> tuple[int, int]:
    """Address and leading dimension of a matrix, or of its transpose if it is stored by rows."""
    straight = by_columns(z) if straight is None else straight
    return int(z.data.ptr), leading_dimension(z if straight else z.T)


def by_columns(x: GpuArray) -> bool:
    """Whether cuBLAS reads X without a transposition; for a single row or column by its shape, as on CPUs."""
    m, n = x.shape
    return m <= 1 or (n > 1 and x.strides[0] == x.itemsize)


def leading_dimension(x: GpuArray) -> int:
    """Distance in elements between the columns of an X that is stored by columns."""
    m, n = x.shape
    return int(x.strides[1]) // int(x.itemsize) if n > 1 else max(m, 1)


_SYRK = {"f": cublas.ssyrk_64, "d": cublas.dsyrk_64, "F": cublas.csyrk_64, "D": cublas.zsyrk_64}
_HERK = {"F": cublas.cherk_64, "D": cublas.zherk_64}


def syrk(
    handle: int,
    stream: int,
    alpha: complex,
    x: GpuArray,
    beta: complex,
    z: GpuArray,
    *,
    uplo: Uplo,
    conj: bool = False,
    hermitian: bool = False,
) -> Array | None:
    """One triangle of Z := alpha X X^T + beta Z, or alpha X X^H + beta Z, in place; X may be marked as conjugated."""
    if not z.size:
        return None
    is_complex = z.dtype.kind == "c"
    hermitian = hermitian and is_complex
    if not by_columns(z):
        z, uplo, conj = z.T, "U" if uplo == "L" else "L", conj != hermitian
    straight, copy = by_columns(x), None
    if is_complex and conj != (hermitian and not straight):  # cuBLAS reads X, or in C-order X^T
        with cupy.cuda.Stream.from_external(streams.Handle(stream)):
            x = copy = (cupy.asfortranarray if straight else cupy.ascontiguousarray)(cupy.conj(x))
    flip = cublas.Operation.C if hermitian else cublas.Operation.T
    matrix, flag = (x, cublas.Operation.N) if straight else (x.T, flip)
    values = np.array([alpha, beta], z.dtype)
    scalars = values.real.copy() if hermitian else values
    first, second = (scalars.ctypes.data + i * scalars.itemsize for i in (0, 1))
    (_HERK if hermitian else _SYRK)[z.dtype.char](
        *(handle, cublas.FillMode.UPPER if uplo == "U" else cublas.FillMode.LOWER, flag, *x.shape),
        *(first, matrix.data.ptr, leading_dimension(matrix), second, z.data.ptr, leading_dimension(z)),
    )
    return copy
