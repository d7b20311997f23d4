"""Solutions of float64 accuracy from factors in half the bits, by iterative refinement.

    L U = A                         (in 32 bits, half of the time)
    X = 0, R = B
    X := X + (L U)^-1 R             (in 32 bits, each column of R scaled)
    R := B - A X                    (in 64 bits), until norm(R[:, j]) <= sqrt(n) eps norm(A) norm(X[:, j])

Source: LAPACK xSGESV, xSPOSV; Carson, Higham, Accelerating the solution of linear systems by iterative refinement in
    three precisions, 2018.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pblas.arrays.elementwise import elementwise
from pblas.backends import log
from pblas.core.linalg_errors import NotPositiveDefiniteError
from pblas.factor.cholesky import PlannedCholesky
from pblas.factor.factorization import PlannedFactorization, prepared
from pblas.factor.factors import CholeskyFactor, Factor, LuFactor
from pblas.factor.lu import PlannedLu
from pblas.matmul.api import pmatmul
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.progress import StageReport
from pblas.symmetric.api import hemm

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array

HALF = {"float64": "float32", "complex128": "complex64"}
"""The dtype of half the bits, for those that can be refined."""
_MOST = 30  # refinements, as in LAPACK
_SLOWEST = 0.5  # of a residual's size that a refinement may leave: otherwise the factors are too inaccurate


def refined(
    opname: str, a: DistMatrix, b: DistMatrix, assume_a: Literal["gen", "pos"], size: float, progress: StageReport
) -> DistMatrix | None:
    """**Collective.** X with A X = B, of checked arguments; None if A is too ill-conditioned for its factors.

    `size` is a norm of A.
    """
    rank, n = a.runtime.rank, a.shape[0]
    factor = _factor(opname, a, assume_a, progress)
    eps = float(np.finfo(a.dtype).eps)
    x, r, last = None, b, inf
    for count in range(_MOST + 1 if factor is not None else 0):
        assert factor is not None, "there is one"
        # X := X + (L U)^-1 R
        sizes = r.norm("max", axis=0)
        units = np.where((sizes > 0) & np.isfinite(sizes), sizes, 1)
        low = elementwise("x / s", x=r, s=units).astype(HALF[a.dtype.name])
        d: Any = factor.solution(opname, low)
        d = d.astype(a.dtype)
        x = elementwise("y * s" if x is None else "x + y * s", y=d, s=units, **({} if x is None else {"x": x}))
        # R := B - A X
        r = pmatmul(a, x, b, alpha=-1, beta=1) if assume_a == "gen" else hemm(a, x, b, alpha=-1, beta=1)
        errors, of_x = r.norm("max", axis=0), x.norm("max", axis=0)
        if (errors <= sqrt(n) * eps * size * of_x).all():
            backward = _largest(errors, size * of_x)
            log.write(log.INFO, rank, "%s: %d refinements, backward error %.1e", opname, count, backward)
            return x
        now = _largest(errors, size * of_x)
        if not now <= _SLOWEST * last:
            break
        last = now
    text = "%s: A is too ill-conditioned for factors in %s; it is factored in %s"
    log.write(log.INFO, rank, text, opname, HALF[a.dtype.name], a.dtype.name)
    return None


def _factor(opname: str, a: DistMatrix, assume_a: str, progress: StageReport) -> Factor | None:
    """**Collective.** The factor of A in half the bits; None if there is none."""
    low = a.astype(HALF[a.dtype.name])
    kind: type[PlannedFactorization] = PlannedCholesky if assume_a == "pos" else PlannedLu
    try:
        others = {"assume_a": assume_a, "refine": low.dtype.name}
        factored = prepared(kind, opname, low, progress=progress, others=others).factored(low)
    except NotPositiveDefiniteError:
        return None
    factor: Factor = (CholeskyFactor if assume_a == "pos" else LuFactor)(factored, low.desc.without_lld)
    return None if factor.info else factor


def _largest(errors: Array, sizes: Array) -> float:
    """The largest ratio; NaN if there is one."""
    ratios = np.zeros_like(errors)
    np.divide(errors, sizes, out=ratios, where=errors != 0)
    return float(ratios.max(initial=0))
