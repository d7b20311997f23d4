"""Executor of a triangular solve: each rank solves for its right-hand sides, with panels of T that arrive in order.

X[k] = T[k, k]^-1 X[k]
X[i] -= T[i, k] X[k]          for the rows i after k     (panel k + 1 of T arrives meanwhile)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pblas.matmul.summa_run import SLOTS, Panels
from pblas.redistribution.packing import COPY, Scaling
from pblas.redistribution.transfer import Buffers, Movement, SourceMatrix

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype, Order
    from pblas.backends.host_ranks import HostRanks
    from pblas.layouts.placement import Placement
    from pblas.runtime.runtime import Runtime
    from pblas.triangular.trsm_plan import TrsmPlan, TrsmStep

TAG_BLOCK, TAG_OFF_DIAGONAL = 1031, 1032
TAG_B, TAG_X = 1033, 1034


class TrsmOperands(NamedTuple):
    """Local arrays of one execution, in the plan's orientation."""

    triangle: Array  # T (local)
    right: Array  # the right-hand sides as columns: B, or B^T if A stands on the right (local)
    result: Array  # the solutions as columns (local)
    alpha: complex  # scalar (global)
    conj: tuple[bool, bool]  # conjugate T, B (global)
    in_place: bool  # `right` and `result` are the same memory (local)
    runtime: Runtime


class RunTrsm:
    """**Collective.** Runs a TrsmPlan on one rank."""

    def __init__(self, plan: TrsmPlan, backend: HostRanks, dtype: Dtype, orders: tuple[Order, ...]) -> None:
        self._plan, self._backend, self._arrays, operands = plan, backend, backend.arrays, plan.operands
        self.peers_read: bool = plan.reads and plan.stays
        """Whether peers read this rank's arrays until the closing agreement, not until X leaves (global)."""
        self.is_whole: bool = plan.reads and plan.is_whole
        """Whether an execution is one call of the device (global)."""
        if not plan.reads:
            return
        order_t, order_b, order_x = orders
        self._right = RightHandSides(
            *(backend, operands.right, operands.result, dtype, (order_b, order_x)),
            target=plan.solved,
            solved=None if plan.stays else plan.solved,
        )
        self._triangle = SourceMatrix(backend, operands.triangle, dtype, order_t)
        self._steps, self._looks_left = list(plan.steps()), plan.looks_left
        self._uplo, self._unit = plan.shape_of_t.uplo, operands.unit
        self._blocks, self._off_diagonal = self._panels(block=True), self._panels(block=False)

    def run(self, x: TrsmOperands) -> None:
        """**Collective.** X := alpha T^-1 B, for this rank's right-hand sides, which then go to the owners of X."""
        plan, arrays = self._plan, self._arrays
        if not plan.reads:
            arrays.scale(0, x.result)
            return
        if self.is_whole:
            if x.conj[1] or not x.in_place:
                arrays.place(x.right, x.result, conj=x.conj[1])
            arrays.scale(x.alpha, x.result)
            arrays.trsm(x.triangle, x.result, uplo=self._uplo, unit=self._unit, conj=x.conj[0])
            return
        solutions = x.result if self._right.x is None else self._right.x
        # X = alpha B, from the ranks that have B
        if x.in_place and self._right.x is None:
            arrays.scale(x.alpha, solutions)
        else:
            self._right.bring(solutions, Scaling(x.alpha, 0.0, x.conj[1]))
        self._begin(0)
        for s, step in enumerate(self._steps):
            self._begin(s + 1)  # lookahead: the next panel travels while this one is used
            # T[k, k] and T[i, k], or T[k, j] if the plan looks left, from the ranks that have them
            t_kk, t_ij = self._blocks.fetch(s), self._off_diagonal.fetch(s)
            if t_kk is None:  # this rank has no right-hand sides
                continue
            if not self._looks_left:
                # X[k] = T[k, k]^-1 X[k]
                self._solve(step, t_kk, solutions, x)
            if t_ij is not None:
                (i, j), conj = (slice(*step.rows), slice(*step.columns)), (x.conj[0], False)
                # X[i] -= T[i, k] X[k]   (trailing update; left-looking: X[k] -= T[k, j] X[j])
                arrays.gemm(-1, t_ij, solutions[j], 1, solutions[i], conj=conj)
            if self._looks_left:
                # X[k] = T[k, k]^-1 X[k]
                self._solve(step, t_kk, solutions, x)
        for panels in (self._blocks, self._off_diagonal):
            panels.end()
        self._right.deliver(x.result, plan.name)
        self._triangle.release()

    def _begin(self, s: int) -> None:
        """Start the messages of a step, if there is one."""
        if s < len(self._steps):
            for panels in (self._blocks, self._off_diagonal):
                panels.begin(s)

    def _solve(self, step: TrsmStep, t_kk: Array, solutions: Array, x: TrsmOperands) -> None:
        part = solutions[step.k0 : step.k1]
        self._arrays.trsm(t_kk, part, uplo=self._uplo, unit=self._unit, conj=x.conj[0])

    @property
    def workspace_nbytes(self) -> int:
        if not self._plan.reads:
            return 0
        panels = self._blocks.nbytes + self._off_diagonal.nbytes
        return self._right.workspace_nbytes + self._triangle.workspace_nbytes + panels

    def publish(self, x: TrsmOperands) -> bool:
        if not self._plan.reads or self._plan.is_whole:
            return False
        return any([self._triangle.publish(x.triangle), self._right.publish(x.right)])

    def prepare(self, *, scratch: bool) -> bool:
        if self._plan.reads:
            self._triangle.prepare(scratch=scratch)
            self._right.prepare(scratch=scratch)
        return scratch and self._plan.reads

    def _panels(self, *, block: bool) -> Panels:
        """The blocks T[k, k], or the panels T[i, k], or T[k, j], on the ranks that have right-hand sides."""
        plan, rank = self._plan, self._backend.rank
        steps: list[list[Movement]] = []
        own: list[tuple[Placement, Movement] | None] = []
        for s, step in enumerate(self._steps):
            if step.is_alone and not block:
                steps.append([])
                own.append(None)
                continue
            (i0, i1), (j0, j1) = ((step.k0, step.k1),) * 2 if block else (step.rows, step.columns)
            target = plan.at_solvers(i1 - i0, j1 - j0)
            movement = Movement(
                *(self._triangle, target, (i0, i1, j0, j1)),
                trapezoid=plan.shape_of_t if block else None,
                buffers=self._right.buffers,
                tag=TAG_BLOCK if block else TAG_OFF_DIAGONAL,
                slot=s % SLOTS + (0 if block else SLOTS),
            )
            steps.append([movement])
            own.append((target, movement) if plan.is_solver(rank) else None)
        return Panels(self._triangle, steps, own)


class RightHandSides:
    """**Collective.** B arrives at the placement `target`; X leaves from `solved`, or is computed in its memory (None).

    Without `right` X begins with other elements. `lld` is the leading dimension of a workspace in order "F".
    """

    def __init__(
        self,
        backend: HostRanks,
        right: Placement | None,
        result: Placement,
        dtype: Dtype,
        orders: tuple[Order, Order],
        *,
        target: Placement,
        solved: Placement | None,
        lld: int | None = None,
    ) -> None:
        self._backend, self._arrays = backend, backend.arrays
        self.buffers = Buffers(backend)  # memory of messages, which movements of T may share (local)
        self._bring: Movement | None = None
        if right is not None:  # near ranks read B in place
            self._bring = Movement(
                SourceMatrix(backend, right, dtype, orders[0]), target, buffers=self.buffers, tag=TAG_B
            )
        self.x: Array | None = None  # memory in which X is computed; None: X's own (local)
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
