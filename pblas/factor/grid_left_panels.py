"""Factored panels on a P x Q grid, each with a header, on their way along process rows: of LU and QR.

    header: what a rank must know of panel k besides its rows, from rank (r, k) to its process row
    left:   W[i, k] for the rows i of rank (r, c): from rank (r, k), in pieces that the ranks of a process row pass on

Near ranks read the left part in the memory of rank (r, k): the header, which then goes to them at once, says that they
may.
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
    panels.left(k)               # this rank's rows of panel k, from the diagonal block on, after their arrival
    panels.progress()            # pass on what has arrived
    """

    def __init__(self, plan: GridPlan, source: SourceMatrix) -> None:
        super().__init__(plan, source)
        self._travels: dict[int, Travel] = {}

    # A subclass defines these

    @abstractmethod
    def header(self, k: int) -> Array:
        """The header of panel k: memory of this rank."""

    @abstractmethod
    def gets_header(self, k: int) -> bool:
        """Whether the header of panel k travels along this rank's process row, to this rank too."""

    @abstractmethod
    def columns(self, k: int) -> int:
        """Columns of this rank that are updated with panel k."""

    # They share these

    def begin(self, k: int) -> None:
        """Start to receive panel k, in the buffers of an earlier one, which is used no more."""
        for earlier in list(self._travels)[: -self._plan.lookahead]:
            self._complete(earlier)
        travel, channel, width = Travel(), self._backend.channel, self._steps[k].width
        self._travels[k] = travel
        if self._column != self._plan.position(self._steps[k])[1] and self.gets_header(k):
            ring, rows = self.row_ring(k, self._row), self.rows_from(k, self._row)
            if self.is_near(ring[0]):
                travel.on_header = channel.receive(self.header(k), ring[0], TAG_PIVOTS)
            else:
                travel.on_header = Chain(channel, self.header(k), *self.neighbours(ring), TAG_PIVOTS)
                if rows and self._is_read(k):
                    travel.on_left = Chain(
                        channel, self.buffer("left", k, rows, width), *self.neighbours(ring), TAG_LEFT
                    )

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
            if tag == TAG_PIVOTS or (len(block) and self._is_read(k)):
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
        if not (self.columns(k) and self.is_near(owner)):
            return self._own(k)[:0]
        return self.read(self.in_place(k, owner)[self.first_row(k) :], "left", k)

    def progress(self) -> None:
        """Pass on what has arrived."""
        for travel in self._travels.values():
            for chain in travel.chains:
                chain.done()

    def end(self) -> None:
        """Return when all messages of this rank have left."""
        for k in list(self._travels):
            self._complete(k)

    def npivots(self, k: int) -> int:
        """Rows of diagonal block k (global)."""
        panel = self._steps[k]
        return min(panel.stop, self._w.m) - panel.start

    def first_row(self, k: int) -> int:
        """The first local row of this rank from diagonal block k on."""
        return self._w.rows.local_start(self._steps[k].start, self._row)

    def rows_from(self, k: int, r: int) -> int:
        """Rows of a process row from diagonal block k on."""
        return self._w.rows.count(r) - self._w.rows.local_start(self._steps[k].start, r)

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
        """This rank's rows of panel k, which it has, from the diagonal block on."""
        return self.in_place(k, self._rank)[self.first_row(k) :]
