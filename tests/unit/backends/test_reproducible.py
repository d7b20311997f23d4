"""Local products whose bits depend on the elements alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pblas.backends.cpu import blas, reproducible
from pblas.backends.cpu.reproducible import Kernel, PieceGemm, fingerprint, finish, kernel, uniform_elements
from pblas.backends.pieces import PieceSizes, TreeSum
from tests.common.gauge import Array, dtype_of, entries

WIDTH, PIECES, K = 5, 4, 17
DTYPES = "float64", "float32", "complex64", "complex128", "float16", "bfloat16"


def total_of(dtype: str) -> np.dtype[Any]:
    return np.dtype("float32") if dtype in ("float16", "bfloat16") else np.dtype(dtype)


def formed(x: Array, y: Array, *, transposed: bool = False, conj: tuple[bool, bool] = (False, False)) -> Array:
    total = total_of(x.dtype.name)
    z = np.full((len(x), y.shape[1]), np.nan, total)
    shape = len(x), y.shape[1]
    sizes, depths = PieceSizes(WIDTH, shape, PIECES, total, transposed), (WIDTH, K - WIDTH * (PIECES - 1))
    products = PieceGemm(sizes, depths, lambda nbytes: np.empty(nbytes, np.uint8))
    products.gemm(1, x, y, 0, z, conj=conj)
    return z


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_element_depends_on_its_row_and_its_column_alone(dtype: str) -> None:
    """Not on its place, the sizes, the storage orders, or on a plan for the transposed product."""
    x, y = entries((70, K), dtype_of(dtype), 1), entries((K, 131), dtype_of(dtype), 2)
    whole = formed(x, y)
    for rows, columns in (
        (slice(0, 1), slice(0, 131)),
        (slice(3, 70), slice(130, 131)),
        (slice(33, 50), slice(64, 99)),
    ):
        part = formed(np.asfortranarray(x[rows]), y[:, columns].copy())
        assert np.array_equal(part, whole[rows, columns])
        turned = formed(y[:, columns].T, x[rows].T, transposed=True)
        assert np.array_equal(turned.T, part)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_conjugated_operands_have_the_bits_of_conjugated_copies(dtype: str) -> None:
    x, y = entries((9, K), dtype_of(dtype), 1), entries((K, 66), dtype_of(dtype), 2)
    assert np.array_equal(formed(x, y, conj=(True, False)), formed(x.conj(), y))
    assert np.array_equal(formed(x, np.asfortranarray(y), conj=(False, True)), formed(x, y.conj()))


def test_products_of_pieces_are_added_along_the_tree() -> None:
    x, y = entries((1, K), np.dtype("float64"), 1), entries((K, 1), np.dtype("float64"), 2)
    terms = []
    for start in range(0, K, WIDTH):
        term = np.zeros((128, 128), order="F")
        inner = slice(start, start + WIDTH)
        blas.gemm(1, np.repeat(x[:, inner], 128, axis=0), np.repeat(y[inner], 128, axis=1), 0, term)
        terms.append(term[0, 0])
    assert formed(x, y)[0, 0] == (terms[0] + terms[1]) + (terms[2] + terms[3])


def test_a_tree_is_the_same_in_parts() -> None:
    terms = np.random.default_rng(0).random(16)

    def total(values: Array) -> float:
        tree = TreeSum([np.zeros(1) for _ in range(TreeSum.depth(len(values)))])
        for value in values:
            tree.add(lambda z, *, adds, value=value: np.copyto(z, z + value if adds else value))
        return float(tree.total[0])

    for parts in (2, 4, 8):
        assert total(np.array([total(part) for part in np.split(terms, parts)])) == total(terms)


def test_a_blas_with_other_sums_at_edges_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def last_row_otherwise(alpha: complex, x: Array, y: Array, beta: complex, z: Array) -> None:
        blas.gemm(alpha, x, y, beta, z)
        z[-1] = np.nextafter(z[-1], 0)

    chosen = Kernel(np.dtype("float64"), 64)
    assert uniform_elements(chosen, 32, last_row_otherwise) is None
    assert uniform_elements(kernel(np.dtype("float64"), 32), 32, blas.gemm) is not None


def test_products_are_formed_in_64_bits_where_32_cannot_be_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproducible, "is_uniform", lambda kernel, _: kernel.dtype.itemsize == 8)
    kernel.cache_clear()
    x, y = entries((3, K), np.dtype("float32"), 1), entries((K, 70), np.dtype("float32"), 2)
    exact = x.astype(np.float64) @ y.astype(np.float64)
    try:
        assert kernel(np.dtype("float32"), 4).dtype == np.float64
        assert abs(formed(x, y) - exact).max() <= 2 * K * np.finfo(np.float32).eps * abs(exact).max()
    finally:
        kernel.cache_clear()


def test_products_are_added_in_place_with_the_same_bits() -> None:
    x, y = entries((130, K), np.dtype("float64"), 1), entries((K, 64), np.dtype("float64"), 2)
    z = np.asfortranarray(entries((130, 64), np.dtype("float64"), 3))
    product = formed(x, y)
    sizes = PieceSizes(K, z.shape, 1, z.dtype, transposed=False)
    products = PieceGemm(sizes, (K,), lambda nbytes: np.empty(nbytes, np.uint8))
    single = np.empty_like(z)
    products.gemm(1, x, y, 0, single)
    for alpha in (1, -1):
        total = z.copy("F")
        products.gemm(alpha, x, y, 1, total)
        assert np.array_equal(total, z + alpha * single)
        rows = z.copy("C")  # of another storage order, which the BLAS does not add to in place
        products.gemm(alpha, x, y, 1, rows)
        assert np.array_equal(rows, total)
    assert abs(single - product).max() <= 2 * K * np.finfo(np.float64).eps


def test_factors_do_not_depend_on_the_place_of_an_element() -> None:
    x, z = entries((7, 9), np.dtype("complex64"), 1), entries((7, 9), np.dtype("complex64"), 2)
    whole = z.copy()
    finish(0.3 - 0.7j, x, 1.1 + 0.2j, whole)
    for i in range(7):
        for j in range(9):
            one = z[i : i + 1, j : j + 1].copy()
            finish(0.3 - 0.7j, x[i : i + 1, j : j + 1], 1.1 + 0.2j, one)
            assert one[0, 0] == whole[i, j]


def test_a_fingerprint_is_that_of_one_processor() -> None:
    names = [fingerprint(np.dtype(name)) for name in ("float64", "float32", "complex64")]
    assert len(set(names)) == 3
    assert fingerprint(np.dtype("float16")) == names[1]
