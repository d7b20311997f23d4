"""How the Hopper kernel shares a product of few tiles among its multiprocessors, and how long that takes.

Integers and figures of H200 only: the planner asks, and so does the kernel's own table of tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ROWS, WIDTH, LINE = 256, 256, 64
"""Rows of the tiles of a cluster, one below the other, columns of the widest ones, and rows of a warpgroup."""

# Microseconds of 64 elements along K of a tile, by its width and the CTAs that make it: narrow ones wait for what they
# load, since 47 bytes come into a multiprocessor in a cycle, and so do wide ones that share nothing. There is more for
# each tile, and for each that two CTAs make.
_STEP_US = {(256, 1): 0.515, (128, 1): 0.37, (64, 1): 0.29, (256, 2): 0.75, (128, 2): 0.37, (64, 2): 0.29}
_TILE_US, _EXCHANGE_US = 1.5, 1.5
_STAGES = {256: 4, 128: 6, 64: 8}


COPY_US, COPY_RATE = 6.0, 380e3
"""Of copies to peers, one after the other: microseconds of each, and bytes per microsecond (NVLink of H200)."""


class Shape(NamedTuple):
    """How clusters share the work.

    Args:
        width: of tiles at most, 256, 128 or 64.
        split: CTAs of a cluster that make a tile together, each over a part of K: 1 or 2.
    """

    width: int = WIDTH
    split: int = 1

    def fitting(self, steps: int) -> Shape:
        """This one, or one that does not split K if it has too few steps.

        Stages are granted to who gives sums before he knows of the last ones, if a tile is not as long as the ring.

        >>> Shape(128, 2).fitting(11), Shape(128, 2).fitting(12)
        (Shape(width=128, split=1), Shape(width=128, split=2))
        """
        return self if steps // self.split >= _STAGES[self.width] else self._replace(split=1)

    def tiles(self, parts: Sequence[tuple[int, int]]) -> int:
        """Tiles of clusters that cover parts of so many rows and columns.

        >>> [Shape(128, split).tiles([(128, 512)]) for split in (1, 2)], Shape(256).tiles([(257, 512)])
        ([2, 4], 3)
        """
        height = ROWS // self.split
        count = 0
        for rows, columns in parts:
            last = rest(rows) if self.split == 1 else 0
            count += -(-(rows - last) // height) * -(-columns // self.width)
            count += (last > 0) * -(-columns // (2 * self.width))
        return count


WIDEST = Shape()


def beside(rows: int) -> bool:
    """Whether the tiles of a cluster lie beside each other, where so many rows are left: one CTA's are enough."""
    return rows <= ROWS // 2


def rest(rows: int) -> int:
    """The last of so many rows, of which the tiles of a cluster lie beside each other.

    >>> rest(100), rest(256), rest(300), rest(400)
    (100, 0, 44, 0)
    """
    last = rows % ROWS
    return last if beside(last) else 0


def shaped(parts: Sequence[tuple[int, int]], k: int, clusters: int) -> tuple[Shape, float]:
    """The shape that suits parts for which peers wait, and microseconds if nobody has to wait for a peer.

    Args:
        parts: rows and columns of each.
        k: inner length.
        clusters: of the GPU.

    >>> shaped([(128, 3584)] * 4, 8192, 66)
    (Shape(width=128, split=1), 48.86)
    """
    candidates, steps = list[tuple[float, Shape]](), -(-k // 64)
    for width, split in _STEP_US:
        shape = Shape(width, split).fitting(steps)
        rounds = max(-(-shape.tiles(parts) // clusters), 1)
        us = _TILE_US + _STEP_US[width, shape.split] * -(-steps // shape.split) + _EXCHANGE_US * (shape.split - 1)
        candidates.append((rounds * us, shape))
    us, shape = min(candidates)
    return shape, round(us, 2)
