"""Phases of a redistribution: all messages arrive in one step, and are copied into B."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from math import prod

from pblas.layouts.messages import receives
from pblas.plans.redistribution import RedistributionPlan
from pblas.simulation.phase import Phase, Traffic, View


def redistribute(plan: RedistributionPlan, view: View) -> Iterator[Phase]:
    """One step without a GEMM.

    With a trapezoid the received bytes are spread over the messages in proportion to their sizes without it, and the
    copies count all of B.
    """
    moves = [move for move in receives(plan.source, plan.target, view.rank) if move.peer != view.rank]
    received, ends = plan.received_nbytes(view.rank), list(accumulate((prod(move.shape) for move in moves), initial=0))
    traffic = Traffic()
    for move, (start, stop) in zip(moves, pairwise(ends), strict=True):
        traffic += view.traffic(move.peer, received * stop // ends[-1] - received * start // ends[-1])
    yield Phase(1, before=traffic, copied=2 * plan.itemsize * prod(plan.target.local_shape(view.rank)))
