"""The plan of a solve with a factor in block columns: triangular solves one after the other, as a value of integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, Literal, NamedTuple

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.plans.base import Plan
from pblas.plans.factorization import Panel, panels
from pblas.plans.redistribution import RedistributionPlan, described
from pblas.simulation.hardware import Transport
from pblas.simulation.phase import Phase, Traffic, View

_ASK_ALL = 64
"""Largest number of ranks that are all examined to find the busiest."""
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
class SubstitutionPlan(Plan):
    """X = op(A)^-1 B with a factor of A in block columns: every rank solves for columns of its own.

    B is brought to X, on 1 x P ranks by columns. Then each rank needs all panels of the factor, and no result of
    another rank; X is brought to the distribution of B.

    Args:
        w: distribution of the factor: block columns on 1 x P ranks (global).
        b: distribution of B (global).
        sweeps: the triangular solves, in order (global).
        sorts: B is the identity with exchanged rows, and each rank sorts its columns by their first element that is not
            0, so that the first sweep leaves the zeros out (global).

    >>> w = MatrixDescriptor.column_wise(8, 8, 2, nb=2)
    >>> plan = SubstitutionPlan(w, MatrixDescriptor.row_wise(8, 6, 2), (Sweep("L"), Sweep("L", "C")), "float64", 2)
    >>> plan.x.local_shape(0), [plan.panel_elements(rank) for rank in range(2)]
    ((8, 3), [32, 48])
    """

    name: ClassVar[str] = "SubstitutionPlan"
    why: ClassVar[str] = "each rank solves for columns of its own, and needs no result of another rank"

    w: MatrixDescriptor
    b: MatrixDescriptor
    sweeps: tuple[Sweep, ...]
    dtype: str
    nprocs: int
    transport: Transport = "message"
    sorts: bool = False

    @property
    def x(self) -> MatrixDescriptor:
        """Distribution of X: columns in even blocks, as far apart as those of the factor.

        Columns of the identity are dealt out a few at a time.
        """
        x = MatrixDescriptor.column_wise(*self.b.shape, self.nprocs, nb=_DEALT if self.sorts else None)
        return replace(x, lld=self.w.lld)

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

    def panel_elements(self, rank: int) -> int:
        """Elements of panels of other ranks that a rank reads or receives."""
        if not self.needs(rank):
            return 0
        rows = ((panel, sweep.rows(panel, self.w.m)) for sweep, panel in self.parts() if panel.owner != rank)
        return sum((i1 - i0) * panel.width for panel, (i0, i1) in rows)

    @property
    def redistributions(self) -> list[RedistributionPlan]:
        """The redistributions of B to X, and of X to the distribution of B."""
        pairs = ((self.b, self.x), (self.x, self.b))
        return [RedistributionPlan(*pair, self.dtype, self.nprocs, transport=self.transport) for pair in pairs]

    def received_elements(self, rank: int) -> int:
        """Elements of panels, and of both redistributions."""
        return self.panel_elements(rank) + sum(plan.received_elements(rank) for plan in self.redistributions)

    def sent_elements(self, rank: int) -> int:
        """Elements of this rank's panels, once for each rank that reads them, and of both redistributions."""
        readers = sum(self.needs(peer) for peer in range(self.nprocs) if peer != rank)
        rows = ((panel, sweep.rows(panel, self.w.m)) for sweep, panel in self.parts() if panel.owner == rank)
        own = sum((i1 - i0) * panel.width for panel, (i0, i1) in rows)
        return readers * own + sum(plan.sent_elements(rank) for plan in self.redistributions)

    def phases(self, view: View) -> Iterator[Phase]:
        """Each step is a GEMM of a panel with a rank's right-hand sides."""
        to_x, back = self.redistributions
        yield from to_x.phases(view)
        n_loc = self.x.local_shape(view.rank)[1]
        for sweep, panel in self.parts() if n_loc else ():
            i0, i1 = sweep.rows(panel, self.w.m)
            traffic = view.traffic(panel.owner, self.itemsize * (i1 - i0) * panel.width) if i1 > i0 else Traffic()
            # X[i] -= T[i, k] X[k]   (panel k of the factor, this rank's columns of X)
            yield Phase(1, (i1 - i0, n_loc, panel.width), before=traffic)
        yield from back.phases(view)

    def operands_nbytes(self, rank: int) -> int:
        """Bytes of the factor, of B and of the result on a rank."""
        return self.itemsize * (prod(self.w.local_shape(rank)) + 2 * prod(self.b.local_shape(rank)))

    @property
    def lower_bound(self) -> float:
        """0: a rank may receive parts of the factor, of B or of results; no bound holds for all plans."""
        return 0.0

    @property
    def workspace_nbytes(self) -> int:
        """X, two panels of other ranks, unless they are read in place, and the messages of a redistribution."""
        moved = max(plan.workspace_nbytes for plan in self.redistributions)
        return self.itemsize * self.x.max_local_nelements + self.buffer_nbytes + moved

    @property
    def buffer_nbytes(self) -> int:
        """Two panels of other ranks, unless they are read in place."""
        buffers = 2 if self.transport != "shared" and self.nprocs > 1 else 0
        return self.itemsize * buffers * self.w.m * min(self.w.nb, self.w.n)

    @property
    def flops(self) -> int:
        """Real additions and multiplications, to first order."""
        multiplications = len(self.sweeps) * self.w.m**2 * self.b.n // 2
        multiplications -= self.sorts * self.w.m**3 // 3  # of n^3 / 2 in the first sweep
        return multiplications * (8 if self.dtype.startswith("complex") else 2)

    def extreme_ranks(self) -> set[int]:
        """All ranks of few; of many, the first ones and the last."""
        return set(range(self.nprocs)) if self.nprocs <= _ASK_ALL else {0, 1, 2, self.nprocs - 1}

    @property
    def sizes(self) -> str:
        """n, and the number of right-hand sides, as text."""
        return f"{self.b.m} equations, {self.b.n} right-hand sides"

    def title(self) -> str:
        """The operation and its sizes."""
        return f"X = op(A)^-1 B, {self.sizes}"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        """The distributions of the factor, of B and of X."""
        yield "factor", described(self.w)
        yield "B", described(self.b)
        how = "solved in place" + (", without zeros of the identity" if self.sorts else "")
        yield "X", f"{described(self.x)}; {how}"

    def moves(self) -> str:
        """The data that moves, as text."""
        if self.nprocs == 1:
            return "nothing"
        how = "are read in place" if self.transport in ("shared", "push") else "to every rank with columns of X"
        return f"B to X, panels of the factor {how}, X to the distribution of B"
