"""How close does an overlapped product on GPUs come to the time of cuBLAS alone, and how fast are other libraries?

mpiexec -n 8 python -m mpi4py -m benchmarks.gpu.overlap [--ops ag_gemm] [--models 8B] [--m 512 4096] [--json FILE]
python -m benchmarks.gpu.overlap --dry-run [--gpus 8]      the rows of a run and their bounds; needs no GPU
python -m benchmarks.gpu.overlap --summary --json FILE     prints the file, a line per row

All columns but cuBLASMp (`cublasmp.py`) run in one job, in rounds: each round fills all operands with new values and
runs every column once, in rotated order, each on another set of operands. A call is enqueued while a delay kernel runs,
and starts after a barrier of all GPUs; its time excludes both. A time is the maximum over ranks. E is the median over
the rounds of the ratio of cuBLAS alone (the faster of torch.mm and tuned cuBLASLt, in a graph) to pblas. The delay
hides the launch cost of every column; the times of calls back to back (steady) and on the CPU show it. After the rounds
each column runs once more on the data of the last round, into an output full of NaN, and is compared with float32.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks.gpu.rows import (
    COLUMNS,
    MODELS,
    OPS,
    Row,
    about,
    best_other,
    bound_seconds,
    gemm_seconds,
    heap_nbytes,
    merged_row,
    report,
    rows,
    write_merged,
)

if TYPE_CHECKING:
    from benchmarks.gpu.timing import Job


def parser(description: str) -> argparse.ArgumentParser:
    """The options, which cublasmp.py and others share."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--ops", nargs="+", choices=OPS, default=OPS)
    result.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    result.add_argument(
        "--m", nargs="+", type=int, default=[], help="rows of the activations; 16 to 16384 (AR: from 1)"
    )
    result.add_argument(
        "--tp",
        type=int,
        default=8,
        help="tensor-parallel size that determines N and K of a rank, on any number of GPUs",
    )
    result.add_argument("--rounds", type=int, default=0, help="default 40, or 15 if the GEMM takes more than 2 ms")
    result.add_argument("--seconds", type=float, default=20.0, help="limit for the rounds of a row")
    result.add_argument("--deadline", type=float, default=60.0, help="seconds for a step before the process is ended")
    result.add_argument("--json", type=Path, help="merge the rows into this file, each as soon as it is measured")
    return result


def dry_run(measured: list[Row], console: Console) -> None:
    """Print the rows with estimates: cuBLAS alone by its operations or bytes, the bound, and E at the bound."""
    table = Table(title="rows, us by the rates of 8 H200", title_justify="left")
    for name in ("op", "model", "M", "N", "K", "sets", "MB received", "GEMM", "bound", "E at the bound", ""):
        table.add_column(name, justify="right")
    for row in measured:
        gemm = gemm_seconds(row)
        bound = bound_seconds(row, gemm)
        sizes = [row.op, row.model, *map(str, (row.m, row.n, row.k, row.sets)), f"{row.moved_nbytes / 1e6:.1f}"]
        table.add_row(*sizes, f"{1e6 * gemm:.1f}", f"{1e6 * bound:.1f}", f"{gemm / bound:.2f}", row.unfit() or "")
    console.print(table)


def print_row(row: dict[str, Any], console: Console) -> None:
    """Print one row: its columns, E, the bound, and the missing columns."""
    e, clocks = row.get("e", {}), row.get("sm_mhz", {})
    title = f"{row['op']} {row['model']} M={row['m']} N={row['n']} K={row['k']} on {row['gpus']} GPUs"
    if e:
        title += f": E {e['median']:.3f} ({e['q1']:.3f} to {e['q3']:.3f})"
    if "e_symmetric" in row:
        title += f", symmetric {row['e_symmetric']['median']:.3f}"
    if "bound_us" in row:
        title += f"; bound {row['bound_us']:.1f} us, E {row['us']['cublas'] / row['bound_us']:.2f}"
    if clocks:
        title += f"; SM {clocks['min']:.0f} to {clocks['max']:.0f} MHz"
    table = Table(title=f"{title}; {row.get('rounds', 0)} rounds", title_justify="left")
    for name in ("column", "us", "q1", "q3", "cublas/us", "steady us", "CPU us", "TFLOP/s", "GB/s", "rel. error", ""):
        table.add_column(name, justify="left" if name in {"column", ""} else "right")

    def entry(field: str, name: str, form: str) -> str:
        value = row.get(field, {}).get(name)
        return "" if value is None else format(value, form)

    order = dict.fromkeys((*COLUMNS[row["op"]], *row["us"]))
    for name in (name for name in order if name in row["us"]):
        us = row["us"][name]
        q1, q3 = row["us_quartiles"][name]
        ratio = f"{row['us']['cublas'] / us:.3f}" if "cublas" in row["us"] else ""
        entries = [entry("steady_us", name, ".1f"), entry("cpu_us", name, ".1f"), entry("tflops", name, ".0f")]
        entries += [entry("gb_per_s", name, ".0f"), entry("relative_errors", name, ".2g")]
        table.add_row(name, f"{us:.1f}", f"{q1:.1f}", f"{q3:.1f}", ratio, *entries, row.get("wrong", {}).get(name, ""))
    console.print(table)
    for name, reason in row["missing"].items():
        console.print(f"  {name}: {reason}", highlight=False, markup=False)


def print_summary(file: dict[str, Any], console: Console) -> None:
    """Print a line for each row of a file: E, its goal and its bound, and the fastest other library over pblas."""
    table = Table(
        title=f"{file.get('device', '')}, {file.get('date', '')}, {file.get('commit', '')}", title_justify="left"
    )
    names = ("op", "model", "M", "GPUs", "cublas", "pblas", "E", "goal", "E at the bound", "CPU us")
    for name in (*names, "best other", "us", "other / pblas", "wrong"):
        table.add_column(name, justify="right")
    for row in file["rows"]:
        us, other = row["us"], best_other(row)
        known = {name: f"{us[name]:.1f}" for name in ("cublas", "pblas") if name in us}
        line = [
            row["op"],
            row["model"],
            str(row["m"]),
            str(row["gpus"]),
            known.get("cublas", ""),
            known.get("pblas", ""),
        ]
        line.append(f"{row['e']['median']:.3f}" if "e" in row else "")
        line.append(f"{row['goal']:.2f}" if "goal" in row else "")
        line.append(f"{us['cublas'] / row['bound_us']:.2f}" if "bound_us" in row else "")
        cpu = row.get("cpu_us", {}).get("pblas")
        line.append("" if cpu is None else f"{cpu:.1f}")
        line += [other[0], f"{other[1]:.1f}"] if other else ["", ""]
        line.append(f"{other[1] / us['pblas']:.2f}" if other and "pblas" in us else "")
        table.add_row(*line, ", ".join(row.get("wrong", {})))
    console.print(table)


def measure(job: Job, row: Row, options: argparse.Namespace, left_out: frozenset[str]) -> dict[str, Any]:
    """**Collective.** A row of the file."""
    from benchmarks.gpu.columns import Columns
    from benchmarks.gpu.timing import Bench, Operands, fields, give_memory_back

    began = time.perf_counter()
    with job.current():
        ops = Operands(job, row)
        columns = Columns(job, ops, left_out)
        built = time.perf_counter()
        details = columns.details | {column.name: column.details for column in columns.columns if column.details}
        measured = Bench(job, ops, columns.columns, options.rounds, options.seconds).run()
        job.deadline.step(f"{row.title}: closing")
        columns.close()
    missing = columns.missing
    del ops, columns
    give_memory_back()
    job.deadline.step("")
    errors = [measured.errors[name] for name in ("pblas", "pblas symmetric") if name in measured.errors]
    extra = fields(measured) | {
        "relative_error": max(errors) if errors and all(x == x for x in errors) else None,  # noqa: PLR0124 - NaN
        "sm_mhz": measured.clocks,
        "rounds": len(next(iter(measured.times.values()), [])),
        "delay_us": round(1e6 * measured.delay, 1),
        "seconds": [round(built - began, 1), round(time.perf_counter() - built, 1)],
        "facts": details,
    }
    return report(row, measured.times, missing | measured.missing, **extra)


def fitting(options: argparse.Namespace, gpus: int, console: Console) -> list[Row]:
    """The rows of a run that can be cut into equal parts; the reasons for the others are printed."""
    kept = []
    for row in rows(options.ops, options.models, options.m, options.tp, gpus):
        if row.unfit():
            console.print(f"{row.title}: left out, {row.unfit()}", highlight=False)
        else:
            kept.append(row)
    return kept


def publish(job: Job, options: argparse.Namespace, row: dict[str, Any], console: Console) -> None:
    """Print a row and merge it into the file (rank 0)."""
    if job.rank:
        return
    head = about(job.device_name(), job.size)
    print_row(merged_row({}, row), console)
    if options.json:
        own = {key: head[key] for key in ("date", "device", "commit")}
        write_merged(options.json, head | {"rows": [row | own]})


def main() -> None:
    """Print the rows of a run, or measure them."""
    options_parser = parser(__doc__.splitlines()[0])
    options_parser.add_argument("--without", nargs="+", default=[], help="names of columns to leave out")
    options_parser.add_argument("--dry-run", action="store_true", help="print the rows and their bounds")
    options_parser.add_argument("--gpus", type=int, default=8, help="with --dry-run: number of GPUs")
    options_parser.add_argument("--summary", action="store_true", help="print the file of --json, a line per row")
    options = options_parser.parse_args()
    if options.gpus < 1:
        options_parser.error(f"--gpus is {options.gpus}; expected at least 1")
    if options.summary:
        if options.json is None:
            options_parser.error("--summary needs --json FILE")
        print_summary(json.loads(options.json.read_text(encoding="utf-8")), Console(width=170))
        return
    if options.dry_run:
        dry_run(rows(options.ops, options.models, options.m, options.tp, options.gpus), Console(width=150))
        return
    from mpi4py import MPI

    from benchmarks.gpu.timing import Job

    job = Job(MPI.COMM_WORLD, options.deadline)
    console = Console(quiet=job.rank != 0, width=170)
    measured = fitting(options, job.size, console)
    os.environ.setdefault("PBLAS_SYMMETRIC_SIZE", str(heap_nbytes(measured)))  # NVSHMEM's heap cannot grow everywhere
    for row in measured:
        publish(job, options, measure(job, row, options, frozenset(options.without)), console)
    job.close()


if __name__ == "__main__":
    main()
