"""NumPy's and SciPy's functions of matrices give what they give of the collected arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg
from scipy import special

import pblas
from pblas import ArgumentError, DescriptorError, DistMatrix, Grid, MatrixDescriptor
from pblas._numpy import UFUNCS
from pblas.matrices import plotting
from tests.common.gauge import Array, entries
from tests.common.ranks import COMM, collected, each_wrong, few, outcome_of, raises_on_all_ranks

pytestmark = [pytest.mark.mpi, few]
N = 7
FLOAT64 = np.dtype("float64")
a, b = entries((N, N), FLOAT64, 1) * 4, entries((N, N), FLOAT64, 2) * 4
a[2, 3] = a[5, 1] = 0
v = np.arange(1.0, N + 1)
definite = a @ a.T + N * np.eye(N)


@pytest.fixture
def matrices(ctx: pblas.Context) -> tuple[Any, Any]:
    """The arrays a and b as matrices of different layouts."""
    grid = MatrixDescriptor(N, N, 2, 3, Grid(1, ctx.nprocs))
    return ctx.from_global(a, root=None), ctx.from_global(b, grid, root=None)


def check(result: Any, expected: Any) -> None:
    """**Collective.** A matrix, an array, a number or a tuple of them has the expected values."""
    if isinstance(expected, tuple):
        for x, y in zip(result, expected, strict=True):
            check(x, y)
        return
    values = collected(result) if isinstance(result, DistMatrix) else np.asarray(result)
    assert values.shape == np.shape(expected)
    assert np.allclose(values, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", UFUNCS)
def test_ufuncs(matrices: tuple[Any, Any], name: str) -> None:
    A, B = matrices
    function: Any = getattr(np, name, None) or getattr(special, name)
    x, X = (abs(a), abs(A)) if name == "power" else (a, A)
    is_logical = name in ("bitwise_and", "bitwise_or", "bitwise_xor", "invert")
    conditions = (a > 0, b > 0) if is_logical else (x, b)
    with np.errstate(all="ignore"):
        if function.nin == 1:
            check(function(X > 0 if is_logical else X), function(conditions[0]))
            return
        expected = function(*conditions)
        check(function(*((A > 0, B > 0) if is_logical else (X, B))), expected)
        if not is_logical:
            check(function(X, v), function(x, v))
            check(function(abs(v), B), function(abs(v), b))
            check(function(2, B), function(2, b))
            check(function(np.float64(2), B), function(2, b))
        out = A.copy()
        assert function(*((A > 0, B > 0) if is_logical else (X, B)), out=out) is out
        check(out, expected)


def test_special_numbers(ctx: pblas.Context) -> None:
    x = np.array([[np.nan, np.inf, -np.inf, 0.0, -0.0, 2.5, -7.0]])
    X: Any = ctx.from_global(x, root=None)
    with np.errstate(all="ignore"):
        for y in (2.5, -3.0, 0.0, np.inf):
            check(X % y, x % y)
            check(X // y, x // y)
            check(y % X, y % x)
            check(y // X, y // x)
    for function in (np.isnan, np.isfinite, np.isinf, np.sign, np.floor, np.ceil):
        check(function(X), function(x))
    check(np.isnan(X + 1j), np.isnan(x))
    check(np.isfinite(X + 1j), np.isfinite(x))
    assert np.isnan(X * 1j).dtype == FLOAT64
    assert np.isnan(X).any()
    assert not np.isnan(X).all()


def test_complex_functions(matrices: tuple[Any, Any]) -> None:
    A, B = matrices
    z, Z = a + 1j * b, A + 1j * B
    for function in (np.sin, np.cos, np.tan, np.exp, np.square, np.conjugate, np.absolute):
        check(function(Z), function(z))
    check(Z == A, z == a)
    check(Z != Z.T, z != z.T)
    assert (Z == A).dtype == FLOAT64
    check(np.where(Z == A, Z, 1j), np.where(z == a, z, 1j))
    raises_on_all_ranks(ArgumentError, "less is for real numbers", lambda: Z < A)


def test_comparisons_and_masks(matrices: tuple[Any, Any]) -> None:
    A, B = matrices
    for condition, expected in (
        (A > 0, a > 0),
        (A >= B, a >= b),
        (A < v, a < v),  # noqa: SIM300
        (np.less(v, A), v < a),
        (A <= 0, a <= 0),
        (A == 0, a == 0),
        (A != A.T, a != a.T),
        ((A > 0) & (B > 0), (a > 0) & (b > 0)),
        ((A > 0) | ~(B > 0), (a > 0) | ~(b > 0)),
    ):
        check(condition, expected)
        assert condition.sum() == expected.sum()
        check(condition.any(axis=0), expected.any(axis=0))
        check(condition.all(axis=1, keepdims=True), expected.all(axis=1, keepdims=True))
        check(np.where(condition, A, B), np.where(expected, a, b))
    check(pblas.where(a > b, A, 0), np.where(a > b, a, 0))
    C, c = A.copy(), a.copy()
    C[C > 1] = 1
    c[c > 1] = 1
    C[b < 0] = -1.5
    c[b < 0] = -1.5
    C[1:4, 2:5][B[1:4, 2:5] > 0] = 9
    c[1:4, 2:5][b[1:4, 2:5] > 0] = 9
    check(C, c)
    raises_on_all_ranks(ArgumentError, "with a mask the value must be a number", lambda: C.__setitem__(C > 0, v))
    raises_on_all_ranks(DescriptorError, "the mask is 2 x 7, A 7 x 7", lambda: C.__setitem__(C[:2] > 0, 1))
    raises_on_all_ranks(ArgumentError, "a mask must be a DistMatrix", lambda: C.__setitem__(a, 1))
    check(C, c)


def test_plots_have_the_means_of_cells(ctx: pblas.Context, tmp_path: Path) -> None:
    x = entries((300, 520), FLOAT64, 3)
    x[:100] = 0
    for desc in (None, MatrixDescriptor.block_cyclic(300, 520, 7, 5, Grid(1, ctx.nprocs))):
        A = ctx.from_global(x, desc, root=None)
        rows, columns = (plotting.bounds(size) for size in x.shape)
        expected = np.add.reduceat(np.add.reduceat(x, rows[:-1], 0), columns[:-1], 1)
        for spy, sums in ((False, expected), (True, None)):
            total = sum(COMM.allgather(plotting.cell_sums(A.local, A.desc, ctx.rank, spy=spy)))
            assert total.shape == (128, 128)
            assert total.sum() == np.count_nonzero(x) if sums is None else np.allclose(total, sums, atol=1e-12)
    path = COMM.bcast(tmp_path, 0) / "a.svg"
    A.plot(path)
    assert "</svg>" in path.read_text()
    raises_on_all_ranks(ArgumentError, "must end in .png, .svg, .pdf", lambda: A.plot("a.txt"))
    raises_on_all_ranks(ArgumentError, "nothing to draw", lambda: A[:0].plot(path))


def test_reductions_of_ufuncs(matrices: tuple[Any, Any]) -> None:
    A, _ = matrices
    check(np.add.reduce(A), a.sum(axis=0))
    check(np.maximum.reduce(A, axis=1, keepdims=True), a.max(axis=1, keepdims=True))
    check(np.minimum.reduce(A, axis=None), a.min())
    check(np.logical_and.reduce(A), a.all(axis=0))
    check(np.logical_or.reduce(A - A), np.zeros(N, bool))


CALLS = """
np.sum(A) np.sum(A,0) np.sum(A,axis=1,keepdims=True) np.sum(A,None,None,None,True) np.mean(A,1) np.max(A) np.amin(A,0)
np.argmax(A) np.argmin(A,axis=0) np.std(A) np.std(A,axis=0,ddof=1) np.var(A,1,keepdims=True) np.any(A) np.all(A,axis=0)
np.linalg.norm(A) np.linalg.norm(A,1) np.linalg.norm(A,np.inf) np.linalg.norm(A,axis=0) np.linalg.norm(A,2,axis=1)
np.trace(A) np.diagonal(A) np.diag(A) np.tril(A) np.triu(A,1) np.vstack([A,B]) np.hstack((A,B)) np.concatenate([A,B])
np.concatenate([A,B],axis=1) np.transpose(A) np.real(A) np.imag(A) np.copy(A) np.dot(A,B) np.dot(A,v) np.dot(v,A)
np.dot(A,2.0) np.vdot(A,B) np.matmul(A,B) np.matmul(v,A) np.clip(A,-1,2) np.clip(A,None,v) np.count_nonzero(A)
np.count_nonzero(A,axis=0) np.allclose(A,A+1e-9) np.allclose(A,B) np.isclose(A,A.T) np.array_equal(A,A)
np.array_equal(A,B) np.array_equal(A,A[1:]) np.shape(A) np.ndim(A) np.size(A) np.size(A,1) np.iscomplexobj(A)
np.isrealobj(A) np.zeros_like(A/0) np.ones_like(A) np.full_like(A,2.5) np.zeros_like(A*1j) np.linalg.solve(S,B)
np.linalg.solve(S,v) np.linalg.inv(S) np.linalg.det(S) np.linalg.slogdet(S) np.linalg.cholesky(S) np.linalg.cond(S,1)
np.linalg.eigvalsh(S) np.abs(np.linalg.eigh(S)[1]) np.abs(np.linalg.svd(A)[0]) np.abs(np.linalg.svd(A,False)[2])
np.linalg.svd(A,compute_uv=False) np.linalg.svdvals(A)
np.linalg.lstsq(A[:,:3],v,rcond=None)[0] np.abs(np.linalg.qr(A)[1]) np.matmul(A,B,out=np.zeros_like(A))
"""


@pytest.mark.parametrize("call", CALLS.split())
def test_functions(ctx: pblas.Context, matrices: tuple[Any, Any], call: str) -> None:
    names = dict(zip("AB", matrices, strict=True), S=ctx.from_global(definite, root=None))
    with np.errstate(all="ignore"):
        expected: Any = eval(call, {"np": np, "v": v, "A": a, "B": b, "S": definite})
    check(eval(call, {"np": np, "v": v, **names}), expected)


@each_wrong
@pytest.mark.mpi(min_size=2)
def test_one_rank_that_calls_another_function(matrices: tuple[Any, Any], wrong: frozenset[int]) -> None:
    A, _ = matrices
    text = "numpy.cbrt: it takes no DistMatrix"
    raises_on_all_ranks(ArgumentError, text, lambda: np.cbrt(A) if COMM.rank in wrong else np.exp(A))
    text = "numpy.cumsum: it takes no DistMatrix"
    raises_on_all_ranks(ArgumentError, text, lambda: np.cumsum(A) if COMM.rank in wrong else np.sum(A))
    assert outcome_of(lambda: np.exp(A) if COMM.rank in wrong else np.log(A))[0] == "MismatchError"
    key = A > 0
    outcome = outcome_of(lambda: A.__setitem__(slice(2) if COMM.rank in wrong else key, 1))
    assert outcome[0] == "MismatchError"
    check(np.exp(A), np.exp(a))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "complex64"])
def test_variances_are_rounded_once(ctx: pblas.Context, name: str) -> None:
    """Of numbers whose squares 16 bits do not hold."""
    A = ctx.from_global(300 + 30 * a, root=None).astype(name)
    exact = collected(A).astype("complex128" if name == "complex64" else "float64")
    assert A.var().dtype == (np.float32 if name == "complex64" else A.dtype)
    for axis in (None, 0, 1):
        for result, expected in ((A.var(axis), exact.var(axis)), (A.std(axis), exact.std(axis))):
            assert np.allclose(np.asarray(result, "float64"), expected, rtol=1e-2 if "16" in name else 1e-5)


def test_moments_of_nothing(ctx: pblas.Context) -> None:
    A = ctx.zeros((0, 3))
    assert np.isnan(A.var())
    assert np.isnan(ctx.ones((1, 1)).var(ddof=2))
    assert not A.any()
    assert A.all()


def test_print_shows_this_ranks_values_without_other_ranks(ctx: pblas.Context) -> None:
    A = ctx.from_function(lambda i, j: i + 100 * j, (40, 3))
    if ctx.rank == 0:  # no other rank takes part
        text = str(A)
        assert text.startswith(repr(A))
        m_loc = len(A.local)
        assert f"rank 0 has {m_loc} x 3 of the elements:" in text
        assert [line.split() for line in text.replace("[", "").replace("]", "").splitlines()[2:]] == [
            *(f"{i}. {i + 100}. {i + 200}.".split() for i in range(3)),
            ["..."],
            *(f"{i}. {i + 100}. {i + 200}.".split() for i in range(m_loc - 3, m_loc)),
        ]
    small = ctx.from_global(np.array([[1 + 2j]]), MatrixDescriptor.replicated(1, 1, ctx.nprocs), root=None)
    assert str(small.H).endswith("[[1.-2.j]]")
    assert "has 0 x" in str(A[:0])


def test_scipys_solvers_take_matrices(ctx: pblas.Context) -> None:
    sla: Any = scipy.sparse.linalg
    A, S = (ctx.from_global(x, root=None) for x in (a, definite))
    for operator in (S, S.linear_operator(), sla.aslinearoperator(S)):
        assert np.allclose(sla.eigsh(operator, k=2, v0=v)[0], np.linalg.eigvalsh(definite)[-2:])
        for solver in (sla.cg, sla.gmres):
            x, info = solver(operator, v, rtol=1e-12)
            assert info == 0
            assert np.allclose(definite @ x, v)
    u, s, vh = sla.svds(A.linear_operator(), k=2, v0=v)
    assert np.allclose(s, np.linalg.svd(a)[1][1::-1])
    assert np.allclose(u.T @ a @ vh.T, np.diag(s))
    assert np.allclose(sla.svds(A, k=2, v0=v, return_singular_vectors=False), s)
    tall = ctx.from_global(a[:, :3], root=None)
    assert np.allclose(sla.lsqr(tall, v, atol=1e-12, btol=1e-12)[0], np.linalg.lstsq(a[:, :3], v)[0])


@pytest.mark.parametrize("name", ["float32", "float64", "complex64", "complex128"])
def test_linear_operators_take_vectors_of_any_dtype(ctx: pblas.Context, name: str) -> None:
    x: Array = a[:, :4].astype(name) * (1 + 1j if name.startswith("c") else 1)
    operator = ctx.from_global(x, root=None).linear_operator()
    assert operator.shape == (N, 4)
    assert operator.dtype == name
    for right in (v[:4], 1j * v[:4], np.arange(4), v[:4, None], np.eye(4), 1j * np.eye(4)):
        assert np.allclose(operator @ right, x @ right, rtol=1e-5)
    assert np.allclose(operator.H @ (1j * v), x.conj().T @ (1j * v), rtol=1e-5)
