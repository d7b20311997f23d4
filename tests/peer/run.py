"""Results and times of Debian's ScaLAPACK and of pblas on the same problems.

    make peer
    mpiexec -n 4 python -m mpi4py -m tests.peer.run [--count 40] [--routines trmm,vectors]

The problems are all columns of the tables of levels 1, 2 and 3, norms, assignments and messages, and random problems of
kinds that the tables leave out, on every grid that has enough processes; then problems that are large enough for
timing. The error of a result is counted in units of eps (2^-53 in double precision) times the sum of the absolute
values of its terms. A result is wrong if its error is above 16, or 8 for sums of matrices, or 2 (n + 2) for reductions
of n terms, or if other memory has changed.

Then each library solves with the factors of the other, and both factorizations choose the same pivots.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from rich.console import Console
from rich.table import Table

from pblas import scalapack
from pblas.layouts.grid import Grid
from tests.conformance import problems
from tests.conformance.run import all_grids
from tests.conformance.suites import SUITES, Suite
from tests.peer import factors
from tests.peer.library import TUNED, Library

COMM = MPI.COMM_WORLD
CONSOLE = Console(markup=False, highlight=False, quiet=COMM.rank != 0, width=None if sys.stdout.isatty() else 110)
N, NB, ROUNDS = 1000, 64, 5


@dataclass(slots=True)
class Column:
    """Results of one library so far: its number of wrong results, its largest error, its seconds."""

    failed: int = 0
    error: float = 0.0
    seconds: float = 0.0

    def add(self, outcomes: list[problems.Outcome]) -> str:
        """**Collective.** Count one problem from the outcomes of all ranks, and return the first error."""
        texts = [outcome.text for outcome in outcomes if outcome.text]
        self.failed += bool(texts)
        self.error = max([self.error, *(outcome.error for outcome in outcomes if not outcome.text)])
        self.seconds += max(outcome.seconds for outcome in outcomes)
        return texts[0] if texts else ""


def results(peer: Library, count: int, chosen: list[str]) -> tuple[int, list[str]]:
    """**Collective.** Print the table of results; pblas's number of wrong results, and texts about both."""
    table = Table(title=f"results, {COMM.size} processes", title_justify="left")
    table.add_column("routine")
    for title in ("problems", "failed: pblas", "ScaLAPACK", "largest error: pblas", "ScaLAPACK"):
        table.add_column(title, justify="right")
    wrong, failures = 0, []
    grids = [(p, q) for p, q in all_grids(COMM.size) if p * q <= COMM.size]
    for suite in SUITES:
        for routine, letter in suite.types(chosen, "isdcz"):
            ours, theirs, total = Column(), Column(), 0
            for nprow, npcol in grids:
                cases = suite.cases(routine, letter, count, Grid(nprow, npcol))
                cases = [suite.as_scalapack(case) for case in cases]
                pblas_outcomes, peer_outcomes = (
                    outcomes(suite, library, cases, nprow, npcol) for library in (scalapack, peer)
                )
                for case, x, y in zip(cases, pblas_outcomes, peer_outcomes, strict=True):
                    total += 1
                    for name, column, outcome in (("pblas", ours, x), ("ScaLAPACK", theirs, y)):
                        text = column.add(outcome)
                        if text:
                            failures.append(f"{name}, {case.routine_name} on {nprow} x {npcol}: {text}\n    {case}")
            wrong += ours.failed
            name = cases[0].routine_name + ("/c" if routine == "tran" and letter in "cz" else "")
            table.add_row(
                name, *map(str, (total, ours.failed, theirs.failed)), f"{ours.error:.2f}", f"{theirs.error:.2f}"
            )
    CONSOLE.print(table)
    return wrong, failures


def outcomes(suite: Suite, library: Any, cases: list[Any], nprow: int, npcol: int) -> list[list[problems.Outcome]]:
    """**Collective.** For every problem the outcomes of all ranks of the grid."""
    ictxt = library.gridinit(COMM if library is scalapack else 0, "R", nprow, npcol)
    outcome: list[problems.Outcome] | None = None
    if library.gridinfo(ictxt)[0] >= 0:
        outcome = suite.outcomes(cases, ictxt, library)
        library.gridexit(ictxt)
    everywhere = [x for x in COMM.allgather(outcome) if x is not None]
    return [list(ranks) for ranks in zip(*everywhere, strict=True)]


class Timed:
    """Matrices that are large enough for timing, on one grid, and three calls on them.

    Args:
        library: the library that is called (global).
        nprow: process rows (global).
        npcol: process columns (global).
        n: rows and columns (global).
        nb: rows and columns per block (global).
        inputs: the object of the other library, whose A and B are used; None for random matrices (local).
    """

    def __init__(self, library: Any, nprow: int, npcol: int, n: int, nb: int, inputs: Timed | None = None) -> None:
        self.library, self.n = library, n
        self.ictxt = library.gridinit(COMM if library is scalapack else 0, "R", nprow, npcol)
        self.a: tuple[Any, ...] = self._matrix(nb, inputs.a[0] if inputs else None)
        self.b: tuple[Any, ...] = self._matrix(nb, inputs.b[0] if inputs else None)
        self.c, self.moved = self._matrix(nb), self._matrix(nb // 2 + 1)

    def _matrix(self, nb: int, local: Any = None) -> tuple[Any, ...]:
        """X, IX, JX, DESCX of an n x n matrix, random if it is a new one."""
        nprow, npcol, myrow, mycol = self.library.gridinfo(self.ictxt)
        rows, columns = (scalapack.numroc(self.n, nb, p, 0, q) for p, q in ((myrow, nprow), (mycol, npcol)))
        if local is None:
            local = np.asfortranarray(np.random.default_rng(COMM.rank).uniform(-1.0, 1.0, (rows, columns)))
        return local, 1, 1, [1, self.ictxt, self.n, self.n, nb, nb, 0, 0, max(1, rows)]

    def run(self, name: str) -> float:
        """**Collective.** Seconds of one call, from a barrier to the last rank's return."""
        n = self.n
        arguments: dict[str, tuple[Any, ...]] = {
            "pdgemm": ("N", "N", n, n, n, 1.0, *self.a, *self.b, 0.0, *self.c),
            "pdtran": (n, n, 1.0, *self.a, 0.0, *self.c),
            "pdgemr2d": (n, n, *self.a, *self.moved, self.ictxt),
        }
        COMM.Barrier()
        start = time.perf_counter()
        getattr(self.library, name)(*arguments[name])
        return float(COMM.allreduce(time.perf_counter() - start, MPI.MAX))

    def result(self, name: str) -> Any:
        """This rank's part of the result of `run`."""
        return (self.moved if name == "pdgemr2d" else self.c)[0]


def times(peer: Library) -> None:
    """**Collective.** Print the table of times, with the largest difference of the results."""
    table = Table(
        title=f"n = {N}, blocks of {NB}, best of {ROUNDS}, ms; {TUNED}: ScaLAPACK's inner block", title_justify="left"
    )
    for title in ("routine", "grid", "pblas", "ScaLAPACK", f"ScaLAPACK, {TUNED}", "largest difference"):
        table.add_column(title, justify="left" if title in ("routine", "grid") else "right")
    for shape in [(p, COMM.size // p) for p in range(1, COMM.size + 1) if COMM.size % p == 0]:
        ours = Timed(scalapack, *shape, N, NB)
        theirs = Timed(peer, *shape, N, NB, ours)
        for name in ("pdgemm", "pdtran", "pdgemr2d"):
            best = [float("inf")] * 3
            for _ in range(ROUNDS):
                for i, (timed, block) in enumerate(((ours, 32), (theirs, 32), (theirs, TUNED))):
                    peer.block = block
                    best[i] = min(best[i], timed.run(name))
            difference = np.abs(ours.result(name) - theirs.result(name)).max(initial=0.0)
            cells = (f"{1e3 * seconds:.1f}" for seconds in best)
            table.add_row(name, f"{shape[0]} x {shape[1]}", *cells, f"{COMM.allreduce(float(difference), MPI.MAX):.1e}")
        for timed in (ours, theirs):
            timed.library.gridexit(timed.ictxt)
    CONSOLE.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20, help="random problems of each routine, type and grid")
    parser.add_argument("--routines", default="", help="names without p and type, or suites; all by default")
    parser.add_argument("--folder", type=Path, default=Path("build/peer"))
    options = parser.parse_args()
    peer = Library(options.folder)
    chosen = options.routines.split(",") if options.routines else []
    wrong, failures = results(peer, options.count, chosen)
    more, texts = 0, list[str]()
    if not chosen:
        table, more, texts = factors.results(peer)
        CONSOLE.print(table)
    for text in [*failures[:_SHOWN], *texts[:_SHOWN]]:
        CONSOLE.print(text, soft_wrap=True)
    if not chosen:
        times(peer)
        CONSOLE.print(factors.times(peer))
    return 1 if wrong + more else 0


_SHOWN = 5

if __name__ == "__main__":
    sys.exit(main())
