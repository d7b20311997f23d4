"""ScaLAPACK's descriptors, lists of integers: `descinit` makes them, the routines read them."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Literal

from pblas.errors import PblasArgumentError
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.layouts.index import numroc
from pblas.scalapack.grids import checked_integer, gridinfo

BLOCK_CYCLIC_2D, BLOCK_CYCLIC_2D_INB = 1, 2
DTYPE, CTXT, M, N, IMB, INB, MB, NB, RSRC, CSRC, LLD = range(1, 12)
"""Positions in a descriptor of eleven entries, counted from 1, as in error numbers."""

NAMES = ("DTYPE_", "CTXT_", "M_", "N_", "IMB_", "INB_", "MB_", "NB_", "RSRC_", "CSRC_", "LLD_")


@dataclass(frozen=True, slots=True)
class Entries:
    """A descriptor in its long form, with eleven entries.

    Args:
        values: the entries (global, except CTXT and LLD).

    >>> Entries.read([1, 0, 5, 8, 2, 3, 0, 0, 4]).values
    (2, 0, 5, 8, 2, 3, 2, 3, 0, 0, 4)
    """

    values: tuple[int, ...]

    def __getitem__(self, entry: int) -> int:
        """The entry at a position, 1 to 11."""
        return self.values[entry - 1]

    @classmethod
    def read(cls, desc: Any) -> Entries | None:
        """A list, tuple or array as a descriptor; None for anything else."""
        try:
            values = tuple(operator.index(value) for value in desc)
        except TypeError:
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
    except (TypeError, IndexError, KeyError):
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
