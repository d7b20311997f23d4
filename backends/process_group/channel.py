"""Messages of matrix pieces as messages between the peers: a copy on either side, for peers that send bytes only."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pblas.backends.dtypes import Array
    from pblas.backends.transport import Transfer, Transport

_FIRST_TAG = 1000  # tags below belong to agreements
_TAG_COLLECTIVE = 999


class _Sent:
    """A message under way to another rank."""

    __slots__ = ("done",)

    def __init__(self, left: Callable[[], bool]) -> None:
        self.done: Callable[[], bool] = left


class _Expected:
    """A message under way to this rank; `done()` also receives those that were expected before it."""

    __slots__ = ("_progress", "arrived", "x")

    def __init__(self, x: Array | None, progress: Callable[[], None]) -> None:
        self.x, self.arrived, self._progress = x, False, progress

    def done(self) -> bool:
        if not self.arrived:
            self._progress()
        return self.arrived

    def accept(self, message: bytes) -> None:
        if self.x is not None and self.x.size:
            x = _columns(self.x)
            x[...] = np.frombuffer(message, x.dtype).reshape(x.shape, order="F")
        self.arrived = True


class _All:
    """Several messages under way."""

    __slots__ = ("_transfers",)

    def __init__(self, transfers: Sequence[Transfer]) -> None:
        self._transfers = transfers

    def done(self) -> bool:
        self._transfers = [transfer for transfer in self._transfers if not transfer.done()]
        return not self._transfers


class MessageChannel:
    """Sends and receives pieces of matrices: `pblas.backends.transport.HostChannel` by the messages of `Transport`.

    Messages of one rank and tag arrive in the order in which they were sent, in the order of the calls of `receive`.

    Tags from 999 on belong to this class.
    """

    def __init__(self, peers: Transport) -> None:
        self._peers = peers
        self.received_nbytes: int = 0
        self._expected: dict[tuple[int, int], deque[_Expected]] = {}

    def send(self, x: Array, dest: int, tag: int) -> Transfer:
        return self._send(_columns(x).tobytes("F"), dest, _FIRST_TAG + tag)

    def receive(self, x: Array, source: int, tag: int) -> Transfer:
        self.received_nbytes += x.nbytes
        return self._expect(x, source, _FIRST_TAG + tag)

    def signal(self, dest: int, tag: int) -> Transfer:
        return self._send(b"", dest, _FIRST_TAG + tag)

    def await_signal(self, source: int, tag: int) -> Transfer:
        return self._expect(None, source, _FIRST_TAG + tag)

    def progress(self) -> None:
        pass

    def all_to_all(self, x: Array, counts: Sequence[int], out: Array, out_counts: Sequence[int]) -> Transfer:
        sent = [
            self._send(part.tobytes(), dest, _TAG_COLLECTIVE)
            for dest, part in enumerate(np.split(x, np.cumsum(counts)[:-1]))
        ]
        return self._collect(out, out_counts, sent)

    def all_gather(self, x: Array, out: Array, counts: Sequence[int]) -> Transfer:
        message = x.tobytes()
        return self._collect(
            out, counts, [self._send(message, dest, _TAG_COLLECTIVE) for dest in range(self._peers.size)]
        )

    def close(self) -> None:
        """Nothing to free (local)."""

    def _collect(self, out: Array, counts: Sequence[int], sent: list[_Sent]) -> _All:
        """Receive consecutive elements of out from each rank."""
        parts = np.split(out[:, None], np.cumsum(counts)[:-1])
        received = [self._expect(part, source, _TAG_COLLECTIVE) for source, part in enumerate(parts)]
        return _All([*sent, *received])

    def _send(self, message: bytes, dest: int, tag: int) -> _Sent:
        return _Sent(self._peers.send(message, dest, tag))

    def _expect(self, x: Array | None, source: int, tag: int) -> _Expected:
        expected = self._expected.setdefault((source, tag), deque())

        def progress() -> None:
            while expected and (message := self._peers.receive(tag, source)) is not None:
                expected.popleft().accept(message[1])

        expected.append(_Expected(x, progress))
        return expected[-1]


def _columns(x: Array) -> Array:
    """X or its transpose, whose columns are contiguous (local)."""
    return x.T if x.strides[0] != x.itemsize and x.shape[0] > 1 else x
