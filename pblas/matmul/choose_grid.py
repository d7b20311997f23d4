"""The general plans for three given layouts, and the best layouts when they are free.

An arrangement divides the m x n x k multiplications of the product among the ranks. It follows the grid of one matrix,
which then stays where it is, or it is p1 x p2 x p3 over all ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.matmul.product_plan import Distribution, Product
from pblas.matmul.summa_plan import PANEL, STARTING, Cuboids, Summa, SummaA, SummaC, placed
from pblas.simulation.hardware import Hardware

_TRIPLES = 128  # largest number of sizes p1 x p2 x p3 for which layouts are made
_ARRANGEMENTS = 64  # largest number of arrangements over all ranks of which plans are made
_AT_A_TIME = 8
_SURE = 0.6  # part of the least seconds of an arrangement that its plans take at any rate


def on_grids(product: Product, misfits: tuple[str, ...] = ()) -> Iterator[Summa]:
    """Plans over the grids of D, op(A) and op(B): one for each matrix that is not replicated, which stays in place."""
    m, n, k = product.m, product.n, product.k
    a, b, d = (placed(spread) for spread in (product.a, product.b, product.d))
    if d.copies == 1:
        down, across, _ = d.strides
        cuboids = Cuboids(d.rows, d.columns, _whole(k), (down, across, 1))
        yield SummaC(product, "predicted to be the fastest: D stays on its grid", cuboids=cuboids, misfits=misfits)
    for place, transposed, name in ((a, False, "A"), (b.T, True, "B")):
        if place.copies == 1:
            down, across, _ = place.strides
            cuboids = Cuboids(place.rows, _whole(m if transposed else n), place.columns, (down, 1, across))
            for sum_placement in _sum_placements(product.T if transposed else product, place.columns.nprocs):
                yield SummaA(
                    product,
                    f"predicted to be the fastest: op({name}) stays on its grid",
                    transposed,
                    cuboids=cuboids,
                    sum_placement=sum_placement,
                    misfits=misfits,
                )


def over_all_ranks(
    product: Product,
    misfits: tuple[str, ...],
    machine: Hardware,
    promises: Callable[[float], bool],
    most: int = _ARRANGEMENTS,
) -> Iterator[list[Summa]]:
    """Plans over p1 x p2 x p3 = nprocs ranks, a few at a time: of the `most` that promise to take least."""
    a, b, d = (placed(spread) for spread in (product.a, product.b, product.d))
    why = f"of all arrangements of {product.nprocs} ranks this is predicted to be the fastest"
    held = _held(a), _held(b), _held(d)
    arrangements = []
    for sizes in triples(product.nprocs):
        natural = natural_cuboids(product.m, product.n, product.k, sizes)
        options = (
            _options(sizes[0], natural.m, d.rows, a.rows),
            _options(sizes[1], natural.n, d.columns, b.columns),
            _options(sizes[2], natural.k, a.columns, b.rows),
        )
        for sums in _sum_placements(product, sizes[2]):
            own = held[2] if sums is None else -(-product.m * product.n // product.nprocs)
            for splits in itertools.product(options[0], options[1], options[2]):
                parts = _parts(product, (held[0], held[1], own), splits, machine)
                if promises(_SURE * parts[0]):
                    arrangements.append((parts, natural.strides, splits, sums))
    arrangements.sort(key=lambda arrangement: arrangement[0][1])
    for start in range(0, min(most, len(arrangements)), _AT_A_TIME):
        yield [
            SummaC(product, why, cuboids=Cuboids(*splits, strides), sum_placement=sums, misfits=misfits)
            for (least, _), natural_strides, splits, sums in arrangements[start : min(most, start + _AT_A_TIME)]
            if promises(_SURE * least)
            for strides in _numberings(splits, natural_strides)
        ]


def _numberings(splits: tuple[Split, Split, Split], natural: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    """The strides with which ranks are numbered: first along m, k and n, then along m, n and k if that differs."""
    p1, p2, p3 = (split.nprocs for split in splits)
    yield natural
    if min(p2, p3) > 1:  # the stride of a dimension over one rank has no effect
        yield 1, p1, p1 * p2


def _held(place: Placement) -> int:
    """Elements on the rank that has most."""
    return place.rows.max_count * place.columns.max_count


def free_layouts(
    m: int,
    n: int,
    k: int,
    dtype: str,
    nprocs: int,
    machine: Hardware,
    promises: Callable[[float], bool],
    most: int = _TRIPLES,
) -> Iterator[tuple[tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor], tuple[int, int, int]]]:
    """Layouts of op(A), op(B) and D, with the arrangement for which they are made: first one-dimensional ones."""
    whole = Distribution("all")
    even = -(-m * k // nprocs), -(-k * n // nprocs), -(-m * n // nprocs)
    promising = _promising(Product(m, n, k, dtype, nprocs, whole, whole, whole), machine, even)
    linear = [(least, sizes) for least, sizes in promising if nprocs in sizes]
    for least, sizes in dict.fromkeys((*linear, *promising[:most])):
        if nprocs in sizes or promises(_SURE * least):  # a node gathers less than the bound for each of its ranks
            if sizes[2] == 1:
                yield conforming_layouts(m, n, k, sizes[:2]), sizes
            if nprocs not in sizes[:2]:
                yield natural_layouts(m, n, k, sizes), sizes


def natural_plan(product: Product, sizes: tuple[int, int, int]) -> Summa:
    """The plan over the arrangement for which the layouts of the matrices are made."""
    why = f"an arrangement of {product.nprocs} ranks for which the layouts are made"
    return SummaC(product, why, cuboids=natural_cuboids(product.m, product.n, product.k, sizes))


def _promising(
    product: Product, machine: Hardware, held: tuple[int, int, int]
) -> list[tuple[float, tuple[int, int, int]]]:
    """Arrangements with the least seconds that a product takes there; first those with the least work of all parts."""
    even = held[0], held[1], min(held[2], -(-product.m * product.n // product.nprocs))
    parts = []
    for sizes in triples(product.nprocs):
        splits = [Split(n, -(-n // p) or 1, p) for n, p in zip((product.m, product.n, product.k), sizes, strict=True)]
        parts.append((_parts(product, even, splits, machine, any_panels=True), sizes))
    return [(least, sizes) for (least, _), sizes in sorted(parts, key=lambda part: (part[0][1], part[1]))]


def _parts(
    product: Product,
    held: tuple[int, int, int],
    splits: Sequence[Split],
    machine: Hardware,
    *,
    any_panels: bool = False,
) -> tuple[float, float]:
    """About the least seconds of an arrangement that cuts m, n and k in this way, and about the sum of its parts.

    The parts are those of the core, which multiplies panels, and packs them and adds partial products unless it reads
    them in place; of the elements that arrive from other nodes; and of those from the own one. A rank has at most
    `held` elements of op(A), of op(B), and of the sums. Panels are cut from K, or with `any_panels` from the shortest
    dimension.
    """
    (m, n, k), node = (split.max_count for split in splits), machine.ranks_per_node
    layers = max(1, min(splits[2].nprocs, splits[2].nblocks))
    needed = (m * k, held[0]), (k * n, held[1])
    partial = (layers - 1) * held[2]
    near, far = float(sum(max(0, count - own) for count, own in needed) + partial), 0.0
    if node < product.nprocs:
        far = sum(max(0, count - node * own) for count, own in needed) + partial * max(0, layers - node) / layers
    near, far = product.itemsize * (near - far), product.itemsize * far
    in_place = product.nprocs <= (node if machine.shared else 1)
    steps = 1 if in_place else max(1, -(-(min(m, n, k) if any_panels else k) // PANEL))
    core = machine.gemm_seconds(m, n, k, product.dtype) + (steps - 1) * machine.call + steps * machine.step
    if not in_place:
        core += 2 * product.itemsize * k * (m + n) / machine.memory_bandwidth
    core += STARTING * machine.step
    partials = 3 * product.itemsize * partial / machine.memory_bandwidth
    links = near / machine.near.bandwidth, far / machine.far.bandwidth
    return max(core + partials, *links), core + partials + sum(links)


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


def conforming_layouts(
    m: int, n: int, k: int, sizes: tuple[int, int]
) -> tuple[MatrixDescriptor, MatrixDescriptor, MatrixDescriptor]:
    """Layouts of op(A), op(B) and D on one p1 x p2 grid, with the same blocks of K in both operands.

    >>> [(desc.mb, desc.nb) for desc in conforming_layouts(8, 12, 6, (2, 3))]
    [(4, 1), (1, 4), (4, 4)]
    """
    grid = Grid(*sizes)
    mb, nb, kb = max(1, -(-m // grid.nprow)), max(1, -(-n // grid.npcol)), max(1, -(-k // math.lcm(*sizes)))
    return (
        MatrixDescriptor(m, k, mb, kb, grid),
        MatrixDescriptor(k, n, kb, nb, grid),
        MatrixDescriptor(m, n, mb, nb, grid),
    )


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
