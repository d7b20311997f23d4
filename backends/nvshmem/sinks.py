"""What becomes of the operations of an execution: one sink for each way to run them.

An operation computes what is to be launched, and gives it to the sink. The lanes know whether their streams are those
of a GPU, or keep what they are given (`pblas.backends.nvshmem.replay`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pblas.backends.nvshmem.replay import NotRecordableError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from pblas.backends.cuda.recordable import Stream
    from pblas.backends.nvshmem.lanes import Lanes
    from pblas.backends.push_engine import Finish

    Start = Callable[[Stream], object]


class Product(NamedTuple):
    """A GEMM that was listed: Z := alpha X Y, and what follows."""

    alpha: complex
    x: Any
    y: Any
    z: Any
    conj: tuple[bool, bool]
    tf32: bool
    finish: Finish | None


class Sink:
    """Launches operations: eagerly, or into a graph that is launched later.

    Args:
        lanes: of the execution (local).
        memory: arrays that it needs beside its operands; kept as long as what is launched again (local).
    """

    captured = False
    """Whether operations go into a graph of the caller's: those have scratch, counters and marks of their own."""

    def __init__(self, lanes: Lanes, memory: dict[Any, Any]) -> None:
        self._lanes, self.memory = lanes, memory

    def stream(self, lane: str) -> Stream:
        """The stream of a lane, or what keeps what it is given; `int` of it is for calls that are not kept."""
        return self._lanes.stream(lane)

    def launch(self, lane: str, start: Start) -> None:
        """Launch something: `start(stream)`."""
        start(self._lanes.stream(lane))

    def product(self, lane: str, start: Start, rehearse: Callable[[list[Product]], object]) -> None:
        """Launch products; before any execution, `rehearse(products)` loads what they need, or lists them."""
        del rehearse
        self.launch(lane, start)

    def operate(self, lane: str, operations: Iterable[Any]) -> None:
        """Set words, or wait for them: see `Lanes.operate`."""
        self._lanes.operate(lane, operations)

    def follow(self, lane: str, after: Iterable[Hashable]) -> None:
        """The next operation of a lane starts after these operations of others."""
        self._lanes.follow(lane, after)

    def mark(self, lane: str, index: Hashable) -> None:
        """Others will follow the last operation of a lane."""
        self._lanes.mark(lane, index)

    def packed(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """An array that `make` returns at first, and that is kept with the execution's memory."""
        if key not in self.memory:
            self.memory[key] = make()
        return self.memory[key]


class CapturingSink(Sink):
    """Launches operations into a graph of the caller's."""

    captured = True


class RecordingSink(Sink):
    """Gives operations to lanes that keep them."""

    def packed(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Raises: what is packed lies elsewhere for each set of operands."""
        del make
        raise NotRecordableError(f"packed operands: {key}")


class RehearsingSink(Sink):
    """Lists products, and launches nothing that peers would see."""

    def __init__(self, lanes: Lanes, memory: dict[Any, Any]) -> None:
        super().__init__(lanes, memory)
        self.products: list[Product] = []

    def launch(self, lane: str, start: Start) -> None:
        """Nothing."""

    def product(self, lane: str, start: Start, rehearse: Callable[[list[Product]], object]) -> None:
        """List it, or load what it needs."""
        del lane, start
        rehearse(self.products)

    def operate(self, lane: str, operations: Iterable[Any]) -> None:
        """Nothing."""

    def follow(self, lane: str, after: Iterable[Hashable]) -> None:
        """Nothing."""

    def mark(self, lane: str, index: Hashable) -> None:
        """Nothing."""
