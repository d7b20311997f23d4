"""The schedules of an AllGatherGemm: shards go to all ranks, which multiply them as they arrive."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from pblas.plans.one_dimensional import AllGatherGemm
from pblas.plans.partition import cuts
from pblas.schedules.builder import Program, groups_of, hears, meets, merged, road_of, shard_starts
from pblas.schedules.operations import PARTS, AllGather, Arrival, Await, Block, Burst, Multiply, MultiplyArrivals, Put


def all_gather_gemm(program: Program, plan: AllGatherGemm, rank: int) -> None:
    """Shards to all ranks, and the GEMMs of what has come.

    Args:
        program: what is added to.
        plan: with a road (global).
        rank: whose operations (local).
    """
    nprocs, road = plan.product.nprocs, road_of(plan)
    first = shard_starts(plan)
    own = Block("gathered", first[rank], first[rank + 1])
    shard, everybody = Block("shard", 0, len(own)), list(hears(rank, nprocs))
    if road.by == "tiles":
        _gather_for_tiles(program, plan, rank)
        return
    nothing = Block("shard", 0, 0)  # to ranks without rows of D goes the flag alone

    def puts(peers: Iterable[int]) -> list[tuple[int, Block, Block]]:
        return [(peer, shard if plan.takes_part(peer) else nothing, own) for peer in peers]

    if road.by == "kernel":
        # The shards go to all ranks, the own one to this rank's own workspace too, and one GEMM takes all of them.
        peers, whole = tuple(meets(rank, nprocs)), Block("gathered", 0, first[-1])
        if plan.goes_by_packs:
            program.add(AllGather("main", shard, whole))
            program.add(Multiply("main", operand=whole))
            return
        made = tuple(Put("main", *put) for put in puts((*peers, rank)) if len(put[1]))
        program.add(Burst("main", made, PARTS, peers, tuple(everybody)))
        if plan.takes_part(rank) and first[-1]:
            program.add(Multiply("main", operand=whole))
        return
    for group in groups_of([rank, *meets(rank, nprocs)], road.groups):
        program.send("copy", puts(peer for peer in group if peer != rank), PARTS)
    for group in groups_of([rank, *everybody], road.groups):
        others = tuple(source for source in group if source != rank)
        if rank in group and plan.takes_part(rank) and len(shard):
            program.add(Multiply("main", operand=shard))
        if others:
            program.add(Await("main", PARTS, others))
            for start, stop in merged([(first[s], first[s + 1]) for s in others]) if plan.takes_part(rank) else ():
                program.add(Multiply("main", operand=Block("gathered", start, stop)))


def _gather_for_tiles(program: Program, plan: AllGatherGemm, rank: int) -> None:
    """Copies of pieces of shards, with a flag each; one GEMM of all of them, in the order in which they arrive."""
    assert not plan.along_k, "tiles of D wait for lines along N"
    nprocs, road = plan.product.nprocs, road_of(plan)
    first, takes_part = shard_starts(plan), plan.takes_part(rank)
    counts = [stop - start for start, stop in pairwise(first)]

    def pieces(step: int, owner: int) -> list[tuple[int, int, int]]:
        """Phase and lines of the pieces of a shard that arrives `step` steps after the first."""
        parts = road.groups[step] if step < len(road.groups) else 1
        return [(2 * i + PARTS, *lines) for i, lines in enumerate(pairwise(cuts(counts[owner], (1,) * parts)))]

    for step, peer in enumerate(meets(rank, nprocs)):
        for phase, start, stop in pieces(step, rank):
            lines = Block("shard", start, stop if plan.takes_part(peer) else start)
            place = Block("gathered", first[rank] + start, first[rank] + stop)
            program.send("copy", [(peer, lines, place)], phase)
    arrivals = [Arrival(Block("shard", 0, counts[rank]))]
    for step, source in enumerate(hears(rank, nprocs)):
        at = first[source]
        arrivals += [Arrival(Block("gathered", at + a, at + b), source, phase) for phase, a, b in pieces(step, source)]
    full = tuple(arrival for arrival in arrivals if takes_part and len(arrival.operand))
    if full:
        program.add(MultiplyArrivals("main", full))
    empty = [arrival for arrival in arrivals[1:] if arrival not in full]
    for phase in sorted({arrival.phase for arrival in empty}):
        program.add(Await("main", phase, tuple(arrival.source for arrival in empty if arrival.phase == phase)))
