"""Tables in host memory shared by the ranks of a node: a line of four words for each rank and number.

Peers read the words of a rank after the next message between them, which orders the write and the reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.backends.local_step import LocalStep
from pblas.backends.shared_files import shared_memory

if TYPE_CHECKING:
    from pblas.backends.agreement import Agreement

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
        """**Collective**. Four 64-bit integers of each rank; this rank writes its own."""
        page, line = divmod(number, _LINES)
        while len(self._pages) <= page:
            self._pages.append(self._page())
        return list(self._pages[page][:, line])

    def _page(self) -> Any:
        """**Collective.** Zeros, ranks x lines x words."""
        agreement, step = self._exchange, "make a table of the hosts"
        agreement.agree(step)
        with LocalStep(agreement.agree, step):
            nbytes = 8 * agreement.size * _LINES * _WORDS
            memory = shared_memory(agreement, range(agreement.size), nbytes, step, reserve=True)
        return np.frombuffer(memory, np.int64).reshape(agreement.size, _LINES, _WORDS)

    def close(self) -> None:
        """Drop the tables (local)."""
        self._pages = []
