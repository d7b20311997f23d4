"""The exchange of rows between ranks whose parts differ in length and an even layout."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pblas.backends.dtypes import Array
    from pblas.layouts.split import Split
    from pblas.runtime.runtime import Runtime

TAG = 1011
_PANEL_NBYTES = 16 << 20
"""Largest message."""


def moves(lengths: Sequence[int], split: Split, source: int, target: int) -> tuple[int, int]:
    """The global range of rows that move from the part of one rank to the block of another; it may be empty.

    >>> from pblas.layouts.split import Split
    >>> [moves([1, 5], Split(6, 3, 2), 1, target) for target in range(2)]
    [(1, 3), (3, 6)]
    """
    first = list(accumulate(lengths, initial=0))
    start, stop = next(iter(split.runs(target)), (0, 0))
    start, stop = max(first[source], start), min(first[source + 1], stop)
    return start, max(start, stop)


def exchange(runtime: Runtime, part: Array, block: Array, lengths: Sequence[int], split: Split) -> None:
    """**Collective**, after an agreement. Block := this rank's rows of all parts, one below the other."""
    backend, rank = runtime.backend, runtime.rank
    first, own = sum(lengths[:rank]), next(iter(split.runs(rank)), (0, 0))[0]
    sent: list[Any] = []
    for turn in range(runtime.nprocs):
        target = (rank + turn) % runtime.nprocs
        start, stop = moves(lengths, split, rank, target)
        rows = part[start - first : stop - first]
        if target == rank:
            if start < stop:
                block[start - own : stop - own] = rows
            continue
        sent += [(target, backend.plain_channel.send(panel, target, TAG)) for panel in _panels(rows)]
    for turn in range(1, runtime.nprocs):
        source = (rank - turn) % runtime.nprocs
        start, stop = moves(lengths, split, source, rank)
        rows = np.empty((stop - start, block.shape[1]), block.dtype)
        for panel in _panels(rows):
            backend.wait(backend.plain_channel.receive(panel, source, TAG).done, f"from_parts: rows from rank {source}")
        if start < stop:
            block[start - own : stop - own] = rows
    for target, transfer in sent:
        backend.wait(transfer.done, f"from_parts: rows to rank {target}")


def _panels(rows: Array) -> list[Array]:
    """Contiguous panels of rows, of at most `_PANEL_NBYTES` bytes or one row."""
    if not rows.size:
        return []
    tight = np.ascontiguousarray(rows)
    step = max(1, _PANEL_NBYTES // (tight.itemsize * tight.shape[1]))
    return [tight[start : start + step] for start in range(0, len(tight), step)]
