"""Panels of a matrix on a P x Q grid, on their way to the ranks that update with them.

    left:   W[i, k] for the rows i of rank (r, c): from rank (r, k), in pieces that the ranks of a process row pass on
    right:  W[j, k] for the rows j that are columns of rank (r, c): from rank (j, r), which has them in its left part

So no rank sends a panel to many others: a rank passes its left part on to the next one, and sends it to the ranks of
one other process row, each of which gets the rows for its columns. Near ranks read both in the memory of the ranks that
have factored them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from pblas.factor.grid_plan import pieces
from pblas.redistribution.transfer import SourceMatrix, own_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pblas.backends.dtypes import Array
    from pblas.backends.transport import Channel, Transfer
    from pblas.factor.grid_plan import GridCholeskyPlan

TAG_LEFT, TAG_RIGHT, TAG_DIAGONAL, TAG_FACTORED = 1044, 1045, 1046, 1047


class Block(NamedTuple):
    """Local rows of a diagonal block on its process row, and local columns on its process column."""

    k: int
    i: int
    j: int
    width: int


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


class Travel:
    """What this rank has of one panel, and its messages (local)."""

    def __init__(self, k: int, rows: int, columns: int) -> None:
        self.k, self.rows, self.columns = k, rows, columns  # local rows and columns after the panel
        self.left: Array | None = None
        self.right: Array | None = None
        self.on_left: Chain | Transfer | None = None  # brings the left part, or the signal that it may be read in place
        self.on_diagonal: Chain | Transfer | None = None
        self.on_right: list[Transfer] = []
        self.parts: dict[int, Array] = {}  # messages with rows of the right part, by process row
        self.is_passed = not rows  # whether all that others get from this rank is on its way
        self.sending: list[Transfer] = []

    def has_arrived(self) -> bool:
        """Whether both parts may be read, and `is_passed`."""
        return self.is_passed and all(transfer.done() for transfer in self.on_right)


class GridPanels:
    """Brings panels to this rank, and passes them on; `lookahead + 1` panels are in use at a time.

    panels.begin(k)              # start to receive panel k
    panels.diagonal(k, block)    # on its process column: the factored diagonal block, from its owner
    panels.send(k)               # on its process column: this rank's rows are factored
    panels.fetch(k)              # left and right, after their arrival
    panels.progress()            # pass on what has arrived
    """

    def __init__(self, plan: GridCholeskyPlan, source: SourceMatrix) -> None:
        self._plan, self._w, self._source, self._steps = plan, plan.w, source, plan.steps
        self._backend, self._arrays, self._rank = source.backend, source.backend.arrays, source.backend.rank
        self._row, self._column = plan.w.grid.coordinates(self._rank)
        self._group = {rank: group for group, ranks in enumerate(self._backend.groups) for rank in ranks}
        self._blocks: dict[tuple[int, int], list[Block]] = {}  # diagonal blocks, by process row and column
        for k, panel in enumerate(self._steps):
            row, column = plan.position(panel)
            i = plan.w.rows.local_start(panel.start, row)
            self._blocks.setdefault((row, column), []).append(Block(k, i, panel.j_loc, panel.width))
        self._buffers: dict[tuple[str, int], Any] = {}
        self._travels: dict[int, Travel] = {}

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of buffers (local)."""
        return sum(int(buffer.nbytes) for buffer in self._buffers.values())

    def begin(self, k: int) -> None:
        """Start to receive panel k, in the buffers of an earlier one, which is used no more."""
        self._complete(k - self._plan.lookahead - 1)
        (r, c), (row, column), channel = (
            (self._row, self._column),
            self._plan.position(self._steps[k]),
            self._backend.channel,
        )
        width = self._steps[k].width
        travel = self._travels[k] = Travel(k, self._rows(k, r), self._w.columns.count(c) - self._first_column(k, c))
        if not travel.rows:
            return
        if c == column and r != row:
            travel.on_diagonal = self._arrival(self._column_ring(k), "diagonal", k, width, TAG_DIAGONAL)
        elif c != column:
            travel.on_left = self._arrival(self._row_ring(k, r), "left", k, travel.rows, TAG_LEFT)
        for r2 in range(self._w.grid.nprow):
            after = self._after(k, r2, c)
            if r2 == r or not after:
                continue
            if self._is_near(self._at(r2, column)):
                travel.on_right.append(channel.await_signal(self._at(r2, column), TAG_FACTORED))
            else:
                travel.parts[r2] = part = self._buffer(f"right {r2}", k, sum(block.width for block in after), width)
                travel.on_right.append(channel.receive(part, self._at(r2, r % self._w.grid.npcol), TAG_RIGHT))

    def diagonal(self, k: int, block: Array) -> Array:
        """The factored diagonal block: `block` on its owner, which sends it to the ranks of its column with rows."""
        travel, ring, width = self._travels[k], self._column_ring(k), self._steps[k].width
        if ring[0] == self._rank:
            self._lend(block, ring, ring, TAG_DIAGONAL, travel)
            return block
        arrival = travel.on_diagonal
        assert arrival is not None, "this rank has rows after the panel, of another process row"
        self._wait(arrival.done, k)
        if isinstance(arrival, Chain):
            travel.sending += arrival.sending
            return arrival.block
        i = self._w.rows.local_start(self._steps[k].start, self._plan.position(self._steps[k])[0])
        return self._read(k, ring[0], "diagonal", i, i + width)

    def send(self, k: int) -> None:
        """Start to send this rank's rows of panel k, which are factored."""
        travel, grid, r = self._travels[k], self._w.grid, self._row
        if travel.rows:
            travel.left = self._in_place(k, self._rank)[self._first_row(k, r) :]
            others = [r2 for r2 in range(grid.nprow) if r2 != r and self._rows(k, r2)]
            columns = [c2 for c2 in range(grid.npcol) if self._after(k, r, c2)]
            ring = self._row_ring(k, r)
            readers = {*ring, *(self._at(r2, c2) for r2 in others for c2 in columns)}
            self._lend(travel.left, ring, sorted(readers), TAG_LEFT, travel)
            self.progress()

    def progress(self) -> None:
        """Pass on what has arrived, panel after panel."""
        for travel in self._travels.values():
            if not self._pass_on(travel):
                break

    def fetch(self, k: int) -> tuple[Array, Array] | None:
        """Left and right, after their arrival; None if this rank has no rows or no columns after panel k."""
        travel = self._travels[k]
        if not (travel.rows and travel.columns):
            return None
        if travel.right is None:
            self._wait(travel.has_arrived, k)
            self._backend.sync()
            travel.right = self._right(travel)
        assert travel.left is not None, "it has arrived"
        return travel.left, travel.right

    def end(self) -> None:
        """Return when all messages of this rank have left."""
        for k in list(self._travels):
            self._complete(k)

    def _complete(self, k: int) -> None:
        """Return when all messages of panel k are done; nothing if there was none."""
        if k in self._travels:
            self._wait(self._travels[k].has_arrived, k)
            for transfer in self._travels.pop(k).sending:
                self._wait(transfer.done, k)

    # Who has what

    def _at(self, r: int, c: int) -> int:
        return self._w.grid.rank(r, c % self._w.grid.npcol)

    def _is_near(self, peer: int) -> bool:
        return self._group[peer] == self._group[self._rank]

    def _first_row(self, k: int, r: int) -> int:
        return self._w.rows.local_start(self._steps[k].stop, r)

    def _first_column(self, k: int, c: int) -> int:
        return self._w.columns.local_start(self._steps[k].stop, c)

    def _rows(self, k: int, r: int) -> int:
        """Rows after panel k on a process row."""
        return self._w.rows.count(r) - self._first_row(k, r)

    def _after(self, k: int, r: int, c: int) -> list[Block]:
        """The diagonal blocks after panel k on a rank; neighbours in rows and columns as one."""
        blocks: list[Block] = []
        for block in self._blocks.get((r, c), ()):
            if block.k > k:
                last = blocks[-1] if blocks else None
                if last and (last.i, last.j) == (block.i - last.width, block.j - last.width):
                    blocks[-1] = last._replace(width=last.width + block.width)
                else:
                    blocks.append(block)
        return blocks

    def _row_ring(self, k: int, r: int) -> list[int]:
        """The ranks of a process row in the order in which they pass panel k on."""
        column = self._plan.position(self._steps[k])[1]
        return [self._at(r, column + x) for x in range(self._w.grid.npcol)]

    def _column_ring(self, k: int) -> list[int]:
        """The owner of diagonal block k, and the ranks of its process column with rows after it."""
        (row, column), nprow = self._plan.position(self._steps[k]), self._w.grid.nprow
        rows = [(row + x) % nprow for x in range(nprow)]
        return [self._at(r, column) for r in rows if r == row or self._rows(k, r)]

    # Messages

    def _arrival(self, ring: list[int], name: str, k: int, rows: int, tag: int) -> Chain | Transfer:
        """Start to receive a block of the first rank of a ring, or to wait until it may be read in place."""
        owner, channel = ring[0], self._backend.channel
        if self._is_near(owner):
            return channel.await_signal(owner, TAG_FACTORED if tag == TAG_LEFT else tag)
        source, dest = self._neighbours(ring)
        return Chain(channel, self._buffer(name, k, rows, self._steps[k].width), source, dest, tag)

    def _lend(self, block: Array, ring: list[int], readers: Sequence[int], tag: int, travel: Travel) -> None:
        """Let near readers read a factored block, and send it along a ring."""
        self._backend.sync()
        for peer in readers:
            if peer != self._rank and self._is_near(peer):
                signal = self._backend.channel.signal(peer, TAG_FACTORED if tag == TAG_LEFT else tag)
                travel.sending.append(signal)
        chain = Chain(self._backend.channel, block, *self._neighbours(ring), tag)
        chain.done()
        travel.sending += chain.sending

    def _neighbours(self, ring: list[int]) -> tuple[int | None, int | None]:
        """The ranks before and after this one in a ring, without ranks near the first one."""
        far = [ring[0], *(peer for peer in ring if self._group[peer] != self._group[ring[0]])]
        i = far.index(self._rank)
        return far[i - 1] if i else None, far[i + 1] if i + 1 < len(far) else None

    def _pass_on(self, travel: Travel) -> bool:
        """Pass on the left part as far as it has arrived, then rows of it to others; whether all is on its way."""
        if travel.is_passed:
            return True
        if travel.left is None:
            arrival = travel.on_left
            if arrival is None or not arrival.done():
                return False
            k, owner = travel.k, self._row_ring(travel.k, self._row)[0]
            if isinstance(arrival, Chain):
                travel.left, travel.sending = arrival.block, travel.sending + arrival.sending
            else:
                travel.left = self._read(k, owner, "left", self._first_row(k, self._row), None)
        r, c, grid, owner = self._row, self._column, self._w.grid, self._row_ring(travel.k, self._row)[0]
        rows = [r2 for r2 in range(c, grid.nprow, grid.npcol) if r2 != r and self._rows(travel.k, r2)]
        for c2 in range(grid.npcol) if rows else ():
            # W[j, k] for the columns j of rank (r2, c2)
            far = [peer for peer in (self._at(r2, c2) for r2 in rows) if self._group[peer] != self._group[owner]]
            after = self._after(travel.k, r, c2) if far else []
            if after:
                part = self._packed(travel, after, c2)
                travel.sending += [self._backend.channel.send(part, peer, TAG_RIGHT) for peer in far]
        travel.is_passed = True
        return True

    # Memory

    def _in_place(self, k: int, rank: int) -> Array:
        """The columns of panel k on a near rank."""
        j = self._steps[k].j_loc
        array: Array = self._source.array(rank)
        return array[:, j : j + self._steps[k].width]

    def _read(self, k: int, rank: int, name: str, i0: int, i1: int | None) -> Array:
        """Rows of panel k on a near rank, in place, or copied where kernels cannot read a peer's memory."""
        self._backend.sync()
        block = self._in_place(k, rank)[i0:i1]
        self._backend.read_nbytes += block.nbytes
        if self._arrays.traits.reads_peers:
            return block
        copy = self._buffer(name, k, *block.shape)
        self._arrays.assign(block, copy)
        return copy

    def _packed(self, travel: Travel, after: list[Block], c2: int) -> Array:
        """The rows of the left part that are diagonal blocks, in one block."""
        left, first, start = travel.left, self._first_row(travel.k, self._row), 0
        assert left is not None, "it has arrived"
        if len(after) == 1:
            return left[after[0].i - first : after[0].i - first + after[0].width]
        part = self._buffer(f"to {c2}", travel.k, sum(block.width for block in after), left.shape[1])
        for block in after:
            i = block.i - first
            self._arrays.assign(left[i : i + block.width], part[start : start + block.width])
            start += block.width
        return part

    def _right(self, travel: Travel) -> Array:
        """The right part, which may be one block of a near rank, in place."""
        k, (r, c), column = travel.k, (self._row, self._column), self._plan.position(self._steps[travel.k])[1]
        first, right = self._first_column(k, c), None
        rows: Array | None = None
        for r2 in range(self._w.grid.nprow):
            after = self._after(k, r2, c)
            i0 = 0  # the first row of the panel that is in `rows`
            if r2 in travel.parts:
                rows = travel.parts[r2]
            elif r2 == r:
                rows, i0 = travel.left, self._first_row(k, r)
            elif after:
                rows = self._in_place(k, self._at(r2, column))
                self._backend.read_nbytes += sum(block.width for block in after) * rows[:1].nbytes
            start = 0
            for block in after:
                i = start if r2 in travel.parts else block.i - i0
                assert rows is not None, "it has arrived"
                start, part = start + block.width, rows[i : i + block.width]
                if block.width == travel.columns and (self._arrays.traits.reads_peers or r2 == r or r2 in travel.parts):
                    return part
                if right is None:
                    right = self._buffer("right", k, travel.columns, self._steps[k].width)
                self._arrays.assign(part, right[block.j - first : block.j - first + block.width])
        assert right is not None, "this rank has columns after the panel"
        return right

    def _buffer(self, name: str, k: int, rows: int, columns: int) -> Array:
        """Memory for some rows of panel k, in Fortran order."""
        key, dtype = (name, k % (self._plan.lookahead + 1)), self._source.dtype
        nbytes = rows * columns * dtype.itemsize
        if key not in self._buffers or self._buffers[key].nbytes < nbytes:
            self._buffers[key] = own_memory(self._backend, nbytes)
        block: Array = self._arrays.array(self._buffers[key], (rows, columns), dtype, "F")
        return block

    def _wait(self, done: Callable[[], bool], k: int) -> None:
        """Return when `done()`; what arrives meanwhile is passed on."""

        def arrived() -> bool:
            self.progress()
            return done()

        self._backend.wait(arrived, f"panel {k} of a factorization")
