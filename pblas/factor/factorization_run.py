"""Right-looking factorization by block columns, with one panel of lookahead; Cholesky, LU and QR are subclasses.

Step k, on every rank that has columns after panel k:

    panel k arrives                                              (its header says so, with pivots and INFO)
    W[:, k+1] := its update with panel k, factored and broadcast (lookahead, on the owner of panel k + 1)
    W[:, j] := its update with panel k, for all j > k + 1        (trailing update; meanwhile panel k + 1 arrives)

On a GPU panels are factored on the side lane, beside the updates on the main lane. The host launches a step's update
before it launches the hundreds of kernels that factor the next panel, and looks at INFO at the end only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from pblas.factor.factorization_plan import columns_from
from pblas.factor.panel_broadcast import PanelBroadcast, PanelRows
from pblas.factor.panel_exchange import PanelExchange
from pblas.layouts.placement import Placement
from pblas.redistribution.transfer import SourceMatrix, own_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pblas.backends.dtypes import Array, Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.backends.transport import Transfer
    from pblas.factor.factorization_plan import FactorizationPlan, Panel

TAG_HEADER = 1041
FACTOR = "factor a panel"


class FactorsInPlace:
    """The methods that executors which factor W in its place have in common."""

    _source: SourceMatrix
    w: Array  # this rank's part of W (local)

    def publish(self, w: Array) -> bool:
        """Publish the location of W, which is in a window if ranks share memory: false."""
        self.w = w
        return self._source.publish(w)

    def prepare(self, *, scratch: bool) -> bool:
        """Nothing is staged: W is factored in its place."""
        assert not scratch, "W is made by the context"
        return False

    def finish(self) -> None:
        """Complete W, after the closing agreement: no other rank reads W any more."""
        del self.w
        self._source.release()


class RunFactorization(FactorsInPlace, ABC):
    """Runs a factorization on one rank: W is factored in place."""

    peers_read = True  # peers read this rank's panels until the closing agreement (global)
    looks_ahead_first: ClassVar[bool] = False
    """Whether on GPUs too the host launches the lookahead before the trailing update (global)."""
    takes_pieces: ClassVar[bool] = False
    """Whether the next panel is updated on CPUs piece by piece, as the rows of the panel before arrive (global)."""

    def __init__(self, plan: FactorizationPlan, backend: HostRanks, dtype: Dtype) -> None:
        self.plan: FactorizationPlan = plan
        self._backend, self._arrays, self._rank = backend, backend.arrays, backend.rank
        self._source = SourceMatrix(backend, Placement.of(plan.w), dtype, "F")
        self._steps = plan.steps
        ranks = range(plan.nreaders)
        readers = ([p for p in ranks if p != panel.owner and plan.needs(panel, p)] for panel in self._steps)
        rows = [
            PanelRows(panel, *plan.rows(panel), peers, plan.piece_stops(k))
            for k, (panel, peers) in enumerate(zip(self._steps, readers, strict=True))
        ]
        self._replicated = PanelExchange(self._source, rows, plan.w) if plan.replicated else None
        """The panels that all ranks factor, if they do."""
        self.panels: PanelBroadcast = self._replicated or PanelBroadcast(self._source, rows)
        self._headers_sent: list[Transfer] = []
        self._end = plan.w.local_shape(self._rank)[1]
        self._first_after = [self._end - columns_from(plan.w, panel.stop, self._rank) for panel in self._steps]
        """The first local column after each panel (local)."""
        self._headers = self._new_headers()
        """Of each panel, in a column: INFO of the panel, and its `npivots` pivots (global)."""
        self.progress: Callable[[float], None] | None = None
        """Called with the done part of the work after each panel but the last; None for no calls (local)."""

    def run(self, w: Array) -> None:
        """Factor W."""
        if not self._steps:
            return
        arrays, last = self._arrays, len(self._steps) - 1
        self._backend.fill(self._headers)
        # panel 0: factored and broadcast
        with arrays.on_side_lane(FACTOR, "factor"):
            self.start()
            if self._owns(0):
                self._factor_and_broadcast(0)
        self.panels.receive(0)
        for k in range(len(self._steps)):
            updated = arrays.mark()
            # panel k, from its owner   (None if this rank has no columns to update with it)
            panel = self._await_panel(k)
            if panel is not None:
                self.begin_step(k, panel)
            if self.has_failed(k):
                if panel is not None:
                    self.panels.wait(k)
                break
            self.panels.receive(k + 1)
            # this rank's columns j1..j2-1 are panel k + 1, if it has that panel, and j2.. are the others after panel k
            j1, owns_next = self._first_after[k], self._owns(k + 1)
            j2 = self._first_after[k + 1] if owns_next else j1
            # W[:, k+1] := its update with panel k, factored and broadcast   (lookahead)
            is_first = arrays.traits.blocking or self.looks_ahead_first
            if owns_next and is_first:
                self.look_ahead(k, panel, j1, j2, updated)
            # W[:, j] := its update with panel k, for the other columns j   (trailing update)
            if panel is not None:
                self.panels.wait(k)
                if j2 < self._end:
                    self.update(k, panel, j2, self._end, self.panels.whole(k))
            if owns_next and not is_first:  # a GPU works on both at once
                self.look_ahead(k, panel, j1, j2, updated)
            self.end_step(k)
            if self.progress is not None and k < last:
                self.progress(1 - (1 - self._steps[k].stop / self._steps[last].stop) ** 3)  # n^3 is left of n columns
        self.panels.wait_sent()
        for transfer in self._headers_sent:
            self._backend.wait(transfer.done, "sending headers of panels")
        self._headers_sent = []

    def look_ahead(self, k: int, panel: Array | None, j0: int, j1: int, updated: object) -> None:
        """Update panel k + 1, local columns j0..j1-1, after the trailing update `updated` of step k - 1; factor it."""
        assert panel is not None, "the rank has columns after panel k"
        with self._arrays.on_side_lane(FACTOR, "factor"):
            self._arrays.follow(updated)
            self.update(k, panel, j0, j1, self.panels.received(k) if self._by_pieces else self.panels.whole(k))
            self._factor_and_broadcast(k + 1)

    # Each factorization defines these

    def start(self) -> None:
        """Prepare this rank's part of W, before the first panel is factored (local)."""

    @abstractmethod
    def factor(self, k: int) -> None:
        """Factor this rank's updated panel k, in place, and write its header (local)."""

    @abstractmethod
    def update(self, k: int, panel: Array, j0: int, j1: int, pieces: Iterable[tuple[int, int]]) -> None:
        """Update the local columns j0..j1-1 with the factored panel k, whose rows arrive in pieces (local)."""

    def reads(self, k: int) -> bool:
        """Whether this rank needs panel k: it has columns after it (local)."""
        return self._first_after[k] < self._end

    def begin_step(self, k: int, panel: Array) -> None:
        """Do what all updates of step k need, once the panel has arrived or begins to arrive by pieces (local)."""

    def end_step(self, k: int) -> None:
        """Do the rest of step k, after the updates (local)."""

    def npivots(self, panel: Panel) -> int:
        """Exchanged rows of which all ranks are told with a panel (global)."""
        return 0

    def has_failed(self, k: int) -> bool:
        """Whether INFO of panel k, where the host knows it already, ends the factorization (global)."""
        return False

    @property
    def workspace_nbytes(self) -> int:
        return self.panels.workspace_nbytes + int(self._headers.nbytes)

    @property
    def info(self) -> int:
        """LAPACK's INFO of the last execution, that of the first panel with one, equal on all ranks (global)."""
        return first_info(self._backend, self._steps, self._headers)

    def deferred_info(self) -> Callable[[], int]:
        """A function that looks at INFO of the last execution, whatever is executed before it is called (local)."""
        headers, self._headers = self._headers, self._new_headers()
        return partial(first_info, self._backend, self._steps, headers)

    # Headers of panels

    def panel_info(self, k: int) -> Array:
        """INFO of panel k: a view of one element (local)."""
        info: Array = self._headers[:1, k]
        return info

    def panel_pivots(self, k: int) -> Array:
        """The pivots of panel k, from 1 at the panel's first row: a view (local)."""
        pivots: Array = self._headers[1 : 1 + self.npivots(self._steps[k]), k]
        return pivots

    def _new_headers(self) -> Array:
        shape = 1 + max(map(self.npivots, self._steps), default=0), len(self._steps)
        integer = self._arrays.traits.pivot_dtype
        memory = own_memory(self._backend, shape[0] * shape[1] * integer.itemsize)
        headers: Array = self._arrays.array(memory, shape, integer, "F")
        return headers

    def _header(self, k: int) -> Array:
        """The header of panel k, as one column (local)."""
        header: Array = self._headers[: 1 + self.npivots(self._steps[k]), k : k + 1]
        return header

    def send_header(self, k: int, *, near: bool) -> None:
        """Send the header of panel k to near ranks, which then read the panel in place, or to all others (local)."""
        backend = self._backend
        backend.sync()
        for peer in range(backend.size):
            if peer != self._rank and backend.is_near(peer) == near:
                self._headers_sent.append(backend.channel.send(self._header(k), peer, TAG_HEADER))

    # Panels

    @property
    def _by_pieces(self) -> bool:
        """Whether the next panel is updated piece by piece (global)."""
        return self.takes_pieces and self._arrays.traits.blocking

    def own_columns(self, k: int) -> Array:
        """All rows of this rank's columns of panel k (local)."""
        columns: Array = self.w[:, self._first_after[k - 1] if k else 0 : self._first_after[k]]
        return columns

    def columns_of(self, k: int) -> Array:
        """All rows of panel k, on a rank that factors it (local)."""
        return self._replicated.columns(k) if self._replicated else self.own_columns(k)

    def _owns(self, k: int) -> bool:
        """Whether there is a panel k, and this rank factors it (local)."""
        return k < len(self._steps) and (self.plan.replicated or self._steps[k].owner == self._rank)

    def _factor_and_broadcast(self, k: int) -> None:
        """Factor panel k, and tell all ranks; or send this rank's columns of it, if all ranks factor it."""
        if self._replicated:
            self._replicated.send(k)
            return
        self.factor(k)
        self.send_header(k, near=False)
        self.panels.send(k)
        self.send_header(k, near=True)

    def _await_panel(self, k: int) -> Array | None:
        """Panel k after its header, whose rows may still be under way; None if this rank does not need it."""
        if self._replicated:
            whole = self._replicated.fetch(k)
            self.factor(k)
            self._replicated.keep(k)
            return whole
        arrays, owner = self._arrays, self._steps[k].owner
        if owner != self._rank:
            with arrays.on_side_lane():
                transfer = self._backend.channel.receive(self._header(k), owner, TAG_HEADER)
            self._backend.wait(transfer.done, f"panel {k} of a factorization, of rank {owner}")
            self._backend.sync()
        panel = self.panels.view(k) if self.reads(k) else None
        if panel is not None and not self._by_pieces:
            self.panels.wait(k)
        with arrays.on_side_lane():
            factored = arrays.mark()
        arrays.follow(factored)
        return panel


class RunWithoutPanels:
    """Base of executors that factor W in place by messages: no rank reads the memory of another."""

    peers_read = False
    workspace_nbytes = 0
    """All memory belongs to the factor (local)."""

    def __init__(self, plan: FactorizationPlan, backend: HostRanks, dtype: Dtype) -> None:
        self._w, self._backend, self._arrays, self._dtype = plan.w, backend, backend.arrays, dtype
        self.progress: Callable[[float], None] | None = None
        """Unused: the caller reports the end of the one step (local)."""

    def publish(self, w: Array) -> bool:
        """Nothing is published."""
        assert w.shape == self._w.local_shape(self._backend.rank), "W is as planned"
        return False

    def prepare(self, *, scratch: bool) -> bool:
        """Nothing is staged."""
        assert not scratch, "no array is published"
        return False

    def finish(self) -> None:
        """Nothing remains to be done."""


def first_info(backend: HostRanks, steps: list[Panel], headers: Array) -> int:
    """INFO of the first panel that has one, counted from the first column; 0 if there is none (global)."""
    infos = backend.reading(headers)[0] if steps else ()
    return next((step.start + int(info) for step, info in zip(steps, infos, strict=True) if info), 0)
