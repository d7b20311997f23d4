"""Options of `plan` and `trace` that describe a product and its layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.cli.layout_spec import HELP, Named, named, on_grids
from pblas.cli.output import dtype, extent, pairs, size, trans
from pblas.errors import ArgumentError

if TYPE_CHECKING:
    from pblas.cli.output import Parser
    from pblas.layouts import MatrixDescriptor

DETAILS = """\
A layout describes the stored matrix: with --transa T, A is stored as K x M, and a row-wise A splits op(A) along K.
--grid PxQ[,PxQ] and --block MBxNB[,MBxNB] mean the same as for `matmul`; they replace --a and --b.
"""


def add_product(parser: Parser, *, required: bool) -> None:
    """Add the options for sizes, layouts and the plan of a product."""
    parser.add_argument("--m", type=extent, required=required, help="rows of D")
    parser.add_argument("--n", type=extent, required=required, help="columns of D")
    parser.add_argument("--k", type=extent, required=required, help="columns of op(A)")
    parser.add_argument("--dtype", type=dtype, default="float64", help="dtype of all matrices (%(default)s)")
    parser.add_argument("--a", type=named, metavar="LAYOUT", help=f"layout of A: {HELP} (row)")
    parser.add_argument("--b", type=named, metavar="LAYOUT", help="layout of B (row)")
    parser.add_argument("--out", type=named, metavar="LAYOUT", help="layout of D (the one that moves the fewest bytes)")
    parser.add_argument("--grid", type=pairs, metavar="PxQ[,PxQ]", help="process grids of A and B: see above")
    parser.add_argument("--block", type=pairs, metavar="MBxNB[,MBxNB]", help="blocks of A and B, with --grid")
    parser.add_argument("--transa", type=trans, default="N", help="N, T or C (%(default)s)")
    parser.add_argument("--transb", type=trans, default="N", help="N, T or C (%(default)s)")
    parser.add_argument("--chunks", type=size, help="parts in which each shard moves (the planner's choice)")
    parser.add_argument("--no-overlap", action="store_true", help="move all data before the multiplication")


def leaves_layouts_open(arguments: Any) -> bool:
    """Whether the options name no layout at all, so that the planner may choose those of A, B and D."""
    return not (arguments.a or arguments.b or arguments.out or arguments.grid or arguments.block)


def descriptors(arguments: Any, ranks: int) -> tuple[MatrixDescriptor, MatrixDescriptor]:
    """The layouts of A and B; an operand without one is row-wise."""
    m, n, k = arguments.m, arguments.n, arguments.k
    if arguments.block and not arguments.grid:
        raise ArgumentError(f"{arguments.command}: --block needs --grid; pass both, or --a and --b with blocks")
    if arguments.grid and (arguments.a or arguments.b):
        raise ArgumentError(
            f"{arguments.command}: --grid already gives A and B their layouts; drop it, or drop --a and --b"
        )
    a, b = arguments.a or Named("row"), arguments.b or Named("row")
    if arguments.grid:
        a, b = on_grids(arguments.grid, arguments.block)
    shape_a = (m, k) if arguments.transa == "N" else (k, m)
    shape_b = (k, n) if arguments.transb == "N" else (n, k)
    descs = a.descriptor(*shape_a, ranks), b.descriptor(*shape_b, ranks)
    for name, desc in zip("AB", descs, strict=True):
        _check_grid(arguments, name, desc, ranks)
    return descs


def options(arguments: Any, ranks: int) -> dict[str, Any]:
    """Keyword arguments of `plan_matmul`: transposition, the layout of D, chunks and overlap."""
    out = arguments.out.descriptor(arguments.m, arguments.n, ranks) if arguments.out else None
    if out is not None:
        _check_grid(arguments, "D", out, ranks)
    return {
        "transa": arguments.transa,
        "transb": arguments.transb,
        "out": out,
        "chunks": arguments.chunks,
        "overlap": not arguments.no_overlap,
    }


def _check_grid(arguments: Any, name: str, desc: MatrixDescriptor, ranks: int) -> None:
    """Raise ArgumentError if the grid of a matrix has more processes than there are ranks."""
    if desc.nprocs > ranks:
        grid = f"{desc.grid.nprow} x {desc.grid.npcol} grid"
        raise ArgumentError(
            f"{arguments.command}: {name} is on a {grid}, but the number of ranks is {ranks}; "
            f"use at least {desc.nprocs} ranks, or a smaller grid"
        )
