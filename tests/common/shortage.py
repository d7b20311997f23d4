"""Shortages of shared memory, for tests: only a limited number of windows can be allocated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pblas
from pblas.backends import shared_windows as arena


class Windows:
    """Small shared windows; only a limited number can be allocated (global).

    Args:
        patch: undoes the limit at the end of the test.
        alone: every allocation has a window of its own, so that the limit counts allocations (global).
    """

    def __init__(self, patch: pytest.MonkeyPatch, *, alone: bool = False) -> None:
        self.most, self.refused = 0, True
        patch.setattr(arena, "_MIN_WINDOW_NBYTES", 1)
        patch.setattr(arena, "_MAX_GROWTH_NBYTES", 0)
        patch.setattr(arena.Arena, "_shortage", lambda *_: self._shortage())
        if alone:
            patch.setattr(arena.Arena, "_take", _take_window)

    def _shortage(self) -> pblas.WorkspaceError | None:
        self._left -= 1
        self.refused = self.refused or self._left < 0
        return pblas.WorkspaceError("there is no more") if self._left < 0 else None

    def open(self, count: int) -> None:
        """Allow `count` more windows."""
        self._left, self.refused = count, False

    def counts(self) -> Iterator[int]:
        """Limits of 1, 2, ..., until no allocation is refused."""
        while self.refused:
            self.most += 1
            self.open(self.most)
            yield self.most


def _take_window(memory: arena.Arena, size: int) -> tuple[int, int | None]:
    """**Collective.** (window, offset) of memory in a new window."""
    offset = memory._grow(size).take(size)
    return len(memory._windows) - 1, offset
