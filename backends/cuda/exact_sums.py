"""Exact sums on a GPU: `pblas.backends.cpu.exact_sums` with bins that threads fill."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cupy
import numpy as np

from pblas.backends.cpu.exact_sums import Kind, is_squared, numbers_of, parts_of
from pblas.backends.cuda import transfer
from pblas.backends.cuda.kernels import WordArguments
from pblas.backends.cuda.programs import Program
from pblas.backends.cuda.reductions import multiprocessors
from pblas.backends.engine_limits import BIN_RANGES, bins_of

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, GpuArray

_KINDS = "sum", "abs_sum", "squares", "dot"
_DTYPES = "float64", "float32", "float16", "bfloat16"
_RESULTS = {None: 0, "lines": 1, "columns": 2}
_MOST_THREADS, _SHARED_NBYTES = 256, 48 << 10  # of a CTA
_CTAS = 8  # of a multiprocessor
_MOST_LINES = 65535  # of a grid
_DEEP = 16  # elements of a thread at least
_WORDS = 10  # arguments of the kernel


def binned(
    kind: Kind, x: GpuArray, axis: Literal[0, 1] | None, other: GpuArray | None = None, *, conj: bool = False
) -> Array:
    """As `pblas.backends.cpu.exact_sums.binned`, of matrices on this thread's GPU."""
    if abs(x.strides[0]) < abs(x.strides[1]):
        x, axis = x.T, None if axis is None else 1 - axis  # type: ignore[assignment]  # 0 or 1
        other = None if other is None else other.T
    (lines, length), is_complex = x.shape, x.dtype.kind == "c"
    itemsize = x.dtype.itemsize // (1 + is_complex)
    count = 1 if axis is None else (length, lines)[axis]
    where = None if axis is None else ("columns", "lines")[axis]
    real = "float64" if itemsize == 8 else "float32" if itemsize == 4 else x.dtype.name
    bins, words = bins_of(itemsize, squares=is_squared(kind)), list[int]()
    threads = _threads(bins)
    for w in (x, x if other is None else other):
        words += [w.data.ptr, *(stride // itemsize for stride in reversed(w.strides))]
    ctas = _CTAS * multiprocessors()
    across = -(-length // threads) if where == "columns" else max(1, min(-(-length // (_DEEP * threads)), ctas))
    down = min(lines, _MOST_LINES if where == "lines" else max(1, -(-ctas // across)))
    parts, stream = [], cupy.cuda.get_current_stream()
    for part in range(parts_of(kind, x.dtype)):
        results = cupy.zeros((bins, count), np.int64)
        code = source(kind, itemsize, real, where, is_complex=is_complex, conj=conj, part=part)
        arguments = *words, length, lines, results.data.ptr, count
        _words().launch(_kernel(code).kernel.ptr, stream.ptr, (across, down), threads, arguments)
        parts.append(numbers_of(transfer.on_host(results)))
    return np.concatenate(parts)


@cache
def source(
    kind: str,
    itemsize: int,
    real: str,
    where: str | None,
    *,
    is_complex: bool = False,
    conj: bool = False,
    part: int = 0,
) -> str:
    """CUDA C++ of the kernel for sums of a kind, of elements whose parts have a dtype and a size in bytes."""
    squares = is_squared(kind)
    bins = bins_of(itemsize, squares=squares)
    values = {
        "BINS": bins - 3,
        "FIRST": BIN_RANGES[max(itemsize, 4), squares][0],
        "THREADS": _threads(bins),
        "KIND": _KINDS.index(kind),
        "PART": part,
        "OF": _DTYPES.index(real),
        "COMPLEX": int(is_complex),
        "CONJ": int(conj),
        "RESULTS": _RESULTS[where],
    }
    names = "".join(f"constexpr int {name} = {value};\n" for name, value in values.items())
    return names + (Path(__file__).parent / "exact_sums.cu").read_text(encoding="utf-8")


def _threads(bins: int) -> int:
    """Threads of a CTA, a power of two, whose bins fit in its shared memory."""
    return min(_MOST_THREADS, 1 << (_SHARED_NBYTES // (8 * bins)).bit_length() - 1)


@cache
def _kernel(code: str) -> Any:
    return Program(code).get_function("add_exactly")


@cache
def _words() -> WordArguments:
    return WordArguments(_WORDS)
