"""Messages that one rank of a host receives for all ranks of the host that need them. The others read its memory.

    transfer, flat = relay.begin(message)   # done when the message is in `flat`, in this rank's or a near rank's memory
    relay.announce()                        # on the receiver: tell the others of messages that have arrived
    relay.acknowledge()                     # tell the receivers that this rank has read all messages

The receiver waits for the acknowledgements before its movement counts as finished. So the next movement with the same
memory overwrites nothing that is still read. While a rank waits for messages it announces those that have arrived.
All ranks begin and receive their movements in one order. So a rank that waits in step s of this order waits for
something that another rank does in an earlier step, or in step s before it waits itself.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from pblas.layouts.relays import Sharers, are_shared, receiver

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.backends.transport import Transfer
    from pblas.layouts.placement import Placement
    from pblas.redistribution.packing import Message

_ARRIVED, _READ = 100, 200
"""Added to the tag of a movement: for signals that a message has arrived, and that a rank has read all messages."""


class RelayMemory:
    """Memory in windows for messages of the movements of one matrix, in slots.

    Movements that are never under way together use the same slot.

    Args:
        backend: allocates the memory (local).
        dtype: of the matrix (global).
    """

    def __init__(self, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        self.backend: HostRanks = backend
        self._dtype = dtype
        self._sizes: dict[int, int] = {}
        self._blocks: dict[int, Any] = {}
        self._in_use: set[int] = set()

    @property
    def nbytes(self) -> int:
        """Bytes allocated now (local)."""
        return sum(self._sizes[slot] * self._dtype.itemsize for slot in self._blocks)

    def reserve(self, slot: int, nelements: int) -> None:
        """Make a slot large enough for a movement, before `allocate`."""
        self._sizes[slot] = max(self._sizes.get(slot, 1), nelements)

    def allocate(self) -> None:
        """**Collective.** Allocate the slots that have no memory."""
        for slot in sorted(self._sizes.keys() - self._blocks.keys()):
            self._blocks[slot] = self.backend.allocate_scratch(self._sizes[slot] * self._dtype.itemsize)

    def drop(self) -> None:
        """Free the slots; all ranks do so, and `allocate` them again before the next use (local)."""
        self._blocks = {}
        self._in_use = set()

    def take(self, slot: int) -> None:
        """Use a slot for the messages of a movement, until `give` (local)."""
        assert slot not in self._in_use, "movements with one slot are never under way together"
        self._in_use.add(slot)

    def give(self, slot: int) -> None:
        """The messages of a movement have been read (local)."""
        self._in_use.discard(slot)

    def flat(self, slot: int, peer: int, start: int, count: int) -> Array:
        """Elements of a slot in the memory of a near rank, or of this rank, as a 1-D array (local)."""
        offset, shape = start * self._dtype.itemsize, (count, 1)
        flat: Array = self.backend.peer_block(self._blocks[slot], peer, offset, shape, self._dtype, "F")[:, 0]
        return flat


class Relay:
    """The messages of one movement that the ranks of a host share.

    Args:
        memory: of the matrix (global).
        slot: number of the slot (global).
        source: placement of the part before the movement (global).
        target: placement after it (global).
        tag: of the movement's messages (global).
    """

    def __init__(self, memory: RelayMemory, slot: int, source: Placement, target: Placement, tag: int) -> None:
        self._memory, self._slot, self._source, self._tag = memory, slot, source, tag
        self._backend = memory.backend
        self._rank = self._backend.rank
        self._sharers = Sharers(target, self._backend.groups)
        self._others = [peer for peer in self._sharers.of(self._rank) if peer != self._rank]
        self._places: dict[int, tuple[int, int]] = {}  # of each sender: the receiver, and first element in its slot
        self._counts = Counter[int]()  # elements in the slot of each receiver
        self._expected: deque[Transfer] = deque()
        memory.reserve(slot, target.rows.max_count * target.columns.max_count)

    def is_sent(self, peer: int) -> bool:
        """Whether this rank's message for `peer` goes to that rank itself, not to another one of its host (local)."""
        return receiver(self._source, self._sharers.of(peer), self._rank) == peer

    def ordered(self, far: Sequence[Message]) -> list[Message]:
        """The messages of far ranks in the order of announcements, after a look at who receives them."""
        messages = sorted(far, key=lambda message: message.peer)
        for message in messages if self._others else ():
            rank = receiver(self._source, self._sharers.of(self._rank), message.peer)
            self._places[message.peer] = rank, self._counts[rank]
            self._counts[rank] += message.nelements
        return messages

    def take(self) -> None:
        """Take memory for the movement; other ranks have read what was there before (local)."""
        if self._places:
            self._memory.take(self._slot)

    def give(self) -> None:
        """Return the memory: all transfers of the movement are done, acknowledgements included (local)."""
        if self._places:
            self._memory.give(self._slot)

    def begin(self, message: Message) -> tuple[Transfer, Array] | None:
        """Start to receive a message, or to wait until another rank has received it."""
        if message.peer not in self._places:
            return None
        rank, start = self._places[message.peer]
        flat, channel = self._memory.flat(self._slot, rank, start, message.nelements), self._backend.channel
        if rank != self._rank:
            return channel.await_signal(rank, self._tag + _ARRIVED), flat
        transfer = channel.receive(flat[:, None], message.peer, self._tag)
        self._expected.append(transfer)
        return transfer, flat

    def is_read_near(self, message: Message) -> bool:
        """Whether this rank reads a message in the memory of another rank (local)."""
        return message.peer in self._places and self._places[message.peer][0] != self._rank

    def announce(self) -> list[Transfer]:
        """Tell the other ranks of messages that have arrived here (local)."""
        signals: list[Transfer] = []
        while self._expected and self._expected[0].done():
            self._expected.popleft()
            self._backend.sync()
            signals += [self._backend.channel.signal(peer, self._tag + _ARRIVED) for peer in self._others]
        return signals

    def acknowledge(self) -> list[Transfer]:
        """Tell the receivers that this rank has read all messages, and await that of the readers (local)."""
        channel, tag = self._backend.channel, self._tag + _READ
        self._backend.sync()
        read = [channel.signal(rank, tag) for rank in sorted(self._counts.keys() - {self._rank})]
        return read + [channel.await_signal(peer, tag) for peer in self._others if self._counts[self._rank]]


def relay_of(memory: RelayMemory, slot: int | None, source: Placement, target: Placement, tag: int) -> Relay | None:
    """The relay of a movement; None if the movement has no slot, or ranks of one host need nothing in common."""
    backend = memory.backend
    if slot is None or backend.gpus or not are_shared(source, target, backend.groups):
        return None
    return Relay(memory, slot, source, target, tag)
