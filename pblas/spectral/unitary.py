"""The unitary factor U of A = U H for a square A, by the iteration of QDWH or Newton's, and Newton-Schulz steps.

X := A / alpha, l <= its least singular value          (alpha and l estimated by products and solves with vectors)
X := X (a + b X^H X) (1 + c X^H X)^-1                  (QR or Cholesky: singular values in [l, 1] get closer to 1)
    or X := s X + t X^-H                               (LU)
X := X (a + b X^H X)                                   (where they are close to 1: products alone)
    or X := X - (E / 2 - 3/8 E^2) X, E = X X^H - I
"""

from __future__ import annotations

from math import inf, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pblas.arrays.elementwise import elementwise
from pblas.arrays.stacking import vstack
from pblas.factor.cholesky import cho_factor, cholesky
from pblas.factor.qr_matrices import qr
from pblas.factor.solvers import lu_factored
from pblas.factor.with_factor import empty, identity
from pblas.layouts.descriptor import resized
from pblas.matmul.api import pmatmul
from pblas.matmul.with_arrays import replicated_matrix
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.progress import StageReport
from pblas.spectral.generalized import completed
from pblas.spectral.qdwh import LAST, NewtonStep, QdwhStep, newton_steps, qdwh_steps
from pblas.symmetric.api import hemm, herk
from pblas.triangular.trsm import solve_triangular

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.factor.factors import LuFactor

_HARMLESS = 1 / 64  # eps c n up to which Cholesky factors of Gram matrices, two of them, give an orthonormal Q
_SOLVES = 3  # of inverse iterations for the least singular value, twice as many of power iterations for the largest
_LESS, _MORE = 0.25, 1.1  # the estimates are within these factors almost always; the last steps see it if not
_EXTRA = 4  # steps more than planned at most


class UnitaryFactor(NamedTuple):
    """U with A = U H, and whether A is singular to rounding: U is unitary then only where A is not (global).

    An iteration that does not converge says that A is singular.
    """

    u: DistMatrix
    is_singular: bool


def unitary_factor(
    opname: str, a: DistMatrix, progress: StageReport = None, *, by_inverses: bool = False
) -> UnitaryFactor:
    """**Collective.** U of a square matrix, finite and in range, inside another call: by QDWH, or Newton's steps."""
    n, eps = a.shape[0], float(np.finfo(a.dtype).eps)
    x, least, factor = _scaled(opname, a)
    is_singular, l = least < n * eps, min(max(least, eps), 1.0)
    if by_inverses and is_singular:
        return UnitaryFactor(x, is_singular)
    steps: list[QdwhStep | NewtonStep] = [*(newton_steps if by_inverses else qdwh_steps)(l, eps)]
    error = 0.0
    for k, step in enumerate(steps if least >= 0 else ()):
        if isinstance(step, NewtonStep):
            factor = lu_factored(opname, x) if factor is None else factor
            if factor.info:
                return UnitaryFactor(x, is_singular=True)
            # X := s X + t X^-H; the inverse has the layout of X^H
            inverse = factor.inverse(opname, empty(x.desc.without_lld.T, x))
            x = elementwise("s * x + t * y", x=x, y=inverse.H, s=step.s, t=step.t)
        else:
            x, error = _stepped(opname, x, step)
        factor = None
        if progress is not None:
            progress((k + 1) / (len(steps) + 1))
    if by_inverses:
        x, error = _corrected(opname, x)
        # A step of order 3 leaves 5/16 error^3, at most 2.5 n eps
        error = 0.0 if error <= 2 * (n * eps) ** (1 / 3) else error
    # The estimates were wrong if singular values are not close to 1 before the last step
    for _ in range(_EXTRA if least >= 0 and not is_singular else 0):
        if error <= sqrt(eps):
            break
        last = error
        x, error = _stepped(opname, x, LAST)
        if not error < last / 2:
            break
    if progress is not None:
        progress(1.0)
    return UnitaryFactor(x, is_singular or not error <= sqrt(eps))


def _scaled(opname: str, a: DistMatrix) -> tuple[DistMatrix, float, LuFactor | None]:
    """**Collective.** A / alpha with a largest singular value of about 1 at most, its least one, and its LU factor.

    The least one is -1 if A is 0.
    """
    bound = sqrt(float(a.norm(1)) * float(a.norm(inf)))
    if not bound:
        return a, -1.0, None
    largest = _largest(opname, a, lambda v: pmatmul(a.H, pmatmul(a, v)), 2 * _SOLVES)
    x = elementwise("x / s", x=a, s=min(bound, _MORE * sqrt(largest)) if largest else bound)
    factor = lu_factored(opname, x)
    if factor.info:
        return x, 0.0, factor
    size = _largest(opname, x, lambda v: factor.solution(opname, factor.solution(opname, v, "C")), _SOLVES)
    return x, _LESS / sqrt(size) if 0 < size < inf else 0.0, factor


def _largest(opname: str, a: DistMatrix, apply: Callable[[DistMatrix], DistMatrix], count: int) -> float:
    """**Collective.** About the largest eigenvalue of a semidefinite operator, by power iterations."""
    n, real = a.shape[0], np.zeros(0, a.dtype).real.dtype
    start = np.random.default_rng(n).standard_normal((n, 1))
    v, size = replicated_matrix(opname, a, np.asfortranarray(start / np.linalg.norm(start)).astype(a.dtype)), 0.0
    for _ in range(count):
        v = apply(v)
        size = float(v.norm())
        if not 0 < size < inf:
            break
        v = elementwise("x / s", x=v, s=real.type(size))
    return size


def _stepped(opname: str, x: DistMatrix, step: QdwhStep) -> tuple[DistMatrix, float]:
    """**Collective.** X after a step; without a factorization also norm(X^H X - I) before it."""
    n, (a, b, c) = x.shape[0], step
    one = identity(opname, resized(x.desc, (n, n)), x)
    if not c:
        # X := X (a + b X^H X)
        g = pmatmul(x.H, x)
        error = float(elementwise("x - y", x=g, y=one, out=one).norm())
        return pmatmul(x, g, x, alpha=b, beta=a), error
    if step.by_qr and c * n * float(np.finfo(x.dtype).eps) > _HARMLESS:
        # [sqrt(c) X; I] = [Q1; Q2] R, X := b/c X + (a - b/c) / sqrt(c) Q1 Q2^H
        q = qr(vstack((elementwise("x * s", x=x, s=sqrt(c)), one))).Q
        product, weight = pmatmul(q[:n], q[n:].H), (a - b / c) / sqrt(c)
    else:
        # I + c X^H X = L L^H, X := b/c X + (a - b/c) X L^-H L^-1
        z, weight = herk(x, one, trans="C", alpha=c, beta=1, out=one), a - b / c
        product = _twice_factored(x, z, c) if step.by_qr else cho_factor(z, overwrite_a=True).solve(x.H).H
    return elementwise("s * x + t * y", x=x, y=product, s=b / c, t=weight), inf


def _corrected(opname: str, x: DistMatrix) -> tuple[DistMatrix, float]:
    """**Collective.** X after a step of order 3, and norm(X X^H - I) before it."""
    e = identity(opname, x.desc.without_lld, x)
    e = completed(opname, herk(x, e, alpha=1, beta=-1, out=e), "L")
    error = float(e.norm())
    w = herk(e, e, alpha=3 / 8, beta=-1 / 2, out=x.desc.without_lld)
    return hemm(w, x, x, beta=1), error


def _twice_factored(x: DistMatrix, z: DistMatrix, c: float) -> DistMatrix:
    """**Collective.** X Z^-1 with Z = I + c X^H X, as accurate as by a QR factorization of [sqrt(c) X; I].

    Z = L L^H
    Y := L^-1 X^H, W := L^-1             ([sqrt(c) Y, W]^H is orthonormal but for errors of eps c)
    G = c Y Y^H + W W^H, X Z^-1 := Y^H G^-1 W

    Source: Yamamoto, Nakatsukasa, Yanagisawa, Fukaya, Roundoff error analysis of the CholeskyQR2 algorithm, 2015.
    """
    factor = cholesky(z, overwrite_a=True)
    y = solve_triangular(factor, x.H, lower=True)
    w = solve_triangular(factor, identity("polar", factor.desc.without_lld, factor), lower=True)
    g = herk(y, herk(w), alpha=c, beta=1)
    return pmatmul(y.H, cho_factor(g, overwrite_a=True).solve(w))
