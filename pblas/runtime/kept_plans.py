"""What calls leave for later ones: kept plans, values derived from arguments, and measured times of algorithms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pblas.backends.cache_file import Cache
from pblas.plans.algorithm import Algorithm, Times

if TYPE_CHECKING:
    from pblas.backends.host_ranks import HostRanks

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


class Measured(Cache[str, Times]):
    """**Collective.** Measured times of algorithms by product: the contents of rank 0's cache file, on all ranks.

    Raises:
        Exception: an error of rank 0 while it reads the file, raised on all ranks.
    """

    def __init__(self, backend: HostRanks) -> None:
        from pblas import __version__

        names = "algorithms", *backend.versions(), f"pblas{__version__}"
        super().__init__(names, "measured algorithms", 2, _entry, _plain)
        self._backend = backend
        self.share(backend, self.load)

    def times(self, product: str) -> Times:
        """Times of a product's algorithms; empty if they were not measured (global)."""
        return self.entries.get(product, ())

    def add(self, product: str, times: Times) -> None:
        """**Collective.** Store the times of a product in memory and in the file; all ranks pass the same times."""
        self.entries[product] = times
        self.share(self._backend, self.save)


def _plain(product: str, times: Times) -> dict[str, Any]:
    return {"product": product, "algorithms": [[algorithm.short, seconds] for algorithm, seconds in times]}


def _entry(plain: dict[str, Any]) -> tuple[str, Times]:
    """The inverse of `_plain`; raises TypeError, KeyError or ValueError for an entry that `_plain` did not make."""
    if not isinstance(plain["product"], str):
        raise TypeError(f"a product is text, not {plain['product']!r}")
    return plain["product"], tuple(
        (Algorithm.read(algorithm), float(seconds)) for algorithm, seconds in plain["algorithms"]
    )
