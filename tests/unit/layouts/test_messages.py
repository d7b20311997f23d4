"""Laws of moves: every element arrives once, at its place, and both sides name the same messages."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.messages import Move, received_count, receives, sends
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from tests.unit.layouts.test_placement import descriptors, held, placements


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Placement, Placement]:
    shape = (draw(st.integers(0, 20)), draw(st.integers(0, 20)))
    either = placements(shape) | descriptors(shape).map(Placement.of)
    return draw(either), draw(either)


def places(move: Move) -> list[tuple[int, int, int, int]]:
    """(row at the sender, column there, row at the receiver, column there) of each element of a message."""
    rows = [(a + i, b + i) for a, b, length in move.rows for i in range(length)]
    columns = [(a + i, b + i) for a, b, length in move.columns for i in range(length)]
    return [(i, j, k, l) for (i, k), (j, l) in itertools.product(rows, columns)]


@settings(max_examples=60)
@given(pairs())
def test_every_element_arrives_once_and_at_its_place(pair: tuple[Placement, Placement]) -> None:
    source, target = pair
    span = max(source.span, target.span) + 1
    before, after = ([held(place, rank) for rank in range(span)] for place in pair)
    sent = {(rank, move.peer): move for rank in range(span) for move in sends(source, target, rank)}
    heard = {}
    for rank in range(span):
        n_after = target.local_shape(rank)[1]
        arrived: list[tuple[int, int]] = []
        others = 0
        for move in receives(source, target, rank):
            n_before = source.local_shape(move.peer)[1]
            for i, j, k, l in places(move):
                element = before[move.peer][i * n_before + j]
                assert element == after[rank][k * n_after + l]
                arrived.append(element)
                assert (element in before[rank]) == (move.peer == rank), "what a rank has does not travel"
            if move.peer != rank:
                heard[move.peer, rank] = move
                others += move.shape[0] * move.shape[1]
        assert sorted(arrived) == sorted(after[rank])
        assert others == received_count(source, target, rank)
    assert {(a, b): (move.rows, move.columns) for (a, b), move in sent.items()} == {
        (a, b): (move.rows, move.columns) for (a, b), move in heard.items()
    }


@given(pairs())
def test_senders_begin_with_different_receivers(pair: tuple[Placement, Placement]) -> None:
    """Receivers begin with their own part, then go back from the previous rank; senders begin with the next rank."""
    source, target = pair
    span = max(source.span, target.span)
    for rank in range(span):
        distances = [(rank - move.peer) % span for move in receives(source, target, rank)]
        ahead = [(move.peer - rank) % span for move in sends(source, target, rank)]
        assert distances == sorted(set(distances))
        assert ahead == sorted(set(ahead))
        assert 0 not in ahead


@pytest.mark.parametrize("copies", [2, 3, 4])
def test_copies_share_the_work(copies: int) -> None:
    """From `copies` holders of each block to ranks that hold nothing: no rank sends twice as much as another."""
    source = Placement(Split(12, 6, 2), Split(12, 6, 2), (1, 2, 4), copies)
    target = Placement(Split(12, 1, 12), Split(12, 1, 12), (1, 12, 0), 1, start=source.span)
    sent = [sum(1 for _ in sends(source, target, rank)) for rank in range(source.span)]
    assert sum(sent) == 144
    assert max(sent) <= -(-36 // copies) + 2


def test_a_million_ranks_ask_only_those_they_share_with() -> None:
    p = 1 << 20
    rows, columns = MatrixDescriptor.row_wise(p, 8, p), MatrixDescriptor.row_wise(p, 8, p // 2)
    replicated = MatrixDescriptor.replicated(8, 8, p)
    source, target, everywhere = map(Placement.of, (rows, columns, replicated))
    assert [move.peer for move in receives(source, target, 5)] == [11, 10]
    assert [move.peer for move in sends(source, target, 10)] == [5]
    assert received_count(source, target, 5) == 16
    assert [move.peer for move in receives(everywhere, everywhere, 7)] == [7]
    assert not list(sends(everywhere, everywhere, 7))
