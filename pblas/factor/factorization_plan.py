"""Plans of Cholesky and LU factorizations, and the base class of plans of factorizations, as values of integers.

The matrix is factored in block columns, on 1 x P ranks: a panel is local to one rank, and no message is sent to search
for a pivot. The rank that owns the next panel updates and factors it before it updates its other columns, so that the
panel is there when the other ranks have finished their updates: one panel of lookahead.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, Literal, NamedTuple

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.trapezoid import Trapezoid
from pblas.plans.base import Plan, ranks_text
from pblas.redistribution.redistribution_plan import RedistributionPlan, described
from pblas.simulation.hardware import Transport
from pblas.simulation.phase import MICROSECOND_ON_GPUS, Phase, Traffic, View, solve_rows

_DIAGONAL = 400
"""Order of a matrix that LAPACK's Cholesky factors at half the rate of GEMMs (measured for orders 64 to 2048, OpenBLAS
on one core of an AMD EPYC, float64)."""
_PANEL, _ELEMENT, _SQUARE, _COLUMN = 1.15, 16, 45, 3760
"""Time of LU of an m x n panel in multiplications of a GEMM: _PANEL for each of its own, and _ELEMENT m n + _SQUARE n^2
+ _COLUMN n in addition (16 to 240 columns, 256 to 2048 rows, and square ones up to 2048, OpenBLAS there too)."""
_ON_A_GPU, _ON_GPUS = 20, 70
"""Steps of an executor that the hosts of one GPU, and of several, take for a factorization in addition (H200: 0.2 and
0.7 ms at 10 us)."""
_FACTORED, _SOLVED, _PIVOTED = 0.46, 0.37, 2.9
"""Microseconds of each column of a panel on GPUs in addition to its multiplications: of a diagonal block of Cholesky,
of the solve with it, and of LU (H200, float64: benchmarks/results/gpu_factor_panels.json and gpu_factor.json)."""
_NARROW_ON_GPUS = 4700  # columns for which LU takes twice as long on GPUs as its multiplications would (the same files)
_LINE = 64  # bytes of a cache line
_PIECE = 512  # rows of a piece of a panel: 4 to 6 ms at 1 Gbit/s
_ASK_ALL = 64  # largest number of ranks that are all examined to find the busiest
_BUFFERS = 2
"""Panels of far ranks that a rank holds: the one that is multiplied, and the next one, which arrives meanwhile."""


class Panel(NamedTuple):
    """A block column: columns start..stop-1 (global), on the rank `owner`, there from the local column j_loc on."""

    start: int
    stop: int
    owner: int
    j_loc: int

    @property
    def width(self) -> int:
        return self.stop - self.start


def panels(w: MatrixDescriptor) -> list[Panel]:
    """The block columns of a matrix, in order; on a P x Q grid of square blocks the owner has the diagonal block.

    >>> panels(MatrixDescriptor.column_wise(5, 5, 2, nb=2))  # doctest: +NORMALIZE_WHITESPACE
    [Panel(start=0, stop=2, owner=0, j_loc=0), Panel(start=2, stop=4, owner=1, j_loc=0),
     Panel(start=4, stop=5, owner=0, j_loc=2)]
    """
    return [panel_at(w, k) for k in range(w.columns.nblocks)]


def panel_at(w: MatrixDescriptor, k: int) -> Panel:
    """One of the `panels`."""
    start, stop = w.columns.block(k)
    column, row = w.columns.owner(start), w.rows.owner(start) if w.grid.nprow > 1 and start < w.m else 0
    return Panel(start, stop, w.grid.rank(row, column), w.columns.local_start(start, column))


def columns_from(w: MatrixDescriptor, start: int, rank: int) -> int:
    """Number of the columns from `start` on that a rank holds, of a matrix on a 1 x P grid."""
    p = w.grid.coordinates(rank)[1]
    return w.columns.count(p) - w.columns.local_start(start, p)


@dataclass(frozen=True, slots=True)
class FactorizationPlan(Plan):
    """A factorization by block columns: A is brought to W, on 1 x P ranks, and W is factored in place."""

    operation: ClassVar[str]
    equation: ClassVar[str]
    projection: ClassVar[float]
    """The least elements of one rank's part of the work, over (1 / P of the multiplications)^(2/3)."""
    passes_pieces: ClassVar[bool] = False
    """Whether the first pieces of a panel suffice to begin the next one, and so on."""
    trapezoid: ClassVar[Trapezoid | None] = None  # the elements of W that are used; None for all

    a: MatrixDescriptor  # distribution of A (global)
    w: MatrixDescriptor  # distribution of W: block columns on 1 x P ranks (global)
    why: str  # the rule that chose W (global)
    dtype: str
    nprocs: int
    transport: Transport = "message"
    # whether the factor is brought back to the distribution of A; otherwise it stays in W (global)
    returns: bool = False
    # for Cholesky, the triangle of A that is read; "U": its conjugate transpose is the lower triangle of W (global)
    uplo: Literal["L", "U"] = "L"
    # that factors panels; if the matrix is in GPU memory "cuSOLVER", or "a kernel" for QR (global)
    library: Literal["LAPACK", "cuSOLVER", "a kernel"] = "LAPACK"
    # for Cholesky, orders of triangles of an update that the library's symmetric product updates (global)
    triangles: range = range(0)
    tail: int = 0  # columns at the end that one rank alone leaves to the library, as one panel; 0 for none (global)
    # whether a panel is one block column of each rank, which the ranks exchange, and which all of them factor (global)
    replicated: bool = False

    # Each factorization defines these

    @property
    @abstractmethod
    def multiplications(self) -> float:
        """Multiplications with an addition, of elements, summed over all ranks, to first order."""

    @abstractmethod
    def rows(self, panel: Panel) -> tuple[int, int]:
        """Rows (start, stop) of a factored panel that other ranks read (global)."""

    def panel_multiplications(self, panel: Panel) -> float:
        """Multiplications of a panel, weighted by the time that they take compared with those of a GEMM (global)."""
        return 0.0

    # All factorizations share these

    @property
    def steps(self) -> list[Panel]:
        """The panels that are factored, in order (global).

        >>> w = MatrixDescriptor.column_wise(9, 9, 1, nb=2)
        >>> [panel.width for panel in CholeskyPlan(w, w, "one rank", "float64", 1, tail=4).steps]
        [2, 2, 2, 3]
        """
        steps = [panel for panel in panels(self.w) if panel.start < self.a.m]
        if self.replicated:
            groups = (steps[s : s + self.w.nprocs] for s in range(0, len(steps), self.w.nprocs))
            return [group[0]._replace(stop=group[-1].stop) for group in groups]
        last = next((s for s, panel in enumerate(steps) if panel.start >= self.w.n - self.tail), len(steps))
        if last < len(steps):
            steps[last:] = [steps[last]._replace(stop=self.w.n)]
        return steps

    def piece_stops(self, s: int) -> list[int]:
        """For each piece in which the rows of panel s are used, one past its last row (global); empty for one piece."""
        return self._stops_from(self.steps[s].stop)

    def _stops_from(self, row: int) -> list[int]:
        """Ends of pieces, of all panels at the same rows; the first has all rows before `row`, the diagonal block."""
        m = self.w.m
        return [*range(-(-row // _PIECE) * _PIECE, m, _PIECE), m] if self._is_cut else []

    @property
    def _is_cut(self) -> bool:
        """Whether panels are used in pieces, on any transport: the same bits."""
        return self.library == "LAPACK" and self.w.nprocs > 1 and not self.replicated

    @property
    def target(self) -> MatrixDescriptor:
        """Distribution of the part of W to which A is brought: all of W, unless the factor has more rows than A."""
        return self.w

    @property
    def nreaders(self) -> int:
        """Ranks, from 0 on, of which some may need a panel (global)."""
        return self.w.nprocs

    def needs(self, panel: Panel, rank: int) -> bool:
        """Whether a rank updates columns after a panel, or factors it, and so reads it."""
        return self.replicated or columns_from(self.w, panel.stop, rank) > 0

    def columns_of(self, panel: Panel, rank: int) -> int:
        """Number of the columns of a panel that a rank holds."""
        return columns_from(self.w, panel.start, rank) - columns_from(self.w, panel.stop, rank)

    @property
    def overlaps_messages(self) -> bool:
        """Whether ranks compute while messages are under way: the next panel arrives during an update."""
        return self.w.nprocs > 1 and self.transport in ("message", "mixed")

    @property
    def trans(self) -> Literal["N", "C"]:
        """How A is brought to W: Cholesky factors a lower triangle, that of A or of A^H."""
        return "N" if self.uplo == "L" else "C"

    @property
    def copy(self) -> RedistributionPlan:
        ranks = self.dtype, self.nprocs, self.trans, self.trapezoid
        return RedistributionPlan(self.a, self.target, *ranks, transport=self.transport)

    @property
    def back(self) -> RedistributionPlan | None:
        """The redistribution of the factor to the distribution of A; None if it stays in W."""
        if not self.returns:
            return None
        ranks = self.dtype, self.nprocs, self.trans, None if self.trapezoid is None else Trapezoid(self.uplo)
        return RedistributionPlan(self.target, self.a, *ranks, transport=self.transport)

    @property
    def redistributions(self) -> list[RedistributionPlan]:
        """The redistributions before and after the factorization."""
        return [self.copy] if self.back is None else [self.copy, self.back]

    def panel_elements(self, rank: int) -> int:
        """Elements of panels of other ranks that a rank reads or receives."""
        counts = ((panel, self.rows(panel)) for panel in self.steps if self.needs(panel, rank))
        return sum((i1 - i0) * (panel.width - self.columns_of(panel, rank)) for panel, (i0, i1) in counts)

    def received_elements(self, rank: int) -> int:
        return self.panel_elements(rank) + sum(plan.received_elements(rank) for plan in self.redistributions)

    def sent_panel_elements(self, rank: int) -> int:
        """Elements of this rank's panels, once for each rank that reads them."""
        total = 0
        for panel in self.steps:
            if n_loc := self.columns_of(panel, rank):
                (i0, i1), peers = self.rows(panel), (p for p in range(self.nreaders) if p != rank)
                total += (i1 - i0) * n_loc * sum(self.needs(panel, peer) for peer in peers)
        return total

    def sent_elements(self, rank: int) -> int:
        return self.sent_panel_elements(rank) + sum(plan.sent_elements(rank) for plan in self.redistributions)

    def phases(self, view: View) -> Iterator[Phase]:
        """Each step multiplies a rank's columns with a panel, while the next panel is updated and factored."""
        yield from self.starting()
        yield from self.copy.phases(view)
        steps, before, own = self.steps, (0, 0, 0), Traffic()
        if self.replicated:
            yield from self._replicated_phases(view)
            steps = []
        for s, panel in enumerate(steps):
            n_loc, work = columns_from(self.w, panel.stop, view.rank), 0.0
            rows = self.multiplied_rows(self.w.m - panel.stop)
            if s == 0 and panel.owner == view.rank:
                yield Phase(1, panel=self.panel_multiplications(panel))
            if s + 1 < len(steps) and steps[s + 1].owner == view.rank:
                work = self.panel_multiplications(steps[s + 1])  # lookahead
            traffic = self._panel_traffic(view, panel, panel.owner)
            if n_loc or work:
                factored = 0.0 if panel.owner == view.rank else self.panel_multiplications(panel)
                # A22 -= A21 A12   (the panel A21 of its owner, this rank's columns of A12 and A22)
                gemms, gemm = self.in_blocks((rows, n_loc, panel.width))
                copied = self.exchanged_nbytes(panel) * self.w.local_shape(view.rank)[1]
                yield Phase(
                    1,
                    gemm,
                    traffic,
                    copied=copied,
                    gemms=gemms,
                    panel=work,
                    factored=factored,
                    updated=before,
                    awaited=own if s else None,
                )
            before = self.multiplied_rows(self.w.m - panel.stop), self.width, panel.width
            own = Traffic()
            if s + 1 < len(steps) and panel.owner == view.rank and not self.passes_pieces:
                own = self._panel_traffic(view, panel, steps[s + 1].owner)
        if self.back is not None:
            yield from self.back.phases(view)

    def _panel_traffic(self, view: View, panel: Panel, peer: int) -> Traffic:
        """Traffic of a panel between this rank and `peer`: its pieces, after a header."""
        i0, i1 = self.rows(panel)
        traffic = view.traffic(peer, self.itemsize * (i1 - i0) * panel.width)
        if view.transport == "push" or not traffic.nbytes:
            return traffic
        pieces = max(1, (i1 - panel.stop) // _PIECE) if self._is_cut else 1
        messages = 1 + pieces * traffic.messages
        near = messages if view.is_near(peer) else 0
        return replace(traffic, near_messages=near, far_messages=messages - near)

    def starting(self) -> Iterator[Phase]:
        """The work of the hosts of GPUs in a call."""
        if self.library != "LAPACK":
            yield Phase(1, rounds=(0, 0, _ON_A_GPU if self.nprocs == 1 else _ON_GPUS))

    def _replicated_phases(self, view: View) -> Iterator[Phase]:
        """Each step factors a panel on all ranks and multiplies, while the parts of the next panel travel."""
        factored, updated, awaited = 0.0, (0, 0, 0), None
        for panel in self.steps:
            n_loc, (i0, i1), traffic = columns_from(self.w, panel.stop, view.rank), self.rows(panel), Traffic()
            for peer in range(self.w.nprocs):
                traffic += view.traffic(peer, self.itemsize * (i1 - i0) * self.columns_of(panel, peer))
            work, below = self.panel_multiplications(panel), self.multiplied_rows(self.w.m - panel.stop)
            gemms, gemm = self.in_blocks((below, n_loc, panel.width))
            copied = self.exchanged_nbytes(panel) * n_loc
            yield Phase(
                1,
                gemm,
                traffic,
                copied=copied,
                gemms=gemms,
                panel=work,
                factored=factored,
                updated=updated,
                awaited=awaited,
            )
            factored, updated, awaited = work, (below, self.w.nb, panel.width), Traffic()

    def multiplied_rows(self, below: int) -> int:
        """Rows of the GEMM of a step with `below` rows below its panel, on average over the columns."""
        return below

    def in_blocks(self, gemm: tuple[int, int, int]) -> tuple[int, tuple[int, int, int]]:
        """The GEMMs of an update, their number and the extents of one, for one GEMM of all columns of a panel."""
        return 1, gemm

    def exchanged_nbytes(self, panel: Panel) -> int:
        """Bytes of each column that are read and written to exchange rows after a panel."""
        return 0

    def operands_nbytes(self, rank: int) -> int:
        return self.itemsize * prod(self.a.local_shape(rank)) * (1 + self.returns)

    @property
    def lower_bound(self) -> float:
        """Elements that a rank with 1 / P of the multiplications uses, less the elements that it holds at first.

        By the inequality of Loomis and Whitney a rank that does G multiplications of C[i, j] -= A[i, k] B[k, j] uses at
        least G^(2/3) elements of each of A, B and C, some of which are the same elements of the factored matrix.

        Source: Irony, Toledo, Tiskin, Communication lower bounds for distributed-memory matrix multiplication, 2004.
        """
        part = (self.multiplications / self.nprocs) ** (2 / 3) * self.projection
        return max(0.0, part - max(prod(self.a.local_shape(rank)) for rank in self.extreme_ranks()))

    @property
    def workspace_nbytes(self) -> int:
        """W, and two panels of far ranks."""
        w = (self.w.lld or self.w.rows.max_count) * self.w.columns.max_count
        return self.itemsize * w + self.buffer_nbytes + max(plan.workspace_nbytes for plan in self.redistributions)

    @property
    def buffer_nbytes(self) -> int:
        """Two panels of far ranks."""
        buffers = 0 if self._is_read_in_place or self.w.nprocs == 1 else _BUFFERS
        rows = self.w.lld or self.w.m if self.replicated else self.w.m
        return self.itemsize * buffers * rows * min(self.width, max(self.w.n, 1))

    @property
    def width(self) -> int:
        """Columns of most panels (global)."""
        return self.w.nb * (self.w.nprocs if self.replicated else 1)

    @property
    def _is_read_in_place(self) -> bool:
        """Whether ranks read panels in the memory of their owners. GPUs copy them first."""
        return self.transport in ("shared", "push") and self.library == "LAPACK"

    @property
    def flops(self) -> int:
        return int(self.multiplications * (8 if self.dtype.startswith("complex") else 2))

    def typical_ranks(self, ranks_per_node: int) -> Sequence[int]:
        """The owners of the last panels, whose columns are updated most often, and of the first one."""
        owners = [panel.owner for panel in self.steps] or [0]
        return list(dict.fromkeys((*owners[:-4:-1], owners[0])))

    def extreme_ranks(self) -> set[int]:
        """All ranks of few; of many, those around the first and the last block column, and the last ranks."""
        if self.nprocs <= _ASK_ALL:
            return set(range(self.nprocs))
        ends = {self.w.nprocs - 1, self.a.nprocs - 1, self.nprocs - 1}
        return set(range(4)) | ends | {panel.owner for panel in (panels(self.w)[:2] + panels(self.w)[-2:])}

    @property
    def sizes(self) -> str:
        return f"{self.a.m} x {self.a.n}"

    def title(self) -> str:
        equation = self.equation if self.uplo == "L" else "A = U^H U"
        return f"{equation}, {self.sizes}"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        read = f"; the {'lower' if self.uplo == 'L' else 'upper'} triangle is read" if self.trapezoid else ""
        yield "A", f"{described(self.a)}{read}"
        yield "W", f"work matrix, {described(self.w)}; factored in place"

    def moves(self) -> str:
        parts = ["A to W"] if self.copy.lower_bound else []
        if self.w.nprocs > 1:
            readers = (
                "columns of panels to all ranks"
                if self.replicated
                else "panels to the ranks that have columns after them"
            )
            parts.append("panels are read in place" if self._is_read_in_place else readers)
        if self.back is not None and self.back.lower_bound:
            parts.append("the factor back to the distribution of A")
        elif self.back is None:
            parts.append("the factor stays in W")
        return ", ".join(parts) or "nothing"

    def detail_lines(self) -> Iterator[tuple[str, str]]:
        count = len(self.steps)
        if self.w.nprocs == 1 and count <= 1:
            yield "algorithm", f"local: {self.library} on rank 0, which has the whole matrix"
        else:
            owners = "all ranks" if self.replicated else "their owners"
            by = f"by {self.library}" + (f" on {owners}" if self.w.nprocs > 1 else "")
            ranks = ranks_text(self.w.nprocs)
            ends = f", the first one of {self.w.inb}" if self.w.inb is not None and count > 1 else ""
            ends += f", the last one of {self.steps[-1].width}" if self.tail else ""
            yield "algorithm", f"blocked: right-looking, {count} panels of {self.width} columns{ends}, on {ranks}, {by}"
            yield "lookahead", "1: the next panel is factored during an update"


@dataclass(frozen=True, slots=True)
class CholeskyPlan(FactorizationPlan):
    """A = L L^H or U^H U of a Hermitian positive definite matrix, of which one triangle is read.

    >>> w = MatrixDescriptor.column_wise(8, 8, 2, nb=2)
    >>> plan = CholeskyPlan(w, w, "by columns already", "float64", 2)
    >>> [plan.panel_elements(rank) for rank in range(2)]
    [8, 16]
    >>> plan.copy.received_nbytes(1)
    0
    """

    name: ClassVar[str] = "CholeskyPlan"
    operation: ClassVar[str] = "cholesky"
    equation: ClassVar[str] = "A = L L^H"
    projection: ClassVar[float] = 1.0  # the three kinds of elements may be the same elements of L
    passes_pieces: ClassVar[bool] = True
    trapezoid: ClassVar[Trapezoid | None] = Trapezoid("L")

    @property
    def multiplications(self) -> float:
        """n^3 / 6."""
        return self.a.n**3 / 6

    def rows(self, panel: Panel) -> tuple[int, int]:
        """The rows below the diagonal block."""
        return panel.stop, self.w.m

    def multiplied_rows(self, below: int) -> int:
        """Half of the rows: those from the diagonal on, on average."""
        return -(-below // 2)

    def piece_stops(self, s: int) -> list[int]:
        """The first piece has the diagonal block of the next panel, and pieces of all panels end at the same rows.

        >>> w = MatrixDescriptor.column_wise(1200, 1200, 2, nb=200)
        >>> plan = CholeskyPlan(w, w, "by columns already", "float64", 2)
        >>> [plan.piece_stops(s) for s in range(6)]
        [[512, 1024, 1200], [1024, 1200], [1024, 1200], [1024, 1200], [1200], []]
        """
        return self._stops_from(self.steps[s + 1].stop) if s + 1 < len(self.steps) else []

    def panel_multiplications(self, panel: Panel) -> float:
        """A diagonal block, and a solve with it."""
        return self.rows_multiplications(panel, self.w.m - panel.stop)

    def rows_multiplications(self, panel: Panel, rows: int) -> float:
        """`panel_multiplications` of a diagonal block, and of a solve with it for some rows."""
        width, solve = panel.width, rows * panel.width * solve_rows(panel.width)
        if self.library == "LAPACK":
            return width**2 * (width + _DIAGONAL) / 6 + solve
        waiting = _FACTORED + (_SOLVED if rows else 0.0)
        return width**3 / 6 + solve + waiting * width * MICROSECOND_ON_GPUS


@dataclass(frozen=True, slots=True)
class LuPlan(FactorizationPlan):
    """P A = L U with partial pivoting, of an m x n matrix.

    >>> w = MatrixDescriptor.column_wise(8, 8, 2, nb=2)
    >>> plan = LuPlan(w, w, "by columns already", "float64", 2)
    >>> [plan.panel_elements(rank) for rank in range(2)]
    [12, 24]
    """

    name: ClassVar[str] = "LuPlan"
    operation: ClassVar[str] = "lu_factor"
    equation: ClassVar[str] = "P A = L U"
    projection: ClassVar[float] = 1.5  # elements of L and U differ, and may be the elements that are updated

    @property
    def multiplications(self) -> float:
        """n^3 / 3 if m = n."""
        return _lu_multiplications(*self.a.shape)

    def rows(self, panel: Panel) -> tuple[int, int]:
        """The rows from the diagonal on."""
        return panel.start, self.w.m

    def panel_multiplications(self, panel: Panel) -> float:
        """LU of the rows from the diagonal on."""
        return self.rows_multiplications(self.w.m - panel.start, panel.width)

    def multiplied_rows(self, below: int) -> int:
        """With those of U12 = L11^-1 A12."""
        return below + solve_rows(self.width)

    def exchanged_nbytes(self, panel: Panel) -> int:
        """Rows of whole cache lines."""
        return 2 * min(panel.width * (_LINE + self.itemsize), self.itemsize * (self.w.m - panel.start))

    def rows_multiplications(self, rows: float, width: int) -> float:
        """`panel_multiplications` of some rows."""
        work = _lu_multiplications(rows, width)
        if self.library == "LAPACK":
            return _PANEL * work + width * (_ELEMENT * rows + _SQUARE * width + _COLUMN)
        return pivoted_on_gpus(work, width)


def pivoted_on_gpus(work: float, width: int) -> float:
    """The multiplications `work` of LU of a panel on a GPU, weighted as `panel_multiplications`."""
    return (1 + _NARROW_ON_GPUS / max(1, width)) * work + _PIVOTED * width * MICROSECOND_ON_GPUS


def _lu_multiplications(m: float, n: float) -> float:
    """Multiplications of LU of an m x n matrix, to first order.

    >>> _lu_multiplications(6, 6), _lu_multiplications(3, 6) == _lu_multiplications(6, 3)
    (72.0, True)
    """
    m, n = max(m, n), min(m, n)
    return m * n**2 / 2 - n**3 / 6
