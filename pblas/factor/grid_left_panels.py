"""Factored panels on a P x Q grid, on their way along process rows: of LU, QR and solves with a factor.

    header: what a rank must know of panel k besides its rows, from rank (r, k) to its process row
    left:   W[i, k] for the rows i of rank (r, c): from rank (r, k), in pieces that the ranks of a process row pass on

Near ranks read the left part in the memory of rank (r, k). If it is only now factored there is a header, which goes to
them at once, and says that they may.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from pblas.factor.grid_blocks import TAG_LEFT, TAG_PIVOTS, Chain, GridBlocks

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.backends.transport import Transfer
    from pblas.factor.grid_plan import GridPlan
    from pblas.redistribution.transfer import SourceMatrix


class Travel:
    """What is under way of one panel (local)."""

    def __init__(self) -> None:
        self.on_header: Chain | Transfer | None = None
        self.on_left: Chain | None = None
        self.on_right: Chain | Transfer | None = None  # a block for the columns of this rank, of the process column
        self.sending: list[Transfer] = []

    @property
    def chains(self) -> list[Chain]:
        """The blocks that arrive, and are passed on."""
        return [x for x in (self.on_header, self.on_left, self.on_right) if isinstance(x, Chain)]


class LeftPanels(GridBlocks):
    """Brings the left parts of panels to this rank, and passes them on; `lookahead + 1` panels are in use at a time.

    panels.begin(k)              # start to receive panel k
    panels.send(k)               # on its process column: this rank's rows are factored, and the header is written
    panels.left(k)               # this rank's rows of panel k, after their arrival
    panels.progress()            # pass on what has arrived
    """

    def __init__(self, plan: GridPlan, source: SourceMatrix) -> None:
        super().__init__(plan, source)
        self._travels: dict[int, Travel] = {}

    # A subclass defines these

    @abstractmethod
    def header(self, k: int) -> Array | None:
        """The header of panel k: memory of this rank."""

    @abstractmethod
    def is_reader(self, k: int, c: int) -> bool:
        """Whether ranks of a process column, which do not have panel k, get its header and its rows (global)."""

    # They share these

    def rows_of(self, k: int, r: int) -> tuple[int, int]:
        """Local rows (start, stop) of a process row that are read of panel k: from its diagonal block on."""
        return self._w.rows.local_start(self._steps[k].start, r), self._w.rows.count(r)

    def reads_rows(self, k: int) -> bool:
        """Whether this rank, which gets the header of panel k, also reads its rows."""
        return True

    def row_ring(self, k: int, r: int) -> list[int]:
        """The rank that has panel k, and its readers, in the order in which they pass it on."""
        owner, *others = super().row_ring(k, r)
        return [owner, *(rank for rank in others if self.is_reader(k, self._w.grid.coordinates(rank)[1]))]

    def begin(self, k: int) -> None:
        """Start to receive panel k, in the buffers of an earlier one, which is used no more."""
        for earlier in list(self._travels)[: -self._plan.lookahead]:
            self._complete(earlier)
        self.follow_updates()
        travel, channel, width = Travel(), self._backend.channel, self._steps[k].width
        self._travels[k] = travel
        if self._column == self._plan.position(self._steps[k])[1] or not self.is_reader(k, self._column):
            return
        ring, rows, header = self.row_ring(k, self._row), self.rows_from(k, self._row), self.header(k)
        if header is not None and self.is_near(ring[0]):
            travel.on_header = channel.receive(header, ring[0], TAG_PIVOTS)
        elif header is not None:
            travel.on_header = Chain(channel, header, *self.neighbours(ring), TAG_PIVOTS)
        if rows and self._is_read(k) and not self.is_near(ring[0]):
            travel.on_left = Chain(channel, self.buffer("left", k, rows, width), *self.neighbours(ring), TAG_LEFT)

    def send(self, k: int) -> None:
        """Start to send the header and this rank's rows of panel k."""
        travel, channel, header, block = self._travels[k], self._backend.channel, self.header(k), self._own(k)
        ring = self.row_ring(k, self._row)
        self._backend.sync()
        parts = [(block, TAG_LEFT)] if len(block) and self._is_read(k) else []
        if header is not None:
            near = [peer for peer in ring[1:] if self.is_near(peer)]
            travel.sending += [channel.send(header, peer, TAG_PIVOTS) for peer in near]
            parts = [(header, TAG_PIVOTS), *parts]
        for part, tag in parts:
            chain = Chain(channel, part, *self.neighbours(ring), tag)
            chain.done()
            travel.sending += chain.sending

    def left(self, k: int) -> Array:
        """This rank's rows of panel k, after the arrival of them and of the header."""
        travel, owner = self._travels[k], self.row_ring(k, self._row)[0]
        if owner == self._rank:
            return self._own(k)
        if travel.on_header is not None:
            self.wait(travel.on_header.done, k)
        if travel.on_left is not None:
            self.wait(travel.on_left.done, k)
            return travel.on_left.block
        if not (self.reads_rows(k) and self.is_near(owner)):
            return self._own(k)[:0]
        with self.moving():
            return self.read(self._rows_in_place(k, owner), "left", k)

    def progress(self) -> None:
        """Pass on what has arrived: along rows panel after panel, which may come from different ranks and go to one."""
        in_order = True
        with self._arrays.on_side_lane():
            for travel in self._travels.values():
                if isinstance(travel.on_right, Chain):
                    travel.on_right.done()
                along = [chain for chain in travel.chains if chain is not travel.on_right]
                in_order = in_order and all([chain.done() for chain in along])  # noqa: C419  # of each chain

    def end(self) -> None:
        """Return when all messages of this rank have left."""
        for k in list(self._travels):
            self._complete(k)

    def npivots(self, k: int) -> int:
        """Rows of diagonal block k (global)."""
        panel = self._steps[k]
        return min(panel.stop, self._w.m) - panel.start

    def first_row(self, k: int) -> int:
        """The first row of `rows_of` on this rank."""
        return self.rows_of(k, self._row)[0]

    def rows_from(self, k: int, r: int) -> int:
        """Number of `rows_of`."""
        start, stop = self.rows_of(k, r)
        return stop - start

    def _is_read(self, k: int) -> bool:
        """Whether any rank updates columns with panel k (global)."""
        return self._steps[k].stop < self._w.n

    def _complete(self, k: int) -> None:
        """Return when all messages of panel k are done."""
        travel = self._travels[k]
        for arrival in (travel.on_header, travel.on_left, travel.on_right):
            if arrival is not None:
                self.wait(arrival.done, k)
        for transfer in [*travel.sending, *(x for chain in travel.chains for x in chain.sending)]:
            self.wait(transfer.done, k)
        del self._travels[k]

    def _own(self, k: int) -> Array:
        """This rank's rows of panel k, which it has."""
        return self._rows_in_place(k, self._rank)

    def _rows_in_place(self, k: int, rank: int) -> Array:
        """The rows of panel k in this process row, on a near rank."""
        return self.in_place(k, rank)[slice(*self.rows_of(k, self._row))]
