"""Copies between blocks of local arrays and packed messages, by strided views over regular runs.

A cyclic layout puts a message in many places, but at regular distances: equal runs one period apart are one strided
view, so that the number of copies depends on the layouts and not on the size of the matrix.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pblas.backends.gemm import accumulator_dtype

if TYPE_CHECKING:
    from pblas.backends.gemm import Array
    from pblas.layouts.moves import Move
    from pblas.layouts.overlap import Run

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


class Message:
    """A move with its runs as combs: copies between any two of the sender's array, the message and the receiver's.

    Args:
        move: what travels (local).
    """

    __slots__ = ("_columns", "_rows", "peer", "shape")

    def __init__(self, move: Move) -> None:
        self.peer, self.shape = move.peer, move.shape
        self._rows, self._columns = combs(move.rows), combs(move.columns)

    @property
    def is_block(self) -> bool:
        """Whether the message is one block of consecutive rows and columns at both ends."""
        return all(len(found) == 1 and found[0].count == 1 for found in (self._rows, self._columns))

    def block(self, x: Array, place: int) -> Array:
        """The block of x that travels, if it is one."""
        return _view(x, self._rows[0], self._columns[0], place)

    def copy(self, x: Array, origin: int, out: Array, goal: int, put: Put) -> None:
        """Put the elements of the message from x to out.

        Args:
            x: where they are, m x n (local).
            origin: which of the three x is: SOURCE, PACKED or TARGET.
            out: where they go, m x n (local).
            goal: which of the three out is.
            put: how: a `Combination`, or anything like it.
        """
        rows: Iterable[Comb] = self._rows
        if (abs(x.strides[0]) < abs(x.strides[1])) != (abs(out.strides[0]) < abs(out.strides[1])):
            rows = [tile for comb in self._rows for tile in comb.tiles()]
        for comb in rows:
            for other in self._columns:
                put(_view(x, comb, other, origin), _view(out, comb, other, goal))


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
