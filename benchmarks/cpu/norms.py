"""How fast are norms and sums of a distributed matrix, compared with NumPy's of the whole matrix on one rank?

mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.norms [--sizes 1024,4096] [--repeats 15] [--json FILE]

The columns of one case run in one job, in rounds: each round runs every column once, in rotated order, from a barrier
to the last rank's return. `pblas` is A.norm() and the like of a row-wise float64 matrix. `numpy` is the same of the
whole matrix on rank 0, with all cores of the machine, while the other ranks wait. The goal is a ratio of medians of the
Frobenius norm, pblas to numpy, of at most 1.15.
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
from threadpoolctl import threadpool_limits

import pblas
from benchmarks.cpu.machine import write
from benchmarks.rounds import rounds, together

COMM = MPI.COMM_WORLD
CONSOLE = Console(quiet=COMM.rank != 0, width=120)
GOAL = 1.15

CASES: dict[str, tuple[Callable[[pblas.DistMatrix], Any], Callable[[Any], Any]]] = {
    "norm, fro": (lambda a: a.norm(), np.linalg.norm),
    "norm, 1": (lambda a: a.norm(1), lambda x: np.linalg.norm(x, 1)),
    "norm, inf": (lambda a: a.norm(np.inf), lambda x: np.linalg.norm(x, np.inf)),
    "sum": (lambda a: a.sum(), np.sum),
    "sum, axis 0": (lambda a: a.sum(axis=0), lambda x: np.sum(x, axis=0)),
    "max": (lambda a: a.max(), np.max),
    "argmax": (lambda a: a.argmax(), np.argmax),
}


def on_first_rank(work: Callable[[], Any], cores: int) -> None:
    """Run some work on rank 0, with all cores."""
    if COMM.rank == 0:
        with threadpool_limits(cores):
            work()


def measure(ctx: pblas.Context, n: int, case: str, cores: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of each column in each round."""
    ours, numpys = CASES[case]
    a = ctx.random((n, n), seed=1)
    whole = a.to_global(0)
    columns: dict[str, Callable[[], Any]] = {
        "pblas": lambda: ours(a),
        "numpy": lambda: on_first_rank(lambda: numpys(whole), cores),
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
    table = Table("n", "case", "pblas", "numpy", "pblas / numpy", title=title)
    with pblas.Context() as ctx:
        cores = int(ctx.describe()["cores for this rank"])
        for n in map(int, arguments.sizes.split(",")):
            for case in CASES:
                times = measure(ctx, n, case, cores, arguments.repeats)
                median = {column: statistics.median(seconds) for column, seconds in times.items()}
                ratio = median["pblas"] / median["numpy"]
                rows.append({"n": n, "case": case, "ratio": ratio, "seconds": times})
                late = case == "norm, fro" and ratio > GOAL
                shown = f"[red]{ratio:.2f}" if late else f"{ratio:.2f}"
                table.add_row(str(n), case, *(f"{1e3 * median[name]:.3f}" for name in ("pblas", "numpy")), shown)
    CONSOLE.print(table)
    write(arguments.json, {"goal": GOAL, "rows": rows})


if __name__ == "__main__":
    main()
