"""cholesky, cho_factor and plan_cholesky: Hermitian positive definite matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pblas.factor import arguments
from pblas.factor.factorization import Factoring, PlannedFactorization, planned, prepared
from pblas.factor.factorization_plan import FactorizationPlan, panels
from pblas.factor.factors import CholeskyFactor
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.runtime.progress import Progress, ProgressTarget
from pblas.runtime.runtime import checked_flag

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from pblas.factor.choose import FactorizationAlgorithm, Kind
    from pblas.simulation.hardware import Hardware


class PlannedCholesky(PlannedFactorization):
    """A planned Cholesky factorization: `execute(A)` gives L, or U. Made by `plan_cholesky`."""

    kind: ClassVar[Kind] = "cholesky"

    def execute(self, a: DistMatrix, *, out: DistMatrix | None = None) -> DistMatrix:
        """**Collective.** The Cholesky factor of a matrix like the planned one.

        Args:
            a: A, with the descriptor and the dtype that were planned (global).
            out: the matrix that gets the factor; it may be A; None for a new one (global).

        Returns:
            L or U, with zeros in the other triangle: `out`, or a new matrix in the layout of A.

        Raises:
            as `cholesky`; ArgumentError for a plan made from a descriptor only.
        """
        with self.executing():
            return _triangle(self.factoring(a, out), a, out)


def plan_cholesky(
    a: DistMatrix | MatrixDescriptor,
    *,
    upper: bool = False,
    algorithm: FactorizationAlgorithm = "auto",
    dtype: DTypeLike | None = None,
    nprocs: int | None = None,
    hardware: Hardware | str | None = None,
) -> PlannedCholesky:
    """Plan a Cholesky factorization. **Collective** with a matrix; with a descriptor it needs no MPI.

    Args:
        a: the n x n matrix, or its descriptor (global).
        upper: as in `cholesky` (global).
        algorithm: as in `cholesky` (global).
        dtype: dtype of the matrix, needed with a descriptor (global).
        nprocs: number of ranks, when planning from a descriptor; None for its grid (global).
        hardware: machine to plan for, when planning from a descriptor, as in `plan_matmul`; None for one node of CPUs
            (global).

    Returns:
        The planned factorization: `print(f.explain())`, `f.execute(a)`, `f.plan.simulate("fat-tree")`.

    Raises:
        as `cholesky`.

    >>> plan_cholesky(MatrixDescriptor.row_wise(4096, 4096, 4), dtype="float64").plan.w.nb
    192
    """
    return planned(
        *(PlannedCholesky, "plan_cholesky", a),
        returns=True,
        dtype=dtype,
        nprocs=nprocs,
        algorithm=algorithm,
        upper=upper,
        hardware=hardware,
    )


def cholesky(
    a: DistMatrix,
    *,
    upper: bool = False,
    out: DistMatrix | None = None,
    algorithm: FactorizationAlgorithm = "auto",
    overwrite_a: bool = False,
    progress: ProgressTarget = False,
) -> DistMatrix:
    """**Collective.** L with A = L L^H, or U with A = U^H U, of a Hermitian positive definite matrix.

    Args:
        a: n x n matrix of any layout, which may be a view. One triangle is read, and only the real part of its
            diagonal (global).
        upper: read the upper triangle, and return U; otherwise the lower one, and L (global).
        out: matrix that receives the factor; may be A itself; None for a new one in the layout of A (global).
        algorithm: "local" factors on one rank, by LAPACK, on GPUs by cuSOLVER; "blocked" by panels in block columns, on
            all ranks that get some; "grid" by panels over a grid of about as many process rows as columns, or
            over that of A if A is in square blocks; "auto" takes the one that is expected to be faster (global).
        overwrite_a: A is not needed any more: the factor takes its memory, unless A is conjugated or read-only. If the
            lower triangle is read and A has the layout that `plan_cholesky` names W, in memory of the context, A is
            factored in place; then no copy is made, and an error leaves A half factored (global).
        progress: True: rank 0 prints the finished share of the work to standard error, a few times a second. A
            function: rank 0 calls it instead, with the name of the stage and the finished share, 0 to 1 (global).

    Returns:
        L or U, with zeros in the other triangle: `out`, A itself where its memory is taken, or a new matrix.

    Raises:
        NotPositiveDefiniteError: a leading block that is not positive definite, or a NaN; `info` is its order.
        ArgumentError, BackendError, DescriptorError, DTypeError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.

    Source: LAPACK xPOTRF; ScaLAPACK p?potrf.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     a = ctx.from_global(np.array([[4.0, 0.0], [2.0, 5.0]]))
    ...     pblas.linalg.cholesky(a).to_global().tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    opname, runtime = "cholesky", arguments.runtime_of("cholesky", a)
    with runtime.call(opname), Progress(opname, runtime, progress) as reports:
        factoring = prepared(
            *(PlannedCholesky, opname, a),
            algorithm=algorithm,
            upper=upper,
            out=out,
            returns=True,
            overwrite_a=overwrite_a,
            progress=reports.stage("factor"),
        )
        return _triangle(factoring, a, out)


def cho_factor(
    a: DistMatrix,
    lower: bool = True,
    *,
    algorithm: FactorizationAlgorithm = "auto",
    overwrite_a: bool = False,
    progress: ProgressTarget = False,
    check: bool = True,
) -> CholeskyFactor:
    """**Collective.** Factor a Hermitian positive definite matrix by Cholesky, to solve systems with it.

    Args:
        a: as in `cholesky`; it is not changed (global).
        lower: read the lower triangle; otherwise the upper one (global).
        algorithm: as in `cholesky` (global).
        overwrite_a: A is not needed any more, and is factored in place where its layout allows that, as in `cholesky`:
            then the factor is in the memory of A (global).
        progress: as in `cholesky` (global).
        check: False: the call does not look whether A is positive definite. `F.info` does, and `F.solve`, `F.inv`,
            `F.logdet` and `F.det` do so first and raise the error. On GPUs the look waits for the GPU (global).

    Returns:
        The factor F: `F.solve(B)`, `F.logdet()`, `F.inv()`.

    Raises:
        as `cholesky`.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     factor = pblas.linalg.cho_factor(ctx.from_global(np.array([[4.0, 0.0], [2.0, 5.0]])))
    ...     factor.solve(np.array([8.0, 8.0])).tolist(), float(factor.det())
    ([1.5, 1.0], 16.0)
    """
    opname, runtime = "cho_factor", arguments.runtime_of("cho_factor", a)
    with runtime.call(opname), Progress(opname, runtime, progress) as reports:
        with runtime.local_step(opname):
            upper = not checked_flag(opname, "lower", lower)
        factoring = prepared(
            *(PlannedCholesky, opname, a),
            algorithm=algorithm,
            upper=upper,
            overwrite_a=overwrite_a,
            progress=reports.stage("factor"),
            check=check,
        )
        return CholeskyFactor(factoring.factored(a), a.desc.without_lld)


def _triangle(factoring: Factoring, a: DistMatrix, out: DistMatrix | None) -> DistMatrix:
    """**Collective.** L or U, with zeros in the other triangle: in `out`, in A if it is overwritten, or new."""
    opname, plan, overwriting = factoring.opname, factoring.plan, factoring.overwriting
    w = factoring.factored(a).w
    desc = a.desc.without_lld
    if out is None and overwriting.result:
        out = a
    if out is a and overwriting.in_place:
        _clear_above_diagonal(opname, w)
        return a
    if out is None and plan.uplo == "L" and w.desc == desc:
        return w
    if out is not None:
        arrays = w.runtime.backend.arrays
        arrays.scale(0, out.stored(opname))  # A, which it may be, is not read any more
        arrays.synchronize()
    return brought_back(opname, plan, w, desc if out is None else None, out=out)


def brought_back(
    opname: str,
    plan: FactorizationPlan,
    w: DistMatrix,
    desc: MatrixDescriptor | None = None,
    *,
    out: DistMatrix | None = None,
) -> DistMatrix:
    """**Collective.** The factor in W: as a new matrix with zeros outside the triangle, or in a triangle of `out`."""
    return redistributed(opname, w, desc, out=out, trans=plan.trans, uplo=plan.uplo, is_temporary=True)


def _clear_above_diagonal(opname: str, w: DistMatrix) -> None:
    """**Collective** after an error. Write zeros above the diagonal of a matrix in block columns or square blocks."""
    runtime, desc = w.runtime, w.desc
    row, column = desc.grid.coordinates(runtime.rank)
    with runtime.local_step(opname):
        local, arrays = w.stored(opname), runtime.backend.arrays
        for panel in panels(desc):
            if desc.grid.coordinates(panel.owner)[1] == column:
                i, columns = desc.rows.local_start(panel.start, row), local[:, panel.j_loc : panel.j_loc + panel.width]
                arrays.scale(0, columns[:i])
                if panel.owner == runtime.rank:
                    arrays.lower(columns[i : i + panel.width])
        arrays.synchronize()
