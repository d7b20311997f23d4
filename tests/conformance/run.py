"""Conformance to the PBLAS testing programs: all columns, all grids, all options; ends with their summary table.

    make conformance
    mpiexec -n 6 python -m mpi4py -m tests.conformance.run [--routines gemm,vectors,lu] [--letters sdcz] [--holes 40]

Every problem of the tables runs on every grid that has enough processes, and so do random problems of kinds that the
tables leave out. A problem fails if its scaled residual is above 16, or if it changes memory that it must not touch.
The programs of factorizations have thresholds of their own.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI
from rich.console import Console
from rich.table import Table

from pblas import scalapack
from pblas.layouts.grid import Grid
from tests.conformance import errors, problems, programs, redist
from tests.conformance.factors import narrow_panels
from tests.conformance.suites import SUITES
from tests.conformance.tables import ERROR_EXITS, FACTORS, GRIDS, error_exits, letters_of

COMM = MPI.COMM_WORLD
_LATE = 900.0  # seconds: ranks outside a grid wait this long for the others to come to the next grid
REDISTRIBUTIONS = ("gemr2d", "trmr2d")


def all_grids(nprocs: int) -> list[tuple[int, int]]:
    """The grids of ScaLAPACK's tests, and all others of up to `nprocs` processes."""
    others = [(p, q) for p in range(1, nprocs + 1) for q in range(1, nprocs // p + 1)]
    return list(dict.fromkeys([*GRIDS, *others]))


def main() -> int:
    names, kinds = ", ".join(suite.name for suite in SUITES), ", ".join(programs.PROGRAMS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routines", default="", help=f"names without p and type, {names}, {kinds}; all by default")
    parser.add_argument("--letters", default="isdcz", help="types; the last letter of pdznrm2 and such counts")
    parser.add_argument("--holes", type=int, default=40, help="random problems of each routine, type and grid")
    options = parser.parse_args()
    options.routines = options.routines.split(",") if options.routines else []
    start, total = time.monotonic(), dict[str, Counter[str]]()
    failures: list[str] = []
    for nprow, npcol in all_grids(COMM.size):
        fits = nprow * npcol <= COMM.size
        ictxt = scalapack.gridinit(COMM, "R", nprow, npcol, timeout=_LATE) if fits else -1
        for suite in SUITES:
            for routine, letter in suite.types(options.routines, options.letters):
                cases = suite.cases(routine, letter, options.holes, Grid(nprow, npcol))
                texts = [x.text for x in suite.outcomes(cases, ictxt)] if ictxt >= 0 else [""] * len(cases)
                count(cases, COMM.allgather(texts), fits, total, failures, (nprow, npcol))
        if ictxt >= 0:
            scalapack.gridexit(ictxt)
        if fits and COMM.rank == 0:
            print(f"{time.monotonic() - start:.0f} s: {nprow} x {npcol} is done", file=sys.stderr, flush=True)
    run_factors(options, total, failures)
    run_redistributions(options, total, failures)
    run_error_exits(options, total, failures)
    report(total, failures, time.monotonic() - start)
    return 1 if failures else 0


def is_chosen(options: argparse.Namespace, name: str) -> bool:
    """Whether the command line selects a routine or program."""
    return not options.routines or name in options.routines


def matrix_letters(options: argparse.Namespace) -> list[str]:
    """The selected types of matrices: no integers."""
    return [letter for letter in options.letters if letter != "i"]


def count(
    cases: Sequence[Any],
    texts: list[list[str]],
    fits: bool,
    total: dict[str, Counter[str]],
    failures: list[str],
    shape: tuple[int, int],
) -> None:
    """Add the outcomes of some problems to `total` and `failures`; all ranks have the texts of all ranks."""
    for problem, *rank_texts in zip(cases, *texts, strict=True):
        wrong = [f"rank {rank}: {text}" for rank, text in enumerate(rank_texts) if text]
        outcome = "skipped" if not fits else "failed" if wrong else "passed"
        total.setdefault(problem.routine_name, Counter())[outcome] += 1
        if wrong:
            failures.append(f"{problem.routine_name} on {shape[0]} x {shape[1]}: {wrong[0]}\n    {problem}")


def run_error_exits(options: argparse.Namespace, total: dict[str, Counter[str]], failures: list[str]) -> None:
    """**Collective.** Every error exit of the routines of the suites that have some."""
    suites = [suite for suite in SUITES if suite.has_error_exits]
    types = [pair for suite in suites for pair in suite.types(options.routines, options.letters)]
    _run_error_exits(types, total, failures)


def _run_error_exits(types: list[tuple[str, str]], total: dict[str, Counter[str]], failures: list[str]) -> None:
    """**Collective.** Every error exit of some routines, on a grid of one row."""
    ictxt = scalapack.gridinit(COMM, "R", 1, COMM.size)
    for routine, letter in types:
        routine_name = f"p{letter}{routine}"
        if routine == "tran":
            routine_name = problems.Problem(routine, letter, 0, 0, 0, {}).routine_name
        arguments = errors.right(routine, letter, ictxt)
        codes = error_exits(routine)
        assert len(codes) == ERROR_EXITS[routine]
        for position, entry, value, expected in codes:
            info = errors.info(routine_name, errors.broken(arguments, position, entry, value, ictxt))
            infos = COMM.allgather(info)
            wrong = any(info != expected for info in infos)
            total.setdefault(f"{routine_name}, error exits", Counter())["failed" if wrong else "passed"] += 1
            if wrong:
                failures.append(f"{routine_name}: INFO is {infos}, expected {expected}")
    scalapack.gridexit(ictxt)


def run_factors(options: argparse.Namespace, total: dict[str, Counter[str]], failures: list[str]) -> None:
    """**Collective.** The programs of factorizations and inverses, on every grid; then their error exits.

    On the grid of all processes that is nearest to a square all values of the tables run, on the others upstream's.
    """
    squarest = max((grid for grid in all_grids(COMM.size) if grid[0] * grid[1] == COMM.size), key=min)
    letters = matrix_letters(options)
    chosen = [(name, letter) for name in programs.PROGRAMS if is_chosen(options, name) for letter in letters]
    for nprow, npcol in all_grids(COMM.size) if chosen else []:
        fits = nprow * npcol <= COMM.size
        ictxt = scalapack.gridinit(COMM, "R", nprow, npcol, timeout=_LATE) if fits else -1
        grid = Grid(nprow, npcol, "R")
        for program, letter in chosen:
            cases = programs.table(program, letter, every=(nprow, npcol) == squarest)
            cases += programs.holes(program, letter, options.holes // 4, grid)
            texts = [""] * len(cases)
            if ictxt >= 0:
                comm = scalapack.comm(ictxt, "A")
                for first, grids in enumerate((False, True)):  # in block columns, and on grids
                    with narrow_panels(grids=grids):
                        texts[first::2] = [
                            programs.run(case, (ictxt, ictxt), grid, comm).text for case in cases[first::2]
                        ]
            count(cases, COMM.allgather(texts), fits, total, failures, (nprow, npcol))
        if ictxt >= 0:
            scalapack.gridexit(ictxt)
    if chosen:
        types = [(routine, x) for routine in FACTORS for x in letters if x in letters_of(routine)]
        _run_error_exits(types, total, failures)


def run_redistributions(options: argparse.Namespace, total: dict[str, Counter[str]], failures: list[str]) -> None:
    """**Collective.** Every row of the redistribution tables."""
    whole = scalapack.gridinit(COMM, "R", 1, COMM.size, timeout=_LATE)
    for routine in [x for x in REDISTRIBUTIONS if is_chosen(options, x)]:
        for letter in matrix_letters(options):
            for row in redist.rows(routine):
                fits = max(p * q for p, q in (row[3], row[5])) <= COMM.size
                texts = COMM.allgather(redist.run(row, letter, whole, COMM)) if fits else []
                wrong = [f"rank {rank}: {text}" for rank, text in enumerate(texts) if text]
                outcome = "skipped" if not fits else "failed" if wrong else "passed"
                total.setdefault(f"p{letter}{routine}", Counter())[outcome] += 1
                if wrong:
                    failures.append(f"p{letter}{routine}: {wrong[0]}\n    {row}")
    scalapack.gridexit(whole)


def report(total: dict[str, Counter[str]], failures: list[str], seconds: float) -> None:
    """The summary table of the testing programs, on rank 0."""
    if COMM.rank:
        return
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 100)
    for text in failures[:_SHOWN]:
        console.print(text, soft_wrap=True)
    table = Table(title=f"PBLAS conformance, {COMM.size} processes, {seconds:.0f} s", title_justify="left")
    table.add_column("SUBROUTINE")
    for name in ("TOTAL TESTS", "PASSED", "FAILED", "SKIPPED"):
        table.add_column(name, justify="right")
    every: Counter[str] = Counter()
    for counts in total.values():
        every.update(counts)
    for routine_name, counts in [*sorted(total.items()), ("all", every)]:
        table.add_row(
            routine_name, *(str(n) for n in (counts.total(), counts["passed"], counts["failed"], counts["skipped"]))
        )
    console.print(table)


_SHOWN = 10  # failures that are printed

if __name__ == "__main__":
    sys.exit(main())
