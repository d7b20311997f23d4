"""trsv: a triangular system with one right-hand side, which is a column, a row or an array."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from pblas import errors
from pblas.core.call import call, runtime_of
from pblas.core.checks import not_a_matrix
from pblas.core.options import Diag, Trans, Uplo
from pblas.matrices.matrix import DistMatrix
from pblas.operations.products_with_arrays import replicated_matrix
from pblas.operations.trsm import TriangularSolve

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array


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
    verb = "trsv"
    runtime = runtime_of(verb, {"a": a, "x": x, "out": out})
    with runtime.call(verb):
        with runtime.local_step(verb):
            if not isinstance(a, DistMatrix):
                raise not_a_matrix(verb, "a", a)
            shape = tuple(getattr(x, "shape", ()))
            is_array = not isinstance(x, DistMatrix)
            if len(shape) != 2 - is_array or (not is_array and 1 not in shape):
                raise errors.ArgumentError(
                    f"{verb}: x must be an n x 1 or 1 x n matrix, or an array of one dimension, got {type(x).__name__} "
                    f"of shape {shape}"
                )
            if is_array and out is not None:
                raise errors.ArgumentError(f"{verb}: out is for an x that is a matrix; an array gives a new array")
        if not isinstance(x, DistMatrix):
            column = replicated_matrix(verb, a, x[:, None])
            return runtime.backend.reading(_solved(a, column, uplo, trans, diag, None).local)[:, 0].copy()
        is_row = shape[0] == 1 and shape[1] != 1
        column = x.T if is_row else x
        target = column if out is x else out.T if is_row and isinstance(out, DistMatrix) else out
        result = _solved(a, column, uplo, trans, diag, target)
        return out if out is not None else result.T if is_row else result


def _solved(
    a: DistMatrix, column: DistMatrix, uplo: Uplo, trans: Trans, diag: Diag, out: DistMatrix | None
) -> DistMatrix:
    """**Collective.** op(A)^-1 times a column."""
    matrices = {"a": a, "x": column, "out": out}
    return call("trsv", TriangularSolve.bind, matrices, a, column, "L", uplo, trans, diag, 1, out)
