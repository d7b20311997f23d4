"""Random numbers on a GPU, with the bits of `pblas.backends.cpu.random`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.backends.cpu import random
from pblas.backends.cuda.kernels import FOLDER, WordArguments, expanded
from pblas.backends.cuda.pointwise import type_name
from pblas.backends.cuda.programs import Program

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.backends.dtypes import Dtype

_THREADS = 256
_MOST_LINES = 65535  # CTAs of the second dimension of a grid
_ARGUMENTS = 10
_SIGN = 1 << 63


def fill(stream: int, x: Any, rows: Any, columns: Any, seed: int, *, normal: bool) -> None:
    """X := the random numbers at global rows and columns, whose 64-bit integers are on the GPU."""
    by_columns = int(x.strides[0] == x.itemsize)
    (along, length), (across, lines) = ((rows, x.shape[0]), (columns, x.shape[1]))[:: 1 if by_columns else -1]
    ld = x.strides[by_columns] // x.itemsize
    places = x.data.ptr, ld, length, lines, along.data.ptr, across.data.ptr, by_columns
    kernel, arguments, largest = _kernel(x.dtype)
    start = (random.start_of(seed) ^ _SIGN) - _SIGN  # as a signed integer
    grid = -(-length // _THREADS), min(lines, _MOST_LINES)
    arguments.launch(kernel.kernel.ptr, stream, grid, _THREADS, (*places, start, int(normal), largest))


@cache
def _kernel(dtype: Dtype) -> tuple[Any, WordArguments, int]:
    """The kernel, memory of its arguments, and its last one: the bits of the largest uniform number."""
    real = np.empty(0, dtype).real.dtype if dtype.kind == "c" else dtype
    largest = np.float64(random.largest_uniform(real)).view(np.int64)
    return Program(source(dtype)).get_function("fill_random"), WordArguments(_ARGUMENTS), int(largest)


def source(dtype: Dtype) -> str:
    """CUDA C++ of the kernel for elements of a dtype."""
    tables = {"CENTRE": random.CENTRE, "MIDDLE": random.MIDDLE, "FAR": random.FAR}
    text = [f"__device__ constexpr double {name}[2][8] = {{{', '.join(map(_row, t))}}};" for name, t in tables.items()]
    text += [f"__device__ constexpr double SERIES[{len(random.SERIES)}] = {_row(random.SERIES)};"]
    text += [f"constexpr double_word GOLDEN = {random.GOLDEN}ull;", f"typedef {type_name(dtype)} T;"]
    return "\n".join([expanded(FOLDER / "common.cuh"), *text, expanded(Path(__file__).parent / "random.cu")])


def _row(numbers: Sequence[float]) -> str:
    return "{" + ", ".join(x.hex() for x in numbers) + "}"
