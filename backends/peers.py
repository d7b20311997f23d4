"""The ranks that work together, as backends see them: who they are, and the messages between their hosts.

`pblas.backends.agreement` stands on small messages, what moves matrices through the hosts on a `Channel`. Waiting with
a deadline is the agreement's: what is asked here returns at once, unless it is marked as collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic] | Any


class Line(Protocol):
    """Messages of one size, again and again, to one rank and from another."""

    @property
    def received(self) -> bytearray:
        """The last message that has arrived."""

    @property
    def left(self) -> Callable[[], bool]:
        """Whether the last message has left, so that the next one may start (local)."""

    @property
    def arrived(self) -> Callable[[], bool]:
        """Whether the message that was started to be received is here (local)."""

    def start(self, message: bytes) -> None:
        """Send a message, and begin to receive one (local)."""

    def close(self) -> None:
        """Free it; nothing is under way (local)."""


class Transfer(Protocol):
    """A message on its way."""

    def done(self) -> bool:
        """Whether it arrived, or its memory may be used again; also lets messages progress (local)."""


class Channel(Protocol):
    """Messages of pieces of matrices in the hosts' memory."""

    received_nbytes: int

    def send(self, x: Array, dest: int, tag: int) -> Transfer:
        """Start to send x (m x n, one stride is one element) to `dest` (local)."""

    def receive(self, x: Array, source: int, tag: int) -> Transfer:
        """Start to receive into x (m x n, one stride is one element) from `source` (local)."""

    def signal(self, dest: int, tag: int) -> Transfer:
        """Send an empty message: what was written to shared memory before it may be read (local)."""

    def await_signal(self, source: int, tag: int) -> Transfer:
        """Start to receive an empty message (local)."""

    def all_to_all(self, x: Array, counts: Sequence[int], out: Array, out_counts: Sequence[int]) -> None:
        """**Collective.** To each rank so many elements of x, in the order of ranks, and from each into out.

        Args:
            x: tight, of one dimension (local).
            counts: elements for each rank (local).
            out: likewise, of x's dtype (local).
            out_counts: elements from each rank (local).
        """

    def all_gather(self, x: Array, out: Array, counts: Sequence[int]) -> None:
        """**Collective.** Out := every rank's x, one after the other.

        Args:
            x: tight, of one dimension (local).
            out: likewise, of x's dtype (local).
            counts: elements of each rank (global).
        """

    def close(self) -> None:
        """Free what it keeps (local)."""


class Peers(Protocol):
    """Ranks 0..size-1, of which this process is one, and small messages between them."""

    @property
    def rank(self) -> int:
        """This one (local)."""

    @property
    def size(self) -> int:
        """How many there are (global)."""

    @property
    def node(self) -> tuple[int, ...]:
        """**Collective** at first. Those on this rank's node, in order, itself among them (global to the node)."""

    @property
    def local_rank(self) -> int:
        """**Collective** at first. This rank's number among the job's ranks on its node (local)."""

    @property
    def local_size(self) -> int:
        """**Collective** at first. Ranks of the whole job on this node, others than these included (local)."""

    def send(self, message: bytes, dest: int, tag: int) -> Callable[[], bool]:
        """Start to send a message, which is kept meanwhile; what is returned tells whether it has left (local)."""

    def probe(self, tag: int) -> bool:
        """Whether a message has come from any rank, and was not received (local)."""

    def receive(self, tag: int, source: int | None = None) -> tuple[int, bytes] | None:
        """The rank and the text of a message that has come, from one rank or from any; None if there is none (local).

        Those of one rank are received in the order in which they were sent.
        """

    def line(self, dest: int, source: int, tag: int, nbytes: int) -> Line:
        """Messages of `nbytes` bytes each, to `dest` and from `source` (local)."""

    def channel(self) -> Channel:
        """Messages of pieces of matrices between the same ranks (local)."""

    def duplicate(self) -> Peers:
        """**Collective.** The same ranks, with messages of their own; all are here."""

    def world(self) -> Peers:
        """All ranks of the job (global)."""

    def before_end(self, end: Callable[[], None]) -> None:
        """Call `end` while messages still work: before the process ends, perhaps twice (local)."""

    def abandon(self) -> None:
        """Keep the memory of messages that nobody waits for: a late rank may still read or write it (local)."""

    def close(self) -> None:
        """**Collective.** Free what `duplicate` has made; nothing is under way."""
