"""`solve`: solve the equations of two files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.backends.settings import TIMEOUT
from pblas.cli.output import add_command, check_output, dtype, make_progress
from pblas.config import bytes_text
from pblas.errors import BackendError, FileFormatError

if TYPE_CHECKING:
    from rich.console import Console

    from pblas.backends.dtypes import Array
    from pblas.context import Context
    from pblas.layouts import MatrixDescriptor
    from pblas.matrices.matrix import DistMatrix

_DETAILS = """\
Every rank reads and writes only its own part of the files, so A may be larger than one rank's memory. A is read into
the layout in which it is factored, and is factored in place. Under MPI start it as

  mpiexec -n 4 python -m mpi4py -m pblas solve A.npy b.npy -o x.npy

A is n x n. b has n rows and any number of columns; a .npy file may also hold one dimension of n elements, and then x
has one dimension too (a column, in an .h5 file).

--assume-a gen   any matrix, by LU with partial pivoting (the default)
--assume-a pos   a Hermitian positive definite one, by Cholesky in half the time; its lower triangle is read
"""


def add_parser(commands: Any, rank: int) -> None:
    """Add the command."""
    parser = add_command(commands, "solve", rank, run, text="Solve A x = b, with .npy or .h5 files.", details=_DETAILS)
    parser.add_argument("a", metavar="A.npy")
    parser.add_argument("b", metavar="b.npy")
    parser.add_argument("-o", "--output", required=True, metavar="x.npy")
    parser.add_argument("--assume-a", choices=("gen", "pos"), default="gen", help="see above (%(default)s)")
    parser.add_argument("--dtype", type=dtype, help="convert A and b to this dtype")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds to wait for a rank (%(default)s)")


def run(arguments: Any, console: Console) -> int:
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
            check_rows("solve", a.shape[0], len(b), "rows")
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
        return vector, True
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
