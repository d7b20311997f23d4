"""cholesky, cho_factor and plan_cholesky: Hermitian positive definite matrices."""

from __future__ import annotations

from typing import Any

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.operations.arguments import factorization as arguments
from pblas.operations.factorization import PlannedFactorization, planned, prepared
from pblas.operations.factors import CholeskyFactor
from pblas.operations.redistribution import redistribute
from pblas.operations.stacking import without_lld
from pblas.runtime.runtime import checked_flag


class PlannedCholesky(PlannedFactorization):
    """A planned Cholesky factorization: `execute(A)` gives L, or U. Made by `plan_cholesky`."""

    kind = "cholesky"

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
            w.runtime.backend.arrays.scale(0, out.stored(verb))  # A, which it may be, is not read any more
        return self.bring_back(w, desc if out is None else None, out=out)

    def bring_back(
        self, w: DistMatrix, desc: MatrixDescriptor | None = None, *, out: DistMatrix | None = None
    ) -> DistMatrix:
        """**Collective.** The triangle in W as a new matrix with zeros beside it, or in `out`, and nothing beside it.

        Args:
            w: the factor (global).
            desc: layout of a new matrix (global).
            out: the matrix that gets the triangle, instead of `desc` (global).
        """
        back = self.plan.back
        assert back is not None, "the factor is brought back"
        assert back.trapezoid is not None, "it is a triangle"
        return redistribute(w, desc, out=out, trans=back.trans, uplo=back.trapezoid.uplo)


def plan_cholesky(
    a: DistMatrix | MatrixDescriptor, *, upper: bool = False, dtype: Any = None, nprocs: int | None = None
) -> PlannedCholesky:
    """Plan a Cholesky factorization. **Collective** with a matrix; with a descriptor it needs no MPI.

    Args:
        a: the n x n matrix, or its descriptor (global).
        upper: as in `cholesky` (global).
        dtype: dtype of the matrix, needed with a descriptor (global).
        nprocs: number of ranks, when planning from a descriptor; None for its grid (global).

    Returns:
        The planned factorization: `print(f.explain())`, `f.execute(a)`, `f.plan.simulate("fat-tree")`.

    Raises:
        as `cholesky`.

    >>> plan_cholesky(MatrixDescriptor.row_wise(4096, 4096, 4), dtype="float64").plan.w.nb
    192
    """
    return planned(PlannedCholesky, "plan_cholesky", a, dtype=dtype, nprocs=nprocs, upper=upper, returns=True)


def cholesky(a: DistMatrix, *, upper: bool = False, out: DistMatrix | None = None) -> DistMatrix:
    """**Collective.** L with A = L L^H, or U with A = U^H U, of a Hermitian positive definite matrix.

    Args:
        a: n x n matrix of any layout, which may be a view. One triangle is read, and only the real part of its
            diagonal (global).
        upper: read the upper triangle, and return U; otherwise the lower one, and L (global).
        out: matrix that receives the factor; may be A itself; None for a new one in the layout of A (global).

    Returns:
        L or U, with zeros in the other triangle: `out`, or a new matrix in the layout of A.

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
        prepared_plan = prepared(PlannedCholesky, "cholesky", a, upper=upper, out=out, returns=True)
        return prepared_plan.triangle("cholesky", a, out)


def cho_factor(a: DistMatrix, lower: bool = True) -> CholeskyFactor:
    """**Collective.** Factor a Hermitian positive definite matrix by Cholesky, to solve systems with it.

    Args:
        a: as in `cholesky`; it is not changed (global).
        lower: read the lower triangle; otherwise the upper one (global).

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
        plan = prepared(PlannedCholesky, "cho_factor", a, upper=upper)
        return CholeskyFactor(plan.factored("cho_factor", a), without_lld(a.desc))
