"""How fast are Cholesky, LU and QR by panels on one GPU, compared with cuSOLVER?

python -m mpi4py -m benchmarks.gpu.factor [--kinds cholesky lu qr tall] [--sizes 8192 16384] [--json FILE]

Columns of one n, on the same random float64 matrix, are timed in rounds of rotated order. "blocked NB" is pblas'
factorization in place, by panels of NB columns; "local" is pblas with cuSOLVER for the whole matrix; "cuSOLVER" is
cusolverDnXpotrf, Xgetrf or Xgeqrf called by itself. The copy of A to W is not counted in any of them, except in the
columns "with Q", calls of `linalg.qr`. Each result is checked with a random vector x: norm(P A x - L U x), over
n norm(A) norm(x) eps, is at most 30.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
from rich.console import Console

import pblas
from benchmarks import results_file
from benchmarks.gpu.qr import QrCase, TallCase
from benchmarks.gpu.rows import about, rotated
from pblas import MatrixDescriptor, linalg
from pblas.backends.cuda.lapack import Lapack

MOST = 30.0
EPS = 2.0**-53
FLOPS = {"cholesky": 1 / 3, "lu": 2 / 3}
KINDS = (*FLOPS, "qr", "tall")
TALL = 4_000_000, 128


class Case:
    """A factorization of one n x n matrix: cuSOLVER's and pblas' columns.

    Args:
        ctx: a context of one rank on a GPU.
        kind: "cholesky" or "lu".
        n: order of the matrix.
        widths: columns of panels.
    """

    def __init__(self, ctx: pblas.Context, kind: str, n: int, widths: list[int]) -> None:
        self.kind, self.n, self.flops = kind, n, FLOPS[kind] * n**3
        rng = cupy.random.RandomState(n)
        self.a: Any = cupy.empty((n, n), order="F")
        for j in range(0, n, 1024):
            self.a[:, j : j + 1024] = rng.standard_normal((n, min(1024, n - j)))
        if kind == "cholesky":  # symmetric, and dominated by its diagonal
            for j in range(0, n, 1024):
                block, after = slice(j, j + 1024), j + 1024
                lower = cupy.tril(self.a[block, block])
                self.a[block, block] = lower + cupy.tril(lower, -1).T
                self.a[block, after:] = self.a[after:, block].T
            diagonal = cupy.arange(n)
            self.a[diagonal, diagonal] = 4.0 * n**0.5
        self.w = ctx.empty(MatrixDescriptor.column_wise(n, n, 1), "float64")
        self.pivots: Any = cupy.zeros(n, cupy.int64)
        self._info: Any = cupy.zeros(1, cupy.int64)
        self._memory: list[Any] = []
        self._lapack = Lapack(self._empty, self._memory.append)
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._plans: list[Any] = []
        self.columns: dict[str, Callable[[], None]] = {"cuSOLVER": self._library}
        plan: Any = linalg.plan_cholesky if kind == "cholesky" else linalg.plan_lu
        for width in widths:
            desc = MatrixDescriptor.column_wise(n, n, 1, nb=width)
            self._add(f"blocked {width}", plan(ctx.from_local(self.w.local, desc), algorithm="blocked"))
        self._add("local", plan(self.w, algorithm="local"))

    def _empty(self, nbytes: int) -> Any:
        self._memory.append(cupy.empty(nbytes, cupy.uint8))
        return self._memory[-1]

    def _add(self, name: str, planned: Any) -> None:
        """The column of a plan: its executor, between the agreements of an execution."""
        self._plans.append(planned)
        executor, arrays = planned._executor, planned._runtime.backend.arrays  # noqa: SLF001 - the copy is not timed
        arrays.begin()

        def run() -> None:
            executor.publish(self.w.local)
            executor.run(self.w.local)
            arrays.synchronize()
            executor.finish()
            if self.kind == "lu":
                self.pivots[:] = cupy.asarray(executor.pivots)

        self.columns[name] = run

    def _library(self) -> None:
        stream = int(self._stream.ptr)
        if self.kind == "cholesky":
            self._lapack.potrf(stream, self.w.local, self._info)
        else:
            self._lapack.getrf(stream, self.w.local, self.pivots, self._info)
        self._stream.synchronize()

    def seconds(self, name: str) -> float:
        """Time of one execution."""
        self.w.local[...] = self.a
        cupy.cuda.runtime.deviceSynchronize()
        start = time.perf_counter()
        self.columns[name]()
        return time.perf_counter() - start

    def check(self, name: str) -> float:
        """The residual of a column, with a random vector."""
        self.seconds(name)
        factor, x = self.w.local, cupy.random.RandomState(1).standard_normal(self.n)
        if self.kind == "cholesky":
            difference = self.a @ x - self._times(factor, self._times(factor, x, upper=True, trans=True), upper=False)
        else:
            y = self._times(factor, x, upper=True)
            product = self._times(factor, y, upper=False, unit=True)
            rows = list(range(self.n))
            for i, p in enumerate(self.pivots.get() - 1):
                rows[i], rows[p] = rows[p], rows[i]
            difference = (self.a @ x)[cupy.asarray(rows)] - product
        size = float(cupy.linalg.norm(self.a)) * float(cupy.linalg.norm(x))
        return float(cupy.linalg.norm(difference)) / (self.n * size * EPS)

    def _times(self, factor: Any, x: Any, *, upper: bool, unit: bool = False, trans: bool = False) -> Any:
        """A triangle of the factor times x; with `trans` the lower triangle is transposed to an upper one."""
        y = cupy.zeros_like(x)
        for j in range(0, self.n, 1024):
            columns = slice(j, min(j + 1024, self.n))
            block = factor[:, columns]
            if trans:
                y[columns] = cupy.tril(block, -j).T @ x
            elif upper:
                y += cupy.triu(block, -j) @ x[columns]
            else:
                y += cupy.tril(block, -j - unit) @ x[columns]
                if unit:
                    y[columns] += x[columns]
        return y

    def close(self) -> None:
        """Free plans and memory."""
        self._lapack.close()
        for planned in self._plans:
            planned.close()


def main() -> None:
    """Measure all sizes, print the medians, and write them to a file if one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=[8192, 16384, 32768])
    parser.add_argument("--widths", nargs="+", type=int)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console, reports = Console(soft_wrap=True), []
    with pblas.Context(backend="cuda", timeout=120.0) as ctx:
        name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
        for kind in options.kinds:
            for n in options.sizes if kind != "tall" else [TALL[1]]:
                case: Any
                if kind == "tall":
                    case = TallCase(ctx, *TALL)
                elif kind == "qr":
                    case = QrCase(ctx, n, n, options.widths or [])
                else:
                    case = Case(ctx, kind, n, options.widths or [512, 1024])
                names = list(case.columns)
                ratios = {column: round(case.check(column), 3) for column in names}
                first = {column: round(1e3 * case.seconds(column), 1) for column in names}
                times: dict[str, list[float]] = {column: [] for column in names}
                for turn in range(options.rounds):
                    for column in rotated(names, turn):
                        times[column].append(1e3 * case.seconds(column))
                medians = {column: round(statistics.median(values), 2) for column, values in times.items()}
                over = {column: round(medians[names[0]] / value, 3) for column, value in medians.items()}
                tflops = {column: round(case.flops / value / 1e9, 1) for column, value in medians.items()}
                wrong = {column: value for column, value in ratios.items() if not value <= MOST}
                report = {"kind": kind, "n": n, "ms": medians, f"{names[0]} / this": over, "TF/s": tflops}
                reports.append(report | {"second run, ms": first, "residuals": ratios, "wrong": wrong})
                console.print(reports[-1], highlight=False, markup=False)
                if options.json:
                    results_file.write(options.json, about(name, 1) | {"rounds": options.rounds, "rows": reports})
                case.close()
                del case
                cupy.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
