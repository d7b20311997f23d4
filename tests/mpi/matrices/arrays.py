"""Random matrices for the tests of DistMatrix as an array: any layout, views of all kinds, NaN around them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from pblas import Context, DistMatrix, Grid, MatrixDescriptor
from tests.common.gauge import Array, dtype_of, entries

SIZES = (0, 1, 2, 7, 8, 9)


def some_descriptor(rng: random.Random, m: int, n: int, nprocs: int) -> MatrixDescriptor:
    """Any layout: idle ranks, blocks of any size, first blocks of another, sources, copies, both orders."""
    nprow = rng.randint(1, nprocs)
    grid = Grid(nprow, rng.randint(1, nprocs // nprow), rng.choice("CR"))  # type: ignore[arg-type]
    return MatrixDescriptor(
        *(m, n, rng.choice([1, 2, 3, 5, 40]), rng.choice([1, 2, 3, 5, 40]), grid),
        *(rng.randint(-1, grid.nprow - 1), rng.randint(-1, grid.npcol - 1), rng.choice("FC")),  # type: ignore[arg-type]
        imb=rng.choice([None, 1, 4]),
        inb=rng.choice([None, 1, 4]),
    )


def placed(ctx: Context, array: Array, desc: MatrixDescriptor, gap: int = 0) -> DistMatrix:
    """**Collective.** An array under a descriptor, with `gap` elements of NaN between local columns (or rows)."""
    m_loc, n_loc = desc.local_shape(ctx.rank)
    fast, slow = (m_loc, n_loc) if desc.order == "F" else (n_loc, m_loc)
    buffer = np.full((slow, fast + gap), np.nan, array.dtype)
    local = buffer[:, :fast]
    local = local.T if desc.order == "F" else local
    rows, columns = (
        np.array([g for start, stop in ranges for g in range(start, stop)], int)
        for ranges in desc.global_ranges(ctx.rank)
    )
    local[...] = array[np.ix_(rows, columns)]
    return ctx.from_local(local, desc)


def some_matrix(ctx: Context, seed: int, dtype: str, shape: tuple[int, int] | None = None) -> tuple[DistMatrix, Array]:
    """**Collective.** A matrix and its elements: a view in a larger matrix of NaN, perhaps transposed or conjugated."""
    rng = random.Random(seed)
    m, n = shape or (rng.choice(SIZES), rng.choice(SIZES))
    elements = entries((m, n), dtype_of(dtype), seed)
    view = rng.choice(["", "T", "H", "conj"])
    stored = {"": elements, "T": elements.T, "H": elements.conj().T, "conj": elements.conj()}[view]
    before, after = (rng.choice([0, 0, 1, 3]), rng.choice([0, 0, 2])), (rng.choice([0, 1]), rng.choice([0, 2]))
    whole = np.full(tuple(np.add(stored.shape, np.add(before, after))), np.nan, stored.dtype)
    i, j = before
    whole[i : i + stored.shape[0], j : j + stored.shape[1]] = stored
    desc = some_descriptor(rng, *whole.shape, ctx.nprocs)  # type: ignore[call-arg]  # two sizes
    a = placed(ctx, whole, desc, rng.choice([0, 2]))[i : i + stored.shape[0], j : j + stored.shape[1]]
    return {"": a, "T": a.T, "H": a.H, "conj": a.H.T}[view], elements


def wide(x: Any) -> Array:
    """Elements in the widest precision, for references."""
    array = np.asarray(x)
    return array.astype(np.clongdouble if array.dtype.kind == "c" else np.longdouble)


def collected(a: DistMatrix) -> Array:
    """**Collective.** The elements of a matrix, on every rank."""
    whole = a.to_global(None)
    assert whole is not None
    return whole
