"""Executor of the bidiagonalization B = Q^H A P of a square matrix: by LAPACK on one rank, or by block columns on all.

For each column i of a panel, with V, Y, X and U of the columns before it, the matrix at that time is A - V Y^H - X U^H:

    v := A[i:, i] - V Y[i]^H - X U[i]^H                  (reflector of Q, H = I - tauq v v^H)
    y := tauq (A^H v - Y (V^H v) - U (X^H v))
    s := (A[i, i+1:] - V[i] Y^H - X[i] U^H)^H - y        (row i; its reflector u of P has (alpha - beta) u = s - beta e)
    x := taup (A u - V (Y^H u) - X (U^H u)),  A u = (A s - beta A e) / (alpha - beta)
    A := A - V Y^H - X U^H                               (trailing update, after the panel)

A rank reads each tile of its columns once from memory for both products: A^H v of the tile's columns gives the elements
of s there, with which A s is multiplied while the tile is in the cache.

Without vectors, one rank reduces A to an upper band by products first. For each block k of as many columns as the band
has diagonals, with H[k] = I - V T V^H and G[k] = I - U S U^H:

    A[k:, k] = H[k] [R; 0],  Y := A[k:, k+1:]^H V T
    A[k, k+1:] - V[k] Y^H = [L, 0] G[k]^H,  X := (A[k:, k+1:] U - V (Y^H U)) S
    A[k+1:, k+1:] := A - V Y^H - X U^H                   (H[k]^H A G[k])

Source: Dongarra, Sorensen, Hammarling, Block reduction of matrices to condensed forms, 1989; LAPACK, xLABRD;
    Howell, Demmel, Fulton, Hammarling, Marmol, Cache efficient bidiagonalization using BLAS 2.5 operators, 2008;
    Grosser, Lang, Efficient parallel reduction to bidiagonal form, 1999.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pblas.backends.cpu import lapack
from pblas.backends.cpu.blas import gemm, prepared_gemv
from pblas.core.operation import WithoutMemory
from pblas.matrices.scatter_gather import global_indices
from pblas.spectral.tridiagonalization_run import broadcast, form_triangles

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.factorization_plan import Panel
    from pblas.spectral.svd_plan import SvdPlan

_TILE_NBYTES = 1 << 20  # a rank's tile, which is multiplied twice and stays in the cache between


class Reflected(NamedTuple):
    """The matrix, whose place V takes, and the one that gets U; None if no vectors are wanted (local)."""

    w: Array
    right: Array | None


class RunBidiagonalization(WithoutMemory):
    """Runs the reduction of an SvdPlan on one rank: W := V and T of the reflectors of Q, and those of P beside it."""

    def __init__(self, plan: SvdPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        self.plan: SvdPlan = plan
        self._backend, self._dtype, self._n = backend, dtype, plan.w.n
        self._columns = [global_indices(plan.w, rank)[1] for rank in range(backend.size)]
        """The global numbers of the columns of each rank (global)."""
        self._mine = self._columns[backend.rank]
        self.progress: Callable[[float], None] | None = None
        """Called with the done part of the work after each panel but the last; None for no calls (local)."""
        self.d: Array  # the diagonal of B (global)
        self.e: Array  # the diagonal above that of B (global)

    def run(self, x: Reflected) -> None:
        """Reduce W."""
        n, real = self._n, np.zeros(0, self._dtype).real.dtype
        self.d, self.e = np.zeros(n, real), np.zeros(max(n - 1, 0), real)
        tauq, taup = np.zeros(n, self._dtype), np.zeros(n, self._dtype)
        if not self.plan.is_split:
            self._reduce_alone(x, tauq, taup)
        for panel in self.plan.steps if self.plan.is_split else ():
            self._reduce(panel, x, tauq, taup)
            if self.progress is not None and panel.stop < n:
                self.progress(1 - (1 - panel.stop / n) ** 3)
        if x.right is not None:
            for w, tau, shift in ((x.w, tauq, 0), (x.right, taup, 1)):
                form_triangles(self.plan.steps, self._backend.rank, n, w, tau, shift)
        # Hosts of different processors may differ in the last bits: the numbers of rank 0 are those of all ranks
        self.d, self.e = self._backend.broadcast_object((self.d, self.e), 0)

    def _reduce_alone(self, x: Reflected, tauq: Array, taup: Array) -> None:
        """A := B and all reflectors, by LAPACK on the rank that has A."""
        a = x.w[: self._n]
        if a.size:
            with self._backend.all_threads(self._n**3):
                if self.plan.bandwidth:
                    self._reduce_to_band(a, self.plan.bandwidth)
                    lapack.gbbrd(a, self.plan.bandwidth, self.d, self.e)
                else:
                    lapack.gebrd(a, self.d, self.e, tauq, taup)
            if x.right is not None:
                np.conjugate(a.T, out=x.right[: self._n])

    def _reduce_to_band(self, a: Array, width: int) -> None:
        """A := the upper band Q^H A P, on its diagonal and `width` others; the rest of A is lost."""
        n = self._n
        for stop in range(n % width or width, n + 1, width):  # all blocks but the first are as wide as the band
            start = max(stop - width, 0)
            w, v, c = stop - start, a[start:, start:stop], a[start:, stop:]
            # [V X] and [Y U]: V Y^H + X U^H is one product
            left, right = (np.empty((m, 2 * w), a.dtype, "F") for m in c.shape)
            t, s, product = (np.empty((m, w), a.dtype, "F") for m in (w, w, max(c.shape)))
            # A[k:, k] = H[k] [R; 0]
            lapack.geqrt(v, t)
            _unit_lower(v, left[:, :w])
            if stop == n:
                break
            # Y := A[k:, k+1:]^H V T
            gemm(1, c.T, left[:, :w], 0, product[: n - stop], conj=(True, False))
            gemm(1, product[: n - stop], t, 0, right[:, :w])
            # A[k, k+1:] - V[k] Y^H = [L, 0] G[k]^H
            rows = np.asfortranarray((c[:w] - left[:w, :w] @ right[:, :w].conj().T).conj().T)
            lapack.geqrt(rows, s)
            _unit_lower(rows, right[:, w:])
            # X := (A[k:, k+1:] U - V (Y^H U)) S
            gemm(1, c, right[:, w:], 0, product[: n - start])
            gemm(-1, left[:, :w], right[:, :w].conj().T @ right[:, w:], 1, product[: n - start])
            gemm(1, product[: n - start], s, 0, left[:, w:])
            # A := A - V Y^H - X U^H
            c[:w] = 0
            c[:w, :w] = np.tril(rows[:w].conj().T)
            gemm(-1, left[w:], right.T, 1, c[w:], conj=(False, True))
            if self.progress is not None:
                self.progress(1 - (1 - stop / n) ** 3)

    def _reduce(self, panel: Panel, x: Reflected, tauq: Array, taup: Array) -> None:
        """A := Q[k]^H A P[k] for the reflectors of a panel, which are stored."""
        n, a, (start, stop, owner, _) = self._n, x.w[: self._n], panel
        columns = self._broadcast(a, range(start, stop), owner, start)
        following = self._broadcast(a, range(stop, min(stop + 1, n)), self._owner(stop), stop)
        products = _Products(a, start, self._mine)
        # [v x v x ...] and [y u y u ...]: V Y^H + X U^H is one product
        left, right = (np.zeros((n, 2 * panel.width), self._dtype, "F") for _ in range(2))
        for k, i in enumerate(range(start, stop)):
            before, first = 2 * k, i + 1
            # v := A[i:, i] - V Y[i]^H - X U[i]^H
            v = columns[i - start :, k] - left[i:, :before] @ right[i, :before].conj()
            tauq[i] = lapack.larfg(v)
            self.d[i], v[0] = v[0].real, 1
            left[i:, before] = v
            if first == n:
                break
            # Y (V^H v) + U (X^H v), and row i without y
            lost = right[first:, :before] @ (v.conj() @ left[i:, :before]).conj()
            row = -(right[first:, :before] @ left[i, :before].conj())
            mine = self._mine[np.searchsorted(self._mine, first) :] - first
            own = a[i, len(self._mine) - len(mine) :].conj() + row[mine]
            # y := tauq (A^H v - ...), s := row^H - y, and A s
            y, s, product = products.of(v, tauq[i], own, lost[mine])
            y, s, product = self._exchanged(first, y, s, product)
            right[first:, before] = y
            # u: the reflector of s
            alpha, size, u = s[0], np.abs(s).max(), s.copy()
            taup[i] = lapack.larfg(u)
            self.e[i], u[0] = u[0].real, 1
            right[first:, before + 1] = u
            if taup[i] == 0:
                continue
            # x := taup (A u - V (Y^H u) - X (U^H u))
            if size >= self._tiny:
                e = columns[first - start :, k + 1] if first < stop else following[:, 0]
                product = (product - self.e[i] * e) / (alpha - self.e[i])
            else:  # A s has lost digits
                _, _, product = self._exchanged(first, *products.with_vector(u[mine]))
            product -= left[first:, : before + 1] @ (u.conj() @ right[first:, : before + 1]).conj()
            left[first:, before + 1] = taup[i] * product
        # A := A - V Y^H - X U^H
        j = int(np.searchsorted(self._mine, stop))
        if j < len(self._mine):
            rows = right[self._mine[j:]]
            self._backend.arrays.gemm(-1, left[stop:], rows.T, 1, a[stop:, j:], conj=(False, True))
        if x.right is not None and owner == self._backend.rank:
            j = panel.j_loc
            a[:, j : j + panel.width], x.right[:n, j : j + panel.width] = left[:, ::2], right[:, 1::2]

    def _owner(self, j: int) -> int:
        """The rank of a column; 0 of none (global)."""
        return self.plan.w.grid.rank(0, self.plan.w.columns.owner(j)) if j < self._n else 0

    @property
    def _tiny(self) -> float:
        """The size of rows below which products with them lose digits, those of numbers below the smallest normal."""
        limits = np.finfo(self._dtype)
        return float(limits.smallest_normal / limits.eps**2)

    def _broadcast(self, a: Array, columns: range, owner: int, start: int) -> Array:
        """Some columns that are together, from a row on, from their owner."""
        j, shape = int(np.searchsorted(self._mine, columns.start)), (self._n - start, len(columns))
        if not shape[0] * shape[1]:
            return np.empty(shape, self._dtype, "F")
        mine = a[start:, j : j + len(columns)]
        return broadcast(self._backend, mine, shape, owner, "a panel of a bidiagonalization")

    def _exchanged(self, first: int, y: Array, s: Array, product: Array) -> tuple[Array, Array, Array]:
        """y and s of all columns from `first` on, and the sum of the products, in the order of ranks."""
        backend, n = self._backend, self._n - first
        columns = [c[np.searchsorted(c, first) :] - first for c in self._columns]
        counts = [2 * len(c) + n for c in columns]
        out = np.empty(sum(counts), self._dtype)
        gathered = backend.plain_channel.all_gather(np.concatenate((y, s, product[-n:])), out, counts)
        backend.wait(gathered.done, "a column of a bidiagonalization")
        all_y, all_s, total, at = np.empty(n, self._dtype), np.empty(n, self._dtype), np.zeros(n, self._dtype), 0
        for c in columns:
            all_y[c], all_s[c] = out[at : at + len(c)], out[at + len(c) : at + 2 * len(c)]
            total += out[at + 2 * len(c) : at + 2 * len(c) + n]
            at += 2 * len(c) + n
        return all_y, all_s, total


def _unit_lower(x: Array, z: Array) -> None:
    """Z := the reflectors that `geqrt` leaves in X, with their ones."""
    z[...] = np.tril(x, -1)
    np.fill_diagonal(z, 1)


class _Products:
    """Products of this rank's columns, from the row `start` on, tile by tile."""

    def __init__(self, a: Array, start: int, mine: Array) -> None:
        rows, n_loc, dtype = len(a) - start, len(mine), a.dtype
        self._v, self._product = np.zeros(rows, dtype), np.zeros(rows, dtype)
        self._t, self._s = np.zeros(n_loc, dtype), np.zeros(n_loc, dtype)
        self._tiles: list[tuple[slice, Callable[[], None], Callable[[], None]]] = []
        width = max(1, _TILE_NBYTES // (rows * a.itemsize))
        for j in range(int(np.searchsorted(mine, start)), n_loc, width):
            tile, columns = a[start:, j : j + width], slice(j, min(j + width, n_loc))
            multiply = prepared_gemv(tile, self._s[columns], self._product)
            self._tiles.append((columns, prepared_gemv(tile, self._v, self._t[columns], adjoint=True), multiply))

    def of(self, v: Array, tau: Any, row: Array, lost: Array) -> tuple[Array, Array, Array]:
        """y and s in the last columns, for those elements of the row and of what y loses, and A s."""
        first, t, s = len(self._t) - len(row), self._t, self._s
        self._v[: -len(v)], self._v[-len(v) :] = 0, v
        t[...] = self._product[...] = 0
        base = np.zeros_like(s)
        base[first:] = row + tau * lost
        for columns, multiply_adjoint, multiply in self._tiles:
            # s := row^H - tau (A^H v - ...)
            multiply_adjoint()
            np.multiply(t[columns], -tau, out=s[columns])
            s[columns] += base[columns]
            s[columns.start : first] = 0
            multiply()
        return tau * (t[first:] - lost), s[first:], self._product

    def with_vector(self, u: Array) -> tuple[Array, Array, Array]:
        """A u, for the elements of u in the last columns, as the product of `of`."""
        self._s[...], self._s[len(self._s) - len(u) :] = 0, u
        self._product[...] = 0
        for _, _, multiply in self._tiles:
            multiply()
        return u, u, self._product
