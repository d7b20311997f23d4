"""Copies of CuPy arrays to and from host memory, and views of arrays of other libraries.

Each copy waits for all earlier work of the GPU, on any stream, and returns when it is done: the hosts create and gather
matrices, and no stream orders their earlier work. A large matrix travels in pieces through page-locked buffers, by
several threads: a copy engine moves some pieces while other threads copy theirs between a buffer and the host array.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

import cupy
import numpy as np
from cupy.cuda import runtime

from pblas.backends.dtypes import BFLOAT16, FLOAT8, Array, Dtype, GpuArray, Order, Places, address_of, index_at
from pblas.backends.interop import check_tensor, is_tensor, tensor_dtype

_MOST_PITCH = (1 << 31) - 1  # of 2-D copies of CUDA
_CUDA_DEVICES = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged
_PIECE_NBYTES = 8 << 20  # of a page-locked buffer
_DIRECT_NBYTES = 1 << 18  # up to this size a matrix travels in one piece, without such a buffer
_RESULTS_NBYTES = 1 << 16  # of results that kernels write to the host's memory
_THREADS = min(16, len(os.sched_getaffinity(0)))
"""Threads that copy pieces, each with a buffer and a stream: the pages of a new host array take most of the time."""


def device_array(x: Any) -> Any:
    """A CuPy array on the memory of another library's array on a GPU; None for arrays in other memory (local)."""
    if is_tensor(x):
        if not x.is_cuda:
            return None
        check_tensor(x)
        dtype, (address, device) = tensor_dtype(x), (x.data_ptr(), x.device.index)
        strides = tuple(dtype.itemsize * step for step in x.stride())
        nbytes = _span(x.shape, strides, dtype.itemsize) if x.numel() else 0
        # Memory of a graph belongs to the graph: torch.compile's graphs allow no other owner of a tensor in it.
        owner = None if sys.modules["torch"].cuda.is_current_stream_capturing() else x
        memory = cupy.cuda.UnownedMemory(address, nbytes, owner, device)
        return new_array(tuple(x.shape), dtype, cupy.cuda.MemoryPointer(memory, 0), strides)
    if hasattr(x, "__cuda_array_interface__"):
        return cupy.asarray(x)
    on_gpu = hasattr(x, "__dlpack_device__") and x.__dlpack_device__()[0] in _CUDA_DEVICES
    return cupy.from_dlpack(x) if on_gpu else None


def download(x: GpuArray) -> Array:
    """The elements of a CuPy array in host memory, in its storage order (local)."""
    layout = runs_of(x)
    host: Array = np.empty(x.shape, x.dtype, order="C" if layout is None else layout[0])
    copy_to_host(x, host)
    return host


@contextmanager
def uploading(x: GpuArray) -> Iterator[Array]:
    """A with block that yields host memory of x's shape; unless it raises, its contents are copied to x (local)."""
    layout = runs_of(x)
    assert layout is not None, "a part of a matrix has strided runs"
    host = np.empty(x.shape, x.dtype, order=layout[0])
    yield host
    copy_from_host(host, x)


def copy(x: GpuArray, z: GpuArray) -> None:
    """Z := X for CuPy arrays of one GPU, one shape and one dtype, of any strides (local)."""
    with settled(z):
        target, source = _by_rows(words(z), words(x))
        target[...] = source


def copy_to_host(x: GpuArray, host: Array, at: Places | None = None) -> None:
    """Host := X, or some of its rows and columns, of any strides and dtypes; X may be on a peer's GPU (local)."""

    def move(piece: GpuArray, buffer: Array, target: Array, index: Any) -> None:
        tight = cupy.ascontiguousarray(words(piece))
        tight.get(out=buffer.view(tight.dtype))
        with np.errstate(all="ignore"):  # conversions; threads have error states of their own
            target[index] = buffer

    _move(x, host, at, move)


def copy_from_host(host: Array, x: GpuArray, of: Places | None = None) -> None:
    """X := host, or some of its rows and columns, of any strides and dtypes; X may be on a peer's GPU (local)."""

    def move(piece: GpuArray, buffer: Array, source: Array, index: Any) -> None:
        with np.errstate(all="ignore"):
            buffer[...] = source[index]
        target = words(piece)
        if target.flags.c_contiguous:
            _copy_and_wait(target.data.ptr, address_of(buffer), buffer.nbytes, runtime.memcpyHostToDevice)
            return
        # The buffer is page-locked; CuPy's own copies would pass its elements through another one
        tight = cupy.empty(buffer.shape, target.dtype)
        tight.set(buffer.view(target.dtype))
        if abs(target.strides[0]) < abs(target.strides[1]):  # turned here, since writes to peers must be long
            turned = cupy.empty(tight.shape, tight.dtype, "F")
            turned[...] = tight
            target, tight = target.T, turned.T
        target[...] = tight

    _move(x, host, of, move)


def on_gpu(host: Array) -> Any:
    """A copy of a short host array on this thread's current GPU, for use on any stream (local).

    CuPy's own copy goes through a pool of page-locked memory, which takes 20 microseconds more (H200).
    """
    tight = np.ascontiguousarray(host)
    copy = cupy.empty(host.shape, tight.dtype)
    _copy_and_wait(copy.data.ptr, tight.ctypes.data, tight.nbytes, runtime.memcpyHostToDevice)
    return copy


def few_results(count: int, dtype: Dtype) -> tuple[Array, int] | None:
    """An array in page-locked memory, which kernels write, and its address; None if it were long (local).

    It is for one call and `on_host`, which saves a copy: 16 us (H200).
    """
    if count * dtype.itemsize > _RESULTS_NBYTES:
        return None
    memory = _own.results()
    return np.frombuffer(memory, dtype, count), memory.ptr


def on_host(x: Any) -> Array:
    """A copy of a short contiguous CuPy array, or of `few_results`, after the work of the current stream (local)."""
    if isinstance(x, np.ndarray):
        runtime.streamSynchronize(cupy.cuda.get_current_stream().ptr)
        return x.copy()
    host: Array = np.empty(x.shape, x.dtype)
    _copy_and_wait(address_of(host), x.data.ptr, x.nbytes, runtime.memcpyDeviceToHost)
    return host


def _copy_and_wait(target: int, source: int, nbytes: int, kind: int) -> None:
    """Copy on the current stream, whose memory pool may have the GPU's side (local)."""
    stream = cupy.cuda.get_current_stream().ptr
    runtime.memcpyAsync(target, source, nbytes, kind, stream)
    runtime.streamSynchronize(stream)


def _move(x: Any, host: Array, places: Places | None, move: Callable[[GpuArray, Array, Array, Any], None]) -> None:
    """Call move(piece of x, page-locked buffer of its shape, host, index of the piece) for all pieces.

    They are some rows of the host array, or columns if it is stored by columns. The piece may be used on the thread's
    current stream, which is awaited.
    """
    if not x.size:
        return
    if x.ndim != 2:
        x, host = x.reshape(1, -1), host.reshape(1, -1)
    rows, columns = places or (slice(None), slice(None))
    if abs(host.strides[0]) < abs(host.strides[1]):
        host, x, rows, columns = host.T, x.T, columns, rows
    chosen = None if isinstance(rows, slice) else rows  # a list of rows
    if isinstance(rows, slice):
        host = host[rows]
    if isinstance(columns, slice):
        host, columns = host[:, columns], slice(None)
    height = max(1, _PIECE_NBYTES // (x.itemsize * x.shape[1]))
    device = x.data.device_id

    if x.nbytes <= _DIRECT_NBYTES:
        with settled(x):
            move(x, np.empty(x.shape, x.dtype), host, index_at((slice(None) if chosen is None else chosen, columns)))
        return

    def move_rows(start: int) -> None:
        part = slice(start, start + height)
        with cupy.cuda.Device(device), _own.stream(device) as stream:
            piece = x[part]
            move(piece, _own.buffer(piece), host, index_at((part if chosen is None else chosen[part], columns)))
            stream.synchronize()

    with settled(x):
        for _ in _threads().map(move_rows, range(0, len(x), height)):
            pass


class _Own(threading.local):
    """The page-locked memory and the streams of this thread."""

    def __init__(self) -> None:
        self._memory: Any = None
        self._results: Any = None
        self._streams: dict[int, Any] = {}

    def stream(self, device: int) -> Any:
        """A stream of a GPU, which is the current one."""
        if device not in self._streams:
            self._streams[device] = cupy.cuda.Stream(non_blocking=True)
        return self._streams[device]

    def results(self) -> Any:
        """Memory for the results of one kernel."""
        if self._results is None:
            self._results = cupy.cuda.alloc_pinned_memory(_RESULTS_NBYTES)
        return self._results

    def buffer(self, x: GpuArray) -> Array:
        """A tight array of the shape and dtype of x, valid until the next call."""
        if self._memory is None or self._memory.mem.size < x.nbytes:
            self._memory = cupy.cuda.alloc_pinned_memory(max(x.nbytes, _PIECE_NBYTES))
        buffer: Array = np.frombuffer(self._memory, np.uint8, x.nbytes).view(x.dtype).reshape(x.shape)
        return buffer


_own = _Own()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, "pblas-copy")


def _by_rows(x: Any, y: Any) -> tuple[Any, Any]:
    """Two matrices of one shape, transposed if x is stored by columns: CuPy's kernels are fast by rows."""
    return (x.T, y.T) if x.ndim == 2 and abs(x.strides[0]) < abs(x.strides[1]) else (x, y)


def fill(x: GpuArray, value: complex = 0) -> None:
    """All elements of X := value, as its dtype holds it (local)."""
    if x.size:
        target = words(x)
        with np.errstate(all="ignore"):
            element = np.array(value).astype(x.dtype).reshape(1).view(target.dtype)[0]
        with settled(x):
            target, _ = _by_rows(target, target)
            target.fill(element)


class Shadow:
    """Addresses and strides of a CuPy array for NumPy, which must not read or write there."""

    __slots__ = ("__array_interface__",)

    def __init__(self, x: GpuArray) -> None:
        self.__array_interface__: dict[str, object] = {
            "shape": x.shape,
            "strides": x.strides,
            "typestr": f"|V{x.itemsize}",
            "data": (x.data.ptr, False),
            "version": 3,
        }


@contextmanager
def settled(x: GpuArray) -> Iterator[None]:
    """A with block on the GPU of x, which is idle when the block begins and ends."""
    with cupy.cuda.Device(x.data.device_id):
        runtime.deviceSynchronize()
        yield
        runtime.deviceSynchronize()


def span(x: GpuArray) -> int:
    """Bytes from the first element of a matrix, of positive strides, to the end of its last."""
    (m, n), (down, across) = x.shape, x.strides
    return int((m - 1) * down + (n - 1) * across + x.itemsize)


def _span(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int:
    """Bytes from the first element of an array to the end of its last."""
    return sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + itemsize


def lines_of(x: GpuArray, order: str) -> tuple[int, int, int] | None:
    """(bytes of a line, lines, pitch in bytes) of a matrix whose columns ("F") or rows ("C") are contiguous.

    None if they are not contiguous, or if the pitch is too large for a copy engine.
    """
    fast, slow = (0, 1) if order == "F" else (1, 0)
    width = x.shape[fast] * x.itemsize
    if x.shape[fast] > 1 and x.strides[fast] != x.itemsize:
        return None
    pitch = x.strides[slow] if x.shape[slow] > 1 else width
    return (width, x.shape[slow], pitch) if width <= pitch <= _MOST_PITCH else None


def runs_of(x: GpuArray) -> tuple[Literal["F", "C"], int, int, int] | None:
    """(storage order, bytes of a run, runs, pitch in bytes) of a matrix; None if its elements form no runs."""
    orders: tuple[Literal["F", "C"], ...] = ("F", "C")
    return next(((order, *lines) for order in orders if (lines := lines_of(x, order)) is not None), None)


def words(x: GpuArray) -> Any:
    """The same memory with a dtype that every CuPy kernel copies: integers instead of bfloat16 or 8-bit numbers."""
    if x.dtype in FLOAT8:
        return x.view(np.uint8)
    return x.view(np.uint16) if x.dtype == BFLOAT16 else x


def new_array(
    shape: tuple[int, ...], dtype: Dtype, memory: object, strides: tuple[int, ...] | None = None, order: Order = "C"
) -> Any:
    """A CuPy array at the start of some memory; CuPy knows arrays of 8-bit numbers only as views of bytes (local)."""
    if dtype in FLOAT8:
        return cupy.ndarray(shape, np.uint8, memory, strides, order).view(dtype)
    return cupy.ndarray(shape, dtype, memory, strides, order)
