"""What a kernel that multiplies is told to move is what streams would do; ranks do not wait for each other for ever.

Each rank's operations are walked through twice: by streams, and by a kernel that moves what stands on the lane "move".
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pblas.execute import pushed
from pblas.execute.operands import Operands, Orders
from pblas.one_dimensional import AllGatherGemm, GemmAllReduce, GemmReduceScatter
from pblas.plan import Road, Spread
from tests.gauge import dtype_of
from tests.unit.test_schedule import even, gather, reduce, scatter, splits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pblas.backends.engine import Move

    Plan = AllGatherGemm | GemmReduceScatter
    Event = tuple[str, str, Any]  # lane, what is done, with what
    Thread = Iterator[Callable[[], bool]]

NBYTES = 1 << 20


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """With shards that are even, cyclic or empty, and ranks that contribute nothing or have no rows."""
    nprocs = draw(st.integers(2, 8))
    road = Road("movers", tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))))
    shards = draw(st.one_of(splits(nprocs, 1), st.just(even(40 * nprocs, nprocs))))
    kind = draw(st.sampled_from(("gather", "scatter", "reduce")))
    inner = draw(st.one_of(splits(nprocs, 1), st.just(even(4096 * nprocs, nprocs))))
    if kind == "gather":
        return gather(inner, shards, 4, nprocs, road)
    if kind == "scatter":
        return scatter(3, inner, shards, nprocs, road)
    return reduce(3, inner, draw(st.sampled_from((5, 8 * nprocs, 24 * nprocs, 230))), nprocs, road)


class Engine:
    """Keeps what it is given, in that order; its kernel takes moves, or has none of them.

    Args:
        memory: the workspaces of all ranks, and of this one what is its own.
    """

    def __init__(self, rank: int, memory: list[Any], *, moves: bool) -> None:
        self._rank, self._memory, self._moves = rank, memory, moves
        self.events: list[Event] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None

    def call(self, _: Any) -> Any:
        return nullcontext()

    def scratch(self, _: int) -> Any:
        return self._memory[-1]

    def part(self, memory: Any, offset: int, shape: Any, dtype: Any, order: Any) -> Any:
        return np.ndarray(shape, dtype, memory.data, offset, order=order)

    def place(self, peer: int, *where: Any) -> Any:
        return self.part(self._memory[peer], *where)

    def array(self, *where: Any) -> Any:
        return self.place(self._rank, *where)

    def _copy(self, source: Any, target: Any) -> tuple[int, str]:
        """The rank whose workspace is read, -1: none, and where each element comes from and goes to."""
        places = zip(addresses(source), addresses(target), strict=True)
        return next((i for i, x in enumerate(self._memory) if np.may_share_memory(x, source)), -1), str(sorted(places))

    def put(self, lane: str, source: Any, peer: int, offset: int, order: Any) -> None:
        target = self.place(peer, offset, source.shape, source.dtype, order)
        self.events.append((lane, "copy", self._copy(source, target)))

    def get(self, lane: str, peer: int, offset: int, target: Any) -> None:
        source = self.place(peer, offset, target.shape, target.dtype, "F")
        self.events.append((lane, "copy", self._copy(source, target)))

    def signal(self, lane: str, peers: Any, phase: int) -> None:
        self.events += [(lane, "tell", (peer, phase)) for peer in peers]

    def wait(self, lane: str, phase: int, sources: Any, _: str) -> None:
        self.events += [(lane, "await", (source, phase)) for source in sources]

    def await_mark(self, lane: str, mark: int) -> None:
        self.events.append((lane, "await", mark))

    def multiply_portions(self, lane: str, _: Any, portions: Any, __: Any, *, finish: Any, moves: Any = ()) -> bool:
        del finish
        takes = self._moves or not moves
        if takes:
            self.events.append((lane, "kernel", (portions, [event for move in moves for event in self._of(move)])))
        return takes

    def _of(self, move: Move) -> Iterator[Event]:
        """It tells when its own copy is there, whatever those before have done."""
        assert move.mark < 0 or move.awaits is None
        if move.mark >= 0 or move.awaits is not None:
            yield "move", "await", move.mark if move.awaits is None else move.awaits
        if move.source is not None:
            yield "move", "copy", self._copy(move.source, move.target)
        if move.tells is not None:
            yield "move", "tell" if move.source is None else "tell of it", move.tells


def addresses(x: Any) -> list[int]:
    i, j = np.indices(x.shape)
    return list((x.__array_interface__["data"][0] + i * x.strides[0] + j * x.strides[1]).flat)


def local(spread: Spread, rows: int, columns: int, rank: int, dtype: Any, order: str) -> Any:
    """This rank's part of a matrix, in a larger one."""
    m, n = spread.along("rows"), spread.along("columns")
    shape = rows if m is None else m.count(rank), columns if n is None else n.count(rank)
    high, wide = shape if order == "F" else shape[::-1]
    tall = np.zeros((high + 8, wide), dtype, "F")[:high]
    return tall if order == "F" else tall.T


def walked(plan: Plan, right: Any = "F", result: Any = "F") -> list[list[list[Event]]]:
    """What each rank does, by streams and by a kernel."""
    p, dtype, orders = plan.oriented, dtype_of(plan.product.dtype), Orders(right, result)
    memory, found = [np.zeros(NBYTES, np.uint8) for _ in range(p.nprocs)], []
    for rank in range(p.nprocs):
        left, right = local(p.a, p.m, p.k, rank, dtype, "F"), local(p.b, p.k, p.n, rank, dtype, orders.right)
        x = Operands(left, right, local(p.d, p.m, p.n, rank, dtype, orders.result), None, (False, False), 1.0, 0.0)
        own = np.zeros(NBYTES, np.uint8)
        engines = [Engine(rank, [*memory, own], moves=moves) for moves in (False, True)]
        for engine in engines:
            backend: Any = SimpleNamespace(rank=rank, engine=lambda _, engine=engine: engine, agree=lambda *_: None)
            pushed(plan, backend, dtype, dtype, orders, tf32=False).run(x)
        found.append([engine.events for engine in engines])
    return found


def moved(events: list[Event]) -> list[Event]:
    """What is moved, in order, by whomever."""
    inner = [event for _, what, of in events if what == "kernel" for event in of[1]]
    return inner or [event for event in events if event[0] == "move"]


def is_flag(event: Event) -> bool:
    return event[1] == "await" and isinstance(event[2], tuple)


@settings(deadline=None)
@given(plans(), st.sampled_from("FC"), st.sampled_from("FC"))
def test_a_kernel_moves_what_streams_would(plan: Plan, right: str, result: str) -> None:
    """All of it once, behind the same marks, what is got behind its peer's flag, and flags with what they tell of."""
    for by_streams, by_kernel in walked(plan, right, "F" if isinstance(plan, GemmAllReduce) else result):
        streams, kernel = moved(by_streams), moved(by_kernel)
        alike = [(lane, what.removesuffix(" of it"), of) for lane, what, of in kernel]
        marks = [{event for event in found if event[1] == "await" and not is_flag(event)} for found in (streams, alike)]
        assert marks[0] == marks[1]
        assert Counter(e for e in streams if e not in marks[0]) == Counter(e for e in alike if e not in marks[0])
        for i, event in enumerate(streams):
            _, what, of = event
            at = alike.index(event)
            flags = {each for each in streams[:i] if is_flag(each) and what == "copy" and each[2][0] == of[0]}
            assert (marks[0] & set(streams[:i])) | flags <= set(alike[:at])
            if what == "tell" and i and streams[i - 1][1] == "copy" and kernel != streams:
                assert (kernel[at][1], alike[at - 1]) == ("tell of it", streams[i - 1])


class World:
    """All ranks, each by streams or by a kernel, whose parts are made one after the other."""

    def __init__(self, ranks: list[list[Event]]) -> None:
        self._set: set[Any] = set()  # flags and marks, never reset
        self._waits: dict[Thread, Callable[[], bool]] = {}
        for rank, events in enumerate(ranks):
            for name in ("main", "move"):
                self._go_on(self._lane(rank, [event for event in events if event[0] == name]))

    def run(self) -> int:
        """Threads that wait for ever."""
        while able := [thread for thread, may_go in self._waits.items() if may_go()]:
            for thread in able:
                self._go_on(thread)
        return len(self._waits)

    def _go_on(self, thread: Thread) -> None:
        self._waits.pop(thread, None)
        for may_go in thread:
            self._waits[thread] = may_go
            return

    def _lane(self, rank: int, events: list[Event]) -> Thread:
        for _, what, of in events:
            if what == "await":
                yield partial(self._set.__contains__, (rank, of))
            elif what == "kernel":
                inner = {self._parts(rank, of[0]), self._lane(rank, of[1])}
                for thread in inner:
                    self._go_on(thread)
                yield partial(self._waits.keys().isdisjoint, inner)
            elif what != "copy":
                self._set.add((of[0], (rank, of[1])))

    def _parts(self, rank: int, portions: Any) -> Thread:
        for portion in portions:
            for flag in [portion.awaits or None, *(flag for _, flag in portion.terms)]:
                yield partial(lambda flag: flag is None or (rank, flag) in self._set, flag)
            self._set.add((rank, portion.mark))


@settings(deadline=None)
@given(plans(), st.integers(0, 255))
def test_ranks_that_move_by_streams_or_by_kernels_end(plan: Plan, kernels: int) -> None:
    assert World([both[kernels >> rank & 1] for rank, both in enumerate(walked(plan))]).run() == 0
