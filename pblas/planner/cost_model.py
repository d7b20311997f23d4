"""How long an algorithm of the push transport takes, about: figures of H200 of one host, whose links are NVLink.

The best algorithm depends on the ratio of transfer time to GEMM time. A small simulation of the streams, or of the
order in which one kernel forms its tiles, estimates the time of each algorithm. On other GPUs the estimate is a guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from pblas.backends.tile_shapes import COPY_RATE, COPY_US, rest, shaped
from pblas.plans.base import ITEMSIZE
from pblas.plans.one_dimensional import AllGatherGemm, GemmAllReduce, GemmReduceScatter
from pblas.plans.partition import ahead
from pblas.plans.plan import Algorithm, ProductPlan

# Microseconds and bytes per microsecond. A copy of the copy engine in a graph costs 6 us and moves 380 GB/s, a kernel
# that pushes to all peers moves 330 GB/s and takes 8 us more, 5.5 with LL packets, a sum reads and writes 3.8 TB/s; a
# node of a graph, a flag included, takes 3.
# Two shots: docs/decisions/0007-two-shots-pull.md. All-reduces by pieces: fitted to 105 of them, to within 4 %
# (docs/performance/gpu_algorithms.json); their ranks fall out of step: copies meet at one target and are slower.
_AR_COPY_RATE = 280e3
_PUSH_US, _PACKS_US, _PUSH_RATE = 8.0, 5.5, 330e3
_SUM_US, _SUM_RATE = 4.0, 3.8e6
_SHOT_US = {"one-shot": 5.0, "two-shot": 9.3}
_SHOT_RATE, _ONE_SHOT_RATE = 327e3, 220e3
_SLOW_GEMM = 1.1  # beside copies
_NODE_US = 3.0
_HANDOFF_US = 12.0  # from a kernel to the copies that follow it, and from their flags to the next kernel

# A GEMM: floating-point operations per microsecond. One of few rows takes as long as reading the other operand, and
# more for a deep K: 1 to 128 rows of 8B, 70B and 405B, to within 16 % (cuBLASLt, tuned).
_GEMM_US, _THIN_US, _DEEP_US, _GEMM_BYTES_RATE = 4.0, 3.5, 3e-4, 4.6e6
_RATE = {"float16": 720e6, "bfloat16": 720e6, "float32": 45e6, "float64": 58e6, "complex64": 45e6, "complex128": 58e6}

# One GEMM whose tiles wait: 132 multiprocessors in clusters of two, tiles of 256 x 256, the narrowest half as long. A
# copy beside it takes 11 us with the wait before it and the flag after it, and 4 alone. Fitted to 39 reductions on 4
# H200, in one to seven pieces, to within 5 % (2 % on average), as the best of four on 2 H200 are met.
TILE, CLUSTERS, _TILE_RATE = 256, 66, 740e6
_SENT_US, _GOT_US = 11.0, 4.0
_TILES_US, _PIECE_US, _LEAST_TILE, _LAST_ROUND = 8.0, 3.0, 0.5, 0.15


# The same where tiles of partial products are stored at their owners: a launch, the last sums, and, of so few rounds,
# the rate of large tiles, which power limits.
_STORES_US, _LAST_US, _STORES_RATE = 4.0, 8.0, 620e6
_TERM_US = 1.5  # of a tile whose terms are added after its products

# Reductions: the rate of tiles, but for a deep K, where power limits it more; of all stores together; of the shorter of
# products and stores, how much the longer takes more; of each piece. The signal of a tile's stores arrives a part of a
# round later, and sums are copied to D during the kernel at the last rate. Fitted to 129 of 2 ranks, and of 4 and 8
# that were played: 120 to within 10 % (docs/decisions/0021-spread-stores.md).
_STORING_TILE_RATE, SHALLOW = 820e6, 4096
_STORED_RATE, _BESIDE_STORES, _STORED_PIECE_US = 375e3, 0.15, 6.0
_SIGNAL_ROUNDS, _COLLECTED_RATE = 0.3, 1e6
_FEW_ROUNDS = 2.5


def estimate(plan: ProductPlan, algorithm: Algorithm) -> float:
    """Microseconds that an execution takes, about."""
    return _ESTIMATES[type(plan)](plan, algorithm)


def _gemm_us(dtype: str, m: int, n: int, k: int) -> float:
    """A GEMM's time. Library kernels find tiles that fill the GPU: parts of a GEMM take their part of its time."""
    flops = 2 * m * n * k * (4 if dtype.startswith("complex") else 1)
    nbytes = (m * k + k * n + m * n) * ITEMSIZE[dtype]
    return _GEMM_US + max(flops / _RATE[dtype], _THIN_US + k * _DEEP_US + nbytes / _GEMM_BYTES_RATE)


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
    """One GEMM of all shards: when a shard arrives, its tiles and those of later shards remain to be multiplied."""
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
    """The time of the tiles of so many lines of each rank, without waiting."""
    _, us = shaped([(lines, rows)] * nprocs, k, CLUSTERS)
    return max(us, 2 * rows * lines * nprocs * k / _STORES_RATE)


def _reduced_by_stores(m: int, k: int, nprocs: int, parts: list[_Part], *, gathers: bool) -> float:
    """One GEMM that stores tiles at their owners, and own sums at all ranks; arguments as of `_reduced_tiles`."""
    lines, peers = max(sum(part.lines for part in parts), 1), nprocs - 1
    rounds = nprocs * sum(part.rounds for part in parts) or 1.0  # of a matrix without rows, any
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
    """All pieces, and the copies that bring sums to D from where peers have stored them.

    Args:
        parts: a rank's part of each piece.
        nprocs: ranks.
        made_us: of the tiles of a round.
        stored_us: of the stores of a line's tiles at all peers.
        round_us: of a round, at least a whole one; signals arrive a part of it after the stores.
        gathers: whether sums are stored at all ranks.
    """
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
    """(piece whose lines are sent, piece whose own lines are formed), step by step, as in the schedule.

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
    """One GEMM during which copies take partial products to their owners, and bring the finished sums.

    A copy waits for a round of tiles; uneven pieces end in the middle of a round.

    Args:
        m: rows of D, in the plan's orientation.
        k: of this rank.
        nprocs: ranks.
        parts: a rank's part of each piece.
        gathers: whether all ranks get the sums; those of the last piece by a kernel.
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


def _reduced_at_once(plan: GemmReduceScatter, algorithm: Algorithm) -> float:
    """One kernel that multiplies, and adds what is copied or stored."""
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
    """A rank's share of a piece, on average: lines, and rounds of tiles."""

    lines: float
    rounds: float

    @staticmethod
    def of(lines: list[int], rows: int) -> _Part:
        """The average share of a piece with these numbers of lines on the ranks."""
        return _Part(sum(lines) / len(lines), sum(_rounds(rows, count) for count in lines) / len(lines))


def _rounds(rows: int, columns: int) -> float:
    """Tiles of a part of D, in rounds of all clusters; where few columns are left, they take two tiles' rows."""
    last = rest(columns)
    whole = -(-rows // TILE) * -(-(columns - last) // TILE)
    return (whole + (last > 0) * -(-rows // (2 * TILE))) / CLUSTERS


def _tile_us(k: int, rate: float = _TILE_RATE) -> float:
    """The time of a tile, where tiles of all clusters have such a rate."""
    return 2 * TILE**2 * k / (rate / CLUSTERS)


def _reduce_scatter(plan: GemmReduceScatter, algorithm: Algorithm) -> float:
    p, nprocs, k = plan.oriented, plan.product.nprocs, plan.inner.max_count
    lines = plan.shards.max_count
    part = p.m * lines * p.itemsize
    total = _SUM_US + (nprocs + 1) * part / _SUM_RATE
    if algorithm.is_one_kernel:
        return _reduced_at_once(plan, algorithm)
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
    whole = p.m * p.n * p.itemsize
    if algorithm.kind == "one-shot":
        return _gemm_us(p.dtype, p.m, p.n, k) + _SHOT_US[algorithm.kind] + (nprocs - 1) * whole / _ONE_SHOT_RATE
    if algorithm.is_one_kernel:
        return _reduced_at_once(plan, algorithm)
    shares = [weight / sum(algorithm.groups) for weight in algorithm.groups]
    done = copied = 0.0  # when the main lane and the copies are idle
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
    else:  # its kernel gets hardly any of the links while copies run
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
