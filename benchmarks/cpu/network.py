"""How much of the communication do products hide on a real network, and how fast is pdgemm there beside ScaLAPACK?

    make peer                                   once, for ScaLAPACK; without it that part is left out
    python -m benchmarks.cpu.network [--hosts 2x1] [--rates none,2gbit,1gbit,500mbit,250mbit] [--json FILE]
    python -m benchmarks.cpu.network --draw --json FILE --chart FILE

Makes hosts on this machine (tests/harness/hosts.py: network namespaces, TCP, a core for each host in turn) and limits
the rate at which each host receives. In each round every column runs once, in rotated order; a time is from a barrier
to the last rank's return, and the median counts. Columns of a product: with overlap, without it, and the GEMMs of a
rank alone. The transfer is the bytes that a host receives over the rate. A product whose communication is hidden takes
hardly more than the longer of the GEMMs and the transfer: the bound. Columns of pdgemm: pblas, ScaLAPACK as built and
tuned (`benchmarks.cpu.scalapack`), and the GEMM of a rank alone.

Rows of a file that are measured again are replaced, so several short runs can fill it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks import results_file

ROOT = Path(__file__).resolve().parents[2]
os.environ |= {"OPENBLAS_NUM_THREADS": "1"}

RATES = {"none": None, "2gbit": 2e9 / 8, "1gbit": 1e9 / 8, "500mbit": 5e8 / 8, "250mbit": 2.5e8 / 8}
"""Bytes per second that a host receives."""
PRODUCTS = ("AG+GEMM", "GEMM+RS", "GEMM+AR", "grid")
"""The last one: blocks over a grid of 2 x P / 2, SUMMA on four ranks. On 2 x 1 it is an all-gather of cyclic rows."""
BLOCKS, GRIDS = (64, 128, 256), {2: ((1, 2), (2, 1)), 4: ((2, 2),)}
PARTS = ("products", "pdgemm")
PEER = ROOT / "build" / "peer"
_BLOCK = 128


def goal(row: dict[str, Any]) -> float | None:
    """Seconds in which a product hides all but an eighth of its GEMMs or its transfer, with 15 % to spare."""
    if row["transfer_s"] is None:
        return None
    longer: float = max(row["columns"]["gemm"], row["transfer_s"])
    return 1.15 * longer + longer / 8


def products(n: int, rate: float | None, repeats: int) -> Iterator[dict[str, Any]]:
    """**Collective.** The four kinds of products of n x n float64 matrices."""
    import numpy as np

    import pblas
    from benchmarks.rounds import rounds, together

    with pblas.Context() as ctx:
        p = ctx.nprocs
        rows, columns = (
            make(n, n, p) for make in (pblas.MatrixDescriptor.row_wise, pblas.MatrixDescriptor.column_wise)
        )
        whole = pblas.MatrixDescriptor.replicated(n, n, p)
        grid = pblas.MatrixDescriptor(n, n, _BLOCK, _BLOCK, pblas.Grid(2, p // 2))
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
            times = {key: statistics.median(seconds) for key, seconds in rounds(works, repeats, warm=1).items()}
            plan = planned[True].plan
            received = plan.max_network_nbytes or plan.max_received_nbytes
            yield {
                "product": name,
                "plan": plan.name,
                "n": n,
                "received_nbytes": received,
                "transfer_s": None if rate is None else received / rate,
                "columns": times,
            }
            for each in planned.values():
                each.close()


def pdgemm(n: int, grids: Iterable[tuple[int, int]], blocks: Iterable[int], repeats: int) -> Iterator[dict[str, Any]]:
    """**Collective.** The pdgemm of pblas, and of Debian's ScaLAPACK as it is and tuned, on the same arrays."""
    from benchmarks.cpu.scalapack import columns
    from benchmarks.rounds import rounds
    from pblas import scalapack
    from tests.peer.library import DEBIAN, Library
    from tests.peer.run import Timed

    peer = Library(PEER, DEBIAN)
    for shape in grids:
        for nb in blocks:
            ours = Timed(scalapack, *shape, n, nb)
            theirs = Timed(peer, *shape, n, nb, ours)
            works = columns("pdgemm", peer, ours, theirs, "debian")
            times = {key: statistics.median(seconds) for key, seconds in rounds(works, repeats, warm=1).items()}
            yield {"grid": list(shape), "nb": nb, "n": n, "columns": times}
            for timed in (ours, theirs):
                timed.library.gridexit(timed.ictxt)


def job(options: argparse.Namespace) -> None:
    """**Collective.** The part that ranks run: measure. Rank 0 prints each row as a line of JSON."""
    from mpi4py import MPI

    parts = [products(options.n, RATES[options.job], options.repeats)] if "products" in options.parts else []
    if "pdgemm" in options.parts and PEER.exists():
        parts.append(pdgemm(options.n, GRIDS[MPI.COMM_WORLD.size], options.blocks, options.repeats))
    for row in chain(*parts):
        if MPI.COMM_WORLD.rank == 0:
            print(json.dumps(row), flush=True)


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of all rates, on the given hosts."""
    from tests.harness.hosts import Hosts, leave, parse_ranks

    signal.signal(signal.SIGTERM, leave)  # the hosts are removed then too

    python, mpiexec, ranks = sys.executable, str(Path(sys.executable).parent / "mpiexec"), parse_ranks(options.hosts)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(PEER)} if PEER.exists() else dict(os.environ)
    if sum(ranks) > 2:  # on UCX, the default of MPICH, the second pdgemm of ScaLAPACK on 2 x 2 stalls
        environment |= {"MPIR_CVAR_CH4_NETMOD": "ofi"}
    rank = [python, "-m", "mpi4py", "-m", "benchmarks.cpu.network", "--n", str(options.n), "--parts"]
    rank += [",".join(options.parts), "--blocks", ",".join(map(str, options.blocks)), "--repeats", str(options.repeats)]
    with Hosts(len(ranks)) as hosts:
        for rate in options.rates:
            hosts.limit(None if rate == "none" else rate)
            command = hosts.command(mpiexec, ranks, [*rank, "--job", rate])
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as process:
                assert process.stdout is not None, "it is a pipe"
                try:
                    for line in process.stdout:
                        yield {"hosts": options.hosts, "rate": rate, "commit": results_file.commit()} | json.loads(line)
                except BaseException:  # a signal: the job may go on for long
                    process.kill()
                    raise
            if process.returncode:
                raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}")


def show(row: dict[str, Any]) -> None:
    """Print a row: milliseconds, and ratios."""
    times = row["columns"]
    if "product" in row:
        limit = goal(row)
        figures = f"overlap {1e3 * times['overlap']:.0f} ms, serial {1e3 * times['serial']:.0f}, "
        figures += f"gemm {1e3 * times['gemm']:.0f}"
        if limit is not None:
            figures += f", transfer {1e3 * row['transfer_s']:.0f}, {times['overlap'] / limit:.2f} of the goal"
    else:
        ratios = (f"{key} / pblas {times[key] / times['pblas']:.2f}" for key in ("stock", "tuned", "GEMM"))
        figures = f"{row['nb']}: {1e3 * times['pblas']:.0f} ms, {', '.join(ratios)}"
    print(f"{row['hosts']} {row['rate']:7} {_name(row):10} {figures}", flush=True)


def _name(row: dict[str, Any]) -> str:
    return row["product"] if "product" in row else f"pdgemm {'x'.join(map(str, row['grid']))}"


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a row measures."""
    return row["hosts"], row["rate"], row["n"], _name(row), row.get("nb")


def chart(rows: list[dict[str, Any]]) -> str:
    """Time against rate for each product on two hosts, with the GEMMs, the transfer and the bound as lines; SVG."""
    from benchmarks.charts.scaling_chart import Line, lines_chart

    panels = {}
    for name in PRODUCTS:
        points: dict[str, list[tuple[float, float]]] = {}
        for rate, nbytes_per_second in sorted(RATES.items(), key=lambda item: item[1] or 0.0):
            for row in rows:
                if nbytes_per_second and row["rate"] == rate and row["hosts"] == "2x1" and _name(row) == name:
                    times = row["columns"]
                    both = {"transfer": row["transfer_s"], "ideal": max(times["gemm"], row["transfer_s"])}
                    for key, seconds in (times | both).items():
                        points.setdefault(key, []).append((8e-9 * nbytes_per_second, seconds))
        panels[name] = [Line(key, tuple(each)) for key, each in points.items()]
    note = "gemm: the products of a rank alone; ideal: the longer of GEMM and transfer"
    return lines_chart(panels, "seconds", note, x_label="Gbit/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    split = partial(str.split, sep=",")
    parser.add_argument("--hosts", default="2x1", help="ranks of the hosts, as 2x2 or 4x1 (%(default)s)")
    parser.add_argument("--rates", type=split, default=list(RATES), help="%(default)s")
    parser.add_argument("--parts", type=split, default=list(PARTS), help="%(default)s")
    parser.add_argument("--blocks", type=lambda text: list(map(int, text.split(","))), default=list(BLOCKS))
    parser.add_argument("--n", type=int, default=2048, help="rows and columns (%(default)s)")
    parser.add_argument("--repeats", type=int, default=7, help="rounds (%(default)s)")
    parser.add_argument("--json", type=Path, help="write all figures to this file, or read them from it")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    parser.add_argument("--chart", type=Path, help="write the chart, SVG, to this file")
    parser.add_argument("--job", choices=list(RATES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job(options)
        return
    rows = {}
    if options.json and options.json.exists():
        rows = {_key(row): row for row in json.loads(options.json.read_text())["rows"]}
    for row in () if options.draw else measure(options):
        show(row)
        rows[_key(row)] = row
        if options.json:  # after every row, since a run may be ended early
            from benchmarks.cpu.machine import header

            results_file.write(options.json, header() | {"rows": list(rows.values())})
    if options.chart:
        options.chart.write_text(chart(list(rows.values())), encoding="utf-8")


if __name__ == "__main__":
    main()
