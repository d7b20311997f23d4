"""Launches of executions, and their order.

The first execution on a set of arrays runs eagerly. The second is captured into a graph, once for each parity of the
workspace, and from then on an execution is one graph launch on the caller's stream. Planning the product records the
launches of the first two executions where that is possible (`pblas.backends.nvshmem.replay`). A graph that the caller
captures contains a fixed parity. Its executions therefore use a separate workspace, and a barrier of all ranks precedes
the first of them.

Events chain the executions of a process in the order of the calls, across streams and contexts. Executions of different
queues are not chained (`Order` of `startup.py`). Executions in one graph of the caller's are chained
within the graph.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import cupy
from cupy.cuda import runtime

from pblas import errors
from pblas.backends.cuda import streams
from pblas.backends.cuda.transfer import new_array
from pblas.backends.nvshmem.replay import NotRecordableError, Recording, Replay
from pblas.backends.nvshmem.sinks import CapturingSink, Lanes, LaunchMode, Product, RecordingSink, RehearsingSink, Sink
from pblas.backends.nvshmem.workspace import ALIGNMENT, PARITIES, Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pblas.backends.cuda.gemm import Gemm
    from pblas.backends.dtypes import Array, GpuArray
    from pblas.backends.nvshmem.shared import EngineResources


class Program:
    """State of a plan's executions on one set of arrays: a CUDA graph for each parity, and the memory that it uses."""

    __slots__ = ("graphs", "joins", "memory", "places", "recording", "seen", "workspace")

    def __init__(self, recording: Recording | None, places: Sequence[int], *, joins: bool = True) -> None:
        self.seen: bool = False
        self.joins: bool = joins  # see `Engine.program`
        self.recording: Recording | None = recording
        self.places: Sequence[int] = places
        self.memory: dict[Any, Any] = {} if recording is None else recording.memory
        self.workspace: Workspace | None = None if recording is None else recording.workspace
        self.graphs: list[streams.Graph | None] = [None, None]

    def __del__(self) -> None:
        _retired.extend((graph, self.memory) for graph in self.graphs if graph is not None)


_retired: deque[tuple[streams.Graph, Any]] = deque()
"""Graphs of dropped programs. The garbage collector may drop a program while its graph runs, so it is freed later."""


class Executions:
    """Launches the executions of a queue of a context, one after the other."""

    def __init__(self, common: EngineResources, queue: int | None) -> None:
        self._exchange, self._origin, self._watchdog = common.ranks.agreement, common.origin, common.watchdog
        self._order, self._queue = common.nvshmem.order, queue
        self.lanes: Lanes = Lanes()
        self._before, self._after = streams.event(), streams.event()
        self._capture = self._begun = -1  # the caller's current capture; the last one with a barrier
        self._memory_of_captures: dict[object, Any] = {}
        self._kept: list[Any] = []  # memory that the caller's graphs use
        self.sink: Sink = Sink(self.lanes, {})  # takes the operations of the current execution
        self.workspace: Workspace | None = None  # workspace of the current execution

    def run(self, program: Program, body: Callable[[], None], main: int) -> None:
        """One execution on the caller's stream `main`: a graph launch if these arrays were seen before (local)."""
        if main not in (0, 1) and runtime.streamIsCapturing(main):  # 0 and 1: default streams
            self._record(program, body, main)
            return
        for event in self._order.before(self._queue):
            runtime.streamWaitEvent(main, event, 0)
        try:
            self._issue(program, body, main)
        except BaseException as caught:  # peers may have received a part of the data
            self._exchange.broken = f"execute: {type(caught).__name__} in the middle of it"
            raise
        finally:
            self._order.launched(self._queue, self._watchdog.launched(main, self._queue))

    def rehearse(self, body: Callable[[], None]) -> list[Product]:
        """The products of a body; nothing is launched that peers can observe (local)."""
        self.follow_all()
        sink = RehearsingSink(self.lanes, {})
        with self._using(sink):
            self.lanes.run(self._origin.ptr, "eager", body)
        return sink.products

    def record(self, body: Callable[[], None]) -> Replay:
        """The launches of an execution, recorded and not run (local)."""
        replay = Replay()
        with self._using(RecordingSink(self.lanes, replay.memory)):
            self.lanes.record(replay, body)
        return replay

    def recorded(
        self, gemm: Gemm, operands: Sequence[Array], execution: Callable[[list[Any]], Callable[[], None]]
    ) -> Recording | None:
        """The launches of executions on operands of this memory layout; None if they cannot be recorded (local)."""
        first, second = (
            [_at_made_up_address(x, number, shift) for number, x in enumerate(operands)] for shift in (0, 1)
        )
        places = enumerate(zip(first, second, strict=True))
        shifts = {y.data.ptr - x.data.ptr: (number, x.data.ptr) for number, (x, y) in places}
        recording, calls = Recording(gemm), 0
        try:
            for _ in range(PARITIES):
                replay, second_replay = (self.record(execution(arrays)) for arrays in (first, second))
                if not replay.compare(second_replay, shifts):
                    return None
                recording.add(replay, self.workspace)
                if recording.workspace is None:
                    break
                recording.workspace.calls += 1
                calls += 1
        except (NotRecordableError, errors.PblasError):  # the driver may reject made-up addresses
            return None
        finally:
            if recording.workspace is not None:
                recording.workspace.calls -= calls
        return recording

    @contextmanager
    def _using(self, sink: Sink) -> Iterator[None]:
        """A with block in which a sink receives the operations."""
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
        """Whether this is the first such question in the caller's current capture (local)."""
        begins, self._begun = self._capture != self._begun, self._capture
        return begins

    def close(self) -> None:
        """Free the memory of executions; none of them may still run (local)."""
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

    def _launch(self, program: Program, body: Callable[[], None], main: int, mode: LaunchMode) -> None:
        """Replay the recording, or run the body."""
        if program.recording is not None and program.recording.is_current:
            self.lanes.launch(main, mode, program.recording.replay, program.places)
            return
        with self._using(Sink(self.lanes, program.memory)):
            self.lanes.run(main, mode, body, joins=program.joins)
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
        while _retired and all(map(streams.is_done, self._order.last)):
            _retired.popleft()[0].close()

    def _record(self, program: Program, body: Callable[[], None], main: int) -> None:
        """Record an execution into the caller's own graph."""
        self._capture = streams.capture_of(main)
        before = self._order.recorded(self._capture, main, self._after)
        if before is not None:
            runtime.streamWaitEvent(main, before, 0)
        sink = CapturingSink(self.lanes, self._memory_of_captures)
        with streams.relaxed(), self._using(sink):  # a first execution allocates memory and loads kernels
            self.lanes.run(main, "caller's graph", body, joins=program.joins)
        if self.workspace is not None:
            self.workspace.calls += 1
        runtime.eventRecord(self._after, main)
        self._kept.append(body)  # with the plan's own memory
        self._watchdog.recorded()


_OPERAND_PITCH, _SHIFT = 1 << 40, 1 << 32
"""Made-up addresses: bytes from one operand to the next, and the distance between an operand's two addresses."""


def _at_made_up_address(x: GpuArray, number: int, shift: int) -> GpuArray:
    """An array with the layout and alignment of x, at one of two made-up addresses."""
    place = (number + 1) * (_OPERAND_PITCH + shift * _SHIFT) + x.data.ptr % ALIGNMENT
    memory = cupy.cuda.UnownedMemory(place, _SHIFT, None, int(runtime.getDevice()))
    return new_array(x.shape, x.dtype, cupy.cuda.MemoryPointer(memory, 0), x.strides)
