"""Phases of a factorization: the redistribution of A, one step for each panel, and the redistribution of the factor."""

from __future__ import annotations

from collections.abc import Iterator

from pblas.plans.cholesky_qr import PASSES, CholeskyQrPlan
from pblas.plans.factorization import CholeskyPlan, FactorizationPlan, columns_from
from pblas.plans.qr import QrPlan, TsqrPlan
from pblas.plans.reflectors import PanelReflectorsPlan, TreeReflectorsPlan
from pblas.plans.substitution import SubstitutionPlan
from pblas.simulation.phase import Phase, Traffic, View
from pblas.simulation.redistribution import redistribute


def factorization(plan: FactorizationPlan, view: View) -> Iterator[Phase]:
    """Each step is a GEMM of a rank's columns with a panel; the next panel is factored by then, and takes no time.

    In Cholesky a step multiplies half of the rows: those from the diagonal on, on average. In QR it multiplies twice.
    """
    yield from redistribute(plan.copy, view)
    for panel in plan.steps:
        n_loc, (i0, i1) = columns_from(plan.w, panel.stop, view.rank), plan.rows(panel)
        if n_loc:
            nbytes = plan.itemsize * (i1 - i0) * panel.width
            m = plan.w.m - panel.stop
            m = -(-m // 2) if isinstance(plan, CholeskyPlan) else 2 * m if isinstance(plan, QrPlan) else m
            yield Phase(1, (m, n_loc, panel.width), before=view.traffic(panel.owner, nbytes))
    if plan.back is not None:
        yield from redistribute(plan.back, view)


def substitution(plan: SubstitutionPlan, view: View) -> Iterator[Phase]:
    """Each step is a GEMM of a panel with a rank's right-hand sides."""
    *to_x, back = plan.redistributions
    for redistribution in to_x:
        yield from redistribute(redistribution, view)
    n_loc = plan.x.local_shape(view.rank)[1]
    for sweep, panel in plan.parts() if n_loc else ():
        i0, i1 = sweep.rows(panel, plan.w.m)
        traffic = view.traffic(panel.owner, plan.itemsize * (i1 - i0) * panel.width) if i1 > i0 else Traffic()
        yield Phase(1, (i1 - i0, n_loc, panel.width), before=traffic)
    yield from redistribute(back, view)


def tsqr(plan: TsqrPlan, view: View) -> Iterator[Phase]:
    """A rank's rows, and a triangle for each step of the tree, as GEMMs of as many operations."""
    yield from redistribute(plan.copy, view)
    n, m_loc = plan.w.n, plan.w.local_shape(view.rank)[0]
    if m_loc:
        yield Phase(1, (m_loc, n, n))
    for merge in plan.merges(view.rank):
        if merge.receives:
            yield Phase(1, (-(-n // 3), n, n), before=view.traffic(merge.peer, plan.itemsize * n * n))


def cholesky_qr(plan: CholeskyQrPlan, view: View) -> Iterator[Phase]:
    """Each pass multiplies a rank's rows with themselves, waits for the Gram matrices of the others, and divides."""
    yield from redistribute(plan.copy, view)
    n, m_loc = plan.w.n, plan.w.local_shape(view.rank)[0]
    nbytes = plan.itemsize * n * n
    for _ in range(PASSES):
        yield Phase(1, (n, n, m_loc))
        traffic = sum((view.traffic(peer, nbytes) for peer in range(plan.nprocs) if peer != view.rank), Traffic())
        yield Phase(1, (-(-m_loc // 2), n, n), before=traffic)


def panel_reflectors(plan: PanelReflectorsPlan, view: View) -> Iterator[Phase]:
    """Each step multiplies a rank's columns with a panel twice."""
    *to_x, back = plan.redistributions
    for redistribution in to_x:
        yield from redistribute(redistribution, view)
    for panel in plan.parts():
        n_loc, nbytes = plan.columns(panel, view.rank), plan.itemsize * (plan.w.m - panel.start) * panel.width
        if n_loc:
            yield Phase(1, (2 * (plan.x.m - panel.start), n_loc, panel.width), before=view.traffic(panel.owner, nbytes))
    yield from redistribute(back, view)


def tree_reflectors(plan: TreeReflectorsPlan, view: View) -> Iterator[Phase]:
    """A rank multiplies its rows, and the first ones once more for each step of the tree."""
    *to_x, back = plan.redistributions
    for redistribution in to_x:
        yield from redistribute(redistribution, view)
    n, (m_loc, n_loc) = plan.w.n, plan.x.local_shape(view.rank)
    if m_loc and n_loc:
        yield Phase(1, (2 * m_loc, n_loc, n))
        for merge in plan.factorization.merges(view.rank):
            yield Phase(1, (2 * n, n_loc, n), before=view.traffic(merge.peer, plan.itemsize * n * n_loc))
    yield from redistribute(back, view)
