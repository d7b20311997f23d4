"""GPU-aware MPI: whether this MPI accesses GPU memory, and messages directly between GPUs.

PBLAS_GPU_AWARE overrides the answer of the MPI library.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from pblas import errors
from pblas.backends.cuda.channel import DeviceChannel
from pblas.backends.cuda.packing import copied
from pblas.backends.cuda.transfer import runs_of
from pblas.backends.mpi.channel import WORDS, Transfer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.cuda.arrays import DeviceArrays
    from pblas.backends.dtypes import Array
    from pblas.backends.mpi.channel import Channel

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
    """Sends and receives pieces of matrices straight from and into the memory of GPUs.

    Args:
        hosts: messages of pieces in the hosts' memory, by an MPI that takes addresses on GPUs (global).
        arrays: of this rank's GPU (local).
    """

    def __init__(self, hosts: Channel, arrays: DeviceArrays) -> None:
        super().__init__(hosts, arrays)
        self._comm = hosts.comm

    def send(self, x: Array, dest: int, tag: int) -> Any:
        """Start to send x (m x n, one stride is one element) to `dest`, after the lane's operations so far (local)."""
        address, keep = self._tight(x)
        return self._deferred(lambda: Transfer(self._comm.Isend(_words(address, x), dest, tag), keep), keep)

    def receive(self, x: Array, source: int, tag: int) -> Any:
        """Start to receive into x (m x n, contiguous) from `source`, after the lane's operations so far (local)."""
        self.received_nbytes += x.nbytes
        target: Any = x
        return self._deferred(lambda: Transfer(self._comm.Irecv(_words(target.data.ptr, x), source, tag), x), x)

    def _tight(self, x: Any) -> tuple[int, Any]:
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
