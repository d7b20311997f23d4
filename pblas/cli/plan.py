"""`plan`: the bytes that a product moves, without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.cli.output import add_command, size
from pblas.cli.product_options import DETAILS, add_product, descriptors, leaves_layouts_open, options
from pblas.simulation.hardware import PRESETS

if TYPE_CHECKING:
    from rich.console import Console

_DETAILS = f"""\
Needs no MPI, and takes no longer for a million ranks than for two.

Without --a, --b, --out and --grid the planner chooses the layouts of A, B and D. With at least one of them, A and B are
row-wise unless their layout is given, and the planner chooses the layout of D only.

{DETAILS}"""


def add_parser(commands: Any, rank: int) -> None:
    """Add the command."""
    parser = add_command(
        commands, "plan", rank, run, text="Print which data D = op(A) op(B) moves, and how much.", details=_DETAILS
    )
    add_product(parser, required=True)
    parser.add_argument("--ranks", type=size, required=True, help="number of ranks")
    parser.add_argument(
        "--simulate", choices=PRESETS, metavar="MACHINE", help=f"predict the time on a machine: {', '.join(PRESETS)}"
    )


def run(arguments: Any, console: Console) -> int:
    """Print the plan, and the simulated time if it is asked for."""
    from pblas.matmul.api import plan_matmul

    ranks = arguments.ranks
    operands: tuple[Any, ...] = arguments.m, arguments.n, arguments.k
    if not leaves_layouts_open(arguments):
        operands = descriptors(arguments, ranks)
    planned = plan_matmul(
        *operands,
        **options(arguments, ranks),
        dtype=arguments.dtype,
        nprocs=ranks,
        hardware=arguments.simulate,
    )
    console.print(planned.explain(), soft_wrap=True)
    if arguments.simulate:
        console.print(str(planned.plan.simulate(arguments.simulate)), soft_wrap=True)
    return 0
