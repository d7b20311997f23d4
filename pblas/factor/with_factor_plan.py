"""Plans that apply a factor: solves with its triangles, and products with the Q of a QR factorization.

B is brought to X, on the ranks that compute with the factor, X is changed in place, and leaves for the layout of B.
C op(Q) is computed as the conjugate transpose of op(Q)^H C^H.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import ClassVar, Literal, NamedTuple

from pblas.factor.factorization_plan import Panel, columns_from, panels
from pblas.factor.qr_plan import TsqrPlan
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.plans.base import Plan
from pblas.redistribution.redistribution_plan import RedistributionPlan, described
from pblas.simulation.hardware import Transport
from pblas.simulation.phase import Phase, View

_DEALT = 8
"""Columns of the identity that a rank gets at a time, so that all ranks have about as many zeros to leave out."""


@dataclass(frozen=True, slots=True)
class WithFactorPlan(Plan):
    """Result = f(W) B, or (f(W) B^H)^H if the factor stands on the right."""

    why: ClassVar[str]

    w: MatrixDescriptor  # distribution of the factor (global)
    b: MatrixDescriptor  # distribution of B, and of the result (global)
    dtype: str  # name of the dtype (global)
    nprocs: int  # ranks of the context (global)
    transport: Transport  # how the ranks exchange data (global)
    # the elements of X at first: those of "B"; of an "array" that every rank has; of the "identity", whose columns each
    # rank may sort ("sorted"); only B is brought (global)
    begins: Literal["B", "array", "identity", "sorted"] = "B"
    side: Literal["L", "R"] = "L"  # where the factor stands (global)

    # Each plan defines these

    @property
    @abstractmethod
    def x(self) -> MatrixDescriptor:
        """Distribution of X."""

    @abstractmethod
    def exchanged_elements(self, rank: int) -> int:
        """Elements of the factor or of X that a rank receives, or reads in a peer's memory, while X is changed."""

    @abstractmethod
    def lent_elements(self, rank: int) -> int:
        """Elements that it sends, or that other ranks read, while X is changed."""

    @abstractmethod
    def changes(self, view: View) -> Iterator[Phase]:
        """The phases in which X is changed."""

    @property
    @abstractmethod
    def panel_nbytes(self) -> int:
        """Bytes of buffers for the factor, or for rows of X."""

    # They share these

    @property
    def reads(self) -> bool:
        """Whether there is a B."""
        return self.begins == "B"

    @property
    def right(self) -> MatrixDescriptor:
        """Distribution of B, or of B^H for side "R"."""
        return self.b if self.side == "L" else self.b.T

    @property
    def stays(self) -> bool:
        """Whether X is computed in the memory of the result; else in workspace."""
        return self._is_in_layout

    @property
    def _is_in_layout(self) -> bool:
        """Whether each rank has the same elements of X and of the result, in the same order, and none is conjugated."""
        if self.side == "R" and self.dtype.startswith("complex"):
            return False
        return self.right.order == "F" and 0 not in self.b.shape and self.x.same_distribution(self.right)

    @property
    def redistributions(self) -> list[RedistributionPlan]:
        """The redistributions of B to X, if there is a B, and of X to the distribution of B."""
        trans: Literal["N", "C"] = "N" if self.side == "L" else "C"
        pairs = ((self.b, self.x), (self.x, self.b)) if self.reads else ((self.x, self.b),)
        return [RedistributionPlan(*pair, self.dtype, self.nprocs, trans, transport=self.transport) for pair in pairs]

    def received_elements(self, rank: int) -> int:
        return self.exchanged_elements(rank) + sum(plan.received_elements(rank) for plan in self.redistributions)

    def sent_elements(self, rank: int) -> int:
        return self.lent_elements(rank) + sum(plan.sent_elements(rank) for plan in self.redistributions)

    def phases(self, view: View) -> Iterator[Phase]:
        *to_x, back = self.redistributions
        for redistribution in to_x:
            yield from redistribution.phases(view)
        yield from self.changes(view)
        yield from back.phases(view)

    def operands_nbytes(self, rank: int) -> int:
        return self.itemsize * (prod(self.w.local_shape(rank)) + (1 + self.reads) * prod(self.b.local_shape(rank)))

    @property
    def lower_bound(self) -> float:
        """0: a rank may hold parts of the factor, of B or of the result; no bound holds for all plans."""
        return 0.0

    @property
    def workspace_nbytes(self) -> int:
        """X, unless it stays, the buffers, and the messages of a redistribution."""
        moved = max(plan.workspace_nbytes for plan in self.redistributions)
        x = 0 if self.stays else self.x.max_stored_nelements
        return self.itemsize * x + self.panel_nbytes + moved

    def extreme_ranks(self) -> set[int]:
        return set(range(self.nprocs)) if self.nprocs <= 64 else {0, 1, 2, self.w.nprocs - 1, self.nprocs - 1}

    @property
    def sizes(self) -> str:
        return f"{self.x.m} x {self.x.n}"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        yield "factor", described(self.w)
        yield "B", described(self.b)
        yield "X", f"{described(self.x)}; changed in place"

    def moves(self) -> str:
        if self.nprocs == 1:
            return "nothing"
        return f"{'B to X, ' * self.reads}{self._exchange}, X to the distribution of B"

    @property
    def _exchange(self) -> str:
        in_place = self.transport in ("shared", "push")
        return f"panels of the factor {'are read in place' if in_place else 'to every rank with columns of X'}"


class Triangle(NamedTuple):
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


class FactorStep(NamedTuple):
    """A step of a plan with panels: rows i0..i1-1 of a panel change X, in a solve with a triangle (global)."""

    panel: Panel
    i0: int
    i1: int
    triangle: Triangle | None = None

    @property
    def elements(self) -> int:
        """Elements of the rows of the panel."""
        return (self.i1 - self.i0) * self.panel.width


def triangle_steps(w: MatrixDescriptor, triangles: tuple[Triangle, ...]) -> list[FactorStep]:
    """The panels of each triangle, in the order of the solves, with their rows in the triangle."""
    columns = panels(w)
    return [
        FactorStep(panel, *triangle.rows(panel, w.m), triangle)
        for triangle in triangles
        for panel in (columns if triangle.ascends else reversed(columns))
    ]


@lru_cache(64)
def _columns(shape: tuple[int, int], nprocs: int, nb: int | None, lld: int | None) -> MatrixDescriptor:
    """The layout of a matrix in block columns; each step of a plan asks for it."""
    return replace(MatrixDescriptor.column_wise(*shape, nprocs, nb=nb), lld=lld)


@dataclass(frozen=True, slots=True)
class WithPanelsPlan(WithFactorPlan):
    """Each rank changes columns of its own with the panels of a factor in block columns, one after the other."""

    @property
    @abstractmethod
    def steps(self) -> list[FactorStep]:
        """The steps, in order (global)."""

    def first_column(self, panel: Panel) -> int:
        """The first column of X that a panel changes (global)."""
        return 0

    def columns(self, panel: Panel, rank: int) -> int:
        """Number of a rank's last columns that a panel changes (local)."""
        return columns_from(self.x, self.first_column(panel), rank)

    def changed_columns(self, step: FactorStep, rank: int) -> int:
        """Number of the columns of a rank with which a step computes (local)."""
        return self.columns(step.panel, rank)

    def multiplied_rows(self, step: FactorStep) -> int:
        """Rows of the GEMM of a step."""
        return step.i1 - step.i0

    def readers(self, panel: Panel) -> list[int]:
        """The ranks other than its owner that need a panel (global)."""
        columns = self.x.columns
        last = min(columns.nblocks, columns.nprocs)  # ranks from 0 on have columns
        ranks = range(last) if columns.src == 0 else range(self.nprocs)
        return [rank for rank in ranks if rank != panel.owner and self.columns(panel, rank)]

    @property
    def overlaps_messages(self) -> bool:
        return self.nprocs > 1 and self.transport in ("message", "mixed")

    def exchanged_elements(self, rank: int) -> int:
        """Elements of panels of other ranks."""
        others = (step for step in self.steps if step.panel.owner != rank and self.columns(step.panel, rank))
        return sum(step.elements for step in others)

    def lent_elements(self, rank: int) -> int:
        """Elements of this rank's panels, once for each rank that reads them."""
        own = (step for step in self.steps if step.panel.owner == rank)
        return sum(step.elements * self._nreaders(step.panel) for step in own)

    def _nreaders(self, panel: Panel) -> int:
        """Number of `readers` (global)."""
        x, start = self.x, self.first_column(panel)
        owners = min(x.columns.nblocks - start // x.nb, self.nprocs) if start < x.n else 0
        return owners - (self.columns(panel, panel.owner) > 0)

    def changes(self, view: View) -> Iterator[Phase]:
        """Each step multiplies a rank's columns with a panel."""
        for step in self.steps:
            n_loc = self.changed_columns(step, view.rank)
            if n_loc:
                traffic = view.traffic(step.panel.owner, self.itemsize * step.elements)
                yield Phase(1, (self.multiplied_rows(step), n_loc, step.panel.width), before=traffic)

    @property
    def panel_nbytes(self) -> int:
        """Two panels of other ranks."""
        return self._buffers_nbytes

    @property
    def _buffers_nbytes(self) -> int:
        """Bytes of two panels of other ranks, unless they are read in place."""
        buffers = 2 if self.transport != "shared" and self.nprocs > 1 else 0
        return self.itemsize * buffers * self.w.m * min(self.w.nb, self.w.n)


@dataclass(frozen=True, slots=True)
class SubstitutionPlan(WithPanelsPlan):
    """X = op(A)^-1 B with a factor of A in block columns: every rank solves for columns of its own.

    X is on 1 x P ranks by columns. Each rank needs all panels of the factor, and no result of another rank. Each rank
    may sort the columns of an identity with exchanged rows by their first element that is not 0, so that the first
    triangle leaves the zeros out.

    >>> w, b = MatrixDescriptor.column_wise(8, 8, 2, nb=2), MatrixDescriptor.row_wise(8, 6, 2)
    >>> plan = SubstitutionPlan(w, b, "float64", 2, "message", triangles=(Triangle("L"), Triangle("L", "C")))
    >>> plan.x.local_shape(0), [plan.exchanged_elements(rank) for rank in range(2)]
    ((8, 3), [32, 48])
    """

    name: ClassVar[str] = "SubstitutionPlan"
    why: ClassVar[str] = "each rank solves for columns of its own, and needs no result of another rank"

    triangles: tuple[Triangle, ...] = ()  # the triangular solves, in order (global)

    @property
    def x(self) -> MatrixDescriptor:
        """Columns in even blocks, or dealt out a few at a time, as far apart in memory as those of the factor."""
        return _columns(self.b.shape, self.nprocs, _DEALT if self.begins == "sorted" else None, self.w.lld)

    @property
    def stays(self) -> bool:
        """Whether X is computed in the memory of the result, which for an inverse may be that of its factor."""
        return self.begins in ("B", "array") and self._is_in_layout

    @property
    def steps(self) -> list[FactorStep]:
        """The panels of each triangle, in order: X[i] -= T[i, k] X[k] for the rows i of panel k."""
        return triangle_steps(self.w, self.triangles)

    def changed_columns(self, step: FactorStep, rank: int) -> int:
        """Without those columns of a sorted identity that are still 0 in all rows down to the end of the panel."""
        count = self.columns(step.panel, rank)
        is_first = self.begins == "sorted" and step.triangle is self.triangles[0]
        return -(-count * step.panel.stop // self.w.m) if is_first else count

    @property
    def flops(self) -> int:
        multiplications = len(self.triangles) * self.w.m**2 * self.b.n // 2
        multiplications -= (self.begins == "sorted") * self.w.m**3 // 3  # of n^3 / 2 with the first triangle
        return multiplications * (8 if self.dtype.startswith("complex") else 2)

    def title(self) -> str:
        return f"X = op(A)^-1 B, {self.b.m} equations, {self.b.n} right-hand sides"


@dataclass(frozen=True, slots=True)
class ReflectorsPlan(WithFactorPlan):
    """X := op(Q) X for the Q of one factorization."""

    adjoint: bool = False  # X := Q^H X (global)
    conj: bool = False  # X is multiplied with the conjugate of Q or Q^H (global)

    @property
    def flops(self) -> int:
        """Real additions and multiplications, to first order, with min(m, n) reflectors."""
        (m, n), k = self.x.shape, min(self.right.m, self.w.n)
        multiplications = (2 * m - k) * k * n // (1 if self.reads or n != k else 2)
        return multiplications * (8 if self.dtype.startswith("complex") else 2)

    def title(self) -> str:
        q = {(False, False): "Q", (True, False): "Q^H", (True, True): "Q^T", (False, True): "conj(Q)"}
        return f"X = {q[self.adjoint, self.conj]}{' X' * self.reads}, {self.sizes}"


@dataclass(frozen=True, slots=True)
class PanelReflectorsPlan(ReflectorsPlan, WithPanelsPlan):
    """X := op(Q) X with the factor of a `QrPlan`: each rank multiplies columns of its own with all panels.

    >>> w = MatrixDescriptor.column_wise(10, 8, 2, nb=2)
    >>> plan = PanelReflectorsPlan(w, MatrixDescriptor.row_wise(8, 6, 2), "float64", 2, "message")
    >>> plan.x.local_shape(0), [plan.exchanged_elements(rank) for rank in range(2)]
    ((8, 3), [24, 32])
    """

    name: ClassVar[str] = "PanelReflectorsPlan"
    why: ClassVar[str] = "each rank multiplies columns of its own, and needs no result of another rank"

    @property
    def x(self) -> MatrixDescriptor:
        """Columns in even blocks; cyclic ones where Q is made, since the last panels change the last columns only."""
        nb = None if self.reads else self.w.nb
        return _columns(self.right.shape, self.nprocs, nb, None)

    @property
    def steps(self) -> list[FactorStep]:
        """The panels, in order, with V and T: Q^H begins with the first."""
        steps = [FactorStep(panel, panel.start, self.w.m) for panel in panels(self.w) if panel.start < self.right.m]
        return steps if self.adjoint else steps[::-1]

    def first_column(self, panel: Panel) -> int:
        """Of an identity the panel's first column."""
        return 0 if self.reads else min(panel.start, self.x.n)

    def multiplied_rows(self, step: FactorStep) -> int:
        """The rows of X twice: X -= V (T (V^H X))."""
        return 2 * (self.x.m - step.i0)

    @property
    def panel_nbytes(self) -> int:
        """Two panels of other ranks, and two products with V."""
        products = 2 * min(self.w.nb, self.w.n) * self.x.columns.max_count
        return self.itemsize * products + self._buffers_nbytes


@dataclass(frozen=True, slots=True)
class TreeReflectorsPlan(ReflectorsPlan):
    """X := op(Q) X with the factor of a `TsqrPlan`: X has the rows of W, and its first rows travel through the tree.

    >>> rows = MatrixDescriptor.row_wise(40, 2, 4)
    >>> plan = TreeReflectorsPlan(rows, MatrixDescriptor.row_wise(40, 3, 4), "float64", 4, "message")
    >>> plan.x.local_shape(0), [plan.exchanged_elements(rank) for rank in range(4)]
    ((10, 3), [12, 6, 12, 6])
    """

    name: ClassVar[str] = "TreeReflectorsPlan"
    why: ClassVar[str] = "Q is in rows: a rank multiplies its rows, and passes only as many as Q has columns"

    @property
    def x(self) -> MatrixDescriptor:
        """The rows of W, on the same ranks."""
        w, n = self.w, self.right.n
        return MatrixDescriptor(w.m, n, w.mb, max(n, 1), w.grid, w.rsrc, 0, imb=w.imb)

    @property
    def factorization(self) -> TsqrPlan:
        """The plan of a factorization with this factor: its chunks and its tree."""
        return TsqrPlan(self.w, self.w, "the same tree", self.dtype, self.nprocs, self.transport)

    def exchanged_elements(self, rank: int) -> int:
        """The first rows of X, once for each step of the tree."""
        return self.w.n * self.x.n * len(self.factorization.merges(rank))

    def lent_elements(self, rank: int) -> int:
        return self.exchanged_elements(rank)

    def changes(self, view: View) -> Iterator[Phase]:
        """A rank multiplies its rows, and the first ones once more for each step of the tree."""
        n, (m_loc, n_loc) = self.w.n, self.x.local_shape(view.rank)
        if m_loc and n_loc:
            yield Phase(1, (2 * m_loc, n_loc, n))
            for merge in self.factorization.merges(view.rank):
                yield Phase(1, (2 * n, n_loc, n), before=view.traffic(merge.peer, self.itemsize * n * n_loc))

    @property
    def panel_nbytes(self) -> int:
        """The first rows of another rank's X."""
        return self.itemsize * self.w.n * self.x.n

    @property
    def _exchange(self) -> str:
        return f"{self.w.n} rows of each rank through the tree, and back"
