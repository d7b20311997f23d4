"""Level 1 of PBLAS: sums, norms, extremes and updates of rows and columns of matrices.

Each routine is called as in Fortran; output scalars are return values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas.scalapack import routines
from pblas.scalapack.arguments import Call
from pblas.scalapack.types import from_calls
from pblas.vectors import level1
from pblas.vectors.matrix_vector import real_of

if TYPE_CHECKING:
    from pblas.backends.dtypes import Number, Real


def in_scope(call: Call) -> bool:
    """Whether this process gets the result of a reduction, as in PBLAS: it is in the scope of one of the vectors.

    The scope of a row is its process row, and the scope of a column its process column. The scope of a single element
    of a matrix of one row with INC = 1 is its owner (local).
    """
    myrow, mycol = call.grid.grid.coordinates(call.runtime.rank)
    for operand in call.routine.operands:
        matrix, is_row = call.matrix(operand.name), call.is_row(operand)
        same_row, same_column = matrix.desc.rsrc in (-1, myrow), matrix.desc.csrc in (-1, mycol)
        if is_row and call[operand.increment] == 1 and call["N"] == 1:
            inside = same_row and same_column
        else:
            inside = same_row if is_row else same_column
        if inside:
            return True
    return False


def pxswap(call: Call) -> None:
    """**Collective.** Exchange sub(X) and sub(Y).

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?swap.
    """
    if call["N"]:
        level1.swap(*call.operands())
        call.deliver()


def pxcopy(call: Call) -> None:
    """**Collective.** sub(Y) := sub(X).

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?copy.
    """
    if call["N"]:
        level1.copy(*call.operands())
        call.deliver()


def pxscal(call: Call) -> None:
    """**Collective.** sub(X) := alpha sub(X).

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?scal.
    """
    if call["N"]:
        level1.scal(call["ALPHA"], *call.operands())
        call.deliver()


def pxaxpy(call: Call) -> None:
    """**Collective.** sub(Y) := alpha sub(X) + sub(Y).

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?axpy.
    """
    if call["N"]:
        level1.axpy(call["ALPHA"], *call.operands())
        call.deliver()


def pxdot(call: Call) -> Number:
    """**Collective.** The sum of x_i y_i, of conj(x_i) y_i for p?dotc.

    Returns:
        The second argument of Fortran: the sum on the processes in the scope of sub(X) or sub(Y), 0 elsewhere.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?dot, p?dotu, p?dotc.
    """
    if not call["N"]:
        return call.dtype.type(0)
    result = (level1.dotc if call.routine is routines.DOTC else level1.dotu)(*call.operands())
    return result if in_scope(call) else call.dtype.type(0)


def pxnrm2(call: Call) -> Real:
    """**Collective.** The root of the sum of abs(x_i)^2; it neither overflows nor underflows.

    Returns:
        The second argument of Fortran: the norm on the processes in the scope of sub(X), 0 elsewhere.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?nrm2.
    """
    zero = real_of(call.dtype).type(0)
    result = level1.nrm2(*call.operands()) if call["N"] else zero
    return result if call["N"] and in_scope(call) else zero


def pxasum(call: Call) -> Real:
    """**Collective.** The sum of abs(x_i), of abs(Re x_i) + abs(Im x_i) for complex vectors.

    Returns:
        The second argument of Fortran: the sum on the processes in the scope of sub(X), 0 elsewhere.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?asum.
    """
    zero = real_of(call.dtype).type(0)
    result = level1.asum(*call.operands()) if call["N"] else zero
    return result if call["N"] and in_scope(call) else zero


def pxamax(call: Call) -> tuple[Number, int]:
    """**Collective.** The element of largest abs(x_i), or abs(Re x_i) + abs(Im x_i), the first one, and its place.

    Returns:
        (amax, indx), the second and third arguments of Fortran: the element, and its row in X, its column if sub(X) is
        a row, from 1, on the processes in the scope of sub(X); (0, 0) elsewhere, and for N = 0.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid.

    Source: PBLAS, p?amax.
    """
    if not call["N"]:
        return call.dtype.type(0), 0
    value, index = level1.amax(*call.operands())
    if not in_scope(call):
        return call.dtype.type(0), 0
    start: int = call["JX"] if call.is_row(call.routine.operands[0]) else call["IX"]
    return call.dtype.type(value), start + index


if not TYPE_CHECKING:  # their types are in __init__.pyi
    psswap, pdswap, pcswap, pzswap = from_calls("sdcz", routines.SWAP, pxswap)
    pscopy, pdcopy, pccopy, pzcopy = from_calls("sdcz", routines.COPY, pxcopy)
    psscal, pdscal, pcscal, pzscal, pcsscal, pzdscal = from_calls([*"sdcz", "cs", "zd"], routines.SCAL, pxscal)
    psaxpy, pdaxpy, pcaxpy, pzaxpy = from_calls("sdcz", routines.AXPY, pxaxpy)
    psdot, pddot = from_calls("sd", routines.DOT, pxdot)
    pcdotu, pzdotu = from_calls("cz", routines.DOTU, pxdot)
    pcdotc, pzdotc = from_calls("cz", routines.DOTC, pxdot)
    psnrm2, pdnrm2, pscnrm2, pdznrm2 = from_calls(["s", "d", "sc", "dz"], routines.NRM2, pxnrm2)
    psasum, pdasum, pscasum, pdzasum = from_calls(["s", "d", "sc", "dz"], routines.ASUM, pxasum)
    psamax, pdamax, pcamax, pzamax = from_calls("sdcz", routines.AMAX, pxamax)
