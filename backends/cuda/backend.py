"""The backend of GPUs without NVSHMEM: CuPy arrays, and messages between them by MPI.

If the MPI takes addresses on GPUs, messages go directly between GPUs, else through pinned memory of the hosts. Ranks do
not read peers' memory in place, so they may be on any nodes, and several ranks may share a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy

from pblas import errors
from pblas.backends.allocator import NoBlocks
from pblas.backends.cuda import device as gpu
from pblas.backends.cuda import transfer
from pblas.backends.cuda.aware import AwareChannel, is_gpu_aware, transfer_path
from pblas.backends.cuda.base import GpuBackend
from pblas.backends.cuda.channel import DeviceChannel
from pblas.backends.local_step import LocalStep

if TYPE_CHECKING:
    import numpy as np

    from pblas.backends.dtypes import Array
    from pblas.backends.gpu_info import Gpu
    from pblas.backends.transport import Transport


class CudaBackend(GpuBackend):
    """Ranks of one communicator with a GPU each, or a part of one, that send each other messages.

    Args:
        peers: the ranks of a communicator; all of them call this (global).
        device: GPU of this rank; None for its number on the node, modulo the visible GPUs (local).
        timeout: seconds that a rank waits for another (global).
        threads: BLAS threads of this rank; None for its share of the cores (local).

    Raises:
        BackendError: unsuitable GPUs or libraries, on any rank.
    """

    name = "cuda"

    def __init__(self, peers: Transport, *, device: int | None, timeout: float, threads: int | None) -> None:
        super().__init__(peers, timeout=timeout, threads=threads, near=lambda peers: (peers.rank,))
        self.arena = NoBlocks()
        try:
            self.use(self._choose(device))
        except errors.PblasError:  # on every rank
            self.close(free=self.agreement.broken is None)
            raise
        channel: Any = self.plain_channel
        self.channel = (AwareChannel if self._aware else DeviceChannel)(channel, self.arrays)

    def _choose(self, device: int | None) -> Gpu:
        """**Collective.** Choose this rank's GPU, and whether MPI reads GPU memory or messages are staged."""
        with LocalStep(self.agreement.agree, "Context: choose GPUs", errors.BackendError):
            aware, self._asked = is_gpu_aware()
            chosen = gpu.choose_device(self.peers.local_rank, device, messages=True)
        self._aware = not self.agreement.agree("Context: choose GPUs", maxima=(int(not aware),)).maxima[0]
        return chosen

    def versions(self) -> tuple[str, ...]:
        """Names of hardware and libraries on which the times of plans depend (local)."""
        return self.gpu.name, f"driver{self.gpu.driver}", f"cupy{cupy.__version__}"

    def describe(self) -> dict[str, str]:
        """Facts for `pblas info`."""
        description = super().describe() | {"transport": f"messages, {transfer_path(self._aware, self._asked)}"}
        del description["ranks on this node"]  # irrelevant: ranks read nothing in place
        return description

    # Memory

    def is_near(self, peer: int) -> bool:
        """False: ranks read nothing in place."""
        return False

    def allocate(self, nbytes: int) -> Any:
        """**Collective.** Memory of this rank's GPU."""
        with LocalStep(self.agreement.agree, "allocate"):
            try:
                memory = cupy.cuda.alloc(max(nbytes, 1))
            except cupy.cuda.memory.OutOfMemoryError as caught:
                raise errors.WorkspaceError(f"GPU {self.device}: {nbytes} bytes: {caught}") from None
        self.agreement.agree(f"allocate\n{nbytes=}")
        return memory

    def view(self, memory: Any, shape: tuple[int, int], strides: tuple[int, int], dtype: np.dtype[Any]) -> Array:
        """An array at the start of memory from `allocate`, which it keeps alive (local)."""
        array: Any = transfer.new_array(shape, dtype, memory, strides)
        return array

    def allocate_scratch(self, nbytes: int, *, window: bool = True) -> Any:
        """Memory of one plan, which other ranks do not reach (local)."""
        return self.arrays.empty(nbytes)

    def peer_block(
        self, block: Any, peer: int, offset: int, shape: tuple[int, int], dtype: np.dtype[Any], order: Any
    ) -> Array:
        """A tight array `offset` bytes into this rank's scratch memory (local)."""
        assert peer == self.rank, "nothing is read in place"
        array: Any = transfer.new_array(shape, dtype, block.data + offset, order=order)
        return array
