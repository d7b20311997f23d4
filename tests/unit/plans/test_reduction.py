"""Plans of reductions: every result has a contributor, a copy counts once, and ranks receive all sent data."""

from __future__ import annotations

from math import prod
from typing import Literal, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pblas import MatrixDescriptor
from pblas.arrays.reduction_plan import Operation, ReductionPlan
from pblas.simulation.hardware import PRESETS, Transport
from tests.common.descriptors import descriptors
from tests.common.plans import check_transfers


@st.composite
def plans(draw: st.DrawFn) -> ReductionPlan:
    desc, operation = draw(descriptors()), draw(st.sampled_from(get_args(Operation)))
    axes: st.SearchStrategy[Literal[0, 1] | None] = st.sampled_from([None, 0, 1])
    axis = draw(axes) if operation not in ("diagonal", "trace", "dot") else None
    dtype = draw(st.sampled_from(["float64", "float16", "complex64"]))
    transport: Transport = draw(st.sampled_from(["shared", "message", "mixed"]))
    return ReductionPlan(desc, operation, axis, dtype, desc.nprocs + draw(st.integers(0, 2)), transport)


@given(plans())
def test_contributors_hold_every_element_once(plan: ReductionPlan) -> None:
    held = np.zeros(plan.a.shape, int)
    for rank in filter(plan.contributes, range(plan.nprocs)):
        rows, columns = plan.a.global_ranges(rank)
        for i0, i1 in rows:
            for j0, j1 in columns:
                held[i0:i1, j0:j1] += 1
    assert (held == 1).all()


@given(plans())
def test_ranks_receive_all_sent_data_and_all_of_it_is_in_the_phases(plan: ReductionPlan) -> None:
    check_transfers(plan)
    most = max(map(plan.received_elements, range(plan.nprocs)))
    assert 0 <= plan.lower_bound <= plan.nresults
    if prod(plan.a.shape):
        assert plan.lower_bound <= most


@given(plans())
def test_the_diagonal_has_each_element_once(plan: ReductionPlan) -> None:
    places = [
        g
        for rank in range(plan.nprocs)
        if plan.contributes(rank)
        for start, stop in plan.diagonal_ranges(rank)
        for g in range(start, stop)
    ]
    assert sorted(places) == list(range(min(plan.a.shape)))


@pytest.mark.parametrize("hardware", PRESETS)
def test_a_reduction_takes_longer_with_more_results(hardware: str) -> None:
    desc = MatrixDescriptor.row_wise(4096, 4096, 8)
    total, columns = (ReductionPlan(desc, "sum", axis, "float64", 8) for axis in (None, 0))
    assert columns.simulate(hardware).seconds > total.simulate(hardware).seconds > 0
    assert "partial results, of 4,096 in all, of each of 8 ranks" in columns.explain()
