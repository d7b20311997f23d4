"""How much faster are level 3 of PBLAS and the factorizations on several GPUs than on one?

mpiexec -n P python -m mpi4py -m benchmarks.gpu.scaling [--sizes 16384] [--operations syrk lu] [--json FILE]

Public calls on n x n matrices of float64, whose columns are dealt in blocks to a 1 x P grid: products by their plans,
the factorizations in place. The copy that restores an overwritten matrix is not counted. A time is that of the slowest
rank, from a barrier until its GPU is idle; a row has the median and the least.

Each result is checked with a random vector x: both sides of an equation are multiplied by it, and their largest
difference, over n eps and the largest element, is at most 30. Cholesky and LU solve a system, whose residual counts
over n^1.5 eps and the largest element of the solution.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from rich.console import Console

import pblas
from benchmarks import results_file
from benchmarks.gpu.rows import about
from benchmarks.rounds import together
from pblas import MatrixDescriptor, blas, linalg

MOST = 30.0
FLOPS = {
    "gemm": 2.0,
    "syrk": 1.0,
    "syr2k": 2.0,
    "symm": 2.0,
    "trmm": 1.0,
    "trsm": 1.0,
    "cholesky": 1 / 3,
    "lu": 2 / 3,
    "qr": 4 / 3,
}
"""Flops over n^3."""
FACTORIZATIONS: dict[str, Callable[..., Any]] = {
    "cholesky": linalg.cho_factor,
    "lu": linalg.lu_factor,
    "qr": linalg.qr_factor,
}


class Case:
    """One operation on n x n matrices A, B and C.

    Args:
        ctx: the context whose ranks compute.
        operation: a key of `FLOPS`.
        n: order of the matrices.
        nb: columns of a block.
    """

    def __init__(self, ctx: pblas.Context, operation: str, n: int, nb: int) -> None:
        self.operation, self.n = operation, n
        desc = MatrixDescriptor.column_wise(n, n, ctx.nprocs, nb=nb)
        self.A, self.B = (ctx.random(desc, seed=seed, distribution="normal") for seed in (1, 2))
        self.C = ctx.zeros(desc)
        if operation in ("cholesky", "trsm", "trmm"):  # positive definite, and a triangle of small condition
            pblas.elementwise("a + d * e", a=self.A, e=ctx.eye(desc), d=4 * n**0.5, out=self.A)
        self._planned: Any = None
        if operation == "gemm":
            self._planned = pblas.plan_matmul(self.A, self.B, out=self.C)
        elif operation == "syrk":
            self._planned = blas.plan_syrk(self.A, out=self.C)
        elif operation == "trsm":
            self._planned = blas.plan_trsm(self.A, self.C, out=self.C)
        elif operation not in FACTORIZATIONS:
            self._planned = getattr(blas, f"plan_{operation}")(self.A, self.B, out=self.C)

    def seconds(self, settle: Callable[[], Any]) -> float:
        """**Collective.** Seconds of one execution; before it the overwritten matrix is restored."""
        if self.operation in FACTORIZATIONS:
            pblas.elementwise("a", a=self.A, out=self.C)
            return together(lambda: FACTORIZATIONS[self.operation](self.C, overwrite_a=True), settle)
        if self.operation == "trsm":
            pblas.elementwise("b", b=self.B, out=self.C)
            return together(lambda: self._planned.execute(self.A, self.C, out=self.C), settle)
        operands = (self.A,) if self.operation == "syrk" else (self.A, self.B)
        return together(lambda: self._planned.execute(*operands, out=self.C), settle)

    def error(self, settle: Callable[[], Any]) -> float:
        """**Collective.** The largest error of the result, over n eps and the largest element."""
        A, B, C, x = self.A, self.B, self.C, np.random.default_rng(3).standard_normal(self.n)
        solved = self.operation in ("cholesky", "lu")
        if self.operation in FACTORIZATIONS:
            pblas.elementwise("a", a=A, out=C)
            factor = FACTORIZATIONS[self.operation](C, overwrite_a=True)
        else:
            self.seconds(settle)
        if solved:
            y = factor.solve(x)
            got, expected = (blas.symv if self.operation == "cholesky" else blas.gemv)(A, y), x
        elif self.operation == "qr":
            got, expected = blas.gemv(factor.q(), blas.gemv(factor.r(), x)), blas.gemv(A, x)
        elif self.operation == "gemm":
            got, expected = blas.gemv(C, x), blas.gemv(A, blas.gemv(B, x))
        elif self.operation == "syrk":
            got, expected = blas.symv(C, x), blas.gemv(A, blas.gemv(A, x, trans="T"))
        elif self.operation == "syr2k":
            first, second = (blas.gemv(X, blas.gemv(Y, x, trans="T")) for X, Y in ((A, B), (B, A)))
            got, expected = blas.symv(C, x), first + second
        elif self.operation == "symm":
            got, expected = blas.gemv(C, x), blas.symv(A, blas.gemv(B, x))
        elif self.operation == "trmm":
            got, expected = blas.gemv(C, x), blas.trmv(A, blas.gemv(B, x))
        else:
            got, expected = blas.trmv(A, blas.gemv(C, x)), blas.gemv(B, x)
        size = self.n**0.5 * abs(y).max() if solved else abs(expected).max()
        return float(abs(got - expected).max()) / float(self.n * np.finfo(np.float64).eps * size)

    def close(self) -> None:
        """**Collective.** Free the plan."""
        if self._planned is not None:
            self._planned.close()


def main() -> None:
    """Measure all sizes, print the rows, and write them to a file if one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=[16384])
    parser.add_argument("--operations", nargs="+", choices=list(FLOPS), default=list(FLOPS))
    parser.add_argument("--nb", type=int, default=512, help="columns of a block (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console, settle = Console(soft_wrap=True), cupy.cuda.runtime.deviceSynchronize
    rows = list[dict[str, Any]]()
    device = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    with pblas.Context(backend="nvshmem", timeout=120.0) as ctx:
        for n in options.sizes:
            for name in options.operations:
                case = Case(ctx, name, n, options.nb)
                error = case.error(settle)
                times = [1e3 * case.seconds(settle) for _ in range(options.rounds)]
                median = statistics.median(times)
                row: dict[str, Any] = {"operation": name, "n": n, "nb": options.nb, "ranks": ctx.nprocs}
                row |= {"ms": {"pblas": round(median, 2)}}
                row |= {"TF/s per rank": round(FLOPS[name] * n**3 / median / 1e9 / ctx.nprocs, 2)}
                row |= {"least, ms": round(min(times), 2), "error": round(error, 4), "wrong": not error <= MOST}
                rows.append(row)
                case.close()
                del case
                if ctx.rank == 0:
                    console.print(row, highlight=False, markup=False)
                    if options.json:
                        results_file.write(options.json, about(device, ctx.nprocs) | {"rows": rows})


if __name__ == "__main__":
    main()
