"""Executor of a redistribution: each rank fetches the elements of its part of B, and scales or adds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pblas.redistribution.packing import COPY, Put
from pblas.redistribution.transfer import Movement, SourceMatrix

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype, Order
    from pblas.backends.host_ranks import HostRanks
    from pblas.layouts.placement import Placement
    from pblas.layouts.trapezoid import Trapezoid


class RedistributionOperands(NamedTuple):
    """Local arrays of one execution."""

    source: Array  # op(A) (local)
    target: Array  # B (local)
    put: Put = COPY  # applied to elements of op(A) and B (global)


class RunRedistribution:
    """**Collective.** Moves op(A), or a trapezoid of it, from the placement `source` to B under the placement `target`.

    `order` is the storage order of the local arrays of op(A). `reads_a` is false if alpha is 0: then B is moved to
    itself, and only B is read. If every rank has the elements of its B, as with `alone`, no peer reads A.
    """

    def __init__(
        self,
        backend: HostRanks,
        source: Placement,
        target: Placement,
        dtype: Dtype,
        order: Order,
        trapezoid: Trapezoid | None = None,
        *,
        reads_a: bool = True,
        alone: bool = False,
    ) -> None:
        placed = source if reads_a else target
        self._source_matrix = SourceMatrix(backend, placed, dtype, order, symmetric=alone)
        self._movement = Movement(self._source_matrix, target, trapezoid=trapezoid, slot=None if alone else 0)
        self._reads_a = reads_a
        self.is_alone = alone or backend.size == 1
        """Whether no peer takes part, so that the work may be in the caller's stream (global)."""
        self.peers_read = reads_a and not alone
        """Whether peers read this rank's A, or a copy of it, until the closing agreement (global)."""

    @property
    def workspace_nbytes(self) -> int:
        return self._source_matrix.workspace_nbytes + self._movement.workspace_nbytes

    def publish(self, x: RedistributionOperands) -> bool:
        return self._source_matrix.publish(x.source if self._reads_a else x.target)

    def prepare(self, *, scratch: bool) -> bool:
        self._source_matrix.prepare(scratch=scratch and self.peers_read)
        return scratch and self.peers_read

    def run(self, x: RedistributionOperands) -> None:
        """**Collective.** B = alpha op(A) + beta B."""
        if self.is_alone:  # in the caller's stream nothing is published before
            self.publish(x)
        self._movement.begin()  # messages to and from ranks of other nodes
        # B[i, j] = alpha op(A)[i, j] + beta B[i, j]   (op(A) read in place within a node, from messages between nodes)
        self._movement.finish(x.target, x.put)
        self._source_matrix.release()

    def free_buffers(self) -> None:
        self._movement.free_buffers()
