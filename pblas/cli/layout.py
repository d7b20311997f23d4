"""`layout`: draw which rank owns which block."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pblas.cli.output import add_command, extent, pair
from pblas.layouts import Grid, MatrixDescriptor
from pblas.matrices.complete_files import write

if TYPE_CHECKING:
    from rich.console import Console


def add_parser(commands: Any, rank: int) -> None:
    """Add the command."""
    parser = add_command(
        commands, "layout", rank, run, text="Draw a block-cyclic distribution of an m x n matrix. Needs no MPI."
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


def run(arguments: Any, console: Console) -> int:
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
