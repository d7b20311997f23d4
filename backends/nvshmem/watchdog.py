"""Faults: a rank that dies or falls behind must not leave the others' streams waiting for ever.

A stream that waits for a flag has no deadline, and nothing but the flag ends the wait. So a thread of each context
looks whether the executions end in time. If they do not, it finds out which flags are missing, sets a word at every
peer that tells them to give up, and writes the missing flags itself, so that the stream drains. The outputs of those
executions are undefined, the context is broken, and its next call raises on every rank.
"""

from __future__ import annotations

import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime

from pblas.backends.nvshmem import streams

_TICK = 0.05
_QUIET = 0.2  # seconds in which an execution is not looked into
_DRAIN_SECONDS = 20.0
_GRACE = 1.0  # seconds in which the others report a rank whose own stream is late
_TO_DEVICE, _TO_HOST = 1, 2

REFUSED = 0xFF
"""In the place of the missing rank: a rank refused its arguments, and says so by a message."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a context is broken.

    Args:
        reporter: rank that gave up first.
        missing: ranks whose flags did not come.
        phase: of the schedule, -1 if unknown.
        seconds: that the reporter waited.
    """

    reporter: int
    missing: tuple[int, ...]
    phase: int
    seconds: float

    @property
    def refused(self) -> bool:
        """A rank refused its arguments."""
        return self.missing == (REFUSED,)

    @property
    def word(self) -> int:
        """What the peers are told: the reporter, the first missing rank, the phase; never 0."""
        first = self.missing[0] if self.missing else self.reporter
        return (self.reporter + 1) | first << 8 | (self.phase + 1) << 16

    @staticmethod
    def read(word: int, seconds: float) -> Fault:
        """The fault that a peer told."""
        return Fault((word & 0xFF) - 1, ((word >> 8) & 0xFF,), (word >> 16) - 1, seconds)

    def text(self, size: int) -> str:
        """For the exception, about the same on every rank.

        >>> print(Fault(0, (1,), 0, 2.0).text(4))
        execute: rank 1 of 4 did not send its shards or partial products within 2 s (piece 0); the context is broken...
        """
        ranks = f"rank {self.missing[0]}" if len(self.missing) == 1 else f"ranks {', '.join(map(str, self.missing))}"
        what = "results" if self.phase % 2 else "shards or partial products"
        return (
            f"execute: {ranks} of {size} did not send its {what} within {self.seconds:g} s "
            f"(piece {max(self.phase, 0) // 2}); the context is broken and the outputs of that call are undefined on "
            f"all ranks. Context(timeout=...) sets the limit, in seconds"
        )


class Watchdog:
    """The deadline of a context's executions.

    Args:
        rank: this one (local).
        size: ranks of the context (global).
        words: the abort word of each rank, in this rank's address space (local).
        done: event that the engine records behind every execution (local).
        record: what a kernel that gave up wrote, an array of one RECORD in pinned memory (local).
        timeout: seconds that an execution may wait for a peer (global).
    """

    def __init__(self, rank: int, size: int, words: list[int], done: int, record: Any, timeout: float) -> None:
        self.fault: Fault | None = None
        self._rank, self._size, self._words, self._timeout = rank, size, words, timeout
        self._device = int(runtime.getDevice())
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._workspaces: weakref.WeakSet[Any] = weakref.WeakSet()
        self._record = record
        # The sentinel lies behind one execution, `done` behind the last: the engine records that one again and again.
        self._sentinel, self._armed, self._done = streams.event(), False, done
        self._since, self._launches, self._seen = 0.0, 0, 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def watch(self, workspace: Any) -> None:
        """Also look at the flags of a new workspace, as long as there are plans that use it (local)."""
        self._workspaces.add(workspace)

    def _tables(self) -> list[tuple[int, int]]:
        """Address of the flags of each parity of each workspace, phases x ranks words, and the phases."""
        found = [(work.peers[self._rank], work.pitch, work.phases, work.parities) for work in self._workspaces]
        return [(base + parity * pitch, phases) for base, pitch, phases, n in found for parity in range(n)]

    def launched(self, stream: int) -> None:
        """An execution was launched on a stream (local)."""
        self._launches += 1
        if self._armed:
            return
        runtime.eventRecord(self._sentinel, stream)
        self._since, self._armed = time.monotonic(), True
        self.start()

    def start(self) -> None:
        """Begin to look, if it has not begun (local)."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=_guard, args=(weakref.ref(self),), daemon=True, name="pblas watchdog"
            )
            self._thread.start()

    def tick(self) -> None:
        """Look once; the watchdog's own thread. Streams are the callers', perhaps destroyed by now: never touched."""
        if self.fault is not None:
            return
        if self.gave_up:  # a kernel has returned without what it waited for
            word = self._read(self._words[self._rank], 1)[0]
            late = Fault(self._rank, (int(self._record["rank"][0]),), int(self._record["step"][0]), self._timeout)
            self._drain(Fault.read(int(word), self._timeout) if word else late)
            return
        if not self._launches:
            return
        if self._armed and streams.is_done(self._sentinel):
            self._armed, self._since = False, time.monotonic()  # the next execution arms again
        if not self._armed and (self._seen != self._launches or streams.is_done(self._done)):
            self._seen, self._since = self._launches, time.monotonic()
            return
        waited = time.monotonic() - self._since
        if waited < _QUIET:
            return
        word = self._read(self._words[self._rank], 1)[0]
        if word:
            self._drain(Fault.read(int(word), self._timeout))
        elif waited > self._timeout + _QUIET:
            fault = self._find(waited)
            if self._rank not in fault.missing or waited > self._timeout + _GRACE:
                self._drain(fault)

    @property
    def gave_up(self) -> bool:
        """Whether a kernel has given up, of which the fault follows within a tick (local)."""
        return bool(self._record["code"][0])

    def tell(self, fault: Fault) -> None:
        """Set the abort word of every rank."""
        word = np.array([fault.word], np.uint32)
        for address in self._words:
            runtime.memcpyAsync(address, word.ctypes.data, word.nbytes, _TO_DEVICE, self._stream.ptr)
        self._stream.synchronize()

    def _find(self, waited: float) -> Fault:
        """Which ranks' flags are missing: of a phase of which others have come, or of all.

        Where all of a phase have come, it is this rank's stream that has not; the others know better which phase.
        """
        others, here = set(range(self._size)) - {self._rank}, False
        for address, phases in self._tables():
            table = self._read(address, phases * self._size).reshape(phases, self._size)
            for phase in range(phases):
                arrived = {int(source) for source in np.flatnonzero(table[phase])}
                if arrived and arrived != others:
                    return Fault(self._rank, tuple(sorted(others - arrived)), phase, round(waited, 1))
                here = here or bool(arrived)
        return Fault(self._rank, (self._rank,) if here else tuple(sorted(others)), -1, round(waited, 1))

    def _drain(self, fault: Fault) -> None:
        """Break the context, tell the peers, and set flags until nothing waits any more."""
        self.fault = fault
        self.tell(fault)
        tables = [(address, np.ones(phases * self._size, np.uint32)) for address, phases in self._tables()]
        end = time.monotonic() + _DRAIN_SECONDS
        while self._launches and not streams.is_done(self._done) and time.monotonic() < end:
            for address, ones in tables:
                runtime.memcpyAsync(address, ones.ctypes.data, ones.nbytes, _TO_DEVICE, self._stream.ptr)
            self._stream.synchronize()
            time.sleep(1e-3)

    def _read(self, address: int, count: int) -> Any:
        words = np.empty(count, np.uint32)
        runtime.memcpyAsync(words.ctypes.data, address, words.nbytes, _TO_HOST, self._stream.ptr)
        self._stream.synchronize()
        return words

    def close(self) -> None:
        """End the thread (local)."""
        self._closed = True

    def use_device(self) -> bool:
        """Make the GPU current in the calling thread; false once closed."""
        if not self._closed:
            runtime.setDevice(self._device)
        return not self._closed


def _guard(reference: weakref.ref[Watchdog]) -> None:
    """The watchdog's thread; it does not keep the watchdog alive."""
    first = True
    while True:
        time.sleep(_TICK)
        watchdog = reference()
        if watchdog is None or watchdog._closed:  # noqa: SLF001 - the thread is the watchdog's own
            return
        if first:
            watchdog.use_device()
            first = False
        watchdog.tick()
        del watchdog
