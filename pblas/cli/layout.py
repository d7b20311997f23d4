"""`layout`: draw which rank owns which block; and layouts named on the command line: row, column:64, 2x2, 2x2:64x64."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pblas.cli.output import Commands, Console, add_command, extent, pair, size
from pblas.errors import ArgumentError
from pblas.layouts import Grid, MatrixDescriptor
from pblas.matrices.complete_files import write

if TYPE_CHECKING:
    from argparse import Namespace


def add_parser(commands: Commands, rank: int) -> None:
    parser = add_command(
        commands, "layout", rank, run, "Draw a block-cyclic distribution of an m x n matrix. Needs no MPI."
    )
    parser.add_argument("m", type=extent, help="rows")
    parser.add_argument("n", type=extent, help="columns")
    parser.add_argument("--grid", type=pair, default=(2, 2), metavar="PxQ", help="process rows x columns (2x2)")
    parser.add_argument("--block", type=pair, metavar="MBxNB", help="rows x columns of a block (one per process)")
    parser.add_argument("--rsrc", type=int, default=0, help="process row that owns row 0 (0); -1: every process row")
    parser.add_argument(
        "--csrc", type=int, default=0, help="process column that owns column 0 (0); -1: every process column"
    )
    parser.add_argument("--order", choices=("F", "C"), default="F", help="order of the local arrays (%(default)s)")
    parser.add_argument(
        "--grid-order", choices=("C", "R"), default="C", help="ranks numbered down columns or along rows (%(default)s)"
    )
    parser.add_argument("--width", type=int, default=100, help="characters per line (%(default)s)")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also write the picture as SVG")


def run(arguments: Namespace, console: Console) -> int:
    """Print the picture, and write it to a file if one is asked for."""
    nprow, npcol = arguments.grid
    one_block_each = (max(1, -(-arguments.m // nprow)), max(1, -(-arguments.n // npcol)))
    mb, nb = arguments.block or one_block_each
    desc = MatrixDescriptor(
        *(arguments.m, arguments.n, mb, nb, Grid(nprow, npcol, arguments.grid_order)),
        rsrc=arguments.rsrc,
        csrc=arguments.csrc,
        order=arguments.order,
    )
    console.print(desc.picture(max(30, arguments.width)), soft_wrap=True)
    if arguments.svg and not console.quiet:
        write(arguments.svg, desc._repr_svg_().encode())
        console.print(f"\n{arguments.svg}: written")
    return 0


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
        if colon and kind == "replicated":
            raise argparse.ArgumentTypeError
        return Named(kind, size(block) if colon else None)  # type: ignore[arg-type]
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"expected {HELP}; got {text!r}") from None


def check_grid(command: str, name: str, desc: MatrixDescriptor, ranks: int) -> None:
    """Raise ArgumentError if the grid of a matrix has more processes than there are ranks."""
    if desc.nprocs > ranks:
        grid = f"{desc.grid.nprow} x {desc.grid.npcol} grid"
        raise ArgumentError(
            f"{command}: {name} is on a {grid}, but the number of ranks is {ranks}; "
            f"use at least {desc.nprocs} ranks, or a smaller grid"
        )


def on_grids(
    grids: tuple[tuple[int, int], tuple[int, int]], blocks: tuple[tuple[int, int], tuple[int, int]] | None
) -> tuple[OnGrid, OnGrid]:
    """The layouts of A and B from the options --grid and --block."""
    block_a, block_b = blocks or (None, None)
    return OnGrid(grids[0], block_a), OnGrid(grids[1], block_b)
