"""Rectangles that cover the part of a triangle that one rank holds: products of a triangle are products of these.

Local indices of a block-cyclic split grow with the global ones. So the rows of a local array that are on or below the
diagonal in a range of its columns are a range too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from pblas.layouts.index import owned, stored
from pblas.layouts.split import Split

LEAF = 64  # columns of a block across the diagonal: its elements outside the triangle are multiplied in vain

_SAMPLE = 256  # largest number of columns that `area` examines


class Rectangle(NamedTuple):
    """Rows r0..r1-1 and columns c0..c1-1 of a local array."""

    r0: int
    r1: int
    c0: int
    c1: int
    inside: bool
    square: bool = False


def rectangles(
    rows: Split,
    r: int,
    columns: Split,
    c: int,
    uplo: Literal["U", "L"],
    c0: int = 0,
    c1: int | None = None,
    *,
    squares: bool = False,
    leaf: int = LEAF,
) -> Iterator[Rectangle]:
    """Disjoint rectangles that contain all local elements of a triangle, the largest first.

    Those that are not wholly inside the triangle share no columns. They are small, or squares on the diagonal.

    >>> whole = Split(200, 200, 1)
    >>> for rectangle in rectangles(whole, 0, whole, 0, "L"):
    ...     print(*rectangle[:5])
    64 200 0 64 True
    0 64 0 64 False
    128 200 64 128 True
    64 128 64 128 False
    192 200 128 192 True
    128 192 128 192 False
    192 200 192 200 False
    >>> list(rectangles(whole, 0, whole, 0, "L", squares=True))
    [Rectangle(r0=0, r1=200, c0=0, c1=200, inside=False, square=True)]
    """
    whole = columns.count(c) if c1 is None else c1
    yield from _cover((rows, r, columns, c), uplo, (c0, whole, 0, rows.count(r)), squares=squares, leaf=leaf)


def _cover(
    place: tuple[Split, int, Split, int],
    uplo: Literal["U", "L"],
    bounds: tuple[int, int, int, int],
    *,
    squares: bool,
    leaf: int,
) -> Iterator[Rectangle]:
    """`rectangles` of the columns and rows (c0, c1, low, high) of a local array at (rows, r, columns, c)."""
    (rows, r, columns, c), (c0, c1, low, high) = place, bounds
    if c0 >= c1 or low >= high:
        return
    first, last = columns.global_from_local(c0, c), columns.global_from_local(c1 - 1, c)
    before, after = (min(max(rows.local_start(min(g, rows.n), r), low), high) for g in (first, last + 1))
    whole = (after, high) if uplo == "L" else (low, before)
    if whole[0] < whole[1]:
        yield Rectangle(*whole, c0, c1, True)
    low, high = before, after  # rows across the diagonal
    if low >= high:
        return
    square = squares and c1 - c0 == high - low == last + 1 - first
    if square or (c1 - c0 <= leaf and high - low <= 2 * leaf):
        yield Rectangle(low, high, c0, c1, False, square)
        return
    middle = _middle(place, c0, c1, squares=squares, leaf=leaf)
    yield from _cover(place, uplo, (c0, middle, low, high), squares=squares, leaf=leaf)
    yield from _cover(place, uplo, (middle, c1, low, high), squares=squares, leaf=leaf)


def _middle(place: tuple[Split, int, Split, int], c0: int, c1: int, *, squares: bool, leaf: int) -> int:
    """Where a range of columns is divided: near its middle, and between two blocks if the parts can then be squares."""
    rows, _, columns, c = place
    half = (c1 - c0) // 2
    for split in (columns, rows) if squares else ():
        if split.nprocs > 1 and split.nb >= leaf:
            g, first = columns.global_from_local(c0 + half, c), split.block(0)[1]
            start = 0 if g < first else first + (g - first) // split.nb * split.nb
            for border in (start, min(split.n, first if g < first else start + split.nb)):
                middle = columns.local_start(border, c)
                if c0 < middle < c1:
                    return middle
    return c0 + (max(leaf, half - half % leaf) if c1 - c0 > leaf else half)


@lru_cache(1024)
def area(rows: Split, r: int, columns: Split, c: int, uplo: Literal["U", "L"]) -> int:
    """Number of local elements of a triangle: exact for few columns, from a sample of the columns for many.

    >>> halves = Split(8, 4, 2)
    >>> [area(halves, r, Split(8, 8, 1), 0, "L") for r in range(2)]
    [10, 26]
    """
    m_loc, n_loc = rows.count(r), columns.count(c)
    if not m_loc or not n_loc:
        return 0
    count, total = min(n_loc, _SAMPLE), 0
    of_rows = rows.nb, r, rows.src, rows.nprocs, rows.block(0)[1]
    of_columns = columns.nb, c, columns.src, columns.nprocs, columns.block(0)[1]
    for s in range(count):
        g = stored((2 * s + 1) * n_loc // (2 * count), *of_columns)
        above = owned(min(g if uplo == "L" else g + 1, rows.n), *of_rows)
        total += m_loc - above if uplo == "L" else above
    return total * n_loc // count
