"""Values from which a simulation computes the time of a plan on one rank.

`Phase`: several steps of the rank with equal GEMMs and equal traffic. `Traffic`: the bytes and messages of a step, by
link. `View`: which other ranks are on the rank's node, and so over which link their data comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Literal

from pblas.layouts.split import Split


@dataclass(frozen=True, slots=True)
class Traffic:
    """Data that a rank receives in a step: bytes and messages over each link, and bytes read in place on its node.

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
        """Bytes from other ranks, over all links."""
        return self.near + self.far + self.read

    @property
    def messages(self) -> int:
        """Messages over all links."""
        return self.near_messages + self.far_messages


@dataclass(frozen=True, slots=True)
class Phase:
    """Equal steps of one rank, one after the other."""

    steps: int  # number of steps (local)
    gemm: tuple[int, int, int] = (0, 0, 0)  # m, n and k of the GEMM of a step; (0, 0, 0) for none (local)
    # traffic of the operand that must arrive before the GEMM of a step (local)
    before: Traffic = field(default_factory=Traffic)
    # traffic of the partial products that peers send to this rank in the same step (local)
    after: Traffic = field(default_factory=Traffic)
    copied: int = 0  # bytes that the core reads and writes in addition to the GEMM, to pack or to add (local)
    # which partial product must have left this rank before a step begins: that of two steps before ("queue", there are
    # two buffers), or that of the step before ("sent") (local)
    waits: Literal["queue", "sent"] = "queue"
    queued: bool = True  # the partial products in `after` occupy one of the two buffers (local)
    # factor by which the transfer of `before` takes longer because its senders serve several receivers (local)
    slow: float = 1.0
    # True if the rank requests the operand of the next step before its GEMM, False if after it (local)
    ahead: bool = True
    gemms: int = 1  # number of GEMMs of m x n x k in a step (local)
    cores: int = 1  # ranks of the node, this one and those that wait, whose cores compute and copy (local)
    # what starts a step: an executor, a CUDA graph that runs already, or none: the kernel of the step before (local)
    launch: Literal["executor", "graph", "none"] = "executor"
    # multiplications of a panel that the core factors in a step, in addition to the GEMM (local)
    panel: float = 0.0
    # messages on a node, and between nodes, one after the other, by which ranks choose pivots in `panel`; and steps of
    # an executor that this takes (local)
    rounds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    # multiplications of a panel that the sender of `before` factors, and the m, n, k of a GEMM before that, while this
    # rank executes the step before; `rounds` of that panel (local)
    factored: float = 0.0
    factored_rounds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    updated: tuple[int, int, int] = (0, 0, 0)
    # if that sender needs the operand of the step before for this, as this rank does: what it still has to receive once
    # this rank has that operand (local)
    awaited: Traffic | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that the rank receives in all steps of the phase."""
        return self.steps * (self.before.nbytes + self.after.nbytes)

    @property
    def messages(self) -> int:
        """Messages that the rank receives in all steps of the phase."""
        return self.steps * (self.before.messages + self.after.messages)


@dataclass(frozen=True, slots=True)
class View:
    """One rank's view of the others: the ranks on its node, and the links over which data reaches it."""

    rank: int
    nprocs: int
    ranks_per_node: int
    transport: str

    def is_near(self, peer: int) -> bool:
        """Whether `peer` is on the same node."""
        return peer // self.ranks_per_node == self.rank // self.ranks_per_node

    def traffic(self, peer: int, nbytes: int) -> Traffic:
        """Traffic of a block of `nbytes` bytes from `peer`: read in place in shared memory, else one message.

        >>> View(0, 4, 2, "mixed").traffic(1, 8), View(0, 4, 2, "mixed").traffic(2, 8).far_messages
        (Traffic(near=0, far=0, read=8, near_messages=0, far_messages=0), 1)
        """
        if not nbytes or peer == self.rank:
            return Traffic()
        if self.transport == "shared" or (self.transport == "mixed" and self.is_near(peer)):
            return Traffic(read=nbytes)
        return Traffic(near=nbytes, near_messages=1) if self.is_near(peer) else Traffic(far=nbytes, far_messages=1)

    def gathered(self, peer: int, nbytes: int, *, copied: bool = False) -> Traffic:
        """Traffic of a block that all ranks of a node receive from `peer`; with the mixed transport once for the node.

        The ranks of a node take turns to receive blocks from other nodes; here each receives an equal share of each.

        >>> View(0, 4, 2, "mixed").gathered(2, 8)
        Traffic(near=0, far=4, read=4, near_messages=0, far_messages=1)
        """
        traffic = self.traffic(peer, nbytes)
        if self.transport != "mixed" or not traffic.far:
            return traffic
        first = self.rank - self.rank % self.ranks_per_node
        far = -(-nbytes // min(self.ranks_per_node, self.nprocs - first))
        if copied and far < nbytes:
            return replace(traffic, far=far, near=nbytes - far, near_messages=1)
        return replace(traffic, far=far, read=nbytes - far)

    def stretches(self, ahead: Iterable[Split], before: Iterable[Split] = ()) -> Iterator[tuple[int, int]]:
        """(first distance, number) of runs of the distances 1..nprocs-1 to ranks with equal shards and equal links.

        In a run the counts of `ahead` on rank + distance are constant, and those of `before` on rank - distance.

        >>> from pblas.layouts.split import Split
        >>> list(View(1, 8, 8, "shared").stretches(ahead=[Split(9, 2, 8)]))  # counts 2 2 2 2 1 0 0 0
        [(1, 1), (2, 1), (3, 1), (4, 3), (7, 1)]
        """
        p, node = self.nprocs, self.rank - self.rank % self.ranks_per_node
        starts = {(x - self.rank) % p for x in chain((0, node, node + self.ranks_per_node), *map(borders, ahead))}
        starts |= {(self.rank - x + 1) % p for x in chain.from_iterable(map(borders, before))}
        distances = sorted({1, min(2, p), p} | {d for d in starts if d > 1})
        return ((d, stop - d) for d, stop in pairwise(distances))


MICROSECOND_ON_GPUS = 22e6
"""Multiplications of a panel that take a microsecond on the preset "nvlink"."""
SOLVES = 300
"""Order of a triangle with which BLAS solves at half the rate of GEMMs (orders 64 to 1024, 1024 columns, OpenBLAS on
one core of an AMD EPYC, float64)."""


def solve_rows(order: int) -> int:
    """Rows of a GEMM that takes as long as a solve with a triangle of this order, and has this depth.

    >>> solve_rows(192)
    246
    """
    return (order + SOLVES) // 2


def borders(split: Split) -> set[int]:
    """Process coordinates at which the number of local elements may change from that of the coordinate before."""
    last = split.src + max(split.nblocks - 1, 0)
    return {0, split.nprocs} | {x % split.nprocs for x in (split.src, split.src + 1, last, last + 1)}


def even(parts: int, *counts: int) -> Iterator[tuple[int, ...]]:
    """Cut several counts into `parts` nearly equal parts: (number of parts, the size of such a part of each count).

    >>> list(even(4, 6, 3))
    [(2, 2, 1), (1, 1, 1), (1, 1, 0)]
    """
    edges = sorted({0, parts, *(count % parts for count in counts)})
    for start, stop in pairwise(edges):
        yield stop - start, *(count // parts + (start < count % parts) for count in counts)
