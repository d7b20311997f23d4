"""The calls of pblas.scalapack: grids, local arrays, equal errors on every rank, and some conformance problems.

`make conformance` runs the whole tables.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from pblas import MismatchError, PblasArgumentError, scalapack
from pblas.layouts.grid import Grid
from pblas.layouts.index import indxl2g
from tests.common.ranks import COMM, each_wrong, grids, raises_on_all_ranks, same_on_all_ranks, some_wrong
from tests.conformance import errors, problems
from tests.conformance.suites import SUITES
from tests.conformance.tables import error_exits

pytestmark = pytest.mark.mpi

Array = np.ndarray[Any, np.dtype[Any]]
TIMEOUT = 20.0
SHAPE = max(grids(COMM.size), key=min)
"""The grid of all ranks that is nearest to a square."""


def numbered(i: Array, j: Array) -> Array:
    """Entries that are different, and encode row and column, from 1."""
    return 100.0 * i + j


class Distribution:
    """A matrix on a grid, with entries that tell their place; nothing on a rank outside.

    Args:
        ictxt: handle of the grid (local).
        m: rows (global).
        n: columns (global).
        mb: rows per block (global).
        nb: columns per block (global).
        order: of the local array (local).
    """

    def __init__(self, ictxt: int, m: int, n: int, mb: int, nb: int, order: Any = "F", entries: Any = numbered) -> None:
        self.desc: list[int] = [1, -1]
        self.local: Array = np.zeros((0, 0))
        nprow, npcol, myrow, mycol = scalapack.gridinfo(ictxt)
        if nprow < 0:
            return
        rows, columns = (
            np.array([indxl2g(l, b, p, 0, q) + 1 for l in range(scalapack.numroc(size, b, p, 0, q))], int)
            for size, b, p, q in ((m, mb, myrow, nprow), (n, nb, mycol, npcol))
        )
        self.rows, self.columns = rows[:, None], columns[None, :]
        self.local = np.array(entries(self.rows, self.columns) + np.zeros((len(rows), len(columns))), order=order)
        self.desc = scalapack.descinit(m, n, mb, nb, 0, 0, ictxt, max(1, len(rows)))

    @property
    def at(self) -> tuple[Array, int, int, list[int]]:
        """X, IX, JX, DESCX of the whole matrix."""
        return self.local, 1, 1, self.desc


@pytest.fixture(scope="module")
def ictxt() -> Iterator[int]:
    handle = scalapack.gridinit(COMM, "R", *SHAPE, timeout=TIMEOUT)
    yield handle
    scalapack.gridexit(handle)


def check_call(ictxt: int) -> None:
    """**Collective.** Assert that a call still gives the right result."""
    a, c = Distribution(ictxt, 5, 7, 2, 2), Distribution(ictxt, 7, 5, 3, 1)
    scalapack.pdtran(7, 5, 1.0, *a.at, 0.0, *c.at)
    assert np.array_equal(c.local, numbered(c.columns, c.rows))


# Grids


@pytest.mark.parametrize("order", ["Row-major", "c"])
@pytest.mark.parametrize(
    ("nprow", "npcol"),
    [(1, 1), SHAPE, (COMM.size, 1), (1, max(1, COMM.size - 1))],
    ids=["one process", "square", "one column", "all processes but one"],
)
def test_gridinit_numbers_its_processes(order: str, nprow: int, npcol: int) -> None:
    handle = scalapack.gridinit(COMM, order, nprow, npcol, timeout=TIMEOUT)
    grid = Grid(nprow, npcol, "C" if order[0] == "c" else "R")
    expected = (nprow, npcol, *grid.coordinates(COMM.rank)) if COMM.rank < grid.size else (-1, -1, -1, -1)
    assert scalapack.gridinfo(handle) == expected
    assert (handle == -1) == (COMM.rank >= grid.size)
    if handle >= 0:
        for rank in range(grid.size):
            assert scalapack.pcoord(handle, rank) == grid.coordinates(rank)
            assert scalapack.pnum(handle, *grid.coordinates(rank)) == rank
        assert scalapack.pnum(handle, nprow, 0) == -1
        assert scalapack.pcoord(handle, grid.size) == (-1, -1)
        scalapack.gridexit(handle)
        assert scalapack.gridinfo(handle) == (-1, -1, -1, -1)
    with pytest.raises(PblasArgumentError) as caught:
        scalapack.gridexit(handle)
    assert caught.value.info == -1


@pytest.mark.parametrize("flat", [False, True])
def test_gridmap_places_ranks_by_its_map(flat: bool) -> None:
    ranks = list(range(COMM.size))[::-1]
    table = np.array(ranks).reshape(SHAPE)
    usermap: Any = np.concatenate([table, [[99] * SHAPE[1]]]).T.ravel().tolist() if flat else table.tolist()
    handle = scalapack.gridmap(COMM, usermap, SHAPE[0] + flat, *SHAPE, timeout=TIMEOUT)
    (row,), (column,) = np.where(table == COMM.rank)
    assert scalapack.gridinfo(handle) == (*SHAPE, row, column)
    assert scalapack.pnum(handle, int(row), int(column)) == COMM.rank
    assert scalapack.pcoord(handle, COMM.rank) == (row, column)
    check_call(handle)
    scalapack.gridexit(handle)


def test_pinfo_and_get() -> None:
    assert scalapack.pinfo() == (COMM.rank, COMM.size)
    assert scalapack.get(-1, 0) == 0
    with pytest.raises(PblasArgumentError):
        scalapack.get(-1, 3)


BAD_GRIDS: dict[str, tuple[int, Callable[[], object]]] = {
    "too large": (-3, lambda: scalapack.gridinit(COMM, "R", COMM.size + 1, 1)),
    "no rows": (-3, lambda: scalapack.gridinit(COMM, "R", 0, 1)),
    "columns are no integer": (-4, lambda: scalapack.gridinit(COMM, "R", 1, 1.0)),  # type: ignore[arg-type]
    "a handle that is not 0": (-1, lambda: scalapack.gridinit(7, "R", 1, 1)),
    "a rank twice": (-2, lambda: scalapack.gridmap(COMM, [[0], [0]], 2, 2 if COMM.size > 1 else 1, 1)),
    "a rank that is not there": (-2, lambda: scalapack.gridmap(COMM, [[COMM.size]], 1, 1, 1)),
    "a map that is too small": (-2, lambda: scalapack.gridmap(COMM, [[0]], COMM.size, COMM.size, 1)),
    "a map of text": (-2, lambda: scalapack.gridmap(COMM, [["a"]], 1, 1, 1)),
    "no communicator": (-1, lambda: scalapack.gridinit("x", "R", 1, 1)),  # type: ignore[arg-type]
    "a ragged map": (-2, lambda: scalapack.gridmap(COMM, [[0], [0, 1]], 2, 1, 1)),
    "ldumap is text": (-3, lambda: scalapack.gridmap(COMM, [0], "a", 1, 1)),  # type: ignore[arg-type]
    "a negative timeout": (0, lambda: scalapack.gridinit(COMM, "R", 1, 1, timeout=-1)),
    "a timeout of text": (0, lambda: scalapack.gridinit(COMM, "R", 1, 1, timeout="abc")),
    "no such backend": (0, lambda: scalapack.gridinit(COMM, "R", 1, 1, backend="x")),
    "ldumap": (-3, lambda: scalapack.gridmap(COMM, [0], 0, 1, 1)),
    "an unknown option": (0, lambda: scalapack.gridinit(COMM, "R", 1, COMM.size, speed=1)),
    "a link without messages": (0, lambda: scalapack.gridinit(COMM, "R", 1, 1, link=(0.0, 1e9))),
    "a link that is a list": (0, lambda: scalapack.gridinit(COMM, "R", 1, 1, link=[0.0, 1e9], transport="message")),
    "a GPU for ranks on CPUs": (0, lambda: scalapack.gridinit(COMM, "R", 1, 1, backend="mpi", device=0)),
}
TEXTS = {
    "too large": "the communicator has",
    "an unknown option": "no option 'speed'",
    "a link without messages": "gridinit: link",
    "a link that is a list": "gridinit: link must",
    "a GPU for ranks on CPUs": "gridinit: device",
}


@pytest.mark.parametrize("name", BAD_GRIDS)
def test_impossible_grids_are_refused_on_every_rank(name: str) -> None:
    info, call = BAD_GRIDS[name]
    if COMM.size == 1 and name in ("a rank twice", "a map that is too small"):
        pytest.skip("needs two ranks")

    raises_on_all_ranks(PblasArgumentError, TEXTS.get(name, "must"), call)
    with pytest.raises(PblasArgumentError) as caught:
        call()
    assert caught.value.info == info
    handle = scalapack.gridinit(COMM, "R", *SHAPE, timeout=TIMEOUT)
    check_call(handle)
    scalapack.gridexit(handle)


@pytest.mark.parametrize(
    ("position", "value"), [(1, -1), (2, -1), (3, 0), (4, 0), (5, -1), (5, 99), (6, 99), (7, -1), (8, 0)]
)
def test_descinit_names_its_argument(ictxt: int, position: int, value: int) -> None:
    values = [9, 9, 2, 2, 0, 0, ictxt, 9]
    assert scalapack.descinit(*values) == [1, ictxt, 9, 9, 2, 2, 0, 0, 9]
    values[position - 1] = value
    with pytest.raises(PblasArgumentError) as caught:
        scalapack.descinit(*values)
    assert caught.value.info == -(position + 1)


# Errors


@pytest.mark.parametrize(("routine", "letter"), [(routine, x[1]) for routine, x in SUITES[0].letters.items()])
@pytest.mark.parametrize("everywhere", [True, False])
def test_error_exits_give_their_numbers_on_every_rank(routine: str, letter: str, everywhere: bool) -> None:
    """All error exits of ScaLAPACK's tests, with the wrong argument on all ranks, and on one rank only."""
    handle = scalapack.gridinit(COMM, "R", 1, COMM.size, timeout=TIMEOUT)
    name, arguments = f"p{letter}{routine}", errors.right(routine, letter, handle)
    everyone = [frozenset(range(COMM.size))]
    for position, entry, value, expected in error_exits(routine):
        for wrong in everyone if everywhere else some_wrong()[-1:]:
            # LLD on process (0, 0) is 1, which is too small there only.
            called = errors.broken(arguments, position, entry, value, handle) if COMM.rank in wrong else arguments
            assert same_on_all_ranks(errors.info(name, called)) == expected, (position, entry, value)
    assert errors.info(name, arguments) == 0
    scalapack.gridexit(handle)


def test_the_lowest_position_of_all_ranks_wins(ictxt: int) -> None:
    """The first rank has a late wrong argument, the last an early one: all ranks raise the error of the early one."""
    arguments = errors.right("gemm", "d", ictxt)
    a_rank = COMM.size - 1
    if COMM.rank == 0:
        arguments = errors.broken(arguments, 19, 7, 0, ictxt)
        arguments = errors.broken(arguments, 17, 0, 0, ictxt)
    if COMM.rank == a_rank:
        arguments = errors.broken(arguments, 10, 8, 0, ictxt)
        arguments = errors.broken(arguments, 10, 9, 99, ictxt)
    text = raises_on_all_ranks(
        PblasArgumentError, "DESCA(NB_) must be at least 1, got 0", lambda: scalapack.pdgemm(*arguments)
    )
    assert f"found on rank {a_rank} of {COMM.size}" in text
    assert same_on_all_ranks(errors.info("pdgemm", arguments)) == -1008
    check_call(ictxt)


MISTAKES: dict[str, tuple[int, str, int, Any]] = {
    "trans is no letter": (-1, "TRANSA must be one of 'N', 'T', 'C', got 3", 0, 3),
    "trans is empty": (-1, "TRANSA must be one of 'N', 'T', 'C', got ''", 0, ""),
    "m is no integer": (-3, "M must be an integer, got 1.0", 2, 1.0),
    "alpha is text": (-6, "ALPHA must be a number, got 'x'", 5, "x"),
    "alpha is complex": (-6, "ALPHA must be real", 5, 1j),
    "a is no array": (-7, "A must be", 6, object()),
    "a has another dtype": (-7, "A must be float64", 6, np.zeros((2, 9), "float32")),
    "a is too small": (-7, "A must have room for", 6, np.zeros((1, 0))),
    "ia leaves a": (-8, "IA = 3: 1 rows from there on leave A", 7, 3),
    "ja leaves a": (-9, "JA = 3: 1 columns from there on leave A", 8, 3),
    "desca is short": (-1001, "DESCA(DTYPE_) must be 1 with 8 integers after it, or 2 with 10", 9, [1, 2, 3]),
    "beta is none": (-15, "BETA must be a number", 14, None),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_argument_on_one_rank_is_an_error_on_every_rank(ictxt: int, name: str) -> None:
    info, text, place, value = MISTAKES[name]
    # Rank 0 has part of every matrix, however small.
    for wrong in [frozenset({0})] if "small" in name else some_wrong() or [frozenset({0})]:
        arguments = errors.right("gemm", "d", ictxt)
        if place == 9:
            value = [1, ictxt, 3]
        if COMM.rank in wrong:
            arguments[place] = value
        raises_on_all_ranks(PblasArgumentError, text, partial(scalapack.pdgemm, *arguments))
        assert same_on_all_ranks(errors.info("pdgemm", arguments)) == info
    check_call(ictxt)


@pytest.mark.parametrize("entry", ["M", "N"])
@pytest.mark.parametrize("routine", ["gemm", "geadd", "tradd", "trsm"])
def test_a_matrix_larger_than_any_array_is_an_error_on_every_rank(ictxt: int, routine: str, entry: str) -> None:
    """The submatrix may be small in a matrix of any size, whose local array is too small on some ranks or on all."""
    arguments = errors.right(routine, "d", ictxt)
    place = next(i for i, value in enumerate(arguments) if isinstance(value, list))
    arguments[place] = list(arguments[place])
    arguments[place][2:4] = (2**63 - 1, 1) if entry == "M" else (1, 2**63 - 1)  # some ranks have no column, or no row
    arguments[place][-1] = 2**63 - 1
    raises_on_all_ranks(
        PblasArgumentError, "A must have room for", lambda: getattr(scalapack, f"pd{routine}")(*arguments)
    )
    check_call(ictxt)


@each_wrong
def test_an_argument_that_raises_when_read_is_an_error_on_every_rank(ictxt: int, wrong: frozenset[int]) -> None:
    class Broken(float):
        def __complex__(self) -> complex:
            raise RuntimeError("no number")

    arguments = errors.right("gemm", "d", ictxt)
    if COMM.rank in wrong:
        arguments[5] = Broken(1.0)
    raises_on_all_ranks(PblasArgumentError, "pdgemm: RuntimeError: no number", lambda: scalapack.pdgemm(*arguments))
    check_call(ictxt)


@pytest.mark.parametrize("wrong", ["list", "dtype", "folded", "read-only"])
def test_results_are_written_to_arrays_only(ictxt: int, wrong: str) -> None:
    a = Distribution(ictxt, 7, 7, 2, 2)
    folded = np.lib.stride_tricks.as_strided(np.zeros(99), a.local.shape, (8, 0))
    fixed = a.local.copy(order="F")
    fixed.flags.writeable = False
    c: Any = {"list": a.local.tolist(), "dtype": a.local.astype("f4"), "folded": folded, "read-only": fixed}[wrong]
    is_wrong = wrong != "folded" or (a.local.size > 0 and a.local.shape[1] > 1)
    assert same_on_all_ranks(errors.info("pdgemm", ["N", "N", 7, 7, 7, 1.0, *a.at, *a.at, 0.0, c, 1, 1, a.desc])) == -16
    assert same_on_all_ranks(errors.info("pdgeadd", ["N", 7, 7, 1.0, *a.at, 0.0, c, 1, 1, a.desc])) == -10
    assert errors.info("pdelset", [c, 1, 1, a.desc, 0.0]) == (-1 if is_wrong else 0)
    assert errors.info("pdelset", [a.local, "a", 1, a.desc, 0.0]) == -2
    check_call(ictxt)


def test_c_must_not_overlap_a_or_b(ictxt: int) -> None:
    a, b = Distribution(ictxt, 7, 7, 2, 2), Distribution(ictxt, 7, 7, 2, 2)
    assert same_on_all_ranks(errors.info("pdgemm", ["N", "N", 7, 7, 7, 1.0, *a.at, *b.at, 0.0, *a.at])) == -16
    assert same_on_all_ranks(errors.info("pdgemm", ["N", "N", 7, 7, 7, 1.0, *a.at, *b.at, 1.0, *b.at])) == -16
    assert same_on_all_ranks(errors.info("pdgeadd", ["N", 7, 7, 1.0, *a.at, 0.0, *a.at])) == -10
    assert same_on_all_ranks(errors.info("pdtran", [7, 7, 1.0, *a.at, 0.0, *a.at])) == -9
    # Other columns of the same memory are no overlap.
    assert same_on_all_ranks(errors.info("pdgeadd", ["N", 7, 3, 1.0, *a.at, 0.0, a.local, 1, 5, a.desc])) == 0
    check_call(ictxt)


def test_outside_the_grid_a_call_is_an_error_of_that_rank(ictxt: int) -> None:
    arguments = errors.right("gemm", "d", ictxt)
    arguments[9] = arguments[13] = arguments[18] = [1, -1, 2, 2, 1, 1, 0, 0, 2]
    assert errors.info("pdgemm", arguments) == -1002


# Local arrays


def stored(array: Array, how: str) -> Array:
    """The same elements in another memory layout."""
    if how == "flat":
        return np.asfortranarray(array).T.ravel()
    if how == "strided":
        wide = np.full((2 * array.shape[0], 3 * array.shape[1]), -99.0)
        wide[::2, ::3] = array
        return wide[::2, ::3]
    if how == "mixed":
        return np.array(array, order="F" if COMM.rank % 2 else "C")
    return np.array(array, order="C" if how == "rows" else "F")


@pytest.mark.parametrize("how_a", ["columns", "rows", "flat", "strided", "mixed"])
@pytest.mark.parametrize("how_c", ["columns", "rows", "flat", "strided", "mixed"])
def test_local_arrays_may_be_stored_in_any_way(ictxt: int, how_a: str, how_c: str) -> None:
    a, b, c = Distribution(ictxt, 7, 9, 2, 3), Distribution(ictxt, 9, 8, 3, 2), Distribution(ictxt, 7, 8, 2, 2)
    x, y, z = stored(a.local, how_a), stored(b.local, "rows"), stored(c.local, how_c)
    scalapack.pdgemm("n", "n", 7, 8, 9, 1.0, x, 1, 1, a.desc, y, 1, 1, b.desc, 1.0, z, 1, 1, c.desc)
    k = np.arange(1, 10)
    i, j = np.arange(1, 8)[:, None], np.arange(1, 9)[None, :]
    exact = numbered(i, k[None, :]) @ numbered(k[:, None], j) + numbered(i, j)
    expected = exact[c.rows - 1, c.columns - 1]
    result = z.reshape(c.local.shape[::-1]).T if how_c == "flat" and z.size else z
    assert np.array_equal(result, expected)
    if how_c == "strided" and z.size and z.base is not None:
        wide = z.base.copy()
        wide[::2, ::3] = -99.0
        assert (wide == -99.0).all()


def test_nan_is_one_scalar_however_it_is_made(ictxt: int) -> None:
    """Some ranks pass the same object in every call, others a new one: all find the same cached plans."""
    a, c = Distribution(ictxt, 7, 7, 2, 2), Distribution(ictxt, 7, 7, 2, 2)
    x, constant = a.local.astype(complex), complex(np.nan, 0)
    for call in (partial(scalapack.pzgeadd, "N", 7, 7), partial(scalapack.pzgemm, "N", "N", 7, 7, 7)):
        between = (x, 1, 1, a.desc) if "gemm" in call.func.__name__ else ()
        for _ in range(3):
            z = c.local.astype(complex)
            alpha = constant if COMM.rank == 0 else complex(np.nan, 0)
            call(alpha, x, 1, 1, a.desc, *between, 0.0, z, 1, 1, c.desc)
            assert np.isnan(z).all()


# Elements and printing


def test_elements_are_set_and_read(ictxt: int) -> None:
    m, n = 5, 7
    a = Distribution(ictxt, m, n, 2, 3, entries=lambda i, j: 0.0 * i * j)
    for i in range(1, m + 1):
        for j in range(1, n + 1):
            scalapack.pdelset(a.local, i, j, a.desc, 100.0 * i + j)
    assert np.array_equal(a.local, numbered(a.rows, a.columns))
    nprow, npcol, myrow, mycol = scalapack.gridinfo(ictxt)
    p, q = scalapack.indxg2p(4, 2, 0, 0, nprow), scalapack.indxg2p(6, 3, 0, 0, npcol)
    inside = {"A": True, "r": myrow == p, "C": mycol == q, " ": (myrow, mycol) == (p, q)}
    for scope, is_here in inside.items():
        assert scalapack.pdelget(scope, " ", *(a.local, 4, 6, a.desc)) == (406.0 if is_here else 0.0)
    for i, j, info in ((0, 1, -2), (1, n + 1, -3)):
        with pytest.raises(PblasArgumentError) as caught:
            scalapack.pdelset(a.local, i, j, a.desc, 0.0)
        assert caught.value.info == info


PRINTED = {
    "s": [
        "X(     4,     6)=  0.40600000E+03",
        "X(     5,     6)=  0.50600000E+03",
        "X(     4,     7)=  0.40700000E+03",
        "X(     5,     7)=  0.50700000E+03",
    ],
    "d": [
        "X(     4,     6)=      0.406000000000000000D+03",
        "X(     5,     6)=      0.506000000000000000D+03",
        "X(     4,     7)=      0.407000000000000000D+03",
        "X(     5,     7)=      0.507000000000000000D+03",
    ],
    "c": [
        "X(     4,     6)=  0.40600000E+03+i*( -0.50000000E+00)",
        "X(     5,     6)=  0.50600000E+03+i*( -0.50000000E+00)",
        "X(     4,     7)=  0.40700000E+03+i*( -0.50000000E+00)",
        "X(     5,     7)=  0.50700000E+03+i*( -0.50000000E+00)",
    ],
    "z": [
        "X(     4,     6)=      0.406000000000000000D+03+i*(     -0.500000000000000000D+00)",
        "X(     5,     6)=      0.506000000000000000D+03+i*(     -0.500000000000000000D+00)",
        "X(     4,     7)=      0.407000000000000000D+03+i*(     -0.500000000000000000D+00)",
        "X(     5,     7)=      0.507000000000000000D+03+i*(     -0.500000000000000000D+00)",
    ],
}
"""What the Fortran routines print for the same elements."""


@pytest.mark.parametrize("letter", PRINTED)
def test_laprnt_prints_on_one_process_as_fortran_does(ictxt: int, letter: str) -> None:
    a, out = Distribution(ictxt, 5, 7, 2, 3), io.StringIO()
    nprow, npcol, myrow, mycol = scalapack.gridinfo(ictxt)
    local: Array = (a.local + (-0.5j if letter in "cz" else 0)).astype(
        {"s": "f4", "d": "f8", "c": "c8"}.get(letter, "c16")
    )
    laprnt = getattr(scalapack, f"p{letter}laprnt")
    laprnt(2, 2, local, 4, 6, a.desc, nprow - 1, npcol - 1, "X", out)
    here = (myrow, mycol) == (nprow - 1, npcol - 1)
    assert out.getvalue().splitlines() == (PRINTED[letter] if here else [])


@pytest.mark.parametrize(("position", "value"), [(7, "a"), (8, 99), (10, "x")])
def test_laprnt_refuses_wrong_arguments_on_every_rank(ictxt: int, position: int, value: Any) -> None:
    a = Distribution(ictxt, 5, 7, 2, 3)
    arguments = [2, 2, *a.at, 0, 0, "X", 6, None]
    arguments[position - 1] = value
    assert same_on_all_ranks(errors.info("pdlaprnt", arguments)) == -position


# Grids that differ: p?gemr2d and p?trmr2d


def two_grids(case: int) -> tuple[int, int, int]:
    """**Collective.** Handles of a grid of all, and of two others with some of its ranks in some order."""
    size, ranks = COMM.size, list(range(COMM.size))
    whole = scalapack.gridinit(COMM, "R", 1, size, timeout=TIMEOUT)
    maps = {
        0: ([ranks], [[rank] for rank in ranks]),
        1: ([ranks[::-1]], [[rank] for rank in ranks[1:] + ranks[:1]]),
        2: ([ranks[: (size + 1) // 2]], [[rank] for rank in ranks[size // 2 :]]),
    }[case]
    ga, gb = (scalapack.gridmap(COMM, rows, len(rows), len(rows), len(rows[0]), timeout=TIMEOUT) for rows in maps)
    return whole, ga, gb


@pytest.mark.parametrize("case", [0, 1, 2])
@pytest.mark.parametrize("order", ["F", "C"])
def test_gemr2d_between_any_grids(case: int, order: str) -> None:
    whole, ga, gb = two_grids(case)
    a, b = Distribution(ga, 11, 12, 2, 3, order), Distribution(gb, 13, 14, 4, 5, "F", lambda i, j: -99.0 + 0 * i * j)
    scalapack.pdgemr2d(7, 8, a.local, 3, 2, a.desc, b.local, 5, 4, b.desc, whole)
    if gb >= 0:
        inside = (b.rows >= 5) & (b.rows < 12) & (b.columns >= 4) & (b.columns < 12)
        assert np.array_equal(b.local, np.where(inside, numbered(b.rows - 2, b.columns - 2), -99.0))
    if ga >= 0:
        assert np.array_equal(a.local, numbered(a.rows, a.columns))
    for handle in (ga, gb, whole):
        if handle >= 0:
            scalapack.gridexit(handle)


@pytest.mark.parametrize("uplo", "UL")
@pytest.mark.parametrize("diag", "NU")
def test_trmr2d_moves_its_trapezoid_and_nothing_else(uplo: str, diag: str) -> None:
    whole, ga, gb = two_grids(1)
    for m, n in ((7, 4), (4, 7), (5, 5), (0, 3)):
        a, b = Distribution(ga, 11, 12, 2, 3), Distribution(gb, 13, 14, 4, 5, "C", lambda i, j: -99.0 + 0 * i * j)
        scalapack.pdtrmr2d(uplo, diag, m, n, a.local, 3, 2, a.desc, b.local, 5, 4, b.desc, whole)
        i, j, unit = b.rows - 5, b.columns - 4, int(diag == "U")
        side = i <= j + max(0, m - n) - unit if uplo == "U" else i >= j - max(0, n - m) + unit
        inside = side & (i >= 0) & (i < m) & (j >= 0) & (j < n)
        assert np.array_equal(b.local, np.where(inside, numbered(b.rows - 2, b.columns - 2), -99.0))
    for handle in (ga, gb, whole):
        scalapack.gridexit(handle)


def test_gemr2d_refuses_wrong_arguments_on_every_rank(ictxt: int) -> None:
    a, b = Distribution(ictxt, 5, 5, 2, 2), Distribution(ictxt, 5, 5, 1, 3)
    outside = [1, -1]

    def info(m: Any, desca: Any, descb: Any, context: int = ictxt) -> int:
        return same_on_all_ranks(errors.info("pdgemr2d", [m, 5, a.local, 1, 1, desca, b.local, 1, 1, descb, context]))

    assert info(5, a.desc, b.desc) == 0
    assert info(-1 if COMM.rank == 0 else 5, a.desc, b.desc) == -1
    assert info(6, a.desc, b.desc) == -4
    assert info(5, outside, b.desc) == -602
    assert info(5, outside if COMM.rank == COMM.size - 1 else a.desc, b.desc) == -602
    assert info(5, a.desc, [1, -7, *b.desc[2:]]) == -1002
    assert info(5, [3, ictxt], b.desc) == -601
    assert info(5, a.desc, b.desc, -5) == -11
    check_call(ictxt)


def test_gemr2d_moves_within_a_matrix_but_not_onto_itself(ictxt: int) -> None:
    a = Distribution(ictxt, 5, 9, 2, 2)
    scalapack.pdgemr2d(5, 4, a.local, 1, 1, a.desc, a.local, 1, 6, a.desc, ictxt)
    assert np.array_equal(a.local, numbered(a.rows, np.where(a.columns > 5, a.columns - 5, a.columns)))
    assert same_on_all_ranks(errors.info("pdgemr2d", [5, 8, *a.at, a.local, 1, 2, a.desc, ictxt])) == -7
    check_call(ictxt)


@pytest.mark.mpi(min_size=2)
def test_gemr2d_needs_a_context_of_all() -> None:
    whole, part = (scalapack.gridinit(COMM, "R", 1, size, timeout=TIMEOUT) for size in (COMM.size, 1))
    a = Distribution(whole, 5, 5, 2, 2)
    if part >= 0:
        assert errors.info("pdgemr2d", [5, 5, *a.at, *a.at, part]) == -11
        scalapack.gridexit(part)
    scalapack.gridexit(whole)


def test_trtrs_returns_info_and_leaves_b_alone(ictxt: int) -> None:
    n, nrhs, nb = 7, 3, 2
    nprow, npcol, myrow, mycol = scalapack.gridinfo(ictxt)
    rows, columns, right = (
        scalapack.numroc(size, nb, p, 0, extent)
        for size, p, extent in ((n, myrow, nprow), (n, mycol, npcol), (nrhs, mycol, npcol))
    )
    i = [scalapack.indxl2g(l + 1, nb, myrow, 0, nprow) for l in range(rows)]
    j = [scalapack.indxl2g(l + 1, nb, mycol, 0, npcol) for l in range(columns)]
    desc_a, desc_b = ([1, ictxt, n, size, nb, nb, 0, 0, max(1, rows)] for size in (n, nrhs))
    for zero in (0, 3, 7):
        # A is 2 on the diagonal, but 0 in row `zero`; the lower triangle is not read
        full = np.where(np.subtract.outer(i, j) > 0, np.nan, 2.0 * np.equal.outer(i, j))
        for l, g in enumerate(i):
            full[l, [c for c, h in enumerate(j) if h == g == zero]] = 0
        a, b = np.asfortranarray(full), np.ones((rows, right), order="F")
        info = scalapack.pdtrtrs("Upper", "No transpose", "non-unit", n, nrhs, a, 1, 1, desc_a, b, 1, 1, desc_b)
        assert same_on_all_ranks(info) == zero
        assert (b == (1.0 if zero else 0.5)).all()


# A part of `make conformance`


@pytest.mark.ranks(1, 2, 4, reason="slow: 1 x 1, 1 x 2 and 2 x 2; `make conformance` has all grids")
@pytest.mark.parametrize(("routine", "letter"), list(SUITES[0].types([], "sdcz")))
def test_conformance(ictxt: int, routine: str, letter: str) -> None:
    """Two columns of the table with all options, and a few random problems of kinds that the tables leave out."""
    cases = problems.table(routine, letter)
    count = len(cases) // 8
    column = "sdcz".index(letter)
    cases = cases[column * count : (column + 1) * count] + cases[(column + 4) * count : (column + 5) * count]
    cases += problems.holes(routine, letter, 6, Grid(*SHAPE))
    for problem, outcome in zip(cases, SUITES[0].outcomes(cases, ictxt), strict=True):
        assert not outcome.text, f"{problem}: {outcome.text}"


ENTRIES = {"M_": (2, 1), "N_": (3, 1), "MB_": (4, 1), "NB_": (5, 1), "RSRC_": (6, -1), "CSRC_": (7, -1)}
"""Entries of a descriptor that must be equal on all ranks: their places, and by how much one rank's differs; a source
process of -1 is a replicated axis."""


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.mpi(min_size=2)
def test_an_entry_of_a_descriptor_that_differs_on_one_rank_is_named(ictxt: int, name: str) -> None:
    entry, more = ENTRIES[name]
    for wrong in some_wrong():
        a, c = Distribution(ictxt, 5, 7, 2, 2), Distribution(ictxt, 7, 5, 3, 1)
        local, desc = np.zeros((20, 20), order="F"), [*a.desc[:8], 20]
        desc[entry] += more if COMM.rank in wrong else 0
        raises_on_all_ranks(
            MismatchError,
            "DESCA",
            lambda: scalapack.pdtran(2, 3, 1.0, local, 1, 1, desc, 0.0, *c.at),  # noqa: B023
        )
        check_call(ictxt)
