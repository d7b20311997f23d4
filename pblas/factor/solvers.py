"""solve, inv, det, slogdet and orth: one call each, by LU, Cholesky or QR; and the full-rank case of `lstsq`."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from pblas import errors
from pblas.arrays.elementwise import elementwise
from pblas.backends.local_step import agreed
from pblas.core.linalg_errors import SingularMatrixError
from pblas.core.options import MatrixOrArray
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
from pblas.factor.refinement import HALF, MODES, RefineDtype, refined
from pblas.factor.with_factor import in_range, range_scale, zeros
from pblas.layouts.descriptor import resized
from pblas.matmul.with_arrays import replicated_matrix
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.runtime.progress import Progress, ProgressTarget, StageReport
from pblas.runtime.runtime import checked_flag, is_one_of
from pblas.triangular.trsm import triangle_solved

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Number
    from pblas.factor.qr_factor import QrFactor

_KINDS: tuple[Any, ...] = ("gen", "pos")


def solve(
    a: DistMatrix,
    b: MatrixOrArray,
    *,
    assume_a: Literal["gen", "pos"] = "gen",
    overwrite_a: bool = False,
    check: bool = True,
    refine: RefineDtype | None = None,
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
        check: warn of an ill-conditioned A. About five products and five solves with one right-hand side tell, if the
            pivots of A differ by 3/4 of the digits; otherwise it costs a look at the pivots (global).
        refine: factor a float64 A in float32, a complex128 one in complex64, and refine X to the backward error of a
            factorization in A's dtype, by GMRES if A is ill-conditioned. While A is factored by panels on GPUs, "tf32"
            multiplies elements as sums of two numbers of TF32, with 22 of 24 bits, and "float16" with 11 bits; CPUs
            have no such products, and take float32. If A is too ill-conditioned for that, it is factored in its dtype
            after all. The log has the numbers of iterations and the backward error, or says so. `overwrite_a` and
            `check` then concern the second factorization only (global).
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
    x, rcond = solved(a, b, assume_a, overwrite_a=overwrite_a, check=check, progress=progress, refine=refine)
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
    refine: Any = None,
) -> tuple[MatrixOrArray, float]:
    """**Collective.** The result of `solve`, and `Factor.condition` of A if it is checked, else 1."""
    opname, runtime = "solve", arguments.runtime_of("solve", a)
    with runtime.call(opname), Progress(opname, runtime, progress) as reports:
        with runtime.local_step(opname):
            if not is_one_of(assume_a, *_KINDS):
                raise errors.ArgumentError(f"{opname}: assume_a must be 'gen' or 'pos', got {assume_a!r}")
            arguments.check_matrix(opname, "A", a, runtime)
            arguments.check_square(opname, a.desc)
            b, signature = arguments.checked_right(opname, b, a.shape, a.dtype, runtime)
            arguments.check_not_given_up(opname, a, b, overwrite_a)
            check = checked_flag(opname, "check", check)
            _check_refinement(opname, refine, a)
        others = {"assume_a": assume_a, "B": signature, "check of the condition": check, "refine": refine}
        stage = reports.stage("factor")
        is_pos = assume_a == "pos"
        if refine is not None:
            runtime.agree(opname, {**others, "overwrite_a": overwrite_a, **a.signature()})
            x = _refined(opname, a, b, assume_a, refine, stage)
            if x is not None:
                return x, 1.0
        kind: type[PlannedFactorization] = PlannedCholesky if is_pos else PlannedLu
        factoring = prepared(kind, opname, a, overwrite_a=overwrite_a, progress=stage, others=others)
        factored = factoring.factored(a)
        factor: Factor = (CholeskyFactor if is_pos else LuFactor)(factored, a.desc.without_lld)
        x = factor.solution(opname, b, progress=reports.stage("solve"))
        if not check or (screens and not are_suspicious(opname, runtime, factor.local_pivots(), a.dtype)):
            return x, 1.0
        return x, factor.condition(opname)


def _check_refinement(opname: str, refine: object, a: DistMatrix) -> None:
    """Check the argument of that name (local)."""
    if not is_one_of(refine, None, *MODES):
        names = ", ".join(map(repr, MODES))
        raise errors.ArgumentError(f"{opname}: refine must be None or one of {names}, got {refine!r}")
    if refine is not None and a.dtype.name not in HALF:
        raise errors.DTypeError(f"{opname}: refine={refine!r} is for float64 and complex128, A is {a.dtype.name}")


def _refined(
    opname: str,
    a: DistMatrix,
    b: MatrixOrArray,
    assume_a: Literal["gen", "pos"],
    refine: RefineDtype,
    progress: StageReport,
) -> MatrixOrArray | None:
    """**Collective.** X by factors in fewer bits; None if A is too ill-conditioned."""
    options = assume_a, refine, one_norm(a, is_pos=assume_a == "pos"), progress
    if isinstance(b, DistMatrix):
        return refined(opname, a, b, *options)
    x = refined(opname, a, replicated_matrix(opname, a, arguments.columns_of(b)), *options)
    if x is None:
        return None
    array = x.to_global(None)
    assert array is not None, "on all ranks"
    return array.reshape(b.shape)


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

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     (4 * pblas.linalg.inv(2 * ctx.eye(2))).to_global(None).tolist()
    [[2.0, 0.0], [0.0, 2.0]]
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

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     round(pblas.linalg.det(2 * ctx.eye(3)), 12)
    np.float64(8.0)
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


def lu_factored(opname: str, a: DistMatrix) -> LuFactor:
    """**Collective.** The LU factor of a square matrix."""
    return lu_of(prepared(PlannedLu, opname, a, square=True), a)


_SHIFTS = 32, 64, 128, 256, 512, 1024
"""Exponents by which a matrix is scaled down, one after the other, until no element of U overflows."""


def _determinant(opname: str, a: DistMatrix) -> Determinant:
    """**Collective.** The determinant of a square matrix, also if elements of its U are too large for its dtype."""
    det = lu_factored(opname, a).determinant(opname)
    for shift in _SHIFTS:
        if np.isfinite(det.mantissa) or not np.isfinite(a.norm("max")):
            break
        det = lu_factored(opname, elementwise("x * s", x=a, s=2.0**-shift)).determinant(opname)
        det = det._replace(exponent=det.exponent + shift * a.shape[0])
    return det


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
        dependent = negligible(np.abs(factor.upper(opname, min(m, n)).diagonal()), a.shape)
        if dependent:
            raise agreed(not_of_full_rank(opname, dependent))
        q = factor.formed(opname, "reduced")
        return q if m >= n else redistributed(opname, q, resized(a.desc, (m, m)), is_temporary=True)


class ScaledFactor(NamedTuple):
    """The factor of `scale` A, or of its adjoint if m < n, its R and the sizes of R's diagonal (global)."""

    factor: QrFactor
    r: DistMatrix
    diagonal: Array
    scale: float


def scaled_factor(
    opname: str, a: DistMatrix, overwrite_a: Any, progress: StageReport, signature: object
) -> ScaledFactor:
    """**Collective.** The QR factor of a matrix of full rank, scaled if its elements are close to the limits."""

    def of(x: DistMatrix, scale: float) -> ScaledFactor:
        x = x if x.shape[0] >= x.shape[1] else x.H
        factor, _ = factored(opname, x, overwrite_a=overwrite_a, progress=progress, others={"B": signature})
        r = factor.triangle(opname)
        return ScaledFactor(factor, r, np.abs(r.diagonal()), scale)

    scaled = of(*(in_range(a) if overwrite_a else (a, 1.0)))
    size = scaled.diagonal.max(initial=0)
    if not overwrite_a and (not 0 < size < inf or range_scale(size) != 1):  # R shows that A needs a scale
        x, scale = in_range(a)
        if scale != 1:
            scaled = of(x, scale)
    return scaled


def full_rank_solution(
    opname: str, scaled: ScaledFactor, a: DistMatrix, b: DistMatrix, progress: StageReport
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


def negligible(diagonal: Array, shape: tuple[int, int]) -> int:
    """The first size of R's diagonal, from 1, that is negligible beside the largest; 0 if A has full rank (global)."""
    if type(diagonal) is not np.ndarray:  # of a dry run: R has no elements
        return 0
    limit = np.finfo(diagonal.dtype).eps * max(shape) * diagonal.max(initial=0)
    found = np.flatnonzero(diagonal <= limit)  # NaN is not: it becomes the result
    return int(found[0]) + 1 if found.size else 0


def not_of_full_rank(opname: str, k: int) -> SingularMatrixError:
    """The error of a matrix with a negligible element k of R's diagonal."""
    text = (
        f"{opname}: A does not have full rank: element {k} of the diagonal of R, counted from 1, is negligible; "
        f"leave out rows or columns that depend on others, or scale those that are tiny"
    )
    return SingularMatrixError(text, k)
