"""Process grids with integer handles, as BLACS contexts: creation, queries, end.

A handle stands for a `pblas.Context` over the ranks of one grid and the `Grid` that arranges them. Handles are plain
integers because descriptors hold them, so this module has one table of them.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pblas.backends.local_step import LocalStep
from pblas.backends.settings import DRY_RUN, TIMEOUT, checked_name
from pblas.context import Context
from pblas.errors import PblasArgumentError, PblasError
from pblas.layouts.grid import Grid

if TYPE_CHECKING:
    from mpi4py import MPI

    from pblas.runtime.runtime import Runtime

OUTSIDE = -1  # the handle of a grid on processes outside it


@dataclass(frozen=True, slots=True)
class ProcessGrid:
    """The grid of a handle."""

    context: Context  # over the ranks of the grid, numbered 0..nprow*npcol-1 (global)
    grid: Grid  # their arrangement (global)
    comm: MPI.Intracomm  # the communicator of exactly these ranks (global)
    ranks: tuple[int, ...]  # the same ranks as numbered in the communicator that the grid was made from (global)
    world: tuple[int, ...]  # the same ranks as numbered in COMM_WORLD (global)
    # cache of this process's parts of matrices, by descriptor entries (local)
    parts: dict[Any, Any] = field(default_factory=dict)
    # communicators of this process's row and column, once they are used (local)
    scopes: dict[str, MPI.Intracomm] = field(default_factory=dict)

    @property
    def runtime(self) -> Runtime:
        """Runtime of the grid's context."""
        return self.context.runtime


_GRIDS: dict[int, ProcessGrid] = {}
_HANDLES = count()


def find(ictxt: Any) -> ProcessGrid | None:
    """The grid of a handle on this process; None on a process outside, or if it is not a handle (local)."""
    try:
        return _GRIDS.get(operator.index(ictxt))
    except Exception:  # noqa: BLE001 - whatever an object of another library raises
        return None


def meant(ictxt: Any) -> ProcessGrid | None:
    """The only grid of this process, which a wrong handle must mean; None outside a grid, with -1 (local)."""
    is_outside = isinstance(ictxt, int) and ictxt == OUTSIDE
    return next(iter(_GRIDS.values())) if len(_GRIDS) == 1 and not is_outside else None


def checked_integer(
    opname: str, name: str, value: Any, position: int, least: int | None, most: int | None = None
) -> int:
    """An argument as an integer from `least` to `most`; None for no limit (local).

    Raises:
        PblasArgumentError: with the argument's position.

    >>> checked_integer("descinit", "M", 5, 2, 0)
    5
    """
    limits = "" if least is None else f" of at least {least}" if most is None else f" in {least}..{most}"
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        raise PblasArgumentError(f"{opname}: {name} must be an integer{limits}, got {value!r}", -position)
    return number


def pinfo() -> tuple[int, int]:
    """(mypnum, nprocs): this process's rank in COMM_WORLD, and the number of ranks (local).

    Source: BLACS, blacs_pinfo.
    """
    if DRY_RUN.get() is not None:
        return 0, DRY_RUN.get().nprocs
    from pblas.backends.mpi.world import world

    comm = world()
    return comm.Get_rank(), comm.Get_size()


def get(ictxt: int, what: int) -> int:
    """The default system context, 0: all processes (local).

    Args:
        ictxt: ignored (local).
        what: must be 0, the system context (local).

    Raises:
        PblasArgumentError: another `what`.

    Source: BLACS, blacs_get.

    >>> get(-1, 0)
    0
    """
    del ictxt
    if what != 0:
        raise PblasArgumentError(f"get: WHAT must be 0, the default system context, got {what!r}", -2)
    return 0


def gridinit(
    ictxt: MPI.Intracomm | int | None, order: str = "Row-major", nprow: int = 1, npcol: int = 1, **options: object
) -> int:
    """**Collective.** Arrange the first nprow * npcol ranks of a communicator as a grid.

    Args:
        ictxt: communicator of the ranks: 0 or None for COMM_WORLD, or an mpi4py communicator, whose ranks all call
            (global).
        order: if the first letter is "C" or "c", ranks are numbered down the columns, otherwise along the rows
            (global).
        nprow, npcol: process rows and columns (global), >= 1.
        options: of the `pblas.Context` over the grid, as backend="mpi" or timeout=30 (global).

    Returns:
        The handle of the grid; -1 on a rank outside. `gridexit` ends it.

    Raises:
        PblasArgumentError: a grid that is larger than the communicator, the same on every rank.

    Source: BLACS, blacs_gridinit.
    """
    column_major = str(order)[:1] in ("C", "c")

    def arranged(nprocs: int) -> tuple[Grid, tuple[int, ...]]:
        grid = _grid("gridinit", nprow, npcol, 3, nprocs, "C" if column_major else "R")
        return grid, tuple(range(grid.size))

    return _new_handle("gridinit", ictxt, arranged, options)


def gridmap(
    ictxt: MPI.Intracomm | int | None, usermap: object, ldumap: int, nprow: int, npcol: int, **options: object
) -> int:
    """**Collective.** Arrange chosen ranks of a communicator as a grid.

    Args:
        ictxt: communicator of the ranks; see `gridinit` (global).
        usermap: usermap[i][j] is the rank at (i, j); or a flat list of columns, ldumap apart (global).
        ldumap: rows of usermap, >= nprow (global).
        nprow, npcol: process rows and columns (global), >= 1.
        options: see `gridinit` (global).

    Returns:
        The handle of the grid; -1 on a rank outside.

    Raises:
        PblasArgumentError: ranks that are not in the communicator, or appear twice, the same on every rank.

    Source: BLACS, blacs_gridmap.
    """

    def arranged(nprocs: int) -> tuple[Grid, tuple[int, ...]]:
        grid = _grid("gridmap", nprow, npcol, 4, nprocs, "C")
        checked_integer("gridmap", "LDUMAP", ldumap, 3, int(nprow))
        try:
            table = np.asarray(usermap)
        except (TypeError, ValueError) as caught:
            raise PblasArgumentError(f"gridmap: USERMAP must be a table of integers: {caught}", -2) from None
        if table.ndim == 1 and table.size > (npcol - 1) * ldumap + nprow - 1:
            padded = np.concatenate([table, np.zeros(ldumap, table.dtype)])[: ldumap * npcol]
            table = padded.reshape(npcol, ldumap).T
        if table.ndim != 2 or table.shape[0] < nprow or table.shape[1] < npcol or table.dtype.kind not in "iu":
            raise PblasArgumentError(
                f"gridmap: USERMAP must be integers of {nprow} rows and {npcol} columns, got {table.shape} of "
                f"{table.dtype}",
                -2,
            )
        ranks = tuple(table[:nprow, :npcol].T.ravel().tolist())
        if len(set(ranks)) < len(ranks) or not all(0 <= rank < nprocs for rank in ranks):
            raise PblasArgumentError(
                f"gridmap: USERMAP must have different ranks of 0..{nprocs - 1}, got {ranks} by columns", -2
            )
        return grid, ranks

    return _new_handle("gridmap", ictxt, arranged, options)


def gridinfo(ictxt: int) -> tuple[int, int, int, int]:
    """Shape of the grid and this process's place in it: (nprow, npcol, myrow, mycol) (local).

    All are -1 on a process outside the grid, and for an invalid handle.

    Source: BLACS, blacs_gridinfo.

    >>> gridinfo(-1)
    (-1, -1, -1, -1)
    """
    process_grid = find(ictxt)
    if process_grid is None:
        return OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE
    return process_grid.grid.nprow, process_grid.grid.npcol, *process_grid.grid.coordinates(process_grid.context.rank)


def pnum(ictxt: int, prow: int, pcol: int) -> int:
    """Rank, in the communicator that the grid was made from, of the process at (prow, pcol); -1 for none (local).

    Args:
        ictxt: handle (local).
        prow, pcol: process row, 0..nprow-1, and column, 0..npcol-1 (global).

    Source: BLACS, blacs_pnum.
    """
    checked_integer("pnum", "PROW", prow, 2, None)
    checked_integer("pnum", "PCOL", pcol, 3, None)
    process_grid = find(ictxt)
    if process_grid is None or not (0 <= prow < process_grid.grid.nprow and 0 <= pcol < process_grid.grid.npcol):
        return OUTSIDE
    return process_grid.ranks[process_grid.grid.rank(prow, pcol)]


def pcoord(ictxt: int, pnum: int) -> tuple[int, int]:
    """Coordinates (prow, pcol) of a rank of the communicator that the grid was made from; (-1, -1) outside (local).

    Args:
        ictxt: handle (local).
        pnum: rank (global).

    Source: BLACS, blacs_pcoord.
    """
    process_grid = find(ictxt)
    if process_grid is None or pnum not in process_grid.ranks:
        return OUTSIDE, OUTSIDE
    return process_grid.grid.coordinates(process_grid.ranks.index(pnum))


def gridexit(ictxt: int) -> None:
    """**Collective** over the grid. End a grid; its handle is invalid afterwards.

    Raises:
        PblasArgumentError: an invalid handle, or a process outside the grid (local).

    Source: BLACS, blacs_gridexit.
    """
    process_grid = find(ictxt)
    if process_grid is None:
        raise PblasArgumentError(f"gridexit: ICTXT must be a handle that gridinit returned, got {ictxt!r}", -1)
    del _GRIDS[operator.index(ictxt)]
    process_grid.runtime.close_plans()
    process_grid.context.close()
    for comm in (*process_grid.scopes.values(), process_grid.comm):
        comm.Free()


def exit(notdone: int = 0) -> None:  # noqa: A001 - as in BLACS
    """**Collective.** End all remaining grids, in order of creation.

    Args:
        notdone: ignored. In BLACS a value other than 0 leaves MPI running; mpi4py ends MPI with the program (global).

    Source: BLACS, blacs_exit.
    """
    del notdone
    for handle in sorted(_GRIDS):
        gridexit(handle)


def _grid(opname: str, nprow: Any, npcol: Any, position: int, nprocs: int, order: Any) -> Grid:
    """The grid, with its sizes checked against the number of ranks."""
    checked_integer(opname, "NPROW", nprow, position, 1)
    checked_integer(opname, "NPCOL", npcol, position + 1, 1)
    if nprow * npcol > nprocs:
        raise PblasArgumentError(
            f"{opname}: the grid is {nprow} x {npcol}, the communicator has {nprocs} ranks; start more, or use fewer",
            -position,
        )
    return Grid(int(nprow), int(npcol), order)


def _new_handle(
    opname: str, ictxt: Any, arranged: Callable[[int], tuple[Grid, tuple[int, ...]]], options: dict[str, Any]
) -> int:
    """**Collective.** A new handle for a grid; `arranged(nprocs)` returns the grid and its ranks."""
    if DRY_RUN.get() is not None:
        return _dry_handle(opname, arranged, options)
    from pblas.backends.mpi import rendezvous
    from pblas.backends.mpi.world import subset, world, world_ranks

    is_comm = hasattr(ictxt, "Get_rank")
    comm = world(ictxt if is_comm else None)
    with LocalStep(lambda _, error: rendezvous(comm, opname, TIMEOUT, error), opname):
        if not is_comm and ictxt is not None and not (isinstance(ictxt, int | np.integer) and ictxt == 0):
            raise PblasArgumentError(f"{opname}: ICTXT must be 0, None or a communicator, got {ictxt!r}", -1)
        grid, ranks = arranged(comm.Get_size())
        _check_options(opname, options)
    rendezvous(comm, f"{opname}\ngrid={grid!r}\nranks={ranks!r}", options.get("timeout", TIMEOUT))
    part = subset(comm, ranks)
    if part is None:
        return OUTSIDE
    handle = next(_HANDLES)
    _GRIDS[handle] = ProcessGrid(Context(part, **options), grid, part, ranks, world_ranks(part))
    return handle


def _dry_handle(opname: str, arranged: Callable[[int], tuple[Grid, tuple[int, ...]]], options: dict[str, Any]) -> int:
    """A handle for a grid of a dry run, in which rank 0 stands for the first rank of the grid."""
    from pblas.backends.dry_backend import DryComm

    grid, ranks = arranged(DRY_RUN.get().nprocs)
    _check_options(opname, options)
    handle, comm = next(_HANDLES), cast("MPI.Intracomm", DryComm(grid.size))
    _GRIDS[handle] = ProcessGrid(Context(comm, **options), grid, comm, ranks, ranks)
    return handle


def _check_options(opname: str, options: dict[str, Any]) -> None:
    """Check the options of a context on every rank, also on ranks outside the grid (local).

    Raises:
        PblasArgumentError: without a number, as ScaLAPACK has no such argument.
    """
    for name in options:
        if name not in _OPTIONS:
            raise PblasArgumentError(f"{opname}: there is no option {name!r}; the options are {', '.join(_OPTIONS)}")
    settings = {name: value for name, value in (_OPTIONS | options).items() if name != "debug"}
    try:
        checked_name(**settings)
    except PblasError as caught:
        raise PblasArgumentError(f"{opname}: {str(caught).removeprefix('Context: ')}") from None


_OPTIONS: dict[str, Any] = {
    x.name: x.default
    for x in inspect.signature(Context).parameters.values()
    if x.name not in ("comm", "tuning", "process_group", "order", "reproducible")
}
"""Options of the context over a grid and their defaults."""
