"""The plans of earlier calls, kept for calls like them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

MOST_NBYTES = 16 << 20
"""Most bytes of workspace of a plan that is kept. Larger calls take so long that a new plan does not matter."""
_ALL_NBYTES = 8 * MOST_NBYTES
_COUNT = 256


class Kept(Protocol):
    """A plan that can be kept."""

    @property
    def kept_nbytes(self) -> int:
        """Bytes of workspace that it keeps between calls, on any rank at most (global)."""

    def close(self) -> None:
        """Drop its workspace (local)."""


class KeptPlans:
    """The plans of the last calls, bounded in number and by the bytes of their workspaces (local).

    Ranks may keep different plans after an error on one of them: each call agrees whether all ranks have its plan.
    """

    def __init__(self) -> None:
        self._plans: OrderedDict[object, Kept] = OrderedDict()
        self._nbytes = 0

    def get(self, key: object) -> Kept | None:
        """The plan that was kept under a key, or None."""
        return self._plans.get(key)

    def used(self, key: object) -> None:
        """Count a use of a plan, if it is kept."""
        try:
            self._plans.move_to_end(key)
        except KeyError:  # it was too large, or is dropped
            return

    def keep(self, key: object, plan: Kept) -> None:
        """Keep a plan, and close those used longest ago."""
        self.drop(key)
        self._plans[key] = plan
        self._nbytes += plan.kept_nbytes
        while self._nbytes > _ALL_NBYTES or len(self._plans) > _COUNT:
            self.drop(next(iter(self._plans)))

    def drop(self, key: object) -> None:
        """Close the plan under a key, if there is one."""
        plan = self._plans.pop(key, None)
        if plan is not None:
            self._nbytes -= plan.kept_nbytes
            plan.close()

    def close(self) -> None:
        """Close all kept plans."""
        while self._plans:
            self.drop(next(iter(self._plans)))
