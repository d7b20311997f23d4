"""LU of one panel whose rows are on the ranks of a process column: partial pivoting, or a tournament of rows.

Partial pivoting, column j of the panel:

    the row with the largest element of W[j:, j] on each rank; of all ranks, up a tree to the rank of row j
    this row, and row j, to all ranks, down the tree                      (so each rank has the rows of U of the panel)
    the two rows change places; L[i, j] = W[i, j] / U[j, j]
    W[i, :] -= L[i, j] U[j, :]               (of INNER columns; the columns to their right by one GEMM after them)

Tournament of a panel of nb columns:

    nb rows of each rank, those that LU with partial pivoting chooses of its rows
    nb of 2 nb rows, in the same way, up a tree; at its root L[k, k] U[k, k] of the last ones
    these rows, and the factors, to all ranks; the rows come to the top; L[i, k] = W[i, k] U[k, k]^-1

Sources: Choi, Dongarra, Ostrouchov, Petitet, Walker, Whaley, Design and implementation of the ScaLAPACK LU, QR, and
Cholesky factorization routines, 1996; Petitet, Whaley, Dongarra, Cleary, HPL (one reduction brings the pivot and both
rows); Grigori, Demmel, Xiang, CALU: a communication optimal LU factorization algorithm, 2011 (tournament).
"""

from __future__ import annotations

from math import inf, isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.factor.grid_blocks import TAG_PIVOTS
from pblas.factor.grid_lu_plan import INNER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pblas.backends.device import Device
    from pblas.backends.dtypes import Array, Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.grid_lu_panels import LuPanels
    from pblas.factor.grid_lu_plan import GridLuPlan

_NO_ROW = 1 << 62


def tree(position: int, size: int) -> tuple[int | None, list[int]]:
    """The parent of a position in a binomial tree with root 0, and its children, the nearest first.

    >>> [tree(i, 6) for i in range(6)]
    [(None, [1, 2, 4]), (0, []), (0, [3]), (2, []), (0, [5]), (4, [])]
    """
    children: list[int] = []
    distance = 1
    while distance < size:
        if position % (2 * distance):
            return position - distance, children
        if position + distance < size:
            children.append(position + distance)
        distance *= 2
    return None, children


def moved_rows(start: int, pivots: Iterable[int]) -> tuple[Array, Array]:
    """Rows to which others come if row start + i is exchanged with row start + pivots[i] - 1, and those others.

    >>> [x.tolist() for x in moved_rows(4, [3, 3, 3])]
    [[4, 5, 6], [6, 4, 5]]
    """
    rows: dict[int, int] = {}
    for i, p in enumerate(pivots, start):
        q = start + int(p) - 1
        rows[i], rows[q] = rows.get(q, q), rows.get(i, i)
    pairs = np.array(sorted((row, source) for row, source in rows.items() if row != source), np.intp).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def pivots_of(start: int, chosen: Sequence[int]) -> list[int]:
    """Exchanges, as LAPACK's pivots counted from 1 at row `start`, that bring chosen rows there, in their order.

    >>> pivots_of(4, [6, 4, 5])
    [3, 3, 3]
    """
    row_at: dict[int, int] = {}
    place_of: dict[int, int] = {}
    pivots = []
    for i, row in enumerate(chosen, start):
        place, other = place_of.get(row, row), row_at.get(i, i)
        row_at[place], place_of[other] = other, place
        pivots.append(place - start + 1)
    return pivots


class _Message:
    """Rows of a panel with their global numbers, and the size of an element, in one message (local)."""

    def __init__(self, backend: HostRanks, dtype: Dtype, rows: int, columns: int) -> None:
        nints = 8 * (1 + rows)
        nbytes = nints + rows * columns * dtype.itemsize
        self.memory: Array = backend.buffer(nbytes)[:nbytes].reshape(-1, 1)
        flat = self.memory[:, 0]
        self.size: Array = flat[:8].view(np.float64)
        self.numbers: Array = flat[8:nints].view(np.int64)
        self.rows: Array = flat[nints:].view(dtype).reshape((rows, columns), order="F")


class PanelPivots:
    """Factors panels of one process column, and writes their headers."""

    def __init__(self, plan: GridLuPlan, backend: HostRanks, dtype: Dtype, panels: LuPanels) -> None:
        self._plan, self._backend, self._panels = plan, backend, panels
        self._arrays, self._hosts, self._channel = backend.arrays, backend.host_arrays, backend.host_channel
        self._steps, self._rows, self._grid = plan.steps, plan.w.rows, plan.w.grid
        self._row, self._column = plan.w.grid.coordinates(backend.rank)
        self._width = max((panel.width for panel in self._steps), default=0)
        self._dtype = dtype
        self._messages: dict[Any, _Message] = {}

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of messages (local)."""
        return sum(int(message.memory.nbytes) for message in self._messages.values())

    def factor(self, k: int, w: Array) -> None:
        """Factor panel k, whose columns are `w` with all rows of this rank: **collective** over the process column."""
        x, header = w[self._first_row(k) :], self._panels.header(k)
        if self._grid.nprow == 1:
            self._arrays.lu(x, header[1:, 0], header[:1, 0])
        elif self._plan.pivoting == "partial":
            host, of_host = self._arrays.to_host(x), np.zeros(header.shape, header.dtype)
            self._factor_by_columns(k, host, of_host[:, 0])
            self._arrays.from_host(host, x)
            self._arrays.from_host(of_host, header)
        else:
            self._factor_by_tournament(k, w)

    # Partial pivoting

    def _factor_by_columns(self, k: int, x: Array, header: Array) -> None:
        """Factor a panel in host memory."""
        panel, npivots, is_top, arrays = self._steps[k], self._panels.npivots(k), self._is_top(k), self._hosts
        start = panel.start
        u = self._memory("U", self._width)[:npivots, : panel.width]
        for b in range(0, npivots, INNER):
            end = min(b + INNER, npivots)
            for j in range(b, end):
                rest = j if is_top else 0
                # U[j, :] := the row with the largest element of W[j:, j], which changes places with row j
                row = self._elect(k, start + j, x, rest, j, u[j])
                header[1 + j] = row - start + 1
                if is_top:
                    x[j] = u[j]
                    rest += 1
                if u[j, j] == 0:
                    header[0] = header[0] or j + 1
                    continue
                # L[i, j] = W[i, j] / U[j, j]   (for the rows i below)
                x[rest:, j] /= u[j, j]
                # W[i, :] -= L[i, j] U[j, :]   (the columns of this block)
                arrays.gemm(-1, x[rest:, j : j + 1], u[j : j + 1, j + 1 : end], 1, x[rest:, j + 1 : end])
            # U[b, j] = L[b, b]^-1 W[b, j]
            right = u[b:end, end:]
            arrays.solve_factored(u[b:end, b:end], right, unit=True)
            if is_top:
                x[b:end, end:] = right
            # W[i, j] -= L[i, b] U[b, j]
            below = x[end if is_top else 0 :]
            arrays.gemm(-1, below[:, b:end], right, 1, below[:, end:])

    def _elect(self, k: int, top: int, x: Array, rest: int, j: int, u: Array) -> int:
        """The row that has the largest element of column j of all ranks, which `u` then has; row `top` takes its place.

        A row of a NaN is the largest one; of equal rows it is the first one.
        """
        parent, children = self._tree(k)
        width = len(u)
        best, up = (self._message((name, width), 1, width) for name in ("best", "up"))
        best.size[0], best.numbers[0] = -1, _NO_ROW
        if len(x) > rest:
            i, best.size[0] = _largest(x[rest:, j])
            best.numbers[0], best.rows[0] = self._number(k, rest + i), x[rest + i]
        for child in children:
            self._receive(k, up, child)
            if (-up.size[0], up.numbers[0]) < (-best.size[0], best.numbers[0]):
                best.memory[...] = up.memory
        down = self._message(("down", width), 2, width)
        if parent is None:
            down.numbers[:], down.rows[0], down.rows[1] = best.numbers[0], best.rows[0], x[rest]
        else:
            self._send(k, best, parent)
            self._receive(k, down, parent)
        for child in reversed(children):
            self._send(k, down, child)
        row = int(down.numbers[0])
        u[...] = down.rows[0]
        if row != top and self._rows.owner(row) == self._row:
            x[self._rows.local_from_global(row) - self._first_row(k)] = down.rows[1]
        return row

    # Tournament

    def _factor_by_tournament(self, k: int, w: Array) -> None:
        panel, npivots, i0 = self._steps[k], self._panels.npivots(k), self._first_row(k)
        width, arrays, header = panel.width, self._arrays, self._panels.header(k)
        parent, children = self._tree(k)
        # the rows that LU chooses of those of this rank, which do not change
        mine, order = w[i0:], np.arange(min(width, len(w) - i0))
        if len(mine):
            copy = arrays.like(mine, mine.dtype)
            arrays.assign(mine, copy)
            order = self._factored(arrays, copy)[1][:width]
        best = self._message(("best", width), width, width)
        rows = arrays.to_host(arrays.pick(mine, order, np.arange(width)))
        self._keep(best, rows, self._rows.global_from_local(i0 + order, self._row))
        other = self._message(("other", width), width, width)
        info = 0
        for child in children:
            self._receive(k, other, child)
            both = [x.rows[: int(x.size[0])] for x in (best, other)]
            numbers = np.concatenate([x.numbers[: int(x.size[0])] for x in (best, other)])
            stacked = np.asfortranarray(np.concatenate(both))
            order = self._factored(self._hosts, stacked.copy(order="F"))[1][:width]
            self._keep(best, stacked[order], numbers[order])
        if parent is None:
            # L[k, k] U[k, k] of the rows that are left
            factors = best.rows[:npivots].copy(order="F")
            info, order = self._factored(self._hosts, factors)
            best.numbers[:npivots], best.rows[:npivots] = best.numbers[order], factors
            best.size[0] = info
        else:
            self._send(k, best, parent)
            self._receive(k, best, parent)
        for child in reversed(children):
            self._send(k, best, child)
        pivots = pivots_of(panel.start, best.numbers[:npivots].tolist())
        arrays.from_host(np.array([[int(best.size[0]), *pivots]], header.dtype).T, header)
        # W[k:, k] = P W[k:, k]
        self._panels.exchange(k, w, *moved_rows(panel.start, pivots), most=npivots)
        below = w[i0:]
        if self._is_top(k):
            arrays.from_host(best.rows[:npivots], below[:npivots])
            below = below[npivots:]
        # L[i, k] = W[i, k] U[k, k]^-1, as L[i, k]^T = U[k, k]^-T W[i, k]^T; 1 for a pivot that is 0
        solvable, diagonal = best.rows[:npivots].copy(order="F"), np.arange(npivots)
        solvable[diagonal, diagonal] = np.where(solvable.diagonal() == 0, 1, solvable.diagonal())
        u = self._panels.buffer("U of a panel", 0, npivots, width)
        arrays.from_host(solvable, u)
        arrays.solve_factored(u[:, :npivots].T, below[:, :npivots].T)
        if npivots < width:
            # W[i, j] -= L[i, k] U[k, j]   (columns of the last panel that have no pivot)
            arrays.gemm(-1, below[:, :npivots], u[:, npivots:], 1, below[:, npivots:])

    def _factored(self, arrays: Device, x: Array) -> tuple[int, Array]:
        """X := its LU; INFO, and the order of its rows."""
        integer, k = arrays.traits.pivot_dtype, min(x.shape)
        header = arrays.array(arrays.empty((k + 1) * integer.itemsize), (k + 1, 1), integer)
        arrays.from_host(np.zeros((k + 1, 1), integer), header)
        arrays.lu(x, header[1:, 0], header[:1, 0])
        info, *pivots = arrays.to_host(header)[:, 0].tolist()
        order = list(range(len(x)))
        for i, p in enumerate(pivots):
            order[i], order[p - 1] = order[p - 1], order[i]
        return info, np.array(order, np.intp)

    @staticmethod
    def _keep(message: _Message, rows: Array, numbers: Array) -> None:
        message.size[0] = len(rows)
        message.rows[: len(rows)], message.numbers[: len(rows)] = rows, numbers

    # Ranks of the process column

    def _is_top(self, k: int) -> bool:
        """Whether this rank has the rows of diagonal block k."""
        return self._plan.position(self._steps[k])[0] == self._row

    def _first_row(self, k: int) -> int:
        return self._rows.local_start(self._steps[k].start, self._row)

    def _number(self, k: int, i: int) -> int:
        """The global number of a row of this rank, counted from its first row in panel k."""
        return int(self._rows.global_from_local(self._first_row(k) + i, self._row))

    def _tree(self, k: int) -> tuple[int | None, list[int]]:
        """The ranks above and below this one in the tree whose root has diagonal block k."""
        root, nprow = self._plan.position(self._steps[k])[0], self._grid.nprow
        parent, children = tree((self._row - root) % nprow, nprow)
        at = [self._panels.at(root + x, self._column) for x in children]
        return (None if parent is None else self._panels.at(root + parent, self._column)), at

    def _send(self, k: int, message: _Message, rank: int) -> None:
        self._panels.wait(self._channel.send(message.memory, rank, TAG_PIVOTS).done, k)

    def _receive(self, k: int, message: _Message, rank: int) -> None:
        self._panels.wait(self._channel.receive(message.memory, rank, TAG_PIVOTS).done, k)

    def _message(self, key: tuple[str, int], rows: int, columns: int) -> _Message:
        if key not in self._messages:
            self._messages[key] = _Message(self._backend, self._dtype, rows, columns)
        return self._messages[key]

    def _memory(self, name: str, n: int) -> Array:
        return self._message((name, n), n, n).rows


def _largest(x: Array) -> tuple[int, float]:
    """The place of the first of the largest elements, and its size, as LAPACK measures it: inf if it is NaN."""
    sizes = np.abs(x) if x.dtype.kind != "c" else np.abs(x.real) + np.abs(x.imag)
    i = int(sizes.argmax())
    size = float(sizes[i])
    return i, inf if isnan(size) else size
