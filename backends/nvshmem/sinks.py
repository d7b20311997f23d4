"""Sinks take the operations of an execution: one class for each way to run them.

An operation computes its launch and passes it to the sink. A lane is a stream of the GPU, or it records its launches
(`pblas.backends.nvshmem.replay`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pblas.backends.nvshmem.replay import NotRecordableError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from pblas.backends.cuda.recordable import Stream
    from pblas.backends.nvshmem.lanes import Lanes
    from pblas.backends.push_engine import Finish, GemmModes

    Start = Callable[[Stream], object]


class Product(NamedTuple):
    """A GEMM that planning lists before it runs: Z := alpha X Y, and its epilogue."""

    alpha: complex
    x: Any
    y: Any
    z: Any
    conj: tuple[bool, bool]
    modes: GemmModes
    scales: tuple[Any, Any]
    finish: Finish | None


class Sink:
    """Launches operations: eagerly, or into a graph that is launched later.

    Args:
        lanes: of the execution (local).
        memory: further arrays of the execution, kept as long as its graphs (local).
    """

    captured = False
    """Whether operations go into a graph of the caller's, which has its own scratch, counters and tile flags."""

    def __init__(self, lanes: Lanes, memory: dict[Any, Any]) -> None:
        self._lanes = lanes
        self.memory: dict[Any, Any] = memory

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

    def operate(self, lane: str, operations: Iterable[Any]) -> None:
        """Set words, or wait for them: see `Lanes.operate`."""
        self._lanes.operate(lane, operations)

    def follow(self, lane: str, after: Iterable[Hashable]) -> None:
        """The next operation of a lane starts after these operations of other lanes."""
        self._lanes.follow(lane, after)

    def mark(self, lane: str, index: Hashable) -> None:
        """Other lanes will wait for the last operation of a lane."""
        self._lanes.mark(lane, index)

    def packed(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The array of a key: `make` creates it at the first call, and the execution's memory keeps it."""
        if key not in self.memory:
            self.memory[key] = make()
        return self.memory[key]


class CapturingSink(Sink):
    """Launches operations into a graph of the caller's."""

    captured = True


class RecordingSink(Sink):
    """Passes operations to lanes that record them."""

    def packed(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Raise NotRecordableError: each set of operands has packed copies at other addresses."""
        del make
        raise NotRecordableError(f"packed operands: {key}")


class RehearsingSink(Sink):
    """Lists products, and launches nothing that peers can observe."""

    def __init__(self, lanes: Lanes, memory: dict[Any, Any]) -> None:
        super().__init__(lanes, memory)
        self.products: list[Product] = []

    def launch(self, lane: str, start: Start) -> None:
        """Nothing."""

    def product(self, lane: str, start: Start, rehearse: Callable[[list[Product]], object]) -> None:
        """List the product, or load its kernel."""
        del lane, start
        rehearse(self.products)

    def operate(self, lane: str, operations: Iterable[Any]) -> None:
        """Nothing."""

    def follow(self, lane: str, after: Iterable[Hashable]) -> None:
        """Nothing."""

    def mark(self, lane: str, index: Hashable) -> None:
        """Nothing."""
