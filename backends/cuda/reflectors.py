"""QR of local blocks on a GPU: panels by one kernel, other matrices by cuSOLVER, and the triangles T of blocks.

See `pblas.backends.cpu.lapack.geqrt`. cuSOLVER's geqrf takes 9 us for each column of a panel of 8192 rows, since it
launches several kernels for it (H200, float64); the kernel's CTAs wait for each other instead.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import runtime

from pblas.backends.cuda.dtype_kernels import THREADS, DtypeKernels
from pblas.backends.cuda.lapack import MOST_INVERTED, place

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.cuda.lapack import Lapack

_WIDTH, _PAD, _STAGE = 32, 33, 32
"""Of the kernel of panels, as in reflectors.cu."""
_LINE = 16
"""Bytes of a line: 8 of data, with two flags."""
_ROWS = 256
"""Rows of a CTA, where there are CTAs enough."""
MOST_CTAS = 64
"""CTAs of a panel, if they can hold its rows: the update beside it keeps the other multiprocessors."""


class Reflectors:
    """Householder reflectors on the current device.

    Args:
        lapack: cuSOLVER, with memory for each stream (local).
        gemm: Z := alpha X Y + beta Z on the stream of a call, as of `DeviceArrays` (local).
    """

    def __init__(self, lapack: Lapack, gemm: Callable[..., None]) -> None:
        self._lapack, self._gemm = lapack, gemm
        self._kernels = DtypeKernels("reflectors")

    @cached_property
    def _limits(self) -> tuple[int, int]:
        """Multiprocessors, and bytes of shared memory that a CTA can have."""
        attributes = cupy.cuda.Device().attributes
        return attributes["MultiProcessorCount"], attributes["MaxSharedMemoryPerBlockOptin"]

    def geqrt(self, stream: int, x: Any, t: Any) -> None:
        """X := R and V with X = Q R and Q = H_1 H_2 ..., H_b = I - V_b T_b V_b^H for each block b of nb columns."""
        nb, k = t.shape
        if not k:
            return
        tau = self._array(stream, "tau", (k, 1), x.dtype)
        ctas, height = self._shape(x) if k <= nb else (0, 0)
        if ctas:
            self._factor(stream, x, tau, ctas, height)
            self._close(stream, self._array(stream, "triangle", (k, k), x.dtype), tau, t)
            return
        self._lapack.geqrf(stream, x, tau)
        for start in range(0, k, nb):
            stop = min(start + nb, k)
            self.larft(stream, x[start:, start:stop], tau[start:stop], t[:, start:stop])

    def larft(self, stream: int, x: Any, tau: Any, t: Any) -> None:
        """T := the triangle with H_1 H_2 ... H_k = I - V T V^H, 0 below its diagonal."""
        k = len(tau)
        v = self.unit_lower(stream, x)
        gram = self._array(stream, "triangle", (k, k), x.dtype)
        self._gemm(1, v.T, v, 0, gram, conj=(True, False))
        self._kernels.launch(stream, "scale_columns", x.dtype.char, k, (*place(gram), np.int32(k), _address(tau)))
        self._close(stream, gram, tau, t)

    def multiply_q(self, stream: int, v: Any, t: Any, c: Any, *, adjoint: bool, conj: bool) -> None:
        """C := H C for a block of reflectors, H = I - V T V^H, or with H^H or a conjugate.

        V is copied with its ones and zeros, which is sooner than products of its two parts.

        Source: Schreiber and Van Loan, A storage-efficient WY representation for products of Householder
            transformations, 1989; LAPACK, xLARFB.
        """
        k, n = v.shape[1], c.shape[1]
        v = self.unit_lower(stream, v)
        both = self._array(stream, "products", (k, 2 * n), c.dtype)
        w, tw = both[:, :n], both[:, n:]
        self._gemm(1, v.T, c, 0, w, conj=(not conj, False))
        self._gemm(1, t.T if adjoint else t, w, 0, tw, conj=(adjoint != conj, False))
        self._gemm(-1, v, tw, 1, c, conj=(conj, False))

    def unit_lower(self, stream: int, x: Any) -> Any:
        """A copy of X with ones on its diagonal and zeros above it, until the next call for the stream."""
        y = self._array(stream, "unit lower", x.shape, x.dtype)
        if x.size:
            arguments = *place(x), np.int32(len(x)), *place(y)
            self._kernels.launch(stream, "unit_lower", x.dtype.char, x.shape[1], arguments)
        return y

    def _shape(self, x: Any) -> tuple[int, int]:
        """CTAs of a panel, and rows of their tiles; (0, 0) for a panel that they cannot hold."""
        (m, n), (processors, nbytes) = x.shape, self._limits
        fixed = _WIDTH * (2 * _PAD + _WIDTH) + THREADS
        most = ((nbytes // x.itemsize - fixed) // _WIDTH - 1) // _STAGE * _STAGE
        ctas = max(1, min(-(-m // _ROWS), MOST_CTAS, processors))
        ctas = max(ctas, -(-m // most))
        height = -(-max(_WIDTH, -(-m // ctas)) // _STAGE) * _STAGE
        return (ctas, height) if ctas <= processors and min(m, n) <= MOST_INVERTED else (0, 0)

    def _factor(self, stream: int, x: Any, tau: Any, ctas: int, height: int) -> None:
        """X := R and V, tau, and the triangle L of `_close`, by one kernel."""
        (m, n), dtype = x.shape, x.dtype
        triangle = self._array(stream, "triangle", (len(tau), len(tau)), dtype)
        exchange = self._array(stream, "exchange", (_WIDTH * ((n + 1) * ctas + n), 1), dtype)
        lines = -(-dtype.itemsize // 8) * 2 * _WIDTH * (ctas + 1)
        flags = self._array(stream, "flags", (_LINE * (lines + 1), 1), np.dtype(np.uint8))  # the counter comes last
        runtime.memsetAsync(flags.data.ptr, 0, flags.nbytes, stream)
        ldv = height + 1  # an odd number, so that columns begin in different banks
        arguments = (
            *(*place(x), np.int32(m), np.int32(n), np.int32(ldv)),
            *(_address(tau), *place(triangle), _address(exchange), _address(flags), _address(flags[_LINE * lines :])),
        )
        shared = dtype.itemsize * (_WIDTH * (ldv + 2 * _PAD + _WIDTH) + THREADS)
        self._kernels.launch(stream, "factor_panel", dtype.char, ctas, arguments, shared_nbytes=shared)

    def _close(self, stream: int, triangle: Any, tau: Any, t: Any) -> None:
        """T := diag(tau) L^-H, for L = I + the lower triangle of V^H V diag(conj(tau)) below its diagonal.

        Source: Puglisi, Modification of the Householder method based on the compact WY representation, 1992.
        """
        inverse = self._lapack.inverse(stream, triangle, unit=True)
        k = len(tau)
        arguments = *place(inverse), np.int32(k), _address(tau), *place(t)
        self._kernels.launch(stream, "close_triangle", t.dtype.char, k, arguments)

    def _array(self, stream: int, use: str, shape: tuple[int, int], dtype: np.dtype[Any]) -> Any:
        """Memory of a stream for one use, as an array in Fortran order."""
        memory = self._lapack.memory(stream, use, shape[0] * shape[1] * dtype.itemsize)
        return cupy.ndarray(shape, dtype, memory.data, order="F")


def _address(x: Any) -> np.int64:
    """Address of an array, as kernels take it."""
    return np.int64(x.data.ptr)
