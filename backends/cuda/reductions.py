"""Reductions of matrices in any memory layout, the place of an extreme, and copies by lists of rows and columns.

Each reads the elements once, in the order of memory, by enough CTAs to fill the GPU.
"""

from __future__ import annotations

import struct
from functools import cache, lru_cache
from itertools import cycle, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import cupy
import numpy as np

from pblas.backends.cuda import streams, transfer
from pblas.backends.cuda.kernels import WordArguments
from pblas.backends.cuda.pointwise import functions, type_name
from pblas.backends.cuda.programs import Program
from pblas.backends.dtypes import Array, Dtype, GpuArray, accumulator_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pblas.backends.cuda.strided_copy import StridedRegion
    from pblas.backends.device import Axis

KINDS = ("sum", "abs_sum", "squares", "max", "min", "abs_max")
_COMBINING = {"sum": "sum", "abs_sum": "sum", "squares": "sum", "max": "max", "min": "min", "abs_max": "max"}
"""How the results of parts are combined."""
_THREADS, _WARP, _LINE_THREADS, _MOST_THREADS = 256, 32, 512, 2048
_PACK_NBYTES = 16
_CTAS_PER_SM = 8  # as many as fit at once
_EXTREME_CTAS = 6  # of find_extreme on a multiprocessor: its registers suffice for so many
_LEAST_HEIGHT = 32  # lines that a thread adds at least, and packs of a line that a lane adds at most if a warp takes it
_PARTIAL_PACKS = 8  # packs of a part of a line that a thread adds at least
_MOST_PARTS = 65535  # of the second dimension of a grid
_LOADS = 4  # packs that a thread compares at a time
_MOST_WORDS = 13  # arguments of a kernel
_WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}  # by their sizes
_LINES = 8  # elements that a thread copies at a time
_SPARSE = 8  # a line is read whole if at least one of so many of its elements is copied
_BITS = struct.Struct("=2q")  # of an element
_COUNTERS = 256
_MOST_KNOWN = 1024  # launches that are kept


def reduce(kind: str, x: GpuArray, axis: Axis, dtype: Dtype, scale: object = None, *, to_host: bool = False) -> Any:
    """The reduction of X on the current stream; see `Device.reduce`.

    The results stay on the device; if they go `to_host`, few may be written there: `transfer.on_host` awaits them.
    """
    dtype = result_dtype(kind, x.dtype, dtype)
    (m, n), (down, across) = x.shape, (stride // x.itemsize for stride in x.strides)
    fast = int(abs(across) < abs(down) if min(m, n) > 1 else n > 1)
    if axis == 1 - fast and x.shape[fast] > 1 and x.strides[fast] == x.itemsize and scale is None:
        return _across(kind, x, axis, dtype, to_host=to_host)
    along = fast if axis is None else axis
    length, lines, step, ld = x.shape[along], x.shape[1 - along], (down, across)[along], (down, across)[1 - along]
    if axis is None and ld == length * step:
        length, lines = length * lines, 1  # all lines are one
    is_last = to_host and (axis is not None or lines == 1)
    results = _along(kind, x, (length, step), (lines, ld if lines > 1 else 0), dtype, scale, to_host=is_last)
    if axis is None and lines > 1:
        return _along(_COMBINING[kind], results, (len(results), 1), (1, 0), dtype, to_host=to_host)
    if len(results) > lines:  # parts of lines
        return _across(_COMBINING[kind], results.reshape(-1, lines), 0, dtype, to_host=to_host)
    return results


def result_dtype(kind: str, element: Dtype, dtype: Dtype) -> Dtype:
    """The dtype of a reduction of elements in at least the precision of `dtype`.

    >>> result_dtype("sum", np.dtype("complex64"), np.dtype("float64"))
    dtype('complex128')
    """
    if kind == "sum" and element.kind == "c":
        return np.result_type(dtype, np.complex64)
    return dtype if kind == "sum" else np.empty(0, dtype).real.dtype


class _Along(NamedTuple):
    """The launch of a reduction along lines."""

    kernel: Any
    ctas: int  # that take lines
    parts: int  # of each line
    height: int  # elements of a part
    group: int  # threads that take a part


def _along(
    kind: str,
    x: GpuArray,
    elements: tuple[int, int],
    lines: tuple[int, int],
    dtype: Dtype,
    scale: object = None,
    *,
    to_host: bool = False,
) -> Any:
    """The reduction of each line; of several lines perhaps that of their parts, part by part.

    Args:
        kind: of the reduction.
        x: the elements.
        elements: of a line, and the distance from one to the next.
        lines: their number, and the distance from one to the next.
        dtype: of the results.
        scale: as in `Device.reduce`.
        to_host: as in `reduce`.
    """
    (length, step), (count, ld) = elements, lines
    kernel, ctas, parts, height, group = _along_launch(kind, x.dtype, dtype, length, step, count)
    ends = count == 1 < parts
    results, address = new_results(parts * count + ends, dtype, to_host=to_host and parts == 1)
    if not ends:
        total, place = results, 0
    elif to_host:
        total, place = new_results(1, dtype, to_host=True)
    else:
        total, place = results[parts:], address + parts * dtype.itemsize
    scales = None if scale is None else transfer.on_gpu(np.atleast_1d(np.asarray(scale, dtype)))
    scaled = (0, 0) if scales is None else (scales.data.ptr, int(scales.size > 1))
    places = address, place, _counter() if ends else 0
    _launch(kernel, (ctas, parts), x.data.ptr, length, step, count, ld, height, group, *scaled, *places)
    return total


@lru_cache(_MOST_KNOWN)
def _along_launch(kind: str, element: Dtype, dtype: Dtype, length: int, step: int, count: int) -> _Along:
    """The launch of a reduction along lines."""
    pack = max(1, _PACK_NBYTES // element.itemsize)
    pack = pack if step == 1 and not length % pack else 1  # not by the address: the order of additions depends on it
    group = _WARP if length <= _WARP * _LEAST_HEIGHT * pack else _THREADS
    ctas = -(-count * group // _THREADS)
    most = min(-(-_CTAS_PER_SM * multiprocessors() // ctas), _MOST_PARTS) if group == _THREADS else 1
    parts = max(1, min(-(-length // (group * _PARTIAL_PACKS * pack)), most))
    height = -(-length // (parts * pack)) * pack
    kernel = _kernel(f"reduce_along<{pack}>", "reductions.cu", element, dtype, _kind(kind))
    return _Along(kernel, ctas, -(-length // height), height, group)


def new_results(count: int, dtype: Dtype, *, to_host: bool) -> tuple[Any, int]:
    """Memory for results, and its address: in the host's memory if they go there and are few."""
    few = transfer.few_results(count, dtype) if to_host else None
    if few is not None:
        return few
    results = cupy.empty(count, dtype)
    return results, results.data.ptr


def _across(kind: str, x: GpuArray, axis: int, dtype: Dtype, *, to_host: bool = False) -> Any:
    """The reduction of X across its lines, of which elements are neighbours."""
    length, lines = x.shape[1 - axis], x.shape[axis]
    ld, pack = x.strides[axis] // x.itemsize, max(1, _PACK_NBYTES // x.itemsize)
    pack = pack if _is_whole(x, length, ld, pack) else 1
    wide = -(-length // (_THREADS * pack))
    parts = max(1, min(-(-lines // _LEAST_HEIGHT), -(-_CTAS_PER_SM * multiprocessors() // wide), _MOST_PARTS))
    height = -(-lines // parts)
    parts = -(-lines // height)
    results, address = new_results(parts * length, dtype, to_host=to_host and parts == 1)
    kernel = _kernel(f"reduce_across<{pack}>", "reductions.cu", x.dtype, dtype, _kind(kind))
    _launch(kernel, (wide, parts), x.data.ptr, length, lines, ld, height, address)
    if parts == 1:
        return results
    return _across(_COMBINING[kind], results.reshape(parts, length), 0, dtype, to_host=to_host)


def _kind(kind: str) -> str:
    return f"enum {{ KIND = {KINDS.index(kind)} }};\n"


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
    ctas = min(chunks, _EXTREME_CTAS * multiprocessors())
    dtype, candidates = accumulator_dtype(x.dtype), cupy.empty(2 * ctas, np.int64)
    result, address = new_results(2, candidates.dtype, to_host=True)
    kernel = _kernel("find_extreme", "extremes.cu", x.dtype, dtype, _extreme_kind(kind))
    places = candidates.data.ptr, address, _counter()
    _launch(kernel, (ctas, 1), x.data.ptr, length, lines, ld, slow, fast, whole, *places)
    result = transfer.on_host(result)
    return result[:1].view(dtype)[:1], np.array(divmod(int(result[1]), n))


def extremes(kind: Literal["max", "min"], x: GpuArray, axis: Literal[0, 1]) -> tuple[Array, Array]:
    """The extremes of a real X along an axis, in 32 bits at least, and their indices there, in host memory."""
    (length, step), (lines, ld) = ((x.shape[i], x.strides[i] // x.itemsize) for i in (axis, 1 - axis))
    dtype = accumulator_dtype(x.dtype)
    values, places = cupy.empty(lines, dtype), cupy.empty(lines, np.int64)
    kernel = _kernel("find_extremes", "extremes.cu", x.dtype, dtype, _extreme_kind(kind))
    ctas = -(-lines // (_WARP if ld == 1 else _THREADS // _WARP))
    _launch(kernel, (ctas, 1), x.data.ptr, length, step, lines, ld, values.data.ptr, places.data.ptr)
    return transfer.on_host(values), transfer.on_host(places)


def _extreme_kind(kind: str) -> str:
    return f"enum {{ IS_MAX = {int(kind == 'max')} }};\n"


def fill_places(stream: int, shape: tuple[int, ...], element: Array, z: StridedRegion) -> None:
    """Z := an element, which is in host memory, at places."""
    if 0 in shape:
        return
    places = [(z.down, z.across), (z.rows, z.columns), shape]
    if not z.by_columns:
        places = [pair[::-1] for pair in places]
    strides, lists, (fast, slow) = places
    ctas = -(-fast // _THREADS), min(-(-slow // _LINES), _MOST_PARTS)
    words = *_BITS.unpack(element.tobytes().ljust(_BITS.size, b"\0")), z.address, *strides, *lists, fast, slow
    kernel = _place_kernel("fill_places", element.dtype.itemsize, element.dtype.kind == "c")
    _words().launch(kernel.kernel.ptr, stream, ctas, _THREADS, words)


def copy_places(
    stream: int,
    shape: tuple[int, ...],
    x: StridedRegion,
    z: StridedRegion,
    dtype: Dtype,
    extents: tuple[int, ...] = (0, 0),
) -> None:
    """Z := X at their places, for matrices of one storage order; X has `extents` rows and columns if it has lists."""
    if 0 in shape:
        return
    places = [(x.down, x.across), (z.down, z.across), (x.rows, x.columns), (z.rows, z.columns), shape, extents]
    if not z.by_columns:
        places = [pair[::-1] for pair in places]
    strides_x, strides_z, lists_x, lists_z, (fast, slow), (extent, _) = places
    name, ctas, threads = "copy_places", (-(-fast // _THREADS), min(-(-slow // _LINES), _MOST_PARTS)), _THREADS
    line_nbytes = extent * dtype.itemsize
    if lists_x[0] and extent <= _SPARSE * fast and line_nbytes <= shared_nbytes() and slow > multiprocessors():
        most = min(shared_nbytes() // line_nbytes, _MOST_THREADS // _LINE_THREADS)
        name, ctas, threads = "copy_lines", (1, min(slow, most * multiprocessors())), _LINE_THREADS
    words = x.address, z.address, *strides_x, *strides_z, *lists_x, *lists_z, fast, slow, extent
    kernel = _place_kernel(name, dtype.itemsize, dtype.kind == "c")
    _words().launch(kernel.kernel.ptr, stream, ctas, threads, words, line_nbytes if threads == _LINE_THREADS else 0)


@cache
def _place_kernel(name: str, itemsize: int, is_complex: bool) -> Any:
    kernel = _place_kernels(itemsize, is_complex).get_function(name)
    if name == "copy_lines":
        kernel.max_dynamic_shared_size_bytes = shared_nbytes()
    return kernel


@cache
def _place_kernels(itemsize: int, is_complex: bool) -> Any:
    return Program(places_source(itemsize, is_complex=is_complex))


def places_source(itemsize: int, *, is_complex: bool) -> str:
    """CUDA C++ of the kernels for elements of a size; those of complex numbers are aligned to their parts."""
    words = f"struct W {{ {_WORDS[itemsize // 2]} re, im; }};" if is_complex else f"typedef {_WORDS[itemsize]} W;"
    return f"{words}\n" + (Path(__file__).parent / "places.cu").read_text(encoding="utf-8")


def _is_whole(x: GpuArray, length: int, ld: int, pack: int) -> bool:
    """Whether all packs of all lines are whole and aligned."""
    return not (length % pack or ld % pack or x.data.ptr % (pack * x.itemsize))


@cache
def multiprocessors() -> int:
    """Multiprocessors of the current GPU."""
    return int(cupy.cuda.Device().attributes["MultiProcessorCount"])


@cache
def shared_nbytes() -> int:
    """Most bytes of shared memory of a CTA of the current GPU."""
    return int(cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"])


def _counter() -> int:
    """The address of a counter of CTAs, which each kernel leaves at 0, and which no two kernels use at a time.

    Calls take counters in turn; a kernel in a graph, which may run beside any call, has one of its own.
    """
    shared, new = _counters()
    return next(new if streams.is_capturing(int(cupy.cuda.get_current_stream().ptr)) else shared)


@cache
def _counters() -> tuple[Iterator[int], Iterator[int]]:
    """Addresses of counters that calls take in turn, and those of counters that are new."""
    new = _new_counters()
    return cycle([next(new) for _ in range(_COUNTERS)]), new


def _new_counters() -> Iterator[int]:
    """Addresses of counters, which are 0 before any stream reads them, and which no capture of the caller's makes."""
    kept = list[Any]()
    while True:
        with streams.relaxed(), cupy.cuda.Stream(non_blocking=True) as stream:
            kept.append(cupy.zeros(_COUNTERS, np.uint32))
            stream.synchronize()
        yield from (int(kept[-1].data.ptr) + 4 * k for k in range(_COUNTERS))


def _launch(kernel: Any, ctas: tuple[int, int], *words: int) -> None:
    _words().launch(kernel.kernel.ptr, cupy.cuda.get_current_stream().ptr, ctas, _THREADS, words)


@cache
def _words() -> WordArguments:
    return WordArguments(_MOST_WORDS)


@cache
def _kernel(name: str, file: str, element: Dtype, result: Dtype, constants: str) -> Any:
    instances = (name,) if "<" in name else ()
    return Program(source(file, element, result, constants), instances).get_function(name)


def programs(element: Dtype) -> Iterator[Program]:
    """The programs for matrices of a dtype: reductions, the places of extremes, and copies by lists."""
    real, is_complex = np.empty(0, element).real.dtype, element.kind == "c"
    for kind in KINDS:
        if is_complex and kind in ("max", "min"):
            continue
        result = {"sum": element, "squares": np.dtype(np.float64)}.get(kind, real)
        for way, pack in product(("along", "across"), {_PACK_NBYTES // element.itemsize, 1}):
            yield Program(source("reductions.cu", element, result, _kind(kind)), (f"reduce_{way}<{pack}>",))
    yield Program(places_source(element.itemsize, is_complex=is_complex))
    if not is_complex:
        for kind in ("max", "min"):
            yield Program(source("extremes.cu", element, element, _extreme_kind(kind)))


def source(file: str, element: Dtype, result: Dtype, constants: str) -> str:
    """CUDA C++ of a kernel for elements and results of these dtypes."""
    types = f"typedef {type_name(element)} E;\ntypedef {type_name(result)} R;\n"
    return functions(result) + types + constants + (Path(__file__).parent / file).read_text(encoding="utf-8")
