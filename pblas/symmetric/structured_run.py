"""Executors of rank-k updates and of triangular products: SummaC, where rectangles cover a triangle."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pblas.layouts.messages import Move
from pblas.matmul.local_gemm_run import Operands, Orders
from pblas.matmul.summa_partials import Partials
from pblas.matmul.summa_plan import Panel, placed
from pblas.matmul.summa_run import RunSummaC
from pblas.matmul.triangle import Triangle
from pblas.redistribution.packing import COPY, Message, Scaling
from pblas.redistribution.transfer import own_memory
from pblas.symmetric.completion_run import TAG_READ, meet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.backends.dtypes import Array, Order, ProductDtypes
    from pblas.backends.host_ranks import HostRanks
    from pblas.core.operation import Executor
    from pblas.layouts.rectangles import Rectangle
    from pblas.symmetric.structured_plan import RankUpdate, TriangleOfProduct, TriangularProduct


class _Term(RunSummaC):
    """One product of a rank-k update, added to given sums.

    A block across the diagonal is formed beside D, in `blocks`, whose columns are those of D: D itself may hold other
    data on the other side of the diagonal. Sums outside D have no such data, and `blocks` is None.
    """

    _plan: RankUpdate

    def __init__(self, plan: RankUpdate, backend: HostRanks, dtypes: ProductDtypes, orders: Orders) -> None:
        super().__init__(plan, backend, dtypes, orders)
        self.places = plan.rectangles(backend.rank)
        self._is_hermitian = plan.routine.startswith("he")
        self.blocks: Array | None = None
        self.first = True

    def _new_partials(self, *unused: object) -> None:
        """None: the update has them."""

    def _parts(self, s: int, total: Array, result: Array) -> list[slice]:
        """All columns of D at once."""
        return [slice(0, total.shape[1])]

    def _multiply(self, s: int, x: Operands, a: Array, b: Array, beta: complex, total: Array) -> None:
        for r0, r1, c0, c1, inside, square in self.places:
            left, right, added = a[r0:r1], b[:, c0:c1], beta
            out = total[r0:r1, c0:c1]
            if square:
                self._update_square(x, left, right, beta, out)
                continue
            if not inside and self.blocks is not None:
                out, added = self.blocks[: r1 - r0, c0:c1], float(not (self.first and s == 0))
            # D[i, j] += alpha op(A)[i, k] op(A)^T[k, j]
            self._arrays.gemm(x.alpha, left, right, added, out, conj=x.conj)

    def _update_square(self, x: Operands, left: Array, right: Array, beta: complex, out: Array) -> None:
        """D[i, i] += alpha op(A)[i, k] op(A)[i, k]^T in the triangle; of two terms the first one adds both."""
        uplo, (conj, conj_right), hermitian = self._plan.uplo, x.conj, self._is_hermitian
        if self._plan.terms == 2:
            conjugates = conj, conj_right != hermitian
            self._arrays.syr2k(x.alpha, left, right.T, beta, out, uplo=uplo, conj=conjugates, hermitian=hermitian)
        elif self.first:
            self._arrays.syrk(x.alpha, left, beta, out, uplo=uplo, conj=conj, hermitian=hermitian)

    def add(self, x: Operands, total: Array, beta: complex) -> None:
        """Sums := alpha op(A) op(B) + beta sums, in the rectangles."""
        self._multiply_panels(x, total, beta, total)
        self._end()


class RunRankUpdate:
    """Runs a RankUpdate plan on one rank."""

    peers_read = True  # until the closing agreement (global)

    def __init__(self, plan: RankUpdate, backend: HostRanks, dtypes: ProductDtypes, orders: Orders) -> None:
        self._plan, self._backend, self._arrays, dtype = plan, backend, backend.arrays, dtypes.d
        self._is_hermitian = plan.routine.startswith("he") and dtype.kind == "c"
        self._terms = [_Term(plan, backend, dtypes, orders)]
        if plan.terms == 2:
            flipped = Orders(_flip(orders.left), orders.result, _flip(orders.right))
            self._terms.append(_Term(plan.swapped, backend, dtypes, flipped))
        self._total = self._terms[0].total_dtype
        self._triangle = Triangle(backend, placed(plan.product.d), plan.trapezoid, orders.result)
        self._partials: Partials | None = None
        if not plan.in_place:
            n = plan.product.n
            self._partials = Partials(backend, plan, [(0, n)], dtypes, orders.result, self._triangle)
        self._across: Sequence[Rectangle] = [x for x in self._terms[0].places if not (x.inside or x.square)]
        self._to_d: Message | None = None
        self._blocks: Array | None = None
        if plan.in_place and self._total == dtype:
            height = max((x.r1 - x.r0 for x in self._across), default=0)
            shape = height, plan.cuboids.d.local_shape(backend.rank)[1]
            memory = own_memory(backend, shape[0] * shape[1] * dtype.itemsize)
            self._blocks = backend.arrays.array(memory, shape, dtype, "F")
            self._to_d = self._triangle.blocks(self._across)
        for term in self._terms:
            term.blocks, term.first = self._blocks, term is self._terms[0]

    @property
    def workspace_nbytes(self) -> int:
        total = sum(term.workspace_nbytes for term in self._terms)
        total += 0 if self._blocks is None else int(self._blocks.nbytes)
        return total + (self._partials.workspace_nbytes if self._partials else 0)

    def publish(self, x: Operands) -> bool:
        alone = False
        for term, operands in zip(self._terms, self._operands(x), strict=False):
            alone = term.publish(operands) or alone
        return alone

    def prepare(self, *, scratch: bool) -> bool:
        for term in self._terms:
            term.prepare(scratch=scratch)
        return scratch

    def _operands(self, x: Operands) -> list[Operands]:
        """The operands of each term: D = alpha op(A) op(B)^T + alpha op(B) op(A)^T, or with conjugates."""
        return [x, second_term(x, hermitian=self._is_hermitian)]

    def run(self, x: Operands) -> None:
        """**Collective.** The triangle of D = alpha (sum of the terms) + beta C."""
        if x.old is not None:
            # D = C in the triangle
            if x.old is not x.result:
                self._triangle.put(x.old, x.result)
                x = replace(x, old=x.result)
            self._make_real(x.result)
        partials, result, beta = self._partials, x.result, x.beta if x.old is not None else 0.0
        if partials is not None:  # D is elsewhere: D = beta D + the sums of all ranks that have partial products
            partials.begin(x)
            sums, beta = partials.part(0), 0.0
            total = sums if sums.dtype == self._total else self._arrays.like(sums, self._total)
            self._add(x, total, beta)
            if total is not sums:
                self._arrays.assign(total, sums)
            partials.send(0)
            partials.collect(0)
            partials.end()
        elif self._total != result.dtype:  # sums in 32 bits, rounded once
            total = self._arrays.like(result, self._total)
            if x.old is not None:
                self._arrays.assign(result, total)
            self._add(x, total, beta)
            self._triangle.put(total, result)
        else:
            self._add(x, result, beta)
            assert self._to_d is not None, "D is formed in place"
            assert self._blocks is not None, "D is formed in place"
            # D[i, i] = the triangle of block i, which was formed beside D, + beta D[i, i]
            self._to_d.bring(self._blocks, result, Scaling(1.0, beta))
        self._make_real(result)

    def _add(self, x: Operands, total: Array, beta: complex) -> None:
        # total = alpha op(A) op(B)^T + alpha op(B) op(A)^T + beta total
        for term, operands in zip(self._terms, self._operands(x), strict=False):
            term.add(operands, total, beta)
            beta = 1.0

    def _make_real(self, result: Array) -> None:
        """Set the imaginary parts of a Hermitian D's diagonal to 0."""
        if self._is_hermitian:
            self._arrays.synchronize()
            self._triangle.set_diagonal(result.imag, 0.0)


class RunTriangleOfProduct:
    """Runs a TriangleOfProduct plan on one rank: D is formed beside its memory, whose other triangle stays."""

    peers_read = True  # until the closing agreement (global)

    def __init__(
        self,
        plan: TriangleOfProduct,
        backend: HostRanks,
        triangle: Triangle,
        terms: Sequence[Executor],
        whole: Array,
        *,
        hermitian: bool,
    ) -> None:
        self._triangle, self._terms, self._whole, self._arrays = triangle, terms, whole, backend.arrays
        self._is_hermitian = hermitian
        self._flips = [term.transposed != plan.transposed for term in plan.terms]
        self.is_transposed: bool = plan.transposed
        """Whether the first product forms D^T (global)."""

    @property
    def workspace_nbytes(self) -> int:
        return sum(term.workspace_nbytes for term in self._terms) + int(self._whole.nbytes)

    def publish(self, x: Operands) -> bool:
        alone = False
        for term, operands in zip(self._terms, self._operands(x), strict=True):
            alone = term.publish(operands) or alone
        return alone

    def prepare(self, *, scratch: bool) -> bool:
        again = False
        for term in self._terms:
            again = term.prepare(scratch=scratch) or again
        return again

    def _operands(self, x: Operands) -> list[Operands]:
        """The operands of each product."""
        terms = [x, second_term(x, hermitian=self._is_hermitian)][: len(self._terms)]
        return [
            replace(term, left=term.right.T, right=term.left.T, conj=term.conj[::-1]) if flips else term
            for term, flips in zip(terms, self._flips, strict=True)
        ]

    def run(self, x: Operands) -> None:
        """**Collective.** The triangle of D = alpha (sum of the terms) + beta C."""
        result, whole, beta = x.result, self._whole, x.beta
        if self.is_transposed:
            result = result.T
        if x.old is not None:
            # D = C in the triangle
            if x.old is not x.result:
                self._triangle.put(x.old.T if self.is_transposed else x.old, result)
            self._make_real(result)
            self._arrays.assign(result, whole)
        old = x.old
        for inner, operands, flips in zip(self._terms, self._operands(x), self._flips, strict=True):
            total = whole.T if self.is_transposed != flips else whole
            # all of D = alpha op(A) op(B)^T + beta D, then += the second term
            inner.run(replace(operands, result=total, old=None if old is None else total, beta=beta))
            old, beta = whole, 1.0
        self._triangle.put(whole, result)
        self._make_real(result)

    def _make_real(self, result: Array) -> None:
        """Set the imaginary parts of a Hermitian D's diagonal to 0."""
        if self._is_hermitian:
            self._arrays.synchronize()
            self._triangle.set_diagonal(result.imag, 0.0)


def second_term(x: Operands, *, hermitian: bool) -> Operands:
    """The operands of alpha op(B) op(A)^T, or with conjugates, given those of the first term of a rank-2k update."""
    conj_a, conj_b = (conj != hermitian for conj in x.conj)
    alpha = complex(x.alpha).conjugate() if hermitian else x.alpha
    return replace(x, left=x.right.T, right=x.left.T, conj=(conj_b, conj_a), alpha=alpha)


class RunTriangleScaling:
    """Runs a rank-k update without products: K is empty, or alpha is 0. The triangle of D = beta C."""

    workspace_nbytes = 0
    peers_read = False

    def __init__(self, triangle: Triangle, backend: HostRanks, *, hermitian: bool) -> None:
        self._triangle, self._arrays, self._is_hermitian = triangle, backend.arrays, hermitian

    def publish(self, operands: Operands) -> bool:
        return False

    def prepare(self, *, scratch: bool) -> bool:
        return False

    def run(self, x: Operands) -> None:
        """The triangle of D = beta C on this rank."""
        old = x.result if x.old is None else x.old
        beta = 0.0 if x.old is None else x.beta
        if x.old is not None and x.old is not x.result:
            self._triangle.put(old, x.result)
        for factor in (1.0, beta):  # imaginary parts of the diagonal are not scaled: they may be NaN
            if factor != 1:
                self._triangle.put(x.result, x.result, Scaling(0.0, factor))
            if self._is_hermitian:
                self._arrays.synchronize()
                self._triangle.set_diagonal(x.result.imag, 0.0)


class _Block(NamedTuple):
    """A part of the left operand that crosses the diagonal, with zeros in the other triangle."""

    memory: Array  # the block; its zeros, and the ones of a unit diagonal, stay from execution to execution (local)
    message: Message  # brings the elements in the triangle from the panel (local)
    across: slice  # its rows that cross the diagonal (local)
    diagonal: tuple[Array, Array]  # rows and columns of the elements of a unit diagonal in it (local)


class RunTriangularProduct(RunSummaC):
    """Runs a TriangularProduct plan on one rank; zeros complete the blocks that cross the diagonal."""

    _plan: TriangularProduct

    def __init__(self, plan: TriangularProduct, backend: HostRanks, dtypes: ProductDtypes, orders: Orders) -> None:
        super().__init__(plan, backend, dtypes, orders)
        self._order, coordinates = orders.left, plan.cuboids.a.coordinates(backend.rank)
        self._is_cleared = False
        self._shared: Any = None
        self._places: list[list[tuple[int, Rectangle, _Block | None]]] = []
        if coordinates is not None and coordinates[1] in plan.cuboids.layers:
            for panel in plan.panels(coordinates[1], plan.first(backend.rank)):
                above = plan.cuboids.m.local_start(plan.rows_of(panel)[0], coordinates[0])
                blocks = plan.rectangles(panel, backend.rank)
                self._places.append(
                    [(above, x, None if x.inside else self._block(panel, above, coordinates[0], x)) for x in blocks]
                )

    def _block(self, panel: Panel, above: int, r: int, place: Rectangle) -> _Block:
        """Memory for a block across the diagonal, and the copy from the panel, whose first row is row `above`."""
        plan, arrays, rank = self._plan, self._arrays, self._backend.rank
        (r0, r1, c0, c1, *_), (columns, c) = place, plan.columns_of(panel)
        dtype, shape, rows = self._source_matrices[0].dtype, (r1 - r0, c1 - c0), plan.cuboids.m
        nbytes = shape[0] * shape[1] * dtype.itemsize
        if plan.joined:  # the blocks are used one after the other
            if self._shared is None:
                self._shared = arrays.empty(max(nbytes, plan.leaf * plan.cuboids.m.max_count * dtype.itemsize))
            memory = arrays.array(self._shared, shape, dtype, self._order)
        else:
            memory = arrays.array(arrays.empty(nbytes), shape, dtype, self._order)
        i = rows.global_from_local(np.arange(r0, r1), r)
        j = columns.global_from_local(np.arange(panel.start + c0, panel.start + c1), c)
        _, on_rows, on_columns = np.intersect1d(i, j, return_indices=True)
        move = Move(rank, ((r0 - above, r0, shape[0]),), ((c0, panel.start + c0, shape[1]),))
        parts = (
            (_shifted(part, r0, panel.start + c0), trapezoid)
            for part, trapezoid in plan.structure.stored.cut_at(
                move, (rows, r), (columns, c), 1, arrays.traits.most_across
            )
        )
        message = Message(rank, parts, self._order, {}, arrays.block_copy)
        across = slice(int(np.searchsorted(i, j[0])), int(np.searchsorted(i, j[-1], "right")))
        return _Block(memory, message, across, (on_rows, on_columns))

    def run(self, x: Operands) -> None:
        """**Collective.** D = alpha op(A) B; see `RunSummaC.run`. The first run clears the blocks."""
        blocks = [block for places in self._places for _, _, block in places if block is not None]
        for block in () if self._is_cleared or self._plan.joined else blocks:
            self._clear(block)
        self._is_cleared = True
        super().run(x)

    def _clear(self, block: _Block) -> None:
        """Set the zeros of a block, and the ones of a unit diagonal."""
        self._arrays.scale(0.0, block.memory[block.across])
        if self._plan.structure.unit:
            self._arrays.fill(block.memory, *block.diagonal, 1.0)

    @property
    def workspace_nbytes(self) -> int:
        if self._plan.joined:
            blocks = 0 if self._shared is None else int(self._shared.nbytes)
        else:
            blocks = sum(int(block.memory.nbytes) for places in self._places for _, _, block in places if block)
        return super().workspace_nbytes + blocks

    def _parts(self, s: int, total: Array, result: Array) -> list[slice]:
        """All columns of D at once."""
        return [slice(0, total.shape[1])]

    def _multiply_panels(self, x: Operands, total: Array, beta: complex, result: Array) -> None:
        super()._multiply_panels(x, total, beta, result)
        if self._plan.aliased:
            self._b.end()  # its messages are sent from B's own memory
            meet(self._backend, TAG_READ, "other ranks read B before it is overwritten")

    def _multiply(self, s: int, x: Operands, a: Array, b: Array, beta: complex, total: Array) -> None:
        structure = self._plan.structure
        if self._plan.whole and self._count == 1 and _is_by_columns(b) == _is_by_columns(total):
            uplo, conj = structure.uplo, x.conj[0]
            self._arrays.trmm(x.alpha, a, b, total, uplo=uplo, unit=structure.unit, conj=conj)
            return
        if beta != 1:
            self._arrays.scale(beta, total)
        for above, (r0, r1, c0, c1, *_), block in self._places[s]:
            left = a[r0 - above : r1 - above, c0:c1]
            if block is not None:  # the block across the diagonal, with zeros in the other triangle
                if self._plan.joined:
                    self._clear(block)
                block.message.bring(a, block.memory, COPY)
                left = block.memory
            # D[i, j] += alpha op(A)[i, k] B[k, j], for the k of the panel in the triangle
            self._arrays.gemm(x.alpha, left, b[c0:c1], 1.0, total[r0:r1], conj=x.conj)


def _shifted(move: Move, i: int, j: int) -> Move:
    """A move whose targets count from row i and column j."""
    rows = tuple((source, target - i, length) for source, target, length in move.rows)
    return Move(move.peer, rows, tuple((source, target - j, length) for source, target, length in move.columns))


def _is_by_columns(x: Array) -> bool:
    return abs(x.strides[0]) < abs(x.strides[1])


def _flip(order: Order) -> Any:
    return "C" if order == "F" else "F"
