"""Executors: one file per plan. An executor is built once per planned operation and run many times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.execute.one_dimensional.allgather_gemm import RunAllGatherGemm
from pblas.execute.one_dimensional.gemm_reduce import RunGemmReduce
from pblas.execute.one_dimensional.local_gemm import RunLocalGemm
from pblas.execute.push.allgather_gemm import RunPushGather
from pblas.execute.push.base import Pushed
from pblas.execute.push.gemm_reduce import RunPushReduce
from pblas.execute.push.local_gemm import RunLocal
from pblas.execute.summa.stationary_a import RunSummaA
from pblas.execute.summa.stationary_c import RunSummaC
from pblas.plans.one_dimensional import AllGatherGemm, GemmAllReduce, GemmReduceScatter, LocalGemm
from pblas.plans.summa import SummaA, SummaC

if TYPE_CHECKING:
    from pblas.backends.dtypes import ProductDtypes
    from pblas.backends.push_engine import GemmModes
    from pblas.core.operation import Executor
    from pblas.execute.operands import Orders
    from pblas.plans.plan import ProductPlan


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
    """**Collective.** The executor of a plan, with its workspace.

    Args:
        plan: what to run (global).
        backend: ranks, memory and messages (global).
        dtypes: of the matrices and of partial products that travel, in the plan's orientation (global).
        orders: storage orders of the operands in the plan's orientation (global).

    Raises:
        WorkspaceError: too little shared memory.
    """
    runner: Executor = _EXECUTORS[type(plan)](plan, backend, dtypes, orders)
    return runner


def pushed(plan: ProductPlan, backend: Any, dtypes: ProductDtypes, orders: Orders, modes: GemmModes) -> Pushed:
    """**Collective.** The executor of a plan of the push transport, which runs on the backend's engine.

    Args:
        plan: what to run (global).
        backend: ranks, memory and the engine (global).
        dtypes: of the matrices and of partial products that travel, in the plan's orientation (global).
        orders: storage orders of the operands in the plan's orientation (global).
        modes: how its GEMMs are computed (global).
    """
    runner: Pushed = _PUSHED[type(plan)](plan, backend, dtypes, orders, modes)
    return runner
