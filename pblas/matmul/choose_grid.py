"""The general plans for three given layouts, and the best layouts when they are free.

An arrangement divides the m x n x k multiplications of the product among the ranks. It follows the grid of one matrix,
which then stays where it is, or it is p1 x p2 x p3 over all ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator

from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.grid import Grid
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.matmul.choose_granularity import panel_width
from pblas.matmul.product_plan import Distribution, Product
from pblas.matmul.summa_plan import (
    STARTING,
    Cuboids,
    Summa,
    SummaA,
    SummaC,
    are_by_owner,
    contention,
    peers,
    placed,
    share,
    traffic,
)
from pblas.simulation.hardware import Hardware
from pblas.simulation.phase import Phase, Traffic, View
from pblas.simulation.simulate import bound

_TRIPLES = 128  # largest number of sizes p1 x p2 x p3 for which layouts are made
_ARRANGEMENTS = 64  # largest number of arrangements over all ranks of which plans are made


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
    """Plans over p1 x p2 x p3 = nprocs ranks, one arrangement at a time, of the `most` with the least bounds."""
    a, b, d = (placed(spread) for spread in (product.a, product.b, product.d))
    why = f"of all arrangements of {product.nprocs} ranks this is predicted to be the fastest"
    arrangements = []
    for sizes in triples(product.nprocs):
        natural = natural_cuboids(product.m, product.n, product.k, sizes)
        options = (
            _options(sizes[0], natural.m, d.rows, a.rows),
            _options(sizes[1], natural.n, d.columns, b.columns),
            _options(sizes[2], natural.k, a.columns, b.rows),
        )
        for sums in _sum_placements(product, sizes[2]):
            owners = sums or d
            outline = _Outline(product, machine, a, b, owners.rows.max_count * owners.columns.max_count)
            for splits in itertools.product(options[0], options[1], options[2]):
                least = outline.least(splits)
                if promises(least):
                    arrangements.append((least, natural.strides, splits, sums))
    arrangements.sort(key=lambda arrangement: arrangement[0])
    for least, natural_strides, splits, sums in arrangements[:most]:
        if not promises(least):
            return
        yield [
            SummaC(product, why, cuboids=Cuboids(*splits, strides), sum_placement=sums, misfits=misfits)
            for strides in _numberings(splits, natural_strides, machine)
        ]


def _numberings(
    splits: tuple[Split, Split, Split], natural: tuple[int, int, int], machine: Hardware
) -> Iterator[tuple[int, int, int]]:
    """The strides with which ranks are numbered: first along m, k and n, then along m, n and k if that differs.

    The numbers say which ranks share a node, so they have no effect where all do, or none.
    """
    p1, p2, p3 = (split.nprocs for split in splits)
    yield natural
    if min(p2, p3) > 1 < machine.ranks_per_node < p1 * p2 * p3:  # the stride of a dimension over one rank is not used
        yield 1, p1, p1 * p2


def _holders(place: Placement) -> int:
    """Number of ranks that hold elements."""
    rows, columns = place.rows, place.columns
    return min(rows.nprocs, rows.nblocks) * min(columns.nprocs, columns.nblocks) * place.copies


def _largest(split: Split) -> int:
    """Number of coordinates with the largest share, of a split whose blocks are all alike but the last one."""
    blocks, rest = divmod(split.n, split.nb)
    if split.inb is not None:
        return 1
    return blocks % split.nprocs or (1 if rest else split.nprocs)


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
    promising = _promising(m, n, k, dtype, nprocs, machine)
    linear = [entry for entry in promising if nprocs in entry[1]]
    for least, sizes in dict.fromkeys((*linear, *promising[:most])):
        if nprocs in sizes or promises(least):
            if sizes[2] == 1:
                yield conforming_layouts(m, n, k, sizes[:2]), sizes
            if nprocs not in sizes[:2]:
                yield natural_layouts(m, n, k, sizes), sizes


def natural_plan(product: Product, sizes: tuple[int, int, int]) -> Summa:
    """The plan over the arrangement for which the layouts of the matrices are made."""
    why = f"an arrangement of {product.nprocs} ranks for which the layouts are made"
    return SummaC(product, why, cuboids=natural_cuboids(product.m, product.n, product.k, sizes))


def _promising(
    m: int, n: int, k: int, dtype: str, nprocs: int, machine: Hardware
) -> list[tuple[float, tuple[int, int, int]]]:
    """Arrangements for which layouts can be made, each with a lower bound of their seconds; first those with the least.

    With such layouts the arrangement itself is one plan; in the others op(A) or op(B) stays.
    """
    bounds, staying, own = {}, {}, -(-m * n // nprocs)
    for p1, p2, p3 in triples(nprocs):
        cuboids = natural_cuboids(m, n, k, (p1, p2, p3))
        product = Product(m, n, k, dtype, nprocs, *[Distribution("grid", None, cuboids.d)] * 3)
        operands = [_natural_operands(cuboids)]
        if p3 == 1:
            operands.append(_conforming_operands(cuboids))
        outlines = [_Outline(product, machine, a, b, own) for a, b in operands]
        bounds[p1, p2, p3] = min(outline.least((cuboids.m, cuboids.n, cuboids.k)) for outline in outlines)
        if p2 == 1:
            staying["A", p1] = outlines[0].least_staying((cuboids.m, cuboids.n, cuboids.k))
        if p1 == 1:
            outline = _Outline(product.T, machine, operands[0][1].T, operands[0][0].T, own)
            staying["B", p2] = outline.least_staying((cuboids.n, cuboids.m, cuboids.k))
    return sorted((min(least, staying["A", at[0]], staying["B", at[1]]), at) for at, least in bounds.items())


def _natural_operands(cuboids: Cuboids) -> tuple[Placement, Placement]:
    """The placements of op(A) and op(B) in `natural_layouts`."""
    (p1, p2, p3), k = cuboids.extents, cuboids.k
    left, right = Split(k.n, k.nb, p3 * p2), Split(k.n, max(1, k.nb // p1), p1 * p3)
    return Placement(cuboids.m, left, (1, p1, 1)), Placement(right, cuboids.n, (1, p1 * p3, 1))


def _conforming_operands(cuboids: Cuboids) -> tuple[Placement, Placement]:
    """The placements of op(A) and op(B) in `conforming_layouts`."""
    (p1, p2, _), k = cuboids.extents, cuboids.k.n
    kb = max(1, -(-k // math.lcm(p1, p2)))
    return Placement(cuboids.m, Split(k, kb, p2), (1, p1, 1)), Placement(Split(k, kb, p1), cuboids.n, (1, p1, 1))


class _Outline:
    """Arrangements of a product in outline, of which plans are made only if their bounds are short.

    `a` and `b` are the placements of op(A) and op(B); the busiest rank adds `own` elements of D.
    """

    def __init__(self, product: Product, machine: Hardware, a: Placement, b: Placement, own: int) -> None:
        self._product, self._machine, self._own = product, machine, own
        nprocs, node = product.nprocs, machine.ranks_per_node
        self._transport = machine.topology.transport(nprocs)
        self._view = View(0, nprocs, node, self._transport)
        self._operands = [(place, _holders(place), share(place, self._view)) for place in (a, b.T)]

    def least(self, splits: tuple[Split, Split, Split]) -> float:
        """Lower bound of the predicted seconds of an arrangement that cuts m, n and k in this way."""
        return self._bound(self._phases(*splits))

    def least_staying(self, splits: tuple[Split, Split, Split]) -> float:
        """Lower bound of the predicted seconds of an arrangement in which op(A) stays, and N is cut into panels."""
        m, n, k = (split.max_count for split in splits)
        view, itemsize, layers = self._view, self._product.itemsize, min(splits[2].nprocs, max(1, splits[2].nblocks))
        place, _, near = self._operands[1]
        held = place.rows.max_count * place.columns.max_count
        steps = max(1, -(-n // panel_width(n)))
        arriving = itemsize * max(0, k * n - held) // steps
        leaving = self._product.d_itemsize * (layers - 1) * self._own // steps
        messages = peers(place.columns, splits[2], place.rows, panel_width(n))
        # D[i, j] += op(A)[i, k] op(B)[k, j]   (the sums leave for their owners)
        panels = Phase(
            steps,
            (m, n // steps, k),
            before=traffic(view, arriving, near, messages),
            after=traffic(view, leaving, min(1.0, self._machine.ranks_per_node / layers), layers),
            copied=2 * itemsize * (n // steps) * k + 3 * leaving,
        )
        return self._bound((Phase(STARTING), panels))

    def _bound(self, phases: Iterable[Phase]) -> float:
        product = self._product
        return bound(phases, self._machine, product.dtype, product.nprocs, self._transport)

    def _phases(self, m: Split, n: Split, k: Split) -> Iterator[Phase]:
        """Those of a rank with the largest cuboid, which holds as much of it as all such ranks may hold."""
        rows, columns, inner = m.max_count, n.max_count, k.max_count
        product, view, itemsize = self._product, self._view, self._product.itemsize
        is_shared = view.transport == "shared"
        width = max(1, inner) if is_shared else panel_width(inner)
        steps = max(1, -(-inner // width))
        (a, *_), (b, *_) = self._operands
        by_owner = are_by_owner(a.columns, b.columns, k)
        is_skewed = by_owner and k.is_whole and a.rows.equivalent(m) and b.rows.equivalent(n)
        yield Phase(STARTING)
        before, waits = Traffic(), []
        largest_m, largest_n, largest_k = map(_largest, (m, n, k))
        lacking = largest_m * largest_n * largest_k  # ranks with a largest cuboid that may have nothing of it
        sides = (m, rows, largest_m, largest_n), (n, columns, largest_n, largest_m)
        for (place, ranks, near), (split, count, along, others) in zip(self._operands, sides, strict=True):
            fits = place.rows.equivalent(split) and place.columns.equivalent(k)
            holders = along * largest_k * min(place.copies, others) if fits else ranks
            has = place.rows.max_count * place.columns.max_count
            if holders < lacking:
                has, lacking = 0, lacking - holders
            run = place.columns.max_count if by_owner else place.columns.nb
            slow = 1.0 if is_skewed else contention(product.nprocs, place, place.columns, (width, run), k.nprocs)
            nbytes = itemsize * max(0, count * inner - has)
            waits.append((slow, nbytes, 0 if place.copies == product.nprocs else itemsize * count * inner))
            if nbytes:
                before += traffic(view, nbytes // steps, near, peers(place.rows, split, place.columns, width))
        # `Phase.slow` is least if as much as may arrives of the operand whose panels fewer ranks need at the same time.
        (fewer, _, whole), (more, part, _) = sorted(waits)
        slow = (fewer * whole + more * part) / (whole + part) if whole + part else 1.0
        # D[i, j] += op(A)[i, k] op(B)[k, j]   (read in place, or packed)
        depth = inner // steps
        copied = 0 if is_shared else 2 * itemsize * depth * (rows + columns)
        yield Phase(steps, (rows, columns, depth), before, copied=copied, slow=slow)
        layers = max(1, min(k.nprocs, k.nblocks))
        if nbytes := product.d_itemsize * (layers * self._own - min(self._own, rows * columns)):
            near = min(1.0, self._machine.ranks_per_node / layers)
            yield Phase(1, after=traffic(view, nbytes, near, layers))
            yield Phase(1, copied=3 * nbytes, waits="sent")


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
