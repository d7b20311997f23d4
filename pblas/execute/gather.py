"""The movement of AllGatherGemm: every rank reads every shard of one operand.

Ranks of one node read a shard where it lies, in the owner's window. Between nodes shards travel in pieces, two of them
in flight on the receiving side, so that one arrives while the GEMM consumes the other.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pblas.pieces import backwards, pieces

if TYPE_CHECKING:
    from pblas.backends.gemm import Array
    from pblas.backends.mpi import MpiBackend, Transfer
    from pblas.one_dimensional import AllGatherGemm, GatherStep

TAG = 1000


class Gather:
    """Movement of one AllGatherGemm plan; its buffers live as long as the plan.

    Args:
        backend: the ranks and their memory (global).
        plan: what is gathered (global).
        dtype: of the operands (global).
        order: storage order of the gathered operand in the plan's orientation, "F" or "C" (global).
    """

    def __init__(
        self, backend: MpiBackend, plan: AllGatherGemm, dtype: np.dtype[Any], order: Literal["F", "C"]
    ) -> None:
        self._backend, self._plan, self._dtype, self._order = backend, plan, dtype, order
        rank = backend.rank
        others = [peer for peer in range(plan.product.nprocs) if peer != rank]
        readers = backwards(rank, plan.product.nprocs)  # in the order in which they reach this rank's shard
        self._sends_to = [peer for peer in readers if not backend.is_near(peer) and plan.takes_part(peer)]
        self._steps = list(plan.steps(rank))
        self._far = [step for step in self._steps if step.source != rank and not backend.is_near(step.source)]
        self._location = backend.location_table() if backend.shared else None
        self._is_read = any(map(backend.is_near, others))
        sizes = [plan.shard_shape(s.source)[0] * (s.c1 - s.c0) * dtype.itemsize for s in self._far]
        if plan.overlap:
            sizes = [max(sizes)] * 2 if sizes else []
        self._buffers = [np.empty(nbytes, np.uint8) for nbytes in sizes]
        self._stage: Any = None
        self._shard: Array

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's buffers."""
        return sum(buffer.nbytes for buffer in self._buffers) + (self._stage.nbytes if self._stage is not None else 0)

    def publish(self, shard: Array) -> bool:
        """Say where this rank's shard lies; true if it must be staged first, which all ranks then do together."""
        self._shard = shard
        if self._location is None:
            return False
        if self._backend.publish(self._location, shard) or not self._is_read:
            return False
        if self._stage is None:
            return True
        self.stage()
        return False

    def stage(self) -> None:
        """**Collective** at first. Copy a shard that does not lie in a window into one that does."""
        assert self._location is not None, "only a shard that a peer reads in place is staged"
        if self._stage is None:
            plan = self._plan
            other = plan.oriented.n if plan.along_k else plan.oriented.k
            self._stage = self._backend.allocate_scratch(plan.shards.max_count * other * self._dtype.itemsize)
        if self._backend.publish(self._location, self._shard):
            return
        staged = self._backend.peer_block(
            self._stage, self._backend.rank, 0, self._shard.shape, self._dtype, self._order
        )
        self._backend.arrays.assign(self._shard, staged)
        self._backend.publish(self._location, staged)

    def begin(self) -> None:
        """Start to send the own shard to the ranks of other nodes and to receive theirs."""
        channel, columns = self._backend.channel, self._shard.shape[1]
        self._sends = [
            channel.send(self._shard[:, c0:c1], peer, TAG)
            for peer in self._sends_to
            if self._shard.size
            for _, c0, c1 in pieces(columns, self._plan.chunks)
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
        """The columns that a step multiplies, when they have arrived; valid until the next fetch."""
        if step.source == self._backend.rank:
            self.progress()
            return self._shard[:, step.c0 : step.c1]
        if self._backend.is_near(step.source):
            self.progress()
            shape = self._plan.shard_shape(step.source)
            assert self._location is not None, "near peers have published"
            shard = self._backend.peer_array(self._location, step.source, shape, self._dtype, self._order)
            piece = shard[:, step.c0 : step.c1]
            self._backend.read_nbytes += piece.nbytes
            return piece
        if self._in_use is not None:
            self._free.append(self._in_use)
        self._post()
        transfer, piece, self._in_use = self._posted.popleft()
        self._backend.wait(transfer.done, f"AllGatherGemm: shard of rank {step.source}, piece {step.piece}")
        self._post()
        return piece

    def progress(self) -> None:
        """Let MPI move what is on its way."""
        for transfer, *_ in self._posted:
            transfer.done()

    def end(self) -> None:
        """Return when the own shard may be overwritten as far as other nodes are concerned."""
        for transfer in self._sends:
            self._backend.wait(transfer.done, "AllGatherGemm: sending the own shard")
        self._sends = []
        del self._shard  # a finished execution keeps no matrix alive

    def _post(self) -> None:
        while self._waiting and self._free:
            step, buffer = self._waiting.popleft(), self._free.popleft()
            rows, columns = self._plan.shard_shape(step.source)[0], step.c1 - step.c0
            piece = np.ndarray((rows, columns), self._dtype, buffer.data, order=self._order)
            self._posted.append((self._backend.channel.receive(piece, step.source, TAG), piece, buffer))
