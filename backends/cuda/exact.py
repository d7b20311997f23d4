"""Exact products on a GPU, with the bits of `pblas.backends.cpu.exact`: 18 products of 8-bit integers for float64.

The integers of rows and columns are taken modulo 18 numbers without a common factor (13 for float32). Tensor cores
multiply the residues, with sums in 32 bits. The Chinese remainder theorem restores the sum of up to 136 bits, which is
rounded once.

Source: Ozaki, Uchino, Imamura, Ozaki scheme II: a GEMM-oriented emulation of floating-point matrix multiplication using
an integer modular technique (2025, arXiv 2504.08009).
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import runtime
from nvmath import CudaDataType
from nvmath.bindings import cublas

from pblas.backends.cuda import streams
from pblas.backends.cuda.kernels import expanded
from pblas.backends.cuda.pointwise import type_name
from pblas.backends.cuda.programs import Program
from pblas.backends.cuda.reproducible import PieceGemm
from pblas.backends.engine_limits import SLICE_BITS, exact_nbytes, moduli_of, padded, slices_of
from pblas.backends.pieces import PieceSizes, TreeSum

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array, Dtype, GpuArray

_THREADS, _ROWS, _DEPTH, _CHUNK, _WORDS = 256, 32, 64, 1024, 5  # as in exact.cu


class ExactGemm(PieceGemm):
    """The products of `Device.exact_gemm`, launched on the lane of `arrays`, the `DeviceArrays` of this GPU."""

    def __init__(self, arrays: Any, sizes: PieceSizes, allocate: Callable[[int], Array]) -> None:
        width, shape, pieces, dtype, transposed = sizes
        self._arrays, self._width, self._dtype, self._transposed = arrays, width, dtype, transposed
        m, n = shape[::-1] if transposed else shape
        self._tile, lengths = exact_nbytes(m, n, width, dtype.itemsize, TreeSum.depth(pieces) + 1)
        (*self._residues, self._products, self._rows, self._leaf), self._sums = self._divided(lengths, allocate, 5)

    def _form(
        self, x: GpuArray, y: GpuArray, conj: tuple[bool, bool], z: GpuArray, *, adds: bool, is_packed: bool
    ) -> None:
        """Z := X Y, or Z += X Y with the product in memory of its own before it is added."""
        leaf = self._arrays.array(self._leaf, z.shape, self._dtype) if adds else z
        self._multiply(x, y, leaf, is_cut=is_packed)
        if adds:
            self._add(leaf, z)

    def _multiply(self, x: GpuArray, y: GpuArray, out: GpuArray, *, is_cut: bool) -> None:
        """Out := X Y, rounded once."""
        (m, k), n, stream = x.shape, y.shape[1], self._arrays.stream
        rows, columns, depth = map(padded, (m, n, k))
        count, kernels = len(moduli_of(self._dtype.itemsize)), _kernels(self._dtype)
        of_x, of_y = self._rows.data.ptr, self._rows.data.ptr + 12 * rows  # of a row 8 bytes, then 4
        largest, special = (of_x, of_y), (of_x + 8 * rows, of_y + 8 * columns)
        residues = [memory.data.ptr for memory in self._residues]
        with cupy.cuda.Stream.from_external(streams.Handle(stream)):
            if not is_cut:
                runtime.memsetAsync(largest[0], 0, 8 * rows, stream)
                runtime.memsetAsync(special[0], 0, 4 * rows, stream)
            runtime.memsetAsync(largest[1], 0, 8 * columns, stream)
            runtime.memsetAsync(special[1], 0, 4 * columns, stream)
            for side, matrix in list(enumerate((x, y.T)))[is_cut:]:
                length, lines = matrix.shape[0], (rows, columns)[side]
                place = *_place(matrix), length, k, largest[side]
                chunks, blocks = -(-k // _CHUNK), -(-length // _ROWS)
                kernels["measure"]((blocks, chunks), (_THREADS,), _words(*place, special[side]))
                grid = -(-depth // _DEPTH), -(-lines // _ROWS)
                kernels["cut"](grid, (_THREADS,), _words(*place, residues[side], lines, depth))
            scalars = np.array([1, 0], np.int32)
            cublas.gemm_strided_batched_ex(
                *(self._arrays.blas_handle, cublas.Operation.T, cublas.Operation.N, rows, columns, depth),
                *(scalars.ctypes.data, residues[0], CudaDataType.CUDA_R_8I, depth, rows * depth),
                *(residues[1], CudaDataType.CUDA_R_8I, depth, columns * depth, scalars.ctypes.data + 4),
                *(self._products.data.ptr, CudaDataType.CUDA_R_32I, rows, rows * columns, count),
                *(cublas.ComputeType.COMPUTE_32I, cublas.GemmAlgo.DEFAULT),
            )
            left, right, result = _place(x), _place(y.T), _place(out)
            arguments = self._products.data.ptr, rows, columns, m, k, *largest, *special, *left, *right, *result
            kernels["restore"]((-(-m // _THREADS), n), (_THREADS,), _words(*arguments))


def _place(x: GpuArray) -> tuple[int, int, int]:
    """The address of X, and the elements from one row to the next, and from one column."""
    return x.data.ptr, x.strides[0] // x.itemsize, x.strides[1] // x.itemsize


def _words(*arguments: int) -> tuple[Any, ...]:
    return tuple(map(np.int64, arguments))


@cache
def _kernels(dtype: Dtype) -> dict[str, Any]:
    program = Program(source(dtype))
    return {name: program.get_function(name) for name in ("measure", "cut", "restore")}


def source(dtype: Dtype) -> str:
    """CUDA C++ of the kernels for elements of a dtype."""
    moduli = moduli_of(dtype.itemsize)
    whole = math.prod(moduli)
    tables = {
        "P": moduli,
        "MAGIC": [(1 << 32) // p for p in moduli],
        "HIGH": [(1 << 32) % p for p in moduli],
        "OFFSET": [-(1 << 62) % p for p in moduli],
        "BIAS": [-(-(1 << 28) // p) * p for p in moduli],
        "INVERSE": [pow(whole // p, -1, p) for p in moduli],
    }
    text = [f"typedef {type_name(dtype)} T;"]
    text += [f"enum {{ BITS = {SLICE_BITS * slices_of(dtype.itemsize) - 2}, COUNT = {len(moduli)} }};"]
    text += [f"__device__ constexpr unsigned {name}[] = {_row(values)};" for name, values in tables.items()]
    weights = ", ".join(_row(_limbs(whole // p)) for p in moduli)
    text += [f"__device__ constexpr unsigned WEIGHT[][{_WORDS}] = {{{weights}}};"]
    text += [f"__device__ constexpr unsigned MODULUS[] = {_row(_limbs(whole))};"]
    text += [f"__device__ constexpr float RECIPROCAL[] = {{{', '.join(f'{1 / p!r}f' for p in moduli)}}};"]
    return "\n".join([*text, expanded(Path(__file__).parent / "exact.cu")])


def _limbs(number: int) -> list[int]:
    """A number in words of 32 bits, the last bits first."""
    return [number >> 32 * i & 0xFFFFFFFF for i in range(_WORDS)]


def _row(numbers: Any) -> str:
    return f"{{{', '.join(f'{number}u' for number in numbers)}}}"
