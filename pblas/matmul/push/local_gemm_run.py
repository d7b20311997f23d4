"""A plan without communication on an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.backends.push_engine import EXACT
from pblas.matmul.index_runs import IndexRuns, gemm_runs
from pblas.matmul.push.base_run import Pushed

if TYPE_CHECKING:
    from pblas.backends.dtypes import ProductDtypes
    from pblas.backends.push_engine import GemmModes
    from pblas.matmul.operands import Operands, Orders
    from pblas.matmul.product_plan import ProductPlan


class RunLocal(Pushed):
    """Runs a LocalGemm plan on an engine, on one rank."""

    def __init__(
        self, plan: ProductPlan, backend: Any, dtypes: ProductDtypes, orders: Orders, modes: GemmModes = EXACT
    ) -> None:
        del dtypes, orders
        self._engine, self._modes = backend.engine(plan.queue), modes
        self._m = IndexRuns.of_rows(plan.oriented, backend.rank)

    def run(self, x: Operands) -> None:
        """D_loc = alpha op(A)_loc op(B)_loc + beta C_loc."""
        with self._engine.call(None):
            x, k = self._converted(x), x.right.shape[0]
            if x.alpha == 0 or not k:
                self._engine.scale("main", x.beta, x.result if x.old is None else x.old, x.result)
                self._engine.finish("main", x.finish, x.result)
                return
            if x.old is not None and x.old is not x.result:
                self._engine.copy("main", x.old, x.result)
            n, gemm = IndexRuns.whole(x.result.shape[1]), self._gemm("main", x)
            operands = x.alpha, x.left, x.right, x.beta, x.result
            gemm_runs(*operands, self._m, n, IndexRuns.whole(k), x.conj, gemm, finish=x.finish)
