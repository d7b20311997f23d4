"""How fast are cholesky, lu_factor and solve compared with SciPy and ScaLAPACK, and with the GEMM rate?

    make peer                                            once; it installs Debian's ScaLAPACK and prepares build/peer
    LD_LIBRARY_PATH=build/peer mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.factor --json FILE

All columns run in one job on the same random matrix, in rounds: each round runs every column once, in rotated order.
"pblas" has one BLAS thread per rank, and counts the copy of A to block columns; "rows" is pblas with A row-wise, which
Cholesky also brings back. "SciPy" is its LAPACK on rank 0 with as many threads as there are ranks, while the other
ranks sleep. "stock" and "tuned" are Debian's ScaLAPACK with its inner block of 32 and of 256, at the best of some grids
and blocks. "GEMM" is NumPy's product of each rank's share of n x n x n, scaled to the operations of the factorization:
what a factorization at the rate of a product would take. Times are from a barrier to the last rank's return.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # for tests.peer
os.environ |= {"OPENBLAS_NUM_THREADS": str(os.cpu_count() or 1)}

import numpy as np  # noqa: E402 - the threads are set before a BLAS is loaded
import scipy.linalg.lapack  # noqa: E402
from mpi4py import MPI  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from threadpoolctl import threadpool_limits  # noqa: E402

import pblas  # noqa: E402
from benchmarks.cpu.machine import write  # noqa: E402
from benchmarks.rounds import rounds, together  # noqa: E402
from pblas import Grid, MatrixDescriptor, linalg  # noqa: E402
from tests.peer.library import STOCK, TUNED, Library  # noqa: E402

COMM = MPI.COMM_WORLD
CONSOLE = Console(markup=False, highlight=False, quiet=COMM.rank != 0, width=120)
SIZES, BLOCKS = (1024, 2048, 4096), (32, 64, 128)
FLOPS = {"cholesky": 1 / 3, "lu": 2 / 3, "solve": 2 / 3}


class Peer:
    """ScaLAPACK's factorizations of one matrix, on one grid with one block size."""

    def __init__(self, library: Library, shape: tuple[int, int], nb: int, a: Any, spd: Any) -> None:
        self._library, self._n = library, len(a)
        ictxt = library.gridinit(None, "R", *shape)
        desc = MatrixDescriptor.block_cyclic(*a.shape, nb, nb, Grid(*shape, "R"))
        rows, columns = ([g for r in ranges for g in range(*r)] for ranges in desc.global_ranges(COMM.rank))
        self._parts = {"lu": np.asfortranarray(a[np.ix_(rows, columns)])}
        self._parts["cholesky"] = np.asfortranarray(spd[np.ix_(rows, columns)])
        self._work, self._lld = np.empty_like(self._parts["lu"]), max(len(rows), 1)
        self._desc = [1, ictxt, self._n, self._n, nb, nb, 0, 0, self._lld]
        self._pivots = np.empty(self._lld + nb, np.intc)

    def run(self, kind: str, inner: int) -> float:
        """**Collective.** Seconds of pdpotrf or pdgetrf."""
        self._library.block = inner
        self._work[...] = self._parts[kind]
        info, n = np.zeros(1, np.intc), self._n
        matrix = (self._work, 1, 1, self._desc)
        if kind == "cholesky":
            seconds = together(lambda: self._library.pdpotrf("L", n, *matrix, info))
        else:
            seconds = together(lambda: self._library.pdgetrf(n, n, *matrix, self._pivots, info))
        assert info[0] == 0, "the matrix is regular"
        return seconds


def scipy_seconds(kind: str, a: Any, work: Any) -> float:
    """**Collective.** Seconds of SciPy's LAPACK on rank 0; the other ranks sleep."""
    seconds = 0.0
    if COMM.rank == 0:
        np.copyto(work, a)
        routines = scipy.linalg.lapack
        with threadpool_limits(COMM.size, user_api="blas"):
            start = time.perf_counter()
            routines.dpotrf(work, lower=1, overwrite_a=1, clean=0) if kind == "cholesky" else routines.dgetrf(
                work, overwrite_a=1
            )
            seconds = time.perf_counter() - start
    request = COMM.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)
    return float(COMM.bcast(seconds))


def gemm_seconds(kind: str, x: Any, y: Any, out: Any) -> float:
    """**Collective.** Seconds of the product's share of each rank, scaled to the operations of a factorization."""
    return together(lambda: np.matmul(x, y, out=out)) * FLOPS[kind] / 2


def measured(ctx: pblas.Context, peer: Library | None, n: int, repeats: int, blocks: list[int]) -> list[dict[str, Any]]:
    """**Collective.** The rows of the table for matrices of n rows."""
    rng = np.random.default_rng(0)
    a = np.asfortranarray(rng.standard_normal((n, n)))
    spd = np.minimum(np.arange(n)[:, None], np.arange(n)) + np.eye(n) * n
    spd, work, b = np.asfortranarray(spd), np.empty_like(a), rng.standard_normal(n)
    rows, report = MatrixDescriptor.row_wise(n, n, ctx.nprocs), []
    share = np.ones((n, n)), np.ones((n, n // ctx.nprocs), order="F"), np.empty((n, n // ctx.nprocs), order="F")
    peers = {}
    if peer is not None:
        grids = [(1, COMM.size), (COMM.size, 1)] if COMM.size < 4 else [(2, COMM.size // 2), (1, COMM.size)]
        peers = {(g, nb): Peer(peer, g, nb, a, spd) for g in grids for nb in blocks}
    for kind, matrix, ours in (("cholesky", spd, linalg.plan_cholesky), ("lu", a, linalg.plan_lu)):
        cyclic = ours(rows, dtype="float64").plan.w
        placed = {"pblas": ctx.from_global(matrix, cyclic, None), "rows": ctx.from_global(matrix, rows, None)}
        columns: dict[str, Callable[[], float]] = {
            name: partial(together, partial(linalg.cholesky if kind == "cholesky" else linalg.lu_factor, x))
            for name, x in placed.items()
        }
        columns |= {"SciPy": partial(scipy_seconds, kind, matrix, work), "GEMM": partial(gemm_seconds, kind, *share)}
        for name, inner in (("stock", STOCK), ("tuned", TUNED)) if peers else ():
            best = min(peers, key=lambda key: peers[key].run(kind, inner))
            columns[name] = partial(peers[best].run, kind, inner)
        report.append(row(kind, n, rounds(columns, repeats, warm=1)))
        if kind == "lu":
            x = linalg.solve(placed["rows"], b)
            assert np.abs(a @ x - b).max() < 1e-8, "it solves the equations"
    return report


def row(kind: str, n: int, times: dict[str, list[float]]) -> dict[str, Any]:
    """The figures of one factorization."""
    summary = {
        name: {"best_s": min(x), "median_s": statistics.median(x), "worst_s": max(x)} for name, x in times.items()
    }
    return {"routine": kind, "n": n, "columns": summary}


def show(report: list[dict[str, Any]]) -> None:
    """Print milliseconds, and the times of the other columns over the time of pblas, of the best rounds."""
    table = Table(show_header=True, box=None)
    names = list(report[0]["columns"])
    others = [name for name in names if name != "pblas"]
    for title in ("routine", "n", *(f"{name}, ms" for name in names), *(f"{name} / pblas" for name in others)):
        table.add_column(title, justify="right")
    for figures in report:
        best = {name: summary["best_s"] for name, summary in figures["columns"].items()}
        cells = [figures["routine"], str(figures["n"]), *(f"{1e3 * best[name]:.1f}" for name in names)]
        table.add_row(*cells, *(f"{best[name] / best['pblas']:.2f}" for name in others))
    CONSOLE.print(table)


def integers(text: str) -> list[int]:
    """Numbers with commas between them."""
    return [int(n) for n in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", type=integers, default=list(SIZES))
    parser.add_argument("--blocks", type=integers, default=list(BLOCKS), help="of ScaLAPACK")
    parser.add_argument("--alone", action="store_true", help="without ScaLAPACK")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--commit", default="", help="commit that is measured; written to the file")
    options = parser.parse_args()
    peer = None if options.alone else Library(ROOT / "build" / "peer")
    report = []
    with pblas.Context() as ctx:
        for n in options.sizes:
            report += measured(ctx, peer, n, options.rounds, options.blocks)
            show(report[-2:])
    write(options.json, {"commit": options.commit, "rounds": options.rounds, "rows": report})


if __name__ == "__main__":
    main()
