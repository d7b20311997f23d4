"""The contract of what carries data between the hosts of ranks: their numbers and nodes, messages, and shared memory.

`Transport` is implemented by MPI (`pblas.backends.mpi`) and by groups of torch.distributed
(`pblas.backends.process_group`), and documented here only. It knows no matrices and waits for nobody: all ranks agree,
and wait with a deadline, by `pblas.backends.agreement.Agreement`, which needs nothing but a transport. Methods return
at once unless they are marked as collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic] | Any


class Line(Protocol):
    """Repeated messages of one size, to one rank and from another."""

    @property
    def received(self) -> bytearray:
        """The last message that has arrived."""

    @property
    def left(self) -> Callable[[], bool]:
        """Whether the last message has left, so that the next one may start (local)."""

    @property
    def arrived(self) -> Callable[[], bool]:
        """Whether the message of the last `start` has arrived (local)."""

    def start(self, message: bytes) -> None:
        """Send a message, and begin to receive one (local)."""

    def close(self) -> None:
        """Free the line; no message is under way (local)."""


class Transfer(Protocol):
    """A message under way."""

    def done(self) -> bool:
        """Whether the message arrived, or its memory may be reused; also lets messages progress (local)."""


class Channel(Protocol):
    """Messages of pieces of matrices."""

    received_nbytes: int

    def send(self, x: Array, dest: int, tag: int) -> Transfer:
        """Start to send x (m x n, one stride is one element) to `dest` (local)."""

    def receive(self, x: Array, source: int, tag: int) -> Transfer:
        """Start to receive into x (m x n, one stride is one element) from `source` (local)."""

    def signal(self, dest: int, tag: int) -> Transfer:
        """Send an empty message: the receiver may read what this rank wrote to shared memory before (local)."""

    def await_signal(self, source: int, tag: int) -> Transfer:
        """Start to receive an empty message (local)."""

    def progress(self) -> None:
        """Start messages that have waited for operations of the device (local)."""

    def close(self) -> None:
        """Free the channel's resources (local)."""


class HostChannel(Channel, Protocol):
    """Messages in the hosts' memory, and collectives of it."""

    def all_to_all(self, x: Array, counts: Sequence[int], out: Array, out_counts: Sequence[int]) -> Transfer:
        """**Collective.** Start to send consecutive elements of x to each rank, and to receive from each into out.

        Args:
            x: tight, of one dimension (local).
            counts: elements for each rank (local).
            out: tight, of one dimension, of x's dtype (local).
            out_counts: elements from each rank (local).
        """

    def all_gather(self, x: Array, out: Array, counts: Sequence[int]) -> Transfer:
        """**Collective.** Start out := every rank's x, one after the other.

        Args:
            x: tight, of one dimension (local).
            out: tight, of one dimension, of x's dtype (local).
            counts: elements of each rank (global).
        """


class SmallValues(Protocol):
    """Ranks that exchange small values: an `Agreement`."""

    @property
    def rank(self) -> int:
        """The number of this rank (local)."""

    def gather(self, value: object, step: str, ranks: Sequence[int] | None = None) -> list[Any]:
        """**Collective** over the `ranks`. The value of each, in their order: see `Agreement.gather`."""


class NodeMemory(Protocol):
    """Memory that some ranks of a node share."""

    def allocate(self, nbytes: int) -> list[Array]:
        """**Collective** over these ranks. `nbytes` bytes for each of them, in their order.

        Raises:
            WorkspaceError: too little memory; perhaps on some of these ranks only.
        """

    def sync(self) -> None:
        """Make this rank's writes visible to the others, and theirs to this rank; messages order them (local)."""

    def close(self) -> None:
        """**Collective** over these ranks. Free all memory, which nobody uses any more."""


class Transport(Protocol):
    """Ranks 0..size-1, this process among them, and what travels between their hosts."""

    @property
    def name(self) -> str:
        """The backend of CPUs over this transport, as `Context(backend=...)` has it (global)."""

    @property
    def rank(self) -> int:
        """The number of this rank (local)."""

    @property
    def size(self) -> int:
        """Number of ranks (global)."""

    @property
    def node(self) -> tuple[int, ...]:
        """**Collective** at first. The ranks on this rank's node, itself included, in order (global to the node)."""

    @property
    def local_rank(self) -> int:
        """**Collective** at first. This rank's number among the job's ranks on its node (local)."""

    @property
    def local_size(self) -> int:
        """**Collective** at first. Number of the job's ranks on this node, in the context or not (local)."""

    def describe(self) -> dict[str, str]:
        """Facts for `pblas info` (local)."""

    # Messages

    def send(self, message: bytes, dest: int, tag: int) -> Callable[[], bool]:
        """Start to send a message, which is kept alive; the returned function says whether it has left (local)."""

    def probe(self, tag: int) -> bool:
        """Whether a message from any rank has arrived and was not received (local)."""

    def receive(self, tag: int, source: int | None = None) -> tuple[int, bytes] | None:
        """The sender and the bytes of a message from `source`, or from any rank; None if none has arrived (local).

        Messages of one rank are received in the order in which they were sent.
        """

    def line(self, dest: int, source: int, tag: int, nbytes: int) -> Line:
        """Messages of `nbytes` bytes each, to `dest` and from `source` (local)."""

    def channel(self) -> HostChannel:
        """Messages of pieces of matrices between the same ranks (local)."""

    def progressing(self) -> AbstractContextManager[None]:
        """A with block in which messages move while this rank computes (local)."""

    # Shared memory

    def node_memory(self, ranks: Sequence[int], agreement: SmallValues) -> NodeMemory:
        """**Collective.** Memory that `ranks` share, which are on this rank's node (global to the node).

        Args:
            ranks: this rank among them, in order (global to them).
            agreement: agreement of all ranks (global).
        """

    # The end

    def duplicate(self) -> Transport:
        """**Collective.** The same ranks with separate messages; all ranks have arrived."""

    def of_another_thread(self) -> Transport | None:
        """The same messages for another thread of this process; None if it may send none (local)."""

    def world(self) -> Transport:
        """All ranks of the job (global)."""

    def before_end(self, end: Callable[[], None]) -> None:
        """Call `end` while messages still work: before the process ends, perhaps twice (local)."""

    def is_over(self) -> bool:
        """Whether no message can be sent any more, as after MPI.Finalize (local)."""

    def abandon(self) -> None:
        """Begin no message any more, and keep the memory of those under way: a late rank may still use it (local)."""

    def close(self) -> None:
        """**Collective.** Free a duplicate; no message is under way."""
