"""An emulated network between ranks of one machine: every message arrives as late as it would over a slow link."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pblas.backends.transport import Array, HostChannel, Transfer

_STAMP = 500  # difference of the tags of a message and of its time of delivery


class _Delayed:
    """A transfer that is done only when the emulated link has delivered it."""

    __slots__ = ("_due", "_transfers")

    def __init__(self, due: np.ndarray[Any, Any], *transfers: Transfer) -> None:
        self._due, self._transfers = due, transfers

    def done(self) -> bool:
        """Whether the message and its time have arrived, and the time has passed (local)."""
        return all(transfer.done() for transfer in self._transfers) and time.monotonic() >= float(self._due[0, 0])


class DelayedChannel:
    """A channel whose messages are delivered latency + bytes/bandwidth after they were sent, in order per sender.

    Waiting costs no CPU time, so that overlap can be measured on a machine whose cores are all busy.

    The ranks of the channel are of one machine, and share a clock.
    """

    def __init__(self, channel: HostChannel, latency: float, bandwidth: float) -> None:
        self._channel = channel
        self._latency, self._bandwidth, self._free = latency, bandwidth, 0.0
        self.received_nbytes: int = 0
        self.signal, self.await_signal = channel.signal, channel.await_signal

    def send(self, x: Array, dest: int, tag: int) -> _Delayed:
        """Send a message, and its time of delivery in a second message."""
        self._free = max(self._free, time.monotonic()) + x.nbytes / self._bandwidth
        due = np.array([[self._free + self._latency]])
        return _Delayed(due, self._channel.send(x, dest, tag), self._channel.send(due, dest, tag + _STAMP))

    def receive(self, x: Array, source: int, tag: int) -> _Delayed:
        """Receive a message; done when the time of delivery has passed."""
        self.received_nbytes += x.nbytes
        due = np.empty((1, 1))
        return _Delayed(due, self._channel.receive(x, source, tag), self._channel.receive(due, source, tag + _STAMP))

    def progress(self) -> None:
        pass

    def close(self) -> None:
        """Nothing: the other channel has an owner."""
