"""Measured times of algorithms, which a cache file keeps from one run to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.backends.cache_file import Cache
from pblas.plans.algorithm import Algorithm, Times

if TYPE_CHECKING:
    from pblas.backends.host_ranks import HostRanks


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


def _plain(product: str, times: Times) -> dict[str, object]:
    return {"product": product, "algorithms": [[algorithm.short, seconds] for algorithm, seconds in times]}


def _entry(plain: dict[str, Any]) -> tuple[str, Times]:
    """The inverse of `_plain`; raises TypeError, KeyError or ValueError for an entry that `_plain` did not make."""
    if not isinstance(plain["product"], str):
        raise TypeError(f"a product is text, not {plain['product']!r}")
    return plain["product"], tuple(
        (Algorithm.read(algorithm), float(seconds)) for algorithm, seconds in plain["algorithms"]
    )
