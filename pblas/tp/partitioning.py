"""The distribution of the matrices of a linear layer y = x w^T over the ranks, and the products of its gradients.

With T tokens, I features in and O features out, x is T x I, w is O x I, as in torch.nn, and y is T x O. A `Layer` names
the axis, T, I or O, along which each matrix is cut over the ranks. That determines the communication of its products:

    y  = x w^T      T x O
    dx = dy w       T x I
    dw = dy^T x     O x I

x and y may have `batch` axes between tokens and features. T is the length of the first axis, which may be cut. All axes
but the last together are the rows of the products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from types import MappingProxyType
from typing import Literal

from pblas import errors
from pblas.layouts.checks import checked_int
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.layouts.split import Split

Matrix = Literal["x", "w", "y"]
Trans = Literal["N", "T"]
Shape = tuple[int, ...]

AXES: Mapping[Matrix, tuple[str, str]] = MappingProxyType({"x": ("T", "I"), "w": ("O", "I"), "y": ("T", "O")})
"""Axes of the rows and columns of each matrix."""
PRODUCTS: Mapping[Matrix, tuple[Matrix, Matrix, Trans, Trans]] = MappingProxyType(
    {"y": ("x", "w", "N", "T"), "x": ("y", "w", "N", "N"), "w": ("y", "x", "T", "N")}
)
"""For y, and for the gradients by x and by w: the two operands of the product, and whether each is transposed."""
WORDS: Mapping[str, str] = MappingProxyType({"T": "tokens", "I": "features in", "O": "features out"})
"""Names of the axes, for messages."""

_ARGUMENTS: Mapping[Matrix, str] = MappingProxyType({"x": "x", "w": "weight", "y": "dy"})


def argument_name(matrix: Matrix) -> str:
    """The name of the argument that holds a matrix; of y, only the gradient dy is an argument."""
    return _ARGUMENTS[matrix]


@dataclass(frozen=True, slots=True, eq=False)  # five instances, compared by identity, which are keys of caches
class Layer:
    """A kind of linear layer: for each matrix the axis along which it is cut over the ranks, or "" for none.

    >>> GATHER.placed({"T": 10, "I": 4, "O": 6}, (), 0, 2).shapes
    {'x': (5, 4), 'w': (3, 4), 'y': (10, 3)}
    >>> GATHER.placed({"T": 9, "I": 4, "O": 6}, (2, 7), 1, 2).shapes
    {'x': (4, 2, 7, 4), 'w': (3, 4), 'y': (9, 2, 7, 3)}
    """

    name: str  # name of the function that computes y (global)
    x: str  # "T", "I" or "" (global)
    w: str  # "O", "I" or "" (global)
    y: str  # "O", "T" or "" (global)

    def cut(self, matrix: Matrix) -> str:
        """The axis along which a matrix is cut."""
        return {"x": self.x, "w": self.w, "y": self.y}[matrix]

    def placed(self, sizes: Mapping[str, int], batch: Shape, rank: int, nprocs: int) -> Placed:
        """Descriptors and shard shapes for these sizes, with `batch` axes between tokens and features."""
        return _placed(self, sizes["T"], sizes["I"], sizes["O"], batch, rank, nprocs)

    def descriptor(self, matrix: Matrix, m: int, n: int, nbatch: int, nprocs: int) -> MatrixDescriptor:
        """Descriptor of a matrix with m groups of `nbatch` rows, and n columns; a group stays on one rank (global)."""
        cut = self.cut(matrix)
        if not cut:
            return MatrixDescriptor.replicated(m * nbatch, n, nprocs, order="C")
        if AXES[matrix][0] != cut:
            return MatrixDescriptor.column_wise(m * nbatch, n, nprocs, order="C")
        return MatrixDescriptor.row_wise(m * nbatch, n, nprocs, mb=max(1, -(-m // nprocs) * nbatch), order="C")

    def sizes(self, shapes: Mapping[Matrix, Shape], known: Mapping[str, int], nprocs: int) -> dict[str, int]:
        """The numbers of tokens and features of all ranks, from the shapes of this rank's shards.

        >>> SCATTER.sizes({"x": (10, 4), "w": (6, 4)}, {}, 2)
        {'T': 10, 'O': 6, 'I': 8}
        """
        ends = {z: (shape[0], shape[-1]) for z, shape in shapes.items()}
        lengths = [(axis, n, axis == self.cut(z)) for z in ends for axis, n in zip(AXES[z], ends[z], strict=True)]
        sizes: dict[str, int] = {}
        for axis, n, is_cut in sorted(lengths, key=lambda entry: entry[2]):  # stable: whole axes come first
            if not is_cut and sizes.setdefault(axis, n) != n:
                listed = " and ".join(f"{argument_name(z)} ({text(shape)})" for z, shape in shapes.items())
                raise errors.ArgumentError(f"{listed} have {sizes[axis]} and {n} {WORDS[axis]}; make them agree")
            sizes.setdefault(axis, known.get(axis, n * nprocs))
        return sizes


@lru_cache(1024)
def checked_sizes(
    layer: Layer,
    shapes: tuple[tuple[Matrix, Shape], ...],
    batch: Shape,
    known: tuple[tuple[str, int], ...],
    rank: int,
    nprocs: int,
) -> Mapping[str, int]:
    """`Layer.sizes` with checked shapes, cached: it takes as long as a small product, and a model has few shapes."""
    sizes = layer.sizes(dict(shapes), dict(known), nprocs)
    expected = layer.placed(sizes, batch, rank, nprocs).shapes
    for matrix, shape in shapes:
        if shape != expected[matrix]:
            cut = layer.cut(matrix)
            share = f", its part of {sizes[cut]} {WORDS[cut]}" if cut else ""
            raise errors.ArgumentError(
                f"{argument_name(matrix)} is {text(shape)} on rank {rank}, which must have {text(expected[matrix])}"
                f"{share}; where shards differ in length, pass the total as tokens= or features=, and cut by "
                f"tp.local_shard()"
            )
    return MappingProxyType(sizes)


@dataclass(frozen=True, slots=True)
class Placed:
    """The matrices of a layer with given sizes, and one rank's shards."""

    descs: Mapping[Matrix, MatrixDescriptor]  # descriptors of x, w and y, stored by rows (global)
    shapes: Mapping[Matrix, Shape]  # shapes of the rank's shards, with the batch axes (local)
    counts: tuple[int, ...]  # number of rows on each rank, if tokens are cut (global)


@lru_cache(1024)
def _placed(layer: Layer, tokens: int, inwards: int, outwards: int, batch: Shape, rank: int, nprocs: int) -> Placed:
    """`Layer.placed`, cached, because it takes as long as a small product, and a model has few sizes."""
    sizes, nbatch = {"T": tokens, "I": inwards, "O": outwards}, prod(batch)
    descs: dict[Matrix, MatrixDescriptor] = {}
    shapes: dict[Matrix, Shape] = {}
    for matrix, (first, last) in AXES.items():
        m, n = (
            _length(local_shard(sizes[axis], rank, nprocs)) if axis == layer.cut(matrix) else sizes[axis]
            for axis in (first, last)
        )
        descs[matrix] = layer.descriptor(matrix, sizes[first], sizes[last], nbatch if first == "T" else 1, nprocs)
        shapes[matrix] = (m, *batch, n) if first == "T" else (m, n)
    return Placed(descs, shapes, tuple(nbatch * _length(local_shard(tokens, peer, nprocs)) for peer in range(nprocs)))


def _length(span: slice) -> int:
    return int(span.stop - span.start)


def text(shape: Shape) -> str:
    """A shape, for messages.

    >>> text((2, 3))
    '2 x 3'
    """
    return " x ".join(map(str, shape))


GATHER = Layer("allgather_linear", "T", "O", "O")
SCATTER = Layer("linear_reduce_scatter", "I", "I", "T")
REDUCE = Layer("linear_allreduce", "I", "I", "")
REPLICATED = Layer("replicated_linear", "", "O", "O")
ALONE = Layer("partial product", "", "", "")
"""The product of one rank's shards alone: its contribution to the sums of `REDUCE`."""


@lru_cache
def communicated(layer: Layer, target: Matrix) -> Matrix | None:
    """The matrix that is communicated for a product: the operand to gather or the result to reduce; None for none.

    >>> [[communicated(layer, target) for target in PRODUCTS] for layer in (GATHER, SCATTER, REDUCE, REPLICATED)]
    [['x', 'x', 'x'], ['y', 'y', 'y'], ['y', None, None], [None, 'x', None]]
    """
    left, right, *_ = PRODUCTS[target]
    gathered = next((matrix for matrix in (left, right) if layer.cut(matrix) == "T"), None)
    return gathered or (target if layer.cut(left) and layer.cut(left) == layer.cut(right) else None)


def local_shard(n: int, rank: int, nprocs: int) -> slice:
    """The range of tokens or features that a rank owns: ceil(n / nprocs) on each rank, fewer or none on the last ranks.

    Args:
        n: number of tokens or features of all ranks (global).
        rank: number of the rank, 0 <= rank < nprocs (local).
        nprocs: number of ranks (global).

    Returns:
        The half-open range, as a slice.

    Raises:
        LayoutError: an argument that is not an integer, or is out of range.

    >>> [local_shard(10, rank, 4) for rank in range(4)]
    [slice(0, 3, None), slice(3, 6, None), slice(6, 9, None), slice(9, 10, None)]
    """
    nprocs = checked_int("local_shard", "nprocs", nprocs, 1)
    n, rank = (
        checked_int("local_shard", "n", n, 0),
        checked_int("local_shard", "rank", rank, 0, nprocs - 1, why="nprocs - 1"),
    )
    ranges = Split(n, max(1, -(-n // nprocs)), nprocs).ranges(rank)
    return slice(*ranges[0]) if ranges else slice(n, n)
