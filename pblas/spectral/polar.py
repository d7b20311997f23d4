"""polar: A = U P with orthonormal columns in U and a Hermitian positive semidefinite P."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from pblas import errors
from pblas.arrays.elementwise import elementwise
from pblas.arrays.stacking import vstack
from pblas.backends.local_step import agreed
from pblas.core.linalg_errors import SingularMatrixError
from pblas.factor import arguments
from pblas.factor.cholesky import cho_factor
from pblas.factor.qr_matrices import qr
from pblas.factor.solvers import lu_factored
from pblas.factor.with_factor import identity, in_range
from pblas.layouts.descriptor import resized
from pblas.matmul.api import pmatmul
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.runtime.progress import Progress, ProgressTarget, StageReport
from pblas.runtime.runtime import is_one_of
from pblas.spectral.qdwh import qdwh_steps
from pblas.spectral.svd_steps import check_on_cpus, finite_size, singular_system

if TYPE_CHECKING:
    from pblas.runtime.runtime import Runtime

PolarAlgorithm = Literal["auto", "qdwh", "svd"]
"""By the iteration of `qdwh`, or by singular values."""


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
            as the estimated condition of A needs. "svd" takes U and P from singular values, on CPUs; a matrix
            that is singular to rounding is decomposed so in any case there. "auto" takes "svd" on CPUs, otherwise
            "qdwh" (global).
        progress: as in `svd`; the stages are those of `svd`, or "iterate" (global).

    Returns:
        U, a new matrix in the layout of A; P, new, n x n or with side="left" m x m, on the grid of A.

    Raises:
        ArgumentError: a wrong argument; NaN or infinite elements.
        BackendError, ConvergenceError, DTypeError: as `svd`.
        SingularMatrixError: on GPUs, A is singular to rounding.

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
        by_svd = algorithm == "svd" or (algorithm == "auto" and not runtime.backend.gpus)
        u = None if by_svd else _by_qdwh(opname, a, reports.stage("iterate"))
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


def _check(opname: str, a: Any, runtime: Runtime, side: Any, algorithm: Any) -> None:
    """Check the arguments (local)."""
    arguments.check_matrix(opname, "A", a, runtime)
    if not is_one_of(side, "right", "left"):
        raise errors.ArgumentError(f"{opname}: side must be 'right' or 'left', got {side!r}")
    if not is_one_of(algorithm, "auto", "qdwh", "svd"):
        raise errors.ArgumentError(f"{opname}: algorithm must be 'auto', 'qdwh' or 'svd', got {algorithm!r}")
    if algorithm == "svd":
        check_on_cpus(opname, runtime)


def _by_qdwh(opname: str, a: DistMatrix, progress: StageReport) -> DistMatrix | None:
    """**Collective.** U by QDWH; None if A is singular to rounding, on CPUs."""
    finite_size(opname, a)
    x, eps = in_range(a)[0], float(np.finfo(a.dtype).eps)
    tall = x if a.shape[0] >= a.shape[1] else x.H
    n, q = tall.shape[1], None
    if not n:
        return a.copy()
    if tall.shape[0] > n:  # A = Q R
        q, tall = qr(tall)
    # X := R / alpha, alpha >= norm2(R); l <= its least singular value
    alpha = sqrt(float(tall.norm(1)) * float(tall.norm(np.inf)))
    least = 0.0
    if alpha:
        tall = elementwise("x / s", x=tall, s=alpha)
        factor, size = lu_factored(opname, tall), float(tall.norm(1))
        reciprocal = 0.0 if factor.info else factor.condition(opname, size)
        least = 0.9 * reciprocal * size / sqrt(n)
    if least < n * eps:
        if not a.runtime.backend.gpus:
            return None
        text = f"{opname}: A is singular to rounding, so its polar factor is not unique; use Context(backend='mpi')"
        raise agreed(SingularMatrixError(text))
    x, steps = tall, qdwh_steps(min(least, 1.0), eps)
    for k, step in enumerate(steps):
        w, b, c = step
        if step.by_qr:
            # [sqrt(c) X; I] = [Q1; Q2] R, X := b/c X + (a - b/c) / sqrt(c) Q1 Q2^H
            one = identity(opname, resized(x.desc, (n, n)), x)
            q12 = qr(vstack((elementwise("x * s", x=x, s=sqrt(c)), one))).Q
            product, weight = pmatmul(q12[:n], q12[n:].H), (w - b / c) / sqrt(c)
        else:
            # I + c X^H X = L L^H, X := b/c X + (a - b/c) X L^-H L^-1
            one = identity(opname, resized(x.desc, (n, n)), x)
            z = pmatmul(x.H, x, one, alpha=c, beta=1, out=one)
            product, weight = cho_factor(z, overwrite_a=True).solve(x.H).H, w - b / c
        x = elementwise("s * x + t * y", x=x, y=product, s=b / c, t=weight)
        if progress is not None:
            progress((k + 1) / (len(steps) + 1))
    # X := X (3 I - X^H X) / 2   (Newton and Schulz, for the last digits)
    x = pmatmul(x, pmatmul(x.H, x), x, alpha=-0.5, beta=1.5)
    u = x if q is None else pmatmul(q, x)
    if progress is not None:
        progress(1.0)
    is_wide = a.shape[0] < a.shape[1]
    return redistributed(opname, u, a.desc.without_lld, trans="C" if is_wide else "N", is_temporary=True)
