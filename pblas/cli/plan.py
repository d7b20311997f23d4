"""`plan`: the bytes that an operation moves, without running it; `trace`: run a product, and write its timeline."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, TypedDict

from pblas.cli.layout import HELP, Named, check_grid, named, on_grids
from pblas.cli.output import Commands, Console, Parser, add_command, dtype, extent, pairs, size, trans
from pblas.errors import ArgumentError, PblasError
from pblas.simulation.hardware import PRESETS, Hardware
from pblas.simulation.hardware_file import find_hardware

if TYPE_CHECKING:
    from argparse import Namespace

    from pblas.core.options import Trans
    from pblas.layouts import MatrixDescriptor
    from pblas.plans.base import Plan

_LAYOUTS = """\
A layout describes the stored matrix: with --transa T, A is stored as K x M, and a row-wise A splits op(A) along K.
--grid PxQ[,PxQ] and --block MBxNB[,MBxNB] mean the same as for `matmul`; they replace --a and --b.
"""


def add_product(parser: Parser) -> None:
    """Add the options for sizes, layouts and the plan of a product."""
    parser.add_argument("--m", type=extent, help="rows of D")
    parser.add_argument("--n", type=extent, help="columns of D")
    parser.add_argument("--k", type=extent, help="columns of op(A)")
    parser.add_argument("--dtype", type=dtype, default="float64", help="dtype of all matrices (%(default)s)")
    parser.add_argument("--a", type=named, metavar="LAYOUT", help=f"layout of A: {HELP} (row)")
    parser.add_argument("--b", type=named, metavar="LAYOUT", help="layout of B (row)")
    parser.add_argument("--out", type=named, metavar="LAYOUT", help="layout of D (the one with the fastest plan)")
    parser.add_argument("--grid", type=pairs, metavar="PxQ[,PxQ]", help="process grids of A and B: see above")
    parser.add_argument("--block", type=pairs, metavar="MBxNB[,MBxNB]", help="blocks of A and B, with --grid")
    parser.add_argument("--transa", type=trans, default="N", help="N, T or C (%(default)s)")
    parser.add_argument("--transb", type=trans, default="N", help="N, T or C (%(default)s)")
    parser.add_argument("--chunks", type=size, help="parts in which each shard moves (the planner's choice)")
    parser.add_argument("--no-overlap", action="store_true", help="move all data before the multiplication")


def descriptors(arguments: Namespace, ranks: int) -> tuple[MatrixDescriptor, MatrixDescriptor]:
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
        check_grid(arguments.command, name, desc, ranks)
    return descs


class ProductOptions(TypedDict):
    """Keyword arguments of `plan_matmul`."""

    transa: Trans
    transb: Trans
    out: MatrixDescriptor | None
    chunks: int | None
    overlap: bool


def options(arguments: Namespace, ranks: int) -> ProductOptions:
    """The options that the command line gives: transposition, the layout of D, chunks and overlap."""
    out = arguments.out.descriptor(arguments.m, arguments.n, ranks) if arguments.out else None
    if out is not None:
        check_grid(arguments.command, "D", out, ranks)
    return {
        "transa": arguments.transa,
        "transb": arguments.transb,
        "out": out,
        "chunks": arguments.chunks,
        "overlap": not arguments.no_overlap,
    }


_OPERATIONS = "matmul", "solve", "cholesky", "lu", "qr", "eigh"
_USES = {
    "m": ("matmul", "qr", "lu"),
    "nrhs": ("solve",),
    "b": ("matmul", "solve"),
    "assume_a": ("solve",),
    "algorithm": ("solve", "cholesky", "lu", "qr", "eigh"),
    **dict.fromkeys(("k", "out", "grid", "block", "transa", "transb", "chunks", "no_overlap"), ("matmul",)),
}
"""The operations that take an option, if not all do."""

_PLAN_DETAILS = f"""\
Needs no MPI. That of a product takes no longer for a million ranks than for two.

  pblas plan --m 8192 --n 8192 --k 8192 --ranks 64                  a product
  pblas plan solve --n 65536 --nrhs 100 --ranks 64                  LU, or with --assume-a pos Cholesky, and solves
  pblas plan cholesky --n 65536 --ranks 64 --a 8x8:192x192          also lu, qr (--m, if A is not square) and eigh

The others take A and B in rows unless their layout is given, and --algorithm as the functions of pblas.linalg.
Products:

Without --a, --b, --out and --grid the planner chooses the layouts of A, B and D. With at least one of them, A and B are
row-wise unless their layout is given, and the planner chooses the layout of D only.

{_LAYOUTS}"""


def add_plan(commands: Commands, rank: int) -> None:
    text = "Print which data a product, a factorization or a solver moves, and how much."
    parser = add_command(commands, "plan", rank, run_plan, text, _PLAN_DETAILS)
    parser.add_argument(
        "operation", nargs="?", choices=_OPERATIONS, default="matmul", help="the operation (%(default)s)"
    )
    add_product(parser)
    parser.add_argument("--ranks", type=size, required=True, help="number of ranks")
    parser.add_argument("--nrhs", type=extent, help="of solve: columns of B (1)")
    parser.add_argument("--assume-a", choices=("gen", "pos"), help="of solve: any A, or a positive definite one (gen)")
    parser.add_argument("--algorithm", help="of factorizations and eigh: as in pblas.linalg (auto)")
    parser.set_defaults(parser=parser)
    names = ", ".join(PRESETS)
    parser.add_argument(
        "--simulate", type=machine, metavar="MACHINE", help=f"predict the time on a machine: {names}, or FILE.toml"
    )


def machine(text: str) -> Hardware:
    """The preset of this name, or the hardware of a TOML file."""
    try:
        return find_hardware(text)
    except PblasError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run_plan(arguments: Namespace, console: Console) -> int:
    """Print the plans, and the simulated times if they are asked for."""
    product = arguments.operation == "matmul"
    missing = [name for name in ("mnk" if product else "n") if getattr(arguments, name) is None]
    if missing:
        options_text = ", ".join(f"--{name}" for name in missing)
        arguments.parser.error(f"the following arguments are required: {options_text}")
    _check_options(arguments, arguments.parser.parse_args([arguments.operation, "--ranks", "1"]))
    plans = [_product_plan(arguments)] if product else _plans(arguments)
    for plan in plans:
        console.print(plan.explain(), soft_wrap=True)
    for plan in plans if arguments.simulate else ():
        console.print(str(plan.simulate(arguments.simulate)), soft_wrap=True)
    return 0


def _product_plan(arguments: Namespace) -> Plan:
    """The plan of a product."""
    from pblas.matmul.api import plan_matmul

    ranks = arguments.ranks
    operands: tuple[Any, ...] = arguments.m, arguments.n, arguments.k
    if arguments.a or arguments.b or arguments.out or arguments.grid or arguments.block:  # else the planner chooses
        operands = descriptors(arguments, ranks)
    settings: Any = {"dtype": arguments.dtype, "nprocs": ranks, "hardware": arguments.simulate}
    return plan_matmul(*operands, **options(arguments, ranks), **settings).plan


def _check_options(arguments: Namespace, defaults: Namespace) -> None:
    """Raise ArgumentError for an option that the operation does not take."""
    for name, operations in _USES.items():
        if arguments.operation not in operations and getattr(arguments, name) != getattr(defaults, name):
            option, others = name.replace("_", "-"), " and ".join(f"plan {x}" for x in operations)
            raise ArgumentError(f"plan {arguments.operation}: --{option} is for {others}; leave it out")


def _plans(arguments: Namespace) -> list[Plan]:
    """The plans of the steps of a factorization or a solver."""
    from pblas.factor import arguments as checks
    from pblas.factor.cholesky import plan_cholesky
    from pblas.factor.lu import plan_lu
    from pblas.factor.qr import plan_qr
    from pblas.factor.solve_plan import solve_plans
    from pblas.spectral.eigh import plan_eigh

    ranks, n, operation = arguments.ranks, arguments.n, arguments.operation
    algorithm: Any = arguments.algorithm or "auto"
    a = (arguments.a or Named("row")).descriptor(n if arguments.m is None else arguments.m, n, ranks)
    check_grid("plan", "A", a, ranks)
    options: Any = {"algorithm": algorithm, "dtype": arguments.dtype, "nprocs": ranks, "hardware": arguments.simulate}
    if operation != "solve":
        planners: dict[str, Any] = {"cholesky": plan_cholesky, "lu": plan_lu, "qr": plan_qr, "eigh": plan_eigh}
        plan: Plan = planners[operation](a, **options).plan
        return [plan]
    assume_a: Any = arguments.assume_a or "gen"
    dtype, _, topology = checks.of_descriptor("plan", a, arguments.dtype, ranks, arguments.simulate)
    checks.check_algorithm("plan", "cholesky" if assume_a == "pos" else "lu", a, algorithm, gpus=topology.gpus)
    b = (arguments.b or Named("row")).descriptor(n, 1 if arguments.nrhs is None else arguments.nrhs, ranks)
    check_grid("plan", "B", b, ranks)
    return solve_plans(a, b, dtype.name, ranks, topology, assume_a=assume_a, algorithm=algorithm)


_TRACE_DETAILS = f"""\
The last of several executions is recorded. FILE.json is for Perfetto (https://ui.perfetto.dev), FILE.png and FILE.svg
are pictures. The time of each kind of operation is printed. With an existing trace file, nothing is run.

  mpiexec -n 4 python -m mpi4py -m pblas trace --m 4096 --n 4096 --k 4096 -o trace.json
  python -m pblas trace trace.json -o trace.png

{_LAYOUTS}"""


def add_trace(commands: Commands, rank: int) -> None:
    parser = add_command(
        commands, "trace", rank, run_trace, "Record when each rank multiplies, copies, adds and waits.", _TRACE_DETAILS
    )
    parser.add_argument("trace", nargs="?", metavar="TRACE.json", help="an existing trace, instead of a product")
    add_product(parser)
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


def run_trace(arguments: Namespace, console: Console) -> int:
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
