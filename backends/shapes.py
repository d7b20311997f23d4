"""How the Hopper kernel shares a product of few tiles among its multiprocessors, and how long that takes.

Integers and figures of H200 only: the planner asks, and so does the kernel's own table of tiles.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

ROWS, WIDTH = 256, 256
"""Rows of the tiles of a cluster, one below the other, and columns of the widest ones."""

# Microseconds of 64 elements along K of a tile, by its width: narrow ones wait for what they load, since 47 bytes come
# into a multiprocessor in a cycle. More for each tile, and for each that two CTAs make.
_STEP_US = {256: 0.515, 128: 0.37, 64: 0.29}
_TILE_US, _EXCHANGE_US = 1.5, 1.5
_STAGES = {256: 4, 128: 6, 64: 8}
_LEAST_SENDERS, _MOST_SENDERS = 5, 10


class Shape(NamedTuple):
    """How clusters share the work.

    Args:
        width: of tiles at most, 256, 128 or 64.
        split: CTAs of a cluster that make a tile together, each over a part of K: 1 or 2.
        senders: clusters that do nothing but send.
    """

    width: int = WIDTH
    split: int = 1
    senders: int = 0

    def fitting(self, steps: int) -> Shape:
        """This one, or one that does not split K if it has too few steps.

        Stages are granted to who gives sums before he knows of the last ones, if a tile is not as long as the ring.

        >>> Shape(128, 2).fitting(11), Shape(128, 2).fitting(12)
        (Shape(width=128, split=1, senders=0), Shape(width=128, split=2, senders=0))
        """
        return self if steps // self.split >= _STAGES[self.width] else self._replace(split=1)

    def tiles(self, rows: int, columns: int) -> int:
        """Tiles of clusters that cover a part.

        >>> Shape(128).tiles(128, 512), Shape(128, 2).tiles(128, 512), Shape(256).tiles(257, 512)
        (2, 4, 4)
        """
        if self.split > 1:
            return -(-rows // (ROWS // 2)) * -(-columns // self.width)
        return -(-rows // ROWS) * -(-columns // (self.width * (2 if beside(rows) else 1)))


WIDEST = Shape()


def beside(rows: int) -> bool:
    """Whether the tiles of a cluster lie beside each other, in a part of so many rows: one CTA's are enough."""
    return rows <= ROWS // 2


def shaped(parts: Sequence[tuple[int, int]], k: int, clusters: int, *, sends: bool) -> tuple[Shape, float]:
    """The shape that suits parts that wait for peers, or peers for them, and microseconds if nobody has to wait.

    Args:
        parts: rows and columns of each.
        k: inner length.
        clusters: of the GPU.
        sends: whether some of them send.

    >>> shaped([(128, 3584)] * 4, 8192, 66, sends=True)
    (Shape(width=256, split=2, senders=10), 35.96)
    """
    found, steps = list[tuple[float, Shape]](), -(-k // 64)
    for width, split in itertools.product(_STEP_US, (1, 2)):
        shape = Shape(width, split).fitting(steps)
        tiles, least = sum(shape.tiles(*part) for part in parts), _LEAST_SENDERS if sends else 0
        rounds = -(-tiles // (clusters - least))
        us = _TILE_US + _STEP_US[width] * -(-steps // shape.split) + (_EXCHANGE_US if shape.split > 1 else 0)
        senders = min(clusters - -(-tiles // rounds), _MOST_SENDERS) if sends else 0
        found.append((rounds * us, shape._replace(senders=senders)))
    us, shape = min(found)
    return shape, round(us, 2)
