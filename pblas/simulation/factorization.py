"""Phases of a factorization: the redistribution of A, one step for each panel, and the redistribution of the factor."""

from __future__ import annotations

from collections.abc import Iterator

from pblas.plans.factorization import CholeskyPlan, FactorizationPlan, columns_from
from pblas.plans.substitution import SubstitutionPlan
from pblas.simulation.phase import Phase, Traffic, View
from pblas.simulation.redistribution import redistribute


def factorization(plan: FactorizationPlan, view: View) -> Iterator[Phase]:
    """Each step is a GEMM of a rank's columns with a panel; the next panel is factored by then, and takes no time.

    In Cholesky a step multiplies half of the rows: those from the diagonal on, on average.
    """
    yield from redistribute(plan.copy, view)
    for panel in plan.steps:
        n_loc, (i0, i1) = columns_from(plan.w, panel.stop, view.rank), plan.rows(panel)
        if n_loc:
            nbytes = plan.itemsize * (i1 - i0) * panel.width
            m = plan.w.m - panel.stop
            m = -(-m // 2) if isinstance(plan, CholeskyPlan) else m
            yield Phase(1, (m, n_loc, panel.width), before=view.traffic(panel.owner, nbytes))
    if plan.back is not None:
        yield from redistribute(plan.back, view)


def substitution(plan: SubstitutionPlan, view: View) -> Iterator[Phase]:
    """Each step is a GEMM of a panel with a rank's right-hand sides."""
    to_x, back = plan.redistributions
    yield from redistribute(to_x, view)
    n_loc = plan.x.local_shape(view.rank)[1]
    for sweep, panel in plan.parts() if n_loc else ():
        i0, i1 = sweep.rows(panel, plan.w.m)
        traffic = view.traffic(panel.owner, plan.itemsize * (i1 - i0) * panel.width) if i1 > i0 else Traffic()
        yield Phase(1, (i1 - i0, n_loc, panel.width), before=traffic)
    yield from redistribute(back, view)
