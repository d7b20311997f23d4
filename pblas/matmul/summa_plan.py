"""General products: each rank multiplies one cuboid M_i x N_j x K_l of an arrangement of p1 x p2 x p3 ranks.

Panels of the operands travel directly from the ranks that store them to the ranks that multiply them, so layouts need
not conform. A rank receives only elements that it needs and does not have. Each plan is named by the matrix that stays
in place.

In the phases of a simulation the bytes that a rank receives are exact in total, and spread evenly over the panels.

Source: van de Geijn, Watts, SUMMA (1997); Solomonik, Demmel, 2.5D (2011) for p3 > 1.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import ClassVar

from pblas.layouts.messages import received_count
from pblas.layouts.placement import Placement
from pblas.layouts.relays import network_count
from pblas.layouts.split import Split
from pblas.matmul.product_plan import Distribution, ProductPlan, around
from pblas.simulation.phase import Phase, Traffic, View, borders, even

PANEL = 512
"""Default width of a panel: a GEMM of this inner length runs at its full rate, and two panels take little memory."""
_LEAST_PANEL = 128
"""Least block size that is multiplied without packing: a GEMM of this inner length loses 4 % (float64, AMD EPYC)."""
_SPARE = 2
"""Message memory per byte that travels: freed memory of one size is not joined for larger messages, so panels of two
widths take up to twice the bytes."""
STARTING = 6
"""Steps whose time a general plan takes in addition to its panels, to set out and to end: against one-dimensional plans
0.3 ms on 4 ranks, at 50 us for a step (benchmarks/results/cpu_thin_4_ranks.json)."""
_FEW = 8  # number of ranks of which `typical_ranks` takes all
_LAYERS = 24  # number of layers that are examined to find those with most panels
_NODES = 32  # number of nodes whose first and last ranks are examined
_ALL_RANKS = 32  # largest number of ranks that are all examined to find the busiest


@dataclass(frozen=True, slots=True)
class Cuboids:
    """An arrangement of ranks over the m x n x k multiplications of a product: each rank has one cuboid.

    Rank i strides[0] + j strides[1] + l strides[2] multiplies rows m(i) of op(A) and columns n(j) of op(B) over k(l).

    >>> cuboids = Cuboids(Split(4, 2, 2), Split(6, 6, 1), Split(8, 4, 2), (1, 1, 2))
    >>> cuboids.a.local_shape(3), cuboids.b.local_shape(3), cuboids.d.local_shape(3)
    ((2, 4), (4, 6), (2, 6))
    """

    m: Split  # split of M over p1 coordinates (global)
    n: Split  # split of N over p2 coordinates (global)
    k: Split  # split of K over p3 coordinates, the layers (global)
    strides: tuple[int, int, int]  # distances in ranks from one coordinate along m, n and k to the next (global)
    a: Placement = field(init=False, repr=False, compare=False)  # placement of op(A) that the multiplications need
    b: Placement = field(init=False, repr=False, compare=False)  # placement of op(B) that the multiplications need
    d: Placement = field(init=False, repr=False, compare=False)
    """Placement of D as the multiplications form it; its copies are the partial products of the layers."""

    def __post_init__(self) -> None:
        """The placements, once: the planner asks for them for every rank."""
        i, j, l = self.strides
        put = object.__setattr__
        put(self, "a", Placement(self.m, self.k, (i, l, j), self.n.nprocs))
        put(self, "b", Placement(self.k, self.n, (l, j, i), self.m.nprocs))
        put(self, "d", Placement(self.m, self.n, self.strides, self.k.nprocs))

    @property
    def extents(self) -> tuple[int, int, int]:
        """(p1, p2, p3)."""
        return self.m.nprocs, self.n.nprocs, self.k.nprocs

    @property
    def nlayers(self) -> int:
        return min(self.k.nblocks, self.k.nprocs)

    @property
    def layers(self) -> list[int]:
        return sorted((self.k.src + b) % self.k.nprocs for b in range(self.nlayers))

    @property
    def T(self) -> Cuboids:
        i, j, l = self.strides
        return Cuboids(self.n, self.m, self.k, (j, i, l))

    @property
    def flops(self) -> int:
        """Additions and multiplications of the rank with the largest cuboid."""
        return 2 * self.m.max_count * self.n.max_count * self.k.max_count


@dataclass(frozen=True, slots=True)
class Panel:
    """A range of K or of N that is multiplied in one step."""

    start: int
    stop: int
    owner: int | None = None


def placed(distribution: Distribution) -> Placement:
    """The placement of an operand of a general plan."""
    assert distribution.placement is not None, "general plans have placements"
    return distribution.placement


def column_of(place: Placement, c: int) -> Placement:
    """The placement of the columns that process column c owns, as a matrix of their own."""
    count = place.columns.count(c)
    down, _, copy = place.strides
    return Placement(place.rows, Split(count, max(1, count), 1), (down, 1, copy), place.copies, place.rank(0, c, 0))


def row_of(place: Placement, r: int) -> Placement:
    """The placement of the rows that process row r owns, as a matrix of their own."""
    return column_of(place.T, r).T


@lru_cache(64)
def are_by_owner(a: Split, b: Split, k: Split) -> bool:
    """`SummaC.by_owner`, for the splits of K in op(A), op(B) and over the layers."""
    narrow = a.max_count < _LEAST_PANEL <= a.n // 2
    return min(a.nprocs, a.nblocks) > 1 and a.equivalent(b) and (not narrow if k.nprocs == 1 else k.equivalent(a))


def same_place(first: Placement, second: Placement) -> bool:
    """Whether both placements give every rank the same elements in the same local order."""
    if not (first.rows.equivalent(second.rows) and first.columns.equivalent(second.columns)):
        return False
    if (first.copies, first.start, first.ranks) != (second.copies, second.start, second.ranks):
        return False
    extents = first.rows.canonical.nprocs, first.columns.canonical.nprocs, first.copies
    return all(s == t for s, t, extent in zip(first.strides, second.strides, extents, strict=True) if extent > 1)


def cut(split: Split, g0: int, g1: int, width: int) -> Iterator[tuple[int, int]]:
    """Cut g0..g1-1 into pieces of about `width` elements, at block borders if the blocks are wide enough for a GEMM.

    >>> list(cut(Split(2000, 300, 2), 0, 1000, 512)), list(cut(Split(100, 1, 2), 0, 100, 64))
    ([(0, 300), (300, 600), (600, 900), (900, 1000)], [(0, 64), (64, 100)])
    """
    while g0 < g1:
        stop, _ = _stretch(split, g0, g1, width)
        parts = -(-(stop - g0) // width)
        for part in range(parts):
            yield g0 + (stop - g0) * part // parts, g0 + (stop - g0) * (part + 1) // parts
        g0 = stop


def cut_count(split: Split, g0: int, g1: int, width: int) -> int:
    """Number of pieces of about `width` elements into which `cut` divides g0..g1-1.

    >>> cut_count(Split(2000, 300, 2), 0, 1000, 512), cut_count(Split(10**12, 1, 2), 0, 10**12, 64)
    (4, 15625000000)
    """
    count = 0
    if g0 < g1:
        stop, unit = _stretch(split, g0, g1, width)
        whole, rest = divmod(g1 - stop, unit)
        count = -(-(stop - g0) // width) + whole * -(-unit // width) + -(-rest // width)
    return count


@lru_cache(256)
def _panels(cut_at: Split, k: Split, layer: int, width: int) -> int:
    """Number of panels of a layer that are cut at borders of `cut_at`, at least 1."""
    return max(1, sum(cut_count(cut_at, start, stop, width) for start, stop in k.runs(layer)))


def _stretch(split: Split, g0: int, g1: int, width: int) -> tuple[int, int]:
    """The next index after g0 at which a piece has to end, and the distance between the further such indices."""
    first = split.nb if split.inb is None else split.inb
    unit = split.nb
    if split.nprocs == 1 or unit < min(_LEAST_PANEL, width):
        return min(g0 + width, g1), width
    if unit <= width:  # a piece has several blocks
        first, unit = first + unit * (width // unit - 1), unit * (width // unit)
    return min(first if g0 < first else first + (1 + (g0 - first) // unit) * unit, g1), unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Summa(ProductPlan):
    """The fields of general plans: the cuboid of each rank, and the placement of the sums."""

    is_pushed: ClassVar[bool] = False
    by_owner: ClassVar[bool] = False
    """Whether each panel is cut from the K indices of one process column of op(A) and one process row of op(B)."""
    is_skewed: ClassVar[bool] = False
    """Whether ranks begin with panels of different owners, so that no owner serves all ranks at once."""
    is_read_in_place: ClassVar[bool] = False  # whether each panel is contiguous on one rank

    cuboids: Cuboids  # the arrangement, in the plan's orientation (global)
    width: int = PANEL  # largest width of a panel, elements (global)
    # placement in which partial products are added before D is sent to its owners, in the plan's orientation; None:
    # that of D (global)
    sum_placement: Placement | None = None
    misfits: tuple[str, ...] = ()  # sentences for `explain` about layouts that do not conform (global)

    @property
    def a(self) -> Placement:
        """Placement of op(A) in the orientation of the plan (global)."""
        return placed(self.product.b).T if self.transposed else placed(self.product.a)

    @property
    def b(self) -> Placement:
        """Placement of op(B) in the orientation of the plan (global)."""
        return placed(self.product.a).T if self.transposed else placed(self.product.b)

    @property
    def d(self) -> Placement:
        """Placement of D in the orientation of the plan (global)."""
        return placed(self.product.d).T if self.transposed else placed(self.product.d)

    @property
    def in_place(self) -> bool:
        """Whether each rank multiplies directly into its shard of D, without partial products."""
        return self.sum_placement is None and self.cuboids.k.nprocs == 1 and same_place(self.cuboids.d, self.d)

    @property
    def sums(self) -> Placement:
        """Placement in which partial products are added: that of D, unless the plan has another (global)."""
        return self.sum_placement or self.d

    @property
    def busiest_multiplies(self) -> int:
        return self.cuboids.flops // 2

    @property
    def panelled(self) -> int:
        """Elements of the dimension that is cut into panels, on the rank that has most of them."""
        raise AssertionError("each general plan defines the dimension that it cuts")

    @property
    def _dimension(self) -> str:
        """The name of that dimension, in the user's orientation."""
        raise AssertionError("each general plan defines the dimension that it cuts")

    @property
    def panel_layers(self) -> int:
        """Number of layers that have panels of their own."""
        return 1

    def received_elements(self, rank: int) -> int:
        return sum(self.arriving_elements(rank))

    def arriving_elements(self, rank: int) -> tuple[int, int]:
        """Elements of op(A), and of op(B), that the rank's cuboid needs and the rank does not have."""
        cuboids = self.cuboids
        return received_count(self.a, cuboids.a, rank), received_count(self.b, cuboids.b, rank)

    def received_nbytes(self, rank: int) -> int:
        """Bytes of operands, partial products and sums that `rank` receives."""
        return self.received_elements(rank) * self.product.itemsize + self.delivered_nbytes(rank)

    def delivered_nbytes(self, rank: int) -> int:
        """Bytes of partial products, in their dtype, and of sums added by other ranks that `rank` receives."""
        if self.in_place:
            return 0
        formed, d = self.cuboids.d, self.d
        m_loc, n_loc = self.sums.local_shape(rank)
        count, position = self.cuboids.nlayers * m_loc * n_loc, formed.coordinates(rank)
        if position is not None and self.cuboids.k.count(position[2]):  # its own partial product does not travel
            count -= m_loc * n_loc - received_count(formed.layer(position[2]), self.sums, rank)
        sums = received_count(self.sum_placement, d, rank) if self.sum_placement else 0
        return count * self.wire_itemsize + sums * self.d_itemsize

    def network_nbytes(self, node: range) -> int:
        """Bytes that the ranks `node` of a node receive from other nodes: panels once for all ranks that need them."""
        cuboids, sums, relays = self.cuboids, self.sums, not self.is_skewed
        pairs = (self.a, cuboids.a), (self.b, cuboids.b)
        nbytes = self.itemsize * sum(network_count(*pair, self.hosts, node, relays=relays) for pair in pairs)
        if self.in_place:
            return nbytes
        partials = ((cuboids.d.layer(layer), sums) for layer in cuboids.layers)
        nbytes += self.wire_itemsize * sum(network_count(*pair, self.hosts, node, relays=False) for pair in partials)
        if self.sum_placement is not None:
            delivered = network_count(sums, self.d, self.hosts, node, relays=False)
            nbytes += self.d_itemsize * delivered
        return nbytes

    def _slow(self, place: Placement, across: Split, width: int) -> float:
        """`Phase.slow` of an operand cut along `across`: ranks that need a panel over those that have it."""
        if self.is_skewed:
            return 1.0
        run = across.max_count if self.by_owner else across.nb
        return contention(prod(self.cuboids.extents), place, across, (width, run), self.panel_layers)

    def _copied(self, view: View) -> View:
        """The view of a rank that copies what peers have, as GPUs do, if it could read that in place."""
        return replace(view, transport="message") if self.gpus and view.transport == "shared" else view

    def _delivery(self, view: View) -> Iterator[Phase]:
        """Partial products travel to the ranks that add them; no GEMM is left to hide this."""
        nbytes = self.delivered_nbytes(view.rank)
        if nbytes:
            yield Phase(1, after=traffic(view, nbytes, share(self.cuboids.d, view), self._summed_layers))
            yield Phase(1, copied=3 * nbytes, waits="sent")

    @property
    def _summed_layers(self) -> int:
        """Number of layers from which a rank receives partial products, at least 1."""
        return max(1, len(self.cuboids.layers) - self.in_place)

    def _panels_elements(self, panels: int, arrives: int, leaves: int) -> int:
        """Elements of workspace for an operand: `panels` at a time, and messages."""
        count = panels
        if self.transport == "mixed" and not self.is_skewed:  # a host receives once what several of its ranks need
            count += panels * 3 // 2
        if self.transport != "shared":
            count += arrives + leaves
        return count

    @property
    def staged_nbytes(self) -> int:
        """Copies of the operands that move, which peers can read."""
        places = self._moving if self.transport != "message" else ()
        return self.product.itemsize * sum(place.rows.max_count * place.columns.max_count for place in places)

    @property
    @abstractmethod
    def _moving(self) -> tuple[Placement, ...]:
        """The operands of which peers read this rank's parts."""

    def _partials_nbytes(self, panels: int, columns: int, own: int) -> int:
        """Bytes for partial products of `columns` columns, their messages, and sums outside D or in a wider dtype."""
        sums, d, itemsize = self.sums, self.d, self.d_itemsize
        wide, total = max(itemsize, 4), sums.rows.max_count * sums.columns.max_count
        count = panels * self.cuboids.m.max_count * columns * wide
        if self.transport != "shared":
            count += panels * self.cuboids.m.max_count * columns * sums.copies * wide
            count += panels * self.cuboids.nlayers * sums.rows.max_count * own * wide
        if self.sum_placement is not None:
            count += total * itemsize
            if self.transport != "shared":
                count += (d.rows.max_count * d.columns.max_count + total * d.copies) * itemsize
        if self.reproducible:  # the sums of layers are added along a tree
            levels = max(1, self.cuboids.nlayers.bit_length() - 1)
            count += levels * sums.rows.max_count * min(own, sums.columns.max_count) * wide
        return count + (total * wide if self.product.rounds else 0)

    def extreme_ranks(self) -> set[int]:
        """All ranks if there are few, else the ranks around the first and the last block of each placement."""
        nprocs = self.product.nprocs
        if nprocs <= _ALL_RANKS:
            return set(range(nprocs))
        ranks = self.product.extreme_ranks()
        for place in (self.cuboids.a, self.cuboids.b, self.cuboids.d):
            corners = [around(split) for split in (place.rows, place.columns)]
            for r, c, z in product(*corners, {0, place.copies // 2, place.copies - 1}):
                ranks.add(place.rank(r, c, z))
        return {rank for rank in ranks if rank < nprocs}

    def typical_ranks(self, ranks_per_node: int) -> Sequence[int]:
        """All extreme ranks: first those that wait for most bytes or steps, and that with the largest cuboid.

        The slowest one need not be largest in any one respect. Most plans are rejected after the first few.
        """
        nprocs = self.product.nprocs
        if nprocs <= _FEW:
            return (self.busy_rank, *(rank for rank in range(nprocs) if rank != self.busy_rank))
        some = sorted(self._corners() | self._edges(ranks_per_node))
        slow = self._slow_a, self._slow_b
        arriving = {rank: self._awaited_nbytes(View(rank, nprocs, ranks_per_node, "message"), slow) for rank in some}
        far, near, slowest = (sorted(some, key=lambda rank: arriving[rank][key]) for key in range(3))
        stepping = max(some, key=lambda rank: (self._panel_count(rank), *arriving[rank]))
        most = *far[:-3:-1], near[-1], slowest[-1], stepping
        return list(dict.fromkeys((*most, self._multiplying, self.busy_rank, *sorted(self.extreme_ranks()), *some)))

    def _edges(self, ranks_per_node: int) -> set[int]:
        """The first and last ranks of the first node and of the last one, and of others one with few peers near it."""
        nprocs, place = self.nprocs, self.cuboids.d
        starts = range(0, nprocs, ranks_per_node)
        some = [rank for start in starts[1 : _NODES + 1] for rank in (start - 1, start)]
        views = [View(rank, nprocs, ranks_per_node, "message") for rank in some]
        fewest = min(views, key=lambda view: share(place, view), default=None)
        ends = {edge + side for edge in (starts[min(1, len(starts) - 1)], starts[-1]) for side in (-1, 0)}
        return {rank for rank in ends if rank >= 0} | ({fewest.rank} if fewest else set())

    def _corners(self) -> set[int]:
        """Ranks at the ends of each dimension of the cuboids, and of the sums, from two corners of these on."""
        cuboids, sums = self.cuboids, self.sums
        longest = {self._longest_layer}
        ranks = set(_along(cuboids.d, (cuboids.m, cuboids.n, cuboids.k), [set(), set(), longest]))
        for place in (sums,) if self.sum_placement is None else (sums, self.d):
            ranks |= set(_along(place, (place.rows, place.columns), [set(), set()]))
        return ranks | {self.nprocs - 1}

    @property
    def busy_rank(self) -> int:
        """The rank with the largest cuboid, or the one with the largest share of D if D is on few ranks."""
        sums = self.sums
        if not self.in_place and sums.rows.max_count * sums.columns.max_count * self.nprocs >= 2 * prod(sums.shape):
            return sums.rank(_busy(sums.rows), _busy(sums.columns))
        return self._multiplying

    @property
    def _multiplying(self) -> int:
        """A rank with the largest cuboid."""
        return self.cuboids.d.rank(*map(_busy, (self.cuboids.m, self.cuboids.n, self.cuboids.k)))

    def _awaited_nbytes(self, view: View, slow: tuple[float, float]) -> tuple[float, float, float]:
        """Bytes that a rank waits for, times `Phase.slow`: from other nodes if there are several, and from its own.

        The last one is `Phase.slow` of its panels, the mean of those of its operands.
        """
        far = near = 0.0
        own, arriving = view.ranks_per_node < view.nprocs, self.arriving_elements(view.rank)
        mean = sum(map(operator.mul, slow, arriving)) / max(1, sum(arriving))
        parts = [(place, mean * count * self.itemsize) for place, count in zip((self.a, self.b), arriving, strict=True)]
        for place, nbytes in (*parts, (self.cuboids.d, float(self.delivered_nbytes(view.rank)))):
            if nbytes:
                near_share = own * share(place, view)
                far, near = far + (1 - near_share) * nbytes, near + near_share * nbytes
        return far, near, mean

    def _panel_count(self, rank: int) -> int:
        """Number of panels that a rank multiplies, if ranks differ."""
        return 1

    @property
    def _longest_layer(self) -> int:
        """Of the first layers that with most panels."""
        return 0

    @property
    def _slow_a(self) -> float:
        """`Phase.slow` of op(A), which arrives in one step unless it comes in panels."""
        return 1.0

    @property
    def _slow_b(self) -> float:
        """`Phase.slow` of the panels of op(B)."""
        raise AssertionError("each general plan has panels of op(B)")

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        """The distributions of op(A), op(B) and D, the arrangement of the ranks, and why layouts do not conform."""
        p1, p2, p3 = self.cuboids.T.extents if self.transposed else self.cuboids.extents
        yield from ProductPlan.operand_lines(self)
        flops = 2 * self.busiest_multiplies * (4 if self.dtype.startswith("complex") else 1)
        yield "ranks", f"{p1} x {p2} x {p3} (over m, n, k), {flops:,} flops per rank at most"
        yield from (("misfit", text) for text in self.misfits)
        if self.misfits:
            yield "", "such layouts are allowed; the bytes that they cost are part of 'received'"

    def _how(self) -> str:
        return f"panels of {self.width} along {self._dimension}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaC(Summa):
    """D stays in place: panels of op(A) and op(B) along K arrive while the previous panels are multiplied.

    With layers (p3 > 1) each layer forms the product over its share of K, and the owners of D add these products.

    >>> rows, columns = Split(8, 4, 2), Split(8, 4, 2)
    >>> place = Distribution("grid", None, Placement(rows, columns, (1, 2, 1)))
    >>> from pblas.matmul.product_plan import Product
    >>> plan = SummaC(Product(8, 8, 8, "float64", 4, place, place, place), "the grid of D",
    ...               cuboids=Cuboids(rows, columns, Split(8, 8, 1), (1, 2, 1)), width=2)
    >>> list(plan.panels(0)), plan.received_nbytes(0)
    ([Panel(start=0, stop=2, owner=0), Panel(start=2, stop=4, owner=0), Panel(start=0, stop=2, owner=1), \
Panel(start=2, stop=4, owner=1)], 256)
    """

    name: ClassVar[str] = "SummaC"

    @property
    def panelled(self) -> int:
        return self.cuboids.k.max_count

    @property
    def _dimension(self) -> str:
        return "k"

    @property
    def panel_layers(self) -> int:
        return self.cuboids.k.nprocs

    @property
    def by_owner(self) -> bool:  # type: ignore[override]  # a class attribute in the base
        """Whether each panel is cut from the K indices of one process column of op(A) and one process row of op(B).

        Such panels are contiguous for every block size. They need the same split of K in both operands, and local
        shares of K that are long enough for a GEMM.
        """
        # With reproducible sums panels are ranges of K in its order.
        return not self.reproducible and are_by_owner(self.a.columns, self.b.rows, self.cuboids.k)

    @property
    def is_read_in_place(self) -> bool:  # type: ignore[override]  # a class attribute in the base
        """Whether each panel is contiguous on one rank: op(A) has the rows of D, and op(B) the columns of D."""
        (i, j, _), cuboids = self.cuboids.strides, self.cuboids
        a, b = self.a, self.b
        return (
            self.by_owner
            and (a.copies, b.copies) == (1, 1)
            and a.rows.equivalent(cuboids.m)
            and b.columns.equivalent(cuboids.n)
            and (a.strides[0] == i or cuboids.m.nprocs == 1)
            and (b.strides[1] == j or cuboids.n.nprocs == 1)
        )

    @property
    def is_skewed(self) -> bool:  # type: ignore[override]  # a class attribute in the base
        """Whether ranks begin with panels of different owners, so that no owner serves all ranks at once."""
        return self.is_read_in_place and self.cuboids.k.nprocs == 1

    def first(self, rank: int) -> int:
        """The owner whose panels a rank multiplies first; the next owners follow in order.

        On p x p ranks with p > 2, as in Cannon's algorithm, the ranks of a process row begin with different columns of
        op(A), and the ranks of a process column with different rows of op(B). On 2 x 2 ranks each begins with its own
        shard of op(A); two of the four ranks then also multiply their own shard of op(B).

        Args:
            rank: the rank (local).

        Returns:
            A process column of op(A); 0 if all ranks begin with the same panels.
        """
        a, b = self.a, self.b
        in_a, in_b = a.coordinates(rank), b.coordinates(rank)
        if not self.is_skewed or in_a is None or in_b is None:
            return 0
        p = a.columns.nprocs
        return in_a[1] if p == 2 else (in_a[1] + in_b[0]) % p

    def panels(self, layer: int, first: int = 0) -> Iterator[Panel]:
        """The panels of a layer, in the order in which they are multiplied."""
        a, k = self.a.columns, self.cuboids.k
        if self.by_owner:
            owners = range(first, first + a.nprocs) if k.nprocs == 1 else (layer,)
            for owner in (p % a.nprocs for p in owners):
                for start, stop in cut(Split(a.n, max(1, a.n), 1), 0, a.count(owner), self.width):
                    yield Panel(start, stop, owner)
            return
        for start, stop in k.runs(layer):
            if self.reproducible:  # the pieces below one node of the tree
                yield from (Panel(g0, min(g0 + self.width, stop)) for g0 in range(start, stop, self.width))
                continue
            for g0, g1 in cut(self.cut_at, start, stop, self.width):
                yield Panel(g0, g1)

    def rows_of(self, panel: Panel) -> tuple[int, int]:
        """The rows of op(A) in which a panel is moved and multiplied: all of them, half-open."""
        return 0, self.oriented.m

    @property
    def cut_at(self) -> Split:
        """The split of K at whose block borders panels end, if panels span several owners."""
        splits = self.a.columns, self.b.rows
        narrow = [split for split in splits if split.nprocs > 1 and split.nb >= _LEAST_PANEL]
        return min(narrow, key=lambda split: split.nb, default=self.cuboids.k)

    def phases(self, view: View) -> Iterator[Phase]:
        """Panels of op(A) and op(B) along K, then the partial product if its owner did not form it."""
        yield Phase(STARTING)
        yield from self._panel_phases(view)
        yield from self._delivery(self._copied(view))

    def _panel_phases(self, view: View, rows: int | None = None, gemms: int = 1) -> Iterator[Phase]:
        """Panels along K, each in `gemms` GEMMs; `rows`: rows of D that they multiply on average, None for all."""
        view, cuboids, itemsize = self._copied(view), self.cuboids, self.product.itemsize
        position = cuboids.d.coordinates(view.rank)
        m = n = k = 0
        if position is not None:
            m, n, k = (split.count(i) for split, i in zip((cuboids.m, cuboids.n, cuboids.k), position, strict=True))
        a, b = self.a, self.b
        arrives = [itemsize * count for count in self.arriving_elements(view.rank)]
        if position is not None and k:
            steps, width = self._panels_of_layer(position[2]), self.width
            # Some ranks hold parts of both panels, and send both.
            slow = (self._slow_a * arrives[0] + self._slow_b * arrives[1]) / max(1, sum(arrives))
            kept_a, kept_b = (share(place, view) for place in (a, b))
            messages = peers(a.rows, cuboids.m, a.columns, width), peers(b.columns, cuboids.n, b.rows, width)
            for many, depth, left, right in even(steps, k, *arrives):
                before = traffic(view, left, kept_a, messages[0]) + traffic(view, right, kept_b, messages[1])
                copied = 0
                if not (self.transport == "shared" and self.is_read_in_place):
                    copied = 2 * itemsize * depth * (m + n)
                copied += self.added_nbytes(m, n, depth) + self._added_to_d_nbytes(m, n) * (steps - 1) // steps
                # D[i, j] += op(A)[i, k] op(B)[k, j]   (panels k have arrived)
                gemm = (m if rows is None else rows, -(-n // gemms), depth)
                yield Phase(many, gemm, before, copied=copied, slow=slow, ahead=self.overlap, gemms=gemms)

    def _added_to_d_nbytes(self, m: int, n: int) -> int:
        """Bytes that are read and written to add the sum of a panel to D: on CPUs GEMMs hide them, if they add it."""
        if self.reproducible:
            return 3 * max(self.d_itemsize, 4) * m * n
        return 2 * max(self.d_itemsize, 4) * m * n if self.gpus else 0

    @property
    def _slow_a(self) -> float:
        return self._slow(self.a, self.a.columns, self.width)

    @property
    def _slow_b(self) -> float:
        return self._slow(self.b.T, self.b.rows, self.width)

    def _panel_count(self, rank: int) -> int:
        position = self.cuboids.d.coordinates(rank)
        return 0 if position is None else self._panels_of_layer(position[2])

    @property
    def _longest_layer(self) -> int:
        return max(range(min(_LAYERS, self.cuboids.k.nprocs)), key=self._panels_of_layer)

    def _panels_of_layer(self, layer: int) -> int:
        """Number of panels of a layer; panels cut by owner are counted once for all owners with equal shares."""
        k = self.cuboids.k
        if self.reproducible:
            return max(1, -(-k.count(layer) // self.width))
        if not self.by_owner:
            return _panels(self.cut_at, k, layer, self.width)
        columns = self.a.columns
        if k.nprocs > 1:
            return max(1, -(-columns.count(layer) // self.width))
        starts = sorted({x for x in borders(columns) if x < columns.nprocs} | {0})
        kinds = zip(starts, [*starts[1:], columns.nprocs], strict=True)
        return max(1, sum((stop - start) * -(-columns.count(start) // self.width) for start, stop in kinds))

    @property
    def workspace_nbytes(self) -> int:
        """Two panels of each operand and their messages, and the partial product if it is not formed in D.

        Messages: two panels may be arriving and three leaving, since a rank knows that a panel has left only when it
        needs the panel after the next. Arrivals are at most the panels that the rank multiplies, and departures at most
        its shard, once for each rank that multiplies it.
        """
        rows, columns, itemsize = self.cuboids.m.max_count, self.cuboids.n.max_count, self.product.itemsize
        a, b, (p1, p2, _), inner = self.a, self.b, self.cuboids.extents, self.cuboids.k
        width = min(self.width, inner.max_count, *((a.columns.max_count,) if self.by_owner else ()))
        arrives, leaves = min(2 * _SPARE * width, inner.max_count), 3 * _SPARE * width * self.cuboids.nlayers
        from_a = min(leaves, a.columns.max_count) * a.rows.max_count * p2
        from_b = min(leaves, b.rows.max_count) * b.columns.max_count * p1
        if self.is_read_in_place:  # and sent without packing
            from_a = from_b = 0
        count = self._panels_elements(2 * width * rows, arrives * rows, from_a)
        count += self._panels_elements(2 * width * columns, arrives * columns, from_b)
        partials = 0 if self.in_place else self._partials_nbytes(1, columns, self.sums.columns.max_count)
        return itemsize * count + self.staged_nbytes + partials + self._tree_nbytes

    @property
    def _tree_nbytes(self) -> int:
        """Sums of panels, each as large as a rank's part of D, and blocks of D, of a reproducible product."""
        if not self.reproducible:
            return 0
        rows, columns, pieces = self.cuboids.m.max_count, self.cuboids.n.max_count, self.k_pieces
        panels = max(1, -(-inner // self.width)) if (inner := self.cuboids.k.max_count) else 1
        of_d = max(1, panels.bit_length() - 1) * max(self.d_itemsize, 4) * rows * columns
        return of_d + self.sums_nbytes(rows, columns, max(1, self.width // pieces.width))

    @property
    def _moving(self) -> tuple[Placement, ...]:
        return self.a, self.b

    @property
    def _panels_of(self) -> str:
        return "op(A) and op(B)"

    def moves(self) -> str:
        text = f"panels of {self._panels_of} along k to the ranks of D's blocks"
        if self.in_place:
            return text
        return f"{text}, then {'partial products' if self.cuboids.k.nprocs > 1 else 'the blocks'} to the owners of D"


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaA(Summa):
    """op(A) stays in place: panels of op(B) along N arrive, partial products of D leave for the owners, which add them.

    On the transposed product op(B) stays, and the plan is called SummaB.
    """

    @property
    def name(self) -> str:  # type: ignore[override]  # the name depends on the orientation
        """SummaA, or SummaB on the transposed product."""
        return "SummaB" if self.transposed else "SummaA"

    @property
    def panelled(self) -> int:
        """N, the dimension that SummaA cuts: each rank multiplies panels of all of it."""
        return self.cuboids.n.n

    @property
    def _dimension(self) -> str:
        return "m" if self.transposed else "n"

    @property
    def stays(self) -> bool:
        """Whether every rank already has the part of op(A) that it multiplies; else op(A) is redistributed first."""
        return same_place(self.a, self.cuboids.a)

    def panels(self) -> Iterator[Panel]:
        """The panels of N, in the order in which they are multiplied."""
        for start, stop in cut(self.cut_at, 0, self.cuboids.n.n, self.width):
            yield Panel(start, stop)

    @property
    def _slow_b(self) -> float:
        return self._slow(self.b, self.b.columns, self.width)

    @property
    def cut_at(self) -> Split:
        """The split of N. A panel ends where one of its blocks ends."""
        splits = self.b.columns, self.sums.columns
        narrow = [split for split in splits if split.nprocs > 1 and split.nb >= _LEAST_PANEL]
        return min(narrow, key=lambda split: split.nb, default=self.cuboids.n)

    def phases(self, view: View) -> Iterator[Phase]:
        """op(A) in one step if it moves, then panels of op(B) along N, each followed by its partial products."""
        yield Phase(STARTING)
        view, cuboids, itemsize = self._copied(view), self.cuboids, self.product.itemsize
        position = cuboids.a.coordinates(view.rank)
        a, b = self.a, self.b
        brought = itemsize * received_count(a, cuboids.a, view.rank)
        if brought:
            yield Phase(
                1, before=traffic(view, brought, share(a, view), peers(a.rows, cuboids.m, a.columns, a.columns.n))
            )
            yield Phase(1, copied=2 * brought)
        m, k = (0, 0) if position is None else (cuboids.m.count(position[0]), cuboids.k.count(position[1]))
        arrives, leaves = itemsize * received_count(b, cuboids.b, view.rank), self.delivered_nbytes(view.rank)
        slow = self._slow_b
        kept, sums = share(b, view), self._summed_layers
        messages = peers(b.rows, cuboids.k, b.columns, self.width)
        n = cuboids.n.n
        for many, width, arriving, leaving in even(
            max(1, cut_count(self.cut_at, 0, n, self.width)), n, arrives, leaves
        ):
            # D[i, j] += op(A)[i, k] op(B)[k, j]   (panel j of op(B) has arrived; the sums leave for their owners)
            yield Phase(
                many,
                (m, width, k),
                before=traffic(view, arriving, kept, messages),
                after=traffic(view, leaving, share(cuboids.d, view), sums),
                copied=2 * itemsize * width * k + 3 * leaving + self.added_nbytes(m, width, k),
                waits="queue" if self.overlap else "sent",
                slow=slow,
                ahead=self.overlap,
            )
        yield Phase(1, waits="sent")

    @property
    def workspace_nbytes(self) -> int:
        """Two panels of op(B), two partial products, their messages, and op(A) if it moves."""
        rows, inner, itemsize = self.cuboids.m.max_count, self.cuboids.k.max_count, self.product.itemsize
        a, b, n = self.a, self.b, self.oriented.n
        width, cuboids = min(self.width, n), self.cuboids
        leaves = min(3 * _SPARE * width, b.columns.max_count) * b.rows.max_count * cuboids.m.nprocs
        count = self._panels_elements(2 * width * inner, min(2 * _SPARE * width, n) * inner, leaves)
        if not self.stays:
            whole = a.rows.max_count * a.columns.max_count * cuboids.n.nprocs
            count += self._panels_elements(rows * inner, rows * inner, whole)
        partials = self._partials_nbytes(2, width, min(width, self.sums.columns.max_count))
        sums = self.sums_nbytes(rows, width, max(1, -(-inner // self.k_pieces.width)))
        return itemsize * count + self.staged_nbytes + partials + sums

    @property
    def _moving(self) -> tuple[Placement, ...]:
        return (self.b,) if self.stays else (self.a, self.b)

    def moves(self) -> str:
        stays, arrives, line = ("B", "A", "m") if self.transposed else ("A", "B", "n")
        text = f"panels of op({arrives}) along {line} to the blocks of op({stays}), partial products to the owners of D"
        return text if self.stays else f"op({stays}) to its ranks, then {text}"


def _busy(split: Split) -> int:
    """A coordinate with the largest share: of several the last one, at which operands often have other borders."""
    last = (split.src + max(split.n // split.nb, 1) - 1) % split.nprocs
    return last if split.count(last) == split.max_count else split.src


def _ends(split: Split) -> set[int]:
    """The first two coordinates, the last of the busiest, that with the last block, and the one before the first."""
    last = split.src + max(split.nblocks - 1, 0)
    return {split.src, _busy(split), *(p % split.nprocs for p in (split.src + 1, last, split.src - 1))}


def _along(place: Placement, splits: Sequence[Split], others: Sequence[set[int]]) -> Iterator[int]:
    """Ranks from two corners of a placement on, at the ends of one dimension and at its `others`."""
    for corner in ([split.src for split in splits], [_busy(split) for split in splits]):
        for axis, (split, more) in enumerate(zip(splits, others, strict=True)):
            for end in _ends(split) | more:
                coordinates: list[int] = [*corner[:axis], end, *corner[axis + 1 :], 0]
                yield place.rank(*coordinates[:3])


def contention(ranks: int, place: Placement, across: Split, widths: tuple[int, int], layers: int) -> float:
    """Ranks that need a panel of an operand at the same time, over those that have it, at least 1.

    The panel is cut along `across`, from columns of which `widths[1]` are together on a rank.
    """
    width, run = widths
    # The next panel is in flight at the same time, sometimes from the next owner.
    owners = -(-min(width, across.n) // run) + min(1.0, width / run)
    holders = min(across.nprocs, across.nblocks, owners * layers) * min(place.rows.nblocks, place.rows.nprocs)
    return max(1.0, ranks / max(1.0, holders * place.copies))


def peers(held: Split, needed: Split, across: Split, width: int) -> int:
    """Approximate number of messages per panel: the ranks over which its rows and columns are distributed."""
    down = 1 if held.equivalent(needed) else min(held.nprocs, held.nblocks, needed.max_count // held.nb + 1)
    return max(1, down * min(across.nprocs, -(-min(width, across.n) // across.nb)))


def share(place: Placement, view: View) -> float:
    """Approximate fraction of a rank's received elements of an operand that comes from its own node."""
    first = view.rank - view.rank % view.ranks_per_node
    stop = min(first + view.ranks_per_node, view.nprocs)
    position = place.coordinates(view.rank)
    if position is None or view.nprocs == 1:
        return (stop - first - 1) / max(1, view.nprocs - 1)
    near = others = 0
    for axis in range(3):
        stride, extent = place.strides[axis], place.extents[axis]
        if extent > 1:
            base = view.rank - stride * position[axis]
            inside = min(extent, -(-(stop - base) // stride)) - max(0, -(-(first - base) // stride))
            near, others = near + inside - 1, others + extent - 1
    return near / others if others else (stop - first - 1) / (view.nprocs - 1)


def traffic(view: View, nbytes: int, near_share: float, messages: int) -> Traffic:
    """Traffic of `nbytes` bytes in `messages` messages; a fraction `near_share` of it comes from the own node."""
    if not nbytes:
        return Traffic()
    if view.transport == "shared":
        return Traffic(read=nbytes)
    near_nbytes = int(nbytes * near_share)
    far_nbytes = nbytes - near_nbytes
    far_messages = messages if far_nbytes else 0
    if view.transport == "mixed":
        return Traffic(far=far_nbytes, far_messages=far_messages, read=near_nbytes)
    near_messages = messages if near_nbytes else 0
    return Traffic(near_nbytes, far_nbytes, near_messages=near_messages, far_messages=far_messages)
