"""Tables in host memory shared by the ranks of a node: a line of four words for each rank and number.

The ranks of a node map one file, whose name is removed as soon as all have mapped it. Peers read the words of a rank
after the next message between them, which orders the write and the reads.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors

if TYPE_CHECKING:
    from pblas.backends.agreement import Agreement

_FOLDER = "/dev/shm"  # noqa: S108 - memory of Linux that processes share
_LINES, _WORDS = 4096, 4  # lines of a page; words of a line


class Tables:
    """Lines by their numbers, created on demand.

    Args:
        agreement: agreement of ranks of one node (global).
    """

    def __init__(self, agreement: Agreement) -> None:
        self._exchange = agreement
        self._pages: list[Any] = []

    def lines(self, number: int) -> list[Any]:
        """**Collective**. Four 64-bit integers of each rank; this rank writes its own.

        Args:
            number: number of the line, a small integer: that of a memory block (global).
        """
        page, line = divmod(number, _LINES)
        while len(self._pages) <= page:
            self._pages.append(self._page())
        return list(self._pages[page][:, line])

    def _page(self) -> Any:
        """**Collective.** Zeros, ranks x lines x words."""
        agreement, error, name = self._exchange, None, ""
        nbytes = 8 * agreement.size * _LINES * _WORDS
        try:
            if agreement.rank == 0:
                file, name = tempfile.mkstemp(prefix="pblas-", dir=_FOLDER)
                try:
                    os.posix_fallocate(file, 0, nbytes)  # otherwise a write to a full folder kills the process
                finally:
                    os.close(file)
        except OSError as caught:
            error = _failure(caught)
        try:
            agreement.agree("make a table of the hosts", error)
            name = agreement.broadcast(name, 0, "make a table of the hosts")
            page = None
            try:
                with Path(name).open("r+b") as shared:
                    memory = mmap.mmap(shared.fileno(), nbytes)
                page = np.frombuffer(memory, np.int64).reshape(agreement.size, _LINES, _WORDS)
            except OSError as caught:
                error = _failure(caught)
            agreement.agree("map a table of the hosts", error)
            return page
        finally:
            if agreement.rank == 0 and name:
                Path(name).unlink(missing_ok=True)

    def close(self) -> None:
        """Drop the tables (local)."""
        self._pages = []


def _failure(caught: OSError) -> errors.WorkspaceError:
    return errors.WorkspaceError(
        f"shared memory of the hosts: {caught.strerror or caught} in {_FOLDER}; enlarge it (docker run --shm-size=..., "
        f"mount -o remount,size=... {_FOLDER})"
    )
