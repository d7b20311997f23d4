"""Phases of the one-dimensional plans: all-gather, reduce-scatter, all-reduce, local GEMM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, pairwise

from pblas.layouts.split import Split
from pblas.plans.one_dimensional import AllGatherGemm, GemmAllReduce, GemmReduceScatter, LocalGemm
from pblas.plans.partition import cuts
from pblas.simulation.phase import Phase, Traffic, View, even


def local_gemm(plan: LocalGemm, view: View) -> Iterator[Phase]:
    """One GEMM."""
    product = plan.product
    rows, columns = product.d.along("rows"), product.d.along("columns")
    m = rows.count(view.rank) if rows else product.m
    n = columns.count(view.rank) if columns else product.n
    yield Phase(1, (m, n, product.k))


def all_gather(plan: AllGatherGemm, view: View) -> Iterator[Phase]:
    """The own shard, then the shards of the peers in rotated order, each multiplied as it arrives."""
    product, p = plan.oriented, view.nprocs
    if not plan.takes_part(view.rank):
        return
    assert product.d.split is not None, "AllGatherGemm splits D"
    rows, phases = product.d.split.count(view.rank), []
    for distance, repeats in chain([(0, 1)], view.stretches(ahead=[plan.shards])):
        source = (view.rank + distance) % p
        k, columns = plan.shard_shape(source)
        # The own shard is one step: while it is multiplied, the first pieces of the peers' shards are in flight.
        for pieces, width in even(plan.chunks if distance and plan.algorithm is None else 1, columns):
            if (k and width) or plan.algorithm is not None:  # an algorithm's groups also count empty shards
                before = view.gathered(source, product.itemsize * k * width)
                phases.append(Phase(repeats * pieces, (rows, width, k), before))
    if plan.algorithm is not None:
        phases = _grouped(plan, phases)
    elif not plan.overlap:
        phases = _first_all(phases)
    yield from phases


def _first_all(phases: list[Phase]) -> list[Phase]:
    """The phases without overlap: all messages before the first GEMM."""
    total = sum((phase.before * phase.steps for phase in phases), Traffic())
    gemms = [replace(phase, before=Traffic(read=phase.before.read)) for phase in phases]
    return [Phase(1, before=replace(total, read=0)), *gemms]


def _grouped(plan: AllGatherGemm, phases: list[Phase]) -> list[Phase]:
    """The phases of the push transport: one GEMM for each group of shards."""
    assert plan.algorithm is not None, "only the push transport has an algorithm"
    rows = phases[0].gemm[0]
    shards = [phase for phase in phases for _ in range(phase.steps)]
    groups = {"copy_engine": plan.algorithm.groups}.get(
        plan.algorithm.kind, (1,) * len(shards) if plan.algorithm.kind == "tile_signals" else (len(shards),)
    )
    grouped, start = [], 0
    for count in groups:
        group = shards[start : start + count]
        start += count
        width = plan.oriented.n if plan.along_k else sum(phase.gemm[1] for phase in group)
        k = sum(phase.gemm[2] for phase in group) if plan.along_k else plan.oriented.k
        grouped.append(Phase(1, (rows, width, k), sum((phase.before for phase in group), Traffic())))
    return grouped


def reduce_scatter(plan: GemmReduceScatter, view: View) -> Iterator[Phase]:
    """Partial products of the peers' columns of D, then of the own columns."""
    product, rank = plan.oriented, view.rank
    k, own = plan.inner.count(rank), plan.shards.count(rank)
    if plan.algorithm is not None:
        groups = plan.algorithm.groups if plan.algorithm.kind == "copy_engine" else (view.nprocs,)
        yield from _pushed(plan, view, [*reversed(groups[1:]), groups[0]])
        return
    yield from _partial_products(plan, view, plan.shards, plan.chunks)
    for pieces, width in even(plan.chunks, own):
        # D[:, j] += op(A)[:, k] op(B)[k, j]   (the partial products of the peers have arrived)
        yield Phase(pieces, (product.m, width, k), waits="sent")


def _partial_products(plan: GemmReduceScatter, view: View, dealt: Split, chunks: int) -> Iterator[Phase]:
    """Partial products of the peers' columns leave, partial products of the own columns arrive."""
    product, rank, p = plan.oriented, view.rank, view.nprocs
    k, own = plan.inner.count(rank), dealt.count(rank)
    column = plan.wire_itemsize * product.m
    for distance, repeats in view.stretches(ahead=[plan.inner], before=[dealt]):
        owner, source = (rank - distance) % p, (rank + distance) % p
        columns, arriving = dealt.count(owner) if k else 0, own if plan.contributes(source) else 0
        for pieces, width, received in even(chunks, columns, arriving):
            if width or received:
                yield Phase(
                    repeats * pieces,
                    (product.m, width, k),
                    after=view.traffic(source, column * received),
                    # The first partial product is received in place. Each further one is added: two reads, one write.
                    copied=0 if distance == 1 else 3 * column * received,
                    waits="queue" if plan.overlap else "sent",
                )


def all_reduce(plan: GemmAllReduce, view: View) -> Iterator[Phase]:
    """Block by block: the peers' columns of this block, then the own columns of the last one, whose sums go to all."""
    product, rank, p = plan.oriented, view.rank, view.nprocs
    if plan.algorithm is not None:
        yield from _pushed(plan, view, plan.algorithm.groups)
        return
    k, block = plan.inner.count(rank), plan.shards.nb * p
    dealt = Split(0, 1, p)
    for piece in range(plan.chunks + 1):
        previous = dealt
        dealt = Split(max(0, min(block, product.n - piece * block)) if piece < plan.chunks else 0, plan.shards.nb, p)
        yield from _partial_products(plan, view, dealt, 1)
        if previous.n:
            column = product.d_itemsize * product.m
            finished = Traffic()
            for distance, repeats in view.stretches(ahead=[previous]):
                peer = (rank + distance) % p
                finished += view.gathered(peer, column * previous.count(peer), copied=True) * repeats
            yield Phase(
                1,
                (product.m, previous.count(rank), k),
                after=finished,
                copied=2 * finished.read,
                waits="queue" if dealt.n else "sent",
                queued=False,
            )


def _pushed(plan: GemmReduceScatter, view: View, weights: Iterable[int]) -> Iterator[Phase]:
    """The phases of the push transport: GEMMs of pieces of D, each sent when formed; then one pass that adds."""
    product, weights = plan.oriented, tuple(weights)
    received, k = plan.received_nbytes(view.rank), plan.inner.count(view.rank)
    borders = cuts(product.n, weights)
    for start, stop in pairwise(borders):
        arrived = received * stop // max(product.n, 1) - received * start // max(product.n, 1)
        peer = (view.rank + 1) % view.nprocs
        traffic = view.traffic(peer, arrived)
        messages = {"near_messages": traffic.near_messages, "far_messages": traffic.far_messages}
        traffic = replace(traffic, **{name: number * (view.nprocs - 1) for name, number in messages.items()})
        yield Phase(1, (product.m, stop - start, k), after=traffic)
    yield Phase(1, copied=received, waits="sent")
