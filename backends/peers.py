"""Interface of the ranks of a context: their numbers, and messages between their hosts.

`pblas.backends.agreement` uses the small messages; transfers of matrices through the hosts use a `Channel`. The
agreement waits with a deadline. Methods of this module return at once unless they are marked as collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    def close(self) -> None:
        """Free the channel's resources (local)."""


class HostChannel(Channel, Protocol):
    """Messages in the hosts' memory, and MPI's collectives."""

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


class Peers(Protocol):
    """Ranks 0..size-1, and small messages between them; this process is one of the ranks."""

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

    def duplicate(self) -> Peers:
        """**Collective.** The same ranks with separate messages; all ranks have arrived."""

    def world(self) -> Peers:
        """All ranks of the job (global)."""

    def before_end(self, end: Callable[[], None]) -> None:
        """Call `end` while messages still work: before the process ends, perhaps twice (local)."""

    def abandon(self) -> None:
        """Keep the memory of abandoned messages: a late rank may still read or write it (local)."""

    def close(self) -> None:
        """**Collective.** Free a duplicate; no message is under way."""
