"""Predicted against measured times: products, redistribution, trsm, Cholesky, LU and QR, on CPUs, hosts and GPUs.

On CPUs the hardware is measured first, as `pblas bench --hardware` does; GPUs are those of the preset "nvlink". A
measured time is the least of some rounds of the slowest rank, as the rates of the hardware are. Each row is printed,
and then the quantiles of abs(predicted / measured - 1).

    mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.predictions --json predictions.json
    python -m benchmarks.cpu.predictions --hosts 2x1 --rate 1gbit --json predictions.json
    mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.predictions --backend nvshmem --sizes 2048 8192
    python -m benchmarks.cpu.predictions --table FILE ...

The second command makes hosts on this machine (tests/harness/hosts.py). The last one prints the rows of several files
as one table.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import results_file

if TYPE_CHECKING:
    import pblas
    from pblas.plans.base import Plan

ROOT = Path(__file__).resolve().parents[2]


def cases(ctx: pblas.Context, n: int) -> Iterator[tuple[str, Plan, Callable[[], Any]]]:
    """(name, plan, call) of each operation for order n."""
    import pblas
    from pblas import Grid, MatrixDescriptor, linalg

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
    spd, b = ctx.random(grid), ctx.random(grid)
    pblas.elementwise("a + d * e", a=spd, e=ctx.eye(grid), d=float(n), out=spd)
    solved = pblas.blas.plan_trsm(spd, b)
    yield "trsm", solved.plan, partial(solved.execute, spd, b)
    for name, plan_of in (("Cholesky", linalg.plan_cholesky), ("LU", linalg.plan_lu), ("QR", linalg.plan_qr)):
        factored = plan_of(spd)
        yield name, factored.plan, partial(factored.execute, spd)


def measured(ctx: pblas.Context, call: Callable[[], Any], repeats: int) -> float:
    """Seconds of a call on the slowest rank, the least of some rounds."""
    from mpi4py import MPI

    synchronize = ctx.runtime.backend.arrays.synchronize
    if ctx.runtime.backend.gpus:  # products run in the stream of the caller
        from cupy.cuda import runtime

        synchronize = runtime.deviceSynchronize
    times = []
    for _ in range(repeats + 1):  # the first one makes plans and workspace
        MPI.COMM_WORLD.Barrier()
        start = time.perf_counter()
        call()
        synchronize()
        times.append(MPI.COMM_WORLD.allreduce(time.perf_counter() - start, op=MPI.MAX))
    return min(times[1:])


def run(options: Any) -> None:
    """**Collective.** Measure, print, write."""
    import pblas
    from benchmarks.cpu import machine
    from pblas.cli.bench_hardware import measured_hardware
    from pblas.simulation.hardware import NVLINK

    where, rows = options.where, []
    with pblas.Context(transport=options.transport, backend=options.backend) as ctx:
        on_gpus = ctx.runtime.backend.gpus
        hardware = NVLINK if on_gpus else measured_hardware(ctx)
        where = where or f"{ctx.nprocs} {'GPU' if on_gpus else 'rank'}{'s' if ctx.nprocs > 1 else ''}"
        for n in options.sizes:
            for name, plan, call in cases(ctx, n):
                predicted, seconds = plan.simulate(hardware).seconds, measured(ctx, call, options.repeats)
                row = {"where": where, "operation": name, "n": n, "predicted": predicted, "measured": seconds}
                rows.append(row | {"ratio": predicted / seconds})
                if not ctx.rank:
                    print(line(rows[-1]), flush=True)
        if not ctx.rank:
            print(quantiles(rows))
            if options.json:
                results_file.write(options.json, machine.header() | {"hardware": asdict(hardware), "rows": rows})


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    times = f"{1e3 * row['predicted']:9.2f} {1e3 * row['measured']:9.2f} ms"
    return f"{row['where']:20} {row['operation']:15} {row['n']:6} {times} {row['ratio']:6.2f}"


def quantiles(rows: list[dict[str, Any]]) -> str:
    """The errors as text."""
    errors = sorted(abs(row["ratio"] - 1) for row in rows)
    tenth = errors[len(errors) * 9 // 10]
    return f"{len(rows)} rows: median error {statistics.median(errors):.0%}, nine tenths within {tenth:.0%}"


def table(files: list[Path]) -> None:
    """Print predicted / measured of all files: a line for each place and order, a column for each operation."""
    rows = [row for file in files for row in json.loads(file.read_text())["rows"]]
    names = list(dict.fromkeys(row["operation"] for row in rows))
    print(f"| where | n | {' | '.join(names)} |\n|---|---|{'---|' * len(names)}")
    for where, n in dict.fromkeys((row["where"], row["n"]) for row in rows):
        ratios = {row["operation"]: row["ratio"] for row in rows if (row["where"], row["n"]) == (where, n)}
        print(f"| {where} | {n} | {' | '.join(f'{ratios[name]:.2f}' if name in ratios else '' for name in names)} |")
    print(quantiles(rows))


def on_hosts(options: Any) -> None:
    """Run this benchmark on hosts that are made on this machine."""
    from tests.harness.hosts import Hosts, leave, parse_ranks

    signal.signal(signal.SIGTERM, leave)  # the hosts are removed then too
    ranks = parse_ranks(options.hosts)
    rank = [sys.executable, "-m", "mpi4py", "-m", "benchmarks.cpu.predictions", "--repeats", str(options.repeats)]
    rank += ["--where", f"{len(ranks)} hosts, {options.rate}", "--sizes", *map(str, options.sizes)]
    rank += ["--json", str(options.json.resolve())] if options.json else []
    with Hosts(len(ranks)) as hosts:
        hosts.limit(options.rate)
        command = hosts.command(str(Path(sys.executable).parent / "mpiexec"), ranks, rank)
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MPIR_CVAR_CH4_NETMOD": "ofi"}
        subprocess.run(command, check=True, cwd=ROOT, env=environment, timeout=900)


def main() -> None:
    """Read the options."""
    from benchmarks.cpu import machine

    parser = machine.parser(__doc__, repeats=9)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--backend", default="auto", help="backend of the context")
    parser.add_argument("--hosts", help="hosts and ranks of each, as 2x1")
    parser.add_argument("--rate", default="1gbit", help="what a host receives")
    parser.add_argument("--where", default="", help="name of the place in the table")
    parser.add_argument("--table", type=Path, nargs="+", help="files to print as one table")
    options = parser.parse_args()
    if options.table:
        table(options.table)
    elif options.hosts:
        on_hosts(options)
    else:
        run(options)


if __name__ == "__main__":
    main()
