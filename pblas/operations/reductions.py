"""Sums, extremes, norms, trace and diagonal of a matrix, and vdot: validate on all ranks, reduce, gather, combine."""

from __future__ import annotations

import math
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pblas import errors
from pblas.backends import log
from pblas.core.checks import check_context, not_a_matrix
from pblas.execute.reduction import PreparedReduction, combined, partial_results
from pblas.matrices.matrix import DistMatrix
from pblas.operations.collectives import gather
from pblas.operations.redistribution import redistribute
from pblas.plans.reduction import Operation, ReductionPlan
from pblas.runtime.open_contexts import fail_without_context
from pblas.runtime.runtime import checked_flag, name_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pblas.backends.dtypes import Array, Number
    from pblas.runtime.runtime import Runtime

Axis = Literal[0, 1] | None


def reduction(a: DistMatrix, verb: Operation, axis: Any, keepdims: Any) -> Any:
    """**Collective.** The sum, maximum, minimum, or first place of them; see the methods of `DistMatrix`.

    Args:
        a: the matrix (global).
        verb: "sum", "max", "min", "argmax" or "argmin" (global).
        axis: None, 0 or 1, or a negative axis as in NumPy (global).
        keepdims: whether the result has two dimensions (global).
    """
    checked, keepdims = _begin(a, verb, axis, keepdims)
    if verb != "sum":
        with a.runtime.local_step(verb):
            _check_extreme(verb, a, checked)
    results = _reduced(a, verb, verb, checked, {"axis": checked, "keepdims": keepdims})
    if verb in ("argmax", "argmin"):
        return _shaped(results, checked, keepdims)
    return _shaped(_rounded(results, a), checked, keepdims)


def mean(a: DistMatrix, axis: Any, keepdims: Any) -> Any:
    """**Collective.** The mean of the elements; see `DistMatrix.mean`."""
    checked, keepdims = _begin(a, "mean", axis, keepdims)
    sums = _reduced(a, "mean", "sum", checked, {"axis": checked, "keepdims": keepdims})
    count = math.prod(a.shape) if checked is None else a.shape[checked]
    with np.errstate(all="ignore"):
        means = sums / sums.dtype.type(count)  # NaN for an empty matrix, as in NumPy
    return _shaped(_rounded(means, a), checked, keepdims)


def trace(a: DistMatrix) -> Any:
    """**Collective.** The sum of the diagonal; see `DistMatrix.trace`."""
    _begin(a, "trace", None, False)
    return _rounded(_reduced(a, "trace", "trace", None, {}), a)[0]


def diagonal(a: DistMatrix) -> Array:
    """**Collective.** The diagonal; see `DistMatrix.diagonal`."""
    _begin(a, "diagonal", None, False)
    return _rounded(_reduced(a, "diagonal", "diagonal", None, {}), a)


def norm(a: DistMatrix, ord: Any, axis: Any, keepdims: Any) -> Any:  # noqa: A002 - NumPy's name
    """**Collective.** A norm of the matrix, or of its columns or rows; see `DistMatrix.norm`."""
    checked, keepdims = _begin(a, "norm", axis, keepdims)
    with a.runtime.local_step("norm"):
        kind = _checked_ord(ord)
    dtype = np.float64 if a.dtype in (np.float64, np.complex128) else np.float32
    call_args = {"ord": kind, "axis": checked, "keepdims": keepdims}
    along: Axis = None if checked is not None else 0 if kind == "1" else 1 if kind == "inf" else None
    if along is not None and a.size:  # the largest sum of a column, or of a row
        sums = _reduced(a, "norm", "abs_sum", along, call_args)
        results = sums.max(keepdims=True) if sums.size else np.zeros(1)
    else:
        operations: dict[str, Operation] = {"fro": "squares", "1": "abs_sum", "inf": "abs_max", "max": "abs_max"}
        results = _reduced(a, "norm", operations[kind], checked, call_args)
    with np.errstate(all="ignore"):
        return _shaped(results.astype(dtype), checked, keepdims)


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
    verb = "vdot"
    operands: tuple[tuple[str, Any], ...] = ("a", a), ("b", b)
    matrices = [x for _, x in operands if isinstance(x, DistMatrix)]
    if not matrices:
        fail_without_context(verb, not_a_matrix(verb, "a", a))
    runtime = matrices[0].runtime
    with runtime.call(verb):
        return _vdot(runtime, operands)


def _vdot(runtime: Runtime, operands: tuple[tuple[str, Any], ...]) -> Any:
    """**Collective.** `vdot` of unchecked operands, each with its name."""
    verb, (a, b) = "vdot", (x for _, x in operands)
    with runtime.local_step(verb):
        for name, x in operands:
            if not isinstance(x, DistMatrix):
                raise not_a_matrix(verb, name, x)
            check_context(verb, x, runtime)
        if a.shape != b.shape:
            raise errors.DescriptorError(f"{verb}: A is {_size(a)}, B is {_size(b)}; make them agree")
        if a.dtype != b.dtype:
            raise errors.DTypeError(f"{verb}: A is {a.dtype.name}, B is {b.dtype.name}; give both one dtype")
        moves = not a.desc.same_distribution(b.desc)
    if moves:
        runtime.agree(verb, {f"{name} {key}": value for name, x in (("a", a), ("b", b)) for key, value in _args(x)})
        if a.desc.is_replicated:
            a = redistribute(a, b.desc)
        else:
            b = redistribute(b, a.desc)
    with runtime.local_step(verb):
        parts = a.computed(verb), b.computed(verb), a.conjugated == b.conjugated
    call_args = {"b": dict(_args(b))} if not moves else {}
    result = _rounded(_reduced(a, verb, "dot", None, call_args, parts, conj=False), a)[0]
    # With op the conjugate if `a.conjugated == b.conjugated`, the sum is that of op(a) b, or its conjugate.
    return np.conj(result) if b.conjugated else result


def elements_of(a: DistMatrix, verb: str, call_args: dict[str, Any]) -> Array:
    """**Collective.** The elements of an m x 1 matrix, on all ranks.

    Args:
        a: the matrix (global).
        verb: name of the call that needs them (global).
        call_args: its arguments that must be equal on all ranks (global).
    """
    return columns_on_all_ranks(a.runtime, verb, call_args | a.signature(), [a])[0]


def columns_on_all_ranks(
    runtime: Runtime, verb: str, call_args: Mapping[str, Any], columns: Sequence[DistMatrix]
) -> list[Array]:
    """**Collective.** The elements of several m x 1 matrices of one dtype on all ranks, in one exchange.

    Args:
        runtime: of the context (global).
        verb: name of the call that needs them (global).
        call_args: arguments that must be equal on all ranks, among them the matrices' (global).
        columns: the matrices; they may be none (global).
    """
    if not columns:
        runtime.agree(verb, call_args)
        return []
    with runtime.local_step(verb), np.errstate(all="ignore"):
        reductions = [_prepared(a, "sum", 1) for a in columns]  # of rows of one element
        partials = [
            partial_results(reduction, runtime.backend.arrays, (a.computed(verb),))
            for reduction, a in zip(reductions, columns, strict=True)
        ]
        partial = partials[0] if len(partials) == 1 else np.concatenate(partials)
    counts = [reduction.counts for reduction in reductions]
    numbers = counts[0] if len(counts) == 1 else tuple(map(sum, zip(*counts, strict=True)))
    gathered = gathered_parts(runtime, verb, call_args, partial, numbers)
    results = []
    for reduction, a, part in zip(reductions, columns, _separated(gathered, counts), strict=True):
        elements = _rounded(combined(reduction, part), a)
        results.append(np.conj(elements) if a.conjugated else elements)
    return results


def _separated(gathered: Array, counts: Sequence[tuple[int, ...]]) -> list[Array]:
    """The partial results of each of several reductions, of which every rank sent one after the other (local)."""
    if len(counts) == 1:
        return [gathered]
    spans = list(pairwise(accumulate(chain.from_iterable(zip(*counts, strict=True)), initial=0)))
    parts = [gathered[start:stop] for start, stop in spans]
    return [np.concatenate(parts[k :: len(counts)]) for k in range(len(counts))]


def product_with_vector(a: DistMatrix, vector: Any) -> Array:
    """**Collective.** A v, for a vector that all ranks have; see `DistMatrix.__matmul__`."""
    verb = "matmul"
    with a.runtime.local_step(verb):
        v = a.runtime.backend.reading(a.runtime.backend.as_array(vector))
        if v.shape != (a.shape[1],):
            raise errors.DescriptorError(
                f"{verb}: A is {_size(a)}, the vector has shape {v.shape}; expected {a.shape[1]} elements"
            )
        v = converted_array(verb, v, a.dtype)
        operands = a.computed(verb), v, a.conjugated
    return _rounded(_reduced(a, verb, "product", 1, {"vector": v.shape}, operands, conj=False), a)


def converted_array(verb: str, x: Array, dtype: np.dtype[Any]) -> Array:
    """An array of numbers in the dtype of a matrix.

    Raises:
        DTypeError: elements that are no numbers, or complex ones for a real matrix.
    """
    if x.dtype.kind not in "biufc" and x.dtype != dtype and x.dtype.name != "bfloat16":
        raise errors.DTypeError(f"{verb}: elements of dtype {x.dtype} are not numbers; convert with .astype('float64')")
    if x.dtype.kind == "c" and dtype.kind != "c":
        raise errors.DTypeError(
            f"{verb}: the array is {x.dtype.name}, the matrix {dtype.name}; pass its real part, or a complex matrix"
        )
    return x.astype(dtype, copy=False)


def _begin(a: DistMatrix, verb: str, axis: Any, keepdims: Any) -> tuple[Axis, bool]:
    """**Collective** after an error. The checked axis and flag of a reduction."""
    with a.runtime.local_step(verb):
        a.computed(verb)
        is_axis = isinstance(axis, int | np.integer) and not isinstance(axis, bool) and -2 <= axis < 2
        if axis is not None and not is_axis:
            raise errors.ArgumentError(f"{verb}: axis must be None, 0 (down the columns) or 1, got {axis!r}")
        checked: Axis = None if axis is None else int(axis) % 2  # type: ignore[assignment]  # 0 or 1
        return checked, checked_flag(verb, "keepdims", keepdims)
    raise AssertionError("an agreement with an error raises")


def _check_extreme(verb: str, a: DistMatrix, axis: Axis) -> None:
    """Raise an error unless the elements are ordered, and each result has an element."""
    if a.dtype.kind == "c":
        raise errors.DTypeError(f"{verb}: {a.dtype.name} numbers have no order; take .real, or A.norm('max')")
    m, n = a.shape
    if m * n == 0 if axis is None else a.shape[axis] == 0:
        raise errors.ArgumentError(
            f"{verb}: the matrix is {m} x {n}, so there is no element to take; check A.size first"
        )


def _checked_ord(ord: Any) -> str:  # noqa: A002 - NumPy's name
    """The name of a norm: "fro", "1", "inf" or "max"."""
    if isinstance(ord, str) and ord in ("fro", "inf", "max"):
        return ord
    if isinstance(ord, int | float | np.number) and not isinstance(ord, bool):
        if ord == 1:
            return "1"
        if ord == math.inf:
            return "inf"
    raise errors.ArgumentError(f"norm: ord must be 'fro', 1, inf or 'max', got {ord!r}")


def _reduced(
    a: DistMatrix,
    verb: str,
    operation: Operation,
    axis: Axis,
    call_args: dict[str, Any],
    operands: tuple[Any, ...] | None = None,
    *,
    conj: bool | None = None,
) -> Array:
    """**Collective.** The results of a reduction, in one dimension and in the precision of the additions.

    Args:
        a: the matrix (global).
        verb: name of the call (global).
        operation: of the plan (global).
        axis: of the plan (global).
        call_args: arguments that must be equal on all ranks (global).
        operands: of `partial_results`; None for the local array (local).
        conj: whether the results are conjugated; None: if the matrix is, and its elements are (global).
    """
    runtime = a.runtime
    with runtime.local_step(verb), np.errstate(all="ignore"):
        prepared = _prepared(a, operation, axis)
        partial = partial_results(prepared, runtime.backend.arrays, operands or (a.computed(verb),))
    gathered = gathered_parts(runtime, verb, call_args | a.signature(), partial, prepared.counts)
    with np.errstate(all="ignore"):
        results = combined(prepared, gathered)
    return np.conj(results) if (a.conjugated if conj is None else conj) else results


def _prepared(a: DistMatrix, operation: Operation, axis: Axis) -> PreparedReduction:
    """The reduction of matrices like this one, whose results have space (local)."""
    runtime = a.runtime
    options: Any = operation, axis, name_of(a.dtype), runtime.nprocs, runtime.transport

    def make() -> PreparedReduction:
        return PreparedReduction(ReductionPlan(a.desc, *options), runtime.rank)

    prepared = runtime.prepared.get((a.desc, *options), make)
    np.empty(prepared.nresults, np.complex128)  # the results have space, or all ranks raise an error
    log.planned(runtime.rank, "reduction", prepared.plan)
    return prepared


def gathered_parts(
    runtime: Runtime, verb: str, call_args: Mapping[str, Any], partial: Array, counts: tuple[int, ...]
) -> Array:
    """**Collective.** All ranks' partial results, one after the other; a new array.

    Args:
        runtime: of the context (global).
        verb: name of the call (global).
        call_args: arguments that must be equal on all ranks (global).
        partial: this rank's partial results (local).
        counts: numbers in each rank's partial results (global).
    """
    if not runtime.backend.gpus:
        return gather(runtime, verb, call_args, partial, counts)
    runtime.agree(verb, call_args)
    with runtime.collective_section(verb):
        return np.concatenate(runtime.backend.gather(partial))


def _rounded(results: Array, a: DistMatrix) -> Array:
    """The results in the dtype of the matrix."""
    with np.errstate(all="ignore"):  # more than a 16-bit dtype can hold is infinite
        return results.astype(a.dtype, copy=False)


def _shaped(results: Array, axis: Axis, keepdims: bool) -> Any:
    """The results as the caller gets them: a scalar or a vector, or with two dimensions if `keepdims`."""
    if keepdims:
        return results.reshape((1, -1) if axis == 0 else (-1, 1))
    return results[0] if axis is None else results


def _args(x: DistMatrix) -> Any:
    """Name and value of the properties of a matrix on which ranks agree."""
    return x.signature().items()


def _size(x: DistMatrix) -> str:
    """The shape as text."""
    return f"{x.shape[0]} x {x.shape[1]}"
