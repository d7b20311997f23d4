"""Factorizations of local blocks on a GPU, by cuSOLVER's routines of 64 bits; see `pblas.backends.cpu.lapack`.

All work is launched on a stream, and the host waits for nothing: INFO and pivots stay in the GPU's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from nvmath import CudaDataType
from nvmath.bindings import cusolverDn

from pblas.backends.cuda.dtype_kernels import DtypeKernels
from pblas.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

_KINDS = {
    "f": CudaDataType.CUDA_R_32F,
    "d": CudaDataType.CUDA_R_64F,
    "F": CudaDataType.CUDA_C_32F,
    "D": CudaDataType.CUDA_C_64F,
}
"""cuSOLVER's data types, by NumPy's letters of dtypes."""
_LOWER = 0  # cublasFillMode_t
_INVERTING = 128, 4
"""Threads that invert a triangle, and columns that they invert: `COLUMNS` of invert.cu."""
MOST_INVERTED = 512
"""Order of a triangle that is inverted at most: `WARP` * `PIECES` of invert.cu."""
INVERTED = 128
"""Order of the inverted blocks of any triangle; those of a factor may be larger, since they are well conditioned.
Source: MAGMA, magmablas_dtrsm, inverts blocks of 128."""
_MOST_EXCHANGES = 512
"""Exchanges of one list: its 4 integers each, and the elements of twice as many rows, are in shared memory."""


class Lapack:
    """cuSOLVER on the current device, for one thread, with a workspace for each stream that it is used on.

    Args:
        empty: returns bytes of GPU memory that are not reused before the streams are idle (local).
        keep: keeps memory that is replaced by larger one until the streams are idle (local).

    Raises:
        BackendError: cuSOLVER does not start.
    """

    def __init__(self, empty: Callable[[int], Any], keep: Callable[[Any], None]) -> None:
        self._empty, self._keep = empty, keep
        try:
            self._handle, self._params = cusolverDn.create(), cusolverDn.create_params()
        except Exception as error:
            raise BackendError(
                f"cuSOLVER does not start: {error}. The extra for this CUDA brings it: pip install 'pblas[cuda13]'."
            ) from error
        self._kernels, self._inversion = DtypeKernels("lapack"), DtypeKernels("invert")
        self._memory: dict[tuple[int, str], Any] = {}
        self._hosts: list[Any] = [np.empty(0, np.uint8)]
        self._sizes: dict[Any, tuple[int, int]] = {}

    def close(self) -> None:
        """Free cuSOLVER's handle; nothing runs any more."""
        cusolverDn.destroy_params(self._params)
        cusolverDn.destroy(self._handle)
        self._memory.clear()

    def potrf(self, stream: int, x: Any, info: Any) -> None:
        """X := L with X = L L^H, for the lower triangle of a Hermitian X; 0 above the diagonal."""
        n, ld = x.shape[0], lda(x)
        if not n:
            return
        self.lower(stream, x)
        matrix = _LOWER, n, _KINDS[x.dtype.char], x.data.ptr, ld, _KINDS[x.dtype.char]
        buffers = self._buffers(stream, cusolverDn.xpotrf_buffer_size, matrix)
        cusolverDn.xpotrf(self._handle, self._params, *matrix, *buffers, info.data.ptr)
        found = *place(x), np.int32(n), np.int64(info.data.ptr)
        self._kernels.launch(stream, "find_nan", x.dtype.char, 1, found)

    def lower(self, stream: int, x: Any) -> None:
        """X := its lower triangle, with 0 above the diagonal and real elements on it."""
        if x.size:
            self._kernels.launch(stream, "lower", x.dtype.char, x.shape[1], place(x))

    def inverse(self, stream: int, t: Any, *, unit: bool) -> Any:
        """T^-1 of a lower triangle of at most MOST_INVERTED rows; see `inverses`."""
        return self.inverses(stream, t, unit=unit, order=MOST_INVERTED)

    def inverses(self, stream: int, t: Any, *, unit: bool, order: int) -> Any:
        """Inverses of the blocks on the diagonal of a lower triangle, side by side, until the next call for the stream.

        All of them are computed at once.
        """
        n = t.shape[0]
        rows = min(n, order)
        x = cupy.ndarray((rows, n), t.dtype, self.memory(stream, "inverse", rows * n * t.itemsize).data, order="F")
        threads, columns = _INVERTING
        strides = (np.int64(stride // t.itemsize) for stride in t.strides)
        self._inversion.launch(
            *(stream, "invert", t.dtype.char, -(-n // columns)),
            (np.int64(t.data.ptr), *strides, *place(x), np.int32(n), np.int32(order), np.int32(unit)),
            threads=threads,
        )
        return x

    def getrf(self, stream: int, x: Any, pivots: Any, info: Any) -> None:
        """X := L and U with P X = L U by partial pivoting; the diagonal of L is 1 and not stored."""
        if not x.size:
            return
        kind = _KINDS[x.dtype.char]
        matrix = *x.shape, kind, x.data.ptr, lda(x)
        buffers = self._buffers(stream, cusolverDn.xgetrf_buffer_size, (*matrix, kind))
        cusolverDn.xgetrf(self._handle, self._params, *matrix, pivots.data.ptr, kind, *buffers, info.data.ptr)

    def geqrf(self, stream: int, x: Any, tau: Any) -> None:
        """X := R and V with X = Q R and Q = H_1 H_2 ..., H_j = I - tau_j v_j v_j^H; the ones of V are not stored."""
        kind, info = _KINDS[x.dtype.char], self.memory(stream, "info", 8)
        matrix = *x.shape, kind, x.data.ptr, lda(x), kind, tau.data.ptr, kind
        buffers = self._buffers(stream, cusolverDn.xgeqrf_buffer_size, matrix)
        cusolverDn.xgeqrf(self._handle, self._params, *matrix, *buffers, info.data.ptr)

    def swap_rows(self, stream: int, x: Any, pivots: Any, start: int = 0, *, backward: bool = False) -> None:
        """Exchange row i of X with row pivots[i], one after the other for i from `start` on."""
        if not x.size:
            return
        starts, ld = range(start, len(pivots), _MOST_EXCHANGES), lda(x)
        lists = self.memory(stream, "lists", 4 * _MOST_EXCHANGES * 4).view(np.int32)
        for first in reversed(starts) if backward else starts:
            count = min(_MOST_EXCHANGES, len(pivots) - first)
            to, origin = lists[: 2 * count], lists[2 * _MOST_EXCHANGES :][: 2 * count]
            part = pivots[first : first + count]
            places = np.int64(to.data.ptr), np.int64(origin.data.ptr)
            exchanges = np.int64(part.data.ptr), np.int64(first), np.int32(count), np.int32(backward)
            letter = x.dtype.char
            listed = exchanges + places
            self._kernels.launch(stream, "list_exchanges", letter, 1, listed, shared_nbytes=4 * 4 * count)
            rows = np.int64(x[first:].data.ptr), np.int64(ld), *places, np.int32(2 * count)
            nbytes = 2 * count * x.itemsize
            self._kernels.launch(stream, "move_rows", letter, x.shape[1], rows, shared_nbytes=nbytes)

    def _buffers(self, stream: int, ask: Callable[..., Any], matrix: tuple[Any, ...]) -> tuple[int, int, int, int]:
        """cuSOLVER's workspace on the GPU and on the host, addresses and bytes, for a routine on a stream."""
        cusolverDn.set_stream(self._handle, stream)
        key = ask.__name__, matrix[:3], matrix[4]
        sizes = self._sizes.get(key)
        if sizes is None:
            sizes = self._sizes[key] = ask(self._handle, self._params, *matrix)
        on_device, on_host = map(int, sizes)
        if self._hosts[-1].nbytes < on_host:  # cuSOLVER may still read the smaller ones
            self._hosts.append(np.empty(on_host, np.uint8))
        memory = self.memory(stream, "workspace", on_device)
        return int(memory.data.ptr), on_device, int(self._hosts[-1].ctypes.data), on_host

    def memory(self, stream: int, use: str, nbytes: int) -> Any:
        """Memory for one use on one stream, whose work is in order."""
        memory = self._memory.get((stream, use))
        if memory is None or memory.nbytes < nbytes:
            if memory is not None:
                self._keep(memory)
            memory = self._memory[stream, use] = self._empty(nbytes)
        return memory


def place(x: Any) -> tuple[np.int64, np.int64]:
    """Address and leading dimension of an array, as kernels take them."""
    return np.int64(x.data.ptr), np.int64(lda(x))


def lda(x: Any) -> int:
    """Leading dimension of an array in Fortran order, which may have one column."""
    m, n = x.shape
    assert m <= 1 or x.strides[0] == x.itemsize, "in Fortran order"
    return int(x.strides[1]) // int(x.itemsize) if n > 1 else max(m, 1)
