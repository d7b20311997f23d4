"""Messages between the caller and one rank over a socket: pickled values, and large arrays as raw bytes."""

from __future__ import annotations

import io
import pickle
import socket
import struct
import traceback
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import FunctionType
from typing import Any

from pblas import errors
from pblas.backends.local_step import is_agreed

_LENGTH = struct.Struct("<Q")

Frames = Sequence[bytes | bytearray | memoryview]
"""A message: the pickle, then the buffers of arrays that are not copied into it."""
NameOf = Callable[[object], object]
"""The name of an object that a message refers to, and does not contain; None for all others."""
Find = Callable[[Any], object]
"""The object of a name."""


class _ByName(pickle.Pickler):
    """Pickles functions and classes by name, where cloudpickle is not installed; not those of the script."""

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"{value.__qualname__} is of the script, not of a module")
        return NotImplemented


def _dumps(
    value: object, callback: Callable[[pickle.PickleBuffer], object] | None = None, name_of: NameOf | None = None
) -> bytes:
    """A value as bytes; with cloudpickle also closures and functions of scripts and notebooks."""
    try:
        from cloudpickle import Pickler
    except ImportError:
        Pickler = _ByName
    if name_of is not None:
        Pickler = type("Pickler", (Pickler,), {"persistent_id": lambda _, value: name_of(value)})
    file = io.BytesIO()
    Pickler(file, protocol=5, buffer_callback=callback).dump(value)
    return file.getvalue()


def packed(opname: str, value: object, what: str, name_of: NameOf | None = None) -> Frames:
    """A value as a message."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        head = _dumps(value, buffers.append, name_of)
    except Exception as caught:
        remedy = "" if find_spec("cloudpickle") else "; pip install cloudpickle, which sends more functions and classes"
        text = f"{opname}: {what} cannot be sent: {type(caught).__name__}: {caught}{remedy}"
        raise errors.ArgumentError(text) from caught
    return [head, *(buffer.raw() for buffer in buffers)]


class _Finding(pickle.Unpickler):
    """Unpickles objects that a message refers to by their names."""

    def __init__(self, find: Find | None, head: Any, buffers: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(head), buffers=buffers)
        self._find = find

    def persistent_load(self, name: Any) -> object:
        assert self._find is not None, "only messages to and from a Pool have names"
        return self._find(name)


def unpacked(frames: Frames, find: Find | None = None) -> Any:
    """The value of a message; its arrays are in the memory of the message, and may be written."""
    head, *buffers = frames
    return _Finding(find, head, buffers).load()


class Channel:
    """One end of the connection of the caller and a rank.

    A socket that blocks sends and receives whole messages. One that does not moves what can be moved at once, so that
    the caller keeps its deadline in the middle of a message.
    """

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._unsent: deque[memoryview] = deque()
        self._arriving = self._message()
        self._left = memoryview(next(self._arriving))

    def fileno(self) -> int:
        """File descriptor, for selectors."""
        return self._stream.fileno()

    def send(self, frames: Frames) -> bool:
        """Send a message, as far as there is room; whether all of it has left: else `flush` sends more.

        Raises:
            OSError: the other end is closed.
        """
        views = [memoryview(frame).cast("B") for frame in frames]
        table = b"".join(map(_LENGTH.pack, [len(views), *(view.nbytes for view in views)]))
        self._unsent.extend([memoryview(table), *views])
        return self.flush()

    def flush(self) -> bool:
        """Send more of what is under way; whether all of it has left. The errors are those of `send`."""
        while self._unsent:
            view = self._unsent.popleft()
            while view:
                try:
                    view = view[self._stream.send(view) :]
                except BlockingIOError:
                    self._unsent.appendleft(view)
                    return False
        return True

    def receive(self) -> Frames | None:
        """The next message, or None if the rest of it has not arrived.

        Raises:
            EOFError: the other end is closed.
        """
        while True:
            while not self._left:
                try:
                    self._left = memoryview(next(self._arriving))
                except StopIteration as end:
                    self._arriving = self._message()
                    self._left = memoryview(next(self._arriving))
                    frames: Frames = end.value
                    return frames
            try:
                count = self._stream.recv_into(self._left)
            except BlockingIOError:
                return None
            except ConnectionError:
                count = 0
            if count == 0:
                raise EOFError("the other end is closed")
            self._left = self._left[count:]

    def _message(self) -> Generator[bytearray, None, Frames]:
        """The buffers that one message fills, one after the other."""
        head = bytearray(_LENGTH.size)
        yield head
        (count,) = _LENGTH.unpack(head)
        table = bytearray(count * _LENGTH.size)
        yield table
        frames = []
        for length in struct.unpack(f"<{count}Q", table):
            frames.append(bytearray(length))
            yield frames[-1]
        return frames

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
        return Failure(_pickled(error), text, trace, is_agreed(error))

    def error(self) -> BaseException:
        """The exception, of its own type where it can be unpickled, else a PblasError with its text."""
        error = _unpickled(self.raw)
        return errors.PblasError(f"{self.text} (an exception that cannot be pickled)") if error is None else error


def _pickled(error: BaseException) -> bytes:
    """An exception as bytes; nothing if they would not become its like.

    An exception whose class has other arguments than `args` is pickled, but not unpickled: it is made without
    `__init__`.
    """
    for value in (error, (type(error), error.args, vars(error))):
        try:
            raw = _dumps(value)
            if str(_unpickled(raw)) == str(error):
                return raw
        except Exception:  # noqa: BLE001, S112 - a user's class may raise anything
            continue
    return b""


def _unpickled(raw: bytes) -> BaseException | None:
    """The exception that `_pickled` has made bytes of; None if that fails here."""
    try:
        value = pickle.loads(raw)  # noqa: S301 - from a rank of this user's own job
        if not isinstance(value, tuple):
            return value if isinstance(value, BaseException) else None
        kind, arguments, state = value
        error: BaseException = kind.__new__(kind, *arguments)
        error.__dict__.update(state)
    except Exception:  # noqa: BLE001 - a user's class may raise anything
        return None
    return error


@dataclass(frozen=True, slots=True)
class Outcome:
    """The report of a rank on the end of a call."""

    rank: int  # of the context; -1 if there is no context
    failure: Failure | None = None
    frames: Frames = ()  # the value, packed; nothing after a failure
    lost: str = ""  # why the call had a new context, and the attributes of the old one are lost

    def message(self) -> Frames:
        """The frames to send."""
        return [pickle.dumps((self.rank, self.failure, self.lost)), *self.frames]

    @staticmethod
    def of(message: Frames) -> Outcome:
        """The outcome of a message. Its value stays packed: unpickling it may raise anything."""
        rank, failure, lost = pickle.loads(message[0])  # noqa: S301 - from a rank of this user's own job
        return Outcome(rank, failure, message[1:], lost)


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
