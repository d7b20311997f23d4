"""The choice of a plan from the layouts of op(A), op(B) and D: a decision table, and the predicted time of each plan.

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
from typing import Generic, Literal, TypeVar

from pblas.errors import PlanError
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.matmul.choose_granularity import PlanningContext, needed_nbytes
from pblas.matmul.choose_grid import free_layouts, misfits, natural_plan, on_grids, over_all_ranks
from pblas.matmul.one_dimensional_plan import AllGatherGemm, GemmAllReduce, GemmReduceScatter, LocalGemm
from pblas.matmul.product_plan import Distribution, Product, ProductPlan
from pblas.simulation.hardware import Topology
from pblas.simulation.simulate import least, predict

_SURE = 0.95  # part of the bound of an outline that a plan on CPUs takes at any rate
_AS_QUICK, _QUICKER, _MUCH_QUICKER = 0.97, 0.9, 0.8
"""A plan replaces one that was considered before, and so is as simple or simpler, if it is predicted to take less than
_AS_QUICK times as long. One-dimensional plans are simpler than those over the grids of the matrices, and these are
simpler than others. Where the hardware is not described, the rates are those of no machine in particular: then a plan
has to take less than _QUICKER times as long as one that is as simple, and _MUCH_QUICKER times as long as a simpler one.
"""
PlanT = TypeVar("PlanT", bound=ProductPlan)
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
    """The plan for these layouts that is predicted to take the least time, of those that fit into memory.

    If none fits, the result is the plan that needs least memory. `a`, `b` and `d` are those of op(A), op(B) and D; the
    context gets their storage orders. With `strict` layouts that do not conform raise PlanError.

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
    dtype: str, a: MatrixDescriptor, b: MatrixDescriptor, d: MatrixDescriptor, context: PlanningContext, *, strict: bool
) -> ProductPlan:
    """The plan of `choose`, before `PlanningContext.complete`."""
    nprocs, topology = context.nprocs, context.topology
    conforming = list(context.allowed(one_dimensional(dtype, a, b, d, nprocs, context.others)))
    running = [plan for plan in conforming if topology.runs_one_dimensional or not plan.travels]
    search = Search[ProductPlan](context)
    for plan in running:
        search.consider(plan)
    if search.best is not None and (strict or context.transport == "push"):
        return search.best
    search.end_of_kind()
    nonconforming = misfits(a, b, d)
    if strict and nonconforming and not any(one_dimensional(dtype, a, b, d, nprocs, context.others)):
        raise PlanError(f"strict=True, and the layouts do not conform: {'; '.join(nonconforming)}")
    product = general_product(dtype, a, b, d, nprocs, context.others)
    for summa in context.allowed(on_grids(product, nonconforming)):
        search.consider(summa)
    search.end_of_kind()
    if not strict or (context.reproducible and search.best is None):
        for summas in over_all_ranks(product, nonconforming, context.machine, search.promises):
            search.consider(*context.allowed(summas))
    elif search.best is None and not search.large:
        raise PlanError("strict=True, but op(A), op(B) and D are all replicated, so none can stay; leave strict out")
    return search.found


def _complete(
    dtype: str, a: MatrixDescriptor, b: MatrixDescriptor, d: MatrixDescriptor, context: PlanningContext, *, strict: bool
) -> ProductPlan:
    return context.complete(_best(dtype, a, b, d, context, strict=strict))


_remembered, _completed = lru_cache(_LAYOUTS)(_best), lru_cache(_LAYOUTS)(_complete)


def general_product(
    dtype: str,
    a: MatrixDescriptor,
    b: MatrixDescriptor,
    d: MatrixDescriptor,
    nprocs: int,
    others: tuple[str, str] = ("", ""),
) -> Product:
    """The product of matrices with these descriptors, for general plans; arguments as for `choose`."""
    distributions = [Distribution("grid", None, Placement.of(desc)) for desc in (a, b, d)]
    return Product(a.m, b.n, a.n, dtype, nprocs, *distributions, dtype_b=others[0], dtype_d=others[1])


class Search(Generic[PlanT]):
    """The quickest plan so far that fits into memory, of those that were considered, simpler ones first."""

    def __init__(self, context: PlanningContext, simpler: float | None = None) -> None:
        self._context, self._neutral = context, context.neutral
        self._simpler, self._alike = (_MUCH_QUICKER, _QUICKER) if context.hardware is None else (_AS_QUICK, _AS_QUICK)
        if simpler is not None:
            self._simpler, self._alike = simpler, 1.0
        self.best: PlanT | None = None
        self.seconds = math.inf  # predicted for `best`
        self.large: list[PlanT] = []  # plans that do not fit
        self._below = math.inf  # seconds that the next plan must not take

    @property
    def found(self) -> PlanT:
        """The best plan, or if none fits the plan that needs least memory."""
        if self.best is not None:
            return self.best
        return min(self.large, key=lambda plan: needed_nbytes(self._context.complete(plan)))

    def improves(self, seconds: float) -> bool:
        """Whether a plan that takes at least these seconds may replace the best one."""
        return seconds < self._below

    def promises(self, bound: float) -> bool:
        """Whether a plan may replace the best one by the bound of its outline.

        On GPUs any may: panels may be wider than in outline, and travel beside the products.
        """
        return self._context.topology.gpus or self.improves(_SURE * bound)

    def end_of_kind(self) -> None:
        """From now on plans are less simple than those that were considered before."""
        self._below = self._simpler * self.seconds

    def consider(self, *plans: PlanT) -> None:
        """Take a plan if it is quicker than the best one, and fits; those that may be the quickest are tried first."""
        machine, neutral = self._context.machine, self._neutral
        bounds = [least(neutral.complete(plan, outline=True), machine) for plan in plans]
        for bound, plan in sorted(zip(bounds, plans, strict=True), key=lambda pair: pair[0]):
            if not self.promises(bound):
                return
            if self.improves(seconds := predict(neutral.complete(plan), machine, self._below)):
                if self._context.fits(plan):
                    self.best, self.seconds, self._below = plan, seconds, self._alike * seconds
                else:
                    self.large.append(plan)


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
    """The layout of D for which a plan is predicted to take the least time.

    >>> a, b = MatrixDescriptor.row_wise(64, 8, 4), MatrixDescriptor.row_wise(8, 8, 4)
    >>> choose_output("float64", a, b, nprocs=4, order="F") == MatrixDescriptor.row_wise(64, 8, 4)
    True
    """
    outputs, context = list(_outputs(a, b, nprocs, order)), PlanningContext(Topology(), nprocs, others=others)
    search, chosen = Search[ProductPlan](context), outputs[0]
    plans = [(plan, d) for d in outputs for plan in one_dimensional(dtype, a, b, d, nprocs, others)]
    for plan, d in sorted(plans, key=lambda entry: entry[0].max_received_nbytes):  # if times are alike, fewest bytes
        search.consider(plan)
        chosen = d if plan is search.best else chosen
    if plans:
        return chosen
    for d in dict.fromkeys((*_grid_outputs(a, b, order), *outputs)):
        product = general_product(dtype, a, b, d, nprocs, others)
        before = search.best
        for summa in on_grids(product):
            search.consider(summa)
        for summas in over_all_ranks(product, (), context.machine, search.promises):
            search.consider(*summas)
        chosen = chosen if search.best is before else d
    return chosen


def choose_layouts(
    m: int, n: int, k: int, dtype: str, *, context: PlanningContext
) -> tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor]:
    """Layouts of op(A), op(B) and D for which a plan is predicted to take the least time.

    >>> context = PlanningContext(Topology(), 8)
    >>> [desc.grid.nprow for desc in choose_layouts(64, 64, 64, "float64", context=context)]
    [1, 1, 1]
    """
    search, considered = Search[ProductPlan](context), []
    for layouts, sizes in free_layouts(m, n, k, dtype, context.nprocs, context.machine, search.promises):
        product = general_product(dtype, *layouts, context.nprocs, context.others)
        one = one_dimensional(dtype, *layouts, context.nprocs, context.others)
        for plan in context.allowed(itertools.chain(one, (natural_plan(product, sizes),), on_grids(product))):
            search.consider(plan)
            considered.append((plan, layouts))
    return next(layouts for plan, layouts in considered if plan is search.found)


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
