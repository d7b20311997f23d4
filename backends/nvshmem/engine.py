"""The engine of the push transport on GPUs: three streams, flags that kernels wait for, and CUDA graphs.

The first execution on a set of arrays runs eagerly. The second is captured into a graph, once for each parity of the
workspace, and from then on an execution is one graph launch on the caller's stream. In a capture of the caller's own
the parity would be baked in, so such executions use a workspace of their own with one parity and end with a barrier.

All executions of a process are chained in call order by an event, whatever their streams and contexts: two of them side
by side, in different order on two ranks, could wait for each other for ever.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import runtime

from pblas import errors
from pblas.backends.blocks import call_site
from pblas.backends.cuda import streams
from pblas.backends.cuda.gemm import Gemm, needs_copy, read
from pblas.backends.nvshmem.kernels import (
    RECORD,
    Kernels,
    Watch,
    all_reduce_flags_nbytes,
    barrier_flags_nbytes,
    push_counter_nbytes,
)
from pblas.backends.nvshmem.kernels import Block as Run
from pblas.backends.nvshmem.watchdog import REFUSED, Fault, Watchdog
from pblas.schedule import LANES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pblas.backends.nvshmem.backend import NvshmemBackend

_ALIGNMENT = 256
_PACK_NBYTES = 16  # what a thread of a kernel moves at a time
_FLAG_NBYTES = 4
_PRIORITY = -5  # of copies and sums: the highest, so that they do not wait for GEMMs that are launched before them
_REFUSAL_SECONDS = 5.0  # in which the message of a rank that refused arrives


class Workspace:
    """Flags and slots in symmetric memory, and the number of calls made on them.

    Args:
        block: symmetric memory: flags, flags of the all-reduce kernels, then the slots, for each parity (global).
        peers: where each rank's block begins in this rank's address space (local).
        nbytes: of the slots of one parity (global).
        phases: flags that each rank has at each other, in each parity (global).
        parities: 2, or 1 for captures of the user's own (global).
    """

    def __init__(self, block: Any, peers: list[int], nbytes: int, phases: int, parities: int) -> None:
        self.block, self.peers, self.nbytes, self.phases, self.parities = block, peers, nbytes, phases, parities
        self.calls = 0
        self.flags_nbytes, self.shot_nbytes, _ = layout(len(peers), nbytes, phases)
        self.pitch = self.flags_nbytes + self.shot_nbytes + nbytes

    @property
    def parity(self) -> int:
        """Which half the next call uses."""
        return self.calls % self.parities


def layout(nprocs: int, nbytes: int, phases: int) -> tuple[int, int, int]:
    """Bytes of the flags, of the all-reduce kernels' flags and of one parity of a workspace."""
    flags = _padded(phases * nprocs * _FLAG_NBYTES)
    shot = _padded(all_reduce_flags_nbytes(nprocs))
    return flags, shot, flags + shot + nbytes


def _padded(nbytes: int) -> int:
    return nbytes + -nbytes % _ALIGNMENT


class Program:
    """What the engine keeps of executions on the same arrays: a graph for each parity, and arrays that they need."""

    __slots__ = ("graphs", "memory", "seen", "workspace")

    def __init__(self) -> None:
        self.seen = False
        self.memory: dict[Any, Any] = {}
        self.workspace: Workspace | None = None
        self.graphs: list[streams.Graph | None] = [None, None]

    def __del__(self) -> None:
        _GRAVEYARD.extend((graph, self.memory) for graph in self.graphs if graph is not None)


_GRAVEYARD: deque[tuple[streams.Graph, Any]] = deque()
"""Graphs whose programs were dropped, perhaps by the garbage collector and while they run; engines free them."""


def _make_lanes() -> dict[str, Any]:
    return {lane: cupy.cuda.Stream(non_blocking=True, priority=_PRIORITY) for lane in LANES[1:]}


class StreamEngine:
    """Runs schedules on this rank's GPU.

    Args:
        backend: ranks and symmetric memory (global).
    """

    def __init__(self, backend: NvshmemBackend) -> None:
        self._backend, self._rank, self._size = backend, backend.rank, backend.size
        self._workspace: Workspace | None = None
        self._running: Workspace | None = None  # the workspace of the call that is being issued
        self._single = False  # it is being recorded into a graph of the user's
        self._captures: list[Workspace] = []  # of the user's own graphs, which nobody says the end of
        error: errors.PblasError | None = None
        try:
            self._prepare()
        except errors.BackendError as caught:
            error = caught
        except Exception as caught:  # noqa: BLE001 - CuPy's, NVRTC's and the driver's; the others must not wait
            error = errors.BackendError(f"Context: the GPU of rank {self._rank}: {type(caught).__name__}: {caught}")
        backend.agree("load the GPU's kernels", error)
        self._gemm.adopt(backend.broadcast_object(self._gemm.choices() if self._rank == 0 else None, 0))
        self._memory = backend.arena.allocate(_ALIGNMENT, "the engine's abort word")
        self._barrier_memory = backend.arena.allocate(barrier_flags_nbytes(self._size), "the engine's barrier")
        self._barrier, words = backend.peers(self._barrier_memory), backend.peers(self._memory)
        for block in (self._memory, self._barrier_memory):
            runtime.memsetAsync(block.address, 0, block.nbytes, self._origin.ptr)
        self._origin.synchronize()
        record = np.frombuffer(self._record, RECORD, 1)
        record["code"] = 0
        self.watchdog = Watchdog(self._rank, self._size, words, record, backend.exchange.timeout)
        self._watch = Watch(int(backend.exchange.timeout * 1e9), words[self._rank], self._record.ptr)
        backend.agree("make an engine")

    def _prepare(self) -> None:
        """What concerns this rank alone: kernels, streams, memory."""
        self._kernels = Kernels()
        self._gemm = Gemm(lanes=("main", "captured"))
        if self._rank == 0:
            self._gemm.load()
        self._origin = cupy.cuda.Stream(non_blocking=True)
        # Executions that run eagerly, that are captured for this engine's own graphs, and for a graph of the user's.
        self._lanes, self._own_lanes, self._captured_lanes = (_make_lanes() for _ in range(3))
        self._events: dict[Any, int] = {}
        self._memory_of_captures: dict[Any, Any] = {}
        self._kept: list[Any] = []  # what the user's graphs use beside it
        self._packs = self._memory_of_captures  # arrays that the call being issued needs beside its operands
        self._rehearsed: list[Any] | None = None
        self._now: dict[str, int] = {}  # the stream of each lane, during a call
        self._epoch = self.private(_FLAG_NBYTES)
        self._counters = {single: self.private(push_counter_nbytes()) for single in (False, True)}
        self._record = cupy.cuda.alloc_pinned_memory(RECORD.itemsize)
        for array in (self._epoch, *self._counters.values()):
            runtime.memsetAsync(array.data.ptr, 0, array.nbytes, self._origin.ptr)
        self._kernels.load(self._origin.ptr)
        self._origin.synchronize()

    # Memory

    def reserve(self, nbytes: int, phases: int) -> Workspace:
        """**Collective.** The context's workspace, with at least `nbytes` bytes and `phases` in each parity.

        Growing makes another workspace: plans keep the one that they were made with.
        """
        found = self._workspace
        if found is None or found.nbytes < nbytes or found.phases < phases:
            self._workspace = found = self._new_workspace(nbytes, phases, 2)
        return found

    def _new_workspace(self, nbytes: int, phases: int, parities: int) -> Workspace:
        if not self._single:
            self._follow_all()
        nbytes = _padded(nbytes)
        flags, shot, one = layout(self._size, nbytes, phases)
        block = self._backend.arena.allocate(parities * one, call_site)
        work = Workspace(block, self._backend.peers(block), nbytes, phases, parities)
        for parity in range(parities):  # the device is not synchronised: the caller may be capturing
            runtime.memsetAsync(work.peers[self._rank] + parity * work.pitch, 0, flags + shot, self._origin.ptr)
        self._origin.synchronize()
        self._backend.agree("make a workspace")  # no flag is set before all are reset
        self.watchdog.watch(work)
        return work

    def homes(self, x: Any) -> list[int] | None:
        """**Collective.** Where an array lies on every rank, as this GPU sees it; None if it is not symmetric memory.

        It has to be the same place of the same block everywhere, and tight.
        """
        window, offset = (-1, 0) if x is None or not x.size else self._backend.arena.locate(x.data.ptr)
        if x is not None and not _is_tight(x, min(_orders(x), default="F")):
            window = -1
        maxima = (window, -window, offset, -offset)
        found = self._backend.agree("plan_matmul: where D lies", maxima=maxima).maxima
        if window < 0 or found != maxima:
            return None
        arena = self._backend.arena
        return [x.data.ptr if r == self._rank else arena.place_address(window, offset, r) for r in range(self._size)]

    def private(self, nbytes: int) -> Any:
        """Bytes of this rank alone (local)."""
        try:
            memory = cupy.cuda.Memory(max(nbytes, 1))  # not from a pool of the user's
        except runtime.CUDARuntimeError as error:
            raise errors.WorkspaceError(f"GPU {self._backend.device}: {nbytes} bytes: {error}") from None
        return cupy.ndarray((nbytes,), np.uint8, cupy.cuda.MemoryPointer(memory, 0))

    def matrix(self, shape: tuple[int, int], strides: tuple[int, int], dtype: np.dtype[Any]) -> Any:
        """A new local part of a matrix, in CuPy's memory (local)."""
        slow = 1 if strides[0] <= strides[1] else 0
        memory = cupy.cuda.alloc(max(shape[slow] * strides[slow], dtype.itemsize))
        return cupy.ndarray(shape, dtype, memory, strides)

    def address(self, x: Any) -> int:
        """Where an array lies (local)."""
        return self._backend.address(x)

    def array(self, offset: int, shape: tuple[int, int], dtype: np.dtype[Any], order: Any) -> Any:
        """A tight array in this rank's own workspace of the current call (local)."""
        work = self._current
        start = self._slots(work, self._rank) - work.peers[self._rank] + offset
        memory = cupy.cuda.UnownedMemory(work.peers[self._rank], work.parities * work.pitch, work.block)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, start), order=order)

    def part(self, memory: Any, offset: int, shape: tuple[int, int], dtype: np.dtype[Any], order: Any) -> Any:
        """A tight array `offset` bytes into private memory (local)."""
        return cupy.ndarray(shape, dtype, memory.data + offset, order=order)

    def columns(self, x: Any, blocks: int) -> Any:
        """Equal blocks of the columns of a matrix, as a batch of matrices: the same memory (local)."""
        rows, (down, across) = x.shape[0], x.strides
        width = x.shape[1] // blocks
        return cupy.lib.stride_tricks.as_strided(x, (blocks, rows, width), (width * across, down, across))

    def _slots(self, work: Workspace, peer: int) -> int:
        return work.peers[peer] + self._parity * work.pitch + work.flags_nbytes + work.shot_nbytes

    def _flag(self, peer: int, source: int, phase: int) -> int:
        work = self._current
        return work.peers[peer] + self._parity * work.pitch + (phase * self._size + source) * _FLAG_NBYTES

    # Executions

    def program(self) -> Program:
        """What is kept of executions on the same arrays (local)."""
        return Program()

    def run(self, program: Program, body: Callable[[], None], stream: Any) -> None:
        """One execution on the caller's stream: a graph launch if these arrays were seen before (local)."""
        main = self._main(stream)
        watchdog, exchange = self.watchdog, self._backend.exchange
        if watchdog.fault is not None or watchdog.gave_up or exchange.broken is not None:
            self.raise_fault()
        if main not in (0, 1) and runtime.streamIsCapturing(main):  # those two, default streams, cannot
            self._run_captured(body, main)
            return
        process = self._backend.nvshmem
        if process.last is not None:
            runtime.streamWaitEvent(main, process.last, 0)
        try:
            self._issue(program, body, main)
        except BaseException as caught:  # peers may have got a part of what they wait for
            exchange.broken = f"execute: {type(caught).__name__} in the middle of it"
            raise
        finally:
            process.last = watchdog.launched(main)

    def _main(self, stream: Any) -> int:
        """The handle of the caller's stream; what is none is refused on every rank."""
        if stream is None:
            return int(cupy.cuda.get_current_stream().ptr)
        try:
            return streams.handle_of(stream)
        except errors.ArgumentError as error:
            self._backend.refuse(error)
            raise

    def _issue(self, program: Program, body: Callable[[], None], main: int) -> None:
        """Launch the graph of a program, or run the body."""
        self._packs = program.memory
        if not program.seen:
            self._on(main, self._lanes, body)
            program.seen, program.workspace = True, self._running
            work = self._running
        else:
            work = program.workspace
            parity = 0 if work is None else work.parity
            graph = program.graphs[parity]
            if graph is None:
                graph = program.graphs[parity] = self._capture(body)
            graph.launch(main)
        if work is not None:
            work.calls += 1

    def _on(self, main: int, lanes: dict[str, Any], body: Callable[[], None]) -> None:
        """Run a body with `main` as its main lane, from which the others fork and which they join."""
        self._now = {"main": main} | {lane: stream.ptr for lane, stream in lanes.items()}
        self._used: set[str] = set()
        self._running = None
        runtime.eventRecord(self._event("fork"), main)
        body()
        for lane in sorted(self._used):
            runtime.eventRecord(self._event("join", lane), self._now[lane])
            runtime.streamWaitEvent(main, self._event("join", lane), 0)

    def _capture(self, body: Callable[[], None]) -> streams.Graph:
        self._bury()
        main = self._origin.ptr
        streams.begin_capture(main)
        try:
            self._on(main, self._own_lanes, body)
        except BaseException:
            streams.abandon_capture(main)
            raise
        return streams.end_capture(main)

    def _bury(self) -> None:
        """Free the graphs of dropped programs, if none of them can be running (local)."""
        last = self._backend.nvshmem.last
        while _GRAVEYARD and (last is None or streams.is_done(last)):
            _GRAVEYARD.popleft()[0].close()

    def _run_captured(self, body: Callable[[], None], main: int) -> None:
        """Record an execution into the user's own graph."""
        self._single, self._packs = True, self._memory_of_captures
        try:
            self._on(main, self._captured_lanes, body)
        finally:
            self._single = False
        self._kernels.barrier(main, self._rank, self._barrier, self._epoch.data.ptr, watch=self._watch)
        self._kept.append(body)  # with the plan's own memory
        self.watchdog.start()

    @contextmanager
    def call(self, workspace: Workspace | None) -> Iterator[None]:
        """The operations of one execution, which uses the next parity of the workspace if it uses one (local)."""
        if workspace is not None and self._single:
            if not self._captures or self._captures[-1].nbytes < workspace.nbytes:
                self._captures.append(self._new_workspace(workspace.nbytes, workspace.phases, 1))
            workspace = self._captures[-1]
        if workspace is not None:
            self._current, self._parity = workspace, workspace.parity
        self._running = workspace
        yield

    def rehearse(self, body: Callable[[], None], *, autotune: bool) -> None:
        """**Collective.** Run the GEMMs alone, which loads their kernels; tune them first if asked to."""
        main, products, error = self._origin.ptr, list[Any](), None
        self._follow_all()
        self._rehearsed, self._packs = products, {}
        try:
            self._on(main, self._lanes, body)
            if autotune and self._rank == 0:
                problems = [read(x, y, z, conj, tf32=tf32).problem for _, x, y, z, conj, tf32 in products]
                self._gemm.tune(problems, main)
                self._gemm.save()
        except errors.BackendError as caught:
            error = caught
        finally:
            self._rehearsed = None
        self._backend.agree("plan_matmul: choose algorithms", error)
        if autotune:
            self._gemm.adopt(self._backend.broadcast_object(self._gemm.choices() if self._rank == 0 else None, 0))
        try:
            for alpha, x, y, z, conj, tf32 in products:
                self._gemm.matmul(main, alpha, x, y, 0.0, z, conj=conj, tf32=tf32)
        except errors.BackendError as caught:
            error = caught
        self._origin.synchronize()
        self._backend.agree("plan_matmul: load kernels", error)

    def _follow_all(self) -> None:
        """Let the engine's own stream wait for the caller's current one and for all executions (local)."""
        runtime.eventRecord(self._event("before"), cupy.cuda.get_current_stream().ptr)
        runtime.streamWaitEvent(self._origin.ptr, self._event("before"), 0)
        if self._backend.nvshmem.last is not None:
            runtime.streamWaitEvent(self._origin.ptr, self._backend.nvshmem.last, 0)

    def is_idle(self) -> bool:
        """Whether all executions have ended (local)."""
        return self.watchdog.is_idle()

    def refuse(self) -> None:
        """Let the peers' streams go on: this rank will not send what they wait for (local)."""
        self.watchdog.tell(Fault(self._rank, (REFUSED,), -1, 0.0))

    def has_fault(self) -> bool:
        """Whether an execution has failed (local)."""
        return self.watchdog.fault is not None or self.watchdog.gave_up

    def raise_fault(self) -> None:
        """The error of a broken context; if a rank refused its arguments, that rank's."""
        exchange, end = self._backend.exchange, time.monotonic() + _REFUSAL_SECONDS
        while self.watchdog.fault is None and exchange.broken is None and time.monotonic() < end:
            time.sleep(1e-3)
        fault = self.watchdog.fault
        if exchange.broken is None:
            assert fault is not None, "a kernel that gave up is a fault within a tick"
            if fault.refused:
                exchange.wait(lambda: False, "execute", _REFUSAL_SECONDS)
            exchange.broken = fault.text(self._size)
            self._backend.nvshmem.abandon(exchange.broken)
            raise errors.PeerTimeout(exchange.broken)
        raise errors.ContextError(f"execute: the context is broken since this happened: {exchange.broken}")

    def close(self) -> None:
        """Forget the workspaces; no plan uses them any more (local)."""
        self.watchdog.close()
        if self.has_fault():  # what still waits, uses it
            return
        self._bury()
        self._gemm.close()
        self._workspace, self._captures, self._kept = None, [], []
        self._memory_of_captures.clear()
        self._memory = self._barrier_memory = None

    # Lanes

    def _stream(self, lane: str) -> int:
        """The stream of a lane, which forks from the main one at its first use."""
        stream = self._now[lane]
        if lane != "main" and lane not in self._used:
            self._used.add(lane)
            runtime.streamWaitEvent(stream, self._event("fork"), 0)
        return stream

    def _event(self, *key: Any) -> int:
        if key not in self._events:
            self._events[key] = streams.event()
        return self._events[key]

    def follow(self, lane: str, after: Iterable[int]) -> None:
        """The next operation of a lane starts after these operations of others."""
        if self._rehearsed is None:
            for index in after:
                runtime.streamWaitEvent(self._stream(lane), self._event("op", index), 0)

    def mark(self, lane: str, index: int) -> None:
        """Others will follow this operation, the last of its lane."""
        if self._rehearsed is None:
            runtime.eventRecord(self._event("op", index), self._stream(lane))

    # Operations

    def put(self, lane: str, source: Any, peer: int, offset: int, order: Any) -> None:
        """Copy an array into the workspace of a peer, tight, in the given order, by a copy engine."""
        if self._rehearsed is None:
            self._copy(lane, source, self._slots(self._current, peer) + offset, order)

    def _copy(self, lane: str, source: Any, target: int, order: Any) -> None:
        fast, slow = (0, 1) if order == "F" else (1, 0)
        width, height = source.shape[fast] * source.itemsize, source.shape[slow]
        if width * height:
            step = source.strides[slow] if height > 1 else width
            streams.copy(self._stream(lane), target, width, source.data.ptr, step, width, height)

    def signal(self, lane: str, peers: Iterable[int], phase: int) -> None:
        """Set this rank's flags of a phase at some peers, after what the lane did before."""
        if self._rehearsed is None:
            streams.write_ones(self._stream(lane), [self._flag(peer, self._rank, phase) for peer in peers])

    def burst(
        self,
        lane: str,
        puts: Iterable[tuple[int, Any, int, Any]],
        phase: int,
        peers: Iterable[int],
        awaits: Iterable[int],
        step: str,
    ) -> None:
        """Several puts, the signals behind them, and the flags of those that are awaited, by one kernel."""
        if self._rehearsed is not None:
            return
        peers = list(peers)
        blocks = []
        for peer, source, offset, order in puts:
            fast, slow = (0, 1) if order == "F" else (1, 0)
            width, lines = source.shape[fast] * source.itemsize, source.shape[slow]
            target, signal = self._slots(self._current, peer) + offset, -1 if peer == self._rank else peers.index(peer)
            blocks.append(Run(source.data.ptr, target, width, signal, lines, source.strides[slow], width))
        flags = [self._flag(peer, self._rank, phase) for peer in peers]
        self._kernels.push(self._stream(lane), blocks, flags, self._counters[self._single].data.ptr)
        self.wait(lane, phase, awaits, step)

    def _packed(self, key: Any, like: Any, order: Any) -> Any:
        """A tight array of the same shape, kept as long as the graphs that use it."""
        key = (*key, like.shape, like.dtype, order, like.data.ptr)
        if key not in self._packs:
            self._packs[key] = self.part(self.private(like.nbytes), 0, like.shape, like.dtype, order)
        return self._packs[key]

    def wait(self, lane: str, phase: int, sources: Iterable[int], step: str) -> None:
        """Hold a lane until the flags of a phase are set, and reset them, by a kernel."""
        del step
        sources = list(sources)
        if self._rehearsed is None and sources:
            flags = [self._flag(self._rank, source, phase) for source in sources]
            self._kernels.wait(self._stream(lane), flags, sources, watch=self._watch, step=phase)

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
    ) -> None:
        """Z := alpha X Y + beta Z, accumulated in 32 bits at least, rounded once."""
        if not z.size:
            return
        copies = needs_copy(x, y, z, conj)
        x, y = (
            self._conjugate(lane, w, number) if needed else w
            for number, (w, needed) in enumerate(zip((x, y), copies, strict=True))
        )
        conj = (conj[0] and not copies[0], conj[1] and not copies[1])
        if self._rehearsed is not None:
            self._rehearsed.append((alpha, x, y, z, conj, tf32))
            return
        workspace = "captured" if self._single else "main"
        self._gemm.matmul(self._stream(lane), alpha, x, y, beta, z, conj=conj, lane=workspace, tf32=tf32)

    def _conjugate(self, lane: str, x: Any, number: int) -> Any:
        order = "F" if x.strides[0] <= x.strides[1] else "C"
        target = self._packed(("conj", number), x, order)
        if self._rehearsed is None:
            rows, columns = x.shape if order == "F" else x.shape[::-1]
            step = max(x.strides) // x.itemsize if columns > 1 else rows
            self._kernels.conjugate(self._stream(lane), x.dtype, rows, columns, x.data.ptr, step, target.data.ptr, rows)
        return target

    def sum(self, lane: str, parts: list[Any], beta: complex, old: Any, out: Any) -> None:
        """Out := the parts, added in their order, + beta old, rounded once."""
        if self._rehearsed is not None or not out.size:
            return
        order = self._common_order(out, parts[0])
        if old is not None and order not in _orders(old):
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
            **keep,
        )

    def reduce_scatter(
        self,
        lane: str,
        parts: list[Any],
        order: Any,
        slot_nbytes: int,
        beta: complex,
        old: Any,
        out: Any,
        contributing: list[int],
    ) -> None:
        """Out := the sum of all ranks' partial products of this rank's part of D, + beta old."""
        rank, size = self._rank, self._size
        others = [(rank + i) % size for i in range(1, size)]
        first, itemsize = list(accumulate((part.size for part in parts), initial=0)), parts[rank].itemsize
        if all(start * itemsize % _PACK_NBYTES == 0 for start in first):  # one kernel does it all
            if self._rehearsed is None:
                result = out if _is_tight(out, order) else self._packed(("result",), out, order)
                bases = [self._slots(self._current, peer) for peer in range(size)]
                tight = None if old is None else self._tight(lane, old, order)
                self._kernels.reduce_scatter(
                    *(self._stream(lane), out.dtype, first, parts[0].data.ptr, result.data.ptr),
                    rank=rank,
                    slots=bases,
                    slot_nbytes=slot_nbytes,
                    flags=[base - self._current.shot_nbytes for base in bases],
                    watch=self._watch,
                    old=0 if tight is None else tight.data.ptr,
                    beta=0.0 if tight is None else beta,
                    wire=parts[rank].dtype,
                    contributing=contributing,
                )
                if result is not out:
                    self.copy(lane, result, out)
            return
        sent = others if rank in contributing else []
        puts = [(peer, parts[peer], rank * slot_nbytes, order) for peer in sent if parts[peer].size]
        self.burst(lane, puts, 0, others, others, "GemmReduceScatter: partial products of")
        mine = parts[rank]
        slots = [
            mine if r == rank else self.array(r * slot_nbytes, mine.shape, mine.dtype, order)
            for r in (*others, rank)
            if r in contributing
        ]
        self.sum(lane, slots, beta, old, out)

    def one_shot(
        self,
        lane: str,
        partial: Any,
        slot_nbytes: int,
        beta: complex,
        old: Any,
        out: Any,
        contributing: list[int],
    ) -> None:
        """Out := the sum of all ranks' partial products + beta old, on all ranks, each of which adds all."""
        if self._rehearsed is not None:
            return
        tight, result, bases = self._operands(lane, old, out)
        self._kernels.one_shot(
            *(self._stream(lane), out.dtype, partial.size, partial.data.ptr, result.data.ptr),
            rank=self._rank,
            slots=bases,
            slot_nbytes=slot_nbytes,
            flags=[base - self._current.shot_nbytes for base in bases],
            watch=self._watch,
            old=0 if tight is None else tight.data.ptr,
            beta=0.0 if tight is None else beta,
            wire=partial.dtype,
            contributing=contributing,
        )
        if result is not out:
            self.copy(lane, result, out)

    def two_shot(
        self,
        lane: str,
        wire: np.dtype[Any],
        first: list[int],
        results_at: int,
        homes: list[int] | None,
        beta: complex,
        old: Any,
        out: Any,
        contributing: list[int],
        phase: int,
    ) -> None:
        """Out := the sum of all ranks' partial products + beta old, on all ranks, each of which adds its share."""
        del phase  # these kernels have flags of their own
        if self._rehearsed is not None:
            return
        tight, result, bases = self._operands(lane, old, out)
        results = [base + results_at for base in bases]
        self._kernels.two_shot(
            *(self._stream(lane), out.dtype, first, result.data.ptr),
            rank=self._rank,
            partials=bases,
            flags=[base - self._current.shot_nbytes for base in bases],
            results=results if homes is None else homes,
            watch=self._watch,
            old=0 if tight is None else tight.data.ptr,
            beta=0.0 if tight is None else beta,
            wire=wire,
            contributing=contributing,
        )
        if result is not out:
            self.copy(lane, result, out)

    def _operands(self, lane: str, old: Any, out: Any) -> tuple[Any, Any, list[int]]:
        """C and D as an all-reduce takes them, stored by columns and tight, and where the workspaces begin."""
        tight = None if old is None else self._tight(lane, old, "F")
        result = out if _is_tight(out, "F") else self._packed(("result",), out, "F")
        return tight, result, [self._slots(self._current, peer) for peer in range(self._size)]

    def _tight(self, lane: str, x: Any, order: Any) -> Any:
        """The array, or a copy of it that is tight and in the given order."""
        if _is_tight(x, order):
            return x
        if order not in _orders(x):
            return self._reordered(lane, x, order)
        packed = self._packed(("tight",), x, order)
        self.copy(lane, x, packed)
        return packed

    def copy(self, lane: str, source: Any, target: Any) -> None:
        """Target := source, of the same dtype, by a kernel."""
        if self._rehearsed is not None or not target.size:
            return
        if _orders(target) & _orders(source):
            self.scale(lane, 1.0, source, target)
        else:
            self._assign(lane, source, target)

    def scale(self, lane: str, beta: complex, source: Any, target: Any) -> None:
        """Target := beta source; with beta = 0 the source is not read."""
        if self._rehearsed is not None or not target.size:
            return
        if not _orders(target) & _orders(source):
            source = self._reordered(lane, source, min(_orders(target)))
        order = self._common_order(target, source)
        rows, columns = target.shape if order == "F" else target.shape[::-1]
        self._kernels.scale(
            *(self._stream(lane), target.dtype, rows, columns, beta),
            *(source.data.ptr, _ld(source, order), target.data.ptr, _ld(target, order)),
        )

    @staticmethod
    def _common_order(x: Any, y: Any) -> str:
        """The storage order that two arrays share."""
        common = _orders(x) & _orders(y)
        assert common, "blocks of one matrix are stored alike"
        return max(common)

    def _reordered(self, lane: str, x: Any, order: Any) -> Any:
        """A copy of an array in the other storage order."""
        target = self._packed(("order",), x, order)
        self._assign(lane, x, target)
        return target

    def _assign(self, lane: str, source: Any, target: Any) -> None:
        """Target := source, which is stored in the other order."""
        with cupy.cuda.Stream.from_external(streams.Handle(self._stream(lane))):
            cupy.copyto(target, source)


def _orders(x: Any) -> set[str]:
    """The storage orders in which an array can be read: both for vectors whose elements are neighbours."""
    found = {"F"} if x.shape[0] <= 1 or x.strides[0] == x.itemsize else set()
    return found | ({"C"} if x.shape[1] <= 1 or x.strides[1] == x.itemsize else set())


def _is_tight(x: Any, order: str) -> bool:
    """Whether an array fills its memory, in this order."""
    return order in _orders(x) and _ld(x, order) == max(1, x.shape[0 if order == "F" else 1])


def _ld(x: Any, order: str) -> int:
    fast, slow = (0, 1) if order == "F" else (1, 0)
    return x.strides[slow] // x.itemsize if x.shape[slow] > 1 else max(1, x.shape[fast])
