"""Products of matrices with vectors: gemv, symv, hemv, trmv. Only vectors move: O(n) elements per rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.core.checks import check_not_conjugated, checked_trans, matrix_remedy
from pblas.core.options import Trans
from pblas.execute.matrix_vector import LocalProduct, absolute_values, multiply
from pblas.execute.redistribution.scaling import Scaling
from pblas.execute.reduction import PreparedReduction, combined, index_of
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.matrices.matrix import DistMatrix
from pblas.operations.vectors import (
    Vector,
    are_same,
    check_size,
    checked_vector,
    gathered_parts,
    put_old,
    runtime_of,
    store,
    summed,
)
from pblas.plans.matrix_vector import MatrixVectorPlan, Term
from pblas.plans.reduction import ReductionPlan
from pblas.runtime.runtime import checked_scalar, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array
    from pblas.layouts.triangle import Part
    from pblas.runtime.runtime import Place, Runtime

_SYMMETRIC = Term(), Term(transposed=True, strict=True)
_HERMITIAN = Term(), Term(transposed=True, conj=True, strict=True)


def gemv(
    A: DistMatrix,
    x: Any,
    y: Any = None,
    *,
    trans: Trans = "N",
    alpha: complex = 1.0,
    beta: complex | None = None,
    out: DistMatrix | None = None,
) -> Any:
    """**Collective.** alpha op(A) x + beta y.

    A does not move: every rank receives x and multiplies its own elements. Then the ranks add the partial results.

    Args:
        A: m x n matrix in any layout (global).
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
    return product(Product("gemv", A, x, y, out, trans, alpha, beta))


def symv(
    A: DistMatrix,
    x: Any,
    y: Any = None,
    *,
    uplo: str = "L",
    alpha: complex = 1.0,
    beta: complex | None = None,
    out: DistMatrix | None = None,
) -> Any:
    """**Collective.** alpha A x + beta y for a symmetric A, of which one triangle is read.

    Args:
        A: n x n matrix in any layout (global).
        x: as in `gemv` (global).
        y: as in `gemv` (global).
        uplo: the triangle of A that is read, "L" or "U"; both have the diagonal (global).
        alpha: as in `gemv` (global).
        beta: as in `gemv` (global).
        out: as in `gemv` (global).

    Returns:
        As `gemv`.

    Raises:
        as `gemv`.

    Source: BLAS, xSYMV.
    """
    return product(Product("symv", A, x, y, out, "N", alpha, beta, uplo))


def hemv(
    A: DistMatrix,
    x: Any,
    y: Any = None,
    *,
    uplo: str = "L",
    alpha: complex = 1.0,
    beta: complex | None = None,
    out: DistMatrix | None = None,
) -> Any:
    """**Collective.** alpha A x + beta y for a Hermitian A; imaginary parts of its diagonal are not read. See `symv`.

    Source: BLAS, xHEMV.
    """
    return product(Product("hemv", A, x, y, out, "N", alpha, beta, uplo))


def trmv(
    A: DistMatrix, x: Any, *, uplo: str = "L", trans: Trans = "N", diag: str = "N", out: DistMatrix | None = None
) -> Any:
    """**Collective.** op(A) x for a triangular A.

    Args:
        A: n x n matrix in any layout, of which one triangle is read (global).
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
    """
    return product(Product("trmv", A, x, None, out, trans, 1.0, None, uplo, diag))


@dataclass(frozen=True, slots=True)
class Product:
    """The arguments of a product, not checked; see `gemv` and `trmv`.

    Args:
        verb: "gemv", "symv", "hemv" or "trmv", or one of them with "a" in front for absolute values (global).
        A: the matrix (global).
        x: the vector (global).
        y: the vector that is added (global).
        out: of the result (global).
        trans: of A (global).
        alpha: scalar (global).
        beta: scalar (global).
        uplo: the triangle of A (global).
        diag: of a triangular A (global).
        absolute: as in `MatrixVectorPlan`; with it y and the result are real (global).
    """

    verb: str
    A: DistMatrix
    x: Any
    y: Any = None
    out: Any = None
    trans: Any = "N"
    alpha: Any = 1.0
    beta: Any = None
    uplo: Any = None
    diag: Any = "N"
    absolute: str = ""

    @property
    def kind(self) -> str:
        """The name without absolute values: "gemv", "symv", "hemv" or "trmv"."""
        return self.verb[-4:]


@dataclass(frozen=True, slots=True)
class _Checked:
    """The checked arguments of a product; see `Product`."""

    a: DistMatrix
    x: Vector
    y: Vector | None
    out: Vector | None
    trans: Trans
    alpha: complex
    beta: complex
    part: Part
    unit: bool
    dtype: np.dtype[Any]
    same: bool
    """Whether out is y itself (local)."""

    def agreed(self) -> dict[str, Any]:
        """The arguments on which the ranks agree."""
        vectors = {name: v.described() for name, v in (("x", self.x), ("y", self.y), ("out", self.out)) if v}
        options = {name: getattr(self, name) for name in ("trans", "alpha", "beta", "part", "unit")}
        return {**vectors, **options, **self.a.signature()}


def product(call: Product) -> Any:
    """**Collective.** The result of a product, in `out`, a new matrix, or an array."""
    verb = call.verb
    runtime = runtime_of(verb, {"A": call.A, "x": call.x, "y": call.y, "out": call.out})
    with runtime.call(verb):
        with runtime.local_step(verb):
            spec = _checked(call, runtime)
            prepared = _prepared(call, spec, runtime)
        total = _total(call, spec, runtime, prepared)
        put = _absolute_put(spec) if call.absolute else Scaling(spec.alpha, spec.beta)
        target = _target(runtime, spec, prepared)
        if target is None:
            with np.errstate(all="ignore"):
                result = np.empty((len(total), 1), spec.dtype)
                if spec.y is not None:
                    result[:, 0] = spec.y.on_all_ranks(verb)
                put(total[:, None], result)
            return result[:, 0]
        if spec.y is not None and spec.beta != 0:
            differs = runtime.agree(f"{verb}: y", {}, None, (int(not spec.same),))[0]
            put_old(spec.y, target, same=not differs)
        assert target.column is not None, "a target is a matrix"
        with np.errstate(all="ignore"):
            store(runtime, target.column, put, total, is_own=prepared.plan.stays)
        if call.out is not None:
            return call.out
        return target.column.T if target.is_row else target.column


def _checked(call: Product, runtime: Runtime) -> _Checked:
    """The checked arguments of a product (local)."""
    verb, a = call.verb, checked_matrix(call.verb, call.A, runtime, square=call.kind != "gemv")
    trans = checked_trans(verb, "trans", call.trans)
    part: Part = "all" if call.kind == "gemv" else checked_uplo(verb, call.uplo)
    if call.diag not in ("N", "U"):
        raise errors.ArgumentError(f"{verb}: diag must be 'N' or 'U', got {call.diag!r}")
    length, size = a.shape if trans == "N" else a.shape[::-1]
    dtype = real_of(a.dtype) if call.absolute else a.dtype
    x = checked_vector(verb, "x", call.x, runtime, a.dtype)
    check_size(verb, "x", x, size, f"op(A) is {length} x {size} and takes")
    y, out = (
        None if value is None else checked_vector(verb, name, value, runtime, dtype, arrays=name == "y")
        for name, value in (("y", call.y), ("out", call.out))
    )
    for name, vector in (("y", y), ("out", out)):
        if vector is not None:
            check_size(verb, name, vector, length, f"op(A) is {length} x {size} and gives")
    if out is not None:
        check_not_conjugated(verb, "out", out.column)
        check_writeable(verb, "out", out.column)
    alpha = checked_scalar(verb, "alpha", call.alpha, dtype)
    beta = checked_scalar(verb, "beta", (0.0 if y is None else 1.0) if call.beta is None else call.beta, dtype)
    if beta != 0 and y is None:
        raise errors.ArgumentError(f"{verb}: beta is {beta} and there is no y; pass y=, or leave beta out")
    same = are_same(verb, y, out)
    return _Checked(a, x, y, out, trans, alpha, beta, part, call.diag == "U", dtype, same)


def checked_matrix(verb: str, a: Any, runtime: Runtime, *, square: bool) -> DistMatrix:
    """A value as a matrix of the context (local).

    Raises:
        ArgumentError: no matrix, or one of another context.
        DescriptorError: not square.
    """
    if not isinstance(a, DistMatrix):
        raise errors.ArgumentError(f"{verb}: A must be a DistMatrix, got {type(a).__name__}; {matrix_remedy(a)}")
    if a.runtime is not runtime:
        raise errors.ArgumentError(f"{verb}: matrices of different contexts; make both with one context")
    if square and a.shape[0] != a.shape[1]:
        raise errors.DescriptorError(f"{verb}: A is {a.shape[0]} x {a.shape[1]}; it must be square")
    a.computed(verb)
    return a


def check_writeable(verb: str, name: str, a: DistMatrix | None) -> None:
    """Raise ArgumentError if a matrix is made of a read-only array (local)."""
    if a is not None and not getattr(a.stored(verb).flags, "writeable", True):
        raise errors.ArgumentError(f"{verb}: {name} is made of a read-only array; give it memory that can be written")


def checked_uplo(verb: str, uplo: Any) -> Part:
    """A value as a triangle; ArgumentError for any other value (local)."""
    if not isinstance(uplo, str) or uplo not in ("L", "U"):
        raise errors.ArgumentError(f"{verb}: uplo must be 'L' or 'U', got {uplo!r}")
    return uplo  # type: ignore[return-value]  # one of the two


def real_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
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


class _Prepared:
    """A product on this rank: its plan, and the layout of a new result. It serves any number of calls.

    Args:
        plan: of the product, whose results may stay where they are (global).
        desc: distribution of op(A) (global).
        out: distribution of the result as a column; None for a new one (global).
        dtype: of the result (global).
        runtime: of the context (global).
    """

    def __init__(
        self,
        plan: MatrixVectorPlan,
        desc: MatrixDescriptor,
        out: MatrixDescriptor | None,
        dtype: np.dtype[Any],
        runtime: Runtime,
    ) -> None:
        self.column: MatrixDescriptor = MatrixDescriptor(
            desc.m, 1, desc.mb, 1, desc.grid, desc.rsrc, desc.csrc, imb=desc.imb
        )
        """Distribution of a new result (global)."""
        self.place: Place = runtime.place(self.column, dtype)
        """Memory of this rank's part of it (local)."""
        stays = plan.stays and len(plan.terms) == 1 and desc.is_row_wise
        stays = stays and (out is None or out.same_distribution(self.column))
        self.plan: MatrixVectorPlan = replace(plan, stays=stays)
        self._desc, self._rank = desc, runtime.rank

    @cached_property
    def local(self) -> LocalProduct:
        """The elements that this rank multiplies (local)."""
        return LocalProduct(self.plan, self._rank)

    @cached_property
    def own(self) -> Any:
        """Indices of this rank's rows of op(A): a slice, or an array (local)."""
        return index_of(self._desc.global_ranges(self._rank)[0])

    @cached_property
    def sums(self) -> PreparedReduction:
        """The sums of the partial results of all ranks' rows of op(A) (global)."""
        plan = self.plan
        options: Any = "sum", 1, plan.partial_dtype, plan.nprocs, plan.transport
        return PreparedReduction(ReductionPlan(self._desc, *options), self._rank)

    def close(self) -> None:
        """Nothing: it has no memory but indices (local)."""


def _prepared(call: Product, spec: _Checked, runtime: Runtime) -> _Prepared:
    """The product of calls like this one (local)."""
    a, trans, replicated = spec.a, spec.trans, spec.x.column is None
    transport = runtime.transport
    is_matrix = any(vector is not None and vector.column is not None for vector in (spec.x, spec.y, spec.out))
    out = None if spec.out is None or spec.out.column is None else spec.out.column.desc

    def make() -> _Prepared:
        terms = _terms(call.kind, trans, unit=spec.unit, conj=a.conjugated)
        plan = MatrixVectorPlan(
            *(a.desc, spec.part, terms, name_of(a.dtype), runtime.nprocs, transport),
            hermitian=call.kind == "hemv",
            absolute=call.absolute,
            replicated=replicated,
            stays=is_matrix,
        )
        return _Prepared(plan, a.desc if trans == "N" else a.desc.T, out, spec.dtype, runtime)

    options = call.kind, call.absolute, trans, spec.part, spec.unit, a.conjugated, replicated, is_matrix
    return runtime.prepared.get((a.desc, out, a.dtype, transport, *options), make)


def _target(runtime: Runtime, spec: _Checked, prepared: _Prepared) -> Vector | None:
    """**Collective.** The vector of the result; None for an array. A new one is divided as the rows of op(A)."""
    if spec.out is not None:
        return spec.out
    given = next((vector for vector in (spec.x, spec.y) if vector is not None and vector.column is not None), None)
    if given is None:
        return None
    local = runtime.empty(prepared.place)
    if not runtime.backend.shared:  # private memory: another rank may have none
        runtime.agree("allocate a vector", {})
    return Vector(prepared.column.m, DistMatrix(prepared.column, local, runtime), is_row=given.is_row)


def _total(call: Product, spec: _Checked, runtime: Runtime, prepared: _Prepared) -> Array:
    """**Collective.** Op(A) x without alpha, on all ranks, or if it stays this rank's elements of it.

    Zeros if neither A nor x is read.
    """
    a, verb, plan = spec.a, call.verb, prepared.plan
    if spec.alpha == 0 or not plan.vector_length or not plan.length:
        runtime.agree(f"{verb}: nothing to multiply", spec.agreed())
        length = prepared.column.local_shape(runtime.rank)[0] if plan.stays else plan.length
        return np.zeros(length, np.dtype(plan.partial_dtype))
    call_args = spec.agreed()
    if spec.x.column is None:
        vector = spec.x.on_all_ranks(verb)
    else:
        vector, call_args = spec.x.on_all_ranks(verb, call_args), {}
    with runtime.local_step(verb), np.errstate(all="ignore"):
        if call.absolute:
            vector = absolute_values(vector, call.absolute)
        partial = multiply(prepared.local, runtime.backend, a.stored(verb), vector)
        if plan.stays and spec.unit:
            partial = partial + vector[prepared.own]
    step = f"{verb}: sums"
    if plan.stays:
        runtime.agree(step, call_args)
        return partial
    if prepared.local.is_whole:
        total = summed(runtime, step, call_args, partial, gathers=plan.gathers)
    else:
        gathered = gathered_parts(runtime, step, call_args, partial, prepared.sums.counts)
        with np.errstate(all="ignore"):
            total = combined(prepared.sums, gathered)
    return total + vector if spec.unit else total


def _absolute_put(spec: _Checked) -> Callable[[Array, Array], None]:
    """Y := |alpha| x + |beta y|."""

    def put(x: Array, out: Array) -> None:
        old: Any = 0 if spec.beta == 0 else np.abs(spec.beta * out)
        out[...] = old if spec.alpha == 0 else abs(spec.alpha) * x + old

    return put
