"""Times of eigenvalues and eigenvectors of symmetric matrices on CPUs, beside SciPy and ScaLAPACK.

    make peer                     once; it installs Debian's ScaLAPACK and prepares build/peer
    LD_LIBRARY_PATH=build/peer mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.eigenvalues --json FILE

With --library mkl ScaLAPACK is that of MKL: see `benchmarks.cpu.scalapack` for its environment.

All columns run in one job on the same random matrix, in rounds: each round runs every column once, in rotated order.
"all", "values", "tenth" and "generalized" are `linalg.eigh`, `linalg.eigvalsh`, `linalg.eigh` of the lowest tenth, and
`linalg.eigh` with a B, of matrices in rows; "evd" and the others are SciPy's LAPACK: on rank 0 with as many threads as
there are ranks, while the other ranks sleep. "pdsyevd" and "pdsyevr", or those of another dtype, are ScaLAPACK's on
1 x P processes, with an inner block of 256. Times are from a barrier to the last rank's return.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.cpu.least_squares import COMM, ROOT, alone  # it sets the number of threads before a BLAS is loaded

import numpy as np  # isort: skip
import scipy.linalg  # isort: skip

import pblas  # isort: skip
from benchmarks.cpu.machine import write  # isort: skip
from benchmarks.rounds import rounds, together  # isort: skip
from pblas import Grid, MatrixDescriptor, linalg  # isort: skip
from tests.peer.library import DEBIAN, MKL, TUNED, Library  # isort: skip


class Scalapack:
    """p?syevd or p?heevd, or p?syevr for a part of the spectrum or values alone, on one row of processes."""

    def __init__(self, library: Library, nb: int, a: Any, *, vectors: bool = True, count: int = 0) -> None:
        self._library, (n, letter) = library, (len(a), {"f": "s", "D": "z"}.get(a.dtype.char, a.dtype.char))
        self._is_complex, self._vectors, self._count = letter == "z", "V" if vectors else "N", count
        self._is_whole = vectors and not count
        self.name = f"p{letter}{'heev' if self._is_complex else 'syev'}{'d' if self._is_whole else 'r'}"
        ictxt = library.gridinit(None, "R", 1, COMM.size)
        desc = MatrixDescriptor.block_cyclic(n, n, nb, nb, Grid(1, COMM.size, "R"))
        columns = [g for r in desc.global_ranges(COMM.rank)[1] for g in range(*r)]
        self._a, self._w = np.asfortranarray(a[:, columns]), np.zeros(n, a.real.dtype)
        self._work, self._z = self._a.copy(order="F"), np.zeros_like(self._a, order="F")
        self._desc = [1, ictxt, n, n, nb, nb, 0, 0, n]
        dtypes = (a.dtype, a.real.dtype, np.dtype(np.intc)) if self._is_complex else (a.dtype, np.dtype(np.intc))
        sizes = [np.zeros(4, dtype) for dtype in dtypes]
        library.block = TUNED
        self._call(sizes, -1)
        self._scratch = [np.empty(int(x[0].real), dtype) for x, dtype in zip(sizes, dtypes, strict=True)]

    def _call(self, scratch: list[Any], query: int = 0) -> None:
        n, desc, bounds = len(self._w), self._desc, np.zeros(2, self._w.dtype)
        what: tuple[Any, ...] = "L", n, self._work, 1, 1, desc
        if not self._is_whole:
            range_of = bounds[:1], bounds[1:], 1, self._count or n
            what = "I" if self._count else "A", *what, *range_of, np.zeros(1, np.intc)  # M; NZ is returned
        memory = [x for w in scratch for x in (w, query or len(w))]
        info = np.zeros(1, np.intc)
        getattr(self._library, self.name)(self._vectors, *what, self._w, self._z, 1, 1, desc, *memory, info)
        assert info[0] == 0, "it converges"

    def run(self) -> float:
        """**Collective.** Seconds of the routine."""
        self._work[...] = self._a
        return together(lambda: self._call(self._scratch))


def measured(
    ctx: pblas.Context, peer: Library | None, n: int, dtype: str, options: argparse.Namespace
) -> dict[str, Any]:
    """**Collective.** The figures of one order and dtype."""
    rng, kinds = np.random.default_rng(0), options.kinds.split(",")
    a = rng.standard_normal((n, n)).astype(dtype)
    if a.dtype.kind == "c":
        a += 1j * rng.standard_normal((n, n))
    a += a.conj().T
    placed, lowest = ctx.from_global(a, MatrixDescriptor.row_wise(n, n, ctx.nprocs), None), [0, n // 10 - 1]
    eigh = partial(scipy.linalg.eigh, a, check_finite=False)
    columns: dict[str, Callable[[], float]] = {}
    if "all" in kinds:
        columns["all"] = lambda: together(lambda: linalg.eigh(placed))
        columns["evd"] = partial(alone, partial(eigh, driver="evd"))
    if "values" in kinds:
        columns["values"] = lambda: together(lambda: linalg.eigvalsh(placed))
        columns["evd values"] = partial(alone, partial(eigh, driver="evd", eigvals_only=True))
    if "tenth" in kinds:
        columns["tenth"] = lambda: together(lambda: linalg.eigh(placed, subset_by_index=lowest))
        columns["evr tenth"] = partial(alone, partial(eigh, driver="evr", subset_by_index=lowest))
    if "generalized" in kinds:
        b = a @ a.conj().T / n + np.eye(n, dtype=dtype)
        other = ctx.from_global(b, placed.desc, None)
        columns["generalized"] = lambda: together(lambda: linalg.eigh(placed, other))
        columns["gvd"] = partial(alone, partial(eigh, b, driver="gvd"))
    sorts = {"all": {}, "values": {"vectors": False}, "tenth": {"count": n // 10}}
    for kind, sort in sorts.items() if peer is not None else ():
        if kind in kinds:
            routine = Scalapack(peer, options.block, a, **sort)
            columns[routine.name if kind == "all" else f"{routine.name} {kind}"] = routine.run
    times = rounds(columns, options.rounds, warm=int(options.rounds > 1))
    summary = {
        name: {"best_s": min(x), "median_s": statistics.median(x), "worst_s": max(x)} for name, x in times.items()
    }
    return {"routine": "eigh", "n": n, "dtype": dtype, "columns": summary}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="1024,2048,4096", help="with commas between them")
    parser.add_argument("--dtypes", default="float64", help="with commas between them")
    parser.add_argument("--kinds", default="all,values,tenth", help="some of all, values, tenth, generalized")
    parser.add_argument("--block", type=int, default=64, help="rows and columns of a block of ScaLAPACK's matrices")
    parser.add_argument("--library", choices=("debian", "mkl", "none"), default="debian", help="which ScaLAPACK")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    names = {"debian": DEBIAN, "mkl": MKL}.get(options.library)
    peer = None if names is None else Library(ROOT / "build" / "peer", names)
    report = []
    with pblas.Context() as ctx:
        for n, dtype in product(map(int, options.sizes.split(",")), options.dtypes.split(",")):
            report.append(measured(ctx, peer, n, dtype, options))
            if ctx.rank == 0:
                shown = {
                    name: f"{1e3 * x['best_s']:.0f} ({1e3 * x['median_s']:.0f})"
                    for name, x in report[-1]["columns"].items()
                }
                print(n, dtype, "best (median) ms:", shown, flush=True)
    write(options.json, {"library": options.library, "rounds": options.rounds, "rows": report})


if __name__ == "__main__":
    main()
