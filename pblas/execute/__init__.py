"""Executors: one file per plan. An executor is built once per planned product and run many times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pblas.execute.allgather_gemm import RunAllGatherGemm
from pblas.execute.gemm_reduce import RunGemmReduce
from pblas.execute.local_gemm import RunLocalGemm
from pblas.execute.push_gather import RunPushGather
from pblas.execute.push_local import RunLocal
from pblas.execute.push_reduce import RunPushReduce
from pblas.execute.stationary_a import RunSummaA
from pblas.execute.stationary_c import RunSummaC
from pblas.one_dimensional import AllGatherGemm, GemmReduceScatter
from pblas.summa import SummaA, SummaC

if TYPE_CHECKING:
    import numpy as np

    from pblas.execute.operands import Orders
    from pblas.plan import Plan

Executor = RunAllGatherGemm | RunGemmReduce | RunLocalGemm | RunSummaA | RunSummaC
Pushed = RunPushGather | RunPushReduce | RunLocal


def pushed(
    plan: Plan, backend: Any, dtype: np.dtype[Any], wire: np.dtype[Any], orders: Orders, *, tf32: bool
) -> Pushed:
    """**Collective.** As `executor`, for plans of the push transport, which run on the backend's engine.

    Args:
        plan: what to run (global).
        backend: ranks, memory and the engine (global).
        dtype: of the matrices (global).
        wire: dtype in which partial products travel (global).
        orders: storage orders of the operands in the plan's orientation (global).
        tf32: multiply float32 in TF32 where the hardware has it (global).
    """
    if isinstance(plan, AllGatherGemm):
        return RunPushGather(plan, backend, dtype, wire, orders, tf32=tf32)
    if isinstance(plan, GemmReduceScatter):
        return RunPushReduce(plan, backend, dtype, wire, orders, tf32=tf32)
    return RunLocal(plan, backend, tf32=tf32)


def executor(plan: Plan, backend: Any, dtype: np.dtype[Any], wire: np.dtype[Any], orders: Orders) -> Executor:
    """**Collective.** The executor of a plan, with its workspace.

    Args:
        plan: what to run (global).
        backend: ranks, memory and messages (global).
        dtype: of the matrices (global).
        wire: dtype in which partial products travel (global).
        orders: storage orders of the operands in the plan's orientation (global).

    Raises:
        WorkspaceError: shared memory does not suffice.
    """
    if isinstance(plan, AllGatherGemm):
        return RunAllGatherGemm(plan, backend, dtype, orders)
    if isinstance(plan, GemmReduceScatter):
        return RunGemmReduce(plan, backend, dtype, wire, orders)
    if isinstance(plan, SummaC):
        return RunSummaC(plan, backend, dtype, wire, orders)
    if isinstance(plan, SummaA):
        return RunSummaA(plan, backend, dtype, wire, orders)
    return RunLocalGemm(plan, backend, dtype)
