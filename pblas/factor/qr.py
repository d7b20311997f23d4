"""qr_factor and plan_qr: A = Q R by Householder reflectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pblas.core.call import step
from pblas.core.operation import Bound
from pblas.factor import arguments
from pblas.factor.choose import Kind, QrAlgorithm
from pblas.factor.factorization import Factoring, Overwriting, PlannedFactorization, planned, prepared
from pblas.factor.qr_factor import CholeskyQrFactor, QrFactor, orthonormalized
from pblas.factor.qr_plan import CholeskyQrPlan, QrPlan
from pblas.factor.qr_run import RunCholeskyQr
from pblas.factor.with_factor import Reflectors
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import Redistribution, redistributed
from pblas.runtime.progress import Progress, ProgressTarget, StageReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import DTypeLike

    from pblas.redistribution.redistribution_plan import RedistributionPlan
    from pblas.redistribution.redistribution_run import RedistributionOperands
    from pblas.runtime.runtime import Runtime
    from pblas.simulation.hardware import Hardware, Topology


class PlannedQr(PlannedFactorization):
    """A planned QR factorization: `execute(A)` gives the factor. Made by `plan_qr`."""

    kind: ClassVar[Kind] = "qr"

    def execute(self, a: DistMatrix) -> QrFactor:
        """**Collective.** The QR factorization of a matrix like the planned one.

        Args:
            a: A, with the descriptor and the dtype that were planned (global).

        Returns:
            The factor, as of `qr_factor`.

        Raises:
            as `qr_factor`; ArgumentError for a plan made from a descriptor only.
        """
        with self.executing():
            return _factor(self.factoring(a), a)


def factored(
    opname: str,
    a: DistMatrix,
    *,
    algorithm: object = "auto",
    overwrite_a: bool = False,
    progress: StageReport = None,
    others: Mapping[str, object] | None = None,
) -> tuple[QrFactor, Overwriting]:
    """**Collective.** The QR factor of a matrix, inside another call, and the use of A's memory; see `prepared`."""
    factoring = prepared(
        PlannedQr, opname, a, algorithm=algorithm, overwrite_a=overwrite_a, progress=progress, others=others
    )
    if isinstance(factoring.plan, CholeskyQrPlan):  # A is needed if it is too ill-conditioned
        factoring = factoring._replace(overwriting=factoring.overwriting._replace(in_place=False))
    return _factor(factoring, a), factoring.overwriting


def _factor(factoring: Factoring, a: DistMatrix) -> QrFactor:
    """**Collective.** The QR factor of A; CholeskyQR leaves A as it is."""
    opname, plan, runtime = factoring.opname, factoring.plan, a.runtime
    if not isinstance(plan, CholeskyQrPlan):
        return QrFactor(reflectors(factoring, a), a.desc.without_lld)
    if factoring.agrees:
        factoring = factoring.agreed(runtime)
    found = orthonormalized(opname, a, plan.w, RunCholeskyQr(plan, runtime.backend, a.dtype))
    if found is None:
        assert plan.fallback is not None, "a plan that is executed has one"
        return _factor(factoring._replace(plan=plan.fallback, planned=None), a)
    if factoring.progress is not None:
        factoring.progress(1.0)
    return CholeskyQrFactor(*found, a.desc.without_lld)


def reflectors(factoring: Factoring, a: DistMatrix) -> Reflectors:
    """**Collective.** Q and R of A, in a copy of it, or in A itself."""
    opname, plan, runtime = factoring.opname, factoring.plan, a.runtime
    if factoring.overwriting.in_place:
        w = DistMatrix(plan.w, a.stored(opname), runtime)
        agrees = factoring.agrees
    else:
        copied = copied_for_reflectors if isinstance(plan, QrPlan) else redistributed
        w, agrees = copied(opname, a, plan.w, agrees=factoring.agrees), ""
    result = factoring.run(w, agrees)
    return Reflectors(w, result.tree, result.t)


@dataclass(frozen=True, eq=False)
class CopyForReflectors(Redistribution):
    """W[:m] := A. Below the rows of A, W has rows for the triangles T of its reflectors."""

    def plan(self, nprocs: int, topology: Topology) -> RedistributionPlan:
        target = self.b.submatrix(0, self.a.m, 0, self.a.n)
        return Redistribution(self.trans, None, self.a, target, self.dtype, self.conjugated).plan(nprocs, topology)

    def arrays(
        self, opname: str, runtime: Runtime, executor: Any, bound: Bound[DistMatrix], result: DistMatrix
    ) -> RedistributionOperands:
        operands = super().arrays(opname, runtime, executor, bound, result)
        return operands._replace(target=operands.target[: self.a.m])


def copied_for_reflectors(opname: str, a: DistMatrix, w: MatrixDescriptor, *, agrees: str = "") -> DistMatrix:
    """**Collective.** A new matrix with the elements of A in its first rows, in the layout W of a `QrPlan`."""
    form = "N", None, a.desc.without_lld, w, a.dtype, a.conjugated
    scalars = {"alpha": 1.0, "beta": 0.0}
    return step(opname, a.runtime, lambda: Bound(CopyForReflectors, form, scalars, {"A": a}, None), agrees=agrees)


def plan_qr(
    a: DistMatrix | MatrixDescriptor,
    *,
    algorithm: QrAlgorithm = "auto",
    dtype: DTypeLike | None = None,
    nprocs: int | None = None,
    hardware: Hardware | str | None = None,
) -> PlannedQr:
    """Plan a QR factorization. **Collective** with a matrix; with a descriptor it needs no MPI.

    Args:
        a: the m x n matrix, or its descriptor (global).
        algorithm: as in `qr_factor` (global).
        dtype: dtype of the matrix, needed with a descriptor (global).
        nprocs: number of ranks, when planning from a descriptor; None for its grid (global).
        hardware: machine to plan for, when planning from a descriptor, as in `plan_matmul`; None for one node of CPUs
            (global).

    Returns:
        The planned factorization: `print(f.explain())`, `f.execute(a)`, `f.plan.simulate("fat-tree")`.

    Raises:
        as `qr_factor`.

    >>> plan_qr(MatrixDescriptor.row_wise(100000, 64, 4), dtype="float64").plan.name
    'TsqrPlan'
    """
    return planned(PlannedQr, "plan_qr", a, dtype=dtype, nprocs=nprocs, algorithm=algorithm, hardware=hardware)


def qr_factor(
    a: DistMatrix, *, algorithm: QrAlgorithm = "auto", overwrite_a: bool = False, progress: ProgressTarget = False
) -> QrFactor:
    """**Collective.** A = Q R with Q as Householder reflectors, to multiply with Q without forming it.

    Args:
        a: m x n matrix of any layout, which may be a view; it is not changed (global).
        algorithm: "blocked" by block columns, with one panel of lookahead; "grid" by panels over a grid of
            about as many process rows as columns, or over that of A if A is in square blocks; "tsqr" by a tree of
            ranks, for tall ones; "cholesky" by Cholesky factors of Gram matrices, for tall ones, with the columns of Q
            in place of reflectors; "local" on one rank; "auto" chooses (global).
        overwrite_a: A is not needed any more. A tall matrix in rows that "tsqr" leaves where they are, in memory of the
            context, is factored in place: no copy is made, and the factor is in the memory of A (global).
        progress: True: rank 0 prints the finished share of the work to standard error, a few times a second. A
            function: rank 0 calls it instead, with the name of the stage and its finished share, 0 to 1 (global).

    Returns:
        The factor F: `F.apply_q(C, side, trans)`, `F.q()`, `F.r()`.

    Raises:
        ArgumentError, BackendError, DTypeError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.

    Source: LAPACK xGEQRF; ScaLAPACK p?geqrf; Demmel et al., Communication-optimal QR, 2012.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     factor = pblas.linalg.qr_factor(ctx.from_global(np.array([[3.0, 1.0], [4.0, 2.0]])))
    ...     factor.r().to_global().round(3).tolist()
    [[-5.0, -2.2], [0.0, 0.4]]
    """
    opname, runtime = "qr_factor", arguments.runtime_of("qr_factor", a)
    with runtime.call(opname), Progress(opname, runtime, progress) as reports:
        stage = reports.stage("factor")
        return factored(opname, a, algorithm=algorithm, overwrite_a=overwrite_a, progress=stage)[0]
