"""Lanes of an execution as streams: the caller's stream is the main lane; the other lanes fork from it and join it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import cupy

from pblas.backends.cuda import streams
from pblas.backends.lanes import LANES

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from pblas.backends.cuda.recordable import Stream
    from pblas.backends.nvshmem.replay import Replay

LaunchMode = Literal["eager", "own graph", "caller's graph"]

_PRIORITY = -5  # the highest, so that copies do not wait for GEMMs that are launched before them


class Lanes:
    """The streams of consecutive executions, one set for each launch mode."""

    def __init__(self) -> None:
        modes: tuple[LaunchMode, ...] = ("eager", "own graph", "caller's graph")
        self._sides: dict[LaunchMode, dict[str, Any]] = {
            mode: {lane: _side_stream() for lane in LANES if lane != "main"} for mode in modes
        }
        self._events: dict[Any, int] = {}
        self._current: Mapping[str, Stream] = {}  # the stream of each lane, during an execution
        self._used: set[str] = set()
        self._words: dict[str, list[Any]] = {}  # pending memory operations of each lane

    def run(self, main: int, mode: LaunchMode, body: Callable[[], None]) -> None:
        """Run a body with `main` as its main lane. The other lanes fork from it and join it."""
        self._run(self._streams(main, mode), body)

    def record(self, replay: Replay, body: Callable[[], None]) -> None:
        """Run a body whose lanes record their launches."""
        self._run({lane: replay.lane(lane) for lane in LANES}, body)

    def launch(self, main: int, mode: LaunchMode, replay: Replay, places: Sequence[int]) -> None:
        """Launch recorded kernels again, on operands at these addresses, with the stream `main` as the main lane."""
        replay.launch(places, self._streams(main, mode))

    def _streams(self, main: int, mode: LaunchMode) -> dict[str, int]:
        return {"main": main} | {lane: int(stream.ptr) for lane, stream in self._sides[mode].items()}

    def _run(self, current: Mapping[str, Stream], body: Callable[[], None]) -> None:
        self._current, self._used, self._words = current, set(), {}
        self.fork()
        body()
        self.join()

    def join(self) -> None:
        """The next operation of the main lane starts after all operations of the other lanes."""
        self._flush()
        for lane in sorted(self._used):
            streams.record(self._current[lane], self._event("join", lane))
            streams.follow(self._current["main"], self._event("join", lane))

    def fork(self) -> None:
        """Lanes that are first used from here on begin after the main lane's operations so far."""
        streams.record(self._current["main"], self._event("fork"))

    def stream(self, lane: str) -> Stream:
        """The stream of a lane; it forks from the main stream at its first use."""
        self._flush()
        return self._stream(lane)

    def operate(self, lane: str, operations: Iterable[Any]) -> None:
        """Let a lane set words, or wait for them (see `streams.operate`). Consecutive ones are one stream operation.

        After a copy of 8 MB a flag and a wait take 3.3 us together, and 5.1 us as two operations (2 H200).
        """
        self._words.setdefault(lane, []).extend(operations)

    def _flush(self) -> None:
        """Issue the pending memory operations of all lanes."""
        words, self._words = self._words, {}
        for lane, operations in words.items():
            streams.operate(self._stream(lane), operations)

    def _stream(self, lane: str) -> Stream:
        """The stream of a lane, without issuing pending memory operations."""
        stream = self._current[lane]
        if lane != "main" and lane not in self._used:
            self._used.add(lane)
            streams.follow(stream, self._event("fork"))
        return stream

    def follow(self, lane: str, after: Iterable[Hashable]) -> None:
        """The next operation of a lane starts after these operations of other lanes."""
        for index in after:
            streams.follow(self.stream(lane), self._event("op", index))

    def mark(self, lane: str, index: Hashable) -> None:
        """Other lanes will wait for this operation, the last of its lane."""
        streams.record(self.stream(lane), self._event("op", index))

    def _event(self, *key: Any) -> int:
        if key not in self._events:
            self._events[key] = streams.event()
        return self._events[key]


def _side_stream() -> Any:
    return cupy.cuda.Stream(non_blocking=True, priority=_PRIORITY)
