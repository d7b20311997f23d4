"""trsv: a triangular system with one right-hand side, which is a column, a row or an array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from pblas import errors
from pblas.core.call import call, checked_call
from pblas.core.checks import check_matrix
from pblas.core.options import Diag, Trans, Uplo
from pblas.matmul.with_arrays import replicated_matrix
from pblas.matrices.matrix import DistMatrix
from pblas.triangular.trsm import TriangularSolve
from pblas.vectors.checks import Vector, checked_vector

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.runtime.runtime import Runtime


@overload
def trsv(
    a: DistMatrix,
    x: DistMatrix,
    *,
    uplo: Uplo = "L",
    trans: Trans = "N",
    diag: Diag = "N",
    out: DistMatrix | None = None,
) -> DistMatrix: ...
@overload
def trsv(a: DistMatrix, x: Array, *, uplo: Uplo = "L", trans: Trans = "N", diag: Diag = "N") -> Array: ...
def trsv(
    a: DistMatrix,
    x: DistMatrix | Array,
    *,
    uplo: Uplo = "L",
    trans: Trans = "N",
    diag: Diag = "N",
    out: DistMatrix | None = None,
) -> DistMatrix | Array:
    """**Collective.** op(A)^-1 x for a triangular A, as `trsm` with one right-hand side.

    For a large A the triangle stays, and each rank receives O(n) elements: x is solved in blocks along the diagonal.
    For a small A one rank solves, and receives the triangle.

    Args:
        a: n x n matrix in any layout, of which one triangle is read (global).
        x: n x 1 or 1 x n matrix in any layout, or an array of n elements that is equal on all ranks (global).
        uplo: "L" for a lower, "U" for an upper triangular A (global).
        trans: "N", "T" or "C": A as it is, transposed, conjugate transposed (global).
        diag: "U": the diagonal is 1 and not read; "N": it is read, and divided by (global).
        out: matrix of the shape of x that receives the result; out=x works in place. None for a new one (global).

    Returns:
        `out` or a new matrix of the shape of x; for an array an array, equal on all ranks.

    Raises:
        ArgumentError, DescriptorError, DTypeError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.

    Source: BLAS, xTRSV.

    >>> import pblas, numpy as np
    >>> with pblas.Context() as ctx:
    ...     A = ctx.from_global(np.array([[2.0, 0.0], [1.0, 4.0]]))
    ...     pblas.blas.trsv(A, np.array([4.0, 10.0])).tolist()
    [2.0, 2.0]
    """
    matrices = {"a": a, "x": x, "out": out}
    with checked_call("trsv", _checked_vector, matrices, a, x, out) as (runtime, vector):
        column = vector.column
        if column is None:
            column = replicated_matrix("trsv", a, x[:, None])
            return runtime.backend.reading(_solved(a, column, uplo, trans, diag, None).local)[:, 0].copy()
        is_row = vector.is_row
        target = column if out is x else out.T if is_row and isinstance(out, DistMatrix) else out
        result = _solved(a, column, uplo, trans, diag, target)
        return out if out is not None else result.T if is_row else result


def _checked_vector(verb: str, runtime: Runtime, a: Any, x: Any, out: Any) -> Vector:
    """The right-hand side (local)."""
    check_matrix(verb, "a", a, runtime)
    vector = checked_vector(verb, "x", x, runtime, a.dtype)
    if vector.column is None and out is not None:
        raise errors.ArgumentError(f"{verb}: out is for an x that is a matrix; an array gives a new array")
    return vector


def _solved(
    a: DistMatrix, column: DistMatrix, uplo: Uplo, trans: Trans, diag: Diag, out: DistMatrix | None
) -> DistMatrix:
    """**Collective.** op(A)^-1 times a column."""
    matrices = {"a": a, "x": column, "out": out}
    return call("trsv", TriangularSolve.bind, matrices, a, column, "L", uplo, trans, diag, 1, out)
