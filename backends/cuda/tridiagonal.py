"""Eigenvalues and vectors of a Hermitian matrix on a GPU in stages: a band, a tridiagonal matrix, its eigenvalues.

One stage, as in cuSOLVER's syevd, multiplies the whole matrix with a vector for each of its columns, so that the memory
limits it. The band takes products with as many vectors as it is wide; then one kernel chases bulges along it.

Source: Bischof, Lang, Sun, A framework for symmetric band reduction, 2000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import cupy
import numpy as np
from cupy.cuda import runtime

from pblas.backends.cuda import streams
from pblas.backends.cuda.divide_and_conquer import DivideAndConquer, address, rows_of
from pblas.backends.cuda.lapack import THREADS, DtypeKernels, Reflectors, place
from pblas.backends.device import Device
from pblas.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array, Dtype, GpuArray

_CHAIN_WIDTH, _HOPPER = 64, "90"  # `WIDTH` of chains.cu, and the GPUs that it is for
_CHAINS_FROM = 8192
"""Vectors from which that kernel is faster than cuBLAS: 89 and 131 ms for 8192, 28 and 24 ms for 4096 (H200)."""
_PANELS = 4  # whose reflectors are multiplied at a time
_GROUP = 4  # points of an eigenvalue at a time: `GROUP` of bisect.cu


class Lanes(Device, Protocol):
    """A GPU with the stream of its current lane, and products of several matrices; see `DeviceArrays`."""

    stream: int

    @property
    def multiply(self) -> Callable[..., None]:
        """Products by cuBLAS; see `DeviceArrays`."""


class TwoStage:
    """Eigenvalues and vectors by way of a band of this width."""

    def __init__(self, arrays: Lanes, reflectors: Reflectors, width: int) -> None:
        self._arrays, self._reflectors, self.width = arrays, reflectors, width
        self._chase = DtypeKernels("chase", "exchange.cuh", defines={"BAND": width}, cooperative=True)
        self._bisect = DtypeKernels("bisect")
        self._blocks, self._chains = DtypeKernels("sweeps", defines={"BAND": width}), DtypeKernels("chains")
        self._solver = DivideAndConquer(self._array, arrays.multiply)

    def holds(self, a: Array) -> bool:
        """Whether the current device holds all CTAs that chase bulges at a time."""
        return self._pieces(a) <= self._chase.most_resident("chase", a.dtype.char, self._threads)

    def values(self, a: Array) -> Array:
        """The eigenvalues of A, ascending, in host memory; A is lost. Both of its triangles are read."""
        self.reduce_to_band(a)
        d, e, failed = self.chase(a)
        values = self.bisect(d, e)
        self._arrays.synchronize()
        self._check(failed)
        found: Array = np.sort(values.get()).astype(d.dtype)
        return found

    def vectors(self, a: Array) -> tuple[Array, int]:
        """The eigenvalues of A, ascending, in host memory, and INFO; A := V. Both of its triangles are read."""
        arrays, n, width = self._arrays, len(a), self.width
        triangles = self._array((width, n), a.dtype)
        self.reduce_to_band(a, triangles)
        d, e, failed = self.chase(a, keeps=True)
        # T = S diag(w) S^T, in one of three arrays; blocks of reflectors reach beyond its rows
        total = rows_of(n)
        s, u, spare = (self._array((total + 2 * width, total), d.dtype) for _ in range(3))
        with self._lane():
            for x in (s, spare):
                x[total:] = 0
        values, z, info = self._solver.run(arrays.stream, d, e, s, u, spare)
        z = z[:, :n]
        del s, u, spare, x
        arrays.synchronize()  # which frees them
        self._check(failed)
        if a.dtype != d.dtype:
            real, z = z, self._array((len(z), n), a.dtype)
            with self._lane():
                z[...] = real
        # Q Z
        self.multiply_sweeps(a, z)
        self.multiply_panels(a, triangles, z[:n])
        arrays.assign(z[:n], a)
        arrays.synchronize()
        return values.get()[:n], int(info.get()[0])

    def reduce_to_band(self, a: Array, triangles: Array | None = None) -> None:
        """A := Q^H A Q with zeros below a band, where reflectors are stored. Both triangles of A are read.

        A panel is factored on the side lane, while the main lane updates the columns after it. T of its reflectors is
        kept in its columns of `triangles`, if they are given.
        """
        arrays, width, n = self._arrays, self.width, len(a)
        buffers = [self._array((n, 3 * width), a.dtype) for _ in range(2)]
        scaled, inner, t = (self._array((rows, width), a.dtype) for rows in (n, width, width))
        is_updated = arrays.mark()
        for number, start in enumerate(self._panels(n)):
            below = slice(start + width, n)
            m = n - start - width
            k = min(m, width)
            y, vt, s = buffers[number % 2][:m], scaled[:m, :k], inner[:k, :k]
            v, w = y[:, :k], y[:, k : 2 * k]
            with arrays.on_side_lane():
                arrays.follow(is_updated)
                panel = a[below, start : start + width]
                triangle = (t if triangles is None else triangles[:, start:])[:k, :k]
                if not self._reflectors.factor_narrow(arrays.stream, panel, triangle):
                    arrays.qr(panel, triangle)
                for copy in (v, y[:, 2 * k : 3 * k]):
                    self._reflectors.unit_lower(arrays.stream, panel[:, :k], copy)
                arrays.multiply(v, triangle, vt)
                is_factored = arrays.mark()
            arrays.follow(is_factored)
            trailing = a[below, below]
            # W = X - V S / 2 with X = A V T and S = (V T)^H X
            arrays.multiply(trailing, vt, w)
            arrays.multiply(vt, w, s, adjoint=(True, False))
            arrays.multiply(v, s, w, alpha=-0.5, beta=1)
            # A -= V W^H + W V^H
            for columns in (slice(width), slice(width, None)):
                left, right = y[:, : 2 * k], y[columns, k : 3 * k]
                arrays.multiply(left, right, trailing[:, columns], alpha=-1, beta=1, adjoint=(False, True))
                if columns.stop:
                    is_updated = arrays.mark()

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

    def chase(self, a: Array, *, keeps: bool = False) -> tuple[Any, Any, Any]:
        """The diagonal of T = Q^H A Q and the one below it, for the band of A, and whether a wait ended too late.

        Reflectors that are kept take the place of A above its diagonal.
        """
        n, real = len(a), np.zeros(0, a.dtype).real.dtype
        ctas = self._pieces(a)
        d, e = (self._array((n, 1), real)[:, 0] for _ in range(2))
        lines = self._arrays.empty(16 * 2 * (ctas + 1) * (self.width + 1) * -(-a.itemsize // 8) + 4)
        runtime.memsetAsync(int(address(lines)), 0, lines.nbytes, self._arrays.stream)
        failed: Any = lines[-4:].view(np.int32)
        arguments = *place(a), np.int32(n), address(d), address(e), np.int32(keeps), address(lines), address(failed)
        self._chase.launch(self._arrays.stream, "chase", a.dtype.char, ctas, arguments, threads=self._threads)
        return d, e, failed

    def multiply_sweeps(self, a: Array, z: Array) -> None:
        """Z := Q Z for the reflectors that `chase` keeps; Z has 2 * width rows more than A, at least."""
        is_wide = len(a) >= _CHAINS_FROM and a.dtype.char == "d" and self.width == _CHAIN_WIDTH
        if is_wide and cupy.cuda.Device().compute_capability == _HOPPER:
            self._multiply_chains(a, z)
        else:
            self._multiply_blocks(a, z)

    def _multiply_chains(self, a: Array, z: Array) -> None:
        """`multiply_sweeps` by a kernel that multiplies all blocks of a group of sweeps, one after the other."""
        n, stream = len(a), self._arrays.stream
        groups, rows = -(-(n - 1) // self.width), 2 * self.width
        v, y = (self._array((rows, self.width * groups), a.dtype) for _ in range(2))
        for first in reversed(range(groups)):
            count = groups - first
            self._make_blocks(a, first, 0, 0, v, y, count)
            places = address(v), address(y), np.int32(count), *place(z[first * self.width + 1 :]), np.int32(n)
            shared = a.itemsize * self.width * (3 * rows + self.width)
            ctas = -(-n // self.width)
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

    def _pieces(self, a: Array) -> int:
        """Pieces of the band, one for each CTA that chases bulges."""
        return max(1, -(-(len(a) - 1) // self.width))

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
