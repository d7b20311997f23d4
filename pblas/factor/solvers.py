"""solve, inv, det, slogdet, cond and matrix_norm: one call each, by LU or Cholesky factorization."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple

import numpy as np

from pblas import errors
from pblas.arrays.elementwise import elementwise
from pblas.backends.local_step import agreed
from pblas.core.linalg_errors import SingularMatrixError
from pblas.core.options import MatrixOrArray
from pblas.core.progress import Progress, ProgressTarget, StageReport
from pblas.factor import arguments
from pblas.factor.cholesky import PlannedCholesky
from pblas.factor.factorization import PlannedFactorization, prepared
from pblas.factor.factors import (
    CholeskyFactor,
    Determinant,
    Factor,
    LuFactor,
    SlogdetResult,
    are_suspicious,
    warn_if_small,
)
from pblas.factor.lu import PlannedLu, lu_of
from pblas.factor.qr import factored
from pblas.factor.with_factor import in_range, range_scale, zeros
from pblas.layouts.descriptor import resized
from pblas.matmul.with_arrays import replicated_matrix
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.runtime.runtime import checked_flag
from pblas.triangular.trsm import triangle_solved

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Number, Real
    from pblas.factor.qr_factor import QrFactor
    from pblas.matrices.operators import Ord

_KINDS: tuple[Any, ...] = ("gen", "pos")


def solve(
    a: DistMatrix,
    b: MatrixOrArray,
    *,
    assume_a: Literal["gen", "pos"] = "gen",
    overwrite_a: bool = False,
    check: bool = True,
    progress: ProgressTarget = False,
) -> MatrixOrArray:
    """**Collective.** X with A X = B.

    To solve with one A several times, keep its factor: `lu_factor(A)` or `cho_factor(A)`.

    Args:
        a: n x n matrix of any layout, which may be a view; it is not changed (global).
        b: n x k matrix of the dtype of A, in any layout; or an array of n elements or n x k, equal on all ranks
            (global).
        assume_a: "gen" for any matrix, by LU; "pos" for a Hermitian positive definite one, by Cholesky in half the
            time, which reads the lower triangle only (global).
        overwrite_a: A is not needed any more, and is factored in place where its layout allows that: see `lu_factor`
            and `cholesky` (global).
        check: warn of an ill-conditioned A. The norm of A and about five solves with one right-hand side tell, if the
            pivots of A differ by 3/4 of the digits; otherwise it costs a look at the pivots, and with `overwrite_a`
            the norm of A (global).
        progress: True: rank 0 prints the finished share of the work to standard error, a few times a second. A
            function: rank 0 calls it instead, with the stage, "factor" or "solve", and that share, 0 to 1 (global).

    Returns:
        X, a new matrix in the layout of B; for an array an array of its shape, equal on all ranks.

    Raises:
        SingularMatrixError: A is singular; `info` is the first zero on the diagonal of U.
        NotPositiveDefiniteError: with "pos", a leading block is not positive definite; `info` is its order.
        ArgumentError, BackendError, DescriptorError, DTypeError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.

    Warns:
        PblasWarning: the reciprocal condition number of A in the 1-norm, as `LuFactor.rcond` estimates it, is below
            eps, so that X may have no correct digit; on all ranks. It misses ill-conditioned matrices whose pivots are
            of about one size, as Kahan's: `LuFactor.rcond` sees them.

    Source: LAPACK xGESV, xPOSV; ScaLAPACK p?gesv, p?posv.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.linalg.solve(ctx.from_global(np.array([[0.0, 2.0], [4.0, 5.0]])), np.array([2.0, 9.0])).tolist()
    [1.0, 1.0]
    """
    x, rcond = solved(a, b, assume_a, overwrite_a=overwrite_a, check=check, progress=progress)
    warn_if_small("solve", rcond, a.dtype)
    return x


def solved(
    a: DistMatrix,
    b: MatrixOrArray,
    assume_a: Literal["gen", "pos"],
    *,
    overwrite_a: bool,
    check: bool,
    progress: ProgressTarget,
    screens: bool = True,
) -> tuple[MatrixOrArray, float]:
    """**Collective.** The result of `solve`, and `Factor.condition` of A if it is checked, else 1."""
    opname, runtime = "solve", arguments.runtime_of("solve", a)
    with runtime.call(opname), Progress(opname, runtime, progress) as reports:
        with runtime.local_step(opname):
            if assume_a not in _KINDS:
                raise errors.ArgumentError(f"{opname}: assume_a must be 'gen' or 'pos', got {assume_a!r}")
            arguments.check_matrix(opname, "A", a, runtime)
            arguments.check_square(opname, a.desc)
            b, signature = arguments.checked_right(opname, b, a.shape, a.dtype, runtime)
            arguments.check_not_given_up(opname, a, b, overwrite_a)
            check = checked_flag(opname, "check", check)
        others = {"assume_a": assume_a, "B": signature, "check of the condition": check}
        stage = reports.stage("factor")
        is_pos = assume_a == "pos"
        kind: type[PlannedFactorization] = PlannedCholesky if is_pos else PlannedLu
        factoring = prepared(kind, opname, a, overwrite_a=overwrite_a, progress=stage, others=others)
        norm = one_norm(a, is_pos=is_pos) if check and factoring.overwriting.in_place else None
        factored = factoring.factored(a)
        factor: Factor = (CholeskyFactor if is_pos else LuFactor)(factored, a.desc.without_lld)
        x = factor.solution(opname, b, progress=reports.stage("solve"))
        if not check or (screens and not are_suspicious(opname, runtime, factor.local_pivots(), a.dtype)):
            return x, 1.0
        return x, factor.condition(opname, (lambda: one_norm(a, is_pos=is_pos)) if norm is None else norm)


def one_norm(a: DistMatrix, *, is_pos: bool = False) -> float:
    """**Collective.** The 1-norm of A; of a positive definite A the lower triangle is read."""
    if not is_pos:
        return float(a.norm(1))
    from pblas.vectors.matrix_vector import Product, product

    ones = np.ones(len(a), a.dtype)
    return float(product(Product("ahemv", a, ones, uplo="L", absolute="abs")).max(initial=0))


def inv(
    a: DistMatrix, *, overwrite_a: bool = False, check: bool = True, progress: ProgressTarget = False
) -> DistMatrix:
    """**Collective.** The inverse, a new matrix in the layout of A. To solve equations use `solve`, which is faster.

    Args:
        a: n x n matrix of any layout, which may be a view; it is not changed (global).
        overwrite_a: A is not needed any more: the inverse takes its memory, and the result is A, unless A is conjugated
            or read-only. A is factored in place where its layout allows that: see `lu_factor` (global).
        check: warn of an ill-conditioned A, as `solve`; it costs the norms of A and of the inverse if the pivots differ
            much, and that of A with `overwrite_a` (global).
        progress: as in `solve`; the stages are "factor" and "invert" (global).

    Raises:
        SingularMatrixError: A is singular; `info` is the first zero on the diagonal of U.
        ArgumentError, BackendError, DescriptorError, DTypeError: wrong arguments; the same error on every rank.

    Warns:
        PblasWarning: 1 / (norm(A) norm(A^-1)) is below eps in the 1-norm, so that the inverse may have no correct
            digit; on all ranks.
    """
    opname, runtime = "inv", arguments.runtime_of("inv", a)
    with runtime.call(opname), Progress(opname, runtime, progress) as reports:
        with runtime.local_step(opname):
            check = checked_flag(opname, "check", check)
        others, stage = {"check of the condition": check}, reports.stage("factor")
        factoring = prepared(PlannedLu, opname, a, square=True, overwrite_a=overwrite_a, progress=stage, others=others)
        is_given_up = any(factoring.overwriting)
        out, stage = a if factoring.overwriting.result else None, reports.stage("invert")
        norm = one_norm(a) if check and is_given_up else None
        factor, condition = lu_of(factoring, a), 1.0
        pivots = factor.local_pivots() if check else (0, 0)
        inverse = factor.inverse(opname, out, stage)
        if check and are_suspicious(opname, runtime, pivots, a.dtype):
            condition = (one_norm(a) if norm is None else norm) * one_norm(inverse)
    warn_if_small(opname, 1 / condition if condition else 1.0, a.dtype)
    return inverse


def det(a: DistMatrix) -> Number:
    """**Collective.** The determinant, a NumPy scalar equal on all ranks; 0 or inf if it is out of range.

    Args:
        a: n x n matrix of any layout, which may be a view; it is not changed (global).

    Raises:
        ArgumentError, BackendError, DescriptorError, DTypeError: wrong arguments; the same error on every rank.
    """
    with arguments.runtime_of("det", a).call("det"):
        return _determinant("det", a).value


def slogdet(a: DistMatrix) -> SlogdetResult:
    """**Collective.** (sign, log of the absolute value) of the determinant; (0, -inf) if it is 0.

    Args:
        a: n x n matrix of any layout, which may be a view; it is not changed (global).

    Raises:
        ArgumentError, BackendError, DescriptorError, DTypeError: wrong arguments; the same error on every rank.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     sign, logarithm = pblas.linalg.slogdet(ctx.from_global(np.diag([1e200, -1e200])))
    >>> float(sign), round(float(logarithm), 3)
    (-1.0, 921.034)
    """
    with arguments.runtime_of("slogdet", a).call("slogdet"):
        return _determinant("slogdet", a).slogdet


def cond(a: DistMatrix, p: float | None = None) -> Real:
    """**Collective.** The condition number norm(A) norm(A^-1), computed from the inverse; inf for a singular matrix.

    Args:
        a: n x n matrix of any layout, which may be a view; it is not changed (global).
        p: the norm, 1 or inf. It must be given: NumPy's default, 2, needs singular values, which pblas does not compute
            (global).

    Returns:
        A NumPy scalar equal on all ranks; inf too if the inverse overflows, and NaN if A has a NaN.

    Raises:
        ArgumentError: no norm, or another one.
        BackendError, DescriptorError, DTypeError: wrong arguments; the same error on every rank.
    """
    opname, runtime = "cond", arguments.runtime_of("cond", a)
    with runtime.call(opname):
        with runtime.local_step(opname):
            if not isinstance(p, int | float) or p not in (1, inf):
                raise errors.ArgumentError(
                    f"{opname}: p must be 1 or inf, got {p!r}; NumPy's default, 2, needs singular values, which pblas "
                    f"does not compute: pass p=1"
                )
        runtime.agree(opname, {"p": p})
        factor, norm = _factored(opname, a), a.norm(p)
        if np.isnan(norm):
            return norm
        if factor.info:
            return norm.dtype.type(inf)
        condition = norm * factor.inv().norm(p)
        # The inverse of a finite matrix has a NaN if it overflows
        return norm.dtype.type(inf) if np.isfinite(norm) and np.isnan(condition) else condition


def matrix_norm(a: DistMatrix, *, ord: Ord = "fro") -> Real:  # noqa: A002 - the array API's name
    """**Collective.** A norm of a matrix: "fro", 1, inf or "max", as `DistMatrix.norm`.

    Args:
        a: m x n matrix (global).
        ord: "fro", 1, inf or "max" (global).

    Raises:
        ArgumentError: another ord.
    """
    arguments.runtime_of("matrix_norm", a)
    return a.norm(ord)


def _factored(opname: str, a: DistMatrix) -> LuFactor:
    """**Collective.** The LU factor of a square matrix."""
    return lu_of(prepared(PlannedLu, opname, a, square=True), a)


_SHIFTS = 32, 64, 128, 256, 512, 1024
"""Exponents by which a matrix is scaled down, one after the other, until no element of U overflows."""


def _determinant(opname: str, a: DistMatrix) -> Determinant:
    """**Collective.** The determinant of a square matrix, also if elements of its U are too large for its dtype."""
    det = _factored(opname, a).determinant(opname)
    for shift in _SHIFTS:
        if np.isfinite(det.mantissa) or not np.isfinite(a.norm("max")):
            break
        det = _factored(opname, elementwise("x * s", x=a, s=2.0**-shift)).determinant(opname)
        det = det._replace(exponent=det.exponent + shift * a.shape[0])
    return det


class LstsqResult(NamedTuple, Generic[MatrixOrArray]):
    """The result of `lstsq`, as of numpy.linalg.lstsq.

    Args:
        x: the solution (global).
        residuals: the squared norm of B - A X for each right-hand side; empty if m <= n (global).
        rank: min(m, n): A has full rank (global).
        s: None: QR gives no singular values (global).
    """

    x: MatrixOrArray
    residuals: Array
    rank: int
    s: None


def lstsq(
    a: DistMatrix, b: MatrixOrArray, *, overwrite_a: bool = False, progress: ProgressTarget = False
) -> LstsqResult[MatrixOrArray]:
    """**Collective.** X for which the columns of B - A X are shortest; of several such X the shortest one.

    A has full rank. With m >= n X is R^-1 Q^H B, with A = Q R; with m < n it is Q R^-H B, with A^H = Q R. A and B are
    scaled if their largest elements are close to the limits of the dtype.

    Args:
        a: m x n matrix of any layout, which may be a view; it is not changed (global).
        b: m x k matrix of the dtype of A, in any layout; or an array of m elements or m x k, equal on all ranks
            (global).
        overwrite_a: A is not needed any more, and is factored in place where its layout allows that: see `qr_factor`
            (global).
        progress: as in `qr_factor`; the stages are "factor" and "solve" (global).

    Returns:
        X, n x k, on the grid of B; for an array an array of n elements or n x k, equal on all ranks. The squared norms
        of the columns of B - A X, an array equal on all ranks that is empty if m <= n. The rank. None.

    Raises:
        SingularMatrixError: A does not have full rank: `info` is the first element of the diagonal of R, from 1, whose
            size is at most eps max(m, n) times that of the largest.
        ArgumentError, BackendError, DescriptorError, DTypeError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.

    Source: LAPACK xGELS; ScaLAPACK p?gels.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     a = ctx.from_global(np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]))
    ...     x, residuals, rank, _ = pblas.linalg.lstsq(a, np.array([1.0, 2.0, 4.0]))
    >>> x.round(3).tolist(), residuals.round(3).tolist(), rank
    ([0.833, 1.5], [0.167], 2)
    """
    opname, runtime = "lstsq", arguments.runtime_of("lstsq", a)
    with runtime.call(opname), Progress(opname, runtime, progress) as reports:
        with runtime.local_step(opname):
            arguments.check_matrix(opname, "A", a, runtime)
            m, n = a.shape
            b, signature = arguments.checked_right(opname, b, a.shape, a.dtype, runtime)
            arguments.check_not_given_up(opname, a, b, overwrite_a)
            overwrite_a = checked_flag(opname, "overwrite_a", overwrite_a)
        runtime.agree(opname, {"overwrite_a": overwrite_a})  # with it a norm comes before the factorization
        scaled = _scaled_factor(opname, a, overwrite_a, reports.stage("factor"), signature)
        stage = reports.stage("solve")
        if isinstance(b, DistMatrix):
            x, residuals = _solved(opname, scaled, a, b, stage)
            return LstsqResult(x, residuals, min(m, n), None)
        columns = replicated_matrix(opname, a, arguments.columns_of(b))
        solution, residuals = _solved(opname, scaled, a, columns, stage)
        array = solution.to_global(None)
        assert array is not None, "on all ranks"
        return LstsqResult(array.reshape(n, *b.shape[1:]), residuals, min(m, n), None)


def orth(a: DistMatrix) -> DistMatrix:
    """**Collective.** An orthonormal basis of the space that the columns of A span.

    A has full rank. The columns of the basis span the same spaces as those of A, one after the other: it is the Q of
    `qr`, not that of singular values.

    Args:
        a: m x n matrix of any layout, which may be a view; it is not changed (global).

    Returns:
        A new m x min(m, n) matrix, in the layout of A, or on its grid if m < n.

    Raises:
        SingularMatrixError: A does not have full rank; `info` as in `lstsq`.
        ArgumentError, BackendError, DTypeError: wrong arguments; the same error on every rank.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     abs(pblas.linalg.orth(ctx.from_global(np.array([[3.0], [4.0]]))).to_global()).round(3).tolist()
    [[0.6], [0.8]]
    """
    opname, runtime = "orth", arguments.runtime_of("orth", a)
    with runtime.call(opname):
        m, n = a.shape
        # With m < n the columns of R^H, with A^H = Q R, span the same space as those of A
        factor = factored(opname, a if m >= n else factored(opname, a.H)[0].upper(opname, m).H)[0]
        _check_rank(opname, np.abs(factor.upper(opname, min(m, n)).diagonal()), a.shape)
        q = factor.formed(opname, "reduced")
        return q if m >= n else redistributed(opname, q, resized(a.desc, (m, m)), is_temporary=True)


class _Scaled(NamedTuple):
    """The factor of `scale` A, or of its adjoint if m < n, its R and the sizes of R's diagonal (global)."""

    factor: QrFactor
    r: DistMatrix
    diagonal: Array
    scale: float


def _scaled_factor(opname: str, a: DistMatrix, overwrite_a: Any, progress: StageReport, signature: object) -> _Scaled:
    """**Collective.** The QR factor of a matrix of full rank, scaled if its elements are close to the limits."""

    def of(x: DistMatrix, scale: float) -> _Scaled:
        x = x if x.shape[0] >= x.shape[1] else x.H
        factor, _ = factored(opname, x, overwrite_a=overwrite_a, progress=progress, others={"B": signature})
        r = factor.triangle(opname)
        return _Scaled(factor, r, np.abs(r.diagonal()), scale)

    scaled = of(*(in_range(a) if overwrite_a else (a, 1.0)))
    size = scaled.diagonal.max(initial=0)
    if not overwrite_a and (not 0 < size < inf or range_scale(size) != 1):  # R shows that A needs a scale
        x, scale = in_range(a)
        if scale != 1:
            scaled = of(x, scale)
    _check_rank(opname, scaled.diagonal, a.shape)
    return scaled


def _solved(
    opname: str, scaled: _Scaled, a: DistMatrix, b: DistMatrix, progress: StageReport
) -> tuple[DistMatrix, Array]:
    """**Collective.** X and the squared norms of the columns of B - A X."""
    (m, n), (factor, r, _, scale) = a.shape, scaled
    residuals = np.empty(0, np.zeros(0, a.dtype).real.dtype)
    b, of_b = in_range(b)
    if m < n:
        z = zeros(opname, resized(b.desc, (n, b.shape[1])), b)
        triangle_solved(opname, r, b, uplo="U", trans="C", out=z[:m, :])
        x = factor.applied(opname, z, "N", progress)
    else:
        y = factor.applied(opname, b, "C", progress)
        if m > n:
            residuals = (y[n:, :].norm(axis=0) / residuals.dtype.type(of_b)) ** 2
        x = triangle_solved(opname, r, y[:n, :], uplo="U", out=resized(b.desc, (n, b.shape[1])))
    return x if scale == of_b else elementwise("x * s", x=x, s=scale / of_b, out=x), residuals


def _check_rank(opname: str, diagonal: Array, shape: tuple[int, int]) -> None:
    """Raise SingularMatrixError, on all ranks, if a size of R's diagonal, equal on all ranks, is negligible."""
    limit = np.finfo(diagonal.dtype).eps * max(shape) * diagonal.max(initial=0)
    negligible = np.flatnonzero(diagonal <= limit)  # NaN is not: it becomes the result
    if negligible.size:
        k = int(negligible[0]) + 1
        text = (
            f"{opname}: A does not have full rank: element {k} of the diagonal of R, counted from 1, is negligible; "
            f"leave out rows or columns that depend on others, or scale those that are tiny"
        )
        raise agreed(SingularMatrixError(text, k))
