"""Executor of QR by block columns: A = Q R, and the product of a block of Householder reflectors with a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.execute.factorization.factorization import RunFactorization

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pblas.backends.dtypes import Array
    from pblas.plans.factorization import Panel


def apply_block(arrays: Any, panel: Array, k: int, c: Array, *, adjoint: bool, conj: bool = False) -> None:
    """C := H C for a block of reflectors, H = I - V T V^H.

    Args:
        arrays: the operations of this rank (local).
        panel: V from its diagonal on, with R on and above the diagonal; below it T (local).
        k: number of reflectors (global).
        c: the rows of C that H changes (local).
        adjoint: multiply with H^H instead (global).
        conj: multiply with the conjugate of H or of H^H (global).

    Source: Schreiber and Van Loan, A storage-efficient WY representation for products of Householder
        transformations, 1989; LAPACK, xLARFB.
    """
    m, n_loc = c.shape
    if not k or not n_loc:
        return
    copied = m if arrays.copies_reflectors else k
    head, tail, t = arrays.unit_lower(panel[:copied, :k]), panel[copied:m, :k], panel[m : m + k, :k]
    both = arrays.scratch((k, 2 * n_loc), c.dtype)
    w, tw = both[:, :n_loc], both[:, n_loc:]
    # W = V^H C
    arrays.gemm(1, head.T, c[:copied], 0, w, conj=(not conj, False))
    if copied < m:
        arrays.gemm(1, tail.T, c[copied:], 1, w, conj=(not conj, False))
    # T W, or T^H W
    arrays.gemm(1, t.T if adjoint else t, w, 0, tw, conj=(adjoint != conj, False))
    # C -= V T W
    arrays.gemm(-1, head, tw, 1, c[:copied], conj=(conj, False))
    if copied < m:
        arrays.gemm(-1, tail, tw, 1, c[copied:], conj=(conj, False))


class RunQr(RunFactorization):
    """Runs a QrPlan on one rank."""

    def factor(self, s: int) -> None:
        """W[k:, k] = H[k] R[k, k] by the library, and T[k] below it; T of each block if it takes several at once."""
        panel = self._steps[s]
        columns, m = self.w[:, panel.j_loc : panel.j_loc + panel.width], self.plan.a.m
        k = self._reflectors(panel)
        self._arrays.qr(columns[panel.start : m], columns[m : m + min(k, self.plan.w.m - m), :k])

    def update(self, s: int, panel: Array, first: int, last: int, pieces: Iterable[tuple[int, int]]) -> None:
        """C[k:] = H[k]^H C[k:]."""
        del pieces  # all have arrived
        step = self._steps[s]
        c = self.w[step.start : self.plan.a.m, first:last]
        apply_block(self._arrays, panel, self._reflectors(step), c, adjoint=True)

    def _reflectors(self, panel: Panel) -> int:
        """Number of reflectors of a panel: fewer than columns where the rows end (global)."""
        return min(panel.stop, self.plan.a.m) - panel.start
