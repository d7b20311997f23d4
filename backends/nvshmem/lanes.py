"""Lanes of an execution as streams: the caller's is the main one, the others fork from it and join it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import cupy
from cupy.cuda import runtime

from pblas.backends.cuda import streams
from pblas.backends.engine import LANES

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

Way = Literal["eager", "own graph", "caller's graph"]

_PRIORITY = -5  # the highest, so that copies do not wait for GEMMs that are launched before them


class Lanes:
    """The streams of executions that follow each other; each way of launching them has its own."""

    def __init__(self) -> None:
        ways: tuple[Way, ...] = ("eager", "own graph", "caller's graph")
        self._sides = {way: {lane: _side_stream() for lane in LANES if lane != "main"} for way in ways}
        self._events: dict[Any, int] = {}
        self._now: dict[str, int] = {}  # the stream of each lane, during an execution
        self._used: set[str] = set()

    def run(self, main: int, way: Way, body: Callable[[], None]) -> None:
        """Run a body with `main` as its main lane, from which the others fork and which they join."""
        self._now = {"main": main} | {lane: int(stream.ptr) for lane, stream in self._sides[way].items()}
        self._used = set()
        self.fork()
        body()
        self.join()

    def join(self) -> None:
        """The next operation of the main lane starts after all that the others have."""
        for lane in sorted(self._used):
            runtime.eventRecord(self._event("join", lane), self._now[lane])
            runtime.streamWaitEvent(self._now["main"], self._event("join", lane), 0)

    def fork(self) -> None:
        """Lanes that are used from here on for the first time begin behind what the main one has been given."""
        runtime.eventRecord(self._event("fork"), self._now["main"])

    def stream(self, lane: str) -> int:
        """The stream of a lane, which forks from the main one at its first use."""
        stream = self._now[lane]
        if lane != "main" and lane not in self._used:
            self._used.add(lane)
            runtime.streamWaitEvent(stream, self._event("fork"), 0)
        return stream

    def follow(self, lane: str, after: Iterable[Hashable]) -> None:
        """The next operation of a lane starts after these operations of others."""
        for index in after:
            runtime.streamWaitEvent(self.stream(lane), self._event("op", index), 0)

    def mark(self, lane: str, index: Hashable) -> None:
        """Others will follow this operation, the last of its lane."""
        runtime.eventRecord(self._event("op", index), self.stream(lane))

    def _event(self, *key: Any) -> int:
        if key not in self._events:
            self._events[key] = streams.event()
        return self._events[key]


def _side_stream() -> Any:
    return cupy.cuda.Stream(non_blocking=True, priority=_PRIORITY)
