"""Relays: one rank of a host receives a message for all ranks of the host that need the same elements.

If the target of a redistribution has copies, several ranks of one host may need the same elements of a rank of another
host. They share one message: the sender sends it to one of them, in whose memory the others read it. Sender and
receivers choose that rank by the same rule.

A host is a range of consecutive ranks. No function here knows which ranks hold a second copy of the source, so a source
with copies has no relays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from math import prod

from pblas.layouts.messages import receives
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split


class Sharers:
    """The ranks of each host that need the same elements of a target.

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> sharers = Sharers(Placement.of(MatrixDescriptor.replicated(4, 4, 6)), (range(3), range(3, 6)))
    >>> sharers.of(1), sharers.of(5)
    ((0, 1, 2), (3, 4, 5))
    """

    def __init__(self, target: Placement, hosts: Sequence[range]) -> None:
        self._target, self._hosts = target, hosts
        self._known: dict[int, tuple[int, ...]] = {}

    def of(self, rank: int) -> tuple[int, ...]:
        """The ranks on its host that need what `rank` needs, itself included; (rank,) if it needs nothing."""
        if rank not in self._known:
            groups: dict[tuple[int, int] | int, list[int]] = {}
            for peer in host_of(rank, self._hosts):
                position = self._target.coordinates(peer)
                groups.setdefault(peer if position is None else position[:2], []).append(peer)
            self._known |= {peer: tuple(group) for group in groups.values() for peer in group}
        return self._known[rank]


def host_of(rank: int, hosts: Sequence[range]) -> range:
    """The ranks of a rank's host.

    >>> host_of(3, (range(3), range(3, 6)))
    range(3, 6)
    """
    return hosts[bisect_right(hosts, rank, key=lambda host: host.start) - 1]


def receiver(source: Placement, sharers: Sequence[int], sender: int) -> int:
    """The rank that receives the message of `sender`, for all ranks that share it; they take turns.

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> source = Placement.of(MatrixDescriptor.row_wise(6, 4, 6))
    >>> [receiver(source, (3, 4, 5), sender) for sender in (0, 1, 2)]
    [3, 4, 5]
    """
    position = source.coordinates(sender)
    assert position is not None, "the sender holds elements of the source"
    return sharers[(source.start + position[0] + position[1]) % len(sharers)]


def are_shared(source: Placement, target: Placement, hosts: Sequence[range]) -> bool:
    """Whether ranks of one host may need the same elements of another host, so that one of them receives for all.

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> rows, copies = MatrixDescriptor.row_wise(4, 4, 4), MatrixDescriptor.replicated(4, 4, 4)
    >>> rows, copies = Placement.of(rows), Placement.of(copies)
    >>> hosts = range(2), range(2, 4)
    >>> are_shared(rows, copies, hosts), are_shared(rows, rows, hosts), are_shared(copies, copies, hosts)
    (True, False, False)
    """
    if source.copies > 1 or target.copies == 1 or not hosts or len(hosts) in (1, hosts[-1].stop):
        return False
    return _have_pairs(target.extents, target.strides, target.start, target.ranks, tuple(hosts))


@lru_cache(64)
def _have_pairs(
    extents: tuple[int, int, int],
    strides: tuple[int, int, int],
    start: int,
    ranks: tuple[int, ...] | None,
    hosts: tuple[range, ...],
) -> bool:
    """Whether a host has two ranks that differ only in the coordinate of the copy."""
    if ranks is None and strides[2] >= max(map(len, hosts)):  # copies are on different hosts
        return False
    rows, columns = (Split(nprocs, 1, nprocs) for nprocs in extents[:2])
    sharers = Sharers(Placement(rows, columns, strides, extents[2], start, ranks), hosts)
    return any(len(sharers.of(rank)) > 1 for host in hosts for rank in host)


def network_count(source: Placement, target: Placement, hosts: Sequence[range], host: range, *, relays: bool) -> int:
    """Number of elements that the ranks of a host receive from other hosts; relays serve all ranks that need them.

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> rows, copies = MatrixDescriptor.row_wise(4, 4, 4), MatrixDescriptor.replicated(4, 4, 4)
    >>> rows, copies = Placement.of(rows), Placement.of(copies)
    >>> hosts = range(2), range(2, 4)
    >>> [network_count(rows, copies, hosts, hosts[0], relays=relays) for relays in (False, True)]
    [16, 8]
    """
    sharers = Sharers(target, hosts) if relays and are_shared(source, target, hosts) else None
    return sum(
        prod(move.shape)
        for rank in host
        if sharers is None or sharers.of(rank)[0] == rank
        for move in receives(source, target, rank)
        if move.peer not in host
    )
