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
        pool: the memory that it shares with other plans.

    >>> import numpy as np
    >>> pool, make = WorkspacePool(), lambda size: np.zeros(size, np.uint8)
    >>> first, second, third = (WorkspaceSlot(pool).take(True, n, make) for n in (8, 1, 9))
    >>> first is second, third.nbytes
    (True, 16)
    """

    def __init__(self, pool: WorkspacePool) -> None:
        self._pool, self._counts = pool, [0, 0]

    def take(self, window: bool, nbytes: int, allocate: Callable[[int], Any]) -> Any:
        """**Collective** if `allocate` is. Memory that the plan keeps, as every plan with the same turns may.

        Args:
            window: whether other ranks reach it (global).
            nbytes: at least (global, or local if no other rank reaches it).
            allocate: makes so many bytes where there are too few.
        """
        key = window, self._counts[window]
        self._counts[window] += 1
        memory = self._pool.held.get(key)
        if memory is None or memory.nbytes < nbytes:
            memory = self._pool.held[key] = self._larger(0 if memory is None else 2 * memory.nbytes, nbytes, allocate)
        return memory

    @staticmethod
    def _larger(wanted: int, nbytes: int, allocate: Callable[[int], Any]) -> Any:
        """Memory of as many bytes as are wanted, or of as many as are needed if there are no more."""
        if wanted > nbytes:
            with suppress(WorkspaceError, MemoryError):
                return allocate(wanted)
        return allocate(nbytes)
