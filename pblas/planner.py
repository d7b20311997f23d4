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
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from pblas.errors import PlanError
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.layouts.split import Split
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

_CHUNK_NBYTES = 4 << 20
_MAX_CHUNKS = 8
# A piece of the GEMM narrower than this spends its time on packing the left operand anew: with 256 columns OpenBLAS
# loses a few per cent, with 64 about a quarter (n = 4096, float64).
_MIN_COLUMNS = 256


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
) -> Plan:
    """The plan that receives the fewest bytes of those that serve these layouts.

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
        chunks: pieces per shard; None lets the planner choose (global).

    Raises:
        PlanError: no plan serves them; the text says what to change.

    >>> row, column = MatrixDescriptor.row_wise(8, 8, 4), MatrixDescriptor.column_wise(8, 8, 4)
    >>> for d in (row, column):
    ...     print(choose(8, 8, 8, "float64", column, row, d, nprocs=4, machine=Machine()).name)
    GemmReduceScatter
    GemmReduceScatter
    """
    found = list(_plans(m, n, k, dtype, a, b, d, nprocs))
    if not found:
        raise PlanError(_refusal(m, n, k, dtype, a, b, d, nprocs))
    best = min(found, key=lambda plan: plan.max_received_nbytes)  # the first of equals: the table's order
    transport = machine.transport(nprocs)
    wanted = _default_chunks(best, transport) if chunks is None else chunks
    transposed = best.transposed
    if transport == "push" and isinstance(best, GemmAllReduce):
        transposed = d.order == "C"  # pieces of D are contiguous then
    plan = type(best)(best.product, best.why, transposed, wanted, transport, overlap)
    if transport != "push" or isinstance(plan, LocalGemm):
        return plan
    return replace(plan, road=choose_road(plan, chunks))


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
    served = [
        (d, min(plan.max_received_nbytes for plan in plans))
        for d in _outputs(m, n, a, b, nprocs, order)
        if (plans := list(_plans(m, n, k, dtype, a, b, d, nprocs)))
    ]
    if not served:
        raise PlanError(_refusal(m, n, k, dtype, a, b, None, nprocs))
    return min(served, key=lambda entry: entry[1])[0]  # the first of equals


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


def _plans(
    m: int,
    n: int,
    k: int,
    dtype: str,
    a: MatrixDescriptor,
    b: MatrixDescriptor,
    d: MatrixDescriptor,
    nprocs: int,
) -> Iterator[Plan]:
    """Every plan that serves three layouts, however they can be read."""
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


def _refusal(
    m: int,
    n: int,
    k: int,
    dtype: str,
    a: MatrixDescriptor,
    b: MatrixDescriptor,
    d: MatrixDescriptor | None,
    nprocs: int,
) -> str:
    """Text of the PlanError: what is there, and a change that would be served."""
    described = [f"op(A) {m} x {k} {_word(a, nprocs)}", f"op(B) {k} x {n} {_word(b, nprocs)}"]
    if d is not None:
        described.append(f"D {m} x {n} {_word(d, nprocs)}")
    text = f"pmatmul: no plan serves {', '.join(described)} on {nprocs} ranks"
    if d is not None:
        for candidate in _outputs(m, n, a, b, nprocs, "F"):
            if any(_plans(m, n, k, dtype, a, b, candidate, nprocs)):
                return f"{text}. Give D the layout {candidate!r}, or leave out=None"
    return (
        f"{text}. Split op(A) and D alike by rows, or op(B) and D alike by columns, or op(A) by columns and op(B) "
        f"by rows alike (block size, source and number of ranks); MatrixDescriptor.row_wise, .column_wise and "
        f".replicated make such layouts"
    )


def _word(desc: MatrixDescriptor, nprocs: int) -> str:
    spreads = _spreads(desc, nprocs)
    if not spreads:
        kind = f"replicated on {desc.nprocs} ranks only" if desc.is_replicated else "block-cyclic in both dimensions"
        return f"{kind} on a {desc.grid.nprow} x {desc.grid.npcol} grid"
    split = spreads[0].split
    return f"{spreads[0]}" + (
        f" in blocks of {split.nb} from rank {split.src} on {split.nprocs} ranks" if split else ""
    )
