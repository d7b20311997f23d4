"""Laws of level 1: NumPy's results on the gathered vectors, on all ranks; other elements keep their bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import Context, DistMatrix, blas
from pblas.errors import ArgumentError, DescriptorError, DTypeError
from tests.common.gauge import NAMES, Array, dtype_of, entries, eps_of
from tests.common.ranks import Contexts, collected, each_wrong, few, raises_on_all_ranks, same_on_all_ranks
from tests.mpi.matrices.arrays import placed, some_descriptor, wide

pytestmark = [pytest.mark.mpi, few]
SETTINGS = ("shared", "message")
LENGTHS = (0, 1, 2, 7, 16, 33)


def some_vector(ctx: Context, rng: Random, dtype: str, n: int) -> tuple[DistMatrix, DistMatrix, Array]:
    """**Collective.** A matrix of NaN, a view of it that is a vector, and the vector's elements."""
    elements, is_row = entries((n, 1), dtype_of(dtype), rng.randrange(99))[:, 0], rng.random() < 0.5
    whole = np.full((n + 2, 3), np.nan, elements.dtype)
    whole[1 : n + 1, 1] = elements
    desc = some_descriptor(rng, *(whole.shape[::-1] if is_row else whole.shape), ctx.nprocs)
    a = placed(ctx, whole.T if is_row else whole, desc, rng.choice([0, 2]))
    return a, a[1:2, 1 : n + 1] if is_row else a[1 : n + 1, 1:2], elements


def elements_of(a: DistMatrix, vector: DistMatrix) -> Array:
    """**Collective.** The elements of a vector; those around it are still NaN."""
    assert np.isnan(collected(a)).sum() == a.size - vector.size
    return collected(vector).ravel()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("dtype", NAMES)
def test_sums_and_extremes_are_those_of_numpy(contexts: Contexts, setting: str, dtype: str) -> None:
    for seed in range(10):
        rng = Random(f"{dtype} {seed}")
        n = rng.choice(LENGTHS)
        (_, x, ex), (_, y, ey) = (some_vector(contexts[setting], rng, dtype, n) for _ in range(2))
        is_complex = ex.dtype.kind == "c"
        eps = eps_of(ex.dtype) + np.finfo(np.float32).eps * (ex.itemsize == 2)
        bound = (n + 2) * eps * (np.abs(wide(ex)) * np.abs(wide(ey))).sum()
        for name, left in (("dotc", ex.conj()), ("dotu", ex)) if is_complex else (("dot", ex), ("dotc", ex)):
            result = same_on_all_ranks(getattr(blas, name)(x, y))
            assert result.dtype == ex.dtype
            assert abs(wide(result) - (wide(left) * wide(ey)).sum()) <= bound
        sizes = np.abs(wide(ex.real)) + np.abs(wide(ex.imag)) if is_complex else np.abs(wide(ex))
        assert abs(same_on_all_ranks(blas.asum(x)) - sizes.sum()) <= (n + 2) * eps * sizes.sum()
        root = np.sqrt((np.abs(wide(ex)) ** 2).sum())
        assert abs(same_on_all_ranks(blas.nrm2(x)) - root) <= (n + 2) * eps * root
        if n:
            value, index = same_on_all_ranks(blas.amax(x))
            assert (value, index) == (ex[int(sizes.argmax())], int(sizes.argmax()))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("dtype", NAMES)
def test_updates_are_those_of_numpy_and_nothing_else_changes(contexts: Contexts, setting: str, dtype: str) -> None:
    for seed in range(8):
        rng = Random(f"{dtype} {seed}")
        n = rng.choice(LENGTHS)
        (a, x, ex), (b, y, ey) = (some_vector(contexts[setting], rng, dtype, n) for _ in range(2))
        alpha = rng.choice([2.0, -1.0, 1.0, 0.5]) + (1j if ex.dtype.kind == "c" else 0)
        eps = eps_of(ex.dtype)
        assert blas.axpy(alpha, x, y) is y
        expected = wide(ey) + alpha * wide(ex)
        error = np.abs(wide(elements_of(b, y)) - expected)
        assert np.all(error <= 4 * eps * (np.abs(wide(ey)) + abs(alpha) * np.abs(wide(ex))))
        assert blas.scal(alpha, x) is x
        scaled = elements_of(a, x)
        assert np.all(np.abs(wide(scaled) - alpha * wide(ex)) <= 4 * eps * np.abs(alpha * wide(ex)))
        before = elements_of(b, y)
        blas.swap(x, y)
        assert np.array_equal(elements_of(a, x), before)
        assert np.array_equal(elements_of(b, y), scaled)
        blas.copy(x, y)
        assert np.array_equal(elements_of(b, y), before)
        x[...] = np.nan
        blas.axpy(0.0, x, y)
        blas.scal(0.0, x)
        assert np.array_equal(elements_of(b, y), before)
        assert not elements_of(a, x).any()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_nrm2_neither_overflows_nor_underflows(ctx: Context, dtype: str) -> None:
    info = np.finfo(dtype)
    for size in (info.max / 4, info.tiny, info.smallest_subnormal * 8):
        x = ctx.full((9, 1), float(size), dtype)
        assert blas.nrm2(x) == pytest.approx(
            3 * float(size), rel=4 * float(info.eps), abs=float(info.smallest_subnormal)
        )
        assert blas.nrm2(x.T) == blas.nrm2(x)
    x[5, 0] = np.inf
    assert blas.nrm2(x) == np.inf
    x[2, 0] = np.nan
    assert np.isnan(blas.nrm2(x))
    value, index = blas.amax(x)
    assert np.isnan(value)
    assert index == 2


@each_wrong
def test_one_wrong_rank_raises_on_all(ctx: Context, wrong: frozenset[int]) -> None:
    n = max(6, 2 * ctx.nprocs)  # each rank has elements
    a, b = ctx.ones((n, 3)), ctx.ones((n, 1), "float32")
    x, y, z = a[:, 0], a[:, 1], a[:4, 2]
    is_wrong = ctx.rank in wrong

    def one(right: Any, bad: Any) -> Any:
        return bad if is_wrong else right

    calls: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (ArgumentError, "x must be an m x 1", lambda: blas.dot(one(x, a), y)),
        (ArgumentError, "y must be an m x 1", lambda: blas.axpy(1.0, x, one(y, np.ones(n)))),
        (DescriptorError, "4 elements", lambda: blas.copy(x, one(y, z))),
        (DTypeError, "float32", lambda: blas.dotu(x, one(y, b))),
        (ArgumentError, "alpha", lambda: blas.scal(one(1.0, "2"), x)),
        (ArgumentError, "alpha", lambda: blas.scal(one(1.0, 1j), x)),
        (ArgumentError, "no elements", lambda: blas.amax(one(x, x[:0]))),
        (ArgumentError, "axpy: y overlaps x", lambda: blas.axpy(1.0, x, one(y, a[:, 0]))),
        (pblas.MismatchError, "", lambda: blas.scal(one(1.0, 2.0), x)),
    ]
    for kind, text, call in calls:
        if kind is not pblas.MismatchError or len(wrong) < ctx.nprocs:
            raises_on_all_ranks(kind, text, call)
        assert blas.asum(x) == n
    if len(wrong) < ctx.nprocs:
        raises_on_all_ranks(pblas.MismatchError, "", partial(blas.nrm2, one(x, z)))
    complex_ = ctx.ones((3, 1), "complex128")
    raises_on_all_ranks(DTypeError, "dotc", lambda: blas.dot(complex_, complex_))
