"""symm, hemm: products with a symmetric or Hermitian matrix; syrk, herk, syr2k, her2k: rank-k updates; their plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas.symmetric.structured import (
    PlannedRank2Update,
    PlannedRankUpdate,
    PlannedSymmetricProduct,
    Rank2Updating,
    RankUpdating,
    StructuredArguments,
    SymmetricMultiplication,
    planned_structured,
    structured,
)

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from pblas.backends.dtypes import Real, Scalar
    from pblas.core.options import Side, Trans, Uplo
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.matrices.matrix import DistMatrix
    from pblas.simulation.hardware import Hardware


def syrk(
    a: DistMatrix,
    c: DistMatrix | None = None,
    *,
    trans: Trans = "N",
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    uplo: Uplo = "L",
    out: DistMatrix | MatrixDescriptor | None = None,
    overlap: bool = True,
) -> DistMatrix:
    """**Collective.** One triangle of the symmetric D = alpha op(A) op(A)^T + beta C.

    Half the flops of the product, since the other triangle is neither formed, read nor written.

    Args:
        a: n x k matrix, or k x n with trans other than "N" (global).
        c: n x n matrix; its triangle `uplo` is added; needed if beta is not 0 (global).
        trans: op: "N", or "T"; "C" is the same for real matrices (global).
        alpha: scalar; with alpha = 0 the operands are not read (global).
        beta: scalar; with beta = 0 C is not read; None: 1 if c is given, else 0 (global).
        uplo: the triangle of C and D: "L" on and below the diagonal, "U" on and above it (global).
        out: matrix whose triangle receives D, possibly `c` itself, or descriptor of a new matrix; None for a new matrix
            in C's layout, or without C on A's grid (global).
        overlap: move data while ranks multiply (global).

    Returns:
        D: `out` itself, or a new matrix, which is 0 outside the triangle.

    Raises:
        ArgumentError, DescriptorError, DTypeError, LayoutError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.
        WorkspaceError: a rank without memory for the workspace, or for a new D.

    Source: PBLAS, p?syrk.
    """
    given = StructuredArguments("syrk", a, None, c, "L", uplo, trans, "N", alpha, beta, out, overlap)
    return structured(RankUpdating, given)


def herk(
    a: DistMatrix,
    c: DistMatrix | None = None,
    *,
    trans: Trans = "N",
    alpha: float | Real = 1.0,
    beta: float | Real | None = None,
    uplo: Uplo = "L",
    out: DistMatrix | MatrixDescriptor | None = None,
    overlap: bool = True,
) -> DistMatrix:
    """**Collective.** One triangle of the Hermitian D = alpha op(A) op(A)^H + beta C; see `syrk`.

    Imaginary parts on the diagonal of C are not read, and are set to 0.

    Args:
        a: as in `syrk` (global).
        c: as in `syrk` (global).
        trans: op: "N", or "C"; "T" is the same for real matrices (global).
        alpha: real scalar, otherwise as in `syrk` (global).
        beta: real scalar, otherwise as in `syrk` (global).
        uplo: as in `syrk` (global).
        out: as in `syrk` (global).
        overlap: as in `syrk` (global).

    Returns:
        As `syrk`.

    Raises:
        as `syrk`.

    Source: PBLAS, p?herk.
    """
    given = StructuredArguments("herk", a, None, c, "L", uplo, trans, "N", alpha, beta, out, overlap)
    return structured(RankUpdating, given)


def syr2k(
    a: DistMatrix,
    b: DistMatrix,
    c: DistMatrix | None = None,
    *,
    trans: Trans = "N",
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    uplo: Uplo = "L",
    out: DistMatrix | MatrixDescriptor | None = None,
    overlap: bool = True,
) -> DistMatrix:
    """**Collective.** One triangle of the symmetric D = alpha op(A) op(B)^T + alpha op(B) op(A)^T + beta C; see `syrk`.

    B has the shape of A. The other arguments, the result and the errors are those of `syrk`.

    Source: PBLAS, p?syr2k.
    """
    given = StructuredArguments("syr2k", a, b, c, "L", uplo, trans, "N", alpha, beta, out, overlap)
    return structured(Rank2Updating, given)


def her2k(
    a: DistMatrix,
    b: DistMatrix,
    c: DistMatrix | None = None,
    *,
    trans: Trans = "N",
    alpha: Scalar = 1.0,
    beta: float | Real | None = None,
    uplo: Uplo = "L",
    out: DistMatrix | MatrixDescriptor | None = None,
    overlap: bool = True,
) -> DistMatrix:
    """**Collective.** One triangle of the Hermitian D = alpha op(A) op(B)^H + conj(alpha) op(B) op(A)^H + beta C.

    B has the shape of A, and alpha may be complex. The other arguments, the result and the errors are those of `herk`.

    Source: PBLAS, p?her2k.
    """
    given = StructuredArguments("her2k", a, b, c, "L", uplo, trans, "N", alpha, beta, out, overlap)
    return structured(Rank2Updating, given)


def plan_syrk(
    a: DistMatrix | MatrixDescriptor,
    c: DistMatrix | MatrixDescriptor | None = None,
    *,
    trans: Trans = "N",
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    uplo: Uplo = "L",
    out: DistMatrix | MatrixDescriptor | None = None,
    overlap: bool = True,
    dtype: DTypeLike | None = None,
    nprocs: int | None = None,
    hardware: Hardware | str | None = None,
) -> PlannedRankUpdate:
    """Plan `syrk`. **Collective** with matrices; with descriptors it needs no MPI.

    The arguments are those of `syrk`, with descriptors for a and c if there are no matrices yet: then `dtype` is
    needed, `nprocs` is the number of ranks (None for the largest grid), and `hardware` the machine to plan for, as in
    `plan_matmul`.

    Returns:
        The planned operation: `print(planned.explain())`, `planned.execute(...)`.

    Raises:
        as `syrk`.

    >>> from pblas.layouts import MatrixDescriptor
    >>> rows = MatrixDescriptor.row_wise(64, 16, 4, mb=4)
    >>> plan_syrk(rows, dtype="float64").plan.name
    'RankUpdate'
    """
    given = StructuredArguments("syrk", a, None, c, "L", uplo, trans, "N", alpha, beta, out, overlap, dtype)
    return planned_structured(PlannedRankUpdate, given, nprocs, hardware)


def plan_herk(
    a: DistMatrix | MatrixDescriptor,
    c: DistMatrix | MatrixDescriptor | None = None,
    *,
    trans: Trans = "N",
    alpha: float | Real = 1.0,
    beta: float | Real | None = None,
    uplo: Uplo = "L",
    out: DistMatrix | MatrixDescriptor | None = None,
    overlap: bool = True,
    dtype: DTypeLike | None = None,
    nprocs: int | None = None,
    hardware: Hardware | str | None = None,
) -> PlannedRankUpdate:
    """Plan `herk`, as `plan_syrk` plans `syrk`: **collective** with matrices; with descriptors it needs no MPI.

    >>> from pblas.layouts import MatrixDescriptor
    >>> rows = MatrixDescriptor.row_wise(64, 16, 4, mb=4)
    >>> plan_herk(rows, dtype="complex128").plan.name
    'RankUpdate'
    """
    given = StructuredArguments("herk", a, None, c, "L", uplo, trans, "N", alpha, beta, out, overlap, dtype)
    return planned_structured(PlannedRankUpdate, given, nprocs, hardware)


def plan_syr2k(
    a: DistMatrix | MatrixDescriptor,
    b: DistMatrix | MatrixDescriptor,
    c: DistMatrix | MatrixDescriptor | None = None,
    *,
    trans: Trans = "N",
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    uplo: Uplo = "L",
    out: DistMatrix | MatrixDescriptor | None = None,
    overlap: bool = True,
    dtype: DTypeLike | None = None,
    nprocs: int | None = None,
    hardware: Hardware | str | None = None,
) -> PlannedRank2Update:
    """Plan `syr2k`, as `plan_syrk` plans `syrk`: **collective** with matrices; with descriptors it needs no MPI.

    >>> from pblas.layouts import MatrixDescriptor
    >>> rows = MatrixDescriptor.row_wise(64, 16, 4, mb=4)
    >>> plan_syr2k(rows, rows, dtype="float64").plan.name
    'RankUpdate'
    """
    given = StructuredArguments("syr2k", a, b, c, "L", uplo, trans, "N", alpha, beta, out, overlap, dtype)
    return planned_structured(PlannedRank2Update, given, nprocs, hardware)


def plan_her2k(
    a: DistMatrix | MatrixDescriptor,
    b: DistMatrix | MatrixDescriptor,
    c: DistMatrix | MatrixDescriptor | None = None,
    *,
    trans: Trans = "N",
    alpha: Scalar = 1.0,
    beta: float | Real | None = None,
    uplo: Uplo = "L",
    out: DistMatrix | MatrixDescriptor | None = None,
    overlap: bool = True,
    dtype: DTypeLike | None = None,
    nprocs: int | None = None,
    hardware: Hardware | str | None = None,
) -> PlannedRank2Update:
    """Plan `her2k`, as `plan_syrk` plans `syrk`: **collective** with matrices; with descriptors it needs no MPI.

    >>> from pblas.layouts import MatrixDescriptor
    >>> rows = MatrixDescriptor.row_wise(64, 16, 4, mb=4)
    >>> plan_her2k(rows, rows, dtype="complex128").plan.name
    'RankUpdate'
    """
    given = StructuredArguments("her2k", a, b, c, "L", uplo, trans, "N", alpha, beta, out, overlap, dtype)
    return planned_structured(PlannedRank2Update, given, nprocs, hardware)


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
    dtype: DTypeLike | None = None,
    nprocs: int | None = None,
    hardware: Hardware | str | None = None,
) -> PlannedSymmetricProduct:
    """Plan `symm`. **Collective** with matrices; with descriptors it needs no MPI.

    The arguments are those of `symm`, with descriptors for a, b and c if there are no matrices yet: then `dtype` is
    needed, `nprocs` is the number of ranks (None for the largest grid), and `hardware` the machine to plan for, as in
    `plan_matmul`.

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
    dtype: DTypeLike | None = None,
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
