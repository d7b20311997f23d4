"""Executor of a triangular solve for a vector whose triangle stays on the GPUs: kernels exchange blocks of X.

    X[k] = T[k, k]^-1 (X[k] + sum over process columns of S[k])     (on the rank that holds T[k, k], then on all)
    S[i] -= T[i, k] X[k]                                            (on its process column, for the rows i after k)

All of it is work of the caller's stream: where a rank needs what another one computes, its GPU waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.collectives.api import GpuExchange
from pblas.core.operation import WithoutMemory
from pblas.matrices.scatter_gather import index_of
from pblas.vectors.checks import GpuColumns

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.triangular.pipelined_trsm_plan import DiagonalBlock, PipelinedTrsm
    from pblas.triangular.trsm_run import TrsmOperands
    from pblas.vectors.checks import VectorKind

_LEAST_BLOCK, _MOST_BLOCKS = 4096, 16


def width_on_gpus(n: int) -> int:
    """Elements of X that are solved at once: while the next ones are solved, other ranks multiply with them."""
    return max(_LEAST_BLOCK, -(-n // _MOST_BLOCKS))


class RunTrsvOnGpus(WithoutMemory):
    """**Collective.** Runs a PipelinedTrsm plan of one vector on one rank."""

    def __init__(
        self, plan: PipelinedTrsm, backend: HostRanks, dtype: Dtype, right: VectorKind, result: MatrixDescriptor
    ) -> None:
        self._plan, self._arrays = plan, backend.arrays
        place, ranks = plan.triangle, range(backend.size)
        position = place.coordinates(backend.rank)
        self._position = (-1, -1) if position is None else position[:2]
        self._right = GpuColumns([right], backend)
        (self._solution,) = self._right.elements  # first B, then X
        memory = backend.arrays.empty(plan.order * dtype.itemsize)
        self._sums: Array = backend.arrays.array(memory, (plan.order,), dtype)
        self._steps: list[tuple[DiagonalBlock, GpuExchange | None, GpuExchange]] = []
        for block in plan.blocks():
            k, owner = slice(block.k0, block.k1), place.rank(block.row, block.column)
            added = GpuExchange(backend, dtype, block.width, self._sums[k]) if place.columns.nprocs > 1 else None
            counts = tuple(block.width * (rank == owner) for rank in ranks)
            self._steps.append((block, added, GpuExchange(backend, dtype, counts, self._solution[k])))
        self._rows = index_of(result.global_ranges(backend.rank)[0])

    def run(self, x: TrsmOperands) -> None:
        """**Collective.** X := alpha T^-1 B, block after block."""
        arrays, plan, solution = self._arrays, self._plan, self._solution[:, None]
        self._right.collect(x.runtime, [x.right])
        arrays.scale(x.alpha, solution)
        arrays.fill_whole(self._sums[:, None], 0)
        for block, added, solved in self._steps:
            # X[k] = T[k, k]^-1 (X[k] + S[k])   (on one rank, then on all)
            if added is not None:
                added.run(x.runtime)
            if (block.row, block.column) == self._position:
                x_k, s_k = (z[block.k0 : block.k1] for z in (solution, self._sums[:, None]))
                arrays.add_scaled(1, s_k, 1, x_k)
                triangle = x.triangle[self._local_rows(block.k0, block.k1), self._local_columns(block)]
                arrays.trsm(triangle, x_k, uplo=plan.shape_of_t.uplo, unit=plan.operands.unit, conj=x.conj[0])
            solved.run(x.runtime)
            # S[i] -= T[i, k] X[k]
            if block.column == self._position[1]:
                self._multiply(block, x)
        if x.result.size:
            arrays.assign(solution[self._rows], x.result)

    def _multiply(self, block: DiagonalBlock, x: TrsmOperands) -> None:
        """S[i] -= T[i, k] X[k] for this rank's rows i after block k (local)."""
        start, stop = self._plan.rows_after(block)
        rows = self._local_rows(start, stop)
        t_ik = x.triangle[rows, self._local_columns(block)]
        if not t_ik.size:
            return
        first = self._plan.triangle.rows.global_from_local(rows.start, self._position[0])
        x_k, s_i = self._solution[block.k0 : block.k1, None], self._sums[first : first + len(t_ik), None]
        options: Any = {"uplo": "L", "unit": False}
        if x.conj[0]:  # stored by rows: the transposed matrix, of which BLAS takes the conjugate
            self._arrays.multiply_whole("gemv", -1, t_ik.T, x_k, 1, s_i, s_i, trans="C", **options)
        else:
            self._arrays.multiply_whole("gemv", -1, t_ik, x_k, 1, s_i, s_i, trans="N", **options)

    def _local_rows(self, start: int, stop: int) -> slice:
        """Local rows of T in global rows start..stop-1 (local)."""
        rows, r = self._plan.triangle.rows, self._position[0]
        return slice(rows.local_start(start, r), rows.local_start(stop, r))

    def _local_columns(self, block: DiagonalBlock) -> slice:
        """Local columns of T that belong to a block of this process column (local)."""
        start = self._plan.triangle.columns.local_start(block.k0, self._position[1])
        return slice(start, start + block.width)
