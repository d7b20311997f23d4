"""The picture of a distribution as SVG and HTML, for notebooks and documentation.

The background is transparent. Text outside the blocks is grey, legible on white and on black; text inside a block is
near-black on a pale colour. The picture needs no style sheet, script or font.
"""

from __future__ import annotations

import colorsys
import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from pblas.layouts.drawing.text import (
    ALL,
    MAX_RANKS,
    Band,
    Drawing,
    bands_from_split,
    details,
    headline,
    left_out_words,
    owner_label,
)

if TYPE_CHECKING:
    from pblas.layouts.grid import Grid

MAX_BLOCKS = 20  # largest number of blocks drawn along either side

MAX_WIDTH = 900  # width in pixels from which on fewer blocks are drawn, so that wide labels fit

COLOURS = ("#77aadd", "#ee8866", "#eedd88", "#44bb99", "#ffaabb", "#99ddff", "#bbcc33", "#c9a6e4")
"""Pale colours for ranks 0..7; all but the last are Paul Tol's 'light' scheme, made for colour-blind readers."""

SHARED = "#d5d7da"
"""Colour of replicated blocks."""

GREY = "#757b84"
"""Colour of text outside the blocks: a grey with a contrast above 4 on white and on black."""

INK = "#16181b"
"""Colour of text on a block."""

FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Arial, sans-serif"

TOP, LINE, LETTER = 78, 16, 6.6
_LABEL, _LENGTH, _ROW = 90, 400, 20  # pixels


@dataclass(frozen=True, slots=True)
class Stripe:
    """A band with its first pixel and its length in pixels."""

    band: Band
    start: float
    length: float

    @property
    def middle(self) -> float:
        """Position of its label, pixels."""
        return self.start + self.length / 2

    @property
    def stop(self) -> float:
        """Start of the next stripe, pixels."""
        return self.start + self.length


def colour_of_rank(rank: int) -> str:
    """The colour of a rank's blocks: eight chosen colours, then hues that are a golden angle apart.

    >>> colour_of_rank(0), colour_of_rank(8) != colour_of_rank(9)
    ('#77aadd', True)
    """
    if rank < len(COLOURS):
        return COLOURS[rank]
    hue = rank * (math.sqrt(5) - 1) / 2 % 1
    red, green, blue = colorsys.hls_to_rgb(hue, (0.70, 0.78, 0.84)[rank % 3], 0.55)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def svg_picture(drawing: Drawing) -> str:
    """The matrix as an SVG document: its blocks to scale, coloured by the rank that owns them.

    Small blocks are drawn larger than to scale, so that their labels fit. If there are many blocks, some are left out,
    and a note says so. The tooltip of a block shows its global ranges, its process and its local ranges.

    >>> from pblas.layouts import Grid, Split
    >>> drawing = Drawing(Grid(4, 1), Split(10, 3, 4), Split(4, 4, 1))
    >>> svg_picture(drawing).count("<rect") - 4  # four of them are in the legend
    4
    """
    rows, columns = bands_from_split(drawing.rows, MAX_BLOCKS), bands_from_split(drawing.columns, MAX_BLOCKS)
    label = _longest_label(drawing.grid, rows, columns)
    scale = min(560 / max(1, drawing.columns.n), 400 / max(1, drawing.rows.n), 48)
    digits = LETTER * len(str(drawing.columns.n)) + 4
    least = max(26.0, LETTER * label + 10, digits)
    columns = bands_from_split(drawing.columns, max(6, min(MAX_BLOCKS, int(MAX_WIDTH / least))))
    if not rows or not columns:
        rows = columns = []
    left = 46 + LETTER * max(3, len(str(drawing.rows.n)))
    across = _stripes(columns, left, scale, (least, max(24.0, digits)))
    down = _stripes(rows, TOP, scale, (24.0, 24.0))
    right, bottom = (across[-1].stop, down[-1].stop) if rows else (240.0, TOP + 20.0)

    body = [_cell(drawing, row, column) for row in down for column in across] if rows else [_empty(bottom)]
    body += _axis_across(across) + _axis_down(down, left)
    keys, key_lines = _legend(drawing, bottom + 26)
    notes = [line for line in (details(drawing) if rows else "", left_out_words(rows, columns)) if line]
    y = bottom + 30 + LINE * key_lines
    notes = [piece for line in notes for piece in line.replace(". ", ".\n").split("\n")]
    words = [_text(14, y + LINE * k, line, size=11) for k, line in enumerate(notes)]
    title = headline(drawing)
    width = max(right + 14 + digits / 2, 28 + 8.6 * len(title), 28 + 6.2 * max(map(len, notes), default=0), 340)
    height = y + LINE * len(notes)
    size = f'viewBox="0 0 {_px(width)} {_px(height)}" width="{_px(width)}" height="{_px(height)}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{escape(FONT)}">',
            f"<title>{escape(title)}</title>",
            _text(14, 24, title, size=14, weight="600"),
            *body,
            *keys,
            *words,
            "</svg>",
        ]
    )


def html_picture(drawing: Drawing) -> str:
    """The SVG picture as a self-contained block of HTML.

    >>> from pblas.layouts import Grid, Split
    >>> html_picture(Drawing(Grid(4, 1), Split(10, 3, 4), Split(4, 4, 1)))[:7]
    '<figure'
    """
    return f'<figure style="margin: 0.5em 0; overflow-x: auto">\n{svg_picture(drawing)}\n</figure>'


def _stripes(bands: list[Band], start: float, scale: float, least: tuple[float, float]) -> list[Stripe]:
    """The bands side by side from `start` on: blocks to scale, but at least least[0] long; gaps are least[1] long."""
    stripes: list[Stripe] = []
    for band in bands:
        length = least[1] if band.left_out else max(least[0], scale * (band.g1 - band.g0))
        stripes.append(Stripe(band, start, length))
        start += length
    return stripes


def _longest_label(grid: Grid, rows: list[Band], columns: list[Band]) -> int:
    """Number of characters of the longest label on a block."""
    drawn = [(r.p, c.p) for r in rows for c in columns if not (r.left_out or c.left_out)]
    return max((len(owner_label(grid, *place)) for place in drawn), default=1)


def _cell(drawing: Drawing, row: Stripe, column: Stripe) -> str:
    """One block: its rectangle, its label, and its tooltip."""
    x, y = column.start, row.start
    middle_x, middle_y = column.middle, row.middle + 4
    if row.band.left_out or column.band.left_out:
        both = row.band.left_out and column.band.left_out
        dots = "⋱" if both else "⋮" if row.band.left_out else "…"
        return _text(middle_x, middle_y, dots, size=12, anchor="middle")
    label = owner_label(drawing.grid, row.band.p, column.band.p)
    fill = SHARED if label == "all" else colour_of_rank(drawing.grid.rank(max(row.band.p, 0), max(column.band.p, 0)))
    return (
        f'<g><title>{escape(_tooltip(drawing, row.band, column.band, label))}</title><rect x="{_px(x + 1)}" '
        f'y="{_px(y + 1)}" width="{_px(column.length - 2)}" height="{_px(row.length - 2)}" rx="3" fill="{fill}"/>'
        f"{_text(middle_x, middle_y, label, size=12, anchor='middle', fill=INK)}</g>"
    )


def _tooltip(drawing: Drawing, row: Band, column: Band, label: str) -> str:
    """The tooltip of a block."""
    place = f"A[{row.g0}:{row.g1}, {column.g0}:{column.g1}]"
    if ALL in (row.p, column.p):
        return f"{place} on {'all ranks' if label == 'all' else 'ranks ' + label}"
    i_loc, j_loc = drawing.rows.local_start(row.g0, row.p), drawing.columns.local_start(column.g0, column.p)
    local = f"[{i_loc}:{i_loc + row.g1 - row.g0}, {j_loc}:{j_loc + column.g1 - column.g0}]"
    return f"{place} on rank {label} at ({row.p}, {column.p}), locally {local}"


def _axis_across(across: list[Stripe]) -> list[str]:
    """Process columns and block edges above the matrix."""
    if not across:
        return []
    parts = [_text(across[0].start - 14, TOP - 24, "mycol", size=11, anchor="end")]
    parts += [_text(s.middle, TOP - 24, _place(s.band, "…"), size=11, anchor="middle") for s in across]
    parts += [_text(s.start, TOP - 7, str(s.band.g0), size=10, anchor="middle") for s in across]
    return [*parts, _text(across[-1].stop, TOP - 7, str(across[-1].band.g1), size=10, anchor="middle")]


def _axis_down(down: list[Stripe], left: float) -> list[str]:
    """Process rows and block edges left of the matrix."""
    if not down:
        return []
    parts = [_text(14, TOP - 7, "myrow", size=11)]
    parts += [_text(28, s.middle + 4, _place(s.band, "⋮"), size=11, anchor="middle") for s in down]
    parts += [_text(left - 7, s.start + 3.5, str(s.band.g0), size=10, anchor="end") for s in down]
    return [*parts, _text(left - 7, down[-1].stop + 3.5, str(down[-1].band.g1), size=10, anchor="end")]


def _place(band: Band, dots: str) -> str:
    """The process coordinate of a band."""
    return dots if band.left_out else "all" if band.p == ALL else str(band.p)


def _legend(drawing: Drawing, y: float) -> tuple[list[str], int]:
    """The key to the colours, and its number of lines."""
    if drawing.is_replicated and drawing.nprocs > 1:
        return [_key(14, y, SHARED, f"all {drawing.nprocs} ranks: {drawing.rows.n} x {drawing.columns.n} each")], 1
    if drawing.nprocs > MAX_RANKS:
        return [_text(14, y, f"A block is labelled and coloured by its rank, 0..{drawing.nprocs - 1}.", size=11)], 1
    keys = []
    for rank in range(drawing.nprocs):
        m_loc, n_loc = drawing.local_shape(rank)
        myrow, mycol = drawing.grid.coordinates(rank)
        row, column = ALL if drawing.rows.is_replicated else myrow, ALL if drawing.columns.is_replicated else mycol
        owner = drawing.grid.rank(max(row, 0), max(column, 0))
        keys.append(
            _key(14, y + LINE * rank, colour_of_rank(owner), f"rank {rank} at ({myrow}, {mycol}): {m_loc} x {n_loc}")
        )
    return keys, len(keys)


def _key(x: float, y: float, fill: str, words: str) -> str:
    """One line of the legend."""
    swatch = f'<rect x="{_px(x)}" y="{_px(y - 9)}" width="11" height="11" rx="2" fill="{fill}"/>'
    return f"{swatch}{_text(x + 18, y, words, size=11)}"


def _empty(bottom: float) -> str:
    """The frame drawn for a matrix without elements."""
    frame = (
        f'<rect x="14" y="42" width="226" height="{_px(bottom - 42)}" rx="4" fill="none" stroke="{GREY}" '
        f'stroke-dasharray="4 4"/>'
    )
    return f"{frame}{_text(127, (42 + bottom) / 2 + 4, 'no elements', size=12, anchor='middle')}"


def _text(
    x: float, y: float, words: str, *, size: int, anchor: str = "start", weight: str = "", fill: str = GREY
) -> str:
    """A line of text at (x, y)."""
    extra = (f' text-anchor="{anchor}"' if anchor != "start" else "") + (f' font-weight="{weight}"' if weight else "")
    return f'<text x="{_px(x)}" y="{_px(y)}" font-size="{size}" fill="{fill}"{extra}>{escape(words)}</text>'


def _px(length: float) -> str:
    """A length in pixels with at most one decimal."""
    return f"{length:.1f}".removesuffix(".0")


def html_of(text: str, received: int, bound: float) -> str:
    """A plan as HTML.

    >>> html_of("C: a < b", 96, 48.0).count("<rect"), "C: a &lt; b" in html_of("C: a < b", 96, 48.0)
    (2, True)
    """
    return (
        f"<pre>{escape(text)}</pre>\n{_bars((('received', received, COLOURS[0]), ('lower bound', bound, COLOURS[3])))}"
    )


def _bars(rows: tuple[tuple[str, float, str], ...]) -> str:
    """Bars of numbers of bytes, on one scale: name, bytes and colour of each."""
    most, parts = max(nbytes for _, nbytes, _ in rows) or 1, []
    for i, (name, nbytes, colour) in enumerate(rows):
        top, length = _ROW * i, _LENGTH * nbytes / most
        parts += [
            f'<text x="0" y="{top + 14}" fill="{GREY}">{name}</text>',
            f'<rect x="{_LABEL}" y="{top + 3}" width="{length:.1f}" height="14" fill="{colour}"/>',
            f'<text x="{_LABEL + length + 6:.1f}" y="{top + 14}" fill="{GREY}">{nbytes:,.0f} bytes</text>',
        ]
    size = f'width="{_LABEL + _LENGTH + 200}" height="{_ROW * len(rows)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}" font-size="12">{"".join(parts)}</svg>'
