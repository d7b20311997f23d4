"""Phases of an elementwise operation: its redistributions one after the other, then one pass over the elements."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from pblas.plans.base import ITEMSIZE
from pblas.plans.elementwise import ElementwisePlan
from pblas.simulation.phase import Phase, View
from pblas.simulation.redistribution import redistribute


def elementwise(plan: ElementwisePlan, view: View) -> Iterator[Phase]:
    """The pass reads every matrix and writes the result; its functions take no time."""
    for operand in plan.moved:
        yield from redistribute(plan.redistribution(operand), view)
    read = sum(ITEMSIZE[x.dtype] * prod(x.target.local_shape(view.rank)) for x in plan.operands)
    yield Phase(1, copied=read + plan.itemsize * prod(plan.out.local_shape(view.rank)))
