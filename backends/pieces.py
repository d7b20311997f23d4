"""Products whose K is cut into pieces, as devices and engines form them for reproducible results."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

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
