"""`Peers` for the ranks of an MPI communicator."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from pblas.backends.mpi import world
from pblas.backends.mpi.channel import Channel
from pblas.backends.mpi.launch import local_size

if TYPE_CHECKING:
    from collections.abc import Callable

_ABANDONED: list[MpiPeers] = []
"""Peers with abandoned messages: a message of a late rank must not arrive in freed memory."""


class MpiLine:
    """Messages of one size by persistent requests, the cheapest kind."""

    __slots__ = ("_receive", "_send", "_sent", "arrived", "left", "received")

    def __init__(self, comm: MPI.Intracomm, dest: int, source: int, tag: int, nbytes: int) -> None:
        self._sent = bytearray(nbytes)
        self.received: bytearray = bytearray(nbytes)
        self._send = comm.Send_init(self._sent, dest, tag)
        self._receive = comm.Recv_init(self.received, source, tag)
        self.left: Callable[[], bool] = self._send.Test
        self.arrived: Callable[[], bool] = self._receive.Test

    def start(self, message: bytes) -> None:
        """Send a message, and begin to receive one (local)."""
        self._sent[:] = message
        self._receive.Start()
        self._send.Start()

    def close(self) -> None:
        """Free the requests (local)."""
        self._send.Free()
        self._receive.Free()


class MpiPeers:
    """The ranks of a communicator: `pblas.backends.peers.Peers` by MPI.

    Args:
        comm: messages with tags from 100 on belong to this class (global).
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self._sends: list[tuple[MPI.Request, bytes]] = []
        self._lines: list[MpiLine] = []
        self._status = MPI.Status()

    @cached_property
    def node(self) -> tuple[int, ...]:
        """**Collective** at first. Ranks that can share memory with this one, itself among them."""
        node: Any = self.comm.Split_type(MPI.COMM_TYPE_SHARED, self.rank)
        ranks = MPI.Group.Translate_ranks(node.Get_group(), list(range(node.Get_size())), self.comm.Get_group())
        node.Free()
        return tuple(ranks)

    @property
    def local_rank(self) -> int:
        """**Collective** at first. This rank's number among the job's ranks on its node."""
        number = self.node.index(self.rank)
        if world.spans_world(self.comm):
            return number
        launched = world.launched_local_rank()  # the communicator lacks other ranks of this node, which use GPUs too
        return number if launched is None else launched

    @property
    def local_size(self) -> int:
        """**Collective** at first. Ranks of the whole job on this node."""
        return local_size(len(self.node))

    def send(self, message: bytes, dest: int, tag: int) -> Callable[[], bool]:
        """Start to send a message; the returned function says whether the message has left (local)."""
        self._sends = [pending for pending in self._sends if not pending[0].Test()]
        request = self.comm.Isend(message, dest, tag)
        self._sends.append((request, message))
        return request.Test

    def probe(self, tag: int) -> bool:
        """Whether a message from any rank has arrived (local)."""
        return self.comm.Iprobe(MPI.ANY_SOURCE, tag)

    def receive(self, tag: int, source: int | None = None) -> tuple[int, bytes] | None:
        """The sender and the bytes of a message that has arrived; None if there is none (local)."""
        status = self._status
        if not self.comm.Iprobe(MPI.ANY_SOURCE if source is None else source, tag, status):
            return None
        message = bytearray(status.count)
        rank = status.source
        self.comm.Recv(message, rank, tag)
        return rank, bytes(message)

    def line(self, dest: int, source: int, tag: int, nbytes: int) -> MpiLine:
        """Messages of one size to `dest` and from `source` (local)."""
        line = MpiLine(self.comm, dest, source, tag, nbytes)
        self._lines.append(line)
        return line

    def channel(self) -> Channel:
        """Messages of pieces of matrices (local)."""
        return Channel(self.comm)

    def duplicate(self) -> MpiPeers:
        """**Collective.** The ranks of a duplicate of the communicator."""
        return MpiPeers(self.comm.Dup())

    def world(self) -> MpiPeers:
        """The ranks of COMM_WORLD (global)."""
        return MpiPeers(MPI.COMM_WORLD)

    def before_end(self, end: Callable[[], None]) -> None:
        """Call `end` before MPI ends (local)."""
        world.before_finalize(end)

    def abandon(self) -> None:
        """Keep the memory of messages for which no rank waits any more (local)."""
        _ABANDONED.append(self)

    def close(self) -> None:
        """**Collective.** Free the communicator; nothing is under way."""
        self.comm.Free()
