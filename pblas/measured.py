"""Roads that were measured on machines like this one: what a context knows of them, and a file that keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pblas.backends import store
from pblas.plan import Road, Times

if TYPE_CHECKING:
    from pblas.backends.host_ranks import HostRanks

_FORMAT = 1
_WHAT = "measured roads"

T = TypeVar("T")
Entry = tuple[str, Times]


class Measured:
    """**Collective.** Times of roads, by what was multiplied; the same on all ranks, whatever their files say.

    The file of rank 0 counts. It is named after all that the times depend on but the product: GPU, libraries, pblas.

    Args:
        backend: ranks, and what they run on (global).

    Raises:
        Exception: what the file raised on rank 0, as warnings do that are errors; on all ranks.
    """

    def __init__(self, backend: HostRanks) -> None:
        from pblas import __version__

        self._backend = backend
        self.path = store.store_path("roads", *backend.versions(), f"pblas{__version__}")
        """The file, on rank 0 (local)."""
        self._times: dict[str, Times] = dict(self._on_first(self._stored))

    def times(self, product: str) -> Times:
        """Those of a product's roads, none if they were not measured (global)."""
        return self._times.get(product, ())

    def add(self, product: str, times: Times) -> None:
        """**Collective.** Know the times of a product, and keep them in the file; all ranks add the same.

        Raises:
            Exception: as the class; the times are known then, but may not be in the file.
        """
        self._times[product] = times

        def keep() -> None:
            merged = dict(self._stored()) | {product: times}  # others may have written since
            store.save(self.path, _WHAT, _FORMAT, map(_plain, merged.items()))

        self._on_first(keep)

    def _stored(self) -> list[Entry]:
        return store.load(self.path, _WHAT, _FORMAT, _entry)

    def _on_first(self, action: Callable[[], T]) -> T:
        """**Collective.** What rank 0 returns or raises, on all ranks."""
        found: T | Exception | None = None
        try:
            found = action() if self._backend.rank == 0 else None
        except Exception as caught:  # noqa: BLE001 - whatever it is, the others wait
            found = caught
        found = self._backend.broadcast_object(found, 0)
        if isinstance(found, Exception):
            raise found
        return found


def _plain(entry: Entry) -> dict[str, Any]:
    product, times = entry
    return {"product": product, "roads": [[road.short, seconds] for road, seconds in times]}


def _entry(plain: dict[str, Any]) -> Entry:
    """The way back from `_plain`; raises TypeError, KeyError or ValueError if it was not made by it."""
    if not isinstance(plain["product"], str):
        raise TypeError(f"a product is text, not {plain['product']!r}")
    return plain["product"], tuple((Road.read(road), float(seconds)) for road, seconds in plain["roads"])
