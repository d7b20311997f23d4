"""The work of one rank over time: its plan as sequences of equal steps, each with the data before and after it.

`phases_of` is the closed form of `plan.steps(rank)`: it has one entry for each kind of step, for any number of ranks.
The phases of a plan contain all its bytes, which tests check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pblas.plans.base import Plan
from pblas.plans.cholesky_qr import CholeskyQrPlan
from pblas.plans.elementwise import ElementwisePlan
from pblas.plans.factorization import CholeskyPlan, LuPlan
from pblas.plans.matrix_vector import MatrixVectorPlan
from pblas.plans.one_dimensional import AllGatherGemm, GemmAllReduce, GemmReduceScatter, LocalGemm
from pblas.plans.pipelined_trsm import PipelinedTrsm
from pblas.plans.qr import QrPlan, TsqrPlan
from pblas.plans.redistribution import RedistributionPlan
from pblas.plans.reduction import ReductionPlan
from pblas.plans.reflectors import PanelReflectorsPlan, TreeReflectorsPlan
from pblas.plans.structured import RankUpdate, SymmetricProduct, TriangularProduct
from pblas.plans.substitution import SubstitutionPlan
from pblas.plans.summa import SummaA, SummaC
from pblas.plans.trsm import TrsmPlan
from pblas.simulation import elementwise, factorization, matrix_vector, redistribution, reduction, trsm
from pblas.simulation import one_dimensional as lines
from pblas.simulation import summa as panels
from pblas.simulation.phase import Phase, Traffic, View

__all__ = ["Phase", "Traffic", "View", "phases_of"]


def phases_of(plan: Plan, view: View) -> Iterator[Phase]:
    """The phases of a rank, in order.

    Args:
        plan: the plan, with the transport that is simulated (global).
        view: the rank, and the links over which data reaches it (local).

    >>> from pblas.layouts.split import Split
    >>> from pblas.plans.plan import Product, Distribution
    >>> rows = Distribution("rows", Split(8, 2, 4))
    >>> plan = AllGatherGemm(Product(8, 8, 8, "float64", 4, rows, rows, rows), "")
    >>> [(phase.steps, phase.gemm, phase.nbytes) for phase in phases_of(plan, View(0, 4, 1, "message"))]
    [(1, (2, 8, 2), 0), (1, (2, 8, 2), 128), (1, (2, 8, 2), 128), (1, (2, 8, 2), 128)]
    """
    return _PHASES[type(plan)](plan, view)


def _symmetric_product(plan: SymmetricProduct, view: View) -> Iterator[Phase]:
    """Mirrored elements complete the matrix, then the phases of the product."""
    nbytes = plan.itemsize * plan.mirrored_elements(view.rank)
    yield from redistribution.mirrored(plan.matrix, nbytes, plan.itemsize, view)
    yield from phases_of(plan.inner, view)


_PHASES: dict[type[Plan], Callable[[Any, View], Iterator[Phase]]] = {
    LocalGemm: lines.local_gemm,
    AllGatherGemm: lines.all_gather,
    GemmReduceScatter: lines.reduce_scatter,
    GemmAllReduce: lines.all_reduce,
    SummaC: panels.summa_c,
    SummaA: panels.summa_a,
    RankUpdate: panels.rank_update,
    TriangularProduct: panels.triangular_product,
    SymmetricProduct: _symmetric_product,
    RedistributionPlan: redistribution.redistribute,
    ElementwisePlan: elementwise.elementwise,
    ReductionPlan: reduction.reduction,
    CholeskyPlan: factorization.factorization,
    LuPlan: factorization.factorization,
    QrPlan: factorization.factorization,
    TsqrPlan: factorization.tsqr,
    CholeskyQrPlan: factorization.cholesky_qr,
    PanelReflectorsPlan: factorization.panel_reflectors,
    TreeReflectorsPlan: factorization.tree_reflectors,
    SubstitutionPlan: factorization.substitution,
    TrsmPlan: trsm.trsm,
    PipelinedTrsm: trsm.pipelined,
    MatrixVectorPlan: matrix_vector.matrix_vector,
}
