"""Cholesky and LU factorizations, solves and inverses with their factors, condition numbers, exchanges of rows.

Blocks are not restricted. INFO is a return value where it can be positive: 0, or k if the routine found something at
row k.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from pblas.factor import in_place, with_factor
from pblas.factor.factors import condition_of_factor
from pblas.factor.with_factor_plan import Triangle
from pblas.scalapack import auxiliary, routines
from pblas.scalapack.arguments import Call, of_types
from pblas.scalapack.tied_vectors import Permutation, PivotedCall
from pblas.vectors.matrix_vector import real_of

if TYPE_CHECKING:
    from pblas.backends.dtypes import Real
    from pblas.core.options import Trans


OF_LU = Triangle("L", unit=True), Triangle("U")
OF_CHOLESKY = {"L": (Triangle("L"), Triangle("L", "C")), "U": (Triangle("U", "C"), Triangle("U"))}
"""The triangles of factors, in the order in which equations with them are solved."""


@of_types(routines.POTRF)
def pxpotrf(call: Call) -> int:
    """**Collective.** One triangle of sub(A) := L with sub(A) = L L^H, or U with sub(A) = U^H U.

    Imaginary parts of the diagonal are not read.

    Returns:
        INFO: 0; or k > 0 if the leading k x k block is not positive definite, or has a NaN, and then sub(A) is
        unchanged.

    Source: ScaLAPACK, p?potrf.
    """
    return _factor_cholesky(call)


@of_types(routines.POTRS)
def pxpotrs(call: Call) -> None:
    """**Collective.** sub(B) := A^-1 sub(B), where sub(A) has the factor of A from p?potrf.

    Source: ScaLAPACK, p?potrs.
    """
    _solve_cholesky(call)


@of_types(routines.POSV)
def pxposv(call: Call) -> int:
    """**Collective.** sub(B) := sub(A)^-1 sub(B) for a positive definite sub(A), which becomes its factor.

    Returns:
        INFO: as of p?potrf; if it is not 0, sub(A) and sub(B) are unchanged.

    Source: ScaLAPACK, p?posv.
    """
    info = _factor_cholesky(call)
    if not info:
        _solve_cholesky(call)
    return info


@of_types(routines.GETRF, call=PivotedCall)
def pxgetrf(call: PivotedCall) -> int:
    """**Collective.** sub(A) := L and U with P sub(A) = L U by partial pivoting; the diagonal of L is not stored.

    IPIV has room for the local rows of A; ScaLAPACK asks for MB_A more. The elements of rows IA..IA+min(M,N)-1 are
    written, on all processes that have rows of A.

    Returns:
        INFO: 0; or the least k > 0 for which U(k, k) is 0. The factorization is complete then too.

    Source: ScaLAPACK, p?getrf.
    """
    return _factor_lu(call)[0]


@of_types(routines.GETRS, call=PivotedCall)
def pxgetrs(call: PivotedCall) -> None:
    """**Collective.** sub(B) := op(A)^-1 sub(B), where sub(A) and IPIV have the factors of A from p?getrf.

    A zero on the diagonal of U is no error: sub(B) then has infinities or NaN.

    Raises:
        PblasArgumentError: a wrong argument on any rank, or a pivot that is no row of sub(A); the same on every rank.

    Source: ScaLAPACK, p?getrs.
    """
    if not call.is_empty:
        _solve_lu(call, call.collected_pivots(), call["TRANS"])


@of_types(routines.GESV, call=PivotedCall)
def pxgesv(call: PivotedCall) -> int:
    """**Collective.** sub(B) := sub(A)^-1 sub(B), where sub(A) and IPIV become the factors of p?getrf.

    Returns:
        INFO: as of p?getrf; if it is not 0, sub(B) is unchanged.

    Source: ScaLAPACK, p?gesv.
    """
    info, pivots = _factor_lu(call)
    if not info and not call.is_empty:
        _solve_lu(call, pivots, "N")
    return info


@of_types(routines.LAPIV, call=Permutation)
def pxlapiv(call: PivotedCall) -> None:
    """**Collective.** Exchange the rows of sub(A), or its columns, one after the other, as IPIV says.

    IPIV may be a column or a row, whatever it exchanges, and need not be aligned with A.

    Raises:
        PblasArgumentError: a wrong argument on any rank, or a pivot that is no row (or column) of sub(A); the same on
            every rank of the grid.

    Source: ScaLAPACK, p?lapiv.
    """
    if not call.is_empty:
        pivots = call.collected_pivots()
        (a,) = call.operands()
        rows = a if call["ROWCOL"] == "R" else a.T
        with_factor.exchange_rows(call.opname, rows, pivots, backward=call["DIREC"] == "B")


def _factor_cholesky(call: Call) -> int:
    """**Collective.** Factor sub(A)."""
    return in_place.factor_cholesky(call.opname, call.operands()[0], call["UPLO"]) if call["N"] else 0


def _solve_cholesky(call: Call) -> None:
    """**Collective.** Solve in sub(B)."""
    if not call.is_empty:
        a, b = call.operands()
        in_place.solve_cholesky(call.opname, a, b, call["UPLO"])


def _factor_lu(call: PivotedCall) -> tuple[int, Any]:
    """**Collective.** Factor sub(A), and write IPIV; INFO and the pivots."""
    if 0 in (call["N"], call["M"] if "M" in call.routine.arguments else 1):
        return 0, None
    info, pivots = in_place.factor_lu(call.opname, call.operands()[0])
    with call.step("IPIV"):
        call.store_pivots(pivots)
    return info, pivots


def _solve_lu(call: Call, pivots: Any, trans: Trans) -> None:
    """**Collective.** Solve in sub(B)."""
    a, b = call.operands()
    in_place.solve_lu(call.opname, a, pivots, b, trans)


@of_types(routines.POTRI)
def pxpotri(call: Call) -> int:
    """**Collective.** One triangle of A^-1 over the factor of A from p?potrf in sub(A).

    Returns:
        INFO: 0; or i > 0 if element (i, i) of the factor is 0, and sub(A) is unchanged.

    Source: ScaLAPACK, p?potri.
    """
    return _inverted(call, lambda a: in_place.invert_cholesky(call.opname, a, call["UPLO"]))


@of_types(routines.GETRI, call=PivotedCall)
def pxgetri(call: PivotedCall) -> int:
    """**Collective.** sub(A) := A^-1, where sub(A) and IPIV have the factors of A from p?getrf.

    Returns:
        INFO: 0; or i > 0 if U(i, i) is 0, and sub(A) is unchanged.

    Raises:
        PblasArgumentError: a wrong argument on any rank, or a pivot that is no row of sub(A); the same on every rank.

    Source: ScaLAPACK, p?getri.
    """
    if call.answers_query():
        return 0
    return _inverted(call, lambda a: in_place.invert_lu(call.opname, a, call.collected_pivots()))


@of_types(routines.TRTRI)
def pxtrtri(call: Call) -> int:
    """**Collective.** Invert a triangular sub(A) in place; the other triangle is not touched.

    Returns:
        INFO: 0; or i > 0 if element (i, i) of sub(A) is 0, and sub(A) is unchanged.

    Source: ScaLAPACK, p?trtri.
    """
    return _inverted(call, lambda a: in_place.invert_triangle(call.opname, a, call["UPLO"], unit=call["DIAG"] == "U"))


@of_types(routines.POCON, routines.POCON_COMPLEX)
def pxpocon(call: Call) -> Real:
    """**Collective.** 1 / (norm(A) norm(A^-1)) in the 1-norm, estimated from the factor of A from p?potrf in sub(A).

    Returns:
        RCOND, on all processes: seldom above three times the true value, and 0 if that is below the smallest number.
        If a workspace has size -1, 0: then nothing else is done.

    Source: ScaLAPACK, p?pocon.
    """
    return _estimated(call, OF_CHOLESKY[call["UPLO"]], lambda: call["ANORM"])


@of_types(routines.GECON, routines.GECON_COMPLEX)
def pxgecon(call: Call) -> Real:
    """**Collective.** 1 / (norm(A) norm(A^-1)), estimated from the factors of A from p?getrf in sub(A).

    Returns:
        RCOND, as of p?pocon; 0 if U has a zero on its diagonal.

    Source: ScaLAPACK, p?gecon.
    """
    return _estimated(call, OF_LU, lambda: call["ANORM"])


@of_types(routines.TRCON, routines.TRCON_COMPLEX)
def pxtrcon(call: Call) -> Real:
    """**Collective.** 1 / (norm(A) norm(A^-1)) of a triangular sub(A), of which one triangle is read; an estimate.

    Returns:
        RCOND, as of p?pocon; 0 if sub(A) is singular.

    Source: ScaLAPACK, p?trcon.
    """
    return _estimated(call, (Triangle(call["UPLO"], unit=call["DIAG"] == "U"),), lambda: auxiliary.pxlantr(call))


def _inverted(call: Call, invert: Callable[[Any], int]) -> int:
    """**Collective.** Invert in sub(A); INFO."""
    return 0 if call.is_empty else invert(call.operands()[0])


def _estimated(call: Call, triangles: tuple[Triangle, ...], norm: Callable[[], Any]) -> Real:
    """**Collective.** RCOND in the precision of the routine."""
    real = real_of(call.dtype).type
    if call.answers_query():
        return real(0)
    if not call["N"]:
        return real(1)
    p = inf if "NORM" in call.routine.arguments and call["NORM"] == "I" else 1
    return real(condition_of_factor(call.operands()[0], triangles, float(norm()), p))
