"""Assembly of a local array from several readable source arrays, one column panel at a time.

Rows of several ranks interleave in a column. A copy rank by rank would walk through the target once per rank. A column
panel is assembled from all ranks at once, and scaled or added as whole columns, in cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.layouts.strided import SOURCE, TARGET, Places, StridedRun
from pblas.redistribution.packing import COPY, KnownRuns, Put, elements, flat, known_strided_runs

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.layouts.messages import Move

# Nanoseconds, measured on one core of an AMD EPYC with float64; they decide between views and indices.
_PER_RUN, _PER_VIEW, _PER_GATHERED = 14.0, 1000.0, 1.6

_LONG = 64  # minimum length of a run, in elements, whose rows are copied as fast as items

_COPIED, _COMBINED, _GATHERED = 1 << 19, 1 << 18, 1 << 17
"""Elements of a panel. A copied panel is so large that its views cost little; other panels fit into the cache."""


class Assembly:
    """Copies from arrays of several ranks, which this rank can read in place, to all elements of one of its arrays."""

    def __init__(self, moves: Iterable[Move], known: KnownRuns) -> None:
        self._moves, self._known = list(moves), known
        self._panels: dict[bool, list[_ColumnPanel]] = {}

    def bring(self, array: Callable[[int], Array], out: Array, put: Put) -> bool:
        """Update all elements of `out` by the elements of the source arrays, one column panel at a time."""
        arrays = {move.peer: array(move.peer) for move in self._moves}
        straight = _is_by_columns(out)
        if not straight:
            out, arrays = out.T, {peer: x.T for peer, x in arrays.items()}
        if not all(map(_is_by_columns, (out, *arrays.values()))):
            return False
        if straight not in self._panels:
            self._panels[straight] = self._grouped(straight)
        for panel in self._panels[straight]:
            panel.bring([arrays[peer] for peer in panel.peers], out, put)
        return True

    def _grouped(self, straight: bool) -> list[_ColumnPanel]:
        """Column panels of the target, or of its transpose if it is stored by rows (`straight` is false).

        The moves to the same columns make one panel.
        """
        groups: dict[Any, list[tuple[int, Sequence[StridedRun]]]] = {}
        for move in self._moves:
            rows, columns = (move.rows, move.columns) if straight else (move.columns, move.rows)
            groups.setdefault(columns, []).append((move.peer, known_strided_runs(rows, self._known)))
        return [_ColumnPanel(shares, known_strided_runs(columns, self._known)) for columns, shares in groups.items()]


class _ColumnPanel:
    """Columns of the target whose elements come from the same ranks."""

    __slots__ = ("_columns", "_gathers", "_height", "_indices", "_is_blocks", "_lines", "_rows", "peers")

    def __init__(self, shares: Sequence[tuple[int, Sequence[StridedRun]]], columns: Sequence[StridedRun]) -> None:
        self.peers, self._rows, self._columns = [peer for peer, _ in shares], [rows for _, rows in shares], columns
        strided_runs = [run for rows in self._rows for run in rows]
        self._height = m = sum(run.length * run.count for run in strided_runs)
        self._is_blocks = all(run.count == 1 and run.is_touching and run.length >= _LONG for run in strided_runs)
        self._lines: dict[int, list[tuple[Places, Places, int]]] = {}
        width = max(count for *_, count in self._lines_of(_COPIED))
        by_views = _PER_RUN * sum(run.count for run in strided_runs) + _PER_VIEW * len(strided_runs) / width
        self._gathers = by_views > _PER_GATHERED * m
        self._indices: dict[tuple[int, int], Array] = {}

    def _lines_of(self, limit: int) -> list[tuple[Places, Places, int]]:
        """The columns of the panel in groups: (first columns, distances, count), each with at most `limit` elements.

        A group has one column at least. Its columns are at equal distances.
        """
        lines = self._lines.get(limit)
        if lines is None:
            many = max(1, limit // self._height)
            lines = self._lines[limit] = [line for run in self._columns for line in run.lines(many)]
        return lines

    def bring(self, sources: Sequence[Array], out: Array, put: Put) -> None:
        """Update the columns of this panel in `out`, as `Assembly.bring`; all arrays are stored by columns."""
        dtype, copies = sources[0].dtype, put == COPY and sources[0].dtype == out.dtype
        lines = self._lines_of(_GATHERED if self._gathers else _COPIED if copies else _COMBINED)
        width = max(count for *_, count in lines)
        in_place = self._is_blocks or (copies and not self._gathers)
        memory = np.empty((1 + self._gathers, 0 if in_place else width * self._height), dtype)
        for starts, steps, count in lines:
            places = [_columns(x, starts[SOURCE], steps[SOURCE], count) for x in sources]
            panel = assembled = _columns(out, starts[TARGET], steps[TARGET], count)
            if self._is_blocks:
                self._put_blocks(places, panel, put)
                continue
            if not copies or (self._gathers and not panel.flags.f_contiguous):
                assembled = memory[0, : panel.size].reshape(panel.shape, order="F")
            if self._gathers:
                self._gather(places, assembled, memory[1], width)
            else:
                self._copy(places, assembled)
            if assembled is not panel:
                put(assembled, panel)

    def _put_blocks(self, sources: Sequence[Array], panel: Array, put: Put) -> None:
        """Call put(x, target) for each block, without memory in between."""
        for x, rows in zip(sources, self._rows, strict=True):
            for run in rows:
                (source, _, target), length = run.starts, run.length
                put(x[source : source + length], panel[target : target + length])

    def _copy(self, sources: Sequence[Array], panel: Array) -> None:
        """Copy the elements of all ranks to `panel`, one strided run at a time."""
        target = flat(panel).view(np.uint8)
        for x, rows in zip(sources, self._rows, strict=True):
            source = flat(x).view(np.uint8)
            for run in rows:
                _runs(target, panel, run, TARGET)[...] = _runs(source, x, run, SOURCE)

    def _gather(self, sources: Sequence[Array], panel: Array, memory: Array, width: int) -> None:
        """Gather the elements of each rank, one rank after the other, then permute all to their order."""
        start = 0
        for p, x in enumerate(sources):
            index = self._source_index(p, x.strides[1] // x.itemsize, width)
            chosen = index[: panel.shape[1]]
            # In its default mode, `take` would write to a copy of `out` first.
            np.take(flat(x), chosen, out=memory[start : start + chosen.size].reshape(chosen.shape), mode="wrap")
            start += index.size
        np.take(memory, self._order(width)[: panel.shape[1]], out=panel.T, mode="wrap")

    def _source_index(self, p: int, across: int, width: int) -> Array:
        """Indices of the p-th rank's elements of each column."""
        if (p, across) not in self._indices:
            rows = np.concatenate([elements(run, SOURCE) for run in self._rows[p]])
            self._indices[p, across] = np.arange(width)[:, None] * across + rows
        return self._indices[p, across]

    def _order(self, width: int) -> Array:
        """Indices of the elements of each column in memory ordered by rank."""
        if (-1, 0) not in self._indices:
            index, start = np.empty((width, self._height), np.intp), 0
            for share in self._rows:
                rows = np.concatenate([elements(run, TARGET) for run in share])
                index[:, rows] = start + np.arange(width * rows.size).reshape(width, rows.size)
                start += width * rows.size
            self._indices[-1, 0] = index
        return self._indices[-1, 0]


def _is_by_columns(x: Array) -> bool:
    """Whether the elements of a column touch, and columns do not overlap."""
    return bool(x.itemsize == x.strides[0] < x.strides[1])


def _columns(x: Array, start: int, step: int, count: int) -> Array:
    """Columns at equal distances."""
    return x[:, start : start + (count - 1) * step + 1 : step]


def _runs(memory: Array, x: Array, run: StridedRun, place: int) -> Array:
    """The runs of a strided run in each column of x: columns x runs of items if short, else columns x runs x elements.

    NumPy copies a short item several times as fast as a short row.
    """
    down, across = x.strides
    start, step, stride = (down * side[place] for side in (run.starts, run.steps, run.strides))
    if run.is_touching and run.length < _LONG:
        item = f"V{run.length * down}"
        return np.ndarray((x.shape[1], run.count), item, memory, start, (across, step))
    shape = x.shape[1], run.count, run.length
    return np.ndarray(shape, x.dtype, memory, start, (across, step, stride))
