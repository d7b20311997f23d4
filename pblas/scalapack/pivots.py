"""IPIV: exchanges of rows or columns, distributed as ScaLAPACK does, in a plain array of integers on each process."""

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

_INTEGERS = ("int32", "int64")


@dataclass(frozen=True, slots=True)
class Pivots:
    """The place of some elements of IPIV, a vector that is distributed along one axis of the grid.

    All processes along the other axis have a copy, or only those with one coordinate.

    Args:
        grid: the grid (global).
        part: this process's part of the vector, as a matrix of one column or of one row (global, but for its slices).
        axis: 0: the vector is a column, distributed along process columns; 1: a row (global).
        copy: coordinate along the other axis of a process whose copy is read (local).
        base: the pivot, as IPIV counts, that stands for the first row (global).
    """

    grid: ProcessGrid
    part: Part
    axis: int
    copy: int
    base: int

    @classmethod
    def of(cls, grid: ProcessGrid, entries: Entries, axis: int, copy: int, start: int, count: int) -> Pivots:
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

    def check(self, ipiv: Any, *, written: bool) -> None:
        """Raise ArgumentError unless an array has room for this process's part (local)."""
        size = self._slice.stop
        if not isinstance(ipiv, np.ndarray) or ipiv.ndim != 1 or ipiv.dtype.name not in _INTEGERS or len(ipiv) < size:
            got = f"{ipiv.dtype.name} of shape {ipiv.shape}" if isinstance(ipiv, np.ndarray) else type(ipiv).__name__
            raise ArgumentError(f"IPIV must be a NumPy array of {size} int32 or int64, in one dimension, got {got}")
        if written and not ipiv.flags.writeable:
            raise ArgumentError("IPIV is an array that cannot be written; pass a copy")

    def store(self, ipiv: Array, pivots: Array) -> None:
        """Write pivots, which count from 1 at the first row, into this process's array (local)."""
        ipiv[self._slice] = pivots[self._indices()] + (self.base - 1)

    def collect(self, verb: str, position: int, ipiv: Array, count: int, rows: int) -> Array:
        """**Collective.** The pivots on all processes, which count from 1 at the first row.

        Args:
            verb: name of the call (global).
            position: of IPIV among its arguments (global).
            ipiv: this process's array (local).
            count: number of pivots (global).
            rows: of the matrix that they exchange (global).

        Raises:
            PblasArgumentError: a pivot that is no row of the matrix; on all processes.
        """
        runtime = self.grid.runtime
        with runtime.local_step(verb):
            has_copy = self.grid.grid.coordinates(runtime.rank)[1 - self.axis] == self.copy
            part = (self._indices(), ipiv[self._slice]) if has_copy else None
            pivots = np.zeros(count, np.intp)
        runtime.agree(f"{verb}: IPIV", {})
        for indices, values in filter(None, runtime.backend.gather(part)):
            pivots[indices] = values
        pivots -= self.base - 1
        wrong = np.flatnonzero((pivots < 1) | (pivots > rows))
        if wrong.size:
            k = int(wrong[0])
            text = (
                f"{verb}: IPIV holds {pivots[k] + self.base - 1} for row {k + self.base}; it must be in "
                f"{self.base}..{self.base + rows - 1}"
            )
            raise agreed(PblasArgumentError(text, -position))
        return pivots.astype(np.intc)
