"""Exchange of panels that all ranks factor: each rank has some of the columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas.factor.factorization_plan import panels
from pblas.factor.panel_broadcast import PanelBroadcast
from pblas.redistribution.transfer import SourceMatrix, own_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pblas.backends.dtypes import Array
    from pblas.backends.transport import Transfer
    from pblas.factor.factorization_plan import Panel
    from pblas.factor.panel_broadcast import PanelRows
    from pblas.layouts.descriptor import MatrixDescriptor

TAG_PART = 1046
_LINE = 64  # bytes of a cache line


class PanelExchange(PanelBroadcast):
    """Exchanges panels of one block column of each rank, by messages in both directions at once.

    panels.receive(k)         # start to receive the columns of panel k of all other ranks
    panels.send(k)            # start to send this rank's updated columns of panel k
    panels.fetch(k)           # the panel from its diagonal on, after its arrival; valid until receive(k + 2)
    panels.keep(k)            # this rank's columns of the factored panel take their place in W
    """

    def __init__(self, source: SourceMatrix, rows: Sequence[PanelRows], w: MatrixDescriptor) -> None:
        super().__init__(source, rows)
        self._w, blocks = w, panels(w)
        self._blocks = [[x for x in blocks if panel.start <= x.start < panel.stop] for panel, *_ in rows]
        self._under_way: dict[int, list[Transfer]] = {}

    def receive(self, k: int) -> None:
        """Start to receive panel k, if there is one."""
        if k < len(self._panels):
            _, i0, i1, *_ = self._panels[k]
            self._under_way.setdefault(k, []).extend(
                self._backend.channel.receive(self._part(k, block)[i0:i1], block.owner, TAG_PART)
                for block in self._blocks[k]
                if block.owner != self._backend.rank
            )

    def send(self, k: int, i0: int = -1, i1: int | None = None) -> None:
        """Copy this rank's columns to the panel, and start to send them."""
        (_, i0, i1, *_), rank = self._panels[k], self._backend.rank
        for block in self._blocks[k]:
            if block.owner == rank:
                part = self._part(k, block)[i0:i1]
                self._backend.arrays.assign(self._own(block)[i0:i1], part)
                peers = (peer for peer in range(self._w.nprocs) if peer != rank)
                sent = (self._backend.channel.send(part, peer, TAG_PART) for peer in peers)
                self._under_way.setdefault(k, []).extend(sent)

    def received(self, k: int) -> Iterator[tuple[int, int]]:
        """All rows of panel k, after its arrival; then nobody reads this rank's columns of it."""
        for transfer in self._under_way.pop(k, ()):
            self._backend.wait(transfer.done, "exchanging parts of panels")
        yield from self._panels[k].pieces()

    def view(self, k: int) -> Array:
        """Panel k, from its diagonal on, which arrives with `received`."""
        panel: Array = self.columns(k)[self._panels[k].i0 :]
        return panel

    def keep(self, k: int) -> None:
        """Copy this rank's factored columns of panel k to W."""
        for block in self._blocks[k]:
            if block.owner == self._backend.rank:
                i0 = self._panels[k].i0
                self._backend.arrays.assign(self._part(k, block)[i0:], self._own(block)[i0:])

    def columns(self, k: int) -> Array:
        """Memory for all rows of panel k, which are as far apart as in W."""
        rows, buffer, dtype = self._w.lld or self._w.m, self._buffers[k % 2], self._source.dtype
        if buffer is None:
            width = max(panel.width for panel, *_ in self._panels)
            nbytes = rows * width * dtype.itemsize
            memory = own_memory(self._backend, nbytes + _LINE)
            start = -self._backend.address(memory) % _LINE  # at other places libraries may add in another order
            buffer = self._buffers[k % 2] = memory[start : start + nbytes]
        columns: Array = self._backend.arrays.array(buffer, (rows, self._panels[k].panel.width), dtype, "F")
        return columns[: self._w.m]

    def _part(self, k: int, block: Panel) -> Array:
        start = self._panels[k].panel.start
        return self.columns(k)[:, block.start - start : block.stop - start]

    def _own(self, block: Panel) -> Array:
        return self._source.local[:, block.j_loc : block.j_loc + block.width]
