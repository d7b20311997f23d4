"""One conversion of arrays that are equal on all ranks, in every call that takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import Context, DistMatrix, blas, linalg
from tests.common.ranks import collected, few, raises_on_all_ranks

pytestmark = [pytest.mark.mpi, few]
SETTINGS = ("shared",)
N = 7
A = np.diag(np.arange(1.0, N + 1)) + np.tril(np.ones((N, N)), -1) / 4 + np.triu(np.ones((N, N)), 1) / 4
Call = Callable[[DistMatrix, Any], Any]
VECTORS: dict[str, Call] = {
    "A @ x": lambda a, x: a @ x,
    "x @ A": lambda a, x: x @ a,
    "gemv": blas.gemv,
    "gemv, y": lambda a, x: blas.gemv(a, np.zeros(N, a.dtype), x),
    "trmv": blas.trmv,
    "trsv": blas.trsv,
    "ger": lambda a, x: collected(blas.ger(x, x, a.copy())),
    "solve": linalg.solve,
    "solve, pos": lambda a, x: linalg.solve(a, x, assume_a="pos"),
    "F.solve of LU": lambda a, x: linalg.lu_factor(a).solve(x),
    "F.solve of Cholesky": lambda a, x: linalg.cho_factor(a).solve(x),
    "lstsq": lambda a, x: linalg.lstsq(a, x).x,
    "cg": lambda a, x: linalg.cg(a, x, tol=1e-5).x,
}
TABLES = {name: VECTORS[name] for name in ("solve", "F.solve of LU", "F.solve of Cholesky", "lstsq", "cg")}
TABLES |= {"A @ b": lambda a, x: collected(a @ x)}
PROMOTING: dict[str, Call] = {
    "A + x": lambda a, x: collected(a + x),
    "x * A": lambda a, x: collected(x * a),
    "elementwise": lambda a, x: collected(pblas.elementwise("x * s", x=a, s=x)),
}
EVERY = VECTORS | PROMOTING | {"A[0] = x": lambda a, x: a.__setitem__(0, x)}


@pytest.mark.parametrize("name", EVERY)
def test_values_that_are_no_numbers_are_refused(ctx: Context, name: str) -> None:
    a, call, x = ctx.from_global(A, root=None), EVERY[name], np.arange(1.0, N + 1)
    masked = np.ma.masked_less(x, 3)
    text = "elements of a masked array have no value"
    if name == "x * A":  # numpy.ma converts A before it asks for its operators
        text = "cannot be converted to an array"
    raises_on_all_ranks(pblas.ArgumentError, text, lambda: call(a, masked))
    raises_on_all_ranks(pblas.DTypeError, "not numbers", lambda: call(a, x.astype(object)))
    raises_on_all_ranks(pblas.DTypeError, "not numbers", lambda: call(a, x.astype(str)))
    if name not in PROMOTING:
        raises_on_all_ranks(pblas.DTypeError, "complex", lambda: call(a, x + 1j))
    call(a, x)


@pytest.mark.parametrize("name", VECTORS | PROMOTING)
def test_integers_and_bools_are_numbers(ctx: Context, name: str) -> None:
    call, x = (VECTORS | PROMOTING)[name], np.arange(1, N + 1)
    for dtype in ("float32", "float64"):
        a = ctx.from_global(A.astype(dtype), root=None)
        for values in (x, x.astype(np.int8), x > 3):
            result = call(a, values)
            expected = np.result_type(a.dtype, values.dtype) if name in PROMOTING else a.dtype
            assert result.dtype == expected
            assert np.array_equal(result, call(a, values.astype(expected)))


@pytest.mark.parametrize("name", VECTORS | TABLES)
def test_elements_are_never_rounded_silently(ctx: Context, name: str) -> None:
    """An array that the dtype of the matrix does not hold is refused, as a matrix is."""
    a, call = ctx.from_global(A.astype("float32"), root=None), (TABLES | VECTORS)[name]
    x = np.ones((N, 2) if name not in VECTORS else N)
    raises_on_all_ranks(pblas.DTypeError, "rounded", lambda: call(a, x))
    raises_on_all_ranks(pblas.DTypeError, "rounded", lambda: call(a, x.astype(int) * (2**24 + 1)))
    call(a, x.astype("float32"))


@pytest.mark.parametrize("name", PROMOTING)
def test_elementwise_operations_promote(ctx: Context, name: str) -> None:
    a, x = ctx.from_global(A.astype("float32"), root=None), np.full(N, 1 / 3)
    result = PROMOTING[name](a, x)
    assert result.dtype == np.float64
    assert np.array_equal(result, A + x if "+" in name else A * x)


def test_an_assignment_converts(ctx: Context) -> None:
    a = ctx.from_global(A.astype("float32"), root=None)
    for value in (2**70, 0.1, True, np.arange(N), np.full(N, 0.1)):
        a[0] = value
        assert np.array_equal(
            collected(a)[0],
            np.full(N, value).astype("float32") if np.ndim(value) == 0 else np.asarray(value).astype("float32"),
        )
    assert np.array_equal(collected(a * 2**70), collected(a) * np.float32(2**70))
    raises_on_all_ranks(pblas.ArgumentError, "too large", lambda: a.__setitem__(0, 10**400))
    raises_on_all_ranks(pblas.ArgumentError, "too large", lambda: a * 10**400)


@pytest.mark.parametrize("name", TABLES)
def test_arrays_of_two_dimensions(ctx: Context, name: str) -> None:
    """Each column of the result is that of a column; an array gives an array, equal on all ranks."""
    a, call = ctx.from_global(A, root=None), TABLES[name]
    for k in (0, 1, 2, N + 2):
        b = np.random.default_rng(k).standard_normal((N, k))
        for array in (b, np.asfortranarray(b), np.repeat(b, 2, axis=1)[:, ::2]):
            result = call(a, array)
            assert isinstance(result, np.ndarray)
            assert result.shape == b.shape
            if k:
                columns = [(a @ b[:, j]) if "@" in name else call(a, b[:, j]) for j in range(k)]
                assert np.allclose(result, np.stack(columns, axis=1), rtol=1e-4 if name == "cg" else 1e-12, atol=1e-12)
    result = linalg.lstsq(ctx.from_global(A[:, :3], root=None), np.eye(N))
    assert np.allclose(result.residuals, np.linalg.lstsq(A[:, :3], np.eye(N))[1])
    assert linalg.cg(a, np.eye(N)[:, :2]).residuals.shape[1:] == (2,)
