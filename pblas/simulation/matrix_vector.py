"""Phases of a matrix times a vector: each rank reads its elements once; the vectors arrive in one step."""

from __future__ import annotations

from collections.abc import Iterator

from pblas.plans.matrix_vector import MatrixVectorPlan
from pblas.simulation.phase import Phase, Traffic, View


def matrix_vector(plan: MatrixVectorPlan, view: View) -> Iterator[Phase]:
    """One step without a GEMM: memory limits it."""
    traffic = Traffic()
    for peer in range(plan.nprocs):
        if peer != view.rank:
            traffic += view.traffic(peer, plan.itemsize * plan.exchanged_elements(view.rank, peer))
    yield Phase(1, before=traffic, copied=plan.operands_nbytes(view.rank))
