"""The local rank-k update Z := alpha X X^T + beta Z of one triangle on a GPU, by cuBLAS; see `pblas.backends.cpu.syrk`.

As there, a Z in C-order is updated as Z^T, which flips its triangle and conjugates a Hermitian one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import cupy
import numpy as np
from nvmath.bindings import cublas

from pblas.backends.cuda import streams
from pblas.backends.cuda.trsm import by_columns, leading_dimension

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array

_SYRK = {"f": cublas.ssyrk_64, "d": cublas.dsyrk_64, "F": cublas.csyrk_64, "D": cublas.zsyrk_64}
_HERK = {"F": cublas.cherk_64, "D": cublas.zherk_64}


def syrk(
    handle: int,
    stream: int,
    alpha: complex,
    x: Any,
    beta: complex,
    z: Any,
    *,
    uplo: Literal["L", "U"],
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
