"""Panels of LU on a P x Q grid, and blocks of U, on their way to the ranks that update with them; exchanges of rows.

    header: INFO and the pivots of panel k, from rank (r, k) to its process row
    left:   L[i, k] for the rows i of rank (r, c): from rank (r, k), in pieces that the ranks of a process row pass on
    right:  U[k, j] for the columns j of rank (r, c): from rank (k, c), in pieces that its process column passes on

Near ranks read both in the memory of the ranks that have made them: the header, which then goes to them at once, says
that the panel may be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pblas.factor.grid_blocks import TAG_FACTORED, TAG_RIGHT, TAG_ROWS, Chain
from pblas.factor.grid_left_panels import LeftPanels

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.factor.grid_lu_plan import GridLuPlan
    from pblas.redistribution.transfer import SourceMatrix

_RIGHT = TAG_RIGHT, TAG_FACTORED


class LuPanels(LeftPanels):
    """Brings panels and blocks of U to this rank, and passes them on: see `LeftPanels`.

    panels.lend(k, u)            # on the process row of diagonal block k: U[k, j] is computed
    panels.right(k)              # U[k, j], after its arrival
    panels.exchange(k, ...)      # rows of some columns
    """

    def __init__(self, plan: GridLuPlan, source: SourceMatrix, headers: Array) -> None:
        super().__init__(plan, source)
        self._headers = headers
        self._pivots: dict[int, Array] = {}

    def begin(self, k: int) -> None:
        """Start to receive panel k, in the buffers of an earlier one, which is used no more."""
        super().begin(k)
        self._pivots.pop(k, None)
        (r, c), columns = (self._row, self._column), self.columns(k)
        if r != self._plan.position(self._steps[k])[0] and columns and self.rows_after(k, r):
            # pieces of columns: rows of the transposed block
            ring = self.column_ring(k, c)
            self._travels[k].on_right = self.arrival(
                ring, lambda: self.buffer("right", k, self.npivots(k), columns).T, _RIGHT
            )

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
        with self.moving():
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
        self.follow_updates()
        memory, arriving, start = self.buffer("rows that come", 0, n * most, 1)[:, 0], [], 0
        for r, i in incoming:
            if len(i):
                part = memory[start : start + n * len(i)].reshape((n, len(i))).T
                arriving.append((i, part, channel.receive(part, self.at(r, self._column), TAG_ROWS)))
                start += n * len(i)
        all_columns, arrays = np.arange(n), self._arrays
        parts = [(r, arrays.pick(columns, i, all_columns)) for r, i in outgoing if len(i)]
        sending = [channel.send(part, self.at(r, self._column), TAG_ROWS) for r, part in parts]
        stays = comes & leaves
        part = arrays.pick(columns, rows.local_from_global(source[stays]), all_columns)
        arrays.place(part, columns, rows.local_from_global(to[stays]), all_columns)
        for i, part, transfer in arriving:
            self.wait(transfer.done, k)
            arrays.place(part, columns, i, all_columns)
        for transfer in sending:
            self.wait(transfer.done, k)

    def header(self, k: int) -> Array:
        """INFO of panel k, and its pivots, counted from 1 at its first row: a column (local)."""
        header: Array = self._headers[: 1 + self.npivots(k), k : k + 1]
        return header

    def pivots(self, k: int) -> Array:
        """The pivots of panel k, in host memory, after the arrival of its header."""
        if k not in self._pivots:
            with self._arrays.on_side_lane():
                self._pivots[k] = self._arrays.to_host(self.header(k))[1:, 0]
        return self._pivots[k]

    def is_reader(self, k: int, c: int) -> bool:
        """Always: all ranks keep all pivots (global)."""
        return True

    def reads_rows(self, k: int) -> bool:
        return self.columns(k) > 0

    def columns(self, k: int) -> int:
        """Columns of this rank after panel k."""
        return self._w.columns.count(self._column) - self.first_column(k, self._column)
