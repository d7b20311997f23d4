"""solve_triangular: SciPy's call for a triangular system, which raises for a singular triangle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np

from pblas.backends.local_step import agreed
from pblas.core.checks import not_a_matrix
from pblas.matrices.matrix import DistMatrix
from pblas.operations.arguments.trsm import TrsmRequest
from pblas.operations.linalg_errors import SingularMatrixError
from pblas.operations.products_with_arrays import replicated_matrix
from pblas.operations.trsm import solved
from pblas.runtime.open_contexts import fail_without_context
from pblas.runtime.runtime import checked_flag

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Table, Vector

_TRANS = {0: "N", 1: "T", 2: "C"}
"""SciPy's numbers of op."""


@overload
def solve_triangular(
    a: DistMatrix, b: DistMatrix, *, lower: bool = False, trans: Any = "N", unit_diagonal: bool = False
) -> DistMatrix: ...
@overload
def solve_triangular(
    a: DistMatrix, b: Vector, *, lower: bool = False, trans: Any = "N", unit_diagonal: bool = False
) -> Vector: ...
@overload
def solve_triangular(
    a: DistMatrix, b: Table, *, lower: bool = False, trans: Any = "N", unit_diagonal: bool = False
) -> DistMatrix: ...
def solve_triangular(
    a: DistMatrix, b: DistMatrix | Array, *, lower: bool = False, trans: Any = "N", unit_diagonal: bool = False
) -> Any:
    """**Collective.** Solve op(A) X = B for a triangular A, in any layouts.

    Args:
        a: n x n matrix of which one triangle is read (global).
        b: n x nrhs matrix, or an array of one or two dimensions that is equal on all ranks (global).
        lower: read the lower triangle of A; else the upper one (global).
        trans: "N" or 0: A X = B; "T" or 1: A^T X = B; "C" or 2: A^H X = B (global).
        unit_diagonal: take the diagonal of A as ones, and do not read it (global).

    Returns:
        X: a new matrix in B's layout; for an array of one dimension an array, equal on all ranks.

    Raises:
        SingularMatrixError: an element of A's diagonal is 0; `info` is the first one, from 1. B is unchanged.
        ArgumentError, DescriptorError, DTypeError: wrong arguments; the same error on every rank. 16-bit dtypes are
            refused: convert with `astype`.
        MismatchError: ranks that passed different arguments.

    Source: LAPACK, xTRTRS; scipy.linalg.solve_triangular.

    >>> import pblas, numpy as np
    >>> with pblas.Context() as ctx:
    ...     A = ctx.from_global(np.array([[2.0, 1.0], [0.0, 4.0]]))
    ...     pblas.linalg.solve_triangular(A, np.array([4.0, 8.0])).tolist()
    [1.0, 2.0]
    """
    verb = "solve_triangular"
    error = not_a_matrix(verb, "a", a)
    runtime = next((x.runtime for x in (a, b) if isinstance(x, DistMatrix)), None)
    if runtime is None:
        fail_without_context(verb, error)
    with runtime.call(verb):
        with runtime.local_step(verb):
            if not isinstance(a, DistMatrix):
                raise error
            uplo = "L" if checked_flag(verb, "lower", lower) else "U"
            is_unit = checked_flag(verb, "unit_diagonal", unit_diagonal)
            if isinstance(trans, int | np.integer) and not isinstance(trans, bool):
                trans = _TRANS.get(int(trans), trans)
            is_array = not isinstance(b, DistMatrix) and hasattr(b, "ndim")
            is_vector = is_array and b.ndim == 1
        if is_array:
            b = replicated_matrix(verb, a, b[:, None] if is_vector else b)
        call = TrsmRequest(verb, a, b, "L", uplo, trans, "U" if is_unit else "N", 1, None)
        x = solved(call, runtime, lambda: None if is_unit else check_diagonal(verb, a))
        return runtime.backend.reading(x.local)[:, 0].copy() if is_vector else x


def check_diagonal(verb: str, a: DistMatrix) -> None:
    """**Collective.** Raise SingularMatrixError, on all ranks, if an element of the diagonal is exactly 0."""
    info = first_zero(a)
    if info:
        text = f"{verb}: element ({info - 1}, {info - 1}) of A's diagonal is 0, so A is singular (info={info})"
        raise agreed(SingularMatrixError(text, info))


def first_zero(a: DistMatrix) -> int:
    """**Collective.** The place, from 1, of the first zero on the diagonal, equal on all ranks; 0 if there is none."""
    zeros = np.flatnonzero(a.diagonal() == 0)
    return int(zeros[0]) + 1 if zeros.size else 0
