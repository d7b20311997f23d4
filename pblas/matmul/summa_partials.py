"""Transfers of partial products to the ranks that add them, layer after layer, and of sums to D."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pblas.layouts.messages import receives, sends
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.matmul.summa_plan import Summa, placed
from pblas.redistribution.packing import ADD, COPY, Put, Scaling
from pblas.redistribution.transfer import Buffers, Movement, SourceMatrix, own_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.backends.dtypes import Array, Order, ProductDtypes
    from pblas.backends.host_ranks import HostRanks
    from pblas.backends.transport import Transfer
    from pblas.matmul.local_gemm_run import Operands
    from pblas.matmul.triangle import Triangle

TAG_PART, TAG_READY, TAG_FREE, TAG_SUM = 1023, 1024, 1025, 1026


class Partials:
    """**Collective.** The partial products of a plan, in panels of columns.

    Every owner adds the partial products of layers 0, 1, ... in this order: the same bits with every transport.
    """

    def __init__(
        self,
        backend: HostRanks,
        plan: Summa,
        panels: Sequence[tuple[int, int]],
        dtypes: ProductDtypes,
        order: Order,
        triangle: Triangle | None = None,  # elements of D that are written, if not all
    ) -> None:
        self._backend, self._plan, self._dtype, self._order = backend, plan, dtypes.d, order
        self._triangle, trapezoid = triangle, None if triangle is None else triangle.trapezoid
        self._total, wire = dtypes.total, dtypes.wire
        self._panels = list(panels)
        formed, rank = plan.cuboids.d, backend.rank
        if len(self._panels) > 1:
            widest = max(n1 - n0 for n0, n1 in self._panels)
            formed = Placement(formed.rows, Split(widest, widest, 1), formed.strides, formed.copies)
        self._shape = formed.local_shape(rank)
        nbytes = max(1, formed.rows.max_count * formed.columns.max_count) * wire.itemsize
        # The blocks are kept because arrays on them do not keep them.
        self._blocks = blocks = [backend.allocate_scratch(nbytes, window=backend.shared) for _ in self._panels[:2]]
        self._parts = [backend.peer_block(block, rank, 0, self._shape, wire, order) for block in blocks]
        self._source_matrices = [SourceMatrix(backend, formed, wire, order) for _ in blocks]
        for source_matrix, part in zip(self._source_matrices, self._parts, strict=True):
            source_matrix.publish(part)
        self._workspace_nbytes = sum(int(part.nbytes) for part in self._parts)
        self._buffers = buffers = Buffers(backend)
        self._movements: list[list[Movement]] = []
        self._readers: list[list[int]] = []
        self._sources: list[list[int]] = []
        for s, (n0, n1) in enumerate(self._panels):
            cut = (0, formed.rows.n, 0, n1 - n0)
            target = plan.sums.part(0, formed.rows.n, n0, n1)
            layers = [formed.layer(l) for l in plan.cuboids.layers]
            source_matrix = self._source_matrices[s % 2]
            moved = partial(Movement, source_matrix, target, cut, trapezoid=trapezoid, buffers=buffers, tag=TAG_PART)
            self._movements.append([moved(placement=layer) for layer in layers])
            sources = [layer.part(*cut) for layer in layers]
            self._readers.append(self._near(move.peer for source in sources for move in sends(source, target, rank)))
            self._sources.append(self._near(move.peer for source in sources for move in receives(source, target, rank)))
        self._prepare_sums(buffers)

    def _near(self, peers: Any) -> list[int]:
        return sorted({peer for peer in peers if self._backend.is_near(peer)})

    def _prepare_sums(self, buffers: Buffers) -> None:
        """Memory for sums that are not formed in D, and their transfer to D."""
        backend, plan, rank, placement = self._backend, self._plan, self._backend.rank, self._plan.sum_placement
        shape = plan.sums.local_shape(rank)
        self._sums: Array | None = None
        self._sums_matrix: SourceMatrix | None = None
        if placement is not None:
            nbytes = max(1, placement.rows.max_count * placement.columns.max_count) * self._dtype.itemsize
            block = backend.allocate_scratch(nbytes, window=backend.shared)
            self._blocks.append(block)
            self._sums = self._rounded = backend.peer_block(block, rank, 0, shape, self._dtype, self._order)
            self._sums_matrix = SourceMatrix(backend, placement, self._dtype, self._order)
            self._sums_matrix.publish(self._rounded)
            d = placed(plan.oriented.d)
            self._last = Movement(self._sums_matrix, d, buffers=buffers, tag=TAG_SUM)
            self._sum_readers = self._near(move.peer for move in sends(placement, d, rank))
            self._sum_sources = self._near(move.peer for move in receives(placement, d, rank))
            self._workspace_nbytes += int(self._rounded.nbytes)
        if self._total != self._dtype:  # sums have more bits than D
            memory = own_memory(backend, shape[0] * shape[1] * self._total.itemsize)
            self._sums = backend.arrays.array(memory, shape, self._total, self._order)
            self._workspace_nbytes += shape[0] * shape[1] * self._total.itemsize

    @property
    def workspace_nbytes(self) -> int:
        return self._workspace_nbytes + self._buffers.nbytes

    def begin(self, x: Operands) -> None:
        """Start an execution: the first partial product is added to beta C, or overwrites the sums."""
        self._x = x
        self._free: list[list[Transfer]] = [[] for _ in self._panels]
        self._signals: list[Transfer] = []
        self._collected: list[Any] = [None] * len(self._panels)
        self._target: Array = x.result if self._sums is None else self._sums
        self._adds = x.old is not None and self._plan.sum_placement is None
        if self._adds and x.old is not None and self._target is not x.old:
            self._backend.arrays.assign(x.old, self._target)

    def part(self, s: int) -> Array:
        """Memory for this rank's partial product of panel s, once no rank needs its old contents."""
        if s >= 2:
            for transfer in self._free[s - 2]:
                self._backend.wait(transfer.done, f"{self._plan.name}: partial products that others read")
            for movement in self._movements[s - 2]:
                movement.sent()
            self._backend.arrays.follow(self._collected[s - 2])
        n0, n1 = self._panels[s]
        part: Array = self._parts[s % 2]
        return part[:, : n1 - n0] if len(self._panels) > 1 else part

    def send(self, s: int) -> None:
        """Send this rank's partial product of panel s to the owners, and start to receive other ranks' products."""
        backend, channel = self._backend, self._backend.channel
        backend.sync()
        self._follow_products()
        # partial D[m, n] of this layer to the owners of D[m, n]
        for movement in self._movements[s]:
            movement.begin()
        with backend.arrays.on_side_lane():  # after the products, and after this lane has rounded them
            self._signals += [channel.signal(peer, TAG_READY) for peer in self._readers[s]]
        self._free[s] = [channel.await_signal(peer, TAG_FREE) for peer in self._readers[s]]

    def collect(self, s: int) -> None:
        """Add the partial products of panel s to this rank's sums."""
        backend, channel = self._backend, self._backend.channel
        text = f"{self._plan.name}: partial products of panel {s}"
        for transfer in [channel.await_signal(peer, TAG_READY) for peer in self._sources[s]]:
            backend.wait(transfer.done, text)
        backend.sync()
        n0, n1 = self._panels[s]
        first = self._plan.sums.local_offset(0, n0, backend.rank)[1]
        last = self._plan.sums.local_offset(0, n1, backend.rank)[1]
        self._add(self._movements[s], self._target[:, first:last])
        with backend.arrays.on_side_lane():
            self._collected[s] = backend.arrays.mark()
            self._signals += [channel.signal(peer, TAG_FREE) for peer in self._sources[s]]

    def _add(self, movements: Sequence[Movement], out: Array) -> None:
        """Add the partial products of all layers to these columns of the sums."""
        put: Put = self._added_to_c() if self._adds else COPY
        for movement in movements:
            # D[m, n] = beta C[m, n] + partial D[m, n] of the first layer, += that of the next
            movement.receive(out, put)
            put = ADD

    def _added_to_c(self) -> Put:
        """A function put(x, out) that adds x to beta C, which is in `out`."""
        return Scaling(1.0, self._x.beta)

    def _follow_products(self) -> None:
        """Make the side lane follow the products."""
        arrays = self._backend.arrays
        made = arrays.mark()
        with arrays.on_side_lane():
            arrays.follow(made)

    def end(self) -> None:
        """Transfer the sums to D, and return when all messages of this rank have left."""
        for movements, free in list(zip(self._movements, self._free, strict=True))[-2:]:
            for transfer in free:
                self._backend.wait(transfer.done, f"{self._plan.name}: partial products that others read")
            for movement in movements:
                movement.sent()
        for collected in self._collected:
            self._backend.arrays.follow(collected)
        if self._sums_matrix is not None:
            self._share()
        elif self._target is not self._x.result and self._triangle is not None:
            self._triangle.put(self._target, self._x.result)
        elif self._target is not self._x.result:
            self._backend.arrays.assign(self._target, self._x.result)
        for transfer in self._signals:
            self._backend.wait(transfer.done, f"{self._plan.name}: the last signals")
        del self._x, self._target  # a finished execution keeps no matrix alive

    def _share(self) -> None:
        """D = sums + beta C, with the sums transferred from the ranks that formed them."""
        backend, channel, arrays, x = self._backend, self._backend.channel, self._backend.arrays, self._x
        if self._rounded is not self._target:
            arrays.assign(self._target, self._rounded)
        put: Put = COPY
        if x.old is not None:
            if x.old is not x.result:
                arrays.assign(x.old, x.result)
            put = self._added_to_c()
        backend.sync()
        self._follow_products()
        self._last.begin()
        self._signals += [channel.signal(peer, TAG_SUM) for peer in self._sum_readers]
        for transfer in [channel.await_signal(peer, TAG_SUM) for peer in self._sum_sources]:
            backend.wait(transfer.done, f"{self._plan.name}: sums of other ranks")
        backend.sync()
        # D[m, n] = beta C[m, n] + the sums, which arrive from the ranks that formed them
        self._last.finish(x.result, put)
