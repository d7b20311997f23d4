"""Plans of products whose matrices are split along one dimension: all-gather, reduce-scatter, all-reduce, local GEMM.

Each plan is written for one orientation (see `pblas.matmul.product_plan`): with `transposed`, "columns of D" means its
rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import ClassVar

from pblas.layouts.split import Split
from pblas.matmul.product_plan import Finishes, ProductPlan
from pblas.plans.partition import HALF_TILE, LINES, backwards, cuts, flat_share, padded, pieces, rotated, shares
from pblas.simulation.phase import Phase, Traffic, View, even

_TMA_NBYTES = 16  # Hopper's tensor memory accelerator copies lines of a multiple of 16 bytes
_MOST_TILED = 16  # largest number of ranks whose shards one GEMM kernel takes
_MOST_BY_PACKETS = 1 << 20  # bytes of all shards together: docs/decisions/0019-ll-packets.md


@dataclass(frozen=True, slots=True)
class GatherStep:
    """Multiply with columns c0..c1-1, piece `piece`, of the shard that rank `source` owns."""

    source: int
    piece: int
    c0: int
    c1: int


@dataclass(frozen=True, slots=True)
class ReduceStep:
    """Form a partial product of columns c0..c1-1 of the shard of D that rank `owner` owns; the owner adds them."""

    owner: int
    piece: int
    c0: int
    c1: int


@dataclass(frozen=True, slots=True)
class LocalGemm(ProductPlan):
    """Every rank multiplies local operands: there is one rank, or each rank has all operands that it needs."""

    name: ClassVar[str] = "LocalGemm"
    travels: ClassVar[bool] = False

    def received_elements(self, rank: int) -> int:
        return 0

    @property
    def workspace_nbytes(self) -> int:
        """Blocks of D that a reproducible product forms; otherwise 0."""
        product = self.product
        rows, columns = product.d.along("rows"), product.d.along("columns")
        m, n = (rows.max_count if rows else product.m), (columns.max_count if columns else product.n)
        return self.sums_nbytes(m, n, self.k_pieces.parts)

    def phases(self, view: View) -> Iterator[Phase]:
        product = self.product
        rows, columns = product.d.along("rows"), product.d.along("columns")
        m = rows.count(view.rank) if rows else product.m
        n = columns.count(view.rank) if columns else product.n
        yield Phase(1, (m, n, product.k), copied=self.added_nbytes(m, n, product.k))

    def moves(self) -> str:
        return "nothing"


@dataclass(frozen=True, slots=True)
class AllGatherGemm(ProductPlan):
    """The right operand is gathered, shard by shard, while it is multiplied; D is split along its rows.

    >>> from pblas.matmul.product_plan import Product, Distribution
    >>> rows = Distribution("rows", Split(8, 2, 4))
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
        """Whether the shards of the gathered operand are cut along K (global)."""
        return self.oriented.b.axis == "rows"

    def shard_shape(self, source: int) -> tuple[int, int]:
        """Rows and columns of the shard that `source` owns, in the plan's orientation."""
        return self._lines_shape(self.shards.count(source))

    def _lines_shape(self, count: int) -> tuple[int, int]:
        """Rows and columns of `count` lines of the gathered operand."""
        return (count, self.oriented.n) if self.along_k else (self.oriented.k, count)

    def takes_part(self, rank: int) -> bool:
        """Whether `rank` owns rows of D, so that it needs the other ranks' shards."""
        rows = self.oriented.d.split
        assert rows is not None, "AllGatherGemm splits D"
        return rows.count(rank) > 0

    def steps(self, rank: int) -> Iterator[GatherStep]:
        """This rank's steps: its own shard first, then the others' in rotated order."""
        if self.takes_part(rank):
            shards, along_k, p = self.shards, self.along_k, self.oriented
            for source in chain((rank,), rotated(rank, self.product.nprocs)):
                count = shards.count(source)
                if count and p.k:
                    for piece, c0, c1 in pieces(p.n if along_k else count, self.chunks):
                        yield GatherStep(source, piece, c0, c1)

    def phases(self, view: View) -> Iterator[Phase]:
        """The own shard, then the shards of the peers in rotated order, each multiplied as it arrives."""
        product, p = self.oriented, view.nprocs
        if not self.takes_part(view.rank):
            return
        assert product.d.split is not None, "AllGatherGemm splits D"
        rows, phases = product.d.split.count(view.rank), []
        for distance, repeats in chain([(0, 1)], view.stretches(ahead=[self.shards])):
            source = (view.rank + distance) % p
            k, columns = self.shard_shape(source)
            # The own shard is one step: while it is multiplied, the first pieces of the peers' shards are in flight.
            for count, width in even(self.chunks if distance and self.algorithm is None else 1, columns):
                if (k and width) or self.algorithm is not None:  # an algorithm's groups also count empty shards
                    before = view.gathered(source, product.itemsize * k * width)
                    copied = self.added_nbytes(rows, width, k)
                    phases.append(Phase(repeats * count, (rows, width, k), before, copied=copied))
        if self.algorithm is not None:
            phases = self._grouped(phases)
        elif not self.overlap:
            phases = _first_all(phases)
        yield from phases

    def _grouped(self, phases: list[Phase]) -> list[Phase]:
        """The phases of the push transport: one GEMM for each group of shards."""
        rows = phases[0].gemm[0]
        shards = [phase for phase in phases for _ in range(phase.steps)]
        groups: tuple[int, ...] = (len(shards),)
        if self.push_algorithm.kind == "copy_engine":
            groups = self.push_algorithm.groups
        elif self.push_algorithm.kind == "tile_signals":
            groups = (1,) * len(shards)
        grouped, start = [], 0
        for count in groups:
            group = shards[start : start + count]
            start += count
            width = self.oriented.n if self.along_k else sum(phase.gemm[1] for phase in group)
            k = sum(phase.gemm[2] for phase in group) if self.along_k else self.oriented.k
            before = sum((phase.before for phase in group), Traffic())
            if self.push_algorithm.kind == "sm_push":  # one kernel
                before = replace(before, near_messages=min(1, before.near_messages))
            # D += op(A)[:, k] op(B)[k, :]   (a GEMM for each run of K, which reads and writes D, or op(A) packed)
            added = 2 * (self._runs(k) - 1) * max(4, self.d_itemsize) * rows * width
            if self.packs_left:
                added = 2 * self.itemsize * rows * k
            grouped.append(Phase(1, (rows, width, k), before, copied=added, launch="graph"))
        return grouped

    def _runs(self, k: int) -> int:
        """Number of runs of consecutive rows of op(B) among `k` rows of a shard."""
        is_cyclic = self.along_k and self.shards.nblocks > self.shards.nprocs
        return max(1, -(-k // self.shards.nb)) if is_cyclic else 1

    @property
    def packs_left(self) -> bool:
        """Whether a rank that pushes packs columns of op(A), so that a shard of a cyclic K is one GEMM.

        Otherwise each run of K is one, which reads and writes D. Both cost as much as they read and write.
        """
        p = self.oriented
        is_pushed = self.transport == "push" and p.a.axis == "rows" and p.itemsize > 1
        return is_pushed and (self._runs(p.k) - 1) * p.n > p.k

    @property
    def goes_by_packets(self) -> bool:
        """Whether one kernel sends all shards as LL packets (as in NCCL), and waits for the packets of all ranks.

        That needs a plan without a queue, since the kernel's many CTAs would block waiting kernels of other queues, and
        rows of D on every rank, since the kernel sends to all of them. Elements of 8 bits fill no packet.
        """
        ranks, p = range(self.product.nprocs), self.oriented
        is_small = 0 < p.k * p.n * p.itemsize <= _MOST_BY_PACKETS and p.itemsize > 1
        return is_small and self.queue is None and all(map(self.takes_part, ranks))

    def received_elements(self, rank: int) -> int:
        """The gathered operand without this rank's own shard."""
        product = self.oriented
        if not self.takes_part(rank):
            return 0
        own = self.shard_shape(rank)
        return product.k * product.n - own[0] * own[1]

    def network_elements(self, node: range) -> int:
        """The gathered operand without the shards of the node, once for all of its ranks."""
        if not any(map(self.takes_part, node)):
            return 0
        return self.oriented.k * self.oriented.n - sum(math.prod(self.shard_shape(rank)) for rank in node)

    def sent_elements(self, rank: int) -> int:
        """The own shard, to every other rank that owns rows of D."""
        rows, (k, columns) = self.oriented.d.split, self.shard_shape(rank)
        assert rows is not None, "AllGatherGemm splits D"
        return (min(rows.nprocs, rows.nblocks) - self.takes_part(rank)) * k * columns

    @property
    def chunked_shape(self) -> tuple[int, int]:
        return self.shard_shape(self.shards.src)

    @property
    def finishes(self) -> Finishes:
        """A sum of several GEMMs, if the shards are along K or arrive one by one."""
        return "sum" if self.along_k or self.transport != "push" else ""

    @property
    def workspace_nbytes(self) -> int:
        """The pieces in flight, or all pieces without overlap; in shared memory at most a copy of the own shard.

        For the push transport all shards, double-buffered, sums of 16-bit matrices over shards of K in 32 bits, and a
        packed op(A).
        """
        product = self.oriented
        if self.transport == "push":
            rows = product.d.split.max_count if product.d.split else product.m
            sums = 4 * rows * product.n if self.along_k and product.rounds else 0
            packed = product.itemsize * rows * product.k if self.packs_left else 0
            return 2 * padded(product.itemsize * product.k * product.n) + padded(sums) + packed
        rows, columns = product.d.split.max_count if product.d.split else product.m, self.shards.max_count
        sums = self.sums_nbytes(rows, columns, self.k_pieces.parts)
        return self.staged_nbytes + (self.held_nbytes if self.transport != "shared" else 0) + sums

    @property
    def staged_nbytes(self) -> int:
        """A copy of the own shard."""
        is_read = self.transport in ("shared", "mixed")
        return self.product.itemsize * math.prod(self._lines_shape(self.shards.max_count)) if is_read else 0

    @property
    def held_nbytes(self) -> int:
        """Upper bound on the bytes of arriving pieces that a rank holds at a time."""
        product, (rows, columns) = self.oriented, self._lines_shape(self.shards.max_count)
        pieces_held = self.in_flight * rows * -(-columns // self.chunks)
        return product.itemsize * (pieces_held if self.overlap else product.k * product.n)

    @property
    def unfit_for_tiles(self) -> str:
        p = self.oriented
        assert p.d.split is not None, "AllGatherGemm splits D"
        if self.along_k:
            return "cannot add over shards of k"
        rows, lines = _counts(p.d.split), _counts(self.shards)
        return _unfit_for_tiles(self, (rows, {p.k}), ({p.k}, lines), (rows, lines | {p.n}))

    def moves(self) -> str:
        dimension = "k" if self.along_k else "m" if self.transposed else "n"
        return f"op({self.gathered}) to all ranks, in shards along {dimension}; each is multiplied as it arrives"


@dataclass(frozen=True, slots=True)
class GemmReduceScatter(ProductPlan):
    """K is split: every rank forms partial products of all columns of D, and the owners of D add them in a fixed order.

    Rank j adds the partial products of ranks j+1, j+2, ... in this order and its own last.

    >>> from pblas.matmul.product_plan import Product, Distribution
    >>> k = Split(8, 2, 4)
    >>> columns, rows = Distribution("columns", k), Distribution("rows", k)
    >>> product = Product(8, 8, 8, "float64", 4, columns, rows, columns)
    >>> [step.owner for step in GemmReduceScatter(product, "k is split").steps(1)]
    [0, 3, 2, 1]
    """

    name: ClassVar[str] = "GemmReduceScatter"

    @property
    def shards(self) -> Split:
        """The split of D's columns over the ranks that own them, in the plan's orientation."""
        split = self.oriented.d.split
        assert split is not None, "a reduce-scatter splits D"
        return split

    @property
    def inner(self) -> Split:
        """The split of K (global)."""
        split = self.oriented.a.split or self.oriented.b.split
        assert split is not None, "k is split in one operand at least"
        return split

    def contributes(self, rank: int) -> bool:
        """Whether `rank` has a part of K, and so a partial product (global)."""
        return self.inner.count(rank) > 0

    def sources(self, owner: int) -> Iterator[int]:
        """The other ranks whose partial products `owner` adds, in the order of the additions."""
        return (rank for rank in rotated(owner, self.product.nprocs) if self.contributes(rank))

    def steps(self, rank: int) -> Iterator[ReduceStep]:
        """This rank's steps: the columns of the ranks before it, from the previous one back, then its own."""
        for owner in chain(backwards(rank, self.product.nprocs), (rank,)):
            if owner == rank or self.contributes(rank):
                for piece, c0, c1 in pieces(self.shards.count(owner), self.chunks):
                    yield ReduceStep(owner, piece, c0, c1)

    def phases(self, view: View) -> Iterator[Phase]:
        """Partial products of the peers' columns of D, then of the own columns."""
        product, rank = self.oriented, view.rank
        k, own = self.inner.count(rank), self.shards.count(rank)
        if self.algorithm is not None:
            own, *others = self.algorithm.groups
            if self.algorithm.is_one_kernel:
                yield from self._in_one_kernel(view)
            elif self.algorithm.kind == "sm_push":
                yield from self._pushed(view, [(1.0, 1)])
            else:
                pieces = [(group / view.nprocs, group) for group in reversed(others)]
                yield from self._pushed(view, [*pieces, (own / view.nprocs, 0)])
            return
        yield from self._partial_products(view, self.shards, self.chunks)
        for count, width in even(self.chunks, own):
            # D[:, j] += op(A)[:, k] op(B)[k, j]   (the partial products of the peers have arrived)
            yield Phase(count, (product.m, width, k), waits="sent")

    def _partial_products(self, view: View, assigned: Split, chunks: int) -> Iterator[Phase]:
        """Partial products of the peers' columns leave, partial products of the own columns arrive."""
        product, rank, p = self.oriented, view.rank, view.nprocs
        k, own = self.inner.count(rank), assigned.count(rank)
        column = self.wire_itemsize * product.m
        for distance, repeats in view.stretches(ahead=[self.inner], before=[assigned]):
            owner, source = (rank - distance) % p, (rank + distance) % p
            columns, arriving = assigned.count(owner) if k else 0, own if self.contributes(source) else 0
            for count, width, received in even(chunks, columns, arriving):
                if width or received:
                    yield Phase(
                        repeats * count,
                        (product.m, width, k),
                        after=view.traffic(source, column * received),
                        # The first is received in place; each further one is added: two reads, one write.
                        copied=0 if distance == 1 else 3 * column * received,
                        waits="queue" if self.overlap else "sent",
                    )

    def _pushed(self, view: View, pieces: Sequence[tuple[float, int]]) -> Iterator[Phase]:
        """The phases of the push transport: a GEMM for each piece of D, which is sent when formed; then one sum.

        A piece is the part of the columns, and the copies that bring its part of the bytes, none if the rank owns it.
        """
        product, k, received = self.oriented, self.inner.count(view.rank), self.received_nbytes(view.rank)
        arriving = _cumulated([part if copies else 0.0 for part, copies in pieces], received)
        columns = _cumulated([part for part, _ in pieces], product.n)
        for (_, copies), width, nbytes in zip(pieces, columns, arriving, strict=True):
            after = view.traffic((view.rank + 1) % view.nprocs, nbytes)
            near, far = copies * after.near_messages, copies * after.far_messages
            after = replace(after, near_messages=near, far_messages=far)
            yield Phase(1, (product.m, width, k), after=after, launch="graph")
        yield Phase(1, copied=received, waits="sent")

    def _in_one_kernel(self, view: View) -> Iterator[Phase]:
        """One kernel forms the peers' columns of a piece, and then the own columns of an earlier piece.

        It stores them where they are needed, or copies send each peer's columns. Tiles have HALF_TILE columns at least.
        """
        algorithm, rank, peers = self.push_algorithm, view.rank, view.nprocs - 1
        stores, m, k = algorithm.kind == "fused_stores", self.oriented.m, self.inner.count(rank)
        delay, weights = 2 if stores and self.replicates else 1, algorithm.groups
        partials = self.wire_itemsize * self.received_partials(rank)
        own = self.oriented.n // view.nprocs
        lines, formed, finished = (
            _cumulated(weights, total) for total in (own, partials, self.received_nbytes(rank) - partials)
        )
        none = [0] * delay
        yield Phase(1)
        pieces = [*lines, *none], [*formed, *none], [*none, *lines], [*none, *finished]
        for sent, arriving, kept, sums in zip(*pieces, strict=True):
            theirs, mine = (-(-x // HALF_TILE) * HALF_TILE for x in (sent, kept))
            if stores:
                read = Traffic(read=arriving + sums)
                yield Phase(1, (m, theirs * peers + mine, k), read, launch="graph")
                continue
            for count, nbytes in even(peers, arriving):
                traffic = view.traffic((rank + 1) % view.nprocs, nbytes)
                yield Phase(count, (m, theirs, k), after=traffic, queued=False, launch="none")
            traffic = view.traffic((rank + 1) % view.nprocs, sums)
            traffic = replace(traffic, near_messages=peers * traffic.near_messages)
            yield Phase(1, (m, mine, k), after=traffic, queued=False, launch="none")

    def received_partials(self, rank: int) -> int:
        """Elements of a partial product of this rank's shard of D, from every other rank that holds a part of K."""
        contributors = min(self.inner.nprocs, self.inner.nblocks) - self.contributes(rank)
        return contributors * self.oriented.m * self.shards.count(rank)

    def received_elements(self, rank: int) -> int:
        return self.received_partials(rank)

    def _nbytes(self, partials: int, elements: int) -> int:
        """Bytes of elements that are partial products, in their dtype, or else sums, in that of D."""
        return partials * self.wire_itemsize + (elements - partials) * self.d_itemsize

    def received_nbytes(self, rank: int) -> int:
        return self._nbytes(self.received_partials(rank), self.received_elements(rank))

    def network_nbytes(self, node: range) -> int:
        return self._nbytes(GemmReduceScatter.network_elements(self, node), self.network_elements(node))

    def network_elements(self, node: range) -> int:
        """Partial products of the node's columns from the ranks of other nodes."""
        contributors = min(self.inner.nprocs, self.inner.nblocks) - sum(map(self.contributes, node))
        return contributors * self.oriented.m * sum(map(self.shards.count, node))

    @property
    def finishes(self) -> Finishes:
        """A reduction: the owner of a shard of D adds the last partial product, and rounds."""
        return "reduction"

    def sent_elements(self, rank: int) -> int:
        """A partial product of the other ranks' columns, if it holds a part of K."""
        return self.contributes(rank) * self.oriented.m * (self.oriented.n - self.shards.count(rank))

    def sent_nbytes(self, rank: int) -> int:
        return self._nbytes(GemmReduceScatter.sent_elements(self, rank), self.sent_elements(rank))

    @property
    def busiest_multiplies(self) -> int:
        """m n times the largest local part of K: each rank forms partial products of all of D."""
        return self.oriented.m * self.oriented.n * self.inner.max_count

    @property
    def chunked_shape(self) -> tuple[int, int]:
        return self.oriented.m, self.shards.max_count

    @property
    def piece_width(self) -> int:
        """Columns of the widest piece in which a shard moves (global)."""
        return -(-self.shards.max_count // self.chunks)

    def owned(self, owner: int) -> Iterator[tuple[int, int, int]]:
        """(piece, c0, c1) of the pieces of columns that `owner` adds, columns counted in its shard."""
        return pieces(self.shards.count(owner), self.chunks)

    @property
    def borders(self) -> list[list[int]]:
        """For each owner, the borders of the pieces of its columns that the push transport moves."""
        weights = self.algorithm.groups if self.algorithm is not None and self.algorithm.is_one_kernel else (1,)
        return [cuts(self.shards.count(r), weights, self.unit) for r in range(self.product.nprocs)]

    @property
    def unit(self) -> int:
        """Pieces start on multiples of this number of columns.

        HALF_TILE if one kernel forms all pieces and the columns suffice for a half tile in each; otherwise LINES.
        """
        algorithm = self.algorithm
        if algorithm is None or not algorithm.is_one_kernel:
            return LINES
        lines = self.oriented.n // self.product.nprocs if self.oriented.d.split is None else self.shards.max_count
        return HALF_TILE if lines >= HALF_TILE * len(algorithm.groups) else LINES

    @property
    def slot_elements(self) -> int:
        """Elements of a slot, with the push transport; a rank's workspace has one slot for each rank."""
        return self.oriented.m * self.shards.max_count

    @property
    def workspace_nbytes(self) -> int:
        """Pieces in flight, two that arrive, the own shard if beta is not 0; in shared memory a partial product.

        16-bit matrices are added in 32 bits, so the own shard takes 32 bits per element.
        """
        product, largest = self.oriented, self.shards.max_count
        widened, width = product.rounds, max(product.d_itemsize, 4)
        if self.transport == "push":  # slots, double-buffered, and the own partial product
            return 2 * product.nprocs * padded(width * self.slot_elements) + width * product.m * product.n
        columns = largest
        if self.transport != "message":
            columns = largest * (product.nprocs - (not widened))
        if self.transport != "shared":
            columns += (self.in_flight + 2) * -(-largest // self.chunks)
        return width * product.m * columns

    @property
    def unfit_for_tiles(self) -> str:
        p, shards = self.oriented, self.oriented.d.split
        if self.wire:
            return f"adds partial products in the dtype of D, not in {self.wire}"
        replicated = [p.a.axis == "all", p.b.axis == "all"]  # a rank reads its part of K in place
        if (any(replicated) and _is_scattered(self.inner)) or (shards is not None and _is_scattered(shards)):
            return "needs one block of lines per rank, some ranks have several"
        lines, inner = {p.n} if shards is None else _counts(shards) | {p.n}, _counts(self.inner)
        left, right = (inner | {p.k} if whole else inner for whole in replicated)
        return _unfit_for_tiles(self, ({p.m}, left), (right, lines), ({p.m}, lines))

    def moves(self) -> str:
        lines = "rows" if self.transposed else "columns"
        return f"{self.partials_text} to the owners of its {lines}; the owners add them"


@dataclass(frozen=True, slots=True)
class GemmAllReduce(GemmReduceScatter):
    """K is split, D replicated: each column of D is assigned to a rank, which adds it and sends the sum to all ranks.

    One rank adds each column and the others copy the sum, so all ranks get the same bits.

    >>> from pblas.matmul.product_plan import Product, Distribution
    >>> k, whole = Split(8, 2, 4), Distribution("all")
    >>> columns, rows = Distribution("columns", k), Distribution("rows", k)
    >>> plan = GemmAllReduce(Product(8, 8, 8, "float64", 4, columns, rows, whole), "")
    >>> plan.received_nbytes(0) == 2 * 3 * 8 * 8 * 8 // 4
    True
    """

    name: ClassVar[str] = "GemmAllReduce"
    replicates: ClassVar[bool] = True

    @property
    def shards(self) -> Split:
        """The assignment of D's columns to ranks, in `chunks` blocks per rank."""
        product = self.oriented
        return Split(product.n, max(1, -(-product.n // (product.nprocs * self.chunks))), product.nprocs)

    @property
    def chunked_shape(self) -> tuple[int, int]:
        return self.oriented.m, -(-self.oriented.n // self.product.nprocs)

    @property
    def piece_width(self) -> int:
        """Columns of the widest piece in which a shard moves (global)."""
        return self.shards.nb

    def pushed_transposed(self, orders: str) -> bool:
        """Whether the push transport plans for D^T: if D is stored by rows, so that D^T is stored by columns.

        A piece is a range of columns of the planned result. Only if that result is stored by columns is a piece
        contiguous in memory.
        """
        return orders[2] == "C"

    def sent_elements(self, rank: int) -> int:
        """The partial products of a reduce-scatter, and the own sums to every other rank."""
        sums = (self.product.nprocs - 1) * self.oriented.m * self.shards.count(rank)
        return GemmReduceScatter.sent_elements(self, rank) + sums

    @property
    def copied_pieces(self) -> list[tuple[int, int]]:
        """Column ranges (start, stop) of the pieces that copies move; a one-shot or two-shot kernel moves the rest."""
        return self.pieces[:-1] if self.push_algorithm.kind in ("one_shot", "two_shot") else self.pieces

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """Column ranges (start, stop) of all pieces, with the push transport."""
        return list(pairwise(cuts(self.oriented.n, self.push_algorithm.groups, self.unit)))

    @property
    def shares_of_pieces(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each piece, the column range (start, stop) that each rank sums, with the push transport."""
        return shares(self.oriented.n, self.push_algorithm.groups, self.product.nprocs, self.unit)

    @property
    def pulled_lines(self) -> tuple[int, int]:
        """Column range (start, stop) of the two-shot reduction: peers read these columns where the GEMM stored them."""
        n = self.oriented.n
        return self.pieces[-1] if self.push_algorithm.kind == "two_shot" else (n, n)

    @property
    def slot_elements(self) -> int:
        """All of D in one shot, else the largest rank's share of the pieces that copies move."""
        p, m = self.product.nprocs, self.oriented.m
        if self.push_algorithm.kind == "one_shot":
            return m * self.oriented.n
        copied = self.shares_of_pieces[: len(self.copied_pieces)]
        return m * max(sum(owned[owner][1] - owned[owner][0] for owned in copied) for owner in range(p))

    @property
    def workspace_nbytes(self) -> int:
        """The workspace of a reduce-scatter; with push also results of the peers, and the columns that peers read."""
        product, width = self.oriented, max(self.product.d_itemsize, 4)
        if self.algorithm is None:
            return GemmReduceScatter.workspace_nbytes.fget(self)  # type: ignore[attr-defined]
        start, stop = self.pulled_lines
        shared = padded(width * product.m * (stop - start)) + product.nprocs * padded(width * self.slot_elements)
        results = padded(product.d_itemsize * product.m * product.n)
        return 2 * (shared + results) + (width + product.d_itemsize) * product.m * (product.n - (stop - start))

    @property
    def max_received_nbytes(self) -> int:
        """Bytes that the busiest rank receives; with the push transport the maximum over all ranks."""
        if self.algorithm is None:
            return max(self.received_nbytes(rank) for rank in self.extreme_ranks())
        return max(self.received_nbytes(rank) for rank in range(self.product.nprocs))

    def owned_elements(self, rank: int) -> int:
        """Elements of D that a rank sums with the push transport, in any algorithm but one-shot."""
        p, m = self.product.nprocs, self.oriented.m
        copied = self.shares_of_pieces[: len(self.copied_pieces)]
        first, last = self.pulled_lines
        start, stop = flat_share(m * (last - first), rank, p)
        return m * sum(owned[rank][1] - owned[rank][0] for owned in copied) + stop - start

    def owned(self, owner: int) -> Iterator[tuple[int, int, int]]:
        """(piece, c0, c1) of the blocks of columns that `owner` adds, columns counted in its shard."""
        count, nb = self.shards.count(owner), self.shards.nb
        return ((c0 // nb, c0, min(c0 + nb, count)) for c0 in range(0, count, nb))

    def steps(self, rank: int) -> Iterator[ReduceStep]:
        """This rank's steps: block after block of D, first the columns of the other ranks, its own one block later.

        The delay lets the partial products of a block arrive during a GEMM, before their owner adds them.
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

    def phases(self, view: View) -> Iterator[Phase]:
        """Block by block: the peers' columns of a block, then the own columns of the last one, whose sums go to all."""
        product, rank, p = self.oriented, view.rank, view.nprocs
        if self.algorithm is not None:
            if self.algorithm.is_one_kernel:
                yield from self._in_one_kernel(view)
                return
            weights, copied = self.algorithm.groups, len(self.copied_pieces)
            shots = 1 if self.algorithm.kind == "one_shot" else 2
            pieces = [(w / sum(weights), shots * (p - 1 if i < copied else 1)) for i, w in enumerate(weights)]
            yield from self._pushed(view, pieces)
            return
        k, block = self.inner.count(rank), self.shards.nb * p
        assigned = Split(0, 1, p)
        for piece in range(self.chunks + 1):
            previous = assigned
            columns = max(0, min(block, product.n - piece * block)) if piece < self.chunks else 0
            assigned = Split(columns, self.shards.nb, p)
            yield from self._partial_products(view, assigned, 1)
            if previous.n:
                column = product.d_itemsize * product.m
                finished = Traffic()
                for distance, repeats in view.stretches(ahead=[previous]):
                    peer = (rank + distance) % p
                    finished += view.gathered(peer, column * previous.count(peer), copied=True) * repeats
                gemm, copied = (product.m, previous.count(rank), k), 2 * finished.read
                yield Phase(
                    1, gemm, after=finished, copied=copied, waits="queue" if assigned.n else "sent", queued=False
                )

    def received_partials(self, rank: int) -> int:
        """Elements of the partial products of the columns that this rank adds; one-shot adds all columns."""
        if self.algorithm is None:
            return GemmReduceScatter.received_partials(self, rank)
        contributors = min(self.inner.nprocs, self.inner.nblocks) - self.contributes(rank)
        is_one_shot = self.algorithm.kind == "one_shot"
        return contributors * (self.oriented.m * self.oriented.n if is_one_shot else self.owned_elements(rank))

    def received_elements(self, rank: int) -> int:
        """The partial products of its own columns, and the finished columns of the others."""
        partials, product = self.received_partials(rank), self.oriented
        if self.algorithm is None:
            return partials + product.m * (product.n - self.shards.count(rank))
        if self.algorithm.kind == "one_shot":
            return partials
        return partials + product.m * product.n - self.owned_elements(rank)

    def network_elements(self, node: range) -> int:
        """Partial products of the node's columns, and the finished columns of other nodes once for all of its ranks."""
        finished = self.oriented.m * (self.oriented.n - sum(map(self.shards.count, node)))
        return GemmReduceScatter.network_elements(self, node) + finished

    def moves(self) -> str:
        lines = "rows" if self.transposed else "columns"
        return f"{self.partials_text} to the ranks that add its {lines}, the sums to all ranks"


def _cumulated(weights: Sequence[float], total: int) -> list[int]:
    """Integers in proportion to the weights, of which the sum is the total.

    >>> _cumulated([1, 1, 1], 10)
    [3, 4, 3]
    """
    borders = [round(total * part / (sum(weights) or 1)) for part in accumulate(weights, initial=0)]
    return [stop - start for start, stop in pairwise(borders)]


def _first_all(phases: list[Phase]) -> list[Phase]:
    """The phases without overlap: all messages before the first GEMM."""
    total = sum((phase.before * phase.steps for phase in phases), Traffic())
    gemms = [replace(phase, before=Traffic(read=phase.before.read)) for phase in phases]
    return [Phase(1, before=replace(total, read=0)), *gemms]


def _counts(split: Split) -> set[int]:
    """The different numbers of lines that ranks own, without 0."""
    return {split.count(rank) for rank in range(min(split.nprocs, _MOST_TILED))} - {0}


def _is_scattered(split: Split) -> bool:
    """Whether some rank has several blocks, with blocks of other ranks between them."""
    return split.nblocks > split.nprocs > 1


def _unfit_for_tiles(plan: ProductPlan, *shapes: tuple[set[int], set[int]]) -> str:
    """Why the pblas GEMM kernel cannot multiply op(A), op(B) and D of these extents; "" if it can."""
    p, orders = plan.product, plan.oriented_orders
    if p.itemsize != 2 or p.dtype_d not in ("", p.dtype):
        return f"needs 16-bit matrices, not {p.dtypes_text}"
    if p.nprocs > _MOST_TILED:
        return f"supports at most {_MOST_TILED} ranks"
    lengths = [extents for shape in shapes for extents in shape]
    if orders:
        lengths = [shape["FC".index(order)] for shape, order in zip(shapes, orders, strict=True)]
    odd = next((length for length in sorted(set().union(*lengths)) if length * p.itemsize % _TMA_NBYTES), None)
    return "" if odd is None else f"needs lines of a multiple of {_TMA_NBYTES} bytes, some have {odd} elements"
