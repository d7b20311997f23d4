"""How much CPU time does an execution take: on arrays that are new to a plan, with a graph capture, on known arrays?

mpiexec -n 4 python -m mpi4py -m benchmarks.gpu.host [--n 64] [--json FILE]

Each algorithm is planned twice, with and without recorded launches (docs/decisions/0018-recorded-launches.md). Both
plans alternate, each on its own arrays D: each D is used once as a new array, twice for a capture, then as a known
array. All GPUs are idle when a call begins, so no launch queue is full. A time is the median over all D of the slowest
rank; a ratio is the median over all D. All D are compared at the end.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpi4py import MPI
from rich.console import Console

from benchmarks import results_file
from benchmarks.gpu.algorithms import taking
from benchmarks.gpu.rows import about
from pblas import MatrixDescriptor
from pblas.plans.algorithm import Algorithm

COMM = MPI.COMM_WORLD
CALLS = {"new": 1, "captured": 2, "known": 5}  # number of calls of each kind on each D, in this order
MODES = ("recorded", "walked")
ROWS, COLUMNS, WHOLE = MatrixDescriptor.row_wise, MatrixDescriptor.column_wise, MatrixDescriptor.replicated
GATHERED, SCATTERED, REDUCED = (ROWS, COLUMNS, ROWS), (COLUMNS, ROWS, ROWS), (COLUMNS, ROWS, WHOLE)
"""Layouts of A, B and D."""


def cases(nprocs: int) -> Iterator[tuple[str, tuple[Any, ...], Algorithm]]:
    """Products, their layouts, and the algorithms to measure."""
    for name, layouts in (("AG+GEMM", GATHERED), ("GEMM+RS", SCATTERED)):
        stores = (Algorithm("fused_stores"),) if layouts == SCATTERED else ()
        for algorithm in (
            Algorithm("sm_push"),
            Algorithm("copy_engine", (1,) * nprocs),
            Algorithm("tile_signals"),
            *stores,
        ):
            yield name, layouts, algorithm
    pieces = Algorithm("copy_engine", (3, 2, 1)), Algorithm("tile_signals", (2, 1)), Algorithm("tile_signals", (1,) * 8)
    for algorithm in (Algorithm("one_shot"), Algorithm("two_shot"), *pieces):
        yield "GEMM+AR", REDUCED, algorithm


@contextmanager
def nothing_recorded(engine: Any) -> Iterator[None]:
    """A with block in which new plans record no launches: each execution walks through the schedule."""
    engine.record = lambda *_: None
    try:
        yield
    finally:
        del engine.record


class Plan:
    """A planned product, its arrays, and the CPU times of its executions."""

    def __init__(self, ctx: Any, layouts: tuple[Any, ...], n: int, outputs: int) -> None:
        import cupy

        import pblas

        self._wait: Callable[[], object] = cupy.cuda.runtime.deviceSynchronize
        desc_a, desc_b, desc_d = (layout(n, n, ctx.nprocs) for layout in layouts)
        self._a, self._b = (ctx.random(desc, "float16", seed=seed) for seed, desc in enumerate((desc_a, desc_b)))
        empty = [cupy.full(desc_d.local_shape(ctx.rank), cupy.nan, "float16", order="F") for _ in range(outputs)]
        self.outputs = [ctx.from_local(x, desc_d) for x in empty]
        self._planned = pblas.plan_matmul(self._a, self._b, out=self.outputs[0])
        self.us: dict[str, list[float]] = {kind: [] for kind in CALLS}

    def turn(self, number: int) -> None:
        """Run all calls on one D."""
        for kind, calls in CALLS.items():
            for _ in range(calls):
                self._wait()
                start = time.perf_counter()
                self._planned.execute(self._a, self._b, out=self.outputs[number])
                self.us[kind].append(1e6 * (time.perf_counter() - start))

    def slowest(self, kind: str) -> list[float]:
        """us of the slowest rank, for each call."""
        return [max(samples) for samples in zip(*COMM.allgather(self.us[kind]), strict=True)]


def measure(ctx: Any, layouts: tuple[Any, ...], algorithm: Algorithm, n: int, outputs: int) -> dict[str, Any]:
    """**Collective.** Times and ratios of an algorithm."""
    import cupy

    plans = {}
    with taking(algorithm):
        plans["recorded"] = Plan(ctx, layouts, n, outputs)
        with nothing_recorded(ctx.runtime.backend.engine()):
            plans["walked"] = Plan(ctx, layouts, n, outputs)
    for number in range(outputs):
        for mode in MODES if number % 2 else MODES[::-1]:
            plans[mode].turn(number)
    cupy.cuda.runtime.deviceSynchronize()
    first = plans["recorded"].outputs[0].local
    same_bits = all(bool((d.local == first).all()) for plan in plans.values() for d in plan.outputs)
    times = {mode: {kind: plan.slowest(kind) for kind in CALLS} for mode, plan in plans.items()}
    ratios = {
        kind: round(
            statistics.median(x / y for x, y in zip(times["recorded"][kind], times["walked"][kind], strict=True)), 3
        )
        for kind in CALLS
    }
    us = {
        mode: {kind: round(statistics.median(seconds), 1) for kind, seconds in of.items()} for mode, of in times.items()
    }
    return {"us": us, "recorded / walked": ratios, "alike": COMM.allreduce(same_bits, MPI.LAND)}


def main() -> None:
    """Measure all algorithms, print the rows, and write them to a file if one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=64, help="rows and columns of all matrices")
    parser.add_argument("--outputs", type=int, default=40, help="number of arrays D of each plan")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    import pblas

    console, rows = Console(soft_wrap=True), list[dict[str, Any]]()
    with pblas.Context(backend="nvshmem") as ctx:
        for name, layouts, algorithm in cases(ctx.nprocs):
            row = {"op": name, "algorithm": algorithm.short} | measure(
                ctx, layouts, algorithm, options.n, options.outputs
            )
            rows.append(row)
            if ctx.rank == 0:
                console.print(row, highlight=False, markup=False)
        if ctx.rank == 0 and options.json:
            device = ctx.describe()["GPU"].partition(",")[0]
            head = about(device, ctx.nprocs) | {"n": options.n, "outputs": options.outputs}
            results_file.write(options.json, head | {"rows": rows})


if __name__ == "__main__":
    main()
