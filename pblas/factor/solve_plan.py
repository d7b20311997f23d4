"""The plans of the steps of `solve`, as values of integers."""

from __future__ import annotations

from typing import Literal

from pblas.factor.choose import FactorizationAlgorithm, choose_factorization
from pblas.factor.grid_substitution_plan import GridSubstitutionPlan, stays_on_grid
from pblas.factor.with_factor_plan import SubstitutionPlan, Triangle
from pblas.layouts.descriptor import MatrixDescriptor
from pblas.plans.base import Plan
from pblas.simulation.hardware import Topology
from pblas.triangular.choose import choose_trsm
from pblas.triangular.trsm_plan import PANEL, TriangularOperands


def solve_plans(
    a: MatrixDescriptor,
    b: MatrixDescriptor,
    dtype: str,
    nprocs: int,
    topology: Topology | None = None,
    *,
    assume_a: Literal["gen", "pos"] = "gen",
    algorithm: FactorizationAlgorithm = "auto",
) -> list[Plan]:
    """The plans of a factorization, and of the solves with its factor; without the exchange of rows.

    The topology is that of the machine to plan for; None for one node of CPUs.

    >>> a, b = MatrixDescriptor.row_wise(4096, 4096, 4), MatrixDescriptor.row_wise(4096, 8, 4)
    >>> [plan.name for plan in solve_plans(a, b, "float64", 4)]
    ['LuPlan', 'SubstitutionPlan']
    """
    topology = topology or Topology(nprocs, shared=True)
    transport = topology.transport(nprocs)
    triangles = (Triangle("L", unit=True), Triangle("U"))
    if assume_a == "pos":
        triangles = Triangle("L"), Triangle("L", "C")
    factor = choose_factorization(
        *("cholesky" if assume_a == "pos" else "lu", a, dtype, nprocs, transport),
        algorithm=algorithm,
        gpus=topology.gpus,
        alone=topology.alone,
    )
    w, plans = factor.w.without_lld, list[Plan]([factor])
    if w.grid.nprow == 1:
        return [*plans, SubstitutionPlan(w, b, dtype, nprocs, transport, triangles=triangles)]
    if stays_on_grid(w, b, dtype, nprocs, triangles):
        return [*plans, GridSubstitutionPlan(w, b, dtype, nprocs, transport, triangles=triangles)]
    for uplo, trans, unit in triangles:
        operands, reads = TriangularOperands(w, b, b, "L", uplo, trans, unit), 0 not in b.shape
        plans.append(choose_trsm(operands, dtype, nprocs, reads=reads, width=PANEL, topology=topology))
    return plans
