"""Rows of a matrix on a GPU, normalised by one kernel: "rmsnorm" behind a product."""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any

from pblas import errors
from pblas.backends.cuda.pointwise import FOLDER, OPTIONS, type_name
from pblas.backends.gemm import accumulator_dtype
from pblas.backends.nvshmem.kernels import expanded

if TYPE_CHECKING:
    import numpy as np

_THREADS = 512
_CTAS_PER_SM = 4
_ARGUMENTS = struct.Struct("=14qd")


def source(x: np.dtype[Any], weight: np.dtype[Any]) -> str:
    """CUDA C++ of the kernel.

    Args:
        x: dtype of the matrix, of the result and of the residual.
        weight: dtype of the weight.
    """
    types = f"typedef {type_name(x)} X;\ntypedef {type_name(weight)} W;\n"
    return expanded(FOLDER / "pointwise.cuh") + types + expanded(FOLDER / "rows.cu")


class Rows:
    """Normalises rows on this thread's current GPU; a kernel is compiled when its dtypes are first met."""

    def __init__(self) -> None:
        import cupy
        from cuda.bindings import driver

        self._cupy, self._driver = cupy, driver
        attributes = cupy.cuda.Device().attributes
        self._most_ctas: int = _CTAS_PER_SM * attributes["MultiProcessorCount"]
        self._shared_nbytes: int = attributes["MaxSharedMemoryPerBlockOptin"] - 1024
        self._compiled: dict[Any, tuple[Any, Any]] = {}
        self._memory = ctypes.create_string_buffer(_ARGUMENTS.size)
        self._pointer = ctypes.c_void_p(ctypes.addressof(self._memory))

    def normalise(self, stream: int, x: Any, residual: Any, weight: Any, eps: float, out: Any) -> None:
        """Out := rows of x + residual, normalised, times weight; the sums go to residual. Returns when it is launched.

        Args:
            stream: handle.
            x: CuPy array, m x n, of any strides and real elements.
            residual: likewise, of x's dtype; None to add nothing.
            weight: n elements, of x's dtype or the one in which it is added; None for ones.
            eps: added to the mean of squares.
            out: m x n, of x's dtype; may be x.

        Raises:
            ArgumentError: rows that are longer than a multiprocessor's memory.
            BackendError: the GPU fails.
        """
        (m, n), nbytes = x.shape, x.shape[1] * accumulator_dtype(x.dtype).itemsize
        if nbytes > self._shared_nbytes:
            raise errors.ArgumentError(
                f"rmsnorm: rows of {n} elements are too long for this GPU; use float32, or a CPU"
            )

        def place(z: Any) -> tuple[int, int, int]:
            if z is None:
                return 0, 0, 0
            slow, fast = (0, *(step // z.itemsize for step in z.strides))[-2:]
            return z.data.ptr, fast, slow

        places = (word for z in (out, x, residual, weight) for word in place(z))
        _ARGUMENTS.pack_into(self._memory, 0, m, n, *places, eps)
        function = self._function(x.dtype, x.dtype if weight is None else weight.dtype)
        (status,) = self._driver.cuLaunchKernel(
            *(function, min(m, self._most_ctas), 1, 1, _THREADS, 1, 1, nbytes, stream),
            *(ctypes.addressof(self._pointer), 0),  # the driver copies what it points to before it returns
        )
        if status:
            raise errors.BackendError(f"rows could not be normalised on stream {stream:#x}: {status.name}")

    def _function(self, *dtypes: Any) -> Any:
        """The kernel for the dtypes of x and the weight."""
        if dtypes not in self._compiled:
            module = self._cupy.RawModule(code=source(*dtypes), options=OPTIONS)
            kernel = module.get_function("rows_normalised")
            kernel.max_dynamic_shared_size_bytes = self._shared_nbytes
            self._compiled[dtypes] = self._driver.CUfunction(kernel.kernel.ptr), module
        return self._compiled[dtypes][0]
