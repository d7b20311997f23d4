"""Memory that processes of a node share: files in memory whose names are removed as soon as all have mapped them."""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.backends.transport import SmallValues

FOLDER = "/dev/shm"  # noqa: S108 - memory of Linux that processes share


def shared_memory(agreement: SmallValues, ranks: Sequence[int], nbytes: int, step: str, *, reserve: bool) -> mmap.mmap:
    """**Collective** over ranks of a node.

    Zeros that these ranks share, as long as one of them refers to the memory.
    """
    name, failure, memory, makes = "", "", None, agreement.rank == ranks[0]
    try:
        try:
            if makes:
                file, name = tempfile.mkstemp(prefix="pblas-", dir=FOLDER)
                try:
                    (os.posix_fallocate(file, 0, nbytes) if reserve else os.ftruncate(file, nbytes))
                finally:
                    os.close(file)
        except OSError as caught:
            failure = _text(caught)
        path, failure = agreement.gather((name, failure), step, ranks)[0]
        try:
            if not failure:
                with Path(path).open("r+b") as shared:
                    memory = mmap.mmap(shared.fileno(), nbytes)
        except (OSError, ValueError, OverflowError) as caught:
            failure = _text(caught)
        failure = next(filter(None, agreement.gather(failure, step, ranks)), "")  # all have opened the file
    finally:
        if makes and name:
            Path(name).unlink(missing_ok=True)
    if failure or memory is None:
        raise errors.WorkspaceError(failure)
    return memory


class SharedFiles:
    """`NodeMemory` in such files, of the ranks of a node; other ranks may take part in their agreement."""

    def __init__(self, ranks: Sequence[int], agreement: SmallValues) -> None:
        self._ranks, self._exchange = ranks, agreement

    def allocate(self, nbytes: int) -> list[Any]:
        count = len(self._ranks)
        memory = shared_memory(self._exchange, self._ranks, count * nbytes, "make shared memory", reserve=False)
        return list(np.frombuffer(memory, np.uint8).reshape(count, nbytes))

    def sync(self) -> None:
        """Nothing: receiving a message takes a lock, which orders memory."""

    def close(self) -> None:
        """Nothing: memory is freed with the arrays in it."""


def _text(caught: Exception) -> str:
    return (
        f"shared memory of the hosts: {getattr(caught, 'strerror', None) or caught} in {FOLDER}; enlarge it (docker "
        f"run --shm-size=..., mount -o remount,size=... {FOLDER})"
    )
