"""The distribution of an m x n matrix over a process grid: ScaLAPACK's array descriptor as a value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, overload

from pblas.errors import LayoutError
from pblas.layouts.checks import checked_index, checked_int
from pblas.layouts.equality import same_distribution
from pblas.layouts.grid import Grid
from pblas.layouts.index import ArrayT, I, J
from pblas.layouts.split import Split, blocks_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.layouts.drawing.text import Drawing

Order = Literal["F", "C"]  # storage order of local arrays: column-major or row-major


@dataclass(frozen=True, slots=True)
class MatrixDescriptor:
    """A 1D or 2D block-cyclic distribution of an m x n matrix.

    The matrix is cut into blocks of mb x nb. The first row of blocks has imb rows, the first column of blocks has inb
    columns. Block (I, J) belongs to the process at ((rsrc + I) % nprow, (csrc + J) % npcol). Sizes need not divide,
    blocks may be larger than the matrix, m or n may be 0. Ranks outside the grid own nothing.

    Args:
        m: rows (global), m >= 0.
        n: columns (global), n >= 0.
        mb: rows per block (global), mb >= 1.
        nb: columns per block (global), nb >= 1.
        grid: process grid (global).
        rsrc: process row that owns row 0 (global), 0..nprow-1; -1: every process row owns all rows.
        csrc: process column that owns column 0 (global), 0..npcol-1; -1: every process column owns all columns.
        order: "F": local arrays are column-major, "C": row-major.
        lld: leading dimension of the local array, elements (local); None: the least that is allowed. It may differ
            between ranks, and == ignores it.
        imb: rows in the first row of blocks (global), imb >= 1; None: mb. The value mb is stored as None.
        inb: columns in the first column of blocks (global), inb >= 1; None: nb. The value nb is stored as None.

    Attributes:
        rows: the Split of the rows over the process rows.
        columns: the Split of the columns over the process columns.

    Raises:
        LayoutError: an argument has the wrong type or is out of range.

    Source: ScaLAPACK, descinit; PBLAS, descriptor DTYPE 2 (imb, inb, and -1 for replicated).

    >>> desc = MatrixDescriptor(5, 8, 2, 3, Grid(2, 2))
    >>> [desc.local_shape(rank) for rank in range(4)]
    [(3, 5), (2, 5), (3, 3), (2, 3)]
    >>> desc.owner(4, 3), desc.local_index(4, 3), desc.global_index(2, 2, 0)
    (2, (2, 0), (4, 3))
    """

    m: int
    n: int
    mb: int
    nb: int
    grid: Grid
    rsrc: int = 0
    csrc: int = 0
    order: Order = "F"
    lld: int | None = field(default=None, compare=False)
    imb: int | None = None
    inb: int | None = None
    rows: Split = field(init=False, repr=False, compare=False)
    columns: Split = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the arguments, normalise them (integers to int, imb == mb and inb == nb to None), make both splits."""
        put, where, grid = object.__setattr__, "MatrixDescriptor", self.grid
        if not isinstance(grid, Grid):
            raise LayoutError(
                f"{where}: grid is {grid!r}, a {type(grid).__name__}; expected a Grid, for example Grid(2, 3)."
            )
        for name, low in (("m", 0), ("n", 0), ("mb", 1), ("nb", 1)):
            put(self, name, checked_int(where, name, getattr(self, name), low))
        put(self, "rsrc", checked_int(where, "rsrc", self.rsrc, -1, grid.nprow - 1, why="nprow - 1; -1 is replicated"))
        put(self, "csrc", checked_int(where, "csrc", self.csrc, -1, grid.npcol - 1, why="npcol - 1; -1 is replicated"))
        if self.order not in ("F", "C"):
            raise LayoutError(f"{where}: order is {self.order!r}; expected 'F' (column-major) or 'C' (row-major).")
        put(self, "order", str(self.order))  # NumPy's strings have another repr, which ranks would compare
        for name in ("lld", "imb", "inb"):
            if getattr(self, name) is not None:
                put(self, name, checked_int(where, name, getattr(self, name), 1))
        put(self, "rows", Split(self.m, self.mb, grid.nprow, self.rsrc, self.imb))
        put(self, "columns", Split(self.n, self.nb, grid.npcol, self.csrc, self.inb))
        put(self, "imb", self.rows.inb)
        put(self, "inb", self.columns.inb)
        # Kept, because each call looks for its plan by its descriptors; of integers, which hash alike in all processes.
        sizes = self.m, self.n, self.mb, self.nb, self.rsrc, self.csrc, self.imb or 0, self.inb or 0
        put(self, "_hash", hash((*sizes, grid.nprow, grid.npcol, self.order == "F")))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def row_wise(
        cls,
        m: int,
        n: int,
        nprocs: int,
        *,
        mb: int | None = None,
        rsrc: int = 0,
        order: Order = "F",
        counts: Sequence[int] | None = None,
    ) -> MatrixDescriptor:
        """A row-wise distribution: rows are dealt out over nprocs ranks, each row is whole.

        Args:
            m: rows (global).
            n: columns (global).
            nprocs: ranks (global).
            mb: rows per block (global); None: one block per rank, ceil(m / nprocs) and at least 1.
            rsrc: rank that owns row 0 (global); -1: every rank owns all rows.
            order: storage order of the local arrays, "F" or "C" (global).
            counts: rows of each rank, instead of mb and rsrc (global). The first rank with rows may have any number;
                the next ranks have equal numbers, the last one maybe fewer. None: even blocks.

        >>> desc = MatrixDescriptor.row_wise(10, 4, 4)
        >>> [desc.local_shape(rank) for rank in range(4)]
        [(3, 4), (3, 4), (3, 4), (1, 4)]
        >>> MatrixDescriptor.row_wise(6, 4, 3, counts=[1, 3, 2]).local_shape(1)
        (3, 4)
        """
        m, n = checked_int("row_wise", "m", m, 0), checked_int("row_wise", "n", n, 0)
        nprocs = checked_int("row_wise", "nprocs", nprocs, 1)
        first, block = None, max(1, -(-m // nprocs)) if mb is None else mb
        if counts is not None:
            if mb is not None or rsrc:
                raise LayoutError("row_wise: counts and mb or rsrc were given; leave out mb and rsrc.")
            block, first, rsrc = blocks_of("row_wise", "rows", m, nprocs, counts)
        return cls(m, n, block, max(1, n), Grid.column(nprocs), rsrc, 0, order, imb=first)

    @classmethod
    def column_wise(
        cls,
        m: int,
        n: int,
        nprocs: int,
        *,
        nb: int | None = None,
        csrc: int = 0,
        order: Order = "F",
        counts: Sequence[int] | None = None,
    ) -> MatrixDescriptor:
        """A column-wise distribution: columns are dealt out over nprocs ranks, each column is whole.

        Args:
            m: rows (global).
            n: columns (global).
            nprocs: ranks (global).
            nb: columns per block (global); None: one block per rank, ceil(n / nprocs) and at least 1.
            csrc: rank that owns column 0 (global); -1: every rank owns all columns.
            order: storage order of the local arrays, "F" or "C" (global).
            counts: columns of each rank, instead of nb and csrc (global). The first rank with columns may have any
                number; the next ranks have equal numbers, the last one maybe fewer. None: even blocks.

        >>> desc = MatrixDescriptor.column_wise(4, 10, 4, nb=1)
        >>> [desc.local_shape(rank) for rank in range(4)]
        [(4, 3), (4, 3), (4, 2), (4, 2)]
        """
        m, n = checked_int("column_wise", "m", m, 0), checked_int("column_wise", "n", n, 0)
        nprocs = checked_int("column_wise", "nprocs", nprocs, 1)
        first, block = None, max(1, -(-n // nprocs)) if nb is None else nb
        if counts is not None:
            if nb is not None or csrc:
                raise LayoutError("column_wise: counts and nb or csrc were given; leave out nb and csrc.")
            block, first, csrc = blocks_of("column_wise", "columns", n, nprocs, counts)
        return cls(m, n, max(1, m), block, Grid.row(nprocs), 0, csrc, order, inb=first)

    @classmethod
    def block_cyclic(
        cls, m: int, n: int, mb: int, nb: int, grid: Grid, *, rsrc: int = 0, csrc: int = 0, order: Order = "F"
    ) -> MatrixDescriptor:
        """A block-cyclic distribution: blocks of mb x nb are dealt out over a grid in both directions.

        The arguments are those of the class.

        >>> MatrixDescriptor.block_cyclic(7, 9, 2, 2, Grid(2, 3)).local_shape(5)
        (3, 2)
        """
        return cls(m, n, mb, nb, grid, rsrc, csrc, order)

    @classmethod
    def replicated(cls, m: int, n: int, nprocs: int, *, order: Order = "F") -> MatrixDescriptor:
        """The whole matrix on each of nprocs ranks: rsrc = csrc = -1 on a 1 x nprocs grid.

        >>> desc = MatrixDescriptor.replicated(2, 3, 4)
        >>> desc.is_replicated, [desc.local_shape(rank) for rank in range(5)]
        (True, [(2, 3), (2, 3), (2, 3), (2, 3), (0, 0)])
        """
        m, n = checked_int("replicated", "m", m, 0), checked_int("replicated", "n", n, 0)
        return cls(m, n, max(1, m), max(1, n), Grid.row(nprocs), -1, -1, order)

    @classmethod
    def default(cls, m: int, n: int, nprocs: int, *, order: Order = "F") -> MatrixDescriptor:
        """The layout of a matrix whose creator names none: row-wise in even blocks, as `row_wise`.

        A matrix with fewer rows than ranks, and with more columns than rows, is column-wise instead.

        Args:
            m: rows (global).
            n: columns (global).
            nprocs: ranks (global).
            order: storage order of the local arrays, "F" or "C" (global).

        >>> MatrixDescriptor.default(10, 40, 4) == MatrixDescriptor.row_wise(10, 40, 4)
        True
        >>> MatrixDescriptor.default(1, 40, 4).local_shape(0)
        (1, 10)
        """
        m, n = checked_int("default", "m", m, 0), checked_int("default", "n", n, 0)
        if m < nprocs and m < n:
            return cls.column_wise(m, n, nprocs, order=order)
        return cls.row_wise(m, n, nprocs, order=order)

    @property
    def shape(self) -> tuple[int, int]:
        """(m, n), the global shape."""
        return self.m, self.n

    @property
    def without_lld(self) -> MatrixDescriptor:
        """The same distribution without a leading dimension: all of it is then equal on all ranks."""
        return self if self.lld is None else replace(self, lld=None)

    @property
    def nprocs(self) -> int:
        """Ranks in the grid."""
        return self.grid.size

    def local_shape(self, rank: int) -> tuple[int, int]:
        """(rows, columns) of a rank's local array; (0, 0) for a rank outside the grid.

        >>> MatrixDescriptor(5, 8, 2, 3, Grid(2, 2)).local_shape(3)
        (2, 3)
        """
        return _local_shape(self, rank)

    @property
    def max_local_nelements(self) -> int:
        """Elements of the largest local array, padding not counted.

        >>> MatrixDescriptor(5, 8, 2, 3, Grid(2, 2)).max_local_nelements
        15
        """
        return self.rows.max_count * self.columns.max_count

    @property
    def max_stored_nelements(self) -> int:
        """Elements of memory of the largest local array, padding counted, where lld is equal on all ranks.

        >>> MatrixDescriptor(5, 8, 2, 3, Grid(2, 2), lld=4).max_stored_nelements
        20
        """
        split = self.columns if self.order == "F" else self.rows
        return self.max_local_nelements if self.lld is None else self.lld * split.max_count

    def local_lld(self, rank: int) -> int:
        """Leading dimension of a rank's local array, elements: lld, or the least that is allowed if lld is None.

        >>> [MatrixDescriptor(5, 8, 2, 3, Grid(2, 2), lld=lld).local_lld(0) for lld in (None, 9)]
        [3, 9]
        """
        return self.min_lld(rank) if self.lld is None else self.lld

    def min_lld(self, rank: int) -> int:
        """Least leading dimension for a rank: its local rows in order "F", its local columns in order "C"; at least 1.

        >>> MatrixDescriptor(5, 8, 2, 3, Grid(2, 2), order="C").min_lld(0)
        5
        """
        m_loc, n_loc = self.local_shape(rank)
        return max(1, m_loc if self.order == "F" else n_loc)

    def check_lld(self, rank: int, name: str = "the matrix") -> None:
        """Check that lld is large enough for a rank's local array.

        Args:
            rank: rank (local); for a rank outside the grid, which holds nothing, any lld is large enough.
            name: the matrix, for the message.

        Raises:
            LayoutError: lld is smaller than the local rows (order "F") or columns (order "C").

        >>> MatrixDescriptor(50, 8, 8, 8, Grid(2, 1), lld=12).check_lld(1, "C")
        Traceback (most recent call last):
        pblas.errors.LayoutError: lld of C on process (1, 0) is 12; it must be at least numroc(50, 8, 1, 0, 2) = 24. \
lld=None takes the least.
        """
        least = self.min_lld(rank)
        if self.lld is None or self.lld >= least:
            return
        coordinates = self.grid.coordinates(rank)
        split, p = (self.rows, coordinates[0]) if self.order == "F" else (self.columns, coordinates[1])
        inb = "" if split.inb is None else f", inb={split.inb}"
        raise LayoutError(
            f"lld of {name} on process {coordinates} is {self.lld}; it must be at least "
            f"numroc({split.n}, {split.nb}, {p}, {split.src}, {split.nprocs}{inb}) = {least}. lld=None takes the least."
        )

    @overload
    def owner(self, i: int, j: int) -> int: ...
    @overload
    def owner(self, i: ArrayT, j: int | ArrayT) -> ArrayT: ...
    @overload
    def owner(self, i: int, j: ArrayT) -> ArrayT: ...
    def owner(self, i: Any, j: Any) -> Any:
        """Rank that owns element (i, j); in a replicated dimension the owner at coordinate 0.

        Args:
            i: row (global), 0 <= i < m; int, or an integer array, whose elements are not checked.
            j: column (global), 0 <= j < n; int, or an integer array that broadcasts with i.

        Returns:
            The rank, or an array of ranks.

        Raises:
            LayoutError: an index out of range.

        >>> desc = MatrixDescriptor(4, 4, 2, 2, Grid(2, 2))
        >>> [[desc.owner(i, j) for j in range(4)] for i in range(4)]
        [[0, 0, 2, 2], [0, 0, 2, 2], [1, 1, 3, 3], [1, 1, 3, 3]]
        """
        self._check_element("owner", i, j)
        return self.grid.rank(self.rows.owner(i), self.columns.owner(j))

    def local_index(self, i: I, j: J) -> tuple[I, J]:
        """(i_loc, j_loc), the local index of element (i, j) on the rank that owns it.

        Args:
            i: row (global), 0 <= i < m; int, or an integer array, whose elements are not checked.
            j: column (global), 0 <= j < n; int, or an integer array, whose elements are not checked.

        Raises:
            LayoutError: an index out of range.

        >>> MatrixDescriptor(4, 4, 2, 2, Grid(2, 2)).local_index(1, 2)
        (1, 0)
        """
        self._check_element("local_index", i, j)
        return self.rows.local_from_global(i), self.columns.local_from_global(j)

    def global_index(self, rank: int, i_loc: I, j_loc: J) -> tuple[I, J]:
        """(i, j), the global index of the element that a rank stores at (i_loc, j_loc).

        Args:
            rank: rank in the grid (local).
            i_loc: row (local); int, or an integer array, whose elements are not checked.
            j_loc: column (local); int, or an integer array, whose elements are not checked.

        Raises:
            LayoutError: an index outside the rank's local shape, or a rank outside the grid.

        >>> MatrixDescriptor(4, 4, 2, 2, Grid(2, 2)).global_index(3, 0, 1)
        (2, 3)
        """
        myrow, mycol = self.grid.coordinates(rank)
        if myrow == -1:
            raise LayoutError(f"global_index: rank is {rank}; expected a rank of the grid, in 0..{self.nprocs - 1}.")
        m_loc, n_loc = self.rows.count(myrow), self.columns.count(mycol)
        checked_index(f"global_index on rank {rank}, which holds {m_loc} x {n_loc}", "i_loc", i_loc, m_loc)
        checked_index(f"global_index on rank {rank}, which holds {m_loc} x {n_loc}", "j_loc", j_loc, n_loc)
        return self.rows.global_from_local(i_loc, myrow), self.columns.global_from_local(j_loc, mycol)

    def global_ranges(self, rank: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(row ranges, column ranges) of a rank's elements: half-open global ranges, ascending, adjacent ones merged.

        The rank holds the elements in any of the row ranges and any of the column ranges.

        >>> MatrixDescriptor(5, 8, 2, 3, Grid(2, 2)).global_ranges(0)
        ([(0, 2), (4, 5)], [(0, 3), (6, 8)])
        """
        myrow, mycol = self.grid.coordinates(rank)
        return self.rows.ranges(myrow), self.columns.ranges(mycol)

    def local_offset(self, i0: int, j0: int, rank: int) -> tuple[int, int]:
        """Local index at which a rank's shard of a submatrix starts: its rows before i0 and its columns before j0.

        Args:
            i0: first row of the submatrix (global), 0 <= i0 <= m.
            j0: first column of the submatrix (global), 0 <= j0 <= n.
            rank: rank (local).

        >>> MatrixDescriptor(5, 8, 2, 3, Grid(2, 2)).local_offset(3, 4, 0)
        (2, 3)
        """
        return _local_offset(self, i0, j0, rank)

    def submatrix(self, i0: int, i1: int, j0: int, j1: int) -> MatrixDescriptor:
        """The descriptor of rows i0..i1-1 and columns j0..j1-1, in place: each element keeps its owner.

        lld is kept as it is. If it is None, the submatrix still has the leading dimension of the whole local array,
        `local_lld(rank)` of this descriptor; the new descriptor does not record it.

        Args:
            i0: first row (global), 0 <= i0 <= i1.
            i1: one past the last row (global), i1 <= m.
            j0: first column (global), 0 <= j0 <= j1.
            j1: one past the last column (global), j1 <= n.

        Raises:
            LayoutError: a range outside the matrix.

        >>> view = MatrixDescriptor(5, 8, 2, 3, Grid(2, 2)).submatrix(3, 5, 4, 8)
        >>> view.shape, (view.imb, view.inb), (view.rsrc, view.csrc)
        ((2, 4), (1, 2), (1, 1))
        """
        return _submatrix(self, self.lld, i0, i1, j0, j1)

    @property
    def T(self) -> MatrixDescriptor:
        """The descriptor of the transpose: the same local arrays, read in the other storage order. Nothing moves.

        >>> MatrixDescriptor.row_wise(10, 4, 2).T == MatrixDescriptor.column_wise(4, 10, 2, order="C")
        True
        """
        return _transposed(self, self.lld)

    @property
    def is_row_wise(self) -> bool:
        """Whether the matrix is split over its rows only: an nprow x 1 grid and rows not replicated.

        A 1 x 1 grid counts as row-wise, column-wise and replicated.
        """
        return self.grid.npcol == 1 and (self.grid.nprow == 1 or self.rsrc != -1)

    @property
    def is_column_wise(self) -> bool:
        """Whether the matrix is split over its columns only: a 1 x npcol grid and columns not replicated.

        A 1 x 1 grid counts as row-wise, column-wise and replicated.
        """
        return self.grid.nprow == 1 and (self.grid.npcol == 1 or self.csrc != -1)

    @property
    def is_replicated(self) -> bool:
        """Whether each rank of the grid holds the whole matrix: -1 in every dimension with more than one process.

        A 1 x 1 grid counts as row-wise, column-wise and replicated.
        """
        return (self.grid.nprow == 1 or self.rsrc == -1) and (self.grid.npcol == 1 or self.csrc == -1)

    def same_distribution(self, other: MatrixDescriptor) -> bool:
        """Whether both descriptors give every rank the same elements, even if blocks, grids, orders or lld differ.

        The answer is exact, and does not enumerate ranks or elements.

        >>> a = MatrixDescriptor(8, 8, 4, 8, Grid(2, 1))
        >>> a.same_distribution(MatrixDescriptor(8, 8, 4, 9, Grid(4, 1), order="C"))
        True
        >>> a.same_distribution(MatrixDescriptor(8, 8, 2, 8, Grid(2, 1)))
        False
        """
        return self == other or _same_distribution(self, other)

    def picture(self, max_width: int = 100) -> str:
        """The matrix as text for the terminal: its blocks, each labelled with the rank that owns it.

        Args:
            max_width: characters per line, >= 30. Blocks that do not fit are left out, and a note says so.

        >>> print(MatrixDescriptor(3, 8, 2, 3, Grid(2, 2)).picture())
        3 x 8 matrix, blocks of 2 x 3 over a 2 x 2 grid
        <BLANKLINE>
          mycol   0   1   0
        myrow   0   3   6   8
              0 ┌───┬───┬───┐
            0   │ 0 │ 2 │ 0 │
              2 ├───┼───┼───┤
            1   │ 1 │ 3 │ 1 │
              3 └───┴───┴───┘
        <BLANKLINE>
        Each block is labelled with the rank that owns it.
        Ranks are numbered down the columns (order C) of the grid. Local arrays are column-major (order F),
        at most 2 x 5 = 10 elements on a rank.
          rank 0 at (0, 0): 2 x 5
          rank 1 at (1, 0): 1 x 5
          rank 2 at (0, 1): 2 x 3
          rank 3 at (1, 1): 1 x 3
        """
        from pblas.layouts.drawing.text import text_picture

        return text_picture(self._drawing(), max_width)

    def _repr_svg_(self) -> str:
        """The picture as SVG, for notebooks."""
        from pblas.layouts.drawing.svg import svg_picture

        return svg_picture(self._drawing())

    def _repr_html_(self) -> str:
        """The picture as self-contained HTML, for notebooks and documentation."""
        from pblas.layouts.drawing.svg import html_picture

        return html_picture(self._drawing())

    def _drawing(self) -> Drawing:
        """The properties that pictures show."""
        from pblas.layouts.drawing.text import Drawing

        return Drawing(self.grid, self.rows, self.columns, self.order, self.lld)

    def _check_element(self, where: str, i: object, j: object) -> None:
        """Raise LayoutError unless (i, j) is the global index of an element."""
        checked_index(f"{where} in a {self.m} x {self.n} matrix", "i", i, self.m)
        checked_index(f"{where} in a {self.m} x {self.n} matrix", "j", j, self.n)


@lru_cache(256)
def resized(desc: MatrixDescriptor, shape: tuple[int, int]) -> MatrixDescriptor:
    """The layout of a matrix of another shape, on the same grid: even blocks where a process has one block at most.

    >>> resized(MatrixDescriptor.row_wise(100, 4, 2), (4, 4)).mb
    2
    """
    blocks: list[tuple[int, int | None]] = []
    axes = (desc.rows, (desc.mb, desc.imb)), (desc.columns, (desc.nb, desc.inb))
    for (split, given), length in zip(axes, shape, strict=True):
        is_even = length != split.n and split.nblocks <= split.nprocs
        blocks.append((max(1, -(-length // split.nprocs)), None) if is_even else given)
    (mb, imb), (nb, inb) = blocks
    return MatrixDescriptor(*shape, mb, nb, desc.grid, desc.rsrc, desc.csrc, desc.order, imb=imb, inb=inb)


# What follows from a descriptor is kept, because calls and views ask for it again and again. A descriptor is equal to
# one with another lld, which is therefore an argument of its own.


@lru_cache(1024, typed=True)  # the types, so that 1.0 is no rank after 1 was one
def _local_shape(desc: MatrixDescriptor, rank: int) -> tuple[int, int]:
    """See `MatrixDescriptor.local_shape`."""
    myrow, mycol = desc.grid.coordinates(rank)
    return desc.rows.count(myrow), desc.columns.count(mycol)


@lru_cache(1024, typed=True)
def _local_offset(desc: MatrixDescriptor, i0: int, j0: int, rank: int) -> tuple[int, int]:
    """See `MatrixDescriptor.local_offset`."""
    myrow, mycol = desc.grid.coordinates(rank)
    return desc.rows.local_start(i0, myrow), desc.columns.local_start(j0, mycol)


@lru_cache(256)
def _same_distribution(x: MatrixDescriptor, y: MatrixDescriptor) -> bool:
    """See `MatrixDescriptor.same_distribution`."""
    return same_distribution(x.grid, x.rows, x.columns, y.grid, y.rows, y.columns)


@lru_cache(256, typed=True)
def _submatrix(desc: MatrixDescriptor, lld: int | None, i0: int, i1: int, j0: int, j1: int) -> MatrixDescriptor:
    """See `MatrixDescriptor.submatrix`."""
    if (i0, i1, j0, j1) == (0, desc.m, 0, desc.n):
        return desc
    rows, columns = desc.rows.part(i0, i1), desc.columns.part(j0, j1)
    return MatrixDescriptor(
        *(rows.n, columns.n, rows.nb, columns.nb, desc.grid, rows.src, columns.src),
        order=desc.order,
        lld=lld,
        imb=rows.inb,
        inb=columns.inb,
    )


@lru_cache(256)
def _transposed(desc: MatrixDescriptor, lld: int | None) -> MatrixDescriptor:
    """See `MatrixDescriptor.T`."""
    return MatrixDescriptor(
        *(desc.n, desc.m, desc.nb, desc.mb, desc.grid.T, desc.csrc, desc.rsrc),
        order="C" if desc.order == "F" else "F",
        lld=lld,
        imb=desc.inb,
        inb=desc.imb,
    )
