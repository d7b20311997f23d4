"""Blocks of given lengths, one for each process, as a block-cyclic distribution."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pblas.errors import LayoutError
from pblas.layouts.checks import checked_int


def blocks_of(where: str, name: str, n: int, nprocs: int, counts: Any) -> tuple[int, int, int]:
    """The block size, first block and source of the distribution that gives process p the next counts[p] elements.

    The first block of a block-cyclic distribution has any length. All further blocks have one length, except that the
    last may be shorter. Processes before the first block and after the last one own nothing.

    Args:
        where: the function that is called, for messages.
        name: "rows" or "columns", for messages.
        n: length of the dimension (global).
        nprocs: processes (global).
        counts: elements of each process (global).

    Returns:
        nb, inb, src.

    Raises:
        LayoutError: no such counts, or lengths that no block-cyclic distribution has.

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
