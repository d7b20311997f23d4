"""Operations of the push protocol, which lanes run on blocks of memory, and programs made of them.

`schedule.py` explains the protocol. If the number of ranks is a power of two, rank q visits its peers in the order q^1,
q^2, ..., q^(P-1), where ^ is exclusive or. Every step is a permutation of the ranks, and the shards of q and its first
1, 3, 7, ... peers are consecutive. Otherwise ranks rotate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Literal

from pblas.backends.engine_limits import Lane
from pblas.matmul.one_dimensional_plan import AllGatherGemm, GemmReduceScatter
from pblas.plans.partition import MAX_PIECES, backwards, rotated

Buffer = Literal["shard", "gathered", "partial", "pulled", "slots", "results", "result", "old", "operands"]

PARTS, RESULTS = 0, 1  # phases of a piece: first partial products (or shards) arrive, then finished lines of D

MAX_PHASES = 2 * MAX_PIECES  # phases of a call at most: two for each piece


@dataclass(frozen=True, slots=True)
class Block:
    """Lines start..stop-1 of a buffer."""

    # "partial" is private memory; "pulled" are partial products in this rank's workspace, where peers read them
    buffer: Buffer
    start: int  # first line
    stop: int  # one past the last line
    slot: int = -1  # for the buffer "slots", the rank that fills the slot

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Op:
    """Base class of the operations."""

    lane: Lane
    after: tuple[int, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True)
class Put(Op):
    """Copy a block of this rank into the memory of `peer`."""

    peer: int
    source: Block
    target: Block


@dataclass(frozen=True, slots=True)
class Signal(Op):
    """Set this rank's flags of `phase` at `peers`. The peers may then read the earlier puts of this lane."""

    peers: tuple[int, ...]
    phase: int


@dataclass(frozen=True, slots=True)
class Burst(Op):
    """Puts, and the signals of one phase after them, by one kernel on multiprocessors instead of copy engines."""

    puts: tuple[Put, ...]  # copies to peers, and perhaps to this rank's own workspace
    phase: int  # of the flags that the kernel sets and awaits
    peers: tuple[int, ...]  # ranks whose flags the kernel sets
    awaits: tuple[int, ...] = ()  # ranks whose flags the kernel awaits and resets before it ends


@dataclass(frozen=True, slots=True)
class Wait(Op):
    """Wait until the ranks `sources` have set their flags of `phase` here, and reset the flags."""

    phase: int
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Multiply(Op):
    """GEMM of some lines: it reads the block `operand` of the gathered matrix, or it writes the block `target`."""

    operand: Block | None = None
    target: Block | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """Lines of the gathered matrix, with the rank and phase of the flag that signals them; rank -1: own lines."""

    operand: Block
    source: int = -1
    phase: int = PARTS


@dataclass(frozen=True, slots=True)
class GemmAsArriving(Op):
    """GEMM of all lines in this order. Each part waits for its flag; the operation resets the flags before it ends.

    If one kernel multiplies all lines, its tiles wait, and the kernel resets the flags after it has seen the last one.
    A peer sets none of them again before it receives a flag of this rank's next call.
    """

    arrivals: tuple[Arrival, ...]


@dataclass(frozen=True, slots=True)
class Sum(Op):
    """Lines of D := the sum of `parts` in this order, plus this rank's own partial product, plus beta C."""

    parts: tuple[Block, ...]
    own: Block | None
    target: Block


@dataclass(frozen=True, slots=True)
class AllGather(Op):
    """Gather the shards of all ranks, one after the other, by one kernel that waits for its peers."""

    source: Block
    target: Block


@dataclass(frozen=True, slots=True)
class ReduceScatter(Op):
    """Every rank's shard of D := the sum of all ranks' partial products, by one kernel that waits for its peers."""

    source: Block
    target: Block


@dataclass(frozen=True, slots=True)
class AllReduce(Op):
    """D := the sum of all ranks' partial products, on all ranks, by one kernel that waits for its peers.

    In one shot every rank sends all of its lines to all peers. In two shots each rank reads its share of the lines in
    the workspaces of all ranks and adds them. It then reads the peers' sums there, or the peers send the sums into D.
    """

    shots: Literal[1, 2]
    source: Block
    target: Block
    phase: int = PARTS


@dataclass(frozen=True, slots=True)
class CopyOut(Op):
    """Copy finished lines that peers have put into the workspace to D, or own lines of D to the workspace."""

    source: Block
    target: Block


@dataclass(frozen=True, slots=True)
class Get(Op):
    """Copy finished lines from the workspace of `peer` to D."""

    peer: int
    source: Block
    target: Block


@dataclass(frozen=True, slots=True)
class Gets(Op):
    """Gets from several peers by one kernel on multiprocessors instead of copy engines."""

    gets: tuple[Get, ...]


@dataclass(frozen=True, slots=True)
class Strip:
    """Lines that a GemmReduce forms: a partial product for another rank, or this rank's own lines of D."""

    lines: Block  # lines of the partial product
    # phase of the flags that signal partial products in the owner's slots; flags of sums have the next phase
    phase: int
    # copies that the kernel stores as it forms the lines, each with a flag after it. For own lines these are the sums,
    # stored in the memory of all peers. Without puts the lines stay on this rank
    puts: tuple[Put, ...] = ()
    target: Block | None = None  # the own lines of D; None for lines of another rank
    # slots to add to the own lines, in this order; each is read after its flag, which is reset
    parts: tuple[Block, ...] = ()
    # block of the workspace that also gets the own lines, so that all peers can read them
    published: Block | None = None

    @property
    def signal_phase(self) -> int:
        """Phase of the flags that are set after the puts."""
        return self.phase if self.target is None else self.phase + 1


@dataclass(frozen=True, slots=True)
class WaitTile(Op):
    """Hold the lane until the concurrent GemmReduce has formed strip `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class GemmReduce(Op):
    """Send partial products to the owners of their lines; own lines of D := the sum of all ranks' partial products.

    If one kernel computes all strips, concurrent lanes wait for its tile flags, and the tiles of own lines add the
    peers' partial products before they store D.
    """

    strips: tuple[Strip, ...]
    concurrent: tuple[Op, ...]


def send_order(rank: int, nprocs: int) -> Iterator[int]:
    """The others, in the order in which `rank` sends to them.

    >>> list(send_order(5, 8)), list(send_order(1, 3))
    ([4, 7, 6, 1, 0, 3, 2], [0, 2])
    """
    return (rank ^ i for i in range(1, nprocs)) if is_power_of_two(nprocs) else backwards(rank, nprocs)


def receive_order(rank: int, nprocs: int) -> Iterator[int]:
    """The others, in the order in which their shards reach `rank`.

    >>> list(receive_order(5, 8)), list(receive_order(1, 3))
    ([4, 7, 6, 1, 0, 3, 2], [2, 0])
    """
    return send_order(rank, nprocs) if is_power_of_two(nprocs) else rotated(rank, nprocs)


def is_power_of_two(nprocs: int) -> bool:
    """Whether ranks visit their peers by exclusive or."""
    return nprocs & (nprocs - 1) == 0


class Program:
    """Operations in issue order."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def add(self, op: Op) -> int:
        self.ops.append(op)
        return len(self.ops) - 1

    def send(self, lane: Lane, puts: list[tuple[int, Block, Block]], phase: int, after: tuple[int, ...] = ()) -> None:
        """Append copies, and their signals after the last copy; empty copies are left out, their signals are not.

        Every step of the copies is a permutation of the ranks, so that copies with one wait arrive together.
        """
        for peer, source, target in puts:
            if len(source):
                self.add(Put(lane, peer, source, target, after=after))
                after = ()
        if puts:
            self.add(Signal(lane, tuple(peer for peer, *_ in puts), phase, after=after))


def starts(counts: list[int]) -> list[int]:
    """First line of each of some consecutive blocks, and the end of the last.

    >>> starts([3, 0, 2])
    [0, 3, 3, 5]
    """
    return list(accumulate(counts, initial=0))


def shard_starts(plan: AllGatherGemm | GemmReduceScatter) -> list[int]:
    """First line of each rank's shard of the gathered operand or of D, and the end of the last."""
    return starts([plan.shards.count(rank) for rank in range(plan.product.nprocs)])


def groups_of(order: list[int], sizes: tuple[int, ...]) -> list[list[int]]:
    """A list of ranks cut into groups of these sizes."""
    return [order[a:b] for a, b in pairwise(accumulate(sizes, initial=0))]


def merged(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Intervals in ascending order, adjacent ones joined, empty ones left out."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(intervals):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        elif start < stop:
            joined.append((start, stop))
    return joined
