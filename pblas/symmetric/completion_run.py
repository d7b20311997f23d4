"""A matrix of which one triangle is read, completed: the other triangle of each shard holds the mirrored elements.

That of a triangular matrix holds zeros.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pblas.matmul.triangle import Triangle
from pblas.redistribution.packing import COPY, Scaling
from pblas.redistribution.transfer import Movement, SourceMatrix

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype, Order
    from pblas.backends.host_ranks import HostRanks
    from pblas.core.operation import Executor
    from pblas.layouts.placement import Placement
    from pblas.matmul.local_gemm_run import Operands
    from pblas.symmetric.structured_plan import Structure

TAG_MIRROR, TAG_COMPLETE, TAG_READ = 1027, 1028, 1029  # TAG_READ: B has been read


class Completion:
    """**Collective.** The completed matrix, in memory that near ranks read, under the placement of the matrix."""

    def __init__(self, backend: HostRanks, place: Placement, structure: Structure, dtype: Dtype, order: Order) -> None:
        self._backend, rank = backend, backend.rank
        nbytes = max(1, place.rows.max_count * place.columns.max_count) * dtype.itemsize
        # The block is kept because the array on it does not keep it.
        self._block = backend.allocate_scratch(nbytes, window=backend.shared)
        self.matrix: Array = backend.peer_block(self._block, rank, 0, place.local_shape(rank), dtype, order)
        """This rank's shard of the completed matrix (local)."""
        self._own = Triangle(backend, place, structure.stored, order)
        self._unit = structure.unit
        self._put = Scaling(conj=True) if structure.kind == "Hermitian" and dtype.kind == "c" else COPY
        self._source: SourceMatrix | None = None
        if structure.kind == "triangular":
            backend.fill(self.matrix)
        else:
            self._source = SourceMatrix(backend, place.T, dtype, "C" if order == "F" else "F")
            self._mirrored = Movement(self._source, place, trapezoid=structure.mirrored, tag=TAG_MIRROR)

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of the completed shard, and of messages (local)."""
        moved = 0 if self._source is None else self._source.workspace_nbytes + self._mirrored.workspace_nbytes
        return int(self.matrix.nbytes) + moved

    def publish(self, x: Array) -> bool:
        """Publish the location of this rank's shard; true if it must be staged first (local)."""
        return self._source is not None and self._source.publish(x.T)

    def stage(self) -> None:
        """Stage the shard if any rank must (local)."""
        if self._source is not None:
            self._source.stage()

    def run(self, x: Array) -> None:
        """**Collective.** Fill in the other triangle; on return near ranks have done so too."""
        if self._source is not None:
            self._mirrored.begin()
        # M[i, j] = A[i, j] in the triangle that is read
        self._own.put(x, self.matrix)
        if self._source is not None:
            # M[j, i] = A[i, j], or its conjugate, in the other one   (from the ranks that hold A[i, j])
            self._mirrored.finish(self.matrix, self._put)
            self._source.release()
        if self._put != COPY:
            self._backend.arrays.synchronize()
            self._own.set_diagonal(self.matrix.imag, 0.0)
        if self._unit:
            self._own.set_diagonal(self.matrix, 1.0)
        meet(self._backend, TAG_COMPLETE, "other ranks complete a matrix")

    def overwrite(self, x: Array, out: Array) -> None:
        """**Collective.** Out := X, once near ranks no longer read out."""
        meet(self._backend, TAG_READ, "other ranks read B before it is overwritten")
        self._backend.arrays.assign(x, out)


def meet(backend: HostRanks, tag: int, what: str) -> None:
    """Wait until all near ranks have finished their earlier accesses to shared memory (local)."""
    backend.arrays.synchronize()
    backend.sync()
    near, channel = [peer for peer in range(backend.size) if backend.is_near(peer)], backend.channel
    signals = [channel.await_signal(peer, tag) for peer in near] + [channel.signal(peer, tag) for peer in near]
    for transfer in signals:
        backend.wait(transfer.done, what)
    backend.sync()


class RunCompleted:
    """Runs the plan of a product, one of whose operands is completed first."""

    peers_read = True  # until the closing agreement (global)

    def __init__(
        self, completion: Completion, inner: Executor, *, is_left: bool = True, beside: Array | None = None
    ) -> None:
        """`beside`: memory in which D is formed, if it is then written over the other operand."""
        self._completion, self._inner, self.is_left, self._beside = completion, inner, is_left, beside

    @property
    def workspace_nbytes(self) -> int:
        beside = 0 if self._beside is None else int(self._beside.nbytes)
        return self._completion.workspace_nbytes + self._inner.workspace_nbytes + beside

    def _completed(self, x: Operands) -> Operands:
        matrix = self._completion.matrix
        return replace(x, left=matrix) if self.is_left else replace(x, right=matrix)

    def publish(self, x: Operands) -> bool:
        alone = self._completion.publish(x.left if self.is_left else x.right)
        return self._inner.publish(self._completed(x)) or alone

    def prepare(self, *, scratch: bool) -> bool:
        if scratch:
            self._completion.stage()
        return self._inner.prepare(scratch=scratch) or scratch

    def run(self, x: Operands) -> None:
        """**Collective.** Complete the matrix, and multiply."""
        # M = the whole symmetric A, of which x has a triangle
        self._completion.run(x.left if self.is_left else x.right)
        # D = alpha M B + beta C, or alpha B M + beta C
        if self._beside is None:
            self._inner.run(self._completed(x))
            return
        self._inner.run(replace(self._completed(x), result=self._beside))
        # over B: B[i, j] = D[i, j], which was formed beside it
        self._completion.overwrite(self._beside, x.result)
