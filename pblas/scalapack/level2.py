"""Level 2 of PBLAS: matrices times vectors, and updates of matrices by vectors.

Vectors are rows or columns of matrices.
"""

from __future__ import annotations

from pblas.scalapack import routines
from pblas.scalapack.arguments import Call, of_types
from pblas.triangular.trsm import trsv
from pblas.vectors import rank_updates
from pblas.vectors.matrix_vector import Product, product


@of_types(routines.GEMV, routines.SYMV, routines.HEMV)
def pxmv(call: Call) -> None:
    """**Collective.** sub(Y) := alpha op(sub(A)) sub(X) + beta sub(Y).

    If M or N is 0, sub(Y) does not change, as in PBLAS.

    Source: PBLAS, p?gemv, p?symv, p?hemv.
    """
    _multiply(call, "")


@of_types(routines.AGEMV, routines.ASYMV, routines.AHEMV, routines.ATRMV)
def pxamv(call: Call) -> None:
    """**Collective.** sub(Y) := abs(alpha) abs(op(sub(A))) abs(sub(X)) + abs(beta sub(Y)).

    The absolute value of a complex element is abs(Re) + abs(Im). Y, alpha and beta are real for complex types too. If
    M or N is 0, sub(Y) does not change, as in PBLAS. With alpha = 0 and beta = 1 it becomes abs(sub(Y)), as PBLAS
    documents; ScaLAPACK 2.2 returns before it takes the absolute values.

    Source: PBLAS, p?agemv, p?asymv, p?ahemv, p?atrmv.
    """
    _multiply(call, "abs1")


@of_types(routines.TRMV)
def pxtrmv(call: Call) -> None:
    """**Collective.** sub(X) := op(sub(A)) sub(X) for a triangular sub(A).

    Source: PBLAS, p?trmv.
    """
    if not call.is_empty:
        a, x = call.operands()
        product(Product("trmv", a, x, out=x, **call.options))


@of_types(routines.TRSV)
def pxtrsv(call: Call) -> None:
    """**Collective.** sub(X) := op(sub(A))^-1 sub(X) for a triangular sub(A).

    Source: PBLAS, p?trsv.
    """
    if not call.is_empty:
        a, x = call.operands()
        trsv(a, x, out=x, **call.options)


@of_types(routines.GER, routines.GERU, routines.GERC, routines.SYR, routines.HER, routines.SYR2, routines.HER2)
def pxupdate(call: Call) -> None:
    """**Collective.** sub(A) := sub(A) + alpha sub(X) sub(Y)^T, or + alpha sub(X) sub(X)^T and the like.

    p?gerc, p?her and p?her2 conjugate the second vector. Symmetric and Hermitian updates write one triangle.

    Source: PBLAS, p?ger, p?geru, p?gerc, p?syr, p?her, p?syr2, p?her2.
    """
    if not call.is_empty:
        getattr(rank_updates, call.routine.name)(*call.operands(), **call.options)


def _multiply(call: Call, absolute: str) -> None:
    """**Collective.** sub(Y) := alpha op(sub(A)) sub(X) + beta sub(Y), or that of absolute values."""
    if not call.is_empty:
        a, x, y = call.operands()
        product(Product(call.routine.name, a, x, y, y, absolute=absolute, **call.options))
