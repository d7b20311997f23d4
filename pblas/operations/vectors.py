"""Vectors of levels 1 and 2: m x 1 and 1 x n matrices in any layout, and arrays that are equal on all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise, product
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas import errors
from pblas.backends import log
from pblas.core.checks import check_not_conjugated, is_same_memory, shares_memory
from pblas.execute.matrix_vector import LocalPart
from pblas.execute.redistribution.scaling import Scaling
from pblas.execute.reduction import PreparedReduction, combined, partial_results
from pblas.matrices.matrix import DistMatrix
from pblas.operations.collectives import add_up, gather
from pblas.operations.redistribution import redistribute
from pblas.operations.reductions import converted_array
from pblas.plans.reduction import Operation, ReductionPlan
from pblas.runtime.open_contexts import fail_without_context
from pblas.runtime.runtime import name_of

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Vector:
    """A checked vector: a matrix of one column, or an array.

    Args:
        size: number of elements (global).
        column: the matrix as m x 1, a view; None for an array (global).
        elements: the array, in host memory; None for a matrix (global).
        is_row: whether the matrix is 1 x n (global).
    """

    size: int
    column: DistMatrix | None
    elements: Array | None = None
    is_row: bool = False

    def described(self) -> Any:
        """Text on which the ranks agree."""
        return self.size if self.column is None else self.column.signature()

    def on_all_ranks(self, verb: str, call_args: Mapping[str, Any] = MappingProxyType({})) -> Array:
        """**Collective** for a matrix. The elements on every rank, in host memory and one dimension.

        Args:
            verb: name of the call that needs them (global).
            call_args: its arguments that must be equal on all ranks; an array leaves them to a later agreement
                (global).
        """
        if self.column is None:
            assert self.elements is not None, "a vector is a matrix or an array"
            return self.elements
        return elements_of(self.column, verb, dict(call_args))


def all_on_all_ranks(
    runtime: Runtime, verb: str, call_args: Mapping[str, Any], vectors: Sequence[Vector]
) -> list[Array]:
    """**Collective.** The elements of several vectors of one dtype on every rank, in one exchange.

    Args:
        runtime: of the context (global).
        verb: name of the call that needs them (global).
        call_args: its arguments that must be equal on all ranks (global).
        vectors: the vectors (global).
    """
    columns = [vector.column for vector in vectors if vector.column is not None]
    gathered = iter(columns_on_all_ranks(runtime, verb, call_args, columns))
    return [next(gathered) if vector.column is not None else vector.on_all_ranks(verb) for vector in vectors]


def runtime_of(verb: str, operands: Mapping[str, Any]) -> Runtime:
    """The runtime of the first matrix among the operands (local).

    Raises:
        ArgumentError: no operand is a matrix; see `fail_without_context`.
    """
    runtime = next((x.runtime for x in operands.values() if isinstance(x, DistMatrix)), None)
    if runtime is None:
        text = f"{verb}: {' or '.join(operands)} must be a DistMatrix; ctx.from_global(array[:, None]) makes one"
        fail_without_context(verb, errors.ArgumentError(text))
    return runtime


def checked_vector(
    verb: str, name: str, value: Any, runtime: Runtime, dtype: np.dtype[Any] | None, *, arrays: bool = True
) -> Vector:
    """A value as a vector (local).

    Args:
        verb: name of the call, for messages (global).
        name: of the argument (global).
        value: the argument (global).
        runtime: of the context (global).
        dtype: that it must have; arrays are converted to it. None: any (global).
        arrays: whether it may be an array (global).

    Raises:
        ArgumentError: no vector, or a matrix of another context.
        DTypeError: another dtype, or complex elements for real ones.
    """
    kinds = "m x 1 or 1 x n DistMatrix" + (" or an array of one dimension" if arrays else "")
    if isinstance(value, DistMatrix):
        m, n = value.shape
        if 1 not in (m, n):
            raise errors.ArgumentError(f"{verb}: {name} must be an {kinds}, got {m} x {n}; {name}[:, j] is a column")
        if value.runtime is not runtime:
            raise errors.ArgumentError(f"{verb}: matrices of different contexts; make both with one context")
        if dtype is not None and value.dtype != dtype:
            raise errors.DTypeError(
                f"{verb}: {name} is {value.dtype.name}, expected {dtype.name}; give all operands one dtype"
            )
        value.computed(verb)
        return Vector(m * n, value if n == 1 else value.T, is_row=n != 1)
    if not arrays or np.ndim(value) != 1:
        got = f"{type(value).__name__} of {np.ndim(value)} dimensions" if arrays else type(value).__name__
        raise errors.ArgumentError(f"{verb}: {name} must be an {kinds}, got {got}")
    elements = runtime.backend.reading(runtime.backend.as_array(value))
    return Vector(len(elements), None, elements if dtype is None else converted_array(verb, elements, dtype))


def check_size(verb: str, name: str, vector: Vector, size: int, what: str) -> None:
    """Raise DescriptorError unless a vector has this number of elements (local)."""
    if vector.size != size:
        raise errors.DescriptorError(f"{verb}: {name} has {vector.size} elements, {what} {size}; make them agree")


@contextmanager
def columns_of(verb: str, *written: str, **operands: Any) -> Iterator[list[DistMatrix]]:
    """**Collective.** A with block around a call of level 1: its vectors as m x 1 matrices of one dtype and length.

    Args:
        verb: name of the call (global).
        written: names of the vectors that the call writes (global).
        operands: the vectors, by name (global).

    Raises:
        ArgumentError, DTypeError, DescriptorError: arguments that do not fit, the same on every rank.
    """
    runtime = runtime_of(verb, operands)
    with runtime.call(verb):
        columns: list[DistMatrix] = []
        with runtime.local_step(verb):
            for name, value in operands.items():
                dtype = columns[0].dtype if columns else None
                vector = checked_vector(verb, name, value, runtime, dtype, arrays=False)
                assert vector.column is not None, "it is no array"
                if columns:
                    check_size(verb, name, vector, columns[0].shape[0], "the other vector")
                if name in written:
                    check_not_conjugated(verb, name, vector.column)
                columns.append(vector.column)
            _check_overlaps(verb, written, dict(zip(operands, columns, strict=True)))
        yield columns


def _check_overlaps(verb: str, written: Sequence[str], columns: Mapping[str, DistMatrix]) -> None:
    """Raise ArgumentError if a vector that is written shares memory with another one (local)."""
    for name, (other, column) in product(written, columns.items()):
        if other != name:
            shadow = column.runtime.backend.shadow
            if shares_memory(shadow(columns[name].stored(verb)), shadow(column.stored(verb))):
                raise errors.ArgumentError(f"{verb}: {name} overlaps {other}; give it memory of its own")


def summed(runtime: Runtime, verb: str, call_args: Mapping[str, Any], partial: Array, *, gathers: bool) -> Array:
    """**Collective.** The sum of all ranks' arrays, the same bits on every rank and transport.

    Args:
        runtime: of the context (global).
        verb: name of the agreement (global).
        call_args: arguments that must be equal on all ranks (global).
        partial: this rank's array, of one dimension (local).
        gathers: whether all ranks get all arrays; otherwise each rank adds a part of the elements (global).
    """
    if not runtime.backend.gpus and not gathers:
        total = np.empty_like(partial)
        add_up(runtime, verb, call_args, partial, total, None, algorithm="two_shot")
        return total
    if runtime.backend.gpus:
        runtime.agree(verb, call_args)
        with runtime.collective_section(verb):
            parts = runtime.backend.gather(partial)
    else:
        counts = (len(partial),) * runtime.nprocs
        parts = list(gather(runtime, verb, call_args, partial, counts).reshape(runtime.nprocs, -1))
    total = parts[0].copy()
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            total += part
    return total


def store(runtime: Runtime, column: DistMatrix, put: Any, total: Array, *, is_own: bool = False) -> None:
    """Update this rank's elements of an m x 1 matrix by elements that all ranks have, or that this rank has (local).

    Args:
        runtime: of the context (global).
        column: the matrix (global).
        put: put(x, out) updates elements (global).
        total: m elements (global), or if `is_own` this rank's elements (local).
        is_own: whether the elements are those of this rank (global).
    """
    part = column.stored("store")
    if part.size:
        if not is_own:
            key = "store", column.desc
            local: LocalPart = runtime.prepared.get(key, lambda: LocalPart(column.desc, "all", runtime.rank))
            total = total[local.rows]
        out = runtime.backend.reading(part)
        out = out if out is part else out.copy()
        put(total[:, None], out)
        if out is not part:
            runtime.backend.copy(out, part)


def put_old(y: Vector, out: Vector, *, same: bool) -> None:
    """**Collective** for a matrix. Out := y, unless it is the same memory; out is a matrix."""
    assert out.column is not None, "out is a matrix"
    if y.column is None:
        store(out.column.runtime, out.column, Scaling(), y.on_all_ranks("y"))
    elif not same:
        redistribute(y.column, out=out.column)


def are_same(verb: str, y: Vector | None, out: Vector | None) -> bool:
    """Whether two vectors are matrices with the same elements in the same memory (local)."""
    if y is None or out is None or y.column is None or out.column is None:
        return False
    shadow = y.column.runtime.backend.shadow
    first, second = (shadow(column.stored(verb)) for column in (y.column, out.column))
    return y.column.desc == out.column.desc and (is_same_memory(first, second) or not first.size)


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


def _prepared(a: DistMatrix, operation: Operation, axis: Any) -> PreparedReduction:
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
