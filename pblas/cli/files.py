"""`matmul`: multiply the matrices of two files into a third; `solve`: solve the equations of two files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.backends.settings import TIMEOUT
from pblas.cli.layout import on_grids
from pblas.cli.output import add_command, check_output, dtype, make_progress, pairs, scalar, trans
from pblas.config import bytes_text
from pblas.errors import BackendError, FileFormatError

if TYPE_CHECKING:
    from argparse import Namespace

    from rich.console import Console

    from pblas.backends.dtypes import Array
    from pblas.context import Context
    from pblas.layouts import MatrixDescriptor
    from pblas.matrices.matrix import DistMatrix

_MATMUL_DETAILS = """\
Every rank reads and writes only its own part of the files, so matrices may be larger than one rank's memory.

--grid is the process grid of the stored A and B (process rows x process columns):
  Px1      row-wise: each rank has whole rows (the default, with P ranks)
  1xP      column-wise: each rank has whole columns
  1xP,Px1  A column-wise, B row-wise
  PxQ      blocks over P process rows and Q process columns
--block MBxNB deals out rows in blocks of MB and columns in blocks of NB; without it each rank has one block. D gets the
layout that moves the fewest bytes, and C the layout of D. `plan` with the same --grid and --block prints what moves.
"""


def add_matmul(commands: Any, rank: int) -> None:
    parser = add_command(
        commands, "matmul", rank, run_matmul, "D = alpha op(A) op(B) + beta C, with .npy or .h5 files.", _MATMUL_DETAILS
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


def run_matmul(arguments: Namespace, console: Console) -> int:
    """Read, multiply, write."""
    from pblas.context import Context
    from pblas.matmul.api import plan_matmul

    check_output("matmul", arguments.output)
    with Context(timeout=arguments.timeout) as ctx, make_progress(console) as progress:
        bar = progress.add_task("read", total=4)
        layouts = on_grids(arguments.grid or ((ctx.nprocs, 1), (ctx.nprocs, 1)), arguments.block)
        a, b = (
            ctx.load(path, layout.descriptor(*_shape(path), order=arguments.order), arguments.dtype)
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


_SOLVE_DETAILS = """\
Every rank reads and writes only its own part of the files, so A may be larger than one rank's memory. A is read into
the layout in which it is factored, and is factored in place. Under MPI start it as

  mpiexec -n 4 python -m mpi4py -m pblas solve A.npy b.npy -o x.npy

A is n x n. b has n rows and any number of columns; a .npy file may also hold one dimension of n elements, and then x
has one dimension too (a column, in an .h5 file).

--assume-a gen   any matrix, by LU with partial pivoting (the default)
--assume-a pos   a Hermitian positive definite one, by Cholesky in half the time; its lower triangle is read
"""


def add_solve(commands: Any, rank: int) -> None:
    parser = add_command(commands, "solve", rank, run_solve, "Solve A x = b, with .npy or .h5 files.", _SOLVE_DETAILS)
    parser.add_argument("a", metavar="A.npy")
    parser.add_argument("b", metavar="b.npy")
    parser.add_argument("-o", "--output", required=True, metavar="x.npy")
    parser.add_argument("--assume-a", choices=("gen", "pos"), default="gen", help="see above (%(default)s)")
    parser.add_argument("--dtype", type=dtype, help="convert A and b to this dtype")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds to wait for a rank (%(default)s)")


def run_solve(arguments: Namespace, console: Console) -> int:
    """Read, factor, solve, write."""
    from pblas.context import Context
    from pblas.factor.arguments import check_rows, check_square
    from pblas.factor.cholesky import plan_cholesky
    from pblas.factor.lu import plan_lu
    from pblas.factor.solvers import solve
    from pblas.matrices.files import format_of

    check_output("solve", arguments.output)
    with Context(timeout=arguments.timeout) as ctx, make_progress(console) as progress:
        bar = progress.add_task("read", total=1.0)
        a = ctx.load(arguments.a, _factorization_layout(ctx, arguments.a), arguments.dtype)
        b: Any  # a matrix or an array, and x is the same
        b, is_vector = _right_hand_sides(ctx, arguments.b, arguments.dtype)
        with ctx.runtime.local_step("solve"):  # before the plan is printed
            check_square("solve", a.desc)
            check_rows("solve", a.shape, len(b), "rows")
        with plan_cholesky(a) if arguments.assume_a == "pos" else plan_lu(a) as planned:
            console.print(planned.explain(), soft_wrap=True)
        start = time.perf_counter()
        x: Any = solve(
            *(a, b),
            assume_a=arguments.assume_a,
            overwrite_a=True,
            progress=lambda stage, done: progress.update(bar, description=stage, completed=done),
        )
        seconds = time.perf_counter() - start
        progress.update(bar, description="write", completed=1.0)
        if not is_vector:
            x.save(arguments.output)
        elif format_of("solve", arguments.output) == "hdf5":
            ctx.from_global(x[:, None], root=None).save(arguments.output)
        else:
            _save_vector(ctx, x, arguments.output)
        line = f"{' x '.join(map(str, x.shape))} {x.dtype.name}, {bytes_text(x.nbytes)}, solved in {seconds:.3g} s"
    console.print(f"{arguments.output}: {line}", soft_wrap=True)
    return 0


def _factorization_layout(ctx: Context, path: str) -> MatrixDescriptor:
    """The layout in which the matrix in a file is factored, in place; 0 x 0 for a file that `ctx.load` refuses."""
    from pblas.factor.lu import plan_lu
    from pblas.layouts import MatrixDescriptor

    by_columns = MatrixDescriptor.column_wise(*_shape(path), ctx.nprocs)
    layout: MatrixDescriptor = plan_lu(by_columns, dtype="float64", nprocs=ctx.nprocs).plan.w
    return layout


def _shape(path: str) -> tuple[int, int]:
    """Rows and columns of the matrix in a file; 0 x 0 if it is unreadable: `Context.load` says so on all ranks."""
    from pblas.matrices.files import read_header

    try:
        return read_header(path).shape
    except (BackendError, FileFormatError):
        return 0, 0


def _right_hand_sides(ctx: Context, path: str, dtype: str | None) -> tuple[DistMatrix | Array, bool]:
    """**Collective.** The matrix in a file, in columns over the ranks; or an array of one dimension, and True."""
    from pblas.layouts import MatrixDescriptor

    with ctx.runtime.local_step("solve"):
        vector = _vector(path)
    if vector is not None:
        return vector if dtype is None else vector.astype(dtype), True
    return ctx.load(path, MatrixDescriptor.column_wise(*_shape(path), ctx.nprocs), dtype), False


def _vector(path: str) -> Array | None:
    """The array of one dimension in a .npy file; None for any other file."""
    if Path(path).suffix.lower() != ".npy" or not Path(path).is_file():
        return None
    try:
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception:  # noqa: BLE001 - NumPy raises many kinds for other files; `Context.load` says what is wrong
        return None
    return np.array(stored) if stored.ndim == 1 else None


def _save_vector(ctx: Context, x: Array, path: str) -> None:
    """**Collective.** Write an array of one dimension, equal on all ranks, to a .npy file."""
    from pblas.matrices.complete_files import begin, discard, finish

    temporary = ""
    try:
        with ctx.runtime.local_step("solve: write the file"):
            if ctx.rank == 0:
                temporary, file = begin(path)
                with file:
                    np.save(file, x)
                finish(temporary, path)
        ctx.runtime.agree("solve: write the file", {})
    finally:
        discard(temporary)
