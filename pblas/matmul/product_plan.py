"""Plans of products: values that describe data movement and GEMMs.

`plan.steps(rank)` yields the steps of one rank, lazily. All sizes in this module are those of the *logical* product
D = op(A) op(B), with op(A) m x k, op(B) k x n and D m x n. The local GEMM handles storage order and transposition.

Each algorithm is written for one orientation, in which it cuts columns of D. A plan with `transposed` set is the plan
of D^T = op(B)^T op(A)^T, on the same memory. `plan.oriented` is the product in the orientation of the algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product
from typing import ClassVar, Literal

from pblas.backends.engine_limits import (
    SLICE_BITS,
    SLICE_DEPTH,
    SLICE_TILE,
    Reproducible,
    exact_nbytes,
    moduli_of,
    pieces_nbytes,
    slices_of,
)
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.matmul.k_pieces import PADDED, TILE, KPieces
from pblas.plans.algorithm import Algorithm, Times
from pblas.plans.base import Plan, ranks_text
from pblas.simulation.hardware import ITEMSIZE, Transport

_LINE_NBYTES = 16  # cuBLASLt reads lines of a multiple of so many bytes, if elements have 8 bits
_IN_PLACE = "ranks read and write the arrays of others in place, in the node's shared memory"

Axis = Literal["rows", "columns", "all", "grid"]
Finishes = Literal["", "sum", "reduction"]


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution of a logical matrix: split along one axis, replicated, or over a grid.

    >>> Distribution("rows", Split(8, 2, 4)).T
    Distribution(axis='columns', split=Split(n=8, nb=2, nprocs=4, src=0, inb=None), placement=None)
    """

    axis: Axis
    split: Split | None = None
    placement: Placement | None = None

    @property
    def T(self) -> Distribution:
        """The distribution of the transposed matrix; no element moves."""
        axes: dict[Axis, Axis] = {"rows": "columns", "columns": "rows", "all": "all", "grid": "grid"}
        return Distribution(axes[self.axis], self.split, None if self.placement is None else self.placement.T)

    def along(self, axis: Axis) -> Split | None:
        """The split along an axis; None if that axis is not split."""
        return self.split if self.axis == axis else None

    def nelements(self, rank: int, m: int, n: int) -> int:
        """Elements of an m x n matrix that a rank has."""
        if self.placement is not None:
            m_loc, n_loc = self.placement.local_shape(rank)
            return m_loc * n_loc
        rows, columns = self.along("rows"), self.along("columns")
        return (rows.count(rank) if rows else m) * (columns.count(rank) if columns else n)

    def __str__(self) -> str:
        if self.placement is None:
            return {"rows": "row-wise", "columns": "column-wise", "all": "replicated"}[self.axis]
        (nprow, npcol, copies), place = self.placement.extents, self.placement
        blocks = f"blocks of {min(place.rows.nb, place.rows.n)} x {min(place.columns.nb, place.columns.n)}"
        grid = f"a {nprow} x {npcol} grid" if nprow * npcol > 1 else "1 rank"
        return f"{blocks} over {grid}" + (f", {copies} copies" if copies > 1 else "")


@dataclass(frozen=True, slots=True)
class Product:
    """Sizes, dtype and distributions of a logical product D = op(A) op(B) over ranks 0..nprocs-1."""

    m: int  # rows of op(A) and D, elements (global)
    n: int  # columns of op(B) and D, elements (global)
    k: int  # columns of op(A), rows of op(B), elements (global)
    dtype: str  # name of the dtype of op(A) (global)
    nprocs: int
    a: Distribution  # distribution of op(A) (global)
    b: Distribution  # distribution of op(B) (global)
    d: Distribution  # distribution of D (global)
    # name of the dtype of op(B), of as many bytes; "" for that of op(A) (global)
    dtype_b: str = field(default="", kw_only=True)
    dtype_d: str = field(default="", kw_only=True)  # name of the dtype of D; "" for that of op(A) (global)

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def d_itemsize(self) -> int:
        """Bytes of an element of D (global)."""
        return ITEMSIZE[self.dtype_d or self.dtype]

    @property
    def rounds(self) -> bool:
        """Whether D has fewer bits than the dtype in which products are added."""
        return self.d_itemsize < ITEMSIZE["float32"]

    @property
    def dtypes_text(self) -> str:
        """The dtypes, for texts: that of op(A), and those of op(B) and D if they differ."""
        factors = f"{self.dtype} x {self.dtype_b}" if self.dtype_b else self.dtype
        return f"{factors} -> {self.dtype_d}" if self.dtype_d else factors

    @property
    def T(self) -> Product:
        """The product of the transposed matrices: D^T = op(B)^T op(A)^T."""
        matrices = self.b.T, self.a.T, self.d.T
        dtype, dtype_b = (self.dtype_b, self.dtype) if self.dtype_b else (self.dtype, "")
        sizes = self.n, self.m, self.k
        return Product(*sizes, dtype, self.nprocs, *matrices, dtype_b=dtype_b, dtype_d=self.dtype_d)

    @property
    def lower_bound(self) -> float:
        """Lower bound on the elements that the busiest rank receives, for any layouts without copies.

        Source: Al Daas, Ballard, Grigori, Kumar, Rouse, SPAA 2022 (arXiv 2205.13407), theorem 3.

        >>> whole = Distribution("all")
        >>> Product(32768, 4096, 4096, "float64", 8, whole, whole, whole).lower_bound == 7 / 8 * 4096**2
        True
        """
        p = self.nprocs
        k, n, m = sorted((self.m, self.n, self.k))
        if not k:
            return 0.0
        if p * n <= m:
            touched = (m * n + m * k) / p + n * k
        elif p * k * k <= m * n:
            touched = 2 * math.sqrt(m * n * k * k / p) + m * n / p
        else:
            touched = 3 * (m * n * k / p) ** (2 / 3)
        return max(0.0, touched - (m * n + m * k + n * k) / p)

    def extreme_ranks(self) -> set[int]:
        """Ranks around the first and the last block of each matrix, and of the end of its grid."""
        ranks = {0, self.nprocs - 1}
        for distribution in (self.a, self.b, self.d):
            place, split = distribution.placement, distribution.split
            if place is not None:
                copies = {0, place.copies // 2, place.copies - 1}
                ranks |= {place.rank(*at) for at in product(around(place.rows), around(place.columns), copies)}
            elif split is not None:
                ranks |= around(split) | {split.nprocs}
        return {rank % self.nprocs for rank in ranks}

    def operands_nbytes(self, rank: int) -> int:
        """Bytes of op(A), op(B) and D on a rank."""
        operands = self.a.nelements(rank, self.m, self.k) + self.b.nelements(rank, self.k, self.n)
        return self.itemsize * operands + self.d_itemsize * self.d.nelements(rank, self.m, self.n)


def around(split: Split) -> set[int]:
    """Coordinates around the first block and the last block, which include the largest and smallest shares."""
    last = split.src + max(split.nblocks - 1, 0)
    return {p % split.nprocs for p in (split.src - 1, split.src, split.src + 1, last - 1, last, last + 1)}


_TRANSPOSED = str.maketrans("FC", "CF")


@dataclass(frozen=True, slots=True)
class ProductPlan(Plan):
    """The fields that every plan of a product has; the module's docstring explains `transposed`.

    Args:
        product: the product in the user's orientation (global).
        why: the rule that chose this plan (global).
        transposed: the plan runs on D^T = op(B)^T op(A)^T (global).
        chunks: pieces in which each shard moves (global).
        transport: "shared" if all ranks share a node's memory, "message" if no two ranks do, "mixed" if some do, "push"
            if ranks push data into the workspaces of their peers (global).
        overlap: data moves while the GEMM runs (global).
        algorithm: how data moves; with the push transport only (global).
        gpus: the matrices are in GPU memory (global).
        measured: times of algorithms on this machine, if they were measured (global).
        queue: stream slot: executions may run concurrently with those of other queues, with the push transport on GPUs;
            None: no other plan runs at the same time (global).
        tiles: all GPUs run the pblas GEMM kernel with tile signals (global).
        orders: storage orders, F or C, of op(A), op(B) and D; with the push transport, or 8 bits on GPUs only (global).
        bandwidth: bytes per second of messages between nodes, measured; 0: not known (global).
        nodes: ranks of each node, in the order of their numbers, with the mixed transport; () if they are not known, or
            not consecutive (global).
        wire: dtype in which partial products travel, if not the dtype of D (global).
        reproducible: the bits of D depend on the elements of op(A) and op(B) alone: K is cut into `k_pieces`; "exact":
            their products are exact (global).
    """

    travels: ClassVar[bool] = True
    """Whether data moves in pieces; with the push transport an algorithm moves it."""
    is_pushed: ClassVar[bool] = True
    """Whether the push transport can run this plan; if not, each rank reads its peers' operands in place."""
    replicates: ClassVar[bool] = False
    """Whether every rank gets all sums of partial products."""

    product: Product
    why: str
    transposed: bool = False
    chunks: int = 1
    transport: Transport = "message"
    overlap: bool = True
    algorithm: Algorithm | None = None
    gpus: bool = False
    measured: Times = ()
    queue: int | None = None
    tiles: bool = False
    orders: str = ""
    wire: str = ""
    bandwidth: float = 0.0
    nodes: tuple[int, ...] = ()
    reproducible: Reproducible = False

    @property
    def k_pieces(self) -> KPieces:
        """The pieces of K of a reproducible product."""
        return KPieces.of(self.product.k, self.reproducible, gpus=self.gpus)

    def added_nbytes(self, m: int, n: int, k: int, times: int = 3) -> int:
        """Bytes that a core reads and writes to add the m x n products of the pieces in K: none if not reproducible."""
        if not self.reproducible:
            return 0
        sums = max(0, -(-k // self.k_pieces.width) - 1)
        return times * max(self.d_itemsize, ITEMSIZE["float32"]) * m * n * sums

    def sums_nbytes(self, m: int, n: int, pieces: int) -> int:
        """Bytes in which a reproducible product of m x n and so many pieces is formed, block by block."""
        if not self.reproducible:
            return 0
        sums = max(1, pieces.bit_length() - 1) + 1
        if self.reproducible == "exact" and self.gpus:
            return sum(exact_nbytes(m, n, self.k_pieces.width, self.d_itemsize, sums)[1])
        if self.gpus:
            itemsize = max(self.d_itemsize, ITEMSIZE["float32"])
            return sum(pieces_nbytes(m, n, self.k_pieces.width, itemsize, sums - 1)[1])
        if self.reproducible == "exact":
            rows, columns = (min(SLICE_TILE, length) for length in (m, n))
            slices, depth = slices_of(self.d_itemsize), min(SLICE_DEPTH, self.k_pieces.width)
            return 8 * ((sums + 2 * slices) * rows * columns + (slices + 1) * depth * (rows + columns))
        rows, columns = (min(TILE, PADDED + length) for length in (m, n))
        width = 16 if self.dtype.startswith("complex") else 8
        return width * (sums * rows * columns + (rows + columns) * self.k_pieces.width)

    @property
    def push_algorithm(self) -> Algorithm:
        """The algorithm of a plan of the push transport, to which the planner gives one."""
        assert self.algorithm is not None, "only the push transport has an algorithm"
        return self.algorithm

    @property
    def oriented(self) -> Product:
        """The product in the orientation of the algorithm."""
        return self.product.T if self.transposed else self.product

    @property
    def oriented_orders(self) -> str:
        """Storage orders of the operands and the result in the orientation of the algorithm; "" if unknown."""
        left_right, result = self.orders[:2], self.orders[2:]
        return (left_right[::-1] + result).translate(_TRANSPOSED) if self.transposed else self.orders

    @property
    def dtype(self) -> str:
        """Name of the dtype of A and B (global)."""
        return self.product.dtype

    @property
    def dtypes_text(self) -> str:
        return self.product.dtypes_text

    @property
    def d_itemsize(self) -> int:
        """Bytes of an element of D (global)."""
        return self.product.d_itemsize

    @property
    def nprocs(self) -> int:
        """Ranks of the context (global)."""
        return self.product.nprocs

    @property
    def sizes(self) -> str:
        return f"{self.product.m} x {self.product.n} x {self.product.k}"

    @property
    def label(self) -> str:
        how = "" if self.overlap else ", overlap=False"
        return f"{self.name}, {self.sizes}, {self.dtypes_text}, {ranks_text(self.nprocs)}{how}"

    @property
    def choice(self) -> str:
        """The plan, its algorithm, and the reasons for both in one line, for the log."""
        reasons = [f"{key} {text}" for key, text in self._reasons()]
        return "; ".join([f"{self.label} ({self.transport} transport): {self.why}", *reasons])

    @property
    def lower_bound(self) -> float:
        return self.product.lower_bound

    @property
    def lower_bound_nbytes(self) -> float:
        """Lower bound on the bytes that the busiest rank receives, if all elements are of the narrowest dtype."""
        return self.lower_bound * min(self.itemsize, self.d_itemsize)

    @property
    def overlaps_messages(self) -> bool:
        return self.overlap and self.travels and self.transport in ("message", "mixed")

    @property
    def in_flight(self) -> int:
        """Pieces for which a rank has buffers: those of a shard, which travel while another shard is multiplied."""
        return max(2, self.chunks)

    @property
    def flops(self) -> int:
        p = self.product
        return 2 * p.m * p.n * p.k * (4 if p.dtype.startswith("complex") else 1)

    @property
    def busiest_multiplies(self) -> int:
        """Multiplications of an element of op(A) and one of op(B) on the rank that has most of them."""
        p, rows = self.oriented, self.oriented.d.along("rows")
        return (p.m if rows is None else rows.max_count) * p.n * p.k

    @property
    def chunked_shape(self) -> tuple[int, int]:
        """Rows and columns of the shard that moves in chunks of columns."""
        return 0, 0

    def pushed_transposed(self, orders: str) -> bool:
        """Whether the push transport runs this plan for D^T, given orders of op(A), op(B) and D as in "FFC"."""
        return self.transposed

    def sent_elements(self, rank: int) -> int:
        return 0

    @property
    def wire_itemsize(self) -> int:
        """Bytes of an element of a partial product that travels."""
        return ITEMSIZE[self.wire] if self.wire else self.d_itemsize

    @property
    def partials_text(self) -> str:
        """The partial products, for `explain`, with their dtype if it is not that of D."""
        return f"partial products of D in {self.wire}" if self.wire else "partial products of D"

    def network_elements(self, node: range) -> int:
        """Elements that the ranks `node` of a node receive from other nodes; plans that know them override it."""
        return 0

    def network_nbytes(self, node: range) -> int:
        """Bytes that the ranks `node` of a node receive from other nodes, with the mixed transport."""
        return self.network_elements(node) * self.itemsize

    @property
    def max_network_nbytes(self) -> int:
        """Bytes that the busiest node receives from other nodes; 0 if the nodes are not known."""
        return max(map(self.network_nbytes, self.hosts), default=0)

    @property
    def hosts(self) -> tuple[range, ...]:
        """The ranks of each node; () if they are not known."""
        stops = accumulate(self.nodes)
        return tuple(range(stop - count, stop) for count, stop in zip(self.nodes, stops, strict=True))

    def operands_nbytes(self, rank: int) -> int:
        return self.product.operands_nbytes(rank)

    @property
    def unfit_for_tiles(self) -> str:
        """Why the pblas GEMM kernel cannot multiply this; "" if it can."""
        raise AssertionError("only plans of the push transport use tiles")

    @property
    def finishes(self) -> Finishes:
        """The place outside a GEMM where D is rounded, and an epilogue applied before that; "": there is none."""
        return ""

    def extreme_ranks(self) -> set[int]:
        """Ranks with the largest and smallest shards."""
        return self.product.extreme_ranks()

    def typical_ranks(self, ranks_per_node: int) -> Sequence[int]:
        """The first and the last rank of pushed plans, which all have about the same work."""
        if self.algorithm is None:
            return Plan.typical_ranks(self, ranks_per_node)
        return list(dict.fromkeys((0, self.nprocs - 1)))

    def title(self) -> str:
        p = self.product
        return f"D = op(A) op(B), {p.m} x {p.n} x {p.k} (m x n x k)"

    def operand_lines(self) -> Iterator[tuple[str, str]]:
        p = self.product
        yield "op(A)", f"{p.m} x {p.k}, {p.a}"
        yield "op(B)", f"{p.k} x {p.n}, {p.b}"
        yield "D", f"{p.m} x {p.n}, {p.d}"

    def detail_lines(self) -> Iterator[tuple[str, str]]:
        """The transfer of data, the algorithm with the reason for its choice, the GEMM and the queue."""
        if self.algorithm is not None:
            yield "transfer", f"through the workspaces of the peers, {self.algorithm}"
        elif self.max_received_nbytes:
            mode = "while the GEMM runs" if self.overlap else "before the GEMM (overlap=False)"
            if self.transport == "shared":
                mode = f"copied from the node's other GPUs {mode}" if self.gpus else _IN_PLACE
            link = f", {self.bandwidth / 1e6:,.0f} MB/s between nodes (measured)" if self.bandwidth else ""
            how = "" if mode == _IN_PLACE else f", {self._how()}"
            yield "transfer", f"{mode}{how}{link}"
            if self.max_network_nbytes:
                yield "network", f"{self.max_network_nbytes:,} bytes at most to the ranks of a node from other nodes"
        if self.reproducible:
            pieces, s = self.k_pieces, "" if self.k_pieces.parts == 1 else "s"
            cut = f"K in {pieces.parts} piece{s} of {pieces.width}, added along a tree"
            if self.reproducible == "exact":
                count = slices_of(self.d_itemsize)
                slices = f"{count} slices of {SLICE_BITS} bits, multiplied by {count * (count + 1) // 2} GEMMs"
                if self.gpus:
                    slices = f"{len(moduli_of(self.d_itemsize))} residues of 8 bits, multiplied by as many GEMMs"
                cut = f"{cut}; {slices}; ranks send elements, since these have more bytes"
            yield "bits", f"the same for any ranks and layouts: {cut}"
        yield from self._reasons()

    @property
    def _short_copies(self) -> str:
        """The matrices of 8 bits that a GPU copies before it multiplies, and the remedies, as text; "" for none.

        cuBLASLt reads 8 bits along k only, in lines of a multiple of 16 bytes.
        """
        copied = [
            f"op({name}) is copied each time, store it by {lines}"
            for name, lines, order, wanted in zip("AB", ("rows", "columns"), self.orders, "CF", strict=False)
            if order != wanted
        ]
        if self.product.k % _LINE_NBYTES:
            copied = [f"op(A) and op(B) are copied each time, make k a multiple of {_LINE_NBYTES}"]
        return ", which reads along k: " + "; ".join(copied) if copied else ""

    def _how(self) -> str:
        """The number of chunks per shard, and the order of the peers, as text."""
        return f"chunks per shard: {self.chunks}, peers in rotated order"

    def _reasons(self) -> Iterator[tuple[str, str]]:
        """The lines algorithm, gemm and queue, where they apply."""
        if self.algorithm is not None:
            times = ", ".join(f"{algorithm.short} {1e6 * seconds:.1f} us" for algorithm, seconds in self.measured)
            was_measured = any(algorithm == self.algorithm for algorithm, _ in self.measured)
            why = f"measured: {times}" if was_measured else "predicted to be the fastest"
            if self.queue is not None:
                why += ", of the algorithms that leave multiprocessors to other queues"
            yield "algorithm", f"{self.algorithm.short}, {why}"
        if self.gpus and self.product.itemsize == 1:
            yield "gemm", f"cuBLASLt in 8 bits{self._short_copies}"
        elif self.algorithm is not None and self.gpus and not self.tiles:
            yield "gemm", "cuBLASLt (the pblas kernel needs Hopper on every GPU)"
        elif self.algorithm is not None and self.tiles and self.unfit_for_tiles:
            yield "gemm", f"cuBLASLt (the pblas kernel {self.unfit_for_tiles})"
        if self.queue is not None:
            how = "concurrently with other queues" if self.transport == "push" and self.gpus else "one after the other"
            yield "queue", f"{self.queue}: executions run {how}"
