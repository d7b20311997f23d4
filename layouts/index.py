"""The index maps of one block-cyclic dimension, by their ScaLAPACK names, 0-based.

Element g of an n-long dimension is in block 0 if g < INB, else in block 1 + (g - INB) // NB. Block b belongs to
process coordinate (ISRCPROC + b) % NPROCS. INB is the size of the first block; by default it is NB.

The formulas use only + - * // % and comparisons, so an index may be an int or an array of signed integers of any
library. Arithmetic on an array keeps its dtype, which must be wide enough for the results.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, overload

from pblas.layouts.checks import checked_index, checked_int


class IntegerArray(Protocol):
    """An array of integers with elementwise arithmetic and a dtype, of NumPy, CuPy or another library."""

    @property
    def dtype(self) -> Any:
        """Element type."""

    def __floordiv__(self, other: Any, /) -> Any:
        """Elementwise integer division."""

    def __mod__(self, other: Any, /) -> Any:
        """Elementwise remainder."""


ArrayT = TypeVar("ArrayT", bound=IntegerArray)
I = TypeVar("I", bound=int | IntegerArray)
J = TypeVar("J", bound=int | IntegerArray)


@overload
def numroc(n: int, nb: int, iproc: int, isrcproc: int, nprocs: int, inb: int | None = None) -> int: ...
@overload
def numroc(n: ArrayT, nb: int, iproc: int, isrcproc: int, nprocs: int, inb: int | None = None) -> ArrayT: ...
def numroc(n: Any, nb: int, iproc: int, isrcproc: int, nprocs: int, inb: int | None = None) -> Any:
    """Number of rows (or columns) of an n-long dimension that process `iproc` owns.

    numroc(g, ...) is also the local index of the first owned element at or after global index g: the number of owned
    elements before g.

    Args:
        n: length of the dimension, elements (global), n >= 0; int or integer array.
        nb: block size, elements (global), nb >= 1.
        iproc: process coordinate along this dimension (local), 0 <= iproc < nprocs.
        isrcproc: coordinate that owns element 0: RSRC or CSRC (global); -1: every process owns everything.
        nprocs: processes along this dimension (global), nprocs >= 1.
        inb: size of the first block, elements (global), inb >= 1; None: nb.

    Returns:
        Elements owned, possibly 0. Over all iproc they sum to n, unless isrcproc is -1.

    Raises:
        LayoutError: n < 0, nb < 1, inb < 1, or a coordinate outside 0..nprocs-1.

    Source: ScaLAPACK TOOLS, numroc.

    >>> [numroc(9, 2, p, 0, 2) for p in (0, 1)]
    [5, 4]
    >>> [numroc(9, 2, p, 0, 2, inb=1) for p in (0, 1)]
    [5, 4]
    >>> numroc(9, 2, 1, -1, 2)
    9
    """
    checked_index("numroc", "n", n)
    nb, nprocs, isrcproc, inb = _checked("numroc", nb, nprocs, isrcproc, inb)
    iproc = checked_int("numroc", "iproc", iproc, 0, nprocs - 1, why="nprocs - 1")
    return owned(n, nb, iproc, isrcproc, nprocs, inb)


def owned(n: Any, nb: int, iproc: int, isrcproc: int, nprocs: int, inb: int) -> Any:
    """`numroc` without the checks, which cost more than the formula: planning calls it thousands of times."""
    if isrcproc == -1:
        return n
    beyond = (n > inb) * (n - inb)
    nblocks = beyond // nb
    count = nblocks // nprocs * nb
    # The process after the source owns block 1, so the blocks of size nb are counted from that process.
    dist = (nprocs + iproc - isrcproc - 1) % nprocs
    extra = nblocks % nprocs
    count = count + (dist < extra) * nb + (dist == extra) * (beyond % nb)
    if iproc == isrcproc:
        count = count + n - beyond
    return count


@overload
def indxg2p(indxglob: int, nb: int, isrcproc: int, nprocs: int, inb: int | None = None) -> int: ...
@overload
def indxg2p(indxglob: ArrayT, nb: int, isrcproc: int, nprocs: int, inb: int | None = None) -> ArrayT: ...
def indxg2p(indxglob: Any, nb: int, isrcproc: int, nprocs: int, inb: int | None = None) -> Any:
    """Coordinate of the process that owns element `indxglob`.

    Args:
        indxglob: index of the element (global), >= 0; int or integer array.
        nb: block size, elements (global), nb >= 1.
        isrcproc: coordinate that owns element 0 (global); -1: every process owns everything.
        nprocs: processes along this dimension (global), nprocs >= 1.
        inb: size of the first block, elements (global), inb >= 1; None: nb.

    Returns:
        The coordinate, 0 <= p < nprocs; 0 if every process owns the element.

    Raises:
        LayoutError: an argument out of its range.

    Source: ScaLAPACK TOOLS, indxg2p.

    >>> [indxg2p(g, 2, 1, 2) for g in range(6)]
    [1, 1, 0, 0, 1, 1]
    """
    checked_index("indxg2p", "indxglob", indxglob)
    nb, nprocs, isrcproc, inb = _checked("indxg2p", nb, nprocs, isrcproc, inb)
    if isrcproc == -1:
        return 0 * indxglob
    block = indxglob // nb if inb == nb else (indxglob >= inb) * (1 + (indxglob - inb) // nb)
    place = isrcproc + block
    return place - place // nprocs * nprocs  # NumPy divides by a number quickly, but has no such remainder


@overload
def indxg2l(indxglob: int, nb: int, nprocs: int, inb: int | None = None) -> int: ...
@overload
def indxg2l(indxglob: ArrayT, nb: int, nprocs: int, inb: int | None = None) -> ArrayT: ...
def indxg2l(indxglob: Any, nb: int, nprocs: int, inb: int | None = None) -> Any:
    """Local index of element `indxglob` on the process that owns it.

    It depends neither on the source process nor on the owner. In a replicated dimension it equals the global index:
    pass nprocs=1.

    Args:
        indxglob: index of the element (global), >= 0; int or integer array.
        nb: block size, elements (global), nb >= 1.
        nprocs: processes along this dimension (global), nprocs >= 1.
        inb: size of the first block, elements (global), inb >= 1; None: nb.

    Returns:
        The local index, >= 0.

    Raises:
        LayoutError: an argument out of its range.

    Source: ScaLAPACK TOOLS, indxg2l.

    >>> [indxg2l(g, 2, 2) for g in range(6)]
    [0, 1, 0, 1, 2, 3]
    """
    checked_index("indxg2l", "indxglob", indxglob)
    nb, nprocs, _, inb = _checked("indxg2l", nb, nprocs, 0, inb)
    if inb == nb:
        block = indxglob // nb
        return indxglob - (block - block // nprocs) * nb
    later = indxglob >= inb
    block = later * (1 + (indxglob - inb) // nb)
    within = (indxglob < inb) * indxglob + later * ((indxglob - inb) % nb)
    # Only the source process holds the first block, whose size is inb and not nb.
    return block // nprocs * nb + later * (block % nprocs == 0) * (inb - nb) + within


@overload
def indxl2g(indxloc: int, nb: int, iproc: int, isrcproc: int, nprocs: int, inb: int | None = None) -> int: ...
@overload
def indxl2g(indxloc: ArrayT, nb: int, iproc: int, isrcproc: int, nprocs: int, inb: int | None = None) -> ArrayT: ...
def indxl2g(indxloc: Any, nb: int, iproc: int, isrcproc: int, nprocs: int, inb: int | None = None) -> Any:
    """Global index of the element that process `iproc` stores at local index `indxloc`.

    Args:
        indxloc: index of the element (local), >= 0; int or integer array.
        nb: block size, elements (global), nb >= 1.
        iproc: process coordinate along this dimension (local), 0 <= iproc < nprocs.
        isrcproc: coordinate that owns element 0 (global); -1: every process owns everything.
        nprocs: processes along this dimension (global), nprocs >= 1.
        inb: size of the first block, elements (global), inb >= 1; None: nb.

    Returns:
        The global index. It may be beyond the end of the dimension, whose length is no argument.

    Raises:
        LayoutError: an argument out of its range.

    Source: ScaLAPACK TOOLS, indxl2g.

    >>> [indxl2g(l, 2, 1, 0, 2) for l in range(4)]
    [2, 3, 6, 7]
    """
    checked_index("indxl2g", "indxloc", indxloc)
    nb, nprocs, isrcproc, inb = _checked("indxl2g", nb, nprocs, isrcproc, inb)
    iproc = checked_int("indxl2g", "iproc", iproc, 0, nprocs - 1, why="nprocs - 1")
    return stored(indxloc, nb, iproc, isrcproc, nprocs, inb)


def stored(indxloc: Any, nb: int, iproc: int, isrcproc: int, nprocs: int, inb: int) -> Any:
    """`indxl2g` without the checks, for the same reason as `owned`."""
    if isrcproc == -1:
        return indxloc
    dist = (nprocs + iproc - isrcproc) % nprocs
    if dist == 0:
        beyond = indxloc - inb
        later = inb + ((beyond // nb + 1) * nprocs - 1) * nb + beyond % nb
        return (indxloc < inb) * indxloc + (indxloc >= inb) * later
    return inb + (indxloc // nb * nprocs + dist - 1) * nb + indxloc % nb


def _checked(where: str, nb: int, nprocs: int, isrcproc: int, inb: int | None) -> tuple[int, int, int, int]:
    """nb, nprocs, isrcproc and inb, checked; inb None becomes nb."""
    nb = checked_int(where, "nb", nb, 1)
    nprocs = checked_int(where, "nprocs", nprocs, 1)
    isrcproc = checked_int(where, "isrcproc", isrcproc, -1, nprocs - 1, why="nprocs - 1")
    return nb, nprocs, isrcproc, nb if inb is None else checked_int(where, "inb", inb, 1)
