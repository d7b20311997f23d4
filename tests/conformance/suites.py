"""All problems by kinds, each with its routines, types, table, random problems and the function that runs one of them.

`tests.conformance.run` runs them through pblas, `tests.peer.run` through pblas and through ScaLAPACK.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pblas import PblasError, scalapack
from pblas.layouts.grid import Grid
from tests.conformance import auxiliary, messages, problems, structured, vectors

LEVEL3 = ("gemm", "geadd", "tradd", "tran", "trsm", *structured.ROUTINES)


def _by_columns(problem: Any) -> Any:
    """The same problem with local arrays stored by columns, the only order that ScaLAPACK supports."""
    matrices = {name: replace(matrix, order="F") for name, matrix in problem.matrices.items()}
    return replace(problem, matrices=matrices)


@dataclass(frozen=True, slots=True)
class Suite:
    """Problems of one kind.

    Args:
        name: for the command line.
        letters: letters of the types of each routine.
        table: table(routine, letter) gives all columns of the tables.
        holes: holes(routine, letter, count, grid) gives random problems that the tables leave out.
        run: run(problem, ictxt, grid, rank, library) makes a call and checks the result; collective over the grid.
        share: share of the random problems that are asked for.
        as_scalapack: a problem in the form that ScaLAPACK takes.
        has_error_exits: whether ScaLAPACK tests the error numbers of these routines.
    """

    name: str
    letters: Mapping[str, Sequence[str]]
    table: Callable[[str, str], list[Any]]
    holes: Callable[[str, str, int, Grid], list[Any]]
    run: Callable[..., problems.Outcome]
    share: float = 1.0
    as_scalapack: Callable[[Any], Any] = _by_columns
    has_error_exits: bool = False

    def types(self, routines: Sequence[str], letters: str) -> Iterator[tuple[str, str]]:
        """The routines with their letters, limited to some names and to the precisions of some letters."""
        for routine, every in self.letters.items():
            if not routines or routine in routines or self.name in routines:
                yield from ((routine, letter) for letter in every if letter[-1] in letters)

    def cases(self, routine: str, letter: str, count: int, grid: Grid) -> list[Any]:
        """The problems of a routine: the table, and a share of `count` random ones."""
        return self.table(routine, letter) + self.holes(routine, letter, round(count * self.share), grid)

    def outcomes(self, cases: Sequence[Any], ictxt: int, library: Any = scalapack) -> list[problems.Outcome]:
        """**Collective** over the grid. The outcome of each problem on this rank."""
        nprow, npcol, myrow, mycol = library.gridinfo(ictxt)
        grid = Grid(nprow, npcol, "R")
        outcomes = []
        for case in cases:
            try:
                outcomes.append(self.run(case, ictxt, grid, grid.rank(myrow, mycol), library))
            except (PblasError, AssertionError) as caught:
                outcomes.append(problems.Outcome(f"{type(caught).__name__}: {caught}"))
        return outcomes


_COMPLEX = ("herk", "her2k", "hemm")
SUITES = (
    Suite(
        "level3",
        {routine: tuple("cz" if routine in _COMPLEX else "sdcz") for routine in LEVEL3},
        *(problems.table, problems.holes, problems.run),
        has_error_exits=True,
    ),
    Suite(
        *("vectors", vectors.LETTERS, vectors.table, vectors.holes, vectors.run),
        share=0.25,
        has_error_exits=True,
    ),
    Suite(
        *("auxiliary", auxiliary.LETTERS, auxiliary.table, auxiliary.holes, auxiliary.run),
        share=0.25,
        as_scalapack=auxiliary.as_scalapack,
    ),
    Suite(
        *("messages", messages.LETTERS, messages.table, messages.holes, messages.run),
        share=0.1,
        as_scalapack=lambda case: case,
    ),
)
