"""Phases of a reduction: each rank reads its elements once, then all partial results arrive in one step."""

from __future__ import annotations

from collections.abc import Iterator

from pblas.plans.reduction import ReductionPlan
from pblas.simulation.phase import Phase, Traffic, View


def reduction(plan: ReductionPlan, view: View) -> Iterator[Phase]:
    """One step without a GEMM."""
    traffic = Traffic()
    for peer in range(plan.nprocs):
        traffic += view.traffic(peer, plan.itemsize * plan.components * plan.count(peer))
    yield Phase(1, before=traffic, copied=plan.operands_nbytes(view.rank))
