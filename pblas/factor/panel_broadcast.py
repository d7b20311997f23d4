"""Broadcast of panels, from the rank that has a panel to the ranks that use it."""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from pblas.redistribution.transfer import SourceMatrix, own_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pblas.backends.device import Mark
    from pblas.backends.dtypes import Array
    from pblas.backends.transport import Transfer
    from pblas.factor.factorization_plan import Panel

TAG_PANEL = 1040
BROADCAST = "bring a panel"


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
    while the current one is used. Panels arrive on the side lane, which the main lane follows after `fetch`. A host
    receives a panel once: the first of its ranks that read it passes the pieces on.

        panels.send(k)            # on the owner: start to send panel k, which does not change before `wait_sent`
        panels.receive(k)         # start to receive panel k from a far rank
        panels.fetch(k)           # the panel, after its arrival; valid until receive(k + 2) or fetch(k + 2)

    A panel may travel in pieces, so that readers use its first rows while the others are under way:

        panels.send(k, i0, i1)    # on the owner: start to send the pieces of panel k that end in rows i0 + 1 to i1
        panels.view(k)            # the panel, whose rows may be used after they have arrived
        panels.received(k)        # iterates over the rows of its pieces, each after its arrival
    """

    def __init__(self, source: SourceMatrix, panels: Sequence[PanelRows]) -> None:
        self._source, self._backend, self._panels = source, source.backend, panels
        self._buffers: list[Any] = [None, None]
        self._receiving: dict[int, deque[tuple[tuple[int, int], Transfer]]] = {}
        self._sending: list[Transfer] = []
        self._passing: dict[int, list[Transfer]] = {}  # by buffer
        self._group = {rank: group for group, ranks in enumerate(self._backend.groups) for rank in ranks}
        self._used: Mark = None
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
            out, rows, channel = self._free_buffer(k), self._panels[k], self._backend.channel
            first = self._sharers(k)[0]
            source = rows.panel.owner if first == self._backend.rank else first
            with self._backend.arrays.on_side_lane(BROADCAST):
                self._backend.arrays.follow(self._used)
                self._receiving[k] = deque(
                    ((i0, i1), channel.receive(out[i0 - rows.i0 : i1 - rows.i0], source, TAG_PANEL))
                    for i0, i1 in (rows.pieces() if out.size else ())
                )

    def send(self, k: int, i0: int = -1, i1: int | None = None) -> None:
        """Start to send panel k, or its pieces that end in rows i0 + 1 to i1, to the far hosts that read it."""
        rows, block = self._panels[k], self._in_place(k)
        firsts = {self._group[peer]: peer for peer in reversed(rows.readers)}
        far = [peer for peer in firsts.values() if not self._backend.is_near(peer)]
        for start, stop in rows.pieces() if block.size else ():
            if i0 < stop <= (rows.i1 if i1 is None else i1):
                piece = block[start - rows.i0 : stop - rows.i0]
                self._sending += [self._backend.channel.send(piece, peer, TAG_PANEL) for peer in far]

    def fetch(self, k: int) -> Array:
        """Panel k as a local array, after its arrival; see `view`."""
        block = self.view(k)
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
            self._pass_on(k, *piece)
            yield piece

    def view(self, k: int) -> Array:
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
        copy = self._free_buffer(k)
        with arrays.on_side_lane(BROADCAST):
            arrays.follow(before)
            arrays.assign(block, copy)
        return copy

    def wait_sent(self) -> None:
        """Return when all panels that this rank sends have left."""
        for transfer in (*self._sending, *chain.from_iterable(self._passing.values())):
            self._backend.wait(transfer.done, "sending panels of a factorization")
        self._sending, self._passing, self._used = [], {}, None

    def _sharers(self, k: int) -> list[int]:
        """The ranks of this rank's host that read panel k (global)."""
        return [peer for peer in self._panels[k].readers if self._group[peer] == self._group[self._backend.rank]]

    def _pass_on(self, k: int, i0: int, i1: int) -> None:
        """Send a piece that has arrived to the other readers of this host, if this rank is the first one."""
        first, *others = self._sharers(k)
        if first == self._backend.rank and others:
            start, channel = self._panels[k].i0, self._backend.channel
            piece = self._buffer(k)[i0 - start : i1 - start]
            self._passing.setdefault(k % 2, []).extend(channel.send(piece, peer, TAG_PANEL) for peer in others)

    def _in_place(self, k: int) -> Array:
        """Panel k in the memory of its owner (local)."""
        panel, i0, i1, *_ = self._panels[k]
        matrix: Array = self._source.array(panel.owner)
        return matrix[i0:i1, panel.j_loc : panel.j_loc + panel.width]

    def _free_buffer(self, k: int) -> Array:
        """Memory for panel k, from which the panel before has been passed on."""
        for transfer in self._passing.pop(k % 2, ()):
            self._backend.wait(transfer.done, "passing on a panel of a factorization")
        return self._buffer(k)

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
