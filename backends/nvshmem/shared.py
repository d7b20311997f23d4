"""Resources that the engines of a context share: kernels, products, and the watchdog.

A rank that dies or is late must not leave the streams of its peers waiting for ever.
Kernels that wait for a flag have a deadline, but they cannot report a timeout to the host or to peers. Therefore a
thread of each context checks whether a kernel has given up, and whether the executions end in time. If they do not, the
thread finds the missing flags and sets the abort word of every rank. The abort word ends all current and later waits of
kernels. The thread also sets the words that streams themselves wait for, so the streams drain. The outputs of those
executions are undefined, the context is broken, and its next call raises on every rank. A rank that closes its context
during executions breaks it in the same way.
"""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

import cupy
import numpy as np
from cupy.cuda import runtime

from pblas import errors
from pblas.backends.cuda import streams
from pblas.backends.cuda.gemm import Gemm
from pblas.backends.nvshmem.fault import REFUSED, Fault, waited
from pblas.backends.nvshmem.kernels import Kernels
from pblas.backends.nvshmem.kernels.arguments import LONGEST, NO_STEP, RECORD, Watch
from pblas.backends.nvshmem.workspace import ALIGNMENT, FLAG_NBYTES, Workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pblas.backends.allocator import Block
    from pblas.backends.cuda.base import GpuBackend
    from pblas.backends.local_step import AgreedError
    from pblas.backends.nvshmem.heap import Heap
    from pblas.backends.nvshmem.startup import Nvshmem


_TICK, _DRAIN_TICK = 0.05, 0.002
_DRAINING = 5.0  # seconds for streams to drain before a context ends; the end of a caller's graphs is unknown
_QUIET = 0.2  # seconds in which an execution is not checked
_RING = 256  # executions with an event of their own
_GRACE = 1.0  # seconds in which the peers report a rank whose own stream is late
_PHASE_GRACE = 0.1  # the same for each phase before the one in which this rank gave up waiting
_TO_DEVICE, _TO_HOST = 1, 2


class _Ends:
    """The ends of consecutive executions; the last ones have an event each."""

    def __init__(self) -> None:
        self._events = [streams.event() for _ in range(_RING)]
        self._launches = self._finished = 0
        self.since = 0.0  # time of the last progress

    def launched(self, stream: int) -> int:
        """Record an event after an execution on a stream, and return it."""
        event = self._events[self._launches % _RING]
        runtime.eventRecord(event, stream)
        if self._finished == self._launches:
            self.since = time.monotonic()
        self._launches += 1
        return event

    def is_idle(self) -> bool:
        """Whether all launched executions have ended."""
        launches = self._launches
        while self._finished < launches:
            oldest = max(self._finished, launches - _RING)  # among those that still have an event
            if not streams.is_done(self._events[oldest % _RING]):
                return False
            self._finished, self.since = oldest + 1, time.monotonic()
        return True


class Watchdog:
    """The deadline of a context's executions."""

    def __init__(self, rank: int, size: int, words: list[int], record: Any, timeout: float) -> None:
        self.fault: Fault | None = None
        self.phase: int = NO_STEP
        """Phase in which this rank gave up waiting; other ranks may have waited in another phase."""
        self._marks: list[Any] = []
        self._rank, self._size, self._words, self._timeout = rank, size, words, timeout
        self._device = int(runtime.getDevice())
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._workspaces: list[weakref.ref[Workspace]] = []
        self._record = record
        self._ends: dict[int | None, _Ends] = {}  # of each queue
        self._recorded = self._closed = False
        self._late = self._broken = 0.0  # when this rank gave up waiting, and when the context broke
        self._open = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, workspace: Workspace) -> None:
        """Check the flags of a new workspace too, as long as plans use the workspace (local)."""
        known = [reference for reference in self._workspaces if reference() is not None]
        self._workspaces = [*known, weakref.ref(workspace)]  # a new list: the thread may be reading the old one

    def follow(self, queue: int | None, marks: Iterable[object]) -> None:
        """Follow the executions of a queue too (local)."""
        self._ends = self._ends | {queue: _Ends()}  # a new dict: the thread may be reading the old one
        self._marks += marks

    def launched(self, stream: int, queue: int | None) -> int:
        """Record an event after an execution of a queue on a stream, and return it (local)."""
        event = self._ends[queue].launched(stream)
        self.start()
        return event

    def recorded(self) -> None:
        """An execution was recorded into a graph of the caller's, whose launches have no events (local)."""
        self._recorded = True
        self.start()

    def start(self) -> None:
        """Start the thread, if it does not run (local)."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=_guard, args=(weakref.ref(self),), daemon=True, name="pblas watchdog"
            )
            self._thread.start()

    def is_idle(self) -> bool:
        """Whether all executions have ended (local)."""
        idle = [ends.is_idle() for ends in self._ends.values()]  # checks each queue: any progress counts
        return all(idle)

    def tick(self) -> None:
        """Check once, in the watchdog's thread. It never uses the callers' streams, which may be destroyed."""
        if self.fault is not None:
            if self._recorded or not self.is_idle():
                self._release()
            return
        waited = 0.0 if self.is_idle() else time.monotonic() - max(ends.since for ends in self._ends.values())
        if 0.0 < waited < _QUIET and not self.gave_up:
            return
        word = self._read(self._words[self._rank], 1)[0]
        if word:
            self._break(Fault.read(int(word), self._timeout))
        elif self.gave_up or waited > self._timeout + _QUIET:
            fault = self._given_up() if self.gave_up else self._find()
            self._late = self._late or time.monotonic()
            if time.monotonic() - self._late >= self._patience(fault):
                self._break(fault)
        else:
            self._late = 0.0

    def _given_up(self) -> Fault:
        """The rank for which a kernel has given up waiting."""
        rank, self.phase = (int(self._record[field][0]) for field in ("rank", "step"))
        return Fault(self._rank, (rank,), self._timeout)

    def _patience(self, fault: Fault) -> float:
        """Seconds in which peers may report a fault before this rank does.

        The rank that it waits for may itself wait in an earlier phase for the one that is missing; so the rank that
        waits in the earliest phase reports.
        """
        if self._rank in fault.missing:
            return _GRACE
        return 0.0 if self.phase == NO_STEP else min(self.phase * _PHASE_GRACE, _GRACE)

    @property
    def gave_up(self) -> bool:
        """Whether a kernel has given up; the fault is set once peers had time to report theirs (local)."""
        return bool(self._record["code"][0])

    def tell(self, fault: Fault) -> None:
        """Set the abort word of every rank."""
        word = np.array([fault.word], np.uint32)
        for address in self._words:
            runtime.memcpyAsync(address, word.ctypes.data, word.nbytes, _TO_DEVICE, self._stream.ptr)
        self._stream.synchronize()

    def fail(self) -> None:
        """This rank's GPU does not answer any more."""
        self.fault = self.fault or Fault(self._rank, (self._rank,), self._timeout)

    def _tables(self) -> Iterator[tuple[int, int]]:
        """The tables of this rank's flags: two per watched workspace, one for each of its halves.

        While the caller uses a table, the generator keeps a reference to the workspace, so its memory is not reused.
        """
        for reference in self._workspaces:
            work = reference()
            if work is not None:
                for parity in range(work.parities):
                    yield work.peers[self._rank] + parity * work.pitch, work.phases

    def _find(self) -> Fault:
        """The ranks whose flags are missing: in a phase with some flags set, or in all phases.

        If all flags of a phase are set, this rank's own stream is late.
        """
        peers, has_arrivals = set(range(self._size)) - {self._rank}, False
        for address, phases in self._tables():
            table = self._read(address, phases * self._size).reshape(phases, self._size)
            for phase in range(phases):
                arrived = {int(source) for source in np.flatnonzero(table[phase])}
                if arrived and arrived != peers:
                    self.phase = phase
                    return Fault(self._rank, tuple(sorted(peers - arrived)), self._timeout)
                has_arrivals = has_arrivals or bool(arrived)
        return Fault(self._rank, (self._rank,) if has_arrivals else tuple(sorted(peers)), self._timeout)

    def _break(self, fault: Fault) -> None:
        """Break the context, and set the abort word of all ranks, this one included."""
        self.tell(fault)  # before this rank's streams go on
        self._broken, self.fault = time.monotonic(), Fault.read(fault.word, self._timeout)  # as the peers will read it

    def _is_drained(self) -> bool:
        """Whether the streams of a broken context have drained; graphs of the caller's are given a fixed time."""
        return self.is_idle() and (not self._recorded or time.monotonic() > self._broken + _DRAINING)

    def _release(self) -> None:
        """Set the words that streams wait for and then reset; at least one of the remaining executions goes on."""
        with self._open:
            if self._closed:
                return
            for words in self._marks:
                self._set(words.data.ptr, words.nbytes // FLAG_NBYTES)
            for address, phases in self._tables():
                self._set(address, phases * self._size)

    def _set(self, address: int, count: int) -> None:
        ones = np.ones(count, np.uint32)
        runtime.memcpyAsync(address, ones.ctypes.data, ones.nbytes, _TO_DEVICE, self._stream.ptr)
        self._stream.synchronize()

    def _read(self, address: int, count: int) -> Any:
        words = np.empty(count, np.uint32)
        runtime.memcpyAsync(words.ctypes.data, address, words.nbytes, _TO_HOST, self._stream.ptr)
        self._stream.synchronize()
        return words

    def leave(self) -> None:
        """Abort current executions, with this rank as the missing one: it does not wait for them any more (local)."""
        with suppress(errors.BackendError, runtime.CUDARuntimeError):
            if self.fault is None and not self.is_idle():
                self._break(Fault(self._rank, (self._rank,), self._timeout))

    def close(self) -> None:
        """End the thread once the streams of a broken context have drained; it writes nothing afterwards (local).

        Current executions are aborted: this rank leaves, and without the thread they might wait for ever.
        """
        end = time.monotonic() + _DRAINING
        self.leave()
        with suppress(errors.BackendError, runtime.CUDARuntimeError):
            while self.fault is not None and not self._is_drained() and time.monotonic() < end:
                time.sleep(_DRAIN_TICK)
        with self._open:
            self._closed = True

    def enter(self) -> None:
        """Prepare the calling thread: its device, and that no capture of another thread forbids its calls."""
        runtime.setDevice(self._device)
        streams.allow_during_captures()

    @property
    def closed(self) -> bool:
        """Whether the thread has to end (local)."""
        return self._closed


def _guard(reference: weakref.ref[Watchdog]) -> None:
    """The watchdog's thread; it does not keep the watchdog alive."""
    watchdog = reference()
    if watchdog is not None and not watchdog.closed:
        watchdog.enter()
    while watchdog is not None and not watchdog.closed:
        try:
            watchdog.tick()
        except (errors.BackendError, runtime.CUDARuntimeError):  # the GPU has failed: no call of this process succeeds
            watchdog.fail()
            return
        pause = _TICK if watchdog.fault is None else _DRAIN_TICK
        del watchdog
        time.sleep(pause)
        watchdog = reference()


_REFUSAL_SECONDS = 5.0  # time for the error message of a rank that rejected its arguments


class EngineResources:
    """**Collective.** Loads the kernels, and begins to watch over executions."""

    def __init__(self, ranks: GpuBackend, heap: Heap, nvshmem: Nvshmem) -> None:
        self.ranks: GpuBackend = ranks
        self.heap: Heap = heap
        self.nvshmem: Nvshmem = nvshmem
        self.rank: int = ranks.rank
        self.size: int = ranks.size
        self.prepare("load the GPU's kernels", self._load)
        self.gemm.share(ranks)
        block = heap.allocate(ALIGNMENT, "the engine's abort word")
        self._memory: Block | None = block
        words = heap.addresses(block)
        runtime.memsetAsync(block.address, 0, block.nbytes, self.origin.ptr)
        self.origin.synchronize()
        record = np.frombuffer(self._record, RECORD, 1)
        record["code"] = 0
        timeout = ranks.agreement.timeout
        self.watchdog: Watchdog = Watchdog(self.rank, self.size, words, record, timeout)
        self.watch: Watch = Watch(int(min(timeout * 1e9, LONGEST)), words[self.rank], self._record.ptr)

    def prepare(self, call: str, body: Callable[[], None]) -> None:
        """**Collective.** Run a local step on this rank's GPU. All ranks raise an error of any rank."""
        error: errors.PblasError | None = None
        try:
            body()
        except errors.PblasError as caught:
            error = caught
        except Exception as caught:  # noqa: BLE001 - CuPy's, NVRTC's and the driver's; the other ranks must not wait
            error = errors.BackendError(f"{call}: the GPU of rank {self.rank}: {type(caught).__name__}: {caught}")
        self.ranks.agree(call, error)

    def _load(self) -> None:
        self.kernels: Kernels = Kernels()
        self.gemm: Gemm = Gemm(lanes=())
        if self.rank == 0:
            self.gemm.load()
        self.origin: Any = cupy.cuda.Stream(non_blocking=True)
        self._record = cupy.cuda.alloc_pinned_memory(RECORD.itemsize)
        self.kernels.load(self.origin.ptr)
        self.origin.synchronize()

    def reject(self, error: AgreedError) -> None:
        """Raise an error on this rank. The peers' streams stop waiting, and the peers' next call raises (local)."""
        self.ranks.agreement.reject(error, self._refuse)

    def abort(self, error: AgreedError) -> NoReturn:
        """Raise an error in the middle of a call; as `reject`, but the context breaks in any case (local)."""
        self.ranks.agreement.abort(error, self._refuse)

    def _refuse(self) -> None:
        """Tell the peers' streams that this rank has an error, which it sends as a message (local)."""
        self.watchdog.tell(Fault(self.rank, (REFUSED,), 0.0))

    def synchronize(self, timeout: float | None = None) -> None:
        """Return when this rank's GPU has finished all executions, or raise PeerTimeout (local).

        A rank that leaves gives a shorter timeout than the context's. It aborts the executions when that has passed,
        sooner than a kernel of its own gives up on a peer: the peers then learn which rank has left.
        """
        leave = self.watchdog.leave if timeout is not None else lambda: None
        step = "end of the last execution on the GPU"
        self.ranks.agreement.wait(self.watchdog.is_idle, step, timeout, before_giving_up=leave)
        self.check()

    def check(self) -> None:
        """Raise the error of earlier executions, if any of them failed (local)."""
        if self.has_fault():
            self.raise_fault()

    def has_fault(self) -> bool:
        """Whether an execution has failed (local)."""
        return self.watchdog.fault is not None or self.watchdog.gave_up

    def raise_fault(self) -> None:
        """Raise the error of a broken context: if a rank rejected its arguments, its error."""
        agreement, end = self.ranks.agreement, time.monotonic() + _REFUSAL_SECONDS
        while self.watchdog.fault is None and agreement.broken is None and time.monotonic() < end:
            time.sleep(1e-3)
        fault = self.watchdog.fault
        if agreement.broken is None:
            assert fault is not None, "a kernel that gave up is soon a fault"
            if fault.refused:
                agreement.wait(lambda: False, "execute", _REFUSAL_SECONDS)
            agreement.broken = fault.text(self.size)
            self.nvshmem.abandon(agreement.broken)
            error, step = errors.PeerTimeout(agreement.broken), waited(self.rank, self.watchdog.phase)
            if step is not None:  # the text is the same on all ranks
                error.add_note(step)
            raise error
        raise errors.ContextError(f"execute: the context is broken since this happened: {agreement.broken}")

    def close(self) -> None:
        """Free the resources; no execution uses them any more (local)."""
        self.gemm.close()
        self._memory = None
