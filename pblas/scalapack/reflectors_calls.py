"""Calls with TAU, of QR and LQ factorizations and of products with their Q; perhaps with IPIV for columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pblas.errors import ArgumentError
from pblas.scalapack.arguments import Call, Findings
from pblas.scalapack.tied_vectors import INTEGERS, TiedVector

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array


class ReflectorsCall(Call):
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
        return self._tau().collect(self.verb, "TAU", self["TAU"], self._count())

    def store_order(self, order: Array) -> None:
        """Write IPIV, from columns of sub(A) that count from 0 (local)."""
        self._ipiv().store(self["IPIV"], order + self["JA"])

    def _tau(self) -> TiedVector:
        """The elements of TAU that belong to sub(A) (local)."""
        start = self["JA" if self.axis else "IA"]
        return TiedVector.of(self._grids["A"], self._entries["A"], self.axis, 0, start, self._count())

    def _ipiv(self) -> TiedVector:
        """The elements of IPIV, one for each column of sub(A) (local)."""
        count = self["N"] if self["M"] else 0
        return TiedVector.of(self._grids["A"], self._entries["A"], 1, 0, self["JA"], count)

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

    def _check_rest(self, findings: Findings) -> None:
        """Check this process's arrays."""
        is_factored = "K" not in self._values
        vectors: list[tuple[str, Callable[[], TiedVector], tuple[str, ...]]] = [
            ("TAU", self._tau, (np.dtype(self.dtype).name,))
        ]
        if "IPIV" in self._values:
            vectors.insert(0, ("IPIV", self._ipiv, INTEGERS))
        for name, vector, dtypes in vectors:
            try:
                vector().check(name, self[name], dtypes, written=is_factored)
            except ArgumentError as caught:
                findings.add(str(caught), self.routine.arguments.index(name) + 1)
