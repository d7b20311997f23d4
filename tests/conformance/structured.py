"""Problems of syrk, symm, trmm and their relatives: what must not be read, the arguments, the error of the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.common.gauge import Array, applied, gauge

if TYPE_CHECKING:
    from tests.conformance.problems import Problem

UPDATES = ("syrk", "herk", "syr2k", "her2k")
ROUTINES = (*UPDATES, "symm", "hemm", "trmm")


def names(routine: str) -> tuple[str, ...]:
    """Names of the operands, in order; the routine writes the last one."""
    return {"syrk": ("A", "C"), "herk": ("A", "C"), "trmm": ("A", "B")}.get(routine, ("A", "B", "C"))


def extents(problem: Problem, name: str) -> tuple[int, int]:
    """Rows and columns of a submatrix as it is stored."""
    if problem.routine in UPDATES:
        if name == "C":
            return problem.n, problem.n
        return (problem.n, problem.k) if problem.trans[0] == "N" else (problem.k, problem.n)
    order = problem.m if problem.side == "L" else problem.n
    return (order, order) if name == "A" else (problem.m, problem.n)


def letters(routine: str, letter: str) -> str:
    """The letters that TRANS may be."""
    if routine in ("symm", "hemm"):
        return "N"
    if letter in "sd" or routine == "trmm":
        return "NTC"
    return "NC" if routine in ("herk", "her2k") else "NT"


def is_hermitian(problem: Problem) -> bool:
    """Whether a matrix of the problem is Hermitian."""
    return problem.routine in ("herk", "her2k", "hemm")


def poison(problem: Problem, name: str, sub: Array) -> None:
    """Set elements that must not be read to NaN: those that a scalar excludes, and those of the other triangle."""
    update, nan = problem.routine in UPDATES, complex(np.nan, np.nan) if sub.dtype.kind == "c" else np.nan
    written = name == names(problem.routine)[-1]
    scaled = problem.beta == 0 if name == "C" else problem.alpha == 0 or (update and not problem.k)
    if scaled:
        sub[...] = nan
    if (update and name == "C") or (not update and name == "A"):
        sub[~inside(problem, *map(np.arange, sub.shape))] = nan
        if is_hermitian(problem):
            np.einsum("ii->i", sub).imag = np.nan
        if problem.diag == "U" and not written:
            np.einsum("ii->i", sub)[...] = nan


def inside(problem: Problem, i: Array, j: Array) -> Array:
    """Which elements of some rows and columns belong to the triangle."""
    return j[None, :] >= i[:, None] if problem.uplo == "U" else j[None, :] <= i[:, None]


def arguments(problem: Problem, operands: dict[str, tuple[Any, ...]]) -> tuple[Any, ...]:
    """The arguments of the call."""
    p, a, c = problem, operands["A"], operands.get("C", ())
    if p.routine in UPDATES:
        return (p.uplo, p.trans[0], p.n, p.k, p.alpha, *a, *operands.get("B", ()), p.beta, *c)
    if p.routine == "trmm":
        return (p.side, p.uplo, p.trans[0], p.diag, p.m, p.n, p.alpha, *a, *operands["B"])
    return (p.side, p.uplo, p.m, p.n, p.alpha, *a, *operands["B"], p.beta, *c)


def error(problem: Problem, subs: dict[str, Array], i: Array, j: Array, result: Array) -> tuple[str, float]:
    """A text if the result is wrong on this rank, and its error in units of eps."""
    left, right = _factors(problem, subs)
    old = subs["C"][np.ix_(i, j)] if "C" in subs else np.zeros((len(i), len(j)), result.dtype)
    alpha = 1.0
    if problem.alpha == 0 or (problem.routine in UPDATES and problem.k == 0):  # nothing is read
        left, right, alpha = np.zeros((left.shape[0], 0)), np.zeros((0, right.shape[1])), 0.0
    left, right, beta = left[i], right[:, j], problem.beta if "C" in subs else 0.0
    if problem.routine in UPDATES:
        kept = inside(problem, i, j)
        if result[~kept].tobytes() != old[~kept].tobytes():
            return "the other triangle has changed", np.inf
        on = i[:, None] == j[None, :]
        if is_hermitian(problem):
            if (result.imag[on] != 0).any():
                return "the diagonal is not real", np.inf
            old = old.copy()
            old.imag[on] = 0
        wide: Any = np.clongdouble if result.dtype.kind == "c" else np.longdouble
        old = np.where(kept, old, 0).astype(result.dtype)
        exact = (left.astype(wide) @ right.astype(wide)).astype(result.dtype) if alpha else np.zeros_like(result)
        if beta:
            exact = exact + np.asarray(beta).astype(result.dtype) * old
        result = np.where(kept, result, exact.astype(result.dtype))
    if np.isnan(result).any():
        return "NaN in the result", np.inf
    # Upstream's eps is half of NumPy's.
    units = 2 * gauge(result, left, right, old, alpha=alpha, beta=beta)
    return "" if units <= 16 else f"gauge {units:.1f}", units


def _factors(problem: Problem, subs: dict[str, Array]) -> tuple[Array, Array]:
    """Two matrices whose product is that of the problem, alpha included."""
    a, alpha, hermitian = subs["A"], problem.alpha, is_hermitian(problem)
    wide: Any = np.clongdouble if a.dtype.kind == "c" else np.longdouble

    def turned(x: Array) -> Array:
        flipped: Array = x.conj().T if hermitian else x.T
        return flipped

    if problem.routine in UPDATES:
        first = applied(problem.trans[0], a)
        if "B" not in subs:
            return wide(alpha) * first.astype(wide), turned(first)
        second = applied(problem.trans[0], subs["B"])
        other = np.conj(alpha) if hermitian else alpha
        left = np.hstack([wide(alpha) * first.astype(wide), wide(other) * second.astype(wide)])
        return left, np.vstack([turned(second), turned(first)])
    triangle = inside(problem, *map(np.arange, a.shape))
    full = np.where(triangle, a, 0).astype(a.dtype)
    if problem.routine == "trmm":
        if problem.diag == "U":
            np.fill_diagonal(full, 1)
        full = applied(problem.trans[0], full)
    else:
        if hermitian:
            np.einsum("ii->i", full).imag = 0
        full = np.where(triangle, full, turned(full))
    scaled, b = wide(alpha) * full.astype(wide), subs["B"]
    return (scaled, b) if problem.side == "L" else (b.astype(wide), scaled)
