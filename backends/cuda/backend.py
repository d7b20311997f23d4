"""The backend of GPUs without NVSHMEM: CuPy arrays, and messages between them by MPI.

If the MPI takes addresses on GPUs, messages go directly between GPUs, else through pinned memory of the hosts. Ranks do
not read peers' memory in place, so they may be on any nodes, and several ranks may share a GPU.

PBLAS_GPU_AWARE overrides the answer of the MPI library whether it accesses GPU memory.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

import cupy
from mpi4py import MPI

from pblas import errors
from pblas.backends.allocator import NoBlocks
from pblas.backends.cuda import device as gpu
from pblas.backends.cuda import transfer
from pblas.backends.cuda.base import GpuBackend
from pblas.backends.cuda.channel import DeviceChannel, DeviceTransfer
from pblas.backends.cuda.strided_copy import copied
from pblas.backends.cuda.transfer import runs_of
from pblas.backends.local_step import LocalStep
from pblas.backends.mpi.channel import WORDS, Channel, Transfer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.cuda.arrays import DeviceArrays
    from pblas.backends.dtypes import Array, Dtype, GpuArray, Order
    from pblas.backends.gpu_info import Gpu
    from pblas.backends.transport import Transport


VARIABLE = "PBLAS_GPU_AWARE"
_CUDA = 0  # MPIX_GPU_SUPPORT_CUDA


def is_gpu_aware() -> tuple[bool, str]:
    """Whether this rank's MPI takes addresses on GPUs, and the source of this answer (local).

    Source: Open MPI, MPIX_Query_cuda_support(3); MPICH, MPIX_GPU_query_support(3).
    """
    text = os.environ.get(VARIABLE)
    if text is not None:
        if text not in ("0", "1"):
            raise errors.BackendError(f"{VARIABLE} must be 0 or 1, got {text!r}")
        return text == "1", f"{VARIABLE}={text}"
    for name, ask in (("MPIX_GPU_query_support", _ask_mpich), ("MPIX_Query_cuda_support", _ask_open_mpi)):
        function = _function(name)
        if function is not None:
            return ask(function), f"{name} of this MPI says so"
    return False, "this MPI cannot be asked"


def transfer_path(aware: bool, asked: str) -> str:
    """How messages travel between GPUs, in words.

    >>> transfer_path(False, "this MPI cannot be asked")
    'staged through pinned memory of the host (this MPI cannot be asked)'
    """
    return f"{'straight from GPU memory' if aware else 'staged through pinned memory of the host'} ({asked})"


def _ask_mpich(function: Callable[..., int]) -> bool:
    supported = ctypes.c_int(0)
    return function(_CUDA, ctypes.byref(supported)) == MPI.SUCCESS and bool(supported.value)


def _ask_open_mpi(function: Callable[..., int]) -> bool:
    return function() == 1


def _function(name: str) -> Any:
    """A function of the loaded MPI library that mpi4py does not wrap."""
    for library in (None, MPI.__file__):  # global symbols of the process, then libraries of mpi4py
        try:
            function = getattr(ctypes.CDLL(library), name)
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_int
        return function
    return None


class AwareChannel(DeviceChannel):
    """Sends and receives pieces of matrices straight from and into the memory of GPUs."""

    def __init__(self, hosts: Channel, arrays: DeviceArrays) -> None:
        super().__init__(hosts, arrays)
        self._comm = hosts.comm

    def send(self, x: Array, dest: int, tag: int) -> DeviceTransfer:
        address, keep = self._tight(x)
        return self._deferred(lambda: Transfer(self._comm.Isend(_words(address, x), dest, tag), keep), keep)

    def receive(self, x: Array, source: int, tag: int) -> DeviceTransfer:
        self.received_nbytes += x.nbytes
        target: Any = x
        return self._deferred(lambda: Transfer(self._comm.Irecv(_words(target.data.ptr, x), source, tag), x), x)

    def _tight(self, x: GpuArray) -> tuple[int, Any]:
        """Address of x or of a contiguous copy, and the array that keeps it alive."""
        where = runs_of(x)
        assert where is not None, "pieces are strided runs"
        order, run, _, pitch = where
        if pitch == run:
            return x.data.ptr, x
        tight: Any = self._arrays.array(self._arrays.empty(x.nbytes), x.shape, x.dtype, order)
        is_copied = copied(self._arrays.stream, x, tight)
        assert is_copied, "it has the same order"
        return tight.data.ptr, tight


def _words(address: int, x: Array) -> list[Any]:
    """Memory of as many bytes as x has, as mpi4py takes it; counts of words stay below 2^31 for longer."""
    return [MPI.buffer.fromaddress(address, x.nbytes), x.size, WORDS[x.itemsize]]


class CudaBackend(GpuBackend):
    """Ranks of one communicator with a GPU each, or a part of one, that send each other messages."""

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
        return self.gpu.name, f"driver{self.gpu.driver}", f"cupy{cupy.__version__}"

    def describe(self) -> dict[str, str]:
        description = super().describe() | {"transport": f"messages, {transfer_path(self._aware, self._asked)}"}
        del description["ranks on this node"]  # irrelevant: ranks read nothing in place
        return description

    # Memory

    def is_near(self, peer: int) -> bool:
        """False: ranks read nothing in place."""
        return False

    def allocate(self, nbytes: int) -> Any:
        with LocalStep(self.agreement.agree, "allocate"):
            try:
                memory = cupy.cuda.alloc(max(nbytes, 1))
            except cupy.cuda.memory.OutOfMemoryError as caught:
                raise errors.WorkspaceError(f"GPU {self.device}: {nbytes} bytes: {caught}") from None
        self.agreement.agree(f"allocate\n{nbytes=}")
        return memory

    def view(self, memory: object, shape: tuple[int, int], strides: tuple[int, int], dtype: Dtype) -> Array:
        array: Any = transfer.new_array(shape, dtype, memory, strides)
        return array

    def allocate_scratch(self, nbytes: int, *, window: bool = True) -> Any:
        """Memory of one plan, which other ranks do not reach (local)."""
        return self.arrays.empty(nbytes)

    def peer_block(
        self, block: Any, peer: int, offset: int, shape: tuple[int, int], dtype: Dtype, order: Order
    ) -> Array:
        assert peer == self.rank, "nothing is read in place"
        array: Any = transfer.new_array(shape, dtype, block.data + offset, order=order)
        return array
