"""Executors of QR: by block columns, by a tree of ranks (TSQR), by Gram matrices (CholeskyQR), with column pivoting.

By block columns, in the loop over the panels of `RunFactorization`, with H[k] = I - V T V^H:

    W[k:, k] = H[k] [R[k, k]; 0]                      (factor panel k)
    W[k:, j] = H[k]^H W[k:, j]       for j > k        (update of the columns j with panel k)
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.linalg import get_blas_funcs, get_lapack_funcs

from pblas.backends.cpu.blas import gemm
from pblas.backends.cpu.lapack import larfg
from pblas.factor.factorization_run import RunFactorization, RunWithoutPanels

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pblas.backends.device import Device
    from pblas.backends.dtypes import Array, Dtype
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.factorization_plan import Panel
    from pblas.factor.qr_plan import CholeskyQrPlan, PivotedQrPlan, TsqrPlan


TAG_R = 1042
_HARMLESS = 1 / 64  # norm(Q^H Q - I), estimated, after one pass without a shift: the next pass then is the last one
_WELL_CONDITIONED = 100.0  # condition of an R, in the 1-norm, with whose inverse rows are multiplied
_ROWS = 1 << 17  # rows that are multiplied at a time where Q takes the place of A: they are copied first


class RunQr(RunFactorization):
    """Runs a QrPlan on one rank."""

    def factor(self, k: int) -> None:
        """Factor the panel from its diagonal on, by the library; T of each block if it takes several at once."""
        panel = self._steps[k]
        columns, m, count = self.columns_of(k), self.plan.a.m, self._reflectors(panel)
        # W[k:, k] = H[k] [R[k, k]; 0]
        self._arrays.qr(columns[panel.start : m], columns[m : m + min(count, self.plan.w.m - m), :count])

    def update(self, k: int, panel: Array, j0: int, j1: int, pieces: Iterable[tuple[int, int]]) -> None:
        """Apply the reflectors to the local columns j0..j1-1."""
        del pieces  # all have arrived
        step = self._steps[k]
        c = self.w[step.start : self.plan.a.m, j0:j1]
        # W[k:, j] = H[k]^H W[k:, j]
        apply_block(self._arrays, panel, self._reflectors(step), c, adjoint=True)

    def _reflectors(self, panel: Panel) -> int:
        """Number of reflectors of a panel: fewer than columns where the rows end (global)."""
        return min(panel.stop, self.plan.a.m) - panel.start


def apply_block(arrays: Device, panel: Array, k: int, c: Array, *, adjoint: bool, conj: bool = False) -> None:
    """C := H C, or H^H C, for a block of k reflectors, with T in the rows of the panel below V."""
    m, n_loc = c.shape
    if k and n_loc:
        # C := (I - V T V^H) C
        arrays.multiply_q(panel[:m, :k], panel[m : m + k, :k], c, adjoint=adjoint, conj=conj)


class Tree(NamedTuple):
    """Q beside W on one rank: T of each chunk of rows, side by side; V, n x n, and T of each R that it received."""

    t: Array
    v: list[Array]
    tv: list[Array]


class RunTsqr(RunWithoutPanels):
    """Runs a TsqrPlan on one rank: each rank factors its rows, then pairs of ranks factor their R."""

    def __init__(self, plan: TsqrPlan, backend: HostRanks, dtype: Dtype) -> None:
        super().__init__(plan, backend, dtype)
        self._inner, self._chunks, self._merges = plan.inner, plan.chunks(backend.rank), plan.merges(backend.rank)
        self.tree: Tree  # the rest of Q of the last execution (local)

    def run(self, w: Array) -> None:
        """Factor the rows of this rank, then R with the R of its peers in the tree."""
        n, channel = self._w.n, self._backend.channel
        for i, (start, stop) in enumerate(self._chunks):
            t = self.tree.t[:, i * n : (i + 1) * n]
            if i == 0:  # W[0] = Q[0] R
                self._arrays.qr(w[start:stop], t)
            else:  # [R; W[i]] = Q[i] [R'; 0]
                self._arrays.qr_stacked(w[:n], w[start:stop], t)
        self._backend.sync()
        pairs = iter(zip(self.tree.v, self.tree.tv, strict=True))
        for merge in self._merges:
            if merge.receives:  # [R; R of the peer] = Q [R'; 0]
                v, t = next(pairs)
                arrived = channel.receive(v, merge.peer, TAG_R)
                self._backend.wait(arrived.done, f"R of rank {merge.peer}")
                self._arrays.qr_stacked(w[:n], v, t, triangular=True)
            else:
                left = channel.send(w[:n], merge.peer, TAG_R)
                self._backend.wait(left.done, "sending R")

    def publish(self, w: Array) -> bool:
        """Allocate the memory of the tree; nothing is published."""
        n, received = self._w.n, [merge for merge in self._merges if merge.receives]
        self.tree = Tree(
            self._new(self._inner, n * len(self._chunks)),
            [self._new(n, n) for _ in received],
            [self._new(self._inner, n) for _ in received],
        )
        return super().publish(w)

    def taken_tree(self) -> Tree:
        """The rest of Q, which the executor forgets (local)."""
        tree = self.tree
        del self.tree
        return tree

    def _new(self, m: int, n: int) -> Array:
        """New memory of this rank, in Fortran order (local)."""
        x: Array = self._arrays.array(self._arrays.empty(self._dtype.itemsize * m * n), (m, n), self._dtype)
        return x


def inverted(r: Array) -> tuple[Array, float]:
    """R^-1 of an upper triangle, and the condition of R in the 1-norm: infinity if it has no inverse.

    >>> inverted(np.array([[2.0, 0.0], [0.0, 4.0]]))[1]
    2.0
    """
    trtri: Any = get_lapack_funcs("trtri", (r,))
    inverse, info = trtri(r)
    condition = float(np.linalg.norm(r, 1) * np.linalg.norm(inverse, 1)) if not info else np.inf
    return inverse, condition


class RunCholeskyQr(RunWithoutPanels):
    """Runs a CholeskyQrPlan on one rank: Q takes the place of its rows. `orthonormalized` has the loop over the passes.

    G = W^H W                    (`gram`, then summed over the ranks)
    R^H R = G, W := W R^-1       (`divide`)
    """

    def __init__(self, plan: CholeskyQrPlan, backend: HostRanks, dtype: Dtype) -> None:
        super().__init__(plan, backend, dtype)
        self._shape = plan.a.shape

    def gram(self, w: Array) -> Array:
        """W^H W of this rank's rows, in host memory (local)."""
        n = self._shape[1]
        self._arrays.begin()
        product: Array = self._arrays.gram(w) if w.size else np.zeros((n, n), w.dtype)
        return product

    def divide(self, x: Array, w: Array, r: Array) -> None:
        """W := X R^-1: a solve, or a faster product with R^-1, whose error grows with the condition of R."""
        arrays, n = self._arrays, len(r)
        if not w.size:
            return
        inverse, condition = inverted(r.astype(np.result_type(r, np.float64)))
        multiplies = condition <= _WELL_CONDITIONED
        memory = arrays.array(arrays.empty(r.nbytes), (n, n), r.dtype)
        self._backend.copy(np.asfortranarray(inverse.astype(r.dtype) if multiplies else r), memory)
        if not multiplies:  # W = X R^-1, as W^T = R^-T X^T
            if x is not w:
                arrays.assign(x, w)
            arrays.trsm(memory.T, w.T, uplo="L", inverts=False)
        elif x is not w:  # W = X (R^-1)
            arrays.gemm(1, x, memory, 0, w)
        else:  # W = W (R^-1), some rows at a time
            for start in range(0, len(w), _ROWS):
                rows = w[start : start + _ROWS]
                copy = arrays.scratch(rows.shape, w.dtype)
                arrays.assign(rows, copy)
                arrays.gemm(1, copy, memory, 0, rows)
        arrays.synchronize()

    def needs_shift(self, r: Array) -> bool:
        """Whether Q R^-1 with the R of an unshifted Gram matrix may be far from orthonormal (global)."""
        eps = float(np.finfo(self._dtype).eps) / 2
        return not inverted(r)[1] ** 2 * len(r) * eps <= _HARMLESS

    def shift(self) -> float:
        """The shift of the first Gram matrix over its norm. The bound of the source is too large in 32 bits."""
        (m, n), eps = self._shape, float(np.finfo(self._dtype).eps) / 2
        return min(11 * (m * n + n * (n + 1)) * eps, float(np.sqrt(eps)) / 8)


class RunPivotedQr(RunWithoutPanels):
    """Runs a PivotedQrPlan on one rank, which has whole columns and keeps the norms of their rows from i on.

    For each column i of a block, with the reflectors V of the columns before it, the matrix at that time is C - V G:

        p = argmax of norm(W[i:, j]) over j >= i;  columns i and p of W and G change places
        v, tau: the reflector of W[i:, i] - V[i:] G[:, i]                     (on all ranks)
        G[i, j] := conj(tau) (v^H W[i:, j] - (v^H V[i:]) G[:, j])     for j > i
        W[i, j] -= V[i] G[:, j]
        C -= V G                                                      (trailing update, after the block)

    A block ends early if a norm has lost its digits, since it is computed from the updated elements.

    Source: LAPACK xLAQPS; Quintana-Orti, Sun, Bischof, A BLAS-3 version of the QR factorization with column pivoting,
        1998.
    """

    def __init__(self, plan: PivotedQrPlan, backend: HostRanks, dtype: Dtype) -> None:
        super().__init__(plan, backend, dtype)
        self._count, self._width = plan.count, plan.width
        self._nrm2 = get_blas_funcs("nrm2", dtype=dtype)
        self._tolerance = sqrt(float(np.finfo(dtype).eps) / 2)
        _, columns = plan.w.global_ranges(backend.rank)
        self._columns = np.array([j for ends in columns for j in range(*ends)], np.intp)
        """The global numbers of this rank's columns (local)."""
        self.tau = np.zeros(plan.count, dtype)  # tau of the last execution (global)
        self.order = np.arange(plan.w.n)  # of each column of A P, the column of A that it was (global)

    def run(self, w: Array) -> None:
        """Factor W, or a copy in host memory if W is in that of a GPU."""
        host = self._backend.reading(w)
        self.order = np.arange(self._w.n)
        norms = np.array([self._nrm2(column) if len(column) else 0.0 for column in host.T])
        state = _Pivoting(host, norms, norms.copy(), np.zeros(len(norms), bool))
        start = 0
        while start < self._count:
            start = self._factor_block(state, start, min(start + self._width, self._count))
        if host is not w:
            self._backend.copy(host, w)

    def _factor_block(self, state: _Pivoting, start: int, stop: int) -> int:
        """Factor a block that ends before column `stop`; the first column after it."""
        w, stale, i = state.w, state.stale, start
        v, g = (np.zeros(shape, self._dtype, "F") for shape in ((self._w.m, stop - start), (stop - start, w.shape[1])))
        while i < stop:
            p = self._longest(state.norms, i, is_stale=bool(stale.any()))
            if p < 0:
                break
            # W[:, i], W[:, p] = W[:, p], W[:, i];  v, tau: the reflector of W[i:, i]   (broadcast)
            k = i - start
            v[i:, k] = self._exchange(state, i, p, v[:, :k], g[:k])[i:]
            v[i, k] = 1
            self.order[[i, p]] = self.order[[p, i]]
            first = int(np.searchsorted(self._columns, i + 1))
            c, of_c, u = w[i:, first:], g[: k + 1, first:], v[i:, k].conj()
            if c.size:
                # G[i, j] := conj(tau) (v^H W[i:, j] - (v^H V[i:]) G[:, j])
                of_c[k] = self.tau[i].conj() * (u @ c - (u @ v[i:, :k]) @ of_c[:k])
                # W[i, j] -= V[i] G[:, j]
                c[0] -= v[i, : k + 1] @ of_c
                self._update_norms(c[0], state, first)
            i += 1
        # C -= V G   (trailing update)
        first, k = int(np.searchsorted(self._columns, i)), i - start
        c = w[i:, first:]
        if c.size:
            gemm(-1, v[i:, :k], g[:k, first:], 1, c)
        for j in np.flatnonzero(stale):
            state.norms[j] = state.exact[j] = self._nrm2(w[i:, j]) if len(w) > i else 0
        stale[...] = False
        return i

    def _longest(self, norms: Array, i: int, *, is_stale: bool) -> int:
        """The longest column from i on: of equal ones the first, before all a NaN; -1 if a rank lacks a norm."""
        first, mine = int(np.searchsorted(self._columns, i)), None
        if first < len(norms):
            k = first + int(norms[first:].argmax())
            mine = norms[k], int(self._columns[k])
        parts = self._backend.gather((is_stale, mine))
        if any(stale for stale, _ in parts):
            return -1
        found = (x for _, x in parts if x is not None)
        return min(found, key=lambda x: (not np.isnan(x[0]), -x[0], x[1]))[1]

    def _exchange(self, state: _Pivoting, i: int, p: int, v: Array, g: Array) -> Array:
        """Columns i and p of W and G change places, with norms; the new column i, with its reflector, on all ranks."""
        w, mine = state.w, dict[int, Any]()
        at = {j: int(np.searchsorted(self._columns, j)) for j in (i, p) if j in self._columns}
        if p in at:
            column = w[:, at[p]].copy()
            column[i:] -= v[i:] @ g[:, at[p]]
            mine[p] = column, larfg(column[i:])
        if i in at and i != p:
            mine[i] = w[:, at[i]].copy(), g[:, at[i]].copy(), state.of_column(at[i])
        both = {j: found for part in self._backend.gather(mine) for j, found in part.items()}
        column, self.tau[i] = both[p]
        if p in at and i != p:
            w[:, at[p]], g[:, at[p]], (state.norms[at[p]], state.exact[at[p]]) = both[i]
        if i in at:
            w[:, at[i]] = column
        return np.array(column)

    def _update_norms(self, row: Array, state: _Pivoting, first: int) -> None:
        """The norms without their first elements `row`; stale are those whose digits cancel.

        `exact` has the norms that were last computed from the elements: LAPACK's vn2, where `norms` is its vn1.
        Source: Drmac and Bujanovic, On the failure of rank-revealing QR factorization software, 2008; LAPACK, xLAQP2.
        """
        norms, exact = state.norms[first:], state.exact[first:]
        nonzero = norms != 0
        left = np.zeros_like(norms)
        np.divide(np.abs(row), norms, out=left, where=nonzero)
        left = np.maximum(1 - left**2, 0)
        lost = np.zeros_like(norms)
        np.divide(norms, exact, out=lost, where=nonzero)
        norms *= np.sqrt(left)
        state.stale[first:] |= nonzero & ~(left * lost**2 > self._tolerance)


class _Pivoting(NamedTuple):
    """This rank's columns, the norms of their rows that remain, those last computed, and which are needed anew."""

    w: Array
    norms: Array
    exact: Array
    stale: Array

    def of_column(self, j: int) -> tuple[Any, Any]:
        """Both norms of a column."""
        return self.norms[j], self.exact[j]
