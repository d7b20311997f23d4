"""Executor of a triangular solve: each rank solves for its right-hand sides, with panels of T that arrive in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pblas.matmul.summa_run import SLOTS, Panels
from pblas.redistribution.scaling import Scaling
from pblas.redistribution.transfer import Movement, SourceMatrix
from pblas.triangular.right_hand_sides import RightHandSides

if TYPE_CHECKING:
    import numpy as np

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.layouts.placement import Placement
    from pblas.triangular.right_hand_sides import TrsmOperands
    from pblas.triangular.trsm_plan import TrsmPlan, TrsmStep

TAG_BLOCK, TAG_BESIDE = 1031, 1032


class RunTrsm:
    """**Collective.** Runs a TrsmPlan on one rank.

    Args:
        plan: the plan (global).
        backend: ranks, memory and messages (global).
        dtype: of the matrices (global).
        orders: storage orders of T, B and X in the plan's orientation (global).
    """

    def __init__(
        self, plan: TrsmPlan, backend: HostRanks, dtype: np.dtype[Any], orders: tuple[Literal["F", "C"], ...]
    ) -> None:
        self._plan, self._backend, self._arrays, operands = plan, backend, backend.arrays, plan.operands
        self.lends: bool = plan.reads and plan.stays
        """Whether peers read this rank's arrays until the closing agreement, not until X leaves (global)."""
        if not plan.reads:
            return
        order_t, order_b, order_x = orders
        self._right = RightHandSides(
            *(backend, operands.right, operands.result, dtype, (order_b, order_x)),
            target=plan.home,
            solved=None if plan.stays else plan.home,
        )
        self._triangle = SourceMatrix(backend, operands.triangle, dtype, order_t)
        self._steps = list(plan.steps())
        self._blocks, self._beside = self._panels(block=True), self._panels(block=False)

    def _panels(self, *, block: bool) -> Panels:
        """The diagonal blocks of T, or the rectangles next to them, on the ranks that have right-hand sides."""
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
                tag=TAG_BLOCK if block else TAG_BESIDE,
                slot=s % SLOTS + (0 if block else SLOTS),
            )
            steps.append([movement])
            own.append((target, movement) if plan.is_solver(rank) else None)
        return Panels(self._triangle, steps, own)

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's workspace."""
        if not self._plan.reads:
            return 0
        panels = self._blocks.nbytes + self._beside.nbytes
        return self._right.workspace_nbytes + self._triangle.workspace_nbytes + panels

    def publish(self, x: TrsmOperands) -> bool:
        """Publish the locations of A and B; true if one must be staged first."""
        return self._plan.reads and any([self._triangle.publish(x.triangle), self._right.publish(x.right)])

    def prepare(self, *, scratch: bool) -> bool:
        """Stage A and B if any rank must."""
        if self._plan.reads:
            self._triangle.prepare(scratch=scratch)
            self._right.prepare(scratch=scratch)
        return scratch and self._plan.reads

    def run(self, x: TrsmOperands) -> None:
        """X := alpha T^-1 B, for this rank's right-hand sides, which are then sent to the owners of X."""
        plan, arrays = self._plan, self._arrays
        if not plan.reads:
            arrays.scale(0, x.result)
            return
        solutions = x.result if self._right.x is None else self._right.x
        if x.in_place and self._right.x is None:
            arrays.scale(x.alpha, solutions)
        else:
            self._right.bring(solutions, Scaling(x.alpha, 0.0, x.conj[1]))
        for s, step in enumerate(self._steps):
            for panels in (self._blocks, self._beside):
                if s == 0:
                    panels.begin(s)
                if s + 1 < len(self._steps):
                    panels.begin(s + 1)
            # T[k, k] and T[i, k] (or T[k, j]) arrive from the ranks that have them
            block, beside = self._blocks.fetch(s), self._beside.fetch(s)
            if block is not None:
                self._solve(step, block, beside, solutions, conj=x.conj[0])
        for panels in (self._blocks, self._beside):
            panels.end()
        self._right.deliver(x.result, plan.name)
        self._triangle.release()

    def _solve(self, step: TrsmStep, block: Array, beside: Array | None, x: Array, *, conj: bool) -> None:
        """One step on this rank's right-hand sides."""
        arrays, plan = self._arrays, self._plan
        options: Any = {"uplo": plan.shape_of_t.uplo, "unit": plan.operands.unit, "conj": conj}
        known = x[step.k0 : step.k1]
        if not plan.looks_left:
            arrays.trsm(block, known, **options)  # X[k] := T[k, k]^-1 X[k]
        if beside is not None:
            rows, columns = (x[start:stop] for start, stop in (step.rows, step.columns))
            arrays.gemm(-1, beside, columns, 1, rows, conj=(conj, False))  # X[i] -= T[i, j] X[j]
        if plan.looks_left:
            arrays.trsm(block, known, **options)
