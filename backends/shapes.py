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
_LEAST_SENDERS, _MOST_SENDERS = 5, 10


# What a cluster moves between GPUs, bytes per microsecond, beside others that multiply; and the rate of these.
MOVED_RATE, _MULTIPLIED_RATE = 80e3, 740e6
_LEAST_MOVERS, _MOST_MOVERS = 2, 8


def movers(nbytes: float, flops: float) -> int:
    """Clusters that move so many bytes in about the time in which the others multiply.

    Args:
        nbytes: that are copied between GPUs.
        flops: floating-point operations of the product beside it.

    >>> movers(58.7e6, 60.1e9), movers(58.7e6, 240.5e9), movers(1e3, 240.5e9)
    (8, 3, 2)
    """
    wanted = -(-nbytes * _MULTIPLIED_RATE // (MOVED_RATE * max(flops, 1.0)))
    return int(min(max(wanted, _LEAST_MOVERS), _MOST_MOVERS))


class Shape(NamedTuple):
    """How clusters share the work.

    Args:
        width: of tiles at most, 256, 128 or 64.
        split: CTAs of a cluster that make a tile together, each over a part of K: 1 or 2.
        senders: clusters that do nothing but send.
        stacked: whether tiles are cut from the lines of all parts, LINE of them at a time, so that one may belong to
            several parts, which have B in common; those of a cluster lie one below the other.
    """

    width: int = WIDTH
    split: int = 1
    senders: int = 0
    stacked: bool = False

    def fitting(self, steps: int) -> Shape:
        """This one, or one that does not split K if it has too few steps.

        Stages are granted to who gives sums before he knows of the last ones, if a tile is not as long as the ring.

        >>> Shape(128, 2).fitting(11), Shape(128, 2).fitting(12)
        (Shape(width=128, split=1, senders=0, stacked=False), Shape(width=128, split=2, senders=0, stacked=False))
        """
        return self if steps // self.split >= _STAGES[self.width] else self._replace(split=1)

    def tiles(self, parts: Sequence[tuple[int, int]]) -> int:
        """Tiles of clusters that cover parts of so many rows and columns.

        >>> [Shape(128, split).tiles([(128, 512)]) for split in (1, 2)], Shape(256).tiles([(257, 512)])
        ([2, 4], 3)
        >>> [Shape(128, split, stacked=True).tiles([(64, 512)] * 3) for split in (1, 2)]
        [4, 8]
        """
        height = ROWS // self.split
        if self.stacked:
            return -(-sum(-(-rows // LINE) for rows, _ in parts) * LINE // height) * -(-parts[0][1] // self.width)
        found = 0
        for rows, columns in parts:
            last = rest(rows) if self.split == 1 else 0
            found += -(-(rows - last) // height) * -(-columns // self.width)
            found += (last > 0) * -(-columns // (2 * self.width))
        return found


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


def shaped(
    parts: Sequence[tuple[int, int]], k: int, clusters: int, *, sends: bool, common: bool
) -> tuple[Shape, float]:
    """The shape that suits parts that wait for peers, or peers for them, and microseconds if nobody has to wait.

    Args:
        parts: rows and columns of each.
        k: inner length.
        clusters: of the GPU.
        sends: whether some of them send.
        common: whether all parts have the same B.

    >>> shaped([(128, 3584)] * 4, 8192, 66, sends=True, common=True)
    (Shape(width=128, split=1, senders=10, stacked=True), 48.86)
    """
    found, steps = list[tuple[float, Shape]](), -(-k // 64)
    for width, split in _STEP_US:
        shape = Shape(width, split).fitting(steps)
        stacked = shape._replace(stacked=True)
        if sends and common and (shape.split == 1 or stacked.tiles(parts) < shape.tiles(parts)):
            shape = stacked
        tiles, least = shape.tiles(parts), _LEAST_SENDERS if sends else 0
        rounds = max(-(-tiles // (clusters - least)), 1)
        us = _TILE_US + _STEP_US[width, shape.split] * -(-steps // shape.split) + _EXCHANGE_US * (shape.split - 1)
        senders = min(clusters - -(-tiles // rounds), _MOST_SENDERS) if sends else 0
        found.append((rounds * us, shape._replace(senders=senders)))
    us, shape = min(found)
    return shape, round(us, 2)
