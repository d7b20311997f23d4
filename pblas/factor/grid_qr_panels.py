"""Blocks of reflectors on a P x Q grid: their way to the ranks that multiply with them, and these products.

H[k] = I - V T V^H, for the matrix C whose rows are on the process rows of V:

    header: T of panel k, from rank (r, k) to its process row
    left:   V[i, k] for the rows i of rank (r, c), as in LU
    Y = V^H C                                (of the rows of this rank)
    Z = T^H Y, or T Y                        (each rank of the process column sums and multiplies a part of the columns)
    C -= V Z                                 (after the parts of all ranks have arrived)

Columns of C go through these steps in pieces: those of one piece travel during the products of the next.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pblas.factor.grid_blocks import TAG_PARTS, TAG_SUMS
from pblas.factor.grid_left_panels import LeftPanels
from pblas.factor.grid_plan import pieces

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array
    from pblas.backends.transport import Transfer
    from pblas.factor.factorization_plan import Panel
    from pblas.factor.grid_qr_plan import GridQrPlan
    from pblas.redistribution.transfer import SourceMatrix


class Part(NamedTuple):
    """A part of V on this rank, and its rows, counted from the rank's first row in the panel (local)."""

    v: Array
    rows: slice


class Reflector(NamedTuple):
    """H[k] or its adjoint, or the conjugate of one of them (global)."""

    k: int
    adjoint: bool = True
    conj: bool = False


class ColumnSums:
    """The sum over a process column of some columns of a matrix: each of its ranks adds a part of them (local)."""

    def __init__(self, panels: QrPanels, k: int, rows: int, start: int, stop: int) -> None:
        self._panels, self._k, self.start, self.stop = panels, k, start, stop
        ranks = panels.column_ring(k, panels.column)
        cuts = [start + (stop - start) * i // len(ranks) for i in range(len(ranks) + 1)]
        columns = {rank: slice(*ends) for rank, ends in zip(ranks, pairwise(cuts), strict=True)}
        self.own = columns.pop(panels.rank)
        """The columns that this rank adds."""
        self._others = {rank: part for rank, part in columns.items() if part.start < part.stop}
        width = self.own.stop - self.own.start
        self._adding = list(columns) if width else []
        self._parts: Any = panels.buffer(f"parts {start}", 0, rows, width * len(columns)) if self._adding else None
        self._arriving: list[Transfer] = []
        self._sending: list[Transfer] = []

    def send_parts(self, y: Array) -> None:
        """Send the columns of Y that other ranks add, and receive theirs of those that this rank adds."""
        channel = self._panels.channel
        self._arriving = [channel.receive(part, rank, TAG_PARTS) for rank, part in self._received()]
        self._sending = [channel.send(y[:, part], rank, TAG_PARTS) for rank, part in self._others.items()]

    def added(self, y: Array) -> Array:
        """The sum of the columns that this rank adds, in place of its own in Y, in the order of process rows."""
        own: Array = y[:, self.own]
        for (_, part), transfer in zip(self._received(), self._arriving, strict=True):
            self._panels.wait(transfer.done, self._k)
            self._panels.add(part, own)
        return own

    def send_sums(self, z: Array) -> None:
        """Send the columns that this rank has added to the others, and receive theirs."""
        channel, own = self._panels.channel, z[:, self.own]
        self._arriving = [channel.receive(z[:, part], rank, TAG_SUMS) for rank, part in self._others.items()]
        self._sending += [channel.send(own, rank, TAG_SUMS) for rank in self._adding]

    def wait_sums(self) -> None:
        """Return when all columns of Z have arrived."""
        for transfer in self._arriving:
            self._panels.wait(transfer.done, self._k)

    def end(self) -> None:
        """Return when all messages of this rank have left."""
        for transfer in self._sending:
            self._panels.wait(transfer.done, self._k)

    def _received(self) -> list[tuple[int, Array]]:
        """The ranks whose columns this rank adds to its own, and memory for these columns."""
        width = self.own.stop - self.own.start
        return [(rank, self._parts[:, i * width : (i + 1) * width]) for i, rank in enumerate(self._adding)]


class QrPanels(LeftPanels):
    """Brings V and T of panels to this rank, and multiplies with them.

    panels.triangles(tau)        # T of the panels of this process column, if only V and tau are known
    panels.reflectors(k)         # this rank's rows of V of panel k, after the arrival of V and T
    panels.multiply(h, v, c)     # C := H[k] C, or H[k]^H C: **collective** over the process column
    """

    def __init__(self, plan: GridQrPlan, source: SourceMatrix, columns: Callable[[Panel, int], int]) -> None:
        """`columns`: a number, that of the columns of a process column that change with a panel (global)."""
        super().__init__(plan, source)
        self._columns = columns
        self.channel, self.rank, self.column = source.backend.channel, self._rank, self._column
        self.t: Array
        """T of each panel of this process column, side by side (local)."""

    def header(self, k: int) -> Array:
        """T of panel k."""
        panel, count = self._steps[k], self.npivots(k)
        if self._plan.position(panel)[1] == self._column:
            t: Array = self.t[:count, panel.j_loc : panel.j_loc + count]
            return t
        return self.buffer("T", k, count, count)

    def is_reader(self, k: int, c: int) -> bool:
        """Whether the process column has columns that are multiplied with V, if this process row has rows of V."""
        return self.rows_from(k, self._row) > 0 and self._columns(self._steps[k], c) > 0

    def _is_read(self, k: int) -> bool:
        return True  # by all ranks of the ring

    def new_triangles(self) -> Array:
        """Memory for T of each panel of this process column, side by side (local)."""
        shape, dtype = (min(self._w.nb, self._w.n), self._w.columns.count(self._column)), self._source.dtype
        t: Array = self._arrays.array(self._arrays.empty(shape[0] * shape[1] * dtype.itemsize), shape, dtype, "F")
        return t

    def triangles(self, tau: Array) -> Array:
        """T of each panel of this process column, from V and tau of all reflectors: **collective** over it.

        T = (I + diag(tau) G)^-1 diag(tau), for the strict upper triangle G of V^H V.

        Source: Joffrain, Low, Quintana-Orti, van de Geijn, Van Zee, Accumulating Householder transformations, 2006.
        """
        self.t, hosts = self.new_triangles(), self._backend.host_arrays
        for k, panel in enumerate(self._steps):
            if self._plan.position(panel)[1] != self._column or not self.rows_from(k, self._row):
                continue
            count = self.npivots(k)
            y, z = (self.buffer(name, 0, count, count) for name in "YZ")
            self.follow_updates()
            # Y = V^H V, of the rows of this rank; Z is the sum over all ranks
            parts = self._parts(k, self._own(k))
            for part in parts:
                self._arrays.gemm(1, part.v.T, part.v, 0 if part is parts[0] else 1, y, conj=(True, False))
            sums = ColumnSums(self, k, count, 0, count)
            sums.send_parts(y)
            self._arrays.assign(sums.added(y), z[:, sums.own])
            sums.send_sums(z)
            sums.wait_sums()
            sums.end()
            # (I + diag(tau) G) T = diag(tau)
            of_panel = tau[panel.start : panel.start + count]
            t = np.asfortranarray(np.diag(of_panel))
            triangle = np.asfortranarray(of_panel[:, None] * self._arrays.to_host(z))
            hosts.trsm(triangle, t, uplo="U", unit=True)
            self._arrays.from_host(np.triu(t), self.header(k))
        return self.t

    def reflectors(self, k: int) -> list[Part]:
        """V on this rank, after the arrival of V and T."""
        return self._parts(k, self.left(k))

    def _parts(self, k: int, left: Array) -> list[Part]:
        """V in this rank's rows of a panel; where R is above it, the block with its diagonal of ones is a copy."""
        left, count = left[:, : self.npivots(k)], self.npivots(k)
        if self._plan.position(self._steps[k])[0] != self._row:
            return [Part(left, slice(None))]
        v = self.buffer("V", k, count, count)
        self._arrays.unit_lower(left[:count], v)
        below = Part(left[count:], slice(count, None))
        return [Part(v, slice(count)), below] if len(below.v) else [Part(v, slice(count))]

    def add(self, x: Array, z: Array) -> None:
        """Z += X."""
        self._arrays.add_scaled(1, x, 1, z)

    def multiply(self, h: Reflector, v: list[Part], c: Array) -> None:
        """C := H C, for this rank's rows of C from the diagonal block of the panel on."""
        (k, adjoint, conj), gemm, n = h, self._arrays.gemm, c.shape[1]
        if not c.size:
            return
        self.follow_updates()
        t, count = self.header(k), self.npivots(k)
        y, z = (self.buffer(name, 0, count, n) for name in "YZ")
        sums = [ColumnSums(self, k, count, *ends) for ends in pieces(n)]
        for piece in sums:
            # Y = V^H C   (parts of it leave for the ranks that add them)
            columns = slice(piece.start, piece.stop)
            for part in v:
                beta = 0 if part is v[0] else 1
                gemm(1, part.v.T, c[part.rows, columns], beta, y[:, columns], conj=(not conj, False))
            piece.send_parts(y)
            self.progress()
        for piece in sums:
            # Z = T^H (Y + those of other ranks)   (leaves for all ranks)
            own = piece.added(y)
            gemm(1, t.T if adjoint else t, own, 0, z[:, piece.own], conj=(adjoint != conj, False))
            piece.send_sums(z)
        for piece in sums:
            # C -= V Z
            piece.wait_sums()
            columns = slice(piece.start, piece.stop)
            for part in v:
                gemm(-1, part.v, z[:, columns], 1, c[part.rows, columns], conj=(conj, False))
            self.progress()
        for piece in sums:
            piece.end()
