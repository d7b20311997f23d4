"""Executor of the tridiagonalization T = Q^H W Q of a Hermitian matrix, by panels in block columns.

For each column j of a panel, with V and W of the columns before it in the panel (here W is LAPACK's name):

    a := A[j:, j] - V W[j]^H - W V[j]^H               (column j of the updated A)
    H v = e_j                                         (reflector of a[1:], H = I - tau v v^H)
    y := A v - V (W^H v) - W (V^H v)                  (each rank multiplies its columns; the sum is on all ranks)
    w := tau y - tau/2 (w^H v) v
    A := A - V W^H - W V^H                            (trailing update, after the panel)

Without vectors, one host reduces a large A to a band by products first, as `RunBandReduction` does on GPUs, with the
lower triangle alone.

Source: Dongarra, Sorensen, Hammarling, Block reduction of matrices to condensed forms, 1989; LAPACK, xLATRD;
    Bischof, Lang, Sun, A framework for symmetric band reduction, 2000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pblas.backends.cpu import lapack
from pblas.backends.cpu.blas import prepared_gemv
from pblas.core.operation import WithoutMemory
from pblas.factor.with_factor import range_scale
from pblas.matrices.scatter_gather import global_indices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pblas.backends.device import Device
    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.factorization_plan import Panel
    from pblas.spectral.eigh_plan import EighPlan

_ROWS = 2048
"""Rows of a tile: a rank's strip of a tile stays in the cache between its two products (1 MB in float64)."""


_STRIP = 256  # columns of the lower triangle that are multiplied at a time on the way to a band


def largest(arrays: Device, a: Array) -> float:
    """The largest |real or imaginary part| of an element; NaN if there is one (local)."""
    if not a.size:
        return 0.0
    parts = (a.real, a.imag) if a.dtype.kind == "c" else (a,)
    # Of each column: on GPUs CuPy reduces a matrix with a leading dimension of its own by one CTA
    extremes = [arrays.reduce(kind, x, 0, "F", x.dtype) for x in parts for kind in ("min", "max")]
    return float(np.abs(extremes).max())


def broadcast(backend: HostRanks, columns: Array, shape: tuple[int, int], owner: int, what: str) -> Array:
    """**Collective.** A copy of columns of a shape that one rank has; `what` they are is for messages."""
    nelements = shape[0] * shape[1]
    out, counts = np.empty(nelements, columns.dtype), [nelements * (rank == owner) for rank in range(backend.size)]
    mine = columns.ravel("F") if backend.rank == owner else np.empty(0, columns.dtype)
    backend.wait(backend.plain_channel.all_gather(mine, out, counts).done, what)
    return out.reshape(shape, order="F")


def form_triangles(steps: Sequence[Panel], rank: int, n: int, w: Array, tau: Array, shift: int) -> None:
    """Below each panel of a rank: T of its reflectors, H H ... = I - V T V^H, that begin `shift` below the diagonal."""
    for panel in steps:
        k = min(panel.stop, n - shift) - panel.start
        if panel.owner == rank and k > 0:
            columns = w[:, panel.j_loc : panel.j_loc + k]
            lapack.larft(columns[panel.start + shift : n], tau[panel.start : panel.start + k], columns[n : n + k])


class RunTridiagonalization(WithoutMemory):
    """Runs the reduction of an EighPlan on one rank: W := V and T of its reflectors."""

    def __init__(self, plan: EighPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        self.plan: EighPlan = plan
        self._backend, self._arrays, self._dtype = backend, backend.arrays, dtype
        self._n = plan.a.n
        self._mine = global_indices(plan.w, backend.rank)[1]
        """The global numbers of this rank's columns (local)."""
        self.progress: Callable[[float], None] | None = None
        """Called with the done part of the work after each panel but the last; None for no calls (local)."""
        self.d: Array  # the diagonal of T (global)
        self.e: Array  # the diagonal below that of T (global)
        self.scale: float  # the power of 2 by which A was multiplied; NaN if A is not finite, and not reduced (global)

    def run(self, w: Array) -> None:
        """Reduce W."""
        n, real = self._n, np.zeros(0, self._dtype).real.dtype
        self.d, self.e = np.zeros(n, real), np.zeros(max(n - 1, 0), real)
        tau = np.zeros(max(n - 1, 0), self._dtype)
        a = w[:n]
        if a.dtype.kind == "c":
            a[self._mine, np.arange(len(self._mine))] = a[self._mine, np.arange(len(self._mine))].real
        self.scale = self._scale(a)
        if not np.isfinite(self.scale):
            return
        if self.scale != 1:
            self._arrays.scale(self.scale, a)
        if self.plan.is_split:
            self._reduce(a, tau)
        elif a.size:
            with self._backend.all_threads(self._n**3):
                if self.plan.host_band:
                    self._reduce_to_band(a, self.plan.host_band)
                    lapack.sbtrd(a, self.plan.host_band, self.d, self.e)
                else:
                    lapack.sytrd(a, self.d, self.e, tau)
        if self.plan.vectors:
            form_triangles(self.plan.steps, self._backend.rank, self._n, w, tau, 1)
        # Hosts of different processors may differ in the last bits: the numbers of rank 0 are those of all ranks
        self.d, self.e = self._backend.broadcast_object((self.d, self.e), 0)

    def _scale(self, a: Array) -> float:
        """The power of 2 that brings A into the range in which no square overflows; NaN if A is not finite."""
        size = self.d.dtype.type(np.max(self._backend.gather(largest(self._arrays, a))))
        return range_scale(size, 0.5) if np.isfinite(size) else np.nan

    def _reduce_to_band(self, a: Array, width: int) -> None:
        """A := the lower band Q^H A Q, on its diagonal and `width` others; the rest of A is lost."""
        n, gemm = self._n, self._arrays.gemm
        strips = [(i, min(i + _STRIP, n)) for i in range(0, n, _STRIP)]
        for i, j in strips:  # both triangles of the squares on the diagonal, and below them the lower one
            lapack.mirror(a[i:j, i:j])
        # [V X] and [X V]: V X^H + X V^H is one product
        left, right = (np.empty((n, 2 * width), a.dtype, "F") for _ in range(2))
        products, s, t = (np.empty((m, width), a.dtype, "F") for m in (n, width, width))
        for first in range(width, n - 1, width):
            panel, k = a[first:, first - width : first], min(n - first, width)
            v, x, vt = left[:, :k], left[:, k : 2 * k], products[:, :k]
            # A[k+1:, k] = H[k] [R; 0], H[k] = I - V T V^H
            lapack.geqrt(panel, t[:k, :k])
            v[first:] = panel[:, :k]
            v[first : first + k] = np.tril(panel[:k, :k], -1) + np.eye(k, dtype=a.dtype)
            gemm(1, v[first:], t[:k, :k], 0, vt[first:])
            # X := A V T
            x[first:], rest = 0, [(max(i, first), j) for i, j in strips[first // _STRIP :]]
            for i, j in reversed(rest):  # the last ones are still in the cache
                gemm(1, a[i:, i:j], vt[i:j], 1, x[i:])
                gemm(1, a[j:, i:j].T, vt[j:], 1, x[i:j], conj=(True, False))
            # X := X - V S / 2, S = (V T)^H X
            gemm(1, vt[first:].T, x[first:], 0, s[:k, :k], conj=(True, False))
            gemm(-0.5, v[first:], s[:k, :k], 1, x[first:])
            # A := A - V X^H - X V^H
            right[first:, :k], right[first:, k : 2 * k] = x[first:], v[first:]
            for i, j in rest:
                gemm(-1, left[i:, : 2 * k], right[i:j, : 2 * k].T, 1, a[i:, i:j], conj=(False, True))
            if self.progress is not None:
                self.progress(1 - (1 - first / n) ** 3)

    def _reduce(self, a: Array, tau: Array) -> None:
        """T := Q^H A Q on all ranks, Q over the columns of their owners."""
        n, steps, symv = self._n, self.plan.steps, _Symv(self.plan, self._backend, a, self._mine)
        # U = [v w v w ...] of the panel, so that V W^H + W V^H = U U[:, swap]^H
        u = np.zeros((n, 2 * self.plan.w.nb), self._dtype, "F")
        swap = np.arange(u.shape[1]) ^ 1
        for panel in steps:
            shape = n - panel.start, panel.width
            mine = a[panel.start :, panel.j_loc : panel.j_loc + panel.width]
            columns = broadcast(self._backend, mine, shape, panel.owner, "a panel of a tridiagonalization")
            for i, j in enumerate(range(panel.start, panel.stop)):
                before, first = u[j + 1 :, : 2 * i], j + 1
                # a := A[j:, j] - V W[j]^H - W V[j]^H
                column = columns[i:, i] - u[j:, : 2 * i] @ u[j, swap[: 2 * i]].conj()
                self.d[j] = column[0].real
                if first == n:
                    break
                # H^H a[1:] = e_j
                v = symv.v[first:]
                v[...] = column[1:]
                tau[j] = lapack.larfg(v)
                self.e[j], v[0] = v[0].real, 1
                # y := A v - V (W^H v) - W (V^H v)
                y = symv.product(first)
                if i:
                    y -= before @ (v.conj() @ before).conj()[swap[: 2 * i]]
                # w := tau y - tau/2 (w^H v) v
                y *= tau[j]
                y -= tau[j] / 2 * np.vdot(y, v) * v
                u[:first, 2 * i : 2 * i + 2] = 0
                u[first:, 2 * i], u[first:, 2 * i + 1] = v, y
            if panel.owner == self._backend.rank:
                a[:, panel.j_loc : panel.j_loc + panel.width] = u[:, : 2 * panel.width : 2]
            # A := A - V W^H - W V^H
            symv.update(panel.stop, u[:, : 2 * panel.width], swap[: 2 * panel.width])
            if self.progress is not None and panel is not steps[-1]:
                self.progress(1 - (1 - panel.stop / n) ** 3)


class _Symv:
    """Products of a Hermitian matrix with a vector: each rank multiplies its columns, strip by strip.

    A strip has some panels of each rank. Both triangles are kept in its square on the diagonal, and below it the lower
    one only, which is multiplied twice, tile by tile: with v, and as the adjoint.
    """

    def __init__(self, plan: EighPlan, backend: HostRanks, a: Array, mine: Array) -> None:
        n = plan.a.n
        self._backend, self._a, self._mine, self._width = backend, a, mine, plan.strip
        self.v: Array = np.zeros(n, a.dtype)  # the vector (global)
        self._y, self._own = np.zeros(n, a.dtype), np.zeros((2, len(mine)), a.dtype)
        self._parts = np.empty(backend.size * n, a.dtype)
        self._strips: list[tuple[int, int, int]] = []
        """Of each strip the first row, and this rank's columns (start, stop)."""
        self._calls: list[list[Callable[[], None]]] = []
        for start in range(0, n, self._width):
            stop = min(start + self._width, n)
            j0, j1 = (int(np.searchsorted(mine, j)) for j in (start, stop))
            self._strips.append((start, j0, j1))
            x, y = self._own[:, j0:j1]
            # y[strip] += A[strip, strip]^H v[strip]
            calls = [prepared_gemv(a[start:stop, j0:j1], self.v[start:stop], y, adjoint=True)]
            for i in range(stop, n, _ROWS):
                tile, rows = a[i : i + _ROWS, j0:j1], slice(i, min(i + _ROWS, n))
                # y[strip] += A[i, strip]^H v[i],  y[i] += A[i, strip] v[strip]
                calls += [
                    prepared_gemv(tile, self.v[rows], y, adjoint=True),
                    prepared_gemv(tile, x, self._y[rows]),
                ]
            self._calls.append(calls if j0 < j1 else [])

    def product(self, first: int) -> Array:
        """A[first:, first:] v[first:], where v is 0 before `first`: the sum over the ranks, in their order."""
        n, size, y = self._n, self._backend.size, self._y
        y[first:] = 0
        self._own[1] = 0
        self.v[:first] = 0
        np.take(self.v, self._mine, out=self._own[0])
        for calls in self._calls[first // self._width :]:
            for multiply in calls:
                multiply()
        y[self._mine] += self._own[1]
        parts = self._parts[: size * (n - first)]
        gathered = self._backend.plain_channel.all_gather(y[first:], parts, [n - first] * size)
        self._backend.wait(gathered.done, "a column of a tridiagonalization")
        total: Array = parts[: n - first].copy()
        for rank in range(1, size):
            total += parts[rank * (n - first) : (rank + 1) * (n - first)]
        return total

    def update(self, first: int, u: Array, swap: Array) -> None:
        """A := A - U U[:, swap]^H, in the rows and columns from `first` on."""
        right = u[self._mine][:, swap]
        from_first = int(np.searchsorted(self._mine, first))
        for start, left, stop in self._strips:
            i, j = max(start, first), max(left, from_first)
            if j < stop:
                self._backend.arrays.gemm(-1, u[i:], right[j:stop].T, 1, self._a[i:, j:stop], conj=(False, True))

    @property
    def _n(self) -> int:
        return len(self.v)
