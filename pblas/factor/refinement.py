"""Solutions of float64 accuracy from factors in fewer bits, by iterative refinement and GMRES.

    L U = A                         (M = L U in 32 bits or fewer, in less time)
    X = 0, R = B
    X := X + M^-1 R                 (in 32 bits, each column of R scaled)
    R := B - A X                    (in 64 bits), until norm(R[:, j]) <= sqrt(n) eps norm(A) norm(X[:, j])

A refinement that leaves half of a residual, or more, is followed by GMRES, which takes M^-1 as its preconditioner. All
columns are iterated together, each with a Krylov space of its own:

    V[0] = R / norm(R), Z[j] = M^-1 V[j], W = A Z[j] - V[0] H[0, j] - ... - V[j] H[j, j], V[j+1] = W / H[j+1, j]
    X := X + Z y,  y = argmin norm(R - A Z y) = argmin norm(norm(R) e_0 - H y)

Source: LAPACK xSGESV, xSPOSV; Carson, Higham, Accelerating the solution of linear systems by iterative refinement in
    three precisions, 2018; Saad, A flexible inner-outer preconditioned GMRES algorithm, 1993.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from pblas.arrays.elementwise import elementwise
from pblas.backends import log
from pblas.backends.push_engine import GemmModes
from pblas.core.linalg_errors import NotPositiveDefiniteError
from pblas.factor.cholesky import PlannedCholesky
from pblas.factor.factorization import PlannedFactorization, prepared
from pblas.factor.factors import CholeskyFactor, Factor, LuFactor
from pblas.factor.lu import PlannedLu
from pblas.factor.with_factor import empty
from pblas.layouts.descriptor import MatrixDescriptor, resized
from pblas.matmul.api import pmatmul
from pblas.matmul.with_arrays import replicated_matrix
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.runtime.progress import StageReport
from pblas.symmetric.api import hemm
from pblas.vectors.matrix_vector import gemv, hemv

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array

RefineDtype = Literal["float32", "tf32", "float16"]
"""How matrices are multiplied where A is factored."""

HALF = {"float64": "float32", "complex128": "complex64"}
"""The dtype of half the bits, for those that can be refined."""
MODES: dict[RefineDtype, GemmModes] = {
    "float32": GemmModes(),
    "tf32": GemmModes(tf32=True, splits=True),
    "float16": GemmModes(float16=True),
}
_LARGEST = {"float32": 2.0**60, "tf32": 2.0**60, "float16": 1.0}
"""Sizes of A, and the inverses of those, up to which it is factored as it is; otherwise a multiple of it."""
_MOST = 30  # refinements, as in LAPACK
_SLOWEST = 0.5  # of a residual's size that a refinement may leave: otherwise the factors are too inaccurate
_KRYLOV = 40  # dimensions of a Krylov space at most
_WORK = 8
"""The Krylov spaces of all columns have n / _WORK vectors at most: they take a fraction of the memory of A, and of the
time of its factorization."""
_FEW = 2048  # vectors that are few for any n
_CYCLES = 3  # Krylov spaces, one after the other, at most
_REDUCTION = 1e-12  # of a residual, which rounding allows in one Krylov space


def refined(
    opname: str,
    a: DistMatrix,
    b: DistMatrix,
    assume_a: Literal["gen", "pos"],
    refine: RefineDtype,
    size: float,
    progress: StageReport,
) -> DistMatrix | None:
    """**Collective.** X with A X = B, of checked arguments; None if A is too ill-conditioned for its factors.

    `size` is a norm of A.
    """
    rank, factor = a.runtime.rank, _factor(opname, a, assume_a, refine, size, progress)
    if factor is not None:
        x, *counts = _solved(_Equations(opname, a, b, assume_a, size, *factor))
        if x is not None:
            text = "%s: factors in %s, %d refinements, %d iterations of GMRES, backward error %.1e"
            log.write(log.INFO, rank, text, opname, refine, *counts)
            return x
    text = "%s: A is too ill-conditioned for factors in %s; it is factored in %s"
    log.write(log.INFO, rank, text, opname, refine, a.dtype.name)
    return None


def _factor(
    opname: str, a: DistMatrix, assume_a: str, refine: RefineDtype, size: float, progress: StageReport
) -> tuple[Factor, float] | None:
    """**Collective.** The factor of a multiple of A in half the bits, and that multiple; None if there is none."""
    most, unit = _LARGEST[refine], 1.0
    if np.isfinite(size) and size and not 1 / most <= size <= most:
        unit = float(np.ldexp(1.0, -int(np.frexp(size)[1])))
    low = (a if unit == 1 else elementwise("x * s", x=a, s=unit)).astype(HALF[a.dtype.name])
    kind: type[PlannedFactorization] = PlannedCholesky if assume_a == "pos" else PlannedLu
    try:
        factoring = prepared(kind, opname, low, progress=progress, others={"assume_a": assume_a, "refine": refine})
        factored = factoring._replace(modes=MODES[refine]).factored(low)
    except NotPositiveDefiniteError:
        return None
    factor: Factor = (CholeskyFactor if assume_a == "pos" else LuFactor)(factored, low.desc.without_lld)
    return None if factor.info else (factor, unit)


class _Equations(NamedTuple):
    """A X = B, and the factor M of `unit` A (global)."""

    opname: str
    a: DistMatrix
    b: DistMatrix
    assume_a: str
    size: float
    factor: Factor
    unit: float

    def preconditioned(self, r: DistMatrix) -> tuple[DistMatrix, Array]:
        """**Collective.** M^-1 of the columns of R divided by their sizes, and the sizes that belong to A^-1 R."""
        sizes = r.norm("max", axis=0)
        units = np.where((sizes > 0) & np.isfinite(sizes), sizes, 1)
        low = elementwise("x / s", x=r, s=units).astype(HALF[self.a.dtype.name])
        d: Any = self.factor.solution(self.opname, low)
        return d.astype(self.a.dtype), units * self.unit

    def product(self, x: DistMatrix, c: DistMatrix | None = None) -> DistMatrix:
        """**Collective.** A X, or C - A X."""
        # OpenBLAS' GEMM of one column takes three times as long as its GEMV (AMD EPYC, n = 4096 on 2 ranks)
        by_matrix, by_vector = (pmatmul, gemv) if self.assume_a == "gen" else (hemm, hemv)
        is_vector = x.shape[1] == 1 and not self.a.runtime.topology.alike  # GEMV is not reproducible
        multiply: Callable[..., DistMatrix] = by_vector if is_vector else by_matrix
        return multiply(self.a, x) if c is None else multiply(self.a, x, c, alpha=-1, beta=1)

    def error(self, x: DistMatrix, r: DistMatrix) -> tuple[float, Array]:
        """**Collective.** The largest backward error, and the least residuals; infinity for columns that have them."""
        errors, sizes = r.norm("max", axis=0), self.size * x.norm("max", axis=0)
        least = sqrt(len(self.a)) * float(np.finfo(self.a.dtype).eps) * sizes
        return (0.0 if not errors.size else _largest(errors, sizes)), np.where(errors <= least, inf, least)

    @property
    def dimensions(self) -> int:
        """Vectors of a Krylov space at most."""
        return min(_KRYLOV, max(len(self.a), _FEW) // (_WORK * max(self.b.shape[1], 1)))


def _solved(equations: _Equations) -> tuple[DistMatrix | None, int, int, float]:
    """**Collective.** X, or None; the numbers of refinements and of iterations of GMRES; the backward error."""
    b, x, r, last, least = equations.b, None, equations.b, inf, np.zeros(0)
    for count in range(_MOST + 1):
        # X := X + M^-1 R
        d, s = equations.preconditioned(r)
        next_x = elementwise("y * s" if x is None else "x + y * s", y=d, s=s, **({} if x is None else {"x": x}))
        # R := B - A X
        next_r = equations.product(next_x, b)
        error, next_least = equations.error(next_x, next_r)
        if np.isinf(next_least).all():
            return next_x, count, 0, error
        if not error <= _SLOWEST * last:
            break
        x, r, last, least = next_x, next_r, error, next_least
    iterations = 0
    for _ in range(_CYCLES if x is not None and equations.dimensions > 1 else 0):
        assert x is not None, "of a refinement"
        x, added = _improved(equations, x, r, least)
        r, iterations = equations.product(x, b), iterations + added
        error, least = equations.error(x, r)
        if np.isinf(least).all():
            return x, count, iterations, error
        if not error <= _SLOWEST * last:
            break
        last = error
    return None, count, iterations, error


def _improved(equations: _Equations, x: DistMatrix, r: DistMatrix, least: Array) -> tuple[DistMatrix, int]:
    """**Collective.** X of smaller residuals than R, if possible of these lengths, by GMRES; number of iterations."""
    opname, a, (n, k) = equations.opname, equations.a, r.shape
    beta = r.norm(axis=0)
    least = np.maximum(least, _REDUCTION * beta)
    squares, most = _LeastSquares(beta), equations.dimensions
    # The vectors of all columns side by side, V = [V[0], V[1], ...]
    rows = MatrixDescriptor.row_wise(n, k * (most + 1), a.runtime.nprocs)
    v, z = (empty(rows, a) for _ in range(2))
    elementwise("x * s", x=r, s=_inverse(beta), out=v[:, :k])
    for j in range(most):
        own, before = slice(j * k, (j + 1) * k), v[:, : (j + 1) * k]
        # Z[j] = M^-1 V[j], W = A Z[j]
        d, s = equations.preconditioned(v[:, own])
        elementwise("x * s", x=d, s=s, out=z[:, own])
        w = redistributed(opname, equations.product(z[:, own]), resized(rows, (n, k)), is_temporary=True)
        # W := W - V H[:, j], H[:, j] = V^H W   (twice: the first time leaves rounding errors of W)
        h = np.zeros((j + 1, k), w.dtype)
        for _ in range(2):
            part = pmatmul(before.H, w).to_global(None)
            assert part is not None, "on all ranks"
            lost = np.stack([part[i * k : (i + 1) * k].diagonal() for i in range(j + 1)])
            w, h = pmatmul(before, _side_by_side(opname, a, lost), w, alpha=-1, beta=1, out=w), h + lost
        length = w.norm(axis=0)
        if (squares.added([*h, length]) <= least).all():
            break
        # V[j+1] H[j+1, j] = W
        elementwise("x * s", x=w, s=_inverse(length), out=v[:, (j + 1) * k : (j + 2) * k])
    # X := X + Z y
    y = np.stack(squares.solution())
    return pmatmul(z[:, : len(y) * k], _side_by_side(opname, a, y), x, beta=1, out=x), len(y)


def _side_by_side(opname: str, like: DistMatrix, coefficients: Array) -> DistMatrix:
    """**Collective.** The matrix by which [V[0], V[1], ...] becomes the sum of V[i] diag(coefficients[i])."""
    count, k = coefficients.shape
    x = np.zeros((count, k, k), coefficients.dtype)
    x[:, range(k), range(k)] = coefficients
    return replicated_matrix(opname, like, np.asfortranarray(x.reshape(count * k, k)))


class _LeastSquares:
    """min norm(beta e_0 - H y) for an upper Hessenberg H of each right-hand side, by Givens rotations (global)."""

    def __init__(self, beta: Array) -> None:
        self._r: list[list[Array]] = []  # columns of R of H = Q R
        self._g: list[Array] = [beta]  # Q^H beta e_0
        self._rotations: list[tuple[Array, Array]] = []

    def added(self, h: list[Array]) -> Array:
        """The lengths of the residuals with one more column of H."""
        for i, (c, s) in enumerate(self._rotations):
            h[i], h[i + 1] = c * h[i] + s * h[i + 1], c * h[i + 1] - np.conj(s) * h[i]
        x, y = h[-2], h[-1]
        size = np.abs(x)
        length = np.sqrt(size**2 + y**2)
        phase = np.where(size > 0, x * _inverse(size), 1)
        c, s = size * _inverse(length), phase * y * _inverse(length)
        self._rotations.append((c, s))
        self._r.append([*h[:-2], phase * length])
        last = self._g[-1]
        self._g[-1:] = [c * last, -np.conj(s) * last]
        return np.abs(self._g[-1])

    def solution(self) -> list[Array]:
        """y; 0 where a column of H adds nothing."""
        n = len(self._r)
        y = self._g[:n]
        for j in reversed(range(n)):
            y[j] = y[j] * _inverse(self._r[j][j])
            for i in range(j):
                y[i] = y[i] - self._r[j][i] * y[j]
        return y


def _inverse(x: Array) -> Array:
    """1 / x, and 0 where x is 0."""
    result = np.zeros_like(x)
    np.divide(1, x, out=result, where=x != 0)
    return result


def _largest(errors: Array, sizes: Array) -> float:
    """The largest ratio; NaN if there is one."""
    ratios = np.zeros_like(errors)
    np.divide(errors, sizes, out=ratios, where=errors != 0)
    return float(ratios.max(initial=0))
