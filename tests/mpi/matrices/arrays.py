"""Random matrices for the tests of DistMatrix as an array: any layout, views of all kinds, NaN around them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from pblas import Context, DistMatrix, Grid, MatrixDescriptor
from pblas.errors import MismatchError, PblasError
from tests.common.gauge import Array, dtype_of, entries
from tests.common.ranks import COMM, check_product, collected, culprits, raises_on_all_ranks, some_wrong

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
    rows, columns = (
        np.array([g for start, stop in ranges for g in range(start, stop)], int)
        for ranges in desc.global_ranges(ctx.rank)
    )
    part = array[np.ix_(rows, columns)]
    buffer[:, :fast] = part.T if desc.order == "F" else part
    local = on_device(ctx, buffer)[:, :fast]
    return ctx.from_local(local.T if desc.order == "F" else local, desc)


def on_device(ctx: Context, host: Array) -> Array:
    """The array itself, or on a context of GPUs a copy on this rank's GPU (local)."""
    if ctx.runtime.backend.name == "mpi":
        return host
    import cupy

    copy: Array = cupy.empty(host.shape, host.dtype, "C" if host.flags.c_contiguous else "F")
    if host.size:
        copy.data.copy_from_host(host.ctypes.data, host.nbytes)  # type: ignore[attr-defined]  # CuPy's pointer
    return copy


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


T = TypeVar("T")
Mistake = tuple[type[Exception], str, Callable[[T], object], Callable[[T], object]]
"""An error, a part of its text, a call that raises it, and the call without the mistake; both take a T."""


def check_mistake(ctx: Context, mistake: Mistake[T], arguments: T) -> None:
    """**Collective.** Assert that all ranks raise the error if any of them or all make the mistake, and go on."""
    kind, text, wrong, right = mistake
    everyone = [frozenset(range(ctx.nprocs))] if kind is not MismatchError else []
    for ranks in [*some_wrong(), *everyone]:
        raises_on_all_ranks(kind, text, partial(wrong if ctx.rank in ranks else right, arguments))
        check_product(ctx)


def check_failed_saves(
    ctx: Context, path: Path, places: Iterable[tuple[Any, str, type[PblasError]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """**Collective.** A save that fails at one of some places leaves the old file of this path, and no other."""
    array = np.arange(56.0).reshape(8, 7)
    old, new = ctx.from_global(array, root=None), ctx.zeros((8, 7))
    old.save(path)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(5, "the cable was pulled")

    for module, place, kind in places:
        for ranks in culprits():
            with monkeypatch.context() as patch:
                if COMM.rank in ranks:
                    patch.setattr(module, place, fail)
                if place == "write_part" or 0 in ranks:
                    raises_on_all_ranks(kind, "the cable", partial(new.save, path, overwrite=True))
            COMM.Barrier()
            assert [file.name for file in path.parent.iterdir()] == [path.name]
            assert np.array_equal(collected(ctx.load(path)), array)
            check_product(ctx)
    new.save(path, overwrite=True)
    assert not np.any(collected(ctx.load(path)))
