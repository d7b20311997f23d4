"""The messages of a redistribution: the elements that each pair of ranks exchanges, by arithmetic.

A rank of the target receives each of its elements once: from itself if it already holds the element, else from one of
the ranks that hold a copy. Sender and receiver choose that rank by the same rule. No loop here runs over elements, or
over ranks that share no element.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from pblas.layouts.overlap import Run, overlap_count, overlaps
from pblas.layouts.placement import Placement


@dataclass(frozen=True, slots=True)
class Move:
    """One message: the elements in some runs of rows and some runs of columns."""

    peer: int  # the rank at the other end; the rank itself for elements that it keeps (local)
    # runs of rows, ascending: (start in the sender's array, start in the receiver's array, length) (local)
    rows: tuple[Run, ...]
    columns: tuple[Run, ...]  # runs of columns, in the same form (local)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the packed message.

        >>> Move(1, ((0, 4, 2), (3, 6, 1)), ((0, 0, 5),)).shape
        (3, 5)
        """
        return sum(run[2] for run in self.rows), sum(run[2] for run in self.columns)


def sends(source: Placement, target: Placement, rank: int) -> Iterator[Move]:
    """The messages that `rank` sends to other ranks, to rank + 1 first.

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> rows, columns = MatrixDescriptor.row_wise(4, 4, 2), MatrixDescriptor.column_wise(4, 4, 2)
    >>> list(sends(Placement.of(rows), Placement.of(columns), 1))
    [Move(peer=0, rows=((0, 2, 2),), columns=((0, 0, 2),))]
    """
    position = source.coordinates(rank)
    if position is None:
        return
    r, c, z = position
    if not source.rows.count(r) * source.columns.count(c):  # the other size may have many runs
        return
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
    """The messages that `rank` receives: first the one from itself, then from rank - 1, rank - 2, ...

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> rows, columns = MatrixDescriptor.row_wise(4, 4, 2), MatrixDescriptor.column_wise(4, 4, 2)
    >>> [(move.peer, move.shape) for move in receives(Placement.of(rows), Placement.of(columns), 0)]
    [(0, (2, 2)), (1, (2, 2))]
    """
    position = target.coordinates(rank)
    if position is None:
        return
    p, q, copy = position
    if not target.rows.count(p) * target.columns.count(q):
        return
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
    """Number of elements that `rank` receives from other ranks: it needs them and does not have them.

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


def sent_count(source: Placement, target: Placement, rank: int) -> int:
    """Number of elements that `rank` sends to other ranks.

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> rows, columns = MatrixDescriptor.row_wise(4, 4, 2), MatrixDescriptor.column_wise(4, 4, 2)
    >>> sent_count(Placement.of(rows), Placement.of(columns), 1)
    4
    """
    has, needs = source.coordinates(rank), target.coordinates(rank)
    if has is None:
        return 0
    if source.copies > 1:  # the ranks with copies share the work
        return sum(rows * columns for rows, columns in (move.shape for move in sends(source, target, rank)))
    count = source.rows.count(has[0]) * source.columns.count(has[1])
    if not count or needs is None:
        return count * target.copies
    rows = overlap_count(target.rows, needs[0], source.rows, has[0])
    return count * target.copies - (rows and rows * overlap_count(target.columns, needs[1], source.columns, has[1]))


def _holds(place: Placement, rank: int, r: int, c: int) -> bool:
    """Whether a rank has the blocks at coordinates (r, c)."""
    position = place.coordinates(rank)
    return position is not None and position[:2] == (r, c)


def _frozen(runs_of: dict[int, list[Run]], *, flip: bool = False) -> dict[int, tuple[Run, ...]]:
    """The runs as tuples; `flip` exchanges their two starts."""
    if flip:
        return {q: tuple((second, first, length) for first, second, length in runs) for q, runs in runs_of.items()}
    return {q: tuple(runs) for q, runs in runs_of.items()}
