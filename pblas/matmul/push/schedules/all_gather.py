"""The schedules of an AllGatherGemm: ranks send their shards to all ranks, which multiply them as they arrive."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from pblas.matmul.one_dimensional_plan import AllGatherGemm
from pblas.matmul.push.schedules.builder import (
    Program,
    algorithm_of,
    groups_of,
    merged,
    receive_order,
    send_order,
    shard_starts,
)
from pblas.matmul.push.schedules.operations import (
    PARTS,
    AllGather,
    Arrival,
    Block,
    Burst,
    GemmAsArriving,
    Multiply,
    Put,
    Wait,
)
from pblas.plans.partition import cuts


def all_gather_gemm(program: Program, plan: AllGatherGemm, rank: int) -> None:
    """Sends the own shard to all ranks, and multiplies shards as they arrive."""
    nprocs, algorithm = plan.product.nprocs, algorithm_of(plan)
    first = shard_starts(plan)
    own = Block("gathered", first[rank], first[rank + 1])
    shard, peers, sources = Block("shard", 0, len(own)), [*send_order(rank, nprocs)], [*receive_order(rank, nprocs)]
    if algorithm.kind == "tile_signals":
        _gather_for_tiles(program, plan, rank)
        return
    nothing = Block("shard", 0, 0)  # ranks without rows of D get only the flag

    def puts(peers: Iterable[int]) -> list[tuple[int, Block, Block]]:
        return [(peer, shard if plan.takes_part(peer) else nothing, own) for peer in peers]

    if algorithm.kind == "sm_push":
        # One kernel sends the shard to all ranks and to this rank's workspace; one GEMM multiplies all shards.
        whole = Block("gathered", 0, first[-1])
        if plan.goes_by_packets:
            program.add(AllGather("main", shard, whole))
            program.add(Multiply("main", operand=whole))
            return
        made = tuple(Put("main", *put) for put in puts((*peers, rank)) if len(put[1]))
        program.add(Burst("main", made, PARTS, tuple(peers), tuple(sources)))
        if plan.takes_part(rank) and first[-1]:
            program.add(Multiply("main", operand=whole))
        return
    for group in groups_of([rank, *peers], algorithm.groups):
        program.send("copy", puts(peer for peer in group if peer != rank), PARTS)
    for group in groups_of([rank, *sources], algorithm.groups):
        others = tuple(source for source in group if source != rank)
        if rank in group and plan.takes_part(rank) and len(shard):
            program.add(Multiply("main", operand=shard))
        if others:
            program.add(Wait("main", PARTS, others))
            for start, stop in merged([(first[s], first[s + 1]) for s in others]) if plan.takes_part(rank) else ():
                program.add(Multiply("main", operand=Block("gathered", start, stop)))


def _gather_for_tiles(program: Program, plan: AllGatherGemm, rank: int) -> None:
    """Tile signals: copies of pieces of shards, each with a flag; one GEMM multiplies them in the order of arrival."""
    assert not plan.along_k, "tiles of D wait for lines along N"
    nprocs, algorithm = plan.product.nprocs, algorithm_of(plan)
    first, takes_part = shard_starts(plan), plan.takes_part(rank)
    counts = [stop - start for start, stop in pairwise(first)]

    def pieces(step: int, owner: int) -> list[tuple[int, int, int]]:
        """Phase and lines of the pieces of a shard that arrives `step` steps after the first."""
        parts = algorithm.groups[step] if step < len(algorithm.groups) else 1
        return [(2 * i + PARTS, *lines) for i, lines in enumerate(pairwise(cuts(counts[owner], (1,) * parts)))]

    for step, peer in enumerate(send_order(rank, nprocs)):
        for phase, start, stop in pieces(step, rank):
            lines = Block("shard", start, stop if plan.takes_part(peer) else start)
            place = Block("gathered", first[rank] + start, first[rank] + stop)
            program.send("copy", [(peer, lines, place)], phase)
    arrivals = [Arrival(Block("shard", 0, counts[rank]))]
    for step, source in enumerate(receive_order(rank, nprocs)):
        begin = first[source]
        arrivals += [
            Arrival(Block("gathered", begin + a, begin + b), source, phase) for phase, a, b in pieces(step, source)
        ]
    full = tuple(arrival for arrival in arrivals if takes_part and len(arrival.operand))
    if full:
        program.add(GemmAsArriving("main", full))
    empty = [arrival for arrival in arrivals[1:] if arrival not in full]
    for phase in sorted({arrival.phase for arrival in empty}):
        program.add(Wait("main", phase, tuple(arrival.source for arrival in empty if arrival.phase == phase)))
