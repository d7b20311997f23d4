"""LAPACK's ratios on the matrices of LAPACK's own tests: bad conditions, zero columns, norms near overflow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pblas
from pblas import linalg
from tests.common.factors import (  # noqa: F401
    MOST,
    NB,
    cholesky_ratio,
    general,
    lu_ratio,
    narrow_panels,
    norm1,
    ratio,
    solve_ratio,
)
from tests.common.gauge import Array, dtype_of, eps_of
from tests.common.ranks import collected, few, raises_on_all_ranks, same_on_all_ranks

pytestmark = [pytest.mark.mpi, few, pytest.mark.usefixtures("narrow_panels")]
SETTINGS = ("shared",)
N = 3 * NB + 2
LU_KINDS = {
    "diagonal": 0,
    "upper": 0,
    "lower": 0,
    "cond 2": 0,
    "first column 0": 1,
    "last column 0": N,
    "last half of the columns 0": N - N // 2 + 1,
    "cond sqrt(0.1 / eps)": 0,
    "cond 0.1 / eps": 0,
    "near underflow": 0,
    "near overflow": 0,
    "zero": 1,
}
"""Kinds of matrices, with INFO of LU. Source: LAPACK TESTING/LIN, xLATB4, path xGE; EIG, xDRVSEP."""
POSITIVE_KINDS = {
    "diagonal": 0,
    "cond 2": 0,
    "row and column 1 are 0": 1,
    "row and column n are 0": N,
    "row and column n / 2 + 1 are 0": N // 2 + 1,
    "cond sqrt(0.1 / eps)": 0,
    "cond 0.01 / eps": 0,
    "near underflow": 0,
    "near overflow": 0,
}
"""The same for Cholesky, path xPO. With a condition of 0.1 / eps a rounded matrix need not be positive definite."""


def with_condition(kind: str, dtype: np.dtype[Any], *, hermitian: bool) -> Array:
    """An N x N matrix with singular values from 1 down to 1 / the condition number, one ratio apart."""
    eps = eps_of(dtype)
    condition = {"cond sqrt(0.1 / eps)": (0.1 / eps) ** 0.5, "cond 0.1 / eps": 0.1 / eps, "cond 0.01 / eps": 0.01 / eps}
    wide = np.dtype(np.complex128 if dtype.kind == "c" else np.float64)
    u, v = (np.linalg.qr(general(N, N, wide, seed))[0] for seed in (1, 2))
    values = condition.get(kind, 2.0) ** -np.linspace(0, 1, N)
    tiny = 0.25 * float(np.finfo(dtype).tiny) / eps
    scale = {"near underflow": tiny, "near overflow": 1 / tiny}.get(kind, 1.0)
    return np.asarray(((u * values) @ (u if hermitian else v).conj().T * scale).astype(dtype))


def of_kind(kind: str, dtype: np.dtype[Any], *, hermitian: bool = False) -> Array:
    """A matrix of `LU_KINDS` or `POSITIVE_KINDS`."""
    a = with_condition(kind, dtype, hermitian=hermitian)
    if kind == "diagonal":
        a = np.diag(np.abs(a.diagonal()) + 1).astype(dtype)
    parts = {"upper": np.triu(a), "lower": np.tril(a), "zero": a * 0}
    a = parts.get(kind, a)
    info = {**LU_KINDS, **POSITIVE_KINDS}[kind]
    if info and not hermitian:
        a[:, info - 1 : None if "half" in kind else info] = 0
    elif info:
        a[info - 1] = a[:, info - 1] = 0
    return a


@pytest.mark.parametrize("kind", LU_KINDS)
@pytest.mark.parametrize("name", ["float32", "complex128"])
def test_lu(ctx: pblas.Context, kind: str, name: str) -> None:
    dtype = dtype_of(name)
    a, x0 = of_kind(kind, dtype), general(N, 2, dtype, 3)
    b, matrix = a @ x0, ctx.from_global(a, root=None)
    factor = linalg.lu_factor(matrix)
    assert same_on_all_ranks(factor.info) == LU_KINDS[kind]
    assert lu_ratio(a, collected(factor.lu()), factor.pivots) <= MOST
    if factor.info:
        assert factor.rcond() == 0
        raises_on_all_ranks(pblas.SingularMatrixError, f"element {factor.info} of", factor.inv)
        return
    x, inverse = collected(factor.solve(ctx.from_global(b, root=None))), collected(factor.inv())
    assert solve_ratio(a, x, b) <= MOST
    assert norm1(x - x0) * factor.rcond() / (norm1(x0) * eps_of(dtype)) <= MOST
    assert ratio(np.eye(N) - a @ inverse, N, norm1(a), norm1(inverse), dtype=dtype) <= MOST


@pytest.mark.parametrize("kind", POSITIVE_KINDS)
@pytest.mark.parametrize("name", ["float32", "complex128"])
def test_cholesky(ctx: pblas.Context, kind: str, name: str) -> None:
    dtype, info = dtype_of(name), POSITIVE_KINDS[kind]
    a = of_kind(kind, dtype, hermitian=True)
    x0, matrix = general(N, 2, dtype, 3), ctx.from_global(a, root=None)
    if info:
        text = f"its leading {info} x {info} block"
        raises_on_all_ranks(pblas.NotPositiveDefiniteError, text, lambda: linalg.cholesky(matrix))
        return
    factor, b = linalg.cho_factor(matrix), a @ x0
    assert cholesky_ratio(a, collected(linalg.cholesky(matrix))) <= MOST
    x, inverse = collected(factor.solve(ctx.from_global(b, root=None))), collected(factor.inv())
    assert solve_ratio(a, x, b) <= MOST
    assert ratio(np.eye(N) - a @ inverse, N, norm1(a), norm1(inverse), dtype=dtype) <= MOST
