"""The matrix that an executor changes by columns: B arrives where it is used, and X leaves for its owners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pblas.redistribution.scaling import COPY, Scaling
from pblas.redistribution.transfer import Buffers, Movement, SourceMatrix

if TYPE_CHECKING:
    import numpy as np

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.layouts.placement import Placement

TAG_B, TAG_X = 1033, 1034


class TrsmOperands(NamedTuple):
    """Local arrays of one execution, in the plan's orientation.

    Args:
        triangle: T (local).
        right: the right-hand sides as columns: B, or B^T if A stands on the right (local).
        result: the solutions as columns (local).
        alpha: scalar (global).
        conj: conjugate T, B (global).
        in_place: `right` and `result` are the same memory (local).
    """

    triangle: Array
    right: Array
    result: Array
    alpha: complex
    conj: tuple[bool, bool]
    in_place: bool


class RightHandSides:
    """**Collective.** The movements of B and X.

    Args:
        backend: ranks, memory and messages (global).
        right: placement of B as columns; None: X begins with other elements (global).
        result: placement of X as columns (global).
        dtype: of the matrices (global).
        orders: storage orders of B and X as columns (global).
        target: placement to which B is brought (global).
        solved: placement of the memory in which X is computed; None: in X's own memory (global).
        lld: leading dimension of that memory, if its order is "F"; None for the number of rows (global).
    """

    def __init__(
        self,
        backend: HostRanks,
        right: Placement | None,
        result: Placement,
        dtype: np.dtype[Any],
        orders: tuple[Literal["F", "C"], Literal["F", "C"]],
        *,
        target: Placement,
        solved: Placement | None,
        lld: int | None = None,
    ) -> None:
        self._backend, self._arrays = backend, backend.arrays
        self.buffers = Buffers(backend)
        """Memory of messages, which movements of T may share (local)."""
        self._bring: Movement | None = None
        if right is not None:  # near ranks read B in place
            self._bring = Movement(
                SourceMatrix(backend, right, dtype, orders[0]), target, buffers=self.buffers, tag=TAG_B
            )
        self.x: Array | None = None
        """Memory in which X is computed; None: X's own (local)."""
        if solved is not None:
            height = lld or solved.rows.max_count
            self._memory = backend.allocate_scratch(
                max(1, height * solved.columns.max_count) * dtype.itemsize, window=backend.shared
            )
            m_loc, n_loc = solved.local_shape(backend.rank)
            shape = (lld or m_loc) if m_loc else 0, n_loc
            self.x = backend.peer_block(self._memory, backend.rank, 0, shape, dtype, orders[1])[:m_loc]
            self._solved = SourceMatrix(backend, solved, dtype, orders[1])
            self._solved.publish(self.x)
            self._deliver = Movement(self._solved, result, buffers=self.buffers, tag=TAG_X)

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's workspace."""
        copy = 0 if self._bring is None else self._bring.source_matrix.workspace_nbytes
        return self.buffers.nbytes + copy + (0 if self.x is None else int(self.x.nbytes))

    def publish(self, b: Array | None) -> bool:
        """Publish the location of B; true if it must be staged first (local)."""
        return self._bring is not None and b is not None and self._bring.source_matrix.publish(b)

    def prepare(self, *, scratch: bool) -> bool:
        """Stage B if any rank must; whether it did."""
        if self._bring is not None:
            self._bring.source_matrix.prepare(scratch=scratch)
        return scratch

    def bring(self, out: Array, put: Scaling) -> None:
        """Out := alpha B, this rank's elements of the target placement."""
        assert self._bring is not None, "there is a B"
        arrays = self._arrays
        self._backend.sync()
        self._bring.begin()
        self._bring.finish(out, put)
        with arrays.on_side_lane():
            brought = arrays.mark()
        arrays.follow(brought)

    def deliver(self, result: Array, what: str, put: Scaling = COPY) -> None:
        """Send the solutions to the owners of X, if they are elsewhere; from now on B may be overwritten."""
        if self.x is not None:
            self._deliver_to(result, what, put)
        if self._bring is not None:
            self._bring.source_matrix.release()

    def _deliver_to(self, result: Array, what: str, put: Scaling) -> None:
        backend, arrays = self._backend, self._arrays
        if backend.shared and backend.size > 1:
            arrays.synchronize()
            backend.sync()
            backend.agree(f"{what}: solved")  # no rank reads B any more, and every X can be read
        solved = arrays.mark()
        with arrays.on_side_lane():
            arrays.follow(solved)
        self._deliver.begin()
        self._deliver.finish(result, put)
