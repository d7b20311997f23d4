"""Eigenvalues and vectors of a Hermitian matrix on a GPU in stages: a band, a tridiagonal matrix, its eigenvalues.

One stage, as in cuSOLVER's syevd, multiplies the whole matrix with a vector for each of its columns, so that the memory
limits it. The band takes products with as many vectors as it is wide; then one kernel chases bulges along it.

Source: Bischof, Lang, Sun, A framework for symmetric band reduction, 2000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import cupy
import numpy as np
from cupy.cuda import runtime

from pblas.backends.cuda import streams
from pblas.backends.cuda.divide_and_conquer import DivideAndConquer, address, rows_of
from pblas.backends.cuda.lapack import THREADS, DtypeKernels, Lapack, Reflectors, place
from pblas.backends.device import BandStages, Device
from pblas.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array, Dtype, GpuArray

_CHAIN_WIDTH, _HOPPER = 64, "90"  # `WIDTH` of chains.cu, and the GPUs that it is for
_CHAINS_FROM = 8192
"""Vectors from which that kernel is faster than cuBLAS: 89 and 131 ms for 8192, 28 and 24 ms for 4096 (H200)."""
_PANELS = 4  # whose reflectors are multiplied at a time
_PIECES = 2  # of the band that a CTA has at most: `PIECES` of chase.cu
_GROUP = 4  # points of an eigenvalue at a time: `GROUP` of bisect.cu


class Lanes(Device, Protocol):
    """A GPU with the stream of its current lane, and products of several matrices; see `DeviceArrays`."""

    stream: int

    @property
    def multiply(self) -> Callable[..., None]:
        """Products by cuBLAS; see `DeviceArrays`."""

    def release(self) -> None:
        """Give the memory of arrays that are dropped back to the device."""


class Tridiagonal(NamedTuple):
    """T on the device: its diagonal and the one below it, and whether a wait of `chase` ended too late (local)."""

    d: Any
    e: Any
    failed: Any


class TwoStage(BandStages):
    """Eigenvalues and vectors by way of a band of this width; see `pblas.backends.device`."""

    def __init__(self, arrays: Lanes, lapack: Lapack, reflectors: Reflectors, width: int) -> None:
        self._arrays, self._lapack, self._reflectors, self.width = arrays, lapack, reflectors, width
        self._chase = DtypeKernels("chase", BAND=width)
        self._bisect = DtypeKernels("bisect")
        self._blocks, self._chains = DtypeKernels("sweeps", BAND=width), DtypeKernels("chains")
        self._solver = DivideAndConquer(self._array, arrays.multiply)

    def holds(self, n: int, dtype: Dtype) -> bool:
        """Whether the current device holds all CTAs that chase bulges at a time; begins to compile what `run` needs."""
        real = np.zeros(0, dtype).real.dtype
        self._reflectors.start(dtype.char, self.width, "factor_narrow")
        for kernels, letter in (
            *((self._chase, dtype.char), (self._blocks, dtype.char)),
            *((self._bisect, real.char), (self._solver.kernels, real.char)),
        ):
            kernels.start(letter)
        return self._pieces_of_a_cta(n, dtype) > 0

    # The reduction to a band

    @property
    def multiply(self) -> Callable[..., None]:
        """Products by cuBLAS; see `DeviceArrays`."""
        return self._arrays.multiply

    def complete(self, x: Array) -> None:
        """Above the diagonal X := the adjoint of its lower triangle, whose diagonal becomes real."""
        self._lapack.lower(self._arrays.stream, x)
        self._lapack.mirror(self._arrays.stream, x)

    def factor(self, panel: Array, t: Array) -> None:
        """Panel := R and V, as `qr`, by the kernel of products where it takes the panel."""
        if not self._reflectors.factor_narrow(self._arrays.stream, panel, t):
            self._arrays.qr(panel, t)

    def unit_lower(self, panel: Array, v: Array) -> None:
        """V of a factored panel, with its ones and zeros."""
        self._reflectors.unit_lower(self._arrays.stream, panel, v)

    def copy_blocks(self, x: Array, z: Array, step_x: int, step_z: int) -> None:
        """Z := X in blocks of rows; see `BandStages`."""
        rows = len(x) if step_x == 1 else len(z)
        ctas = -(-rows // (4 * THREADS)) * x.shape[1]
        arguments = *place(x), np.int32(step_x), *place(z), np.int32(step_z), np.int32(rows), np.int32(x.shape[1])
        if ctas:
            self._blocks.launch(self._arrays.stream, "copy_blocks", x.dtype.char, ctas, arguments)

    def release(self) -> None:
        """Give the memory of arrays that are dropped back to the device."""
        self._arrays.release()

    # Eigenvalues and vectors of the band

    def values(self, t: Tridiagonal) -> Array:
        """The eigenvalues of T, ascending, in host memory."""
        values = self.bisect(t.d, t.e)
        self._arrays.synchronize()
        self._check(t.failed)
        found: Array = np.sort(values.get()).astype(t.d.dtype)
        return found

    def vectors(
        self, a: Array, triangles: Array, t: Tridiagonal, wanted: tuple[int, int], z: Array
    ) -> tuple[Array, int]:
        """All eigenvalues of A, ascending, in host memory, and INFO; Z := the wanted vectors (start, stop)."""
        arrays, n, width = self._arrays, len(a), self.width
        # T = S diag(w) S^T, in one of three arrays; blocks of reflectors reach beyond its rows
        total = rows_of(n)
        s, u, spare = (self._array((total + 2 * width, total), t.d.dtype) for _ in range(3))
        with self._lane():
            for x in (s, spare):
                x[total:] = 0
        values, vectors, info = self._solver.run(arrays.stream, t.d, t.e, s, u, spare, wanted)
        columns = vectors[:, slice(*wanted)]
        del s, u, spare, x, vectors
        arrays.synchronize()  # which frees them
        self._check(t.failed)
        if a.dtype != t.d.dtype:
            real, columns = columns, self._array(columns.shape, a.dtype)
            with self._lane():
                columns[...] = real
        # Q S
        if columns.size:
            self.multiply_sweeps(a, columns)
            self.multiply_panels(a, triangles, columns[:n])
        arrays.assign(columns[:n], z)
        arrays.synchronize()
        return values.get()[:n], int(info.get()[0])

    def multiply_panels(self, a: Array, triangles: Array, z: Array) -> None:
        """Z := Q Z for the reflectors of `reduce_to_band`, of some panels at a time, so that Z is read less often."""
        arrays, n, width = self._arrays, len(a), self.width
        panels, most = self._panels(n), _PANELS * width
        vectors = self._array((n, most), a.dtype)
        gram, t, inner = (self._array((most, most), a.dtype) for _ in range(3))
        products, transformed = (self._array((most, z.shape[1]), a.dtype) for _ in range(2))
        for group in reversed([panels[i : i + _PANELS] for i in range(0, len(panels), _PANELS)]):
            top = group[0] + width
            total = min(n - group[-1] - width, width) + group[-1] - group[0]
            v, triangle = vectors[: n - top, :total], t[:total, :total]
            with self._lane():
                v[:most] = 0
                triangle[...] = 0
            for start in group:
                k = min(n - start - width, width)
                before, columns = start - group[0], slice(start - group[0], start - group[0] + k)
                arrays.assign(triangles[:k, start : start + k], triangle[columns, columns])
                self._reflectors.unit_lower(arrays.stream, a[start + width :, start : start + k], v[before:, columns])
                # T[:, i] = -T V^H V[:, i] T[i, i] above the block i of its diagonal
                part, product = gram[:before, :k], inner[:before, :k]
                arrays.multiply(v[:, :before], v[:, columns], part, adjoint=(True, False))
                arrays.multiply(part, triangle[columns, columns], product)
                arrays.multiply(triangle[:before, :before], product, triangle[:before, columns], alpha=-1)
            # Z -= V T (V^H Z)
            arrays.multiply(v, z[top:], products[:total], adjoint=(True, False))
            arrays.multiply(triangle, products[:total], transformed[:total])
            arrays.multiply(v, transformed[:total], z[top:], alpha=-1, beta=1)

    def chase(self, a: Array, *, keeps: bool) -> Tridiagonal:
        """T = Q^H A Q for the band of A. Reflectors that are kept take the place of A above its diagonal."""
        n, real = len(a), np.zeros(0, a.dtype).real.dtype
        pieces = self._pieces_of_a_cta(n, a.dtype)
        ctas = -(-self._pieces(n) // pieces)
        d, e = (self._array((n, 1), real)[:, 0] for _ in range(2))
        lines = self._arrays.empty(16 * 2 * (ctas * pieces + 1) * (self.width + 1) * -(-a.itemsize // 8) + 4)
        runtime.memsetAsync(int(address(lines)), 0, lines.nbytes, self._arrays.stream)
        failed: Any = lines[-4:].view(np.int32)
        numbers = np.int32(n), np.int32(pieces), address(d), address(e), np.int32(keeps)
        self._chase.launch(
            *(self._arrays.stream, "chase", a.dtype.char, ctas, (*place(a), *numbers, address(lines), address(failed))),
            shared_nbytes=self._kept_nbytes(pieces, a.dtype),
            threads=self._threads,
        )
        return Tridiagonal(d, e, failed)

    def multiply_sweeps(self, a: Array, z: Array) -> None:
        """Z := Q Z for the reflectors that `chase` keeps; Z has 2 * width rows more than A, at least."""
        is_wide = len(a) >= _CHAINS_FROM and a.dtype.char == "d" and self.width == _CHAIN_WIDTH
        if is_wide and cupy.cuda.Device().compute_capability == _HOPPER:
            self._multiply_chains(a, z)
        else:
            self._multiply_blocks(a, z)

    def _multiply_chains(self, a: Array, z: Array) -> None:
        """`multiply_sweeps` by a kernel that multiplies all blocks of a group of sweeps, one after the other."""
        (n, columns), stream = (len(a), z.shape[1]), self._arrays.stream
        groups, rows = -(-(n - 1) // self.width), 2 * self.width
        v, y = (self._array((rows, self.width * groups), a.dtype) for _ in range(2))
        for first in reversed(range(groups)):
            count = groups - first
            self._make_blocks(a, first, 0, 0, v, y, count)
            places = address(v), address(y), np.int32(count), *place(z[first * self.width + 1 :]), np.int32(columns)
            shared = a.itemsize * self.width * (3 * rows + self.width)
            ctas = -(-columns // self.width)
            self._chains.launch(stream, "multiply_chain", a.dtype.char, ctas, places, shared_nbytes=shared)

    def _multiply_blocks(self, a: Array, z: Array) -> None:
        """`multiply_sweeps` by cuBLAS: blocks that share no rows at a time, where those of later sweeps go ahead."""
        arrays, n, width = self._arrays, len(a), self.width
        groups, rows = -(-(n - 1) // width), 2 * width
        most = (groups + 1) // 2
        v, y = (self._array((rows, width * most), a.dtype) for _ in range(2))
        products = self._array((width * most, z.shape[1]), a.dtype)
        for step in range(2 * groups - 1):
            # of the sweeps j * width.. the block in piece step - (groups - 1 - j) of the band, for j = first..
            first = max(0, groups - 1 - step)
            count = groups - -(-step // 2) - first
            piece = step - (groups - 1 - first)
            self._make_blocks(a, first, 1, piece, v, y, count)
            row = (first + piece) * width + 1
            part, product = z[row : row + rows], products[:width]
            # Z += Y (V^H Z)
            strides = rows * width, rows, width
            arrays.multiply(v[:, :width], part, product, adjoint=(True, False), count=count, strides=strides)
            strides = rows * width, width, rows
            arrays.multiply(y[:, :width], product, part, beta=1, count=count, strides=strides)

    def _make_blocks(self, a: Array, first: int, move: int, piece: int, v: Array, y: Array, count: int) -> None:
        """V and Y of blocks of reflectors, H = I + Y V^H."""
        numbers = (np.int32(x) for x in (len(a), first, move, piece))
        shared = 4 * self.width * (self.width + 1) * a.itemsize
        arguments = *place(a), *numbers, address(v), address(y)
        self._blocks.launch(*(self._arrays.stream, "make_blocks", a.dtype.char, count, arguments), shared_nbytes=shared)

    def bisect(self, d: GpuArray, e: GpuArray) -> Any:
        """The eigenvalues of the tridiagonal matrix, in no order where they are closer than a rounding error."""
        values = self._array((len(d), 1), np.dtype(np.float64))[:, 0]
        letter, ctas = d.dtype.char, -(-_GROUP * len(d) // THREADS)
        places = address(d), address(e), np.int32(len(d)), address(values)
        self._bisect.launch(self._arrays.stream, "bisect", letter, ctas, places)
        return values

    @property
    def _threads(self) -> int:
        """Threads of a CTA that chases bulges: four for each row of the band's blocks."""
        return 4 * self.width

    def _pieces(self, n: int) -> int:
        """Pieces of the band of n columns."""
        return max(1, -(-(n - 1) // self.width))

    def _pieces_of_a_cta(self, n: int, dtype: Dtype) -> int:
        """The fewest pieces of each CTA with which all CTAs are resident; 0 if there are too many in any case."""
        for pieces in range(1, _PIECES + 1):
            shared = self._kept_nbytes(pieces, dtype)
            most = self._chase.most_resident("chase", dtype.char, self._threads, shared)
            if self._pieces(n) <= pieces * most:
                return pieces
        return 0

    def _kept_nbytes(self, pieces: int, dtype: Dtype) -> int:
        """Shared memory for the blocks of the pieces of a CTA but one, whose blocks are in registers."""
        return (pieces - 1) * 2 * self.width**2 * dtype.itemsize

    def _check(self, failed: Any) -> None:
        """Raise BackendError if the kernel of `chase` gave up."""
        if failed.get()[0]:
            raise BackendError(
                "eigh: thread blocks of a GPU did not run at the same time; end the other programs that use the GPU"
            )

    def _panels(self, n: int) -> range:
        """First columns of the panels that are reduced to a band."""
        return range(0, n - self.width - 1, self.width)

    def _lane(self) -> Any:
        """A with block whose calls of CuPy go to the current lane."""
        return cupy.cuda.Stream.from_external(streams.Handle(self._arrays.stream))

    def _array(self, shape: tuple[int, int], dtype: Dtype) -> Any:
        """Memory until the lanes are idle, in Fortran order."""
        return self._arrays.array(self._arrays.empty(shape[0] * shape[1] * dtype.itemsize), shape, dtype)
