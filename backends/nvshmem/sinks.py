"""Lanes and sinks: where the operations of an execution go.

A lane is a stream of the GPU, or it records its launches (`pblas.backends.nvshmem.replay`). An operation computes its
launch and passes it to the sink: one class for each way to run an execution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import cupy

from pblas.backends.cuda import streams
from pblas.backends.engine_limits import LANES
from pblas.backends.nvshmem.replay import NotRecordableError, Replay

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from pblas.backends.cuda.kernels import Stream
    from pblas.backends.dtypes import GpuArray
    from pblas.backends.push_engine import Finish, GemmModes

    Start = Callable[[Stream], object]


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

    def run(self, main: int, mode: LaunchMode, body: Callable[[], None], *, joins: bool = True) -> None:
        """Run a body with `main` as its main lane. The other lanes fork from it and, if it `joins`, join it."""
        self._run(self._streams(main, mode), body, joins=joins)

    def record(self, replay: Replay, body: Callable[[], None]) -> None:
        """Run a body whose lanes record their launches."""
        self._run({lane: replay.lane(lane) for lane in LANES}, body)

    def launch(self, main: int, mode: LaunchMode, replay: Replay, places: Sequence[int]) -> None:
        """Launch recorded kernels again, on operands at these addresses, with the stream `main` as the main lane."""
        replay.launch(places, self._streams(main, mode))

    def _streams(self, main: int, mode: LaunchMode) -> dict[str, int]:
        return {"main": main} | {lane: int(stream.ptr) for lane, stream in self._sides[mode].items()}

    def _run(self, current: Mapping[str, Stream], body: Callable[[], None], *, joins: bool = True) -> None:
        self._current, self._used, self._words = current, set(), {}
        self.fork()
        body()
        self._flush()
        if joins:
            self._join()

    def _join(self) -> None:
        """The next operation of the main lane starts after all operations of the other lanes."""
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

    def operate(self, lane: str, operations: Iterable[object]) -> None:
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

    def _event(self, *key: object) -> int:
        if key not in self._events:
            self._events[key] = streams.event()
        return self._events[key]


def _side_stream() -> Any:
    return cupy.cuda.Stream(non_blocking=True, priority=_PRIORITY)


class Product(NamedTuple):
    """A GEMM that planning lists before it runs: Z := alpha X Y, and its epilogue."""

    alpha: complex
    x: GpuArray
    y: GpuArray
    z: GpuArray
    conj: tuple[bool, bool]
    modes: GemmModes
    scales: tuple[Any, Any]
    finish: Finish | None


class Sink:
    """Launches operations: eagerly, or into a graph that is launched later."""

    captured = False
    """Whether operations go into a graph of the caller's, which has its own scratch, counters and tile flags."""

    def __init__(self, lanes: Lanes, memory: dict[object, Any]) -> None:
        self._lanes = lanes
        self.memory: dict[object, Any] = memory

    def stream(self, lane: str) -> Stream:
        """The stream of a lane, or its launch recorder; calls that cannot be recorded take its `int`."""
        return self._lanes.stream(lane)

    def launch(self, lane: str, start: Start) -> None:
        """Call `start(stream)`, which launches an operation."""
        start(self._lanes.stream(lane))

    def product(self, lane: str, start: Start, rehearse: Callable[[list[Product]], object]) -> None:
        """Launch products. While the plan is made, `rehearse(products)` loads or lists their kernels instead."""
        del rehearse
        self.launch(lane, start)

    def operate(self, lane: str, operations: Iterable[object]) -> None:
        """Set words, or wait for them: see `Lanes.operate`."""
        self._lanes.operate(lane, operations)

    def follow(self, lane: str, after: Iterable[Hashable]) -> None:
        """The next operation of a lane starts after these operations of other lanes."""
        self._lanes.follow(lane, after)

    def mark(self, lane: str, index: Hashable) -> None:
        """Other lanes will wait for the last operation of a lane."""
        self._lanes.mark(lane, index)

    def packed(self, key: Hashable, make: Callable[[], GpuArray]) -> GpuArray:
        """The array of a key: `make` creates it at the first call, and the execution's memory keeps it."""
        if key not in self.memory:
            self.memory[key] = make()
        return self.memory[key]


class CapturingSink(Sink):
    """Launches operations into a graph of the caller's."""

    captured = True


class RecordingSink(Sink):
    """Passes operations to lanes that record them."""

    def packed(self, key: Hashable, make: Callable[[], GpuArray]) -> GpuArray:
        """Raise NotRecordableError: each set of operands has packed copies at other addresses."""
        del make
        raise NotRecordableError(f"packed operands: {key}")


class RehearsingSink(Sink):
    """Lists products, and launches nothing that peers can observe."""

    def __init__(self, lanes: Lanes, memory: dict[object, Any]) -> None:
        super().__init__(lanes, memory)
        self.products: list[Product] = []

    def launch(self, lane: str, start: Start) -> None:
        pass

    def product(self, lane: str, start: Start, rehearse: Callable[[list[Product]], object]) -> None:
        """List the product, or load its kernel."""
        del lane, start
        rehearse(self.products)

    def operate(self, lane: str, operations: Iterable[object]) -> None:
        pass

    def follow(self, lane: str, after: Iterable[Hashable]) -> None:
        pass

    def mark(self, lane: str, index: Hashable) -> None:
        pass
