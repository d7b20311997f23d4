"""Arrays of any shape and strides as the sequence of their elements in C order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array


class Flat:
    """The elements of an array in C order, numbered from `base`.

    Args:
        x: of any strides (local).
        base: number of its first element.

    >>> Flat(np.arange(6).reshape(2, 3).T, 10).get(11, 14).tolist()
    [3, 1, 4]
    """

    __slots__ = ("base", "line", "x")

    def __init__(self, x: Array, base: int = 0) -> None:
        self.x: Array = x
        self.base: int = base
        self.line: Array | None = x.reshape(-1) if x.flags.c_contiguous and x.flags.aligned else None
        """The same memory as an array of one dimension, if it can be one."""

    def get(self, a: int, b: int) -> Array:
        """Elements a..b-1, tight: a view if they are contiguous, otherwise a copy."""
        if self.line is not None:
            return self.line[a - self.base : b - self.base]
        copy = np.empty(b - a, self.x.dtype)
        self.read(a, b, copy)
        return copy

    def read(self, a: int, b: int, target: Array) -> None:
        """Target := elements a..b-1."""
        if self.line is not None:
            target[...] = self.get(a, b)
            return
        for part, piece in self._pairs(a, b, target):
            piece[...] = part

    def write(self, a: int, b: int, source: Array) -> None:
        """Elements a..b-1 := source."""
        if self.line is not None:
            self.get(a, b)[...] = source
            return
        for part, piece in self._pairs(a, b, source):
            part[...] = piece

    def _pairs(self, a: int, b: int, tight: Array) -> Iterator[tuple[Array, Array]]:
        """Views of the array, each with the corresponding view of a tight array."""
        start = 0
        for view in spans(self.x, a - self.base, b - self.base):
            yield view, tight[start : start + view.size].reshape(view.shape)
            start += view.size


def spans(x: Array, a: int, b: int) -> Iterator[Array]:
    """Views of x that hold its elements a..b-1 in C order, one after the other; at most two for each dimension.

    >>> [view.tolist() for view in spans(np.arange(9).reshape(3, 3), 2, 8)]
    [[2], [[3, 4, 5]], [6, 7]]
    """
    if a >= b:
        return
    if x.ndim <= 1:
        yield x.reshape(1) if x.ndim == 0 else x[a:b]
        return
    row = math.prod(x.shape[1:])
    first, last = -(-a // row), b // row
    if first > last:  # inside one row
        yield from spans(x[last], a - last * row, b - last * row)
        return
    if a < first * row:
        yield from spans(x[first - 1], a - (first - 1) * row, row)
    if first < last:
        yield x[first:last]
    if last * row < b:
        yield from spans(x[last], 0, b - last * row)
