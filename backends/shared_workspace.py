"""Memory that plans take turns with: those that run one after the other need no more than the largest of them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pblas.errors import WorkspaceError

if TYPE_CHECKING:
    from collections.abc import Callable


class WorkspacePool:
    """What plans have taken. The n-th memory that one of them takes is the n-th of all, if it is large enough.

    What is too small is kept by the plans that have it, and stands aside for twice as much: together they take no more
    than twice what the last one does.
    """

    def __init__(self) -> None:
        self.held: dict[tuple[bool, int], Any] = {}

    def detach(self) -> None:
        """Let go of it, as the context does when it ends (local)."""
        self.held.clear()


class WorkspaceSlot:
    """One plan's part.

    Args:
        turns: what it shares.

    >>> import numpy as np
    >>> pool, make = WorkspacePool(), lambda size: np.zeros(size, np.uint8)
    >>> first, second, third = (WorkspaceSlot(pool).take(True, n, make) for n in (8, 1, 9))
    >>> first is second, third.nbytes
    (True, 16)
    """

    def __init__(self, turns: WorkspacePool) -> None:
        self._turns, self._counts = turns, [0, 0]

    def take(self, window: bool, nbytes: int, allocate: Callable[[int], Any]) -> Any:
        """**Collective** if `allocate` is. Memory that the plan keeps, as every plan with the same turns may.

        Args:
            window: whether other ranks reach it (global).
            nbytes: at least (global, or local if no other rank reaches it).
            allocate: makes so many bytes where there are too few.
        """
        key = window, self._counts[window]
        self._counts[window] += 1
        found = self._turns.held.get(key)
        if found is None or found.nbytes < nbytes:
            found = self._turns.held[key] = self._larger(0 if found is None else 2 * found.nbytes, nbytes, allocate)
        return found

    @staticmethod
    def _larger(wanted: int, nbytes: int, allocate: Callable[[int], Any]) -> Any:
        """Memory of as many bytes as are wanted, or of as many as are needed if there are no more."""
        if wanted > nbytes:
            with suppress(WorkspaceError, MemoryError):
                return allocate(wanted)
        return allocate(nbytes)
