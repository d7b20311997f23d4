"""Sums that are exact until they are rounded once."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pblas.backends.cpu.exact_sums import binned, value
from tests.common.gauge import Array, dtype_of

SPREADS = 0, 20, 500


def summed(kind: Any, x: Array, axis: Any = None, other: Array | None = None) -> list[float]:
    numbers = binned(kind, x, axis, other)
    return [value(kind, x.dtype.itemsize, column) for column in numbers.T]


def random(shape: tuple[int, int], dtype: str, spread: int) -> Array:
    generator = np.random.default_rng(spread)
    spread = min(spread, 60) if dtype != "float64" else spread
    x = np.ldexp(generator.standard_normal(shape), generator.integers(-spread, spread + 1, shape))
    return np.asarray(x.astype(dtype_of(dtype)))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("spread", SPREADS, ids=str)
def test_sums_are_those_of_fsum(dtype: str, spread: int) -> None:
    x = random((9, 300), dtype, spread)
    wide = x.astype(np.float64)
    assert summed("sum", x) == [math.fsum(wide.flat)]
    assert summed("sum", x, 0) == [math.fsum(column) for column in wide.T]
    assert summed("sum", np.asfortranarray(x), 1) == [math.fsum(row) for row in wide]
    assert summed("abs_sum", x, 1) == [math.fsum(abs(row)) for row in wide]


@pytest.mark.parametrize("spread", SPREADS, ids=str)
def test_products_and_squares_of_32_bits_are_exact(spread: int) -> None:
    x, y = random((7, 60), "float32", spread), random((7, 60), "float32", spread + 1)
    exact = sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x.flat, y.flat, strict=True))
    assert summed("dot", x, None, y) == [float(exact)]
    squares = sum(Fraction(float(a)) ** 2 for a in x.flat)
    assert summed("squares", x)[0] == pytest.approx(math.sqrt(squares), rel=2.0**-51)


@pytest.mark.parametrize("scale", [-1060, -1000, -452, -448, 0, 498, 502, 1000], ids=str)
def test_norms_of_huge_and_tiny_elements(scale: int) -> None:
    x = np.ldexp(np.random.default_rng(1).uniform(1, 2, (3, 50)), scale)
    exact = sum(Fraction(float(a)) ** 2 for a in x.flat)
    unit = Fraction(2) ** (2 * scale)
    assert summed("squares", x)[0] == pytest.approx(math.ldexp(math.sqrt(exact / unit), scale), rel=2.0**-51)


def test_any_order_and_any_parts_give_the_same_bits() -> None:
    x = random((40, 1000), "float64", 30)
    whole = summed("sum", x)
    shuffled = np.random.default_rng(0).permutation(x.reshape(-1)).reshape(1000, 40)
    assert summed("sum", shuffled) == whole
    parts = sum(binned("sum", part, None) for part in np.array_split(x, 7, axis=1))
    assert [value("sum", 8, np.asarray(parts)[:, 0])] == whole


def test_infinities_nans_and_overflow() -> None:
    one = np.ones((2, 3))
    for special, expected in (
        ((np.inf,), np.inf),
        ((-np.inf,), -np.inf),
        ((np.inf, -np.inf), np.nan),
        ((np.nan,), np.nan),
    ):
        x = one.copy()
        x.reshape(-1)[: len(special)] = special
        np.testing.assert_equal(summed("sum", x), [expected])
    largest = np.finfo("float64").max
    assert summed("sum", np.full((2, 2), largest)) == [np.inf]
    assert summed("sum", np.array([[largest, largest, -largest]])) == [largest]
    assert summed("squares", np.full((2, 2), largest)) == [np.inf]
    assert summed("sum", np.zeros((2, 2))) == [0.0]


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_sizes_of_tiny_complex_numbers(dtype: str) -> None:
    tiny = np.finfo(dtype).smallest_subnormal
    x = np.array([[tiny * (3 + 4j), 1, -1j]], dtype)
    numbers = binned("abs_sum", x, 1)
    assert value("abs_sum", np.dtype(dtype).itemsize // 2, numbers[:, 0]) == 2
    alone = binned("abs_sum", np.array([[tiny * (-1 + 7j)]], dtype), None)
    size = type(tiny)(math.hypot(-float(tiny), 7 * float(tiny)))  # rounded to the precision of the parts
    assert value("abs_sum", np.dtype(dtype).itemsize // 2, alone[:, 0]) == float(size) == 7 * float(tiny)
