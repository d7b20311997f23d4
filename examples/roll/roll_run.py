"""Executor of a roll: each rank fetches the rows of its part of B."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pblas.layouts.placement import Placement
from pblas.redistribution.transfer import Movement, SourceMatrix

if TYPE_CHECKING:
    import numpy as np

    from examples.roll.roll_plan import RollPlan
    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.redistribution.packing import Scaling


class RollOperands(NamedTuple):
    """The local arrays A and B of one execution; `put` copies elements or conjugates them."""

    source: Array
    target: Array
    put: Scaling


class RunRoll:
    """**Collective.** Runs a RollPlan on one rank; built once, run by every call with the same form."""

    peers_read = True
    """Peers read this rank's A until the closing agreement (global)."""

    def __init__(self, plan: RollPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        place, rank = Placement.of(plan.a), backend.rank
        self._a = SourceMatrix(backend, place, dtype, plan.a.order)
        self._steps: list[tuple[Movement, slice]] = []
        for (start, stop, to), (_, target) in zip(plan.ranges, plan.parts, strict=True):
            first = place.local_offset(to, 0, rank)[0]
            rows = slice(first, first + target.local_shape(rank)[0])  # of this rank's part of B
            self._steps.append((Movement(self._a, target, (start, stop, 0, plan.a.n)), rows))

    @property
    def workspace_nbytes(self) -> int:
        return self._a.workspace_nbytes + sum(movement.workspace_nbytes for movement, _ in self._steps)

    def publish(self, x: RollOperands) -> bool:
        """Publish the location of A; true if peers cannot read it there."""
        return self._a.publish(x.source)

    def prepare(self, *, scratch: bool) -> bool:
        """Copy A to memory that peers read, if any rank must; then the ranks agree once more."""
        self._a.prepare(scratch=scratch)
        return scratch

    def run(self, x: RollOperands) -> None:
        """B[to : to + stop - start, :] = A[start:stop, :] for each range of rows."""
        for movement, _ in self._steps:
            movement.begin()
        for movement, rows in self._steps:
            movement.finish(x.target[rows], x.put)
        self._a.release()

    def free_buffers(self) -> None:
        """Free the memory of messages between two calls. All ranks do so."""
        for movement, _ in self._steps:
            movement.free_buffers()
