"""Products of a vector with a part of a matrix on a GPU, and updates of the part, by kernels on the current stream.

cuBLAS knows triangles of whole matrices; a rank's part of a distributed triangle is a staircase.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from pblas.backends.cuda import reductions, transfer
from pblas.backends.cuda.pointwise import functions, type_name
from pblas.backends.cuda.programs import Program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.backends.device import Staircase
    from pblas.backends.dtypes import Array, Dtype, GpuArray

_THREADS = 256
_WIDTH, _HEIGHT = 64, 8192  # columns or rows whose products one thread or one CTA adds
_BOTH_WIDTH, _BOTH_HEIGHT = 128, 1024  # columns and rows of a CTA that multiplies with both vectors
_MOST_CTAS = 65535  # of the second dimension of a grid
_MODES = {"": 0, "conj": 1, "abs": 2, "abs1": 3}


def multiply(x: GpuArray, part: Staircase, v: GpuArray, dtype: Dtype, mode: str, *, transposed: bool) -> Any:
    """op(X) v, or op(X)^T v, with the elements of a part."""
    rows, columns = x.shape
    if not x.size:
        return cupy.zeros(columns if transposed else rows, dtype)
    name, results, added, width = "multiply_rows", rows, columns, _WIDTH
    if transposed:
        name, results, added, width = "multiply_columns", columns, rows, _HEIGHT
    width = max(width, -(-added // _MOST_CTAS))
    sums = cupy.empty((-(-added // width), results), dtype)
    ctas = columns if transposed else -(-rows // _THREADS)
    _launch(name, (ctas, len(sums)), x, part, dtype, v, sums, width, _MODES[mode])
    return sums[0] if len(sums) == 1 else reductions.reduce("sum", sums, 0, dtype)


def multiply_both(
    x: GpuArray, parts: Sequence[Staircase], v: GpuArray, w: GpuArray, dtype: Dtype, modes: Sequence[str]
) -> tuple[Any, Any]:
    """op(X) v with the elements of one part, and op(X)^T w with those of another."""
    (rows, columns), (part, other) = x.shape, parts
    if not x.size or columns > _BOTH_WIDTH * _MOST_CTAS:
        of_rows = multiply(x, part, v, dtype, modes[0], transposed=False)
        return of_rows, multiply(x, other, w, dtype, modes[1], transposed=True)
    row_sums, column_sums = (
        cupy.empty((-(-added // width), results), dtype)
        for added, width, results in ((columns, _BOTH_WIDTH, rows), (rows, _BOTH_HEIGHT, columns))
    )
    ctas = len(column_sums), len(row_sums)
    numbers = (_MODES[mode] for mode in modes)
    _launch("multiply_both", ctas, x, part, dtype, *_on_gpu(other)[:2], v, w, row_sums, column_sums, *numbers)
    return reductions.reduce("sum", row_sums, 0, dtype), reductions.reduce("sum", column_sums, 0, dtype)


def update(z: GpuArray, part: Staircase, x: Array, y: Array) -> None:
    """Z += X Y in a part; X and Y are in host memory, and the diagonal of a part becomes real if it has one."""
    if not z.size:
        return
    left, right = (transfer.on_gpu(w.astype(z.dtype, copy=False)) for w in (x.T, y))
    ctas = -(-len(z) // _THREADS), min(z.shape[1], _MOST_CTAS)
    _launch("update_part", ctas, z, part, z.dtype, left, right, x.shape[1])


def _launch(name: str, ctas: tuple[int, int], x: GpuArray, part: Staircase, dtype: Dtype, *arguments: Any) -> None:
    shape = x.strides[1] // x.itemsize, *x.shape
    words = (np.int64(z) if isinstance(z, int) else z for z in (x.data.ptr, *shape, *_on_gpu(part), *arguments))
    _kernel(name, x.dtype, dtype)(ctas, (_THREADS,), tuple(words))


def _on_gpu(part: Staircase) -> Any:
    """The bounds of a part, which stay on the GPU for later calls."""
    if part.on_device is None:
        part.on_device = transfer.on_gpu(np.stack([part.first, part.stop, part.diagonal]).astype(np.int64))
    return part.on_device


@cache
def _kernel(name: str, element: Dtype, result: Dtype) -> Any:
    return Program(source(element, result)).get_function(name)


def source(element: Dtype, result: Dtype) -> str:
    """CUDA C++ of the kernels for elements and results of these dtypes."""
    types = f"typedef {type_name(element)} E;\ntypedef {type_name(result)} A;\n"
    return functions(result) + types + (Path(__file__).parent / "level2.cu").read_text(encoding="utf-8")
