"""The choice of plans for rank-k updates, and for products with triangular and symmetric matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.placement import Placement
from pblas.layouts.rectangles import LEAF, area
from pblas.layouts.split import Split
from pblas.matmul.choose import BYTES_PER_FLOP, choose
from pblas.matmul.choose_granularity import PlanningContext
from pblas.matmul.choose_grid import on_grids, over_all_ranks, triples
from pblas.matmul.product_plan import Distribution, Product
from pblas.matmul.summa_plan import Cuboids, SummaC
from pblas.simulation.hardware import ITEMSIZE, Topology
from pblas.symmetric.structured_plan import RankUpdate, Structure, SymmetricProduct, TriangularProduct, Uplo

_LESS = 0.75  # another arrangement than the grid of D must cost less than this fraction: D is then sent to its owners
_BLOCK = 128  # block size of cyclic arrangements, which divide a triangle evenly
_ARRANGEMENTS = 12  # largest number of arrangements of all ranks that are examined
_LEAF_ON_GPUS = 512
"""Columns of a block across the diagonal on GPUs, where small products do not fill the multiprocessors."""
_LAYOUTS = 256  # size of the cache of plans: loops call with matrices of the same few layouts again and again

PlanT = TypeVar("PlanT", RankUpdate, TriangularProduct)


@lru_cache(_LAYOUTS)
def choose_rank_update(
    routine: str,
    dtype: str,
    descs: tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor],
    uplo: Uplo,
    *,
    nprocs: int,
    topology: Topology,
    overlap: bool = True,
) -> RankUpdate:
    """The plan of syrk, herk, syr2k or her2k, with descriptors of op(A), of op(A)^T or op(B)^T, and of D.

    >>> grid = MatrixDescriptor.row_wise(512, 512, 4, mb=32)
    >>> choose_rank_update("syrk", "float64", (grid, grid.T, grid), "L", nprocs=4, topology=Topology()).in_place
    True
    """
    terms = 2 if routine.endswith("2k") else 1

    def planned(base: SummaC) -> RankUpdate:
        return RankUpdate(
            base.product,
            base.why,
            cuboids=base.cuboids,
            routine=routine,
            uplo=uplo,
            terms=terms,
            squares=ITEMSIZE[dtype] > 2 and (terms == 1 or not topology.gpus),
            leaf=_LEAF_ON_GPUS if topology.gpus else LEAF,
        )

    topology = replace(topology, push=False)
    product = choose(dtype, *descs, context=_context(dtype, topology, nprocs, overlap=overlap))
    limit = terms * product.max_received_nbytes
    return _cheapest(_product(dtype, descs, nprocs), planned, topology, overlap=overlap, limit=limit)


@lru_cache(_LAYOUTS)
def choose_triangular(
    dtype: str,
    descs: tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor],
    structure: Structure,
    *,
    right: bool,
    aliased: bool,
    nprocs: int,
    topology: Topology,
    overlap: bool = True,
) -> TriangularProduct:
    """The plan of trmm; `descs` are those of the operands in the order of D, and of D, which may be written over B."""
    product = _product(dtype, descs, nprocs)

    def planned(base: SummaC) -> TriangularProduct:
        return TriangularProduct(
            product,
            base.why,
            right,
            cuboids=base.cuboids,
            structure=structure.T if right else structure,
            aliased=aliased,
            leaf=_LEAF_ON_GPUS if topology.gpus else LEAF,
            whole=topology.gpus and nprocs == 1 and ITEMSIZE[dtype] > 2,
        )

    return _cheapest(product.T if right else product, planned, topology, overlap=overlap)


@lru_cache(_LAYOUTS)
def choose_symmetric(
    dtype: str,
    descs: tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor],
    structure: Structure,
    *,
    right: bool,
    nprocs: int,
    topology: Topology,
    overlap: bool = True,
) -> SymmetricProduct:
    """The plan of symm or hemm: that of the product with the completed matrix, on the right side if `right`."""
    topology = replace(topology, push=False)
    inner = choose(dtype, *descs, context=_context(dtype, topology, nprocs, overlap=overlap))
    place = Placement.of(descs[1] if right else descs[0])
    return SymmetricProduct(inner, structure, place, right)


def _context(dtype: str, topology: Topology, nprocs: int, *, overlap: bool) -> PlanningContext:
    """The context of a plan whose partial products travel in the default dtype, as `dtypes.wire_of` says."""
    return PlanningContext(topology, nprocs, overlap=overlap, wire="float32" if dtype == "float16" else "")


def _product(dtype: str, descs: tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor], nprocs: int) -> Product:
    """The product with placements."""
    distributions = [Distribution("grid", None, Placement.of(desc)) for desc in descs]
    return Product(descs[0].m, descs[1].n, descs[0].n, dtype, nprocs, *distributions)


def _cheapest(
    product: Product,
    planned: Callable[[SummaC], PlanT],
    topology: Topology,
    *,
    overlap: bool,
    limit: float = float("inf"),
) -> PlanT:
    """The plan on D's grid, or one on another arrangement that costs much less.

    One that receives at most `limit` bytes, where the best so far receives more, only has to cost less.
    """
    best: PlanT | None = None
    most, fits = float("inf"), False
    for base in _arrangements(product):
        plan = planned(base)
        idle = BYTES_PER_FLOP * _idle(plan)
        received = _received(plan, most - idle)
        cost = received + idle
        if best is None or cost < most * (1 if received <= limit and not fits else _LESS):
            best, most, fits = plan, cost, received <= limit
    assert best is not None, "there is an arrangement for every number of ranks"
    context = _context(product.dtype, replace(topology, push=False), product.nprocs, overlap=overlap)
    complete = context.complete(best)
    assert isinstance(complete, type(best)), "completion keeps the kind of a plan"
    return complete


def _arrangements(product: Product) -> Iterator[SummaC]:
    """The grid of D, cyclic arrangements of all ranks, and arrangements with layers."""
    for plan in on_grids(product):
        if isinstance(plan, SummaC):
            yield plan
    m, n, k, p = product.m, product.n, product.k, product.nprocs
    for p1, p2, p3 in triples(p):
        if p3 == 1:
            rows, columns = (Split(x, max(1, min(_BLOCK, -(-x // parts))), parts) for x, parts in ((m, p1), (n, p2)))
            cuboids = Cuboids(rows, columns, Split(k, max(1, k), 1), (1, p1, 1))
            yield SummaC(product, "a cyclic arrangement of all ranks divides the triangle evenly", cuboids=cuboids)
    found = 0
    for plan in over_all_ranks(product, (), float("inf")):
        if isinstance(plan, SummaC) and plan.sum_placement is None:
            yield plan
            found += 1
        if found == _ARRANGEMENTS:
            return


def _received(plan: RankUpdate | TriangularProduct, enough: float) -> int:
    """Bytes that the busiest rank receives, nearly; or a lower number of at least `enough`, which rejects the plan."""
    most = 0
    for rank in plan.extreme_ranks():
        if most >= enough:
            break
        most = max(most, sum(SummaC.arriving_elements(plan, rank)) * plan.itemsize + _delivered(plan, rank))
    return most


def _delivered(plan: RankUpdate | TriangularProduct, rank: int) -> int:
    """Bytes of partial products that a rank receives: of a rank-k update those of its part of the triangle."""
    nbytes, position = SummaC.delivered_nbytes(plan, rank), plan.sums.coordinates(rank)
    if not nbytes or position is None or isinstance(plan, TriangularProduct):
        return nbytes
    (rows, columns), (m_loc, n_loc) = (plan.sums.rows, plan.sums.columns), plan.sums.local_shape(rank)
    return nbytes * area(rows, position[0], columns, position[1], plan.uplo) // max(1, m_loc * n_loc)


def _idle(plan: RankUpdate | TriangularProduct) -> float:
    """Flops of the busiest rank above the average."""
    real = 4 if plan.dtype.startswith("complex") else 1
    return max(0.0, 2 * plan.busiest_multiplies - plan.flops / real / plan.nprocs)
