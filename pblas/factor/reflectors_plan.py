"""Plans of products with the Q of a QR factorization, as values of integers.

C is brought to X, on the ranks that hold Q, is multiplied in place, and is brought back. C op(Q) is computed as the
conjugate transpose of op(Q)^H C^H.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from pblas.factor.factorization_plan import Panel, columns_from, panels
from pblas.factor.qr_plan import TsqrPlan
from pblas.factor.with_factor_plan import WithFactorPlan
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.simulation.phase import Phase, View


@dataclass(frozen=True, slots=True)
class ReflectorsPlan(WithFactorPlan):
    """X := op(Q) X for the Q of one factorization.

    Args:
        adjoint: X := Q^H X (global).
        conj: X is multiplied with the conjugate of Q or Q^H (global).
    """

    why: ClassVar[str]

    adjoint: bool = False
    conj: bool = False

    @property
    @abstractmethod
    def reflectors(self) -> int:
        """Number of reflectors, min(m, n)."""

    @property
    def flops(self) -> int:
        """Real additions and multiplications, to first order."""
        m, n = self.x.shape
        k = self.reflectors
        multiplications = (2 * m - k) * k * n // (1 if self.reads or n != k else 2)
        return multiplications * (8 if self.dtype.startswith("complex") else 2)

    def title(self) -> str:
        """The product and its sizes."""
        q = {(False, False): "Q", (True, False): "Q^H", (True, True): "Q^T", (False, True): "conj(Q)"}
        return f"X = {q[self.adjoint, self.conj]}{' X' * self.reads}, {self.sizes}"


@dataclass(frozen=True, slots=True)
class PanelReflectorsPlan(ReflectorsPlan):
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
        return MatrixDescriptor.column_wise(*self.right.shape, self.nprocs, nb=nb)

    @property
    def reflectors(self) -> int:
        """min(m, n) of the factored matrix."""
        return min(self.right.m, self.w.n)

    @property
    def overlaps_messages(self) -> bool:
        """Whether ranks compute while messages are under way: the next panel arrives meanwhile."""
        return self.nprocs > 1 and self.transport in ("message", "mixed")

    def parts(self) -> list[Panel]:
        """The panels, in order: Q^H begins with the first."""
        steps = [panel for panel in panels(self.w) if panel.start < self.right.m]
        return steps if self.adjoint else steps[::-1]

    def columns(self, panel: Panel, rank: int) -> int:
        """Number of a rank's last columns that a panel changes (local)."""
        if not self.reads:
            return columns_from(self.x, min(panel.start, self.x.n), rank)
        return self.x.local_shape(rank)[1]

    def _elements(self, panel: Panel) -> int:
        """Elements of V and T of a panel."""
        return (self.w.m - panel.start) * panel.width

    def exchanged_elements(self, rank: int) -> int:
        """V and T of the panels of other ranks."""
        others = (panel for panel in self.parts() if panel.owner != rank and self.columns(panel, rank))
        return sum(map(self._elements, others))

    def lent_elements(self, rank: int) -> int:
        """V and T of this rank's panels, once for each rank that reads them."""
        peers = [peer for peer in range(self.nprocs) if peer != rank]
        own = (panel for panel in self.parts() if panel.owner == rank)
        return sum(self._elements(panel) * sum(self.columns(panel, peer) > 0 for peer in peers) for panel in own)

    def changes(self, view: View) -> Iterator[Phase]:
        """Each step multiplies a rank's columns with a panel twice: X -= V (T (V^H X))."""
        for panel in self.parts():
            n_loc, nbytes = self.columns(panel, view.rank), self.itemsize * (self.w.m - panel.start) * panel.width
            if n_loc:
                traffic = view.traffic(panel.owner, nbytes)
                yield Phase(1, (2 * (self.x.m - panel.start), n_loc, panel.width), before=traffic)

    @property
    def panel_nbytes(self) -> int:
        """Two panels of far ranks, and two products with V."""
        buffers = 2 if self.transport in ("message", "mixed") and self.w.nprocs > 1 else 0
        width = min(self.w.nb, max(self.w.n, 1))
        return self.itemsize * width * (buffers * self.w.m + 2 * self.x.columns.max_count)


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
    def reflectors(self) -> int:
        """The columns of the factored matrix."""
        return self.w.n

    @property
    def factorization(self) -> TsqrPlan:
        """The plan of a factorization with this factor: its chunks and its tree."""
        return TsqrPlan(self.w, self.w, "the same tree", self.dtype, self.nprocs, self.transport)

    def exchanged_elements(self, rank: int) -> int:
        """The first rows of X, once for each step of the tree."""
        return self.w.n * self.x.n * len(self.factorization.merges(rank))

    def lent_elements(self, rank: int) -> int:
        """As many as it receives: the rows come back."""
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
