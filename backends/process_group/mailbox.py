"""Messages of a torch.distributed group through Gloo, which arrive while this process does something else.

Gloo's messages cannot be tested for arrival, only waited for, and a wait with a short deadline would close the
connections of the group. Threads therefore wait: one for the messages of each other rank, one until own messages have
left. (A wait for messages of any rank would fail again and again after the death of a rank that has announced one.)
The methods of the group itself work until the process ends, also after torch.distributed.destroy_process_group.

Gloo would wake the threads when another rank ends. If Python is ending here at that moment, that ends the process by
SIGABRT. Therefore a process that ends tells the other ranks, and their answers end its threads, as it ends theirs.
"""

from __future__ import annotations

import atexit
import struct
import threading
import time
from contextlib import suppress
from datetime import timedelta
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_TAG, _TAG_REST = 0x70626C, 0x70626D  # of Gloo; programs number their own messages from 0
_HEAD = struct.Struct("<3q")
"""Space, tag and number of bytes of a message. The first `_INLINE` bytes come in the same message of Gloo."""
_FRAME = 4096
_INLINE = _FRAME - _HEAD.size
_FOREVER = timedelta(days=365)
_ENDING, _ANSWER = -1, -2  # in place of the number of bytes: the sender's process ends; the answer to that
_GRACE = 1.0  # seconds in which a rank that has not ended answers

_MAILBOXES: dict[Any, Mailbox] = {}
"""One mailbox per group, as long as the process runs: a thread that waits for Gloo cannot be ended."""


def mailbox_of(group: object) -> Mailbox:
    """The mailbox of a group (local)."""
    if group not in _MAILBOXES:
        _MAILBOXES[group] = Mailbox(group)
    return _MAILBOXES[group]


class Mailbox:
    """Messages between the ranks of a group, sorted by space and tag.

    A space separates the messages of one user of the group from those of all others, as a duplicate of a communicator
    does in MPI. Ranks take new spaces in the same order, and so get the same numbers.

    The CPU backend of the group is Gloo.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank: int = group.rank()
        self.size: int = group.size()
        self._nspaces = 1
        self._arrived: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
        self._lock = threading.Lock()  # of `_arrived`
        self._sending = threading.Lock()  # the two parts of a message leave one after the other
        self._leaving: SimpleQueue[tuple[Any, threading.Event] | None] = SimpleQueue()
        self._others = [rank for rank in range(self.size) if rank != self.rank]
        self._told: list[Any] = []  # the last messages, with their memory
        self._threads = [
            threading.Thread(target=self._receive_from, args=(rank,), name="pblas messages", daemon=True)
            for rank in self._others
        ]
        self._threads.append(threading.Thread(target=self._await_leaving, name="pblas messages", daemon=True))
        for thread in self._threads:
            thread.start()
        atexit.register(self._end)

    def new_space(self) -> int:
        """Number of a space that no other user of the group has (global)."""
        self._nspaces += 1
        return self._nspaces - 1

    def send(self, message: bytes, dest: int, space: int, tag: int) -> Callable[[], bool]:
        """Start to send a copy of a message; the returned function says whether the copy has left (local)."""
        if dest == self.rank:
            self._deliver(self.rank, space, tag, message)
            return lambda: True
        frame = self._frame(space, tag, len(message))
        frame[_HEAD.size : _HEAD.size + len(message)] = message[:_INLINE]
        with self._sending:
            left = self._start(frame, dest, _TAG)
            return left if len(message) <= _INLINE else self._start(bytearray(message[_INLINE:]), dest, _TAG_REST)

    def _frame(self, space: int, tag: int, nbytes: int) -> bytearray:
        frame = bytearray(_FRAME)
        _HEAD.pack_into(frame, 0, space, tag, nbytes)
        return frame

    def _start(self, memory: bytearray, dest: int, tag: int) -> Callable[[], bool]:
        left = threading.Event()
        try:
            tensor = torch.frombuffer(memory, dtype=torch.uint8)
            self._leaving.put(((self.group.send([tensor], dest, tag), tensor), left))
        except RuntimeError:  # the rank has died; a rank that waits for it learns so at its deadline
            left.set()
        return left.is_set

    def has(self, space: int, tag: int) -> bool:
        """Whether a message has arrived (local)."""
        return bool(self._arrived.get((space, tag)))

    def take(self, space: int, tag: int, source: int | None) -> tuple[int, bytes] | None:
        """Sender and bytes of the first message that has arrived from `source`, or from any rank; or None (local)."""
        with self._lock:
            messages = self._arrived.get((space, tag), [])
            for place, (sender, _) in enumerate(messages):
                if source is None or sender == source:
                    return messages.pop(place)
        time.sleep(0)  # lets the thread that receives have the interpreter
        return None

    def drop(self, space: int) -> None:
        """Forget the messages of a space that is used no more (local)."""
        with self._lock:
            for key in [key for key in self._arrived if key[0] == space]:
                del self._arrived[key]

    def _deliver(self, sender: int, space: int, tag: int, message: bytes) -> None:
        with self._lock:
            self._arrived.setdefault((space, tag), []).append((sender, message))

    def _receive_from(self, source: int) -> None:
        """Receive the messages of a rank until its process or this one ends."""
        frame = np.empty(_FRAME, np.uint8)
        with suppress(RuntimeError):  # the rank has died
            while True:
                self.group.recv([torch.from_numpy(frame)], source, _TAG).wait(_FOREVER)
                space, tag, nbytes = _HEAD.unpack_from(frame.data)
                if nbytes == _ENDING:
                    self._tell(_ANSWER, source)
                if nbytes < 0:
                    return
                message = np.empty(nbytes, np.uint8)
                message[:_INLINE] = frame[_HEAD.size : _HEAD.size + nbytes]
                if nbytes > _INLINE:
                    rest = torch.from_numpy(message[_INLINE:])
                    self.group.recv([rest], source, _TAG_REST).wait(_FOREVER)
                self._deliver(source, space, tag, message.tobytes())

    def _await_leaving(self) -> None:
        """Keep the memory of messages until they have left, in the order in which they were sent."""
        while True:
            under_way = self._leaving.get()
            if under_way is None:
                return
            (work, _memory), left = under_way
            with suppress(RuntimeError):  # the receiver has died
                work.wait(_FOREVER)
            left.set()

    def _tell(self, kind: int, rank: int) -> None:
        """Send a message for which nobody waits: a rank that has ended does not take it."""
        tensor = torch.frombuffer(self._frame(0, 0, kind), dtype=torch.uint8)
        with self._sending, suppress(RuntimeError):  # the rank has died
            self._told.append((self.group.send([tensor], rank, _TAG), tensor))

    def _end(self) -> None:
        """End the threads before Python ends."""
        self._leaving.put(None)
        for rank in self._others:
            self._tell(_ENDING, rank)
        end = time.monotonic() + _GRACE
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
