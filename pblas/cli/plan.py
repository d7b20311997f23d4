"""`plan`: what a product of these sizes would move, without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.cli.output import add_command, extent, pairs, size, trans
from pblas.cli.spread import HELP, Named, named, on_grids
from pblas.errors import ArgumentError
from pblas.machines import PRESETS

if TYPE_CHECKING:
    from rich.console import Console

_DETAILS = """\
Needs no MPI, and takes no longer for a million ranks than for two. Layouts are those of the stored matrices:
with --transa T the matrix A is K x M, so that row-wise A is op(A) split along K.
--grid PxQ[,PxQ] and --block MBxNB[,MBxNB] are those of `matmul`, in place of --a and --b.
"""


def add_parser(commands: Any, rank: int) -> None:
    """Add the command."""
    parser = add_command(
        commands, "plan", rank, run, text="Say what D = op(A) op(B) would move for these sizes.", details=_DETAILS
    )
    parser.add_argument("--m", type=extent, required=True, help="rows of D")
    parser.add_argument("--n", type=extent, required=True, help="columns of D")
    parser.add_argument("--k", type=extent, required=True, help="columns of op(A)")
    parser.add_argument("--ranks", type=size, required=True, help="number of ranks")
    parser.add_argument("--dtype", default="float64", help="of all matrices (%(default)s)")
    parser.add_argument("--a", type=named, default=Named("row"), metavar="LAYOUT", help=f"of A: {HELP} (row)")
    parser.add_argument("--b", type=named, default=Named("row"), metavar="LAYOUT", help="of B (row)")
    parser.add_argument("--out", type=named, metavar="LAYOUT", help="of D (the one that moves the fewest bytes)")
    parser.add_argument("--grid", type=pairs, metavar="PxQ[,PxQ]", help="of A and B: see above")
    parser.add_argument("--block", type=pairs, metavar="MBxNB[,MBxNB]", help="of A and B, with --grid")
    parser.add_argument("--transa", type=trans, default="N", help="N, T or C (%(default)s)")
    parser.add_argument("--transb", type=trans, default="N", help="N, T or C (%(default)s)")
    parser.add_argument("--chunks", type=size, help="parts in which a shard moves (the planner's choice)")
    parser.add_argument(
        "--simulate", choices=PRESETS, metavar="MACHINE", help=f"and how long it takes on: {', '.join(PRESETS)}"
    )
    parser.add_argument("--no-overlap", action="store_true", help="move everything before the multiplication")


def run(arguments: Any, console: Console) -> int:
    """Print the plan."""
    from pblas.matmul import plan_matmul

    m, n, k, ranks = arguments.m, arguments.n, arguments.k, arguments.ranks
    shape_a = (m, k) if arguments.transa == "N" else (k, m)
    shape_b = (k, n) if arguments.transb == "N" else (n, k)
    if arguments.block and not arguments.grid:
        raise ArgumentError("plan: --block is of a --grid; pass both, or --a and --b with blocks")
    a, b = on_grids(arguments.grid, arguments.block) if arguments.grid else (arguments.a, arguments.b)
    planned = plan_matmul(
        a.descriptor(*shape_a, ranks),
        b.descriptor(*shape_b, ranks),
        transa=arguments.transa,
        transb=arguments.transb,
        out=arguments.out.descriptor(m, n, ranks) if arguments.out else None,
        dtype=arguments.dtype,
        chunks=arguments.chunks,
        overlap=not arguments.no_overlap,
        nprocs=ranks,
        machine=arguments.simulate,
    )
    console.print(planned.explain(), soft_wrap=True)
    if arguments.simulate:
        console.print(str(planned.plan.simulate(arguments.simulate)), soft_wrap=True)
    return 0
