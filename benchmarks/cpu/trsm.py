"""How fast is a triangular solve with n right-hand sides, compared with SciPy, ScaLAPACK and the rate of a GEMM?

    make peer                                            once; it installs Debian's ScaLAPACK and prepares build/peer
    LD_LIBRARY_PATH=build/peer mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.trsm --json FILE   1 x 2, 2 x 1
    LD_LIBRARY_PATH=build/peer mpiexec -n 4 python -m mpi4py -m benchmarks.cpu.trsm --json FILE   2 x 2

All columns run in one job, in float64, in rounds: each round runs every column once, in rotated order. "trsm" solves in
place in the memory of a context, "pdtrsm" is `pblas.scalapack.pdtrsm` on the arrays that ScaLAPACK gets, "stock" and
"tuned" are Debian's pdtrsm with its inner block of 32 and with 256. "SciPy" is `scipy.linalg.blas.dtrsm` of rank 0 on
the whole with a thread for each rank, while the other ranks sleep. "GEMM" is the time of the solve's n^2 flops for each
right-hand side at the rate of a rank's own GEMM with all rows and its share of the right-hand sides: half the time of
that product. Without build/peer ScaLAPACK's columns are left out.
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
sys.path.insert(0, str(ROOT))  # for tests.peer, the binding that `make peer` uses
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import numpy as np  # noqa: E402 - the threads are set before a BLAS is loaded
from mpi4py import MPI  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from scipy.linalg.blas import dtrsm  # noqa: E402
from threadpoolctl import threadpool_limits  # noqa: E402

import pblas  # noqa: E402
from benchmarks.cpu.machine import write  # noqa: E402
from benchmarks.rounds import rounds, together  # noqa: E402
from pblas import Grid, MatrixDescriptor, scalapack  # noqa: E402
from pblas.backends.cpu.gemm import gemm  # noqa: E402
from tests.peer.library import STOCK, TUNED, Library  # noqa: E402

COMM = MPI.COMM_WORLD
CONSOLE = Console(markup=False, highlight=False, quiet=COMM.rank != 0, width=110)
GRIDS = {1: [(1, 1)], 2: [(1, 2), (2, 1)], 4: [(2, 2)]}
OPTIONS = ("L", "L", "N", "N")


class Problem:
    """One size on one grid: the same A and B for all columns.

    Args:
        ctx: context of "trsm" (global).
        shape: process grid (global).
        n: order of A, and right-hand sides (global).
        nb: rows and columns per block (global).
        peer: ScaLAPACK; None without it (global).
    """

    def __init__(self, ctx: pblas.Context, shape: tuple[int, int], n: int, nb: int, peer: Library | None) -> None:
        self.n, self.peer = n, peer
        desc = MatrixDescriptor(n, n, nb, nb, Grid(*shape, "R"))
        rng = np.random.default_rng(1)
        self.a = np.asfortranarray(rng.uniform(-1, 1, (n, n)) / n + np.eye(n))
        self.b = np.asfortranarray(rng.uniform(-1, 1, (n, n)))
        self.A, self.B = (ctx.from_global(x, desc, root=None) for x in (self.a, self.b))
        self.planned = pblas.blas.plan_trsm(self.A, self.B, out=self.B)
        self.local_a, self.local_b = (np.array(x.local, order="F") for x in (self.A, self.B))
        self.handles: dict[Any, int] = {scalapack: scalapack.gridinit(COMM, "R", *shape)}
        if peer is not None:
            self.handles[peer] = peer.gridinit(0, "R", *shape)
        self.entries = [n, n, nb, nb, 0, 0, max(1, self.local_a.shape[0])]
        share = -(-n // COMM.size)
        self.product = np.zeros((n, share), order="F")

    def columns(self) -> dict[str, Callable[[], float]]:
        """For each column a function that solves, and returns its seconds."""
        works: dict[str, Callable[[], float]] = {
            "trsm": lambda: together(lambda: self.planned.execute(self.A, self.B, out=self.B)),
            "pdtrsm": partial(self.pdtrsm, scalapack),
            "SciPy": self.scipy,
            "GEMM": lambda: together(self.gemm) / 2,
        }
        if self.peer is not None:
            works |= {"stock": partial(self.pdtrsm, self.peer, STOCK), "tuned": partial(self.pdtrsm, self.peer, TUNED)}
        return works

    def pdtrsm(self, library: Any, block: int = 0) -> float:
        if block:
            library.block = block
        desc = [1, self.handles[library], *self.entries]
        a, b = (self.local_a, 1, 1, desc), (self.local_b, 1, 1, desc)
        return together(lambda: library.pdtrsm(*OPTIONS, self.n, self.n, 1.0, *a, *b))

    def gemm(self) -> None:
        gemm(1.0, self.a, self.b[:, : self.product.shape[1]], 0.0, self.product)

    def scipy(self) -> float:
        """Seconds on rank 0; the others sleep until it is done, so that its threads have their cores."""
        COMM.Barrier()
        seconds = 0.0
        if COMM.rank == 0:
            with threadpool_limits(COMM.size, "blas"):
                start = time.perf_counter()
                dtrsm(1.0, self.a, self.b, lower=1, overwrite_b=1)
                seconds = time.perf_counter() - start
            for rank in range(1, COMM.size):
                COMM.send(None, rank)
        while COMM.rank and not COMM.iprobe(0):
            time.sleep(1e-3)
        if COMM.rank:
            COMM.recv(source=0)
        return float(COMM.bcast(seconds))

    def check(self) -> None:
        """The first solves of all columns agree."""
        start, works = self.start, self.columns()
        self.B.local[...] = start
        works["trsm"]()
        for name in ("pdtrsm", "stock", "tuned")[: 3 if self.peer else 1]:
            self.local_b[...] = start
            works[name]()
            assert np.abs(self.B.local - self.local_b).max(initial=0.0) < 1e-12, f"{name}: the results differ"

    @property
    def start(self) -> Any:
        """This rank's part of the first right-hand sides."""
        rows, columns = (
            np.concatenate([np.arange(0), *(np.arange(*bounds) for bounds in ranges)]).astype(int)
            for ranges in self.B.desc.global_ranges(COMM.rank)
        )
        return np.random.default_rng(2).uniform(-1, 1, (self.n, self.n))[np.ix_(rows, columns)]

    def close(self) -> None:
        self.planned.close()
        for library, handle in self.handles.items():
            library.gridexit(handle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", type=lambda text: [int(n) for n in text.split(",")], default=[2048, 4096])
    parser.add_argument("--blocks", type=lambda text: [int(n) for n in text.split(",")], default=[64, 128, 256])
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--commit", default="", help="commit that is measured; written to the file")
    options = parser.parse_args()
    folder = ROOT / "build" / "peer"
    peer = Library(folder) if folder.exists() else None
    report = []
    with pblas.Context() as ctx:
        for shape in GRIDS[COMM.size]:
            for n in options.sizes:
                for nb in options.blocks:
                    problem = Problem(ctx, shape, n, nb, peer)
                    problem.check()
                    times = rounds(problem.columns(), options.rounds, warm=1)
                    problem.close()
                    row: dict[str, Any] = {"grid": list(shape), "n": n, "nb": nb}
                    row["columns"] = {
                        key: {"best_s": min(x), "median_s": statistics.median(x), "worst_s": max(x)}
                        for key, x in times.items()
                    }
                    report.append(row)
                    show(row)
    write(options.json, {"commit": options.commit, "rounds": options.rounds, "rows": report})


def show(row: dict[str, Any]) -> None:
    """Print one row: the median milliseconds of each column, and over the time of "trsm"."""
    table = Table(show_header=True, box=None)
    ours = row["columns"]["trsm"]
    for title in ("grid", "n", "nb", *row["columns"]):
        table.add_column(title, justify="right")
    head = ["x".join(map(str, row["grid"])), str(row["n"]), str(row["nb"])]
    for kind in ("median_s", "best_s"):
        table.add_row(*head, *(f"{1e3 * x[kind]:.1f}" for x in row["columns"].values()))
        table.add_row("", "", kind[:-2], *(f"{x[kind] / ours[kind]:.2f}" for x in row["columns"].values()))
    CONSOLE.print(table)


if __name__ == "__main__":
    main()
