"""The plan of eigenvalues and eigenvectors of a Hermitian matrix, as a value of integers.

A = Q T Q^H with T real tridiagonal, T = S diag(w) S^T, V = Q S:

    W := A                               (block columns on 1 x P ranks, or one rank)
    T := Q^H W Q, Q over W               (tridiagonalization: each rank multiplies its columns with a vector)
    S, w of T                            (divide and conquer: each rank begins with some rows, pairs of groups merge)
    Z := Q S                             (block reflectors: each rank has columns of Z)
    V := Z                               (in the layout of A)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal, NamedTuple

from pblas.factor.factorization_plan import FactorizationPlan, Panel, columns_from, panels
from pblas.factor.with_factor_plan import PanelReflectorsPlan
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.trapezoid import Trapezoid
from pblas.plans.base import Plan, ranks_text
from pblas.redistribution.redistribution_plan import RedistributionPlan, described
from pblas.simulation.hardware import LAPTOP, Transport
from pblas.simulation.phase import Phase, View

_ASK_ALL = 64  # largest number of ranks that are all examined to find the busiest
_DIRECT = 4
"""Products of n x n matrices that take the time of the library's vectors, from those of T (H200, float64, n = 8192)."""
_BAND, _BAND_VECTORS = 5, 13  # such products in the time of values by way of a band, and of values and vectors
_BAND_ARRAYS = 8  # arrays of as many columns as a band has, at most, on the way to it
_STRIP = 64
"""Columns of a strip on each rank, at least: a product reads them twice, the second time from a cache."""


_HOST_BAND, _HOST_BAND_FROM = 48, 4096
"""Diagonals below that of a band by way of which one host finds real eigenvalues without vectors, and the order from
which that is faster: for 4096 columns, whose triangle is too large for the caches, it takes 0.73 of the time of xSYTRD
in float64 and 0.93 in float32, for 3072 1.06 and 1.30 (AMD EPYC, 2 threads)."""
_ROBUST_FROM = 5
"""Least number of columns for each wanted vector with which these are found one by one: they then take a third of the
time of divide and conquer for 1024 columns, half of it for 2048 (AMD EPYC, 2 ranks)."""
_ROBUST = 6000  # multiplications of a product that takes the time of an element of a vector (AMD EPYC, one thread)


class Merge(NamedTuple):
    """Ranks lo..mid-1 and mid..hi-1 of divide and conquer, whose two eigenproblems become one."""

    lo: int
    mid: int
    hi: int


@dataclass(frozen=True, slots=True)
class BandPlan(FactorizationPlan):
    """A = Q B Q^H with a band B, by block columns as wide as the band; T of reflectors is in the last rows of W."""

    name: ClassVar[str] = "BandPlan"
    operation: ClassVar[str] = "eigh"
    equation: ClassVar[str] = "A = Q B Q^H"
    projection: ClassVar[float] = 0.0

    members: int = 1  # ranks, from 0 on, that keep all panels: they divide and conquer (global)

    @property
    def multiplications(self) -> float:
        """A V T, and the update of both triangles with twice as many vectors."""
        return float(self.a.n) ** 3

    def rows(self, panel: Panel) -> tuple[int, int]:
        """The rows from the diagonal on, and those of T."""
        return panel.start, self.w.m

    @property
    def nreaders(self) -> int:
        """Every member keeps all panels."""
        return self.members

    def needs(self, panel: Panel, rank: int) -> bool:
        """Every member does."""
        return rank < self.members


@dataclass(frozen=True, slots=True)
class EighPlan(Plan):
    """A V = V diag(w) for a Hermitian A, of which one triangle is read; or w alone.

    >>> a = MatrixDescriptor.row_wise(9, 9, 3)
    >>> w, z = MatrixDescriptor.column_wise(11, 9, 3, nb=2), MatrixDescriptor.column_wise(9, 9, 3)
    >>> plan = EighPlan(a, w, z, a, "many columns", "float64", 3)
    >>> plan.merges(0), plan.merges(2)
    ([Merge(lo=0, mid=1, hi=2), Merge(lo=0, mid=2, hi=3)], [Merge(lo=0, mid=2, hi=3)])
    >>> [plan.rows(rank) for rank in range(3)]
    [(0, 3), (3, 6), (6, 9)]
    """

    name: ClassVar[str] = "EighPlan"

    a: MatrixDescriptor  # distribution of A (global)
    # distribution of W, on one rank or on all; its last rows are for T of reflectors, see `QrPlan` (global)
    w: MatrixDescriptor
    z: MatrixDescriptor  # distribution of Z: columns of the ranks that divide and conquer (global)
    v: MatrixDescriptor  # distribution of V (global)
    why: str  # the rule that chose W (global)
    dtype: str
    nprocs: int
    transport: Transport = "message"
    uplo: Literal["L", "U"] = "L"  # the triangle of A that is read (global)
    vectors: bool = True  # whether V is computed, not w alone (global)
    library: Literal["cuSOLVER", "LAPACK"] = "LAPACK"
    direct: bool = False  # whether rank 0 computes w, and V in W, by one routine of the device (global)
    bandwidth: int = 0  # of the band by way of which GPUs compute w and V; 0 for other ways (global)

    # The tridiagonalization

    @property
    def target(self) -> MatrixDescriptor:
        """Distribution of the rows of W above those of T."""
        return self.w.submatrix(0, self.a.m, 0, self.a.n)

    @property
    def is_split(self) -> bool:
        """Whether several ranks have columns of W, with both triangles of A."""
        return self.w.nprocs > 1

    @property
    def host_band(self) -> int:
        """Diagonals below that of a band to which LAPACK's rank reduces W first; 0 if it does not (global)."""
        takes = not (self.vectors or self.is_split or self.direct or self.bandwidth or self.dtype.startswith("complex"))
        return _HOST_BAND if takes and self.a.n >= _HOST_BAND_FROM else 0

    @property
    def steps(self) -> list[Panel]:
        """The panels of W, in order."""
        return panels(self.w)

    @property
    def strip(self) -> int:
        """Columns of all ranks that are multiplied at a time, a whole number of panels of each rank (global)."""
        return -(-_STRIP // self.w.nb) * self.w.nb * self.w.nprocs

    @property
    def reduction(self) -> BandPlan:
        """The plan of the reduction to a band."""
        form = self.target, self.w, self.why, self.dtype, self.nprocs, self.transport
        return BandPlan(*form, members=self.members)

    @property
    def reflectors(self) -> MatrixDescriptor:
        """Distribution of the reflectors in W, in the form of a `QrPlan` of n - 1 columns."""
        return self.w.submatrix(1, self.w.m, 0, self.a.n - 1)

    # Divide and conquer

    @property
    def members(self) -> int:
        """Number of ranks that divide and conquer (global)."""
        return self.z.nprocs

    @property
    def is_robust(self) -> bool:
        """Whether vectors of T are found one by one, each rank some, without divide and conquer (global)."""
        return self.vectors and not self.direct and not self.bandwidth and 0 < self.z.n * _ROBUST_FROM <= self.a.n

    def rows(self, rank: int) -> tuple[int, int]:
        """Rows (start, stop) of T with which a rank begins."""
        return self.a.n * rank // self.members, self.a.n * (rank + 1) // self.members

    def merges(self, rank: int) -> list[Merge]:
        """The merges in which a rank takes part, from its own rows to all."""
        merges, lo, hi = list[Merge](), 0, self.members
        while hi - lo > 1 and rank < hi:
            mid = (lo + hi + 1) // 2
            merges.append(Merge(lo, mid, hi))
            lo, hi = (lo, mid) if rank < mid else (mid, hi)
        return merges[::-1]

    def span(self, lo: int, hi: int) -> tuple[int, int]:
        """Rows (start, stop) of T of the ranks lo..hi-1."""
        return self.rows(lo)[0], self.rows(hi - 1)[1]

    def shares(self, count: int, lo: int, hi: int) -> list[tuple[int, int]]:
        """For each of the ranks lo..hi-1 the vectors (start, stop) that it computes, of `count`: even blocks."""
        block = max(1, -(-count // (hi - lo)))
        return [(min(i * block, count), min((i + 1) * block, count)) for i in range(hi - lo)]

    def merged_elements(self, rank: int) -> int:
        """Elements that a rank receives for vectors of T: those of both halves in merges, or all, found one by one.

        GPUs compute both halves by themselves.
        """
        total = 0
        if self.is_robust:
            return self.a.n * (self.z.n - self.z.local_shape(rank)[1])
        if self.bandwidth or not self.vectors:
            return total
        for lo, mid, hi in self.merges(rank):
            for first, last in ((lo, mid), (mid, hi)):
                start, stop = self.span(first, last)
                n = stop - start
                shares = self.shares(n, first, last)
                mine = shares[rank - first] if first <= rank < last else (0, 0)
                total += n * (n - (mine[1] - mine[0]))
        return total

    # Bytes

    @property
    def copies(self) -> list[RedistributionPlan]:
        """The redistributions of A to W: of one triangle, and of its adjoint where both are needed."""
        ranks, to = (self.dtype, self.nprocs), self.transport
        other: Literal["L", "U"] = "U" if self.uplo == "L" else "L"
        if not self.is_split:
            trans: Literal["N", "C"] = "N" if self.uplo == "L" else "C"
            return [RedistributionPlan(self.a, self.target, *ranks, trans, Trapezoid("L"), transport=to)]
        strict = Trapezoid(other, 1 if other == "U" else -1)
        return [
            RedistributionPlan(self.a, self.target, *ranks, "N", Trapezoid(self.uplo), transport=to),
            RedistributionPlan(self.a, self.target, *ranks, "C", strict, transport=to),
        ]

    @property
    def back(self) -> list[RedistributionPlan]:
        """The redistribution of Z to V."""
        return [RedistributionPlan(self.z, self.v, self.dtype, self.nprocs, transport=self.transport)][: self.vectors]

    @property
    def transformation(self) -> list[PanelReflectorsPlan]:
        """The product of Q with Z."""
        if self.direct or self.bandwidth or not self.vectors or self.a.n < 2:
            return []
        z = self.z.submatrix(1, self.z.m, 0, self.z.n)
        return [PanelReflectorsPlan(self.reflectors, z, self.dtype, self.nprocs, self.transport)]

    def reduction_elements(self, panel: Panel, rank: int) -> int:
        """Elements that a rank receives for a panel: the panel, and of each column the products of the other ranks."""
        n, (start, stop) = self.a.n, panel[:2]
        if not self.is_split and not self.bandwidth:
            return 0
        if self.bandwidth:
            if rank >= self.members:
                return 0
            own = columns_from(self.w, stop, rank) if self.is_split else 0
            return panel.width * ((self.w.m - start) * (panel.owner != rank) + (n - stop - own) * (own > 0))
        vectors = sum(n - j - 1 for j in range(start, stop)) * (self.w.nprocs - 1)
        return vectors + (n - start) * (stop - start) * (panel.owner != rank)

    def received_elements(self, rank: int) -> int:
        reduced = sum(self.reduction_elements(panel, rank) for panel in self.steps)
        others = sum(plan.received_elements(rank) for plan in (*self.copies, *self.transformation, *self.back))
        return reduced + others + self.merged_elements(rank)

    def sent_elements(self, rank: int) -> int:
        """As many as it receives, to first order, except in the redistributions."""
        reduced = sum(self.reduction_elements(panel, rank) for panel in self.steps)
        others = sum(plan.sent_elements(rank) for plan in (*self.copies, *self.transformation, *self.back))
        return reduced + others + self.merged_elements(rank)

    def phases(self, view: View) -> Iterator[Phase]:
        for copy in self.copies:
            yield from copy.phases(view)
        rank, n = view.rank, self.a.n
        cores = 1 if self.is_split else min(view.ranks_per_node, view.nprocs)  # LAPACK on one rank has those of all
        for panel in self.steps if self.is_split or self.bandwidth or rank == 0 else ():
            below, width = n - panel.start, panel.width
            # W -= V W^H + W V^H   (trailing update, and width products of W with a vector, bound by memory)
            peer = next(p for p in range(self.w.nprocs + 1) if p != rank)
            traffic = view.traffic(peer, self.itemsize * self.reduction_elements(panel, rank))
            gemm = below, max(1, below // (2 * self.w.nprocs)), 2 * width
            if self.bandwidth:
                yield Phase(1, (0, 0, 0), before=traffic)
            elif self.host_band:  # W is read twice and written once for each block of the band
                copied = 3 * self.itemsize * gemm[0] * gemm[1] * width // self.host_band
                yield Phase(1, (*gemm[:2], 2 * gemm[2]), before=traffic, copied=copied, cores=cores)
            else:
                copied = self.itemsize * gemm[0] * gemm[1] * width
                yield Phase(1, gemm, before=traffic, copied=copied, cores=cores)
        if self.bandwidth and rank < self.members:
            columns = -(-self.z.n // self.members) * self.vectors
            yield Phase(1, (n, n, _BAND * n // self.w.nprocs + (_BAND_VECTORS - _BAND) * columns))
        elif self.is_robust:
            traffic = view.traffic(int(rank == 0), self.itemsize * self.merged_elements(rank))
            yield Phase(1, (n, self.z.local_shape(rank)[1], _ROBUST + 2 * self.z.n), before=traffic)
        elif self.vectors:
            merges = self.merges(rank)
            total = self.itemsize * self.merged_elements(rank)
            for k, merge in enumerate(merges):
                start, stop = self.span(merge.lo, merge.hi)
                part = total * (k + 1) // len(merges) - total * k // len(merges)
                peer = merge.lo if rank != merge.lo else merge.mid
                size = stop - start
                # Z := [S1 0; 0 S2] U, for this rank's columns
                columns = -(-size // (merge.hi - merge.lo))
                yield Phase(1, (size, columns, -(-size // 2)), before=view.traffic(peer, part))
            if self.direct and rank == 0:
                yield Phase(1, (n, n, _DIRECT * n))
        for plan in (*self.transformation, *self.back):
            yield from plan.phases(view)

    def operands_nbytes(self, rank: int) -> int:
        return self.itemsize * (prod(self.a.local_shape(rank)) + self.vectors * prod(self.v.local_shape(rank)))

    @property
    def workspace_nbytes(self) -> int:
        """W and Z, S of two halves and their products, and the messages of redistributions."""
        elements = self.w.max_stored_nelements
        if not self.direct:  # Z, unless it is V
            elements += self.z.max_stored_nelements * (self.vectors and self.z != self.v)
            elements += 4 * self.w.nb * self.a.n * (not self.bandwidth)
        others = (*self.copies, *self.transformation, *self.back)
        return self.itemsize * elements + self.transient_nbytes + max(plan.workspace_nbytes for plan in others)

    @property
    def transient_nbytes(self) -> int:
        """S of two halves and their products, or what the routine takes that computes all on one rank."""
        n = self.a.n
        if self.bandwidth:  # divide and conquer takes three real arrays, and V is complex if A is
            arrays = (self.members > 1) + (0 if not self.vectors else 3 if self.dtype.startswith("float") else 2.5)
            return int(self.itemsize * (arrays * (n + 2 * self.bandwidth) + _BAND_ARRAYS * self.bandwidth) * n)
        if self.direct:
            return self.itemsize * (1 + self.vectors) * n * n * (2 if self.library == "cuSOLVER" else 1)
        elements = 2 * n * n if self.members == 1 else 3 * n * n // 2
        return self.itemsize * elements * self.vectors

    @property
    def buffer_nbytes(self) -> int:
        """None: executors keep no memory between calls."""
        return 0

    @property
    def flops(self) -> int:
        """4/3 n^3 for T; with vectors 4/3 n^3 for S at most, and 2 n^2 for each of them."""
        n, count = self.a.n, 4 if self.dtype.startswith("complex") else 1
        reduction, back = count * 4 * n**3 // 3, count * 2 * n * n * self.z.n
        return reduction + (back + 4 * n**2 * self.z.n // 3 if self.vectors else 0)

    def extreme_ranks(self) -> set[int]:
        """All ranks of few; of many, the first ones and the last ones of all layouts."""
        if self.nprocs <= _ASK_ALL:
            return set(range(self.nprocs))
        return {0, 1, 2, *(x - 1 for x in (self.w.nprocs, self.a.nprocs, self.members, self.v.nprocs, self.nprocs))}

    # Texts

    @property
    def sizes(self) -> str:
        return f"{self.a.m} x {self.a.n}"

    def title(self) -> str:
        count = "" if self.z.n == self.a.n else f", {self.z.n} of them"
        return f"{'A V = V diag(w)' if self.vectors else 'eigenvalues'}, {self.sizes}{count}"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        yield "A", f"{described(self.a)}; the {'lower' if self.uplo == 'L' else 'upper'} triangle is read"
        how = f"tridiagonalized in place, the last {self.w.m - self.a.m} rows for T"
        yield "W", f"{described(self.w)}; {'for the eigenvectors' if self.direct else how}"
        if self.vectors:
            yield "V", described(self.v)

    def moves(self) -> str:
        if self.nprocs == 1:
            return "nothing"
        parts = ["A to W"]
        if self.is_split:
            parts.append(f"panels and products of W with {'panels' if self.bandwidth else 'vectors'} to all ranks")
        elif self.bandwidth and self.members > 1:
            parts.append("panels of W to all ranks")
        if self.vectors and self.members > 1 and not self.bandwidth:
            parts.append("vectors of T to all ranks" if self.is_robust else "vectors of both halves in each merge")
        if self.vectors and not self.direct and not self.bandwidth:
            parts.append("reflectors to every rank with columns of Z")
        if self.vectors:
            parts.append("Z to the layout of A")
        return ", ".join(parts)

    def detail_lines(self) -> Iterator[tuple[str, str]]:
        yield from self._stage_lines()
        machine = "fat-tree" if self.nprocs > LAPTOP.ranks_per_node else "laptop"
        machine = "nvlink" if self.library == "cuSOLVER" else machine
        share = self.simulate(machine).efficiency
        yield "operations", f"{self.flops:,}, at {share:.0%} of the GEMM rate on hardware like {machine!r}"

    def _stage_lines(self) -> Iterator[tuple[str, str]]:
        """Lines of `explain` about the stages."""
        ranks = ranks_text(self.w.nprocs)
        if self.bandwidth:
            yield (
                "reduction",
                f"two stages: a band of {self.bandwidth} by products on {ranks}, bulge chasing by a kernel",
            )
            yield "T", "divide and conquer" if self.vectors else "bisection by a kernel"
            if self.vectors:
                members = ranks_text(self.members)
                yield "back", f"block reflectors of the bulges, then of the band; {members}, each its columns of V"
            return
        if self.direct:
            yield "solver", f"{self.library}'s xSYEVD, on rank 0"
            return
        how = f"one stage, {len(self.steps)} panels of {self.w.nb} columns on {ranks}"
        if not self.is_split:
            how = f"two stages: a band of {self.host_band} by products, then" if self.host_band else "one stage,"
            how += " by LAPACK on rank 0, with the cores of all ranks of its host"
        yield "reduction", how
        if self.vectors:
            depth = len(self.merges(0))
            merged = f", then {depth} level{'s' * (depth != 1)} of merges" if depth else ""
            how = f"divide and conquer on {ranks_text(self.members)}, each its rows by LAPACK{merged}"
            if self.is_robust:
                how = f"relatively robust representations on {ranks_text(self.members)}, each some vectors by LAPACK"
            yield "T", how
            yield "back", f"block reflectors, each of {ranks_text(self.nprocs)} its columns of Z"
        else:
            yield "T", "QR iteration without vectors, by LAPACK on rank 0"
