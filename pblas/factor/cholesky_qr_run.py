"""Executor of a QR factorization by Cholesky factorizations of Gram matrices: the work of one rank on its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import get_lapack_funcs

if TYPE_CHECKING:
    from pblas.backends.dtypes import Array
    from pblas.backends.host_ranks import HostRanks
    from pblas.factor.qr_plan import CholeskyQrPlan


_HARMLESS = 1 / 64
"""norm(Q^H Q - I), estimated, after one pass without a shift: the next pass then is the last one."""
_WELL_CONDITIONED = 100.0
"""Condition of an R, in the 1-norm, with whose inverse rows are multiplied."""
_ROWS = 1 << 17
"""Rows that are multiplied at a time where Q takes the place of A: they are copied first."""


def inverted(r: Array) -> tuple[Array, float]:
    """R^-1 of an upper triangle, and the condition of R in the 1-norm: infinity if it has no inverse.

    >>> inverted(np.array([[2.0, 0.0], [0.0, 4.0]]))[1]
    2.0
    """
    trtri: Any = get_lapack_funcs("trtri", (r,))
    inverse, info = trtri(r)
    condition = float(np.linalg.norm(r, 1) * np.linalg.norm(inverse, 1)) if not info else np.inf
    return inverse, condition


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

    def divide(self, x: Array, w: Array, r: Array) -> None:
        """W := X R^-1: a solve, or a faster product with R^-1, whose error grows with the condition of R."""
        arrays, n = self._backend.arrays, len(r)
        if w.size:
            inverse, condition = inverted(r.astype(np.result_type(r, np.float64)))
            multiplies = condition <= _WELL_CONDITIONED
            memory = arrays.array(arrays.empty(r.nbytes), (n, n), r.dtype)
            self._backend.copy(np.asfortranarray(inverse.astype(r.dtype) if multiplies else r), memory)
            if not multiplies:
                if x is not w:
                    arrays.assign(x, w)
                arrays.trsm(memory.T, w.T, uplo="L", inverts=False)
            elif x is not w:
                arrays.gemm(1, x, memory, 0, w)
            else:
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
        (m, n), eps = self._plan.a.shape, float(np.finfo(self._dtype).eps) / 2
        return min(11 * (m * n + n * (n + 1)) * eps, float(np.sqrt(eps)) / 8)
