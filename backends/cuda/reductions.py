"""Kernels that CuPy lacks: reductions across the columns of a matrix in Fortran order, the place of an extreme, lists.

Each reads the elements once, in the order of memory, by enough CTAs to fill the GPU.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import cupy
import numpy as np

from pblas.backends.cuda import transfer
from pblas.backends.cuda.kernels import WordArguments
from pblas.backends.cuda.pointwise import OPTIONS, functions, type_name

if TYPE_CHECKING:
    from pblas.backends.cuda.strided_copy import StridedRegion
    from pblas.backends.dtypes import Array, Dtype, GpuArray

KINDS = ("sum", "abs_sum", "squares", "max", "min", "abs_max")
_ADDING = {"sum": "sum", "abs_sum": "sum", "squares": "sum", "max": "max", "min": "min", "abs_max": "max"}
"""How the results of parts are combined."""
_THREADS = 256
_PACK_NBYTES = 16
_CTAS_PER_SM = 8  # as many as fit at once
_LEAST_HEIGHT = 32  # lines that a thread adds at least
_MOST_PARTS = 65535  # of the second dimension of a grid
_LOADS = 4  # packs that a thread compares at a time
_MOST_WORDS = 12  # arguments of a kernel
_WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}  # by their sizes
_LINES = 8  # elements that a thread copies at a time


def is_across(x: GpuArray, axis: int) -> bool:
    """Whether a reduction adds elements of different lines of X, which has lines of neighbours."""
    return 1 not in x.shape and x.strides[1 - axis] == x.itemsize <= x.strides[axis]


def across(kind: str, x: GpuArray, axis: int, dtype: Dtype) -> Array:
    """The reduction of X across its lines, in precision `dtype`, in host memory."""
    if x.dtype.kind == "c" and kind == "sum":
        dtype = np.result_type(dtype, np.complex64)
    return transfer.on_host(_across(kind, x, axis, dtype))


def _across(kind: str, x: GpuArray, axis: int, dtype: Dtype) -> Any:
    length, lines = x.shape[1 - axis], x.shape[axis]
    ld, pack = x.strides[axis] // x.itemsize, max(1, _PACK_NBYTES // x.itemsize)
    whole = _is_whole(x, length, ld, pack)
    wide = -(-length // (_THREADS * (pack if whole else 1)))
    parts = max(1, min(-(-lines // _LEAST_HEIGHT), -(-_CTAS_PER_SM * _multiprocessors() // wide), _MOST_PARTS))
    height = -(-lines // parts)
    parts = -(-lines // height)
    results = cupy.empty((parts, length), dtype)
    kernel = _kernel("reduce_across", "reductions.cu", x.dtype, dtype, f"enum {{ KIND = {KINDS.index(kind)} }};\n")
    _launch(kernel, (wide, parts), x.data.ptr, length, lines, ld, height, whole, results.data.ptr)
    return results[0] if parts == 1 else _across(_ADDING[kind], results, 0, dtype)


def extreme(kind: Literal["max", "min"], x: GpuArray) -> tuple[Array, Array]:
    """The extreme of the elements of a real X, in 32 bits at least, and its row and column, in host memory."""
    m, n = x.shape
    is_turned = abs(x.strides[0]) < abs(x.strides[1])  # lines are columns
    lines, length = (n, m) if is_turned else (m, n)
    ld = (x.strides[1] if is_turned else x.strides[0]) // x.itemsize if lines > 1 else length
    slow, fast = (1, n) if is_turned else (n, 1)
    pack = _PACK_NBYTES // x.itemsize
    whole = _is_whole(x, length, ld, pack)
    chunks = lines * -(-length // (_THREADS * _LOADS * (pack if whole else 1)))
    ctas = min(chunks, _CTAS_PER_SM * _multiprocessors())
    dtype = np.promote_types(x.dtype, np.float32) if x.dtype.kind == "f" else np.dtype(np.float32)
    candidates = cupy.empty(2 * (ctas + 1), np.int64)
    kernel = _kernel("find_extreme", "extremes.cu", x.dtype, dtype, f"enum {{ IS_MAX = {int(kind == 'max')} }};\n")
    places = candidates.data.ptr, _ended().data.ptr
    _launch(kernel, (ctas, 1), x.data.ptr, length, lines, ld, slow, fast, whole, *places)
    result = transfer.on_host(candidates[2 * ctas :])
    return result[:1].view(dtype)[:1], np.array(divmod(int(result[1]), n))


def copy_places(stream: int, shape: tuple[int, ...], x: StridedRegion, z: StridedRegion, dtype: Dtype) -> None:
    """Z := X at their places, for matrices of one storage order."""
    if 0 in shape:
        return
    places = [(x.down, x.across), (z.down, z.across), (x.rows, x.columns), (z.rows, z.columns), shape]
    if not z.by_columns:
        places = [pair[::-1] for pair in places]
    strides_x, strides_z, lists_x, lists_z, (fast, slow) = places
    ctas = -(-fast // _THREADS), min(-(-slow // _LINES), _MOST_PARTS)
    words = x.address, z.address, *strides_x, *strides_z, *lists_x, *lists_z, fast, slow
    _words().launch(_copy(dtype.itemsize, dtype.kind == "c").kernel.ptr, stream, ctas, _THREADS, words)


@cache
def _copy(itemsize: int, is_complex: bool) -> Any:
    return cupy.RawModule(code=copy_source(itemsize, is_complex=is_complex), options=OPTIONS).get_function(
        "copy_places"
    )


def copy_source(itemsize: int, *, is_complex: bool) -> str:
    """CUDA C++ of the kernel that copies elements of a size; those of complex numbers are aligned to their parts."""
    words = f"struct W {{ {_WORDS[itemsize // 2]} re, im; }};" if is_complex else f"typedef {_WORDS[itemsize]} W;"
    return f"{words}\n" + (Path(__file__).parent / "places.cu").read_text(encoding="utf-8")


def _is_whole(x: GpuArray, length: int, ld: int, pack: int) -> bool:
    """Whether all packs of all lines are whole and aligned."""
    return not (length % pack or ld % pack or x.data.ptr % (pack * x.itemsize))


@cache
def _multiprocessors() -> int:
    return int(cupy.cuda.Device().attributes["MultiProcessorCount"])


@cache
def _ended() -> Any:
    """A counter of CTAs, which each kernel leaves at 0."""
    return cupy.zeros(1, np.uint32)


def _launch(kernel: Any, ctas: tuple[int, int], *words: int) -> None:
    _words().launch(kernel.kernel.ptr, cupy.cuda.get_current_stream().ptr, ctas, _THREADS, words)


@cache
def _words() -> WordArguments:
    return WordArguments(_MOST_WORDS)


@cache
def _kernel(name: str, file: str, element: Dtype, result: Dtype, constants: str) -> Any:
    return cupy.RawModule(code=source(file, element, result, constants), options=OPTIONS).get_function(name)


def source(file: str, element: Dtype, result: Dtype, constants: str) -> str:
    """CUDA C++ of a kernel for elements and results of these dtypes."""
    types = f"typedef {type_name(element)} E;\ntypedef {type_name(result)} R;\n"
    return functions(result) + types + constants + (Path(__file__).parent / file).read_text(encoding="utf-8")
