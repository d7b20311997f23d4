"""polar: A = U P with orthonormal columns in U and a Hermitian positive semidefinite P."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pblas import errors
from pblas.arrays.elementwise import elementwise
from pblas.factor import arguments
from pblas.factor.qr_matrices import qr
from pblas.factor.with_factor import in_range
from pblas.layouts.descriptor import resized
from pblas.matmul.api import pmatmul
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.runtime.progress import Progress, ProgressTarget, StageReport
from pblas.runtime.runtime import Runtime, is_one_of
from pblas.spectral.svd_steps import finite_size, singular_system
from pblas.spectral.unitary import unitary_factor

PolarAlgorithm = Literal["auto", "newton", "qdwh", "svd"]
"""By one of the iterations of `qdwh`, or by singular values."""

_ALGORITHMS: tuple[PolarAlgorithm, ...] = ("auto", "newton", "qdwh", "svd")
_NEWTON_FROM = 2048
"""Length of the shorter side from which on Newton's iteration takes less time on CPUs than singular values: as much for
1024 columns, 4/5 for 2048 (AMD EPYC, 2 ranks, condition 1e8)."""


class PolarResult(NamedTuple):
    """U and P with A = U P, or A = P U with side="left", as of scipy.linalg.polar."""

    U: DistMatrix
    P: DistMatrix


def polar(
    a: DistMatrix,
    side: Literal["right", "left"] = "right",
    *,
    algorithm: PolarAlgorithm = "auto",
    progress: ProgressTarget = False,
) -> PolarResult:
    """**Collective.** A = U P with U^H U = I (if m < n: U U^H = I), and P Hermitian positive semidefinite.

    U is the matrix with orthonormal columns that is nearest to A.

    Args:
        a: m x n matrix of any layout, which may be a view; it is not changed (global).
        side: "right" for A = U P, "left" for A = P U (global).
        algorithm: "qdwh" consists of QR and Cholesky factorizations and products: from two to six iterations, as many
            as the estimated condition of A needs. "newton" takes as many inverses, two to eight. "svd" takes U and P
            from singular values; a matrix that is singular to rounding is decomposed so in any case. "auto" takes
            "qdwh" on GPUs, on CPUs "newton" of large matrices and otherwise "svd" (global).
        progress: as in `svd`; the stages are those of `svd`, or "iterate" (global).

    Returns:
        U, a new matrix in the layout of A; P, new, n x n or with side="left" m x m, on the grid of A.

    Raises:
        ArgumentError: a wrong argument; NaN or infinite elements.
        BackendError, ConvergenceError, DTypeError: as `svd`.

    Source: Nakatsukasa, Bai, Gygi, Optimizing Halley's iteration for computing the matrix polar decomposition, 2010;
        scipy.linalg.polar.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     U, P = pblas.linalg.polar(ctx.from_global(np.array([[0.0, -2.0], [3.0, 0.0]])))
    ...     U.to_global().round(9).tolist(), P.to_global().round(9).tolist()
    ([[0.0, -1.0], [1.0, 0.0]], [[3.0, 0.0], [0.0, 2.0]])
    """
    opname, runtime = "polar", arguments.runtime_of("polar", a)
    with runtime.call(opname), Progress(opname, runtime, progress) as reports:
        with runtime.local_step(opname):
            _check(opname, a, runtime, side, algorithm)
        runtime.agree(opname, {"side": side, "algorithm": algorithm, **a.signature()})
        if algorithm == "auto":
            on_cpus: PolarAlgorithm = "newton" if min(a.shape) >= _NEWTON_FROM else "svd"
            algorithm = "qdwh" if runtime.backend.gpus else on_cpus
        u = None
        if algorithm != "svd":
            u = _iterated(opname, a, reports.stage("iterate"), by_inverses=algorithm == "newton")
        if u is None:
            system = singular_system(opname, a, stage=reports.stage)
            assert system.u is not None and system.vh is not None, "with vectors"  # noqa: PT018
            u = pmatmul(system.u, system.vh, out=a.desc.without_lld)
            x = system.vh if side == "right" else system.u.H
            p = pmatmul(x.H, elementwise("x * s", x=x, s=system.s[:, None]))
        else:
            p = pmatmul(u.H, a) if side == "right" else pmatmul(a, u.H)
        # P := (P + P^H) / 2
        k = p.shape[0]
        p = redistributed(opname, p, resized(a.desc, (k, k)), is_temporary=True)
        return PolarResult(u, elementwise("(x + y) / 2", x=p, y=p.H))


def check_side(opname: str, side: Any) -> None:
    """Check the argument of that name (local)."""
    if not is_one_of(side, "right", "left"):
        raise errors.ArgumentError(f"{opname}: side must be 'right' or 'left', got {side!r}")


def _check(opname: str, a: Any, runtime: Runtime, side: Any, algorithm: Any) -> None:
    """Check the arguments (local)."""
    arguments.check_matrix(opname, "A", a, runtime)
    check_side(opname, side)
    if not is_one_of(algorithm, *_ALGORITHMS):
        names = ", ".join(map(repr, _ALGORITHMS))
        raise errors.ArgumentError(f"{opname}: algorithm must be one of {names}, got {algorithm!r}")


def _iterated(opname: str, a: DistMatrix, progress: StageReport, *, by_inverses: bool) -> DistMatrix | None:
    """**Collective.** U by an iteration; None if A is singular to rounding."""
    finite_size(opname, a)
    if not min(a.shape):
        return a.copy()
    is_wide = a.shape[0] < a.shape[1]
    x, q = in_range(a)[0], None
    x = x.H if is_wide else x
    if a.shape[0] != a.shape[1]:  # A = Q R
        q, x = qr(x)
    u, is_singular = unitary_factor(opname, x, progress, by_inverses=by_inverses)
    if is_singular:
        return None
    u = u if q is None else pmatmul(q, u)
    return redistributed(opname, u, a.desc.without_lld, trans="C" if is_wide else "N", is_temporary=True)
