"""Sums, extremes, norms, trace and diagonal of a matrix, and vdot: reduce on each rank, exchange, combine."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from pblas import errors
from pblas.arrays.reduction_plan import SUMS, ReductionPlan
from pblas.arrays.reduction_plan import Operation as Reduces
from pblas.arrays.reduction_run import REDUCED, PreparedReduction, combined, partial_results
from pblas.backends.dtypes import Array, Dtype, Number, dtype_of_name
from pblas.collectives.api import Exchange, GpuExchange, stage
from pblas.core.call import call, checked_call
from pblas.core.checks import check_matrix, common_dtype
from pblas.core.operation import Bound, Operation, WithoutMemory
from pblas.matrices.matrix import DistMatrix
from pblas.redistribution.api import redistributed
from pblas.runtime.arrays import converted_array, equal_array
from pblas.runtime.runtime import Runtime, checked_flag, name_of, spelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.host_ranks import HostRanks
    from pblas.layouts.descriptor import MatrixDescriptor
    from pblas.simulation.hardware import Topology, Transport

Axis = Literal[0, 1] | None
_NORMS: dict[str | None, Reduces] = {"fro": "squares", "1": "abs_sum", "inf": "abs_sum", "max": "abs_max"}


class _Partial(NamedTuple):
    """This rank's partial results (local)."""

    runtime: Runtime
    opname: str
    results: Array


class RunReduction(WithoutMemory):
    """The executor of a reduction: all ranks exchange their partial results, and each combines them."""

    def __init__(self, plan: ReductionPlan, backend: HostRanks, values: Callable[[Array], Any]) -> None:
        self.prepared = PreparedReduction(plan, backend.rank)
        dtype, counts, itemsize = self.prepared.dtype, self.prepared.counts, dtype_of_name(plan.dtype).itemsize
        is_reduced = plan.operation in REDUCED and not plan.exact
        self._exchange: Exchange | None = None
        self.on_gpus: GpuExchange | None = None
        self._adds = plan.operation in ("sum", "abs_sum") and set(counts) == {plan.nresults}
        nbytes, push = math.prod(plan.a.shape) * itemsize, backend.push
        if is_reduced and GpuExchange.serves(backend.size, nbytes, sum(counts), push=push):
            self.on_gpus = GpuExchange(backend, dtype, plan.nresults if self._adds else counts)
        elif backend.size > 1:
            self._exchange = Exchange(counts, dtype, backend.rank)
        self._values = values

    def publish(self, x: _Partial) -> bool:
        if self._exchange is not None:
            self._exchange.lay_out(*x)
        return False

    def prepare(self, *, scratch: bool) -> bool:
        return self._exchange is not None and self._exchange.stage()

    def run(self, x: _Partial) -> Any:
        """**Collective.** The values, equal on all ranks."""
        if self.on_gpus is not None:  # kernels have run since before the agreement
            arrays, own = x.runtime.backend.arrays, self.on_gpus.own
            if own.size:
                arrays.assign(x.results[:, None], own[:, None])
            gathered = arrays.download(self.on_gpus.run(x.runtime))
            x.runtime.backend.check()  # a kernel that gave up on a peer has joined nothing
            if self._adds:
                return self._values(gathered)
        elif self._exchange is None:  # a copy, since those of one row or column may be elements of the matrix
            gathered = x.results.flatten()
        else:
            gathered = self._exchange.collect()
        return self._values(combined(self.prepared, gathered))


class Reduced(Operation[Any]):
    """An operation whose value is made of numbers to which each rank adds its part."""

    noun: ClassVar[str] = "reduction"
    needs_agreement: ClassVar[bool] = True
    uses_lanes: ClassVar[bool] = False
    reproducible: bool = False  # sums are exact and rounded once (global)

    @property
    @abstractmethod
    def reduces(self) -> tuple[MatrixDescriptor, Reduces, Axis, Dtype]:
        """Layout of the matrix, operation and axis of the plan, and dtype of the matrix (global)."""

    @abstractmethod
    def values(self, results: Array) -> Any:
        """What the call returns, from the results in one dimension and in the precision of the additions (global)."""

    @abstractmethod
    def operands(self, bound: Bound[Any]) -> tuple[object, ...]:
        """The operands of `partial_results` (local)."""

    @property
    def result(self) -> None:
        return None

    @property
    def is_local(self) -> bool:
        return True

    def plan(self, nprocs: int, topology: Topology) -> ReductionPlan:
        return self._plan(nprocs, topology.transport(nprocs))

    def _plan(self, nprocs: int, transport: Transport = "message") -> ReductionPlan:
        a, operation, axis, dtype = self.reduces
        exact = self.reproducible and operation in SUMS
        return ReductionPlan(a, operation, axis, name_of(dtype), nprocs, transport, exact)

    def executor(self, plan: ReductionPlan, backend: HostRanks) -> RunReduction:
        return RunReduction(plan, backend, self.values)

    def unknown(self, runtime: Runtime) -> Any:
        stage(runtime)
        plan = self._plan(runtime.nprocs)
        integral = plan.operation in ("argmax", "argmin")
        return self.values(np.zeros(plan.nresults, np.intp if integral else plan.partial_dtype))

    def arrays(
        self, opname: str, runtime: Runtime, executor: RunReduction, bound: Bound[Any], result: DistMatrix
    ) -> _Partial:
        prepared = executor.prepared
        np.empty(prepared.nresults, prepared.dtype)  # the results have space, or all ranks raise an error
        arrays, waits = runtime.backend.arrays, executor.on_gpus is None
        return _Partial(runtime, opname, partial_results(prepared, arrays, self.operands(bound), waits=waits))


@dataclass(frozen=True, eq=False)
class Reduction(Reduced):
    """A sum, a mean, an extreme or its place, a norm, the trace or the diagonal of a matrix."""

    derived: ClassVar[frozenset[str]] = frozenset(("name",))

    name: str  # name of the method of `DistMatrix` (global)
    ord: str | None  # of a norm: "fro", "1", "inf" or "max" (global)
    axis: Axis  # 0 reduces columns, 1 rows, None the matrix (global)
    keepdims: bool  # whether the value has two dimensions (global)
    matrix: MatrixDescriptor
    dtype: Dtype
    conjugated: bool  # whether the matrix is a conjugated view (global)
    reproducible: bool

    @classmethod
    def bind(
        cls,
        opname: str,
        runtime: Runtime,
        name: str,
        a: DistMatrix,
        axis: Any = None,
        keepdims: object = False,
        ord: object = None,  # noqa: A002 - NumPy's name
    ) -> Bound[Any]:
        a.computed(opname)
        is_axis = isinstance(axis, int | np.integer) and not isinstance(axis, bool) and -2 <= axis < 2
        if axis is not None and not is_axis:
            raise errors.ArgumentError(f"{opname}: axis must be None, 0 (down the columns) or 1, got {axis!r}")
        checked: Axis = None if axis is None else int(axis) % 2  # type: ignore[assignment]  # 0 or 1
        keepdims = checked_flag(opname, "keepdims", keepdims)
        if name in ("max", "min", "argmax", "argmin"):
            _check_extreme(opname, a, checked)
        kind = _checked_ord(ord) if name == "norm" else None
        form = name, kind, checked, keepdims, a.desc.without_lld, a.dtype, a.conjugated, sums_exactly(runtime)
        return Bound(cls, form, {}, {"A": a}, None)

    @property
    def _along(self) -> Axis:
        """The axis of the sums of which a norm of the matrix is the largest."""
        if self.axis is not None or not math.prod(self.matrix.shape):
            return None
        return 0 if self.ord == "1" else 1 if self.ord == "inf" else None

    @property
    def reduces(self) -> tuple[MatrixDescriptor, Reduces, Axis, Dtype]:
        operation: Any = "sum" if self.name == "mean" else self.name
        axis = self.axis
        if self.name == "norm":
            axis = self.axis if self._along is None else self._along
            operation = "abs_max" if self.ord == "inf" and self._along is None else _NORMS[self.ord]
        return self.matrix, operation, axis, self.dtype

    def operands(self, bound: Bound[Any]) -> tuple[Array]:
        return (bound.reads["A"].stored(self.name),)

    def values(self, results: Array) -> Any:
        if self.conjugated:
            results = np.conj(results)
        if self.name == "mean":  # NaN for an empty matrix, as in NumPy
            count = math.prod(self.matrix.shape) if self.axis is None else self.matrix.shape[self.axis]
            results = results / results.dtype.type(count)
        if self.name == "norm":
            if self._along is not None:
                results = results.max(keepdims=True)
            results = results.astype(np.float64 if self.dtype.char in "dD" else np.float32, copy=False)
        elif self.name not in ("argmax", "argmin"):  # more than a 16-bit dtype can hold is infinite
            results = results.astype(self.dtype, copy=False)
        if self.keepdims:
            return results.reshape((1, -1) if self.axis == 0 else (-1, 1))
        return results if self.axis is not None or self.name == "diagonal" else results[0]


@dataclass(frozen=True, eq=False)
class Dot(Reduced):
    """The sum of conj(a_ij) b_ij over two matrices of one distribution."""

    a: MatrixDescriptor
    b: MatrixDescriptor
    dtype: Dtype
    a_conjugated: bool  # whether A is a conjugated view (global)
    b_conjugated: bool  # whether B is (global)
    reproducible: bool

    @classmethod
    def bind(cls, opname: str, runtime: Runtime, a: DistMatrix, b: DistMatrix) -> Bound[Any]:
        """The operands, which were checked (local)."""
        form = a.desc.without_lld, b.desc.without_lld, a.dtype, a.conjugated, b.conjugated, sums_exactly(runtime)
        return Bound(cls, form, {}, {"a": a, "b": b}, None)

    @property
    def reduces(self) -> tuple[MatrixDescriptor, Reduces, Axis, Dtype]:
        return self.a, "dot", None, self.dtype

    def operands(self, bound: Bound[Any]) -> tuple[Array, Array, bool]:
        a, b = (bound.reads[name].stored("vdot") for name in "ab")
        return a, b, self.a_conjugated == self.b_conjugated

    def values(self, results: Array) -> Any:
        value = results.astype(self.dtype, copy=False)[0]
        # With the first factor conjugated if `a_conjugated == b_conjugated`, this is the sum, or its conjugate.
        return np.conj(value) if self.b_conjugated else value


@dataclass(frozen=True, eq=False)
class ProductWithArray(Reduced):
    """A v, for a vector v that all ranks have."""

    vector: tuple[int, ...]  # shape of v (global)
    matrix: MatrixDescriptor
    dtype: Dtype
    conjugated: bool  # whether A is a conjugated view (global)

    @classmethod
    def bind(cls, opname: str, runtime: Runtime, a: DistMatrix, vector: object) -> Bound[Any]:
        v = equal_array(opname, "the vector", vector, runtime)
        if v.shape != (a.shape[1],):
            raise errors.DescriptorError(
                f"{opname}: A is {_size(a)}, the vector has shape {v.shape}; expected {a.shape[1]} elements"
            )
        v = converted_array(opname, "the vector", v, a.dtype)
        a.computed(opname)
        form = v.shape, a.desc.without_lld, a.dtype, a.conjugated
        return Bound(cls, form, {}, {"A": a}, None, local=v)

    @property
    def reduces(self) -> tuple[MatrixDescriptor, Reduces, Axis, Dtype]:
        return self.matrix, "product", 1, self.dtype

    def operands(self, bound: Bound[Any]) -> tuple[Array, Array, bool]:
        return bound.reads["A"].stored("matmul"), bound.local, self.conjugated

    def values(self, results: Array) -> Array:
        return results.astype(self.dtype, copy=False)


def sums_exactly(runtime: Runtime) -> bool:
    """Whether sums get the same bits for any ranks and layouts (global)."""
    return bool(runtime.reproducible)


def reduction(
    a: DistMatrix,
    name: str,
    axis: object = None,
    keepdims: object = False,
    ord: object = None,  # noqa: A002 - NumPy's name
) -> Any:
    """**Collective.** The value of the method of `DistMatrix` of this name: "sum", "norm", "trace" and others."""
    return call(name, Reduction.bind, {"A": a}, name, a, axis, keepdims, ord)


def product_with_vector(a: DistMatrix, vector: object) -> Array:
    """**Collective.** A v, for a vector that all ranks have; see `DistMatrix.__matmul__`."""
    product: Array = call("matmul", ProductWithArray.bind, {"A": a}, a, vector)
    return product


def vdot(a: DistMatrix, b: DistMatrix) -> Number:
    """**Collective.** The sum of conj(a_ij) b_ij over all elements, as numpy.vdot.

    B is redistributed to the layout of A if the layouts differ (A to that of B if A is replicated). 16-bit elements are
    multiplied and added in 32 bits.

    Args:
        a: m x n matrix (global).
        b: m x n matrix of the same dtype (global).

    Returns:
        A NumPy scalar of the matrices' dtype, equal on all ranks.

    Raises:
        ArgumentError: not two matrices of one context.
        DescriptorError: different shapes.
        DTypeError: different dtypes.

    >>> import pblas
    >>> with pblas.Context() as ctx:
    ...     a = ctx.full((2, 3), 2j)
    ...     print(pblas.vdot(a, a))
    (24+0j)
    """
    with checked_call("vdot", _check_factors, {"a": a, "b": b}, a, b):
        return dotted("vdot", a, b)


def _check_factors(opname: str, runtime: Runtime, a: Any, b: Any) -> None:
    """Raise an error unless A and B are matrices of one shape and dtype (local)."""
    for name, x in (("a", a), ("b", b)):
        check_matrix(opname, name, x, runtime)
        x.computed(opname)
    if a.shape != b.shape:
        raise errors.DescriptorError(f"{opname}: A is {_size(a)}, B is {_size(b)}; make them agree")
    common_dtype(opname, {"A": a, "B": b}, None)


def dotted(opname: str, a: DistMatrix, b: DistMatrix) -> Any:
    """**Collective.** `vdot` of checked matrices of one shape and dtype."""
    if not a.desc.same_distribution(b.desc):
        text = described(a=a, b=b)
        if a.desc.is_replicated:
            a = redistributed(opname, a, b.desc.without_lld, agrees=text)
        else:
            b = redistributed(opname, b, a.desc.without_lld, agrees=text)
    return call(opname, Dot.bind, {"a": a}, a, b)


def described(**matrices: DistMatrix) -> str:
    """The properties of matrices as text on which ranks agree (global)."""
    return spelled({f"{name} {key}": value for name, x in matrices.items() for key, value in x.signature().items()})


def _check_extreme(opname: str, a: DistMatrix, axis: Axis) -> None:
    """Raise an error unless the elements are ordered, and each result has an element."""
    if a.dtype.kind == "c":
        raise errors.DTypeError(f"{opname}: {a.dtype.name} numbers have no order; take .real, or A.norm('max')")
    m, n = a.shape
    if m * n == 0 if axis is None else a.shape[axis] == 0:
        raise errors.ArgumentError(
            f"{opname}: the matrix is {m} x {n}, so there is no element to take; check A.size first"
        )


def _checked_ord(ord: object) -> str:  # noqa: A002 - NumPy's name
    """The name of a norm: "fro", "1", "inf" or "max"."""
    if isinstance(ord, str) and ord in ("fro", "inf", "max"):
        return ord
    if isinstance(ord, int | float | np.number) and not isinstance(ord, bool):
        if ord == 1:
            return "1"
        if ord == math.inf:
            return "inf"
    text = f"norm: ord must be 'fro', 1, inf or 'max', got {ord!r}; linalg.matrix_norm takes 2, -2 and 'nuc' too"
    raise errors.ArgumentError(text)


def _size(x: DistMatrix) -> str:
    """The shape as text."""
    return f"{x.shape[0]} x {x.shape[1]}"
