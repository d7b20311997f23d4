"""Executor of reductions: this rank's partial results, and the combination of all ranks' partial results.

r = f(A)         over the elements that this rank holds    (partial results)
R = r_0 + r_1 + ... + r_{P-1}, + or max or min             (on every rank, in the order of ranks)
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from pblas.backends.cpu.reductions import precedes
from pblas.backends.dtypes import Array, Dtype, Index, dtype_of_name
from pblas.backends.engine_limits import bins_of
from pblas.matrices.scatter_gather import index_of

if TYPE_CHECKING:
    from pblas.arrays.reduction_plan import ReductionPlan
    from pblas.backends.device import Device
    from pblas.layouts.split import Split

_FLOAT64 = np.dtype(np.float64)
_SMALLEST = 2.0**-900
"""Sums of squares below this are computed anew with scaled elements, because squares may have underflowed."""
_LEAST_EXPONENT, _LARGEST = -1000, 2.0**1023
_KEPT = 1 << 16
"""Most indices that are kept for later calls: to compute more takes less time than to move as many elements."""


REDUCED = "sum", "abs_sum", "max", "min", "abs_max"
"""Operations whose partial results are those of one call of the device."""


class PreparedReduction:
    """A reduction on one rank, for any number of calls: its plan, and where each rank's partial results belong."""

    def __init__(self, plan: ReductionPlan, rank: int) -> None:
        self.plan: ReductionPlan = plan
        self.rank: int = rank
        self.dtype: Dtype = np.dtype(plan.partial_dtype)  # of the partial results (global)
        self.nresults: int = plan.nresults  # number of results (global)
        counts = [plan.count(peer) for peer in range(plan.nprocs)]
        self.counts: tuple[int, ...] = tuple(plan.components * count for count in counts)
        """Numbers in the partial results of each rank (global)."""
        self._shares: list[_Share] | None = None
        self._columns: Index | None = None
        self._diagonal: tuple[Array, Array] | None = None
        self._keeps = sum(counts) <= _KEPT

    @cached_property
    def is_sequence(self) -> bool:
        """Whether the partial results, one after the other, are the results (global)."""
        places = [share.places for share in self.shares if isinstance(share.places, slice)]
        if self.plan.components > 1 or len(places) < len(self.shares):
            return False
        return [0, *(place.stop for place in places)] == [*(place.start for place in places), self.nresults]

    @property
    def shares(self) -> list[_Share]:
        """The partial results of each rank that has any, in the order of ranks (global)."""
        if self._shares is not None:
            return self._shares
        plan, shares = self.plan, list[_Share]()
        known: dict[int, Index] = {}
        start = 0
        for rank, numbers in enumerate(self.counts):
            if not numbers:
                continue
            count, is_first = numbers // plan.components, True
            if plan.operation == "diagonal":
                places = index_of(plan.diagonal_ranges(rank))
            elif plan.axis is None:
                places, is_first = slice(0, 1), not shares
            else:
                p = plan.a.grid.coordinates(rank)[1 - plan.axis]
                is_first = p not in known
                if is_first:
                    known[p] = index_of(_splits(plan)[1 - plan.axis].ranges(p))
                places = known[p]
            shares.append(
                _Share(places, [(start + i * count, start + (i + 1) * count) for i in range(plan.components)], is_first)
            )
            start += numbers
        if self._keeps:
            self._shares = shares
        return shares

    @property
    def columns(self) -> Index:
        """Indices of this rank's columns: a slice, or an array (local)."""
        if self._columns is not None:
            return self._columns
        columns = index_of(self.plan.a.columns.ranges(self.plan.a.grid.coordinates(self.rank)[1]))
        if self._keeps:
            self._columns = columns
        return columns

    @property
    def diagonal(self) -> tuple[Array, Array] | None:
        """Local rows and columns of this rank's elements of the diagonal; None without any (local)."""
        if self._diagonal is not None:
            return self._diagonal
        plan, ranges = self.plan, self.plan.diagonal_ranges(self.rank)
        if not ranges:
            return None
        g = np.arange(plan.nresults if plan.operation == "diagonal" else min(plan.a.shape))[index_of(ranges)]
        places = plan.a.local_index(g, g)
        if self._keeps and g.size <= _KEPT:
            self._diagonal = places
            for numbers in places:
                numbers.flags.writeable = False  # kept for later calls
        return places

    def close(self) -> None:
        """Nothing: it has no memory but indices (local)."""


class _Share(NamedTuple):
    """The partial results of one rank."""

    places: Index  # indices of the results to which they contribute: a slice, or an array (global)
    spans: list[tuple[int, int]]  # start and stop of each component in the partial results of all ranks (global)
    is_first: bool  # whether no lower rank contributes to these results (global)


def partial_results(
    prepared: PreparedReduction, arrays: Device, operands: tuple[Any, ...], *, waits: bool = True
) -> Array:
    """This rank's partial results: an array of one dimension, of `prepared.counts[rank]` numbers.

    It is in host memory, unless one of `REDUCED` does not wait: then in the device's, by work of its stream.
    """
    plan, rank, dtype = prepared.plan, prepared.rank, prepared.dtype
    if not prepared.counts[rank]:
        return np.empty(0, dtype)
    x, order, axis = operands[0], plan.a.order, plan.axis
    if plan.exact:
        return _bins(prepared, arrays, *operands)
    if plan.operation in ("argmax", "argmin"):
        return _arg_extremes(plan, arrays, rank, x)
    if plan.operation == "squares":
        return np.concatenate(_scaled_squares(plan, arrays, x))
    if plan.operation in ("diagonal", "trace"):
        elements: Array = _diagonal(prepared, arrays, x).astype(dtype, copy=False)
        return elements if plan.operation == "diagonal" else elements.sum(keepdims=True)
    if plan.operation == "dot":
        result: Array = arrays.dot(x, operands[1], order, dtype, conj=operands[2])
        return result
    if plan.operation == "product":  # op(X) v, with the elements of v that belong to this rank's columns
        vector, conj = operands[1:]
        product: Array = arrays.multiply_vector(x, vector[prepared.columns], dtype, conj=conj)
        return product
    reduced: Array = arrays.reduce(plan.operation, x, axis, order, dtype, waits=waits)
    return reduced


def combined(prepared: PreparedReduction, gathered: Array) -> Array:
    """The results from all ranks' partial results, which are one after the other in the order of ranks (local)."""
    operation = prepared.plan.operation
    if prepared.plan.exact:
        return _combined_bins(prepared, gathered)
    if operation in ("argmax", "argmin"):
        return _combined_indices(prepared, gathered)
    if operation == "squares":
        return _combined_roots(prepared, gathered)
    if prepared.is_sequence:
        return gathered
    results = np.zeros(prepared.nresults, gathered.dtype)
    add = {"max": np.maximum, "abs_max": np.maximum, "min": np.minimum}.get(operation, np.add)
    for places, (part,), is_first in _parts(prepared, gathered):
        results[places] = part if is_first else add(results[places], part)
    return results


def _parts(prepared: PreparedReduction, gathered: Array) -> Iterator[tuple[Index, list[Array], bool]]:
    """(places of the results, components of the partial results, whether they are the first for these places)."""
    for places, spans, is_first in prepared.shares:
        yield places, [gathered[start:stop] for start, stop in spans], is_first


def _splits(plan: ReductionPlan) -> tuple[Split, Split]:
    """The splits of rows and columns."""
    return plan.a.rows, plan.a.columns


def _diagonal(prepared: PreparedReduction, arrays: Device, x: Array) -> Array:
    """This rank's elements of the diagonal."""
    places = prepared.diagonal
    elements: Array = np.zeros(0, x.dtype) if places is None else arrays.take(x, *places)
    return elements


def _arg_extremes(plan: ReductionPlan, arrays: Device, rank: int, x: Array) -> Array:
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


def _combined_indices(prepared: PreparedReduction, gathered: Array) -> Array:
    """Indices of the extremes: the lowest index of equal values."""
    if len(prepared.shares) == 1:  # a rank has all elements
        start, stop = prepared.shares[0].spans[1]
        return gathered[start:stop].astype(np.intp)
    kind = prepared.plan.operation.removeprefix("arg")
    values, indices = np.zeros(prepared.nresults), np.full(prepared.nresults, np.inf)
    for places, (value, index), _ in _parts(prepared, gathered):
        known, known_index = values[places], indices[places]
        equal = (value == known) | (np.isnan(value) & np.isnan(known))
        better = np.isinf(known_index) | precedes(kind, value, known) | (equal & (index < known_index))
        values[places], indices[places] = np.where(better, value, known), np.where(better, index, known_index)
    return indices.astype(np.intp)


def _bins(prepared: PreparedReduction, arrays: Device, x: Array, y: Array | None = None, conj: bool = False) -> Array:
    """This rank's exact sums, bin after bin."""
    plan, kind = prepared.plan, prepared.plan.operation
    if kind == "trace":
        from pblas.backends.cpu.exact_sums import binned

        elements = _diagonal(prepared, arrays, x)[None]
        return binned("sum", elements, None).reshape(-1) if elements.size else np.zeros(prepared.counts[prepared.rank])
    if not x.size:
        return np.zeros(prepared.counts[prepared.rank])
    return arrays.exact_sums(kind, x, plan.axis, y, conj=conj).reshape(-1)


def _combined_bins(prepared: PreparedReduction, gathered: Array) -> Array:
    """The sums of all ranks, or the roots of sums of squares, each rounded once."""
    from pblas.backends.cpu.exact_sums import value

    plan, dtype = prepared.plan, dtype_of_name(prepared.plan.dtype)
    bins = np.zeros((plan.components, prepared.nresults))
    for places, parts, _ in _parts(prepared, gathered):
        bins[:, places] += parts
    itemsize = dtype.itemsize // (1 + (dtype.kind == "c"))
    count = plan.components // bins_of(itemsize, squares=plan.operation in ("squares", "dot"))
    kind = plan.operation
    sums = [[value(kind, itemsize, column) for column in part.T] for part in np.split(bins, count)]
    return np.array([complex(*z) for z in zip(*sums, strict=True)] if count > 1 else sums[0])


def _scaled_squares(plan: ReductionPlan, arrays: Device, x: Array) -> tuple[Array, Array]:
    """(scale, sum of squares of x / scale), neither of which overflows or loses small elements.

    Source: LAPACK, dlassq, here for whole arrays: only results outside the safe range are computed anew. Squares of
    dtypes of 32 bits and less are always in the range of float64.
    """
    order, axis = plan.a.order, plan.axis
    squares = arrays.reduce("squares", x, axis, order, _FLOAT64)
    scale = np.ones(squares.shape)
    if plan.dtype not in ("float64", "complex128"):
        return scale, squares
    unsafe = (squares == np.inf) | (squares < _SMALLEST)
    if unsafe.any():
        largest = arrays.reduce("abs_max", x, axis, order, _FLOAT64)
        exponent = np.maximum(np.frexp(largest)[1] - 1, _LEAST_EXPONENT)
        finite = np.isfinite(largest) & (largest > 0)
        scale = np.where(unsafe & finite, np.ldexp(1.0, np.where(finite, exponent, 0)), 1.0)
        squares = np.where(unsafe, arrays.reduce("squares", x, axis, order, _FLOAT64, scale), squares)
        scale = np.where(largest == 0, 0.0, np.where(np.isposinf(largest), _LARGEST, scale))
    return scale, squares


def _combined_roots(prepared: PreparedReduction, gathered: Array) -> Array:
    """Roots of the sums of scaled squares."""
    if len(prepared.shares) == 1:  # a rank has all elements
        ((_, (scale, squares), _),) = _parts(prepared, gathered)
        return np.asarray(scale * np.sqrt(squares))
    largest, sums = np.zeros(prepared.nresults), np.zeros(prepared.nresults)
    for places, (scale, _), _ in _parts(prepared, gathered):
        largest[places] = np.maximum(largest[places], scale)
    divisor = np.where(largest == 0, 1.0, largest)
    for places, (scale, squares), _ in _parts(prepared, gathered):
        sums[places] += squares * (scale / divisor[places]) ** 2
    roots: Array = largest * np.sqrt(sums)
    return roots
