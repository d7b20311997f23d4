"""Products of matrices with vectors: gemv, symv, hemv, trmv. Only vectors move: O(n) elements per rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, overload

import numpy as np

from pblas import errors
from pblas.arrays.reduction_plan import ReductionPlan
from pblas.arrays.reduction_run import PreparedReduction, combined
from pblas.collectives.api import Exchange, GpuExchange, add_up, stage
from pblas.core.call import call as perform
from pblas.core.checks import check_matrix, check_not_conjugated, checked_letter, checked_trans
from pblas.core.operation import Bound, Operation, WithoutMemory
from pblas.core.options import MatrixOrArray, Trans
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.matrices.scatter_gather import index_of
from pblas.redistribution.packing import Scaling
from pblas.runtime.runtime import Runtime, checked_scalar, name_of
from pblas.vectors.checks import Columns, GpuColumns, VectorKind, check_size, checked_vector, is_in_blocks
from pblas.vectors.matrix_vector_plan import MatrixVectorPlan, Term
from pblas.vectors.matrix_vector_run import LocalProduct, absolute_values, add_parts, multiply

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.device import Uplo
    from pblas.backends.dtypes import Array, Dtype, Index, Scalar
    from pblas.backends.host_ranks import HostRanks
    from pblas.layouts.triangle import Part
    from pblas.simulation.hardware import Topology

_SYMMETRIC = Term(), Term(transposed=True, strict=True)
_HERMITIAN = Term(), Term(transposed=True, conj=True, strict=True)


@overload
def gemv(
    a: DistMatrix,
    x: MatrixOrArray,
    y: MatrixOrArray | Array | None = None,
    *,
    trans: Trans = "N",
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    out: None = None,
) -> MatrixOrArray: ...
@overload
def gemv(
    a: DistMatrix,
    x: DistMatrix | Array,
    y: DistMatrix | Array | None = None,
    *,
    trans: Trans = "N",
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    out: DistMatrix,
) -> DistMatrix: ...
def gemv(
    a: DistMatrix,
    x: object,
    y: object = None,
    *,
    trans: Trans = "N",
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    out: DistMatrix | None = None,
) -> Any:
    """**Collective.** alpha op(A) x + beta y.

    A does not move: every rank receives x and multiplies its own elements. Then the ranks add the partial results.

    Args:
        a: m x n matrix in any layout (global).
        x: vector of n elements, m with trans other than "N": an m x 1 or 1 x n matrix in any layout, or an array of one
            dimension that is equal on all ranks (global).
        y: vector that is added; None for none (global).
        trans: "N", "T" or "C": A as it is, transposed, conjugate transposed (global).
        alpha: scalar; with alpha = 0 neither A nor x is read (global).
        beta: scalar; with beta = 0 y is not read. None: 1 if y is given, else 0 (global).
        out: vector that receives the result, a matrix in any layout; it may be y, or x. None for a new one (global).

    Returns:
        `out`, or a new vector of A's dtype: an array equal on all ranks if x and y are arrays; otherwise a matrix, of
        one row if x (or y) is a row, else of one column, divided as the rows of op(A).

    Raises:
        ArgumentError, DescriptorError, DTypeError: arguments that do not fit, the same on every rank.
        MismatchError: ranks that passed different arguments.

    Source: BLAS, xGEMV.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     A = ctx.from_function(lambda i, j: 10.0 * i + j, (2, 3))
    ...     y = pblas.blas.gemv(A, np.ones(3))
    ...     z = pblas.blas.gemv(A, A[:, 1], trans="T")
    ...     y.tolist(), z.shape, z.to_global(None).ravel().tolist()
    ([3.0, 33.0], (3, 1), [110.0, 122.0, 134.0])
    """
    return product(Product("gemv", a, x, y, out, trans, alpha, beta))


@overload
def symv(
    a: DistMatrix,
    x: MatrixOrArray,
    y: MatrixOrArray | Array | None = None,
    *,
    uplo: str = "L",
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    out: None = None,
) -> MatrixOrArray: ...
@overload
def symv(
    a: DistMatrix,
    x: DistMatrix | Array,
    y: DistMatrix | Array | None = None,
    *,
    uplo: str = "L",
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    out: DistMatrix,
) -> DistMatrix: ...
def symv(
    a: DistMatrix,
    x: object,
    y: object = None,
    *,
    uplo: str = "L",
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    out: DistMatrix | None = None,
) -> Any:
    """**Collective.** alpha A x + beta y for a symmetric A, of which one triangle is read.

    Args:
        a: n x n matrix in any layout (global).
        uplo: the triangle of A that is read, "L" or "U"; both have the diagonal (global).
        x, y, alpha, beta, out: as in `gemv` (global).

    Returns:
        As `gemv`.

    Raises:
        as `gemv`.

    Source: BLAS, xSYMV.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     A = ctx.from_global(np.array([[1.0, np.nan], [2.0, 3.0]]))  # the upper triangle is not read
    ...     pblas.blas.symv(A, np.ones(2)).tolist()
    [3.0, 5.0]
    """
    return product(Product("symv", a, x, y, out, "N", alpha, beta, uplo))


@overload
def hemv(
    a: DistMatrix,
    x: MatrixOrArray,
    y: MatrixOrArray | Array | None = None,
    *,
    uplo: str = "L",
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    out: None = None,
) -> MatrixOrArray: ...
@overload
def hemv(
    a: DistMatrix,
    x: DistMatrix | Array,
    y: DistMatrix | Array | None = None,
    *,
    uplo: str = "L",
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    out: DistMatrix,
) -> DistMatrix: ...
def hemv(
    a: DistMatrix,
    x: object,
    y: object = None,
    *,
    uplo: str = "L",
    alpha: Scalar = 1.0,
    beta: Scalar | None = None,
    out: DistMatrix | None = None,
) -> Any:
    """**Collective.** alpha A x + beta y for a Hermitian A; imaginary parts of its diagonal are not read. See `symv`.

    Source: BLAS, xHEMV.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     A = ctx.from_global(np.array([[1.0, np.nan], [2.0j, 3.0]]))
    ...     pblas.blas.hemv(A, np.ones(2, complex)).tolist()
    [(1-2j), (3+2j)]
    """
    return product(Product("hemv", a, x, y, out, "N", alpha, beta, uplo))


def trmv(
    a: DistMatrix,
    x: MatrixOrArray,
    *,
    uplo: str = "L",
    trans: Trans = "N",
    diag: str = "N",
    out: DistMatrix | None = None,
) -> MatrixOrArray:
    """**Collective.** op(A) x for a triangular A.

    Args:
        a: n x n matrix in any layout, of which one triangle is read (global).
        x: vector of n elements, as in `gemv` (global).
        uplo: "L" for a lower, "U" for an upper triangular A (global).
        trans: "N", "T" or "C": A as it is, transposed, conjugate transposed (global).
        diag: "U": the diagonal is 1 and not read; "N": it is read (global).
        out: vector that receives the result; out=x works in place. None for a new one (global).

    Returns:
        As `gemv`.

    Raises:
        as `gemv`.

    Source: BLAS, xTRMV.

    >>> import numpy as np, pblas
    >>> with pblas.Context() as ctx:
    ...     A = ctx.from_global(np.array([[1.0, np.nan], [2.0, 3.0]]))
    ...     pblas.blas.trmv(A, np.ones(2)).tolist()
    [1.0, 5.0]
    """
    return product(Product("trmv", a, x, None, out, trans, 1.0, None, uplo, diag))


@dataclass(frozen=True, slots=True)
class Product:
    """The arguments of a product, not checked; see `gemv` and `trmv`."""

    opname: str  # "gemv", "symv", "hemv" or "trmv", or one of them with "a" in front for absolute values (global)
    a: DistMatrix  # the matrix (global)
    x: Any  # the vector (global)
    y: Any = None  # the vector that is added (global)
    out: Any = None  # of the result (global)
    trans: object = "N"
    alpha: Any = 1.0  # scalar (global)
    beta: Any = None  # scalar (global)
    uplo: object = None  # the triangle of A (global)
    diag: object = "N"  # of a triangular A (global)
    absolute: str = ""  # as in `MatrixVectorPlan`; with it y and the result are real (global)

    @property
    def kind(self) -> str:
        """The name without absolute values: "gemv", "symv", "hemv" or "trmv"."""
        return self.opname[-4:]


def product(call: Product) -> Any:
    """**Collective.** The result of a product, in `out`, a new matrix, or an array."""
    matrices = {"a": call.a, "x": call.x, "y": call.y, "out": call.out}
    result = perform(call.opname, MatrixVector.bind, matrices, call)
    return result if call.out is None else call.out


class _Operands(NamedTuple):
    """The local arrays and scalars of a call (local)."""

    runtime: Runtime
    opname: str
    a: Array
    x: Array
    y: Array | None
    result: Array | None
    put: Callable[[Array, Array], None]


@dataclass(frozen=True, eq=False)
class MatrixVector(Operation[Any]):
    """alpha op(A) x + beta y."""

    noun: ClassVar[str] = "product"
    may_overlap: ClassVar[bool] = True
    needs_agreement: ClassVar[bool] = True
    derived: ClassVar[frozenset[str]] = frozenset(("kind", "absolute", "reads_x", "reads_y"))

    kind: str  # "gemv", "symv", "hemv" or "trmv" (global)
    absolute: str  # as in `MatrixVectorPlan` (global)
    trans: Trans
    part: Part  # the part of A that is read (global)
    unit: bool  # whether the diagonal of a triangular A is 1 (global)
    matrix: MatrixDescriptor
    dtype: Dtype
    conjugated: bool  # whether A is a conjugated view (global)
    x: VectorKind  # the vector (global)
    y: VectorKind | None  # the vector that is added; None for none (global)
    out: VectorKind | None  # of the result; None for a new one (global)
    reads_x: bool  # whether alpha is not 0 (global)
    reads_y: bool  # whether there is a y, and beta is not 0 (global)

    @classmethod
    def bind(cls, opname: str, runtime: Runtime, call: Product) -> Bound[Any]:
        a = checked_matrix(opname, call.a, runtime, square=call.kind != "gemv")
        trans = checked_trans(opname, "trans", call.trans)
        part: Part = "all" if call.kind == "gemv" else checked_letter(opname, "uplo", call.uplo, "LU")
        diag = checked_letter(opname, "diag", call.diag, "NU")
        length, size = a.shape if trans == "N" else a.shape[::-1]
        dtype = real_of(a.dtype) if call.absolute else a.dtype
        x = checked_vector(opname, "x", call.x, runtime, a.dtype)
        check_size(opname, "x", x, size, f"op(A) is {length} x {size} and takes")
        y, out = (
            None if value is None else checked_vector(opname, name, value, runtime, dtype, arrays=name == "y")
            for name, value in (("y", call.y), ("out", call.out))
        )
        for name, vector in (("y", y), ("out", out)):
            if vector is not None:
                check_size(opname, name, vector, length, f"op(A) is {length} x {size} and gives")
        if out is not None:
            check_not_conjugated(opname, "out", out.column)
        alpha = checked_scalar(opname, "alpha", call.alpha, dtype)
        beta = checked_scalar(opname, "beta", (0.0 if y is None else 1.0) if call.beta is None else call.beta, dtype)
        if beta != 0 and y is None:
            raise errors.ArgumentError(f"{opname}: beta is {beta} and there is no y; pass y=, or leave beta out")
        vectors = (None if v is None else v.kind for v in (x, y, out))
        unit, reads_y = diag == "U", y is not None and beta != 0
        options = call.kind, call.absolute, trans, part, unit, a.desc.without_lld, a.dtype, a.conjugated
        form = *options, *vectors, alpha != 0, reads_y
        reads = {name: v.column for name, v in (("x", x), ("y", y)) if v is not None and v.column is not None}
        target = None if out is None else out.column
        return Bound(cls, form, {"alpha": alpha, "beta": beta}, {"A": a, **reads}, target, local=(x, y))

    @cached_property
    def target(self) -> VectorKind | None:
        """The vector of the result, a new one divided as the rows of op(A); None for an array (global)."""
        if self.out is not None:
            return self.out
        like = next((v for v in (self.x, self.y) if v is not None and v.column is not None), None)
        if like is None:
            return None
        desc = self.oriented
        column = MatrixDescriptor(desc.m, 1, desc.mb, 1, desc.grid, desc.rsrc, desc.csrc, imb=desc.imb)
        return VectorKind(desc.m, column, self.result_dtype, is_row=like.is_row)

    @property
    def oriented(self) -> MatrixDescriptor:
        """Descriptor of op(A) (global)."""
        return self.matrix if self.trans == "N" else self.matrix.T

    @property
    def result_dtype(self) -> Dtype:
        """The dtype of the result (global)."""
        return real_of(self.dtype) if self.absolute else self.dtype

    @property
    def result(self) -> tuple[MatrixDescriptor, Dtype] | None:
        target = self.target
        return None if target is None or target.column is None else (target.column, self.result_dtype)

    @property
    def is_local(self) -> bool:
        return True

    def plan(self, nprocs: int, topology: Topology) -> MatrixVectorPlan:
        desc, target = self.oriented, self.target
        plan = MatrixVectorPlan(
            *(self.matrix, self.part, _terms(self.kind, self.trans, unit=self.unit, conj=self.conjugated)),
            *(name_of(self.dtype), nprocs, topology.transport(nprocs)),
            hermitian=self.kind == "hemv",
            absolute=self.absolute,
            replicated=self.x.column is None,
        )
        if target is None or target.column is None or len(plan.terms) > 1 or not desc.is_row_wise:
            return plan
        rows = MatrixDescriptor(desc.m, 1, desc.mb, 1, desc.grid, desc.rsrc, desc.csrc, imb=desc.imb)
        return replace(plan, stays=target.column.same_distribution(rows))

    def executor(self, plan: MatrixVectorPlan, backend: HostRanks) -> RunMatrixVector:
        return RunMatrixVector(plan, backend, self)

    def arrays(self, opname: str, runtime: Runtime, executor: Any, bound: Bound[Any], result: Any) -> _Operands:
        x, y = bound.local
        alpha, beta = bound.scalars["alpha"], bound.scalars["beta"]
        put = _absolute_put(alpha, beta) if self.absolute else Scaling(alpha, beta)
        old = y.stored(opname) if self.reads_y else None
        target = None if result is None else result.stored(opname)
        return _Operands(runtime, opname, bound.reads["A"].stored(opname), x.stored(opname), old, target, put)

    def unknown(self, runtime: Runtime) -> Any:
        stage(runtime)
        return np.zeros(self.oriented.m, self.result_dtype) if self.result is None else None

    def in_order(self, executor: RunMatrixVector) -> bool:
        return executor.takes_whole or executor.is_on_gpus

    def finish(self, opname: str, runtime: Runtime, executor: object, bound: Bound[Any], result: object) -> Any:
        return result.T if isinstance(result, DistMatrix) and self.target and self.target.is_row else result


class RunMatrixVector(WithoutMemory):
    """The executor of a product of a matrix with a vector: one exchange of vectors, one of partial results."""

    def __init__(self, plan: MatrixVectorPlan, backend: HostRanks, operation: MatrixVector) -> None:
        self._plan, self._backend, self._operation = plan, backend, operation
        x, y, target = operation.x, operation.y, operation.target
        self.takes_whole: bool = _takes_whole(operation, plan, backend)
        column = None if target is None else target.column
        self._multiplies = operation.reads_x and plan.vector_length > 0 and plan.length > 0
        old = None if y is None or not operation.reads_y else y.column
        self._y_is_local = old is not None and column is not None and old.same_distribution(column)
        self._rows: Index = slice(0)
        if column is not None and column.local_shape(backend.rank)[1] > 0:
            self._rows = index_of(column.global_ranges(backend.rank)[0])
        self.is_on_gpus: bool = not self.takes_whole and self._goes_on_gpus()
        if self.takes_whole or self.is_on_gpus:
            self._vectors = self._exchange = None
            return
        self._gathers_x = self._multiplies and x.column is not None
        kinds = [x] if self._gathers_x else []
        self._gathers_y = old is not None and not self._y_is_local
        if self._gathers_y:
            assert y is not None, "it is read"
            kinds.append(y)
        self._vectors = Columns(kinds, plan.nprocs, backend.rank) if kinds else None
        dtype, self._sums, self._exchange = np.dtype(plan.partial_dtype), None, None
        if self._multiplies and not plan.stays:
            if not plan.is_whole:
                options: Any = "sum", 1, plan.partial_dtype, plan.nprocs, plan.transport
                self._sums = PreparedReduction(ReductionPlan(operation.oriented, *options), backend.rank)
                self._exchange = Exchange(self._sums.counts, dtype, backend.rank)
            elif plan.gathers or backend.gpus:
                self._exchange = Exchange((plan.length,) * plan.nprocs, dtype, backend.rank)
        self._partial: Array | None = None
        has_y = not operation.reads_y or (self._y_is_local and y is not None and not y.conjugated)
        stays = plan.stays and self._multiplies and has_y and operation.kind == "gemv"
        self._stays_there: bool = stays and _is_of_blas(operation, backend)
        """Whether one call of a device that gets the vector gives this rank's part of the result (global)."""

    def _goes_on_gpus(self) -> bool:
        """Whether vectors stay on the GPUs, where kernels exchange them in the order of the caller's stream (global).

        So it is for large matrices and vectors in blocks of consecutive rows and columns, one for each rank. Makes the
        exchanges.
        """
        plan, operation, backend = self._plan, self._operation, self._backend
        x, dtype = operation.x, np.dtype(plan.partial_dtype)
        if not _is_of_blas(operation, backend) or not self._multiplies:
            return False
        if operation.reads_y and (operation.y is None or operation.y.conjugated or not self._y_is_local):
            return False
        target = operation.target
        assert target is not None, "BLAS writes it"
        assert target.column is not None, "BLAS writes it"
        columns = target.column.rows
        if not is_in_blocks(plan.a) or columns.is_replicated or columns.nblocks > columns.nprocs > 1:
            return False
        if not GpuColumns.serves(plan.nprocs, [x], math.prod(plan.a.shape) * dtype.itemsize, push=backend.push):
            return False
        self._everywhere = GpuColumns([x], backend)
        self._added = GpuExchange(backend, dtype, plan.length)
        return True

    def _run_on_gpus(self, x: _Operands) -> None:
        """**Collective.** out = alpha op(A) x + beta y, by kernels on the caller's stream."""
        plan, operation, arrays, put = self._plan, self._operation, x.runtime.backend.arrays, x.put
        assert isinstance(put, Scaling), "there are no absolute values"
        assert x.result is not None, "the result is a matrix"
        # x   (all its elements, on every rank)
        self._everywhere.collect(x.runtime, [x.x])
        (vector,) = self._everywhere.elements
        options: Any = {"uplo": "L", "trans": operation.trans, "unit": False}
        if plan.stays and operation.kind == "gemv":
            if x.result.size:  # out_r = alpha op(A_r) x + beta y_r
                arrays.multiply_whole("gemv", put.alpha, x.a, vector[:, None], put.beta, x.y, x.result, **options)
            return
        # y_r = op(A_r) x   (this rank's elements of A)
        partial, local = self._added.own, self._local
        arrays.fill_whole(partial[:, None], 0)
        if x.a.size and operation.kind == "gemv":
            i_loc, j_loc = (local.columns, local.rows) if local.transposes else (local.rows, local.columns)
            source, target = (j_loc, i_loc) if operation.trans == "N" else (i_loc, j_loc)
            part = partial[target, None]
            arrays.multiply_whole("gemv", 1, x.a, vector[source, None], 0, None, part, **options)
        elif x.a.size:
            add_parts(local, arrays, x.a, vector, partial)
        # y_0 + y_1 + ... + y_{P-1}
        total = partial if plan.stays else self._added.run(x.runtime)
        if operation.unit:
            arrays.add_scaled(1, vector[:, None], 1, total[:, None])
        if x.result.size:  # out = alpha total + beta y
            address = x.runtime.backend.address
            if x.y is not None and address(x.y) != address(x.result):
                arrays.assign(x.y, x.result)
            arrays.add_scaled(put.alpha, total[self._rows, None], put.beta, x.result)

    @cached_property
    def _local(self) -> LocalProduct:
        """The elements that this rank multiplies (local)."""
        return LocalProduct(self._plan, self._backend.rank)

    def publish(self, x: _Operands) -> bool:
        if self._vectors is not None:
            columns = [x.x] if self._multiplies and self._operation.x.column is not None else []
            if self._gathers_y:
                assert x.y is not None, "it is read"
                columns.append(x.y)
            self._vectors.lay_out(x.runtime, x.opname, columns)
        elif self._multiplies and not self._stays_there:
            self._multiply(x, self._sizes(x.x))
        return False

    def prepare(self, *, scratch: bool) -> bool:
        exchange = self._exchange if self._vectors is None else self._vectors
        return exchange is not None and exchange.stage()

    def run(self, x: _Operands) -> Array | None:
        """**Collective.** The result as an array that all ranks have, or None: it is in the matrix of the result."""
        if self.takes_whole:
            operation, put = self._operation, x.put
            assert isinstance(put, Scaling), "there are no absolute values"
            assert x.result is not None, "the result is a matrix"
            uplo: Uplo = "U" if operation.part == "U" else "L"
            x.runtime.backend.arrays.multiply_whole(
                *(operation.kind, put.alpha, x.a, x.x, put.beta, x.y, x.result),
                uplo=uplo,
                trans=operation.trans,
                unit=operation.unit,
            )
            return None
        if self.is_on_gpus:
            self._run_on_gpus(x)
            return None
        # x, and y if its layout is not that of the result   (all their elements, on every rank)
        gathered = iter([] if self._vectors is None else self._vectors.collect())
        vector = self._sizes(next(gathered)) if self._gathers_x else self._sizes(x.x) if self._multiplies else None
        old = next(gathered, None)
        if self._stays_there:
            assert vector is not None, "it is multiplied"
            self._multiply_there(x, vector)
            return None
        if self._multiplies and self._vectors is not None:
            assert vector is not None, "it is multiplied"
            # y_r = op(A_r) x   (this rank's elements of A)
            if self._exchange is None:
                self._multiply(x, vector)
            else:
                with x.runtime.local_step(x.opname):
                    self._multiply(x, vector)
                x.runtime.backend.agree(f"{x.opname}: sums")
                if self._exchange.stage():
                    x.runtime.backend.agree(f"{x.opname}: staged")
        # y_0 + y_1 + ... + y_{P-1}
        total = self._total(x, vector)
        # out = alpha total + beta y
        if x.result is None:
            result = np.empty((len(total), 1), self._operation.result_dtype)
            if x.y is not None:
                result[:, 0] = x.y
            x.put(total[:, None], result)
            return result[:, 0]
        self._store(x, total, old)
        return None

    def _sizes(self, vector: Array) -> Array:
        """The vector that is multiplied, or the sizes of its elements (global)."""
        return absolute_values(vector, self._operation.absolute) if self._operation.absolute else vector

    def _multiply(self, x: _Operands, vector: Array) -> None:
        """y_r = op(A_r) x: this rank's partial results, laid out for the other ranks (local)."""
        partial = multiply(self._local, x.runtime.backend, x.a, vector)
        self._partial = partial
        if self._exchange is not None:
            self._exchange.lay_out(x.runtime, x.opname, partial)

    def _multiply_there(self, x: _Operands, vector: Array) -> None:
        """out_r = alpha op(A_r) x + beta y_r: this rank's part of the result, on its device (local)."""
        assert x.result is not None, "the result is a matrix"
        assert isinstance(x.put, Scaling), "there are no absolute values"
        if not x.result.size:
            return
        arrays = x.runtime.backend.arrays
        column = arrays.array(arrays.empty(vector.nbytes), (len(vector), 1), vector.dtype)
        arrays.from_host(vector[:, None], column)
        old = (x.put.beta, x.y) if x.y is not None else (0, None)
        arrays.multiply_whole(
            *("gemv", x.put.alpha, x.a, column, *old, x.result), uplo="L", trans=self._operation.trans, unit=False
        )

    def _total(self, x: _Operands, vector: Array | None) -> Array:
        """**Collective.** op(A) x without alpha, on all ranks, or if it stays this rank's elements of it."""
        plan, dtype = self._plan, np.dtype(self._plan.partial_dtype)
        if not self._multiplies:
            return np.zeros(len(np.arange(plan.length)[self._rows]) if plan.stays else plan.length, dtype)
        partial, self._partial = self._partial, None
        assert partial is not None, "it was multiplied"
        assert vector is not None, "it was multiplied"
        if plan.stays:
            return partial + vector[self._rows] if self._operation.unit else partial
        if self._exchange is None:
            total = np.empty_like(partial)
            add_up(x.runtime, f"{x.opname}: sums", partial, total)
        elif self._sums is not None:
            total = combined(self._sums, self._exchange.collect())
        else:  # y = y_0 + y_1 + ... + y_{P-1}   (in the order of ranks)
            parts = self._exchange.collect().reshape(plan.nprocs, -1)
            total = parts[0].copy()
            for part in parts[1:]:
                total += part
        return total + vector if self._operation.unit else total

    def _store(self, x: _Operands, total: Array, old: Array | None) -> None:
        """Out := alpha total + beta y in this rank's part of the result; `old` is a y that was gathered (local)."""
        part, backend = x.result, x.runtime.backend
        if part is None or not part.size:
            return
        rows, out = self._rows, np.empty(part.shape, part.dtype) if backend.gpus else part
        if self._y_is_local:
            assert x.y is not None, "it is read"
            assert self._operation.y is not None, "it is read"
            own = backend.reading(x.y)
            out[...] = np.conj(own) if self._operation.y.conjugated else own
        elif x.y is not None:
            out[:, 0] = (x.y if old is None else old)[rows]
        x.put((total if self._plan.stays else total[rows])[:, None], out)
        if out is not part:
            backend.copy(out, part)


def _takes_whole(operation: MatrixVector, plan: MatrixVectorPlan, backend: HostRanks) -> bool:
    """Whether one call of a device that has whole matrices and vectors gives the result (global)."""
    vectors = [operation.x, *([operation.y] if operation.y and operation.reads_y else [])]
    is_there = all(v.column is not None and not v.conjugated for v in vectors)
    return plan.nprocs == 1 and is_there and _is_of_blas(operation, backend)


def _is_of_blas(operation: MatrixVector, backend: HostRanks) -> bool:
    """Whether BLAS has the operation, on a device that has its matrix and writes its result (global)."""
    if "multiply_whole" in backend.arrays.traits.lacks or operation.dtype.char not in "fdFD":
        return False
    if operation.target is None or operation.target.column is None or not operation.reads_x:
        return False
    if operation.absolute or operation.conjugated or 0 in operation.matrix.shape:
        return False
    conjugates = operation.kind == "hemv" or operation.trans == "C"
    return operation.matrix.order == "F" or operation.dtype.kind != "c" or not conjugates


def checked_matrix(opname: str, a: Any, runtime: Runtime, *, square: bool) -> DistMatrix:
    """A value as a matrix of the context (local)."""
    check_matrix(opname, "a", a, runtime)
    if square and a.shape[0] != a.shape[1]:
        raise errors.DescriptorError(f"{opname}: A is {a.shape[0]} x {a.shape[1]}; it must be square")
    a.computed(opname)
    matrix: DistMatrix = a
    return matrix


def real_of(dtype: Dtype) -> Dtype:
    """The dtype of absolute values."""
    return np.dtype(dtype.type(0).real.dtype) if dtype.kind == "c" else dtype


def _terms(kind: str, trans: Trans, *, unit: bool, conj: bool) -> tuple[Term, ...]:
    """The products of an operation with the elements in memory, which are conjugated if the matrix is not."""
    if kind == "symv":
        terms: tuple[Term, ...] = _SYMMETRIC
    elif kind == "hemv":
        terms = _HERMITIAN
    else:
        terms = (Term(trans != "N", trans == "C", unit),)
    return tuple(term.flipped(conj=conj) for term in terms)


def _absolute_put(alpha: complex, beta: complex) -> Callable[[Array, Array], None]:
    """Y := |alpha| x + |beta y|."""

    def put(x: Array, out: Array) -> None:
        old: Any = 0 if beta == 0 else np.abs(beta * out)
        out[...] = old if alpha == 0 else abs(alpha) * x + old

    return put
