"""Executor of a triangular solve whose triangle stays: blocks of X and sums move along the diagonal.

    X[k] = T[k, k]^-1 (sum over process columns of S[k])     (on the rank that holds T[k, k])
    S[i] -= T[i, k] X[k]                                     (on its process column, for the rows i after k)

The rows of the next block come first, and their sums leave before the other rows are multiplied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pblas.collectives.api import GpuExchange
from pblas.core.operation import WithoutMemory
from pblas.matrices.scatter_gather import index_of
from pblas.redistribution.packing import Scaling
from pblas.redistribution.transfer import own_memory
from pblas.triangular.trsm_run import RightHandSides, TrsmOperands
from pblas.vectors.checks import GpuColumns

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype, Order
    from pblas.backends.host_ranks import HostRanks
    from pblas.backends.transport import Transfer
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.triangular.pipelined_trsm_plan import DiagonalBlock, PipelinedTrsm
    from pblas.vectors.checks import VectorKind

TAG_SUM, TAG_BLOCK = 1035, 1036
_LEAST_BLOCK, _MOST_BLOCKS = 4096, 16


class RunPipelinedTrsm:
    """**Collective.** Runs a PipelinedTrsm plan on one rank."""

    peers_read = False  # no peer reads this rank's arrays after X has left (global)

    def __init__(self, plan: PipelinedTrsm, backend: HostRanks, dtype: Dtype, orders: tuple[Order, ...]) -> None:
        self._plan, self._backend, self._arrays = plan, backend, backend.arrays
        self._right = RightHandSides(
            *(backend, plan.operands.right, plan.operands.result, dtype, (orders[1], orders[2])),
            target=plan.sums,
            solved=plan.solved,
        )
        self._blocks, place = list(plan.blocks()), plan.triangle
        position = place.coordinates(backend.rank)
        self._position = (-1, -1) if position is None else position[:2]
        shape = place.local_shape(backend.rank)[0], plan.nrhs
        self._sums = backend.arrays.array(own_memory(backend, shape[0] * shape[1] * dtype.itemsize), shape, dtype)
        mine = [block for block in self._blocks if (block.row, block.column) == self._position]
        height = max((len(block.terms) * block.width for block in mine), default=0)
        terms = own_memory(backend, height * plan.nrhs * dtype.itemsize)
        self._terms = backend.arrays.array(terms, (height, plan.nrhs), dtype)
        self._sending: list[Transfer] = []

    @property
    def workspace_nbytes(self) -> int:
        return self._right.workspace_nbytes + int(self._sums.nbytes + self._terms.nbytes)

    def publish(self, x: TrsmOperands) -> bool:
        return self._right.publish(x.right)

    def prepare(self, *, scratch: bool) -> bool:
        return self._right.prepare(scratch=scratch)

    def run(self, x: TrsmOperands) -> None:
        """**Collective.** X := alpha T^-1 B, block after block."""
        arrays, (row, column) = self._arrays, self._position
        solutions = self._right.x
        assert solutions is not None, "X is computed beside its own memory"
        # S = alpha B on the first process column of T, 0 on the others
        arrays.scale(0.0, self._sums)
        sums = self._sums[: self._plan.sums.local_shape(self._backend.rank)[0]]
        self._right.bring(sums, Scaling(x.alpha, 0.0, x.conj[1]))
        last = self._blocks[-1]
        trailing: tuple[DiagonalBlock, DiagonalBlock] | None = None
        for block, after in zip(self._blocks, [*self._blocks[1:], last], strict=True):
            # X[k] = T[k, k]^-1 (sum over process columns of S[k])   (sent to the process column of T[k, k])
            if block.row == row:
                self._add_up(block, x, solutions)
            # S[i] -= T[i, k-1] X[k-1] for the rows i after block k   (trailing update, while X[k] travels)
            if trailing is not None:
                self._multiply_rows(trailing[0], self._plan.rows_after(trailing[1]), x, solutions)
            trailing = None
            if block.column == column:
                self._receive(block, solutions)
                if block is not last:
                    # S[k+1] -= T[k+1, k] X[k]   (lookahead: these sums leave first)
                    if after.row == row:
                        self._multiply_rows(block, (after.k0, after.k1), x, solutions)
                    trailing = block, after
        for transfer in self._sending:
            self._backend.wait(transfer.done, "sending blocks of X")
        self._sending = []
        self._right.deliver(x.result, self._plan.name)

    def _rows(self, k0: int, k1: int) -> slice:
        """Local rows of T, and of the sums, in global rows k0..k1-1."""
        rows, r = self._plan.triangle.rows, self._position[0]
        return slice(rows.local_start(k0, r), rows.local_start(k1, r))

    def _columns(self, block: DiagonalBlock) -> slice:
        """Local columns of T, and local rows of X, that belong to a block of this process column."""
        start = self._plan.triangle.columns.local_start(block.k0, self._position[1])
        return slice(start, start + block.width)

    def _add_up(self, block: DiagonalBlock, x: TrsmOperands, solutions: Array) -> None:
        """Send this rank's sums to the owner of a block; the owner adds them, solves, and sends X[k]."""
        plan, backend, (row, column) = self._plan, self._backend, self._position
        place, sums = plan.triangle, self._sums[self._rows(block.k0, block.k1)]
        if column != block.column:
            if column in block.terms:
                self._send(sums, place.rank(row, block.column), TAG_SUM)
            return
        x_k = solutions[self._columns(block)]
        parts, arriving = {column: sums}, []
        for i, c in enumerate(c for c in block.terms if c != column):
            parts[c] = self._terms[i * block.width : (i + 1) * block.width]
            arriving.append(backend.channel.receive(parts[c], place.rank(row, c), TAG_SUM))
        for transfer in arriving:
            backend.wait(transfer.done, "sums of a block of X")
        # S[k] = S_0[k] + S_1[k] + ...   (in the order of process columns)
        first, *others = block.terms or (column,)
        self._arrays.assign(parts[first], x_k)
        for c in others:
            self._arrays.add_scaled(1.0, parts[c], 1.0, x_k)
        # X[k] = T[k, k]^-1 S[k]
        triangle = x.triangle[self._rows(block.k0, block.k1), self._columns(block)]
        uplo = plan.shape_of_t.uplo
        self._arrays.trsm(triangle, x_k, uplo=uplo, unit=plan.operands.unit, conj=x.conj[0])
        for r in range(place.rows.nprocs):
            if r != row:
                self._send(x_k, place.rank(r, column), TAG_BLOCK)

    def _receive(self, block: DiagonalBlock, solutions: Array) -> None:
        """Wait for X[k] from the rank that has solved it."""
        if block.row != self._position[0]:
            x_k, peer = solutions[self._columns(block)], self._plan.triangle.rank(block.row, block.column)
            self._backend.wait(self._backend.channel.receive(x_k, peer, TAG_BLOCK).done, "a block of X")

    def _multiply_rows(self, block: DiagonalBlock, bounds: tuple[int, int], x: TrsmOperands, solutions: Array) -> None:
        """S[i] -= T[i, k] X[k] for some rows i (global)."""
        rows, columns = self._rows(*bounds), self._columns(block)
        conj = x.conj[0], False
        self._arrays.gemm(-1, x.triangle[rows, columns], solutions[columns], 1, self._sums[rows], conj=conj)

    def _send(self, piece: Array, peer: int, tag: int) -> None:
        if piece.size:
            self._sending.append(self._backend.channel.send(piece, peer, tag))


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
    """**Collective.** Runs a PipelinedTrsm plan of one vector on GPUs, whose kernels exchange blocks.

    All of it is work of the caller's stream: where a rank needs what another one computes, its GPU waits.
    """

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
