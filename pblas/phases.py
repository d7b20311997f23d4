"""What one rank does over time: its plan as runs of equal steps, each with what it waits for and what leaves after it.

`phases_of` is the closed form of `plan.steps(rank)`: as many entries as there are kinds of steps, whatever the number
of ranks. All bytes of a plan are in its phases, which is a law of the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Any, Literal

from pblas.layouts.split import Split
from pblas.plan import AllGatherGemm, GemmAllReduce, GemmReduceScatter, LocalGemm, Plan, Spread, cuts


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a rank receives in a step: bytes and messages over each link, and bytes used where they lie on its node.

    >>> Traffic(far=8, far_messages=1) + Traffic(read=16)
    Traffic(near=0, far=8, read=16, near_messages=0, far_messages=1)
    """

    near: int = 0
    far: int = 0
    read: int = 0
    near_messages: int = 0
    far_messages: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.near + other.near,
            self.far + other.far,
            self.read + other.read,
            self.near_messages + other.near_messages,
            self.far_messages + other.far_messages,
        )

    def __mul__(self, times: int) -> Traffic:
        return Traffic(
            self.near * times,
            self.far * times,
            self.read * times,
            self.near_messages * times,
            self.far_messages * times,
        )

    @property
    def nbytes(self) -> int:
        """All bytes that were another rank's."""
        return self.near + self.far + self.read

    @property
    def messages(self) -> int:
        """All messages."""
        return self.near_messages + self.far_messages


@dataclass(frozen=True, slots=True)
class Phase:
    """Equal steps of one rank, one after the other.

    Args:
        steps: how many.
        gemm: m, n and k of the GEMM of each; (0, 0, 0) for none.
        before: what must have arrived before the GEMM; asked for when the last GEMM but one has ended.
        after: what arrives because peers have taken the same step.
        copied: bytes that the core reads and writes beside the GEMM, to pack or to add.
        waits: for the partial product before the last to have left ("queue": two buffers), or for the last ("sent").
        queued: `after` occupies the buffers that "queue" and "sent" speak of.
    """

    steps: int
    gemm: tuple[int, int, int] = (0, 0, 0)
    before: Traffic = field(default_factory=Traffic)
    after: Traffic = field(default_factory=Traffic)
    copied: int = 0
    waits: Literal["queue", "sent"] = "queue"
    queued: bool = True

    @property
    def nbytes(self) -> int:
        """Bytes that the rank receives in all steps."""
        return self.steps * (self.before.nbytes + self.after.nbytes)

    @property
    def messages(self) -> int:
        """Messages that it receives."""
        return self.steps * (self.before.messages + self.after.messages)


@dataclass(frozen=True, slots=True)
class View:
    """The ranks as one of them sees them: which are on its node, and how their data reaches it.

    Args:
        rank: the one (local).
        nprocs: ranks (global).
        ranks_per_node: consecutive ranks that share a node (global).
        transport: of the plan (global).
    """

    rank: int
    nprocs: int
    ranks_per_node: int
    transport: str

    def is_near(self, peer: int) -> bool:
        """Whether `peer` is on the same node."""
        return peer // self.ranks_per_node == self.rank // self.ranks_per_node

    def traffic(self, peer: int, nbytes: int) -> Traffic:
        """What a block of `peer` costs: read in place within a window, else one message.

        >>> View(0, 4, 2, "mixed").traffic(1, 8), View(0, 4, 2, "mixed").traffic(2, 8).far_messages
        (Traffic(near=0, far=0, read=8, near_messages=0, far_messages=0), 1)
        """
        if not nbytes or peer == self.rank:
            return Traffic()
        if self.transport == "window" or (self.transport == "mixed" and self.is_near(peer)):
            return Traffic(read=nbytes)
        return Traffic(near=nbytes, near_messages=1) if self.is_near(peer) else Traffic(far=nbytes, far_messages=1)

    def stretches(self, ahead: Iterable[Split] = (), behind: Iterable[Split] = ()) -> Iterator[tuple[int, int]]:
        """(first, count) of runs of distances 1..nprocs-1 within which ranks differ in nothing that counts; few.

        Args:
            ahead: splits whose counts on rank + distance do not change within a run (global).
            behind: splits whose counts on rank - distance do not (global).

        >>> from pblas.layouts.split import Split
        >>> list(View(1, 8, 8, "window").stretches(ahead=[Split(9, 2, 8)]))  # counts 2 2 2 2 1 0 0 0
        [(1, 1), (2, 1), (3, 1), (4, 3), (7, 1)]
        """
        p, node = self.nprocs, self.rank - self.rank % self.ranks_per_node
        starts = {(x - self.rank) % p for x in chain((0, node, node + self.ranks_per_node), *map(_borders, ahead))}
        starts |= {(self.rank - x + 1) % p for x in chain.from_iterable(map(_borders, behind))}
        borders = sorted({1, min(2, p), p} | {d for d in starts if d > 1})
        return ((d, stop - d) for d, stop in pairwise(borders))


def _borders(split: Split) -> set[int]:
    """Coordinates at which the count changes: around the first block and the last one, and the end of the grid."""
    if split.src < 0:
        return set()
    last = split.src + max(split.nblocks - 1, 0)
    return {0, split.nprocs} | {x % split.nprocs for x in (split.src, split.src + 1, last, last + 1)}


def even(parts: int, *counts: int) -> Iterator[tuple[int, ...]]:
    """(how many, size of the first, ...) of counts that are cut into nearly equal parts side by side.

    >>> list(even(4, 6, 3))
    [(2, 2, 1), (1, 1, 1), (1, 1, 0)]
    """
    borders = sorted({0, parts, *(count % parts for count in counts)})
    for start, stop in pairwise(borders):
        yield stop - start, *(count // parts + (start < count % parts) for count in counts)


def phases_of(plan: Plan, view: View) -> Iterator[Phase]:
    """What the rank of a view does, in order.

    Args:
        plan: whose steps they are; `plan.transport` says how data reaches a rank (global).
        view: the rank and its neighbourhood (local).

    >>> whole, rows = Spread("all"), Spread("rows", Split(8, 2, 4))
    >>> from pblas.plan import Product
    >>> plan = AllGatherGemm(Product(8, 8, 8, "float64", 4, rows, rows, rows), "")
    >>> [(phase.steps, phase.gemm, phase.nbytes) for phase in phases_of(plan, View(0, 4, 1, "message"))]
    [(1, (2, 8, 2), 0), (1, (2, 8, 2), 128), (1, (2, 8, 2), 128), (1, (2, 8, 2), 128)]
    """
    return _PHASES[type(plan)](plan, view)


def _local_gemm(plan: LocalGemm, view: View) -> Iterator[Phase]:
    product = plan.product
    rows, columns = product.d.along("rows"), product.d.along("columns")
    m = rows.count(view.rank) if rows else product.m
    n = columns.count(view.rank) if columns else product.n
    yield Phase(1, (m, n, product.k))


def _all_gather(plan: AllGatherGemm, view: View) -> Iterator[Phase]:
    product, p = plan.oriented, view.nprocs
    if not plan.takes_part(view.rank):
        return
    assert product.d.split is not None, "AllGatherGemm splits D"
    rows, found = product.d.split.count(view.rank), []
    for distance, repeats in chain([(0, 1)], view.stretches(ahead=[plan.shards])):
        source = (view.rank + distance) % p
        k, columns = plan.shard_shape(source)
        for pieces, width in even(plan.chunks, columns):
            if k and width:
                before = view.traffic(source, product.itemsize * k * width)
                found.append(Phase(repeats * pieces, (rows, width, k), before))
    if plan.road is not None:
        found = _grouped(plan, found)
    elif not plan.overlap:
        found = _first_all(found)
    yield from found


def _first_all(found: list[Phase]) -> list[Phase]:
    """All messages before the first GEMM."""
    total = sum((phase.before * phase.steps for phase in found), Traffic())
    rest = [replace(phase, before=Traffic(read=phase.before.read)) for phase in found]
    return [Phase(1, before=replace(total, read=0)), *rest]


def _grouped(plan: AllGatherGemm, found: list[Phase]) -> list[Phase]:
    """Pushed: a GEMM for each group of shards, or one after all of them."""
    assert plan.road is not None, "only the push transport has a road"
    rows = found[0].gemm[0]
    shards = [phase for phase in found for _ in range(phase.steps)]
    groups = plan.road.groups if plan.road.by == "copies" else (len(shards),)
    grouped, start = [], 0
    for count in groups:
        group = shards[start : start + count]
        start += count
        width = plan.oriented.n if plan.along_k else sum(phase.gemm[1] for phase in group)
        k = sum(phase.gemm[2] for phase in group) if plan.along_k else plan.oriented.k
        grouped.append(Phase(1, (rows, width, k), sum((phase.before for phase in group), Traffic())))
    return grouped


def _reduce_scatter(plan: GemmReduceScatter, view: View) -> Iterator[Phase]:
    product, rank = plan.oriented, view.rank
    k, own = plan.inner.count(rank), plan.shards.count(rank)
    if plan.road is not None:
        groups = plan.road.groups if plan.road.by == "copies" else (view.nprocs,)
        yield from _pushed(plan, view, [*reversed(groups[1:]), groups[0]])
        return
    yield from _partial_products(plan, view, plan.shards, plan.chunks)
    for pieces, width in even(plan.chunks, own):
        # D[:, j] += op(A)[:, k] op(B)[k, j]   (all other partial products of columns j have arrived)
        yield Phase(pieces, (product.m, width, k), waits="sent")


def _partial_products(plan: GemmReduceScatter, view: View, dealt: Split, chunks: int) -> Iterator[Phase]:
    """Partial products of the others' columns go out, those of the own columns come in."""
    product, rank, p = plan.oriented, view.rank, view.nprocs
    k, own = plan.inner.count(rank), dealt.count(rank)
    column = product.itemsize * product.m
    for distance, repeats in view.stretches(ahead=[plan.inner], behind=[dealt]):
        owner, source = (rank - distance) % p, (rank + distance) % p
        columns, arriving = dealt.count(owner) if k else 0, own if plan.contributes(source) else 0
        for pieces, width, received in even(chunks, columns, arriving):
            if width or received:
                yield Phase(
                    repeats * pieces,
                    (product.m, width, k),
                    after=view.traffic(source, column * received),
                    # The first is received in place, the others are added to it: two are read, one is written.
                    copied=0 if distance == 1 else 3 * column * received,
                    waits="queue" if plan.overlap else "sent",
                )


def _all_reduce(plan: GemmAllReduce, view: View) -> Iterator[Phase]:
    product, rank, p = plan.oriented, view.rank, view.nprocs
    if plan.road is not None:
        yield from _pushed(plan, view, plan.road.groups)
        return
    k, block = plan.inner.count(rank), plan.shards.nb * p
    dealt = Split(0, 1, p)
    for piece in range(plan.chunks + 1):
        previous = dealt
        dealt = Split(max(0, min(block, product.n - piece * block)) if piece < plan.chunks else 0, plan.shards.nb, p)
        yield from _partial_products(plan, view, dealt, 1)
        if previous.n:
            column = product.itemsize * product.m
            finished = Traffic()
            for distance, repeats in view.stretches(ahead=[previous]):
                peer = (rank + distance) % p
                finished += view.traffic(peer, column * previous.count(peer)) * repeats
            yield Phase(
                1,
                (product.m, previous.count(rank), k),
                after=finished,
                copied=2 * finished.read,
                waits="queue" if dealt.n else "sent",
                queued=False,
            )


def _pushed(plan: GemmReduceScatter, view: View, weights: Iterable[int]) -> Iterator[Phase]:
    """GEMMs of portions of D, each sent when it is formed; one pass over what has arrived."""
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


_PHASES: dict[type[Plan], Callable[[Any, View], Iterator[Phase]]] = {
    LocalGemm: _local_gemm,
    AllGatherGemm: _all_gather,
    GemmReduceScatter: _reduce_scatter,
    GemmAllReduce: _all_reduce,
}


def sent_nbytes(plan: Plan, rank: int) -> int:
    """Bytes that a rank sends, or that others read in its memory (each counted once for each reader).

    >>> from pblas.plan import Product
    >>> rows, one = Spread("rows", Split(8, 2, 4)), Spread("rows", Split(8, 8, 4))
    >>> plan = AllGatherGemm(Product(8, 8, 8, "float64", 4, rows, one, rows), "")
    >>> [sent_nbytes(plan, rank) for rank in range(4)]
    [1536, 0, 0, 0]
    """
    product, elements = plan.oriented, 0
    if isinstance(plan, AllGatherGemm):
        rows = product.d.split
        assert rows is not None, "AllGatherGemm splits D"
        takers = min(rows.nprocs, rows.nblocks) - plan.takes_part(rank)
        k, columns = plan.shard_shape(rank)
        elements = takers * k * columns
    elif isinstance(plan, GemmReduceScatter):
        own = plan.shards.count(rank)
        elements = plan.contributes(rank) * product.m * (product.n - own)
        if isinstance(plan, GemmAllReduce):
            elements += (product.nprocs - 1) * product.m * own
    return elements * product.itemsize


def operands_nbytes(plan: Plan, rank: int) -> int:
    """Bytes of A, B and D on a rank."""
    product = plan.product

    def elements(spread: Spread, m: int, n: int) -> int:
        rows, columns = spread.along("rows"), spread.along("columns")
        return (rows.count(rank) if rows else m) * (columns.count(rank) if columns else n)

    a, b = elements(product.a, product.m, product.k), elements(product.b, product.k, product.n)
    return product.itemsize * (a + b + elements(product.d, product.m, product.n))
