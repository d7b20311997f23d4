"""The partition of lines into pieces, each rank's share of a piece, and the order in which ranks visit their peers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, pairwise

MAX_PIECES = 8
"""Pieces of a GemmAllReduce at most, with the push transport."""
LINES, HALF_TILE = 8, 128
"""Pieces start on multiples of LINES (16 bytes of a 16-bit row) or HALF_TILE (rows of a multiprocessor's tile)
lines."""
_BALANCED_K = 2560
"""Below this K the copies of an all-reduce take 1.5 times as long as its GEMM (16 bits, H200, NVLink)."""


def padded(nbytes: int) -> int:
    """Bytes of a block of a workspace: blocks start on multiples of 256 bytes.

    >>> padded(1), padded(512)
    (256, 512)
    """
    return nbytes + -nbytes % 256


def pieces(count: int, chunks: int) -> Iterator[tuple[int, int, int]]:
    """(index, start, stop) of `chunks` nearly equal parts of 0..count; empty ones are left out.

    >>> list(pieces(5, 2))
    [(0, 0, 2), (1, 2, 5)]
    """
    for i in range(chunks):
        start, stop = count * i // chunks, count * (i + 1) // chunks
        if start < stop:
            yield i, start, stop


def cuts(lines: int, weights: tuple[int, ...], unit: int = LINES) -> list[int]:
    """Borders of pieces whose sizes are as the weights, on multiples of `unit` lines.

    >>> cuts(100, (2, 1, 1)), cuts(3, (2, 1)), cuts(625, (1, 1), 128)
    ([0, 48, 72, 100], [0, 0, 3], [0, 256, 625])
    """
    total = sum(weights)
    inner = [lines * s // total // unit * unit for s in accumulate(weights)]
    return [0, *inner[:-1], lines]


def share(start: int, stop: int, owner: int, nprocs: int, unit: int = LINES) -> tuple[int, int]:
    """The lines of a piece that `owner` sums: an even share, on multiples of `unit` lines.

    Ranks take turns with the larger shares: a rank gets a second one after all ranks have had one.

    >>> [share(0, 40, r, 4) for r in range(4)], [share(40, 90, r, 4) for r in range(4)]
    ([(0, 16), (16, 24), (24, 32), (32, 40)], [(40, 48), (48, 64), (64, 80), (80, 90)])
    """
    quotient, more = divmod(-(-(stop - start) // unit), nprocs)
    first = start // unit % nprocs  # the first of the `more` ranks with larger shares, modulo nprocs
    over = max(first + more - nprocs, 0)

    def border(rank: int) -> int:
        units = quotient * rank + min(rank, over) + min(max(rank - first, 0), more - over)
        return min(start + unit * units, stop)

    return border(owner), border(owner + 1)


@lru_cache(256)
def shares(lines: int, weights: tuple[int, ...], nprocs: int, unit: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """For each piece, the lines that each rank sums; cached, as the planner asks for the same ones often.

    >>> shares(40, (1, 1), 2, 8)
    (((0, 8), (8, 16)), ((16, 32), (32, 40)))
    """
    borders = pairwise(cuts(lines, weights, unit))
    return tuple(tuple(share(*piece, owner, nprocs, unit) for owner in range(nprocs)) for piece in borders)


def flat_share(count: int, owner: int, nprocs: int) -> tuple[int, int]:
    """The elements that `owner` sums in a two-shot reduction: equal parts on multiples of 16 elements.

    >>> [flat_share(100, r, 4) for r in range(4)]
    [(0, 32), (32, 64), (64, 96), (96, 100)]
    """
    part = -(-count // nprocs)
    part += -part % 16
    return min(part * owner, count), min(part * (owner + 1), count)


def ahead(nprocs: int, count: int, k: int) -> int:
    """Peers whose lines of the next piece are formed before the own lines of a piece, if all ranks get its sums.

    With all peers first, the sums leave late: 8 ranks lose 1 to 6 % where the GEMM takes as long as the copies. Where
    the GEMM takes less, early sums delay the partial products, and 8 ranks lose 1 to 9 %
    (docs/decisions/0011-tile-signals.md).

    Args:
        nprocs: ranks.
        count: pieces; the more pieces, the less time each share takes.
        k: inner length of this rank's product.

    >>> [ahead(nprocs, 2, 4096) for nprocs in (2, 4, 8, 16)], ahead(8, 4, 4096), ahead(8, 4, 2048)
    ([1, 3, 1, 2], 2, 7)
    """
    return max(nprocs * count // 16, 1) if nprocs >= 8 and k >= _BALANCED_K else nprocs - 1


def backwards(rank: int, nprocs: int) -> Iterator[int]:
    """The other ranks, from the previous one back: the order in which they read the shard of `rank`, or its sums.

    >>> list(backwards(2, 4))
    [1, 0, 3]
    """
    return ((rank - i) % nprocs for i in range(1, nprocs))


def rotated(rank: int, nprocs: int) -> Iterator[int]:
    """The other ranks, from the next one on.

    >>> list(rotated(2, 4))
    [3, 0, 1]
    """
    return ((rank + i) % nprocs for i in range(1, nprocs))
