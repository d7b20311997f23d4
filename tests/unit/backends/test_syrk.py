"""Laws of the local rank-k update: any storage order, triangle and dtype; the other triangle is not touched."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from pblas.backends.cpu import syrk as backend
from pblas.backends.cpu.syrk import syrk
from tests.common.gauge import entries, gauge
from tests.unit.backends.test_trsm import DTYPES, UPLO, in_larger


@pytest.mark.parametrize("largest", [2**31 - 1, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "k"), [(1, 1), (7, 1), (1, 9), (8, 5), (33, 40)])
def test_one_triangle(dtype: str, m: int, k: int, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_LARGEST", largest)
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
