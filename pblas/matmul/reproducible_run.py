"""Reproducible products on one rank: the products of the pieces of K are added along one binary tree.

    LocalGemm, AllGatherGemm:  D[i, j] = tree over pieces k of op(A)[i, k] op(B)[k, j]      (a rank has all of K)
    SummaC:  a panel holds the pieces below one node of the tree; the sums of panels are added along the rest of it
    SummaA, layers of SummaC:  a layer holds the pieces below one node; the owners of D add the sums of layers

With reproducible="exact" the products of pieces are those of `ExactGemm`.

alpha is applied to the sum of all pieces, and beta C added to it, so that D has the same bits in all plans.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pblas.backends.dtypes import Array, Dtype, Order, ProductDtypes, dtype_of_name
from pblas.backends.pieces import PieceProducts, PieceSizes, TreeSum
from pblas.matmul.allgather_gemm_run import RunAllGatherGemm
from pblas.matmul.local_gemm_run import IndexRuns, Operands, Orders, RunLocalGemm, RunScaling, gemm_runs
from pblas.matmul.one_dimensional_plan import AllGatherGemm
from pblas.matmul.summa_partials import Partials
from pblas.matmul.summa_run import RunSummaA, RunSummaC
from pblas.redistribution.packing import ADD, COPY, Put
from pblas.redistribution.transfer import Movement, own_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pblas.backends.host_ranks import HostRanks
    from pblas.matmul.product_plan import ProductPlan
    from pblas.matmul.summa_plan import Summa, SummaA, SummaC


class RunReproducibleScaling(RunScaling):
    """D = beta C: K is empty, or alpha is 0."""

    def run(self, x: Operands) -> None:
        result = x.result
        if x.old is None:
            result[...] = 0
        elif x.beta != 1 or x.old is not result:  # D_loc = beta C_loc
            self._arrays.finish_sum(x.beta, x.old, 0, result)


class _OfPieces:
    """Products of blocks as sums of the products of pieces of K."""

    _products: PieceProducts

    @property
    def _gemm(self) -> Callable[..., None]:
        return self._products.gemm


class RunReproducibleLocalGemm(_OfPieces, RunLocalGemm):
    """Runs a reproducible LocalGemm plan on one rank."""

    def __init__(self, plan: ProductPlan, backend: HostRanks, dtypes: ProductDtypes, *unused: object) -> None:
        super().__init__(plan, backend, dtypes, *unused)
        self._products = local_piece_gemm(plan, backend, dtypes.total)
        self.workspace_nbytes = self._products.nbytes

    def run(self, x: Operands) -> None:
        """D = alpha op(A) op(B) + beta C; without C, products of pieces are rounded to D as they are finished."""
        if x.beta != 0:
            super().run(x)
        else:
            n, k = IndexRuns.whole(x.result.shape[1]), IndexRuns.whole(x.right.shape[0])
            runs, packs = (self._m, n, k), self._arrays.traits.packs_blocks
            gemm_runs(x.alpha, x.left, x.right, 0, x.result, *runs, x.conj, self._gemm, packs)


class RunReproducibleAllGatherGemm(_OfPieces, RunAllGatherGemm):
    """Runs a reproducible AllGatherGemm plan on one rank: each shard that arrives has all of K."""

    def __init__(self, plan: AllGatherGemm, backend: HostRanks, dtypes: ProductDtypes, orders: Orders) -> None:
        super().__init__(plan, backend, dtypes, orders)
        rows = plan.oriented.d.split
        m = plan.oriented.m if rows is None else rows.max_count
        self._products = piece_gemm(plan, backend, dtypes.total, (m, plan.shards.max_count))

    def _sums_of(self, x: Operands) -> Array:
        """D itself without C: the product of a shard is complete, and rounded to D."""
        return super()._sums_of(x) if x.beta != 0 else x.result

    @property
    def workspace_nbytes(self) -> int:
        return super().workspace_nbytes + self._products.nbytes


class RunReproducibleSummaC(RunSummaC):
    """Runs a reproducible SummaC plan on one rank."""

    def __init__(self, plan: SummaC, backend: HostRanks, dtypes: ProductDtypes, orders: Orders) -> None:
        super().__init__(plan, backend, dtypes, orders)
        formed, pieces = plan.cuboids.d, plan.k_pieces
        shape = formed.local_shape(backend.rank)
        self._products = piece_gemm(plan, backend, self._total, shape, plan.width // pieces.width)
        panels = plan.cuboids.k.nb // plan.width  # of a layer
        self._sums = SumsOfD(backend, TreeSum.depth(panels), shape, self._total, orders.result)

    @property
    def workspace_nbytes(self) -> int:
        return super().workspace_nbytes + self._products.nbytes + self._sums.nbytes

    def run(self, x: Operands) -> None:
        if self._plan.reproducible == "exact":  # no graph
            self._run(x)
            self._end()
        else:
            super().run(x)

    def _multiply_panels(self, x: Operands, total: Array, beta: complex, result: Array) -> None:
        """Total := alpha op(A) op(B) + beta total; with layers alpha is applied later, by the owners of D."""
        alpha = x.alpha if self._partials is None else 1.0
        tree, ahead = self._sums.tree(total, in_place=beta == 0), int(self._plan.overlap)
        if ahead:
            self._begin(0)
        for s in range(self._count):
            self._begin(s + ahead)  # lookahead: the next panels travel while these are multiplied
            # op(A)[m, k] and op(B)[k, n], from the ranks that have these k
            b, a = self._b.fetch(s), self._a.fetch(s)
            if a is not None and b is not None and total.size:
                # sum[m, n] = op(A)[m, k] op(B)[k, n], or += with the second of two panels
                tree.add(partial(self._put, a, b, x.conj))
        if total.size and self._last >= 0:
            self._sums.finish(alpha, tree, beta, total)
        if total is not result:
            self._arrays.assign(total, result)

    def _put(self, a: Array, b: Array, conj: tuple[bool, bool], z: Array, *, adds: bool) -> None:
        if not adds:
            self._products.gemm(1.0, a, b, 0.0, z, conj=conj)
            return
        for block, total in self._products.totals(a, b, conj):
            self._arrays.add_scaled(1, total, 1, z[block])

    def _new_partials(self, dtypes: ProductDtypes, orders: Orders) -> Partials:
        return TreePartials(self._backend, self._plan, [(0, self._plan.oriented.n)], dtypes, orders.result)


class RunReproducibleSummaA(RunSummaA):
    """Runs a reproducible SummaA plan on one rank."""

    def __init__(self, plan: SummaA, backend: HostRanks, dtypes: ProductDtypes, orders: Orders) -> None:
        super().__init__(plan, backend, dtypes, orders)
        m = plan.cuboids.m.max_count
        pieces = plan.k_pieces.parts // plan.cuboids.k.nprocs
        self._products = piece_gemm(plan, backend, self._total, (m, min(plan.width, plan.oriented.n)), pieces)

    @property
    def workspace_nbytes(self) -> int:
        return super().workspace_nbytes + self._products.nbytes

    def _multiply(self, x: Operands, a: Array, b: Array, total: Array) -> None:
        self._products.gemm(1.0, a, b, 0.0, total, conj=x.conj)

    def _new_partials(
        self, backend: HostRanks, cuts: Sequence[tuple[int, int]], dtypes: ProductDtypes, order: Order
    ) -> Partials:
        return TreePartials(backend, self._plan, cuts, dtypes, order)


class TreePartials(Partials):
    """Partial products that the owners of D add along the tree, whose leaves here are the layers."""

    def __init__(
        self,
        backend: HostRanks,
        plan: Summa,
        panels: Sequence[tuple[int, int]],
        dtypes: ProductDtypes,
        order: Order,
    ) -> None:
        super().__init__(backend, plan, panels, dtypes, order)
        rows, columns = plan.sums.local_shape(backend.rank)
        widest = min(columns, max((n1 - n0 for n0, n1 in panels), default=0))
        self._tree = SumsOfD(backend, TreeSum.depth(plan.cuboids.nlayers), (rows, widest), dtypes.total, order)

    @property
    def workspace_nbytes(self) -> int:
        return super().workspace_nbytes + self._tree.nbytes

    def _add(self, movements: Sequence[Movement], out: Array) -> None:
        """Out := alpha (sum of the partial products of all layers) + beta out, if out has C."""
        tree, arrays = self._tree.tree(out, in_place=not self._adds), self._backend.arrays
        with arrays.on_side_lane():  # on which partial products arrive
            for movement in movements:
                # sum[m, n] = partial D[m, n] of a layer, or += with the second of two
                tree.add(partial(_receive, movement))
            if out.size:
                self._tree.finish(self._x.alpha, tree, self._x.beta if self._adds else 0, out)

    def _added_to_c(self) -> Put:
        result = self._x.result
        self._backend.arrays.finish_sum(self._x.beta, result, 0, result)
        return ADD


def _receive(movement: Movement, z: Array, *, adds: bool) -> None:
    movement.receive(z, ADD if adds else COPY)


class SumsOfD:
    """Memory for sums along a tree, each as large as a rank's part of D."""

    def __init__(self, backend: HostRanks, count: int, shape: tuple[int, int], dtype: Dtype, order: Order) -> None:
        self._dtype, self._order, self._arrays = dtype, order, backend.arrays
        self._each = shape[0] * shape[1] * dtype.itemsize
        self._memory = own_memory(backend, count * self._each)
        self._count = count

    @property
    def nbytes(self) -> int:
        return int(self._memory.nbytes)

    def tree(self, out: Array, *, in_place: bool) -> TreeSum:
        """A tree of sums of a part of D; in place, its total is formed in that part if it has the dtype of sums."""
        starts, arrays = (i * self._each for i in range(self._count)), self._arrays
        sums = [arrays.array(self._memory[start:], out.shape, self._dtype, self._order) for start in starts]
        if in_place and out.dtype == self._dtype:
            sums[0] = out
        return TreeSum(sums, lambda x, z: arrays.add_scaled(1, x, 1, z))

    def finish(self, alpha: complex, tree: TreeSum, beta: complex, out: Array) -> None:
        """Out := alpha (total) + beta out."""
        if tree.total is not out or alpha != 1:
            self._arrays.finish_sum(alpha, tree.total, beta, out)


def local_piece_gemm(plan: ProductPlan, backend: HostRanks, total: Dtype) -> PieceProducts:
    """The local GEMM of a LocalGemm plan."""
    rows, columns = plan.oriented.d.along("rows"), plan.oriented.d.along("columns")
    m, n = (rows.max_count if rows else plan.oriented.m), (columns.max_count if columns else plan.oriented.n)
    return piece_gemm(plan, backend, total, (m, n))


def piece_gemm(
    plan: ProductPlan, backend: HostRanks, total: Dtype, shape: tuple[int, int], pieces: int = 0
) -> PieceProducts:
    """The local GEMM of a plan, for products of at most this shape and so many pieces; 0: all of K."""
    k, (width, parts) = plan.product.k, plan.k_pieces
    last = k - (parts - 1) * width
    allocate: Callable[[int], Any] = partial(own_memory, backend)
    sizes = PieceSizes(width, shape, pieces or parts, total, plan.transposed)
    if plan.reproducible == "exact":
        return backend.arrays.exact_gemm(sizes, allocate)
    return backend.arrays.piece_gemm(sizes, dtype_of_name(plan.dtype), last, allocate)
