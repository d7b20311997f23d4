"""SUMMA on one rank: panel s + 1 arrives while panel s is multiplied. D stays (SummaC), or op(A) stays (SummaA).

    SummaC, for each panel k:  D[m, n] += op(A)[m, k] op(B)[k, n]     (panels of op(A) and op(B) arrive)
    SummaA, for each panel n:  D[m, n] += op(A)[m, k] op(B)[k, n]     (a panel of op(B) arrives, partial products leave)

A plan on the transposed product keeps op(B): there op(A) is the user's op(B)^T.

Source: van de Geijn, Watts, SUMMA (1997).
"""

from __future__ import annotations

from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any

from pblas.backends.device import Mark, Programs
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.matmul.local_gemm_run import Operands, Orders, widened
from pblas.matmul.summa_partials import Partials
from pblas.matmul.summa_plan import Panel, Summa, SummaA, SummaC, column_of, placed, row_of
from pblas.redistribution.transfer import Buffers, Movement, SourceMatrix, own_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pblas.backends.dtypes import Array, Dtype, Order, ProductDtypes
    from pblas.backends.host_ranks import HostRanks

TAG_A, TAG_B = 1021, 1022
SLOTS = 3
"""Panels that use relay memory at a time: near ranks have read a panel when the next one is fetched, and by then the
panel after that has begun to arrive."""
_COLUMNS = 512
"""On GPUs, the width of the first part of a panel, multiplied while the rest arrives, and of the last part of D
to be rounded."""
_GROWTH = 4
"""Growth of the arrived columns from part to part: a GEMM of 8192 rows takes four times as long as the arrival of its
columns (16 bits, H200)."""


class RunSumma:
    """What the executors share: operands of which this rank multiplies panels, or one that is gathered before."""

    peers_read = True  # see `Executor`: peers read the operands (global)
    _plan: Summa
    _source_matrices: Sequence[SourceMatrix]  # the operands that move: op(B), and before it op(A) if that moves too
    _buffers: Sequence[Buffers]
    _panels: Sequence[Panels]
    _gathered: Sequence[Panels] = ()  # the operand that arrives whole before the first step
    _count: int  # steps: the panels of the layer that has most
    _partials: Partials | None

    @property
    def workspace_nbytes(self) -> int:
        parts: list[Panels | Buffers] = [*self._gathered, *self._panels, *self._buffers]
        total = sum(part.nbytes for part in parts) + sum(matrix.workspace_nbytes for matrix in self._source_matrices)
        return total + (self._partials.workspace_nbytes if self._partials else 0)

    def publish(self, operands: Operands) -> bool:
        """Publish the locations of the operands that move; true if one must be staged first."""
        must_stage = self._source_matrices[-1].publish(operands.right)
        if len(self._source_matrices) > 1:
            must_stage = self._source_matrices[0].publish(operands.left) or must_stage
        return must_stage

    def prepare(self, *, scratch: bool) -> bool:
        """**Collective.** Stage the operands that move if any rank must; true if the ranks must then agree again."""
        for source_matrix in self._source_matrices:
            source_matrix.prepare(scratch=scratch)
        return scratch

    def _begin(self, s: int) -> None:
        """Start the transfers of panel s, if there is one."""
        if s < self._count:
            for panels in self._panels:
                panels.begin(s)

    def _end(self) -> None:
        """Return when all messages with operands have left."""
        for panels in (*self._gathered, *self._panels):
            panels.end()
        for source_matrix in self._source_matrices:
            source_matrix.release()


class RunSummaC(RunSumma):
    """Runs a SummaC plan on one rank: D stays, panels of op(A) and op(B) along K arrive."""

    _plan: SummaC

    def __init__(self, plan: SummaC, backend: HostRanks, dtypes: ProductDtypes, orders: Orders) -> None:
        self._plan, self._total, cuboids = plan, dtypes.total, plan.cuboids
        self.total_dtype: Dtype = self._total
        self._backend, self._arrays = backend, backend.arrays
        a, b = placed(plan.oriented.a), placed(plan.oriented.b)
        self._source_matrices = (
            SourceMatrix(backend, a, dtypes.a, orders.left),
            SourceMatrix(backend, b, dtypes.b, orders.right),
        )
        panels = {l: list(plan.panels(l, plan.first(backend.rank))) for l in cuboids.layers}
        self._count = max(map(len, panels.values()), default=0)
        coordinates = cuboids.a.coordinates(backend.rank)
        layer = None if coordinates is None else coordinates[1]
        self._buffers = Buffers(backend), Buffers(backend)
        self._panels = self._a, self._b = tuple(self._panels_of(x, panels, layer) for x in range(2))
        self._partials = None if plan.in_place else self._new_partials(dtypes, orders)
        self._programs = Programs()
        self._read_nbytes = 0  # of near ranks' memory, in an execution
        self._last = -1 if layer is None else len(panels.get(layer, [])) - 1  # other layers may have more steps

    def run(self, x: Operands) -> None:
        """D[m, n] = alpha op(A)[m, :] op(B)[:, n] + beta C[m, n], or the partial product over this rank's layer."""
        read = self._backend.read_nbytes
        # without messages a GPU replays the launches of an earlier execution on the same arrays
        if self._partials is not None or self._a.has_messages or self._b.has_messages:
            self._run(x)
        elif self._arrays.replayed(self._programs, lambda: self._key(x), lambda: self._run(x)):
            self._read_nbytes = self._backend.read_nbytes - read
        else:
            self._backend.read_nbytes += self._read_nbytes
        self._end()

    def _run(self, x: Operands) -> None:
        partials, arrays = self._partials, self._arrays
        if partials is None:  # D[m, n] = beta C[m, n] + the products of all panels
            self._multiply_panels(x, widened(x, self._total, arrays), x.beta, x.result)
            return
        # partial D[m, n] = the products of the panels of this layer   (the owners of D add those of all layers)
        partials.begin(x)
        part = partials.part(0)
        total = part if part.dtype == self._total else arrays.like(part, self._total)
        self._multiply_panels(x, total, 0.0, part)
        partials.send(0)
        partials.collect(0)
        partials.end()

    def _multiply_panels(self, x: Operands, total: Array, beta: complex, result: Array) -> None:
        """Total := alpha op(A) op(B) + beta total, panel after panel, rounded to `result` if that is another array."""
        ahead = int(self._plan.overlap)
        if ahead:
            self._begin(0)
        for s in range(self._count):
            self._begin(s + ahead)  # lookahead: the next panels travel while these are multiplied
            # op(A)[m, k] and op(B)[k, n], from the ranks that have these k
            parts = self._parts(s, total, result)
            b, arrived = self._b.fetch_columns(s, parts)
            a = self._a.fetch(s)
            if a is None or b is None:
                continue
            mark = next(arrived)  # of the arrival of the first part of the columns
            for columns in parts:
                before, mark = mark, next(arrived, None)  # the copy of the next part starts before this product
                self._arrays.follow(before)
                # D[m, n] = beta D[m, n] + alpha op(A)[m, k] op(B)[k, n]
                self._multiply(s, x, a, b[:, columns], beta, total[:, columns])
                if s == self._last and total is not result:
                    self._round(total[:, columns], result[:, columns])
            beta = 1.0
        if self._last < 0:  # no k: D[m, n] = beta C[m, n]
            self._arrays.scale(beta, total)
            if total is not result:
                self._arrays.assign(total, result)

    def _multiply(self, s: int, x: Operands, a: Array, b: Array, beta: complex, total: Array) -> None:
        """The product of two panels of step s; rank updates multiply only a part of it."""
        self._arrays.gemm(x.alpha, a, b, beta, total, conj=x.conj)

    def _parts(self, s: int, total: Array, result: Array) -> list[slice]:
        """Columns of D that step s multiplies one after the other."""
        n: int = total.shape[1]
        borders = [0, n]
        if not self._arrays.traits.blocking:
            if s == 0 and not self._b.is_own(0):
                borders = growing(n)
            elif s == self._last and total is not result:
                borders = [n - border for border in reversed(growing(n))]
        return [slice(j0, j1) for j0, j1 in pairwise(borders)]

    def _round(self, total: Array, result: Array) -> None:
        """D := the sums, concurrently with products of other columns."""
        arrays = self._arrays
        made = arrays.mark()
        with arrays.on_side_lane("round"):
            arrays.follow(made)
            arrays.assign(total, result)

    def _key(self, x: Operands) -> Any:
        """Key of a recording: the addresses of all arrays, and the scalars."""
        arrays = (x.left, x.right, x.result, x.old)
        own = [None if y is None else (self._backend.address(y), y.strides) for y in arrays]
        return x.alpha, x.beta, *own, *self._a.locations(), *self._b.locations()

    def _new_partials(self, dtypes: ProductDtypes, orders: Orders) -> Partials | None:
        """**Collective.** The partial products of a plan that does not multiply directly into D."""
        return Partials(self._backend, self._plan, [(0, self._plan.oriented.n)], dtypes, orders.result)

    def _panels_of(self, x: int, panels: dict[int, list[Panel]], layer: int | None) -> Panels:
        """The panels of op(A) (x = 0) or op(B) (x = 1); `layer` is this rank's, or None."""
        source_matrix, panel_of = self._source_matrices[x], (self._panel_of_a, self._panel_of_b)[x]
        coordinates = source_matrix.placement.coordinates(self._backend.rank)
        own_part = None if coordinates is None else coordinates[1 - x]
        steps: list[list[Movement]] = [[] for _ in range(self._count)]
        own_panels: list[tuple[Placement, Movement] | None] = [None] * self._count
        sent_first = []
        for l, of_layer in panels.items():
            for s, panel in enumerate(of_layer):
                target, movement = panel_of(panel, l, self._buffers[x], None if self._plan.is_skewed else s % SLOTS)
                if l == layer:
                    own_panels[s] = target, movement
                if self._plan.is_skewed and panel.owner == own_part:
                    sent_first.append(movement)
                else:
                    steps[s].append(movement)
        return Panels(source_matrix, steps, own_panels, sent_first)

    def _panel_of_a(self, panel: Panel, layer: int, buffers: Buffers, slot: int | None) -> tuple[Placement, Movement]:
        """Column panel op(A)[m(i), k], broadcast along the process row: to all ranks (i, j, layer)."""
        source_matrix, width = self._source_matrices[0], panel.stop - panel.start
        (i, j, l), cuboids, (r0, r1) = self._plan.cuboids.strides, self._plan.cuboids, self._plan.rows_of(panel)
        target = Placement(cuboids.m.part(r0, r1), Split(width, width, 1), (i, 1, j), cuboids.n.nprocs, l * layer)
        place = source_matrix.placement if panel.owner is None else column_of(source_matrix.placement, panel.owner)
        part = (r0, r1, panel.start, panel.stop)
        return target, Movement(source_matrix, target, part, placement=place, buffers=buffers, tag=TAG_A, slot=slot)

    def _panel_of_b(self, panel: Panel, layer: int, buffers: Buffers, slot: int | None) -> tuple[Placement, Movement]:
        """Row panel op(B)[k, n(j)], broadcast down the process column: to all ranks (i, j, layer)."""
        source_matrix, width = self._source_matrices[1], panel.stop - panel.start
        (i, j, l), cuboids = self._plan.cuboids.strides, self._plan.cuboids
        target = Placement(Split(width, width, 1), cuboids.n, (1, j, i), cuboids.m.nprocs, l * layer)
        place = source_matrix.placement if panel.owner is None else row_of(source_matrix.placement, panel.owner)
        part = (panel.start, panel.stop, 0, cuboids.n.n)
        return target, Movement(source_matrix, target, part, placement=place, buffers=buffers, tag=TAG_B, slot=slot)


class RunSummaA(RunSumma):
    """Runs a SummaA plan on one rank: op(A) stays, panels of op(B) along N arrive, partial products of D leave."""

    _plan: SummaA
    _partials: Partials

    def __init__(self, plan: SummaA, backend: HostRanks, dtypes: ProductDtypes, orders: Orders) -> None:
        self._plan, self._total, cuboids, rank = plan, dtypes.total, plan.cuboids, backend.rank
        self._arrays, buffers = backend.arrays, Buffers(backend)
        a, b = placed(plan.oriented.a), placed(plan.oriented.b)
        right = SourceMatrix(backend, b, dtypes.b, orders.right)
        self._source_matrices, self._buffers = [right], [buffers]
        if not plan.stays:
            left = SourceMatrix(backend, a, dtypes.a, orders.left)
            whole = Movement(left, cuboids.a, buffers=buffers, tag=TAG_A, slot=0)
            own_panel = (cuboids.a, whole) if cuboids.a.coordinates(rank) is not None else None
            self._source_matrices.insert(0, left)
            self._gathered = [Panels(left, [[whole]], [own_panel])]
        panels = list(plan.panels())
        (i, _, l), k = cuboids.strides, cuboids.k
        steps, own = [], []
        for s, panel in enumerate(panels):
            width = panel.stop - panel.start
            # op(B)[k, n] goes from the ranks that have these n to all ranks (i, l) that multiply k(l)
            target = Placement(k, Split(width, width, 1), (l, 1, i), cuboids.m.nprocs)
            part = (0, k.n, panel.start, panel.stop)
            movement = Movement(right, target, part, buffers=buffers, tag=TAG_B, slot=s % SLOTS)
            steps.append([movement])
            own.append((target, movement) if target.coordinates(rank) is not None else None)
        self._panels = [Panels(right, steps, own)]
        coordinates = cuboids.a.coordinates(rank)
        self._multiplies = coordinates is not None and k.count(coordinates[1]) > 0
        self._count = len(panels)
        cuts = [(panel.start, panel.stop) for panel in panels]
        self._partials = self._new_partials(backend, cuts, dtypes, orders.result)

    def run(self, x: Operands) -> None:
        """D[m, n] = beta C[m, n] + sum over l of alpha op(A)[m, k(l)] op(B)[k(l), n], panel after panel of n."""
        ahead, partials, arrays, (panels,) = int(self._plan.overlap), self._partials, self._arrays, self._panels
        partials.begin(x)
        a = x.left
        for gathered in self._gathered:  # op(A)[m, k], from its owners, if it does not stay
            gathered.begin(0)
            whole = gathered.fetch(0)
            a = a if whole is None else whole
        if ahead:
            self._begin(0)
        for s in range(self._count):
            self._begin(s + ahead)  # lookahead: the next panel travels while this one is multiplied
            # op(B)[k, n], from the ranks that have these n
            b, part = panels.fetch(s), partials.part(s)
            if b is not None and self._multiplies:
                # partial D[m, n] = alpha op(A)[m, k] op(B)[k, n]
                total = part if part.dtype == self._total else arrays.like(part, self._total)
                self._multiply(x, a, b, total)
                if total is not part:
                    arrays.assign(total, part)
            partials.send(s)
            # D[m, n] += partial D[m, n] of each layer   (those of the panel before arrived during the GEMM)
            if s >= ahead:
                partials.collect(s - ahead)
        if ahead and self._count:
            partials.collect(self._count - 1)
        partials.end()
        self._end()

    def _multiply(self, x: Operands, a: Array, b: Array, total: Array) -> None:
        """The product of op(A) and a panel of op(B)."""
        self._arrays.gemm(x.alpha, a, b, 0.0, total, conj=x.conj)

    def _new_partials(
        self, backend: HostRanks, cuts: Sequence[tuple[int, int]], dtypes: ProductDtypes, order: Order
    ) -> Partials:
        """**Collective.** The partial products, in panels."""
        return Partials(backend, self._plan, cuts, dtypes, order)


class Panels:
    """The panels of an operand that this rank multiplies, and its messages for panels of other ranks."""

    def __init__(
        self,
        source_matrix: SourceMatrix,
        steps: Sequence[Sequence[Movement]],
        own_panels: Sequence[tuple[Placement, Movement] | None],
        sent_first: Sequence[Movement] = (),
    ) -> None:
        self._source, rank = source_matrix, source_matrix.backend.rank
        self._steps = [[movement for movement in step if movement.has_messages] for step in steps]
        # Receivers need panels of this rank in different orders: all start with the first step, and leave by the end.
        self._sent_first = [movement for movement in sent_first if movement.has_messages]
        self._own_panels = [None if own is None else (own[0].local_shape(rank), own[1]) for own in own_panels]
        self._buffers: list[Array | None] = [None, None]
        self._multiplied: Mark = None
        self.has_messages: bool = bool(self._sent_first) or any(self._steps)

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers if buffer is not None)

    def locations(self) -> list[tuple[int, ...]]:
        """Published locations of the arrays that this rank reads (local)."""
        near = {peer for own in self._own_panels if own is not None for peer in own[1].near}
        return [self._source.address(peer) for peer in sorted(near)]

    def is_own(self, step: int) -> bool:
        """Whether this rank holds its panel of a step, or needs none (local)."""
        own = self._own_panels[step]
        return own is None or own[1].is_own

    def begin(self, step: int) -> None:
        """Start the transfers of a step."""
        if not step:
            self._source.backend.sync()  # near ranks have published their arrays
        for movement in self._steps[step] if step else (*self._sent_first, *self._steps[step]):
            movement.begin()

    def fetch(self, step: int) -> Array | None:
        """This rank's panel after its arrival; None without one. It stays valid for one more `fetch`.

        The messages of the step before have left when this returns.
        """
        panel, arrived = self.fetch_columns(step, [slice(None)])
        self._source.backend.arrays.follow(next(arrived))
        return panel

    def fetch_columns(self, step: int, parts: Sequence[slice]) -> tuple[Array | None, Iterator[Any]]:
        """`fetch`, with an iterator of marks: a product with a part of the columns must follow the part's mark.

        A near rank's block is copied part after part, each when the iterator reaches its mark.
        """
        own, arrays = self._own_panels[step], self._source.backend.arrays
        before, self._multiplied = self._multiplied, arrays.mark()
        panel: Array | None = None
        arrived: Iterator[Any] = repeat(None)
        if own is not None:
            shape, movement = own
            block = panel = movement.in_place()
            if block is None or not (arrays.traits.reads_peers or movement.is_own):
                panel = self._buffer(step, shape)
                with arrays.on_side_lane("bring a panel"):
                    arrays.follow(before)  # earlier products read the buffer
                    if block is None:
                        movement.receive(panel)
                        arrived = repeat(arrays.mark())
                if block is not None:
                    arrived = self._copied(block, panel, parts)
        if step:
            self._sent(step - 1)
        return panel, arrived

    def _copied(self, block: Array, panel: Array, parts: Sequence[slice]) -> Iterator[Any]:
        """Copy a block to this rank's panel, part after part, with a mark after each."""
        arrays = self._source.backend.arrays
        for part in parts:
            with arrays.on_side_lane("bring a panel"):
                arrays.assign(block[:, part], panel[:, part])
                mark = arrays.mark()
            yield mark

    def end(self) -> None:
        """Return when all messages of this rank have left."""
        self._multiplied = None
        if self._steps:
            self._sent(len(self._steps) - 1)
        for movement in self._sent_first:
            movement.sent()

    def _sent(self, step: int) -> None:
        for movement in self._steps[step]:
            movement.sent()

    def _buffer(self, step: int, shape: tuple[int, int]) -> Array:
        """Memory for a panel, in the operand's order, so that BLAS gets the same arguments as in place."""
        source, i = self._source, step % 2
        buffer, itemsize = self._buffers[i], source.dtype.itemsize
        if buffer is None or buffer.nbytes < shape[0] * shape[1] * itemsize:
            widest = max(m * n for m, n in (own[0] for own in self._own_panels if own is not None))
            buffer = self._buffers[i] = own_memory(source.backend, widest * itemsize)
        panel: Array = source.backend.arrays.array(buffer, shape, source.dtype, source.order)
        return panel


def growing(n: int) -> list[int]:
    """Borders of parts of n columns: the first part is narrow, and the borders grow by a constant factor.

    >>> growing(8192), growing(3000), growing(600)
    ([0, 512, 2048, 8192], [0, 512, 3000], [0, 600])
    """
    borders = [0]
    border = _COLUMNS
    while border * 2 <= n:
        borders.append(border)
        border *= _GROWTH
    return [*borders, n]
