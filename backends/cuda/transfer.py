"""Copies of CuPy arrays to and from host memory, and views of arrays of other libraries.

Each copy waits for all earlier work of the GPU, on any stream, and returns when it is done: the hosts create and gather
matrices, and no stream orders their earlier work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import cupy
import numpy as np

from pblas.backends.dtypes import BFLOAT16, FLOAT8, Array, Dtype, GpuArray, Order
from pblas.backends.interop import check_tensor, is_tensor, tensor_dtype

_MOST_PITCH = (1 << 31) - 1  # of 2-D copies of CUDA
_CUDA_DEVICES = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged


def device_array(x: Any) -> Any:
    """A CuPy array on the memory of another library's array on a GPU; None for arrays in other memory (local)."""
    if is_tensor(x):
        if not x.is_cuda:
            return None
        check_tensor(x)
        dtype, (address, device) = tensor_dtype(x), (x.data_ptr(), x.device.index)
        strides = tuple(dtype.itemsize * step for step in x.stride())
        nbytes = _span(x.shape, strides, dtype.itemsize) if x.numel() else 0
        memory = cupy.cuda.UnownedMemory(address, nbytes, x, device)
        return new_array(tuple(x.shape), dtype, cupy.cuda.MemoryPointer(memory, 0), strides)
    if hasattr(x, "__cuda_array_interface__"):
        return cupy.asarray(x)
    on_gpu = hasattr(x, "__dlpack_device__") and x.__dlpack_device__()[0] in _CUDA_DEVICES
    return cupy.from_dlpack(x) if on_gpu else None


def download(x: GpuArray) -> Array:
    """The elements of a CuPy array in host memory, in its storage order (local)."""
    with _settled(x):
        layout = runs_of(x)
        if layout is None:
            x = cupy.ascontiguousarray(words(x)).view(x.dtype)
            cupy.cuda.runtime.deviceSynchronize()
            layout = runs_of(x)
            assert layout is not None, "a contiguous array has strided runs"
        order, run, count, pitch = layout
        host: Array = np.empty(x.shape, x.dtype, order=order)
        if x.size:
            _copy_runs(host.ctypes.data, run, x.data.ptr, pitch, run, count)
    return host


@contextmanager
def uploading(x: GpuArray) -> Iterator[Array]:
    """A with block that yields host memory of x's shape; unless it raises, its contents are copied to x (local)."""
    layout = runs_of(x)
    assert layout is not None, "a part of a matrix has strided runs"
    order, run, count, pitch = layout
    host = np.empty(x.shape, x.dtype, order=order)
    yield host
    if x.size:
        with _settled(x):
            _copy_runs(x.data.ptr, pitch, host.ctypes.data, run, run, count)


def copy(x: GpuArray, z: GpuArray) -> None:
    """Z := X for CuPy arrays of one GPU, one shape and one dtype, of any strides (local)."""
    with _settled(z):
        words(z)[...] = words(x)


def fill(x: GpuArray, value: complex = 0) -> None:
    """All elements of X := value, as its dtype holds it (local)."""
    if x.size:
        target = words(x)
        with np.errstate(all="ignore"):
            element = np.array(value).astype(x.dtype).reshape(1).view(target.dtype)[0]
        with _settled(x):
            target[...] = element


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
def _settled(x: GpuArray) -> Iterator[None]:
    """A with block on the GPU of x, which is idle when the block begins and ends."""
    with cupy.cuda.Device(x.data.device_id):
        cupy.cuda.runtime.deviceSynchronize()
        yield
        cupy.cuda.runtime.deviceSynchronize()


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


def _copy_runs(target: int, target_pitch: int, source: int, source_pitch: int, run: int, count: int) -> None:
    """Copy `count` runs of bytes between host and GPU, in either direction."""
    runtime = cupy.cuda.runtime
    if target_pitch == source_pitch == run:  # a 2-D copy would limit the pitch to 2 GiB
        runtime.memcpy(target, source, run * count, runtime.memcpyDefault)
    else:
        runtime.memcpy2D(target, target_pitch, source, source_pitch, run, count, runtime.memcpyDefault)


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
