"""What the lanes of an execution do: copies and flags, products, sums, and the kernels that reduce."""

from __future__ import annotations

from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import runtime

from pblas import errors
from pblas.backends.cuda import streams
from pblas.backends.cuda.gemm import needs_copy
from pblas.backends.engine import MAX_MARKS
from pblas.backends.nvshmem.endings import behind
from pblas.backends.nvshmem.hopper import Hopper, Part, Sent, Term
from pblas.backends.nvshmem.kernels import Block as Run
from pblas.backends.nvshmem.kernels import Slots
from pblas.backends.nvshmem.settings import DEFAULT_QUEUES, hardware_queues
from pblas.backends.nvshmem.tape import NotKeptError
from pblas.backends.nvshmem.workspace import FLAG_NBYTES

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from pblas.backends.cuda.gemm import Gemm
    from pblas.backends.cuda.launches import Stream
    from pblas.backends.engine import Finish, Portion, Sending
    from pblas.backends.nvshmem.backend import NvshmemBackend
    from pblas.backends.nvshmem.executions import Executions
    from pblas.backends.nvshmem.kernels import Behind, Kernels, Watch
    from pblas.backends.nvshmem.lanes import Lanes
    from pblas.backends.nvshmem.workspace import Workspace

_PACK_NBYTES = 16  # what a thread of a kernel moves at a time
_PATIENCE = 2  # times as long a side lane waits by a kernel: the GEMM beside it may give up first, and knows for whom


class Operations:
    """The operations of one execution, on memory of this rank and in its workspace.

    While products are rehearsed, none is issued: they are put on the list `_rehearsed`, all else is left out.

    Args:
        backend: ranks and symmetric memory (global).
    """

    _kernels: Kernels
    _gemm: Gemm
    _lanes: Lanes
    _executions: Executions
    _watch: Watch
    _counters: dict[bool, Any]
    """What pushes count in: one for executions that are recorded into a graph of the caller's, one for all others."""
    _hoppers: dict[bool, Hopper]
    """Products whose parts wait for flags, likewise; none on other GPUs."""
    _marks: dict[bool, Any]
    """Words that those products set, likewise."""
    _current: Workspace
    _queue: int | None

    def __init__(self, backend: NvshmemBackend) -> None:
        self._backend, self._rank, self._size = backend, backend.rank, backend.size
        self._rehearsed: list[Any] | None = None
        self._many_queues = hardware_queues() >= DEFAULT_QUEUES
        self._scratch: dict[bool, Any] = {}  # one for executions that are recorded into a graph of the caller's

    # Memory

    def private(self, nbytes: int) -> Any:
        """Bytes of this rank alone (local)."""
        try:
            memory = cupy.cuda.Memory(max(nbytes, 1))  # not from a pool of the user's
        except runtime.CUDARuntimeError as error:
            raise errors.WorkspaceError(f"GPU {self._backend.device}: {nbytes} bytes: {error}") from None
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

    def join(self) -> None:
        """The next operation of the main lane starts after all that the others have."""
        if self._rehearsed is None:
            self._lanes.join()

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
        width, lines, pitch = _lines(source, order)
        if width * lines:
            streams.copy(self._stream(lane), target, width, source.data.ptr, pitch, width, lines)

    def get(self, lane: str, peer: int, offset: int, target: Any) -> None:
        """Copy a tight array, stored by columns, from the workspace of a peer, by a copy engine."""
        if self._rehearsed is None:
            (width, lines, pitch), source = _lines(target, "F"), self._current.slots(peer) + offset
            streams.copy(self._stream(lane), target.data.ptr, pitch, source, width, width, lines)

    def gets(self, lane: str, gets: Sequence[tuple[int, int, Any]]) -> None:
        """Several gets by one kernel: peer, bytes from the start of its workspace, target."""
        if self._rehearsed is None:
            blocks = []
            for peer, offset, target in gets:
                (width, lines, pitch), source = _lines(target, "F"), self._current.slots(peer) + offset
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
            (width, lines, pitch), target = _lines(source, order), self._current.slots(peer) + offset
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

    def gemm(
        self,
        lane: str,
        alpha: complex,
        x: Any,
        y: Any,
        beta: complex,
        z: Any,
        conj: tuple[bool, bool],
        *,
        tf32: bool,
        finish: Finish | None = None,
    ) -> None:
        """Z := alpha X Y + beta Z, in 32 bits at least, and what follows: before Z is rounded, if cuBLASLt does it."""
        if not z.size:
            return
        copies = needs_copy(x, y, z, conj)
        x, y = (
            self._conjugate(lane, w, number) if needed else w
            for number, (w, needed) in enumerate(zip((x, y), copies, strict=True))
        )
        conj = (conj[0] and not copies[0], conj[1] and not copies[1])
        if self._rehearsed is not None:
            self._rehearsed.append((alpha, x, y, z, conj, tf32, finish))
            return
        stream, workspace = self._stream(lane), self._gemm_lane(captured=self._executions.captured)
        if not self._gemm.matmul(stream, alpha, x, y, beta, z, conj=conj, lane=workspace, tf32=tf32, finish=finish):
            self.finish(lane, finish, z)

    def _gemm_lane(self, *, captured: bool) -> Hashable:
        """Whose workspace products have that may run beside others."""
        return self._queue, captured

    def finish(self, lane: str, finish: Finish | None, z: Any) -> None:
        """Z := what follows it; also while products are rehearsed, with whatever Z is."""
        if finish is not None:
            self._backend.arrays.pointwise.evaluate(self._stream(lane), finish.tree, z, finish.operands, z)

    def multiply_portions(
        self, lane: str, alpha: complex, portions: list[Portion], beta: complex, sending: Sending | None = None
    ) -> bool:
        """Make some portions of a result by one kernel, if there is one for them."""
        hopper, parts = self._hoppers.get(self._executions.captured), [self._part(portion) for portion in portions]
        sent = None if sending is None else self._sent(sending)
        if hopper is None or not hopper.serves(parts, sent):
            return False
        if self._rehearsed is not None:
            for each in self._hoppers.values():
                each.prepare(parts, reads_z=beta != 0, sent=sent)
            return True
        for portion in portions:
            if portion.old is not None and portion.old is not portion.z:
                self.copy(lane, portion.old, portion.z)
        alpha, beta = complex(alpha).real, complex(beta).real
        hopper.matmul(self._stream(lane), alpha, parts, beta, sent=sent, watch=self._watch)
        return True

    def _sent(self, sending: Sending) -> Sent:
        """What is sent, as the Hopper kernel is told of it."""
        phases = (*sending.phases, sending.phases[0])[:2]
        flags = [[self._current.flag(peer, self._rank, phase) for phase in phases] for peer, _ in sending.targets]
        pitch = flags[0][1] - flags[0][0]
        targets = tuple(target for _, target in sending.targets)
        return Sent(sending.shard, 0, targets, tuple(first for first, _ in flags), sending.length, pitch)

    def _part(self, portion: Portion) -> Part:
        """A portion as the Hopper kernel is told of it."""

        def own(flag: tuple[int, int] | None) -> tuple[int, int]:
            return (0, 0) if flag is None else (self._current.flag(self._rank, *flag), flag[0])

        signal = self._mark(portion.mark) if portion.mark >= 0 else 0
        if portion.tells is not None:
            peer, phase = portion.tells
            signal = self._current.flag(peer, self._rank, phase)
        terms = tuple(Term(z, *own(flag)) for z, flag in portion.terms)
        where = (portion.x, portion.y, portion.z, *own(portion.awaits))
        more = (portion.ready, signal, portion.partial, terms, portion.places)
        return Part(*where, *more, late=portion.late)

    def _conjugate(self, lane: str, x: Any, number: int) -> Any:
        order = "F" if x.strides[0] <= x.strides[1] else "C"
        target = self._packed(("conj", number), x, order)
        if self._rehearsed is None:
            rows, columns = x.shape if order == "F" else x.shape[::-1]
            step = max(x.strides) // x.itemsize if columns > 1 else rows
            self._kernels.conjugate(self._stream(lane), x.dtype, rows, columns, x.data.ptr, step, target.data.ptr, rows)
        return target

    def sum(self, lane: str, parts: list[Any], beta: complex, old: Any, out: Any, finish: Finish | None = None) -> None:
        """Out := the parts, added in their order, + beta old, and what follows, rounded once."""
        if not out.size:
            return
        order = self._common_order(out, parts[0])
        follows = self._behind(lane, finish, out, order, wire=parts[0].dtype, scaled=False, family="sum")
        if self._rehearsed is not None:
            return
        if old is not None and order not in orders(old):
            old = self._reordered(lane, old, order)
        rows, columns = out.shape if order == "F" else out.shape[::-1]
        keep = {} if old is None else {"old": old.data.ptr, "old_ld": _ld(old, order), "beta": beta}
        self._kernels.sum(
            self._stream(lane),
            out.dtype,
            rows,
            columns,
            [part.data.ptr for part in parts],
            [_ld(part, order) for part in parts],
            out.data.ptr,
            _ld(out, order),
            wire=parts[0].dtype,
            behind=follows,
            **keep,
        )

    def _behind(self, lane: str, finish: Finish | None, *options: Any, **named: Any) -> Behind | None:
        """What follows, as kernels take it; they are compiled while products are rehearsed."""
        return None if finish is None else behind(self._kernels, self._stream(lane), finish, *options, **named)

    def reduce_scatter(
        self,
        lane: str,
        parts: list[Any],
        order: Any,
        slots: Any,
        beta: complex,
        old: Any,
        out: Any,
        contributing: list[int],
        finish: Finish | None = None,
    ) -> None:
        """Out := the sum of all ranks' partial products of this rank's part of D, + beta old, and what follows."""
        rank, size = self._rank, self._size
        others = [(rank + i) % size for i in range(1, size)]
        if isinstance(slots, Slots):  # one kernel does it all
            follows = self._behind_all(lane, finish, out, order, parts[rank].dtype, old)
            if self._rehearsed is None:
                first = list(accumulate((part.size for part in parts), initial=0))
                result = out if is_tight(out, order) else self._packed(("result",), out, order)
                tight = None if old is None else self._tight(lane, old, order)
                self._kernels.reduce_scatter(
                    *(self._stream(lane), out.dtype, first, parts[0].data.ptr, result.data.ptr),
                    rank=rank,
                    slots=slots,
                    watch=self._watch,
                    old=0 if tight is None else tight.data.ptr,
                    beta=0.0 if tight is None else beta,
                    wire=parts[rank].dtype,
                    contributing=contributing,
                    behind=follows,
                )
                if result is not out:
                    self.copy(lane, result, out)
            return
        sent = others if rank in contributing else []
        puts = [(peer, parts[peer], rank * slots, order) for peer in sent if parts[peer].size]
        self.burst(lane, puts, 0, others, others, "GemmReduceScatter: partial products of")
        mine = parts[rank]
        terms = [
            mine if r == rank else self.array(r * slots, mine.shape, mine.dtype, order)
            for r in (*others, rank)
            if r in contributing
        ]
        self.sum(lane, terms, beta, old, out, finish)

    def _behind_all(
        self, lane: str, finish: Finish | None, out: Any, order: Any, wire: np.dtype[Any], old: Any
    ) -> Behind | None:
        """The same of the kernels that reduce."""
        return self._behind(lane, finish, out, order, wire=wire, scaled=old is not None, family="all_reduce")

    def one_shot(
        self,
        lane: str,
        partial: Any,
        slots: Slots,
        beta: complex,
        old: Any,
        out: Any,
        contributing: list[int],
        finish: Finish | None = None,
    ) -> None:
        """Out := the sum of all ranks' partial products + beta old, and what follows, on all ranks, which all add."""
        follows = self._behind_all(lane, finish, out, "F", partial.dtype, old)
        if self._rehearsed is not None:
            return
        tight, result = self._operands(lane, old, out)
        self._kernels.one_shot(
            *(self._stream(lane), out.dtype, partial.size, partial.data.ptr, result.data.ptr),
            rank=self._rank,
            slots=slots,
            watch=self._watch,
            old=0 if tight is None else tight.data.ptr,
            beta=0.0 if tight is None else beta,
            wire=partial.dtype,
            contributing=contributing,
            behind=follows,
        )
        if result is not out:
            self.copy(lane, result, out)

    def two_shot(
        self,
        lane: str,
        wire: np.dtype[Any],
        first: list[int],
        slots: Slots | None,
        results_at: int,
        homes: list[int] | None,
        beta: complex,
        old: Any,
        out: Any,
        contributing: list[int],
        phase: int,
        finish: Finish | None = None,
    ) -> None:
        """Out := the sum of all ranks' partial products + beta old, and what follows, on all, each of its share."""
        del phase  # these kernels have flags of their own
        follows = self._behind_all(lane, finish, out, "F", wire, old)
        if self._rehearsed is not None:
            return
        tight, result = self._operands(lane, old, out)
        bases = [self._current.slots(peer) for peer in range(self._size)]
        rest: dict[str, Any] = {
            "rank": self._rank,
            "watch": self._watch,
            "old": 0 if tight is None else tight.data.ptr,
            "beta": 0.0 if tight is None else beta,
            "wire": wire,
            "contributing": contributing,
            "behind": follows,
        }
        if slots is not None:
            source = bases[self._rank]
            self._kernels.two_shot(self._stream(lane), out.dtype, first, source, result.data.ptr, slots=slots, **rest)
        else:
            self._kernels.pulled(
                *(self._stream(lane), out.dtype, first, result.data.ptr),
                partials=bases,
                flags=[self._current.shot_flags(peer) for peer in range(self._size)],
                results=[base + results_at for base in bases] if homes is None else homes,
                **rest,
            )
        if result is not out:
            self.copy(lane, result, out)

    def _operands(self, lane: str, old: Any, out: Any) -> tuple[Any, Any]:
        """C and D as an all-reduce takes them, stored by columns and tight."""
        tight = None if old is None else self._tight(lane, old, "F")
        result = out if is_tight(out, "F") else self._packed(("result",), out, "F")
        return tight, result

    def _tight(self, lane: str, x: Any, order: Any) -> Any:
        """The array, or a copy of it that is tight and in the given order."""
        if is_tight(x, order):
            return x
        if order not in orders(x):
            return self._reordered(lane, x, order)
        packed = self._packed(("tight",), x, order)
        self.copy(lane, x, packed)
        return packed

    def copy(self, lane: str, source: Any, target: Any) -> None:
        """Target := source, of the same dtype, by a kernel."""
        if self._rehearsed is not None or not target.size:
            return
        if orders(target) & orders(source):
            self.scale(lane, 1.0, source, target)
        else:
            self._assign(lane, source, target)

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
            *(source.data.ptr, _ld(source, order), target.data.ptr, _ld(target, order)),
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
    return order in orders(x) and _ld(x, order) == max(1, x.shape[0 if order == "F" else 1])


def _lines(x: Any, order: str) -> tuple[int, int, int]:
    """Of a matrix, stored in this order: bytes of a line, their number, bytes from one to the next."""
    fast, slow = (0, 1) if order == "F" else (1, 0)
    width, lines = x.shape[fast] * x.itemsize, x.shape[slow]
    return width, lines, x.strides[slow] if lines > 1 else width


def _ld(x: Any, order: str) -> int:
    return max(1, _lines(x, order)[2] // x.itemsize)
