"""The choice of a plan from the layouts of op(A), op(B) and D: a decision table, and the bytes that each plan moves.

The tensor-parallel examples of cuBLASMp, D = A^T B on 4 ranks, described by op(A) = A^T, B and D:

>>> row, column, whole = MatrixDescriptor.row_wise, MatrixDescriptor.column_wise, MatrixDescriptor.replicated
>>> sizes = ((8, 4, 2), (2, 4, 8), (2, 4, 8))
>>> for (m, n, k), kinds in zip(sizes, ((row, column, row), (column, row, column), (column, row, whole)), strict=True):
...     descs = [make(*shape, 4) for make, shape in zip(kinds, ((m, k), (k, n), (m, n)), strict=True)]
...     plan = choose("float32", *descs, context=PlanningContext(Topology(), 4))
...     print(plan.name, plan.max_received_nbytes)
AllGatherGemm 24
GemmReduceScatter 24
GemmAllReduce 48
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from pblas.errors import PlanError
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.matmul.choose_granularity import PlanningContext, needed_nbytes
from pblas.matmul.choose_grid import best_triple, least_received, misfits, natural_layouts, on_grids, over_all_ranks
from pblas.matmul.one_dimensional_plan import AllGatherGemm, GemmAllReduce, GemmReduceScatter, LocalGemm
from pblas.matmul.product_plan import Distribution, Product, ProductPlan
from pblas.matmul.summa_plan import Summa
from pblas.simulation.hardware import CORE, Topology

_MARGIN, _QUICKER = 1.05, 0.9
"""A one-dimensional plan with thin GEMMs is compared with plans over the grids that receive at most _MARGIN times as
many bytes. One of them replaces it if its simulated time is below _QUICKER times that of the one-dimensional plan."""
_THIN, _LONG = 32, 5e8
"""GEMMs are thin if shards have at most _THIN rows, and a rank has at least _LONG floating-point operations. Smaller
products, and products with thicker shards, took up to 1.9 times as long over grids, and 2.2 times with messages
(docs/performance.md)."""
_TOO_DEAR = 16
"""On described hardware, a plan that fits into memory is rejected if it costs more than this multiple of the cheapest
plan that does not fit. The chosen plan then shows how much memory would be needed."""
BYTES_PER_FLOP = CORE.far.bandwidth / CORE.float64  # bytes that arrive in the time of one flop: the cost of idle ranks
_GOOD = 1.2  # the search goes on while the best plan costs more than this multiple of the lower bound
_LITTLE = 2 << 20
"""Bytes: no general plan is considered if the best one-dimensional plan costs at most this. Packing panels takes longer
than receiving a third of it: for 64 to 512 rows and columns, general plans took up to 2.2 times as long on 8 ranks
(docs/performance.md)."""
_AS_GOOD = 1.02
"""The search ends with a plan that receives at most this multiple of the bytes of the best layouts for its arrangement
of ranks."""
_LESS = 0.75
"""A plan over the grids of the matrices must cost less than this fraction of a one-dimensional plan, and an arrangement
of all ranks less than this fraction of either. Both pack panels, and move partial products or D after the last GEMM;
the count of bytes does not show that."""
_LAYOUTS = 256  # size of the cache of plans: loops multiply matrices of the same few layouts again and again


def choose(
    dtype: str,
    a: MatrixDescriptor,
    b: MatrixDescriptor,
    d: MatrixDescriptor,
    *,
    context: PlanningContext,
    strict: bool = False,
) -> ProductPlan:
    """The plan for these layouts whose busiest rank receives the fewest bytes, idle ranks taken into account.

    Plans must fit into memory. If none does, the result is the plan that needs least memory. If the limit is the memory
    of `hardware`, the result may also be a plan that does not fit, where all others cost many times as much. If GEMMs
    would be thin, plans that receive about as many bytes are compared by simulated time. `a`, `b` and `d` are those of
    op(A), op(B) and D; the context gets their storage orders. With `strict` layouts that do not conform raise
    PlanError.

    >>> row, column = MatrixDescriptor.row_wise(8, 8, 4), MatrixDescriptor.column_wise(8, 8, 4)
    >>> for d in (row, column):
    ...     print(choose("float64", column, row, d, context=PlanningContext(Topology(), 4)).name)
    GemmReduceScatter
    GemmReduceScatter
    >>> grid = MatrixDescriptor(8, 8, 2, 2, Grid(2, 2))
    >>> choose("float64", grid, grid, grid, context=PlanningContext(Topology(), 4)).name
    'SummaC'
    """
    context = replace(context, orders=a.order + b.order + d.order)
    if context.memory_nbytes is not None or context.hardware is not None:  # whether it fits depends on the algorithm
        return _complete(dtype, a, b, d, context, strict=strict)
    if context.known is None and not context.topology.push:
        return _completed(dtype, a, b, d, context, strict=strict)
    return context.complete(_remembered(dtype, a, b, d, replace(context, known=None), strict=strict))


def _best(
    dtype: str,
    a: MatrixDescriptor,
    b: MatrixDescriptor,
    d: MatrixDescriptor,
    context: PlanningContext,
    *,
    strict: bool,
    below: float = math.inf,
) -> ProductPlan:
    """The plan of `choose`, before `PlanningContext.complete`; any plan if that one costs `below` bytes or more."""
    nprocs, topology = context.nprocs, context.topology
    conforming = list(one_dimensional(dtype, a, b, d, nprocs, context.others))
    running = [plan for plan in conforming if topology.runs_one_dimensional or not plan.travels]
    fitting = [plan for plan in running if context.fits(plan)]
    best = min(fitting, key=lambda plan: plan.max_received_nbytes, default=None)
    if best is None or (
        best.max_received_nbytes and not strict and context.transport != "push" and _cost(best) > _LITTLE
    ):
        nonconforming = misfits(a, b, d)
        if strict and nonconforming and not conforming:
            raise PlanError(f"strict=True, and the layouts do not conform: {'; '.join(nonconforming)}")
        distributions = [Distribution("grid", None, Placement.of(desc)) for desc in (a, b, d)]
        dtype_b, dtype_d = context.others
        product = Product(a.m, b.n, a.n, dtype, nprocs, *distributions, dtype_b=dtype_b, dtype_d=dtype_d)
        large = [] if fitting else list(running)
        best = _general(context, product, nonconforming, best, large, strict=strict, below=below)
    return best


def _complete(
    dtype: str, a: MatrixDescriptor, b: MatrixDescriptor, d: MatrixDescriptor, context: PlanningContext, *, strict: bool
) -> ProductPlan:
    return context.complete(_best(dtype, a, b, d, context, strict=strict))


_remembered, _completed = lru_cache(_LAYOUTS)(_best), lru_cache(_LAYOUTS)(_complete)


def _general(
    context: PlanningContext,
    product: Product,
    misfits_: tuple[str, ...],
    best: ProductPlan | None,
    large: list[ProductPlan],
    *,
    strict: bool,
    below: float,
) -> ProductPlan:
    """The cheapest of `best`, the plans over the grids of the matrices, and arrangements of all ranks."""
    cost = math.inf if best is None else _cost(best)
    good, most = _GOOD * product.lower_bound * product.itemsize, _LESS * cost
    if best is not None and context.chunks is None and _is_thin(best):  # chunks= refers to this plan
        best = _quicker(context, best, [plan for plan in on_grids(product, misfits_) if _cost(plan) <= _MARGIN * cost])
    for plan in on_grids(product, misfits_):
        if cost <= good:
            break
        if (plan_cost := _cost(plan, most)) < most:
            if context.fits(plan):
                best, cost, most = plan, plan_cost, plan_cost
            else:
                large.append(plan)
    if strict and best is None and not large:
        raise PlanError("strict=True, but op(A), op(B) and D are all replicated, so none can stay; leave strict out")
    most = min(most, _LESS * cost)
    if not strict and cost > good:
        for plan in over_all_ranks(product, misfits_, min(most, below) / product.itemsize):
            if (plan_cost := _cost(plan, most)) < most:
                if not context.fits(plan):
                    large.append(plan)
                    continue
                best, most = plan, plan_cost
                if plan_cost <= _AS_GOOD * least_received(product, plan.cuboids.extents) * product.itemsize:
                    break
    return _with_memory(context, best, large)


def _with_memory(context: PlanningContext, best: ProductPlan | None, large: list[ProductPlan]) -> ProductPlan:
    """The best plan that fits into memory; a plan of `large` if none fits, or if it costs a small part of that one."""
    if best is None:
        return min(large, key=lambda plan: needed_nbytes(context.complete(plan)))
    if large and context.memory_nbytes is None:
        cheapest = min(large, key=_cost)
        return cheapest if _TOO_DEAR * _cost(cheapest) < _cost(best) else best
    return best


def _quicker(context: PlanningContext, plan: ProductPlan, shortlist: list[Summa]) -> ProductPlan:
    """The plan, or the quickest one of the shortlist if its simulated time is much shorter."""
    fitting = list(filter(context.fits, shortlist))
    quickest = min(fitting, key=context.seconds, default=plan)
    return quickest if context.seconds(quickest) < _QUICKER * context.seconds(plan) else plan


def _is_thin(plan: ProductPlan) -> bool:
    """Whether the GEMMs of a one-dimensional plan are much narrower, or less deep, than GEMMs of panels would be."""
    product = plan.product
    if 2 * product.m * product.n * product.k < _LONG * product.nprocs:
        return False
    return any(part <= _THIN <= whole // 2 for part, whole in plan.cuts)


def _cost(plan: ProductPlan, most: float = math.inf) -> float:
    """Bytes that the busiest rank receives, plus bytes that could arrive in its GEMM time above the average."""
    product = plan.product
    share = 2 * product.m * product.n * product.k / product.nprocs
    idle, received = BYTES_PER_FLOP * max(0.0, 2 * plan.busiest_multiplies - share), 0
    for rank in plan.extreme_ranks():
        if received + idle >= most:
            break
        received = max(received, plan.received_nbytes(rank))
    return received + idle


@lru_cache(_LAYOUTS)
def choose_output(
    dtype: str,
    a: MatrixDescriptor,
    b: MatrixDescriptor,
    *,
    nprocs: int,
    order: Literal["F", "C"],
    others: tuple[str, str] = ("", ""),
) -> MatrixDescriptor:
    """The layout of D for which the cheapest plan receives the fewest bytes.

    >>> a, b = MatrixDescriptor.row_wise(64, 8, 4), MatrixDescriptor.row_wise(8, 8, 4)
    >>> choose_output("float64", a, b, nprocs=4, order="F") == MatrixDescriptor.row_wise(64, 8, 4)
    True
    """
    outputs = list(_outputs(a, b, nprocs, order))
    served: list[tuple[MatrixDescriptor, float]] = [
        (d, min(plan.max_received_nbytes for plan in plans))
        for d in outputs
        if (plans := list(one_dimensional(dtype, a, b, d, nprocs, others)))
    ]
    if served:
        return min(served, key=lambda entry: entry[1])[0]  # the first of equals
    # No later arrangement can cost less than `least`, if no matrix has copies: then the search for a layout ends.
    chosen, least, once = outputs[0], math.inf, Placement.of(a).copies == Placement.of(b).copies == 1
    for d in dict.fromkeys((*_grid_outputs(a, b, order), *outputs)):
        context = PlanningContext(Topology(), nprocs, a.order + b.order + d.order, others=others)
        cost = _cost(_best(dtype, a, b, d, context, strict=False, below=least if once else math.inf))
        if cost < least:
            chosen, least = d, cost
    return chosen


def choose_layouts(
    m: int, n: int, k: int, dtype: str, *, nprocs: int, memory_nbytes: int | None = None, dtype_d: str = ""
) -> tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor]:
    """Layouts of op(A), op(B) and D for which a plan receives as few bytes as any arrangement of the ranks can.

    >>> [desc.grid.nprow for desc in choose_layouts(64, 64, 64, "float64", nprocs=8)]
    [2, 4, 2]
    """
    whole = Distribution("all")
    product = Product(m, n, k, dtype, nprocs, whole, whole, whole, dtype_d=dtype_d)
    return natural_layouts(m, n, k, best_triple(product, memory_nbytes))


def _distributions(desc: MatrixDescriptor, nprocs: int) -> list[Distribution]:
    """Every way to read a descriptor as a one-dimensional layout over all ranks; empty for a 2D grid."""
    if desc.is_replicated and desc.nprocs == nprocs:
        return [Distribution("all")]
    distributions = []
    if desc.is_row_wise:
        distributions.append(Distribution("rows", _owned(desc.rows)))
    if desc.is_column_wise:
        distributions.append(Distribution("columns", _owned(desc.columns)))
    return distributions


def _owned(split: Split) -> Split:
    """The split with an owner: on a grid of one process, source -1 (replicated) means the same as source 0."""
    return Split(split.n, split.nb, 1) if split.is_replicated else split


def one_dimensional(
    dtype: str,
    a: MatrixDescriptor,
    b: MatrixDescriptor,
    d: MatrixDescriptor,
    nprocs: int,
    others: tuple[str, str] = ("", ""),
) -> Iterator[ProductPlan]:
    """The one-dimensional plans for three layouts, for every way to read them; arguments as for `choose`."""
    (m, k), n = a.shape, b.n
    for distributions in itertools.product(*(_distributions(desc, nprocs) for desc in (a, b, d))):
        yield from _serving(Product(m, n, k, dtype, nprocs, *distributions, dtype_b=others[0], dtype_d=others[1]))


def _serving(product: Product) -> Iterator[ProductPlan]:
    """The rows of the decision table that serve a product, cheapest kind first."""
    for transposed, p in ((False, product), (True, product.T)):
        rows, own_rows = p.d.along("rows"), p.a.along("rows")
        gathered, other = ("A", "B") if transposed else ("B", "A")
        line = "column" if transposed else "row"
        if rows is not None and (p.a.axis == "all" or (own_rows is not None and own_rows.equivalent(rows))):
            have = f"op({other}) and D have the same {line}s on each rank"
            if p.a.axis == "all":
                have = f"op({other}) is replicated"
            if p.b.axis == "all":
                yield LocalGemm(product, f"{have}, op({gathered}) is replicated", transposed)
            elif p.nprocs == 1:
                yield LocalGemm(product, "there is one rank", transposed)
            else:
                why = f"{have}; op({gathered}) is {p.b if not transposed else p.b.T}, so it is gathered"
                yield AllGatherGemm(product, why, transposed)
    if product.d.axis == "all" and product.a.axis == product.b.axis == "all":
        yield LocalGemm(product, "everything is replicated")
    inner, other_inner = product.a.along("columns"), product.b.along("rows")
    split = inner or other_inner
    conform = (
        split is not None
        and (product.a.axis == "all" or inner is not None)
        and (product.b.axis == "all" or other_inner is not None)
        and (inner is None or other_inner is None or inner.equivalent(other_inner))
    )
    if conform:
        why = "op(A) and op(B) split k in the same way"
        if not (inner and other_inner):
            why = "one operand splits k, the other is replicated"
        if product.nprocs == 1:
            yield LocalGemm(product, "there is one rank")
        elif product.d.axis == "all":
            why += ", D is replicated: each part of D is added on one rank, then sent to all"
            yield GemmAllReduce(product, why, product.m > product.n)
        else:
            why += ": the owners of D add the partial products"
            yield GemmReduceScatter(product, why, product.d.axis == "rows")


def _outputs(
    a: MatrixDescriptor, b: MatrixDescriptor, nprocs: int, order: Literal["F", "C"]
) -> Iterator[MatrixDescriptor]:
    """Candidate layouts of D: cut as op(A)'s rows, as op(B)'s columns, or evenly; replicated if both operands are."""
    m, n = a.m, b.n
    if a.is_replicated and b.is_replicated and a.nprocs == b.nprocs == nprocs:
        yield MatrixDescriptor.replicated(m, n, nprocs, order=order)
        return
    if a.is_row_wise:
        yield MatrixDescriptor(m, n, a.mb, max(n, 1), Grid.column(a.grid.nprow), a.rsrc, 0, order, imb=a.imb)
    if b.is_column_wise:
        yield MatrixDescriptor(m, n, max(m, 1), b.nb, Grid.row(b.grid.npcol), 0, b.csrc, order, inb=b.inb)
    even = (MatrixDescriptor.column_wise, MatrixDescriptor.row_wise)
    for make in even if n >= m else even[::-1]:
        yield make(m, n, nprocs, order=order)


def _grid_outputs(a: MatrixDescriptor, b: MatrixDescriptor, order: Literal["F", "C"]) -> Iterator[MatrixDescriptor]:
    """Layouts of D on the grids of op(A) and op(B): rows as those of op(A), columns as those of op(B) if they fit."""
    for x in (a, b):
        fits = b.grid.npcol == x.grid.npcol and b.csrc >= 0, a.grid.nprow == x.grid.nprow and a.rsrc >= 0
        columns = (b.nb, b.csrc, b.inb) if fits[0] else (x.nb, max(x.csrc, 0), None)
        rows = (a.mb, a.rsrc, a.imb) if fits[1] else (x.mb, max(x.rsrc, 0), None)
        yield MatrixDescriptor(
            *(a.m, b.n, rows[0], columns[0], x.grid, rows[1], columns[1], order), imb=rows[2], inb=columns[2]
        )
