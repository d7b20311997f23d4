"""A cost model of the algorithms of pushed plans: the rates of `NVLINK`, and times of kernels measured on its H200.

The best algorithm depends on the ratio of transfer time to GEMM time. The model simulates the streams of an algorithm,
or the order in which one kernel forms its tiles. On other GPUs the estimate is a guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from pblas.backends.engine_limits import COPY_RATE, COPY_US, choose_shape, side_by_side_rows
from pblas.matmul.one_dimensional_plan import AllGatherGemm, GemmAllReduce, GemmReduceScatter
from pblas.matmul.product_plan import ProductPlan
from pblas.plans.algorithm import Algorithm
from pblas.plans.partition import ahead
from pblas.simulation.hardware import ITEMSIZE, NVLINK, flops

# Times (_US) in microseconds, rates (_RATE) in bytes per microsecond. In a graph, a copy by the copy engine costs 6 us
# and moves 380 GB/s. A kernel that pushes to all peers moves 330 GB/s and takes 8 us more, or 5.5 with LL packets. A
# sum reads and writes 3.8 TB/s. A node of a graph takes 3 us, its flag included.
# Two shots: docs/decisions/0007-two-shots-pull.md. All-reduces in pieces: fitted to 105 measurements, to within 4 %
# (benchmarks/results/gpu_algorithms.json). Their ranks fall out of step, so copies meet at one target and are slower.
_AR_COPY_RATE = 280e3
_PUSH_US, _PACKS_US, _PUSH_RATE = 8.0, 5.5, 330e3
_SUM_US, _SUM_RATE = 4.0, NVLINK.memory_bandwidth / 1e6
_SHOT_US = {"one_shot": 5.0, "two_shot": 9.3}
_SHOT_RATE, _ONE_SHOT_RATE = 327e3, 220e3
_SLOW_GEMM = 1.1  # factor of a GEMM's time while copies run
_NODE_US = 3.0
_HANDOFF_US = 12.0  # from a kernel to the copies that follow it, and from their flags to the next kernel

# A GEMM, with rates in floating-point operations per microsecond. With few rows it takes as long as reading the other
# operand, and longer for a deep K: fitted to 1 to 128 rows of Llama 8B, 70B and 405B, to within 16 % (cuBLASLt, tuned).
_GEMM_US, _THIN_US, _DEEP_US, _GEMM_BYTES_RATE = NVLINK.call * 1e6, 3.5, 3e-4, 4.6e6
_RATE = {dtype: NVLINK.flops_per_second(dtype) / 1e6 for dtype in ITEMSIZE}

# Tile signals: one GEMM whose tiles wait, on 132 multiprocessors in clusters of two, with tiles of 256 x 256; the
# narrowest tile takes half as long. During the GEMM a copy takes 11 us with the wait before it and the flag after it,
# and 4 us alone. Fitted to 39 reductions on 4 H200, in one to seven pieces, to within 5 % (2 % on average).
TILE, CLUSTERS, _TILE_RATE = 256, 66, 740e6
_SENT_US, _GOT_US = 11.0, 4.0
_TILES_US, _PIECE_US, _LEAST_TILE, _LAST_ROUND = 8.0, 3.0, 0.5, 0.15

# Fused stores, in few rounds of tiles: the GEMM stores tiles of partial products in the memory of their owners. The
# launch, the last sums, and the rate of large tiles, which power limits.
_STORES_US, _LAST_US, _STORES_RATE = 4.0, 8.0, 620e6
_TERM_US = 1.5  # to add the peers' terms to a tile after its products

# Fused stores, in more rounds of tiles. Fitted to 129 reductions of 2 ranks, and of 4 and 8 emulated ranks: 120 of them
# to within 10 % (docs/decisions/0021-spread-stores.md).
_STORING_TILE_RATE, SHALLOW = 820e6, 4096  # rate of tiles with K up to SHALLOW; above it power limits the rate more
_STORED_RATE, _STORED_PIECE_US = 375e3, 6.0  # rate of all stores together; microseconds of each piece
_BESIDE_STORES = 0.15  # part of the shorter of products and stores that is not hidden by the longer
_SIGNAL_ROUNDS = 0.3  # rounds between the stores of a tile and the arrival of its signal
_COLLECTED_RATE = 1e6  # of copying sums to D during the kernel
_FEW_ROUNDS = 2.5  # most rounds that count as few


def estimate(plan: ProductPlan, algorithm: Algorithm) -> float:
    return _ESTIMATES[type(plan)](plan, algorithm)


def _gemm_us(dtype: str, m: int, n: int, k: int) -> float:
    """Time of a GEMM, microseconds. Libraries choose tiles that fill the GPU, so a part of a GEMM takes its share."""
    nbytes = (m * k + k * n + m * n) * ITEMSIZE[dtype]
    return _GEMM_US + max(flops(m, n, k, dtype) / _RATE[dtype], _THIN_US + k * _DEEP_US + nbytes / _GEMM_BYTES_RATE)


def _all_gather(plan: AllGatherGemm, algorithm: Algorithm) -> float:
    p, nprocs = plan.oriented, plan.product.nprocs
    rows = p.d.split.max_count if p.d.split else p.m
    lines, across = plan.shards.max_count, p.n if plan.along_k else p.k
    shard = lines * across * p.itemsize

    def gemm(shards: int) -> float:
        n, k = (p.n, lines * shards) if plan.along_k else (lines * shards, p.k)
        return _gemm_us(p.dtype, rows, n, k)

    if algorithm.kind == "sm_push":
        start = _PACKS_US if plan.goes_by_packets else _PUSH_US
        return start + (nprocs - 1) * shard / _PUSH_RATE + gemm(nprocs)
    if algorithm.kind == "tile_signals":
        return _gathered_tiles(rows, p.k, lines, nprocs, shard, algorithm)
    end, arrived = gemm(algorithm.groups[0]), 0.0
    for group in algorithm.groups[1:]:
        arrived += group * (COPY_US + shard / COPY_RATE)
        end = max(end, arrived) + _NODE_US + gemm(group)
    return end


def _gathered_tiles(rows: int, k: int, lines: int, nprocs: int, shard: float, algorithm: Algorithm) -> float:
    """Time of one GEMM of all shards: when a shard arrives, its tiles and those of later shards remain to be formed."""
    arrived, arrivals = 0.0, [(0.0, lines)]
    for step in range(nprocs - 1):
        parts = algorithm.groups[step] if step < len(algorithm.groups) else 1
        for _ in range(parts):
            arrived += COPY_US + shard / parts / COPY_RATE
            arrivals.append((arrived, lines // parts))
    end = remaining = 0.0
    for when, count in reversed(arrivals):
        remaining += _rounds(rows, count)
        end = max(end, when + max(remaining + _LAST_ROUND, _LEAST_TILE) * _tile_us(k))
    return _TILES_US + end


def _few_tiles_us(rows: int, k: int, lines: int, nprocs: int) -> float:
    """Time of the tiles of `lines` lines of D for each rank, without waiting."""
    _, us = choose_shape([(lines, rows)] * nprocs, k, CLUSTERS)
    return max(us, 2 * rows * lines * nprocs * k / _STORES_RATE)


def _reduced_by_stores(m: int, k: int, nprocs: int, parts: list[_Part], *, gathers: bool) -> float:
    """Time of one GEMM that stores tiles at their owners, and sums at all ranks; arguments as for `_reduced_tiles`."""
    lines, peers = max(sum(part.lines for part in parts), 1), nprocs - 1
    rounds = nprocs * sum(part.rounds for part in parts) or 1.0  # any number, if the matrix has no rows
    if rounds > _FEW_ROUNDS:
        rate = _STORING_TILE_RATE if k <= SHALLOW else _TILE_RATE
        us = _TILES_US + rounds * _tile_us(k, rate) + _TERM_US * peers * max(1.0, rounds / nprocs)
    else:
        us = _few_tiles_us(m, k, math.ceil(lines), nprocs)
    round_us = us / max(rounds, 1.0)
    if gathers or rounds > _FEW_ROUNDS:
        moved_us = 2 * m * peers / _STORED_RATE
        us = _in_storing_order(parts, nprocs, us / rounds, moved_us, round_us, gathers=gathers)
    else:
        moved_us = 2 * m * peers * lines / _PUSH_RATE
        last = max(0.0, min(1.0, rounds % 1 or 1.0) - rounds / nprocs) / rounds * nprocs / peers
        us = max(us + last * moved_us, round_us + moved_us)
    return _STORES_US + us + _LAST_US


def _in_storing_order(
    parts: list[_Part], nprocs: int, made_us: float, stored_us: float, round_us: float, *, gathers: bool
) -> float:
    """Time of all pieces, and of the copies that bring sums to D from the workspace where peers have stored them."""
    end, signalled, collected, signal_latency_us = 0.0, list[float](), 0.0, _SIGNAL_ROUNDS * round_us
    for sent, own in _storing_order(len(parts), gathers=gathers):
        made = stored = 0.0
        if sent is not None:
            made, stored = made_us * parts[sent].rounds * (nprocs - 1), stored_us * parts[sent].lines
        if own is not None:
            made += made_us * parts[own].rounds
            stored += gathers * stored_us * parts[own].lines
            end = max(end, signalled[own])
        end += max(made, stored) + _BESIDE_STORES * min(made, stored)
        if sent is not None:
            signalled.append(end + signal_latency_us)
        if own is not None and gathers:
            rate = _COLLECTED_RATE if own < len(parts) - 1 else _SUM_RATE / 2
            copied = stored_us * _STORED_RATE * parts[own].lines / rate
            collected = max(collected, end + min(signal_latency_us, made)) + copied
    return max(end, collected) + _STORED_PIECE_US * len(parts)


def _storing_order(pieces: int, *, gathers: bool) -> Iterator[tuple[int | None, int | None]]:
    """(Piece whose lines are sent, piece whose own lines are formed) in each step of the schedule.

    >>> list(_storing_order(2, gathers=False))
    [(0, None), (1, None), (None, 0), (None, 1)]
    >>> list(_storing_order(3, gathers=True))
    [(0, None), (1, None), (2, 0), (None, 1), (None, 2)]
    """
    if gathers:
        for i in range(pieces + 2):
            yield i if i < pieces else None, i - 2 if i > 1 else None
        return
    for i in range(pieces + 1):
        if i < pieces:
            yield i, None
        if i:
            yield None, i - 1


def _reduced_tiles(m: int, k: int, nprocs: int, parts: list[_Part], *, gathers: bool) -> float:
    """Time of one GEMM during which copies take partial products to their owners, and bring the finished sums.

    A copy waits for a round of tiles; uneven pieces end in the middle of a round.
    """
    start, per_round, rounds, arrived = _TILES_US, _tile_us(k), 0.0, [0.0] * len(parts)  # without waiting
    copied = 0.0  # when the copies issued so far have ended

    def made() -> float:
        return start + per_round * math.ceil(rounds - 1e-6)  # tiles of a round end together

    def copy(ready: float, part: _Part, each_us: float) -> float:
        return max(copied, ready) + each_us + m * part.lines * 2 / COPY_RATE

    def send(piece: int, count: int) -> None:
        nonlocal rounds, copied
        for _ in range(count if piece < len(parts) else 0):
            rounds += parts[piece].rounds
            copied = arrived[piece] = copy(made(), parts[piece], _SENT_US)

    peers = nprocs - 1
    soon = ahead(nprocs, len(parts), k) if gathers else peers
    send(0, peers)
    for piece, part in enumerate(parts):
        send(piece + 1, soon)
        start += max(0.0, arrived[piece] - start - per_round * (rounds + 1)) + _PIECE_US
        rounds += part.rounds
        if gathers and piece < len(parts) - 1:
            copied = max(copied, made()) + _SENT_US  # the flags of sums
            for _ in range(peers):
                copied = copy(copied, part, _GOT_US)
        send(piece + 1, peers - soon)
    done = start + per_round * (rounds + max(_LAST_ROUND, _LEAST_TILE - rounds))
    if not gathers:
        return done
    return max(done + _PUSH_US, copied) + (nprocs - 1) * m * parts[-1].lines * 2 / _PUSH_RATE


def _reduced_by_one_kernel(plan: GemmReduceScatter, algorithm: Algorithm) -> float:
    """Time of one kernel that multiplies, and adds the terms that peers copy or store."""
    p, nprocs, k, cut = plan.oriented, plan.product.nprocs, plan.inner.max_count, replace(plan, algorithm=algorithm)
    gathers = isinstance(cut, GemmAllReduce)
    if isinstance(cut, GemmAllReduce):
        owned: Iterable[tuple[tuple[int, int], ...]] = cut.shares_of_pieces
    else:
        owned = ((piece,) for piece in pairwise(max(cut.borders, key=max)))
    parts = [_Part.of([stop - start for start, stop in shares], p.m) for shares in owned]
    if algorithm.kind == "fused_stores":
        return _reduced_by_stores(p.m, k, nprocs, parts, gathers=gathers) + gathers * (_NODE_US + _SUM_US)
    return _reduced_tiles(p.m, k, nprocs, parts, gathers=gathers) + gathers * 3 * _NODE_US


class _Part(NamedTuple):
    """The average share that a rank has of a piece: lines, and rounds of tiles."""

    lines: float
    rounds: float

    @staticmethod
    def of(lines: list[int], rows: int) -> _Part:
        """The average share of a piece with these numbers of lines on the ranks."""
        return _Part(sum(lines) / len(lines), sum(_rounds(rows, count) for count in lines) / len(lines))


def _rounds(rows: int, columns: int) -> float:
    """Rounds in which all clusters form the tiles of a part of D; tiles of the last columns have twice as many rows."""
    last = side_by_side_rows(columns)
    whole = -(-rows // TILE) * -(-(columns - last) // TILE)
    return (whole + (last > 0) * -(-rows // (2 * TILE))) / CLUSTERS


def _tile_us(k: int, rate: float = _TILE_RATE) -> float:
    """Time of one tile on a cluster, where all clusters together have this rate."""
    return 2 * TILE**2 * k / (rate / CLUSTERS)


def _reduce_scatter(plan: GemmReduceScatter, algorithm: Algorithm) -> float:
    p, nprocs, k = plan.oriented, plan.product.nprocs, plan.inner.max_count
    lines = plan.shards.max_count
    part = p.m * lines * p.d_itemsize
    total = _SUM_US + (nprocs + 1) * part / _SUM_RATE
    if algorithm.is_one_kernel:
        return _reduced_by_one_kernel(plan, algorithm)
    if algorithm.kind == "sm_push":
        gemm = _gemm_us(p.dtype, p.m, lines * nprocs, k)
        return gemm + _PUSH_US + (nprocs - 1) * part / _PUSH_RATE + total
    end = copied = 0.0
    for group in reversed(algorithm.groups[1:]):
        end += _gemm_us(p.dtype, p.m, lines * group, k)
        copied = max(copied, end) + group * (COPY_US + part / COPY_RATE)
    return max(end + _gemm_us(p.dtype, p.m, lines, k), copied) + _HANDOFF_US + total


def _all_reduce(plan: GemmAllReduce, algorithm: Algorithm) -> float:
    p, nprocs, k = plan.oriented, plan.product.nprocs, plan.inner.max_count
    whole = p.m * p.n * p.d_itemsize
    if algorithm.kind == "one_shot":
        return _gemm_us(p.dtype, p.m, p.n, k) + _SHOT_US[algorithm.kind] + (nprocs - 1) * whole / _ONE_SHOT_RATE
    if algorithm.is_one_kernel:
        return _reduced_by_one_kernel(plan, algorithm)
    shares = [weight / sum(algorithm.groups) for weight in algorithm.groups]
    done = copied = 0.0  # times at which the main lane, and the copies, become idle
    arrived, sent = list[float](), list[float]()

    def copies(share: float, ready: float) -> float:
        nbytes = share * whole / nprocs
        return max(copied, ready) + (nprocs - 1) * (COPY_US + nbytes / _AR_COPY_RATE)

    def add(piece: int) -> float:
        total = _SUM_US + shares[piece] * whole / _SUM_RATE * (nprocs + 1) / nprocs
        return max(done, arrived[piece]) + _NODE_US + total

    def collect(piece: int) -> float:
        return max(done, sent[piece]) + _NODE_US + _SUM_US + shares[piece] * whole / _SUM_RATE

    for i, share in enumerate(shares):
        gemm = _gemm_us(p.dtype, p.m, max(1, int(p.n * share)), k)
        done += gemm + (_SLOW_GEMM - 1) * min(max(0.0, copied - done), gemm)
        if i < len(shares) - 1 or algorithm.kind == "copy_engine":
            copied = copies(share, done)
            arrived.append(copied)
        if i:
            done = add(i - 1)
            copied = copies(shares[i - 1], done)
            sent.append(copied)
        if i > 1:
            done = collect(i - 2)
    if algorithm.kind == "copy_engine":
        done = add(-1)
        sent.append(copies(shares[-1], done))
    else:  # the reduction kernel gets hardly any bandwidth while copies run
        shot = 2 * (1 - 1 / nprocs) * shares[-1] * whole / _SHOT_RATE
        done = max(done, copied) + _SHOT_US[algorithm.kind] + shot
    for piece in range(max(len(sent) - 2, 0), len(sent)):
        done = collect(piece)
    return done


_ESTIMATES: dict[type[ProductPlan], Callable[[Any, Algorithm], float]] = {
    AllGatherGemm: _all_gather,
    GemmReduceScatter: _reduce_scatter,
    GemmAllReduce: _all_reduce,
}
