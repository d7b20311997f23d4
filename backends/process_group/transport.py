"""`Transport` of the ranks of a torch.distributed group."""

from __future__ import annotations

import atexit
import os
import platform
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from pblas import errors
from pblas.backends.agreement import Agreement
from pblas.backends.process_group.channel import MessageChannel
from pblas.backends.process_group.mailbox import mailbox_of
from pblas.backends.shared_files import SharedFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pblas.backends.transport import SmallValues

_BOOT = Path("/proc/sys/kernel/random/boot_id")  # differs between hosts of equal names


class GroupLine:
    """Messages of one size; a message that comes before the next `start` waits in the mailbox."""

    def __init__(self, peers: GroupTransport, dest: int, source: int, tag: int, nbytes: int) -> None:
        self._peers, self._dest, self._source, self._tag = peers, dest, source, tag
        self._is_open = False
        self.received: bytearray = bytearray(nbytes)
        self.left: Callable[[], bool] = lambda: True

    def start(self, message: bytes) -> None:
        self._is_open = True
        self.left = self._peers.send(message, self._dest, self._tag)

    def arrived(self) -> bool:
        if self._is_open:
            message = self._peers.receive(self._tag, self._source)
            if message is not None:
                self.received, self._is_open = bytearray(message[1]), False
        return not self._is_open

    def close(self) -> None:
        """Nothing to free (local)."""


class GroupTransport:
    """The ranks of a group.

    Args:
        group: a torch.distributed group whose CPU backend is Gloo (global).
        timeout: seconds that a rank waits for another to learn which ranks share its node (global).
        space: number of the messages that belong to this object; 0 before the ranks have agreed on another (global).
    """

    name = "gloo"

    def __init__(self, group: object, timeout: float, space: int = 0) -> None:
        self._group, self._timeout, self._space = group, timeout, space
        self._mailbox = mailbox_of(group)
        self.rank: int = self._mailbox.rank
        self.size: int = self._mailbox.size

    @cached_property
    def node(self) -> tuple[int, ...]:
        host = platform.node(), _BOOT.read_text() if _BOOT.exists() else ""
        hosts = Agreement(self, self._timeout).gather(host, "Context: ranks of each node")
        return tuple(rank for rank in range(self.size) if hosts[rank] == host)

    @property
    def local_rank(self) -> int:
        launched = os.environ.get("LOCAL_RANK", "")
        return int(launched) if launched.isdigit() else self.node.index(self.rank)

    @property
    def local_size(self) -> int:
        launched = os.environ.get("LOCAL_WORLD_SIZE", "")
        return max(len(self.node), int(launched) if launched.isdigit() else 0)

    def describe(self) -> dict[str, str]:
        return {"torch": str(torch.__version__), "messages": "Gloo, by threads of this process"}

    def send(self, message: bytes, dest: int, tag: int) -> Callable[[], bool]:
        return self._mailbox.send(message, dest, self._space, tag)

    def probe(self, tag: int) -> bool:
        return self._mailbox.has(self._space, tag)

    def receive(self, tag: int, source: int | None = None) -> tuple[int, bytes] | None:
        return self._mailbox.take(self._space, tag, source)

    def line(self, dest: int, source: int, tag: int, nbytes: int) -> GroupLine:
        return GroupLine(self, dest, source, tag, nbytes)

    def channel(self) -> MessageChannel:
        return MessageChannel(self)

    def progressing(self) -> AbstractContextManager[None]:
        return nullcontext()  # the mailbox has threads

    def node_memory(self, ranks: Sequence[int], agreement: SmallValues) -> SharedFiles:
        return SharedFiles(ranks, agreement)

    def duplicate(self) -> GroupTransport:
        return GroupTransport(self._group, self._timeout, self._mailbox.new_space())

    def of_another_thread(self) -> GroupTransport:
        return self  # the mailbox has locks

    def world(self) -> GroupTransport:
        """The ranks of the default group (global)."""
        if self.size == dist.get_world_size():
            return self
        check_gloo(dist.group.WORLD, "Context: the default group, over which NVSHMEM starts,")
        return GroupTransport(dist.group.WORLD, self._timeout)

    def before_end(self, end: Callable[[], None]) -> None:
        atexit.register(end)

    def is_over(self) -> bool:
        return False

    def abandon(self) -> None:
        """Nothing to keep: the mailbox lives as long as the process (local)."""

    def close(self) -> None:
        self._mailbox.drop(self._space)


def check_gloo(group: object, what: str) -> None:
    """Raise BackendError unless a group sends messages between hosts through Gloo (local)."""
    config = str(dist.get_backend_config(group))
    if "cpu:gloo" not in config:
        raise errors.BackendError(
            f"{what} must send messages between hosts through Gloo, but its backends are {config!r}; use "
            f"torch.distributed.init_process_group('cpu:gloo,cuda:nccl'), or new_group(backend='gloo')"
        )
