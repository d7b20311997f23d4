"""QR on P x Q grids: any grid, blocks and sources; products with Q; bytes of the plan; one result on all transports."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import scipy.linalg

import pblas
from pblas import Grid, MatrixDescriptor, linalg, scalapack
from pblas.core.options import Side, Trans
from pblas.factor.grid_qr_plan import GridQrPlan
from pblas.factor.qr_factor import Mode
from tests.common.factors import MOST, NAMES, forget_plans, general, norm1, qr_ratios, ratio
from tests.common.gauge import applied, dtype_of
from tests.common.ranks import COMM, Contexts, collected
from tests.mpi.matrices.arrays import some_descriptor
from tests.mpi.operations.test_grid_cholesky import received_nbytes
from tests.mpi.operations.test_grid_lu import GRIDS, square_blocks
from tests.mpi.operations.test_qr import special

pytestmark = pytest.mark.mpi
SETTINGS = ("shared", "message", "mixed")
P = COMM.size


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[MatrixDescriptor]]:
    """A list whose last layout has the blocks of W, whatever A has."""
    forced: list[MatrixDescriptor] = []

    def square_blocks(a: MatrixDescriptor, *_: object, **__: object) -> Iterator[tuple[MatrixDescriptor, str]]:
        yield replace(forced[-1], m=a.m, n=a.n), "a test"

    monkeypatch.setattr("pblas.factor.choose.square_blocks", square_blocks)
    yield forced
    forget_plans()


@pytest.mark.parametrize("shape", GRIDS)
def test_the_factor_on_any_grid(contexts: Contexts, layouts: list[MatrixDescriptor], shape: tuple[int, int]) -> None:
    """Residuals of Q and R, products with Q on both sides, and the same bits on all transports."""
    rng = random.Random(str(shape))
    sizes = [(41, 41), rng.choice([(rng.randint(0, 9),) * 2, (17, 29), (0, 3), (3, 0), (rng.randint(43, 50), 29)])]
    for name, (m, n) in zip(rng.sample(NAMES, 2), sizes, strict=True):
        layouts.append(square_blocks(rng, m, n, shape, rng.choice([6, 45])))
        dtype, results, side = dtype_of(name), set(), rng.choice(get_args(Side))
        mode: Mode = "complete" if m != n else "reduced"
        a, c = general(m, n, dtype, n), general(m, rng.choice([1, 7]), dtype, n + 1)
        c = c if side == "L" else c.T
        desc, of_c = some_descriptor(rng, m, n, P), some_descriptor(rng, c.shape[0], c.shape[1], P)
        if rng.random() < 0.5 and side == "L":
            of_c = replace(layouts[-1], n=c.shape[1])
        for ctx in contexts.values():
            factor = linalg.qr_factor(ctx.from_global(a, desc, None), algorithm="grid")
            right = ctx.from_global(c, of_c, None)
            parts = [collected(factor.q(mode)), collected(factor.r(mode))]
            parts += [collected(factor.apply_q(right, side, trans)) for trans in get_args(Trans)]
            results.add(tuple(part.tobytes() for part in parts))
        q, r, *products = parts
        assert (np.tril(r, -1) == 0).all()
        assert max(qr_ratios(a, q, r)) <= MOST
        for trans, x in zip(get_args(Trans), products, strict=True):
            expected = applied(trans, q) @ c if side == "L" else c @ applied(trans, q)
            assert ratio(x - expected, max(m, 1), norm1(c), dtype=dtype) <= MOST
        assert len(results) == 1


@pytest.mark.parametrize("shape", GRIDS)
def test_a_matrix_in_square_blocks_is_factored_where_it_is(
    contexts: Contexts, layouts: list[MatrixDescriptor], shape: tuple[int, int]
) -> None:
    """In place with overwrite_a; a rank gets about the elements that the plans of the factor and of Q say."""
    rng = random.Random(str(shape))
    desc = square_blocks(rng, 96, 96, shape)
    layouts.append(desc)
    a, n = general(96, 96, np.dtype(np.complex128)), desc.nb
    for ctx in contexts.values():
        matrix = ctx.from_global(a, desc, None)
        with linalg.plan_qr(matrix, algorithm="grid") as planned:
            counts = [received_nbytes(ctx)]
            factor = planned.execute(matrix)
            counts.append(received_nbytes(ctx))
            factor.apply_q(matrix)
            counts.append(received_nbytes(ctx))
            plan: Any = planned.plan
            product: Any = factor._reflectors.plan(desc, desc, "complex128", P, plan.transport)
            for received, expected in zip(np.diff(counts), (plan, product), strict=True):
                most = expected.received_nbytes(ctx.rank)
                assert 0.7 * most - 16 * 20 * n**2 <= received <= 1.1 * most + 16 * 20 * n**2
            assert "elements" in planned.explain()
        taken = linalg.qr_factor(matrix, overwrite_a=True, algorithm="grid")
        assert collected(taken.r()).tobytes() == collected(factor.r()).tobytes()
        assert (np.triu(collected(matrix)) == collected(factor.r())).all()


@pytest.mark.parametrize("shape", GRIDS)
def test_special_matrices(ctx: pblas.Context, layouts: list[MatrixDescriptor], shape: tuple[int, int]) -> None:
    """Low ranks and zeros give orthonormal columns; NaN and infinities end no call."""
    m, n = 37, 24
    layouts.append(square_blocks(random.Random(str(shape)), m, n, shape))
    matrices = special(m, n)
    names = "condition 1e12", "rank n - 1", "zero columns", "large", "reversed"
    low = general(m, 3, np.dtype(np.float64)) @ general(3, n, np.dtype(np.float64), 1)
    for name, a in {**{name: matrices[name] for name in names}, "low": low, "equal": np.ones((m, n))}.items():
        q, r = linalg.qr(ctx.from_global(a, root=None), algorithm="grid")
        scale = 1e300 if name == "large" else 1.0
        assert max(qr_ratios(a / scale, collected(q), collected(r) / scale)) <= MOST, name
    a = general(m, n, np.dtype(np.float64))
    a[3, 7], a[5, 9] = np.nan, np.inf
    broken = collected(linalg.qr(ctx.from_global(a, root=None), mode="r", algorithm="grid"))
    assert not np.isfinite(broken).all()


@pytest.mark.parametrize("shape", GRIDS)
def test_all_calls_with_qr_take_a_grid_that_is_faster(
    ctx: pblas.Context, layouts: list[MatrixDescriptor], monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    monkeypatch.setattr("pblas.factor.choose._QUICKER", 1e9)
    monkeypatch.setattr("pblas.factor.choose._LEAST_OF_A_GRID", 1)
    m, n = random.Random(str(shape)).choice([(29, 19), (19, 29)])
    k = min(m, n)
    layouts.append(square_blocks(random.Random(str(shape)), max(m, n), k, shape))
    a, b = general(m, n, np.dtype(np.float64)), general(m, 2, np.dtype(np.float64), 1)
    matrix, right = ctx.from_global(a, root=None), ctx.from_global(b, root=None)
    assert isinstance(linalg.plan_qr(matrix if m > n else matrix.H.copy()).plan, GridQrPlan)
    x, residuals, rank, _ = linalg.lstsq(matrix, right)
    expected, squares, _, _ = np.linalg.lstsq(a, b)
    assert rank == k
    assert np.allclose(collected(x), expected)
    assert np.allclose(residuals, squares)
    basis = collected(linalg.orth(matrix))
    assert np.allclose(basis.T @ basis, np.eye(k))
    u, s, vh = linalg.svd(matrix)
    assert np.allclose((collected(u) * s) @ collected(vh), a)
    # R, V and tau of ScaLAPACK are those of LAPACK
    handle, nb = scalapack.gridinit(COMM, "R", P, 1, timeout=30.0), 4
    (ranges, _) = MatrixDescriptor(m, n, nb, nb, Grid(P, 1, "R")).global_ranges(COMM.rank)
    mine = [i for ends in ranges for i in range(*ends)]
    local, product, tau = np.asfortranarray(a[mine]), np.asfortranarray(a[mine]), np.zeros(k)
    desc = [1, handle, m, n, nb, nb, 0, 0, max(1, len(mine))]
    scalapack.pdgeqrf(m, n, local, 1, 1, desc, tau)
    factored, of_lapack, *_ = scipy.linalg.lapack.dgeqrf(a)
    assert np.allclose(local, factored[mine])
    assert np.allclose(tau, of_lapack)
    if m > n:  # Q of ScaLAPACK stays on the grid too
        scalapack.pdormqr("L", "T", m, n, k, local, 1, 1, desc, tau, product, 1, 1, desc)
        assert np.allclose(product, np.triu(factored)[mine])
        scalapack.pdorgqr(m, n, k, local, 1, 1, desc, tau)
        assert np.allclose(local, scipy.linalg.qr(a, mode="economic")[0][mine])
    scalapack.gridexit(handle)
