"""The plan of a solve with a factor in block columns: triangular solves one after the other, as a value of integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

from pblas.factor.factorization_plan import Panel, panels
from pblas.factor.with_factor_plan import WithFactorPlan
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.simulation.phase import Phase, Traffic, View

_DEALT = 8
"""Columns of the identity that a rank gets at a time, so that all ranks have about as many zeros to leave out."""


class Sweep(NamedTuple):
    """One triangular solve: X := op(T)^-1 X for the lower or upper triangle T of the factor."""

    uplo: Literal["L", "U"]
    trans: Literal["N", "T", "C"] = "N"
    unit: bool = False

    @property
    def ascends(self) -> bool:
        """Whether the first rows of X are solved first."""
        return (self.uplo == "L") == (self.trans == "N")

    def rows(self, panel: Panel, n: int) -> tuple[int, int]:
        """Rows (start, stop) of a panel in the triangle, with the whole diagonal block (global)."""
        return (panel.start, n) if self.uplo == "L" else (0, panel.stop)


@dataclass(frozen=True, slots=True)
class SubstitutionPlan(WithFactorPlan):
    """X = op(A)^-1 B with a factor of A in block columns: every rank solves for columns of its own.

    X is on 1 x P ranks by columns. Each rank needs all panels of the factor, and no result of another rank. Each rank
    may sort the columns of an identity with exchanged rows by their first element that is not 0, so that the first
    sweep leaves the zeros out.

    Args:
        sweeps: the triangular solves, in order (global).

    >>> w, b = MatrixDescriptor.column_wise(8, 8, 2, nb=2), MatrixDescriptor.row_wise(8, 6, 2)
    >>> plan = SubstitutionPlan(w, b, "float64", 2, "message", sweeps=(Sweep("L"), Sweep("L", "C")))
    >>> plan.x.local_shape(0), [plan.exchanged_elements(rank) for rank in range(2)]
    ((8, 3), [32, 48])
    """

    name: ClassVar[str] = "SubstitutionPlan"
    why: ClassVar[str] = "each rank solves for columns of its own, and needs no result of another rank"

    sweeps: tuple[Sweep, ...] = ()

    @property
    def x(self) -> MatrixDescriptor:
        """Distribution of X: columns in even blocks, as far apart as those of the factor.

        Sorted columns of the identity are dealt out a few at a time.
        """
        x = MatrixDescriptor.column_wise(*self.b.shape, self.nprocs, nb=_DEALT if self.begins == "sorted" else None)
        return replace(x, lld=self.w.lld)

    @property
    def stays(self) -> bool:
        """Whether X is computed in the memory of the result, which for an inverse may be that of its factor."""
        return self.begins in ("B", "array") and self._is_in_layout

    @property
    def overlaps_messages(self) -> bool:
        """Whether ranks compute while messages are under way: the next panel arrives meanwhile."""
        return self.nprocs > 1 and self.transport in ("message", "mixed")

    def parts(self) -> Iterator[tuple[Sweep, Panel]]:
        """The panels that every rank with columns of X needs, in order."""
        columns = panels(self.w)
        for sweep in self.sweeps:
            for panel in columns if sweep.ascends else reversed(columns):
                yield sweep, panel

    def needs(self, rank: int) -> bool:
        """Whether a rank has columns of X."""
        return self.x.local_shape(rank)[1] > 0

    def exchanged_elements(self, rank: int) -> int:
        """Elements of panels of other ranks."""
        return self._elements(lambda owner: owner != rank) if self.needs(rank) else 0

    def lent_elements(self, rank: int) -> int:
        """Elements of this rank's panels, once for each rank that reads them."""
        readers = sum(self.needs(peer) for peer in range(self.nprocs) if peer != rank)
        return readers * self._elements(lambda owner: owner == rank)

    def _elements(self, counts: Callable[[int], bool]) -> int:
        """Elements of the panels whose owners count."""
        rows = ((panel, sweep.rows(panel, self.w.m)) for sweep, panel in self.parts() if counts(panel.owner))
        return sum((i1 - i0) * panel.width for panel, (i0, i1) in rows)

    def changes(self, view: View) -> Iterator[Phase]:
        """Each step is a GEMM of a panel with a rank's right-hand sides."""
        n_loc = self.x.local_shape(view.rank)[1]
        for sweep, panel in self.parts() if n_loc else ():
            i0, i1 = sweep.rows(panel, self.w.m)
            traffic = view.traffic(panel.owner, self.itemsize * (i1 - i0) * panel.width) if i1 > i0 else Traffic()
            # X[i] -= T[i, k] X[k]   (panel k of the factor, this rank's columns of X)
            yield Phase(1, (i1 - i0, n_loc, panel.width), before=traffic)

    @property
    def panel_nbytes(self) -> int:
        """Two panels of other ranks, unless they are read in place."""
        buffers = 2 if self.transport != "shared" and self.nprocs > 1 else 0
        return self.itemsize * buffers * self.w.m * min(self.w.nb, self.w.n)

    @property
    def flops(self) -> int:
        """Real additions and multiplications, to first order."""
        multiplications = len(self.sweeps) * self.w.m**2 * self.b.n // 2
        multiplications -= (self.begins == "sorted") * self.w.m**3 // 3  # of n^3 / 2 in the first sweep
        return multiplications * (8 if self.dtype.startswith("complex") else 2)

    def title(self) -> str:
        """The operation and its sizes."""
        return f"X = op(A)^-1 B, {self.b.m} equations, {self.b.n} right-hand sides"
