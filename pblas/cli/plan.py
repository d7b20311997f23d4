"""`plan`: the bytes that a product of given sizes moves, without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.cli.output import add_command, size
from pblas.cli.product_options import DETAILS, add_product, descriptors, options
from pblas.simulation.hardware import PRESETS

if TYPE_CHECKING:
    from rich.console import Console

_DETAILS = f"Needs no MPI, and takes no longer for a million ranks than for two.\n\n{DETAILS}"


def add_parser(commands: Any, rank: int) -> None:
    """Add the command."""
    parser = add_command(
        commands, "plan", rank, run, text="Say what D = op(A) op(B) would move for these sizes.", details=_DETAILS
    )
    add_product(parser, required=True)
    parser.add_argument("--ranks", type=size, required=True, help="number of ranks")
    parser.add_argument(
        "--simulate", choices=PRESETS, metavar="MACHINE", help=f"and how long it takes on: {', '.join(PRESETS)}"
    )


def run(arguments: Any, console: Console) -> int:
    """Print the plan."""
    from pblas.operations.matmul import plan_matmul

    ranks = arguments.ranks
    planned = plan_matmul(
        *descriptors(arguments, ranks),
        **options(arguments, ranks),
        dtype=arguments.dtype,
        nprocs=ranks,
        hardware=arguments.simulate,
    )
    console.print(planned.explain(), soft_wrap=True)
    if arguments.simulate:
        console.print(str(planned.plan.simulate(arguments.simulate)), soft_wrap=True)
    return 0
