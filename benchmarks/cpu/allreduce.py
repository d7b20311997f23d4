"""How fast is an all-reduce of NumPy arrays compared with MPI.Allreduce, and how much time does an epilogue take?

mpiexec -n 4 python -m mpi4py -m benchmarks.cpu.allreduce [--kib 1,64] [--dtype float32] [--repeats 15] [--json FILE]

The columns of one size run in one job, in rounds: each round runs every column once, in rotated order, from a barrier
to the last rank's return. Arrays are in private memory; in the column `shared` they are in the context's shared memory.
Every call checks its arguments and agrees on them with the other ranks, which MPI.Allreduce does not do. `fused` is
algorithm "auto" with the epilogue relu(x * s + bias); `apart` is "auto" followed by NumPy's functions. The table has
medians. The limits in pblas/collectives/collective_plan.py come from this measurement.
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

COMM = MPI.COMM_WORLD
CONSOLE = Console(quiet=COMM.rank != 0, width=150)
COLUMNS = 512


def columns(ctx: pblas.Context, rows: int, dtype: Any) -> dict[str, Callable[[], Any]]:
    """The timed functions, by name."""
    desc = pblas.MatrixDescriptor.replicated(rows, COLUMNS, COMM.size, order="C")
    shared = [ctx.empty(desc, dtype).local for _ in range(2)]
    x, out = np.ones((rows, COLUMNS), dtype), np.ones((rows, COLUMNS), dtype)
    for array in shared:
        array[...] = 1
    bias = np.ones(COLUMNS, dtype)
    epilogue = pblas.Epilogue("relu(x * s + bias)", s=0.5, bias=bias)

    def separate_pass() -> None:
        ctx.allreduce(x, out)
        np.multiply(out, out.dtype.type(0.5), out=out)
        np.add(out, bias, out=out)
        np.maximum(out, 0, out=out)

    names: tuple[Any, ...] = ("naive", "one_shot", "two_shot", "auto")
    works: dict[str, Callable[[], Any]] = {"MPI": lambda: COMM.Allreduce(x, out)}
    for name in names:
        works[name] = lambda name=name: ctx.allreduce(x, out, algorithm=name)  # type: ignore[misc]
    works["shared"] = lambda: ctx.allreduce(*shared, algorithm="two_shot")
    works["fused"] = lambda: ctx.allreduce(x, out, epilogue=epilogue)
    works["apart"] = separate_pass
    return works


def measure(ctx: pblas.Context, rows: int, dtype: Any, repeats: int) -> dict[str, list[float]]:
    """Seconds of each column in each round, from a barrier to the last rank's return."""
    calls = columns(ctx, rows, dtype)
    names = [name for name in calls if not (name == "one_shot" and rows * COLUMNS > 1 << 22)]
    return rounds({name: partial(together, calls[name]) for name in names}, repeats)


def main() -> None:
    options = parser(__doc__, repeats=15)
    options.add_argument("--kib", default="2,8,16,32,64,128,256,1024,4096,16384,65536", help="sizes, KiB per rank")
    options.add_argument("--dtype", default="float32", help="dtype of the arrays")
    arguments = options.parse_args()
    dtype, rows = np.dtype(arguments.dtype), []
    title = f"Microseconds (medians of {arguments.repeats}), {COMM.size} ranks, {dtype}, {arguments.transport}"
    names = ("MPI", "naive", "one_shot", "two_shot", "auto", "shared", "fused", "apart")
    table = Table("KiB", *names, "auto / MPI", "shared / MPI", "fused / apart", title=title)
    with pblas.Context(transport=arguments.transport) as ctx:
        for kib in map(int, arguments.kib.split(",")):
            times = measure(ctx, max(1, kib * 1024 // dtype.itemsize // COLUMNS), dtype, arguments.repeats)
            median = {name: statistics.median(seconds) for name, seconds in times.items()}
            pairs = (("auto", "MPI"), ("shared", "MPI"), ("fused", "apart"))
            ratios = {f"{a} / {b}": median[a] / median[b] for a, b in pairs}
            rows.append({"KiB": kib, "ratios": ratios, "seconds": times})
            shown = [f"{median[name] * 1e6:.0f}" if name in median else "" for name in names]
            table.add_row(str(kib), *shown, *(f"{ratio:.2f}" for ratio in ratios.values()))
    CONSOLE.print(table)
    write(arguments.json, {"transport": arguments.transport, "dtype": dtype.name, "rows": rows})


if __name__ == "__main__":
    main()
