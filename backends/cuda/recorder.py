"""Times of operations on a GPU: events on its lanes, converted to the host's clock.

During a recording executions run eagerly, since operations inside a graph have no events. With NVSHMEM the GPU waits
before each execution until the host has launched all of it and all ranks have arrived. This hides launch times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import cupy
from cupy.cuda import runtime

from pblas.backends.cuda import streams
from pblas.backends.recorder import Described, Open, Recorder

if TYPE_CHECKING:
    from types import TracebackType

    from pblas.backends.traced import Mark

_DELAY_NS = 3_000_000  # time for the host to launch all operations of an execution

_TRIES = 8  # readings of both clocks; the fastest one counts


class DeviceRecorder(Recorder):
    """Records the times of this rank's operations on a GPU while its `with` block runs.

    A lane is a CUDA stream of an execution. An operation of a lane is timed by CUDA events on that stream; messages and
    waits of the host are on a lane "host", by the host's clock.

    If an operation calls others on its stream, only the outermost one is recorded: the operation that the plan issues.
    The inner ones are its launches, and timing each of them would put more events on the stream. (`Recorder` splits the
    time of the outer operation instead, which costs a reading of the clock.) Waits are recorded wherever they occur,
    and the enclosing operation's time excludes them, because a trace has to show how long a lane waits for other ranks.
    """

    def __enter__(self) -> Self:
        self._running: Any = None  # the engine of the execution that the host issues now
        self._programs: list[Any] = []  # kept alive: the GPU uses their memory
        self._base = self._tie()
        super().__enter__()
        self._replace(self._backend.arrays, "replayed", self._run_again)
        if self._backend.push:
            for engine in self._backend.engines():
                self._replace(engine, "run", self._run(engine, engine.run))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if kind is None:
            runtime.deviceSynchronize()
        self._programs.clear()

    def _tie(self) -> tuple[float, Any]:
        """A time of the host, and an event at that time."""
        stream, readings = cupy.cuda.Stream(non_blocking=True), []
        for _ in range(_TRIES):
            event, start = cupy.cuda.Event(), time.perf_counter()
            event.record(stream)
            event.synchronize()
            stop = time.perf_counter()
            readings.append((stop - start, (start + stop) / 2, event))
        _, host_time, event = min(readings, key=lambda reading: reading[0])
        return host_time, event

    def _seconds(self) -> Callable[[Any], float]:
        host_time, base = self._base

        def seconds(mark: object) -> float:
            return mark if isinstance(mark, float) else host_time + 1e-3 * float(cupy.cuda.get_elapsed_time(base, mark))

        return seconds

    def _is_timed(self, mark: Mark) -> bool:
        return not mark.has_stream  # the caller's stream is no lane

    def _engine_method(self, mark: Mark) -> Callable[..., Described | None]:
        """Describe an engine's operation during an execution only, not while it is rehearsed or captured."""
        return lambda *arguments, **named: mark.described(*arguments, **named) if self._running else None

    def _run(self, engine: Any, method: Callable[..., None]) -> Callable[..., None]:
        def run(program: Any, body: Callable[[], None], stream: object) -> None:
            if stream is not None and not hasattr(stream, "__cuda_stream__"):
                method(program, body, stream)  # it rejects the stream
                return
            main = streams.current_handle(stream)
            if streams.is_capturing(main):
                method(program, body, stream)
                return
            engine.meet(main, _DELAY_NS)
            self._programs.append(engine.program())  # a new program runs eagerly
            self._running = engine
            try:
                method(self._programs[-1], lambda: self._watched(body), stream)
            finally:
                self._running = None

        return run

    def _run_again(self, programs: Any, key: object, body: Callable[[], None]) -> bool:
        """Replacement of `replayed`: run the body eagerly, on lanes that begin together."""
        arrays = self._backend.arrays
        if self._backend.push:
            self._backend.engine().meet(arrays.stream, _DELAY_NS)
            runtime.streamWaitEvent(arrays.side, arrays.mark().ptr, 0)
        body()
        return True

    def _watched(self, body: Callable[[], None]) -> None:
        """Run an execution. If it has no recorded operations, as collectives, it counts as one operation."""
        whole, count = Open("main", "sum", "collective", {}, self._mark("main")), len(self._recorded_spans)
        body()
        if len(self._recorded_spans) == count:
            self._end(whole, self._mark("main"))

    # Lanes

    def _lane(self) -> str:
        """The lane on which the backend's arrays launch their work now."""
        arrays = self._backend.arrays
        return "side" if arrays.stream == arrays.side else "main"

    def _host_lane(self) -> str:
        return "host"

    def _stack(self, lane: str) -> list[Open]:
        return self._stacks.setdefault(lane, [])

    def _mark(self, lane: str) -> Any:
        if lane == "host":
            return time.perf_counter()
        stream = self._running.stream(lane) if self._running else self._backend.arrays.stream
        event = cupy.cuda.Event()
        runtime.eventRecord(event.ptr, stream)
        return event

    def _is_own(self, op: Open, around: list[Open]) -> bool:
        return not around or op.kind == "wait" or op.lane == "host"
