"""Messages of matrix pieces between two ranks, directly from and to strided memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from pblas.backends.dtypes import Array, address_of

WORDS = {1: MPI.BYTE, 2: MPI.UINT16_T, 4: MPI.UINT32_T, 8: MPI.UINT64_T, 16: MPI.C_DOUBLE_COMPLEX}

_MAX_TYPES = 256  # datatypes of strided pieces kept at most: an execution needs few, a program may need any number
_ABANDONED: list[Any] = []  # abandoned messages, with their memory: a late rank may still write or read it


class Transfer:
    """A message under way; `done()` also lets MPI progress."""

    __slots__ = ("_keep", "request")

    def __init__(self, request: MPI.Request, keep: object = None) -> None:
        self.request: MPI.Request = request
        self._keep = keep

    def done(self) -> bool:
        return self.request.Test()

    def __del__(self) -> None:
        if self.request != MPI.REQUEST_NULL:  # after an error; otherwise the message is complete
            _ABANDONED.append((self.request, self._keep))


class Channel:
    """Sends and receives pieces of matrices on one communicator.

    A strided piece is sent as a derived datatype, which on shared memory costs a third of packing it first. The channel
    keeps the datatypes of recent shapes.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.received_nbytes: int = 0
        self._types: dict[tuple[int, ...], MPI.Datatype] = {}
        self._signal = bytearray(1)

    def send(self, x: Array, dest: int, tag: int) -> Transfer:
        return Transfer(self.comm.Isend(self._buffer(x), dest, tag), x)

    def receive(self, x: Array, source: int, tag: int) -> Transfer:
        self.received_nbytes += x.nbytes
        return Transfer(self.comm.Irecv(self._buffer(x), source, tag), x)

    def signal(self, dest: int, tag: int) -> Transfer:
        return Transfer(self.comm.Isend([self._signal, 0, MPI.BYTE], dest, tag))

    def await_signal(self, source: int, tag: int) -> Transfer:
        return Transfer(self.comm.Irecv([self._signal, 0, MPI.BYTE], source, tag))

    def all_to_all(self, x: Array, counts: Sequence[int], out: Array, out_counts: Sequence[int]) -> Transfer:
        word = WORDS[x.itemsize]
        request = self.comm.Ialltoallv([x, counts, None, word], [out, out_counts, None, word])
        return Transfer(request, (x, out))

    def all_gather(self, x: Array, out: Array, counts: Sequence[int]) -> Transfer:
        word = WORDS[x.itemsize]
        return Transfer(self.comm.Iallgatherv([x, x.size, word], [out, counts, None, word]), (x, out))

    def _buffer(self, x: Array) -> list[Any]:
        if x.strides[0] != x.itemsize and x.shape[0] > 1:
            x = x.T
        (rows, columns), itemsize = x.shape, x.itemsize
        stride = x.strides[1] if columns > 1 else rows * itemsize
        word = WORDS[itemsize]
        memory = MPI.buffer.fromaddress(address_of(x), stride * (columns - 1) + rows * itemsize if x.size else 0)
        if stride == rows * itemsize:
            return [memory, x.size, word]
        key = (rows, columns, stride, itemsize)
        if key not in self._types:
            if len(self._types) >= _MAX_TYPES:
                self.close()  # MPI keeps freed datatypes for messages under way
            self._types[key] = word.Create_hvector(columns, rows, stride).Commit()
        return [memory, 1, self._types[key]]

    def progress(self) -> None:
        pass

    def close(self) -> None:
        """Free the datatypes."""
        for datatype in self._types.values():
            datatype.Free()
        self._types = {}
