"""trsm and plan_trsm: solve with a triangular matrix and many right-hand sides."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pblas import errors
from pblas.core.checks import check_context, enough_ranks, not_a_matrix
from pblas.core.options import Diag, Side, Trans, Uplo
from pblas.execute.pipelined_trsm import RunPipelinedTrsm
from pblas.execute.right_hand_sides import TrsmOperands
from pblas.execute.trsm import RunTrsm
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.operations.arguments.trsm import TrsmArguments, TrsmRequest, check_output
from pblas.operations.planned import PlannedOperation
from pblas.plans.pipelined_trsm import PipelinedTrsm
from pblas.plans.plan import Topology
from pblas.runtime.open_contexts import fail_without_context

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Scalar
    from pblas.plans.trsm import TrsmPlan
    from pblas.runtime.runtime import Runtime


class _Execution(NamedTuple):
    """The arguments of one execution.

    Args:
        a: A (global).
        b: B (global).
        out: X, perhaps B itself; None for a new matrix (global).
        in_place: whether X overwrites B (local).
    """

    a: DistMatrix
    b: DistMatrix
    out: DistMatrix | None
    in_place: bool = False


class PlannedTrsm(PlannedOperation[_Execution]):
    """A planned triangular solve: the plan, its workspace, and one call that runs it. Made by `plan_trsm`.

    Usable as a `with` block; `close` drops the workspace, as does dropping the object.
    """

    noun = "triangular solve"
    plan: TrsmPlan | PipelinedTrsm
    _executor: RunTrsm | RunPipelinedTrsm | None = None

    def __init__(
        self, spec: TrsmArguments, plan: TrsmPlan | PipelinedTrsm, runtime: Runtime | None, nelements: int | None = None
    ) -> None:
        self._spec = spec
        super().__init__(plan, plan.operands.x, spec.dtype, runtime, nelements)

    def execute(self, a: DistMatrix, b: DistMatrix, *, out: DistMatrix | None = None) -> DistMatrix:
        """**Collective.** X := alpha op(A)^-1 B, or alpha B op(A)^-1, with matrices like the planned ones.

        Args:
            a: A, with the descriptor and the dtype that were planned (global).
            b: B, the same (global).
            out: X, in the planned layout; `b` itself to overwrite B; None for a new matrix (global).

        Returns:
            X. The caller may overwrite a and b when the call has returned.

        Raises:
            ArgumentError: a plan made from descriptors only; `out` overlaps A, or B in part.
            DescriptorError, DTypeError: a matrix with another layout or dtype than the planned one, on any rank.
            ContextError: the context or the plan is closed.
        """
        result: DistMatrix = self.run(_Execution(a, b, out))
        return result

    def _build(self, runtime: Runtime) -> RunTrsm | RunPipelinedTrsm:
        operands = self.plan.operands
        a = operands.a.T if operands.is_turned else operands.a
        b, x = (desc if operands.side == "L" else desc.T for desc in (operands.b, operands.x))
        orders = a.order, b.order, x.order
        if isinstance(self.plan, PipelinedTrsm):
            return RunPipelinedTrsm(self.plan, runtime.backend, self._spec.dtype, orders)
        return RunTrsm(self.plan, runtime.backend, self._spec.dtype, orders)

    def _checked(self, runtime: Runtime, execution: _Execution) -> _Execution:
        in_place = self._spec.check_execution(runtime, execution.a, execution.b, execution.out)
        runtime.backend.arrays.begin()
        return execution._replace(in_place=in_place)

    def _operands(self, execution: _Execution, result: DistMatrix) -> TrsmOperands:
        operands = self.plan.operands
        a, b, x = (matrix.stored("execute") for matrix in (execution.a, execution.b, result))
        if operands.side == "R":
            b, x = b.T, x.T
        a = a.T if operands.is_turned else a
        return TrsmOperands(a, b, x, self._spec.alpha, self._spec.conj, execution.in_place)


def plan_trsm(
    a: DistMatrix | MatrixDescriptor,
    b: DistMatrix | MatrixDescriptor,
    *,
    side: Side = "L",
    uplo: Uplo = "L",
    trans: Trans = "N",
    diag: Diag = "N",
    alpha: Scalar = 1,
    out: DistMatrix | MatrixDescriptor | None = None,
    dtype: Any = None,
    nprocs: int | None = None,
) -> PlannedTrsm:
    """Plan X := alpha op(A)^-1 B or alpha B op(A)^-1. **Collective** with matrices; with descriptors it needs no MPI.

    Args:
        a: A, or its descriptor (global).
        b: B, or its descriptor (global).
        side: as in `trsm`, like `uplo`, `trans`, `diag` and `alpha` (global).
        uplo: see `side` (global).
        trans: see `side` (global).
        diag: see `side` (global).
        alpha: see `side` (global).
        out: X, possibly B itself, or the layout of X; None for the layout of B (global).
        dtype: dtype of the matrices, needed with descriptors (global).
        nprocs: number of ranks, when planning from descriptors; None for the largest grid (global).

    Returns:
        The planned solve: `print(p.explain())`, `p.execute(a, b)`.

    Raises:
        as `trsm`.

    >>> columns = MatrixDescriptor.column_wise(512, 512, 4)
    >>> planned = plan_trsm(columns, columns, dtype="float64")
    >>> print(planned.explain())  # doctest: +NORMALIZE_WHITESPACE
    TrsmPlan: X = alpha op(A)^-1 B, 512 x 512, float64, on 4 ranks
      A          512 x 512 in blocks of 512 x 128 on a 1 x 4 grid, lower triangle, trans='N'
      B          512 x 512 in blocks of 512 x 128 on a 1 x 4 grid
      why        right-hand sides are independent: each rank solves for its own, and only the triangle travels
      moves      panels of A's triangle to all ranks
      panels     256 columns (right-looking), forwards
      received   984,576 bytes per rank at most, 114.75 x the lower bound of any plan, 8,580
      workspace  4,194,304 bytes per rank at most (shared transport)
    """
    call = TrsmRequest(verb="plan_trsm", **locals())  # the arguments, and nothing else yet
    if not call.matrices:
        spec = TrsmArguments.checked(call)
        operands = spec.operands
        ranks = enough_ranks(call.verb, nprocs, (operands.a, operands.b, operands.x))
        return PlannedTrsm(spec, spec.plan(ranks, Topology(ranks, shared=True)), None)
    runtime = call.matrices[0].runtime
    with runtime.call(call.verb):
        return _planned(call, runtime, *_agreed(call, runtime))


def trsm(
    a: DistMatrix,
    b: DistMatrix,
    *,
    side: Side = "L",
    uplo: Uplo = "L",
    trans: Trans = "N",
    diag: Diag = "N",
    alpha: Scalar = 1,
    out: DistMatrix | None = None,
) -> DistMatrix:
    """**Collective.** Solve op(A) X = alpha B or X op(A) = alpha B for a triangular A, in any layouts.

    A zero on the diagonal is no error, as in BLAS: X then has infinities or NaN. `pblas.linalg.solve_triangular`
    raises.

    Args:
        a: n x n matrix of which one triangle is read; it may be a view, as A[i:j, i:j] or A.H (global).
        b: n x nrhs matrix, or nrhs x n with side "R" (global).
        side: "L": op(A) X = alpha B; "R": X op(A) = alpha B (global).
        uplo: "L" or "U": the triangle of A that is read (global).
        trans: "N", "T" or "C": op(A) is A, its transpose or its conjugate transpose (global).
        diag: "U": the diagonal of A is taken as ones, and not read; "N": it is read (global).
        alpha: scalar; with alpha = 0 X is 0, and A and B are not read (global).
        out: X, of the shape of B; `b` itself to overwrite B; None for a new matrix in B's layout (global).

    Returns:
        X: `out` itself, or a new matrix. The caller may overwrite a and b when the call has returned.

    Raises:
        ArgumentError, DescriptorError, DTypeError, LayoutError: wrong arguments; the same error on every rank. 16-bit
            dtypes are refused: convert with `astype`.
        MismatchError: ranks that passed different arguments.

    Source: PBLAS, p?trsm.

    >>> import pblas, numpy as np
    >>> with pblas.Context() as ctx:
    ...     A = ctx.from_global(np.array([[2.0, 0.0], [1.0, 4.0]]))
    ...     B = ctx.from_global(np.array([[2.0], [5.0]]))
    ...     pblas.blas.trsm(A, B).to_global().tolist()
    [[1.0], [1.0]]
    """
    call = TrsmRequest(verb="trsm", **locals())  # the arguments, and nothing else yet
    if not call.matrices:
        error = not_a_matrix("trsm", "a", a)
        fail_without_context(call.verb, error)
    return solved(call, call.matrices[0].runtime)


def solved(call: TrsmRequest, runtime: Runtime, check: Callable[[], None] | None = None) -> DistMatrix:
    """**Collective.** X of a call with matrices, by a cached plan.

    Args:
        call: the arguments, which are checked here (global).
        runtime: runtime of a matrix of the call (global).
        check: a collective check between the agreement on the arguments and the solve (global).
    """
    with runtime.call(call.verb):
        spec, plan, nelements = _agreed(call, runtime)
        if check is not None:
            check()
        key = plan, spec.alpha, spec.views, nelements
        planned = runtime.plans.get(key, lambda: _planned(call, runtime, spec, plan, nelements))
        return planned.execute(call.a, call.b, out=call.out)


def _planned(
    call: TrsmRequest, runtime: Runtime, spec: TrsmArguments, plan: TrsmPlan | PipelinedTrsm, nelements: int
) -> PlannedTrsm:
    """**Collective.** The planned solve of an agreed call."""
    with runtime.building(call.verb):
        planned = PlannedTrsm(spec, plan, runtime, nelements)
    runtime.agree(f"{call.verb}: workspace", {})
    return planned


def _agreed(call: TrsmRequest, runtime: Runtime) -> tuple[TrsmArguments, TrsmPlan | PipelinedTrsm, int]:
    """**Collective.** The checked and agreed arguments of a call, its plan, and the elements of a new X."""
    verb, out = call.verb, call.out
    with runtime.local_step(verb):
        for x in call.matrices:
            check_context(verb, x, runtime)
        if call.nprocs is not None:
            raise errors.ArgumentError(f"{verb}: nprocs is for planning from descriptors; leave it out")
        spec = TrsmArguments.checked(call)
        if out is None:
            operands = spec.operands
            spec = spec._replace(operands=replace(operands, x=operands.x.without_lld))
        runtime.check_place(verb, spec.operands.x, "out")
        if isinstance(out, DistMatrix):
            check_output(verb, call.a, call.b, out)
        plan = spec.plan(runtime.nprocs, runtime.topology)
        arguments, needed = spec.arguments(), runtime.nelements(spec.operands.x)
    nelements = runtime.agree(verb, arguments, None, (needed,))[0]
    return spec, plan, nelements
