"""The operation of docs/architecture/adding_an_operation.md: its plan, its results, its errors on all ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pblas
from examples.roll import api
from examples.roll.api import roll
from examples.roll.roll_plan import RollPlan
from pblas import Grid, MatrixDescriptor
from pblas.simulation.phase import View
from tests.common.ranks import COMM, Contexts, collected, each_wrong, few, raises_on_all_ranks

pytestmark = [pytest.mark.mpi, few]
SETTINGS = ("shared", "message", "mixed")
P = COMM.size
LAYOUTS = {
    "rows": MatrixDescriptor.row_wise(9, 4, P),
    "blocks": MatrixDescriptor(9, 4, 2, 3, Grid(1, P)),
    "copies": MatrixDescriptor.replicated(9, 4, P),
    "rows on the last rank": MatrixDescriptor(9, 4, 9, 4, Grid(P, 1), rsrc=P - 1, order="C"),
    "no rows": MatrixDescriptor.row_wise(0, 4, P),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_plan_counts_each_element_that_a_rank_lacks(layout: str) -> None:
    desc = LAYOUTS[layout]
    for shift in range(desc.m):
        plan = RollPlan(desc, shift, "float64", P)
        for rank in range(P):
            rows, columns = ({i for bounds in ranges for i in range(*bounds)} for ranges in desc.global_ranges(rank))
            lacked = sum((i - shift) % desc.m not in rows for i in rows)
            assert plan.received_elements(rank) == lacked * len(columns)
            assert sum(phase.nbytes for phase in plan.phases(View(rank, P, P, "message"))) == plan.received_nbytes(rank)
        assert sum(map(plan.sent_elements, range(P))) == sum(map(plan.received_elements, range(P)))
        assert plan.simulate("laptop").received_nbytes == plan.max_received_nbytes
        assert f"9 x 4, shift {shift}" in plan.explain()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_rows_are_rolled(contexts: Contexts, setting: str, layout: str) -> None:
    """By new plans and by kept ones; also rows of a view."""
    desc = LAYOUTS[layout]
    x = np.arange(desc.m * desc.n, dtype=complex).reshape(desc.shape) * (1 + 2j)
    A = contexts[setting].from_global(x, desc)
    for shift in (0, 1, 4, -2, 13, 1):
        assert np.array_equal(collected(roll(A, shift)), np.roll(x, shift, axis=0))
        assert np.array_equal(collected(roll(A[2:7].conj(), shift)), np.roll(x[2:7].conj(), shift, axis=0))


@each_wrong
@pytest.mark.mpi(min_size=2)
def test_a_mistake_of_one_rank_is_an_error_of_all(ctx: pblas.Context, wrong: frozenset[int]) -> None:
    A, is_wrong = ctx.ones(LAYOUTS["rows"]), ctx.rank in wrong
    raises_on_all_ranks(pblas.ArgumentError, "got 1.0", lambda: roll(A, 1.0 if is_wrong else 1))  # type: ignore[arg-type]
    raises_on_all_ranks(pblas.MismatchError, "shift", lambda: roll(A, 2 if is_wrong else 1))
    assert np.array_equal(collected(roll(A, 1)), np.ones((9, 4)))


def test_the_whole_example_is_short() -> None:
    files = Path(api.__file__).parent.glob("*.py")
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files) < 250
