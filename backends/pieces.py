"""Products whose K is cut into pieces, for reproducible results, and the order in which the pieces are added."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pblas.backends.dtypes import Array, Dtype


class PieceSizes(NamedTuple):
    """The products that a `PieceProducts` forms."""

    width: int  # elements of K in a piece; the last one of a product may have less (local)
    shape: tuple[int, int]  # the most rows and columns of a product (local)
    pieces: int  # the most pieces of a product, a power of two (local)
    dtype: Dtype  # of the sums (local)
    transposed: bool  # the matrices are transposed ones: D^T = Y^T X^T is computed as D = X Y (local)


class PieceProducts(Protocol):
    """Products whose K consists of pieces: each element is the sum of the pieces' products along a binary tree."""

    nbytes: int
    """Bytes of memory that it holds."""

    def gemm(
        self, alpha: complex, x: Array, y: Array, beta: complex, z: Array, *, conj: tuple[bool, bool] = (False, False)
    ) -> None:
        """Z := alpha X Y + beta Z, in place; X and Y may be marked as conjugated."""

    def totals(
        self, x: Array, y: Array, conj: tuple[bool, bool] = (False, False)
    ) -> Iterator[tuple[tuple[slice, slice], Array]]:
        """Blocks of the product X Y, each with its place; valid until the next one."""


class TreeSum:
    """Terms that are added along a binary tree: term 0 and 1, 2 and 3, ..., then pairs of pairs."""

    def __init__(self, sums: list[Array], add: Callable[[Array, Array], object] | None = None) -> None:
        """`sums`: memory for `depth` sums; `add(x, z)` adds x to z, None for NumPy's addition."""
        self._sums, self._count = sums, 0
        self._add = add or (lambda x, z: np.add(z, x, out=z))

    @staticmethod
    def depth(terms: int) -> int:
        """How many sums a tree of so many terms (a power of two) needs.

        >>> [TreeSum.depth(terms) for terms in (1, 2, 4, 16)]
        [1, 1, 2, 4]
        """
        return max(1, terms.bit_length() - 1)

    def add(self, put: Callable[..., None]) -> None:
        """Add the next term: put(z, adds=True) adds it to z, put(z, adds=False) overwrites z.

        >>> tree = TreeSum([np.zeros(1), np.zeros(1)])
        >>> for term in (1.0, 2.0, 3.0, 4.0):
        ...     tree.add(lambda z, *, adds, term=term: np.add(z, term, out=z) if adds else z.fill(term))
        >>> tree.total
        array([10.])
        """
        sums, count = self._sums, self._count
        self._count += 1
        level = count.bit_count()  # subtrees so far, the largest first
        if count % 2 == 0:
            put(sums[level], adds=False)
            return
        put(sums[level - 1], adds=True)
        while count & 2:  # two subtrees of one size are one of twice that size
            level, count = level - 1, count >> 1
            self._add(sums[level], sums[level - 1])

    @property
    def total(self) -> Array:
        """The sum of all terms; their number is a power of two."""
        return self._sums[0]
