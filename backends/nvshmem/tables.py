"""Words that the hosts of a node tell each other: a line of four for each rank and number, in memory that they share.

The ranks of a node map one file, whose name is gone as soon as all have it. What a rank has written, others read after
the next message between them, which orders both.
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
_LINES, _WORDS = 4096, 4  # of one page


class Tables:
    """Lines by their numbers, made as they are asked for.

    Args:
        agreement: agreement of ranks that are all on one node (global).
    """

    def __init__(self, agreement: Agreement) -> None:
        self._exchange = agreement
        self._pages: list[Any] = []

    def lines(self, number: int) -> list[Any]:
        """**Collective**. Four 64-bit integers of each rank, which this one writes its own of.

        Args:
            number: of the line, that of a block of memory, so that there are few (global).
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
                    os.posix_fallocate(file, 0, nbytes)  # else writing past the end of the folder kills the process
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
        """Let go of them (local)."""
        self._pages = []


def _failure(caught: OSError) -> errors.WorkspaceError:
    return errors.WorkspaceError(
        f"shared memory of the hosts: {caught.strerror or caught} in {_FOLDER}; enlarge it (docker run --shm-size=..., "
        f"mount -o remount,size=... {_FOLDER})"
    )
