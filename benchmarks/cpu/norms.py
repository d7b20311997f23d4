"""How fast are norms and sums of a distributed matrix, compared with NumPy's of the whole matrix?

mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.norms [--sizes 1024,4096] [--repeats 15] [--json FILE]

The columns of one case run in rounds: each round runs every column once, in rotated order.

    pblas   A.norm() and the like of a row-wise float64 matrix, from a barrier to the last rank's return
    numpy   the same of the whole matrix in a separate process, with one BLAS thread per rank
    parts   each rank calls NumPy for its part in private memory, without any communication or check: a bound

The goal is a ratio of medians of the Frobenius norm, pblas to numpy, of at most 1.15. Private memory is in huge pages
where the system has them for every process that asks (as NumPy does). The shared memory of pblas is in pages of 4 KiB,
unless the administrator mounts /dev/shm with huge pages, and one core reads it more slowly.
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

import pblas
from benchmarks.cpu.alone import PAUSE, Alone
from benchmarks.cpu.machine import write
from benchmarks.rounds import rounds, together

COMM = MPI.COMM_WORLD
CONSOLE = Console(quiet=COMM.rank != 0, width=120)
GOAL = 1.15

CASES: dict[str, tuple[Callable[[pblas.DistMatrix], Any], str]] = {
    "norm, fro": (lambda a: a.norm(), "np.linalg.norm(x)"),
    "norm, 1": (lambda a: a.norm(1), "np.linalg.norm(x, 1)"),
    "norm, inf": (lambda a: a.norm(np.inf), "np.linalg.norm(x, np.inf)"),
    "sum": (lambda a: a.sum(), "np.sum(x)"),
    "sum, axis 0": (lambda a: a.sum(axis=0), "np.sum(x, axis=0)"),
    "max": (lambda a: a.max(), "np.max(x)"),
    "argmax": (lambda a: a.argmax(), "np.argmax(x)"),
}


def measure(a: pblas.DistMatrix, part: Any, alone: Alone, case: str, repeats: int) -> dict[str, list[float]]:
    """Seconds of each column in each round."""
    ours, statement = CASES[case]
    bound = compile(statement, "statement", "eval")
    columns: dict[str, Callable[[], float]] = {
        "pblas": partial(together, lambda: ours(a)),
        "numpy": lambda: alone.seconds(statement),
        "parts": partial(together, lambda: eval(bound, {"np": np, "x": part})),  # noqa: S307 - a statement of CASES
    }
    return rounds(columns, repeats, pause=PAUSE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1024,4096", help="n of the n x n matrices")
    parser.add_argument("--cases", help="some of the cases, separated by /; None for all")
    parser.add_argument("--repeats", type=int, default=15, help="number of rounds")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    rows = []
    title = f"Milliseconds (medians of {arguments.repeats}), {COMM.size} ranks, float64"
    table = Table("n", "case", "pblas", "numpy", "parts", "pblas / numpy", "parts / numpy", title=title)
    with pblas.Context(threads=1) as ctx:
        for n in map(int, arguments.sizes.split(",")):
            a, part = ctx.random((n, n), seed=1), np.random.default_rng(ctx.rank).random((n // COMM.size, n))
            alone = Alone(f"x = np.random.default_rng(1).random(({n}, {n}))")
            for case in CASES if arguments.cases is None else arguments.cases.split("/"):
                times = measure(a, part, alone, case, arguments.repeats)
                median = {column: statistics.median(seconds) for column, seconds in times.items()}
                ratio, bound = (median[column] / median["numpy"] for column in ("pblas", "parts"))
                rows.append({"n": n, "case": case, "ratio": ratio, "bound": bound, "seconds": times})
                late = case == "norm, fro" and ratio > GOAL
                shown = f"[red]{ratio:.2f}" if late else f"{ratio:.2f}"
                milliseconds = (f"{1e3 * median[name]:.3f}" for name in times)
                table.add_row(str(n), case, *milliseconds, shown, f"{bound:.2f}")
            alone.close()
    CONSOLE.print(table)
    write(arguments.json, {"goal": GOAL, "rows": rows})


if __name__ == "__main__":
    main()
