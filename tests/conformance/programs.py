"""All programs of factorizations by their names: the table, the random cases and the run of each."""

from __future__ import annotations

from typing import Any

from pblas import PblasError, scalapack
from pblas.layouts.grid import Grid
from tests.conformance import eigenvalues, factors, orthogonal
from tests.conformance.factors import Case, FactorOutcome

PROGRAMS = factors.PROGRAMS + orthogonal.PROGRAMS + eigenvalues.PROGRAMS


def _module(program: str) -> Any:
    return next(module for module in (factors, orthogonal, eigenvalues) if program in module.PROGRAMS)


def table(program: str, letter: str, *, every: bool = True) -> list[Case]:
    """The sizes and blocks of a program's table: all values, or the first ones, which upstream runs."""
    cases: list[Case] = _module(program).table(program, letter, every=every)
    return cases


def holes(program: str, letter: str, count: int, grid: Grid) -> list[Case]:
    """Random cases that ScaLAPACK's restrictions forbid."""
    cases: list[Case] = _module(program).holes(program, letter, count, grid)
    return cases


def run(
    case: Case, ictxt: tuple[int, int], grid: Grid, comm: Any, libraries: tuple[Any, Any] = (scalapack,) * 2
) -> FactorOutcome:
    """**Collective** over the grid. The outcome of a case; see `factors.Run`."""
    try:
        outcome: FactorOutcome = _module(case.program).Run(case, ictxt, grid, comm, libraries).outcome()
    except PblasError as caught:  # on all ranks
        return FactorOutcome(f"{type(caught).__name__}: {caught}")
    return outcome
