"""Laws of local rank-k and rank-2k updates: any storage order, triangle, dtype; the other triangle is not touched."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from pblas.backends.cpu import blas as backend
from pblas.backends.cpu.blas import syr2k, syrk
from tests.common.gauge import entries, gauge
from tests.unit.backends.test_trsm import DTYPES, UPLO, in_larger


def limit(monkeypatch: pytest.MonkeyPatch, largest: int) -> None:
    """Limit the integers of BLAS in updates, but not in the products that they call, which `test_gemm` limits."""
    product_of = backend.gemm

    def unlimited(*arguments: Any, **options: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(backend, "_LARGEST", 2**31 - 1)
            product_of(*arguments, **options)

    monkeypatch.setattr(backend, "_LARGEST", largest)
    monkeypatch.setattr(backend, "gemm", unlimited)


@pytest.mark.parametrize("largest", [2**31 - 1, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "k"), [(1, 1), (7, 1), (1, 9), (8, 5), (33, 40)])
def test_one_triangle(dtype: str, m: int, k: int, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, largest)
    x, old = entries((m, k), np.dtype(dtype), 1), entries((m, m), np.dtype(dtype), 2)
    for uplo, conj, hermitian, order_x, order_z in product(UPLO, (False, True), (False, True), "FC", "FC"):
        inside = np.tri(m, dtype=bool) if uplo == "L" else np.tri(m, dtype=bool).T
        left = np.conj(x) if conj else x
        right = np.conj(left).T if hermitian else left.T
        for beta in (0.0, -0.5):
            before = np.where(inside & (beta != 0), old, 0).astype(dtype)
            if hermitian:
                np.fill_diagonal(before, before.diagonal().real)
            z = in_larger(np.where(inside & (beta != 0), before, np.nan).astype(dtype), order_z, np.nan)
            syrk(2.0, in_larger(x, order_x, np.nan), beta, z, uplo=uplo, conj=conj, hermitian=hermitian)
            assert np.isnan(z[~inside]).all(), "the other triangle"
            wide: Any = np.clongdouble if before.dtype.kind == "c" else np.longdouble
            exact = 2 * left.astype(wide) @ right.astype(wide) + beta * before
            result = np.where(inside, z, exact).astype(dtype)
            units = gauge(result, left, right, before, alpha=2.0, beta=beta)
            assert units <= 16, (uplo, conj, hermitian, order_x, order_z, beta)
            z[...] = np.nan
            assert z.base is not None
            assert np.isnan(z.base).all(), "elements outside Z"


@pytest.mark.parametrize("largest", [2**31 - 1, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "k"), [(1, 1), (7, 1), (1, 9), (8, 5), (33, 40)])
def test_one_triangle_of_two_products(
    dtype: str, m: int, k: int, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, largest)
    x, y, old = (entries(shape, np.dtype(dtype), seed) for seed, shape in enumerate(((m, k), (m, k), (m, m)), 1))
    is_complex = np.dtype(dtype).kind == "c"
    alpha = 2 - 1j if is_complex else 2.0
    for uplo, conj_x, conj_y, hermitian in product(UPLO, (False, True), (False, True), (False, True)):
        inside = np.tri(m, dtype=bool) if uplo == "L" else np.tri(m, dtype=bool).T
        left, right = (np.conj(v) if c else v for v, c in ((x, conj_x), (y, conj_y)))
        flip = np.conj if hermitian else np.asarray
        # [alpha X, alpha' Y] [Y, X]^T, with conjugates in the Hermitian form
        first = np.hstack((alpha * left, flip(alpha) * right)).astype(dtype)
        second = flip(np.hstack((right, left))).T
        for order_x, order_y, order_z, beta in product("FC", "FC", "FC", (0.0, -0.5)):
            before = np.where(inside & (beta != 0), old, 0).astype(dtype)
            if hermitian:
                np.fill_diagonal(before, before.diagonal().real)
            z = in_larger(np.where(inside & (beta != 0), before, np.nan).astype(dtype), order_z, np.nan)
            given = in_larger(x, order_x, np.nan), in_larger(y, order_y, np.nan)
            syr2k(alpha, *given, beta, z, uplo=uplo, conj=(conj_x, conj_y), hermitian=hermitian)
            assert np.isnan(z[~inside]).all(), "the other triangle"
            wide: Any = np.clongdouble if is_complex else np.longdouble
            exact = first.astype(wide) @ second.astype(wide) + beta * before
            result = np.where(inside, z, exact).astype(dtype)
            assert gauge(result, first, second, before, beta=beta) <= 16, (uplo, conj_x, conj_y, hermitian, beta)
            z[...] = np.nan
            assert z.base is not None
            assert np.isnan(z.base).all(), "elements outside Z"
