"""Random numbers on a GPU, with the bits of `pblas.backends.cpu.random`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.backends.cpu import random
from pblas.backends.cuda import transfer
from pblas.backends.cuda.kernels import FOLDER, expanded
from pblas.backends.cuda.pointwise import type_name
from pblas.backends.cuda.programs import Program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.backends.dtypes import Array, Dtype

_THREADS = 256
_MOST_LINES = 65535  # CTAs of the second dimension of a grid


def fill(x: Any, rows: Array, columns: Array, seed: int, *, normal: bool) -> None:
    """X := the random numbers at global rows and columns, which are in host memory; on the current stream."""
    if not x.size:
        return
    by_columns = int(x.strides[0] == x.itemsize)
    along, across = (
        transfer.on_gpu(z.astype(np.int64, copy=False)) for z in ((rows, columns) if by_columns else (columns, rows))
    )
    ld = x.strides[by_columns] // x.itemsize
    real = np.empty(0, x.dtype).real.dtype if x.dtype.kind == "c" else x.dtype
    integers = x.data.ptr, ld, along.size, across.size, along.data.ptr, across.data.ptr, by_columns
    arguments = (*integers, np.uint64(random.start_of(seed)), int(normal), np.float64(random.largest_uniform(real)))
    grid = -(-along.size // _THREADS), min(across.size, _MOST_LINES)
    _kernel(x.dtype)(grid, (_THREADS,), tuple(np.int64(z) if isinstance(z, int) else z for z in arguments))


@cache
def _kernel(dtype: Dtype) -> Any:
    return Program(source(dtype)).get_function("fill_random")


def source(dtype: Dtype) -> str:
    """CUDA C++ of the kernel for elements of a dtype."""
    tables = {"CENTRE": random.CENTRE, "MIDDLE": random.MIDDLE, "FAR": random.FAR}
    text = [f"__device__ constexpr double {name}[2][8] = {{{', '.join(map(_row, t))}}};" for name, t in tables.items()]
    text += [f"__device__ constexpr double SERIES[{len(random.SERIES)}] = {_row(random.SERIES)};"]
    text += [f"constexpr double_word GOLDEN = {random.GOLDEN}ull;", f"typedef {type_name(dtype)} T;"]
    return "\n".join([expanded(FOLDER / "common.cuh"), *text, expanded(Path(__file__).parent / "random.cu")])


def _row(numbers: Sequence[float]) -> str:
    return "{" + ", ".join(x.hex() for x in numbers) + "}"
