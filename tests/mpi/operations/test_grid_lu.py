"""LU on P x Q grids: any grid, blocks and sources; pivots; INFO; bytes of the plan; one result on all transports."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pytest
import scipy.linalg

import pblas
from pblas import Grid, MatrixDescriptor, linalg, scalapack
from pblas.factor.grid_lu_plan import GridLuPlan, Pivoting
from tests.common.factors import MOST, NAMES, forget_plans, general, lu_ratio, solve_on_grids, solve_ratio
from tests.common.gauge import applied, dtype_of
from tests.common.ranks import COMM, Contexts, collected, same_on_all_ranks
from tests.mpi.matrices.arrays import some_descriptor

pytestmark = pytest.mark.mpi
SETTINGS = ("shared", "message", "mixed")
P = COMM.size
GRIDS = [(p, q) for p in range(1, P + 1) for q in range(1, P + 1) if p * q == P or (P == 3 and (p, q) == (2, 1))]


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[MatrixDescriptor]]:
    """A list whose last layout is that of W, whatever A has."""
    forced: list[MatrixDescriptor] = []
    monkeypatch.setattr("pblas.factor.choose.square_blocks", lambda *_, **__: iter([(forced[-1], "a test")]))
    yield forced
    forget_plans()


def square_blocks(rng: random.Random, m: int, n: int, shape: tuple[int, int], widest: int = 6) -> MatrixDescriptor:
    """A layout in square blocks, whose first one may be smaller."""
    forget_plans()
    nb, grid = rng.randint(1, widest), Grid(*shape, rng.choice("RC"))  # type: ignore[arg-type]
    inb = rng.choice([None, rng.randint(1, nb)])
    sources = rng.randrange(shape[0]), rng.randrange(shape[1])
    return MatrixDescriptor(m, n, nb, nb, grid, *sources, imb=inb, inb=inb)


@pytest.mark.parametrize("pivoting", get_args(Pivoting))
@pytest.mark.parametrize("shape", GRIDS)
def test_the_factor_on_any_grid(
    contexts: Contexts,
    layouts: list[MatrixDescriptor],
    monkeypatch: pytest.MonkeyPatch,
    shape: tuple[int, int],
    pivoting: Pivoting,
) -> None:
    """Residuals of factors, solutions and inverses, pivots of LAPACK, and the same bits on all transports."""
    rng, f8 = random.Random(f"{shape} {pivoting}"), "float64"
    sizes = [(rng.randint(0, 9),) * 2, (41, 41), rng.choice([(17, 29), (29, 17), (0, 3)])]
    for name, (m, n) in zip((rng.choice(NAMES), rng.choice(["complex64", "complex128"]), f8), sizes, strict=True):
        layouts.append(square_blocks(rng, m, n, shape, rng.choice([6, 45])))
        solve_on_grids(monkeypatch, always=m != 41 or pivoting == "partial")
        dtype, results = dtype_of(name), set()
        a, b = general(m, n, dtype, n), general(m, 2, dtype, n + 1)
        desc, of_b = some_descriptor(rng, m, n, P), some_descriptor(rng, m, 2, P)
        for ctx in contexts.values():
            factor = linalg.lu_factor(ctx.from_global(a, desc, None), algorithm="grid", pivoting=pivoting)
            parts = [collected(factor.lu())]
            if m == n:
                matrix_b = ctx.from_global(b, of_b, None)
                parts += [collected(factor.solve(matrix_b)), collected(factor.solve(matrix_b, "C"))]
                parts += [collected(factor.inv()), np.asarray(factor.solve(b, "T"))]
                assert tuple(factor.slogdet()) == pytest.approx(tuple(np.linalg.slogdet(a)), abs=1e-3)
            pivots = same_on_all_ranks(factor.pivots.tolist())
            results.add((*(part.tobytes() for part in parts), *pivots))
        assert lu_ratio(a, parts[0], np.array(pivots, int)) <= MOST
        assert all(i <= p < m for i, p in enumerate(pivots))
        if pivoting == "partial":
            assert pivots == (scipy.linalg.lu_factor(a)[1].tolist() if a.size else [])  # no ties: pivots are unique
        for trans, x, right in zip("NCNT", parts[1:], (b, b, np.eye(n), b), strict=False):
            assert solve_ratio(applied(trans, a), x, right) <= MOST
        assert len(results) == 1


@pytest.mark.parametrize("shape", GRIDS)
def test_a_matrix_in_square_blocks_is_factored_where_it_is(
    contexts: Contexts, layouts: list[MatrixDescriptor], shape: tuple[int, int]
) -> None:
    """In place with overwrite_a; a rank gets the elements that the plan says, where pivots are on all process rows."""
    rng = random.Random(str(shape))
    desc = square_blocks(rng, 96, 96, shape)
    layouts.append(desc)
    a = general(96, 96, np.dtype(np.complex128))
    for ctx in contexts.values():
        matrix, backend = ctx.from_global(a, desc, None), ctx.runtime.backend
        with linalg.plan_lu(matrix, algorithm="grid") as planned:
            norm = matrix.norm(1)
            before = backend.read_nbytes + backend.channel.received_nbytes
            factor = planned.execute(matrix)
            received = backend.read_nbytes + backend.channel.received_nbytes - before
            plan: Any = planned.plan
            # rows of pivot searches and headers come in addition
            searches = 96 * 2 * (16 + 3 * 16 * desc.nb) if shape[0] > 1 else 0
            assert 0.7 * plan.received_nbytes(ctx.rank) - 1000 <= received
            assert received <= 1.3 * plan.received_nbytes(ctx.rank) + searches + 10000
            assert "elements" in planned.explain()
            assert norm == matrix.norm(1)
        taken = linalg.lu_factor(matrix, overwrite_a=True, algorithm="grid")
        assert collected(matrix).tobytes() == collected(taken.lu()).tobytes() == collected(factor.lu()).tobytes()


@pytest.mark.parametrize("pivoting", get_args(Pivoting))
@pytest.mark.parametrize("shape", GRIDS)
def test_a_matrix_of_one_rank_may_be_overwritten(
    ctx: pblas.Context, layouts: list[MatrixDescriptor], shape: tuple[int, int], pivoting: Pivoting
) -> None:
    """The layout of W has the same elements on each rank, but other ranks have rows or columns without elements."""
    layouts.append(MatrixDescriptor(7, 7, 8, 8, Grid(*shape)))
    a = general(7, 7, np.dtype(np.float64))
    matrix = ctx.from_global(a, MatrixDescriptor(7, 7, 8, 8, Grid(1, 1)), None)
    factor = linalg.lu_factor(matrix, overwrite_a=True, algorithm="grid", pivoting=pivoting)
    assert lu_ratio(a, collected(factor.lu()), factor.pivots) <= MOST


@pytest.mark.parametrize("pivoting", get_args(Pivoting))
@pytest.mark.parametrize("shape", GRIDS)
def test_info_is_the_first_zero_pivot(
    contexts: Contexts, layouts: list[MatrixDescriptor], shape: tuple[int, int], pivoting: Pivoting
) -> None:
    rng, n = random.Random(str(shape)), 23
    layouts.append(square_blocks(rng, n, n, shape))
    ctx = contexts[rng.choice(SETTINGS)]
    for k in sorted({1, n, rng.randint(2, 12), rng.randint(13, n)}):
        a = np.triu(general(n, n, np.dtype(np.float64), k))
        a[k - 1, k - 1] = a[-1, -1] = 0  # the first one counts
        factor = linalg.lu_factor(ctx.from_global(a, root=None), algorithm="grid", pivoting=pivoting)
        assert same_on_all_ranks(factor.info) == k
        assert lu_ratio(a, collected(factor.lu()), factor.pivots) <= MOST
        assert factor.det() == 0
        with pytest.raises(pblas.SingularMatrixError) as caught:
            factor.solve(np.ones(n))
        assert same_on_all_ranks(caught.value.info) == k
        del caught  # its frames keep the matrix alive


@pytest.mark.parametrize("shape", GRIDS)
def test_special_matrices(ctx: pblas.Context, layouts: list[MatrixDescriptor], shape: tuple[int, int]) -> None:
    """Equal elements have the first pivot; low ranks, infinities and NaN end no call."""
    rng, n = random.Random(str(shape)), 24
    layouts.append(square_blocks(rng, n, n, shape))
    growing = np.eye(n) - np.tril(np.ones((n, n)), -1)
    growing[:, -1] = 1
    low = general(n, 3, np.dtype(np.float64)) @ general(3, n, np.dtype(np.float64), 1)
    for a in (growing, np.eye(n)[::-1], np.zeros((n, n)), np.ones((n, n)), low, np.kron(np.eye(3), np.ones((8, 8)))):
        for pivoting in get_args(Pivoting):
            factor = linalg.lu_factor(ctx.from_global(a, root=None), algorithm="grid", pivoting=pivoting)
            assert lu_ratio(a, collected(factor.lu()), factor.pivots) <= MOST
            if pivoting == "partial" and a is not low:
                assert factor.pivots.tolist() == scipy.linalg.lapack.dgetrf(a)[1].tolist()
    for value in (np.nan, np.inf):
        a = general(n, n, np.dtype(np.float64))
        a[3, 7] = value
        factor = linalg.lu_factor(ctx.from_global(a, root=None), algorithm="grid")
        assert not np.isfinite(collected(factor.lu())).all()


@pytest.mark.parametrize("shape", GRIDS)
def test_all_calls_with_lu_take_a_grid_that_is_faster(
    ctx: pblas.Context, layouts: list[MatrixDescriptor], monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    monkeypatch.setattr("pblas.factor.choose._QUICKER", 1e9)
    monkeypatch.setattr("pblas.factor.choose._LEAST_OF_A_GRID", 1)
    n = 19
    layouts.append(square_blocks(random.Random(str(shape)), n, n, shape))
    a, b = general(n, n, np.dtype(np.float64)), general(n, 2, np.dtype(np.float64), 1)
    matrix, right = ctx.from_global(a, root=None), ctx.from_global(b, root=None)
    assert isinstance(linalg.plan_lu(matrix).plan, GridLuPlan)
    assert linalg.lu_factor(matrix).pivots.tolist() == scipy.linalg.lu_factor(a)[1].tolist()  # whatever is faster
    assert solve_ratio(a, collected(linalg.solve(matrix, right)), b) <= MOST
    assert solve_ratio(a, collected(linalg.inv(matrix)), np.eye(n)) <= MOST
    assert linalg.slogdet(matrix).logabsdet == pytest.approx(np.linalg.slogdet(a)[1])
    assert linalg.det(matrix) == pytest.approx(np.linalg.det(a))
    handle = scalapack.gridinit(COMM, "R", P, 1, timeout=30.0)
    (ranges, _), nb = MatrixDescriptor(n, n, 4, 4, Grid(P, 1, "R")).global_ranges(COMM.rank), 4
    mine = [i for ends in ranges for i in range(*ends)]
    local, x = np.asfortranarray(a[mine]), np.asfortranarray(b[mine])
    ipiv, lld = np.zeros(len(mine) + nb, np.intc), max(1, len(mine))
    desc, of_x = ([1, handle, n, columns, nb, nb, 0, 0, lld] for columns in (n, 2))
    assert scalapack.pdgetrf(n, n, local, 1, 1, desc, ipiv) == 0
    scalapack.pdgetrs("N", n, 2, local, 1, 1, desc, ipiv, x, 1, 1, of_x)
    lu, pivots = scipy.linalg.lu_factor(a)
    assert np.allclose(local, lu[mine])
    assert ipiv[: len(mine)].tolist() == [pivots[i] + 1 for i in mine]
    assert np.allclose(x, np.linalg.solve(a, b)[mine])
    scalapack.gridexit(handle)


def test_wrong_arguments(ctx: pblas.Context) -> None:
    matrix: Any = ctx.eye(6)
    wrong: Any = "none"
    for call in (linalg.lu_factor, linalg.plan_lu):
        with pytest.raises(pblas.ArgumentError, match="pivoting must be one of 'partial', 'tournament', got 'none'"):
            call(matrix, pivoting=wrong)
