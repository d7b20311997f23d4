"""Blocks of a workspace, one per rank, as matrices: offsets of lines, and intervals that form one matrix."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from pblas.matmul.push.schedules.builder import starts
from pblas.plans.partition import padded

if TYPE_CHECKING:
    from collections.abc import Iterator

    Order = Literal["F", "C"]


class Stack:
    """Consecutive tight blocks of memory, one per rank. If lines are contiguous, all blocks form one matrix.

    Args:
        counts: lines of each block (global).
        across: elements of a line (global).
        order: storage order in the plan's orientation (global).
        axis: direction of the lines: 1 for columns, 0 for rows (global).
        itemsize: bytes of an element (global).
    """

    def __init__(self, counts: list[int], across: int, order: Order, axis: Literal[0, 1], itemsize: int) -> None:
        self.first: list[int] = starts(counts)
        self.order = order
        self._across = across
        self._axis = axis
        self.slow: bool = (order == "F") == (axis == 1)
        self._line_nbytes = across * itemsize
        self.nbytes: int = padded(self.first[-1] * self._line_nbytes)

    def offset(self, start: int) -> int:
        """Bytes before a line; if lines are strided, before the first line of a block."""
        return start * self._line_nbytes

    def shape(self, lines: int) -> tuple[int, int]:
        """Rows and columns of some lines."""
        return (self._across, lines) if self._axis else (lines, self._across)

    def parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """An interval of lines as (start, stop, blocks): one matrix each, or equal blocks for one batch."""
        if self.slow:
            yield start, stop, 1
            return
        groups: list[tuple[int, int, int]] = []
        for a, b in pairwise(self.first):
            if max(a, start) < min(b, stop):
                assert start <= a, "a block of strided lines is used as a whole"
                assert b <= stop, "a block of strided lines is used as a whole"
                if groups and (groups[-1][1] - groups[-1][0]) // groups[-1][2] == b - a:
                    groups[-1] = (groups[-1][0], b, groups[-1][2] + 1)
                else:
                    groups.append((a, b, 1))
        yield from groups
