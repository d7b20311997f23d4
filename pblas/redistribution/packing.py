"""Copies between blocks of local arrays and packed messages.

A cyclic layout scatters a message, but at regular distances. Equal runs one period apart form one strided view, so
that the number of copies depends on the layouts and not on the size of the matrix.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pblas.backends.dtypes import Array, Order, accumulator_dtype, strided
from pblas.layouts.overlap import Run
from pblas.layouts.strided import PACKED, SOURCE, TARGET, StridedRun, strided_runs

if TYPE_CHECKING:
    from pblas.layouts.messages import Move
    from pblas.layouts.trapezoid import Trapezoid

KnownRuns = dict[tuple[Run, ...], list[StridedRun]]
_Views = tuple[Sequence[StridedRun], Sequence[StridedRun]]
Put = Callable[[Array, Array], None]
"""A function put(x, out) that updates the elements of `out` by those of `x`, which has the same shape.

A `Scaling` is one: out := alpha conj?(x) + beta out. On GPUs every such function is a `Scaling`, because a kernel takes
its scalars as arguments.
"""


@dataclass(frozen=True, slots=True)
class Scaling:
    """out := alpha conj?(x) + beta out, elementwise, where conj?(x) is conj(x) if `conj` is set, else x.

    With alpha = 0 it does not read x; with beta = 0 it does not read out. If the elements of out have 16 bits, it
    computes in a 32-bit accumulator and rounds each result once.

    >>> out = np.array([1.0, np.nan]); Scaling(2.0)(np.array([3.0, 4.0]), out); out.tolist()
    [6.0, 8.0]
    """

    alpha: complex = 1.0  # scalar (global)
    beta: complex = 0.0  # scalar (global)
    conj: bool = False  # conjugate x (global)

    def __call__(self, x: Array, out: Array) -> None:
        """out := alpha conj?(x) + beta out (local)."""
        alpha, beta = self.alpha, self.beta
        if alpha == 1 and beta == 0:
            if self.conj:
                np.conjugate(x, out=out)
            else:
                out[...] = x
            return
        wide = accumulator_dtype(out.dtype)
        if self.conj and alpha != 0:
            x = np.conjugate(x)
        if alpha == 0 and beta == 0:
            out[...] = 0
        elif wide != out.dtype:
            total: Any = 0 if alpha == 0 else wide.type(alpha) * x.astype(wide)
            out[...] = total if beta == 0 else total + wide.type(beta) * out.astype(wide)
        elif beta == 0:
            np.multiply(x, wide.type(alpha), out=out)
        else:
            if beta != 1:
                np.multiply(out, wide.type(beta), out=out)
            if alpha != 0:
                np.add(out, x if alpha == 1 else x * wide.type(alpha), out=out)


COPY = Scaling()
ADD = Scaling(1.0, 1.0)


_INDEXED_TOGETHER: Final = 16384
"""Elements indexed at once: they, their indices and their sources stay in the second-level cache."""


class Indexed:
    """Copies all rows of a message in some columns at once: gathers by one index, scatters by another.

    Measured on two cores of an AMD EPYC: 1.7 ns for an element of 8 bytes, however short the runs are; a strided copy
    takes 0.5 ns and 10 ns more for every run.
    """

    __slots__ = ("_indices", "_lines", "_rows", "_width")

    def __init__(self, rows: Sequence[StridedRun], columns: Sequence[StridedRun]) -> None:
        sides = [np.concatenate([elements(run, side) for run in rows]) for side in range(3)]
        ascending = np.argsort(sides[1])  # the message's order
        self._rows = [side[ascending] for side in sides]
        self._width = max(1, _INDEXED_TOGETHER // len(ascending))
        self._lines = [line for run in columns for line in run.lines(self._width)]
        self._indices: dict[tuple[int, int, int], Array] = {}

    def copy(self, x: Array, origin: int, out: Array, goal: int, put: Put) -> None:
        """Put the elements from x to out; each array is a SOURCE, PACKED or TARGET, see `packing.Message`."""
        source, target = (flat(array) for array in (x, out))
        for starts, steps, count in self._lines:
            if origin == PACKED:
                values = _columns(x, starts[origin], steps[origin], count).reshape(-1)
            else:
                index = self._index(x, origin, steps[origin], count)
                values = source[starts[origin] * _across(x) :].take(index)
            if goal == PACKED:
                columns = _columns(out, starts[goal], steps[goal], count)
                put(values.reshape(columns.shape), columns)
                continue
            place, index = target[starts[goal] * _across(out) :], self._index(out, goal, steps[goal], count)
            if put != COPY:
                combined = place.take(index)
                put(values, combined)
                values = combined
            place[index] = values

    def _index(self, x: Array, side: int, step: int, count: int) -> Array:
        """Indices of the elements of `count` columns of x, relative to the first row of the first column."""
        down, across = x.strides[0] // x.itemsize, _across(x) * step
        index = self._indices.get((side, down, across))
        if index is None:
            columns = np.arange(self._width)[:, None] * across
            index = self._indices[side, down, across] = (self._rows[side] * down + columns).reshape(-1)
        return index[: count * len(self._rows[side])]


def _across(x: Array) -> int:
    """Elements from one column to the next."""
    return int(x.strides[1]) // int(x.itemsize)


def flat(x: Array) -> Array:
    """The memory from the first element of x to its last, in one dimension."""
    extent, size = 1, x.itemsize
    for length, stride in zip(x.shape, x.strides, strict=True):
        extent += (length - 1) * (stride // size)
    return strided(x, (extent,), (size,))


def _columns(x: Array, start: int, step: int, count: int) -> Array:
    """Columns of a message at equal distances, one after the other."""
    return x.T[start : start + (count - 1) * step + 1 : step]


def elements(run: StridedRun, side: int) -> Array:
    """Positions of the elements of a strided run."""
    starts = run.starts[side] + run.steps[side] * np.arange(run.count)
    positions: Any = starts[:, None] + run.strides[side] * np.arange(run.length)
    return positions.reshape(-1)


# Nanoseconds, measured on one core of an AMD EPYC with float64; they decide between views and indices.
_PER_VIEW, _PER_STRIDED_VIEW, _PER_RUN, _PER_ELEMENT = 1500, 13000, 14.0, 0.5
_PER_LINE, _PER_INDEXED, _PER_INDEXED_ACROSS = 4000, 3.0, 6.0

# A transposing copy uses tiles of this many rows and columns; rows are contiguous in the result. Each tile is first
# copied without a transposition, to lines a little longer than the tile's: at distances of a power of two the lines
# would evict each other from the first-level cache.
_TILE, _APART = (256, 128), 8

_TOGETHER = 32768  # elements copied before the next columns: they, and temporaries of a combination, stay in cache


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

    def packed(self, flat: Array, order: Order) -> Array:
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
    """A message between two ranks: copies between the sender's array, the message and the receiver's array."""

    __slots__ = ("_blocks", "_order", "nelements", "peer")

    def __init__(
        self,
        peer: int,
        parts: Iterable[tuple[Move, Trapezoid | None]],
        order: Order,
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
