"""Auxiliary routines of ScaLAPACK: norms, and assignments of submatrices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.arrays.stacking import tril, triu
from pblas.matrices.scatter_gather import global_indices
from pblas.redistribution.api import redistribute
from pblas.scalapack import routines
from pblas.scalapack.arguments import Call, of_types
from pblas.vectors.matrix_vector import Product, product, real_of

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Real
    from pblas.matrices.matrix import DistMatrix
    from pblas.matrices.operators import Ord

_ORD: dict[str, Ord] = {"M": "max", "1": 1, "O": 1, "I": math.inf, "F": "fro", "E": "fro"}


@of_types(routines.LANGE)
def pxlange(call: Call) -> Real:
    """**Collective.** A norm of sub(A); none of them overflows before the result does.

    Returns:
        The norm, on all processes of the grid; 0 if sub(A) is empty.

    Source: ScaLAPACK, p?lange.
    """
    (a,) = call.operands()
    return _result(call, a.norm(_ORD[call["NORM"]]))


@of_types(routines.LANSY, routines.LANHE)
def pxlansy(call: Call) -> Real:
    """**Collective.** A norm of a symmetric or Hermitian sub(A), of which one triangle is read.

    p?lanhe does not read imaginary parts of the diagonal.

    Returns:
        The norm, on all processes of the grid; 0 if sub(A) is empty.

    Source: ScaLAPACK, p?lansy, p?lanhe.
    """
    (a,) = call.operands()
    if not call["N"]:
        return _result(call, 0.0)
    kind, is_hermitian = _ORD[call["NORM"]], call.routine is routines.LANHE
    if kind in (1, math.inf):
        opname = "ahemv" if is_hermitian else "asymv"
        ones = np.ones(a.shape[0], call.dtype)
        return _result(call, product(Product(opname, a, ones, uplo=call["UPLO"], absolute="abs")).max())
    diagonal = a.diagonal()
    sizes = np.abs(diagonal.real if is_hermitian else diagonal)
    beside = _triangle(a, call["UPLO"], 1).norm(kind)
    if kind == "max":
        return _result(call, np.maximum(beside, sizes.max()))
    return _result(call, np.hypot(math.sqrt(2.0) * np.float64(beside), _root_of_squares(sizes)))


@of_types(routines.LANTR)
def pxlantr(call: Call) -> Real:
    """**Collective.** A norm of a trapezoidal or triangular sub(A), of which one triangle is read.

    Returns:
        The norm, on all processes of the grid; 0 if sub(A) is empty.

    Source: ScaLAPACK, p?lantr.
    """
    (a,) = call.operands()
    if 0 in a.shape:
        return _result(call, 0.0)
    kind, is_unit = _ORD[call["NORM"]], call["DIAG"] == "U"
    part = _triangle(a, call["UPLO"], int(is_unit))
    if kind in (1, math.inf):
        sums = part.norm(1, axis=0 if kind == 1 else 1)
        sums[: min(a.shape)] += int(is_unit)
        return _result(call, sums.max())
    norm = part.norm(kind)
    if is_unit:
        ones = 1.0 if kind == "max" else math.sqrt(min(a.shape))
        norm = np.maximum(norm, ones) if kind == "max" else np.hypot(norm, ones)
    return _result(call, norm)


@of_types(routines.LASET)
def pxlaset(call: Call) -> None:
    """**Collective.** The elements of sub(A), or of one triangle, := alpha off the diagonal and beta on it.

    Source: ScaLAPACK, p?laset.
    """
    (a,) = call.operands()
    with call.step("assign"):
        rows, columns = global_indices(a.desc, call.runtime.rank)
        distance = columns[None, :] - rows[:, None]
        inside = {"A": np.isfinite(distance), "U": distance >= 0, "L": distance <= 0}[call["UPLO"]]
        stored = a.stored(call.opname)
        elements = call.runtime.backend.reading(stored).copy()
        elements[inside] = call["ALPHA"]
        elements[distance == 0] = call["BETA"]
        call.runtime.backend.copy(elements, stored)


@of_types(routines.LACPY)
def pxlacpy(call: Call) -> None:
    """**Collective.** sub(B) := sub(A), all of it or one triangle; the matrices may have different layouts.

    Source: ScaLAPACK, p?lacpy.
    """
    a, b = call.operands()
    redistribute(a, out=b, uplo=None if call["UPLO"] == "A" else call["UPLO"])


def _result(call: Call, norm: object) -> Real:
    """A norm in the precision of the routine."""
    with np.errstate(over="ignore"):
        result: Real = real_of(call.dtype).type(norm)
    return result


def _triangle(a: DistMatrix, uplo: str, k: int) -> DistMatrix:
    """**Collective.** A triangle without its first k diagonals, and zeros."""
    return tril(a, -k) if uplo == "L" else triu(a, k)


def _root_of_squares(sizes: Array) -> Any:
    """The root of a sum of squares, without overflow."""
    largest = np.float64(sizes.max())
    if not 0 < largest < math.inf:
        return largest
    return largest * np.sqrt(np.square(sizes / largest).sum())
