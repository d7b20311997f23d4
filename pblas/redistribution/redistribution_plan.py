"""The plan of a redistribution, as a value; integers only, the same on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from math import prod
from typing import ClassVar, Literal

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.messages import received_count, receives, sent_count
from pblas.layouts.placement import Placement
from pblas.layouts.trapezoid import Trapezoid
from pblas.plans.base import Plan
from pblas.simulation.hardware import Transport
from pblas.simulation.phase import Phase, Traffic, View

_COUNTED = 8192  # most columns of a trapezoid whose elements in messages are counted; of more, half of all are taken
_LINE = 64  # bytes of a cache line
_ON_A_GPU, _ON_GPUS = 9, 23
"""Steps of an executor that the hosts of one GPU, and of several, take for a redistribution, beside those of any call
(0.1 and 0.27 ms with these, at 10 us, H200)."""
_ASK_ALL = 1024  # largest number of ranks that are all examined to find the busiest


@dataclass(frozen=True, slots=True)
class RedistributionPlan(Plan):
    """B = alpha op(A) + beta B, for any two distributions of one matrix.

    Every rank receives the elements that it needs and does not have, each once and directly from a rank that has it.

    Args:
        a: distribution of A (global).
        b: distribution of B, of the shape of op(A) (global).
        trans: "N", "T" or "C": op (global).
        trapezoid: the elements of B that are written; None for all elements (global).
        reads_a: alpha is not 0; with alpha = 0 nothing moves (global).

    >>> rows, columns = MatrixDescriptor.row_wise(8, 8, 4), MatrixDescriptor.column_wise(8, 8, 4)
    >>> RedistributionPlan(rows, columns, "float64", 4).received_nbytes(1)
    96
    >>> RedistributionPlan(rows, columns, "float64", 4, "T").received_nbytes(1)
    0
    """

    name: ClassVar[str] = "RedistributionPlan"
    why: ClassVar[str] = "each rank receives only elements that it lacks, directly from a rank that has them"

    a: MatrixDescriptor
    b: MatrixDescriptor
    dtype: str
    nprocs: int
    trans: Literal["N", "T", "C"] = "N"
    trapezoid: Trapezoid | None = None
    reads_a: bool = True
    transport: Transport = "message"

    @property
    def source(self) -> Placement:
        """Placement of op(A)."""
        place = Placement.of(self.a)
        return place if self.trans == "N" else place.T

    @property
    def target(self) -> Placement:
        """Placement of B."""
        return Placement.of(self.b)

    def received_elements(self, rank: int) -> int:
        """Elements that `rank` receives from other ranks, or reads in their memory; nearly, of a large trapezoid."""
        if not self.reads_a:
            return 0
        if self.trapezoid is None:
            return received_count(self.source, self.target, rank)
        if self.b.n > _COUNTED:
            return -(-received_count(self.source, self.target, rank) // 2)
        return self.trapezoid.received_count(self.source, self.target, rank)

    def sent_elements(self, rank: int) -> int:
        return sent_count(self.source, self.target, rank) if self.reads_a else 0

    def phases(self, view: View) -> Iterator[Phase]:
        """One step without a GEMM; with a trapezoid the copies count all of B."""
        phase = moved(self.source, self.target, self.received_nbytes(view.rank), self.itemsize, view)
        if self.transport == "push":
            yield replace(phase, rounds=(0, 0, _ON_A_GPU if self.nprocs == 1 else _ON_GPUS))
            return
        copied = phase.copied
        if self.trapezoid is not None:  # B is 0 at first, and blocks across the diagonal are gathered
            copied *= 2
        if (self.trans == "N") != (self.a.order == self.b.order):  # each element is read from another cache line
            copied += (_LINE - self.itemsize) * prod(self.target.local_shape(view.rank))
        yield replace(phase, copied=copied)

    def operands_nbytes(self, rank: int) -> int:
        return self.itemsize * (prod(self.source.local_shape(rank)) + prod(self.target.local_shape(rank)))

    @property
    def lower_bound(self) -> float:
        # The elements that the busiest rank needs and lacks: any plan between these layouts moves as many.
        return max(map(self.received_elements, self.extreme_ranks()))

    @property
    def workspace_nbytes(self) -> int:
        """All messages of a rank, also those that it receives for its host, and a copy of A for peers."""
        if not self.lower_bound:
            return 0
        copied = self.source.rows.max_count * self.source.columns.max_count if self.transport != "message" else 0
        sent = 0
        if self.transport in ("message", "mixed"):
            whole = (
                2 if self.trapezoid is not None and self.b.n > _COUNTED else 1
            )  # received elements are half of these
            sent = max(whole * self.received_elements(rank) + self.sent_elements(rank) for rank in self.extreme_ranks())
        shared = 0
        if self.transport == "mixed" and self.source.copies == 1 < self.target.copies:
            shared = self.target.rows.max_count * self.target.columns.max_count
        return self.itemsize * (copied + sent + shared)

    def messages(self, rank: int) -> int:
        """Number of ranks from which `rank` receives or reads elements; an upper bound with a trapezoid."""
        if not self.reads_a:
            return 0
        return sum(move.peer != rank for move in receives(self.source, self.target, rank))

    def extreme_ranks(self) -> set[int]:
        """All ranks that hold elements of B; of many, those around the first block, the last and the grid's ends."""
        target = self.target
        if target.span <= _ASK_ALL:
            return set(range(target.span))
        coordinates = []
        for split in (target.rows, target.columns):
            last = split.src + max(split.nblocks - 1, 0)
            around = (0, split.src, split.src + 1, last - 1, last, last + 1, split.nprocs - 1)
            coordinates.append({p % split.nprocs for p in around})
        return {target.rank(r, c, z) for r in coordinates[0] for c in coordinates[1] for z in {0, target.copies - 1}}

    def moves(self) -> str:
        if not self.lower_bound:
            return "nothing: every rank has the elements that it needs"
        return {
            "shared": "read in place in the node's shared memory",
            "push": "read in place in the node's shared memory",
            "mixed": "read in place within a node, messages between nodes",
            "message": "messages between the ranks that share elements",
        }[self.transport]

    @property
    def sizes(self) -> str:
        m, n = self.b.shape
        return f"{m} x {n}{'' if self.trans == 'N' else f', trans={self.trans!r}'}"

    def title(self) -> str:
        return f"B = alpha op(A) + beta B, {self.b.m} x {self.b.n}"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        yield "A", f"{described(self.a)}, trans={self.trans!r}"
        elements = "all elements" if self.trapezoid is None else str(self.trapezoid)
        yield "B", f"{described(self.b)}; {elements} written"


@lru_cache(64)  # takes time in proportion to the messages
def moved(source: Placement, target: Placement, received: int, itemsize: int, view: View) -> Phase:
    """One step without a GEMM: `received` bytes arrive, spread over the messages by size, and the target is copied."""
    moves = [move for move in receives(source, target, view.rank) if move.peer != view.rank]
    ends = list(accumulate((prod(move.shape) for move in moves), initial=0))
    traffic = Traffic()
    for move, (start, stop) in zip(moves, pairwise(ends), strict=True):
        traffic += view.traffic(move.peer, received * stop // ends[-1] - received * start // ends[-1])
    return Phase(1, before=traffic, copied=2 * itemsize * prod(target.local_shape(view.rank)))


def described(desc: MatrixDescriptor) -> str:
    """A distribution in words."""
    grid = f"{desc.grid.nprow} x {desc.grid.npcol} grid"
    if desc.is_replicated:
        return f"{desc.m} x {desc.n}, replicated on each rank of a {grid}"
    return f"{desc.m} x {desc.n} in blocks of {desc.mb} x {desc.nb} on a {grid}"
