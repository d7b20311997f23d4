"""One triangle of a distributed matrix, on one rank: copies that touch nothing else, and its diagonal."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pblas.layouts.messages import Move
from pblas.redistribution.packing import COPY, Message, Put

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.layouts.placement import Placement
    from pblas.layouts.rectangles import Rectangle
    from pblas.layouts.trapezoid import Trapezoid


class Triangle:
    """The elements of a triangle or trapezoid in this rank's shard."""

    def __init__(self, backend: HostRanks, place: Placement, trapezoid: Trapezoid, order: Literal["F", "C"]) -> None:
        self.trapezoid = trapezoid
        self._backend, self._place, self._order = backend, place, order
        m_loc, n_loc = place.local_shape(backend.rank)
        self._copies: Any = None
        self._whole = (0, m_loc, 0, n_loc)

    def put(self, x: Array, out: Array, put: Put = COPY) -> None:
        """Put the elements in the triangle from x to out, two arrays of the shard's shape (local)."""
        if self._copies is None:
            r0, r1, c0, c1 = self._whole
            self._copies = self._message([Move(self._backend.rank, ((r0, r0, r1 - r0),), ((c0, c0, c1 - c0),))])
        self._copies.bring(x, out, put)

    def blocks(self, places: Iterable[Rectangle]) -> Message:
        """Copies of blocks across the diagonal, from an array that holds the columns of each block from row 0 on."""
        rank = self._backend.rank
        moves = (Move(rank, ((0, x.r0, x.r1 - x.r0),), ((x.c0, x.c0, x.c1 - x.c0),)) for x in places)
        return self._message(moves)

    def _message(self, moves: Iterable[Move]) -> Message:
        backend, place = self._backend, self._place
        found = [move for move in moves if 0 not in move.shape]
        parts = chain.from_iterable(
            self.trapezoid.cut(move, place, backend.rank, 1, backend.arrays.traits.most_across) for move in found
        )
        return Message(backend.rank, parts, self._order, {}, backend.arrays.block_copy)

    def set_diagonal(self, x: Array, value: float) -> None:
        """Set the elements of the main diagonal in the shard x; those of `x.imag` to make them real (local)."""
        rows, columns = diagonal(self._place, self._backend.rank)
        self._backend.arrays.fill(x, rows, columns, value)


def diagonal(place: Placement, rank: int) -> tuple[Array, Array]:
    """Local rows and columns of the elements of the main diagonal that a rank holds.

    >>> from pblas.layouts.placement import Placement
    >>> from pblas.layouts.split import Split
    >>> [x.tolist() for x in diagonal(Placement(Split(6, 2, 2), Split(6, 6, 1), (1, 1, 1)), 1)]
    [[0, 1], [2, 3]]
    """
    position = place.coordinates(rank)
    m_loc, n_loc = place.local_shape(rank)
    if position is None or not m_loc or not n_loc:
        return np.empty(0, np.intp), np.empty(0, np.intp)
    rows = np.arange(m_loc)
    g = place.rows.global_from_local(rows, position[0])
    on = g < place.columns.n
    rows, g = rows[on], g[on]
    own = np.broadcast_to(np.asarray(place.columns.owner(g) == position[1]), g.shape)
    columns: Array = place.columns.local_from_global(g[own])
    return rows[own], columns
