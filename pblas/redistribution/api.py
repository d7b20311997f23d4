"""redistribute and plan_redistribution: copy a matrix to another distribution, with scaling and addition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from pblas import errors
from pblas.backends.dtypes import FLOAT8, Dtype, Scalar
from pblas.core import checks
from pblas.core.call import call, planned, planned_without_context, step
from pblas.core.operation import Bound, Operation
from pblas.core.planned import Planned
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.trapezoid import Trapezoid
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.packing import Scaling
from pblas.redistribution.redistribution_plan import RedistributionPlan
from pblas.redistribution.redistribution_run import RedistributionOperands, RunRedistribution
from pblas.runtime.runtime import Runtime, checked_factor

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from pblas.backends.host_ranks import HostRanks
    from pblas.core.options import Trans, Uplo
    from pblas.simulation.hardware import Topology


@dataclass(frozen=True, eq=False)
class Redistribution(Operation[DistMatrix]):
    """B = alpha op(A) + beta B."""

    noun: ClassVar[str] = "redistribution"
    derived: ClassVar[frozenset[str]] = frozenset(("reads_a",))

    trans: Trans  # as in `redistribute` (global)
    trapezoid: Trapezoid | None  # the elements of B that are written; None for all (global)
    a: MatrixDescriptor
    b: MatrixDescriptor
    dtype: Dtype  # of both matrices (global)
    conjugated: bool  # whether A is a conjugated view (global)
    reads_a: bool = True  # whether alpha is not 0 (global)

    @classmethod
    def bind(
        cls,
        opname: str,
        runtime: Runtime | None,
        a: Any,
        desc: Any = None,
        out: Any = None,
        trans: object = "N",
        alpha: Any = 1.0,
        beta: Any = 0.0,
        uplo: object = None,
        diagonal: object = 0,
        dtype: DTypeLike | None = None,
    ) -> Bound[DistMatrix]:
        trans = checks.checked_trans(opname, "trans", trans)
        if uplo is not None and not (isinstance(uplo, str) and uplo in ("U", "L")):
            raise errors.ArgumentError(f"{opname}: uplo must be None, 'U' or 'L', got {uplo!r}")
        if isinstance(diagonal, bool) or not isinstance(diagonal, int | np.integer):
            raise errors.ArgumentError(f"{opname}: diagonal must be an integer, got {diagonal!r}")
        if diagonal and uplo is None:
            raise errors.ArgumentError(f"{opname}: diagonal is {diagonal} but uplo is None; pass uplo='U' or 'L'")
        trapezoid = None if uplo is None else Trapezoid(str(uplo), int(diagonal))  # type: ignore[arg-type]  # U or L
        placed = isinstance(out, DistMatrix)
        if not isinstance(a, DistMatrix) and (placed or not isinstance(a, MatrixDescriptor)):
            raise checks.not_a_matrix(opname, "a", a)
        if (desc is None) == (out is None):
            which = "neither" if out is None else "both"
            raise errors.ArgumentError(f"{opname}: {which} of desc and out given; pass desc= for a new B, or out=B")
        if desc is not None and not isinstance(desc, MatrixDescriptor):
            raise errors.ArgumentError(f"{opname}: desc must be a MatrixDescriptor, got {type(desc).__name__}")
        if out is not None and not placed:
            raise errors.ArgumentError(
                f"{opname}: out must be a DistMatrix, got {type(out).__name__}; for a new matrix pass desc="
            )
        desc_a, conjugated = (a.desc, a.conjugated) if isinstance(a, DistMatrix) else (a, False)
        desc_b = out.desc if desc is None else desc
        dtype = checks.common_dtype(opname, {"A": a, "out": out}, dtype, stored=True)
        checks.check_not_conjugated(opname, "out", out)
        alpha = checked_factor(opname, "alpha", alpha, dtype)
        beta = checked_factor(opname, "beta", beta, dtype)
        if dtype in FLOAT8 and (alpha, beta) != (1, 0):
            raise errors.DTypeError(
                f"{opname}: alpha is {alpha!r}, beta is {beta!r}, but {dtype.name} matrices are only moved; leave both "
                f"out, or convert with A.astype('float32')"
            )
        if beta != 0 and out is None:
            raise errors.ArgumentError(f"{opname}: beta is {beta!r} but there is no B to scale; pass out=")
        (m, n), (m_b, n_b) = desc_a.shape if trans == "N" else desc_a.shape[::-1], desc_b.shape
        if (m, n) != (m_b, n_b):
            raise errors.DescriptorError(
                f"{opname}: op(A) is {m} x {n} (trans={trans!r}), B is {m_b} x {n_b}; make them agree"
            )
        new, nelements = checks.checked_place(opname, runtime, desc, "B")
        form = trans, trapezoid, desc_a.without_lld, desc_b.without_lld, dtype, conjugated, alpha != 0
        return Bound(cls, form, {"alpha": alpha, "beta": beta}, {"A": a}, out, new=new, nelements=nelements)

    @classmethod
    def made(cls, opname: str, form: tuple[Any, ...], nprocs: int, topology: Topology) -> Self:
        operation = cls(*form)
        checks.check_ranks(opname, operation.b, nprocs)
        return operation

    @property
    def result(self) -> tuple[MatrixDescriptor, Dtype]:
        return self.b, self.dtype

    def plan(self, nprocs: int, topology: Topology) -> RedistributionPlan:
        return RedistributionPlan(
            *(self.a, self.b, self.dtype.name, nprocs, self.trans, self.trapezoid),
            reads_a=self.reads_a,
            transport=topology.transport(nprocs),
        )

    def executor(self, plan: RedistributionPlan, backend: HostRanks) -> RunRedistribution:
        desc = plan.b if not plan.reads_a else plan.a if plan.trans == "N" else plan.a.T
        return RunRedistribution(
            backend, plan.source, plan.target, self.dtype, desc.order, plan.trapezoid, reads_a=plan.reads_a
        )

    def arrays(
        self, opname: str, runtime: Runtime, executor: Any, bound: Bound[DistMatrix], result: DistMatrix
    ) -> RedistributionOperands:
        a = bound.reads["A"].stored(opname)
        conj = self.dtype.kind == "c" and (self.trans == "C") != self.conjugated
        scaling = Scaling(bound.scalars["alpha"], bound.scalars["beta"], conj)
        return RedistributionOperands(a if self.trans == "N" else a.T, result.stored(opname), scaling)

    def fresh(self, backend: HostRanks, result: DistMatrix) -> None:
        if self.trapezoid is not None:
            backend.fill(result.stored("redistribute"))


def redistributed(
    opname: str,
    a: DistMatrix,
    desc: MatrixDescriptor | None = None,
    *,
    out: DistMatrix | None = None,
    trans: Trans = "N",
    uplo: Uplo | None = None,
    diagonal: int = 0,
    is_temporary: bool = False,
    agrees: str = "",
) -> DistMatrix:
    """**Collective.** `redistribute` as a step of a call, which drops A if it `is_temporary`: see `core.call.step`."""

    def bind() -> Bound[DistMatrix]:
        bound = Redistribution.bind(opname, a.runtime, a, desc, out, trans, uplo=uplo, diagonal=diagonal)
        return bound._replace(is_temporary=is_temporary)

    return step(opname, a.runtime, bind, agrees=agrees)


class PlannedRedistribution(Planned[DistMatrix]):
    """A planned redistribution: the plan, its buffers, and one call that runs it. Made by `plan_redistribution`.

    Usable as a `with` block; `close` drops the buffers, as does dropping the object.
    """

    operation: Redistribution
    plan: RedistributionPlan

    def execute(self, a: DistMatrix, *, out: DistMatrix | None = None) -> DistMatrix:
        """**Collective.** B = alpha op(A) + beta B with matrices like the planned ones.

        Args:
            a: A, with the descriptor and the dtype that were planned (global).
            out: B, needed if beta is not 0; None for a new matrix, which is 0 outside the trapezoid (global).

        Returns:
            B. The caller may overwrite a when the call has returned.

        Raises:
            ArgumentError: a plan made from descriptors only; matrices that overlap.
            DescriptorError, DTypeError: a matrix with another descriptor or dtype than the planned one, on any rank.
            ContextError: the context or the plan is closed.
        """
        return self.run(lambda: self._bound(a, out))

    def _bound(self, a: Any, out: Any) -> Bound[DistMatrix]:
        runtime, operation, planned = self._runtime, self.operation, self.bound
        assert runtime is not None, "it runs"
        beta = planned.scalars["beta"]
        if out is None and beta != 0:
            raise errors.ArgumentError(f"execute: beta is {beta!r} but there is no B to scale; pass out=")
        dtype = operation.dtype
        checks.check_like_planned("A", a, runtime, dtype, operation.a, conj=operation.conjugated, exact=True)
        if out is not None:
            checks.check_like_planned("out", out, runtime, dtype, operation.b, conj=False, exact=True)
        bound = planned._replace(reads={"A": a}, out=out)
        checks.check_matrices("execute", runtime, bound)
        return bound


def plan_redistribution(
    a: DistMatrix | MatrixDescriptor,
    desc: MatrixDescriptor | None = None,
    *,
    out: DistMatrix | None = None,
    trans: Trans = "N",
    alpha: Scalar = 1.0,
    beta: Scalar = 0.0,
    uplo: Uplo | None = None,
    diagonal: int = 0,
    dtype: DTypeLike | None = None,
    nprocs: int | None = None,
) -> PlannedRedistribution:
    """Plan B = alpha op(A) + beta B. **Collective** with matrices; with descriptors it needs no MPI.

    Planning checks the arguments and allocates the buffers, so that `execute` has none of that to do.

    Args:
        a: the matrix, or its descriptor (global).
        desc: distribution of a new B (global).
        out: B, instead of `desc` (global).
        trans: as in `redistribute` (global).
        alpha: scalar (global).
        beta: scalar (global).
        uplo: the triangle or trapezoid of B that is written, as in `redistribute`; None for all of B (global).
        diagonal: the diagonal that bounds the trapezoid, as in `redistribute` (global).
        dtype: dtype of the matrices, needed with descriptors (global).
        nprocs: number of ranks, when planning from descriptors; None for the larger grid (global).

    Returns:
        The planned redistribution: `print(r.explain())`, `r.execute(a)`.

    Raises:
        as `redistribute`.

    >>> rows, columns = MatrixDescriptor.row_wise(8, 8, 4), MatrixDescriptor.column_wise(8, 8, 4)
    >>> plan_redistribution(rows, columns, dtype="float64").plan.max_received_nbytes
    96
    """
    opname = "plan_redistribution"
    if isinstance(a, MatrixDescriptor) and out is None:
        bound = Redistribution.bind(opname, None, a, desc, out, trans, alpha, beta, uplo, diagonal, dtype)
        return planned_without_context(opname, bound, PlannedRedistribution, nprocs, bound.form[2:4])

    def bind(opname: str, runtime: Runtime) -> Bound[DistMatrix]:
        checks.check_of_descriptors(opname, nprocs=nprocs)
        return Redistribution.bind(opname, runtime, a, desc, out, trans, alpha, beta, uplo, diagonal, dtype)

    return planned(opname, PlannedRedistribution, bind, {"a": a, "out": out})


def redistribute(
    a: DistMatrix,
    desc: MatrixDescriptor | None = None,
    *,
    out: DistMatrix | None = None,
    trans: Trans = "N",
    alpha: Scalar = 1.0,
    beta: Scalar = 0.0,
    uplo: Uplo | None = None,
    diagonal: int = 0,
) -> DistMatrix:
    """**Collective.** B = alpha op(A) + beta B for any two layouts, grids and submatrices.

    Every rank receives each element that it needs and lacks once, from a rank that has it. If `out` is a view, elements
    of its matrix outside the view are not touched, and neither are elements outside the triangle.

    Args:
        a: m x n matrix, or n x m with trans other than "N"; it may be a view, as A[i0:i1, j0:j1] or A.H (global).
        desc: distribution of B as a new m x n matrix; None if `out` is given (global).
        out: B, an m x n matrix that shares no memory with a; None for a new matrix (global).
        trans: "N", "T" or "C" (conjugate transposed; the same as "T" for real matrices) (global).
        alpha: scalar; with alpha = 0 A is not read (global).
        beta: scalar; with beta = 0 B is not read (global).
        uplo: None for all elements of B; "U": those with j - i >= diagonal; "L": those with j - i <= diagonal
            (global).
        diagonal: the diagonal that bounds the trapezoid, as k of numpy.triu: 0 for the main one (global).

    Returns:
        B: `out` itself, or a new matrix, which is 0 outside the trapezoid. When the call returns, a may be
        overwritten.

    Raises:
        ArgumentError, DescriptorError, DTypeError, LayoutError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.

    Source: PBLAS p?geadd, p?tradd, p?tran; ScaLAPACK REDIST p?gemr2d, p?trmr2d.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     columns = pblas.MatrixDescriptor.column_wise(2, 3, ctx.nprocs)
    ...     pblas.redistribute(ctx.eye((3, 2)), columns, trans="T", alpha=2.0).to_global(None).tolist()
    [[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]
    """
    return call(
        "redistribute", Redistribution.bind, {"a": a, "out": out}, a, desc, out, trans, alpha, beta, uplo, diagonal
    )
