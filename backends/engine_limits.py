"""What plans know of engines: lanes, flags and queues, tiles of the Hopper kernel, epilogues that cuBLASLt fuses.

This module imports no GPU library. The planner and the kernel's tile scheduler use the shapes of tiles for a product
of few tiles, and the time that they take; the figures are for H200.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from pblas.epilogues import NAMED, RESULT, Name, Node, nodes, parse, substituted

ROWS, WIDTH, LINE = 256, 256, 64
"""Rows of a cluster's tiles, one below the other; columns of the widest tile; rows of a warpgroup."""

# Microseconds per 64 elements of K of a tile, by its width and the number of CTAs that compute it. Narrow tiles, and
# wide tiles of one CTA, wait for their loads: a multiprocessor loads 47 bytes per cycle. Each tile costs a constant in
# addition, and each tile of two CTAs another one.
_STEP_US = {(256, 1): 0.515, (128, 1): 0.37, (64, 1): 0.29, (256, 2): 0.75, (128, 2): 0.37, (64, 2): 0.29}
_TILE_US, _EXCHANGE_US = 1.5, 1.5
_STAGES = {256: 4, 128: 6, 64: 8}


COPY_US, COPY_RATE = 6.0, 380e3
"""Successive copies to peers: microseconds per copy, and bytes per microsecond (NVLink of H200)."""


class Shape(NamedTuple):
    """Division of the work among clusters."""

    width: int = WIDTH  # maximum width of tiles: 256, 128 or 64
    split: int = 1  # CTAs of a cluster that compute a tile together, each over a part of K: 1 or 2

    def fitting(self, steps: int) -> Shape:
        """This shape, or the same width with split=1 if K has too few steps for the pipeline's stages.

        If a tile had fewer steps than the ring has stages, the CTA that hands over its sums could get new stages before
        it has seen its last ones.

        >>> Shape(128, 2).fitting(11), Shape(128, 2).fitting(12)
        (Shape(width=128, split=1), Shape(width=128, split=2))
        """
        return self if steps // self.split >= _STAGES[self.width] else self._replace(split=1)

    def tiles(self, parts: Sequence[tuple[int, int]]) -> int:
        """Number of clusters' tiles that cover parts of these rows and columns.

        >>> [Shape(128, split).tiles([(128, 512)]) for split in (1, 2)], Shape(256).tiles([(257, 512)])
        ([2, 4], 3)
        """
        height = ROWS // self.split
        count = 0
        for rows, columns in parts:
            last = side_by_side_rows(rows) if self.split == 1 else 0
            count += -(-(rows - last) // height) * -(-columns // self.width)
            count += (last > 0) * -(-columns // (2 * self.width))
        return count


WIDEST = Shape()


def is_side_by_side(rows: int) -> bool:
    """Whether the two tiles of a cluster are side by side for this many rows, since one tile's rows suffice."""
    return rows <= ROWS // 2


def side_by_side_rows(rows: int) -> int:
    """Number of rows below the last pair of tiles, if the two tiles of a cluster lie side by side in them; else 0.

    A cluster is a pair of multiprocessors that compute two tiles: one below the other, or side by side where the rows
    that are left fit one tile.

    >>> side_by_side_rows(100), side_by_side_rows(256), side_by_side_rows(300), side_by_side_rows(400)
    (100, 0, 44, 0)
    """
    last = rows % ROWS
    return last if is_side_by_side(last) else 0


def choose_shape(parts: Sequence[tuple[int, int]], k: int, clusters: int) -> tuple[Shape, float]:
    """The fastest shape for parts that peers await, and its microseconds if no rank waits for a peer.

    >>> choose_shape([(128, 3584)] * 4, 8192, 66)
    (Shape(width=128, split=1), 48.86)
    """
    candidates, steps = list[tuple[float, Shape]](), -(-k // 64)
    for width, split in _STEP_US:
        shape = Shape(width, split).fitting(steps)
        rounds = max(-(-shape.tiles(parts) // clusters), 1)
        us = _TILE_US + _STEP_US[width, shape.split] * -(-steps // shape.split) + _EXCHANGE_US * (shape.split - 1)
        candidates.append((rounds * us, shape))
    us, shape = min(candidates)
    return shape, round(us, 2)


Lane = Literal["main", "copy", "beside"]
LANES: tuple[Lane, ...] = ("main", "copy", "beside")
"""The caller's stream, and two streams that fork from it and join it again.

The others run copies between GPUs, which use no multiprocessor, and waits, which use at most one warp. Both can run
while a GEMM fills the GPU. What the last one runs may go on during later executions.
"""


Flag = tuple[int, int]  # the rank that sets the flag, and its phase

MAX_QUEUES = 8
"""Maximum number of queues of executions that may run concurrently; in each, at most one CTA waits for a peer."""

MAX_TILE_FLAGS = 256  # maximum number of tile flags of one execution


Reproducible = bool | Literal["exact"]
"""Whether a product has the same bits for any ranks and layouts; "exact": with any BLAS and on any processor too."""

SLICE_BITS = 21
SLICE_DEPTH = 1024  # the sum of so many products, each of two sums of two slices, has at most 53 bits
SLICE_TILE = 1024  # most rows, and most columns, of a block of D that processors form at a time


BIN_BITS = 26
BIN_RANGES = {(8, False): (-42, 39), (8, True): (-83, 79), (4, False): (-6, 4), (4, True): (-12, 9)}
"""First and last bin of an exact sum of numbers, or of squares, by bytes: 2^(26 first) <= x < 2^(26 last + 26)."""
OTHER_BINS = 3  # after the bins: how many infinities, negative ones, and NaNs


def bins_of(itemsize: int, *, squares: bool) -> int:
    """Numbers of an exact sum of real numbers of so many bytes, or of their squares.

    >>> bins_of(8, squares=False), bins_of(2, squares=True)
    (85, 25)
    """
    first, last = BIN_RANGES[max(itemsize, 4), squares]
    return last - first + 1 + OTHER_BINS


EXACT_ROWS, EXACT_COLUMNS = 8192, 2048  # the same for GPUs


def moduli_of(itemsize: int) -> tuple[int, ...]:
    """Numbers modulo which GPUs multiply integers of an exact product: no two have a common factor.

    Their product is more than twice the largest sum of a piece of K, 2^136, or 2^94 for float32.

    >>> math.log2(math.prod(moduli_of(8))) > 138, math.log2(math.prod(moduli_of(4))) > 96, moduli_of(4)[:3]
    (True, True, (256, 255, 253))
    """
    moduli = list[int]()
    for p in range(256, 128, -1):
        if all(math.gcd(p, q) == 1 for q in moduli):
            moduli.append(p)
    return tuple(moduli[: 18 if itemsize == 8 else 13])


def padded(length: int) -> int:
    """The length of a matrix that tensor cores multiply: a multiple of 16."""
    return -(-length // 16) * 16


def exact_nbytes(m: int, n: int, width: int, itemsize: int, sums: int) -> tuple[tuple[int, int], list[int]]:
    """Rows and columns of the blocks in which a GPU forms an exact product of m x n, and bytes of its memory.

    These are the residues of X, those of Y, their products, what it knows of the rows, and sums of blocks.
    """
    rows, columns = min(EXACT_ROWS, padded(max(m, 1))), min(EXACT_COLUMNS, padded(max(n, 1)))
    count, (p, q, k) = len(moduli_of(itemsize)), map(padded, (rows, columns, width))
    nbytes = count * p * k, count * q * k, 4 * count * p * q, 16 * (p + q)
    return (rows, columns), [*nbytes, *[itemsize * p * columns] * sums]


PIECE_TILE = 8192  # most rows, and most columns, of a block of D that a GPU forms along the tree


def pieces_nbytes(m: int, n: int, width: int, itemsize: int, sums: int) -> tuple[tuple[int, int], list[int]]:
    """Rows and columns of the blocks in which a GPU adds products of pieces, and bytes of its memory.

    These are copies of X and of Y, and sums of blocks.
    """
    rows, columns = (min(PIECE_TILE, padded(max(length, 1))) for length in (m, n))
    depth = padded(width)
    return (rows, columns), [itemsize * length for length in (rows * depth, columns * depth, *[rows * columns] * sums)]


def slices_of(itemsize: int) -> int:
    """Slices of an element in an exact product, by its bytes.

    >>> slices_of(8), slices_of(4)
    (3, 2)
    """
    return 3 if itemsize == 8 else 2


_FUNCTIONS = {"relu": NAMED["relu"], "gelu": NAMED["gelu_tanh"]}
"""Functions that cuBLASLt can apply to a product; its gelu is the tanh approximation."""
_HALVES = ("float16", "bfloat16")


def fused_epilogue(tree: Node, dtype: str) -> tuple[str, str | None] | None:
    """cuBLASLt's name of an epilogue, and the name of its bias operand or None; None if cuBLASLt cannot fuse it.

    >>> [fused_epilogue(parse(text), "float32") for text in ("relu(x + b)", "x + b", "relu(x)", "silu(x)")]
    [('RELU_BIAS', 'b'), ('BIAS', 'b'), ('RELU', None), None]
    """
    if dtype not in (*_HALVES, "float32"):
        return None
    functions = {name: text for name, text in _FUNCTIONS.items() if name != "gelu" or dtype in _HALVES}
    names = {node.name for node in nodes(tree) if isinstance(node, Name)} - {RESULT}
    if not names:
        matching = (name for name, function in functions.items() if tree == parse(function))
        return next(((name.upper(), None) for name in matching), None)
    bias, functions = names.pop(), {"bias": RESULT} | {f"{name}_bias": text for name, text in functions.items()}
    for added in (f"{RESULT} + {bias}", f"{bias} + {RESULT}") if not names else ():
        for name, function in functions.items():
            if tree == parse(substituted(function, added)):
                return name.upper(), bias
    return None
