"""Local work of level 2: this rank's part of a matrix times a vector, and rank-k updates of a triangle.

y_r = sum over terms of op(A_r) x            (partial results of rank r)
A_r := A_r + X[rows] Y[:, columns]           (rank-k update)
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pblas.backends.device import Device, Staircase
from pblas.layouts.triangle import Part, flipped, rectangles
from pblas.matrices.scatter_gather import global_indices, index_of

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype, Index
    from pblas.backends.host_ranks import HostRanks
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.vectors.matrix_vector_plan import MatrixVectorPlan, Term

_KEPT = 1 << 18  # elements of the rectangles whose masks are kept for later calls: about half a megabyte


def absolute_values(x: Array, kind: str) -> Array:
    """The sizes of elements: their absolute values ("abs"), or |Re| + |Im| ("abs1").

    >>> absolute_values(np.array([3 - 4j]), "abs"), absolute_values(np.array([3 - 4j]), "abs1")
    (array([5.]), array([7.]))
    """
    if kind == "abs1" and x.dtype.kind == "c":
        result: Array = np.abs(x.real) + np.abs(x.imag)
        return result
    return np.abs(x)


class LocalPart:
    """This rank's elements of a part of a matrix, as rectangles of its local array. It serves any number of calls."""

    def __init__(self, desc: MatrixDescriptor, part: Part, rank: int, width: int | None = None) -> None:
        self._desc, self._part, self._rank = desc, part, rank
        rows, columns = desc.global_ranges(rank)
        self.rows: Index = index_of(rows)  # global indices of the rows of the local array: a slice, or an array (local)
        self.columns: Index = index_of(columns)  # global indices of its columns (local)
        self.rectangles: list[tuple[slice, slice, bool]] = [
            (slice(*r.rows), slice(*r.columns), r.meets_diagonal) for r in rectangles(desc, rank, part, width)
        ]
        """Rows and columns of each rectangle, and whether only some of its elements belong to the part (local)."""
        self._masks: dict[tuple[int, bool], tuple[Array, Array]] = {}
        self._masked = 0
        self._staircases: dict[tuple[bool, bool], Staircase] = {}

    def mask(self, number: int, *, strict: bool = False) -> tuple[Array, Array]:
        """Whether elements of a rectangle belong to the triangle, and whether they are on the diagonal."""
        known = self._masks.get((number, strict))
        if known is not None:
            return known
        i, j, _ = self.rectangles[number]
        rows, columns = self._indices
        below = rows[i][:, None] - columns[j][None, :]
        distance = below if self._part == "L" else -below
        masks = (distance > 0 if strict else distance >= 0), distance == 0
        if self._masked < _KEPT:
            self._masked += below.size
            self._masks[number, strict] = masks
        return masks

    def staircase(self, *, strict: bool = False, hermitian: bool = False) -> Staircase:
        """The elements of the part in each column, for devices that multiply all of them at once (local)."""
        known = self._staircases.get((strict, hermitian))
        if known is None:
            rows, columns = self._indices
            first, stop = np.zeros(len(columns), np.int64), np.full(len(columns), len(rows))
            if self._part == "L":
                first = np.searchsorted(rows, columns, "right" if strict else "left")
            elif self._part == "U":
                stop = np.searchsorted(rows, columns, "left" if strict else "right")
            places = np.searchsorted(rows, columns)
            on_diagonal = hermitian & (np.append(rows, -1)[places] == columns)
            known = Staircase(first, stop, np.where(on_diagonal, places, -1))
            self._staircases[strict, hermitian] = known
        return known

    @cached_property
    def _indices(self) -> tuple[Array, Array]:
        """`rows` and `columns` as arrays (local)."""
        return global_indices(self._desc, self._rank)

    def close(self) -> None:
        """Nothing: it has no memory but indices (local)."""


class LocalProduct(LocalPart):
    """A product on one rank: the elements that it multiplies."""

    def __init__(self, plan: MatrixVectorPlan, rank: int) -> None:
        self.transposes: bool = plan.a.order == "C"
        """Whether the transposed local array is multiplied: panels of its columns are contiguous in memory (global)."""
        self.plan: MatrixVectorPlan = plan.T if self.transposes else plan
        self.dtype: Dtype = np.dtype(plan.partial_dtype)  # of the partial results (global)
        self.length: int = plan.length  # elements of the result (global)
        self.contributes: bool = plan.contributes(rank)  # whether this rank multiplies any elements (local)
        self.is_whole: bool = plan.is_whole
        """Whether its partial results are those of all elements, or of its rows of op(A) (global)."""
        super().__init__(self.plan.a, self.plan.part, rank, plan.width)


def multiply(local: LocalProduct, backend: HostRanks, x: Array, vector: Array) -> Array:
    """This rank's partial results: of all `local.length` elements, or of its rows of op(A); see `is_whole` (local)."""
    plan, dtype = local.plan, local.dtype
    if not local.contributes:
        return np.zeros(local.length if local.is_whole else 0, dtype)
    if local.transposes:
        x = x.T
    vector = np.ascontiguousarray(vector)
    indices = local.rows, local.columns
    used = {term.transposed for term in plan.terms}
    sums = {transposed: np.zeros(x.shape[transposed], dtype) for transposed in used}
    vectors = {transposed: vector[indices[not transposed]] for transposed in used}
    at_once = "multiply_part" not in backend.arrays.traits.lacks and (plan.part != "all" or bool(plan.absolute))
    (_add_products if at_once else _add_rectangles)(local, backend.arrays, x, vectors, sums)
    if not local.is_whole:
        return sums[plan.terms[0].transposed]
    result = np.zeros(local.length, dtype)
    for transposed in used:
        result[indices[transposed]] += sums[transposed]
    return result


def add_parts(local: LocalProduct, arrays: Device, x: Array, vector: Array, total: Array) -> None:
    """Total += this rank's partial results of all elements; all arrays are in the device's memory (local)."""
    if local.transposes:
        x = x.T
    terms = sorted(local.plan.terms, key=lambda term: term.transposed)
    parts = [local.staircase(strict=term.strict, hermitian=local.plan.hermitian) for term in terms]
    modes, rows, columns = ["conj" * term.conj for term in terms], total[local.rows], total[local.columns]
    if len(terms) > 1:
        v, w = vector[local.columns], vector[local.rows]
        products = zip(arrays.multiply_both(x, parts, v, w, local.dtype, modes), (rows, columns), strict=True)
    else:
        v, is_turned = vector[local.rows if terms[0].transposed else local.columns], terms[0].transposed
        product = arrays.multiply_part(x, parts[0], v, local.dtype, modes[0], transposed=is_turned)
        products = zip((product,), (columns if is_turned else rows,), strict=True)
    for product, target in products:
        arrays.add_scaled(1, product[:, None], 1, target[:, None])


_Vectors = dict[bool, "Array"]  # by whether a term multiplies the transposed matrix


def _add_products(local: LocalProduct, arrays: Device, x: Array, vectors: _Vectors, sums: _Vectors) -> None:
    """Add the products of all terms, each by one call of the device (local)."""
    plan = local.plan
    for term in plan.terms:
        part = local.staircase(strict=term.strict, hermitian=plan.hermitian)
        v, mode = vectors[term.transposed], plan.absolute or "conj" * term.conj
        sums[term.transposed] += arrays.multiply_part(x, part, v, local.dtype, mode, transposed=term.transposed)


def _add_rectangles(local: LocalProduct, arrays: Device, x: Array, vectors: _Vectors, sums: _Vectors) -> None:
    """Add the products of all terms, rectangle by rectangle: its elements are read once (local)."""
    plan, dtype = local.plan, local.dtype
    for number, (i, j, meets_diagonal) in enumerate(local.rectangles):
        for term in plan.terms:
            source, target = (i, j) if term.transposed else (j, i)
            v, block = vectors[term.transposed][source], x[i, j]
            if not (meets_diagonal or plan.absolute):
                block = block.T if term.transposed else block
                product = arrays.multiply_vector(block, v, dtype, conj=term.conj)
            else:
                if meets_diagonal:
                    block = _masked(block, *local.mask(number, strict=term.strict), hermitian=plan.hermitian)
                block = _prepared(plan, term, block, dtype)
                product = (block.T if term.transposed else block) @ v.astype(dtype, copy=False)
            sums[term.transposed][target] += product


def _masked(block: Array, mask: Array, diagonal: Array, *, hermitian: bool) -> Array:
    """A copy of a block with zeros outside the triangle, and a real diagonal if the matrix is Hermitian."""
    block = np.where(mask, block, block.dtype.type(0))
    if hermitian and block.dtype.kind == "c":
        block.imag[diagonal] = 0
    return block


def _prepared(plan: MatrixVectorPlan, term: Term, block: Array, dtype: Dtype) -> Array:
    """The elements of a block that are multiplied: converted, conjugated, or their sizes."""
    if plan.absolute:
        return absolute_values(block, plan.absolute).astype(dtype, copy=False)
    block = block.astype(dtype, copy=False)
    return np.conj(block) if term.conj else block


class LocalUpdate(LocalPart):
    """A rank-k update on one rank: the elements that it writes."""

    def __init__(self, desc: MatrixDescriptor, part: Part, rank: int) -> None:
        self.transposes: bool = desc.order == "C"
        """Whether the transposed local array is updated: panels of its columns are contiguous in memory (global)."""
        if self.transposes:
            desc, part = desc.T, flipped(part)
        super().__init__(desc, part, rank)


def update(local: LocalUpdate, backend: HostRanks, z: Array, x: Array, y: Array, *, hermitian: bool = False) -> None:
    """Z += X Y in a part of the matrix; a Hermitian one gets a real diagonal (local)."""
    if local.transposes:
        z, x, y = z.T, y.T, x.T
    x_loc, y_loc = x[local.rows], y[:, local.columns]
    arrays = backend.arrays
    if "update_part" not in arrays.traits.lacks:
        arrays.update_part(z, local.staircase(hermitian=hermitian), x_loc, y_loc)
        return
    for number, (i, j, meets_diagonal) in enumerate(local.rectangles):
        if not meets_diagonal:
            arrays.add_product(x_loc[i], y_loc[:, j], z[i, j])
            continue
        mask, diagonal = local.mask(number)
        target = z[i, j]
        target[mask] += (x_loc[i] @ y_loc[:, j])[mask]
        if hermitian and target.dtype.kind == "c":
            target.imag[diagonal] = 0
