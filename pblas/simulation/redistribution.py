"""Phases of a redistribution: all messages arrive in one step, and are copied into B."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from math import prod

from pblas.layouts.messages import receives
from pblas.layouts.placement import Placement
from pblas.plans.redistribution import RedistributionPlan
from pblas.simulation.phase import Phase, Traffic, View


def redistribute(plan: RedistributionPlan, view: View) -> Iterator[Phase]:
    """One step without a GEMM.

    With a trapezoid the received bytes are spread over the messages in proportion to their sizes without it, and the
    copies count all of B.
    """
    received = plan.received_nbytes(view.rank)
    yield _moved(plan.source, plan.target, received, plan.itemsize, view)


def mirrored(place: Placement, received: int, itemsize: int, view: View) -> Iterator[Phase]:
    """The other triangle of a symmetric matrix, `received` bytes of it from other ranks, and the own one."""
    yield _moved(place.T, place, received, itemsize, view)


def _moved(source: Placement, target: Placement, received: int, itemsize: int, view: View) -> Phase:
    """One step without a GEMM, in which `received` bytes arrive."""
    moves = [move for move in receives(source, target, view.rank) if move.peer != view.rank]
    ends = list(accumulate((prod(move.shape) for move in moves), initial=0))
    traffic = Traffic()
    for move, (start, stop) in zip(moves, pairwise(ends), strict=True):
        traffic += view.traffic(move.peer, received * stop // ends[-1] - received * start // ends[-1])
    return Phase(1, before=traffic, copied=2 * itemsize * prod(target.local_shape(view.rank)))
