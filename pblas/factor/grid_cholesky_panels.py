"""Panels of Cholesky on a P x Q grid, on their way to the ranks that update with them.

    left:   W[i, k] for the rows i of rank (r, c): from rank (r, k), in pieces that the ranks of a process row pass on
    right:  W[j, k] for the rows j that are columns of rank (r, c): from a rank of process row j, which has them in its
            left part: one on the same host, or else rank (j, r), whose message the ranks of process column c on this
            host pass on

So no rank sends a panel to many others: a rank passes its left part on to the next one, and sends it to the ranks of
one other process row, or of its host, each of which gets the rows for its columns. A host receives rows once. Near
ranks read both in the memory of the ranks that have factored them.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from pblas.factor.grid_blocks import (
    TAG_DIAGONAL,
    TAG_FACTORED,
    TAG_LEFT,
    TAG_RELAYED,
    TAG_RIGHT,
    Chain,
    GridBlocks,
)

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.backends.transport import Transfer
    from pblas.factor.grid_cholesky_plan import GridCholeskyPlan
    from pblas.redistribution.transfer import SourceMatrix

_LEFT, _DIAGONAL = (TAG_LEFT, TAG_FACTORED), (TAG_DIAGONAL, TAG_DIAGONAL)


class Block(NamedTuple):
    """Local rows of a diagonal block on its process row, and local columns on its process column."""

    k: int
    i: int
    j: int
    width: int


class Travel:
    """What this rank has of one panel, and its messages (local)."""

    def __init__(self, k: int, rows: int, columns: int) -> None:
        self.k, self.rows, self.columns = k, rows, columns  # local rows and columns after the panel
        self.left: Array | None = None
        self.right: Array | None = None
        self.on_left: Chain | Transfer | None = None  # brings the left part, or the signal that it may be read in place
        self.on_diagonal: Chain | Transfer | None = None
        self.on_right: list[Chain | Transfer] = []
        self.parts: dict[int, Array] = {}  # messages with rows of the right part, by process row
        self.is_passed = not rows  # whether all that others get from this rank is on its way
        self.sending: list[Transfer] = []

    def has_arrived(self) -> bool:
        """Whether both parts may be read, and `is_passed`."""
        return self.is_passed and all(transfer.done() for transfer in self.on_right)


class CholeskyPanels(GridBlocks):
    """Brings panels to this rank, and passes them on; `lookahead + 1` panels are in use at a time.

    panels.begin(k)              # start to receive panel k
    panels.diagonal(k, block)    # on its process column: the factored diagonal block, from its owner
    panels.send(k)               # on its process column: this rank's rows are factored
    panels.fetch(k)              # left and right, after their arrival
    panels.progress()            # pass on what has arrived
    """

    def __init__(self, plan: GridCholeskyPlan, source: SourceMatrix) -> None:
        super().__init__(plan, source)
        self._blocks: dict[tuple[int, int], list[Block]] = {}  # diagonal blocks, by process row and column
        for k, panel in enumerate(self._steps):
            row, column = plan.position(panel)
            i = plan.w.rows.local_start(panel.start, row)
            self._blocks.setdefault((row, column), []).append(Block(k, i, panel.j_loc, panel.width))
        self._travels: dict[int, Travel] = {}
        (_, npcol), (r, c) = plan.shape, (self._row, self._column)
        self._served: dict[int, list[list[int]]] = {}
        """By process column, the process rows of each set of ranks to which this one sends rows: see `_deliveries`."""
        for c2 in range(npcol) if r >= 0 else ():
            served = [rows for server, rows in self._deliveries(r, c2) if server == c]
            if served:
                self._served[c2] = served

    def begin(self, k: int) -> None:
        """Start to receive panel k, in the buffers of an earlier one, which is used no more."""
        self._complete(k - self._plan.lookahead - 1)
        self.follow_updates()
        (r, c), (row, column) = (self._row, self._column), self._plan.position(self._steps[k])
        channel, width = self._backend.channel, self._steps[k].width
        travel = self._travels[k] = Travel(k, self.rows_after(k, r), self._w.columns.count(c) - self.first_column(k, c))
        if not travel.rows:
            return
        if c == column and r != row:
            travel.on_diagonal = self.arrival(
                self.column_ring(k, c), lambda: self.buffer("diagonal", k, width, width), _DIAGONAL
            )
        elif c != column:
            travel.on_left = self.arrival(
                self.row_ring(k, r), lambda: self.buffer("left", k, travel.rows, width), _LEFT
            )
        for r2 in range(self._w.grid.nprow):
            after = self._after(k, r2, c)
            if r2 == r or not after:
                continue
            if self.is_near(self.at(r2, column)):
                travel.on_right.append(channel.await_signal(self.at(r2, column), TAG_FACTORED))
            else:
                travel.parts[r2] = part = self.buffer(f"right {r2}", k, sum(block.width for block in after), width)
                server, rows = next(x for x in self._deliveries(r2, c) if r in x[1])
                ranks = [self.at(r2, server), *(self.at(x, c) for x in rows if self.rows_after(k, x))]
                i, tag = ranks.index(self._rank), self._tag_to(ranks[0])
                following = ranks[i + 1] if i + 1 < len(ranks) else None
                travel.on_right.append(Chain(channel, part, ranks[i - 1], following, tag))

    def diagonal(self, k: int, block: Array) -> Array:
        """The factored diagonal block: `block` on its owner, which sends it to the ranks of its column with rows."""
        travel, ring, width = self._travels[k], self.column_ring(k, self._column), self._steps[k].width
        if ring[0] == self._rank:
            travel.sending += self.lend_block(block, ring, ring, _DIAGONAL)
            return block
        arrival = travel.on_diagonal
        assert arrival is not None, "this rank has rows after the panel, of another process row"
        self.wait(arrival.done, k)
        if isinstance(arrival, Chain):
            travel.sending += arrival.sending
            return arrival.block
        i = self._w.rows.local_start(self._steps[k].start, self._plan.position(self._steps[k])[0])
        with self.moving():
            return self.read(self.in_place(k, ring[0])[i : i + width], "diagonal", k)

    def send(self, k: int) -> None:
        """Start to send this rank's rows of panel k, which are factored."""
        travel, grid, r = self._travels[k], self._w.grid, self._row
        if travel.rows:
            travel.left = self.in_place(k, self._rank)[self._first_row(k, r) :]
            others = [r2 for r2 in range(grid.nprow) if r2 != r and self.rows_after(k, r2)]
            columns = [c2 for c2 in range(grid.npcol) if self._after(k, r, c2)]
            ring = self.row_ring(k, r)
            readers = {*ring, *(self.at(r2, c2) for r2 in others for c2 in columns)}
            travel.sending += self.lend_block(travel.left, ring, sorted(readers), _LEFT)
            self.progress()

    def progress(self) -> None:
        """Pass on what has arrived, panel after panel."""
        with self._arrays.on_side_lane():
            in_order = True
            for travel in self._travels.values():
                if not self._pass_on(travel):
                    break
                in_order = in_order and travel.has_arrived()

    def fetch(self, k: int) -> tuple[Array, Array] | None:
        """Left and right, after their arrival; None if this rank has no rows or no columns after panel k."""
        travel = self._travels[k]
        if not (travel.rows and travel.columns):
            return None
        with self.moving():
            if travel.right is None:
                self.wait(travel.has_arrived, k)
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
            travel = self._travels[k]
            self.wait(travel.has_arrived, k)
            passed = (x.sending for x in travel.on_right if isinstance(x, Chain))
            for transfer in chain(travel.sending, *passed):
                self.wait(transfer.done, k)
            del self._travels[k]

    # Who has what

    def _deliveries(self, r: int, c: int) -> list[tuple[int, list[int]]]:
        """The ways in which ranks of a process column get rows of process row r for their columns.

        For each of them the process column of the rank that sends, and the process rows of the ranks of one host that
        pass them on: one rank, if the sender is on this host.
        """
        near = {self._group[self.at(r, c2)]: c2 for c2 in reversed(range(self._w.grid.npcol))}
        hosts: dict[int, list[int]] = {}
        for r2 in range(self._w.grid.nprow):
            if r2 != r:
                hosts.setdefault(self._group[self.at(r2, c)], []).append(r2)
        ways: list[tuple[int, list[int]]] = []
        for group, rows in hosts.items():
            if group in near:
                ways += [(near[group], [r2]) for r2 in rows]
            else:
                ways.append((rows[0] % self._w.grid.npcol, rows))
        return ways

    def _tag_to(self, peer: int) -> int:
        """The tag of rows that come from a rank, or go to it: ranks of a host also pass on those of others."""
        return TAG_RIGHT if self.is_near(peer) else TAG_RELAYED

    def _first_row(self, k: int, r: int) -> int:
        return self._w.rows.local_start(self._steps[k].stop, r)

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

    def _pass_on(self, travel: Travel) -> bool:
        """Pass on the left part as far as it has arrived, then rows of it to others; whether all is on its way."""
        if travel.is_passed:
            return True
        if travel.left is None:
            arrival = travel.on_left
            if arrival is None or not arrival.done():
                return False
            k, owner = travel.k, self.row_ring(travel.k, self._row)[0]
            if isinstance(arrival, Chain):
                travel.left, travel.sending = arrival.block, travel.sending + arrival.sending
            else:
                travel.left = self.read(self.in_place(k, owner)[self._first_row(k, self._row) :], "left", k)
        r, owner = self._row, self.row_ring(travel.k, self._row)[0]
        for c2, served in self._served.items():
            # W[j, k] for the columns j of process column c2, to the first of the ranks that pass them on
            readers = ([self.at(r2, c2) for r2 in rows if self.rows_after(travel.k, r2)] for rows in served)
            far = [peers[0] for peers in readers if peers and self._group[peers[0]] != self._group[owner]]
            after = self._after(travel.k, r, c2) if far else []
            if after:
                part, channel = self._packed(travel, after, c2), self._backend.channel
                for peer in far:
                    sent = Chain(channel, part, None, peer, self._tag_to(peer))
                    sent.done()
                    travel.sending += sent.sending
        travel.is_passed = True
        return True

    # Memory

    def _packed(self, travel: Travel, after: list[Block], c2: int) -> Array:
        """The rows of the left part that are diagonal blocks, in one block."""
        left, first, start = travel.left, self._first_row(travel.k, self._row), 0
        assert left is not None, "it has arrived"
        if len(after) == 1:
            return left[after[0].i - first : after[0].i - first + after[0].width]
        part = self.buffer(f"to {c2}", travel.k, sum(block.width for block in after), left.shape[1])
        for block in after:
            i = block.i - first
            self._arrays.assign(left[i : i + block.width], part[start : start + block.width])
            start += block.width
        return part

    def _right(self, travel: Travel) -> Array:
        """The right part, which may be one block of a near rank, in place."""
        k, (r, c), column = travel.k, (self._row, self._column), self._plan.position(self._steps[travel.k])[1]
        first, right = self.first_column(k, c), None
        rows: Array | None = None
        for r2 in range(self._w.grid.nprow):
            after = self._after(k, r2, c)
            i0 = 0  # the first row of the panel that is in `rows`
            if r2 in travel.parts:
                rows = travel.parts[r2]
            elif r2 == r:
                rows, i0 = travel.left, self._first_row(k, r)
            elif after:
                rows = self.in_place(k, self.at(r2, column))
                self._backend.read_nbytes += sum(block.width for block in after) * rows[:1].nbytes
            start = 0
            for block in after:
                i = start if r2 in travel.parts else block.i - i0
                assert rows is not None, "it has arrived"
                start, part = start + block.width, rows[i : i + block.width]
                if block.width == travel.columns and (self._arrays.traits.reads_peers or r2 == r or r2 in travel.parts):
                    return part
                if right is None:
                    right = self.buffer("right", k, travel.columns, self._steps[k].width)
                self._arrays.assign(part, right[block.j - first : block.j - first + block.width])
        assert right is not None, "this rank has columns after the panel"
        return right
