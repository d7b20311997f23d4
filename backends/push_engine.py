"""Interface of the engines that run schedules of the push transport: streams of a GPU, or NumPy in a shared window.

An engine owns the context's workspace, which is a double buffer (two parities), and the flags. Its operations are those
of `pblas.matmul.push.schedules.operations`; the executors of `pblas.matmul.push` compute their addresses. Methods are
local unless they are marked collective. `lane` is always the lane that runs the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pblas.backends.traced import Kind, product_text, ranks_text, traced, untraced

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype, GpuArray, Order
    from pblas.backends.engine_limits import Flag
    from pblas.backends.pieces import PieceProducts
    from pblas.epilogues import Node

    Handle = Any  # an object of an engine that its caller only hands back
    Put = tuple[int, Array, int, Order]  # peer, source, bytes from the start of the peer's workspace, storage order


@dataclass(frozen=True, slots=True)
class Portion:
    """A portion of a result, Z := alpha X Y + terms + beta Z, computed in 32 bits and rounded once."""

    x: Array  # m x k (local)
    y: Array  # k x n (local)
    z: Array  # m x n (local)
    # flag of this rank that signals the arrival of X and Y; the wait resets it. None: they are available
    awaits: Flag | None = None
    ready: float = 0.0  # expected arrival in microseconds after the start, not before that of earlier portions
    tile_flag: int = -1  # number of the tile flag to set when Z is stored; -1: none
    # (peer, phase) of this rank's flag at a peer, set when Z is stored; None: no peer is signalled
    signal: Flag | None = None
    partial: bool = False  # whether Z is alpha X Y alone
    # arrays like Z to add, in this order, each with the flag that signals its arrival; the wait resets it
    terms: tuple[tuple[Array, Flag], ...] = ()
    terms_late: bool = False  # whether the terms arrive only after X Y is computed
    old: Array | None = None  # array read in beta Z, which may be Z; None if beta is 0 (local)
    # more arrays like Z that get the portion, each with this rank's flag to set at a peer, or None
    places: tuple[tuple[Array, Flag | None], ...] = ()
    interleaved: int = 0  # number of directly preceding portions whose tiles may alternate with the tiles of this one
    origin: tuple[int, int] = (0, 0)  # row and column of Z in the block that gets the epilogue

    @property
    def index(self) -> tuple[slice, slice]:
        """Rows and columns of Z in the block that gets the epilogue."""
        (row, column), (rows, columns) = self.origin, self.z.shape
        return slice(row, row + rows), slice(column, column + columns)


@dataclass(frozen=True, slots=True)
class Finish:
    """Epilogue of a block of D: an expression whose operands are numbers or arrays of the block's shape."""

    tree: Node  # from `pblas.epilogues.parse` (global)
    operands: Mapping[str, Any]  # by name; arrays have the shape of the block, perhaps with strides of 0 (local)

    def of(self, view: Callable[[Array], Array]) -> Finish:
        """The same epilogue for a view of the block (local)."""
        return Finish(self.tree, {name: view(z) if is_array(z) else z for name, z in self.operands.items()})


@dataclass(frozen=True, slots=True)
class GemmModes:
    """How a product is computed, where the hardware has a choice."""

    tf32: bool = False  # float32 and complex64 may be multiplied in TF32 (global)
    fast_accumulate: bool = False  # products of 8 bits may be added with fewer bits (global)
    splits: bool = (
        False  # with `tf32`: elements are two numbers of TF32, and three of their products are added (global)
    )
    float16: bool = False  # float32 and complex64 may be rounded to float16, and added in float32 (global)


EXACT = GemmModes()  # the modes of a product that is to be as precise as its dtypes allow


def is_array(x: object) -> bool:
    """Whether an operand is an array, not a number (local)."""
    return bool(getattr(x, "shape", ()))


@dataclass(frozen=True, slots=True)
class Output:
    """Destination of a sum: out := epilogue(sum + beta old), rounded once."""

    out: Array  # an array (local)
    beta: complex = 0.0  # scalar (global)
    old: Array | None = None  # an array like `out`, which may be `out`; None if beta is 0 (local)
    finish: Finish | None = None  # epilogue, applied before `out` is rounded (local)


def _gets_text(gets: Sequence[tuple[int, int, Array]]) -> tuple[str, dict[str, object]]:
    return f"get from {ranks_text(get[0] for get in gets)}", {"bytes": sum(get[2].nbytes for get in gets)}


def _burst_kind(puts: object, _phase: int, _peers: object, awaits: object, _step: str) -> Kind:
    return "wait" if awaits and not puts else "copy"  # a barrier, or copies


def _burst_text(
    puts: Sequence[Put], phase: int, peers: Iterable[int], awaits: Iterable[int], step: str
) -> tuple[str, dict[str, object]]:
    if awaits and not puts:
        return f"{step} {ranks_text(awaits)}", {"phase": phase}
    return f"push to {ranks_text(peers)}", {"bytes": sum(put[1].nbytes for put in puts), "phase": phase}


def _portions_text(_alpha: complex, portions: list[Portion], *_: object, **__: object) -> tuple[str, dict[str, object]]:
    text, details = product_text([(portion.x, portion.y, portion.z) for portion in portions])
    sent = 0
    for portion in portions:
        flags = [portion.signal, *(flag for _, flag in portion.places)]
        sent += portion.z.nbytes * sum(flag is not None for flag in flags)
    return text, details | ({"sent": sent} if sent else {})


def _sum_text(parts: list[Array], output: Output) -> tuple[str, dict[str, object]]:
    return f"add {len(parts)} partial products" if len(parts) > 1 else "round", {"bytes": output.out.nbytes}


def _all_gather_text(
    shard: Array, _order: Order, _slots: Handle, first: list[int], *_: object
) -> tuple[str, dict[str, object]]:
    return "all-gather in one kernel", {"bytes": first[-1] * shard.itemsize}


def _reduce_scatter_text(parts: list[Array], *_: object) -> tuple[str, dict[str, object]]:
    return "reduce-scatter in one kernel", {"bytes": sum(part.nbytes for part in parts)}


class Engine(Protocol):
    """Memory, executions and operations."""

    # Memory

    @untraced
    def reserve(self, nbytes: int, phases: int, parities: int = 2) -> Handle:
        """**Collective.** The context's workspace, with at least `nbytes` bytes and `phases` in each parity.

        All plans ask for the same number of phases. Growing allocates another workspace: plans keep their first one.
        With one parity it is another workspace, whose calls tell each other when its memory is free.
        """

    @untraced
    def slots(self, count: int, nbytes: int) -> Handle:
        """**Collective.** `count` slots of `nbytes` bytes on every rank, for reductions and gathers by one kernel."""

    @untraced
    def scratch(self, nbytes: int) -> GpuArray:
        """At least `nbytes` bytes of private memory, shared by successive executions of all plans."""

    @untraced
    def matrix(self, shape: tuple[int, int], strides: tuple[int, int], dtype: Dtype) -> Array:
        """A new local array of a matrix, in private memory."""

    @untraced
    def array(self, offset: int, shape: tuple[int, int], dtype: Dtype, order: Order) -> Array:
        """A tight array in this rank's own workspace of the current call."""

    @untraced
    def place(self, peer: int, offset: int, shape: tuple[int, int], dtype: Dtype, order: Order) -> Array:
        """A tight array in the workspace of a peer of the current call, to be written."""

    @untraced
    def peer_addresses(self, x: Array | None) -> list[int] | None:
        """**Collective.** Addresses of an array on all ranks, as mapped here; None if peers cannot write into it."""

    @untraced
    def offset(self, peer: int, address: int) -> int:
        """Bytes from the start of a peer's workspace of the current call to an address from `peer_addresses`."""

    # Executions

    @untraced
    def program(self, recording: Handle | None = None, places: Sequence[int] = (), *, joins: bool = True) -> Handle:
        """State of the executions on one set of arrays.

        Args:
            recording: from `record`; None without one (local).
            places: addresses of the operands, in the order of `record` (local).
            joins: whether later executions start after all lanes; otherwise only what follows the lanes' marks does
                (global).
        """

    @untraced
    def record(self, operands: Sequence[Array], execution: Callable[[list[Array]], Callable[[], None]]) -> Handle:
        """Record the launches of an execution on operands of these layouts; None if they cannot be replayed.

        Args:
            operands: local arrays, all of the same alignment and at different addresses (local).
            execution: returns the body of an execution on arrays like these (local).
        """

    @untraced
    def run(self, program: Handle, body: Callable[[], None], stream: object) -> None:
        """Run one execution. The body issues its operations; on GPUs a graph launch may replace the body."""

    @untraced
    def rehearse(self, body: Callable[[], None], *, autotune: bool) -> None:
        """**Collective.** Choose algorithms and load kernels before the first execution."""

    @untraced
    def seconds(self, program: Handle, body: Callable[[], None]) -> float:
        """**Collective.** Measure one execution: its seconds on this rank. All ranks begin together."""

    @untraced
    def call(self, workspace: Handle) -> AbstractContextManager[None]:
        """Context of one execution, which uses the next parity of the workspace if it needs one."""

    # Operations; all but the first two issue work on a lane

    @untraced
    def follow(self, lane: str, after: Iterable[Hashable]) -> None:
        """Let the lane's next operation start only after these marked operations of other lanes."""

    @untraced
    def mark(self, lane: str, index: Hashable) -> None:
        """Mark the lane's last operation by this index, so that other lanes can follow it."""

    @traced("wait", lambda number: ("for a portion of the GEMM", {"tile flag": number}))
    def await_tile_flag(self, lane: str, number: int) -> None:
        """Hold the lane until an earlier `multiply_portions` on another lane has set the tile flag, and reset it."""

    @traced("copy", lambda source, peer, *_: (f"put to rank {peer}", {"bytes": source.nbytes}))
    def put(self, lane: str, source: Array, peer: int, offset: int, order: Order) -> None:
        """Copy an array into the workspace of a peer, tight, in storage order `order`."""

    @traced("copy", lambda peer, _, target: (f"get from rank {peer}", {"bytes": target.nbytes}))
    def get(self, lane: str, peer: int, offset: int, target: Array) -> None:
        """Copy a tight array, stored by columns, from the workspace of a peer."""

    @traced("copy", _gets_text)
    def gets(self, lane: str, gets: Sequence[tuple[int, int, Array]]) -> None:
        """Several gets, on GPUs by one kernel: peer, bytes from the start of its workspace, target."""

    @traced("signal", lambda peers, phase: (f"signal to {ranks_text(peers)}", {"phase": phase}))
    def signal(self, lane: str, peers: Iterable[int], phase: int) -> None:
        """Set this rank's flags of a phase at some peers, after the earlier operations of the lane."""

    @traced(_burst_kind, _burst_text)
    def burst(
        self, lane: str, puts: Iterable[Put], phase: int, peers: Iterable[int], awaits: Iterable[int], step: str
    ) -> None:
        """Several puts, then signals to the peers, then a wait for flags."""

    @traced("wait", lambda phase, sources, step: (f"{step} {ranks_text(sources)}", {"phase": phase}))
    def wait(self, lane: str, phase: int, sources: Iterable[int], step: str) -> None:
        """Hold the lane until the flags of a phase are set, and reset them; `step` names the event in errors."""

    @traced("gemm", lambda _alpha, x, y, _beta, z, **_: product_text([(x, y, z)]))
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
        """Z := alpha X Y + beta Z for each matrix of a batch, in 32 bits at least, rounded once.

        X and Y of 8 bits are multiplied by their scales, arrays of one float32; None: 1. The epilogue is computed
        before or after Z is rounded; batches have none.
        """

    @traced("gemm", lambda _products, _alpha, x, y, z, **_: product_text([(x, y, z)]))
    def multiply_pieces(
        self,
        lane: str,
        products: PieceProducts,
        alpha: complex,
        x: Array,
        y: Array,
        z: Array,
        *,
        conj: tuple[bool, bool] = (False, False),
    ) -> None:
        """Z := alpha X Y, whose K consists of pieces, by products for the arrays of this backend."""

    @traced("sum", lambda finish, z: None if finish is None else ("epilogue", {"bytes": z.nbytes}))
    def finish(self, lane: str, finish: Finish | None, z: Array) -> None:
        """Z := epilogue(Z), if there is one, in one more pass."""

    @traced("gemm", _portions_text)
    def multiply_portions(
        self, lane: str, alpha: complex, portions: list[Portion], beta: complex, *, finish: Finish | None = None
    ) -> bool:
        """Compute some portions of a result by one kernel.

        Args:
            lane: lane of the kernel (local).
            alpha: scalar (global).
            portions: in the order of their computation (local).
            beta: scalar (global).
            finish: epilogue of the block that holds all portions that are not partial (local).

        Returns:
            False, without an effect, if no kernel supports these portions.
        """

    @traced("sum", _sum_text)
    def sum(self, lane: str, parts: list[Array], output: Output) -> None:
        """Output := the sum of the parts, added in their order."""

    @traced("copy", _all_gather_text)
    def all_gather(self, lane: str, shard: Array, order: Order, slots: Handle, first: list[int], offset: int) -> None:
        """Gather the shards of all ranks, tight and one after the other, in this rank's workspace.

        Args:
            lane: lane of the kernel (local).
            shard: this rank's shard (local).
            order: storage order of the shards, "F" or "C" (global).
            slots: one for each rank (global).
            first: elements before each rank's shard, and the number of all elements (global).
            offset: bytes from the start of the workspace to the first shard (global).
        """

    @traced("sum", _reduce_scatter_text)
    def reduce_scatter(
        self, lane: str, parts: list[Array], order: Order, slots: Handle, contributing: list[int], output: Output
    ) -> None:
        """Output := the sum of all ranks' partial products of this rank's shard of D.

        Args:
            lane: lane of the kernel (local).
            parts: this rank's partial products of every rank's shard, one after the other in memory (local).
            order: storage order of the parts, "F" or "C" (global).
            slots: one for each rank, or bytes from slot to slot in the workspace (global).
            contributing: ranks that have partial products (global).
            output: this rank's shard of D (local).
        """

    @traced("sum", "all-reduce in one shot", "partial")
    def one_shot(self, lane: str, partial: Array, slots: Handle, contributing: list[int], output: Output) -> None:
        """Output := the sum of all ranks' partial products, on all ranks; each rank adds all of it.

        Args:
            lane: lane of the kernel (local).
            partial: this rank's partial product, m x n, tight, stored by columns (local).
            slots: one for each rank (global).
            contributing: ranks that have a partial product (global).
            output: D (local).
        """

    @traced("sum", lambda wire, first, *_: ("all-reduce in two shots", {"bytes": first[-1] * wire.itemsize}))
    def two_shot(
        self,
        lane: str,
        wire: Dtype,
        first: list[int],
        slots: Handle,
        results_at: int,
        peer_addresses: list[int] | None,
        phase: int,
        contributing: list[int],
        output: Output,
    ) -> None:
        """Output := the sum of all ranks' partial products, on all ranks; each rank adds a share of it.

        Either the owner of a share reads the partial products in all workspaces, and the ranks read the sums in its
        workspace, or the ranks send both.

        Args:
            lane: lane of the kernel (local).
            wire: dtype of the partial products, m x n, tight, stored by columns, at the start of workspaces (global).
            first: first element of each rank's share of D, and the number of elements (global).
            slots: two for each rank if the ranks send partial products and sums; otherwise None (global).
            results_at: bytes from the workspace's start to the sums in it (global).
            peer_addresses: addresses of D on all ranks, as mapped here, if sums are put there directly; else None
                (global).
            phase: of the flags that signal partial products; the flags of sums have the next phase (global).
            contributing: ranks that have a partial product (global).
            output: D (local).
        """

    @traced("copy", "copy", "target")
    def copy(self, lane: str, source: Array, target: Array) -> None:
        """Target := source, of the same dtype."""

    @traced("sum", lambda _, target: (f"convert to {target.dtype}", {"bytes": target.nbytes}))
    def convert(self, lane: str, source: Array, target: Array) -> None:
        """Target := source, converted to a dtype that has all numbers of the source's."""

    @traced("sum", "scale", "target")
    def scale(self, lane: str, beta: complex, source: Array, target: Array) -> None:
        """Target := beta source; with beta = 0 the source is not read."""

    @untraced
    def close(self) -> None:
        """Drop the workspaces; no plan uses them any more."""
