"""Layouts named on the command line: row, column, replicated, row:64, column:64, and grids: 2x2, 2x2:64x64."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Literal

from pblas.cli.output import pair
from pblas.layouts import Grid, MatrixDescriptor

Kind = Literal["row", "column", "replicated"]
HELP = "row, column, replicated, in cyclic blocks row:64, column:64, or a grid PxQ, PxQ:MBxNB"


@dataclass(frozen=True, slots=True)
class Named:
    """A one-dimensional layout that fits a matrix of any size on any number of ranks.

    >>> Named("row", 2).descriptor(6, 3, 2).global_ranges(0)[0]
    [(0, 2), (4, 6)]
    """

    kind: Kind
    block: int | None = None

    def descriptor(self, m: int, n: int, nprocs: int) -> MatrixDescriptor:
        """The descriptor of an m x n matrix on nprocs ranks."""
        if self.kind == "replicated":
            return MatrixDescriptor.replicated(m, n, nprocs)
        if self.kind == "row":
            return MatrixDescriptor.row_wise(m, n, nprocs, mb=self.block)
        return MatrixDescriptor.column_wise(m, n, nprocs, nb=self.block)


@dataclass(frozen=True, slots=True)
class OnGrid:
    """A layout over a process grid; without a block size each process has one block.

    >>> OnGrid((2, 2)).descriptor(6, 3).local_shape(0)
    (3, 2)
    """

    grid: tuple[int, int]
    block: tuple[int, int] | None = None

    def descriptor(
        self, m: int, n: int, nprocs: int | None = None, *, order: Literal["F", "C"] = "F"
    ) -> MatrixDescriptor:
        """The descriptor of an m x n matrix on the ranks of the grid; `nprocs` has no effect."""
        del nprocs
        nprow, npcol = self.grid
        mb, nb = self.block or (max(1, -(-m // nprow)), max(1, -(-n // npcol)))
        return MatrixDescriptor(m, n, mb, nb, Grid(nprow, npcol), order=order)


def named(text: str) -> Named | OnGrid:
    """Parse a layout.

    >>> named("column:64"), named("2x3:64x32")
    (Named(kind='column', block=64), OnGrid(grid=(2, 3), block=(64, 32)))
    """
    kind, colon, block = text.partition(":")
    try:
        if kind not in {"row", "column", "replicated"}:
            return OnGrid(pair(kind), pair(block) if colon else None)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"expected {HELP}; got {text!r}") from None
    if colon and (kind == "replicated" or not (block.isdecimal() and int(block))):
        raise argparse.ArgumentTypeError(f"expected {HELP}; got {text!r}")
    return Named(kind, int(block) if colon else None)  # type: ignore[arg-type]


def on_grids(
    grids: tuple[tuple[int, int], tuple[int, int]], blocks: tuple[tuple[int, int], tuple[int, int]] | None
) -> tuple[OnGrid, OnGrid]:
    """The layouts of A and B from the options --grid and --block."""
    block_a, block_b = blocks or (None, None)
    return OnGrid(grids[0], block_a), OnGrid(grids[1], block_b)
