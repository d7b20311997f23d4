"""Copies between blocks of local arrays and packed messages.

A cyclic layout puts a message in many places, but at regular distances: equal runs one period apart are one strided
view, so that the number of copies depends on the layouts and not on the size of the matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

import numpy as np

from pblas.execute.combination import COPY
from pblas.execute.indexed import Indexed
from pblas.layouts.combs import PACKED, SOURCE, TARGET, combs

if TYPE_CHECKING:
    from pblas.backends.gemm import Array
    from pblas.execute.combination import Put
    from pblas.layouts.combs import Comb
    from pblas.layouts.moves import Move
    from pblas.layouts.trapezoid import Trapezoid

# Nanoseconds, on one core of an AMD EPYC with float64: what decides between strided views and indices.
_PER_VIEW, _PER_STRIDED_VIEW = 3000, 15000
_PER_RUN, _PER_ELEMENT = 10.0, 0.5
_PER_LINE, _PER_INDEXED = 6000, 1.7

# A transposing copy goes by tiles of so many rows and columns, rows being what lies together in the result. Each tile
# is first copied as it lies: where the leading dimension is a power of two, its lines would otherwise drive each other
# out of the first cache.
_TILE_ROWS, _TILE_COLUMNS = 256, 64

_TOGETHER = 16384
"""Elements that are combined at once where a temporary is needed: it stays in cache."""


class _Patch:
    """A product of runs of rows and columns, or what a trapezoid leaves of one block, in a message."""

    __slots__ = ("_columns", "_indexed", "_mask", "_rows", "_shape", "nelements")

    def __init__(self, move: Move, trapezoid: Trapezoid | None) -> None:
        self._rows, self._columns = combs(move.rows), combs(move.columns)
        self._shape = m, n = move.shape
        self._indexed: dict[bool, Indexed | None] = {}
        self._mask: Array | None = None
        if trapezoid is not None:
            upper, k = trapezoid.uplo == "U", trapezoid.diagonal
            self._mask = ~np.tri(m, n, k - 1, np.bool_) if upper else np.tri(m, n, k, np.bool_)
        self.nelements = m * n if trapezoid is None else trapezoid.count(0, m, 0, n)

    @property
    def is_block(self) -> bool:
        """Whether it is one whole block of consecutive rows and columns at both ends."""
        single = all(len(found) == 1 and found[0].count == 1 for found in (self._rows, self._columns))
        return single and self._mask is None

    def block(self, x: Array, place: int) -> Array:
        """Its elements in x, if it is a block or a part of one."""
        return _view(x, self._rows[0], self._columns[0], place)

    def packed(self, flat: Array, order: Literal["F", "C"]) -> Array:
        """A part of a message as `copy` takes it: a matrix, or of a trapezoid its elements one after the other."""
        return flat if self._mask is not None else flat.reshape(self._shape, order=order)

    def copy(self, x: Array, origin: int, out: Array, goal: int, put: Put) -> None:
        """Put its elements from x to out, each of them a SOURCE, PACKED or TARGET."""
        if self._mask is not None:
            self._copy_masked(self._mask, x, origin, out, goal, put)
            return
        rows, columns, by_columns = self._rows, self._columns, _is_by_columns(out)
        if not by_columns:
            x, out, rows, columns = x.T, out.T, columns, rows
        indexed = self._by_index(by_columns)
        if indexed is not None:
            indexed.copy(x, origin, out, goal, put)
            return
        transposed = not _is_by_columns(x)
        if transposed:
            rows = [tile for comb in rows for tile in comb.cut(_TILE_ROWS)]
            columns = [tile for comb in columns for tile in comb.cut(_TILE_COLUMNS)]
        elif put != COPY:
            width = max(1, _TOGETHER // max(comb.length * comb.count for comb in rows))
            columns = [part for comb in columns for part in comb.cut(width)]
        for comb in rows:
            for other in columns:
                piece = _view(x, comb, other, origin)
                put(piece.copy(order="K") if transposed else piece, _view(out, comb, other, goal))

    def _by_index(self, by_columns: bool) -> Indexed | None:
        """The copy by indices where that takes less time, for a result that is stored by columns, or transposed."""
        if by_columns not in self._indexed:
            rows, columns = (self._rows, self._columns) if by_columns else (self._columns, self._rows)
            lines = sum(min(comb.length, comb.count) for comb in columns)
            views = len(rows) * len(columns)
            strided = any(comb.count > 1 for comb in (*rows, *columns))
            runs = sum(comb.count for comb in rows) * self._shape[1 if by_columns else 0]
            by_views = views * (_PER_STRIDED_VIEW if strided else _PER_VIEW) + runs * _PER_RUN
            by_index = lines * _PER_LINE + self.nelements * (_PER_INDEXED - _PER_ELEMENT)
            self._indexed[by_columns] = Indexed(rows, columns) if by_index < by_views else None
        return self._indexed[by_columns]

    def _copy_masked(self, mask: Array, x: Array, origin: int, out: Array, goal: int, put: Put) -> None:
        elements = x if origin == PACKED else self.block(x, origin)[mask]
        if goal == PACKED:
            put(elements, out)
            return
        block = self.block(out, goal)
        combined = block[mask]
        put(elements, combined)
        block[mask] = combined


class Message:
    """What travels from one rank to another: copies between the sender's array, the message and the receiver's.

    Args:
        peer: the rank at the other end; the rank itself for what stays.
        parts: moves between these two, each as a whole or as far as it belongs to a trapezoid.
        order: "F" or "C", of the elements of a part in the message.
    """

    __slots__ = ("_order", "_patches", "nelements", "peer")

    def __init__(self, peer: int, parts: Iterable[tuple[Move, Trapezoid | None]], order: Literal["F", "C"]) -> None:
        self.peer, self._order = peer, order
        self._patches = [_Patch(move, trapezoid) for move, trapezoid in parts]
        self.nelements = sum(patch.nelements for patch in self._patches)

    def block(self, x: Array, place: int) -> Array | None:
        """What travels as one block of consecutive rows and columns of x, which is the SOURCE or TARGET, if it is."""
        if len(self._patches) != 1 or not self._patches[0].is_block:
            return None
        return self._patches[0].block(x, place)

    def pack(self, x: Array, flat: Array) -> None:
        """Copy from the sender's array to the message, a 1-D array of `nelements`."""
        for patch, part in self._parts(flat):
            patch.copy(x, SOURCE, patch.packed(part, self._order), PACKED, COPY)

    def unpack(self, flat: Array, out: Array, put: Put) -> None:
        """Put the elements of the message to the receiver's array."""
        for patch, part in self._parts(flat):
            patch.copy(patch.packed(part, self._order), PACKED, out, TARGET, put)

    def bring(self, x: Array, out: Array, put: Put) -> None:
        """Put elements of the sender's array to the receiver's, without a message."""
        for patch in self._patches:
            patch.copy(x, SOURCE, out, TARGET, put)

    def _parts(self, flat: Array) -> Iterator[tuple[_Patch, Array]]:
        start = 0
        for patch in self._patches:
            yield patch, flat[start : start + patch.nelements]
            start += patch.nelements


def _is_by_columns(x: Array) -> bool:
    return abs(x.strides[0]) < abs(x.strides[1])


def _view(x: Array, rows: Comb, columns: Comb, place: int) -> Array:
    """The elements of x in the runs of two combs: 2-D for single runs, else runs x rows x runs x columns."""
    i, j = rows.starts[place], columns.starts[place]
    if rows.count == columns.count == 1:
        return x[i : i + rows.length, j : j + columns.length]
    down, across = x.strides
    return np.lib.stride_tricks.as_strided(
        x[i:, j:],
        (rows.count, rows.length, columns.count, columns.length),
        (rows.steps[place] * down, down, columns.steps[place] * across, across),
    )
