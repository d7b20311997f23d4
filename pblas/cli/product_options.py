"""Arguments of `plan` and `trace` that describe a product and its layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.cli.layout_spec import HELP, Named, named, on_grids
from pblas.cli.output import extent, pairs, size, trans
from pblas.errors import ArgumentError

if TYPE_CHECKING:
    from pblas.cli.output import Parser
    from pblas.layouts import MatrixDescriptor

DETAILS = """\
Layouts are those of the stored matrices: with --transa T the matrix A is K x M, so that row-wise A is op(A) split along
K. --grid PxQ[,PxQ] and --block MBxNB[,MBxNB] are those of `matmul`, instead of --a and --b.
"""


def add_product(parser: Parser, *, required: bool) -> None:
    """Add sizes, layouts and how the product is planned."""
    parser.add_argument("--m", type=extent, required=required, help="rows of D")
    parser.add_argument("--n", type=extent, required=required, help="columns of D")
    parser.add_argument("--k", type=extent, required=required, help="columns of op(A)")
    parser.add_argument("--dtype", default="float64", help="of all matrices (%(default)s)")
    parser.add_argument("--a", type=named, metavar="LAYOUT", help=f"of A: {HELP} (row)")
    parser.add_argument("--b", type=named, metavar="LAYOUT", help="of B (row)")
    parser.add_argument("--out", type=named, metavar="LAYOUT", help="of D (the one that moves the fewest bytes)")
    parser.add_argument("--grid", type=pairs, metavar="PxQ[,PxQ]", help="of A and B: see above")
    parser.add_argument("--block", type=pairs, metavar="MBxNB[,MBxNB]", help="of A and B, with --grid")
    parser.add_argument("--transa", type=trans, default="N", help="N, T or C (%(default)s)")
    parser.add_argument("--transb", type=trans, default="N", help="N, T or C (%(default)s)")
    parser.add_argument("--chunks", type=size, help="parts in which a shard moves (the planner's choice)")
    parser.add_argument("--no-overlap", action="store_true", help="move everything before the multiplication")


def descriptors(arguments: Any, ranks: int) -> tuple[MatrixDescriptor, MatrixDescriptor]:
    """The layouts of A and B.

    Raises:
        ArgumentError: blocks without a grid, or a grid together with other layouts.
    """
    m, n, k = arguments.m, arguments.n, arguments.k
    if arguments.block and not arguments.grid:
        raise ArgumentError(f"{arguments.command}: --block is of a --grid; pass both, or --a and --b with blocks")
    if arguments.grid and (arguments.a or arguments.b):
        raise ArgumentError(f"{arguments.command}: --grid is of A and B; pass it, or --a and --b, which take grids too")
    a, b = arguments.a or Named("row"), arguments.b or Named("row")
    if arguments.grid:
        a, b = on_grids(arguments.grid, arguments.block)
    shape_a = (m, k) if arguments.transa == "N" else (k, m)
    shape_b = (k, n) if arguments.transb == "N" else (n, k)
    return a.descriptor(*shape_a, ranks), b.descriptor(*shape_b, ranks)


def options(arguments: Any, ranks: int) -> dict[str, Any]:
    """Arguments of `plan_matmul` besides the layouts of A and B."""
    return {
        "transa": arguments.transa,
        "transb": arguments.transb,
        "out": arguments.out.descriptor(arguments.m, arguments.n, ranks) if arguments.out else None,
        "chunks": arguments.chunks,
        "overlap": not arguments.no_overlap,
    }
