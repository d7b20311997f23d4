"""The symmetric memory of this process, and the regions that contexts take from it: integers only.

A place is an offset into the concatenation of all segments. It is the same on every PE, since all PEs add segments of
equal sizes in the same order. The taken places differ between PEs, since PEs belong to different contexts.
"""

from __future__ import annotations

from dataclasses import dataclass

from pblas.backends.allocator import Extent

GRANULE = 2 << 20
"""Regions and segments are multiples of this: CUDA maps memory in pieces of 2 MiB."""

NOWHERE = 1 << 62
"""Larger than any place: no place exists."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One allocation of NVSHMEM.

    Args:
        first: place of its first byte (global).
        address: of its first byte on this PE (local).
        extent: its taken and free parts (local).
    """

    first: int
    address: int
    extent: Extent


class Pool:
    """Segments, and the taken places on this PE."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []

    @property
    def nbytes(self) -> int:
        """Memory of all segments (global)."""
        return sum(segment.extent.nbytes for segment in self.segments)

    def add(self, nbytes: int, address: int) -> None:
        """Append a segment, on every PE (global)."""
        self.segments.append(Segment(self.nbytes, address, Extent(nbytes)))

    def lowest(self, start: int, nbytes: int) -> int:
        """The lowest place >= start at which `nbytes` bytes are free here; NOWHERE if there is none (local)."""
        for segment in self.segments:
            offset = segment.extent.lowest(max(0, start - segment.first), nbytes)
            if offset is not None:
                return segment.first + offset
        return NOWHERE

    def tail(self, nbytes: int) -> int:
        """The beginning of the free memory at the end, if it has `nbytes` bytes; else NOWHERE (local)."""
        if not self.segments:
            return NOWHERE
        last = self.segments[-1]
        offset, size = last.extent.free[-1] if last.extent.free else (0, 0)
        reaches_end = offset + size == last.extent.nbytes
        return last.first + offset if reaches_end and size >= nbytes else NOWHERE

    def take(self, place: int, nbytes: int) -> int:
        """Address of a place that is free here, now taken (local)."""
        segment = self._segment(place)
        segment.extent.reserve(place - segment.first, nbytes)
        return segment.address + place - segment.first

    def give_back(self, place: int, nbytes: int) -> None:
        """Make a place free that was taken (local)."""
        segment = self._segment(place)
        segment.extent.give_back(place - segment.first, nbytes)

    def _segment(self, place: int) -> Segment:
        return next(s for s in self.segments if 0 <= place - s.first < s.extent.nbytes)


def rounded(nbytes: int) -> int:
    """The number of bytes, up to a whole number of granules.

    >>> rounded(1), rounded(1 << 30)
    (2097152, 1073741824)
    """
    return nbytes + -nbytes % GRANULE
