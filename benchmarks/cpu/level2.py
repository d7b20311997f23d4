"""How fast are products of a distributed matrix with a vector, compared with NumPy's of the whole matrix on one rank?

mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.level2 [--sizes 1024,4096] [--repeats 15] [--json FILE]

The columns of one case run in one job, in rounds: each round runs every column once, in rotated order, from a barrier
to the last rank's return. `pblas` is pblas.blas on a row-wise float64 matrix, with x as an array ("array") or as a
distributed vector. `numpy` is the same of the whole matrix on rank 0, with all cores of the machine, while the other
ranks wait; SciPy's BLAS for symv and syr. The goal is a ratio of medians of gemv, numpy to pblas, of at least 0.9.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from rich.console import Console
from rich.table import Table
from scipy.linalg import blas as scipy_blas
from threadpoolctl import threadpool_limits

import pblas
from benchmarks.cpu.machine import write
from benchmarks.rounds import rounds, together
from pblas import blas

COMM = MPI.COMM_WORLD
CONSOLE = Console(quiet=COMM.rank != 0, width=120)
GOAL = 0.9

Case = tuple[Callable[[Any, Any, Any], Any], Callable[[Any, Any], Any]]
CASES: dict[str, Case] = {
    "gemv, array": (lambda a, v, _: blas.gemv(a, v), lambda x, v: x @ v),
    "gemv": (lambda a, _, x: blas.gemv(a, x), lambda x, v: x @ v),
    "gemv, T": (lambda a, _, x: blas.gemv(a, x, trans="T"), lambda x, v: x.T @ v),
    "symv": (lambda a, _, x: blas.symv(a, x), lambda x, v: scipy_blas.dsymv(1.0, x, v, lower=1)),
    "trmv": (lambda a, _, x: blas.trmv(a, x), lambda x, v: scipy_blas.dtrmv(x, v, lower=1)),
    "ger": (lambda a, _, x: blas.ger(x, x, a), lambda x, v: scipy_blas.dger(1.0, v, v, a=x, overwrite_a=1)),
    "syr": (lambda a, _, x: blas.syr(x, a), lambda x, v: scipy_blas.dsyr(1.0, v, a=x, lower=1, overwrite_a=1)),
}


def on_first_rank(work: Callable[[], Any], cores: int) -> None:
    """Run some work on rank 0, with all cores."""
    if COMM.rank == 0:
        with threadpool_limits(cores):
            work()


def measure(ctx: pblas.Context, n: int, case: str, cores: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of each column in each round."""
    ours, numpys = CASES[case]
    a, x = ctx.random((n, n), seed=1), ctx.random((n, 1), seed=2)
    whole, vector = a.to_global(0), x.to_global(None)
    assert vector is not None, "all ranks get it"
    vector = vector.ravel()
    columns: dict[str, Callable[[], Any]] = {
        "pblas": lambda: ours(a, vector, x),
        "numpy": lambda: on_first_rank(lambda: numpys(whole, vector), cores),
    }
    return rounds({name: partial(together, work) for name, work in columns.items()}, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1024,4096", help="n of the n x n matrices")
    parser.add_argument("--repeats", type=int, default=15, help="number of rounds")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    rows = []
    title = f"Milliseconds (medians of {arguments.repeats}), {COMM.size} ranks, float64"
    table = Table("n", "case", "pblas", "numpy", "numpy / pblas", title=title)
    with pblas.Context() as ctx, np.errstate(all="ignore"):
        cores = int(ctx.describe()["cores for this rank"])
        for n in map(int, arguments.sizes.split(",")):
            for case in CASES:
                times = measure(ctx, n, case, cores, arguments.repeats)
                median = {column: statistics.median(seconds) for column, seconds in times.items()}
                ratio = median["numpy"] / median["pblas"]
                rows.append({"n": n, "case": case, "ratio": ratio, "seconds": times})
                shown = f"[red]{ratio:.2f}" if case.startswith("gemv") and ratio < GOAL else f"{ratio:.2f}"
                table.add_row(str(n), case, *(f"{1e3 * median[name]:.3f}" for name in ("pblas", "numpy")), shown)
    CONSOLE.print(table)
    write(arguments.json, {"goal": GOAL, "rows": rows})


if __name__ == "__main__":
    main()
