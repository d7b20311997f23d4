"""Blocks of W that ranks of a P x Q grid pass on along process rows and columns."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pblas.factor.grid_plan import pieces
from pblas.redistribution.transfer import SourceMatrix, own_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pblas.backends.dtypes import Array
    from pblas.backends.transport import Channel, Transfer
    from pblas.factor.grid_plan import GridPlan

TAG_LEFT, TAG_RIGHT, TAG_DIAGONAL, TAG_FACTORED, TAG_PIVOTS, TAG_ROWS = range(1044, 1050)
TAG_TREE, TAG_PARTS, TAG_SUMS, TAG_RELAYED = range(1051, 1055)


class Chain:
    """A block that ranks pass on: each sends a piece to the next one as soon as it has arrived."""

    def __init__(self, channel: Channel, block: Array, source: int | None, dest: int | None, tag: int) -> None:
        """Start to receive the block from `source`; None: this rank has it."""
        self._channel, self._dest, self._tag = channel, dest, tag
        parts = [block[i0:i1] for i0, i1 in pieces(len(block))]
        self._arriving = deque((part, source is not None and channel.receive(part, source, tag)) for part in parts)
        self.block: Array = block
        self.sending: list[Transfer] = []

    def done(self) -> bool:
        """Whether all pieces have arrived; those that have are passed on."""
        while self._arriving:
            part, transfer = self._arriving[0]
            if transfer and not transfer.done():
                return False
            self._arriving.popleft()
            if self._dest is not None:
                self.sending.append(self._channel.send(part, self._dest, self._tag))
        return True


class GridBlocks:
    """What this rank has of the panels that are in use, `lookahead + 1` at a time, and its messages.

    A subclass says in `progress` what is passed on. Blocks of a rank on the same host are read in place.

    Blocks arrive on the side lane, after the use of what was in their memory: see `follow_updates`, which `begin` of a
    subclass calls.
    """

    def __init__(self, plan: GridPlan, source: SourceMatrix) -> None:
        self._plan, self._w, self._source, self._steps = plan, plan.w, source, plan.steps
        self._backend, self._arrays, self._rank = source.backend, source.backend.arrays, source.backend.rank
        self._row, self._column = plan.w.grid.coordinates(self._rank)
        self._group = {rank: group for group, ranks in enumerate(self._backend.groups) for rank in ranks}
        self._buffers: dict[tuple[str, int], Any] = {}

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of buffers (local)."""
        return sum(int(buffer.nbytes) for buffer in self._buffers.values())

    def progress(self) -> None:
        """Pass on what has arrived."""

    def wait(self, done: Callable[[], bool], k: int) -> None:
        """Return when `done()`, whose block the selected lane then follows; what arrives meanwhile is passed on."""

        def arrived() -> bool:
            self.progress()
            self._backend.channel.progress()
            return done()

        with self.moving():
            self._backend.wait(arrived, f"panel {k} of a factorization")

    @contextmanager
    def moving(self) -> Iterator[None]:
        """A with block on the side lane, which the selected lane then follows."""
        arrays = self._arrays
        with arrays.on_side_lane():
            yield
            moved = arrays.mark()
        arrays.follow(moved)

    def follow_updates(self) -> None:
        """What arrives from now on takes the place of blocks after the updates so far."""
        updated = self._arrays.mark()
        with self._arrays.on_side_lane():
            self._arrays.follow(updated)

    # Who has what

    def at(self, r: int, c: int) -> int:
        """The rank at a process row and column, which may be beyond the last one."""
        return self._w.grid.rank(r % self._w.grid.nprow, c % self._w.grid.npcol)

    def is_near(self, peer: int) -> bool:
        """Whether this rank reads the memory of another one in place."""
        return self._group[peer] == self._group[self._rank]

    def first_column(self, k: int, c: int) -> int:
        """The first local column after panel k on a process column."""
        return self._w.columns.local_start(self._steps[k].stop, c)

    def rows_after(self, k: int, r: int) -> int:
        """Rows after panel k on a process row."""
        return self._w.rows.count(r) - self._w.rows.local_start(min(self._steps[k].stop, self._w.m), r)

    def row_ring(self, k: int, r: int) -> list[int]:
        """The ranks of a process row in the order in which they pass panel k on."""
        column = self._plan.position(self._steps[k])[1]
        return [self.at(r, column + x) for x in range(self._w.grid.npcol)]

    def column_ring(self, k: int, c: int) -> list[int]:
        """The rank of process column c in the row of diagonal block k, and those with rows after this block."""
        row, nprow = self._plan.position(self._steps[k])[0], self._w.grid.nprow
        rows = [(row + x) % nprow for x in range(nprow)]
        return [self.at(r, c) for r in rows if r == row or self.rows_after(k, r)]

    # Messages

    def arrival(self, ring: list[int], block: Callable[[], Array], tags: tuple[int, int]) -> Chain | Transfer:
        """Start to receive a block of the first rank of a ring, or to wait until it may be read in place.

        Tags of pieces, and of signals.
        """
        owner, channel = ring[0], self._backend.channel
        if self.is_near(owner):
            return channel.await_signal(owner, tags[1])
        return Chain(channel, block(), *self.neighbours(ring), tags[0])

    def lend_block(
        self, block: Array, ring: list[int], readers: Sequence[int], tags: tuple[int, int]
    ) -> list[Transfer]:
        """Let near readers read a block, and send it along a ring: the messages."""
        self._backend.sync()
        near = [peer for peer in readers if peer != self._rank and self.is_near(peer)]
        sending = [self._backend.channel.signal(peer, tags[1]) for peer in near]
        chain = Chain(self._backend.channel, block, *self.neighbours(ring), tags[0])
        chain.done()
        return sending + chain.sending

    def neighbours(self, ring: list[int]) -> tuple[int | None, int | None]:
        """The ranks before and after this one in a ring, without ranks near the first one."""
        far = [ring[0], *(peer for peer in ring if self._group[peer] != self._group[ring[0]])]
        i = far.index(self._rank)
        return far[i - 1] if i else None, far[i + 1] if i + 1 < len(far) else None

    # Memory

    def in_place(self, k: int, rank: int) -> Array:
        """The columns of panel k on a near rank."""
        j = self._steps[k].j_loc
        array: Array = self._source.array(rank)
        return array[:, j : j + self._steps[k].width]

    def read(self, block: Array, name: str, k: int) -> Array:
        """A block of panel k on a near rank, in place, or copied where kernels cannot read a peer's memory."""
        self._backend.sync()
        self._backend.read_nbytes += block.nbytes
        if self._arrays.traits.reads_peers:
            return block
        copy = self.buffer(name, k, *block.shape)
        self._arrays.assign(block, copy)
        return copy

    def buffer(self, name: str, k: int, rows: int, columns: int, *, on_host: bool = False) -> Array:
        """Memory for a block of panel k, in Fortran order."""
        key, dtype, backend = (name, k % (self._plan.lookahead + 1)), self._source.dtype, self._backend
        nbytes = rows * columns * dtype.itemsize
        if key not in self._buffers or self._buffers[key].nbytes < nbytes:
            self._buffers[key] = backend.buffer(nbytes) if on_host else own_memory(backend, nbytes)
        arrays = backend.host_arrays if on_host else self._arrays
        block: Array = arrays.array(self._buffers[key], (rows, columns), dtype, "F")
        return block
