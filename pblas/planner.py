"""Which plan serves three given layouts: one decision table, and the bytes that each row of it would move.

The tensor-parallel examples of cuBLASMp, D = A^T B on 4 ranks, described by op(A) = A^T, B and D:

>>> row, column, whole = MatrixDescriptor.row_wise, MatrixDescriptor.column_wise, MatrixDescriptor.replicated
>>> sizes = ((8, 4, 2), (2, 4, 8), (2, 4, 8))
>>> for (m, n, k), kinds in zip(sizes, ((row, column, row), (column, row, column), (column, row, whole)), strict=True):
...     descs = [make(*shape, 4) for make, shape in zip(kinds, ((m, k), (k, n), (m, n)), strict=True)]
...     plan = choose(m, n, k, "float32", *descs, nprocs=4, machine=Machine())
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
from typing import Literal

from pblas.arrangements import best_triple, least_received, misfits, natural_layouts, on_grids, over_all_ranks
from pblas.errors import PlanError
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.machines import NVLINK, flops
from pblas.plan import (
    AllGatherGemm,
    GemmAllReduce,
    GemmReduceScatter,
    LocalGemm,
    Machine,
    Plan,
    Product,
    Spread,
    Transport,
)
from pblas.roads import choose_road
from pblas.summa import PANEL, Summa, SummaC, placed

_CHUNK_NBYTES = 4 << 20
_MAX_CHUNKS = 8
# A piece of the GEMM narrower than this spends its time on packing the left operand anew: with 256 columns OpenBLAS
# loses a few per cent, with 64 about a quarter (n = 4096, float64).
_MIN_COLUMNS = 256
_MIN_PANEL = 128
"""Panels are not cut narrower: a GEMM of this depth loses 4 % (float64, AMD EPYC, OpenBLAS)."""
_MIN_PANELS = 4
"""Panels that K or N is cut into if they are wide enough, so that one travels while another is multiplied."""
_PANEL_ON_GPUS = 2048
"""Columns of N of a panel: a GEMM of as many takes several times as long as reading the operand that stays."""
_ADDING = 1 / 32
"""On GPUs additions of a panel's product to D may take this part of the time of its GEMM, if nothing waits for it."""
_BYTES_PER_FLOP = 1 / 16
"""Bytes that arrive in the time of a flop: 50 GFLOP/s of a core beside 3 GB/s; it weighs ranks that idle."""
_GOOD = 1.2
"""Others are looked for if what is found receives more than this much of the lower bound."""
_AS_GOOD = 1.02
"""The search ends with a plan that receives hardly more than its arrangement would with the best layouts."""
_LESS = 0.75
"""A plan over the grids of the matrices is taken if it costs less than this much of a one-dimensional one, and an
arrangement of all ranks if it costs less than this much of either: they pack panels and carry partial products or D
behind the last GEMM, which no count of bytes shows."""


def choose(
    m: int,
    n: int,
    k: int,
    dtype: str,
    a: MatrixDescriptor,
    b: MatrixDescriptor,
    d: MatrixDescriptor,
    *,
    nprocs: int,
    machine: Machine,
    overlap: bool = True,
    chunks: int | None = None,
    strict: bool = False,
) -> Plan:
    """The plan that receives the fewest bytes of those that serve these layouts, and does not idle for it.

    Args:
        m: rows of D (global).
        n: columns of D (global).
        k: columns of op(A) (global).
        dtype: name of the dtype (global).
        a: descriptor of op(A), m x k, that is already transposed where op says so (global).
        b: descriptor of op(B), k x n (global).
        d: descriptor of D, m x n (global).
        nprocs: ranks (global).
        machine: facts about it (global).
        overlap: let data move while the GEMM runs (global).
        chunks: pieces per shard, panels of a general plan; None lets the planner choose (global).
        strict: refuse layouts that do not conform (global).

    Raises:
        PlanError: strict=True, and they do not conform; the text says where.

    >>> row, column = MatrixDescriptor.row_wise(8, 8, 4), MatrixDescriptor.column_wise(8, 8, 4)
    >>> for d in (row, column):
    ...     print(choose(8, 8, 8, "float64", column, row, d, nprocs=4, machine=Machine()).name)
    GemmReduceScatter
    GemmReduceScatter
    >>> grid = MatrixDescriptor(8, 8, 2, 2, Grid(2, 2))
    >>> choose(8, 8, 8, "float64", grid, grid, grid, nprocs=4, machine=Machine()).name
    'SummaC'
    """
    transport = machine.transport(nprocs)
    conforming = list(one_dimensional(m, n, k, dtype, a, b, d, nprocs))
    running = [plan for plan in conforming if machine.runs_one_dimensional or isinstance(plan, LocalGemm)]
    best = min(running, key=lambda plan: plan.max_received_nbytes, default=None)
    if best is None or (best.max_received_nbytes and not strict and transport != "push"):
        best = _general(m, n, k, dtype, a, b, d, nprocs, best, strict=strict and not conforming)
    transposed = best.transposed
    if transport == "push" and isinstance(best, Summa):
        transport = "window"
    if transport == "push" and isinstance(best, GemmAllReduce):
        transposed = d.order == "C"  # pieces of D are contiguous then
    if isinstance(best, Summa):
        best = replace(best, width=_width(best, transport, chunks, gpus=machine.gpus))
    lines = max(1, best.oriented.n, best.oriented.k)  # no shard has more to be cut
    wanted = _default_chunks(best, transport) if chunks is None else min(chunks, lines)
    plan = replace(best, transposed=transposed, chunks=wanted, transport=transport, overlap=overlap)
    if transport != "push" or isinstance(plan, LocalGemm):
        return plan
    return replace(plan, road=choose_road(plan, chunks))


def _general(
    m: int,
    n: int,
    k: int,
    dtype: str,
    a: MatrixDescriptor,
    b: MatrixDescriptor,
    d: MatrixDescriptor,
    nprocs: int,
    best: Plan | None,
    *,
    strict: bool,
) -> Plan:
    """The cheapest of `best`, the plans over the grids of the matrices, and arrangements of all ranks."""
    found = misfits(a, b, d)
    if strict and found:
        raise PlanError(f"pmatmul: strict=True, and the layouts do not conform: {'; '.join(found)}")
    spreads = [Spread("grid", None, Placement.of(desc)) for desc in (a, b, d)]
    product = Product(m, n, k, dtype, nprocs, *spreads)
    cost = math.inf if best is None else _cost(best)
    good, most = _GOOD * product.lower_bound * product.itemsize, _LESS * cost
    for plan in on_grids(product, found):
        if cost <= good:
            break
        if (other := _cost(plan)) < most:
            best, cost, most = plan, other, other
    if strict and best is None:
        raise PlanError("pmatmul: strict=True, and op(A), op(B) and D all lie in copies, so that none of them can stay")
    most = min(most, _LESS * cost)
    if not strict and cost > good:
        for plan in over_all_ranks(product, found, most / product.itemsize):
            if (other := _cost(plan)) < most:
                best, most = plan, other
                if other <= _AS_GOOD * least_received(product, plan.cuboids.extents) * product.itemsize:
                    break
    assert best is not None, "an arrangement of all ranks serves everything"
    return best


def _cost(plan: Plan) -> float:
    """Bytes that the busiest rank receives, and what it could receive while it multiplies more than its share."""
    product = plan.product
    share = 2 * product.m * product.n * product.k / product.nprocs
    return plan.max_received_nbytes + _BYTES_PER_FLOP * max(0.0, _flops(plan) - share)


def _flops(plan: Plan) -> int:
    """Additions and multiplications of the busiest rank."""
    product = plan.oriented
    m, n, k = product.m, product.n, product.k
    if isinstance(plan, Summa):
        return plan.cuboids.flops
    if isinstance(plan, GemmReduceScatter):
        k = plan.inner.max_count
    elif product.d.axis == "rows" and product.d.split is not None:
        m = product.d.split.max_count
    return 2 * m * n * k


def _width(plan: Summa, transport: Transport, chunks: int | None, *, gpus: bool) -> int:
    """Width of a panel: all that is read in one piece, else as wide as a GEMM needs and two panels may be."""
    if not isinstance(plan, SummaC):
        extent, wanted = plan.cuboids.n.n, _PANEL_ON_GPUS if gpus else PANEL
    else:
        extent, wanted = plan.cuboids.k.max_count, _depth_on_gpus(plan, transport) if gpus else PANEL
    if chunks is not None:
        return max(1, -(-extent // chunks))
    if isinstance(plan, SummaC):
        if transport == "window" and plan.is_read_in_place and not gpus:
            return max(1, extent)
        if gpus:  # equal panels, whose rows start at multiples of 128 bytes at least
            whole = placed(plan.oriented.a).columns.max_count if plan.by_owner else extent
            width = -(-whole // max(1, -(-whole // wanted)))
            return max(_MIN_PANEL, width + -width % 64)
    return max(_MIN_PANEL, min(wanted, -(-extent // _MIN_PANELS)))


def _depth_on_gpus(plan: SummaC, transport: Transport) -> int:
    """How much of K a panel should have, so that additions to D and the wait for the first panel take least together.

    A GPU reads and writes D with every panel. Where panels are blocks of a peer, the first is multiplied while it
    arrives, and no one waits; narrower ones take less memory.
    """
    product, (m, n, k) = plan.oriented, (split.max_count for split in (plan.cuboids.m, plan.cuboids.n, plan.cuboids.k))
    if not m * n * k:
        return 1
    adding = 2 * m * n * max(4, product.itemsize) / NVLINK.memory_bandwidth
    if transport == "window" and plan.is_read_in_place:
        multiplying = flops(m, n, 1, product.dtype) / NVLINK.flops_per_second(product.dtype)
        return math.ceil(adding / (_ADDING * multiplying))
    link = NVLINK.near if transport == "window" else NVLINK.far
    arriving = (m + n) * product.itemsize / link.bandwidth
    return math.ceil(math.sqrt(k * adding / arriving))


def choose_output(
    m: int,
    n: int,
    k: int,
    dtype: str,
    a: MatrixDescriptor,
    b: MatrixDescriptor,
    *,
    nprocs: int,
    order: Literal["F", "C"],
) -> MatrixDescriptor:
    """The layout of D for which the cheapest plan receives the fewest bytes.

    >>> a, b = MatrixDescriptor.row_wise(64, 8, 4), MatrixDescriptor.row_wise(8, 8, 4)
    >>> choose_output(64, 8, 8, "float64", a, b, nprocs=4, order="F") == MatrixDescriptor.row_wise(64, 8, 4)
    True
    """
    outputs = list(_outputs(m, n, a, b, nprocs, order))
    served: list[tuple[MatrixDescriptor, float]] = [
        (d, min(plan.max_received_nbytes for plan in plans))
        for d in outputs
        if (plans := list(one_dimensional(m, n, k, dtype, a, b, d, nprocs)))
    ]
    if not served:
        served = [
            (d, _cost(_general(m, n, k, dtype, a, b, d, nprocs, None, strict=False)))
            for d in (*_grid_outputs(m, n, a, b, order), *outputs)
        ]
    return min(served, key=lambda entry: entry[1])[0]  # the first of equals


def choose_layouts(
    m: int,
    n: int,
    k: int,
    dtype: str,
    *,
    nprocs: int,
    order: Literal["F", "C"] = "F",
    memory_nbytes: int | None = None,
) -> tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor]:
    """Layouts of op(A), op(B) and D for which a plan receives as little as any arrangement of the ranks can.

    Args:
        m: rows of D (global).
        n: columns of D (global).
        k: columns of op(A) (global).
        dtype: name of the dtype (global).
        nprocs: ranks (global).
        order: of the local arrays (global).
        memory_nbytes: what a rank may use; None: no limit (global).

    >>> [desc.grid.nprow for desc in choose_layouts(64, 64, 64, "float64", nprocs=8)]
    [2, 4, 2]
    """
    whole = Spread("all")
    product = Product(m, n, k, dtype, nprocs, whole, whole, whole)
    return natural_layouts(m, n, k, best_triple(product, memory_nbytes), order)


def _spreads(desc: MatrixDescriptor, nprocs: int) -> list[Spread]:
    """Every way to read a descriptor as a one-dimensional layout over all ranks; none for a truly 2D one."""
    if desc.is_replicated and desc.nprocs == nprocs:
        return [Spread("all")]
    found = []
    if desc.is_row_wise:
        found.append(Spread("rows", desc.rows))
    if desc.is_column_wise:
        found.append(Spread("columns", desc.columns))
    return found


def one_dimensional(
    m: int,
    n: int,
    k: int,
    dtype: str,
    a: MatrixDescriptor,
    b: MatrixDescriptor,
    d: MatrixDescriptor,
    nprocs: int,
) -> Iterator[Plan]:
    """Every plan of the table that serves three layouts, however they can be read; arguments as those of `choose`."""
    for spreads in itertools.product(*(_spreads(desc, nprocs) for desc in (a, b, d))):
        yield from _serving(Product(m, n, k, dtype, nprocs, *spreads))


def _serving(product: Product) -> Iterator[Plan]:
    """The rows of the decision table that serve a product, cheapest kind first."""
    for transposed, p in ((False, product), (True, product.T)):
        rows = p.d.along("rows")
        moved, other = ("A", "B") if transposed else ("B", "A")
        line = "column" if transposed else "row"
        if rows is not None and (p.a.axis == "all" or _alike(p.a.along("rows"), rows)):
            have = "is replicated" if p.a.axis == "all" else f"has the {line}s that D has"
            if p.b.axis == "all":
                yield LocalGemm(product, f"op({other}) {have} on each rank, op({moved}) is replicated", transposed)
            elif p.nprocs == 1:
                yield LocalGemm(product, "there is one rank", transposed)
            else:
                why = f"op({other}) {have} on each rank, op({moved}) is {p.b if not transposed else p.b.T}: gather it"
                yield AllGatherGemm(product, why, transposed)
    if product.d.axis == "all" and product.a.axis == product.b.axis == "all":
        yield LocalGemm(product, "everything is replicated")
    inner, other_inner = product.a.along("columns"), product.b.along("rows")
    split = inner or other_inner
    conform = (
        split is not None
        and (product.a.axis == "all" or inner is not None)
        and (product.b.axis == "all" or other_inner is not None)
        and (inner is None or other_inner is None or _alike(inner, other_inner))
    )
    if conform:
        why = (
            "k is split alike in op(A) and op(B)"
            if inner and other_inner
            else "k is split in one, the other is replicated"
        )
        if product.nprocs == 1:
            yield LocalGemm(product, "there is one rank")
        elif product.d.axis == "all":
            yield GemmAllReduce(product, f"{why}, D is replicated: add on one rank, send to all", product.m > product.n)
        else:
            yield GemmReduceScatter(product, f"{why}: add the partial products where D lies", product.d.axis == "rows")


def _alike(first: Split | None, second: Split) -> bool:
    return first is not None and first.alike(second)


def _default_chunks(plan: Plan, transport: Transport) -> int:
    """Pieces per shard: enough that one travels while another is multiplied, none too thin for the GEMM."""
    if transport in ("window", "push") or not isinstance(plan, AllGatherGemm | GemmReduceScatter):
        return 1
    product = plan.oriented
    if isinstance(plan, AllGatherGemm):
        rows, columns = plan.shard_shape(plan.shards.src)
    elif isinstance(plan, GemmAllReduce):
        rows, columns = product.m, -(-product.n // product.nprocs)
    else:
        rows, columns = product.m, plan.shards.max_count
    wanted = rows * columns * product.itemsize // _CHUNK_NBYTES
    return max(1, min(wanted, columns // _MIN_COLUMNS, _MAX_CHUNKS))


def _outputs(
    m: int, n: int, a: MatrixDescriptor, b: MatrixDescriptor, nprocs: int, order: Literal["F", "C"]
) -> Iterator[MatrixDescriptor]:
    """Layouts of D worth a look: as op(A)'s rows, as op(B)'s columns, evenly split, replicated if all else is."""
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


def _grid_outputs(
    m: int, n: int, a: MatrixDescriptor, b: MatrixDescriptor, order: Literal["F", "C"]
) -> Iterator[MatrixDescriptor]:
    """Layouts of D on the grids of op(A) and op(B): rows as those of op(A), columns as those of op(B) if they fit."""
    for x in (a, b):
        fits = b.grid.npcol == x.grid.npcol and b.csrc >= 0, a.grid.nprow == x.grid.nprow and a.rsrc >= 0
        columns = (b.nb, b.csrc, b.inb) if fits[0] else (x.nb, max(x.csrc, 0), None)
        rows = (a.mb, a.rsrc, a.imb) if fits[1] else (x.mb, max(x.rsrc, 0), None)
        yield MatrixDescriptor(
            *(m, n, rows[0], columns[0], x.grid, rows[1], columns[1], order), imb=rows[2], inb=columns[2]
        )
