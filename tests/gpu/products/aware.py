"""A stand-in for an MPI that accesses GPU memory, on any MPI: messages go through the hosts' memory inside of it."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

DEVICE = 2  # cudaMemoryTypeDevice


class AwareComm:
    """The calls that `AwareChannel` makes, with addresses on a GPU and a communicator that takes none.

    Args:
        comm: sends and receives copies in the hosts' memory (global).
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.nmessages = 0

    def Isend(self, words: list[Any], dest: int, tag: int) -> Any:
        """Copy the elements to the host, and start to send the copy."""
        memory, count, datatype = words
        self.nmessages += 1
        host = _host(memory)
        runtime.memcpy(host.ctypes.data, memory.address, memory.nbytes, runtime.memcpyDeviceToHost)
        return Request(self._comm.Isend([host, count, datatype], dest, tag), host)

    def Irecv(self, words: list[Any], source: int, tag: int) -> Any:
        """Start to receive into memory of the host, which is copied to the GPU at the end."""
        memory, count, datatype = words
        self.nmessages += 1
        host = _host(memory)
        return Request(self._comm.Irecv([host, count, datatype], source, tag), host, memory)


class Request:
    """A message under way, as mpi4py has it; a received one is on the GPU when `Test` has said that it is complete."""

    def __init__(self, request: Any, host: Any, target: Any = None) -> None:
        self._request, self._host, self._target = request, host, target

    def Test(self) -> bool:
        """Whether the message is complete."""
        if not self._request.Test():
            return False
        if self._target is not None:
            memory, self._target = self._target, None
            runtime.memcpy(memory.address, self._host.ctypes.data, memory.nbytes, runtime.memcpyHostToDevice)
            runtime.streamSynchronize(0)  # from pageable memory the call returns before the copy has ended
        return True

    def __eq__(self, other: object) -> bool:
        """Whether it is MPI.REQUEST_NULL, as complete requests are."""
        return bool(self._request == other)

    __hash__ = None  # type: ignore[assignment]


def _host(memory: Any) -> Any:
    """Memory of the host for as many bytes, which are on this rank's GPU."""
    if memory.nbytes:
        attributes = runtime.pointerGetAttributes(memory.address)
        assert (attributes.type, attributes.device) == (DEVICE, cupy.cuda.Device().id), "no address on this rank's GPU"
    return np.empty(memory.nbytes, np.uint8)
