"""LocalGemm: every rank multiplies its local operands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.matmul.index_runs import IndexRuns, gemm_runs

if TYPE_CHECKING:
    import numpy as np

    from pblas.backends.device import Device
    from pblas.backends.dtypes import ProductDtypes
    from pblas.matmul.operands import Operands
    from pblas.matmul.product_plan import ProductPlan


class RunScaling:
    """Runs any plan without a product: K is empty, or alpha is 0."""

    workspace_nbytes = 0
    peers_read = False
    """Whether peers read memory of this rank that may be overwritten before the next agreement (global)."""

    def __init__(self, backend: Any) -> None:
        self._arrays = backend.arrays

    def publish(self, operands: Operands) -> bool:
        """False: peers read nothing."""
        return False

    def prepare(self, *, scratch: bool) -> bool:
        """False: no agreement is needed."""
        return False

    def run(self, x: Operands) -> None:
        """D_loc = beta C_loc."""
        self._arrays.add_scaled(x.beta, x.result if x.old is None else x.old, 0.0, x.result)


class RunLocalGemm(RunScaling):
    """Runs a LocalGemm plan on one rank."""

    def __init__(self, plan: ProductPlan, backend: Any, dtypes: ProductDtypes, *unused: Any) -> None:
        super().__init__(backend)
        self._total = dtypes.total
        self._m = IndexRuns.of_rows(plan.oriented, backend.rank)

    def run(self, x: Operands) -> None:
        """D_loc = alpha op(A)_loc op(B)_loc + beta C_loc."""
        arrays = self._arrays
        total = widened(x, self._total, arrays)
        n, k = IndexRuns.whole(total.shape[1]), IndexRuns.whole(x.right.shape[0])
        gemm_runs(
            x.alpha, x.left, x.right, x.beta, total, self._m, n, k, x.conj, arrays.gemm, arrays.traits.packs_blocks
        )
        if total is not x.result:
            arrays.assign(total, x.result)


def widened(x: Operands, total: np.dtype[Any], arrays: Device) -> Any:
    """Accumulator of the product: D itself with C in it, or a 32-bit copy if D has 16 bits."""
    sums = x.result if total == x.result.dtype else arrays.like(x.result, total)
    if x.old is not None and x.old is not sums:
        arrays.assign(x.old, sums)
    return sums
