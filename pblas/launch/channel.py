"""Messages between the caller and one rank over a socket: pickled values, and large arrays as raw bytes."""

from __future__ import annotations

import pickle
import re
import socket
import struct
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pblas import errors
from pblas.backends.local_step import is_agreed

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
    """One end of the connection of the caller and a rank."""

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


@dataclass(frozen=True, slots=True)
class Failure:
    """The exception of a rank."""

    raw: bytes  # the pickled exception; empty if it cannot be pickled
    text: str  # class and message
    trace: str  # the traceback, as Python prints it
    agreed: bool  # whether the ranks have agreed on it: perhaps it comes from another rank's exception

    @staticmethod
    def of(error: BaseException) -> Failure:
        """The failure of an exception; the frames of the worker are left out of its traceback."""
        first = error.__traceback__
        while first is not None and first.tb_frame.f_globals.get("__name__") == "pblas.launch.worker":
            first = first.tb_next
        trace = "".join(traceback.format_exception(type(error), error, first))
        text = traceback.format_exception_only(error)[-1].strip()
        try:
            raw = cloudpickle_for("pblas.run").dumps(error)
            pickle.loads(raw)  # noqa: S301 - some classes pickle, and fail here
        except Exception:  # noqa: BLE001 - a user's class may raise anything
            raw = b""
        return Failure(raw, text, trace, is_agreed(error))

    def error(self) -> BaseException:
        """The exception, of its own type where it can be unpickled, else a PblasError with its text."""
        if self.raw:
            try:
                error = pickle.loads(self.raw)  # noqa: S301 - from a rank of this user's own job
            except Exception:  # noqa: BLE001 - a user's class may raise anything
                error = None
            if isinstance(error, BaseException):
                return error
        return errors.PblasError(f"{self.text} (an exception that cannot be pickled)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The report of a rank on the end of a call."""

    rank: int  # of the context; -1 if there is no context
    failure: Failure | None = None
    frames: Frames = ()  # the value, packed; nothing after a failure

    def message(self) -> Frames:
        """The frames to send."""
        return [pickle.dumps((self.rank, self.failure)), *self.frames]

    @staticmethod
    def of(message: Frames) -> Outcome:
        """The outcome of a message. Its value stays packed: unpickling it may raise anything."""
        rank, failure = pickle.loads(message[0])  # noqa: S301 - from a rank of this user's own job
        return Outcome(rank, failure, message[1:])


def first_error(failures: Mapping[int, Failure], nranks: int) -> BaseException:
    """The exception to raise, with a note of the ranks' tracebacks.

    It is that of the lowest rank. A rank's own exception comes before those that the ranks have agreed on, which may be
    its consequence.
    """
    rank, first = min(failures.items(), key=lambda item: (item[1].agreed, item[0]))
    others = [f"Rank {r}: {f.text}" for r, f in sorted(failures.items()) if not f.agreed and f.text != first.text]
    error = first.error()
    error.add_note("\n".join([f"On rank {rank} of {nranks}:", first.trace.rstrip(), *others]))
    return error


_MAPPED = re.compile(r"/dev/shm/mpich_shm_\S+$", re.MULTILINE)  # noqa: S108 - no file of ours


def segments_of(pids: Iterable[int]) -> set[Path]:
    """MPICH's segments of shared memory that processes use; none where there is no /proc."""
    found: set[Path] = set()
    for pid in pids:
        with suppress(OSError):
            found.update(map(Path, _MAPPED.findall(Path(f"/proc/{pid}/maps").read_text(encoding="utf-8"))))
    return found


def delete(segments: Iterable[Path]) -> None:
    """Delete segments that are still there, after the end of their job."""
    for path in segments:
        with suppress(OSError):
            path.unlink()
