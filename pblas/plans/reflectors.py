"""Plans of products with the Q of a QR factorization, as values of integers.

C is brought to X, on the ranks that hold Q, is multiplied in place, and is brought back. C op(Q) is computed as the
conjugate transpose of op(Q)^H C^H.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.plans.base import Plan
from pblas.plans.factorization import Panel, columns_from, panels
from pblas.plans.qr import TsqrPlan
from pblas.plans.redistribution import RedistributionPlan, described
from pblas.simulation.hardware import Transport
from pblas.simulation.phase import Phase, View


@dataclass(frozen=True, slots=True)
class ReflectorsPlan(Plan):
    """X := op(Q) X for the Q of one factorization.

    Args:
        w: distribution of the factor (global).
        c: distribution of C, or of the columns of Q that are made (global).
        side: "L" for op(Q) C, "R" for C op(Q) (global).
        adjoint: X := Q^H X (global).
        conj: X is multiplied with the conjugate of Q or Q^H (global).
        makes_q: X begins as the identity: C is not read (global).
    """

    why: ClassVar[str]

    w: MatrixDescriptor
    c: MatrixDescriptor
    dtype: str
    nprocs: int
    side: Literal["L", "R"] = "L"
    adjoint: bool = False
    conj: bool = False
    makes_q: bool = False
    transport: Transport = "message"

    # The two kinds of factors define these

    @property
    @abstractmethod
    def x(self) -> MatrixDescriptor:
        """Distribution of X."""

    @property
    @abstractmethod
    def reflectors(self) -> int:
        """Number of reflectors, min(m, n)."""

    @abstractmethod
    def exchanged_elements(self, rank: int) -> int:
        """Elements of Q or of X that a rank receives during the product."""

    @abstractmethod
    def lent_elements(self, rank: int) -> int:
        """Elements that it sends, or that other ranks read, during the product."""

    # Both share these

    @property
    def _c(self) -> MatrixDescriptor:
        """Distribution of C, or of C^H for side "R"."""
        return self.c if self.side == "L" else self.c.T

    @property
    def redistributions(self) -> list[RedistributionPlan]:
        """The redistributions of C to X, unless Q is made, and of X to the distribution of C."""
        trans: Literal["N", "C"] = "N" if self.side == "L" else "C"
        pairs = ((self.x, self.c),) if self.makes_q else ((self.c, self.x), (self.x, self.c))
        return [RedistributionPlan(*pair, self.dtype, self.nprocs, trans, transport=self.transport) for pair in pairs]

    def received_elements(self, rank: int) -> int:
        """Elements of Q or of X, and of the redistributions."""
        return self.exchanged_elements(rank) + sum(plan.received_elements(rank) for plan in self.redistributions)

    def sent_elements(self, rank: int) -> int:
        """Elements of Q or of X, and of the redistributions."""
        return self.lent_elements(rank) + sum(plan.sent_elements(rank) for plan in self.redistributions)

    def operands_nbytes(self, rank: int) -> int:
        """Bytes of the factor, of C and of the result on a rank."""
        copies = 1 if self.makes_q else 2
        return self.itemsize * (prod(self.w.local_shape(rank)) + copies * prod(self.c.local_shape(rank)))

    @property
    def lower_bound(self) -> float:
        """0: a rank may hold parts of Q, of C or of the result; no bound holds for all plans."""
        return 0.0

    @property
    def flops(self) -> int:
        """Real additions and multiplications, to first order."""
        m, n = self.x.shape
        k = self.reflectors
        multiplications = (2 * m - k) * k * n // (2 if self.makes_q and n == k else 1)
        return multiplications * (8 if self.dtype.startswith("complex") else 2)

    def extreme_ranks(self) -> set[int]:
        """All ranks of few; of many, the first ones and the last."""
        return set(range(self.nprocs)) if self.nprocs <= 64 else {0, 1, 2, self.w.nprocs - 1, self.nprocs - 1}

    @property
    def sizes(self) -> str:
        """Rows and columns of X, as text."""
        return f"{self.x.m} x {self.x.n}"

    def title(self) -> str:
        """The product and its sizes."""
        q = {(False, False): "Q", (True, False): "Q^H", (True, True): "Q^T", (False, True): "conj(Q)"}
        return f"X = {q[self.adjoint, self.conj]}{'' if self.makes_q else ' X'}, {self.sizes}"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        """The distributions of the factor, of C and of X."""
        yield "factor", described(self.w)
        yield "Q" if self.makes_q else "C", described(self.c)
        yield "X", f"{described(self.x)}; multiplied in place"


@dataclass(frozen=True, slots=True)
class PanelReflectorsPlan(ReflectorsPlan):
    """X := op(Q) X with the factor of a `QrPlan`: each rank multiplies columns of its own with all panels.

    >>> w = MatrixDescriptor.column_wise(10, 8, 2, nb=2)
    >>> plan = PanelReflectorsPlan(w, MatrixDescriptor.row_wise(8, 6, 2), "float64", 2)
    >>> plan.x.local_shape(0), [plan.exchanged_elements(rank) for rank in range(2)]
    ((8, 3), [24, 32])
    """

    name: ClassVar[str] = "PanelReflectorsPlan"
    why: ClassVar[str] = "each rank multiplies columns of its own, and needs no result of another rank"

    @property
    def x(self) -> MatrixDescriptor:
        """Columns in even blocks; cyclic ones where Q is made, since the last panels change the last columns only."""
        nb = self.w.nb if self.makes_q else None
        return MatrixDescriptor.column_wise(*self._c.shape, self.nprocs, nb=nb)

    @property
    def reflectors(self) -> int:
        """min(m, n) of the factored matrix."""
        return min(self._c.m, self.w.n)

    @property
    def overlaps_messages(self) -> bool:
        """Whether ranks compute while messages are under way: the next panel arrives meanwhile."""
        return self.nprocs > 1 and self.transport in ("message", "mixed")

    def parts(self) -> list[Panel]:
        """The panels, in order: Q^H begins with the first."""
        steps = [panel for panel in panels(self.w) if panel.start < self._c.m]
        return steps if self.adjoint else steps[::-1]

    def columns(self, panel: Panel, rank: int) -> int:
        """Number of a rank's last columns that a panel changes (local)."""
        if self.makes_q:
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

    def phases(self, view: View) -> Iterator[Phase]:
        """Each step multiplies a rank's columns with a panel twice."""
        *to_x, back = self.redistributions
        for redistribution in to_x:
            yield from redistribution.phases(view)
        for panel in self.parts():
            n_loc, nbytes = self.columns(panel, view.rank), self.itemsize * (self.w.m - panel.start) * panel.width
            if n_loc:
                yield Phase(
                    1, (2 * (self.x.m - panel.start), n_loc, panel.width), before=view.traffic(panel.owner, nbytes)
                )
        yield from back.phases(view)

    @property
    def workspace_nbytes(self) -> int:
        """X, two panels of far ranks, two products with V, and the messages of a redistribution."""
        moved = max(plan.workspace_nbytes for plan in self.redistributions)
        return self.itemsize * self.x.max_local_nelements + self.buffer_nbytes + moved

    @property
    def buffer_nbytes(self) -> int:
        """Two panels of far ranks, and two products with V."""
        buffers = 2 if self.transport in ("message", "mixed") and self.w.nprocs > 1 else 0
        width = min(self.w.nb, max(self.w.n, 1))
        return self.itemsize * width * (buffers * self.w.m + 2 * self.x.columns.max_count)

    def moves(self) -> str:
        """The data that moves, as text."""
        if self.nprocs == 1:
            return "nothing"
        how = "are read in place" if self.transport in ("shared", "push") else "to every rank with columns of X"
        return f"{'' if self.makes_q else 'C to X, '}panels of Q {how}, X to the distribution of the result"


@dataclass(frozen=True, slots=True)
class TreeReflectorsPlan(ReflectorsPlan):
    """X := op(Q) X with the factor of a `TsqrPlan`: X has the rows of W, and its first rows travel through the tree.

    >>> rows = MatrixDescriptor.row_wise(40, 2, 4)
    >>> plan = TreeReflectorsPlan(rows, MatrixDescriptor.row_wise(40, 3, 4), "float64", 4)
    >>> plan.x.local_shape(0), [plan.exchanged_elements(rank) for rank in range(4)]
    ((10, 3), [12, 6, 12, 6])
    """

    name: ClassVar[str] = "TreeReflectorsPlan"
    why: ClassVar[str] = "Q is in rows: a rank multiplies its rows, and passes only as many as Q has columns"

    @property
    def x(self) -> MatrixDescriptor:
        """The rows of W, on the same ranks."""
        w, n = self.w, self._c.n
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

    def phases(self, view: View) -> Iterator[Phase]:
        """A rank multiplies its rows, and the first ones once more for each step of the tree."""
        *to_x, back = self.redistributions
        for redistribution in to_x:
            yield from redistribution.phases(view)
        n, (m_loc, n_loc) = self.w.n, self.x.local_shape(view.rank)
        if m_loc and n_loc:
            yield Phase(1, (2 * m_loc, n_loc, n))
            for merge in self.factorization.merges(view.rank):
                yield Phase(1, (2 * n, n_loc, n), before=view.traffic(merge.peer, self.itemsize * n * n_loc))
        yield from back.phases(view)

    @property
    def workspace_nbytes(self) -> int:
        """X, the first rows of another rank's X, and the messages of a redistribution."""
        moved = max(plan.workspace_nbytes for plan in self.redistributions)
        return self.itemsize * self.x.max_local_nelements + self.buffer_nbytes + moved

    @property
    def buffer_nbytes(self) -> int:
        """The first rows of another rank's X."""
        return self.itemsize * self.w.n * self.x.n

    def moves(self) -> str:
        """The data that moves, as text."""
        if self.nprocs == 1:
            return "nothing"
        rows = f"{self.w.n} rows of each rank through the tree, and back"
        return f"{'' if self.makes_q else 'C to X, '}{rows}, X to the distribution of the result"
