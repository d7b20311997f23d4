"""The time of block columns that are factored with one panel of lookahead, from the work of each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StepWork(NamedTuple):
    """Work of one step, in any unit.

    Args:
        owner: rank of the panel (global).
        panel: work to factor the panel (global).
        depth: an update of a block column by this panel is `depth` of the panel times `weight` of the column (global).
        weight: of the panel's columns, before they are factored (global).
    """

    owner: int
    panel: float
    depth: float
    weight: float


def makespan(steps: Sequence[StepWork], ranks: int) -> float:
    """Work of the rank that ends last, and its waiting for panels; transfers are hidden.

    The owner of the next panel updates and factors it before it updates its other columns.

    Args:
        steps: panels in order (global).
        ranks: number of ranks (global).

    >>> makespan([StepWork(0, 1, 2, 3), StepWork(1, 1, 2, 3), StepWork(0, 1, 2, 3)], 2)
    15.0
    """
    ends, ready = [0.0] * ranks, 0.0
    left = [sum(step.weight for step in steps if step.owner == rank) for rank in range(ranks)]
    for s, step in enumerate(steps):
        if s == 0:
            ready = ends[step.owner] = float(step.panel)
        left[step.owner] -= step.weight
        following = steps[s + 1] if s + 1 < len(steps) else None
        arrived = ready
        for rank in range(ranks):
            rest = left[rank]
            if rest > 0:
                ends[rank] = max(ends[rank], arrived)
            if following is not None and following.owner == rank:
                ready = ends[rank] = max(ends[rank], arrived) + step.depth * following.weight + following.panel
                rest -= following.weight
            ends[rank] += step.depth * max(rest, 0.0)
    return max(ends)
