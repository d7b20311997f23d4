"""Estimates of condition numbers from a few solves with a factored or triangular matrix."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.core.options import Trans
from pblas.triangular.trsm import first_zero, trsv

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.factor.substitution_plan import Sweep
    from pblas.matrices.matrix import DistMatrix

Solve = Callable[[Any, Trans], Any]
"""solve(b, trans) is op(A)^-1 b for an array b; equal on all ranks."""
_MOST_STEPS = 5  # as in LAPACK
_ADJOINT: dict[Trans, Trans] = {"N": "C", "C": "N"}


def reciprocal_condition(solve: Solve, n: int, dtype: np.dtype[Any], norm: float, p: float = 1) -> float:
    """**Collective.** An estimate of 1 / (norm(A) norm(A^-1)), by about five solves with A and A^H.

    Source: LAPACK xGECON, xLACN2; Higham, FORTRAN codes for estimating the one-norm, 1988.

    >>> a = np.diag([1.0, 4.0])
    >>> reciprocal_condition(lambda b, trans: np.linalg.solve(a, b), 2, a.dtype, 4.0)
    0.25
    """
    if not n:
        return 1.0
    if norm == 0:
        return 0.0
    with np.errstate(all="ignore"):
        # The inf-norm of A^-1 is the 1-norm of its adjoint
        chosen: Solve = (lambda b, trans: solve(b, _ADJOINT[trans])) if p == inf else solve
        condition = norm * _inverse_norm(chosen, n, dtype)
        return 1 / condition if isfinite(condition) and condition > 0 else 0.0


def condition_of_factor(a: DistMatrix, sweeps: tuple[Sweep, ...], norm: float, p: float = 1) -> float:
    """**Collective.** `reciprocal_condition` of a product of triangles of one matrix, which has the factor of A."""

    def solve(b: Array, trans: Trans) -> Array:
        for sweep in sweeps if trans == "N" else reversed(sweeps):
            op = sweep.trans if trans == "N" else _ADJOINT[sweep.trans]
            b = trsv(a, b, uplo=sweep.uplo, trans=op, diag="U" if sweep.unit else "N")
        return b

    is_singular = not all(sweep.unit for sweep in sweeps) and first_zero(a) > 0
    return reciprocal_condition(solve, a.shape[0], a.dtype, 0 if is_singular else norm, p)


def _inverse_norm(solve: Solve, n: int, dtype: np.dtype[Any]) -> float:
    """A lower bound, which is seldom far off, of the 1-norm of A^-1, n >= 1."""
    y = solve(np.full(n, 1 / n, dtype), "N")
    estimate, last = float(np.abs(y).sum()), -1
    for _ in range(_MOST_STEPS if n > 1 else 0):
        size = np.abs(y)
        z = np.abs(solve(np.where(size > 0, y / size, 1).astype(dtype), "C"))
        j = int(z.argmax())
        if last >= 0 and not z[j] > z[last]:
            break
        unit = np.zeros(n, dtype)
        unit[j] = 1
        y = solve(unit, "N")
        larger = float(np.abs(y).sum())
        if not larger > estimate:
            break
        estimate, last = larger, j
    i = np.arange(n)
    slowly_growing = ((-1.0) ** i * (1 + i / max(n - 1, 1))).astype(dtype)
    return max(estimate, float(2 * np.abs(solve(slowly_growing, "N")).sum() / (3 * n)))
