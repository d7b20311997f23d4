"""Executor of a redistribution: each rank fetches the elements that it needs, and adds them to its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pblas.execute.redistribution.transfer import Movement, SourceMatrix

if TYPE_CHECKING:
    import numpy as np

    from pblas.backends.dtypes import Array
    from pblas.execute.redistribution.scaling import Put
    from pblas.plans.redistribution import RedistributionPlan


class Moved(NamedTuple):
    """Local arrays of one execution.

    Args:
        source: op(A) (local).
        target: B (local).
        put: applied to elements of op(A) and B (global).
    """

    source: Array
    target: Array
    put: Put


class RunRelayout:
    """Runs a RedistributionPlan on one rank."""

    def __init__(self, plan: RedistributionPlan, backend: Any, dtype: np.dtype[Any]) -> None:
        # If A is not read, B is moved to itself, and only B is read.
        source, desc = plan.target, plan.b
        if plan.reads_a:
            source, desc = plan.source, plan.a if plan.trans == "N" else plan.a.T
        self._home = SourceMatrix(backend, source, dtype, desc.order)
        self._movement = Movement(self._home, plan.target, trapezoid=plan.trapezoid)
        self.lends = plan.reads_a
        """Whether peers read this rank's A, or a copy of it, until the closing agreement (global)."""

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of buffers that this rank holds now."""
        return self._home.workspace_nbytes + self._movement.workspace_nbytes

    def publish(self, x: Moved) -> bool:
        """Publish the location of A; true if it must be staged first."""
        return self._home.publish(x.source if self.lends else x.target)

    def prepare(self, *, scratch: bool) -> bool:
        """Stage A if any rank must."""
        if scratch and self.lends:
            self._home.stage()
        return scratch and self.lends

    def run(self, x: Moved) -> None:
        """B = alpha op(A) + beta B."""
        self._movement.begin()
        self._movement.finish(x.target, x.put)
        self._home.release()

    def rest(self) -> None:
        """Free the memory of messages and copies until it is needed again; all ranks do so."""
        self._movement.rest()
