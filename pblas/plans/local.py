"""The plan of an operation in which each rank works on its own elements of a matrix; integers only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.plans.base import ITEMSIZE, Plan, Transport

_ASK_ALL = 1024
"""Largest number of ranks that are all examined to find the busiest."""


@dataclass(frozen=True, slots=True)
class LocalPlan(Plan):
    """Every rank gets vectors, if the operation has any, and updates its own elements of a matrix.

    Args:
        what: the operation, for the title (global).
        a: distribution of the matrix (global).
        dtype: name of the dtype of the matrix (global).
        nprocs: ranks of the context (global).
        transport: how the ranks exchange data (global).
        columns: distributions of the vectors that ranks get from each other, as m x 1 matrices (global).

    >>> column = MatrixDescriptor.row_wise(8, 1, 4)
    >>> plan = LocalPlan("update", MatrixDescriptor.row_wise(8, 8, 4), "float64", 4, columns=(column, column))
    >>> plan.received_elements(0), plan.sent_elements(0), plan.lower_bound
    (12, 12, 0)
    """

    name: ClassVar[str] = "LocalPlan"
    why: ClassVar[str] = "each rank updates its own elements of A, which does not move"

    what: str
    a: MatrixDescriptor
    dtype: str
    nprocs: int
    transport: Transport = "message"
    columns: tuple[MatrixDescriptor, ...] = ()

    def received_elements(self, rank: int) -> int:
        """Elements of the vectors that other ranks hold."""
        return sum(column.m - prod(column.local_shape(rank)) for column in self.columns)

    def sent_elements(self, rank: int) -> int:
        """This rank's elements of the vectors, to each other rank."""
        return (self.nprocs - 1) * sum(prod(column.local_shape(rank)) for column in self.columns)

    def operands_nbytes(self, rank: int) -> int:
        """Bytes of the matrix on a rank."""
        return ITEMSIZE[self.dtype] * prod(self.a.local_shape(rank))

    @property
    def lower_bound(self) -> float:
        """None is known."""
        return 0

    @property
    def workspace_nbytes(self) -> int:
        """The vectors."""
        return ITEMSIZE[self.dtype] * sum(column.m for column in self.columns)

    def extreme_ranks(self) -> set[int]:
        """All ranks; of many, the first, the last of the grid, and the first outside it."""
        if self.nprocs <= _ASK_ALL:
            return set(range(self.nprocs))
        return {0, 1, self.a.nprocs - 1, min(self.a.nprocs, self.nprocs - 1)}

    def moves(self) -> str:
        """The data that moves, as text."""
        if self.nprocs == 1 or not self.columns:
            return "nothing"
        return f"vectors, {sum(column.m for column in self.columns):,} elements, to all ranks"

    @property
    def sizes(self) -> str:
        """m x n of the matrix, as text."""
        return f"{self.a.m} x {self.a.n}"

    def title(self) -> str:
        """The operation and its sizes."""
        return f"{self.what}, {self.sizes}"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        """The distribution of the matrix."""
        grid = self.a.grid
        yield "A", f"{self.sizes} in blocks of {self.a.mb} x {self.a.nb} on a {grid.nprow} x {grid.npcol} grid"
