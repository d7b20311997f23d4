"""Laws of products with a triangle: rectangles cover it, and plans receive no more than the product's."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from pblas import Grid, MatrixDescriptor, blas, plan_matmul
from pblas.layouts.rectangles import area, rectangles
from pblas.layouts.split import Split
from pblas.simulation.hardware import CORE
from pblas.simulation.simulate import predict
from pblas.symmetric.structured import square
from pblas.symmetric.structured_plan import RankUpdate, TriangularProduct


def some_split(rng: random.Random, n: int) -> Split:
    nprocs = rng.choice([1, 2, 3])
    return Split(n, rng.choice([1, 2, 7, 64, 400]), nprocs, rng.randrange(nprocs))


@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("uplo", ["L", "U"])
def test_rectangles_cover_the_triangle_once(uplo: str, squares: bool) -> None:
    rng = random.Random(uplo)
    for _ in range(60):
        n = rng.choice([1, 2, 5, 70, 130, 200])
        rows, columns = some_split(rng, n), some_split(rng, n)
        r, c = rng.randrange(rows.nprocs), rng.randrange(columns.nprocs)
        covered: Counter[tuple[int, int]] = Counter()
        across: Counter[int] = Counter()
        options: Any = {"squares": squares, "leaf": rng.choice([16, 64, 512])}
        for x in rectangles(rows, r, columns, c, "L" if uplo == "L" else "U", **options):
            covered.update((i, j) for i in range(x.r0, x.r1) for j in range(x.c0, x.c1))
            if x.inside:
                corner = (x.r0, x.c1 - 1) if uplo == "L" else (x.r1 - 1, x.c0)
                i, j = rows.global_from_local(corner[0], r), columns.global_from_local(corner[1], c)
                assert i >= j if uplo == "L" else i <= j
            else:
                across.update(range(x.c0, x.c1))
            assert not x.square or squares
            if x.square:
                above = [rows.global_from_local(i, r) for i in range(x.r0, x.r1)]
                assert above == [columns.global_from_local(j, c) for j in range(x.c0, x.c1)]
        triangle = {
            (i, j)
            for i in range(rows.count(r))
            for j in range(columns.count(c))
            if (rows.global_from_local(i, r) - columns.global_from_local(j, c)) * (1 if uplo == "L" else -1) >= 0
        }
        assert triangle <= covered.keys()
        assert area(rows, r, columns, c, "L" if uplo == "L" else "U") == len(triangle)
        assert set(covered.values()) <= {1}
        assert set(across.values()) <= {1}


@pytest.mark.parametrize("grid", [Grid(1, 2), Grid(2, 1), Grid(2, 2), Grid(3, 2), Grid(2, 3)])
def test_plans_take_less_time_than_the_product(grid: Grid) -> None:
    desc = MatrixDescriptor(1024, 1024, 64, 64, grid)
    for trans, planned in (
        ("T", blas.plan_syrk(desc, out=desc, dtype="float64")),
        ("N", blas.plan_trmm(desc, desc, dtype="float64")),
    ):
        plan = planned.plan
        assert isinstance(plan, RankUpdate | TriangularProduct)
        product = plan_matmul(desc, desc, out=desc, transb="T" if trans == "T" else "N", dtype="float64").plan
        assert predict(plan.over("message"), CORE) < predict(product.over("message"), CORE)
        assert plan.flops < 0.51 * product.flops
        assert plan.busiest_multiplies <= 0.6 * product.busiest_multiplies


@pytest.mark.parametrize("rsrc", [-1, 1])
def test_a_new_result_of_a_rank_update_has_rows_in_blocks_of_a(rsrc: int) -> None:
    """Of an A whose rows all ranks have, each process row gets one block."""
    result = square(MatrixDescriptor(6, 4, 1 if rsrc < 0 else 2, 2, Grid(2, 2), rsrc, 0))
    assert (result.shape, result.mb, result.rsrc) == ((6, 6), 3 if rsrc < 0 else 2, max(rsrc, 0))
