"""The engines of the push transport on GPUs, one for each queue of executions: their memory, workspaces and lanes."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import cupy
import numpy as np
from cupy.cuda import runtime

from pblas import errors
from pblas.backends.blocks import call_site
from pblas.backends.cuda import streams
from pblas.backends.cuda.gemm import read
from pblas.backends.engine import MAX_MARKS
from pblas.backends.nvshmem.collectives import DeviceCollectives, Prepared
from pblas.backends.nvshmem.copies import is_tight, orders
from pblas.backends.nvshmem.executions import Executions, Program
from pblas.backends.nvshmem.hopper import Hopper
from pblas.backends.nvshmem.kernels import Slots, barrier_flags_nbytes, push_counter_nbytes
from pblas.backends.nvshmem.operations import Operations
from pblas.backends.nvshmem.tape import NotKeptError, Recording
from pblas.backends.nvshmem.workspace import ALIGNMENT, FLAG_NBYTES, PARITIES, Workspace, layout, padded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pblas.backends.nvshmem.common import Common

_LAUNCH_NS = 100_000  # in which the host launches an execution
_DRAIN_SECONDS = 5.0  # in which streams drain once the watchdog has broken the context


class StreamEngine(Operations):
    """**Collective.** Runs the schedules of a queue on this rank's GPU, one execution after the other.

    Args:
        common: what the context's engines share.
        queue: executions of other queues may run at the same time; None: nothing else may (global).
    """

    def __init__(self, common: Common, queue: int | None) -> None:
        super().__init__(common)
        self._queue = queue
        self._kernels, self._gemm, self._watch = common.kernels, common.gemm, common.watch
        self._workspace: Workspace | None = None
        self._captures: list[Workspace] = []  # of the caller's own graphs, which nobody says the end of
        common.prepare("take memory for executions", self._take)
        block = common.heap.allocate(barrier_flags_nbytes(self._size), "the engine's barrier")
        self._barrier_memory: Any = block
        flags, epoch = common.heap.addresses(block), self._epoch.data.ptr
        self._meet = partial(self._kernels.barrier, rank=self._rank, flags=flags, epoch=epoch, watch=self._watch)
        common.watchdog.follow(queue, self._marks.values())
        self._executions = Executions(common, queue)
        self._lanes = self._executions.lanes
        self._executions.follow_all()  # the memory may have been an array's
        runtime.memsetAsync(block.address, 0, block.nbytes, common.origin.ptr)
        common.origin.synchronize()
        common.ranks.agree("make an engine")

    def _take(self) -> None:
        """Memory of this rank alone."""
        self._gemm.add_lanes([self._gemm_lane(captured=captured) for captured in (False, True)])
        self._epoch = self.private(FLAG_NBYTES)
        tiles = self._common.ranks.tiles and self._queue is None  # what runs beside others leaves room for them
        self._hoppers = {captured: Hopper() for captured in (False, True)} if tiles else {}
        self._counters = {captured: self.private(push_counter_nbytes()) for captured in (False, True)}
        self._marks = {captured: self.private(MAX_MARKS * FLAG_NBYTES) for captured in (False, True)}
        for array in (self._epoch, *self._counters.values(), *self._marks.values()):
            runtime.memsetAsync(array.data.ptr, 0, array.nbytes, self._common.origin.ptr)
        self._common.origin.synchronize()

    # Memory

    def reserve(self, nbytes: int, phases: int) -> Workspace:
        """**Collective.** The queue's workspace, with at least `nbytes` bytes and `phases` in each parity.

        All plans ask for as many phases. Growing makes another workspace: plans keep the one that they were made with.
        """
        found = self._workspace
        if found is None or found.nbytes < nbytes:
            self._workspace = found = self._new_workspace(nbytes, phases)
        return found

    def slots(self, count: int, nbytes: int) -> Slots:
        """**Collective.** Memory for reductions by one kernel: `count` slots of `nbytes` bytes on every rank.

        They are those of the collectives, whose kernels tell the halves by themselves.
        """
        return self.collectives.reserve(count * nbytes, count * nbytes).slots(nbytes)

    def _new_workspace(self, nbytes: int, phases: int) -> Workspace:
        if not self._executions.captured:
            self._executions.follow_all()
            self._common.origin.synchronize()
        nbytes = padded(nbytes)
        flags, shot, one = layout(self._size, nbytes, phases)
        block = self._common.heap.allocate(PARITIES * one, call_site)
        self._common.ranks.agree(
            "make room for a workspace"
        )  # a closed plan's may have lain there, which peers still read
        work = Workspace(block, self._common.heap.addresses(block), nbytes, phases)
        for parity in range(PARITIES):  # the device is not synchronised: the caller may be capturing
            runtime.memsetAsync(work.peers[self._rank] + parity * work.pitch, 0, flags + shot, self._common.origin.ptr)
        self._common.origin.synchronize()
        self._common.ranks.agree("make a workspace")  # no flag is set before all are reset
        self._common.watchdog.watch(work)
        return work

    def homes(self, x: Any) -> list[int] | None:
        """**Collective.** Where an array lies on every rank, as this GPU sees it; None if it is not symmetric memory.

        It has to be the same place of the same block everywhere, and tight.
        """
        window, offset = (-1, 0) if x is None or not x.size else self._common.heap.locate(x.data.ptr)
        if x is not None and not is_tight(x, min(orders(x), default="F")):
            window = -1
        maxima = (window, -window, offset, -offset)
        found = self._common.ranks.agree("plan_matmul: where D lies", maxima=maxima).maxima
        if window < 0 or found != maxima:
            return None
        arena = self._common.heap
        return [x.data.ptr if r == self._rank else arena.place_address(window, offset, r) for r in range(self._size)]

    def matrix(self, shape: tuple[int, int], strides: tuple[int, int], dtype: np.dtype[Any]) -> Any:
        """A new local part of a matrix, in CuPy's memory (local)."""
        slow = 1 if strides[0] <= strides[1] else 0
        memory = cupy.cuda.alloc(max(shape[slow] * strides[slow], dtype.itemsize))
        return cupy.ndarray(shape, dtype, memory, strides)

    def address(self, x: Any) -> int:
        """Where an array lies (local)."""
        return self._common.ranks.address(x)

    # Executions

    def program(self, recording: Recording | None = None, places: Sequence[int] = ()) -> Program:
        """What is kept of executions on the same arrays, which were recorded or not (local)."""
        return Program(recording, places)

    def record(self, operands: Sequence[Any], execution: Callable[[list[Any]], Callable[[], None]]) -> Recording | None:
        """What executions launch on operands that lie like these; None if that is not all kept (local)."""
        first, second = ([_elsewhere(x, number, turn) for number, x in enumerate(operands)] for turn in (0, 1))
        places = enumerate(zip(first, second, strict=True))
        shifts = {y.data.ptr - x.data.ptr: (number, x.data.ptr) for number, (x, y) in places}
        recording, calls = Recording(self._gemm), 0
        try:
            for _ in range(PARITIES):
                tape, other = (self._executions.record(execution(arrays)) for arrays in (first, second))
                if not tape.compare(other, shifts):
                    return None
                recording.add(tape, self._executions.workspace)
                if recording.workspace is None:
                    break
                recording.workspace.calls += 1
                calls += 1
        except (NotKeptError, errors.PblasError):  # the driver may refuse addresses that are made up
            return None
        finally:
            if recording.workspace is not None:
                recording.workspace.calls -= calls
        return recording

    def meet(self, stream: int, nanoseconds: int) -> None:
        """Keep a stream of each rank busy, for a second at most, and let all GPUs come together there.

        All ranks call this in the same order (local).
        """
        self._kernels.delay(stream, nanoseconds)
        self._meet(stream)

    def run(self, program: Program, body: Callable[[], None], stream: Any) -> None:
        """One execution on the caller's stream: a graph launch if these arrays were seen before (local)."""
        main = self._main(stream)
        if self._common.has_fault() or self._common.ranks.exchange.broken is not None:
            self._common.raise_fault()
        self._executions.run(program, body, main)

    def _main(self, stream: Any) -> int:
        """The handle of the caller's stream; what is none is refused on every rank."""
        if stream is None:
            return int(cupy.cuda.get_current_stream().ptr)
        try:
            return streams.handle_of(stream)
        except errors.ArgumentError as error:
            self._common.refuse(error)
            raise

    @contextmanager
    def call(self, workspace: Workspace | None) -> Iterator[None]:
        """The operations of one execution, which uses the next parity of the workspace if it uses one (local)."""
        if workspace is not None:
            if self._executions.captured:
                workspace = self._of_captures(workspace)
            self._current = workspace
        self._executions.workspace = workspace
        yield

    def _of_captures(self, like: Workspace) -> Workspace:
        """The workspace of the caller's graphs, as large as another one; each graph begins with a meeting of all ranks.

        The first half is free then, whatever the graph before ended with, so all ranks begin with that one.
        """
        if not self._captures or self._captures[-1].nbytes < like.nbytes:
            self._captures.append(self._new_workspace(like.nbytes, like.phases))
        if self._executions.begins_capture():
            for workspace in self._captures:
                workspace.calls = 0
            self._meet(int(self._lanes.stream("main")))
            self._lanes.fork()
        return self._captures[-1]

    def rehearse(self, body: Callable[[], None], *, autotune: bool) -> None:
        """**Collective.** Run the GEMMs alone, which loads their kernels; tune them first if asked to."""
        products, tunes = list[Any](), autotune and self._rank == 0
        self._common.prepare("plan_matmul: choose algorithms", partial(self._list, body, products, tunes=tunes))
        if autotune:
            self._gemm.share(self._common.ranks)
        self._common.prepare("plan_matmul: load kernels", partial(self._multiply_once, products))

    def _list(self, body: Callable[[], None], products: list[Any], *, tunes: bool) -> None:
        """Put the GEMMs of a body on a list, and tune them if asked to (local)."""
        self._rehearsed = products
        try:
            self._executions.rehearse(body)
        finally:
            self._rehearsed = None
        if tunes:
            problems = [read(x, y, z, conj, tf32=tf32).problem for _, x, y, z, conj, tf32, _ in products]
            self._gemm.tune(problems, self._common.origin.ptr)
            self._gemm.choices.save()

    def _multiply_once(self, products: list[Any]) -> None:
        """Run the GEMMs of a list, and what follows them (local)."""
        main, lane = self._common.origin.ptr, self._gemm_lane(captured=False)
        for alpha, x, y, z, conj, tf32, finish in products:
            self._gemm.matmul(main, alpha, x, y, 0.0, z, conj=conj, lane=lane, tf32=tf32, finish=finish)
            self.finish("main", finish, z)  # a bias elsewhere in memory may need it
        self._common.origin.synchronize()

    def seconds(self, program: Program, body: Callable[[], None]) -> float:
        """**Collective.** The time that one execution takes here, which all ranks begin together.

        It finds nothing in the L2 cache, and begins when the host has launched it. If it does not end, the watchdog
        breaks the context in time, and all ranks raise what it says: the host does not wait in the driver.
        """
        runtime.deviceSynchronize()  # a graph of the caller's meets the other ranks at the same place
        main, (begin, end) = self._common.origin.ptr, (cupy.cuda.Event(), cupy.cuda.Event())
        nbytes = 2 * cupy.cuda.Device().attributes["L2CacheSize"]
        cold = cupy.cuda.alloc(nbytes)
        runtime.memsetAsync(cold.ptr, 0, nbytes, main)
        self._kernels.delay(main, _LAUNCH_NS)
        self._meet(main)
        begin.record(self._common.origin)
        self._executions.run(program, body, main)
        end.record(self._common.origin)
        self._common.settle(self._common.ranks.exchange.timeout + _DRAIN_SECONDS)
        end.synchronize()
        return 1e-3 * float(cupy.cuda.get_elapsed_time(begin, end))

    @cached_property
    def collectives(self) -> DeviceCollectives:
        """What collectives of plain arrays share."""
        return DeviceCollectives(self._common)

    def collect(self, prepared: Prepared, stream: Any) -> None:
        """One execution of a collective on the caller's stream (local)."""

        def body() -> None:
            with self.call(None):
                prepared.launch(int(self._lanes.stream("main")))

        self.run(self.program(), body, stream)

    def close(self) -> None:
        """Forget the workspaces; no plan uses them any more (local)."""
        self._executions.close()
        self._workspace, self._captures = None, []
        self.__dict__.pop("collectives", None)
        self._barrier_memory = None


_APART, _MOVED = 1 << 40, 1 << 32
"""Made-up addresses: from one operand to the next, and how far the first of them is moved."""


def _elsewhere(x: Any, number: int, turn: int) -> Any:
    """An array like x, aligned like it, at one of two made-up places."""
    place = (number + 1) * (_APART + turn * _MOVED) + x.data.ptr % ALIGNMENT
    memory = cupy.cuda.UnownedMemory(place, _MOVED, None, int(runtime.getDevice()))
    return cupy.ndarray(x.shape, x.dtype, cupy.cuda.MemoryPointer(memory, 0), x.strides)
