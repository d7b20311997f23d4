"""Laws of the index maps, against an enumeration of blocks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pblas.errors import LayoutError
from pblas.layouts.index import indxg2l, indxg2p, indxl2g, numroc

NBS = (1, 2, 3, 4, 9)
INBS = (None, 1, 2, 3, 5, 12)


def owners_by_enumeration(n: int, nb: int, isrcproc: int, nprocs: int, inb: int | None) -> list[int]:
    """Deal out the elements one block at a time, as one would by hand."""
    owners: list[int] = []
    block = 0
    while len(owners) < n:
        length = (inb or nb) if block == 0 else nb
        owners += [(isrcproc + block) % nprocs] * length
        block += 1
    return owners[:n]


def cases(n: int) -> Iterator[tuple[int, int, int, int | None]]:
    """Every small (nb, isrcproc, nprocs, inb)."""
    assert n > 0
    for nb, nprocs, inb in itertools.product(NBS, range(1, 5), INBS):
        for isrcproc in range(nprocs):
            yield nb, isrcproc, nprocs, inb


def test_maps_agree_with_an_enumeration_of_blocks() -> None:
    n = 19
    for nb, src, nprocs, inb in cases(n):
        owners = owners_by_enumeration(n, nb, src, nprocs, inb)
        assert [indxg2p(g, nb, src, nprocs, inb) for g in range(n)] == owners
        for p in range(nprocs):
            owned = [g for g in range(n) if owners[g] == p]
            assert [indxg2l(g, nb, nprocs, inb) for g in owned] == list(range(len(owned)))
            assert [indxl2g(l, nb, p, src, nprocs, inb) for l in range(len(owned))] == owned
            for stop in range(n + 1):
                assert numroc(stop, nb, p, src, nprocs, inb) == sum(g < stop for g in owned)


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
def test_an_array_gives_what_its_elements_give(dtype: Any) -> None:
    n = 19
    indices = np.arange(n, dtype=dtype)
    indices.flags.writeable = False
    assert indxg2p(indices[:18].reshape(6, 3), 2, 0, 3).shape == (6, 3)
    for nb, src, nprocs, inb in cases(n):
        pairs: list[tuple[Any, list[int]]] = [
            (indxg2p(indices, nb, src, nprocs, inb), [indxg2p(g, nb, src, nprocs, inb) for g in range(n)]),
            (indxg2l(indices, nb, nprocs, inb), [indxg2l(g, nb, nprocs, inb) for g in range(n)]),
            (indxl2g(indices, nb, src, src, nprocs, inb), [indxl2g(g, nb, src, src, nprocs, inb) for g in range(n)]),
            (numroc(indices, nb, src, src, nprocs, inb), [numroc(g, nb, src, src, nprocs, inb) for g in range(n)]),
        ]
        for array, listed in pairs:
            assert array.dtype.kind == "i"
            assert array.tolist() == listed


def test_replicated_means_that_every_process_owns_everything() -> None:
    for p, g in itertools.product(range(3), range(9)):
        assert numroc(9, 2, p, -1, 3) == 9
        assert indxl2g(g, 2, p, -1, 3) == g
        assert indxg2p(g, 2, -1, 3) == 0
    assert indxg2p(np.arange(3), 2, -1, 3).tolist() == [0, 0, 0]


def test_numbers_beyond_64_bits_are_exact() -> None:
    n, nprocs = 10**30 + 7, 10**6
    assert sum(numroc(n, 10**24, p, 5, nprocs) > 0 for p in (5, 6, 4)) == 3
    g = 10**29 + 3
    p = indxg2p(g, 10**9, 5, nprocs)
    assert indxl2g(indxg2l(g, 10**9, nprocs), 10**9, p, 5, nprocs) == g


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: numroc(-1, 2, 0, 0, 2), "numroc: n is -1; expected an integer >= 0."),
        (lambda: numroc(9, 0, 0, 0, 2), "numroc: nb is 0; expected an integer >= 1."),
        (lambda: numroc(9, 2, 2, 0, 2), "numroc: iproc is 2; expected an integer in 0..1 (nprocs - 1)."),
        (lambda: numroc(9, 2, 0, 2, 2), "numroc: isrcproc is 2; expected an integer in -1..1 (nprocs - 1)."),
        (lambda: numroc(9, 2, 0, 0, 0), "numroc: nprocs is 0; expected an integer >= 1."),
        (lambda: numroc(9, 2, 0, 0, 2, 0), "numroc: inb is 0; expected an integer >= 1."),
        (lambda: indxg2p(-1, 2, 0, 2), "indxg2p: indxglob is -1; expected an integer >= 0."),
        (lambda: indxg2l(-1, 2, 2), "indxg2l: indxglob is -1; expected an integer >= 0."),
        (lambda: indxl2g(-1, 2, 0, 0, 2), "indxl2g: indxloc is -1; expected an integer >= 0."),
        (lambda: numroc(9, True, 0, 0, 2), "numroc: nb is True, a bool; expected an integer >= 1."),
        (lambda: numroc(9, 2, 0, 0, np.int64(0)), "numroc: nprocs is 0; expected an integer >= 1."),  # type: ignore[call-overload]
        (
            lambda: indxg2p(np.arange(3.0), 2, 0, 2),
            "indxg2p: indxglob has dtype float64; expected an integer >= 0, or an array of signed integers.",
        ),
        (
            lambda: indxg2p(np.arange(3, dtype=np.uint64), 2, 0, 2),
            "indxg2p: indxglob has dtype uint64; expected an integer >= 0, or an array of signed integers.",
        ),
        (
            lambda: indxg2p("3", 2, 0, 2),  # type: ignore[call-overload]
            "indxg2p: indxglob is '3', a str; expected an integer >= 0, or an array of signed integers.",
        ),
    ],
)
def test_a_bad_argument_is_named_with_its_value(call: Callable[[], object], text: str) -> None:
    with pytest.raises(LayoutError) as caught:
        call()
    assert str(caught.value) == text
