"""lstsq and pinv: least squares and pseudoinverses of matrices of any rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple

import numpy as np

from pblas.arrays.elementwise import elementwise
from pblas.core.options import MatrixOrArray
from pblas.factor import arguments
from pblas.factor.solvers import ScaledFactor, full_rank_solution, negligible, scaled_factor
from pblas.factor.with_factor import in_range, zeros
from pblas.layouts.descriptor import resized
from pblas.matmul.api import pmatmul
from pblas.matmul.with_arrays import replicated_matrix
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.runtime.progress import Progress, ProgressTarget, StageReport
from pblas.runtime.runtime import checked_flag
from pblas.spectral.eigh import Options, eigensystem
from pblas.spectral.norms import check_rank_arguments, least_value
from pblas.spectral.svd_steps import singular_system

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array


class LstsqResult(NamedTuple, Generic[MatrixOrArray]):
    """The result of `lstsq`, as of numpy.linalg.lstsq.

    Args:
        x: the solution (global).
        residuals: the squared norm of B - A X for each right-hand side; empty if m <= n or A lacks full rank (global).
        rank: the rank of A (global).
        s: the singular values of A, descending; None where a QR factorization showed that A has full rank (global).
    """

    x: MatrixOrArray
    residuals: Array
    rank: int
    s: Array | None


def lstsq(
    a: DistMatrix,
    b: MatrixOrArray,
    *,
    rcond: float | None = None,
    overwrite_a: bool = False,
    progress: ProgressTarget = False,
) -> LstsqResult[MatrixOrArray]:
    """**Collective.** X for which the columns of B - A X are shortest; of several such X the shortest one.

    If A has full rank, X is R^-1 Q^H B with A = Q R for m >= n, and Q R^-H B with A^H = Q R for m < n. Otherwise, and
    if rcond is given, the singular values of R decide on the rank. A and B are scaled if their largest
    elements are close to the limits of the dtype.

    Args:
        a: m x n matrix of any layout, which may be a view; it is not changed (global).
        b: m x k matrix of the dtype of A, in any layout; or an array of m elements or m x k, equal on all ranks
            (global).
        rcond: singular values of at most rcond times the largest count as 0. None: eps max(m, n), and singular values
            are computed only if the diagonal of R shows that A lacks full rank (global).
        overwrite_a: A is not needed any more, and is factored in place where its layout allows that: see `qr_factor`
            (global).
        progress: as in `qr_factor`; the stages are "factor" and "solve" (global).

    Returns:
        X, n x k, on the grid of B; for an array an array of n elements or n x k, equal on all ranks. The squared norms
        of the columns of B - A X, an array equal on all ranks that is empty if m <= n or A lacks full rank. The rank.
        The singular values, or None.

    Raises:
        ConvergenceError: as `svd`.
        ArgumentError, BackendError, DescriptorError, DTypeError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.

    Source: LAPACK xGELS, xGELSD; ScaLAPACK p?gels.

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
            n = a.shape[1]
            b, signature = arguments.checked_right(opname, b, a.shape, a.dtype, runtime)
            arguments.check_not_given_up(opname, a, b, overwrite_a)
            overwrite_a = checked_flag(opname, "overwrite_a", overwrite_a)
            if rcond is not None:
                check_rank_arguments(opname, a, runtime, rcond, hermitian=False, name="rcond")
        # with overwrite_a a norm comes before the factorization
        runtime.agree(opname, {"overwrite_a": overwrite_a, "rcond": rcond})
        scaled = scaled_factor(opname, a, overwrite_a, reports.stage("factor"), signature)
        stage, dependent = reports.stage("solve"), negligible(scaled.diagonal, a.shape)
        if isinstance(b, DistMatrix):
            return LstsqResult(*_solved(opname, scaled, a, b, rcond, is_full=not dependent, progress=stage))
        columns = replicated_matrix(opname, a, arguments.columns_of(b))
        x, residuals, rank, s = _solved(opname, scaled, a, columns, rcond, is_full=not dependent, progress=stage)
        array = x.to_global(None)
        assert array is not None, "on all ranks"
        return LstsqResult(array.reshape(n, *b.shape[1:]), residuals, rank, s)


def _solved(
    opname: str,
    scaled: ScaledFactor,
    a: DistMatrix,
    b: DistMatrix,
    rcond: float | None,
    *,
    is_full: bool,
    progress: StageReport,
) -> tuple[DistMatrix, Array, int, Array | None]:
    """**Collective.** X, the squared norms of the columns of B - A X, the rank, and the singular values if computed."""
    if rcond is None and is_full:
        return *full_rank_solution(opname, scaled, a, b, progress), min(a.shape), None
    return _by_singular_values(opname, scaled, a, b, rcond, progress)


def _by_singular_values(
    opname: str, scaled: ScaledFactor, a: DistMatrix, b: DistMatrix, rcond: float | None, progress: StageReport
) -> tuple[DistMatrix, Array, int, Array]:
    """**Collective.** The shortest X, the squared norms of the columns of B - A X, the rank and the singular values."""
    (m, n), k, factor = a.shape, min(a.shape), scaled.factor
    s, u, vh = singular_system(opname, factor.upper(opname, k))
    assert u is not None and vh is not None, "with vectors"  # noqa: PT018
    residuals = np.empty(0, s.dtype)
    rank = int((s > least_value(s, a.shape, rcond)).sum())
    inverse = np.zeros((k, 1), s.dtype)
    inverse[:rank, 0] = 1 / s[:rank]
    b, of_b = in_range(b)
    shape = n, b.shape[1]
    if m < n:  # A = R^H Q^H = V S U^H Q^H
        c = elementwise("x * w", x=pmatmul(vh, b), w=inverse)
        z = zeros(opname, resized(b.desc, shape), b)
        redistributed(opname, pmatmul(u, c), out=z[:m, :], is_temporary=True)
        x = factor.applied(opname, z, "N", progress)
    else:  # A = Q R = Q U S V^H
        y = factor.applied(opname, b, "C", progress)
        if n < m and rank == n:
            residuals = (y[n:, :].norm(axis=0) / residuals.dtype.type(of_b)) ** 2
        c = elementwise("x * w", x=pmatmul(u.H, y[:n, :]), w=inverse)
        x = pmatmul(vh.H, c, out=resized(b.desc, shape))
    x = x if scaled.scale == of_b else elementwise("x * s", x=x, s=scaled.scale / of_b, out=x)
    return x, residuals, rank, s / s.dtype.type(scaled.scale)


def pinv(a: DistMatrix, *, rtol: float | None = None, hermitian: bool = False) -> DistMatrix:
    """**Collective.** The pseudoinverse of Moore and Penrose.

    Args:
        a: m x n matrix of any layout, which may be a view; it is not changed (global).
        rtol: singular values of at most rtol times the largest count as 0; None for eps max(m, n) (global).
        hermitian: A is Hermitian: its eigenvalues and eigenvectors are computed, which is faster, and the lower
            triangle is read (global).

    Returns:
        A new n x m matrix on the grid of A, in its layout if m = n.

    Raises:
        as `svd`.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.linalg.pinv(ctx.from_global(np.array([[2.0], [0.0]]))).to_global().tolist()
    [[0.5, 0.0]]
    """
    opname, runtime = "pinv", arguments.runtime_of("pinv", a)
    with runtime.call(opname):
        with runtime.local_step(opname):
            hermitian = check_rank_arguments(opname, a, runtime, rtol, hermitian)
        runtime.agree(opname, {"rtol": rtol, "hermitian": hermitian, **a.signature()})
        if hermitian:
            s, u = eigensystem(opname, a, Options("L", None, None, vectors=True, algorithm="auto"))
            assert u is not None, "with vectors"
            vh = u.H
        else:
            s, left, right = singular_system(opname, a)
            assert left is not None and right is not None, "with vectors"  # noqa: PT018
            u, vh = left, right
        least, inverse = least_value(np.abs(s), a.shape, rtol), np.zeros_like(s)
        np.divide(1, s, out=inverse, where=np.abs(s) > least)
        # A+ := V (S+ U^H)
        return pmatmul(vh.H, elementwise("x * w", x=u.H, w=inverse[:, None]), out=resized(a.desc, a.shape[::-1]))
