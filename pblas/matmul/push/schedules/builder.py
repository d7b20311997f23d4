"""Helpers of the schedules: a list of operations under construction, and the order in which ranks visit their peers.

If the number of ranks is a power of two, rank q visits q^1, q^2, ..., q^(P-1), where ^ is exclusive or. Every step is a
permutation of the ranks, and the shards of q and its first 1, 3, 7, ... peers are consecutive. Otherwise ranks rotate.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

from pblas.backends.engine_limits import Lane
from pblas.matmul.one_dimensional_plan import AllGatherGemm, GemmReduceScatter
from pblas.matmul.product_plan import ProductPlan
from pblas.matmul.push.schedules.operations import Block, Op, Put, Signal
from pblas.plans.algorithm import Algorithm
from pblas.plans.partition import backwards, rotated


def send_order(rank: int, nprocs: int) -> Iterator[int]:
    """The others, in the order in which `rank` sends to them.

    >>> list(send_order(5, 8)), list(send_order(1, 3))
    ([4, 7, 6, 1, 0, 3, 2], [0, 2])
    """
    return (rank ^ i for i in range(1, nprocs)) if is_power_of_two(nprocs) else backwards(rank, nprocs)


def receive_order(rank: int, nprocs: int) -> Iterator[int]:
    """The others, in the order in which their shards reach `rank`.

    >>> list(receive_order(5, 8)), list(receive_order(1, 3))
    ([4, 7, 6, 1, 0, 3, 2], [2, 0])
    """
    return send_order(rank, nprocs) if is_power_of_two(nprocs) else rotated(rank, nprocs)


def is_power_of_two(nprocs: int) -> bool:
    """Whether ranks visit their peers by exclusive or."""
    return nprocs & (nprocs - 1) == 0


class Program:
    """Operations in issue order."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def add(self, op: Op) -> int:
        """Append an operation; returns its index."""
        self.ops.append(op)
        return len(self.ops) - 1

    def send(self, lane: Lane, puts: list[tuple[int, Block, Block]], phase: int, after: tuple[int, ...] = ()) -> None:
        """Append copies, and their signals after the last copy; empty copies are left out, their signals are not.

        Every step of the copies is a permutation of the ranks, so that copies with one wait arrive together.
        """
        for peer, source, target in puts:
            if len(source):
                self.add(Put(lane, peer, source, target, after=after))
                after = ()
        if puts:
            self.add(Signal(lane, tuple(peer for peer, *_ in puts), phase, after=after))


def algorithm_of(plan: ProductPlan) -> Algorithm:
    """The algorithm of a plan of the push transport."""
    assert plan.algorithm is not None, "the planner gives every plan of the push transport an algorithm"
    return plan.algorithm


def starts(counts: list[int]) -> list[int]:
    """First line of each of some consecutive blocks, and the end of the last.

    >>> starts([3, 0, 2])
    [0, 3, 3, 5]
    """
    return list(accumulate(counts, initial=0))


def shard_starts(plan: AllGatherGemm | GemmReduceScatter) -> list[int]:
    """First line of each rank's shard of the gathered operand or of D, and the end of the last."""
    return starts([plan.shards.count(rank) for rank in range(plan.product.nprocs)])


def groups_of(order: list[int], sizes: tuple[int, ...]) -> list[list[int]]:
    """A list of ranks cut into groups of these sizes."""
    return [order[a:b] for a, b in pairwise(accumulate(sizes, initial=0))]


def merged(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Intervals in ascending order, adjacent ones joined, empty ones left out."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(intervals):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        elif start < stop:
            joined.append((start, stop))
    return joined
