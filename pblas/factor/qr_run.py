"""Executor of QR by block columns: A = Q R, and the product of a block of Householder reflectors with a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas.factor.factorization_run import RunFactorization

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pblas.backends.device import Device
    from pblas.backends.dtypes import Array
    from pblas.factor.factorization_plan import Panel


def apply_block(arrays: Device, panel: Array, k: int, c: Array, *, adjoint: bool, conj: bool = False) -> None:
    """C := H C for a block of reflectors, H = I - V T V^H."""
    m, n_loc = c.shape
    if k and n_loc:
        arrays.multiply_q(panel[:m, :k], panel[m : m + k, :k], c, adjoint=adjoint, conj=conj)


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
