"""How fast are cholesky, lu_factor and qr_factor compared with SciPy and ScaLAPACK, and with the GEMM rate?

    make peer                                            once; it installs Debian's ScaLAPACK and prepares build/peer
    LD_LIBRARY_PATH=build/peer mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.factor --json FILE

All columns run in one job on the same random matrix, in rounds: each round runs every column once, in rotated order.
"pblas" has one BLAS thread per rank, and counts the copy of A to the internal layout; "rows" is pblas with A row-wise,
which Cholesky also brings back. QR is without Q; --tall lists shapes of tall matrices for it. "SciPy" is its LAPACK on
rank 0 with as many threads as there are ranks, while the other ranks sleep. "stock" and "tuned" are Debian's ScaLAPACK
with its inner block of 32 and of 256, at the best of some grids and blocks. "GEMM" is NumPy's product of each rank's
share, scaled to the operations of the factorization: what a factorization at the rate of a product would take. Times
are from a barrier to the last rank's return.
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
OURS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "cholesky": (linalg.plan_cholesky, linalg.cholesky),
    "lu": (linalg.plan_lu, linalg.lu_factor),
    "qr": (linalg.plan_qr, linalg.qr_factor),
}


def flops(kind: str, m: int, n: int) -> float:
    """Additions and multiplications of a factorization of an m x n matrix, m >= n, to first order."""
    return {"cholesky": n**3 / 3, "lu": m * n**2 - n**3 / 3, "qr": 2 * m * n**2 - 2 * n**3 / 3}[kind]


class Peer:
    """ScaLAPACK's factorizations of some matrices of one shape, on one grid with one block size."""

    def __init__(self, library: Library, shape: tuple[int, int], nb: int, matrices: dict[str, Any]) -> None:
        self._library, (self._m, self._n) = library, next(iter(matrices.values())).shape
        ictxt = library.gridinit(None, "R", *shape)
        desc = MatrixDescriptor.block_cyclic(self._m, self._n, nb, nb, Grid(*shape, "R"))
        rows, columns = ([g for r in ranges for g in range(*r)] for ranges in desc.global_ranges(COMM.rank))
        self._parts = {kind: np.asfortranarray(x[np.ix_(rows, columns)]) for kind, x in matrices.items()}
        self._work, self._lld = np.empty((len(rows), len(columns)), order="F"), max(len(rows), 1)
        self._desc = [1, ictxt, self._m, self._n, nb, nb, 0, 0, self._lld]
        self._pivots, self._tau = np.empty(self._lld + nb, np.intc), np.empty(len(columns) + nb)
        self._scratch = np.empty(2 * nb * (len(rows) + len(columns) + nb))

    def run(self, kind: str, inner: int) -> float:
        """**Collective.** Seconds of pdpotrf, pdgetrf or pdgeqrf."""
        self._library.block = inner
        self._work[...] = self._parts[kind]
        info, m, n = np.zeros(1, np.intc), self._m, self._n
        matrix, scratch = (self._work, 1, 1, self._desc), self._scratch
        routines: dict[str, Callable[[], None]] = {
            "cholesky": lambda: self._library.pdpotrf("L", n, *matrix, info),
            "lu": lambda: self._library.pdgetrf(m, n, *matrix, self._pivots, info),
            "qr": lambda: self._library.pdgeqrf(m, n, *matrix, self._tau, scratch, len(scratch), info),
        }
        seconds = together(routines[kind])
        assert info[0] == 0, "the matrix is regular"
        return seconds


def scipy_seconds(kind: str, a: Any, work: Any) -> float:
    """**Collective.** Seconds of SciPy's LAPACK on rank 0; the other ranks sleep."""
    seconds = 0.0
    if COMM.rank == 0:
        np.copyto(work, a)
        lapack = scipy.linalg.lapack
        routines: dict[str, Callable[[], Any]] = {
            "cholesky": lambda: lapack.dpotrf(work, lower=1, overwrite_a=1, clean=0),
            "lu": lambda: lapack.dgetrf(work, overwrite_a=1),
            "qr": lambda: lapack.dgeqrf(work, lwork=64 * work.shape[1], overwrite_a=1),
        }
        with threadpool_limits(COMM.size, user_api="blas"):
            start = time.perf_counter()
            routines[kind]()
            seconds = time.perf_counter() - start
    request = COMM.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)
    return float(COMM.bcast(seconds))


def gemm_seconds(operations: float, x: Any, y: Any, out: Any) -> float:
    """**Collective.** Seconds of the product's share of each rank, scaled to the operations of a factorization."""
    return together(lambda: np.matmul(x, y, out=out)) * operations / (2 * x.size * y.shape[1] * COMM.size)


def measured(
    ctx: pblas.Context, peer: Library | None, matrices: dict[str, Any], repeats: int, blocks: list[int]
) -> list[dict[str, Any]]:
    """**Collective.** The rows of the table for matrices of one shape, by the factorizations that take them."""
    m, n = next(iter(matrices.values())).shape
    rows, report = MatrixDescriptor.row_wise(m, n, ctx.nprocs), []
    width, work = max(n // ctx.nprocs, 1), np.empty((m, n), order="F")
    share = np.ones((min(m, 2048), n)), np.ones((n, width), order="F"), np.empty((min(m, 2048), width), order="F")
    peers = {}
    if peer is not None:
        grids = [(1, COMM.size), (COMM.size, 1)] if COMM.size < 4 else [(2, COMM.size // 2), (1, COMM.size)]
        peers = {(g, nb): Peer(peer, g, nb, matrices) for g in grids for nb in blocks}
    for kind, matrix in matrices.items():
        plan, factor = OURS[kind]
        w = plan(rows, dtype="float64").plan.target
        placed = {"pblas": ctx.from_global(matrix, w, None), "rows": ctx.from_global(matrix, rows, None)}
        columns: dict[str, Callable[[], float]] = {
            name: partial(together, partial(factor, x)) for name, x in placed.items()
        }
        columns |= {
            "SciPy": partial(scipy_seconds, kind, matrix, work),
            "GEMM": partial(gemm_seconds, flops(kind, m, n), *share),
        }
        for name, inner in (("stock", STOCK), ("tuned", TUNED)) if peers else ():
            best = min(peers, key=lambda key: peers[key].run(kind, inner))
            columns[name] = partial(peers[best].run, kind, inner)
        report.append(row(kind, m, n, rounds(columns, repeats, warm=1)))
    return report


def square(n: int) -> dict[str, Any]:
    """A random matrix of n rows for LU and QR, and a positive definite one."""
    a = np.asfortranarray(np.random.default_rng(0).standard_normal((n, n)))
    spd = np.asfortranarray(np.minimum(np.arange(n)[:, None], np.arange(n)) + np.eye(n) * n)
    return {"cholesky": spd, "lu": a, "qr": a}


def row(kind: str, m: int, n: int, times: dict[str, list[float]]) -> dict[str, Any]:
    """The figures of one factorization."""
    summary = {
        name: {"best_s": min(x), "median_s": statistics.median(x), "worst_s": max(x)} for name, x in times.items()
    }
    return {"routine": kind, "m": m, "n": n, "columns": summary}


def show(report: list[dict[str, Any]]) -> None:
    """Print milliseconds, and the times of the other columns over the time of pblas, of the best rounds."""
    table = Table(show_header=True, box=None)
    names = list(report[0]["columns"])
    others = [name for name in names if name != "pblas"]
    for title in ("routine", "m", "n", *(f"{name}, ms" for name in names), *(f"{name} / pblas" for name in others)):
        table.add_column(title, justify="right")
    for figures in report:
        best = {name: summary["best_s"] for name, summary in figures["columns"].items()}
        cells = [
            figures["routine"],
            str(figures["m"]),
            str(figures["n"]),
            *(f"{1e3 * best[name]:.1f}" for name in names),
        ]
        table.add_row(*cells, *(f"{best[name] / best['pblas']:.2f}" for name in others))
    CONSOLE.print(table)


def integers(text: str) -> list[int]:
    """Numbers with commas between them."""
    return [int(n) for n in text.split(",") if n]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", type=integers, default=list(SIZES))
    parser.add_argument("--kinds", default=",".join(OURS), help="factorizations, with commas between them")
    parser.add_argument("--tall", default="", help="shapes of tall matrices for QR, such as 200000x256,1000000x64")
    parser.add_argument("--blocks", type=integers, default=list(BLOCKS), help="of ScaLAPACK")
    parser.add_argument("--alone", action="store_true", help="without ScaLAPACK")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--commit", default="", help="commit that is measured; written to the file")
    options = parser.parse_args()
    peer = None if options.alone else Library(ROOT / "build" / "peer")
    report = []
    with pblas.Context() as ctx:
        for n in options.sizes:
            matrices = {kind: x for kind, x in square(n).items() if kind in options.kinds.split(",")}
            report += measured(ctx, peer, matrices, options.rounds, options.blocks)
            show(report[-len(matrices) :])
        for shape in filter(None, options.tall.split(",")):
            m, n = map(int, shape.split("x"))
            tall = np.asfortranarray(np.random.default_rng(0).standard_normal((m, n)))
            report += measured(ctx, peer, {"qr": tall}, options.rounds, options.blocks)
            show(report[-1:])
    write(options.json, {"commit": options.commit, "rounds": options.rounds, "rows": report})


if __name__ == "__main__":
    main()
