"""Panels of LU on a P x Q grid, and blocks of U, on their way to the ranks that update with them; exchanges of rows.

    header: INFO and the pivots of panel k, from rank (r, k) to its process row
    left:   L[i, k] for the rows i of rank (r, c): from rank (r, k), in pieces that the ranks of a process row pass on
    right:  U[k, j] for the columns j of rank (r, c): from rank (k, c), in pieces that its process column passes on

Near ranks read both in the memory of the ranks that have made them: the header, which then goes to them at once, says
that the panel may be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas.factor.grid_blocks import TAG_FACTORED, TAG_LEFT, TAG_PIVOTS, TAG_RIGHT, TAG_ROWS, Chain, GridBlocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.backends.dtypes import Array
    from pblas.backends.transport import Transfer
    from pblas.factor.grid_lu_plan import GridLuPlan
    from pblas.redistribution.transfer import SourceMatrix

_RIGHT = TAG_RIGHT, TAG_FACTORED


class Travel:
    """What is under way of one panel (local)."""

    def __init__(self) -> None:
        self.on_header: Chain | Transfer | None = None
        self.on_left: Chain | None = None
        self.on_right: Chain | Transfer | None = None
        self.sending: list[Transfer] = []

    @property
    def chains(self) -> list[Chain]:
        """The blocks that arrive, and are passed on."""
        return [x for x in (self.on_header, self.on_left, self.on_right) if isinstance(x, Chain)]


class LuPanels(GridBlocks):
    """Brings panels and blocks of U to this rank, and passes them on.

    panels.begin(k)              # start to receive panel k
    panels.send(k)               # on its process column: this rank's rows are factored, and the header is written
    panels.left(k)               # this rank's rows of panel k, from the diagonal block on, after their arrival
    panels.lend(k, u)            # on the process row of diagonal block k: U[k, j] is computed
    panels.right(k)              # U[k, j], after its arrival
    panels.exchange(k, ...)      # rows of some columns
    panels.progress()            # pass on what has arrived
    """

    def __init__(self, plan: GridLuPlan, source: SourceMatrix, headers: Array) -> None:
        super().__init__(plan, source)
        self._headers = headers
        self._travels: dict[int, Travel] = {}

    def begin(self, k: int) -> None:
        """Start to receive panel k, in the buffers of an earlier one, which is used no more."""
        self._complete(k - self._plan.lookahead - 1)
        (r, c), (row, column) = (self._row, self._column), self._plan.position(self._steps[k])
        travel, channel, width = Travel(), self._backend.channel, self._steps[k].width
        self._travels[k] = travel
        if c != column:
            ring, rows = self.row_ring(k, r), self._rows_from(k, r)
            if self.is_near(ring[0]):
                travel.on_header = channel.receive(self.header(k), ring[0], TAG_PIVOTS)
            else:
                travel.on_header = Chain(channel, self.header(k), *self.neighbours(ring), TAG_PIVOTS)
                if rows and self._has_columns_after(k):
                    travel.on_left = Chain(
                        channel, self.buffer("left", k, rows, width), *self.neighbours(ring), TAG_LEFT
                    )
        columns = self._columns_after(k)
        if r != row and columns and self.rows_after(k, r):
            # pieces of columns: rows of the transposed block
            ring = self.column_ring(k, c)
            travel.on_right = self.arrival(ring, lambda: self.buffer("right", k, self.npivots(k), columns).T, _RIGHT)

    def send(self, k: int) -> None:
        """Start to send the header and this rank's rows of panel k."""
        travel, channel, ring, block = (
            self._travels[k],
            self._backend.channel,
            self.row_ring(k, self._row),
            self._own(k),
        )
        self._backend.sync()
        near = [peer for peer in ring[1:] if self.is_near(peer)]
        travel.sending += [channel.send(self.header(k), peer, TAG_PIVOTS) for peer in near]
        for part, tag in ((self.header(k), TAG_PIVOTS), (block, TAG_LEFT)):
            if tag == TAG_PIVOTS or (len(block) and self._has_columns_after(k)):
                chain = Chain(channel, part, *self.neighbours(ring), tag)
                chain.done()
                travel.sending += chain.sending

    def left(self, k: int) -> Array:
        """This rank's rows of panel k, from the diagonal block on, after the arrival of them and of the header."""
        travel, owner = self._travels[k], self.row_ring(k, self._row)[0]
        if owner == self._rank:
            return self._own(k)
        assert travel.on_header is not None, "it was begun"
        self.wait(travel.on_header.done, k)
        if travel.on_left is not None:
            self.wait(travel.on_left.done, k)
            return travel.on_left.block
        if not (self._columns_after(k) and self.is_near(owner)):
            return self._own(k)[:0]
        return self.read(self.in_place(k, owner)[self._first_row(k) :], "left", k)

    def lend(self, k: int, u: Array) -> None:
        """Let the process column have U[k, j], which this rank has computed."""
        ring = self.column_ring(k, self._column)
        self._travels[k].sending += self.lend_block(u.T, ring, ring, _RIGHT)

    def right(self, k: int) -> Array:
        """U[k, j] for the columns j of this rank after panel k."""
        arrival, owner = self._travels[k].on_right, self.column_ring(k, self._column)[0]
        assert arrival is not None, "this rank has rows and columns after the panel"
        self.wait(arrival.done, k)
        if isinstance(arrival, Chain):
            return arrival.block.T
        i = self._w.rows.local_start(self._steps[k].start, self._plan.position(self._steps[k])[0])
        u = self._source.array(owner)[i : i + self.npivots(k), self.first_column(k, self._column) :]
        return self.read(u, "right", k)

    def exchange(self, k: int, columns: Array, to: Array, source: Array, most: int) -> None:
        """Rows `to` := rows `source` of some columns, **collective** over the process column: one message for a pair.

        `columns` has all rows of this rank; `to` and `source` are global, and have each row once. At most `most` rows
        come to this rank.
        """
        rows, channel, n = self._w.rows, self._backend.channel, columns.shape[1]
        to_owner, source_owner = rows.owner(to), rows.owner(source)
        comes, leaves = to_owner == self._row, source_owner == self._row
        if not n or not (comes.any() or leaves.any()):
            return
        peers = [r for r in range(self._w.grid.nprow) if r != self._row]
        incoming = [(r, rows.local_from_global(to[comes & (source_owner == r)])) for r in peers]
        outgoing = [(r, rows.local_from_global(source[leaves & (to_owner == r)])) for r in peers]
        receiving = self._parts("rows that come", incoming, n, most)
        arriving = [channel.receive(part, self.at(r, self._column), TAG_ROWS) for r, part in receiving]
        sending = []
        for (_, i), (r, part) in zip(_some(outgoing), self._parts("rows that leave", outgoing, n, most), strict=True):
            part.T[...] = columns.T[:, i]
            sending.append(channel.send(part, self.at(r, self._column), TAG_ROWS))
        stays = comes & leaves
        columns.T[:, rows.local_from_global(to[stays])] = columns.T[:, rows.local_from_global(source[stays])]
        for (_, i), (_, part), transfer in zip(_some(incoming), receiving, arriving, strict=True):
            self.wait(transfer.done, k)
            columns.T[:, i] = part.T
        for transfer in sending:
            self.wait(transfer.done, k)

    def progress(self) -> None:
        """Pass on what has arrived."""
        for travel in self._travels.values():
            for chain in travel.chains:
                chain.done()

    def end(self) -> None:
        """Return when all messages of this rank have left."""
        for k in list(self._travels):
            self._complete(k)

    def header(self, k: int) -> Array:
        """INFO of panel k, and its pivots, counted from 1 at its first row: a column (local)."""
        header: Array = self._headers[: 1 + self.npivots(k), k : k + 1]
        return header

    def npivots(self, k: int) -> int:
        """Rows of diagonal block k (global)."""
        panel = self._steps[k]
        return min(panel.stop, self._w.m) - panel.start

    def _complete(self, k: int) -> None:
        """Return when all messages of panel k are done; nothing if there was none."""
        if k in self._travels:
            travel = self._travels[k]
            for arrival in (travel.on_header, travel.on_left, travel.on_right):
                if arrival is not None:
                    self.wait(arrival.done, k)
            for transfer in [*travel.sending, *(x for chain in travel.chains for x in chain.sending)]:
                self.wait(transfer.done, k)
            del self._travels[k]

    def _first_row(self, k: int) -> int:
        return self._w.rows.local_start(self._steps[k].start, self._row)

    def _rows_from(self, k: int, r: int) -> int:
        """Rows of a process row from diagonal block k on."""
        return self._w.rows.count(r) - self._w.rows.local_start(self._steps[k].start, r)

    def _columns_after(self, k: int) -> int:
        """Columns of this rank after panel k."""
        return self._w.columns.count(self._column) - self.first_column(k, self._column)

    def _has_columns_after(self, k: int) -> bool:
        """Whether any rank updates columns with panel k (global)."""
        return self._steps[k].stop < self._w.n

    def _own(self, k: int) -> Array:
        """This rank's rows of panel k, which it has, from the diagonal block on."""
        return self.in_place(k, self._rank)[self._first_row(k) :]

    def _parts(self, name: str, moves: Sequence[tuple[int, Array]], n: int, most: int) -> list[tuple[int, Array]]:
        """Memory for the rows that move between this rank and each process row, if any: at most `most`."""
        memory, parts, start = self.buffer(name, 0, n * most, 1), [], 0
        for r, i in _some(moves):
            flat = memory[start : start + n * len(i), 0]
            parts.append((r, flat.reshape((len(i), n), order="F")))
            start += n * len(i)
        return parts


def _some(moves: Sequence[tuple[int, Array]]) -> list[tuple[int, Array]]:
    return [(r, i) for r, i in moves if len(i)]
