"""`trace`: run a product of random matrices, and write a timeline of all ranks."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from pblas.cli.output import add_command, size
from pblas.cli.product_options import DETAILS, add_product, descriptors, options
from pblas.errors import ArgumentError

if TYPE_CHECKING:
    from rich.console import Console

_DETAILS = f"""\
The last of several executions is recorded. FILE.json is for Perfetto (https://ui.perfetto.dev), FILE.png and FILE.svg
are pictures. The time of each kind of operation is printed. With an existing trace file, nothing is run.

  mpiexec -n 4 python -m mpi4py -m pblas trace --m 4096 --n 4096 --k 4096 -o trace.json
  python -m pblas trace trace.json -o trace.png

{DETAILS}"""


def add_parser(commands: Any, rank: int) -> None:
    """Add the command."""
    parser = add_command(
        commands, "trace", rank, run, text="Record when each rank multiplies, copies, adds and waits.", details=_DETAILS
    )
    parser.add_argument("trace", nargs="?", metavar="TRACE.json", help="an existing trace, instead of a product")
    add_product(parser, required=False)
    parser.add_argument(
        "-o", "--output", default=[], action="append", metavar="FILE", help="file to write; may be given several times"
    )
    parser.add_argument("--title", help="title of pictures (the plan)")
    parser.add_argument("--repeat", type=size, default=3, help="number of executions (%(default)s)")
    parser.add_argument(
        "--backend", choices=("auto", "mpi", "nvshmem", "cuda"), default="auto", help="CPUs or GPUs (%(default)s)"
    )
    parser.add_argument(
        "--transport", choices=("auto", "shared", "message"), default="auto", help="how data moves (%(default)s)"
    )
    parser.add_argument(
        "--link", type=link, metavar="LATENCY,BANDWIDTH", help="emulate a network: seconds, bytes per second"
    )


def link(text: str) -> tuple[float, float]:
    """Latency and bandwidth of an emulated network.

    >>> link("1e-5,1e9")
    (1e-05, 1000000000.0)
    """
    try:
        latency, bandwidth = map(float, text.split(","))
    except ValueError:
        latency, bandwidth = -1.0, 0.0
    if latency < 0 or not bandwidth > 0:
        raise argparse.ArgumentTypeError(f"expected seconds and bytes per second, as 1e-5,1e9, got {text!r}")
    return latency, bandwidth


def run(arguments: Any, console: Console) -> int:
    """Execute a product and write its trace, or convert an existing trace."""
    from pblas.context import Context
    from pblas.matmul.api import plan_matmul
    from pblas.trace import Trace

    if arguments.trace:
        if (arguments.m, arguments.n, arguments.k) != (None, None, None):
            raise ArgumentError("trace: with an existing trace, leave out --m, --n and --k")
        trace = Trace.read(arguments.trace)
        trace.title = arguments.title or trace.title
        for path in () if console.quiet else arguments.output:
            trace.write(path)
    else:
        if None in (arguments.m, arguments.n, arguments.k):
            raise ArgumentError("trace: expected --m, --n and --k, or an existing trace")
        with Context(backend=arguments.backend, transport=arguments.transport, link=arguments.link) as ctx:
            desc_a, desc_b = descriptors(arguments, ctx.nprocs)
            a = ctx.random(desc_a, arguments.dtype, seed=1)
            b = ctx.random(desc_b, arguments.dtype, seed=2)
            planned = plan_matmul(a, b, **options(arguments, ctx.nprocs))
            d = ctx.empty(planned.out, a.dtype)
            for _ in range(arguments.repeat - 1):
                planned.execute(a, b, out=d)
            trace = planned.trace(a, b, out=d, paths=arguments.output, title=arguments.title)
            console.print(planned.explain(), soft_wrap=True)
    console.print(str(trace), soft_wrap=True)
    return 0
