"""Whether two descriptors put the same elements on every rank, found without enumerating ranks or elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.layouts.split import Split


def same_distribution(one: MatrixDescriptor, other: MatrixDescriptor) -> bool:
    """Whether every rank holds the same elements under both, whatever the blocks, grids, orders and lld say.

    The owner of block (I, J) is rank f(I) + g(J), f and g being the strides of the grid times the coordinates. Two such
    sums are equal exactly if they agree on block (0, 0) and f and g have the same steps.

    Args:
        one: a distribution.
        other: another, of any shape over any grid.

    Returns:
        True exactly if every rank holds the same elements.

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> same_distribution(MatrixDescriptor.row_wise(1, 4, 3), MatrixDescriptor.column_wise(1, 4, 3, nb=9))
    True
    """
    if one.shape != other.shape:
        return False
    if 0 in one.shape:
        return True
    copies, other_copies = _whole_copies(one), _whole_copies(other)
    if copies or other_copies:
        return copies == other_copies
    (down, along), (other_down, other_along) = one.grid.strides, other.grid.strides
    return (
        one.owner(0, 0) == other.owner(0, 0)
        and _steps(one.rows, down) == _steps(other.rows, other_down)
        and _steps(one.columns, along) == _steps(other.columns, other_along)
    )


def _whole_copies(desc: MatrixDescriptor) -> tuple[int, int, int] | None:
    """(first, step, count) of the ranks that hold all of a matrix that is not empty; None where it is split."""
    row_copies, column_copies = _is_shared(desc.rows), _is_shared(desc.columns)
    if (row_copies and not desc.rows.is_replicated) or (column_copies and not desc.columns.is_replicated):
        return None
    first, (down, along) = desc.owner(0, 0), desc.grid.strides
    if row_copies and column_copies:
        return first, 1, desc.nprocs
    if row_copies:
        return first, down, desc.grid.nprow
    return (first, along, desc.grid.npcol) if column_copies else (first, 0, 1)


def _is_shared(split: Split) -> bool:
    """Whether more than one process coordinate owns an element."""
    return split.nprocs > 1 and (split.is_replicated or split.nblocks > 1)


def _steps(split: Split, stride: int) -> tuple[int, ...]:
    """What tells the ranks of one dimension's blocks, relative to the first block, from those of any other.

    Args:
        split: the dimension, not empty.
        stride: ranks from one process coordinate to the next.
    """
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
