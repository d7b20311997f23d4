"""The order in which clusters of the Hopper kernel take tiles, and the memory layout of its arguments.

Integers only, no GPU needed.
"""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from pblas.backends.engine_limits import LINE, ROWS, WIDEST, WIDTH, Shape, is_side_by_side, side_by_side_rows
from pblas.backends.nvshmem.kernels.arguments import MAX_TERMS, TERM_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


STRIPE = 16  # lines of a TMA transfer of C or D

CLUSTER, THREADS = 2, 384  # CTAs of a cluster, and threads of a CTA

HEIGHT = ROWS // CLUSTER  # rows of a CTA's tile

SHARED_NBYTES = 4 * (ROWS // 2 + WIDTH) * LINE * 2 + 8 * 2 * STRIPE * LINE * 2 + 1024
"""Shared memory of a CTA: four stages, two stripes for each of eight warps, barriers."""

MAP_NBYTES = 128  # size of a CUtensorMap

SCALARS = struct.Struct("=qqqddqqqqqqqq")
"""Beginning of the arguments: tiles count steps alpha beta counters store_interval, of the watch abort record timeout
step, and piece_steps sums."""

PARTS_AT = 128  # offset of the parts, bytes

PART = struct.Struct("=qqqqqqqqqqqqqqq8x")
"""End of a part, after the maps of A, B and D: flag source signal tiles side_by_side rows columns first_row
first_column partial terms places places_end late_terms rest_row."""

TERM = struct.Struct("=qq48x")  # end of a term, after its map: flag source

TERMS_NBYTES = 8 * (1 + TERM_WORDS * MAX_TERMS)
"""Operands of the epilogue: the length of a line, and three words of each operand."""

COSTS = {256: 1.0, 192: 0.8, 128: 0.54, 64: 0.46}
"""Relative time of a tile of this width; narrow tiles load more per multiplication (measured on an H200)."""

TILE_US = 0.0113  # microseconds of the widest tile for each element of K (H200, bfloat16)

_STEPS_OF_A_PIECE, _PIECES = 4, 2  # of a term
_GROUP = 8  # tiles of a column that are consecutive in the table, for reuse in the L2 cache
_FEW_ROUNDS = 8  # most rounds for which narrower tiles of awaited parts are tried
_WORTH = 0.97  # other tiles must take less than this fraction of the time


class Tile(NamedTuple):
    """Rows from `row` on and columns from `column` on of a part of D; the kernel's struct has the same fields."""

    row: int  # first row; for a cluster's tile, the first row of its first CTA
    column: int  # first column; for a cluster's tile, the first column of its first CTA
    width: int  # columns of each CTA, a multiple of LINE; columns outside of the part are not stored
    part: int  # index of the part


def tiles_of_ctas(
    parts: Sequence[tuple[int, int]],
    clusters: int,
    ready: Sequence[float] = (),
    shape: Shape = WIDEST,
    interleaved: Sequence[int] = (),
    *,
    symmetric: bool = False,
) -> list[list[Tile]]:
    """For each tile of `cover`, the tiles of the cluster's CTAs. The arguments are those of `cover`.

    >>> [(tile.row, tile.column) for tile in tiles_of_ctas([(256, 8)], 2)[0]]
    [(0, 0), (128, 0)]
    """
    tiles = cover(parts, clusters, ready, shape, interleaved, symmetric=symmetric)
    return [_apart(tile, parts, shape) for tile in tiles]


def _apart(tile: Tile, parts: Sequence[tuple[int, int]], shape: Shape) -> list[Tile]:
    """The tiles of the two CTAs: one below the other, side by side, or the same tile with half of K each."""
    if shape.split > 1:
        return [tile] * CLUSTER
    if is_side_by_side(parts[tile.part][0] - tile.row):
        return [tile._replace(column=tile.column + i * tile.width) for i in range(CLUSTER)]
    return [tile._replace(row=tile.row + i * HEIGHT) for i in range(CLUSTER)]


def are_dense(terms: int, steps: int) -> bool:
    """Whether a tile has too many terms to add them between its steps along K; then they are added after the steps.

    A term has two pieces. Adding the terms after the steps took 9 to 11 % less time if there was a piece on every
    second step (8 ranks), 0 to 6 % less on every fourth step, and 1 to 5 % more on every fifth or ninth step (4 ranks;
    sizes of the 8B and 70B models; one H200).

    >>> are_dense(7, 28), are_dense(7, 56), are_dense(3, 28), are_dense(0, 28)
    (True, True, False, False)
    """
    return 0 < steps <= _STEPS_OF_A_PIECE * _PIECES * terms


def cover(
    parts: Sequence[tuple[int, int]],
    clusters: int,
    ready: Sequence[float] = (),
    shape: Shape = WIDEST,
    interleaved: Sequence[int] = (),
    *,
    symmetric: bool = False,
) -> list[Tile]:
    """Tiles that cover D in the order of the table: cluster c takes tiles c, c + `clusters`, ...

    If D is symmetric, they cover its blocks of `ROWS` rows and columns on the diagonal and below it.

    The tiles of the last rounds are narrower if all clusters end sooner that way. If later parts are awaited, the tiles
    of the first parts, the last parts or all parts may be narrower. Each cluster takes its tiles in the order of the
    parts, except for interleaved parts. Tiles that wait for peers therefore come after tiles that peers wait for. An
    entry of width 0 means that a cluster has no more tiles.

    In these functions a tile is a cluster's tile.

    >>> cover([(256, 600)], 2)
    [Tile(row=0, column=0, width=256, part=0), Tile(row=0, column=256, width=256, part=0),
     Tile(row=0, column=512, width=128, part=0)]
    >>> [(tile.row, tile.column) for tile in cover([(512, 512)], 3, symmetric=True)]
    [(0, 0), (256, 0), (256, 256)]
    """
    wide = [tile for tile in _mixed(_covered(parts, shape), interleaved) if not symmetric or tile.column <= tile.row]
    if shape.width < WIDTH or shape.split > 1:
        return wide
    if any(ready):
        return _dealt(_awaited(cover(parts, clusters), parts, clusters, ready), clusters, ready)
    full, remainder = divmod(len(wide), clusters)
    if not remainder:
        return wide
    start = max(full - 1, 0) * clusters  # the round before the last is open too
    return wide[:start] + _dealt(_narrowed(wide[start:], parts, clusters), clusters)


def _covered(parts: Sequence[tuple[int, int]], shape: Shape) -> list[Tile]:
    """Tiles of one width that cover D, part by part."""
    sizes = list(enumerate(parts))
    if shape.split == 1:
        return [tile for part, (rows, columns) in sizes for tile in _grouped(part, rows, columns, shape.width)]
    return [
        Tile(row, column, shape.width, part)
        for part, (rows, columns) in sizes
        for column in range(0, columns, shape.width)
        for row in range(0, rows, HEIGHT)
    ]


def _mixed(tiles: list[Tile], interleaved: Sequence[int]) -> list[Tile]:
    """The tiles after interleaving some parts with their preceding parts."""
    if not any(interleaved):
        return tiles
    counts, seen = Counter(tile.part for tile in tiles), Counter[int]()
    begins = list(
        itertools.accumulate((0 if mixed else counts[part] for part, mixed in enumerate(interleaved)), initial=0)
    )

    def place(tile: Tile) -> float:
        part = tile.part
        seen[part] += 1
        first, end = begins[part - interleaved[part]], begins[part]
        return first + (end - first) * seen[part] / counts[part] - 0.5 if interleaved[part] else first + seen[part] - 1

    return sorted(tiles, key=place)


def _awaited(tiles: list[Tile], parts: Sequence[tuple[int, int]], clusters: int, ready: Sequence[float]) -> list[Tile]:
    """The tiles, or those of one width in each part of D if their products would end sooner."""
    candidates = [sorted((tile for tile in tiles if tile.width), key=lambda tile: tile.part)]
    if len(tiles) <= _FEW_ROUNDS * clusters:
        for widths in _widths(len(parts)):
            covered = (_grouped(i, *part, width) for i, (part, width) in enumerate(zip(parts, widths, strict=True)))
            candidates.append([tile for part in covered for tile in part])
    ends = [_deal(candidate, clusters, ready)[0] for candidate in candidates]
    best = min(range(len(candidates)), key=ends.__getitem__)
    return candidates[best if ends[best] < _WORTH * ends[0] else 0]


def _widths(count: int) -> Iterator[list[int]]:
    """Widths of the tiles of `count` parts: a few first and last parts may have narrower tiles."""
    some = sorted({1, 2, count // 2} & set(range(1, count // 2 + 1)))
    ends = [(WIDTH, 0), *itertools.product((192, 128, 64), some)]
    for (first, head), (last, tail), middle in itertools.product(ends, ends, (WIDTH, 192)):
        yield [first] * head + [middle] * (count - head - tail) + [last] * tail


def _grouped(part: int, rows: int, columns: int, width: int = WIDTH) -> Iterator[Tile]:
    """Tiles of one width, in groups of a few rows of tiles: consecutive tiles share operands in the L2 cache."""
    for first, stop in itertools.pairwise((0, rows - side_by_side_rows(rows), rows)):
        for top in range(first, stop, _GROUP * ROWS):
            for column in range(0, columns, width * _abreast(rows - top)):
                for row in range(top, min(top + _GROUP * ROWS, stop), ROWS):
                    yield Tile(row, column, width, part)


def _abreast(rows: int) -> int:
    """Number of CTAs side by side if a part has `rows` rows left."""
    return CLUSTER if is_side_by_side(rows) else 1


def _narrowed(tiles: list[Tile], parts: Sequence[tuple[int, int]], clusters: int) -> list[Tile]:
    """The same area in the widths that let all clusters end soonest.

    Three neighbours of 256 columns may become four of 192, and any tile two of 128 or four of 64.
    """
    triples = _triples(tiles, parts)
    best, chosen = _makespan([WIDTH] * len(tiles), clusters), (0, 0, 1)
    for cuts in (2, 4):
        for triple in range(len(triples) + 1):
            remaining = len(tiles) - 3 * triple
            for cut in range(remaining + 1):
                widths = [WIDTH] * (remaining - cut) + [192] * (4 * triple) + [WIDTH // cuts] * (cuts * cut)
                time = _makespan(widths, clusters)
                if time < best - 1e-9:
                    best, chosen = time, (triple, cut, cuts)
    triple, cut, cuts = chosen
    merged = {tile for group in triples[:triple] for tile in group}
    alone = [tile for tile in tiles if tile not in merged]
    kept, cut_up = alone[: len(alone) - cut], alone[len(alone) - cut :]
    fours = [new for first, *_ in triples[:triple] for new in _cut(first, 3, 192, parts)]
    narrow = [new for tile in cut_up for new in _cut(tile, 1, WIDTH // cuts, parts)]
    return kept + fours + narrow


def _cut(tile: Tile, count: int, width: int, parts: Sequence[tuple[int, int]]) -> Iterator[Tile]:
    """The area of `count` wide tiles, beginning with `tile`, in tiles of another width."""
    rows, columns = parts[tile.part]
    abreast = _abreast(rows - tile.row)
    for column in range(tile.column, min(tile.column + count * WIDTH * abreast, columns), width * abreast):
        yield tile._replace(column=column, width=width)


def _triples(tiles: list[Tile], parts: Sequence[tuple[int, int]]) -> list[tuple[Tile, Tile, Tile]]:
    """Groups of three adjacent tiles of a row, the last tiles first."""
    left, triples = set(tiles), []
    for tile in reversed(tiles):
        pitch = WIDTH * _abreast(parts[tile.part][0] - tile.row)
        first, second = (tile._replace(column=tile.column - i * pitch) for i in (2, 1))
        group = (first, second, tile)
        if left.issuperset(group):
            left.difference_update(group)
            triples.append(group)
    return triples


def _makespan(widths: list[int], clusters: int) -> float:
    """Time until the last cluster ends, if each next tile goes to the first free cluster."""
    free = {0.0: clusters}  # clusters by the time when they are free
    for width, count in Counter(widths).items():
        left = count
        while left:
            time = min(free)
            taken = min(left, free[time])
            left -= taken
            free[time] -= taken
            if not free[time]:
                del free[time]
            later = round(time + COSTS[width], 6)
            free[later] = free.get(later, 0) + taken
    return max(free)


def _deal(tiles: list[Tile], clusters: int, ready: Sequence[float]) -> tuple[float, list[list[Tile]]]:
    """Give each next tile to the first free cluster; returns the end time and the tiles of each cluster."""
    queue, end = [(0.0, cluster) for cluster in range(clusters)], 0.0
    taken: list[list[Tile]] = [[] for _ in range(clusters)]
    for tile in tiles:
        time, cluster = heappop(queue)
        taken[cluster].append(tile)
        time = max(time, ready[tile.part] if ready else 0.0) + COSTS[tile.width]
        end = max(end, time)
        heappush(queue, (time, cluster))
    return end, taken


def _dealt(tiles: list[Tile], clusters: int, ready: Sequence[float] = ()) -> list[Tile]:
    """The tiles in rounds: each next tile goes to the first free cluster."""
    _, taken = _deal(tiles, clusters, ready)
    for line in taken:
        line.sort(key=lambda tile: tile.part)
    rounds = itertools.zip_longest(*taken, fillvalue=Tile(0, 0, 0, 0))
    dealt = [tile for tiles in rounds for tile in tiles]
    while not dealt[-1].width:
        dealt.pop()
    return dealt
