"""Phases of a triangular solve: B arrives, then panels of the triangle, then X leaves for its owners."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from pblas.layouts.messages import received_count, receives
from pblas.layouts.placement import Placement
from pblas.plans.pipelined_trsm import PipelinedTrsm
from pblas.plans.summa import cut_count
from pblas.plans.trsm import TrsmPlan
from pblas.simulation.phase import Phase, Traffic, View, even


def trsm(plan: TrsmPlan, view: View) -> Iterator[Phase]:
    """Panels are taken as equal: each is multiplied with half of T's rows, and arrives with an equal share of T.

    T comes from the ranks that hold it in proportion to their shares of the rows and columns.
    """
    operands, itemsize = plan.operands, plan.itemsize
    if not plan.reads:
        yield Phase(1, copied=itemsize * prod(operands.result.local_shape(view.rank)))
        return
    yield _redistribution(plan, view, operands.right, plan.home)
    triangle, n = operands.triangle, plan.order
    if plan.is_solver(view.rank):
        arrives = itemsize * (n * (n + 1) // 2 - plan.own_elements(view.rank))
        split = triangle.rows if plan.looks_left else triangle.columns
        steps, columns = max(1, cut_count(split, 0, n, plan.width)), plan.home.local_shape(view.rank)[1]
        peers = [rank for rank in plan.extreme_ranks() if rank != view.rank and plan.own_elements(rank)]
        for many, depth, nbytes in even(steps, n, arrives):
            traffic = _spread(view, peers, nbytes)
            copied = 0 if view.transport == "shared" else 2 * nbytes
            yield Phase(many, (n // 2, columns, depth), traffic, copied=copied)
    if not plan.stays:
        yield _redistribution(plan, view, plan.home, operands.result)


def pipelined(plan: PipelinedTrsm, view: View) -> Iterator[Phase]:
    """Blocks are taken as equal: each is multiplied with an equal share of this rank's part of the triangle."""
    operands, itemsize = plan.operands, plan.itemsize
    if not plan.reads:
        yield Phase(1, copied=itemsize * prod(operands.result.local_shape(view.rank)))
        return
    yield _redistribution(plan, view, operands.right, plan.sums)
    arrives, own = plan.pipelined_rows(view.rank)[0], plan.own_elements(view.rank)
    peers = [rank for rank in sorted(plan.extreme_ranks()) if rank != view.rank]
    for many, depth, nbytes in even(plan.nblocks, plan.order, itemsize * plan.nrhs * arrives):
        traffic = _spread(view, peers[:1] if nbytes else [], nbytes)
        yield Phase(many, (own // max(1, plan.order), plan.nrhs, depth), traffic)
    yield _redistribution(plan, view, plan.solved, operands.result)


def _redistribution(plan: TrsmPlan | PipelinedTrsm, view: View, source: Placement, target: Placement) -> Phase:
    """One step without a GEMM."""
    received = plan.itemsize * received_count(source, target, view.rank)
    peers = [move.peer for move in receives(source, target, view.rank) if move.peer != view.rank]
    copied = 2 * plan.itemsize * prod(target.local_shape(view.rank))
    return Phase(1, before=_spread(view, peers, received), copied=copied)


def _spread(view: View, peers: list[int], nbytes: int) -> Traffic:
    """Traffic of some bytes that come in equal parts from some ranks."""
    traffic = Traffic()
    for i, peer in enumerate(peers):
        traffic += view.traffic(peer, nbytes * (i + 1) // len(peers) - nbytes * i // len(peers))
    return traffic
