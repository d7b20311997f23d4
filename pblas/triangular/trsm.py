"""Solves with a triangular matrix: trsm, plan_trsm; trsv, with one right-hand side; solve_triangular, as in SciPy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Self, overload

import numpy as np

from pblas import errors
from pblas.arrays.reduction_plan import ReductionPlan
from pblas.backends.local_step import agreed
from pblas.core import checks
from pblas.core.call import call, checked_call, is_of_descriptors, planned, planned_without_context, runtime_of, step
from pblas.core.linalg_errors import SingularMatrixError
from pblas.core.operation import Bound, Operation
from pblas.core.options import Diag, MatrixOrArray, Side, Trans, Uplo
from pblas.core.planned import Planned
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matmul.with_arrays import replicated_matrix
from pblas.matrices.matrix import DistMatrix
from pblas.matrices.scatter_gather import index_of
from pblas.runtime.runtime import Runtime, checked_factor, checked_flag
from pblas.triangular.choose import choose_trsm
from pblas.triangular.pipelined_trsm_plan import PipelinedTrsm
from pblas.triangular.pipelined_trsm_run import RunPipelinedTrsm, RunTrsvOnGpus, width_on_gpus
from pblas.triangular.trsm_plan import PANEL, PANEL_ON_GPUS, TriangularOperands, TrsmPlan
from pblas.triangular.trsm_run import RunTrsm, TrsmOperands
from pblas.vectors.checks import GpuColumns, VectorKind, VectorOperand, checked_vector, is_in_blocks

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from pblas.backends.dtypes import Array, Dtype, Scalar
    from pblas.backends.host_ranks import HostRanks
    from pblas.simulation.hardware import Topology


@dataclass(frozen=True, eq=False)
class TriangularSolve(Operation[DistMatrix]):
    """X = alpha op(A)^-1 B, or alpha B op(A)^-1."""

    noun: ClassVar[str] = "triangular solve"
    may_overlap: ClassVar[bool] = True  # X may be B: `parts` checks
    keeps_workspace: ClassVar[bool] = True
    derived: ClassVar[frozenset[str]] = frozenset(("reads",))

    side: Side  # as in `trsm`, like `uplo` and `trans` (global)
    uplo: Uplo
    trans: Trans
    unit: bool  # whether the diagonal of A is taken as ones (global)
    a: MatrixDescriptor  # descriptor of A; `b` and `x` are those of B and X (global)
    b: MatrixDescriptor
    x: MatrixDescriptor
    dtype: Dtype
    conjugated: tuple[bool, bool]  # whether A, and B, are conjugated views (global)
    reads: bool  # whether alpha is not 0 (global)

    @classmethod
    def bind(
        cls,
        opname: str,
        runtime: Runtime | None,
        a: Any,
        b: Any,
        side: Any = "L",
        uplo: Any = "L",
        trans: Any = "N",
        diag: Any = "N",
        alpha: Any = 1,
        out: Any = None,
        dtype: DTypeLike | None = None,
        nprocs: Any = None,
    ) -> Bound[DistMatrix]:
        if runtime is not None:
            checks.check_of_descriptors(opname, nprocs=nprocs)
        side = checks.checked_letter(opname, "side", side, "LR")
        uplo, diag = (
            checks.checked_letter(opname, "uplo", uplo, "LU"),
            checks.checked_letter(opname, "diag", diag, "NU"),
        )
        trans = checks.checked_trans(opname, "trans", trans)
        for name, matrix in (("a", a), ("b", b)):
            checks.check_operand(opname, name, matrix, placed=runtime is not None)
        checks.check_out(opname, out)
        placed = isinstance(out, DistMatrix)
        dtype = checks.common_dtype(opname, {"A": a, "B": b, "out": out}, dtype)
        alpha = checked_factor(opname, "alpha", alpha, dtype)
        if runtime is None:
            descs, conjugated, reads = (a, b), (False, False), {}
        else:
            descs, conjugated, reads = (a.desc, b.desc), (a.conjugated, b.conjugated), {"A": a, "B": b}
        x = descs[1] if out is None else out.desc if placed else out
        new, nelements = checks.checked_place(opname, runtime, out)
        layouts = descs[0].without_lld, descs[1].without_lld, x.without_lld
        form = side, uplo, trans, diag == "U", *layouts, dtype, conjugated, alpha != 0
        return Bound(cls, form, {"alpha": alpha}, reads, out if placed else None, new=new, nelements=nelements)

    @classmethod
    def made(cls, opname: str, form: tuple[Any, ...], nprocs: int, topology: Topology) -> Self:
        operation = cls(*form)
        a, b, x, side = operation.a, operation.b, operation.x, operation.side
        if operation.dtype.itemsize <= 2:
            name = operation.dtype.name
            raise errors.DTypeError(f"{opname}: {name} has too few bits for a solve; convert with A.astype('float32')")
        if a.m != a.n:
            raise errors.DescriptorError(f"{opname}: A is {a.m} x {a.n}; it must be square")
        if a.n != (b.m if side == "L" else b.n):
            product = "op(A) X" if side == "L" else "X op(A)"
            raise errors.DescriptorError(
                f"{opname}: A is {a.m} x {a.n} and B is {b.m} x {b.n}; with side={side!r} the system is "
                f"{product} = alpha B, so B must have {a.n} {'rows' if side == 'L' else 'columns'}"
            )
        if x.shape != b.shape:
            raise errors.DescriptorError(f"{opname}: out is {x.m} x {x.n}, B is {b.m} x {b.n}; make them agree")
        checks.check_ranks(opname, x, nprocs)
        return operation

    @property
    def result(self) -> tuple[MatrixDescriptor, Dtype]:
        return self.x, self.dtype

    def plan(self, nprocs: int, topology: Topology) -> TrsmPlan | PipelinedTrsm:
        operands = TriangularOperands(self.a, self.b, self.x, self.side, self.uplo, self.trans, self.unit)
        reads = self.reads and 0 not in self.b.shape
        topology = replace(topology, bandwidth=0.0)  # a measured rate would change the bits of X from run to run
        width = PANEL_ON_GPUS if topology.gpus else PANEL
        if topology.gpus and nprocs == 1 and 1 in self.b.shape:  # one call of cuBLAS solves for a vector
            width = max(width, self.a.n)
        if self._stays_on_gpus(nprocs, topology):
            transport = topology.transport(nprocs)
            width = width_on_gpus(self.a.n)
            return PipelinedTrsm(operands, self.dtype.name, nprocs, width=width, transport=transport)
        return choose_trsm(operands, self.dtype.name, nprocs, reads=reads, width=width, topology=topology)

    def _stays_on_gpus(self, nprocs: int, topology: Topology) -> bool:
        """Whether the triangle stays, and kernels exchange blocks of a vector X in the caller's stream (global).

        So it is for a large triangle in blocks of consecutive rows and columns, one for each rank. A conjugate triangle
        must be stored by rows, of which BLAS takes it.
        """
        nbytes = self.a.m * self.a.n * self.dtype.itemsize
        if self.side == "R" or self.b.n != 1 or not self.reads:
            return False
        conj = self.dtype.kind == "c" and self.conjugated[0] != (self.trans == "C")
        if conj and (self.a.order == "C") != (self.trans == "N"):
            return False
        are_blocks = is_in_blocks(self.a) and is_in_blocks(self.x)
        return are_blocks and GpuColumns.serves(nprocs, [self._right], nbytes, push=topology.push and topology.gpus)

    @property
    def _right(self) -> VectorKind:
        """B as a vector (global)."""
        return VectorKind(self.b.m, self.b, self.dtype, self.conjugated[1])

    def executor(self, plan: TrsmPlan | PipelinedTrsm, backend: HostRanks) -> Any:
        a = self.a.T if plan.operands.is_transposed else self.a
        b, x = (self.b, self.x) if self.side == "L" else (self.b.T, self.x.T)
        orders = a.order, b.order, x.order
        if isinstance(plan, PipelinedTrsm) and backend.gpus:
            return RunTrsvOnGpus(plan, backend, self.dtype, self._right, self.x)
        if isinstance(plan, PipelinedTrsm):
            return RunPipelinedTrsm(plan, backend, self.dtype, orders)
        return RunTrsm(plan, backend, self.dtype, orders)

    def parts(self, opname: str, runtime: Runtime, bound: Bound[DistMatrix]) -> Bound[DistMatrix]:
        if bound.out is None:
            return bound
        return bound._replace(local=_overwrites_b(opname, bound.reads["A"], bound.reads["B"], bound.out))

    def in_order(self, executor: Any) -> bool:
        return isinstance(executor, RunTrsvOnGpus) or (isinstance(executor, RunTrsm) and executor.is_whole)

    def arrays(
        self, opname: str, runtime: Runtime, executor: Any, bound: Bound[DistMatrix], result: DistMatrix
    ) -> TrsmOperands:
        a, b, x = bound.reads["A"].stored(opname), bound.reads["B"].stored(opname), result.stored(opname)
        if (self.trans != "N") != (self.side == "R"):
            a = a.T
        if self.side == "R":
            b, x = b.T, x.T
        (conj_a, conj_b), is_complex = self.conjugated, self.dtype.kind == "c"
        conj = is_complex and conj_a != (self.trans == "C"), is_complex and conj_b
        return TrsmOperands(a, b, x, bound.scalars["alpha"], conj, bool(bound.local), runtime)


class PlannedTrsm(Planned[DistMatrix]):
    """A planned triangular solve: the plan, its workspace, and one call that runs it. Made by `plan_trsm`.

    Usable as a `with` block; `close` drops the workspace, as does dropping the object.
    """

    operation: TriangularSolve
    plan: TrsmPlan | PipelinedTrsm

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
        return self.run(lambda: self._bound(a, b, out))

    def _bound(self, a: Any, b: Any, out: Any) -> Bound[DistMatrix]:
        runtime, operation = self._runtime, self.operation
        assert runtime is not None, "it runs"
        operands = ("A", a, operation.a), ("B", b, operation.b)
        for (name, x, desc), conj in zip(operands, operation.conjugated, strict=True):
            checks.check_like_planned(name, x, runtime, operation.dtype, desc, conj=conj, exact=True)
        if out is not None:
            checks.check_like_planned("out", out, runtime, operation.dtype, operation.x, conj=False)
        bound = self.bound._replace(reads={"A": a, "B": b}, out=out)
        checks.check_matrices("execute", runtime, bound)
        return operation.parts("execute", runtime, bound)


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
    dtype: DTypeLike | None = None,
    nprocs: int | None = None,
) -> PlannedTrsm:
    """Plan X := alpha op(A)^-1 B or alpha B op(A)^-1. **Collective** with matrices; with descriptors it needs no MPI.

    The arguments are those of `trsm`, with descriptors for a and b if there are no matrices yet: then `dtype` is
    needed, and `nprocs` is the number of ranks (None for the largest grid). `out` may be the layout of X.

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
      memory     5,767,168 bytes per rank at most, of matrices and workspace
    """
    opname, bind, matrices = "plan_trsm", TriangularSolve.bind, {"a": a, "b": b, "out": out}
    if is_of_descriptors(matrices):
        bound = bind(opname, None, a, b, side, uplo, trans, diag, alpha, out, dtype)
        return planned_without_context(opname, bound, PlannedTrsm, nprocs, bound.form[4:7])
    return planned(opname, PlannedTrsm, bind, matrices, a, b, side, uplo, trans, diag, alpha, out, dtype, nprocs)


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
    matrices = {"a": a, "b": b, "out": out}
    return call("trsm", TriangularSolve.bind, matrices, a, b, side, uplo, trans, diag, alpha, out)


def triangle_solved(
    opname: str,
    a: DistMatrix,
    b: DistMatrix,
    *,
    uplo: Uplo,
    trans: Trans = "N",
    diag: Diag = "N",
    out: DistMatrix | MatrixDescriptor | None = None,
) -> DistMatrix:
    """**Collective.** `trsm` with A on the left, as a step of a call; `out` may be the layout of a new X."""
    runtime = a.runtime

    return step(opname, runtime, lambda: TriangularSolve.bind(opname, runtime, a, b, "L", uplo, trans, diag, 1, out))


def _overwrites_b(opname: str, a: DistMatrix, b: DistMatrix, out: DistMatrix) -> bool:
    """Whether `out` is B on this rank; ArgumentError if it overlaps A, or B in part."""
    memory_of = out.runtime.backend.memory_of
    x, y = memory_of(b.stored(opname)), memory_of(out.stored(opname))
    in_place = out is b or (not b.conjugated and b.desc.same_distribution(out.desc) and checks.is_same_memory(x, y))
    checks.check_overlap(opname, {"A": a}, None, out)
    if not in_place and checks.shares_memory(x, y):
        raise errors.ArgumentError(f"{opname}: out overlaps B in part; give it memory of its own, or pass B")
    return in_place


@overload
def trsv(
    a: DistMatrix,
    x: DistMatrix,
    *,
    uplo: Uplo = "L",
    trans: Trans = "N",
    diag: Diag = "N",
    out: DistMatrix | None = None,
) -> DistMatrix: ...
@overload
def trsv(a: DistMatrix, x: Array, *, uplo: Uplo = "L", trans: Trans = "N", diag: Diag = "N") -> Array: ...
def trsv(
    a: DistMatrix,
    x: DistMatrix | Array,
    *,
    uplo: Uplo = "L",
    trans: Trans = "N",
    diag: Diag = "N",
    out: DistMatrix | None = None,
) -> DistMatrix | Array:
    """**Collective.** op(A)^-1 x for a triangular A, as `trsm` with one right-hand side.

    For a large A the triangle stays, and each rank receives O(n) elements: x is solved in blocks along the diagonal.
    For a small A one rank solves, and receives the triangle.

    Args:
        a: n x n matrix in any layout, of which one triangle is read (global).
        x: n x 1 or 1 x n matrix in any layout, or an array of n elements that is equal on all ranks (global).
        uplo: "L" for a lower, "U" for an upper triangular A (global).
        trans: "N", "T" or "C": A as it is, transposed, conjugate transposed (global).
        diag: "U": the diagonal is 1 and not read; "N": it is read, and divided by (global).
        out: matrix of the shape of x that receives the result; out=x works in place. None for a new one (global).

    Returns:
        `out` or a new matrix of the shape of x; for an array an array, equal on all ranks.

    Raises:
        ArgumentError, DescriptorError, DTypeError: wrong arguments; the same error on every rank.
        MismatchError: ranks that passed different arguments.

    Source: BLAS, xTRSV.

    >>> import pblas, numpy as np
    >>> with pblas.Context() as ctx:
    ...     A = ctx.from_global(np.array([[2.0, 0.0], [1.0, 4.0]]))
    ...     pblas.blas.trsv(A, np.array([4.0, 10.0])).tolist()
    [2.0, 2.0]
    """
    matrices = {"a": a, "x": x, "out": out}
    with checked_call("trsv", _checked_vector, matrices, a, x, out) as (runtime, vector):
        column = vector.column
        if column is None:
            assert vector.elements is not None, "a vector is a matrix or an array"
            column = replicated_matrix("trsv", a, vector.elements[:, None])
            return runtime.backend.reading(_column_solved(a, column, uplo, trans, diag, None).local)[:, 0].copy()
        is_row = vector.is_row
        turns = isinstance(out, DistMatrix) and out.shape == (1, column.shape[0])  # a row takes the result of a column
        target = column if out is x else out.T if turns and out is not None else out
        result = _column_solved(a, column, uplo, trans, diag, target)
        return out if out is not None else result.T if is_row else result


def _checked_vector(opname: str, runtime: Runtime, a: Any, x: Any, out: object) -> VectorOperand:
    """The right-hand side (local)."""
    checks.check_matrix(opname, "a", a, runtime)
    vector = checked_vector(opname, "x", x, runtime, a.dtype)
    if vector.column is None and out is not None:
        raise errors.ArgumentError(f"{opname}: out is for an x that is a matrix; an array gives a new array")
    return vector


def _column_solved(
    a: DistMatrix, column: DistMatrix, uplo: Uplo, trans: Trans, diag: Diag, out: DistMatrix | None
) -> DistMatrix:
    """**Collective.** op(A)^-1 times a column."""
    matrices = {"a": a, "x": column, "out": out}
    return call("trsv", TriangularSolve.bind, matrices, a, column, "L", uplo, trans, diag, 1, out)


_TRANS = {0: "N", 1: "T", 2: "C"}  # SciPy's numbers of op


def solve_triangular(
    a: DistMatrix,
    b: MatrixOrArray,
    *,
    lower: bool = False,
    trans: object = "N",
    unit_diagonal: bool = False,
) -> MatrixOrArray:
    """**Collective.** Solve op(A) X = B for a triangular A, in any layouts.

    Args:
        a: n x n matrix of which one triangle is read (global).
        b: n x nrhs matrix, or an array of one or two dimensions that is equal on all ranks (global).
        lower: read the lower triangle of A; else the upper one (global).
        trans: "N" or 0: A X = B; "T" or 1: A^T X = B; "C" or 2: A^H X = B (global).
        unit_diagonal: take the diagonal of A as ones, and do not read it (global).

    Returns:
        X: a new matrix in B's layout; for an array an array of its shape, equal on all ranks.

    Raises:
        SingularMatrixError: an element of A's diagonal is 0; `info` is the first one, from 1. B is unchanged.
        ArgumentError, DescriptorError, DTypeError: wrong arguments; the same error on every rank. 16-bit dtypes are
            refused: convert with `astype`.
        MismatchError: ranks that passed different arguments.

    Source: LAPACK, xTRTRS; scipy.linalg.solve_triangular.

    >>> import pblas, numpy as np
    >>> with pblas.Context() as ctx:
    ...     A = ctx.from_global(np.array([[2.0, 1.0], [0.0, 4.0]]))
    ...     pblas.linalg.solve_triangular(A, np.array([4.0, 8.0])).tolist()
    [1.0, 2.0]
    """
    opname = "solve_triangular"
    right: Any = b
    x: Any
    runtime = runtime_of(opname, {"a": a, "b": b})
    with runtime.call(opname):
        with runtime.local_step(opname):
            ndim = None if isinstance(right, DistMatrix) else getattr(right, "ndim", None)  # None: the checks raise
            columns = right[:, None] if ndim == 1 else right
        if ndim is not None:
            right = replicated_matrix(opname, a, columns)
        matrices = {"a": a, "b": right}
        x = call(opname, RegularTriangularSolve.bind_scipy, matrices, a, right, lower, trans, unit_diagonal)
        if ndim is not None:
            x = runtime.backend.reading(x.local).reshape(np.shape(b)).copy()
        return x


@dataclass(frozen=True, eq=False)
class RegularTriangularSolve(TriangularSolve):
    """A `TriangularSolve` that raises for a zero on A's diagonal, before it solves.

    The fact of a rank is n minus the index of its first zero, so that the largest fact tells the first zero of all.
    """

    @classmethod
    def bind_scipy(
        cls, opname: str, runtime: Runtime, a: object, b: object, lower: object, trans: object, unit_diagonal: object
    ) -> Bound[DistMatrix]:
        uplo = "L" if checked_flag(opname, "lower", lower) else "U"
        diag = "U" if checked_flag(opname, "unit_diagonal", unit_diagonal) else "N"
        if isinstance(trans, int | np.integer) and not isinstance(trans, bool):
            trans = _TRANS.get(int(trans), trans)
        return cls.bind(opname, runtime, a, b, "L", uplo, trans, diag)

    @classmethod
    def agreed(cls, form: tuple[Any, ...], fact: int) -> tuple[object, ...]:
        if fact:
            info = cls(*form).a.n - fact + 1
            text = f"element ({info - 1}, {info - 1}) of A's diagonal is 0, so A is singular (info={info})"
            raise agreed(SingularMatrixError(f"solve_triangular: {text}", info))
        return form

    def parts(self, opname: str, runtime: Runtime, bound: Bound[DistMatrix]) -> Bound[DistMatrix]:
        bound = super().parts(opname, runtime, bound)
        if self.unit:
            return bound
        arrays, (places, rows, columns) = runtime.backend.arrays, _diagonal(self.a, runtime.rank)
        arrays.begin()
        zeros = places[arrays.take(bound.reads["A"].stored(opname), rows, columns) == 0]
        return bound._replace(fact=self.a.n - int(zeros[0]) if zeros.size else 0)


@lru_cache(8)
def _diagonal(desc: MatrixDescriptor, rank: int) -> tuple[Array, Array, Array]:
    """Indices of the elements of the diagonal that a rank has, ascending, and their local rows and columns."""
    ranges = ReductionPlan(desc, "diagonal", None, "float64", desc.nprocs).diagonal_ranges(rank)
    places = np.arange(desc.n)[index_of(ranges)]
    return places, *desc.local_index(places, places)


def first_zero(a: DistMatrix) -> int:
    """**Collective.** The place, from 1, of the first zero on the diagonal, equal on all ranks; 0 if there is none."""
    zeros = np.flatnonzero(a.diagonal() == 0)
    return int(zeros[0]) + 1 if zeros.size else 0
