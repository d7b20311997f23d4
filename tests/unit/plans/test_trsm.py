"""Laws of plans of triangular solves: steps cover the triangle once, elements are counted as they move."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

import pblas
from pblas import Grid, MatrixDescriptor
from pblas.triangular.pipelined_trsm_plan import PipelinedTrsm
from pblas.triangular.trsm_plan import TriangularOperands, TrsmPlan


def some_plan(seed: int) -> TrsmPlan:
    rng = random.Random(seed)
    n, nrhs, nprocs = rng.randint(1, 23), rng.randint(1, 17), rng.randint(1, 6)
    side = rng.choice("LR")

    def desc(rows: int, columns: int) -> MatrixDescriptor:
        nprow = rng.randint(1, nprocs)
        grid = Grid(nprow, rng.randint(1, nprocs // nprow), rng.choice("CR"))  # type: ignore[arg-type]
        sources = rng.randint(-1, grid.nprow - 1), rng.randint(-1, grid.npcol - 1)
        return MatrixDescriptor(rows, columns, rng.randint(1, 9), rng.randint(1, 9), grid, *sources)

    shape = (n, nrhs) if side == "L" else (nrhs, n)
    operands = TriangularOperands(
        *(desc(n, n), desc(*shape), desc(*shape), side, rng.choice("LU"), rng.choice("NTC")),  # type: ignore[arg-type]
        unit=rng.random() < 0.5,
    )
    return TrsmPlan(operands, "float64", nprocs, width=rng.choice([1, 4, 256]))


@pytest.mark.parametrize("seed", range(60))
def test_steps_cover_the_triangle_once_and_in_order(seed: int) -> None:
    """Each element of T is used by one step, and X[j] is known before it is multiplied."""
    plan = some_plan(seed)
    n = plan.order
    used, known = np.zeros((n, n), int), np.zeros(n, bool)
    for step in plan.steps():
        (i0, i1), (j0, j1) = step.rows, step.columns
        if plan.looks_left:
            assert known[j0:j1].all()
        block = np.ones((step.k1 - step.k0,) * 2, int)
        used[step.k0 : step.k1, step.k0 : step.k1] += np.tril(block) if plan.operands.lower else np.triu(block)
        known[step.k0 : step.k1] = True
        assert known[j0:j1].all()
        used[i0:i1, j0:j1] += 1
        assert step.k1 - step.k0 <= plan.width
        assert step.is_alone == (i0 == i1 or j0 == j1)
    whole = np.ones((n, n), int)
    assert np.array_equal(used, np.tril(whole) if plan.operands.lower else np.triu(whole))
    assert known.all()


def pipelined(seed: int) -> PipelinedTrsm:
    plan = some_plan(seed)
    return PipelinedTrsm(plan.operands, plan.dtype, plan.nprocs, width=plan.width)


@pytest.mark.parametrize("seed", range(60))
def test_blocks_follow_the_diagonal_and_move_few_elements(seed: int) -> None:
    """One rank holds each block; a rank receives B, X twice and sums at most: not the triangle."""
    plan = pipelined(seed)
    place, n, lower = plan.triangle, plan.order, plan.operands.lower
    blocks = list(plan.blocks()) if lower else list(plan.blocks())[::-1]
    assert [block.k0 for block in blocks] + [n] == [0, *(block.k1 for block in blocks)]
    received = dict.fromkeys(range(plan.nprocs), 0)
    for block in blocks:
        assert 0 < block.width <= plan.width
        for k in (block.k0, block.k1 - 1):
            assert (place.rows.owner(k), place.columns.owner(k)) == (block.row, block.column)
        used = range(block.k0) if lower else range(block.k1, n)
        assert {place.columns.owner(k) for k in used} <= set(block.terms) <= set(range(place.columns.nprocs))
        received[place.rank(block.row, block.column)] += block.width * len(set(block.terms) - {block.column})
        for r in set(range(place.rows.nprocs)) - {block.row}:
            received[place.rank(r, block.column)] += block.width
    for rank, rows in received.items():
        assert plan.pipelined_rows(rank)[0] == rows
        assert plan.received_elements(rank) <= plan.nrhs * (rows + 2 * n)
    rows_moved = [plan.pipelined_rows(rank) for rank in range(plan.nprocs)]
    assert sum(rows for rows, _ in rows_moved) == sum(rows for _, rows in rows_moved)


@pytest.mark.parametrize("seed", range(60))
def test_elements_of_the_triangle_are_counted_as_the_layout_has_them(seed: int) -> None:
    plan = some_plan(seed)
    triangle, n = plan.operands.triangle, plan.order
    inside = np.tri(n, dtype=bool) if plan.operands.lower else np.tri(n, dtype=bool).T
    for rank in range(plan.nprocs):
        position, count = triangle.coordinates(rank), 0
        if position is not None:
            rows, columns = (
                [g for run in split.runs(p) for g in range(*run)]
                for split, p in ((triangle.rows, position[0]), (triangle.columns, position[1]))
            )
            count = int(inside[np.ix_(rows, columns)].sum())
        assert plan.own_elements(rank) == count


@pytest.mark.parametrize("seed", range(60))
def test_bounds_and_text(seed: int) -> None:
    plan = some_plan(seed)
    assert {plan.solved.coordinates(rank) for rank in range(plan.nprocs)} != {None}
    assert sum(map(plan.is_solver, range(plan.nprocs))) == plan.nsolvers
    for each in (plan, pipelined(seed)):
        check_bounds_and_text(each)


def check_bounds_and_text(plan: TrsmPlan | PipelinedTrsm) -> None:
    assert (
        sum(plan.received_elements(rank) for rank in range(plan.nprocs))
        <= sum(plan.sent_elements(rank) for rank in range(plan.nprocs))
        or plan.operands.triangle.copies > 1
    ), "what one rank receives another one sends"
    assert plan.lower_bound <= max(map(plan.received_elements, range(plan.nprocs)))
    text = plan.explain()
    assert str(plan.max_received_nbytes) in text.replace(",", "")
    for hardware in ("laptop", "fat-tree"):
        simulated = plan.simulate(hardware)
        assert simulated.received_nbytes == plan.max_received_nbytes
        assert simulated.seconds > 0


def test_the_right_hand_sides_stay_where_each_rank_has_a_fair_share_of_whole_columns() -> None:
    n, nprocs = 64, 4
    layouts = {
        "columns": (MatrixDescriptor.column_wise(n, n, nprocs), True),
        "cyclic columns": (MatrixDescriptor.column_wise(n, n, nprocs, nb=3, csrc=2), True),
        "rows": (MatrixDescriptor.row_wise(n, n, nprocs), False),
        "a grid": (MatrixDescriptor(n, n, 8, 8, Grid(2, 2)), False),
        "two ranks of four": (MatrixDescriptor.column_wise(n, n, 2), False),
        "replicated": (MatrixDescriptor.replicated(n, n, nprocs), False),
    }
    for (name, (desc, stays)), side in product(layouts.items(), "LR"):
        b = desc if side == "L" else desc.T
        plan = TrsmPlan(TriangularOperands(desc, b, b, side), "float64", nprocs)  # type: ignore[arg-type]  # L or R
        assert plan.stays == stays, (name, side)
        assert plan.nsolvers == nprocs


def test_alpha_zero_and_empty_matrices_move_nothing() -> None:
    rows = MatrixDescriptor.row_wise(8, 8, 4)
    for b, alpha in ((rows, 0.0), (MatrixDescriptor.row_wise(8, 0, 4), 1.0)):
        plan = pblas.blas.plan_trsm(rows, b, alpha=alpha, dtype="float64").plan
        assert plan.max_received_nbytes == plan.workspace_nbytes == plan.flops == 0
        assert "nothing" in plan.explain()


def test_planning_from_descriptors_needs_no_context() -> None:
    desc = MatrixDescriptor.row_wise(8, 8, 4)
    planned = pblas.blas.plan_trsm(desc, desc, side="R", uplo="U", trans="T", diag="U", dtype="complex64", nprocs=5)
    assert planned.plan.nprocs == 5
    assert planned.plan.flops == 4 * 8**3
    with pytest.raises(pblas.DTypeError, match="pass dtype"):
        pblas.blas.plan_trsm(desc, desc)
