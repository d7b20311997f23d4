"""The engine of the push transport on CPUs: the schedule's operations one after the other, in a shared window.

It runs the push protocol of the GPU backend without a GPU. A rank writes data into *slots*: places in a peer's
workspace that no other rank writes. It then sets a *flag* at the peer, a word that the peer awaits and resets. The
workspace has two halves; calls alternate between them, and the half of a call is its *parity*. Flags are 32-bit words
in the window. Only MPI atomics access them, so that the memory model is MPI's.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from pblas import errors
from pblas.backends.allocator import ALIGNMENT, call_site
from pblas.backends.cpu import blas
from pblas.backends.cpu.pointwise import evaluate_into
from pblas.backends.cpu_backend import CpuBackend
from pblas.backends.dtypes import Array, accumulator_dtype
from pblas.backends.push_engine import EXACT, Engine, Finish, GemmModes, Output

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from pblas.backends.host_ranks import HostRanks
    from pblas.backends.shared_windows import Arena, Block
    from pblas.backends.transport import Transport

_FLAG_NBYTES = 4


class Workspace:
    """Slots and flags of both halves of a workspace, and the number of calls that have used it.

    Args:
        block: symmetric memory: the flags of all halves, then the slots of each half (global).
        nbytes: bytes of the slots of one half (global).
        phases: number of flags that each rank can set at each peer, in each half (global).
        flags_nbytes: bytes of all flags (global).
        parities: 2, or 1 if all calls use the same memory (global).
    """

    def __init__(self, block: Block, nbytes: int, phases: int, flags_nbytes: int, parities: int) -> None:
        self.parities: int = parities
        self.block: Block = block
        self.nbytes: int = nbytes
        self.phases: int = phases
        self.flags_nbytes: int = flags_nbytes
        self.calls: int = 0


class WindowEngine:
    """Runs the operations of all lanes in issue order on NumPy arrays, so it needs no streams.

    Args:
        ranks: the ranks of a context, all on one node (global).
        arena: the shared windows of these ranks (global).
    """

    def __init__(self, ranks: HostRanks, arena: Arena) -> None:
        self._ranks, self._arena = ranks, arena
        self._memory: Any = arena.memory
        self._workspaces: dict[int, Workspace] = {}  # by the number of parities
        self._parity = 0
        self._scratch = np.empty(0, np.uint8)

    # Memory

    def reserve(self, nbytes: int, phases: int, parities: int = 2) -> Workspace:
        """**Collective.** The context's workspace, with `nbytes` bytes of slots and `phases` phases in each half.

        All plans ask for the same number of phases. If the workspace is too small, a larger one is allocated for new
        plans; earlier plans keep the smaller one.
        """
        current = self._workspaces.get(parities)
        if current is None or current.nbytes < nbytes:
            flags = parities * phases * self._ranks.size
            flags_nbytes = flags * _FLAG_NBYTES + -flags * _FLAG_NBYTES % ALIGNMENT
            nbytes += -nbytes % ALIGNMENT
            block = self._arena.allocate(flags_nbytes + parities * nbytes, call_site)
            window = self._memory.windows[block.window]
            for index in range(flags):
                self._write(window, self._arena.node_rank(self._ranks.rank), block.offset + index * _FLAG_NBYTES, 0)
            current = self._workspaces[parities] = Workspace(block, nbytes, phases, flags_nbytes, parities)
            self._ranks.agree("make a workspace")  # no flag is set before all are reset
        return current

    def peer_addresses(self, x: Array | None) -> None:
        """None: a peer's D has no addresses here, so results go through the workspace (global)."""

    def offset(self, peer: int, address: int) -> int:
        """Never called: it would be for addresses from `peer_addresses`, which returns None."""
        raise AssertionError((peer, address))

    def slots(self, count: int, nbytes: int) -> int:
        """**Collective.** Memory for reductions by one kernel: slots in the workspace, `nbytes` bytes apart."""
        return nbytes

    def scratch(self, nbytes: int) -> Array:
        """At least `nbytes` bytes of private memory, shared by successive executions of all plans (local)."""
        if self._scratch.nbytes < nbytes:
            self._scratch = np.empty(nbytes, np.uint8)
        return self._scratch

    def array(self, offset: int, shape: tuple[int, int], dtype: np.dtype[Any], order: Any) -> Array:
        """An array without gaps in this rank's workspace, in the half of the current call (local)."""
        return self.place(self._ranks.rank, offset, shape, dtype, order)

    def place(self, peer: int, offset: int, shape: tuple[int, int], dtype: np.dtype[Any], order: Any) -> Array:
        """An array without gaps in a peer's workspace, in the half of the current call (local)."""
        work = self._current
        start = work.flags_nbytes + self._parity * work.nbytes + offset
        return self._ranks.peer_block(work.block, peer, start, shape, dtype, order)

    def close(self) -> None:
        """Drop this engine's reference to the workspace, which no plan uses any more (local)."""
        self._workspaces.clear()

    # One call

    @contextmanager
    def call(self, workspace: Workspace | None) -> Iterator[None]:
        """A with block for one execution, which uses the workspace's next half; None: it uses no workspace (local)."""
        if workspace is None:
            yield
            return
        self._current, self._parity = workspace, self.parity(workspace)
        try:
            yield
        finally:  # an engine that is broken keeps no memory
            del self._current
        workspace.calls += 1

    def run(self, program: None, body: Callable[[], None], stream: Any) -> None:
        """Run an execution; `program` and `stream` are for GPU engines (local)."""
        if stream is not None:
            self._ranks.reject(errors.ArgumentError(f"execute: stream is for GPUs, got {stream!r}; leave it out"))
        agreement = self._ranks.agreement
        if agreement.broken is not None:
            raise errors.ContextError(f"execute: the context is broken since this happened: {agreement.broken}")
        agreement.heed("execute")
        try:
            with np.errstate(all="ignore"):  # as in a collective call
                body()
        except BaseException as caught:
            self._poison(caught)
            raise

    def _poison(self, caught: BaseException) -> None:
        """Break the context: the next call would take flags of an incomplete call for its own (local)."""
        agreement = self._ranks.agreement
        agreement.broken = agreement.broken or f"execute: {type(caught).__name__} in the middle of it"

    def program(self, recording: None = None, places: Sequence[int] = (), *, joins: bool = True) -> Any:
        """The recording of executions on the same arrays: none (local)."""

    def record(self, operands: Sequence[Any], execution: Callable[[list[Any]], Callable[[], None]]) -> None:
        """None: this engine runs every execution anew and records nothing (local)."""

    def rehearse(self, body: Callable[[], None], *, autotune: bool) -> None:
        """Nothing: there are no kernels to load or tune (local)."""

    def seconds(self, program: None, body: Callable[[], None]) -> float:
        """**Collective.** Seconds of one execution on this rank; all ranks begin together."""
        self._ranks.agree("plan_matmul: measure an algorithm")
        start = time.perf_counter()
        self.run(program, body, None)
        return time.perf_counter() - start

    def matrix(self, shape: tuple[int, int], strides: tuple[int, int], dtype: np.dtype[Any]) -> Array:
        """A new local array of a matrix, in private memory (local)."""
        order, slow = ("F", 1) if strides[0] <= strides[1] else ("C", 0)
        lines = list(shape)
        lines[1 - slow] = max(strides[slow] // dtype.itemsize, shape[1 - slow])
        whole = np.empty(lines, dtype, order)  # type: ignore[call-overload]
        return whole[: shape[0], : shape[1]]

    def parity(self, workspace: Workspace) -> int:
        """The half of the workspace that the next call uses."""
        return workspace.calls % workspace.parities

    def follow(self, lane: str, after: Iterable[Hashable]) -> None:
        """Nothing: operations run in issue order."""

    def mark(self, lane: str, index: Hashable) -> None:
        """Nothing: operations run in issue order."""

    def await_tile_flag(self, lane: str, number: int) -> None:
        """Never called, since `multiply_portions` sets no tile flags."""
        raise AssertionError((lane, number))

    # Operations

    def put(self, lane: str, source: Array, peer: int, offset: int, order: Any) -> None:
        """Copy an array into a peer's workspace, `offset` bytes from its start, without gaps and in the given order."""
        self.place(peer, offset, source.shape, source.dtype, order)[...] = source

    def get(self, lane: str, peer: int, offset: int, target: Array) -> None:
        """Copy to `target` what stands `offset` bytes into a peer's workspace, without gaps and stored by columns."""
        target[...] = self.pull(peer, offset, target.shape, target.dtype, "F")

    def gets(self, lane: str, gets: Sequence[tuple[int, int, Array]]) -> None:
        """Do several gets, each (peer, bytes from the start of its workspace, target)."""
        for get in gets:
            self.get(lane, *get)

    def signal(self, lane: str, peers: Iterable[int], phase: int) -> None:
        """Set this rank's flags of a phase at some peers."""
        self._ranks.sync()
        for peer in peers:
            self._set(peer, self._ranks.rank, phase, 1)

    def burst(
        self,
        lane: str,
        puts: Iterable[tuple[int, Array, int, Any]],
        phase: int,
        peers: Iterable[int],
        awaits: Iterable[int],
        step: str,
    ) -> None:
        """Do the puts, then set this rank's flags of `phase` at `peers`, then wait for the flags of `awaits`."""
        for peer, source, offset, order in puts:
            self.put(lane, source, peer, offset, order)
        self.signal(lane, peers, phase)
        self.wait(lane, phase, awaits, step)

    def wait(self, lane: str, phase: int, sources: Iterable[int], step: str) -> None:
        """Wait until all `sources` have set their flags of `phase` at this rank, and reset these flags."""
        for source in sources:
            self._ranks.wait(lambda source=source: self._get(source, phase) == 1, f"{step} rank {source}")  # type: ignore[misc]
            self._set(self._ranks.rank, source, phase, 0)
        self._ranks.sync()

    def gemm(
        self,
        lane: str,
        alpha: complex,
        x: Array,
        y: Array,
        beta: complex,
        z: Array,
        *,
        conj: tuple[bool, bool] = (False, False),
        modes: GemmModes = EXACT,
        scales: tuple[Array | None, Array | None] = (None, None),
        finish: Finish | None = None,
    ) -> None:
        """Z := epilogue(alpha X Y + beta Z) for each matrix of a batch, in at least 32 bits and rounded once."""
        assert scales == (None, None), "on CPUs alpha contains the scales"
        if z.ndim > 2:
            for y_i, z_i in zip(y, z, strict=True):
                self.gemm(lane, alpha, x, y_i, beta, z_i, conj=conj)
            return
        total = accumulator_dtype(x.dtype)
        result = z if z.dtype == total else z.astype(total)
        blas.gemm(alpha, x, y, beta, result, conj=conj)
        if finish is not None:
            evaluate_into(finish.tree, result, finish.operands, z)
        elif result is not z:
            z[...] = result

    def finish(self, lane: str, finish: Finish | None, z: Array) -> None:
        """Z := epilogue(Z) in a pass of its own; nothing if `finish` is None."""
        if finish is not None:
            evaluate_into(finish.tree, z, finish.operands, z)

    def multiply_pieces(
        self, lane: str, products: Any, alpha: complex, x: Array, y: Array, z: Array, **options: Any
    ) -> None:
        products.gemm(alpha, x, y, 0, z, **options)

    def multiply_portions(self, lane: str, alpha: complex, portions: list[Any], beta: complex, **options: Any) -> bool:
        """False: CPUs have no GEMM kernel that signals its tiles, so the caller multiplies otherwise."""
        return False

    def sum(self, lane: str, parts: list[Array], output: Output) -> None:
        """Output := the sum of the parts, added in their order."""
        out, old, finish = output.out, output.old, output.finish
        total = parts[0].astype(accumulator_dtype(out.dtype))
        for part in parts[1:]:
            total += part
        if old is not None:
            total += old.astype(total.dtype) * total.dtype.type(output.beta)
        if finish is not None:
            evaluate_into(finish.tree, total, finish.operands, out)
        else:
            out[...] = total

    def all_gather(self, lane: str, shard: Array, order: Any, slots: int, first: list[int], offset: int) -> None:
        """Gather the shards of all ranks in this rank's workspace, one after the other and without gaps."""
        rank, size = self._ranks.rank, self._ranks.size
        others = [(rank + i) % size for i in range(1, size)]
        puts = [(peer, shard, offset + first[rank] * shard.itemsize, order) for peer in (*others, rank)]
        self.burst(lane, puts, 0, others, others, "AllGatherGemm: shards of")

    def reduce_scatter(
        self, lane: str, parts: list[Array], order: Any, slots: int, contributing: list[int], output: Output
    ) -> None:
        """Output := the sum of all ranks' partial products of this rank's shard of D."""
        rank, size = self._ranks.rank, self._ranks.size
        ranks = [(rank + i) % size for i in range(1, size + 1) if (rank + i) % size in contributing]
        terms = self._exchanged(lane, "GemmReduceScatter", parts, order, slots, ranks)
        if output.out.size:
            self.sum(lane, terms, output)

    def one_shot(self, lane: str, partial: Array, slots: int, contributing: list[int], output: Output) -> None:
        """Output := the sum of all ranks' partial products, on all ranks; each rank adds all elements."""
        size = self._ranks.size
        ranks = [r for r in (*range(1, size), 0) if r in contributing]  # the same order everywhere
        self.sum(lane, self._exchanged(lane, "GemmAllReduce", [partial] * size, "F", slots, ranks), output)

    def _exchanged(
        self, lane: str, name: str, parts: list[Array], order: Any, slot_nbytes: int, ranks: list[int]
    ) -> list[Array]:
        """Put one part to each rank, and return the parts that `ranks`, the contributing ones, put to this rank."""
        rank, size = self._ranks.rank, self._ranks.size
        others, own = [(rank + i) % size for i in range(1, size)], parts[rank]
        for peer in others if rank in ranks else ():
            self.put(lane, parts[peer], peer, rank * slot_nbytes, order)
        self.signal(lane, others, 0)
        self.wait(lane, 0, others, f"{name}: partial products of")
        return [own if r == rank else self.array(r * slot_nbytes, own.shape, own.dtype, order) for r in ranks]

    def two_shot(
        self,
        lane: str,
        wire: np.dtype[Any],
        first: list[int],
        slots: int | None,
        results_at: int,
        peer_addresses: list[int] | None,
        phase: int,
        contributing: list[int],
        output: Output,
    ) -> None:
        """Output := the sum of the partial products, on all ranks; each adds its share: see `Engine.two_shot`."""
        rank, size, out, old, finish = self._ranks.rank, self._ranks.size, output.out, output.old, output.finish
        others, whole = [(rank + i) % size for i in range(1, size)], (out.size, 1)
        shares = list(pairwise(first))
        a, b = shares[rank]
        own_share = Output(
            self.array(results_at + a * out.itemsize, (b - a, 1), out.dtype, "F"),
            output.beta,
            None if old is None else old.reshape(whole, order="F")[a:b],
            None if finish is None else finish.of(lambda z: z.reshape(whole, order="F")[a:b]),
        )
        self.signal(lane, others, phase)
        self.wait(lane, phase, others, "GemmAllReduce: partial products of")
        parts = [self.pull(r, a * wire.itemsize, (b - a, 1), wire, "F") for r in (*others, rank) if r in contributing]
        self.sum(lane, parts, own_share)
        self.signal(lane, others, phase + 1)
        self.wait(lane, phase + 1, others, "GemmAllReduce: results of")
        sums = np.empty(whole, out.dtype)
        for owner, (a, b) in enumerate(shares):
            sums[a:b] = self.pull(owner, results_at + a * out.itemsize, (b - a, 1), out.dtype, "F")
        out[...] = sums.reshape(out.shape, order="F")

    def pull(self, peer: int, offset: int, shape: tuple[int, int], dtype: np.dtype[Any], order: Any) -> Array:
        """An array without gaps in a peer's workspace, for reading (local)."""
        return self.place(peer, offset, shape, dtype, order)

    def copy(self, lane: str, source: Array, target: Array) -> None:
        """Target := source."""
        target[...] = source

    def convert(self, lane: str, source: Array, target: Array) -> None:
        """Target := source, converted to target's dtype."""
        target[...] = source

    def scale(self, lane: str, beta: complex, source: Array, target: Array) -> None:
        """Target := beta source; with beta = 0 the source is not read."""
        blas.add_scaled(beta, source, 0.0, target)

    # Flags

    def _place(self, source: int, phase: int) -> int:
        number = (self._parity * self._current.phases + phase) * self._ranks.size + source
        return self._current.block.offset + number * _FLAG_NBYTES

    def _set(self, peer: int, source: int, phase: int, value: int) -> None:
        window = self._memory.windows[self._current.block.window]
        self._write(window, self._arena.node_rank(peer), self._place(source, phase), value)

    def _get(self, source: int, phase: int) -> int:
        window, value = self._memory.windows[self._current.block.window], np.empty(1, np.uint32)
        node_rank = self._arena.node_rank(self._ranks.rank)
        window.Fetch_and_op(value, value, node_rank, self._place(source, phase), MPI.NO_OP)
        window.Flush(node_rank)
        return int(value[0])

    @staticmethod
    def _write(window: MPI.Win, node_rank: int, place: int, value: int) -> None:
        word = np.array([value], np.uint32)
        window.Accumulate([word, MPI.UINT32_T], node_rank, [place, 1, MPI.UINT32_T], MPI.REPLACE)
        window.Flush(node_rank)


class PushBackend(CpuBackend):
    """Ranks on CPUs that write data into the memory of the peers that need it, as GPUs do; others read it there.

    Args:
        peers: ranks of an MPI communicator (global).
        settings: other arguments of `CpuBackend` (global).
    """

    push = True

    def __init__(self, peers: Transport, **settings: Any) -> None:
        super().__init__(peers, **settings)
        try:
            self.require_one_node()
        except errors.BackendError:
            self.close(free=True)
            raise
        self._engine: Engine = WindowEngine(self, self.arena)

    def engine(self, queue: int | None = None) -> Engine:
        return self._engine

    def engines(self) -> Iterable[Engine]:
        return (self._engine,)

    def leaks(self) -> list[str]:
        self._engine.close()
        return super().leaks()
