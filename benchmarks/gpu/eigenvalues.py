"""How fast are eigenvalues and eigenvectors on GPUs, compared with cuSOLVER and CuPy?

python -m mpi4py -m benchmarks.gpu.eigenvalues [--sizes 4096 8192] [--dtypes float64 float32] [--json FILE]

Columns of one n, on the same random symmetric matrix, are timed in rounds of rotated order, from a barrier to the last
rank's return. "eigh" and "eigvalsh" are calls of pblas, copies and agreements included; "cuSOLVER" is cusolverDnXsyevd
called by itself on rank 0, and "CuPy" is cupy.linalg.eigh there, while the other ranks wait. The residual of vectors is
norm(A V x - V diag(w) x), over n norm(A) norm(x) eps, for a random x; the loss of orthogonality is norm(V^T V x - x),
over n norm(x) eps; both are at most 30.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from mpi4py import MPI
from rich.console import Console

import pblas
from benchmarks import results_file
from benchmarks.gpu.rows import about, rotated
from pblas import MatrixDescriptor, linalg
from pblas.backends.cuda.lapack import Lapack

COMM = MPI.COMM_WORLD
MOST = 30.0


class Case:
    """The columns of one order and dtype.

    Args:
        ctx: a context on GPUs.
        n: order of the matrix.
        dtype: of the matrix, real.
    """

    def __init__(self, ctx: pblas.Context, n: int, dtype: str) -> None:
        self.n, self.eps = n, float(np.finfo(dtype).eps)
        self.result: Any = None
        self.a: Any = None
        if ctx.rank == 0:  # symmetric, without a second matrix
            self.a = cupy.empty((n, n), dtype, order="F")
            rng = cupy.random.RandomState(n)
            for j in range(0, n, 1024):
                block, after = slice(j, j + 1024), min(j + 1024, n)
                self.a[j:, block] = rng.standard_normal((n - j, after - j)).astype(dtype)
                self.a[block, block] += self.a[block, block].T.copy()
                self.a[block, after:] = self.a[after:, block].T
        whole = ctx.empty(MatrixDescriptor.column_wise(n, n, 1), dtype)
        if ctx.rank == 0:
            whole.local[...] = self.a
        self.matrix = whole if ctx.nprocs == 1 else whole.redistribute(MatrixDescriptor.row_wise(n, n, ctx.nprocs))
        self._memory: list[Any] = []
        self._lapack = Lapack(self._empty, self._memory.append) if ctx.rank == 0 else None
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self.columns: dict[str, Callable[[], None]] = {
            "eigh": self._eigh,
            "one GPU": partial(self._eigh, algorithm="local"),
            "eigvalsh": lambda: self._keep(linalg.eigvalsh(self.matrix), None),
            "cuSOLVER": partial(self._library, vectors=True),
            "cuSOLVER values": partial(self._library, vectors=False),
            "CuPy": lambda: self._alone(lambda: cupy.linalg.eigh(self.a)),
            "CuPy values": lambda: self._alone(lambda: (cupy.linalg.eigvalsh(self.a), None)),
        }

    def _empty(self, nbytes: int) -> Any:
        self._memory.append(cupy.empty(nbytes, cupy.uint8))
        return self._memory[-1]

    def _keep(self, w: Any, v: Any) -> None:
        self.result = w, v

    def _alone(self, call: Callable[[], tuple[Any, Any]]) -> None:
        if COMM.rank == 0:
            self._keep(*call())

    def _eigh(self, algorithm: Any = "auto") -> None:
        w, v = linalg.eigh(self.matrix, algorithm=algorithm)
        self._keep(w, v)

    def _library(self, *, vectors: bool) -> None:
        if self._lapack is not None:
            x = self.a.copy(order="F")
            cupy.cuda.runtime.deviceSynchronize()
            values, info = self._lapack.syevd(int(self._stream.ptr), x, vectors=vectors)
            assert info == 0, "it converges"
            self._memory.clear()
            self._keep(values, x if vectors else None)

    def seconds(self, name: str) -> float:
        """**Collective.** Time of one execution."""
        self.result = None
        cupy.cuda.runtime.deviceSynchronize()
        COMM.Barrier()
        start = MPI.Wtime()
        self.columns[name]()
        cupy.cuda.runtime.deviceSynchronize()
        return float(COMM.allreduce(MPI.Wtime() - start, MPI.MAX))

    def check(self, name: str) -> float:
        """**Collective.** The residual and the loss of orthogonality with a random vector; 0 without vectors."""
        self.seconds(name)
        w, v = self.result if self.result is not None else (None, None)
        if isinstance(v, pblas.DistMatrix):
            v = v.redistribute(MatrixDescriptor.column_wise(self.n, self.n, 1)).local
        self.result, worst = None, 0.0
        if COMM.rank == 0 and v is not None:
            x = cupy.random.RandomState(1).standard_normal(self.n).astype(self.a.dtype)
            size, norm = float(cupy.linalg.norm(x)), float(cupy.linalg.norm(self.a))
            residual = float(cupy.linalg.norm(self.a @ (v @ x) - v @ (cupy.asarray(w) * x))) / norm
            worst = max(residual, float(cupy.linalg.norm(v.T @ (v @ x) - x))) / (self.n * size * self.eps)
        return float(COMM.bcast(worst, 0))

    def workspace(self) -> float:
        """Bytes that cuSOLVER asked for in the last call of "cuSOLVER", over those of the matrix (local)."""
        if self._lapack is None:
            return 0.0
        asked: list[int] = []
        library = Lapack(lambda nbytes: asked.append(nbytes) or self._empty(nbytes), self._memory.append)
        library.syevd(int(self._stream.ptr), self.a.copy(order="F"), vectors=True)
        library.close()
        self._memory.clear()
        return sum(asked) / self.a.nbytes

    def close(self) -> None:
        """Free the memory."""
        if self._lapack is not None:
            self._lapack.close()


def main() -> None:
    """Measure all sizes, print the medians, and write them to a file if one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=[2048, 4096, 8192, 16384])
    parser.add_argument("--dtypes", nargs="+", default=["float64", "float32"])
    parser.add_argument("--columns", nargs="+", help="the columns to measure; all if left out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backend", choices=("cuda", "nvshmem"), default="cuda")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console, reports = Console(soft_wrap=True), []
    with pblas.Context(backend=options.backend, timeout=120.0) as ctx:
        name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
        for dtype in options.dtypes:
            for n in options.sizes:
                case = Case(ctx, n, dtype)
                names = options.columns or list(case.columns)
                ratios = {column: round(case.check(column), 3) for column in names}
                times: dict[str, list[float]] = {column: [] for column in names}
                for turn in range(options.rounds):
                    for column in rotated(names, turn):
                        times[column].append(1e3 * case.seconds(column))
                medians = {column: round(statistics.median(values), 2) for column, values in times.items()}
                wrong = {column: value for column, value in ratios.items() if not value <= MOST}
                report = {"n": n, "dtype": dtype, "ms": medians, "residuals": ratios, "wrong": wrong}
                if "cuSOLVER" in names:
                    report["workspace / matrix"] = round(case.workspace(), 3)
                reports.append(report)
                if ctx.rank == 0:
                    console.print(reports[-1], highlight=False, markup=False)
                    if options.json:
                        rows = {"rounds": options.rounds, "backend": options.backend, "rows": reports}
                        results_file.write(options.json, about(name, ctx.nprocs) | rows)
                case.close()
                del case
                cupy.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
