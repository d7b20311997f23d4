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
from typing import TYPE_CHECKING, Any

import cupy
from cupy.cuda import runtime

from pblas.backends.cuda import streams
from pblas.backends.nvshmem.lanes import Lanes
from pblas.backends.nvshmem.replay import Tape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pblas.backends.nvshmem.lanes import Way
    from pblas.backends.nvshmem.replay import Recording
    from pblas.backends.nvshmem.shared import Common
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
        _GRAVEYARD.extend((graph, self.memory) for graph in self.graphs if graph is not None)


_GRAVEYARD: deque[tuple[streams.Graph, Any]] = deque()
"""Graphs whose programs were dropped, perhaps by the garbage collector and while they run; they are freed later."""


class Executions:
    """Launches the executions of a queue of a context, one after the other.

    Args:
        common: what the context's engines share (local).
        queue: whose they are; None: they run alone (global).
    """

    def __init__(self, common: Common, queue: int | None) -> None:
        self._exchange, self._origin, self._watchdog = common.ranks.exchange, common.origin, common.watchdog
        self._order, self._queue = common.nvshmem.order, queue
        self.lanes = Lanes()
        self._before, self._behind = streams.event(), streams.event()
        self._capture = self._begun = -1  # the caller's capture that is going on; the last one that has begun here
        self._memory_of_captures: dict[Any, Any] = {}
        self._kept: list[Any] = []  # what the caller's graphs use beside it
        # Of the execution that is being issued:
        self.captured = False  # into a graph of the caller's
        self.recording = False  # and not launched
        self.workspace: Workspace | None = None
        self.memory = self._memory_of_captures  # arrays that it needs beside its operands

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

    def rehearse(self, body: Callable[[], None]) -> None:
        """Run a body that issues nothing that peers would see, on the engine's own stream (local)."""
        self.follow_all()
        self.memory = {}
        self.lanes.run(self._origin.ptr, "eager", body)

    def record(self, body: Callable[[], None]) -> Tape:
        """What an execution would launch (local)."""
        tape = Tape()
        self.memory, self.recording = tape.memory, True
        try:
            self.lanes.record(tape, body)
        finally:
            self.recording = False
        return tape

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
        self._bury()
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
        self.memory = program.memory
        self.lanes.run(main, way, body)
        program.workspace = self.workspace

    def _graph(self, program: Program, body: Callable[[], None]) -> streams.Graph:
        self._bury()
        main = self._origin.ptr
        streams.begin_capture(main)
        try:
            self._launch(program, body, main, "own graph")
        except BaseException:
            streams.abandon_capture(main)
            raise
        return streams.end_capture(main)

    def _bury(self) -> None:
        """Free the graphs of dropped programs, if none of them can be running (local)."""
        while _GRAVEYARD and all(map(streams.is_done, self._order.last)):
            _GRAVEYARD.popleft()[0].close()

    def _record(self, body: Callable[[], None], main: int) -> None:
        """Record an execution into the caller's own graph."""
        self._capture = streams.capture_of(main)
        before = self._order.recorded(self._capture, main, self._behind)
        if before is not None:
            runtime.streamWaitEvent(main, before, 0)
        self.captured, self.memory = True, self._memory_of_captures
        with streams.relaxed():  # a first one takes memory and loads kernels
            try:
                self.lanes.run(main, "caller's graph", body)
            finally:
                self.captured = False
        if self.workspace is not None:
            self.workspace.calls += 1
        runtime.eventRecord(self._behind, main)
        self._kept.append(body)  # with the plan's own memory
        self._watchdog.recorded()
