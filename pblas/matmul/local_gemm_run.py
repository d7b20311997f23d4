"""LocalGemm: every rank multiplies its local operands; the local GEMM that all executors share.

Shards of cyclic layouts hold runs of global indices. `IndexRuns` pairs the runs of two matrices along one dimension.
`gemm_runs` multiplies operands whose rows, columns or inner dimension have several runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pblas.backends.cpu.blas import gemm
from pblas.backends.dtypes import Array, Dtype, Index, ProductDtypes, address_of, strided

if TYPE_CHECKING:
    from pblas.backends.device import Device
    from pblas.backends.host_ranks import HostRanks
    from pblas.backends.push_engine import Finish
    from pblas.matmul.one_dimensional_plan import GemmReduceScatter
    from pblas.matmul.product_plan import Product, ProductPlan


# Runs shorter than this on average are packed into one contiguous piece: a GEMM 64 columns wide runs at half speed, and
# packing costs one copy of the piece.
_PACK_BELOW = 64

# Runs of K shorter than this on average are packed too, but in panels of a few hundred columns: a GEMM 64 deep runs at
# 0.88 of the full rate, one 128 deep at 0.96 (n = 2048, float64, AMD EPYC), and a panel costs one copy of an operand.
_DEEP = 256
_PANEL = 512


class RunScaling:
    """Runs any plan without a product: K is empty, or alpha is 0."""

    workspace_nbytes = 0
    peers_read = False

    def __init__(self, backend: HostRanks) -> None:
        self._arrays = backend.arrays

    def publish(self, operands: Operands) -> bool:
        return False

    def prepare(self, *, scratch: bool) -> bool:
        return False

    def run(self, x: Operands) -> None:
        # D_loc = beta C_loc
        self._arrays.add_scaled(x.beta, x.result if x.old is None else x.old, 0.0, x.result)


class RunLocalGemm(RunScaling):
    """Runs a LocalGemm plan on one rank."""

    def __init__(self, plan: ProductPlan, backend: HostRanks, dtypes: ProductDtypes, *unused: object) -> None:
        super().__init__(backend)
        self._total = dtypes.total
        self._m = IndexRuns.of_rows(plan.oriented, backend.rank)

    @property
    def _gemm(self) -> Callable[..., None]:
        """The product of two blocks; looked up at each run, since traces replace it."""
        return self._arrays.gemm

    def run(self, x: Operands) -> None:
        arrays = self._arrays
        total = widened(x, self._total, arrays)
        n, k = IndexRuns.whole(total.shape[1]), IndexRuns.whole(x.right.shape[0])
        # D_loc = alpha op(A)_loc op(B)_loc + beta C_loc
        gemm_runs(
            x.alpha, x.left, x.right, x.beta, total, self._m, n, k, x.conj, self._gemm, arrays.traits.packs_blocks
        )
        if total is not x.result:
            arrays.assign(total, x.result)


def widened(x: Operands, total: Dtype, arrays: Device) -> Any:
    """Accumulator of the product: D itself with C in it, or a 32-bit copy if D has 16 bits."""
    sums = x.result if total == x.result.dtype else arrays.like(x.result, total)
    if x.old is not None and x.old is not sums:
        arrays.assign(x.old, sums)
    return sums


@dataclass(frozen=True, slots=True)
class Orders:
    """Storage orders, "F" or "C", of the operands as the plan sees them."""

    right: Literal["F", "C"]
    result: Literal["F", "C"]
    left: Literal["F", "C"] = "F"


@dataclass(slots=True)
class Operands:
    """Local arrays of D = alpha op(A) op(B) + beta C, in the plan's orientation."""

    left: Array  # op(A), or op(B)^T if the plan is transposed (local)
    right: Array  # op(B), or op(A)^T (local)
    result: Array  # D, or D^T (local)
    old: Array | None  # C, or C^T, None when beta is 0; it may be `result` itself (local)
    conj: tuple[bool, bool]  # conjugate left, right (global)
    alpha: complex  # scalar (global)
    beta: complex  # scalar (global)
    finish: Finish | None = None  # epilogue, with operands like `result`; None without one (local)
    # arrays of one element, by which left and right are multiplied in addition to alpha; None: 1 (local)
    scales: tuple[Array | None, Array | None] = (None, None)

    @property
    def unfinished(self) -> Operands:
        return self if self.finish is None else replace(self, finish=None)

    def finish_of(self, view: Callable[[Any], Any]) -> Finish | None:
        return None if self.finish is None else self.finish.of(view)


class IndexRuns:
    """Pairing of the indices of one dimension of two matrices, as runs; immutable.

    Args:
        runs: (start in the first, start in the second, length), in order (local).

    >>> IndexRuns([(0, 5, 2), (2, 7, 1)]).runs  # adjacent in both: one run
    [(0, 5, 3)]
    """

    __slots__ = ("_flipped", "first", "packed", "runs", "second")

    def __init__(self, runs: Iterable[tuple[int, int, int]]) -> None:
        self.runs: list[tuple[int, int, int]] = []
        for first, second, length in runs:
            i, j, before = self.runs[-1] if self.runs else (-1, -1, 0)
            if before and (i + before, j + before) == (first, second):
                self.runs[-1] = i, j, before + length
            elif length:
                self.runs.append((first, second, length))
        total = sum(length for _, _, length in self.runs)
        self.packed: bool = len(self.runs) > 1 and total < _PACK_BELOW * len(self.runs)
        self.first: Index = _index([(first, length) for first, _, length in self.runs])
        self.second: Index = _index([(second, length) for _, second, length in self.runs])
        self._flipped: IndexRuns | None = None

    @staticmethod
    @lru_cache(256)  # every execution asks for the same few
    def whole(length: int) -> IndexRuns:
        return IndexRuns([(0, 0, length)])

    @staticmethod
    def global_to_local(ranges: list[tuple[int, int]], l0: int = 0, l1: int | None = None) -> IndexRuns:
        """From global indices to indices l0..l1 of a local array that holds the ranges one after the other.

        >>> IndexRuns.global_to_local([(4, 6), (10, 12)], 1, 3).runs
        [(5, 0, 1), (10, 1, 1)]
        """
        runs, local = [], 0
        for g0, g1 in ranges:
            start, stop = max(local, l0), local + g1 - g0 if l1 is None else min(local + g1 - g0, l1)
            if start < stop:
                runs.append((g0 + start - local, start - l0, stop - start))
            local += g1 - g0
        return IndexRuns(runs)

    @staticmethod
    def of_rows(product: Product, rank: int) -> IndexRuns:
        """The rows of op(A) that a rank multiplies, and the rows of its D that result from them."""
        rows = product.d.along("rows")
        if rows is None:
            return IndexRuns.whole(product.m)
        if product.a.axis == "all":
            return IndexRuns.global_to_local(rows.ranges(rank))
        return IndexRuns.whole(rows.count(rank))

    @staticmethod
    def of_inner(plan: GemmReduceScatter, rank: int) -> IndexRuns:
        """The columns of op(A) and rows of op(B) that a rank multiplies to form its partial products."""
        product, ranges = plan.oriented, plan.inner.ranges(rank)
        if product.a.axis == "all":
            return IndexRuns.global_to_local(ranges)
        if product.b.axis == "all":
            return IndexRuns.global_to_local(ranges).flipped()
        return IndexRuns.whole(plan.inner.count(rank))

    @property
    def is_shallow(self) -> bool:
        """Whether products over runs of this length are slow, so that the runs of K are packed in panels."""
        return len(self.runs) > 1 and sum(length for *_, length in self.runs) < _DEEP * len(self.runs)

    def flipped(self) -> IndexRuns:
        """With first and second exchanged."""
        if self._flipped is None:
            self._flipped = IndexRuns((second, first, length) for first, second, length in self.runs)
        return self._flipped


def gemm_runs(
    alpha: complex,
    x: Array,
    y: Array,
    beta: complex,
    z: Array,
    m: IndexRuns,
    n: IndexRuns,
    k: IndexRuns,
    conj: tuple[bool, bool] = (False, False),
    multiply: Callable[..., None] = gemm,
    packs: bool = False,
    finish: Finish | None = None,
) -> None:
    """Z[m, n] := alpha X[m, k] Y[k, n] + beta Z[m, n]; elements outside the runs are neither read nor written."""
    if not k.runs:
        k = IndexRuns.whole(0)
    if packs and (m.packed or n.packed or k.packed):
        packed_x, packed_y = _take(x, m.first, k.first), _take(y, k.second, n.first)
        if isinstance(m.second, slice) and isinstance(n.second, slice):
            # Z[m, n] = alpha X[m, k] Y[k, n] + beta Z[m, n]   (X and Y packed, so that the GEMM is wide)
            multiply(alpha, packed_x, packed_y, beta, z[m.second, n.second], conj=conj)
            return
        place = np.ix_(*(np.r_[index] if isinstance(index, slice) else index for index in (m.second, n.second)))
        shape = (packed_x.shape[0], packed_y.shape[1])
        packed_z = z[place] if beta != 0 else np.empty(shape, z.dtype)
        multiply(alpha, packed_x, packed_y, beta, packed_z, conj=conj)
        z[place] = packed_z
        return
    if packs and k.is_shallow and len(m.runs) == len(n.runs) == 1:
        (m_x, m_z, rows), (n_y, n_z, columns) = m.runs[0], n.runs[0]
        target = z[m_z : m_z + rows, n_z : n_z + columns]
        for panel in _grouped(k.runs):
            left = _side_by_side([x[m_x : m_x + rows, k_x : k_x + inner] for k_x, _, inner in panel])
            right = _side_by_side([y[k_y : k_y + inner, n_y : n_y + columns].T for _, k_y, inner in panel]).T
            # Z[m, n] += alpha X[m, k] Y[k, n]   (short runs k of one panel, side by side, so that the GEMM is deep)
            multiply(alpha, left, right, beta, target, conj=conj)
            beta = 1.0
        return
    for m_x, m_z, rows in m.runs:
        for n_y, n_z, columns in n.runs:
            block = slice(m_z, m_z + rows), slice(n_z, n_z + columns)
            target, scale = _part(z, m_z, rows, n_z, columns), beta
            runs = k.runs or [(0, 0, 0)]
            for number, (k_x, k_y, inner) in enumerate(runs, 1):
                left, right = _part(x, m_x, rows, k_x, inner), _part(y, k_y, inner, n_y, columns)
                last = finish is not None and number == len(runs)
                options = {"finish": finish.of(itemgetter(block))} if finish and last else {}
                # Z[m, n] += alpha X[m, k] Y[k, n]   (one run of each dimension)
                multiply(alpha, left, right, scale, target, conj=conj, **options)
                scale = 1.0


def side_by_side(x: Array, k: IndexRuns) -> tuple[Array, IndexRuns]:
    """X[:, k] with its short runs copied side by side, for several products with them, and the new runs.

    X and k themselves, if a product over each run is fast.

    >>> x, k = side_by_side(np.arange(8).reshape(2, 4), IndexRuns([(0, 0, 1), (2, 1, 1)]))
    >>> x.tolist(), k.runs
    ([[0, 2], [4, 6]], [(0, 0, 2)])
    """
    if not k.is_shallow:
        return x, k
    starts = accumulate((length for *_, length in k.runs), initial=0)
    runs = [(start, second, length) for start, (_, second, length) in zip(starts, k.runs, strict=False)]
    parts = (x[:, first : first + length] for first, _, length in k.runs)
    return x[:, k.first] if k.packed else _side_by_side(list(parts)), IndexRuns(runs)


def _part(x: Array, i: int, rows: int, j: int, columns: int) -> Array:
    """X[i : i + rows, j : j + columns]; X itself if that is all of it, since on GPUs a view takes time."""
    return x if x.shape == (rows, columns) else x[i : i + rows, j : j + columns]


def _grouped(runs: list[tuple[int, int, int]]) -> Iterator[list[tuple[int, int, int]]]:
    """Consecutive runs of about a panel's width together."""
    group: list[tuple[int, int, int]] = []
    for run in runs:
        if group and sum(length for *_, length in group) + run[2] > _PANEL:
            yield group
            group = []
        group.append(run)
    yield group


def _side_by_side(parts: list[Array]) -> Array:
    """One matrix of the columns of all parts, in their storage order: a view where they are adjacent in memory."""
    first, width = parts[0], sum(part.shape[1] for part in parts)
    places = [address_of(part) for part in parts]
    ends = [place + part.shape[1] * part.strides[1] for place, part in zip(places, parts, strict=True)]
    if places[1:] == ends[:-1]:
        return strided(first, (first.shape[0], width), first.strides)
    whole = np.empty((first.shape[0], width), first.dtype, order="F" if first.strides[0] == first.itemsize else "C")
    np.concatenate(parts, axis=1, out=whole)
    return whole


def _index(parts: list[tuple[int, int]]) -> Index:
    """A slice for one run or adjacent ones, else an index array."""
    if not parts:
        return slice(0, 0)
    if all(a + length == b for (a, length), (b, _) in pairwise(parts)):
        return slice(parts[0][0], parts[-1][0] + parts[-1][1])
    return np.concatenate([np.arange(start, start + length) for start, length in parts])


def _take(x: Array, rows: Index, columns: Index) -> Array:
    """Rows and columns of x: a view where both are slices, else a packed copy."""
    if isinstance(rows, slice) or isinstance(columns, slice):
        return x[rows, columns]
    return x[np.ix_(rows, columns)]
