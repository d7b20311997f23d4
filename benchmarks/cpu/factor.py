"""How fast are factorizations, solves and inverses compared with SciPy and ScaLAPACK, and with the GEMM rate?

    make peer                                            once; it installs Debian's ScaLAPACK and prepares build/peer
    LD_LIBRARY_PATH=build/peer mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.factor --json FILE

All columns run in one job on the same random matrix, in rounds: each round runs every column once, in rotated order.
"pblas" works in place, with overwrite_a=True on a matrix in the plan's layout of W, as its peers do; it has one BLAS
thread per rank. "copied" keeps A, which has that layout too, and "rows" keeps an A in rows. QR is without Q ("qr") or
with it ("q"), and always copied; --tall lists shapes of tall matrices for them. --algorithms
blocked,grid,tournament adds Cholesky and LU in block columns and over a grid, and LU over a grid with a tournament of
rows, each in place. solve1 and solve512 are by LU, with so
many right-hand sides in columns over the ranks. "SciPy" is its LAPACK on rank 0 with as many threads as there are
ranks, while the other ranks sleep. "stock" and "tuned" are Debian's ScaLAPACK with its inner block of 32 and of 256, at
the best of some grids and blocks; its columns have a cache line between them where ours have. "GEMM" is NumPy's product
of each rank's share, scaled to the operations of the routine: what it would take at the rate of a product. Times are
from a barrier to the last rank's return.

MKL's ScaLAPACK instead of Debian's is --library mkl; benchmarks/cpu/scalapack.py says how to run it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
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
from benchmarks.cpu.alone import PAUSE  # noqa: E402
from benchmarks.cpu.machine import write  # noqa: E402
from benchmarks.rounds import rounds, together  # noqa: E402
from pblas import Grid, MatrixDescriptor, linalg  # noqa: E402
from tests.peer.library import DEBIAN, MKL, STOCK, TUNED, Library  # noqa: E402

COMM = MPI.COMM_WORLD
del os.environ["OPENBLAS_NUM_THREADS"]  # the loaded BLAS has that many threads; a Context would give them to each rank
CONSOLE = Console(markup=False, highlight=False, quiet=COMM.rank != 0, width=160)
LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
ON_HOSTS = len(set(COMM.allgather(os.uname().nodename))) > 1
"""Whether the ranks are on several hosts (global)."""
SIZES, BLOCKS = (1024, 2048, 4096), (32, 64, 128)
KINDS = ("cholesky", "lu", "qr", "q", "solve1", "solve512", "inv")


def flops(kind: str, m: int, n: int) -> float:
    """Additions and multiplications of a routine with an m x n matrix, m >= n, to first order."""
    if kind.startswith("solve"):
        return 2 * n**3 / 3 + 2 * n**2 * int(kind.removeprefix("solve"))
    counts = {"cholesky": n**3 / 3, "lu": m * n**2 - n**3 / 3, "qr": 2 * m * n**2 - 2 * n**3 / 3, "inv": 2 * n**3}
    return 2 * counts["qr"] if kind == "q" else counts[kind]


def layout(ctx: pblas.Context, kind: str, rows: MatrixDescriptor, dtype: str) -> MatrixDescriptor:
    """**Collective.** The layout in which pblas factors a matrix on these ranks."""
    plan: Any = {"cholesky": linalg.plan_cholesky, "qr": linalg.plan_qr, "q": linalg.plan_qr}.get(kind, linalg.plan_lu)
    with plan(ctx.empty(rows, dtype)) as planned:
        described: MatrixDescriptor = planned.plan.target
    return described


def options_of(kind: str, algorithm: str) -> dict[str, Any]:
    """The options of an algorithm of --algorithms."""
    if algorithm == "tournament":
        return {"algorithm": "grid", "pivoting": "tournament"} if kind == "lu" else {"algorithm": "grid"}
    return {"algorithm": algorithm}


def call(kind: str, a: Any, b: Any, overwrite_a: bool, algorithm: str = "auto") -> Any:
    """**Collective.** One call of pblas; the algorithm is for Cholesky, LU and QR."""
    options = options_of(kind, algorithm)
    if kind == "cholesky":
        return linalg.cho_factor(a, overwrite_a=True, **options) if overwrite_a else linalg.cholesky(a)
    if kind == "lu":
        return linalg.lu_factor(a, overwrite_a=overwrite_a, **options)
    if kind == "qr":
        return linalg.qr_factor(a, **options)
    if kind == "q":
        return linalg.qr(a, **options)
    if kind.startswith("solve"):
        return linalg.solve(a, b, overwrite_a=overwrite_a)
    return linalg.inv(a, overwrite_a=overwrite_a)


class InPlace:
    """A matrix that calls of pblas overwrite."""

    def __init__(self, ctx: pblas.Context, matrix: Any, desc: MatrixDescriptor, algorithm: str = "auto") -> None:
        self._original, self._work = (ctx.from_global(matrix, desc, None) for _ in range(2))
        self._algorithm = algorithm

    def run(self, kind: str, b: Any) -> float:
        """**Collective.** Seconds of one call."""
        self._work.local[...] = self._original.local
        return together(lambda: call(kind, self._work, b, overwrite_a=True, algorithm=self._algorithm))


class Peer:
    """ScaLAPACK's routines on some matrices of one shape, on one grid with one block size."""

    def __init__(self, library: Library, shape: tuple[int, int], nb: int, matrices: dict[str, Any], b: Any) -> None:
        first = next(iter(matrices.values()))
        self._library, (self._m, self._n), self._nb = library, first.shape, nb
        self._ictxt, self._letter = library.gridinit(None, "R", *shape), LETTERS[first.dtype.name]
        desc = MatrixDescriptor.block_cyclic(self._m, self._n, nb, nb, Grid(*shape, "R"))
        rows, columns = ([g for r in ranges for g in range(*r)] for ranges in desc.global_ranges(COMM.rank))
        parts = {id(x): np.asfortranarray(x[np.ix_(rows, columns)]) for x in matrices.values()}
        self._parts = {kind: parts[id(x)] for kind, x in matrices.items()}
        apart = 64 // first.itemsize if len(rows) * first.itemsize % 4096 == 0 else 0
        self._lld = max(len(rows) + apart, 1)
        self._work = np.empty((self._lld, len(columns)), first.dtype, order="F")[: len(rows)]
        self._pivots, self._tau = np.empty(self._lld + nb, np.intc), np.empty(len(columns) + nb, first.dtype)
        self._scratch = np.empty(2 * nb * (len(rows) + len(columns) + nb), first.dtype)
        self._integers = np.empty(2 * (self._lld + len(columns)) + 8 * nb, np.intc)
        self._b: dict[int, Any] = {}
        for nrhs in {int(kind.removeprefix("solve")) for kind in matrices if kind.startswith("solve")}:
            right = MatrixDescriptor.block_cyclic(self._n, nrhs, nb, nb, Grid(*shape, "R"))
            places = [g for r in right.global_ranges(COMM.rank)[1] for g in range(*r)]
            self._b[nrhs] = np.asfortranarray(b[np.ix_(rows, places)])

    def run(self, kind: str, inner: int) -> float:
        """**Collective.** Seconds of one call of ScaLAPACK, or of two for an inverse."""
        self._library.block = inner
        self._work[...] = self._parts[kind]
        info, m, n, scratch = np.zeros(1, np.intc), self._m, self._n, (self._scratch, len(self._scratch))
        matrix = self._work, 1, 1, [1, self._ictxt, m, n, self._nb, self._nb, 0, 0, self._lld]
        routines: dict[str, Callable[[], None]] = {
            "cholesky": lambda: self._routine("potrf")("L", n, *matrix, info),
            "lu": lambda: self._routine("getrf")(m, n, *matrix, self._pivots, info),
            "qr": lambda: self._routine("geqrf")(m, n, *matrix, self._tau, *scratch, info),
            "q": lambda: self._with_q(matrix, scratch, info),
            "inv": lambda: self._inverse(matrix, scratch, info),
        }
        for nrhs, b in self._b.items():
            x = b.copy(order="F")
            right = x, 1, 1, [1, self._ictxt, n, nrhs, self._nb, self._nb, 0, 0, max(len(x), 1)]
            routines[f"solve{nrhs}"] = partial(self._routine("gesv"), n, nrhs, *matrix, self._pivots, *right, info)
        seconds = together(routines[kind])
        assert info[0] == 0, "the matrix is regular"
        return seconds

    def _with_q(self, matrix: Any, scratch: Any, info: Any) -> None:
        self._routine("geqrf")(self._m, self._n, *matrix, self._tau, *scratch, info)
        name = "orgqr" if self._letter in "sd" else "ungqr"
        self._routine(name)(self._m, self._n, self._n, *matrix, self._tau, *scratch, info)

    def _inverse(self, matrix: Any, scratch: Any, info: Any) -> None:
        self._routine("getrf")(self._n, self._n, *matrix, self._pivots, info)
        integers = self._integers, len(self._integers)
        self._routine("getri")(self._n, *matrix, self._pivots, *scratch, *integers, info)

    def _routine(self, name: str) -> Any:
        return getattr(self._library, f"p{self._letter}{name}")


def scipy_seconds(kind: str, a: Any, work: Any, b: Any) -> float:
    """**Collective.** Seconds of SciPy's LAPACK on rank 0; the other ranks sleep."""
    seconds = 0.0
    if COMM.rank == 0:
        np.copyto(work, a)
        lapack, letter = scipy.linalg.lapack, LETTERS[a.dtype.name]

        def routine(name: str, *arrays: Any, **options: Any) -> Any:
            return getattr(lapack, f"{letter}{name}")(*arrays, **options)

        routines: dict[str, Callable[[], Any]] = {
            "cholesky": lambda: routine("potrf", work, lower=1, overwrite_a=1, clean=0),
            "lu": lambda: routine("getrf", work, overwrite_a=1),
            "qr": lambda: routine("geqrf", work, lwork=64 * work.shape[1], overwrite_a=1),
            "q": lambda: routine(
                "orgqr" if letter in "sd" else "ungqr",
                *routine("geqrf", work, lwork=64 * work.shape[1], overwrite_a=1)[:2],
                lwork=64 * work.shape[1],
                overwrite_a=1,
            ),
            "inv": lambda: routine(
                "getri", *routine("getrf", work, overwrite_a=1)[:2], lwork=64 * work.shape[1], overwrite_lu=1
            ),
        }
        solve: Callable[[], Any] = lambda: routine("gesv", work, b, overwrite_a=1)  # noqa: E731
        with threadpool_limits(COMM.size, user_api="blas"):
            start = time.perf_counter()
            routines.get(kind, solve)()
            seconds = time.perf_counter() - start
    request = COMM.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)
    return float(COMM.bcast(seconds))


def gemm_seconds(operations: float, x: Any, y: Any, out: Any) -> float:
    """**Collective.** Seconds of the product's share of each rank, scaled to the operations of a routine."""
    return together(lambda: np.matmul(x, y, out=out)) * operations / (2 * x.size * y.shape[1] * COMM.size)


def measured(
    ctx: pblas.Context,
    peer: Library | None,
    matrices: dict[str, Any],
    repeats: int,
    blocks: list[int],
    grids: list[tuple[int, int]],
    algorithms: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """**Collective.** The rows of the table for matrices of one shape, by the routines that take them."""
    first = next(iter(matrices.values()))
    (m, n), dtype, report = first.shape, first.dtype, []
    rows, width, work = MatrixDescriptor.row_wise(m, n, ctx.nprocs), max(n // ctx.nprocs, 1), np.empty_like(first)
    share = [np.ones(shape, dtype, order="F") for shape in ((min(m, 2048), n), (n, width), (min(m, 2048), width))]
    right = np.asfortranarray(np.random.default_rng(1).standard_normal((m, 512)).astype(dtype))
    peers = {}
    if peer is not None:
        peers = {(g, nb): Peer(peer, g, nb, matrices, right) for g in grids for nb in blocks}
    for kind, matrix in matrices.items():
        b = right[:, : int(kind.removeprefix("solve") or 1)] if kind.startswith("solve") else right[:, :0]
        w = layout(ctx, kind, rows, dtype.name)
        x = ctx.from_global(b, MatrixDescriptor.column_wise(m, b.shape[1], ctx.nprocs), None)
        in_place = InPlace(ctx, matrix, w)
        columns: dict[str, Callable[[], float]] = (
            {} if kind in ("q", "qr") else {"pblas": partial(in_place.run, kind, x)}
        )
        for name, desc in (("copied" if columns else "pblas", w), ("rows", rows)):
            placed = ctx.from_global(matrix, desc, None)
            columns[name] = partial(together, partial(call, kind, placed, x, overwrite_a=False))
        planners: dict[str, Any] = {"cholesky": linalg.plan_cholesky, "lu": linalg.plan_lu}
        for algorithm in algorithms if kind in planners else ():
            own = planners[kind](rows, dtype=dtype.name, **options_of(kind, algorithm)).plan
            columns[algorithm] = partial(InPlace(ctx, matrix, own.w, algorithm).run, kind, x)
        columns |= {
            "SciPy": partial(scipy_seconds, kind, matrix, work, b),
            "GEMM": partial(gemm_seconds, flops(kind, m, n), *share),
        }
        for name, inner in (("stock", STOCK), ("tuned", TUNED)) if peers else ():
            # pdgetri exchanges columns one by one: minutes on 2 x 2 with more ranks than cores, which wait busily.
            usable = {key: x for key, x in peers.items() if kind != "inv" or 1 in key[0]}
            best = min(usable, key=lambda key: peers[key].run(kind, inner))
            columns[name] = partial(peers[best].run, kind, inner)
        if ON_HOSTS:
            del columns["SciPy"]
        report.append(row(kind, m, n, dtype.name, rounds(columns, repeats, warm=1, pause=PAUSE)))
    return report


def square(n: int, dtype: str) -> dict[str, Any]:
    """A random matrix of n rows for each routine, and a positive definite one for Cholesky."""
    a = np.asfortranarray(np.random.default_rng(0).standard_normal((n, n)).astype(dtype))
    spd = np.minimum(np.arange(n)[:, None], np.arange(n)) + np.eye(n) * n
    return dict.fromkeys(KINDS, a) | {"cholesky": np.asfortranarray(spd.astype(dtype))}


def row(kind: str, m: int, n: int, dtype: str, times: dict[str, list[float]]) -> dict[str, Any]:
    """The figures of one routine."""
    summary = {
        name: {"best_s": min(x), "median_s": statistics.median(x), "worst_s": max(x)} for name, x in times.items()
    }
    return {"routine": kind, "m": m, "n": n, "dtype": dtype, "columns": summary}


def show(report: list[dict[str, Any]]) -> None:
    """Print milliseconds, and the times of the other columns over the time of pblas, of the best rounds."""
    table = Table(show_header=True, box=None)
    names = list(report[0]["columns"])
    others = [name for name in names if name != "pblas"]
    for title in ("routine", "m", "n", *(f"{name}, ms" for name in names), *(f"{name} / pblas" for name in others)):
        table.add_column(title, justify="right")
    for figures in report:
        best = {name: summary["best_s"] for name, summary in figures["columns"].items()}
        times = [f"{1e3 * best[name]:.1f}" if name in best else "" for name in names]
        ratios = [f"{best[name] / best['pblas']:.2f}" if name in best else "" for name in others]
        table.add_row(figures["routine"], str(figures["m"]), str(figures["n"]), *times, *ratios)
    CONSOLE.print(table)


def integers(text: str) -> list[int]:
    """Numbers with commas between them."""
    return [int(n) for n in text.split(",") if n]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", type=integers, default=list(SIZES))
    parser.add_argument("--kinds", default="cholesky,lu,qr", help="of " + ", ".join(KINDS))
    parser.add_argument("--dtype", default="float64", choices=LETTERS)
    parser.add_argument("--tall", default="", help="shapes of tall matrices for QR, such as 200000x256,1000000x64")
    parser.add_argument("--blocks", type=integers, default=list(BLOCKS), help="of ScaLAPACK")
    parser.add_argument("--grids", default="", help="of ScaLAPACK, as 1x2,2x1; default: two that suit the ranks")
    parser.add_argument("--algorithms", default="", help="of Cholesky and LU, in columns of their own, as blocked,grid")
    parser.add_argument("--alone", action="store_true", help="without ScaLAPACK")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--library", choices=("debian", "mkl"), default="debian")
    options = parser.parse_args()
    names = MKL if options.library == "mkl" else DEBIAN
    peer = None if options.alone else Library(ROOT / "build" / "peer", names)
    grids = [(1, COMM.size), (COMM.size, 1)] if COMM.size < 4 else [(2, COMM.size // 2), (1, COMM.size)]
    if options.grids:
        grids = [(int(p), int(q)) for p, q in (shape.split("x") for shape in options.grids.split(","))]
    report = []
    with pblas.Context() as ctx:
        for n in options.sizes:
            matrices = {kind: x for kind, x in square(n, options.dtype).items() if kind in options.kinds.split(",")}
            algorithms = list(filter(None, options.algorithms.split(",")))
            report += measured(ctx, peer, matrices, options.rounds, options.blocks, grids, algorithms)
            show(report[-len(matrices) :])
        for shape in filter(None, options.tall.split(",")):
            m, n = map(int, shape.split("x"))
            tall = np.asfortranarray(np.random.default_rng(0).standard_normal((m, n)).astype(options.dtype))
            kinds = [kind for kind in ("qr", "q") if kind in options.kinds.split(",")]
            report += measured(ctx, peer, dict.fromkeys(kinds, tall), options.rounds, options.blocks, grids)
            show(report[-len(kinds) :])
    write(options.json, {"library": options.library, "rounds": options.rounds, "rows": report})


if __name__ == "__main__":
    main()
