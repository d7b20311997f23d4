"""Times that dry runs predict, and those of the same calls: products, solves and factorizations.

The hardware is measured first, as `pblas bench --hardware` does. A measured time is the least of some rounds of the
slowest rank, as the rates of the hardware are, after a call that makes plans and workspace. So no memory is new, in the
dry runs neither. The matrices are made before.

    mpiexec -n 4 python -m mpi4py -m benchmarks.cpu.dry_runs [--n 1024] --json FILE
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from math import inf
from typing import Any

import numpy as np

import pblas
from benchmarks import results_file
from benchmarks.cpu import machine
from benchmarks.cpu.predictions import measured
from pblas import DistMatrix, blas, linalg
from pblas.cli.bench_hardware import measured_hardware

CALLS: dict[str, Callable[[DistMatrix, DistMatrix], Any]] = {
    "A @ B": lambda a, b: a @ b,
    "A @ B @ A": lambda a, b: a @ b @ a,
    "2 A + B.T": lambda a, b: 2 * a + b.T,
    "solve(A, B)": lambda a, b: linalg.solve(a, b, check=False),
    "solve(A, b), positive definite": lambda a, b: linalg.solve(a, b[:, :8], assume_a="pos", check=False),
    "inv(A)": lambda a, _: linalg.inv(a),
    "qr(B)": lambda _, b: linalg.qr(b),
    "lstsq(B, b)": lambda a, b: linalg.lstsq(b[:, :64], a[:, :1]),
    "trsm(A, B)": blas.trsm,
    "syrk(A)": lambda a, _: blas.syrk(a),
    "eigvalsh(A)": lambda a, _: linalg.eigvalsh(a),
}


def operands(ctx: pblas.Context, n: int) -> tuple[DistMatrix, DistMatrix]:
    """A symmetric positive definite matrix, and a random one, in the layout that a context gives."""
    a = ctx.from_function(lambda i, j: np.where(i == j, float(n), 1.0 / (1 + i + j)), (n, n))
    return a, ctx.random((n, n))


def predicted(call: Callable[[DistMatrix, DistMatrix], Any], n: int, nprocs: int, hardware: pblas.Hardware) -> float:
    """Seconds of a call in a dry run."""

    def program() -> None:
        with pblas.Context() as ctx:
            call(*operands(ctx, n))

    return pblas.dry_run(program, ranks=nprocs, hardware=replace(hardware, new_memory=inf)).seconds


def main() -> None:
    """**Collective.** Measure, print, write."""
    parser = machine.parser(__doc__, repeats=5)
    parser.add_argument("--n", type=int, default=1024, help="order of the matrices")
    options = parser.parse_args()
    rows = []
    with pblas.Context(transport=options.transport) as ctx:
        hardware = measured_hardware(ctx)
        a, b = operands(ctx, options.n)
        for name, call in CALLS.items():
            expected = predicted(call, options.n, ctx.nprocs, hardware)
            seconds = measured(ctx, partial(call, a, b), options.repeats)
            rows.append({"call": name, "predicted": expected, "measured": seconds, "ratio": expected / seconds})
            if not ctx.rank:
                print(f"{name:32} {1e3 * expected:8.2f} {1e3 * seconds:8.2f} ms {expected / seconds:6.2f}", flush=True)
        if not ctx.rank and options.json:
            results_file.write(options.json, machine.header() | {"hardware": asdict(hardware), "rows": rows})


if __name__ == "__main__":
    main()
