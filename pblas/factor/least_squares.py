"""lstsq and orth: least squares and orthonormal bases, by QR, of matrices of full rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import numpy as np

from pblas import errors
from pblas.arrays.stacking import resized
from pblas.backends.local_step import agreed
from pblas.core.linalg_errors import SingularMatrixError
from pblas.core.options import MatrixOrArray
from pblas.core.progress import Progress, ProgressTarget, StageReport
from pblas.factor import arguments
from pblas.factor.qr import factored
from pblas.matmul.with_arrays import replicated_matrix
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.triangular.trsm import triangle_solved

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.factor.qr_factor import QrFactor


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

    A has full rank. With m >= n X is R^-1 Q^H B, with A = Q R; with m < n it is Q R^-H B, with A^H = Q R.

    Args:
        a: m x n matrix of any layout, which may be a view; it is not changed (global).
        b: m x k matrix of the dtype of A, in any layout; or an array of m elements, equal on all ranks (global).
        overwrite_a: A is not needed any more, and is factored in place where its layout allows that: see `qr_factor`
            (global).
        progress: as in `qr_factor`; the stages are "factor" and "solve" (global).

    Returns:
        X, n x k, on the grid of B, or an array of n elements for an array; the squared norms of the columns of B - A X,
        an array equal on all ranks that is empty if m <= n; the rank; None.

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
    verb, runtime = "lstsq", arguments.runtime_of("lstsq", a)
    with runtime.call(verb), Progress(verb, runtime, progress) as reports:
        with runtime.local_step(verb):
            arguments.check_matrix(verb, "A", a, runtime)
            m, n = a.shape
            if isinstance(b, DistMatrix):
                arguments.check_matrix(verb, "B", b, runtime, a.dtype)
                if b.shape[0] != m:
                    raise errors.DescriptorError(f"{verb}: A is {m} x {n}, B has {b.shape[0]} rows; make them agree")
                arguments.check_not_given_up(verb, a, b, overwrite_a)
                signature: Any = b.signature()
            else:
                vector = arguments.checked_vector(verb, b, m, a.dtype, runtime)
                signature = vector.shape
        factor, _ = factored(
            *(verb, a if m >= n else a.H),
            overwrite_a=overwrite_a,
            progress=reports.stage("factor"),
            others={"B": signature},
        )
        stage = reports.stage("solve")
        if isinstance(b, DistMatrix):
            x, residuals = _solved(verb, factor, a, b, stage)
            return LstsqResult(x, residuals, min(m, n), None)
        solution, residuals = _solved(verb, factor, a, replicated_matrix(verb, a, vector), stage)
        array = solution.to_global(None)
        assert array is not None, "on all ranks"
        return LstsqResult(array[:, 0], residuals, min(m, n), None)


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
    verb, runtime = "orth", arguments.runtime_of("orth", a)
    with runtime.call(verb):
        m, n = a.shape
        # With m < n the columns of R^H, with A^H = Q R, span the same space as those of A
        factor = factored(verb, a if m >= n else factored(verb, a.H)[0].upper(verb, m).H)[0]
        _check_rank(verb, factor.upper(verb, min(m, n)), a.shape)
        q = factor.formed(verb, "reduced")
        return q if m >= n else redistributed(verb, q, resized(a.desc, (m, m)), is_temporary=True)


def _solved(
    verb: str, factor: QrFactor, a: DistMatrix, b: DistMatrix, progress: StageReport
) -> tuple[DistMatrix, Array]:
    """**Collective.** X and the squared norms of the columns of B - A X, with the factor of A, or of A^H if m < n."""
    (m, n), r, residuals = a.shape, factor.triangle(verb), np.empty(0, np.zeros(0, a.dtype).real.dtype)
    _check_rank(verb, r, a.shape)
    if m < n:
        z = _zeros(verb, b, n)
        triangle_solved(verb, r, b, uplo="U", trans="C", out=z[:m, :])
        return factor.applied(verb, z, "N", progress), residuals
    y = factor.applied(verb, b, "C", progress)
    if m > n:
        residuals = y[n:, :].norm(axis=0) ** 2
    return triangle_solved(verb, r, y[:n, :], uplo="U", out=resized(b.desc, (n, b.shape[1]))), residuals


def _check_rank(verb: str, r: DistMatrix, shape: tuple[int, int]) -> None:
    """**Collective.** Raise SingularMatrixError, on all ranks, if an element of R's diagonal is negligible."""
    diagonal = np.abs(r.diagonal())
    limit = np.finfo(diagonal.dtype).eps * max(shape) * diagonal.max(initial=0)
    negligible = np.flatnonzero(diagonal <= limit)  # NaN is not: it becomes the result
    if negligible.size:
        k = int(negligible[0]) + 1
        text = (
            f"{verb}: A does not have full rank: element {k} of the diagonal of R, counted from 1, is negligible; "
            f"leave out rows or columns that depend on others, or scale those that are tiny"
        )
        raise agreed(SingularMatrixError(text, k))


def _zeros(verb: str, like: DistMatrix, m: int) -> DistMatrix:
    """**Collective.** A zero matrix with m rows, on the grid of another one."""
    runtime, desc = like.runtime, resized(like.desc, (m, like.shape[1]))
    z = DistMatrix(desc, runtime.empty(runtime.local_memory(desc, like.dtype)), runtime)
    with runtime.local_step(verb):
        runtime.backend.clear(z.stored(verb))
    return z
