"""Strided runs: equal runs at equal distances, as in MPI_Type_vector. A cyclic layout has many runs, few strided runs.

A position is a triple: the index in the sender's array, in the packed message and in the receiver's array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from pblas.layouts.overlap import Run

SOURCE: Final = 0
PACKED: Final = 1
TARGET: Final = 2

Places = tuple[int, int, int]
"""Indices in the sender's array, in the packed message and in the receiver's array, or distances between them."""

_TOUCHING: Final = (1, 1, 1)
_Spaced = tuple[Places, int, Places]  # a run: (first position, length, distance from one element to the next)


@dataclass(frozen=True, slots=True)
class StridedRun:
    """`count` runs of `length` elements; `steps` from run to run, `strides` from element to element, both ends."""

    starts: Places
    steps: Places
    length: int
    count: int
    strides: Places = _TOUCHING

    @property
    def is_touching(self) -> bool:
        """Whether the elements of a run are consecutive at the sender and at the receiver."""
        return self.strides == _TOUCHING

    def runs(self) -> Iterator[StridedRun]:
        """The same elements as strided runs that each have one run."""
        for i in range(self.count):
            yield StridedRun(self._at(i, 0), (0, 0, 0), self.length, 1, self.strides)

    def lines(self, limit: int) -> Iterator[tuple[Places, Places, int]]:
        """The same elements as lines (first position, distance, count), each with at most `limit` elements.

        >>> list(StridedRun((0, 0, 0), (9, 2, 7), 2, 5).lines(4))[:2]
        [((0, 0, 0), (9, 2, 7), 4), ((36, 8, 28), (9, 2, 7), 1)]
        """
        along_runs = self.length >= self.count  # lines run along the longer of the two directions
        nlines, count = (self.count, self.length) if along_runs else (self.length, self.count)
        for line in range(nlines):
            for done in range(0, count, limit):
                starts = self._at(line, done) if along_runs else self._at(done, line)
                yield starts, self.strides if along_runs else self.steps, min(limit, count - done)

    def _at(self, i: int, l: int) -> Places:
        """The position of element l of run i."""
        return _moved(_moved(self.starts, self.steps, i), self.strides, l)


def strided_runs(runs: Sequence[Run]) -> list[StridedRun]:
    """The strided runs of one dimension of a message.

    Adjacent runs become one run. Equal runs at equal distances become one strided run.

    >>> strided_runs([(0, 3, 2), (2, 5, 2), (4, 7, 1)])
    [StridedRun(starts=(0, 0, 3), steps=(0, 0, 0), length=5, count=1, strides=(1, 1, 1))]

    >>> strided_runs([(0, 1, 1), (1, 4, 2), (5, 8, 2), (9, 12, 2), (13, 16, 1)])  # doctest: +NORMALIZE_WHITESPACE
    [StridedRun(starts=(0, 0, 1), steps=(0, 0, 0), length=1, count=1, strides=(1, 1, 1)),
     StridedRun(starts=(1, 1, 4), steps=(4, 2, 4), length=2, count=3, strides=(1, 1, 1)),
     StridedRun(starts=(13, 7, 16), steps=(0, 0, 0), length=1, count=1, strides=(1, 1, 1))]

    Single elements at equal distances become one run with a stride:

    >>> strided_runs([(0, 0, 1), (2, 1, 1), (4, 2, 1), (6, 6, 1), (8, 7, 1), (10, 8, 1)])
    [StridedRun(starts=(0, 0, 0), steps=(6, 3, 6), length=3, count=2, strides=(2, 1, 1))]
    """
    spaced = _spaced(_merged(runs))
    n = len(spaced)
    period, a, b = n, 0, n
    # The first and the last run may be short; the runs between them repeat.
    for first, last in ((0, n), (1, n), (0, n - 1), (1, n - 1)):
        if last - first > 1:
            period, a, b = _period(spaced[first:last]), first, last
        if 2 * period <= b - a:
            break
    result = []
    for i, (starts, length, strides) in enumerate(spaced):
        count = len(range(i, b, period)) if a <= i < b else 1
        if a <= i < b and i >= a + period:
            continue
        after = spaced[i + period][0] if count > 1 else starts
        result.append(StridedRun(starts, _distance(starts, after), length, count, strides))
    return result


def _merged(runs: Sequence[Run]) -> Sequence[Run]:
    """The runs, with those joined that are adjacent on both ranks (they need not be adjacent in the matrix)."""
    merged: list[Run] = []
    for source, target, length in runs:
        if merged and (merged[-1][0] + merged[-1][2], merged[-1][1] + merged[-1][2]) == (source, target):
            merged[-1] = (*merged[-1][:2], merged[-1][2] + length)
        else:
            merged.append((source, target, length))
    return merged


def _spaced(runs: Sequence[Run]) -> list[_Spaced]:
    """The runs with their positions in the packed message; single elements at equal distances become one run."""
    spaced: list[_Spaced] = []
    packed = 0
    for source, target, length in runs:
        starts = source, packed, target
        if spaced and length == 1:
            first, so_far, strides = spaced[-1]
            if so_far == 1:
                spaced[-1] = first, 2, _distance(first, starts)
            elif strides != _TOUCHING and starts == _moved(first, strides, so_far):
                spaced[-1] = first, so_far + 1, strides
            else:
                spaced.append((starts, 1, _TOUCHING))
        else:
            spaced.append((starts, length, _TOUCHING))
        packed += length
    return spaced


def _moved(start: Places, step: Places, times: int) -> Places:
    """The position `times` steps after `start`."""
    return start[0] + times * step[0], start[1] + times * step[1], start[2] + times * step[2]


def _distance(first: Places, second: Places) -> Places:
    """The distance from one position to another."""
    return second[0] - first[0], second[1] - first[1], second[2] - first[2]


def _period(runs: Sequence[_Spaced]) -> int:
    """The least period p: runs p apart have the same length and strides, and the same distance to their next run.

    Source: Knuth, Morris, Pratt (1977): the failure function gives the least period of a sequence.
    """
    steps = [(length, strides, _distance(starts, after)) for (starts, length, strides), (after, *_) in pairwise(runs)]
    borders = [0] * len(steps)
    border = 0
    for i in range(1, len(steps)):
        while border and steps[i] != steps[border]:
            border = borders[border - 1]
        border += steps[i] == steps[border]
        borders[i] = border
    period = len(steps) - borders[-1]
    return period if runs[-1 - period][1:] == runs[-1][1:] else len(runs)
