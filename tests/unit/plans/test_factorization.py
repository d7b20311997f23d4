"""Plans of factorizations: panels cover the columns, ranks receive all sent data, phases have all of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.planner.choose_factorization import choose_factorization
from pblas.plans.base import Plan, Transport
from pblas.plans.factorization import FactorizationPlan, panels
from pblas.plans.substitution import SubstitutionPlan, Sweep
from pblas.simulation.hardware import PRESETS
from pblas.simulation.phases import View, phases_of
from tests.common.descriptors import descriptors

TRANSPORTS: tuple[Transport, ...] = ("shared", "message", "mixed")


@st.composite
def plans(draw: st.DrawFn) -> FactorizationPlan:
    desc, kind = draw(descriptors()), draw(st.sampled_from(["cholesky", "lu"]))
    if kind == "cholesky":
        desc = replace(desc, n=desc.m)
    nprocs = desc.nprocs + draw(st.integers(0, 2))
    uplo = draw(st.sampled_from(["L", "U"])) if kind == "cholesky" else "L"
    returns = kind == "cholesky" and draw(st.booleans())
    plan = choose_factorization(
        kind,  # type: ignore[arg-type]
        desc,
        draw(st.sampled_from(["float64", "complex64"])),
        nprocs,
        draw(st.sampled_from(TRANSPORTS)),
        returns=returns,
        uplo=uplo,  # type: ignore[arg-type]
    )
    ranks, nb = draw(st.integers(1, nprocs)), draw(st.integers(1, 4))
    return replace(plan, w=MatrixDescriptor.column_wise(*plan.w.shape, ranks, nb=nb))


@given(plans())
def test_panels_cover_the_columns_once(plan: FactorizationPlan) -> None:
    columns = [j for panel in panels(plan.w) for j in range(panel.start, panel.stop)]
    assert columns == list(range(plan.w.n))
    for panel in panels(plan.w):
        assert plan.w.global_index(panel.owner, 0, panel.j_loc) == (0, panel.start) if plan.w.m else True


def check_traffic(plan: Plan) -> None:
    """All ranks together receive no more than is sent, the phases have it, and the bound holds."""
    ranks = range(plan.nprocs)
    received = list(map(plan.received_elements, ranks))
    assert sum(received) <= sum(map(plan.sent_elements, ranks))
    for rank in ranks:
        phases = list(phases_of(plan, View(rank, plan.nprocs, 2, plan.transport)))
        assert sum(phase.nbytes for phase in phases) == plan.received_nbytes(rank)
    assert 0 <= plan.lower_bound <= max(received)
    assert plan.extreme_ranks() <= set(ranks)
    assert plan.flops >= 0
    assert plan.name in plan.explain()


@given(plans())
def test_traffic_of_a_factorization(plan: FactorizationPlan) -> None:
    check_traffic(plan)


@given(plans(), descriptors(), st.booleans())
def test_traffic_of_a_substitution(plan: FactorizationPlan, b: MatrixDescriptor, lu: bool) -> None:
    w = plan.w if plan.w.m == plan.w.n else MatrixDescriptor.column_wise(b.m, b.m, 2, nb=2)
    sweeps = (Sweep("L", unit=True), Sweep("U")) if lu else (Sweep("L"), Sweep("L", "C"))
    check_traffic(SubstitutionPlan(w, replace(b, m=w.m), sweeps, "float64", max(b.nprocs, w.nprocs), plan.transport))


@pytest.mark.parametrize("hardware", list(PRESETS))
@pytest.mark.parametrize("kind", ["cholesky", "lu"])
def test_simulated_time_grows_with_the_matrix(hardware: str, kind: str) -> None:
    times = []
    for n in (512, 1024, 4096):
        desc = MatrixDescriptor.row_wise(n, n, 4)
        times.append(choose_factorization(kind, desc, "float64", 4, "shared").simulate(hardware).seconds)  # type: ignore[arg-type]
    assert times == sorted(times)
    assert times[0] > 0


def test_block_columns_are_factored_where_they_are() -> None:
    cyclic = MatrixDescriptor.column_wise(2048, 2048, 4, nb=64, csrc=2)
    plan = choose_factorization("lu", cyclic, "float64", 4, "shared")
    assert plan.copy.received_nbytes(1) == 0
    assert plan.w == cyclic
    for other in (MatrixDescriptor.column_wise(2048, 2048, 4), MatrixDescriptor.column_wise(2048, 2048, 4, nb=8)):
        assert choose_factorization("lu", other, "float64", 4, "shared").w.nb == 96
