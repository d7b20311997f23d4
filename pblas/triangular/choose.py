"""The choice of the plan of a triangular solve: the triangle travels, or blocks of X along its diagonal."""

from __future__ import annotations

from functools import lru_cache

from pblas.simulation.hardware import CORE, Topology
from pblas.triangular.pipelined_trsm_plan import PipelinedTrsm
from pblas.triangular.trsm_plan import TriangularOperands, TrsmPlan

_SECONDS_PER_MESSAGE = CORE.far.latency
"""Seconds between the end of a block and the begin of the next one, for each of the two messages between them."""
_SECONDS_PER_FLOP = 1 / (CORE.float64 * 5 / 6)  # GEMMs beside a solve have five sixths of the rate of a large one
_BLOCKS = 4096  # most blocks of the diagonal with which the triangle stays: planning takes time in proportion
_LAYOUTS = 256  # size of the cache of plans: loops call with matrices of the same few layouts again and again


@lru_cache(_LAYOUTS)
def choose_trsm(
    operands: TriangularOperands, dtype: str, nprocs: int, *, reads: bool, width: int, topology: Topology
) -> TrsmPlan | PipelinedTrsm:
    """The plan of trsm that takes less time by a count of bytes, flops and messages.

    The choice does not depend on the transport. On GPUs the triangle always travels, because small messages there pass
    through the hosts.

    >>> from pblas.layouts.descriptor import MatrixDescriptor
    >>> from pblas.layouts.grid import Grid
    >>> a = MatrixDescriptor(8192, 8192, 256, 256, Grid(2, 2))
    >>> for nrhs in (1, 8192):
    ...     b = MatrixDescriptor(8192, nrhs, 256, 256, Grid(2, 2))
    ...     operands = TriangularOperands(a, b, b)
    ...     print(choose_trsm(operands, "float64", 4, reads=True, width=256, topology=Topology()).name)
    PipelinedTrsm
    TrsmPlan
    """
    transport = topology.transport(nprocs)
    plan = TrsmPlan(operands, dtype, nprocs, reads=reads, width=width, transport=transport)
    triangle = operands.triangle
    blocks = triangle.rows.nblocks + triangle.columns.nblocks + plan.order // width
    if not reads or nprocs == 1 or topology.gpus or blocks > _BLOCKS:
        return plan
    pipelined = PipelinedTrsm(operands, dtype, nprocs, width=width, transport=transport)
    elements, nrhs = plan.order * (plan.order + 1) // 2, plan.solved.columns.max_count
    own = max(map(pipelined.own_elements, pipelined.extreme_ranks()))
    hops = (triangle.rows.nprocs > 1) + (triangle.columns.nprocs > 1)
    messages = hops * pipelined.nblocks * _SECONDS_PER_MESSAGE
    stays = _seconds(pipelined, own, pipelined.nrhs) + messages
    return pipelined if stays < _seconds(plan, elements, nrhs) else plan


def _seconds(plan: TrsmPlan | PipelinedTrsm, elements: int, nrhs: int) -> float:
    """Seconds of the busiest rank: its bytes arrive, and it multiplies elements of T with right-hand sides."""
    flops = 2 * elements * nrhs * (4 if plan.dtype.startswith("complex") else 1)
    work = max(
        flops * _SECONDS_PER_FLOP, elements * plan.itemsize * (1 / CORE.memory_bandwidth)
    )  # few columns wait for T
    return plan.max_received_nbytes * (1 / CORE.far.bandwidth) + work
