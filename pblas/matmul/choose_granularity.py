"""The granularity of a chosen plan: chunks of shards, the width of panels, and the algorithm of pushed plans.

An algorithm says which unit of the GPU moves the data, and beside which GEMMs: copy engines beside several GEMMs,
multiprocessors before or after one GEMM, or single kernels that multiply and communicate. The one that is predicted to
take the least time is taken, or the one that a measurement (`pblas.matmul.autotune`) found fastest. The same arguments
give the same algorithm on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from pblas.backends.engine_limits import Reproducible
from pblas.matmul.k_pieces import KPieces
from pblas.matmul.one_dimensional_plan import AllGatherGemm, GemmAllReduce, GemmReduceScatter, LocalGemm
from pblas.matmul.product_plan import Product, ProductPlan
from pblas.matmul.summa_plan import PANEL, Summa, SummaC
from pblas.plans.algorithm import Algorithm, Times
from pblas.plans.partition import MAX_PIECES
from pblas.simulation.hardware import Hardware, Topology, Transport
from pblas.simulation.simulate import predict

_MAX_CHUNKS = 8
# A narrower piece of the GEMM spends its time on packing the left operand again: with 256 columns OpenBLAS loses a few
# per cent, with 64 about a quarter (n = 4096, float64).
_MIN_COLUMNS = 128
MIN_PANEL = 128
"""Minimum width of a panel, unless memory is short: a GEMM of this depth loses 4 % (float64, AMD EPYC, OpenBLAS)."""
_LEAST_PANEL = 8  # minimum width of a panel where memory is short: a cache line of float64
_MIN_PANELS = 4
"""K or N is cut into at least this many panels if they are wide enough, so that one travels while another is
multiplied."""
_PANEL_ON_GPUS = 2048
"""Width of a panel of N on GPUs: its GEMM takes several times as long as reading the other operand."""
_DEPTHS_ON_GPUS = (512, 1024, 2048, 4096, 8192)
"""Depths of panels of K on GPUs."""

TILE, CLUSTERS = 256, 66
"""Rows and columns of a tile of the pblas GEMM kernel, and clusters of two multiprocessors that form tiles at once."""
SHALLOW = 4096  # largest K of fused stores: above it power limits the rate of tiles
_TILED = {"GemmAllReduce": 1.5, "GemmReduceScatter": 7.0}
"""Minimum rounds of tiles per cluster before a plan uses tile signals without having been measured."""
_STORED, _LATER, _FLAT = 1.5, 2.5, 2048
"""Minimum rounds of tiles per cluster before a reduction uses fused stores without having been measured, if K is not
deep: _STORED for an all-reduce and for K <= _FLAT, otherwise _LATER. With K <= _FLAT a reduce-scatter does not use tile
signals: its tiles have too few steps along K to add the peers' terms between them."""

_MOST_PARTS = 32  # most parts of one GEMM: one part for each piece and rank
_FEW_TILES = 4  # with fewer tiles along a rank's lines of D, half tiles are cut too

SHORTLIST_LENGTH = 4
"""Maximum number of algorithms that are measured for one plan: one agreement of the ranks compares four integers."""
_MARGIN, _LATENCY = 1.35, 20e-6  # not measured: predictions above _MARGIN times the best one plus _LATENCY

_AR_PIECES = ((1,), (1, 1), (1, 1, 1), (1, 1, 1, 1), (2, 2, 2, 1), (4, 4, 3, 2, 1), (3, 3, 3, 3, 2, 1, 1))
_ANY = Topology(push=True)
_LEAVING_ROOM = {
    "AllGatherGemm": {"copy_engine", "sm_push"},
    "GemmReduceScatter": {"copy_engine"},
    "GemmAllReduce": {"copy_engine"},
}
"""Algorithms for plans with a queue: kernels that wait for a peer have one CTA (docs/decisions/0017-queues.md)."""


@dataclass(frozen=True, slots=True)
class PlanningContext:
    """The settings that all plans compared for one product share."""

    topology: Topology  # the ranks of each node, and how they reach each other (global)
    nprocs: int  # ranks (global)
    orders: str = "FFF"  # storage orders of op(A), op(B) and D (global)
    overlap: bool = True  # let data move while the GEMM runs (global)
    chunks: int | None = None  # pieces per shard, panels of a general plan; None lets the planner choose (global)
    hardware: Hardware | None = None  # the machine to plan for; None if only its topology is known (global)
    # bytes that a rank may use; None for the memory of `hardware`, or no limit (global)
    memory_nbytes: int | None = None
    # function that returns the measured times of a plan's algorithms; None without measurements (global)
    known: Callable[[ProductPlan], Times] | None = None
    queue: int | None = None  # stream slot of the plans' executions; None if they run alone (global)
    wire: str = ""  # name of the dtype in which partial products travel; "" for that of D (global)
    others: tuple[str, str] = ("", "")  # names of the dtypes of op(B) and D; "" for that of op(A) (global)
    reproducible: Reproducible = False  # only plans whose bits do not depend on ranks and layouts (global)
    adds: bool = False  # whether beta is not 0 (global)

    @property
    def transport(self) -> Transport:
        return self.topology.transport(self.nprocs)

    def complete(self, plan: ProductPlan, *, outline: bool = False) -> ProductPlan:
        """The plan with its transport, chunks or panels, and algorithm, ready to be executed.

        In `outline` shards are whole, and panels as wide as they may be if memory is not short: the bounds of such a
        plan hold for the complete one, which takes longer to make.
        """
        transport, transposed = self.transport, plan.transposed
        if transport == "push" and not (self._is_local(plan) if self.reproducible else plan.is_pushed):
            transport = "shared"
        if transport == "push":
            transposed = plan.pushed_transposed(self.orders)
        if self.chunks is None:
            wanted = 1 if outline else _chunks(plan, transport, self.machine)
        else:  # no shard can be cut into more lines than it has
            wanted = min(self.chunks, max(1, plan.oriented.n, plan.oriented.k))
        known, pushed, sends = self.topology, transport == "push" and plan.travels, transport in ("message", "mixed")
        plan = replace(
            plan,
            transposed=transposed,
            chunks=wanted,
            transport=transport,
            overlap=self.overlap,
            gpus=known.gpus,
            queue=self.queue,
            tiles=known.tiles,
            wire=self.wire,
            reproducible=self.reproducible,
            nodes=known.nodes if transport == "mixed" else (),
            orders=self.orders if pushed or (known.gpus and plan.product.itemsize == 1) else "",
            bandwidth=known.bandwidth if sends and self.overlap and plan.travels else 0.0,
        )
        if isinstance(plan, Summa):
            plan = replace(plan, width=_width(plan, self.chunks, None if outline else self.machine))
            return plan if outline else self._with_panels(plan)
        if not pushed:
            return plan
        if self.known:
            plan = replace(plan, measured=self.known(plan))
        return replace(plan, algorithm=choose_algorithm(plan, self.chunks, known))

    def _is_local(self, plan: ProductPlan) -> bool:
        """Whether a reproducible plan is one product on each GPU, which an engine launches."""
        alone = self.topology.gpus and self.queue is None and not self.adds
        return isinstance(plan, LocalGemm) and alone and self.reproducible is True

    def allowed(self, plans: Iterable[ProductPlan]) -> Iterator[ProductPlan]:
        """The plans that may be chosen: if reproducible, those whose ranks have whole pieces of K."""
        for plan in plans:
            if not self.reproducible:
                yield plan
                continue
            pushes = self.topology.gpus or self.topology.push  # only plans that push nothing run with agreements there
            if isinstance(plan, Summa | LocalGemm) or not pushes:
                suitable = reproducible_plan(plan, self.reproducible, gpus=self.topology.gpus)
                if suitable is not None:
                    yield suitable

    @property
    def machine(self) -> Hardware:
        """The machine for which times are predicted: `hardware`, or one core or GPU of any machine for each rank."""
        return self.hardware or self.neutral.topology.hardware

    def seconds(self, plan: ProductPlan) -> float:
        """Predicted time of a plan."""
        return predict(self.neutral.complete(plan), self.machine)

    @property
    def neutral(self) -> PlanningContext:
        """The same settings but for transport and overlap, so that plans and their bits do not depend on these.

        With `chunks` they do not depend on the measured bandwidth either, which messages alone have.
        """
        known = self.topology
        if self.hardware is not None or known.gpus:
            return self
        bandwidth = known.bandwidth if self.chunks is None else 0.0
        return replace(self, topology=Topology(bandwidth=bandwidth), known=None, overlap=True)

    def fits(self, plan: ProductPlan) -> bool:
        return self._limit is None or needed_nbytes(self.complete(plan)) <= self._limit

    def _with_panels(self, plan: Summa) -> ProductPlan:
        """The plan with the widest panels, of those not wider than its own, that fit into memory."""
        limit, least = self._limit, _LEAST_PANEL
        if plan.reproducible and isinstance(plan, SummaC):
            least = plan.k_pieces.width
        while self.chunks is None and limit is not None and plan.width > least and needed_nbytes(plan) > limit:
            plan = replace(plan, width=max(least, plan.width // 2))
        return plan

    @property
    def _limit(self) -> int | None:
        return self.hardware.memory_nbytes if self.memory_nbytes is None and self.hardware else self.memory_nbytes


def reproducible_plan(
    plan: ProductPlan, reproducible: Reproducible = True, *, gpus: bool = False
) -> ProductPlan | None:
    """The plan, with K cut for its layers between pieces, if its sums can be added along the tree; else None.

    >>> from pblas.matmul.product_plan import Distribution
    >>> whole = Distribution("all")
    >>> plan = GemmAllReduce(Product(8, 8, 8, "float64", 4, whole, whole, whole), "")
    >>> reproducible_plan(plan) is None
    True
    """
    if isinstance(plan, GemmReduceScatter) or (isinstance(plan, AllGatherGemm) and plan.along_k):
        return None
    if not isinstance(plan, Summa):
        return plan
    product, cuboids = plan.product, plan.cuboids
    if plan.sum_placement is not None and product.rounds:  # beta C is added before D is rounded
        return None
    k = KPieces.of(product.k, reproducible, gpus=gpus).split(product.k, cuboids.k.nprocs)
    return None if k is None else replace(plan, cuboids=replace(cuboids, k=k))


def needed_nbytes(plan: ProductPlan) -> int:
    """Bytes of matrices and workspace of the rank that needs most, if the context has made the matrices."""
    return _operands_nbytes(plan.product) + plan.workspace_nbytes - plan.staged_nbytes


@lru_cache(16)
def _operands_nbytes(product: Product) -> int:
    """Bytes of op(A), op(B) and D on the rank that has most."""
    return max(map(product.operands_nbytes, product.extreme_ranks()))


@lru_cache(256)
def _chunks(plan: ProductPlan, transport: Transport, machine: Hardware) -> int:
    """Pieces per shard with which the plan is predicted to take the least time."""
    most = min(plan.chunked_shape[1] // _MIN_COLUMNS, _MAX_CHUNKS)
    if transport in ("shared", "push") or most < 2:
        return 1
    plan = replace(plan, transport=transport)
    best, seconds = 1, math.inf
    for chunks in sorted({min(count, most) for count in (1, 2, 4, _MAX_CHUNKS)}):
        predicted = predict(replace(plan, chunks=chunks), machine, seconds)
        if predicted < seconds:
            best, seconds = chunks, predicted
    return best


def _width(plan: Summa, chunks: int | None, machine: Hardware | None) -> int:
    """Width of a panel: a whole shard where it is read in place, otherwise as wide as the GEMM needs.

    On GPUs it is the best one on `machine`, or with None a usual one.
    """
    extent, gpus = plan.panelled, plan.gpus
    if plan.reproducible and isinstance(plan, SummaC):
        wanted = (1 if plan.nprocs == 1 else _MIN_PANELS) if chunks is None else chunks
        return plan.k_pieces.panels(plan.cuboids.k.nprocs, wanted)
    if chunks is not None:
        return max(1, -(-extent // chunks))
    wanted = panel_width(extent, gpus=gpus)
    if not isinstance(plan, SummaC):
        return wanted
    if plan.nprocs == 1:
        return max(1, extent)
    if plan.transport == "shared" and plan.is_read_in_place and not gpus:
        return max(1, extent)
    whole = plan.a.columns.max_count if plan.by_owner else extent
    wanted = _depth_on_gpus(plan, machine) if gpus and machine else wanted
    if gpus or plan.by_owner:  # equal panels; on GPUs their rows start at multiples of 128 bytes at least
        wanted = -(-whole // max(1, -(-whole // wanted)))
        wanted += -wanted % 64 if gpus else 0
    return max(MIN_PANEL, wanted)


def panel_width(extent: int, *, gpus: bool = False) -> int:
    """Width of a panel of a dimension that is cut into several, if no block borders interfere."""
    return max(MIN_PANEL, min(_PANEL_ON_GPUS if gpus else PANEL, -(-extent // _MIN_PANELS)))


@lru_cache(256)
def _depth_on_gpus(plan: SummaC, machine: Hardware) -> int:
    """The depth of a panel along K with which the plan is predicted to take the least time.

    Deep panels take fewer steps, but ranks wait longer for the first one.
    """
    best, seconds = _PANEL_ON_GPUS, math.inf
    for depth in _DEPTHS_ON_GPUS:
        predicted = predict(replace(plan, width=depth), machine, seconds)
        if predicted < seconds:
            best, seconds = depth, predicted
    return best


def doubling(nprocs: int, count: int) -> tuple[int, ...]:
    """Sizes of `count` groups of shards, the first a rank's own: 1, 1, 2, 4, ..., merged or split to that number.

    >>> doubling(8, 4), doubling(8, 2), doubling(8, 8), doubling(6, 3)
    ((1, 1, 2, 4), (1, 7), (1, 1, 1, 1, 1, 1, 1, 1), (1, 1, 4))
    """
    groups = [1]
    while sum(groups) < nprocs:
        groups.append(min(sum(groups), nprocs - sum(groups)))
    count = max(min(count, nprocs), min(2, nprocs))
    while len(groups) > count:
        groups[-2:] = [groups[-2] + groups[-1]]
    while len(groups) < count:
        largest = max(range(len(groups)), key=lambda i: (groups[i], i))
        half = groups[largest] // 2
        groups[largest : largest + 1] = [groups[largest] - half, half]
    return tuple(groups)


def choose_algorithm(plan: ProductPlan, count: int | None, topology: Topology) -> Algorithm:
    """The algorithm with the shortest measured time, or else predicted time; with `count` GEMMs, if given."""
    algorithms = candidates(plan, count, topology)
    measured = [algorithm for algorithm, _ in plan.measured if algorithm in algorithms]
    if measured:
        return measured[0]
    return min(
        (algorithm for algorithm in algorithms if _is_calibrated(plan, algorithm)),
        key=lambda algorithm: _seconds(plan, algorithm, topology),
    )


def _seconds(plan: ProductPlan, algorithm: Algorithm, topology: Topology) -> float:
    return predict(replace(plan, algorithm=algorithm), topology.hardware)


def shortlist(plan: ProductPlan, count: int | None = None, topology: Topology = _ANY) -> list[Algorithm]:
    """The algorithms worth measuring: the one that would be chosen unmeasured, the best of each kind, then others."""
    first = choose_algorithm(replace(plan, measured=()), count, topology)
    times = {algorithm: _seconds(plan, algorithm, topology) for algorithm in candidates(plan, count, topology)}
    most = _MARGIN * times[first] + _LATENCY
    near = [algorithm for algorithm in sorted(times, key=times.__getitem__) if times[algorithm] <= most]
    kinds = {algorithm.kind: algorithm for algorithm in reversed(near)}.values()
    best_of_kinds = (algorithm for algorithm in near if algorithm in kinds)
    return list(dict.fromkeys((first, *best_of_kinds, *near)))[:SHORTLIST_LENGTH]


def candidates(plan: ProductPlan, count: int | None = None, topology: Topology = _ANY) -> list[Algorithm]:
    """The algorithms that a plan can run; arguments as for `choose_algorithm`."""
    algorithms = _all_candidates(plan, count, topology)
    if plan.queue is None:
        return algorithms
    return [algorithm for algorithm in algorithms if algorithm.kind in _LEAVING_ROOM[plan.name]]


def _all_candidates(plan: ProductPlan, count: int | None, topology: Topology) -> list[Algorithm]:
    fits = topology.tiles and not plan.unfit_for_tiles
    tiles = fits and _has_tiles(plan)
    if isinstance(plan, GemmAllReduce):
        return list(_all_reduce_algorithms(plan, count, tiles=tiles))
    assert isinstance(plan, AllGatherGemm | GemmReduceScatter), "other plans move nothing"
    if not plan.overlap:
        return [Algorithm("sm_push")]
    nprocs = plan.product.nprocs
    if count is not None:
        return [Algorithm("copy_engine", doubling(nprocs, count))]
    sizes = {doubling(nprocs, c) for c in range(2, nprocs + 1)}
    if nprocs > 3:
        sizes.add((1, 3, *((nprocs - 4,) if nprocs > 4 else ())))
    algorithms = [*(Algorithm("copy_engine", groups) for groups in sorted(sizes)), Algorithm("sm_push")]
    if tiles:
        algorithms += [Algorithm("tile_signals", pieces) for pieces in _shards_in_pieces(plan)]
    if isinstance(plan, GemmReduceScatter) and fits and nprocs > 1:
        stored = _without_short_last(_shards_in_pieces(plan)) if tiles else [(1,)]
        algorithms += [Algorithm("fused_stores", pieces) for pieces in stored]
    return algorithms


def _is_calibrated(plan: ProductPlan, algorithm: Algorithm) -> bool:
    """Whether the algorithm may be taken without a measurement: one kernel for enough tiles only."""
    depth = plan.inner.max_count if isinstance(plan, GemmReduceScatter) else math.inf
    flat = depth <= _FLAT and not isinstance(plan, GemmAllReduce)
    if algorithm.kind == "fused_stores":
        early = flat or isinstance(plan, GemmAllReduce)
        return depth <= SHALLOW and _rounds_of(plan) >= (_STORED if early else _LATER)
    return algorithm.kind != "tile_signals" or (not flat and _rounds_of(plan) >= _TILED.get(plan.name, math.inf))


def _rounds_of(plan: ProductPlan) -> float:
    """Rounds in which all clusters of a GPU form the tiles of a rank's part of D."""
    p = plan.oriented
    rows = p.d.split.max_count if isinstance(plan, AllGatherGemm) and p.d.split else p.m
    return rows * p.n / (CLUSTERS * TILE**2)


def _shards_in_pieces(plan: AllGatherGemm | GemmReduceScatter) -> list[tuple[int, ...]]:
    """Cuts to try: the number of pieces of each arriving shard; for a reduce-scatter, the relative sizes of pieces.

    Cutting the first shard lets the GEMM begin early. Cutting the last one leaves little work after its arrival.
    """
    if isinstance(plan, GemmReduceScatter):
        return _pieces_of_tiles(plan.shards.max_count, plan.product.nprocs)
    later = [1] * (plan.product.nprocs - 2)
    return sorted({(1,), (2,), (*later, 2), (*later, 4)})


def _has_tiles(plan: ProductPlan) -> bool:
    """Whether each rank owns enough columns of D for a tile; smaller reductions are not split into pieces."""
    return isinstance(plan, AllGatherGemm) or plan.oriented.n >= TILE * plan.product.nprocs


def _all_reduce_algorithms(plan: GemmAllReduce, count: int | None, *, tiles: bool) -> Iterator[Algorithm]:
    if count is None:
        yield Algorithm("one_shot")
    if not plan.overlap:
        yield Algorithm("two_shot")
        return
    for weights in _AR_PIECES if count is None else [tuple(range(min(count, MAX_PIECES), 0, -1))]:
        yield Algorithm("copy_engine", weights)
        yield Algorithm("two_shot", weights)
    if tiles and count is None:
        nprocs = plan.product.nprocs
        pieces = _pieces_of_tiles(plan.oriented.n // nprocs, nprocs)
        yield from (Algorithm("tile_signals", weights) for weights in pieces)
        yield from (Algorithm("fused_stores", weights) for weights in _without_short_last(pieces))


def _pieces_of_tiles(lines: int, nprocs: int) -> list[tuple[int, ...]]:
    """Relative sizes of pieces with whole tiles on each rank: nearly equal, or with a last piece of one tile.

    If a rank has few tiles, the result includes pieces of tiles that are half as high and twice as wide.

    >>> _pieces_of_tiles(1024, 8), _pieces_of_tiles(256, 8)
    ([(1,), (2, 2), (3, 1), (2, 1, 1), (1, 1, 1, 1)], [(1,), (1, 1)])
    """
    few = lines < _FEW_TILES * TILE
    cuts: set[tuple[int, ...]] = {(1,)}
    for height in (TILE, TILE // 2)[: 1 + few]:
        tiles = lines // height
        for count in range(2, min(tiles, MAX_PIECES, _MOST_PARTS // nprocs) + 1):
            cuts |= {_evenly(tiles, count), (*_evenly(tiles - 1, count - 1), 1)}
    if few:  # the same cut may have been made in half tiles and in whole ones
        cuts = {tuple(weight // math.gcd(*weights) for weight in weights) for weights in cuts}
    return sorted(cuts, key=lambda weights: (len(weights), weights))


def _without_short_last(pieces: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Cuts without a short last piece, which makes fused stores up to 6 % slower: its own lines are formed too soon."""
    return [weights for weights in pieces if max(weights) - min(weights) <= 1]


def _evenly(total: int, count: int) -> tuple[int, ...]:
    """`count` integers of this sum that differ by one at most, larger ones first.

    >>> _evenly(7, 3)
    (3, 2, 2)
    """
    return tuple(-(-(total - i) // count) for i in range(count))
