"""Executor of a triangular solve: each rank solves for its right-hand sides, with panels of T that arrive in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pblas.execute.redistribution.scaling import Scaling
from pblas.execute.redistribution.transfer import Buffers, Movement, SourceMatrix
from pblas.execute.summa.panels import Panels

if TYPE_CHECKING:
    import numpy as np

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.layouts.placement import Placement
    from pblas.plans.trsm import TrsmPlan, TrsmStep

TAG_BLOCK, TAG_BESIDE, TAG_B, TAG_X = 1031, 1032, 1033, 1034


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
        self.lends: bool = plan.reads
        """Whether peers read this rank's arrays until the closing agreement (global)."""
        self._homes: list[SourceMatrix] = []
        if not plan.reads:
            return
        order_t, order_b, order_x = orders
        self._buffers = Buffers(backend)
        self._triangle = SourceMatrix(backend, operands.triangle, dtype, order_t)
        self._right = SourceMatrix(backend, operands.right, dtype, order_b)
        self._homes = [self._triangle, self._right]
        self._steps = list(plan.steps())
        self._blocks, self._beside = self._panels(block=True), self._panels(block=False)
        self._bring = Movement(self._right, plan.home, buffers=self._buffers, tag=TAG_B)
        self._memory: Any = None
        if not plan.stays:
            self._prepare_workspace(dtype, order_x)

    def _prepare_workspace(self, dtype: np.dtype[Any], order: Literal["F", "C"]) -> None:
        """Memory in which X is computed, and its transfer to X's own layout."""
        backend, home = self._backend, self._plan.home
        nbytes = max(1, home.rows.max_count * home.columns.max_count) * dtype.itemsize
        self._memory = backend.allocate_scratch(nbytes, window=backend.shared)
        shape = home.local_shape(backend.rank)
        self._x = backend.peer_block(self._memory, backend.rank, 0, shape, dtype, order)
        self._solved = SourceMatrix(backend, home, dtype, order)
        self._solved.publish(self._x)
        self._deliver = Movement(self._solved, self._plan.operands.result, buffers=self._buffers, tag=TAG_X)

    def _panels(self, *, block: bool) -> Panels:
        """The diagonal blocks of T, or the rectangles next to them, on the ranks that have right-hand sides."""
        plan, rank = self._plan, self._backend.rank
        steps: list[list[Movement]] = []
        own: list[tuple[Placement, Movement] | None] = []
        for step in self._steps:
            if step.is_alone and not block:
                steps.append([])
                own.append(None)
                continue
            (i0, i1), (j0, j1) = ((step.k0, step.k1),) * 2 if block else (step.rows, step.columns)
            target = plan.at_solvers(i1 - i0, j1 - j0)
            movement = Movement(
                *(self._triangle, target, (i0, i1, j0, j1)),
                trapezoid=plan.shape_of_t if block else None,
                buffers=self._buffers,
                tag=TAG_BLOCK if block else TAG_BESIDE,
            )
            steps.append([movement])
            own.append((target, movement) if plan.is_solver(rank) else None)
        return Panels(self._triangle, steps, own)

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of this rank's workspace."""
        if not self._plan.reads:
            return 0
        total = self._buffers.nbytes + self._blocks.nbytes + self._beside.nbytes
        total += sum(home.workspace_nbytes for home in self._homes)
        return total + (0 if self._memory is None else int(self._x.nbytes))

    def publish(self, x: TrsmOperands) -> bool:
        """Publish the locations of A and B; true if one must be staged first."""
        alone = [home.publish(array) for home, array in zip(self._homes, (x.triangle, x.right), strict=False)]
        return any(alone)

    def prepare(self, *, scratch: bool) -> bool:
        """Stage A and B if any rank must."""
        for home in self._homes if scratch else ():
            home.stage()
        return scratch and bool(self._homes)

    def run(self, x: TrsmOperands) -> None:
        """X := alpha T^-1 B, for this rank's right-hand sides, which are then sent to the owners of X."""
        plan, arrays = self._plan, self._arrays
        if not plan.reads:
            arrays.scale(0, x.result)
            return
        solutions = x.result if self._memory is None else self._x
        self._bring_right(x, solutions)
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
        if self._memory is not None:
            self._deliver_solutions(x)
        for home in self._homes:
            home.release()

    def _bring_right(self, x: TrsmOperands, solutions: Array) -> None:
        """X := alpha B, for this rank's right-hand sides."""
        arrays, brings = self._arrays, self._bring
        if x.in_place and self._memory is None:
            arrays.scale(x.alpha, solutions)
            return
        self._backend.sync()
        brings.begin()
        brings.finish(solutions, Scaling(x.alpha, 0.0, x.conj[1]))
        with arrays.beside():
            brought = arrays.mark()
        arrays.follow(brought)

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

    def _deliver_solutions(self, x: TrsmOperands) -> None:
        """Send the solutions to the owners of X; from now on B may be overwritten."""
        backend, arrays = self._backend, self._arrays
        if backend.shared and backend.size > 1:
            arrays.settle()
            backend.sync()
            backend.agree(f"{self._plan.name}: solved")  # no rank reads B any more, and every X can be read
        solved = arrays.mark()
        with arrays.beside():
            arrays.follow(solved)
        self._deliver.begin()
        self._deliver.finish(x.result)
