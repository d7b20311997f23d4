"""Laws of the local triangular solve: any storage order, triangle and dtype; no other element is read or written."""

from __future__ import annotations

from itertools import product
from typing import Any, Literal

import numpy as np
import pytest

from pblas.backends.cpu import blas as backend
from pblas.backends.cpu.blas import trsm
from tests.common.gauge import Array, entries, gauge

DTYPES = ("float32", "float64", "complex64", "complex128")
UPLO: tuple[Literal["L", "U"], ...] = ("L", "U")


def in_larger(x: Array, order: str, poison: complex) -> Array:
    """A copy of x inside a larger array of this order, which is filled with poison."""
    m, n = x.shape
    outer = np.full((m + 3, n + 2), poison, x.dtype, order=order)  # type: ignore[call-overload]  # F or C
    inner: Array = outer[1 : m + 1, 2:]
    inner[...] = x
    return inner


def triangle(m: int, dtype: Any, uplo: str, *, unit: bool) -> tuple[Array, Array]:
    """A well conditioned triangle, and the same with NaN in all elements that must not be read."""
    full = entries((m, m), np.dtype(dtype), 1) / max(1, m)
    np.fill_diagonal(full, 1 if unit else full.diagonal() + 2)
    t = np.tril(full) if uplo == "L" else np.triu(full)
    poisoned = np.where(np.tri(m, dtype=bool) if uplo == "L" else np.tri(m, dtype=bool).T, t, np.nan).astype(dtype)
    if unit:
        np.fill_diagonal(poisoned, np.nan)
    return t, poisoned


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(1, 1), (7, 1), (1, 9), (8, 5), (33, 40), (150, 40)])  # the last by halves
def test_solves(dtype: str, m: int, n: int) -> None:
    b = entries((m, n), np.dtype(dtype), 2)
    for uplo, unit, conj, order_t, order_z in product(UPLO, (False, True), (False, True), "FC", "FC"):
        t, poisoned = triangle(m, dtype, uplo, unit=unit)
        z = in_larger(b, order_z, np.nan)
        trsm(in_larger(poisoned, order_t, np.nan), z, uplo=uplo, unit=unit, conj=conj)
        assert gauge(b, np.conj(t) if conj else t, z, alpha=1.0) <= 16, (uplo, unit, conj, order_t, order_z)
        z[...] = np.nan
        assert z.base is not None
        assert np.isnan(z.base).all(), "elements outside Z"


def test_sizes_beyond_the_integers_of_blas(monkeypatch: pytest.MonkeyPatch) -> None:
    t, poisoned = triangle(6, "float64", "U", unit=False)
    b = entries((6, 11), np.dtype("float64"), 2)
    for order in "FC":
        z = in_larger(b, order, np.nan)
        with monkeypatch.context() as patch:
            patch.setattr(backend, "_LARGEST", 6)
            patch.setattr(backend, "_COLUMNS", 4)
            trsm(poisoned, z, uplo="U")
        assert gauge(b, t, z) <= 16


def test_empty_arrays() -> None:
    for shape in ((0, 3), (3, 0)):
        trsm(np.full((shape[0], shape[0]), np.nan), np.zeros(shape), uplo="L")
