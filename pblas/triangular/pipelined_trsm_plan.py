"""The plan of a triangular solve in which the triangle stays: for few right-hand sides.

Blocks of X are solved one after the other along the diagonal of T. The rank that holds a diagonal block adds the sums
of its process row, solves, and sends the block of X to its process column, whose ranks multiply their parts of T with
it. So a rank receives blocks of X and sums: O(n) elements for each right-hand side.

Source: Heath, Romine, Parallel solution of triangular systems on distributed-memory multiprocessors (1988).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import ClassVar, NamedTuple

from pblas.layouts.messages import received_count, sent_count
from pblas.layouts.placement import Placement
from pblas.layouts.split import Split
from pblas.simulation.phase import Phase, View, even, solve_rows
from pblas.triangular.trsm_plan import TriangularSolve, spread


class DiagonalBlock(NamedTuple):
    """The block T[k0:k1, k0:k1] on one rank; `terms`: process columns with sums for it in its row, ascending."""

    k0: int
    k1: int
    row: int
    column: int
    terms: tuple[int, ...]

    @property
    def width(self) -> int:
        """Rows of X that are solved."""
        return self.k1 - self.k0


@dataclass(frozen=True, slots=True)
class PipelinedTrsm(TriangularSolve):
    """X := alpha op(A)^-1 B or alpha B op(A)^-1 in blocks of X along the diagonal: T stays, blocks of X and sums move.

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> from pblas.layouts.grid import Grid
    >>> from pblas.triangular.trsm_plan import TriangularOperands
    >>> t, b = MatrixDescriptor(8, 8, 4, 4, Grid(2, 2)), MatrixDescriptor(8, 1, 4, 1, Grid(2, 2))
    >>> plan = PipelinedTrsm(TriangularOperands(t, b, b), "float64", 4)
    >>> for block in plan.blocks(): print(block)
    DiagonalBlock(k0=0, k1=4, row=0, column=0, terms=(0,))
    DiagonalBlock(k0=4, k1=8, row=1, column=1, terms=(0,))
    >>> [plan.received_elements(rank) for rank in range(4)]
    [0, 8, 4, 4]
    """

    name: ClassVar[str] = "PipelinedTrsm"
    why: ClassVar[str] = "few right-hand sides: it costs less to move blocks of X along the diagonal than the triangle"

    @property
    def triangle(self) -> Placement:
        """The placement of T, of whose copies only the first is read."""
        return self.operands.triangle.layer(0)

    @property
    def nrhs(self) -> int:
        """Number of right-hand sides."""
        return self.operands.right.columns.n

    @property
    def sums(self) -> Placement:
        """The placement to which B is brought: rows as those of T, on the first process column of T."""
        place = self.triangle
        return Placement(place.rows, self._all_columns, (place.strides[0], 1, 1), 1, place.start, place.ranks)

    @property
    def solved(self) -> Placement:
        """The placement in which X is found: rows as the columns of T, with a copy on every process row of T."""
        place = self.triangle
        strides = place.strides[1], 1, place.strides[0]
        return Placement(place.columns, self._all_columns, strides, place.rows.nprocs, place.start, place.ranks)

    @property
    def _all_columns(self) -> Split:
        return Split(self.nrhs, max(1, self.nrhs), 1)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """Those of the operands; X and the sums are split as T."""
        return self.operands.triangle, self.operands.right, self.operands.result

    def blocks(self) -> Iterator[DiagonalBlock]:
        """The blocks of the diagonal, in the order in which X is computed: from the first if T is lower."""
        return iter(_blocks(self.triangle, self.width, self.operands.lower))

    @property
    def nblocks(self) -> int:
        """Number of blocks of the diagonal."""
        return len(_blocks(self.triangle, self.width, self.operands.lower))

    def rows_after(self, block: DiagonalBlock) -> tuple[int, int]:
        """The rows of T, start and stop, that are multiplied with a block of X (global)."""
        return (block.k1, self.order) if self.operands.lower else (0, block.k0)

    # Elements that move

    def received_elements(self, rank: int) -> int:
        """Elements of B, blocks of X, sums, and elements of X that `rank` receives from other ranks."""
        if not self.reads:
            return 0
        count = received_count(self.operands.right, self.sums, rank)
        count += received_count(self.solved, self.operands.result, rank)
        return count + self.nrhs * self.pipelined_rows(rank)[0]

    def sent_elements(self, rank: int) -> int:
        if not self.reads:
            return 0
        pairs = (self.operands.right, self.sums), (self.solved, self.operands.result)
        count = sum(sent_count(*pair, rank) for pair in pairs)
        return count + self.nrhs * self.pipelined_rows(rank)[1]

    def pipelined_rows(self, rank: int) -> tuple[int, int]:
        """Rows of X and of sums that `rank` receives and sends between B and X."""
        position = self.triangle.coordinates(rank)
        if position is None:
            return 0, 0
        return _pipelined_rows(self.triangle, self.width, self.operands.lower).get(position[:2], (0, 0))

    def phases(self, view: View) -> Iterator[Phase]:
        """Blocks are taken as equal: each is multiplied with an equal share of this rank's part of the triangle.

        A block waits for the sums of its process row, and its process column for the block: each is a step. All wait
        for the solve with a block of the diagonal.
        """
        operands, itemsize = self.operands, self.itemsize
        if not self.reads:
            yield Phase(1, copied=itemsize * prod(operands.result.local_shape(view.rank)))
            return
        yield self._redistribution(view, operands.right, self.sums)
        arrives, own = self.pipelined_rows(view.rank)[0], self.own_elements(view.rank)
        peers = [rank for rank in sorted(self.extreme_ranks()) if rank != view.rank]
        hops = max(1, (self.triangle.rows.nprocs > 1) + (self.triangle.columns.nprocs > 1))
        for many, depth, nbytes in even(hops * self.nblocks, self.order, itemsize * self.nrhs * arrives):
            traffic = spread(view, peers[:1] if nbytes else [], nbytes)
            # X[k] = T[k, k]^-1 X[k], sums[i] += T[i, k] X[k]   (this rank's part of T; block k of X has arrived)
            rows = own // max(1, self.order) + solve_rows(hops * depth)
            yield Phase(many, (rows, self.nrhs, depth), traffic, ahead=False)
        yield self._redistribution(view, self.solved, operands.result)

    @property
    def workspace_nbytes(self) -> int:
        """Sums, X, sums of other ranks, a panel for each of two blocks, and the messages that bring B and X."""
        if not self.reads:
            return 0
        place, operands, nrhs = self.triangle, self.operands, self.nrhs
        width = min(self.width, self.order)
        count = nrhs * (place.rows.max_count + place.columns.max_count + (place.columns.nprocs + 1) * width)
        if self.transport != "message":
            count += operands.right.rows.max_count * operands.right.columns.max_count
        if self.transport != "shared" and self.nprocs > 1:
            for source, target in (operands.right, self.sums), (self.solved, operands.result):
                count += max(
                    received_count(source, target, rank) + sent_count(source, target, rank)
                    for rank in self.extreme_ranks()
                )
        return self.itemsize * count

    # Text

    def moves(self) -> str:
        if not self.reads:
            return "nothing: X is 0" if prod(self.operands.right.shape) else "nothing: X is empty"
        return "B to the rows of A's triangle, sums to its diagonal, blocks of X along it, X to its layout; A stays"

    def detail_lines(self) -> Iterator[tuple[str, str]]:
        if self.reads:
            yield "blocks", f"{self.nblocks} along the diagonal"


@lru_cache(64)
def _blocks(place: Placement, width: int, lower: bool) -> tuple[DiagonalBlock, ...]:
    """The blocks of the diagonal; a block ends where a block of rows or of columns ends."""
    rows, columns, n = place.rows, place.columns, place.rows.n
    blocks, k0 = [], 0
    counts = [columns.count(c) for c in range(columns.nprocs)]
    while k0 < n:
        row, column = rows.owner(k0), columns.owner(k0)
        k1 = min(k0 + width, _end(rows, k0), _end(columns, k0))
        known = [
            columns.local_start(k0, c) if lower else counts[c] - columns.local_start(k1, c) for c in range(len(counts))
        ]
        terms = tuple(c for c, count in enumerate(known) if count or c == 0)
        blocks.append(DiagonalBlock(k0, k1, row, column, terms))
        k0 = k1
    return tuple(blocks if lower else reversed(blocks))


def _end(split: Split, g: int) -> int:
    """One past the last index of the block of a split that holds index g."""
    if split.nprocs == 1:
        return split.n
    first = split.nb if split.inb is None else split.inb
    return min(first if g < first else first + ((g - first) // split.nb + 1) * split.nb, split.n)


@lru_cache(64)
def _pipelined_rows(place: Placement, width: int, lower: bool) -> dict[tuple[int, int], tuple[int, int]]:
    """Rows that the rank at each (row, column) receives and sends."""
    received: dict[tuple[int, int], int] = {}
    sent: dict[tuple[int, int], int] = {}
    for block in _blocks(place, width, lower):
        owner = block.row, block.column
        for c in block.terms:
            if c != block.column:
                received[owner] = received.get(owner, 0) + block.width
                sent[block.row, c] = sent.get((block.row, c), 0) + block.width
        for r in range(place.rows.nprocs):
            if r != block.row:
                received[r, block.column] = received.get((r, block.column), 0) + block.width
                sent[owner] = sent.get(owner, 0) + block.width
    return {key: (received.get(key, 0), sent.get(key, 0)) for key in received.keys() | sent.keys()}
