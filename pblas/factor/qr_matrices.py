"""qr: A = Q R with Q and R as matrices, also with column pivoting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, overload

from pblas import errors
from pblas.factor import arguments
from pblas.factor.choose import QrAlgorithm
from pblas.factor.in_place import factor_pivoted_qr, reflectors_of
from pblas.factor.qr import factored
from pblas.factor.qr_factor import Mode, QrFactor
from pblas.layouts.descriptor import resized
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.runtime.progress import Progress, ProgressTarget, StageReport
from pblas.runtime.runtime import checked_flag, is_one_of

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array

_MODES: tuple[object, ...] = ("reduced", "r", "complete")


class QrResult(NamedTuple):
    """Q and R with A = Q R, as of numpy.linalg.qr."""

    Q: DistMatrix
    R: DistMatrix


class PivotedQrResult(NamedTuple):
    """Q, R and P with A[:, P] = Q R, as of scipy.linalg.qr.

    Args:
        Q: m x k with orthonormal columns, k = min(m, n); m x m with mode="complete" (global).
        R: k x n, or m x n, upper trapezoidal; the diagonal descends in size (global).
        P: for each column of Q R the column of A, from 0; an array equal on all ranks (global).
    """

    Q: DistMatrix
    R: DistMatrix
    P: Array


@overload
def qr(
    a: DistMatrix,
    *,
    mode: Literal["reduced", "complete"] = "reduced",
    pivoting: Literal[False] = False,
    algorithm: QrAlgorithm = "auto",
    overwrite_a: bool = False,
    progress: ProgressTarget = False,
) -> QrResult: ...
@overload
def qr(
    a: DistMatrix,
    *,
    mode: Literal["r"],
    pivoting: Literal[False] = False,
    algorithm: QrAlgorithm = "auto",
    overwrite_a: bool = False,
    progress: ProgressTarget = False,
) -> DistMatrix: ...
@overload
def qr(
    a: DistMatrix,
    *,
    mode: Literal["reduced", "complete"] = "reduced",
    pivoting: Literal[True],
    algorithm: QrAlgorithm = "auto",
    overwrite_a: bool = False,
    progress: ProgressTarget = False,
) -> PivotedQrResult: ...
def qr(
    a: DistMatrix,
    *,
    mode: Literal["reduced", "r", "complete"] = "reduced",
    pivoting: bool = False,
    algorithm: QrAlgorithm = "auto",
    overwrite_a: bool = False,
    progress: ProgressTarget = False,
) -> QrResult | PivotedQrResult | DistMatrix:
    """**Collective.** Q and R with A = Q R: the columns of Q are orthonormal, R is upper triangular.

    Args:
        a: m x n matrix of any layout, which may be a view; it is not changed (global).
        mode: "reduced": Q is m x k and R is k x n, k = min(m, n); "complete": Q is m x m, R is m x n; "r": R is k x n
            and is returned alone (global).
        pivoting: A[:, P] = Q R, where the longest of the columns that remain comes next, so that the diagonal of R
            descends in size. It takes no mode "r", algorithm or overwrite_a (global).
        algorithm: as in `qr_factor` (global).
        overwrite_a: A is not needed any more, and is factored in place where `qr_factor` does so. Otherwise a Q of the
            shape of A takes the memory of A, and is A, unless A is conjugated or read-only (global).
        progress: as in `qr_factor`; the stages are "factor" and "Q" (global).

    Returns:
        Q and R, new matrices: in the layout of A, or on its grid where the shape is another; see `QrFactor.q`. With
        pivoting=True also P: see `PivotedQrResult`.

    Raises:
        ArgumentError, BackendError, DTypeError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     Q, R = pblas.linalg.qr(ctx.from_global(np.array([[3.0], [4.0]])))
    ...     Q.to_global().round(3).tolist(), R.to_global().round(3).tolist()
    ([[-0.6], [-0.8]], [[-5.0]])
    """
    opname, runtime = "qr", arguments.runtime_of("qr", a)
    with runtime.call(opname), Progress(opname, runtime, progress) as reports:
        with runtime.local_step(opname):
            if not is_one_of(mode, *_MODES):
                raise errors.ArgumentError(f"{opname}: mode must be 'reduced', 'r' or 'complete', got {mode!r}")
            if checked_flag(opname, "pivoting", pivoting) and (mode == "r" or algorithm != "auto" or overwrite_a):
                raise errors.ArgumentError(
                    f"{opname}: pivoting=True takes no mode='r', algorithm or overwrite_a; leave them out"
                )
            arguments.check_matrix(opname, "A", a, runtime)
        if pivoting:
            runtime.agree(opname, {"pivoting": True, "mode": mode, **a.signature()})
            return _pivoted(opname, a, "complete" if mode == "complete" else "reduced", reports.stage("factor"))
        factor, overwriting = factored(
            *(opname, a),
            algorithm=algorithm,
            overwrite_a=overwrite_a,
            progress=reports.stage("factor"),
            others={"mode": mode, "pivoting": False},
        )
        is_last = not overwriting.in_place
        if mode == "r":
            return factor.upper(opname, min(a.shape), is_last=is_last)
        out = a if overwriting.result and not overwriting.in_place else None
        q = factor.taken(opname, mode, out, reports.stage("Q"))
        k = a.shape[0] if mode == "complete" else min(a.shape)
        return QrResult(q, factor.upper(opname, k, is_last=is_last))


def _pivoted(opname: str, a: DistMatrix, mode: Mode, progress: StageReport) -> PivotedQrResult:
    """**Collective.** A[:, P] = Q R."""
    v = redistributed(opname, a, a.desc.without_lld)
    tau, order = factor_pivoted_qr(opname, v)
    if progress is not None:
        progress(1.0)
    (m, n), k = a.shape, min(a.shape)
    q = QrFactor(reflectors_of(opname, v[:, :k], tau), resized(a.desc, (m, k))).taken(opname, mode)
    rows = q.shape[1]
    r = redistributed(opname, v[:rows], resized(a.desc, (rows, n)), uplo="U", is_temporary=True)
    return PivotedQrResult(q, r, order)
