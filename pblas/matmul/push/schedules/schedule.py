"""The push protocol: the operations of one rank in one execution of a plan, in issue order, on lanes.

A lane is a stream: its operations run one after the other. Lanes run concurrently; `after` names operations of
other lanes that must have finished. Data is pushed: `Put` copies a block into a peer's workspace, and the next `Signal`
on the same lane sets the peer's flag. The peer's `Wait` waits for the flag and resets it. Only all-reduces pull: in two
shots a kernel reads partial products in the workspaces of the peers, and with tile signals `Get` and `Gets` copy
finished lines from there. The operations one at a time, in issue order, are a valid execution too; CPUs run them so.

The workspace is a double buffer whose halves (parities) alternate from call to call, so that no call starts with a
barrier. In call e a rank writes into parity e % 2 of a peer. The peer no longer uses that parity when it has finished
call e - 2; its flag of call e - 1 proves that. Hence every rank sends and awaits a flag of every peer in every call,
even if there is nothing to send. A rank may write into its own half after its own call e - 2: it has awaited all puts
into it. Peers have read the lines that they pull in call e - 2 before they send their flag of call e - 1.

Blocks are intervals of *lines*: indices along the dimension in which the plan cuts, in the plan's orientation.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from pblas.matmul.one_dimensional_plan import AllGatherGemm, GemmAllReduce, GemmReduceScatter
from pblas.matmul.product_plan import ProductPlan
from pblas.matmul.push.schedules.operations import (
    PARTS,
    AllGather,
    Arrival,
    Block,
    Burst,
    GemmAsArriving,
    Multiply,
    Op,
    Program,
    Put,
    Signal,
    Wait,
    groups_of,
    merged,
    receive_order,
    send_order,
    shard_starts,
)
from pblas.matmul.push.schedules.reduce import gemm_all_reduce, gemm_reduce_scatter
from pblas.plans.partition import cuts


def schedule(plan: ProductPlan, rank: int) -> tuple[Op, ...]:
    program = Program()
    if isinstance(plan, AllGatherGemm):
        all_gather_gemm(program, plan, rank)
    elif isinstance(plan, GemmAllReduce):
        gemm_all_reduce(program, plan, rank)
    else:
        assert isinstance(plan, GemmReduceScatter), "other plans move nothing"
        gemm_reduce_scatter(program, plan, rank)
    return tuple(program.ops)


def handshake(rank: int, nprocs: int) -> tuple[Op, ...]:
    """A call in which nothing moves (alpha or K is 0): ranks still exchange the flags that separate the parities."""
    program = Program()
    program.add(Signal("main", tuple(send_order(rank, nprocs)), PARTS))
    program.add(Wait("main", PARTS, tuple(receive_order(rank, nprocs))))
    return tuple(program.ops)


def all_gather_gemm(program: Program, plan: AllGatherGemm, rank: int) -> None:
    """Sends the own shard to all ranks, and multiplies shards as they arrive."""
    nprocs, algorithm = plan.product.nprocs, plan.push_algorithm
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
    nprocs, algorithm = plan.product.nprocs, plan.push_algorithm
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
