"""Right-looking factorization by block columns, with one panel of lookahead; Cholesky, LU and QR are subclasses.

Step k, on every rank that has columns after panel k:

    panel k arrives                                   (its header says so, with pivots and INFO)
    lookahead: the owner of panel k + 1 updates it, factors it, and broadcasts it
    the trailing columns are updated with panel k     (meanwhile panel k + 1 arrives)

On a GPU panels are factored on the side lane, beside the updates on the main lane. The host launches a step's update
before it launches the hundreds of kernels that factor the next panel, and looks at INFO at the end only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pblas.factor.factorization_plan import columns_from
from pblas.layouts.placement import Placement
from pblas.redistribution.transfer import SourceMatrix, own_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.backends.transport import Transfer
    from pblas.factor.factorization_plan import FactorizationPlan, Panel

TAG_PANEL, TAG_HEADER = 1040, 1041
_BROADCAST, _FACTOR = "bring a panel", "factor a panel"


class PanelRows(NamedTuple):
    """Rows i0..i1-1 of a panel, the ranks besides its owner that read them, and the ends of their pieces (global)."""

    panel: Panel
    i0: int
    i1: int
    readers: Sequence[int]
    stops: Sequence[int] = ()

    def pieces(self) -> list[tuple[int, int]]:
        """Rows (start, stop) of the pieces in which the panel travels (global)."""
        starts = (self.i0, *self.stops[:-1])
        return [(i0, i1) for i0, i1 in zip(starts, self.stops or (self.i1,), strict=True) if i0 < i1]


class PanelBroadcast:
    """Broadcasts panels one after the other. On CPUs near ranks read them in the memory of their owners.

    The panel of a far rank, and on GPUs that of any other rank, arrives in one of two buffers: the next panel arrives
    while the current one is used. Panels arrive on the side lane, which the main lane follows after `fetch`.

        panels.send(k)            # on the owner: start to send panel k, which does not change before `wait_sent`
        panels.receive(k)         # start to receive panel k from a far rank
        panels.fetch(k)           # the panel, after its arrival; valid until receive(k + 2) or fetch(k + 2)

    A panel may travel in pieces, so that readers use its first rows while the others are under way:

        panels.send(k, i0, i1)    # on the owner: start to send the pieces of panel k that end in rows i0 + 1 to i1
        panels.open(k)            # the panel, whose rows may be used after they have arrived
        panels.received(k)        # iterates over the rows of its pieces, each after its arrival
    """

    def __init__(self, source: SourceMatrix, panels: Sequence[PanelRows]) -> None:
        self._source, self._backend, self._panels = source, source.backend, panels
        self._buffers: list[Any] = [None, None]
        self._receiving: dict[int, deque[tuple[tuple[int, int], Transfer]]] = {}
        self._sending: list[Transfer] = []
        self._used: Any = None
        """A mark of the main lane at the last `fetch`: operations before it use the panel before that one."""

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of buffers (local)."""
        return sum(buffer.nbytes for buffer in self._buffers if buffer is not None)

    def is_far(self, k: int) -> bool:
        """Whether this rank reads panel k, and gets it in a message (local)."""
        rows, rank = self._panels[k], self._backend.rank
        return rank in rows.readers and not self._backend.is_near(rows.panel.owner)

    def receive(self, k: int) -> None:
        """Start to receive panel k; nothing if it is read in place, not read, or does not exist."""
        if k < len(self._panels) and self.is_far(k):
            out, rows, channel = self._buffer(k), self._panels[k], self._backend.channel
            with self._backend.arrays.on_side_lane(_BROADCAST):
                self._backend.arrays.follow(self._used)
                self._receiving[k] = deque(
                    ((i0, i1), channel.receive(out[i0 - rows.i0 : i1 - rows.i0], rows.panel.owner, TAG_PANEL))
                    for i0, i1 in (rows.pieces() if out.size else ())
                )

    def send(self, k: int, i0: int = -1, i1: int | None = None) -> None:
        """Start to send panel k, or its pieces that end in rows i0 + 1 to i1, to the far ranks that read it."""
        rows, block = self._panels[k], self._in_place(k)
        far = [peer for peer in rows.readers if not self._backend.is_near(peer)]
        for start, stop in rows.pieces() if block.size else ():
            if i0 < stop <= (rows.i1 if i1 is None else i1):
                piece = block[start - rows.i0 : stop - rows.i0]
                self._sending += [self._backend.channel.send(piece, peer, TAG_PANEL) for peer in far]

    def fetch(self, k: int) -> Array:
        """Panel k as a local array, after its arrival; see `open`."""
        block = self.open(k)
        self.wait(k)
        return block

    def whole(self, k: int) -> list[tuple[int, int]]:
        """The rows (start, stop) of panel k, as one piece (global)."""
        return [self._panels[k][1:3]]

    def wait(self, k: int) -> None:
        """Return when panel k has arrived."""
        for _ in self.received(k):
            pass

    def received(self, k: int) -> Iterator[tuple[int, int]]:
        """Rows (start, stop) of the pieces of panel k, in order, after their arrival; of messages each piece once."""
        rows = self._panels[k]
        if not self.is_far(k):
            yield from rows.pieces()
            return
        text, pieces = f"panel of a factorization, of rank {rows.panel.owner}", self._receiving[k]
        while pieces:
            piece, transfer = pieces.popleft()
            self._backend.wait(transfer.done, text)
            yield piece

    def open(self, k: int) -> Array:
        """Panel k as a local array, whose rows arrive with `received`."""
        arrays = self._backend.arrays
        before, self._used = self._used, arrays.mark()
        if self.is_far(k):
            return self._buffer(k)
        block = self._in_place(k)
        if self._panels[k].panel.owner == self._backend.rank:
            return block
        self._backend.read_nbytes += block.nbytes
        if arrays.traits.reads_peers:
            return block
        copy = self._buffer(k)
        with arrays.on_side_lane(_BROADCAST):
            arrays.follow(before)
            arrays.assign(block, copy)
        return copy

    def wait_sent(self) -> None:
        """Return when all panels that this rank sends have left."""
        for transfer in self._sending:
            self._backend.wait(transfer.done, "sending panels of a factorization")
        self._sending, self._used = [], None

    def _in_place(self, k: int) -> Array:
        """Panel k in the memory of its owner (local)."""
        panel, i0, i1, *_ = self._panels[k]
        matrix: Array = self._source.array(panel.owner)
        return matrix[i0:i1, panel.j_loc : panel.j_loc + panel.width]

    def _buffer(self, k: int) -> Array:
        """Memory for panel k, in Fortran order."""
        source, rows = self._source, self._panels[k]
        buffer = self._buffers[k % 2]
        if buffer is None:
            largest = max((x.i1 - x.i0) * x.panel.width for x in self._panels)
            buffer = self._buffers[k % 2] = own_memory(source.backend, largest * source.dtype.itemsize)
        shape = rows.i1 - rows.i0, rows.panel.width
        block: Array = source.backend.arrays.array(buffer, shape, source.dtype, "F")
        return block


class RunFactorization(ABC):
    """Runs a factorization on one rank: W is factored in place."""

    peers_read = True  # peers read this rank's panels until the closing agreement (global)
    takes_pieces: ClassVar[bool] = False
    """Whether the next panel is updated on CPUs piece by piece, as the rows of the panel before arrive (global)."""

    def __init__(self, plan: FactorizationPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        self.plan: FactorizationPlan = plan
        self._backend, self._arrays, self._rank = backend, backend.arrays, backend.rank
        self._source = SourceMatrix(backend, Placement.of(plan.w), dtype, "F")
        self._steps = plan.steps
        ranks = range(plan.w.nprocs)
        readers = ([p for p in ranks if p != panel.owner and plan.needs(panel, p)] for panel in self._steps)
        self.panels: PanelBroadcast = PanelBroadcast(
            self._source,
            [
                PanelRows(panel, *plan.rows(panel), peers, plan.piece_stops(k))
                for k, (panel, peers) in enumerate(zip(self._steps, readers, strict=True))
            ],
        )
        self._signals: list[Transfer] = []
        self._end = plan.w.local_shape(self._rank)[1]
        self._first_after = [self._end - columns_from(plan.w, panel.stop, self._rank) for panel in self._steps]
        """The first local column after each panel (local)."""
        self._headers = self._new_headers()
        """Of each panel, in a column: INFO of the panel, and its `npivots` pivots (global)."""
        self.progress: Callable[[float], None] | None = None
        """Called with the done part of the work after each panel but the last; None for no calls (local)."""
        self.w: Array  # this rank's part of W (local)

    @property
    def workspace_nbytes(self) -> int:
        return self.panels.workspace_nbytes + int(self._headers.nbytes)

    def publish(self, w: Array) -> bool:
        """Publish the location of W, which is in a window if ranks share memory: false."""
        self.w = w
        return self._source.publish(w)

    def prepare(self, *, scratch: bool) -> bool:
        """Nothing is staged: W is factored in its place."""
        assert not scratch, "W is made by the context"
        return False

    def run(self, w: Array) -> None:
        """Factor W."""
        if not self._steps:
            return
        arrays = self._arrays
        self._backend.clear(self._headers)
        with arrays.on_side_lane(_FACTOR, "factor"):
            self.start()
            if self._owns(0):
                self._factor_and_broadcast(0)
        self.panels.receive(0)
        for k in range(len(self._steps)):
            updated = arrays.mark()
            panel = self._arrived(k)
            if self.stops(k):
                if panel is not None:
                    self.panels.wait(k)
                break
            self.panels.receive(k + 1)
            trailing, ahead = self._first_after[k], self._owns(k + 1)
            rest = trailing + (self._steps[k + 1].width if ahead else 0)
            # lookahead: panel k + 1 is updated, factored and broadcast first
            if ahead and arrays.traits.blocking:
                self.look_ahead(k, panel, trailing, rest, updated)
            # trailing update: this rank's other columns after panel k
            if panel is not None:
                self.panels.wait(k)
                if rest < self._end:
                    self.update(k, panel, rest, self._end, self.panels.whole(k))
            if ahead and not arrays.traits.blocking:  # a GPU works on both at once
                self.look_ahead(k, panel, trailing, rest, updated)
            self.complete(k)
            if self.progress is not None and k + 1 < len(self._steps):
                self.progress(1 - (1 - self._steps[k].stop / self._steps[-1].stop) ** 3)  # n^3 is left of n columns
        self.panels.wait_sent()
        for transfer in self._signals:
            self._backend.wait(transfer.done, "sending headers of panels")
        self._signals = []

    def look_ahead(self, k: int, panel: Array | None, j0: int, j1: int, updated: Any) -> None:
        """Update the next panel, local columns j0..j1-1, and factor it, after the update of the step before."""
        assert panel is not None, "the rank has columns after panel k"
        with self._arrays.on_side_lane(_FACTOR, "factor"):
            self._arrays.follow(updated)
            self.update(k, panel, j0, j1, self.panels.received(k) if self._by_pieces else self.panels.whole(k))
            self._factor_and_broadcast(k + 1)

    def finish(self) -> None:
        """Complete W, after the closing agreement: no other rank reads W any more."""
        del self.w
        self._source.release()

    @property
    def info(self) -> int:
        """LAPACK's INFO of the last execution, that of the first panel with one, equal on all ranks (global)."""
        return _first_info(self._backend, self._steps, self._headers)

    def deferred_info(self) -> Callable[[], int]:
        """A function that looks at INFO of the last execution, whatever is executed before it is called (local)."""
        headers, self._headers = self._headers, self._new_headers()
        return partial(_first_info, self._backend, self._steps, headers)

    # Each factorization defines these

    def start(self) -> None:  # noqa: B027 - LU takes W as it is
        """Prepare this rank's part of W (local)."""

    @abstractmethod
    def factor(self, k: int) -> None:
        """Factor this rank's updated panel k, in place, and write its header (local)."""

    @abstractmethod
    def update(self, k: int, panel: Array, j0: int, j1: int, pieces: Iterable[tuple[int, int]]) -> None:
        """Update the local columns j0..j1-1 with the factored panel k."""

    def complete(self, k: int) -> None:  # noqa: B027 - Cholesky has nothing to complete
        """Do the rest of step k, after the updates (local)."""

    def npivots(self, panel: Panel) -> int:
        """Exchanged rows of which all ranks are told with a panel (global)."""
        return 0

    def stops(self, k: int) -> bool:
        """Whether the factorization ends with panel k (global)."""
        return False

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
                self._signals.append(backend.channel.send(self._header(k), peer, TAG_HEADER))

    # Panels

    @property
    def _by_pieces(self) -> bool:
        """Whether the next panel is updated piece by piece (global)."""
        return self.takes_pieces and self._arrays.traits.blocking

    def columns_of(self, panel: Panel) -> Array:
        """All rows of a panel of this rank (local)."""
        columns: Array = self.w[:, panel.j_loc : panel.j_loc + panel.width]
        return columns

    def _owns(self, k: int) -> bool:
        """Whether there is a panel k, and this rank owns it (local)."""
        return k < len(self._steps) and self._steps[k].owner == self._rank

    def _factor_and_broadcast(self, k: int) -> None:
        """Factor panel k, and tell all ranks."""
        self.factor(k)
        self.send_header(k, near=False)
        self.panels.send(k)
        self.send_header(k, near=True)

    def _arrived(self, k: int) -> Array | None:
        """Panel k after its header, whose rows may still be under way; None if this rank has no columns after it."""
        arrays, owner = self._arrays, self._steps[k].owner
        if owner != self._rank:
            with arrays.on_side_lane():
                transfer = self._backend.channel.receive(self._header(k), owner, TAG_HEADER)
            self._backend.wait(transfer.done, f"panel {k} of a factorization, of rank {owner}")
            self._backend.sync()
        panel = self.panels.open(k) if self._first_after[k] < self._end else None
        if panel is not None and not self._by_pieces:
            self.panels.wait(k)
        with arrays.on_side_lane():
            factored = arrays.mark()
        arrays.follow(factored)
        return panel


def _first_info(backend: HostRanks, steps: list[Panel], headers: Array) -> int:
    """INFO of the first panel that has one, counted from the first column; 0 if there is none (global)."""
    infos = backend.reading(headers)[0] if steps else ()
    return next((step.start + int(info) for step, info in zip(steps, infos, strict=True) if info), 0)
