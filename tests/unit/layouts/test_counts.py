"""Row-wise and column-wise layouts of given lengths."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from pblas.errors import LayoutError
from pblas.layouts import MatrixDescriptor


def possible(lengths: tuple[int, ...]) -> bool:
    """Whether a block-cyclic distribution of one block for each process has these lengths: the definition."""
    n = sum(lengths)
    return (
        any(
            all(
                MatrixDescriptor(
                    n, 1, nb, 1, MatrixDescriptor.row_wise(1, 1, len(lengths)).grid, src, 0, imb=inb
                ).rows.ranges(p)
                == ([(sum(lengths[:p]), sum(lengths[: p + 1]))] if lengths[p] else [])
                for p in range(len(lengths))
            )
            for nb, inb, src in product(range(1, n + 1), range(1, n + 1), range(len(lengths)))
        )
        or not n
    )


@pytest.mark.parametrize("nprocs", [1, 2, 3])
def test_counts_give_each_rank_its_rows_or_are_refused_if_no_layout_does(nprocs: int) -> None:
    for lengths in product(range(4), repeat=nprocs):
        n = sum(lengths)
        try:
            rows = MatrixDescriptor.row_wise(n, 2, nprocs, counts=lengths)
        except LayoutError as error:
            refused = str(error)
        else:
            refused = ""
        assert possible(lengths) != ("Context.from_parts takes parts of any lengths" in refused), lengths
        if refused:
            continue
        columns = MatrixDescriptor.column_wise(2, n, nprocs, counts=list(lengths), order="C")
        assert [rows.local_shape(p) for p in range(nprocs)] == [(length, 2) for length in lengths]
        assert [columns.local_shape(p) for p in range(nprocs)] == [(2, length) for length in lengths]
        for p, length in enumerate(lengths):
            first = sum(lengths[:p])
            assert rows.rows.ranges(p) == columns.columns.ranges(p) == ([(first, first + length)] if length else [])


def test_even_counts_are_the_even_layout() -> None:
    for m in (0, 1, 7, 8, 9):
        even = MatrixDescriptor.row_wise(m, 3, 4)
        counts = [even.local_shape(p)[0] for p in range(4)]
        assert MatrixDescriptor.row_wise(m, 3, 4, counts=counts).same_distribution(even)


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ([3, 3], "expected one for each of 3 ranks"),
        ([3, 3, 3], "add up to 9, the matrix has 8 rows"),
        ([9, -1, 0], "a count is -1"),
        ([3.0, 3, 2], "a count is 3.0"),
        ("332", "expected the rows of each rank"),
        (8, "expected the rows of each rank"),
    ],
)
def test_counts_that_do_not_fit_are_refused(counts: Any, text: str) -> None:
    with pytest.raises(LayoutError, match=text):
        MatrixDescriptor.row_wise(8, 2, 3, counts=counts)


@pytest.mark.parametrize("more", [{"mb": 3}, {"rsrc": 1}])
def test_counts_stand_in_place_of_blocks(more: Any) -> None:
    with pytest.raises(LayoutError, match="leave out mb and rsrc"):
        MatrixDescriptor.row_wise(8, 2, 3, counts=[3, 3, 2], **more)
