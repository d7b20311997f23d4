"""lu_factor and plan_lu: LU factorization with exchanges of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pblas.factor import arguments
from pblas.factor.factorization import Factoring, PlannedFactorization, planned, prepared
from pblas.factor.factors import LuFactor
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.progress import Progress, ProgressTarget

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from pblas.factor.choose import FactorizationAlgorithm, Kind
    from pblas.factor.grid_lu_plan import Pivoting
    from pblas.simulation.hardware import Hardware


class PlannedLu(PlannedFactorization):
    """A planned LU factorization: `execute(A)` gives the factor. Made by `plan_lu`."""

    kind: ClassVar[Kind] = "lu"

    def execute(self, a: DistMatrix) -> LuFactor:
        """**Collective.** The LU factorization of a matrix like the planned one.

        Args:
            a: A, with the descriptor and the dtype that were planned (global).

        Returns:
            The factor, as of `lu_factor`.

        Raises:
            as `lu_factor`; ArgumentError for a plan made from a descriptor only.
        """
        with self.executing():
            return lu_of(self.factoring(a), a)


def plan_lu(
    a: DistMatrix | MatrixDescriptor,
    *,
    algorithm: FactorizationAlgorithm = "auto",
    pivoting: Pivoting | None = "partial",
    dtype: DTypeLike | None = None,
    nprocs: int | None = None,
    hardware: Hardware | str | None = None,
) -> PlannedLu:
    """Plan an LU factorization. **Collective** with a matrix; with a descriptor it needs no MPI.

    Args:
        a: the m x n matrix, or its descriptor (global).
        algorithm: as in `lu_factor` (global).
        pivoting: as in `lu_factor` (global).
        dtype: dtype of the matrix, needed with a descriptor (global).
        nprocs: number of ranks, when planning from a descriptor; None for its grid (global).
        hardware: machine to plan for, when planning from a descriptor, as in `plan_matmul`; None for one node of CPUs
            (global).

    Returns:
        The planned factorization: `print(f.explain())`, `f.execute(a)`, `f.plan.simulate("fat-tree")`.

    Raises:
        as `lu_factor`.

    >>> plan_lu(MatrixDescriptor.row_wise(4096, 4096, 4), dtype="float64").plan.w.nprocs
    4
    """
    options: Any = {"algorithm": algorithm, "pivoting": pivoting, "hardware": hardware}
    return planned(PlannedLu, "plan_lu", a, dtype=dtype, nprocs=nprocs, **options)


def lu_factor(
    a: DistMatrix,
    *,
    algorithm: FactorizationAlgorithm = "auto",
    pivoting: Pivoting | None = "partial",
    overwrite_a: bool = False,
    progress: ProgressTarget = False,
) -> LuFactor:
    """**Collective.** Factor P A = L U by exchanges of rows, to solve systems with A.

    A singular matrix is factored too, as in LAPACK; `solve` and `inv` of its factor raise an error.

    Args:
        a: m x n matrix of any layout, which may be a view; it is not changed (global).
        algorithm: "local" factors on one rank, by LAPACK, on GPUs by cuSOLVER; "blocked" by panels in block columns, on
            all ranks that get some; "grid" by panels over a grid of about as many process rows as columns, or
            over that of A if A is in square blocks; "auto" takes the one that is expected to be faster (global).
        pivoting: "partial" takes the largest element of each column: the pivots are those of LAPACK on any number of
            ranks, up to ties. Where panels are on several ranks, those of a grid, the ranks exchange messages in each
            column for that. "tournament" then chooses the rows of a whole panel at once, with few messages. It is as
            stable in practice; elements may grow a little more, and pivots may differ. None: the one that is expected
            to be faster, as in `solve`, `inv` and `det` (global).
        overwrite_a: A is not needed any more. If it has the layout that `plan_lu` names W, in memory of the context, it
            is factored in place: no copy is made, and the factor is in the memory of A (global).
        progress: True: rank 0 prints the finished share of the work to standard error, a few times a second. A
            function: rank 0 calls it instead, with the name of the stage and its finished share, 0 to 1 (global).

    Returns:
        The factor F: `F.solve(B)`, `F.det()`, `F.slogdet()`, `F.inv()`, `F.rcond()`, `F.pivots`, `F.lu()`.

    Raises:
        ArgumentError, BackendError, DTypeError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.

    Source: LAPACK xGETRF; ScaLAPACK p?getrf; Grigori, Demmel, Xiang, CALU, 2011 (tournament).

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     factor = pblas.linalg.lu_factor(ctx.from_global(np.array([[0.0, 2.0], [4.0, 5.0]])))
    ...     factor.solve(np.array([2.0, 9.0])).tolist(), float(factor.det()), factor.pivots.tolist()
    ([1.0, 1.0], -8.0, [1, 1])
    """
    opname, runtime = "lu_factor", arguments.runtime_of("lu_factor", a)
    with runtime.call(opname), Progress(opname, runtime, progress) as reports:
        stage = reports.stage("factor")
        factoring = prepared(
            *(PlannedLu, opname, a), algorithm=algorithm, pivoting=pivoting, overwrite_a=overwrite_a, progress=stage
        )
        return lu_of(factoring, a)


def lu_of(factoring: Factoring, a: DistMatrix) -> LuFactor:
    """**Collective.** The factor of A, inside another call."""
    return LuFactor(factoring.factored(a), a.desc.without_lld)
