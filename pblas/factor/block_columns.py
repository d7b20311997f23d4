"""Block columns of a matrix on a 1 x P grid, as ranks read them: in place, copied, or from messages."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from pblas.redistribution.transfer import own_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pblas.backends.dtypes import Array
    from pblas.backends.transport import Transfer
    from pblas.factor.factorization_plan import Panel
    from pblas.redistribution.transfer import SourceMatrix

TAG = 1040
_WHAT = "bring a panel"


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
            with arrays.on_side_lane(_WHAT):
                arrays.follow(self._used)
                part, receive = self._parts[s], self._backend.channel.receive
                self._arriving[s] = deque(
                    ((i0, i1), receive(out[i0 - part.i0 : i1 - part.i0], part.panel.owner, TAG))
                    for i0, i1 in (part.pieces() if out.size else ())
                )

    def offer(self, s: int, i0: int = -1, i1: int | None = None) -> None:
        """Start to send part s, or its pieces that end in rows i0 + 1 to i1, to the far ranks that read it."""
        part, block = self._parts[s], self.own(s)
        far = [peer for peer in part.readers if not self._backend.is_near(peer)]
        for start, stop in part.pieces() if block.size else ():
            if i0 < stop <= (part.i1 if i1 is None else i1):
                rows = block[start - part.i0 : stop - part.i0]
                self._sending += [self._backend.channel.send(rows, peer, TAG) for peer in far]

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
        with arrays.on_side_lane(_WHAT):
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
