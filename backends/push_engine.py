"""What runs the schedules of the push transport: the streams of a GPU, or NumPy in a shared window.

An engine owns the context's workspace in two parities, and its flags. Its verbs are the operations of
`pblas.schedules.schedule`; `pblas.execute.push.base` says which bytes they touch. All of them are local but those
marked collective.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from pblas.backends.dtypes import Array
    from pblas.backends.lanes import Flag
    from pblas.epilogues import Node

    Put = tuple[int, Array, int, Any]  # peer, source, bytes from the start of the peer's workspace, storage order


@dataclass(frozen=True, slots=True)
class Portion:
    """A portion of a result, Z := alpha X Y + terms + beta Z, all of it formed in 32 bits and rounded once.

    Args:
        x: m x k (local).
        y: k x n (local).
        z: m x n (local).
        awaits: flag of this rank that says that X and Y are there, and that is reset; None: they are.
        ready: microseconds after the start at which they are expected; not sooner than those before.
        mark: number of the mark to set when Z is there; -1: none.
        tells: peer, and phase of the flag of this rank there that is set when Z is there; None: nobody is told.
        partial: whether Z is alpha X Y alone.
        terms: arrays like Z that are added, in this order, and the flags that say that they are there, likewise.
        late: whether the terms come when X Y is there, and not sooner.
        old: what is read as Z, which may be Z; None if beta is 0 (local).
        places: arrays like Z into which it is stored too, and the flags of this rank that are set at peers when it is
            there, if any.
        among: portions before it among which it may be made, a bit at a time.
        at: row and column of Z in the block that is finished.
    """

    x: Any
    y: Any
    z: Any
    awaits: Flag | None = None
    ready: float = 0.0
    mark: int = -1
    tells: Flag | None = None
    partial: bool = False
    terms: tuple[tuple[Any, Flag], ...] = ()
    late: bool = False
    old: Any = None
    places: tuple[tuple[Any, Flag | None], ...] = ()
    among: int = 0
    at: tuple[int, int] = (0, 0)

    @property
    def lies(self) -> tuple[slice, slice]:
        """Where Z lies in that block."""
        (row, column), (rows, columns) = self.at, self.z.shape
        return slice(row, row + rows), slice(column, column + columns)


@dataclass(frozen=True, slots=True)
class Finish:
    """What is done to a block of D: an expression, with operands that are numbers or like the block.

    Args:
        tree: from `pblas.epilogues.parse` (global).
        operands: by name; arrays have the shape of the block, many of their elements perhaps in one place (local).
    """

    tree: Node
    operands: Mapping[str, Any]

    def of(self, view: Callable[[Any], Any]) -> Finish:
        """The same of a part of the block, or of the block as it is seen otherwise (local)."""
        return Finish(self.tree, {name: view(z) if is_array(z) else z for name, z in self.operands.items()})


def is_array(x: Any) -> bool:
    """Whether an operand is no number (local)."""
    return bool(getattr(x, "shape", ()))


@dataclass(frozen=True, slots=True)
class Output:
    """Where a sum goes: Out := the sum + beta old, and what follows, rounded once.

    Args:
        out: an array (local).
        beta: scalar (global).
        old: an array like it, which may be `out`; None if beta is 0 (local).
        finish: what follows, before `out` is rounded (local).
    """

    out: Any
    beta: complex = 0.0
    old: Any = None
    finish: Finish | None = None


class Engine(Protocol):
    """Memory, executions and operations."""

    # Memory

    def reserve(self, nbytes: int, phases: int) -> Any:
        """**Collective.** The context's workspace, with at least `nbytes` bytes and `phases` in each parity.

        All plans ask for as many phases. Growing makes another workspace: plans keep the one that they were made with.
        """

    def slots(self, count: int, nbytes: int) -> Any:
        """**Collective.** Memory for reductions by one kernel: `count` slots of `nbytes` bytes on every rank.

        It is what `one_shot`, `two_shot` and `reduce_scatter` take.
        """

    def scratch(self, nbytes: int) -> Any:
        """Bytes of this rank alone, or more, which the executions of all plans use one after the other."""

    def matrix(self, shape: tuple[int, int], strides: tuple[int, int], dtype: np.dtype[Any]) -> Any:
        """A new local part of a matrix, in memory of this rank alone."""

    def array(self, offset: int, shape: tuple[int, int], dtype: np.dtype[Any], order: Any) -> Any:
        """A tight array in this rank's own workspace of the current call."""

    def place(self, peer: int, offset: int, shape: tuple[int, int], dtype: np.dtype[Any], order: Any) -> Any:
        """A tight array in the workspace of a peer of the current call, to be written."""

    def part(self, memory: Any, offset: int, shape: tuple[int, int], dtype: np.dtype[Any], order: Any) -> Any:
        """A tight array `offset` bytes into private memory."""

    def columns(self, x: Any, blocks: int) -> Any:
        """Equal blocks of the columns of a matrix, as a batch of matrices: the same memory."""

    def address(self, x: Any) -> int:
        """Where an array lies."""

    def homes(self, x: Any) -> list[int] | None:
        """**Collective.** Where an array lies on every rank, if peers can put results into it."""

    def offset(self, peer: int, home: int) -> int:
        """Bytes from the start of a peer's workspace of the current call to a place that `homes` has named."""

    # Executions

    def program(self, recording: Any = None, places: Sequence[int] = ()) -> Any:
        """What is kept of executions on the same arrays, which were recorded, with these operands elsewhere, or not."""

    def record(self, operands: Sequence[Any], execution: Callable[[list[Any]], Callable[[], None]]) -> Any:
        """What executions launch on operands that lie like these; None if it cannot be launched on others.

        Args:
            operands: local arrays, all aligned alike and in different places (local).
            execution: one on arrays like these (local).
        """

    def run(self, program: Any, body: Callable[[], None], stream: Any) -> None:
        """One execution: the body issues its operations; on GPUs a graph may stand for them."""

    def rehearse(self, body: Callable[[], None], *, autotune: bool) -> None:
        """**Collective.** Do what must not happen during an execution: choose algorithms, load kernels."""

    def seconds(self, program: Any, body: Callable[[], None]) -> float:
        """**Collective.** The time that one execution takes here, which all ranks begin together."""

    def call(self, workspace: Any) -> AbstractContextManager[None]:
        """The operations of one execution, which uses the next parity of the workspace if it uses one."""

    # Operations; all but the first two issue them on a lane

    def follow(self, lane: str, after: Iterable[Hashable]) -> None:
        """The next operation of a lane starts after these operations of others."""

    def mark(self, lane: str, index: Hashable) -> None:
        """Others will follow this operation, the last of its lane."""

    def await_tile_flag(self, lane: str, mark: int) -> None:
        """Hold a lane until `multiply_portions`, issued before on another lane, has set a mark, and reset it."""

    def put(self, lane: str, source: Any, peer: int, offset: int, order: Any) -> None:
        """Copy an array into the workspace of a peer, tight, in the given order."""

    def get(self, lane: str, peer: int, offset: int, target: Any) -> None:
        """Copy a tight array, stored by columns, from the workspace of a peer."""

    def gets(self, lane: str, gets: Sequence[tuple[int, int, Array]]) -> None:
        """Several gets, on GPUs by one kernel: peer, bytes from the start of its workspace, target."""

    def signal(self, lane: str, peers: Iterable[int], phase: int) -> None:
        """Set this rank's flags of a phase at some peers, after what the lane did before."""

    def burst(
        self, lane: str, puts: Iterable[Put], phase: int, peers: Iterable[int], awaits: Iterable[int], step: str
    ) -> None:
        """Several puts, the signals behind them, and the flags of those that are awaited."""

    def wait(self, lane: str, phase: int, sources: Iterable[int], step: str) -> None:
        """Hold a lane until the flags of a phase are set, and reset them."""

    def gemm(
        self,
        lane: str,
        alpha: complex,
        x: Any,
        y: Any,
        beta: complex,
        z: Any,
        *,
        conj: tuple[bool, bool] = (False, False),
        tf32: bool,
        finish: Finish | None = None,
    ) -> None:
        """Z := alpha X Y + beta Z, in 32 bits at least, rounded once; of a batch, each of its matrices.

        What follows is done then, or before Z is rounded; not of a batch.
        """

    def finish(self, lane: str, finish: Finish | None, z: Any) -> None:
        """Z := what follows it, if anything, in one more pass."""

    def multiply_portions(
        self,
        lane: str,
        alpha: complex,
        portions: list[Portion],
        beta: complex,
        *,
        finish: Finish | None = None,
    ) -> bool:
        """Make some portions of a result by one kernel, if there is one for them.

        Args:
            lane: of the call (local).
            alpha: scalar (global).
            portions: in the order in which they are made (local).
            beta: scalar (global).
            finish: what follows those that are not partial, of the block in which they lie (local).

        Returns:
            Whether there is such a kernel; else nothing was done.
        """

    def sum(self, lane: str, parts: list[Any], output: Output) -> None:
        """The sum of the parts, added in their order, goes to the output."""

    def all_gather(self, lane: str, shard: Any, order: Any, slots: Any, first: list[int], offset: int) -> None:
        """The shards of all ranks, tight and one after the other, in this rank's workspace.

        Args:
            lane: of the call (local).
            shard: this rank's (local).
            order: in which shards are stored, "F" or "C" (global).
            slots: one for each rank (global).
            first: elements before each rank's shard, and of all (global).
            offset: bytes from the start of the workspace to the first one (global).
        """

    def reduce_scatter(
        self, lane: str, parts: list[Any], order: Any, slots: Any, contributing: list[int], output: Output
    ) -> None:
        """The sum of all ranks' partial products of this rank's part of D goes to the output.

        Args:
            lane: of the call (local).
            parts: this rank's partial products of every rank's part, one after the other in memory (local).
            order: in which they are stored, "F" or "C" (global).
            slots: one for each rank, or bytes from slot to slot in the workspace (global).
            contributing: ranks that have partial products (global).
            output: this rank's part of D (local).
        """

    def one_shot(self, lane: str, partial: Any, slots: Any, contributing: list[int], output: Output) -> None:
        """The sum of all ranks' partial products goes to the output, on all ranks, each of which adds all.

        Args:
            lane: of the call (local).
            partial: this rank's, m x n, tight, stored by columns (local).
            slots: one for each rank (global).
            contributing: ranks that have a partial product (global).
            output: D (local).
        """

    def two_shot(
        self,
        lane: str,
        wire: np.dtype[Any],
        first: list[int],
        slots: Any,
        results_at: int,
        homes: Any,
        phase: int,
        contributing: list[int],
        output: Output,
    ) -> None:
        """The sum of all ranks' partial products goes to the output, on all ranks, each of which adds its share.

        The owner of a share reads it in the workspaces of all; the sums are read in its workspace. Or both are sent.

        Args:
            lane: of the call (local).
            wire: dtype of the partial products, m x n, tight, stored by columns, with which workspaces begin (global).
            first: element of D with which each rank's share begins, and their number (global).
            slots: two for each rank, if partial products and sums are sent; else None (global).
            results_at: bytes from the workspace's start to those of D (global).
            homes: where D lies on every rank, for sums that are put there at once (global, as seen here).
            phase: of the flags that say that partial products are there; those of sums are of the next (global).
            contributing: ranks that have a partial product (global).
            output: D (local).
        """

    def copy(self, lane: str, source: Any, target: Any) -> None:
        """Target := source, of the same dtype."""

    def scale(self, lane: str, beta: complex, source: Any, target: Any) -> None:
        """Target := beta source; with beta = 0 the source is not read."""

    def close(self) -> None:
        """Forget the workspaces; no plan uses them any more."""
