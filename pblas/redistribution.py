"""redistribute and plan_redistribution: a matrix from any distribution to any other, scaled and added on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pblas import errors
from pblas.arguments import check_overlap, enough_ranks
from pblas.execute.combination import Combination
from pblas.execute.movement import Home, Movement
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrix import DistMatrix
from pblas.plan import Machine
from pblas.redistribution_arguments import RedistributionArguments, Trans, Uplo
from pblas.relayout import Relayout
from pblas.runtime import shared_descriptor

if TYPE_CHECKING:
    from pblas.runtime import Runtime


class Redistribution:
    """A planned redistribution: the plan, its buffers, and one call that runs it. Made by `plan_redistribution`.

    Usable as a `with` block; `close` drops the buffers, as does dropping the object.
    """

    def __init__(self, spec: RedistributionArguments, plan: Relayout, runtime: Runtime | None) -> None:
        self.plan = plan
        """What will move (global)."""
        self.out = plan.b
        """Descriptor of B (global)."""
        self._spec, self._runtime = spec, runtime
        self._movement: Movement | None = None
        self._number, self._shared = 0, False
        if runtime is not None:
            self._number = runtime.next_number()
            self._place = runtime.place(plan.b, spec.dtype, spec.nelements)
            self._prepare(runtime)
            runtime.matrices.add(self)

    def explain(self) -> str:
        """The plan and what it will move."""
        return self.plan.explain()

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of buffers that this rank holds now (local)."""
        used = self._movement
        return used.home.workspace_nbytes + used.workspace_nbytes if used else 0

    def execute(self, a: DistMatrix, *, out: DistMatrix | None = None) -> DistMatrix:
        """**Collective.** B = alpha op(A) + beta B with matrices like the planned ones.

        Args:
            a: like the A that was planned: same descriptor and dtype (global).
            out: B; None for a new matrix, of which elements outside the trapezoid are 0; needed if beta is not 0
                (global).

        Returns:
            B. When the call returns, a may be overwritten.

        Raises:
            ArgumentError: a plan made from descriptors only; matrices that overlap.
            DescriptorError, DTypeError: a matrix that is not like the planned one, on any rank.
            ContextError: the context or the plan is closed.
        """
        runtime = self._runtime
        if runtime is None:
            raise errors.ArgumentError(
                "execute: planned from descriptors, without a context; plan with matrices to execute"
            )
        runtime.check_open("execute")
        try:
            if self._movement is not None and self._shared != runtime.backend.shared:
                self._prepare(runtime)  # the context has given up shared memory since
            return self._execute(runtime, a, out)
        except errors.WorkspaceError:
            if not runtime.give_up_shared_memory():
                raise
            self._prepare(runtime)
            return self._execute(runtime, a, out)

    def serve(self, spec: RedistributionArguments, a: DistMatrix, out: DistMatrix | None) -> DistMatrix:
        """**Collective.** `execute` for a call of the verb that may differ from the planned one in scalars and LLD.

        Memory for messages and copies is not kept, and nothing is if the call fails.
        """
        runtime = self._runtime
        assert runtime is not None, "the verb has matrices"
        self._spec, self._place = spec, runtime.place(spec.desc_b, spec.dtype, spec.nelements)
        try:
            if self._movement is None:
                self._prepare(runtime)
            result = self.execute(a, out=out)
        except BaseException:
            self.close()
            raise
        if self._movement is not None:
            self._movement.rest()
        return result

    def close(self) -> None:
        """Drop the buffers; shared memory is reused once all ranks have dropped theirs (local)."""
        self._movement = None

    detach = close  # what a context that ends asks of its matrices and plans alike

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Redistribution of {shared_descriptor(self.plan.a)} to {shared_descriptor(self.plan.b)}>"

    def _prepare(self, runtime: Runtime) -> None:
        """**Collective.** The buffers; with messages if shared memory does not suffice."""
        plan, spec, backend = self.plan, self._spec, runtime.backend
        try:
            if plan.moves:
                home = Home(backend, plan.source, spec.dtype, spec.op_a.order)
            else:  # B's own elements meet themselves, and only they are read
                home = Home(backend, plan.target, spec.dtype, plan.b.order)
            self._movement = Movement(home, plan.target, trapezoid=plan.trapezoid)
            self._shared = backend.shared
        except errors.WorkspaceError:
            if not runtime.give_up_shared_memory():
                raise
            self._prepare(runtime)

    def _execute(self, runtime: Runtime, a: DistMatrix, out: DistMatrix | None) -> DistMatrix:
        spec, plan, verb = self._spec, self.plan, f"execute of planned redistribution {self._number}"
        movement, given = self._movement, {"out is given": out is not None}
        arrays = runtime.backend.arrays
        with runtime.local_step(verb):
            if movement is None:
                raise errors.ContextError("execute: the planned redistribution is closed")
            spec.check_execution(runtime, a, out)
            arrays.begin()
        with runtime.backend.provisional():  # a rank that found an error allocates nothing, and so must all
            result = out
            if result is None:
                result = DistMatrix(spec.desc_b, runtime.empty(self._place), runtime)
                if self._shared != runtime.backend.shared:  # given up for B
                    self._prepare(runtime)
                    movement = self._movement
                    assert movement is not None, "just made"
                if plan.trapezoid is not None:
                    runtime.backend.clear(result.stored("execute"))
            b = result.stored("execute")
            x = a.stored("execute") if plan.moves else b
            if plan.moves and plan.trans != "N":
                x = x.T
            alone = movement.home.publish(x)
            scratch = runtime.agree(verb, given, None, (int(alone),))[0]
        if scratch and plan.moves:
            movement.home.stage()
            runtime.agree(f"{verb}: staged", {})
        with runtime.middle_of(verb):
            movement.begin()
            movement.finish(b, Combination(spec.alpha, spec.beta, spec.conj))
            arrays.settle()
        movement.home.release()
        if runtime.backend.shared and runtime.nprocs > 1 and plan.moves:
            runtime.agree(f"end of {verb}", {})
        return result


def plan_redistribution(
    a: DistMatrix | MatrixDescriptor,
    desc: MatrixDescriptor | None = None,
    *,
    out: DistMatrix | None = None,
    trans: Trans = "N",
    alpha: complex = 1.0,
    beta: complex = 0.0,
    uplo: Uplo | None = None,
    diagonal: int = 0,
    dtype: Any = None,
    nprocs: int | None = None,
) -> Redistribution:
    """Plan B = alpha op(A) + beta B. **Collective** with matrices; with descriptors it needs no MPI.

    Everything slow happens here; `execute` on the result is one call.

    Args:
        a: the matrix, or its descriptor (global).
        desc: distribution of a new B (global).
        out: B, in place of `desc` (global).
        trans: see `redistribute`, as for the next four (global).
        alpha: scalar (global).
        beta: scalar (global).
        uplo: triangle (global).
        diagonal: where it begins (global).
        dtype: of the matrices, needed with descriptors (global).
        nprocs: ranks, when planning from descriptors; None for the larger grid (global).

    Returns:
        The planned redistribution: `print(r.explain())`, `r.execute(a)`.

    Raises:
        as `redistribute`.

    >>> rows, columns = MatrixDescriptor.row_wise(8, 8, 4), MatrixDescriptor.column_wise(8, 8, 4)
    >>> plan_redistribution(rows, columns, dtype="float64").plan.max_received_nbytes
    96
    """
    options = {"trans": trans, "alpha": alpha, "beta": beta, "uplo": uplo, "diagonal": diagonal, "dtype": dtype}
    verb = "plan_redistribution"
    if isinstance(a, MatrixDescriptor) and out is None:
        spec = RedistributionArguments(verb, a, desc, out=None, **options)
        ranks = enough_ranks(verb, nprocs, (spec.desc_a, spec.desc_b))
        return Redistribution(spec, spec.plan(ranks, Machine(ranks, shared=True)), None)
    return Redistribution(*_agreed(verb, a, desc, out, options))


def redistribute(
    a: DistMatrix,
    desc: MatrixDescriptor | None = None,
    *,
    out: DistMatrix | None = None,
    trans: Trans = "N",
    alpha: complex = 1.0,
    beta: complex = 0.0,
    uplo: Uplo | None = None,
    diagonal: int = 0,
) -> DistMatrix:
    """**Collective.** B = alpha op(A) + beta B for any two layouts, grids and submatrices.

    Every rank receives what it needs and does not have, once, from a rank that has it. Elements outside the submatrix
    that `out` is a view of, and outside the triangle, are not touched.

    Args:
        a: m x n matrix, or n x m with trans other than "N"; views as A[i0:i1, j0:j1] and A.H are welcome (global).
        desc: distribution of a new m x n matrix (global).
        out: B, an m x n matrix that shares no memory with a; give this or `desc` (global).
        trans: "N", "T" or "C" (conjugate transposed; the same as "T" for real matrices) (global).
        alpha: scalar; with alpha = 0 A is not read (global).
        beta: scalar; with beta = 0 B is not read (global).
        uplo: None for all elements of B; "U": those with j - i >= diagonal; "L": those with j - i <= diagonal
            (global).
        diagonal: where the trapezoid begins, as numpy.triu's k: 0 for the main diagonal, above it positive (global).

    Returns:
        B: `out` itself, or a new matrix, which is 0 outside the trapezoid. When the call returns, a may be
        overwritten.

    Raises:
        ArgumentError, DescriptorError, DTypeError, LayoutError: arguments that do not fit, the same on every rank.
        MismatchError: ranks that passed different arguments.

    Source: PBLAS p?geadd, p?tradd, p?tran; ScaLAPACK REDIST p?gemr2d, p?trmr2d.
    """
    options = {"trans": trans, "alpha": alpha, "beta": beta, "uplo": uplo, "diagonal": diagonal, "dtype": None}
    spec, plan, runtime = _agreed("redistribute", a, desc, out, options)
    planned = runtime.plans.get(plan, lambda: Redistribution(spec, plan, runtime))
    return planned.serve(spec, a, out)


def _agreed(
    verb: str, a: Any, desc: Any, out: Any, options: dict[str, Any]
) -> tuple[RedistributionArguments, Relayout, Runtime]:
    """**Collective.** The arguments of a call that all ranks make alike, what will move, and where."""
    runtimes = [x.runtime for x in (a, out) if isinstance(x, DistMatrix)]
    if not runtimes:
        raise errors.ArgumentError(f"{verb}: a must be a DistMatrix, got {type(a).__name__}")
    runtime = runtimes[0]
    runtime.check_open(verb)
    with runtime.local_step(verb):
        if any(other is not runtime for other in runtimes):
            raise errors.ArgumentError(f"{verb}: matrices of different contexts; make both with one context")
        spec = RedistributionArguments(verb, a, desc, out=out, **options)
        runtime.check_place(verb, spec.desc_b, "B")
        plan = spec.plan(runtime.nprocs, runtime.machine)
        if out is not None:
            check_overlap(verb, a, None, None, out)
    spec.nelements = runtime.agree(verb, spec.arguments(), None, (runtime.nelements(spec.desc_b),))[0]
    return spec, plan, runtime
