"""The choice of the plan of a triangular solve: the triangle travels, or blocks of X along its diagonal."""

from __future__ import annotations

from functools import lru_cache

from pblas.simulation.hardware import Topology
from pblas.simulation.simulate import predict
from pblas.triangular.pipelined_trsm_plan import PipelinedTrsm
from pblas.triangular.trsm_plan import TriangularOperands, TrsmPlan

_BLOCKS = 4096  # most blocks of the diagonal with which the triangle stays: planning takes time in proportion
_LAYOUTS = 256  # size of the cache of plans: loops call with matrices of the same few layouts again and again


@lru_cache(_LAYOUTS)
def choose_trsm(
    operands: TriangularOperands, dtype: str, nprocs: int, *, reads: bool, width: int, topology: Topology
) -> TrsmPlan | PipelinedTrsm:
    """The plan of trsm that is predicted to take less time.

    The choice does not depend on the transport. On GPUs the triangle always travels, because small messages there pass
    through the hosts; vectors for which kernels exchange blocks do not come here.

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
    fixed = topology.alike
    plan = TrsmPlan(operands, dtype, nprocs, reads=reads, width=width, transport=transport, fixed=fixed)
    triangle = operands.triangle
    blocks = triangle.rows.nblocks + triangle.columns.nblocks + plan.order // width
    is_everywhere = triangle.copies == nprocs
    if fixed or not reads or is_everywhere or topology.gpus or blocks > _BLOCKS:
        return plan
    pipelined = PipelinedTrsm(operands, dtype, nprocs, width=width, transport=transport)
    machine, neutral = topology.hardware, Topology().transport(nprocs)
    stays = predict(pipelined.over(neutral), machine)
    return pipelined if stays < predict(plan.over(neutral), machine) else plan
