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
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pblas.layouts.placement import Placement
from pblas.redistribution.transfer import SourceMatrix, own_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.backends.transport import Transfer
    from pblas.factor.factorization_plan import FactorizationPlan, Panel

TAG_PANEL = 1040
_BRING = "bring a panel"


class Part(NamedTuple):
    """Rows i0..i1-1 of a panel, and the ranks other than its owner that read them (global).

    Args:
        panel: the panel (global).
        i0: first row (global).
        i1: one past the last row (global).
        readers: ranks (global).
        stops: for each piece in which the rows travel, one past its last row (global).
    """

    panel: Panel
    i0: int
    i1: int
    readers: Sequence[int]
    stops: Sequence[int] = ()

    def pieces(self) -> list[tuple[int, int]]:
        """Rows (start, stop) of the pieces in which the part travels (global)."""
        starts = (self.i0, *self.stops[:-1])
        return [(i0, i1) for i0, i1 in zip(starts, self.stops or (self.i1,), strict=True) if i0 < i1]


class BlockColumns:
    """Parts of block columns, read one after the other by this rank. On CPUs near ranks' parts are read in place.

    The part of a far rank, and on GPUs that of any other rank, arrives in one of two buffers: the next part arrives
    while the current one is used. Parts arrive on the side lane, which the main lane follows after `fetch`.

        columns.request(s)        # start to receive part s, if it is a far rank's
        columns.offer(s)          # on its owner: start to send part s, which does not change before `sent`
        columns.fetch(s)          # the part, after its arrival; it stays valid until request(s + 2) or fetch(s + 2)

    A part may travel in pieces, so that readers use its first rows while the others are under way:

        columns.offer(s, i0, i1)  # on its owner: start to send the pieces of part s that end in rows i0 + 1 to i1
        columns.open(s)           # the part, whose rows may be used after they have arrived
        columns.arriving(s)       # iterates over the rows of its pieces, each after its arrival

    Args:
        home: the matrix, whose ranks hold all rows of their columns (global).
        parts: the parts, in the order in which they are read (global).
    """

    def __init__(self, home: SourceMatrix, parts: Sequence[Part]) -> None:
        self._home, self._backend, self._parts = home, home.backend, parts
        self._buffers: list[Any] = [None, None]
        self._arriving: dict[int, deque[tuple[tuple[int, int], Transfer]]] = {}
        self._sending: list[Transfer] = []
        self._used: Any = None
        """A mark of the main lane at the last `fetch`: operations before it use the part before that one."""

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of buffers (local)."""
        return sum(buffer.nbytes for buffer in self._buffers if buffer is not None)

    def is_far(self, s: int) -> bool:
        """Whether this rank reads part s, and gets it in a message (local)."""
        part, rank = self._parts[s], self._backend.rank
        return rank in part.readers and not self._backend.is_near(part.panel.owner)

    def request(self, s: int) -> None:
        """Start to receive part s; nothing if it is read in place, not read, or does not exist."""
        if s < len(self._parts) and self.is_far(s):
            out = self._buffer(s)
            arrays = self._backend.arrays
            with arrays.on_side_lane(_BRING):
                arrays.follow(self._used)
                part, receive = self._parts[s], self._backend.channel.receive
                self._arriving[s] = deque(
                    ((i0, i1), receive(out[i0 - part.i0 : i1 - part.i0], part.panel.owner, TAG_PANEL))
                    for i0, i1 in (part.pieces() if out.size else ())
                )

    def offer(self, s: int, i0: int = -1, i1: int | None = None) -> None:
        """Start to send part s, or its pieces that end in rows i0 + 1 to i1, to the far ranks that read it."""
        part, block = self._parts[s], self.own(s)
        far = [peer for peer in part.readers if not self._backend.is_near(peer)]
        for start, stop in part.pieces() if block.size else ():
            if i0 < stop <= (part.i1 if i1 is None else i1):
                rows = block[start - part.i0 : stop - part.i0]
                self._sending += [self._backend.channel.send(rows, peer, TAG_PANEL) for peer in far]

    def own(self, s: int) -> Array:
        """Part s in the memory of its owner (local)."""
        part = self._parts[s]
        panel = part.panel
        matrix: Array = self._home.array(panel.owner)
        return matrix[part.i0 : part.i1, panel.j_loc : panel.j_loc + panel.width]

    def fetch(self, s: int) -> Array:
        """Part s as a local array, after its arrival; see `open`."""
        block = self.open(s)
        self.await_all(s)
        return block

    def whole(self, s: int) -> list[tuple[int, int]]:
        """The rows (start, stop) of part s, as one piece (global)."""
        return [(self._parts[s].i0, self._parts[s].i1)]

    def await_all(self, s: int) -> None:
        """Return when part s has arrived."""
        for _ in self.arriving(s):
            pass

    def arriving(self, s: int) -> Iterator[tuple[int, int]]:
        """Rows (start, stop) of the pieces of part s, in order, after their arrival.

        Of a part that comes in messages, pieces that an earlier call has given are left out.
        """
        part = self._parts[s]
        if not self.is_far(s):
            yield from part.pieces()
            return
        text, pieces = f"panel of a factorization, of rank {part.panel.owner}", self._arriving[s]
        while pieces:
            rows, transfer = pieces.popleft()
            self._backend.wait(transfer.done, text)
            yield rows

    def open(self, s: int) -> Array:
        """Part s as a local array, whose rows arrive with `arriving`."""
        arrays = self._backend.arrays
        before, self._used = self._used, arrays.mark()
        if self.is_far(s):
            block = self._buffer(s)
        else:
            block = self.own(s)
            if self._parts[s].panel.owner != self._backend.rank:
                self._backend.read_nbytes += block.nbytes
                block = block if arrays.traits.reads_peers else self._copied(s, block, before)
        return block

    def _copied(self, s: int, block: Array, before: Any) -> Array:
        """A near rank's part in this rank's memory."""
        arrays, copy = self._backend.arrays, self._buffer(s)
        with arrays.on_side_lane(_BRING):
            arrays.follow(before)
            arrays.assign(block, copy)
        return copy

    def sent(self) -> None:
        """Return when all parts that this rank offered have left."""
        for transfer in self._sending:
            self._backend.wait(transfer.done, "sending panels of a factorization")
        self._sending, self._used = [], None

    def _buffer(self, s: int) -> Array:
        """Memory for part s, in Fortran order."""
        home, part = self._home, self._parts[s]
        buffer = self._buffers[s % 2]
        if buffer is None:
            largest = max((x.i1 - x.i0) * x.panel.width for x in self._parts)
            buffer = self._buffers[s % 2] = own_memory(home.backend, largest * home.dtype.itemsize)
        shape = part.i1 - part.i0, part.panel.width
        block: Array = home.backend.arrays.array(buffer, shape, home.dtype, "F")
        return block


TAG_HEADER = 1041
_WHAT = "factor a panel"


class RunFactorization(ABC):
    """Runs a factorization on one rank: W is factored in place.

    Args:
        plan: what to run (global).
        backend: ranks, memory and messages (global).
        dtype: of the matrix (global).
    """

    lends = True
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
