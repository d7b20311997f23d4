"""Executor of the reduction of a Hermitian matrix to a band, B = Q1^H A Q1, in block columns as wide as the band.

For each panel k, with the columns of A that each rank has (here X and W are names of Bischof, Lang and Sun):

    A[k+1:, k] = H[k] [R; 0], H[k] = I - V T V^H         (factor panel k, and broadcast it)
    X := A V T                                           (each rank the rows of its columns; all rows to all ranks)
    W := X - V S / 2, S = (V T)^H X
    A := A - V W^H - W V^H                               (trailing update, of each rank's columns)

Every member keeps all panels, so that it needs no others to multiply columns of its own with Q1. Rank 0 may have all
columns, and the other members none.

Source: Bischof, Lang, Sun, A framework for symmetric band reduction, 2000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pblas.factor.factorization_plan import columns_from
from pblas.factor.factorization_run import RunFactorization
from pblas.spectral.tridiagonalization_run import largest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pblas.backends.dtypes import Array, Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.backends.transport import Transfer
    from pblas.spectral.eigh_plan import EighPlan

TAG_PRODUCT = 1063


class Band(NamedTuple):
    """The reduced matrix on one rank: see `BandStages`; the power of 2 by which A was multiplied (global)."""

    a: Array
    triangles: Array
    t: Any
    scale: float


class RunBandReduction(RunFactorization):
    """Runs the reduction of an EighPlan by way of a band on one rank; `taken_band` is its result."""

    def __init__(self, plan: EighPlan, backend: HostRanks, dtype: Dtype) -> None:
        super().__init__(plan.reduction, backend, dtype)
        self._n, self._width, self._size, self._dtype = plan.a.n, plan.bandwidth, plan.w.nprocs, dtype
        self._stages, self._keeps = self._arrays.band_stages(plan.bandwidth), plan.vectors
        ranks = range(self._size)
        self._is_member = self._rank < plan.members and plan.a.n > 0
        self._others = [rank for rank in ranks if rank != self._rank] if self._rank in ranks else []
        self._slot_nbytes = plan.w.columns.max_count * self._width * dtype.itemsize
        self._products: Any = backend.allocate_scratch(2 * self._slot_nbytes) if self._size > 1 else None
        """Rows of X of two panels: before a rank writes those of panel k + 2, the others have sent those of k + 1."""
        self._sent: list[Transfer] = []
        self.scale: float  # the power of 2 by which A was multiplied; NaN if A is not finite, and not reduced (global)
        self.band: Band | None  # on ranks with columns of A (local)

    def publish(self, w: Array) -> bool:
        """Allocate all memory; publish the location of W."""
        n, width, a = self._n, self._width, w[: self._n]
        self._has_all = self._size == 1 and self._rank == 0
        if self._is_member:
            self._a: Any = a if self._has_all else self._new(n, n)
            self._triangles: Any = w[n:] if self._has_all else self._new(width, n)
        if a.size:
            self._buffers = [self._new(n, 3 * width) for _ in range(2)]
            self._vt, self._s = self._new(n, width), self._new(width, width)
            self._right: Any = None if self._has_all else self._new(a.shape[1], 2 * width)
        return super().publish(w)

    def run(self, w: Array) -> None:
        """Reduce W to a band, and the band to T."""
        arrays, a, self.band = self._arrays, w[: self._n], None
        # Of several ranks' columns both triangles were brought, with imaginary parts on the diagonal
        blocks = [a] if self._size == 1 else []
        if self._size > 1 and self._dtype.kind == "c":
            mine = ((k, panel) for k, panel in enumerate(self._steps) if panel.owner == self._rank)
            blocks = [self.columns_of(k)[panel.start : panel.stop] for k, panel in mine]
        for block in blocks:
            arrays.lower(block)
        arrays.synchronize()
        size = float(np.max(self._backend.gather(largest(arrays, a))))
        limits = np.finfo(self._dtype)  # GPUs compare its subnormal numbers as zeros
        exponent = int(np.frexp(max(size, float(limits.smallest_subnormal)))[1])
        self.scale = float(np.ldexp(1.0, min(-exponent, limits.maxexp - 1)))
        if not np.isfinite(size):
            self.scale = np.nan
            return
        arrays.scale(self.scale, a)
        for block in blocks:
            self._stages.complete(block)
        arrays.synchronize()
        super().run(w)
        for transfer in self._sent:
            self._backend.wait(transfer.done, "sending products of a reduction")
        self._sent = []
        if self._is_member:
            t = self._stages.chase(self._a, keeps=self._keeps)
            self.band = Band(self._a, self._triangles, t, self.scale)
            arrays.synchronize()

    def finish(self) -> None:
        """Forget all memory, after `taken_band`."""
        for name in ("_a", "_triangles", "_buffers", "_vt", "_s", "_right", "_rows", "_ready"):
            self.__dict__.pop(name, None)
        super().finish()

    looks_ahead_first = True  # two kernels factor a panel

    def factor(self, k: int) -> None:
        """Factor the rows of the panel below the band; T in the rows below A."""
        panel, n, count = self._steps[k], self._n, self._reflectors(k)
        if count:
            columns = self.columns_of(k)
            # A[k+1:, k] = H[k] [R; 0]
            self._stages.factor(columns[panel.stop : n], columns[n : n + count, :count])

    def reads(self, k: int) -> bool:
        """True on every member, which keeps the panel."""
        return self._is_member

    def begin_step(self, k: int, panel: Array) -> None:
        """W of panel k, of all rows on all ranks."""
        step, n, count, arrays = self._steps[k], self._n, self._reflectors(k), self._arrays
        stages, m, t = self._stages, n - step.stop, self._triangles[:count, step.start : step.start + count]
        if self.w.size:
            y = self._buffers[k % 2][:m]
            v, w, again = (y[:, i * count : (i + 1) * count] for i in range(3))
            vt, s = self._vt[:m, :count], self._s[:count, :count]
        with arrays.on_side_lane("keep a panel"):
            if not self._has_all:
                arrays.assign(panel[: n - step.start], self._a[step.start :, step.start : step.stop])
                if count:
                    arrays.assign(panel[n - step.start :][:count, :count], t)
            if count and self.w.size:
                for copy in (v, again):
                    stages.unit_lower(panel[step.width : n - step.start, :count], copy)
                stages.multiply(v, t, vt)
            kept = arrays.mark()
        arrays.follow(kept)
        first = self._first_after[k]
        if count and first < self._end:
            # X := A V T
            own = self.w[step.stop : n, first:]
            x = w if self._size == 1 else self._slot(self._rank, k, own.shape[1], count)
            stages.multiply(own, vt, x, adjoint=(self._size > 1, False))  # A = A^H is faster as it is
            if self._size > 1:
                self._exchange(k, x, w)
            # W := X - V S / 2, S = (V T)^H X
            stages.multiply(vt, w, s, adjoint=(True, False))
            stages.multiply(v, s, w, alpha=-0.5, beta=1)
            self._rows = y[:, count : 3 * count]
            if self._size > 1:
                rows = self._right[: own.shape[1], : 2 * count]
                top = self._first_row(k, self._rank)
                stages.copy_blocks(self._rows[top:], rows, self._size, 1)
                self._rows = rows
        self._ready = arrays.mark()

    def update(self, k: int, panel: Array, j0: int, j1: int, pieces: Iterable[tuple[int, int]]) -> None:
        """Update the local columns j0..j1-1."""
        del panel, pieces  # all have arrived
        count, first, top = self._reflectors(k), self._first_after[k], self._steps[k].stop
        if count:
            # A[k+1:, j] -= V W[j]^H + W V[j]^H
            left, right = self._buffers[k % 2][: self._n - top, : 2 * count], self._rows[j0 - first : j1 - first]
            c = self.w[top : self._n, j0:j1]
            self._stages.multiply(left, right, c, alpha=-1, beta=1, adjoint=(False, True))

    def look_ahead(self, k: int, panel: Array | None, j0: int, j1: int, updated: object) -> None:
        """Update panel k + 1 after W of panel k, and factor it."""
        del updated
        super().look_ahead(k, panel, j0, j1, self._ready)

    def taken_band(self) -> Band | None:
        """The result, which the executor forgets (local)."""
        band, self.band = self.band, None
        return band

    def _reflectors(self, k: int) -> int:
        """Number of reflectors of panel k: none if there is a row at most below the band (global)."""
        below = self._n - self._steps[k].stop
        return min(below, self._width) if below > 1 else 0

    def _exchange(self, k: int, x: Array, w: Array) -> None:
        """W[i] := the rows i of X of each rank."""
        arrays, backend, count = self._arrays, self._backend, w.shape[1]
        channel, stop = backend.channel, self._steps[k].stop
        lengths = {peer: columns_from(self.plan.w, stop, peer) for peer in self._others}
        peers = [peer for peer in self._others if lengths[peer]]  # the others need no W any more
        self._stages.copy_blocks(x, w[self._first_row(k, self._rank) :], 1, self._size)
        backend.sync()
        for peer in peers:
            near = backend.is_near(peer)
            self._sent.append(channel.signal(peer, TAG_PRODUCT) if near else channel.send(x, peer, TAG_PRODUCT))
        with arrays.on_side_lane("bring products"):
            arriving = [self._arriving(k, peer, lengths[peer], count) for peer in peers]
            for peer, (part, transfer) in zip(peers, arriving, strict=True):
                backend.wait(transfer.done, f"products of panel {k} of a reduction, of rank {peer}")
                backend.sync()
                self._stages.copy_blocks(part, w[self._first_row(k, peer) :], 1, self._size)
            arrived = arrays.mark()
        arrays.follow(arrived)

    def _first_row(self, k: int, rank: int) -> int:
        """The first row below panel k with the number of one of a rank's columns (global)."""
        return (rank - k - 1) % self._size * self._width

    def _arriving(self, k: int, peer: int, count: int, width: int) -> tuple[Array, Transfer]:
        """A peer's rows of X, in its memory or in a message, and the transfer that says when they are there."""
        if self._backend.is_near(peer):
            return self._slot(peer, k, count, width), self._backend.channel.await_signal(peer, TAG_PRODUCT)
        part = self._new(count, width)
        return part, self._backend.channel.receive(part, peer, TAG_PRODUCT)

    def _slot(self, rank: int, k: int, count: int, width: int) -> Array:
        """Memory for a rank's rows of X."""
        offset = k % 2 * self._slot_nbytes
        return self._backend.peer_block(self._products, rank, offset, (count, width), self._dtype, "F")

    def _new(self, m: int, n: int) -> Any:
        """New memory of this rank, in Fortran order (local)."""
        return self._arrays.array(self._arrays.empty(self._dtype.itemsize * m * n), (m, n), self._dtype)
