"""Inverses of factored and triangular matrices, and estimates of condition numbers."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from pblas.factor import in_place
from pblas.factor.factors import condition_of_factor
from pblas.factor.with_factor_plan import Triangle
from pblas.scalapack import auxiliary, routines
from pblas.scalapack.arguments import Call
from pblas.scalapack.pivoted_calls import PivotedCall
from pblas.scalapack.types import from_calls
from pblas.vectors.matrix_vector import real_of

if TYPE_CHECKING:
    from pblas.backends.dtypes import Real


def pxpotri(call: Call) -> int:
    """**Collective.** One triangle of A^-1 over the factor of A from p?potrf in sub(A).

    Returns:
        INFO: 0; or i > 0 if element (i, i) of the factor is 0, and sub(A) is unchanged.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: ScaLAPACK, p?potri.
    """
    return _inverted(call, lambda a: in_place.invert_cholesky(call.verb, a, call["UPLO"]))


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
    return _inverted(call, lambda a: in_place.invert_lu(call.verb, a, call.collected_pivots()))


def pxtrtri(call: Call) -> int:
    """**Collective.** Invert a triangular sub(A) in place; the other triangle is not touched.

    Returns:
        INFO: 0; or i > 0 if element (i, i) of sub(A) is 0, and sub(A) is unchanged.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: ScaLAPACK, p?trtri.
    """
    return _inverted(call, lambda a: in_place.invert_triangle(call.verb, a, call["UPLO"], unit=call["DIAG"] == "U"))


def pxpocon(call: Call) -> Real:
    """**Collective.** 1 / (norm(A) norm(A^-1)) in the 1-norm, estimated from the factor of A from p?potrf in sub(A).

    Returns:
        RCOND, on all processes: seldom above three times the true value, and 0 if that is below the smallest number.
        If a workspace has size -1, 0: then nothing else is done.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: ScaLAPACK, p?pocon.
    """
    is_lower = call["UPLO"] == "L"
    triangles = (Triangle("L"), Triangle("L", "C")) if is_lower else (Triangle("U", "C"), Triangle("U"))
    return _estimated(call, triangles, lambda: call["ANORM"])


def pxgecon(call: Call) -> Real:
    """**Collective.** 1 / (norm(A) norm(A^-1)), estimated from the factors of A from p?getrf in sub(A).

    Returns:
        RCOND, as of p?pocon; 0 if U has a zero on its diagonal.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: ScaLAPACK, p?gecon.
    """
    return _estimated(call, (Triangle("L", unit=True), Triangle("U")), lambda: call["ANORM"])


def pxtrcon(call: Call) -> Real:
    """**Collective.** 1 / (norm(A) norm(A^-1)) of a triangular sub(A), of which one triangle is read; an estimate.

    Returns:
        RCOND, as of p?pocon; 0 if sub(A) is singular.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: ScaLAPACK, p?trcon.
    """
    return _estimated(call, (Triangle(call["UPLO"], unit=call["DIAG"] == "U"),), lambda: auxiliary.pxlantr(call))


def _inverted(call: Call, invert: Callable[[Any], int]) -> int:
    """**Collective.** Invert in sub(A); INFO."""
    if not call["N"]:
        return 0
    info = invert(call.operands()[0])
    call.deliver()
    return info


def _estimated(call: Call, triangles: tuple[Triangle, ...], norm: Callable[[], Any]) -> Real:
    """**Collective.** RCOND in the precision of the routine."""
    real = real_of(call.dtype).type
    if call.answers_query():
        return real(0)
    if not call["N"]:
        return real(1)
    p = inf if "NORM" in call.routine.arguments and call["NORM"] == "I" else 1
    return real(condition_of_factor(call.operands()[0], triangles, float(norm()), p))


if not TYPE_CHECKING:  # their types are in __init__.pyi
    pspotri, pdpotri, pcpotri, pzpotri = from_calls("sdcz", routines.POTRI, pxpotri)
    psgetri, pdgetri, pcgetri, pzgetri = from_calls("sdcz", routines.GETRI, pxgetri, PivotedCall)
    pstrtri, pdtrtri, pctrtri, pztrtri = from_calls("sdcz", routines.TRTRI, pxtrtri)
    pspocon, pdpocon = from_calls("sd", routines.POCON, pxpocon)
    pcpocon, pzpocon = from_calls("cz", routines.POCON_COMPLEX, pxpocon)
    psgecon, pdgecon = from_calls("sd", routines.GECON, pxgecon)
    pcgecon, pzgecon = from_calls("cz", routines.GECON_COMPLEX, pxgecon)
    pstrcon, pdtrcon = from_calls("sd", routines.TRCON, pxtrcon)
    pctrcon, pztrcon = from_calls("cz", routines.TRCON_COMPLEX, pxtrcon)
