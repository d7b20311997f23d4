"""`demo`: each plan multiplies distributed matrices, and the results are checked against NumPy."""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np
from threadpoolctl import threadpool_limits

from pblas.backends.cpu.threads import usable_cores
from pblas.cli.files import shape_of
from pblas.cli.layout import Kind, Named
from pblas.cli.output import SIMPLE_HEAD, Commands, Console, Table, add_command, dtype, make_progress, size
from pblas.config import bytes_text
from pblas.errors import DescriptorError
from pblas.plans.base import ranks_text

if TYPE_CHECKING:
    from argparse import Namespace

    from pblas.backends.dtypes import Array, Dtype
    from pblas.context import Context
    from pblas.matmul.product import PlannedMatmul
    from pblas.matrices.matrix import DistMatrix

_DETAILS = """\
A and B are random, or read from .npy files. The result of each plan is compared with NumPy's on rank 0 in the gauge of
the PBLAS tests, max |D - reference| / (eps |A| |B|), which must not exceed 16; otherwise the exit status is 1.
"""


class Case(NamedTuple):
    """One plan, and layouts of A, B and D for which it is chosen."""

    name: str
    a: Kind
    b: Kind
    d: Kind
    moves: str


CASES = (
    Case("AG(B)", "row", "row", "row", "all-gather B, then multiply"),
    Case("AG(A)", "column", "column", "column", "all-gather A, then multiply"),
    Case("RS", "column", "row", "column", "multiply, then reduce-scatter D"),
    Case("AR", "column", "row", "replicated", "multiply, then all-reduce D"),
)


@dataclass(frozen=True, slots=True)
class Reference:
    """NumPy's product on rank 0."""

    left: Array  # A in its dtype; a 16-bit A in float32 (local)
    right: Array  # B in the dtype of `left` (local)
    product: Array  # A B, computed in a more precise dtype (local)
    growth: Array  # |A| |B|, for the gauge (local)
    threads: int  # BLAS threads for NumPy: all cores of rank 0 (local)

    def seconds(self) -> float:
        """Best time of two products by NumPy, seconds (local).

        In the first product, threads of the other BLAS library may still be polling.
        """
        out = np.empty((self.left.shape[0], self.right.shape[1]), self.left.dtype)
        with threadpool_limits(self.threads, user_api="blas"):
            return min(_time(lambda: np.matmul(self.left, self.right, out=out)) for _ in range(2))


@dataclass(frozen=True, slots=True)
class Result:
    """Best times, seconds, of a plan and of NumPy, and the accuracy of the plan."""

    case: Case
    planned: PlannedMatmul
    seconds: float
    gauge: float
    numpy_seconds: float


def add_parser(commands: Commands, rank: int) -> None:
    parser = add_command(commands, "demo", rank, run, "Multiply with each plan and check the results.", _DETAILS)
    parser.add_argument("--m", type=size, default=2048, help="rows of A and D (%(default)s)")
    parser.add_argument("--n", type=size, default=2048, help="columns of B and D (%(default)s)")
    parser.add_argument("--k", type=size, default=2048, help="columns of A, rows of B (%(default)s)")
    parser.add_argument("--a", metavar="A.npy", help="read A from a file; its sizes replace m and k")
    parser.add_argument("--b", metavar="B.npy", help="read B from a file; its sizes replace k and n")
    parser.add_argument("--dtype", type=dtype, help="dtype of all matrices (float64, or that of A.npy)")
    parser.add_argument(
        "--repeat", type=size, default=3, help="executions of each plan; the table has the best time (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random matrices (%(default)s)")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds to wait for a rank (%(default)s)")


def run(arguments: Namespace, console: Console) -> int:
    """Run all plans; the status is 1 if a check fails."""
    from pblas.context import Context

    with Context(timeout=arguments.timeout) as ctx, make_progress(console) as progress:
        bar = progress.add_task("make the matrices", total=2 + len(CASES))
        operands = Operands(ctx, arguments)
        _print_operands(console, ctx, operands)
        progress.update(bar, advance=1, description="multiply with NumPy, to compare")
        reference = operands.reference()
        results = []
        for case in CASES:
            progress.update(bar, advance=1, description=f"{case.name}: {case.moves}")
            planned = _plan(ctx, operands, case)
            console.print(f"{case.name}: {case.moves}", style="bold")
            console.print(planned.explain(), end="\n\n", soft_wrap=True)
            results.append(_measure(operands, case, planned, reference, arguments.repeat))
        worst = _broadcast_from_rank_0(
            ctx, max((r.gauge for r in results), key=lambda g: math.inf if math.isnan(g) else g)
        )
    if reference is not None:
        console.print(_table(operands, results, reference.threads))
    if not worst <= LIMIT:
        console.print(f"\nFAILED: a result differs from NumPy's by {worst:.3g} in the gauge; the limit is {LIMIT:g}.")
        return 1
    _print_next(console, arguments, operands)
    return 0


class Operands:
    """**Collective.** A and B, random or from files, in the layouts that the cases need."""

    def __init__(self, ctx: Context, arguments: Namespace) -> None:
        self._ctx, self._arguments = ctx, arguments
        shapes: list[tuple[int, int]] = [
            (arguments.m, arguments.k) if arguments.a is None else shape_of(arguments.a),
            (arguments.k, arguments.n) if arguments.b is None else shape_of(arguments.b),
        ]
        (self.m, k), (k_b, self.n) = shapes
        if arguments.a is None:
            k = k_b
        elif arguments.b is None:
            k_b = k
        self.k = k
        self.a: dict[str, DistMatrix] = {
            kind: self._make(arguments.a, kind, self.m, k, seed=0) for kind in ("row", "column")
        }
        self.dtype: Dtype = self.a["row"].dtype
        self.b: dict[str, DistMatrix] = {
            kind: self._make(arguments.b, kind, k_b, self.n, seed=1) for kind in ("row", "column")
        }
        if k != k_b:  # the same on every rank: all have read the same files
            raise DescriptorError(
                f"demo: A and B disagree on K: A is {self.m} x {k}, B is {k_b} x {self.n}; "
                f"columns of A must equal rows of B"
            )

    def _make(self, path: str | None, kind: Kind, m: int, n: int, seed: int) -> DistMatrix:
        desc = Named(kind).descriptor(m, n, self._ctx.nprocs)
        if path is not None:
            return self._ctx.load(path, desc, self._arguments.dtype)
        dtype = self._arguments.dtype or getattr(self, "dtype", "float64")
        return self._ctx.random(desc, dtype, seed=2 * self._arguments.seed + seed)

    @property
    def flops(self) -> int:
        """Operations of one product."""
        return (8 if self.dtype.kind == "c" else 2) * self.m * self.n * self.k

    def reference(self) -> Reference | None:
        """**Collective.** NumPy's product on rank 0, None on the others, which sleep meanwhile."""
        a, b = self.a["row"].to_global(0), self.b["column"].to_global(0)
        if a is None or b is None:
            return None
        threads = len(usable_cores())
        with threadpool_limits(threads, user_api="blas"):
            fast = np.dtype(np.float32) if self.dtype.itemsize == 2 else self.dtype
            left, right = (x.astype(wide(self.dtype), copy=False) for x in (a, b))
            product, growth = left @ right, magnitude(left) @ magnitude(right)
        return Reference(a.astype(fast, copy=False), b.astype(fast, copy=False), product, growth, threads)


def _plan(ctx: Context, operands: Operands, case: Case) -> PlannedMatmul:
    """**Collective.** The plan that a case is named after."""
    from pblas.matmul.api import plan_matmul

    desc = Named(case.d).descriptor(operands.m, operands.n, ctx.nprocs)
    return plan_matmul(operands.a[case.a], operands.b[case.b], out=desc)


def _measure(
    operands: Operands, case: Case, planned: PlannedMatmul, reference: Reference | None, repeat: int
) -> Result:
    """**Collective.** Execute a plan once to warm up and `repeat` times for the time; check the result.

    NumPy's product is timed after each execution, so that both see the same load of the machine.
    """
    a, b = operands.a[case.a], operands.b[case.b]
    d = planned.execute(a, b)
    seconds, numpy_seconds = math.inf, math.inf
    for _ in range(repeat):
        seconds = min(seconds, _time(lambda: planned.execute(a, b, out=d)))
        if reference is not None:  # the other ranks sleep meanwhile, so that both have all cores
            numpy_seconds = min(numpy_seconds, reference.seconds())
    whole = d.to_global(0)
    distance = gauge(whole, reference.product, reference.growth) if reference and whole is not None else 0.0
    planned.close()
    return Result(case, planned, seconds, distance, numpy_seconds)


def _time(call: Any) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _broadcast_from_rank_0(ctx: Context, number: float) -> float:
    """**Collective.** Rank 0's number, on every rank."""
    matrix = ctx.from_global(np.array([[number]]), Named("replicated").descriptor(1, 1, ctx.nprocs))
    return float(matrix.local[0, 0])


def _print_operands(console: Console, ctx: Context, operands: Operands) -> None:
    m, n, k, facts = operands.m, operands.n, operands.k, ctx.describe()
    console.print(f"D = A B: A {m} x {k}, B {k} x {n}, {operands.dtype.name}; {ranks_text(ctx.nprocs)}, ", end="")
    console.print(f"BLAS threads per rank: {facts['BLAS threads per rank']}, cores: {facts['cores for this rank']}")
    console.print(f"{' '.join(facts['MPI library'].split())}; {facts['transport']}\n", soft_wrap=True)
    for title, desc in (("row-wise", operands.a["row"].desc), ("column-wise", operands.a["column"].desc)):
        console.print(f"The owners of A if it is {title}", style="bold")
        console.print(desc.picture(), end="\n\n", soft_wrap=True)


def _table(operands: Operands, results: list[Result], threads: int) -> Table:
    numpy_seconds = min(r.numpy_seconds for r in results)
    dtype, plural = (" in float32" if operands.dtype.itemsize == 2 else ""), ("s" if threads > 1 else "")
    table = Table(
        title=f"Best times, against NumPy{dtype} with {threads} thread{plural} on the whole problem",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
    )
    for header in ("plan", "A", "B", "D"):
        table.add_column(header)
    for header in ("time, s", "GFLOP/s", "of NumPy", "received /rank", "gauge"):
        table.add_column(header.replace(" ", "\n"), justify="right")
    table.add_column("check")
    for r in results:
        good = r.gauge <= LIMIT
        table.add_row(
            *(r.case.name, r.case.a, r.case.b, "all" if r.case.d == "replicated" else r.case.d),
            *(f"{r.seconds:.4f}", f"{operands.flops / r.seconds / 1e9:.1f}", f"{numpy_seconds / r.seconds:.2f}"),
            *(bytes_text(r.planned.plan.max_received_nbytes), f"{r.gauge:.2f}", "ok" if good else "FAILED"),
            style="" if good else "red",
        )
    table.add_section()
    speed = f"{operands.flops / numpy_seconds / 1e9:.1f}"
    table.add_row("NumPy", *[""] * 3, f"{numpy_seconds:.4f}", speed, "1.00", *[""] * 3)
    return table


def _print_next(console: Console, arguments: Namespace, operands: Operands) -> None:
    run_it = "mpiexec -n {} python -m mpi4py -m pblas"
    bigger = 2 * max(operands.m, operands.n, operands.k)
    own = "--a A.npy --b B.npy" if arguments.a is None else "--dtype float32"
    console.print(f"All results agree with NumPy's (the gauge may reach {LIMIT:g}). Try next", style="bold")
    is_inactive = sys.prefix != sys.base_prefix and "VIRTUAL_ENV" not in os.environ
    for command, purpose in (
        *(
            [(f". {os.path.relpath(sys.prefix)}/bin/activate", "activates the environment of this program")]
            if is_inactive
            else []
        ),
        (f"{run_it.format(2)} demo --m {bigger} --n {bigger} --k {bigger}", "larger, on two ranks"),
        (f"{run_it.format(4)} demo {own}", "other matrices"),
        (f"{run_it.format(4)} matmul A.npy B.npy -o D.npy", "files larger than one rank's memory"),
        (
            "python -m pblas plan --m 8192 --n 8192 --k 8192 --ranks 8",
            "the data that a product moves, without running it",
        ),
        ("python -m pblas layout 20 12 --block 4x3 --grid 2x3", "draw a block-cyclic layout"),
        ("python -m pblas info", "MPI, BLAS, GPUs and missing packages on this machine"),
        *(
            [("mpiexec -n 4 python -m mpi4py examples/pca.py", "principal components of scikit-learn's digits")]
            if Path("examples/pca.py").exists()  # in a checkout; the wheel has no examples
            else []
        ),
    ):
        console.print(f"  {command}\n      {purpose}", soft_wrap=True)


LIMIT = 16.0


def wide(dtype: Dtype) -> Dtype:
    """The dtype of the reference: a more precise one, if NumPy multiplies it fast."""
    if dtype.itemsize == 2:
        return np.dtype(np.float32)
    return np.dtype(np.complex128 if dtype.kind == "c" else np.float64)


def magnitude(a: Array) -> Array:
    """|a|, for complex numbers |Re a| + |Im a|."""
    return np.abs(a.real) + np.abs(a.imag) if a.dtype.kind == "c" else np.abs(a)


def gauge(d: Array, reference: Array, growth: Array) -> float:
    """max |D - reference| / (eps G), with the machine epsilon of D's dtype.

    Source: PBLAS TESTING, pblastst.f, PZMMCH, with eps = numpy.finfo(dtype).eps.

    >>> one = np.ones((1, 1))
    >>> gauge(one + 2**-52, one, one)
    1.0
    """
    if not d.size:
        return 0.0
    eps = float(ml_dtypes.finfo(d.dtype).eps)  # type: ignore[no-untyped-call]
    error = np.abs(d.astype(reference.dtype) - reference)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(error == 0, 0.0, error / (eps * growth))
    return float(ratio.max())
