"""The base of plans that apply a factor to a matrix, as values of integers.

B is brought to X, on the ranks that compute with the factor, X is changed in place, and leaves for the layout of B.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.plans.base import Plan
from pblas.redistribution.redistribution_plan import RedistributionPlan, described
from pblas.simulation.hardware import Transport
from pblas.simulation.phase import Phase, View


@dataclass(frozen=True, slots=True)
class WithFactorPlan(Plan):
    """Result = f(W) B, or (f(W) B^H)^H if the factor stands on the right.

    Args:
        w: distribution of the factor (global).
        b: distribution of B, and of the result (global).
        dtype: name of the dtype (global).
        nprocs: ranks of the context (global).
        transport: how the ranks exchange data (global).
        begins: the elements of X at first: those of "B"; of an "array" that every rank has; of the "identity", whose
            columns each rank may sort ("sorted"); only B is brought (global).
        side: where the factor stands (global).
    """

    w: MatrixDescriptor
    b: MatrixDescriptor
    dtype: str
    nprocs: int
    transport: Transport
    begins: Literal["B", "array", "identity", "sorted"] = "B"
    side: Literal["L", "R"] = "L"

    # Each plan defines these

    @property
    @abstractmethod
    def x(self) -> MatrixDescriptor:
        """Distribution of X."""

    @abstractmethod
    def exchanged_elements(self, rank: int) -> int:
        """Elements of the factor or of X that a rank receives, or reads in a peer's memory, while X is changed."""

    @abstractmethod
    def lent_elements(self, rank: int) -> int:
        """Elements that it sends, or that other ranks read, while X is changed."""

    @abstractmethod
    def changes(self, view: View) -> Iterator[Phase]:
        """The phases in which X is changed."""

    @property
    @abstractmethod
    def panel_nbytes(self) -> int:
        """Bytes of buffers for the factor, or for rows of X."""

    # They share these

    @property
    def reads(self) -> bool:
        """Whether there is a B."""
        return self.begins == "B"

    @property
    def right(self) -> MatrixDescriptor:
        """Distribution of B, or of B^H for side "R"."""
        return self.b if self.side == "L" else self.b.T

    @property
    def stays(self) -> bool:
        """Whether X is computed in the memory of the result; else in workspace."""
        return self._is_in_layout

    @property
    def _is_in_layout(self) -> bool:
        """Whether each rank has the same elements of X and of the result, in the same order, and none is conjugated."""
        if self.side == "R" and self.dtype.startswith("complex"):
            return False
        return self.right.order == "F" and 0 not in self.b.shape and self.x.same_distribution(self.right)

    @property
    def redistributions(self) -> list[RedistributionPlan]:
        """The redistributions of B to X, if there is a B, and of X to the distribution of B."""
        trans: Literal["N", "C"] = "N" if self.side == "L" else "C"
        pairs = ((self.b, self.x), (self.x, self.b)) if self.reads else ((self.x, self.b),)
        return [RedistributionPlan(*pair, self.dtype, self.nprocs, trans, transport=self.transport) for pair in pairs]

    def received_elements(self, rank: int) -> int:
        """Elements of the factor or of X, and of the redistributions."""
        return self.exchanged_elements(rank) + sum(plan.received_elements(rank) for plan in self.redistributions)

    def sent_elements(self, rank: int) -> int:
        """Elements of the factor or of X, and of the redistributions."""
        return self.lent_elements(rank) + sum(plan.sent_elements(rank) for plan in self.redistributions)

    def phases(self, view: View) -> Iterator[Phase]:
        """B to X, the changes of X, X to the distribution of B."""
        *to_x, back = self.redistributions
        for redistribution in to_x:
            yield from redistribution.phases(view)
        yield from self.changes(view)
        yield from back.phases(view)

    def operands_nbytes(self, rank: int) -> int:
        """Bytes of the factor, of B and of the result on a rank."""
        return self.itemsize * (prod(self.w.local_shape(rank)) + (1 + self.reads) * prod(self.b.local_shape(rank)))

    @property
    def lower_bound(self) -> float:
        """0: a rank may hold parts of the factor, of B or of the result; no bound holds for all plans."""
        return 0.0

    @property
    def workspace_nbytes(self) -> int:
        """X, unless it stays, the buffers, and the messages of a redistribution."""
        moved = max(plan.workspace_nbytes for plan in self.redistributions)
        x = 0 if self.stays else self.x.max_stored_nelements
        return self.itemsize * x + self.panel_nbytes + moved

    def extreme_ranks(self) -> set[int]:
        """All ranks of few; of many, the first ones and the last."""
        return set(range(self.nprocs)) if self.nprocs <= 64 else {0, 1, 2, self.w.nprocs - 1, self.nprocs - 1}

    @property
    def sizes(self) -> str:
        """Rows and columns of X, as text."""
        return f"{self.x.m} x {self.x.n}"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        """The distributions of the factor, of B and of X."""
        yield "factor", described(self.w)
        yield "B", described(self.b)
        yield "X", f"{described(self.x)}; changed in place"

    def moves(self) -> str:
        """The data that moves, as text."""
        if self.nprocs == 1:
            return "nothing"
        return f"{'B to X, ' * self.reads}{self._exchange}, X to the distribution of B"

    @property
    def _exchange(self) -> str:
        """What moves while X is changed, as text: panels of the factor, unless a plan says otherwise."""
        in_place = self.transport in ("shared", "push")
        return f"panels of the factor {'are read in place' if in_place else 'to every rank with columns of X'}"
