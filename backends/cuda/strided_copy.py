"""Launches of the kernels of strided_copy.cu, which copy, convert, scale or add the elements of a matrix to another.

Blocks of local arrays and packed messages are copied by one of them, or by the copy engine. The methods are those of
`pblas.redistribution.packing.BlockCopy`. A cyclic layout scatters a message in the local array; the kernel reads lists
of its rows and columns in GPU memory.
"""

from __future__ import annotations

import ctypes
import struct
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

import cupy
import numpy as np

from pblas import errors
from pblas.backends.cuda import streams
from pblas.backends.cuda.kernels import expanded
from pblas.backends.cuda.pointwise import type_name
from pblas.backends.cuda.programs import Program, compiling
from pblas.backends.cuda.transfer import lines_of, new_array

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pblas.backends.dtypes import Array, Dtype, GpuArray
    from pblas.layouts.messages import Move
    from pblas.layouts.overlap import Run
    from pblas.layouts.trapezoid import Trapezoid


FIELDS = struct.Struct("=16q4dq")  # MoveArguments of strided_copy.cu; each field has eight bytes

_WORDS = {"1": "byte", "2": "half_word", "4": "word", "8": "integer", "4_4": "Pair<word>", "8_8": "Pair<integer>"}
_TYPES = {name: type_name(np.dtype(name)) for name in ("float32", "float64", "complex64", "complex128")}
_HALVES = {name: name for name in ("float16", "bfloat16")}
_MIXED = [pair for half in _HALVES for pair in ((half, "float32"), ("float32", half))]
_ALL = _TYPES | _HALVES


def _combinations(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {f"combine_{x}_{z}": f"move<Combine, {_ALL[x]}, {_ALL[z]}>" for x, z in pairs}


_KERNELS = (
    {f"copy_{nbytes}": f"move<Copy, {word}, {word}>" for nbytes, word in _WORDS.items()}
    | {"transpose_2": "transpose_pairs<half_word, word>"}
    | _combinations([*((name, name) for name in _ALL), *_MIXED])
    | {f"convert_{x}_{z}": f"convert<{_ALL[x]}, {_ALL[z]}>" for x, z in _MIXED}
)
"""The kernels of strided_copy.cu by their names, instances of its templates."""
_TOGETHER = 3  # kernels of a program: threads compile programs at the same time
LINES = struct.Struct("=6q")  # LinesArguments of strided_copy.cu

_TILE = 32
_PACK = 8  # elements that a thread converts at a time
_THREADS = (32, 8)
_CONVERTING = 256  # threads
_CTAS_PER_SM = 16  # twice as many as fit at once; with more tiles a CTA takes several


class StridedRegion(NamedTuple):
    """Positions of the elements of a message or a matrix.

    Element (i, j) is rows[i] * down + columns[j] * across elements after `address`.


    """

    address: int  # address of the element at position 0
    down: int  # distance in elements from one row to the next
    across: int  # distance in elements from one column to the next
    rows: int = 0  # address of 64-bit row numbers in GPU memory; 0 stands for the rows 0, 1, 2, ...
    columns: int = 0  # address of 64-bit column numbers in GPU memory; 0 stands for the columns 0, 1, 2, ...

    @property
    def by_columns(self) -> bool:
        """Whether the elements of a column are neighbours in memory."""
        return abs(self.down) < abs(self.across)

    @classmethod
    def of(cls, x: GpuArray) -> StridedRegion:
        """The positions of all elements of a matrix."""
        return cls(x.data.ptr, x.strides[0] // x.itemsize, x.strides[1] // x.itemsize)


def _transposes_pairs(shape: tuple[int, int], x: StridedRegion, z: StridedRegion) -> bool:
    """Whether elements of 16 bits change their storage order, and pairs of neighbours can be read and written."""
    if x.by_columns == z.by_columns or any((x.rows, x.columns, z.rows, z.columns)):
        return False
    neighbours, lines = zip(*(sorted((region.down, region.across)) for region in (x, z)), strict=True)
    return neighbours == (1, 1) and not any(k % 2 for k in (*shape, *lines, x.address // 2, z.address // 2))


class StridedCopy:
    """The kernels, compiled for the current GPU."""

    def __init__(self) -> None:
        import cupy
        from cuda.bindings import driver

        self._driver, self._runtime = driver, cupy.cuda.runtime
        self._most_ctas: int = _CTAS_PER_SM * cupy.cuda.Device().attributes["MultiProcessorCount"]
        self._programs = [future.result() for future in compiling(programs())]
        program_of = {instance: program for program in self._programs for instance in program.instances}
        self._functions = {
            name: driver.CUfunction(program_of[instance].get_function(instance).kernel.ptr)
            for name, instance in _KERNELS.items()
        }
        self._memory = ctypes.create_string_buffer(FIELDS.size)
        self._pointer = ctypes.c_void_p(ctypes.addressof(self._memory))

    def copy(
        self,
        stream: int,
        dtype: Dtype,
        shape: tuple[int, int],
        x: StridedRegion,
        z: StridedRegion,
        side: tuple[int, int] = (0, 0),
    ) -> None:
        """Copy the elements of X to Z, bit by bit."""
        half = dtype.itemsize // 2
        name = f"copy_{half}_{half}" if dtype.kind == "c" else f"copy_{dtype.itemsize}"
        if dtype.itemsize == 2 and not side[0] and _transposes_pairs(shape, x, z):
            name = "transpose_2"
        self._launch(name, stream, shape, x, z, side, 1.0, 0.0, conj=False)

    def pad(self, stream: int, x: GpuArray, whole: GpuArray) -> None:
        """Copy X to the start of another matrix of its dtype, with zeros after it."""
        if whole.shape != x.shape:
            self._runtime.memsetAsync(whole.data.ptr, 0, whole.nbytes, stream)
        self.copy(stream, x.dtype, x.shape, StridedRegion.of(x), StridedRegion.of(whole))

    def combine(
        self,
        stream: int,
        dtypes: tuple[Dtype, Dtype],
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
        self, stream: int, dtypes: tuple[Dtype, Dtype], x: tuple[int, int], z: tuple[int, int], length: int, lines: int
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


def programs() -> list[Program]:
    """Those of all kernels. Includes are expanded: NVRTC finds no headers without a CUDA toolkit."""
    code, kernels = expanded(Path(__file__).parent / "strided_copy.cu"), [*_KERNELS.values()]
    return [Program(code, kernels[i : i + _TOGETHER]) for i in range(0, len(kernels), _TOGETHER)]


_PACKED: Final = 1
"""Of the places 0 (sender's array), 1 (message) and 2 (receiver's array); see `pblas.layouts.strided`."""

_HOST_TO_DEVICE = 1


class Arrays(Protocol):
    """The part of `pblas.backends.cuda.arrays.DeviceArrays` that copies use."""

    @property
    def stream(self) -> int:
        """Handle of the current lane's stream (local)."""

    @property
    def strided_copy(self) -> StridedCopy:
        """The kernels that move elements (local)."""

    def empty(self, nbytes: int) -> Any:
        """Private bytes of this rank (local)."""


class Lines:
    """Positions of a message's rows, or of its columns, in the sender's array and in the receiver's array."""

    __slots__ = ("_arrays", "_lists", "_runs", "count", "is_single")

    def __init__(self, arrays: Arrays, runs: tuple[Run, ...]) -> None:
        self._arrays, self._runs = arrays, runs
        self.count: int = sum(run[2] for run in runs)
        # Blocks of a cyclic layout often touch in both arrays, though they are not neighbours in the matrix.
        self.is_single: bool = bool(runs) and all((a + n, b + n) == after[:2] for (a, b, n), after in pairwise(runs))
        """Whether the lines are consecutive in both arrays."""
        self._lists: dict[int, tuple[Any, Array]] = {}

    def start(self, place: int) -> int:
        """Position of the first line, if they are consecutive."""
        return self._runs[0][place // 2]

    def list(self, place: int) -> int:
        """Address of the list of positions in GPU memory."""
        if place not in self._lists:
            starts, lengths = (np.array([run[i] for run in self._runs]) for i in (place // 2, 2))
            packed = np.cumsum(lengths) - lengths
            self._lists[place] = upload(
                self._arrays, np.repeat(starts - packed, lengths) + np.arange(self.count, dtype=np.int64)
            )
        memory, _ = self._lists[place]
        return int(memory.data.ptr)


def upload(arrays: Arrays, values: Array) -> tuple[Any, Array]:
    """Copy 64-bit integers to the GPU on the current lane; returns the GPU memory and the host array to keep alive."""
    memory: Any = arrays.empty(values.nbytes)
    cupy.cuda.runtime.memcpyAsync(memory.data.ptr, values.ctypes.data, values.nbytes, _HOST_TO_DEVICE, arrays.stream)
    return memory, values


class BlockCopy:
    """Copies of one part of a message: a product of runs of rows and columns, or a trapezoid's part of a block."""

    __slots__ = ("_arrays", "_columns", "_offsets", "_rows", "_shape", "_side", "_trapezoid", "nelements")

    def __init__(
        self, arrays: Arrays, move: Move, trapezoid: Trapezoid | None, known: dict[tuple[Run, ...], Lines]
    ) -> None:
        for runs in (move.rows, move.columns):
            if runs not in known:
                known[runs] = Lines(arrays, runs)
        self._arrays, self._trapezoid = arrays, trapezoid
        self._rows, self._columns = known[move.rows], known[move.columns]
        self._shape = m, n = move.shape
        self._side: tuple[int, int] = (0, 0)
        self._offsets: tuple[Any, Array] | None = None
        self.nelements: int = m * n
        if trapezoid is not None:
            self._side = (1 if trapezoid.uplo == "U" else -1), trapezoid.diagonal
            self.nelements = trapezoid.count(0, m, 0, n)

    @property
    def is_block(self) -> bool:
        """Whether it is one whole block of consecutive rows and columns at both ends."""
        return self._rows.is_single and self._columns.is_single and self._trapezoid is None

    def block(self, x: GpuArray, place: int) -> Array:
        """The part's elements in x, if they form a block."""
        (i, j), (m, n) = (lines.start(place) for lines in (self._rows, self._columns)), self._shape
        return x[i : i + m, j : j + n]

    def packed(self, flat: Array, order: Literal["F", "C"]) -> Array:
        """A part of a message in the shape that `copy` takes: a matrix, or 1-D for a trapezoid."""
        if self._trapezoid is not None:
            return flat
        matrix: Array = new_array(self._shape, flat.dtype, flat.data, order=order)
        return matrix

    def copy(self, x: GpuArray, origin: int, out: GpuArray, goal: int, put: Any) -> None:
        """Put the part's elements from x to out; each array is a SOURCE, PACKED or TARGET. `put` is a `Scaling`."""
        copies = (put.alpha, put.beta, put.conj) == (1, 0, False) and x.dtype == out.dtype
        if copies and self.is_block:
            pieces = (z if place == _PACKED else self.block(z, place) for z, place in ((x, origin), (out, goal)))
            if copied(self._arrays.stream, *pieces):
                return
        regions = self._region(x, origin), self._region(out, goal)
        stream, kernels = self._arrays.stream, self._arrays.strided_copy
        if copies:
            kernels.copy(stream, x.dtype, self._shape, *regions, self._side)
        else:
            kernels.combine(
                *(stream, (x.dtype, out.dtype), self._shape, *regions, put.alpha, put.beta),
                conj=put.conj,
                side=self._side,
            )

    def _region(self, x: GpuArray, place: int) -> StridedRegion:
        """Positions of the part's elements in x."""
        if place == _PACKED:
            if self._trapezoid is None:
                return StridedRegion.of(x)
            memory: Any = x.data
            return StridedRegion(memory.ptr, 1, 1, self._row_offsets())
        address, down, across, *_ = StridedRegion.of(x)
        places = []
        for lines, stride in ((self._rows, down), (self._columns, across)):
            if lines.is_single:
                address += lines.start(place) * stride * x.itemsize
                places.append(0)
            else:
                places.append(lines.list(place))
        return StridedRegion(address, down, across, *places)

    def _row_offsets(self) -> int:
        """Address of a list: for each row of the trapezoid, the position of its column 0 in the message."""
        if self._offsets is None:
            (m, n), (side, diagonal), rows = self._shape, self._side, np.arange(self._shape[0], dtype=np.int64)
            edge = np.clip(rows + (diagonal if side > 0 else diagonal + 1), 0, n)  # first of U, one past the last of L
            counts = n - edge if side > 0 else edge
            first = edge if side > 0 else np.zeros(m, np.int64)
            self._offsets = upload(self._arrays, np.cumsum(counts) - counts - first)
        return int(self._offsets[0].data.ptr)


def copied(stream: int, x: GpuArray, z: GpuArray) -> bool:
    """Z := X of the same dtype by a copy engine; false, without an effect, if their storage orders differ."""
    for order in "FC":
        source, target = lines_of(x, order), lines_of(z, order)
        if source is not None and target is not None:
            streams.copy(stream, z.data.ptr, target[2], x.data.ptr, source[2], source[0], source[1])
            return True
    return False
