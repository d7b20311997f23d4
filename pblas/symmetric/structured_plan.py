"""Products in which one matrix has a triangle: rank-k updates, and products with a triangular or symmetric matrix.

They are general products with a stationary D that leave out what the triangle makes superfluous: a rank-k update forms
only the triangle of D, a triangular product multiplies only the triangle of op(A). A symmetric op(A) is completed
first: every rank receives the mirrored elements of its shard. Then any plan of a product multiplies it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from pblas.layouts.messages import received_count
from pblas.layouts.placement import Placement
from pblas.layouts.rectangles import LEAF, Rectangle, area, rectangles
from pblas.layouts.split import Split
from pblas.layouts.trapezoid import Trapezoid
from pblas.matmul.product_plan import Finishes, Product, ProductPlan
from pblas.matmul.summa_plan import Panel, SummaC, column_of
from pblas.plans.base import Plan
from pblas.redistribution.redistribution_plan import moved
from pblas.simulation.hardware import Transport
from pblas.simulation.phase import Phase, View

Uplo = Literal["U", "L"]

_COUNTED = 8192
"""Largest order of a triangle whose elements in messages are counted; of larger ones half the square is estimated."""


@dataclass(frozen=True, slots=True)
class Structure:
    """The structure of a square matrix of which only one triangle is read.

    >>> Structure("triangular", "L", unit=True).T.stored
    Trapezoid(uplo='U', diagonal=1)
    """

    kind: Literal["triangular", "symmetric", "Hermitian"]
    uplo: Uplo
    unit: bool = False

    @property
    def T(self) -> Structure:
        """The structure of the transposed matrix."""
        return replace(self, uplo="L" if self.uplo == "U" else "U")

    @property
    def stored(self) -> Trapezoid:
        """The elements that are read."""
        return Trapezoid(self.uplo, 0 if not self.unit else 1 if self.uplo == "U" else -1)

    @property
    def mirrored(self) -> Trapezoid:
        """The other triangle, without the diagonal."""
        return Trapezoid("U", 1) if self.uplo == "L" else Trapezoid("L", -1)


def least_touched(volume: float, least: Sequence[float]) -> float:
    """The least sum of numbers x_i >= least[i] whose product is `volume`.

    A rank that multiplies V triples (i, j, k) touches x, y, z elements of three matrices with x y z >= V^2.

    >>> least_touched(8.0, [1.0, 1.0, 1.0]), least_touched(8.0, [4.0, 1.0, 1.0])
    (6.0, 6.82842712474619)
    """
    free, total, left = sorted(least), 0.0, volume
    while free:
        even = left ** (1 / len(free)) if left > 0 else 0.0
        if free[-1] <= even * (1 + 1e-12):
            return total + even * len(free)
        total, left = total + free[-1], left / free[-1]
        free.pop()
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class RankUpdate(SummaC):
    """One triangle of D = op(A) op(A)^T, or of op(A) op(B)^T + op(B) op(A)^T: each rank forms its part of it."""

    name: ClassVar[str] = "RankUpdate"

    routine: str  # "syrk", "herk", "syr2k" or "her2k" (global)
    uplo: Uplo  # the triangle of D (global)
    terms: int = 1  # number of products that are added (global)
    squares: bool = False  # squares on the diagonal are formed by BLAS's own rank-k or rank-2k update (global)
    leaf: int = LEAF  # most columns of another block across the diagonal (global)

    @property
    def trapezoid(self) -> Trapezoid:
        """The elements of D that are formed and written."""
        return Trapezoid(self.uplo)

    @property
    def swapped(self) -> RankUpdate:
        """The plan of the second term, which exchanges the operands."""
        product = replace(self.product, a=self.product.b.T, b=self.product.a.T)
        return replace(self, product=product, terms=1)

    @property
    def flops(self) -> int:
        n, k = self.product.n, self.product.k
        return self.terms * n * (n + 1) * k * (4 if self.dtype.startswith("complex") else 1)

    def formed(self, rank: int) -> int:
        """Elements of the triangle that a rank forms, nearly."""
        position = self.cuboids.d.coordinates(rank)
        if position is None:
            return 0
        return area(self.cuboids.m, position[0], self.cuboids.n, position[1], self.uplo)

    def typical_ranks(self, ranks_per_node: int) -> Sequence[int]:
        """The rank with the largest part of the triangle, and one that receives much."""
        busiest = max(sorted(self.extreme_ranks()), key=self.formed)
        return list(dict.fromkeys((busiest, SummaC.typical_ranks(self, ranks_per_node)[0])))

    @property
    def busiest_multiplies(self) -> int:
        """Those of the rank with the largest part of the triangle."""
        return self.terms * self.cuboids.k.max_count * max(map(self.formed, self.extreme_ranks()))

    def rectangles(self, rank: int) -> list[Rectangle]:
        """Rectangles of this rank's part of D that it multiplies."""
        position = self.cuboids.d.coordinates(rank)
        if position is None:
            return []
        m, n = self.cuboids.m, self.cuboids.n
        options: Any = {"squares": self.squares, "leaf": self.leaf}
        return list(rectangles(m, position[0], n, position[1], self.uplo, **options))

    def received_elements(self, rank: int) -> int:
        """Elements of the operands that the rank multiplies and does not have."""
        count = SummaC.received_elements(self, rank)
        return count + (SummaC.received_elements(self.swapped, rank) if self.terms == 2 else 0)

    def delivered_nbytes(self, rank: int) -> int:
        """Bytes of the triangles of partial products that a rank receives; half the square if the order is large."""
        whole = SummaC.delivered_nbytes(self, rank)
        if not whole or self.product.n > _COUNTED:
            return -(-whole // 2)
        layers = (self.cuboids.d.layer(l) for l in self.cuboids.layers)
        return self.wire_itemsize * sum(self.trapezoid.received_count(layer, self.sums, rank) for layer in layers)

    def phases(self, view: View) -> Iterator[Phase]:
        """The panels of each term, multiplied in the triangle only, then its elements that other ranks own."""
        n, columns = max(1, self.cuboids.d.local_shape(view.rank)[1]), self.cuboids.n
        rows = -(-self.formed(view.rank) // n)
        for term in (self, self.swapped)[: self.terms]:
            # each block of columns ends at the diagonal, so that blocks are multiplied one by one
            yield from term._panel_phases(view, rows, max(1, min(columns.nblocks, -(-n // columns.nb))))  # noqa: SLF001
        yield from self._delivery(view)

    @property
    def workspace_nbytes(self) -> int:
        """That of the products, and the blocks across the diagonal."""
        products = SummaC.workspace_nbytes.fget(self) * self.terms  # type: ignore[attr-defined]  # a property
        return int(products) + self.transient_nbytes

    @property
    def transient_nbytes(self) -> int:
        """The blocks across the diagonal."""
        return 2 * self.leaf * self.cuboids.n.max_count * max(4, self.itemsize)

    @property
    def lower_bound(self) -> float:
        """Lower bound on the elements that the busiest rank receives, for any layouts without copies.

        A rank that forms f of the n (n - 1) k / 2 products touches x elements of A and y of D with x sqrt(2 y) >= 2 f.

        Source: Al Daas, Ballard, Grigori, Kumar, Rouse, SPAA 2023 (parallel memory-independent bounds for SYRK).
        """
        n, k, p, terms = self.product.n, self.product.k, self.nprocs, self.terms
        triangle = n * (n - 1) / 2
        if not triangle or not k:
            return 0.0
        share = triangle * k / p
        y = min(max((terms * share / math.sqrt(2)) ** (2 / 3), triangle / p), triangle)
        touched = y + terms * 2 * share / math.sqrt(2 * y)
        return max(0.0, touched - (terms * n * k + triangle) / p)

    def title(self) -> str:
        right = f"op(A)^{self._flip}"
        text = f"op(A) {right}" if self.terms == 1 else f"op(A) op(B)^{self._flip} + op(B) {right}"
        return f"{self.routine}: {'lower' if self.uplo == 'L' else 'upper'} triangle of D = {text}, {self.sizes}"

    @property
    def _flip(self) -> str:
        """T or H: whether the second operand of each product is transposed, or conjugated as well."""
        return "H" if self.routine.startswith("he") else "T"

    @property
    def sizes(self) -> str:
        return f"{self.product.n} x {self.product.n} x {self.product.k} (n x n x k)"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        for key, text in SummaC.operand_lines(self):
            if key != "op(B)":
                yield key, text
            elif self.terms == 2:
                yield f"op(B)^{self._flip}", text
        yield "flops", f"{self.flops:,}, half those of the product"

    @property
    def _panels_of(self) -> str:
        """The operands of the products that are added."""
        return f"op(A) and op(A)^{self._flip}" if self.terms == 1 else "op(A) and op(B)"


@dataclass(frozen=True, slots=True, kw_only=True)
class TriangularProduct(SummaC):
    """D = op(A) B with a triangular op(A): the rows of each panel of op(A) in the triangle are moved and multiplied."""

    name: ClassVar[str] = "TriangularProduct"

    structure: Structure  # of op(A) in the plan's orientation (global)
    aliased: bool = False  # D is written over B, so it is formed outside (global)
    leaf: int = LEAF  # most columns of a block across the diagonal (global)
    # whether such a block has all rows of its columns in the triangle: one GEMM for both (global)
    joined: bool = False
    whole: bool = False  # one rank has all matrices, and BLAS's own trmm multiplies (global)

    @property
    def in_place(self) -> bool:
        """Whether each rank multiplies directly into its shard of D."""
        return not self.aliased and bool(SummaC.in_place.fget(self))  # type: ignore[attr-defined]  # a property

    @property
    def flops(self) -> int:
        m, n = self.oriented.m, self.oriented.n
        return m * (m + 1) * n * (4 if self.dtype.startswith("complex") else 1)

    @property
    def busiest_multiplies(self) -> int:
        """Those of the rank whose rows have most elements of the triangle."""
        return self._area(self._most_rows) * self.cuboids.n.max_count // self.cuboids.k.nprocs

    def typical_ranks(self, ranks_per_node: int) -> Sequence[int]:
        """A rank with the largest part of the triangle, and one that receives much."""
        cuboids = self.cuboids
        busiest = cuboids.d.rank(self._most_rows, cuboids.n.src, cuboids.k.src)
        return list(dict.fromkeys((busiest, SummaC.typical_ranks(self, ranks_per_node)[0])))

    def _area(self, coordinate: int) -> int:
        """Elements of the triangle in the rows of a coordinate."""
        return area(
            self.cuboids.m, coordinate, Split(self.oriented.k, max(1, self.oriented.k), 1), 0, self.structure.uplo
        )

    @property
    def _most_rows(self) -> int:
        """The coordinate whose rows have most elements of the triangle."""
        return max(sorted(_corners(self.cuboids.m)), key=self._area)

    def rows_of(self, panel: Panel) -> tuple[int, int]:
        """The rows in which a panel has elements of the triangle."""
        columns, c = self.columns_of(panel)
        if self.structure.uplo == "L":
            return columns.global_from_local(panel.start, c), self.oriented.m
        return 0, columns.global_from_local(panel.stop - 1, c) + 1

    def rectangles(self, panel: Panel, rank: int) -> list[Rectangle]:
        """Rectangles of this rank's part of a panel, whose columns count from the panel's first."""
        position = self.cuboids.a.coordinates(rank)
        if position is None:
            return []
        columns, c = self.columns_of(panel)
        bounds = panel.start, panel.stop
        if self.joined:
            return list(self._joined(panel, position[0], columns, c))
        found = rectangles(self.cuboids.m, position[0], columns, c, self.structure.uplo, *bounds, leaf=self.leaf)
        return [x._replace(c0=x.c0 - panel.start, c1=x.c1 - panel.start) for x in found]

    def _joined(self, panel: Panel, r: int, columns: Split, c: int) -> Iterator[Rectangle]:
        """All rows of every few columns."""
        rows, uplo = self.cuboids.m, self.structure.uplo
        for start in range(panel.start, panel.stop, self.leaf):
            stop = min(start + self.leaf, panel.stop)
            ends = columns.global_from_local(start, c), columns.global_from_local(stop - 1, c) + 1
            before, after = (rows.local_start(min(g, rows.n), r) for g in ends)
            low, high = (before, rows.count(r)) if uplo == "L" else (0, after)
            if low < high:
                yield Rectangle(low, high, start - panel.start, stop - panel.start, before == after)

    def columns_of(self, panel: Panel) -> tuple[Split, int]:
        """The split and the coordinate in which a panel's columns count."""
        if panel.owner is None:
            return Split(self.oriented.k, max(1, self.oriented.k), 1), 0
        return self.a.columns, panel.owner

    def arriving_elements(self, rank: int) -> tuple[int, int]:
        """Elements of op(A) and op(B) that the rank's cuboid needs and the rank does not have."""
        a, position, count = self.a, self.cuboids.a.coordinates(rank), 0
        _, from_b = SummaC.arriving_elements(self, rank)
        if position is None:
            return 0, from_b
        (i, j, l), cuboids, layer = self.cuboids.strides, self.cuboids, position[1]
        for panel in self.panels(layer):
            (r0, r1), width = self.rows_of(panel), panel.stop - panel.start
            place = a if panel.owner is None else column_of(a, panel.owner)
            target = Placement(cuboids.m.part(r0, r1), Split(width, width, 1), (i, 1, j), cuboids.n.nprocs, l * layer)
            count += received_count(place.part(r0, r1, panel.start, panel.stop), target, rank)
        return count, from_b

    def phases(self, view: View) -> Iterator[Phase]:
        """The shard of op(A) is copied, then panels are multiplied in the triangle only."""
        yield Phase(1, copied=3 * self.itemsize * math.prod(self.a.local_shape(view.rank)))
        position, k = self.cuboids.a.coordinates(view.rank), self.oriented.k
        triangle = 0 if position is None else self._area(position[0])
        yield from self._panel_phases(view, -(-triangle // max(1, k)))
        yield from self._delivery(view)

    @property
    def workspace_nbytes(self) -> int:
        """That of the product, and the blocks across the diagonal, with zeros in the other triangle."""
        rows = self.cuboids.m.max_count if self.joined else 2 * self.cuboids.k.max_count
        blocks = self.leaf * rows * self.itemsize
        return SummaC.workspace_nbytes.fget(self) + blocks  # type: ignore[attr-defined]  # a property

    @property
    def lower_bound(self) -> float:
        m, n, p = self.oriented.m, self.oriented.n, self.nprocs
        triangle, share = m * (m + 1) / 2, m * (m + 1) / 2 * n / p
        touched = least_touched(share**2, [triangle / p, m * n / p, m * n / p])
        return max(0.0, touched - (triangle + 2 * m * n) / p) if share else 0.0

    def title(self) -> str:
        kind = (
            f"{'lower' if self.structure.uplo == 'L' else 'upper'} triangular{', unit diagonal' * self.structure.unit}"
        )
        side = "B op(A)" if self.transposed else "op(A) B"
        if self.transposed:
            kind = kind.replace("lower", "_").replace("upper", "lower").replace("_", "upper")
        return f"trmm: D = {side}, {self.product.m} x {self.product.n}, op(A) {kind}"

    @property
    def _panels_of(self) -> str:
        """The triangular operand, and B."""
        return "op(A) and B"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        yield from _named(SummaC.operand_lines(self), transposed=self.transposed)
        yield "flops", f"{self.flops:,}, half those of the product"
        if self.aliased:
            yield "result", "written over B, so it is formed outside first"


@dataclass(frozen=True, slots=True)
class SymmetricProduct(Plan):
    """D = op(A) B with a symmetric op(A): each rank completes its shard of op(A), then the ranks multiply."""

    name: ClassVar[str] = "SymmetricProduct"

    inner: ProductPlan
    structure: Structure
    matrix: Placement
    right: bool = False
    aliased: bool = False  # D is written over the other operand, so it is formed outside first (global)

    @property
    def is_left(self) -> bool:
        """Whether the symmetric operand is the left one in the orientation of the product's plan."""
        return self.right == self.inner.transposed

    @property
    def why(self) -> str:
        """The rule that chose the plan of the product."""
        return f"op(A) is completed, then {self.inner.name}: {self.inner.why}"

    @property
    def dtype(self) -> str:
        """Name of the dtype of all matrices."""
        return self.inner.dtype

    @property
    def nprocs(self) -> int:
        """Ranks that take part."""
        return self.inner.nprocs

    @property
    def transport(self) -> Transport:
        """How the ranks reach each other."""
        return self.inner.transport

    @property
    def product(self) -> Product:
        """The product with the completed matrix."""
        return self.inner.product

    @property
    def transposed(self) -> bool:
        """Whether the product's plan is for D^T."""
        return self.inner.transposed

    @property
    def finishes(self) -> Finishes:
        """The place outside a GEMM where D is rounded."""
        return self.inner.finishes

    @property
    def overlaps_messages(self) -> bool:
        """Whether ranks multiply while messages are under way."""
        return self.inner.overlaps_messages

    @property
    def flops(self) -> int:
        return self.inner.flops

    @property
    def sizes(self) -> str:
        return self.inner.sizes

    def over(self, transport: Transport) -> SymmetricProduct:
        """The same plan with another transport."""
        return replace(self, inner=replace(self.inner, transport=transport))

    def mirrored_elements(self, rank: int) -> int:
        """Elements of op(A) that a rank receives to complete its shard; half the square if the order is large."""
        if self.structure.kind == "triangular":
            return 0
        if self.matrix.rows.n > _COUNTED:
            return -(-received_count(self.matrix.T, self.matrix, rank) // 2)
        return self.structure.mirrored.received_count(self.matrix.T, self.matrix, rank)

    def received_elements(self, rank: int) -> int:
        """The mirrored elements and the elements that the product moves."""
        return self.mirrored_elements(rank) + self.inner.received_elements(rank)

    def received_nbytes(self, rank: int) -> int:
        """Bytes that `rank` receives."""
        return self.mirrored_elements(rank) * self.itemsize + self.inner.received_nbytes(rank)

    def sent_elements(self, rank: int) -> int:
        return self.mirrored_elements(rank) + self.inner.sent_elements(rank)

    def phases(self, view: View) -> Iterator[Phase]:
        """Mirrored elements complete the matrix, then the phases of the product."""
        nbytes = self.itemsize * self.mirrored_elements(view.rank)
        if self.structure.kind == "triangular":
            yield Phase(1, copied=3 * self.itemsize * math.prod(self.matrix.local_shape(view.rank)))
        else:
            yield moved(self.matrix.T, self.matrix, nbytes, self.itemsize, view)
        yield from self.inner.phases(view)

    def operands_nbytes(self, rank: int) -> int:
        return self.inner.operands_nbytes(rank)

    @property
    def completed_nbytes(self) -> int:
        """Bytes of the completed matrix."""
        return self.matrix.rows.max_count * self.matrix.columns.max_count * self.itemsize

    @property
    def workspace_nbytes(self) -> int:
        """That of the product, the completed op(A), and the messages that complete it; D, if it is written over B."""
        copies, product = 1 if self.transport == "shared" else 2, self.product
        elements = (product.d.nelements(rank, product.m, product.n) for rank in self.extreme_ranks())
        beside = self.itemsize * max(elements) if self.aliased else 0
        return self.inner.workspace_nbytes + copies * self.completed_nbytes + beside

    @property
    def lower_bound(self) -> float:
        product, p = self.product, self.nprocs
        order = self.matrix.rows.n
        other = product.m * product.n // order if order else 0
        triangle, share = order * (order + 1) / 2, order * order * other / p
        touched = least_touched(share**2 / 2, [triangle / p, order * other / p, order * other / p])
        return max(0.0, touched - (triangle + 2 * order * other) / p) if share else 0.0

    def extreme_ranks(self) -> set[int]:
        """Those of the product."""
        return self.inner.extreme_ranks()

    def title(self) -> str:
        return f"D = op(A) op(B), {self.sizes} (m x n x k), one of them {self.structure.kind}"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        yield from self.inner.operand_lines()
        nbytes = self.itemsize * max(map(self.mirrored_elements, self.extreme_ranks()))
        how = (
            "by zeros"
            if self.structure.kind == "triangular"
            else f"from one triangle: {nbytes:,} bytes per rank at most"
        )
        yield "completed", f"the {self.structure.kind} matrix, {how}"
        yield "flops", f"{self.flops:,}"

    def detail_lines(self) -> Iterator[tuple[str, str]]:
        return self.inner.detail_lines()

    def moves(self) -> str:
        completes = "" if self.structure.kind == "triangular" else "mirrored elements to complete shards, then "
        return f"{completes}{self.inner.moves()}"


@dataclass(frozen=True, slots=True)
class TriangleOfProduct(SymmetricProduct):
    """One triangle of D = op(A) op(A)^T, or of op(A) op(B)^T + op(B) op(A)^T, by reproducible products.

    Each product forms all of D, in memory of its own.
    """

    name: ClassVar[str] = "TriangleOfProduct"

    second: ProductPlan | None = None  # of the second term (global)
    routine: str = "syrk"  # or "herk", "syr2k", "her2k" (global)

    @property
    def terms(self) -> list[ProductPlan]:
        """The plans of the products."""
        return [self.inner] if self.second is None else [self.inner, self.second]

    @property
    def why(self) -> str:
        """The rules that chose the plans of the products."""
        rules = self._of_terms(f"{term.name}: {term.why}" for term in self.terms)
        return f"the triangle of reproducible products; {rules}"

    @property
    def trapezoid(self) -> Trapezoid:
        """The elements of D that are written."""
        return self.structure.stored

    @property
    def flops(self) -> int:
        return sum(term.flops for term in self.terms)

    @property
    def overlaps_messages(self) -> bool:
        return any(term.overlaps_messages for term in self.terms)

    def over(self, transport: Transport) -> TriangleOfProduct:
        inner, *others = (replace(term, transport=transport) for term in self.terms)
        return replace(self, inner=inner, second=others[0] if others else None)

    def mirrored_elements(self, rank: int) -> int:
        """None: op(A) is whole."""
        return 0

    def received_elements(self, rank: int) -> int:
        """The elements that the products move."""
        return sum(term.received_elements(rank) for term in self.terms)

    def received_nbytes(self, rank: int) -> int:
        """Bytes that `rank` receives."""
        return sum(term.received_nbytes(rank) for term in self.terms)

    def sent_elements(self, rank: int) -> int:
        return sum(term.sent_elements(rank) for term in self.terms)

    def phases(self, view: View) -> Iterator[Phase]:
        """Those of the products."""
        for term in self.terms:
            yield from term.phases(view)

    @property
    def workspace_nbytes(self) -> int:
        """That of the products, and all of D."""
        return sum(term.workspace_nbytes for term in self.terms) + self.completed_nbytes

    @property
    def lower_bound(self) -> float:
        """0: half of the elements are formed for nothing."""
        return 0.0

    @property
    def _operands(self) -> list[tuple[str, str]]:
        """The names of the operands of each product."""
        flip = "H" if self.routine.startswith("he") else "T"
        if self.second is None:
            return [("op(A)", f"op(A)^{flip}")]
        return [("op(A)", f"op(B)^{flip}"), ("op(B)", f"op(A)^{flip}")]

    def _of_terms(self, texts: Iterable[str]) -> str:
        """Texts about products of op(A) and op(B), one for each term, with the names of its operands."""
        renamed = list[str]()
        for text, (left, right) in zip(texts, self._operands, strict=True):
            before, *others = re.split(r"op\(([AB])\)", text)
            names = (left if x == "A" else right for x in others[::2])
            renamed.append(before + "".join(map(str.__add__, names, others[1::2])))
        return "; ".join(dict.fromkeys(renamed))

    def title(self) -> str:
        terms = " + ".join(" ".join(names) for names in self._operands)
        triangle = "lower" if self.structure.uplo == "L" else "upper"
        return f"{self.routine}: {triangle} triangle of D = {terms}, {self.sizes} (m x n x k)"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        (_, right), *_ = self._operands
        yield from ((right if key == "op(B)" else key, text) for key, text in self.inner.operand_lines())
        yield "flops", f"{self.flops:,}, those of whole products"

    def moves(self) -> str:
        return self._of_terms(term.moves() for term in self.terms)


def _corners(split: Split) -> set[int]:
    """Coordinates with the first and the last elements."""
    last = split.src + max(split.nblocks - 1, 0)
    return {p % split.nprocs for p in (split.src, split.src + 1, last - 1, last)}


def _named(lines: Iterator[tuple[str, str]], *, transposed: bool) -> Iterator[tuple[str, str]]:
    """Lines of a product D = op(A) op(B), with the names of a triangular product."""
    names = {"op(A)": "B", "op(B)": "op(A)"} if transposed else {"op(B)": "B"}
    for key, text in lines:
        yield names.get(key, key), text
