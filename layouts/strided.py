"""Runs at equal distances, taken together (as MPI_Type_vector): a cyclic layout has many runs, few strided runs."""

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
"""Positions in the sender's array, in the message, in the receiver's array."""

_TOUCHING: Final = (1, 1, 1)
_Spaced = tuple[Places, int, Places]
"""(starts, length, strides) of a run."""


@dataclass(frozen=True, slots=True)
class StridedRun:
    """`count` runs of `length` elements, each one step after the last.

    Args:
        starts: of the first run (local).
        steps: from one run to the next (local).
        length: elements of a run.
        count: runs.
        strides: from one element of a run to the next (local).
    """

    starts: Places
    steps: Places
    length: int
    count: int
    strides: Places = _TOUCHING

    @property
    def is_touching(self) -> bool:
        """Whether the elements of a run are consecutive at both ends."""
        return self.strides == _TOUCHING

    def runs(self) -> Iterator[StridedRun]:
        """The same elements as strided runs of one run each."""
        for i in range(self.count):
            yield StridedRun(self._at(i, 0), (0, 0, 0), self.length, 1, self.strides)

    def lines(self, limit: int) -> Iterator[tuple[Places, Places, int]]:
        """The same elements as (starts, steps, count) of elements at equal distances, at most `limit` together.

        >>> list(StridedRun((0, 0, 0), (9, 2, 7), 2, 5).lines(4))[:2]
        [((0, 0, 0), (9, 2, 7), 4), ((36, 8, 28), (9, 2, 7), 1)]
        """
        along = self.length >= self.count
        others, count = (self.count, self.length) if along else (self.length, self.count)
        for other in range(others):
            for done in range(0, count, limit):
                starts = self._at(other, done) if along else self._at(done, other)
                yield starts, self.strides if along else self.steps, min(limit, count - done)

    def _at(self, i: int, l: int) -> Places:
        """Element l of run i."""
        return _moved(_moved(self.starts, self.steps, i), self.strides, l)


def strided_runs(runs: Sequence[Run]) -> list[StridedRun]:
    """The runs of one dimension of a message: those that touch are one, equal ones at equal distances taken together.

    Args:
        runs: (start in the source, start in the target, length), ascending.

    >>> strided_runs([(0, 3, 2), (2, 5, 2), (4, 7, 1)])
    [StridedRun(starts=(0, 0, 3), steps=(0, 0, 0), length=5, count=1, strides=(1, 1, 1))]

    >>> strided_runs([(0, 1, 1), (1, 4, 2), (5, 8, 2), (9, 12, 2), (13, 16, 1)])  # doctest: +NORMALIZE_WHITESPACE
    [StridedRun(starts=(0, 0, 1), steps=(0, 0, 0), length=1, count=1, strides=(1, 1, 1)),
     StridedRun(starts=(1, 1, 4), steps=(4, 2, 4), length=2, count=3, strides=(1, 1, 1)),
     StridedRun(starts=(13, 7, 16), steps=(0, 0, 0), length=1, count=1, strides=(1, 1, 1))]

    Single elements at equal distances are a run whose elements do not touch:

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
    """Blocks that are neighbours on both ranks, though they are not in the matrix, as one run."""
    merged: list[Run] = []
    for source, target, length in runs:
        if merged and (merged[-1][0] + merged[-1][2], merged[-1][1] + merged[-1][2]) == (source, target):
            merged[-1] = (*merged[-1][:2], merged[-1][2] + length)
        else:
            merged.append((source, target, length))
    return merged


def _spaced(runs: Sequence[Run]) -> list[_Spaced]:
    """Each run with its place in the message; single elements at equal distances as one run."""
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
    return start[0] + times * step[0], start[1] + times * step[1], start[2] + times * step[2]


def _distance(first: Places, second: Places) -> Places:
    return second[0] - first[0], second[1] - first[1], second[2] - first[2]


def _period(runs: Sequence[_Spaced]) -> int:
    """The least p such that each run and the p-th after it have one form, and their followers one distance.

    Source: Knuth, Morris, Pratt (1977): the failure function tells the least period.
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
