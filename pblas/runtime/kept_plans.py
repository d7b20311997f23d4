"""Plans, and other values, that calls keep for later ones."""

from __future__ import annotations

from typing import TypeVar

MOST_NBYTES = 32 << 20
"""Most bytes of workspace of a plan that is kept. A new plan takes fresh memory: 9 % of a trsm with 18 MB (2 ranks)."""
_ALL_NBYTES = 4 * MOST_NBYTES
_OBJECTS_NBYTES = 32 << 10  # bytes that each plan counts besides its workspace: its objects take 5 to 70 kB


class Kept:
    """A plan, or another value, that can be kept."""

    kept_nbytes = 0  # bytes of workspace that it keeps between calls, on any rank at most (global)
    last_use = 0  # number of its last use; 0 unless it is kept (global)

    def close(self) -> None:
        """Drop its workspace (local)."""


KeptT = TypeVar("KeptT", bound=Kept)


class KeptPlans:
    """The plans of the last calls, bounded by the bytes that they take, 4096 at most.

    A plan is kept at the end of its call, on which all ranks have agreed, so that all ranks keep the same plans: where
    ranks push data, no agreement finds out whether a rank lacks one (global).
    """

    def __init__(self) -> None:
        self._plans: dict[object, Kept] = {}
        self._nbytes = self._nuses = 0

    def get(self, key: object, kind: type[KeptT]) -> KeptT | None:
        """The plan that was kept under a key, which is of this class, or None."""
        plan = self._plans.get(key)
        assert plan is None or isinstance(plan, kind), "keys of different classes differ"
        return plan

    def keep(self, key: object, plan: Kept) -> None:
        """Keep a plan whose call has ended, or count its use; close those used longest ago if they are too many."""
        self._nuses += 1
        is_new, plan.last_use = not plan.last_use, self._nuses
        if not is_new:
            return
        self.drop(key)
        self._plans[key] = plan
        self._nbytes += plan.kept_nbytes + _OBJECTS_NBYTES
        while self._nbytes > _ALL_NBYTES:
            self.drop(min(self._plans, key=lambda key: self._plans[key].last_use))

    def drop(self, key: object) -> None:
        """Close the plan under a key, if there is one."""
        plan = self._plans.pop(key, None)
        if plan is not None:
            self._nbytes -= plan.kept_nbytes + _OBJECTS_NBYTES
            plan.last_use = 0
            plan.close()

    def close(self) -> None:
        """Close all kept plans."""
        while self._plans:
            self.drop(next(iter(self._plans)))
