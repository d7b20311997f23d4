"""Workspace shared by plans that never run concurrently: together they need no more than the largest of them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pblas.errors import WorkspaceError

if TYPE_CHECKING:
    from collections.abc import Callable


class WorkspacePool:
    """Buffers shared by plans: the n-th buffer of every plan is the same memory, if it is large enough.

    If it is too small, a buffer of twice its size replaces it for later plans; earlier plans keep the old one. All
    buffers together take no more than twice the memory of the last one.
    """

    def __init__(self) -> None:
        self.held: dict[tuple[bool, int], Any] = {}

    def detach(self) -> None:
        """Drop the buffers; the context calls this when it ends (local)."""
        self.held.clear()


class WorkspaceSlot:
    """Access of one plan to the pool.

    >>> import numpy as np
    >>> pool, make = WorkspacePool(), lambda size: np.zeros(size, np.uint8)
    >>> first, second, third = (WorkspaceSlot(pool).take(True, n, make) for n in (8, 1, 9))
    >>> first is second, third.nbytes
    (True, 16)
    """

    def __init__(self, pool: WorkspacePool) -> None:
        self._pool, self._counts = pool, [0, 0]

    def take(self, window: bool, nbytes: int, allocate: Callable[[int], Any]) -> Any:
        """**Collective** if `allocate` is. The plan's next buffer, which other plans of the pool use too."""
        key = window, self._counts[window]
        self._counts[window] += 1
        memory = self._pool.held.get(key)
        if memory is None or memory.nbytes < nbytes:
            memory = self._pool.held[key] = self._larger(0 if memory is None else 2 * memory.nbytes, nbytes, allocate)
        return memory

    @staticmethod
    def _larger(wanted: int, nbytes: int, allocate: Callable[[int], Any]) -> Any:
        """Memory of the wanted size, or of the needed size if there is not enough."""
        if wanted > nbytes:
            with suppress(WorkspaceError, MemoryError):
                return allocate(wanted)
        return allocate(nbytes)
