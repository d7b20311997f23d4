"""Roads that were measured on machines like this one: what a context knows of them, and a file that keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.backends import store
from pblas.plan import Road, Times

if TYPE_CHECKING:
    from pblas.backends.mpi import MpiBackend

_FORMAT = 1
_WHAT = "measured roads"

Entry = tuple[str, Times]


class Measured:
    """**Collective.** Times of roads, by what was multiplied; the same on all ranks, whatever their files say.

    The file of rank 0 counts. It is named after all that the times depend on but the product: GPU, libraries, pblas.

    Args:
        backend: ranks, and what they run on (global).

    Raises:
        Exception: what reading the file raised on rank 0, as warnings do that are errors; on all ranks.
    """

    def __init__(self, backend: MpiBackend) -> None:
        from pblas import __version__

        self._is_first = backend.rank == 0
        self.path = store.store_path("roads", *backend.versions(), f"pblas{__version__}")
        """The file, on rank 0 (local)."""
        found: list[Entry] | Exception | None = None
        try:
            found = store.load(self.path, _WHAT, _FORMAT, _entry) if self._is_first else None
        except Exception as caught:  # noqa: BLE001 - whatever it is, the others wait
            found = caught
        found = backend.broadcast_object(found, 0)
        if isinstance(found, Exception):
            raise found
        self._times: dict[str, Times] = dict(found)

    def times(self, product: str) -> Times:
        """Those of a product's roads, none if they were not measured (global)."""
        return self._times.get(product, ())

    def add(self, product: str, times: Times) -> None:
        """Know the times of a product, and keep them in the file; all ranks add the same (local)."""
        self._times[product] = times
        if self._is_first:  # others may have written since
            merged = dict(store.load(self.path, _WHAT, _FORMAT, _entry)) | {product: times}
            store.save(self.path, _WHAT, _FORMAT, map(_plain, merged.items()))


def _plain(entry: Entry) -> dict[str, Any]:
    product, times = entry
    return {"product": product, "roads": [[road.short, seconds] for road, seconds in times]}


def _entry(plain: dict[str, Any]) -> Entry:
    """The way back from `_plain`; raises TypeError, KeyError or ValueError if it was not made by it."""
    if not isinstance(plain["product"], str):
        raise TypeError(f"a product is text, not {plain['product']!r}")
    return plain["product"], tuple((Road.read(road), float(seconds)) for road, seconds in plain["roads"])
