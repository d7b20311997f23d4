"""Level 2 of PBLAS: matrices times vectors, and updates of matrices by vectors.

Vectors are rows or columns of matrices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas.scalapack import routines
from pblas.scalapack.arguments import Call
from pblas.scalapack.types import from_calls
from pblas.triangular.trsm import trsv
from pblas.vectors import rank_updates
from pblas.vectors.matrix_vector import Product, product


def pxmv(call: Call) -> None:
    """**Collective.** sub(Y) := alpha op(sub(A)) sub(X) + beta sub(Y).

    If M or N is 0, sub(Y) does not change, as in PBLAS.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?gemv, p?symv, p?hemv.
    """
    _multiply(call, "")


def pxamv(call: Call) -> None:
    """**Collective.** sub(Y) := abs(alpha) abs(op(sub(A))) abs(sub(X)) + abs(beta sub(Y)).

    The absolute value of a complex element is abs(Re) + abs(Im). Y, alpha and beta are real for complex types too. If
    M or N is 0, sub(Y) does not change, as in PBLAS. With alpha = 0 and beta = 1 it becomes abs(sub(Y)), as PBLAS
    documents; ScaLAPACK 2.2 returns before it takes the absolute values.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?agemv, p?asymv, p?ahemv, p?atrmv.
    """
    _multiply(call, "abs1")


def pxtrmv(call: Call) -> None:
    """**Collective.** sub(X) := op(sub(A)) sub(X) for a triangular sub(A).

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?trmv.
    """
    if call["N"]:
        a, x = call.operands()
        options = {"trans": call["TRANS"], "uplo": call["UPLO"], "diag": call["DIAG"]}
        product(Product("trmv", a, x, out=x, **options))
        call.deliver()


def pxtrsv(call: Call) -> None:
    """**Collective.** sub(X) := op(sub(A))^-1 sub(X) for a triangular sub(A).

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?trsv.
    """
    if call["N"]:
        a, x = call.operands()
        trsv(a, x, uplo=call["UPLO"], trans=call["TRANS"], diag=call["DIAG"], out=x)
        call.deliver()


def pxupdate(call: Call) -> None:
    """**Collective.** sub(A) := sub(A) + alpha sub(X) sub(Y)^T, or + alpha sub(X) sub(X)^T and the like.

    p?gerc, p?her and p?her2 conjugate the second vector. Symmetric and Hermitian updates write one triangle.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?ger, p?geru, p?gerc, p?syr, p?her, p?syr2, p?her2.
    """
    if call["N"] and ("M" not in call.routine.arguments or call["M"]):
        options = {"uplo": call["UPLO"]} if "UPLO" in call.routine.arguments else {}
        getattr(rank_updates, call.routine.name)(*call.operands(), alpha=call["ALPHA"], **options)
        call.deliver()


def _multiply(call: Call, absolute: str) -> None:
    """**Collective.** sub(Y) := alpha op(sub(A)) sub(X) + beta sub(Y), or that of absolute values."""
    names = call.routine.arguments
    if not call["N"] or ("M" in names and not call["M"]):
        return
    a, x, y = call.operands()
    options = {name.lower(): call[name] for name in ("TRANS", "UPLO", "DIAG", "ALPHA", "BETA") if name in names}
    product(Product(call.routine.name, a, x, y, y, absolute=absolute, **options))
    call.deliver()


if not TYPE_CHECKING:  # their types are in __init__.pyi
    psgemv, pdgemv, pcgemv, pzgemv = from_calls("sdcz", routines.GEMV, pxmv)
    psagemv, pdagemv, pcagemv, pzagemv = from_calls("sdcz", routines.AGEMV, pxamv)
    pssymv, pdsymv = from_calls("sd", routines.SYMV, pxmv)
    pchemv, pzhemv = from_calls("cz", routines.HEMV, pxmv)
    psasymv, pdasymv = from_calls("sd", routines.ASYMV, pxamv)
    pcahemv, pzahemv = from_calls("cz", routines.AHEMV, pxamv)
    pstrmv, pdtrmv, pctrmv, pztrmv = from_calls("sdcz", routines.TRMV, pxtrmv)
    pstrsv, pdtrsv, pctrsv, pztrsv = from_calls("sdcz", routines.TRSV, pxtrsv)
    psatrmv, pdatrmv, pcatrmv, pzatrmv = from_calls("sdcz", routines.ATRMV, pxamv)
    psger, pdger = from_calls("sd", routines.GER, pxupdate)
    pcgeru, pzgeru = from_calls("cz", routines.GERU, pxupdate)
    pcgerc, pzgerc = from_calls("cz", routines.GERC, pxupdate)
    pssyr, pdsyr = from_calls("sd", routines.SYR, pxupdate)
    pcher, pzher = from_calls("cz", routines.HER, pxupdate)
    pssyr2, pdsyr2 = from_calls("sd", routines.SYR2, pxupdate)
    pcher2, pzher2 = from_calls("cz", routines.HER2, pxupdate)
