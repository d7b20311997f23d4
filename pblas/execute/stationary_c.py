"""SummaC: D stays, panels of op(A) and op(B) arrive while the panels before them are multiplied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.backends.gemm import accumulator_dtype
from pblas.execute.local_gemm import widened
from pblas.execute.movement import Buffers, Home, Movement
from pblas.execute.panels import Panels
from pblas.execute.partials import Partials
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.summa import column_of, placed, row_of

if TYPE_CHECKING:
    import numpy as np

    from pblas.backends.gemm import Array
    from pblas.backends.mpi import MpiBackend
    from pblas.execute.operands import Operands, Orders
    from pblas.summa import Panel, SummaC

TAG_A, TAG_B = 1021, 1022
_COLUMNS = 512
"""Columns of D between two looks at messages: narrower GEMMs would pack op(A) anew too often."""


class RunSummaC:
    """Runs a SummaC plan on one rank."""

    def __init__(
        self, plan: SummaC, backend: MpiBackend, dtype: np.dtype[Any], wire: np.dtype[Any], orders: Orders
    ) -> None:
        self._plan, self._total, cuboids = plan, accumulator_dtype(dtype), plan.cuboids
        self._arrays = backend.arrays
        self._looks = plan.transport != "window" and backend.arrays.at_once
        a, b = placed(plan.oriented.a), placed(plan.oriented.b)
        self._homes = Home(backend, a, dtype, orders.left), Home(backend, b, dtype, orders.right)
        panels = {l: list(plan.panels(l)) for l in cuboids.layers}
        self._count = max(map(len, panels.values()), default=0)
        at = cuboids.a.coordinates(backend.rank)
        layer = None if at is None else at[1]
        self._buffers = left, right = Buffers(backend), Buffers(backend)
        moved: tuple[Any, Any] = [[] for _ in range(self._count)], [[] for _ in range(self._count)]
        mine: tuple[Any, Any] = [None] * self._count, [None] * self._count
        for l in cuboids.layers:
            for s, panel in enumerate(panels[l]):
                for x, (target, movement) in enumerate(
                    (self._panel_of_a(panel, l, left), self._panel_of_b(panel, l, right))
                ):
                    moved[x][s].append(movement)
                    if l == layer:
                        mine[x][s] = target, movement
        self._a, self._b = (Panels(*each) for each in zip(self._homes, moved, mine, strict=True))
        self._partials: Partials | None = None
        if not plan.in_place:
            self._partials = Partials(backend, plan, [(0, plan.oriented.n)], dtype, wire, orders.result)
        self._multiplies = layer in panels

    def _panel_of_a(self, panel: Panel, layer: int, buffers: Buffers) -> tuple[Placement, Movement]:
        """Where a panel of op(A) goes: rows m(i) to all ranks (i, j, layer)."""
        home, width = self._homes[0], panel.stop - panel.start
        (i, j, l), cuboids = self._plan.cuboids.strides, self._plan.cuboids
        target = Placement(cuboids.m, Split(width, width, 1), (i, 1, j), cuboids.n.nprocs, l * layer)
        place = home.placement if panel.owner is None else column_of(home.placement, panel.owner)
        part = (0, cuboids.m.n, panel.start, panel.stop)
        return target, Movement(home, target, part, place=place, buffers=buffers, tag=TAG_A)

    def _panel_of_b(self, panel: Panel, layer: int, buffers: Buffers) -> tuple[Placement, Movement]:
        """Where a panel of op(B) goes: columns n(j) to all ranks (i, j, layer)."""
        home, width = self._homes[1], panel.stop - panel.start
        (i, j, l), cuboids = self._plan.cuboids.strides, self._plan.cuboids
        target = Placement(Split(width, width, 1), cuboids.n, (1, j, i), cuboids.m.nprocs, l * layer)
        place = home.placement if panel.owner is None else row_of(home.placement, panel.owner)
        part = (panel.start, panel.stop, 0, cuboids.n.n)
        return target, Movement(home, target, part, place=place, buffers=buffers, tag=TAG_B)

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's workspace."""
        found = self._a.nbytes + self._b.nbytes + sum(x.nbytes for x in self._buffers)
        found += sum(home.workspace_nbytes for home in self._homes)
        return found + (self._partials.workspace_nbytes if self._partials else 0)

    def publish(self, operands: Operands) -> bool:
        """Say where the operands lie; true if one has to be staged first."""
        left, right = self._homes
        alone = left.publish(operands.left)
        return right.publish(operands.right) or alone

    def prepare(self, *, scratch: bool) -> bool:
        """**Collective.** Stage the operands if some rank must; true if the ranks then have to agree once more."""
        if scratch:
            for home in self._homes:
                home.stage()
        return scratch

    def run(self, x: Operands) -> None:
        """D[m, n] = alpha op(A)[m, :] op(B)[:, n] + beta C[m, n], or the partial product over this rank's layer."""
        partials, arrays, beta = self._partials, self._arrays, x.beta
        if partials is not None:
            partials.begin(x)
            part = partials.part(0)
            total, beta = part if part.dtype == self._total else arrays.like(part, self._total), 0.0
        else:
            total = widened(x, self._total, arrays)
        self._multiply_panels(x, total, beta)
        if partials is not None:
            if total is not part:
                arrays.assign(total, part)
            partials.send(0)
            partials.collect(0)
            partials.end()
        elif total is not x.result:
            arrays.assign(total, x.result)
        self._a.end()
        self._b.end()
        for home in self._homes:
            home.release()

    def _multiply_panels(self, x: Operands, total: Array, beta: complex) -> None:
        overlap = self._plan.overlap
        for s in range(self._count):
            if s == 0 or not overlap:
                self._begin(s)
            if overlap and s + 1 < self._count:
                self._begin(s + 1)
            # op(A)[m, k] arrives from the ranks that have these k, op(B)[k, n] likewise
            a, b = self._a.fetch(s), self._b.fetch(s)
            if a is not None and b is not None:
                # D[m, n] += alpha op(A)[m, k] op(B)[k, n]
                self._multiply(x, a, b, beta, total, min(s + 1, self._count - 1))
                beta = 1.0
        if not self._multiplies:
            self._arrays.scale(beta, total)

    def _begin(self, s: int) -> None:
        self._a.begin(s)
        self._b.begin(s)

    def _multiply(self, x: Operands, a: Array, b: Array, beta: complex, total: Array, following: int) -> None:
        """One GEMM, or several between which MPI moves the following panels."""
        width = _COLUMNS if self._looks else max(1, total.shape[1])
        for j in range(0, total.shape[1], width):
            columns = slice(j, j + width)
            self._arrays.gemm(x.alpha, a, b[:, columns], beta, total[:, columns], conj=x.conj)
            if self._looks:
                self._a.progress(following)
                self._b.progress(following)
