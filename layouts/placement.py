"""Placements: the ranks that hold each block of a matrix, with copies; the source or target of a redistribution."""

from __future__ import annotations

from dataclasses import dataclass

from pblas.errors import LayoutError
from pblas.layouts.checks import checked_int
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.split import Split


@dataclass(frozen=True, slots=True)
class Placement:
    """An m x n matrix cut in blocks over ranks at coordinates (r, c, z): row of blocks, column of blocks, copy.

    Rank start + down r + across c + copy z holds the rows that r owns of the columns that c owns, once for every copy
    z. Ranks without coordinates hold nothing. Three placements over the same ranks express a 3D arrangement of
    p1 x p2 x p3 ranks: op(A) with rows over p1, columns over p3 and p2 copies, and so on.

    Raises:
        LayoutError: a replicated split, or strides or ranks that give two coordinates one rank.

    >>> place = Placement(Split(4, 2, 2), Split(6, 3, 2), (1, 4, 2), copies=2)
    >>> [place.coordinates(rank) for rank in (0, 1, 2, 4, 8)]
    [(0, 0, 0), (1, 0, 0), (0, 0, 1), (0, 1, 0), None]
    >>> place.rank(1, 1, 1), place.local_shape(7)
    (7, (2, 3))
    """

    rows: Split  # split of the rows, not replicated (global)
    columns: Split  # split of the columns, not replicated (global)
    # (down, across, copy), distance in ranks from one coordinate to the next; the stride of a coordinate that can only
    # be 0 has no effect (global)
    strides: tuple[int, int, int]
    copies: int = 1  # number of ranks that hold each block (global), copies >= 1
    start: int = 0  # rank at (0, 0, 0) (global), start >= 0
    ranks: tuple[int, ...] | None = None  # new numbers of ranks 0, 1, ...; None: the ranks are not renumbered (global)

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not (type(self.copies) is type(self.start) is int and self.copies > 0 <= self.start):
            checked_int("Placement", "copies", self.copies, 1)
            checked_int("Placement", "start", self.start, 0)
        if -1 in (self.rows.src, self.columns.src):
            raise LayoutError("Placement: a split has src -1; pass copies=, with a split over one process")
        reach, extents = 1, (self.rows.nprocs, self.columns.nprocs, self.copies)
        for stride, extent in sorted(zip(self.strides, extents, strict=True)):
            if extent > 1:
                if stride < 1 or stride % reach:
                    raise LayoutError(f"Placement: strides {self.strides} over {extents} ranks collide; nest them")
                reach = stride * extent
        if self.ranks is not None and not len(set(self.ranks)) == len(self.ranks) >= self._span:
            raise LayoutError(f"Placement: ranks is {self.ranks}; expected at least {self._span} different ranks")

    @classmethod
    def of(cls, desc: MatrixDescriptor, ranks: tuple[int, ...] | None = None) -> Placement:
        """The placement of a descriptor; replicated dimensions become copies.

        >>> Placement.of(MatrixDescriptor.replicated(2, 3, 4)).copies
        4
        """
        rows, columns, (down, across) = desc.rows, desc.columns, desc.grid.strides
        down_copies, across_copies = 1, 1
        if rows.is_replicated:
            down_copies, rows = rows.nprocs, Split(rows.n, rows.nb, 1)
        if columns.is_replicated:
            across_copies, columns = columns.nprocs, Split(columns.n, columns.nb, 1)
        copy = across if down_copies == 1 else down if across_copies == 1 else 1
        return cls(rows, columns, (down, across, copy), down_copies * across_copies, ranks=ranks)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix (global)."""
        return self.rows.n, self.columns.n

    @property
    def extents(self) -> tuple[int, int, int]:
        """Numbers of coordinates along (r, c, z)."""
        return self.rows.nprocs, self.columns.nprocs, self.copies

    @property
    def span(self) -> int:
        """One more than the highest rank that has coordinates."""
        return self._span if self.ranks is None else 1 + max(self.ranks)

    @property
    def _span(self) -> int:
        """One more than the highest rank that has coordinates, before `ranks` renumbers the ranks."""
        return self.start + 1 + sum(s * (e - 1) for s, e in zip(self.strides, self.extents, strict=True))

    @property
    def T(self) -> Placement:
        """The transposed matrix on the same ranks: nothing moves."""
        down, across, copy = self.strides
        return Placement(self.columns, self.rows, (across, down, copy), self.copies, self.start, self.ranks)

    def rank(self, r: int, c: int, z: int = 0) -> int:
        """The rank at (r, c, z)."""
        down, across, copy = self.strides
        number = self.start + down * r + across * c + copy * z
        return number if self.ranks is None else self.ranks[number]

    def coordinates(self, rank: int) -> tuple[int, int, int] | None:
        """(r, c, z) of a rank; None for a rank without coordinates."""
        number = rank
        if self.ranks is not None:
            if rank not in self.ranks:
                return None
            number = self.ranks.index(rank)
        left = number - self.start
        if left < 0:
            return None
        (down, across, copy), nrows, ncolumns, ncopies = (
            self.strides,
            self.rows.nprocs,
            self.columns.nprocs,
            self.copies,
        )
        r = left // down % nrows if nrows > 1 else 0
        c = left // across % ncolumns if ncolumns > 1 else 0
        z = left // copy % ncopies if ncopies > 1 else 0
        return (r, c, z) if down * r + across * c + copy * z == left else None

    def local_shape(self, rank: int) -> tuple[int, int]:
        """Rows and columns that a rank holds; (0, 0) for a rank without coordinates."""
        position = self.coordinates(rank)
        return (0, 0) if position is None else (self.rows.count(position[0]), self.columns.count(position[1]))

    def local_offset(self, i0: int, j0: int, rank: int) -> tuple[int, int]:
        """Local index (i, j) of a rank's part of a submatrix: it owns i rows before i0, and j columns before j0."""
        position = self.coordinates(rank)
        if position is None:
            return 0, 0
        return self.rows.local_start(i0, position[0]), self.columns.local_start(j0, position[1])

    def part(self, i0: int, i1: int, j0: int, j1: int) -> Placement:
        """The placement of rows i0..i1-1 and columns j0..j1-1, renumbered from 0: each element keeps its rank.

        >>> place = Placement.of(MatrixDescriptor.row_wise(6, 4, 2))
        >>> place.part(2, 5, 0, 4).local_shape(1), place.local_offset(2, 0, 1)
        ((2, 4), (0, 0))
        """
        return Placement(
            self.rows.part(i0, i1), self.columns.part(j0, j1), self.strides, self.copies, self.start, self.ranks
        )

    def layer(self, z: int) -> Placement:
        """The placement of copy z alone, 0 <= z < copies; for partial sums, which differ between copies.

        >>> place = Placement.of(MatrixDescriptor.replicated(2, 3, 4)).layer(2)
        >>> [place.local_shape(rank) for rank in range(4)]
        [(0, 0), (0, 0), (2, 3), (0, 0)]
        """
        return Placement(self.rows, self.columns, self.strides, 1, self.start + self.strides[2] * z, self.ranks)
