"""Executor of a triangular solve for a vector whose triangle stays on the GPUs: kernels exchange blocks of X.

    X[k] = T[k, k]^-1 (X[k] + sum over process columns of S[k])     (on the rank that holds T[k, k], then on all)
    S[i] -= T[i, k] X[k]                                            (on its process column, for the rows i after k)

All of it is work of the caller's stream: where a rank needs what another one computes, its GPU waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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


class _After(NamedTuple):
    """Rows of T that are multiplied with a block of X."""

    t: tuple[slice, slice]  # their elements in the block's columns (local)
    rows: slice  # of the sums (global)


class _Step(NamedTuple):
    """One block of X on this rank."""

    k: slice  # its elements (global)
    added: GpuExchange | None  # adds its sums; None if one process column has all of them
    solved: GpuExchange  # brings it to all ranks
    diagonal: tuple[slice, slice] | None  # T[k, k], if it is here (local)
    after: _After | None


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
        self._uplo, self._unit = plan.shape_of_t.uplo, plan.operands.unit
        self._steps: list[_Step] = []
        for block in plan.blocks():
            k, owner = slice(block.k0, block.k1), place.rank(block.row, block.column)
            added = GpuExchange(backend, dtype, block.width, self._sums[k]) if place.columns.nprocs > 1 else None
            counts = tuple(block.width * (rank == owner) for rank in ranks)
            solved = GpuExchange(backend, dtype, counts, self._solution[k])
            self._steps.append(_Step(k, added, solved, self._diagonal(block), self._after(block)))
        self._rows = index_of(result.global_ranges(backend.rank)[0])

    def run(self, x: TrsmOperands) -> None:
        """**Collective.** X := alpha T^-1 B, block after block."""
        arrays, solution, sums = self._arrays, self._solution[:, None], self._sums[:, None]
        self._right.collect(x.runtime, [x.right])
        arrays.scale(x.alpha, solution)
        arrays.fill_whole(sums, 0)
        for k, added, solved, diagonal, after in self._steps:
            # X[k] = T[k, k]^-1 (X[k] + S[k])   (on one rank, then on all)
            if added is not None:
                added.run(x.runtime)
            if diagonal is not None:
                arrays.add_scaled(1, sums[k], 1, solution[k])
                arrays.trsm(x.triangle[diagonal], solution[k], uplo=self._uplo, unit=self._unit, conj=x.conj[0])
            solved.run(x.runtime)
            # S[i] -= T[i, k] X[k]   (this rank's rows i after block k)
            if after is not None:
                t_ik, s_i = x.triangle[after.t], sums[after.rows]
                # A conjugate is stored by rows: BLAS takes that of the transposed matrix
                t, trans = (t_ik.T, "C") if x.conj[0] else (t_ik, "N")
                arrays.multiply_whole("gemv", -1, t, solution[k], 1, s_i, s_i, uplo="L", trans=trans, unit=False)
        if x.result.size:
            arrays.assign(solution[self._rows], x.result)

    def _diagonal(self, block: DiagonalBlock) -> tuple[slice, slice] | None:
        """Local rows and columns of T[k, k]; None on other ranks (local)."""
        if (block.row, block.column) != self._position:
            return None
        return self._local_rows(block.k0, block.k1), self._local_columns(block)

    def _after(self, block: DiagonalBlock) -> _After | None:
        """This rank's rows of T that are multiplied with a block of X; None without any (local)."""
        rows = self._local_rows(*self._plan.rows_after(block))
        if block.column != self._position[1] or rows.start == rows.stop:
            return None
        first = self._plan.triangle.rows.global_from_local(rows.start, self._position[0])
        return _After((rows, self._local_columns(block)), slice(first, first + rows.stop - rows.start))

    def _local_rows(self, start: int, stop: int) -> slice:
        """Local rows of T in global rows start..stop-1 (local)."""
        rows, r = self._plan.triangle.rows, self._position[0]
        return slice(rows.local_start(start, r), rows.local_start(stop, r))

    def _local_columns(self, block: DiagonalBlock) -> slice:
        """Local columns of T that belong to a block of this process column (local)."""
        start = self._plan.triangle.columns.local_start(block.k0, self._position[1])
        return slice(start, start + block.width)
