"""Level 1 of PBLAS: sums, norms, extremes and updates of rows and columns of matrices.

Each routine is called as in Fortran; output scalars are return values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pblas.scalapack import routines
from pblas.scalapack.arguments import Call, of_types
from pblas.vectors import level1
from pblas.vectors.matrix_vector import real_of

if TYPE_CHECKING:
    from pblas.backends.dtypes import Number, Real

R = TypeVar("R")


@of_types(routines.SWAP)
def pxswap(call: Call) -> None:
    """**Collective.** Exchange sub(X) and sub(Y).

    Source: PBLAS, p?swap.
    """
    if not call.is_empty:
        level1.swap(*call.operands())


@of_types(routines.COPY)
def pxcopy(call: Call) -> None:
    """**Collective.** sub(Y) := sub(X).

    Source: PBLAS, p?copy.
    """
    if not call.is_empty:
        level1.copy(*call.operands())


@of_types(routines.SCAL)
def pxscal(call: Call) -> None:
    """**Collective.** sub(X) := alpha sub(X).

    Source: PBLAS, p?scal.
    """
    if not call.is_empty:
        level1.scal(call["ALPHA"], *call.operands())


@of_types(routines.AXPY)
def pxaxpy(call: Call) -> None:
    """**Collective.** sub(Y) := alpha sub(X) + sub(Y).

    Source: PBLAS, p?axpy.
    """
    if not call.is_empty:
        level1.axpy(call["ALPHA"], *call.operands())


@of_types(routines.DOT, routines.DOTU, routines.DOTC)
def pxdot(call: Call) -> Number:
    """**Collective.** The sum of x_i y_i, of conj(x_i) y_i for p?dotc.

    Returns:
        The second argument of Fortran: the sum on the processes in the scope of sub(X) or sub(Y), 0 elsewhere.

    Source: PBLAS, p?dot, p?dotu, p?dotc.
    """
    return _reduced(call, level1.dotc if call.routine is routines.DOTC else level1.dotu, call.dtype.type(0))


@of_types(routines.NRM2)
def pxnrm2(call: Call) -> Real:
    """**Collective.** The root of the sum of abs(x_i)^2; it neither overflows nor underflows.

    Returns:
        The second argument of Fortran: the norm on the processes in the scope of sub(X), 0 elsewhere.

    Source: PBLAS, p?nrm2.
    """
    return _reduced(call, level1.nrm2, real_of(call.dtype).type(0))


@of_types(routines.ASUM)
def pxasum(call: Call) -> Real:
    """**Collective.** The sum of abs(x_i), of abs(Re x_i) + abs(Im x_i) for complex vectors.

    Returns:
        The second argument of Fortran: the sum on the processes in the scope of sub(X), 0 elsewhere.

    Source: PBLAS, p?asum.
    """
    return _reduced(call, level1.asum, real_of(call.dtype).type(0))


@of_types(routines.AMAX)
def pxamax(call: Call) -> tuple[Number, int]:
    """**Collective.** The element of largest abs(x_i), or abs(Re x_i) + abs(Im x_i), the first one, and its place.

    Returns:
        (amax, indx), the second and third arguments of Fortran: the element, and its row in X, its column if sub(X) is
        a row, from 1, on the processes in the scope of sub(X); (0, 0) elsewhere, and for N = 0.

    Source: PBLAS, p?amax.
    """
    none: tuple[float | complex, int] = (0, -1)
    value, index = _reduced(call, level1.amax, none)
    if index < 0:
        return call.dtype.type(0), 0
    start: int = call["JX"] if call.is_row(call.routine.operands[0]) else call["IX"]
    return call.dtype.type(value), start + index


def _reduced(call: Call, reduction: Callable[..., R], zero: R) -> R:
    """**Collective.** A reduction, on the processes in the scope of one of the vectors; zero elsewhere."""
    if call.is_empty:
        return zero
    result = reduction(*call.operands())
    return result if _in_scope(call) else zero


def _in_scope(call: Call) -> bool:
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
