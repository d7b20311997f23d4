"""Plans of a matrix and vectors: products, also with a triangle, and updates of local elements; integers only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, NamedTuple

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.triangle import Part, flipped
from pblas.plans.base import StationaryPlan
from pblas.simulation.hardware import ITEMSIZE, Transport
from pblas.simulation.phase import Phase, Traffic, View

_ABSOLUTE_WIDTH = 64
_FEW = 4  # number of ranks up to which all partial results go to all ranks: one exchange instead of two


class Term(NamedTuple):
    """One product with the elements of the part."""

    transposed: bool = False
    conj: bool = False
    strict: bool = False

    def flipped(self, *, transposed: bool = False, conj: bool = False) -> Term:
        """The same product with the elements of the transposed matrix, or of the conjugate one."""
        return self._replace(transposed=self.transposed != transposed, conj=self.conj != conj)


@dataclass(frozen=True, slots=True)
class MatrixVectorPlan(StationaryPlan):
    """Every rank gets the vector and multiplies its own elements; the partial results are added on all ranks.

    The matrix does not move. A rank receives the elements of x that it lacks, and partial results: those of the other
    ranks' rows of op(A), or of all elements if the result is a sum of two products. If more than 4 ranks have partial
    results of the same elements, each adds a part of the elements, and receives the sums of the others, so that the
    length of the vectors limits what a rank receives. Partial results are added in the order of ranks. Of the ranks
    that hold the same elements only the first multiplies. If op(A) is row-wise and the result is divided as its rows,
    the results stay where they are.

    >>> plan = MatrixVectorPlan(MatrixDescriptor.row_wise(8, 8, 4), "all", (Term(),), "float64", 4)
    >>> plan.received_elements(0), plan.length, replace(plan, stays=True).received_elements(0)
    (12, 8, 6)
    """

    name: ClassVar[str] = "MatrixVectorPlan"
    why: ClassVar[str] = "each rank multiplies its own elements of A, which does not move"

    a: MatrixDescriptor  # distribution of the matrix (global)
    part: Part  # all of it, or the triangle that is read (global)
    terms: tuple[Term, ...]  # the products whose sum is the result: two for a symmetric matrix (global)
    dtype: str
    nprocs: int
    transport: Transport = "message"
    hermitian: bool = False  # imaginary parts of the diagonal are not read (global)
    absolute: str = ""  # "" multiplies the elements, "abs" their absolute values, "abs1" |Re| + |Im| of them (global)
    replicated: bool = False  # every rank has the vector already (global)
    stays: bool = False  # only the rank that computes an element of the result needs it (global)

    @property
    def T(self) -> MatrixVectorPlan:
        """The same products with the transposed matrix."""
        terms = tuple(term.flipped(transposed=True) for term in self.terms)
        return replace(self, a=self.a.T, part=flipped(self.part), terms=terms)

    @property
    def length(self) -> int:
        """Elements of the result."""
        return self.a.n if self.terms[0].transposed else self.a.m

    @property
    def vector_length(self) -> int:
        """Elements of the vector."""
        return self.a.m if self.terms[0].transposed else self.a.n

    @property
    def partial_dtype(self) -> str:
        """Name of the dtype of partial results: 32 bits at least, real for absolute values."""
        if self.absolute and self.dtype.startswith("complex"):
            return "float64" if self.dtype == "complex128" else "float32"
        return self.dtype if ITEMSIZE[self.dtype] > 2 else "float32"

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.partial_dtype]

    @property
    def width(self) -> int | None:
        """The most columns of a rectangle that is multiplied at once; None: `layouts.triangle.rectangles` chooses."""
        return _ABSOLUTE_WIDTH if self.absolute else None

    @property
    def is_whole(self) -> bool:
        """Whether a rank has partial results of all elements; otherwise it has those of its rows of op(A)."""
        return len(self.terms) > 1 or not (self.gathers or self.stays)

    @property
    def gathers(self) -> bool:
        """Whether every rank gets all partial results; otherwise it gets those that it adds, and the others' sums."""
        return self.nprocs <= _FEW or self._contributions <= self.length

    @property
    def _contributions(self) -> int:
        """Partial results of all ranks."""
        if len(self.terms) > 1:
            return self.nprocs * self.length
        added = self.a.rows if self.terms[0].transposed else self.a.columns
        holders = sum(added.count(p) > 0 for p in range(1 if added.is_replicated else added.nprocs))
        return holders * self.length

    def contributed_elements(self, rank: int) -> int:
        """Partial results of a rank that gathers them, or leaves them where they are."""
        if len(self.terms) > 1:
            return self.length
        return self.a.local_shape(rank)[self.terms[0].transposed] if self.contributes(rank) else 0

    def exchanged_elements(self, rank: int, peer: int) -> int:
        """Elements that `rank` receives from `peer`: a part of x, terms of its sums, and the sums of the peer."""
        vector = 0 if self.replicated else self._part(self.vector_length, peer)
        if self.stays:
            return vector
        if self.gathers:
            return vector + self.contributed_elements(peer)
        return vector + self._part(self.length, rank) + self._part(self.length, peer)

    def received_elements(self, rank: int) -> int:
        """Elements from all other ranks; x and the sums are counted as if they were divided evenly."""
        if self.nprocs == 1:
            return 0
        own = self._part(self.length, rank)
        vector = 0 if self.replicated else self.vector_length - self._part(self.vector_length, rank)
        if self.stays:
            return vector
        if self.gathers:
            return vector + self._contributions - self.contributed_elements(rank)
        return vector + (self.nprocs - 1) * own + self.length - own

    def sent_elements(self, rank: int) -> int:
        if self.nprocs == 1:
            return 0
        own = self._part(self.length, rank)
        vector = 0 if self.replicated else self._part(self.vector_length, rank)
        if self.stays:
            return (self.nprocs - 1) * vector
        if self.gathers:
            return (self.nprocs - 1) * (vector + self.contributed_elements(rank))
        return (self.nprocs - 1) * (vector + own) + self.length - own

    def _part(self, length: int, rank: int) -> int:
        """Elements of a rank in an even division."""
        return length // self.nprocs + (rank < length % self.nprocs)

    @property
    def lower_bound(self) -> float:
        return self.length - self.length // self.nprocs if self.nprocs > 1 and not self.stays else 0

    @property
    def flops(self) -> int:
        m, n = self.a.shape
        elements = m * n if self.part == "all" else min(m, n) * (min(m, n) + 1) // 2
        return 2 * elements * len(self.terms)

    def phases(self, view: View) -> Iterator[Phase]:
        """Each rank reads its elements once, which memory limits; the vectors arrive in the same step."""
        traffic = Traffic()
        for peer in range(self.nprocs):
            if peer != view.rank:
                traffic += view.traffic(peer, self.itemsize * self.exchanged_elements(view.rank, peer))
        yield Phase(1, before=traffic, copied=self.operands_nbytes(view.rank))

    @property
    def workspace_nbytes(self) -> int:
        """The vector, the partial results and the results."""
        results = self.length
        if not self.stays:
            results += self._contributions if self.gathers else self.length
        return self.itemsize * (self.vector_length + results)

    def moves(self) -> str:
        if self.nprocs == 1:
            return "nothing"
        vector = "" if self.replicated else f"x, {self.vector_length:,} elements, to all ranks"
        if self.stays:
            return vector or "nothing"
        return f"{vector}{'; ' * bool(vector)}partial results, of {self.length:,} elements, added on all ranks"

    def title(self) -> str:
        what = {"all": "matrix", "U": "upper triangle of a matrix", "L": "lower triangle of a matrix"}[self.part]
        return f"{what} times vector, {self.sizes}"


@dataclass(frozen=True, slots=True)
class LocalPlan(StationaryPlan):
    """Every rank gets vectors, if the operation has any, and updates its own elements of a matrix.

    >>> column = MatrixDescriptor.row_wise(8, 1, 4)
    >>> plan = LocalPlan("update", MatrixDescriptor.row_wise(8, 8, 4), "float64", 4, columns=(column, column))
    >>> plan.received_elements(0), plan.sent_elements(0), plan.lower_bound
    (12, 12, 0.0)
    """

    name: ClassVar[str] = "LocalPlan"
    why: ClassVar[str] = "each rank updates its own elements of A, which does not move"

    what: str
    a: MatrixDescriptor
    dtype: str
    nprocs: int
    transport: Transport = "message"
    columns: tuple[MatrixDescriptor, ...] = ()

    def received_elements(self, rank: int) -> int:
        """Elements of the vectors that other ranks hold."""
        return sum(column.m - prod(column.local_shape(rank)) for column in self.columns)

    def sent_elements(self, rank: int) -> int:
        return (self.nprocs - 1) * sum(prod(column.local_shape(rank)) for column in self.columns)

    @property
    def workspace_nbytes(self) -> int:
        """The vectors."""
        return ITEMSIZE[self.dtype] * sum(column.m for column in self.columns)

    def moves(self) -> str:
        if self.nprocs == 1 or not self.columns:
            return "nothing"
        return f"vectors, {sum(column.m for column in self.columns):,} elements, to all ranks"

    def title(self) -> str:
        return f"{self.what}, {self.sizes}"
