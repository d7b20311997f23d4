"""Copies between blocks of local arrays and packed messages.

A cyclic layout scatters a message, but at regular distances. Equal runs one period apart form one strided view, so
that the number of copies depends on the layouts and not on the size of the matrix.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pblas.backends.dtypes import strided
from pblas.layouts.strided import PACKED, SOURCE, TARGET, strided_runs
from pblas.redistribution.indexed import Indexed
from pblas.redistribution.scaling import COPY

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.layouts.messages import Move
    from pblas.layouts.overlap import Run
    from pblas.layouts.strided import StridedRun
    from pblas.layouts.trapezoid import Trapezoid
    from pblas.redistribution.scaling import Put

    KnownRuns = dict[tuple[Run, ...], list[StridedRun]]
    _Views = tuple[Sequence[StridedRun], Sequence[StridedRun]]

# Nanoseconds, measured on one core of an AMD EPYC with float64; they decide between views and indices.
_PER_VIEW, _PER_STRIDED_VIEW, _PER_RUN, _PER_ELEMENT = 1500, 13000, 14.0, 0.5
_PER_LINE, _PER_INDEXED, _PER_INDEXED_ACROSS = 4000, 3.0, 6.0

# A transposing copy uses tiles of this many rows and columns; rows are contiguous in the result. Each tile is first
# copied without a transposition, to lines a little longer than the tile's: at distances of a power of two the lines
# would evict each other from the first-level cache.
_TILE, _APART = (256, 128), 8

_TOGETHER = 32768
"""Elements copied before the next columns: they, and temporaries of a combination, stay in cache."""


class BlockCopy:
    """Copies of one part of a message: a product of runs of rows and columns, or a trapezoid's part of a block."""

    __slots__ = ("_columns", "_mask", "_methods", "_rows", "_shape", "nelements")

    def __init__(self, move: Move, trapezoid: Trapezoid | None, known: KnownRuns) -> None:
        self._rows, self._columns = known_strided_runs(move.rows, known), known_strided_runs(move.columns, known)
        self._shape = m, n = move.shape
        self._methods: dict[tuple[bool, bool], _Views | Indexed] = {}
        self._mask: Array | None = None
        if trapezoid is not None:
            upper, k = trapezoid.uplo == "U", trapezoid.diagonal
            self._mask = ~np.tri(m, n, k - 1, np.bool_) if upper else np.tri(m, n, k, np.bool_)
        self.nelements: int = m * n if trapezoid is None else trapezoid.count(0, m, 0, n)

    @property
    def is_block(self) -> bool:
        """Whether it is one whole block of consecutive rows and columns at both ends."""
        sides = (self._rows, self._columns)
        single = all(len(runs) == 1 and runs[0].count == 1 and runs[0].is_touching for runs in sides)
        return single and self._mask is None

    def block(self, x: Array, place: int) -> Array:
        """Its elements in x, if they form a block or a part of one."""
        return _view(x, self._rows[0], self._columns[0], place)

    def packed(self, flat: Array, order: Literal["F", "C"]) -> Array:
        """A part of a message in the shape that `copy` takes: a matrix, or 1-D for a trapezoid."""
        return flat if self._mask is not None else flat.reshape(self._shape, order=order)

    def copy(self, x: Array, origin: int, out: Array, goal: int, put: Put) -> None:
        """Put the elements of the message from x to out."""
        if self._mask is not None:
            self._copy_masked(self._mask, x, origin, out, goal, put)
            return
        if _is_by_columns(out):
            rows, columns = self._rows, self._columns
        else:
            x, out, rows, columns = x.T, out.T, self._columns, self._rows
        key = rows is self._rows, _is_by_columns(x)
        if key not in self._methods:
            self._methods[key] = _fastest_method(rows, columns, transposed=not key[1])
        method = self._methods[key]
        if isinstance(method, Indexed):
            method.copy(x, origin, out, goal, put)
        elif key[1]:
            _copy_by_views(method, x, origin, out, goal, put)
        else:
            _copy_by_tiles(method, x, origin, out, goal, put)

    def _copy_masked(self, mask: Array, x: Array, origin: int, out: Array, goal: int, put: Put) -> None:
        elements = x if origin == PACKED else self.block(x, origin)[mask]
        if goal == PACKED:
            put(elements, out)
            return
        block = self.block(out, goal)
        combined = block[mask]
        put(elements, combined)
        block[mask] = combined


def _fastest_method(rows: Sequence[StridedRun], columns: Sequence[StridedRun], *, transposed: bool) -> _Views | Indexed:
    """The fastest copy: by views of single runs, by views of strided runs, or by indices."""
    many_rows, many_columns = ([single for run in side for single in run.runs()] for side in (rows, columns))
    plain = sum(run.count == 1 for run in rows) * sum(run.count == 1 for run in columns)
    by_runs = _PER_VIEW * len(many_rows) * len(many_columns)
    by_strided_runs = _PER_VIEW * plain + _PER_STRIDED_VIEW * (len(rows) * len(columns) - plain)
    m, n = (sum(run.length * run.count for run in side) for side in (rows, columns))
    lines = sum(min(run.length, run.count) for run in columns)
    by_index = _PER_LINE * lines + m * n * (_PER_INDEXED_ACROSS if transposed else _PER_INDEXED)
    if by_index < min(by_runs, by_strided_runs) + _PER_RUN * len(many_rows) * n + _PER_ELEMENT * m * n:
        return Indexed(rows, columns)
    return (many_rows, many_columns) if by_runs <= by_strided_runs else (rows, columns)


def _copy_by_views(views: _Views, x: Array, origin: int, out: Array, goal: int, put: Put) -> None:
    """Copy some columns of all strided runs of rows, then the next columns, in the order of memory."""
    rows, columns = views
    together = max(1, _TOGETHER // sum(row_run.length * row_run.count for row_run in rows))
    for column_run in columns:
        strided = column_run.count > 1
        pairs = [(_view(x, row_run, column_run, origin), _view(out, row_run, column_run, goal)) for row_run in rows]
        for part in _parts(column_run, together, strided=strided):
            chosen: Any = (..., *part)
            for piece, place in pairs:
                put(piece[chosen], place[chosen])


def _copy_by_tiles(views: _Views, x: Array, origin: int, out: Array, goal: int, put: Put) -> None:
    """A transposing copy by tiles. Each tile is first copied as it is to a small array, then transposed from there."""
    high, wide = _TILE
    memory = np.empty((high, wide + _APART), x.dtype)
    for column_run, row_run in itertools.product(*reversed(views)):
        piece, place = _view(x, row_run, column_run, origin), _view(out, row_run, column_run, goal)
        strided, half = piece.ndim == 4, piece.ndim // 2
        tiles = _parts(column_run, wide, strided=strided), _parts(row_run, high, strided=strided)
        for j, i in itertools.product(*tiles):
            part = piece[(*i, *j)]
            tile = memory[: math.prod(part.shape[:half]), : math.prod(part.shape[half:])].reshape(part.shape)
            tile[...] = part
            put(tile, place[(*i, *j)])


def _parts(run: StridedRun, limit: int, *, strided: bool) -> list[tuple[slice, ...]]:
    """Slices of one dimension of a view, of about `limit` elements each: (runs, elements), or (elements,)."""
    if run.count > 1 and run.length < limit:
        step = limit // run.length
        return [(slice(i, i + step), slice(None)) for i in range(0, run.count, step)]
    elements = [slice(l, l + limit) for l in range(0, run.length, limit)]
    if not strided:
        return [(part,) for part in elements]
    return [(slice(i, i + 1), part) for i in range(run.count) for part in elements]


class Message:
    """A message between two ranks: copies between the sender's array, the message and the receiver's array.

    Args:
        peer: the other rank, or the rank itself for elements that stay.
        parts: moves between the two ranks, each whole or restricted to a trapezoid.
        order: "F" or "C", of the elements of a part in the message.
        known: cache of strided runs, shared with other messages.
        block_type: class that copies each part; None for `BlockCopy`.
    """

    __slots__ = ("_blocks", "_order", "nelements", "peer")

    def __init__(
        self,
        peer: int,
        parts: Iterable[tuple[Move, Trapezoid | None]],
        order: Literal["F", "C"],
        known: KnownRuns,
        block_type: Callable[..., BlockCopy] | None = None,
    ) -> None:
        self.peer: int = peer
        self._order = order
        self._blocks = [(block_type or BlockCopy)(move, trapezoid, known) for move, trapezoid in parts]
        self.nelements: int = sum(block.nelements for block in self._blocks)

    def block(self, x: Array, place: int) -> Array | None:
        """The message as one block of consecutive rows and columns of x (SOURCE or TARGET); None if it is several."""
        if len(self._blocks) != 1 or not self._blocks[0].is_block:
            return None
        return self._blocks[0].block(x, place)

    def pack(self, x: Array, flat: Array) -> None:
        """Copy from the sender's array to the message, a 1-D array of `nelements`."""
        for block, part in self._parts(flat):
            block.copy(x, SOURCE, block.packed(part, self._order), PACKED, COPY)

    def unpack(self, flat: Array, out: Array, put: Put) -> None:
        """Put the elements of the message to the receiver's array."""
        for block, part in self._parts(flat):
            block.copy(block.packed(part, self._order), PACKED, out, TARGET, put)

    def bring(self, x: Array, out: Array, put: Put) -> None:
        """Put elements of the sender's array to the receiver's, without a message."""
        for block in self._blocks:
            block.copy(x, SOURCE, out, TARGET, put)

    def _parts(self, flat: Array) -> Iterator[tuple[BlockCopy, Array]]:
        start = 0
        for block in self._blocks:
            yield block, flat[start : start + block.nelements]
            start += block.nelements


def known_strided_runs(runs: tuple[Run, ...], known: KnownRuns) -> list[StridedRun]:
    """The strided runs of some runs, cached."""
    if runs not in known:
        known[runs] = strided_runs(runs)
    return known[runs]


def _is_by_columns(x: Array) -> bool:
    return abs(x.strides[0]) < abs(x.strides[1])


def _view(x: Array, rows: StridedRun, columns: StridedRun, place: int) -> Array:
    """The elements of x in two strided runs: 2-D for single runs, otherwise runs x rows x runs x columns."""
    (i, j), (down, across) = (rows.starts[place], columns.starts[place]), x.strides
    if rows.count == columns.count == 1 and rows.is_touching and columns.is_touching:
        return x[i : i + rows.length, j : j + columns.length]
    return strided(
        x[i:, j:],
        (rows.count, rows.length, columns.count, columns.length),
        (
            *(rows.steps[place] * down, rows.strides[place] * down),
            *(columns.steps[place] * across, columns.strides[place] * across),
        ),
    )
