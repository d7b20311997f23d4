"""The NVSHMEM backend: CuPy arrays in symmetric memory on the GPUs of a node; the hosts agree through MPI."""

from __future__ import annotations

from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np

from pblas import errors
from pblas.backends.blocks import call_site
from pblas.backends.mpi.backend import MpiBackend
from pblas.backends.nvshmem import arrays
from pblas.backends.nvshmem.device import activate, version_text
from pblas.backends.nvshmem.engine import StreamEngine
from pblas.backends.nvshmem.heap import Heap
from pblas.backends.nvshmem.kernels import MAX_RANKS
from pblas.backends.nvshmem.startup import join

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pblas.backends.engine import Engine
    from pblas.backends.gemm import Array

_PACKAGES = ("cupy-cuda13x", "cupy-cuda12x", "nvshmem4py-cu13", "nvshmem4py-cu12", "nvidia-nvshmem-cu13")


class NvshmemBackend(MpiBackend):
    """Ranks of one communicator with a GPU each: agreement of the hosts, symmetric memory on the GPUs.

    Args:
        comm: an mpi4py intracommunicator whose ranks are all here (`arrive`); None for COMM_WORLD (global).
        device: GPU of this rank; None for its number on the node, modulo the visible GPUs (local).
        settings: as of MpiBackend.

    Raises:
        BackendError: GPUs or libraries that do not serve, on any rank.
        WorkspaceError: too little memory on a GPU.
        PeerTimeout: a rank does not arrive.
    """

    name = "nvshmem"
    gpus = True

    def __init__(self, comm: Any, *, device: int | None, **settings: Any) -> None:
        super().__init__(comm, **settings | {"push": True})
        self.shared, self.falls_back = True, False
        self._gpu_engine: StreamEngine | None = None
        try:
            if self.size > MAX_RANKS:  # on every rank
                raise errors.BackendError(f"Context: {self.size} GPUs; kernels talk to {MAX_RANKS} at most")
            self.nvshmem, self.pes = join(self.exchange, device)
            self.gpu = self.nvshmem.device
            self.device = self.gpu.index
            self._activate()
        except errors.PblasError:  # on every rank
            super().close(free=self.exchange.broken is None)
            raise
        self.arena = Heap(self.exchange, self.nvshmem, self.pes)

    def _activate(self) -> None:
        """**Collective.** Make the GPU this thread's current one: NVSHMEM may have been started by another thread."""
        error = None
        try:
            activate(self.gpu)
        except errors.BackendError as caught:
            error = caught
        self.exchange.agree("Context: use the GPU", error)

    def describe(self) -> dict[str, str]:
        """Facts for `pblas info`."""
        gpu = self.gpu
        return super().describe() | {
            "transport": "NVSHMEM within a node: copies into the memory of peers",
            "GPU": f"{gpu.name}, number {gpu.index} of the visible ones, {gpu.uuid}",
            "GPU memory": f"{gpu.memory_nbytes} bytes",
            "CUDA": f"runtime {version_text(gpu.runtime)}, driver for {version_text(gpu.driver)}",
            "NVSHMEM": f"{self.nvshmem.version}, {self.nvshmem.nbytes} bytes of symmetric memory on every GPU",
            "GPU packages": ", ".join(f"{name} {found}" for name in _PACKAGES if (found := _version(name))),
        }

    # Arrays

    def as_array(self, x: Any) -> Array:
        """The array that x is, on this rank's GPU or in host memory; nothing is copied if it is one (local).

        Raises:
            ArgumentError: an array on another GPU, or of a kind that CuPy does not read.
            ValueError: nothing that can be an array.
        """
        if not hasattr(x, "__cuda_array_interface__"):
            return np.asarray(x)
        try:
            found: Any = x if isinstance(x, cupy.ndarray) else cupy.asarray(x)
        except (TypeError, ValueError) as caught:
            raise errors.ArgumentError(f"CuPy does not read the array: {caught}; pass cupy.from_dlpack(x)") from None
        if found.size and found.data.device_id != self.device:
            raise errors.ArgumentError(
                f"the array is on GPU {found.data.device_id}, this rank multiplies on GPU {self.device}; make it "
                f"there, under cupy.cuda.Device({self.device}), or choose the GPU with Context(device=...)"
            )
        return found

    def is_here(self, x: Array) -> bool:
        """Whether an array lies in the memory in which this backend multiplies (local)."""
        return isinstance(x, cupy.ndarray)

    def view(self, memory: Any, shape: tuple[int, int], strides: tuple[int, int], dtype: np.dtype[Any]) -> Array:
        """An array at the start of what `allocate` returned, which it keeps alive (local)."""
        found: Array = self.arena.array(memory, 0, shape, strides, dtype)
        return found

    def reading(self, x: Array) -> Array:
        """The elements of x in host memory: x itself if it lies there (local)."""
        return arrays.download(x) if self.is_here(x) else x

    def writing(self, x: Array) -> AbstractContextManager[Array]:
        """A with block that yields host memory of x's shape; what is written to it is in x afterwards (local)."""
        return arrays.uploading(x) if self.is_here(x) else nullcontext(x)

    def copy(self, x: Array, z: Array) -> None:
        """Z := X, of the same shape and dtype; X may lie in host memory, Z where this backend multiplies (local)."""
        if self.is_here(x):
            arrays.copy(x, z)
        else:
            with self.writing(z) as host:
                host[...] = x

    def clear(self, x: Array) -> None:
        """X := 0, of an array made by `view`, gaps between its columns or rows included (local)."""
        arrays.clear(x)

    def conjugated(self, x: Array) -> Array:
        """A copy of conj(X) that cannot be written, where arrays know that; CuPy's do not (local)."""
        return x.conj()

    def address(self, x: Array) -> int:
        """Where the first element of x lies (local)."""
        data: Any = x.data
        return int(data.ptr)

    def shadow(self, x: Array) -> Array:
        """A NumPy array of the same addresses and strides, to compare places with; not to be read or written (local).

        For np.may_share_memory and np.shares_memory, which see host memory only.
        """
        return np.asarray(arrays.Shadow(x))

    # Executions

    def engine(self) -> Engine:
        """What runs plans. **Collective** at first, when it takes symmetric memory and loads its kernels."""
        if self._gpu_engine is None:
            self._gpu_engine = StreamEngine(self)
        return self._gpu_engine

    def refuse(self, error: errors.PblasError) -> None:
        """Raise an error here; the others' streams stop waiting, and their next call raises (local)."""
        engine = self._gpu_engine
        self.exchange.refuse(error, engine.refuse if engine is not None else lambda: None)

    # Symmetric memory

    def peers(self, block: Any) -> list[int]:
        """Where a block begins on each rank, as this rank's GPU sees it (local)."""
        return [block.address if r == self.rank else self.arena.peer_address(block, r) for r in range(self.size)]

    def is_near(self, peer: int) -> bool:
        """Whether this rank's GPU writes the memory of the GPU of `peer`."""
        return peer in self._near and peer != self.rank

    def allocate(self, nbytes: int) -> Any:
        """**Collective.** Symmetric memory on the GPUs."""
        return self.arena.allocate(nbytes, call_site)

    def sync(self) -> None:
        """Nothing: what a rank writes into a peer's memory is ordered by flags on the GPU (local)."""

    # The end

    def settle(self, timeout: float | None = None) -> None:
        """Return when this rank's GPU has finished all executions, or raise PeerTimeout (local).

        Peers write into this rank's memory during an execution only, so that it may be freed once all ranks are here.
        """
        engine = self._gpu_engine
        if engine is not None:
            self.exchange.wait(engine.is_idle, "end of the last execution on the GPU", timeout)
            self.check()

    def check(self) -> None:
        """Raise what has become of earlier executions, if any of them failed (local)."""
        if self._gpu_engine is not None and self._gpu_engine.has_fault():
            self._gpu_engine.raise_fault()

    def leaks(self) -> list[str]:
        """Allocation sites of the symmetric memory that Python still uses on this rank."""
        if self._gpu_engine is not None:
            self._gpu_engine.close()
            self._gpu_engine = None
        return super().leaks() if self.exchange.broken is None else []  # what a late peer writes to, stays


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
