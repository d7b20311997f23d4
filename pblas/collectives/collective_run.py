"""All-reduce, all-gather and reduce-scatter of plain arrays: rounds of staging, combining and collecting pieces.

With r this rank, and part q the elements that rank q combines; each round handles a piece of every part:

    one_shot        out[:] = x_1[:] + x_2[:] + ... + x_0[:]                    on every rank
    two_shot        out[part r] = x_r+1[part r] + ... + x_r[part r];           out[part q] from rank q
    reduce_scatter  the first step of two_shot; an all-gather is the second step, of x instead of sums

A rank reads a near rank's pieces in its staging memory, or in its x itself if every rank's x is in a window. It writes
sums directly into the other ranks' out if these are in windows. Far ranks exchange messages. What all ranks get, a rank
sends to one rank of each other node, which sends it on to its node: the ranks of the node take turns. The order of
additions is the same in all cases.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pblas.collectives.collective_plan import Rounds, goes_by_messages, width_of
from pblas.collectives.reduction_run import OPERATIONS, Finish, fold
from pblas.collectives.staging_run import INPUTS, RELAYED, RESULTS, Flat, Staging
from pblas.plans.partition import receiver

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.backends.transport import Transfer

X_TABLE, OUT_TABLE = 0, 1  # location tables of x and out


class Steps(NamedTuple):
    """Description of a collective."""

    name: str  # name of the collective, for messages (global)
    operation: str | None  # a key of `OPERATIONS`, or None: nothing is combined (global)
    shares: bool  # whether every rank gets the parts of the others (global)
    rounds: Rounds  # partition of the elements (global)
    unit: int = 1  # elements that an epilogue needs together (global)
    reads_x: bool = False  # near ranks read x in place (global)
    writes_out: bool = False  # ranks, all of them near, write sums into each other's out (global)
    by_messages: bool = False  # ranks of a node treat each other as far (global)


class Collective:
    """One call on this rank."""

    def __init__(self, staging: Staging, steps: Steps, x: Flat) -> None:
        self.steps: Steps = steps
        self._staging, self._x = staging, x
        self._rank, self._size = staging.backend.rank, staging.backend.size
        self._dtype, self._rounds = x.x.dtype, steps.rounds
        self._near, self._far = ([], staging.others) if steps.by_messages else (staging.near, staging.far)
        self._first_epoch = staging.epoch
        self._sent: dict[int, list[Transfer]] = {}
        self._arriving: dict[tuple[int, int], tuple[Transfer, Flat]] = {}

    def lay_out(self, number: int) -> None:
        """Copy the pieces that near ranks read in a round to staging memory (local)."""
        steps, staging = self.steps, self._staging
        if steps.reads_x or not self._near:
            return
        region = RESULTS if steps.operation is None else INPUTS
        for reader in self._readers():
            a, b = self._span(reader, number)
            place = self._rounds.place(reader) if steps.operation else 0
            slot = staging.slot(region, self._rank, self._first_epoch + number, place, (a, b), self._dtype)
            self._x.read(a, b, slot.get(a, b))

    def run(self, outs: list[Flat], finish: Finish | None) -> None:
        """Run all rounds, after `lay_out` of the first round and a meeting or agreement."""
        self._outs, self._finish = outs, finish
        steps, staging, count = self.steps, self._staging, len(self._rounds)
        self._post(0)
        for number in range(count):
            if number + 1 < count:
                self.lay_out(number + 1)
                self._post(number + 1)
            if steps.operation:
                self._wait(self._sent.pop(number), "sending pieces")  # before out, which may be x, is written
                self._combine(number)
            collects = steps.shares and not steps.writes_out
            if collects and steps.operation:
                self._announce(number)
                self._meet()
            if collects:
                self._collect(number)
            is_last, direct = number + 1 == count, steps.reads_x or steps.writes_out
            if not (collects and steps.operation) and (not is_last or direct):
                self._meet()
            staging.epoch += 1

    def _readers(self) -> list[int]:
        """The near ranks for which pieces are staged; a single one if all read the same pieces."""
        if self.steps.operation is None:
            return [self._rank]
        return self._near[:1] if self._rounds.whole else self._near

    def _span(self, reader: int, number: int) -> tuple[int, int]:
        """The elements of this rank's x that a rank reads in a round."""
        return self._rounds.piece(reader if self.steps.operation else self._rank, number)

    def _post(self, number: int) -> None:
        """Start the messages of a round that carry pieces of x."""
        staging, kind = self._staging, INPUTS if self.steps.operation else RESULTS
        self._sent[number] = []
        for peer in self._far:
            a, b = self._rounds.piece(self._rank if self.steps.operation else peer, number)
            if a < b and self.steps.operation:
                memory = staging.buffer(peer, number, b - a, self._dtype)
                self._arriving[peer, number] = staging.receive(memory, peer, kind), Flat(memory, a)
        for peer in self._far if self.steps.operation else self._receivers(number):
            a, b = self._span(peer, number)
            if a < b:
                self._sent[number].append(staging.send(self._x.get(a, b), peer, kind))

    def _combine(self, number: int) -> None:
        """Add this rank's piece of a round, its own elements last."""
        steps, staging = self.steps, self._staging
        a, b = span = self._rounds.piece(self._rank, number)
        if a >= b:
            return
        ranks = _order(0 if self._rounds.whole else self._rank, self._size)
        parts = [self._part(peer, number, span) for peer in ranks]
        sinks = [[out] for out in self._outs]
        if steps.shares and steps.writes_out:
            n = self._outs[0].x.size
            sinks[0] += [staging.published(OUT_TABLE, peer, n, self._dtype) for peer in self._near]
        elif steps.shares and self._near:
            for result, sink in enumerate(sinks):
                sink.append(staging.slot(RESULTS, self._rank, staging.epoch, 0, span, self._dtype, result))
        # out[piece] = sum of x_q[piece], q = r+1, r+2, ..., r   (from the staging memory of rank q)
        fold(OPERATIONS[steps.operation or ""], parts, span, steps.unit, self._finish, sinks)

    def _part(self, peer: int, number: int, span: tuple[int, int]) -> Flat:
        """The elements of one rank, once they have arrived."""
        staging = self._staging
        if peer == self._rank:
            return self._x
        if (peer, number) in self._arriving:
            transfer, piece = self._arriving.pop((peer, number))
            self._wait([transfer], f"elements of rank {peer}")
            return piece
        if self.steps.reads_x:
            return staging.published(X_TABLE, peer, self._x.x.size, self._dtype)
        return staging.slot(INPUTS, peer, staging.epoch, self._rounds.place(self._rank), span, self._dtype)

    def _announce(self, number: int) -> None:
        """Send far ranks the sums of a round."""
        a, b = self._rounds.piece(self._rank, number)
        self._sent[number] = [
            self._staging.send(out.get(a, b), peer, RESULTS)
            for peer in self._receivers(number)
            for out in self._outs
            if a < b
        ]

    def _receivers(self, number: int) -> list[int]:
        """The far ranks to which this rank sends its part of a round."""
        return [peer for peer in self._far if self._via(self._rank, peer, number) == peer]

    def _via(self, source: int, reader: int, number: int) -> int:
        """The rank of the reader's node that gets the part of `source` from another node; else the reader."""
        group = self._staging.group_of[reader]
        return reader if source in group else receiver(group, source, number)

    def _collect(self, number: int) -> None:
        """Get the other ranks' parts of a round."""
        staging, steps = self._staging, self.steps
        arriving: list[tuple[Transfer, Flat, Array, tuple[int, int], list[int]]] = []
        group = staging.group_of[self._rank]
        others = [rank for rank in group if rank != self._rank]
        for peer in sorted(self._far):  # the same order on all ranks of a node, which wait for each other's parts
            a, b = self._rounds.piece(peer, number)
            via = self._via(peer, self._rank, number)
            sender, kind = (peer, RESULTS) if via == self._rank else (via, RELAYED)
            readers = others if via == self._rank and peer not in group else []
            for out in self._outs if a < b else ():
                memory = out.get(a, b) if out.line is not None else np.empty(b - a, self._dtype)
                arriving.append((staging.receive(memory, sender, kind), out, memory, (a, b), readers))
        if steps.operation is None:
            a, b = self._rounds.piece(self._rank, number)
            if a < b:
                self._outs[0].write(a, b, self._x.get(a, b))
        for peer in self._near:
            a, b = span = self._rounds.piece(peer, number)
            for result, out in enumerate(self._outs if a < b else ()):
                if steps.operation is None and steps.reads_x:
                    start, stop = self._rounds.part(peer)
                    source = Flat(staging.published(X_TABLE, peer, stop - start, self._dtype).x, start)
                else:
                    source = staging.slot(RESULTS, peer, staging.epoch, 0, span, self._dtype, result)
                # out[part q] = what rank q has   (read in its memory)
                out.write(a, b, source.get(a, b))
        for transfer, out, memory, (a, b), readers in arriving:
            self._wait([transfer], "parts of other ranks")
            self._sent[number] += [staging.send(memory, reader, RELAYED) for reader in readers]
            if out.line is None:
                out.write(a, b, memory)
        self._wait(self._sent.pop(number), "sending parts")

    def _meet(self) -> None:
        if self._near:
            self._staging.meet(f"{self.steps.name}: a meeting of the node")

    def _wait(self, transfers: list[Transfer], what: str) -> None:
        for transfer in transfers:
            self._staging.backend.wait(transfer.done, f"{self.steps.name}: {what}")


class OneShot:
    """All-reduces in one shot of arrays of one shape that fit in one round, by the ranks of one node.

    Each rank copies x to its staging memory, or computes it there, before the agreement on the call, which is the
    meeting, too. Then every rank adds all. The views of the memory are made once.
    """

    def __init__(self, staging: Staging, operation: str, shape: tuple[int, ...], dtype: Dtype, unit: int) -> None:
        self.staging: Staging = staging
        self._operation, self._unit, self._span = OPERATIONS[operation], unit, (0, math.prod(shape))
        rank, size = staging.backend.rank, staging.backend.size

        def slot(peer: int, half: int) -> Flat:
            return staging.slot(INPUTS, peer, half, 0, self._span, dtype)

        self._own = [slot(rank, half).x.reshape(shape) for half in (0, 1)]
        self._parts = [[slot(peer, half) for peer in _order(0, size)] for half in (0, 1)]

    @property
    def own(self) -> Array:
        """Where near ranks read this rank's x of the next call (local)."""
        return self._own[self.staging.epoch % 2]

    def lay_out(self, x: Array) -> None:
        """Copy x there, unless it is there (local)."""
        if x is not self.own:
            self.own[...] = x

    def run(self, outs: list[Flat], finish: Finish | None) -> None:
        """Add all ranks' x, after `lay_out` on all ranks and an agreement; arguments as in `Collective.run`."""
        half = self.staging.epoch % 2
        # out[:] = x_1[:] + x_2[:] + ... + x_0[:]   (from the staging memory of each rank)
        fold(self._operation, self._parts[half], self._span, self._unit, finish, [[out] for out in outs])
        self.staging.epoch += 1


def run_naive(backend: HostRanks, steps: Steps, x: Flat, outs: list[Flat], finish: Finish | None) -> None:
    """A collective by MPI's collectives: an all-to-all before the additions, an all-gather after them.

    An agreement before each of MPI's collectives names a rank that does not arrive.
    """
    for number in range(len(steps.rounds)):
        spans = [steps.rounds.piece(peer, number) for peer in range(backend.size)]
        own, counts = spans[backend.rank], [stop - start for start, stop in spans]
        results = [x.get(*own)] if steps.operation is None else _exchanged(backend, steps, x, spans, finish, len(outs))
        for out, result in zip(outs, results, strict=True):
            if not steps.shares:
                out.write(*own, result)
                continue
            gathered, start = np.empty(sum(counts), x.x.dtype), 0
            backend.agree(f"{steps.name}: an all-gather of MPI")
            transfer = backend.plain_channel.all_gather(result, gathered, counts)
            backend.complete(transfer, step=f"{steps.name}: an all-gather of MPI")
            for span, count in zip(spans, counts, strict=True):
                out.write(*span, gathered[start : start + count])
                start += count


def _exchanged(
    backend: HostRanks, steps: Steps, x: Flat, spans: list[tuple[int, int]], finish: Finish | None, count: int
) -> list[Array]:
    """This rank's results of a round, in which every rank adds one span."""
    a, b = own = spans[backend.rank]
    received = np.empty((b - a) * backend.size, x.x.dtype)
    packed = np.concatenate([x.get(*span) for span in spans])
    backend.agree(f"{steps.name}: an all-to-all of MPI")
    counts = [stop - start for start, stop in spans]
    transfer = backend.plain_channel.all_to_all(packed, counts, received, [b - a] * backend.size)
    backend.complete(transfer, step=f"{steps.name}: an all-to-all of MPI")
    parts = [Flat(received[peer * (b - a) : (peer + 1) * (b - a)], a) for peer in _order(backend.rank, backend.size)]
    return _folded(steps, parts, own, finish, count)


def _order(owner: int, size: int) -> list[int]:
    """The ranks in the order in which their elements are added: the owner of the sum last."""
    return [(owner + i) % size for i in range(1, size + 1)]


def _folded(steps: Steps, parts: list[Flat], span: tuple[int, int], finish: Finish | None, count: int) -> list[Array]:
    """The results of a span, each in memory of its own."""
    memory = [np.empty(span[1] - span[0], parts[0].x.dtype) for _ in range(count)]
    fold(OPERATIONS[steps.operation or ""], parts, span, steps.unit, finish, [[Flat(m, span[0])] for m in memory])
    return memory


class _Half(NamedTuple):
    """Views of one half of the staging memory: this rank's elements, and each peer's with their place (local)."""

    own: Array
    others: list[tuple[slice, Array]]


class Gathering:
    """An all-gather of arrays of one dimension, for any number of calls: `lay_out`, an agreement, `run`."""

    def __init__(self, counts: tuple[int, ...], dtype: Dtype, rank: int) -> None:
        self._bounds = tuple(accumulate(counts, initial=0))
        self._dtype, self._rank, self._nelements = dtype, rank, self._bounds[-1]
        self._own = slice(*self._bounds[rank : rank + 2])
        self._is_short = self._nelements <= width_of(1, dtype.itemsize, 1)
        self._staging: Staging | None = None
        self._halves: list[_Half] | None = None
        self._job: Collective | None = None
        self._x: Array | None = None
        self._result: Array | None = None

    def lay_out(self, staging: Staging, name: str, x: Array) -> None:
        """Copy this rank's array to where near ranks read it (local); `name` of the call is for messages (global)."""
        if staging is not self._staging:
            is_near = self._is_short and not (staging.far or self._goes_by_messages(staging))
            self._staging, self._halves = staging, self._views(staging) if is_near else None
        self._x, self._result = x, np.empty(self._nelements, self._dtype)
        if self._halves is not None:
            self._halves[staging.epoch % 2].own[...] = x.reshape(-1)
        elif self._nelements:
            by_messages = self._goes_by_messages(staging)
            rounds = Rounds(self._bounds, width_of(1, self._dtype.itemsize, 1, by_messages=by_messages))
            steps = Steps(name, None, shares=True, rounds=rounds, by_messages=by_messages)
            self._job = Collective(staging, steps, Flat(x, self._own.start))
            self._job.lay_out(0)

    def run(self) -> Array:
        """All ranks' elements, one after the other in a new array, after `lay_out` and an agreement."""
        staging, job, x, result = self._staging, self._job, self._x, self._result
        assert staging is not None, "the elements are laid out"
        assert x is not None, "the elements are laid out"
        assert result is not None, "the elements are laid out"
        self._job = self._x = self._result = None
        if self._halves is not None:
            result[self._own] = x.reshape(-1)
            for span, elements in self._halves[staging.epoch % 2].others:
                result[span] = elements  # (read in the memory of a near rank)
            staging.epoch += 1
        elif job is not None:
            job.run([Flat(result)], None)
        return result

    def _goes_by_messages(self, staging: Staging) -> bool:
        nbytes = self._nelements * self._dtype.itemsize // len(self._bounds[1:])
        return goes_by_messages(nbytes, shared=staging.shared)

    def _views(self, staging: Staging) -> list[_Half]:
        """Views of both halves of the staging memory; all ranks are near (local)."""

        def view(peer: int, half: int) -> Array:
            span = self._bounds[peer], self._bounds[peer + 1]
            return staging.slot(RESULTS, peer, half, 0, span, self._dtype).x

        peers = [peer for peer in staging.near if self._bounds[peer] < self._bounds[peer + 1]]
        places = [slice(self._bounds[peer], self._bounds[peer + 1]) for peer in peers]
        return [
            _Half(
                view(self._rank, half), [(place, view(peer, half)) for place, peer in zip(places, peers, strict=True)]
            )
            for half in (0, 1)
        ]
