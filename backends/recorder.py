"""Recorder of the times of this rank's operations.

All executors call few methods: products, copies and sums of `backend.arrays`, operations of `backend.engine()`,
messages of `backend.channel`, waits and agreements of the backend. An active recorder replaces these methods on their
objects by wrappers. When no recorder is active there is no overhead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

if TYPE_CHECKING:
    from types import TracebackType

    from pblas.backends.push_engine import Output, Portion

Kind = Literal["gemm", "sum", "copy", "message", "signal", "wait", "agree"]
Described = tuple[str, Kind, str, dict[str, Any]]
"""The lane, kind, name and details of an operation, as in `Event`."""

Methods = dict[str, Callable[..., Described | None]]
"""Methods, each with a function that describes a call of it; None for a call that does nothing."""

MOST_EVENTS = 200_000
"""Maximum number of events of one rank; later ones are not recorded."""


@dataclass(frozen=True, slots=True)
class Event:
    """An operation, with its start and stop, on a lane of a rank: a sequence of operations that do not overlap.

    Args:
        rank: owner of the lane.
        lane: "main", "copy" or "side"; "from rank 2" for messages; "host" for the host of a GPU.
        kind: "gemm", "sum", "copy", "message", "signal", "wait", or "agree" for an agreement of all ranks.
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
    since: Any


class Recorder:
    """Records the start and stop of each operation of this rank, and its messages, while its `with` block runs.

    A lane is a row of the recorded trace: operations that run one after the other. While an operation runs another
    operation, the time counts for the inner one only. So no two recorded times overlap.

    Args:
        backend: backend of the context to record (local).
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._replaced: list[tuple[Any, str, Any]] = []
        self._stacks: dict[str, list[Open]] = {}
        self._recorded_spans: list[tuple[Open, Any, Any]] = []
        self.sends: list[tuple[int, int, float]] = []
        """Rank, tag and time of each message sent (local)."""
        self.arrivals: list[Arrival] = []

    def __enter__(self) -> Self:
        for target, methods in self._methods():
            for name, describe in methods.items():
                self._replace(target, name, self._recorded(getattr(target, name), describe))
        arrays, channel = self._backend.arrays, self._backend.channel
        self._replace(arrays, "beside", self._beside(arrays.beside))
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
        engines = [(engine, self._engine_methods()) for engine in backend.engines()]
        return [
            (backend, host),
            (backend.channel, {"send": self._send}),
            (backend.arrays, self._array_methods()),
            *engines,
        ]

    def _array_methods(self) -> Methods:
        return {
            "gemm": lambda _alpha, x, y, _beta, z, **_: (self._lane(), "gemm", *product_text([(x, y, z)])),
            "assign": lambda x, z: (self._lane(), "copy", "round" if x.itemsize > z.itemsize else "copy", _bytes(z)),
            "scale": lambda _beta, z: (self._lane(), "sum", "scale", _bytes(z)),
            "add_scaled": lambda _alpha, _x, _beta, z: (self._lane(), "sum", "add", _bytes(z)),
            "evaluate": lambda _tree, _operands, _compute, z: (self._lane(), "sum", "evaluate", _bytes(z)),
        }

    def _engine_methods(self) -> Methods:
        return ENGINE

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

    def _replace(self, target: Any, name: str, replacement: Any) -> None:
        self._replaced.append((target, name, vars(target).get(name)))
        setattr(target, name, replacement)

    def _recorded(self, method: Callable[..., Any], describe: Callable[..., Described | None]) -> Callable[..., Any]:
        def recorded(*arguments: Any, **options: Any) -> Any:
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

    def _end(self, op: Open, mark: Any) -> None:
        if op.since is not None and not self.is_full:
            self._recorded_spans.append((op, op.since, mark))

    def _beside(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def beside(what: str = "") -> Iterator[None]:
            with method(what):
                if not what:
                    yield
                    return
                with self._span(self._lane(), "sum" if what.startswith("add") else "copy", what, {}):
                    yield

        return beside

    def _receive(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def receive(x: Any, source: int, tag: int) -> Any:
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

    def _send(self, x: Any, dest: int, tag: int) -> Described:
        if not self.is_full:
            self.sends.append((dest, tag, time.perf_counter()))
        return self._host_lane(), "copy", f"send to rank {dest}", {"bytes": x.nbytes}


class _Followed:
    """A transfer that records its arrival when it is first observed."""

    __slots__ = ("_arrival", "_transfer")

    def __init__(self, transfer: Any, arrival: Arrival) -> None:
        self._transfer, self._arrival = transfer, arrival

    def done(self) -> bool:
        """Whether the message arrived."""
        if not self._transfer.done():
            return False
        if self._arrival.done is None:
            self._arrival.done = time.perf_counter()
        return True


def product_text(products: list[tuple[Any, Any, Any]]) -> tuple[str, dict[str, Any]]:
    """Name and sizes of some products Z := X Y, each a batch perhaps.

    >>> import numpy as np
    >>> product_text([(np.empty((2, 3)), np.empty((3, 4)), np.empty((2, 4)))])
    ('GEMM 2 x 4 x 3', {'flops': 48})
    """
    sizes = [(z.shape[-2], z.shape[-1], x.shape[-1], z.shape[0] if z.ndim > 2 else 1) for x, _, z in products]
    names = [f"GEMM {m} x {n} x {k}" + (f", {batch} times" if batch > 1 else "") for m, n, k, batch in sizes]
    name = names[0] if len(names) == 1 else f"GEMM in {len(names)} parts"
    return name, {"flops": sum(2 * m * n * k * batch for m, n, k, batch in sizes)}


def _bytes(z: Any) -> dict[str, Any]:
    return {"bytes": z.nbytes}


def _ranks(ranks: Any) -> str:
    names = [str(rank) for rank in ranks]
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names) or 'none'}"


def _burst(lane: str, puts: Any, phase: int, peers: Any, awaits: Any, step: str) -> Described:
    if awaits and not puts:  # a barrier
        return lane, "wait", f"{step} {_ranks(awaits)}", {"phase": phase}
    return lane, "copy", f"push to {_ranks(peers)}", {"bytes": sum(put[1].nbytes for put in puts), "phase": phase}


def _portions(lane: str, alpha: complex, portions: list[Portion], beta: complex, finish: Any = None) -> Described:
    del alpha, beta, finish
    text, details = product_text([(portion.x, portion.y, portion.z) for portion in portions])
    sent = 0
    for portion in portions:
        flags = [portion.signal, *(flag for _, flag in portion.places)]
        sent += portion.z.nbytes * sum(flag is not None for flag in flags)
    return lane, "gemm", text, details | ({"sent": sent} if sent else {})


def _sum(lane: str, parts: list[Any], output: Output) -> Described:
    name = f"add {len(parts)} partial products" if len(parts) > 1 else "round"
    return lane, "sum", name, {"bytes": output.out.nbytes}


ENGINE: Methods = {
    "await_tile_flag": lambda lane, number: (lane, "wait", "for a portion of the GEMM", {"tile flag": number}),
    "put": lambda lane, source, peer, *_: (lane, "copy", f"put to rank {peer}", _bytes(source)),
    "get": lambda lane, peer, _, target: (lane, "copy", f"get from rank {peer}", _bytes(target)),
    "gets": lambda lane, gets: (
        *(lane, "copy", f"get from {_ranks(get[0] for get in gets)}"),
        {"bytes": sum(get[2].nbytes for get in gets)},
    ),
    "signal": lambda lane, peers, phase: (lane, "signal", f"signal to {_ranks(peers)}", {"phase": phase}),
    "burst": _burst,
    "wait": lambda lane, phase, sources, step: (lane, "wait", f"{step} {_ranks(sources)}", {"phase": phase}),
    "gemm": lambda lane, _alpha, x, y, _beta, z, **_: (lane, "gemm", *product_text([(x, y, z)])),
    "finish": lambda lane, finish, z: None if finish is None else (lane, "sum", "epilogue", _bytes(z)),
    "multiply_portions": _portions,
    "sum": _sum,
    "all_gather": lambda lane, shard, _order, _slots, first, *_: (
        *(lane, "copy", "all-gather in one kernel"),
        {"bytes": first[-1] * shard.itemsize},
    ),
    "reduce_scatter": lambda lane, parts, *_: (
        *(lane, "sum", "reduce-scatter in one kernel"),
        {"bytes": sum(part.nbytes for part in parts)},
    ),
    "one_shot": lambda lane, partial, *_: (lane, "sum", "all-reduce in one shot", _bytes(partial)),
    "two_shot": lambda lane, wire, first, *_: (
        *(lane, "sum", "all-reduce in two shots"),
        {"bytes": first[-1] * wire.itemsize},
    ),
    "copy": lambda lane, _, target: (lane, "copy", "copy", _bytes(target)),
    "convert": lambda lane, _, target: (lane, "sum", f"convert to {target.dtype}", _bytes(target)),
    "scale": lambda lane, _beta, _source, target: (lane, "sum", "scale", _bytes(target)),
}
"""The operations of `pblas.backends.push_engine.Engine`, each with a function that describes a call of it."""
