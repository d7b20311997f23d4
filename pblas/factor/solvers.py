"""solve, inv, det, slogdet, cond and matrix_norm: one call each, by LU or Cholesky factorization."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Literal

from pblas import errors
from pblas.core.progress import Progress, ProgressTarget
from pblas.factor import arguments
from pblas.factor.cholesky import PlannedCholesky
from pblas.factor.factorization import PlannedFactorization, prepared
from pblas.factor.factors import CholeskyFactor, Factor, LuFactor
from pblas.factor.lu import PlannedLu, lu_of
from pblas.matrices.matrix import DistMatrix

if TYPE_CHECKING:
    from pblas.backends.dtypes import Number, Real
    from pblas.core.options import MatrixOrArray
    from pblas.factor.factors import SlogdetResult
    from pblas.matrices.operators import Ord

_KINDS: tuple[Any, ...] = ("gen", "pos")


def solve(
    a: DistMatrix,
    b: MatrixOrArray,
    *,
    assume_a: Literal["gen", "pos"] = "gen",
    overwrite_a: bool = False,
    progress: ProgressTarget = False,
) -> MatrixOrArray:
    """**Collective.** X with A X = B.

    To solve with one A several times, keep its factor: `lu_factor(A)` or `cho_factor(A)`.

    Args:
        a: n x n matrix of any layout, which may be a view; it is not changed (global).
        b: n x k matrix of the dtype of A, in any layout; or an array of n elements, equal on all ranks (global).
        assume_a: "gen" for any matrix, by LU; "pos" for a Hermitian positive definite one, by Cholesky in half the
            time, which reads the lower triangle only (global).
        overwrite_a: A is not needed any more, and is factored in place where its layout allows that: see `lu_factor`
            and `cholesky` (global).
        progress: True: rank 0 prints the finished share of the work to standard error, a few times a second. A
            function: rank 0 calls it instead, with the stage, "factor" or "solve", and that share, 0 to 1 (global).

    Returns:
        X, a new matrix in the layout of B; an array of n elements, equal on all ranks, for an array.

    Raises:
        SingularMatrixError: A is singular; `info` is the first zero on the diagonal of U.
        NotPositiveDefiniteError: with "pos", a leading block is not positive definite; `info` is its order.
        ArgumentError, BackendError, DescriptorError, DTypeError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.

    Source: LAPACK xGESV, xPOSV; ScaLAPACK p?gesv, p?posv.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.linalg.solve(ctx.from_global(np.array([[0.0, 2.0], [4.0, 5.0]])), np.array([2.0, 9.0])).tolist()
    [1.0, 1.0]
    """
    verb, runtime = "solve", arguments.runtime_of("solve", a)
    with runtime.call(verb), Progress(verb, runtime, progress) as reports:
        with runtime.local_step(verb):
            if assume_a not in _KINDS:
                raise errors.ArgumentError(f"{verb}: assume_a must be 'gen' or 'pos', got {assume_a!r}")
            arguments.check_matrix(verb, "A", a, runtime)
            arguments.check_square(verb, a.desc)
            if isinstance(b, DistMatrix):  # before the factorization, which takes long
                arguments.check_matrix(verb, "B", b, runtime, a.dtype)
                arguments.check_rows(verb, a.shape[0], b.shape[0], "rows")
                arguments.check_not_given_up(verb, a, b, overwrite_a)
                signature: Any = b.signature()
            else:
                b = arguments.checked_vector(verb, b, a.shape[0], a.dtype, runtime)
                signature = b.shape
        others, stage = {"assume_a": assume_a, "B": signature}, reports.stage("factor")
        is_pos = assume_a == "pos"
        kind: type[PlannedFactorization] = PlannedCholesky if is_pos else PlannedLu
        factored = prepared(kind, verb, a, overwrite_a=overwrite_a, progress=stage, others=others).factored(a)
        factor: Factor = (CholeskyFactor if is_pos else LuFactor)(factored, a.desc.without_lld)
        return factor.agreed_solution(verb, b, progress=reports.stage("solve"))


def inv(a: DistMatrix, *, overwrite_a: bool = False, progress: ProgressTarget = False) -> DistMatrix:
    """**Collective.** The inverse, a new matrix in the layout of A. To solve equations use `solve`, which is faster.

    Args:
        a: n x n matrix of any layout, which may be a view; it is not changed (global).
        overwrite_a: A is not needed any more: the inverse takes its memory, and the result is A, unless A is conjugated
            or read-only. A is factored in place where its layout allows that: see `lu_factor` (global).
        progress: as in `solve`; the stages are "factor" and "invert" (global).

    Raises:
        SingularMatrixError: A is singular; `info` is the first zero on the diagonal of U.
        ArgumentError, BackendError, DescriptorError, DTypeError: wrong arguments; the same error on every rank.
    """
    verb, runtime = "inv", arguments.runtime_of("inv", a)
    with runtime.call(verb), Progress(verb, runtime, progress) as reports:
        _check_square(verb, a)
        factoring = prepared(PlannedLu, verb, a, overwrite_a=overwrite_a, progress=reports.stage("factor"))
        out, stage = a if factoring.overwriting.result else None, reports.stage("invert")
        return lu_of(factoring, a).inverse(verb, out, stage, is_agreed=True)


def det(a: DistMatrix) -> Number:
    """**Collective.** The determinant, a NumPy scalar equal on all ranks; 0 or inf if it is out of range.

    Args:
        a: n x n matrix of any layout, which may be a view; it is not changed (global).

    Raises:
        ArgumentError, BackendError, DescriptorError, DTypeError: wrong arguments; the same error on every rank.
    """
    with arguments.runtime_of("det", a).call("det"):
        return _factored("det", a).det()


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
        return _factored("slogdet", a).slogdet()


def cond(a: DistMatrix, p: Any = 1) -> Real:
    """**Collective.** The condition number norm(A) norm(A^-1), computed from the inverse; inf for a singular matrix.

    Args:
        a: n x n matrix of any layout, which may be a view; it is not changed (global).
        p: the norm, 1 or inf (global).

    Raises:
        ArgumentError: another norm.
        BackendError, DescriptorError, DTypeError: wrong arguments; the same error on every rank.
    """
    verb, runtime = "cond", arguments.runtime_of("cond", a)
    with runtime.call(verb):
        with runtime.local_step(verb):
            if not isinstance(p, int | float) or p not in (1, inf):
                raise errors.ArgumentError(f"{verb}: p must be 1 or inf, got {p!r}")
        runtime.agree(verb, {"p": p})
        factor, norm = _factored(verb, a), a.norm(p)
        return norm.dtype.type(inf) if factor.info else norm * factor.inv().norm(p)


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


def _factored(verb: str, a: DistMatrix) -> LuFactor:
    """**Collective.** The LU factor of a square matrix."""
    _check_square(verb, a)
    return lu_of(prepared(PlannedLu, verb, a), a)


def _check_square(verb: str, a: DistMatrix) -> None:
    """**Collective** after an error. Check a matrix that is to be factored and must be square."""
    with a.runtime.local_step(verb):
        arguments.check_matrix(verb, "A", a, a.runtime)
        arguments.check_square(verb, a.desc)
