"""The partition of lines into pieces, each rank's share of a piece, and the order in which ranks visit their peers.

Lines are the rows or columns of D that are cut: columns in the orientation of a plan's steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

MAX_PIECES = 8  # largest number of pieces of a GemmAllReduce, with the push transport
LINES, HALF_TILE = 8, 128
"""Pieces start on multiples of LINES lines (16 bytes of a 16-bit row) or of HALF_TILE lines (the rows of a tile that
one multiprocessor forms)."""
_BALANCED_K = 2560
"""Below this K the copies of an all-reduce take at least 1.5 times as long as its GEMM (16 bits, H200, NVLink)."""


def padded(nbytes: int) -> int:
    """`nbytes` rounded up to a multiple of 256, on which the blocks of a workspace start.

    >>> padded(1), padded(512)
    (256, 512)
    """
    return nbytes + -nbytes % 256


def pieces(count: int, chunks: int) -> Iterator[tuple[int, int, int]]:
    """(index, start, stop) of `chunks` nearly equal pieces of 0..count-1; empty pieces are left out.

    >>> list(pieces(5, 2))
    [(0, 0, 2), (1, 2, 5)]
    """
    for i in range(chunks):
        start, stop = count * i // chunks, count * (i + 1) // chunks
        if start < stop:
            yield i, start, stop


def cuts(lines: int, weights: tuple[int, ...], unit: int = LINES) -> list[int]:
    """Borders of pieces with sizes in proportion to the weights, on multiples of `unit` lines.

    >>> cuts(100, (2, 1, 1)), cuts(3, (2, 1)), cuts(625, (1, 1), 128)
    ([0, 48, 72, 100], [0, 0, 3], [0, 256, 625])
    """
    total = sum(weights)
    inner = [lines * s // total // unit * unit for s in accumulate(weights)]
    return [0, *inner[:-1], lines]


def share(start: int, stop: int, owner: int, nprocs: int, unit: int = LINES) -> tuple[int, int]:
    """Start and stop of the lines of a piece that `owner` sums: an even share, on multiples of `unit` lines.

    Over consecutive pieces the larger shares go round: a rank gets its second one after all ranks have had one.

    >>> [share(0, 40, r, 4) for r in range(4)], [share(40, 90, r, 4) for r in range(4)]
    ([(0, 16), (16, 24), (24, 32), (32, 40)], [(40, 48), (48, 64), (64, 80), (80, 90)])
    """
    quotient, more = divmod(-(-(stop - start) // unit), nprocs)
    first = start // unit % nprocs  # the first of the `more` ranks with larger shares, which wrap around
    over = max(first + more - nprocs, 0)  # ranks 0..over-1 are those after the wrap

    def border(rank: int) -> int:
        """First line of a rank's share."""
        units = quotient * rank + min(rank, over) + min(max(rank - first, 0), more - over)
        return min(start + unit * units, stop)

    return border(owner), border(owner + 1)


@lru_cache(256)
def shares(lines: int, weights: tuple[int, ...], nprocs: int, unit: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """For each piece, start and stop of the lines that each rank sums.

    Cached: the planner asks for the same arguments often.

    >>> shares(40, (1, 1), 2, 8)
    (((0, 8), (8, 16)), ((16, 32), (32, 40)))
    """
    borders = pairwise(cuts(lines, weights, unit))
    return tuple(tuple(share(*piece, owner, nprocs, unit) for owner in range(nprocs)) for piece in borders)


def flat_share(count: int, owner: int, nprocs: int) -> tuple[int, int]:
    """Start and stop of the elements that `owner` sums in a two-shot reduction: equal shares, on multiples of 16.

    >>> [flat_share(100, r, 4) for r in range(4)]
    [(0, 32), (32, 64), (64, 96), (96, 100)]
    """
    part = -(-count // nprocs)
    part += -part % 16
    return min(part * owner, count), min(part * (owner + 1), count)


def ahead(nprocs: int, count: int, k: int) -> int:
    """Number of peers whose lines of piece i + 1 a rank multiplies before its own lines of piece i, in an all-reduce.

    If all peers come first, the sums leave late: 8 ranks lose 1 to 6 % when the GEMM takes as long as the copies. If
    the GEMM takes less time, early sums delay the partial products: 8 ranks lose 1 to 9 %
    (docs/decisions/0011-tile-signals.md).

    >>> [ahead(nprocs, 2, 4096) for nprocs in (2, 4, 8, 16)], ahead(8, 4, 4096), ahead(8, 4, 2048)
    ([1, 3, 1, 2], 2, 7)
    """
    return max(nprocs * count // 16, 1) if nprocs >= 8 and k >= _BALANCED_K else nprocs - 1


def backwards(rank: int, nprocs: int) -> Iterator[int]:
    """The other ranks, from `rank` - 1 back: the order in which they read the shard or the sums of `rank`.

    >>> list(backwards(2, 4))
    [1, 0, 3]
    """
    return ((rank - i) % nprocs for i in range(1, nprocs))


def rotated(rank: int, nprocs: int) -> Iterator[int]:
    """The other ranks, from `rank` + 1 on.

    >>> list(rotated(2, 4))
    [3, 0, 1]
    """
    return ((rank + i) % nprocs for i in range(1, nprocs))


def receiver(ranks: Sequence[int], source: int, piece: int) -> int:
    """The rank of a node that a piece is sent to, for all `ranks` of the node, which take turns.

    >>> [receiver((2, 3), source, piece) for source in (0, 1) for piece in (0, 1)]
    [2, 3, 3, 2]
    """
    return ranks[(source + piece) % len(ranks)]
