"""How fast does a matrix move from one layout to another, compared with MPI's Alltoallv of the same bytes?

mpiexec -n 4 python -m mpi4py -m benchmarks.cpu.redistribute [--sizes 2048,4096] [--cases all]
    [--repeats 11] [--json FILE]

The columns of one case run in one job, in rounds: each round runs every column once, in rotated order, from a barrier
to the last rank's return. `call` is pblas.redistribute(A, out=B): each call checks its arguments; the
plan is cached in the warm-up rounds. `planned` is the execution of a plan. `Alltoallv` moves as many bytes between
every two ranks as the redistribution, from and to contiguous buffers, without packing; the bytes that a rank keeps are
included. The goal is a ratio of medians, call to Alltoallv, of at most 1.5.
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
from benchmarks.cpu.machine import parser, write
from benchmarks.rounds import rounds, together
from pblas import Grid, MatrixDescriptor
from pblas.layouts.messages import receives, sends
from pblas.layouts.placement import Placement

COMM = MPI.COMM_WORLD
CONSOLE = Console(quiet=COMM.rank != 0, width=150)
GOAL = 1.5


def cases(p: int) -> dict[str, dict[str, Any]]:
    """Layouts by name: (grid, mb, nb, order) of A and of B, and the options of redistribute."""
    row, column, square = Grid.row(p), Grid.column(p), Grid(2, p // 2)
    return {
        "1 x P to P x 1, 64": {"a": (row, 64, 64, "F"), "b": (column, 64, 64, "F")},
        "1 x P to 2D, 128": {"a": (row, 128, 128, "F"), "b": (square, 128, 128, "F")},
        "2D, 64 to 256": {"a": (square, 64, 64, "F"), "b": (square, 256, 256, "F")},
        "2D, 128 to 100": {"a": (square, 128, 128, "F"), "b": (square, 100, 100, "F")},
        "2D, 64 x 100 to P x 1, 37 x 53": {"a": (square, 64, 100, "F"), "b": (column, 37, 53, "F")},
        "2D, 7 to 5": {"a": (square, 7, 7, "F"), "b": (square, 5, 5, "F")},
        "2D, 64 to 1": {"a": (square, 64, 64, "F"), "b": (square, 1, 1, "F")},
        "2D, F to C, 64": {"a": (square, 64, 64, "F"), "b": (square, 64, 64, "C")},
        "2D, transposed, 64": {"a": (square, 64, 64, "F"), "b": (square, 64, 64, "F"), "trans": "T"},
        "1 x P, transposed, 64": {"a": (row, 64, 64, "F"), "b": (row, 64, 64, "F"), "trans": "T"},
        "2D, 64 to 96, B = 2 A + B": {
            "a": (square, 64, 64, "F"),
            "b": (square, 96, 96, "F"),
            "alpha": 2.0,
            "beta": 1.0,
        },
        "2D, 64 to 96, upper": {"a": (square, 64, 64, "F"), "b": (square, 96, 96, "F"), "uplo": "U"},
    }


def described(n: int, layout: tuple[Grid, int, int, Any]) -> MatrixDescriptor:
    """The descriptor of an n x n matrix in a layout of `cases`."""
    grid, mb, nb, order = layout
    return MatrixDescriptor(n, n, mb, nb, grid, order=order)


def alltoallv(a: MatrixDescriptor, b: MatrixDescriptor, trans: str, fraction: float) -> Callable[[], None]:
    """An exchange of as many bytes between every two ranks."""
    source, target = Placement.of(a) if trans == "N" else Placement.of(a).T, Placement.of(b)
    sizes = []
    for moves in (sends, receives):
        counts = [0] * COMM.size
        for move in moves(source, target, COMM.rank):
            counts[move.peer] = int(8 * fraction * move.shape[0] * move.shape[1])
        sizes.append(counts)
    sizes[0][COMM.rank] = sizes[1][COMM.rank]
    sent, received = (np.ones(sum(counts), np.uint8) for counts in sizes)
    return lambda: COMM.Alltoallv([sent, sizes[0]], [received, sizes[1]])


def measure(ctx: pblas.Context, n: int, case: dict[str, Any], repeats: int) -> dict[str, list[float]]:
    """Seconds of each column in each round; two warm-up rounds are left out."""
    options = {name: value for name, value in case.items() if name not in ("a", "b")}
    a_desc, b_desc = described(n, case["a"]), described(n, case["b"])
    a, b = ctx.random(a_desc, seed=1), ctx.random(b_desc, seed=2)
    planned = pblas.plan_redistribution(a, out=b, **options)
    exchange = alltoallv(a_desc, b_desc, options.get("trans", "N"), 0.5 if "uplo" in options else 1.0)
    columns: dict[str, Callable[[], Any]] = {
        "call": lambda: pblas.redistribute(a, out=b, **options),
        "planned": lambda: planned.execute(a, out=b),
        "Alltoallv": exchange,
    }
    times = rounds({name: partial(together, work) for name, work in columns.items()}, repeats)
    planned.close()
    return times


def main() -> None:
    options = parser(__doc__, repeats=11)
    options.add_argument("--sizes", default="2048,4096", help="n of the n x n matrices")
    options.add_argument("--cases", default="", help="run only cases whose name contains this text")
    arguments = options.parse_args()
    rows = []
    title = f"Seconds (medians of {arguments.repeats}), {COMM.size} ranks, float64, transport {arguments.transport}"
    table = Table("n", "case", "call", "planned", "Alltoallv", "call / Alltoallv", "GB/s per rank", title=title)
    with pblas.Context(transport=arguments.transport) as ctx:
        for n in map(int, arguments.sizes.split(",")):
            for name, case in cases(COMM.size).items():
                if arguments.cases not in name:
                    continue
                times = measure(ctx, n, case, arguments.repeats)
                median = {column: statistics.median(seconds) for column, seconds in times.items()}
                ratio = median["call"] / median["Alltoallv"]
                rate = 8 * n * n / COMM.size / median["call"] / 1e9
                rows.append({"n": n, "case": name, "ratio": ratio, "seconds": times})
                shown = [f"{median[column]:.5f}" for column in ("call", "planned", "Alltoallv")]
                style = "" if ratio <= GOAL else "red"
                table.add_row(str(n), name, *shown, f"[{style}]{ratio:.2f}" if style else f"{ratio:.2f}", f"{rate:.2f}")
    CONSOLE.print(table)
    write(arguments.json, {"transport": arguments.transport, "goal": GOAL, "rows": rows})


if __name__ == "__main__":
    main()
