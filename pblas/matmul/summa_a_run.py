"""Executor of SummaA: op(A) stays, panels of op(B) arrive; ranks send partial products of D to the owners to add."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.matmul.summa_panels import SLOTS, Panels, RunSumma
from pblas.matmul.summa_partials import Partials
from pblas.matmul.summa_plan import placed
from pblas.redistribution.transfer import Buffers, Movement, SourceMatrix

if TYPE_CHECKING:
    from pblas.backends.dtypes import ProductDtypes
    from pblas.backends.host_ranks import HostRanks
    from pblas.matmul.operands import Operands, Orders
    from pblas.matmul.summa_plan import SummaA

TAG_A, TAG_B = 1021, 1022


class RunSummaA(RunSumma):
    """Runs a SummaA plan on one rank; in a transposed plan op(A) is the user's op(B)^T."""

    def __init__(self, plan: SummaA, backend: HostRanks, dtypes: ProductDtypes, orders: Orders) -> None:
        self._plan, self._total, cuboids, rank = plan, dtypes.total, plan.cuboids, backend.rank
        a, b = placed(plan.oriented.a), placed(plan.oriented.b)
        self._arrays = backend.arrays
        self._buffers = buffers = Buffers(backend)
        self._left: Panels | None = None
        self._source_matrices = [SourceMatrix(backend, b, dtypes.b, orders.right)]
        if not plan.stays:
            source_matrix = SourceMatrix(backend, a, dtypes.a, orders.left)
            whole = Movement(source_matrix, cuboids.a, buffers=buffers, tag=TAG_A, slot=0)
            own_panel = (cuboids.a, whole) if cuboids.a.coordinates(rank) is not None else None
            self._source_matrices.append(source_matrix)
            self._left = Panels(source_matrix, [[whole]], [own_panel])
        panels = list(plan.panels())
        (i, _, l), k = cuboids.strides, cuboids.k
        steps, own = [], []
        for s, panel in enumerate(panels):
            width = panel.stop - panel.start
            # op(B)[k, n] goes from the ranks that have these n to all ranks (i, l) that multiply k(l)
            target = Placement(k, Split(width, width, 1), (l, 1, i), cuboids.m.nprocs)
            part = (0, k.n, panel.start, panel.stop)
            movement = Movement(self._source_matrices[0], target, part, buffers=buffers, tag=TAG_B, slot=s % SLOTS)
            steps.append([movement])
            own.append((target, movement) if target.coordinates(rank) is not None else None)
        self._right = Panels(self._source_matrices[0], steps, own)
        coordinates = cuboids.a.coordinates(rank)
        self._multiplies = coordinates is not None and k.count(coordinates[1]) > 0
        self._count = len(panels)
        cuts = [(panel.start, panel.stop) for panel in panels]
        self._partials = Partials(backend, plan, cuts, dtypes, orders.result)

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's workspace."""
        total = self._partials.workspace_nbytes + sum(
            source_matrix.workspace_nbytes for source_matrix in self._source_matrices
        )
        total += self._buffers.nbytes
        return total + self._right.nbytes + (self._left.nbytes if self._left else 0)

    def publish(self, operands: Operands) -> bool:
        """Publish the locations of the operands that move; true if one must be staged first."""
        alone = self._source_matrices[0].publish(operands.right)
        return (self._left is not None and self._source_matrices[1].publish(operands.left)) or alone

    def run(self, x: Operands) -> None:
        """partial D[m, n] = alpha op(A)[m, k] op(B)[k, n] for the m and k of this rank, panel after panel of n."""
        overlap, partials, arrays = self._plan.overlap, self._partials, self._arrays
        partials.begin(x)
        a = x.left
        if self._left is not None:
            self._left.begin(0)
            brought = self._left.fetch(0)
            a = a if brought is None else brought
        for s in range(self._count):
            if s == 0 or not overlap:
                self._right.begin(s)
            if overlap and s + 1 < self._count:
                self._right.begin(s + 1)
            b, part = self._right.fetch(s), partials.part(s)
            if b is not None and self._multiplies:
                # partial D[m, n] = alpha op(A)[m, k] op(B)[k, n]   (op(B)[k, n] arrived from the ranks that have it)
                total = part if part.dtype == self._total else arrays.like(part, self._total)
                arrays.gemm(x.alpha, a, b, 0.0, total, conj=x.conj)
                if total is not part:
                    arrays.assign(total, part)
            partials.send(s)
            if s and overlap:
                partials.collect(s - 1)
            elif not overlap:
                partials.collect(s)
        if overlap and self._count:
            partials.collect(self._count - 1)
        partials.end()
        self._right.end()
        if self._left is not None:
            self._left.end()
        for source_matrix in self._source_matrices:
            source_matrix.release()
