"""Runs the schedule of a plan whose ranks write into their peers' memory: on streams of a GPU, or in a shared window.

An engine (`pblas.backends.push_engine`) owns the workspace and the flags, and executes the operations. The executors of
this package compute the addresses of the operations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from pblas import errors
from pblas.backends.local_step import LocalStep
from pblas.backends.push_engine import EXACT, Engine, GemmModes
from pblas.matmul.local_gemm_run import IndexRuns, Operands, Orders, gemm_runs
from pblas.matmul.one_dimensional_plan import AllGatherGemm, GemmAllReduce, GemmReduceScatter
from pblas.matmul.push.schedules.operations import MAX_PHASES, Block, Burst, Op, Put, Signal, Wait, shard_starts, starts
from pblas.matmul.push.schedules.schedule import handshake, schedule
from pblas.matmul.reproducible_run import local_piece_gemm
from pblas.plans.partition import padded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pblas.backends.dtypes import Array, Dtype, Order, ProductDtypes
    from pblas.backends.engine_limits import Lane
    from pblas.backends.host_ranks import HostRanks
    from pblas.matmul.product_plan import ProductPlan


class Pushed(ABC):
    """Executor of a plan of the push transport: it issues the plan's operations on an engine, on one rank."""

    _engine: Engine
    _modes: GemmModes

    @property
    def workspace_nbytes(self) -> int:
        return 0

    @property
    def bound(self) -> bool:
        """Whether a D is bound, whose addresses the peers know."""
        return False

    def bind(self, d: Array | None) -> None:  # noqa: B027 - most plans put results into workspaces only
        """**Collective.** Put results directly into this D from now on, if it is symmetric memory on every rank."""

    @abstractmethod
    def run(self, x: Operands) -> None:
        """Launch the plan with these arrays (local)."""

    def _converted(self, x: Operands) -> Operands:
        """The operands with a C of D's dtype: another C is converted into D first, on the main lane (local)."""
        if x.old is None or x.old.dtype == x.result.dtype:
            return x
        self._engine.convert("main", x.old, x.result)
        return replace(x, old=x.result)

    def _gemm(self, lane: Lane, x: Operands) -> Callable[..., None]:
        """The engine's GEMM on a lane, with the modes of the plan and the scales of an execution (local)."""
        return partial(self._engine.gemm, lane, modes=self._modes, scales=x.scales)


class RunPush(Pushed):
    """Runs the schedule of a plan on one rank. **Collective**, since the workspace may have to grow."""

    _nbytes: int  # bytes of the workspace in each parity
    _own_nbytes = 0  # bytes of private memory, which executions use one after the other
    _own: Any  # the private memory, during an execution

    def __init__(
        self,
        plan: AllGatherGemm | GemmReduceScatter,
        backend: HostRanks,
        dtypes: ProductDtypes,
        orders: Orders,
        modes: GemmModes = EXACT,
    ) -> None:
        self._plan, self._product, self._rank, self._dtypes = plan, plan.oriented, backend.rank, dtypes
        self._dtype, self._wire, self._total, self._modes = dtypes.d, dtypes.wire, dtypes.total, modes
        self._engine = backend.engine(plan.queue)
        self._address, self._arrays = backend.address, backend.arrays
        self._ops = schedule(plan, self._rank)
        self._idle = handshake(self._rank, plan.product.nprocs)
        self._known_lines: dict[tuple[int, int], IndexRuns] = {}
        with LocalStep(backend.agree, "plan_matmul: take memory"):
            self._prepare(orders)
            try:
                self._engine.scratch(self._own_nbytes)
            except MemoryError as caught:  # also the pool's WorkspaceError
                lack = f"plan_matmul: rank {self._rank} has no memory for partial products: {caught}"
                raise errors.WorkspaceError(lack) from None
        backend.agree("plan_matmul: take memory")
        self._take()

    @abstractmethod
    def _prepare(self, orders: Orders) -> None:
        """Lay out the workspace and the private memory."""

    def _take(self) -> None:
        """**Collective.** Allocate memory that the ranks access."""
        self._workspace = self._engine.reserve(self._nbytes, MAX_PHASES)

    @property
    def workspace_nbytes(self) -> int:
        """Bytes that this plan needs: of the context's workspace in both parities, and of private memory."""
        return 2 * self._nbytes + self._own_nbytes

    def run(self, x: Operands) -> None:
        """D = alpha op(A) op(B) + beta C on the engine's lanes."""
        with self._engine.call(self._workspace):
            x, product = self._converted(x), self._plan.product
            if x.alpha == 0 or 0 in (product.m, product.n, product.k):
                self._walk(self._idle, x)
                self._engine.scale("main", x.beta, x.result if x.old is None else x.old, x.result)
                self._engine.finish("main", x.finish, x.result)
                return
            self._own = self._engine.scratch(self._own_nbytes)
            self._run(x)

    @abstractmethod
    def _run(self, x: Operands) -> None:
        """Walk through the schedule, with the work before and after it."""

    def _walk(self, ops: tuple[Op, ...], x: Operands) -> None:
        engine = self._engine
        awaited = {index for op in ops for index in op.after}
        for index, op in enumerate(ops):
            engine.follow(op.lane, op.after)
            match op:
                case Put(lane, peer, source, target):
                    engine.put(lane, self._source(source, x), peer, *self._target_at(peer, target, x))
                case Signal(lane, peers, phase):
                    engine.signal(lane, peers, phase)
                case Burst(lane, puts, phase, peers, awaits):
                    self._burst(lane, puts, phase, peers, awaits, x)
                case Wait(lane, phase, sources):
                    engine.wait(lane, phase, sources, self._step(phase))
                case _:
                    self._operate(index, op, x)
            if index in awaited:
                engine.mark(op.lane, index)

    @abstractmethod
    def _operate(self, index: int, op: Op, x: Operands) -> None:
        """Issue an operation that only some plans have."""

    def _step(self, phase: int) -> str:
        return f"{self._plan.name}: {_WHAT[phase % 2]}"

    # Blocks

    def _own_array(self, offset: int, shape: tuple[int, int], dtype: Dtype, order: Order) -> Array:
        """A tight array `offset` bytes into the private memory."""
        array: Array = self._arrays.array(self._own[offset:], shape, dtype, order)
        return array

    @abstractmethod
    def _source(self, block: Block, x: Operands) -> Array:
        """The lines of this rank that a put reads."""

    @abstractmethod
    def _target_at(self, peer: int, block: Block, x: Operands) -> tuple[int, Order]:
        """Destination of a put: bytes from the start of the peer's workspace, and storage order."""

    def _burst(
        self, lane: Lane, puts: Iterable[Put], phase: int, peers: Iterable[int], awaits: Iterable[int], x: Operands
    ) -> None:
        copies = [(put.peer, self._source(put.source, x), *self._target_at(put.peer, put.target, x)) for put in puts]
        self._engine.burst(lane, copies, phase, peers, awaits, self._step(phase))

    def _lines(self, start: int, stop: int) -> IndexRuns:
        """The global lines of an interval of the stack; cached from planning on."""
        if (start, stop) not in self._known_lines:
            self._known_lines[start, stop] = self._find_lines(start, stop)
        return self._known_lines[start, stop]

    def _find_lines(self, start: int, stop: int) -> IndexRuns:
        plan = self._plan
        if isinstance(plan, GemmAllReduce):
            return IndexRuns([(start, 0, stop - start)])
        ranges = [
            (g0 + a, g0 + b)
            for rank, first in enumerate(shard_starts(plan)[:-1])
            for g0, a, b in _cut(plan.shards.ranges(rank), start - first, stop - first)
        ]
        return IndexRuns.global_to_local(ranges)


class Stack:
    """Consecutive tight blocks of memory, one per rank. If lines are contiguous, all blocks form one matrix."""

    def __init__(self, counts: list[int], across: int, order: Order, axis: Literal[0, 1], itemsize: int) -> None:
        self.first: list[int] = starts(counts)
        self.order = order
        self._across = across
        self._axis = axis  # 1: lines are columns, 0: rows
        self.slow: bool = (order == "F") == (axis == 1)
        self._line_nbytes = across * itemsize
        self.nbytes: int = padded(self.first[-1] * self._line_nbytes)

    def offset(self, start: int) -> int:
        """Bytes before a line; if lines are strided, before the first line of a block."""
        return start * self._line_nbytes

    def shape(self, lines: int) -> tuple[int, int]:
        return (self._across, lines) if self._axis else (lines, self._across)

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """An interval of lines as (start, stop, blocks): one matrix each, or equal blocks for one batch."""
        if self.slow:
            yield start, stop, 1
            return
        groups: list[tuple[int, int, int]] = []
        for a, b in pairwise(self.first):
            if max(a, start) < min(b, stop):
                assert start <= a, "a block of strided lines is used as a whole"
                assert b <= stop, "a block of strided lines is used as a whole"
                if groups and (groups[-1][1] - groups[-1][0]) // groups[-1][2] == b - a:
                    groups[-1] = (groups[-1][0], b, groups[-1][2] + 1)
                else:
                    groups.append((a, b, 1))
        yield from groups


def column_blocks(x: Array, count: int) -> Array:
    """Equal blocks of the columns of a matrix as a batch of matrices, in the same memory.

    >>> import numpy as np
    >>> column_blocks(np.arange(8).reshape(2, 4), 2).tolist()
    [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    """
    return x.reshape(x.shape[0], count, x.shape[1] // count).transpose(1, 0, 2)


def is_one_run(*dimensions: IndexRuns) -> bool:
    return all(len(runs.runs) == 1 for runs in dimensions)


_WHAT = ("shards or partial products of", "results of")


def _cut(ranges: list[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """(global start, from, to) of the parts of ranges that are lines start..stop of the local array."""
    local = 0
    for g0, g1 in ranges:
        a, b = max(start, local), min(stop, local + g1 - g0)
        if a < b:
            yield g0, a - local, b - local
        local += g1 - g0


class RunLocal(Pushed):
    """Runs a LocalGemm plan on an engine, on one rank."""

    def __init__(
        self, plan: ProductPlan, backend: HostRanks, dtypes: ProductDtypes, orders: Orders, modes: GemmModes = EXACT
    ) -> None:
        del dtypes, orders
        self._engine, self._modes = backend.engine(plan.queue), modes
        self._m = IndexRuns.of_rows(plan.oriented, backend.rank)

    def run(self, x: Operands) -> None:
        with self._engine.call(None):
            x, k = self._converted(x), x.right.shape[0]
            if x.alpha == 0 or not k:
                self._engine.scale("main", x.beta, x.result if x.old is None else x.old, x.result)
                self._engine.finish("main", x.finish, x.result)
                return
            if x.old is not None and x.old is not x.result:
                self._engine.copy("main", x.old, x.result)
            n, gemm = IndexRuns.whole(x.result.shape[1]), self._gemm("main", x)
            operands = x.alpha, x.left, x.right, x.beta, x.result
            gemm_runs(*operands, self._m, n, IndexRuns.whole(k), x.conj, gemm, finish=x.finish)


class RunReproducibleLocal(RunLocal):
    """Runs a reproducible LocalGemm plan without C on an engine, on one rank."""

    def __init__(
        self, plan: ProductPlan, backend: HostRanks, dtypes: ProductDtypes, orders: Orders, modes: GemmModes = EXACT
    ) -> None:
        super().__init__(plan, backend, dtypes, orders, modes)
        self._products = local_piece_gemm(plan, backend, dtypes.total)

    @property
    def workspace_nbytes(self) -> int:
        return self._products.nbytes

    def _gemm(self, lane: Lane, x: Operands) -> Callable[..., None]:
        def multiply(
            alpha: complex, left: Array, right: Array, _beta: complex, result: Array, *, conj: tuple[bool, bool]
        ) -> None:
            self._engine.multiply_pieces(lane, self._products, alpha, left, right, result, conj=conj)

        return multiply
