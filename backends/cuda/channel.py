"""Messages of matrix pieces between GPUs: straight from GPU memory where the MPI reads it, else by way of the host's.

What a message needs is asked of the GPU at once, and the message itself leaves when the GPU has come so far: `done` of
any transfer looks after all of them. Several are so under way while GEMMs run.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import cupy
from cupy.cuda import runtime
from mpi4py import MPI

from pblas.backends.cuda.arrays import is_done
from pblas.backends.cuda.patch import copied
from pblas.backends.cuda.transfer import runs_of
from pblas.backends.mpi.channel import WORDS, Channel, Transfer

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.cuda.arrays import DeviceArrays
    from pblas.backends.gemm import Array

_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2


class DeviceTransfer:
    """A message on its way; `done()` also lets the channel and MPI progress.

    Args:
        channel: of the message (local).
        keep: memory that it needs (local).
        arrive: called once when it has arrived (local).
    """

    __slots__ = ("_arrive", "_channel", "_keep", "started")

    def __init__(self, channel: DeviceChannel, keep: Any, arrive: Callable[[], None] | None = None) -> None:
        self._channel, self._keep, self._arrive = channel, keep, arrive
        self.started: Transfer | None = None
        """The message itself, once it has been given to MPI."""

    def done(self) -> bool:
        """Whether the message arrived, or its memory may be used again by what the GPU is asked for from now on."""
        self._channel.progress()
        if self.started is None or not self.started.done():
            return False
        if self._arrive is not None:
            self._arrive()
            self._arrive = None
        return True

    def start(self, request: MPI.Request) -> None:
        """It has been given to MPI."""
        self.started = Transfer(request, self._keep)


class DeviceChannel(Channel):
    """Sends and receives pieces of matrices that lie on GPUs.

    Args:
        comm: communicator of the context (global).
        arrays: of this rank's GPU (local).
        aware: whether MPI reads and writes the memory of GPUs (global).
    """

    def __init__(self, comm: MPI.Intracomm, arrays: DeviceArrays, *, aware: bool) -> None:
        super().__init__(comm)
        self._arrays, self._aware = arrays, aware
        self._waiting: deque[tuple[Any, Callable[[], None]]] = deque()  # a mark, and what to do behind it
        self._landing: list[tuple[Any, Any]] = []  # a mark, and memory of the host that is used before it

    def send(self, x: Array, dest: int, tag: int) -> Any:
        """Start to send x (m x n, one stride is one element) to `dest`, after what the lane has been given (local)."""
        address, keep = self._tight(x) if self._aware else self._download(x)
        return self._behind(lambda: self.comm.Isend(_words(address, x), dest, tag), keep)

    def receive(self, x: Array, source: int, tag: int) -> Any:
        """Start to receive into x (m x n, contiguous) from `source` (local).

        What the side lane is given when the transfer is done, finds it there.
        """
        self.received_nbytes += x.nbytes
        if self._aware:  # not before what reads there has ended
            return self._behind(lambda: self.comm.Irecv(_words(x.data.ptr, x), source, tag), x)  # type: ignore[attr-defined]  # CuPy's
        host = cupy.cuda.alloc_pinned_memory(x.nbytes)
        transfer = DeviceTransfer(self, (host, x), lambda: self._upload(host, x))
        transfer.start(self.comm.Irecv(_words(host.ptr, x), source, tag))
        return transfer

    def signal(self, dest: int, tag: int) -> Any:
        """Send an empty message when the GPU has done what the lane has been given (local)."""
        return self._behind(lambda: self.comm.Isend([self._signal, 0, MPI.BYTE], dest, tag), None)

    def await_signal(self, source: int, tag: int) -> Any:
        """Start to receive an empty message (local)."""
        transfer = DeviceTransfer(self, None)
        transfer.start(self.comm.Irecv([self._signal, 0, MPI.BYTE], source, tag))
        return transfer

    def progress(self) -> None:
        """Give to MPI what the GPU is ready for, in the order of the calls, which the other end counts on (local)."""
        while self._waiting and is_done(self._waiting[0][0]):
            self._waiting.popleft()[1]()
        if self._landing and is_done(self._landing[0][0]):
            self._landing = [each for each in self._landing if not is_done(each[0])]

    def _behind(self, post: Callable[[], MPI.Request], keep: Any) -> DeviceTransfer:
        """A transfer that is given to MPI when the GPU has come to where this lane is now."""
        transfer = DeviceTransfer(self, keep)
        self._waiting.append((self._arrays.mark(), lambda: transfer.start(post())))
        return transfer

    def _download(self, x: Any) -> tuple[int, Any]:
        """Address of the host's memory that x is copied to, and what keeps it."""
        host, where = cupy.cuda.alloc_pinned_memory(x.nbytes), runs_of(x)
        assert where is not None, "pieces lie in runs"
        _, run, count, pitch = where
        _copy(self._arrays.stream, host.ptr, run, x.data.ptr, pitch, run, count, _DEVICE_TO_HOST)
        return host.ptr, (host, x)

    def _upload(self, host: Any, x: Any) -> None:
        with self._arrays.beside():
            _copy(self._arrays.stream, x.data.ptr, x.nbytes, host.ptr, x.nbytes, x.nbytes, 1, _HOST_TO_DEVICE)
            self._landing.append((self._arrays.mark(), host))

    def _tight(self, x: Any) -> tuple[int, Any]:
        """Address of x, or of a contiguous copy, and what keeps it."""
        where = runs_of(x)
        assert where is not None, "pieces lie in runs"
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


def _copy(
    stream: int, target: int, pitch: int, source: int, source_pitch: int, run: int, count: int, kind: int
) -> None:
    if pitch == source_pitch == run or count == 1:  # without the limit of 2 GiB that CUDA sets a pitch
        runtime.memcpyAsync(target, source, run * count, kind, stream)
    else:
        runtime.memcpy2DAsync(target, pitch, source, source_pitch, run, count, kind, stream)
