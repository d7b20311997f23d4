"""The operations of the push protocol, which lanes run on blocks of memory; see `pblas.schedules.schedule`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pblas.backends.lanes import Lane
from pblas.plans.partition import MAX_PIECES

Buffer = Literal["shard", "gathered", "partial", "pulled", "slots", "results", "result", "old", "operands"]

PARTS, RESULTS = 0, 1
"""Phases of a piece: partial products (or shards) arrive, finished lines arrive."""

MAX_PHASES = 2 * MAX_PIECES
"""Phases of a call at most: two for each piece."""


@dataclass(frozen=True, slots=True)
class Block:
    """Lines start..stop of a buffer; of "slots", those of the slot that rank `slot` fills.

    Partial products are in private memory ("partial"), or in the rank's workspace, where peers read them ("pulled").
    """

    buffer: Buffer
    start: int
    stop: int
    slot: int = -1

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Op:
    """The base class of operations.

    Args:
        lane: the stream on which it runs.
        after: indices of operations of other lanes that must have finished.
    """

    lane: Lane
    after: tuple[int, ...] = field(default=(), kw_only=True)

    def reads(self) -> tuple[Block, ...]:
        """Blocks of this rank that are read while it runs."""
        return ()

    def writes(self) -> tuple[Block, ...]:
        """Blocks of this rank that are written while it runs."""
        return ()


@dataclass(frozen=True, slots=True)
class Put(Op):
    """Copy a block of this rank into the memory of `peer`."""

    peer: int
    source: Block
    target: Block

    def reads(self) -> tuple[Block, ...]:
        """The source; the target is the peer's."""
        return (self.source,)


@dataclass(frozen=True, slots=True)
class Signal(Op):
    """Set the flags of this rank and `phase` at `peers`: they may read the earlier puts of this lane."""

    peers: tuple[int, ...]
    phase: int


@dataclass(frozen=True, slots=True)
class Burst(Op):
    """Puts and the signals of one phase by one kernel that uses the multiprocessors, not the copy engine.

    The kernel ends when it has also seen, and reset, the flags of the ranks that it `awaits`.
    """

    puts: tuple[Put, ...]
    phase: int
    peers: tuple[int, ...]
    awaits: tuple[int, ...] = ()

    def reads(self) -> tuple[Block, ...]:
        """The sources."""
        return tuple(put.source for put in self.puts)


@dataclass(frozen=True, slots=True)
class Wait(Op):
    """Wait for the flags of `phase` of these ranks, and reset them."""

    phase: int
    sources: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Multiply(Op):
    """The GEMM of some lines: with the block `operand` of the gathered matrix, or into the block `target`."""

    operand: Block | None = None
    target: Block | None = None

    def reads(self) -> tuple[Block, ...]:
        """The gathered lines."""
        return (self.operand,) if self.operand is not None else (Block("operands", 0, 1),)

    def writes(self) -> tuple[Block, ...]:
        """The lines of the partial product; D where lines are gathered."""
        return (self.target,) if self.target is not None else ()


@dataclass(frozen=True, slots=True)
class Arrival:
    """Lines of the gathered matrix, and the rank and phase of the flag of their arrival; -1: own lines."""

    operand: Block
    source: int = -1
    phase: int = PARTS


@dataclass(frozen=True, slots=True)
class GemmAsArriving(Op):
    """The GEMM of all lines, in this order; each waits for its flag, which is reset before the operation ends.

    If one kernel multiplies all lines, its tiles wait, and it resets the flags after it has seen the last. A peer sets
    none of them again before it has a flag of this rank's next call.
    """

    arrivals: tuple[Arrival, ...]

    def reads(self) -> tuple[Block, ...]:
        """The lines."""
        return tuple(arrival.operand for arrival in self.arrivals)


@dataclass(frozen=True, slots=True)
class Sum(Op):
    """Lines of D := the partial products of `sources`, in this order, and this rank's own, + beta C."""

    parts: tuple[Block, ...]
    own: Block | None
    target: Block

    def reads(self) -> tuple[Block, ...]:
        """The slots and the own partial product."""
        return self.parts + ((self.own,) if self.own is not None else ())

    def writes(self) -> tuple[Block, ...]:
        """Lines of D."""
        return (self.target,)


@dataclass(frozen=True, slots=True)
class AllGather(Op):
    """The shards of all ranks, one after the other, by one kernel that waits for its peers.

    Args:
        source: the own shard.
        target: all of them.
    """

    source: Block
    target: Block

    def reads(self) -> tuple[Block, ...]:
        """The own shard, if it is not empty."""
        return (self.source,) if len(self.source) else ()

    def writes(self) -> tuple[Block, ...]:
        """All shards."""
        return (self.target,)


@dataclass(frozen=True, slots=True)
class ReduceScatter(Op):
    """Every rank's shard of D := the partial products of all ranks, by one kernel that waits for its peers.

    Args:
        source: the own partial product, in the order of the owners of its lines.
        target: the own shard of D.
    """

    source: Block
    target: Block

    def reads(self) -> tuple[Block, ...]:
        """The own partial product."""
        return (self.source,)

    def writes(self) -> tuple[Block, ...]:
        """The own shard of D."""
        return (self.target,)


@dataclass(frozen=True, slots=True)
class AllReduce(Op):
    """D := the partial products of all ranks, on all of them, by one kernel that waits for its peers.

    In one shot every rank sends all of its lines to all peers. In two shots each rank adds its share of the lines,
    which it reads in the workspaces of all ranks. It then reads the peers' sums there, or the peers send them into D.
    """

    shots: Literal[1, 2]
    source: Block
    target: Block
    phase: int = PARTS

    def reads(self) -> tuple[Block, ...]:
        """The own partial product."""
        return (self.source,)

    def writes(self) -> tuple[Block, ...]:
        """D."""
        return (self.target,)


@dataclass(frozen=True, slots=True)
class CopyOut(Op):
    """Copy finished lines from the workspace, where peers have put them, to D; or own lines of D to the workspace."""

    source: Block
    target: Block

    def reads(self) -> tuple[Block, ...]:
        """The workspace, or D."""
        return (self.source,)

    def writes(self) -> tuple[Block, ...]:
        """D, or the workspace."""
        return (self.target,)


@dataclass(frozen=True, slots=True)
class Get(Op):
    """Copy finished lines in the workspace of `peer` to D."""

    peer: int
    source: Block
    target: Block

    def writes(self) -> tuple[Block, ...]:
        """D; the source is in the peer's memory."""
        return (self.target,)


@dataclass(frozen=True, slots=True)
class Gets(Op):
    """Gets from several peers by one kernel that uses the multiprocessors, not the copy engine."""

    gets: tuple[Get, ...]

    def writes(self) -> tuple[Block, ...]:
        """D."""
        return tuple(get.target for get in self.gets)


@dataclass(frozen=True, slots=True)
class Strip:
    """Lines that a GemmReduce makes: a partial product for another rank, or own lines of D.

    Args:
        lines: of the partial product.
        phase: of the flags of partial products of these lines in the owner's slots; flags of sums have the next phase.
        puts: copies that the kernel stores as it forms the lines, each followed by its flag; the owner stores sums in
            the memory of all peers; none: the lines stay on this rank.
        target: the own lines of D; None for lines of another rank.
        parts: slots that are added to the own lines, in this order, each after its flag, which is reset.
        offered: block of the workspace that also gets the own lines, for all peers to read.
    """

    lines: Block
    phase: int
    puts: tuple[Put, ...] = ()
    target: Block | None = None
    parts: tuple[Block, ...] = ()
    offered: Block | None = None

    @property
    def signal_phase(self) -> int:
        """Phase of the flags that follow its puts."""
        return self.phase if self.target is None else self.phase + 1


@dataclass(frozen=True, slots=True)
class WaitTile(Op):
    """Hold a lane until the concurrent GemmReduce has formed strip `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class GemmReduce(Op):
    """Send partial products to the owners of their lines; D := the own lines + the peers' partial products of them.

    If one kernel multiplies, concurrent lanes wait for its signals of finished strips, and the tiles of own lines add
    the peers' partial products before they are stored in D.

    Args:
        strips: in the order in which they are formed.
        beside: concurrent operations of other lanes, in issue order.
    """

    strips: tuple[Strip, ...]
    beside: tuple[Op, ...]

    def reads(self) -> tuple[Block, ...]:
        """The operands and the slots."""
        return (Block("operands", 0, 1), *(part for strip in self.strips for part in strip.parts))

    def writes(self) -> tuple[Block, ...]:
        """The lines of the partial product, and those of D."""
        made = [block for strip in self.strips for block in (strip.target, strip.offered) if block is not None]
        return (*(strip.lines for strip in self.strips), *made, *(block for op in self.beside for block in op.writes()))
