"""The choice of an algorithm for a pushed plan: which unit of the GPU moves the data, and beside which GEMMs.

The candidates are copy engines beside several GEMMs, multiprocessors before or after one GEMM, and single kernels that
multiply and communicate. `pblas.matmul.cost_model` estimates the time of each candidate. A measured time
(`pblas.matmul.autotune`) replaces the estimate. The same arguments give the same algorithm on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from pblas.matmul.cost_model import CLUSTERS, SHALLOW, TILE, estimate
from pblas.matmul.one_dimensional_plan import AllGatherGemm, GemmAllReduce, GemmReduceScatter
from pblas.matmul.product_plan import ProductPlan
from pblas.plans.algorithm import Algorithm
from pblas.plans.partition import MAX_PIECES
from pblas.simulation.hardware import Topology

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
_MARGIN, _LATENCY_US = 1.35, 20.0  # not measured: estimates above _MARGIN times the best one plus _LATENCY_US

_AR_PIECES = ((1,), (1, 1), (1, 1, 1), (1, 1, 1, 1), (2, 2, 2, 1), (4, 4, 3, 2, 1), (3, 3, 3, 3, 2, 1, 1))


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


_ANY = Topology(push=True)
_LEAVING_ROOM = {
    "AllGatherGemm": {"copy_engine", "sm_push"},
    "GemmReduceScatter": {"copy_engine"},
    "GemmAllReduce": {"copy_engine"},
}
"""Algorithms for plans with a queue: kernels that wait for a peer have one CTA (docs/decisions/0017-queues.md)."""


def choose_algorithm(plan: ProductPlan, count: int | None, topology: Topology) -> Algorithm:
    """The algorithm with the shortest measured time, or else estimated time; with `count` GEMMs, if given."""
    algorithms = candidates(plan, count, topology)
    measured = [algorithm for algorithm, _ in plan.measured if algorithm in algorithms]
    if measured:
        return measured[0]
    return min(
        (algorithm for algorithm in algorithms if _is_calibrated(plan, algorithm)),
        key=lambda algorithm: estimate(plan, algorithm),
    )


def shortlist(plan: ProductPlan, count: int | None = None, topology: Topology = _ANY) -> list[Algorithm]:
    """The algorithms worth measuring: the one that would be chosen unmeasured, the best of each kind, then others."""
    first = choose_algorithm(replace(plan, measured=()), count, topology)
    times = {algorithm: estimate(plan, algorithm) for algorithm in candidates(plan, count, topology)}
    near = [
        algorithm
        for algorithm in sorted(times, key=times.__getitem__)
        if times[algorithm] <= _MARGIN * times[first] + _LATENCY_US
    ]
    kinds = {algorithm.kind: algorithm for algorithm in reversed(near)}.values()
    return list(dict.fromkeys((first, *(algorithm for algorithm in near if algorithm in kinds), *near)))[
        :SHORTLIST_LENGTH
    ]


def candidates(plan: ProductPlan, count: int | None = None, topology: Topology = _ANY) -> list[Algorithm]:
    """The algorithms that a plan can run; arguments as for `choose_algorithm`."""
    algorithms = _all_candidates(plan, count, topology)
    return (
        algorithms
        if plan.queue is None
        else [algorithm for algorithm in algorithms if algorithm.kind in _LEAVING_ROOM[plan.name]]
    )


def _all_candidates(plan: ProductPlan, count: int | None, topology: Topology) -> list[Algorithm]:
    fits = topology.tiles and not plan.unfit_for_tiles
    tiles = fits and _has_tiles(plan)
    if isinstance(plan, GemmAllReduce):
        return list(_all_reduce_algorithms(plan, count, tiles=tiles))
    assert isinstance(plan, AllGatherGemm | GemmReduceScatter), "other plans move nothing"
    if not plan.overlap:
        return [Algorithm("sm_push")]
    nprocs = plan.product.nprocs
    sizes = {doubling(nprocs, c) for c in ([count] if count else range(2, nprocs + 1))}
    if nprocs > 3 and count is None:
        sizes |= {(1, 3, *((nprocs - 4,) if nprocs > 4 else ()))}
    algorithms = [Algorithm("copy_engine", groups) for groups in sorted(sizes)] + (
        [] if count else [Algorithm("sm_push")]
    )
    if tiles and count is None:
        algorithms += [Algorithm("tile_signals", pieces) for pieces in _shards_in_pieces(plan)]
    if isinstance(plan, GemmReduceScatter) and fits and nprocs > 1 and count is None:
        algorithms += [
            Algorithm("fused_stores", pieces)
            for pieces in (_without_short_last(_shards_in_pieces(plan)) if tiles else [(1,)])
        ]
    return algorithms


def _is_calibrated(plan: ProductPlan, algorithm: Algorithm) -> bool:
    """Whether the estimate is accurate enough to choose the algorithm without a measurement."""
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
