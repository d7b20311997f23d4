"""Local work of level 2: this rank's part of a matrix times a vector, and rank-k updates of a triangle.

y_r = sum over terms of op(A_r) x            (partial results of rank r)
A_r := A_r + X[rows] Y[:, columns]           (rank-k update)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.execute.reduction import index_of
from pblas.layouts.triangle import Part, flipped, rectangles

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.plans.matrix_vector import MatrixVectorPlan, Term


def absolute_values(x: Array, kind: str) -> Array:
    """The sizes of elements: their absolute values ("abs"), or |Re| + |Im| ("abs1").

    >>> absolute_values(np.array([3 - 4j]), "abs"), absolute_values(np.array([3 - 4j]), "abs1")
    (array([5.]), array([7.]))
    """
    if kind == "abs1" and x.dtype.kind == "c":
        result: Array = np.abs(x.real) + np.abs(x.imag)
        return result
    return np.abs(x)


def global_indices(desc: MatrixDescriptor, rank: int) -> tuple[Array, Array]:
    """Global rows and columns of a rank's local array (local)."""
    rows, columns = desc.global_ranges(rank)
    return np.arange(desc.m)[index_of(rows)], np.arange(desc.n)[index_of(columns)]


def multiply(plan: MatrixVectorPlan, backend: HostRanks, x: Array, vector: Array) -> Array:
    """This rank's partial result: an array of `plan.length` elements (local).

    Args:
        plan: of the product (global).
        backend: of the context (local).
        x: this rank's local array (local).
        vector: on all ranks, in the precision of the partial results or narrower (global).
    """
    if plan.a.order == "C":  # panels of columns are contiguous in memory
        plan, x = plan.T, x.T
    dtype, rank = np.dtype(plan.partial_dtype), backend.rank
    result = np.zeros(plan.length, dtype)
    if not plan.contributes(rank):
        return result
    indices = global_indices(plan.a, rank)
    sums = tuple(np.zeros(len(g), dtype) for g in indices)
    used = {term.transposed for term in plan.terms}
    vectors = tuple(
        vector[g] if transposed in used else vector for g, transposed in zip(indices, (True, False), strict=True)
    )
    for rectangle in plan.rectangles(rank):
        places = slice(*rectangle.rows), slice(*rectangle.columns)
        part = x[places]
        on_host = backend.reading(part) if rectangle.meets_diagonal or plan.absolute else None
        for term in plan.terms:
            source, target = places if term.transposed else places[::-1]
            v = vectors[not term.transposed][source]
            if on_host is None:
                block = part.T if term.transposed else part
                product = backend.arrays.multiply_vector(block, v, dtype, conj=term.conj)
            else:
                block = on_host
                if rectangle.meets_diagonal:
                    block = _masked(plan, term, on_host, *(g[p] for g, p in zip(indices, places, strict=True)))
                block = _prepared(plan, term, block, dtype)
                product = (block.T if term.transposed else block) @ v.astype(dtype, copy=False)
            sums[term.transposed][target] += product
    for transposed in used:
        result[indices[transposed]] += sums[transposed]
    return result


def _masked(plan: MatrixVectorPlan, term: Term, block: Array, rows: Array, columns: Array) -> Array:
    """A copy of a block with zeros outside the triangle, and a real diagonal if the matrix is Hermitian."""
    block = np.where(_mask(plan.part, rows, columns, strict=term.strict), block, block.dtype.type(0))
    if plan.hermitian and block.dtype.kind == "c":
        block.imag[rows[:, None] == columns[None, :]] = 0
    return block


def _prepared(plan: MatrixVectorPlan, term: Term, block: Array, dtype: np.dtype[Any]) -> Array:
    """The elements of a block that are multiplied: converted, conjugated, or their sizes."""
    if plan.absolute:
        return absolute_values(block, plan.absolute).astype(dtype, copy=False)
    block = block.astype(dtype, copy=False)
    return np.conj(block) if term.conj else block


def _mask(part: Part, rows: Array, columns: Array, *, strict: bool = False) -> Array:
    """Whether each element belongs to a triangle."""
    below = rows[:, None] - columns[None, :]
    distance = below if part == "L" else -below
    mask: Array = distance > 0 if strict else distance >= 0
    return mask


def update(
    desc: MatrixDescriptor, part: Part, backend: HostRanks, z: Array, x: Array, y: Array, *, hermitian: bool = False
) -> None:
    """Z += X Y in a part of the matrix; a Hermitian one gets a real diagonal (local).

    Args:
        desc: distribution of the matrix (global).
        part: all of it, or the triangle that is written (global).
        backend: of the context (local).
        z: this rank's local array (local).
        x: m x k, all of it, of Z's dtype and with small k (global).
        y: k x n, all of it (global).
        hermitian: imaginary parts of the diagonal become 0 (global).
    """
    if desc.order == "C":
        desc, part, z, x, y = desc.T, flipped(part), z.T, y.T, x.T
    rows, columns = global_indices(desc, backend.rank)
    x_loc, y_loc = x[rows], y[:, columns]
    for rectangle in rectangles(desc, backend.rank, part):
        i, j = slice(*rectangle.rows), slice(*rectangle.columns)
        if not rectangle.meets_diagonal:
            backend.arrays.add_product(x_loc[i], y_loc[:, j], z[i, j])
            continue
        mask = _mask(part, rows[i], columns[j])
        updated = backend.reading(z[i, j]).copy()
        updated[mask] += (x_loc[i] @ y_loc[:, j])[mask]
        if hermitian and updated.dtype.kind == "c":
            updated.imag[rows[i][:, None] == columns[j][None, :]] = 0
        backend.copy(updated, z[i, j])
