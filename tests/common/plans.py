"""Laws that hold for every plan."""

from __future__ import annotations

from pblas import Plan
from pblas.simulation.phase import View


def check_transfers(plan: Plan) -> None:
    """Assert that ranks receive all sent elements, and that the simulated phases have all received bytes."""
    ranks = range(plan.nprocs)
    assert sum(map(plan.sent_elements, ranks)) == sum(map(plan.received_elements, ranks))
    for rank in ranks:
        phases = plan.phases(View(rank, plan.nprocs, 2, plan.transport))
        assert sum(phase.nbytes for phase in phases) == plan.received_nbytes(rank)
