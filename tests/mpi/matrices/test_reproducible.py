"""Sums, norms, factorizations and solves in a reproducible context: the bits of one rank, for any layouts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import DistMatrix, blas, linalg
from tests.common.gauge import dtype_of, entries, eps_of
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
    compare_values(reproducible, one, dtype, VALUES)


def compare_values(
    ctx: pblas.Context, one: pblas.Context, dtype: str, values: dict[str, Callable[[DistMatrix], Any]]
) -> None:
    """**Collective.** Compare values of a matrix in random layouts with those of one rank."""
    choice = random.Random(f"{dtype} {P}")
    x = (entries((M, N), dtype_of(dtype), 1) * dtype_of(dtype).type(3)).astype(dtype_of(dtype))
    whole = one.from_global(x)
    expected = {name: np.asarray(value(whole)) for name, value in values.items()}
    for kind in choice.sample(KINDS, 2):
        a = ctx.from_global(x, layout(kind, x.shape, choice.choice("FC"), choice))
        for name, value in values.items():
            bits = np.asarray(value(a))
            assert bits.dtype == expected[name].dtype
            assert bits.tobytes() == expected[name].tobytes(), f"{name}, {kind}"


def test_sums_are_rounded_once(reproducible: pblas.Context) -> None:
    large = np.array([[1e16, 1.0, -1e16]] * 4)
    assert reproducible.from_global(large).sum() == 4


ORDER = 150  # several panels, and triangles of several blocks


def triangles(s: DistMatrix, a: DistMatrix, b: DistMatrix) -> dict[str, bytes]:
    """**Collective.** Bits of products of which a matrix has a triangle."""
    over = b * 1
    return bits_of(
        {
            "syrk": blas.syrk(b, s, alpha=0.3, beta=0.7),
            "herk": blas.herk(b, trans="C", uplo="U"),
            "symm": blas.symm(a, b),
            "syr2k": blas.syr2k(b, b + 1, s, alpha=0.3, beta=0.7),
            "her2k": blas.her2k(b, b + 1, trans="C", uplo="U"),
            "trmm": blas.trmm(a, b, alpha=0.3, trans="T"),
            "trmm on the right": blas.trmm(a, b.T, side="R", uplo="U", diag="U"),
            "trmm over B": blas.trmm(a, over, uplo="U", out=over),
        }
    )


def solved(s: DistMatrix, a: DistMatrix, b: DistMatrix) -> dict[str, bytes]:
    """**Collective.** Bits of factors and solutions, with S positive definite."""
    vector = np.linspace(0.1, 1, ORDER).astype(s.dtype)
    return bits_of(
        {
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
        }
    )


def bits_of(results: dict[str, Any]) -> dict[str, bytes]:
    """**Collective.** The bits of each result."""
    return {name: (collected(x) if isinstance(x, DistMatrix) else x).tobytes() for name, x in results.items()}


def compare_layouts(
    ctx: pblas.Context, one: pblas.Context, dtype: str, calls: Callable[..., dict[str, bytes]], kinds: int = 2
) -> None:
    """**Collective.** Compare results of calls with S positive definite, A and B with those of one rank."""
    choice = random.Random(f"{calls.__name__} {dtype} {P}")
    a, b = (entries((ORDER, n), dtype_of(dtype), n) for n in (ORDER, 41))
    arrays = (a @ a.conj().T + ORDER * np.eye(ORDER)).astype(a.dtype), a, b
    expected = calls(*(one.from_global(x) for x in arrays))
    for kind in choice.sample(KINDS, kinds):
        parts = [ctx.from_global(x, layout(kind, x.shape, choice.choice("FC"), choice)) for x in arrays]
        found = calls(*parts)
        assert [name for name in found if found[name] != expected[name]] == [], kind


@pytest.mark.parametrize("calls", [triangles, solved])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_factors_and_solutions_have_the_bits_of_one_rank(
    reproducible: pblas.Context, one: pblas.Context, dtype: str, calls: Callable[..., dict[str, bytes]]
) -> None:
    compare_layouts(reproducible, one, dtype, calls)


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float16"])
def test_products_with_a_triangle_are_near_those_of_numpy(reproducible: pblas.Context, dtype: str) -> None:
    """The law above compares pblas with itself."""
    choice = random.Random(f"triangles {dtype} {P}")
    x, y, z = (entries(shape, dtype_of(dtype), seed) for seed, shape in enumerate(((70, 70), (70, 41), (70, 41))))
    upper, both = np.triu(x, 1) + np.eye(70, dtype=x.dtype), y @ z.conj().T
    expected = {"trmm": np.tril(x).T @ y, "trmm on the right": y.T @ upper, "her2k": np.tril(both + both.conj().T)}
    for kind in KINDS:
        a, b, c = (
            reproducible.from_global(array, layout(kind, array.shape, choice.choice("FC"), choice))
            for array in (x, y, z)
        )
        plans = [blas.plan_trmm(a, b, trans="T"), blas.plan_trmm(a, b, trans="T", out=b)]
        planned = blas.plan_her2k(b, c)
        results = {
            "trmm": plans[0].execute(a, b),
            "trmm on the right": blas.trmm(a, b.T, side="R", uplo="U", diag="U"),
            "her2k": planned.execute(b, c),
        }
        results["trmm over B"] = plans[1].execute(a, b, out=b)
        for plan in (*plans, planned):
            assert plan.workspace_nbytes <= plan.plan.workspace_nbytes, plan.explain()
        for name, result in results.items():
            exact = expected[name.removesuffix(" over B")]
            error = abs(collected(result).astype(exact.dtype) - exact).max()
            assert error <= 2 * 71 * eps_of(x.dtype) * abs(exact).max(), f"{name}, {kind}"
