"""The general plans for three given layouts, and the best layouts when they are free.

An arrangement divides the m x n x k multiplications of the product among the ranks. It follows the grid of one matrix,
which then stays where it is, or it is p1 x p2 x p3 over all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.matmul.product_plan import Product
from pblas.matmul.summa_plan import Cuboids, Summa, SummaA, SummaC, placed

_TRIPLES = 6  # number of arrangements over all ranks that are examined: those that could receive the least


def on_grids(product: Product, misfits: tuple[str, ...] = ()) -> Iterator[Summa]:
    """Plans over the grids of D, op(A) and op(B): one for each matrix that is not replicated, which stays in place."""
    m, n, k = product.m, product.n, product.k
    a, b, d = (placed(spread) for spread in (product.a, product.b, product.d))
    if d.copies == 1:
        down, across, _ = d.strides
        cuboids = Cuboids(d.rows, d.columns, _whole(k), (down, across, 1))
        yield SummaC(product, "fewest bytes if D stays on its grid", cuboids=cuboids, misfits=misfits)
    for place, transposed, name in ((a, False, "A"), (b.T, True, "B")):
        if place.copies == 1:
            down, across, _ = place.strides
            cuboids = Cuboids(place.rows, _whole(m if transposed else n), place.columns, (down, 1, across))
            for sum_placement in _sum_placements(product.T if transposed else product, place.columns.nprocs):
                yield SummaA(
                    product,
                    f"fewest bytes if op({name}) stays on its grid",
                    transposed,
                    cuboids=cuboids,
                    sum_placement=sum_placement,
                    misfits=misfits,
                )


def over_all_ranks(product: Product, misfits: tuple[str, ...], most: float) -> Iterator[Summa]:
    """Plans over p1 x p2 x p3 = nprocs ranks that may receive fewer than `most` elements."""
    a, b, d = (placed(spread) for spread in (product.a, product.b, product.d))
    promising = [(least_received(product, sizes), sizes) for sizes in triples(product.nprocs)]
    for least, sizes in sorted(promising)[:_TRIPLES]:
        if least >= most:
            return
        p1, p2, p3 = sizes
        natural = natural_cuboids(product.m, product.n, product.k, sizes)
        effective: dict[tuple[int, ...], tuple[int, int, int]] = {}
        for strides in {natural.strides, (1, p1, p1 * p2)}:  # the stride of a dimension over one rank has no effect
            effective.setdefault(tuple(s if p > 1 else 0 for s, p in zip(strides, sizes, strict=True)), strides)
        for m in _options(p1, natural.m, d.rows, a.rows):
            for n in _options(p2, natural.n, d.columns, b.columns):
                for k in _options(p3, natural.k, a.columns, b.rows):
                    for strides in effective.values():
                        why = f"of all arrangements of {product.nprocs} ranks this receives the fewest bytes"
                        for sum_placement in _sum_placements(product, p3):
                            cuboids = Cuboids(m, n, k, strides)
                            yield SummaC(product, why, cuboids=cuboids, sum_placement=sum_placement, misfits=misfits)


def triples(nprocs: int) -> Iterator[tuple[int, int, int]]:
    """All (p1, p2, p3) with p1 p2 p3 = nprocs.

    >>> list(triples(4))
    [(1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)]
    """
    divisors = _divisors(nprocs)
    for p1 in divisors:
        for p2 in divisors:
            if nprocs % (p1 * p2) == 0:
                yield p1, p2, nprocs // (p1 * p2)


def least_received(product: Product, sizes: tuple[int, int, int]) -> float:
    """Lower bound of the elements that a rank of an arrangement receives, with the best layout of each matrix."""
    (p1, p2, p3), (m, n, k) = sizes, (product.m, product.n, product.k)
    return (m * k * (p2 - 1) + k * n * (p1 - 1) + m * n * (p3 - 1)) / product.nprocs


def _natural_blocks(m: int, n: int, k: int, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    p1, p2, p3 = sizes
    return max(1, -(-m // p1)), max(1, -(-n // (p2 * p3))), max(1, -(-k // (p1 * p2 * p3)))


def natural_cuboids(m: int, n: int, k: int, sizes: tuple[int, int, int]) -> Cuboids:
    """The arrangement for which `natural_layouts` makes layouts: rank i + p1 (l + p3 j)."""
    (p1, p2, p3), (mb, nb, kb) = sizes, _natural_blocks(m, n, k, sizes)
    return Cuboids(Split(m, mb, p1), Split(n, nb * p3, p2), Split(k, kb * p1, p3), (1, p1 * p3, p1))


def natural_layouts(
    m: int, n: int, k: int, sizes: tuple[int, int, int]
) -> tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor]:
    """Layouts of op(A), op(B) and D in which each rank of an arrangement holds a share of the data that it multiplies.

    op(A) is on a p1 x p3 p2 grid in blocks of kb p1 columns, op(B) on a p1 p3 x p2 grid in blocks of kb rows. So
    layer l has the same k in both: column l + p3 j of the grid of op(A), row i + p1 l of the grid of op(B).

    >>> [desc.grid for desc in natural_layouts(8, 8, 8, (2, 2, 2))]
    [Grid(nprow=2, npcol=4, order='C'), Grid(nprow=4, npcol=2, order='C'), Grid(nprow=2, npcol=4, order='C')]
    """
    (p1, p2, p3), (mb, nb, kb) = sizes, _natural_blocks(m, n, k, sizes)
    left, right = Grid(p1, p3 * p2), Grid(p1 * p3, p2)
    return (
        MatrixDescriptor(m, k, mb, kb * p1, left),
        MatrixDescriptor(k, n, kb, nb * p3, right),
        MatrixDescriptor(m, n, mb, nb, left),
    )


def best_triple(product: Product, memory_nbytes: int | None = None) -> tuple[int, int, int]:
    """The arrangement that receives the fewest elements when layouts are free, and fits into memory (None: no limit).

    Among equals it has the fewest layers, since their partial products take memory, and then the fewest messages.
    """
    needed = {sizes: _memory_nbytes(product, sizes) for sizes in triples(product.nprocs)}
    fitting = [sizes for sizes, nbytes in needed.items() if memory_nbytes is None or nbytes <= memory_nbytes]
    fitting = fitting or [min(needed, key=needed.__getitem__)]
    return min(fitting, key=lambda sizes: (least_received(product, sizes), sizes[2], sum(sizes), sizes))


def _memory_nbytes(product: Product, sizes: tuple[int, int, int]) -> int:
    """Bytes of a rank's shards of A, B and D and, if K is split over several layers, of its partial product of D."""
    (m, n, k), p = (product.m, product.n, product.k), product.nprocs
    partial = m * n // (sizes[0] * sizes[1]) if sizes[2] > 1 else 0
    return product.itemsize * ((m * k + k * n) // p) + product.d_itemsize * (m * n // p + partial)


def misfits(a: MatrixDescriptor, b: MatrixDescriptor, d: MatrixDescriptor) -> tuple[str, ...]:
    """The reasons why op(A), op(B) and D do not conform, one sentence each; none if they do.

    They conform if ScaLAPACK could multiply them without redistribution: one grid, op(A) with the rows of D, op(B) with
    the columns of D, and the same blocks of K in both.
    """
    sentences = []
    for name, x in (("op(A)", a), ("op(B)", b)):
        if not x.grid.equivalent(d.grid):
            sentences.append(_grids_differ(name, x.grid, d.grid))
    for line, name, operand, result in (("rows", "op(A)", a.rows, d.rows), ("columns", "op(B)", b.columns, d.columns)):
        if operand.nprocs == result.nprocs and not operand.equivalent(result):
            sentences.append(f"{line}: {name} has {_blocks(operand)}, D has {_blocks(result)}")
    if not _same_blocks(a.columns, b.rows):
        sentences.append(f"k: op(A) has {_blocks(a.columns)}, op(B) has {_blocks(b.rows)}")
    return tuple(sentences)


def _same_blocks(first: Split, second: Split) -> bool:
    """Whether the blocks of two splits have the same borders, or one is in one piece."""
    if 1 in (first.nprocs, second.nprocs) or max(first.nblocks, second.nblocks) <= 1:
        return True
    borders = [(s.nb if s.inb is None else s.inb, s.nb) for s in (first, second)]
    return borders[0] == borders[1]


def _grids_differ(name: str, grid: Grid, of_d: Grid) -> str:
    """The sentence for an operand on another grid than D.

    If only the orders differ, the user may never have named one: the descriptor of a transpose has the other order.
    """
    if (grid.nprow, grid.npcol) != (of_d.nprow, of_d.npcol):
        return f"{name} is on a {grid.nprow} x {grid.npcol} grid, D on a {of_d.nprow} x {of_d.npcol} grid"
    first, second = ({"C": "down the columns", "R": "along the rows"}[g.order] for g in (grid, of_d))
    return (
        f"{name} and D are on {grid.nprow} x {grid.npcol} grids, with ranks numbered {first} for {name}, {second} for "
        f"D (transposing a matrix swaps this order)"
    )


def _blocks(split: Split) -> str:
    first = "" if split.inb is None else f" ({split.inb} first)"
    return f"blocks of {split.nb}{first}, the first on process {split.src} of {split.nprocs}"


def _whole(n: int) -> Split:
    return Split(n, max(1, n), 1)


def _options(parts: int, natural: Split, *splits: Split) -> list[Split]:
    """Splits of a dimension over `parts` coordinates: those of the matrices, and the even one."""
    options: list[Split] = []
    for split in (*splits, natural):
        if split.nprocs == parts and not any(split.equivalent(other) for other in options):
            options.append(split)
    return options


def _sum_placements(product: Product, layers: int) -> Iterator[Placement | None]:
    """The placements to try for the sums of partial products: on which ranks the partial products of D are added.

    The first is None: at D's own placement. If there are several layers, and the rank with the largest local part of D
    has at least twice an even share of D, the second one is even over all ranks. That is so if D is on at most half of
    the ranks, or replicated.
    """
    d, p = placed(product.d), product.nprocs
    yield None
    if layers > 1 and p * d.rows.max_count * d.columns.max_count >= 2 * product.m * product.n:
        m, n = product.m, product.n
        if n >= m:
            yield Placement(_whole(m), Split(n, max(1, -(-n // p)), p), (1, 1, 1))
        else:
            yield Placement(Split(m, max(1, -(-m // p)), p), _whole(n), (1, 1, 1))


def _divisors(n: int) -> list[int]:
    small = [i for i in range(1, math.isqrt(n) + 1) if n % i == 0]
    return sorted({*small, *(n // i for i in small)})
