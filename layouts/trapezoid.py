"""Triangles and trapezoids: the elements of a matrix on one side of a diagonal, as in p?tradd and p?trmr2d."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from pblas.layouts.messages import Move, receives
from pblas.layouts.overlap import Run
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split

SHORT = 64
"""Largest length of a run when a trapezoid cuts a message: each block is inside, outside, or across the diagonal."""


@dataclass(frozen=True, slots=True)
class Trapezoid:
    """The elements (i, j) with j - i >= diagonal (uplo "U") or j - i <= diagonal ("L"): numpy.triu and numpy.tril.

    >>> Trapezoid("U").count(0, 3, 0, 4), Trapezoid("L", -1).count(0, 3, 0, 4)
    (9, 3)
    >>> print(Trapezoid("U"), Trapezoid("L", -1), sep="; ")
    elements (i, j) with j - i >= 0 (upper triangle); elements (i, j) with j - i <= -1
    """

    uplo: Literal["U", "L"]
    diagonal: int = 0

    def __str__(self) -> str:
        name = {"U": " (upper triangle)", "L": " (lower triangle)"}[self.uplo] if self.diagonal == 0 else ""
        return f"elements (i, j) with j - i {'>=' if self.uplo == 'U' else '<='} {self.diagonal}{name}"

    @property
    def T(self) -> Trapezoid:
        """The trapezoid of the same elements in the transposed matrix."""
        return Trapezoid("L" if self.uplo == "U" else "U", -self.diagonal)

    def count(self, i0: int, i1: int, j0: int, j1: int) -> int:
        """Number of its elements in rows i0..i1-1 and columns j0..j1-1."""
        height, width = i1 - i0, j1 - j0
        if self.uplo == "L":
            return height * width - Trapezoid("U", self.diagonal + 1).count(i0, i1, j0, j1)
        # Column j has max(0, min(height, j - diagonal + 1 - i0)) elements: consecutive integers, clipped.
        first = j0 - self.diagonal - i0

        def up_to(t: int) -> int:
            """Elements of all columns whose clipped integer is at most t."""
            clipped = min(max(t, 0), height)
            return clipped * (clipped + 1) // 2 + max(t - height, 0) * height

        return up_to(first + width) - up_to(first)

    def shifted(self, i0: int, j0: int) -> Trapezoid:
        """The same elements with (i0, j0) as the origin.

        >>> Trapezoid("U").shifted(2, 3)
        Trapezoid(uplo='U', diagonal=-1)
        """
        return Trapezoid(self.uplo, self.diagonal + i0 - j0)

    def cut(
        self, move: Move, place: Placement, rank: int, side: int, longest: int = SHORT
    ) -> Iterator[tuple[Move, Trapezoid | None]]:
        """The moves wholly inside, with None; then blocks of a message across the diagonal, each with its trapezoid.

        >>> from pblas.layouts.descriptor import MatrixDescriptor
        >>> place = Placement.of(MatrixDescriptor.row_wise(6, 2, 2, mb=2))
        >>> list(Trapezoid("L").cut(Move(1, ((0, 0, 2), (2, 2, 2)), ((0, 0, 2),)), place, 0, 0))
        ... # doctest: +NORMALIZE_WHITESPACE
        [(Move(peer=1, rows=((2, 2, 2),), columns=((0, 0, 2),)), None),
         (Move(peer=1, rows=((0, 0, 2),), columns=((0, 0, 2),)), Trapezoid(uplo='L', diagonal=0))]
        """
        position = place.coordinates(rank)
        assert position is not None, "sender and receiver hold elements of the matrix"
        yield from self.cut_at(move, (place.rows, position[0]), (place.columns, position[1]), side, longest)

    def cut_at(
        self, move: Move, rows: tuple[Split, int], columns: tuple[Split, int], side: int, longest: int = SHORT
    ) -> Iterator[tuple[Move, Trapezoid | None]]:
        """`cut` for a local array with these splits and coordinates: the sender's (`side` 0), or the receiver's (1)."""
        whole, across = [], []
        short_rows, upper = _short(move.rows, side, *rows, longest), self.uplo == "U"
        for column, j0 in _short(move.columns, side, *columns, longest):
            inside = []
            for row, i0 in short_rows:
                least, most = j0 - i0 - row[2] + 1, j0 + column[2] - 1 - i0  # of j - i in the block
                if least >= self.diagonal if upper else most <= self.diagonal:
                    inside.append(row)
                elif most >= self.diagonal if upper else least <= self.diagonal:
                    across.append((Move(move.peer, (row,), (column,)), self.shifted(i0, j0)))
            if inside:
                whole.append((_joined(inside), column))
        for inside_rows, group in groupby(whole, key=lambda block: block[0]):
            yield Move(move.peer, inside_rows, _joined([column for _, column in group])), None
        yield from across

    def received_count(self, source: Placement, target: Placement, rank: int) -> int:
        """Number of its elements that `rank` receives from other ranks."""
        position, total = target.coordinates(rank), 0
        if position is None:
            return 0
        for move in receives(source, target, rank):
            if move.peer != rank:
                rows = _short(move.rows, 1, target.rows, position[0])
                columns = _short(move.columns, 1, target.columns, position[1])
                total += sum(self.count(i, i + row[2], j, j + column[2]) for row, i in rows for column, j in columns)
        return total


def _short(runs: Sequence[Run], side: int, split: Split, p: int, longest: int = SHORT) -> list[tuple[Run, int]]:
    """The runs with the global index of their first element, cut where that is not consecutive, and at `longest`."""
    parts = []
    for source, target, length in runs:
        done = 0
        while done < length:
            g = split.global_from_local((source, target)[side] + done, p)
            stop = split.n
            if split.nprocs > 1:  # a run may continue in this coordinate's next block, which is not adjacent
                first = split.nb if split.inb is None else split.inb
                stop = first if g < first else first + ((g - first) // split.nb + 1) * split.nb
            part = min(length - done, stop - g, longest - g % longest)
            parts.append(((source + done, target + done, part), g))
            done += part
    return parts


def _joined(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs, with those joined that are adjacent in both arrays."""
    joined: list[Run] = []
    for source, target, length in runs:
        if joined:
            first, start, so_far = joined[-1]
            if (first + so_far, start + so_far) == (source, target):
                joined[-1] = (first, start, so_far + length)
                continue
        joined.append((source, target, length))
    return tuple(joined)
