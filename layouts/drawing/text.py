"""Pictures of a distribution: the blocks to draw, their labels and notes, and the picture for the terminal."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pblas.layouts.checks import checked_int

if TYPE_CHECKING:
    from pblas.layouts.grid import Grid
    from pblas.layouts.split import Split

ALL = -1  # the coordinate that stands for all process coordinates along a replicated dimension

MAX_LINES = 16  # largest number of bands drawn from top to bottom; each takes two lines of the screen

MAX_RANKS = 8  # largest number of ranks listed one by one below a picture


@dataclass(frozen=True, slots=True)
class Drawing:
    """The properties of a distribution that a picture shows."""

    grid: Grid
    rows: Split
    columns: Split
    order: Literal["F", "C"] = "F"
    lld: int | None = None

    @property
    def nprocs(self) -> int:
        """Ranks in the grid."""
        return self.grid.size

    @property
    def is_replicated(self) -> bool:
        """Whether each rank of the grid holds the whole matrix."""
        return all(split.nprocs == 1 or split.is_replicated for split in (self.rows, self.columns))

    def local_shape(self, rank: int) -> tuple[int, int]:
        """(rows, columns) that a rank holds."""
        myrow, mycol = self.grid.coordinates(rank)
        return self.rows.count(myrow), self.columns.count(mycol)


@dataclass(frozen=True, slots=True)
class Band:
    """A block of rows (or columns) as drawn, or a gap of `left_out` blocks; p is the owner, ALL if it is replicated."""

    g0: int
    g1: int
    p: int
    left_out: int = 0


def bands_from_split(split: Split, limit: int) -> list[Band]:
    """At most `limit` bands that show a dimension: all its blocks, or the first blocks, a gap and the last block.

    A dimension that is not split is one band, whatever its block size.

    >>> from pblas.layouts.split import Split
    >>> bands_from_split(Split(20, 2, 2), 4)
    [Band(g0=0, g1=2, p=0, left_out=0), Band(g0=2, g1=4, p=1, left_out=0),
     Band(g0=4, g1=18, p=0, left_out=7), Band(g0=18, g1=20, p=1, left_out=0)]
    """
    nblocks = split.nblocks
    if nblocks == 0:
        return []
    if split.nprocs == 1 or split.is_replicated:
        return [Band(0, split.n, 0 if split.nprocs == 1 else ALL)]
    head = nblocks if nblocks <= limit else limit - 2
    bands = [Band(*split.block(b), split.owner(split.block(b)[0])) for b in range(head)]
    if head < nblocks:
        last = Band(*split.block(nblocks - 1), split.owner(split.n - 1))
        gap = Band(bands[-1].g1, last.g0, split.owner(bands[-1].g1), left_out=nblocks - head - 1)
        bands += [gap, last]
    return bands


def owner_label(grid: Grid, p_row: int, p_col: int) -> str:
    """The ranks that own a block, as a short label.

    >>> from pblas.layouts.grid import Grid
    >>> [owner_label(Grid(3, 3), 1, 0), owner_label(Grid(3, 3), ALL, 0), owner_label(Grid(3, 3), 1, ALL)]
    ['1', '0-2', '1,4,7']
    >>> owner_label(Grid(3, 9), 1, ALL), owner_label(Grid(3, 3), ALL, ALL)
    ('1,4,..,25', 'all')
    """
    along_rows, along_columns = p_row == ALL and grid.nprow > 1, p_col == ALL and grid.npcol > 1
    first = grid.rank(max(p_row, 0), max(p_col, 0))
    if not along_rows and not along_columns:
        return str(first)
    nowners = (grid.nprow if along_rows else 1) * (grid.npcol if along_columns else 1)
    if nowners == grid.size:
        return "all"
    step = grid.strides[0] if along_rows else grid.strides[1]
    last = first + (nowners - 1) * step
    if nowners == 2:
        return f"{first},{last}"
    if step == 1:
        return f"{first}-{last}"
    return f"{first},{first + step},{last}" if nowners == 3 else f"{first},{first + step},..,{last}"


def headline(drawing: Drawing) -> str:
    """The distribution in one phrase.

    >>> from pblas.layouts import Grid, Split
    >>> headline(Drawing(Grid(1, 4), Split(2, 2, 1, -1), Split(3, 3, 4, -1)))
    '2 x 3 matrix, replicated on 4 ranks'
    >>> headline(Drawing(Grid(4, 1), Split(10, 3, 4), Split(4, 4, 1)))
    '10 x 4 matrix, rows in blocks of 3 on 4 ranks'
    """
    ranks = "1 rank" if drawing.nprocs == 1 else f"{drawing.nprocs} ranks"
    matrix = f"{drawing.rows.n} x {drawing.columns.n} matrix"
    if drawing.nprocs == 1:
        return f"{matrix}, whole on {ranks}"
    if drawing.is_replicated:
        return f"{matrix}, replicated on {ranks}"
    if drawing.grid.npcol == 1:
        return f"{matrix}, rows in blocks of {_block(drawing.rows)} on {ranks}"
    if drawing.grid.nprow == 1:
        return f"{matrix}, columns in blocks of {_block(drawing.columns)} on {ranks}"
    grid = f"{drawing.grid.nprow} x {drawing.grid.npcol} grid"
    if drawing.rows.is_replicated:
        return (
            f"{matrix}, columns in blocks of {_block(drawing.columns)} over a {grid}, each process row holds all rows"
        )
    if drawing.columns.is_replicated:
        return (
            f"{matrix}, rows in blocks of {_block(drawing.rows)} over a {grid}, each process column holds all columns"
        )
    rows, columns, first = drawing.rows, drawing.columns, ""
    if rows.inb is not None or columns.inb is not None:
        first = f" (the first {rows.inb or rows.nb} x {columns.inb or columns.nb})"
    return f"{matrix}, blocks of {rows.nb} x {columns.nb}{first} over a {grid}"


def details(drawing: Drawing) -> str:
    """Sentences about properties that the blocks do not show: the numbering of the ranks, and the local arrays.

    >>> from pblas.layouts import Grid, Split
    >>> details(Drawing(Grid(4, 1), Split(10, 3, 4), Split(4, 4, 1), order="C"))
    'Local arrays are row-major (order C), at most 3 x 4 = 12 elements on a rank.'
    """
    local = "column-major (order F" if drawing.order == "F" else "row-major (order C"
    local += ")" if drawing.lld is None else f", lld {drawing.lld})"
    m_loc, n_loc = drawing.rows.max_count, drawing.columns.max_count
    elements = "1 element" if m_loc * n_loc == 1 else f"{m_loc * n_loc} elements"
    words = f"Local arrays are {local}, at most {m_loc} x {n_loc} = {elements} on a rank."
    if drawing.grid.nprow > 1 and drawing.grid.npcol > 1:
        numbering = "down the columns (order C)" if drawing.grid.order == "C" else "along the rows (order R)"
        words = f"Ranks are numbered {numbering} of the grid. {words}"
    return words


def left_out_words(rows: list[Band], columns: list[Band]) -> str:
    """A sentence about the blocks that a picture leaves out; empty if it shows everything.

    >>> left_out_words([Band(0, 2, 0), Band(2, 98, 1, left_out=48), Band(98, 100, 1)], [Band(0, 9, 0)])
    'Left out: 48 blocks of rows (2:98).'
    """
    gaps = [(band, what) for bands, what in ((rows, "rows"), (columns, "columns")) for band in bands if band.left_out]
    return f"Left out: {', '.join(_gap_words(band, what) for band, what in gaps)}." if gaps else ""


def text_picture(drawing: Drawing, max_width: int = 100) -> str:
    """The matrix as text for the terminal; see `MatrixDescriptor.picture`.

    >>> from pblas.layouts import Grid, Split
    >>> print(text_picture(Drawing(Grid(1, 3), Split(2, 2, 1), Split(3, 1, 3))))
    2 x 3 matrix, columns in blocks of 1 on 3 ranks
    <BLANKLINE>
      mycol   0   1   2
    myrow   0   1   2   3
          0 ┌───┬───┬───┐
        0   │ 0 │ 1 │ 2 │
          2 └───┴───┴───┘
    <BLANKLINE>
    Each block is labelled with the rank that owns it.
    Local arrays are column-major (order F), at most 2 x 1 = 2 elements on a rank.
      rank 0 at (0, 0): 2 x 1
      rank 1 at (0, 1): 2 x 1
      rank 2 at (0, 2): 2 x 1
    """
    max_width = checked_int("picture", "max_width", max_width, 30)
    rows = bands_from_split(drawing.rows, MAX_LINES)
    lines = [*textwrap.wrap(headline(drawing), max_width), ""]
    if not rows or drawing.columns.n == 0:
        empty = "The matrix has no elements: every rank holds an empty array."
        return "\n".join([*lines, *textwrap.wrap(empty, max_width)])
    margin = len("myrow ") + len(str(drawing.rows.n)) + 1
    edge = len(str(drawing.columns.n))
    columns, width = _fit(drawing, rows, max_width - margin - edge)
    lines += _box(drawing.grid, rows, columns, width, margin)
    lines.append("")
    words = ["Each block is labelled with the rank that owns it.", details(drawing), left_out_words(rows, columns)]
    if drawing.is_replicated and drawing.nprocs > 1:
        words[0] = "Every rank of the grid holds the whole matrix."
    for sentence in words:
        lines += textwrap.wrap(sentence, max_width)
    return "\n".join(lines + [f"  {line}" for line in rank_lines(drawing)])


def rank_lines(drawing: Drawing) -> list[str]:
    """One line per rank with its process coordinates and local shape; none if there are too many ranks.

    >>> from pblas.layouts import Grid, Split
    >>> rank_lines(Drawing(Grid(2, 1), Split(10, 5, 2), Split(4, 4, 1)))
    ['rank 0 at (0, 0): 5 x 4', 'rank 1 at (1, 0): 5 x 4']
    """
    if drawing.nprocs > MAX_RANKS or drawing.is_replicated:
        return []
    shapes = [drawing.local_shape(rank) for rank in range(drawing.nprocs)]
    return [f"rank {k} at {drawing.grid.coordinates(k)}: {m_loc} x {n_loc}" for k, (m_loc, n_loc) in enumerate(shapes)]


def _fit(drawing: Drawing, rows: list[Band], available: int) -> tuple[list[Band], int]:
    """The bands of columns that fit into `available` characters, and the width of a cell."""
    columns = bands_from_split(drawing.columns, max(3, available // 4))
    while True:
        labels = [owner_label(drawing.grid, r.p, c.p) for r in rows for c in columns if not (r.left_out or c.left_out)]
        edges = [str(c.g0) for c in columns] + ["all" if c.p == ALL else str(c.p) for c in columns]
        width = max(len(text) for text in labels + edges) + 2
        if len(columns) <= 3 or 1 + len(columns) * (width + 1) <= available:
            return columns, width
        columns = bands_from_split(drawing.columns, max(3, min(len(columns) - 1, available // (width + 1))))


def _box(grid: Grid, rows: list[Band], columns: list[Band], width: int, margin: int) -> list[str]:
    """The lines of the box, with numbered edges, process columns above it and process rows on its left."""
    places = "".join(" " + _coordinate(band, "…").center(width) for band in columns)
    numbers = "".join(str(band.g0).ljust(width + 1) for band in columns) + str(columns[-1].g1)
    lines = [("  mycol".ljust(margin) + places).rstrip(), f"{'myrow':<{margin}}{numbers}"]
    for k, band in enumerate(rows):
        left, middle, right = ("┌", "┬", "┐") if k == 0 else ("├", "┼", "┤")
        lines.append(_rule(band.g0, margin, width, len(columns), left + middle + right))
        cells = "│".join(_cell(grid, band, column).center(width) for column in columns)
        lines.append(f"{_coordinate(band, '⋮'):>5}{'':<{margin - 5}}│{cells}│")
    lines.append(_rule(rows[-1].g1, margin, width, len(columns), "└┴┘"))
    return lines


def _rule(number: int, margin: int, width: int, ncells: int, corners: str) -> str:
    """A horizontal line of the box, with the number of the row below it."""
    return f"{number:>{margin - 1}} {corners[0]}{corners[1].join(['─' * width] * ncells)}{corners[2]}"


def _cell(grid: Grid, row: Band, column: Band) -> str:
    """The label of a cell: its owners, or dots if it is in a gap."""
    if row.left_out or column.left_out:
        return "⋱" if row.left_out and column.left_out else "⋮" if row.left_out else "…"
    return owner_label(grid, row.p, column.p)


def _coordinate(band: Band, dots: str) -> str:
    """The label of a band: its process coordinate, "all", or dots for a gap."""
    return dots if band.left_out else "all" if band.p == ALL else str(band.p)


def _block(split: Split) -> str:
    """The block size of a dimension in words."""
    return f"{split.nb}" if split.inb is None else f"{split.nb} (the first {split.inb})"


def _gap_words(band: Band, what: str) -> str:
    """The number and the range of the blocks in a gap, in words."""
    blocks = "1 block" if band.left_out == 1 else f"{band.left_out} blocks"
    return f"{blocks} of {what} ({band.g0}:{band.g1})"
