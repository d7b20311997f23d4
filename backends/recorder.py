"""Recorder of the times of this rank's operations.

The Protocols `Device` and `Engine` mark the methods that are recorded, those of `backend.arrays` and
`backend.engine()`; messages of `backend.channel`, waits and agreements of the backend are listed here. An active
recorder replaces these methods on their objects by wrappers. When no recorder is active there is no overhead.

`PBLAS_NVTX=1` asks for NVTX ranges of the same operations, by the same wrappers, for Nsight Systems.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from pblas import errors
from pblas.backends.device import Device
from pblas.backends.push_engine import Engine
from pblas.backends.traced import Kind, Mark, marks

if TYPE_CHECKING:
    from types import TracebackType

    from pblas.backends.dtypes import Array
    from pblas.backends.transport import Transfer


Described = tuple[str, Kind, str, dict[str, Any]]  # the lane, kind, name and details of an operation, as in `Event`

Methods = dict[str, Callable[..., Described | None]]
"""Methods, each with a function that describes a call of it; None for a call that does nothing."""

MOST_EVENTS = 200_000  # maximum number of events of one rank; later ones are not recorded


@dataclass(frozen=True, slots=True)
class Event:
    """An operation, with its start and stop, on a lane of a rank: a sequence of operations that do not overlap.

    Args:
        rank: owner of the lane.
        lane: "main", "copy" or "side"; "from rank 2" for messages; "host" for the host of a GPU.
        kind: "gemm", "factor", "sum", "copy", "message", "signal", "wait", or "agree" for an agreement of all ranks.
        name: the operation in words, for people.
        start: time of its start, seconds.
        stop: time of its stop, seconds.
        details: its sizes, bytes and ranks.
    """

    rank: int
    lane: str
    kind: Kind
    name: str
    start: float
    stop: float
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Arrival:
    """A message to this rank: the time when the receive began and, once observed, the time of arrival (seconds)."""

    source: int
    tag: int
    nbytes: int
    posted: float
    done: float | None = None


@dataclass(slots=True)
class Open:
    """A running operation, and the mark (time or event) since which it is the innermost operation of its lane."""

    lane: str
    kind: Kind
    name: str
    details: dict[str, Any]
    since: object


class Recorder:
    """Records the start and stop of each operation of this rank, and its messages, while its `with` block runs.

    A lane is a row of the recorded trace: operations that run one after the other. While an operation runs another
    operation, the time counts for the inner one only. So no two recorded times overlap.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._replaced: list[tuple[Any, str, Any]] = []
        self._stacks: dict[str, list[Open]] = {}
        self._recorded_spans: list[tuple[Open, Any, Any]] = []
        self.sends: list[tuple[int, int, float]] = []  # rank, tag and time of each message sent (local)
        self.arrivals: list[Arrival] = []

    def __enter__(self) -> Self:
        for target, methods in self._methods():
            for name, describe in methods.items():
                self._replace(target, name, self._recorded(getattr(target, name), describe))
        arrays, channel = self._backend.arrays, self._backend.channel
        self._replace(arrays, "on_side_lane", self._on_side_lane(arrays.on_side_lane))
        self._replace(channel, "receive", self._receive(channel.receive))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._replaced:
            target, name, original = self._replaced.pop()
            if original is None:
                delattr(target, name)
            else:  # the method of an outer recorder
                setattr(target, name, original)

    @property
    def is_full(self) -> bool:
        """Whether the recorder has reached `MOST_EVENTS`, so that it records no further operations (local)."""
        return len(self._recorded_spans) >= MOST_EVENTS

    def events(self) -> list[Event]:
        """The recorded operations, unordered; messages are in `sends` and `arrivals` (local)."""
        seconds = self._seconds()
        return [
            Event(self._backend.rank, op.lane, op.kind, op.name, seconds(start), seconds(stop), op.details)
            for op, start, stop in self._recorded_spans
        ]

    # Methods that depend on the backend

    def _methods(self) -> list[tuple[Any, Methods]]:
        """Objects with their recorded methods, and the functions that describe calls of these."""
        backend = self._backend
        host: Methods = {
            "wait": lambda _arrived, step: (self._host_lane(), "wait", step, {}),
            "agree": lambda call, *_, **__: (self._host_lane(), "agree", call.partition("\n")[0], {}),
        }
        engine_methods = {name: self._engine_method(mark) for name, mark in marks(Engine).items()}
        array_methods = {name: self._array_method(mark) for name, mark in marks(Device).items() if self._is_timed(mark)}
        return [
            (backend, host),
            (backend.channel, {"send": self._send}),
            (backend.arrays, array_methods),
            *((engine, engine_methods) for engine in backend.engines()),
        ]

    def _is_timed(self, mark: Mark) -> bool:
        """Whether calls of a marked method of the arrays take time that the lane shows."""
        return not (mark.kind == "wait" and self._backend.arrays.traits.blocking)

    def _array_method(self, mark: Mark) -> Callable[..., Described | None]:
        """A function that describes a call of a method of the arrays, on the lane of the call."""
        lane = self._host_lane if mark.on_host else self._lane
        return lambda *arguments, **named: mark.described(lane(), *arguments, **named)

    def _engine_method(self, mark: Mark) -> Callable[..., Described | None]:
        """A function that describes a call of an engine's method, whose first argument is the lane."""
        return mark.described

    def _lane(self) -> str:
        """The lane of an operation without a lane argument: the lane of the enclosing operation."""
        stack = self._stack("main")
        return stack[-1].lane if stack else "main"

    def _stack(self, lane: str) -> list[Open]:
        """The open operations of a lane, innermost last; on CPUs one thread runs all lanes."""
        return self._stacks.setdefault("", [])

    def _mark(self, lane: str) -> Any:
        """A mark of the present time on a lane."""
        return time.perf_counter()

    def _seconds(self) -> Callable[[Any], float]:
        """A function that converts marks to seconds of this host's clock."""
        return float

    def _is_own(self, op: Open, around: list[Open]) -> bool:
        """Whether an operation becomes an event of its own, and not a part of the operations that enclose it."""
        return True

    # Recording

    def _replace(self, target: object, name: str, replacement: object) -> None:
        self._replaced.append((target, name, vars(target).get(name)))
        setattr(target, name, replacement)

    def _recorded(self, method: Callable[..., Any], describe: Callable[..., Described | None]) -> Callable[..., object]:
        def recorded(*arguments: object, **options: object) -> Any:
            described = describe(*arguments, **options)
            if described is None:
                return method(*arguments, **options)
            with self._span(*described) as op:
                result = method(*arguments, **options)
                if result is False:  # the engine declined it
                    op.since = None
                return result

        return recorded

    @contextmanager
    def _span(self, lane: str, kind: Kind, name: str, details: dict[str, Any]) -> Iterator[Open]:
        stack, op = self._stack(lane), Open(lane, kind, name, details, None)
        if not self._is_own(op, stack):
            yield op
            return
        op.since = self._mark(lane)
        if stack:
            self._end(stack[-1], op.since)
        stack.append(op)
        try:
            yield op
        finally:
            stack.pop()
            now = self._mark(lane)
            self._end(op, now)
            if stack:
                stack[-1].since = now

    def _end(self, op: Open, mark: object) -> None:
        if op.since is not None and not self.is_full:
            self._recorded_spans.append((op, op.since, mark))

    def _on_side_lane(self, method: Callable[..., Any]) -> Callable[..., object]:
        @contextmanager
        def on_side_lane(what: str = "", kind: Kind = "copy") -> Iterator[None]:
            with method(what, kind):
                if not what:
                    yield
                    return
                with self._span(self._lane(), kind, what, {}):
                    yield

        return on_side_lane

    def _receive(self, method: Callable[..., Any]) -> Callable[..., object]:
        def receive(x: Array, source: int, tag: int) -> Any:
            if self.is_full:
                return method(x, source, tag)
            arrival = Arrival(source, tag, x.nbytes, time.perf_counter())
            self.arrivals.append(arrival)
            return _Followed(method(x, source, tag), arrival)

        return receive

    # Descriptions

    def _host_lane(self) -> str:
        """The lane in which this rank's process waits and sends."""
        return self._lane()

    def _send(self, x: Array, dest: int, tag: int) -> Described:
        if not self.is_full:
            self.sends.append((dest, tag, time.perf_counter()))
        return self._host_lane(), "copy", f"send to rank {dest}", {"bytes": x.nbytes}


class _Followed:
    """A transfer that records its arrival when it is first observed."""

    __slots__ = ("_arrival", "_transfer")

    def __init__(self, transfer: Transfer, arrival: Arrival) -> None:
        self._transfer, self._arrival = transfer, arrival

    def done(self) -> bool:
        """Whether the message arrived."""
        if not self._transfer.done():
            return False
        if self._arrival.done is None:
            self._arrival.done = time.perf_counter()
        return True


VARIABLE = "PBLAS_NVTX"
_DOMAIN = "pblas"
_COLOURS: dict[Kind, str] = {
    "gemm": "blue",
    "factor": "red",
    "sum": "green",
    "copy": "orange",
    "signal": "purple",
    "wait": "grey",
}


def ranges_wanted() -> bool:
    """Whether PBLAS_NVTX asks for ranges (local)."""
    value = os.environ.get(VARIABLE) or "0"
    if value not in ("0", "1"):
        raise errors.ArgumentError(f"{VARIABLE} must be 0 or 1, got {value!r}")
    if value == "1":
        try:
            import_module("nvtx")
        except ImportError:
            raise errors.BackendError(f"{VARIABLE}=1 needs the package nvtx: pip install nvtx") from None
    return value == "1"


class Ranges(Recorder):
    """Puts each operation of this rank into an NVTX range, while its `with` block runs; keeps no events.

    A range is the time of the host: on GPUs it is the launch of an operation, and Nsight Systems shows the kernels that
    were launched in it. Executions that replay a CUDA graph are one range.
    """

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self._nvtx: Any = import_module("nvtx")

    @property
    def is_full(self) -> bool:
        """Always: messages are not kept (local)."""
        return True

    def _methods(self) -> list[tuple[Any, Methods]]:
        run: dict[str, Callable[..., Described | None]] = {"run": lambda *_: ("main", "gemm", "execution", {})}
        return [*super()._methods(), *((engine, run) for engine in self._backend.engines())]

    @contextmanager
    def _span(self, lane: str, kind: Kind, name: str, details: dict[str, Any]) -> Iterator[Open]:
        self._nvtx.push_range(name, color=_COLOURS.get(kind, "white"), domain=_DOMAIN, category=kind)
        try:
            yield Open(lane, kind, name, details, None)
        finally:
            self._nvtx.pop_range(domain=_DOMAIN)
