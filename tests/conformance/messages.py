"""Problems of BLACS's sums, extremes and broadcasts: every scope and destination, with random elements."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from pblas import scalapack
from pblas.layouts.grid import Grid
from tests.common.gauge import Array
from tests.conformance.problems import DTYPES, Outcome

LETTERS: dict[str, tuple[str, ...]] = dict.fromkeys(("gsum2d", "gamx2d", "gamn2d", "gebs2d"), tuple("isdcz"))
"""Letters of the types of each routine; gebs2d stands for itself and gebr2d."""
_GAP = 2  # rows and columns of guard values after the elements


@dataclass(frozen=True, slots=True)
class Case:
    """One call of a routine on all processes of a grid.

    Args:
        routine: a key of `LETTERS`.
        letter: letter of the type.
        m: M.
        n: N.
        scope: SCOPE.
        place: coordinates of the destination or of the source; (-1, -1) for all.
        seed: of the elements.
    """

    routine: str
    letter: str
    m: int
    n: int
    scope: str
    place: tuple[int, int]
    seed: int

    @property
    def routine_name(self) -> str:
        """The name of the call."""
        return f"{self.letter}{self.routine}"

    def elements(self, row: int, column: int) -> Array:
        """The elements of a process; no two of them, on all processes, have one size."""
        dtype = np.dtype("int32" if self.letter == "i" else DTYPES[self.letter])
        rng = np.random.default_rng((self.seed, row, column))
        shape = (self.m + _GAP, self.n + _GAP)
        values = (rng.integers(1, 10**6, shape) * 64 + 8 * row + column) * rng.choice([-1, 1], shape)
        scaled: Array = values if self.letter == "i" else values / 2.0**26
        return np.asfortranarray((scaled + 1j * scaled / 2 if dtype.kind == "c" else scaled).astype(dtype))


def run(case: Case, ictxt: int, grid: Grid, rank: int, library: Any = scalapack) -> Outcome:
    """**Collective** over the grid. Make the call of a case and check the result."""
    mine = grid.coordinates(rank)
    members = [(p, q) for p in range(grid.nprow) for q in range(grid.npcol)]
    members = [x for x in members if case.scope == "A" or x["RC".index(case.scope)] == mine["RC".index(case.scope)]]
    # Within a row the row of a place is ignored, within a column its column.
    chosen = {"A": case.place, "R": (mine[0], case.place[1]), "C": (case.place[0], mine[1])}[case.scope]
    parts = [case.elements(*member)[: case.m, : case.n] for member in members]
    a, (ra, ca) = case.elements(*mine), (np.full((case.m + 1, case.n), -7, np.int32, order="F") for _ in range(2))
    expected, at = a.copy(), np.zeros((case.m, case.n), int)
    receives = -1 in case.place or chosen == mine
    bound: Any = 0.0
    if case.routine == "gebs2d":
        expected[: case.m, : case.n] = case.elements(*chosen)[: case.m, : case.n]
    elif receives and case.routine == "gsum2d":
        expected[: case.m, : case.n] = sum(parts[1:], parts[0])
        bound = len(parts) * np.finfo(a.dtype).eps * sum(map(np.abs, parts)) if a.dtype.kind != "i" else 0
    elif receives:
        stacked = np.stack(parts)
        sizes = np.abs(stacked.real) + np.abs(stacked.imag)
        at = sizes.argmax(0) if case.routine == "gamx2d" else sizes.argmin(0)
        expected[: case.m, : case.n] = np.take_along_axis(stacked, at[None], 0)[0]
    matrix = (ictxt, case.scope, " ", case.m, case.n, a, len(a))
    start = time.perf_counter()
    if case.routine == "gebs2d":
        name = case.routine_name if mine == chosen else f"{case.letter}gebr2d"
        getattr(library, name)(*matrix, *(() if mine == chosen else case.place))
    elif case.routine == "gsum2d":
        getattr(library, case.routine_name)(*matrix, *case.place)
    else:
        getattr(library, case.routine_name)(*matrix, ra, ca, len(ra), *case.place)
    seconds = time.perf_counter() - start
    error = np.abs(a[: case.m, : case.n] - expected[: case.m, : case.n])
    if not (error <= bound).all():
        return Outcome("A is wrong", np.inf, seconds)
    a[: case.m, : case.n] = expected[: case.m, : case.n]
    if receives or case.routine == "gebs2d":
        if a.tobytes() != expected.tobytes():
            return Outcome("memory around A has changed", np.inf, seconds)
        if case.routine in ("gamx2d", "gamn2d"):
            coordinates = np.array(members)[at]
            if not (np.array_equal(ra[:-1], coordinates[..., 0]) and np.array_equal(ca[:-1], coordinates[..., 1])):
                return Outcome("the coordinates are wrong", np.inf, seconds)
    return Outcome("", 0.0, seconds)


def table(routine: str, letter: str) -> list[Case]:
    """Every scope, for all processes, and for one that is in every grid."""
    places = [(0, 0)] if routine == "gebs2d" else [(-1, -1), (0, 0)]
    return [Case(routine, letter, 3, 2, scope, place, 1) for scope in "ARC" for place in places]


def holes(routine: str, letter: str, count: int, grid: Grid) -> list[Case]:
    """Random sizes and destinations."""
    rng = random.Random(f"{routine} {letter} {grid.nprow} {grid.npcol}")
    cases = []
    for seed in range(count):
        place = rng.randrange(grid.nprow), rng.randrange(grid.npcol)
        m, n = (rng.choice([0, 1, 4, 33]) for _ in range(2))
        cases.append(Case(routine, letter, m, n, rng.choice("ARC"), place, seed))
    return cases
