"""Laws of the plan of an elementwise operation: what moves, how many bytes, and the layout of the result."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pblas import ArgumentError, DescriptorError, DTypeError, Grid, MatrixDescriptor, plan_elementwise
from pblas.arrays.elementwise_arguments import spread
from pblas.arrays.elementwise_plan import ElementwiseOperand, ElementwisePlan
from pblas.redistribution.redistribution_plan import RedistributionPlan


def some_descriptor(rng: random.Random, m: int, n: int, nprocs: int) -> MatrixDescriptor:
    nprow = rng.randint(1, nprocs)
    grid = Grid(nprow, rng.randint(1, nprocs // nprow), rng.choice(["C", "R"]))
    sources = rng.randint(-1, grid.nprow - 1), rng.randint(-1, grid.npcol - 1)
    return MatrixDescriptor(m, n, rng.choice([1, 2, 5]), rng.choice([1, 3, 40]), grid, *sources)


def test_bytes_are_those_of_the_redistributions() -> None:
    rng = random.Random(0)
    for _ in range(100):
        m, n, p = rng.choice([0, 1, 7, 9]), rng.choice([1, 8]), rng.randint(1, 6)
        a, b = some_descriptor(rng, m, n, p), some_descriptor(rng, m, n, p)
        plan = plan_elementwise("x * 2 + y", x=a, y=b, dtype="float32", nprocs=6).plan
        moved = [RedistributionPlan(x.desc, plan.out, "float32", 6) for x in plan.moved]
        for rank in range(6):
            assert plan.received_nbytes(rank) == sum(other.received_nbytes(rank) for other in moved)
        assert plan.max_received_nbytes == max(map(plan.received_nbytes, range(6)))
        assert plan.lower_bound == max((other.lower_bound for other in moved), default=0)
        assert plan.max_received_nbytes >= 4 * plan.lower_bound
        assert (not plan.moved) == all(x.desc.same_distribution(plan.out) for x in plan.operands)


def test_a_broadcast_operand_is_where_the_result_needs_it() -> None:
    """Element (i, 0) of a column is on each rank that holds an element of row i of the result."""
    rng = random.Random(1)
    for _ in range(50):
        target = some_descriptor(rng, 9, 8, 6)
        for shape in ((9, 8), (9, 1), (1, 8), (1, 1)):
            desc = spread(target, shape)
            assert desc.shape == shape
            for rank in range(target.nprocs):
                rows, columns = target.global_ranges(rank)
                own_rows, own_columns = desc.global_ranges(rank)
                assert own_rows == (rows if shape[0] == 9 else [(0, 1)])
                assert own_columns == (columns if shape[1] == 8 else [(0, 1)])


def test_the_layout_of_the_result() -> None:
    rows, columns, everywhere = (
        MatrixDescriptor.row_wise(8, 6, 4),
        MatrixDescriptor.column_wise(8, 6, 4),
        MatrixDescriptor.replicated(8, 6, 4),
    )
    column, row = MatrixDescriptor.row_wise(8, 1, 4), MatrixDescriptor.column_wise(1, 6, 4)

    def result(**operands: Any) -> MatrixDescriptor:
        return plan_elementwise(" + ".join(operands), dtype="float64", **operands).plan.out

    assert result(x=rows, y=columns) == rows
    assert result(x=everywhere, y=columns) == columns
    assert result(x=column, y=columns) == columns
    assert result(x=everywhere, y=everywhere) == everywhere
    assert result(x=column, y=row).same_distribution(rows)
    assert result(x=row, y=column).same_distribution(columns)
    assert plan_elementwise("x + y", x=everywhere, y=rows, dtype="float64").plan.max_received_nbytes == 0


def test_dtypes_of_operands_count_in_bytes() -> None:
    rows, columns = MatrixDescriptor.row_wise(8, 8, 4), MatrixDescriptor.column_wise(8, 8, 4)
    operands = tuple(
        ElementwiseOperand(name, desc, dtype, rows)
        for name, desc, dtype in (("x", rows, "float64"), ("y", columns, "float32"), ("z", columns, "complex128"))
    )
    plan = ElementwisePlan("x + y + z", operands, (), rows, "complex128", 4)
    assert plan.received_nbytes(1) == 12 * (4 + 16)
    assert plan.lower_bound * plan.itemsize == 12 * 16
    assert plan.sent_elements(1) == 24
    assert plan.operands_nbytes(1) == 16 * (8 + 4 + 16 + 16)


def test_explain_names_what_moves() -> None:
    rows, columns = MatrixDescriptor.row_wise(8, 8, 4), MatrixDescriptor.column_wise(8, 8, 4)
    text = plan_elementwise("x + y", x=rows, y=columns, dtype="float64").explain()
    for part in (
        "x + y, 8 x 8, float64, on 4 ranks",
        "redistributed to",
        "y: 96 bytes",
        "1.00 x the lower bound of any plan, 96",
    ):
        assert part in text
    same = plan_elementwise("x + y", x=rows, y=rows, dtype="float64").explain()
    assert "nothing" in same
    assert "redistributed" not in same


def test_simulation() -> None:
    rows, columns = MatrixDescriptor.row_wise(512, 512, 8), MatrixDescriptor.column_wise(512, 512, 8)
    plan = plan_elementwise("x + y", x=rows, y=columns, dtype="float64").plan
    for hardware in ("laptop", "fat-tree"):
        simulation = plan.simulate(hardware)
        assert simulation.received_nbytes == plan.max_received_nbytes
        assert simulation.seconds > 0


def test_wrong_arguments() -> None:
    rows = MatrixDescriptor.row_wise(4, 4, 2)
    with pytest.raises(DTypeError, match="pass dtype"):
        plan_elementwise("x", x=rows)
    with pytest.raises(ArgumentError, match="no operand y"):
        plan_elementwise("x + y", x=rows, dtype="float64")
    with pytest.raises(ArgumentError, match="x must be a DistMatrix"):
        plan_elementwise("x + 1", x=1.0)
    with pytest.raises(ArgumentError, match="nprocs must be an integer >= 2"):
        plan_elementwise("x", x=rows, dtype="float64", nprocs=1)
    with pytest.raises(ArgumentError, match="must be a MatrixDescriptor or a number"):
        plan_elementwise("x + y", x=rows, y=[1.0], dtype="float64")
    with pytest.raises(DescriptorError, match="the shapes do not fit: x is 4 x 4, y is 5 x 4"):
        plan_elementwise("x + y", x=rows, y=MatrixDescriptor.row_wise(5, 4, 2), dtype="float64")
