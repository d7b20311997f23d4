"""The choice of plans for rank-k updates, and for products with triangular and symmetric matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.placement import Placement
from pblas.layouts.rectangles import LEAF
from pblas.layouts.split import Split
from pblas.matmul.choose import Search, choose, general_product
from pblas.matmul.choose_granularity import PlanningContext
from pblas.matmul.choose_grid import on_grids, over_all_ranks, triples
from pblas.matmul.product_plan import Product
from pblas.matmul.summa_plan import Cuboids, SummaC
from pblas.simulation.hardware import ITEMSIZE, Hardware, Topology
from pblas.symmetric.structured_plan import (
    RankUpdate,
    Structure,
    SymmetricProduct,
    TriangleOfProduct,
    TriangularProduct,
    Uplo,
)

_BLOCK = 128  # block size of cyclic arrangements, which divide a triangle evenly
_ARRANGEMENTS = 12  # largest number of arrangements of all ranks that are examined
_LEAF_ON_GPUS = 512
"""Columns of a block across the diagonal on GPUs, where small products do not fill the multiprocessors."""
_JOINED = 128
"""On CPUs, columns of a GEMM in trmm, with all rows of the triangle: products of 64 to 128 rows are slow."""
_AS_QUICK = (
    0.98  # a plan that stays on the grid of D is taken unless another is predicted to take less than this of its time
)
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
) -> RankUpdate | TriangleOfProduct:
    """The plan of syrk, herk, syr2k or her2k, with descriptors of op(A), of op(A)^T or op(B)^T, and of D.

    In a reproducible context they are the triangle of one reproducible product, or of two.

    >>> grid = MatrixDescriptor.row_wise(512, 512, 4, mb=32)
    >>> choose_rank_update("syrk", "float64", (grid, grid.T, grid), "L", nprocs=4, topology=Topology()).in_place
    True
    """
    terms = 2 if routine.endswith("2k") else 1
    if topology.reproducible:
        a, b, d = descs
        products = [(a, b, d), (b.T, a.T, d)][:terms]
        context = _context(dtype, replace(topology, push=False), nprocs, overlap=overlap)
        inner, *others = (choose(dtype, *operands, context=context) for operands in products)
        structure = Structure("symmetric", uplo)
        second = others[0] if others else None
        return TriangleOfProduct(inner, structure, Placement.of(d), second=second, routine=routine)

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

    return _quickest(general_product(dtype, *descs, nprocs), planned, topology, overlap=overlap)


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
) -> TriangularProduct | SymmetricProduct:
    """The plan of trmm; `descs` are those of the operands in the order of D, and of D, which may be written over B.

    In a reproducible context it is that of a reproducible product with op(A), completed by zeros.
    """
    if topology.reproducible:
        arguments: Any = {"right": right, "nprocs": nprocs, "topology": topology, "overlap": overlap}
        return replace(choose_symmetric(dtype, descs, structure, **arguments), aliased=aliased)
    product = general_product(dtype, *descs, nprocs)

    def planned(base: SummaC) -> TriangularProduct:
        return TriangularProduct(
            product,
            base.why,
            right,
            cuboids=base.cuboids,
            structure=structure.T if right else structure,
            aliased=aliased,
            leaf=_LEAF_ON_GPUS if topology.gpus else _JOINED,
            joined=not topology.gpus,
            whole=topology.gpus and nprocs == 1 and ITEMSIZE[dtype] > 2,
        )

    return _quickest(product.T if right else product, planned, topology, overlap=overlap)


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
    """The plan of a product with a completed matrix, on the right side if `right`: of symm and hemm."""
    topology = replace(topology, push=False)
    inner = choose(dtype, *descs, context=_context(dtype, topology, nprocs, overlap=overlap))
    place = Placement.of(descs[1] if right else descs[0])
    return SymmetricProduct(inner, structure, place, right)


def _context(dtype: str, topology: Topology, nprocs: int, *, overlap: bool) -> PlanningContext:
    """The context of a plan whose partial products travel in the default dtype, as `dtypes.wire_of` says."""
    wire = "float32" if dtype == "float16" else ""
    return PlanningContext(topology, nprocs, overlap=overlap, wire=wire, reproducible=topology.reproducible)


def _quickest(product: Product, planned: Callable[[SummaC], PlanT], topology: Topology, *, overlap: bool) -> PlanT:
    """The plan on D's grid, or one on another arrangement that is predicted to take less time."""
    topology = replace(topology, push=False, reproducible=False)
    context = _context(product.dtype, topology, product.nprocs, overlap=overlap)
    search = Search[PlanT](context, _AS_QUICK)
    search.consider(*(planned(base) for base in on_grids(product) if isinstance(base, SummaC)))
    search.end_of_kind()
    for bases in _arrangements(product, context.machine, lambda seconds: search.improves(seconds / 2)):
        search.consider(*map(planned, bases))
    complete = context.complete(found := search.found)
    assert isinstance(complete, type(found)), "completion keeps the kind of a plan"
    return complete


def _arrangements(product: Product, machine: Hardware, promises: Callable[[float], bool]) -> Iterator[list[SummaC]]:
    """Cyclic arrangements of all ranks, and arrangements with layers."""
    m, n, k, p = product.m, product.n, product.k, product.nprocs
    why, cyclic = "a cyclic arrangement of all ranks divides the triangle evenly", []
    for p1, p2, p3 in triples(p):
        if p3 == 1:
            rows, columns = (Split(x, max(1, min(_BLOCK, -(-x // parts))), parts) for x, parts in ((m, p1), (n, p2)))
            cyclic.append(SummaC(product, why, cuboids=Cuboids(rows, columns, Split(k, max(1, k), 1), (1, p1, 1))))
    yield cyclic
    found = 0
    for plans in over_all_ranks(product, (), machine, promises):
        suitable = [plan for plan in plans if isinstance(plan, SummaC) and plan.sum_placement is None]
        yield suitable
        found += len(suitable)
        if found >= _ARRANGEMENTS:
            return
