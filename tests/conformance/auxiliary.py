"""Problems of the auxiliary routines: norms and assignments of submatrices, with NaN in elements that are not read.

ScaLAPACK has no tables for them: `table` has all options on a few shapes, `holes` random layouts.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from pblas import scalapack
from pblas.layouts.grid import Grid
from tests.common.gauge import Array, entries
from tests.conformance.problems import DTYPES, SEEDS, Matrix, Operand, Outcome, anywhere
from tests.conformance.tables import SCALARS

NORMS = ("lange", "lansy", "lanhe", "lantr")
LETTERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("lange", "lansy", "lantr", "laset", "lacpy"), tuple("sdcz")),
    "lanhe": ("c", "z"),
}
"""Letters of the types of each routine."""
_SHAPES = ((7, 7), (5, 9), (9, 4), (0, 3))
_WORK = np.zeros(9999)


@dataclass(frozen=True, slots=True)
class Case:
    """One call of a routine.

    Args:
        routine: a key of `LETTERS`.
        letter: letter of the type.
        m: M, or N of a symmetric matrix.
        n: N.
        matrices: memory layouts of A, and of B for lacpy.
        norm: NORM.
        uplo: UPLO.
        diag: DIAG.
    """

    routine: str
    letter: str
    m: int
    n: int
    matrices: dict[str, Matrix]
    norm: str = "M"
    uplo: str = "U"
    diag: str = "N"

    @property
    def routine_name(self) -> str:
        """The name of the call."""
        return f"p{self.letter}{self.routine}"

    def triangle(self, unit: bool = False) -> Array:
        """The elements that the routine reads or writes; without the diagonal if `unit`."""
        ones = np.ones((self.m, self.n), bool)
        if self.routine == "lange" or self.uplo not in ("U", "L"):
            return ones
        return np.triu(ones, int(unit)) if self.uplo == "U" else np.tril(ones, -int(unit))


def run(case: Case, ictxt: int, grid: Grid, rank: int, library: Any = scalapack) -> Outcome:
    """**Collective** over the grid. Make the call of a case and check all memory that it may have changed."""
    wholes = {name: _whole(case, name) for name in case.matrices}
    operands = {name: Operand(case.matrices[name], wholes[name], grid, rank) for name in case.matrices}
    arguments = _arguments(case, {name: x.arguments(ictxt) for name, x in operands.items()})
    start = time.perf_counter()
    returned = getattr(library, case.routine_name)(*arguments)
    seconds = time.perf_counter() - start
    written = "" if case.routine in NORMS else list(operands)[-1]
    for name, operand in operands.items():
        if name == written and not operand.is_untouched_outside((case.m, case.n)):
            return Outcome(f"memory around sub({name}) has changed")
        if name != written and not operand.is_untouched():
            return Outcome(f"{name} or memory around it has changed")
    subs = {name: _sub(case, name, whole) for name, whole in wholes.items()}
    if not written:
        return Outcome(*_norm_error(case, subs["A"], returned), seconds)
    i, j, place = operands[written].inside((case.m, case.n))
    inside, expected = case.triangle(), subs["A"]
    if case.routine == "laset":
        alpha, beta = SCALARS[case.letter]
        expected = np.where(np.eye(case.m, case.n) == 1, beta, alpha)
    expected = np.where(inside, expected, subs[written])[np.ix_(i, j)]
    is_right = np.array_equal(operands[written].part()[place], expected.astype(DTYPES[case.letter]), equal_nan=True)
    return Outcome("" if is_right else f"sub({written}) is wrong", 0.0, seconds)


def _whole(case: Case, name: str) -> Array:
    """The elements of a matrix, with NaN where they must not be read."""
    matrix, (alpha, _) = case.matrices[name], SCALARS[case.letter]
    dtype = np.dtype(DTYPES[case.letter])
    whole = entries((matrix.m, matrix.n), dtype, SEEDS[name]) * dtype.type(alpha)
    sub, nan = _sub(case, name, whole), complex(np.nan, np.nan) if dtype.kind == "c" else np.nan
    is_output = case.routine not in NORMS and name == list(case.matrices)[-1]
    unread = case.triangle() if is_output else ~case.triangle(unit=case.routine == "lantr" and case.diag == "U")
    sub[unread] = nan
    if case.routine == "lanhe":
        np.einsum("ii->i", sub).imag = np.nan
    return whole


def _sub(case: Case, name: str, whole: Array) -> Array:
    x = case.matrices[name]
    return whole[x.i - 1 : x.i - 1 + case.m, x.j - 1 : x.j - 1 + case.n]


def _arguments(case: Case, operands: dict[str, tuple[Any, ...]]) -> tuple[Any, ...]:
    shape: tuple[Any, ...] = (case.n,) if case.routine in ("lansy", "lanhe") else (case.m, case.n)
    if case.routine in NORMS:
        options = {"lange": (), "lantr": (case.uplo, case.diag)}.get(case.routine, (case.uplo,))
        return (case.norm, *options, *shape, *operands["A"], _WORK.astype(DTYPES[case.letter]))
    scalars = SCALARS[case.letter] if case.routine == "laset" else ()
    return (case.uplo, *shape, *scalars, *operands["A"], *operands.get("B", ()))


def _norm_error(case: Case, sub: Array, returned: Any) -> tuple[str, float]:
    """A text if a norm is wrong, and its error in units of eps."""
    wide: Any = np.clongdouble if sub.dtype.kind == "c" else np.longdouble
    x = np.where(case.triangle(), sub, 0).astype(wide)
    if case.routine == "lantr" and case.diag == "U":
        x[np.diag_indices(min(x.shape))] = 1
    if case.routine in ("lansy", "lanhe"):
        diagonal = x.diagonal().real if case.routine == "lanhe" else x.diagonal()
        strict = np.where(case.triangle(unit=True), x, 0)
        x = strict + strict.T + np.diag(diagonal)  # with absolute values as those of the Hermitian matrix
    sizes, (m, n) = np.abs(x), x.shape
    if case.norm == "M":
        exact, terms = sizes.max(initial=0.0), 1
    elif case.norm in ("1", "O"):
        exact, terms = sizes.sum(0).max(initial=0.0), m
    elif case.norm == "I":
        exact, terms = sizes.sum(1).max(initial=0.0), n
    else:
        exact, terms = np.sqrt(np.square(sizes).sum()), m * n
    unit = float(np.finfo(sub.dtype).eps / 2 * exact)
    error = float(abs(returned - exact))
    if not error <= 2 * (terms + 4) * unit:
        return f"the norm is {returned}, expected {exact}", np.inf
    return "", error / unit if unit else 0.0


def _options(routine: str, norms: str = "M1OIFE") -> list[dict[str, str]]:
    """All options of a routine with some norms, as arguments of `Case`."""
    if routine not in NORMS:
        return [{"uplo": uplo} for uplo in "ULA"]
    uplos, diags = "U" if routine == "lange" else "UL", "NU" if routine == "lantr" else "N"
    return [{"norm": n, "uplo": u, "diag": d} for n, u, d in product(norms, uplos, diags)]


def _shape(routine: str, m: int, n: int) -> tuple[int, int]:
    return (n, n) if routine in ("lansy", "lanhe") else (m, n)


def _names(routine: str) -> str:
    return "AB" if routine == "lacpy" else "A"


def table(routine: str, letter: str) -> list[Case]:
    """All options of a routine on a few shapes, in square blocks, as ScaLAPACK needs them."""
    shapes = list(dict.fromkeys(_shape(routine, m, n) for m, n in _SHAPES))
    matrices = dict.fromkeys(_names(routine), Matrix(12, 13, 2, 2, 3, 3))
    return [
        Case(routine, letter, m, n, matrices, **options) for m, n in shapes for options in _options(routine, "M1IF")
    ]


def holes(routine: str, letter: str, count: int, grid: Grid) -> list[Case]:
    """Random layouts; see `problems.holes`."""
    rng, cases = random.Random(f"{routine} {letter} {grid.nprow} {grid.npcol}"), []
    for _ in range(count):
        m, n = _shape(routine, *(rng.choice([0, 1, 2, 3, 7, 8, 13]) for _ in range(2)))
        matrices = {name: anywhere(rng, (m, n), grid) for name in _names(routine)}
        cases.append(Case(routine, letter, m, n, matrices, **rng.choice(_options(routine))))
    return cases


def as_scalapack(case: Case) -> Case:
    """A case in a layout that ScaLAPACK takes: square blocks, IA = JA, and for lacpy the same layout for A and B."""
    a = case.matrices["A"]
    m, n = max(case.m + a.i - 1, a.m), max(case.n + a.i - 1, a.n)
    square = replace(a, m=m, n=n, nb=a.mb, j=a.i, rsrc=max(a.rsrc, 0), csrc=max(a.csrc, 0), imb=None, inb=None)
    return replace(case, matrices=dict.fromkeys(case.matrices, replace(square, order="F")))
