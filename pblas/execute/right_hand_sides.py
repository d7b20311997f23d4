"""The right-hand sides of a triangular solve: B arrives where it is used, and X leaves for its owners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pblas.execute.redistribution.scaling import Scaling
from pblas.execute.redistribution.transfer import Buffers, Movement, SourceMatrix

if TYPE_CHECKING:
    import numpy as np

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.layouts.placement import Placement
    from pblas.plans.triangular import TriangularOperands

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
        operands: distributions of B and X (global).
        dtype: of the matrices (global).
        orders: storage orders of B and X in the plan's orientation (global).
        target: placement to which B is brought (global).
        solved: placement of the memory in which X is computed; None: in X's own memory (global).
    """

    def __init__(
        self,
        backend: HostRanks,
        operands: TriangularOperands,
        dtype: np.dtype[Any],
        orders: tuple[Literal["F", "C"], Literal["F", "C"]],
        *,
        target: Placement,
        solved: Placement | None,
    ) -> None:
        self._backend, self._arrays = backend, backend.arrays
        self.buffers = Buffers(backend)
        """Memory of messages, which movements of T may share (local)."""
        self.matrix = SourceMatrix(backend, operands.right, dtype, orders[0])
        """B, which near ranks read in place (local)."""
        self._bring = Movement(self.matrix, target, buffers=self.buffers, tag=TAG_B)
        self.x: Array | None = None
        """Memory in which X is computed; None: X's own (local)."""
        if solved is not None:
            nbytes = max(1, solved.rows.max_count * solved.columns.max_count) * dtype.itemsize
            self._memory = backend.allocate_scratch(nbytes, window=backend.shared)
            shape = solved.local_shape(backend.rank)
            self.x = backend.peer_block(self._memory, backend.rank, 0, shape, dtype, orders[1])
            self._solved = SourceMatrix(backend, solved, dtype, orders[1])
            self._solved.publish(self.x)
            self._deliver = Movement(self._solved, operands.result, buffers=self.buffers, tag=TAG_X)

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's workspace."""
        return self.buffers.nbytes + self.matrix.workspace_nbytes + (0 if self.x is None else int(self.x.nbytes))

    def bring(self, x: TrsmOperands, out: Array) -> None:
        """Out := alpha B, this rank's elements of the target placement."""
        arrays, brings = self._arrays, self._bring
        if x.in_place and self.x is None:
            arrays.scale(x.alpha, out)
            return
        self._backend.sync()
        brings.begin()
        brings.finish(out, Scaling(x.alpha, 0.0, x.conj[1]))
        with arrays.on_side_lane():
            brought = arrays.mark()
        arrays.follow(brought)

    def deliver(self, x: TrsmOperands, what: str) -> None:
        """Send the solutions to the owners of X, if they are elsewhere; from now on B may be overwritten.

        Args:
            x: the operands (local).
            what: name of the plan, for messages (global).
        """
        if self.x is None:
            return
        backend, arrays = self._backend, self._arrays
        if backend.shared and backend.size > 1:
            arrays.synchronize()
            backend.sync()
            backend.agree(f"{what}: solved")  # no rank reads B any more, and every X can be read
        solved = arrays.mark()
        with arrays.on_side_lane():
            arrays.follow(solved)
        self._deliver.begin()
        self._deliver.finish(x.result)
