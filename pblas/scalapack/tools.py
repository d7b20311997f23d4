"""ScaLAPACK's tools: index maps that count from 1, single elements, and printing as Fortran does."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.errors import ArgumentError, PblasArgumentError
from pblas.layouts import index
from pblas.scalapack import descriptors, routines
from pblas.scalapack.arguments import TYPES, Call, checked_number, of_types, unchecked
from pblas.scalapack.descriptors import Entries, checked_part
from pblas.scalapack.grids import ProcessGrid, checked_integer, find

if TYPE_CHECKING:
    from pblas.backends.dtypes import Number
    from pblas.layouts.descriptor import MatrixDescriptor

Desc = Sequence[int]
_MOST = 100  # exponents of two digits, and their letter, end below this


def numroc(n: int, nb: int, iproc: int, isrcproc: int, nprocs: int) -> int:
    """Number of rows (or columns) of an n-long dimension that process `iproc` owns.

    Args:
        n: length of the dimension, elements (global), >= 0.
        nb: block size, elements (global), >= 1.
        iproc: process coordinate, from 0 (local).
        isrcproc: coordinate that owns the first element (global).
        nprocs: number of processes along the dimension (global).

    Raises:
        PblasArgumentError: n is not an integer >= 0 (local).
        LayoutError: another argument is out of range (local).

    Source: ScaLAPACK TOOLS, numroc.

    >>> [numroc(9, 2, p, 0, 2) for p in (0, 1)]
    [5, 4]
    """
    _check_index("numroc", "N", n, 0)
    return index.numroc(n, nb, iproc, isrcproc, nprocs)


def indxg2l(indxglob: int, nb: int, iproc: int, isrcproc: int, nprocs: int) -> int:
    """Local index, from 1, of the element `indxglob`, from 1, on the process that owns it.

    Args:
        indxglob: index (global).
        nb, nprocs: see `numroc` (global).
        iproc, isrcproc: ignored, as in ScaLAPACK.

    Source: ScaLAPACK TOOLS, indxg2l.

    >>> [indxg2l(g, 2, 0, 0, 2) for g in range(1, 7)]
    [1, 2, 1, 2, 3, 4]
    """
    del iproc, isrcproc
    _check_index("indxg2l", "INDXGLOB", indxglob, 1)
    return index.indxg2l(indxglob - 1, nb, nprocs) + 1


def indxg2p(indxglob: int, nb: int, iproc: int, isrcproc: int, nprocs: int) -> int:
    """Coordinate of the process that owns the element `indxglob`, from 1.

    Args:
        indxglob: index (global).
        iproc: ignored, as in ScaLAPACK.
        nb, isrcproc, nprocs: see `numroc` (global).

    Source: ScaLAPACK TOOLS, indxg2p.

    >>> [indxg2p(g, 2, 0, 1, 2) for g in range(1, 7)]
    [1, 1, 0, 0, 1, 1]
    """
    del iproc
    _check_index("indxg2p", "INDXGLOB", indxglob, 1)
    return index.indxg2p(indxglob - 1, nb, isrcproc, nprocs)


def indxl2g(indxloc: int, nb: int, iproc: int, isrcproc: int, nprocs: int) -> int:
    """Global index, from 1, of the element that process `iproc` keeps at `indxloc`, from 1.

    Args:
        indxloc: index (local).
        nb, iproc, isrcproc, nprocs: see `numroc`.

    Source: ScaLAPACK TOOLS, indxl2g.

    >>> [indxl2g(l, 2, 1, 0, 2) for l in range(1, 5)]
    [3, 4, 7, 8]
    """
    _check_index("indxl2g", "INDXLOC", indxloc, 1)
    return index.indxl2g(indxloc - 1, nb, iproc, isrcproc, nprocs) + 1


def infog2l(
    grindx: int, gcindx: int, desc: Desc, nprow: int, npcol: int, myrow: int, mycol: int
) -> tuple[int, int, int, int]:
    """Owner of the element (grindx, gcindx), and the local start of a submatrix that begins there.

    Args:
        grindx, gcindx: row and column, from 1 (global).
        desc: descriptor of 9 or 11 integers (global).
        nprow, npcol: process rows and columns (global).
        myrow, mycol: this process's row and column (local).

    Returns:
        (lrindx, lcindx, rsrc, csrc): local indices from 1 of the first row and column at or after the element, and
        the coordinates of its owner.

    Raises:
        PblasArgumentError: desc is no descriptor, or an index is less than 1 (local).

    Source: ScaLAPACK TOOLS, infog2l.

    >>> infog2l(3, 4, [1, 0, 5, 8, 2, 3, 0, 0, 4], 2, 2, 1, 0)
    (1, 4, 1, 1)
    """
    entries = Entries.read(desc)
    if entries is None:
        raise PblasArgumentError(f"infog2l: DESC must be a descriptor of 9 or 11 integers, got {desc!r}", -301)
    checked_integer("infog2l", "GRINDX", grindx, 1, 1)
    checked_integer("infog2l", "GCINDX", gcindx, 2, 1)
    _, _, _, _, imb, inb, mb, nb, rsrc, csrc, _ = entries.values
    return (
        index.numroc(grindx - 1, mb, myrow, rsrc, nprow, imb) + 1,
        index.numroc(gcindx - 1, nb, mycol, csrc, npcol, inb) + 1,
        index.indxg2p(grindx - 1, mb, rsrc, nprow, imb),
        index.indxg2p(gcindx - 1, nb, csrc, npcol, inb),
    )


@of_types(routines.ELSET, call=unchecked)
def pxelset(call: tuple[Any, ...]) -> None:
    """A(ia, ja) := alpha on the process that owns the element; the others do nothing (local).

    Raises:
        PblasArgumentError: a wrong argument, raised on this rank only (local).

    Source: ScaLAPACK TOOLS, p?elset.
    """
    opname, a, ia, ja, desca, alpha = call
    entries = Entries.read(desca)
    grid = None if entries is None else find(entries[descriptors.CTXT])
    if entries is None or grid is None:
        raise PblasArgumentError(
            f"{opname}: DESCA must be a descriptor on a grid that this process is in, got {desca!r}", -402
        )
    desc = entries.matrix(grid.grid)
    for name, value, size, position in (("IA", ia, desc.m, 2), ("JA", ja, desc.n, 3)):
        checked_integer(opname, name, value, position, 1, size)
    dtype, shape, lld = TYPES[opname[1]], desc.local_shape(grid.runtime.rank), entries[descriptors.LLD]
    position = 1
    try:
        part = checked_part(grid.runtime, "A", a, dtype, shape, lld, written=True)
        position = 5
        element = checked_number("ALPHA", alpha, dtype)
    except ArgumentError as caught:
        raise PblasArgumentError(f"{opname}: {caught}", -position) from None
    local_index = _local_index(desc, ia - 1, ja - 1, grid)
    if local_index is not None:
        part[local_index] = element


@of_types(routines.ELGET)
def pxelget(call: Call) -> Number:
    """**Collective.** A(ia, ja) on the processes of `scope`, relative to the owner; 0 on the other processes.

    Returns:
        The element, which is the third argument in Fortran.

    Source: ScaLAPACK TOOLS, p?elget.
    """
    grid, [matrix] = call.grid.grid, call.operands()
    with call.step("read"):
        owner = matrix.desc.owner(0, 0)
        is_owner = call.runtime.rank == owner
        dry = call.runtime.backend.dry
        if dry is not None:
            element = dry.known(call.opname, np.zeros((), call.dtype))
        else:
            element = call.runtime.backend.reading(matrix.local)[0, 0] if is_owner else None
    value = call.runtime.backend.broadcast_object(element, owner)
    coordinates, owner_coordinates = grid.coordinates(call.runtime.rank), grid.coordinates(owner)
    inside = {
        "R": coordinates[0] == owner_coordinates[0],
        "C": coordinates[1] == owner_coordinates[1],
        "A": True,
        " ": coordinates == owner_coordinates,
    }
    return value if inside[call["SCOPE"]] else call.dtype.type(0)


@of_types(routines.LAPRNT)
def pxlaprnt(call: Call) -> None:
    """**Collective.** Print sub(A) on one process, column by column: one element of A per line, as Fortran does.

    A line is the name, the indices in A, and the element: `C(     3,     5)=      0.530000000000000000D+02`.

    Source: ScaLAPACK TOOLS, p?laprnt.
    """
    [matrix] = call.operands()
    whole = matrix.to_global(root=call.grid.grid.rank(call["IRPRNT"], call["ICPRNT"]))
    with call.step("print"):
        out = sys.stdout if isinstance(call["NOUT"], int) else call["NOUT"]
        for (j, i), element in np.ndenumerate(whole.T) if whole is not None else ():
            out.write(f"{call['CMATNM']}({call['IA'] + i:6d},{call['JA'] + j:6d})={_number(element)}\n")


def _check_index(opname: str, name: str, value: object, least: int) -> None:
    """Raise PblasArgumentError if an index is less than `least`; `pblas.layouts.index` checks arrays of indices."""
    if not getattr(value, "ndim", 0):
        checked_integer(opname, name, value, 1, least)


def _number(value: Any) -> str:
    """A number as p?laprnt writes it: by D30.18 in double precision, by E16.8 in single."""
    form = ("D", 30, 18) if value.real.dtype.itemsize == 8 else ("E", 16, 8)
    if value.dtype.kind == "c":
        return f"{edited(float(value.real), *form)}+i*({edited(float(value.imag), *form)})"
    return edited(float(value), *form)


def _local_index(desc: MatrixDescriptor, i: int, j: int, grid: ProcessGrid) -> tuple[int, int] | None:
    """(i_loc, j_loc) of an element that this process holds, alone or as a replica; None otherwise (local)."""
    coordinates = grid.grid.coordinates(grid.runtime.rank)
    for split, g, p in ((desc.rows, i, coordinates[0]), (desc.columns, j, coordinates[1])):
        if not split.is_replicated and split.owner(g) != p:
            return None
    return desc.rows.local_start(i, coordinates[0]), desc.columns.local_start(j, coordinates[1])


def edited(x: float, letter: str, width: int, digits: int) -> str:
    """A number as 0.ddd and a power of ten, after blanks; without the letter if the exponent has three digits.

    Source: Fortran 2018, 13.7.2.3.3; infinities and NaN as GNU Fortran writes them.

    >>> edited(53.0, "D", 30, 18), edited(-1e100, "E", 16, 8)
    ('      0.530000000000000000D+02', ' -0.10000000+101')
    """
    if not math.isfinite(x):
        return ("NaN" if math.isnan(x) else "Infinity" if x > 0 else "-Infinity").rjust(width)
    mantissa, _, exponent = f"{abs(x):.{digits - 1}e}".partition("e")
    power = int(exponent) + (x != 0)
    tail = f"{letter}{power:+03d}" if abs(power) < _MOST else f"{power:+04d}"
    sign = "-" * (math.copysign(1.0, x) < 0)
    return f"{sign}0.{mantissa.replace('.', '')}{tail}".rjust(width)
