"""Laws of the local product Z := alpha X Y + beta Z: any storage order, in place, nothing else touched."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from pblas.backends.cpu import blas as backend
from pblas.backends.cpu.blas import add_scaled, gemm, scale
from pblas.backends.dtypes import DTYPES, accumulator_dtype
from tests.common.gauge import NAMES, THRESHOLD, Array, dtype_of, entries, gauge

POISON = -99
# Order "F" or "C", and elements of padding after each column or row.
LAYOUTS = (("F", 0), ("F", 3), ("C", 0), ("C", 2))
SHAPES = ((7, 8, 9), (1, 8, 9), (7, 1, 9), (7, 8, 1), (1, 1, 1), (1, 8, 1), (7, 1, 1), (9, 2, 3))
EMPTY = ((0, 8, 9), (7, 0, 9), (0, 0, 0), (0, 8, 0))


def stored(x: Array, order: str, padding: int) -> tuple[Array, Array]:
    """(poisoned memory, a view in it that equals x) in a storage order, with a gap after each column or row."""
    if order == "C":
        memory, view = stored(x.T, "F", padding)
        return memory, view.T
    memory = np.full((x.shape[0] + padding, x.shape[1]), POISON, x.dtype, order="F")
    view = memory[: x.shape[0]]
    view[...] = x
    return memory, view


CONJUGATED = (0.5 - 2j, 1.5 + 0.5j)
"""Alpha and beta of products with conjugated operands."""
MARKS = ((False, True), (True, False), (True, True))


def scalars(dtype: np.dtype[Any]) -> tuple[tuple[complex, complex], ...]:
    pairs = [(1.0, 0.0), (-1.0, 1.0), (0.75, -0.5), (0.0, 0.25)]
    return (*pairs, CONJUGATED) if dtype.kind == "c" else tuple(pairs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_product_in_every_order(name: str, m: int, n: int, k: int) -> None:
    dtype = dtype_of(name)
    x, y = entries((m, k), dtype, 1), entries((k, n), dtype, 2)
    z = entries((m, n), accumulator_dtype(dtype), 3)
    for layout_x, layout_y, layout_z in itertools.product(LAYOUTS, repeat=3):
        (memory_x, x_), (memory_y, y_) = stored(x, *layout_x), stored(y, *layout_y)
        before = memory_x.copy(), memory_y.copy()
        marks = MARKS if dtype.kind == "c" else ()
        for (alpha, beta), conj in [(pair, (False, False)) for pair in scalars(dtype)] + [
            (CONJUGATED, mark) for mark in marks
        ]:
            memory_z, z_ = stored(z, *layout_z)
            poisoned = (memory_z == POISON).sum()
            gemm(alpha, x_, y_, beta, z_, conj=conj)
            op_x, op_y = (w.conj() if mark else w for w, mark in zip((x, y), conj, strict=True))
            assert gauge(z_, op_x, op_y, z, alpha=alpha, beta=beta) <= THRESHOLD
            assert (memory_z == POISON).sum() == poisoned == memory_z.size - z.size
        assert np.array_equal(memory_x, before[0])
        assert np.array_equal(memory_y, before[1])


@pytest.mark.parametrize(("name", "largest"), [("float32", 2), ("complex128", 4), ("float32", 10)])
def test_sizes_beyond_blas_integers_are_multiplied_in_parts(
    name: str, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype, passed, ints = dtype_of(name), list[tuple[int, ...]](), backend._INTS
    x, y, z = entries((7, 9), dtype, 1), entries((9, 8), dtype, 2), entries((7, 8), dtype, 3)

    def counted(*sizes: int) -> Any:
        passed.append(sizes)
        return ints(*sizes)

    monkeypatch.setattr(backend, "_LARGEST", largest)
    monkeypatch.setattr(backend, "_INTS", counted)
    for layout_x, layout_y, layout_z in itertools.product(LAYOUTS, repeat=3):
        (memory_z, z_), (_, x_), (_, y_) = stored(z, *layout_z), stored(x, *layout_x), stored(y, *layout_y)
        for conj in (False, True):
            z_[...] = z
            gemm(2.0, x_, y_, -0.5, z_, conj=(conj, False))
            assert gauge(z_, x.conj() if conj else x, y, z, alpha=2.0, beta=-0.5) <= THRESHOLD
            assert (memory_z == POISON).sum() == memory_z.size - z.size
    assert max(map(max, passed)) <= largest


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
def test_conjugation_of_real_matrices_changes_nothing(name: str) -> None:
    dtype = dtype_of(name)
    x, y = entries((7, 9), dtype, 1), entries((9, 8), dtype, 2)
    plain, marked = (np.empty((7, 8), accumulator_dtype(dtype)) for _ in range(2))
    gemm(2.0, x, y, 0.0, plain)
    gemm(2.0, x, y, 0.0, marked, conj=(True, True))
    assert np.array_equal(plain, marked)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("m", "n", "k"), [*SHAPES, *EMPTY, (7, 8, 0)])
def test_beta_zero_never_reads_z(name: str, m: int, n: int, k: int) -> None:
    dtype = dtype_of(name)
    x, y = entries((m, k), dtype, 1), entries((k, n), dtype, 2)
    for order, padding in LAYOUTS:
        for alpha in (0.0, 0.75):
            _, z = stored(np.full((m, n), np.nan, accumulator_dtype(dtype)), order, padding)
            gemm(alpha, x, y, 0.0, z)
            assert gauge(z, x, y, alpha=alpha) <= THRESHOLD


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("alpha", "k"), [(0.0, 9), (0.0, 0), (0.75, 0)])
def test_alpha_or_k_zero_never_reads_x_and_y(name: str, alpha: float, k: int) -> None:
    dtype = dtype_of(name)
    x, y = np.full((7, k), np.nan, dtype), np.full((k, 8), np.nan, dtype)
    z = entries((7, 8), accumulator_dtype(dtype), 3)
    for (order, padding), beta in itertools.product(LAYOUTS, (0.0, 1.0, -0.5)):
        memory, z_ = stored(z, order, padding)
        gemm(alpha, x, y, beta, z_)
        assert np.array_equal(z_, z.dtype.type(beta) * z)
        assert (memory == POISON).sum() == memory.size - z.size


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("m", "n", "k"), EMPTY)
def test_empty_results_are_left_alone(name: str, m: int, n: int, k: int) -> None:
    dtype = dtype_of(name)
    x, y = np.full((m, k), np.nan, dtype), np.full((k, n), np.nan, dtype)
    for order, padding in LAYOUTS:
        memory, z = stored(np.empty((m, n), accumulator_dtype(dtype)), order, padding)
        gemm(2.0, x, y, 0.5, z)
        assert (memory == POISON).all()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("k", [511, 512, 513, 1300])
def test_16_bit_products_are_added_in_32_bits(name: str, k: int) -> None:
    dtype = dtype_of(name)
    for order_x, order_y in itertools.product("FC", repeat=2):
        x, y = stored(entries((3, k), dtype, 1), order_x, 2)[1], stored(entries((k, 2), dtype, 2), order_y, 2)[1]
        z = entries((3, 2), np.dtype(np.float32), 3)
        result = z.copy()
        gemm(0.75, x, y, -0.5, result)
        # In units of float32's eps: products of 16-bit numbers are exact there, k additions are not.
        assert gauge(result, x, y, z, alpha=0.75, beta=-0.5) <= THRESHOLD
        ones = np.zeros((1, 1), np.float32)
        gemm(1.0, np.ones((1, k), dtype), np.ones((k, 1), dtype), 0.0, ones)
        assert ones[0, 0] == k  # beyond 256 bfloat16 cannot count


@pytest.mark.parametrize("name", NAMES)
def test_scaled_sum_follows_the_rules_of_nan(name: str) -> None:
    dtype = dtype_of(name)
    x, z = entries((7, 8), dtype, 1), entries((7, 8), dtype, 2)
    nan = np.full((7, 8), np.nan, dtype)
    identity = np.eye(7, dtype=np.float32).astype(dtype)
    for alpha, beta in itertools.product((0.0, 1.0, 0.75), repeat=2):
        result = (z if beta else nan).copy()
        add_scaled(alpha, x if alpha else nan, beta, result)
        assert gauge(result, identity, x, z, alpha=alpha, beta=beta) <= THRESHOLD
    for beta in (0.0, 1.0, -0.5):
        result = z.copy() if beta else nan.copy()
        scale(beta, result)
        assert gauge(result, identity, x, z, alpha=0.0, beta=beta) <= THRESHOLD


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize(("factor", "element"), [(1e5, 1e-3), (1e-8, 6e4), (0.1, 7.0)])
def test_factors_are_not_rounded_to_16_bits(name: str, factor: float, element: float) -> None:
    """Many factors overflow or underflow in 16 bits."""
    x = np.full((2, 3), element, dtype_of(name))
    expected = (x.astype(np.float32) * np.float32(factor)).astype(x.dtype)
    scaled, copied = x.copy(), np.full_like(x, np.nan)
    scale(factor, scaled)
    add_scaled(factor, x, 0.0, copied)
    for result in (scaled, copied):
        assert np.array_equal(result, expected)


def test_every_dtype_is_listed_once() -> None:
    assert [dtype_of(name) for name in NAMES] == list(DTYPES)
    assert {accumulator_dtype(dtype) for dtype in DTYPES} == set(DTYPES[:4])
