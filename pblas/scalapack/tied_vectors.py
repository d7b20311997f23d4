"""IPIV and TAU: vectors in plain arrays on each process, distributed as the rows or the columns of a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.backends.local_step import agreed
from pblas.errors import ArgumentError, PblasArgumentError
from pblas.matrices.scatter_gather import index_of
from pblas.scalapack.descriptors import BLOCK_CYCLIC_2D_INB, CTXT, Entries
from pblas.scalapack.local_arrays import Part

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.scalapack.grids import ProcessGrid

INTEGERS = ("int32", "int64")
"""Dtypes of IPIV."""


@dataclass(frozen=True, slots=True)
class TiedVector:
    """The place of some elements of a vector that is distributed along one axis of the grid.

    All processes along the other axis have a copy, or only those with one coordinate.

    Args:
        grid: the grid (global).
        part: this process's part of the vector, as a matrix of one column or of one row (global, but for its slices).
        axis: 0: the vector is a column, distributed along process columns; 1: a row (global).
        copy: coordinate along the other axis of a process whose copy is read (local).
        start: number of the first element, from 1 (global).
    """

    grid: ProcessGrid
    part: Part
    axis: int
    copy: int
    start: int

    @classmethod
    def of(cls, grid: ProcessGrid, entries: Entries, axis: int, copy: int, start: int, count: int) -> TiedVector:
        """The elements start..start+count-1, from 1, of a vector that is distributed as one axis of a descriptor."""
        _, _, m, n, imb, inb, mb, nb, rsrc, csrc, _ = entries.values
        ctxt = entries[CTXT]
        if axis == 0:
            column = Entries((BLOCK_CYCLIC_2D_INB, ctxt, m, 1, imb, 1, mb, 1, rsrc, 0, 1))
            return cls(grid, Part.of(grid, column, start, 1, count, 1), axis, copy, start)
        row = Entries((BLOCK_CYCLIC_2D_INB, ctxt, 1, n, 1, inb, 1, nb, 0, csrc, 1))
        return cls(grid, Part.of(grid, row, 1, start, 1, count), axis, copy, start)

    @property
    def _slice(self) -> slice:
        """The elements of this process's array (local)."""
        return self.part.columns if self.axis else self.part.rows

    def _indices(self) -> Any:
        """The elements that this process has, counted from 0 from the first one on (local)."""
        desc = self.part.desc.submatrix(*self.part.bounds)
        return index_of(desc.global_ranges(self.grid.runtime.rank)[self.axis])

    def check(self, name: str, array: Any, dtypes: tuple[str, ...], *, written: bool) -> None:
        """Raise ArgumentError unless an array has room for this process's part (local)."""
        size = self._slice.stop
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.name not in dtypes or len(array) < size:
            got = (
                f"{array.dtype.name} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            )
            kinds = " or ".join(dtypes)
            raise ArgumentError(f"{name} must be a NumPy array of {size} {kinds}, in one dimension, got {got}")
        if written and not array.flags.writeable:
            raise ArgumentError(f"{name} is an array that cannot be written; pass a copy")

    def store(self, array: Array, values: Array) -> None:
        """Write this process's part of the vector, of which all processes have all elements (local)."""
        array[self._slice] = values[self._indices()]

    def collect(self, verb: str, what: str, array: Array, count: int) -> Array:
        """**Collective.** The elements on all processes."""
        runtime = self.grid.runtime
        with runtime.local_step(verb):
            has_copy = self.grid.grid.coordinates(runtime.rank)[1 - self.axis] == self.copy
            part = (self._indices(), array[self._slice]) if has_copy else None
            vector = np.zeros(count, array.dtype)
        runtime.agree(f"{verb}: {what}", {})
        for indices, values in filter(None, runtime.backend.gather(part)):
            vector[indices] = values
        return vector


def collected_pivots(vector: TiedVector, verb: str, position: int, ipiv: Array, count: int, rows: int) -> Array:
    """**Collective.** Exchanges of rows on all processes, which count from 1 at the first row."""
    pivots, base = vector.collect(verb, "IPIV", ipiv, count).astype(np.intp), vector.start
    pivots -= base - 1
    wrong = np.flatnonzero((pivots < 1) | (pivots > rows))
    if wrong.size:
        k = int(wrong[0])
        text = f"{verb}: IPIV holds {pivots[k] + base - 1} for row {k + base}; it must be in {base}..{base + rows - 1}"
        raise agreed(PblasArgumentError(text, -position))
    return pivots.astype(np.intc)
