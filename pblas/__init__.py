"""Distributed dense linear algebra: products and redistribution of block-cyclic matrices over process grids.

Importing this package starts neither MPI nor a GPU; creating a `Context` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pblas._lazy import lazy

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pblas import blas as blas
    from pblas import errors as errors
    from pblas import layouts as layouts
    from pblas import linalg as linalg
    from pblas import scalapack as scalapack
    from pblas import torch as torch
    from pblas import tp as tp
    from pblas.arrays.elementwise import PlannedElementwise as PlannedElementwise
    from pblas.arrays.elementwise import elementwise as elementwise
    from pblas.arrays.elementwise import plan_elementwise as plan_elementwise
    from pblas.arrays.elementwise import where as where
    from pblas.arrays.elementwise_plan import ElementwisePlan as ElementwisePlan
    from pblas.arrays.reductions import vdot as vdot
    from pblas.arrays.stacking import hstack as hstack
    from pblas.arrays.stacking import tril as tril
    from pblas.arrays.stacking import triu as triu
    from pblas.arrays.stacking import vstack as vstack
    from pblas.backends.recorder import Event as Event
    from pblas.config import show_config as show_config
    from pblas.context import Context as Context
    from pblas.core.linalg_errors import ConvergenceError as ConvergenceError
    from pblas.core.linalg_errors import NotPositiveDefiniteError as NotPositiveDefiniteError
    from pblas.core.linalg_errors import SingularMatrixError as SingularMatrixError
    from pblas.dry import dry_run as dry_run
    from pblas.epilogues import Epilogue as Epilogue
    from pblas.errors import ArgumentError as ArgumentError
    from pblas.errors import BackendError as BackendError
    from pblas.errors import ContextError as ContextError
    from pblas.errors import DescriptorError as DescriptorError
    from pblas.errors import DTypeError as DTypeError
    from pblas.errors import FileFormatError as FileFormatError
    from pblas.errors import LayoutError as LayoutError
    from pblas.errors import MismatchError as MismatchError
    from pblas.errors import OutOfRangeError as OutOfRangeError
    from pblas.errors import PblasArgumentError as PblasArgumentError
    from pblas.errors import PblasError as PblasError
    from pblas.errors import PblasWarning as PblasWarning
    from pblas.errors import PeerTimeout as PeerTimeout
    from pblas.errors import PlanError as PlanError
    from pblas.errors import WorkspaceError as WorkspaceError
    from pblas.gpu import init_nvshmem as init_nvshmem
    from pblas.launch import Handle as Handle
    from pblas.launch import Pool as Pool
    from pblas.launch import run as run
    from pblas.layouts import Grid as Grid
    from pblas.layouts import MatrixDescriptor as MatrixDescriptor
    from pblas.matmul.api import plan_matmul as plan_matmul
    from pblas.matmul.api import pmatmul as pmatmul
    from pblas.matmul.one_dimensional_plan import AllGatherGemm as AllGatherGemm
    from pblas.matmul.one_dimensional_plan import GemmAllReduce as GemmAllReduce
    from pblas.matmul.one_dimensional_plan import GemmReduceScatter as GemmReduceScatter
    from pblas.matmul.one_dimensional_plan import LocalGemm as LocalGemm
    from pblas.matmul.product import PlannedMatmul as PlannedMatmul
    from pblas.matmul.product_plan import ProductPlan as ProductPlan
    from pblas.matmul.summa_plan import SummaA as SummaA
    from pblas.matmul.summa_plan import SummaC as SummaC
    from pblas.matrices.matrix import DistMatrix as DistMatrix
    from pblas.plans.base import Plan as Plan
    from pblas.redistribution.api import PlannedRedistribution as PlannedRedistribution
    from pblas.redistribution.api import plan_redistribution as plan_redistribution
    from pblas.redistribution.api import redistribute as redistribute
    from pblas.redistribution.redistribution_plan import RedistributionPlan as RedistributionPlan
    from pblas.simulation.dry_run import DryRun as DryRun
    from pblas.simulation.hardware import Hardware as Hardware
    from pblas.simulation.hardware import Link as Link
    from pblas.simulation.simulate import Simulation as Simulation
    from pblas.trace import Trace as Trace
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "pblas.arrays.elementwise": "elementwise plan_elementwise PlannedElementwise where",
            "pblas.arrays.elementwise_plan": "ElementwisePlan",
            "pblas.arrays.reductions": "vdot",
            "pblas.arrays.stacking": "hstack tril triu vstack",
            "pblas.backends.recorder": "Event",
            "pblas.config": "show_config",
            "pblas.context": "Context",
            "pblas.core.linalg_errors": "ConvergenceError NotPositiveDefiniteError SingularMatrixError",
            "pblas.dry": "dry_run",
            "pblas.epilogues": "Epilogue",
            "pblas.errors": (
                "ArgumentError BackendError ContextError DescriptorError DTypeError FileFormatError "
                "LayoutError MismatchError OutOfRangeError PblasArgumentError PblasError PblasWarning "
                "PeerTimeout PlanError WorkspaceError"
            ),
            "pblas.gpu": "init_nvshmem",
            "pblas.launch": "Handle Pool run",
            "pblas.layouts": "Grid MatrixDescriptor",
            "pblas.matmul.api": "plan_matmul pmatmul",
            "pblas.matmul.one_dimensional_plan": "AllGatherGemm GemmAllReduce GemmReduceScatter LocalGemm",
            "pblas.matmul.product": "PlannedMatmul",
            "pblas.matmul.product_plan": "ProductPlan",
            "pblas.matmul.summa_plan": "SummaA SummaC",
            "pblas.matrices.matrix": "DistMatrix",
            "pblas.plans.base": "Plan",
            "pblas.redistribution.api": "plan_redistribution PlannedRedistribution redistribute",
            "pblas.redistribution.redistribution_plan": "RedistributionPlan",
            "pblas.simulation.dry_run": "DryRun",
            "pblas.simulation.hardware": "Hardware Link",
            "pblas.simulation.simulate": "Simulation",
            "pblas.trace": "Trace",
        },
        modules="blas errors layouts linalg scalapack torch tp",
    )
