"""symm, hemm: products with a symmetric or Hermitian matrix; syrk, herk, syr2k, her2k: rank-k updates; their plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas.core.variants import variant
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

    from pblas.backends.dtypes import Scalar
    from pblas.core.options import Side, Trans, Uplo
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.matrices.matrix import DistMatrix
    from pblas.simulation.hardware import Hardware


def _rank_update(
    routine: str,
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
    """**Collective.** syrk or herk.

    Half the flops of the product, since the other triangle is neither formed, read nor written.

    Args:
        a: n x k matrix, or k x n with trans other than "N" (global).
        c: n x n matrix; its triangle `uplo` is added; needed if beta is not 0 (global).
        trans: op: "N"; or "T" for a symmetric D, "C" for a Hermitian one, the same for real matrices (global).
        alpha: scalar, real for a Hermitian D; with alpha = 0 the operands are not read (global).
        beta: scalar, real for a Hermitian D; with beta = 0 C is not read; None: 1 if c is given, else 0 (global).
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

    Source: PBLAS, p?syrk and p?herk.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     a = ctx.from_function(lambda i, j: i + 1.0j, (2, 1), complex)
    ...     D, H = pblas.blas.syrk(a.real), pblas.blas.herk(a)
    ...     D.to_global(None).tolist(), H.to_global(None).tolist()
    ([[0.0, 0.0], [0.0, 1.0]], [[(1+0j), 0j], [(1-1j), (2+0j)]])
    """
    given = StructuredArguments(routine, a, None, c, "L", uplo, trans, "N", alpha, beta, out, overlap)
    return structured(RankUpdating, given)


syrk = variant(_rank_update, "syrk", "**Collective.** One triangle of the symmetric D = alpha op(A) op(A)^T + beta C.")
herk = variant(
    _rank_update,
    "herk",
    """**Collective.** One triangle of the Hermitian D = alpha op(A) op(A)^H + beta C.

    Imaginary parts on the diagonal of C are not read, and are set to 0.
    """,
)


def _rank_2_update(
    routine: str,
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
    """**Collective.** syr2k or her2k.

    B has the shape of A. Alpha may be complex, beta is real for a Hermitian D. The other arguments, the result and the
    errors are those of `syrk` and `herk`.

    Source: PBLAS, p?syr2k and p?her2k.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     a = ctx.from_function(lambda i, j: i + 1.0j, (2, 1), complex)
    ...     b = ctx.ones((2, 1), complex)
    ...     D, H = pblas.blas.syr2k(a.real, b.real), pblas.blas.her2k(a, b)
    ...     D.to_global(None).tolist(), H.to_global(None).tolist()
    ([[0.0, 0.0], [1.0, 2.0]], [[0j, 0j], [(1+0j), (2+0j)]])
    """
    given = StructuredArguments(routine, a, b, c, "L", uplo, trans, "N", alpha, beta, out, overlap)
    return structured(Rank2Updating, given)


syr2k = variant(
    _rank_2_update,
    "syr2k",
    "**Collective.** One triangle of the symmetric D = alpha op(A) op(B)^T + alpha op(B) op(A)^T + beta C.",
)
her2k = variant(
    _rank_2_update,
    "her2k",
    "**Collective.** One triangle of the Hermitian D = alpha op(A) op(B)^H + conj(alpha) op(B) op(A)^H + beta C.",
)


def _plan_rank_update(
    opname: str,
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
    """Plan syrk or herk.

    The other arguments and the errors are those of the call, with descriptors for a and c if there are no matrices yet:
    then `dtype` is needed, `nprocs` is the number of ranks (None for the largest grid), and `hardware` the machine to
    plan for, as in `plan_matmul`.

    Returns:
        The planned operation: `print(planned.explain())`, `planned.execute(...)`.

    >>> from pblas.layouts import MatrixDescriptor
    >>> rows = MatrixDescriptor.row_wise(64, 16, 4, mb=4)
    >>> plan_syrk(rows, dtype="float64").plan.name, plan_herk(rows, dtype="complex128").plan.name
    ('RankUpdate', 'RankUpdate')
    """
    routine = opname.removeprefix("plan_")
    given = StructuredArguments(routine, a, None, c, "L", uplo, trans, "N", alpha, beta, out, overlap, dtype)
    return planned_structured(PlannedRankUpdate, given, nprocs, hardware)


_PLAN = "Plan `{}`. **Collective** with matrices; with descriptors it needs no MPI."
plan_syrk = variant(_plan_rank_update, "plan_syrk", _PLAN.format("syrk"))
plan_herk = variant(_plan_rank_update, "plan_herk", _PLAN.format("herk"))


def _plan_rank_2_update(
    opname: str,
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
    """Plan syr2k or her2k.

    Other arguments as in the call, and `dtype`, `nprocs`, `hardware` and the result as in `plan_syrk`.

    >>> from pblas.layouts import MatrixDescriptor
    >>> rows = MatrixDescriptor.row_wise(64, 16, 4, mb=4)
    >>> plan_syr2k(rows, rows, dtype="float64").plan.name, plan_her2k(rows, rows, dtype="complex128").plan.name
    ('RankUpdate', 'RankUpdate')
    """
    routine = opname.removeprefix("plan_")
    given = StructuredArguments(routine, a, b, c, "L", uplo, trans, "N", alpha, beta, out, overlap, dtype)
    return planned_structured(PlannedRank2Update, given, nprocs, hardware)


plan_syr2k = variant(_plan_rank_2_update, "plan_syr2k", _PLAN.format("syr2k"))
plan_her2k = variant(_plan_rank_2_update, "plan_her2k", _PLAN.format("her2k"))


def _symmetric_product(
    routine: str,
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
    """**Collective.** symm or hemm.

    One triangle of A is read; the other one may hold anything.

    Args:
        a: square matrix: m x m with side "L", n x n with side "R" (global).
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

    Source: PBLAS, p?symm and p?hemm.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     A = ctx.from_global(np.array([[1.0, np.nan], [2.0j, 3.0]]))  # the upper triangle is not read
    ...     H, D = pblas.blas.hemm(A, ctx.eye(2, complex)), pblas.blas.symm(A, ctx.eye(2, complex))
    ...     H.to_global(None).tolist(), D[0, 1]
    ([[(1+0j), -2j], [2j, (3+0j)]], 2j)
    """
    given = StructuredArguments(routine, a, b, c, side, uplo, "N", "N", alpha, beta, out, overlap)
    return structured(SymmetricMultiplication, given)


symm = variant(
    _symmetric_product, "symm", "**Collective.** D = alpha A B + beta C, or alpha B A + beta C, with a symmetric A."
)
hemm = variant(
    _symmetric_product,
    "hemm",
    """**Collective.** D = alpha A B + beta C, or alpha B A + beta C, with a Hermitian A.

    Imaginary parts on the diagonal of A are not read.
    """,
)


def _plan_symmetric_product(
    opname: str,
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
    """Plan symm or hemm.

    Other arguments as in the call, and `dtype`, `nprocs`, `hardware` and the result as in `plan_syrk`.

    >>> from pblas.layouts import MatrixDescriptor
    >>> rows = MatrixDescriptor.row_wise(64, 64, 4)
    >>> plan_symm(rows, rows, dtype="float64").plan.inner.name
    'AllGatherGemm'
    """
    routine = opname.removeprefix("plan_")
    given = StructuredArguments(routine, a, b, c, side, uplo, "N", "N", alpha, beta, out, overlap, dtype)
    return planned_structured(PlannedSymmetricProduct, given, nprocs, hardware)


plan_symm = variant(_plan_symmetric_product, "plan_symm", _PLAN.format("symm"))
plan_hemm = variant(_plan_symmetric_product, "plan_hemm", _PLAN.format("hemm"))
