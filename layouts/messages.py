"""The messages of a redistribution: the elements that each pair of ranks exchanges, by arithmetic.

Every rank of the target receives each of its elements once: from itself if it holds it, else from one of those that
hold a copy, chosen by a rule that both sides know. Nothing here loops over elements, or over ranks that share nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from pblas.layouts.overlap import Run, overlap_count, overlaps
from pblas.layouts.placement import Placement


@dataclass(frozen=True, slots=True)
class Move:
    """One message: the product of runs of rows and runs of columns, in ascending order.

    Args:
        peer: the rank at the other end; the rank itself for what stays.
        rows: (start in the sender's array, start in the receiver's array, length).
        columns: alike.
    """

    peer: int
    rows: tuple[Run, ...]
    columns: tuple[Run, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the message, packed.

        >>> Move(1, ((0, 4, 2), (3, 6, 1)), ((0, 0, 5),)).shape
        (3, 5)
        """
        return sum(run[2] for run in self.rows), sum(run[2] for run in self.columns)


def sends(source: Placement, target: Placement, rank: int) -> Iterator[Move]:
    """The messages of `rank` to other ranks, from the next rank on.

    Args:
        source: where the matrix is (global).
        target: where it goes, of the same shape (global).
        rank: the sender (local).

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> rows, columns = MatrixDescriptor.row_wise(4, 4, 2), MatrixDescriptor.column_wise(4, 4, 2)
    >>> list(sends(Placement.of(rows), Placement.of(columns), 1))
    [Move(peer=0, rows=((0, 2, 2),), columns=((0, 0, 2),))]
    """
    position = source.coordinates(rank)
    if position is None:
        return
    r, c, z = position
    rows = _frozen(overlaps(source.rows, r, target.rows))
    columns = _frozen(overlaps(source.columns, c, target.columns))
    messages = [
        (peer, p, q)
        for p, q in product(rows, columns)
        for peer in (
            target.rank(p, q, copy) for copy in range((z - p - q) % source.copies, target.copies, source.copies)
        )
        if not _holds(source, peer, r, c)
    ]
    span = max(source.span, target.span)
    for peer, p, q in sorted(messages, key=lambda message: (message[0] - rank) % span):
        yield Move(peer, rows[p], columns[q])


def receives(source: Placement, target: Placement, rank: int) -> Iterator[Move]:
    """The messages to `rank`: first the one from itself, then from the previous rank back.

    Args:
        source: where the matrix is (global).
        target: where it goes, of the same shape (global).
        rank: the receiver (local).

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> rows, columns = MatrixDescriptor.row_wise(4, 4, 2), MatrixDescriptor.column_wise(4, 4, 2)
    >>> [(move.peer, move.shape) for move in receives(Placement.of(rows), Placement.of(columns), 0)]
    [(0, (2, 2)), (1, (2, 2))]
    """
    position = target.coordinates(rank)
    if position is None:
        return
    p, q, copy = position
    rows = _frozen(overlaps(target.rows, p, source.rows), flip=True)
    columns = _frozen(overlaps(target.columns, q, source.columns), flip=True)
    messages = [
        (rank if _holds(source, rank, r, c) else source.rank(r, c, (p + q + copy) % source.copies), r, c)
        for r, c in product(rows, columns)
    ]
    span = max(source.span, target.span)
    for peer, r, c in sorted(messages, key=lambda message: (rank - message[0]) % span):
        yield Move(peer, rows[r], columns[c])


def received_count(source: Placement, target: Placement, rank: int) -> int:
    """Number of elements that `rank` receives from others: those that it needs and does not have.

    Args:
        source: where the matrix is (global).
        target: where it goes, of the same shape (global).
        rank: the receiver (local).

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> rows, columns = MatrixDescriptor.row_wise(4, 4, 2), MatrixDescriptor.column_wise(4, 4, 2)
    >>> received_count(Placement.of(rows), Placement.of(columns), 0)
    4
    """
    needs, has = target.coordinates(rank), source.coordinates(rank)
    if needs is None:
        return 0
    count = target.rows.count(needs[0]) * target.columns.count(needs[1])
    if not count or has is None:
        return count
    rows = overlap_count(target.rows, needs[0], source.rows, has[0])
    return count - (rows and rows * overlap_count(target.columns, needs[1], source.columns, has[1]))


def _holds(place: Placement, rank: int, r: int, c: int) -> bool:
    """Whether a rank has the blocks of (r, c)."""
    position = place.coordinates(rank)
    return position is not None and position[:2] == (r, c)


def _frozen(runs_of: dict[int, list[Run]], *, flip: bool = False) -> dict[int, tuple[Run, ...]]:
    if flip:
        return {q: tuple((second, first, length) for first, second, length in runs) for q, runs in runs_of.items()}
    return {q: tuple(runs) for q, runs in runs_of.items()}
