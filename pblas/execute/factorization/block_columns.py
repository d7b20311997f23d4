"""Block columns of a matrix on a 1 x P grid, as ranks read them: in place, copied, or from messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pblas.execute.redistribution.transfer import own_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.backends.dtypes import Array
    from pblas.backends.peers import Transfer
    from pblas.execute.redistribution.transfer import SourceMatrix
    from pblas.plans.factorization import Panel

TAG = 1040
_WHAT = "bring a panel"


class Part(NamedTuple):
    """Rows i0..i1-1 of a panel, and the ranks other than its owner that read them (global)."""

    panel: Panel
    i0: int
    i1: int
    readers: Sequence[int]


class BlockColumns:
    """Parts of block columns, read one after the other by this rank. On CPUs near ranks' parts are read in place.

    The part of a far rank, and on GPUs that of any other rank, arrives in one of two buffers: the next part arrives
    while the current one is used. Parts arrive on the side lane, which the main lane follows after `fetch`.

        columns.request(s)        # start to receive part s, if it is a far rank's
        columns.offer(s)          # on its owner: start to send part s, which does not change before `sent`
        columns.fetch(s)          # the part, after its arrival; it stays valid until request(s + 2) or fetch(s + 2)

    Args:
        home: the matrix, whose ranks hold all rows of their columns (global).
        parts: the parts, in the order in which they are read (global).
    """

    def __init__(self, home: SourceMatrix, parts: Sequence[Part]) -> None:
        self._home, self._backend, self._parts = home, home.backend, parts
        self._buffers: list[Any] = [None, None]
        self._arriving: dict[int, Transfer] = {}
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
            with arrays.beside(_WHAT):
                arrays.follow(self._used)
                if out.size:
                    self._arriving[s] = self._backend.channel.receive(out, self._parts[s].panel.owner, TAG)

    def offer(self, s: int) -> None:
        """Start to send part s to the far ranks that read it."""
        part, block = self._parts[s], self.own(s)
        far = [peer for peer in part.readers if not self._backend.is_near(peer)]
        if block.size:
            self._sending += [self._backend.channel.send(block, peer, TAG) for peer in far]

    def own(self, s: int) -> Array:
        """Part s in the memory of its owner (local)."""
        part = self._parts[s]
        panel = part.panel
        matrix: Array = self._home.array(panel.owner)
        return matrix[part.i0 : part.i1, panel.j_loc : panel.j_loc + panel.width]

    def fetch(self, s: int) -> Array:
        """Part s as a local array, after its arrival.

        Args:
            s: number of a part that this rank reads or owns; its owner has signalled that it is complete (local).
        """
        arrays = self._backend.arrays
        before, self._used = self._used, arrays.mark()
        if self.is_far(s):
            block = self._buffer(s)
            if s in self._arriving:  # it has elements
                owner = self._parts[s].panel.owner
                self._backend.wait(self._arriving.pop(s).done, f"panel of a factorization, of rank {owner}")
        else:
            block = self.own(s)
            if self._parts[s].panel.owner != self._backend.rank:
                self._backend.read_nbytes += block.nbytes
                block = block if arrays.reads_peers else self._copied(s, block, before)
        return block

    def _copied(self, s: int, block: Array, before: Any) -> Array:
        """A near rank's part in this rank's memory."""
        arrays, copy = self._backend.arrays, self._buffer(s)
        with arrays.beside(_WHAT):
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
