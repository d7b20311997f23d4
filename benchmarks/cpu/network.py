"""How much of the communication do products hide on a real network, and how fast is pdgemm there beside ScaLAPACK?

    make peer                                   once, for ScaLAPACK; without it that part is left out
    python -m benchmarks.cpu.network [--json FILE] [--chart FILE] [--rates none,2gbit,1gbit,500mbit,250mbit]

Makes hosts on this machine (tests/harness/hosts.py: network namespaces, TCP, a core for each host), limits the rate at
which each host receives, and runs one rank per host. In each round every column runs once, in rotated order; a time is
from a barrier to the last rank's return, and the median counts. Columns of a product: with overlap, without it, and
the GEMMs of a rank alone. The transfer is the bytes that the plan receives over the rate. A product whose communication
is hidden takes hardly more than the longer of the GEMMs and the transfer.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
os.environ |= {"OPENBLAS_NUM_THREADS": "1"}

RATES = {"none": None, "2gbit": 2e9 / 8, "1gbit": 1e9 / 8, "500mbit": 5e8 / 8, "250mbit": 2.5e8 / 8}
"""Bytes per second that a host receives."""
PRODUCTS = ("AG+GEMM", "GEMM+RS", "GEMM+AR", "SUMMA")
BLOCKS, GRIDS = (64, 128, 256), ((1, 2), (2, 1))
PEER = ROOT / "build" / "peer"
_SUMMA_BLOCK = 128


def goal(row: dict[str, Any]) -> float | None:
    """Seconds in which a product hides all but an eighth of its GEMMs or its transfer, with 15 % to spare."""
    if row["transfer_s"] is None:
        return None
    longer: float = max(row["columns"]["gemm"], row["transfer_s"])
    return 1.15 * longer + longer / 8


def products(n: int, rate: float | None, repeats: int) -> list[dict[str, Any]]:
    """**Collective.** The four kinds of products of n x n float64 matrices."""
    import numpy as np

    import pblas
    from benchmarks.rounds import rounds, together

    report = []
    with pblas.Context() as ctx:
        p = ctx.nprocs
        rows, columns = (
            make(n, n, p) for make in (pblas.MatrixDescriptor.row_wise, pblas.MatrixDescriptor.column_wise)
        )
        whole = pblas.MatrixDescriptor.replicated(n, n, p)
        grid = pblas.MatrixDescriptor(n, n, _SUMMA_BLOCK, _SUMMA_BLOCK, pblas.Grid(p, 1))
        x, y, out = np.ones((n // p, n)), np.ones((n, n)), np.ones((n // p, n))
        layouts = ((rows, rows, rows), (columns, rows, columns), (columns, rows, whole), (grid, grid, grid))
        for name, (a, b, d) in zip(PRODUCTS, layouts, strict=True):
            A, B, D = ctx.random(a), ctx.random(b, seed=1), ctx.empty(d)
            planned = {overlap: pblas.plan_matmul(A, B, out=D, overlap=overlap) for overlap in (True, False)}
            works: dict[str, Callable[[], float]] = {
                "overlap": partial(together, partial(planned[True].execute, A, B, out=D)),
                "serial": partial(together, partial(planned[False].execute, A, B, out=D)),
                "gemm": partial(together, partial(np.matmul, x, y, out=out)),
            }
            times = {key: statistics.median(seconds) for key, seconds in rounds(works, repeats).items()}
            received = planned[True].plan.max_received_nbytes
            report.append(
                {
                    "product": name,
                    "plan": planned[True].plan.name,
                    "n": n,
                    "received_nbytes": received,
                    "transfer_s": None if rate is None else received / rate,
                    "columns": times,
                }
            )
            for plan in planned.values():
                plan.close()
    return report


def pdgemm(n: int, repeats: int) -> list[dict[str, Any]]:
    """**Collective.** The pdgemm of pblas, and of Debian's ScaLAPACK as it is and tuned, on the same arrays."""
    from benchmarks.cpu.scalapack import columns
    from benchmarks.rounds import rounds
    from pblas import scalapack
    from tests.peer.library import DEBIAN, Library
    from tests.peer.run import Timed

    report = []
    peer = Library(PEER, DEBIAN)
    for shape in GRIDS:
        for nb in BLOCKS:
            ours = Timed(scalapack, *shape, n, nb)
            theirs = Timed(peer, *shape, n, nb, ours)
            works = columns("pdgemm", peer, ours, theirs, "debian")
            times = {key: statistics.median(seconds) for key, seconds in rounds(works, repeats, warm=1).items()}
            report.append({"grid": list(shape), "nb": nb, "n": n, "columns": times})
            for timed in (ours, theirs):
                timed.library.gridexit(timed.ictxt)
    return report


def job(options: argparse.Namespace) -> None:
    """**Collective.** The part that ranks run: measure, and write the figures on rank 0."""
    from mpi4py import MPI

    report: dict[str, Any] = {"rate": options.rate}
    report["products"] = products(options.n, RATES[options.rate], options.repeats)
    if PEER.exists():
        report["pdgemm"] = pdgemm(options.n, options.repeats)
    if MPI.COMM_WORLD.rank == 0:
        options.job.write_text(json.dumps(report))


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All rates, on two hosts of one rank each."""
    from tests.harness.hosts import Hosts, leave

    signal.signal(signal.SIGTERM, leave)  # the hosts are removed then too

    report = []
    python, mpiexec = sys.executable, str(Path(sys.executable).parent / "mpiexec")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(PEER)} if PEER.exists() else dict(os.environ)
    with Hosts(2) as hosts, tempfile.TemporaryDirectory() as folder:
        for rate in options.rates:
            hosts.limit(None if rate == "none" else rate)
            path = Path(folder, "job.json")
            rank = [python, "-m", "mpi4py", "-m", "benchmarks.cpu.network", "--job", str(path), "--rate", rate]
            rank += ["--n", str(options.n), "--repeats", str(options.repeats)]
            subprocess.run(hosts.command(mpiexec, (1, 1), rank), check=True, cwd=ROOT, env=environment, timeout=900)
            report.append(json.loads(path.read_text()))
            show(report[-1])
    return report


def show(measured: dict[str, Any]) -> None:
    """Print the figures of one rate: milliseconds, and ratios."""
    print(f"rate {measured['rate']}")
    for row in measured["products"]:
        times, limit = row["columns"], goal(row)
        bound = (
            ""
            if limit is None
            else f", transfer {1e3 * row['transfer_s']:.0f}, {times['overlap'] / limit:.2f} of the goal"
        )
        print(
            f"  {row['product']:8} overlap {1e3 * times['overlap']:.0f} ms, serial {1e3 * times['serial']:.0f}, "
            f"gemm {1e3 * times['gemm']:.0f}{bound}"
        )
    for row in measured.get("pdgemm", ()):
        times = row["columns"]
        ratios = ", ".join(f"{key} / pblas {times[key] / times['pblas']:.2f}" for key in ("stock", "tuned"))
        print(
            f"  pdgemm {row['grid'][0]} x {row['grid'][1]}, nb {row['nb']}: {1e3 * times['pblas']:.0f} ms, {ratios}",
            flush=True,
        )


def chart(report: list[dict[str, Any]]) -> str:
    """Time against rate for each product, with the GEMMs and the transfer as lines; SVG."""
    from benchmarks.charts.scaling_chart import Line, lines_chart

    limited = sorted((each for each in report if RATES[each["rate"]]), key=lambda each: RATES[each["rate"]] or 0.0)
    panels = {}
    for i, name in enumerate(PRODUCTS):
        rows = [(8e-9 * (RATES[each["rate"]] or 0.0), each["products"][i]) for each in limited]
        lines = [Line(key, tuple((x, row["columns"][key]) for x, row in rows)) for key in ("overlap", "serial", "gemm")]
        panels[name] = [*lines, Line("ideal", tuple((x, row["transfer_s"]) for x, row in rows))]
    return lines_chart(
        panels, "seconds", "ideal: the transfer alone; gemm: the products of a rank alone", x_label="Gbit/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=lambda text: text.split(","), default=list(RATES), help="%(default)s")
    parser.add_argument("--n", type=int, default=2048, help="rows and columns (%(default)s)")
    parser.add_argument("--repeats", type=int, default=7, help="rounds (%(default)s)")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--chart", type=Path, help="write the chart, SVG, to this file")
    parser.add_argument("--commit", default="", help="commit that is measured, for the file")
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rate", choices=list(RATES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job(options)
        return
    report = measure(options)
    if options.json:
        from benchmarks.cpu.machine import header

        text = json.dumps(header() | {"commit": options.commit, "rates": report}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    if options.chart:
        options.chart.write_text(chart(report), encoding="utf-8")


if __name__ == "__main__":
    main()
