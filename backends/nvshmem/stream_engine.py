"""The engines of the push transport on GPUs, one for each queue of executions.

An engine issues the operations of `pblas.matmul.push.schedules`. Each operation computes its launch and passes it to
the sink of the current execution (`pblas.backends.nvshmem.sinks`). An engine has the queue's memory, executions, copies
and sums, and the resources that all engines of the context share.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import cupy
from cupy.cuda import runtime

from pblas import errors
from pblas.backends.cuda import streams
from pblas.backends.cuda.gemm import copies_of, needs_copy, read
from pblas.backends.cuda.transfer import new_array
from pblas.backends.dtypes import FLOAT8, Array, Dtype, GpuArray, Order
from pblas.backends.gpu_info import DEFAULT_QUEUES, hardware_queues
from pblas.backends.nvshmem.collectives import DeviceCollectives, Prepared
from pblas.backends.nvshmem.graph_launch import Executions, Program
from pblas.backends.nvshmem.hopper.compile import Part, Place, Term
from pblas.backends.nvshmem.hopper.gemm import Hopper
from pblas.backends.nvshmem.kernels import compiling
from pblas.backends.nvshmem.kernels.arguments import Block, Slots, barrier_flags_nbytes
from pblas.backends.nvshmem.memory import PrivateMemory, Workspaces
from pblas.backends.nvshmem.sinks import Product, Sink
from pblas.backends.nvshmem.sums import Copies, Sums, is_tight, lines_of, orders
from pblas.backends.nvshmem.workspace import PARITIES
from pblas.backends.push_engine import EXACT, Finish, GemmModes, Output, Portion
from pblas.epilogues import RESULT, Name

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from pblas.backends.cuda.kernels import Stream
    from pblas.backends.cuda.reproducible import PieceGemm
    from pblas.backends.nvshmem.replay import Recording
    from pblas.backends.nvshmem.shared import EngineResources
    from pblas.backends.nvshmem.workspace import Workspace
    from pblas.backends.pieces import PieceProducts

_LAUNCH_NS = 100_000  # time for the host to launch an execution
_DRAIN_SECONDS = 5.0  # time for streams to drain once the watchdog has broken the context
_PATIENCE = 2  # longer deadline of kernels that wait on side lanes: the GEMM gives up first, and knows the late rank


class StreamEngine:
    """**Collective.** Runs the schedules of a queue on this rank's GPU, one execution after the other.

    `pblas.backends.push_engine.Engine` documents the methods. Executions of other queues may run at the same time;
    without a queue nothing else may.
    """

    def __init__(self, common: EngineResources, queue: int | None) -> None:
        self._resources, self._rank, self._size, self._queue = common, common.rank, common.size, queue
        self._kernels, self._gemm, self._watch = common.kernels, common.gemm, common.watch
        self._many_queues = hardware_queues() >= DEFAULT_QUEUES
        common.prepare("take memory for executions", self._take)
        block = common.heap.allocate(barrier_flags_nbytes(self._size), "the engine's barrier")
        self._barrier_memory: object = block
        flags, epoch = common.heap.addresses(block), self._private.epoch.data.ptr
        self._meet = partial(self._kernels.barrier, rank=self._rank, flags=flags, epoch=epoch, watch=self._watch)
        common.watchdog.follow(queue, self._private.marks.values())
        self._executions = Executions(common, queue)
        self._workspaces = Workspaces(common, self._executions)
        self._copies = Copies(common, self._executions, self._private)
        self._sums = Sums(common, self._executions, self._copies)
        self._executions.follow_all()  # the memory may have been an array's
        runtime.memsetAsync(block.address, 0, block.nbytes, common.origin.ptr)
        common.origin.synchronize()
        common.ranks.agree("make an engine")

    def _take(self) -> None:
        """Allocate this rank's private resources."""
        self._gemm.add_lanes([self._gemm_lane(captured=captured) for captured in (False, True)])
        self._private = PrivateMemory(self._resources)
        tiles = self._resources.ranks.tiles and self._queue is None  # concurrent executions share the multiprocessors
        self._hoppers = {captured: Hopper() for captured in (False, True)} if tiles else {}

    # Memory

    def reserve(self, nbytes: int, phases: int, parities: int = PARITIES) -> Workspace:
        return self._workspaces.reserve(nbytes, phases, parities)

    def slots(self, count: int, nbytes: int) -> Slots:
        """**Collective.** Memory for reductions by one kernel: `count` slots of `nbytes` bytes on every rank.

        The collectives use the same memory, and their kernels count the halves themselves.
        """
        return self.collectives.reserve(count * nbytes, count * nbytes).slots(nbytes)

    def peer_addresses(self, x: GpuArray | None) -> list[int] | None:
        """**Collective.** Addresses of an array on every rank, as mapped here; None if it is not symmetric memory.

        It must be tight, and at the same place of the same block on every rank.
        """
        heap = self._resources.heap
        window, offset = (-1, 0) if x is None or not x.size else heap.locate(x.data.ptr)
        if x is not None and not is_tight(x, min(orders(x), default="F")):
            window = -1
        maxima = (window, -window, offset, -offset)
        agreed = self._resources.ranks.agree("plan_matmul: location of D", maxima=maxima).maxima
        if x is None or window < 0 or agreed != maxima:
            return None
        return [x.data.ptr if r == self._rank else heap.place_address(window, offset, r) for r in range(self._size)]

    def scratch(self, nbytes: int) -> GpuArray:
        """Private memory of at least `nbytes` bytes, which all plans' executions use one after the other (local).

        Earlier graphs keep their smaller scratch.
        """
        sink = self._executions.sink
        memory = self._private.scratch(nbytes, captured=sink.captured)
        sink.memory["scratch", memory.data.ptr] = memory
        return memory

    def matrix(self, shape: tuple[int, int], strides: tuple[int, int], dtype: Dtype) -> Array:
        slow = 1 if strides[0] <= strides[1] else 0
        memory = cupy.cuda.alloc(max(shape[slow] * strides[slow], dtype.itemsize))
        return new_array(shape, dtype, memory, strides)

    def array(self, offset: int, shape: tuple[int, int], dtype: Dtype, order: Order) -> Array:
        return self._current.array(self._rank, offset, shape, dtype, order)

    def place(self, peer: int, offset: int, shape: tuple[int, int], dtype: Dtype, order: Order) -> Array:
        return self._current.array(peer, offset, shape, dtype, order)

    def offset(self, peer: int, address: int) -> int:
        return address - self._current.slots(peer)

    # Executions

    def program(self, recording: Recording | None = None, places: Sequence[int] = (), *, joins: bool = True) -> Program:
        return Program(recording, places, joins=joins)

    def record(
        self, operands: Sequence[Array], execution: Callable[[list[Any]], Callable[[], None]]
    ) -> Recording | None:
        return self._executions.recorded(self._gemm, operands, execution)

    def meet(self, stream: int, nanoseconds: int) -> None:
        """Delay a stream of each rank, for a second at most, then run a barrier of all GPUs on it.

        All ranks call this in the same order (local).
        """
        self._kernels.delay(stream, nanoseconds)
        self._meet(stream)

    def run(self, program: Program, body: Callable[[], None], stream: object) -> None:
        """One execution on the caller's stream: a graph launch if these arrays were seen before (local)."""
        main = self._main(stream)
        self._resources.ranks.arrays.settle(main)
        if self._resources.has_fault() or self._resources.ranks.agreement.broken is not None:
            self._resources.raise_fault()
        self._executions.run(program, body, main)

    def _main(self, stream: object) -> int:
        """The handle of the caller's stream; an invalid stream is an error on every rank."""
        if stream is None:
            return int(cupy.cuda.get_current_stream().ptr)
        try:
            return streams.handle_of(stream)
        except errors.ArgumentError as error:
            self._resources.reject(error)
            raise

    @contextmanager
    def call(self, workspace: Workspace | None) -> Iterator[None]:
        if workspace is not None:
            if self._executions.sink.captured and workspace.parities == PARITIES:
                workspace = self._of_captures(workspace)
            self._current = workspace
        self._executions.workspace = workspace
        yield

    def _of_captures(self, like: Workspace) -> Workspace:
        """The workspace of the caller's graphs, as large as another one. Each graph begins with a barrier of all ranks.

        After the barrier the first half is free on all ranks, so all graphs begin with it.
        """
        current = self._workspaces.of_captures(like)
        if self._executions.begins_capture():
            for workspace in self._workspaces.captures:
                workspace.calls = 0
            self._meet(int(self.stream("main")))
            self._executions.lanes.fork()
        return current

    def rehearse(self, body: Callable[[], None], *, autotune: bool) -> None:
        """**Collective.** Run the GEMMs alone, which loads their kernels; tune them first if asked to."""
        products: list[Product] = []

        def choose() -> None:
            products.extend(self._executions.rehearse(body))
            if autotune and self._rank == 0:
                self._gemm.tune([read(p.x, p.y, p.z, p.conj, p.modes).problem for p in products], main)
                self._gemm.choices.save()

        def load() -> None:
            lane = self._gemm_lane(captured=False)
            for alpha, x, y, z, conj, modes, scales, finish in products:
                options: dict[str, Any] = {"conj": conj, "lane": lane, "modes": modes, "scales": scales}
                self._gemm.matmul(main, alpha, x, y, 0.0, z, **options, finish=finish)
                self._finish(main, finish, z)  # a bias with another alignment needs this kernel
            self._resources.origin.synchronize()

        main = self._resources.origin.ptr
        self._resources.prepare("plan_matmul: choose algorithms", choose)
        if autotune:
            self._gemm.share(self._resources.ranks)
        self._resources.prepare("plan_matmul: load kernels", load)

    def seconds(self, program: Program, body: Callable[[], None]) -> float:
        """**Collective.** Time of one execution on this rank; all ranks begin together.

        The execution starts with a cold L2 cache, after the host has launched all of it. If it does not end, the
        watchdog breaks the context, and all ranks raise the error: the host does not wait in the driver.
        """
        runtime.deviceSynchronize()  # a graph of the caller's meets the other ranks at the same place
        main, (begin, end) = self._resources.origin.ptr, (cupy.cuda.Event(), cupy.cuda.Event())
        nbytes = 2 * cupy.cuda.Device().attributes["L2CacheSize"]
        cold = cupy.cuda.alloc(nbytes)
        runtime.memsetAsync(cold.ptr, 0, nbytes, main)
        self._kernels.delay(main, _LAUNCH_NS)
        self._meet(main)
        begin.record(self._resources.origin)
        self._executions.run(program, body, main)
        end.record(self._resources.origin)
        self._resources.synchronize(self._resources.ranks.agreement.timeout + _DRAIN_SECONDS)
        end.synchronize()
        return 1e-3 * float(cupy.cuda.get_elapsed_time(begin, end))

    @cached_property
    def collectives(self) -> DeviceCollectives:
        """Shared state of collectives of plain arrays."""
        return DeviceCollectives(self._resources)

    def collect(self, prepared: Prepared, stream: object) -> None:
        """One execution of a collective on the caller's stream (local)."""

        def body() -> None:
            with self.call(None):
                prepared.launch(int(self.stream("main")))

        self.run(self.program(), body, stream)

    def close(self) -> None:
        self._executions.close()
        self._workspaces.clear()
        self.__dict__.pop("collectives", None)
        self._barrier_memory = None

    # Lanes

    def stream(self, lane: str) -> Stream:
        """The stream of a lane of the current execution, or its launch recorder (local)."""
        return self._executions.sink.stream(lane)

    @property
    def _sink(self) -> Sink:
        return self._executions.sink

    def follow(self, lane: str, after: Iterable[Hashable]) -> None:
        self._sink.follow(lane, after)

    def mark(self, lane: str, index: Hashable) -> None:
        self._sink.mark(lane, index)

    def await_tile_flag(self, lane: str, number: int) -> None:
        self._hold(lane, [self._private.mark(number, captured=self._sink.captured)], [self._rank], number)

    def signal(self, lane: str, peers: Iterable[int], phase: int) -> None:
        self._sink.operate(lane, self._current.signals(self._rank, tuple(peers), phase))

    def wait(self, lane: str, phase: int, sources: Iterable[int], step: str) -> None:
        sources = list(sources)
        if sources:
            self._hold(lane, [self._current.flag(self._rank, source, phase) for source in sources], sources, phase)

    def _hold(self, lane: str, words: list[int], sources: list[int], step: int) -> None:
        """Hold a lane until words are set, and reset them: on a side lane by the stream.

        A waiting stream may hold up other streams in the same hardware queue. With few hardware queues a kernel waits
        instead.
        """
        if lane != "main" and self._many_queues:
            self._sink.operate(lane, chain.from_iterable(map(streams.await_word, words)))
            return
        watch = self._watch._replace(timeout=(1 if lane == "main" else _PATIENCE) * self._watch.timeout)
        self._sink.launch(lane, lambda stream: self._kernels.wait(stream, words, sources, watch=watch, step=step))

    # Transfers

    def put(self, lane: str, source: GpuArray, peer: int, offset: int, order: Order) -> None:
        (width, lines, pitch), target = lines_of(source, order), self._current.slots(peer) + offset
        if width * lines:
            copied = target, width, source.data.ptr, pitch, width, lines
            self._sink.launch(lane, lambda stream: streams.copy(stream, *copied))

    def get(self, lane: str, peer: int, offset: int, target: GpuArray) -> None:
        (width, lines, pitch), source = lines_of(target, "F"), self._current.slots(peer) + offset
        copied = target.data.ptr, pitch, source, width, width, lines
        self._sink.launch(lane, lambda stream: streams.copy(stream, *copied))

    def gets(self, lane: str, gets: Sequence[tuple[int, int, Any]]) -> None:
        blocks = []
        for peer, offset, target in gets:
            (width, lines, pitch), source = lines_of(target, "F"), self._current.slots(peer) + offset
            blocks.append(Block(source, target.data.ptr, width, -1, lines, width, pitch))
        self._push(lane, blocks, [])

    def burst(
        self,
        lane: str,
        puts: Iterable[tuple[int, Any, int, Any]],
        phase: int,
        peers: Iterable[int],
        awaits: Iterable[int],
        step: str,
    ) -> None:
        """Several puts, the signals after them, and a wait for the flags of some peers, in one or two kernels."""
        peers, sources, blocks = list(peers), list(awaits), []
        for peer, source, offset, order in puts:
            (width, lines, pitch), target = lines_of(source, order), self._current.slots(peer) + offset
            signal = -1 if peer == self._rank else peers.index(peer)
            blocks.append(Block(source.data.ptr, target, width, signal, lines, pitch, width))
        flags = [self._current.flag(peer, self._rank, phase) for peer in peers]
        if blocks or not sources:
            self._push(lane, blocks, flags)
            self.wait(lane, phase, sources, step)
            return
        words, watch = [self._current.flag(self._rank, source, phase) for source in sources], self._watch
        self._sink.launch(
            lane, lambda stream: self._kernels.wait(stream, words, sources, watch=watch, step=phase, signals=flags)
        )

    def _push(self, lane: str, blocks: list[Block], flags: list[int]) -> None:
        counter = self._private.counter(captured=self._sink.captured)
        self._sink.launch(lane, lambda stream: self._kernels.push(stream, blocks, flags, counter))

    def copy(self, lane: str, source: GpuArray, target: GpuArray) -> None:
        """Target := source, of the same dtype, with a kernel. On a side lane it runs concurrently with GEMMs."""
        self._copies.copy(lane, source, target)

    def convert(self, lane: str, source: Array, target: Array) -> None:
        pointwise = self._resources.ranks.arrays.pointwise
        self._sink.launch(
            lane, lambda stream: pointwise.evaluate(stream, Name(RESULT), source, {}, target, target.dtype)
        )

    def scale(self, lane: str, beta: complex, source: Array, target: Array) -> None:
        self._copies.scale(lane, beta, source, target)

    # Products

    def gemm(
        self,
        lane: str,
        alpha: complex,
        x: GpuArray,
        y: GpuArray,
        beta: complex,
        z: GpuArray,
        *,
        conj: tuple[bool, bool] = (False, False),
        modes: GemmModes = EXACT,
        scales: tuple[Any, Any] = (None, None),
        finish: Finish | None = None,
    ) -> None:
        if not z.size:
            return
        if x.dtype in FLOAT8:
            if z.ndim > 2:
                for y_i, z_i in zip(y, z, strict=True):
                    self.gemm(lane, alpha, x, y_i, beta, z_i, modes=modes, scales=scales)
                return
            shapes = copies_of(x, y, z)
            kinds: tuple[Order, ...] = "C", "F", min(orders(z))
            x, y, whole = [
                w if shape is None else self._copies.padded(lane, w, number, shape, order)
                for number, (w, shape, order) in enumerate(zip((x, y, z), shapes, kinds, strict=True))
            ]
            if whole is not z:
                self.gemm(lane, alpha, x, y, beta, whole, modes=modes, scales=scales)
                self._copies.unpadded(lane, whole, z)
                self.finish(lane, finish, z)
                return
        copies = needs_copy(x, y, z, conj)
        x, y = (
            self._copies.conjugated(lane, w, number) if needed else w
            for number, (w, needed) in enumerate(zip((x, y), copies, strict=True))
        )
        conj = (conj[0] and not copies[0], conj[1] and not copies[1])
        workspace = self._gemm_lane(captured=self._sink.captured)

        def start(stream: Stream) -> None:
            options: dict[str, Any] = {"conj": conj, "lane": workspace, "modes": modes, "scales": scales}
            options["finish"] = finish
            if not self._gemm.matmul(stream, alpha, x, y, beta, z, **options):
                self.finish(lane, finish, z)

        product = Product(alpha, x, y, z, conj, modes, scales, finish)
        self._sink.product(lane, start, lambda products: products.append(product))

    def multiply_pieces(
        self,
        lane: str,
        products: PieceProducts,
        alpha: complex,
        x: GpuArray,
        y: GpuArray,
        z: GpuArray,
        *,
        conj: tuple[bool, bool] = (False, False),
    ) -> None:
        if z.size:
            gpu_products: PieceGemm = products  # type: ignore[assignment]  # of this backend's arrays
            start = partial(gpu_products.launch, alpha=alpha, x=x, y=y, z=z, conj=conj)
            self._sink.product(lane, start, lambda _: None)

    def _gemm_lane(self, *, captured: bool) -> Hashable:
        """The lane whose workspace this queue's products use."""
        return self._queue, captured

    def finish(self, lane: str, finish: Finish | None, z: GpuArray) -> None:
        """Z := the epilogue of Z; while products are rehearsed, the values of Z are arbitrary."""
        if finish is not None:
            self._finish(self.stream(lane), finish, z)

    def _finish(self, stream: Stream, finish: Finish | None, z: GpuArray) -> None:
        if finish is not None:
            self._resources.ranks.arrays.pointwise.evaluate(stream, finish.tree, z, finish.operands, z)

    def multiply_portions(
        self, lane: str, alpha: complex, portions: list[Portion], beta: complex, *, finish: Finish | None = None
    ) -> bool:
        hopper = self._hoppers.get(self._sink.captured)
        if hopper is None or any(len({w.dtype for w in (p.x, p.y, p.z)}) > 1 for p in portions):
            return False
        parts = [self._part(portion) for portion in portions]
        if not hopper.serves(parts):
            return False

        def start(stream: Stream) -> None:
            for portion in portions:
                if portion.old is not None and portion.old is not portion.z:
                    self.copy(lane, portion.old, portion.z)
            factors = complex(alpha).real, complex(beta).real
            hopper.matmul(stream, factors[0], parts, factors[1], finish=finish, watch=self._watch)

        def rehearse(_: list[Product]) -> None:
            for kernels in self._hoppers.values():
                kernels.prepare(parts, reads_z=beta != 0, finish=finish)

        self._sink.product(lane, start, rehearse)
        return True

    def _part(self, portion: Portion) -> Part:
        """A portion as an argument of the Hopper kernel."""

        def own_flag(flag: tuple[int, int] | None) -> tuple[int, int]:
            return (0, 0) if flag is None else (self._current.flag(self._rank, *flag), flag[0])

        def peer_flag(flag: tuple[int, int] | None) -> int:
            return 0 if flag is None else self._current.flag(flag[0], self._rank, flag[1])

        is_local = portion.tile_flag >= 0
        signal = (
            self._private.mark(portion.tile_flag, captured=self._sink.captured)
            if is_local
            else peer_flag(portion.signal)
        )
        terms = tuple(Term(z, *own_flag(flag)) for z, flag in portion.terms)
        places = tuple(Place(z, peer_flag(flag)) for z, flag in portion.places)
        arrays = (portion.x, portion.y, portion.z, *own_flag(portion.awaits))
        options = (portion.ready, signal, portion.partial, terms, places)
        return Part(
            *arrays, *options, terms_late=portion.terms_late, interleaved=portion.interleaved, origin=portion.origin
        )

    # Sums

    def sum(self, lane: str, parts: list[Array], output: Output) -> None:
        if output.out.size:
            self._sums.add(lane, parts, output)

    def all_gather(self, lane: str, shard: GpuArray, order: Order, slots: Slots, first: list[int], offset: int) -> None:
        if not is_tight(shard, order):
            place = self.array(offset + first[self._rank] * shard.itemsize, shard.shape, shard.dtype, order)
            self.copy(lane, shard, place)
            shard = place
        parts = 2 if shard.dtype.kind == "c" else 1
        starts, gathered = [parts * start for start in first], self._current.slots(self._rank) + offset
        arguments = shard.itemsize // parts, starts, shard.data.ptr, gathered
        options: dict[str, Any] = {"rank": self._rank, "slots": slots, "watch": self._watch}
        with compiling():
            self._kernels.require(self._sink.stream(lane), "all_gather")
        self._sink.launch(lane, lambda stream: self._kernels.gather(stream, *arguments, **options))

    def reduce_scatter(
        self, lane: str, parts: list[Array], order: Order, slots: Any, contributing: list[int], output: Output
    ) -> None:
        if isinstance(slots, Slots):
            self._sums.reduce_scatter(lane, parts, order, slots, contributing, output)
            return
        rank, size = self._rank, self._size
        own_part, peers = parts[rank], [(rank + i) % size for i in range(1, size)]
        receivers = peers if rank in contributing else []
        puts = [(peer, parts[peer], rank * slots, order) for peer in receivers if parts[peer].size]
        self.burst(lane, puts, 0, peers, peers, "GemmReduceScatter: partial products of")
        terms = [
            own_part if r == rank else self.array(r * slots, own_part.shape, own_part.dtype, order)
            for r in (*peers, rank)
            if r in contributing
        ]
        self.sum(lane, terms, output)

    def one_shot(self, lane: str, partial: Array, slots: Slots, contributing: list[int], output: Output) -> None:
        self._sums.one_shot(lane, partial, slots, contributing, output)

    def two_shot(
        self,
        lane: str,
        wire: Dtype,
        first: list[int],
        slots: Slots | None,
        results_at: int,
        peer_addresses: list[int] | None,
        phase: int,
        contributing: list[int],
        output: Output,
    ) -> None:
        # these kernels have flags of their own
        bases = [self._current.slots(peer) for peer in range(self._size)]
        if slots is not None:
            self._sums.two_shot(lane, wire, first, bases[self._rank], slots, contributing, output)
            return
        places: dict[str, Any] = {"partials": bases, "flags": list(map(self._current.shot_flags, range(self._size)))}
        places["results"] = [base + results_at for base in bases] if peer_addresses is None else peer_addresses
        self._sums.pulled(lane, wire, first, places, contributing, output)
