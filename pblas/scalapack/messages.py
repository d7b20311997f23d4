"""Barriers, broadcasts and combinations of BLACS among the processes of a grid, a process row or a process column.

They are small messages of mpi4py's communicators. Unlike pblas' own calls they have no deadline and do not compare the
arguments of the processes. `comm` returns these communicators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.errors import PblasArgumentError
from pblas.scalapack.arguments import TYPES
from pblas.scalapack.grids import ProcessGrid, checked_integer, find
from pblas.scalapack.local_arrays import cut
from pblas.vectors.matrix_vector_run import absolute_values

if TYPE_CHECKING:
    from mpi4py import MPI

    from pblas.backends.dtypes import Array

_TYPES = {"i": None, **{letter: TYPES[letter] for letter in "sdcz"}}
"""Dtypes by letter; None for any integer."""


def comm(ictxt: int, scope: str = "A") -> MPI.Intracomm:
    """**Collective** over the scope, when called first. An mpi4py communicator of the processes of a scope.

    It ends with the grid. In "A" processes have their numbers in the grid, in "R" their column, in "C" their row.

    Args:
        ictxt: handle of the grid (local).
        scope: "A" all processes of the grid, "R" this process's row, "C" its column; the first letter counts (global).

    Raises:
        PblasArgumentError: no handle of a grid that this process is in, or another scope (local).
    """
    return _comm("comm", ictxt, scope)


def barrier(ictxt: int, scope: str = "A") -> None:
    """**Collective** over the scope. Return when all of its processes have called.

    Args:
        ictxt: handle of the grid (local).
        scope: as in `comm` (global).

    Raises:
        as `comm`.

    Source: BLACS, blacs_barrier.
    """
    _comm("barrier", ictxt, scope).Barrier()


def _comm(verb: str, ictxt: Any, scope: Any) -> MPI.Intracomm:
    """**Collective** over the scope, when called first. The communicator of a scope."""
    grid = find(ictxt)
    if grid is None:
        raise PblasArgumentError(f"{verb}: ICTXT must be the handle of a grid of this process, got {ictxt!r}", -1)
    letter = _letter(scope) if isinstance(scope, str) else ""
    if letter not in ("A", "R", "C"):
        raise PblasArgumentError(f"{verb}: SCOPE must begin with 'A', 'R' or 'C', got {scope!r}", -2)
    if letter == "A":
        return grid.comm
    if letter not in grid.scopes:  # without the others: a row is a group of its own
        group, world = grid.comm.Get_group(), grid.comm
        myrow, mycol = grid.grid.coordinates(grid.context.rank)
        nprow, npcol = grid.grid.nprow, grid.grid.npcol
        ranks = (
            [grid.grid.rank(myrow, q) for q in range(npcol)]
            if letter == "R"
            else [grid.grid.rank(p, mycol) for p in range(nprow)]
        )
        grid.scopes[letter] = world.Create_group(group.Incl(ranks))
    return grid.scopes[letter]


def _letter(scope: str) -> str:
    """The first letter of a scope, as programs also write "All", "Row" and "Column".

    >>> _letter("all"), _letter("R")
    ('A', 'R')
    """
    return scope[:1].upper()


def _place(grid: ProcessGrid, scope: str, row: int, column: int) -> int:
    """The number of the process (row, column) in the communicator of its scope."""
    return {"A": grid.grid.rank(row, column), "R": column, "C": row}[_letter(scope)]


def _part(verb: str, letter: str, m: Any, n: Any, a: Any, lda: Any) -> Array:
    """The m x n elements of an array, a view (local)."""
    checked_integer(verb, "M", m, 4, 0)
    checked_integer(verb, "N", n, 5, 0)
    checked_integer(verb, "LDA", lda, 7, max(1, m))
    return _elements(verb, letter, ("A", a, 6), m, n, lda)


def _elements(verb: str, letter: str, argument: tuple[str, Any, int], m: int, n: int, lda: int) -> Array:
    """As `_part`, of an argument (name, value, position)."""
    (name, a, position), dtype = argument, _TYPES[letter]
    fits = isinstance(a, np.ndarray) and (a.dtype.kind == "i" if dtype is None else a.dtype == dtype)
    part = cut(a, (m, n), lda) if fits else None
    if part is None:
        what = "integer" if dtype is None else dtype
        raise PblasArgumentError(
            f"{verb}: {name} must be a NumPy array of {what} with {m} rows and {n} columns or more, or of one "
            f"dimension with columns {lda} elements apart",
            -position,
        )
    return part


def _gsum2d(letter: str) -> Callable[..., None]:
    """?gsum2d of a type."""

    def gsum2d(
        ictxt: int, scope: str, top: str, m: int, n: int, a: Array, lda: int, rdest: int = -1, cdest: int = -1
    ) -> None:
        """**Collective** over the scope. A := the sum of all processes' A, in the order of processes.

        Args:
            ictxt: handle of the grid (local).
            scope: "A" all processes, "R" the process row, "C" the process column (global).
            top: ignored; BLACS's topology.
            m: rows of A (global).
            n: columns of A (global).
            a: array of two dimensions, with m x n elements at least, or of one with columns lda apart (local).
            lda: leading dimension, >= m; otherwise ignored for an array of two dimensions (local).
            rdest: row of the process that gets the sum; -1: all; ignored in scope "R" but for -1 (global).
            cdest: its column; ignored in scope "C" but for -1 (global).

        Raises:
            PblasArgumentError: a wrong argument (local).

        Source: BLACS, ?gsum2d.
        """
        del top
        matrix, destination = (m, n, a, lda), (rdest, cdest)
        _combine(f"{letter}gsum2d", letter, ictxt, scope, matrix, destination, lambda parts: sum(parts[1:], parts[0]))

    return _named(gsum2d, f"{letter}gsum2d")


def _extremes(letter: str, *, largest: bool) -> Callable[..., None]:
    """?gamx2d or ?gamn2d of a type."""
    name = f"{letter}{'gamx2d' if largest else 'gamn2d'}"

    def gam2d(
        ictxt: int, scope: str, top: str, m: int, n: int, a: Array, lda: int,
        ra: Array | None = None, ca: Array | None = None, ldia: int = -1, rdest: int = -1, cdest: int = -1,
    ) -> None:  # fmt: skip
        """**Collective** over the scope. A := all processes' elements of largest (?gamx2d) or least size (?gamn2d).

        The size of a complex number is abs(Re) + abs(Im). Of equal sizes the first process's element is taken.

        Args:
            ictxt: handle of the grid (local).
            scope: as for ?gsum2d (global).
            top: ignored; BLACS's topology.
            m: rows of A (global).
            n: columns of A (global).
            a: array of two dimensions, with m x n elements at least, or of one with columns lda apart (local).
            lda: leading dimension, >= m; otherwise ignored for an array of two dimensions (local).
            ra: integer array that receives the process row of each element; not used if ldia is -1 (local).
            ca: its process column (local).
            ldia: -1, or the leading dimension of ra and ca (global).
            rdest: as for ?gsum2d (global).
            cdest: as for ?gsum2d (global).

        Raises:
            PblasArgumentError: a wrong argument (local).

        Source: BLACS, ?gamx2d, ?gamn2d.
        """
        del top
        grid, chosen = find(ictxt), [np.zeros((0, 0), int)]

        def choose(parts: list[Array]) -> Array:
            stacked = np.stack(parts)
            sizes = absolute_values(stacked, "abs1")
            chosen[0] = sizes.argmax(0) if largest else sizes.argmin(0)
            return np.take_along_axis(stacked, chosen[0][None], 0)[0]

        wanted = [] if ldia == -1 else [x for x in (("RA", ra, 8), ("CA", ca, 9)) if x[1] is not None]
        places = {what: _elements(name, "i", (what, x, position), m, n, ldia) for what, x, position in wanted}
        receives = _combine(name, letter, ictxt, scope, (m, n, a, lda), (rdest, cdest), choose)
        if receives and grid is not None:
            myrow, mycol = grid.grid.coordinates(grid.context.rank)
            for index, rank in np.ndenumerate(chosen[0]):
                p, q = {"A": grid.grid.coordinates(int(rank)), "R": (myrow, rank), "C": (rank, mycol)}[_letter(scope)]
                for what, target in places.items():
                    target[index] = p if what == "RA" else q

    return _named(gam2d, name)


def _combine(
    verb: str,
    letter: str,
    ictxt: Any,
    scope: Any,
    matrix: tuple[Any, ...],
    destination: tuple[int, int],
    combine: Callable[[list[Array]], Array],
) -> bool:
    """**Collective** over the scope. A := combine(all processes' A) where wanted; whether this process gets it."""
    group = _comm(verb, ictxt, scope)
    part = _part(verb, letter, *matrix)
    parts = group.allgather(np.ascontiguousarray(part))
    grid = find(ictxt)
    assert grid is not None, "it has a communicator"
    receives = -1 in destination or group.Get_rank() == _place(grid, scope, *destination)
    if receives:
        part[...] = combine(parts)
    return receives


def _gebs2d(letter: str) -> Callable[..., None]:
    """?gebs2d of a type."""

    def gebs2d(ictxt: int, scope: str, top: str, m: int, n: int, a: Array, lda: int) -> None:
        """**Collective** over the scope. Send A to all other processes of the scope, which call ?gebr2d.

        Args:
            ictxt: handle of the grid (local).
            scope: as for ?gsum2d (global).
            top: ignored; BLACS's topology.
            m: rows of A (global).
            n: columns of A (global).
            a: array of two dimensions, with m x n elements at least, or of one with columns lda apart (local).
            lda: leading dimension, >= m; otherwise ignored for an array of two dimensions (local).

        Raises:
            PblasArgumentError: a wrong argument (local).

        Source: BLACS, ?gebs2d.
        """
        del top
        verb = f"{letter}gebs2d"
        group, part = _comm(verb, ictxt, scope), _part(verb, letter, m, n, a, lda)
        group.bcast(np.ascontiguousarray(part), group.Get_rank())

    return _named(gebs2d, f"{letter}gebs2d")


def _gebr2d(letter: str) -> Callable[..., None]:
    """?gebr2d of a type."""

    def gebr2d(ictxt: int, scope: str, top: str, m: int, n: int, a: Array, lda: int, rsrc: int, csrc: int) -> None:
        """**Collective** over the scope. Receive A from the process (rsrc, csrc), which calls ?gebs2d.

        Args:
            ictxt: handle of the grid (local).
            scope: as for ?gsum2d (global).
            top: ignored; BLACS's topology.
            m: rows of A (global).
            n: columns of A (global).
            a: array of two dimensions, with m x n elements at least, or of one with columns lda apart (local).
            lda: leading dimension, >= m; otherwise ignored for an array of two dimensions (local).
            rsrc: row of the process that sends (global).
            csrc: its column (global).

        Raises:
            PblasArgumentError: a wrong argument (local).

        Source: BLACS, ?gebr2d.
        """
        del top
        verb = f"{letter}gebr2d"
        group, part, grid = _comm(verb, ictxt, scope), _part(verb, letter, m, n, a, lda), find(ictxt)
        assert grid is not None, "it has a communicator"
        checked_integer(verb, "RSRC", rsrc, 8, 0, grid.grid.nprow - 1)
        checked_integer(verb, "CSRC", csrc, 9, 0, grid.grid.npcol - 1)
        part[...] = group.bcast(None, _place(grid, scope, rsrc, csrc))

    return _named(gebr2d, f"{letter}gebr2d")


def _named(function: Any, name: str) -> Any:
    """A function under the name of its type."""
    function.__name__ = function.__qualname__ = name
    return function


if not TYPE_CHECKING:  # their types are in __init__.pyi
    igsum2d, sgsum2d, dgsum2d, cgsum2d, zgsum2d = map(_gsum2d, "isdcz")
    igamx2d, sgamx2d, dgamx2d, cgamx2d, zgamx2d = (_extremes(letter, largest=True) for letter in "isdcz")
    igamn2d, sgamn2d, dgamn2d, cgamn2d, zgamn2d = (_extremes(letter, largest=False) for letter in "isdcz")
    igebs2d, sgebs2d, dgebs2d, cgebs2d, zgebs2d = map(_gebs2d, "isdcz")
    igebr2d, sgebr2d, dgebr2d, cgebr2d, zgebr2d = map(_gebr2d, "isdcz")
