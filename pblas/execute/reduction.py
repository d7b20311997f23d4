"""Executor of reductions: this rank's partial results, and the combination of all ranks' partial results.

r = f(A)         over the elements that this rank holds    (partial results)
R = r_0 + r_1 + ... + r_{P-1}, + or max or min             (on every rank, in the order of ranks)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pblas.backends.cpu.reductions import precedes

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.layouts.split import Split
    from pblas.plans.reduction import ReductionPlan

_FLOAT64 = np.dtype(np.float64)
_SMALLEST = 2.0**-900
"""Sums of squares below this are computed anew with scaled elements, because squares may have underflowed."""
_LEAST_EXPONENT, _LARGEST = -1000, 2.0**1023


def partial_results(plan: ReductionPlan, arrays: Any, rank: int, operands: tuple[Any, ...]) -> Array:
    """This rank's partial results: an array of one dimension, of `plan.components` times `plan.count(rank)` numbers.

    Args:
        plan: of the reduction (global).
        arrays: array operations of the backend (local).
        rank: this rank (local).
        operands: this rank's local array; for "dot" the second one, and whether the first is conjugated; for
            "product" the vector, and whether the matrix is conjugated (local).
    """
    dtype = np.dtype(plan.partial_dtype)
    if not plan.count(rank):
        return np.empty(0, dtype)
    x, order, axis = operands[0], plan.a.order, plan.axis
    if plan.operation in ("argmax", "argmin"):
        return _arg_extremes(plan, arrays, rank, x)
    if plan.operation == "squares":
        return np.concatenate(_scaled_squares(plan, arrays, x))
    if plan.operation in ("diagonal", "trace"):
        elements: Array = _diagonal(plan, arrays, rank, x).astype(dtype, copy=False)
        return elements if plan.operation == "diagonal" else elements.sum(keepdims=True)
    if plan.operation == "dot":
        result: Array = arrays.dot(x, operands[1], order, dtype, conj=operands[2])
        return result
    if plan.operation == "product":
        return _product(plan, arrays, rank, *operands)
    reduced: Array = arrays.reduce(plan.operation, x, axis, order, dtype)
    return reduced


def combined(plan: ReductionPlan, gathered: Array) -> Array:
    """The results from all ranks' partial results, which are one after the other in the order of ranks (local).

    Returns:
        An array of one dimension: `plan.nresults` numbers; of argmax and argmin the indices, as integers; of squares
        their roots.
    """
    if plan.operation in ("argmax", "argmin"):
        return _combined_indices(plan, gathered)
    if plan.operation == "squares":
        return _combined_roots(plan, gathered)
    results, seen = np.zeros(plan.nresults, gathered.dtype), np.zeros(plan.nresults, np.bool_)
    add = {"max": np.maximum, "abs_max": np.maximum, "min": np.minimum}.get(plan.operation, np.add)
    for places, (part,) in _parts(plan, gathered):
        if plan.operation == "diagonal":
            results[places] = part
        else:
            results[places] = np.where(seen[places], add(results[places], part), part)
            seen[places] = True
    return results


def _parts(plan: ReductionPlan, gathered: Array) -> Iterator[tuple[Any, list[Array]]]:
    """(places of the results, components of the partial results) of each rank that contributes, in order."""
    owners = _Places(plan)
    start = 0
    for rank in range(plan.nprocs):
        count = plan.count(rank)
        if count:
            stop = start + plan.components * count
            yield owners.of(rank), np.split(gathered[start:stop], plan.components)
            start = stop


class _Places:
    """Indices of the results to which each rank contributes.

    Args:
        plan: of the reduction (global).
    """

    def __init__(self, plan: ReductionPlan) -> None:
        self._plan = plan
        self._known: dict[int, Any] = {}

    def of(self, rank: int) -> Any:
        """Indices of a rank's results: a slice, or an array (local)."""
        plan = self._plan
        if plan.operation == "diagonal":
            return index_of(plan.diagonal_ranges(rank))
        if plan.axis is None:
            return slice(0, 1)
        p = plan.a.grid.coordinates(rank)[1 - plan.axis]
        if p not in self._known:
            self._known[p] = index_of(_splits(plan)[1 - plan.axis].ranges(p))
        return self._known[p]


def _splits(plan: ReductionPlan) -> tuple[Split, Split]:
    """The splits of rows and columns."""
    return plan.a.rows, plan.a.columns


def index_of(ranges: list[tuple[int, int]]) -> Any:
    """Ranges of indices as a slice if there is one, else as an array."""
    if len(ranges) == 1:
        return slice(*ranges[0])
    bounds = np.array(ranges, np.intp).reshape(-1, 2)
    lengths = bounds[:, 1] - bounds[:, 0]
    ends = np.cumsum(lengths)
    return np.arange(lengths.sum()) + np.repeat(bounds[:, 1] - ends, lengths)


def _diagonal(plan: ReductionPlan, arrays: Any, rank: int, x: Array) -> Array:
    """This rank's elements of the diagonal."""
    ranges = plan.diagonal_ranges(rank)
    if not ranges:
        return np.zeros(0, x.dtype)
    g = np.arange(plan.nresults if plan.operation == "diagonal" else min(plan.a.shape))[index_of(ranges)]
    elements: Array = arrays.take(x, *plan.a.local_index(g, g))
    return elements


def _arg_extremes(plan: ReductionPlan, arrays: Any, rank: int, x: Array) -> Array:
    """Values of the extremes, then their global indices: along the axis, or i n + j."""
    kind: Literal["max", "min"] = "max" if plan.operation == "argmax" else "min"
    values, places = arrays.arg_reduce(kind, x, plan.axis, plan.a.order)
    coordinates = plan.a.grid.coordinates(rank)
    if plan.axis is None:
        i, j = (
            split.global_from_local(int(place), p)
            for split, place, p in zip(_splits(plan), places, coordinates, strict=True)
        )
        indices = np.array([i * plan.a.n + j])
    else:
        indices = _splits(plan)[plan.axis].global_from_local(places, coordinates[plan.axis])
    return np.concatenate([values.astype(_FLOAT64), indices.astype(_FLOAT64)])


def _combined_indices(plan: ReductionPlan, gathered: Array) -> Array:
    """Indices of the extremes: the lowest index of equal values."""
    kind = plan.operation.removeprefix("arg")
    values, indices = np.zeros(plan.nresults), np.full(plan.nresults, np.inf)
    for places, (value, index) in _parts(plan, gathered):
        known, known_index = values[places], indices[places]
        equal = (value == known) | (np.isnan(value) & np.isnan(known))
        better = np.isinf(known_index) | precedes(kind, value, known) | (equal & (index < known_index))
        values[places], indices[places] = np.where(better, value, known), np.where(better, index, known_index)
    return indices.astype(np.intp)


def _scaled_squares(plan: ReductionPlan, arrays: Any, x: Array) -> tuple[Array, Array]:
    """(scale, sum of squares of x / scale), neither of which overflows or loses small elements.

    Source: LAPACK, dlassq, here for whole arrays: only results outside the safe range are computed anew. Squares of
    dtypes of 32 bits and less are always in the range of float64.
    """
    order, axis = plan.a.order, plan.axis
    squares = arrays.reduce("squares", x, axis, order, _FLOAT64)
    scale = np.ones_like(squares)
    if plan.dtype not in ("float64", "complex128"):
        return scale, squares
    unsafe = np.isposinf(squares) | (squares < _SMALLEST)
    if unsafe.any():
        largest = arrays.reduce("abs_max", x, axis, order, _FLOAT64)
        exponent = np.maximum(np.frexp(largest)[1] - 1, _LEAST_EXPONENT)
        finite = np.isfinite(largest) & (largest > 0)
        scale = np.where(unsafe & finite, np.ldexp(1.0, np.where(finite, exponent, 0)), 1.0)
        squares = np.where(unsafe, arrays.reduce("squares", x, axis, order, _FLOAT64, scale), squares)
        scale = np.where(largest == 0, 0.0, np.where(np.isposinf(largest), _LARGEST, scale))
    return scale, squares


def _combined_roots(plan: ReductionPlan, gathered: Array) -> Array:
    """Roots of the sums of scaled squares."""
    largest, sums = np.zeros(plan.nresults), np.zeros(plan.nresults)
    for places, (scale, _) in _parts(plan, gathered):
        largest[places] = np.maximum(largest[places], scale)
    divisor = np.where(largest == 0, 1.0, largest)
    for places, (scale, squares) in _parts(plan, gathered):
        sums[places] += squares * (scale / divisor[places]) ** 2
    roots: Array = largest * np.sqrt(sums)
    return roots


def _product(plan: ReductionPlan, arrays: Any, rank: int, x: Array, vector: Array, conj: bool) -> Array:
    """op(X) v, with the elements of v that belong to this rank's columns."""
    columns = index_of(plan.a.columns.ranges(plan.a.grid.coordinates(rank)[1]))
    product: Array = arrays.multiply_vector(x, vector[columns], np.dtype(plan.partial_dtype), conj=conj)
    return product
