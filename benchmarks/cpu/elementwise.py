"""How fast is C = A + B of distributed matrices, compared with NumPy's addition by one process?

mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.elementwise [--sizes 2048,4096] [--repeats 11] [--json FILE]

The columns run in rounds: each round runs every column once, in rotated order. Columns of ranks last from a barrier to
the last rank's return.

    numpy         np.add(a, b, out=c) of whole matrices in a separate process, while the ranks sleep
    parts         np.add on each rank, of its part in private memory: a bound, without communication or checks
    equal         pblas.elementwise("x + y", x=A, y=B, out=C): all have one layout, n / P columns per rank
    equal, fma    the same with "x * s + y", for which NumPy makes two calls
    fma, numpy    np.multiply(a, s, out=c) and np.add(c, b, out=c) in the separate process
    moved         the same as equal with B by rows: it is redistributed
    in two steps  pblas.redistribute(B, out=T) and pblas.elementwise("x + y", x=A, y=T, out=C)
    in place      A += B with B by rows

The goals: equal is at most 0.65 of numpy (2 ranks, a core each), moved is at most 1.2 of in two steps. Memory bounds
equal: parts says how fast the ranks' cores add together, at best.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI
from rich.console import Console
from rich.table import Table

import pblas
from benchmarks.cpu.alone import PAUSE, Alone
from benchmarks.cpu.machine import parser, write
from benchmarks.rounds import rounds, together
from pblas import MatrixDescriptor

COMM = MPI.COMM_WORLD
CONSOLE = Console(quiet=COMM.rank != 0, width=150)
RATIOS = {
    "parts": ("numpy", 0.0),
    "equal": ("numpy", 0.65),
    "equal, fma": ("fma, numpy", 0.65),
    "moved": ("in two steps", 1.2),
}


def measure(ctx: pblas.Context, n: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of each column in each round; two warm-up rounds are left out."""
    columns, rows = MatrixDescriptor.column_wise(n, n, ctx.nprocs), MatrixDescriptor.row_wise(n, n, ctx.nprocs)
    A, B, B_rows = ctx.random(columns, seed=1), ctx.random(columns, seed=2), ctx.random(rows, seed=2)
    C, T = ctx.zeros(columns), ctx.zeros(columns)
    a, b, c = (np.random.default_rng(ctx.rank).random((n // ctx.nprocs, n)) for _ in range(3))
    alone = Alone(f"a, b, c = (np.random.default_rng(1).random(({n}, {n})) for _ in range(3))")

    def two_steps() -> None:
        pblas.redistribute(B_rows, out=T)
        pblas.elementwise("x + y", x=A, y=T, out=C)

    work: dict[str, Callable[[], Any]] = {
        "parts": lambda: np.add(a, b, out=c),
        "equal": lambda: pblas.elementwise("x + y", x=A, y=B, out=C),
        "equal, fma": lambda: pblas.elementwise("x * s + y", x=A, y=B, s=2.0, out=C),
        "moved": lambda: pblas.elementwise("x + y", x=A, y=B_rows, out=C),
        "in two steps": two_steps,
        "in place": lambda: pblas.elementwise("x + y", x=A, y=B_rows, out=A),
    }
    timed: dict[str, Callable[[], float]] = {name: partial(together, call) for name, call in work.items()}
    timed["numpy"] = lambda: alone.seconds("np.add(a, b, out=c)")
    timed["fma, numpy"] = lambda: alone.seconds("np.multiply(a, 2.0, out=c); np.add(c, b, out=c)")
    times = rounds(timed, repeats, pause=PAUSE)
    alone.close()
    return times


def main() -> None:
    options = parser(__doc__, repeats=11)
    options.add_argument("--sizes", default="2048,4096", help="n of the n x n matrices")
    arguments = options.parse_args()
    rows = []
    title = f"Seconds (medians of {arguments.repeats}), {COMM.size} ranks, float64, transport {arguments.transport}"
    table = Table("n", "column", "seconds", "ratio", "to", "goal", title=title)
    with pblas.Context(transport=arguments.transport, threads=1) as ctx:
        for n in map(int, arguments.sizes.split(",")):
            times = measure(ctx, n, arguments.repeats)
            median = {column: statistics.median(seconds) for column, seconds in times.items()}
            rows.append({"n": n, "seconds": times})
            for column, seconds in median.items():
                to, goal = RATIOS.get(column, ("", 0.0))
                ratio = f"{seconds / median[to]:.2f}" if to else ""
                table.add_row(str(n), column, f"{seconds:.5f}", ratio, to, f"{goal}" if goal else "")
    CONSOLE.print(table)
    write(arguments.json, {"transport": arguments.transport, "goals": RATIOS, "rows": rows})


if __name__ == "__main__":
    main()
