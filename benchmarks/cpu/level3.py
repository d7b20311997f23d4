"""How fast is level 3 of PBLAS, compared with the rate of a GEMM, with ScaLAPACK and with SciPy?

    make peer                                            once; it installs Debian's ScaLAPACK and prepares build/peer
    LD_LIBRARY_PATH=build/peer mpiexec -n 2 python -m mpi4py -m benchmarks.cpu.level3 --json FILE   1 x 2, 2 x 1
    LD_LIBRARY_PATH=build/peer mpiexec -n 4 python -m mpi4py -m benchmarks.cpu.level3 --json FILE   2 x 2

All columns run in one job, in float64, in rounds: each round runs every column once, in rotated order. "pblas" runs a
plan on matrices of a context; trmm and trsm overwrite B, as PBLAS does. "stock" and "tuned" are Debian's ScaLAPACK with
its inner block of 32 and with 256, on arrays of the same layout. "SciPy" is OpenBLAS on the whole matrices on rank 0,
with a thread for each core, while the other ranks sleep. With --library mkl the peer is MKL's ScaLAPACK, in the column
"MKL"; benchmarks/cpu/scalapack.py says how to run it. "GEMM" is the time of the same flops at the rate of a rank's
own GEMM with all rows and its share of the columns. The ratios are medians over the median of pblas: above 1 pblas is
faster. Of ScaLAPACK and of SciPy the fastest block size counts. Without build/peer ScaLAPACK's columns are left out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # for tests.peer, the binding that `make peer` uses
os.environ |= {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import numpy as np  # noqa: E402 - the threads are set before a BLAS is loaded
from mpi4py import MPI  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from scipy.linalg import blas as scipy_blas  # noqa: E402

import pblas  # noqa: E402
from benchmarks.cpu.alone import PAUSE  # noqa: E402
from benchmarks.cpu.machine import write  # noqa: E402
from benchmarks.rounds import on_first_rank, rounds, together  # noqa: E402
from pblas import Grid, MatrixDescriptor, blas  # noqa: E402
from pblas.backends.cpu.blas import gemm  # noqa: E402
from tests.peer.library import DEBIAN, MKL, STOCK, TUNED, Library  # noqa: E402

COMM = MPI.COMM_WORLD
CONSOLE = Console(markup=False, highlight=False, quiet=COMM.rank != 0, width=120)
GRIDS = {1: [(1, 1)], 2: [(1, 2), (2, 1)], 4: [(2, 2)]}
PEERS = ("GEMM", "tuned", "stock", "MKL", "SciPy")
GOALS = {"GEMM": 0.92, "tuned": 1.15, "stock": 1.3, "MKL": 1.0, "SciPy": 1.0}
GOAL_OF_TRSM = 0.88


class Routine(NamedTuple):
    """A routine in the three interfaces, with the lower triangle and n rows, columns and right-hand sides.

    Args:
        plan: makes the planned operation of pblas from the distributed matrices by name (global).
        operands: the matrices among A, B and C that it takes, in order; the last one is the result (global).
        options: of ScaLAPACK, before the sizes (global).
        scipy: computes the same from the whole matrices by name (global).
        share: its flops over those of a product (global).
    """

    plan: Callable[[Any], Any]
    operands: str
    options: tuple[str, ...]
    scipy: Callable[[Any], Any]
    share: float


ROUTINES = {
    "syrk": Routine(
        lambda x: blas.plan_syrk(x["A"], out=x["C"]),
        *("AC", ("L", "N")),
        lambda x: scipy_blas.dsyrk(1.0, x["A"], c=x["C"], lower=1, overwrite_c=1),
        0.5,
    ),
    "syr2k": Routine(
        lambda x: blas.plan_syr2k(x["A"], x["B"], out=x["C"]),
        *("ABC", ("L", "N")),
        lambda x: scipy_blas.dsyr2k(1.0, x["A"], x["B"], c=x["C"], lower=1, overwrite_c=1),
        1.0,
    ),
    "symm": Routine(
        lambda x: blas.plan_symm(x["A"], x["B"], out=x["C"]),
        *("ABC", ("L", "L")),
        lambda x: scipy_blas.dsymm(1.0, x["A"], x["B"], c=x["C"], lower=1, overwrite_c=1),
        1.0,
    ),
    "trmm": Routine(
        lambda x: blas.plan_trmm(x["A"], x["B"], out=x["B"]),
        *("AB", ("L", "L", "N", "N")),
        lambda x: scipy_blas.dtrmm(1.0, x["A"], x["B"], lower=1, overwrite_b=1),
        0.5,
    ),
    "trsm": Routine(
        lambda x: blas.plan_trsm(x["A"], x["B"], out=x["B"]),
        *("AB", ("L", "L", "N", "N")),
        lambda x: scipy_blas.dtrsm(1.0, x["A"], x["B"], lower=1, overwrite_b=1),
        0.5,
    ),
}


class Problem:
    """One size on one grid: the same A, B and C for all routines and columns.

    Args:
        ctx: context of pblas's matrices (global).
        shape: process grid (global).
        n: order of all matrices (global).
        nb: rows and columns per block (global).
        peer: ScaLAPACK; None without it (global).
        inner: for each column of ScaLAPACK its inner block (global).
    """

    def __init__(
        self,
        ctx: pblas.Context,
        shape: tuple[int, int],
        n: int,
        nb: int,
        peer: Library | None,
        inner: dict[str, int],
    ) -> None:
        self.n, self.peer, self.inner = n, peer, inner
        desc = MatrixDescriptor(n, n, nb, nb, Grid(*shape, "R"))
        rng = np.random.default_rng(1)
        whole = rng.uniform(-1, 1, (n, n)) / n + np.eye(n), rng.uniform(-1, 1, (n, n)), np.zeros((n, n))
        self.whole = {name: np.asfortranarray(x) for name, x in zip("ABC", whole, strict=True)}
        self.matrices = {name: ctx.from_global(x, desc, root=None) for name, x in self.whole.items()}
        self.local = {name: np.array(x.local, order="F") for name, x in self.matrices.items()}
        handle = 0 if peer is None else peer.gridinit(0, "R", *shape)
        self.desc = [1, handle, n, n, nb, nb, 0, 0, max(1, self.local["A"].shape[0])]
        self.product = np.zeros((n, -(-n // COMM.size)), order="F")

    def columns(self, routine: Routine, planned: Any) -> dict[str, Callable[[], float]]:
        """For each column a function that runs the routine, and returns its seconds."""
        *operands, result = (self.matrices[name] for name in routine.operands)
        if routine.operands == "AB":
            operands.append(result)  # B is overwritten
        works: dict[str, Callable[[], float]] = {
            "pblas": lambda: together(lambda: planned.execute(*operands, out=result)),
            "SciPy": partial(self.scipy, routine),
            "GEMM": lambda: together(self.gemm) * routine.share,
        }
        if self.peer is not None:
            works |= {name: partial(self.scalapack, routine, block) for name, block in self.inner.items()}
        return works

    def scalapack(self, routine: Routine, block: int) -> float:
        assert self.peer is not None, "its columns are left out otherwise"
        self.peer.block = block
        name = next(name for name, each in ROUTINES.items() if each is routine)
        arguments: list[Any] = [*routine.options, self.n, self.n, 1.0]
        for operand in routine.operands:
            if operand == "C":
                arguments.append(0.0)
            arguments += [self.local[operand], 1, 1, self.desc]
        call = getattr(self.peer, f"pd{name}")
        return together(lambda: call(*arguments))

    def gemm(self) -> None:
        gemm(1.0, self.whole["A"], self.whole["B"][:, : self.product.shape[1]], 0.0, self.product)

    def scipy(self, routine: Routine) -> float:
        """Seconds on rank 0, with all cores."""
        return on_first_rank(lambda: routine.scipy(self.whole), len(os.sched_getaffinity(0)))

    def check(self, routine: Routine, works: dict[str, Callable[[], float]]) -> None:
        """**Collective.** The first results of pblas and ScaLAPACK agree."""
        name = routine.operands[-1]
        start, results = self.local[name].copy(), []
        for column in (column for column in ("pblas", *self.inner) if column in works):
            array = self.matrices[name].local if column == "pblas" else self.local[name]
            array[...] = start
            works[column]()
            results.append(array.copy())
        for result in results[1:]:
            largest = COMM.allreduce(float(np.abs(result - results[0]).max(initial=0.0)), MPI.MAX)
            assert largest < 4e-14 * self.n, f"results differ by {largest}"

    def close(self) -> None:
        if self.peer is not None:
            self.peer.gridexit(self.desc[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=lambda text: [int(n) for n in text.split(",")], default=[2048, 4096])
    parser.add_argument("--blocks", type=lambda text: [int(n) for n in text.split(",")], default=[64, 128, 256])
    parser.add_argument("--routines", type=lambda text: text.split(","), default=list(ROUTINES))
    parser.add_argument("--grids", default="", help="as 1x2,2x1; default: all of this many ranks")
    parser.add_argument("--library", choices=("debian", "mkl"), default="debian", help="which ScaLAPACK")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    folder = ROOT / "build" / "peer"
    names, inner = (MKL, {"MKL": STOCK}) if options.library == "mkl" else (DEBIAN, {"stock": STOCK, "tuned": TUNED})
    peer = Library(folder, names) if folder.exists() else None
    grids = [(int(p), int(q)) for p, _, q in (shape.partition("x") for shape in options.grids.split(",") if shape)]
    report = []
    with pblas.Context() as ctx:
        for shape in grids or GRIDS[COMM.size]:
            for n in options.sizes:
                rows = [
                    {"routine": name, "grid": list(shape), "n": n, "nb": nb, "columns": columns}
                    for nb in options.blocks
                    for name, columns in measure(Problem(ctx, shape, n, nb, peer, inner), options).items()
                ]
                compare(rows)
                show(rows, options.routines)
                report += rows
    write(options.json, {"library": options.library, "rounds": options.rounds, "goals": GOALS, "rows": report})


def measure(problem: Problem, options: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """**Collective.** Seconds of each column of each routine."""
    result = {}
    for name in options.routines:
        routine = ROUTINES[name]
        with routine.plan(problem.matrices) as planned:
            works = problem.columns(routine, planned)
            problem.check(routine, works)
            times = rounds(works, options.rounds, warm=1, pause=PAUSE)
        result[name] = {
            key: {"best_s": min(x), "median_s": statistics.median(x), "worst_s": max(x)} for key, x in times.items()
        }
    problem.close()
    return result


def compare(rows: list[dict[str, Any]]) -> None:
    """Add the ratios of medians to the rows of one grid and size: of a peer the fastest block size counts."""
    for row in rows:
        alike = [each["columns"] for each in rows if each["routine"] == row["routine"]]
        ours = row["columns"]["pblas"]["median_s"]
        names = [name for name in PEERS if name in row["columns"]]
        least = {name: min(columns[name]["median_s"] for columns in alike) for name in names}
        least["GEMM"] = row["columns"]["GEMM"]["median_s"]
        row["ratios"] = {name: seconds / ours for name, seconds in least.items()}


def show(rows: list[dict[str, Any]], routines: list[str]) -> None:
    """Print the ratios to the peers, with a mark where a goal is missed, and the median milliseconds."""
    table = Table(show_header=True, box=None)
    peers = list(rows[0]["ratios"])
    for title in ("routine", "grid", "n", "nb", *(f"{name} / pblas" for name in peers), "pblas, ms", *peers):
        table.add_column(title, justify="right")
    for row in sorted(rows, key=lambda row: routines.index(row["routine"])):
        goals = GOALS | ({"GEMM": GOAL_OF_TRSM} if row["routine"] == "trsm" else {})
        cells = [row["routine"], "x".join(map(str, row["grid"])), str(row["n"]), str(row["nb"])]
        cells += [f"{ratio:.2f}{'*' if ratio < goals[name] else ' '}" for name, ratio in row["ratios"].items()]
        cells += [f"{1e3 * row['columns'][name]['median_s']:.1f}" for name in ("pblas", *peers)]
        table.add_row(*cells)
    CONSOLE.print(table)
    CONSOLE.print("* below the goal; goals: " + ", ".join(f"{name} {goal}" for name, goal in GOALS.items()))


if __name__ == "__main__":
    main()
