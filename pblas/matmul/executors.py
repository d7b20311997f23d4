"""Executors: one file per plan. An executor is built once per planned operation and run many times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.matmul.allgather_gemm_run import RunAllGatherGemm
from pblas.matmul.gemm_reduce_run import RunGemmReduce
from pblas.matmul.local_gemm_run import RunLocalGemm
from pblas.matmul.one_dimensional_plan import AllGatherGemm, GemmAllReduce, GemmReduceScatter, LocalGemm
from pblas.matmul.push.allgather_gemm_run import RunPushGather
from pblas.matmul.push.base_run import Pushed
from pblas.matmul.push.gemm_reduce_run import RunPushReduce
from pblas.matmul.push.local_gemm_run import RunLocal
from pblas.matmul.summa_a_run import RunSummaA
from pblas.matmul.summa_run import RunSummaC
from pblas.matmul.summa_plan import SummaA, SummaC

if TYPE_CHECKING:
    from pblas.backends.dtypes import ProductDtypes
    from pblas.backends.push_engine import GemmModes
    from pblas.core.operation import Executor
    from pblas.matmul.operands import Orders
    from pblas.matmul.product_plan import ProductPlan


_EXECUTORS: dict[type[ProductPlan], Any] = {
    LocalGemm: RunLocalGemm,
    AllGatherGemm: RunAllGatherGemm,
    GemmReduceScatter: RunGemmReduce,
    GemmAllReduce: RunGemmReduce,
    SummaC: RunSummaC,
    SummaA: RunSummaA,
}
_PUSHED: dict[type[ProductPlan], Any] = {
    LocalGemm: RunLocal,
    AllGatherGemm: RunPushGather,
    GemmReduceScatter: RunPushReduce,
    GemmAllReduce: RunPushReduce,
}


def executor(plan: ProductPlan, backend: Any, dtypes: ProductDtypes, orders: Orders) -> Executor:
    """**Collective.** The executor of a plan, with its workspace."""
    runner: Executor = _EXECUTORS[type(plan)](plan, backend, dtypes, orders)
    return runner


def pushed(plan: ProductPlan, backend: Any, dtypes: ProductDtypes, orders: Orders, modes: GemmModes) -> Pushed:
    """**Collective.** The executor of a plan of the push transport, which runs on the backend's engine."""
    runner: Pushed = _PUSHED[type(plan)](plan, backend, dtypes, orders, modes)
    return runner
