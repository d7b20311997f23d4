"""Executor of QR with column pivoting: A P = Q R, column by column.

Each rank has whole columns. In step i, with C the columns after i:

    the longest column p of i, i + 1, ... is found from the norms that all ranks keep of their columns
    columns i and p change places; H_i of the new column i is sent to all ranks
    C[i:] := H_i^H C[i:], and the norms of C[i + 1:] follow from those of C[i:]
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import get_blas_funcs

from pblas.backends.cpu.lapack import larfg

if TYPE_CHECKING:
    from collections.abc import Callable

    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.qr_plan import PivotedQrPlan


class RunPivotedQr:
    """Runs a PivotedQrPlan on one rank: W is factored in place, and `tau` and `order` are the rest.

    Args:
        plan: what to run (global).
        backend: ranks, memory and messages (global).
        dtype: of the matrix (global).
    """

    peers_read = False
    """No peer reads this rank's memory: columns are messages (global)."""
    info = 0
    """LAPACK's INFO (global)."""
    workspace_nbytes = 0
    """W is all (local)."""

    def __init__(self, plan: PivotedQrPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        self._plan, self._backend = plan, backend
        self._nrm2 = get_blas_funcs("nrm2", dtype=dtype)
        self._tolerance = sqrt(float(np.finfo(dtype).eps) / 2)
        _, columns = plan.w.global_ranges(backend.rank)
        self._columns = np.array([j for ends in columns for j in range(*ends)], np.intp)
        """The global numbers of this rank's columns (local)."""
        self.progress: Callable[[float], None] | None = None
        """Unused: ScaLAPACK's calls report no progress (local)."""
        self.tau = np.zeros(plan.count, dtype)
        """Tau of the last execution (global)."""
        self.order = np.arange(plan.w.n)
        """Of each column of A P, the column of A that it was (global)."""

    def publish(self, w: Array) -> bool:
        """Nothing is published."""
        assert w.shape == self._plan.w.local_shape(self._backend.rank), "W is as planned"
        return False

    def prepare(self, *, scratch: bool) -> bool:
        """Nothing is staged."""
        assert not scratch, "no array is published"
        return False

    def finish(self) -> None:
        """Nothing remains to be done."""

    def run(self, w: Array) -> None:
        """Factor W, or a copy in host memory if W is in that of a GPU."""
        host = self._backend.reading(w)
        self._factor(host)
        if host is not w:
            self._backend.copy(host, w)

    def _factor(self, w: Array) -> None:
        """Factor W, in host memory."""
        self.order = np.arange(self._plan.w.n)
        norms = np.array([self._nrm2(column) for column in w.T])
        computed = norms.copy()
        for i in range(self._plan.count):
            p = self._longest(norms, i)
            column = self._exchange(w, i, p, norms, computed)
            self.order[[i, p]] = self.order[[p, i]]
            first = int(np.searchsorted(self._columns, i + 1))
            c = w[i:, first:]
            if c.size:
                v = column[i:]
                v[0] = 1
                # C -= conj(tau) v (v^H C)
                c -= np.outer(v * self.tau[i].conj(), v.conj() @ c)
                self._update(c, norms[first:], computed[first:])

    def _longest(self, norms: Array, i: int) -> int:
        """The longest column from i on: of equal ones the first, and before all a NaN."""
        first, mine = int(np.searchsorted(self._columns, i)), None
        if first < len(norms):
            k = first + int(norms[first:].argmax())
            mine = norms[k], int(self._columns[k])
        found = (x for x in self._backend.gather(mine) if x is not None)
        return min(found, key=lambda x: (not np.isnan(x[0]), -x[0], x[1]))[1]

    def _exchange(self, w: Array, i: int, p: int, norms: Array, computed: Array) -> Array:
        """Columns i and p change places, with their norms; the new column i, with its reflector, on all ranks."""
        mine: dict[int, Any] = {}
        at = {j: int(np.searchsorted(self._columns, j)) for j in (i, p) if j in self._columns}
        if p in at:
            column = w[:, at[p]].copy()
            mine[p] = column, larfg(column[i:])
        if i in at and i != p:
            mine[i] = w[:, at[i]].copy(), (norms[at[i]], computed[at[i]])
        both = {j: found for part in self._backend.gather(mine) for j, found in part.items()}
        column, self.tau[i] = both[p]
        if i in at:
            w[:, at[i]] = column
        if p in at and i != p:
            w[:, at[p]], (norms[at[p]], computed[at[p]]) = both[i]
        return np.array(column)

    def _update(self, c: Array, norms: Array, computed: Array) -> None:
        """The norms of C[1:], from those of C: computed from the elements where cancellation would spoil them.

        Source: Drmac and Bujanovic, On the failure of rank-revealing QR factorization software, 2008; LAPACK, xLAQP2.
        """
        nonzero = norms != 0
        left = np.zeros_like(norms)
        np.divide(np.abs(c[0]), norms, out=left, where=nonzero)
        left = np.maximum(1 - left**2, 0)
        lost = np.zeros_like(norms)
        np.divide(norms, computed, out=lost, where=nonzero)
        norms *= np.sqrt(left)
        for k in np.flatnonzero(nonzero & ~(left * lost**2 > self._tolerance)):
            norms[k] = computed[k] = self._nrm2(c[1:, k]) if len(c) > 1 else 0
