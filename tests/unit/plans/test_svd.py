"""Plans of singular values: ranks receive all sent data, and phases have all of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pblas
from pblas import MatrixDescriptor, linalg
from pblas.factor.factorization_plan import FactorizationPlan
from pblas.simulation.hardware import PRESETS, Transport
from pblas.simulation.phase import View
from pblas.spectral.svd_plan import SvdPlan, choose_svd
from tests.common.descriptors import descriptors


@st.composite
def plans(draw: st.DrawFn) -> SvdPlan:
    desc = draw(descriptors())
    a = draw(st.sampled_from([desc, replace(desc, n=desc.m)]))
    nprocs = desc.nprocs + draw(st.integers(0, 2))
    transport: Transport = draw(st.sampled_from(["shared", "message", "mixed"]))
    plan = choose_svd(
        *(a, draw(st.sampled_from(["float64", "complex64"])), nprocs, transport),
        vectors=draw(st.booleans()),
        full=draw(st.booleans()),
    )
    nb = draw(st.integers(1, 4))
    shape = plan.order + nb, plan.order
    return replace(plan, w=MatrixDescriptor.column_wise(*shape, draw(st.sampled_from([1, nprocs])), nb=nb))


@given(plans())
def test_bytes(plan: SvdPlan) -> None:
    received = [plan.received_nbytes(rank) for rank in range(plan.nprocs)]
    sent = sum(plan.sent_nbytes(rank) for rank in range(plan.nprocs))
    for part in plan.before:
        if isinstance(part, FactorizationPlan):  # of a trapezoid it counts the whole rectangles that are sent
            sent -= sum(part.sent_nbytes(rank) - part.received_nbytes(rank) for rank in range(plan.nprocs))
    assert sum(received) == sent
    for rank in range(plan.nprocs):
        for node in (1, 2, plan.nprocs):
            view = View(rank, plan.nprocs, node, plan.transport)
            assert sum(phase.nbytes for phase in plan.phases(view)) == received[rank]
    assert plan.max_received_nbytes == max(received)


@pytest.mark.parametrize("hardware", PRESETS)
def test_simulation(hardware: str) -> None:
    square, tall, wide = (
        linalg.plan_svd(MatrixDescriptor.row_wise(*shape, 4), dtype="float64", algorithm="blocked")
        for shape in ((4096, 4096), (65536, 256), (256, 65536))
    )
    assert square.plan.simulate(hardware).seconds > tall.plan.simulate(hardware).seconds > 0
    assert "128 panels of 32 columns on 4 ranks" in square.explain()
    assert "TsqrPlan of A first" in tall.explain()
    assert "of A^H first" in wide.explain()


def test_errors_of_plans() -> None:
    rows = MatrixDescriptor.row_wise(8, 8, 2)
    with pytest.raises(pblas.DTypeError, match="descriptors have no dtype"):
        linalg.plan_svd(rows)
    with pytest.raises(pblas.ArgumentError, match="full_matrices must be"):
        linalg.plan_svd(rows, dtype="float64", full_matrices="yes")  # type: ignore[arg-type]
