"""Plans of singular values: ranks receive all sent data, and phases have all of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pblas
from pblas import MatrixDescriptor, linalg
from pblas.factor.factorization_plan import FactorizationPlan
from pblas.simulation.hardware import PRESETS, Transport
from pblas.simulation.phase import View
from pblas.spectral.composed import ComposedPlan
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


@given(descriptors(), st.data())
def test_composed_plans(desc: MatrixDescriptor, data: st.DataObject) -> None:
    """The bytes and phases are those of the steps; the results have the shapes of the call."""
    nprocs = desc.nprocs + data.draw(st.integers(0, 2))
    planned: list[ComposedPlan] = [
        linalg.plan_pinv(desc, nprocs=nprocs, dtype="complex64").plan,
        linalg.plan_polar(desc, data.draw(st.sampled_from(["right", "left"])), nprocs=nprocs, dtype="complex64").plan,
    ]
    if min(desc.shape):
        k = data.draw(st.integers(1, min(desc.shape)))
        planned.append(linalg.plan_rsvd(desc, k, power=1, oversample=2, nprocs=nprocs, dtype="complex64").plan)
        assert [x.shape for _, x in planned[-1].results] == [(desc.m, k), (k, desc.n)]
    for plan in planned:
        for rank in range(nprocs):
            view = View(rank, nprocs, nprocs, plan.transport)
            parts = [x for _, x in plan.parts]
            assert list(plan.phases(view)) == [phase for x in parts for phase in x.phases(view)]
            assert plan.received_nbytes(rank) == sum(x.received_nbytes(rank) for x in parts)
            assert plan.sent_nbytes(rank) == sum(x.sent_nbytes(rank) for x in parts)
        assert plan.memory_nbytes >= max(x.memory_nbytes for _, x in plan.parts)
        assert plan.over("message").transport == "message"
        assert "step" in plan.explain()


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
    few, more = (
        linalg.plan_rsvd(MatrixDescriptor.row_wise(65536, 256, 4), 20, power=power, dtype="float64").plan
        for power in (1, 3)
    )
    assert more.simulate(hardware).seconds > few.simulate(hardware).seconds > 0
    assert "Q of Y, by TsqrPlan, 4 times" in more.explain()


def test_errors_of_plans() -> None:
    rows = MatrixDescriptor.row_wise(8, 8, 2)
    with pytest.raises(pblas.DTypeError, match="descriptors have no dtype"):
        linalg.plan_svd(rows)
    with pytest.raises(pblas.DTypeError, match="plan_pinv: descriptors have no dtype"):
        linalg.plan_pinv(rows)
    calls: list[Callable[[], object]] = [
        lambda: linalg.plan_rsvd(rows, 9, dtype="float64"),
        lambda: linalg.plan_pinv(rows, rtol=-1.0, dtype="float64"),
        lambda: linalg.plan_polar(rows, "up", dtype="float64"),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(pblas.ArgumentError, match="must be"):
            call()
    with pytest.raises(pblas.ArgumentError, match="without a context"):
        linalg.plan_polar(rows, dtype="float64").execute(rows)  # type: ignore[arg-type]
    with pytest.raises(pblas.ArgumentError, match="full_matrices must be"):
        linalg.plan_svd(rows, dtype="float64", full_matrices="yes")  # type: ignore[arg-type]
