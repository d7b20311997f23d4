"""Which algorithm of a product is the fastest, how accurate is its prediction, and when does each operation run?

mpiexec -n 4 python -m mpi4py -m benchmarks.gpu.algorithms [--ops gemm_rs] [--models 8B] [--m 512 4096] [--json FILE]
mpiexec -n 4 python -m mpi4py -m benchmarks.gpu.algorithms --algorithms sm_push copy_engine:1,1,2 ...
mpiexec -n 4 python -m mpi4py -m benchmarks.gpu.algorithms --algorithms two_shot:1,1,1 --timeline ...  its operations
python -m benchmarks.gpu.algorithms --dry-run [--gpus 8]      algorithms and their predictions; needs no GPU

Products and method are the same as in `overlap.py`: every algorithm is a column of one job, timed in rounds and back to
back, and checked against float32. `--sets` is the number of sets of arrays that are used in turn; each set has its own
CUDA graphs. The environment variable `CUDA_DEVICE_MAX_CONNECTIONS` is the number of hardware queues.

A timeline is made from traces (docs/traces.md): medians of rank 0, in us since the execution began. An operation begins
when the previous operation of its lane, and the operations of other lanes that it depends on, have ended.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

from rich.console import Console
from rich.table import Table

from benchmarks import results_file
from benchmarks.gpu.overlap import fitting, parser, print_row
from benchmarks.gpu.rows import Row, about, descriptors, heap_nbytes, report
from pblas.backends.engine_limits import LANES
from pblas.matmul import autotune
from pblas.matmul import choose as planner
from pblas.matmul import choose_granularity as granularity
from pblas.matmul.choose_granularity import candidates
from pblas.matmul.product_plan import ProductPlan
from pblas.plans.algorithm import Algorithm
from pblas.simulation.hardware import NVLINK, Topology
from pblas.simulation.simulate import predict

if TYPE_CHECKING:
    from benchmarks.gpu.columns import Ours
    from benchmarks.gpu.timing import Job

HOPELESS = 2.0  # algorithms that are predicted to take this times as long as the best are not measured
EXECUTIONS = 6  # executions that a timeline records; the first is left out


def predicted_us(plan: ProductPlan, algorithm: Algorithm) -> float:
    """Predicted microseconds of a plan with this algorithm."""
    return 1e6 * predict(replace(plan, algorithm=algorithm), NVLINK)


def algorithm_of(name: str) -> Algorithm:
    """Parse an algorithm of `--algorithms`."""
    try:
        return Algorithm.read(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def plan_of(row: Row) -> ProductPlan:
    """The plan of a row with the algorithm that the planner chooses."""
    a, b, d = descriptors(row)
    return planner.choose("bfloat16", a, b, d, context=granularity.PlanningContext(topology(row), row.gpus))


def topology(row: Row) -> Topology:
    """The topology of a row: Hopper GPUs of one host."""
    return Topology(row.gpus, shared=True, push=True, tiles=True)


def algorithms_of(row: Row, plan: ProductPlan, wanted: list[Algorithm]) -> list[Algorithm]:
    """The algorithms to measure: the wanted ones that can run the row, else all candidates with a good prediction."""
    predictions = {algorithm: predicted_us(plan, algorithm) for algorithm in candidates(plan, topology=topology(row))}
    if not wanted:
        return [algorithm for algorithm, us in predictions.items() if us <= HOPELESS * min(predictions.values())]
    kinds = {algorithm.kind for algorithm in predictions}
    fitting = [algorithm for algorithm in wanted if algorithm.kind in kinds]
    return [
        algorithm
        for algorithm in fitting
        if row.op == "gemm_ar" or algorithm.kind != "copy_engine" or sum(algorithm.groups) == row.gpus
    ]


@contextmanager
def taking(algorithm: Algorithm) -> Iterator[None]:
    """A with block in which new plans use this algorithm, and measure no other."""
    with (
        mock.patch.object(granularity, "choose_algorithm", return_value=algorithm),
        mock.patch.object(autotune, "shortlist", return_value=[]),
    ):
        yield


def timeline(job: Job, ours: Ours, algorithm: Algorithm) -> list[dict[str, Any]]:
    """**Collective.** Lane, name, begin and end (us) of each operation of one execution on rank 0."""
    import cupy

    ctx, ops, (desc, _, result) = ours.ctx, ours.ops, ours.descs
    a, b, d = ctx.from_local(ops.a[0], desc), ours.b[0], ctx.from_local(cupy.empty_like(ops.d[0]), result)
    with taking(algorithm):
        mm = ours.plan(a, d)
    runs = []
    for _ in range(EXECUTIONS):
        job.comm.Barrier()
        events = [e for e in mm.trace(a, b, out=d).events if e.rank == 0 and e.lane in LANES]
        first = min((event.start for event in events), default=0.0)
        runs.append([(event.start - first, event.stop - first) for event in events])
    medians = [
        [statistics.median(times) for times in zip(*of_one, strict=True)] for of_one in zip(*runs[1:], strict=True)
    ]
    return [
        {"lane": e.lane, "operation": e.name, "begin": round(1e6 * begin, 1), "end": round(1e6 * end, 1)}
        for e, (begin, end) in zip(events, medians, strict=True)
    ]


def measure(job: Job, row: Row, options: argparse.Namespace) -> dict[str, Any]:
    """**Collective.** A row of the file: the algorithms are its columns."""
    from benchmarks.gpu.columns import Ours
    from benchmarks.gpu.timing import Bench, Operands, fields, give_memory_back

    plan, timelines = plan_of(row), {}
    algorithms = algorithms_of(row, plan, options.algorithms)
    with job.current():
        ops = Operands(job, row, options.sets)
        ops.refill(0)
        job.deadline.step(f"{row.title}: planning")
        ours, columns = Ours(job, ops), []
        for algorithm in algorithms:
            with taking(algorithm):
                columns.append(replace(ours.plain(), name=algorithm.short))
        measured = Bench(job, ops, columns, options.rounds, options.seconds).run()
        for algorithm in algorithms if options.timeline else ():
            job.deadline.step(f"{row.title}: timeline of {algorithm.short}")
            timelines[algorithm.short] = timeline(job, ours, algorithm)
        columns.clear()
        gc.collect()  # frees arrays of the context before it closes
        job.deadline.step(f"{row.title}: closing")
        ours.close()
    extra = fields(measured) | {
        "chosen": plan.algorithm.short if plan.algorithm else "",
        "predicted_us": {algorithm.short: round(predicted_us(plan, algorithm), 1) for algorithm in algorithms},
        "sets": ops.sets,
        "rounds": len(next(iter(measured.times.values()), [])),
        "sm_mhz": measured.clocks,
    }
    del ops, ours
    give_memory_back()
    job.deadline.step("")
    return report(row, measured.times, measured.missing, **extra, **({"timeline": timelines} if timelines else {}))


def print_algorithms(row: dict[str, Any], console: Console) -> None:
    """Print a row, its predictions and its timelines."""
    print_row(row, console)
    predictions = ", ".join(f"{name} {us:.0f}" for name, us in row["predicted_us"].items())
    console.print(f"  chosen: {row['chosen']}; predicted us: {predictions}", highlight=False)
    for name, operations in row.get("timeline", {}).items():
        table = Table(title=f"{name}: operations of an execution, us", title_justify="left")
        for column in ("lane", "operation", "begin", "end", "lasts"):
            table.add_column(column, justify="left" if column in {"lane", "operation"} else "right")
        for op in operations:
            times = (op["begin"], op["end"], op["end"] - op["begin"])
            table.add_row(op["lane"], op["operation"], *(f"{us:.0f}" for us in times))
        console.print(table)


def dry_run(measured: list[Row], options: argparse.Namespace, console: Console) -> None:
    """Print the algorithms of the rows with their predictions; the planner's choice is marked."""
    for row in measured:
        plan = plan_of(row)
        table = Table(title=f"{row.title} on {row.gpus} GPUs", title_justify="left")
        for column in ("algorithm", "predicted us", ""):
            table.add_column(column, justify="right" if column == "predicted us" else "left")
        for algorithm in algorithms_of(row, plan, options.algorithms):
            table.add_row(
                algorithm.short, f"{predicted_us(plan, algorithm):.1f}", "chosen" if algorithm == plan.algorithm else ""
            )
        console.print(table)


def main() -> None:
    """Print the algorithms of a run, or measure them."""
    options_parser = parser(__doc__.splitlines()[0])
    options_parser.add_argument(
        "--algorithms", nargs="+", type=algorithm_of, default=[], help="default: all with a good prediction"
    )
    options_parser.add_argument("--sets", type=int, default=0, help="sets of arrays, used in turn; default: 240 MB")
    options_parser.add_argument("--timeline", action="store_true", help="record when each operation runs")
    options_parser.add_argument("--dry-run", action="store_true", help="print the algorithms and their predictions")
    options_parser.add_argument("--gpus", type=int, default=8, help="with --dry-run: number of GPUs")
    options = options_parser.parse_args()
    if options.gpus < 2:
        options_parser.error(f"--gpus is {options.gpus}; expected at least 2, since algorithms move data between GPUs")
    if options.dry_run:
        console = Console(width=120)
        dry_run(fitting(options, options.gpus, console), options, console)
        return
    from mpi4py import MPI

    from benchmarks.gpu.timing import Job

    job = Job(MPI.COMM_WORLD, options.deadline)
    console = Console(quiet=job.rank != 0, width=170)
    measured = fitting(options, job.size, console)
    os.environ.setdefault(
        "PBLAS_SYMMETRIC_SIZE", str(2 * heap_nbytes(measured))
    )  # workspaces grow from algorithm to algorithm
    queues = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "default")
    file = about(job.device_name(), job.size) | {"hardware_queues": queues, "rows": []}
    for row in measured:
        file["rows"].append(measure(job, row, options))
        print_algorithms(file["rows"][-1], console)
        if options.json and job.rank == 0:
            results_file.write(options.json, file)
    job.close()


if __name__ == "__main__":
    main()
