"""ScaLAPACK's descriptors, lists of integers, and the local arrays that they describe."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pblas.core.checks import check_written
from pblas.errors import ArgumentError, PblasArgumentError
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.layouts.index import numroc
from pblas.scalapack.grids import ProcessGrid, checked_integer, gridinfo

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array, Dtype
    from pblas.runtime.runtime import Runtime

BLOCK_CYCLIC_2D, BLOCK_CYCLIC_2D_INB = 1, 2
DTYPE, CTXT, M, N, IMB, INB, MB, NB, RSRC, CSRC, LLD = range(1, 12)
"""Positions in a descriptor of eleven entries, counted from 1, as in error numbers."""

NAMES = ("DTYPE_", "CTXT_", "M_", "N_", "IMB_", "INB_", "MB_", "NB_", "RSRC_", "CSRC_", "LLD_")
_MAX_PARTS = 64  # entries in the cache of each grid


@dataclass(frozen=True, slots=True)
class Entries:
    """A descriptor in its long form, with eleven entries.

    >>> Entries.read([1, 0, 5, 8, 2, 3, 0, 0, 4]).values
    (2, 0, 5, 8, 2, 3, 2, 3, 0, 0, 4)
    """

    values: tuple[int, ...]  # the entries (global, except CTXT and LLD)

    def __getitem__(self, entry: int) -> int:
        """The entry at a position, 1 to 11."""
        return self.values[entry - 1]

    @classmethod
    def read(cls, desc: Any) -> Entries | None:
        """A list, tuple or array as a descriptor; None for anything else."""
        try:
            values = tuple(operator.index(value) for value in desc)
        except Exception:  # noqa: BLE001 - whatever an object of another library raises
            return None
        if values[:1] == (BLOCK_CYCLIC_2D,) and len(values) >= 9:
            ctxt, m, n, mb, nb, rsrc, csrc, lld = values[1:9]
            return cls((BLOCK_CYCLIC_2D_INB, ctxt, m, n, mb, nb, mb, nb, rsrc, csrc, lld))
        if values[:1] == (BLOCK_CYCLIC_2D_INB,) and len(values) >= 11:
            return cls(values[:11])
        return None

    def matrix(self, grid: Grid, order: Literal["F", "C"] = "F") -> MatrixDescriptor:
        """The same distribution as a `MatrixDescriptor`; the entries must be valid."""
        _, _, m, n, imb, inb, mb, nb, rsrc, csrc, _ = self.values
        return MatrixDescriptor(m, n, mb, nb, grid, rsrc, csrc, order, imb=imb, inb=inb)


def handle(desc: Any) -> Any:
    """The CTXT entry of a descriptor, or the second element of any other sequence; None for other objects.

    >>> handle([1, 3, 8, 8, 2, 2, 0, 0, 8]), handle([7, -1]), handle(None)
    (3, -1, None)
    """
    try:
        return desc[CTXT - 1]
    except Exception:  # noqa: BLE001 - whatever an object of another library raises
        return None


def descinit(m: int, n: int, mb: int, nb: int, irsrc: int, icsrc: int, ictxt: int, lld: int) -> list[int]:
    """A descriptor of nine integers, checked as far as one process can.

    Args:
        m, n: rows and columns (global), >= 0.
        mb, nb: rows and columns per block (global), >= 1.
        irsrc: process row that owns row 1 (global), 0..nprow-1.
        icsrc: process column that owns column 1 (global), 0..npcol-1.
        ictxt: handle of the grid (local).
        lld: leading dimension of the local array (local), >= numroc(m, mb, myrow, irsrc, nprow) and >= 1.

    Returns:
        [DTYPE, CTXT, M, N, MB, NB, RSRC, CSRC, LLD].

    Raises:
        PblasArgumentError: a wrong argument, with the error number of ScaLAPACK's descinit, which counts DESC as
            argument 1 (local).

    Source: ScaLAPACK TOOLS, descinit.
    """
    nprow, npcol, myrow, _ = gridinfo(ictxt)
    sizes = (("M", m, 0, 2), ("N", n, 0, 3), ("MB", mb, 1, 4), ("NB", nb, 1, 5))
    for name, value, least, position in sizes:
        checked_integer("descinit", name, value, position, least)
    if nprow == -1:
        raise PblasArgumentError(
            f"descinit: ICTXT must be the handle of a grid that this process is in, got {ictxt!r}", -8
        )
    for name, value, nprocs, position in (("IRSRC", irsrc, nprow, 6), ("ICSRC", icsrc, npcol, 7)):
        checked_integer("descinit", name, value, position, 0, nprocs - 1)
    checked_integer("descinit", "LLD", lld, 9, None)
    least = max(1, numroc(m, mb, myrow, irsrc, nprow))
    if lld < least:
        raise PblasArgumentError(
            f"descinit: LLD must be at least max(1, numroc({m}, {mb}, {myrow}, {irsrc}, {nprow})) = {least}, got {lld}",
            -9,
        )
    return [BLOCK_CYCLIC_2D, int(ictxt), m, n, mb, nb, irsrc, icsrc, lld]


@dataclass(frozen=True, slots=True)
class Part:
    """The rows and columns that this process has of a matrix and of a submatrix, from the integers of a call."""

    desc: MatrixDescriptor  # descriptor of the matrix, stored by columns (global)
    bounds: tuple[int, int, int, int]  # (i0, i1, j0, j1) of the submatrix, half-open (global)
    shape: tuple[int, int]  # rows and columns of the matrix that the process has (local)
    rows: slice  # local rows of the submatrix (local)
    columns: slice  # local columns of the submatrix (local)

    @classmethod
    def of(cls, grid: ProcessGrid, entries: Entries, i: int, j: int, m: int, n: int) -> Part:
        """The part of the m x n submatrix that begins at (i, j), counted from 1; cached for each grid (local).

        An empty submatrix may begin anywhere, also outside the matrix.
        """
        key = entries.values[2:10], i, j, m, n
        part: Part | None = grid.parts.get(key)
        if part is None:
            desc, rank = entries.matrix(grid.grid), grid.runtime.rank
            i0, j0 = (i - 1, j - 1) if m and n else (0, 0)
            i1, j1 = min(i0 + m, desc.m), min(j0 + n, desc.n)
            (row0, column0), (row1, column1) = (desc.local_offset(*corner, rank) for corner in ((i0, j0), (i1, j1)))
            bounds, shape = (i0, i1, j0, j1), desc.local_shape(rank)
            part = cls(desc, bounds, shape, slice(row0, row1), slice(column0, column1))
            if len(grid.parts) >= _MAX_PARTS:
                grid.parts.clear()
            grid.parts[key] = part
        return part


@dataclass(slots=True)
class Local:
    """This rank's local array of an operand."""

    array: Array  # view of the caller's array with the rows and columns of the descriptor (local)
    copied: Array | None = None  # the copy to use instead, if the array cannot be used in place; otherwise None (local)


def checked_part(
    runtime: Runtime, name: str, value: Any, dtype: Dtype, shape: tuple[int, int], lld: int, *, written: bool
) -> Array:
    """This rank's part of a matrix, a view of the caller's array (local).

    A one-dimensional array has columns that begin `lld` elements apart. An array that is `written` must be writable,
    and its elements must not overlap.

    Raises:
        ArgumentError: not an array, wrong dtype or memory, too small, or not writable.
    """
    backend = runtime.backend
    try:
        array = backend.as_array(value)
    except (ArgumentError, TypeError, ValueError) as caught:
        raise ArgumentError(f"{name} must be an array: {caught}") from None
    if array.dtype != dtype or not backend.is_here(array):
        where = "" if backend.is_here(array) else " in host memory"
        raise ArgumentError(f"{name} must be {dtype} for backend {backend.name!r}, got {array.dtype}{where}")
    if written and not (backend.is_here(value) or hasattr(value, "__cuda_array_interface__")):
        raise ArgumentError(f"{name} is written and must be an array, got a {type(value).__name__}")
    try:
        part = cut(array, shape, lld)
    except (OverflowError, ValueError):  # more rows or columns than any array can have
        part = None
    if part is None:
        raise ArgumentError(
            f"{name} must have room for {shape[0]} x {shape[1]} elements (one dimension: LLD_ = {lld} for each "
            f"column), got an array of shape {array.shape}"
        )
    if written:
        check_written(name, part)
    return part


def cut(array: Array, shape: tuple[int, int], lld: int) -> Array | None:
    """The leading rows and columns of a local array, without a copy; None if the array is too small.

    The array has two dimensions, or one dimension with columns that begin `lld` elements apart.

    >>> import numpy as np
    >>> cut(np.arange(12.0), (2, 3), 4).tolist()
    [[0.0, 4.0, 8.0], [1.0, 5.0, 9.0]]
    """
    m_loc, n_loc = shape
    if 0 in shape and array.ndim:
        return array[:0].reshape(shape)
    if array.ndim == 1 and lld >= m_loc and array.size >= lld * n_loc and array.strides == (array.itemsize,):
        return array[: lld * n_loc].reshape(n_loc, lld).T[:m_loc]
    if array.ndim == 2 and array.shape[0] >= m_loc and array.shape[1] >= n_loc:
        return array[:m_loc, :n_loc]
    return None
