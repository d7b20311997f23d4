"""How executions are launched, and in which order.

The first execution on a set of arrays runs eagerly. The second is captured into a graph, once for each parity of the
workspace, and from then on an execution is one graph launch on the caller's stream. What the first two launch was
recorded when the product was planned (`pblas.backends.nvshmem.replay`), unless it is something that cannot be. In a
capture of the caller's own the parity is baked in, so such executions use a workspace of their own, and all ranks meet
before the first of them.

Executions of a process are chained by events in the order of the calls, whatever their streams and contexts, but for
those of different queues (`pblas.backends.nvshmem.launch_order`). Those that the caller records into one graph are
chained there.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import cupy
from cupy.cuda import runtime

from pblas import errors
from pblas.backends.cuda import streams
from pblas.backends.nvshmem.lanes import Lanes
from pblas.backends.nvshmem.replay import NotRecordableError, Recording, Replay
from pblas.backends.nvshmem.sinks import CapturingSink, RecordingSink, RehearsingSink, Sink
from pblas.backends.nvshmem.workspace import ALIGNMENT, PARITIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pblas.backends.cuda.gemm import Gemm
    from pblas.backends.nvshmem.lanes import Way
    from pblas.backends.nvshmem.shared import EngineResources
    from pblas.backends.nvshmem.sinks import Product
    from pblas.backends.nvshmem.workspace import Workspace


class Program:
    """What is kept of executions on the same arrays: a graph for each parity, and arrays that they need.

    Args:
        recording: what they launch, if it was recorded.
        places: where the operands lie that were elsewhere then.
    """

    __slots__ = ("graphs", "memory", "places", "recording", "seen", "workspace")

    def __init__(self, recording: Recording | None, places: Sequence[int]) -> None:
        self.seen, self.recording, self.places = False, recording, places
        self.memory: dict[Any, Any] = {} if recording is None else recording.memory
        self.workspace: Workspace | None = None if recording is None else recording.workspace
        self.graphs: list[streams.Graph | None] = [None, None]

    def __del__(self) -> None:
        _MAX_RETIRED.extend((graph, self.memory) for graph in self.graphs if graph is not None)


_MAX_RETIRED: deque[tuple[streams.Graph, Any]] = deque()
"""Graphs whose programs were dropped, perhaps by the garbage collector and while they run; they are freed later."""


class Executions:
    """Launches the executions of a queue of a context, one after the other.

    Args:
        common: what the context's engines share (local).
        queue: whose they are; None: they run alone (global).
    """

    def __init__(self, common: EngineResources, queue: int | None) -> None:
        self._exchange, self._origin, self._watchdog = common.ranks.agreement, common.origin, common.watchdog
        self._order, self._queue = common.nvshmem.order, queue
        self.lanes = Lanes()
        self._before, self._behind = streams.event(), streams.event()
        self._capture = self._begun = -1  # the caller's capture that is going on; the last one that has begun here
        self._memory_of_captures: dict[Any, Any] = {}
        self._kept: list[Any] = []  # what the caller's graphs use beside it
        self.sink = Sink(self.lanes, {})
        """What the operations of the execution that is being issued are given to."""
        self.workspace: Workspace | None = None
        """Of that execution."""

    def run(self, program: Program, body: Callable[[], None], main: int) -> None:
        """One execution on the caller's stream `main`: a graph launch if these arrays were seen before (local)."""
        if main not in (0, 1) and runtime.streamIsCapturing(main):  # those two, default streams, cannot
            self._record(body, main)
            return
        for event in self._order.before(self._queue):
            runtime.streamWaitEvent(main, event, 0)
        try:
            self._issue(program, body, main)
        except BaseException as caught:  # peers may have got a part of what they wait for
            self._exchange.broken = f"execute: {type(caught).__name__} in the middle of it"
            raise
        finally:
            self._order.launched(self._queue, self._watchdog.launched(main, self._queue))

    def rehearse(self, body: Callable[[], None]) -> list[Product]:
        """The products of a body, of which nothing is launched that peers would see (local)."""
        self.follow_all()
        sink = RehearsingSink(self.lanes, {})
        with self._giving_to(sink):
            self.lanes.run(self._origin.ptr, "eager", body)
        return sink.products

    def record(self, body: Callable[[], None]) -> Replay:
        """What an execution would launch (local)."""
        tape = Replay()
        with self._giving_to(RecordingSink(self.lanes, tape.memory)):
            self.lanes.record(tape, body)
        return tape

    def recorded(
        self, gemm: Gemm, operands: Sequence[Any], execution: Callable[[list[Any]], Callable[[], None]]
    ) -> Recording | None:
        """What executions launch on operands that lie like these; None if that is not all kept (local).

        Args:
            gemm: with which they multiply (local).
            operands: arrays (local).
            execution: the body for arrays in their places (local).
        """
        first, second = ([_elsewhere(x, number, turn) for number, x in enumerate(operands)] for turn in (0, 1))
        places = enumerate(zip(first, second, strict=True))
        shifts = {y.data.ptr - x.data.ptr: (number, x.data.ptr) for number, (x, y) in places}
        recording, calls = Recording(gemm), 0
        try:
            for _ in range(PARITIES):
                tape, other = (self.record(execution(arrays)) for arrays in (first, second))
                if not tape.compare(other, shifts):
                    return None
                recording.add(tape, self.workspace)
                if recording.workspace is None:
                    break
                recording.workspace.calls += 1
                calls += 1
        except (NotRecordableError, errors.PblasError):  # the driver may refuse addresses that are made up
            return None
        finally:
            if recording.workspace is not None:
                recording.workspace.calls -= calls
        return recording

    @contextmanager
    def _giving_to(self, sink: Sink) -> Iterator[None]:
        """A with block in which operations are given to a sink."""
        self.sink = sink
        try:
            yield
        finally:
            self.sink = Sink(self.lanes, {})

    def follow_all(self) -> None:
        """Let the engine's own stream wait for the caller's current one and for all executions (local)."""
        runtime.eventRecord(self._before, cupy.cuda.get_current_stream().ptr)
        runtime.streamWaitEvent(self._origin.ptr, self._before, 0)
        for event in self._order.last:
            runtime.streamWaitEvent(self._origin.ptr, event, 0)

    def begins_capture(self) -> bool:
        """Whether nobody has asked this before in the caller's capture that is going on (local)."""
        begins, self._begun = self._capture != self._begun, self._capture
        return begins

    def close(self) -> None:
        """Free what none of them can be using any more (local)."""
        self._free_retired()
        self._kept.clear()
        self._memory_of_captures.clear()

    def _issue(self, program: Program, body: Callable[[], None], main: int) -> None:
        """Launch the graph of a program, or run the body."""
        if not program.seen:
            self._launch(program, body, main, "eager")
            program.seen = True
        else:
            parity = 0 if program.workspace is None else program.workspace.parity
            graph = program.graphs[parity]
            if graph is None:
                graph = program.graphs[parity] = self._graph(program, body)
            graph.launch(main)
        if program.workspace is not None:
            program.workspace.calls += 1

    def _launch(self, program: Program, body: Callable[[], None], main: int, way: Way) -> None:
        """Launch what was recorded, or what the body says."""
        if program.recording is not None and program.recording.is_current:
            self.lanes.play(main, way, program.recording.tape, program.places)
            return
        with self._giving_to(Sink(self.lanes, program.memory)):
            self.lanes.run(main, way, body)
        program.workspace = self.workspace

    def _graph(self, program: Program, body: Callable[[], None]) -> streams.Graph:
        self._free_retired()
        main = self._origin.ptr
        streams.begin_capture(main)
        try:
            self._launch(program, body, main, "own graph")
        except BaseException:
            streams.abandon_capture(main)
            raise
        return streams.end_capture(main)

    def _free_retired(self) -> None:
        """Free the graphs of dropped programs, if none of them can be running (local)."""
        while _MAX_RETIRED and all(map(streams.is_done, self._order.last)):
            _MAX_RETIRED.popleft()[0].close()

    def _record(self, body: Callable[[], None], main: int) -> None:
        """Record an execution into the caller's own graph."""
        self._capture = streams.capture_of(main)
        before = self._order.recorded(self._capture, main, self._behind)
        if before is not None:
            runtime.streamWaitEvent(main, before, 0)
        sink = CapturingSink(self.lanes, self._memory_of_captures)
        with streams.relaxed(), self._giving_to(sink):  # a first one takes memory and loads kernels
            self.lanes.run(main, "caller's graph", body)
        if self.workspace is not None:
            self.workspace.calls += 1
        runtime.eventRecord(self._behind, main)
        self._kept.append(body)  # with the plan's own memory
        self._watchdog.recorded()


_APART, _MOVED = 1 << 40, 1 << 32
"""Made-up addresses: from one operand to the next, and how far the first of them is moved."""


def _elsewhere(x: Any, number: int, turn: int) -> Any:
    """An array like x, aligned like it, at one of two made-up places."""
    place = (number + 1) * (_APART + turn * _MOVED) + x.data.ptr % ALIGNMENT
    memory = cupy.cuda.UnownedMemory(place, _MOVED, None, int(runtime.getDevice()))
    return cupy.ndarray(x.shape, x.dtype, cupy.cuda.MemoryPointer(memory, 0), x.strides)
