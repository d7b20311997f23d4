"""Staging memory for pieces that other ranks read, in two halves that alternate between turns.

A rank overwrites a half two turns later. By then every rank has passed a meeting after its last read of that half, so
one meeting per round is enough. The last pieces of a call need none: the agreement at the start of the next call is a
meeting.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.plans.partition import padded

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype
    from pblas.backends.host_ranks import HostRanks, HostScratch
    from pblas.backends.transport import Transfer


class Flat:
    """The elements of an array of any strides in C order, numbered from `base`.

    >>> Flat(np.arange(6).reshape(2, 3).T, 10).get(11, 14).tolist()
    [3, 1, 4]
    """

    __slots__ = ("base", "line", "x")

    def __init__(self, x: Array, base: int = 0) -> None:
        self.x: Array = x
        self.base: int = base
        self.line: Array | None = x.reshape(-1) if x.flags.c_contiguous and x.flags.aligned else None
        """The same memory as an array of one dimension, if it can be one."""

    def get(self, a: int, b: int) -> Array:
        """Elements a..b-1, tight: a view if they are contiguous, otherwise a copy."""
        if self.line is not None:
            return self.line[a - self.base : b - self.base]
        copy = np.empty(b - a, self.x.dtype)
        self.read(a, b, copy)
        return copy

    def read(self, a: int, b: int, target: Array) -> None:
        """Target := elements a..b-1."""
        if self.line is not None:
            target[...] = self.get(a, b)
            return
        for part, piece in self._pairs(a, b, target):
            piece[...] = part

    def write(self, a: int, b: int, source: Array) -> None:
        """Elements a..b-1 := source."""
        if self.line is not None:
            self.get(a, b)[...] = source
            return
        for part, piece in self._pairs(a, b, source):
            part[...] = piece

    def _pairs(self, a: int, b: int, tight: Array) -> Iterator[tuple[Array, Array]]:
        """Views of the array, each with the corresponding view of a tight array."""
        start = 0
        for view in spans(self.x, a - self.base, b - self.base):
            yield view, tight[start : start + view.size].reshape(view.shape)
            start += view.size


def spans(x: Array, a: int, b: int) -> Iterator[Array]:
    """Views of x that hold its elements a..b-1 in C order, one after the other; at most two for each dimension.

    >>> [view.tolist() for view in spans(np.arange(9).reshape(3, 3), 2, 8)]
    [[2], [[3, 4, 5]], [6, 7]]
    """
    if a >= b:
        return
    if x.ndim <= 1:
        yield x.reshape(1) if x.ndim == 0 else x[a:b]
        return
    row = math.prod(x.shape[1:])
    first, last = -(-a // row), b // row
    if first > last:  # inside one row
        yield from spans(x[last], a - last * row, b - last * row)
        return
    if a < first * row:
        yield from spans(x[first - 1], a - (first - 1) * row, row)
    if first < last:
        yield x[first:last]
    if last * row < b:
        yield from spans(x[last], 0, b - last * row)


INPUTS, RESULTS = 0, 1
"""Regions of the staging memory, and kinds of messages: pieces to combine, and combined or gathered pieces."""
RELAYED = 2  # kind of messages: pieces from another node, sent on to the ranks of this node
TAG = 1030
_TAG_MEETING = TAG + 4
_MAX_SLOTS = 1024


class Staging:
    """**Collective.** Memory into which ranks copy arrays piece by piece, for all collectives of a context."""

    def __init__(self, backend: HostRanks, nbytes: int) -> None:
        nbytes = padded(nbytes)  # elements of any dtype are aligned in both halves
        self.backend: HostRanks = backend
        self.nbytes: int = nbytes
        self.shared: bool = backend.shared
        self.epoch = 0  # number of the current round (global)
        self.others: list[int] = [(backend.rank + i) % backend.size for i in range(1, backend.size)]
        self.near: list[int] = [peer for peer in self.others if backend.is_near(peer)]
        self.far: list[int] = [peer for peer in self.others if not backend.is_near(peer)]
        self.group_of: dict[int, range] = {rank: group for group in backend.groups for rank in group}
        """For each rank, the ranks among which data from other nodes arrives once (global)."""
        self._node = sorted([*self.near, backend.rank])
        self._regions: list[HostScratch] = []
        self._tables: list[Any] = []
        if backend.shared:
            # A second result has memory of its own after the first. Inputs of GPUs are added in their own memory.
            self._regions = [backend.host_scratch(k * nbytes) for k in (0 if backend.gpus else 2, 4)]
            if not backend.gpus:
                self._tables = [backend.location_table(), backend.location_table()]
        self._buffers: dict[tuple[int, int], Array] = {}
        self._slots: dict[tuple[object, ...], Flat] = {}
        """Slots of recent calls: to make one takes longer than to copy a small array into it (local)."""

    def slot(
        self, region: int, peer: int, epoch: int, place: int, span: tuple[int, int], dtype: Dtype, result: int = 0
    ) -> Flat:
        """Elements of a span in the staging memory of a near rank or this one."""
        half = epoch % 2
        key = region, peer, half, place, span, dtype, result
        elements = self._slots.get(key)
        if elements is None:
            if len(self._slots) >= _MAX_SLOTS:
                self._slots.clear()
            offset = (half * (1 + region) + result) * self.nbytes + place * dtype.itemsize
            elements = Flat(np.ndarray(span[1] - span[0], dtype, self._regions[region].of[peer], offset), span[0])
            assert elements.line is not None, "staging memory is contiguous"
            self._slots[key] = elements
        return elements

    def publish(self, table: int, x: Flat) -> bool:
        """Publish the location of an array; false if near ranks cannot reach it (local)."""
        if x.line is None:
            return False
        return self.backend.publish(self._tables[table], x.line[:, None])

    def published(self, table: int, peer: int, n: int, dtype: Dtype) -> Flat:
        """The n elements that a near rank has published (local)."""
        return Flat(self.backend.peer_array(self._tables[table], peer, (n, 1), dtype, "F").reshape(-1))

    def buffer(self, peer: int, epoch: int, n: int, dtype: Dtype) -> Array:
        """Memory for n elements from a far rank (local)."""
        key = peer, epoch % 2
        if key not in self._buffers or self._buffers[key].nbytes < n * dtype.itemsize:
            self._buffers[key] = np.empty(n * dtype.itemsize, np.uint8)
        return np.ndarray(n, dtype, self._buffers[key].data)

    def send(self, x: Array, peer: int, kind: int) -> Transfer:
        """Start to send tight elements to a far rank (local)."""
        return self.backend.host_channel.send(x[:, None], peer, TAG + kind)

    def receive(self, x: Array, peer: int, kind: int) -> Transfer:
        """Start to receive tight elements from a far rank (local)."""
        return self.backend.host_channel.receive(x[:, None], peer, TAG + kind)

    def meet(self, step: str) -> None:
        """Return when all ranks of the node have arrived and their earlier writes are visible (local to the node).

        Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization" (1988).
        """
        self.backend.sync()
        channel, node = self.backend.host_channel, self._node
        place, distance = node.index(self.backend.rank), 1
        while distance < len(node):
            heard = channel.await_signal(node[(place - distance) % len(node)], _TAG_MEETING)
            sent = channel.signal(node[(place + distance) % len(node)], _TAG_MEETING)
            self.backend.wait(heard.done, step)
            self.backend.wait(sent.done, step)
            distance *= 2
        self.backend.sync()

    def detach(self) -> None:
        """Drop the memory, which the context is about to free (local)."""
        self._regions, self._tables, self._buffers, self._slots = [], [], {}, {}
