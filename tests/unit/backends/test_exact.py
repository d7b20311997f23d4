"""Exact products on CPUs: sums of integers that are rounded once."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from pblas.backends.cpu import exact
from pblas.backends.cpu.exact import ExactGemm
from pblas.backends.pieces import PieceSizes
from tests.common.exact import expected, nearest
from tests.common.gauge import Array

DTYPES = "float64", "float32"
DEEPEST = 16383  # of the pieces that plans make


def formed(x: Array, y: Array, *, transposed: bool = False) -> Array:
    shape, k = (len(x), y.shape[1]), x.shape[1]
    z = np.full(shape, np.nan, x.dtype, order="C" if transposed else "F")
    sizes = PieceSizes(k, shape, 1, x.dtype, transposed)
    ExactGemm(sizes, (), lambda nbytes: np.empty(nbytes, np.uint8)).gemm(1, x, y, 0, z)
    return z


def random(shape: tuple[int, int], dtype: str, spread: int, seed: int, scale: int = 0) -> Array:
    generator = np.random.default_rng(seed)
    exponents = scale + generator.integers(-spread, spread + 1, shape)
    return np.asarray(np.ldexp(generator.standard_normal(shape), exponents).astype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spread", [0, 3, 60], ids=str)
@pytest.mark.parametrize("k", [1, 40, 1500], ids=str)
def test_elements_are_sums_of_integers_rounded_once(dtype: str, spread: int, k: int) -> None:
    x, y = random((3, k), dtype, spread, 1), random((k, 4), dtype, spread, 2)
    assert np.array_equal(formed(x, y), expected(x, y))


@pytest.mark.parametrize("dtype", DTYPES)
def test_alike_elements_give_the_rounded_product_itself(dtype: str) -> None:
    """Rows whose elements are within a factor of 2^8 lose nothing to the integers."""
    generator = np.random.default_rng(3)
    x, y = (np.ldexp(generator.uniform(0.5, 1, (3, 200)), generator.integers(0, 8, (3, 200))) for _ in range(2))
    x, y = (x * generator.choice([-1, 1], x.shape)).astype(dtype), y.T.astype(dtype)
    z = formed(x, y)
    for i in range(3):
        for j in range(3):
            total = sum(
                (Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x[i], y[:, j], strict=True)), Fraction(0)
            )
            assert z[i, j] == nearest(total, x.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sign", [1, -1], ids=str)
def test_the_largest_integers_fit(dtype: str, sign: int) -> None:
    """The bounds that keep sums below 2^53, at the deepest piece."""
    largest = np.nextafter(np.ones(1, dtype), np.zeros(1, dtype))[0]
    for left, right in ((largest, largest), (1 - 2.0**-21, 1 - 2.0**-21), (0.5 + 2.0**-20, largest)):
        x, y = np.full((1, DEEPEST), left, dtype), np.full((DEEPEST, 1), sign * right, dtype)
        assert np.array_equal(formed(x, y), expected(x, y))


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_order_of_additions_gives_the_same_bits(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = random((5, 1100), dtype, 9, 1), random((1100, 6), dtype, 9, 2)
    z = formed(x, y)

    def backwards(alpha: float, left: Array, right: Array, beta: float, out: Array) -> None:
        out[...] = np.cumsum(left[:, ::-1, None] * right[None, ::-1], axis=1)[:, -1]

    monkeypatch.setattr(exact, "gemm", backwards)
    assert np.array_equal(formed(x, y), z)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_element_depends_on_its_row_and_its_column_alone(dtype: str) -> None:
    x, y = random((1027, 9), dtype, 30, 1), random((9, 1030), dtype, 30, 2)
    z = formed(x, y)
    for rows, columns in ((slice(1020, 1027), slice(0, 1)), (slice(1), slice(1000, 1030))):
        part = formed(np.asfortranarray(x[rows]), y[:, columns].copy())
        assert np.array_equal(part, z[rows, columns])
        assert np.array_equal(formed(y[:, columns].T, x[rows].T, transposed=True).T, part)
    assert np.array_equal(formed(x, y, transposed=True), z)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scales", [(0.9, -0.9), (-0.9, 0.9), (-0.99, -0.01), (0.6, 0.6), (-0.55, -0.5)], ids=str)
def test_huge_and_tiny_elements(dtype: str, scales: tuple[float, float]) -> None:
    """Near the ends of the exponents, with results among the subnormals, and beyond them."""
    most = np.finfo(dtype).maxexp
    x, y = (random((2, 30), dtype, 3, seed, int(scale * most)) for seed, scale in enumerate(scales))
    z = formed(x, y.T)
    if sum(scales) > 1:
        assert np.isinf(z).all()
    else:
        assert np.array_equal(z, expected(x, y.T))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_zeros_infinities_and_nans(dtype: str) -> None:
    x, y = random((6, 40), dtype, 2, 1), random((40, 5), dtype, 2, 2)
    plain = formed(x, y)
    x[0], y[:, 0] = 0, -0.0
    x[1, 3], x[2, 4] = np.inf, np.nan
    x[3, 5], x[3, 6] = np.inf, -np.inf
    y[7, 1] = -np.inf
    x[4] = np.finfo(dtype).smallest_subnormal
    z = formed(x, y)
    left, right = (np.where(np.isfinite(v), np.sign(v), v) for v in (x, y))
    with np.errstate(invalid="ignore"):
        terms = left[:, :, None] * right[None]
        plus, minus, nan = (any_of.any(axis=1) for any_of in (terms == np.inf, terms == -np.inf, np.isnan(terms)))
    assert np.array_equal(np.isnan(z), nan | (plus & minus))
    assert np.array_equal(z == np.inf, plus & ~minus & ~nan)
    assert np.array_equal(z == -np.inf, minus & ~plus & ~nan)
    assert np.array_equal(z[5, 2:], plain[5, 2:])
    assert z[0, 2:].tolist() == [0, 0, 0]
    assert np.array_equal(z[4, 2:], expected(x[4:5], y[:, 2:])[0])
