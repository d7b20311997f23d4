"""Barriers, broadcasts and combinations of BLACS among the processes of a grid, a process row or a process column.

They are small messages of mpi4py's communicators. Unlike pblas' own calls they have no deadline and do not compare the
arguments of the processes. `comm` returns these communicators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.errors import PblasArgumentError
from pblas.scalapack import routines
from pblas.scalapack.arguments import TYPES, of_types, unchecked
from pblas.scalapack.descriptors import cut
from pblas.scalapack.grids import ProcessGrid, checked_integer, find
from pblas.vectors.matrix_vector_run import absolute_values

if TYPE_CHECKING:
    from mpi4py import MPI

    from pblas.backends.dtypes import Array, Dtype


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


def _comm(opname: str, ictxt: object, scope: object) -> MPI.Intracomm:
    """**Collective** over the scope, when called first. The communicator of a scope."""
    grid = find(ictxt)
    if grid is None:
        raise PblasArgumentError(f"{opname}: ICTXT must be the handle of a grid of this process, got {ictxt!r}", -1)
    letter = _letter(scope) if isinstance(scope, str) else ""
    if letter not in ("A", "R", "C"):
        raise PblasArgumentError(f"{opname}: SCOPE must begin with 'A', 'R' or 'C', got {scope!r}", -2)
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


@of_types(routines.GSUM2D, call=unchecked)
def xgsum2d(call: tuple[Any, ...]) -> None:
    """**Collective** over the scope. A := the sum of all processes' A, in the order of processes.

    Raises:
        PblasArgumentError: a wrong argument (local).

    Source: BLACS, ?gsum2d.
    """
    opname, ictxt, scope, _, *matrix, rdest, cdest = call
    _combine(opname, ictxt, scope, matrix, (rdest, cdest), lambda parts: sum(parts[1:], parts[0]))


@of_types(routines.GAMX2D, routines.GAMN2D, call=unchecked)
def xgam2d(call: tuple[Any, ...]) -> None:
    """**Collective** over the scope. A := all processes' elements of largest (?gamx2d) or least size (?gamn2d).

    The size of a complex number is abs(Re) + abs(Im). Of equal sizes the first process's element is taken.

    Raises:
        PblasArgumentError: a wrong argument (local).

    Source: BLACS, ?gamx2d, ?gamn2d.
    """
    opname, ictxt, scope, _, m, n, a, lda, ra, ca, ldia, *destination = call
    grid, chosen = find(ictxt), [np.zeros((0, 0), int)]

    def choose(parts: list[Array]) -> Array:
        stacked = np.stack(parts)
        sizes = absolute_values(stacked, "abs1")
        chosen[0] = sizes.argmax(0) if opname.endswith("gamx2d") else sizes.argmin(0)
        return np.take_along_axis(stacked, chosen[0][None], 0)[0]

    wanted = [] if ldia == -1 else [x for x in (("RA", ra, 8), ("CA", ca, 9)) if x[1] is not None]
    places = {argument[0]: _elements(opname, None, argument, m, n, ldia) for argument in wanted}
    receives = _combine(opname, ictxt, scope, (m, n, a, lda), destination, choose)
    if receives and grid is not None:
        myrow, mycol = grid.grid.coordinates(grid.context.rank)
        for index, rank in np.ndenumerate(chosen[0]):
            p, q = {"A": grid.grid.coordinates(int(rank)), "R": (myrow, rank), "C": (rank, mycol)}[_letter(scope)]
            for what, target in places.items():
                target[index] = p if what == "RA" else q


def _combine(
    opname: str,
    ictxt: object,
    scope: Any,
    matrix: Sequence[object],
    destination: Sequence[int],
    combine: Callable[[list[Array]], Array],
) -> bool:
    """**Collective** over the scope. A := combine(all processes' A) where wanted; whether this process gets it."""
    group, part = _comm(opname, ictxt, scope), _part(opname, *matrix)
    parts = group.allgather(np.ascontiguousarray(part))
    grid = find(ictxt)
    assert grid is not None, "it has a communicator"
    receives = -1 in destination or group.Get_rank() == _place(grid, scope, *destination)
    if receives:
        part[...] = combine(parts)
    return receives


@of_types(routines.GEBS2D, call=unchecked)
def xgebs2d(call: tuple[Any, ...]) -> None:
    """**Collective** over the scope. Send A to all other processes of the scope, which call ?gebr2d.

    Raises:
        PblasArgumentError: a wrong argument (local).

    Source: BLACS, ?gebs2d.
    """
    opname, ictxt, scope, _, *matrix = call
    group, part = _comm(opname, ictxt, scope), _part(opname, *matrix)
    group.bcast(np.ascontiguousarray(part), group.Get_rank())


@of_types(routines.GEBR2D, call=unchecked)
def xgebr2d(call: tuple[Any, ...]) -> None:
    """**Collective** over the scope. Receive A from the process (rsrc, csrc), which calls ?gebs2d.

    Raises:
        PblasArgumentError: a wrong argument (local).

    Source: BLACS, ?gebr2d.
    """
    opname, ictxt, scope, _, *matrix, rsrc, csrc = call
    group, part, grid = _comm(opname, ictxt, scope), _part(opname, *matrix), find(ictxt)
    assert grid is not None, "it has a communicator"
    checked_integer(opname, "RSRC", rsrc, 8, 0, grid.grid.nprow - 1)
    checked_integer(opname, "CSRC", csrc, 9, 0, grid.grid.npcol - 1)
    part[...] = group.bcast(None, _place(grid, scope, rsrc, csrc))


def _part(opname: str, m: Any, n: Any, a: Any, lda: Any) -> Array:
    """The m x n elements of an array, a view (local)."""
    checked_integer(opname, "M", m, 4, 0)
    checked_integer(opname, "N", n, 5, 0)
    checked_integer(opname, "LDA", lda, 7, max(1, m))
    return _elements(opname, TYPES.get(opname[0]), ("A", a, 6), m, n, lda)


def _elements(opname: str, dtype: Dtype | None, argument: tuple[str, Any, int], m: int, n: int, lda: int) -> Array:
    """As `_part`, of an argument (name, value, position) of a dtype; None: of any integers."""
    name, a, position = argument
    fits = isinstance(a, np.ndarray) and (a.dtype.kind == "i" if dtype is None else a.dtype == dtype)
    part = cut(a, (m, n), lda) if fits else None
    if part is None:
        what = "integer" if dtype is None else dtype
        raise PblasArgumentError(
            f"{opname}: {name} must be a NumPy array of {what} with {m} rows and {n} columns or more, or of one "
            f"dimension with columns {lda} elements apart",
            -position,
        )
    return part
