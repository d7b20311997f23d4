"""cholesky, cho_factor and plan_cholesky: Hermitian positive definite matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.operations.arguments import factorization as arguments
from pblas.operations.factorization import PlannedFactorization, planned, prepared
from pblas.operations.factors import CholeskyFactor
from pblas.operations.redistribution import redistribute
from pblas.operations.stacking import without_lld
from pblas.runtime.runtime import checked_flag

if TYPE_CHECKING:
    from pblas.planner.choose_factorization import FactorizationAlgorithm


class PlannedCholesky(PlannedFactorization):
    """A planned Cholesky factorization: `execute(A)` gives L, or U. Made by `plan_cholesky`."""

    kind = "cholesky"

    def execute(self, a: DistMatrix, *, out: DistMatrix | None = None) -> DistMatrix:
        """**Collective.** The Cholesky factor of a matrix like the planned one.

        Args:
            a: A, with the descriptor and the dtype that were planned (global).
            out: the matrix that gets the factor; it may be A; None for a new one (global).

        Returns:
            The triangle, with zeros beside it, in the layout of A or in `out`.

        Raises:
            as `cholesky`; ArgumentError for a plan made from a descriptor only.
        """
        if self._runtime is None:
            raise self._no_context_error("execute")
        with self._runtime.call("execute"):
            self.check_execution(self._runtime, a, out)
            return self.triangle("execute", a, out)

    def triangle(self, verb: str, a: DistMatrix, out: DistMatrix | None) -> DistMatrix:
        """**Collective.** `execute` with checked arguments."""
        w, desc = self.factored(verb, a).w, without_lld(a.desc)
        if out is None and self.plan.uplo == "L" and w.desc == desc:
            return w
        if out is not None:
            arrays = w.runtime.backend.arrays
            arrays.scale(0, out.stored(verb))  # A, which it may be, is not read any more
            arrays.settle()
        back = self.plan.back
        assert back is not None, "the factor is brought back"
        assert back.trapezoid is not None, "it is a triangle"
        return redistribute(w, desc if out is None else None, out=out, trans=back.trans, uplo=back.trapezoid.uplo)


def plan_cholesky(
    a: DistMatrix | MatrixDescriptor,
    *,
    upper: bool = False,
    algorithm: FactorizationAlgorithm = "auto",
    dtype: Any = None,
    nprocs: int | None = None,
) -> PlannedCholesky:
    """Plan a Cholesky factorization. **Collective** with a matrix; with a descriptor it needs no MPI.

    Args:
        a: the n x n matrix, or its descriptor (global).
        upper: as in `cholesky` (global).
        algorithm: as in `cholesky` (global).
        dtype: dtype of the matrix, needed with a descriptor (global).
        nprocs: number of ranks, when planning from a descriptor; None for its grid (global).

    Returns:
        The planned factorization: `print(f.explain())`, `f.execute(a)`, `f.plan.simulate("fat-tree")`.

    Raises:
        as `cholesky`.

    >>> plan_cholesky(MatrixDescriptor.row_wise(4096, 4096, 4), dtype="float64").plan.w.nb
    192
    """
    options: Any = {"dtype": dtype, "nprocs": nprocs, "algorithm": algorithm, "upper": upper}
    return planned(PlannedCholesky, "plan_cholesky", a, returns=True, **options)


def cholesky(
    a: DistMatrix,
    *,
    upper: bool = False,
    out: DistMatrix | None = None,
    algorithm: FactorizationAlgorithm = "auto",
) -> DistMatrix:
    """**Collective.** L with A = L L^H, or U with A = U^H U, of a Hermitian positive definite matrix.

    Args:
        a: n x n matrix of any layout, which may be a view. One triangle is read, and only the real part of its
            diagonal (global).
        upper: read the upper triangle, and return U; otherwise the lower one, and L (global).
        out: the matrix that gets the factor; it may be A itself; None for a new one in the layout of A (global).
        algorithm: "local" factors on one rank, by LAPACK, on GPUs by cuSOLVER; "blocked" by panels in block columns, on
            all ranks that get some; "auto" takes the one that is expected to be faster (global).

    Returns:
        The triangle, with zeros beside it.

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
    with arguments.runtime_of("cholesky", a).call("cholesky"):
        options: Any = {"algorithm": algorithm, "upper": upper, "out": out}
        prepared_plan = prepared(PlannedCholesky, "cholesky", a, returns=True, **options)
        return prepared_plan.triangle("cholesky", a, out)


def cho_factor(a: DistMatrix, lower: bool = True, *, algorithm: FactorizationAlgorithm = "auto") -> CholeskyFactor:
    """**Collective.** The Cholesky factorization of a Hermitian positive definite matrix, to solve equations with.

    Args:
        a: as in `cholesky`; it is not changed (global).
        lower: read the lower triangle; otherwise the upper one (global).
        algorithm: as in `cholesky` (global).

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
    runtime = arguments.runtime_of("cho_factor", a)
    with runtime.call("cho_factor"):
        with runtime.local_step("cho_factor"):
            upper = not checked_flag("cho_factor", "lower", lower)
        plan = prepared(PlannedCholesky, "cho_factor", a, algorithm=algorithm, upper=upper)
        return CholeskyFactor(plan.factored("cho_factor", a), without_lld(a.desc))
