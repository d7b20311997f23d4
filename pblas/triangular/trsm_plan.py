"""The plan of a triangular solve: right-hand sides are split over the ranks, and only the triangle travels.

The columns of X in T X = alpha B are independent of each other. Each rank solves for some of them, with panels of T
that arrive along the diagonal while the panel before is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import isqrt, prod
from typing import ClassVar, Literal

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.messages import received_count, sent_count
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.layouts.trapezoid import Trapezoid
from pblas.matmul.summa_plan import cut, cut_count, same_place
from pblas.plans.base import Plan
from pblas.redistribution.redistribution_plan import described, moved
from pblas.simulation.hardware import Transport
from pblas.simulation.phase import MICROSECOND_ON_GPUS, Phase, Traffic, View, even, solve_rows

PANEL = 256
"""Default width of a panel: BLAS solves with a diagonal block of this order at 0.9 of the rate of a GEMM, and GEMMs of
this inner length run at their full rate."""
PANEL_ON_GPUS = 1024  # the same on GPUs, which read and write the right-hand sides once for each panel
_COLUMN_ON_GPUS = 0.5  # microseconds of each column of a triangle with which a GPU solves (cuBLAS, H200, float64)
_ON_A_GPU, _ON_GPUS = 29, 96
"""Steps of an executor that the hosts of one GPU, and of several, take for a solve, beside those of any call (0.3 and 1
ms with these, at 10 us, H200)."""
_ALL_RANKS = 32  # largest number of ranks that are all examined to find the busiest


@dataclass(frozen=True, slots=True)
class TriangularOperands:
    """The operands of X := alpha op(A)^-1 B (side "L") or X := alpha B op(A)^-1 (side "R"), as the user gives them."""

    a: MatrixDescriptor  # distribution of A, n x n (global)
    b: MatrixDescriptor  # distribution of B, m x n or n x m (global)
    x: MatrixDescriptor  # distribution of X, of the shape of B (global)
    side: Literal["L", "R"] = "L"  # "L" or "R", where op(A) stands (global)
    uplo: Literal["L", "U"] = "L"  # "L" or "U", the triangle of A that is read (global)
    trans: Literal["N", "T", "C"] = "N"  # "N", "T" or "C": op (global)
    unit: bool = False  # whether the diagonal of A is taken as ones, and not read (global)

    @property
    def is_transposed(self) -> bool:
        """Whether T is stored as its transpose: op(A) is transposed, or A stands on the right, but not both."""
        return (self.trans != "N") != (self.side == "R")

    @property
    def lower(self) -> bool:
        """Whether T is lower triangular, so that X is computed from its first row on."""
        return (self.uplo == "L") != self.is_transposed

    @property
    def triangle(self) -> Placement:
        """The placement of T."""
        place = Placement.of(self.a)
        return place.T if self.is_transposed else place

    @property
    def right(self) -> Placement:
        """The placement of the right-hand sides as columns: of B, or of B^T if A stands on the right."""
        return self._columns(self.b)

    @property
    def result(self) -> Placement:
        """The placement of the solutions as columns: of X, or of X^T."""
        return self._columns(self.x)

    def _columns(self, desc: MatrixDescriptor) -> Placement:
        place = Placement.of(desc)
        return place if self.side == "L" else place.T


@dataclass(frozen=True, slots=True)
class TriangularSolve(Plan):
    """X := alpha op(A)^-1 B or alpha B op(A)^-1: the fields of all plans."""

    operands: TriangularOperands  # the operands (global)
    dtype: str
    nprocs: int
    reads: bool = True  # alpha is not 0, and X has elements; else nothing is read or moves (global)
    width: int = PANEL  # largest width of a panel (global)
    transport: Transport = "message"

    @property
    def order(self) -> int:
        """Rows of T."""
        return self.operands.right.rows.n

    @property
    def shape_of_t(self) -> Trapezoid:
        """The elements of T that are read; with a unit diagonal those of the diagonal travel too, and are not read."""
        return Trapezoid("L" if self.operands.lower else "U")

    def own_elements(self, rank: int) -> int:
        """Elements of the triangle that `rank` holds."""
        return _own_elements(self.operands.triangle, self.shape_of_t, rank)

    @property
    def flops(self) -> int:
        # n^2 for each right-hand side
        n, nrhs = self.operands.right.shape
        return n * n * nrhs * (4 if self.dtype.startswith("complex") else 1) if self.reads else 0

    @property
    def lower_bound(self) -> float:
        """Lower bound on the elements that the busiest rank receives, under any plan.

        A rank that multiplies F elements touches a elements of T and s of X with a s^2 >= F^2 (Loomis, Whitney, 1949).
        It has received those that it does not hold.
        """
        n, nrhs = self.operands.right.shape
        triangle = n * (n + 1) // 2
        if not self.reads or self.nprocs == 1:
            return 0.0
        f = triangle * nrhs / self.nprocs
        s = min(float(n * nrhs), max((2 * f * f) ** (1 / 3), f / max(1, isqrt(triangle))))
        ranks, operands = self.extreme_ranks(), self.operands
        held = max(self.own_elements(rank) + prod(operands.right.local_shape(rank)) for rank in ranks)
        if self.operands.b != self.operands.x:
            held += max(prod(operands.result.local_shape(rank)) for rank in ranks)
        return max(0.0, f * f / (s * s) + s - held)

    def operands_nbytes(self, rank: int) -> int:
        operands = self.operands
        places = operands.triangle, operands.right, operands.result
        return self.itemsize * sum(prod(place.local_shape(rank)) for place in places)

    def _redistribution(self, view: View, source: Placement, target: Placement) -> Phase:
        """One step without a GEMM, in which right-hand sides or solutions change their placement."""
        received = self.itemsize * received_count(source, target, view.rank)
        return moved(source, target, received, self.itemsize, view)

    @property
    def overlaps_messages(self) -> bool:
        """Whether ranks compute while messages are under way."""
        return self.reads and self.nprocs > 1 and self.transport in ("message", "mixed")

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The placements whose largest shares decide which rank is the busiest (global)."""
        return self.operands.triangle, self.operands.right, self.operands.result

    def extreme_ranks(self) -> set[int]:
        """All ranks if there are few, else those around the first and the last block of each placement."""
        if self.nprocs <= _ALL_RANKS:
            return set(range(self.nprocs))
        ranks = {0, self.nprocs - 1}
        for place in self.placements:
            rows, columns = (_around(split) for split in (place.rows, place.columns))
            ranks |= {place.rank(r, c, z) for r in rows for c in columns for z in {0, place.copies - 1}}
        return ranks

    @property
    def sizes(self) -> str:
        return f"{self.order} x {self.order}, {self.operands.right.columns.n} right-hand sides"

    def title(self) -> str:
        operands = self.operands
        m, n = operands.x.shape
        return f"X = alpha {'op(A)^-1 B' if operands.side == 'L' else 'B op(A)^-1'}, {m} x {n}"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        operands = self.operands
        triangle = f"{'lower' if operands.uplo == 'L' else 'upper'} triangle{', unit diagonal' * operands.unit}"
        yield "A", f"{described(operands.a)}, {triangle}, trans={operands.trans!r}"
        yield "B", described(operands.b)
        if operands.b != operands.x:
            yield "X", described(operands.x)


def spread(view: View, peers: list[int], nbytes: int) -> Traffic:
    """Traffic of some bytes that come in equal parts from some ranks."""
    traffic = Traffic()
    for i, peer in enumerate(peers):
        traffic += view.traffic(peer, nbytes * (i + 1) // len(peers) - nbytes * i // len(peers))
    return traffic


def _around(split: Split) -> set[int]:
    """Coordinates around the first block and the last block, which include the largest and smallest shares."""
    last = split.src + max(split.nblocks - 1, 0)
    return {p % split.nprocs for p in (0, split.src, split.src + 1, last - 1, last, last + 1, split.nprocs - 1)}


@lru_cache(1024)
def _own_elements(place: Placement, triangle: Trapezoid, rank: int) -> int:
    """Elements of a triangle that `rank` holds; takes time in proportion to the blocks that cross the diagonal."""
    position, total = place.coordinates(rank), 0
    if position is None:
        return 0
    rows, columns = place.rows, place.columns
    for j0, j1 in columns.runs(position[1]):
        before, after = (rows.local_start(j, position[0]) for j in (j0, j1))
        beside = before if triangle.uplo == "U" else rows.count(position[0]) - after
        across = (triangle.count(i0, i1, j0, j1) for i0, i1 in rows.runs(position[0], j0, j1))
        total += beside * (j1 - j0) + sum(across)
    return total


_UNEVEN = 1.25  # largest share of the right-hand sides, over an even share, with which X stays where it is
_SPARE = 2  # message memory per byte that travels; see `pblas.matmul.summa_plan`


@dataclass(frozen=True, slots=True)
class TrsmStep:
    """One step: the diagonal block T[k0:k1, k0:k1], and a rectangle of T next to it.

    A right-looking step solves X[k0:k1] with the block and then subtracts T[rows, columns] X[columns] from the rows of
    X that come later, where `columns` is k0:k1. A left-looking step first subtracts it from `rows`, which is k0:k1.
    """

    k0: int
    k1: int
    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def is_alone(self) -> bool:
        """Whether the rectangle is empty."""
        return 0 in (self.rows[1] - self.rows[0], self.columns[1] - self.columns[0])


@dataclass(frozen=True, slots=True)
class TrsmPlan(TriangularSolve):
    """X := alpha op(A)^-1 B or alpha B op(A)^-1: each rank solves for some right-hand sides, to which A is sent.

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> from pblas.triangular.trsm_plan import TriangularOperands
    >>> columns = MatrixDescriptor.column_wise(8, 8, 4)
    >>> plan = TrsmPlan(TriangularOperands(columns, columns, columns), "float64", 4, width=4)
    >>> plan.stays, plan.received_nbytes(1)
    (True, 200)
    >>> for step in plan.steps(): print(step)
    TrsmStep(k0=0, k1=4, rows=(4, 8), columns=(0, 4))
    TrsmStep(k0=4, k1=8, rows=(8, 8), columns=(4, 8))
    """

    name: ClassVar[str] = "TrsmPlan"
    why: ClassVar[str] = "right-hand sides are independent: each rank solves for its own, and only the triangle travels"

    fixed: bool = False  # panels are cut at multiples of `width`, whatever the layouts (global)
    solved: Placement = field(init=False)
    """The placement in which X is computed: its columns are split over the ranks, from coordinate 0 on (global)."""

    def __post_init__(self) -> None:
        """Choose the placement of X: its own if every rank has whole columns and a fair share, else an even split."""
        result = self.operands.result
        (n, nrhs), columns = result.shape, result.columns
        even = max(1, -(-nrhs // self.nprocs))
        solved = Placement(Split(n, max(n, 1), 1), Split(nrhs, even, self.nprocs), (1, 1, 1))
        is_fair = columns.max_count <= _UNEVEN * even and (columns.src == 0 or columns.nblocks >= columns.nprocs)
        if result.rows.canonical.nprocs == 1 and result.copies == 1 and is_fair:
            solved = Placement(solved.rows, columns, result.strides, 1, result.start, result.ranks)
        object.__setattr__(self, "solved", solved)

    # The work of the ranks

    @property
    def stays(self) -> bool:
        """Whether X is computed in its own memory; else in workspace, and then redistributed."""
        return same_place(self.solved, self.operands.result)

    @property
    def is_whole(self) -> bool:
        """Whether one rank has all of T, of one panel, and solves for one vector by one call."""
        is_vector = self.operands.right.columns.n == 1
        return self.nprocs == 1 and is_vector and self.stays and not self.fixed and self.width >= self.order

    @property
    def nsolvers(self) -> int:
        """Number of ranks that have right-hand sides: those at the first coordinates of `solved`."""
        return min(self.solved.columns.nprocs, self.solved.columns.nblocks)

    @property
    def looks_left(self) -> bool:
        """Whether panels are rows of T, so that a panel of a T that is split by rows is one block in memory."""
        rows, columns = self.operands.triangle.rows.canonical, self.operands.triangle.columns.canonical
        return rows.nprocs > 1 and columns.nprocs == 1 and not self.fixed

    def steps(self) -> Iterator[TrsmStep]:
        """The steps, in the order in which X is computed: from the first row if T is lower, else from the last."""
        n, triangle, lower = self.order, self.operands.triangle, self.operands.lower
        pieces = list(cut(triangle.rows if self.looks_left else triangle.columns, 0, n, self.width))
        if self.fixed:
            pieces = [(k0, min(k0 + self.width, n)) for k0 in range(0, n, self.width)]
        for k0, k1 in pieces if lower else reversed(pieces):
            if self.looks_left:
                yield TrsmStep(k0, k1, (k0, k1), (0, k0) if lower else (k1, n))
            else:
                yield TrsmStep(k0, k1, (k1, n) if lower else (0, k0), (k0, k1))

    def at_solvers(self, rows: int, columns: int) -> Placement:
        """A part of T, with these numbers of rows and columns, on every rank that has right-hand sides."""
        down, across = (Split(size, max(size, 1), 1) for size in (rows, columns))
        solved = self.solved
        return Placement(down, across, (1, 1, solved.strides[1]), max(1, self.nsolvers), solved.start, solved.ranks)

    # Elements that move

    def is_solver(self, rank: int) -> bool:
        """Whether a rank has right-hand sides."""
        return self.solved.local_shape(rank)[1] > 0

    def received_elements(self, rank: int) -> int:
        """Elements of the triangle, of B and of X that `rank` receives from other ranks, or reads in their memory."""
        if not self.reads:
            return 0
        count = received_count(self.operands.right, self.solved, rank)
        count += 0 if self.stays else received_count(self.solved, self.operands.result, rank)
        if self.is_solver(rank):
            count += self.order * (self.order + 1) // 2 - self.own_elements(rank)
        return count

    def sent_elements(self, rank: int) -> int:
        if not self.reads:
            return 0
        pairs = [(self.operands.right, self.solved)]
        if not self.stays:
            pairs.append((self.solved, self.operands.result))
        count = sum(sent_count(*pair, rank) for pair in pairs)
        readers = self.nsolvers - self.is_solver(rank)
        return count + self.own_elements(rank) * readers // self.operands.triangle.copies

    def phases(self, view: View) -> Iterator[Phase]:
        """Panels are taken as equal: each is multiplied with half of T's rows, and arrives with an equal share of T.

        T comes from the ranks that hold it in proportion to their shares of the rows and columns.
        """
        operands, itemsize = self.operands, self.itemsize
        if not self.reads:
            yield Phase(1, copied=itemsize * prod(operands.result.local_shape(view.rank)))
            return
        yield self._redistribution(view, operands.right, self.solved)
        triangle, n, pushes = operands.triangle, self.order, view.transport == "push"
        if pushes:
            yield Phase(1, rounds=(0, 0, _ON_A_GPU if self.nprocs == 1 else _ON_GPUS))
        if self.is_solver(view.rank):
            arrives = itemsize * (n * (n + 1) // 2 - self.own_elements(view.rank))
            split = triangle.rows if self.looks_left else triangle.columns
            steps, columns = max(1, cut_count(split, 0, n, self.width)), self.solved.local_shape(view.rank)[1]
            peers = [rank for rank in self.extreme_ranks() if rank != view.rank and self.own_elements(rank)]
            for many, depth, nbytes in even(steps, n, arrives):
                traffic = spread(view, peers, nbytes)
                copied = 0 if view.transport == "shared" else 2 * nbytes
                # X[k] = T[k, k]^-1 X[k], X[i] -= T[i, k] X[k]   (panel k of T, this rank's columns of X)
                gemm = (n - depth) // 2 + solve_rows(depth), columns, depth
                waiting = pushes * depth * _COLUMN_ON_GPUS * MICROSECOND_ON_GPUS
                yield Phase(many, gemm, traffic, copied=copied, panel=waiting)
        if not self.stays:
            yield self._redistribution(view, self.solved, operands.result)

    @property
    def workspace_nbytes(self) -> int:
        """X if it is computed in workspace, two panels of T, and copies and messages of all three matrices."""
        if not self.reads or self.is_whole:
            return 0
        operands, n, ranks = self.operands, self.order, self.extreme_ranks()
        triangle, width = operands.triangle, min(self.width, n)
        count = 0 if self.stays else n * self.solved.columns.max_count
        count += 2 * width * (n + width)
        if self.transport == "mixed":  # a host receives once what its ranks need
            count += 3 * width * (n + width)
        if self.transport != "message":
            for place in (triangle, operands.right):
                count += place.rows.max_count * place.columns.max_count
        if self.transport != "shared" and self.nprocs > 1:
            count += _SPARE * 2 * width * (n + width) * (1 + self.nsolvers)
            pairs = (operands.right, self.solved), (self.solved, operands.result)
            for source, target in pairs:
                count += max(received_count(source, target, rank) + sent_count(source, target, rank) for rank in ranks)
        return self.itemsize * count

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Those of the operands, and that in which X is computed."""
        return self.solved, self.operands.triangle, self.operands.right, self.operands.result

    # Text

    def moves(self) -> str:
        if not self.reads:
            return "nothing: X is 0" if prod(self.solved.shape) else "nothing: X is empty"
        panels = f"panels of A's triangle to the {self.nsolvers} ranks that have right-hand sides"
        if self.nsolvers == self.nprocs:
            panels = "panels of A's triangle to all ranks"
        if self.stays:
            same = same_place(self.operands.right, self.solved)
            return panels if same else f"B to the layout of X, then {panels}"
        return f"B to an even split of its right-hand sides, then {panels}, then X to its layout"

    def detail_lines(self) -> Iterator[tuple[str, str]]:
        looking = "rows (left-looking)" if self.looks_left else "columns (right-looking)"
        if self.reads:
            yield "panels", f"{self.width} {looking}, {'forwards' if self.operands.lower else 'backwards'}"
