"""Laws of packing: strided runs equal the runs that they replace, and copies put every element in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pblas.layouts.messages import Move, receives
from pblas.layouts.overlap import Run, overlaps
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.layouts.strided import StridedRun, strided_runs
from pblas.layouts.trapezoid import Trapezoid
from pblas.redistribution.assembly import Assembly
from pblas.redistribution.packing import COPY, Message, Scaling
from tests.common.gauge import NAMES, dtype_of, entries

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array

orders: st.SearchStrategy[Literal["F", "C"]] = st.sampled_from(["F", "C"])


@st.composite
def run_lists(draw: st.DrawFn) -> list[Run]:
    """Ascending runs with gaps: a pattern repeated, and something before and after it."""
    lengths = st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 2))
    pattern = draw(st.lists(lengths, min_size=1, max_size=4)) * draw(st.integers(1, 4))
    runs, source, target = [], 0, 0
    for length, source_gap, target_gap in (
        draw(st.lists(lengths, max_size=2)) + pattern + draw(st.lists(lengths, max_size=2))
    ):
        runs.append((source, target, length))
        source, target = source + length + source_gap, target + length + target_gap
    return runs


def places(strided: list[StridedRun]) -> list[tuple[int, int, int]]:
    """(source, packed, target) of every element."""
    elements = (
        tuple(s + i * step + l * stride for s, step, stride in zip(c.starts, c.steps, c.strides, strict=True))
        for c in strided
        for i in range(c.count)
        for l in range(c.length)
    )
    return sorted((source, packed, target) for source, packed, target in elements)


@given(run_lists())
def test_strided_runs_are_the_runs(runs: list[Run]) -> None:
    elements = [(s + l, t + l) for s, t, length in runs for l in range(length)]
    strided = strided_runs(runs)
    assert places(strided) == [(s, k, t) for k, (s, t) in enumerate(elements)]
    assert places([run for strided_run in strided for run in strided_run.runs()]) == places(strided)
    for limit in (1, 2, 5, 100):
        lines = [
            tuple(start + i * step for start, step in zip(starts, steps, strict=True))
            for strided_run in strided
            for starts, steps, count in strided_run.lines(limit)
            for i in range(count)
        ]
        assert sorted(lines) == places(strided)


def test_cyclic_layouts_need_few_strided_runs() -> None:
    """Their number depends on the blocks and the ranks, not on the size of the matrix."""
    for n in (10_000, 20_000):
        for runs in overlaps(Split(n, 5, 2), 0, Split(n, 7, 3)).values():
            assert len(strided_runs(runs)) <= 12
        assert [len(strided_runs(runs)) for runs in overlaps(Split(n, 4, 2), 0, Split(n, 8, 2)).values()] == [1, 1]


@given(run_lists(), run_lists(), orders, orders, orders, st.none() | st.builds(Trapezoid, st.sampled_from(["U", "L"])))
def test_packing_and_unpacking_is_bringing(
    rows: list[Run],
    columns: list[Run],
    order_x: Literal["F", "C"],
    order_out: Literal["F", "C"],
    order: Literal["F", "C"],
    trapezoid: Trapezoid | None,
) -> None:
    move = Move(0, tuple(rows), tuple(columns))
    high, wide = (runs[-1][0] + runs[-1][2] for runs in (rows, columns))
    whole = Placement(Split(high, high, 1), Split(wide, wide, 1), (1, 1, 1))
    parts = [(move, None)] if trapezoid is None else list(trapezoid.cut(move, whole, 0, 0))
    message = Message(0, parts, order, {})
    shapes = [tuple(runs[-1][side] + runs[-1][2] for runs in (rows, columns)) for side in (0, 1)]
    x = np.asarray(np.arange(1.0, 1 + np.prod(shapes[0])).reshape(shapes[0]), order=order_x)
    packed, expected, unpacked, brought = (
        np.empty(message.nelements),
        *(np.zeros(shapes[1], order=order_out) for _ in "123"),
    )
    for i, k, high in rows:
        for j, l, wide in columns:
            inside = np.ones((high, wide), np.bool_)
            if trapezoid is not None:
                side = np.triu if trapezoid.uplo == "U" else np.tril
                inside = side(inside, trapezoid.diagonal - j + i)
            expected[k : k + high, l : l + wide] = x[i : i + high, j : j + wide] * inside
    message.pack(x, packed)
    message.unpack(packed, unpacked, COPY)
    message.bring(x, brought, COPY)
    assert np.array_equal(unpacked, expected)
    assert np.array_equal(brought, expected)
    assert message.nelements == np.count_nonzero(expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("alpha", [0.0, 1.0, -2.5])
@pytest.mark.parametrize("beta", [0.0, 1.0, 0.75])
def test_combination_reads_what_it_must_and_rounds_once(name: str, alpha: float, beta: float) -> None:
    dtype = dtype_of(name)
    x, old = entries((5, 7), dtype, 1), entries((5, 7), dtype, 2)
    wide = np.complex128 if dtype.kind == "c" else np.float64
    expected = alpha * np.conj(x).astype(wide) + beta * old.astype(wide)
    out = old.copy() if beta else np.full_like(old, np.nan)
    Scaling(alpha, beta, conj=dtype.kind == "c")(x if alpha else np.full_like(x, np.nan), out)
    if dtype.itemsize == 2:
        exact = (np.float32(alpha) * x.astype(np.float32) + np.float32(beta) * old.astype(np.float32)).astype(dtype)
        assert np.array_equal(out, exact)
    else:
        size = abs(alpha) * np.abs(x) + abs(beta) * np.abs(old)
        assert (np.abs(out - expected) <= 2 * np.finfo(dtype).eps * size).all()


@pytest.mark.parametrize("order_out", ["F", "C"])
@pytest.mark.parametrize("blocks", [(64, 100), (7, 5), (700, 1)])
def test_copies_of_many_tiles_and_columns(order_out: Literal["F", "C"], blocks: tuple[int, int]) -> None:
    """The matrix is so large that every method copies it in parts."""
    n = 1400
    rows, columns = (overlaps(Split(n, blocks[0], 2), 0, Split(n, blocks[1], 2, src))[1] for src in (0, 1))
    message = Message(0, [(Move(0, tuple(rows), tuple(columns)), None)], "F", {})
    x = np.asfortranarray(np.arange(720.0 * 720).reshape(720, 720))
    expected, result = np.zeros((2, 720, 720)), np.zeros((720, 720), order=order_out)
    for i, k, high in rows:
        for j, l, wide in columns:
            expected[0, k : k + high, l : l + wide] = x[i : i + high, j : j + wide]
    expected[1] = 2 * expected[0]
    message.bring(x, result, COPY)
    assert np.array_equal(result, expected[0])
    packed = np.empty(message.nelements)
    message.pack(x, packed)
    message.unpack(packed, result, Scaling(1.0, 1.0))
    assert np.array_equal(result, expected[1])


@pytest.mark.parametrize("order", ["F", "C"])
@pytest.mark.parametrize("name", ["float64", "complex64", "bfloat16"])
@pytest.mark.parametrize(
    ("before", "after"), [(64, 100), (7, 5), (5, 1), (1, 6), (64, 1), (700, 3), (40, 40), (300, 150)]
)
def test_panels_are_assembled_from_all_ranks(order: Literal["F", "C"], name: str, before: int, after: int) -> None:
    """Copies and adds to a tight array and to one with gaps between its columns; the gaps stay unchanged."""
    shape, dtype = (431, 397), dtype_of(name)
    source = Placement(Split(431, before, 2, 1), Split(397, before, 3, 1), (3, 1, 6))
    target = Placement(Split(431, after, 3), Split(397, after, 2), (2, 1, 6))
    x = entries(shape, dtype, 1)

    def part(place: Placement, rank: int) -> Array:
        r, c, _ = place.coordinates(rank) or (0, 0, 0)
        rows, columns = (
            [g for g0, g1 in split.runs(p) for g in range(g0, g1)] for split, p in ((place.rows, r), (place.columns, c))
        )
        return np.asarray(x[np.ix_(rows, columns)], order=order)

    parts = [part(source, rank) for rank in range(6)]
    for rank in (0, 5):
        expected, moves = part(target, rank), list(receives(source, target, rank))
        m, n = expected.shape
        memory = np.full((m + 3, n + 3), -99, dtype, order=order)
        for out in (np.zeros_like(expected), memory[:m, :n]):
            assembly = Assembly(moves, {})
            assert assembly.bring(parts.__getitem__, out, COPY)
            assert np.array_equal(out, expected)
            assert assembly.bring(parts.__getitem__, out, Scaling(1.0, 1.0))
            assert np.array_equal(out, expected + expected)
        assert (memory[m:] == -99).all()
        assert (memory[:, n:] == -99).all()
        assert not assembly.bring(lambda peer: np.asarray(parts[peer], order="C" if order == "F" else "F"), out, COPY)
