"""Products with a triangular matrix: trmm and plan_trmm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas.symmetric.structured import (
    PlannedTriangularProduct,
    StructuredArguments,
    TriangularMultiplication,
    planned_structured,
    structured,
)

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from pblas.backends.dtypes import Scalar
    from pblas.core.options import Diag, Side, Trans, Uplo
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.matrices.matrix import DistMatrix
    from pblas.simulation.hardware import Hardware


def trmm(
    a: DistMatrix,
    b: DistMatrix,
    *,
    side: Side = "L",
    uplo: Uplo = "L",
    trans: Trans = "N",
    diag: Diag = "N",
    alpha: Scalar = 1.0,
    out: DistMatrix | MatrixDescriptor | None = None,
    overlap: bool = True,
) -> DistMatrix:
    """**Collective.** D = alpha op(A) B, or alpha B op(A), with a triangular A: half the flops of the product.

    One triangle of A is read; the other one may hold anything.

    Args:
        a: square matrix: m x m with side "L", n x n with side "R" (global).
        b: m x n matrix (global).
        side: "L" for op(A) B, "R" for B op(A) (global).
        uplo: the triangle of A that is read: "L" on and below the diagonal, "U" on and above it (global).
        trans: op: "N", "T" or "C" (conjugate transposed; the same as "T" for real matrices) (global).
        diag: "U" for ones on the diagonal of A, which then is not read; "N" for its own (global).
        alpha: scalar; with alpha = 0 A and B are not read (global).
        out: matrix that receives D, or descriptor of a new one; `b` itself to overwrite B, as PBLAS does; None for a
            new matrix in B's layout (global).
        overlap: move data while ranks multiply (global).

    Returns:
        D: `out` itself, or a new matrix.

    Raises:
        ArgumentError, DescriptorError, DTypeError, LayoutError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.
        WorkspaceError: a rank without memory for the workspace, or for a new D.

    Source: PBLAS, p?trmm.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     pblas.blas.trmm(ctx.ones((2, 2)), ctx.ones((2, 3)), alpha=2.0).to_global(None).tolist()
    [[2.0, 2.0, 2.0], [4.0, 4.0, 4.0]]
    """
    given = StructuredArguments("trmm", a, b, None, side, uplo, trans, diag, alpha, None, out, overlap)
    return structured(TriangularMultiplication, given)


def plan_trmm(
    a: DistMatrix | MatrixDescriptor,
    b: DistMatrix | MatrixDescriptor,
    *,
    side: Side = "L",
    uplo: Uplo = "L",
    trans: Trans = "N",
    diag: Diag = "N",
    alpha: Scalar = 1.0,
    out: DistMatrix | MatrixDescriptor | None = None,
    overlap: bool = True,
    dtype: DTypeLike | None = None,
    nprocs: int | None = None,
    hardware: Hardware | str | None = None,
) -> PlannedTriangularProduct:
    """Plan `trmm`. **Collective** with matrices; with descriptors it needs no MPI.

    The arguments are those of `trmm`, with descriptors for a and b if there are no matrices yet: then `dtype` is
    needed, `nprocs` is the number of ranks (None for the largest grid), and `hardware` the machine to plan for, as in
    `plan_matmul`. With `out=b` executions may overwrite B.

    Returns:
        The planned operation: `print(planned.explain())`, `planned.execute(a, b)`.

    Raises:
        as `trmm`.

    >>> from pblas.layouts import MatrixDescriptor
    >>> columns = MatrixDescriptor.column_wise(64, 64, 4)
    >>> plan_trmm(columns, columns, dtype="float64").plan.name
    'TriangularProduct'
    """
    given = StructuredArguments("trmm", a, b, None, side, uplo, trans, diag, alpha, None, out, overlap, dtype)
    return planned_structured(PlannedTriangularProduct, given, nprocs, hardware)
