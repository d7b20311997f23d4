"""Executor of a QR factorization by Cholesky factorizations of Gram matrices: the work of one rank on its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.plans.cholesky_qr import CholeskyQrPlan


_WELL_CONDITIONED = 100.0
"""Condition of an R, in the 1-norm, with whose inverse rows are multiplied."""
_ROWS = 1 << 17
"""Rows that are multiplied at a time: they are copied first."""


class RunCholeskyQr:
    """Runs a CholeskyQrPlan on one rank: Q takes the place of its rows.

    Args:
        plan: what to run (global).
        backend: ranks, memory and messages (global).
        dtype: of the matrix (global).
    """

    workspace_nbytes = 0
    """All memory belongs to the factor (local)."""

    def __init__(self, plan: CholeskyQrPlan, backend: HostRanks, dtype: np.dtype[Any]) -> None:
        self._plan, self._backend, self._dtype = plan, backend, dtype

    def gram(self, w: Array) -> Array:
        """W^H W of this rank's rows, in host memory (local)."""
        arrays, n = self._backend.arrays, self._plan.a.n
        arrays.begin()
        product: Array = arrays.gram(w) if w.size else np.zeros((n, n), w.dtype)
        return product

    def divide(self, w: Array, r: Array) -> None:
        """W := W R^-1: a solve, or a faster product with R^-1, whose error grows with the condition of R."""
        arrays, n = self._backend.arrays, len(r)
        if w.size:
            inverse = np.linalg.inv(r.astype(np.result_type(r, np.float64)))
            multiplies = np.linalg.norm(r, 1) * np.linalg.norm(inverse, 1) <= _WELL_CONDITIONED
            memory = arrays.array(arrays.empty(r.nbytes), (n, n), r.dtype)
            self._backend.copy(np.asfortranarray(inverse.astype(r.dtype) if multiplies else r), memory)
            for start in range(0, len(w), _ROWS) if multiplies else ():
                rows = w[start : start + _ROWS]
                copy = arrays.scratch(rows.shape, w.dtype)
                arrays.assign(rows, copy)
                arrays.gemm(1, copy, memory, 0, rows)
            if not multiplies:
                arrays.trsm(memory.T, w.T, uplo="L", inverts=False)
            arrays.settle()

    def shift(self) -> float:
        """The shift of the first Gram matrix over its norm. The bound of the source is too large in 32 bits."""
        (m, n), eps = self._plan.a.shape, float(np.finfo(self._dtype).eps) / 2
        return min(11 * (m * n + n * (n + 1)) * eps, float(np.sqrt(eps)) / 8)
