"""Calls with IPIV: of routines whose pivots are distributed as the rows of A, and of p?lapiv."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.errors import ArgumentError
from pblas.scalapack import descriptors
from pblas.scalapack.arguments import Call, Findings
from pblas.scalapack.descriptors import Entries
from pblas.scalapack.grids import find
from pblas.scalapack.tied_vectors import INTEGERS, TiedVector, collected_pivots

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array


class PivotedCall(Call):
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
        return collected_pivots(self._pivots(), self.verb, position, self["IPIV"], rows, rows)

    def _pivots(self) -> TiedVector:
        """The elements of IPIV that belong to sub(A) (local)."""
        return TiedVector.of(self._grids["A"], self._entries["A"], 0, 0, self["IA"], self._pivoted())

    def _pivoted(self) -> int:
        """The number of exchanges: of rows of sub(A), which has as many columns at least (global)."""
        return min(self["N"], self._values.get("M", self["N"]))

    def _check_rest(self, findings: Findings) -> None:
        """Check this process's array."""
        try:
            self._pivots().check("IPIV", self["IPIV"], INTEGERS, written=self.routine.name in ("getrf", "gesv"))
        except ArgumentError as caught:
            findings.add(str(caught), self.routine.arguments.index("IPIV") + 1)


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

    def _shared(self) -> dict[str, Any]:
        """DESCIP without the entries that may differ."""
        _, _, m, n, imb, inb, mb, nb, rsrc, csrc, _ = self._descip.values
        entries = (m, imb, mb, rsrc) if self._axis == 0 else (n, inb, nb, csrc)
        return {**super()._shared(), "DESCIP": entries}
