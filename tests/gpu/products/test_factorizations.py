"""Laws of Cholesky, LU, QR and their solves on GPUs, with NVSHMEM and with messages; see tests/mpi/operations."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from typing import Any, Literal, get_args

import numpy as np
import pytest

import pblas
from pblas import linalg
from pblas.core.options import Trans
from pblas.factor.grid_lu_plan import Pivoting
from tests.common.factors import (
    MOST,
    NAMES,
    cholesky_ratio,
    forget_plans,
    general,
    lu_ratio,
    positive,
    qr_ratios,
    ratio,
    solve_on_grids,
    solve_ratio,
)
from tests.common.gauge import applied, dtype_of
from tests.common.ranks import COMM, collected, raises_on_all_ranks, same_on_all_ranks
from tests.gpu.products.general import BACKENDS, context
from tests.gpu.products.products import Placed
from tests.mpi.matrices.arrays import some_descriptor
from tests.mpi.operations.test_cholesky import one_triangle
from tests.mpi.operations.test_grid_lu import GRIDS, square_blocks

pytestmark = [pytest.mark.mpi, pytest.mark.gpu, pytest.mark.usefixtures("narrow_panels")]
P, NB = COMM.size, 16
SIZES = (0, 1, NB - 1, NB, NB + 1, 3 * NB, 101)
Algorithm = Literal["blocked", "local", "grid"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


@pytest.fixture(scope="module", params=BACKENDS)
def ctx(request: pytest.FixtureRequest) -> Iterator[pblas.Context]:
    with context(request.param) as opened:
        yield opened
        gc.collect()  # matrices in the frames of caught errors


@pytest.fixture
def narrow_panels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Panels of NB columns, all ranks for matrices of a few columns, both kinds of products in an update, a tail."""
    values = {"_NARROWEST": NB, "_WIDEST": NB, "_LEAST": 3, "_TRIANGLE": 2 * NB, "_TAIL": 2 * NB}
    for name, value in values.items():
        monkeypatch.setattr(f"pblas.factor.choose.{name}_ON_GPUS", value)
    forget_plans()
    yield
    forget_plans()


@pytest.mark.parametrize("seed", range(16))
def test_cholesky_of_any_layout(ctx: pblas.Context, seed: int) -> None:
    """The residuals of factor and solve; the other triangle, which is NaN, and the operands stay as they are."""
    rng = random.Random(seed)
    dtype, algorithm = dtype_of(NAMES[seed % 4]), ALGORITHMS[seed // 4 % 3]
    n, offset, upper = rng.choice(SIZES), rng.choice([0, 3]), rng.random() < 0.5
    a = positive(n, dtype, seed)
    desc = some_descriptor(rng, n + offset + 1, n + offset, P)
    A = Placed(ctx, desc, (offset, offset + n, offset, offset + n), dtype, rng.choice("wuo"), 3)
    A.fill(one_triangle(a, "U" if upper else "L"))
    factor = linalg.cholesky(A.view, upper=upper, algorithm=algorithm)
    assert factor.desc.same_distribution(A.view.desc)
    result = collected(factor)
    assert (np.tril(result, -1) == 0).all() if upper else (np.triu(result, 1) == 0).all()
    assert cholesky_ratio(a, result.conj().T if upper else result) <= MOST
    b = general(n, rng.choice([0, 1, 7]), dtype, seed + 100)
    B = Placed(ctx, some_descriptor(rng, n, b.shape[1], P), (0, n, 0, b.shape[1]), dtype, rng.choice("wuo"), 3)
    B.fill(b)
    kept = linalg.cho_factor(A.view, lower=not upper, algorithm=algorithm)
    x = kept.solve(B.view)
    A.check_untouched()
    B.check_untouched()
    assert x.desc.same_distribution(B.view.desc)
    assert solve_ratio(a, collected(x), b) <= MOST
    assert same_on_all_ranks(float(kept.logdet())) == pytest.approx(np.linalg.slogdet(a)[1] if n else 0, rel=1e-3)


@pytest.mark.parametrize("seed", range(16))
def test_lu_of_any_layout(ctx: pblas.Context, seed: int) -> None:
    """The residuals of factor, solves and inverse, pivots that are equal on all ranks; A and B stay as they are."""
    rng = random.Random(seed)
    dtype, algorithm, m = dtype_of(NAMES[seed % 4]), ALGORITHMS[seed // 4 % 3], rng.choice(SIZES)
    n, offset = m if seed % 3 else rng.choice(SIZES), rng.choice([0, 3])
    a = general(m, n, dtype, seed)
    desc = some_descriptor(rng, m + offset + 1, n + offset, P)
    A = Placed(ctx, desc, (offset, offset + m, offset, offset + n), dtype, rng.choice("wuo"), 3)
    A.fill(a)
    factor = linalg.lu_factor(A.view, algorithm=algorithm)
    A.check_untouched()
    pivots = np.array(same_on_all_ranks(factor.pivots.tolist()), int)
    assert lu_ratio(a, collected(factor.lu()), pivots) <= MOST
    if m != n:
        return
    b = general(n, rng.choice([0, 1, 7]), dtype, seed + 100)
    B = Placed(ctx, some_descriptor(rng, n, b.shape[1], P), (0, n, 0, b.shape[1]), dtype, rng.choice("wuo"), 3)
    B.fill(b)
    for trans in ("N", "T", "C"):
        x = factor.solve(B.view, trans)
        B.check_untouched()
        assert x.desc.same_distribution(B.view.desc)
        assert solve_ratio(applied(trans, a), collected(x), b) <= MOST
    inverse = collected(factor.inv())
    sizes = np.abs(a).sum(0).max(initial=0), np.abs(inverse).sum(0).max(initial=0)
    assert ratio(inverse @ a - np.eye(n), max(n, 1), *sizes, dtype=dtype) <= MOST


@pytest.mark.parametrize("shape", GRIDS)
def test_factors_on_any_grid(ctx: pblas.Context, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]) -> None:
    """Residuals of the three factors, of solves with them on their grid, and of products with Q; uneven blocks."""
    rng, n = random.Random(str(shape)), 101
    solve_on_grids(monkeypatch, always=True)
    blocks = square_blocks(rng, n, n, shape, rng.choice([6, 24, 45]))
    monkeypatch.setattr("pblas.factor.choose.square_blocks", lambda *_, **__: iter([(blocks, "a test")]))
    for name in rng.sample(NAMES, 2):
        dtype = dtype_of(name)
        a, b = positive(n, dtype, n), general(n, 7, dtype)
        right = ctx.from_global(b, some_descriptor(rng, n, 7, P), None)
        solver = linalg.cho_factor(ctx.from_global(a, root=None), algorithm="grid")
        assert solve_ratio(a, collected(solver.solve(right)), b) <= MOST
        a = general(n, n, dtype, n)
        matrix = ctx.from_global(a, root=None)
        for pivoting in get_args(Pivoting):
            factor = linalg.lu_factor(matrix, algorithm="grid", pivoting=pivoting)
            assert lu_ratio(a, collected(factor.lu()), factor.pivots) <= MOST
            for trans in get_args(Trans):
                assert solve_ratio(applied(trans, a), collected(factor.solve(right, trans)), b) <= MOST
        reflectors = linalg.qr_factor(matrix, algorithm="grid")
        q, r = collected(reflectors.q()), collected(reflectors.r())
        assert max(qr_ratios(a, q, r)) <= MOST
        product = collected(reflectors.apply_q(right, trans="C"))
        assert ratio(product - q.conj().T @ b, n, float(np.abs(b).sum(0).max()), dtype=dtype) <= MOST


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_calls_of_numpy(ctx: pblas.Context, algorithm: Algorithm) -> None:
    """solve, det, slogdet and cond agree with NumPy; out may be the matrix; explain() names the algorithm."""
    n, dtype = 4 * NB + 5, np.dtype(np.complex128)
    a = positive(n, dtype)
    matrix = ctx.from_global(a, root=None)
    for kind in ("gen", "pos"):
        x = linalg.solve(matrix, a[:, 0], assume_a=kind)
        assert solve_ratio(a, x[:, None], a[:, :1]) <= MOST
    sign, logarithm = linalg.slogdet(matrix)
    expected = np.linalg.slogdet(a)
    assert np.allclose(sign, expected[0])
    assert np.allclose(logarithm, expected[1])
    assert np.allclose(linalg.det(ctx.from_global(a[:9, :9], root=None)), np.linalg.det(a[:9, :9]))
    assert np.allclose(linalg.cond(matrix, 1), np.linalg.cond(a, 1))
    with linalg.plan_cholesky(matrix, algorithm=algorithm) as planned:
        assert f"{algorithm}: " in planned.explain()
        assert "cuSOLVER" in planned.explain()
        for _ in range(2):
            assert cholesky_ratio(a, collected(planned.execute(matrix))) <= MOST
    assert linalg.cholesky(matrix, out=matrix, algorithm=algorithm) is matrix
    assert cholesky_ratio(a, collected(matrix)) <= MOST


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_info_is_the_first_bad_pivot(ctx: pblas.Context, algorithm: Algorithm) -> None:
    """Matrices that are not positive definite, and singular ones: `info` on all ranks; the context goes on."""
    n = NB * P + 2 * NB + 1
    for k in sorted({1, NB, NB + 1, n}):
        for bad in (-1.0, 0.0, np.nan):
            a = positive(n, np.dtype(np.float64), k)
            a[k - 1, k - 1] = bad
            if k < n:
                a[-1, -1] = -1e9  # the first one counts
            matrix = ctx.from_global(a, root=None)
            with pytest.raises(pblas.NotPositiveDefiniteError) as caught:
                linalg.cholesky(matrix, algorithm=algorithm)
            assert same_on_all_ranks(caught.value.info) == k
        a = np.triu(general(n, n, np.dtype(np.float64), k))
        a[k - 1, k - 1] = a[-1, -1] = 0
        factor = linalg.lu_factor(ctx.from_global(a, root=None), algorithm=algorithm)
        assert same_on_all_ranks(factor.info) == k
        assert lu_ratio(a, collected(factor.lu()), factor.pivots) <= MOST
        with pytest.raises(pblas.SingularMatrixError) as singular:
            factor.solve(np.ones(n))
        assert same_on_all_ranks(singular.value.info) == k
    good = positive(n, np.dtype(np.float64))
    assert cholesky_ratio(good, collected(linalg.cholesky(ctx.from_global(good, root=None)))) <= MOST


def test_growing_elements_and_many_exchanges(ctx: pblas.Context) -> None:
    """More exchanges than one list has, in reversed order, and Wilkinson's matrix."""
    n = 700
    reversed_rows: Any = np.tril(general(n, n, np.dtype(np.float64)), -1) * 1e-3 + np.eye(n)
    for algorithm in ALGORITHMS:
        factor = linalg.lu_factor(ctx.from_global(reversed_rows[::-1].copy(), root=None), algorithm=algorithm)
        assert lu_ratio(reversed_rows[::-1], collected(factor.lu()), factor.pivots) <= MOST
        x = factor.solve(np.arange(n, dtype=float))
        assert solve_ratio(reversed_rows[::-1], x[:, None], np.arange(n, dtype=float)[:, None]) <= MOST
    small = 37
    growing = np.eye(small) - np.tril(np.ones((small, small)), -1)
    growing[:, -1] = 1
    factor = linalg.lu_factor(ctx.from_global(growing, root=None))
    assert collected(factor.lu())[-1, -1] == 2.0 ** (small - 1)


def test_wrong_arguments(ctx: pblas.Context) -> None:
    square = ctx.eye(6)
    raises_on_all_ranks(pblas.DTypeError, "astype", lambda: linalg.cholesky(ctx.zeros((6, 6), "float16")))
    raises_on_all_ranks(pblas.DescriptorError, "square", lambda: linalg.cholesky(ctx.zeros((4, 6))))
    raises_on_all_ranks(pblas.ArgumentError, "'blocked'", lambda: linalg.lu_factor(square, algorithm="fast"))  # type: ignore[arg-type]
    assert collected(linalg.cholesky(square)).tolist() == np.eye(6).tolist()
