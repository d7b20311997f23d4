"""The plan of a reduction of a matrix: sums, extremes, norms, products with a vector; integers only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from pblas.backends.engine_limits import bins_of
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.plans.base import StationaryPlan
from pblas.simulation.hardware import ITEMSIZE, Transport
from pblas.simulation.phase import Phase, Traffic, View

Operation = Literal[
    "sum", "max", "min", "argmax", "argmin", "abs_sum", "abs_max", "squares", "dot", "product", "diagonal", "trace"
]
"""
"abs_sum", "abs_max": of the absolute values; "squares": sums of squares, scaled; "dot": of two matrices of one layout;
"product": with a vector, along axis 1; "diagonal": the elements themselves; "trace": their sum.
"""

SUMS = ("sum", "abs_sum", "squares", "dot", "trace")
_PAIRS = ("argmax", "argmin", "squares")


@dataclass(frozen=True, slots=True)
class ReductionPlan(StationaryPlan):
    """Every rank reduces its own elements; one all-gather collects the partial results, which each rank then combines.

    Partial results are combined in the order of ranks, so the order of additions depends on the plan alone. Of the
    ranks that hold the same elements only the first contributes: a replicated matrix counts once.

    >>> plan = ReductionPlan(MatrixDescriptor.row_wise(6, 4, 3), "sum", 0, "float64", 3)
    >>> [plan.count(rank) for rank in range(3)], plan.received_elements(0), plan.nresults
    ([4, 4, 4], 8, 4)
    >>> replicated = ReductionPlan(MatrixDescriptor.replicated(6, 4, 3), "sum", None, "float64", 3)
    >>> [replicated.count(rank) for rank in range(3)]
    [1, 0, 0]
    """

    name: ClassVar[str] = "ReductionPlan"
    why: ClassVar[str] = "each rank reduces its own elements and sends the results, which are fewer"

    a: MatrixDescriptor  # distribution of the matrix (global)
    operation: Operation  # see `Operation` (global)
    axis: Literal[0, 1] | None  # 0 reduces columns to n results, 1 rows to m results, None all elements to one (global)
    dtype: str
    nprocs: int
    transport: Transport = "message"
    exact: bool = False  # sums are exact and rounded once: the same bits for any ranks and layouts (global)

    @property
    def nresults(self) -> int:
        """Number of results: 1, or the length of the vector (global)."""
        if self.operation == "diagonal":
            return min(self.a.shape)
        return 1 if self.axis is None else self.a.shape[1 - self.axis]

    @property
    def components(self) -> int:
        """Numbers in each partial result: (value, index) of argmax and argmin, (scale, sum) of squares; else 1.

        An exact sum has bins for all exponents, and a complex one has those of both parts.
        """
        if self.exact:
            is_complex = self.dtype.startswith("complex")
            parts = 2 if is_complex and self.operation not in ("abs_sum", "squares") else 1
            return parts * bins_of(
                ITEMSIZE[self.dtype] // (1 + is_complex), squares=self.operation in ("squares", "dot")
            )
        return 2 if self.operation in _PAIRS else 1

    @property
    def partial_dtype(self) -> str:
        """Name of the dtype of partial results: 32 bits at least; float64 for operations on pairs of numbers."""
        if self.exact or self.operation in _PAIRS:
            return "float64"
        if self.operation in ("abs_sum", "abs_max"):
            return "float64" if self.dtype in ("float64", "complex128") else "float32"
        return self.dtype if ITEMSIZE[self.dtype] > 2 else "float32"

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.partial_dtype]

    def count(self, rank: int) -> int:
        """Number of results to which `rank` contributes."""
        if not self.contributes(rank):
            return 0
        if self.operation == "diagonal":
            return sum(stop - start for start, stop in self.diagonal_ranges(rank))
        return 1 if self.axis is None else self.a.local_shape(rank)[1 - self.axis]

    def diagonal_ranges(self, rank: int) -> list[tuple[int, int]]:
        """Ranges of the diagonal (global, half-open, ascending) that `rank` holds.

        >>> from pblas.layouts.grid import Grid
        >>> desc = MatrixDescriptor.block_cyclic(5, 8, 2, 3, Grid(2, 2))
        >>> ReductionPlan(desc, "diagonal", None, "float64", 4).diagonal_ranges(0)
        [(0, 2)]
        """
        rows, columns = self.a.global_ranges(rank)
        i, j, ranges = 0, 0, list[tuple[int, int]]()
        while i < len(rows) and j < len(columns):
            start, stop = max(rows[i][0], columns[j][0]), min(rows[i][1], columns[j][1])
            if start < stop:
                ranges.append((start, stop))
            if rows[i][1] <= columns[j][1]:
                i += 1
            else:
                j += 1
        return ranges

    def sent_elements(self, rank: int) -> int:
        return self.components * self.count(rank) * (self.nprocs - 1)

    def received_elements(self, rank: int) -> int:
        """Elements of all other ranks' partial results."""
        return self.components * (self._totals[1] - self.count(rank))

    @property
    def _totals(self) -> tuple[int, int]:
        """Number of ranks that contribute, and the number of results to which each of them does, summed (global)."""
        (m, n), rows, columns = self.a.shape, self.a.rows, self.a.columns
        if not m * n:
            return 0, 0
        if self.operation == "diagonal":
            return len(self._diagonal_owners), min(m, n)
        down, across = (1 if x.is_replicated else min(x.nblocks, x.nprocs) for x in (rows, columns))
        return down * across, down * across if self.axis is None else down * n if self.axis == 0 else across * m

    @property
    def _diagonal_owners(self) -> set[tuple[int, int]]:
        """Coordinates of the ranks that hold elements of the diagonal; 0 where it is replicated (global)."""
        splits, length = (self.a.rows, self.a.columns), min(self.a.shape)
        starts = {start for x in splits for b in range(x.nblocks) if (start := x.block(b)[0]) < length}
        down, across = ([max(0, x.owner(start)) for start in starts] for x in splits)
        return set(zip(down, across, strict=True))

    def phases(self, view: View) -> Iterator[Phase]:
        """Each rank reads its elements once, then all partial results arrive in one step."""
        unit, (contributors, results) = self.itemsize * self.components, self._totals
        node = view.rank - view.rank % view.ranks_per_node
        near = range(node, min(node + view.ranks_per_node, self.nprocs))
        traffic, counts = Traffic(), list(map(self.count, near))
        for peer, count in zip(near, counts, strict=True):
            traffic += view.traffic(peer, unit * count)
        nbytes, messages = unit * (results - sum(counts)), contributors - sum(map(bool, counts))  # of other nodes
        is_read = view.transport == "shared"
        traffic += Traffic(read=nbytes) if is_read else Traffic(far=nbytes, far_messages=messages)
        yield Phase(1, before=traffic, copied=self.operands_nbytes(view.rank))

    @property
    def lower_bound(self) -> float:
        return self.nresults - min(map(self._computable, self.extreme_ranks()))

    def _computable(self, rank: int) -> int:
        """Number of results that a rank can compute from its own elements."""
        m_loc, n_loc = self.a.local_shape(rank)
        if self.operation == "diagonal":
            return sum(stop - start for start, stop in self.diagonal_ranges(rank))
        if self.axis is None:
            return int((m_loc, n_loc) == self.a.shape)
        held, length = ((n_loc, m_loc), (m_loc, n_loc))[self.axis]
        return held if length == self.a.shape[self.axis] else 0

    @property
    def workspace_nbytes(self) -> int:
        """The partial results of all ranks."""
        return self.itemsize * self.components * self._totals[1]

    def moves(self) -> str:
        senders = self._totals[0]
        if self.nprocs == 1 or not senders:
            return "nothing"
        what = "1 partial result" if self.nresults == 1 else f"partial results, of {self.nresults:,} in all,"
        return f"{what} of each of {senders} ranks to all ranks"

    @property
    def sizes(self) -> str:
        return f"{self.a.m} x {self.a.n}{'' if self.axis is None else f', axis {self.axis}'}"

    def title(self) -> str:
        return f"{self.operation} of {self.sizes}"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        grid = f"{self.a.grid.nprow} x {self.a.grid.npcol} grid"
        layout = "replicated on each rank" if self.a.is_replicated else f"in blocks of {self.a.mb} x {self.a.nb}"
        yield "A", f"{self.a.m} x {self.a.n} {layout} {'of' if self.a.is_replicated else 'on'} a {grid}"
