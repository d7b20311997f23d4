"""The pieces of K of a reproducible product: they depend on K alone, so that the bits of D do too.

The products of the pieces are added along a binary tree: pieces 0 and 1, 2 and 3, ..., then pairs of pairs. A rank that
has all pieces below a node of the tree forms the sum of this node, wherever the other pieces are.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from pblas.backends.engine_limits import Reproducible
from pblas.layouts.split import Split

_MOST = 16  # most pieces, so that as many ranks can share K
_LEAST_EXACT = 8192  # least width of a piece whose product is exact; `backends.cpu.exact` takes twice that
_ALIGNED = 64  # on GPUs pieces start at multiples of so many elements
_LEAST_ON_GPUS = 7168  # a GPU writes the sums of several pieces to its memory, in 32 bits
_LEAST = 1024  # least width of a piece: n = 2048 takes 0.99 to 1.10 of the time, with 512 1.04 to 1.15 (AMD EPYC)
TILE, PADDED = 1024, 192
"""Most rows and columns of a block of D that is formed at a time, and of the zeros that pad it."""


class KPieces(NamedTuple):
    """`parts` pieces of `width` elements of K, a power of two; the last piece may be narrower.

    >>> [(pieces.width, pieces.parts) for pieces in map(KPieces.of, (7, 1000, 2048, 10**6))]
    [(7, 1), (1000, 1), (1024, 2), (62500, 16)]
    >>> KPieces.of(14340, gpus=True)
    KPieces(width=7232, parts=2)
    >>> [(pieces.width, pieces.parts) for pieces in (KPieces.of(k, "exact") for k in (16383, 10**6))]
    [(16383, 1), (15625, 64)]
    """

    width: int
    parts: int

    @staticmethod
    @lru_cache(64)
    def of(k: int, reproducible: Reproducible = True, *, gpus: bool = False) -> KPieces:
        count, exact = 1, reproducible == "exact"
        gpus = gpus and not exact  # whose pieces are those of CPUs
        least = _LEAST_EXACT if exact else _LEAST_ON_GPUS if gpus else _LEAST
        while (count < _MOST or exact) and k >= 2 * count * least:
            count *= 2
        width = max(1, -(-k // count))
        return KPieces(width + -width % _ALIGNED if gpus and count > 1 else width, count)

    def split(self, k: int, layers: int) -> Split | None:
        """K over a number of layers, each with all pieces below one node of the tree; None if there are no such nodes.

        >>> KPieces.of(2060).split(2060, 2), KPieces.of(2060).split(2060, 3)
        (Split(n=2060, nb=1030, nprocs=2, src=0, inb=None), None)
        """
        if layers > self.parts or self.parts % layers:
            return None
        return Split(k, self.width * (self.parts // layers), layers)

    def panels(self, layers: int, wanted: int) -> int:
        """Width of a panel: all pieces below one node of a layer's tree, in at least `wanted` panels if there are.

        >>> KPieces.of(8192).panels(1, 4), KPieces.of(8192).panels(8, 4), KPieces.of(100).panels(1, 4)
        (2048, 1024, 100)
        """
        pieces = self.parts // layers
        while wanted > 1 and pieces > 1:
            pieces, wanted = pieces // 2, -(-wanted // 2)
        return self.width * pieces
