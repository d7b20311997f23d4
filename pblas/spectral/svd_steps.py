"""Steps of calls of singular values: the reduction to a bidiagonal matrix, its values and vectors, and all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from pblas import errors
from pblas.arrays.elementwise import elementwise
from pblas.backends.cpu import lapack
from pblas.backends.local_step import agreed
from pblas.core.linalg_errors import ConvergenceError
from pblas.core.operation import Bound
from pblas.factor.qr import factored
from pblas.factor.qr_matrices import qr
from pblas.factor.with_factor import Reflectors, empty, identity, multiplied, range_scale, zeros
from pblas.layouts.descriptor import MatrixDescriptor, resized
from pblas.matmul.api import pmatmul
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.runtime.progress import StageReport
from pblas.spectral.bidiagonalization_run import Reflected, RunBidiagonalization
from pblas.spectral.choose import takes_doubled
from pblas.spectral.eigh import Options, eigensystem
from pblas.spectral.steps import Step, taken
from pblas.spectral.svd_plan import SvdAlgorithm, SvdPlan, choose_svd, placements
from pblas.spectral.unitary import unitary_factor

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.qr_factor import QrFactor
    from pblas.runtime.runtime import Runtime


class Bidiagonal(NamedTuple):
    """B, equal on all ranks: its diagonal, and the one above (global)."""

    d: Array
    e: Array


class Bidiagonalization(Step[Bidiagonal]):
    """W := V and T of the reflectors of Q with B = Q^H W P, and those of P in another matrix."""

    noun: ClassVar[str] = "reduction"

    def executor(self, plan: SvdPlan, backend: HostRanks) -> RunBidiagonalization:
        return RunBidiagonalization(plan, backend, self.dtype)

    def arrays(
        self, opname: str, runtime: Runtime, executor: Any, bound: Bound[Bidiagonal], result: DistMatrix
    ) -> Reflected:
        executor.progress, right = bound.local
        return Reflected(result.stored(opname), None if right is None else right.stored(opname))

    def finish(
        self, opname: str, runtime: Runtime, executor: Any, bound: Bound[Bidiagonal], result: DistMatrix
    ) -> Bidiagonal:
        if runtime.backend.dry is not None:
            n, real = self.chosen.order, np.zeros(0, self.dtype).real.dtype
            return Bidiagonal(
                runtime.backend.dry.known(runtime.called, np.zeros(n, real)), np.zeros(max(n - 1, 0), real)
            )
        executor.progress = None  # an exception in it keeps frames alive
        return Bidiagonal(executor.d, executor.e)


class SingularSystem(NamedTuple):
    """The singular values, descending, and U and Vh, unless only the values are wanted (global)."""

    s: Array
    u: DistMatrix | None
    vh: DistMatrix | None


def finite_size(opname: str, a: DistMatrix) -> Any:
    """**Collective.** The size of the largest element of A; ArgumentError on all ranks if A is not finite."""
    size = a.norm("max")
    if not np.isfinite(size):
        raise agreed(errors.ArgumentError(f"{opname}: A has NaN or infinite elements; replace them"))
    return size


def singular_system(
    opname: str,
    a: DistMatrix,
    *,
    vectors: bool = True,
    full: bool = False,
    algorithm: SvdAlgorithm = "auto",
    overwrite_a: bool = False,
    stage: Callable[[str], StageReport] = lambda _: None,
) -> SingularSystem:
    """**Collective.** Singular values and vectors inside another call, whose arguments are checked and agreed on."""
    runtime = a.runtime
    scale = range_scale(finite_size(opname, a), 0.5)
    scaled = a if scale == 1 else elementwise("x * s", x=a, s=scale)
    if algorithm == "polar" or runtime.backend.gpus:
        system = _by_polar(
            opname, scaled, vectors=vectors, full=full, overwrite_a=overwrite_a and scale == 1, stage=stage
        )
        return system._replace(s=system.s / system.s.dtype.type(scale))
    plan = choose_svd(
        a.desc, a.dtype.name, runtime.nprocs, runtime.transport, vectors=vectors, full=full, algorithm=algorithm
    )
    # Q1, R of A, or of A^H
    factor, square = None, scaled
    if plan.factor is not None:
        x = scaled.H if plan.is_wide else scaled
        factor, _ = factored(opname, x, overwrite_a=overwrite_a and scale == 1, progress=stage("factor"))
        square = factor.upper(opname, plan.order, is_last=not vectors)
    # W := R, or A
    w = empty(plan.w, a)
    redistributed(opname, square, out=w[: plan.order], is_temporary=square is not a)
    right = empty(plan.w, a) if vectors else None
    # B := Q^H W P
    b = taken(Bidiagonalization, opname, plan, w, stage("reduce"), right)
    # s, Ub, Vb of B
    values, ub = _solved(opname, plan, b, w)
    values = values / values.dtype.type(scale)
    if right is None or ub is None:
        return SingularSystem(values, None, None)
    z, zv = _back_transformed(opname, plan, ub, w, right, stage("transform"))
    return SingularSystem(values, *_placed(opname, (plan.u, plan.vh), z, zv, factor, wide=plan.is_wide))


def _by_polar(
    opname: str, a: DistMatrix, *, vectors: bool, full: bool, overwrite_a: bool, stage: Callable[[str], StageReport]
) -> SingularSystem:
    """**Collective.** The singular system by eigenvalues of a polar factor.

    Q1, R of A, or of A^H        (if A is not square)
    [0 R^H; R 0]                 (for values only: its eigenvalues are s and -s)
    R = U H                      (QDWH)
    H = V diag(s) V^H            (by eigenvalues of -H, which ascend as s descends)
    Z := U V                     (orthonormal by QR, if A is singular to rounding)

    Source: Higham, Papadimitriou, A parallel algorithm for computing the polar decomposition, 1994; Nakatsukasa,
        Higham, Stable and efficient spectral divide and conquer algorithms, 2013.
    """
    (m, n), factor, square, k = a.shape, None, a, min(a.shape)
    if m != n:
        factor, _ = factored(opname, a.H if m < n else a, overwrite_a=overwrite_a, progress=stage("factor"))
        square = factor.upper(opname, k, is_last=not vectors)
    options = Options("L", None, None, vectors=vectors, algorithm="auto")
    if not vectors and takes_doubled(k, a.dtype.name):
        # [0 R^H; R 0] has the eigenvalues s and -s
        h = zeros(opname, resized(a.desc.without_lld, (2 * k, 2 * k)), a)
        redistributed(opname, square, out=h[k:, :k])
        w, _ = eigensystem(opname, h, options, stage, overwrite_a=True)
        return SingularSystem(np.maximum(w[: k - 1 : -1], 0), None, None)
    u, is_singular = unitary_factor(opname, square, stage("iterate"))
    h = pmatmul(u.H, square)
    # H := -(H + H^H) / 2
    h = elementwise("(x + y) * s", x=h, y=h.H, s=-0.5)
    w, v = eigensystem(opname, h, options, stage, overwrite_a=True)
    s = np.maximum(-w, 0)
    if v is None:
        return SingularSystem(s, None, None)
    z = pmatmul(u, v)
    if is_singular:
        z, r = qr(z)
        diagonal = r.diagonal()
        size = np.abs(diagonal)
        z = elementwise("x * s", x=z, s=np.where(size > 0, diagonal / np.where(size > 0, size, 1), 1))
    return SingularSystem(s, *_placed(opname, placements(a.desc, full=full), z, v, factor, wide=m < n))


def _solved(opname: str, plan: SvdPlan, b: Bidiagonal, w: DistMatrix) -> tuple[Array, DistMatrix | None]:
    """**Collective.** The singular values of B, and if wanted Ub and Vb^T side by side, by LAPACK on rank 0."""
    runtime, n, values, info = w.runtime, plan.order, b.d.copy(), 0
    ub = empty(plan.single, w) if plan.vectors else None
    if runtime.backend.dry is not None:
        return values, ub
    with runtime.agreed_step(opname, "vectors of a bidiagonal matrix"):
        if runtime.rank == 0:
            with runtime.backend.all_threads(n**3):
                pair = None if ub is None else np.empty((n, 2 * n), values.dtype, "F")
                info = lapack.bdsdc(values, b.e.copy(), None if pair is None else (pair[:, :n], pair[:, n:]))
            if ub is not None:
                ub.stored(opname)[...] = pair
    values, info = runtime.backend.broadcast_object((values, info), 0)
    if info:
        text = f"{opname}: LAPACK did not find all singular values of a bidiagonal matrix, INFO={info}; scale A"
        raise agreed(ConvergenceError(text, info))
    return values, ub


def _back_transformed(
    opname: str, plan: SvdPlan, ub: DistMatrix, w: DistMatrix, right: DistMatrix, progress: StageReport
) -> tuple[DistMatrix, DistMatrix]:
    """**Collective.** Z := Q Ub and P Vb; in each column of P Vb the first of the largest elements is positive."""
    n, runtime = plan.order, w.runtime
    z = redistributed(opname, ub[:, :n], plan.z)
    zv = redistributed(opname, ub[:, n:], plan.z, trans="T", is_temporary=True)
    multiplied(opname, Reflectors(w), z, out=z)
    if n > 1:
        below = zv[1:]
        multiplied(opname, Reflectors(right[1:, : n - 1]), below, out=below)
    runtime.end_reading(opname)
    with runtime.agreed_step(opname, "signs"):
        lapack.fix_signs(zv.stored(opname), z.stored(opname))
    if progress is not None:
        progress(1.0)
    return z, zv


def _placed(
    opname: str,
    targets: tuple[MatrixDescriptor, MatrixDescriptor],
    z: DistMatrix,
    zv: DistMatrix,
    factor: QrFactor | None,
    *,
    wide: bool,
) -> tuple[DistMatrix, DistMatrix]:
    """**Collective.** U and Vh in their layouts, of R = Z diag(s) Zv^H."""
    n, (of_u, of_vh) = z.shape[0], targets
    if factor is None:
        return redistributed(opname, z, of_u, is_temporary=True), redistributed(
            opname, zv, of_vh, trans="C", is_temporary=True
        )
    # the long vectors: Q1 [Z; 0], or all of Q1 diag(Z, I)
    long = of_vh.T if wide else of_u
    c = (identity if long.n > n else zeros)(opname, long, z)
    redistributed(opname, z, out=c[:n, :n], is_temporary=True)
    c = factor.applied(opname, c, "N")
    if wide:
        u = redistributed(opname, zv, of_u, is_temporary=True)
        return u, redistributed(opname, c, of_vh, trans="C", is_temporary=True)
    return c, redistributed(opname, zv, of_vh, trans="C", is_temporary=True)
