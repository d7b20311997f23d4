"""The transfers of AllGatherGemm: every rank reads every shard of one operand.

Ranks of one node read a shard in place, in the owner's window. Between nodes shards are sent in pieces. The receiver
has buffers for the pieces of one shard, which arrive while the GEMM multiplies the own shard or another one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pblas.execute.redistribution.transfer import SourceMatrix
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.plans.partition import backwards, pieces

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.backends.peers import Transfer
    from pblas.plans.one_dimensional import AllGatherGemm, GatherStep

TAG = 1000


class Gather:
    """Transfers of one AllGatherGemm plan; the buffers live as long as the plan.

    Args:
        backend: the ranks and their memory (global).
        plan: the plan (global).
        dtype: of the operands (global).
        order: storage order of the gathered operand in the plan's orientation, "F" or "C" (global).
    """

    def __init__(self, backend: HostRanks, plan: AllGatherGemm, dtype: np.dtype[Any], order: Literal["F", "C"]) -> None:
        self._backend, self._plan, self._dtype, self._order = backend, plan, dtype, order
        rank = backend.rank
        readers = backwards(rank, plan.product.nprocs)  # in the order in which they read this rank's shard
        self._sends_to = [peer for peer in readers if not backend.is_near(peer) and plan.takes_part(peer)]
        self._steps = list(plan.steps(rank))
        self._far = [step for step in self._steps if step.source != rank and not backend.is_near(step.source)]
        self._home = SourceMatrix(backend, _placement(plan), dtype, order)
        sizes = [plan.shard_shape(s.source)[0] * (s.c1 - s.c0) * dtype.itemsize for s in self._far]
        if plan.overlap:
            sizes = [max(sizes)] * plan.in_flight if sizes else []
        self._buffers = [backend.buffer(nbytes) for nbytes in sizes]

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's buffers."""
        return sum(buffer.nbytes for buffer in self._buffers) + self._home.workspace_nbytes

    def publish(self, shard: Array) -> bool:
        """Publish the location of this rank's shard; true if all ranks must stage their shards first."""
        return self._home.publish(shard)

    def stage(self) -> None:
        """**Collective** at first. Copy a shard that is not in a window into a window."""
        self._home.stage()

    def begin(self) -> None:
        """Start to send the own shard to the ranks of other nodes and to receive theirs."""
        channel, shard = self._backend.channel, self._home.local
        self._sends = [
            channel.send(shard[:, c0:c1], peer, TAG)
            for peer in self._sends_to
            if shard.size
            for _, c0, c1 in pieces(shard.shape[1], self._plan.chunks)
        ]
        self._posted: deque[tuple[Transfer, Array, Array]] = deque()
        self._waiting = deque(self._far)
        self._free: deque[Array] = deque(self._buffers)
        self._in_use: Array | None = None
        self._post()
        if not self._plan.overlap:
            for transfer, *_ in self._posted:
                self._backend.wait(transfer.done, "AllGatherGemm: gathering before the GEMM")

    def fetch(self, step: GatherStep) -> Array:
        """The columns that a step multiplies, once they have arrived; valid until the next fetch."""
        is_near = self._backend.is_near(step.source)
        if is_near or step.source == self._backend.rank:
            piece = self._home.array(step.source)[:, step.c0 : step.c1]
            self._backend.read_nbytes += piece.nbytes if is_near else 0
            return piece
        if self._in_use is not None:
            self._free.append(self._in_use)
        self._post()
        transfer, piece, self._in_use = self._posted.popleft()
        self._backend.wait(transfer.done, f"AllGatherGemm: shard of rank {step.source}, piece {step.piece}")
        self._post()
        return piece

    def end(self) -> None:
        """Return when messages to other nodes no longer read the own shard."""
        for transfer in self._sends:
            self._backend.wait(transfer.done, "AllGatherGemm: sending the own shard")
        self._sends = []
        self._home.release()

    def _post(self) -> None:
        while self._waiting and self._free:
            step, buffer = self._waiting.popleft(), self._free.popleft()
            rows, columns = self._plan.shard_shape(step.source)[0], step.c1 - step.c0
            piece = np.ndarray((rows, columns), self._dtype, buffer.data, order=self._order)
            self._posted.append((self._backend.channel.receive(piece, step.source, TAG), piece, buffer))


def _placement(plan: AllGatherGemm) -> Placement:
    """Placement of the gathered operand, in the plan's orientation."""
    product, shards = plan.oriented, plan.shards
    across = product.n if plan.along_k else product.k
    whole = Split(across, max(1, across), 1)
    rows, columns = (shards, whole) if plan.along_k else (whole, shards)
    return Placement(rows, columns, (1, 1, 1))
