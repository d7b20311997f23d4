"""How fast are products of a distributed matrix with a vector, compared with NumPy's of the whole matrix on one rank?

mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.level2 [--sizes 1024,4096] [--repeats 15] [--json FILE]

The columns of one case run in one job, in rounds: each round runs every column, in rotated order, from a barrier to the
last rank's return. Times are those of one call of CALLS, one after the other, as in an iterative method.

    pblas   pblas.blas on a row-wise float64 matrix, with x as an array ("array") or as a distributed vector
    numpy   the same of the whole matrix in a separate process, with one BLAS thread per rank; SciPy's BLAS for all but
            gemv
    parts   gemv: each rank calls NumPy for its rows in private memory, without any communication or check: a bound

The goal is a ratio of medians of gemv, numpy to pblas, of at least 0.9.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
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
from pblas import blas

COMM = MPI.COMM_WORLD
CONSOLE = Console(quiet=COMM.rank != 0, width=120)
GOAL = 0.9
CALLS = 5

CASES: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "gemv, array": (lambda a, v, _: blas.gemv(a, v), "a @ v"),
    "gemv": (lambda a, _, x: blas.gemv(a, x), "a @ v"),
    "gemv, T": (lambda a, _, x: blas.gemv(a, x, trans="T"), "a.T @ v"),
    "symv": (lambda a, _, x: blas.symv(a, x), "blas.dsymv(1.0, a, v, lower=1)"),
    "trmv": (lambda a, _, x: blas.trmv(a, x), "blas.dtrmv(a, v, lower=1)"),
    "ger": (lambda a, _, x: blas.ger(x, x, a), "blas.dger(1.0, v, v, a=a, overwrite_a=1)"),
    "syr": (lambda a, _, x: blas.syr(x, a), "blas.dsyr(1.0, v, a=a, lower=1, overwrite_a=1)"),
}
PREPARE = """
from scipy.linalg import blas
rng = np.random.default_rng(1)
a, v = np.asfortranarray(rng.random(({n}, {n}))), rng.random({n})
"""


def measure(ctx: pblas.Context, n: int, case: str, alone: Alone, repeats: int) -> dict[str, list[float]]:
    """Seconds of each column in each round."""
    ours, statement = CASES[case]
    a, x = ctx.random((n, n), seed=1), ctx.random((n, 1), seed=2)
    whole = x.to_global(None)
    assert whole is not None, "all ranks get it"
    vector = whole.ravel()
    columns: dict[str, Callable[[], float]] = {
        "pblas": lambda: together(lambda: [ours(a, vector, x) for _ in range(CALLS)]) / CALLS,
        "numpy": lambda: alone.seconds(f"for _ in range({CALLS}): {statement}") / CALLS,
    }
    if case.startswith("gemv"):
        part = np.array(a.local.T if case.endswith("T") else a.local, order="K")
        operand = x.local.ravel() if case.endswith("T") else vector
        columns["parts"] = lambda: together(lambda: [part @ operand for _ in range(CALLS)]) / CALLS
    return rounds(columns, repeats, pause=PAUSE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1024,4096", help="n of the n x n matrices")
    parser.add_argument("--repeats", type=int, default=15, help="number of rounds")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    rows = []
    title = f"Milliseconds (medians of {arguments.repeats}), {COMM.size} ranks, float64"
    table = Table("n", "case", "pblas", "numpy", "parts", "numpy / pblas", title=title)
    with pblas.Context(threads=1) as ctx, np.errstate(all="ignore"):
        for n in map(int, arguments.sizes.split(",")):
            alone = Alone(PREPARE.format(n=n))
            for case in CASES:
                times = measure(ctx, n, case, alone, arguments.repeats)
                median = {column: statistics.median(seconds) for column, seconds in times.items()}
                ratio = median["numpy"] / median["pblas"]
                rows.append({"n": n, "case": case, "ratio": ratio, "seconds": times})
                shown = f"[red]{ratio:.2f}" if case.startswith("gemv") and ratio < GOAL else f"{ratio:.2f}"
                shares = (f"{1e3 * median[name]:.3f}" if name in median else "" for name in ("pblas", "numpy", "parts"))
                table.add_row(str(n), case, *shares, shown)
            alone.close()
    CONSOLE.print(table)
    write(arguments.json, {"goal": GOAL, "rows": rows})


if __name__ == "__main__":
    main()
