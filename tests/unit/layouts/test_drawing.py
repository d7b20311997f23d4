"""Laws of the pictures: every owner shown is right, everything fits, and omissions are marked."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pblas.errors import LayoutError
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.drawing.svg import colour_of_rank
from pblas.layouts.drawing.text import Band, bands_from_split
from pblas.layouts.grid import Grid
from pblas.layouts.split import Split
from tests.common.descriptors import descriptors

SVG = "{http://www.w3.org/2000/svg}"


def cells(picture: str) -> list[list[str]]:
    """The labels in the box, row by row."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in picture.splitlines() if "│" in line]


@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 4), st.integers(3, 12), st.data())
def test_bands_cover_the_dimension_and_are_few(n: int, nb: int, nprocs: int, limit: int, data: st.DataObject) -> None:
    split = Split(n, nb, nprocs, data.draw(st.integers(-1, nprocs - 1)), data.draw(st.none() | st.integers(1, 12)))
    bands = bands_from_split(split, limit)
    assert len(bands) <= limit
    assert [band.g0 for band in bands] == [0, *(band.g1 for band in bands[:-1])][: len(bands)]
    assert (bands[-1].g1 if bands else 0) == n
    for band in bands:
        assert band.g0 < band.g1
        if not band.left_out and band.p >= 0:
            assert {split.owner(g) for g in range(band.g0, band.g1)} == {band.p}
    if split.nprocs > 1 and not split.is_replicated:
        assert sum(band.left_out or 1 for band in bands) == split.nblocks


@given(descriptors(40, st.none() | st.integers(1, 99)), st.integers(30, 120))
def test_text_fits_and_shows_the_owner_of_every_block_it_draws(desc: MatrixDescriptor, max_width: int) -> None:
    picture = desc.picture(max_width)
    assert max(len(line) for line in picture.splitlines()) <= max_width
    assert not any(line != line.rstrip() for line in picture.splitlines())
    if 0 in desc.shape:
        assert "no elements" in picture
        return
    drawn = cells(picture)
    assert drawn
    owned = {str(rank) for rank in range(desc.nprocs)}
    for row in drawn:
        assert len(row) == len(drawn[0])
        for label in row:
            if desc.rsrc != -1 and desc.csrc != -1:
                assert label in owned | {"…", "⋮", "⋱"}
    dotted = any(label in {"…", "⋮", "⋱"} for row in drawn for label in row)
    assert dotted == ("Left out:" in " ".join(picture.split()))
    if not dotted and not desc.is_replicated and -1 not in (desc.rsrc, desc.csrc):
        expected = [
            [str(desc.owner(r.g0, c.g0)) for c in bands_from_split(desc.columns, 999)]
            for r in bands_from_split(desc.rows, 999)
        ]
        assert drawn == expected


@pytest.mark.parametrize(
    ("desc", "words"),
    [
        (MatrixDescriptor.replicated(3, 4, 5), "3 x 4 matrix, replicated on 5 ranks"),
        (MatrixDescriptor.replicated(3, 4, 1), "3 x 4 matrix, whole on 1 rank"),
        (MatrixDescriptor.row_wise(9, 4, 2), "9 x 4 matrix, rows in blocks of 5 on 2 ranks"),
        (MatrixDescriptor.column_wise(9, 4, 2), "9 x 4 matrix, columns in blocks of 2 on 2 ranks"),
        (
            MatrixDescriptor.row_wise(9, 4, 2).submatrix(2, 9, 0, 4),
            "7 x 4 matrix, rows in blocks of 5 (the first 3) on 2 ranks",
        ),
        (
            MatrixDescriptor(9, 9, 2, 3, Grid(2, 2)).submatrix(1, 9, 3, 9),
            "8 x 6 matrix, blocks of 2 x 3 (the first 1 x 3) over a 2 x 2 grid",
        ),
        (
            MatrixDescriptor(4, 4, 2, 2, Grid(2, 2), rsrc=-1),
            "4 x 4 matrix, columns in blocks of 2 over a 2 x 2 grid, each process row holds all rows",
        ),
        (
            MatrixDescriptor(4, 4, 2, 2, Grid(2, 2), csrc=-1),
            "4 x 4 matrix, rows in blocks of 2 over a 2 x 2 grid, each process column holds all columns",
        ),
    ],
)
def test_the_first_line_says_the_distribution(desc: MatrixDescriptor, words: str) -> None:
    assert desc.picture(200).splitlines()[0] == words
    assert words in desc._repr_svg_()


def test_the_order_of_local_arrays_and_of_ranks_is_said() -> None:
    desc = MatrixDescriptor(4, 4, 2, 2, Grid(2, 2, "R"), order="C", lld=7)
    for picture in (desc.picture(200), desc._repr_html_()):
        assert "Local arrays are row-major (order C, lld 7)" in picture
        assert "Ranks are numbered along the rows (order R)" in picture


def test_a_million_ranks_fit_on_the_screen() -> None:
    desc = MatrixDescriptor(10**9, 10**9, 1000, 1000, Grid(1000, 1000))
    assert len(desc.picture().splitlines()) < 50
    assert "999999" in desc.picture()
    assert len(desc._repr_html_()) < 200_000


@settings(max_examples=50)
@given(descriptors(40, st.none() | st.integers(1, 99)))
def test_svg_is_well_formed_and_coloured_by_owner(desc: MatrixDescriptor) -> None:
    root = ET.fromstring(desc._repr_svg_())
    assert root.tag == f"{SVG}svg"
    title = root.find(f"{SVG}title")
    assert title is not None
    assert f"{desc.m} x {desc.n} matrix" in (title.text or "")
    blocks = root.findall(f"{SVG}g")
    assert bool(blocks) == (0 not in desc.shape)
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    for block in blocks:
        tooltip, rect = block.find(f"{SVG}title"), block.find(f"{SVG}rect")
        assert tooltip is not None
        assert rect is not None
        x, y = float(rect.attrib["x"]), float(rect.attrib["y"])
        assert 0 <= x <= x + float(rect.attrib["width"]) <= width
        assert 0 <= y <= y + float(rect.attrib["height"]) <= height
        match = re.match(r"A\[(\d+):(\d+), (\d+):(\d+)\] on rank (\d+) ", tooltip.text or "")
        if match:
            i0, i1, j0, j1, rank = map(int, match.groups())
            assert {desc.owner(i0, j0), desc.owner(i1 - 1, j1 - 1)} == {rank}
            assert rect.attrib["fill"] == colour_of_rank(rank)
        else:
            assert -1 in (desc.rsrc, desc.csrc)


def test_html_needs_nothing_else() -> None:
    html = MatrixDescriptor(9, 9, 2, 3, Grid(2, 2))._repr_html_()
    assert html.count("<svg") == html.count("</svg>") == 1
    for foreign in ("<script", "<link", "href", "url(", "@import"):
        assert foreign not in html


def test_colours_are_pale_enough_for_dark_words() -> None:
    for rank in range(500):
        channels = [int(colour_of_rank(rank)[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert (luminance + 0.05) / (0.01 + 0.05) >= 4.5  # WCAG 2.1, level AA
    assert len({colour_of_rank(rank) for rank in range(64)}) == 64


def test_a_picture_that_is_too_narrow_is_refused() -> None:
    with pytest.raises(LayoutError, match="max_width is 29; expected an integer >= 30"):
        MatrixDescriptor.replicated(2, 2, 2).picture(29)
    assert Band(0, 1, 0) == Band(0, 1, 0, left_out=0)
