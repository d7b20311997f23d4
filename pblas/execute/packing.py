"""Copies between blocks of local arrays and packed messages, by strided views over regular runs.

A cyclic layout puts a message in many places, but at regular distances: equal runs one period apart are one strided
view, so that the number of copies depends on the layouts and not on the size of the matrix.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from pblas.backends.gemm import accumulator_dtype

if TYPE_CHECKING:
    from pblas.backends.gemm import Array
    from pblas.layouts.moves import Move
    from pblas.layouts.overlap import Run
    from pblas.layouts.trapezoid import Trapezoid

Put = Callable[["Array", "Array"], None]
"""put(x, out): bring the elements of x to those of out, of one shape and any number of dimensions."""

SOURCE: Final = 0
PACKED: Final = 1
TARGET: Final = 2
"""Where the elements of a message are: in the sender's array, in the message, in the receiver's array."""

_TILE = 64
"""Lines of a transposing copy that are under way together: their cache lines stay in the first cache."""


@dataclass(frozen=True, slots=True)
class Comb:
    """`count` runs of `length` elements, each one step after the last.

    Args:
        starts: of the first run in the source, in the message, in the target.
        steps: from one run to the next, in each of them.
        length: elements of a run.
        count: runs.
    """

    starts: tuple[int, int, int]
    steps: tuple[int, int, int]
    length: int
    count: int

    def tiles(self) -> Iterator[Comb]:
        """The same elements as single runs of at most 64 elements."""
        for i in range(self.count):
            for done in range(0, self.length, _TILE):
                s, k, t = (start + i * step + done for start, step in zip(self.starts, self.steps, strict=True))
                yield Comb((s, k, t), (0, 0, 0), min(_TILE, self.length - done), 1)


def combs(runs: Sequence[Run]) -> list[Comb]:
    """The runs of one dimension of a message, equal ones at equal distances taken together.

    Args:
        runs: (start in the source, start in the target, length), ascending.

    >>> combs([(0, 1, 1), (1, 4, 2), (5, 8, 2), (9, 12, 2), (13, 16, 1)])  # doctest: +NORMALIZE_WHITESPACE
    [Comb(starts=(0, 0, 1), steps=(0, 0, 0), length=1, count=1),
     Comb(starts=(1, 1, 4), steps=(4, 2, 4), length=2, count=3),
     Comb(starts=(13, 7, 16), steps=(0, 0, 0), length=1, count=1)]
    """
    packed, places = 0, []
    for source, target, length in runs:
        places.append(((source, packed, target), length))
        packed += length
    n = len(places)
    # The first and the last run may be short; what lies between them repeats.
    regions = [(a, b) for a in (0, 1) for b in (n, n - 1) if b - a > 1]
    found = [(_period(runs[a:b]), a, b) for a, b in regions]
    period, a, b = min(found, key=lambda each: each[0] + n - (each[2] - each[1]), default=(n, 0, 0))
    result = []
    for i, (starts, length) in enumerate(places):
        if a <= i < b:
            if i >= a + period:
                continue
            following = range(i, b, period)
            if len(following) > 1:
                after = places[i + period][0]
                steps = (after[0] - starts[0], after[1] - starts[1], after[2] - starts[2])
                result.append(Comb(starts, steps, length, len(following)))
                continue
        result.append(Comb(starts, (0, 0, 0), length, 1))
    return result


def _period(runs: Sequence[Run]) -> int:
    """The least p such that each run and the p-th after it have one length, and their followers one distance.

    Source: Knuth, Morris, Pratt (1977): the failure function tells the least period.
    """
    steps = [
        (length, after[0] - source, after[1] - target) for (source, target, length), after in itertools.pairwise(runs)
    ]
    borders = [0] * len(steps)
    border = 0
    for i in range(1, len(steps)):
        while border and steps[i] != steps[border]:
            border = borders[border - 1]
        border += steps[i] == steps[border]
        borders[i] = border
    period = len(steps) - borders[-1]
    return period if runs[-1 - period][2] == runs[-1][2] else len(runs)


class _Patch:
    """A product of runs of rows and columns, or what a trapezoid leaves of one block, in a message."""

    __slots__ = ("_columns", "_rows", "_shape", "_trapezoid", "nelements")

    def __init__(self, move: Move, trapezoid: Trapezoid | None) -> None:
        self._rows, self._columns, self._trapezoid = combs(move.rows), combs(move.columns), trapezoid
        self._shape = m, n = move.shape
        self.nelements = m * n if trapezoid is None else trapezoid.count(0, m, 0, n)

    @property
    def is_block(self) -> bool:
        """Whether it is one whole block of consecutive rows and columns at both ends."""
        single = all(len(found) == 1 and found[0].count == 1 for found in (self._rows, self._columns))
        return single and self._trapezoid is None

    def block(self, x: Array, place: int) -> Array:
        """Its elements in x, if it is a block or a part of one."""
        return _view(x, self._rows[0], self._columns[0], place)

    def packed(self, flat: Array, order: Literal["F", "C"]) -> Array:
        """A part of a message as `copy` takes it: a matrix, or of a trapezoid its elements one after the other."""
        return flat if self._trapezoid is not None else flat.reshape(self._shape, order=order)

    def copy(self, x: Array, origin: int, out: Array, goal: int, put: Put) -> None:
        """Put its elements from x to out, each of them a SOURCE, PACKED or TARGET."""
        if self._trapezoid is not None:
            self._copy_masked(self._trapezoid, x, origin, out, goal, put)
            return
        rows: Iterable[Comb] = self._rows
        if _is_by_columns(x) != _is_by_columns(out):
            rows = [tile for comb in self._rows for tile in comb.tiles()]
        for comb in rows:
            for other in self._columns:
                put(_view(x, comb, other, origin), _view(out, comb, other, goal))

    def _copy_masked(self, trapezoid: Trapezoid, x: Array, origin: int, out: Array, goal: int, put: Put) -> None:
        upper, k = trapezoid.uplo == "U", trapezoid.diagonal
        mask = ~np.tri(*self._shape, k - 1, bool) if upper else np.tri(*self._shape, k, bool)
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


@dataclass(frozen=True, slots=True)
class Combination:
    """out := alpha conj?(x) + beta out, elementwise; x is not read when alpha is 0, out not when beta is 0.

    16-bit elements are combined in 32 bits and rounded once.

    Args:
        alpha: scalar (global).
        beta: scalar (global).
        conj: conjugate x (global).
    """

    alpha: complex = 1.0
    beta: complex = 0.0
    conj: bool = False

    def __call__(self, x: Array, out: Array) -> None:
        """Apply it to two arrays of one shape and dtype (local)."""
        alpha, beta, wide = self.alpha, self.beta, accumulator_dtype(out.dtype)
        if self.conj and alpha != 0:
            x = np.conjugate(x)
        if alpha == 0 and beta == 0:
            out[...] = 0
        elif alpha == 1 and beta == 0:
            out[...] = x
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


COPY = Combination()
