"""Lanes of an execution as streams: the caller's is the main one, the others fork from it and join it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import cupy

from pblas.backends.cuda import streams
from pblas.backends.lanes import LANES

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from pblas.backends.cuda.recordable import Stream
    from pblas.backends.nvshmem.replay import Replay

Way = Literal["eager", "own graph", "caller's graph"]

_PRIORITY = -5  # the highest, so that copies do not wait for GEMMs that are launched before them


class Lanes:
    """The streams of executions that follow each other; each way of launching them has its own."""

    def __init__(self) -> None:
        ways: tuple[Way, ...] = ("eager", "own graph", "caller's graph")
        self._sides: dict[Way, dict[str, Any]] = {
            way: {lane: _side_stream() for lane in LANES if lane != "main"} for way in ways
        }
        self._events: dict[Any, int] = {}
        self._now: Mapping[str, Stream] = {}  # the stream of each lane, during an execution
        self._used: set[str] = set()
        self._words: dict[str, list[Any]] = {}  # what each lane does to words behind all else, not issued yet

    def run(self, main: int, way: Way, body: Callable[[], None]) -> None:
        """Run a body with `main` as its main lane, from which the others fork and which they join."""
        self._run(self._streams(main, way), body)

    def record(self, tape: Replay, body: Callable[[], None]) -> None:
        """Run a body whose lanes keep what they are given."""
        self._run({lane: tape.lane(lane) for lane in LANES}, body)

    def play(self, main: int, way: Way, tape: Replay, places: Sequence[int]) -> None:
        """Launch what was recorded, with `main` as the main lane, on operands that lie at these places."""
        tape.play(places, self._streams(main, way))

    def _streams(self, main: int, way: Way) -> dict[str, int]:
        return {"main": main} | {lane: int(stream.ptr) for lane, stream in self._sides[way].items()}

    def _run(self, now: Mapping[str, Stream], body: Callable[[], None]) -> None:
        self._now, self._used, self._words = now, set(), {}
        self.fork()
        body()
        self.join()

    def join(self) -> None:
        """The next operation of the main lane starts after all that the others have."""
        self._flush()
        for lane in sorted(self._used):
            streams.record(self._now[lane], self._event("join", lane))
            streams.follow(self._now["main"], self._event("join", lane))

    def fork(self) -> None:
        """Lanes that are used from here on for the first time begin behind what the main one has been given."""
        streams.record(self._now["main"], self._event("fork"))

    def stream(self, lane: str) -> Stream:
        """The stream of a lane, which forks from the main one at its first use."""
        self._flush()
        return self._stream(lane)

    def operate(self, lane: str, operations: Iterable[Any]) -> None:
        """Let a lane set words, or wait for them, as `streams.operate` does: neighbours by one operation of its stream.

        Behind a copy of 8 MB a flag and a wait take 3.3 us so, 5.1 apart (2 H200).
        """
        self._words.setdefault(lane, []).extend(operations)

    def _flush(self) -> None:
        """Issue what lanes do to words."""
        words, self._words = self._words, {}
        for lane, operations in words.items():
            streams.operate(self._stream(lane), operations)

    def _stream(self, lane: str) -> Stream:
        """The same, without what lanes do to words before."""
        stream = self._now[lane]
        if lane != "main" and lane not in self._used:
            self._used.add(lane)
            streams.follow(stream, self._event("fork"))
        return stream

    def follow(self, lane: str, after: Iterable[Hashable]) -> None:
        """The next operation of a lane starts after these operations of others."""
        for index in after:
            streams.follow(self.stream(lane), self._event("op", index))

    def mark(self, lane: str, index: Hashable) -> None:
        """Others will follow this operation, the last of its lane."""
        streams.record(self.stream(lane), self._event("op", index))

    def _event(self, *key: Any) -> int:
        if key not in self._events:
            self._events[key] = streams.event()
        return self._events[key]


def _side_stream() -> Any:
    return cupy.cuda.Stream(non_blocking=True, priority=_PRIORITY)
