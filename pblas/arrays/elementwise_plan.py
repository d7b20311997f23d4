"""The plan of an elementwise operation, as a value; integers only, the same on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import ClassVar

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.plans.base import Plan
from pblas.redistribution.redistribution_plan import RedistributionPlan, described
from pblas.simulation.hardware import ITEMSIZE, Transport
from pblas.simulation.phase import Phase, View


@dataclass(frozen=True, slots=True)
class ElementwiseOperand:
    """A matrix that is an operand of an expression."""

    name: str
    desc: MatrixDescriptor
    dtype: str
    target: MatrixDescriptor

    @property
    def moves(self) -> bool:
        """Whether the matrix is redistributed to `target` before the expression is evaluated."""
        return self.desc != self.target and not self.desc.same_distribution(self.target)


@dataclass(frozen=True, slots=True)
class ElementwisePlan(Plan):
    """An expression of matrices, arrays and numbers, evaluated element by element.

    Operands with another distribution than the result are redistributed to it first. Then each rank evaluates the
    expression for its elements of the result, in one pass over them.

    Args:
        expression: in the language of `pblas.Epilogue` (global).
        operands: the matrices, in the order of the call (global).
        others: name and description of every other operand (global).
        out: distribution of the result (global).
        dtype: name of the dtype of the result (global).
        overlaps: the result overwrites memory of an operand that is redistributed: all ranks wait for each other
            between the redistribution and the evaluation (global).

    >>> rows, columns = MatrixDescriptor.row_wise(8, 8, 4), MatrixDescriptor.column_wise(8, 8, 4)
    >>> x, y = ElementwiseOperand("x", rows, "float64", rows), ElementwiseOperand("y", columns, "float64", rows)
    >>> plan = ElementwisePlan("x + y", (x, y), (), rows, "float64", 4)
    >>> [operand.name for operand in plan.moved], plan.received_nbytes(1)
    (['y'], 96)
    """

    name: ClassVar[str] = "ElementwisePlan"

    expression: str
    operands: tuple[ElementwiseOperand, ...]
    others: tuple[tuple[str, str], ...]
    out: MatrixDescriptor
    dtype: str
    nprocs: int
    overlaps: bool = False
    transport: Transport = "message"

    @property
    def why(self) -> str:
        """The rule that chose the distribution in which the expression is evaluated."""
        if not self.moved:
            return "each rank has the elements that it combines"
        return "operands with another layout than the result are redistributed to it"

    @property
    def moved(self) -> tuple[ElementwiseOperand, ...]:
        """The operands that are redistributed."""
        return tuple(operand for operand in self.operands if operand.moves)

    def redistribution(self, operand: ElementwiseOperand) -> RedistributionPlan:
        """The plan by which an operand gets its target distribution."""
        return RedistributionPlan(operand.desc, operand.target, operand.dtype, self.nprocs, transport=self.transport)

    def received_elements(self, rank: int) -> int:
        """Elements of operands that `rank` receives from other ranks, or reads in their memory."""
        return sum(moved.received_elements(rank) for moved in _moves(self))

    def sent_elements(self, rank: int) -> int:
        return sum(moved.sent_elements(rank) for moved in _moves(self))

    def phases(self, view: View) -> Iterator[Phase]:
        """The redistributions, then one pass that reads every matrix and writes the result."""
        for moved in _moves(self):
            yield from moved.phases(view)
        read = sum(ITEMSIZE[x.dtype] * prod(x.target.local_shape(view.rank)) for x in self.operands)
        yield Phase(1, copied=read + self.itemsize * prod(self.out.local_shape(view.rank)))

    def received_nbytes(self, rank: int) -> int:
        """Bytes that `rank` receives: the dtypes of operands may differ."""
        return sum(moved.received_nbytes(rank) for moved in _moves(self))

    def operands_nbytes(self, rank: int) -> int:
        nbytes = self.itemsize * prod(self.out.local_shape(rank))
        return nbytes + sum(ITEMSIZE[x.dtype] * prod(x.desc.local_shape(rank)) for x in self.operands)

    @property
    def lower_bound(self) -> float:
        """Elements of the result's size that the busiest rank receives at least, under any plan.

        For every element of an operand that a rank lacks and its part of the result depends on, the rank receives at
        least that element, or the value of the expression. So the bound is that of the operand with the largest.
        """
        itemsize = self.itemsize
        bounds = (moved.lower_bound * min(moved.itemsize, itemsize) / itemsize for moved in _moves(self))
        return max(bounds, default=0.0)

    @property
    def workspace_nbytes(self) -> int:
        """Messages and copies of each redistribution, and the redistributed operands."""
        parts = (ITEMSIZE[x.dtype] * x.target.max_local_nelements for x in self.moved)
        return sum(moved.workspace_nbytes for moved in _moves(self)) + sum(parts)

    def extreme_ranks(self) -> set[int]:
        """A few ranks; among them are the ranks that receive most of an operand."""
        ranks = {rank for moved in _moves(self) for rank in moved.extreme_ranks()}
        return ranks or {0}

    def moves(self) -> str:
        moves = _moves(self)
        if not any(moved.lower_bound for moved in moves):
            return "nothing: every rank has the elements that it needs"
        names = ", ".join(operand.name for operand in self.moved)
        how = next(moved.moves() for moved in moves if moved.lower_bound)
        return f"{names}: {how}"

    @property
    def sizes(self) -> str:
        return f"{self.out.m} x {self.out.n}, {self.expression}"

    def title(self) -> str:
        return f"{self.expression}, {self.out.m} x {self.out.n}"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        for operand in self.operands:
            text = f"{described(operand.desc)}, {operand.dtype}"
            if operand.moves:
                yield operand.name, f"{text}; redistributed to"
                text = described(operand.target)
            yield "" if operand.moves else operand.name, text
        yield from self.others
        yield "result", f"{described(self.out)}, {self.dtype}"

    def detail_lines(self) -> Iterator[tuple[str, str]]:
        for operand, moved in zip(self.moved, _moves(self), strict=True):
            yield "", f"{operand.name}: {moved.max_received_nbytes:,} bytes per rank at most"
        if self.overlaps:
            yield "", "all ranks wait before they overwrite an operand that peers read"


@lru_cache(16)
def _moves(plan: ElementwisePlan) -> tuple[RedistributionPlan, ...]:
    """The plans of the redistributions of `plan.moved`, in its order."""
    return tuple(plan.redistribution(operand) for operand in plan.moved)
