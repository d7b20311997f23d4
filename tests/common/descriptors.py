"""Descriptors that Hypothesis draws: any grid of up to 3 x 4 ranks, blocks, first blocks, sources and orders."""

from hypothesis import strategies as st

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid

TIGHT: st.SearchStrategy[int | None] = st.none()


@st.composite
def descriptors(draw: st.DrawFn, most: int = 9, llds: st.SearchStrategy[int | None] = TIGHT) -> MatrixDescriptor:
    """Any descriptor of a matrix with up to `most` rows and columns."""
    grid = Grid(draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.sampled_from(("C", "R"))))
    sizes, blocks, firsts = st.integers(0, most), st.integers(1, 5), st.none() | st.integers(1, 6)
    return MatrixDescriptor(
        draw(sizes),
        draw(sizes),
        draw(blocks),
        draw(blocks),
        grid,
        draw(st.integers(-1, grid.nprow - 1)),
        draw(st.integers(-1, grid.npcol - 1)),
        draw(st.sampled_from(("F", "C"))),
        draw(llds),
        draw(firsts),
        draw(firsts),
    )
