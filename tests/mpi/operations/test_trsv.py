"""Laws of trsv: a small backward error for columns, rows and arrays; nothing else is read or written."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from pblas import Context, blas, scalapack
from pblas.errors import ArgumentError, DescriptorError, DTypeError
from tests.common.gauge import applied, dtype_of, entries, gauge
from tests.common.ranks import COMM, Contexts, collected, few, raises_on_all_ranks, same_on_all_ranks, some_wrong
from tests.mpi.matrices.arrays import placed, some_descriptor
from tests.mpi.operations.test_level1 import elements_of, some_vector

pytestmark = [pytest.mark.mpi, few]
SETTINGS = ("shared", "message")
untyped: Any = blas
"""The functions, to which tests pass any values."""


def some_triangle(rng: Random, n: int, dtype: str, uplo: str, *, unit: bool) -> tuple[Any, Any]:
    """A well-conditioned triangle, and the same with NaN where trsv must not read."""
    x = entries((n, n), dtype_of(dtype), rng.randrange(99)) / max(n, 1)
    whole = np.tril(x, -1) if uplo == "L" else np.triu(x, 1)
    np.fill_diagonal(whole, 1 if unit else 2)
    poisoned = whole + np.where(np.tri(n, k=unit - 1).T if uplo == "L" else np.tri(n, k=unit - 1), np.nan, 0)
    return whole, poisoned.astype(whole.dtype)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_the_backward_error_is_small(contexts: Contexts, setting: str, dtype: str) -> None:
    ctx = contexts[setting]
    for seed in range(8):
        rng = Random(f"{dtype} {seed}")
        n, uplo, trans, diag = rng.choice((1, 2, 7, 33)), rng.choice("LU"), rng.choice("NTC"), rng.choice("NU")
        whole, poisoned = some_triangle(rng, n, dtype, uplo, unit=diag == "U")
        a = placed(ctx, poisoned, some_descriptor(rng, n, n, ctx.nprocs), 0)
        around, x, b = some_vector(ctx, rng, dtype, n)
        options: Any = {"uplo": uplo, "trans": trans, "diag": diag}
        on_all = untyped.trsv(a, b, **options)
        same_on_all_ranks(on_all.tobytes())
        new = untyped.trsv(a, x, **options)
        assert new.shape == x.shape
        assert untyped.trsv(a, x, out=x, **options) is x
        for solved in (on_all, new.to_global(None).ravel(), elements_of(around, x)):
            assert gauge(b[:, None], applied(trans, whole), solved[:, None]) <= 2 * n + 16


def test_wrong_arguments_of_one_rank_are_told_to_all(contexts: Contexts) -> None:
    ctx = contexts["shared"]
    a, x, half = ctx.eye(5), ctx.ones((5, 1)), ctx.zeros((5, 5), "float16")
    for wrong in some_wrong():

        def one(right: Any, mistake: Any, wrong: frozenset[int] = wrong) -> Any:
            return mistake if COMM.rank in wrong else right

        raises_on_all_ranks(ArgumentError, "a must be a DistMatrix", lambda: untyped.trsv(one(a, None), x))
        raises_on_all_ranks(ArgumentError, "x must be", lambda: untyped.trsv(a, one(x, a)))
        raises_on_all_ranks(ArgumentError, "uplo", lambda: untyped.trsv(a, x, uplo=one("L", "X")))
    raises_on_all_ranks(DescriptorError, "5", lambda: untyped.trsv(a, x[:4]))
    raises_on_all_ranks(DTypeError, "float16", lambda: untyped.trsv(half, half[:, 0]))
    raises_on_all_ranks(ArgumentError, "out", lambda: untyped.trsv(a, np.ones(5), out=x))


@pytest.mark.parametrize("is_row", [False, True])
def test_pdtrsv_solves_in_place(is_row: bool) -> None:
    n, p = 6, COMM.size
    ictxt = scalapack.gridinit(COMM, "R", 1, p)
    try:
        _, _, _, mycol = scalapack.gridinfo(ictxt)
        whole, _ = some_triangle(Random(1), n, "float64", "U", unit=False)
        mine = [j for j in range(n) if j // 2 % p == mycol]
        a = np.asfortranarray(whole[:, mine])
        x = np.asfortranarray(np.arange(1.0, n * n + 1).reshape(n, n)[:, mine])
        desc = [1, ictxt, n, n, 2, 2, 0, 0, n]
        b = np.arange(1.0, n * n + 1).reshape(n, n)
        i, j, inc = (2, 1, n) if is_row else (1, 3, 1)
        scalapack.pdtrsv("U", "N", "N", n, a, 1, 1, desc, x, i, j, desc, inc)
        expected = b.copy()
        if is_row:
            expected[1] = np.linalg.solve(whole, b[1])
        else:
            expected[:, 2] = np.linalg.solve(whole, b[:, 2])
        np.testing.assert_allclose(x, expected[:, mine], rtol=1e-13)
    finally:
        scalapack.gridexit(ictxt)


def test_a_row_takes_the_result_of_a_column_and_a_column_that_of_a_row(ctx: Context) -> None:
    a, x = ctx.from_global(np.array([[2.0, 0], [1, 4]]), root=None), ctx.from_global(np.array([[4.0], [10]]), root=None)
    for right, shape in ((x, (1, 2)), (x.T, (2, 1)), (x, (2, 1)), (x.T, (1, 2))):
        out = ctx.zeros(shape)
        assert blas.trsv(a, right, out=out) is out
        assert collected(out).ravel().tolist() == [2.0, 2.0]
    assert blas.trsv(a, np.array([4, 10])).tolist() == [2.0, 2.0]
