"""The array API standard's functions of matrices give what NumPy's give; what is left out is an error on all ranks."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import ArgumentError, DistMatrix
from tests.common.gauge import entries
from tests.common.ranks import COMM, collected, few, raises_on_all_ranks
from tests.harness.run import ROOT

pytestmark = [pytest.mark.mpi, few]
STANDARD = """
abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_invert bitwise_or
bitwise_right_shift bitwise_xor ceil clip conj copysign cos cosh divide equal exp expm1 floor floor_divide greater
greater_equal hypot imag isfinite isinf isnan less less_equal log log1p log2 log10 logaddexp logical_and logical_not
logical_or logical_xor maximum minimum multiply negative nextafter not_equal positive pow real reciprocal remainder
round sign signbit sin sinh square sqrt subtract tan tanh trunc cumulative_prod cumulative_sum max mean min prod std sum
var broadcast_arrays broadcast_to concat expand_dims flip moveaxis permute_dims repeat reshape roll squeeze stack tile
unstack matmul matrix_transpose tensordot vecdot argmax argmin count_nonzero nonzero searchsorted where unique_all
unique_counts unique_inverse unique_values argsort sort take take_along_axis all any diff arange asarray empty
empty_like eye from_dlpack full full_like linspace meshgrid ones ones_like tril triu zeros zeros_like astype can_cast
finfo iinfo isdtype result_type __array_namespace_info__
linalg.cholesky linalg.cross linalg.det linalg.diagonal linalg.eigh linalg.eigvalsh linalg.inv linalg.matmul
linalg.matrix_norm linalg.matrix_power linalg.matrix_rank linalg.matrix_transpose linalg.outer linalg.pinv linalg.qr
linalg.slogdet linalg.solve linalg.svd linalg.svdvals linalg.tensordot linalg.trace linalg.vecdot linalg.vector_norm
"""
"""The functions of version 2024.12, and of its extension linalg."""
CALLS = """
abs(A) add(A,B) bitwise_and(A>0,B>0) bitwise_or(A>0,B>0) bitwise_xor(A>0,B>0) bitwise_invert(A>0) ceil(A)
clip(A,-1,2.0) conj(A*1j) cos(A) divide(A,B) equal(A,B) exp(A) floor(A) floor_divide(A,B) greater(A,B)
greater_equal(A,B) imag(A*1j) isfinite(A/0) isinf(A/0) isnan(A/0) less(A,B) less_equal(A,B) log(B) logical_and(A,B)
logical_not(A) logical_or(A,B) logical_xor(A,B) maximum(A,B) minimum(A,B) multiply(A,v) negative(A) not_equal(A,B)
positive(A) pow(A,2) real(A) reciprocal(B) remainder(A,B) sign(A) sin(A) square(A) sqrt(B) subtract(v,A) tan(A) tanh(A)
trunc(A) max(A,axis=0) mean(A,axis=1,keepdims=True) min(A) std(A,axis=0,correction=1.0) sum(A,axis=-1)
var(A,correction=2.0) concat([A,B]) concat((A,B),axis=1) flip(A) flip(A,axis=0) permute_dims(A,(1,0))
permute_dims(A,(0,1)) reshape(A,(-1,)) reshape(A,(7,5)) reshape(A[:,:1],(1,-1)) roll(A,2,axis=0) roll(A,-1,axis=1)
matmul(A,B.T) matmul(A,v) matrix_transpose(A) argmax(A,axis=0) argmin(A) count_nonzero(A) where(A>0,A,B)
take(A,take_of,axis=0) take(A,take_of,axis=1) all(A,axis=0) any(A) empty_like(A).shape full_like(A,2.5) ones_like(A)
zeros_like(A) tril(A) triu(A,k=1) linalg.cholesky(S) linalg.cholesky(S,upper=True) linalg.det(S) linalg.diagonal(S)
abs(linalg.eigh(S)[1]) linalg.eigvalsh(S) linalg.inv(S) linalg.matmul(A,B.T) linalg.matrix_norm(A)
linalg.matrix_norm(A,ord=1) linalg.matrix_power(S,1) linalg.matrix_power(S,6) linalg.matrix_power(S,5)
linalg.matrix_rank(A) linalg.matrix_transpose(A) linalg.pinv(A) abs(linalg.qr(A)[1])
abs(linalg.qr(A,mode="complete")[1])
linalg.slogdet(S) linalg.solve(S,S) linalg.solve(S,v7) abs(linalg.svd(A,full_matrices=False)[0])
linalg.svd(A)[1] linalg.svdvals(A) linalg.trace(S) linalg.vector_norm(A) linalg.vector_norm(A,axis=1)
linalg.vector_norm(A,axis=0,ord=1,keepdims=True) linalg.vector_norm(A,ord=inf)
arange(4) linspace(0,1,3) zeros((2,3)) zeros(3) ones((3,2),dtype=float32) full((2,2),1.5) full((2,),1)
eye(3) eye(2,4,k=1) empty((2,3)).shape empty(2).shape asarray(a) asarray(v) asarray(A,copy=True)
astype(A,float32) astype(A,float64,copy=False) result_type(A,float32) can_cast(A,float32) finfo(A.dtype).eps
iinfo(int32).max isdtype(A.dtype,float64) from_dlpack(a)
__array_namespace_info__().devices() __array_namespace_info__().default_device()
"""
_ARGUMENTS: dict[str, str] = {
    "broadcast_to": "A, (3, 7, 5)",
    "expand_dims": "A, axis=0",
    "moveaxis": "A, 0, 1",
    "repeat": "A, 2, axis=0",
    "stack": "[A, A]",
    "tile": "A, (1, 2)",
    "unstack": "A, axis=0",
    "squeeze": "A, axis=0",
    "broadcast_arrays": "A, v",
    "searchsorted": "v, A",
    "take_along_axis": "A, v, axis=0",
    "diff": "A, axis=0",
    "cumulative_sum": "A, axis=0",
    "cumulative_prod": "A, axis=0",
    "linalg.cross": "A[:, :3], A[:, :3]",
    "linalg.outer": "A, A",
    "meshgrid": "A, v",
}
_PAIRS = "atan2 bitwise_left_shift bitwise_right_shift copysign hypot logaddexp nextafter tensordot vecdot"
_ARGUMENTS |= dict.fromkeys([*_PAIRS.split(), "linalg.tensordot", "linalg.vecdot"], "A, A")
"""Arguments of functions that are left out; of others the matrix alone."""

FLOAT64 = np.dtype("float64")
a, b = entries((7, 5), FLOAT64, 1) * 4, abs(entries((7, 5), FLOAT64, 2)) + 0.5
a[2, 3] = 0
NAMES = {
    "a": a,
    "v": np.arange(1.0, 6),
    "v7": np.arange(7.0),
    "take_of": np.array([3, 0, 3]),
    **{name: getattr(np, name) for name in ("float32", "float64", "int32", "inf")},
}
definite = a @ a.T + 7 * np.eye(7)


@pytest.fixture
def matrices(ctx: pblas.Context) -> dict[str, Any]:
    """Matrices by the names of the calls."""
    return {"A": ctx.from_global(a, root=None), "B": ctx.from_global(b, root=None)} | {
        "S": ctx.from_global(definite, root=None)
    }


def left_out() -> dict[str, str]:
    """The functions that the page says are left out, with the reasons."""
    page = (ROOT / "docs" / "array_api.md").read_text()
    table = page.partition("## What is left out")[2].partition("Of the standard's objects")[0]
    rows = re.findall(r"^\| (`.*`) \| (.+) \|$", table, re.MULTILINE)
    return {name: reason for names, reason in rows for name in re.findall(r"`([\w.]+)`", names)}


def test_every_function_of_the_standard_is_tested_or_left_out_with_a_reason() -> None:
    tested = set(re.findall(r"(?<=[\s(])((?:linalg\.)?\w+)\(", CALLS))
    assert tested | left_out().keys() == set(STANDARD.split())
    assert not tested & left_out().keys()


def value(call: str, xp: Any, names: dict[str, Any]) -> Any:
    """**Collective.** A call in the namespace."""
    functions = {name: getattr(xp, name) for name in re.findall(r"([a-z_]\w+)[(.]", call) if hasattr(xp, name)}
    return eval(call, {**functions, **NAMES, **names})


def check(result: Any, expected: Any) -> None:
    """**Collective.** A matrix, an array, a number or a tuple of them has the expected values."""
    if isinstance(expected, tuple):
        for x, y in zip(result, expected, strict=True):
            check(x, y)
        return
    values = collected(result) if isinstance(result, DistMatrix) else result
    if isinstance(expected, np.ndarray):
        assert isinstance(
            result, DistMatrix if expected.ndim == 2 and not isinstance(result, np.ndarray) else np.ndarray
        )
        assert values.shape == expected.shape
        assert np.allclose(values, expected, rtol=1e-11, atol=1e-11, equal_nan=True)
    elif isinstance(expected, float | np.floating):
        assert np.isclose(float(values), float(expected))
    else:
        assert values == expected


@pytest.mark.parametrize("line", CALLS.strip().splitlines(), ids=lambda line: line.partition("(")[0])
def test_functions(matrices: dict[str, Any], line: str) -> None:
    xp = matrices["A"].__array_namespace__(api_version="2024.12")
    for call in line.split():
        if "devi" in call:
            assert value(call, xp, matrices) in ("cpu", ["cpu"])
            continue
        with np.errstate(all="ignore"):
            expected = value(call, np, {"A": a, "B": b, "S": definite})
            check(value(call, xp, matrices), expected)


def test_functions_that_are_left_out(matrices: dict[str, Any]) -> None:
    xp = matrices["A"].__array_namespace__()
    for name in left_out():
        module, _, function = name.rpartition(".")
        owner: Any = getattr(xp, module) if module else xp
        if hasattr(owner, function):  # old versions of NumPy lack some
            call = f"{name}({_ARGUMENTS.get(name, 'A')})"
            raises_on_all_ranks(ArgumentError, "it takes no DistMatrix", partial(value, call, xp, matrices))


def test_attributes(ctx: pblas.Context, matrices: dict[str, Any]) -> None:
    A = matrices["A"]
    xp = A.__array_namespace__()
    assert (A.ndim, A.shape, A.size, A.dtype, A.device) == (2, (7, 5), 35, xp.float64, "cpu")
    check(A.mT, a.T)
    assert xp == ctx.eye(2).__array_namespace__()
    assert {xp.pi, xp.e, xp.inf} == {np.pi, np.e, np.inf}
    assert xp.newaxis is None
    assert A.astype("float64", copy=False) is A
    check(A.astype("float32", copy=False), a.astype("float32"))
    names = set(dir(xp))
    assert {"linalg", "nan", "uint8", "complex64", "astype"} < names
    assert all(hasattr(xp, name) for name in names)
    info = xp.__array_namespace_info__()
    assert set(info.capabilities()) == {"boolean indexing", "data-dependent shapes", "max dimensions"}
    assert list(info.dtypes()) == ["float32", "float64", "complex64", "complex128"]
    assert list(info.dtypes(kind=("real floating", "bool"))) == ["float32", "float64"]
    assert info.default_dtypes()["real floating"] == xp.zeros((1, 1)).dtype


def test_errors(matrices: dict[str, Any]) -> None:
    A = matrices["A"]
    xp = A.__array_namespace__()
    with pytest.raises(AttributeError, match="'fft'"):
        _ = xp.fft
    with pytest.raises(ArgumentError, match="api_version must be one of"):
        A.__array_namespace__(api_version="1999.12")
    raises_on_all_ranks(ArgumentError, "arrays of this context are on 'cpu'", lambda: xp.zeros((2, 2), device="tpu"))
    raises_on_all_ranks(ArgumentError, "gets the shape", lambda: xp.reshape(A, (5, 7)))
    raises_on_all_ranks(ArgumentError, "n must be a positive integer", lambda: xp.linalg.matrix_power(A @ A.T, 0))
    raises_on_all_ranks(ArgumentError, "axes must be", lambda: xp.permute_dims(A, (0, 0)))
    raises_on_all_ranks(ArgumentError, "ord must be 2 or inf", lambda: xp.linalg.vector_norm(A, ord=1))
    raises_on_all_ranks(ArgumentError, "A.local is", lambda: np.from_dlpack(A))
    raises_on_all_ranks(ArgumentError, "copy must be", lambda: A.astype("float64", copy=2))
    wrong: Any = "no" if COMM.rank == COMM.size - 1 else False
    raises_on_all_ranks(ArgumentError, "copy must be", lambda: A.astype("float64", copy=wrong))


@pytest.mark.ranks(2, reason="the import of scikit-learn takes seconds")
def test_scikit_learns_estimators(ctx: pblas.Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """They give the results that they give of the collected arrays."""
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    sklearn = pytest.importorskip("sklearn", minversion="1.8")
    from sklearn.decomposition import PCA
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.linear_model import Ridge
    from sklearn.metrics.pairwise import rbf_kernel
    from sklearn.preprocessing import StandardScaler

    x = entries((40, 5), FLOAT64, 4)
    y = x @ entries((5, 2), FLOAT64, 5)
    labels = (y[:, 0] > 0).astype(int) + (y[:, 1] > 0)
    X, Y = (ctx.from_global(z, root=None) for z in (x, y))
    calls: list[Callable[..., Any]] = [
        lambda x, _: PCA(2, svd_solver="full").fit_transform(x),
        lambda x, _: PCA(2, svd_solver="covariance_eigh").fit(x).transform(x),
        lambda x, _: PCA(3, svd_solver="full").fit(x).explained_variance_ratio_,
        lambda x, y: Ridge(alpha=0.5, solver="svd").fit(x, y).predict(x),
        lambda x, _: abs(LinearDiscriminantAnalysis(solver="svd").fit(x, labels).transform(x)),
        lambda x, _: StandardScaler().fit_transform(x),
        lambda x, _: rbf_kernel(x),
    ]
    with sklearn.config_context(array_api_dispatch=True), np.errstate(all="ignore"):
        for call in calls:
            result, expected = call(X, Y), call(x, y)
            assert isinstance(result, DistMatrix) or expected.ndim == 1
            values = collected(result) if isinstance(result, DistMatrix) else result
            assert np.allclose(values, expected)
