"""How fast is level 3 of PBLAS on one GPU, compared with cuBLAS?

python -m mpi4py -m benchmarks.gpu.level3 [--sizes 8192 16384] [--dtypes float64 float32] [--json FILE]

syrk, trsm, trmm and symm of n x n matrices with the lower triangle, in rounds of rotated order. "pblas" runs a plan of
one rank, by blocks as on many ranks; "cuBLAS" is the library's own routine, called once for the whole matrix. trsm
overwrites B; the copy that restores it is not counted. The ratio is the time of cuBLAS over that of pblas; the goal is
0.95. Each result of pblas is compared with that of cuBLAS: their largest difference, over n eps and the largest element
of the result, is at most 30.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import numpy as np
from nvmath.bindings import cublas
from rich.console import Console

import pblas
from benchmarks import results_file
from benchmarks.gpu.rows import about, rotated
from pblas import MatrixDescriptor, blas

GOAL, MOST = 0.95, 30.0
FLOPS = {"syrk": 1, "trsm": 1, "trmm": 1, "symm": 2}
"""Flops over n^3."""
LETTERS = {"float32": "s", "float64": "d"}
LEFT, LOWER, N = cublas.SideMode.LEFT, cublas.FillMode.LOWER, cublas.Operation.N


class Case:
    """A, B and C of one order and dtype, and the columns of each routine.

    Args:
        ctx: a context of one rank on a GPU.
        n: order of the matrices.
        dtype: name of their dtype.
    """

    def __init__(self, ctx: pblas.Context, n: int, dtype: str) -> None:
        self.n, self.dtype = n, np.dtype(dtype)
        desc, rng = MatrixDescriptor.column_wise(n, n, 1), cupy.random.RandomState(n)
        self.matrices = {name: ctx.empty(desc, dtype) for name in "ABC"}
        self.a, self.b, self.c = (cupy.asarray(self.matrices[name].local) for name in "ABC")
        for x in self.a, self.b:
            for j in range(0, n, 1024):
                x[:, j : j + 1024] = rng.standard_normal((n, min(1024, n - j)))
        self.a /= n
        diagonal = cupy.arange(n)
        self.a[diagonal, diagonal] = 1
        self.start, self.reference = self.b.copy(order="F"), cupy.zeros_like(self.c)
        self._handle, self._stream = cublas.create(), cupy.cuda.Stream(non_blocking=True)
        cublas.set_stream(self._handle, self._stream.ptr)
        self._scalars = np.array([1, 0], dtype)

    def plan(self, routine: str) -> Any:
        """The planned operation of a routine."""
        x = self.matrices
        if routine == "syrk":
            return blas.plan_syrk(x["A"], out=x["C"])
        if routine == "trsm":
            return blas.plan_trsm(x["A"], x["B"], out=x["B"])
        return getattr(blas, f"plan_{routine}")(x["A"], x["B"], out=x["C"])

    def ours(self, routine: str, planned: Any) -> None:
        """One execution of the plan."""
        x = self.matrices
        operands = (x["A"],) if routine == "syrk" else (x["A"], x["B"])
        planned.execute(*operands, out=x["B" if routine == "trsm" else "C"])

    def library(self, routine: str) -> None:
        """CuBLAS' own routine on the whole matrix."""
        n, (a, b, c) = self.n, (int(x.data.ptr) for x in (self.a, self.b, self.c))
        one, zero = (self._scalars.ctypes.data + i * self._scalars.itemsize for i in (0, 1))
        call = getattr(cublas, f"{LETTERS[self.dtype.name]}{routine}_64")
        if routine == "syrk":
            call(self._handle, LOWER, N, n, n, one, a, n, zero, c, n)
        elif routine == "symm":
            call(self._handle, LEFT, LOWER, n, n, one, a, n, b, n, zero, c, n)
        else:
            shape = self._handle, LEFT, LOWER, N, cublas.DiagType.NON_UNIT, n, n, one, a, n, b, n
            call(*shape, *((c, n) if routine == "trmm" else ()))
        self._stream.synchronize()

    def seconds(self, routine: str, work: Callable[[], None]) -> float:
        """Time of one execution; before it B is restored."""
        if routine == "trsm":
            self.b[...] = self.start
        cupy.cuda.runtime.deviceSynchronize()
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def difference(self, routine: str, columns: dict[str, Callable[[], None]]) -> float:
        """The largest difference of the results, over n eps and the largest element."""
        result = self.b if routine == "trsm" else self.c
        self.c.fill(0)
        self.seconds(routine, columns["cuBLAS"])
        self.reference[...] = result
        largest = float(cupy.abs(self.reference).max())
        self.c.fill(0)
        self.seconds(routine, columns["pblas"])
        self.reference -= result
        return float(cupy.abs(self.reference).max()) / (self.n * float(np.finfo(self.dtype).eps) * largest)

    def measure(self, routine: str, repeats: int) -> dict[str, Any]:
        """A row of the file: medians, their ratio, and the difference of the results."""
        with self.plan(routine) as planned:
            columns = {"pblas": lambda: self.ours(routine, planned), "cuBLAS": lambda: self.library(routine)}
            difference, names = self.difference(routine, columns), list(columns)
            times: dict[str, list[float]] = {name: [] for name in names}
            for turn in range(repeats + 1):
                for name in rotated(names, turn):
                    seconds = self.seconds(routine, columns[name])
                    if turn:
                        times[name].append(1e3 * seconds)
        medians = {name: statistics.median(values) for name, values in times.items()}
        rates = {name: FLOPS[routine] * self.n**3 / value / 1e9 for name, value in medians.items()}
        return {
            "routine": routine,
            "dtype": self.dtype.name,
            "n": self.n,
            "ms": {name: round(value, 2) for name, value in medians.items()},
            "TF/s": {name: round(value, 1) for name, value in rates.items()},
            "cuBLAS / pblas": round(medians["cuBLAS"] / medians["pblas"], 3),
            "difference": round(difference, 5),
            "wrong": not difference <= MOST,
        }

    def close(self) -> None:
        """Free the library's handle."""
        cublas.destroy(self._handle)


def main() -> None:
    """Measure all sizes, print the rows, and write them to a file if one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=[8192, 16384])
    parser.add_argument("--dtypes", nargs="+", choices=list(LETTERS), default=["float64", "float32"])
    parser.add_argument("--routines", nargs="+", choices=list(FLOPS), default=list(FLOPS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console, rows = Console(soft_wrap=True), []
    with pblas.Context(backend="cuda", timeout=120.0) as ctx:
        name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
        for n in options.sizes:
            for dtype in options.dtypes:
                case = Case(ctx, n, dtype)
                for routine in options.routines:
                    rows.append(case.measure(routine, options.rounds))
                    console.print(rows[-1], highlight=False, markup=False)
                    if options.json:
                        header = about(name, 1) | {"rounds": options.rounds, "goal": GOAL}
                        results_file.write(options.json, header | {"rows": rows})
                case.close()
                del case
                cupy.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    main()
