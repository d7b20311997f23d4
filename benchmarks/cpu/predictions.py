"""Predicted against measured times on this machine: products, redistribution, trsm, Cholesky, LU and QR.

The hardware is measured first, as `pblas bench --hardware` does. A measured time is the least of some rounds of the
slowest rank. Each row is printed, and then the quantiles of predicted / measured.

    mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.predictions --json predictions.json
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

import pblas
from benchmarks import results_file
from benchmarks.cpu import machine
from pblas import Grid, MatrixDescriptor, linalg
from pblas.cli.bench_hardware import measured_hardware
from pblas.plans.base import Plan

COMM = MPI.COMM_WORLD
SIZES = 512, 1024, 2048


def cases(ctx: pblas.Context, n: int) -> Iterator[tuple[str, Plan, Callable[[], Any]]]:
    """(name, plan, call) of each operation for order n."""
    p = ctx.nprocs
    rows, columns = MatrixDescriptor.row_wise(n, n, p), MatrixDescriptor.column_wise(n, n, p)
    grid = MatrixDescriptor(n, n, 128, 128, Grid(*{1: (1, 1), 2: (2, 1), 4: (2, 2)}[p]))
    for name, (left, right, result) in {
        "AG": (rows, rows, rows),
        "RS": (columns, rows, columns),
        "grid": (grid, grid, grid),
    }.items():
        a, b, d = ctx.random(left), ctx.random(right), ctx.zeros(result)
        planned = pblas.plan_matmul(a, b, out=d)
        yield name, planned.plan, partial(planned.execute, a, b, out=d)
    a, b = ctx.random(rows), ctx.zeros(columns)
    moved = pblas.plan_redistribution(a, out=b)
    yield "redistribution", moved.plan, partial(moved.execute, a, out=b)
    spd = ctx.from_function(lambda i, j: np.where(i == j, float(n), 1.0 / (1 + i + j)), grid)
    b = ctx.random(grid)
    solved = pblas.blas.plan_trsm(spd, b)
    yield "trsm", solved.plan, partial(solved.execute, spd, b)
    for name, plan_of, call in (
        ("Cholesky", linalg.plan_cholesky, linalg.cho_factor),
        ("LU", linalg.plan_lu, linalg.lu_factor),
        ("QR", linalg.plan_qr, linalg.qr_factor),
    ):
        yield name, plan_of(grid, dtype="float64", nprocs=p).plan, partial(call, spd)


def measured(call: Callable[[], Any], repeats: int) -> float:
    """Seconds of a call on the slowest rank, the least of some rounds."""
    times = []
    for _ in range(repeats + 1):  # the first one makes plans and workspace
        COMM.Barrier()
        start = time.perf_counter()
        call()
        times.append(COMM.allreduce(time.perf_counter() - start, op=MPI.MAX))
    return min(times[1:])


def main() -> None:
    """Measure, print, write."""
    options = machine.parser(__doc__, repeats=9).parse_args()
    rows = []
    with pblas.Context(transport=options.transport) as ctx:
        hardware = measured_hardware(ctx)
        for n in SIZES:
            for name, plan, call in cases(ctx, n):
                predicted, seconds = plan.simulate(hardware).seconds, measured(call, options.repeats)
                row = {"operation": name, "n": n, "ranks": ctx.nprocs, "predicted": predicted, "measured": seconds}
                rows.append(row | {"ratio": predicted / seconds})
                if not ctx.rank:
                    print(f"{name:15} {n:5} {1e3 * predicted:9.2f} {1e3 * seconds:9.2f} ms {predicted / seconds:6.2f}")
    ratios = sorted(float(row["ratio"]) for row in rows)
    if not COMM.rank:
        errors = sorted(abs(ratio - 1) for ratio in ratios)
        tenth = errors[len(errors) * 9 // 10]
        print(f"median error {statistics.median(errors):.0%}, nine tenths within {tenth:.0%}")
        if options.json:
            results_file.write(options.json, machine.header() | {"hardware": asdict(hardware), "predictions": rows})


if __name__ == "__main__":
    main()
