"""Transfer of a matrix, or a part of it, to another placement: reads in place within a node, messages between nodes.

A `SourceMatrix` publishes the local arrays of a matrix; a `Movement` transfers a part of it to another placement. Both
are built once and used many times. Several movements of one source may be under way at once: a product starts the next
panel before it multiplies with the current one.

    matrix.publish(x)               # an agreement of all ranks comes next, which may ask for matrix.stage()
    movement.begin()                # starts the messages to and from far ranks, and returns at once
    movement.finish(out)            # returns when the rank's part is in `out` and its messages have left
                                    # all ranks agree before x is overwritten: near ranks read it in place
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from pblas.layouts.messages import Move, receives, sends
from pblas.layouts.relays import Sharers, are_shared, receiver
from pblas.layouts.strided import SOURCE
from pblas.redistribution.assembly import Assembly
from pblas.redistribution.packing import COPY, KnownRuns, Message, Put

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pblas.backends.dtypes import Array, Dtype, Order
    from pblas.backends.host_ranks import HostRanks
    from pblas.backends.traced import Kind
    from pblas.backends.transport import Transfer
    from pblas.layouts.placement import Placement
    from pblas.layouts.trapezoid import Trapezoid

_ARRIVED, _READ = 100, 200
"""Added to the tag of a movement: for signals that a message has arrived, and that a rank has read all messages."""


class RelayMemory:
    """Memory in windows for messages of the movements of one matrix, in slots.

    Movements that are never under way together use the same slot.
    """

    def __init__(self, backend: HostRanks, dtype: Dtype) -> None:
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
    """The messages of one movement that the ranks of a host share."""

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


TAG = 1020


def own_memory(backend: HostRanks, nbytes: int) -> Array:
    """Private memory of one plan, in the backend's memory; on CPUs from the workspace slot, if there is one (local)."""
    memory: Array = backend.arrays.empty(nbytes) if backend.gpus else backend.buffer(nbytes)
    return memory


class Buffers:
    """Reusable memory for messages, shared by movements that are never under way together."""

    def __init__(self, backend: HostRanks) -> None:
        self._backend = backend
        self._free: list[Array] = []
        self.nbytes: int = 0  # bytes allocated so far (local)

    def take(self, nbytes: int) -> Array:
        """A buffer of at least `nbytes` bytes (local)."""
        fitting = [i for i, buffer in enumerate(self._free) if buffer.nbytes >= nbytes]
        if fitting:
            return self._free.pop(min(fitting, key=lambda i: self._free[i].nbytes))
        self.nbytes += nbytes
        return own_memory(self._backend, nbytes)

    def give(self, buffer: Array) -> None:
        """Return a buffer (local)."""
        self._free.append(buffer)

    def drop(self) -> None:
        """Free all buffers; all have been returned (local)."""
        self._free = []
        self.nbytes = 0


class SourceMatrix:
    """**Collective.** The local arrays of one matrix, which near ranks read in place."""

    def __init__(
        self,
        backend: HostRanks,
        placement: Placement,
        dtype: Dtype,
        order: Order = "F",
        *,
        # whether none is published: `put_in` places the arrays, at one place of symmetric memory, or no peer reads them
        # (global)
        symmetric: bool = False,
    ) -> None:
        self.backend: HostRanks = backend
        self.placement: Placement = placement
        self.dtype: Dtype = dtype
        self.order = order
        self._location = backend.location_table() if backend.shared and not symmetric else None
        self._block: Any = None
        near = sum(map(backend.is_near, range(backend.size)))
        self._is_read = near > 0
        self.has_far: bool = near < backend.size - 1  # whether some ranks are reached by messages only (local)
        self._stage: Any = None
        self.relay_memory: RelayMemory = RelayMemory(backend, dtype)
        """Memory for messages that a host receives once (local)."""
        self._shapes: dict[int, tuple[int, int]] = {}
        self.local: Array

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's copy of an array that is in no window, and of messages that a host receives once."""
        return self.relay_memory.nbytes + (0 if self._stage is None else int(self._stage.nbytes))

    @property
    def most_nbytes(self) -> int:
        """Bytes of the array of any rank at most (global)."""
        return self.placement.rows.max_count * self.placement.columns.max_count * self.dtype.itemsize

    def put_in(self, block: Any) -> Array:
        """This rank's array, at the start of symmetric memory; an agreement comes before peers read it (local)."""
        self._block, local = block, self.placement.local_shape(self.backend.rank)
        self.local = self.backend.peer_block(block, self.backend.rank, 0, local, self.dtype, self.order)
        return self.local

    def publish(self, x: Array) -> bool:
        """Publish the location of this rank's array; true if all ranks must stage their arrays first."""
        self.local = x
        if self._location is None or self.backend.publish(self._location, x) or not self._is_read:
            return False
        if self._stage is None:
            return True
        self.stage()
        return False

    def prepare(self, *, scratch: bool) -> None:
        """**Collective** at first. Allocate memory for messages that a host receives once; `stage` if any rank must."""
        self.relay_memory.allocate()
        if scratch:
            self.stage()

    def stage(self) -> None:
        """**Collective** at first. Copy an array that is not in a window into a window."""
        assert self._location is not None, "only an array that a peer reads in place is staged"
        if self._stage is None:
            nelements = self.placement.rows.max_count * self.placement.columns.max_count
            self._stage = self.backend.allocate_scratch(max(1, nelements) * self.dtype.itemsize)
        if self.backend.publish(self._location, self.local):
            return
        staged = self.backend.peer_block(self._stage, self.backend.rank, 0, self.local.shape, self.dtype, self.order)
        self.backend.arrays.assign(self.local, staged)
        self.backend.arrays.synchronize()
        self.backend.publish(self._location, staged)

    def array(self, peer: int) -> Array:
        """The array of a near rank, in place, or this rank's own (local)."""
        if peer == self.backend.rank:
            return self.local
        if peer not in self._shapes:
            self._shapes[peer] = self.placement.local_shape(peer)
        if self._block is not None:
            return self.backend.peer_block(self._block, peer, 0, self._shapes[peer], self.dtype, self.order)
        assert self._location is not None, "near peers have published"
        return self.backend.peer_array(self._location, peer, self._shapes[peer], self.dtype, self.order)

    def address(self, peer: int) -> tuple[int, ...]:
        """Published location of a near rank's array (local)."""
        assert self._location is not None, "near peers have published"
        return self.backend.published(self._location, peer)

    def release(self) -> None:
        """Forget the array: a finished execution keeps no matrix alive (local)."""
        self.__dict__.pop("local", None)
        self._block = None

    def drop(self) -> None:
        """Free the staged copy and relay memory; `prepare` allocates them again. All ranks do so (local)."""
        self._stage = None
        self.relay_memory.drop()


class Movement:
    """Transfer of a part of a matrix to another placement."""

    def __init__(
        self,
        source_matrix: SourceMatrix,  # the matrix that is read (global)
        target: Placement,  # placement of the part after the transfer (global)
        # (i0, i1, j0, j1) of the matrix, half-open; None for all of it (global)
        part: tuple[int, int, int, int] | None = None,
        *,
        # another placement of the same local arrays, to which `part` refers: one process column as a matrix, or one
        # copy without the others; None: the placement of the source matrix (global)
        placement: Placement | None = None,
        trapezoid: Trapezoid | None = None,  # elements of the part to move; None for all (global)
        buffers: Buffers | None = None,  # memory for messages; None for separate memory (local)
        # of the messages. Concurrent movements between the same ranks may share a tag if all ranks begin them in the
        # same order (global)
        tag: int = TAG,
        # of the source matrix's relay memory, in which a host receives the elements that several of its ranks need;
        # None: each rank receives for itself. With a slot all ranks make the movement, begin it and receive in the same
        # order, after `SourceMatrix.prepare`; movements with one slot are never under way together (global)
        slot: int | None = None,
    ) -> None:
        backend, rank = source_matrix.backend, source_matrix.backend.rank
        self.source_matrix: SourceMatrix = source_matrix
        self._backend = backend
        self._tag = tag
        self._buffers = Buffers(backend) if buffers is None else buffers
        self._placement = source_matrix.placement if placement is None else placement
        i0, i1, j0, j1 = part or (0, self._placement.shape[0], 0, self._placement.shape[1])
        self._corner = i0, j0
        self._offsets: dict[int, tuple[int, int]] = {}
        source = self._placement.part(i0, i1, j0, j1)
        self._relay = relay = relay_of(source_matrix.relay_memory, slot, source, target, tag)
        self._known: KnownRuns = {}
        moves = list(receives(source, target, rank))
        incoming = [self._message(move, target, 1, trapezoid) for move in moves]
        incoming = [message for message in incoming if message.nelements]
        self._readable = [message for message in incoming if message.peer == rank or backend.is_near(message.peer)]
        self._far = [message for message in incoming if message not in self._readable]
        if relay is not None:
            self._far = relay.ordered(self._far)
        in_numpy = backend.arrays.block_copy is None
        self._assembly = Assembly(moves, self._known) if in_numpy and trapezoid is None and not self._far else None
        outgoing = (
            self._message(move, source, 0, trapezoid)
            for move in (sends(source, target, rank) if source_matrix.has_far else ())
            if not backend.is_near(move.peer) and (relay is None or relay.is_sent(move.peer))
        )
        self._outgoing = [message for message in outgoing if message.nelements]
        self._sending: list[tuple[Transfer, Array | None]] = []
        self._arriving: list[tuple[Transfer, Message, Array, Array | None]] = []

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of memory for messages allocated so far (local)."""
        return self._buffers.nbytes

    @property
    def near(self) -> list[int]:
        """Near ranks whose arrays this rank reads (local)."""
        return [message.peer for message in self._readable if message.peer != self._backend.rank]

    @property
    def has_messages(self) -> bool:
        """Whether this rank sends or receives any; otherwise `begin` and `sent` do nothing (local)."""
        return bool(self._far or self._outgoing)

    def begin(self) -> None:
        """Start to receive from far ranks and to send to them."""
        self._backend.sync()
        with self._backend.arrays.on_side_lane("send pieces" if self._outgoing else ""):
            self._begin()

    def _begin(self) -> None:
        channel = self._backend.channel
        if self._relay is not None:
            self._relay.take()
        for message in self._far:
            shared = None if self._relay is None else self._relay.begin(message)
            if shared is not None:
                self._arriving.append((shared[0], message, shared[1], None))
                continue
            flat, buffer = self._memory(message)
            self._arriving.append((channel.receive(flat[:, None], message.peer, self._tag), message, flat, buffer))
        x = self._array(self._backend.rank) if self._outgoing else None
        for message in self._outgoing:
            assert x is not None, "there is something to send"
            block = message.block(x, SOURCE)
            if block is not None:
                self._sending.append((channel.send(block, message.peer, self._tag), None))
                continue
            flat, buffer = self._memory(message)
            message.pack(x, flat)
            self._sending.append((channel.send(flat[:, None], message.peer, self._tag), buffer))

    def progress(self) -> None:
        """Let MPI progress the messages under way."""
        for transfer, *_ in self._arriving:
            transfer.done()
        for transfer, _ in self._sending:
            transfer.done()
        self._announce()

    def in_place(self) -> Array | None:
        """A view of the whole part, if it is one block of this rank's array or of a near rank's; otherwise None."""
        if self._far or len(self._readable) != 1:
            return None
        block = self._readable[0].block(self._array(self._readable[0].peer), SOURCE)
        if block is not None:
            self._count(self._readable[0])
        return block

    @property
    def is_own(self) -> bool:
        """Whether this rank holds all of its part (local)."""
        return not self._far and all(message.peer == self._backend.rank for message in self._readable)

    def finish(self, out: Array, put: Put = COPY) -> None:
        """`receive`, and return when this rank's messages have left."""
        self.receive(out, put)
        self.sent()

    def receive(self, out: Array, put: Put = COPY) -> None:
        """Put this rank's elements of the part to `out`: those in readable memory, then messages as they arrive."""
        what: tuple[str, Kind] = ("bring pieces", "copy") if put == COPY else ("add pieces", "sum")
        with self._backend.arrays.on_side_lane(*what):
            self._receive(out, put)

    def _receive(self, out: Array, put: Put) -> None:
        for message in self._readable:
            self._count(message)
        if self._assembly is None or not self._assembly.bring(self._array, out, put):
            for message in self._readable:
                message.bring(self._array(message.peer), out, put)
                self.progress()
        while self._arriving:
            self._backend.wait(self._some_arrived, "pieces of a matrix")
            for entry in [entry for entry in self._arriving if entry[0].done()]:
                _, message, flat, buffer = entry
                if self._relay is not None and self._relay.is_read_near(message):
                    self._backend.sync()
                    self._count(message)
                message.unpack(flat, out, put)
                self._arriving.remove(entry)
                if buffer is not None:
                    self._buffers.give(buffer)
        self._announce()
        if self._relay is not None:
            self._sending += [(signal, None) for signal in self._relay.acknowledge()]

    def _announce(self) -> None:
        """Tell the ranks of this host of messages that this rank receives for them."""
        if self._relay is not None:
            self._sending += [(signal, None) for signal in self._relay.announce()]

    def sent(self) -> None:
        """Return when this rank's messages have left."""
        for transfer, sent in self._sending:
            self._backend.wait(transfer.done, "sending pieces of a matrix")
            if sent is not None:
                self._buffers.give(sent)
        self._sending = []
        if self._relay is not None:
            self._relay.give()

    def free_buffers(self) -> None:
        """Free the memory of messages and copies; the next use allocates it again. All ranks do so (local)."""
        self._buffers.drop()
        self.source_matrix.drop()

    def _array(self, peer: int) -> Array:
        """The elements of the part that rank `peer` holds."""
        if peer not in self._offsets:
            self._offsets[peer] = self._placement.local_offset(*self._corner, peer)
        i, j = self._offsets[peer]
        return self.source_matrix.array(peer)[i:, j:]

    def _count(self, message: Message) -> None:
        """Count the bytes that are read in a near rank's memory."""
        if message.peer != self._backend.rank:
            self._backend.read_nbytes += message.nelements * self.source_matrix.dtype.itemsize

    def _message(self, move: Move, place: Placement, side: int, trapezoid: Trapezoid | None) -> Message:
        """A move as a message; `place` is its placement on this rank, `side` is 0 to send and 1 to receive."""
        parts: Iterable[tuple[Move, Trapezoid | None]] = [(move, None)]
        if trapezoid is not None:
            parts = trapezoid.cut(move, place, self._backend.rank, side, self._backend.arrays.traits.most_across)
        return Message(move.peer, parts, self.source_matrix.order, self._known, self._backend.arrays.block_copy)

    def _memory(self, message: Message) -> tuple[Array, Array]:
        """Memory for the elements of a message, and its buffer."""
        buffer = self._buffers.take(message.nelements * self.source_matrix.dtype.itemsize)
        return self._backend.arrays.array(buffer, (message.nelements,), self.source_matrix.dtype), buffer

    def _some_arrived(self) -> bool:
        self._announce()
        return any(transfer.done() for transfer, *_ in self._arriving)
