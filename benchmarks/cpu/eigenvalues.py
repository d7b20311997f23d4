"""Times of eigenvalues and eigenvectors of symmetric matrices on CPUs, beside SciPy and ScaLAPACK.

    make peer                     once; it installs Debian's ScaLAPACK and prepares build/peer
    LD_LIBRARY_PATH=build/peer mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.eigenvalues --json FILE

All columns run in one job on the same random matrix, in rounds: each round runs every column once, in rotated order.
"all", "values" and "tenth" are `linalg.eigh`, `linalg.eigvalsh` and `linalg.eigh` of the lowest tenth, of a matrix in
rows; "evd" and the others are SciPy's LAPACK: on rank 0 with as many threads as there are ranks, while the other ranks
sleep. "pdsyevd" is Debian's ScaLAPACK on 1 x P processes with its inner block of 256. Times are from a barrier to the
last rank's return.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cpu.least_squares import COMM, ROOT, alone  # it sets the number of threads before a BLAS is loaded

import numpy as np  # isort: skip
import scipy.linalg  # isort: skip

import pblas  # isort: skip
from benchmarks.cpu.machine import write  # isort: skip
from benchmarks.rounds import rounds, together  # isort: skip
from pblas import Grid, MatrixDescriptor, linalg  # isort: skip
from tests.peer.library import TUNED, Library  # isort: skip


class Pdsyevd:
    """ScaLAPACK's pdsyevd on one row of processes."""

    def __init__(self, library: Library, nb: int, a: Any) -> None:
        self._library, n = library, len(a)
        ictxt = library.gridinit(None, "R", 1, COMM.size)
        desc = MatrixDescriptor.block_cyclic(n, n, nb, nb, Grid(1, COMM.size, "R"))
        columns = [g for r in desc.global_ranges(COMM.rank)[1] for g in range(*r)]
        self._a, self._w = np.asfortranarray(a[:, columns]), np.zeros(n)
        self._work, self._z = self._a.copy(order="F"), np.zeros_like(self._a, order="F")
        self._desc = [1, ictxt, n, n, nb, nb, 0, 0, n]
        sizes = np.zeros(1), np.zeros(1, np.intc)
        self._call(*sizes, -1)
        self._scratch = np.empty(int(sizes[0][0])), np.empty(int(sizes[1][0]), np.intc)

    def _call(self, work: Any, iwork: Any, query: int = 0) -> None:
        desc, info = self._desc, np.zeros(1, np.intc)
        sizes = query or len(work), query or len(iwork)
        operands = len(self._w), self._work, 1, 1, desc, self._w, self._z, 1, 1, desc
        self._library.pdsyevd("V", "L", *operands, work, sizes[0], iwork, sizes[1], info)
        assert info[0] == 0, "it converges"

    def run(self) -> float:
        """**Collective.** Seconds of pdsyevd."""
        self._library.block = TUNED
        self._work[...] = self._a
        return together(lambda: self._call(*self._scratch))


def measured(ctx: pblas.Context, peer: Library | None, n: int, repeats: int) -> dict[str, Any]:
    """**Collective.** The figures of one order."""
    a = np.random.default_rng(0).standard_normal((n, n))
    a += a.T
    placed, lowest = ctx.from_global(a, MatrixDescriptor.row_wise(n, n, ctx.nprocs), None), [0, n // 10 - 1]
    eigh = partial(scipy.linalg.eigh, a, check_finite=False)
    columns: dict[str, Callable[[], float]] = {
        "all": lambda: together(lambda: linalg.eigh(placed)),
        "values": lambda: together(lambda: linalg.eigvalsh(placed)),
        "tenth": lambda: together(lambda: linalg.eigh(placed, subset_by_index=lowest)),
        "evd": partial(alone, partial(eigh, driver="evd")),
        "evd values": partial(alone, partial(eigh, driver="evd", eigvals_only=True)),
        "evr tenth": partial(alone, partial(eigh, driver="evr", subset_by_index=lowest)),
    }
    if peer is not None:
        columns["pdsyevd"] = Pdsyevd(peer, 64, a).run
    times = rounds(columns, repeats, warm=1)
    summary = {
        name: {"best_s": min(x), "median_s": statistics.median(x), "worst_s": max(x)} for name, x in times.items()
    }
    return {"routine": "eigh", "n": n, "columns": summary}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="1024,2048,4096", help="with commas between them")
    parser.add_argument("--alone", action="store_true", help="without ScaLAPACK")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--commit", default="", help="commit that is measured; written to the file")
    options = parser.parse_args()
    peer = None if options.alone else Library(ROOT / "build" / "peer")
    report = []
    with pblas.Context() as ctx:
        for n in map(int, options.sizes.split(",")):
            report.append(measured(ctx, peer, n, options.rounds))
            if ctx.rank == 0:
                shown = {
                    name: f"{1e3 * x['best_s']:.0f} ({1e3 * x['median_s']:.0f})"
                    for name, x in report[-1]["columns"].items()
                }
                print(n, "best (median) ms:", shown, flush=True)
    write(options.json, {"commit": options.commit, "rounds": options.rounds, "rows": report})


if __name__ == "__main__":
    main()
