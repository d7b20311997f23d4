"""`Transport` of the ranks of an MPI communicator: messages, and shared windows of MPI-3 for the ranks of a node."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from pblas.backends import segments
from pblas.backends.mpi import world
from pblas.backends.mpi.channel import Channel
from pblas.backends.mpi.launch import local_size
from pblas.backends.mpi.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pblas.backends.transport import SmallValues

_ABANDONED: list[MpiTransport] = []
"""Transports with abandoned messages: a message of a late rank must not arrive in freed memory."""


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
        self._sent[:] = message
        self._receive.Start()
        self._send.Start()

    def close(self) -> None:
        self._send.Free()
        self._receive.Free()


class WindowMemory:
    """Shared windows of the ranks of a communicator, which is freed with them.

    Args:
        node: communicator of ranks that can share memory (global).
    """

    def __init__(self, node: MPI.Intracomm) -> None:
        self.node = node
        self.windows: list[MPI.Win] = []

    def allocate(self, nbytes: int) -> list[Any]:
        window = MPI.Win.Allocate_shared(nbytes, 1, comm=self.node)
        self.windows.append(window)
        window.Lock_all(MPI.MODE_NOCHECK)
        return [np.asarray(window.Shared_query(rank)[0], np.uint8) for rank in range(self.node.Get_size())]

    def sync(self) -> None:
        for window in self.windows:
            window.Sync()

    def close(self) -> None:
        for window in self.windows:
            window.Unlock_all()
            window.Free()
        self.windows = []
        self.node.Free()


class MpiTransport:
    """The ranks of a communicator.

    Args:
        comm: messages with tags from 100 on belong to this class (global).
    """

    name = "mpi"

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self._sends: list[tuple[MPI.Request, bytes]] = []
        self._lines: list[MpiLine] = []
        self._status = MPI.Status()
        self._progress = Progress(comm) if Progress.is_possible() else None

    @cached_property
    def node(self) -> tuple[int, ...]:
        node: Any = self.comm.Split_type(MPI.COMM_TYPE_SHARED, self.rank)
        ranks = MPI.Group.Translate_ranks(node.Get_group(), list(range(node.Get_size())), self.comm.Get_group())
        node.Free()
        return tuple(ranks)

    @property
    def local_rank(self) -> int:
        number = self.node.index(self.rank)
        if world.spans_world(self.comm):
            return number
        launched = world.launched_local_rank()  # the communicator lacks other ranks of this node, which use GPUs too
        return number if launched is None else launched

    @property
    def local_size(self) -> int:
        return local_size(len(self.node))

    def describe(self) -> dict[str, str]:
        return {
            "MPI library": MPI.Get_library_version().partition("\n")[0].strip("\0 "),
            "MPI standard": ".".join(map(str, MPI.Get_version())),
            "messages progress": "also during products"
            if self._progress
            else "in calls of MPI only: no MULTIPLE threads",
        }

    def send(self, message: bytes, dest: int, tag: int) -> Callable[[], bool]:
        self._sends = [pending for pending in self._sends if not pending[0].Test()]
        request = self.comm.Isend(message, dest, tag)
        self._sends.append((request, message))
        return request.Test

    def probe(self, tag: int) -> bool:
        return self.comm.Iprobe(MPI.ANY_SOURCE, tag)

    def receive(self, tag: int, source: int | None = None) -> tuple[int, bytes] | None:
        status = self._status
        if not self.comm.Iprobe(MPI.ANY_SOURCE if source is None else source, tag, status):
            return None
        message = bytearray(status.count)
        rank = status.source
        self.comm.Recv(message, rank, tag)
        return rank, bytes(message)

    def line(self, dest: int, source: int, tag: int, nbytes: int) -> MpiLine:
        line = MpiLine(self.comm, dest, source, tag, nbytes)
        self._lines.append(line)
        return line

    def channel(self) -> Channel:
        return Channel(self.comm)

    def progressing(self) -> AbstractContextManager[None]:
        return nullcontext() if self._progress is None else self._progress

    def node_memory(self, ranks: Sequence[int], agreement: SmallValues) -> WindowMemory:
        node: Any = self.comm.Split(ranks[0], self.rank)
        return WindowMemory(node)

    def duplicate(self) -> MpiTransport:
        if world.spans_world(self.comm):  # all ranks of the job are here, so MPI has opened its memory on all
            segments.unlink(segments.mapped())
        return MpiTransport(self.comm.Dup())

    def of_another_thread(self) -> MpiTransport | None:
        return MpiTransport(self.comm) if Progress.is_possible() else None

    def world(self) -> MpiTransport:
        return MpiTransport(MPI.COMM_WORLD)

    def before_end(self, end: Callable[[], None]) -> None:
        world.before_finalize(end)

    is_over = staticmethod(MPI.Is_finalized)

    def abandon(self) -> None:
        self._end_progress()
        _ABANDONED.append(self)

    def close(self) -> None:
        self._end_progress()
        self.comm.Free()

    def _end_progress(self) -> None:
        if self._progress is not None:
            self._progress.close()
