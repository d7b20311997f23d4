"""Equality of distributions: whether two give every rank the same elements, without enumerating either."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pblas.layouts.grid import Grid
    from pblas.layouts.split import Split


def same_distribution(
    grid: Grid, rows: Split, columns: Split, other_grid: Grid, other_rows: Split, other_columns: Split
) -> bool:
    """Whether two distributions give every rank the same elements, even if their blocks and grids differ.

    The owner of block (I, J) is rank f(I) + g(J): each of f and g is a stride of the grid times a process coordinate.
    Two such sums are equal exactly if they agree on block (0, 0) and f and g have the same steps.

    >>> from pblas.layouts import Grid, Split
    >>> row_wise = Grid(3, 1), Split(1, 1, 3), Split(4, 4, 1)
    >>> column_wise = Grid(1, 3), Split(1, 1, 1), Split(4, 9, 3)
    >>> same_distribution(*row_wise, *column_wise)
    True
    """
    if (rows.n, columns.n) != (other_rows.n, other_columns.n):
        return False
    if 0 in (rows.n, columns.n):
        return True
    copies = _whole_copies(grid, rows, columns)
    other_copies = _whole_copies(other_grid, other_rows, other_columns)
    if copies or other_copies:
        return copies == other_copies
    (down, along), (other_down, other_along) = grid.strides, other_grid.strides
    return (
        _first_owner(grid, rows, columns) == _first_owner(other_grid, other_rows, other_columns)
        and _steps(rows, down) == _steps(other_rows, other_down)
        and _steps(columns, along) == _steps(other_columns, other_along)
    )


def _first_owner(grid: Grid, rows: Split, columns: Split) -> int:
    """Rank that owns element (0, 0)."""
    return grid.rank(rows.owner(0), columns.owner(0))


def _whole_copies(grid: Grid, rows: Split, columns: Split) -> tuple[int, int, int] | None:
    """(first, step, count) of the ranks that each hold a whole matrix, which is not empty; None if it is split."""
    row_copies, column_copies = _is_shared(rows), _is_shared(columns)
    if (row_copies and not rows.is_replicated) or (column_copies and not columns.is_replicated):
        return None
    first, (down, along) = _first_owner(grid, rows, columns), grid.strides
    if row_copies and column_copies:
        return first, 1, grid.size
    if row_copies:
        return first, down, grid.nprow
    return (first, along, grid.npcol) if column_copies else (first, 0, 1)


def _is_shared(split: Split) -> bool:
    """Whether more than one process coordinate owns an element."""
    return split.nprocs > 1 and (split.is_replicated or split.nblocks > 1)


def _steps(split: Split, stride: int) -> tuple[int, ...]:
    """A key of the ranks that own the blocks of one dimension, relative to the first block: equal keys, equal ranks."""
    if not _is_shared(split):
        return ()
    if split.is_replicated:
        return stride, split.nprocs
    canonical, nblocks = split.canonical, split.nblocks
    first = canonical.block(0)[1]
    if nblocks == 2:
        return first, 0, stride * (split.owner(split.n - 1) - split.owner(0))
    if split.src + nblocks <= split.nprocs:
        return first, canonical.nb, stride, 0
    return first, canonical.nb, stride, split.src, split.nprocs
