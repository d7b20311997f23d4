"""Plans of QR factorizations: by block columns, by a tree (TSQR), by Gram matrices (CholeskyQR), with pivoting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from pblas.factor.factorization_plan import FactorizationPlan, Panel
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.plans.base import Plan, ranks_text
from pblas.redistribution.redistribution_plan import described
from pblas.simulation.phase import MICROSECOND_ON_GPUS, Phase, Traffic, View

_ASK_ALL = 64  # largest number of ranks that are all examined to find the busiest
_BLOCK = 32  # reflectors of QR with pivoting after which the other columns are updated
_INNER = 32  # columns of a block of reflectors in TSQR: T has this many rows
_CHUNK = 8  # rows of a chunk, over its columns, that a rank factors at a time, so that they stay in cache
_SHORTEST = 512  # rows of a chunk at least
PASSES = 3  # Gram matrices of CholeskyQR at most


_PANEL, _ELEMENT, _COLUMN = 1.25, 35, 17500
"""Time of QR of an m x n panel in multiplications of a GEMM: _PANEL for each of its own, and _ELEMENT m n + _COLUMN n
in addition (16 to 192 columns, 256 to 2048 rows, OpenBLAS on one core of an AMD EPYC, float64)."""
_NARROW_ON_GPUS, _REFLECTED = 3900, 5.7
"""On GPUs, columns for which a panel takes twice as long as its multiplications would, and microseconds of each column
in addition (H200, float64: benchmarks/results/gpu_factor_panels.json)."""


def multiplications(m: int, n: int) -> float:
    """Multiplications with an addition of a QR factorization, m n^2 - n^3 / 3 if m >= n, to first order."""
    long, short = max(m, n), min(m, n)
    return long * short**2 - short**3 / 3


@dataclass(frozen=True, slots=True)
class QrPlan(FactorizationPlan):
    """A = Q R by blocks of Householder reflectors: Q = H_1 H_2 ..., H_k = I - V_k T_k V_k^H for each panel k.

    V_k takes the place of panel k from the diagonal on, without the ones of its diagonal; R is on and above the
    diagonal. W has nb more rows than A: T_k is in the last rows of panel k, so that ranks read V_k and T_k together.

    >>> w = MatrixDescriptor.column_wise(10, 8, 2, nb=2)
    >>> plan = QrPlan(MatrixDescriptor.column_wise(8, 8, 2, nb=2), w, "by columns already", "float64", 2)
    >>> plan.rows(plan.steps[1]), [plan.panel_elements(rank) for rank in range(2)]
    ((2, 10), [16, 32])
    """

    name: ClassVar[str] = "QrPlan"
    operation: ClassVar[str] = "qr_factor"
    equation: ClassVar[str] = "A = Q R"
    projection: ClassVar[float] = 0.5 ** (2 / 3)
    """Half of the multiplications are C[i, j] -= V[i, k] W[k, j], which the inequality is about."""

    @property
    def target(self) -> MatrixDescriptor:
        """Distribution of the rows of W above those of T."""
        return self.w.submatrix(0, self.a.m, 0, self.a.n)

    @property
    def multiplications(self) -> float:
        return multiplications(*self.a.shape)

    def panel_multiplications(self, panel: Panel) -> float:
        """A panel of the rows from the diagonal on."""
        rows, width = self.a.m - panel.start, panel.width
        work = multiplications(rows, width)
        if self.library == "LAPACK":
            return _PANEL * work + width * (_ELEMENT * rows + _COLUMN)
        return (1 + _NARROW_ON_GPUS / width) * work + _REFLECTED * width * MICROSECOND_ON_GPUS

    def rows(self, panel: Panel) -> tuple[int, int]:
        """The rows from the diagonal on, and those of T unless all ranks compute it."""
        return panel.start, self.a.m if self.replicated else self.w.m

    def multiplied_rows(self, below: int) -> int:
        """All rows twice: with V^H, and with V."""
        return 2 * below

    def in_blocks(self, gemm: tuple[int, int, int]) -> tuple[int, tuple[int, int, int]]:
        """LAPACK applies the reflectors in blocks, each with a T of its own."""
        m, n, k = gemm
        blocks = max(1, -(-k // _INNER)) if self.library == "LAPACK" else 1
        return blocks, (m, n, -(-k // blocks))

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        yield "A", described(self.a)
        yield "W", f"{described(self.w)}; factored in place, the last {self.w.m - self.a.m} rows for T"


@dataclass(frozen=True, slots=True)
class FactorizationWithoutPanels(FactorizationPlan):
    """A = Q R by other messages than panels: triangles, Gram matrices or single columns, for which a rank waits."""

    operation: ClassVar[str] = "qr_factor"
    equation: ClassVar[str] = "A = Q R"
    projection: ClassVar[float] = 0.0  # no bound holds for all layouts: ranks may hold rows that are 0

    @property
    def steps(self) -> list[Panel]:
        """None: no panel moves."""
        return []

    def typical_ranks(self, ranks_per_node: int) -> Sequence[int]:
        """Those of the plan's extreme ranks that come first."""
        return sorted(self.extreme_ranks())[:4]

    @property
    def overlaps_messages(self) -> bool:
        """False: a rank waits for the messages of the others."""
        return False

    def rows(self, panel: Panel) -> tuple[int, int]:
        """No rows: no panel moves."""
        return panel.start, panel.start

    @property
    def multiplications(self) -> float:
        return multiplications(*self.a.shape)


class Merge(NamedTuple):
    """A step of the tree, on one rank: the R of two ranks become one, on the rank that receives."""

    peer: int
    receives: bool


@dataclass(frozen=True, slots=True)
class TsqrPlan(FactorizationWithoutPanels):
    """A = Q R of a tall matrix in rows: each rank factors its rows, then pairs of ranks factor R of both.

    A rank factors its rows in chunks, each together with the R of the chunks before. In step s = 1, 2, 4, ... of the
    tree the i-th rank, for i a multiple of 2 s, receives the R of rank i + s. The rank with row 0 ends with R.

    Source: Demmel, Grigori, Hoemmen, Langou, Communication-optimal parallel and sequential QR, 2012.

    >>> rows = MatrixDescriptor.row_wise(40, 2, 4)
    >>> plan = TsqrPlan(rows, rows, "tall", "float64", 4)
    >>> plan.merges(2)
    [Merge(peer=3, receives=True), Merge(peer=0, receives=False)]
    >>> [plan.received_elements(rank) for rank in range(4)]
    [8, 0, 4, 0]
    """

    name: ClassVar[str] = "TsqrPlan"

    @property
    def members(self) -> int:
        """Number of ranks with rows (global)."""
        return min(self.w.rows.nblocks, self.w.grid.nprow)

    def member(self, i: int) -> int:
        """The i-th rank with rows, from the owner of row 0 on (global)."""
        return self.w.grid.rank((self.w.rsrc + i) % self.w.grid.nprow, 0)

    def merges(self, rank: int) -> list[Merge]:
        """The steps of the tree of a rank, from the leaves to the root (local)."""
        if not self.w.local_shape(rank)[0]:
            return []
        i = (self.w.grid.coordinates(rank)[0] - self.w.rsrc) % self.w.grid.nprow
        steps, s = [], 1
        while s < self.members:
            if i % (2 * s):
                steps.append(Merge(self.member(i - s), receives=False))
                break
            if i + s < self.members:
                steps.append(Merge(self.member(i + s), receives=True))
            s *= 2
        return steps

    @property
    def inner(self) -> int:
        """Columns of a block of reflectors."""
        return min(_INNER, self.w.n)

    def chunks(self, rank: int) -> list[tuple[int, int]]:
        """Rows (start, stop) that a rank factors at a time (local)."""
        m_loc, height = self.w.local_shape(rank)[0], max(_CHUNK * self.w.n, _SHORTEST)
        return [(start, min(start + height, m_loc)) for start in range(0, m_loc, height)]

    def panel_elements(self, rank: int) -> int:
        """n^2 for each R that it receives."""
        return self.w.n**2 * sum(merge.receives for merge in self.merges(rank))

    def sent_panel_elements(self, rank: int) -> int:
        """n^2 for R, except on the rank that ends with it."""
        return self.w.n**2 * sum(not merge.receives for merge in self.merges(rank))

    def phases(self, view: View) -> Iterator[Phase]:
        """A rank's rows, and a triangle for each step of the tree, as GEMMs of as many operations."""
        yield from self.copy.phases(view)
        n, m_loc = self.w.n, self.w.local_shape(view.rank)[0]
        if m_loc:
            yield Phase(1, (m_loc, n, n))
        for merge in self.merges(view.rank):
            if merge.receives:
                yield Phase(1, (-(-n // 3), n, n), before=view.traffic(merge.peer, self.itemsize * n * n))

    @property
    def workspace_nbytes(self) -> int:
        """W, T of the chunks and of the tree, and V of the tree."""
        n, root = self.w.n, self.member(0)
        steps = len(self.merges(root))
        triangles = self.inner * n * (max(len(self.chunks(rank)) for rank in self.extreme_ranks()) + steps)
        return self.itemsize * (self.w.max_local_nelements + triangles + n * n * steps) + self.copy.workspace_nbytes

    @property
    def multiplications(self) -> float:
        """m n^2 - n^3 / 3, and n^3 / 3 for each merge."""
        return multiplications(*self.a.shape) + self.w.n**3 / 3 * (self.members - 1)

    def extreme_ranks(self) -> set[int]:
        """All ranks of few; of many, the first ones of the tree and the last, and those at the ends of the layouts."""
        if self.nprocs <= _ASK_ALL:
            return set(range(self.nprocs))
        ends = {self.member(i % self.members) for i in (0, 1, 2, -1)}
        return ends | {0, 1, self.w.nprocs - 1, self.a.nprocs - 1, self.nprocs - 1}

    def moves(self) -> str:
        parts = ["A to W"] if self.copy.lower_bound else []
        if self.members > 1:
            parts.append(f"R of {self.members - 1} ranks, {self.w.n} x {self.w.n} each, up the tree")
        return ", ".join(parts) or "nothing"

    def detail_lines(self) -> Iterator[tuple[str, str]]:
        rows = max(stop - start for start, stop in self.chunks(self.member(0)))
        depth = len(self.merges(self.member(0)))
        tree = f", then a tree of {ranks_text(self.members)} in {depth} steps" if depth else ""
        yield "algorithm", f"TSQR: each rank factors its rows, {rows} at a time{tree}"


@dataclass(frozen=True, slots=True)
class CholeskyQrPlan(FactorizationWithoutPanels):
    """A = Q R of a tall matrix in rows: R^H R = Q^H Q and Q := Q R^-1, two or three times, from Q = A on.

    If A is ill-conditioned, the first Gram matrix is shifted by a multiple of the identity, so that its Cholesky
    factorization succeeds, and there are three passes. The condition is checked: the last Gram matrix is near the
    identity, or else A is factored by the plan `fallback`.

    Source: Fukaya, Kannan, Nakatsukasa, Yamamoto, Yanagisawa, Shifted Cholesky QR for computing the QR factorization of
        ill-conditioned matrices, 2020.

    >>> rows = MatrixDescriptor.row_wise(40, 2, 4)
    >>> plan = CholeskyQrPlan(rows, rows, "tall", "float64", 4)
    >>> [plan.received_elements(rank) for rank in range(4)]
    [36, 36, 36, 36]
    """

    name: ClassVar[str] = "CholeskyQrPlan"

    # the plan for a matrix that is too ill-conditioned, singular, or out of range (global)
    fallback: QrPlan | None = None

    def panel_elements(self, rank: int) -> int:
        """The Gram matrices of the other ranks, to which it sends its own."""
        return PASSES * self.w.n**2 * (self.nprocs - 1)

    sent_panel_elements = panel_elements

    def phases(self, view: View) -> Iterator[Phase]:
        """In each pass Q^H Q of a rank's rows, the Gram matrices of the others, and Q R^-1."""
        yield from self.copy.phases(view)
        n, m_loc = self.w.n, self.w.local_shape(view.rank)[0]
        nbytes = self.itemsize * n * n
        for _ in range(PASSES):
            yield Phase(1, (n, n, m_loc))  # G = Q^H Q
            traffic = sum((view.traffic(peer, nbytes) for peer in range(self.nprocs) if peer != view.rank), Traffic())
            yield Phase(1, (-(-m_loc // 2), n, n), before=traffic)  # Q := Q R^-1, G = R^H R

    @property
    def workspace_nbytes(self) -> int:
        """Q, and R."""
        return self.itemsize * (self.w.max_local_nelements + self.w.n**2) + self.copy.workspace_nbytes

    @property
    def multiplications(self) -> float:
        """m n^2 for a Gram matrix, and half of that for Q R^-1."""
        m, n = self.a.shape
        return 1.5 * PASSES * m * n**2

    def moves(self) -> str:
        parts = ["A to W"] if self.copy.lower_bound else []
        if self.nprocs > 1:
            parts.append(f"Gram matrices, {self.w.n} x {self.w.n}, of all ranks to all")
        return ", ".join(parts) or "nothing"

    def detail_lines(self) -> Iterator[tuple[str, str]]:
        yield (
            "algorithm",
            "CholeskyQR: the Cholesky factors of two Gram matrices, or of three with a shift, each rank its rows",
        )
        yield "fallback", "blocked Householder, if the last Gram matrix shows that A is too ill-conditioned"


@dataclass(frozen=True, slots=True)
class PivotedQrPlan(FactorizationWithoutPanels):
    """A P = Q R: in step i the longest column from i on changes places with column i, and becomes a reflector.

    All ranks get both columns, and multiply their own columns after i with the reflector; they update them after a
    block of reflectors.

    >>> w = MatrixDescriptor.column_wise(8, 3, 2, nb=1)
    >>> PivotedQrPlan(w, w, "by columns already", "float64", 2).panel_elements(0)
    48
    """

    name: ClassVar[str] = "PivotedQrPlan"
    operation: ClassVar[str] = "pivoted_qr"
    equation: ClassVar[str] = "A P = Q R"

    on_copies: bool = False  # whether W is in GPU memory, and a copy of it in host memory is factored (global)

    @property
    def count(self) -> int:
        """Number of reflectors (global)."""
        return min(self.a.shape)

    def panel_elements(self, rank: int) -> int:
        """In step i the m elements of column i and its row of G, and the m - i of the reflector, at most."""
        m, k = self.w.m, self.count
        of_g = sum(i % self.width for i in range(k))
        return (2 * m * k - k * (k - 1) // 2 + of_g) * (self.w.nprocs > 1)

    @property
    def width(self) -> int:
        """Columns of a block at most."""
        return min(_BLOCK, self.count)

    sent_panel_elements = panel_elements
    phases = Plan.phases  # the time of its messages, of one column each, is not modelled

    def detail_lines(self) -> Iterator[tuple[str, str]]:
        how = f"blocks of {self.width} columns, each column the longest that remains"
        yield "algorithm", f"{how}, on {ranks_text(self.w.nprocs)}"
        if self.on_copies:
            yield "memory", "each rank's CPU factors a copy of W in host memory, and brings it back to the GPU"
