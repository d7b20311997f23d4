"""The elements of one dimension that process coordinates of two splits share."""

from __future__ import annotations

from functools import lru_cache
from math import lcm

from pblas.layouts.split import Split

Run = tuple[int, int, int]
"""Elements with consecutive local indices under two splits: (first local index in one, in the other, length)."""


def overlaps(own: Split, p: int, other: Split) -> dict[int, list[Run]]:
    """For each coordinate q of `other` that shares elements with coordinate p of `own`: their runs, ascending.

    The loop visits only the blocks of p and the blocks of `other` inside them: coordinates that share no element with
    p cost no time.

    >>> overlaps(Split(9, 2, 2), 0, Split(9, 3, 2))
    {0: [(0, 0, 2), (4, 5, 1)], 1: [(2, 1, 2)]}
    """
    assert own.n == other.n, "two splits of one dimension"
    assert not own.is_replicated, "a Placement counts copies, its splits are not replicated"
    assert not other.is_replicated, "a Placement counts copies, its splits are not replicated"
    runs: dict[int, list[Run]] = {}
    n, nprocs, nb, first = own.n, other.nprocs, other.nb, _first(other)
    own_nb, own_first, local = own.nb, _first(own), 0
    for block in range((p - own.src) % own.nprocs, own.nblocks if own.nprocs > 1 else min(n, 1), own.nprocs):
        g = 0 if block == 0 else own_first + (block - 1) * own_nb
        stop = min(n, own_first + block * own_nb)
        while g < stop:
            b = 0 if g < first else 1 + (g - first) // nb
            start, end = (0, first) if b == 0 else (first + (b - 1) * nb, first + b * nb)
            length = min(end, stop) - g
            # indxg2l: the blocks of the same owner before b; block 0 may have another size than the others.
            position = b // nprocs * nb + (first - nb if b and b % nprocs == 0 else 0) + g - start
            runs.setdefault((other.src + b) % nprocs, []).append((local, position, length))
            g, local = g + length, local + length
    return runs


def _first(split: Split) -> int:
    """Size of the first block; if one coordinate owns all elements, they count as one block."""
    return split.n if split.nprocs == 1 else split.nb if split.inb is None else split.inb


def overlap_count(first: Split, p: int, second: Split, q: int) -> int:
    """Number of elements that coordinate p of one split and coordinate q of another both own.

    After their first blocks both splits are periodic, so one period is counted and multiplied.

    >>> overlap_count(Split(9, 2, 2), 0, Split(9, 3, 2), 1)
    2
    >>> overlap_count(Split(10**12, 1, 2), 0, Split(10**12, 3, 2), 1)
    166666666666
    """
    if first.nprocs == 1 or second.nprocs == 1:
        return min(first.count(p), second.count(q))
    if first is second or first == second:
        return first.count(p) if p == q else 0
    return _overlap_count(first, p, second, q)


@lru_cache(1024)
def _overlap_count(first: Split, p: int, second: Split, q: int) -> int:
    """`overlap_count` of two different splits over several processes."""
    if first.nblocks * second.nprocs > second.nblocks * first.nprocs:  # walk the coordinate with fewer blocks
        first, p, second, q = second, q, first, p

    def between(start: int, stop: int) -> int:
        return sum(second.local_start(g1, q) - second.local_start(g0, q) for g0, g1 in first.runs(p, start, stop))

    n, lead = first.n, max(_first(first), _first(second))
    period = lcm(first.nb * first.nprocs, second.nb * second.nprocs)
    times = max(0, n - lead) // period
    if times == 0:
        return between(0, n)
    return between(0, lead) + times * between(lead, lead + period) + between(lead + times * period, n)
