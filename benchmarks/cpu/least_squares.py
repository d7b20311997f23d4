"""Times of least squares with tall matrices on CPUs, beside SciPy, NumPy and ScaLAPACK.

    make peer                     once; it installs Debian's ScaLAPACK and prepares build/peer
    LD_LIBRARY_PATH=build/peer mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.least_squares --json FILE

All columns run in one job on the same random matrix and one right-hand side, in rounds: each round runs every column
once, in rotated order. "pblas" is `linalg.lstsq` of a matrix in rows, with a BLAS thread per rank. "dgels" and "gelsy"
are SciPy's LAPACK, "NumPy" is `numpy.linalg.lstsq`, by singular values: on rank 0 with as many threads as there are
ranks, while the other ranks sleep. "pdgels" is Debian's ScaLAPACK at the best of some grids and blocks, with its inner
block of 256. Times are from a barrier to the last rank's return.
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
import scipy.linalg  # noqa: E402
from mpi4py import MPI  # noqa: E402
from threadpoolctl import threadpool_limits  # noqa: E402

import pblas  # noqa: E402
from benchmarks.cpu.machine import write  # noqa: E402
from benchmarks.rounds import rounds, together  # noqa: E402
from pblas import Grid, MatrixDescriptor, linalg  # noqa: E402
from tests.peer.library import TUNED, Library  # noqa: E402

COMM = MPI.COMM_WORLD
del os.environ["OPENBLAS_NUM_THREADS"]  # the loaded BLAS has that many threads; a Context would give them to each rank


class Pdgels:
    """ScaLAPACK's pdgels on one grid with one block size."""

    def __init__(self, library: Library, shape: tuple[int, int], nb: int, a: Any, b: Any) -> None:
        self._library, (self._m, self._n) = library, a.shape
        ictxt = library.gridinit(None, "R", *shape)
        self._operands = []
        for x in (a, b):
            desc = MatrixDescriptor.block_cyclic(*x.shape, nb, nb, Grid(*shape, "R"))
            rows, columns = ([g for r in ranges for g in range(*r)] for ranges in desc.global_ranges(COMM.rank))
            part = np.asfortranarray(x[np.ix_(rows, columns)])
            lld = max(len(rows), 1)
            self._operands.append((part, part.copy(order="F"), [1, ictxt, *x.shape, nb, nb, 0, 0, lld]))
        work = np.zeros(1)
        self._call(work, -1)
        self._scratch = np.empty(int(work[0]))

    def _call(self, work: Any, lwork: int) -> None:
        (_, a, desca), (_, b, descb) = self._operands
        info = np.zeros(1, np.intc)
        self._library.pdgels("N", self._m, self._n, 1, a, 1, 1, desca, b, 1, 1, descb, work, lwork, info)
        assert info[0] == 0, "the matrix has full rank"

    def run(self) -> float:
        """**Collective.** Seconds of pdgels."""
        self._library.block = TUNED
        for part, work, _ in self._operands:
            work[...] = part
        return together(lambda: self._call(self._scratch, len(self._scratch)))


def alone(call: Callable[[], Any]) -> float:
    """**Collective.** Seconds of a call on rank 0, with a thread for each rank; the other ranks sleep."""
    seconds = 0.0
    if COMM.rank == 0:
        with threadpool_limits(COMM.size, user_api="blas"):
            start = time.perf_counter()
            call()
            seconds = time.perf_counter() - start
    request = COMM.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)
    return float(COMM.bcast(seconds))


def dgels(a: Any, b: Any, work: Any) -> None:
    """SciPy's dgels, in place in `work`."""
    np.copyto(work, a)
    scipy.linalg.lapack.dgels(work, b, overwrite_a=1, lwork=64 * a.shape[1])


def measured(ctx: pblas.Context, peer: Library | None, m: int, n: int, repeats: int) -> dict[str, Any]:
    """**Collective.** The figures of one shape."""
    rng = np.random.default_rng(0)
    a, b = np.asfortranarray(rng.standard_normal((m, n))), rng.standard_normal(m)
    work = np.empty((m if COMM.rank == 0 else 0, n), order="F")
    placed = ctx.from_global(a, MatrixDescriptor.row_wise(m, n, ctx.nprocs), None)
    columns: dict[str, Callable[[], float]] = {
        "pblas": lambda: together(lambda: linalg.lstsq(placed, b)),
        "dgels": partial(alone, lambda: dgels(a, b[:, None], work)),
        "gelsy": partial(alone, lambda: scipy.linalg.lstsq(a, b, lapack_driver="gelsy", check_finite=False)),
        "NumPy": partial(alone, lambda: np.linalg.lstsq(a, b, rcond=None)),
    }
    if peer is not None:
        choices = [(g, nb) for g in ((COMM.size, 1), (1, COMM.size)) for nb in (32, 64)]
        peers = {choice: Pdgels(peer, *choice, a, b[:, None]) for choice in choices}
        best = min(peers, key=lambda choice: peers[choice].run())
        columns["pdgels"] = peers[best].run
    times = rounds(columns, repeats, warm=1)
    summary = {
        name: {"best_s": min(x), "median_s": statistics.median(x), "worst_s": max(x)} for name, x in times.items()
    }
    return {"routine": "lstsq", "m": m, "n": n, "columns": summary}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shapes", default="100000x200", help="with commas between them")
    parser.add_argument("--alone", action="store_true", help="without ScaLAPACK")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    peer = None if options.alone else Library(ROOT / "build" / "peer")
    report = []
    with pblas.Context() as ctx:
        for shape in options.shapes.split(","):
            m, n = map(int, shape.split("x"))
            report.append(measured(ctx, peer, m, n, options.rounds))
            if ctx.rank == 0:
                best = {name: 1e3 * summary["best_s"] for name, summary in report[-1]["columns"].items()}
                print(shape, ", ".join(f"{name} {ms:.1f} ms" for name, ms in best.items()), flush=True)
    write(options.json, {"rounds": options.rounds, "rows": report})


if __name__ == "__main__":
    main()
