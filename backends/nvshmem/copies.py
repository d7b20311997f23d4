"""What the lanes of an execution copy, what they tell peers and what they wait for; the memory that it lies in."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import runtime

from pblas import errors
from pblas.backends.cuda import streams
from pblas.backends.gpu_info import DEFAULT_QUEUES, hardware_queues
from pblas.backends.nvshmem.kernels import Block as Run
from pblas.backends.nvshmem.replay import NotKeptError
from pblas.backends.nvshmem.workspace import FLAG_NBYTES
from pblas.backends.push_engine import MAX_MARKS

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from pblas.backends.cuda.recordable import Stream
    from pblas.backends.nvshmem.graph_launch import Executions
    from pblas.backends.nvshmem.kernels import Kernels, Watch
    from pblas.backends.nvshmem.lanes import Lanes
    from pblas.backends.nvshmem.shared import Common
    from pblas.backends.nvshmem.workspace import Workspace

_PATIENCE = 2  # times as long a side lane waits by a kernel: the GEMM beside it may give up first, and knows for whom


class Copies:
    """The operations of one execution that move data and tell of it, on memory of this rank and in its workspace.

    While products are rehearsed, none is issued.

    Args:
        common: what the context's engines share.
    """

    _kernels: Kernels
    _lanes: Lanes
    _executions: Executions
    _watch: Watch
    _counters: dict[bool, Any]
    """What pushes count in: one for executions that are recorded into a graph of the caller's, one for all others."""
    _marks: dict[bool, Any]
    """Words that products set, likewise."""
    _current: Workspace

    def __init__(self, common: Common) -> None:
        self._common, self._rank, self._size = common, common.rank, common.size
        self._rehearsed: list[Any] | None = None
        self._many_queues = hardware_queues() >= DEFAULT_QUEUES
        self._scratch: dict[bool, Any] = {}  # one for executions that are recorded into a graph of the caller's

    # Memory

    def private(self, nbytes: int) -> Any:
        """Bytes of this rank alone (local)."""
        try:
            memory = cupy.cuda.Memory(max(nbytes, 1))  # not from a pool of the user's
        except runtime.CUDARuntimeError as error:
            raise errors.WorkspaceError(f"GPU {self._common.nvshmem.device.index}: {nbytes} bytes: {error}") from None
        return cupy.ndarray((nbytes,), np.uint8, cupy.cuda.MemoryPointer(memory, 0))

    def scratch(self, nbytes: int) -> Any:
        """Bytes of this rank alone, or more, which the executions of all plans use one after the other (local).

        Graphs that were made before it grew keep theirs.
        """
        found = self._scratch.get(self._executions.captured)
        if found is None or found.nbytes < nbytes:
            self._scratch[self._executions.captured] = found = self.private(nbytes)
        self._executions.memory["scratch", found.data.ptr] = found
        return found

    def array(self, offset: int, shape: tuple[int, int], dtype: np.dtype[Any], order: Any) -> Any:
        """A tight array in this rank's own workspace of the current call (local)."""
        return self._current.array(self._rank, offset, shape, dtype, order)

    def place(self, peer: int, offset: int, shape: tuple[int, int], dtype: np.dtype[Any], order: Any) -> Any:
        """A tight array in the workspace of a peer of the current call, to be written (local)."""
        return self._current.array(peer, offset, shape, dtype, order)

    def offset(self, peer: int, home: int) -> int:
        """Bytes from the start of a peer's workspace of the current call to a place that `homes` has named (local)."""
        return home - self._current.slots(peer)

    def part(self, memory: Any, offset: int, shape: tuple[int, int], dtype: np.dtype[Any], order: Any) -> Any:
        """A tight array `offset` bytes into private memory (local)."""
        return cupy.ndarray(shape, dtype, memory.data + offset, order=order)

    def columns(self, x: Any, blocks: int) -> Any:
        """Equal blocks of the columns of a matrix, as a batch of matrices: the same memory (local)."""
        rows, (down, across) = x.shape[0], x.strides
        width = x.shape[1] // blocks
        return cupy.lib.stride_tricks.as_strided(x, (blocks, rows, width), (width * across, down, across))

    # Lanes

    def follow(self, lane: str, after: Iterable[Hashable]) -> None:
        """The next operation of a lane starts after these operations of others."""
        if self._rehearsed is None:
            self._lanes.follow(lane, after)

    def mark(self, lane: str, index: Hashable) -> None:
        """Others will follow this operation, the last of its lane."""
        if self._rehearsed is None:
            self._lanes.mark(lane, index)

    def await_mark(self, lane: str, mark: int) -> None:
        """Hold a lane until `multiply_portions`, issued before on another lane, has set a mark, and reset it."""
        if self._rehearsed is None:
            self._hold(lane, [self._mark(mark)], [self._rank], mark)

    def _mark(self, number: int) -> int:
        """Address of a mark."""
        assert number < MAX_MARKS
        return int(self._marks[self._executions.captured].data.ptr) + number * FLAG_NBYTES

    def _stream(self, lane: str) -> Stream:
        """The stream of a lane, or what keeps what it is given; `int` of it is for calls that are not kept."""
        return self._lanes.stream(lane)

    # Operations

    def put(self, lane: str, source: Any, peer: int, offset: int, order: Any) -> None:
        """Copy an array into the workspace of a peer, tight, in the given order, by a copy engine."""
        if self._rehearsed is None:
            self._copy(lane, source, self._current.slots(peer) + offset, order)

    def _copy(self, lane: str, source: Any, target: int, order: Any) -> None:
        width, lines, pitch = lines_of(source, order)
        if width * lines:
            streams.copy(self._stream(lane), target, width, source.data.ptr, pitch, width, lines)

    def get(self, lane: str, peer: int, offset: int, target: Any) -> None:
        """Copy a tight array, stored by columns, from the workspace of a peer, by a copy engine."""
        if self._rehearsed is None:
            (width, lines, pitch), source = lines_of(target, "F"), self._current.slots(peer) + offset
            streams.copy(self._stream(lane), target.data.ptr, pitch, source, width, width, lines)

    def gets(self, lane: str, gets: Sequence[tuple[int, int, Any]]) -> None:
        """Several gets by one kernel: peer, bytes from the start of its workspace, target."""
        if self._rehearsed is None:
            blocks = []
            for peer, offset, target in gets:
                (width, lines, pitch), source = lines_of(target, "F"), self._current.slots(peer) + offset
                blocks.append(Run(source, target.data.ptr, width, -1, lines, width, pitch))
            self._kernels.push(self._stream(lane), blocks, [], self._counters[self._executions.captured].data.ptr)

    def signal(self, lane: str, peers: Iterable[int], phase: int) -> None:
        """Set this rank's flags of a phase at some peers, after what the lane did before."""
        if self._rehearsed is None:
            self._lanes.operate(lane, self._current.signals(self._rank, tuple(peers), phase))

    def burst(
        self,
        lane: str,
        puts: Iterable[tuple[int, Any, int, Any]],
        phase: int,
        peers: Iterable[int],
        awaits: Iterable[int],
        step: str,
    ) -> None:
        """Several puts, the signals behind them, and the flags of those that are awaited, by one kernel or two."""
        if self._rehearsed is not None:
            return
        peers = list(peers)
        blocks = []
        for peer, source, offset, order in puts:
            (width, lines, pitch), target = lines_of(source, order), self._current.slots(peer) + offset
            signal = -1 if peer == self._rank else peers.index(peer)
            blocks.append(Run(source.data.ptr, target, width, signal, lines, pitch, width))
        flags, sources = [self._current.flag(peer, self._rank, phase) for peer in peers], list(awaits)
        if blocks or not sources:
            self._kernels.push(self._stream(lane), blocks, flags, self._counters[self._executions.captured].data.ptr)
            self.wait(lane, phase, sources, step)
        else:
            words = [self._current.flag(self._rank, source, phase) for source in sources]
            self._kernels.wait(self._stream(lane), words, sources, watch=self._watch, step=phase, told=flags)

    def _packed(self, key: Any, like: Any, order: Any) -> Any:
        """A tight array of the same shape, kept as long as the graphs that use it; each set of operands has its own."""
        if self._executions.recording:
            raise NotKeptError("packed operands")
        key = (*key, like.shape, like.dtype, order, like.data.ptr)
        if key not in self._executions.memory:
            self._executions.memory[key] = self.part(self.private(like.nbytes), 0, like.shape, like.dtype, order)
        return self._executions.memory[key]

    def wait(self, lane: str, phase: int, sources: Iterable[int], step: str) -> None:
        """Hold a lane until the flags of a phase are set, and reset them."""
        del step
        sources = list(sources)
        if self._rehearsed is None and sources:
            self._hold(lane, [self._current.flag(self._rank, source, phase) for source in sources], sources, phase)

    def _hold(self, lane: str, words: list[int], sources: list[int], step: int) -> None:
        """Hold a lane until words are set, and reset them: on a side lane by the stream.

        A stream that waits may hold up what stands behind it in the same hardware queue; where there are few of them,
        a kernel waits.
        """
        if lane != "main" and self._many_queues:
            self._lanes.operate(lane, chain.from_iterable(map(streams.awaited_one, words)))
            return
        watch = self._watch._replace(timeout=(1 if lane == "main" else _PATIENCE) * self._watch.timeout)
        self._kernels.wait(self._stream(lane), words, sources, watch=watch, step=step)

    def copy(self, lane: str, source: Any, target: Any) -> None:
        """Target := source, of the same dtype, by a kernel; on a side lane by one that runs beside products."""
        if self._rehearsed is not None or not target.size:
            return
        common = orders(target) & orders(source)
        if not common:
            self._assign(lane, source, target)
        elif lane != "main" and (block := _block(source, target, max(common))).is_in_packs:
            self._kernels.copy(self._stream(lane), block)
        else:
            self.scale(lane, 1.0, source, target)

    def scale(self, lane: str, beta: complex, source: Any, target: Any) -> None:
        """Target := beta source; with beta = 0 the source is not read."""
        if self._rehearsed is not None or not target.size:
            return
        if not orders(target) & orders(source):
            source = self._reordered(lane, source, min(orders(target)))
        order = self._common_order(target, source)
        rows, columns = target.shape if order == "F" else target.shape[::-1]
        self._kernels.scale(
            *(self._stream(lane), target.dtype, rows, columns, beta),
            *(source.data.ptr, leading(source, order), target.data.ptr, leading(target, order)),
        )

    @staticmethod
    def _common_order(x: Any, y: Any) -> str:
        """The storage order that two arrays share."""
        common = orders(x) & orders(y)
        assert common, "blocks of one matrix are stored alike"
        return max(common)

    def _reordered(self, lane: str, x: Any, order: Any) -> Any:
        """A copy of an array in the other storage order."""
        target = self._packed(("order",), x, order)
        self._assign(lane, x, target)
        return target

    def _assign(self, lane: str, source: Any, target: Any) -> None:
        """Target := source, which is stored in the other order."""
        with cupy.cuda.Stream.from_external(streams.Handle(int(self._stream(lane)))):
            cupy.copyto(target, source)


def orders(x: Any) -> set[str]:
    """The storage orders in which an array can be read: both for vectors whose elements are neighbours."""
    found = {"F"} if x.shape[0] <= 1 or x.strides[0] == x.itemsize else set()
    return found | ({"C"} if x.shape[1] <= 1 or x.strides[1] == x.itemsize else set())


def is_tight(x: Any, order: str) -> bool:
    """Whether an array fills its memory, in this order."""
    return order in orders(x) and leading(x, order) == max(1, x.shape[0 if order == "F" else 1])


def lines_of(x: Any, order: str) -> tuple[int, int, int]:
    """Of a matrix, stored in this order: bytes of a line, their number, bytes from one to the next."""
    fast, slow = (0, 1) if order == "F" else (1, 0)
    width, lines = x.shape[fast] * x.itemsize, x.shape[slow]
    return width, lines, x.strides[slow] if lines > 1 else width


def _block(source: Any, target: Any, order: str) -> Run:
    """The copy from one array to another, both stored in this order."""
    (width, lines, source_pitch), (_, _, target_pitch) = lines_of(source, order), lines_of(target, order)
    return Run(source.data.ptr, target.data.ptr, width, -1, lines, source_pitch, target_pitch).flat()


def leading(x: Any, order: str) -> int:
    """The leading dimension of a matrix that is stored in this order, elements."""
    return max(1, lines_of(x, order)[2] // x.itemsize)
