"""A triangle of a distributed matrix on one rank, as rectangles of its local array; integers only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from pblas.layouts.descriptor import MatrixDescriptor

Part = Literal["all", "U", "L"]  # all elements, those on and above the diagonal, or those on and below it

_WIDTH = 64  # columns of a panel. Wider panels have more elements outside the triangle, narrower ones take more calls


class Rectangle(NamedTuple):
    """Rows and columns of a local array, or of a matrix (half-open)."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    meets_diagonal: bool


def flipped(part: Part) -> Part:
    """The same part of the transposed matrix.

    >>> flipped("U"), flipped("all")
    ('L', 'all')
    """
    opposite: dict[Part, Part] = {"all": "all", "U": "L", "L": "U"}
    return opposite[part]


def rectangles(desc: MatrixDescriptor, rank: int, part: Part, width: int | None = None) -> Iterator[Rectangle]:
    """The elements of a part of the matrix that a rank has, each in one rectangle.

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> from pblas.layouts.grid import Grid
    >>> desc = MatrixDescriptor(8, 8, 2, 2, Grid(2, 2))
    >>> for rectangle in rectangles(desc, 0, "L", 2): print(rectangle)
    Rectangle(rows=(2, 4), columns=(0, 2), meets_diagonal=False)
    Rectangle(rows=(0, 2), columns=(0, 2), meets_diagonal=True)
    Rectangle(rows=(2, 4), columns=(2, 4), meets_diagonal=True)
    """
    m_loc, n_loc = desc.local_shape(rank)
    if not m_loc or not n_loc:
        return
    myrow, mycol = desc.grid.coordinates(rank)
    step = width or (n_loc if part == "all" else _WIDTH)
    for start in range(0, n_loc, step):
        columns = start, min(start + step, n_loc)
        if part == "all":
            yield Rectangle((0, m_loc), columns, meets_diagonal=False)
            continue
        first, last = (desc.columns.global_from_local(l, mycol) for l in (columns[0], columns[1] - 1))
        above, below = (desc.rows.local_start(min(g, desc.m), myrow) for g in (first, last + 1))
        full = (0, above) if part == "U" else (below, m_loc)
        for rows, meets_diagonal in ((full, False), ((above, below), True)):
            if rows[0] < rows[1]:
                yield Rectangle(rows, columns, meets_diagonal)


def blocks_of(desc: MatrixDescriptor, rank: int, part: Part) -> Iterator[Rectangle]:
    """A part of a block of consecutive rows and columns: a square on the diagonal, and blocks beside it (global).

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> for block in blocks_of(MatrixDescriptor.row_wise(8, 8, 2), 1, "L"): print(block)
    Rectangle(rows=(4, 8), columns=(4, 8), meets_diagonal=True)
    Rectangle(rows=(4, 8), columns=(0, 4), meets_diagonal=False)
    """
    ((i0, i1),), ((j0, j1),) = desc.global_ranges(rank)
    if part == "all":
        yield Rectangle((i0, i1), (j0, j1), meets_diagonal=False)
        return
    start, stop = max(i0, j0), min(i1, j1)  # of the square; stop <= start without one
    if start < stop:
        yield Rectangle((start, stop), (start, stop), meets_diagonal=True)
        beside = (
            [((start, stop), (j0, start)), ((stop, i1), (j0, stop))]
            if part == "L"
            else [((i0, start), (start, j1)), ((start, stop), (stop, j1))]
        )
    else:
        beside = [((i0, i1), (j0, j1))] if (j1 <= i0) == (part == "L") else []
    for rows, columns in beside:
        if rows[0] < rows[1] and columns[0] < columns[1]:
            yield Rectangle(rows, columns, meets_diagonal=False)
