"""Times of singular values and vectors on CPUs, beside SciPy and ScaLAPACK.

    make peer                     once; it installs Debian's ScaLAPACK and prepares build/peer
    LD_LIBRARY_PATH=build/peer mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.singular_values --json FILE

All columns of a case run in one job on the same matrix, in rounds: each round runs every column once, in rotated order.
"svd", "svdvals", "rsvd", "polar" and "solve" are those of `linalg`, of a matrix in rows; "gesdd", "values",
"scikit-learn" and "SciPy" run on rank 0 with as many threads as there are ranks, while the other ranks sleep.
"pdgesvd" is Debian's ScaLAPACK on 1 x P processes with its inner block of 256. Times are from a barrier to the last
rank's return.
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


class Pdgesvd:
    """ScaLAPACK's pdgesvd of a square matrix on one row of processes."""

    def __init__(self, library: Library, nb: int, a: Any) -> None:
        self._library, n = library, len(a)
        ictxt = library.gridinit(None, "R", 1, COMM.size)
        desc = MatrixDescriptor.block_cyclic(n, n, nb, nb, Grid(1, COMM.size, "R"))
        columns = [g for r in desc.global_ranges(COMM.rank)[1] for g in range(*r)]
        self._a, self._s = np.asfortranarray(a[:, columns]), np.zeros(n)
        self._work, self._u, self._vt = (np.zeros_like(self._a, order="F") for _ in range(3))
        self._desc = [1, ictxt, n, n, nb, nb, 0, 0, n]
        size = np.zeros(1)
        self._call(size, -1)
        self._scratch = np.empty(int(size[0]))

    def _call(self, work: Any, query: int = 0) -> None:
        desc, info, n = self._desc, np.zeros(1, np.intc), len(self._s)
        operands = n, n, self._work, 1, 1, desc, self._s, self._u, 1, 1, desc, self._vt, 1, 1, desc
        self._library.pdgesvd("V", "V", *operands, work, query or len(work), info)
        assert info[0] == 0, "it converges"

    def run(self) -> float:
        """**Collective.** Seconds of pdgesvd."""
        self._library.block = TUNED
        self._work[...] = self._a
        return together(lambda: self._call(self._scratch))


def decompositions(ctx: pblas.Context, peer: Library | None, m: int, n: int) -> dict[str, Callable[[], float]]:
    """**Collective.** Singular values of a random matrix; with vectors but for "svdvals" and "values"."""
    a = np.random.default_rng(0).standard_normal((m, n))
    placed = ctx.from_global(a, MatrixDescriptor.row_wise(m, n, ctx.nprocs), None)
    if m > 100 * n:  # heat and dask are compared by `python_peers`
        return {"svd": lambda: together(lambda: linalg.svd(placed))}
    columns: dict[str, Callable[[], float]] = {
        "svd": lambda: together(lambda: linalg.svd(placed)),
        "svdvals": lambda: together(lambda: linalg.svdvals(placed)),
        "gesdd": partial(alone, partial(scipy.linalg.svd, a, full_matrices=False, check_finite=False)),
        "values": partial(alone, partial(scipy.linalg.svdvals, a, check_finite=False)),
    }
    if peer is not None and m == n <= 1024:
        columns["pdgesvd"] = Pdgesvd(peer, 64, a).run
    return columns


def randomized(ctx: pblas.Context, m: int, n: int) -> dict[str, Callable[[], float]]:
    """**Collective.** The 50 leading singular values, with 10 further vectors and 2 power iterations."""
    from sklearn.utils.extmath import randomized_svd

    placed = ctx.random((m, n), seed=1, distribution="normal")
    a = placed.to_global()
    options: Any = {"n_oversamples": 10, "n_iter": 2, "power_iteration_normalizer": "QR", "random_state": 0}
    return {
        "rsvd": lambda: together(lambda: linalg.rsvd(placed, 50)),
        "scikit-learn": partial(alone, partial(randomized_svd, a, 50, **options)),
    }


def conditioned(ctx: pblas.Context, n: int, condition: float) -> pblas.DistMatrix:
    """**Collective.** A matrix of this condition, with singular values in a geometric sequence."""
    q, p = (linalg.orth(ctx.random((n, n), seed=seed, distribution="normal")) for seed in (1, 2))
    return pblas.elementwise("x * s", x=q, s=np.geomspace(1, 1 / condition, n)) @ p.T


def polar(ctx: pblas.Context, n: int) -> dict[str, Callable[[], float]]:
    """**Collective.** Polar decompositions of a matrix of condition 1e8."""
    placed = conditioned(ctx, n, 1e8)
    a = placed.to_global()
    return {
        "polar newton": lambda: together(lambda: linalg.polar(placed, algorithm="newton")),
        "polar svd": lambda: together(lambda: linalg.polar(placed, algorithm="svd")),
        "polar qdwh": lambda: together(lambda: linalg.polar(placed, algorithm="qdwh")),
        "SciPy": partial(alone, partial(scipy.linalg.polar, a)),
    }


def solutions(ctx: pblas.Context, n: int) -> dict[str, Callable[[], float]]:
    """**Collective.** Solutions with a matrix of condition 1e4 and one right-hand side."""
    a, b = conditioned(ctx, n, 1e4), ctx.random((n, 1), seed=3)

    def columns(refine: Any) -> float:
        results: list[pblas.DistMatrix] = []
        seconds = together(lambda: results.append(linalg.solve(a, b, check=False, refine=refine)))
        x = results[0]
        error = float((b - a @ x).norm()) / (float(a.norm()) * float(x.norm()))
        assert error <= n * np.finfo(np.float64).eps, error
        return seconds

    return {str(refine): partial(columns, refine) for refine in (None, "float32")}


def measured(name: str, columns: dict[str, Callable[[], float]], repeats: int) -> dict[str, Any]:
    """**Collective.** The figures of one case."""
    times = rounds(columns, repeats, warm=1)
    summary = {
        name: {"best_s": min(x), "median_s": statistics.median(x), "worst_s": max(x)} for name, x in times.items()
    }
    return {"case": name, "columns": summary}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default="svd 1024,svd 2048,svd 200000x256,rsvd 20000x4000,polar 2048,solve 4096")
    parser.add_argument("--alone", action="store_true", help="without ScaLAPACK, which takes part up to n = 1024")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    peer = None if options.alone else Library(ROOT / "build" / "peer")
    report = []
    with pblas.Context() as ctx:
        for case in options.cases.split(","):
            kind, size = case.split()
            m, n = (int(part) for part in (size.split("x") * 2)[:2])
            columns = {
                "svd": lambda m, n: decompositions(ctx, peer, m, n),
                "rsvd": lambda m, n: randomized(ctx, m, n),
                "polar": lambda _, n: polar(ctx, n),
                "solve": lambda _, n: solutions(ctx, n),
            }[kind](m, n)
            report.append(measured(case, columns, options.rounds))
            if ctx.rank == 0:
                shown = {
                    name: f"{1e3 * x['best_s']:.0f} ({1e3 * x['median_s']:.0f})"
                    for name, x in report[-1]["columns"].items()
                }
                print(case, "best (median) ms:", shown, flush=True)
    write(options.json, {"rounds": options.rounds, "rows": report})


if __name__ == "__main__":
    main()
