"""The plan of singular values and vectors of a matrix, as a value of integers.

A = U diag(s) Vh, by A = Q1 [R; 0] if A is not square, and R = Q B P^H with B bidiagonal, B = Ub diag(s) Vb^T:

    Q1, R of A                           (QR, if m > n; of A^H if m < n)
    W := R, or A                         (block columns on 1 x P ranks, or one rank)
    B := Q^H W P, Q over W               (bidiagonalization: each rank multiplies its columns with two vectors)
    s, Ub, Vb of B                       (divide and conquer, by LAPACK on rank 0)
    Z := Q Ub, P Vb                      (block reflectors: each rank has columns of both)
    U := Q1 [Z; 0], Vh := Z^H            (in the layout of A, or on its grid)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import ClassVar, Literal

from pblas.factor.choose import apart, choose_qr
from pblas.factor.factorization_plan import Panel, columns_from, panels
from pblas.factor.grid_qr_plan import GridQrPlan
from pblas.factor.grid_reflectors_plan import GridReflectorsPlan
from pblas.factor.qr_plan import QrPlan, TsqrPlan
from pblas.factor.with_factor_plan import PanelReflectorsPlan, ReflectorsPlan, TreeReflectorsPlan
from pblas.layouts.descriptor import MatrixDescriptor, resized
from pblas.plans.base import Plan, ranks_text
from pblas.redistribution.redistribution_plan import RedistributionPlan, described
from pblas.simulation.hardware import Transport
from pblas.simulation.phase import Phase, Traffic, View
from pblas.spectral.choose import EighAlgorithm, working_matrix

SvdAlgorithm = Literal[EighAlgorithm, "polar"]
"""The reduction to a bidiagonal matrix as that of `EighAlgorithm`; or by way of the polar decomposition."""

_PRODUCTS: dict[type[QrPlan | GridQrPlan | TsqrPlan], type[ReflectorsPlan]] = {
    QrPlan: PanelReflectorsPlan,
    GridQrPlan: GridReflectorsPlan,
    TsqrPlan: TreeReflectorsPlan,
}
"""The plans of products with Q, by the plans of the QR factorizations."""
_BAND, _BAND_FROM = 16, 1024
"""Diagonals above that of a band by way of which one host finds real singular values without vectors, and the order
from which that is faster: it takes half of the time for 2048 columns, which are too many for the caches. Complex
matrices of up to 1024 columns take two to four times as long by it (AMD EPYC)."""
_LAYOUTS = 256
_ASK_ALL = 64  # largest number of ranks that are all examined to find the busiest


@dataclass(frozen=True, slots=True)
class SvdPlan(Plan):
    """A = U diag(s) Vh, or s alone.

    >>> plan = choose_svd(MatrixDescriptor.row_wise(4096, 512, 2), "float64", 2, "shared")
    >>> type(plan.factor).__name__, plan.w.shape, plan.u.shape, plan.vh.shape
    ('TsqrPlan', (640, 512), (4096, 512), (512, 512))
    """

    name: ClassVar[str] = "SvdPlan"

    a: MatrixDescriptor  # distribution of A (global)
    # the QR factorization of A, or of A^H if it is wide; None if A is square (global)
    factor: QrPlan | GridQrPlan | TsqrPlan | None
    w: MatrixDescriptor  # distribution of W; its last rows are for T of reflectors, see `QrPlan` (global)
    z: MatrixDescriptor  # distribution of Z, columns of all ranks (global)
    u: MatrixDescriptor  # distribution of U (global)
    vh: MatrixDescriptor  # distribution of Vh (global)
    why: str  # the rule that chose W (global)
    dtype: str
    nprocs: int
    transport: Transport = "message"
    vectors: bool = True  # whether U and Vh are computed, not s alone (global)

    @property
    def order(self) -> int:
        """Order of W above the rows of T, the number of singular values."""
        return self.w.n

    @property
    def is_wide(self) -> bool:
        """Whether the matrix is A^H, of which U and Vh change places."""
        return self.a.m < self.a.n

    @property
    def is_split(self) -> bool:
        """Whether several ranks have columns of W."""
        return self.w.nprocs > 1

    @property
    def bandwidth(self) -> int:
        """Diagonals above that of a band to which W is reduced first; 0 if it is not (global)."""
        takes = not (self.vectors or self.is_split or self.dtype.startswith("complex")) and self.order >= _BAND_FROM
        return _BAND if takes else 0

    @property
    def steps(self) -> list[Panel]:
        """The panels of W, in order."""
        return panels(self.w)

    @property
    def single(self) -> MatrixDescriptor:
        """Distribution of Ub and of Vb^T side by side, on rank 0."""
        return MatrixDescriptor.column_wise(self.order, 2 * self.order, 1)

    # Bytes

    @property
    def before(self) -> list[Plan]:
        """The plans of the steps before the bidiagonalization."""
        target, ranks = self.w.submatrix(0, self.order, 0, self.order), (self.dtype, self.nprocs)
        if self.factor is None:
            return [RedistributionPlan(self.a, target, *ranks, transport=self.transport)]
        r = resized(self.factor.a, (self.order, self.order))
        top = self.factor.w.submatrix(0, self.order, 0, self.order)
        pairs = (top, r), (r, target)
        return [self.factor, *(RedistributionPlan(*x, *ranks, transport=self.transport) for x in pairs)]

    @property
    def after(self) -> list[Plan]:
        """The plans of the steps after it that exchange data."""
        if not self.vectors:
            return []
        n, ranks = self.order, (self.dtype, self.nprocs)

        def copy(a: MatrixDescriptor, b: MatrixDescriptor, trans: str = "N") -> RedistributionPlan:
            return RedistributionPlan(a, b, *ranks, trans, transport=self.transport)  # type: ignore[arg-type]

        plans: list[Plan] = [
            copy(self.single.submatrix(0, n, 0, n), self.z),
            copy(self.single.submatrix(0, n, n, 2 * n), self.z, "T"),
            PanelReflectorsPlan(self.w, self.z, *ranks, self.transport),
        ]
        if n > 1:
            right = self.w.submatrix(1, self.w.m, 0, n - 1), self.z.submatrix(1, n, 0, n)
            plans.append(PanelReflectorsPlan(*right, *ranks, self.transport))
        long, short = (self.vh, self.u) if self.is_wide else (self.u, self.vh)
        plans.append(copy(self.z, short, "N" if self.is_wide else "C"))
        if self.factor is None:
            return [*plans, copy(self.z, long)]
        c = long.T if self.is_wide else long
        kind = _PRODUCTS[type(self.factor)]
        plans += [copy(self.z, c.submatrix(0, n, 0, n)), kind(self.factor.w, c, *ranks, self.transport)]
        return [*plans, copy(c, long, "C")] if self.is_wide else plans

    def own_elements(self, panel: Panel, rank: int) -> int:
        """The products of this rank in a panel: for each column two numbers of each later column, and a vector."""
        n = self.order
        columns = range(panel.start + 1, min(panel.stop + 1, n))
        return sum(2 * columns_from(self.w, j, rank) + n - j for j in columns)

    def broadcast_elements(self, panel: Panel) -> list[tuple[int, int]]:
        """(owner, elements) of the panel, and of the column after it."""
        n, stop = self.order, panel.stop
        following = [(self.w.grid.rank(0, self.w.columns.owner(stop)), n - stop)] if stop < n else []
        return [(panel.owner, (n - panel.start) * panel.width), *following]

    def reduction_elements(self, panel: Panel, rank: int) -> int:
        """Elements that a rank receives for a panel."""
        if not self.is_split:
            return 0
        broadcast = sum(count for owner, count in self.broadcast_elements(panel) if owner != rank)
        return broadcast + sum(self.own_elements(panel, peer) for peer in range(self.nprocs) if peer != rank)

    def received_elements(self, rank: int) -> int:
        reduced = sum(self.reduction_elements(panel, rank) for panel in self.steps)
        return reduced + sum(plan.received_elements(rank) for plan in (*self.before, *self.after))

    def sent_elements(self, rank: int) -> int:
        reduced = 0
        for panel in self.steps if self.is_split else ():
            broadcast = sum(count for owner, count in self.broadcast_elements(panel) if owner == rank)
            reduced += (self.nprocs - 1) * (broadcast + self.own_elements(panel, rank))
        return reduced + sum(plan.sent_elements(rank) for plan in (*self.before, *self.after))

    def phases(self, view: View) -> Iterator[Phase]:
        for plan in self.before:
            yield from plan.phases(view)
        rank, n = view.rank, self.order
        cores = 1 if self.is_split else min(view.ranks_per_node, view.nprocs)  # LAPACK on one rank has those of all
        for panel in self.steps if self.is_split or rank == 0 else ():
            below, columns = n - panel.start, max(1, columns_from(self.w, panel.start, rank))
            traffic = Traffic()
            if self.is_split:
                for owner, count in self.broadcast_elements(panel):
                    traffic += view.traffic(owner, self.itemsize * count)
                for peer in range(self.nprocs):
                    traffic += view.traffic(peer, self.itemsize * self.own_elements(panel, peer))
            # W -= V Y^H + X U^H   (trailing update); for each column of a matrix that is not reduced to a band at first
            # W is read once for two products with vectors
            gemm, reads = (below, columns, 2 * panel.width), 0 if self.bandwidth else panel.width
            yield Phase(1, gemm, before=traffic, copied=self.itemsize * below * columns * reads, cores=cores)
        for plan in self.after:
            yield from plan.phases(view)

    def operands_nbytes(self, rank: int) -> int:
        results = prod(self.u.local_shape(rank)) + prod(self.vh.local_shape(rank)) if self.vectors else 0
        return self.itemsize * (prod(self.a.local_shape(rank)) + results)

    @property
    def workspace_nbytes(self) -> int:
        """W with the reflectors of P beside it, Ub and Vb with the workspace of LAPACK, Z twice, and messages."""
        n, elements = self.order, self.w.max_stored_nelements
        if self.vectors:
            elements += self.w.max_stored_nelements + 5 * n * n + 2 * self.z.max_stored_nelements
        return self.itemsize * elements + max(plan.workspace_nbytes for plan in (*self.before, *self.after))

    @property
    def buffer_nbytes(self) -> int:
        """None: executors keep no memory between calls."""
        return 0

    @property
    def flops(self) -> int:
        """8/3 n^3 for B; with vectors 8/3 n^3 for Ub and Vb at most, and 4 n^3 for Z; and those with Q1."""
        n, count = self.order, 4 if self.dtype.startswith("complex") else 1
        total = count * 8 * n**3 // 3 + self.vectors * (count * 4 * n**3 + 8 * n**3 // 3)
        if self.factor is not None:
            total += self.factor.flops + sum(x.flops for x in self.after[-2:])
        return total

    def extreme_ranks(self) -> set[int]:
        """All ranks of few; of many, the first ones and the last ones of all layouts."""
        if self.nprocs <= _ASK_ALL:
            return set(range(self.nprocs))
        return {0, 1, 2, *(x - 1 for x in (self.w.nprocs, self.a.nprocs, self.u.nprocs, self.nprocs))}

    # Texts

    @property
    def sizes(self) -> str:
        return f"{self.a.m} x {self.a.n}"

    def title(self) -> str:
        return f"{'A = U diag(s) Vh' if self.vectors else 'singular values'}, {self.sizes}"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        yield "A", described(self.a)
        rows = self.w.m - self.order
        yield "W", f"{described(self.w)}; bidiagonalized in place, the last {rows} rows for T of reflectors"
        if self.vectors:
            yield "U", described(self.u)
            yield "Vh", described(self.vh)

    def moves(self) -> str:
        if self.nprocs == 1:
            return "nothing"
        parts = ["A to W" if self.factor is None else "what QR moves, R to W"]
        if self.is_split:
            parts.append("panels and products of W with vectors to all ranks")
        if self.vectors:
            parts += ["vectors of B from rank 0", "reflectors to every rank", "Z to the layouts of U and Vh"]
        return ", ".join(parts)

    def detail_lines(self) -> Iterator[tuple[str, str]]:
        if self.factor is not None:
            yield "QR", f"{self.factor.name} of {'A^H' if self.is_wide else 'A'} first: {self.factor.why}"
        if not self.is_split:
            how = (
                f"two stages, a band of {self.bandwidth} diagonals by products, then"
                if self.bandwidth
                else "one stage,"
            )
            yield "reduction", f"{how} by LAPACK on rank 0, with the cores of all ranks of its host"
        else:
            how = f"one stage, {len(self.steps)} panels of {self.w.nb} columns on {ranks_text(self.w.nprocs)}"
            yield "reduction", f"{how}, each read once for two products"
        how = "divide and conquer" if self.vectors else "dqds, without vectors,"
        yield "B", f"{how} by LAPACK on rank 0, with the cores of all ranks of its host"
        if self.vectors:
            yield "back", f"block reflectors, each of {ranks_text(self.nprocs)} its columns of Z"


@lru_cache(_LAYOUTS)
def choose_svd(
    a: MatrixDescriptor,
    dtype: str,
    nprocs: int,
    transport: Transport,
    *,
    vectors: bool = True,
    full: bool = False,
    algorithm: EighAlgorithm = "auto",
) -> SvdPlan:
    """The plan for a matrix with the distribution `a`, with all columns of U and rows of Vh if `full`.

    >>> choose_svd(MatrixDescriptor.row_wise(4096, 4096, 4), "float64", 4, "message").w.nprocs
    4
    >>> choose_svd(MatrixDescriptor.row_wise(4096, 4096, 4), "float64", 4, "shared").w.nprocs
    1
    """
    a = a.without_lld
    (m, n), k = a.shape, min(a.shape)
    factor = None
    if m != n:
        chosen = choose_qr(a if m > n else a.T, dtype, nprocs, transport)
        assert isinstance(chosen, QrPlan | GridQrPlan | TsqrPlan), "on CPUs"
        factor = chosen
    w, why = working_matrix(k, dtype, nprocs, transport, algorithm)
    z = apart(MatrixDescriptor.column_wise(k, k, nprocs), dtype)
    return SvdPlan(a, factor, w, z, *placements(a, full=full), why, dtype, nprocs, transport, vectors)


def placements(a: MatrixDescriptor, *, full: bool) -> tuple[MatrixDescriptor, MatrixDescriptor]:
    """The distributions of U and Vh."""
    a = a.without_lld
    (m, n), k = a.shape, min(a.shape)
    u, vh = (a if a.shape == shape else resized(a, shape) for shape in ((m, m if full else k), (n if full else k, n)))
    return u, vh
