"""How much time does a small call take, of one tree or of several, and what do NumPy and MPI take for the same?

    python -m benchmarks.cpu.small_calls [--tree PATH --tree PATH] [--n 64] [--jobs 3] [--repeats 10] [--json FILE]

Every call is repeated with the same layouts, so that its plan is cached: matrices of n x n float64 on 2 ranks, cut
into rows where nothing else is said (G: into columns), with one BLAS thread per rank. Each tree runs in jobs of its
own, in rotated order. A job has rounds; a round runs each call `--calls` times in a row, from a barrier to the last
rank's return. The table has the least and the median of all rounds, in microseconds for one call. The peer is NumPy's
function of the whole matrix on every rank, or MPI's of the same bytes: it is one of the last tree's jobs.

    --tree PATH   a checkout of pblas; the first one is the base of the ratios of least times. Default: this tree
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")

HIDDEN = 64
ROOT = Path(__file__).resolve().parents[2]
PEER = "peer: "
Calls = dict[str, Callable[[], Any]]
Times = dict[str, list[float]]


def matrix_calls(ctx: Any, n: int) -> Calls:
    """Calls on n x n matrices, by name, and their peers."""
    import numpy as np

    import pblas
    from pblas import blas, linalg

    rows, columns = (layout(n, n, ctx.nprocs) for layout in (pblas.MatrixDescriptor.row_wise, _columns))
    vector = pblas.MatrixDescriptor.row_wise(n, 1, ctx.nprocs)
    A, B, C = (ctx.random(rows, seed=seed) for seed in (1, 2, 3))
    G, H = (ctx.random(columns, seed=seed) for seed in (4, 5))
    x, y = ctx.random(vector, seed=6), ctx.random(vector, seed=7)
    pos = A @ A.T + ctx.eye(rows) * float(n)
    triangle = pblas.tril(pos)
    factor = linalg.lu_factor(pos)
    planned = pblas.plan_redistribution(A, out=G)
    a, b, c = (np.random.default_rng(seed).random((n, n)) for seed in (1, 2, 3))
    v, spd = a[:, :1].copy(), a @ a.T + n * np.eye(n)
    return {
        "A @ B": lambda: A @ B,
        "A + B": lambda: A + B,
        "A + G": lambda: A + G,
        "A * 2.0": lambda: A * 2.0,
        "elementwise(out=C)": lambda: pblas.elementwise("x + y", x=A, y=B, out=C),
        "redistribute": lambda: pblas.redistribute(A, columns),
        "redistribute(out=H)": lambda: pblas.redistribute(A, out=H),
        "planned.execute(A, out=G)": lambda: planned.execute(A, out=G),
        "solve(A, B)": lambda: linalg.solve(pos, B),
        "solve pos": lambda: linalg.solve(pos, B, assume_a="pos"),
        "inv": lambda: linalg.inv(pos),
        "qr": lambda: linalg.qr(A),
        "lstsq": lambda: linalg.lstsq(A, B),
        "F.solve(B)": lambda: factor.solve(B),
        "trsm": lambda: blas.trsm(triangle, B),
        "syrk": lambda: blas.syrk(A),
        "gemv": lambda: blas.gemv(A, x),
        "A.sum()": A.sum,
        "dot": lambda: blas.dot(x, y),
        PEER + "A @ B": lambda: a @ b,
        PEER + "A + B": lambda: a + b,
        PEER + "A * 2.0": lambda: a * 2.0,
        PEER + "elementwise(out=C)": lambda: np.add(a, b, out=c),
        PEER + "solve(A, B)": lambda: np.linalg.solve(spd, b),
        PEER + "inv": lambda: np.linalg.inv(spd),
        PEER + "qr": lambda: np.linalg.qr(a),
        PEER + "lstsq": lambda: np.linalg.lstsq(a, b),
        PEER + "syrk": lambda: a @ a.T,
        PEER + "gemv": lambda: a @ v,
        PEER + "A.sum()": a.sum,
        PEER + "dot": lambda: np.vdot(v, v),
    }


def _columns(m: int, n: int, nprocs: int) -> Any:
    """The descriptor of a matrix of which each rank has columns, stored by rows as those cut into rows."""
    from pblas import Grid, MatrixDescriptor

    return MatrixDescriptor(m, n, m, -(-n // nprocs), Grid.row(nprocs), order="C")


def array_calls(ctx: Any, comm: Any) -> Calls:
    """Calls on plain arrays, by name, and their peers."""
    import numpy as np
    from mpi4py import MPI

    from pblas import tp

    kib, out = np.ones(256), np.empty(256)
    token, weight = np.ones((1, HIDDEN // ctx.nprocs)), np.ones((HIDDEN, HIDDEN // ctx.nprocs))
    result, parts = np.empty((1, HIDDEN)), np.empty((ctx.nprocs, 256))

    def linear() -> None:
        np.matmul(token, weight.T, out=result)
        comm.Allreduce(MPI.IN_PLACE, result)

    return {
        "allreduce of 2 KiB": lambda: ctx.allreduce(kib),
        "allreduce of 2 KiB, out=x": lambda: ctx.allreduce(out, out, op="max"),
        "allgather of 2 KiB": lambda: ctx.allgather(kib),
        "tp.linear_allreduce": lambda: tp.linear_allreduce(token, weight, ctx=ctx),
        PEER + "allreduce of 2 KiB": lambda: comm.Allreduce(kib, np.empty(256)),
        PEER + "allreduce of 2 KiB, out=x": lambda: comm.Allreduce(MPI.IN_PLACE, out),
        PEER + "allgather of 2 KiB": lambda: comm.Allgather(kib, parts),
        PEER + "tp.linear_allreduce": linear,
    }


def measure(options: argparse.Namespace) -> None:
    """**Collective.** Print the seconds per call of each round, as JSON on rank 0."""
    from time import perf_counter

    from mpi4py import MPI

    import pblas

    comm = MPI.COMM_WORLD
    with pblas.Context(transport=options.transport, threads=1) as ctx:
        calls = {
            name: call
            for name, call in {**matrix_calls(ctx, options.n), **array_calls(ctx, comm)}.items()
            if options.only in name
        }
        times: Times = {name: [] for name in calls}
        names = list(calls)
        for turn in range(options.repeats + 1):
            for i in range(len(names)):
                name = names[(turn + i) % len(names)]
                call = calls[name]
                for _ in range(3):
                    call()
                comm.Barrier()
                start = perf_counter()
                for _ in range(options.calls):
                    call()
                seconds = comm.allreduce((perf_counter() - start) / options.calls, MPI.MAX)
                if turn:
                    times[name].append(seconds)
    if comm.rank == 0:
        print(json.dumps({"tree": pblas.__file__, "times": times}))


def job(tree: Path, options: argparse.Namespace) -> Times:
    """Seconds of a job of one tree; its own modules are imported, and this file."""
    mpiexec = str(Path(sys.executable).parent / "mpiexec")
    command = [mpiexec, "-n", str(options.ranks), sys.executable, "-m", "mpi4py", str(Path(__file__).resolve())]
    command += [f"--{name}={getattr(options, name)}" for name in ("n", "repeats", "calls", "transport", "only")]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    done = subprocess.run(
        [*command, "--measure"], check=False, capture_output=True, text=True, cwd=tree, env=environment
    )
    if done.returncode:
        raise SystemExit(f"{tree}: {done.stderr[-4000:]}")
    report = json.loads(done.stdout.splitlines()[-1])
    if not Path(report["tree"]).resolve().is_relative_to(tree):
        raise SystemExit(f"{tree}: imported {report['tree']} instead")
    return dict(report["times"])


def show(trees: Sequence[Path], times: Sequence[Times], options: argparse.Namespace) -> None:
    """Print the table: the least and the median of each tree, the ratio of the last to the first, and the peer."""
    from rich.console import Console
    from rich.table import Table

    rounds = f"{options.jobs} x {options.repeats} rounds"
    title = f"n = {options.n}, {options.ranks} ranks, microseconds: least, median of {rounds}"
    heads = [f"{number}: {tree.name}" for number, tree in enumerate(trees)]
    ratio = ["ratio"] if len(trees) > 1 else []
    table = Table("call", *heads, *ratio, "peer", title=title)
    for name in times[0]:
        if name.startswith(PEER):
            continue
        cells = [f"{1e6 * min(each[name]):.1f}, {1e6 * statistics.median(each[name]):.1f}" for each in times]
        if ratio:
            cells.append(f"{min(times[-1][name]) / min(times[0][name]):.2f}")
        peer = times[-1].get(PEER + name)
        table.add_row(name, *cells, f"{1e6 * min(peer):.1f}" if peer else "")
    Console(width=110).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, action="append", help="a checkout to measure")
    parser.add_argument("--n", type=int, default=64, help="rows and columns of the matrices")
    parser.add_argument("--jobs", type=int, default=3, help="jobs of each tree")
    parser.add_argument("--repeats", type=int, default=10, help="rounds of a job")
    parser.add_argument("--calls", type=int, default=20, help="calls in a row in a round")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of a job")
    parser.add_argument("--transport", default="auto", help="transport of the context")
    parser.add_argument("--only", default="", help="only calls with this text in their names")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options)
        return
    trees = [tree.resolve() for tree in options.tree or [ROOT]]
    times: list[Times] = [{} for _ in trees]
    for turn in range(options.jobs):
        for i in range(len(trees)):
            number = (turn + i) % len(trees)
            for name, seconds in job(trees[number], options).items():
                times[number].setdefault(name, []).extend(seconds)
    show(trees, times, options)
    if options.json is not None:
        from benchmarks.cpu.machine import write

        settings = {name: getattr(options, name) for name in ("n", "jobs", "repeats", "calls", "ranks", "transport")}
        columns = {tree.name: each for tree, each in zip(trees[:-1], times[:-1], strict=True)} | {"pblas": times[-1]}
        columns["peer"] = {name.removeprefix(PEER): x for name, x in times[-1].items() if name.startswith(PEER)}
        names = [name for name in times[-1] if not name.startswith(PEER)]
        rows = [{"call": name, "seconds": {k: x[name] for k, x in columns.items() if name in x}} for name in names]
        write(options.json, settings | {"rows": rows})


if __name__ == "__main__":
    main()
