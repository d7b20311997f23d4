"""A job whose hosts are disturbed while it works; each rank writes down its outcome of each round.

    mpiexec ... python -m mpi4py tests/hosts/fault_job.py FOLDER WORK,TIMEOUT,TRANSPORT...

Launched by tests/hosts/test_faults.py. A round has a context of its own: a rank makes it, writes `ready.ROUND.RANK`,
waits for the file `go.ROUND`, works, closes the context, writes `outcome.ROUND.RANK`, and waits for the file
`next.ROUND`. An error in the last round is not caught: it ends the job.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import pblas
from pblas import Grid, MatrixDescriptor

LATE, LATE_SECONDS = 1, 1.5
"""The rank that comes late to an agreement, and by how much: that of host 2 if hosts have a rank each."""
SIZE = 640  # a rank of three receives 2.2 MB of B: 0.9 s at 20 Mbit/s, and more than the link lets pass at once


def product(ctx: pblas.Context, a: pblas.DistMatrix, b: pblas.DistMatrix) -> bool:
    """Whether a product is right whose messages take a second on a limited link."""
    return _is_product(a @ b)


def agreement(ctx: pblas.Context, a: pblas.DistMatrix, b: pblas.DistMatrix) -> bool:
    """Whether products are right; the agreement before the first one waits for a late rank."""
    a, b = a[:9, :9], b[:9, :9]
    if ctx.rank == LATE:
        time.sleep(LATE_SECONDS)
    right = [_is_product(pblas.pmatmul(a, b), 9) for _ in range(3)]
    return all(right)


def messages(ctx: pblas.Context, a: pblas.DistMatrix, b: pblas.DistMatrix) -> bool:
    """Whether a product is right of ranks that have given up their hosts' shared memory."""
    return _is_product(a @ b) and not ctx.runtime.backend.shared


def trace(ctx: pblas.Context, a: pblas.DistMatrix, b: pblas.DistMatrix) -> bool:
    """Whether all events of a trace are in the time in which it was recorded."""
    start = time.perf_counter()
    with ctx.trace() as recorded:
        right = _is_product(a @ b)
    seconds = time.perf_counter() - start
    if ctx.rank:
        return right
    ranks = {event.rank for event in recorded.events}
    return right and len(ranks) == ctx.nprocs and all(0 <= e.start <= e.stop <= seconds for e in recorded.events)


def every_kind(ctx: pblas.Context, a: pblas.DistMatrix, b: pblas.DistMatrix) -> bool:
    """Whether products of several layouts, on all ranks and on fewer, are right."""
    right = []
    for n in range(1, ctx.nprocs + 1):
        rows, columns = MatrixDescriptor.row_wise(SIZE, SIZE, n), MatrixDescriptor.column_wise(SIZE, SIZE, n)
        blocks = MatrixDescriptor(SIZE, SIZE, 32, 32, Grid(1, n))
        for left, other, result in ((rows, rows, rows), (columns, rows, rows), (blocks, blocks, blocks)):
            operands = pblas.redistribute(a, left), pblas.redistribute(b, other)
            right.append(_is_product(pblas.pmatmul(*operands, out=ctx.empty(result))))
    return all(right)


def factorization(ctx: pblas.Context, a: pblas.DistMatrix, b: pblas.DistMatrix) -> bool:
    """Whether equations are solved, whose panels go to other hosts."""
    x = pblas.linalg.solve(a + 20 * SIZE * ctx.eye(SIZE), b)
    return float((a @ x + 20 * SIZE * x - b).norm()) < 1e-6


def grid(ctx: pblas.Context, a: pblas.DistMatrix, b: pblas.DistMatrix) -> bool:
    """Whether equations are solved with a factor over a grid of ranks, whose panels have several ranks."""
    a = a + 20 * SIZE * ctx.eye(SIZE)
    x = pblas.linalg.lu_factor(a, algorithm="grid", pivoting="tournament").solve(b)
    return float((a @ x - b).norm()) < 1e-6


def cholesky(ctx: pblas.Context, a: pblas.DistMatrix, b: pblas.DistMatrix) -> bool:
    """Whether a positive definite matrix is L L^T, with L over a grid of ranks."""
    a = a @ a.T + 20 * SIZE * ctx.eye(SIZE)
    x = pblas.linalg.cholesky(a, algorithm="grid")
    return float((x @ x.T - a).norm()) < 1e-10 * float(a.norm())


def qr(ctx: pblas.Context, a: pblas.DistMatrix, b: pblas.DistMatrix) -> bool:
    """Whether A = Q R over a grid of ranks."""
    q, r = pblas.linalg.qr(a, algorithm="grid")
    return float((q @ r - a).norm()) < 1e-10 * float(a.norm())


def eigenvalues(ctx: pblas.Context, a: pblas.DistMatrix, b: pblas.DistMatrix) -> bool:
    """Whether A + A^T V = V diag(w), whose reflectors and vectors of halves go to other hosts."""
    a = a + a.T
    w, v = pblas.linalg.eigh(a)
    return float((a @ v - v * w).norm()) < 1e-10 * float(a.norm())


WORK: dict[str, Callable[[pblas.Context, pblas.DistMatrix, pblas.DistMatrix], bool]] = {
    work.__name__: work
    for work in (product, factorization, grid, cholesky, qr, eigenvalues, agreement, messages, trace, every_kind)
}


def _a(i: Any, j: Any) -> Any:
    return (i % 7) - 1.0 * (j % 5)


def _b(i: Any, j: Any) -> Any:
    return (i % 3) + 1.0 * (j % 11)


def _operands(ctx: pblas.Context) -> tuple[pblas.DistMatrix, pblas.DistMatrix]:
    rows = MatrixDescriptor.row_wise(SIZE, SIZE, ctx.nprocs)
    return ctx.from_global(_a, rows), ctx.from_global(_b, rows)


def _is_product(d: pblas.DistMatrix, depth: int = SIZE) -> bool:
    """Whether this rank's part of A B, of the first `depth` columns of A, is right: exact integers (local)."""
    i, j = (
        np.concatenate([np.arange(0), *(np.arange(*indices) for indices in ranges)])
        for ranges in d.desc.global_ranges(d.runtime.rank)
    )
    if not d.local.size:
        return True
    k = np.arange(depth)
    return np.array_equal(d.local, _a(i[:, None], k) @ _b(k[:, None], j))


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.005)


def _shared_files() -> set[str]:
    """Names in this host's /dev/shm."""
    return {path.name for path in Path("/dev/shm").iterdir()}


def main(folder: Path, *rounds: str) -> None:
    """Work, and write the outcome of each round."""
    rank = MPI.COMM_WORLD.rank
    before = _shared_files()
    for number, text in enumerate(rounds):
        name, timeout, transport = text.split(",")
        outcome: dict[str, Any] = {"error": "", "text": "", "right": False}
        start = time.monotonic()
        try:
            with pblas.Context(timeout=float(timeout), transport=transport) as ctx:  # type: ignore[arg-type]
                operands = _operands(ctx)
                (folder / f"ready.{number}.{rank}").touch()
                _wait_for(folder / f"go.{number}")
                start = time.monotonic()
                outcome["right"] = WORK[name](ctx, *operands)
        except Exception as error:
            outcome |= {"error": type(error).__name__, "text": str(error)}
            if number == len(rounds) - 1:
                raise
        finally:
            (folder / f"ready.{number}.{rank}").touch()  # also after an error of the operands
            outcome |= {"seconds": time.monotonic() - start, "left": sorted(_shared_files() - before)}
            temporary = folder / f"writing.{rank}"
            temporary.write_text(json.dumps(outcome))
            temporary.rename(folder / f"outcome.{number}.{rank}")
        _wait_for(folder / f"next.{number}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
