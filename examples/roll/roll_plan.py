"""The plan of a roll, as a value: integers only, the same on every rank. No NumPy, no MPI."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.messages import received_count, sends
from pblas.layouts.placement import Placement
from pblas.plans.base import Plan
from pblas.redistribution.redistribution_plan import described, moved
from pblas.simulation.hardware import Transport
from pblas.simulation.phase import Phase, View


@dataclass(frozen=True, slots=True)
class RollPlan(Plan):
    """B[(i + shift) mod m, :] = A[i, :] with B distributed as A: two ranges of rows move.

    >>> RollPlan(MatrixDescriptor.row_wise(8, 3, 4), 1, "float64", 4).received_nbytes(0)
    24
    """

    name: ClassVar[str] = "RollPlan"
    why: ClassVar[str] = "each rank receives only the rows that it lacks, directly from a rank that has them"

    a: MatrixDescriptor
    shift: int
    dtype: str
    nprocs: int
    transport: Transport = "message"

    @property
    def ranges(self) -> list[tuple[int, int, int]]:
        """(start, stop, to): rows start..stop-1 of A become rows to, to + 1, ... of B."""
        m, shift = self.a.m, self.shift
        return [x for x in ((0, m - shift, shift), (m - shift, m, 0)) if x[0] < x[1]]

    @property
    def parts(self) -> Iterator[tuple[Placement, Placement]]:
        """The placement of each range in A, and in B."""
        place, n = Placement.of(self.a), self.a.n
        for start, stop, to in self.ranges:
            yield place.part(start, stop, 0, n), place.part(to, to + stop - start, 0, n)

    def received_elements(self, rank: int) -> int:
        return sum(received_count(source, target, rank) for source, target in self.parts)

    def sent_elements(self, rank: int) -> int:
        moves = (move for source, target in self.parts for move in sends(source, target, rank))
        return sum(prod(move.shape) for move in moves if move.peer != rank)

    @property
    def lower_bound(self) -> float:
        """Any plan moves the elements that the busiest rank needs and lacks."""
        return max(map(self.received_elements, self.extreme_ranks()))

    @property
    def workspace_nbytes(self) -> int:
        """All messages of a rank, and a copy of A for peers that cannot read A itself."""
        messages = max(self.received_elements(p) + self.sent_elements(p) for p in self.extreme_ranks())
        place = Placement.of(self.a)
        return self.itemsize * (messages + place.rows.max_count * place.columns.max_count)

    def phases(self, view: View) -> Iterator[Phase]:
        """A step without a GEMM for each range of rows: `simulate` needs no more."""
        for source, target in self.parts:
            received = self.itemsize * received_count(source, target, view.rank)
            yield moved(source, target, received, self.itemsize, view)

    def operands_nbytes(self, rank: int) -> int:
        return 2 * self.itemsize * prod(Placement.of(self.a).local_shape(rank))

    def extreme_ranks(self) -> set[int]:
        """All ranks; `RedistributionPlan.extreme_ranks` shows how to ask a few of many."""
        return set(range(self.nprocs))

    # The lines of `explain`

    def moves(self) -> str:
        return "read in place" if self.transport == "shared" else "messages between the ranks that share rows"

    @property
    def sizes(self) -> str:
        return f"{self.a.m} x {self.a.n}, shift {self.shift}"

    def title(self) -> str:
        return f"B = roll(A), {self.sizes}"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        yield "A, B", described(self.a)
