"""The plan of a redistribution: what will move, as a value; integers only, the same on every rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.moves import received_count, receives
from pblas.layouts.placement import Placement
from pblas.layouts.trapezoid import Trapezoid
from pblas.plan import ITEMSIZE, Transport

_ASK_ALL = 1024
"""Up to so many ranks the busiest is found by asking all."""


@dataclass(frozen=True, slots=True)
class Relayout:
    """B = alpha op(A) + beta B, for any two distributions of one matrix.

    Every rank receives what it needs and does not have, once, straight from a rank that has it.

    Args:
        a: distribution of A (global).
        b: distribution of B, of the shape of op(A) (global).
        dtype: name of the dtype of both (global).
        nprocs: ranks of the context (global).
        trans: "N", "T" or "C": op (global).
        trapezoid: the elements of B that are written; None for all (global).
        moves: false if alpha is 0, and A is not read (global).
        transport: how the ranks reach each other (global).

    >>> rows, columns = MatrixDescriptor.row_wise(8, 8, 4), MatrixDescriptor.column_wise(8, 8, 4)
    >>> Relayout(rows, columns, "float64", 4).received_nbytes(1)
    96
    >>> Relayout(rows, columns, "float64", 4, "T").received_nbytes(1)
    0
    """

    a: MatrixDescriptor
    b: MatrixDescriptor
    dtype: str
    nprocs: int
    trans: Literal["N", "T", "C"] = "N"
    trapezoid: Trapezoid | None = None
    moves: bool = True
    transport: Transport = "message"

    @property
    def source(self) -> Placement:
        """Where the elements of op(A) are."""
        place = Placement.of(self.a)
        return place if self.trans == "N" else place.T

    @property
    def target(self) -> Placement:
        """Where they go."""
        return Placement.of(self.b)

    def received_elements(self, rank: int) -> int:
        """Elements that `rank` receives from others, or reads in their memory."""
        if not self.moves:
            return 0
        if self.trapezoid is None:
            return received_count(self.source, self.target, rank)
        return self.trapezoid.received_count(self.source, self.target, rank)

    def received_nbytes(self, rank: int) -> int:
        """Bytes that `rank` receives."""
        return self.received_elements(rank) * ITEMSIZE[self.dtype]

    def messages(self, rank: int) -> int:
        """How many ranks `rank` receives from, or reads from; in a trapezoid at most."""
        if not self.moves:
            return 0
        return sum(move.peer != rank for move in receives(self.source, self.target, rank))

    @property
    def max_received_nbytes(self) -> int:
        """Bytes that the busiest rank receives; of more than 1024 ranks, that one of a few receives, unlike others."""
        return max(map(self.received_nbytes, self._ranks()))

    def _ranks(self) -> Iterable[int]:
        """All ranks that hold part of B; of many, those around the first block, the last and the ends of the grids."""
        target = self.target
        if target.span <= _ASK_ALL:
            return range(target.span)
        found = []
        for split in (target.rows, target.columns):
            last = split.src + max(split.nblocks - 1, 0)
            around = (0, split.src, split.src + 1, last - 1, last, last + 1, split.nprocs - 1)
            found.append({p % split.nprocs for p in around})
        return {target.rank(r, c, z) for r in found[0] for c in found[1] for z in {0, target.copies - 1}}

    @property
    def label(self) -> str:
        """The plan in a line, for titles."""
        (m, n), op = self.b.shape, "" if self.trans == "N" else f", trans={self.trans!r}"
        return f"Relayout, {m} x {n}, {self.dtype}, {self.nprocs} ranks{op}"

    def explain(self) -> str:
        """What will move and how: a few lines."""
        (m, n), received = self.b.shape, self.max_received_nbytes
        which = "all elements" if self.trapezoid is None else f"{self.trapezoid!r}"
        how = "nothing: no rank needs what another has"
        if received:
            how = {
                "window": "read in place in the node's shared memory",
                "push": "read in place in the node's shared memory",
                "mixed": "read in place within a node, messages between nodes",
                "message": "messages between those ranks that share elements",
            }[self.transport]
        lines = [
            f"Relayout: B = alpha op(A) + beta B, {m} x {n}, {self.dtype}, on {self.nprocs} ranks",
            f"  A          {_described(self.a)}, trans={self.trans!r}",
            f"  B          {_described(self.b)}, {which}",
            f"  moves      {how}",
            f"  received   {received:,} bytes per rank at most: what it needs and does not have",
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.explain()


def _described(desc: MatrixDescriptor) -> str:
    """A distribution in words."""
    grid = f"{desc.grid.nprow} x {desc.grid.npcol} grid"
    if desc.is_replicated:
        return f"{desc.m} x {desc.n}, whole on each rank of a {grid}"
    return f"{desc.m} x {desc.n} in blocks of {desc.mb} x {desc.nb} on a {grid}"
