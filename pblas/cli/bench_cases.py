"""The measurements of `bench`: what each row computes with pblas, and what NumPy computes on rank 0 for comparison.

On GPUs the arrays are CuPy's, to which NumPy's functions hand over, so that one code measures both.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits

from pblas import config, linalg
from pblas.backends.cpu.threads import usable_cores
from pblas.errors import PblasError
from pblas.layouts import Grid, MatrixDescriptor

if TYPE_CHECKING:
    from pblas.context import Context
    from pblas.matrices.matrix import DistMatrix

_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)  # n of a matrix; 8192: 512 MiB in float64
_PROBE = 512  # n of the product by which the machine's speed is estimated
_LEAST, _MOST = 3, 25  # rounds of a row
_PLANNED_ROUNDS = 8  # that fit into a row's time; with them a median ignores three disturbed ones
_PAUSE = 0.1  # seconds; BLAS threads poll for about as long after a product, and would disturb the next one
_BLOCK = 128
_TALL = 32  # rows of a tall matrix for each column
_SLOWNESS = 4.0  # of a factorization, compared with a product of as many operations


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table."""

    group: str  # products, collectives or factorizations
    name: str  # what is computed
    size: str  # sizes and dtype, as text
    peer: str  # the call that it is compared with
    work: float  # operations or bytes of one call, for the rates
    unit: str  # GFLOP/s or GB/s
    # median of pblas, from the start of all ranks to the end of the last one; NaN after an error
    seconds: float = math.nan
    peer_seconds: float = math.nan  # median of the peer
    rounds: int = 0  # number of measurements of each
    error: str = ""  # why there are no times; "" if there are

    @property
    def ratio(self) -> float:
        """Time of the peer, divided by that of pblas: above 1, pblas is faster."""
        return self.peer_seconds / self.seconds

    @property
    def rate(self) -> float:
        """Rate of pblas, in `unit`."""
        return self.work / self.seconds / 1e9

    def values(self) -> dict[str, Any]:
        """The row for JSON, with rate and ratio; null in place of a number that there is not."""
        numbers = asdict(self) | {"rate": self.rate, "ratio": self.ratio}
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in numbers.items()}


@dataclass(frozen=True, slots=True)
class Case:
    """A row that has not been measured: pblas' call on all ranks, and the peer's on rank 0."""

    row: Row
    call: Callable[[], object]
    peer: Callable[[], Any]


def measure(ctx: Context, seconds: float) -> dict[str, Any]:
    """**Collective.** The whole report, as values for JSON."""
    start = time.perf_counter()
    bench = Bench(ctx, seconds)
    rows = [bench.row(make) for make in CASES]
    report = {
        "machine": _machine(ctx),
        "ranks": ctx.nprocs,
        "peer threads": bench.threads,
        "seconds": round(time.perf_counter() - start, 1),
        "rows": [row.values() for row in rows],
    }
    value: dict[str, Any] = ctx.runtime.backend.broadcast_object(report, 0)
    return value


def _machine(ctx: Context) -> dict[str, str]:
    """System, MPI, ranks, BLAS, versions and settings, as text by name (local)."""
    local = config.local_facts()
    names = ("BLAS", "packages", "GPU packages", "settings")
    facts = {"system": config.system(), "processor": config.processor(), **ctx.describe()}
    return facts | {name: local[name] for name in names}


class Bench:
    """Measures the rows of the printed table, each within its share of the time."""

    def __init__(self, ctx: Context, seconds: float) -> None:
        self.ctx = ctx
        self.threads: int = 1 if ctx.runtime.backend.gpus else len(usable_cores())
        self.share: float = seconds / len(CASES)
        self._pause = min(_PAUSE, self.share / (4 * _PLANNED_ROUNDS))
        self._rate = self._probed_rate()

    def matrix(self, desc: MatrixDescriptor, dtype: str = "float64", seed: int = 0) -> DistMatrix:
        """**Collective.** A random matrix."""
        return self.ctx.random(desc, dtype, seed=seed)

    def whole(self, a: DistMatrix) -> Any:
        """**Collective.** The whole matrix as an array on rank 0; without elements on the others."""
        return a.redistribute(MatrixDescriptor.block_cyclic(*a.shape, *a.shape, Grid(1, 1))).local

    def size(self, operations: Callable[[int], float]) -> int:
        """The largest n for which a row's rounds end in its time: `operations(n)` for pblas, and as many for NumPy."""
        limit = self.share * self._rate / (2 * _PLANNED_ROUNDS)
        return max((n for n in _SIZES if operations(n) <= limit), default=_SIZES[0])

    def row(self, make: Callable[[Bench], Case]) -> Row:
        """**Collective.** A measured row; if all ranks raise an error, a row that says so."""
        start = time.perf_counter()
        case = make(self)
        row = case.row
        try:
            times = self._times(case, start + self.share)
        except PblasError as error:  # such as an operation that this backend does not have
            return Row(*(row.group, row.name, row.size, row.peer, row.work, row.unit), error=str(error))
        ours, peers = (statistics.median(column) for column in zip(*times, strict=True))
        done = row.group, row.name, row.size, row.peer, row.work, row.unit
        return Row(*done, seconds=ours, peer_seconds=peers, rounds=len(times))

    def _times(self, case: Case, end: float) -> list[tuple[float, float]]:
        """**Collective.** Seconds of pblas and of the peer, in rounds; the first round is left out."""
        times: list[tuple[float, float]] = []
        while True:
            peer, ours = self._on_rank_0(case.peer), self._together(case.call)
            times.append((ours, peer))
            rounds, late = len(times) - 1, time.perf_counter() >= end
            if self._agreed(rounds >= _MOST or (rounds >= _LEAST and late)):
                return times[1:]

    def _together(self, call: Callable[[], object]) -> float:
        """**Collective.** Seconds from the start of all ranks to the end of the last one."""
        backend = self.ctx.runtime.backend
        time.sleep(self._pause)
        backend.gather(0)
        start = time.perf_counter()
        call()
        backend.synchronize()
        backend.arrays.synchronize()
        return float(max(backend.gather(time.perf_counter() - start)))

    def _on_rank_0(self, call: Callable[[], Any]) -> float:
        """**Collective.** Seconds on rank 0, with all cores, while the other ranks wait; the same on every rank."""
        seconds = 0.0
        if self.ctx.rank == 0:
            with threadpool_limits(self.threads, user_api="blas"):
                start = time.perf_counter()
                result = call()
                if self.ctx.runtime.backend.gpus:
                    result.ravel()[:1].tolist()  # waits for the GPU
                seconds = time.perf_counter() - start
        return float(self.ctx.runtime.backend.broadcast_object(seconds, 0))

    def _agreed(self, decision: bool) -> bool:
        """**Collective.** Rank 0's decision."""
        return bool(self.ctx.runtime.backend.broadcast_object(decision, 0))

    def _probed_rate(self) -> float:
        """**Collective.** Operations per second of a small product, by NumPy or CuPy on rank 0."""
        a = self.whole(self.matrix(MatrixDescriptor.row_wise(_PROBE, _PROBE, self.ctx.nprocs)))
        best = min(self._on_rank_0(lambda: a @ a) for _ in range(3))
        return 2 * _PROBE**3 / best


def _product(bench: Bench, name: str, kinds: tuple[str, str, str], dtype: str = "float64") -> Case:
    """D = A B for three layouts: "row", "column", "grid" or "replicated"."""
    from pblas.matmul.api import plan_matmul

    n = bench.size(lambda n: 2 * n**3)
    desc_a, desc_b, desc_d = (_layout(kind, n, bench.ctx.nprocs) for kind in kinds)
    a, b = bench.matrix(desc_a, dtype), bench.matrix(desc_b, dtype, 1)
    planned = plan_matmul(a, b, out=desc_d)
    d, left, right = bench.ctx.empty(desc_d, dtype), bench.whole(a), bench.whole(b)
    out = left @ right if bench.ctx.rank == 0 else None
    row = Row("products", f"{planned.plan.name}, {name}", f"n = {n}, {dtype}", "np.matmul", 2.0 * n**3, "GFLOP/s")
    return Case(row, lambda: planned.execute(a, b, out=d), lambda: np.matmul(left, right, out=out))


def _layout(kind: str, n: int, nprocs: int) -> MatrixDescriptor:
    """The layout of an n x n matrix."""
    if kind == "grid":
        return MatrixDescriptor.block_cyclic(n, n, _BLOCK, _BLOCK, _grid(nprocs))
    makers = {
        "row": MatrixDescriptor.row_wise,
        "column": MatrixDescriptor.column_wise,
        "replicated": MatrixDescriptor.replicated,
    }
    return makers[kind](n, n, nprocs)


def _grid(nprocs: int) -> Grid:
    """The most square grid of all ranks, with no more rows than columns.

    >>> [(grid.nprow, grid.npcol) for grid in (_grid(6), _grid(5))]
    [(2, 3), (1, 5)]
    """
    rows = max(p for p in range(1, math.isqrt(nprocs) + 1) if nprocs % p == 0)
    return Grid(rows, nprocs // rows)


def _allreduce(bench: Bench, count: int) -> Case:
    """Sum of an array of `count` float64 of each rank; NumPy adds as many arrays on rank 0."""
    nprocs = bench.ctx.nprocs
    parts = bench.matrix(MatrixDescriptor.row_wise(nprocs, count, nprocs))
    x, whole = parts.local, bench.whole(parts).copy()  # each array is contiguous, as NumPy would have it
    out = x.copy()
    row = Row(
        "collectives",
        "allreduce",
        f"{config.bytes_text(8 * count)} per rank",
        "np.sum of all arrays",
        8 * count,
        "GB/s",
    )
    return Case(row, lambda: bench.ctx.allreduce(x, out), lambda: np.sum(whole, axis=0))


def _redistribute(bench: Bench) -> Case:
    """From rows to blocks on a grid; NumPy copies the whole matrix."""
    n = min(bench.size(lambda n: 50.0 * n**2), 4096)  # bytes that move, at some operations each
    grid = _layout("grid", n, bench.ctx.nprocs)
    a, b = bench.matrix(_layout("row", n, bench.ctx.nprocs)), bench.ctx.empty(grid)
    whole = bench.whole(a)
    target = whole.copy(order="K")  # stored as `whole`, so that nothing is transposed

    def copy() -> Any:
        target[...] = whole
        return target

    row = Row("collectives", "redistribute, rows to blocks", f"n = {n}, float64", "np.copyto", 8.0 * n**2, "GB/s")
    return Case(row, lambda: a.redistribute(out=b), copy)


def _cholesky(bench: Bench) -> Case:
    """A lower triangle, of a matrix with a dominant diagonal."""
    n = bench.size(lambda n: _SLOWNESS * n**3 / 3)
    a = bench.matrix(_layout("row", n, bench.ctx.nprocs)) + bench.ctx.eye(n) * float(n)
    whole = bench.whole(a)
    row = Row("factorizations", "cholesky", f"n = {n}, float64", "np.linalg.cholesky", n**3 / 3, "GFLOP/s")
    return Case(row, lambda: linalg.cholesky(a), lambda: np.linalg.cholesky(whole))


def _solve(bench: Bench) -> Case:
    """LU with partial pivoting, and two triangular solves for a few right-hand sides."""
    n, columns = bench.size(lambda n: _SLOWNESS * 2 * n**3 / 3), 16
    a = bench.matrix(_layout("row", n, bench.ctx.nprocs))
    b = bench.matrix(MatrixDescriptor.row_wise(n, columns, bench.ctx.nprocs), seed=1)
    left, right = bench.whole(a), bench.whole(b)
    work = 2 * n**3 / 3 + 2 * n**2 * columns
    row = Row("factorizations", f"solve, {columns} columns", f"n = {n}, float64", "np.linalg.solve", work, "GFLOP/s")
    return Case(row, lambda: linalg.solve(a, b), lambda: np.linalg.solve(left, right))


def _qr(bench: Bench) -> Case:
    """Q and R of a tall matrix, as in a regression."""

    def work(n: int) -> float:
        return 4.0 * _TALL * n**3 - 4 / 3 * n**3

    n = bench.size(lambda n: _SLOWNESS * work(n))
    a = bench.matrix(MatrixDescriptor.row_wise(_TALL * n, n, bench.ctx.nprocs))
    whole = bench.whole(a)
    size = f"{_TALL * n} x {n}, float64"
    row = Row("factorizations", "qr of a tall matrix", size, "np.linalg.qr", work(n), "GFLOP/s")
    return Case(row, lambda: linalg.qr(a), lambda: np.linalg.qr(whole))


CASES: tuple[Callable[[Bench], Case], ...] = (
    lambda bench: _product(bench, "rows", ("row", "row", "row")),
    lambda bench: _product(bench, "k split", ("column", "row", "column")),
    lambda bench: _product(bench, "blocks on a grid", ("grid", "grid", "grid")),
    lambda bench: _product(bench, "rows", ("row", "row", "row"), "float32"),
    lambda bench: _allreduce(bench, 1 << 10),
    lambda bench: _allreduce(bench, 1 << 20),
    _redistribute,
    _cholesky,
    _solve,
    _qr,
)
"""The rows of the table."""
