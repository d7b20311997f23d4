"""Solutions refined until they are exact for nearby elements of A and B, and bounds of their errors.

    R := B - op(A) X
    berr_j = max_i |R|_ij / (|op(A)| |X| + |B|)_ij
    X := X + op(A)^-1 R, while berr_j falls to a half at least, at most five times
    ferr_j = norm(|op(A)^-1| (|R| + (n + 1) eps (|op(A)| |X| + |B|))_j) / norm(X_j), in the inf-norm

Source: LAPACK xGERFS, xPORFS; Arioli, Demmel, Duff, Solving sparse linear systems with sparse backward error, 1989.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pblas.arrays.elementwise import elementwise
from pblas.factor.factors import Operator, estimated_one_norm

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.matrices.matrix import DistMatrix

_MOST = 5  # refinements, as in LAPACK


class Equations(NamedTuple):
    """op(A) X = B with a factor of A. The functions are collective."""

    residual: Callable[[DistMatrix], DistMatrix]  # B - op(A) X of X
    sizes: Callable[[DistMatrix], DistMatrix]  # |op(A)| X + |B| of a real X
    solve: Callable[[DistMatrix], None]  # R := op(A)^-1 R
    inverse: Operator  # op(A)^-1 of an array of one dimension


def refined(equations: Equations, x: DistMatrix) -> tuple[Array, Array]:
    """**Collective.** Refine X in place; ferr and berr."""
    n, nrhs = x.shape
    eps, tiny = (float(value) for value in (np.finfo(x.dtype).eps / 2, np.finfo(x.dtype).tiny))
    least = (n + 1) * tiny  # smaller sizes are not told from rounding errors
    active, last = np.ones(nrhs, bool), np.full(nrhs, np.inf)
    for count in range(_MOST + 1):
        r, size = equations.residual(x), equations.sizes(abs(x))
        ratios = "where(s * e > t, r / s, (r + t) / (s + t))"
        berr = elementwise(ratios, r=abs(r), s=size, e=eps, t=least).norm("max", axis=0)
        active = active & (berr > eps) & (2 * berr <= last)
        if count == _MOST or not active.any():
            break
        equations.solve(r)
        elementwise("x + r * w", x=x, r=r, w=active.astype(berr.dtype), out=x)
        last = berr
    weight = elementwise("r + c * s + where(s * e > t, 0, t)", r=abs(r), c=(n + 1) * eps, s=size, e=eps, t=least)
    of_x, ferr = x.norm("max", axis=0), np.zeros_like(berr)
    for j in range(nrhs):
        bound = estimated_one_norm(_weighted(equations.inverse, weight[:, j].to_global(None)[:, 0]), n, x.dtype)
        ferr[j] = bound / of_x[j] if of_x[j] else bound
    return ferr, berr


def _weighted(inverse: Operator, w: Array) -> Operator:
    """The adjoint of op(A)^-1 diag(w), whose 1-norm is the inf-norm of |op(A)^-1| w."""
    return lambda v, trans: w * inverse(v, "C") if trans == "N" else inverse(w * v, "N")
