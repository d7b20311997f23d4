"""The arguments of one call, checked as ScaLAPACK does, on all ranks before any rank raises; and the routines.

`of_types` makes the routines of all types from one function of a checked call: pxgemm becomes psgemm, pdgemm, pcgemm
and pzgemm.
"""

from __future__ import annotations

import inspect
import operator
import reprlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np

from pblas.backends.local_step import AgreedError, LocalStep
from pblas.core.checks import shares_memory
from pblas.errors import ArgumentError, PblasArgumentError
from pblas.matrices.matrix import DistMatrix
from pblas.scalapack import descriptors
from pblas.scalapack.descriptors import Entries, Local, Part, checked_part
from pblas.scalapack.grids import ProcessGrid, find, meant
from pblas.scalapack.routines import EXTENTS, OPTIONS, RETURNED, WORKSPACES, Operand, Routine
from pblas.vectors.matrix_vector import real_of

if TYPE_CHECKING:
    from types import TracebackType

    from pblas.backends.dtypes import Array, Dtype
    from pblas.runtime.runtime import Runtime

R = TypeVar("R")
TYPES: dict[str, Dtype] = {
    letter: np.dtype(code) for letter, code in zip("sdcz", ("f4", "f8", "c8", "c16"), strict=True)
}
TYPES |= {letters: TYPES[letters.strip("sd")] for letters in ("sc", "dz", "cs", "zd")}
"""Dtypes of arrays; routines of two letters take complex arrays and have real results or scalars."""
EITHER, COLUMNS, ROWS = 0, 1, 2
"""The storage orders in which a local array can be read in place: both, by columns only ("F"), by rows only ("C")."""
ROUTINES: dict[str, Callable[..., object]] = {}  # the routines of all types by their names; each module adds its own

_OWN = {"TOP", *RETURNED, "NOUT", "ICTXT", "IPIV", "D", "E", "W", "S", "R", "C", "SR", "SC", "FERR", "BERR"}
_OWN |= {"TAU", "TAUQ", "TAUP"}
_OWN |= {"IFAIL", "ICLUSTR", "GAP", *WORKSPACES}
"""Arguments that may differ between ranks."""

_FAR = 1 << 40  # greater than all positions
_QUERY = -1  # size of a workspace (LWORK) in a call that only asks for the size


def checked_number(name: str, value: object, dtype: Dtype) -> complex:
    """A scalar for matrices of a dtype, real if the dtype is real; ArgumentError for any other value (local)."""
    if isinstance(value, bool) or not isinstance(value, int | float | complex | np.number):
        raise ArgumentError(f"{name} must be a number, got {value!r}")
    try:
        number = complex(value)
    except OverflowError:
        raise ArgumentError(f"{name} is too large for {dtype}") from None
    if dtype.kind != "c" and number.imag != 0:
        raise ArgumentError(f"{name} must be real, got {value!r}")
    return number if dtype.kind == "c" else number.real


class Findings:
    """The wrong argument of a call on this rank; of several, the one with the lowest position."""

    def __init__(self, opname: str) -> None:
        self.opname: str = opname
        self.text: str = ""
        self.interrupt: KeyboardInterrupt | None = None
        self._place = _FAR

    def add(self, text: str, position: int, entry: int = 0) -> None:
        """Record that argument `position` is wrong, or `entry` of that descriptor."""
        if 100 * position + entry < self._place:
            self.text = text
            self._place = 100 * position + entry

    def __bool__(self) -> bool:
        """Whether anything is wrong."""
        return self._place < _FAR

    @property
    def urgency(self) -> int:
        """0 if nothing is wrong; otherwise a number that is larger for a lower position."""
        return _FAR - self._place

    @property
    def error(self) -> PblasArgumentError | KeyboardInterrupt:
        """The exception to raise, with ScaLAPACK's error number."""
        if self.interrupt:
            return self.interrupt
        position, entry = divmod(self._place, 100)
        return PblasArgumentError(f"{self.opname}: {self.text}", -(self._place if entry else position))


class Call:
    """**Collective.** A with block around a call: its arguments, which are checked on every rank, and its matrices.

    Raises:
        PblasArgumentError: a wrong argument on any rank, the same on all ranks of the grid; of several the lowest.
    """

    def __init__(self, routine: Routine, prefix: str, *values: Any) -> None:
        letters = prefix[1:]
        self.opname: str = prefix + routine.name
        self.routine: Routine = routine
        self.dtype: Dtype = TYPES[letters]
        self._values = dict(zip(routine.arguments, values, strict=True))
        self._real = {*routine.real, *(("ALPHA",) if len(letters) > 1 else ())}
        self._own = {*_OWN, *(operand.name for operand in routine.operands)}
        self._entries: dict[str, Entries] = {}
        self._parts: dict[str, Part] = {}
        self._grids: dict[str, ProcessGrid] = {}  # of the operands that this process has a part of
        self._locals: dict[str, Local] = {}
        self._matrices: list[DistMatrix] = []
        self._findings = Findings(self.opname)
        self.grid: ProcessGrid = self._agreement_grid(self._findings)
        self._call = self.runtime.call(self.opname, self._begin)

    def __enter__(self) -> Self:
        self._call.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, caught: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._deliver()
        finally:
            self._call.__exit__(kind, caught, traceback)

    def _begin(self, opname: str) -> None:
        """**Collective.** Check the arguments."""
        self.runtime.check_open(opname)
        findings, routine = self._findings, self.routine
        names = [operand.name for operand in routine.operands]
        with LocalStep(lambda _, error: self._refuse(findings, error), self.opname):
            if not findings:
                self._check_values(findings)
            for operand in routine.operands if not findings else ():
                if operand.name in self._grids:
                    self._check_local(operand, findings)
            if not findings:
                self._check_rest(findings)
            if not findings:
                self._check_overlap(findings)
            reads = [self._reads(self._locals[name].array) if name in self._locals else EITHER for name in names]
        orders: list[Literal["F", "C"]] = ["C" if read == ROWS else "F" for read in self._agree(findings, reads)]
        self._orders = dict(zip(names, orders, strict=False))

    def __getitem__(self, name: str) -> Any:
        """An argument by its name, as it was checked: options in upper case, scalars as numbers of Python."""
        return self._values[name]

    def _positions(self) -> dict[str, int]:
        """The positions of the arguments, from 1."""
        return {name: position for position, name in enumerate(self._values, 1)}

    @property
    def is_empty(self) -> bool:
        """Whether the submatrices that are written have no elements (global)."""
        return 0 in (self._values.get(name) for name in ("M", "N", "NRHS"))

    @property
    def options(self) -> dict[str, Any]:
        """The options and scalars, as keyword arguments of the functions of pblas (global)."""
        return {name.lower(): self[name] for name in self._values if name in OPTIONS or name in ("ALPHA", "BETA")}

    @property
    def runtime(self) -> Runtime:
        """Runtime of the grid's context."""
        return self.grid.runtime

    def local_step(self) -> LocalStep:
        """A with block of local work: see `Runtime.local_step` (local)."""
        return self.runtime.local_step(self.opname)

    def step(self, what: str) -> AbstractContextManager[None]:
        """**Collective.** A with block of local work, and the agreement that follows: see `Runtime.agreed_step`."""
        return self.runtime.agreed_step(self.opname, what)

    def matrix(self, name: str) -> DistMatrix:
        """sub(X) of an operand X, on its grid (local)."""
        order, grid, part = self._orders[name], self._grids[name], self._parts[name]
        desc = part.desc if order == "F" else self._entries[name].matrix(grid.grid, order)
        return DistMatrix(desc.submatrix(*part.bounds), self.local(name), grid.runtime)

    def operands(self) -> list[DistMatrix]:
        """`matrix` of each operand, in a `local_step`: the next collective call is an agreement."""
        with self.local_step():
            self._matrices = self._matrices or [self.matrix(operand.name) for operand in self.routine.operands]
        return self._matrices

    def local(self, name: str) -> Array:
        """This rank's part of sub(X), or of a copy if the array cannot be read in the order of all ranks (local)."""
        local, part = self._locals[name], self._parts[name]
        array = local.array
        if not self._fits(array, self._orders[name]):
            array = local.copied = array.copy(order=self._orders[name])
        return array[part.rows, part.columns]

    def _deliver(self) -> None:
        """Write results from copies back into the caller's arrays (local)."""
        for name in self.routine.outputs:
            local = self._locals.get(name)
            if local is not None and local.copied is not None:
                local.array[...] = local.copied

    def answers_query(self) -> bool:
        """**Collective.** Whether the call asks for the sizes of workspaces; then their first elements become 1."""
        if not self._is_query:
            return False
        with self.step("sizes of workspaces"):
            for name in WORKSPACES:
                workspace = self._values.get(name)
                if isinstance(workspace, np.ndarray) and workspace.size:
                    workspace.flat[0] = 1
        return True

    def _shared(self) -> dict[str, object]:
        """The arguments that must be equal on all ranks."""
        entries = {f"DESC{name}": entry.values[2:10] for name, entry in self._entries.items()}
        return {name: entries.get(name, value) for name, value in self._values.items() if name not in self._own}

    def _agree(self, findings: Findings, reads: list[int]) -> tuple[int, ...]:
        """**Collective.** Agree on the call: return on all ranks, or raise the same exception on all.

        `reads` says how this rank's array of each operand can be read. The result is for each operand the order in
        which all ranks read it: COLUMNS, ROWS, or EITHER; a rank whose array cannot be read so copies it. Of several
        wrong arguments the lowest one raises.
        """
        shared, error = ({}, findings.error) if findings else (self._shared(), None)
        with suppress(PblasArgumentError):  # on every rank
            return self.runtime.agree(self.opname, shared, error, tuple(reads))
        lowest = self.runtime.agree(self.opname, {}, None, (findings.urgency,))[0]
        self.runtime.agree(self.opname, {}, error if findings.urgency == lowest else None)
        raise AssertionError("one rank has the lowest position, and its error raises")

    def _refuse(self, findings: Findings, error: AgreedError) -> None:
        """**Collective.** Raise an unexpected error of the checks on all ranks; it comes before all findings."""
        findings.add(str(error).removeprefix(f"{self.opname}: "), 0)
        findings.interrupt = error if isinstance(error, KeyboardInterrupt) else None
        self._agree(findings, [])

    # Checks, all of them local: they add wrong arguments to `findings`

    def _agreement_grid(self, findings: Findings) -> ProcessGrid:
        """The grid whose ranks agree on the call: that of the first operand with a valid handle.

        Raises:
            PblasArgumentError: no valid handle, and several grids, so this process cannot reach the others.
        """
        ictxt: Any = None
        for operand in self.routine.operands:
            name, position = f"DESC{operand.name}", operand.position + 3
            ictxt = descriptors.handle(self._values[name])
            grid = find(ictxt)
            if grid is not None:
                return grid
            text = f"{name}(CTXT_) must be the handle of a grid that this process is in, got {reprlib.repr(ictxt)}"
            findings.add(text, position, descriptors.CTXT)
        grid = meant(ictxt)
        if grid is None:
            raise findings.error
        return grid

    def _check_values(self, findings: Findings) -> None:
        """Check all arguments but the arrays, by position, up to the first wrong one."""
        operands = {operand.position: operand for operand in self.routine.operands}
        for position, name in enumerate(self._values, 1):
            if position in operands:
                self._check_matrix(operands[position], findings)
            elif name in OPTIONS:
                self._check_option(name, position, findings)
            elif name in EXTENTS and name not in self.routine.returned:
                self._check_integer(name, 0, position, findings)
            elif name in ("ALPHA", "BETA", "ANORM"):
                self._check_number(name, position, findings)
            elif name[0] == "L" and name[1:] in WORKSPACES:
                self._check_size(name, position, findings)
            elif name.startswith("INC"):
                self._check_increment(name, position, findings)
            elif name in ("IRPRNT", "ICPRNT"):
                grid = self.grid.grid
                most = (grid.nprow if name == "IRPRNT" else grid.npcol) - 1
                if self._check_integer(name, 0, position, findings) and self._values[name] > most:
                    findings.add(f"{name} must be in 0..{most}, got {self._values[name]}", position)
            elif name == "NOUT":
                self._check_file(name, position, findings)
            if findings:
                return

    def _check_option(self, name: str, position: int, findings: Findings) -> None:
        value, letters = self._values[name], self.routine.letters(name, is_complex=self.dtype.kind == "c")
        first = value[0].upper() if isinstance(value, str) and value else ""  # as Fortran passes "Lower"
        if first and first in letters:
            self._values[name] = first
        elif first and name == "UPLO" and self.routine.whole:
            self._values[name] = "A"
        else:
            findings.add(f"{name} must be one of {', '.join(map(repr, letters))}, got {value!r}", position)

    def _check_integer(self, name: str, least: int, position: int, findings: Findings) -> bool:
        value = self._values[name]
        try:
            self._values[name] = operator.index(value)
        except TypeError:
            findings.add(f"{name} must be an integer, got {value!r}", position)
            return False
        if value < least:
            findings.add(f"{name} must be at least {least}, got {value}", position)
        return bool(value >= least)

    def _check_number(self, name: str, position: int, findings: Findings) -> None:
        try:
            self._values[name] = checked_number(name, self._values[name], self._dtype_of(name))
        except ArgumentError as caught:
            findings.add(str(caught), position)

        value: Any = self._values[name]
        if name == "ANORM" and not findings and not value >= 0:
            findings.add(f"ANORM must be a number of at least 0, got {value}", position)

    def _check_size(self, name: str, position: int, findings: Findings) -> None:
        """Check the size of a workspace: of all sizes only -1, a query, means anything, on all ranks."""
        if self._values[name] is not None and self._check_integer(name, _QUERY, position, findings):
            self._values[name] = _QUERY if self._values[name] == _QUERY else None

    def _dtype_of(self, name: str) -> Dtype:
        """The dtype of a scalar or a matrix."""
        return real_of(self.dtype) if name in self._real or name == "ANORM" else self.dtype

    def _check_increment(self, name: str, position: int, findings: Findings) -> None:
        """Check INCX, which follows DESCX: 1, or the number of rows of X."""
        entries = self._entries.get(name[-1])
        value = self._values[name]
        allowed = (1,) if entries is None else (1, entries[descriptors.M])
        if isinstance(value, bool) or value not in allowed:
            rows = "" if entries is None else f" = {entries[descriptors.M]}"
            findings.add(f"{name} must be 1 (a column) or M_{name[-1]}{rows} (a row), got {value!r}", position)

    def is_row(self, operand: Operand) -> bool:
        """Whether a vector is a row of its matrix: its increment is the number of rows."""
        entries = Entries.read(self._values[f"DESC{operand.name}"])
        return entries is not None and bool(self._values[operand.increment] == entries[descriptors.M])

    def _check_file(self, name: str, position: int, findings: Findings) -> None:
        """Check the file on the process that prints, (IRPRNT, ICPRNT); the others ignore theirs."""
        value, coordinates = self._values[name], self.grid.grid.coordinates(self.grid.runtime.rank)
        if coordinates == (self["IRPRNT"], self["ICPRNT"]) and not (
            isinstance(value, int) or callable(getattr(value, "write", None))
        ):
            findings.add(f"{name} must be 6 or a file that is open for text, got {value!r}", position)

    def _extents(self, operand: Operand) -> tuple[int, int]:
        """Rows and columns of the submatrix."""
        rows, columns = (self._extent(name) for name in (operand.rows, operand.columns))
        if operand.trans and self[operand.trans] != "N":
            rows, columns = columns, rows
        if operand.increment:
            return (1, rows) if self.is_row(operand) else (rows, 1)
        return rows, columns

    def _extent(self, name: str) -> int:
        """The rows or columns that an argument counts; "SIDE" stands for M or N, "MAX" and "MIN" for one of both."""
        if name in ("MAX", "MIN"):
            return (max if name == "MAX" else min)(int(self["M"]), int(self["N"]))
        if name == "SIDE":
            name = "M" if self["SIDE"] == "L" else "N"
        return 1 if name == "1" else int(self._values[name])

    def _is_outside(self, operand: Operand) -> bool:
        """Whether this process is outside an operand's grid; false for routines whose matrices share one grid."""
        del operand
        return False

    def _grid_for(self, operand: Operand, ictxt: int, findings: Findings) -> ProcessGrid | None:
        """The grid of an operand, which must be the first operand's; None if it is not."""
        if find(ictxt) is self.grid:
            return self.grid
        first = self.routine.operands[0].name
        text = f"DESC{operand.name}(CTXT_) must be the context of DESC{first}, got {ictxt!r}"
        findings.add(text, operand.position + 3, descriptors.CTXT)
        return None

    def _check_matrix(self, operand: Operand, findings: Findings) -> None:
        """Check IX, JX and DESCX of one operand.

        Source: PBLAS, PB_Cchkmat.
        """
        if self._is_outside(operand):
            return
        name, position, extents = operand.name, operand.position + 3, self._extents(operand)
        axes = (("I", "rows", descriptors.M, position - 2), ("J", "columns", descriptors.N, position - 1))
        valid_starts = [self._check_integer(f"{axis}{name}", 1, place, findings) for axis, _, _, place in axes]
        desc = self._values[f"DESC{name}"]
        entries = Entries.read(desc)
        if entries is None:
            text = f"DESC{name}(DTYPE_) must be 1 with 8 integers after it, or 2 with 10, got {desc!r}"
            findings.add(text, position, descriptors.DTYPE)
            return
        grid = self._grid_for(operand, entries[descriptors.CTXT], findings)
        if grid is None:
            return
        self._entries[name], self._grids[name] = entries, grid
        self._check_entries(operand, 0 if 0 in extents else 1, findings)
        for (axis, what, size, place), extent, valid in zip(axes, extents, valid_starts, strict=True):
            start = self._values[f"{axis}{name}"]
            if 0 not in extents and valid and entries[size] >= 1 and start + extent - 1 > entries[size]:
                findings.add(
                    f"{axis}{name} = {start}: {extent} {what} from there on leave {name}, which has "
                    f"DESC{name}({descriptors.NAMES[size - 1]}) = {entries[size]}",
                    place,
                )
        if not findings:
            self._check_lld(operand, findings, empty=0 in extents)

    def _check_entries(self, operand: Operand, least: int, findings: Findings) -> None:
        """Check a descriptor, except DTYPE, CTXT and LLD."""
        name, entries, grid = operand.name, self._entries[operand.name], self._grids[operand.name].grid
        ranges: dict[int, tuple[int, int | None]] = {
            descriptors.M: (least, None),
            descriptors.N: (least, None),
            **dict.fromkeys((descriptors.IMB, descriptors.INB, descriptors.MB, descriptors.NB), (1, None)),
            descriptors.RSRC: (-1, grid.nprow - 1),
            descriptors.CSRC: (-1, grid.npcol - 1),
        }
        self._check_ranges(f"DESC{name}", entries, ranges, operand.position + 3, findings)

    def _check_ranges(
        self,
        name: str,
        entries: Entries,
        ranges: Mapping[int, tuple[int, int | None]],
        position: int,
        findings: Findings,
    ) -> None:
        """Check entries of a descriptor, which have a least value and perhaps a largest one."""
        for entry, (low, high) in ranges.items():
            if entries[entry] < low or (high is not None and entries[entry] > high):
                limits = f"at least {low}" if high is None else f"in {low}..{high}"
                what = f"{name}({descriptors.NAMES[entry - 1]})"
                findings.add(f"{what} must be {limits}, got {entries[entry]}", position, entry)

    def _check_lld(self, operand: Operand, findings: Findings, *, empty: bool) -> None:
        name, grid = operand.name, self._grids[operand.name]
        corner = self._values[f"I{name}"], self._values[f"J{name}"]
        self._parts[name] = Part.of(grid, self._entries[name], *corner, *self._extents(operand))
        m_loc, n_loc = self._parts[name].shape
        least, lld = 1 if empty or n_loc == 0 else max(1, m_loc), self._entries[name][descriptors.LLD]
        if lld < least:
            place = grid.grid.coordinates(grid.runtime.rank)
            text = f"DESC{name}(LLD_) on process {place} must be at least {least}, got {lld}"
            findings.add(text, operand.position + 3, descriptors.LLD)

    def _check_local(self, operand: Operand, findings: Findings) -> None:
        """Check the local array: its dtype, and space for the elements that the descriptor gives this rank."""
        name, lld = operand.name, self._entries[operand.name][descriptors.LLD]
        written, shape = self.routine.is_written(operand), self._parts[operand.name].shape
        try:
            self._locals[name] = Local(
                checked_part(self.runtime, name, self._values[name], self._dtype_of(name), shape, lld, written=written)
            )
        except ArgumentError as caught:
            findings.add(str(caught), operand.position)

    def _check_rest(self, findings: Findings) -> None:
        """Check arguments that only some routines have; their calls are subclasses."""

    def _check_values_array(self, name: str, count: int, findings: Findings) -> None:
        """Check an array for real numbers that all processes get."""
        x, real = self[name], real_of(self.dtype)
        if not (
            isinstance(x, np.ndarray) and x.ndim == 1 and x.dtype == real and len(x) >= count and x.flags.writeable
        ):
            got = f"{x.dtype.name} of shape {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
            text = (
                f"{name} must be a NumPy array of {count} {real.name}, in one dimension, that can be written, got {got}"
            )
            findings.add(text, self._positions()[name])

    @property
    def _is_query(self) -> bool:
        """Whether the call asks for the sizes of workspaces (global)."""
        return any(self._values.get(f"L{name}") == _QUERY for name in WORKSPACES)

    def _check_overlap(self, findings: Findings) -> None:
        """Check that a written submatrix shares no memory with another one on this rank."""
        operands = [operand for operand in self.routine.operands if operand.name in self._grids]
        for target in filter(self.routine.is_written, operands):
            z = self._submatrix(target.name)
            for operand in operands:
                x = self._submatrix(operand.name)
                if operand is target or not (x.size and z.size):
                    continue
                if shares_memory(self.runtime.backend.memory_of(x), self.runtime.backend.memory_of(z)):
                    text = f"sub({target.name}) must not share memory with sub({operand.name})"
                    findings.add(text, target.position)

    def _submatrix(self, name: str) -> Array:
        """This rank's part of sub(X), in the caller's memory."""
        part = self._parts[name]
        return self._locals[name].array[part.rows, part.columns]

    def _fits(self, part: Array, order: Literal["F", "C"]) -> bool:
        """Whether an array can be multiplied in place in this storage order."""
        fast, slow = (0, 1) if order == "F" else (1, 0)
        unit = part.shape[fast] <= 1 or part.strides[fast] == part.itemsize
        step, rest = divmod(part.strides[slow], part.itemsize)
        spaced = part.shape[slow] <= 1 or (rest == 0 and step >= part.shape[fast])
        aligned = self.runtime.backend.address(part) % self.dtype.alignment == 0
        return part.size == 0 or (unit and spaced and aligned)

    def _reads(self, part: Array) -> int:
        """The storage order in which this rank's array can be read in place: COLUMNS, ROWS or EITHER."""
        columns, rows = self._fits(part, "F"), self._fits(part, "C")
        return EITHER if columns == rows else COLUMNS if columns else ROWS


def without_operands(routine: Routine, values: tuple[Any, ...], jobs: Mapping[str, str]) -> Routine:
    """A routine without the matrices of those options that are "N": they are not used (local).

    Args:
        routine: the routine.
        values: of its arguments.
        jobs: the name of a matrix by the option that asks for it.
    """
    given = dict(zip(routine.arguments, values, strict=True))
    unused = {x for job, x in jobs.items() if isinstance(given[job], str) and given[job][:1].upper() == "N"}
    return replace(
        routine,
        operands=tuple(operand for operand in routine.operands if operand.name not in unused),
        outputs=tuple(name for name in routine.outputs if name not in unused),
    )


def of_types(
    *routines: Routine, call: Callable[..., AbstractContextManager[Any]] = Call
) -> Callable[[Callable[[Any], R]], Callable[[Any], R]]:
    """A decorator that adds the routines of all types to ROUTINES; their docstrings and the function's are the same.

    Args:
        routines: the routines that the function stands for.
        call: what a with block makes of (routine, prefix, arguments): the function's argument.

    >>> from dataclasses import replace
    >>> from pblas.scalapack.routines import NRM2
    >>> @of_types(replace(NRM2, name="sum", prefixes=("pdz",)))
    ... def pxsum(call): "The sum."
    >>> pdzsum = ROUTINES.pop("pdzsum")
    >>> pdzsum.__name__, list(inspect.signature(pdzsum).parameters)
    ('pdzsum', ['n', 'x', 'ix', 'jx', 'descx', 'incx'])
    """

    def register(body: Callable[[Any], R]) -> Callable[[Any], R]:
        for routine in routines:
            for prefix in routine.prefixes:
                ROUTINES[prefix + routine.name] = _of_type(routine, prefix, body, call)
        return body

    return register


@contextmanager
def unchecked(routine: Routine, prefix: str, *values: object) -> Iterator[tuple[object, ...]]:
    """The name of a routine that checks its arguments itself, and the arguments (local)."""
    yield prefix + routine.name, *values


def _of_type(
    routine: Routine, prefix: str, body: Callable[[Any], R], call: Callable[..., AbstractContextManager[Any]]
) -> Callable[..., R]:
    """The function of one type."""
    signature, names = routine.signature, [name.lower() for name in routine.arguments]

    def typed(*args: Any, **kwargs: Any) -> R:
        if kwargs or len(args) != len(signature.parameters):  # 8 us, which most calls save
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            args = bound.args
        given = dict(zip(signature.parameters, args, strict=True))
        with call(routine, prefix, *map(given.get, names)) as checked:
            return body(checked)

    first, *others = (inspect.getdoc(body) or "").split("\n\n")
    if not any(section.startswith("Raises:") for section in others):
        others.insert(-1, _RAISES)
    shown: Any = typed
    shown.__name__ = shown.__qualname__ = prefix + routine.name
    shown.__module__ = "pblas.scalapack"
    shown.__doc__ = "\n\n".join((first, routine.described(), *others))
    shown.__signature__ = signature.replace(return_annotation=body.__annotations__.get("return"))
    return typed


_RAISES = """\
Raises:
    PblasArgumentError: a wrong argument on any rank, the same on every rank of the grid."""
