"""Process grids: ranks arranged in process rows and process columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, overload

from pblas.errors import LayoutError
from pblas.layouts.checks import checked_index, checked_int
from pblas.layouts.index import ArrayT


@dataclass(frozen=True, slots=True)
class Grid:
    """An nprow x npcol arrangement of the ranks 0..nprow*npcol-1, numbered as in BLACS.

    A grid maps ranks to coordinates; it needs neither a matrix nor MPI. Ranks from nprow*npcol on are outside the grid.

    Args:
        nprow: process rows (global), nprow >= 1.
        npcol: process columns (global), npcol >= 1.
        order: "C" numbers the ranks down the columns, "R" along the rows.

    Raises:
        LayoutError: an argument has the wrong type or is out of range.

    Source: BLACS, blacs_gridinit.

    >>> [Grid(2, 3).coordinates(rank) for rank in range(7)]
    [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (-1, -1)]
    >>> [Grid(2, 3, "R").rank(0, c) for c in range(3)]
    [0, 1, 2]
    """

    nprow: int
    npcol: int
    order: Literal["C", "R"] = "C"

    def __post_init__(self) -> None:
        """Check the arguments, and convert integers to int."""
        object.__setattr__(self, "nprow", checked_int("Grid", "nprow", self.nprow, 1))
        object.__setattr__(self, "npcol", checked_int("Grid", "npcol", self.npcol, 1))
        if self.order not in ("C", "R"):
            raise LayoutError(f"Grid: order is {self.order!r}; expected 'C' (column-major) or 'R' (row-major).")
        object.__setattr__(self, "order", str(self.order))

    @classmethod
    def row(cls, nprocs: int) -> Grid:
        """One row of processes: 1 x nprocs, the grid that splits a matrix by columns.

        >>> Grid.row(4)
        Grid(nprow=1, npcol=4, order='C')
        """
        return cls(1, nprocs)

    @classmethod
    def column(cls, nprocs: int) -> Grid:
        """One column of processes: nprocs x 1, the grid that splits a matrix by rows.

        >>> Grid.column(4)
        Grid(nprow=4, npcol=1, order='C')
        """
        return cls(nprocs, 1)

    @property
    def size(self) -> int:
        """Number of ranks in the grid."""
        return self.nprow * self.npcol

    @property
    def strides(self) -> tuple[int, int]:
        """Distance in ranks between neighbours: (down a process column, along a process row).

        >>> Grid(2, 3).strides, Grid(2, 3, "R").strides
        ((1, 2), (3, 1))
        """
        return (1, self.nprow) if self.order == "C" else (self.npcol, 1)

    @overload
    def rank(self, myrow: int, mycol: int) -> int: ...
    @overload
    def rank(self, myrow: ArrayT, mycol: int | ArrayT) -> ArrayT: ...
    @overload
    def rank(self, myrow: int, mycol: ArrayT) -> ArrayT: ...
    def rank(self, myrow: Any, mycol: Any) -> Any:
        """Rank of the process at (myrow, mycol).

        Args:
            myrow: process row, 0 <= myrow < nprow; int, or an integer array, whose elements are not checked.
            mycol: process column, 0 <= mycol < npcol; int, or an integer array, whose elements are not checked.

        Returns:
            The rank, 0 <= rank < size.

        Raises:
            LayoutError: a coordinate outside the grid.

        >>> Grid(2, 3).rank(1, 2)
        5
        """
        checked_index("Grid.rank", "myrow", myrow, self.nprow)
        checked_index("Grid.rank", "mycol", mycol, self.npcol)
        down, along = self.strides
        return down * myrow + along * mycol

    def coordinates(self, rank: int) -> tuple[int, int]:
        """(myrow, mycol) of a rank; (-1, -1) for a rank outside the grid, as in blacs_gridinfo.

        Args:
            rank: rank in the communicator (local), rank >= 0.

        Raises:
            LayoutError: not an integer, or negative.

        >>> Grid(2, 2).coordinates(3), Grid(2, 2).coordinates(4)
        ((1, 1), (-1, -1))
        """
        rank = checked_int("Grid.coordinates", "rank", rank, 0)
        if rank >= self.size:
            return -1, -1
        if self.order == "C":
            return rank % self.nprow, rank // self.nprow
        return rank // self.npcol, rank % self.npcol

    @property
    def T(self) -> Grid:
        """The transposed grid: the rank at (r, c) of this grid is at (c, r) of the transposed one.

        The order changes, except for a single row or column, where it makes no difference.

        >>> Grid(2, 3).T, Grid(1, 3).T == Grid.column(3)
        (Grid(nprow=3, npcol=2, order='R'), True)
        """
        if self.nprow == 1 or self.npcol == 1:
            return Grid(self.npcol, self.nprow, self.order)
        return Grid(self.npcol, self.nprow, "R" if self.order == "C" else "C")

    def equivalent(self, other: Grid) -> bool:
        """Whether both grids give every rank the same coordinates; the order of a single row or column is ignored.

        >>> Grid(1, 4, "C").equivalent(Grid(1, 4, "R")), Grid(2, 2, "C").equivalent(Grid(2, 2, "R"))
        (True, False)
        """
        if (self.nprow, self.npcol) != (other.nprow, other.npcol):
            return False
        return self.order == other.order or self.nprow == 1 or self.npcol == 1
