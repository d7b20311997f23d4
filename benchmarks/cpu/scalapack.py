"""How fast are pdgemm, pdtran and pdgemr2d of pblas.scalapack compared with ScaLAPACK, on the same arrays?

    make peer                                            once; it installs Debian's ScaLAPACK and prepares build/peer
    LD_LIBRARY_PATH=build/peer mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.scalapack --json FILE   1 x 2, 2 x 1
    LD_LIBRARY_PATH=build/peer mpiexec -n 4 python -m mpi4py -m benchmarks.cpu.scalapack --json FILE   2 x 2

With MKL's ScaLAPACK, from its wheel in an environment V:

    L=V/lib; LD_PRELOAD=$L/libmkl_intel_lp64.so.3:$L/libmkl_sequential.so.3:$L/libmkl_core.so.3 LD_LIBRARY_PATH=$L \
        mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.scalapack --library mkl --json FILE

Both run in one job, on the same local arrays in Fortran order, with one BLAS thread per rank, in rounds: each round
runs every column once, in rotated order. Debian's ScaLAPACK has two columns: "stock" as it is built, and "tuned" with
its inner block of K raised from 32 to 256, which is the fair comparison. pdgemr2d redistributes from blocks of nb to
blocks of nb / 2 + 1. Times are from a barrier to the last rank's return. Other load of the host can slow any round, so
the best rounds are compared; the file also has the median and the worst round. Results are compared before the timing.
The column GEMM is a lower bound for all libraries: NumPy's product of each rank's share, without communication.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # for tests.peer, the binding that `make peer` uses
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import numpy as np  # noqa: E402 - the threads are set before a BLAS is loaded
from mpi4py import MPI  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.cpu.machine import write  # noqa: E402
from benchmarks.rounds import rounds, together  # noqa: E402
from pblas import scalapack  # noqa: E402
from tests.peer.library import DEBIAN, MKL, STOCK, TUNED, Library  # noqa: E402
from tests.peer.run import Timed  # noqa: E402

COMM = MPI.COMM_WORLD
CONSOLE = Console(markup=False, highlight=False, quiet=COMM.rank != 0, width=110)
ROUTINES = ("pdgemm", "pdtran", "pdgemr2d")
GRIDS = {2: [(1, 2), (2, 1)], 4: [(2, 2)]}
SIZES, BLOCKS = (1024, 2048, 4096), (64, 128, 256)


def columns(name: str, peer: Library, ours: Timed, theirs: Timed, kind: str) -> dict[str, Callable[[], float]]:
    """For each column a function that calls the routine and returns its seconds."""

    def tuned(block: int) -> float:
        peer.block = block
        return theirs.run(name)

    works: dict[str, Callable[[], float]] = {"pblas": partial(ours.run, name)}
    if kind == "mkl":
        works |= {"MKL": partial(theirs.run, name)}
    else:
        works |= {"stock": partial(tuned, STOCK), "tuned": partial(tuned, TUNED)}
    return works | ({"GEMM": partial(local_gemm, ours)} if name == "pdgemm" else {})


def local_gemm(timed: Timed) -> float:
    """**Collective.** Seconds of NumPy for each rank's share of the product, with all operands local."""
    (rows, columns), n = timed.c[0].shape, timed.n
    x, y, out = np.ones((rows, n)), np.ones((n, columns)), np.ones((rows, columns))
    return together(lambda: np.matmul(x, y, out=out))


def difference(name: str, ours: Timed, theirs: Timed) -> float:
    """**Collective.** Call the routine of both libraries; the largest difference of their results."""
    for timed in (ours, theirs):
        timed.run(name)
    local = float(np.abs(ours.result(name) - theirs.result(name)).max(initial=0.0))
    return COMM.allreduce(local, MPI.MAX)


def rows(peer: Library, options: argparse.Namespace) -> list[dict[str, Any]]:
    """**Collective.** All measurements."""
    report = []
    for shape in GRIDS[COMM.size]:
        for n in options.sizes:
            for nb in BLOCKS:
                ours = Timed(scalapack, *shape, n, nb)
                theirs = Timed(peer, *shape, n, nb, ours)
                for name in ROUTINES:
                    limit = 4e-14 * n if name == "pdgemm" else 0.0  # above 2 (K + 1) eps, for elements up to 1
                    largest = difference(name, ours, theirs)
                    assert largest <= limit, f"{name}: results differ by {largest}"
                    repeats = options.rounds if name == "pdgemm" and n > SIZES[0] else 2 * options.rounds
                    times = rounds(columns(name, peer, ours, theirs, options.library), repeats, warm=1)
                    row: dict[str, Any] = {"routine": name, "grid": list(shape), "n": n, "nb": nb}
                    row["columns"] = {
                        key: {"best_s": min(x), "median_s": statistics.median(x), "worst_s": max(x)}
                        for key, x in times.items()
                    }
                    report.append(row)
                for timed in (ours, theirs):
                    timed.library.gridexit(timed.ictxt)
                show(report[-len(ROUTINES) :])
    return report


def show(rows: list[dict[str, Any]]) -> None:
    """Print some rows: milliseconds, and the times of the other columns over the time of pblas."""
    table = Table(show_header=True, box=None)
    others = [name for name in rows[0]["columns"] if name != "pblas"]  # row 0 is pdgemm, which has all columns
    for title in ("routine", "grid", "n", "nb", "pblas, ms", *others, *(f"{name} / pblas" for name in others)):
        table.add_column(title, justify="right")
    for row in rows:
        best = {name: summary["best_s"] for name, summary in row["columns"].items()}
        cells = [row["routine"], "x".join(map(str, row["grid"])), str(row["n"]), str(row["nb"])]
        cells += [f"{1e3 * best[name]:.1f}" if name in best else "" for name in ("pblas", *others)]
        cells += [f"{best[name] / best['pblas']:.2f}" if name in best else "" for name in others]
        table.add_row(*cells)
    CONSOLE.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", choices=("debian", "mkl"), default="debian", help="which ScaLAPACK")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of large products; all others get twice as many")
    parser.add_argument("--sizes", type=lambda text: [int(n) for n in text.split(",")], default=list(SIZES))
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    peer = Library(ROOT / "build" / "peer", DEBIAN if options.library == "debian" else MKL)
    report = rows(peer, options)
    library = "Debian's ScaLAPACK 2.2.1 with OpenBLAS" if options.library == "debian" else "MKL"
    facts = {"library": library, "rounds": options.rounds}
    write(options.json, facts | {"rows": report})


if __name__ == "__main__":
    main()
