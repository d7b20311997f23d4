"""`matmul`: multiply the matrices of two files; `solve`: equations; `eigh`: eigenvalues; `convert`: other formats."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.backends.settings import TIMEOUT
from pblas.cli.layout import on_grids
from pblas.cli.output import (
    Commands,
    Console,
    Parser,
    add_command,
    bounds,
    dtype,
    extent,
    make_progress,
    pair,
    pairs,
    scalar,
    trans,
)
from pblas.config import bytes_text
from pblas.errors import ArgumentError, BackendError, FileFormatError
from pblas.matrices import files, hdf5, zarr_folders
from pblas.matrices.complete_files import begin, destination, discard, finish

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

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
layout with the fastest plan, and C the layout of D. `plan` with the same --grid and --block prints what moves.

An .h5 file may hold several matrices: --dataset A=run/a names that of A, --dataset D=product that of the result, which
is added to the file.
"""


def _add_datasets(parser: Parser, operands: str) -> None:
    """Add the options for datasets of .h5 files, and for files that the result replaces."""

    def named(text: str) -> tuple[str, str]:
        operand, _, name = text.partition("=")
        if not name or operand not in operands:
            wanted = ", ".join(f"{operand}=NAME" for operand in operands)
            raise argparse.ArgumentTypeError(f"expected one of {wanted}, got {text!r}")
        return operand, name

    help_text = f"dataset of an .h5 file, of {', '.join(operands)}; may be given several times"
    parser.add_argument(
        "--dataset", type=named, action="append", default=[], metavar=f"{operands[0]}=NAME", help=help_text
    )
    help_text = "replace a file that is read too, or a dataset of that name"
    parser.add_argument("--overwrite", action="store_true", help=help_text)


def _check_output(
    arguments: Namespace, dataset: str | None, inputs: Sequence[str | None], path: str | None = None
) -> None:
    """Check the path of a result before the work, on every rank and with the same result on all of them."""
    command, path = arguments.command, arguments.output if path is None else path
    folder = (Path(path).resolve() if path.lower().endswith(".zarr") else destination(path)).parent
    form = files.format_of(command, path)
    files.checked_dataset(command, path, dataset)
    if not folder.is_dir():
        raise FileFormatError(f"{path}: cannot be written: there is no folder {folder}; make it first")
    if arguments.overwrite or not Path(path).exists():
        return
    if form == "hdf5":
        hdf5.check_is_new(path, dataset)
    elif form == "zarr":
        zarr_folders.check_is_new(path, dataset)
    elif any(name and Path(name).exists() and Path(name).samefile(path) for name in inputs):
        raise ArgumentError(f"{command}: {path} is also read; choose another --output, or replace it by --overwrite")


def add_matmul(commands: Commands, rank: int) -> None:
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
    _add_datasets(parser, "ABCD")
    parser.add_argument(
        "--order", choices=("F", "C"), default="F", help="storage order of local arrays and of D.npy (%(default)s)"
    )
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds to wait for a rank (%(default)s)")


def run_matmul(arguments: Namespace, console: Console) -> int:
    """Read, multiply, write."""
    from pblas.context import Context
    from pblas.matmul.api import plan_matmul

    datasets = dict(arguments.dataset)
    _check_output(arguments, datasets.get("D"), (arguments.a, arguments.b, arguments.c))
    with Context(timeout=arguments.timeout) as ctx, make_progress(console) as progress:
        bar = progress.add_task("read", total=4)
        layouts = on_grids(arguments.grid or ((ctx.nprocs, 1), (ctx.nprocs, 1)), arguments.block)
        a, b = (
            ctx.load(
                *(path, layout.descriptor(*shape_of(path, datasets.get(name)), order=arguments.order), arguments.dtype),
                dataset=datasets.get(name),
            )
            for name, path, layout in zip("AB", (arguments.a, arguments.b), layouts, strict=True)
        )
        options = {"transa": arguments.transa, "transb": arguments.transb, "alpha": arguments.alpha}
        c = None
        if arguments.c:
            layout = plan_matmul(a, b, **options).out
            c = ctx.load(arguments.c, layout, arguments.dtype, dataset=datasets.get("C"))
        progress.update(bar, advance=1, description="plan")
        planned = plan_matmul(a, b, c, beta=arguments.beta, **options)
        console.print(planned.explain(), soft_wrap=True)
        progress.update(bar, advance=1, description="multiply")
        start = time.perf_counter()
        d = planned.execute(a, b, c)
        seconds = time.perf_counter() - start
        progress.update(bar, advance=1, description="write")
        d.save(arguments.output, dataset=datasets.get("D"), overwrite=arguments.overwrite)
        product = planned.plan.product
        flops = (8 if d.dtype.kind == "c" else 2) * product.m * product.n * product.k
    console.print(
        f"{arguments.output}: {d.shape[0]} x {d.shape[1]} {d.dtype.name}, "
        f"{bytes_text(d.dtype.itemsize * d.shape[0] * d.shape[1])}, multiplied in {seconds:.3g} s "
        f"({flops / max(seconds, 1e-9) / 1e9:.1f} GFLOP/s)",
        soft_wrap=True,
    )
    return 0


_CONVERT_DETAILS = """\
The formats are those of the suffixes: .npy, .h5, .zarr, .mtx, and .bin for the elements alone, as Fortran writes. A
.bin file does not tell what it holds: give --shape, --dtype and, if it is stored by rows, --order C. Every rank reads
and writes only its own part. Under MPI start it as

  mpiexec -n 4 python -m mpi4py -m pblas convert A.bin A.h5 --shape 4000x3000 --dtype float64
"""


def add_convert(commands: Commands, rank: int) -> None:
    parser = add_command(
        commands, "convert", rank, run_convert, "Write the matrix of a file to one of another format.", _CONVERT_DETAILS
    )
    parser.add_argument("a", metavar="IN")
    parser.add_argument("output", metavar="OUT")
    parser.add_argument("--dtype", type=dtype, help="dtype of OUT, and of a .bin file IN")
    parser.add_argument("--shape", type=pair, metavar="MxN", help="rows and columns of a .bin file IN")
    parser.add_argument("--offset", type=extent, default=0, help="bytes before the elements of a .bin file IN")
    parser.add_argument("--order", choices=("F", "C"), default="F", help="storage order of both files (%(default)s)")
    parser.add_argument("--rows", type=bounds, metavar="I0:I1", help="the rows to take, from 0 on, without I1")
    parser.add_argument("--columns", type=bounds, metavar="J0:J1", help="the columns to take")
    _add_datasets(parser, "AD")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds to wait for a rank (%(default)s)")


def run_convert(arguments: Namespace, console: Console) -> int:
    """Read, write."""
    from pblas.context import Context

    datasets = dict(arguments.dataset)
    _check_output(arguments, datasets.get("D"), (arguments.a,))
    with Context(timeout=arguments.timeout, order=arguments.order) as ctx, make_progress(console) as progress:
        bar = progress.add_task("read", total=2)

        def shown(stage: str, done: float) -> None:
            progress.update(bar, completed=done + (stage == "write"), description=stage)

        a = ctx.load(
            *(arguments.a, None, arguments.dtype),
            dataset=datasets.get("A"),
            rows=arguments.rows,
            columns=arguments.columns,
            shape=arguments.shape,
            offset=arguments.offset,
            progress=shown,
        )
        a.save(arguments.output, dataset=datasets.get("D"), overwrite=arguments.overwrite, progress=shown)
    m, n = a.shape
    console.print(f"{arguments.output}: {m} x {n} {a.dtype.name}, {bytes_text(a.nbytes)}", soft_wrap=True)
    return 0


_SOLVE_DETAILS = """\
Every rank reads and writes only its own part of the files, so A may be larger than one rank's memory. A is read into
the layout in which it is factored, and is factored in place; it is read again for the residual. Under MPI start it as

  mpiexec -n 4 python -m mpi4py -m pblas solve A.npy b.npy -o x.npy

A is n x n. b has n rows and any number of columns; a .npy file may also hold one dimension of n elements, and then x
has one dimension too (a column, in an .h5 file).

The last lines are the residual, norm(b - A x) / (norm(A) norm(x)) in 1-norms, and an estimate of the reciprocal
condition number of A: below eps x may have no correct digit.

--assume-a gen   any matrix, by LU with partial pivoting (the default)
--assume-a pos   a Hermitian positive definite one, by Cholesky in half the time; its lower triangle is read
"""


def add_solve(commands: Commands, rank: int) -> None:
    parser = add_command(commands, "solve", rank, run_solve, "Solve A x = b, with .npy or .h5 files.", _SOLVE_DETAILS)
    parser.add_argument("a", metavar="A.npy")
    parser.add_argument("b", metavar="b.npy")
    parser.add_argument("-o", "--output", required=True, metavar="x.npy")
    parser.add_argument("--assume-a", choices=("gen", "pos"), default="gen", help="see above (%(default)s)")
    parser.add_argument("--dtype", type=dtype, help="convert A and b to this dtype")
    _add_datasets(parser, "Abx")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds to wait for a rank (%(default)s)")


def run_solve(arguments: Namespace, console: Console) -> int:
    """Read, factor, solve, write."""
    from pblas.context import Context
    from pblas.factor.arguments import check_rows, check_square
    from pblas.factor.cholesky import plan_cholesky
    from pblas.factor.lu import plan_lu
    from pblas.factor.solvers import one_norm, solved

    datasets = dict(arguments.dataset)
    _check_output(arguments, datasets.get("x"), (arguments.a, arguments.b))
    with Context(timeout=arguments.timeout) as ctx, make_progress(console) as progress:
        bar = progress.add_task("read", total=1.0)
        name = datasets.get("A")

        def load() -> DistMatrix:
            return ctx.load(arguments.a, _factorization_layout(ctx, arguments.a, name), arguments.dtype, dataset=name)

        a = load()
        b: Any  # a matrix or an array, and x is the same
        b, is_vector = _right_hand_sides(ctx, arguments.b, datasets.get("b"), arguments.dtype)
        with ctx.runtime.local_step("solve"):  # before the plan is printed
            check_square("solve", a.desc)
            check_rows("solve", a.shape, len(b), "rows")
        with plan_cholesky(a) if arguments.assume_a == "pos" else plan_lu(a, pivoting=None) as planned:
            console.print(planned.explain(), soft_wrap=True)
        is_pos = arguments.assume_a == "pos"
        norm = one_norm(a, is_pos=is_pos)
        _check_finite(ctx, "A or b", norm, b)
        start = time.perf_counter()
        x: Any
        x, rcond = solved(
            *(a, b, arguments.assume_a),
            overwrite_a=True,
            check=True,
            progress=lambda stage, done: progress.update(bar, description=stage, completed=done),
            screens=False,
        )
        seconds = time.perf_counter() - start
        _check_finite(ctx, "x", x)
        columns, right = (ctx.from_global(z[:, None], root=None) if is_vector else z for z in (x, b))
        residual = _residual(load(), columns, right, norm, is_pos=is_pos)
        progress.update(bar, description="write", completed=1.0)
        if is_vector and files.format_of("solve", arguments.output) == "npy":
            _save_vector(ctx, "solve", x, arguments.output)
        else:
            columns.save(arguments.output, dataset=datasets.get("x"), overwrite=arguments.overwrite)
        line = f"{' x '.join(map(str, x.shape))} {x.dtype.name}, {bytes_text(x.nbytes)}, solved in {seconds:.3g} s"
    console.print(f"{arguments.output}: {line}", soft_wrap=True)
    console.print(f"residual {residual:.2g}, reciprocal condition number {rcond:.2g}", soft_wrap=True)
    if rcond < np.finfo(x.dtype).eps:
        console.print("A is ill-conditioned: x may have no correct digit", soft_wrap=True)
    return 0


def _check_finite(ctx: Context, name: str, *values: Any) -> None:
    """**Collective.** Raise ArgumentError if an array, matrix or number has elements that are infinite or NaN."""
    from pblas.matrices.matrix import DistMatrix

    finite = [x.norm("max") if isinstance(x, DistMatrix) else x for x in values]
    with ctx.runtime.local_step("solve"):
        if not all(np.isfinite(x).all() for x in finite):
            raise ArgumentError(f"solve: {name} has elements that are infinite or NaN; nothing is written")
    ctx.runtime.agree("solve: finite elements", {})


def _residual(a: DistMatrix, x: DistMatrix, b: DistMatrix, norm: float, *, is_pos: bool) -> float:
    """**Collective.** norm(B - A X) / (norm(A) norm(X)) in 1-norms; 0 if X is 0."""
    from pblas.blas import hemm

    rest = b - (hemm(a, x, uplo="L") if is_pos else a @ x)
    size = norm * float(x.norm(1))
    return float(rest.norm(1)) / size if size else 0.0


_EIGH_DETAILS = """\
Every rank reads and writes only its own part of the files. A is symmetric or Hermitian; its lower triangle is read.

Without -o only the eigenvalues are computed, which takes less than half of the time. Without --values they are printed.
"""


def add_eigh(commands: Commands, rank: int) -> None:
    about = "Eigenvalues and eigenvectors of a symmetric matrix, with .npy or .h5 files."
    parser = add_command(commands, "eigh", rank, run_eigh, about, _EIGH_DETAILS)
    parser.add_argument("a", metavar="A.npy")
    parser.add_argument("-o", "--output", metavar="V.npy", help="file of the eigenvectors, one in each column")
    parser.add_argument("--values", metavar="w.npy", help="file of the eigenvalues, ascending, in one dimension")
    parser.add_argument("--lowest", type=int, metavar="K", help="compute the K lowest eigenvalues (all)")
    parser.add_argument("--dtype", type=dtype, help="convert A to this dtype")
    _add_datasets(parser, "AV")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds to wait for a rank (%(default)s)")


def run_eigh(arguments: Namespace, console: Console) -> int:
    """Read, compute, write."""
    from pblas.context import Context
    from pblas.layouts import MatrixDescriptor
    from pblas.spectral.eigh import eigh, eigvalsh

    datasets = dict(arguments.dataset)
    if arguments.output is not None:
        _check_output(arguments, datasets.get("V"), (arguments.a,))
    if arguments.values is not None:
        if files.format_of("eigh", arguments.values) != "npy":
            raise ArgumentError(f"eigh: --values must be a .npy file, got {arguments.values}")
        _check_output(arguments, None, (arguments.a, arguments.output), arguments.values)
    with Context(timeout=arguments.timeout) as ctx, make_progress(console) as progress:
        bar, name = progress.add_task("read", total=1.0), datasets.get("A")
        layout = MatrixDescriptor.column_wise(*shape_of(arguments.a, name), ctx.nprocs)
        a = ctx.load(arguments.a, layout, arguments.dtype, dataset=name)
        options: dict[str, Any] = {
            "subset_by_index": None if arguments.lowest is None else [0, arguments.lowest - 1],
            "progress": lambda stage, done: progress.update(bar, description=stage, completed=done),
        }
        start = time.perf_counter()
        v: DistMatrix | None = None
        if arguments.output is None:
            w = eigvalsh(a, **options)
        else:
            w, v = eigh(a, overwrite_a=True, **options)
        seconds = time.perf_counter() - start
        progress.update(bar, description="write", completed=1.0)
        if v is not None:
            v.save(arguments.output, dataset=datasets.get("V"), overwrite=arguments.overwrite)
        if arguments.values is not None:
            _save_vector(ctx, "eigh", w, arguments.values)
    if arguments.values is None:
        console.print("\n".join(map(repr, w.tolist())), soft_wrap=True)
    vectors = "" if v is None else f"{arguments.output}: {v.shape[0]} x {v.shape[1]} {v.dtype.name}; "
    console.print(f"{vectors}{len(w)} eigenvalues in {seconds:.3g} s", soft_wrap=True)
    return 0


_SVD_DETAILS = """\
Every rank reads and writes only its own part of the files. -o PREFIX writes PREFIX_U.npy, PREFIX_S.npy and
PREFIX_Vh.npy. Without -o the singular values are printed.

With -k the K leading ones are computed by products with random vectors; the last line says how far U diag(S) Vh is from
A, as a part of A's Frobenius norm.
"""


def add_svd(commands: Commands, rank: int) -> None:
    about = "Singular values and vectors of a matrix, with .npy or .h5 files."
    parser = add_command(commands, "svd", rank, run_svd, about, _SVD_DETAILS)
    parser.add_argument("a", metavar="A.npy")
    parser.add_argument("-o", "--output", metavar="PREFIX", help="begin of the names of the files that are written")
    parser.add_argument("-k", type=int, metavar="K", help="compute the K leading singular values (all)")
    parser.add_argument("--dtype", type=dtype, help="convert A to this dtype")
    _add_datasets(parser, "A")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds to wait for a rank (%(default)s)")


def run_svd(arguments: Namespace, console: Console) -> int:
    """Read, compute, write."""
    from pblas.context import Context
    from pblas.layouts import MatrixDescriptor
    from pblas.spectral.rsvd import rsvd
    from pblas.spectral.svd import svd, svdvals

    paths = {name: f"{arguments.output}_{name}.npy" for name in ("U", "S", "Vh")} if arguments.output else {}
    for path in paths.values():
        _check_output(arguments, None, (arguments.a,), path)
    name = dict(arguments.dataset).get("A")
    with Context(timeout=arguments.timeout) as ctx, make_progress(console) as progress:
        bar = progress.add_task("read", total=1.0)
        layout = MatrixDescriptor.row_wise(*shape_of(arguments.a, name), ctx.nprocs)
        a = ctx.load(arguments.a, layout, arguments.dtype, dataset=name)
        start = time.perf_counter()
        vectors: dict[str, DistMatrix] = {}
        residual: float | None = None
        if arguments.k is not None:
            vectors["U"], s, vectors["Vh"], residual = rsvd(a, arguments.k)
        elif paths:
            vectors["U"], s, vectors["Vh"] = svd(
                a,
                overwrite_a=True,
                progress=lambda stage, done: progress.update(bar, description=stage, completed=done),
            )
        else:
            s = svdvals(a)
        seconds = time.perf_counter() - start
        progress.update(bar, description="write", completed=1.0)
        for name, x in vectors.items() if paths else ():
            x.save(paths[name])
        if paths:
            _save_vector(ctx, "svd", s, paths["S"])
    if not paths:
        console.print("\n".join(map(repr, s.tolist())), soft_wrap=True)
    written = f"{', '.join(paths.values())}; " if paths else ""
    distance = "" if residual is None else f", residual {residual:.2g}"
    console.print(f"{written}{len(s)} singular values in {seconds:.3g} s{distance}", soft_wrap=True)
    return 0


def _factorization_layout(ctx: Context, path: str, dataset: str | None) -> MatrixDescriptor:
    """The layout in which the matrix in a file is factored, in place; 0 x 0 for a file that `ctx.load` refuses."""
    from pblas.factor.lu import plan_lu
    from pblas.layouts import MatrixDescriptor

    by_columns = MatrixDescriptor.column_wise(*shape_of(path, dataset), ctx.nprocs)
    layout: MatrixDescriptor = plan_lu(by_columns, pivoting=None, dtype="float64", nprocs=ctx.nprocs).plan.w
    return layout


def shape_of(path: str, dataset: str | None = None) -> tuple[int, int]:
    """Rows and columns of the matrix in a file; 0 x 0 if it is unreadable: `Context.load` says so on all ranks."""
    try:
        return files.read_header(path, dataset).shape
    except (BackendError, FileFormatError):
        return 0, 0


def _right_hand_sides(
    ctx: Context, path: str, dataset: str | None, dtype: str | None
) -> tuple[DistMatrix | Array, bool]:
    """**Collective.** The matrix in a file, in columns over the ranks; or an array of one dimension, and True."""
    from pblas.layouts import MatrixDescriptor

    with ctx.runtime.local_step("solve"):
        vector = _vector(path)
    if vector is not None:
        return vector if dtype is None else vector.astype(dtype), True
    desc = MatrixDescriptor.column_wise(*shape_of(path, dataset), ctx.nprocs)
    return ctx.load(path, desc, dtype, dataset=dataset), False


def _vector(path: str) -> Array | None:
    """The array of one dimension in a .npy file; None for any other file."""
    if Path(path).suffix.lower() != ".npy" or not Path(path).is_file():
        return None
    try:
        is_vector = np.load(path, mmap_mode="r", allow_pickle=False).ndim == 1
        return np.load(path) if is_vector else None  # a map of a file that shrinks would end the process
    except Exception:  # noqa: BLE001 - NumPy raises many kinds for other files; `Context.load` says what is wrong
        return None


def _save_vector(ctx: Context, command: str, x: Array, path: str) -> None:
    """**Collective.** Write an array of one dimension, equal on all ranks, to a .npy file."""
    temporary = ""
    try:
        with ctx.runtime.agreed_step(f"{command}: write the file"):
            if ctx.rank == 0:
                temporary, file = begin(path)
                with file:
                    np.save(file, x)
                finish(temporary, path)
    finally:
        discard(temporary)
