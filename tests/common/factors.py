"""Matrices and residuals for tests of factorizations: LAPACK's ratios, which must be finite and at most 30."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pblas.context import Context
from pblas.factor.choose import choose_factorization, choose_qr
from pblas.layouts.descriptor import MatrixDescriptor
from tests.common.gauge import Array, eps_of

MOST = 30.0
"""LAPACK's threshold of linear equations."""
NAMES = ("float32", "float64", "complex64", "complex128")
NB = 5
"""Columns of a panel in these tests."""


@pytest.fixture
def narrow_panels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Panels of NB columns, the first one of fewer, and all ranks for matrices of a few columns."""
    set_panels(monkeypatch, NB, _LEAST=3, _FIRST=NB - 1)
    yield
    forget_plans()


def set_panels(monkeypatch: pytest.MonkeyPatch, nb: int, **others: int) -> None:
    """Panels of nb columns, and other constants of the choice of a plan."""
    for name, value in {"_NARROWEST": nb, "_WIDEST": nb, "_WIDEST_IN_COLUMNS": nb, **others}.items():
        monkeypatch.setattr(f"pblas.factor.choose.{name}", value)
    forget_plans()


def put_alone(monkeypatch: pytest.MonkeyPatch, ctx: Context, alone: bool = True) -> None:
    """Let a context take each rank for the only one on its host, or not."""
    monkeypatch.setattr(ctx.runtime.backend, "alone", alone)
    monkeypatch.setattr(ctx.runtime, "_topology", None)


def forget_plans() -> None:
    """Forget the plans that were chosen with other constants."""
    choose_factorization.cache_clear()
    choose_qr.cache_clear()


def solve_on_grids(monkeypatch: pytest.MonkeyPatch, always: bool) -> None:
    """With factors on grids, solve on these grids always, or never."""

    def stays_on_grid(w: MatrixDescriptor, b: MatrixDescriptor, *_: object) -> bool:
        return always and 0 not in b.shape

    monkeypatch.setattr("pblas.factor.with_factor.stays_on_grid", stays_on_grid)


def general(m: int, n: int, dtype: np.dtype[Any], seed: int = 0) -> Array:
    """A random m x n matrix."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((m, n))
    return (x + 1j * rng.standard_normal((m, n)) if dtype.kind == "c" else x).astype(dtype)


def positive(n: int, dtype: np.dtype[Any], seed: int = 0) -> Array:
    """A random Hermitian positive definite matrix."""
    x = general(n, n + 1, dtype, seed).astype(np.complex128 if dtype.kind == "c" else np.float64)
    return (x @ x.conj().T + np.eye(n)).astype(dtype)


def norm1(x: Array) -> float:
    """The 1-norm; NaN if there is one."""
    return float(np.abs(x).sum(0).max(initial=0.0)) if x.size else 0.0


def ratio(residual: Array, *sizes: float, dtype: np.dtype[Any]) -> float:
    """The 1-norm of a residual over the sizes, in units of eps."""
    scale = float(np.prod(sizes)) * eps_of(dtype)
    size = norm1(residual)
    return 0.0 if size == 0 else size / scale if scale else np.inf


def cholesky_ratio(a: Array, l: Array) -> float:
    """norm(A - L L^H) / (n norm(A) eps)."""
    wide = np.clongdouble if a.dtype.kind == "c" else np.longdouble
    return ratio(a - l.astype(wide) @ l.conj().T.astype(wide), max(len(a), 1), norm1(a), dtype=a.dtype)


def lu_ratio(a: Array, lu: Array, pivots: Array) -> float:
    """norm(P A - L U) / (n norm(A) eps)."""
    (m, n), permuted = a.shape, a.copy()
    for i, p in enumerate(pivots):
        permuted[[i, p]] = permuted[[p, i]]
    k = min(m, n)
    wide: Any = np.clongdouble if a.dtype.kind == "c" else np.longdouble
    l, u = (np.tril(lu, -1) + np.eye(m, n))[:, :k], np.triu(lu)[:k]
    return ratio(permuted - l.astype(wide) @ u.astype(wide), max(n, 1), norm1(a), dtype=a.dtype)


def solve_ratio(a: Array, x: Array, b: Array) -> float:
    """The largest norm(b - A x) / (norm(A) norm(x) eps) of a right-hand side, as of LAPACK's xGET02."""
    columns = ((x[:, [j]], b[:, [j]]) for j in range(x.shape[1]))
    return max((ratio(y - a @ z, norm1(a), norm1(z), dtype=a.dtype) for z, y in columns), default=0.0)


def qr_ratios(a: Array, q: Array, r: Array) -> tuple[float, float]:
    """norm(A - Q R) / (max(m, n) norm(A) eps), and norm(I - Q^H Q) / (m eps)."""
    (m, k), wide = q.shape, np.clongdouble if a.dtype.kind == "c" else np.longdouble
    q, r = q.astype(wide), r.astype(wide)
    size = max(1, *a.shape)
    unitary = ratio(np.eye(k) - q.conj().T @ q, max(m, 1), dtype=a.dtype)
    return ratio(a - q @ r, size, norm1(a), dtype=a.dtype), unitary
