"""Executor of SummaC: D stays, panels of op(A) and op(B) arrive while earlier panels are multiplied."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pblas.backends.device import Programs
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.matmul.local_gemm_run import widened
from pblas.matmul.summa_panels import SLOTS, Panels, RunSumma
from pblas.matmul.summa_partials import Partials
from pblas.matmul.summa_plan import column_of, placed, row_of
from pblas.redistribution.transfer import Buffers, Movement, SourceMatrix

if TYPE_CHECKING:
    import numpy as np

    from pblas.backends.dtypes import Array, ProductDtypes
    from pblas.backends.host_ranks import HostRanks
    from pblas.matmul.operands import Operands, Orders
    from pblas.matmul.summa_plan import Panel, SummaC

TAG_A, TAG_B = 1021, 1022
_COLUMNS = 512
"""On GPUs, the width of the first part of a panel, multiplied while the rest arrives, and of the last part of D
to be rounded."""
_GROWTH = 4
"""Growth of the arrived columns from part to part: a GEMM of 8192 rows takes four times as long as the arrival of its
columns (16 bits, H200)."""


class RunSummaC(RunSumma):
    """Runs a SummaC plan on one rank."""

    def __init__(self, plan: SummaC, backend: HostRanks, dtypes: ProductDtypes, orders: Orders) -> None:
        self._plan, self._total, cuboids = plan, dtypes.total, plan.cuboids
        self.total_dtype: np.dtype[Any] = self._total
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
        self._a, self._b = (self._panels(x, panels, layer) for x in range(2))
        self._partials = None if plan.in_place else self._new_partials(dtypes, orders)
        self._programs = Programs()
        self._read_nbytes = 0  # of near ranks' memory, in an execution
        self._last = -1 if layer is None else len(panels.get(layer, [])) - 1  # other layers may have more steps

    def _new_partials(self, dtypes: ProductDtypes, orders: Orders) -> Partials | None:
        """**Collective.** The partial products of a plan that does not multiply directly into D."""
        return Partials(self._backend, self._plan, [(0, self._plan.oriented.n)], dtypes, orders.result)

    def _panels(self, x: int, panels: dict[int, list[Panel]], layer: int | None) -> Panels:
        """The panels of op(A) (x = 0) or op(B) (x = 1); `layer` is this rank's, or None."""
        source_matrix, panel_of = self._source_matrices[x], (self._panel_of_a, self._panel_of_b)[x]
        coordinates = source_matrix.placement.coordinates(self._backend.rank)
        own_part = None if coordinates is None else coordinates[1 - x]
        steps: list[list[Movement]] = [[] for _ in range(self._count)]
        own_panels: list[tuple[Placement, Movement] | None] = [None] * self._count
        offered = []
        for l, of_layer in panels.items():
            for s, panel in enumerate(of_layer):
                target, movement = panel_of(panel, l, self._buffers[x], None if self._plan.in_turn else s % SLOTS)
                if l == layer:
                    own_panels[s] = target, movement
                if self._plan.in_turn and panel.owner == own_part:
                    offered.append(movement)
                else:
                    steps[s].append(movement)
        return Panels(source_matrix, steps, own_panels, offered)

    def _panel_of_a(self, panel: Panel, layer: int, buffers: Buffers, slot: int | None) -> tuple[Placement, Movement]:
        """Target and movement of a panel of op(A): rows m(i) to all ranks (i, j, layer)."""
        source_matrix, width = self._source_matrices[0], panel.stop - panel.start
        (i, j, l), cuboids, (r0, r1) = self._plan.cuboids.strides, self._plan.cuboids, self._plan.rows_of(panel)
        target = Placement(cuboids.m.part(r0, r1), Split(width, width, 1), (i, 1, j), cuboids.n.nprocs, l * layer)
        place = source_matrix.placement if panel.owner is None else column_of(source_matrix.placement, panel.owner)
        part = (r0, r1, panel.start, panel.stop)
        return target, Movement(source_matrix, target, part, place=place, buffers=buffers, tag=TAG_A, slot=slot)

    def _panel_of_b(self, panel: Panel, layer: int, buffers: Buffers, slot: int | None) -> tuple[Placement, Movement]:
        """Target and movement of a panel of op(B): columns n(j) to all ranks (i, j, layer)."""
        source_matrix, width = self._source_matrices[1], panel.stop - panel.start
        (i, j, l), cuboids = self._plan.cuboids.strides, self._plan.cuboids
        target = Placement(Split(width, width, 1), cuboids.n, (1, j, i), cuboids.m.nprocs, l * layer)
        place = source_matrix.placement if panel.owner is None else row_of(source_matrix.placement, panel.owner)
        part = (panel.start, panel.stop, 0, cuboids.n.n)
        return target, Movement(source_matrix, target, part, place=place, buffers=buffers, tag=TAG_B, slot=slot)

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's workspace."""
        total = self._a.nbytes + self._b.nbytes + sum(x.nbytes for x in self._buffers)
        total += sum(source_matrix.workspace_nbytes for source_matrix in self._source_matrices)
        return total + (self._partials.workspace_nbytes if self._partials else 0)

    def publish(self, operands: Operands) -> bool:
        """Publish the locations of the operands; true if one must be staged first."""
        left, right = self._source_matrices
        alone = left.publish(operands.left)
        return right.publish(operands.right) or alone

    def run(self, x: Operands) -> None:
        """D[m, n] = alpha op(A)[m, :] op(B)[:, n] + beta C[m, n], or the partial product over this rank's layer."""
        panels, read = (self._a, self._b), self._backend.read_nbytes
        if self._partials is not None or any(operand_panels.has_messages for operand_panels in panels):
            self._run(x)
        elif self._arrays.replayed(self._programs, lambda: self._key(x), lambda: self._run(x)):
            self._read_nbytes = self._backend.read_nbytes - read
        else:
            self._backend.read_nbytes += self._read_nbytes
        for operand_panels in panels:
            operand_panels.end()
        for source_matrix in self._source_matrices:
            source_matrix.release()

    def _key(self, x: Operands) -> Any:
        """Key of a recording: the addresses of all arrays, and the scalars."""
        arrays = (x.left, x.right, x.result, x.old)
        own = [None if y is None else (self._backend.address(y), y.strides) for y in arrays]
        return x.alpha, x.beta, *own, *self._a.places(), *self._b.places()

    def _run(self, x: Operands) -> None:
        partials, arrays, beta, result = self._partials, self._arrays, x.beta, x.result
        if partials is not None:
            partials.begin(x)
            result, beta = partials.part(0), 0.0
            total = result if result.dtype == self._total else arrays.like(result, self._total)
        else:
            total = widened(x, self._total, arrays)
        self._multiply_panels(x, total, beta, result)
        if partials is not None:
            partials.send(0)
            partials.collect(0)
            partials.end()

    def _multiply_panels(self, x: Operands, total: Array, beta: complex, result: Array) -> None:
        overlap = self._plan.overlap
        for s in range(self._count):
            if s == 0 or not overlap:
                self._begin(s)
            if overlap and s + 1 < self._count:
                self._begin(s + 1)
            parts = self._parts(s, total, result)
            # op(A)[m, k] and op(B)[k, n] arrive from the ranks that have these k
            b, arrived = self._b.fetch_columns(s, parts)
            a = self._a.fetch(s)
            if a is None or b is None:
                continue
            mark = next(arrived)
            for columns in parts:
                before, mark = mark, next(arrived, None)  # the copy of the next part starts before this product
                self._arrays.follow(before)
                self._multiply(s, x, a, b[:, columns], beta, total[:, columns])
                if s == self._last and total is not result:
                    self._round(total[:, columns], result[:, columns])
            beta = 1.0
        if self._last < 0:
            self._arrays.scale(beta, total)
            if total is not result:
                self._arrays.assign(total, result)

    def _multiply(self, s: int, x: Operands, a: Array, b: Array, beta: complex, total: Array) -> None:
        """D[m, n] := alpha op(A)[m, k] op(B)[k, n] + beta D[m, n], for the panels of step s."""
        self._arrays.gemm(x.alpha, a, b, beta, total, conj=x.conj)

    def _begin(self, s: int) -> None:
        self._a.begin(s)
        self._b.begin(s)

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
