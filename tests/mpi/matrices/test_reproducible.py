"""Sums, norms, factorizations and solves in a reproducible context: the bits of one rank, for any layouts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import DistMatrix, blas, linalg
from tests.common.gauge import dtype_of, entries
from tests.common.ranks import collected
from tests.mpi.laws.test_reproducible import KINDS, P, layout

pytestmark = pytest.mark.mpi
M, N = 17, 90
VALUES: dict[str, Callable[[DistMatrix], Any]] = {
    "sum": lambda a: a.sum(),
    "sum of columns": lambda a: a.sum(axis=0),
    "mean of rows": lambda a: a.mean(axis=1),
    "trace": lambda a: a.trace(),
    "norm": lambda a: a.norm(),
    "norms of rows": lambda a: a.norm(axis=1),
    "1-norm": lambda a: a.norm(ord=1),
    "vdot": lambda a: pblas.vdot(a, a + 1),
    "std": lambda a: a.std(),
    "A @ v": lambda a: a @ np.linspace(0.1, 1, N).astype(a.dtype),
    "v @ A": lambda a: np.linspace(0.1, 1, M).astype(a.dtype) @ a,
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "complex64", "bfloat16"])
def test_reductions_have_the_bits_of_one_rank(reproducible: pblas.Context, one: pblas.Context, dtype: str) -> None:
    choice = random.Random(f"{dtype} {P}")
    x = entries((M, N), dtype_of(dtype), 1) * dtype_of(dtype).type(3)
    whole = one.from_global(x)
    expected = {name: np.asarray(value(whole)) for name, value in VALUES.items()}
    for kind in choice.sample(KINDS, 2):
        a = reproducible.from_global(x, layout(kind, x.shape, choice.choice("FC"), choice))
        for name, value in VALUES.items():
            bits = np.asarray(value(a))
            assert bits.dtype == expected[name].dtype
            assert bits.tobytes() == expected[name].tobytes(), f"{name}, {kind}"


def test_sums_are_rounded_once(reproducible: pblas.Context) -> None:
    large = np.array([[1e16, 1.0, -1e16]] * 4)
    assert reproducible.from_global(large).sum() == 4


ORDER = 150  # several panels, and triangles of several blocks


def solved(s: DistMatrix, a: DistMatrix, b: DistMatrix) -> dict[str, bytes]:
    """**Collective.** Bits of factors and solutions, with S positive definite."""
    vector = np.linspace(0.1, 1, ORDER).astype(s.dtype)
    results: dict[str, Any] = {
        "cholesky": linalg.cholesky(s),
        "upper cholesky": linalg.cholesky(s, upper=True),
        "cho_solve": linalg.solve(s, b, assume_a="pos"),
        "lu": linalg.lu_factor(a[:, :77]).lu(),
        "solve": linalg.solve(a, b),
        "lu_solve": linalg.lu_factor(a).solve(b, trans="C"),
        "inv": linalg.inv(a),
        "slogdet": np.array(linalg.slogdet(a)),
        "trsm": blas.trsm(s, b, alpha=0.3),
        "trsm on the right": blas.trsm(s * (1 / ORDER), b.T, side="R", uplo="U", trans="C", diag="U"),
        "trsv": blas.trsv(s, vector, trans="T"),
        "syrk": blas.syrk(b, s, alpha=0.3, beta=0.7),
        "herk": blas.herk(b, trans="C", uplo="U"),
        "symm": blas.symm(a, b),
    }
    return {name: (collected(x) if isinstance(x, DistMatrix) else x).tobytes() for name, x in results.items()}


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_factors_and_solutions_have_the_bits_of_one_rank(
    reproducible: pblas.Context, one: pblas.Context, dtype: str
) -> None:
    choice = random.Random(f"solve {dtype} {P}")
    a, b = (entries((ORDER, n), dtype_of(dtype), n) for n in (ORDER, 41))
    arrays = (a @ a.conj().T + ORDER * np.eye(ORDER)).astype(dtype), a, b
    whole = [one.from_global(x) for x in arrays]
    expected = solved(*whole)
    for kind in choice.sample(KINDS, 2):
        parts = [reproducible.from_global(x, layout(kind, x.shape, choice.choice("FC"), choice)) for x in arrays]
        found = solved(*parts)
        assert [name for name in found if found[name] != expected[name]] == [], kind
