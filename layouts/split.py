"""One dimension of a matrix, dealt out in blocks to the process coordinates 0..nprocs-1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, overload

from pblas.errors import LayoutError
from pblas.layouts.checks import checked_index, checked_int
from pblas.layouts.index import ArrayT, I, indxg2l, indxg2p, owned, stored


@dataclass(frozen=True, slots=True)
class Split:
    """A 1-D block-cyclic distribution of one dimension.

    The dimension is cut into a first block of `inb` elements and further blocks of `nb` elements. Block b belongs to
    process coordinate (src + b) % nprocs. With src = -1 the dimension is replicated: every process owns all of it.

    Args:
        n: length of the dimension, elements (global), n >= 0.
        nb: block size, elements (global), nb >= 1; it may exceed n.
        nprocs: processes along this dimension (global), nprocs >= 1.
        src: coordinate that owns element 0 (global), 0..nprocs-1, or -1 for replicated.
        inb: size of the first block, elements (global), inb >= 1; None: nb. The value nb is stored as None.

    Raises:
        LayoutError: an argument is not an integer or out of range.

    >>> rows = Split(9, 2, 2)
    >>> [rows.count(p) for p in range(2)]
    [5, 4]
    >>> rows.ranges(1)
    [(2, 4), (6, 8)]
    >>> rows.part(3, 9)
    Split(n=6, nb=2, nprocs=2, src=1, inb=1)
    """

    n: int
    nb: int
    nprocs: int
    src: int = 0
    inb: int | None = None

    def __post_init__(self) -> None:
        """Check the arguments, and normalise them: integers to int, inb == nb to None."""
        n, nb, nprocs, src, inb = self.n, self.nb, self.nprocs, self.src, self.inb
        plain = type(n) is type(nb) is type(nprocs) is type(src) is int and (inb is None or type(inb) is int)
        if plain and n >= 0 and nb >= 1 and -1 <= src < nprocs and (inb is None or 1 <= inb != nb):
            return  # planning makes thousands
        put = object.__setattr__
        put(self, "n", checked_int("Split", "n", n, 0))
        put(self, "nb", checked_int("Split", "nb", nb, 1))
        put(self, "nprocs", checked_int("Split", "nprocs", nprocs, 1))
        put(self, "src", checked_int("Split", "src", src, -1, self.nprocs - 1, why="nprocs - 1; -1 is replicated"))
        if inb is not None:
            inb = checked_int("Split", "inb", inb, 1)
            put(self, "inb", None if inb == self.nb else inb)

    @property
    def is_replicated(self) -> bool:
        """Whether every process owns every element: src is -1."""
        return self.src == -1

    @property
    def is_whole(self) -> bool:
        """Whether one process owns every element: nprocs is 1."""
        return self.nprocs == 1

    @property
    def nblocks(self) -> int:
        """Number of blocks; the last one may be short (global).

        >>> Split(9, 2, 2).nblocks, Split(9, 2, 2, inb=4).nblocks, Split(0, 2, 2).nblocks
        (5, 4, 0)
        """
        return 0 if self.n == 0 else 1 + max(0, -(-(self.n - self._first) // self.nb))

    @property
    def _first(self) -> int:
        """Size of the first block."""
        return self.nb if self.inb is None else self.inb

    def block(self, b: int) -> tuple[int, int]:
        """Global range (g0, g1), half-open, of block b, 0 <= b < nblocks.

        >>> [Split(9, 4, 2, inb=3).block(b) for b in range(3)]
        [(0, 3), (3, 7), (7, 9)]
        """
        checked_index("block", "b", b, self.nblocks)
        g0 = 0 if b == 0 else self._first + (b - 1) * self.nb
        return g0, min(self._first + b * self.nb, self.n)

    def count(self, p: int) -> int:
        """Number of elements that process coordinate p owns; 0 for a coordinate outside 0..nprocs-1.

        >>> [Split(9, 2, 2).count(p) for p in (-1, 0, 1, 2)]
        [0, 5, 4, 0]
        """
        if type(p) is not int or p < 0:
            p = checked_int("count", "p", p, -1)
        if not 0 <= p < self.nprocs:
            return 0
        if self.nprocs == 1:
            return self.n
        return owned(self.n, self.nb, p, self.src, self.nprocs, self.nb if self.inb is None else self.inb)

    @property
    def max_count(self) -> int:
        """Largest count over all processes.

        >>> Split(9, 2, 2).max_count, Split(9, 5, 2, inb=1).max_count
        (5, 5)
        """
        if self.src == -1:
            return self.n
        # From the owner of block 1 on, counts only decrease; only the owner of block 0 can have more.
        if self.nprocs == 1:
            return self.n
        sizes = self.nprocs, self.nb if self.inb is None else self.inb
        first = owned(self.n, self.nb, self.src, self.src, *sizes)
        return max(first, owned(self.n, self.nb, (self.src + 1) % self.nprocs, self.src, *sizes))

    @overload
    def owner(self, g: int) -> int: ...
    @overload
    def owner(self, g: ArrayT) -> ArrayT: ...
    def owner(self, g: Any) -> Any:
        """Coordinate of the process that owns element g; 0 if every process owns it.

        Args:
            g: index (global), 0 <= g < n; int or integer array, whose elements are not checked.

        >>> [Split(6, 2, 2, src=1).owner(g) for g in range(6)]
        [1, 1, 0, 0, 1, 1]
        """
        checked_index("owner", "g", g, self.n)
        return indxg2p(g, self.nb, self.src, self.nprocs, self.inb)

    def local_from_global(self, g: I) -> I:
        """Local index of element g on the process that owns it.

        Args:
            g: index (global), 0 <= g < n; int or integer array, whose elements are not checked.

        >>> [Split(6, 2, 2).local_from_global(g) for g in range(6)]
        [0, 1, 0, 1, 2, 3]
        """
        checked_index("local_from_global", "g", g, self.n)
        if self.nprocs == 1 or self.src == -1:
            return g
        index: Any = g
        local: I = indxg2l(index, self.nb, self.nprocs, self.inb)
        return local

    def global_from_local(self, l: I, p: int) -> I:
        """Global index of the element that process p stores at local index l.

        Args:
            l: index (local), 0 <= l < count(p); int or integer array, whose elements are not checked.
            p: process coordinate (local), 0 <= p < nprocs.

        >>> [Split(9, 2, 2).global_from_local(l, 1) for l in range(4)]
        [2, 3, 6, 7]
        """
        checked_index("global_from_local", "l", l, self.count(p))
        if type(p) is not int or not 0 <= p < self.nprocs:
            p = checked_int("global_from_local", "p", p, 0, self.nprocs - 1, why="nprocs - 1")
        return stored(l, self.nb, p, self.src, self.nprocs, self._first)

    @overload
    def local_start(self, g: int, p: int) -> int: ...
    @overload
    def local_start(self, g: ArrayT, p: int) -> ArrayT: ...
    def local_start(self, g: Any, p: int) -> Any:
        """Number of elements before g that process p owns: the local index at which a submatrix from g on starts.

        Args:
            g: position (global), 0 <= g <= n; int or integer array, whose elements are not checked.
            p: process coordinate (local); a coordinate outside 0..nprocs-1 owns nothing.

        >>> [Split(9, 2, 2).local_start(g, 1) for g in range(10)]
        [0, 0, 0, 1, 2, 2, 2, 3, 4, 4]
        """
        checked_index("local_start", "g", g, self.n + 1)
        if type(p) is not int or p < 0:
            p = checked_int("local_start", "p", p, -1)
        if not 0 <= p < self.nprocs:
            return 0 * g
        return owned(g, self.nb, p, self.src, self.nprocs, self._first)

    def runs(self, p: int, g0: int = 0, g1: int | None = None) -> Iterator[tuple[int, int]]:
        """Global ranges inside g0..g1-1 that process p owns, ascending, lazily; none is empty, no two are adjacent.

        The elements before g0 cost no time.

        Args:
            p: process coordinate (local); a coordinate outside 0..nprocs-1 owns nothing.
            g0: first element (global), 0 <= g0 <= n.
            g1: one past the last element (global), 0 <= g1 <= n; None: n.

        >>> list(Split(9, 2, 2).runs(0, 1, 8))
        [(1, 2), (4, 6)]
        """
        stop = self.n if g1 is None else g1
        start_loc, stop_loc = self.local_start(g0, p), self.local_start(stop, p)
        if start_loc >= stop_loc:
            return
        if self.src == -1 or self.nprocs == 1:
            yield g0, stop
            return
        lead = self._first if p == self.src else 0
        while start_loc < stop_loc:
            left = lead - start_loc if start_loc < lead else self.nb - (start_loc - lead) % self.nb
            length = min(left, stop_loc - start_loc)
            g = self.global_from_local(start_loc, p)
            yield g, g + length
            start_loc += length

    def ranges(self, p: int, g0: int = 0, g1: int | None = None) -> list[tuple[int, int]]:
        """The list of `runs(p, g0, g1)`: the global ranges inside g0..g1-1 that process p owns.

        >>> Split(9, 2, 2).ranges(0), Split(9, 2, 1).ranges(0), Split(9, 2, 2, src=-1).ranges(1)
        ([(0, 2), (4, 6), (8, 9)], [(0, 9)], [(0, 9)])
        """
        return list(self.runs(p, g0, g1))

    @property
    def canonical(self) -> Split:
        """The canonical form: equal for all splits that give every process coordinate the same elements.

        Block sizes are clipped to the dimension, and nprocs is the least with the same owners.

        >>> Split(8, 4, 4).canonical
        Split(n=8, nb=4, nprocs=2, src=0, inb=None)
        >>> Split(8, 9, 4).canonical == Split(8, 8, 4).canonical == Split(8, 3, 1).canonical
        True
        """
        n, nblocks = self.n, self.nblocks
        if n == 0:
            return Split(0, 1, 1)
        if self.nprocs == 1:
            return Split(n, n, 1)
        if self.src == -1:
            return Split(n, n, self.nprocs, -1)
        # Below, neighbouring blocks have different owners, so splits with the same owners have the same blocks.
        nprocs = min(self.nprocs, self.src + nblocks)
        if nblocks == 1:
            return Split(n, n, nprocs, self.src)
        if nblocks == 2:
            return Split(n, max(self._first, n - self._first), nprocs, self.src, self._first)
        return Split(n, self.nb, nprocs, self.src, self.inb)

    def equivalent(self, other: Split) -> bool:
        """Whether both splits give every process coordinate the same elements.

        >>> Split(8, 4, 2).equivalent(Split(8, 4, 4)), Split(8, 4, 2).equivalent(Split(8, 3, 2))
        (True, False)
        """
        return self is other or self == other or self.canonical == other.canonical

    def part(self, g0: int, g1: int) -> Split:
        """The Split of elements g0..g1-1, renumbered from 0: each element keeps its owner.

        Args:
            g0: first element (global), 0 <= g0 <= g1.
            g1: one past the last element (global), g1 <= n.

        Raises:
            LayoutError: not 0 <= g0 <= g1 <= n.

        >>> Split(9, 4, 2).part(5, 9)
        Split(n=4, nb=4, nprocs=2, src=1, inb=3)
        """
        if type(g0) is not int or type(g1) is not int:
            g0, g1 = checked_int("part", "g0", g0, 0), checked_int("part", "g1", g1, 0)
        if not 0 <= g0 <= g1 <= self.n:
            raise LayoutError(f"part: the range is {g0}:{g1}; expected 0 <= start <= stop <= n = {self.n}.")
        if self.src == -1 or g0 < self._first:
            inb = self.nb if self.src == -1 else self._first - g0
            return Split(g1 - g0, self.nb, self.nprocs, self.src, inb)
        src = indxg2p(g0, self.nb, self.src, self.nprocs, self.inb)
        return Split(g1 - g0, self.nb, self.nprocs, src, self.nb - (g0 - self._first) % self.nb)


def blocks_of(where: str, name: str, n: int, nprocs: int, counts: object) -> tuple[int, int, int]:
    """nb, inb and src of the distribution that gives process p the next counts[p] elements.

    >>> blocks_of("row_wise", "rows", 11, 4, [2, 4, 4, 1]), blocks_of("row_wise", "rows", 5, 3, [0, 3, 2])
    ((4, 2, 0), (2, 3, 1))
    >>> blocks_of("row_wise", "rows", 7, 3, [1, 2, 4])
    Traceback (most recent call last):
    pblas.errors.LayoutError: row_wise: counts are [1, 2, 4]; after the first process that has rows all must have \
equally many, except the last one, which may have fewer. Context.from_parts takes parts of any lengths.
    """
    if isinstance(counts, str) or not isinstance(counts, Iterable):
        raise LayoutError(f"{where}: counts is {counts!r}; expected the {name} of each rank, {nprocs} integers.")
    lengths = [checked_int(where, "a count", count, 0) for count in counts]
    if len(lengths) != nprocs:
        raise LayoutError(f"{where}: counts has {len(lengths)} integers; expected one for each of {nprocs} ranks.")
    if sum(lengths) != n:
        raise LayoutError(f"{where}: counts add up to {sum(lengths)}, the matrix has {n} {name}; make them agree.")
    some = [p for p, length in enumerate(lengths) if length]
    if not some:
        return 1, 1, 0
    src, last = some[0], some[-1]
    further = lengths[src + 1 : last + 1]
    if further and (len(set(further[:-1])) > 1 or further[-1] > further[0]):
        raise LayoutError(
            f"{where}: counts are {lengths}; after the first process that has {name} all must have equally many, "
            f"except the last one, which may have fewer. Context.from_parts takes parts of any lengths."
        )
    return further[0] if further else lengths[src], lengths[src], src
