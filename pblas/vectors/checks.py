"""Vectors of levels 1 and 2: m x 1 and 1 x n matrices in any layout, and arrays that are equal on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pblas import errors
from pblas.arrays.reduction_plan import ReductionPlan
from pblas.arrays.reduction_run import PreparedReduction, combined, partial_results
from pblas.collectives.api import Exchange, GpuExchange
from pblas.core.checks import check_context, check_not_conjugated, shares_memory
from pblas.matrices.matrix import DistMatrix
from pblas.runtime.arrays import converted_array, equal_array
from pblas.runtime.runtime import Runtime, name_of, shared_descriptor

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.layouts.descriptor import MatrixDescriptor


class VectorKind(NamedTuple):
    """The properties of a vector on which plans depend."""

    size: int  # number of elements (global)
    column: MatrixDescriptor | None  # descriptor of the matrix as m x 1; None for an array (global)
    dtype: Dtype  # of the matrix, or to which the array was converted (global)
    conjugated: bool = False  # whether the matrix is a conjugated view (global)
    is_row: bool = False  # whether the matrix is 1 x n (global)

    def __repr__(self) -> str:
        if self.column is None:
            return f"array of {self.size} elements"
        flags = ", conjugated" * self.conjugated + ", a row" * self.is_row
        return f"{shared_descriptor(self.column)} of {name_of(self.dtype)}{flags}"


@dataclass(frozen=True, slots=True)
class VectorOperand:
    """A checked vector: a matrix of one column, or an array."""

    size: int  # number of elements (global)
    column: DistMatrix | None  # the matrix as m x 1, a view; None for an array (global)
    elements: Array | None = None  # the array, in host memory; None for a matrix (global)
    is_row: bool = False  # whether the matrix is 1 x n (global)

    @property
    def kind(self) -> VectorKind:
        """The properties on which plans depend (global)."""
        if self.column is None:
            assert self.elements is not None, "a vector is a matrix or an array"
            return VectorKind(self.size, None, self.elements.dtype)
        x = self.column
        return VectorKind(self.size, x.desc.without_lld, x.dtype, x.conjugated, self.is_row)

    def stored(self, opname: str) -> Array:
        """The array, or this rank's part of the matrix as it is in memory (local)."""
        if self.column is not None:
            return self.column.stored(opname)
        assert self.elements is not None, "a vector is a matrix or an array"
        return self.elements


class Columns:
    """The elements of m x 1 matrices on all ranks, in one exchange: see `Exchange`."""

    def __init__(self, kinds: Sequence[VectorKind], nprocs: int, rank: int) -> None:
        self._kinds, self._reductions = kinds, list[PreparedReduction]()
        for kind in kinds:
            assert kind.column is not None, "it is a matrix"
            plan = ReductionPlan(kind.column, "sum", 1, name_of(kind.dtype), nprocs)  # of rows of one element
            self._reductions.append(PreparedReduction(plan, rank))
        counts = [reduction.counts for reduction in self._reductions]
        self._dtype = np.result_type(*(reduction.dtype for reduction in self._reductions))
        self._exchange = Exchange(tuple(map(sum, zip(*counts, strict=True))), self._dtype, rank)
        self._spans = list(pairwise(accumulate(chain.from_iterable(zip(*counts, strict=True)), initial=0)))
        """Places of the elements, in the order of ranks, and of each rank in the order of matrices (global)."""

    def lay_out(self, runtime: Runtime, opname: str, columns: Sequence[Array]) -> None:
        """Copy this rank's elements to where peers read them, before an agreement (local)."""
        partials = [
            partial_results(reduction, runtime.backend.arrays, (x,))
            for reduction, x in zip(self._reductions, columns, strict=True)
        ]
        partial = partials[0] if len(partials) == 1 else np.concatenate(partials)
        self._exchange.lay_out(runtime, opname, partial.astype(self._dtype, copy=False))

    def stage(self) -> bool:
        """**Collective.** See `Exchange.stage`."""
        return self._exchange.stage()

    def collect(self) -> list[Array]:
        """**Collective.** The elements of each matrix."""
        gathered, count = self._exchange.collect(), len(self._kinds)
        results = []
        for number, (reduction, kind) in enumerate(zip(self._reductions, self._kinds, strict=True)):
            part = gathered
            if count > 1:
                part = np.concatenate([gathered[start:stop] for start, stop in self._spans[number::count]])
            if kind.dtype.kind != "c" and part.dtype.kind == "c":
                part = part.real
            elements = combined(reduction, part).astype(kind.dtype, copy=False)
            results.append(np.conj(elements) if kind.conjugated else elements)
        return results


class GpuColumns:
    """The elements of m x 1 matrices on all GPUs, by kernels on the caller's stream: see `GpuExchange`."""

    def __init__(self, kinds: Sequence[VectorKind], backend: HostRanks) -> None:
        lengths = (_lengths(kind, backend.size).counts for kind in kinds)
        self._exchanges = [
            GpuExchange(backend, kind.dtype, counts) for kind, counts in zip(kinds, lengths, strict=True)
        ]
        self.elements: list[Array] = [exchange.all for exchange in self._exchanges]
        """Those of each matrix, of one dimension, after `collect` (local)."""

    @staticmethod
    def serves(nprocs: int, kinds: Sequence[VectorKind], nbytes: int, *, push: bool) -> bool:
        """Whether kernels that read `nbytes` in all get vectors, each in pieces in the order of ranks (global)."""
        if any(kind.column is None or kind.conjugated for kind in kinds):
            return False
        if not GpuExchange.serves(nprocs, nbytes, sum(kind.size for kind in kinds), push=push):
            return False
        return all(_lengths(kind, nprocs).is_sequence for kind in kinds)

    def collect(self, runtime: Runtime, columns: Sequence[Array]) -> None:
        """**Collective.** `elements` := the matrices, of which these are this rank's parts."""
        for exchange, x in zip(self._exchanges, columns, strict=True):
            if exchange.own.size:  # of copies the first one counts
                runtime.backend.arrays.assign(x, exchange.own[:, None])
            exchange.run(runtime)


def _lengths(kind: VectorKind, nprocs: int) -> PreparedReduction:
    """The elements of a matrix of one column, as a reduction of rows of one element (global)."""
    assert kind.column is not None, "it is a matrix"
    return PreparedReduction(ReductionPlan(kind.column, "sum", 1, name_of(kind.dtype), nprocs), 0)


def is_in_blocks(desc: MatrixDescriptor) -> bool:
    """Whether each rank has a block of consecutive rows and columns, which no other rank has (global)."""
    return not any(z.is_replicated or z.nblocks > z.nprocs > 1 for z in (desc.rows, desc.columns))


def checked_vector(
    opname: str, name: str, value: Any, runtime: Runtime, dtype: Dtype | None, *, arrays: bool = True
) -> VectorOperand:
    """A value as a vector (local)."""
    kinds = "m x 1 or 1 x n DistMatrix" + (" or an array of one dimension" if arrays else "")
    if isinstance(value, DistMatrix):
        m, n = value.shape
        if 1 not in (m, n):
            raise errors.ArgumentError(f"{opname}: {name} must be an {kinds}, got {m} x {n}; {name}[:, j] is a column")
        check_context(opname, value, runtime)
        if dtype is not None and value.dtype != dtype:
            raise errors.DTypeError(
                f"{opname}: {name} is {value.dtype.name}, expected {dtype.name}; give all operands one dtype"
            )
        value.computed(opname)
        return VectorOperand(m * n, value if n == 1 else value.T, is_row=n != 1)
    if not arrays or np.ndim(value) != 1:
        got = f"{type(value).__name__} of {np.ndim(value)} dimensions" if arrays else type(value).__name__
        raise errors.ArgumentError(f"{opname}: {name} must be an {kinds}, got {got}")
    elements = equal_array(opname, name, value, runtime)
    return VectorOperand(
        len(elements), None, elements if dtype is None else converted_array(opname, name, elements, dtype)
    )


def check_size(opname: str, name: str, vector: VectorOperand, size: int, what: str) -> None:
    """Raise DescriptorError unless a vector has this number of elements (local)."""
    if vector.size != size:
        raise errors.DescriptorError(f"{opname}: {name} has {vector.size} elements, {what} {size}; make them agree")


def checked_columns(
    opname: str, runtime: Runtime, operands: Mapping[str, object], written: Sequence[str] = ()
) -> list[DistMatrix]:
    """The vectors of a call of level 1 as m x 1 matrices of one dtype and length (local)."""
    columns: list[DistMatrix] = []
    for name, value in operands.items():
        dtype = columns[0].dtype if columns else None
        vector = checked_vector(opname, name, value, runtime, dtype, arrays=False)
        assert vector.column is not None, "it is no array"
        if columns:
            check_size(opname, name, vector, columns[0].shape[0], "the other vector")
        if name in written:
            check_not_conjugated(opname, name, vector.column)
        columns.append(vector.column)
    _check_overlaps(opname, written, dict(zip(operands, columns, strict=True)))
    return columns


def _check_overlaps(opname: str, written: Sequence[str], columns: Mapping[str, DistMatrix]) -> None:
    """Raise ArgumentError if a vector that is written shares memory with another one (local)."""
    for name, (other, column) in product(written, columns.items()):
        if other != name:
            memory_of = column.runtime.backend.memory_of
            if shares_memory(memory_of(columns[name].stored(opname)), memory_of(column.stored(opname))):
                raise errors.ArgumentError(f"{opname}: {name} overlaps {other}; give it memory of its own")
