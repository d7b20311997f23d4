"""Cholesky and LU factorizations, solves with their factors, and exchanges of rows, without restrictions on blocks.

INFO is a return value where it can be positive: 0, or k if the factorization found something at row k.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.core.options import Trans
from pblas.factor import in_place
from pblas.scalapack import routines
from pblas.scalapack.arguments import Call
from pblas.scalapack.pivoted_calls import Permutation, PivotedCall
from pblas.scalapack.types import from_calls


def pxpotrf(call: Call) -> int:
    """**Collective.** One triangle of sub(A) := L with sub(A) = L L^H, or U with sub(A) = U^H U.

    Imaginary parts of the diagonal are not read.

    Returns:
        INFO: 0; or k > 0 if the leading k x k block is not positive definite, or has a NaN, and then sub(A) is
        unchanged.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: ScaLAPACK, p?potrf.
    """
    return _factor_cholesky(call)


def pxpotrs(call: Call) -> None:
    """**Collective.** sub(B) := A^-1 sub(B), where sub(A) has the factor of A from p?potrf.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: ScaLAPACK, p?potrs.
    """
    _solve_cholesky(call)


def pxposv(call: Call) -> int:
    """**Collective.** sub(B) := sub(A)^-1 sub(B) for a positive definite sub(A), which becomes its factor.

    Returns:
        INFO: as of p?potrf; if it is not 0, sub(A) and sub(B) are unchanged.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: ScaLAPACK, p?posv.
    """
    info = _factor_cholesky(call)
    if not info:
        _solve_cholesky(call)
    return info


def pxgetrf(call: PivotedCall) -> int:
    """**Collective.** sub(A) := L and U with P sub(A) = L U by partial pivoting; the diagonal of L is not stored.

    IPIV has room for the local rows of A; ScaLAPACK asks for MB_A more. The elements of rows IA..IA+min(M,N)-1 are
    written, on all processes that have rows of A.

    Returns:
        INFO: 0; or the least k > 0 for which U(k, k) is 0. The factorization is complete then too.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: ScaLAPACK, p?getrf.
    """
    return _factor_lu(call)[0]


def pxgetrs(call: PivotedCall) -> None:
    """**Collective.** sub(B) := op(A)^-1 sub(B), where sub(A) and IPIV have the factors of A from p?getrf.

    A zero on the diagonal of U is no error: sub(B) then has infinities or NaN.

    Raises:
        PblasArgumentError: a wrong argument on any rank, or a pivot that is no row of sub(A); the same on every rank.

    Source: ScaLAPACK, p?getrs.
    """
    if call["N"] and call["NRHS"]:
        _solve_lu(call, call.collected_pivots(), call["TRANS"])


def pxgesv(call: PivotedCall) -> int:
    """**Collective.** sub(B) := sub(A)^-1 sub(B), where sub(A) and IPIV become the factors of p?getrf.

    Returns:
        INFO: as of p?getrf; if it is not 0, sub(B) is unchanged.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: ScaLAPACK, p?gesv.
    """
    info, pivots = _factor_lu(call)
    if not info and call["N"] and call["NRHS"]:
        _solve_lu(call, pivots, "N")
    return info


def pxlapiv(call: PivotedCall) -> None:
    """**Collective.** Exchange the rows of sub(A), or its columns, one after the other, as IPIV says.

    IPIV may be a column or a row, whatever it exchanges, and need not be aligned with A.

    Raises:
        PblasArgumentError: a wrong argument on any rank, or a pivot that is no row (or column) of sub(A); the same on
            every rank of the grid.

    Source: ScaLAPACK, p?lapiv.
    """
    if call["M"] and call["N"]:
        pivots = call.collected_pivots()
        (a,) = call.operands()
        rows = a if call["ROWCOL"] == "R" else a.T
        in_place.exchange_rows(call.verb, rows, pivots, backward=call["DIREC"] == "B")
        call.deliver()


def _factor_cholesky(call: Call) -> int:
    """**Collective.** Factor sub(A)."""
    info = 0
    if call["N"]:
        info = in_place.factor_cholesky(call.verb, call.operands()[0], call["UPLO"])
        call.deliver()
    return info


def _solve_cholesky(call: Call) -> None:
    """**Collective.** Solve in sub(B)."""
    if call["N"] and call["NRHS"]:
        a, b = call.operands()
        in_place.solve_cholesky(call.verb, a, b, call["UPLO"])
        call.deliver()


def _factor_lu(call: PivotedCall) -> tuple[int, Any]:
    """**Collective.** Factor sub(A), and write IPIV; INFO and the pivots."""
    if 0 in (call["N"], call["M"] if "M" in call.routine.arguments else 1):
        return 0, None
    info, pivots = in_place.factor_lu(call.verb, call.operands()[0])
    with call.local_step():
        call.store_pivots(pivots)
        call.deliver()
    call.runtime.agree(f"{call.verb}: IPIV", {})
    return info, pivots


def _solve_lu(call: Call, pivots: Any, trans: Trans) -> None:
    """**Collective.** Solve in sub(B)."""
    a, b = call.operands()
    in_place.solve_lu(call.verb, a, pivots, b, trans)
    call.deliver()


if not TYPE_CHECKING:  # their types are in __init__.pyi
    pspotrf, pdpotrf, pcpotrf, pzpotrf = from_calls("sdcz", routines.POTRF, pxpotrf)
    pspotrs, pdpotrs, pcpotrs, pzpotrs = from_calls("sdcz", routines.POTRS, pxpotrs)
    psposv, pdposv, pcposv, pzposv = from_calls("sdcz", routines.POSV, pxposv)
    psgetrf, pdgetrf, pcgetrf, pzgetrf = from_calls("sdcz", routines.GETRF, pxgetrf, PivotedCall)
    psgetrs, pdgetrs, pcgetrs, pzgetrs = from_calls("sdcz", routines.GETRS, pxgetrs, PivotedCall)
    psgesv, pdgesv, pcgesv, pzgesv = from_calls("sdcz", routines.GESV, pxgesv, PivotedCall)
    pslapiv, pdlapiv, pclapiv, pzlapiv = from_calls("sdcz", routines.LAPIV, pxlapiv, Permutation)
