"""Base class of the backends with CuPy arrays: each rank has a GPU, or shares one."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from pblas import errors
from pblas.backends.cuda import transfer
from pblas.backends.cuda.arrays import DeviceArrays
from pblas.backends.cuda.device import activate
from pblas.backends.gpu_info import Gpu, version_text
from pblas.backends.host_ranks import HostRanks
from pblas.backends.interop import host_array
from pblas.backends.local_step import LocalStep

if TYPE_CHECKING:
    from pblas.backends.cuda.recorder import DeviceRecorder
    from pblas.backends.dtypes import Array, Dtype, Places

_PACKAGES = ("cupy-cuda13x", "cupy-cuda12x", "nvshmem4py-cu13", "nvshmem4py-cu12", "nvidia-nvshmem-cu13")


class GpuBackend(HostRanks):
    """Ranks with CuPy arrays. The subclass calls `use` after the ranks have chosen their GPUs."""

    arrays: DeviceArrays
    gpu: Gpu
    device: int

    def use(self, gpu: Gpu) -> None:
        """**Collective.** Make a GPU this thread's current one, and create its arrays."""
        self.gpu, self.device = gpu, gpu.index
        with LocalStep(self.agreement.agree, "Context: use the GPU", errors.BackendError):
            activate(gpu)
            self.arrays = DeviceArrays()
        self.agreement.agree("Context: use the GPU")

    def describe(self) -> dict[str, str]:
        gpu = self.gpu
        return super().describe() | {
            "GPU": f"{gpu.name}, number {gpu.index} of the visible ones, {gpu.uuid}",
            "GPU memory": f"{gpu.memory_nbytes} bytes",
            "CUDA": f"runtime {version_text(gpu.runtime)}, driver for {version_text(gpu.driver)}",
            "GPU packages": ", ".join(f"{name} {installed}" for name in _PACKAGES if (installed := _version(name))),
        }

    def recorder(self) -> DeviceRecorder:
        from pblas.backends.cuda.recorder import DeviceRecorder

        return DeviceRecorder(self)

    # Arrays

    def as_array(self, x: object) -> Array:
        try:
            array: Any = x if isinstance(x, cupy.ndarray) else transfer.device_array(x)
        except (TypeError, ValueError) as caught:
            raise errors.ArgumentError(f"CuPy does not read the array: {caught}; pass cupy.from_dlpack(x)") from None
        if array is None:
            return host_array(x)
        if array.size and array.data.device_id != self.device:
            raise errors.ArgumentError(
                f"the array is on GPU {array.data.device_id}, this rank multiplies on GPU {self.device}; make it "
                f"there, under cupy.cuda.Device({self.device}), or choose the GPU with Context(device=...)"
            )
        return array

    def new(self, shape: tuple[int, ...], dtype: Dtype) -> Array:
        nbytes = dtype.itemsize * max(math.prod(shape), 1)
        array: Array = transfer.new_array(shape, dtype, cupy.cuda.alloc(nbytes))
        return array

    def is_here(self, x: object) -> bool:
        return isinstance(x, cupy.ndarray)

    def borrowed(self, x: Array) -> Array:
        array: Any = x
        memory = cupy.cuda.UnownedMemory(array.data.ptr, array.nbytes, None, self.device)
        borrowed: Array = transfer.new_array(x.shape, x.dtype, cupy.cuda.MemoryPointer(memory, 0), x.strides)
        return borrowed

    def reading(self, x: Array) -> Array:
        return transfer.download(x) if self.is_here(x) else x

    def writing(self, x: Array) -> AbstractContextManager[Array]:
        return transfer.uploading(x) if self.is_here(x) else nullcontext(x)

    def copy(self, x: Array, z: Array, *, of: Places | None = None, at: Places | None = None) -> None:
        if not self.is_here(z):
            transfer.copy_to_host(x, z, at)
        elif self.is_here(x):
            transfer.copy(x, z)
        else:
            transfer.copy_from_host(x, z, of)

    def drain(self) -> None:
        cupy.cuda.runtime.deviceSynchronize()

    def fill(self, x: Array, value: complex = 0) -> None:
        if value and x.size:
            with transfer.settled(x):
                self.arrays.fill_whole(x, value)
        else:
            transfer.fill(x, value)

    def conjugated(self, x: Array) -> Array:
        """A copy of conj(X); CuPy has no read-only arrays (local)."""
        return x.conj()

    def address(self, x: Array) -> int:
        data: Any = x.data
        return int(data.ptr)

    def memory_of(self, x: Array) -> Array:
        return np.asarray(transfer.Shadow(x))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
