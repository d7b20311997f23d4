"""Messages of matrix pieces between GPUs, by way of the hosts.

A call launches the copies of its message on the GPU. The message is sent once the GPU has finished them: `done` of any
transfer makes progress for all. Several messages are in flight while GEMMs run.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import runtime

from pblas.backends.cuda import streams
from pblas.backends.cuda.transfer import runs_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.cuda.arrays import DeviceArrays
    from pblas.backends.dtypes import Array, GpuArray
    from pblas.backends.transport import Channel, Transfer

_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2


class DeviceTransfer:
    """A message in flight; `done()` also makes progress for the channel and the hosts' messages."""

    __slots__ = ("_channel", "_keep", "_on_arrival", "started")

    def __init__(self, channel: DeviceChannel, keep: object, on_arrival: Callable[[], None] | None = None) -> None:
        self._channel, self._keep, self._on_arrival = channel, keep, on_arrival
        self.started: Transfer | None = None  # the hosts' message, once it has begun

    def done(self) -> bool:
        """Whether the message has arrived, or further operations of the GPU may reuse its memory."""
        self._channel.progress()
        if self.started is None or not self.started.done():
            return False
        if self._on_arrival is not None:
            self._on_arrival()
            self._on_arrival = None
        return True


class DeviceChannel:
    """Sends and receives pieces of matrices on GPUs through pinned memory of the hosts."""

    def __init__(self, hosts: Channel, arrays: DeviceArrays) -> None:
        self._hosts, self._arrays = hosts, arrays
        self.received_nbytes: int = 0
        self._waiting: deque[tuple[Any, Callable[[], None]]] = deque()  # a mark, and a function to call after it
        self._landing: list[tuple[Any, Any]] = []  # a mark, and host memory in use until then

    def send(self, x: Array, dest: int, tag: int) -> DeviceTransfer:
        """Start to send x (m x n, one stride is one element) to `dest`, after the lane's operations so far (local)."""
        host, where = _pinned(x), runs_of(x)
        assert where is not None, "pieces are strided runs"
        _, run, count, pitch = where
        device_x: Any = x
        _copy(self._arrays.stream, host.ctypes.data, run, device_x.data.ptr, pitch, run, count, _DEVICE_TO_HOST)
        return self._deferred(lambda: self._hosts.send(host, dest, tag), (host, x))

    def receive(self, x: Array, source: int, tag: int) -> DeviceTransfer:
        """Start to receive into x (m x n, contiguous) from `source` (local).

        Operations of the side lane after the end of the transfer see the data.
        """
        self.received_nbytes += x.nbytes
        host = _pinned(x)
        transfer = DeviceTransfer(self, (host, x), lambda: self._upload(host, x))
        transfer.started = self._hosts.receive(host, source, tag)
        return transfer

    def signal(self, dest: int, tag: int) -> DeviceTransfer:
        """Send an empty message after the lane's operations so far (local)."""
        return self._deferred(lambda: self._hosts.signal(dest, tag), None)

    def await_signal(self, source: int, tag: int) -> DeviceTransfer:
        """Start to receive an empty message (local)."""
        transfer = DeviceTransfer(self, None)
        transfer.started = self._hosts.await_signal(source, tag)
        return transfer

    def progress(self) -> None:
        """Start the messages whose copies are done, in the order of the calls, which the peer relies on (local)."""
        while self._waiting and _is_done(self._waiting[0][0]):
            self._waiting.popleft()[1]()
        if self._landing and _is_done(self._landing[0][0]):
            self._landing = [landing for landing in self._landing if not _is_done(landing[0])]

    def close(self) -> None:
        """Nothing to free: the backend closes the hosts' channel (local)."""

    def _deferred(self, post: Callable[[], Transfer], keep: object) -> DeviceTransfer:
        """A transfer that begins after this lane's operations so far."""
        transfer = DeviceTransfer(self, keep)

        def start() -> None:
            transfer.started = post()

        self._waiting.append((self._arrays.mark(), start))
        return transfer

    def _upload(self, host: Array, x: GpuArray) -> None:
        with self._arrays.on_side_lane():
            target, source = x.data.ptr, host.ctypes.data
            _copy(self._arrays.stream, target, x.nbytes, source, x.nbytes, x.nbytes, 1, _HOST_TO_DEVICE)
            self._landing.append((self._arrays.mark(), host))


def _pinned(x: Array) -> Array:
    """Pinned memory of the host for the elements of x, as one column of words."""
    memory = cupy.cuda.alloc_pinned_memory(x.nbytes)
    words = np.frombuffer(memory, np.uint8, x.nbytes).view("c16" if x.itemsize == 16 else f"u{x.itemsize}")
    return words[:, None]


def _is_done(mark: Any) -> bool:
    """Whether the GPU has reached a mark."""
    return streams.is_done(mark.ptr)


def _copy(
    stream: int, target: int, pitch: int, source: int, source_pitch: int, run: int, count: int, kind: int
) -> None:
    if pitch == source_pitch == run or count == 1:  # a 2-D copy would limit the pitch to 2 GiB
        runtime.memcpyAsync(target, source, run * count, kind, stream)
    else:
        runtime.memcpy2DAsync(target, pitch, source, source_pitch, run, count, kind, stream)
