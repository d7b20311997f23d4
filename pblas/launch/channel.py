"""Messages between the caller and one rank over a socket: pickled values, and large arrays as raw bytes."""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from pblas import errors

_LENGTH = struct.Struct("<Q")

Frames = Sequence[bytes | bytearray | memoryview]
"""A message: the pickle, then the buffers of arrays that are not copied into it."""


def cloudpickle_for(verb: str) -> ModuleType:
    """The package cloudpickle, which also pickles closures and functions of scripts and notebooks."""
    try:
        import cloudpickle
    except ImportError:
        raise errors.BackendError(f"{verb} needs cloudpickle: pip install 'pblas[run]'") from None
    package: ModuleType = cloudpickle
    return package


def packed(verb: str, value: Any, what: str) -> Frames:
    """A value as a message."""
    cloudpickle = cloudpickle_for(verb)
    buffers: list[pickle.PickleBuffer] = []
    try:
        head = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    except Exception as caught:
        raise errors.ArgumentError(f"{verb}: {what} cannot be sent: {type(caught).__name__}: {caught}") from caught
    return [head, *(buffer.raw() for buffer in buffers)]


def unpacked(frames: Frames) -> Any:
    """The value of a message; its arrays are in the memory of the message, and may be written."""
    head, *buffers = frames
    return pickle.loads(head, buffers=buffers)  # noqa: S301 - from this user's own process, in a private folder


class Channel:
    """One end of the connection of the caller and a rank.

    Args:
        stream: the connected socket, which the channel owns.
    """

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def fileno(self) -> int:
        """File descriptor, for selectors."""
        return self._stream.fileno()

    def send(self, frames: Frames) -> None:
        """Send a message as soon as the other end has room for it.

        Raises:
            OSError: the other end is closed.
        """
        lengths = [memoryview(frame).nbytes for frame in frames]
        self._stream.sendall(b"".join(map(_LENGTH.pack, [len(frames), *lengths])))
        for frame in frames:
            self._stream.sendall(frame)

    def receive(self) -> Frames:
        """The next message, when all of it has arrived.

        Raises:
            EOFError: the other end is closed.
        """
        (count,) = _LENGTH.unpack(self._received(_LENGTH.size))
        lengths = struct.unpack(f"<{count}Q", self._received(count * _LENGTH.size))
        return [self._received(length) for length in lengths]

    def _received(self, nbytes: int) -> bytearray:
        raw = bytearray(nbytes)
        left = memoryview(raw)
        while left:
            try:
                count = self._stream.recv_into(left)
            except ConnectionError:
                count = 0
            if count == 0:
                raise EOFError("the other end is closed")
            left = left[count:]
        return raw

    def close(self) -> None:
        """Close this end."""
        self._stream.close()
