"""Where work for a GPU goes: to a stream, or to something that keeps it for streams that are given it later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Keeper(Protocol):
    """In the place of a stream."""

    def keep(self, start: Callable[[int], None], words: Words) -> None:
        """Keep what `start(stream)` launches, with these words, which may be others by then."""

    def __int__(self) -> int:
        """Raises: it has no handle."""


Stream = int | Keeper
"""A handle, or a keeper."""

Words = list[int] | memoryview
"""Integers that a launch is made with, addresses among them."""


def give(stream: Stream, start: Callable[[int], None], words: Words) -> None:
    """Start something on a stream, or let it be kept."""
    if isinstance(stream, int):
        start(stream)
    else:
        stream.keep(start, words)
