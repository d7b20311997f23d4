"""Plans: what a distributed product will move and multiply, as values.

A plan is one global value, made of integers: the same on every rank, comparable and printable. `plan.steps(rank)`
yields what one rank does, lazily. All sizes below are those of the *logical* product D = op(A) op(B), with op(A) m x k,
op(B) k x n and D m x n; storage order and transposition are settled in the local GEMM.

Each algorithm is written for one orientation, the one in which columns of D are cut: a plan with `transposed` set is
the plan of D^T = op(B)^T op(A)^T, on the same memory. `plan.left`, `plan.right` and `plan.result` are the operands in
that orientation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from pblas.layouts.placement import Placement
from pblas.layouts.split import Split

if TYPE_CHECKING:
    from pblas.machines import Hardware
    from pblas.simulation import Simulation

ITEMSIZE = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16}
_LINES = 8
"""Pieces are cut on multiples of so many lines: 16 bytes of a 16-bit row."""

_IN_PLACE = "read or written in place in the node's shared memory"

MAX_PIECES = 8
"""Pieces of a GemmAllReduce at most, with the push transport."""

By = Literal["copies", "kernel", "tiles", "one-shot", "two-shot"]
Axis = Literal["rows", "columns", "all", "grid"]
Transport = Literal["window", "message", "mixed", "push"]


@dataclass(frozen=True, slots=True)
class Machine:
    """What the planner has to know of a machine; agreed once per context.

    Args:
        ranks_per_node: ranks that share a node's memory (global).
        shared: whether ranks of one node, of any, read each other's memory (global).
        push: data is pushed into the workspaces of peers, as on GPUs (global).
        gpus: matrices lie on GPUs, where only what is pushed and general plans run (global).
        tiles: a GEMM's tiles can wait for what they multiply, one by one (global).
    """

    ranks_per_node: int = 1
    shared: bool = False
    push: bool = False
    gpus: bool = False
    tiles: bool = False

    @property
    def runs_one_dimensional(self) -> bool:
        """Whether plans that gather, or reduce, shards of one dimension run: on GPUs they are pushed only."""
        return self.push or not self.gpus

    def transport(self, nprocs: int) -> Transport:
        """How the ranks reach each other: in the window of one node, by messages, by both, or by pushing only."""
        if self.push:
            return "push"
        if not self.shared:
            return "message"
        return "window" if nprocs <= self.ranks_per_node else "mixed"


@dataclass(frozen=True, slots=True)
class Spread:
    """How a logical matrix is spread over the ranks: split along one axis, held whole by every rank, or over a grid.

    Args:
        axis: along which it is split; "all": every rank has the whole of it; "grid": as `placement` says (global).
        split: along that axis (global).
        placement: of axis "grid" (global).

    >>> Spread("rows", Split(8, 2, 4)).T
    Spread(axis='columns', split=Split(n=8, nb=2, nprocs=4, src=0, inb=None), placement=None)
    """

    axis: Axis
    split: Split | None = None
    placement: Placement | None = None

    @property
    def T(self) -> Spread:
        """The transposed matrix, without moving an element."""
        axes: dict[Axis, Axis] = {"rows": "columns", "columns": "rows", "all": "all", "grid": "grid"}
        return Spread(axes[self.axis], self.split, None if self.placement is None else self.placement.T)

    def along(self, axis: Axis) -> Split | None:
        """The split along an axis, None when every rank has the whole of it."""
        return self.split if self.axis == axis else None

    def __str__(self) -> str:
        if self.placement is None:
            return {"rows": "row-wise", "columns": "column-wise", "all": "replicated"}[self.axis]
        (nprow, npcol, copies), place = self.placement.extents, self.placement
        blocks = f"blocks of {min(place.rows.nb, place.rows.n)} x {min(place.columns.nb, place.columns.n)}"
        return f"{blocks} over {nprow} x {npcol} ranks" + (f", {copies} copies" if copies > 1 else "")


@dataclass(frozen=True, slots=True)
class Product:
    """Sizes, dtype and spreads of a logical product D = op(A) op(B) over ranks 0..nprocs-1.

    Args:
        m: rows of op(A) and D, elements (global).
        n: columns of op(B) and D, elements (global).
        k: columns of op(A), rows of op(B), elements (global).
        dtype: name of the dtype of all three (global).
        nprocs: ranks that take part (global).
        a: spread of op(A) (global).
        b: spread of op(B) (global).
        d: spread of D (global).
    """

    m: int
    n: int
    k: int
    dtype: str
    nprocs: int
    a: Spread
    b: Spread
    d: Spread

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ITEMSIZE[self.dtype]

    @property
    def T(self) -> Product:
        """The product of the transposed matrices: D^T = op(B)^T op(A)^T."""
        return Product(self.n, self.m, self.k, self.dtype, self.nprocs, self.b.T, self.a.T, self.d.T)

    @property
    def lower_bound(self) -> float:
        """Elements that some rank receives at least, however the matrices are laid out once each.

        Source: Al Daas, Ballard, Grigori, Kumar, Rouse, SPAA 2022 (arXiv 2205.13407), theorem 3.

        >>> whole = Spread("all")
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


@dataclass(frozen=True, slots=True)
class GatherStep:
    """Multiply with columns c0..c1 of the shard that rank `source` owns."""

    source: int
    piece: int
    c0: int
    c1: int


@dataclass(frozen=True, slots=True)
class ReduceStep:
    """Contribute to columns c0..c1 of the part of D that rank `owner` owns; if that is this rank, finish them."""

    owner: int
    piece: int
    c0: int
    c1: int


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


def cuts(lines: int, weights: tuple[int, ...]) -> list[int]:
    """Borders of pieces whose sizes are as the weights, on multiples of 8 lines.

    >>> cuts(100, (2, 1, 1)), cuts(3, (2, 1))
    ([0, 48, 72, 100], [0, 0, 3])
    """
    total = sum(weights)
    inner = [lines * s // total // _LINES * _LINES for s in accumulate(weights)]
    return [0, *inner[:-1], lines]


def share(start: int, stop: int, owner: int, nprocs: int) -> tuple[int, int]:
    """The lines of a piece that `owner` sums: nearly equal parts on multiples of 8 lines.

    >>> [share(0, 40, r, 4) for r in range(4)]
    [(0, 8), (8, 16), (16, 24), (24, 40)]
    """
    lines = stop - start
    first = start + lines * owner // nprocs // _LINES * _LINES
    return first, stop if owner == nprocs - 1 else start + lines * (owner + 1) // nprocs // _LINES * _LINES


def flat_share(count: int, owner: int, nprocs: int) -> tuple[int, int]:
    """The elements that `owner` sums in a two-shot reduction: equal parts on multiples of 16 elements.

    >>> [flat_share(100, r, 4) for r in range(4)]
    [(0, 32), (32, 64), (64, 96), (96, 100)]
    """
    part = -(-count // nprocs)
    part += -part % 16
    return min(part * owner, count), min(part * (owner + 1), count)


def backwards(rank: int, nprocs: int) -> Iterator[int]:
    """The other ranks, from the previous one back: the order in which they reach what `rank` has or has computed.

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


@dataclass(frozen=True, slots=True)
class Road:
    """How a plan of the push transport moves its data, and in which portions it multiplies (`pblas.schedule`).

    Args:
        by: "copies" are made by copy engines beside the GEMMs, "kernel" by the multiprocessors before or after one
            GEMM, "tiles" are multiplied by one GEMM as copies of what they need arrive; "one-shot" reduces in one
            kernel after one GEMM, "two-shot" the last piece after the last GEMM, the pieces before it by copies
            (global).
        groups: shards that each GEMM takes, of which the first is a rank's own; of a GemmAllReduce the relative sizes
            of the pieces, of tiles of a GemmReduceScatter those of the pieces of each part; of tiles of an
            AllGatherGemm how many pieces the first shard that arrives is copied in, the second, ..., those that are
            not named in one (global).
    """

    by: By
    groups: tuple[int, ...] = (1,)

    @property
    def short(self) -> str:
        """In a word, which `read` takes back.

        >>> Road("copies", (1, 1, 2)).short, Road("one-shot").short, Road.read("tiles:1,2")
        ('copies:1,1,2', 'one-shot', Road(by='tiles', groups=(1, 2)))
        """
        groups = ",".join(map(str, self.groups))
        return f"{self.by}:{groups}" if self.by == "copies" or groups != "1" else self.by

    @staticmethod
    def read(text: str) -> Road:
        """The way back from `short`.

        Raises:
            ValueError: it was not made by `short`.
        """
        name, _, groups = text.partition(":")
        kinds: dict[str, By] = {kind: kind for kind in get_args(By)}
        if name not in kinds:
            raise ValueError(f"{text!r}: a road is {', '.join(kinds)}, with integers as in copies:1,1,2")
        return Road(kinds[name], tuple(map(int, groups.split(","))) if groups else (1,))

    def __str__(self) -> str:
        if self.by == "copies":
            return f"copy engines, beside GEMMs over {', '.join(map(str, self.groups))} parts"
        if self.by == "kernel":
            return "one GEMM, and one kernel that moves all shards"
        if self.by == "tiles":
            parts = f", pieces {', '.join(map(str, self.groups))}" if len(self.groups) > 1 else ""
            return f"copy engines, beside a GEMM of one kernel whose tiles wait and are waited for{parts}"
        if len(self.groups) > 1:
            parts = ", ".join(map(str, self.groups))
            return f"copy engines, beside GEMMs over {parts} parts, the last of which one {self.by} kernel reduces"
        return f"one GEMM, and one {self.by} kernel"


Times = tuple[tuple[Road, float], ...]
"""Roads that were measured, the one to be taken first, and the seconds that each took."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What every plan has. `transposed`, `left`, `right` and `result`: see the module's text.

    Args:
        product: the product in the user's orientation (global).
        why: the rule that chose this plan (global).
        transposed: the plan runs on D^T = op(B)^T op(A)^T (global).
        chunks: parts in which each shard moves (global).
        transport: "window" when all ranks share a node's memory, "message" when none do, "mixed" when some do, "push"
            where data is pushed into workspaces (global).
        overlap: whether data moves while the GEMM runs (global).
        road: how it moves, with the push transport only (global).
        gpus: the matrices lie on GPUs (global).
        measured: times of roads on this machine, if they were measured (global).
    """

    name: ClassVar[str]
    product: Product
    why: str
    transposed: bool = False
    chunks: int = 1
    transport: Transport = "message"
    overlap: bool = True
    road: Road | None = None
    gpus: bool = False
    measured: Times = ()

    @property
    def oriented(self) -> Product:
        """The product in the orientation that the steps speak of."""
        return self.product.T if self.transposed else self.product

    def received_elements(self, rank: int) -> int:
        """Elements that `rank` receives from others, or reads in their memory (each counted once)."""
        raise AssertionError(f"each plan counts its own, rank {rank} too")

    def received_nbytes(self, rank: int) -> int:
        """Bytes that `rank` receives."""
        return self.received_elements(rank) * self.product.itemsize

    @property
    def max_received_nbytes(self) -> int:
        """Bytes that the busiest rank receives; a few ranks are looked at, never all of them."""
        return max(self.received_nbytes(rank) for rank in self.extreme_ranks())

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of workspace that the busiest rank needs at most."""
        raise AssertionError("each plan counts its own")

    def moves(self) -> str:
        """One sentence: what travels where."""
        raise AssertionError("each plan describes its own")

    def extreme_ranks(self) -> set[int]:
        """Ranks among which the largest and smallest shards are: around the first block, the last, the grid's end."""
        found = {0, self.product.nprocs - 1}
        for spread in (self.product.a, self.product.b, self.product.d):
            split = spread.split
            if split is not None and split.src >= 0:
                last = split.src + max(split.nblocks - 1, 0)
                around = (split.src - 1, split.src, split.src + 1, last - 1, last, last + 1)
                found |= {p % split.nprocs for p in around} | {split.nprocs % self.product.nprocs}
        return found

    def simulate(self, machine: Hardware | str) -> Simulation:
        """Time, bytes and memory of this plan on a machine, without running it, for any number of ranks.

        A plan for windows uses them where the machine has them, and messages elsewhere.

        Args:
            machine: a `pblas.Hardware`, or the name of a preset: "laptop", "fat-tree", "nvlink".

        Raises:
            ArgumentError: no preset has that name.

        >>> rows = Spread("rows", Split(4096, 512, 8))
        >>> plan = AllGatherGemm(Product(4096, 4096, 4096, "bfloat16", 8, rows, rows, rows), "rows are together")
        >>> plan.simulate("nvlink").received_nbytes == plan.max_received_nbytes
        True
        """
        from pblas.machines import hardware
        from pblas.simulation import simulate

        described = hardware(machine)
        transport = self.transport
        if transport in ("window", "mixed"):
            transport = described.facts.transport(self.product.nprocs)
        return simulate(replace(self, transport=transport), described, self.extreme_ranks())

    def explain(self) -> str:
        """What will move, why this plan, and how it compares with the lower bound; about ten lines."""
        p, received = self.product, self.max_received_nbytes
        bound = p.lower_bound * p.itemsize
        ratio = f"{received / bound:.2f}" if bound else "1.00" if not received else "no bound above 0"
        mode = "while the GEMM runs" if self.overlap else "before the GEMM (overlap=False)"
        if self.transport == "window" and received:
            mode = f"copied from the node's other GPUs {mode}" if self.gpus else _IN_PLACE
        how = f"chunks per shard: {self.chunks}, peers in rotated order"
        if self.road is not None:
            mode, how = "through the workspaces of the peers", str(self.road)
        lines = [
            f"{self.name}: D = op(A) op(B), {p.m} x {p.n} x {p.k} (m x n x k), {p.dtype}, on {p.nprocs} ranks",
            f"  op(A)      {p.m} x {p.k}, {p.a}",
            f"  op(B)      {p.k} x {p.n}, {p.b}",
            f"  D          {p.m} x {p.n}, {p.d}",
            f"  why        {self.why}",
            f"  moves      {self.moves()}",
            f"  when       {mode}, {how}",
            *self._reasons(),
            f"  received   {received:,} bytes per rank at most, {ratio} x the lower bound {bound:,.0f}",
            f"  workspace  {self.workspace_nbytes:,} bytes per rank at most ({self.transport} transport)",
        ]
        return "\n".join(lines)

    def _reasons(self) -> Iterator[str]:
        """A line that says whether the road was measured or estimated to be the fastest, if there is one."""
        if self.road is not None:
            times = ", ".join(f"{road.short} {1e6 * seconds:.1f} us" for road, seconds in self.measured)
            was_measured = any(road == self.road for road, _ in self.measured)
            why = f"measured: {times}" if was_measured else "estimated to be the fastest"
            yield f"  road       {self.road.short}, {why}"

    def __str__(self) -> str:
        return self.explain()


@dataclass(frozen=True, slots=True)
class LocalGemm(Plan):
    """Every rank multiplies what it has: one rank, or what would be gathered is replicated."""

    name: ClassVar[str] = "LocalGemm"

    def received_elements(self, rank: int) -> int:  # noqa: ARG002 - the same for every rank
        """Nothing."""
        return 0

    @property
    def workspace_nbytes(self) -> int:
        """Nothing."""
        return 0

    def moves(self) -> str:
        """Nothing."""
        return "nothing"


@dataclass(frozen=True, slots=True)
class AllGatherGemm(Plan):
    """The right operand is gathered, shard by shard, while it is multiplied; D is split along its rows.

    >>> rows = Spread("rows", Split(8, 2, 4))
    >>> plan = AllGatherGemm(Product(8, 8, 8, "float64", 4, rows, rows, rows), "rows of A and D are together")
    >>> [(step.source, step.c0, step.c1) for step in plan.steps(1)]
    [(1, 0, 8), (2, 0, 8), (3, 0, 8), (0, 0, 8)]
    >>> plan.received_nbytes(1)
    384
    """

    name: ClassVar[str] = "AllGatherGemm"

    @property
    def gathered(self) -> str:
        """The operand that travels, in the user's orientation."""
        return "A" if self.transposed else "B"

    @property
    def shards(self) -> Split:
        """The split of the gathered operand: along K if its rows are split, else along N, as the plan sees them."""
        split = self.oriented.b.split
        assert split is not None, "a replicated operand is not gathered"
        return split

    @property
    def along_k(self) -> bool:
        """Whether the gathered operand is split along K."""
        return self.oriented.b.axis == "rows"

    def shard_shape(self, source: int) -> tuple[int, int]:
        """Rows and columns of the shard that `source` owns, in the plan's orientation."""
        product, count = self.oriented, self.shards.count(source)
        return (count, product.n) if self.along_k else (product.k, count)

    def takes_part(self, rank: int) -> bool:
        """Whether `rank` owns rows of D, so that it needs the other ranks' shards."""
        rows = self.oriented.d.split
        assert rows is not None, "AllGatherGemm splits D"
        return rows.count(rank) > 0

    def steps(self, rank: int) -> Iterator[GatherStep]:
        """This rank's steps: its own shard first, then the others' in rotated order."""
        if self.takes_part(rank):
            for source in chain((rank,), rotated(rank, self.product.nprocs)):
                k, columns = self.shard_shape(source)
                if k:
                    for piece, c0, c1 in pieces(columns, self.chunks):
                        yield GatherStep(source, piece, c0, c1)

    def received_elements(self, rank: int) -> int:
        """All of the gathered operand but this rank's own shard."""
        product = self.oriented
        if not self.takes_part(rank):
            return 0
        own = self.shard_shape(rank)
        return product.k * product.n - own[0] * own[1]

    @property
    def workspace_nbytes(self) -> int:
        """Two pieces in flight, all of them without overlap; in a window at most a copy of the own shard."""
        product, count = self.oriented, self.shards.max_count
        if self.transport == "push":  # all shards, in two parities; 16-bit sums over shards of K in 32 bits
            rows = product.d.split.max_count if product.d.split else product.m
            sums = 4 * rows * product.n if self.along_k and product.itemsize == 2 else 0
            return 2 * padded(product.itemsize * product.k * product.n) + sums
        rows, columns = (count, product.n) if self.along_k else (product.k, count)
        staged = rows * columns if self.transport != "message" else 0
        if self.transport == "window":
            pieces_held = 0
        elif self.overlap:
            pieces_held = 2 * rows * -(-columns // self.chunks)
        else:
            pieces_held = product.k * product.n
        return product.itemsize * (staged + pieces_held)

    def moves(self) -> str:
        """The gathered operand, and along what it is split."""
        what = "k" if self.along_k else "m" if self.transposed else "n"
        return f"op({self.gathered}) to all ranks, by shards along {what}; each is multiplied as it arrives"


@dataclass(frozen=True, slots=True)
class GemmReduceScatter(Plan):
    """K is split: every rank forms partial products of all columns of D, which their owners add in a fixed order.

    The owner of columns j adds the partial products of ranks j+1, j+2, ... in this order and its own last.

    >>> k = Split(8, 2, 4)
    >>> product = Product(8, 8, 8, "float64", 4, Spread("columns", k), Spread("rows", k), Spread("columns", k))
    >>> [step.owner for step in GemmReduceScatter(product, "k is split").steps(1)]
    [0, 3, 2, 1]
    """

    name: ClassVar[str] = "GemmReduceScatter"

    @property
    def shards(self) -> Split:
        """The split of D's columns over their owners (in the plan's orientation)."""
        split = self.oriented.d.split
        assert split is not None, "a reduce-scatter splits D"
        return split

    @property
    def inner(self) -> Split:
        """The split of K."""
        split = self.oriented.a.split or self.oriented.b.split
        assert split is not None, "k is split in one operand at least"
        return split

    def contributes(self, rank: int) -> bool:
        """Whether `rank` holds a part of K."""
        return self.inner.count(rank) > 0

    def sources(self, owner: int) -> Iterator[int]:
        """The other ranks whose partial products `owner` adds, in the order in which it adds them."""
        return (rank for rank in rotated(owner, self.product.nprocs) if self.contributes(rank))

    def steps(self, rank: int) -> Iterator[ReduceStep]:
        """This rank's steps: others' columns in the order in which their owners add them, its own last."""
        for owner in chain(backwards(rank, self.product.nprocs), (rank,)):
            if owner == rank or self.contributes(rank):
                for piece, c0, c1 in pieces(self.shards.count(owner), self.chunks):
                    yield ReduceStep(owner, piece, c0, c1)

    def received_elements(self, rank: int) -> int:
        """A partial product of this rank's part of D from every other rank that holds a part of K."""
        others = min(self.inner.nprocs, self.inner.nblocks) - self.contributes(rank)
        return others * self.oriented.m * self.shards.count(rank)

    @property
    def borders(self) -> list[list[int]]:
        """For each owner, where the pieces of its lines begin that the push transport moves, and their number."""
        weights = self.road.groups if self.road is not None and self.road.by == "tiles" else (1,)
        return [cuts(self.shards.count(r), weights) for r in range(self.product.nprocs)]

    @property
    def slot_elements(self) -> int:
        """Elements of a slot in a rank's workspace, one for each rank, with the push transport."""
        return self.oriented.m * self.shards.max_count

    @property
    def workspace_nbytes(self) -> int:
        """Two pieces going out, two coming in, and the own part if beta is not 0; in a window one partial product.

        16-bit matrices are added in 32 bits, which takes the own part in that width.
        """
        product, largest = self.oriented, self.shards.max_count
        widened, width = product.itemsize == 2, max(product.itemsize, 4)
        if self.transport == "push":  # slots in two parities, and the own partial product
            return 2 * product.nprocs * padded(width * self.slot_elements) + width * product.m * product.n
        columns = largest
        if self.transport != "message":
            columns = largest * (product.nprocs - (not widened))
        if self.transport != "window":
            columns += 4 * -(-largest // self.chunks)
        return width * product.m * columns

    def moves(self) -> str:
        """Partial products, to the owners of D."""
        return f"partial products of D to the owners of its {'rows' if self.transposed else 'columns'}, which add them"


@dataclass(frozen=True, slots=True)
class GemmAllReduce(GemmReduceScatter):
    """A reduce-scatter over columns dealt out for the purpose, each sent to all ranks as soon as it is finished.

    Every column is added by one owner and copied from it, so that all ranks end with the same bits.

    >>> k, whole = Split(8, 2, 4), Spread("all")
    >>> plan = GemmAllReduce(Product(8, 8, 8, "float64", 4, Spread("columns", k), Spread("rows", k), whole), "")
    >>> plan.received_nbytes(0) == 2 * 3 * 8 * 8 * 8 // 4
    True
    """

    name: ClassVar[str] = "GemmAllReduce"

    @property
    def shards(self) -> Split:
        """Columns of D dealt out in `chunks` blocks per rank."""
        product = self.oriented
        return Split(product.n, max(1, -(-product.n // (product.nprocs * self.chunks))), product.nprocs)

    @property
    def copied_pieces(self) -> list[tuple[int, int]]:
        """Start and stop of the lines of the pieces that copies move, with the push transport."""
        assert self.road is not None, "only the push transport has a road"
        pieces = list(pairwise(cuts(self.oriented.n, self.road.groups)))
        return pieces if self.road.by in ("copies", "tiles") else pieces[:-1]

    @property
    def pulled_lines(self) -> tuple[int, int]:
        """Start and stop of the lines that are reduced in two shots: peers read them where the GEMM has left them."""
        assert self.road is not None, "only the push transport has a road"
        n = self.oriented.n
        return (cuts(n, self.road.groups)[-2], n) if self.road.by == "two-shot" else (n, n)

    @property
    def slot_elements(self) -> int:
        """All of D in one shot, else the own share of the pieces that copies move."""
        assert self.road is not None, "only the push transport has a road"
        p, m = self.product.nprocs, self.oriented.m
        if self.road.by == "one-shot":
            return m * self.oriented.n
        shares = ([share(*piece, owner, p) for piece in self.copied_pieces] for owner in range(p))
        return m * max(sum(stop - start for start, stop in owned) for owned in shares)

    @property
    def workspace_nbytes(self) -> int:
        """As a reduce-scatter; pushed, also the results of the others in two parities, and what they pull."""
        product, width = self.oriented, max(self.product.itemsize, 4)
        if self.road is None:
            return GemmReduceScatter.workspace_nbytes.fget(self)  # type: ignore[attr-defined]
        start, stop = self.pulled_lines
        shared = padded(width * product.m * (stop - start)) + product.nprocs * padded(width * self.slot_elements)
        results = padded(product.itemsize * product.m * product.n)
        return 2 * (shared + results) + (width + product.itemsize) * product.m * (product.n - (stop - start))

    @property
    def max_received_nbytes(self) -> int:
        """Bytes that the busiest rank receives; pushed, of the ranks of a node, whose shares may all differ."""
        if self.road is None:
            return max(self.received_nbytes(rank) for rank in self.extreme_ranks())
        return max(self.received_nbytes(rank) for rank in range(self.product.nprocs))

    def owned_elements(self, rank: int) -> int:
        """Elements of D that a rank sums, with the push transport and not in one shot."""
        assert self.road is not None, "only the push transport has a road"
        p, m = self.product.nprocs, self.oriented.m
        shares = [share(*piece, rank, p) for piece in self.copied_pieces]
        first, last = self.pulled_lines
        start, stop = flat_share(m * (last - first), rank, p)
        return m * sum(b - a for a, b in shares) + stop - start

    def owned(self, owner: int) -> Iterator[tuple[int, int, int]]:
        """(piece, c0, c1) of the blocks of columns that `owner` adds, in its local count."""
        count, nb = self.shards.count(owner), self.shards.nb
        return ((c0 // nb, c0, min(c0 + nb, count)) for c0 in range(0, count, nb))

    def steps(self, rank: int) -> Iterator[ReduceStep]:
        """This rank's steps: block after block of D, the others' columns first, its own one block later.

        The delay gives the partial products of a block the time of a GEMM to arrive in before their owner adds them.
        """
        nb, contributes = self.shards.nb, self.contributes(rank)
        for piece in range(self.chunks + 1):
            if contributes:
                for owner in backwards(rank, self.product.nprocs):
                    c0, c1 = piece * nb, min(piece * nb + nb, self.shards.count(owner))
                    if c0 < c1:
                        yield ReduceStep(owner, piece, c0, c1)
            c0, c1 = (piece - 1) * nb, min(piece * nb, self.shards.count(rank))
            if 0 <= c0 < c1:
                yield ReduceStep(rank, piece - 1, c0, c1)

    def received_elements(self, rank: int) -> int:
        """The partial products of its own columns, and the finished columns of the others."""
        product = self.oriented
        if self.road is None:
            return GemmReduceScatter.received_elements(self, rank) + product.m * (product.n - self.shards.count(rank))
        others = min(self.inner.nprocs, self.inner.nblocks) - self.contributes(rank)
        if self.road.by == "one-shot":
            return others * product.m * product.n
        own = self.owned_elements(rank)
        return others * own + product.m * product.n - own

    def moves(self) -> str:
        """Partial products to the owners, results to all."""
        line = "rows" if self.transposed else "columns"
        return f"partial products of D to the owners of its {line}, the sums to all ranks"
