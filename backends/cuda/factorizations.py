"""Factorizations of blocks in Fortran order on this rank's GPU."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from pblas.backends.cuda import streams
from pblas.backends.cuda.lanes import DeviceLanes
from pblas.backends.cuda.triangles import multiply
from pblas.backends.cuda.tridiagonal import TwoStage
from pblas.backends.dtypes import Array, GpuArray


class DeviceFactorizations(DeviceLanes):
    """Factorizations and reflectors; `pblas.backends.device` documents the methods."""

    def lower(self, x: GpuArray) -> None:
        self._lapack.lower(self.stream, x)

    def unit_lower(self, x: Array, z: Array) -> None:
        self._reflectors.unit_lower(self.stream, x, z)

    def cholesky(self, x: Array, info: Array) -> None:
        self._lapack.potrf(self.stream, x, info)

    def lu(self, x: Array, pivots: Array, info: Array) -> None:
        self._lapack.getrf(self.stream, x, pivots, info)

    def swap_rows(self, x: Array, pivots: Array, start: int = 0, *, backward: bool = False) -> None:
        if isinstance(pivots, np.ndarray):
            memory: Any = self.empty(8 * len(pivots)).view(np.int64)
            memory.set(pivots.astype(np.int64), cupy.cuda.Stream.from_external(streams.Handle(self.stream)))
            pivots = memory
        self._lapack.swap_rows(self.stream, x, pivots, start, backward=backward)

    def qr(self, x: Array, t: Array) -> None:
        self._reflectors.geqrt(self.stream, x, t)

    def multiply(
        self,
        x: Array,
        y: Array,
        z: Array,
        *,
        alpha: float = 1,
        beta: float = 0,
        adjoint: tuple[bool, bool] = (False, False),
        count: int = 1,
        strides: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        """Z := alpha op(X) op(Y) + beta Z by cuBLAS, of `count` matrices by columns that are `strides` elements apart.

        Unlike `gemm` it does not search for the best algorithm, which takes 0.1 ms for each new size.
        """
        if z.size:
            handle = self.blas_handle
            multiply(handle, alpha, x, y, beta, z, adjoint=adjoint, count=count, strides=strides)

    def eigh(self, x: Array, *, vectors: bool) -> tuple[Array, int]:
        if not x.size:
            return np.empty(0, x.dtype).real, 0
        result = self._lapack.syevd(self.stream, x, vectors=vectors)
        self.release()
        return result

    def band_stages(self, width: int) -> TwoStage:
        if width not in self._bands:
            self._bands[width] = TwoStage(self, self._lapack, self._reflectors, width)
        return self._bands[width]

    def fix_signs(self, x: GpuArray) -> None:
        self._lapack.fix_signs(self.stream, x)

    def block_of_reflectors(self, v: Array, tau: Array, t: Array) -> None:
        memory: Any = self.empty(tau.nbytes).view(tau.dtype)
        memory.set(tau, cupy.cuda.Stream.from_external(streams.Handle(self.stream)))
        self._reflectors.larft(self.stream, v, memory, t)

    def multiply_q(self, v: Array, t: Array, c: Array, *, adjoint: bool, conj: bool = False) -> None:
        self._reflectors.multiply_q(self.stream, v, t, c, adjoint=adjoint, conj=conj)
