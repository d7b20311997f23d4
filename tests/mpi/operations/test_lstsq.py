"""Laws of lstsq and orth: solutions, residuals and ranks are NumPy's, and matrices without full rank are errors."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import MatrixDescriptor, linalg
from tests.common.factors import MOST, NAMES, NB, general, narrow_panels, norm1, qr_ratios, ratio  # noqa: F401
from tests.common.gauge import dtype_of, eps_of
from tests.common.ranks import COMM, Contexts, collected, few, raises_on_all_ranks, same_on_all_ranks, some_wrong
from tests.mpi.matrices.arrays import some_descriptor
from tests.mpi.operations.test_redistribution import Guarded

pytestmark = [pytest.mark.mpi, few, pytest.mark.usefixtures("narrow_panels")]
SETTINGS = ("shared", "message", "mixed")
P = COMM.size


def check(a: Any, x: Any, b: Any) -> None:
    """Assert that x has the laws of the shortest least-squares solution, as LAPACK's xDRVLS tests them."""
    (m, n), residual = a.shape, b - a @ x
    sizes = max(m, n, 1), max(norm1(a), 1e-300)
    if m <= n:  # it solves the equations
        assert ratio(residual, *sizes, max(norm1(x), 1e-300), dtype=a.dtype) <= MOST
    else:  # the residual is orthogonal to A
        assert ratio(a.conj().T @ residual, *sizes, norm1(a), max(norm1(b), 1e-300), dtype=a.dtype) <= MOST
    if m < n and m:  # it is in the space of the rows of A
        q = np.linalg.qr(a.conj().T.astype(np.complex128))[0]
        assert ratio(x - q @ (q.conj().T @ x), n, max(norm1(x), 1e-300), dtype=a.dtype) <= MOST


@pytest.mark.parametrize("seed", range(12))
def test_solutions_of_any_layout(contexts: Contexts, seed: int) -> None:
    rng = random.Random(seed)
    dtype, ctx = dtype_of(NAMES[seed % 4]), contexts[rng.choice(SETTINGS)]
    sizes = [(rng.randrange(10), rng.randrange(10)), (41, 23), (23, 41), (90, 3), (3, 90), (2 * NB, 2 * NB)]
    (m, n), k = rng.choice(sizes), rng.choice([0, 1, 7])
    a, b = general(m, n, dtype, seed), general(m, k, dtype, seed + 100)
    left, right = (
        Guarded(ctx, some_descriptor(rng, x.shape[0], x.shape[1], P), dtype, home=rng.choice(["own", "shared"]))
        for x in (a, b)
    )
    left.fill(a)
    right.fill(b)
    x, residuals, rank, s = linalg.lstsq(left.view, right.view)
    left.check_untouched()
    right.check_untouched()
    assert (x.shape, rank, s) == ((n, k), min(m, n), None)
    if m == n:
        assert x.desc.same_distribution(right.view.desc)
    check(a, collected(x), b)
    expected = np.linalg.lstsq(a, b, rcond=None)[1] if a.size and k else np.zeros(k if m > n else 0)
    if n == 0:
        expected = (np.abs(b) ** 2).sum(0) if m else np.zeros(0)
    assert residuals.shape == expected.shape
    assert residuals.dtype == np.zeros(0, dtype).real.dtype
    assert np.allclose(residuals, expected, rtol=1e3 * eps_of(dtype), atol=1e3 * eps_of(dtype))
    same_on_all_ranks(residuals.tobytes())
    if m:
        vector = linalg.lstsq(left.view, general(m, 1, dtype)[:, 0])
        assert (vector.x.shape, vector.residuals.shape) == ((n,), (int(m > n),))
        check(a, vector.x[:, None], general(m, 1, dtype))


def test_full_ranks_and_others(contexts: Contexts) -> None:
    for name in ("shared", "message"):
        ctx = contexts[name]
        for m, n in ((20, 12), (12, 20), (90, 3)) if name == "shared" else ((9, 9),):
            good = general(m, n, np.dtype(np.float64))
            basis = linalg.orth(ctx.from_global(good, root=None))
            assert basis.shape == (m, min(m, n))
            q = collected(basis)
            assert max(qr_ratios(good, q, q.T @ good)) <= MOST
            for k in {1, min(m, n)}:
                bad = good if m >= n else good.T.copy()
                bad = bad.copy()
                bad[:, k - 1] = bad[:, : k - 1].sum(1)  # depends on those before; the first one is 0
                matrix = ctx.from_global(bad if m >= n else bad.T.copy(), root=None)
                with pytest.raises(pblas.SingularMatrixError, match="full rank") as caught:
                    linalg.orth(matrix)
                info = same_on_all_ranks((str(caught.value), caught.value.info))[1]
                assert isinstance(caught.value, np.linalg.LinAlgError)
                assert info == k or m < n
                found = linalg.lstsq(matrix, general(m, 2, np.dtype(np.float64)))
                right = np.linalg.lstsq(collected(matrix), general(m, 2, np.dtype(np.float64)), rcond=None)
                assert found.rank == right[2] == min(m, n) - 1
                assert found.residuals.shape == (0,)
                assert np.allclose(found.x, right[0], rtol=0, atol=1e-12)
                assert found.s is not None
                assert np.allclose(found.s, right[3], rtol=0, atol=1e-13 * right[3][0])
        x = linalg.lstsq(ctx.eye(5), np.arange(5.0)).x
        assert np.allclose(x, np.arange(5.0))


def test_singular_values_that_count_as_zero(ctx: pblas.Context) -> None:
    """rcond= gives the rank of NumPy, the shortest X, and all singular values."""
    for m, n in ((30, 6), (6, 30), (9, 9)):
        k = min(m, n)
        u, v = (np.linalg.qr(general(x, k, np.dtype(np.float64), x))[0] for x in (m, n))
        a, b = (u * 10.0 ** -np.arange(k)) @ v.T, general(m, 2, np.dtype(np.float64))
        for rcond, rank in ((3e-4, 4), (1e-12, k)):
            result = linalg.lstsq(ctx.from_global(a, root=None), ctx.from_global(b, root=None), rcond=rcond)
            right = np.linalg.lstsq(a, b, rcond=rcond)
            assert (result.rank, len(result.residuals)) == (rank, len(right[1]))
            error = np.abs(collected(result.x) - right[0]).max()
            assert error <= 1e-12 * np.abs(right[0]).max() * 10**rank
            assert result.s is not None
            assert np.allclose(result.s, 10.0 ** -np.arange(k), rtol=0, atol=1e-14)
            assert linalg.matrix_rank(ctx.from_global(a, root=None), rtol=rcond) == rank
    raises_on_all_ranks(pblas.ArgumentError, "rcond must be", lambda: linalg.lstsq(ctx.eye(4), np.ones(4), rcond=-1.0))


def test_pseudoinverses_and_norms(ctx: pblas.Context) -> None:
    """The four equations of Moore and Penrose, of matrices without full rank too; the pseudoinverse of X is A."""
    for m, n in ((12, 7), (7, 12), (9, 9)):
        a = general(m, n, dtype_of("complex128"))
        a[:, 2] = a[:, 0] - a[:, 1]
        a[3] = a[1]
        A = ctx.from_global(a, root=None)
        X = linalg.pinv(A)
        assert X.desc.grid == A.desc.grid
        x = collected(X)
        for left, right in ((a @ x @ a, a), (x @ a @ x, x), ((a @ x).conj().T, a @ x), ((x @ a).conj().T, x @ a)):
            assert np.abs(left - right).max() <= 1e-13 * np.linalg.cond(a[:, :2])
        assert np.allclose(collected(linalg.pinv(X)), a, rtol=0, atol=1e-12)
        assert linalg.matrix_rank(A) == linalg.matrix_rank(A.H) == np.linalg.matrix_rank(a)
        for kind in (2, -2, "nuc"):
            order: Any = kind
            assert np.isclose(linalg.matrix_norm(A, ord=order), np.linalg.norm(a, order), rtol=1e-13, atol=1e-14)
        assert linalg.cond(A[:, :2]) == pytest.approx(np.linalg.cond(a[:, :2]), rel=1e-12)
    assert linalg.cond(ctx.zeros((3, 3))) == np.inf
    assert np.isnan(linalg.cond(ctx.full((3, 3), np.nan)))
    s = np.diag([3.0, -2.0, 0.0, 1.0])
    S = ctx.from_global(s, root=None)
    assert linalg.matrix_rank(S, hermitian=True) == 3
    assert np.allclose(collected(linalg.pinv(S, hermitian=True)), np.linalg.pinv(s))
    raises_on_all_ranks(pblas.DescriptorError, "must be square", lambda: linalg.pinv(ctx.ones((3, 4)), hermitian=True))


def test_rows_of_nan_are_results(ctx: pblas.Context) -> None:
    a = general(20, 4, np.dtype(np.float64))
    a[3, 2] = np.nan
    assert np.isnan(linalg.lstsq(ctx.from_global(a, root=None), np.ones(20)).x).any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("overwrite", [False, True])
def test_elements_close_to_the_limits_are_scaled(ctx: pblas.Context, name: str, overwrite: bool) -> None:
    """Powers of 2 as factors of A and B, which make their elements subnormal or huge, are factors of X."""
    dtype = dtype_of(name)
    limits = np.finfo(dtype)
    least, most = limits.minexp - limits.nmant // 4, limits.maxexp - 5
    for m, n in ((6, 3), (3, 3), (3, 6)):
        a, b = (np.random.default_rng(1).integers(-4, 5, shape).astype(dtype) for shape in ((m, n), (m, 2)))
        x = collected(pblas.linalg.lstsq(ctx.from_global(a, root=None), ctx.from_global(b, root=None)).x)
        for of_a, of_b in ((least, least), (least, least + 40), (most, most), (0, least + 40), (0, most - 4)):
            matrix, right = (
                ctx.from_global(np.ldexp(y.real, e).astype(dtype), root=None) for y, e in ((a, of_a), (b, of_b))
            )
            result = pblas.linalg.lstsq(matrix, right, overwrite_a=overwrite)
            assert np.allclose(collected(result.x), np.ldexp(x.real, of_b - of_a), rtol=1000 * limits.eps, atol=0)


def test_wrong_arguments(ctx: pblas.Context) -> None:
    linalg: Any = pblas.linalg  # whose arguments have any types
    square, wide, half, other = ctx.eye(6), ctx.zeros((4, 6)), ctx.zeros((6, 6), "float16"), ctx.eye(6, "float32")
    for wrong in some_wrong():
        mistaken = ctx.rank in wrong
        cases: list[tuple[type[Exception], str, Any]] = [
            (pblas.DTypeError, "astype", lambda a: linalg.lstsq(half if a else square, square)),
            (pblas.DTypeError, "astype", lambda a: linalg.orth(half if a else square)),
            (pblas.DTypeError, "one dtype", lambda a: linalg.lstsq(square, other if a else square)),
            (pblas.DTypeError, "real part", lambda a: linalg.lstsq(square, np.ones(6, complex if a else float))),
            (pblas.DescriptorError, "make them agree", lambda a: linalg.lstsq(square, wide if a else square)),
            (pblas.DescriptorError, "make them agree", lambda a: linalg.lstsq(square, np.ones(5 if a else 6))),
            (
                pblas.ArgumentError,
                "one or two dimensions",
                lambda a: linalg.lstsq(square, np.ones((6, 1, 1)) if a else np.ones(6)),
            ),
            (pblas.MismatchError, "", lambda a: linalg.lstsq(square, square if a else np.ones(6))),
        ]
        for kind, text, call in cases:
            raises_on_all_ranks(kind, text, lambda: call(mistaken))  # noqa: B023
    raises_on_all_ranks(pblas.ArgumentError, "must be a DistMatrix", lambda: linalg.lstsq(np.eye(6), np.ones(6)))
    raises_on_all_ranks(pblas.ArgumentError, "must be a DistMatrix", lambda: linalg.orth(np.eye(6)))
    descs = MatrixDescriptor.row_wise(6, 2, P)
    assert np.allclose(collected(linalg.lstsq(square, ctx.ones(descs)).x), 1)
