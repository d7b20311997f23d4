"""`matmul`: multiply the matrices of two files into a third."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pblas.backends.settings import TIMEOUT
from pblas.cli.layout_spec import OnGrid, on_grids
from pblas.cli.output import add_command, check_output, dtype, make_progress, pairs, scalar, trans
from pblas.config import bytes_text
from pblas.errors import BackendError, FileFormatError

if TYPE_CHECKING:
    from rich.console import Console

    from pblas.layouts import MatrixDescriptor

_DETAILS = """\
Every rank reads and writes only its own part of the files, so matrices may be larger than one rank's memory.

--grid is the process grid of the stored A and B (process rows x process columns):
  Px1      row-wise: each rank has whole rows (the default, with P ranks)
  1xP      column-wise: each rank has whole columns
  1xP,Px1  A column-wise, B row-wise
  PxQ      blocks over P process rows and Q process columns
--block MBxNB deals out rows in blocks of MB and columns in blocks of NB; without it each rank has one block. D gets the
layout that moves the fewest bytes, and C the layout of D. `plan` with the same --grid and --block prints what moves.
"""


def add_parser(commands: Any, rank: int) -> None:
    """Add the command."""
    parser = add_command(
        commands, "matmul", rank, run, text="D = alpha op(A) op(B) + beta C, with .npy or .h5 files.", details=_DETAILS
    )
    parser.add_argument("a", metavar="A.npy")
    parser.add_argument("b", metavar="B.npy")
    parser.add_argument("-o", "--output", required=True, metavar="D.npy")
    parser.add_argument("--transa", type=trans, default="N", help="N, T or C (%(default)s)")
    parser.add_argument("--transb", type=trans, default="N", help="N, T or C (%(default)s)")
    parser.add_argument("--alpha", type=scalar, default=1.0, help="factor of op(A) op(B) (%(default)s)")
    parser.add_argument("--beta", type=scalar, help="factor of C (1 with --c, else 0)")
    parser.add_argument("--c", metavar="C.npy", help="matrix to add")
    parser.add_argument("--grid", type=pairs, metavar="PxQ[,PxQ]", help="see above")
    parser.add_argument("--block", type=pairs, metavar="MBxNB[,MBxNB]", help="see above")
    parser.add_argument("--dtype", type=dtype, help="convert the matrices to this dtype")
    parser.add_argument(
        "--order", choices=("F", "C"), default="F", help="storage order of local arrays and of D.npy (%(default)s)"
    )
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds to wait for a rank (%(default)s)")


def run(arguments: Any, console: Console) -> int:
    """Read, multiply, write."""
    from pblas.context import Context
    from pblas.matmul.api import plan_matmul

    check_output("matmul", arguments.output)
    with Context(timeout=arguments.timeout) as ctx, make_progress(console) as progress:
        bar = progress.add_task("read", total=4)
        layouts = on_grids(arguments.grid or ((ctx.nprocs, 1), (ctx.nprocs, 1)), arguments.block)
        a, b = (
            ctx.load(path, _descriptor(path, layout, arguments.order), arguments.dtype)
            for path, layout in zip((arguments.a, arguments.b), layouts, strict=True)
        )
        options = {"transa": arguments.transa, "transb": arguments.transb, "alpha": arguments.alpha}
        c = None
        if arguments.c:
            layout = plan_matmul(a, b, **options).out
            c = ctx.load(arguments.c, layout, arguments.dtype)
        progress.update(bar, advance=1, description="plan")
        planned = plan_matmul(a, b, c, beta=arguments.beta, **options)
        console.print(planned.explain(), soft_wrap=True)
        progress.update(bar, advance=1, description="multiply")
        start = time.perf_counter()
        d = planned.execute(a, b, c)
        seconds = time.perf_counter() - start
        progress.update(bar, advance=1, description="write")
        d.save(arguments.output)
        product = planned.plan.product
        flops = (8 if d.dtype.kind == "c" else 2) * product.m * product.n * product.k
    console.print(
        f"{arguments.output}: {d.shape[0]} x {d.shape[1]} {d.dtype.name}, "
        f"{bytes_text(d.dtype.itemsize * d.shape[0] * d.shape[1])}, multiplied in {seconds:.3g} s "
        f"({flops / max(seconds, 1e-9) / 1e9:.1f} GFLOP/s)",
        soft_wrap=True,
    )
    return 0


def _descriptor(path: str, layout: OnGrid, order: Any) -> MatrixDescriptor:
    """The descriptor of the matrix in a file; 0 x 0 if it is unreadable, which `Context.load` reports on all ranks."""
    from pblas.matrices.files import read_header

    try:
        m, n = read_header(path).shape
    except (BackendError, FileFormatError):
        m, n = 0, 0
    return layout.descriptor(m, n, order=order)
