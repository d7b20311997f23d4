"""Products with a symmetric or Hermitian matrix: symm, hemm, and their plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.symmetric.structured import (
    PlannedSymmetricProduct,
    StructuredArguments,
    SymmetricMultiplication,
    planned_structured,
    structured,
)

if TYPE_CHECKING:
    from pblas.backends.dtypes import Scalar
    from pblas.core.options import Side, Uplo
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.matrices.matrix import DistMatrix
    from pblas.simulation.hardware import Hardware


def symm(
    a: DistMatrix,
    b: DistMatrix,
    c: DistMatrix | None = None,
    *,
    side: Side = "L",
    uplo: Uplo = "L",
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    out: DistMatrix | MatrixDescriptor | None = None,
    overlap: bool = True,
) -> DistMatrix:
    """**Collective.** D = alpha A B + beta C, or alpha B A + beta C, with a symmetric A.

    One triangle of A is read; the other one may hold anything.

    Args:
        a: square matrix, symmetric: m x m with side "L", n x n with side "R" (global).
        b: m x n matrix (global).
        c: m x n matrix, which is added; needed if beta is not 0 (global).
        side: "L" for A B, "R" for B A (global).
        uplo: the triangle of A that is read: "L" on and below the diagonal, "U" on and above it (global).
        alpha: scalar; with alpha = 0 A and B are not read (global).
        beta: scalar; with beta = 0 C is not read; None: 1 if c is given, else 0 (global).
        out: matrix that receives D, possibly `c` itself, or descriptor of a new matrix; None for a new matrix in the
            layout of C, or without C of B (global).
        overlap: move data while ranks multiply (global).

    Returns:
        D: `out` itself, or a new matrix.

    Raises:
        ArgumentError, DescriptorError, DTypeError, LayoutError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.
        WorkspaceError: a rank without memory for the workspace, or for a new D.

    Source: PBLAS, p?symm.
    """
    given = StructuredArguments("symm", a, b, c, side, uplo, "N", "N", alpha, beta, out, overlap)
    return structured(SymmetricMultiplication, given)


def hemm(
    a: DistMatrix,
    b: DistMatrix,
    c: DistMatrix | None = None,
    *,
    side: Side = "L",
    uplo: Uplo = "L",
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    out: DistMatrix | MatrixDescriptor | None = None,
    overlap: bool = True,
) -> DistMatrix:
    """**Collective.** `symm` with a Hermitian A: imaginary parts on its diagonal are not read.

    Arguments, results and errors are those of `symm`.

    Source: PBLAS, p?hemm.
    """
    given = StructuredArguments("hemm", a, b, c, side, uplo, "N", "N", alpha, beta, out, overlap)
    return structured(SymmetricMultiplication, given)


def plan_symm(
    a: DistMatrix | MatrixDescriptor,
    b: DistMatrix | MatrixDescriptor,
    c: DistMatrix | MatrixDescriptor | None = None,
    *,
    side: Side = "L",
    uplo: Uplo = "L",
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    out: DistMatrix | MatrixDescriptor | None = None,
    overlap: bool = True,
    dtype: Any = None,
    nprocs: int | None = None,
    hardware: Hardware | str | None = None,
) -> PlannedSymmetricProduct:
    """Plan `symm`. **Collective** with matrices; with descriptors it needs no MPI.

    Args:
        a: as for `symm`, or its descriptor (global).
        b: as for `symm`, or its descriptor (global).
        c: as for `symm`, or its descriptor (global).
        side: as for `symm` (global).
        uplo: as for `symm` (global).
        alpha: as for `symm` (global).
        beta: as for `symm` (global).
        out: as for `symm` (global).
        overlap: as for `symm` (global).
        dtype: dtype of the matrices, needed with descriptors (global).
        nprocs: ranks, when planning from descriptors; None for the largest grid (global).
        hardware: machine to plan for, when planning from descriptors; see `plan_matmul` (global).

    Returns:
        The planned operation: `print(planned.explain())`, `planned.execute(a, b)`.

    Raises:
        as `symm`.

    >>> from pblas.layouts import MatrixDescriptor
    >>> rows = MatrixDescriptor.row_wise(64, 64, 4)
    >>> plan_symm(rows, rows, dtype="float64").plan.inner.name
    'AllGatherGemm'
    """
    given = StructuredArguments("symm", a, b, c, side, uplo, "N", "N", alpha, beta, out, overlap, dtype)
    return planned_structured(PlannedSymmetricProduct, given, nprocs, hardware)


def plan_hemm(
    a: DistMatrix | MatrixDescriptor,
    b: DistMatrix | MatrixDescriptor,
    c: DistMatrix | MatrixDescriptor | None = None,
    *,
    side: Side = "L",
    uplo: Uplo = "L",
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    out: DistMatrix | MatrixDescriptor | None = None,
    overlap: bool = True,
    dtype: Any = None,
    nprocs: int | None = None,
    hardware: Hardware | str | None = None,
) -> PlannedSymmetricProduct:
    """Plan `hemm`, as `plan_symm` plans `symm`: **collective** with matrices; with descriptors it needs no MPI.

    >>> from pblas.layouts import MatrixDescriptor
    >>> rows = MatrixDescriptor.row_wise(64, 64, 4)
    >>> plan_hemm(rows, rows, dtype="complex128").plan.inner.name
    'AllGatherGemm'
    """
    given = StructuredArguments("hemm", a, b, c, side, uplo, "N", "N", alpha, beta, out, overlap, dtype)
    return planned_structured(PlannedSymmetricProduct, given, nprocs, hardware)
