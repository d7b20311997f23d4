"""TriangularSolve, the base of plans of triangular solves: the operands, and the elements of the triangle.

T X = alpha B, where T is op(A), or op(A)^T if A stands on the right: X op(A) = alpha B is op(A)^T X^T = alpha B^T.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt, prod
from typing import Literal

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.messages import received_count, receives
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.layouts.trapezoid import Trapezoid
from pblas.plans.base import Plan
from pblas.redistribution.redistribution_plan import described
from pblas.simulation.hardware import Transport
from pblas.simulation.phase import Phase, Traffic, View

PANEL = 256
"""Default width of a panel: BLAS solves with a diagonal block of this order at 0.9 of the rate of a GEMM, and GEMMs of
this inner length run at their full rate."""
PANEL_ON_GPUS = 1024
"""The same on GPUs, which read and write the right-hand sides once for each panel."""
_ALL_RANKS = 32
"""Largest number of ranks that are all examined to find the busiest."""


@dataclass(frozen=True, slots=True)
class TriangularOperands:
    """The operands of X := alpha op(A)^-1 B (side "L") or X := alpha B op(A)^-1 (side "R"), as the user gives them.

    Args:
        a: distribution of A, n x n (global).
        b: distribution of B, m x n or n x m (global).
        x: distribution of X, of the shape of B (global).
        side: "L" or "R", where op(A) stands (global).
        uplo: "L" or "U", the triangle of A that is read (global).
        trans: "N", "T" or "C": op (global).
        unit: whether the diagonal of A is taken as ones, and not read (global).
    """

    a: MatrixDescriptor
    b: MatrixDescriptor
    x: MatrixDescriptor
    side: Literal["L", "R"] = "L"
    uplo: Literal["L", "U"] = "L"
    trans: Literal["N", "T", "C"] = "N"
    unit: bool = False

    @property
    def is_turned(self) -> bool:
        """Whether T is stored as its transpose: op(A) is transposed, or A stands on the right, but not both."""
        return (self.trans != "N") != (self.side == "R")

    @property
    def lower(self) -> bool:
        """Whether T is lower triangular, so that X is computed from its first row on."""
        return (self.uplo == "L") != self.is_turned

    @property
    def triangle(self) -> Placement:
        """The placement of T."""
        place = Placement.of(self.a)
        return place.T if self.is_turned else place

    @property
    def right(self) -> Placement:
        """The placement of the right-hand sides as columns: of B, or of B^T if A stands on the right."""
        return self._columns(self.b)

    @property
    def result(self) -> Placement:
        """The placement of the solutions as columns: of X, or of X^T."""
        return self._columns(self.x)

    def _columns(self, desc: MatrixDescriptor) -> Placement:
        place = Placement.of(desc)
        return place if self.side == "L" else place.T


@dataclass(frozen=True, slots=True)
class TriangularSolve(Plan):
    """X := alpha op(A)^-1 B or alpha B op(A)^-1: the fields of all plans.

    Args:
        operands: the operands (global).
        reads: alpha is not 0, and X has elements; else nothing is read or moves (global).
        width: largest width of a panel (global).
    """

    operands: TriangularOperands
    dtype: str
    nprocs: int
    reads: bool = True
    width: int = PANEL
    transport: Transport = "message"

    @property
    def order(self) -> int:
        """Rows of T."""
        return self.operands.right.rows.n

    @property
    def shape_of_t(self) -> Trapezoid:
        """The elements of T that are read; with a unit diagonal those of the diagonal travel too, and are not read."""
        return Trapezoid("L" if self.operands.lower else "U")

    def own_elements(self, rank: int) -> int:
        """Elements of the triangle that `rank` holds."""
        return _own_elements(self.operands.triangle, self.shape_of_t, rank)

    @property
    def flops(self) -> int:
        """Real additions and multiplications, summed over all ranks: n^2 for each right-hand side."""
        n, nrhs = self.operands.right.shape
        return n * n * nrhs * (4 if self.dtype.startswith("complex") else 1) if self.reads else 0

    @property
    def lower_bound(self) -> float:
        """Lower bound on the elements that the busiest rank receives, under any plan.

        A rank that multiplies F elements touches a elements of T and s of X with a s^2 >= F^2 (Loomis, Whitney, 1949).
        It has received those that it does not hold.
        """
        n, nrhs = self.operands.right.shape
        triangle = n * (n + 1) // 2
        if not self.reads or self.nprocs == 1:
            return 0.0
        f = triangle * nrhs / self.nprocs
        s = min(float(n * nrhs), max((2 * f * f) ** (1 / 3), f / max(1, isqrt(triangle))))
        ranks, operands = self.extreme_ranks(), self.operands
        held = max(self.own_elements(rank) + prod(operands.right.local_shape(rank)) for rank in ranks)
        if self.operands.b != self.operands.x:
            held += max(prod(operands.result.local_shape(rank)) for rank in ranks)
        return max(0.0, f * f / (s * s) + s - held)

    def operands_nbytes(self, rank: int) -> int:
        """Bytes of A, B and X on a rank; B and X are counted twice even if they are the same."""
        operands = self.operands
        places = operands.triangle, operands.right, operands.result
        return self.itemsize * sum(prod(place.local_shape(rank)) for place in places)

    def _redistribution(self, view: View, source: Placement, target: Placement) -> Phase:
        """One step without a GEMM, in which right-hand sides or solutions change their placement."""
        received = self.itemsize * received_count(source, target, view.rank)
        peers = [move.peer for move in receives(source, target, view.rank) if move.peer != view.rank]
        copied = 2 * self.itemsize * prod(target.local_shape(view.rank))
        return Phase(1, before=spread(view, peers, received), copied=copied)

    @property
    def overlaps_messages(self) -> bool:
        """Whether ranks compute while messages are under way."""
        return self.reads and self.nprocs > 1 and self.transport in ("message", "mixed")

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The placements whose largest shares decide which rank is the busiest (global)."""
        return self.operands.triangle, self.operands.right, self.operands.result

    def extreme_ranks(self) -> set[int]:
        """All ranks if there are few, else those around the first and the last block of each placement."""
        if self.nprocs <= _ALL_RANKS:
            return set(range(self.nprocs))
        ranks = {0, self.nprocs - 1}
        for place in self.placements:
            rows, columns = (_around(split) for split in (place.rows, place.columns))
            ranks |= {place.rank(r, c, z) for r in rows for c in columns for z in {0, place.copies - 1}}
        return ranks

    @property
    def sizes(self) -> str:
        """The order of A and the number of right-hand sides, as text."""
        return f"{self.order} x {self.order}, {self.operands.right.columns.n} right-hand sides"

    def title(self) -> str:
        """The operation and its sizes."""
        operands = self.operands
        m, n = operands.x.shape
        return f"X = alpha {'op(A)^-1 B' if operands.side == 'L' else 'B op(A)^-1'}, {m} x {n}"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        """The distributions of A, B and X."""
        operands = self.operands
        triangle = f"{'lower' if operands.uplo == 'L' else 'upper'} triangle{', unit diagonal' * operands.unit}"
        yield "A", f"{described(operands.a)}, {triangle}, trans={operands.trans!r}"
        yield "B", described(operands.b)
        if operands.b != operands.x:
            yield "X", described(operands.x)


def spread(view: View, peers: list[int], nbytes: int) -> Traffic:
    """Traffic of some bytes that come in equal parts from some ranks."""
    traffic = Traffic()
    for i, peer in enumerate(peers):
        traffic += view.traffic(peer, nbytes * (i + 1) // len(peers) - nbytes * i // len(peers))
    return traffic


def _around(split: Split) -> set[int]:
    """Coordinates around the first block and the last block, which include the largest and smallest shares."""
    last = split.src + max(split.nblocks - 1, 0)
    return {p % split.nprocs for p in (0, split.src, split.src + 1, last - 1, last, last + 1, split.nprocs - 1)}


@lru_cache(1024)
def _own_elements(place: Placement, triangle: Trapezoid, rank: int) -> int:
    """Elements of a triangle that `rank` holds; takes time in proportion to the blocks that cross the diagonal."""
    position, total = place.coordinates(rank), 0
    if position is None:
        return 0
    rows, columns = place.rows, place.columns
    for j0, j1 in columns.runs(position[1]):
        before, after = (rows.local_start(j, position[0]) for j in (j0, j1))
        beside = before if triangle.uplo == "U" else rows.count(position[0]) - after
        across = (triangle.count(i0, i1, j0, j1) for i0, i1 in rows.runs(position[0], j0, j1))
        total += beside * (j1 - j0) + sum(across)
    return total
