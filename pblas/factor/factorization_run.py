"""Right-looking factorization by block columns, with one panel of lookahead; Cholesky and LU are subclasses.

Step k, on every rank that has columns after panel k:

    panel k arrives                                   (its header says so, with pivots and INFO)
    the owner of panel k + 1 updates panel k + 1, factors it, and sends its header
    the other columns after panel k are updated       (meanwhile panel k + 1 arrives)

On a GPU panels are factored on the side lane, beside the updates on the main lane. The host launches a step's update
before it launches the hundreds of kernels that factor the next panel, and looks at INFO at the end only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

from pblas.factor.block_columns import BlockColumns, Part
from pblas.layouts.placement import Placement
from pblas.redistribution.transfer import SourceMatrix, own_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.backends.transport import Transfer
    from pblas.factor.factorization_plan import FactorizationPlan, Panel

TAG_HEADER = 1041
_WHAT = "factor a panel"


class RunFactorization(ABC):
    """Runs a factorization on one rank: W is factored in place.

    Args:
        plan: what to run (global).
        backend: ranks, memory and messages (global).
        dtype: of the matrix (global).
    """

    peers_read = True
    """Peers read this rank's panels until the closing agreement (global)."""
    looks_ahead_by_rows: bool = False
    """Whether `look_ahead` uses the rows of a panel as they arrive (global)."""

    def __init__(self, plan: FactorizationPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        self.plan: FactorizationPlan = plan
        self._backend = backend
        self._arrays = backend.arrays
        self._rank = backend.rank
        self._home = SourceMatrix(backend, Placement.of(plan.w), dtype, "F")
        self._steps = plan.steps
        ranks = range(plan.w.nprocs)
        self._parts = [
            Part(
                *(panel, *plan.rows(panel)),
                [p for p in ranks if p != panel.owner and plan.needs(panel, p)],
                plan.piece_stops(s),
            )
            for s, panel in enumerate(self._steps)
        ]
        self.columns: BlockColumns = BlockColumns(self._home, self._parts)
        self._signals: list[Transfer] = []
        self._end = plan.w.local_shape(self._rank)[1]
        self._headers = self._new_headers()
        """Of each panel, in a column: INFO of the panel, and what `npivots` announces (global)."""
        self.progress: Callable[[float], None] | None = None
        """Called with the done part of the work after each panel but the last; None for no calls (local)."""
        self.w: Array
        """This rank's part of W (local)."""

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's workspace."""
        return self.columns.workspace_nbytes + int(self._headers.nbytes)

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
        if self._steps:
            self._backend.clear(self._headers)
            self._run()

    def _run(self) -> None:
        arrays = self._arrays
        with arrays.on_side_lane(_WHAT, "factor"):
            self.start()
            if self._steps[0].owner == self._rank:
                self._factor_and_send(0)
        self.columns.request(0)
        for s in range(len(self._steps)):
            updated = arrays.mark()
            self._receive(s)
            panel = self.columns.open(s) if self._is_read(s) else None
            if panel is not None and not self.looks_ahead_by_rows:
                self.columns.await_all(s)
            with arrays.on_side_lane():
                factored = arrays.mark()
            arrays.follow(factored)
            if self.stops(s):
                if panel is not None:
                    self.columns.await_all(s)
                break
            self.columns.request(s + 1)
            first, is_next = self._start_after(s), s + 1 < len(self._steps) and self._steps[s + 1].owner == self._rank
            after = first + (self._steps[s + 1].width if is_next else 0)
            if is_next and arrays.traits.blocking:
                self.look_ahead(s, panel, first, after, updated)
            if panel is not None:
                self.columns.await_all(s)
                if after < self._end:
                    self.update(s, panel, after, self._end, self.columns.whole(s))
            if is_next and not arrays.traits.blocking:
                self.look_ahead(s, panel, first, after, updated)
            self.complete(s)
            if self.progress is not None and s + 1 < len(self._steps):
                self.progress(1 - (1 - self._steps[s].stop / self._steps[-1].stop) ** 3)  # n^3 is left of n columns
        self.columns.sent()
        for transfer in self._signals:
            self._backend.wait(transfer.done, "sending headers of panels")
        self._signals = []

    def look_ahead(self, s: int, panel: Array | None, first: int, after: int, updated: Any) -> None:
        """Update the next panel, which this rank owns, and factor it, after the update of the step before."""
        assert panel is not None, "the rank has columns after panel s"
        with self._arrays.on_side_lane(_WHAT, "factor"):
            self._arrays.follow(updated)
            pieces = self.columns.arriving(s) if self.looks_ahead_by_rows else self.columns.whole(s)
            self.update(s, panel, first, after, pieces)
            self._factor_and_send(s + 1)

    def finish(self) -> None:
        """Complete W, after the closing agreement: no other rank reads W any more."""
        del self.w
        self._home.release()

    @property
    def info(self) -> int:
        """LAPACK's INFO of the last execution, that of the first panel with one, equal on all ranks (global)."""
        return _first_info(self._backend, self._steps, self._headers)

    def taken_info(self) -> Callable[[], int]:
        """A function that looks at INFO of the last execution, whatever is executed before it is called (local)."""
        headers, self._headers = self._headers, self._new_headers()
        return partial(_first_info, self._backend, self._steps, headers)

    def _new_headers(self) -> Array:
        shape = 1 + max(map(self.npivots, self._steps), default=0), len(self._steps)
        integer = self._arrays.traits.pivot_dtype
        memory = own_memory(self._backend, shape[0] * shape[1] * integer.itemsize)
        headers: Array = self._arrays.array(memory, shape, integer, "F")
        return headers

    # Each factorization defines these

    def start(self) -> None:  # noqa: B027 - LU takes W as it is
        """Prepare this rank's part of W (local)."""

    @abstractmethod
    def factor(self, s: int) -> None:
        """Factor this rank's updated panel s, in place, and write its header (local)."""

    @abstractmethod
    def update(self, s: int, panel: Array, first: int, last: int, pieces: Iterable[tuple[int, int]]) -> None:
        """Update the local columns first..last-1 with a factored panel."""

    def complete(self, s: int) -> None:  # noqa: B027 - Cholesky has nothing to complete
        """Do the rest of step s, after the updates (local)."""

    def npivots(self, panel: Panel) -> int:
        """Exchanged rows of which all ranks are told with a panel (global)."""
        return 0

    def stops(self, s: int) -> bool:
        """Whether the factorization ends with panel s (global)."""
        return False

    # Headers of panels

    def panel_info(self, s: int) -> Array:
        """INFO of panel s: a view of one element (local)."""
        info: Array = self._headers[:1, s]
        return info

    def panel_pivots(self, s: int) -> Array:
        """The pivots of panel s, from 1 at the panel's first row: a view (local)."""
        pivots: Array = self._headers[1 : 1 + self.npivots(self._steps[s]), s]
        return pivots

    # Order of the ranks

    def _start_after(self, s: int) -> int:
        """The first local column after panel s (local)."""
        p = self.plan.w.grid.coordinates(self._rank)[1]
        return self.plan.w.columns.local_start(self._steps[s].stop, p)

    def _is_read(self, s: int) -> bool:
        """Whether this rank uses panel s (local)."""
        return self._start_after(s) < self._end

    def _header(self, s: int) -> Array:
        """The header of panel s, as one column (local)."""
        header: Array = self._headers[: 1 + self.npivots(self._steps[s]), s : s + 1]
        return header

    def _factor_and_send(self, s: int) -> None:
        """Factor panel s, and tell all ranks."""
        self.factor(s)
        self.send_header(s, near=False)
        self.columns.offer(s)
        self.send_header(s, near=True)

    def send_header(self, s: int, *, near: bool) -> None:
        """Send the header of panel s to near ranks, which then read the panel in place, or to all others (local)."""
        backend = self._backend
        backend.sync()
        for peer in range(backend.size):
            if peer != self._rank and backend.is_near(peer) == near:
                self._signals.append(backend.channel.send(self._header(s), peer, TAG_HEADER))

    def _receive(self, s: int) -> None:
        """Wait for the header of panel s."""
        owner = self._steps[s].owner
        if owner != self._rank:
            with self._arrays.on_side_lane():
                transfer = self._backend.channel.receive(self._header(s), owner, TAG_HEADER)
            self._backend.wait(transfer.done, f"panel {s} of a factorization, of rank {owner}")
            self._backend.sync()


def _first_info(backend: HostRanks, steps: list[Panel], headers: Array) -> int:
    """INFO of the first panel that has one, counted from the first column; 0 if there is none (global)."""
    infos = backend.reading(headers)[0] if steps else ()
    return next((step.start + int(info) for step, info in zip(steps, infos, strict=True) if info), 0)
