"""Launches of the kernels of strided_copy.cu, which copy, convert, scale or add the elements of a matrix to another."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pblas import errors
from pblas.backends.cuda.kernels.sources import expanded

if TYPE_CHECKING:
    import numpy as np

FIELDS = struct.Struct("=16q4dq")
"""MoveArguments of strided_copy.cu; each field has eight bytes."""

_NAMES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
_HALVES = _NAMES[:2]
COPIES = ("copy_1", "copy_2", "copy_4", "copy_8", "copy_4_4", "copy_8_8")
COMBINATIONS = (
    *(f"combine_{name}_{name}" for name in _NAMES),
    *(f"combine_{name}_float32" for name in _HALVES),
    *(f"combine_float32_{name}" for name in _HALVES),
)

CONVERSIONS = (*(f"convert_{name}_float32" for name in _HALVES), *(f"convert_float32_{name}" for name in _HALVES))
LINES = struct.Struct("=6q")
"""LinesArguments of strided_copy.cu."""

_TILE = 32
_PACK = 8  # elements that a thread converts at a time
_THREADS = (32, 8)
_CONVERTING = 256  # threads
_CTAS_PER_SM = 16  # twice as many as fit at once; with more tiles a CTA takes several


class StridedRegion(NamedTuple):
    """Positions of the elements of a message or a matrix.

    Element (i, j) is rows[i] * down + columns[j] * across elements after `address`.

    Args:
        address: address of the element at position 0.
        down: distance in elements from one row to the next.
        across: distance in elements from one column to the next.
        rows: address of 64-bit row numbers in GPU memory; 0 stands for the rows 0, 1, 2, ...
        columns: address of 64-bit column numbers in GPU memory; 0 stands for the columns 0, 1, 2, ...
    """

    address: int
    down: int
    across: int
    rows: int = 0
    columns: int = 0

    @property
    def by_columns(self) -> bool:
        """Whether the elements of a column are neighbours in memory."""
        return abs(self.down) < abs(self.across)

    @classmethod
    def of(cls, x: Any) -> StridedRegion:
        """The positions of all elements of a matrix."""
        return cls(x.data.ptr, x.strides[0] // x.itemsize, x.strides[1] // x.itemsize)


class StridedCopy:
    """The kernels, compiled for the current GPU."""

    def __init__(self) -> None:
        import cupy
        from cuda.bindings import driver

        self._driver, self._runtime = driver, cupy.cuda.runtime
        self._most_ctas: int = _CTAS_PER_SM * cupy.cuda.Device().attributes["MultiProcessorCount"]
        self._module = cupy.RawModule(code=source(), options=("--std=c++17",))
        names = (*COPIES, *COMBINATIONS, *CONVERSIONS)
        self._functions = {name: driver.CUfunction(self._module.get_function(name).kernel.ptr) for name in names}
        self._memory = ctypes.create_string_buffer(FIELDS.size)
        self._pointer = ctypes.c_void_p(ctypes.addressof(self._memory))

    def copy(
        self,
        stream: int,
        dtype: np.dtype[Any],
        shape: tuple[int, int],
        x: StridedRegion,
        z: StridedRegion,
        side: tuple[int, int] = (0, 0),
    ) -> None:
        """Copy the elements of X to Z, bit by bit."""
        half = dtype.itemsize // 2
        name = f"copy_{half}_{half}" if dtype.kind == "c" else f"copy_{dtype.itemsize}"
        self._launch(name, stream, shape, x, z, side, 1.0, 0.0, conj=False)

    def pad(self, stream: int, x: Any, whole: Any) -> None:
        """Copy X to the start of another matrix of its dtype, with zeros after it."""
        if whole.shape != x.shape:
            self._runtime.memsetAsync(whole.data.ptr, 0, whole.nbytes, stream)
        self.copy(stream, x.dtype, x.shape, StridedRegion.of(x), StridedRegion.of(whole))

    def combine(
        self,
        stream: int,
        dtypes: tuple[np.dtype[Any], np.dtype[Any]],
        shape: tuple[int, int],
        x: StridedRegion,
        z: StridedRegion,
        alpha: complex,
        beta: complex,
        *,
        conj: bool = False,
        side: tuple[int, int] = (0, 0),
    ) -> None:
        """Z := alpha conj?(X) + beta Z, where conj?(X) is conj(X) if `conj` is set, else X.

        With alpha = 0 the kernel does not read X; with beta = 0 it does not read Z. It computes 16-bit elements in 32
        bits and rounds them once, without fused multiply-add.
        """
        name = f"combine_{dtypes[0].name}_{dtypes[1].name}"
        self._launch(name, stream, shape, x, z, side, alpha, beta, conj=conj)

    def convert(
        self,
        stream: int,
        dtypes: tuple[np.dtype[Any], np.dtype[Any]],
        x: tuple[int, int],
        z: tuple[int, int],
        length: int,
        lines: int,
    ) -> None:
        """Z := X, converted between float32 and a 16-bit dtype, and rounded once.

        A line is a row, or a column, whose elements are neighbours in memory.
        """
        ctas = min(-(-lines * -(-length // _PACK) // _CONVERTING), self._most_ctas)
        if not ctas:
            return
        LINES.pack_into(self._memory, 0, x[0], z[0], length, lines, x[1], z[1])
        self._start(f"convert_{dtypes[0].name}_{dtypes[1].name}", stream, ctas, (_CONVERTING, 1))

    def _launch(
        self,
        name: str,
        stream: int,
        shape: tuple[int, int],
        x: StridedRegion,
        z: StridedRegion,
        side: tuple[int, int],
        alpha: complex,
        beta: complex,
        *,
        conj: bool,
    ) -> None:
        (m, n), alpha, beta = shape, complex(alpha), complex(beta)
        tiles = -(-m // _TILE) * -(-n // _TILE)
        if not tiles:
            return
        FIELDS.pack_into(
            self._memory,
            0,
            *(x.address, z.address, x.rows, x.columns, x.down, x.across, z.rows, z.columns, z.down, z.across),
            *(m, n, *side, x.by_columns, z.by_columns),
            *(alpha.real, alpha.imag, beta.real, beta.imag, conj),
        )
        self._start(name, stream, min(tiles, self._most_ctas), _THREADS)

    def _start(self, name: str, stream: int, ctas: int, threads: tuple[int, int]) -> None:
        """Launch a kernel with the packed arguments."""
        arguments = ctypes.addressof(self._pointer)  # the driver copies the arguments before it returns
        (status,) = self._driver.cuLaunchKernel(self._functions[name], ctas, 1, 1, *threads, 1, 0, stream, arguments, 0)
        if status:
            raise errors.BackendError(f"kernel {name} could not be launched on stream {stream:#x}: {status.name}")


def source() -> str:
    """CUDA C++ of the kernels with its includes expanded: NVRTC finds no headers without a CUDA toolkit."""
    return expanded(Path(__file__).parent / "strided_copy.cu")
