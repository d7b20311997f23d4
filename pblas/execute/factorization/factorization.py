"""Right-looking factorization by block columns, with one panel of lookahead; Cholesky and LU are subclasses.

Step k, on every rank that has columns after panel k:

    panel k arrives                                   (its header says that it is complete, with pivots and INFO)
    the owner of panel k + 1 updates panel k + 1, factors it, and sends its header
    the other columns after panel k are updated       (meanwhile panel k + 1 arrives)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.execute.factorization.block_columns import BlockColumns, Part
from pblas.execute.redistribution.transfer import SourceMatrix
from pblas.layouts.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.backends.peers import Transfer
    from pblas.plans.factorization import FactorizationPlan, Panel

TAG_HEADER = 1041


class RunFactorization(ABC):
    """Runs a factorization on one rank: W is factored in place.

    Args:
        plan: what to run (global).
        backend: ranks, memory and messages (global).
        dtype: of the matrix (global).
    """

    lends = True
    """Peers read this rank's panels until the closing agreement (global)."""

    def __init__(self, plan: FactorizationPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        self.plan: FactorizationPlan = plan
        self._backend = backend
        self._arrays = backend.arrays
        self._rank = backend.rank
        self._home = SourceMatrix(backend, Placement.of(plan.w), dtype, "F")
        self._steps = plan.steps
        ranks = range(plan.w.nprocs)
        self._parts = [
            Part(panel, *plan.rows(panel), [p for p in ranks if p != panel.owner and plan.needs(panel, p)])
            for panel in self._steps
        ]
        self._columns = BlockColumns(self._home, self._parts)
        self._signals: list[tuple[Transfer, Array]] = []
        self._end = plan.w.local_shape(self._rank)[1]
        self.info: int = 0
        """LAPACK's INFO of the last execution, equal on all ranks (global)."""
        self.progress: Callable[[float], None] | None = None
        """Called with the done part of the work after each panel but the last; None for no calls (local)."""
        self.w: Array
        """This rank's part of W (local)."""

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's workspace."""
        return self._columns.workspace_nbytes

    def publish(self, w: Array) -> bool:
        """Publish the location of W, which is in a window if ranks share memory: false."""
        self.w = w
        return self._home.publish(w)

    def prepare(self, *, scratch: bool) -> bool:
        """Nothing is staged: W is factored in its place."""
        assert not scratch, "W is made by the context"
        return False

    def run(self, w: Array) -> None:
        """Factor W."""
        self.info = 0
        if self._steps:
            self._run()

    def _run(self) -> None:
        if self._steps[0].owner == self._rank:
            self._factor_and_send(0)
        self._columns.request(0)
        for s in range(len(self._steps)):
            stops = self._receive(s)
            panel = self._columns.fetch(s) if self._is_read(s) else None
            if stops:
                break
            self._columns.request(s + 1)
            first = self._start_after(s)
            if s + 1 < len(self._steps) and self._steps[s + 1].owner == self._rank:
                after = first + self._steps[s + 1].width
                assert panel is not None, "it has columns after panel s"
                self.update(s, panel, first, after)
                self._factor_and_send(s + 1)
                first = after
            if panel is not None and first < self._end:
                self.update(s, panel, first, self._end)
            if self.progress is not None and s + 1 < len(self._steps):
                self.progress(1 - (1 - self._steps[s].stop / self._steps[-1].stop) ** 3)  # n^3 is left of n columns
        self._columns.sent()
        for transfer, _ in self._signals:
            self._backend.wait(transfer.done, "sending headers of panels")
        self._signals = []

    def finish(self) -> None:
        """Complete W, after the closing agreement: no other rank reads W any more (local)."""
        del self.w
        self._home.release()

    # Each factorization defines these

    @abstractmethod
    def factor(self, panel: Panel) -> int:
        """Factor this rank's updated panel, in place; the result is INFO of the whole matrix (local)."""

    @abstractmethod
    def update(self, s: int, panel: Array, first: int, last: int) -> None:
        """Update the local columns first..last-1 with a factored panel.

        Args:
            s: the step (global).
            panel: the rows `plan.rows` of panel s (local).
            first: first local column, at the begin of a block column (local).
            last: one past the last local column, at the end of a block column (local).
        """

    def header(self, panel: Panel) -> Array:
        """The integers of 32 bits that the owner of a panel sends to all ranks beside INFO; a view (local)."""
        return np.empty(0, np.intc)

    def stops(self, info: int) -> bool:
        """Whether the factorization ends after a panel that was factored with this INFO (global)."""
        return info > 0

    # Order of the ranks

    def _start_after(self, s: int) -> int:
        """The first local column after panel s (local)."""
        p = self.plan.w.grid.coordinates(self._rank)[1]
        return self.plan.w.columns.local_start(self._steps[s].stop, p)

    def _is_read(self, s: int) -> bool:
        """Whether this rank uses panel s (local)."""
        return self._start_after(s) < self._end

    def _factor_and_send(self, s: int) -> None:
        """Factor panel s, and tell all ranks."""
        panel, channel = self._steps[s], self._backend.channel
        info = self.factor(panel)
        self.info = self.info or info
        self._columns.offer(s)
        message = np.concatenate([np.array([info], np.intc), self.header(panel)])[:, None]
        self._backend.sync()  # near ranks read the panel after its header
        peers = (peer for peer in range(self._backend.size) if peer != self._rank)
        self._signals += [(channel.send(message, peer, TAG_HEADER), message) for peer in peers]

    def _receive(self, s: int) -> bool:
        """Wait for the header of panel s; whether the factorization ends with it."""
        panel = self._steps[s]
        if panel.owner != self._rank:
            pivots = self.header(panel)
            message = np.empty((1 + len(pivots), 1), np.intc)
            transfer = self._backend.channel.receive(message, panel.owner, TAG_HEADER)
            self._backend.wait(transfer.done, f"panel {s} of a factorization, of rank {panel.owner}")
            self._backend.sync()
            pivots[:] = message[1:, 0]
            self.info = self.info or int(message[0, 0])
        return self.stops(self.info)
