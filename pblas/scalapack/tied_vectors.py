"""IPIV and TAU: vectors in plain arrays on each process, distributed as the rows or the columns of a matrix.

Then the calls that have them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.backends.local_step import agreed
from pblas.core.checks import check_written
from pblas.errors import ArgumentError, PblasArgumentError
from pblas.matrices.scatter_gather import index_of
from pblas.scalapack import descriptors
from pblas.scalapack.arguments import Call, Findings
from pblas.scalapack.descriptors import BLOCK_CYCLIC_2D_INB, Entries, Part
from pblas.scalapack.grids import ProcessGrid, find
from pblas.vectors.matrix_vector import real_of

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.scalapack.routines import Operand

INTEGERS = ("int32", "int64")  # dtypes of IPIV


@dataclass(frozen=True, slots=True)
class TiedVector:
    """The place of some elements of a vector that is distributed along one axis of the grid.

    All processes along the other axis have a copy, or only those with one coordinate.


    """

    grid: ProcessGrid  # the grid (global)
    # this process's part of the vector, as a matrix of one column or of one row (global, but for its slices)
    part: Part
    axis: int  # 0: the vector is a column, distributed along process columns; 1: a row (global)
    copy: int  # coordinate along the other axis of a process whose copy is read (local)
    start: int  # number of the first element, from 1 (global)

    @classmethod
    def of(cls, grid: ProcessGrid, entries: Entries, axis: int, copy: int, start: int, count: int) -> TiedVector:
        """The elements start..start+count-1, from 1, of a vector that is distributed as one axis of a descriptor."""
        _, _, m, n, imb, inb, mb, nb, rsrc, csrc, _ = entries.values
        ctxt = entries[descriptors.CTXT]
        if axis == 0:
            column = Entries((BLOCK_CYCLIC_2D_INB, ctxt, m, 1, imb, 1, mb, 1, rsrc, 0, 1))
            return cls(grid, Part.of(grid, column, start, 1, count, 1), axis, copy, start)
        row = Entries((BLOCK_CYCLIC_2D_INB, ctxt, 1, n, 1, inb, 1, nb, 0, csrc, 1))
        return cls(grid, Part.of(grid, row, 1, start, 1, count), axis, copy, start)

    @property
    def _slice(self) -> slice:
        """The elements of this process's array (local)."""
        return self.part.columns if self.axis else self.part.rows

    def _indices(self) -> Any:
        """The elements that this process has, counted from 0 from the first one on (local)."""
        desc = self.part.desc.submatrix(*self.part.bounds)
        return index_of(desc.global_ranges(self.grid.runtime.rank)[self.axis])

    def check(self, name: str, array: object, dtypes: tuple[str, ...], *, written: bool) -> None:
        """Raise ArgumentError unless an array has room for this process's part (local)."""
        size = self._slice.stop
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.name not in dtypes or len(array) < size:
            got = (
                f"{array.dtype.name} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            )
            kinds = " or ".join(dtypes)
            raise ArgumentError(f"{name} must be a NumPy array of {size} {kinds}, in one dimension, got {got}")
        if written:
            check_written(name, array)

    def store(self, array: Array, values: Array) -> None:
        """Write this process's part of the vector, of which all processes have all elements (local)."""
        array[self._slice] = values[self._indices()]

    def collect(self, opname: str, what: str, array: Array, count: int) -> Array:
        """**Collective.** The elements on all processes."""
        runtime = self.grid.runtime
        with runtime.agreed_step(opname, what):
            has_copy = self.grid.grid.coordinates(runtime.rank)[1 - self.axis] == self.copy
            part = (self._indices(), array[self._slice]) if has_copy else None
            vector = np.zeros(count, array.dtype)
        for indices, values in filter(None, runtime.backend.gather(part)):
            vector[indices] = values
        return vector


def collected_pivots(vector: TiedVector, opname: str, position: int, ipiv: Array, count: int, rows: int) -> Array:
    """**Collective.** Exchanges of rows on all processes, which count from 1 at the first row."""
    pivots, base = vector.collect(opname, "IPIV", ipiv, count).astype(np.intp), vector.start
    pivots -= base - 1
    wrong = np.flatnonzero((pivots < 1) | (pivots > rows))
    if wrong.size:
        k = int(wrong[0])
        text = (
            f"{opname}: IPIV holds {pivots[k] + base - 1} for row {k + base}; it must be in {base}..{base + rows - 1}"
        )
        raise agreed(PblasArgumentError(text, -position))
    return pivots.astype(np.intc)


class TiedCall(Call):
    """A call with arrays that are distributed as the rows or the columns of a matrix."""

    def _tied(self, matrix: str, axis: int, count: int, skipped: int = 0) -> TiedVector:
        """Elements tied to the columns of sub(X), or for axis 0 to its rows, from the first on but for some (local)."""
        start = self[("J" if axis else "I") + matrix] + skipped
        return TiedVector.of(self._grids[matrix], self._entries[matrix], axis, 0, start, count)

    def _vectors(self) -> list[tuple[str, TiedVector, tuple[str, ...]]]:
        """The arrays by their names, and the dtypes that they may have (local)."""
        raise NotImplementedError

    def _is_written(self, name: str) -> bool:
        """Whether the routine writes an array (global)."""
        raise NotImplementedError

    def _check_rest(self, findings: Findings) -> None:
        """Check this process's arrays."""
        for name, vector, dtypes in [] if self._is_query else self._vectors():
            try:
                vector.check(name, self[name], dtypes, written=self._is_written(name))
            except ArgumentError as caught:
                findings.add(str(caught), self.routine.arguments.index(name) + 1)


class PivotedCall(TiedCall):
    """A call with IPIV, which is distributed as the rows of A, with a copy in each process column."""

    def store_pivots(self, pivots: Array) -> None:
        """Write IPIV, from exchanges that count from 1 at the first row (local)."""
        self._pivots().store(self["IPIV"], pivots + (self._pivots().start - 1))

    def collected_pivots(self) -> Array:
        """**Collective.** The exchanges in IPIV, which count from 1 at the first row; they are checked here.

        Raises:
            PblasArgumentError: a pivot that is no row of sub(A), on all ranks.
        """
        position, rows = self.routine.arguments.index("IPIV") + 1, self._pivoted()
        return collected_pivots(self._pivots(), self.opname, position, self["IPIV"], rows, rows)

    def _pivots(self) -> TiedVector:
        """The elements of IPIV that belong to sub(A) (local)."""
        return self._tied("A", 0, self._pivoted())

    def _pivoted(self) -> int:
        """The number of exchanges: of rows of sub(A), which has as many columns at least (global)."""
        return min(self["N"], self._values.get("M", self["N"]))

    def _vectors(self) -> list[tuple[str, TiedVector, tuple[str, ...]]]:
        return [("IPIV", self._pivots(), INTEGERS)]

    def _is_written(self, name: str) -> bool:
        return self.routine.name in ("getrf", "gesv")


class Permutation(PivotedCall):
    """A call of p?lapiv: IPIV has a descriptor of its own."""

    def _check_values(self, findings: Findings) -> None:
        """Check also IP, JP and DESCIP, which are the last arguments but one."""
        super()._check_values(findings)
        for position, name in ((11, "IP"), (12, "JP")):
            if not findings:
                self._check_integer(name, 1, position, findings)
        if not findings:
            self._check_descriptor(findings)

    def _check_descriptor(self, findings: Findings) -> None:
        desc, position = self["DESCIP"], 13
        entries = Entries.read(desc)
        if entries is None:
            text = f"DESCIP(DTYPE_) must be 1 with 8 integers after it, or 2 with 10, got {desc!r}"
            findings.add(text, position, descriptors.DTYPE)
            return
        ictxt, grid = entries[descriptors.CTXT], self.grid.grid
        if find(ictxt) is not self.grid:
            text = f"DESCIP(CTXT_) must be the context of DESCA, got {ictxt!r}"
            findings.add(text, position, descriptors.CTXT)
        axis, start = self._axis, self["IP" if self._axis == 0 else "JP"]
        size, first, block, source, nprocs = (
            (descriptors.M, descriptors.IMB, descriptors.MB, descriptors.RSRC, grid.nprow),
            (descriptors.N, descriptors.INB, descriptors.NB, descriptors.CSRC, grid.npcol),
        )[axis]
        last = start + self._pivoted() - 1
        ranges = {size: (last, None), first: (1, None), block: (1, None), source: (-1, nprocs - 1)}
        self._check_ranges("DESCIP", entries, ranges, position, findings)
        self._descip = entries

    @property
    def _axis(self) -> int:
        """0 if IPIV is a column, 1 if it is a row (global)."""
        return 0 if self["PIVROC"] == "C" else 1

    def _pivoted(self) -> int:
        return int(self["M" if self["ROWCOL"] == "R" else "N"])

    def _pivots(self) -> TiedVector:
        other, start = (descriptors.CSRC, self["IP"]) if self._axis == 0 else (descriptors.RSRC, self["JP"])
        return TiedVector.of(self.grid, self._descip, self._axis, max(0, self._descip[other]), start, self._pivoted())

    def _shared(self) -> dict[str, object]:
        """DESCIP without the entries that may differ."""
        _, _, m, n, imb, inb, mb, nb, rsrc, csrc, _ = self._descip.values
        entries = (m, imb, mb, rsrc) if self._axis == 0 else (n, inb, nb, csrc)
        return {**super()._shared(), "DESCIP": entries}


class ReflectorsCall(TiedCall):
    """A call with TAU, distributed as the columns of A, or in LQ as its rows, and copied along the other axis."""

    @property
    def axis(self) -> int:
        """0 if the reflectors are rows of sub(A), 1 if they are columns (global)."""
        return 0 if self.routine.name.endswith(("lqf", "mlq")) else 1

    @property
    def has_elements(self) -> bool:
        """Whether the result has elements (global)."""
        return bool(self["M"] and self["N"])

    def store_tau(self, tau: Array) -> None:
        """Write TAU (local)."""
        self._tau().store(self["TAU"], tau)

    def collected_tau(self) -> Array:
        """**Collective.** TAU, on all processes."""
        return self._tau().collect(self.opname, "TAU", self["TAU"], self._count())

    def store_order(self, order: Array) -> None:
        """Write IPIV, from columns of sub(A) that count from 0 (local)."""
        self._ipiv().store(self["IPIV"], order + self["JA"])

    def _tau(self) -> TiedVector:
        """The elements of TAU that belong to sub(A) (local)."""
        return self._tied("A", self.axis, self._count())

    def _ipiv(self) -> TiedVector:
        """The elements of IPIV, one for each column of sub(A) (local)."""
        return self._tied("A", 1, self["N"] if self["M"] else 0)

    def _count(self) -> int:
        """The number of reflectors (global)."""
        return int(self["K"]) if "K" in self._values else min(self["M"], self["N"])

    def _check_values(self, findings: Findings) -> None:
        """Check also that a product has no more reflectors than rows of Q, and that Q has no more columns than rows."""
        super()._check_values(findings)
        if not all(isinstance(self._values.get(name), int) for name in "KMN"):
            return
        k, position = self["K"], self.routine.arguments.index("K") + 1
        if "SIDE" not in self._values:
            if self["N"] > self["M"]:
                findings.add(f"N must be at most M = {self['M']}, got {self['N']}", position - 1)
            most, name = self["N"], "N"
        else:
            name = "M" if self["SIDE"] == "L" else "N"
            most = self[name]
        if k > most:
            findings.add(f"K must be at most {name} = {most}, got {k}", position)

    def _vectors(self) -> list[tuple[str, TiedVector, tuple[str, ...]]]:
        vectors: list[tuple[str, TiedVector, tuple[str, ...]]] = [("TAU", self._tau(), (self.dtype.name,))]
        if "IPIV" in self._values:
            vectors.append(("IPIV", self._ipiv(), INTEGERS))
        return vectors

    def _is_written(self, name: str) -> bool:
        return not {"K", "C"} & self._values.keys()


class TridiagonalCall(ReflectorsCall):
    """A call with the reflectors of a tridiagonalization, and perhaps with D and E, tied to columns as TAU is."""

    @property
    def has_elements(self) -> bool:
        return not self.is_empty

    def store_t(self, d: Array, e: Array) -> None:
        """Write D and E (local)."""
        self._diagonal().store(self["D"], d)
        self._tau().store(self["E"], e)

    def _tau(self) -> TiedVector:
        return self._tied("A", 1, self._count(), int(self["UPLO"] == "U"))

    def _diagonal(self) -> TiedVector:
        """The elements of D that belong to sub(A) (local)."""
        return self._tied("A", 1, self["N"])

    def _count(self) -> int:
        return max(0, int(self["M" if self._values.get("SIDE") == "L" else "N"]) - 1)

    def _vectors(self) -> list[tuple[str, TiedVector, tuple[str, ...]]]:
        vectors, real = super()._vectors(), (real_of(self.dtype).name,)
        return [("D", self._diagonal(), real), ("E", self._tau(), real), *vectors] if "D" in self._values else vectors


class BidiagonalCall(TiedCall):
    """A call of p?gebrd with D, E, TAUQ and TAUP, or one with the reflectors of Q or P and their TAU."""

    @property
    def shift(self) -> int:
        """Rows below the diagonal with which the first reflector begins; of P columns right of it (global)."""
        return int(self._order <= self["K"] - (self["VECT"] == "Q"))

    def store(self, values: tuple[Array, ...]) -> None:
        """Write D, E, TAUQ and TAUP (local)."""
        for (name, vector, _), of_name in zip(self._vectors(), values, strict=True):
            vector.store(self[name], of_name)

    def collected_tau(self) -> Array:
        """**Collective.** TAU of the reflectors that there are, on all processes."""
        count = min(self._order - self.shift, self["K"])
        return self._tied("A", int(self["VECT"] == "Q"), count).collect(self.opname, "TAU", self["TAU"], count)

    @property
    def _order(self) -> int:
        """The order of Q or P (global)."""
        return int(self["M" if self["SIDE"] == "L" else "N"])

    def _extents(self, operand: Operand) -> tuple[int, int]:
        """Also of sub(A) with the reflectors of Q in its columns, or those of P in its rows."""
        if operand.name != "A" or "VECT" not in self._values:
            return super()._extents(operand)
        columns = min(self._order, int(self["K"]))
        return (self._order, columns) if self["VECT"] == "Q" else (columns, self._order)

    def _vectors(self) -> list[tuple[str, TiedVector, tuple[str, ...]]]:
        own, real = (self.dtype.name,), (real_of(self.dtype).name,)
        if "VECT" in self._values:
            return [("TAU", self._tied("A", int(self["VECT"] == "Q"), min(self._order, self["K"])), own)]
        k, along = min(self["M"], self["N"]), int(self["M"] >= self["N"])
        return [
            ("D", self._tied("A", along, k), real),
            ("E", self._tied("A", 1 - along, max(0, k - 1)), real),
            ("TAUQ", self._tied("A", 1, k), own),
            ("TAUP", self._tied("A", 0, k), own),
        ]

    def _is_written(self, name: str) -> bool:
        return name != "TAU"
