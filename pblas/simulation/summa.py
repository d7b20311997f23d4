"""Phases of the general plans: panels of operands arrive, partial products leave.

The bytes that a rank receives are exact in total, and spread evenly over the panels. Senders may have more to send: if
one process column holds a panel, each of its ranks sends a copy to every rank that needs the panel, and all receivers
wait for its link. `Phase.slow` is that factor: the number of ranks that need a panel over the number of ranks that have
it. If ranks begin with different panels (`SummaC.first`), each rank sends one copy at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from pblas.layouts.messages import received_count
from pblas.layouts.placement import Placement
from pblas.layouts.rectangles import area
from pblas.layouts.split import Split
from pblas.plans.structured import RankUpdate, TriangularProduct
from pblas.plans.summa import Summa, SummaA, SummaC, cut_count, placed
from pblas.simulation.phase import Phase, Traffic, View, borders, even


def summa_c(plan: SummaC, view: View) -> Iterator[Phase]:
    """Panels of op(A) and op(B) along K, then the partial product if its owner did not form it."""
    yield from _panels(plan, view)
    yield from _delivery(plan, view)


def rank_update(plan: RankUpdate, view: View) -> Iterator[Phase]:
    """The panels of each term, multiplied in the triangle only, then its elements that other ranks own."""
    n = plan.cuboids.d.local_shape(view.rank)[1]
    rows = -(-plan.formed(view.rank) // max(1, n))
    for term in (plan, plan.swapped)[: plan.terms]:
        yield from _panels(term, view, rows)
    yield from _delivery(plan, view)


def triangular_product(plan: TriangularProduct, view: View) -> Iterator[Phase]:
    """The shard of op(A) is copied, then panels are multiplied in the triangle only."""
    yield Phase(1, copied=3 * plan.itemsize * prod(placed(plan.oriented.a).local_shape(view.rank)))
    position, k = plan.cuboids.a.coordinates(view.rank), plan.oriented.k
    whole, rows = Split(k, max(1, k), 1), plan.cuboids.m
    triangle = 0 if position is None else area(rows, position[0], whole, 0, plan.structure.uplo)
    yield from _panels(plan, view, -(-triangle // max(1, k)))
    yield from _delivery(plan, view)


def _panels(plan: SummaC, view: View, rows: int | None = None) -> Iterator[Phase]:
    """Panels along K; `rows`: rows of D that a step multiplies on average, None for all."""
    cuboids, itemsize = plan.cuboids, plan.product.itemsize
    position = cuboids.d.coordinates(view.rank)
    m, n, k = (
        (0, 0, 0)
        if position is None
        else (cuboids.m.count(position[0]), cuboids.n.count(position[1]), cuboids.k.count(position[2]))
    )
    a, b = placed(plan.oriented.a), placed(plan.oriented.b)
    arrives = [itemsize * count for count in plan.arriving_elements(view.rank)]
    if position is not None and k:
        steps, width = _panels_of_layer(plan, position[2]), plan.width
        needed = [_slow(plan, a, a.columns, width), _slow(plan, b.T, b.rows, width)]
        # Some ranks hold parts of both panels, and send both.
        slow = sum(x * y for x, y in zip(needed, arrives, strict=True)) / max(1, sum(arrives))
        kept_a, kept_b = (_share(place, view) for place in (a, b))
        peers = _peers(a.rows, cuboids.m, a.columns, width), _peers(b.columns, cuboids.n, b.rows, width)
        for many, depth, left, right in even(steps, k, *arrives):
            before = _traffic(view, left, kept_a, peers[0]) + _traffic(view, right, kept_b, peers[1])
            copied = 2 * (before.near + before.far)
            if not (view.transport == "shared" and plan.is_read_in_place):
                copied = 2 * itemsize * depth * (m + n)
            gemm = (m if rows is None else rows, n, depth)
            yield Phase(many, gemm, before, copied=copied, slow=slow, ahead=plan.overlap)


def summa_a(plan: SummaA, view: View) -> Iterator[Phase]:
    """op(A) in one step if it moves, then panels of op(B) along N, each followed by its partial products."""
    cuboids, itemsize = plan.cuboids, plan.product.itemsize
    position = cuboids.a.coordinates(view.rank)
    a, b = placed(plan.oriented.a), placed(plan.oriented.b)
    brought = itemsize * received_count(a, cuboids.a, view.rank)
    if brought:
        yield Phase(
            1, before=_traffic(view, brought, _share(a, view), _peers(a.rows, cuboids.m, a.columns, a.columns.n))
        )
        yield Phase(1, copied=2 * brought)
    m, k = (0, 0) if position is None else (cuboids.m.count(position[0]), cuboids.k.count(position[1]))
    arrives, leaves = itemsize * received_count(b, cuboids.b, view.rank), plan.delivered_nbytes(view.rank)
    slow = _slow(plan, b, b.columns, plan.width)
    kept, peers, sums = _share(b, view), _peers(b.rows, cuboids.k, b.columns, plan.width), _layers(plan)
    n = cuboids.n.n
    for many, width, arriving, leaving in even(max(1, cut_count(plan.cut_at, 0, n, plan.width)), n, arrives, leaves):
        yield Phase(
            many,
            (m, width, k),
            _traffic(view, arriving, kept, peers),
            _traffic(view, leaving, _share(cuboids.d, view), sums),
            copied=2 * itemsize * width * k + 3 * leaving,
            waits="queue" if plan.overlap else "sent",
            slow=slow,
            ahead=plan.overlap,
        )
    yield Phase(1, waits="sent")


def _delivery(plan: Summa, view: View) -> Iterator[Phase]:
    """Partial products travel to the ranks that add them; no GEMM is left to hide this."""
    nbytes = plan.delivered_nbytes(view.rank)
    if nbytes:
        yield Phase(1, after=_traffic(view, nbytes, _share(plan.cuboids.d, view), _layers(plan)))
        yield Phase(1, copied=3 * nbytes, waits="sent")


def _layers(plan: Summa) -> int:
    """Number of layers from which a rank receives partial products, at least 1."""
    return max(1, len(plan.cuboids.layers) - plan.in_place)


def _panels_of_layer(plan: SummaC, layer: int) -> int:
    """Number of panels of a layer; panels cut by owner are counted once for all owners with equal shares."""
    k = plan.cuboids.k
    if not plan.by_owner:
        return max(1, sum(cut_count(plan.cut_at, start, stop, plan.width) for start, stop in k.runs(layer)))
    columns = placed(plan.oriented.a).columns
    if k.nprocs > 1:
        return max(1, -(-columns.count(layer) // plan.width))
    starts = sorted({x for x in borders(columns) if x < columns.nprocs} | {0})
    kinds = zip(starts, [*starts[1:], columns.nprocs], strict=True)
    return max(1, sum((stop - start) * -(-columns.count(start) // plan.width) for start, stop in kinds))


def _slow(plan: Summa, place: Placement, across: Split, width: int) -> float:
    """The factor `Phase.slow` of the panels of an operand: ranks that need a panel over ranks that have it, at least 1.

    Args:
        plan: the plan (global).
        place: placement of the operand, transposed if rows are cut into panels (global).
        across: the split that is cut into panels (global).
        width: width of a panel (global).
    """
    p1, p2, p3 = plan.cuboids.extents
    if plan.in_turn:
        return 1.0
    run = across.max_count if plan.by_owner else across.nb
    # The next panel is in flight at the same time, sometimes from the next owner.
    owners = -(-min(width, across.n) // run) + min(1.0, width / run)
    holders = min(across.nprocs, across.nblocks, owners * plan.panel_layers)
    holders *= min(place.rows.nblocks, place.rows.nprocs)
    return max(1.0, p1 * p2 * p3 / max(1.0, holders * place.copies))


def _peers(held: Split, needed: Split, across: Split, width: int) -> int:
    """Approximate number of messages per panel: the ranks over which its rows and columns are distributed."""
    down = 1 if held.equivalent(needed) else min(held.nprocs, held.nblocks, needed.max_count // held.nb + 1)
    return max(1, down * min(across.nprocs, -(-min(width, across.n) // across.nb)))


def _share(place: Placement, view: View) -> float:
    """Approximate fraction of a rank's received elements of an operand that comes from its own node."""
    first = view.rank - view.rank % view.ranks_per_node
    stop = min(first + view.ranks_per_node, view.nprocs)
    position = place.coordinates(view.rank)
    if position is None or view.nprocs == 1:
        return (stop - first - 1) / max(1, view.nprocs - 1)
    near = others = 0
    for axis in range(3):
        stride, extent = place.strides[axis], place.extents[axis]
        if extent > 1:
            base = view.rank - stride * position[axis]
            inside = min(extent, -(-(stop - base) // stride)) - max(0, -(-(first - base) // stride))
            near, others = near + inside - 1, others + extent - 1
    return near / others if others else (stop - first - 1) / (view.nprocs - 1)


def _traffic(view: View, nbytes: int, near_share: float, messages: int) -> Traffic:
    """Traffic of `nbytes` bytes in `messages` messages; a fraction `near_share` of it comes from the own node."""
    if not nbytes:
        return Traffic()
    if view.transport == "shared":
        return Traffic(read=nbytes)
    near_nbytes = int(nbytes * near_share)
    far_nbytes = nbytes - near_nbytes
    traffic = Traffic(far=far_nbytes, far_messages=messages if far_nbytes else 0)
    if view.transport == "mixed":
        return replace(traffic, read=near_nbytes)
    return replace(traffic, near=near_nbytes, near_messages=messages if near_nbytes else 0)
