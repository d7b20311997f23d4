"""Cholesky on P x Q grids: any grid, blocks and sources; INFO; the bytes of the plan; one result on all transports."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import pblas
from pblas import Grid, MatrixDescriptor, linalg
from pblas.factor.grid_cholesky_plan import GridCholeskyPlan
from pblas.factor.grid_substitution_plan import GridSubstitutionPlan
from pblas.factor.with_factor_plan import Triangle
from tests.common.factors import MOST, NAMES, cholesky_ratio, forget_plans, positive, solve_on_grids, solve_ratio
from tests.common.gauge import dtype_of
from tests.common.ranks import COMM, Contexts, collected, same_on_all_ranks
from tests.mpi.matrices.arrays import some_descriptor

pytestmark = pytest.mark.mpi
SETTINGS = ("shared", "message", "mixed")
P = COMM.size
GRIDS = [(p, q) for p in range(1, P + 1) for q in range(1, P + 1) if p * q <= P and (p * q == P or P == 3)]


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[MatrixDescriptor]]:
    """A list whose last layout is that of W, whatever A has."""
    forced: list[MatrixDescriptor] = []
    monkeypatch.setattr("pblas.factor.choose.square_blocks", lambda *_, **__: iter([(forced[-1], "a test")]))
    yield forced
    forget_plans()


def square_blocks(rng: random.Random, n: int, shape: tuple[int, int]) -> MatrixDescriptor:
    """A layout of an n x n matrix in square blocks, whose first one may be smaller."""
    nb, grid = rng.randint(1, 6), Grid(*shape, rng.choice("RC"))  # type: ignore[arg-type]
    inb = rng.choice([None, rng.randint(1, nb)])
    sources = rng.randrange(shape[0]), rng.randrange(shape[1])
    return MatrixDescriptor(n, n, nb, nb, grid, *sources, imb=inb, inb=inb)


def received_nbytes(ctx: pblas.Context) -> int:
    """Bytes that this rank has received in messages, or read in the memory of other ranks."""
    backend = ctx.runtime.backend
    return backend.read_nbytes + backend.channel.received_nbytes


@pytest.mark.parametrize("shape", GRIDS)
def test_the_factor_on_any_grid(
    contexts: Contexts, layouts: list[MatrixDescriptor], monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    """Residuals of factors and solutions, and the same bits on all transports."""
    rng = random.Random(str(shape))
    for name, n in zip(NAMES, rng.sample([rng.choice([0, 1]), rng.randint(2, 9), 23, 41], 4), strict=True):
        forget_plans()
        solve_on_grids(monkeypatch, always=n != 23)
        layouts.append(square_blocks(rng, n, shape))
        dtype, upper, results = dtype_of(name), rng.random() < 0.5, set()
        a, b = positive(n, dtype, n), positive(n, dtype, n + 1)[:, :3]
        desc, of_b = some_descriptor(rng, n, n, P), some_descriptor(rng, n, b.shape[1], P)
        poisoned = np.where(np.triu(np.ones((n, n), bool)) if upper else np.tril(np.ones((n, n), bool)), a, np.nan)
        for ctx in contexts.values():
            matrix = ctx.from_global(poisoned.astype(dtype), desc, None)
            factor = linalg.cholesky(matrix, upper=upper, algorithm="grid")
            l = collected(factor)
            solver = linalg.cho_factor(matrix, not upper, algorithm="grid")
            x = collected(solver.solve(ctx.from_global(b, of_b, None)))
            inverse = collected(solver.inv())
            results.add((l.tobytes(), x.tobytes(), inverse.tobytes(), solver.solve(np.array(b)).tobytes()))
            assert factor.desc.same_distribution(matrix.desc)
        assert (np.tril(l, -1) == 0).all() if upper else (np.triu(l, 1) == 0).all()
        assert cholesky_ratio(a, l.conj().T if upper else l) <= MOST
        assert max(solve_ratio(a, x, b), solve_ratio(a, inverse, np.eye(n))) <= MOST
        assert solver.logdet() == pytest.approx(np.linalg.slogdet(a)[1], rel=1e-4, abs=1e-4)
        assert len(results) == 1


@pytest.mark.parametrize("shape", GRIDS)
def test_a_matrix_in_square_blocks_is_factored_where_it_is(
    contexts: Contexts, layouts: list[MatrixDescriptor], monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    """In place with overwrite_a; a rank gets the elements that the plan says, in a solve with the factor too."""
    rng, dtype = random.Random(str(shape)), np.dtype(np.complex64)
    desc = square_blocks(rng, 37, shape)
    layouts.append(desc)
    solve_on_grids(monkeypatch, always=True)
    a, triangles = positive(37, dtype), (Triangle("L"), Triangle("L", "C"))
    for ctx in contexts.values():
        matrix = ctx.from_global(a, desc, None)
        with linalg.plan_cholesky(matrix, algorithm="grid") as planned:
            before = received_nbytes(ctx)
            factor = planned.execute(matrix)
            assert received_nbytes(ctx) - before == planned.plan.received_nbytes(ctx.rank)
            assert "elements" in planned.explain()
        solver, before = linalg.cho_factor(matrix, algorithm="grid"), received_nbytes(ctx)
        solver.solve(matrix, check=False)
        if shape[0] > 1:
            solve = GridSubstitutionPlan(desc, desc, "complex64", P, planned.plan.transport, triangles=triangles)
            assert received_nbytes(ctx) - before == solve.received_nbytes(ctx.rank)
        taken = linalg.cholesky(matrix, overwrite_a=True, algorithm="grid")
        assert taken is matrix
        assert collected(taken).tobytes() == collected(factor).tobytes()
        assert cholesky_ratio(a, collected(taken)) <= MOST


@pytest.mark.parametrize("bad", [-1.0, 0.0, np.nan])
@pytest.mark.parametrize("shape", GRIDS)
def test_info_is_the_first_bad_pivot(
    contexts: Contexts, layouts: list[MatrixDescriptor], shape: tuple[int, int], bad: float
) -> None:
    rng, n = random.Random(str(shape)), 23
    layouts.append(square_blocks(rng, n, shape))
    for ctx in contexts.values():
        for k in sorted({1, n, rng.randint(2, 12), rng.randint(13, n)}):
            a = positive(n, np.dtype(np.float64), k)
            a[k - 1, k - 1], a[-1, -1] = bad, -1e9  # the first one counts
            if k == n:
                a[-1, -1] = bad
            matrix = ctx.from_global(a, root=None)
            with pytest.raises(pblas.NotPositiveDefiniteError) as caught:
                linalg.cholesky(matrix, algorithm="grid")
            assert same_on_all_ranks(caught.value.info) == k
            assert linalg.cho_factor(matrix, algorithm="grid", check=False).info == k
            del caught  # its frames keep the matrix alive


@pytest.mark.parametrize("lookahead", [2, 3])
def test_more_panels_of_lookahead(
    contexts: Contexts, layouts: list[MatrixDescriptor], monkeypatch: pytest.MonkeyPatch, lookahead: int
) -> None:
    monkeypatch.setattr("pblas.factor.choose.GridCholeskyPlan", partial(GridCholeskyPlan, lookahead=lookahead))
    layouts.append(square_blocks(random.Random(lookahead), 41, GRIDS[len(GRIDS) // 2]))
    a = positive(41, np.dtype(np.float64))
    factors = [collected(linalg.cholesky(ctx.from_global(a, root=None), algorithm="grid")) for ctx in contexts.values()]
    assert cholesky_ratio(a, factors[0]) <= MOST
    assert len({factor.tobytes() for factor in factors}) == 1


def test_algorithms(ctx: pblas.Context) -> None:
    matrix: Any = ctx.eye(6)
    assert collected(linalg.cholesky(matrix, algorithm="grid")).tolist() == np.eye(6).tolist()
    with pytest.raises(pblas.ArgumentError, match="'grid'"):
        linalg.cholesky(matrix, algorithm="tsqr")  # type: ignore[arg-type]
